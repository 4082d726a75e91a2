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

SLICE = 128
"""Number of elements of a slice of latent vectors. The last slice of the queries fits in registers."""

TILE = 64
"""Number of keys of a tile of `by_wgmma`."""

bm = Tunable("bm", 16, 32, 64)
bn = Tunable("bn", 32, 64)
stages = Tunable("stages", 2, 1, 3, 4)


@functools.cache
def definition(page=None, queries=1, heads=None, causal=True, clean=True, dtype=float16, slices=1):
    """Return the parts as formulas.

    Args:
        page: the number of keys in a page; None for contiguous keys, without a table.
        queries: the number of queries of a sequence.
        heads: the number of heads, if the rows of a query are adjacent; None if the rows of a head are.
        causal: a query sees the keys up to its own position.
        clean: set values outside of the part to 0. Without it, a maximum is kept until a score exceeds it by `RESCALE_THRESHOLD`.
        dtype: the type of queries, latent vectors and probabilities.
        slices: the number of operands that queries, latent vectors and results are divided into along d: Q0, Q1, ..., or Q if it is 1.
    """
    bits = f"(scale * {LOG2_E})"
    scaled = f"top[m] * {bits}"
    new = f"max(mx[m], {scaled})" if clean else f"where({scaled} > mx[m] + {RESCALE_THRESHOLD}, {scaled}, mx[m])"
    key = "b,n" if page is None else f"table[b,n // {page}],n % {page}"
    query = f"m % {queries}" if heads is None else f"m // {heads}"
    is_own = causal and queries > 1
    qs, cs, ps, sums = (sliced(name, slices) for name in ("Q", "C", "P", "acc"))
    scores = [f"sum(d, {q}[b,m,d] * {c}[{key},d])" for q, c in zip(qs, cs, strict=True)]
    cache, array = ("b n", "") if page is None else ("page slot", " page slot t")
    values = {"v": f"v[n,d] = C[{key},d]", "used": "v[n,d] = where(seen, v[n,d], 0)"} if clean else {}
    return Fused(
        name="attention_latent",
        dims=f"n d e{array} b p m",
        loop="n",
        batch="b p",
        positive="scale",
        mask={"seen": "begin[b,p] <= n and n < end[b,p]"},
        operands={
            **dict.fromkeys(qs, "b m d"),
            "R": "b m e",
            **dict.fromkeys(cs, f"{cache} d"),
            "E": f"{cache} e",
            **({"table": "b t"} if page else {}),
            "begin": "b p",
            "end": "b p",
            **({"length": "b"} if is_own else {}),
            "scale": "",
            **dict.fromkeys(ps, "b p m d"),
            "T": "b p m",
            "S": "b p m",
        },
        types={"begin": int32, "end": int32, **({"length": int32} if is_own else {}), "w": dtype, **({"v": dtype} if clean else {})},
        init={"mx": "mx[m] = -1e30", "l": "l[m] = 0", **{acc: f"{acc}[m,d] = 0" for acc in sums}},
        body={
            **{name: f"s[m,n] {'+' * bool(i)}= {score}" for i, (name, score) in enumerate(zip(sliced("s", slices), scores, strict=True))},
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
            **{name: f"{acc}[m,d] = {acc}[m,d] * alpha[m]" for name, acc in zip(sliced("rescale", slices), sums, strict=True)},
            **values,
            **{
                name: f"{acc}[m,d] += sum(n, w[m,n] * {'v[n,d]' if clean else f'{c}[{key},d]'})"
                for name, acc, c in zip(sliced("pv", slices), sums, cs, strict=True)
            },
        },
        final={
            **{
                name: f"{p}[b,p,m,d] = where(l[m] > 0, {acc}[m,d], 0)"
                for name, p, acc in zip(sliced("store", slices), ps, sums, strict=True)
            },
            "tops": "T[b,p,m] = mx[m]",
            "total": "S[b,p,m] = l[m]",
        },
    )


def sliced(name, slices):
    """Return the names of the slices of an operand or a step."""
    return [name] if slices == 1 else [f"{name}{number}" for number in range(slices)]


def slices_of(d):
    """Return the number of slices of latent vectors of `d` elements for `by_wgmma`: slices of 128 elements."""
    return d // SLICE if d % SLICE == 0 else 1


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
    """Return the strategy with TMA, wgmma and a producer for latent vectors of `d` elements (Hopper).

    The slices of a stage are filled and released separately. wgmma reads both operands of scores from shared memory, which takes longer
    than the tensor cores compute. So the rotated part of the queries and their last slice are in registers. A wait for each MMA of the
    values releases its slice at once, so that the next load starts.
    """
    slices = slices_of(d) if "C0" in fused.fused_definition.uses else 1
    rows = fused.rfactor("sums", 8).tile(m=64, b=1, p=1).to(Block)
    queries, vectors, rescales, products = (sliced(name, slices) for name in ("Q", "C", "rescale", "pv"))
    for name in (*queries, "R"):
        rows = rows.load(name, SH, Move.done())
    for name in (*(queries[-1:] if slices > 1 else ()), "R"):
        rows = rows.load(name, RF, Move.done())
    keys = rows.split(n=TILE).pipeline(stages).skip_masked_tiles().warp_specialize(128).mma_in_flight(0)
    for name in (*vectors, "E"):
        keys = keys.load(name, SH, Move.done())
    keys = keys.set_memory("w", SH).skip_steps("alpha", "shrink", "keep", where="new == mx").skip_steps(*rescales, where="alpha == 1")
    half = MatMul.tile(64, TILE // 2).to(Warpgroup).then(by_warpgroups)
    for name in (*sliced("s", slices), "rope"):
        keys = keys.step(name, half)
    for name in products:
        keys = keys.step(name, MatMul.tile(64, d // slices // 2).to(Warpgroup).then(by_warpgroups))
    return keys.done()


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
    slices = sum(name.startswith("P") for name in fused.fused_definition.uses)
    types = dict.fromkeys((*sliced("P", slices), "T", "S"), float32) | options.pop("types", {})
    return fused(m=M, n=N, d=D // slices, e=rope, b=batch, p=parts, types=types, **sizes, **options)


def values(spec):
    """Return tunables of `by_warps`: three stages, whose shared memory leaves one block per SM, and whose registers do not spill."""
    m = constant(spec.size("m")) or 16
    return {"bm": 16 if m <= 16 else 32, "bn": 32, "stages": 3}
