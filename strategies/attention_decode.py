"""Attention of few queries to many keys (decoding): blocks process parts of the keys, which `attention_combine` combines.

    attention_decode(m,n,d,p)(GL,GL,GL,VAL,GL,GL,GL)(Kernel)
      rfactor(sums, 4)                        each of the four lanes of a row accumulates a partial sum
      tile(m=bm, g=1, b=1, p=1).to(Block)     attention_decode(16,n,d,1)(GL,...)(Block)    one part of the keys, all rows that read them
      load(Q, RF)                             attention_decode(16,n,d,1)(RF,...)(Block)    through shared memory
      split(n=bn).pipeline(stages).skip_masked_tiles()     attention_decode(16,32,d,1)(RF,...)(Block)   the iterations in the part
      load(K, SH), load(V, SH)                attention_decode(16,32,d,1)(RF,SH,SH,...)    cp.async
      tile(m=16).to(Warp)                     attention_decode(16,32,d,1)(...)(Warp)       a block has one warp
      step(s), step(pv)                       MatMul(16,32,d), MatMul(16,d,32)             ldmatrix and HMMA

Q[b,g,m,d], K[b,n,g,d], V[b,n,g,d]: rows `m` are the queries of all heads that read the same keys, so keys are read once. The time is that
of reading keys and values, for which enough bytes must be in flight: four blocks per SM, each with two iterations of 16 KiB.

Part `p` has `size` keys, n with p*size <= n < (p+1)*size. P[b,g,p,m,d] is the sum of its values with weights 2**(score - T[b,g,p,m]), and
S[b,g,p,m] the sum of these weights; `attention_combine` computes O[b,g,m,d] from them. Scores are multiplied by `scale`, which is above 0.

`hopper` uses programmatic dependent launch: it starts before the previous kernel ends. `decode` launches both kernels.
"""

import functools

from fireiron import *
from fireiron.errors import ArgumentError
from fireiron.key_parts import size_for
from fireiron.strategies import attention_combine
from fireiron.strategies.attention import LOG2_E, copy, fragments, tiles
from fireiron.values.expr import constant
from fireiron.values.machine import as_architecture

SIZES = (4, 4096, 128)

SIZE = 512
"""Default number of keys in a part."""

bm = Tunable("bm", 16, 32)
bn = Tunable("bn", 32, 16, 64)
stages = Tunable("stages", 3, 2, 4)


def definition(size=SIZE, lengths=False):
    """Return a part of `size` keys as formulas; with `lengths` sequence b has only the first length[b] keys (int32).

    Memory past them may contain anything: values there are set to 0, because 0 times NaN is NaN.
    """
    seen = [f"p * {size} <= n", f"n < p * {size} + {size}"] + ["n < length[b]"] * lengths
    scaled = f"(scale * {LOG2_E})"
    keys = {"Q": "b g m d", "K": "b n g d", "V": "b n g d", "scale": "", **({"length": "b"} if lengths else {})}
    return Fused(
        name="attention_decode",
        dims="m n d b g p",
        loop="n",
        batch="b g p",
        positive="scale",
        operands={**keys, "P": "b g p m d", "T": "b g p m", "S": "b g p m"},
        init={"mx": "mx[m] = -1e30", "l": "l[m] = 0", "acc": "acc[m,d] = 0"},
        body={
            "s": "s[m,n] = sum(d, Q[b,g,m,d] * K[b,n,g,d])",
            "mask": f"s[m,n] = where({' and '.join(seen)}, s[m,n], -inf)",
            "top": "top[m] = max(n, s[m,n])",
            "new": f"new[m] = max(mx[m], top[m] * {scaled})",
            "alpha": "alpha[m] = exp2(mx[m] - new[m])",
            "keep": "mx[m] = new[m]",
            "exp": f"s[m,n] = exp2(s[m,n] * {scaled} - mx[m])",
            "sums": "sums[m] = sum(n, s[m,n])",
            "update": "l[m] = l[m] * alpha[m] + sums[m]",
            "p": "w[m,n] = s[m,n]",
            "rescale": "acc[m,d] = acc[m,d] * alpha[m]",
            **({"v": "v[n,d] = V[b,n,g,d]", "used": "v[n,d] = where(n < length[b], v[n,d], 0)"} if lengths else {}),
            "pv": f"acc[m,d] += sum(n, w[m,n] * {'v[n,d]' if lengths else 'V[b,n,g,d]'})",
        },
        final={"store": "P[b,g,p,m,d] = acc[m,d]", "tops": "T[b,g,p,m] = mx[m]", "total": "S[b,g,p,m] = l[m]"},
    )


def by_parts(fused, programmatic_launch=False):
    """Return the strategy for a definition; with `programmatic_launch` it starts before the previous kernel ends."""
    rows = fused.rfactor("sums", 4).tile(m=bm, g=1, b=1, p=1).to(Block)
    rows = rows.programmatic_launch() if programmatic_launch else rows
    rows = rows.load("Q", SH, copy).swizzle_storage().load("Q", RF, Move.tile(16).to(Warp).done())
    key_blocks = (
        rows.split(n=bn).pipeline(stages).skip_masked_tiles().load("K", SH, copy).swizzle_storage().load("V", SH, copy).swizzle_storage()
    )
    scores = MatMul.split(16).unroll().load(B, RF, fragments).then(tiles)
    values = MatMul.split(16).unroll()
    values = values if "length" in fused.fused_definition.uses else values.load(B, RF, fragments)
    return key_blocks.tile(m=16).to(Warp).step("s", scores).step("pv", values.then(tiles)).done()


strategy = by_parts(definition())
hopper = by_parts(definition(), programmatic_launch=True)


def spec(M, N, D, heads=1, batch=1, size=SIZE, fused=None, **options):
    """Return the problem of M rows per key head, `heads` key heads, N keys in parts of `size`, and D elements per head.

    Args: `fused`, another definition, for this size; `options`, such as `dtype` (float16 by default) and strides,
        `K=Strides(b=..., n=..., g=..., d=1)`.
    """
    fused = definition(size) if fused is None else fused
    types = {
        **dict.fromkeys("PTS", float32),
        **({"length": int32} if "length" in fused.fused_definition.uses else {}),
        **options.pop("types", {}),
    }
    return fused(m=M, n=N, d=D, g=heads, b=batch, p=-(-N // size), types=types, **options)


def values(spec):
    """Return tunables by the head size: an iteration reads 16 KiB."""
    d = constant(spec.size("d")) or 128
    return {"bm": 16, "bn": 64 if d <= 64 else 32 if d <= 128 else 16, "stages": 3}


@functools.lru_cache(maxsize=256)
def programs(rows, keys, d, heads, batch, size, lengths=False, dtype=float16, architecture=None, tunables=(), **strides):
    """Return the two programs for a problem: the one for the parts, and the one that combines them.

    Args: `tunables`, items for the first kernel, which replace `values`; `strides` of Q, K, V and O.
    """
    target = as_architecture(architecture)
    programmatic_launch, out = target.capability >= 90, {"O": strides.pop("O")} if "O" in strides else {}
    fused = definition(size, lengths)
    parts = spec(rows, keys, d, heads, batch, size, fused, dtype=dtype, **strides)
    whole = attention_combine.spec(rows, -(-keys // size), d, heads, batch, dtype=dtype, **out)
    combine = attention_combine.by_columns(programmatic_launch).with_(**attention_combine.values(whole))
    first = by_parts(fused, programmatic_launch).with_(**{**values(parts), **dict(tunables)})
    return first(parts).program(target), combine(whole).program(target)


@functools.lru_cache(maxsize=256)
def kernels(*sizes, architecture=None, **options):
    """Compile the two kernels for a problem; arguments as for `programs`."""
    from fireiron.gpu.kernel import CompiledKernel, architecture_here  # loads what launches: only here

    target = architecture or architecture_here() or "sm_80"
    first, second = (CompiledKernel(program) for program in programs(*sizes, architecture=target, **options))
    first.begin(second)
    return first.ready(), second.ready()


def decode(q, k, v, scale=None, length=None, size=None, out=None):
    """Compute attention of queries q[b,g,m,d] to keys k[b,n,g,d] and values v[b,n,g,d] in two launches; returns O[b,g,m,d].

    Args:
        scale: 1 / sqrt(d) by default.
        length: int32 [b], the number of keys of each sequence; all n by default.
        size: the number of keys in a part.

    Arrays have any strides and are NumPy's (run in the simulator), or those of a GPU. Raises an ArgumentError if shapes do not match.
    """
    batch, heads, rows, d = q.shape
    if tuple(k.shape) != tuple(v.shape) or (k.shape[0], *k.shape[2:]) != (batch, heads, d):
        raise ArgumentError(
            "decode: shapes do not match",
            got=f"{tuple(q.shape)}, {tuple(k.shape)}, {tuple(v.shape)}",
            legal="q[b,g,m,d], k[b,n,g,d], v[b,n,g,d]",
        )
    keys = k.shape[1]
    size = size_for(keys, batch * heads) if size is None else size
    strides = {"Q": _strides(q, "bgmd"), "K": _strides(k, "bngd"), "V": _strides(v, "bngd")}
    strides |= {} if out is None else {"O": _strides(out, "bgmd")}
    dtype = bfloat16 if "bfloat16" in str(q.dtype) else float16
    first, second = kernels(rows, keys, d, heads, batch, size, length is not None, dtype, **strides)
    given = (q, k, v, d**-0.5 if scale is None else scale, *(() if length is None else (length,)))
    return second(*first(*given), out=out)


def _strides(array, dims):
    """Return the strides of an array, in elements."""
    steps = array.stride() if callable(getattr(array, "stride", None)) else (step // array.itemsize for step in array.strides)
    return Strides(**dict(zip(dims, steps, strict=True)))
