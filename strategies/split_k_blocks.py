"""Split-K across blocks: for problems with a large K whose C has too few tiles to occupy all SMs.

    MatMul(M,N,K)(GL,GL,GL)(Kernel)
      split_k(num_splits, Block, bk)   MatMul(M,N,K/16)(GL,GL,GL)(Kernel)       each block has every 16th chunk of k
      tile(bm,bn).to(Block)            MatMul(64,64,K/16)(GL,GL,GL)(Block)      16 blocks per tile of C
      epilog(RF, float32, ...)         MatMul(64,64,K/16)(GL,GL,RF)(Block)      stored by atomic additions
      split(bk).pipeline(stages)       MatMul(64,64,64)(GL,GL,RF)(Block)
      load(A, SH), load(B, SH)         MatMul(64,64,64)(SH,SH,RF)(Block)
      tile(wm,wn).to(Warp)             MatMul(32,32,64)(SH,SH,RF)(Warp)
      split(16).pipeline(2)            MatMul(32,32,16)(SH,SH,RF)(Warp)
      load(A, RF), load(B, RF)         MatMul(32,32,16)(RF,RF,RF)(Warp)
      tile(16,16).mma_tile()           MatMul(16,8,16)(RF,RF,RF)(Warp)
      done()                           HMMA

C is float32; the launcher sets it to zero. The order of the additions is not fixed, so floating-point results differ in the last
bits from run to run.
"""

from fireiron import *

SIZES = (64, 64, 8192)

num_splits = Tunable("num_splits", 16, 2, 4, 8, 32, 64)
bm = Tunable("bm", 64, 32, 128)
bn = Tunable("bn", 64, 32, 128)
bk = Tunable("bk", 64, 32, 128)
wm = Tunable("wm", 32, 16, 64)
wn = Tunable("wn", 32, 16, 64)
stages = Tunable("stages", 4, 2, 3, 5)

strategy = (
    MatMul.split_k(num_splits, Block, bk)
    .tile(bm, bn)
    .to(Block)
    .epilog(RF, float32, Init.tile(wm, wn).to(Warp).done(), Move.tile(wm, wn).to(Warp).done())
    .split(bk)
    .pipeline(stages)
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
    """Return the problem: row-major float16 and a float32 C by default."""
    options = {"dtype": float16, "c_dtype": float32, "A": RowMajor, "B": RowMajor, "C": RowMajor, **options}
    return MatMul(M, N, K, **options)(GL, GL, GL)(Kernel)
