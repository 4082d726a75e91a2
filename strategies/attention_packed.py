"""Attention of sequences of any lengths, packed one behind the other: each query sees a range of keys, which the kernel reads.

    attention_packed(m,n,d,t)(GL,GL,GL,VAL,GL,GL,GL,GL,GL)(Kernel)
      partial(sums, 4)                        each of the four lanes of a row adds up its own part of its sum
      tile(m=bm, r=1, g=1, t=1).to(Block)     attention_packed(128,n,d,1)(GL,...)(Block)      a tile of packed queries, of one head
      load(Q, SH)                             attention_packed(128,n,d,1)(SH,...)(Block)
      split(n=bn).pipeline(stages)            attention_packed(128,64,d,1)(SH,...)(Block)     the blocks of keys that the queries see
        .skip_masked_tiles()
      load(K, SH), load(V, SH)                attention_packed(128,64,d,1)(SH,SH,SH,...)
      tile(m=wm).to(Warp)                     attention_packed(16,64,d,1)(...)(Warp)          ldmatrix and HMMA; `hopper`: TMA, wgmma

Q[t,m,g,r,d] and O are packed tokens in tiles of `m`, K[n,g,d] and V[n,g,d] packed tokens. Query (t,m) sees the keys n with
low[t,m] <= n < high[t,m]; what queries of a tile see lies in begin[t] <= n < end[t], so that no other blocks are loaded, and all of them
see inner[t] <= n < outer[t], so that blocks in there are not masked. A query that sees none is 0. All are int32: `ranges` makes low and
high of the offsets of sequences, under a causal mask and in a window, or not, `of_tiles` the others; `attend` launches.

`hopper` is by TMA, rings and wgmma, with a producer; values are multiplied while the exponentials of the next block of keys are made.
"""

import functools

from fireiron import *
from fireiron.errors import ArgumentError
from fireiron.strategies import attention, hopper_attention
from fireiron.strategies._fused import by_warpgroups
from fireiron.strategies.attention import LOG2_E, fragments, tiles
from fireiron.values.expr import constant
from fireiron.values.machine import as_architecture

SIZES = (128, 512, 64)

TILE = 128
"""The queries of a tile."""

RANGES = dict.fromkeys(("begin", "end", "inner", "outer", "low", "high"), int32)

bm = Tunable("bm", 128, 64)
bn = Tunable("bn", 64, 32, 128, 96, 112)
wm = Tunable("wm", 16, 32)
stages = Tunable("stages", 2, 1, 3)

RESCALE_THRESHOLD = hopper_attention.RESCALE_THRESHOLD

definition = Fused(
    name="attention_packed",
    dims="m n d t g r",
    loop="n",
    batch="t g r",
    positive="scale",
    operands={
        "Q": "t m g r d",
        "K": "n g d",
        "V": "n g d",
        "scale": "",
        "begin": "t",
        "end": "t",
        "inner": "t",
        "outer": "t",
        "low": "t m",
        "high": "t m",
        "O": "t m g r d",
    },
    init={"mx": "mx[m] = -1e30", "l": "l[m] = 0", "acc": "acc[m,d] = 0"},
    body={
        "s": "s[m,n] = sum(d, Q[t,m,g,r,d] * K[n,g,d])",
        "mask": "s[m,n] = where(begin[t] <= n and n < end[t], s[m,n], -inf)",
        "own": "s[m,n] = where(inner[t] <= n and n < outer[t] or low[t,m] <= n and n < high[t,m], s[m,n], -inf)",
        "top": "top[m] = max(n, s[m,n])",
        "scaled": f"top[m] = top[m] * (scale * {LOG2_E})",
        "new": f"new[m] = where(top[m] > mx[m] + {RESCALE_THRESHOLD}, top[m], mx[m])",
        "alpha": "alpha[m] = exp2(mx[m] - new[m])",
        "shrink": "l[m] = l[m] * alpha[m]",
        "keep": "mx[m] = new[m]",
        "exp": f"s[m,n] = exp2(s[m,n] * (scale * {LOG2_E}) - mx[m])",
        "sums": "sums[m] = sum(n, s[m,n])",
        "update": "l[m] = l[m] + sums[m]",
        "p": "p[m,n] = s[m,n]",
        "rescale": "acc[m,d] = acc[m,d] * alpha[m]",
        "pv": "acc[m,d] += sum(n, p[m,n] * V[n,g,d])",
    },
    final={
        "inverse": "inverse[m] = where(l[m] > 0, 1 / l[m], 0)",
        "norm": "acc[m,d] = acc[m,d] * inverse[m]",
        "store": "O[t,m,g,r,d] = acc[m,d]",
    },
)


def seldom(rows):
    """What is left out where no maximum of a warp's rows moves."""
    return rows.skip_steps("alpha", "shrink", "keep", where="new == mx").skip_steps("rescale", where="alpha == 1")


def by_warps():
    """Instructions up to sm_80."""
    copy = attention.copy
    queries = definition.rfactor("sums", 4).tile(m=bm, r=1, g=1, t=1).to(Block).load("Q", SH, copy).swizzle_storage()
    turns = (
        queries.split(n=bn).pipeline(stages).skip_masked_tiles().load("K", SH, copy).swizzle_storage().load("V", SH, copy).swizzle_storage()
    )
    scores = MatMul.split(16).unroll().load(A, RF, fragments).load(B, RF, fragments).then(tiles)
    values = MatMul.split(16).unroll().load(B, RF, fragments).then(tiles)
    return seldom(turns.tile(m=wm).to(Warp).step("s", scores).step("pv", values)).step("store", attention.staged).done()


def by_engines():
    """TMA, wgmma, and a producer."""
    copy = Move.done()
    queries = definition.rfactor("sums", 4).tile(r=1, g=1, t=1).to(Block).tile(m=bm).to(Block).load("Q", SH, copy)
    turns = (
        queries.split(n=bn)
        .pipeline(stages)
        .skip_masked_tiles()
        .warp_specialize(128)
        .defer("pv", after="s")
        .load("K", SH, copy)
        .load("V", SH, copy)
    )
    rows = seldom(turns.tile(m=64).to(Warpgroup).step("s", by_warpgroups).step("pv", by_warpgroups))
    return rows.step("store", hopper_attention.staged).done()


strategy, hopper = by_warps(), by_engines()


def spec(M, N, D, tiles=1, heads=1, shared=1, **options):
    """`tiles` of M packed queries, N packed keys, D elements of a head; `heads` of queries, `shared` of them on each head of keys."""
    types = RANGES | options.pop("types", {})
    return definition(m=M, n=N, d=D, t=tiles, g=heads // shared, r=shared, types=types, **options)


def values(spec):
    """The tunables for a problem, which is not measured."""
    d, m = (constant(spec.size(dim)) or 128 for dim in "dm")
    return {"bm": 64 if m <= 64 else 128, "bn": 64 if d <= 128 else 32, "wm": 16, "stages": 2}


def hopper_values(spec):
    """The same for Hopper: those of `hopper_attention`, with fewer keys where conditions want registers, too."""
    d = constant(spec.size("d")) or 128
    return {**hopper_attention.values(spec), **({"bn": 112} if 96 < d <= 128 else {})}


def ranges(offsets, tokens, keys=None, causal=False, window=None):
    """The range of keys of each packed query: two int32 arrays, of NumPy or PyTorch as `offsets` are.

    Sequence i has the queries offsets[i] to offsets[i + 1], and the keys between the same ones of `keys` (None: `offsets`). `causal`: query
    number j of a sequence sees its keys 0 to j; `window`: the last so many of these. Queries behind the last offset see none.
    """
    if hasattr(offsets, "is_cuda"):
        import torch as library

        tokens = library.arange(tokens, device=offsets.device, dtype=offsets.dtype)
        sequence = library.searchsorted(offsets, tokens, right=True) - 1
    else:
        import numpy as library

        tokens = library.arange(tokens, dtype=offsets.dtype)
        sequence = library.searchsorted(offsets, tokens, side="right") - 1
    keys = offsets if keys is None else keys
    count = len(offsets) - 1
    known, sequence = sequence < count, library.clip(sequence, 0, count - 1)
    begin, end = keys[sequence], keys[sequence + 1]
    own = begin + tokens - offsets[sequence]
    low = begin if window is None else library.maximum(begin, own - (window - 1))
    high = library.minimum(end, own + 1) if causal or window is not None else end
    return low, library.where(known, high, low)


def of_tiles(low, high):
    """Of ranges low[t,m] and high[t,m] what any query of a tile sees, `begin` and `end`, and what all see, `inner` and `outer`."""
    found = low.min(1), high.max(1), low.max(1), high.min(1)
    return tuple(getattr(one, "values", one) for one in found)


def attend(q, k, v, offsets, keys=None, causal=False, window=None, scale=None, architecture=None):
    """Attention of packed tokens q[tokens, heads, d] to k[tokens, groups, d] and v: an array like q.

    `offsets`, `keys`, `causal` and `window` as for `ranges`; `scale` is 1 over the root of d unless said otherwise. Tokens lie row by row.
    Tokens that fill no tile are a launch of their own. An ArgumentError where shapes do not fit.
    """
    tokens, heads, d = q.shape
    groups = k.shape[1]
    if tuple(k.shape) != tuple(v.shape) or k.shape[2] != d or heads % groups:
        got = f"{tuple(q.shape)}, {tuple(k.shape)}, {tuple(v.shape)}"
        raise ArgumentError("attend: shapes that do not fit", got=got, legal="q[tokens,heads,d], k[tokens,groups,d], v[tokens,groups,d]")
    low, high = ranges(offsets, tokens, keys, causal, window)
    dtype, scale = bfloat16 if "bfloat16" in str(q.dtype) else float16, d**-0.5 if scale is None else scale
    made = q.new_empty(q.shape) if hasattr(q, "new_empty") else q.copy()
    whole = tokens // TILE * TILE
    for first, last, rows in ((0, whole, TILE), (whole, tokens, tokens - whole)):
        if last > first:
            own = kernel(rows, d, heads, groups, dtype, architecture)
            shape = ((last - first) // rows, rows, groups, heads // groups, d)
            lows, highs = (one[first:last].reshape(shape[:2]) for one in (low, high))
            own(q[first:last].reshape(shape), k, v, scale, *of_tiles(lows, highs), lows, highs, out=made[first:last].reshape(shape))
    return made


@functools.lru_cache(maxsize=256)
def kernel(rows, d, heads, groups, dtype=float16, architecture=None):
    """The kernel for tiles of so many queries, of any number of tiles and keys."""
    from fireiron.gpu.kernel import architecture_here  # loads what launches: only here

    target = as_architecture(architecture or architecture_here() or "sm_80")
    problem = spec(rows, sym("N"), d, sym("T"), heads, heads // groups, dtype=dtype)
    chosen, own = (hopper, hopper_values(problem)) if target.name == "sm_90a" else (strategy, values(problem))
    return chosen.with_(**{name: value for name, value in own.items() if name in chosen.tunables()})(problem).compile(target)
