"""Grouped GEMM of packed rows: D[m] = A[m]·B[g] for the rows `begin[g] <= m < end[g]` of group g, on tensor cores from Ampere on.

    grouped_ragged(M,N,K,G)(GL,GL,GL,GL,GL)(Kernel)
      tile(bm,bn).to(Block).rasterize(group_m=8)   grouped_ragged(128,128,K,G)(GL,...)(Block)
      split(g=1).skip_masked_tiles()   grouped_ragged(128,128,K,1)(GL,...)(Block)   one group after another, skipping those of other rows
      step(product)                    MatMul(128,128,K)(GL,GL,RF)(Block)
        split(bk).pipeline(stages)     MatMul(128,128,32)(GL,GL,RF)(Block)           copies of 16 bytes, in flight
        load(A, SH), load(B, SH)       MatMul(128,128,32)(SH,SH,RF)(Block)           swizzled
        tile(wm,wn).to(Warp)           MatMul(64,32,32)(SH,SH,RF)(Warp)
        split(16).pipeline(2)          MatMul(64,32,16)(SH,SH,RF)(Warp)              fragments loaded one step early
        load(A, RF), load(B, RF)       MatMul(64,32,16)(RF,RF,RF)(Warp)              ldmatrix.x4
        tile(16,16).mma_tile()         MatMul(16,8,16)(RF,RF,RF)(Warp)               HMMA
      step(store)                      Move(128,128)(RF,GL)(Block)                   through shared memory, in pieces of 16 bytes

The rows of all groups are contiguous. The kernel reads from memory where each group begins and ends: with an array `offsets` of G + 1
int32, `begin` is offsets[:-1] and `end` is offsets[1:], without a copy. Tiles are those of the packed rows. A tile that several groups
share iterates over these groups, and each row keeps the result of its group. All tiles together therefore compute at most
tiles + groups products, whatever the offsets, and each block writes whole tiles. Groups may be empty. Rows of no group are zero; for rows
of several groups the last group counts.
"""

from fireiron import *
from fireiron.strategies._fused import few_rows, orders, product

SIZES = (4096, 1024, 1024)

bm = Tunable("bm", 128, 64)
bn = Tunable("bn", 128, 64)
bk = Tunable("bk", 32, 64)
wm = Tunable("wm", 64, 32)
wn = Tunable("wn", 32)
stages = Tunable("stages", 4, 3)

definition = Fused(
    name="grouped_ragged",
    dims="m n k g",
    scan="g",
    operands={"A": "m k", "B": "g k n", "begin": "g", "end": "g", "D": "m n"},
    init={"zero": "acc[m,n] = 0"},
    body={
        "product": "p[m,n] = sum(k, A[m,k] * B[g,k,n])",
        "keep": "acc[m,n] = where(begin[g] <= m and m < end[g], p[m,n], acc[m,n])",
    },
    final={"store": "D[m,n] = acc[m,n]"},
)

copy, fragments = Move.coalesced_copy(8).done(), Move.done()

main_loop = (
    MatMul.split(bk)
    .pipeline(stages, interleave=True)
    .load(A, SH, copy)
    .swizzle_storage()
    .load(B, SH, copy)
    .swizzle_storage()
    .tile(wm, wn)
    .to(Warp)
    .split(16)
    .unroll()
    .pipeline(2)
    .load(A, RF, fragments)
    .load(B, RF, fragments)
    .then(product)
)

store = Move.load(SRC, SH, Move.tile(wm, wn).to(Warp).done()).cast_on_copy().swizzle_storage().reuse_buffer().coalesced_copy(8).done()

strategy = (
    definition.tile(m=bm, n=bn)
    .to(Block)
    .rasterize(group_m=8)
    .split(g=1)
    .skip_masked_tiles()
    .step("product", main_loop)
    .step("store", store)
    .done()
)


def spec(M, N, K, groups=8, **options):
    """Return the problem: M packed float16 rows with float32 accumulators, `begin` and `end` in int32; C is the storage order of D."""
    options = {"types": {"begin": int32, "end": int32}, "begin": Strides(g=1).aligned(4), "end": Strides(g=1).aligned(4), **options}
    return definition(m=M, n=N, k=K, g=groups, **orders(options, {"A": "A", "B": "B", "C": "D"}))


values = few_rows
