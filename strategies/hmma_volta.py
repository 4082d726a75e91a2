"""GEMM on tensor cores of Volta: mma.sync m8n8k4 by quad-pairs, eight threads that own a tile together (Graphene, section 6).

    MatMul(M,N,K)(GL,GL,GL)(Kernel)
      tile(bm,bn).to(Block).rasterize(group_m=8)   MatMul(128,128,K)(GL,GL,GL)(Block)
      epilog(RF, float32, ...)         MatMul(128,128,K)(GL,GL,RF)(Block)       stored through shared memory
      split(bk).pipeline(2)            MatMul(128,128,32)(GL,GL,RF)(Block)      two buffers
      load(A, SH), load(B, SH)         MatMul(128,128,32)(SH,SH,RF)(Block)      swizzled
      tile(wm,wn).to(Warp)             MatMul(64,64,32)(SH,SH,RF)(Warp)
      split(16).unroll()               MatMul(64,64,16)(SH,SH,RF)(Warp)
      tile(16,16).unroll()             MatMul(16,16,16)(SH,SH,RF)(Warp)
      mma_tile(HMMA_884_F32_TN)        MatMul(8,8,4)(SH,SH,RF)(QuadPair)        four quad-pairs, two by two
      load(A, RF), load(B, RF)         MatMul(8,8,4)(RF,RF,RF)(QuadPair)        8 bytes per lane
      done()                           HMMA, in the form for both storage orders

The strategy names the instruction, so newer targets run the same program; there it is emulated, and slow.
"""

from fireiron import *

SIZES = (4096, 4096, 4096)

bm = Tunable("bm", 128, 64)
bn = Tunable("bn", 128, 64)
bk = Tunable("bk", 32, 16)
wm = Tunable("wm", 64, 32)
wn = Tunable("wn", 64, 32)

init = Init.tile(wm, wn).to(Warp).tile(16, 16).unroll().tile(8, 8).to(QuadPair).done()
stage = Move.tile(wm, wn).to(Warp).tile(16, 16).unroll().tile(8, 8).to(QuadPair).done()
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
    .tile(16, 16)
    .unroll()
    .mma_tile(HMMA_884_F32_TN)
    .load(A, RF, Move.done())
    .load(B, RF, Move.done())
    .done()
)


def spec(M, N, K, **options):
    """Return the problem: row-major float16 with float32 accumulators by default."""
    options = {"dtype": float16, "c_dtype": float16, "A": RowMajor, "B": RowMajor, "C": RowMajor, **options}
    return MatMul(M, N, K, **options)(GL, GL, GL)(Kernel)
