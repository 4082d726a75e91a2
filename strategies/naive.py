"""The simple GEMM of Graphene's Figure 8: no copies, every multiply-add reads its operands from global memory.

    MatMul(M,N,K)(GL,GL,GL)(Kernel)
      tile(128,128).to(Block)      MatMul(128,128,K)(GL,GL,GL)(Block)
      tile(8,8).to(Thread)         MatMul(8,8,K)(GL,GL,GL)(Thread)       256 threads
      split(1)                     MatMul(8,8,1)(GL,GL,GL)(Thread)
      tile(1,1)                    MatMul(1,1,1)(GL,GL,GL)(Thread)
      done()                       a scalar multiply-add with implicit loads and a store

A demonstration, not a fast kernel.
"""

from fireiron import *

SIZES = (1024, 1024, 1024)

strategy = MatMul.tile(128, 128).to(Block).layout(ColMajor).tile(8, 8).to(Thread).layout(ColMajor).split(1).tile(1, 1).unroll().done()


def spec(M, N, K, **options):
    """Return the problem: column-major float32 by default."""
    return MatMul(M, N, K, **options)(GL, GL, GL)(Kernel)
