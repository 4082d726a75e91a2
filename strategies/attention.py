"""Attention forward: softmax(Q K^T) V in one kernel, one block of keys per iteration (FlashAttention-2), with instructions up to sm_80.

    attention(m,n,d)(GL,GL,GL,VAL,GL)(Kernel)
      tile(m=bm, r=1, g=1, b=1).to(Block)     attention(128,n,d)(GL,...)(Block)      queries of one head
      load(Q, SH)                             attention(128,n,d)(SH,...)(Block)      swizzled, 16 bytes per copy
      split(n=bn).pipeline(stages)            attention(128,64,d)(SH,...)(Block)     one block of keys per iteration, the next in flight
      load(K, SH), load(V, SH)                attention(128,64,d)(SH,SH,SH,...)      cp.async
      tile(m=wm).to(Warp)                     attention(32,64,d)(SH,SH,SH,...)(Warp) whole rows, four lanes each
      step(s), step(pv)                       MatMul(32,64,d), MatMul(32,d,64)       ldmatrix and HMMA; probabilities stay in registers
      step(rescale)                           Rescale(32,d)                          if a maximum of the thread's rows changed
      step(store)                             Move(32,d)(RF,GL)(Warp)                through the warp's part of shared memory

Q[b,m,g,r,d], K[b,n,g,d], V[b,n,g,d], O[b,m,g,r,d]: `r` query heads read each of the `g` key heads, so r = 1 without grouped queries.
`spec` takes strides for other orders. Scores are multiplied by `scale`, which is above 0. A row that sees no key is 0: the running
maximum starts at a finite number, so exp2(-inf - maximum) is 0.

`q_in_registers` keeps the queries in registers; `strategy` reads them again for each block of keys. `steady` rescales unconditionally.
Without a window a causal kernel starts the last queries first (`heads_per_group` heads at a time; 0: all), because they see the most keys.
Two choices limit how far ptxas moves loads, which would otherwise fill more than 255 registers with fragments: the scores are computed from
`bd` elements of a head at a time, and the accumulator is rescaled under a branch. `score_parts` does the same: it divides the keys of a
block into parts whose fragments of K are loaded separately.
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
"""Matches the score in a formula that changes it."""

NUMBER = r"(\d+\.?\d*(?:[eE][+-]?\d+)?)(?![\w.])"
"""Matches a number in such a formula."""

TIMES = rf"((?:^|[(,+-])\s*){SCORE}\s*\*\s*{NUMBER}"
"""Matches a score times a number, after an operator with lower precedence than `*`."""

TIMES_FUNCTION = rf"\s*{NUMBER}\s*\*\s*(\w+\([^()]*\))\s*"
"""Matches a number times a function."""


def formula_of(score):
    """Return the formula of the step that changes a score, with as few instructions as possible.

    A division by a number becomes a multiplication by its inverse. A number that multiplies the score is folded into the scale.
    """
    times = re.sub(rf"/\s*{NUMBER}", lambda match: f"* {1 / float(match[1])!r}", score)
    times = re.sub(TIMES, r"\1(s[m,n] * (scale * \2))", times)
    return re.sub(rf"{SCORE}(?!\[)", "(s[m,n] * scale)", times)


def factor_of(score):
    """Return the positive factor of a function in a formula, and the function: (30.0, "tanh(s / 30)"); (1, score) without such a factor.

    A positive factor does not change which score is the maximum, so it can be folded into the multiplication in the exponent.
    """
    match = re.fullmatch(TIMES_FUNCTION, score)
    return (float(match[1]), match[2]) if match and float(match[1]) > 0 else (1, score)


@functools.cache
def definition(causal=False, window=None, lse=False, rescale_threshold=0, score=None):
    """Return attention as formulas.

    Args:
        causal: query m sees keys 0 to m; both sequences have the same length.
        window: query m sees only the last `window` of these keys, its own included.
        lse: also write the log-sum-exp of each row's scores, to L[b,m,g,r].
        rescale_threshold: keep the running maximum of a row until a score exceeds it by this many powers of two, so that rows are
            rarely rescaled; 0 always takes the true maximum.
        score: a formula that changes the scaled score `s` of query `m` and key `n`, such as `"30 * tanh(s / 30)"` or
            `"s - 0.5 * abs(m - n)"`; `tanh_approx` is one instruction, `tanh` about twenty.
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


def masks(fused):
    """Return the steps of a definition that mask keys."""
    return {one.name for one in fused.fused_definition.steps} & {"mask", "window"}


def by_rows(fused, q_in_registers=False, partial_sums=False, branch=True):
    """Return the strategy for a definition; under a mask it skips blocks of keys that no row sees.

    Args:
        q_in_registers: keep the queries in registers.
        partial_sums: each of the four lanes of a row accumulates its part of the row's sum; the parts are combined after the loop.
        branch: rescale the accumulator only if a maximum changed; with a `rescale_threshold`, only if a row of the warp needs it.
    """
    scores = MatMul.split(bd).split(16).unroll()
    scores = scores if q_in_registers else scores.load(A, RF, fragments)
    scores = scores.tile(wm, bn // score_parts).unroll().load(B, RF, fragments)
    seen = masks(fused)
    queries = (fused.rfactor("sums", 4) if partial_sums else fused).tile(m=bm, r=1, g=1, b=1).to(Block)
    queries = queries.longest_first("m", heads_per_group) if "mask" in seen else queries
    queries = queries.load("Q", SH, copy).swizzle_storage()
    queries = queries.load("Q", RF, Move.tile(wm).to(Warp).done()) if q_in_registers else queries
    key_blocks = queries.split(n=bn).pipeline(stages)
    key_blocks = key_blocks.skip_masked_tiles() if seen else key_blocks
    rows = (
        key_blocks.load("K", SH, copy)
        .swizzle_storage()
        .load("V", SH, copy)
        .swizzle_storage()
        .tile(m=wm)
        .to(Warp)
        .step("s", scores.then(tiles))
    )
    if branch and any(one.name == "shrink" for one in fused.fused_definition.steps):
        rows = rows.skip_steps("alpha", "shrink", "keep", where="new == mx").skip_steps("rescale", where="alpha == 1")
    else:
        rows = rows.step("rescale", Pointwise.done(SKIP_IF_IDENTITY) if branch else Pointwise.done())
    return rows.step("pv", MatMul.split(16).unroll().load(B, RF, fragments).then(tiles)).step("store", staged).done()


strategy = by_rows(definition())
steady = by_rows(definition(), branch=False)
causal = by_rows(definition(causal=True))
q_in_registers = by_rows(definition(), q_in_registers=True)
causal_q_in_registers = by_rows(definition(causal=True), q_in_registers=True)


def spec(M, N, D, heads=1, batch=1, shared=1, fused=None, **options):
    """Return the problem of M queries, N keys and D elements per head, with `heads` query heads, `shared` of them per key head.

    Args: `fused`, another definition; `options`, such as `dtype` (float16 by default) and strides,
        `Q=Strides(b=..., m=..., g=..., r=..., d=1)`. L is float32.
    """
    fused = definition() if fused is None else fused
    types = {"L": float32} if "L" in fused.fused_definition.uses else {}
    return fused(m=M, n=N, d=D, b=batch, g=heads // shared, r=shared, types=types | options.pop("types", {}), **options)


def values(spec, target=None):
    """Return tunables for a problem without a record, by the head size; those for 64 and 128 elements were the best on an H200.

    Blocks of 128 keys require lengths that are multiples of 128: predicates need registers, and the scores of such a block leave few.
    Before Ampere a block has less shared memory and copies pass through registers, so it has fewer rows and keys.
    """
    d, m = (constant(spec.size(dim)) or 128 for dim in "dm")
    known = all(constant(spec.size(dim)) is not None for dim in "mn")
    if before(80, target):
        return {"bm": 64, "bn": 32, "wm": 16, "score_parts": 1, "stages": 2 if known and d <= 128 else 1}
    whole = all((constant(spec.size(dim)) or 1) % 128 == 0 for dim in "mn")
    few = {"bn": 128, "wm": 32, "score_parts": 1 if masks(spec.starter) else 8} if whole else {"bn": 64, "wm": 32, "score_parts": 1}
    wide = few if d <= 64 else {"bn": 64, "wm": 32, "score_parts": 4} if d <= 128 else {"bn": 32, "wm": 16, "score_parts": 1}
    if target is not None and not known and not before(100, target):
        wide["score_parts"] = min(wide["score_parts"], 2)  # predicates on lengths need registers, too, with ptxas for Blackwell
    large = target is None or as_architecture(target).shared_per_block >= 128 * 1024
    return {"bm": 64 if m <= 64 or (d > 128 and not large) else 128, "stages": 2, **wide}


causal_values = values


def steady_values(spec, target=None):
    """Return tunables without the branch: ptxas moves more loads, so above 64 elements per head a warp has fewer rows."""
    d, base = constant(spec.size("d")) or 128, values(spec, target)
    return base if d <= 64 else {**base, "wm": 16}


def fastest(spec):
    """Return the name of the fastest strategy for a problem on an H200; for small heads the branch costs more than it saves."""
    few = (constant(spec.size("d")) or 128) <= 64
    return "causal" if spec.starter == causal.start else "steady" if few else "strategy"


def q_in_registers_values(spec, target=None):
    """Return tunables with queries in registers, which leave registers for fewer keys, or for fewer rows per warp."""
    d, base = constant(spec.size("d")) or 128, values(spec, target)
    return {**base, "bn": min(base["bn"], 64), "wm": base["wm"] if d <= 64 else 16, "score_parts": 1}


causal_q_in_registers_values = q_in_registers_values
