"""Attention of few queries to cached keys, in pages or contiguous, with a length per sequence (decoding).

    attention_paged(m,n,d,p)(GL,GL,GL,GL,GL,VAL,GL,GL,GL)(Kernel)
      rfactor(sums, 4)                        each of the four lanes of a row accumulates a partial sum
      tile(m=bm, g=1, b=1, p=1).to(Block)     attention_paged(16,n,d,1)(GL,...)(Block)    one part of the keys of a sequence, one key head
      load(Q, RF)                             attention_paged(16,n,d,1)(RF,...)(Block)    through shared memory
      split(n=bn).pipeline(stages).skip_masked_tiles()     attention_paged(16,32,d,1)(RF,...)(Block)   the keys of the part below the length
      load(K, SH), load(V, SH)                attention_paged(16,32,d,1)(RF,SH,SH,...)    cp.async, by the table of pages
      tile(m=16).to(Warp)                     attention_paged(16,32,d,1)(...)(Warp)       16 rows
      step(s), step(pv)                       MatMul(16,32,d), MatMul(16,d,32)            ldmatrix and HMMA

Key n of sequence b is K[table[b,n // page],n % page,g,d], or K[b,n,g,d] without pages; n < length[b] (int32). Rows `m` are the queries of
all heads that read the same key head: row m is query m % queries of head m // queries. Query i of `queries` has position
length[b] - queries + i.

Only keys below the length are used: memory past it, pages that no sequence uses, and their table entries may contain anything, also NaN.
Rows of values past the length are set to 0 in registers, in a branch that only the last block of keys takes.

Part `p` has `size` keys. P, T and S are those of `attention_decode`; `attention_combine` computes the result. The order of all additions is
fixed. `hopper` uses programmatic dependent launch.

`quantized` is for keys and values in float8_e4m3, with factors ks[g] and vs[g]. Threads convert them in pairs to fragments of the type of
Q. The lane maps of `HMMA_16816_F32_K4` and `HMMA_163216_F32_N4` have 4 adjacent elements of a head, a load of 32 bits.
"""

import functools
import re

from fireiron import *
from fireiron.strategies.attention import LOG2_E, copy, factor_of, formula_of, fragments, tiles
from fireiron.values.expr import constant

SIZES = (4, 4096, 128)

SIZE = 512
"""Default number of keys in a part."""

bytes_copy = Move.coalesced_copy(16).done()

INTERLEAVED = {
    float16: (HMMA_16816_F32_K4, HMMA_163216_F32_N4),
    bfloat16: (HMMA_16816_F32_BF16_K4, HMMA_163216_F32_BF16_N4),
}
"""The instructions for 8-bit keys and values, by the type of Q."""

bm = Tunable("bm", 16, 32, 64)
bn = Tunable("bn", 32, 16, 64)
stages = Tunable("stages", 3, 2, 4, 5, 6)


@functools.cache
def definition(size=SIZE, page=None, queries=1, causal=True, window=None, score=None, quantized=False, scaled=False, dtype=float16):
    """Return a part of `size` keys as formulas.

    Args:
        page: the number of keys in a page; None for contiguous keys, without a table.
        queries: the number of queries of a sequence.
        causal: a query sees the keys up to its own position.
        window: a query sees only the last `window` of these keys. begin[b,p], of `window_starts`, is the first key of a part.
        score: as for `attention`; `m` and `n` are the positions of query and key, `r` is the head among those that share a key head.
        quantized: keys and values are float8_e4m3.
        scaled: keys and values are multiplied by ks[g] and vs[g].
        dtype: the type of Q, to which 8-bit elements are converted, and in which probabilities are multiplied.
    """
    factor, score = factor_of(score) if score else (1, None)
    bits = str(LOG2_E * factor) if score else f"(scale * {LOG2_E})"
    key = "b,n,g,d" if page is None else f"table[b,n // {page}],n % {page},g,d"
    rows = "m" if queries == 1 else f"m // {queries},m % {queries}"
    seen = ["begin[b,p] <= n" if window else f"p * {size} <= n", f"n < p * {size} + {size}", "n < length[b]"]
    own = [f"n + {queries} <= length[b] + m % {queries}"] * (causal and queries > 1)
    own += [f"length[b] + m % {queries} < n + {queries + window}"] if window and queries > 1 else []
    cache, array = ("b n g d", "") if page is None else ("page slot g d", " page slot t")
    return Fused(
        name="attention_paged",
        dims=f"m n d b g p{array}" + " r i" * (queries > 1),
        loop="n",
        batch="b g p",
        positive="scale",
        mask={"seen": " and ".join(seen)},
        operands={
            "Q": "b g m d" if queries == 1 else "b g r i d",
            "K": cache,
            "V": cache,
            **({"table": "b t"} if page else {}),
            "length": "b",
            **({"begin": "b p"} if window else {}),
            **({"ks": "g", "vs": "g"} if scaled else {}),
            "scale": "",
            "P": "b g p m d",
            "T": "b g p m",
            "S": "b g p m",
        },
        types={
            "length": int32,
            **({"begin": int32} if window else {}),
            **({"K": float8_e4m3, "V": float8_e4m3} if quantized else {}),
            "w": dtype,
            "v": dtype,
        },
        init={"mx": "mx[m] = -1e30", "l": "l[m] = 0", "acc": "acc[m,d] = 0"},
        body={
            "s": f"s[m,n] = sum(d, Q[b,g,{rows},d] * K[{key}])",
            **({"unit": "s[m,n] = s[m,n] * ks[g]"} if scaled else {}),
            **({"score": f"s[m,n] = {_positions(formula_of(score), queries)}"} if score else {}),
            "mask": "s[m,n] = where(seen, s[m,n], -inf)",
            **({"own": f"s[m,n] = where({' and '.join(own)}, s[m,n], -inf)"} if own else {}),
            "top": "top[m] = max(n, s[m,n])",
            "new": f"new[m] = max(mx[m], top[m] * {bits})",
            "alpha": "alpha[m] = exp2(mx[m] - new[m])",
            "keep": "mx[m] = new[m]",
            "exp": f"s[m,n] = exp2(s[m,n] * {bits} - mx[m])",
            "sums": "sums[m] = sum(n, s[m,n])",
            "update": "l[m] = l[m] * alpha[m] + sums[m]",
            "p": "w[m,n] = s[m,n]",
            "rescale": "acc[m,d] = acc[m,d] * alpha[m]",
            "v": f"v[n,d] = V[{key}]",
            "used": "v[n,d] = where(seen, v[n,d], 0)",
            "pv": "acc[m,d] += sum(n, w[m,n] * v[n,d])",
        },
        final={
            "store": f"P[b,g,p,m,d] = acc[m,d]{' * vs[g]' * scaled}",
            "tops": "T[b,g,p,m] = mx[m]",
            "total": "S[b,g,p,m] = l[m]",
        },
    )


def _positions(formula, queries):
    """Return a formula in which `m` is a query's position and `r` its head, by the row `m`."""
    formula = re.sub(r"\br\b", f"(m // {queries})", re.sub(r"\bm\b(?!,n\])", "position", formula))
    return formula.replace("position", f"(length[b] + m % {queries} - {queries})")


@functools.cache
def window_starts(size, window, queries=1):
    """Return the definition of begin[b,p], the first key of a part that any query of a sequence sees."""
    body = {"begin": f"begin[b,p] = max(length[b] - {window + queries - 1}, p * {size})"}
    types = {"length": int32, "begin": int32}
    return Fused(name="window_starts", dims="b p", operands={"length": "b", "begin": "b p"}, body=body, types=types)


def by_parts(fused, programmatic_launch=False, wide=False, d=128):
    """Return the strategy for a definition and heads of `d` elements; with `programmatic_launch` it starts before the previous kernel ends.

    Heads of more than 128 elements are `wide`: queries stay in shared memory.
    """
    types = dict(fused.fused_definition.types)
    rows = fused.rfactor("sums", 4).tile(m=bm, g=1, b=1, p=1).to(Block)
    rows = rows.programmatic_launch() if programmatic_launch else rows
    rows = rows.load("Q", SH, copy).swizzle_storage()
    rows = rows if wide else rows.load("Q", RF, Move.tile(16).to(Warp).done())
    is_quantized = types.get("K") == float8_e4m3
    cached = bytes_copy if is_quantized else copy
    keys = rows.split(n=bn).pipeline(stages).skip_masked_tiles()
    keys = keys.load("K", SH, cached).swizzle_storage().load("V", SH, cached).swizzle_storage()
    scores = MatMul.split(16).unroll()
    scores = scores.load(A, RF, fragments) if wide else scores
    scores = scores.load(B, RF, fragments)
    by_keys, by_columns = INTERLEAVED[types["w"]]
    scores = scores.cast_on_copy().tile(16, 8).unroll().done(by_keys) if is_quantized else scores.then(tiles)
    products = MatMul.tile(16, 32).unroll().done(by_columns) if is_quantized and d % 32 == 0 else tiles
    return keys.tile(m=16).to(Warp).step("s", scores).step("pv", MatMul.split(16).unroll().then(products)).done()


def by_sequences(fused):
    """Return the strategy for `window_starts`: a thread for each part of a sequence."""
    return fused.tile(b=4, p=32).to(Block).tile(b=1, p=1).to(Thread).done()


strategy = by_parts(definition(page=16))
hopper = by_parts(definition(page=16), programmatic_launch=True)


def spec(M, N, D, heads=1, batch=1, page=16, queries=1, size=SIZE, fused=None, pages=None, **options):
    """Return the problem of M rows per key head, `heads` key heads, at most N keys per sequence, and D elements per head.

    Args: `page`, the number of keys in a page, or None; `queries` of a sequence, which divide M; `size`, the number of keys in a part;
        `fused`, another definition for these; `pages` in the caches (default: those of all sequences); `options`, such as `dtype` (float16
        by default) and strides.
    """
    fused = definition(size, page, queries, dtype=options.get("dtype", float16)) if fused is None else fused
    uses = fused.fused_definition.uses
    types = {name: float32 for name in ("P", "T", "S", "ks", "vs") if name in uses} | options.pop("types", {})
    sizes = {} if page is None else {"page": batch * -(-N // page) if pages is None else pages}
    sizes |= {} if queries == 1 else {"r": M // queries, "i": queries}
    return fused(m=M, n=N, d=D, g=heads, b=batch, p=-(-N // size), types=types, **sizes, **options)


def values(spec):
    """Return tunables by the head size: an iteration reads 8 KiB of keys and values, whose fragments a thread has in registers."""
    d, m = constant(spec.size("d")) or 128, constant(spec.size("m")) or 16
    rows = {"bm": 16 if m <= 16 else 32 if m <= 32 else 64}
    if spec.operands["K"].dtype == float8_e4m3:
        return {**rows, "bn": 32 if d <= 64 else 16, "stages": 4}
    return {**rows, "bn": 64 if d <= 32 else 32 if d <= 64 else 16, "stages": 6 if d <= 128 else 4}


hopper_values = values


BLOCKS = 1056
"""Number of blocks of one warp: twice as many as run at the same time, four per SM of an H200. So SMs with short sequences get more."""

FEWEST = 128
"""Minimum number of keys in a part. With fewer keys, the combination of the parts takes more time than it saves."""


def size_for(keys, heads, rows=1):
    """Return the number of keys in a part: the smallest multiple of 64 with at most `BLOCKS` blocks; half as many for many rows."""
    blocks = BLOCKS if rows <= 32 else BLOCKS // 2
    parts = max(1, blocks // (heads * max(1, -(-rows // 64))))
    return max(FEWEST, -(-keys // (64 * parts)) * 64)
