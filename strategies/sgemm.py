"""GEMM in float32 without tensor cores at library speed: software-pipelined cp.async, fragments loaded one step early.

MatMul(M,N,K)(GL,GL,GL)(Kernel)
  tile(128,128).to(Block).rasterize(group_m=16).min_blocks_per_sm(2)
  epilog(RF, init, store)          MatMul(128,128,K)(GL,GL,RF)(Block)      128 registers per thread
  split(16).pipeline(4)            MatMul(128,128,16)(GL,GL,RF)(Block)
  load(A, SH), load(B, SH)         MatMul(128,128,16)(SH,SH,RF)(Block)     m and n contiguous, for any source
  tile(64,64).to(Warp)             MatMul(64,64,16)(SH,SH,RF)(Warp)
  tile(Strided((4,16),(4,32)))     MatMul(16,8,16)(SH,SH,RF)(Lane)         lanes interleaved
  split(1).pipeline(2)             MatMul(16,8,1)(SH,SH,RF)(Lane)          fragments loaded one step early
  load(A, RF), load(B, RF)         MatMul(16,8,1)(RF,RF,RF)(Lane)
  tile(16,1).tile(1,1).unroll()    MatMul(1,1,1)(RF,RF,RF)(Lane)           the long side innermost
  done()                           FFMA
"""

from fireiron import *

SIZES = (4096, 4096, 4096)

bk = Tunable("bk", 16, 8)
stages = Tunable("stages", 4, 3)


def interleaved(uid):
    """Return the order of lanes in which a quarter-warp reads both operands without bank conflicts."""
    return (uid & 1) * 8 + ((uid >> 4) << 4) + ((uid >> 1) & 7)


lanes = Strided((4, 16), (4, 32))
init = Init.tile(64, 64).to(Warp).tile(lanes).to(Lane).swizzle(interleaved).tile(1, 1).unroll().done()
store = Move.tile(64, 64).to(Warp).tile(lanes).to(Lane).swizzle(interleaved).tile(4, 1).unroll().done()

strategy = (
    MatMul.tile(128, 128)
    .to(Block)
    .rasterize(group_m=16)
    .min_blocks_per_sm(2)
    .epilog(RF, init, store)
    .split(bk)
    .pipeline(stages)
    .load(A, SH, Move.coalesced_copy(4).done())
    .to_col_major()
    .load(B, SH, Move.tile(8, 16).unroll().tile(1, 1).to(Thread).layout(ColMajor).done())
    .to_row_major()
    .pad(4)
    .tile(64, 64)
    .to(Warp)
    .tile(lanes)
    .to(Lane)
    .swizzle(interleaved)
    .split(1)
    .unroll()
    .pipeline(2)
    .load(A, RF, Move.tile(4, 1).unroll().done())
    .load(B, RF, Move.tile(1, 4).unroll().done())
    .tile(16, 1)
    .unroll()
    .tile(1, 1)
    .unroll()
    .done()
)


def spec(M, N, K, **options):
    """Return the problem: column-major float32 by default."""
    return MatMul(M, N, K, **options)(GL, GL, GL)(Kernel)
