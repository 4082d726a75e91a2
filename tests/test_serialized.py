"""No warpgroup MMA waits unless the program states it: code that ptxas would serialize is printed differently, or refused before printing.

The smallest strategies found with `hopper_generator`, by ptxas message; each compiles with all installed compilers.
"""

import attrs
import pytest

from fireiron import *
from fireiron.check import AccessTrace, check_wgmma_registers
from fireiron.gpu.toolchain import compile_cuda, toolchains
from fireiron.ir import For, rewritten, statements
from fireiron.strategies import hopper_attention

TARGET = "sm_90a"
COMPILERS = [one for one in toolchains() if one.serves(TARGET)]
needs_nvrtc = pytest.mark.skipif(not COMPILERS, reason="no NVRTC for sm_90a (pip install 'fireiron[check]')")

FLOAT16 = {"dtype": float16, "A": RowMajor, "B": RowMajor, "C": RowMajor}
BYTES = {"A": RowMajor, "B": ColMajor}
SCALED = Fused(
    name="scaled", dims="m n k", loop="k", operands={"A": "m k", "B": "k n", "D": "m n"}, init={"zero": "acc[m,n] = 0"},
    body={"scale": "acc[m,n] = acc[m,n] * 0.5", "mm": "acc[m,n] += sum(k, A[m,k] * B[k,n])"}, final={"store": "D[m,n] = acc[m,n]"},
)  # fmt: skip


def product(*sizes, **options):
    return MatMul(*sizes, **options)(GL, GL, GL)(Kernel)


def ringed(spec, tiles, warpgroup, bk, stages, copy=None, store=None, accumulator=float32):
    """A GEMM through a ring, with default copies and store unless given."""
    chain = spec.tile(*tiles).to(Block)
    chain = chain.epilog(RF, accumulator) if store is None else chain.epilog(RF, accumulator, Init.done(), store)
    chain = chain.split(bk).pipeline(stages)
    chain = (
        chain.warp_specialize().load(A, SH, Move.done()).load(B, SH, Move.done())
        if copy is None
        else chain.load(A, SH, copy).load(B, SH, copy)
    )
    return chain.tile(*warpgroup).to(Warpgroup).done()


FEW = Move.tile(1, 1).to(Thread).done()
"""A copy by threads, element by element."""


def by_warpgroup(*tile):
    return Move.tile(*tile).to(Warpgroup).done()


def scaled(tile, **sizes):
    """Accumulators that are multiplied in each iteration, and initialized by their first MMA."""
    chain = SCALED(**sizes, dtype=float16, B=ColMajor).tile(m=tile, n=64).to(Block).split(k=64).pipeline(3).warp_specialize()
    chain = chain.load("A", SH, Move.done()).load("B", SH, Move.done()).tile(m=tile).to(Warpgroup)
    return chain.step("mm", MatMul.split(16).unroll().done()).done()


def in_registers(spec, tiles, warpgroup, bk):
    """An operand in registers, loaded again in each iteration."""
    chain = spec.tile(*tiles).to(Block).epilog(RF, int32).split(bk).pipeline(3).warp_specialize()
    return chain.load(A, SH, Move.done()).load(B, SH, Move.done()).tile(*warpgroup).to(Warpgroup).load(A, RF, Move.done()).done()


STATE = Fused(
    name="state", dims="l t n p", scan="l", operands={"X": "l t p", "B": "l t n", "C": "l t n", "decay": "l", "Y": "l t p"},
    init={"zero": "h[n,p] = 0"}, types={"g": float16},
    body={
        "copy": "g[n,p] = h[n,p]", "read": "y[t,p] = sum(n, C[l,t,n] * g[n,p])", "out": "Y[l,t,p] = y[t,p]",
        "scale": "h[n,p] = h[n,p] * decay[l]", "add": "h[n,p] += sum(t, B[l,t,n] * X[l,t,p])",
    },
)  # fmt: skip


def state(producer, chunks):
    """A scan over chunks with a state in accumulators, whose last value nothing reads."""
    chain = STATE.tile(p=64).to(Block).set_memory("g", SH).split(l=1).pipeline(2)
    chain = chain.warp_specialize(128) if producer else chain
    for operand in "BXC":
        chain = chain.load(operand, SH, Move.done())
    wgmma = MatMul.tile(64, 64).to(Warpgroup).done()
    return chain.step("add", wgmma).step("read", wgmma).done()(STATE(l=chunks, t=64, n=64, p=128))


STRATEGIES = {
    "C7517, several tiles in a loop that is unrolled": lambda: ringed(product(512, 512, 128, **FLOAT16), (128, 64), (128, 64), 32, 3),
    "C7517, one step of k in a loop over tiles": lambda: (
        product(128, 112, 256, dtype=float8_e4m3, c_dtype=float16, **BYTES).tile(128, 192).to(Block).persistent(132).epilog(RF, float32)
        .load(A, SH, Move.done()).load(B, SH, Move.done()).tile(64, 192).to(Warpgroup).done()
    ),
    "C7517, several tiles that begin with their products": lambda: ringed(product(128, 8, 32, dtype=float16), (128, 8), (128, 8), 16, 3, FEW),
    "C7517, accumulators that are copied in before a loop of one turn": lambda: ringed(
        product(156, 28, 32, dtype=tf32, accumulate=True, A=RowMajor, C=RowMajor), (128, 64), (128, 64), 32, 2
    ),
    "C7514, conversions of single accumulators": lambda: ringed(
        product(256, 128, sym("K", multiple_of=16), dtype=float16, A=RowMajor, B=RowMajor), (64, 128), (64, 128), 32, 4, Move.coalesced_copy(8).done(),
        by_warpgroup(64, 128),
    ),
    "C7514, conversions in an unrolled loop": lambda: ringed(
        product(96, 24, 768, dtype=float8_e4m3, c_dtype=bfloat16, A=RowMajor, C=RowMajor), (128, 8), (64, 8), 256, 2, Move.coalesced_copy(16).done(),
        by_warpgroup(64, 8),
    ),
    "C7515, accumulators that are copied in": lambda: ringed(
        product(384, 128, 991, dtype=float8_e4m3, c_dtype=float16, accumulate=True, A=RowMajor), (192, 48), (192, 48), 128, 3,
        Move.coalesced_copy(16).done(), by_warpgroup(192, 48),
    ),
    "C7514, accumulators that are copied in before nested loops": lambda: (
        product(64, 256, 96, dtype=bfloat16, c_dtype=float32, accumulate=True, A=RowMajor).tile(32, 128).to(Block).epilog(RF).split(48).pipeline(5)
        .load(A, SH, Move.done()).split(16).pipeline(1).unroll().load(B, SH, Move.done()).tile(8, 128).to(Warpgroup).tile(8, 64).unroll().done()
    ),
    "C7515, integers that are copied in": lambda: ringed(
        product(16, sym("N", multiple_of=16), sym("K"), dtype=int8, accumulate=True, A=RowMajor, C=RowMajor), (16, 128), (16, 64), 64, 3,
        Move.coalesced_copy(16).done(), by_warpgroup(16, 64), int32,
    ),
    "C7515, accumulators without a first value": lambda: scaled(64, m=128, n=64, k=512),
    "C7515, the same in a loop of unknown length": lambda: scaled(128, m=sym("M"), n=64, k=sym("K", multiple_of=16)),
    "C7515, the same with a factor in registers": lambda: in_registers(
        product(128, 192, 512, dtype=int8, A=RowMajor, C=RowMajor), (64, 64), (64, 32), 256
    ),
    "C7517, a state that nothing reads after the last iteration": lambda: state(False, 16),
    "C7517, the same with a producer": lambda: state(True, 16),
    "C7515, attention": lambda: hopper_attention.strategy(hopper_attention.spec(*hopper_attention.SIZES)),
}  # fmt: skip


@needs_nvrtc
@pytest.mark.parametrize("name", STRATEGIES)
def test_products_are_not_serialized(name):
    program = STRATEGIES[name]().program(TARGET)
    for compiler in COMPILERS:
        assert compile_cuda(program.cuda, TARGET, newest=compiler.version).resources[program.name].spill_stores == 0


def test_registers_of_mmas_in_flight_are_not_pinned():
    """Pinning accesses them: the loop around has MMAs in flight at the end of its iterations. The check reports such a kernel."""
    kernel = STRATEGIES["C7514, accumulators that are copied in before nested loops"]().program(TARGET).ir
    outer, inner = (one for one in statements(kernel.body) if isinstance(one, For) and str(one.var) in ("k", "k2"))
    assert outer.pinned_registers == ("c_rf",) and inner.pinned_registers == ()
    pinned = rewritten(kernel.body, lambda stmt: (attrs.evolve(stmt, pinned_registers=("c_rf",)) if stmt == inner else stmt,))
    messages = [finding.message for finding in check_wgmma_registers(AccessTrace(attrs.evolve(kernel, body=pinned)))]
    assert messages == ["c_rf: the loop k2 pins it, but it is used by an MMA in flight"]


def test_a_wait_for_results_that_nothing_reads():
    """A group that is in flight after the last iteration is waited for once, after the loop."""
    text = state(False, 16).cuda(TARGET)
    assert text.count("h is complete before the kernel ends") == 1
    assert text.index("for (int l = 0") < text.index("h is complete before the kernel ends")


@pytest.mark.parametrize(
    ("warpgroup", "groups", "threads", "message"),
    [
        ((128, 256), 1, 32, "MMAs need 256 registers per thread, but with 160 threads per block a thread has 255: c_rf 256"),
        ((128, 144), 2, 32, "MMAs need 144 registers per thread, but with 288 threads per block a thread has 168: c_rf 144"),
        ((64, 208), 3, 32, "MMAs need 104 registers per thread, but with 416 threads per block a thread has 128: c_rf 104"),
        ((64, 256), 3, 128, "MMAs need 128 registers per thread, but with 512 threads per block a thread has 152: c_rf 128"),
    ],
)
def test_accumulators_that_a_thread_cannot_hold_are_refused(warpgroup, groups, threads, message):
    """ptxas would serialize each MMA (C7511, C7512), or refuse the text (C7602)."""
    rows, columns = warpgroup
    chain = product(1536, 1536, 512, **FLOAT16).tile(rows * groups, columns).to(Block).epilog(RF, float32).split(32).pipeline(2)
    chain = chain.warp_specialize(threads).load(A, SH, Move.done()).load(B, SH, Move.done()).tile(rows, columns).to(Warpgroup).done()
    with pytest.raises(ResourceError) as caught:
        chain.program(TARGET).lowered  # noqa: B018
    assert str(caught.value).startswith(message)
    assert "a smaller tile for Warpgroup" in str(caught.value) and ("warp_specialize(128)" in str(caught.value)) == (
        message.startswith("MMAs need 144")
    )


def test_accumulators_that_are_in_use_together_are_counted_together():
    """Also within one iteration, without carried values."""
    each = {
        "left": "acc[m,n] = sum(k, A[m,k] * B[k,n])",
        "right": "more[m,n] = sum(k, A[m,k] * B2[k,n])",
        "store": "D[m,n] = acc[m,n] * more[m,n]",
    }
    definition = Fused(name="two", dims="m n k", operands={"A": "m k", "B": "k n", "B2": "k n", "D": "m n"}, body=each)
    chain = definition(m=256, n=144, k=64, dtype=float16).tile(m=128, n=144).to(Block).load("A", SH).load("B", SH).load("B2", SH)
    chain = chain.tile(m=128).to(Warpgroup).step("left", MatMul.done()).step("right", MatMul.done()).done()
    with pytest.raises(ResourceError, match="MMAs need 288 registers per thread, .*: acc 144, more 144"):
        chain.program(TARGET).lowered  # noqa: B018


def test_more_registers_from_the_producer_serve():
    """A strategy that is refused with one producer warp, and its hint."""
    chain = product(512, 288, 512, **FLOAT16).tile(256, 144).to(Block).epilog(RF, float32).split(32).pipeline(2).warp_specialize(128)
    program = chain.load(A, SH, Move.done()).load(B, SH, Move.done()).tile(128, 144).to(Warpgroup).done().program(TARGET)
    assert "setmaxnreg" in program.cuda
    for compiler in COMPILERS:
        assert compile_cuda(program.cuda, TARGET, newest=compiler.version).resources[program.name].spill_stores == 0


def test_accumulators_are_computed_before_they_are_converted():
    """Adding -0 changes no number, and is not a conversion that ptxas would move across the wait."""
    text = ringed(product(64, 64, 64, **FLOAT16), (64, 64), (64, 64), 32, 2, store=by_warpgroup(64, 64)).program(TARGET).cuda
    assert "__float2half_rn(accumulated(c_rf[" in text and "return __fadd_rn(x, -0.0f);" in text
