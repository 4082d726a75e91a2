"""Listing 1 of the Fireiron paper: tiles and loads only; the residual dot product is a micro-kernel.

    MatMul(M,N,K)(GL,GL,GL)(Kernel)
      tile(bm,bn).to(Block)        MatMul(128,128,K)(GL,GL,GL)(Block)
      load(A, SH)                  MatMul(128,128,K)(SH,GL,GL)(Block)
      load(B, SH)                  MatMul(128,128,K)(SH,SH,GL)(Block)      printed as A in the paper
      tile(bm/2,bn/4).to(Warp)     MatMul(64,32,K)(SH,SH,GL)(Warp)         8 warps
      tile(bm/16,bn/16).to(Thread) MatMul(8,8,K)(SH,SH,GL)(Thread)
      load(A, RF)                  MatMul(8,8,K)(RF,SH,GL)(Thread)
      load(B, RF)                  MatMul(8,8,K)(RF,RF,GL)(Thread)
      tile(1,1)                    MatMul(1,1,K)(RF,RF,GL)(Thread)
      done(dot.cu)                 the micro-kernel

All of K is in shared memory and in registers, so K must be a constant, and the tile that fits in shared memory shrinks as K
grows: `bm` and `bn` take the first values that fit on the target (128 up to K = 227 on sm_90).
"""

from fireiron import *

SIZES = (256, 256, 128)

bm = Tunable("bm", 128, 64, 32, 16)
bn = Tunable("bn", 128, 64, 32, 16)
copy = Move.tile(1, 1).to(Thread).layout(ColMajor).done()
element = Move.tile(1, 1).done()
dot = MicroKernel.of("dot.cu")

strategy = (
    MatMul.tile(bm, bn)
    .to(Block)
    .load(A, SH, copy)
    .load(B, SH, copy)
    .tile(bm // 2, bn // 4)
    .to(Warp)
    .tile(bm // 16, bn // 16)
    .to(Thread)
    .load(A, RF, element)
    .load(B, RF, element)
    .tile(1, 1)
    .done(dot)
)


def spec(M, N, K, **options):
    """Return the problem: column-major float32 by default; K must be an integer."""
    return MatMul(M, N, K, **options)(GL, GL, GL)(Kernel)
