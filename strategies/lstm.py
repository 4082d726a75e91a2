"""Gate of an LSTM cell: D = relu(X·W + H·R + bias), two MMAs into one accumulator, on tensor cores from Ampere on.

    lstm(M,N,K)(GL,GL,GL,GL,GL,GL)(Kernel)
      tile(bm,bn).to(Block).rasterize(group_m=8)   lstm(128,128,K)(GL,GL,GL,GL,GL,GL)(Block)
      split(bk).pipeline(stages)       lstm(128,128,32)(GL,GL,GL,GL,RF)(Block)     copies of 16 bytes, in flight
      load(X, SH), load(W, SH), ...    lstm(128,128,32)(SH,SH,SH,SH,RF)(Block)     swizzled
      tile(wm,wn).to(Warp)             lstm(64,32,32)(SH,SH,SH,SH,RF)(Warp)
      split(16).pipeline(2)            lstm(64,32,16)(SH,SH,SH,SH,RF)(Warp)        fragments loaded one step early
      load(X, RF), load(W, RF), ...    lstm(64,32,16)(RF,RF,RF,RF,RF)(Warp)        ldmatrix.x4
      step(input), step(hidden)        MatMul(16,8,16)(RF,RF,RF)(Warp)             HMMA, into one accumulator
      step(store)                      Move(64,32)(RF,GL)(Warp)                    through shared memory, in pieces of 16 bytes

X and H have K columns each. `strategy` has the ReLU that Graphene measured (section 6, Figure 12), `tanh` the activation of an LSTM.
`two_loops` is another definition of the same: first X·W in one loop, then H·R in a second loop. Its warps have fragments of two operands
instead of four, so their tiles can be 64 x 64.

`hopper` and `hopper_tanh` are `strategy` and `tanh` by TMA and wgmma with a producer, for tiles of 128 x 256. Each MMA has a circular
buffer of `stages` for its operands, and the bias of a tile has one of two stages. A stage is released after its MMA, or with
`mma_in_flight` 1 after the next MMA. `defaults` are values for other sizes.
"""

from fireiron import *
from fireiron.strategies._fused import by_warpgroups, few_rows, orders, product, staged, stored

SIZES = (4096, 4096, 4096)

bm = Tunable("bm", 128, 64, 256, 96, 192)
bn = Tunable("bn", 128, 64, 256, 96, 192)
bk = Tunable("bk", 32, 64)
wm = Tunable("wm", 64, 32, 48, 96)
wn = Tunable("wn", 32, 64, 48, 96)
stages = Tunable("stages", 4, 3, 5)

wide = Tunable("bn", 256, 64, 128, 192)
deep = Tunable("bk", 64, 32, 128)
ring_stages = Tunable("stages", 2, 3, 4, 5, 6)
epi_n = Tunable("epi_n", 64, 32, 128, 192, 256)
group_m = Tunable("group_m", 8, 1, 2, 4, 16)
mma_in_flight = Tunable("mma_in_flight", 0, 1)
high = Tunable("bm", 128, 64, 192, 256)
num_blocks = Tunable("num_blocks", 132, 264, 65536)

OPERANDS = {"X": "m k", "W": "k n", "H": "m k", "R": "k n", "bias": "n", "D": "m n"}


def cell(function):
    """Return the definition with an activation function."""
    return Fused(
        name="lstm",
        dims="m n k",
        loop="k",
        operands=OPERANDS,
        init={"zero": "acc[m,n] = 0"},
        body={"input": "acc[m,n] += sum(k, X[m,k] * W[k,n])", "hidden": "acc[m,n] += sum(k, H[m,k] * R[k,n])"},
        final={"act": f"acc[m,n] = {function}(acc[m,n] + bias[n])", "store": "D[m,n] = acc[m,n]"},
    )


copy, fragments = Move.coalesced_copy(8).done(), Move.done()


def of(definition):
    """Return the strategy for a definition."""
    return (
        definition.tile(m=bm, n=bn)
        .to(Block)
        .rasterize(group_m=8)
        .step("store", staged)
        .split(k=bk)
        .pipeline(stages, interleave=True)
        .load("X", SH, copy)
        .swizzle_storage()
        .load("W", SH, copy)
        .swizzle_storage()
        .load("H", SH, copy)
        .swizzle_storage()
        .load("R", SH, copy)
        .swizzle_storage()
        .tile(m=wm, n=wn)
        .to(Warp)
        .split(k=16)
        .unroll()
        .pipeline(2)
        .load("X", RF, fragments)
        .load("W", RF, fragments)
        .step("input", product)
        .load("H", RF, fragments)
        .load("R", RF, fragments)
        .step("hidden", product)
        .load("bias", RF, fragments)
        .done()
    )


definition, with_tanh = cell("relu"), cell("tanh")

strategy, tanh = of(definition), of(with_tanh)


def by_tma(definition):
    """Return the strategy for a definition on Hopper."""
    return (
        definition.tile(m=high, n=wide)
        .to(Block)
        .rasterize(group_m=group_m)
        .persistent(num_blocks)
        .load("bias", SH, Move.done())
        .split(k=deep)
        .pipeline(ring_stages)
        .warp_specialize(128)
        .mma_in_flight(mma_in_flight)
        .load("X", SH, Move.done())
        .load("W", SH, Move.done())
        .load("H", SH, Move.done())
        .load("R", SH, Move.done())
        .tile(m=64)
        .to(Warpgroup)
        .step("input", by_warpgroups)
        .step("hidden", by_warpgroups)
        .step("store", stored(epi_n))
        .done()
    )


hopper, hopper_tanh = by_tma(definition), by_tma(with_tanh)


def defaults(M, N, K):
    """Return values of `hopper` that were the fastest on an H200, each for some sizes."""
    return (
        {},
        {"group_m": 4},
        {"group_m": 4, "epi_n": 128, "num_blocks": 65536},
        {"bm": 192, "bn": 192, "epi_n": 32},
        {"bm": 192, "bn": 192, "bk": 32, "stages": 3, "epi_n": 192},
        {"bn": 64, "stages": 4, "num_blocks": 65536, "mma_in_flight": 1},
    )


one_by_one = Fused(
    name="lstm",
    dims="m n k",
    operands=OPERANDS,
    body={
        "input": "acc[m,n] = sum(k, X[m,k] * W[k,n])",
        "hidden": "acc[m,n] += sum(k, H[m,k] * R[k,n])",
        "act": "acc[m,n] = relu(acc[m,n] + bias[n])",
        "store": "D[m,n] = acc[m,n]",
    },
)


def main_loop(again=False):
    """Return the loop of one matrix product; with `again` its stages reuse the memory of the previous loop."""
    chain = MatMul.split(bk).pipeline(stages, interleave=True)
    for operand in (A, B):
        chain = chain.load(operand, SH, copy).swizzle_storage()
        chain = chain.reuse_buffer() if again else chain
    chain = chain.tile(wm, wn).to(Warp).split(16).unroll().pipeline(2)
    return chain.load(A, RF, fragments).load(B, RF, fragments).then(product)


store = Move.load(SRC, SH, Move.tile(wm, wn).to(Warp).done()).cast_on_copy().swizzle_storage().reuse_buffer().coalesced_copy(8).done()

two_loops = (
    one_by_one.tile(m=bm, n=bn)
    .to(Block)
    .rasterize(group_m=8)
    .step("input", main_loop())
    .step("hidden", main_loop(again=True))
    .step("store", store)
    .done()
)


def spec(M, N, K, form="relu", fused=None, **options):
    """Return the problem: row-major float16 with float32 accumulators by default; A is the storage order of X and H, B of W and R, C of D.

    Args: `form`, "relu", "tanh" or "two_loops"; or `fused`, a definition that replaces the form.
    """
    chosen = {"relu": definition, "tanh": with_tanh, "two_loops": one_by_one}[form] if fused is None else fused
    return chosen(m=M, n=N, k=K, **orders(options, {"A": "X H", "B": "W R", "C": "D"}))


values = few_rows
tanh_values = two_loops_values = values
