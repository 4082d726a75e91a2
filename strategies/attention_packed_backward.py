"""Gradients of attention of packed sequences: each key has a range of queries that attend to it, which the kernel reads.

    attention_packed_backward(m,n,d,t)(GL,...)(Kernel)
      tile(g=1, t=1, r=1).to(Block)           a tile of packed keys of one head
      tile(n=bn).to(Block)
      load(K, SH), load(V, SH)                TMA, once per tile
      split(m=bm).pipeline(stages)            the blocks of queries that attend to the keys
        .skip_masked_tiles()
      ...                                     as in `attention_backward`, whose strategies these are

K[t,n,g,d], V, dK and dV are packed tokens in tiles of `n`; Q[m,g,r,d], dO and dQ are packed tokens. Query m attends to key (t,n) if
low[t,n] <= m < high[t,n]. The queries that attend to any key of a tile are in begin[t] <= m < end[t], so no other blocks are loaded. All
queries in inner[t] <= m < outer[t] attend to all keys of the tile, so blocks in that range are not masked. All six are int32:
`query_ranges` computes low and high, and `attention_packed.of_tiles` the others. `gradients` launches the kernels.
"""

import functools

from fireiron import *
from fireiron.errors import ArgumentError
from fireiron.strategies import _isolated, attention_backward
from fireiron.strategies.attention import LOG2_E
from fireiron.strategies.attention_packed import RANGES, TILE, of_tiles, padded, ranges, require_score, score_with
from fireiron.values.machine import as_architecture

SIZES = (512, 128, 128)

HEADS = (64, 128, 256)
"""Elements of a head for which there are kernels. Other heads are padded with zeros."""

QUERIES = 8
"""The kernels read queries in multiples of this number, because TMA reads rows of the log-sum-exp at multiples of 16 bytes."""


definition = functools.partial(attention_backward.definition, packed=True)
"""The gradients as formulas; the arguments are those of `attention_backward.definition`."""


@functools.cache
def rows_definition(lse_grad=False):
    """Return the row sums of dO * O, and the log-sum-exp in base 2, as in `attention_backward`; L[m,g,r] and G are packed tokens."""
    sums = {"sum": "sums[m] = sum(d, O[m,g,r,d] * dO[m,g,r,d])", "D": "D[g,r,m] = sums[m] - G[m,g,r]"}
    return Fused(
        name="attention_packed_backward_rows",
        dims="m d g r",
        batch="g r",
        operands={"O": "m g r d", "dO": "m g r d", "L": "m g r"} | ({"G": "m g r"} if lse_grad else {}) | {"D": "g r m", "L2": "g r m"},
        body={
            **(sums if lse_grad else {"D": "D[g,r,m] = sum(d, O[m,g,r,d] * dO[m,g,r,d])"}),
            "L2": f"L2[g,r,m] = where(L[m,g,r] > -1e30, L[m,g,r] * {LOG2_E}, inf)",
        },
        types={"L": float32, "D": float32, "L2": float32} | ({"G": float32} if lse_grad else {}),
    )


scaled_definition = Fused(
    name="attention_packed_backward_scaled",
    dims="m d g r",
    batch="g r",
    operands={"X": "m g r d", "scale": "", "dQ": "m g r d"},
    body={"dQ": "dQ[m,g,r,d] = X[m,g,r,d] * scale"},
    types={"X": float32},
)
"""The gradient of the queries, scaled and rounded once."""


def rows(d, lse_grad=False):
    """Return the strategy of `rows_definition` for heads of d elements: 8 per lane."""
    lanes = Move.tile(max(1, 256 // d), d).to(Warp).tile(1, 8).to(Lane).done()
    return rows_definition(lse_grad).tile(m=max(1, 256 // d) * 8, r=1, g=1).to(Block).load("O", RF, lanes).load("dO", RF, lanes).done()


def scaled(d):
    """Return the strategy of `scaled_definition` for heads of d elements: a thread has vectors of four elements of two rows."""
    vectors = Move.tile(1, 4).unroll().done()
    threads = scaled_definition.tile(m=2048 // d, r=1, g=1).to(Block).tile(m=2, d=4).to(Thread).load("X", RF, vectors)
    return threads.step("dQ", AnySpec.tile(1, 4).unroll().done()).done()


combined_definition = Fused(
    name="attention_packed_backward_combined",
    dims="n d t g r",
    loop="r",
    batch="t g",
    operands={"XK": "t n g r d", "XV": "t n g r d", "dK": "t n g d", "dV": "t n g d"},
    init={"k": "k[n,d] = 0", "v": "v[n,d] = 0"},
    body={"add_k": "k[n,d] += sum(r, XK[t,n,g,r,d])", "add_v": "v[n,d] += sum(r, XV[t,n,g,r,d])"},
    final={"dK": "dK[t,n,g,d] = k[n,d]", "dV": "dV[t,n,g,d] = v[n,d]"},
)
"""The gradients of keys that several query heads read, as sums of those of single heads."""


def combined(d):
    """Return the strategy of `combined_definition` for heads of d elements: a thread has 8 elements of a key."""
    vectors = Move.tile(1, 8).unroll().done()
    threads = combined_definition.tile(n=1024 // d, g=1, t=1).to(Block).tile(n=1, d=8).to(Thread)
    return threads.split(r=1).load("XK", RF, vectors).load("XV", RF, vectors).step("dK", vectors).step("dV", vectors).done()


FASTEST = {
    64: {"rounded": True, "dk_of": "dst", "dk_first": True},
    128: {"dk_of": "dst", "dk_first": True},
}
"""Options of `definition` that are fastest on an H200, by the elements of a head."""

SEPARATE = (64,)
"""Elements of heads for which a separate loop of masked tiles is faster: 6 % with 64. With 128, registers spill, and it is 1 % slower."""

strategy = attention_backward.by_keys(definition(**FASTEST[128]))
ampere = attention_backward.by_warps(definition())


def spec(M, N, D, tiles=1, heads=1, shared=1, fused=None, **options):
    """Return the problem of M packed queries, `tiles` x N packed keys, D elements per head, `shared` of the query heads per key head.

    `fused` is the definition; that of `strategy` is the default.
    """
    types = RANGES | options.pop("types", {})
    return (strategy.start if fused is None else fused)(m=M, n=N, d=D, t=tiles, g=heads // shared, r=shared, types=types, **options)


def values(spec, target=None):
    """Return tunables for a problem without a record."""
    return {**attention_backward.values(spec), "stages": 2}


def ampere_values(spec, target=None):
    """Return tunables for instructions up to sm_80."""
    return attention_backward.ampere_values(spec)


def chosen(d, hopper, shared=False, score=None):
    """Return the strategy with values for heads of d elements; with `shared`, a loop adds up the gradients of keys."""
    by_tma = hopper and d <= 128
    fused = definition(shared=shared, score=score_with(score, "(m - first[n])"), **(FASTEST[d] if by_tma else {}))
    form, known = attention_backward.by_warps(fused), ampere_values
    if by_tma:
        form, known = attention_backward.by_keys(fused, separate=d in SEPARATE), values
    return attention_backward.with_values(form, known(fused(m=TILE, n=TILE, d=d, t=1, g=1, r=1)))


@functools.lru_cache(maxsize=256)
def graph(d, heads, groups, dtype=float16, architecture=None, lse_grad=False, score=None):
    """Compile the kernels for any number of tiles of `TILE` keys, and of queries in multiples of `QUERIES`.

    The arguments are O, dO, L, with `lse_grad` G, then Q, K, V, the scale and the ranges; the results are dQ, dK and dV. On Hopper, a last
    kernel adds up the gradients of keys that several query heads read. Blocks with a loop over query heads would take too different times.
    """
    from fireiron.gpu.kernel import architecture_here  # loads what launches: only here

    target = as_architecture(architecture or architecture_here() or "sm_80")
    shared, queries, tiles, hopper = heads // groups, sym("M", multiple_of=QUERIES), sym("T"), target.name == "sm_90a"
    sizes = {"m": queries, "d": d, "g": groups, "r": shared, "dtype": dtype}
    apart = hopper and shared > 1 and d <= 128
    own = chosen(d, hopper, shared > 1 and not apart, score)
    kernels = {
        "rows": rows(d, lse_grad)(rows_definition(lse_grad)(**sizes)),
        "gradients": own(spec(queries, TILE, d, tiles, heads, shared, own.start, dtype=dtype)),
        "scaled": scaled(d)(scaled_definition(**sizes)),
    }
    links = {
        "gradients.D": "rows.D", "gradients.L": "rows.L2", "gradients.dO": "rows.dO",
        "scaled.X": "gradients.dQ", "scaled.scale": "gradients.scale",
    }  # fmt: skip
    if apart:
        kernels["combined"] = combined(d)(combined_definition(n=TILE, d=d, t=tiles, g=groups, r=shared, dtype=dtype))
        links |= {"combined.XK": "gradients.dK", "combined.XV": "gradients.dV"}
    of_keys = "combined" if apart else "gradients"
    outputs = ("scaled.dQ", f"{of_keys}.dK", f"{of_keys}.dV")
    return KernelGraph("attention_packed_backward", kernels, links, outputs=outputs).compile(target)


def query_ranges(offsets, count, keys=None, causal=False, window=None):
    """Return the range of queries that attend to each of `count` packed keys: two int32 arrays, of NumPy or PyTorch like `offsets`.

    The arguments are those of `attention_packed.ranges`. No query attends to keys past the last offset.
    """
    keys = offsets if keys is None else keys
    if hasattr(offsets, "is_cuda"):
        import torch as library

        places = library.arange(count, device=offsets.device, dtype=offsets.dtype)
        sequence = library.searchsorted(keys, places, right=True) - 1
    else:
        import numpy as library

        places = library.arange(count, dtype=offsets.dtype)
        sequence = library.searchsorted(keys, places, side="right") - 1
    known, sequence = sequence < len(offsets) - 1, library.clip(sequence, 0, len(offsets) - 2)
    begin, end = offsets[sequence], offsets[sequence + 1]
    own = begin + places - keys[sequence]
    low = library.minimum(own, end) if causal or window is not None else begin
    high = end if window is None else library.minimum(end, own + window)
    return low, library.where(known & (high > low), high, low)


def gradients(
    grad, q, k, v, o, lse, offsets, keys=None, causal=False, window=None, scale=None, architecture=None, lse_grad=None, deterministic=None,
    isolated=False, score=None,
):  # fmt: skip
    """Return the gradients of q[tokens, heads, d], k[tokens, groups, d] and v for a call of `attention_packed.attend`.

    Blocks add to the gradient of `q` in no fixed order, so its last bits vary between runs. Without `isolated`, arrays must be finite, as
    for the call: NaN or infinity in `q`, `k` or `grad` reaches gradients of other sequences in the same tiles of queries and keys.

    Args:
        grad: the gradient of the result, with the shape and the type of `q`.
        o, lse: the result of that call with `lse=True`; lse[tokens, heads].
        lse_grad: the gradient of `lse`.
        deterministic: refused if true. None means `torch.are_deterministic_algorithms_enabled()` for PyTorch tensors.
        isolated, score, others: those of the call. `score` has a derivative.

    Raises: ArgumentError for shapes that do not match, heads of more than 256 elements, and `deterministic`.
    """
    if _is_deterministic(deterministic, q):
        asked = "no kernel adds gradients of packed sequences in a fixed order"
        raise ArgumentError(asked, got="deterministic", hint="call fireiron.attention(..., deterministic=True) for each sequence")
    (tokens, heads, d), count = q.shape, len(k)
    if d > HEADS[-1]:
        asked = "no kernel computes gradients of packed sequences with these heads"
        raise ArgumentError(asked, got=f"{d} elements", legal=f"at most {HEADS[-1]}")
    wanted = {"grad": (grad, q.shape), "o": (o, q.shape), "v": (v, k.shape), "lse": (lse, (tokens, heads))}
    wanted |= {} if lse_grad is None else {"lse_grad": (lse_grad, (tokens, heads))}
    for name, (array, shape) in wanted.items():
        if tuple(array.shape) != tuple(shape):
            asked = f"gradients of packed sequences: the shape of {name} does not match"
            raise ArgumentError(asked, got=tuple(array.shape), legal=tuple(shape))
    low, high = query_ranges(offsets, -(-count // TILE) * TILE, keys, causal, window)
    require_score(score, keys is None and (causal or window is not None))
    scale = d**-0.5 if scale is None else scale
    if not (isolated and tokens and count):
        return _in_tiles((o, grad, q, lse, lse_grad), (k, v), low, high, scale, architecture, score)
    keys, low, high = offsets if keys is None else keys, low[:count], high[:count]
    queries, others = _isolated.placed(offsets, tokens, TILE), _isolated.placed(keys, count, TILE)
    of_queries = [None if array is None else array[queries.tokens] for array in (o, grad, q, lse, lse_grad)]
    of_keys = [array[others.tokens] for array in (k, v)]
    bounds = _isolated.moved(low, high, others, offsets, queries.starts)
    dq, dk, dv = _in_tiles(of_queries, of_keys, *bounds, scale, architecture, score)
    first, last = ranges(offsets, tokens, keys, causal, window)
    of_keys = (_isolated.without(array[others.rows], high <= low) for array in (dk, dv))
    return _isolated.without(dq[queries.rows], last <= first), *of_keys


def _in_tiles(of_queries, of_keys, low, high, scale, architecture, score):
    """Return the gradients for ranges of queries of whole tiles of keys."""
    (o, grad, q, lse, lse_grad), (k, v) = of_queries, of_keys
    (tokens, heads, d), (count, groups, _) = q.shape, k.shape
    elements = next(size for size in HEADS if size >= d)
    shared, dtype = heads // groups, bfloat16 if "bfloat16" in str(q.dtype) else float16
    m, n = -(-tokens // QUERIES) * QUERIES, -(-count // TILE) * TILE
    o, grad, q = (padded(array, m, elements).reshape(m, groups, shared, elements) for array in (o, grad, q))
    k, v = (padded(array, n, elements).reshape(n // TILE, TILE, groups, elements) for array in (k, v))
    sums = [padded(array, m).reshape(m, groups, shared) for array in ((lse,) if lse_grad is None else (lse, lse_grad))]
    low, high = (bound.reshape(n // TILE, TILE) for bound in (low, high))
    bounds = *of_tiles(low, high), low, high
    call = graph(elements, heads, groups, dtype, architecture, lse_grad is not None, score)
    results = call(o, grad, *sums, q, k, v, scale, *bounds)
    shapes = (tokens, heads, d), (count, groups, d), (count, groups, d)
    return tuple(result.reshape(-1, shape[1], elements)[: shape[0], :, : shape[2]] for result, shape in zip(results, shapes, strict=True))


def _is_deterministic(deterministic, q):
    """Return whether gradients must have the same bits in each run."""
    if deterministic is not None or not hasattr(q, "is_cuda"):
        return bool(deterministic)
    import torch

    return torch.are_deterministic_algorithms_enabled()
