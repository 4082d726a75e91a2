"""Formulas: what the parser accepts and refuses, what is derived from a declaration, and that the meaning rounds as threads do."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

import fireiron
from fireiron import *
from fireiron.check import check
from fireiron.language.store import dumps, loads, loads_spec
from fireiron.sim import simulate
from fireiron.specs.formula import COMPARISONS, FUNCTIONS, REDUCTIONS, Element, Formula, Index, Number, Operation, definition, formula

SPECS = (
    MatMul(8, 4, 16, dtype=float16, c_dtype=float32, accumulator=float32, accumulate=True)(GL, GL, GL)(Kernel),
    Move(8, 4, dst_dtype=float16, dst=RowMajor)(GL, GL)(Kernel),
    Init(8, 4, value=3)(GL)(Kernel),
    Reduction(8, 4, 3, dtype=float16, src=RowMajor)(GL, GL)(Kernel),
    AtomicAdd(8, 4)(GL, GL)(Kernel),
    UnaryPointwise("relu", 8, 4)(GL, GL)(Kernel),
    UnaryPointwise("-", sym("M"), 4, dst_dtype=float16)(GL, GL)(Kernel),
    BinaryPointwise("*", 8, 4, dtype=float16)(GL, GL, GL)(Kernel),
    Pointwise("y[m,n] = relu(x[m,n] + bias[n]) * 0.5", 8, 4, dtype=(float32, float16))(GL, GL, GL)(Kernel),
    Pointwise("y[i] = max(x[i], -inf)", 64, y=RowMajor)(GL, GL)(Kernel),
    Shfl(16, 32, 4)(RF, RF)(Warp),
    ShflIdx(3, 32, 4, width=8)(RF, RF)(Warp),
    ShflUp(1, 32, 4)(RF, RF)(Warp),
    ShflDown(16, 64, 2)(GL, GL)(Kernel),
    Allocate(8, 4, dtype=float16)(SH)(Block),
)
SCALE = Kind("Scale", "y[i,j] = {by} * x[i,j]", (Parameter("by"),))
Scale = SCALE.starter


# ---------------------------------------------------------------------------------------------- parsing


def drawn(choose: random.Random) -> Formula:
    """A random formula with every rule of the grammar."""
    dims = choose.sample("mnkpt", choose.randrange(1, 5))
    cut = choose.randrange(1, len(dims) + 1)
    result, over = tuple(dims[:cut]), tuple(dims[cut:])
    reduction = choose.choice(list(REDUCTIONS)) if over else None
    sign = choose.choice(["=", REDUCTIONS[reduction]]) if reduction else choose.choice(["=", "+=", "max=", "min="])
    tensors = {name: tuple(map(Index, choose.sample(dims, choose.randrange(1, len(dims) + 1)))) for name in ("a", "B", "c_1")}
    tensors["all"] = tuple(map(Index, dims))

    def value(depth: int):
        kind = choose.randrange(5) if depth else choose.randrange(2)
        if kind == 0:
            return Number(choose.choice([0, 3, -2, 0.25, 1e-05, float("inf"), float("-inf")]))
        if kind == 1:
            name = choose.choice(list(tensors))
            return Element(name, tensors[name])
        if kind == 2:
            name = choose.choice(list(FUNCTIONS))
            if name == "where":
                return Operation(name, (condition(2), value(depth - 1), value(depth - 1)))
            return Operation(name, tuple(value(depth - 1) for _ in range(FUNCTIONS[name])))
        if kind == 3:
            inner = value(depth - 1)
            return Number(-inner.value) if isinstance(inner, Number) else Operation("-", (inner,))
        return Operation(choose.choice("+-*/"), (value(depth - 1), value(depth - 1)))

    def condition(depth: int):
        if depth and choose.randrange(2):
            return Operation(choose.choice(["and", "or"]), (condition(depth - 1), condition(depth - 1)))
        return Operation(choose.choice(COMPARISONS), (value(1), value(1)))

    right = Operation(choose.choice("+-*/"), (value(3), Element("all", tensors["all"])))
    return Formula(Element("out", tuple(map(Index, result))), sign, right, reduction, over)


def test_texts_of_formulas_are_read_back() -> None:
    choose = random.Random(7)
    for _ in range(500):
        random_formula = drawn(choose)
        again = formula(str(random_formula))
        assert str(again) == str(random_formula)
        assert again == random_formula, str(random_formula)


def test_operands_and_dimensions_are_derived_from_a_formula() -> None:
    gemm = formula("C[m,n]+=sum(k,A[m,k]*B[k,n])")
    assert str(gemm) == "C[m,n] += sum(k, A[m,k] * B[k,n])"
    assert dict(gemm.uses) == {"A": ("m", "k"), "B": ("k", "n"), "C": ("m", "n")} and list(gemm.uses) == ["A", "B", "C"]
    assert (gemm.dims, gemm.output, gemm.operations) == (("m", "n", "k"), "C", 2)
    assert formula("y[m] max= max(n, X[m,n])").dims == ("m", "n")
    assert formula("d[b,m] = sum(n, k, X[n,m,k,b])").dims == ("b", "m", "n", "k")


def test_a_number_as_condition_means_not_zero() -> None:
    assert str(formula("C[m] = where(keep[m], A[m], 0)")) == "C[m] = where(keep[m] != 0, A[m], 0)"
    conditional = formula("C[m] = where(((A[m]) + 1) * 2 > B[m] and (x or (y < 1)), 1, 0)")
    assert str(conditional) == "C[m] = where((A[m] + 1) * 2 > B[m] and (x != 0 or y < 1), 1, 0)"


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected the tensor that is written"),
        ("C", "'C' without its indices"),
        ("C[m", "expected \\], got the end after 'C\\[m'"),
        ("C[m]=", "expected a value"),
        ("C[m] == A[m]", "got '==' after"),
        ("C[m] = where(A[m] 1, 2)", "expected < or <= or > or >= or == or !="),
        ("C[m] = A[k]", "k of A\\[k\\] is neither in the result nor reduced"),
        ("C[m] = A[m] B[m]", "expected the end, got 'B' after 'C\\[m\\] = A\\[m\\]'"),
        ("C[m] = A[m.x]", "'.' after"),
        ("C[m] = tan(A[m])", "unknown function 'tan'"),
        ("C[m] = __import__('os')", "unknown function '__import__'"),
        ("C[m] = 1 + sum(k, A[m,k])", "'sum' is a reduction, which cannot be a part of a value[\\s\\S]*whole right side"),
        ("C[m] = max(A[m])", "max takes 2 values, not 1"),
        ("C[m] += max(k, A[m,k])", "max needs the sign = or max=, not"),
        ("C[m] = sum(k, A[m])", "k is reduced, but no element has it"),
        ("C[m] = C[m] + 1", "C is read and written"),
        ("C[m] = A[m] + A[m ^ 1]", "A is read with two different index lists"),
        ("C[m] = A[m,m]", "A\\[m,m\\] has a dimension twice"),
        ("C[m,m] = A[m]", "each of its dimensions once"),
        ("C[m ^ 1] = A[m]", "each of its dimensions once"),
        ("C[m] = sum(m, A[m])", "each of its dimensions once"),
        ("C[m] = A[m ^ k]", "expected an integer after m \\^"),
        ("C[m] = " + "(" * 400 + "1" + ")" * 400, "nested too deeply"),
        ("C[m] = A[m]; C[m] = B[m]", "a tensor is written twice"),
        ("C[m] = A[m]; D[n] = A[n]", "D\\[n\\] has other dimensions than C\\[m\\]"),
        ("C[m] = A[m]; D[m] = C[m]", "C is read and written"),
        ("C[m,n] = A[m,n]; D[m,n] = A[n,m]", "A is read with two different index lists"),
        ("C[m] = A[m];", "got the end after ''"),
        ("x" * 3000, "at most 2000 characters"),
        (None, "a formula is a text"),
    ],
)
def test_invalid_formulas_are_refused(text: object, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        definition(text)  # type: ignore[arg-type]


# ---------------------------------------------------------------------------------------------- derived from a declaration


@pytest.mark.parametrize("spec", [*SPECS, Scale(3, 8, 4)(GL, GL)(Kernel)], ids=str)
def test_texts_and_json_follow_from_the_declaration(spec: Spec) -> None:
    names: dict[str, object] = {"Scale": Scale}
    exec("from fireiron import *", names)
    for variant in (spec, spec.tile(**{spec.tile_dims[-1]: 2}).result):
        assert eval(repr(variant), dict(names)) == variant and hash(eval(repr(variant), dict(names))) == hash(variant)
        assert loads_spec(dumps(variant)) == variant
    long = repr(spec.starter.on(spec.level, *spec.views, **dict(spec.parameters), names=tuple(f"{dim}_0" for dim in spec.dims)))
    assert ".on(" in long and eval(long, dict(names)).labels == tuple(f"{dim}_0" for dim in spec.dims)
    chain = spec.starter.tile(2).to(Thread)
    for strategy in (chain, chain(spec)):
        assert loads(dumps(strategy)) == strategy and loads(dumps(strategy)).start == spec.starter
    assert {spec.with_operands(**{name: view}) for name, view in spec.operands.items()} == {spec}


@pytest.mark.parametrize("text", ["t ^ 5", "t + 3 in 8", "t - 1 in 32", "t = 0 in 4", "t = 3 in 4"])
def test_indices_of_other_elements_round_trip(text: str) -> None:
    stencil = formula(f"y[t,v] = x[{text},v]")
    (element,) = stencil.elements
    assert str(stencil) == f"y[t,v] = x[{text},v]" and formula(str(stencil)) == stencil and not element.plain
    assert formula("y[t] = x[t + 0 in 8]").elements[0].plain and not stencil.copies


def test_flops_and_bytes_follow_from_the_formula() -> None:
    counts = {spec.title: (str(spec.flops), str(spec.bytes)) for spec in SPECS if "M" not in str(spec.sizes)}
    assert counts == {
        "MatMul": ("1024", str((8 * 16 + 16 * 4) * 2 + 2 * 8 * 4 * 4)), "Move": ("0", str(32 * 4 + 32 * 2)), "Init": ("0", "128"),
        "Reduction": ("96", str(96 * 2 + 32 * 2)), "AtomicAdd": ("32", str(32 * 4 * 3)), "UnaryPointwise": ("32", "256"),
        "BinaryPointwise": ("32", "192"), "Pointwise": ("64", "512"), "Shfl": ("0", "1024"), "Allocate": ("0", "64"),
        "ShflIdx": ("0", "1024"), "ShflUp": ("0", "1024"), "ShflDown": ("0", "1024"),
    }  # fmt: skip
    M = sym("M")
    spec = MatMul(M, 4, 8, accumulate=M % 2)(GL, GL, GL)(Kernel)
    assert (spec.flops.evaluate({"M": 3}), spec.bytes.evaluate({"M": 3}), spec.bytes.evaluate({"M": 2})) == (192, 320, 224)


def test_questions_are_answered_by_the_formula() -> None:
    properties = ("copies", "fills", "multiplies", "contracts", "reduces", "pointwise", "atomic")
    answers = {spec.title: [name for name in properties if getattr(spec, name)] for spec in SPECS}
    assert answers == {
        "MatMul": ["multiplies", "contracts"], "Move": ["copies"], "Init": ["fills"], "Reduction": ["reduces"], "AtomicAdd": ["atomic"],
        "UnaryPointwise": ["pointwise"], "BinaryPointwise": ["pointwise"], "Pointwise": ["pointwise"], "Shfl": [], "Allocate": [],
        "ShflIdx": [], "ShflUp": [], "ShflDown": [],
    }  # fmt: skip
    assert Kind("Copy", "dst[i,j] = src[i,j]").starter(8, 4)(GL, SH)(Block).copies, "whatever its dimensions are called"
    assert not Kind("Turn", "dst[i,j] = src[j,i]").starter(8, 4)(GL, SH)(Block).copies


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Scale(8, 8), "Scale: 1 sizes given"),
        (lambda: Scale(), "missing a required argument: 'by'"),
        (lambda: Scale("3", 8, 8), "by must be an integer"),
        (lambda: Scale(3, 8, 8, color=1), "unexpected keyword argument 'color'"),
        (lambda: Scale(3, 8, 8, dtype=(float32, float16)), "one for each input"),
        (lambda: Scale(3, 8, 8, accumulate=True)(GL, GL)(Kernel), "cannot accumulate"),
        (lambda: Scale(3, 8, 8, accumulator=float32)(GL, GL)(Kernel), "not a sum of products"),
        (lambda: Scale(3, 8, 8)(GL), "1 memories given"),
        (lambda: SPECS[0].with_operands(D=SPECS[0].C), "MatMul has no operand D"),
        (lambda: MatMul.on(Kernel, *SPECS[0].views, value=3), "value is neither an operand nor an option"),
        (lambda: UnaryPointwise("tan", 8, 8), "unknown operation"),
        (lambda: BinaryPointwise("+ lhs[m,n] *", 8, 8), "unknown operation"),
        (lambda: Pointwise("y[m] = sum(n, x[m,n])", 8)(GL, GL)(Kernel), "1 sizes given"),
        (lambda: Shfl(16, 16, 1)(RF, RF)(Warp), "the index t \\^ 16 leaves the dimension t of 16 elements"),
        (lambda: Shfl(1, 24, 1)(RF, RF)(Warp), "the index t \\^ 1 leaves the dimension t of 24 elements"),
        (lambda: ShflIdx(8, 32, 1, width=8)(RF, RF)(Warp), "the index t = 8 in 8 leaves the dimension t of 32 elements"),
        (lambda: ShflUp(1, 48, 1)(RF, RF)(Warp), "the index t - 1 in 32 leaves the dimension t of 48 elements"),
        (lambda: ShflDown(1, 48, 1, width=12)(RF, RF)(Warp), "the index t \\+ 1 in 12 leaves the dimension t of 48 elements"),
        (lambda: ShflDown(1, sym("T"), 1)(GL, GL)(Kernel), "the index t \\+ 1 in 32 leaves the dimension t of T elements"),
        (lambda: formula("y[t] = x[t - 1]"), "selects elements by an affine index"),
        (lambda: formula("y[t] = x[t = u in 2]"), "expected an integer after t ="),
        (lambda: Kind("Two words", "y[i] = x[i]"), "an identifier"),
        (lambda: Kind("Bad", "y[i] = x[j]"), "neither in the result nor reduced"),
        (lambda: Kind("Bad", "y[i] = {by} * x[i]"), "the parameters of the formula are not those of the kind"),
        (lambda: Kind("Bad", "y[i] = {by.real} * x[i]", (Parameter("by"),)), "the parameters of the formula are not those of the kind"),
        (lambda: Kind("Bad", "y[i] = level[i]").starter(8)(GL, GL)(Kernel), "level is reserved"),
        (lambda: Allocate(8, 4)(SH)(Block).reference(), "leaves the values of dst unspecified"),
    ],
)  # fmt: skip
def test_missing_information_in_a_declaration_is_refused(call, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        call()


# ---------------------------------------------------------------------------------------------- meaning

FLOATS = (float16, bfloat16, float32, float64)


def values_of(spec: Spec, seed: int) -> dict[str, np.ndarray]:
    """Random elements of each operand for 2 x 6 threads, which are the last two dimensions."""
    draw = np.random.default_rng(seed)
    arrays = {}
    for name, view in spec.operands.items():
        shape = (*(int(str(size)) for size in view.shape), 2, 6)
        wide = draw.integers(-100, 100, shape) if view.dtype.kind == "int" else draw.standard_normal(shape) * 8
        arrays[name] = wide.astype(view.dtype.to_numpy())
    return arrays


def conditions(seed: int) -> list[object]:
    return [True, False, np.random.default_rng(seed).random((2, 6)) < 0.5]


def same_bits(left: np.ndarray, right: np.ndarray) -> bool:
    return left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()


@pytest.mark.parametrize("result", [*FLOATS, int32], ids=str)
@pytest.mark.parametrize("factor", [*FLOATS, int8, int32], ids=str)
def test_a_sum_of_products_rounds_after_each_term(factor: DType, result: DType) -> None:
    """Written out: multiply-adds in the order of k, each rounded to the type of C; for 16-bit floats in float32."""
    spec = MatMul(3, 4, 7, dtype=factor, c_dtype=result)(RF, RF, RF)(Thread)
    values = values_of(spec, 3)
    numpy_type = result.to_numpy()
    wide = np.float32 if result in (float16, bfloat16) else numpy_type
    for accumulate in conditions(3):
        expected = np.zeros((3, 4, 2, 6), numpy_type)
        if accumulate is not False:
            expected = np.where(accumulate, values["C"], expected)
        for m in range(3):
            for n in range(4):
                for k in range(7):
                    product = values["A"][m, k].astype(wide) * values["B"][k, n].astype(wide)
                    expected[m, n] = (expected[m, n].astype(wide) + product).astype(numpy_type)
        assert same_bits(spec.perform(values, accumulate)["C"], expected)


@pytest.mark.parametrize("result", FLOATS, ids=str)
@pytest.mark.parametrize("term", FLOATS, ids=str)
def test_another_sum_rounds_once(term: DType, result: DType) -> None:
    """Written out: added in the order of p in the type of the terms (float32 for 16-bit floats), converted at the end."""
    spec = Reduction(3, 4, 7, dtype=term, dst_dtype=result)(RF, RF)(Thread)
    values = values_of(spec, 4)
    wide = np.float32 if term in (float16, bfloat16) else term.to_numpy().type
    for accumulate in conditions(4):
        total = values["src"][:, :, 0].astype(wide)
        if accumulate is not False:
            total = np.where(accumulate, values["dst"].astype(wide), wide(0)) + total
        for p in range(1, 7):
            total = total + values["src"][:, :, p].astype(wide)
        with np.errstate(over="ignore"):
            assert same_bits(spec.perform(values, accumulate)["dst"], total.astype(result.to_numpy()))


def test_maxima_accumulate_into_the_output() -> None:
    """Without accumulation the old value does not count, whatever its sign: the identity of a maximum is not zero."""
    spec = Kind("Top", "y[m] max= max(n, x[m,n])").starter(3, 5)(RF, RF)(Thread)
    values = values_of(spec, 5)
    values = {"x": -abs(values["x"]) - 1, "y": np.zeros((3, 2, 6), np.float32)}
    joins = conditions(5)[2]
    expected = np.where(joins, 0, values["x"].max(axis=1)).astype(np.float32)
    assert same_bits(spec.perform(values, joins)["y"], expected)
    assert same_bits(spec.perform(values, False)["y"], values["x"].max(axis=1))
    maximum = Kind("Top", "y[m] max= max(n, x[m,n])").starter(3, 5, dtype=int32)(GL, GL)(Kernel)
    array = np.arange(15, dtype=np.int32).reshape(3, 5) - 20
    np.testing.assert_array_equal(maximum.reference(array), array.max(axis=1))


def test_meaning_of_pointwise_formulas() -> None:
    spec = SPECS[8]
    assert spec.title == "Pointwise"
    x, bias = np.linspace(-3, 3, 32, dtype=np.float32).reshape(8, 4), np.arange(4, dtype=np.float16)
    expected = (np.maximum(x.astype(np.float64) + bias, 0) * 0.5).astype(np.float32)
    np.testing.assert_array_equal(spec.reference(x, bias), expected)
    got = spec.perform({"x": x[..., None], "bias": bias[:, None], "y": np.zeros((8, 4, 1), np.float32)}, False)["y"]
    np.testing.assert_array_equal(got[..., 0], np.maximum(x + bias, 0) * np.float32(0.5))
    alone = Pointwise("y[m,n] = exp2(bias[n])", 8, 4)(GL, GL)(Kernel)
    assert alone.reference(np.ones(4, np.float32)).shape == (8, 4)
    functions = {
        "abs": np.abs, "exp": np.exp, "exp2": np.exp2, "log": np.log, "log1p": np.log1p, "log2": np.log2, "relu": lambda v: v.clip(0), "-": np.negative,
        "rsqrt": lambda v: v**-0.5, "sqrt": np.sqrt, "tanh": np.tanh, "tanh_approx": np.tanh, "erf": np.vectorize(math.erf),
        "sigmoid": lambda v: 1 / (1 + np.exp(-v)), "silu": lambda v: v / (1 + np.exp(-v)),
        "gelu": lambda v: v / 2 * (1 + np.vectorize(math.erf)(v / 2**0.5)), "floor": np.floor, "round": np.round, "sin": np.sin, "cos": np.cos,
    }  # fmt: skip
    assert set(functions) == {"-", *(name for name, count in FUNCTIONS.items() if count == 1)} - {
        "bits",
        "e2m1",
        "e8m0",
        "from_bits",
        "int32",
    }
    array = np.linspace(0.25, 4, 32).reshape(8, 4)
    for name, function in functions.items():
        result = UnaryPointwise(name, 8, 4, dtype=float64)(GL, GL)(Kernel).reference(array)
        np.testing.assert_allclose(result, function(array), rtol=1e-15)


def test_meaning_of_a_shuffle() -> None:
    values = np.arange(128, dtype=np.float32).reshape(32, 4)
    got = Shfl(8, 32, 4)(RF, RF)(Warp).perform({"src": values, "dst": values}, False)["dst"]
    for lane in range(32):
        np.testing.assert_array_equal(got[lane], values[lane ^ 8])


def test_meaning_of_indices_in_any_order() -> None:
    draw = np.random.default_rng(6)
    a, b = draw.integers(-4, 5, (2, 5, 3)).astype(np.float32), draw.integers(-4, 5, (5, 4, 2)).astype(np.float32)
    batched = Kind("Batched", "C[m,b,n] += sum(k, A[b,k,m] * B[k,n,b])").starter(3, 2, 4, 5)(GL, GL, GL)(Kernel)
    expected = np.einsum("bkm,knb->mbn", a, b)
    np.testing.assert_array_equal(batched.reference(a, b), expected)
    np.testing.assert_array_equal(batched.perform({"A": a, "B": b, "C": np.zeros((3, 2, 4), np.float32)}, False)["C"], expected)
    with pytest.raises(ArgumentError, match="the shapes A\\[b,k,m\\], B\\[k,n,b\\]"):
        batched.reference(a[0], b)


def test_meaning_of_several_outputs() -> None:
    """One formula each, with separate types; accumulation is per output."""
    both = Kind("Both", "s[m] += sum(n, x[m,n]); t[m] = max(n, x[m,n] * 2)").starter
    spec = both(3, 5, dtype=float32, s_dtype=float64, accumulate=True)(GL, GL, GL)(Kernel)
    assert (spec.dims, spec.tile_dims, spec.outputs, list(spec.uses)) == (("m", "n"), ("m",), ("s", "t"), ["x", "s", "t"])
    assert (str(spec.flops), str(spec.bytes), spec.reduces, eval(repr(spec), {**vars(fireiron), "Both": both})) == (
        "45",
        "120",
        False,
        spec,
    )
    x = np.arange(15, dtype=np.float32).reshape(3, 5) - 7
    total, largest = spec.reference(x)
    np.testing.assert_array_equal(total, x.sum(axis=1, dtype=np.float64))
    np.testing.assert_array_equal(largest, 2 * x.max(axis=1))
    assert (total.dtype, largest.dtype) == (np.float64, np.float32)
    previous = {"x": x, "s": np.full(3, 100.0), "t": np.full(3, 100, np.float32)}
    got = spec.perform(previous, True)
    np.testing.assert_array_equal(got["s"], total + 100)
    np.testing.assert_array_equal(got["t"], largest)
    assert loads_spec(dumps(spec)) == spec


# ---------------------------------------------------------------------------------------------- user-defined kinds


def test_a_kind_of_ones_own_is_compiled() -> None:
    """A declaration from outside the package: the verbs, a micro-kernel, the simulator and the printer support it."""
    chain = Scale.tile(8, 8).to(Block).tile(2, 1).to(Thread).tile(1, 1).done(MicroKernel("scale", "*y = 3 * *x;"))
    program = chain(Scale(3, 20, 16)(GL, GL)(Kernel)).program("sm_80")
    array = np.asfortranarray(np.arange(320, dtype=np.float32).reshape(20, 16))
    np.testing.assert_array_equal(simulate(program.ir, {"x": array}).outputs["y"], 3 * array)
    assert "*y = 3 * *x;" in program.cuda and "Scale<3>(1,1)(GL,GL)(Thread)" in program.cuda
    assert not [one for one in check(program.ir) if one.severity == "error"]
    with pytest.raises(DecompositionError, match="starts from MatMul, but the spec is a Scale"):
        MatMul.tile(8, 8)(Scale(3, 8, 8)(GL, GL)(Kernel))
    plain = Scale.tile(8, 8).to(Block).tile(2, 1).to(Thread).tile(1, 1).done()(Scale(3, 20, 16)(GL, GL)(Kernel)).program("sm_80")
    np.testing.assert_array_equal(simulate(plain.ir, {"x": array}).outputs["y"], 3 * array)
    assert "3.0f *" in plain.cuda
    transpose = Kind("Turn", "y[i,j] = x[j,i]").starter
    with pytest.raises(MatchError, match="no instruction of sm_80 performs Turn"):
        _ = transpose.tile(8, 8).to(Block).tile(2, 1).to(Thread).done()(transpose(8, 8)(GL, GL)(Kernel)).program("sm_80").ir


@pytest.mark.parametrize("text", ["max(m, n) * 2", "2 * max(m, n)", "min(m, n) + 1", "max(m, n) - min(m, n)", "max(m, n)", "min(n, 3)"])
def test_a_formula_may_begin_with_the_larger_of_two_coordinates(text):
    """The rest after it is not a reduction, which would apply to a whole value, and reduce a dimension that the result lacks."""
    definition = Fused(name="coordinates", dims="m n", operands={"Y": "m n"}, body={"write": f"Y[m,n] = {text}"})
    m, n = np.indices((5, 7))
    result = definition(m=5, n=7, dtype=float32).reference()
    assert np.array_equal(result, eval(text, {"m": m, "n": n, "max": np.maximum, "min": np.minimum}))


INSTEAD = {
    "X[m,n] ** 2": "do      x * x, or exp2(y * log2(x))",
    "1 if X[m,n] > 0 else 2": "do      where(condition, value, other value)",
    "X[m,n] > 0": "do      a condition is the first argument of where: where(... > ..., 1, 0)",
    "X[m,0]": "do      an operand without this dimension, and a slice of the array in the call",
    "mean(n, X[m,n])": "do      sum(n, ...) in one step, and / size(n) in the next one",
    "pow(X[m,n], 2)": "do      x * x, or exp2(y * log2(x))",
}


@pytest.mark.parametrize("text", INSTEAD)
def test_what_to_write_instead_of_forms_of_python(text):
    with pytest.raises(ArgumentError) as refused:
        Fused(name="k", dims="m n", operands={"X": "m n", "Y": "m n"}, body={"s": f"Y[m,n] = {text}"})
    assert INSTEAD[text] in str(refused.value)
