"""Hopper: attention in one kernel, from the definition of `attention`: TMA, wgmma, rings, a producer (FlashAttention-3's structure).

    attention(m,n,d)(GL,GL,GL,VAL,GL)(Kernel)
      partial(sums, 4)                        each of the four lanes of a row adds up its own part of its sum
      tile(r=1, g=1, b=1).to(Block)           attention(m,n,d)(GL,...)(Kernel)               head after head
      tile(m=bm).to(Block)                    attention(128,n,d)(GL,...)(Block)              its queries
        .persistent(blocks)
      load(Q, SH)                             attention(128,n,d)(SH,...)(Block)              TMA, once a tile
      split(n=bn).pipeline(stages)            attention(128,128,d)(SH,...)(Block)            block of keys after block of keys
        .specialize()                                                                        filled by a warpgroup of its own
      load(K, SH), load(V, SH)                attention(128,128,d)(SH,SH,SH,...)             TMA, as the products want to read them
      tile(m=64).to(Warpgroup)                attention(64,128,d)(SH,SH,SH,...)(Warpgroup)   whole rows, each with four lanes
      step(s)                                 MatMul(64,128,d)(SH,SH,RF)(Warpgroup)          WGMMA
      step(pv)                                MatMul(64,d,128)(RF,SH,RF)(Warpgroup)          WGMMA; probabilities stay in registers
      step(store)                             Move(64,d)(RF,GL)(Warpgroup)                   stmatrix, TMA

Scores and the sum so far are accumulators of a warpgroup; the scores' exponentials, rounded in pairs, are the next product's factor as
they lie. V is read across its rows, so nothing is transposed. What lies behind the last query or key arrives as zeros, and the
definition's mask hides it. Sizes of heads are multiples of 16, and of `chunk`, in which a tile is stored. Registers hold bn/2 + d/2 + bn/4
data of a thread: of heads of 256 elements blocks of 64 keys.

`strategy` has a block for each multiprocessor that takes one tile after the other (`blocks` 65536: a block for each tile), so that a tile
is stored while the next one is loaded; those of a head are neighbours, as they read the same keys. `causal` begins with the last queries
(`together` heads at a time; 0: all), which see the most keys. `delayed` and `delayed_causal` multiply values while the exponentials of the
next block of keys are made; they want two stages or more. `held` and `causal_held` keep queries in registers, too: 5 % faster with heads of
64 elements, no faster with 128.
"""

import math

from fireiron import *
from fireiron.strategies import attention
from fireiron.strategies._fused import by_warpgroups
from fireiron.values.expr import constant

SIZES = (512, 512, 128)

SLACK = 8
"""By how many powers of two a score may be above the maximum that exponentials are taken less, before that moves."""

bm = Tunable("bm", 128, 192, 64, 256)
bn = Tunable("bn", 128, 64, 80, 96, 112, 160, 32, 16)
stages = Tunable("stages", 2, 1, 3, 4)
chunk = Tunable("chunk", 64, 32, 16)
blocks = Tunable("blocks", 132, 264, 65536)
together = Tunable("together", 0, 1, 2, 4, 8, 16)


def definition(causal=False, window=None, lse=False, slack=SLACK, score=None):
    """The definition of `attention`, whose maxima stay until a score is above them by a factor of 256."""
    return attention.definition(causal, window, lse, slack, score)


def spec(M, N, D, heads=1, batch=1, shared=1, made=None, **options):
    """The problem of `attention`, of the definition with `SLACK`, unless `made` is another one."""
    return attention.spec(M, N, D, heads, batch, shared, definition() if made is None else made, **options)


copy = Move.done()
fragments = Move.tile(64).to(Warpgroup).tile(64, 16).unroll().done()
staged = Move.tile(64, chunk).unroll().load(SRC, SH, copy).converted().done()


def by_rows(made, delayed=True, held=False, blocks=blocks, stays=False):
    """The strategy on a definition of attention; of one with a mask, blocks of keys that no row of a tile sees are left out.

    `delayed`: values are multiplied while exponentials of the next block of keys are made. With `held` queries stay in registers, only
    where `delayed`. With `stays` blocks take tile after tile under a mask, too. Of a definition with slack a warp rescales nothing where no
    maximum of its rows moves.
    """
    names = {one.name for one in made.made.steps}
    masks = names & {"mask", "window"}
    whole = made.partial("sums", 4)
    if "mask" in masks:
        queries = whole.tile(m=bm, r=1, g=1, b=1).to(Block).last_first("m", together)
        queries = queries.persistent(blocks) if stays else queries
    else:
        queries = whole.tile(r=1, g=1, b=1).to(Block).tile(m=bm).to(Block)
        queries = queries if masks else queries.persistent(blocks)
    queries = queries.load("Q", SH, copy)
    queries = queries.load("Q", RF, fragments) if held else queries
    turns = queries.split(n=bn).pipeline(stages)
    turns = turns.skip() if masks else turns
    turns = turns.specialize(128)
    turns = turns.delay("pv", behind="s") if delayed else turns
    rows = turns.load("K", SH, copy).load("V", SH, copy).tile(m=64).to(Warpgroup).step("s", by_warpgroups).step("pv", by_warpgroups)
    if "shrink" in names:
        rows = rows.skip("alpha", "shrink", "keep", where="new == mx").skip("rescale", where="alpha == 1")
    return rows.step("store", staged).done()


FORMS = {
    "strategy": {"delayed": False},
    "delayed": {"delayed": True},
    "held": {"delayed": True, "held": True},
    "causal": {"delayed": False},
    "delayed_causal": {"delayed": True},
    "causal_held": {"delayed": True, "held": True},
    "causal_stays": {"delayed": True, "held": True, "stays": True},
}
"""Options of `by_rows` of the strategies here, for other definitions of attention, too."""

strategy = by_rows(definition(), **FORMS["strategy"])
delayed = by_rows(definition(), **FORMS["delayed"])
held = by_rows(definition(), **FORMS["held"])
causal = by_rows(definition(causal=True), **FORMS["causal"])
delayed_causal = by_rows(definition(causal=True), **FORMS["delayed_causal"])
causal_held = by_rows(definition(causal=True), **FORMS["causal_held"])
causal_stays = by_rows(definition(causal=True), **FORMS["causal_stays"])


def values(spec):
    """The tunables for a problem, which is not measured."""
    d, m = (constant(spec.size(dim)) or 128 for dim in "dm")
    wide = {"bn": 128, "stages": 2} if d <= 128 else {"bn": 64, "stages": 1}
    return {"bm": 64 if m <= 64 else 128, "chunk": math.gcd(d, 64), **wide}


causal_values = delayed_values = delayed_causal_values = held_values = causal_held_values = causal_stays_values = values

LONG = 2048
"""Queries of a head above which blocks that stay wait for the longest of their tiles."""


def forms(spec):
    """Names of `FORMS` for a problem, the fastest on an H200 first; the last one needs the fewest registers.

    Heads of more than 128 elements have one stage, and nothing is delayed.
    """
    d, m = (constant(spec.size(dim)) or LONG + 1 for dim in "dm")
    if not {one.name for one in spec.starter.made.steps} & {"mask", "window"}:
        return ("strategy",) if d > 128 else ("held",) * (d <= 64) + ("delayed", "strategy")
    staying = "mask" in {one.name for one in spec.starter.made.steps} and m <= LONG
    return ("causal",) if d > 128 else ("causal_stays",) * staying + ("causal_held",) * (d <= 64) + ("delayed_causal", "causal")


def fastest(spec):
    """The name of the fastest form for a problem on an H200."""
    return forms(spec)[0]
