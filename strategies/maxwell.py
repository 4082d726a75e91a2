"""Listing 4 of the Fireiron paper: the kernel tuned for Maxwell. Vector loads, strided thread tiles, swizzled lanes.

    MatMul(M,N,K)(GL,GL,GL)(Kernel)
      tile(128,128).to(Block)          MatMul(128,128,K)(GL,GL,GL)(Block)
      epilog(RF, init, store)          MatMul(128,128,K)(GL,GL,RF)(Block)      64 registers per thread
      split(8).sync()                  MatMul(128,128,8)(GL,GL,RF)(Block)
      load(A, SH).no_sync()            MatMul(128,128,8)(SH,GL,RF)(Block)
      load(B, SH).pad(4)               MatMul(128,128,8)(SH,SH,RF)(Block)
      tile(64,32).to(Warp)             MatMul(64,32,8)(SH,SH,RF)(Warp)         8 warps
      tile(Strided((4,32),(4,16)))     MatMul(8,8,8)(SH,SH,RF)(Lane)           four groups of 4 x 4 elements
      split(1).unroll()                MatMul(8,8,1)(SH,SH,RF)(Lane)
      load(A, RF)                      MatMul(8,8,1)(RF,SH,RF)(Lane)           two loads of 4 elements
      load(B, RF)                      MatMul(8,8,1)(RF,RF,RF)(Lane)
      tile(1,1).unroll()               MatMul(1,1,1)(RF,RF,RF)(Lane)
      done()                           FFMA, or HFMA in half precision

The store is a micro-kernel that stages columns in shared memory; it uses the compute path's map. Loads coalesce
for column-major A and B, the paper's default; `hgemm_nt` swaps the load of B for one that coalesces along n.
"""

from fireiron import *

SIZES = (1536, 1024, 2048)


def swizz(uid):
    """Return the permutation of the lanes in line 3 of Listing 4."""
    return ((uid >> 1) & 0x07) | (uid & 0x30) | ((uid & 0x01) << 3)


store_cuda = MicroKernel.of("store_through_shared.cu", scratch_bytes=16 * 132 * 8)
init = Init.tile(64, 32).to(Warp).tile(8, 8).to(Lane).tile(1, 1).unroll().done()
load_a = Move.tile(128, 1).to(Warp).tile(64, 1).unroll().tile(2, 1).to(Lane).layout(ColMajor).done()
load_b = Move.tile(8, 16).to(Warp).tile(8, 4).unroll().tile(1, 1).to(Lane).layout(ColMajor).done()

strategy = (
    MatMul.tile(128, 128)
    .to(Block)
    .layout(ColMajor)
    .epilog(RF, init, Move.done(store_cuda))
    .split(8)
    .sync()
    .load(A, SH, load_a)
    .to_col_major()
    .no_sync()
    .load(B, SH, load_b)
    .to_row_major()
    .pad(4)
    .tile(64, 32)
    .to(Warp)
    .tile(Strided((4, 32), (4, 16)))
    .to(Lane)
    .layout(ColMajor)
    .swizzle(swizz)
    .split(1)
    .unroll()
    .load(A, RF, Move.tile(4, 1).unroll().done())
    .load(B, RF, Move.tile(1, 4).unroll().done())
    .tile(1, 1)
    .unroll()
    .done()
)


def spec(M, N, K, **options):
    """Return the problem: column-major float32 by default."""
    return MatMul(M, N, K, **options)(GL, GL, GL)(Kernel)
