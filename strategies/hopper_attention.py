"""Hopper: attention in one kernel, from the definition of `attention`: TMA, wgmma, rings, a producer (FlashAttention-3's structure).

    attention(m,n,d)(GL,GL,GL,VAL,GL)(Kernel)
      partial(sums, 4)                        each of the four lanes of a row adds up its own part of its sum
      tile(r=1, g=1, b=1).to(Block)           attention(m,n,d)(GL,...)(Kernel)               head after head
      tile(m=bm).to(Block)                    attention(128,n,d)(GL,...)(Block)              its queries
        .persistent(blocks)
      load(Q, SH)                             attention(128,n,d)(SH,...)(Block)              TMA, once a tile
      split(n=bn).pipeline(stages)            attention(128,128,d)(SH,...)(Block)            block of keys after block of keys
        .warp_specialize()                                                                        filled by a warpgroup of its own
        .defer(pv, after=s)                                                                 values are multiplied a block later
      load(K, SH), load(V, SH)                attention(128,128,d)(SH,SH,SH,...)             TMA, as the products want to read them
      tile(m=64).to(Warpgroup)                attention(64,128,d)(SH,SH,SH,...)(Warpgroup)   whole rows, each with four lanes
      step(s)                                 MatMul(64,128,d)(SH,SH,RF)(Warpgroup)          WGMMA
      step(pv)                                MatMul(64,d,128)(RF,SH,RF)(Warpgroup)          WGMMA; probabilities stay in registers
      step(store)                             Move(64,d)(RF,GL)(Warpgroup)                   stmatrix, TMA

Scores and the sum so far are accumulators of a warpgroup; the scores' exponentials, rounded in pairs, are the next product's factor as
they lie. V is read across its rows, so nothing is transposed. What lies behind the last query or key arrives as zeros, and the
definition's mask hides it. Sizes of heads are multiples of 16, and of `epi_n`, in which a tile is stored. Registers hold bn/2 + d/2 + bn/4
data of a thread: of heads of 256 elements blocks of 64 keys, or of 80 without a mask, where each tile has a block of its own.

`strategy` has a block for each multiprocessor that takes one tile after the other (`num_blocks` 65536: a block for each tile), so that a tile
is stored while the next one is loaded; those of a head are neighbours, as they read the same keys. `causal` begins with the last queries
(`heads_per_group` heads at a time; 0: all), which see the most keys. Both multiply values while the exponentials of the next block of keys are
made; `no_overlap` and `causal_no_overlap` first finish a block. `q_in_registers` and `causal_q_in_registers` keep queries in registers, too, of which heads of 256
elements leave none. `causal_dynamic` and `causal_dynamic_q_in_registers` have a block for each multiprocessor, which takes the longest tile that is
left when it is free: none waits for the last ones, and each stores a tile while its next one is loaded.

With heads of up to 64 elements exponentials take as long as products, and three warpgroups (192 rows) are 8 % faster than two, four (256
rows, 64 keys) where they fit the length better; these only `order_mma`, where they issue products one after the other (7 %).
"""

import math

from fireiron import *
from fireiron.strategies import attention
from fireiron.strategies._fused import by_warpgroups
from fireiron.values.expr import constant

SIZES = (512, 512, 128)

SHORT = 1024
"""Queries of a head up to which two warpgroups are faster than four under a causal mask, of which half is hidden in more of the tile."""

RESCALE_THRESHOLD = 8
"""By how many powers of two a score may be above the maximum that exponentials are taken less, before that moves."""

IN_CACHE = 16 << 20
"""Bytes of keys and values, of 2 bytes each, that stay in the L2 cache while blocks read them."""

KEYS = 4096
"""The keys of a head that values are for where their number is known only at run time."""

bm = Tunable("bm", 128, 192, 64, 256)
bn = Tunable("bn", 128, 64, 80, 96, 112, 160, 32, 16)
stages = Tunable("stages", 2, 1, 3, 4)
epi_n = Tunable("epi_n", 64, 32, 16, 128)
num_blocks = Tunable("num_blocks", 132, 264, 65536)
heads_per_group = Tunable("heads_per_group", 0, 1, 2, 4, 8, 16)


def definition(causal=False, window=None, lse=False, rescale_threshold=RESCALE_THRESHOLD, score=None):
    """The definition of `attention`, whose maxima stay until a score is above them by a factor of 256."""
    return attention.definition(causal, window, lse, rescale_threshold, score)


def spec(M, N, D, heads=1, batch=1, shared=1, made=None, **options):
    """The problem of `attention`, of the definition with `RESCALE_THRESHOLD`, unless `made` is another one."""
    return attention.spec(M, N, D, heads, batch, shared, definition() if made is None else made, **options)


copy = Move.done()
fragments = Move.tile(64).to(Warpgroup).tile(64, 16).unroll().done()
staged = Move.tile(64, epi_n).unroll().load(SRC, SH, copy).cast_on_copy().done()


def by_rows(made, overlap=True, q_in_registers=False, num_blocks=num_blocks, persistent=False, dynamic=False, order_mma=False):
    """The strategy on a definition of attention; of one with a mask, blocks of keys that no row of a tile sees are left out.

    `overlap`: values are multiplied while exponentials of the next block of keys are made. With `q_in_registers` queries stay in registers, only
    where `overlap`. With `persistent` blocks take tile after tile under a mask, too; where `dynamic`, the next that is left, longest first. With
    `order_mma` warpgroups issue products one after the other. Of a definition with rescale_threshold a warp rescales nothing where no maximum of its rows
    moves.
    """
    names = {one.name for one in made.made.steps}
    masks = names & {"mask", "window"}
    whole = made.rfactor("sums", 4)
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
    steps = steps.warp_specialize(128)
    steps = steps.defer("pv", after="s") if overlap else steps
    steps = steps.order_mma("s", "pv") if order_mma else steps
    rows = steps.load("K", SH, copy).load("V", SH, copy).tile(m=64).to(Warpgroup).step("s", by_warpgroups).step("pv", by_warpgroups)
    if "shrink" in names:
        rows = rows.skip_steps("alpha", "shrink", "keep", where="new == mx").skip_steps("rescale", where="alpha == 1")
    return rows.step("store", staged).done()


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
}
"""Options of `by_rows` of the strategies here, for other definitions of attention, too."""

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


def values(spec, target=None):
    """The tunables for a problem, which is not measured: two warpgroups, and tiles that are stored as a whole; for Hopper alone."""
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
    """The same with three warpgroups for heads of up to 64 elements."""
    return {**values(spec), "bm": 192} if _small(spec) else values(spec)


def order_mma_values(spec):
    """The same with four warpgroups for heads of up to 64 elements."""
    return {**values(spec), "bm": 256, "bn": 64} if _small(spec) else values(spec)


def causal_dynamic_values(spec):
    """The same where tiles are taken longest first: of so many heads at a time whose keys and values stay in the L2 cache."""
    n, d, g = (constant(spec.size(dim)) or unknown for dim, unknown in (("n", KEYS), ("d", 128), ("g", 1)))
    fitting = (one for one in (16, 8, 4, 2) if g % one == 0 and one * n * d * 4 <= IN_CACHE)
    return {**values(spec), "heads_per_group": next(fitting, 1)}


causal_dynamic_q_in_registers_values = causal_dynamic_values


def causal_order_mma_values(spec):
    """Both."""
    return {**causal_dynamic_values(spec), **order_mma_values(spec)}


def _masks(spec):
    """The steps of a definition that hide keys."""
    return {one.name for one in spec.starter.made.steps} & {"mask", "window"}


def _small(spec):
    """Whether heads have up to 64 elements, and queries fill more than two warpgroups."""
    return (constant(spec.size("d")) or 256) <= 64 and (constant(spec.size("m")) or math.inf) > 128


def _rows(m, bm):
    """The rows of all tiles."""
    return -(-m // bm) * bm


def forms(spec):
    """Names of `FORMS` for a problem, the fastest on an H200 first; the last one needs the fewest registers.

    Heads of more than 128 elements leave no registers for queries. Under a window each block has one tile, as most are as long as others.
    """
    masks, d, m = _masks(spec), constant(spec.size("d")) or 256, constant(spec.size("m"))
    dynamic = "mask" in masks
    if d > 128:
        short = ("causal_dynamic",) if dynamic and (m or math.inf) <= SHORT else ()
        return (*short, "causal", "causal_no_overlap") if masks else ("strategy", "no_overlap")
    if masks:
        turns = ("causal_order_mma",) if dynamic and _small(spec) and (m or 0) > SHORT else ()
        first = ("causal_dynamic_q_in_registers", "causal_dynamic") if dynamic else ("causal_q_in_registers",) if d <= 64 else ()
        return (*turns, *first, "causal", "causal_no_overlap")
    if not _small(spec):
        return ("q_in_registers", "strategy", "no_overlap")
    return ("order_mma" if m is not None and _rows(m, 192) > 1.05 * _rows(m, 256) else "strategy", "q_in_registers", "no_overlap")


def fastest(spec):
    """The name of the fastest form for a problem on an H200."""
    return forms(spec)[0]


def values_of(form, spec):
    """The tunables of a form for a problem, which is not measured."""
    stated = globals().get(f"{form}_values", values)
    return stated(spec)
