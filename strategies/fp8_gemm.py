"""C = A·B of 8-bit floats with scales of blocks: one scale per 128 elements of a row of A, and per 128 x 128 of B (as in DeepSeek-V3).

    fp8_gemm(M,N,Q,128,...)(GL,GL,GL,GL,GL)(Kernel)
      tile(bm,bn).to(Block)            fp8_gemm(128,256,Q,128,...)(GL,...)(Block)  persistent
      split(q=1).pipeline(stages)      one block of 128 elements per iteration, by TMA, with a producer
      tile(m=64).to(Warpgroup)         fp8_gemm(64,256,1,128,...)(SH,GL,SH,GL,RF)(Warpgroup)
      tile(n=wn).unroll()              128 columns after each other: one sum in registers, and accumulators for all columns
      step(product)                    MatMul(64,128,32)(SH,SH,RF)(Warpgroup)      wgmma, into a sum that starts at zero
      step(promote)                    the sum, times both scales, added to the accumulators in registers
      step(store)                      Move(64,128)(RF,GL)(Warpgroup)              stmatrix, TMA

A[m,q,k] is element 128 q + k of row m: `a.view(m, -1, 128)`. B[n,q,k] holds B by columns, also in blocks. SA[m,q] and SB[n // 128,q] are
their scales. wgmma sums 8-bit floats with fewer bits than float32, so sums of 128 elements are added in float32. The product is the first
step of an iteration, so the loads of scales are in flight while it is computed.

`few` is for few rows: tiles of 64 rows and few columns, one warpgroup, many stages. `few_parts` is for few rows, too: 64 columns are the
rows of wgmma, and blocks share the k of a tile; the last block sums their parts, in a fixed order.
"""

from fireiron import *
from fireiron.strategies._fused import stored
from fireiron.strategies._quantized import of_least_time
from fireiron.values.expr import constant

SIZES = (4096, 7168, 2048)

BLOCK = 128
"""Elements along k with one scale, and columns of B with one scale."""

bm = Tunable("bm", 128, 64, 192)
bn = Tunable("bn", 256, 128, 64)
wn = Tunable("wn", 128, 64)
stages = Tunable("stages", 4, 2, 3, 5, 6, 7, 8)
epi_n = Tunable("epi_n", 64, 32, 128)
group_m = Tunable("group_m", 8, 1, 4, 16, 32)
num_blocks = Tunable("num_blocks", 132, 65536)

narrow = Tunable("bn", 64, 32, 16, 8, 128)
deep = Tunable("stages", 6, 4, 8, 10, 12, 16)

TILES = [
    ({"bm": 128, "bn": 256, "stages": 4, "epi_n": 128}, 128, 256, 1.0),
    ({"bm": 128, "bn": 128, "stages": 6}, 128, 128, 0.88),
]
"""Values for more than 64 rows; rows and columns of the tile, and its share of the fastest one's speed."""

fp8_gemm = Fused(
    name="fp8_gemm",
    dims="m n q k nq",
    scan="q",
    operands={"A": "m q k", "SA": "m q", "B": "n q k", "SB": "nq q", "C": "m n"},
    init={"zero": "acc[m,n] = 0"},
    body={
        "product": "p[m,n] = sum(k, A[m,q,k] * B[n,q,k])",
        "scale_a": "s[m] = SA[m,q] * 1",
        "scale_b": "t[n] = SB[n // 128,q] * 1",
        "promote": "acc[m,n] = acc[m,n] + p[m,n] * (s[m] * t[n])",
    },
    final={"store": "C[m,n] = acc[m,n]"},
    types={"A": float8_e4m3, "B": float8_e4m3, "SA": float32, "SB": float32, "C": bfloat16},
)

by_warpgroups = MatMul.split(32).unroll().done()
"""Operands in shared memory, by wgmma."""


def loaded(loop):
    """Load both matrices by TMA."""
    return loop.load("A", SH, Move.done()).load("B", SH, Move.done())


tiles = fp8_gemm.tile(m=bm, n=bn).to(Block).rasterize(group_m=group_m).persistent(num_blocks)
loop = tiles.split(q=1).pipeline(stages).warp_specialize(128)

strategy = loaded(loop).tile(m=64).to(Warpgroup).tile(n=wn).unroll().step("product", by_warpgroups).step("store", stored(epi_n)).done()

few = loaded(fp8_gemm.tile(m=64, n=narrow).to(Block).split(q=1).pipeline(deep).warp_specialize(128))
few = few.tile(m=64).to(Warpgroup).step("product", by_warpgroups).done()

low = Tunable("bm", 16, 8, 32, 64)
num_splits = Tunable("num_splits", 4, 1, 2, 3, 6, 8, 16)

parts = fp8_gemm.split_k(num_splits, Block, 1).reduce_in_last_block().tile(m=low, n=64).to(Block).split(q=1).pipeline(deep)
parts = loaded(parts).load("SA", SH).load("SB", SH)
few_parts = parts.tile(n=64).to(Warpgroup).step("product", by_warpgroups).done()


def spec(M, N, K, **options):
    """Return the problem: K is a multiple of 128. The kernel takes A, SA, B and SB."""
    return fp8_gemm(m=M, n=N, q=K // BLOCK, k=BLOCK, nq=-(-N // BLOCK), **options)


def fastest(spec):
    """Return the strategy for the number of rows, if it is known."""
    rows = constant(spec.size("m"))
    return "strategy" if rows is None or rows > 64 else "few_parts" if rows <= 16 else "few"


def values(spec, target=None):
    """Return the values of the strategy for a problem: for few rows, two blocks per SM."""
    if fastest(spec) != "few_parts":
        return of_least_time(spec, TILES) if fastest(spec) == "strategy" else {}
    rows, tiles = constant(spec.size("m")), -(-(constant(spec.size("n")) or 8192) // 64)
    wanted = max(1, min(264 // tiles, (constant(spec.size("q")) or 16) // 2))
    return {"bm": 8 if rows <= 8 else 16, "stages": 6, "num_splits": max(size for size in (1, 2, 3, 4, 6, 8, 16) if size <= wanted)}
