"""Blocks that start a reduction loop at different iterations (`stagger_blocks`): compared with NumPy, texts, injected faults, refusals."""

import re

import attrs
import pytest
from printed_text import COMPILER, HostProgram, Printed
from ringed import TARGET, errors, float16_gemm, inputs_of, outcome, product, require_right

from fireiron import *
from fireiron import ir
from fireiron.cost import predict
from fireiron.gpu.toolchain import compile_cuda, toolchains
from fireiron.graphene import graphene_text, parse_kernel
from fireiron.inspect import show
from fireiron.language.library import defaults
from fireiron.language.store import dumps, loads
from fireiron.sim import simulate
from fireiron.strategies import hopper_skinny, softmax_online
from fireiron.values.expr import Const, Expr, Mod, replaced

np = pytest.importorskip("numpy")
M, N, K = sym("M", multiple_of=8), sym("N", multiple_of=8), sym("K", multiple_of=8)
SKINNY = {"tiles": (16, 64, 64), "warpgroup": (16, 64)}


def by_threads(shift=1, stages=0):
    """A GEMM with loads by all threads, with or without stages."""
    chain = MatMul.tile(16, 16).to(Block).split(8)
    chain = chain.pipeline(stages) if stages else chain
    return chain.stagger_blocks(shift).load(A, SH, Move.done()).load(B, SH, Move.done()).tile(1, 1).to(Thread).split(1).done()


# ---------------------------------------------------------------------------------------------- against NumPy

KERNELS = {
    "a block each": (product(**SKINNY, stagger=1), (16, 320, 320)),
    "further apart": (product(**SKINNY, stages=4, stagger=3), (16, 320, 320)),
    "k overhangs, as do tiles": (product(**SKINNY, stages=3, stagger=2), (24, 200, 264)),
    "as many stages as iterations": (product(**SKINNY, stages=4, stagger=1), (16, 256, 256)),
    "one turn": (product(**SKINNY, stagger=1), (16, 128, 64)),
    "blocks that stay": (product(blocks=3, tiles=(64, 64, 64), stages=3, stagger=1), (192, 192, 192)),
    "ping-pong": (product(blocks=2, pingpong=2, tiles=(64, 64, 64), stages=3, stagger=1), (256, 64, 192)),
    "in clusters": (product(cluster=(2, 1), tiles=(64, 64, 64), stagger=1), (256, 128, 192)),
}


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("orders", ["NN", "NT"])
def test_kernels_are_right(name, orders):
    strategy, sizes = KERNELS[name]
    require_right(strategy, float16_gemm(*sizes, orders=orders), orders=(1,))


def test_sizes_known_at_run_time():
    """One kernel for all of them."""
    program = product(**SKINNY, stages=3, stagger=1)(float16_gemm(M, N, K, orders="NT")).program(TARGET)
    assert errors(program.ir) == []
    for sizes in ((16, 320, 320), (8, 136, 72), (16, 64, 8)):
        values = dict(zip("MNK", sizes, strict=True))
        arrays, expected = inputs_of(program.spec, values)
        assert outcome(program.ir, arrays, expected, 1, values) == "right", sizes


@pytest.mark.parametrize("stages", [0, 3])
@pytest.mark.parametrize("sizes", [(48, 32, 40), (33, 47, 37), (sym("M"), sym("N"), sym("K"))])
def test_loads_by_all_threads(stages, sizes):
    spec = MatMul(*sizes)(GL, GL, GL)(Kernel)
    program = by_threads(3, stages)(spec).program("sm_80")
    assert errors(program.ir) == []
    values = {"M": 33, "N": 20, "K": 45}
    arrays, expected = inputs_of(spec, values)
    assert outcome(program.ir, arrays, expected, None, values if isinstance(sizes[0], Expr) else None) == "right"


def test_parts_of_k_in_blocks():
    chain = MatMul.split_k(2, Block, 8).tile(16, 16).to(Block).epilog(RF, Init.done(), Move.tile(1, 1).to(Thread).done())
    chain = chain.split(8).stagger_blocks(1).load(A, SH, Move.done()).load(B, SH, Move.done()).tile(1, 1).to(Thread).split(1).done()
    spec = MatMul(32, 48, 88)(GL, GL, GL)(Kernel)
    kernel = chain(spec).program("sm_80").ir
    arrays, expected = inputs_of(spec)
    assert errors(kernel) == [] and outcome(kernel, arrays, expected) == "right"


def test_before_an_epilogue():
    text = "relu(acc + bias[n])"
    spec = float16_gemm(16, 384, 320)
    program = product(**SKINNY, stages=3, stagger=1)(spec).fuse_epilogue(text).program(TARGET)
    assert errors(program.ir) == [] and "k_start" in program.cuda
    arrays, expected = inputs_of(spec)
    bias = np.random.default_rng(2).integers(-9, 9, 384).astype(np.float16)
    got = simulate(program.ir, {**arrays, "bias": bias}).outputs["C"]
    assert np.array_equal(got, np.maximum(expected + bias, 0))


@pytest.mark.parametrize("by", ["sum", "max"])
def test_reductions(by):
    spec = Reduction(8, 44, by=by)(GL, GL)(Kernel)
    kernel = Reduction.tile(2).to(Block).tile(1).to(Thread).split(8).stagger_blocks(1).tile(1).split(1).done()(spec).program("sm_80").ir
    src = np.random.default_rng(1).integers(-9, 9, (8, 44)).astype(np.float32)
    assert errors(kernel) == [] and np.array_equal(simulate(kernel, {"src": src}).outputs["dst"], getattr(src, by)(axis=1))


# ---------------------------------------------------------------------------------------------- the lowered kernel


def steps_of(kernel):
    """The remainders that determine the step of an iteration, of the loads from global memory."""
    accesses = [access for one, _ in ir.execs(kernel.body) for access in one.accesses if kernel.buffer(access.buffer).parameter]
    return {part for access in accesses for value in access.base for part in parts_of(value) if isinstance(part, Mod)}


def parts_of(value):
    yield value
    for child in value.children:
        yield from parts_of(child)


@pytest.mark.parametrize("shift", [1, 3, 7])
def test_each_step_occurs_once(shift):
    """In every block the steps are a rotation, which starts `shift` steps later than in the preceding block."""
    kernel = product(**SKINNY, stagger=shift)(float16_gemm(16, 640, 320)).program(TARGET).ir
    (step,) = [one for one in steps_of(kernel) if one.right == Const(5)]
    lets = {one.var: one.value for one in kernel.body if isinstance(one, ir.Let)}
    for block in range(10):
        steps = [step.substitute(lets).evaluate({"block": block, "k": iteration}) for iteration in range(5)]
        assert steps == [(iteration + block * shift) % 5 for iteration in range(5)]


def test_blocks_of_a_cluster_begin_together():
    kernel = product(cluster=(2, 1), tiles=(64, 64, 64), stagger=1)(float16_gemm(256, 128, 192)).program(TARGET).ir
    lets = {one.var.name: one.value for one in kernel.body if isinstance(one, ir.Let)}
    starts = [lets["k_start"].evaluate({"block": block}) for block in range(8)]
    assert starts == [0, 0, 1, 1, 2, 2, 0, 0]
    assert any(one.multicast is not None for one, _ in ir.execs(kernel.body))


def test_text():
    text = product(**SKINNY, stages=3, stagger=1)(float16_gemm(16, 512, 320)).program(TARGET).cuda
    assert ".stagger_blocks()" in text and "const int k_start = blockIdx.x % 5;" in text
    assert text.count("const int k_shifted = k + k_start < 5 ? k + k_start : k + k_start - 5;") == 1
    assert "tma_load(" in text and "k_shifted * 64" in text and "% 5" in text
    text = product(**SKINNY, stages=3, stagger=1)(float16_gemm(16, 512, 512)).program(TARGET).cuda
    assert "const int k_shifted = (block + k) % 8;" in text or "const int k_shifted = (k + block) % 8;" in text
    text = product(**SKINNY, stages=3, stagger=1)(float16_gemm(M, N, K)).program(TARGET).cuda
    assert re.search(r"const unsigned k_shifted = k \+ k_start < (\(K \+ 63\) / 64) \? k \+ k_start : k \+ k_start - \1;", text)
    assert "quotient(blockIdx.x, k_start_reciprocal)" in text


def test_a_tunable_of_0_is_as_without():
    spec, shift = float16_gemm(16, 320, 320), Tunable("stagger", 0, 1)
    strategy = product(**SKINNY, stagger=shift)
    texts = [one(spec).program(TARGET).cuda for one in (product(**SKINNY), strategy.with_(stagger=0), strategy.with_(stagger=1))]
    assert texts[0] == texts[1] != texts[2]


def test_readers():
    strategy, spec = product(**SKINNY, stagger=2), float16_gemm(16, 320, 320)
    assert loads(dumps(strategy)) == strategy and eval(repr(strategy)) == strategy
    assert ".stagger_blocks(offset=2)" in str(strategy) and "stagger_blocks(offset=2)" in "\n".join(
        show.show(strategy(spec).program(TARGET))
    )
    assert parse_kernel(graphene_text(strategy(spec).program(TARGET))).cuda == strategy(spec).program(TARGET).cuda
    plain, with_stagger = (predict(product(**SKINNY, stagger=one)(spec).program(TARGET).ir) for one in (0, 2))
    assert with_stagger.us == pytest.approx(plain.us, rel=0.02)


@pytest.mark.parametrize(("order", "shift"), [(ColMajor, 1), (RowMajor, None)], ids=str)
def test_the_library_uses_it_for_few_rows_if_b_is_stored_by_columns(order, shift):
    name, values = defaults(hopper_skinny.spec(16, 4096, 4096, B=order), TARGET)[0]
    assert name == "hopper_skinny" and values.get("stagger") == shift


@pytest.mark.skipif(not toolchains(), reason="no NVRTC")
@pytest.mark.parametrize("sizes", [(16, 4096, 4096), (M, N, K)])
def test_compiles(sizes):
    strategy = product((16, 64, 128), (16, 64), 8, mma_in_flight=1, stagger=1)
    compiled = compile_cuda(strategy(float16_gemm(*sizes, orders="NT")).program(TARGET).cuda, TARGET)
    (resources,) = compiled.resources.values()
    assert resources.spill_stores == resources.spill_loads == 0 and "serializ" not in compiled.log


# ---------------------------------------------------------------------------------------------- printed text, and faults

TEXTS = [
    (product(**SKINNY, stages=3, stagger=1), float16_gemm(16, 384, 312, orders="NT"), {}),
    (product(**SKINNY, stages=3, stagger=1), float16_gemm(M, N, K, orders="NT"), {"M": 16, "N": 384, "K": 312}),
    (by_threads(1, 3), MatMul(sym("M"), sym("N"), sym("K"))(GL, GL, GL)(Kernel), {"M": 33, "N": 47, "K": 45}),
]

WRONG_TEXTS = {
    "one turn too late": (r"k \+ k_start < (5|\(K \+ 63\) / 64) \?", r"k + k_start <= \1 ?"),
    "never": (r"k \+ k_start < (5|\(K \+ 63\) / 64) \?", r"true ?"),
    "to the wrong turn": (r": k \+ k_start - (5|\(K \+ 63\) / 64);", r": k + k_start - \1 + 1;"),
}


@pytest.mark.nightly
@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler (g++ or clang++) on the path")
def test_the_printed_text(tmp_path):
    """Executed on the CPU; wrong wraparounds in it are detected."""
    good = [(Printed.of(strategy(spec).program(TARGET)), spec, sizes) for strategy, spec, sizes in TEXTS]
    bad = [(one.changed(*fault), spec, sizes) for one, spec, sizes in good[:2] for fault in WRONG_TEXTS.values()]
    host = HostProgram([one for one, _, _ in (*good, *bad)], tmp_path)
    for number, (_, spec, sizes) in enumerate((*good, *bad)):
        arrays, expected = inputs_of(spec, sizes)
        same = np.array_equal(host.run(number, arrays, sizes or None, 3)["C"], expected)
        assert same is (number < len(good)), number


def rewrapped(kernel, change):
    """The kernel with the step of each iteration changed."""
    names = {one: change(one) for one in steps_of(kernel)}

    def edit(stmt):
        accesses = [attrs.evolve(access, base=tuple(replaced(value, names) for value in access.base)) for access in stmt.accesses]
        return attrs.evolve(stmt, accesses=tuple(accesses))

    return attrs.evolve(kernel, body=tuple(ir.edited(kernel.body, edit)))


FAULTS = {
    "no wrap": lambda step: step.left,
    "a turn too early": lambda step: step.left % (step.right - 1),
    "a turn too late": lambda step: step.left % (step.right + 1),
    "the first turn twice": lambda step: step.left // step.right * 0 + step.left % step.right // 2 * 2,
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("problem", ["a block each", "k overhangs, as do tiles"])
def test_a_wrong_wraparound_is_found(fault, problem):
    strategy, sizes = KERNELS[problem]
    kernel = strategy(float16_gemm(*sizes)).program(TARGET).ir
    arrays, expected = inputs_of(float16_gemm(*sizes))
    assert outcome(rewrapped(kernel, lambda step: step), arrays, expected, 1) == "right"
    assert outcome(rewrapped(kernel, FAULTS[fault]), arrays, expected, 1) != "right"


@pytest.mark.parametrize("stages", [0, 3])
def test_reads_past_the_last_step_are_detected_in_the_text_alone(stages):
    """If all threads load, without executing anything."""
    kernel = by_threads(1, stages)(MatMul(48, 32, 40)(GL, GL, GL)(Kernel)).program("sm_80").ir
    assert errors(rewrapped(kernel, lambda step: step.left)) != []


# ---------------------------------------------------------------------------------------------- refused

REFUSED = {
    "no blocks yet": (lambda: MatMul.split(8).stagger_blocks(), "no tiles are assigned to Block yet"),
    "in shared memory": (
        lambda: MatMul.tile(16, 16).to(Block).split(8).load(A, SH, Move.done()).load(B, SH, Move.done()).split(4).stagger_blocks(),
        "which is private to a block",
    ),
    "a layout": (
        lambda: MatMul.tile(16, 16).to(Block).split(Layout((4, 2), (1, 8))).stagger_blocks(),
        "requires iterations along one dimension",
    ),
    "below 0": (lambda: MatMul.tile(16, 16).to(Block).split(8).stagger_blocks(-1), "stagger_blocks"),
    "too far": (lambda: MatMul.tile(16, 16).to(Block).split(8).stagger_blocks(1 << 20), "stagger_blocks"),
    "on a tile": (lambda: MatMul.tile(16, 16).to(Block).stagger_blocks(), "stagger_blocks"),
}


def test_loops_with_carried_state_are_refused():
    """A running maximum that scales the sums: nothing proves that any order is right."""
    definition = softmax_online.softmax_online
    with pytest.raises(DecompositionError, match="so their order is fixed"):
        definition.tile(m=4).to(Block).split(n=32).stagger_blocks().done()(definition(m=16, n=128)).cuda("sm_80")


def sums(*steps):
    """A definition with sums t over rows of X, and these steps of an iteration."""
    body = {f"step{number}": step for number, step in enumerate(steps)}
    operands, final = {"X": "m n", "y": "m"}, {"out": "y[m] = t[m]"}
    return Fused(name="sums", dims="m n", loop="n", operands=operands, init={"zero": "t[m] = 0"}, body=body, final=final)


def test_definitions_that_only_add():
    """The row of a block begins with other columns; the columns of the last iteration are partial."""
    definition = sums("x[m,n] = X[m,n] * X[m,n]", "t[m] += sum(n, x[m,n])")
    row = Move.tile(1, 32).to(Warp).tile(1, 1).to(Lane).done()
    strategy = definition.tile(m=1).to(Block).split(n=32).stagger_blocks(1).load("X", RF, row).done()
    spec = definition(m=5, n=100)
    assert "n_shifted = (n + n_start) % 4" in strategy(spec).cuda("sm_80")
    values = np.random.default_rng(0).standard_normal((5, 100)).astype(np.float16)
    assert np.allclose(strategy(spec).compile("sm_80")(values), (values.astype(float) ** 2).sum(1), rtol=1e-3)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("steps", [("s[m] = sum(n, X[m,n])", "t[m] = t[m] + s[m]"), ("t[m] += sum(n, X[m,n])", "x[m,n] = X[m,n] * t[m]")])
def test_definitions_that_read_carried_values(steps):
    definition = sums(*steps)
    with pytest.raises(DecompositionError, match="so their order is fixed"):
        definition.tile(m=4).to(Block).split(n=32).stagger_blocks().done()(definition(m=16, n=128)).cuda("sm_80")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    strategy, text = REFUSED[name]
    with pytest.raises(FireironError, match=text):
        _ = strategy().tile(1, 1).to(Thread).split(1).done()(MatMul(64, 64, 64)(GL, GL, GL)(Kernel)).program("sm_80").ir
