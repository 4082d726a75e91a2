"""Scans of rows: sums or products of the elements so far, and linear recurrences. A block has a row, or a tile of a row.

    scan(M,N)(GL,GL)(Kernel)
      tile(m=1, n=tile).to(Block)      scan(1,tile)(GL,GL)(Block)
        .look_back()                   for rows of several tiles: the block obtains the total of the tiles before it
      load(X, SH)                      scan(1,tile)(SH,GL)(Block)       by cp.async; read twice, so no registers are needed
      done()                           elements of a thread, lanes, iterations, warps, tiles

Each element is read and written once. A row of one tile stays in registers. `strategy` adds, `product` multiplies, and `recurrence`
computes h[n] = A[n] * h[n-1] + X[n].
"""

from fireiron import *
from fireiron.strategies._rows import LANES, widest_vector
from fireiron.values.expr import constant

SIZES = (64, 32768)

warps = Tunable("warps", 8, 16, 4, 2, 1)
"""Warps of a block."""

vector = Tunable("vector", 4, 8, 2, 1)
"""Elements that a lane reads at a time."""

each = Tunable("each", 12, 16, 8, 6, 4, 2, 1)
"""Vectors of a lane."""

MOST = 16384
"""Maximum number of elements of a row that a block has as one tile."""

BLOCKS = 4
"""Blocks of an SM if rows have several tiles."""

BYTES = 48 << 10
"""Bytes of a tile of a longer row: the blocks of an SM have 192 KB in flight."""

LARGE = 16
"""Warps of a block whose row is longer than `SMALL` elements."""

SMALL = 8192

pieces = Move.tile(1, LANES * vector * each).to(Warp).tile(1, vector).to(Lane)
"""Distribute a tile over warps; each lane has `vector` elements in each of `each` iterations."""


def definition(by):
    """Return the definition of a scan: "cumsum" or "cumprod"."""
    body = {"scan": f"t[m,n] = {by}(n, X[m,n])", "store": "Y[m,n] = t[m,n]"}
    return Fused(name="scan", dims="m n", operands={"X": "m n", "Y": "m n"}, body=body)


of_states = Fused(
    name="scan",
    dims="m n",
    operands={"A": "m n", "X": "m n", "Y": "m n"},
    body={"scan": "h[m,n] = linear_recurrence(n, A[m,n], X[m,n])", "store": "Y[m,n] = h[m,n]"},
)
"""The definition of a linear recurrence."""


def of(scan):
    """Return the strategy for a definition: rows of one tile in registers, longer rows in tiles in shared memory."""
    names = [name for name in ("A", "X") if name in scan.fused_definition.arrays]
    tile = scan.tile(m=1, n=LANES * vector * each * warps).to(Block)
    parts = tile.look_back().min_blocks_per_sm(BLOCKS)
    whole, long, unaligned = tile, parts, parts
    for name in names:
        whole = whole.load(name, RF, pieces.done(EVICT_FIRST))
        long = long.load(name, SH, pieces.done(CP_ASYNC[0]))
        unaligned = unaligned.load(name, SH, pieces.done())
    whole = whole.step("store", pieces.done(EVICT_FIRST)).done()
    long, unaligned = (chain.step("store", pieces.done()).done() for chain in (long, unaligned))
    return whole.fallback(long).fallback(unaligned)


strategy = of(definition("cumsum"))
product = of(definition("cumprod"))
recurrence = of(of_states)

FORMS = {"sum": strategy, "product": product, "recurrence": recurrence}
"""The strategies by the names of problems."""


def spec(M, N, form="sum", **options):
    """Return the problem: float16 by default; other options are `dtype` (a float), `types` and strides. `form` is a name of `FORMS`."""
    return FORMS[form].start(m=M, n=N, **options)


def values(spec):
    """Return tunables for a problem without a record, by row length: the fewest iterations of a block with the whole row, or a tile."""
    size, lane = constant(spec.size("n")), widest_vector(spec)
    if size is None or size > MOST:
        bytes_of_column = sum(view.dtype.bytes for name, view in spec.operands.items() if name in ("A", "X"))
        block = warps.values[0] * LANES * lane
        count = min(BYTES // (block * bytes_of_column), MOST // block)
        return {"warps": warps.values[0], "vector": lane, "each": max(one for one in each.values if one <= count)}
    few = next(count for count in sorted(warps.values) if count * LANES * lane * 4 >= size or count == (8 if size <= SMALL else LARGE))
    return {"warps": few, "vector": lane, "each": next(one for one in sorted(each.values) if one * few * LANES * lane >= size)}


product_values = recurrence_values = values
