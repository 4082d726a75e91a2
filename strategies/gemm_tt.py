"""GEMM TT: A and B transposed (in BLAS terms, column-major), tiled through shared memory and registers.

MatMul(M,N,K)(GL,GL,GL)(Kernel)
  tile(bm,bn).to(Block)            MatMul(128,128,K)(GL,GL,GL)(Block)
  epilog(RF, init, store)          MatMul(128,128,K)(GL,GL,RF)(Block)
  split(bk)                        MatMul(128,128,8)(GL,GL,RF)(Block)
  load(A, SH).pad(4).no_sync()     MatMul(128,128,8)(SH,GL,RF)(Block)      vectors of 1x4 along k
  load(B, SH).pad(4)               MatMul(128,128,8)(SH,SH,RF)(Block)      vectors of 1x4 along n
  tile(64,32).to(Warp)             MatMul(64,32,8)(SH,SH,RF)(Warp)
  tile(Strided((4,32),(4,16)))     MatMul(8,8,8)(SH,SH,RF)(Lane)
  split(1).unroll()                MatMul(8,8,1)(SH,SH,RF)(Lane)
  load(A, RF), load(B, RF)         MatMul(8,8,1)(RF,RF,RF)(Lane)
  tile(1,1).unroll()               MatMul(1,1,1)(RF,RF,RF)(Lane)
  done()                           FFMA
"""

from fireiron import *
from fireiron.strategies._gemm import gemm

SIZES = (1024, 1024, 1024)

strategy = gemm(RowMajor, RowMajor)


def spec(M, N, K, **options):
    """Return the problem: A RowMajor, B RowMajor, C ColMajor, float32 by default."""
    return MatMul(M, N, K, **{"A": RowMajor, "B": RowMajor} | options)(GL, GL, GL)(Kernel)
