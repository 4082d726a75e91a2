"""Hopper GEMM for small matrices: small tiles, one block per tile, one warpgroup, a deep circular buffer.

    MatMul(M,N,K)(GL,GL,GL)(Kernel)
      tile(bm,bn).to(Block)            MatMul(64,32,K)(GL,GL,GL)(Block)         enough blocks to occupy all SMs
        .rasterize(group_m=4)                       adjacent blocks share rows and columns in L2
      epilog(RF, float32, ...)         MatMul(64,32,K)(GL,GL,RF)(Block)         convert, store through shared memory by TMA
      split(bk).pipeline(stages)       MatMul(64,32,128)(GL,GL,RF)(Block)       circular buffer; most loads of a block are in flight at once
        .warp_specialize()                  a producer warp fills it
        .mma_in_flight(1)                   the MMAs of the next iteration are issued before those of this one complete
      load(A, SH), load(B, SH)         MatMul(64,32,128)(SH,SH,RF)(Block)       TMA
      tile(wm,wn).to(Warpgroup)        MatMul(64,32,128)(SH,SH,RF)(Warpgroup)
      done()                           WGMMA

Up to about 768 x 768 x 768 a kernel takes a few microseconds. The first load, the last store and the waves of blocks limit it, not the
tensor cores. Therefore tiles have one warpgroup, 64 x 16, 64 x 32 or 64 x 96, and long steps along k. A tile of 16, 32 or 96 rows by
64 columns is the transposed form: the 64 rows of the instruction are along N.
"""

from fireiron import *

SIZES = (512, 512, 512)

bm = Tunable("bm", 64, 16, 32, 96)
bn = Tunable("bn", 32, 16, 64, 96)
bk = Tunable("bk", 128, 64, 256)
wm = Tunable("wm", 64, 16, 32, 96)
wn = Tunable("wn", 32, 16, 64, 96)
epi_m = Tunable("epi_m", 64, 32, 16)
epi_n = Tunable("epi_n", 32, 64, 16)
stages = Tunable("stages", 4, 1, 2, 3, 6, 8, 10)
group_m = Tunable("group_m", 4, 1, 2, 8)
mma_in_flight = Tunable("mma_in_flight", 1, 0)

DEEP = 512
"""Elements along k that four stages hold."""

store = Move.tile(wm, wn).to(Warpgroup).tile(epi_m, epi_n).unroll().load(SRC, SH, Move.done()).cast_on_copy().done()

strategy = (
    MatMul.tile(bm, bn)
    .to(Block)
    .rasterize(group_m=group_m)
    .epilog(RF, float32, Init.done(), store)
    .split(bk)
    .pipeline(stages)
    .warp_specialize()
    .mma_in_flight(mma_in_flight)
    .load(A, SH, Move.done())
    .load(B, SH, Move.done())
    .tile(wm, wn)
    .to(Warpgroup)
    .done()
)


def spec(M, N, K, **options):
    """Return the problem: row-major float16 with float32 accumulators by default."""
    options = {"dtype": float16, "c_dtype": float16, "A": RowMajor, "B": RowMajor, "C": RowMajor, **options}
    return MatMul(M, N, K, **options)(GL, GL, GL)(Kernel)


def defaults(M, N, K):
    """Return tiles of one warpgroup that were among the fastest for float16 on an H200; a large K takes more stages."""
    deep = K > DEEP
    return (
        {"bm": 64, "bn": 96, "bk": 64, "wm": 64, "wn": 96, "epi_m": 64, "epi_n": 32, "stages": 8},
        {"bm": 32, "bn": 64, "bk": 128, "wm": 32, "wn": 64, "epi_m": 32, "epi_n": 64, "stages": 8 if deep else 4},
        {"bm": 16, "bn": 64, "bk": 128, "wm": 16, "wn": 64, "epi_m": 16, "epi_n": 64, "stages": 8 if deep else 4},
    )
