"""Hopper GEMM for few rows or few columns: limited by reading the large matrix from memory.

    MatMul(M,N,K)(GL,GL,GL)(Kernel)
      tile(bm,bn).to(Block)            MatMul(16,64,K)(GL,GL,GL)(Block)         all rows, 64 columns: the transposed form of wgmma
      epilog(RF, float32, ...)         MatMul(16,64,K)(GL,GL,RF)(Block)         convert, store through shared memory by TMA
      split(bk).pipeline(stages)       MatMul(16,64,64)(GL,GL,RF)(Block)        deep circular buffer: 160 KB in flight per block
        .warp_specialize()                  a producer warp fills it
        .mma_in_flight(1)
        .stagger_blocks(1)                  blocks start at different offsets along k
      load(A, SH), load(B, SH)         MatMul(16,64,64)(SH,SH,RF)(Block)        TMA
      tile(bm,bn).to(Warpgroup)        MatMul(16,64,64)(SH,SH,RF)(Warpgroup)
      done()                           WGMMA

With up to 64 rows each element of B is read once and used little. The 64 rows of the instruction are along N, so few rows of A waste
nothing. For few columns `bm` is 64 and `bn` small, the form that is not transposed. Each tile has its own block: for N = 4096 there are 64,
which suffices, because each has many loads in flight. If B is column-major, each block reads its own rows, and all blocks read the same
columns at the same time, which map to few memory channels. With `stagger` 1 each block therefore starts one step later than the previous.

`split_k` is for problems with fewer tiles: `num_splits` blocks share a tile, each computes a part of K, and adds its result to C, which is
float32, by atomic additions.
"""

from fireiron import *

SIZES = (16, 4096, 4096)

bm = Tunable("bm", 16, 8, 32, 64)
bn = Tunable("bn", 64, 8, 16, 32)
bk = Tunable("bk", 64, 128, 256)
epi_m = Tunable("epi_m", 16, 8, 32, 64)
epi_n = Tunable("epi_n", 64, 8, 16, 32)
stages = Tunable("stages", 16, 2, 4, 6, 8, 10, 12)
mma_in_flight = Tunable("mma_in_flight", 1, 0)
stagger = Tunable("stagger", 0, 1)
num_splits = Tunable("num_splits", 4, 2, 8, 16, 32)

DEEP = {16: 8, 32: 8, 64: 6}
"""Number of stages of 128 along k that fit in shared memory, by the shorter side of a tile."""

store = Move.tile(bm, bn).to(Warpgroup).tile(epi_m, epi_n).unroll().load(SRC, SH, Move.done()).cast_on_copy().done()

strategy = (
    MatMul.tile(bm, bn)
    .to(Block)
    .epilog(RF, float32, Init.done(), store)
    .split(bk)
    .pipeline(stages)
    .warp_specialize()
    .mma_in_flight(mma_in_flight)
    .stagger_blocks(stagger)
    .load(A, SH, Move.done())
    .load(B, SH, Move.done())
    .tile(bm, bn)
    .to(Warpgroup)
    .done()
)

split_k = (
    MatMul.split_k(num_splits, Block, bk)
    .tile(bm, bn)
    .to(Block)
    .epilog(RF, float32, Init.done(), Move.tile(bm, bn).to(Warpgroup).done())
    .split(bk)
    .pipeline(stages)
    .warp_specialize()
    .mma_in_flight(mma_in_flight)
    .load(A, SH, Move.done())
    .load(B, SH, Move.done())
    .tile(bm, bn)
    .to(Warpgroup)
    .done()
)


def spec(M, N, K, **options):
    """Return the problem: row-major float16 with float32 accumulators by default."""
    options = {"dtype": float16, "c_dtype": float16, "A": RowMajor, "B": RowMajor, "C": RowMajor, **options}
    return MatMul(M, N, K, **options)(GL, GL, GL)(Kernel)


def defaults(M, N, K):
    """Return tiles of all rows, or of all columns, if there are at most 64."""
    rows, columns = ([size for size in (16, 32, 64) if size >= few][:1] for few in (M, N))
    flat = [{"bm": size, "bn": 64, "epi_m": size, "epi_n": 64, "bk": 128, "stages": DEEP[size]} for size in rows]
    tall = [{"bm": 64, "bn": size, "epi_m": 64, "epi_n": size, "bk": 128, "stages": DEEP[size]} for size in columns if not rows]
    return (*flat, *tall)


def of_orders(values, spec):
    """Stagger blocks of 64 columns if B is column-major; measured for 16 rows on an H200."""
    return {**values, "stagger": 1} if spec.B.order == "col" and values["bn"] == 64 else values
