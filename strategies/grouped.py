"""Grouped GEMM: D[g] = A[g]·B[g], where group g has `rows[g]` of M rows, on tensor cores from Ampere on.

    grouped(G,M,N,K)(GL,GL,GL,GL)(Kernel)
      tile(g=1,bm,bn).to(Block)        grouped(1,128,128,K)(GL,GL,GL,GL)(Block)     the tile of a block is in one group
      step(product)                    MatMul(128,128,K)(GL,GL,RF)(Block)
        split(bk).pipeline(stages)     MatMul(128,128,32)(GL,GL,RF)(Block)          copies of 16 bytes, in flight
        load(A, SH), load(B, SH)       MatMul(128,128,32)(SH,SH,RF)(Block)          swizzled
        tile(wm,wn).to(Warp)           MatMul(64,64,32)(SH,SH,RF)(Warp)
        split(16).pipeline(2)          MatMul(64,64,16)(SH,SH,RF)(Warp)             fragments loaded one step early
        load(A, RF), load(B, RF)       MatMul(64,64,16)(RF,RF,RF)(Warp)             ldmatrix.x4
        tile(16,16).mma_tile()         MatMul(16,8,16)(RF,RF,RF)(Warp)              HMMA
      step(store)                      Move(128,128)(RF,GL)(Block)                  through shared memory, in pieces of 16 bytes

Each group has memory for M rows. Rows past the end of a group are zero in D, whatever A contains there. `grouped_ragged` is for groups
that are packed without gaps.
"""

from fireiron import *
from fireiron.strategies._fused import few_rows, orders, product

SIZES = (1024, 1024, 1024)

bm = Tunable("bm", 128, 64, 256)
bn = Tunable("bn", 128, 64, 256)
bk = Tunable("bk", 32, 64)
wm = Tunable("wm", 64, 32)
wn = Tunable("wn", 64, 32)
stages = Tunable("stages", 4, 3, 5)

definition = Fused(
    name="grouped",
    dims="g m n k",
    batch="g",
    operands={"A": "g m k", "B": "g k n", "rows": "g", "D": "g m n"},
    body={
        "product": "acc[m,n] = sum(k, A[g,m,k] * B[g,k,n])",
        "inside": "acc[m,n] = where(m < rows[g], acc[m,n], 0)",
        "store": "D[g,m,n] = acc[m,n]",
    },
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

strategy = definition.tile(g=1, m=bm, n=bn).to(Block).step("product", main_loop).step("store", store).done()


def spec(M, N, K, groups=8, **options):
    """Return the problem: row-major float16 with float32 accumulators by default, `rows` in int32; C is the storage order of D."""
    options = {"types": {"rows": int32}, **options}
    return definition(g=groups, m=M, n=N, k=K, **orders(options, {"A": "A", "B": "B", "C": "D"}))


values = few_rows
