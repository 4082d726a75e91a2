"""Multilayer perceptron in one kernel: L times H = relu(H·W + bias); the activations never leave the chip.

    mlp(M,N,K,L)(GL,GL,GL,GL)(Kernel)
      tile(bm).to(Block)               mlp(128,128,128,L)(GL,GL,GL,GL)(Block)
      set_memory(h, SH)                mlp(128,128,128,L)(GL,GL,GL,GL,SH)(Block)
      split(l=1).pipeline(stages)      mlp(128,128,128,1)(GL,GL,GL,GL,SH)(Block)     the next layer's weights are in flight
      load(W, SH)                      mlp(128,128,128,1)(GL,SH,GL,GL,SH)(Block)     swizzled, by copies of 16 bytes
      step(product)                    MatMul(128,128,128)(SH,SH,RF)(Block)
        tile(wm,wn).to(Warp)           MatMul(32,64,128)(SH,SH,RF)(Warp)
        split(16)                      MatMul(32,64,16)(SH,SH,RF)(Warp)             unrolled: the compiler loads fragments early
        load(A, RF), load(B, RF)       MatMul(32,64,16)(RF,RF,RF)(Warp)             ldmatrix.x4
        tile(16,16).mma_tile()         MatMul(16,8,16)(RF,RF,RF)(Warp)              HMMA
      act, keep                        relu(acc + bias) to h in shared memory, two values at once

`registers` keeps the activations in registers: the rounded accumulator of a layer is the A operand of the next layer without any data
movement, so warps wait for weights only. N = K is a constant, at most 128; M and L may be run-time sizes (Graphene, section 6, Figure 11).
`single` has one stage of weights, because a block on Turing has 64 KiB of shared memory.

`hopper` is `registers` by TMA and wgmma, with a producer that loads weights and bias: a warpgroup has 64 rows, and no layer waits for
another warpgroup.
"""

from fireiron import *
from fireiron.strategies._fused import by_warpgroups, product
from fireiron.values.machine import as_architecture

SIZES = (8192, 128, 20)

bm = Tunable("bm", 128, 64, 32, 256)
wm = Tunable("wm", 32, 16, 64)
wn = Tunable("wn", 64, 32, 16, 128)
stages = Tunable("stages", 2, 3, 4, 1)

rows = Tunable("bm", 128, 64, 192)
ring_stages = Tunable("stages", 4, 2, 3, 5, 6)

definition = Fused(
    name="mlp",
    dims="m n k l",
    scan="l",
    operands={"X": "m k", "W": "l k n", "bias": "l n", "Y": "m n"},
    init={"start": "h[m,k] = X[m,k]"},
    body={
        "product": "acc[m,n] = sum(k, h[m,k] * W[l,k,n])",
        "act": "acc[m,n] = relu(acc[m,n] + bias[l,n])",
        "keep": "h[m,n] = acc[m,n]",
    },
    final={"store": "Y[m,n] = h[m,n]"},
)

copy, fragments = Move.coalesced_copy(8).done(), Move.done()


def by_layers(stages):
    """Return the strategy with a number of stages of weights, or a tunable."""
    return (
        definition.tile(m=bm)
        .to(Block)
        .set_memory("h", SH, pad=8)
        .step("start", copy)
        .split(l=1)
        .pipeline(stages)
        .load("W", SH, copy)
        .swizzle_storage()
        .load("bias", SH, copy)
        .step("product", MatMul.tile(wm, wn).to(Warp).split(16).unroll().load(A, RF, fragments).load(B, RF, fragments).then(product))
        .load("bias", RF, fragments)
        .step("store", copy)
        .done()
    )


strategy, single = by_layers(stages), by_layers(1)

registers = (
    definition.tile(m=bm)
    .to(Block)
    .load("X", SH, copy)
    .swizzle_storage()
    .split(l=1)
    .pipeline(stages)
    .load("W", SH, copy)
    .swizzle_storage()
    .load("bias", SH, copy)
    .tile(m=wm)
    .to(Warp)
    .step("start", fragments)
    .step("product", MatMul.split(16).unroll().tile(wm, wn).unroll().load(B, RF, fragments).then(product))
    .load("bias", RF, fragments)
    .done()
)

hopper = (
    definition.tile(m=rows)
    .to(Block)
    .load("X", SH, Move.done())
    .split(l=1)
    .pipeline(ring_stages)
    .warp_specialize(128)
    .load("W", SH, Move.done())
    .load("bias", SH, Move.done())
    .tile(m=64)
    .to(Warpgroup)
    .step("start", Move.tile(64, 16).unroll().done())
    .step("product", by_warpgroups)
    .step("store", Move.tile(64, 64).unroll().load(SRC, SH, Move.done()).done())
    .done()
)


def spec(M, N, L, **options):
    """Return the problem: L contiguous layers of N x N weights and biases; float16 with float32 accumulators by default."""
    return definition(m=M, n=N, k=N, l=L, **options)


def values(spec, target=None):
    """Return one stage of weights on Turing, whose blocks have 64 KiB of shared memory."""
    return {"stages": 1} if target is not None and as_architecture(target).shared_per_block < 96 * 1024 else {}


registers_values = values
