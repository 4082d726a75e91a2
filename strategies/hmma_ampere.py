"""GEMM on tensor cores from Ampere on: mma.sync m16n8k16, ldmatrix, swizzled shared memory, software-pipelined cp.async.

    MatMul(M,N,K)(GL,GL,GL)(Kernel)
      tile(bm,bn).to(Block).rasterize(group_m=8)   MatMul(128,256,K)(GL,GL,GL)(Block)
      epilog(RF, float32, ...)         MatMul(128,256,K)(GL,GL,RF)(Block)       stored through shared memory
      split(bk).pipeline(stages)       MatMul(128,256,64)(GL,GL,RF)(Block)      copies of 16 bytes, in flight
      load(A, SH).swizzle_storage()            MatMul(128,256,64)(SH,GL,RF)(Block)
      load(B, SH).swizzle_storage()            MatMul(128,256,64)(SH,SH,RF)(Block)
      tile(wm,wn).to(Warp)             MatMul(64,64,64)(SH,SH,RF)(Warp)
      split(16).pipeline(2)            MatMul(64,64,16)(SH,SH,RF)(Warp)         fragments loaded one step early
      load(A, RF), load(B, RF)         MatMul(64,64,16)(RF,RF,RF)(Warp)         ldmatrix.x4, .trans if the storage order requires it
      tile(16,16).unroll()             MatMul(16,16,16)(RF,RF,RF)(Warp)
      mma_tile()                       MatMul(16,8,16)(RF,RF,RF)(Warp)
      done()                           HMMA

One strategy for all storage orders and sizes: copies follow the storage order of their source, and are as wide as sizes and
leading dimensions allow.
"""

from fireiron import *
from fireiron.strategies._fused import before, unaligned

SIZES = (4096, 4096, 4096)

bm = Tunable("bm", 128, 64, 96, 192, 256)
bn = Tunable("bn", 256, 64, 96, 128, 192)
bk = Tunable("bk", 64, 32)
wm = Tunable("wm", 64, 32, 48, 96)
wn = Tunable("wn", 64, 32, 48, 96)
stages = Tunable("stages", 4, 3, 5)

init = Init.tile(wm, wn).to(Warp).done()
stage = Move.tile(wm, wn).to(Warp).done()
store = Move.load(SRC, SH, stage).cast_on_copy().pad(8).reuse_buffer().coalesced_copy(8).done()

strategy = (
    MatMul.tile(bm, bn)
    .to(Block)
    .rasterize(group_m=8)
    .epilog(RF, float32, init, store)
    .split(bk)
    .pipeline(stages, interleave=True)
    .load(A, SH, Move.coalesced_copy(8).done())
    .swizzle_storage()
    .load(B, SH, Move.coalesced_copy(8).done())
    .swizzle_storage()
    .tile(wm, wn)
    .to(Warp)
    .split(16)
    .unroll()
    .pipeline(2)
    .load(A, RF, Move.done())
    .load(B, RF, Move.done())
    .tile(16, 16)
    .unroll()
    .mma_tile()
    .done()
)


def spec(M, N, K, **options):
    """Return the problem: row-major float16 with float32 accumulators by default."""
    options = {"dtype": float16, "c_dtype": float16, "A": RowMajor, "B": RowMajor, "C": RowMajor, **options}
    return MatMul(M, N, K, **options)(GL, GL, GL)(Kernel)


def values(spec, target=None):
    """Return tunables: on Volta, or if the row length is unknown, registers suffice for fewer rows per warp."""
    return {"bm": 64, "wm": 32} if before(75, target) or unaligned(spec) else {}
