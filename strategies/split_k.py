"""Split-K inside a block: warps share the reduction dimension, for matrices that have too few tiles for all warps.

    MatMul(M,N,K)(GL,GL,GL)(Kernel)
      tile(bm,bn).to(Block)            MatMul(16,16,K)(GL,GL,GL)(Block)
      split_k(num_splits, Warp, bk)    MatMul(16,16,K/2)(GL,GL,SH)(Warp)        each warp has every second chunk of k
      epilog(RF, float32, ...)         MatMul(16,16,K/2)(GL,GL,RF)(Warp)        separate accumulators
      split(bk).pipeline(stages)       MatMul(16,16,64)(GL,GL,RF)(Warp)         separate copies: no warp waits for another
      load(A, SH), load(B, SH)         MatMul(16,16,64)(SH,SH,RF)(Warp)
      split(16).pipeline(2)            MatMul(16,16,16)(SH,SH,RF)(Warp)
      load(A, RF), load(B, RF)         MatMul(16,16,16)(RF,RF,RF)(Warp)
      tile(16,16).mma_tile()           MatMul(16,8,16)(RF,RF,RF)(Warp)
      done()                           HMMA
                                       Reduction(16,16,2)(SH,GL)(Block)         after the only barrier of the block

The best small tile of the paper: 16 x 16 with 64 along k and two warps, arranged in three dimensions like those of cuBLAS (Fireiron,
section 5.3).
"""

from fireiron import *

SIZES = (256, 256, 1024)

bm = Tunable("bm", 16, 32, 64)
bn = Tunable("bn", 16, 32, 64)
bk = Tunable("bk", 64, 32, 128)
num_splits = Tunable("num_splits", 2, 1, 3, 4, 8)
stages = Tunable("stages", 4, 2, 3, 5)

strategy = (
    MatMul.tile(bm, bn)
    .to(Block)
    .split_k(num_splits, Warp, bk)
    .epilog(RF, float32, Init.done(), Move.done())
    .split(bk)
    .pipeline(stages)
    .load(A, SH, Move.coalesced_copy(8).done())
    .swizzle_storage()
    .load(B, SH, Move.coalesced_copy(8).done())
    .swizzle_storage()
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
