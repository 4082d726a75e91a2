"""GEMM on tensor cores of Turing: mma.sync m16n8k8 and ldmatrix; without asynchronous copies it prefetches through registers.

    MatMul(M,N,K)(GL,GL,GL)(Kernel)
      tile(bm,bn).to(Block).rasterize(group_m=8)   MatMul(128,128,K)(GL,GL,GL)(Block)
      epilog(RF, float32, ...)         MatMul(128,128,K)(GL,GL,RF)(Block)       stored through shared memory
      split(bk).pipeline(2)            MatMul(128,128,32)(GL,GL,RF)(Block)      two buffers
      load(A, SH).swizzle_storage()            MatMul(128,128,32)(SH,GL,RF)(Block)
      load(B, SH).swizzle_storage()            MatMul(128,128,32)(SH,SH,RF)(Block)
      tile(wm,wn).to(Warp)             MatMul(64,64,32)(SH,SH,RF)(Warp)
      split(16).pipeline(2)            MatMul(64,64,16)(SH,SH,RF)(Warp)         fragments loaded one step early
      load(A, RF), load(B, RF)         MatMul(64,64,16)(RF,RF,RF)(Warp)         ldmatrix.x4
      tile(16,16).unroll()             MatMul(16,16,16)(RF,RF,RF)(Warp)
      mma_tile(HMMA_1688_F32)          MatMul(16,8,8)(RF,RF,RF)(Warp)
      done()                           HMMA

The strategy names the instruction, so newer targets run the same program. It fits in the 64 KiB of shared memory of a block on sm_75.
"""

from fireiron import *
from fireiron.strategies._fused import unaligned

SIZES = (4096, 4096, 4096)

bm = Tunable("bm", 128, 64)
bn = Tunable("bn", 128, 64)
bk = Tunable("bk", 32, 64)
wm = Tunable("wm", 64, 32)
wn = Tunable("wn", 64, 32)

init = Init.tile(wm, wn).to(Warp).done()
stage = Move.tile(wm, wn).to(Warp).done()
store = Move.load(SRC, SH, stage).cast_on_copy().pad(8).reuse_buffer().coalesced_copy(8).done()

strategy = (
    MatMul.tile(bm, bn)
    .to(Block)
    .rasterize(group_m=8)
    .epilog(RF, float32, init, store)
    .split(bk)
    .pipeline(2)
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
    .mma_tile(HMMA_1688_F32)
    .done()
)


def spec(M, N, K, **options):
    """Return the problem: row-major float16 with float32 accumulators by default."""
    options = {"dtype": float16, "c_dtype": float16, "A": RowMajor, "B": RowMajor, "C": RowMajor, **options}
    return MatMul(M, N, K, **options)(GL, GL, GL)(Kernel)


def values(spec, target=None):
    """Return tunables: if the row length is unknown, registers suffice for fewer rows per warp."""
    return {"wm": 32} if unaligned(spec) else {}
