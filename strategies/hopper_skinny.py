"""Hopper, few rows or few columns: all that matters is to read the large matrix at the speed of the memory.

    MatMul(M,N,K)(GL,GL,GL)(Kernel)
      tile(bm,bn).to(Block)            MatMul(16,64,K)(GL,GL,GL)(Block)         all rows, 64 columns: the transposed form of wgmma
      epilog(RF, float32, ...)         MatMul(16,64,K)(GL,GL,RF)(Block)         converted, through shared memory, stored by TMA
      split(bk).pipeline(stages)       MatMul(16,64,64)(GL,GL,RF)(Block)        a deep ring: 160 KB of loads under way in each block
        .warp_specialize()                  filled by a warp of its own
        .mma_in_flight(in_flight)
        .stagger_blocks(shift)              blocks begin at different places along k
      load(A, SH), load(B, SH)         MatMul(16,64,64)(SH,SH,RF)(Block)        TMA
      tile(bm,bn).to(Warpgroup)        MatMul(16,64,64)(SH,SH,RF)(Warpgroup)
      done()                           WGMMA

A product of up to 64 rows reads each element of B once and does little with it. The 64 rows of the instruction lie along N, where there are
enough, so few rows of A cost no more than they are; for few columns `bm` is 64 and `bn` small, the form that is not transposed.
A block for each tile: with N = 4096 there are 64, which are enough, as each has many loads under way. Where B is stored by columns, each
block reads rows of its own, and all of them the same columns at a time, which lie in few channels of the memory; so with `stagger` 1 each
begins one step further on than the block before.

`split_k` is for products that have fewer tiles than that: `num_splits` blocks share a tile, each with its chunks of k, and add their results
to C, which is float32, with atomic additions.
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
"""Stages of 128 along k that shared memory has room for, by the shorter side of a tile."""

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
    """Row-major halves, float32 inside, unless said otherwise."""
    options = {"dtype": float16, "c_dtype": float16, "A": RowMajor, "B": RowMajor, "C": RowMajor, **options}
    return MatMul(M, N, K, **options)(GL, GL, GL)(Kernel)


def defaults(M, N, K):
    """Tiles of all rows, or of all columns, where there are few."""
    rows, columns = ([size for size in (16, 32, 64) if size >= few][:1] for few in (M, N))
    flat = [{"bm": size, "bn": 64, "epi_m": size, "epi_n": 64, "bk": 128, "stages": DEEP[size]} for size in rows]
    tall = [{"bm": 64, "bn": size, "epi_m": 64, "epi_n": size, "bk": 128, "stages": DEEP[size]} for size in columns if not rows]
    return (*flat, *tall)


def of_orders(values, spec):
    """Where B is stored by columns, blocks of 64 columns begin at different places along k; measured for 16 rows on an H200."""
    return {**values, "stagger": 1} if spec.B.order == "col" and values["bn"] == 64 else values
