"""Hopper GEMM with Stream-K: persistent blocks that share the iterations of the last tiles evenly.

    MatMul(M,N,K)(GL,GL,GL)(Kernel)
      tile(bm,bn).to(Block)            MatMul(128,256,K)(GL,GL,GL)(Block)
        .rasterize(group_m)            grouped tile order for L2 reuse
        .stream_k(num_blocks, bk, waves)           each block computes equally many iterations
      epilog(RF, float32, ...)         MatMul(128,256,K)(GL,GL,RF)(Block)       convert, store through shared memory by TMA
      split(bk).pipeline(stages)       MatMul(128,256,64)(GL,GL,RF)(Block)      circular buffer
        .warp_specialize()             a producer warp fills it
      load(A, SH), load(B, SH)         MatMul(128,256,64)(SH,SH,RF)(Block)      TMA, in the layout that wgmma reads
      tile(wm,bn).to(Warpgroup)        MatMul(64,256,64)(SH,SH,RF)(Warpgroup)
      done()                           WGMMA

For sizes whose tiles are not a multiple of the SMs: in `hopper`, the last wave uses only some SMs. Here a tile of the partial wave, and of
`waves` complete waves, may have several blocks. They store parts of the sum in a workspace, and the block that finishes last adds them in
the order of k. So the result is the same in each run. The sizes are constants.
"""

from fireiron import *

SIZES = (1536, 1024, 2048)

bm = Tunable("bm", 128, 64, 192, 256)
bn = Tunable("bn", 256, 64, 96, 128, 192)
bk = Tunable("bk", 64, 128, 32)
wm = Tunable("wm", 64, 128)
wn = Tunable("wn", 256, 64, 96, 128, 192)
epi_m = Tunable("epi_m", 64, 32, 16)
epi_n = Tunable("epi_n", 64, 32, 16, 128, 192, 256)
stages = Tunable("stages", 4, 2, 3, 5, 6, 7, 8)
group_m = Tunable("group_m", 4, 1, 2, 8, 16)
num_blocks = Tunable("num_blocks", 132, 264)
waves = Tunable("waves", 1, 0, 2, 4, 65536)

store = Move.tile(wm, wn).to(Warpgroup).tile(epi_m, epi_n).unroll().load(SRC, SH, Move.done()).cast_on_copy().done()

strategy = (
    MatMul.tile(bm, bn)
    .to(Block)
    .rasterize(group_m)
    .stream_k(num_blocks, bk, waves)
    .epilog(RF, float32, Init.done(), store)
    .split(bk)
    .pipeline(stages)
    .warp_specialize(32)
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
    """Return tiles that were among the fastest for float16 on an H200."""
    return (
        {"bm": 128, "bn": 256, "bk": 64, "wm": 64, "wn": 256, "epi_m": 64, "epi_n": 256, "stages": 3},
        {"bm": 128, "bn": 192, "bk": 64, "wm": 64, "wn": 192, "epi_m": 64, "epi_n": 64, "stages": 5},
        {"bm": 128, "bn": 128, "bk": 64, "wm": 64, "wn": 128, "epi_m": 64, "epi_n": 64, "stages": 6},
    )
