"""Products of a mixture of experts on Hopper: rows in tiles, each of which belongs to one expert, D[t] = A[t]·W[expert[t]].

    experts(T,bm,N,K,E)(GL,GL,GL,GL,GL)(Kernel)
      tile(t=1,m=bm,n=bn).to(Block)    experts(1,128,256,K,E)(GL,...)(Block)         a tile of rows and its expert
        .rasterize(group_m=8).persistent()
      split(k=bk).skip_masked_tiles()  experts(1,128,256,64,E)(GL,...)(Block)        no iterations for tiles without rows
        .pipeline(stages).warp_specialize()
      load(A, SH), load(W, SH)         experts(1,128,256,64,E)(SH,SH,...)(Block)     TMA; the expert is a TMA coordinate
      tile(m=64).to(Warpgroup)         experts(1,64,256,64,E)(SH,SH,...)(Warpgroup)
      step(product)                    MatMul(64,256,16)(SH,SH,RF)(Warpgroup)        wgmma
      step(store)                      Move(64,256)(RF,GL)(Warpgroup)                through shared memory by TMA

`fireiron.experts_routing` sorts rows by expert and pads the rows of each expert to whole tiles, so a tile needs no search and no mask. The
number of tiles is an upper bound. `steps[t]` is the number of blocks of 128 elements along k: 0 for a tile without rows.

- `gated` computes silu(A·G) * (A·U) in one pass over A, and `held` the same with fragments of A in registers, so that both products read
  A from shared memory once. `kept` also stores A·G and A·U, for the gradients.
- `gathered` and `gathered_gated` read row `rows[t,m]` of an array that is not sorted: a warpgroup copies rows, TMA copies weights.
- `scaled` multiplies 8-bit floats and applies a scale per row of A and per column of W.
- `few` and `few_gated` are for tiles of 8 to 32 rows: the 64 rows of wgmma are columns of W, and many stages are in flight.
- `weight_gradient` computes A[m]^T·B[m] over the rows of each expert, from row 64 * first[e] to row 64 * last[e].
- `permute`, `combine` and their gradients move rows between the order of tokens and the order of experts.
"""

from fireiron import *
from fireiron.strategies._fused import by_warpgroups, stored
from fireiron.strategies._fused import product as by_lanes

SIZES = (1024, 1024, 512)

RUN = 128
"""Elements along k of a block that `steps` counts."""

ROWS = 64
"""Rows of a block that `first` and `last` count in `weight_gradient`."""

bn = Tunable("bn", 256, 128, 192, 64)
bm = Tunable("bm", 128, 64, 256, 192)
bk = Tunable("bk", 64, 128, 32)
wm = Tunable("wm", 64, 128)
stages = Tunable("stages", 4, 2, 3, 5, 6, 8)
epi_n = Tunable("epi_n", 64, 32, 128)
group_m = Tunable("group_m", 8, 1, 2, 4, 16, 32)
raster = Tunable("raster", 0, 1)
num_blocks = Tunable("num_blocks", 132, 264, 65536)
mma_in_flight = Tunable("mma_in_flight", 1, 0)

half = Tunable("bn", 128, 64, 96)
wide = Tunable("bk", 128, 64)
narrow = Tunable("bn", 128, 64, 256)
low = Tunable("bm", 16, 8, 32, 64)
deep = Tunable("stages", 5, 4, 6, 8, 10, 12)

TABLES = {"expert": int32, "steps": int32}
INTEGERS = {"expert": "t", "steps": "t"}
LIVE = {"live": f"k // {RUN} < steps[t]"}


def product_of(name, a, operands, store, **options):
    """Return the definition of A[t]·W[expert[t]]; `a` is the element of A, `store` are the steps after the loop."""
    return Fused(
        name=name, dims="t m n k e" + options.pop("more", ""), batch="t", loop="k", mask=LIVE, types={**TABLES, **options.pop("types", {})},
        operands={**operands, **INTEGERS, "W": "e n k", **({"D": "t m n"} if "store" in store else {})},
        init={"zero": "acc[m,n] = 0"},
        body={"product": f"acc[m,n] += sum(k, where(live, {a}, 0) * W[expert[t],n,k])"},
        final=store, **options,
    )  # fmt: skip


def gated_of(name, a, operands, store, outputs, **options):
    """Return the definition of silu(A[t]·G[expert[t]]) * (A[t]·U[expert[t]])."""
    return Fused(
        name=name, dims="t m n k e" + options.pop("more", ""), batch="t", loop="k", mask=LIVE, types={**TABLES, **options.pop("types", {})},
        operands={**operands, **INTEGERS, "G": "e n k", "U": "e n k", **outputs},
        init={"zero_gate": "g[m,n] = 0", "zero_up": "u[m,n] = 0"},
        body={
            "gate": f"g[m,n] += sum(k, where(live, {a}, 0) * G[expert[t],n,k])",
            "up": f"u[m,n] += sum(k, where(live, {a}, 0) * U[expert[t],n,k])",
        },
        final=store, **options,
    )  # fmt: skip


SORTED, TOKENS = "A[t,m,k]", "A[rows[t,m],k]"
OF_TOKENS = {"A": "r k", "rows": "t m"}
STORE = {"store": "D[t,m,n] = acc[m,n]"}
ROOT = "rsqrt(1 + exp2(g[m,n] * -1.4426950408889634))"
ACT = {"act": f"h[m,n] = g[m,n] * u[m,n] * {ROOT} * {ROOT}", "store": "H[t,m,n] = h[m,n]"}
"""silu(g) * u without a division, whose rounding takes two thirds of the time of the epilogue."""

product = product_of("experts", SORTED, {"A": "t m k"}, STORE)
gathered_product = product_of("experts_gathered", TOKENS, OF_TOKENS, STORE, more=" r", types={"rows": int32})
scaled_product = product_of(
    "experts_scaled", SORTED, {"A": "t m k", "SA": "t m", "SW": "e n"},
    {"scale": "acc[m,n] = acc[m,n] * SA[t,m] * SW[expert[t],n]", **STORE},
    types={"SA": float32, "SW": float32, "A": float8_e4m3, "W": float8_e4m3, "D": bfloat16},
)  # fmt: skip
gated_product = gated_of("experts_gated", SORTED, {"A": "t m k"}, ACT, {"H": "t m n"})
gathered_gated_product = gated_of("experts_gathered_gated", TOKENS, OF_TOKENS, ACT, {"H": "t m n"}, more=" r", types={"rows": int32})
kept_product = gated_of(
    "experts_kept", SORTED, {"A": "t m k"}, {"keep_gate": "P[t,m,n] = g[m,n]", "keep_up": "Q[t,m,n] = u[m,n]", **ACT},
    {"P": "t m n", "Q": "t m n", "H": "t m n"},
)  # fmt: skip

slope_product = product_of(
    "experts_slopes", SORTED, {"A": "t m k", "P": "t m n", "Q": "t m n", "dP": "t m n", "dQ": "t m n"},
    {
        "sigmoid": "s[m,n] = sigmoid(P[t,m,n])",
        "up": "q[m,n] = acc[m,n] * (P[t,m,n] * s[m,n])",
        "gate": "acc[m,n] = acc[m,n] * Q[t,m,n] * (s[m,n] * (1 + P[t,m,n] * (1 - s[m,n])))",
        "store_up": "dQ[t,m,n] = q[m,n]",
        "store_gate": "dP[t,m,n] = acc[m,n]",
    },
)  # fmt: skip

weight_product = Fused(
    name="experts_weight_gradient", dims="e k n m", batch="e", loop="m", types={"first": int32, "last": int32},
    operands={"A": "m k", "B": "m n", "first": "e", "last": "e", "D": "e k n"},
    mask={"own": f"first[e] <= m // {ROWS} and m // {ROWS} < last[e]"},
    init={"zero": "acc[k,n] = 0"},
    body={"product": "acc[k,n] += sum(m, where(own, A[m,k], 0) * B[m,n])"},
    final={"store": "D[e,k,n] = acc[k,n]"},
)  # fmt: skip


def loop_of(definition, bm, bn, bk, stages, threads=128, **options):
    """Return the tiles of blocks, and the loop along k."""
    tiles = definition.tile(t=1, m=bm, n=bn).to(Block).rasterize(group_m, raster).persistent(num_blocks)
    return tiles.split(k=bk).skip_masked_tiles().pipeline(stages).warp_specialize(threads, **options).mma_in_flight(mma_in_flight)


def loaded(loop, *names):
    """Load operands by TMA."""
    for name in names:
        loop = loop.load(name, SH, Move.done())
    return loop


strategy = loaded(loop_of(product, bm, bn, bk, stages), "A", "W").tile(m=wm).to(Warpgroup)
strategy = strategy.step("product", by_warpgroups).step("store", stored(epi_n)).done()

gated = loaded(loop_of(gated_product, bm, half, bk, stages), "A", "G", "U").tile(m=wm).to(Warpgroup)
gated = gated.step("gate", by_warpgroups).step("up", by_warpgroups).step("store", stored(epi_n)).done()

held = loaded(loop_of(gated_product, bm, half, bk, stages), "A", "G", "U").tile(m=wm).to(Warpgroup).load("A", RF, Move.done())
held = held.step("gate", by_warpgroups).step("up", by_warpgroups).step("store", stored(epi_n)).done()

kept = loaded(loop_of(kept_product, bm, half, bk, stages), "A", "G", "U").tile(m=wm).to(Warpgroup)
kept = kept.step("gate", by_warpgroups).step("up", by_warpgroups)
kept = kept.step("keep_gate", stored(epi_n)).step("keep_up", stored(epi_n)).step("store", stored(epi_n)).done()

copy = Move.coalesced_copy(8).done()

gathered = loop_of(gathered_product, bm, bn, bk, stages, 32, copies=True).load("A", SH, copy).load("W", SH, Move.done())
gathered = gathered.tile(m=wm).to(Warpgroup).step("product", by_warpgroups).step("store", stored(epi_n)).done()

gathered_gated = loop_of(gathered_gated_product, bm, half, bk, stages, 32, copies=True).load("A", SH, copy)
gathered_gated = loaded(gathered_gated, "G", "U").tile(m=wm).to(Warpgroup)
gathered_gated = gathered_gated.step("gate", by_warpgroups).step("up", by_warpgroups).step("store", stored(epi_n)).done()

by_bytes = MatMul.split(32).unroll().done()
scaled = loaded(loop_of(scaled_product, bm, bn, wide, stages), "A", "W").tile(m=wm).to(Warpgroup)
scaled = scaled.step("product", by_bytes).step("store", stored(epi_n)).done()


def few_of(definition):
    """Return the tiles of blocks, each of which computes one, and the loop along k."""
    tiles = definition.tile(t=1, m=low, n=narrow).to(Block)
    return tiles.split(k=wide).skip_masked_tiles().pipeline(deep).warp_specialize(32).mma_in_flight(mma_in_flight)


few = loaded(few_of(product), "A", "W").tile(n=64).to(Warpgroup).step("product", by_warpgroups).done()
few_gated = loaded(few_of(gated_product), "A", "G", "U").tile(n=64).to(Warpgroup)
few_gated = few_gated.step("gate", by_warpgroups).step("up", by_warpgroups).done()

weights = weight_product.tile(e=1, k=bm, n=bn).to(Block).persistent(num_blocks)
weights = weights.split(m=ROWS).skip_masked_tiles().pipeline(stages).warp_specialize(128).mma_in_flight(mma_in_flight)
weights = loaded(weights, "A", "B").tile(k=wm).to(Warpgroup)
weight_gradient = weights.step("product", by_warpgroups).step("store", stored(epi_n)).done()

slopes = loaded(loop_of(slope_product, bm, bn, bk, stages), "A", "W").tile(m=wm).to(Warpgroup).step("product", by_warpgroups)
slopes = slopes.step("store_up", stored(epi_n)).step("store_gate", stored(epi_n)).done()


any_rows = Tunable("bm", 64, 16, 32, 128)
rows_of_warp = Tunable("wm", 32, 16, 64)
columns_of_warp = Tunable("wn", 32, 64)
columns = Tunable("bn", 64, 128)
part = Tunable("bk", 32, 64)
few_stages = Tunable("stages", 3, 2, 4)
fragments = Move.done()


def by_copies(definition, rows, names):
    """Return the loads by `cp.async` and the tiles of warps, for targets without TMA (Ampere)."""
    loop = definition.tile(t=1, m=rows, n=columns).to(Block).split(k=part).skip_masked_tiles().pipeline(few_stages)
    for name in names:
        loop = loop.load(name, SH, copy).swizzle_storage()
    loop = loop.tile(m=rows_of_warp, n=columns_of_warp).to(Warp).split(k=16).unroll()
    for name in names:
        loop = loop.load(name, RF, fragments)
    return loop


ampere = by_copies(product, any_rows, "AW").step("product", by_lanes).done()
ampere_gated = by_copies(gated_product, any_rows, "AGU").step("gate", by_lanes).step("up", by_lanes).done()
ampere_kept = by_copies(kept_product, any_rows, "AGU").step("gate", by_lanes).step("up", by_lanes).done()

ampere_weights = weight_product.tile(e=1, k=any_rows, n=columns).to(Block).split(m=part).skip_masked_tiles().pipeline(few_stages)
ampere_weights = ampere_weights.load("A", SH, copy).swizzle_storage().load("B", SH, copy).swizzle_storage()
ampere_weights = ampere_weights.tile(k=rows_of_warp, n=columns_of_warp).to(Warp).split(m=16).unroll()
ampere_weights = ampere_weights.load("A", RF, fragments).load("B", RF, fragments).step("product", by_lanes).done()


FORMS = {
    "product": product,
    "gated": gated_product,
    "kept": kept_product,
    "gathered": gathered_product,
    "gathered_gated": gathered_gated_product,
    "scaled": scaled_product,
    "slopes": slope_product,
}
"""Definitions of products of tiles, by the argument `form` of `spec`."""


def spec(M, N, K, form="product", experts=4, rows=128, **options):
    """Return the problem: tiles of `rows` rows, of M rows in all, each of one of `experts` experts.

    Args: `form`, a name of `FORMS`, or "weights" for the sums over the M rows of each expert.
    """
    if form == "weights":
        return weight_product(e=experts, k=N, n=K, m=M, **options)
    tokens = {"r": M} if form.startswith("gathered") else {}
    return FORMS[form](t=(M + (rows - 1)) // rows, m=rows, n=N, k=K, e=experts, **tokens, **options)
