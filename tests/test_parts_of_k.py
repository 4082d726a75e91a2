"""GEMM with few tiles and large K: split into parts of K, which a second kernel adds."""

import numpy as np
import pytest
from printed_text import COMPILER, HostProgram, Printed

import fireiron
from fireiron import *
from fireiron.batches import cut
from fireiron.front.place import Place
from fireiron.language.store import dumps, loads
from fireiron.matmul import request
from fireiron.specs.epilogue import epilogue_of_sum, with_epilogue
from fireiron.strategies import _many_parts, add_parts
from fireiron.tune.records import available, in_parts
from fireiron.tune.records.choosing import Question
from fireiron.values.expr import constant
from fireiron.values.machine import as_architecture

RANDOM = np.random.default_rng(11)
HOPPER = "sm_90a"


@pytest.fixture(autouse=True)
def records_of_the_library(monkeypatch):
    monkeypatch.delenv("FIREIRON_RECORDS", raising=False)
    monkeypatch.delenv("FIREIRON_REQUIRE_RECORD", raising=False)
    matmul.clear()
    yield
    matmul.clear()


def float16_array(*shape):
    return (RANDOM.standard_normal(shape) * shape[-1] ** -0.5).astype("float16")


def near(result, a, b):
    wanted = a.astype("float64") @ b.astype("float64")
    assert result.shape == wanted.shape
    assert np.abs(result.astype("float64") - wanted).max() < 2e-3 * max(np.abs(wanted).max(), 1)


def of(m, n, k, **options):
    return MatMul(m, n, k, **{"dtype": float16, "c_dtype": float16, "A": RowMajor, "B": RowMajor, "C": RowMajor, **options})(GL, GL, GL)(
        Kernel
    )


# ---------------------------------------------------------------------------------------------- how many


def test_numbers_fill_the_gpu():
    """With tiles of 64 x 64, 128 x 128 or 128 x 256: half of it, all of it, or all of it twice."""
    assert {32, 16, 64} <= set(in_parts.numbers(128, 128, 16384, 2))  # of 4 tiles of 64 x 64
    assert {4, 8, 16} <= set(in_parts.numbers(64, 1024, 16384, 2))  # of 16 tiles
    assert max(in_parts.numbers(66, 64, 8192, 2)) == 32 and in_parts.numbers(1024, 1024, 16384, 2) == [2, 4, 8]


@pytest.mark.parametrize("depth", [8024, 16384, 5120, 1536, 12288, 7000, 8552, 4099])
@pytest.mark.parametrize("bytes", [1, 2, 4])
def test_parts_cover_k(depth, bytes):
    """Parts are equal if TMA accepts this; otherwise they are multiples of 256 bytes, and the last one is shorter."""
    for number in in_parts.numbers(128, 128, depth, bytes):
        part = in_parts.part_of(depth, number, bytes)
        equal = depth % number == 0 and depth // number * bytes % 16 == 0
        assert part == depth // number if equal else part * bytes % in_parts.STEP == 0
        assert part >= in_parts.LEAST and (number - 1) * part < depth <= number * part and 2 <= number <= in_parts.MOST


def test_many_tiles_and_little_k_stay_whole():
    assert in_parts.numbers(856, 536, 5088, 2) and in_parts.numbers(387, 2192, 7680, 2)
    assert not in_parts.numbers(2048, 2048, 16384, 2) and not in_parts.numbers(128 * 100, 256, 4096, 2)
    assert in_parts.numbers(64, 64, 512, 2) == [2] and in_parts.numbers(64, 64, 500, 2) == []


@pytest.mark.parametrize(
    ("spec", "target"),
    [
        (of(64, 64, 4096), "sm_90"),
        (of(64, 64, 4096), "sm_80"),
        (of(64, 64, 4096, dtype=float32, c_dtype=float32), HOPPER),
        (of(64, 64, 4096, dtype=int8, c_dtype=int32, B=ColMajor), HOPPER),
        (of(64, 64, sym("K")), HOPPER),
        (MatMul(2, 64, 64, 4096, signature="bmk,bkn->bmn", dtype=float16, c_dtype=float16)(GL, GL, GL)(Kernel), HOPPER),
    ],
)
def test_other_problems_and_targets_are_not_split(spec, target):
    assert in_parts.numbers_for(spec, Question(spec, as_architecture(target))) == []


def test_the_estimate_without_records():
    spec = of(64, 64, 4096)
    question = Question(spec, as_architecture(HOPPER))
    assert in_parts.numbers_for(spec, question) and in_parts.expected((), question) is None
    assert in_parts.expected(available(False).records, question) > 1
    assert in_parts.adding_us(64, 64, 16) < in_parts.adding_us(64, 64, 32) < in_parts.adding_us(128, 64, 32)


# ---------------------------------------------------------------------------------------------- the second kernel


@pytest.mark.parametrize(("m", "n", "parts"), [(1, 1, 2), (3, 130, 32), (33, 65, 5), (7, 256, 48), (5, 127, 17), (2117, 4, 9)])
@pytest.mark.parametrize("dtype", [float16, float32], ids=str)
def test_parts_are_added_up(m, n, parts, dtype):
    given = RANDOM.standard_normal((parts, m, n)).astype("float32")
    product = of(m, n, 64 * parts, c_dtype=dtype)
    result = add_parts.adding(product, parts).compile(HOPPER)(given)
    wanted = given.astype("float64").sum(0)
    assert result.dtype == dtype.to_numpy() and np.abs(result - wanted).max() < (2e-2 if dtype == float16 else 1e-4)


@pytest.mark.parametrize("form", [None, (32, 32, 16), _many_parts.MANY_SUMS], ids=str)
@pytest.mark.parametrize(("rows", "columns", "parts"), [(1, 20, 130), (2, 9, 128), (1, 33, 1)], ids=str)
def test_many_parts_are_added_up(rows, columns, parts, form):
    given = RANDOM.standard_normal((parts, rows, columns)).astype("float32")
    kernel = _many_parts.adding(rows, columns, parts, float32, parts % 2 == 0, form).compile(HOPPER)
    assert np.abs(kernel(given) - given.astype("float64").sum(0)).max() < 1e-4


def test_a_sum_is_stored_as_the_product_is():
    given = RANDOM.standard_normal((4, 6, 10)).astype("float32")
    for order, out in ((ColMajor, np.zeros((10, 6), "float16").T), (RowMajor(ld=16), np.zeros((6, 16), "float16")[:, :10])):
        kernel = add_parts.adding(of(6, 10, 256, C=order), 4).compile(HOPPER)
        assert kernel(given, out=out) is out
        assert np.abs(out - given.sum(0)).max() < 2e-2


# ---------------------------------------------------------------------------------------------- products


def test_factors_are_cut_without_a_copy():
    a, b = RANDOM.standard_normal((4, 12)), RANDOM.standard_normal((12, 5))
    places = cut(((4, 12), (12, 1)), ((12, 5), (5, 1)), 3)
    left, right = (fireiron.batches.viewed(one, place) for one, place in zip((a, b), places, strict=True))
    for part in range(3):
        assert np.array_equal(left[part], a[:, 4 * part : 4 * part + 4]) and np.array_equal(right[part], b[4 * part : 4 * part + 4])


@pytest.mark.parametrize(("m", "n", "k", "orders"), [(40, 72, 4104, "NN"), (65, 66, 4097, "NT"), (72, 70, 4100, "TN")])
def test_the_last_part_may_be_shorter(m, n, k, orders):
    """Elements past the end of K count as zero. Rows that TMA does not accept are copied first, once for all parts."""
    a, b = float16_array(m, k), float16_array(k, n)
    a, b = (np.asfortranarray(one) if order == "T" else one for one, order in zip((a, b), orders, strict=True))
    choice = matmul.choice(a, b, arch=HOPPER)
    assert "elements but the last one, which add_parts sums" in choice.why
    spec = choice.program.spec
    assert constant(spec.size("b")) * constant(spec.size("k")) > k and tuple(map(constant, spec.operands["A"].tensor.array.shape)) == (m, k)
    rows = {"NN": (k, n), "NT": (k, k), "TN": (m, n)}[orders]
    copied = [name for name, row in zip("AB", rows, strict=True) if row % 8]
    assert [launch.name for launch in choice.program.launches if launch.name] == copied
    near(matmul(a, b, arch=HOPPER), a, b)


def test_a_shorter_last_part_is_stored_and_read_back():
    """As the disk cache stores choices."""
    program = matmul.choice(float16_array(40, 4104), float16_array(4104, 72), arch=HOPPER).program
    assert loads(dumps(program.strategy)) == program.strategy and program.strategy.spec == program.spec


LIE = {
    "rows": lambda m, k: float16_array(m, k),
    "columns": lambda m, k: float16_array(k, m).T,
    "far apart": lambda m, k: float16_array(m, k + 8)[:, :k],
}


@pytest.mark.parametrize("left", LIE)
@pytest.mark.parametrize("right", LIE)
def test_products_in_parts(left, right):
    a, b = LIE[left](40, 4096), LIE[right](4096, 72)
    choice = matmul.choice(a, b, arch=HOPPER)
    assert "parts of K, which add_parts sums" in choice.why and not choice.exact
    result = matmul(a, b, arch=HOPPER)
    assert result.dtype == np.float16
    near(result, a, b)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", ["float16", "float32"])
def test_outputs_of_products_in_parts(kind):
    a, b = float16_array(40, 4096), float16_array(4096, 72)
    for out in (np.zeros((40, 72), kind), np.zeros((72, 40), kind).T, np.zeros((40, 80), kind)[:, :72]):
        assert "parts of K" in matmul.choice(a, b, out, arch=HOPPER).why
        assert matmul(a, b, out, arch=HOPPER) is out
        near(out, a, b)


def test_the_rows_of_a_stack_in_parts():
    """As one matrix."""
    a, b = float16_array(2, 20, 4096), float16_array(4096, 72)
    assert "parts of K" in matmul.choice(a, b, arch=HOPPER).why
    near(matmul(a, b, arch=HOPPER), a, b)


def test_sums_of_parts_are_those_of_float32():
    """Parts are not rounded to float16: terms that cancel leave at most one rounding error."""
    a, b = np.full((64, 4096), 1, "float16"), np.full((4096, 64), 1, "float16")
    b[1::2] = -1
    b[0] = 3
    assert "parts of K" in matmul.choice(a, b, arch=HOPPER).why
    assert (matmul(a, b, arch=HOPPER) == 2).all()


def test_the_kernel_of_parts_is_returned():
    """`matmul.kernel` is the one that multiplies, also with an epilogue."""
    a, b = float16_array(40, 4096), float16_array(4096, 72)
    kernel = matmul.kernel(a, b, arch=HOPPER)
    assert set(kernel.program.spec.dims) == {"b", "m", "n", "k"}
    assert matmul.kernel(a, b, arch=HOPPER, epilogue="relu(acc)").program.spec == kernel.program.spec
    with pytest.raises(StoreError):
        matmul(a, b, arch=HOPPER, require_record=True)


# ---------------------------------------------------------------------------------------------- epilogues

BIAS = RANDOM.standard_normal(72).astype("float16")
SCALES = RANDOM.standard_normal(40).astype("float32")
RESIDUAL = RANDOM.standard_normal((40, 72)).astype("float16")

EPILOGUES = {
    "bias": ("relu(acc + bias[n])", {"bias": BIAS}, lambda acc: (np.maximum(acc + BIAS, 0),)),
    "residual": (
        "acc = acc * alpha * r[m] + R[m,n]; Z = acc; C = abs(acc)",
        {"alpha": 0.5, "r": SCALES[::1], "R": RESIDUAL.T.copy().T},
        lambda acc: (0.5 * acc * SCALES[:, None] + RESIDUAL, np.abs(0.5 * acc * SCALES[:, None] + RESIDUAL)),
    ),
    "row sums": ("acc = acc + bias[n]; C = acc; y[m] += sum(n, acc)", {"bias": BIAS}, lambda acc: (acc + BIAS, (acc + BIAS).sum(1))),
    "coordinates": ("where(n <= 2 * m, acc, 0)", {}, lambda acc: (np.where(np.arange(72) <= 2 * np.arange(40)[:, None], acc, 0),)),
    "names": ("acc * P[n] + p * p_", {"P": BIAS, "p": 1.5, "p_": 2.0}, lambda acc: (acc * BIAS + 3.0,)),
}  # fmt: skip


def answered(a, b, out=None, **options):
    """Return the answer of a call, which must be a split-K kernel."""
    return matmul.answer(request(a, b, out, arch=HOPPER, **options)).product


@pytest.fixture(scope="module")
def factors():
    """Return A, B and the float64 product."""
    a, b = float16_array(40, 4096), float16_array(4096, 72)
    return a, b, a.astype("float64") @ b.astype("float64")


@pytest.mark.parametrize("name", EPILOGUES)
def test_epilogues_of_products_in_parts(factors, name):
    a, b, acc = factors
    text, given, wanted = EPILOGUES[name]
    product = answered(a, b, epilogue=text, **given)
    assert product.parts > 1 and "parts of K" in product.choice.why
    results = matmul(a, b, arch=HOPPER, epilogue=text, **given)
    for result, right in zip(results if isinstance(results, tuple) else (results,), wanted(acc), strict=True):
        assert result.shape == right.shape and np.abs(result - right).max() < 4e-3 * max(np.abs(right).max(), 1)


def test_outputs_and_types_of_epilogues_of_parts(factors):
    a, b, acc = factors
    text, given, wanted = EPILOGUES["residual"]
    z, c = np.zeros((72, 40), "float32").T, np.zeros((40, 80), "float16")[:, :72]
    results = matmul(a, b, {"Z": z, "C": c}, arch=HOPPER, epilogue=text, **given)
    assert results[0] is z and results[1] is c and answered(a, b, {"Z": z, "C": c}, epilogue=text, **given).parts > 1
    for result, right in zip(results, wanted(acc), strict=True):
        assert np.abs(result - right).max() < 4e-3 * np.abs(right).max()
    result = matmul(a, b, arch=HOPPER, epilogue="acc + bias[n]", bias=BIAS, c_dtype="float32")
    assert result.dtype == np.float32 and np.abs(result - (acc + BIAS)).max() < 1e-4


def test_rows_of_a_batch_with_an_epilogue_in_parts(factors):
    a, b, acc = factors
    text, given = "acc * r[b,m] + R[b,m,n]", {"r": SCALES.reshape(2, 20), "R": RESIDUAL.reshape(2, 20, 72)}
    assert answered(a.reshape(2, 20, 4096), b, epilogue=text, **given).parts > 1
    result = matmul(a.reshape(2, 20, 4096), b, arch=HOPPER, epilogue=text, **given)
    assert np.abs(result.reshape(40, 72) - (acc * SCALES[:, None] + RESIDUAL)).max() < 4e-3 * np.abs(acc).max() + 4e-3


def test_an_epilogue_that_reduces_columns_of_parts(factors):
    """A thread has all rows if they are few. Otherwise no kernel that adds parts is legal, and K is not split."""
    a, b, acc = factors
    text = "C = acc; y[n] = max(m, acc)"
    product = answered(a[:16], b, epilogue=text)
    assert product.parts > 1 and product.sum_kernel is not None
    c, y = matmul(a[:16], b, arch=HOPPER, epilogue=text)
    assert np.abs(c - acc[:16]).max() < 4e-3 and np.abs(y - acc[:16].max(0)).max() < 4e-3
    assert answered(a, b, epilogue=text).parts == 1


def test_an_overlapped_second_kernel_zeroes_no_output(factors):
    a, b, _ = factors
    overlapped, zeroing = (answered(a, b, epilogue=text).sum_kernel.program for text in ("relu(acc)", "C = acc; y[m] += sum(n, acc)"))
    assert any(isinstance(one, ProgrammaticLaunch) for one in overlapped.strategy.steps[0].refinements)
    assert not any(isinstance(one, ProgrammaticLaunch) for one in zeroing.strategy.steps[0].refinements)


def test_an_epilogue_of_a_sum_does_not_read_the_factors():
    with pytest.raises(ArgumentError, match="cannot read A or B"):
        epilogue_of_sum("acc + A[m,n]")


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")
def test_the_second_kernel_with_an_epilogue_runs_on_a_cpu(tmp_path):
    product = with_epilogue(of(6, 130, 1024), "relu(acc + bias[n]) * r[m]", {"r": float32}, {})
    program = add_parts.finishing(product, 4, "relu(acc + bias[n]) * r[m]")[0].program(HOPPER)
    arrays = {
        name: RANDOM.standard_normal([6 if dim == "m" else 130 if dim == "n" else 4 for dim in program.spec.uses[name]])
        for name in program.spec.inputs
    }
    arrays = {name: array.astype(program.spec.operands[name].dtype.to_numpy()) for name, array in arrays.items()}
    result = HostProgram([Printed.of(program)], tmp_path).run(0, arrays)["C"]
    wanted = np.maximum(arrays["P"].sum(0) + arrays["bias"].astype("float32"), 0) * arrays["r"][:, None]
    assert np.abs(result - wanted).max() < 4e-3 * np.abs(wanted).max()


@pytest.mark.parametrize(("m", "n", "k", "is_whole"), [(1024, 1024, 1024, True), (128, 128, 16384, False)])
def test_the_compiler_runs_during_the_checks_of_the_kernel_that_is_launched(monkeypatch, m, n, k, is_whole):
    """`Place.prove` starts the compiler. A kernel that split-K is expected to beat is not lowered."""
    started, prove = [], Place.prove
    monkeypatch.setattr(Place, "prove", lambda place, *programs: (started.extend(one.spec for one in programs), prove(place, *programs))[1])
    choice = matmul.choice(float16_array(m, k), float16_array(k, n), arch="sm_90a")
    assert ("parts of K" not in choice.why) == is_whole
    assert (MatMul(m, n, k, dtype=float16, c_dtype=float16, A=RowMajor, B=RowMajor, C=RowMajor)(GL, GL, GL)(Kernel) in started) == is_whole
