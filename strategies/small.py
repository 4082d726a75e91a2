"""GEMM of small matrices on tensor cores: small tiles, so that every SM has one, and results stored directly from fragments.

    MatMul(M,N,K)(GL,GL,GL)(Kernel)
      tile(bm,bn).to(Block)            MatMul(32,32,K)(GL,GL,GL)(Block)
      epilog(RF, float32, ...)         MatMul(32,32,K)(GL,GL,RF)(Block)
      split(bk).pipeline(stages)       MatMul(32,32,64)(GL,GL,RF)(Block)
      load(A, SH), load(B, SH)         MatMul(32,32,64)(SH,SH,RF)(Block)
      tile(wm,wn).to(Warp)             MatMul(16,32,64)(SH,SH,RF)(Warp)
      split(16).pipeline(lookahead)    MatMul(16,32,16)(SH,SH,RF)(Warp)
      load(A, RF), load(B, RF)         MatMul(16,32,16)(RF,RF,RF)(Warp)
      tile(16,16).mma_tile()           MatMul(16,8,16)(RF,RF,RF)(Warp)
      done()                           HMMA

The tile sizes are what a search over powers of two varies (Fireiron, section 5.3).
"""

from fireiron import *

SIZES = (256, 256, 256)

bm = Tunable("bm", 32, 16, 48, 64, 96, 128, 256)
bn = Tunable("bn", 32, 16, 48, 64, 96, 128, 256)
bk = Tunable("bk", 64, 32, 128)
wm = Tunable("wm", 16, 32, 64)
wn = Tunable("wn", 32, 16, 64)
stages = Tunable("stages", 4, 2, 3, 5, 6)
lookahead = Tunable("lookahead", 2, 1)

strategy = (
    MatMul.tile(bm, bn)
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
    .pipeline(lookahead)
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
