"""`print_values`: a kernel prints elements from inside. The simulator and the printed text print the same lines, and no result changes.

The expected lines are computed with NumPy, from the definition's meaning. Faults in the printed text are found by a comparison of lines.
"""

import random
import re

import numpy as np
import pytest
from printed_text import COMPILER, HostProgram, Printed

from fireiron import *
from fireiron.check import safety
from fireiron.errors import ArgumentError, DecompositionError
from fireiron.gpu.toolchain import compile_cuda, toolchains
from fireiron.graphene import graphene_text, parse_kernel
from fireiron.language.store import dumps, loads
from fireiron.measure.data import random_inputs
from fireiron.sim import simulate
from fireiron.tune.task import make_task

COPY, FRAGMENTS = Move.coalesced_copy(8).done(), Move.done()
MMA = MatMul.tile(16, 16).unroll().mma_tile().done()
AMPERE = (
    MatMul.split(32).pipeline(3).load(A, SH, COPY).swizzle_storage().load(B, SH, COPY).swizzle_storage()
    .tile(32, 32).to(Warp).split(16).unroll().load(A, RF, FRAGMENTS).load(B, RF, FRAGMENTS).then(MMA)
)  # fmt: skip
HOPPER = MatMul.split(32).pipeline(3).warp_specialize(128).load(A, SH, FRAGMENTS).load(B, SH, FRAGMENTS).tile(64, 64).to(Warpgroup).done()

GEMM = Fused(
    name="gemm", dims="m n k", operands={"A": "m k", "B": "k n", "bias": "n", "C": "m n"},
    body={"product": "acc[m,n] = sum(k, A[m,k] * B[k,n])", "bias": "acc[m,n] = acc[m,n] + bias[n]", "out": "C[m,n] = 2 * acc[m,n]"},
)  # fmt: skip
SUMS = Fused(
    name="sums", dims="m n", loop="n", operands={"X": "m n", "y": "m"}, init={"zero": "s[m] = 0"},
    body={"part": "p[m] = sum(n, X[m,n])", "add": "s[m] = s[m] + p[m]"}, final={"out": "y[m] = s[m]"},
)  # fmt: skip
STEPS = Fused(
    name="steps", dims="b l m", batch="b", scan="l", operands={"X": "b l m", "y": "b m"}, init={"zero": "h[m] = 0"},
    body={"step": "h[m] = h[m] * 0.5 + X[b,l,m]"}, final={"out": "y[b,m] = h[m]"},
)  # fmt: skip
WHOLE = Fused(
    name="whole", dims="m n", operands={"X": "m n", "L": "m n", "Y": "m n"}, types={"X": int32, "L": int64, "Y": int64, "t": int32},
    body={"one": "t[m,n] = X[m,n] + 1", "two": "Y[m,n] = L[m,n] ^ t[m,n]"},
)  # fmt: skip
PLACED = Fused(
    name="placed", dims="m n", operands={"X": "m n", "Y": "m n"},
    body={"square": "t[m,n] = X[m,n] * X[m,n]", "half": "u[m,n] = t[m,n] * 0.5", "out": "Y[m,n] = u[m,n]"},
)  # fmt: skip

ADDED = Fused(
    name="added", dims="m n", operands={"X": "m n", "total": "n", "top": "n"}, types={"total": float32, "top": float32},
    body={"square": "t[m,n] = X[m,n] * X[m,n]", "add": "total[n] += sum(m, t[m,n])", "max": "top[n] max= max(m, X[m,n])"},
)  # fmt: skip

ROWS = Move.tile(1, 1).to(Thread).done()


def gemm(loop):
    return lambda prints: prints(GEMM.tile(m=64, n=64).to(Block)).step("product", loop).done()


CASES = {
    "mma": ("sm_80", gemm(AMPERE), GEMM(m=100, n=72, k=64), ("acc", "C", "A", "bias")),
    "wgmma": ("sm_90a", gemm(HOPPER), GEMM(m=100, n=72, k=64), ("acc", "C", "B")),
    "loop": ("sm_80", lambda prints: prints(SUMS.tile(m=2).to(Block)).split(n=32).load("X", RF, ROWS).done(), SUMS(m=5, n=100), ("p", "s", "y", "X")),
    "scan": (
        "sm_80", lambda prints: prints(STEPS.tile(b=1, m=32).to(Block)).split(l=1).load("X", RF, Move.tile(1).to(Thread).done()).done(),
        STEPS(b=2, l=3, m=40, dtype=float32), ("h", "y", "X"),
    ),
    "integers": (
        "sm_80", lambda prints: prints(WHOLE.tile(m=4, n=32).to(Block).tile(m=1, n=1).to(Thread)).done(), WHOLE(m=6, n=40), ("t", "Y"),
    ),
    "shared memory": (
        "sm_80",
        lambda prints: prints(PLACED.tile(m=8, n=32).to(Block).set_memory("u", SH).load("X", RF, Move.tile(1, 8).to(Thread).done())).done(),
        PLACED(m=12, n=64), ("t", "u", "Y"),
    ),
    "sums of blocks": (
        "sm_80",
        lambda prints: prints(ADDED.tile(m=8, n=32).to(Block)).load("X", RF, Move.tile(1, 1).to(Thread).done()).done(),
        ADDED(m=20, n=40), ("total", "top", "X"),
    ),
}  # fmt: skip
CONDITIONS = (
    "",
    "m == 3",
    "m >= 2 and m < 4 or m == 0",
    "{t} > 1",
    "{t} > 1 and m % 3 == 1",
    "{t} != {t}",
    "abs({t}) < 0.5 and m < size(m) - 1",
)


def parsed(line):
    """A line: step, tensor, coordinates, value, first coordinates, block, thread."""
    form = r"(\w+): (\w+)(?:\[([\d,]*)\])? (?:\+|max)?= (\S+) \((?:(.*), )?block (\d+), thread (\d+)\)"
    step, tensor, places, value, first, block, thread = re.fullmatch(form, line).groups()
    return (step, tensor, places, first or "", int(block), int(thread)), float(value)


def require_equal(got, want):
    """The same lines in any order; values may differ by rounding, because the order of additions inside an instruction is unspecified."""
    got, want = (sorted(map(parsed, lines)) for lines in (got, want))
    assert [line for line, _ in got] == [line for line, _ in want]
    assert np.allclose([value for _, value in got], [value for _, value in want], rtol=1e-4, atol=1e-4, equal_nan=True)


def drawn(seed, name):
    """A case with one to three prints, a spec and its arrays; small integers, so that comparisons do not depend on rounding."""
    choose = random.Random(seed)
    target, strategy, spec, tensors = CASES[name]
    prints = []
    for _ in range(choose.randint(1, 3)):
        tensor = choose.choice(tensors)
        prints.append((tensor, choose.choice(CONDITIONS).format(t=tensor)))

    def printing(chain):
        for tensor, where in prints:
            chain = chain.print_values(tensor, where=where)
        return chain

    arrays = random_inputs(spec, {}, np.random.default_rng(seed))
    arrays = {key: np.round(np.clip(np.asarray(array, np.float64), -4, 4)).astype(array.dtype) for key, array in arrays.items()}
    return target, strategy(lambda chain: chain), strategy(printing), spec, arrays, prints


@pytest.mark.parametrize("name", CASES)
def test_results_do_not_change(name, tmp_path, capsys):
    target, plain, printing, spec, arrays, _ = drawn(len(name), name)
    assert plain != printing and Strategy.from_json(printing.to_json()) == printing
    program = printing(spec).program(target)
    assert safety(program.lowered) == ()
    assert eval(repr(printing)) == printing and loads(dumps(printing(spec))) == printing(spec)
    assert parse_kernel(graphene_text(program)).cuda == program.cuda
    want = simulate(plain(spec).program(target).ir, arrays)
    assert want.lines == () and not capsys.readouterr().out
    for order in (None, random.Random(1)) if name != "mma" else (None,):
        result = simulate(program.ir, arrays, order=order)
        assert capsys.readouterr().out.splitlines() == list(result.lines)
        for output in spec.outputs:
            assert np.array_equal(result.outputs[output], want.outputs[output])
    assert program.text.count("printf(") >= 1
    assert ": " in printing(spec).program(target).text


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler (g++ or clang++) on the path")
@pytest.mark.parametrize(
    ("name", "seeds"), [(name, range(1)) for name in CASES] + [pytest.param(name, range(1, 5), marks=pytest.mark.nightly) for name in CASES]
)
def test_the_text_prints_the_lines_of_the_simulator(name, seeds, tmp_path):
    for seed in seeds:
        target, _, printing, spec, arrays, prints = drawn(100 * seed + len(name), name)
        program = printing(spec).program(target)
        lines = simulate(program.ir, arrays).lines
        host = HostProgram([Printed.of(program)], tmp_path)
        host.run(0, arrays, seed=seed)
        require_equal(host.lines, lines)
        assert len(set(lines)) >= len(lines) / len(prints)


@pytest.mark.skipif(not toolchains(), reason="no NVRTC installed (pip install 'fireiron[check]')")
@pytest.mark.parametrize("name", CASES)
def test_compiled(name):
    target, _, printing, spec, *_ = drawn(7, name)
    for architecture in {target, "sm_90a"} if name in ("loop", "wgmma") else {target}:
        program = printing(spec).program(architecture)
        assert program.name in compile_cuda(program.cuda, architecture).resources


def test_each_element_is_printed_once_with_its_value():
    """All elements of the accumulator and the output, against NumPy; the owner prints, so no line appears twice."""
    target, strategy, spec, _ = CASES["mma"]
    printing = strategy(lambda chain: chain.print_values("acc", step="product").print_values("C", where="n < 70"))
    arrays = random_inputs(spec, {}, np.random.default_rng(0))
    arrays = {name: np.round(array.astype(np.float32)).astype(array.dtype) for name, array in arrays.items()}
    lines = [parsed(line) for line in simulate(printing(spec).program(target).ir, arrays).lines]
    product = arrays["A"].astype(np.float64) @ arrays["B"].astype(np.float64)
    want = {("product", "acc", f"{m},{n}", ""): product[m, n] for m in range(100) for n in range(72)}
    result = (2 * (product + arrays["bias"])).astype(np.float16)
    want |= {("out", "C", f"{m},{n}", ""): result[m, n] for m in range(100) for n in range(70)}
    assert len(lines) == len(want) and {line[:4]: value for line, value in lines} == want


def test_iterations_of_a_loop():
    """A value that iterations carry, after each of them: the first coordinate of an iteration selects it."""
    target, strategy, spec, _ = CASES["loop"]
    printing = strategy(lambda chain: chain.print_values("s", where="n >= 32 and m != 1", step="add"))
    x = np.arange(500, dtype=np.float16).reshape(5, 100) % 7
    lines = [parsed(line) for line in simulate(printing(spec).program(target).ir, {"X": x}).lines]
    want = {(f"{m}", f"n = {n}"): x[m, : n + 32].astype(float).sum() for m in (0, 2, 3, 4) for n in (32, 64, 96)}
    assert {(line[2], line[3]): value for line, value in lines} == want and len(lines) == len(want)


def test_scans_and_batches():
    target, strategy, spec, _ = CASES["scan"]
    printing = strategy(lambda chain: chain.print_values("h", where="l == 2 and b == 1 and m == 39", step="step"))
    x = np.random.default_rng(0).integers(-4, 4, (2, 3, 40)).astype(np.float32)
    (line,) = simulate(printing(spec).program(target).ir, {"X": x}).lines
    value = (x[1, 0, 39] * 0.5 + x[1, 1, 39]) * 0.5 + x[1, 2, 39]
    assert line == f"step: h[39] = {value:.9g} (l = 2, block 3, thread 7)"


def test_nan_and_infinity():
    """NaN is found by a comparison with itself, and has no sign; 64-bit integers are exact."""
    strategy = lambda prints: prints(WHOLE.tile(m=4, n=32).to(Block).tile(m=1, n=1).to(Thread)).done()
    spec = WHOLE(m=1, n=2)
    arrays = {"X": np.array([[-1, 2]], np.int32), "L": np.array([[2**62, -(2**62)]])}
    lines = simulate(strategy(lambda chain: chain.print_values("Y"))(spec).program("sm_80").ir, arrays).lines
    assert [line.split(" (")[0] for line in lines] == ["two: Y[0,0] = 4611686018427387904", "two: Y[0,1] = -4611686018427387901"]
    root = Fused(name="root", dims="m", operands={"x": "m", "y": "m"}, body={"root": "t[m] = sqrt(x[m])", "out": "y[m] = t[m]"})
    printing = root.tile(m=8).to(Block).tile(m=1).to(Thread).print_values("t", where="t != t or t > 1e30").done()(root(m=4, dtype=float32))
    x = np.array([1, -1, np.inf, 4], np.float32)
    assert [line.split(" (")[0] for line in simulate(printing.program("sm_80").ir, {"x": x}).lines] == [
        "root: t[1] = nan",
        "root: t[2] = inf",
    ]


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler (g++ or clang++) on the path")
@pytest.mark.parametrize(
    ("pattern", "replacement"),
    [(r"\) == 3", ") == 4"), (r"traced_number\(acc", "traced_number(2 * acc"), (r"blockIdx\.x,\n", "blockIdx.x + 1,\n")],
    ids=["another condition", "another value", "another block"],
)
def test_injected_faults(pattern, replacement, tmp_path):
    target, strategy, spec, _ = CASES["mma"]
    program = strategy(lambda chain: chain.print_values("acc", where="m == 3 and n == 5", step="product"))(spec).program(target)
    arrays = random_inputs(spec, {}, np.random.default_rng(0))
    host = HostProgram([Printed.of(program).changed(pattern, replacement)], tmp_path)
    host.run(0, arrays)
    with pytest.raises(AssertionError):
        require_equal(host.lines, simulate(program.ir, arrays).lines)


def blocks():
    return GEMM.tile(m=64, n=64).to(Block)


@pytest.mark.parametrize(
    ("chain", "error", "message"),
    [
        (lambda: blocks().print_values("acc", where="m ="), ArgumentError, "where must be a condition"),
        (lambda: blocks().print_values(3), ArgumentError, "print_values needs the name of a tensor"),
        (lambda: blocks().print_values("nothing"), DecompositionError, "gemm has no tensor nothing"),
        (lambda: blocks().print_values("A", step="out"), DecompositionError, r"step out does not read A[\s\S]*legal   product"),
        (lambda: blocks().print_values("acc", step="none"), DecompositionError, "gemm has no step none"),
        (lambda: blocks().print_values("acc", step="out"), DecompositionError, "step out writes C"),
        (lambda: blocks().print_values("acc", where="bias > 1"), DecompositionError, "the condition reads bias"),
    ],
)
def test_refusals(chain, error, message):
    with pytest.raises(error, match=message):
        chain().step("product", AMPERE).done()(GEMM(m=100, n=72, k=64)).program("sm_80").cuda  # noqa: B018


def test_refused_inputs():
    scaled = Fused(
        name="scaled", dims="m n r", operands={"X": "r n", "rows": "m", "c": "", "Y": "m n"}, body={"y": "Y[m,n] = X[rows[m],n] * c"}
    )
    for tensor, message in (("c", "c is a number that the caller passes"), ("X", r"the indices of X are no coordinates[\s\S]*x\[...\]")):
        chain = scaled.tile(m=4, n=32).to(Block).tile(m=1, n=1).to(Thread).print_values(tensor).done()
        with pytest.raises(DecompositionError, match=message):
            _ = chain(scaled(m=8, n=32, r=9)).program("sm_80").cuda


def test_inputs_are_printed_before_they_are_read():
    """Each block that reads an element prints it once, before the step; a loop prints the elements of each iteration."""
    target, strategy, spec, _ = CASES["mma"]
    arrays = random_inputs(spec, {}, np.random.default_rng(0))
    printing = strategy(lambda chain: chain.print_values("A", where="k < 3").print_values("bias", where="bias > 0", step="bias"))
    lines = [parsed(line) for line in simulate(printing(spec).program(target).ir, arrays).lines]
    want = {("product", "A", f"{m},{k}", block): arrays["A"][m, k] for m in range(100) for k in range(3) for block in (0, 1)}
    want = {(*key[:3], 2 * (int(key[2].split(",")[0]) // 64) + key[3]): value for key, value in want.items()}
    want |= {("bias", "bias", f"{n}", 2 * row + n // 64): arrays["bias"][n] for n in range(72) for row in (0, 1) if arrays["bias"][n] > 0}
    got = {(*line[:3], line[4]): value for line, value in lines}
    assert len(lines) == len(want) and got.keys() == want.keys()
    assert all(np.isclose(got[key], float(value)) for key, value in want.items())
    target, strategy, spec, _ = CASES["loop"]
    x = random_inputs(spec, {}, np.random.default_rng(1))["X"]
    for printing in (
        strategy(lambda chain: chain.print_values("X", where="m == 3 and n >= 30")),
        SUMS.tile(m=2).to(Block).split(n=32).load("X", RF, ROWS).print_values("X", where="m == 3 and n >= 30").done(),
    ):
        lines = [parsed(line) for line in simulate(printing(spec).program(target).ir, {"X": x}).lines]
        assert {line[2]: value for line, value in lines} == pytest.approx({f"3,{n}": float(x[3, n]) for n in range(30, 100)})


def test_values_that_blocks_add():
    """The sum of the printed values is the output, and the largest one the maximum."""
    target, strategy, spec, _ = CASES["sums of blocks"]
    arrays = random_inputs(spec, {}, np.random.default_rng(0))
    program = strategy(lambda chain: chain.print_values("total").print_values("top", where="n >= 32"))(spec).program(target)
    result = simulate(program.ir, arrays)
    assert all((" += " in line) == ("total" in line) and (" max= " in line) == ("top" in line) for line in result.lines)
    lines = [parsed(line) for line in result.lines]
    sums, tops = np.zeros(40), np.full(40, -np.inf)
    for (_, tensor, place, *_), value in lines:
        if tensor == "total":
            sums[int(place)] += value
        else:
            tops[int(place)] = max(tops[int(place)], value)
    np.testing.assert_allclose(result.outputs["total"], sums, rtol=1e-4)
    np.testing.assert_allclose(result.outputs["top"][32:], tops[32:], rtol=1e-6)
    assert len(lines) == 3 * 40 + 3 * 8


IN_WARPS = (
    MatMul.tile(32, 32).to(Warp).split(32).load(A, RF, FRAGMENTS).load(B, RF, FRAGMENTS)
    .tile(16, 16).unroll().split(16).unroll().mma_tile().done()
)  # fmt: skip
ITERATIONS = {"mma": ("sm_80", AMPERE), "wgmma": ("sm_90a", HOPPER), "a loop of warps": ("sm_80", IN_WARPS)}
CORNER = "m >= 98 and n < 2 and k >= 32"


def printing_iterations(loop):
    return blocks().step("product", loop).print_values("acc", where=CORNER, iterations=True).done()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ITERATIONS)
def test_iterations_of_a_matmul(name, tmp_path):
    """The accumulator after each iteration over k is the sum of the products so far; no result changes."""
    target, loop = ITERATIONS[name]
    spec, printing = GEMM(m=100, n=72, k=96), printing_iterations(loop)
    assert Strategy.from_json(printing.to_json()) == printing and eval(repr(printing)) == printing
    program = printing(spec).program(target)
    assert safety(program.lowered) == () and parse_kernel(graphene_text(program)).cuda == program.cuda
    arrays = random_inputs(spec, {}, np.random.default_rng(0))
    arrays = {key: np.round(np.clip(np.asarray(array, np.float64) * 4, -4, 4)).astype(array.dtype) for key, array in arrays.items()}
    result = simulate(program.ir, arrays)
    a, b = (arrays[key].astype(np.float64) for key in "AB")
    want = {(f"{m},{n}", f"k = {k}"): a[m, : k + 32] @ b[: k + 32, n] for m in (98, 99) for n in (0, 1) for k in (32, 64)}
    lines = [parsed(line) for line in result.lines]
    assert {(line[2], line[3]): value for line, value in lines} == want and len(lines) == len(want)
    plain = simulate(blocks().step("product", loop).done()(spec).program(target).ir, arrays)
    assert np.array_equal(result.outputs["C"], plain.outputs["C"])
    if COMPILER is not None:
        host = HostProgram([Printed.of(program)], tmp_path)
        host.run(0, arrays)
        require_equal(host.lines, result.lines)
    if toolchains():
        assert program.name in compile_cuda(program.cuda, target).resources


def test_iterations_of_a_sparse_matmul():
    """The first factor is the sparse one, so the accumulator of the step is transposed."""
    from sparse_steps import CASES as SPARSE
    from sparse_steps import dense_of, linear, staged

    case = SPARSE["sparse right factor, two outputs"]
    printing = linear.tile(m=64, n=64).to(Block).step("product", staged()).print_values("acc", where="m == 69 and n == 3", iterations=True)
    arrays = case.arrays()
    lines = [parsed(line) for line in simulate(printing.done()(case.spec).program("sm_80").ir, arrays).lines]
    x, w = arrays["X"].astype(np.float64), dense_of(arrays["W"], arrays["E"])
    want = {("69,3", f"k = {k}"): x[69, : k + 64] @ w[3, : k + 64] for k in range(0, 256, 64)}
    assert {(line[2], line[3]): value for line, value in lines} == want


@pytest.mark.parametrize(
    ("chain", "message"),
    [
        (lambda: blocks().print_values("acc", iterations=True).step("product", AMPERE), "not the result of a matmul that has a strategy"),
        (lambda: blocks().step("product", AMPERE).print_values("C", iterations=True), r"C is not the result of a matmul[\s\S]*legal   acc"),
        (
            lambda: blocks().step("product", MatMul.tile(8, 8).to(Thread).tile(1, 1).done()).print_values("acc", iterations=True),
            "the strategy of step product has no loop",
        ),
    ],
)
def test_refused_iterations(chain, message):
    with pytest.raises(DecompositionError, match=message):
        _ = chain().done()(GEMM(m=100, n=72, k=64)).program("sm_80").cuda


def test_tuning_refuses_prints():
    target, strategy, spec, _ = CASES["loop"]
    with pytest.raises(ArgumentError, match="the strategy prints values"):
        make_task(strategy(lambda chain: chain.print_values("s")), spec, target, fixed={}, sizes={}, name="")


def test_a_sum_in_memory_is_refused():
    rows = Fused(name="rows", dims="m n", operands={"X": "m n", "y": "m"}, body={"sum": "y[m] = sum(n, X[m,n])"})
    matmul = MatMul.tile(64, 64).to(Block).print_values("C").tile(8, 8).to(Thread).split(1).done()
    with pytest.raises(DecompositionError, match="MatMul is one step"):
        matmul(MatMul(64, 64, 8)(GL, GL, GL)(Kernel)).program("sm_80").cuda  # noqa: B018
    chain = rows.tile(m=1).to(Block).load("X", RF, Move.tile(1, 1).to(Thread).done()).print_values("y").done()
    with pytest.raises(DecompositionError, match="step sum leaves y in GL"):
        chain(rows(m=4, n=32)).program("sm_80").cuda  # noqa: B018
