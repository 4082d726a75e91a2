"""Matrix product and row sums of A: D = A·B and y[m] = sum of A[m,k] over k, reading A once, on tensor cores from Ampere on.

    gemm_row_sum(M,N,K)(GL,GL,GL,GL)(Kernel)
      tile(bm,bn).to(Block).rasterize(group_m=8)   gemm_row_sum(128,128,K)(GL,GL,GL,GL)(Block)
      split(bk).pipeline(stages)       gemm_row_sum(128,128,32)(GL,GL,RF,RF)(Block)  copies of 16 bytes, in flight
      load(A, SH), load(B, SH)         gemm_row_sum(128,128,32)(SH,SH,RF,RF)(Block)  swizzled
      tile(wm,wn).to(Warp)             gemm_row_sum(64,64,32)(SH,SH,RF,RF)(Warp)
      split(16).pipeline(lookahead)    gemm_row_sum(64,64,16)(SH,SH,RF,RF)(Warp)     fragments loaded one step early
      load(A, RF), load(B, RF)         gemm_row_sum(64,64,16)(RF,RF,RF,RF)(Warp)     ldmatrix.x4
      step(product)                    MatMul(16,8,16)(RF,RF,RF)(Warp)               HMMA
      row                              Reduction(64,16)(RF,RF)(Warp)                 of the fragments of A, by shuffles
      step(store)                      Move(64,64)(RF,GL)(Warp)                      through shared memory, in pieces of 16 bytes

The sums stay in registers, in float32, and one replica stores them.

`hopper` is the same by TMA and wgmma with a producer. Its warpgroups read A's rows by ldmatrix while the MMAs of the stage are in flight,
only in the first column of tiles. Each of the four lanes of a row accumulates a partial sum; these are combined after the loop. The tile of
D is stored in one piece, which costs one stage but is faster: `epi_n` columns at a time, and 64 for tiles of 256 x 192, which have `wm` 128
and are fast at 6144. With that much memory in use groups of 8 tile rows suit large sizes, and groups of 4 suit 4096.

`hopper_shared` differs by one line: its sums are in shared memory, where each step reads and writes them. Then every block has memory for
sums, including those that store none.
"""

from fireiron import *
from fireiron.strategies._fused import by_warpgroups, fitting, lookahead, orders, product, staged, stored

SIZES = (4096, 4096, 4096)

bm = Tunable("bm", 128, 64, 256)
bn = Tunable("bn", 128, 64, 256)
bk = Tunable("bk", 32, 64)
wm = Tunable("wm", 64, 32)
wn = Tunable("wn", 64, 32)
stages = Tunable("stages", 4, 3, 5)

high = Tunable("bm", 128, 64, 192, 256)
wide = Tunable("bn", 256, 64, 128, 192)
deep = Tunable("bk", 64, 32, 128)
part = Tunable("wm", 64, 128)
epi_n = Tunable("epi_n", 256, 32, 64, 128, 192)
ring_stages = Tunable("stages", 3, 2, 4, 5, 6)
group_m = Tunable("group_m", 8, 1, 4, 16)
num_blocks = Tunable("num_blocks", 132, 264, 65536)

definition = Fused(
    name="gemm_row_sum",
    dims="m n k",
    loop="k",
    operands={"A": "m k", "B": "k n", "D": "m n", "y": "m"},
    init={"zero": "acc[m,n] = 0", "none": "s[m] = 0"},
    body={"product": "acc[m,n] += sum(k, A[m,k] * B[k,n])", "row": "s[m] += sum(k, A[m,k])"},
    final={"store": "D[m,n] = acc[m,n]", "sums": "y[m] = s[m]"},
)

copy, fragments = Move.coalesced_copy(8).done(), Move.done()

strategy = (
    definition.tile(m=bm, n=bn)
    .to(Block)
    .rasterize(group_m=8)
    .step("store", staged)
    .split(k=bk)
    .pipeline(stages, interleave=True)
    .load("A", SH, copy)
    .swizzle_storage()
    .load("B", SH, copy)
    .swizzle_storage()
    .tile(m=wm, n=wn)
    .to(Warp)
    .split(k=16)
    .unroll()
    .pipeline(lookahead)
    .load("A", RF, fragments)
    .load("B", RF, fragments)
    .step("product", product)
    .done()
)


def by_tiles(tiles):
    """Return the strategy on Hopper for a tiled definition, whose sums are in registers, in partial sums, or in shared memory."""
    return (
        tiles.split(k=deep)
        .pipeline(ring_stages)
        .warp_specialize(128)
        .load("A", SH, Move.done())
        .load("B", SH, Move.done())
        .tile(m=part)
        .to(Warpgroup)
        .step("product", by_warpgroups)
        .step("row", Reduction.load(SRC, RF, Move.done()).done())
        .step("store", stored(epi_n))
        .done()
    )


hopper = by_tiles(definition.rfactor("row", 4).tile(m=high, n=wide).to(Block).rasterize(group_m=group_m).persistent(num_blocks))

hopper_shared = by_tiles(definition.tile(m=high, n=wide).to(Block).rasterize(group_m=group_m).persistent(num_blocks).set_memory("s", SH))


def spec(M, N, K, **options):
    """Return the problem: row-major float16 with float32 accumulators and sums by default; C is the storage order of D."""
    options = {"types": {"y": float32}, **options}
    return definition(m=M, n=N, k=K, **orders(options, {"A": "A", "B": "B", "C": "D"}))


values = fitting
