"""Parts shared by strategies on rows: copies of 16 bytes per lane, and the number of warps per row."""

from fireiron import *
from fireiron.values.expr import constant

LANES = 32
WARPS = 32
"""Maximum number of warps in a block."""

WARPS_OF = ((16, 1), (32, 2), (64, 4), (256, 8), (512, 16))
"""Pairs (elements, warps): the number of warps per row, by the elements that each lane of a single warp would have, measured on an H200."""

rows = Tunable("rows", 1, 2, 4, 8, 16)
iterations = Tunable("iterations", 2, 1, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 64)
vector = Tunable("vector", 8, 4, 2, 1)

pieces = Move.tile(1, LANES * vector * iterations).to(Warp).tile(1, vector).to(Lane)
"""Distribute a row over warps; each lane has `vector` elements in each of `iterations` iterations."""

rows_of_block = Tunable("rows", 128, 64, 32, 16, 8)
"""Rows of a block that sums columns; each of its warps has an eighth of them."""

columns = Tunable("columns", 256, 128, 64, 32)
"""Columns of a block that sums columns: a lane's vector times the lanes of a warp."""

columns_once = Move.tile(rows_of_block // 8, columns).to(Warp).tile(1, columns // LANES).to(Lane).done(EVICT_FIRST)
"""Distribute the rows of a block over eight warps, and the columns over lanes."""

cached = pieces.done()
"""Copy with the default cache policy."""

once = pieces.done(EVICT_FIRST)
"""Copy data that is not read again (evict first)."""

streamed = Move.done(EVICT_FIRST)
"""Store data from registers that is not read soon (evict first)."""


def fitting(spec, few=0, at_once=0):
    """Return tunables for a spec by its row length: the more elements, the more warps share a row.

    With at most `few` rows, four warps share a row that otherwise has two, because then more loads are in flight. With more rows, up to
    `at_once`, one warp has a row: all blocks run concurrently, and no warp waits for another. Rows of one or two warps share a block of
    four warps. A lane reads 16 bytes at a time if they divide the row. If the last vectors do not fill a warp, a lane has at most 16
    elements as long as there are more warps, because predicates need registers.
    """
    size = constant(spec.size("n"))
    if size is None:
        raise ArgumentError(
            "the row length must be a constant to keep rows in registers", got=spec.size("n"), hint="a number for N; M may be a symbol"
        )
    widest = 16 // next(iter(spec.operands.values())).dtype.bytes
    lane = next(width for width in vector.values if width <= widest and size % width == 0 and (size > width or width == 1))
    pieces = -(-size // (LANES * lane))
    warps = next((count for most, count in WARPS_OF if pieces * lane <= most), WARPS)
    rows_known = constant(spec.size("m"))
    if warps == 2 and rows_known is not None and rows_known <= max(few, at_once):
        warps = 4 if rows_known <= few else 1
    if lane > 1 and size % (LANES * lane) and pieces * lane > 16 * warps:
        warps = min(2 * warps, WARPS)
    trips = next((count for count in sorted(iterations.values) if count * warps >= pieces), max(iterations.values))
    return {"rows": max(4 // -(-pieces // trips), 1), "iterations": trips, "vector": lane}


def widest_vector(spec, dim="n"):
    """Return the elements of the widest vector, of at most 16 bytes, that divides a row of the first operand."""
    size, widest = constant(spec.size(dim)), 16 // next(iter(spec.operands.values())).dtype.bytes
    return next(width for width in (8, 4, 2, 1) if width <= widest and (size is None or size % width == 0))


def column_values(spec):
    """Return tunables for sums of columns: a lane reads 16 bytes of a row at a time if they divide it."""
    lane = widest_vector(spec)
    return {"rows": 128 if lane == 8 else 32, "columns": lane * LANES}
