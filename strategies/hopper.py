"""Hopper: TMA, wgmma, a ring of stages, a producer, blocks that stay.

    MatMul(M,N,K)(GL,GL,GL)(Kernel)
      repack(A), repack(B)             copied in front, where rows are no multiples of 16 bytes: TMA takes no others; and turned round,
                                       where elements have not 16 bits and do not lie along k: WGMMA reads no others
      tile(bm,bn).to(Block)            MatMul(128,256,K)(GL,GL,GL)(Block)
        .cluster(1, 1)                 blocks of a cluster load for each other what they have in common
        .rasterize(group_m=8).persistent()         a block for each multiprocessor takes one tile after the other
      epilog(RF, float32, ...)         MatMul(128,256,K)(GL,GL,RF)(Block)       converted, through shared memory, stored by TMA
      split(bk).pipeline(stages)       MatMul(128,256,64)(GL,GL,RF)(Block)      a ring
        .warp_specialize()                  filled by a warp of its own
      load(A, SH), load(B, SH)         MatMul(128,256,64)(SH,SH,RF)(Block)      TMA; stored as the products want to read it
      tile(wm,bn).to(Warpgroup)        MatMul(64,256,64)(SH,SH,RF)(Warpgroup)
      done()                           WGMMA

`wm` below 64, or of 96, is the transposed form, which has the 64 rows of the instruction along N: for few rows, and for small
matrices. As many blocks as there are tiles (`num_blocks`) is a block for each tile. Blocks walk in bands of tile rows,
of tile columns (`raster` 1) or, with `group_m` 1, along Hilbert's curve (2). C goes through shared memory in chunks of `epi_m` x `epi_n` a
warpgroup: with `epi_m` `wm` and `epi_n` `wn` at once, which waits and fences once, where there is room beside the stages. Clusters (`cluster_m` x
`cluster_n` tiles) ask L2 for less: for sizes whose rows are no multiples of 128 bytes, of which each row of a box takes two lines.

`integers` is the same for int8, whose products are added up in int32.

Barriers, phases, fences, waits and descriptors are inferred. One strategy for all storage orders and sizes: where TMA does not take C,
whose rows would have to be multiples of 16 bytes, all threads copy.
"""

from fireiron import *

SIZES = (4096, 4096, 4096)

bm = Tunable("bm", 128, 64, 192, 256, 96, 32, 16)
bn = Tunable("bn", 256, 64, 128, 192, 96, 160, 224, 32, 16)
bk = Tunable("bk", 64, 128, 32)
wm = Tunable("wm", 64, 128, 96, 32, 16)
wn = Tunable("wn", 256, 64, 128, 192, 96, 160, 224, 32, 16)
epi_m = Tunable("epi_m", 64, 32, 16)
epi_n = Tunable("epi_n", 64, 32, 16, 128, 192, 256)
stages = Tunable("stages", 4, 2, 3, 5, 6, 7, 8, 16)
group_m = Tunable("group_m", 8, 1, 2, 4, 16)
raster = Tunable("raster", 0, 1, 2)
num_blocks = Tunable("num_blocks", 132, 264, 65536)
cluster_m = Tunable("cluster_m", 1, 2, 4)
cluster_n = Tunable("cluster_n", 1, 2, 4)
producer_threads = Tunable("producer_threads", 32, 128)

store = Move.tile(wm, wn).to(Warpgroup).tile(epi_m, epi_n).unroll().load(SRC, SH, Move.done()).cast_on_copy().done()


def by_tiles(accumulator):
    """The product behind the copies, added up in a type."""
    return (
        MatMul.tile(bm, bn)
        .to(Block)
        .cluster(cluster_m, cluster_n)
        .rasterize(group_m, raster)
        .persistent(num_blocks)
        .epilog(RF, accumulator, Init.done(), store)
        .split(bk)
        .pipeline(stages)
        .warp_specialize(producer_threads)
        .load(A, SH, Move.done())
        .load(B, SH, Move.done())
        .tile(wm, wn)
        .to(Warpgroup)
        .done()
    )


product = by_tiles(float32)

strategy = MatMul.repack(A).repack(B).then(product)

integers = MatMul.repack(A).repack(B).then(by_tiles(int32))


def spec(M, N, K, **options):
    """Row-major halves, float32 inside, unless said otherwise."""
    options = {"dtype": float16, "c_dtype": float16, "A": RowMajor, "B": RowMajor, "C": RowMajor, **options}
    return MatMul(M, N, K, **options)(GL, GL, GL)(Kernel)


SMALLER = (
    {"bm": 64, "bn": 96, "bk": 64, "wm": 64, "wn": 96, "epi_m": 64, "epi_n": 32, "stages": 8, "group_m": 4},
    {"bm": 32, "bn": 64, "bk": 128, "wm": 32, "wn": 64, "epi_m": 32, "epi_n": 64, "stages": 4, "group_m": 4},
    {"bm": 16, "bn": 64, "bk": 64, "wm": 16, "wn": 64, "epi_m": 16, "epi_n": 64, "stages": 16, "group_m": 4},
)
"""More tiles as `defaults` tells them, for small matrices where `hopper_small` and `hopper_skinny` do not serve."""


def defaults(M, N, K):
    """Tiles for halves that were among the fastest on an H200."""
    return (
        {"bm": 128, "bn": 256, "bk": 64, "wm": 64, "wn": 256, "epi_m": 64, "epi_n": 256, "stages": 3, "group_m": 4},
        {"bm": 192, "bn": 192, "bk": 64, "wm": 64, "wn": 192, "epi_m": 64, "epi_n": 192, "stages": 3, "group_m": 4},
        {"bm": 128, "bn": 224, "bk": 64, "wm": 64, "wn": 224, "epi_m": 64, "epi_n": 32, "stages": 4, "group_m": 4},
        {"bm": 128, "bn": 192, "bk": 64, "wm": 64, "wn": 192, "epi_m": 64, "epi_n": 64, "stages": 5, "group_m": 4},
        {"bm": 128, "bn": 128, "bk": 64, "wm": 64, "wn": 128, "epi_m": 64, "epi_n": 64, "stages": 6, "group_m": 4},
        {"bm": 192, "bn": 96, "bk": 64, "wm": 64, "wn": 96, "epi_m": 64, "epi_n": 32, "stages": 5, "group_m": 4},
        {"bm": 96, "bn": 128, "bk": 64, "wm": 96, "wn": 64, "epi_m": 32, "epi_n": 64, "stages": 6, "group_m": 4},
        {"bm": 64, "bn": 256, "bk": 64, "wm": 64, "wn": 128, "epi_m": 64, "epi_n": 64, "stages": 5, "group_m": 4},
        {"bm": 64, "bn": 192, "bk": 64, "wm": 64, "wn": 96, "epi_m": 64, "epi_n": 32, "stages": 6, "group_m": 4},
        {"bm": 64, "bn": 128, "bk": 64, "wm": 64, "wn": 64, "epi_m": 64, "epi_n": 64, "stages": 8, "group_m": 4},
        {"bm": 64, "bn": 64, "bk": 64, "wm": 64, "wn": 64, "epi_m": 64, "epi_n": 64, "stages": 8, "group_m": 4},
    )
