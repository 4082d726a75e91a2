"""Listing 5 of the Fireiron paper: WMMA with padded tiles of A and B in shared memory, and a store through shared memory.

    MatMul(M,N,K)(GL,GL,GL)(Kernel)
      tile(128,128).to(Block)          MatMul(128,128,K)(GL,GL,GL)(Block)
      epilog(FR, init, store)          MatMul(128,128,K)(GL,GL,FR)(Block)      8 fragments of C per warp
        store: load(src, SH)           Move(128,128)(SH,GL)(Block)             in the memory of A and B, which are dead
               tile(16,128).to(Warp)   Move(16,128)(SH,GL)(Warp)
               tile(1,128).unroll()    Move(1,128)(SH,GL)(Warp)
               tile(1,4).to(Lane)      Move(1,4)(SH,GL)(Lane)                  16 bytes per lane
      split(128).sync()                MatMul(128,128,128)(GL,GL,FR)(Block)
      load(A, SH).no_sync().pad(8)     MatMul(128,128,128)(SH,GL,FR)(Block)    16 bytes per lane
      load(B, SH).pad(8)               MatMul(128,128,128)(SH,SH,FR)(Block)    16 bytes per lane
      tile(64,32).to(Warp)             MatMul(64,32,128)(SH,SH,FR)(Warp)       8 warps
      split(16).unroll()               MatMul(64,32,16)(SH,SH,FR)(Warp)
      load(A, FR), load(B, FR)         MatMul(64,32,16)(FR,FR,FR)(Warp)        load_matrix_sync
      tile(16,16).unroll()             MatMul(16,16,16)(FR,FR,FR)(Warp)
      done()                           mma_sync

It is the second kernel of NVIDIA's sample cudaTensorCoreGemm. Two padded tiles of 128 x 128 float16 take 69,632 bytes of
shared memory; a block on sm_75 has 65,536, so there `bk` is 64.

`listing_5` is the listing as printed. `strategy` omits one refinement: unrolled, the loop over K is K/bk copies of its
body, which needs 186 registers and takes 2.4 times as long on an H200 (perf/results).
"""

from fireiron import *

SIZES = (1024, 1024, 1024)

fragment = FR(16, 16, 16)
bk = Tunable("bk", 128, 64, 32)
rows = 256 // bk  # number of rows of bk elements that a warp copies at once, 8 elements per lane

init = Init.tile(64, 32).to(Warp).tile(16, 16).unroll().done()
to_shared = Move.tile(64, 32).to(Warp).tile(16, 16).unroll().done()
store = Move.load(SRC, SH, to_shared).reuse_buffer().tile(16, 128).to(Warp).tile(1, 128).unroll().tile(1, 4).to(Lane).done()
load_a = Move.tile(16, bk).to(Warp).tile(rows, bk).unroll().tile(1, 8).to(Lane).done()
load_b = Move.tile(bk, 16).to(Warp).tile(bk, rows).unroll().tile(8, 1).to(Lane).layout(ColMajor).done()

listing_5 = (
    MatMul.tile(128, 128)
    .to(Block)
    .epilog(fragment, init, store)
    .split(bk)
    .sync()
    .unroll()
    .load(A, SH, load_a)
    .no_sync()
    .pad(8)
    .load(B, SH, load_b)
    .pad(8)
    .tile(64, 32)
    .to(Warp)
    .split(16)
    .unroll()
    .load(A, fragment, Move.tile(16, 16).unroll().done())
    .load(B, fragment, Move.tile(16, 16).unroll().done())
    .tile(16, 16)
    .unroll()
    .done()
)

strategy = listing_5.at(Split).unrefine(Unroll)


def spec(M, N, K, **options):
    """Return the problem: float16 with float32 accumulators and results; by default A and C are row-major, B column-major."""
    usual = {"dtype": float16, "c_dtype": float32, "accumulator": float32, "A": RowMajor, "C": RowMajor}
    return MatMul(M, N, K, **usual | options)(GL, GL, GL)(Kernel)
