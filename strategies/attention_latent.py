"""Attention of few queries to cached latent vectors (multi-head latent attention): values are the first elements of keys.

    attention_latent(m,n,d,e,p)(GL,...)(Kernel)
      rfactor(sums, 8)                           each of the eight lanes of a row accumulates a partial sum
      tile(m=64, b=1, p=1).to(Block)             attention_latent(64,n,d,e,1)(GL,...)(Block)    a part of the keys, 64 rows
      load(Q, SH), load(R, SH)                   attention_latent(64,n,d,e,1)(SH,...)(Block)    TMA, once
      split(n=bn).pipeline(stages)               attention_latent(64,64,d,e,1)(SH,...)(Block)   the keys of the part
        .skip_masked_tiles().warp_specialize(128)                                               a producer warpgroup fills the stages
      load(C, SH), load(E, SH)                   attention_latent(64,64,d,e,1)(SH,...)          TMA, a box per page
      set_memory(w, SH)                                                                         probabilities of both warpgroups
      step(s), step(rope)                        MatMul(64,32,d), MatMul(64,32,e)               wgmma: half of the keys per warpgroup
      step(pv)                                   MatMul(64,d/2,64)(SH,SH,RF)(Warpgroup)         wgmma: half of the elements per warpgroup

C[table[b,n // page],n % page,d] are latent vectors of key n of sequence b, and E the rotated part of the key. Without pages, they are
C[b,n,d] and E[b,n,e]. The score of row m is Q[b,m,d] C + R[b,m,e] E, and the value is C, so a block loads it once for both matmuls. Rows
are the queries of all heads, since all share the keys: row m is query m % queries, or, with `heads`, query m // heads.

Part p has the keys begin[b,p] <= n < end[b,p], which `ranges` computes from the lengths. P, T and S are those of `attention_decode`.

`by_warps`, with mma.sync, sets values past the end of a part to 0 in registers, as `attention_paged` does. `by_wgmma` reads values from
shared memory, so its parts must end at tiles of keys below the length: `ranges` gives the keys after the last whole tile to another part,
for `by_warps`. Rows without keys in a part are 0.
"""

import functools

from fireiron import *
from fireiron.strategies._fused import by_warpgroups
from fireiron.strategies.attention import LOG2_E, copy, fragments
from fireiron.values.expr import constant

SIZES = (16, 1024)

RESCALE_THRESHOLD = 8
"""log2 of the factor by which a score may exceed the running maximum before `by_wgmma` rescales rows."""

TILE = 64
"""Number of keys of a tile of `by_wgmma`."""

bm = Tunable("bm", 16, 32, 64)
bn = Tunable("bn", 32, 64)
stages = Tunable("stages", 2, 1, 3, 4)


@functools.cache
def definition(page=None, queries=1, heads=None, causal=True, clean=True, dtype=float16):
    """Return the parts as formulas.

    Args:
        page: the number of keys in a page; None for contiguous keys, without a table.
        queries: the number of queries of a sequence.
        heads: the number of heads, if the rows of a query are adjacent; None if the rows of a head are.
        causal: a query sees the keys up to its own position.
        clean: set values outside of the part to 0. Without it, a maximum is kept until a score exceeds it by `RESCALE_THRESHOLD`.
        dtype: the type of queries, latent vectors and probabilities.
    """
    bits = f"(scale * {LOG2_E})"
    scaled = f"top[m] * {bits}"
    new = f"max(mx[m], {scaled})" if clean else f"where({scaled} > mx[m] + {RESCALE_THRESHOLD}, {scaled}, mx[m])"
    key = "b,n" if page is None else f"table[b,n // {page}],n % {page}"
    query = f"m % {queries}" if heads is None else f"m // {heads}"
    is_own = causal and queries > 1
    cache, array = ("b n", "") if page is None else ("page slot", " page slot t")
    values = {"v": f"v[n,d] = C[{key},d]", "used": "v[n,d] = where(seen, v[n,d], 0)"} if clean else {}
    return Fused(
        name="attention_latent",
        dims=f"m n d e b p{array}",
        loop="n",
        batch="b p",
        positive="scale",
        mask={"seen": "begin[b,p] <= n and n < end[b,p]"},
        operands={
            "Q": "b m d",
            "R": "b m e",
            "C": f"{cache} d",
            "E": f"{cache} e",
            **({"table": "b t"} if page else {}),
            "begin": "b p",
            "end": "b p",
            **({"length": "b"} if is_own else {}),
            "scale": "",
            "P": "b p m d",
            "T": "b p m",
            "S": "b p m",
        },
        types={"begin": int32, "end": int32, **({"length": int32} if is_own else {}), "w": dtype, **({"v": dtype} if clean else {})},
        init={"mx": "mx[m] = -1e30", "l": "l[m] = 0", "acc": "acc[m,d] = 0"},
        body={
            "s": f"s[m,n] = sum(d, Q[b,m,d] * C[{key},d])",
            "rope": f"s[m,n] += sum(e, R[b,m,e] * E[{key},e])",
            "mask": "s[m,n] = where(seen, s[m,n], -inf)",
            **({"own": f"s[m,n] = where(n + {queries} <= length[b] + {query}, s[m,n], -inf)"} if is_own else {}),
            "top": "top[m] = max(n, s[m,n])",
            "new": f"new[m] = {new}",
            "alpha": "alpha[m] = exp2(mx[m] - new[m])",
            "shrink": "l[m] = l[m] * alpha[m]",
            "keep": "mx[m] = new[m]",
            "exp": f"s[m,n] = exp2(s[m,n] * {bits} - mx[m])",
            "sums": "sums[m] = sum(n, s[m,n])",
            "update": "l[m] = l[m] + sums[m]",
            "p": "w[m,n] = s[m,n]",
            "rescale": "acc[m,d] = acc[m,d] * alpha[m]",
            **values,
            "pv": f"acc[m,d] += sum(n, w[m,n] * {'v[n,d]' if clean else f'C[{key},d]'})",
        },
        final={"store": "P[b,p,m,d] = where(l[m] > 0, acc[m,d], 0)", "tops": "T[b,p,m] = mx[m]", "total": "S[b,p,m] = l[m]"},
    )


@functools.cache
def ranges(parts, tile=TILE):
    """Return the definition of begin[b,p] and end[b,p] for `parts` parts of whole tiles, and one part of the other keys."""
    step = f"(length[b] // {tile} + {parts - 1}) // {parts} * {tile}"
    whole = f"length[b] // {tile} * {tile}"
    return Fused(
        name="latent_ranges",
        dims="b p",
        operands={"length": "b", "begin": "b p", "end": "b p"},
        types={"length": int32, "begin": int32, "end": int32},
        body={
            "begin": f"begin[b,p] = min(p * ({step}), {whole})",
            "end": f"end[b,p] = where(p < {parts}, min((p + 1) * ({step}), {whole}), length[b])",
        },
    )


def by_warps(fused, d):
    """Return the strategy with mma.sync for latent vectors of `d` elements: four warps for 16 rows, each with a quarter of the elements."""
    products = MatMul.tile(16, 8).unroll().done()
    rows = fused.tile(m=bm, b=1, p=1).to(Block).load("Q", SH, copy).swizzle_storage().load("R", SH, copy).swizzle_storage()
    keys = rows.split(n=bn).pipeline(stages).skip_masked_tiles()
    keys = keys.load("C", SH, copy).swizzle_storage().load("E", SH, copy).swizzle_storage().set_memory("w", SH).swizzle_storage()
    scores = MatMul.tile(16, bn // 4).to(Warp).split(16).unroll().load(A, RF, fragments).load(B, RF, fragments).then(products)
    values = MatMul.tile(16, d // 4).to(Warp).split(16).unroll().load(A, RF, fragments).then(products)
    return keys.step("s", scores).step("rope", scores).step("pv", values).done()


def by_wgmma(fused, d):
    """Return the strategy with TMA, wgmma and a producer for latent vectors of `d` elements (Hopper)."""
    rows = fused.rfactor("sums", 8).tile(m=64, b=1, p=1).to(Block).load("Q", SH, Move.done()).load("R", SH, Move.done())
    keys = rows.split(n=TILE).pipeline(stages).skip_masked_tiles().warp_specialize(128)
    keys = keys.load("C", SH, Move.done()).load("E", SH, Move.done()).set_memory("w", SH)
    keys = keys.skip_steps("alpha", "shrink", "keep", where="new == mx").skip_steps("rescale", where="alpha == 1")
    half = MatMul.tile(64, TILE // 2).to(Warpgroup).then(by_warpgroups)
    return keys.step("s", half).step("rope", half).step("pv", MatMul.tile(64, d // 2).to(Warpgroup).then(by_warpgroups)).done()


strategy = by_warps(definition(page=16), 512)


def by_sequences(fused):
    """Return the strategy for `ranges`: a thread for each part of a sequence."""
    return fused.tile(b=4, p=32).to(Block).tile(b=1, p=1).to(Thread).done()


def spec(M, N, D=512, rope=64, batch=1, parts=2, page=16, fused=None, pages=None, **options):
    """Return the problem of M rows, at most N keys per sequence in `parts` parts, latent vectors of D and rotated keys of `rope` elements.

    Args: `page`, the number of keys in a page, or None; `fused`, another definition for it; `pages` in the cache (default: those of all
        sequences); `options`, such as `dtype` (float16 by default) and strides.
    """
    fused = definition(page, dtype=options.get("dtype", float16)) if fused is None else fused
    sizes = {} if page is None else {"page": batch * -(-N // page) if pages is None else pages}
    types = dict.fromkeys("PTS", float32) | options.pop("types", {})
    return fused(m=M, n=N, d=D, e=rope, b=batch, p=parts, types=types, **sizes, **options)


def values(spec):
    """Return tunables of `by_warps`: three stages, whose shared memory leaves one block per SM, and whose registers do not spill."""
    m = constant(spec.size("m")) or 16
    return {"bm": 16 if m <= 16 else 32, "bn": 32, "stages": 3}
