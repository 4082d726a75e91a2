"""Listing 2 of the Fireiron paper: the kernel of Figure 1, unrefined. Barriers are inferred, the missing one too.

MatMul(M,N,K)(GL,GL,GL)(Kernel)
  tile(128,128).to(Block)      MatMul(128,128,K)(GL,GL,GL)(Block)
  epilog(RF, init, store)      MatMul(128,128,K)(GL,GL,RF)(Block)
  split(8)                     MatMul(128,128,8)(GL,GL,RF)(Block)
  load(A, SH)                  MatMul(128,128,8)(SH,GL,RF)(Block)
  load(B, SH)                  MatMul(128,128,8)(SH,SH,RF)(Block)      printed as A in the paper
  tile(64,32).to(Warp)         MatMul(64,32,8)(SH,SH,RF)(Warp)         8 warps
  tile(8,8).to(Thread)         MatMul(8,8,8)(SH,SH,RF)(Thread)
  split(1)                     MatMul(8,8,1)(SH,SH,RF)(Thread)
  load(A, RF)                  MatMul(8,8,1)(RF,SH,RF)(Thread)
  load(B, RF)                  MatMul(8,8,1)(RF,RF,RF)(Thread)
  tile(1,1)                    MatMul(1,1,1)(RF,RF,RF)(Thread)
  done()                       FFMA
"""

from fireiron import *

SIZES = (1024, 1024, 1024)

copy = Move.tile(1, 1).to(Thread).done()
element = Move.tile(1, 1).done()
init = Init.tile(64, 32).to(Warp).tile(8, 8).to(Thread).tile(1, 1).done()
store = Move.tile(64, 32).to(Warp).tile(8, 8).to(Thread).tile(1, 1).done()

strategy = (
    MatMul.tile(128, 128)
    .to(Block)
    .epilog(RF, init, store)
    .split(8)
    .load(A, SH, copy)
    .load(B, SH, copy)
    .tile(64, 32)
    .to(Warp)
    .tile(8, 8)
    .to(Thread)
    .split(1)
    .load(A, RF, element)
    .load(B, RF, element)
    .tile(1, 1)
    .done()
)


def spec(M, N, K, **options):
    """Return the problem: column-major float32 by default."""
    return MatMul(M, N, K, **options)(GL, GL, GL)(Kernel)
