"""Attention on Hopper in one kernel: TMA, wgmma, circular buffers, a producer warpgroup (the structure of FlashAttention-3).

    attention(m,n,d)(GL,GL,GL,VAL,GL)(Kernel)
      rfactor(sums, 4)                        each of the four lanes of a row accumulates a partial sum
      tile(r=1, g=1, b=1).to(Block)           attention(m,n,d)(GL,...)(Kernel)               one head after another
      tile(m=bm).to(Block)                    attention(128,n,d)(GL,...)(Block)              its queries
        .persistent(num_blocks)
      load(Q, SH)                             attention(128,n,d)(SH,...)(Block)              TMA, once per tile
      split(n=bn).pipeline(stages)            attention(128,128,d)(SH,...)(Block)            one block of keys per iteration
        .warp_specialize(128)                                                                     a producer warpgroup fills the stages
        .defer(pv, after=s)                                                                  the PV MMA runs one iteration later
      load(K, SH), load(V, SH)                attention(128,128,d)(SH,SH,SH,...)             TMA, in the layout that wgmma reads
      tile(m=64).to(Warpgroup)                attention(64,128,d)(SH,SH,SH,...)(Warpgroup)   whole rows, four lanes each
      step(s)                                 MatMul(64,128,d)(SH,SH,RF)(Warpgroup)          WGMMA
      step(pv)                                MatMul(64,d,128)(RF,SH,RF)(Warpgroup)          WGMMA; probabilities stay in registers
      step(store)                             Move(64,d)(RF,GL)(Warpgroup)                   stmatrix, TMA

The definition is that of `attention`. Scores and output are wgmma accumulators. The exponentials, rounded and packed in pairs, are the A
fragments of the second MMA without any data movement. wgmma reads V transposed, so nothing is copied. TMA fills elements past the last
query or key with zeros, and the definition's mask excludes them. Head sizes are multiples of 16, and of `epi_n`, the columns of one store.
A thread needs bn/2 + d/2 + bn/4 registers: heads of 256 elements take blocks of 64 keys, or of 80 without a mask and with one tile per
block.

Forms:
    strategy, causal: persistent blocks (`num_blocks` 65536: one block per tile). The store of a tile overlaps with the loads of the next.
        Tiles of a head are adjacent, because they read the same keys. `causal` starts with the last queries, which see the most keys,
        `heads_per_group` heads at a time (0: all). The PV MMA overlaps with the exponentials of the next block of keys.
    no_overlap, causal_no_overlap: without this overlap.
    q_in_registers, causal_q_in_registers: Q fragments stay in registers; heads of 256 elements leave none for them.
    causal_dynamic, causal_dynamic_q_in_registers: persistent blocks that claim the longest remaining tile.
    order_mma, causal_order_mma: warpgroups issue their MMAs in a fixed order.
    wide, causal_wide: one tile per block, whose output is staged in the memory of its queries. So heads of 256 elements have two stages.

For heads of up to 64 elements exponentials take as long as MMAs. There three warpgroups (192 rows) are 8 % faster than two, and four
(256 rows, 64 keys) if they divide the length better; four only with `order_mma` (7 %).
"""

import math

from fireiron import *
from fireiron.strategies import attention
from fireiron.strategies._fused import by_warpgroups
from fireiron.values.expr import constant

SIZES = (512, 512, 128)

SHORT = 1024
"""Number of queries up to which two warpgroups are faster than four under a causal mask, which masks half of the diagonal tiles."""

LONG = 8192
"""Number of queries from which three warpgroups with a fixed order of MMAs are faster under a causal mask: 4 % with heads of 64 elements
(128 keys, compared with four warpgroups and 64 keys), 1 % with heads of 128 (80 keys, compared with queries in registers).
"""

RESCALE_THRESHOLD = 8
"""log2 of the factor by which a score may exceed the running maximum before rows are rescaled."""

IN_CACHE = 16 << 20
"""Bytes of keys and values that stay in L2 while blocks read them."""

KEYS = 4096
"""Number of keys that `values` assumes for a run-time size."""

bm = Tunable("bm", 128, 192, 64, 256)
bn = Tunable("bn", 128, 64, 80, 96, 112, 160, 32, 16, 176, 144)
stages = Tunable("stages", 2, 1, 3, 4)
epi_n = Tunable("epi_n", 64, 32, 16, 128)
num_blocks = Tunable("num_blocks", 132, 264, 65536)
heads_per_group = Tunable("heads_per_group", 0, 1, 2, 4, 8, 16)


def definition(causal=False, window=None, lse=False, rescale_threshold=RESCALE_THRESHOLD, score=None):
    """Return the definition of `attention`, with a rescale threshold of 2**8 by default."""
    return attention.definition(causal, window, lse, rescale_threshold, score)


def spec(M, N, D, heads=1, batch=1, shared=1, fused=None, **options):
    """Return the problem of `attention` for the definition with `RESCALE_THRESHOLD`, or for another definition `fused`."""
    return attention.spec(M, N, D, heads, batch, shared, definition() if fused is None else fused, **options)


copy = Move.done()
fragments = Move.tile(64).to(Warpgroup).tile(64, 16).unroll().done()
staged = Move.tile(64, epi_n).unroll().load(SRC, SH, copy).cast_on_copy().done()
reused = Move.tile(64, epi_n).unroll().load(SRC, SH, copy).cast_on_copy().reuse_buffer().done()
"""Stage the output in memory that nothing reads any more, such as that of the queries."""


def by_rows(
    fused,
    overlap=True,
    q_in_registers=False,
    num_blocks=num_blocks,
    persistent=False,
    dynamic=False,
    order_mma=False,
    reuse_buffer=False,
    separate=False,
):
    """Return the strategy for a definition of attention; under a mask it skips blocks of keys that no row of a tile sees.

    With a `rescale_threshold` a warp skips rescaling if no maximum of its rows changes.

    Args:
        overlap: run the PV MMA one iteration later, while the exponentials of the next block of keys are computed.
        q_in_registers: keep Q fragments in registers; only with `overlap`.
        num_blocks: of a persistent kernel.
        persistent: persistent blocks under a mask, too.
        dynamic: persistent blocks claim the longest remaining tile from a counter.
        order_mma: warpgroups issue their MMAs in a fixed order.
        reuse_buffer: stage the output in the memory of the queries; for one tile per block.
        separate: blocks of keys that a mask or the last key changes have a separate loop.
    """
    names = {one.name for one in fused.fused_definition.steps}
    masks = names & {"mask", "window"}
    whole = fused.rfactor("sums", 4)
    if "mask" in masks:
        queries = whole.tile(m=bm, r=1, g=1, b=1).to(Block).longest_first("m", heads_per_group)
        queries = queries.persistent(num_blocks, dynamic) if persistent or dynamic else queries
    else:
        queries = whole.tile(r=1, g=1, b=1).to(Block).tile(m=bm).to(Block)
        queries = queries if masks else queries.persistent(num_blocks)
    queries = queries.load("Q", SH, copy)
    queries = queries.load("Q", RF, fragments) if q_in_registers else queries
    steps = queries.split(n=bn).pipeline(stages)
    steps = steps.skip_masked_tiles() if masks else steps
    steps = steps.separate_masked_tiles() if separate else steps
    steps = steps.warp_specialize(128)
    steps = steps.defer("pv", after="s") if overlap else steps
    steps = steps.order_mma("s", "pv") if order_mma else steps
    rows = steps.load("K", SH, copy).load("V", SH, copy).tile(m=64).to(Warpgroup).step("s", by_warpgroups).step("pv", by_warpgroups)
    if "shrink" in names:
        rows = rows.skip_steps("alpha", "shrink", "keep", where="new == mx").skip_steps("rescale", where="alpha == 1")
    return rows.step("store", reused if reuse_buffer else staged).done()


FORMS = {
    "strategy": {},
    "causal": {},
    "no_overlap": {"overlap": False},
    "causal_no_overlap": {"overlap": False},
    "q_in_registers": {"q_in_registers": True},
    "causal_q_in_registers": {"q_in_registers": True},
    "causal_dynamic": {"dynamic": True},
    "causal_dynamic_q_in_registers": {"q_in_registers": True, "dynamic": True},
    "order_mma": {"order_mma": True},
    "causal_order_mma": {"dynamic": True, "order_mma": True},
    "wide": {"reuse_buffer": True},
    "causal_wide": {"reuse_buffer": True},
}
"""Options of `by_rows` by form, also for other definitions of attention."""

strategy = by_rows(definition(), **FORMS["strategy"])
causal = by_rows(definition(causal=True), **FORMS["causal"])
no_overlap = by_rows(definition(), **FORMS["no_overlap"])
causal_no_overlap = by_rows(definition(causal=True), **FORMS["causal_no_overlap"])
q_in_registers = by_rows(definition(), **FORMS["q_in_registers"])
causal_q_in_registers = by_rows(definition(causal=True), **FORMS["causal_q_in_registers"])
causal_dynamic = by_rows(definition(causal=True), **FORMS["causal_dynamic"])
causal_dynamic_q_in_registers = by_rows(definition(causal=True), **FORMS["causal_dynamic_q_in_registers"])
order_mma = by_rows(definition(), **FORMS["order_mma"])
causal_order_mma = by_rows(definition(causal=True), **FORMS["causal_order_mma"])
wide = by_rows(definition(), **FORMS["wide"])
causal_wide = by_rows(definition(causal=True), **FORMS["causal_wide"])


def values(spec, target=None):
    """Return tunables for a problem without a record: two warpgroups, and tiles stored in one piece; for Hopper only."""
    d, m = (constant(spec.size(dim)) or 128 for dim in "dm")
    if d <= 128:
        wide = {"bn": 128, "stages": 2}
    elif _masks(spec):
        wide = {"bn": 64, "stages": 2}
    else:
        wide = {"bn": 80, "stages": 1, "num_blocks": 65536} if d == 256 else {"bn": 64, "stages": 1}
    return {"bm": 64 if m <= 64 else 128, "epi_n": 128 if d == 128 else math.gcd(d, 64), **wide}


no_overlap_values = causal_values = causal_no_overlap_values = q_in_registers_values = causal_q_in_registers_values = values


def strategy_values(spec):
    """Return the same with three warpgroups for heads of up to 64 elements."""
    return {**values(spec), "bm": 192} if _small(spec) else values(spec)


def order_mma_values(spec):
    """Return the same with four warpgroups for heads of up to 64 elements."""
    return {**values(spec), "bm": 256, "bn": 64} if _small(spec) else values(spec)


def causal_dynamic_values(spec):
    """Return the same for longest tiles first, with as many heads per group as have keys and values that fit in L2."""
    n, d, g = (constant(spec.size(dim)) or unknown for dim, unknown in (("n", KEYS), ("d", 128), ("g", 1)))
    fitting = (heads for heads in (16, 8, 4, 2) if g % heads == 0 and heads * n * d * 4 <= IN_CACHE)
    return {**values(spec), "heads_per_group": next(fitting, 1)}


causal_dynamic_q_in_registers_values = causal_dynamic_values


def causal_order_mma_values(spec):
    """Return both: longest tiles first, and four warpgroups for small heads; three with more keys for long sequences."""
    own = {**causal_dynamic_values(spec), **order_mma_values(spec)}
    if not _is_long(spec):
        return own
    if _small(spec):
        return {**own, "bm": 192, "bn": 128}
    fitting = 4 if (constant(spec.size("g")) or 1) % 4 == 0 else 1
    return {**own, "bm": 192, "bn": 80, "heads_per_group": max(own["heads_per_group"], fitting)}


def wide_values(spec):
    """Return the same with two stages of 64 keys, which are 5 % faster than 80 at length 512 and 1.5 % at 4096, and one tile per block."""
    return {**values(spec), "bn": 64, "stages": 2, "num_blocks": 65536}


causal_wide_values = wide_values


def _masks(spec):
    """Return the steps of a definition that mask keys."""
    return {one.name for one in spec.starter.fused_definition.steps} & {"mask", "window"}


def _small(spec):
    """Whether heads have up to 64 elements, and there are queries for more than two warpgroups."""
    return (constant(spec.size("d")) or 256) <= 64 and (constant(spec.size("m")) or math.inf) > 128


def _is_long(spec):
    """Whether heads have up to 64 elements, or 128, and there are at least `LONG` queries."""
    return (_small(spec) or constant(spec.size("d")) == 128) and (constant(spec.size("m")) or 0) >= LONG


def _rows(m, bm):
    """Return the number of rows of all tiles."""
    return -(-m // bm) * bm


def forms(spec):
    """Return names of `FORMS` for a problem, the fastest on an H200 first; the last one needs the fewest registers.

    Heads of more than 128 elements leave no registers for queries. Under a window each block has one tile, because most tiles take equally
    long.
    """
    masks, d, m = _masks(spec), constant(spec.size("d")) or 256, constant(spec.size("m"))
    dynamic = "mask" in masks
    if d > 128:
        first = ("causal_dynamic",) if dynamic else ()
        return (*first, "causal", "causal_no_overlap") if masks else ("wide", "strategy", "no_overlap")
    if masks:
        ordered = ("causal_order_mma",) if dynamic and ((_small(spec) and (m or 0) > SHORT) or _is_long(spec)) else ()
        first = ("causal_dynamic_q_in_registers", "causal_dynamic") if dynamic else ("causal_q_in_registers",) if d <= 64 else ()
        return (*ordered, *first, "causal", "causal_no_overlap")
    if not _small(spec):
        return ("q_in_registers", "strategy", "no_overlap")
    return ("order_mma" if m is not None and _rows(m, 192) > 1.05 * _rows(m, 256) else "strategy", "q_in_registers", "no_overlap")


def fastest(spec):
    """Return the name of the fastest form for a problem on an H200."""
    return forms(spec)[0]


def values_of(form, spec):
    """Return the tunables of a form for a problem without a record."""
    stated = globals().get(f"{form}_values", values)
    return stated(spec)
