"""Gated linear unit (SwiGLU): D = silu(A·B1) * (A·B2), both products in one pass over A, on tensor cores from Ampere on.

    gated(M,N,K)(GL,GL,GL,GL)(Kernel)
      tile(bm,bn).to(Block).rasterize(group_m=8)   gated(128,64,K)(GL,GL,GL,GL)(Block)
      split(bk).pipeline(stages)       gated(128,64,32)(GL,GL,GL,RF,RF)(Block)     copies of 16 bytes, in flight
      load(A, SH), load(B1, SH), ...   gated(128,64,32)(SH,SH,SH,RF,RF)(Block)     swizzled
      tile(wm,wn).to(Warp)             gated(64,32,32)(SH,SH,SH,RF,RF)(Warp)
      split(16).pipeline(lookahead)    gated(64,32,16)(SH,SH,SH,RF,RF)(Warp)       fragments loaded one step early
      load(A, RF), load(B1, RF), ...   gated(64,32,16)(RF,RF,RF,RF,RF)(Warp)       ldmatrix.x4
      step(gate), step(up)             MatMul(16,8,16)(RF,RF,RF)(Warp)             HMMA, one accumulator each
      step(store)                      Move(64,32)(RF,GL)(Warp)                    through shared memory, in pieces of 16 bytes

A thread has the same elements of both accumulators, so the gate is applied in registers.

`hopper` is the same by TMA and wgmma with a producer, for tiles of 128 x 128.
"""

from fireiron import *
from fireiron.strategies._fused import by_warpgroups, fitting, lookahead, orders, product, staged, stored

SIZES = (4096, 4096, 4096)

bm = Tunable("bm", 128, 64, 256)
bn = Tunable("bn", 64, 128)
bk = Tunable("bk", 32, 64)
wm = Tunable("wm", 64, 32)
wn = Tunable("wn", 32, 64)
stages = Tunable("stages", 4, 3, 5)

wide = Tunable("bn", 128, 64)
deep = Tunable("bk", 64, 32, 128)
ring_stages = Tunable("stages", 3, 2, 4, 5, 6)
epi_n = Tunable("epi_n", 128, 32, 64)
group_m = Tunable("group_m", 16, 1, 4, 8, 32)
num_blocks = Tunable("num_blocks", 132, 264, 65536)

definition = Fused(
    name="gated",
    dims="m n k",
    loop="k",
    operands={"A": "m k", "B1": "k n", "B2": "k n", "D": "m n"},
    init={"zero_gate": "g[m,n] = 0", "zero_up": "u[m,n] = 0"},
    body={"gate": "g[m,n] += sum(k, A[m,k] * B1[k,n])", "up": "u[m,n] += sum(k, A[m,k] * B2[k,n])"},
    final={"act": "g[m,n] = silu(g[m,n]) * u[m,n]", "store": "D[m,n] = g[m,n]"},
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
    .step("gate", product)
    .step("up", product)
    .done()
)

tiles = (
    definition.tile(m=bm, n=wide)
    .to(Block)
    .rasterize(group_m=group_m)
    .persistent(num_blocks)
    .split(k=deep)
    .pipeline(ring_stages)
    .warp_specialize(128)
)

hopper = (
    tiles.load("A", SH, Move.done())
    .load("B1", SH, Move.done())
    .load("B2", SH, Move.done())
    .tile(m=64)
    .to(Warpgroup)
    .step("gate", by_warpgroups)
    .step("up", by_warpgroups)
    .step("store", stored(epi_n))
    .done()
)


def spec(M, N, K, **options):
    """Return the problem: row-major float16 with float32 accumulators by default; B is the storage order of B1 and B2, C that of D."""
    return definition(m=M, n=N, k=K, **orders(options, {"A": "A", "B": "B1 B2", "C": "D"}))


values = fitting
