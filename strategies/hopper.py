"""Persistent Hopper GEMM: producer warp, TMA, circular buffer, wgmma.

    MatMul(M,N,K)(GL,GL,GL)(Kernel)
      repack(A), repack(B)             a preceding copy kernel, if TMA or wgmma cannot read the operand (see below)
      tile(bm,bn).to(Block)            MatMul(128,256,K)(GL,GL,GL)(Block)
        .cluster(1, 1)                 blocks of a cluster share loads by multicast
        .rasterize(group_m=8).persistent()         one block per SM computes several tiles
      epilog(RF, float32, ...)         MatMul(128,256,K)(GL,GL,RF)(Block)       convert, store through shared memory by TMA
      split(bk).pipeline(stages)       MatMul(128,256,64)(GL,GL,RF)(Block)      circular buffer
        .warp_specialize()                  a producer warp fills it
      load(A, SH), load(B, SH)         MatMul(128,256,64)(SH,SH,RF)(Block)      TMA, in the layout that wgmma reads
      tile(wm,bn).to(Warpgroup)        MatMul(64,256,64)(SH,SH,RF)(Warpgroup)
      done()                           WGMMA

`repack` copies an operand whose rows are not multiples of 16 bytes, which TMA requires. It transposes an operand that does not have 16-bit
elements and is not contiguous along k, which wgmma requires. One strategy serves all storage orders and sizes: if TMA cannot store C,
because its rows are not multiples of 16 bytes, all threads copy it.

A `wm` below 64, or of 96, selects the transposed form: the 64 rows of the instruction are along N. It suits few rows and small matrices.
With `num_blocks` at least the number of tiles each tile has its own block. `raster` is 0 for groups of `group_m` tile rows, 1 for groups
of tile columns, 2 (with `group_m` 1) for a Hilbert curve. C passes through shared memory in pieces of `epi_m` x `epi_n` per warpgroup.
With `epi_m` equal to `wm` and `epi_n` equal to `wn` there is one piece, and so one wait and one fence, if it fits next to the stages.
Clusters of `cluster_m` x `cluster_n` tiles reduce L2 traffic. They help if rows are not multiples of 128 bytes, because then each row
of a TMA box takes two cache lines.

`any_height` has the transposed form with tiles of any height that is a multiple of 8. Rows of C can be divided equally among tiles, so that
their number is just below a multiple of the SMs, and rows of B have complete L2 lines.

`integers` is the same for int8, with int32 accumulators. In `storing` a separate warp stores C from a circular buffer of `store_stages`
stages, each with one piece of every warpgroup: the consumers write the next piece, or compute the next tile, while TMA reads the last one.
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


def by_tiles(accumulator, bm=bm, bn=bn, wm=wm, wn=wn, epi_m=epi_m, epi_n=epi_n, stages=stages, clusters=(cluster_m, cluster_n)):
    """Return the strategy after `repack`, which accumulates in the given type."""
    store = Move.tile(wm, wn).to(Warpgroup).tile(epi_m, epi_n).unroll().load(SRC, SH, Move.done()).cast_on_copy().done()
    return (
        MatMul.tile(bm, bn)
        .to(Block)
        .cluster(*clusters)
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

LEAST_HEIGHT = 8
MOST_HEIGHT = 248
HEIGHTS = tuple(height for height in range(LEAST_HEIGHT, MOST_HEIGHT + 1, 8) if height % 64)
"""Tile heights of `any_height`: the widths of `wgmma` that do not select the other form."""

LEAST_STAGES = 3
MOST_STAGES = 12
"""The most stages of `any_height`. On an H200, 16 were no faster than 8 for tiles of 40 x 64."""

height = Tunable("bm", 144, *(one for one in HEIGHTS if one != 144))


def of_any_height():
    """Return `any_height` after `repack`."""
    return by_tiles(
        float32,
        bm=height,
        bn=Tunable("bn", 128, 64, 192, 256),
        wm=height,
        wn=Tunable("wn", 64, 128),
        epi_m=Tunable("epi_m", 72, *(rows for rows in range(8, MOST_HEIGHT + 1, 8) if rows != 72)),
        epi_n=Tunable("epi_n", 64),
        stages=Tunable("stages", 4, 2, 3, *range(5, MOST_STAGES + 1)),
        clusters=tuple(Tunable(name, 1, 2, 4, 8) for name in ("cluster_m", "cluster_n")),
    )


any_height = MatMul.repack(A).repack(B).then(of_any_height())

store_stages = Tunable("store_stages", 2, 1, 3, 4)

storing = strategy.at(Split).refine(WarpSpecialize(store_stages=store_stages))


def spec(M, N, K, **options):
    """Return the problem: row-major float16 with float32 accumulators by default."""
    options = {"dtype": float16, "c_dtype": float16, "A": RowMajor, "B": RowMajor, "C": RowMajor, **options}
    return MatMul(M, N, K, **options)(GL, GL, GL)(Kernel)


LONG_EPILOGUE = {"bm": 192, "bn": 128, "bk": 64, "wm": 64, "wn": 128, "epi_m": 64, "epi_n": 64, "stages": 4, "group_m": 8}
"""The tile for an epilogue with random numbers. With 64 elements per thread instead of 128, it has half of the instructions, which are
unrolled. On an H200, GELU, dropout and residual took 475 us with it, and 616 us with 128 x 256 (8192 x 4096 x 4096)."""

SMALLER = (
    {"bm": 64, "bn": 96, "bk": 64, "wm": 64, "wn": 96, "epi_m": 64, "epi_n": 32, "stages": 8, "group_m": 4},
    {"bm": 32, "bn": 64, "bk": 128, "wm": 32, "wn": 64, "epi_m": 32, "epi_n": 64, "stages": 4, "group_m": 4},
    {"bm": 16, "bn": 64, "bk": 64, "wm": 16, "wn": 64, "epi_m": 16, "epi_n": 64, "stages": 16, "group_m": 4},
)
"""Further tiles in the form of `defaults`, for small matrices that `hopper_small` and `hopper_skinny` do not support."""


def defaults(M, N, K):
    """Return tiles that were among the fastest for float16 on an H200."""
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
        {"bm": 64, "bn": 64, "bk": 128, "wm": 64, "wn": 64, "epi_m": 64, "epi_n": 64, "stages": 6, "group_m": 4},
    )


GROUP_WIDTHS = {64: 64, 128: 64, 192: 64, 256: 128}
"""The width of a warpgroup's part by the width of a tile of `any_height`: at most three warpgroups, because four have too few registers."""

MOST_HEIGHTS = {64: 248, 128: 248, 192: 184, 256: 184}
"""The greatest height by width: a thread has half as many accumulators, or as many for a width of 256."""

MOST_WITHOUT_SETMAXNREG = 136
"""Above this height, warpgroups of 128 columns need the registers of a producer warpgroup."""

ROOM = 227 * 1024 - 2048
"""Bytes of shared memory for stages and pieces of C."""


SMALL_SIDES = 136
"""Sum of the sides up to which a tile of `any_height` has steps of 128 along k: blocks of a cluster wait for each other in each step."""

PIECES = (24, 72)
"""The least and the greatest number of rows of a piece of C in float16; a piece may also be all rows of a tile."""


def heights(M, N, batch=1, result_bytes=2):
    """Return a tile of `any_height` for each width and each number of tiles along the rows of C: the least height that suffices.

    So few rows are out of bounds, which TMA copies slowly. `batch` is the number of matrices, and `result_bytes` the size of an element
    of C.
    """
    tiles = {}
    for width, most in MOST_HEIGHTS.items():
        for height in HEIGHTS[::-1]:
            if height <= most:
                tiles[width, -(-M // height)] = (height, width)
    values = [_of_height(*tile, -(-M // tile[0]) * -(-N // tile[1]) * batch, result_bytes) for tile in tiles.values()]
    return tuple(one for one in values if one["stages"] >= LEAST_STAGES)


def _of_height(height, width, tiles, result_bytes=2):
    """Return the values of a tile with as many stages as fit next to pieces of C."""
    least, most = (rows * 2 // result_bytes for rows in PIECES)
    pieces = [rows for rows in range(8, height + 1, 8) if height % rows == 0 and (least <= rows <= most or rows == height)]
    bk = 128 if height + width <= SMALL_SIDES else 64
    fitting = [(min(MOST_STAGES, (ROOM - width * rows * result_bytes) // ((height + width) * 2 * bk)), rows) for rows in pieces]
    stages, rows = max(fitting, key=lambda pair: (pair[0], -pair[1]))
    group = GROUP_WIDTHS[width]
    own = {"bm": height, "bn": width, "bk": bk, "wn": group, "epi_m": rows, "epi_n": 64}
    if group > 64 and height > MOST_WITHOUT_SETMAXNREG:
        own["producer_threads"] = 128
    return {**own, "stages": stages, "group_m": 4, "num_blocks": 132 if tiles > 132 else 65536}
