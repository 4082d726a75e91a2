"""Two matrix products with one A: D = A·B1 + A·B2, reading A once, on tensor cores from Ampere on.

    dual(M,N,K)(GL,GL,GL,GL)(Kernel)
      tile(bm,bn).to(Block).rasterize(group_m=8)   dual(128,128,K)(GL,GL,GL,GL)(Block)
      split(bk).pipeline(stages)       dual(128,128,32)(GL,GL,GL,RF)(Block)        copies of 16 bytes, in flight
      load(A, SH), load(B1, SH), ...   dual(128,128,32)(SH,SH,SH,RF)(Block)        swizzled
      tile(wm,wn).to(Warp)             dual(64,64,32)(SH,SH,SH,RF)(Warp)
      split(16).pipeline(lookahead)    dual(64,64,16)(SH,SH,SH,RF)(Warp)           fragments loaded one step early
      load(A, RF), load(B1, RF), ...   dual(64,64,16)(RF,RF,RF,RF)(Warp)           ldmatrix.x4
      step(left), step(right)          MatMul(16,8,16)(RF,RF,RF)(Warp)             HMMA, both into one accumulator
      step(store)                      Move(128,128)(RF,GL)(Block)                 through shared memory, in pieces of 16 bytes

`hopper` is the same by TMA and wgmma with a producer, for tiles of 128 x 256. The circular buffer of A has `depth` stages, those of B1 and
B2 have `stages`. With `mma_in_flight` 1 the second MMA is issued before the first completes, and the stages of the first are released then.
"""

from fireiron import *
from fireiron.strategies._fused import by_warpgroups, fitting, lookahead, orders, product, staged, stored, unaligned

SIZES = (4096, 4096, 4096)

bm = Tunable("bm", 128, 64, 256)
bn = Tunable("bn", 128, 64, 256)
bk = Tunable("bk", 32, 64)
wm = Tunable("wm", 64, 32)
wn = Tunable("wn", 64, 32)
stages = Tunable("stages", 4, 3, 5)

wide = Tunable("bn", 256, 64, 128, 192)
deep = Tunable("bk", 64, 32, 128)
ring_stages = Tunable("stages", 2, 3, 4, 5, 6)
depth = Tunable("depth", 3, 2, 4, 5, 6)
mma_in_flight = Tunable("mma_in_flight", 1, 0)
high = Tunable("bm", 128, 64, 192, 256)
part = Tunable("wm", 64, 128)
epi_n = Tunable("epi_n", 64, 32, 128, 192, 256)
group_m = Tunable("group_m", 16, 1, 4, 8, 32)
num_blocks = Tunable("num_blocks", 132, 264, 65536)

definition = Fused(
    name="dual",
    dims="m n k",
    loop="k",
    operands={"A": "m k", "B1": "k n", "B2": "k n", "D": "m n"},
    init={"zero": "acc[m,n] = 0"},
    body={"left": "acc[m,n] += sum(k, A[m,k] * B1[k,n])", "right": "acc[m,n] += sum(k, A[m,k] * B2[k,n])"},
    final={"store": "D[m,n] = acc[m,n]"},
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
    .load("B1", SH, copy)
    .swizzle_storage()
    .load("B2", SH, copy)
    .swizzle_storage()
    .tile(m=wm, n=wn)
    .to(Warp)
    .split(k=16)
    .unroll()
    .pipeline(lookahead)
    .load("A", RF, fragments)
    .load("B1", RF, fragments)
    .load("B2", RF, fragments)
    .step("left", product)
    .step("right", product)
    .done()
)

tiles = (
    definition.tile(m=high, n=wide)
    .to(Block)
    .rasterize(group_m=group_m)
    .persistent(num_blocks)
    .split(k=deep)
    .pipeline(ring_stages)
    .warp_specialize(128)
    .mma_in_flight(mma_in_flight)
)

hopper = (
    tiles.load("A", SH, Move.done())
    .stages(depth)
    .load("B1", SH, Move.done())
    .load("B2", SH, Move.done())
    .tile(m=part)
    .to(Warpgroup)
    .step("left", by_warpgroups)
    .step("right", by_warpgroups)
    .step("store", stored(epi_n))
    .done()
)


def spec(M, N, K, **options):
    """Return the problem: row-major float16 with float32 accumulators by default; B is the storage order of B1 and B2, C that of D."""
    return definition(m=M, n=N, k=K, **orders(options, {"A": "A", "B": "B1 B2", "C": "D"}))


def values(spec, target=None):
    """Return the values for a spec: if the row length is unknown, addresses need registers, so a warp has fewer rows."""
    return fitting(spec, target) | ({"wm": 32} if unaligned(spec) else {})
