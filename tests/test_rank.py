"""Specs of any rank against NumPy: simulator, checks, printed text on the CPU, and compilation by NVRTC."""

import json
import math
import re
from types import SimpleNamespace

import attrs
import making
import numpy as np
import pytest
from printed_text import COMPILER, HostProgram, Printed

from fireiron import *
from fireiron.check import check
from fireiron.errors import FireironError
from fireiron.executable.shuffle import SHUFFLE
from fireiron.gpu.toolchain import compile_cuda, toolchains
from fireiron.language.store import dumps, loads, loads_spec
from fireiron.language.tree import Child
from fireiron.sim import simulate
from fireiron.specs.formula import formula
from fireiron.tune.record import describe, spec_of
from fireiron.values.expr import Var, as_expr
from fireiron.values.tensor import Mode, whole_view


def whole_numbers(shape, dtype=float32, seed=3):
    """Small integers, whose sums are exact in any order."""
    return np.random.default_rng(seed).integers(-9, 10, shape).astype(dtype.to_numpy())


def outputs(program, arrays):
    """The simulated output, after a check without findings."""
    assert not [one for one in check(program.ir) if one.severity == "error"]
    (output,) = simulate(program.ir, arrays).outputs.values()
    return output


def agree(cases, folder, equal=np.testing.assert_array_equal):
    """Check each (strategy, arrays, expected): simulated, and printed, compiled and executed on the CPU."""
    programs = [strategy.program("sm_80") for strategy, _, _ in cases]
    for program, (_, arrays, expected) in zip(programs, cases, strict=True):
        equal(outputs(program, arrays), expected)
    if COMPILER is not None:
        host = HostProgram(map(Printed.of, programs), folder)
        for number, (_, arrays, expected) in enumerate(cases):
            (output,) = host.run(number, arrays).values()
            equal(output, expected)


def compiles(programs):
    """Compile the texts with NVRTC if it is installed."""
    for program in programs if toolchains() else ():
        compile_cuda(program.cuda, "sm_90")


# ---------------------------------------------------------------------------------------------- copies and fills

TILES = {1: ((32,), (2,)), 2: ((32, 8), (2, 1)), 3: ((8, 8, 2), (2, 1, 2)), 4: ((4, 4, 2, 2), (1, 2, 1, 2))}
SHAPES = {1: (100,), 2: (70, 20), 3: (20, 16, 6), 4: (8, 6, 4, 5)}


@pytest.mark.parametrize("rank", SHAPES)
def test_copies_of_any_rank(rank, tmp_path):
    """Default copies, coalesced ones in both storage orders, and explicit tiles whose last one overhangs."""
    (block, thread), shape, cases = TILES[rank], SHAPES[rank], []
    unit_tile = (1,) * rank
    for order in (ColMajor, RowMajor):
        spec = Move(*shape, src=order, dst=order)(GL, GL)(Kernel)
        assert eval(repr(spec)) == spec and loads_spec(dumps(spec)) == spec
        array = whole_numbers(shape)
        for copy in (None, Move.coalesced_copy(4).done(), Move.tile(*unit_tile).to(Thread).done()):
            chain = Move.tile(*block).to(Block).load(Move.src, SH, copy).tile(*thread).to(Thread).tile(*unit_tile).done()
            assert loads(dumps(chain)) == chain
            cases.append((chain(spec), {"src": array}, array))
        cases.append((Move.tile(*block).to(Block).coalesced_copy(2).done()(spec), {"src": array}, array))
    agree(cases, tmp_path)
    compiles([cases[0][0].program("sm_90")])


def test_coalesced_follows_the_storage_order():
    """Adjacent threads copy adjacent vectors at any rank: the load is one vector per thread, at the thread's index."""
    for order, sizes, labels in ((ColMajor, (16, 16, 4), "m n p"), (RowMajor, (4, 16, 16), "p n m")):
        text = Move.tile(*sizes).to(Block).coalesced_copy(4).done()(Move(*sizes, src=order, dst=order)(GL, GL)(Kernel)).program().cuda
        first, second, third = labels.split()
        assert f"thread_{first} = threadIdx.x % 4;" in text and f"thread_{second} = threadIdx.x / 4 % 16;" in text
        assert f"thread_{third} = threadIdx.x / 64;" in text and "float4" in text


def test_view_keeps_the_storage_order_of_its_matrix():
    """A view with one dimension fixed has the storage order of the remaining dimensions."""
    steps = {RowMajor: "tile(1, 4).to(Thread).layout(RowMajor).unroll()", ColMajor: "tile(1, 1).to(Thread).layout(ColMajor).unroll()"}
    steps[Layout((3, 16, 8), (128, 1, 16))] = "tile(4, 1).to(Thread).layout(ColMajor).unroll()"  # each matrix of the batch by columns
    for order, label in steps.items():
        matrix = whole_view_of((3, 16, 8), order=order).at(0, as_expr(2), unit=False)
        counting = SimpleNamespace(workers=None)  # while threads are counted, all iterations are unrolled
        assert CoalescedCopy(4)._tile(Move.on(Block, matrix, whole_view_of((16, 8), SH)), counting).label() == label


def whole_view_of(shape, memory=GL, order=ColMajor):
    return whole_view(Tensor("x", tuple(map(as_expr, shape)), float32, memory, order))


@pytest.mark.parametrize(
    ("value", "dtype"),
    [(-math.inf, float32), (math.inf, float16), (-math.inf, bfloat16), (0.5, float16), (65504, float16), (1.5, bfloat16),
     (2.0**100, float32), (0.1, float64), (-math.inf, float64), (-(2**31), int32), (-128, int8), (448, float8_e4m3)],
    ids=str,
)  # fmt: skip
def test_init_of_any_value(value, dtype, tmp_path):
    spec = Init(9, 3, 2, dtype=dtype, value=value)(GL)(Kernel)
    assert eval(repr(spec)) == spec and loads_spec(dumps(spec)) == spec and spec.value == value
    strategy = Init.tile(8, 1, 1).to(Block).tile(1, 1, 1).to(Thread).done()(spec)
    agree([(strategy, {}, np.full((9, 3, 2), value, dtype.to_numpy()))], tmp_path)
    compiles([strategy.program("sm_90")])


@pytest.mark.parametrize(
    ("value", "dtype"),
    [(math.nan, float32), (-0.0, float32), (0.1, float32), (65505, float16), (1e39, float32), (math.inf, float8_e4m3), (math.inf, int32),
     (0.5, int32), (128, int8), ("1", float32), (True, float32), (10**400, float64)],
    ids=str,
)  # fmt: skip
def test_init_refuses_values_outside_the_type(value, dtype):
    with pytest.raises(ArgumentError, match="cannot represent the value exactly|must be a number"):
        Init(4, dtype=dtype, value=value)


def test_ranks_are_counted_and_named():
    assert str(Move(16)(GL, GL)(Kernel)) == "Move(16)(GL,GL)(Kernel)"
    assert Move(1, 2, 3, 4)(GL, GL)(Kernel).dims == ("m", "n", "p", "q")
    assert Reduction(2, 3, 4, 5)(GL, GL)(Kernel).dims == ("m", "n", "q", "p"), "p is the kind's own"
    assert Move.on(Block, whole_view_of((8,)), whole_view_of((8,), SH)).dims == ("m",)
    for call in (lambda: Move(*[1] * 40), lambda: MatMul(8, 8)):
        with pytest.raises(FireironError, match="40 dimensions|missing"):
            call()
    with pytest.raises(ArgumentError, match="src must be a view with the dimensions m, n|dst must be a view"):
        Move.on(Block, whole_view_of((8, 2)), whole_view_of((8,), SH))


# ---------------------------------------------------------------------------------------------- reductions


@pytest.mark.sampled(18)
@pytest.mark.parametrize("by", ["sum", "max", "min"])
@pytest.mark.parametrize("dtype", [float32, float16, bfloat16, float64, int32, int8], ids=str)
def test_reductions_along_the_last_dimension(by, dtype, tmp_path):
    """One, two and three dimensions of the result; at once, and in steps that accumulate."""
    cases = []
    for shape in ((40, 8), (20, 6, 8), (6, 5, 4, 8)):
        array = whole_numbers(shape, dtype)
        spec = Reduction(*shape, dtype=dtype, by=by)(GL, GL)(Kernel)
        assert eval(repr(spec)) == spec and loads_spec(dumps(spec)) == spec
        unit_tile = (1,) * (len(shape) - 1)
        chain = Reduction.tile(4, *unit_tile[1:]).to(Block).tile(*unit_tile).to(Thread)
        expected = getattr(array, by)(axis=-1).astype(array.dtype)
        np.testing.assert_array_equal(spec.reference(array), expected)
        cases += [(steps.done()(spec), {"src": array}, expected) for steps in (chain, chain.split(2))]
    agree(cases, tmp_path)
    compiles([cases[1][0].program("sm_90")])


@pytest.mark.parametrize("axes", [0, 1, -1, (0, 2), (2, 1)], ids=str)
def test_reductions_along_any_axes(axes, tmp_path):
    shape = (4, 6, 10)
    array = whole_numbers(shape)
    for by in ("sum", "max"):
        spec = Reduction(*shape, by=by, axes=axes)(GL, GL)(Kernel)
        assert eval(repr(spec)) == spec and loads_spec(dumps(spec)) == spec
        expected = getattr(array, by)(axis=axes)
        np.testing.assert_array_equal(spec.reference(array), expected)
        unit_tile = (1,) * expected.ndim
        agree([(Reduction.tile(*unit_tile).to(Block).tile(*unit_tile).to(Thread).done()(spec), {"src": array}, expected)], tmp_path)


RAGGED = {
    "straight": Reduction.tile(8).to(Block).tile(1).to(Thread).split(4).done(),
    "registers": Reduction.tile(8).to(Block).tile(1).to(Thread).split(4).load("src", RF).done(),
    "shared": Reduction.tile(8).to(Block).split(16).load("src", SH).tile(1).to(Thread).split(4).done(),
    "both": Reduction.tile(8).to(Block).split(16).load("src", SH).tile(1).to(Thread).split(4).load("src", RF).done(),
    "ahead": Reduction.tile(8)
    .to(Block)
    .split(16)
    .pipeline(2)
    .load("src", SH, Move.coalesced_copy(4).done())
    .tile(1)
    .to(Thread)
    .split(16)
    .done(),
}


@pytest.mark.parametrize("chain", RAGGED)
@pytest.mark.parametrize("by", ["max", "min"])
def test_maximum_ignores_out_of_bounds_elements(chain, by, tmp_path):
    """Out-of-bounds elements are neutral: all values are negative (positive for a minimum), and tiles overhang."""
    cases = []
    for dtype in (float32, float16, int8, int32, float64):
        array = whole_numbers((19, 37), dtype) - np.asarray(20, dtype.to_numpy())
        array = array if by == "max" else -array
        strategy = RAGGED[chain](Reduction(19, 37, by=by, dtype=dtype)(GL, GL)(Kernel))
        cases.append((strategy, {"src": array}, getattr(array, by)(1)))
    agree(cases, tmp_path)
    compiles([strategy.program("sm_80") for strategy, _, _ in cases])


def test_maximum_at_run_time_sizes():
    spec = Reduction(sym("M"), sym("P"), by="max", dtype=float16)(GL, GL)(Kernel)
    array = whole_numbers((19, 37), float16) - np.float16(20)
    for chain in ("straight", "both"):
        program = RAGGED[chain](spec).program()
        (output,) = simulate(program.ir, {"src": array}, {"M": 19, "P": 37}).outputs.values()
        np.testing.assert_array_equal(output, array.max(1))


def test_strided_tile_does_not_bound_its_buffer():
    spec = Reduction(8, 30, by="max")(GL, GL)(Kernel)
    strategy = Reduction.tile(8).to(Block).split(16).load("src", SH).tile(1).to(Thread).split(4).done()
    assert "src_sh" in strategy(spec).program().cuda
    part = spec.src.with_dims({1: attrs.evolve(spec.src.dims[1], modes=(Mode(4, 2),), bound=as_expr(30))})
    block = spec.with_operands(src=part).at_level(Block)
    with pytest.raises(DecompositionError, match="a strided tile of src is partly out of bounds"):
        _ = Reduction.load("src", SH)(block).result


def test_maximum_ignores_nan(tmp_path):
    array = np.array([[1, np.nan, 3], [np.nan, np.nan, np.nan], [np.nan, -2, np.inf]], np.float32)
    strategy = Reduction.tile(1).to(Block).tile(1).to(Thread).done()(Reduction(3, 3, by="max")(GL, GL)(Kernel))
    agree([(strategy, {"src": array}, np.array([3, np.nan, np.inf], np.float32))], tmp_path)


# ---------------------------------------------------------------------------------------------- instructions


def test_instructions_compare_specs_of_any_rank():
    """Each instruction compares itself with specs of one to four dimensions and reports differences instead of failing."""
    shapes = ((1,), (8,), (1, 1, 1), (8, 8, 8), (16, 16, 1, 1))
    places = [(left, right) for left in (GL, SH, RF) for right in (GL, SH, RF)]
    specs = []
    for level in (Block, Warp, Thread):
        for shape in shapes:
            specs += [Init(*shape, dtype=float16)(memory)(level) for memory in (GL, SH, RF)]
            specs += [Reduction(*shape, 4)(*pair)(level) for pair in places] + [AtomicAdd(*shape)(*pair)(level) for pair in places]
            specs += [Move(*shape, dtype=float16)(*pair)(level) for pair in places]
    performed = {spec for spec in specs for one in INSTRUCTIONS if not one.mismatches(spec, ARCHITECTURES[-1])}
    assert {len(spec.tile_dims) for spec in performed} == {1, 3, 4} and {spec.level for spec in performed} == {Thread, Warp}
    assert {spec.title for spec in performed} == {"Init", "Reduction", "AtomicAdd", "Move"}


def test_tiles_are_distributed_in_any_order():
    chain = Move.tile(8, 4, 2).to(Block)
    spec = Move(8, 4, 2)(GL, GL)(Kernel)
    text = chain.tile(1, 1, 1).to(Thread).layout((1, 2, 0)).done()(spec).program().cuda
    assert "thread_n = threadIdx.x % 4;" in text and "thread_p = threadIdx.x / 4 % 2;" in text and "thread_m = threadIdx.x / 8;" in text
    strategy = chain.tile(1, 1, 1).to(Thread).layout((1, 2, 0)).done()
    assert loads(dumps(strategy)) == strategy and ".layout((1, 2, 0))" in str(strategy)
    with pytest.raises(DecompositionError, match="the order of tiles must be"):
        chain.tile(1, 1, 1).to(Thread).layout((1, 2))
    with pytest.raises(DecompositionError, match="has 3 dimensions"):
        _ = chain.tile(1, 1, 1).to(Thread).layout((1, 0)).done()(spec).program().ir


@pytest.mark.parametrize("spec", [Move(64), Move(8, 4, 2, 3, dtype=float16), Init(8, value=-math.inf), Init(8, 4, 2, value=0.5)], ids=str)
def test_records_format_specs_of_any_rank(spec):
    spec = spec(*(GL for _ in spec.dtypes))(Kernel)
    assert spec_of(json.loads(json.dumps(describe(spec), allow_nan=False))) == spec


# ---------------------------------------------------------------------------------------------- pointwise

FUNCTIONS = ("-", "abs", "relu", "sqrt", "exp", "exp2", "log", "log2", "rsqrt", "tanh")


def close(bits):
    """Equal within the errors of functions: some float32 ulps, or one ulp of a shorter result type."""

    def equal(got, expected):
        assert got.dtype == expected.dtype and got.shape == expected.shape
        wide = expected.astype(np.float64)
        np.testing.assert_allclose(got.astype(np.float64), wide, rtol=2.0**-bits, atol=2.0**-bits)

    return equal


@pytest.mark.parametrize("dtype", [float32, float16, bfloat16, float64], ids=str)
def test_unary_functions(dtype, tmp_path):
    """Within two float32 ulps and one ulp of the result, plus the rounding error of the result."""
    cases = []
    array = np.linspace(0.1, 4, 36).astype(dtype.to_numpy())
    for rank, name in enumerate(FUNCTIONS):
        shape = ((36,), (6, 6), (3, 4, 3))[rank % 3]
        spec = UnaryPointwise(name, *shape, dtype=dtype)(GL, GL)(Kernel)
        assert eval(repr(spec)) == spec and loads_spec(dumps(spec)) == spec
        unit_tile = (1,) * len(shape)
        chain = UnaryPointwise.tile(3, *unit_tile[1:]).to(Block).tile(*unit_tile).to(Thread).done()
        given = array.reshape(shape) * (-1 if name in ("abs", "relu") else 1)
        cases.append((chain(spec), {"src": given}, spec.reference(given)))
    agree(cases, tmp_path, close(min(dtype.mantissa - 1, 21 if dtype != float64 else 50)))
    compiles([strategy.program("sm_90") for strategy, _, _ in cases])


@pytest.mark.sampled(6)
@pytest.mark.parametrize("sign", ["+", "-", "*", "/", "max", "min"])
@pytest.mark.parametrize("dtype", [float32, float16, bfloat16, float64, int32, int8], ids=str)
def test_binary_signs(sign, dtype, tmp_path):
    """Each result of a single operation is correctly rounded: bit-equal, also on the CPU."""
    function = {"+": np.add, "-": np.subtract, "*": np.multiply, "max": np.fmax, "min": np.fmin, "/": np.divide}[sign]
    left, right = whole_numbers((8, 3, 2), dtype, 1), np.maximum(whole_numbers((8, 3, 2), dtype, 2), 1)
    spec = BinaryPointwise(sign, 8, 3, 2, dtype=dtype)(GL, GL, GL)(Kernel)
    wide = np.float64 if dtype == float64 else np.float32
    expected = function(left.astype(wide), right.astype(wide)).astype(dtype.to_numpy())
    strategy = BinaryPointwise.tile(4, 3, 1).to(Block).tile(1, 1, 1).to(Thread).done()(spec)
    agree([(strategy, {"lhs": left, "rhs": right}, expected)], tmp_path)
    compiles([strategy.program("sm_90")])


def test_any_formula(tmp_path):
    """Signs have their usual precedence, for operands of any shape and type; out-of-bounds elements are not written."""
    x, y, bias = (
        whole_numbers(shape, dtype, seed) for shape, dtype, seed in (((10, 6), float16, 1), ((10, 6), float32, 2), ((6,), bfloat16, 3))
    )
    formulas = {
        "z[m,n] = (x[m,n] - (y[m,n] - bias[n])) * 2": (x - (y - bias.astype(np.float32))) * 2,
        "z[m,n] = -(x[m,n] + y[m,n]) * (-bias[n] - 0.5)": -(x + y) * (-bias.astype(np.float32) - 0.5),
        "z[m,n] = relu(x[m,n] + bias[n]) max y[m,n] - 4": np.maximum(np.maximum(x + bias.astype(np.float32), 0), y - 4),
        "z[m,n] = x[m,n] / (y[m,n] * y[m,n] + 1) / 2 - -bias[n]": x / (y * y + 1) / 2 + bias.astype(np.float32),
        "z[m,n] = max(x[m,n], -inf) + min(y[m,n], abs(bias[n]))": x + np.minimum(y, abs(bias.astype(np.float32))),
    }
    cases = []
    for text, expected in formulas.items():
        types = tuple({"x": float16, "y": float32, "bias": bfloat16}[name] for name in formula(text).uses if name != "z")
        spec = Pointwise(text, 10, 6, dtype=types, z_dtype=float32)(GL, GL, GL, GL)(Kernel)
        strategy = Pointwise.tile(4, 4).to(Block).tile(1, 1).to(Thread).done()(spec)
        cases.append((strategy, {"x": x, "y": y, "bias": bias}, expected.astype(np.float32)))
    agree(cases, tmp_path, close(20))
    compiles([strategy.program("sm_90") for strategy, _, _ in cases])


def test_formulas_of_integers(tmp_path):
    """Integers are computed as int and converted once; a float operand makes the formula float."""
    array = np.array([-128, -100, -7, 0, 5, 100, 127], np.int8)
    wide = array.astype(np.int32)
    formulas = {
        ("z[m] = x[m] * 3 - 1", int32): wide * 3 - 1,
        ("z[m] = max(x[m] + x[m], -100)", int8): np.maximum(wide * 2, -100).astype(np.int8),
        ("z[m] = x[m] * 0.5", float32): (wide * 0.5).astype(np.float32),
        ("z[m] = relu(x[m]) / 4", float16): (np.maximum(wide, 0) / 4).astype(np.float16),
    }
    cases = []
    for (text, dtype), expected in formulas.items():
        strategy = Pointwise.tile(2).to(Block).tile(1).to(Thread).done()(Pointwise(text, 7, dtype=int8, z_dtype=dtype)(GL, GL)(Kernel))
        cases.append((strategy, {"x": array}, expected))
    agree(cases, tmp_path)


JOINS = {"sum": ("+=", np.add), "max": ("max=", np.fmax), "min": ("min=", np.fmin)}


@pytest.mark.parametrize("by", JOINS)
@pytest.mark.parametrize("dtype", [float32, float16, bfloat16, float64, int32, int8], ids=str)
def test_accumulating_formulas(by, dtype, tmp_path):
    """The value is rounded to the output's type and combined with the output; without accumulation it is the result."""
    sign, join = JOINS[by]
    x, y = (whole_numbers((9, 7), dtype, seed) for seed in (1, 2))
    value = (2 * x.astype(np.float64) + y).astype(dtype.to_numpy())
    old = whole_numbers((9, 7), dtype, 5)
    joined = join(old.astype(np.float64), value.astype(np.float64)).astype(dtype.to_numpy())
    chain = Pointwise.tile(4, 4).to(Block).tile(1, 1).to(Thread).done()

    def strategy(accumulate):
        shape = Pointwise(f"z[m,n] {sign} 2 * x[m,n] + y[m,n]", 9, 7, dtype=dtype, accumulate=accumulate)
        return chain(shape(GL, GL, GL)(Kernel))

    agree([(strategy(False), {"x": x, "y": y}, value), (strategy(True), {"x": x, "y": y, "z": old}, joined)], tmp_path)
    compiles([strategy(True).program("sm_90")])


def test_conditional_accumulation(tmp_path):
    """In a loop, the second and later iterations accumulate."""

    @attrs.frozen
    class Twice(Decomposition):
        """The work, with `accumulate` in the second and later iterations."""

        verb = "twice"

        def expand(self, spec, context):
            draft = context.draft()
            iteration = Var(draft.fresh("turn"), 0, 1)
            body = spec.with_options(accumulate=iteration > 0)
            return draft.expansion(
                (Child("body", body),), (making.loop(iteration, as_expr(2), (making.hole("body"),), unroll=False, origin=draft.origin),)
            )

    x = whole_numbers((9,))
    for sign, expected in (("+=", 6 * x), ("max=", 3 * x), ("min=", 3 * x)):
        spec = Pointwise(f"z[m] {sign} 3 * x[m]", 9)(GL, GL)(Kernel)
        agree([(Pointwise.tile(4).to(Block).tile(1).to(Thread).then(Twice()).done()(spec), {"x": x}, expected)], tmp_path)


def test_leaf_with_several_results(tmp_path):
    """One formula per result: other types, transposed, copied, constant, accumulated."""
    kind = Kind("Several", "s[m,n] = a[m,n] + b[n]; d[n,m] += a[m,n] - b[n]; t[n,m] = a[m,n]; z[m,n] = 3; w[m,n] max= -a[m,n]")
    a, b = whole_numbers((9, 7)), whole_numbers((7,), seed=4)
    results = {"s_dtype": float16, "d_dtype": int32, "t_dtype": float64, "z_dtype": int8, "w_dtype": float32}
    spec = kind.starter(9, 7, **results, t=RowMajor)(*[GL] * 7)(Kernel)
    expected = {
        "s": (a + b).astype(np.float16), "d": (a - b).T.astype(np.int32), "t": a.T.astype(np.float64), "z": np.full((9, 7), 3, np.int8), "w": -a,
    }  # fmt: skip
    assert eval(repr(spec), {**globals(), "Several": kind.starter}) == spec and loads_spec(dumps(spec)) == spec
    through = kind.starter.tile(4, 4).to(Block).load("a", SH).tile(1, 1).to(Thread).load("b", RF).done()
    programs = [chain(spec).program("sm_80") for chain in (kind.starter.tile(4, 4).to(Block).tile(1, 1).to(Thread).done(), through)]
    for program in programs:
        assert not [one for one in check(program.ir) if one.severity == "error"]
        outputs = simulate(program.ir, {"a": a, "b": b}).outputs
        assert set(outputs) == set(expected)
        for name, right in expected.items():
            np.testing.assert_array_equal(outputs[name], right)
    compiles(programs)
    if COMPILER is not None:
        host = HostProgram(map(Printed.of, programs), tmp_path)
        for number in range(len(programs)):
            for name, output in host.run(number, {"a": a, "b": b}).items():
                np.testing.assert_array_equal(output, expected[name])


def test_a_transposed_copy_of_single_elements(tmp_path):
    transpose = Kind("Turn", "dst[n,m] = src[m,n]")
    spec = transpose.starter(9, 7)(GL, GL)(Kernel)
    array = whole_numbers((7, 9))
    agree([(transpose.starter.tile(4, 4).to(Block).tile(1, 1).to(Thread).done()(spec), {"src": array}, array.T)], tmp_path)


def test_leaf_refusals():
    """An index that only an input has, and two reduced results."""
    for text, sizes in (("z[m] += 2 * x[m,n]", None), ("s[m] = sum(n, x[m,n]); l[m] = max(n, x[m,n])", (1, 4))):
        if sizes is None:
            with pytest.raises(FireironError, match="neither in the result nor reduced"):
                Kind("No", text)
            continue
        spec = Kind("Rows", text).starter(*sizes)(GL, GL, GL)(Kernel)
        with pytest.raises(MatchError, match="no instruction of sm_90 performs Rows"):
            _ = spec.kind.starter.tile(1).to(Block).tile(1).to(Thread).done()(spec).program().ir


# ---------------------------------------------------------------------------------------------- products

PRODUCTS = {
    "bmk,bkn->bmn": ((3, 20, 12, 10), (1, 8, 4), (1, 2, 2), (2,)),
    "kbm,nkb->mnb": ((20, 12, 3, 10), (8, 4, 1), (2, 2, 1), (2,)),
    "mk,nk->mn": ((20, 12, 10), (8, 4), (2, 2), (2,)),
    "mkl,kln->mn": ((20, 12, 4, 6), (8, 4), (2, 2), (2, 3)),
    "mkp,kmp->m": ((20, 4, 6), (8,), (2,), (2, 3)),
    "bchk,bkn->nbhc": ((8, 2, 3, 2, 4), (4, 1, 1, 1), (2, 1, 1, 1), (2,)),
}
"""Signatures, with sizes (of C, then of the reduced dimensions), a block's tile, a thread's tile, and steps."""


@pytest.mark.parametrize("signature", PRODUCTS)
def test_products_of_any_signature(signature, tmp_path):
    """Multiply-adds directly from global memory, and through shared memory with sums in registers; the last tile overhangs, too."""
    sizes, block, thread, steps = PRODUCTS[signature]
    spec = MatMul(*sizes, signature=signature)(GL, GL, GL)(Kernel)
    assert eval(repr(spec)) == spec and loads_spec(dumps(spec)) == spec
    extents = dict(zip(spec.dims, sizes, strict=True))
    arrays = {name: whole_numbers(tuple(extents[dim] for dim in spec.uses[name]), seed=number) for number, name in enumerate("AB")}
    expected = np.einsum(signature, arrays["A"], arrays["B"])
    np.testing.assert_array_equal(spec.reference(arrays["A"], arrays["B"]), expected)
    unit_tile = (1,) * len(block)
    one_each = MatMul.tile(*thread).to(Thread).split(*(1 for _ in steps)).tile(*unit_tile).done()
    through = MatMul.tile(*block).to(Block).epilog(RF).split(*steps).load(A, SH).load(B, SH).then(one_each)
    cases = [(chain(spec), arrays, expected) for chain in (MatMul.tile(*block).to(Block).then(one_each), through)]
    agree(cases, tmp_path)
    compiles([strategy.program("sm_90") for strategy, _, _ in cases])


@pytest.mark.parametrize("dtype", [float16, bfloat16, float64, int8], ids=str)
def test_products_of_other_types(dtype, tmp_path):
    spec = MatMul(2, 8, 4, 6, signature="bmk,bkn->bmn", dtype=dtype)(GL, GL, GL)(Kernel)
    arrays = {"A": whole_numbers((2, 8, 6), dtype, 1), "B": whole_numbers((2, 6, 4), dtype, 2)}
    expected = np.einsum("bmk,bkn->bmn", *(one.astype(np.float64) for one in arrays.values())).astype(spec.C.dtype.to_numpy())
    agree([(MatMul.tile(1, 4, 4).to(Block).tile(1, 1, 1).to(Thread).split(1).done()(spec), arrays, expected)], tmp_path)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MatMul(8, 8, 8, 8), "4 sizes given"),
        (lambda: MatMul(8, 8, 8, signature="bmk,bkn->bmn"), "3 sizes given"),
        (lambda: MatMul(8, 8, 8, signature="mk,kn"), "does not fit C"),
        (lambda: MatMul(8, 8, 8, signature="mk->mk"), "does not fit C"),
        (lambda: MatMul(8, 8, 8, signature="mn,mn->mn"), "must reduce a dimension"),
        (lambda: MatMul(8, 8, 8, signature="mk,kn->mnp"), "3 sizes given"),
        (lambda: MatMul(8, 8, 8, signature="mmk,kn->mn"), "has a dimension twice"),
        (lambda: MatMul(8, 8, 8, signature=3), "signature must be a text"),
        (lambda: Reduction(8, 8, signature="mn->mn"), "must reduce a dimension"),
    ],
)
def test_signatures_without_meaning_are_refused(make, message):
    with pytest.raises(ArgumentError, match=message):
        make()


# ---------------------------------------------------------------------------------------------- shuffles


@pytest.mark.parametrize("dtype", [float32, float64, int32, float16, bfloat16], ids=str)
def test_shuffles(dtype, tmp_path):
    """Each lane receives the value of the lane whose index differs in the mask, for one warp and for several."""
    cases = []
    for mask, threads, memory in ((1, 32, SH), (16, 32, GL), (5, 128, GL)):
        array = whole_numbers((threads, 4), dtype)
        spec = Shfl(mask, threads, 4, dtype=dtype)(GL, GL)(Kernel)
        block = Shfl.tile(threads, 4).to(Block)
        chain = (block if memory == GL else block.load("src", SH)).tile(32, 4).to(Warp).load("src", RF).done()
        assert loads(dumps(chain(spec))) == chain(spec)
        cases.append((chain(spec), {"src": array}, array[np.arange(threads) ^ mask]))
    agree(cases, tmp_path)
    compiles([strategy.program("sm_90") for strategy, _, _ in cases])


def received(form, number, width):
    """The source lane of each of 64 threads (PTX ISA, `shfl.sync`): its own lane if its group has no such lane."""
    lanes = []
    for thread in range(64):
        first, lane = thread // width * width, thread % width
        other = {ShflIdx: number, ShflUp: lane - number, ShflDown: lane + number}[form]
        lanes.append(first + other if 0 <= other < width else thread)
    return lanes


@pytest.mark.sampled(3)
@pytest.mark.parametrize("form", [ShflIdx, ShflUp, ShflDown], ids=repr)
def test_shuffles_of_other_modes(form, tmp_path):
    """From one lane of each group, and from earlier and later lanes; in whole warps and in groups of adjacent lanes."""
    cases = []
    for number, width, dtype in ((0, 32, float32), (5, 32, float16), (31, 32, int32), (3, 8, float64), (1, 2, bfloat16), (7, 16, float32)):
        array = whole_numbers((64, 4), dtype)
        spec = form(number, 64, 4, dtype=dtype, width=width)(GL, GL)(Kernel)
        chain = form.tile(64, 4).to(Block).tile(32, 4).to(Warp).load("src", RF).done()
        assert loads(dumps(chain(spec))) == chain(spec) and eval(repr(spec)) == spec
        np.testing.assert_array_equal(spec.reference(array), array[received(form, number, width)])
        cases.append((chain(spec), {"src": array}, array[received(form, number, width)]))
    agree(cases, tmp_path)
    compiles([strategy.program("sm_90") for strategy, _, _ in cases])
    text, narrow = (cases[place][0].program("sm_80").cuda for place in (1, 3))
    name = {ShflIdx: "__shfl_sync", ShflUp: "__shfl_up_sync", ShflDown: "__shfl_down_sync"}[form]
    assert f"{name}(0xffffffff, src_rf[v], 5)" in text and f"{name}(0xffffffff, src_rf[v], 3, 8)" in narrow


def test_shuffle_groups_are_not_split():
    """A tile of 16 threads contains no group of 32: its first lanes would receive their own values."""
    with pytest.raises(FireironError, match="the index t - 1 in 32 leaves the dimension t of 16 elements"):
        _ = ShflUp.tile(16, 1).to(Block).done()(ShflUp(1, 64, 1)(GL, GL)(Kernel)).program("sm_80").ir
    assert [one.name for one in INSTRUCTIONS if isinstance(one, Shuffle)] == ["SHFL_BFLY", "SHFL_IDX", "SHFL_UP", "SHFL_DOWN"]
    with pytest.raises(ArgumentError, match="unknown mode"):
        Shuffle("SHFL_ALL", "all")


def test_shuffle_refusals():
    for spec, message in (
        (Shfl(1, 16, 4)(RF, RF)(Warp), "32 threads|shape"),
        (Shfl(1, 32, 4)(SH, RF)(Warp), "RF"),
        (Shfl(1, 32, 4, dtype=int8)(RF, RF)(Warp), "float32 or"),
        (Shfl(1, 32, 4)(RF, RF)(Block), "Warp"),
    ):
        mismatches = SHUFFLE.mismatches(spec, ARCHITECTURES[-1])
        assert any(re.search(message, one.wanted) for one in mismatches), mismatches


def test_sizes_of_matrices_by_name():
    assert Move(M=64, N=32)(GL, GL)(Kernel) == Move(64, N=32)(GL, GL)(Kernel) == Move(64, 32)(GL, GL)(Kernel)
    assert Reduction(M=8, N=4, P=2)(GL, GL)(Kernel) == Reduction(8, 4, 2)(GL, GL)(Kernel)
    assert BinaryPointwise("+", M=8, N=4)(GL, GL, GL)(Kernel) == BinaryPointwise("+", 8, 4)(GL, GL, GL)(Kernel)
    for call in (lambda: Move(N=32), lambda: Move(64, M=32), lambda: Init(4, 4, P=2, M=1)):
        with pytest.raises(ArgumentError, match="unexpected keyword"):
            call()
