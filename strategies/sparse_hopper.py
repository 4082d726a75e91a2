"""Persistent Hopper GEMM with a 2:4 sparse A: producer warp, TMA, circular buffers, wgmma.sp.

    SparseMatMul(M,N,K)(GL,GL,GL,GL)(Kernel)
      tile(bm,bn).to(Block)            SparseMatMul(128,192,K)(GL,GL,GL,GL)(Block)
        .rasterize(group_m).persistent()      one block per SM computes several tiles
      epilog(RF, float32, ...)         SparseMatMul(128,192,K)(GL,GL,GL,RF)(Block)    convert, store through shared memory by TMA
      split(bk).pipeline(stages)       SparseMatMul(128,192,128)(GL,GL,GL,RF)(Block)  circular buffers
        .warp_specialize()                  a producer warp fills them
      load(A, SH), load("E", SH), load(B, SH)      SparseMatMul(128,192,128)(SH,SH,SH,RF)(Block)      TMA
      tile(wm,bn).to(Warpgroup)        SparseMatMul(64,192,128)(SH,SH,SH,RF)(Warpgroup)
      load("E", RF)                    SparseMatMul(64,192,128)(SH,RF,SH,RF)(Warpgroup)
      done()                           wgmma.sp

TMA copies rows of at least 16 bytes. So for row-major metadata `bk` is at least 128, and K is a multiple of 128; for other K, all threads
copy. `by_columns` is for column-major metadata, `E=ColMajor`, whose tiles have columns of `bm` bytes: `bk` may be 64, and M and K are
multiples of 16. `compress_2_4` returns A and E. `integers` is the same as `strategy` for int8, with int32 accumulators.
"""

from fireiron import *

SIZES = (4096, 4096, 4096)

bm = Tunable("bm", 128, 64, 192, 256)
bn = Tunable("bn", 128, 64, 192, 256, 96)
bk = Tunable("bk", 128, 64, 256)
wm = Tunable("wm", 64, 128)
wn = Tunable("wn", 128, 64, 192, 256, 96)
epi_m = Tunable("epi_m", 64)
epi_n = Tunable("epi_n", 64, 32, 128)
stages = Tunable("stages", 3, 2, 4, 5, 6)
group_m = Tunable("group_m", 8, 1, 4, 16)
num_blocks = Tunable("num_blocks", 132, 264, 65536)
producer_threads = Tunable("producer_threads", 32, 128)

store = Move.tile(wm, wn).to(Warpgroup).tile(epi_m, epi_n).unroll().load(SRC, SH, Move.done()).cast_on_copy().done()


def by_tiles(accumulator, order=RowMajor):
    """Return the strategy that accumulates in the given type; `order` is the storage order of the metadata."""
    metadata = (
        SparseMatMul.tile(bm, bn)
        .to(Block)
        .rasterize(group_m)
        .persistent(num_blocks)
        .epilog(RF, accumulator, Init.done(), store)
        .split(bk)
        .pipeline(stages)
        .warp_specialize(producer_threads)
        .load(A, SH, Move.done())
        .load("E", SH, Move.done())
    )
    metadata = metadata.to_row_major() if order == RowMajor else metadata.to_col_major().swizzle_storage()
    return metadata.load(B, SH, Move.done()).tile(wm, wn).to(Warpgroup).load("E", RF, Move.done()).done()


strategy = by_tiles(float32)

by_columns = by_tiles(float32, ColMajor)

integers = by_tiles(int32)


def spec(M, N, K, **options):
    """Return the problem: row-major float16 with float32 accumulators by default; `A` is the storage order of the metadata, too."""
    options = {"dtype": float16, "c_dtype": float16, "A": RowMajor, "B": RowMajor, "C": RowMajor, **options}
    return SparseMatMul(M, N, K, **{"E": options["A"], **options})(GL, GL, GL, GL)(Kernel)


def defaults(M, N, K):
    """Return tiles for large and for small matrices."""
    return (
        {"bm": 128, "bn": 192, "bk": 128, "wm": 64, "wn": 192, "epi_m": 64, "epi_n": 64, "stages": 3, "group_m": 8},
        {"bm": 128, "bn": 128, "bk": 128, "wm": 64, "wn": 128, "epi_m": 64, "epi_n": 64, "stages": 4, "group_m": 8},
        {"bm": 128, "bn": 256, "bk": 128, "wm": 64, "wn": 256, "epi_m": 64, "epi_n": 64, "stages": 2, "group_m": 8},
        {"bm": 64, "bn": 64, "bk": 128, "wm": 64, "wn": 64, "epi_m": 64, "epi_n": 64, "stages": 5, "group_m": 8},
    )
