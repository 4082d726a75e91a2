"""Attention of packed sequences of different lengths: each query sees a range of keys, which the kernel reads.

    attention_packed(m,n,d,t)(GL,GL,GL,VAL,GL,GL,GL,GL,GL)(Kernel)
      rfactor(sums, 4)                        each of the four lanes of a row accumulates a partial sum
      tile(m=bm, r=1, g=1, t=1).to(Block)     attention_packed(128,n,d,1)(GL,...)(Block)      a tile of packed queries of one head
      load(Q, SH)                             attention_packed(128,n,d,1)(SH,...)(Block)
      split(n=bn).pipeline(stages)            attention_packed(128,64,d,1)(SH,...)(Block)     the blocks of keys that the queries see
        .skip_masked_tiles()
      load(K, SH), load(V, SH)                attention_packed(128,64,d,1)(SH,SH,SH,...)
      tile(m=wm).to(Warp)                     attention_packed(16,64,d,1)(...)(Warp)          ldmatrix and HMMA; `hopper`: TMA, wgmma

Q[t,m,g,r,d] and O are packed tokens in tiles of `m`; K[n,g,d] and V[n,g,d] are packed tokens. Query (t,m) sees the keys n with
low[t,m] <= n < high[t,m]. The keys that any query of a tile sees are in begin[t] <= n < end[t], so no other blocks are loaded. All
queries of the tile see inner[t] <= n < outer[t], so blocks in that range are not masked. A query that sees no key is 0. All six are
int32: `ranges` computes low and high from the offsets of sequences, with or without a causal mask and a window; `of_tiles` computes the
others; `attend` launches the kernel.

`hopper` uses TMA, circular buffers, wgmma and a producer; the PV MMA overlaps with the exponentials of the next block of keys. Masked
blocks have separate loops, so the others neither test limits nor read them from memory.
"""

import functools
import re

from fireiron import *
from fireiron.errors import ArgumentError
from fireiron.strategies import _isolated as _places
from fireiron.strategies import attention, hopper_attention
from fireiron.strategies._fused import by_warpgroups
from fireiron.strategies.attention import LN_2, LOG2_E, fragments, tiles
from fireiron.values.expr import constant
from fireiron.values.machine import as_architecture

SIZES = (128, 512, 64)

TILE = 128
"""Number of queries in a tile."""

MOST_ELEMENTS = 256
"""The most elements of a head."""

RANGES = dict.fromkeys(("begin", "end", "inner", "outer", "low", "high"), int32)

bm = Tunable("bm", 128, 64)
bn = Tunable("bn", 64, 32, 128, 96, 112)
wm = Tunable("wm", 16, 32)
stages = Tunable("stages", 2, 1, 3)

RESCALE_THRESHOLD = hopper_attention.RESCALE_THRESHOLD


DISTANCE = r"\bm\s*-\s*n\b"
"""Matches the distance from a key to the query in a score: rows of packed sequences have no other positions."""


def score_with(score, distance):
    """Return a score formula with another text for `m - n`; None without a score."""
    return None if score is None else re.sub(DISTANCE, distance, score)


@functools.cache
def definition_of(lse=False, score=None):
    """Return attention of packed sequences as formulas.

    With `lse`, also the log-sum-exp of each query's scores: L[t,m,g,r]. `score` as in `attention.definition`; of m and n it may contain
    only `m - n`, and only if the last key that a query sees is its own.
    """
    factor, score = attention.factor_of(score_with(score, "(last[m] - 1 - n)")) if score else (1, None)
    bits = str(LOG2_E * factor) if score else f"(scale * {LOG2_E})"
    return Fused(
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
            **({"L": "t m g r"} if lse else {}),
        },
        init={
            "mx": "mx[m] = -1e30",
            "l": "l[m] = 0",
            "acc": "acc[m,d] = 0",
            "first": "first[m] = low[t,m]",
            "last": "last[m] = high[t,m]",
        },
        body={
            "s": "s[m,n] = sum(d, Q[t,m,g,r,d] * K[n,g,d])",
            **({"score": f"s[m,n] = {attention.formula_of(score)}"} if score else {}),
            "mask": "s[m,n] = where(begin[t] <= n, s[m,n], -inf)",
            "end": "s[m,n] = where(n < end[t], s[m,n], -inf)",
            "low": "s[m,n] = where(inner[t] <= n or first[m] <= n, s[m,n], -inf)",
            "high": "s[m,n] = where(n < outer[t] or n < last[m], s[m,n], -inf)",
            "top": "top[m] = max(n, s[m,n])",
            "scaled": f"top[m] = top[m] * {bits}",
            "new": f"new[m] = where(top[m] > mx[m] + {RESCALE_THRESHOLD}, top[m], mx[m])",
            "alpha": "alpha[m] = exp2(mx[m] - new[m])",
            "shrink": "l[m] = l[m] * alpha[m]",
            "keep": "mx[m] = new[m]",
            "exp": f"s[m,n] = exp2(s[m,n] * {bits} - mx[m])",
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
            **({"lse": f"L[t,m,g,r] = (mx[m] + log2(l[m])) * {LN_2}"} if lse else {}),
        },
        types={"first": int32, "last": int32},
    )


definition = definition_of()


def skip_rescale(rows):
    """Skip the rescaling steps if no maximum of a warp's rows changes."""
    return rows.skip_steps("alpha", "shrink", "keep", where="new == mx").skip_steps("rescale", where="alpha == 1")


def by_warps(definition=definition):
    """Return the strategy with instructions up to sm_80."""
    copy = attention.copy
    queries = definition.rfactor("sums", 4).tile(m=bm, r=1, g=1, t=1).to(Block).load("Q", SH, copy).swizzle_storage()
    key_blocks = (
        queries.split(n=bn).pipeline(stages).skip_masked_tiles().load("K", SH, copy).swizzle_storage().load("V", SH, copy).swizzle_storage()
    )
    scores = MatMul.split(16).unroll().load(A, RF, fragments).load(B, RF, fragments).then(tiles)
    values = MatMul.split(16).unroll().load(B, RF, fragments).then(tiles)
    return skip_rescale(key_blocks.tile(m=wm).to(Warp).step("s", scores).step("pv", values)).step("store", attention.staged).done()


def by_tma(definition=definition):
    """Return the strategy with TMA, wgmma, and a producer."""
    copy = Move.done()
    queries = definition.rfactor("sums", 4).tile(r=1, g=1, t=1).to(Block).tile(m=bm).to(Block).load("Q", SH, copy)
    key_blocks = (
        queries.split(n=bn)
        .pipeline(stages)
        .skip_masked_tiles()
        .separate_masked_tiles()
        .warp_specialize(128)
        .defer("pv", after="s")
        .load("K", SH, copy)
        .load("V", SH, copy)
    )
    rows = skip_rescale(key_blocks.tile(m=64).to(Warpgroup).step("s", by_warpgroups).step("pv", by_warpgroups))
    return rows.step("store", hopper_attention.staged).done()


strategy, hopper = by_warps(), by_tma()


def spec(M, N, D, tiles=1, heads=1, shared=1, fused=None, **options):
    """Return the problem of `tiles` x M packed queries, N packed keys, D elements per head, `heads` query heads, `shared` per key head."""
    fused = definition if fused is None else fused
    types = RANGES | {name: float32 for name in "L" if name in fused.fused_definition.arrays} | options.pop("types", {})
    return fused(m=M, n=N, d=D, t=tiles, g=heads // shared, r=shared, types=types, **options)


def values(spec):
    """Return tunables for a problem without a record."""
    d, m = (constant(spec.size(dim)) or 128 for dim in "dm")
    return {"bm": 64 if m <= 64 else 128, "bn": 64 if d <= 128 else 32, "wm": 16, "stages": 2}


def hopper_values(spec):
    """Return tunables on Hopper: those of `hopper_attention`."""
    return hopper_attention.values(spec)


def ranges(offsets, tokens, keys=None, causal=False, window=None):
    """Return the range of keys of each packed query: two int32 arrays, of NumPy or PyTorch like `offsets`.

    Args:
        offsets: sequence i has the queries offsets[i] to offsets[i + 1]; queries past the last offset see no keys.
        tokens: the number of packed queries.
        keys: offsets of the keys; those of the queries by default.
        causal: query j of a sequence sees its keys 0 to j.
        window: query j sees only the last `window` of these keys.
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
    """Return the ranges of tiles from low[t,m] and high[t,m]: `begin` and `end` of any query, `inner` and `outer` of all queries."""
    ranges = low.min(1), high.max(1), low.max(1), high.min(1)
    return tuple(getattr(values, "values", values) for values in ranges)


def attend(q, k, v, offsets, keys=None, causal=False, window=None, scale=None, architecture=None, lse=False, isolated=False, score=None):
    """Compute attention of packed tokens q[tokens, heads, d] to k[tokens, groups, d] and v: an array like q.

    `offsets`, `keys`, `causal` and `window` as for `ranges`; `scale` is 1 / sqrt(d) by default. Tokens are contiguous rows.
    The tokens past the last whole tile take a second launch. PyTorch tensors that require a gradient have one. Heads of up to 256 elements
    that are not a multiple of 16 (or are 16, without TMA) are copied first, and padded with zeros.

    With `lse`, return the log-sum-exp of the scores, too: an array[tokens, heads] of float32.

    `score` is a formula that replaces the scaled score `s`, such as `"30 * tanh(s / 30)"`. With `causal` or `window`, and without `keys`,
    it may contain the distance `m - n` of query and key: `"s - 0.1 * (m - n)"`.

    Without `isolated`, values must be finite. Masked probabilities are zero, but zero times NaN or infinity is NaN: a value v that is
    not finite reaches all queries of a tile of `TILE` tokens that reads its block of keys, also those of other sequences, and also if it
    is past the last offset. NaN in q or k reaches only queries that attend to the key. With `isolated`, arrays are copied so that each
    sequence begins at a tile. Then no number of a sequence reaches another one, also in gradients.

    Raises: ArgumentError if shapes do not match, for heads of more than 256 elements, and for other positions in `score`; for gradients,
    those of `attention_packed_backward.gradients`.
    """
    _, heads, d = q.shape
    groups = k.shape[1]
    if tuple(k.shape) != tuple(v.shape) or k.shape[2] != d or heads % groups:
        got = f"{tuple(q.shape)}, {tuple(k.shape)}, {tuple(v.shape)}"
        raise ArgumentError("attend: shapes do not match", got=got, legal="q[tokens,heads,d], k[tokens,groups,d], v[tokens,groups,d]")
    if not 0 < d <= MOST_ELEMENTS:
        raise ArgumentError("attend: no kernel has heads of this size", got=f"{d} elements", legal=f"1 to {MOST_ELEMENTS}")
    require_score(score, keys is None and (causal or window is not None))
    options = keys, causal, window, scale, architecture, isolated, score
    if any(getattr(array, "requires_grad", False) for array in (q, k, v)):
        result, logs = _differentiated()(q, k, v, offsets, *options)
        return (result, logs) if lse else result
    return _attended(q, k, v, offsets, *options, lse)


def require_score(score, has_distances):
    """Raise an error for a score whose positions are unknown: `m`, `n` and the tile `t`, except in `m - n` if `has_distances`."""
    if score is None:
        return
    if not isinstance(score, str):
        raise ArgumentError("attend: the score must be a formula", got=score, legal='"30 * tanh(s / 30)"')
    if re.search(r"\b[mnt]\b", re.sub(DISTANCE, "0", score) if has_distances else score):
        legal = "s, and m - n with causal or window, and without other offsets of keys"
        raise ArgumentError("attend: the score contains positions of packed tokens", got=score, legal=legal)


def _attended(q, k, v, offsets, keys, causal, window, scale, architecture, isolated, score, lse):
    """Return the result, and with `lse` the log-sum-exp."""
    low, high = ranges(offsets, len(q), keys, causal, window)
    d = q.shape[2]
    scale = d**-0.5 if scale is None else scale
    compute = functools.partial(_isolated, offsets, offsets if keys is None else keys) if isolated and len(q) and len(k) else _in_tiles
    elements = _elements(d, _target(architecture))
    if elements == d:
        return compute(q, k, v, low, high, scale, architecture, lse, score)
    results = compute(*(padded(array, len(array), elements) for array in (q, k, v)), low, high, scale, architecture, lse, score)
    return (results[0][..., :d], results[1]) if lse else results[..., :d]


def _elements(d, target):
    """Return the least number of elements of a head, at least `d`, for which the target has a kernel."""
    return max(16 if target.name == "sm_90a" else 32, -(-d // 16) * 16)


def padded(array, rows, elements=None):
    """Return an array with zeros for missing rows and elements; itself if nothing is missing."""
    shape = (rows, *array.shape[1:-1], array.shape[-1] if elements is None else elements)
    if tuple(array.shape) == shape:
        return array
    if hasattr(array, "new_empty"):
        wide = array.new_empty(shape)
    else:
        import numpy

        wide = numpy.empty(shape, array.dtype)
    wide[: array.shape[0], ..., : array.shape[-1]] = array
    wide[array.shape[0] :] = 0
    if shape[-1] > array.shape[-1]:
        wide[..., array.shape[-1] :] = 0
    return wide


def _in_tiles(q, k, v, low, high, scale, architecture, lse, score=None):
    """Return the result for ranges of keys, and with `lse` the log-sum-exp."""
    tokens, heads, d = q.shape
    groups, dtype = k.shape[1], _type_of(q)
    result = q.new_empty(q.shape) if hasattr(q, "new_empty") else q.copy()
    logs = _new_sums(q) if lse else None
    whole = tokens // TILE * TILE
    for first, last, rows in ((0, whole, TILE), (whole, tokens, tokens - whole)):
        if last > first:
            own = kernel(rows, d, heads, groups, dtype, architecture, *((lse, score) if lse or score else ()))
            shape = ((last - first) // rows, rows, groups, heads // groups, d)
            lows, highs = (bound[first:last].reshape(shape[:2]) for bound in (low, high))
            outs = [result[first:last].reshape(shape), *([logs[first:last].reshape(shape[:4])] if lse else [])]
            out = tuple(outs) if lse else outs[0]
            own(q[first:last].reshape(shape), k, v, scale, *of_tiles(lows, highs), lows, highs, out=out)
    return (result, logs) if lse else result


def _isolated(offsets, keys, q, k, v, low, high, scale, architecture, lse, score):
    """Return the same by arrays in which each sequence begins at a tile of queries and at a block of keys."""
    block = _form(TILE, q.shape[2], q.shape[1], k.shape[1], _type_of(q), _target(architecture), lse, score)[1]["bn"]
    queries, values = _places.placed(offsets, len(q), TILE), _places.placed(keys, len(k), -(-TILE // block) * block)
    lows, highs = _places.moved(low, high, queries, keys, values.starts)
    arrays = q[queries.tokens], k[values.tokens], v[values.tokens]
    results = _in_tiles(*arrays, lows, highs, scale, architecture, lse, score)
    result = _places.without((results[0] if lse else results)[queries.rows], high <= low)
    if not lse:
        return result
    logs = results[1][queries.rows]
    logs[...] = _places.library_of(logs)[0].where((high > low)[:, None], logs, -float("inf"))
    return result, logs


def _type_of(q):
    return bfloat16 if "bfloat16" in str(q.dtype) else float16


def _new_sums(q):
    """Return a new array[tokens, heads] of float32."""
    if hasattr(q, "new_empty"):
        import torch

        return q.new_empty(q.shape[:2], dtype=torch.float32)
    import numpy

    return numpy.empty(q.shape[:2], numpy.float32)


@functools.cache
def _differentiated():
    """Return `attend` as an autograd function of PyTorch. It refuses second derivatives."""
    import torch

    from fireiron.strategies import attention_packed_backward

    class Attended(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v, offsets, keys, *options):
            result, logs = _attended(q, k, v, offsets, keys, *options, True)
            ctx.set_materialize_grads(False)
            ctx.save_for_backward(q, k, v, result, logs, offsets, *(() if keys is None else (keys,)))
            ctx.options = options
            return result, logs

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx, grad, lse_grad):
            q, k, v, result, logs, offsets, *keys = ctx.saved_tensors
            grad = torch.zeros_like(result) if grad is None else grad.contiguous()
            given = grad, q, k, v, result, logs, offsets, keys[0] if keys else None
            *options, isolated, score = ctx.options
            gradients = attention_packed_backward.gradients(*given, *options, lse_grad=lse_grad, isolated=isolated, score=score)
            return (*gradients, *(None,) * 8)

    return Attended.apply


@functools.lru_cache(maxsize=256)
def kernel(rows, d, heads, groups, dtype=float16, architecture=None, lse=False, score=None):
    """Compile the kernel for tiles of `rows` queries and any number of tiles and keys."""
    target = _target(architecture)
    chosen, own, problem = _form(rows, d, heads, groups, dtype, target, lse, score)
    return chosen.with_(**{name: value for name, value in own.items() if name in chosen.tunables()})(problem).compile(target)


def _target(architecture):
    from fireiron.gpu.kernel import architecture_here  # loads what launches: only here

    return as_architecture(architecture or architecture_here() or "sm_80")


def _form(rows, d, heads, groups, dtype, target, lse, score):
    """Return the strategy of a target, its tunables, and the problem."""
    fused = definition_of(lse, score) if lse or score else definition
    problem = spec(rows, sym("N"), d, sym("T"), heads, heads // groups, fused, dtype=dtype)
    hopper_form, form = (by_tma(fused), by_warps(fused)) if lse or score else (hopper, strategy)
    return (hopper_form, hopper_values(problem), problem) if target.name == "sm_90a" else (form, values(problem), problem)
