"""Attention, forward: softmax(Q K^T) V in one kernel, block of keys after block of keys (FlashAttention-2), instructions up to sm_80.

    attention(m,n,d)(GL,GL,GL,VAL,GL)(Kernel)
      tile(m=bm, r=1, g=1, b=1).to(Block)     attention(128,n,d)(GL,...)(Block)      queries of one head
      load(Q, SH)                             attention(128,n,d)(SH,...)(Block)      swizzled, by 16 bytes
      split(n=bn).pipeline(stages)            attention(128,64,d)(SH,...)(Block)     block of keys after block of keys, the next under way
      load(K, SH), load(V, SH)                attention(128,64,d)(SH,SH,SH,...)      cp.async
      tile(m=wm).to(Warp)                     attention(32,64,d)(SH,SH,SH,...)(Warp) whole rows, each with four lanes
      step(s), step(pv)                       MatMul(32,64,d), MatMul(32,d,64)       ldmatrix and HMMA; probabilities stay in registers
      step(rescale)                           Rescale(32,d)                          where some maximum of a thread's rows moved
      step(store)                             Move(32,d)(RF,GL)(Warp)                through shared memory of the warp's own

Q[b,m,g,r,d], K[b,n,g,d], V[b,n,g,d], O[b,m,g,r,d]: `r` heads of queries read each of the `g` heads of keys, so r = 1 where each has its
own. `spec` takes strides for other orders. `scale`, above 0, is what scores are multiplied by. A row that sees no key is 0: the running
maximum begins at a finite number, less which exp2 of -inf is 0.

`q_in_registers` keeps the queries in registers, where `strategy` reads them again for each block of keys; `steady` rescales without asking. Without
a window the last queries of a causal kernel begin first (`heads_per_group` heads at a time; 0: all), as they see the most keys. Scores are made of
`bd` elements of a head at a time, and the sum so far is rescaled under a branch: both bound what ptxas moves, which would fill more than
255 registers with fragments. So do `score_parts`: fragments of K are loaded for that part of a block's keys at a time.
"""

import functools
import re

from fireiron import *
from fireiron.strategies._fused import before
from fireiron.values.expr import constant
from fireiron.values.machine import as_architecture

SIZES = (512, 512, 128)

bm = Tunable("bm", 128, 64)
bn = Tunable("bn", 64, 32, 128)
wm = Tunable("wm", 32, 16)
bd = Tunable("bd", 64, 128, 32, 16)
score_parts = Tunable("score_parts", 1, 2, 4, 8)
stages = Tunable("stages", 2, 1, 3)
heads_per_group = Tunable("heads_per_group", 0, 1, 2, 4, 8, 16)

LOG2_E, LN_2 = 1.4426950408889634, 0.6931471805599453

SCORE = r"\bs\b"
"""A score, in a formula of what becomes of it."""

NUMBER = r"(\d+\.?\d*(?:[eE][+-]?\d+)?)(?![\w.])"
"""A number in such a formula."""

TIMES = rf"((?:^|[(,+-])\s*){SCORE}\s*\*\s*{NUMBER}"
"""A score times a number, behind what binds less than a product."""

TIMES_FUNCTION = rf"\s*{NUMBER}\s*\*\s*(\w+\([^()]*\))\s*"
"""A number times a function."""


def formula_of(score):
    """The value of the step that changes a score, in as few instructions as say the same.

    A division by a number is a product with its inverse, and a number that a score is multiplied by joins the scale, once for all scores.
    """
    times = re.sub(rf"/\s*{NUMBER}", lambda found: f"* {1 / float(found[1])!r}", score)
    times = re.sub(TIMES, r"\1(s[m,n] * (scale * \2))", times)
    return re.sub(rf"{SCORE}(?!\[)", "(s[m,n] * scale)", times)


def factor_of(score):
    """The number above 0 by which a formula multiplies a function, and the function: (30.0, "tanh(s / 30)"); (1, score) of others.

    The greatest score is that of the function, so exponentials may multiply by the number, as they do by another anyway.
    """
    found = re.fullmatch(TIMES_FUNCTION, score)
    return (float(found[1]), found[2]) if found and float(found[1]) > 0 else (1, score)


@functools.cache
def definition(causal=False, window=None, lse=False, rescale_threshold=0, score=None):
    """Attention as formulas.

    `causal`: of two equally long sequences, query m sees keys 0 to m. `window`: it sees the last so many of these, itself included.
    `lse`: the logarithm of the sum of exponentials of a row's scores is written too, to L[b,m,g,r]. `rescale_threshold`: the maximum that a row's
    exponentials are taken less stays until a score is above it by a factor of two to the power of it, so that the row is seldom rescaled.
    `score`: what becomes of a score `s`, which is scaled then, of query `m` and key `n`: `"30 * tanh(s / 30)"`, `"s - 0.5 * abs(m - n)"`;
    `tanh_approx` is one instruction where `tanh` is twenty.
    """
    factor, score = factor_of(score) if score else (1, None)
    bits = str(LOG2_E * factor) if score else f"(scale * {LOG2_E})"
    scaled = f"top[m] * {bits}"
    new = f"where({scaled} > mx[m] + {rescale_threshold}, {scaled}, mx[m])" if rescale_threshold else f"max(mx[m], {scaled})"
    seen = ["n <= m"] * (causal or window is not None) + [f"m < n + {window}"] * (window is not None)
    mask = {"mask" if window is None else "window": f"s[m,n] = where({' and '.join(seen)}, s[m,n], -inf)"} if seen else {}
    changed = {"score": f"s[m,n] = {formula_of(score)}"} if score else {}
    operands = {"Q": "b m g r d", "K": "b n g d", "V": "b n g d", "scale": "", "O": "b m g r d"}
    return Fused(
        name="attention",
        dims="m n d b g r",
        loop="n",
        batch="b g r",
        positive="scale",
        operands={**operands, **({"L": "b m g r"} if lse else {})},
        init={"mx": "mx[m] = -1e30", "l": "l[m] = 0", "acc": "acc[m,d] = 0"},
        body={
            "s": "s[m,n] = sum(d, Q[b,m,g,r,d] * K[b,n,g,d])",
            **changed,
            **mask,
            "top": "top[m] = max(n, s[m,n])",
            "new": f"new[m] = {new}",
            "alpha": "alpha[m] = exp2(mx[m] - new[m])",
            **({"shrink": "l[m] = l[m] * alpha[m]"} if rescale_threshold else {}),
            "keep": "mx[m] = new[m]",
            "exp": f"s[m,n] = exp2(s[m,n] * {bits} - mx[m])",
            "sums": "sums[m] = sum(n, s[m,n])",
            "update": "l[m] = l[m] + sums[m]" if rescale_threshold else "l[m] = l[m] * alpha[m] + sums[m]",
            "p": "p[m,n] = s[m,n]",
            "rescale": "acc[m,d] = acc[m,d] * alpha[m]",
            "pv": "acc[m,d] += sum(n, p[m,n] * V[b,n,g,d])",
        },
        final={
            "inverse": "inverse[m] = where(l[m] > 0, 1 / l[m], 0)",
            "norm": "acc[m,d] = acc[m,d] * inverse[m]",
            "store": "O[b,m,g,r,d] = acc[m,d]",
            **({"lse": f"L[b,m,g,r] = (mx[m] + log2(l[m])) * {LN_2}"} if lse else {}),
        },
    )


copy, fragments = Move.coalesced_copy(8).done(), Move.done()
tiles = MatMul.tile(16, 16).unroll().mma_tile().done()
staged = Move.load(SRC, SH, fragments).cast_on_copy().swizzle_storage().reuse_buffer().coalesced_copy(8).done()


def masks(made):
    """The steps of a definition that hide keys."""
    return {one.name for one in made.made.steps} & {"mask", "window"}


def by_rows(made, q_in_registers=False, apart=False, branch=True):
    """The strategy on a definition; with `q_in_registers` queries stay in registers. Of one with a mask, blocks that no row sees are left out.

    With `apart` each of the four lanes that hold a row adds up its own part of the row's sum, and they meet behind the loop. Without
    `branch` the sum so far is rescaled in every turn, whether or not a maximum moved; with it, and a definition with rescale_threshold, where a row of
    the warp needs it.
    """
    scores = MatMul.split(bd).split(16).unroll()
    scores = scores if q_in_registers else scores.load(A, RF, fragments)
    scores = scores.tile(wm, bn // score_parts).unroll().load(B, RF, fragments)
    seen = masks(made)
    queries = (made.rfactor("sums", 4) if apart else made).tile(m=bm, r=1, g=1, b=1).to(Block)
    queries = queries.longest_first("m", heads_per_group) if "mask" in seen else queries
    queries = queries.load("Q", SH, copy).swizzle_storage()
    queries = queries.load("Q", RF, Move.tile(wm).to(Warp).done()) if q_in_registers else queries
    key_blocks = queries.split(n=bn).pipeline(stages)
    key_blocks = key_blocks.skip_masked_tiles() if seen else key_blocks
    rows = (
        key_blocks.load("K", SH, copy).swizzle_storage().load("V", SH, copy).swizzle_storage().tile(m=wm).to(Warp).step("s", scores.then(tiles))
    )
    if branch and any(one.name == "shrink" for one in made.made.steps):
        rows = rows.skip_steps("alpha", "shrink", "keep", where="new == mx").skip_steps("rescale", where="alpha == 1")
    else:
        rows = rows.step("rescale", Pointwise.done(SKIP_IF_IDENTITY) if branch else Pointwise.done())
    return rows.step("pv", MatMul.split(16).unroll().load(B, RF, fragments).then(tiles)).step("store", staged).done()


strategy = by_rows(definition())
steady = by_rows(definition(), branch=False)
causal = by_rows(definition(causal=True))
q_in_registers = by_rows(definition(), q_in_registers=True)
causal_q_in_registers = by_rows(definition(causal=True), q_in_registers=True)


def spec(M, N, D, heads=1, batch=1, shared=1, made=None, **options):
    """M queries, N keys, D elements of a head; `heads` of queries, `shared` of them on each head of keys; `made`: another definition.

    Halves, row by row, unless said otherwise, as by `Q=Strides(b=..., m=..., g=..., r=..., d=1)`; L is float32.
    """
    made = definition() if made is None else made
    types = {"L": float32} if "L" in made.made.uses else {}
    return made(m=M, n=N, d=D, b=batch, g=heads // shared, r=shared, types=types | options.pop("types", {}), **options)


def values(spec, target=None):
    """The tunables for a problem, which is not measured: by the size of a head (of 64 and 128 elements the best on an H200).

    Blocks of 128 keys are for lengths that they divide: conditions want registers, which the scores of such a block leave few of. Before
    Ampere a block has less shared memory and copies pass through registers, so it takes fewer rows and keys at a time.
    """
    d, m = (constant(spec.size(dim)) or 128 for dim in "dm")
    known = all(constant(spec.size(dim)) is not None for dim in "mn")
    if before(80, target):
        return {"bm": 64, "bn": 32, "wm": 16, "score_parts": 1, "stages": 2 if known and d <= 128 else 1}
    whole = all((constant(spec.size(dim)) or 1) % 128 == 0 for dim in "mn")
    few = {"bn": 128, "wm": 32, "score_parts": 1 if masks(spec.starter) else 8} if whole else {"bn": 64, "wm": 32, "score_parts": 1}
    wide = few if d <= 64 else {"bn": 64, "wm": 32, "score_parts": 4} if d <= 128 else {"bn": 32, "wm": 16, "score_parts": 1}
    if target is not None and not known and not before(100, target):
        wide["score_parts"] = min(wide["score_parts"], 2)  # conditions on lengths want registers, too, as ptxas hands them out for Blackwell
    large = target is None or as_architecture(target).shared_per_block >= 128 * 1024
    return {"bm": 64 if m <= 64 or (d > 128 and not large) else 128, "stages": 2, **wide}


causal_values = values


def steady_values(spec, target=None):
    """Without the branch ptxas moves more: above 64 elements of a head a warp has fewer rows."""
    d, found = constant(spec.size("d")) or 128, values(spec, target)
    return found if d <= 64 else {**found, "wm": 16}


def fastest(spec):
    """The name of the fastest strategy for a problem on an H200; with few elements of a head a branch costs more than it saves."""
    few = (constant(spec.size("d")) or 128) <= 64
    return "causal" if spec.starter == causal.start else "steady" if few else "strategy"


def q_in_registers_values(spec, target=None):
    """Queries in registers leave room for fewer keys, or fewer rows of a warp."""
    d, found = constant(spec.size("d")) or 128, values(spec, target)
    return {**found, "bn": min(found["bn"], 64), "wm": found["wm"] if d <= 64 else 16, "score_parts": 1}


causal_q_in_registers_values = q_in_registers_values
