"""`fireiron.matmul` without a GPU: NumPy arrays through the simulator, and the kernel that other libraries' arrays would get."""

import itertools
import sys
import threading
import types

import attrs
import numpy as np
import pytest
from near import Near

import fireiron
from fireiron import *
from fireiron import matmul_choice
from fireiron.front import cache, place
from fireiron.gpu import launch, toolchain
from fireiron.language import library
from fireiron.language.library import FEW_BLOCKS, defaults
from fireiron.tune.record import describe, strategy_hash
from fireiron.tune.records import collection


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.delenv("FIREIRON_RECORDS", raising=False)
    monkeypatch.delenv("FIREIRON_REQUIRE_RECORD", raising=False)
    monkeypatch.setattr(collection, "_shipped", lambda: ())
    matmul.clear()
    yield
    matmul.clear()


def array(shape, dtype, stored, seed=0):
    """Small integers in a given storage order: sums are exact in every type."""
    rows, columns = shape
    arrays = {
        "row": lambda: np.empty(shape, dtype),
        "col": lambda: np.empty((columns, rows), dtype).T,
        "row slice": lambda: np.empty((rows + 2, columns + 5), dtype)[1 : rows + 1, 3 : columns + 3],
        "col slice": lambda: np.empty((columns + 2, rows + 5), dtype)[1 : columns + 1, 3 : rows + 3].T,
    }[stored]()
    arrays[...] = np.random.default_rng(seed).integers(-3, 4, shape).astype(dtype)
    return arrays


def batch(shape, dtype, stored, seed=0):
    """Small integers in a batch of matrices with a given storage order; a matrix if the shape has two sizes."""
    if len(shape) == 2:
        return array(shape, dtype, stored if stored in STORED else "row", seed)
    height, rows, columns = shape
    arrays = {
        "row": lambda: np.empty(shape, dtype),
        "col": lambda: np.empty((height, columns, rows), dtype).swapaxes(1, 2),
        "row slice": lambda: np.empty((height + 1, rows + 2, columns + 5), dtype)[1:, 1 : rows + 1, 3 : columns + 3],
        "col slice": lambda: np.empty((height + 1, columns + 2, rows + 5), dtype)[1:, 1 : columns + 1, 3 : rows + 3].swapaxes(1, 2),
        "interleaved": lambda: np.empty((rows, height, columns), dtype).swapaxes(0, 1),
        "every second": lambda: np.empty((2 * height, rows, columns), dtype)[::2],
    }[stored]()
    arrays[...] = np.random.default_rng(seed).integers(-3, 4, shape).astype(dtype)
    return arrays


TYPES = ("float16", "bfloat16", "float32", "float64", "int8", "int32")
RESULTS = {"int8": "int32"}
STORED = ("row", "col", "row slice", "col slice")


def element(name):
    return {dtype.name: dtype for dtype in fireiron.values.machine.DTYPES}[name].to_numpy()


@pytest.mark.parametrize("sizes", [(33, 17, 65), (1, 1, 1), (1, 40, 7), (40, 1, 16), (16, 64, 32)], ids=str)
@pytest.mark.parametrize("dtype", TYPES)
def test_types_and_sizes(dtype, sizes):
    M, N, K = sizes
    a, b = array((M, K), element(dtype), "row"), array((K, N), element(dtype), "row", 1)
    got = matmul(a, b)
    assert got.dtype == element(RESULTS.get(dtype, dtype)) and got.flags.c_contiguous
    np.testing.assert_array_equal(got.astype("float64"), a.astype("float64") @ b.astype("float64"))


@pytest.mark.sampled(9)
@pytest.mark.parametrize("out", [None, *STORED])
@pytest.mark.parametrize("b", STORED)
@pytest.mark.parametrize("a", STORED)
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_storage(dtype, a, b, out):
    left, right = array((20, 24), dtype, a), array((24, 28), dtype, b, 1)
    target = None if out is None else array((20, 28), dtype, out, 2)
    got = matmul(left, right, target)
    assert target is None or got is target
    np.testing.assert_array_equal(got.astype("float64"), left.astype("float64") @ right.astype("float64"))


STACKED = ("row", "col", "row slice", "col slice", "interleaved", "every second")
SHAPES = [
    ((3, 20, 24), (3, 24, 28)), ((3, 20, 24), (24, 28)), ((20, 24), (3, 24, 28)), ((1, 20, 24), (3, 24, 28)), ((3, 20, 24), (1, 24, 28)),
    ((1, 20, 24), (1, 24, 28)), ((1, 20, 24), (24, 28)), ((3, 1, 24), (24, 28)), ((2, 5, 7), (2, 7, 9)), ((2, 1, 1), (2, 1, 1)),
]  # fmt: skip


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", ["float16", "float32", "int8"])
def test_batches(dtype, shapes):
    """As in NumPy: a matrix, or a batch of one, is multiplied with each matrix of the other batch."""
    a, b = (batch(shape, dtype, "row", seed) for seed, shape in enumerate(shapes))
    expected = a.astype("float64") @ b.astype("float64")
    got = matmul(a, b)
    assert got.dtype == RESULTS.get(dtype, dtype) and got.shape == expected.shape
    np.testing.assert_array_equal(got.astype("float64"), expected)


def storages_of_batches():
    """All pairs of storage orders of operands and result for one element type and target; for the others one each, and no `out`."""
    yield from itertools.product([("float16", "sm_90a")], STACKED, [None, *STACKED])
    for shift, kind in enumerate([("float16", "sm_80"), ("float32", "sm_90")]):
        for number, stored in enumerate(STACKED):
            yield from ((kind, stored, out) for out in (None, STACKED[(number + shift) % len(STACKED)]))


@pytest.mark.sampled(9)
@pytest.mark.parametrize(("kind", "stored", "out"), list(storages_of_batches()))
def test_storage_of_batches(kind, stored, out):
    dtype, arch = kind
    for left, right in (((3, 24, 16), (3, 16, 32)), ((3, 24, 16), (16, 32))):
        a, b = batch(left, dtype, stored), batch(right, dtype, stored, 1)
        target = None if out is None else batch((3, 24, 32), dtype, out, 2)
        got = matmul(a, b, target, arch=arch)
        assert target is None or got is target
        np.testing.assert_array_equal(got.astype("float64"), a.astype("float64") @ b.astype("float64"))


def test_a_repeated_matrix_is_not_copied():
    """A matrix that is repeated by strides of 0 is read as one matrix, also if both operands are repeated."""
    a, b = batch((3, 24, 16), "float16", "row"), array((16, 40), "float16", "row", 1)
    repeated = np.broadcast_to(b, (3, 16, 40))
    np.testing.assert_array_equal(matmul(a, repeated), a @ b)
    np.testing.assert_array_equal(
        matmul(np.broadcast_to(a[0], (3, 24, 16)), repeated, arch="sm_90a"), np.broadcast_to(a[0] @ b, (3, 24, 40))
    )


def test_the_spec_of_a_batch():
    """The rows of a batch are those of one matrix if they are contiguous; otherwise the grid has the tiles of all matrices."""

    def spec(a, b, out=None):
        return matmul.choice(a, b, out, arch="sm_90a").strategy.spec

    a, b = batch((4, 64, 64), "float16", "row"), array((64, 64), "float16", "row")
    assert spec(a, b).notation == spec(a, np.broadcast_to(b, (4, 64, 64))).notation == "MatMul(256,64,64)(GL,GL,GL)(Kernel)"
    assert spec(batch((4, 64, 64), "float16", "interleaved"), b).signature == "bmk,kn->bmn"
    assert spec(a, b, batch((4, 64, 64), "float16", "col")).signature == "bmk,kn->bmn", "the result's rows do not lie so"
    assert spec(b, a).signature == "mk,bkn->bmn" and spec(a, a).signature == "bmk,bkn->bmn"
    assert spec(a[:1], a[:1]).notation == "MatMul(64,64,64)(GL,GL,GL)(Kernel)"
    wanted = MatMul(4, 64, 64, 64, signature="bmk,bkn->bmn", dtype=float16, A=RowMajor, B=RowMajor, C=RowMajor)(GL, GL, GL)(Kernel)
    assert spec(a, a) == wanted
    swapped = spec(a.swapaxes(1, 2), a)
    assert str(swapped.A.tensor.layout) == "(4,64,64):(4096,1,64)" and swapped.B.tensor.layout == RowMajor


def test_defaults_of_batches():
    def why(shape, arch, dtype="float16"):
        array = big(shape, dtype, strides=tuple(np.cumprod([1, *shape[:0:-1]])[::-1] * np.dtype(dtype).itemsize))
        return matmul.choice(array, array, arch=arch).why.split(": ")[1]

    assert why((16, 1024, 1024), "sm_90a").startswith("hopper_batched bm=128 bn=256")
    assert why((16, 1024, 1024), "sm_90") == "hmma_ampere" and why((16, 1024, 1024), "sm_75") == "hmma_turing"
    assert why((16, 1024, 1024), "sm_90", "float32").startswith("lane_matmul") and why((2, 64, 64), "sm_80") == "small"
    assert why((2, 64, 64), "sm_90", "float32").startswith("gemm_tt")
    assert why((9, 127, 127), "sm_90a").startswith("hopper_batched"), "copied first"
    assert why((3, 63, 63), "sm_90a").startswith("split_k") and why((3, 127, 127), "sm_90").startswith("split_k"), "too small for copies"


def test_copies_pay_for_small_matrices_with_long_k():
    def why(m, n, k):
        return matmul.choice(big((m, k), "float16"), big((k, n), "float16"), arch="sm_90a").why

    assert "hopper" in why(275, 425, 5069) and "split_k" in why(275, 425, 259)
    assert "split_k" in why(343, 571, 385) and "hopper" in why(257, 449, 895), "fewer products in more tiles"


def test_kernels_of_batches_are_kept():
    a, b = batch((2, 8, 8), "float32", "row"), array((8, 8), "float32", "row")
    assert matmul.kernel(a, a) is matmul.kernel(a.copy(), a) and matmul.kernel(a, b) is matmul.kernel(a.reshape(16, 8), b)
    assert matmul(a, b).shape == (2, 8, 8) and matmul(a.reshape(16, 8), b).shape == (16, 8)


def test_operator_of_numpy_agrees():
    a, b = np.random.default_rng(1).standard_normal((2, 40, 40)).astype("float32")
    Near(MatMul(40, 40, 40)(GL, GL, GL)(Kernel), {"A": a, "B": b}, {"C": a.astype(float) @ b}).require({"C": matmul(a, b)})


def test_result_type():
    a = array((16, 16), "float16", "row")
    assert matmul(a, a, c_dtype=float32).dtype == matmul(a, a, c_dtype="float32").dtype == np.float32
    out = np.empty((16, 16), np.float32)
    assert matmul(a, a, out) is out and matmul(a, a, out, c_dtype="float32") is out


def big(shape, dtype="float16", **options):
    """An array without memory: only its shape, type and strides are read."""
    return np.lib.stride_tricks.as_strided(
        np.empty(1, dtype), shape, options.get("strides", (shape[1] * np.dtype(dtype).itemsize, np.dtype(dtype).itemsize))
    )


# ---------------------------------------------------------------------------------------------- what is refused

ONES = np.ones((4, 4), "float32")


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((np.ones((2, 2, 2, 2), "float32"), ONES), "a has 2 columns, but b has 4 rows"),
        ((ONES, np.ones(5, "float32")), "a has 4 columns, but b has 5 rows"),
        ((ONES, np.ones((5, 4), "float32")), "a has 4 columns, but b has 5 rows"),
        ((ONES, np.ones((4, 4), "float16")), "a has the type float32, but b has the type float16"),
        ((ONES, np.ones((4, 4), "complex64")), "b: no kernel supports its element type"),
        ((ONES, np.ones((4, 4), "bool")), "b: no kernel"),
        ((ONES, ONES, np.ones((4, 5), "float32")), "out has the shape"),
        ((np.ones((2, 3, 4, 4), "float32"), np.ones((2, 1, 4, 4), "float32"), ONES), r"the result has the shape \(2, 3, 4, 4\)"),
        ((np.ones((2, 4, 4), "float32"), np.ones((3, 4, 4), "float32")), "a is a batch of 2 matrices, but b is one of 3"),
        ((np.ones((2, 4, 5), "float32"), ONES), "a has 5 columns, but b has 4 rows"),
        ((np.ones((2, 4, 4), "float32"), ONES, ONES), r"out has the shape \(4, 4\), but the result has the shape \(2, 4, 4\)"),
        (([[1.0]], ONES), "the array is neither an array on a GPU"),
        ((ONES, None), "neither an array on a GPU"),
        ((np.float32(3), ONES), "a has 0 dimensions"),
        ((np.ones((4, 4), [("x", "f4"), ("y", "i1")])["x"], ONES), "strides"),
    ],
    ids=range(15),
)
def test_what_is_refused(arguments, message):
    with pytest.raises(ArgumentError, match=message):
        matmul(*arguments)


def test_what_no_strategy_supports():
    with pytest.raises(ArgumentError, match="no strategy of the library computes .* of int8, int8, float16 on sm_90"):
        matmul(np.ones((4, 4), "int8"), np.ones((4, 4), "int8"), c_dtype="float16")
    with pytest.raises(ArgumentError, match="on sm_75"):
        matmul(array((4, 4), element("bfloat16"), "row"), array((4, 4), element("bfloat16"), "row"), arch="sm_75")
    with pytest.raises(ArgumentError, match="out has the type float32, but c_dtype is float16"):
        matmul(ONES, ONES, np.empty((4, 4), "float32"), c_dtype="float16")
    with pytest.raises(ArgumentError, match="unknown element type"):
        matmul(ONES, ONES, c_dtype="float17")
    with pytest.raises(ArgumentError, match="unknown architecture"):
        matmul(ONES, ONES, arch="sm_1")
    with pytest.raises(ArgumentError, match="must be True, False or None"):
        matmul(ONES, ONES, require_record="yes")


def test_read_only_out():
    out = np.ones((4, 4), "float32")
    out.flags.writeable = False
    with pytest.raises(LaunchError, match="read-only"):
        matmul(ONES, ONES, out)


# ---------------------------------------------------------------------------------------------- choice of strategies and records


def test_defaults_by_type_and_target():
    def chosen(dtype, arch, size=4096):
        return matmul.choice(big((size, size), dtype), big((size, size), dtype), arch=arch)

    names = {
        ("float16", "sm_90"): "hmma_ampere", ("float16", "sm_86"): "hmma_ampere", ("float16", "sm_75"): "hmma_turing",
        ("float16", "sm_70"): "hmma_volta",
    }  # fmt: skip
    plain = dict.fromkeys((("float16", "sm_61"), ("float32", "sm_90"), ("float64", "sm_60"), ("int8", "sm_90")), "gemm_tt")
    for (dtype, arch), name in (names | plain).items():
        choice = chosen(dtype, arch, 240 if (dtype, arch) in plain else 4096)
        assert f": {name}" in choice.why and choice.record is None and not choice.exact
        assert choice.program.architecture.name == arch and not choice.strategy.tunables()
    assert "small" in chosen("float16", "sm_90", 256).why, "large tiles would make a few blocks only"
    assert "gemm_tt bm=64 bn=64" in chosen("float32", "sm_90", 240).why


def test_large_products_without_tensor_cores_are_derived():
    choice = matmul.choice(big((4096, 4096), "float32"), big((4096, 4096), "float32"), arch="sm_90")
    assert "derived: lane_matmul" in choice.why
    assert choice.record is None and not choice.strategy.tunables()


@pytest.mark.sampled(6)
@pytest.mark.parametrize("arch", ["sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90", "sm_120"])
@pytest.mark.parametrize("size", [1, 33, 1024])
def test_defaults_are_legal(arch, size):
    """The first default of every type supports every size, so no call falls back silently."""
    for dtype in (float16, float32, float64):
        for layouts in ({}, {"A": RowMajor, "B": RowMajor, "C": RowMajor}):
            spec = MatMul(size, size, size, dtype=dtype, **layouts)(GL, GL, GL)(Kernel)
            name, values = defaults(spec, arch)[0]
            assert library.find(name).strategy.with_(**values)(spec).program(arch).ir.threads


def test_defaults_of_run_time_sizes_and_other_specs():
    free = MatMul(sym("M"), sym("N"), sym("K"), dtype=float16)(GL, GL, GL)(Kernel)
    assert defaults(free)[0] == ("hmma_ampere", {"bm": 64, "wm": 32}) and FEW_BLOCKS == 64
    assert defaults(Move(8, 8)(GL, GL)(Kernel)) == ()


def recorded(tmp_path, monkeypatch, spec, **values):
    record = Record(
        strategy="small", strategy_hash=strategy_hash(library.find("small").strategy), values=values, spec=describe(spec),
        architecture="sm_90", gpu="NVIDIA H200", us=2.0, quartiles=(1.9, 2.1), tflops=1.0, regime="burst", l2="rotated", error=1e-4,
        registers=80, shared_bytes=4096, spills=0, toolchain="NVRTC 13.0", driver="580", fireiron="0.1", date="2026-11-21", source="synthetic",
    )  # fmt: skip
    path = tmp_path / "records.jsonl"
    Records.append_to(path, record)
    monkeypatch.setenv("FIREIRON_RECORDS", str(path))
    return record


def float16_gemm(M, N, K, **options):
    return MatMul(M, N, K, **{"dtype": float16, "A": RowMajor, "B": RowMajor, "C": RowMajor, **options})(GL, GL, GL)(Kernel)


def test_a_record_is_used(tmp_path, monkeypatch):
    record = recorded(tmp_path, monkeypatch, float16_gemm(32, 48, 64), bm=16, bn=16, wm=16, wn=16, bk=32)
    a, b = array((32, 64), "float16", "row"), array((64, 48), "float16", "row", 1)
    choice = matmul.choice(a, b)
    assert choice.exact and choice.record == record and choice.program.chosen.get("bm", 16) == 16
    assert matmul.kernel(a, b).program is choice.program and choice.program.ir.threads == 32
    np.testing.assert_array_equal(matmul(a, b), a.astype("float64") @ b.astype("float64"))
    near = matmul.choice(array((40, 64), "float16", "row"), b)
    assert near.record == record and not near.exact and "32x48x64" in near.why
    assert matmul.choice(a.astype("float32"), b.astype("float32")).record is None


def test_require_record(tmp_path, monkeypatch):
    a, b = array((32, 64), "float16", "row"), array((64, 48), "float16", "row", 1)
    with pytest.raises(StoreError, match="no file of records"):
        matmul(a, b, require_record=True)
    record = recorded(tmp_path, monkeypatch, float16_gemm(32, 48, 64), bm=16, bn=16, wm=16, wn=16, bk=32)
    monkeypatch.setenv("FIREIRON_REQUIRE_RECORD", "1")
    assert matmul.choice(a, b).record == record
    with pytest.raises(StoreError, match="there is no record for MatMul 31x48x64"):
        matmul(a[:31], b)
    assert matmul.choice(a[:31], b, require_record=False).record == record, "a neighbor"
    assert matmul.choice(a, b, c_dtype="float32", require_record=False).record is None


def test_kernels_are_kept(monkeypatch):
    a, b = array((8, 8), "float32", "row"), array((8, 8), "float32", "row", 1)
    first = matmul.kernel(a, b)
    assert matmul.kernel(b, a) is first and matmul.kernel(a.copy(), b) is first
    assert matmul.kernel(a.T, b) is not first and matmul.kernel(a, b, arch="sm_80") is not first
    assert matmul.kernel(a[:7], b) is not first
    monkeypatch.setattr(cache, "MOST_KERNELS", 2)
    matmul.kernel(a[:3], b)
    assert len(matmul.answers.entries) == len(matmul.kernels.entries) == 2
    matmul.kernel(a[:7], b)
    matmul.kernel(a[:3], b)
    matmul.kernel(a[:5], b)
    assert [key[0][0].shape[0] for key in matmul.answers.entries] == [3, 5], "the one not used for longest goes first"
    matmul.clear()
    assert matmul.kernel(a, b) is not first


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("kind", ["cupy", "torch"])
def test_a_call_with_out_takes_the_kernel_of_the_call_without(gpu, monkeypatch, kind, dtype):
    """The result that a call makes is row-major and aligned: an `out` like it is the same problem, so nothing is compiled again."""
    decisions, real = [], matmul_choice.decided
    monkeypatch.setattr(matmul_choice, "decided", lambda asked: decisions.append(asked) or real(asked))
    a, b = pretended(kind, (64, 32), dtype), pretended(kind, (32, 48), dtype, address=0x4000)
    first = matmul.kernel(a, b)
    assert matmul.kernel(a, b, pretended(kind, (64, 48), dtype, address=0x8000)) is first
    assert matmul.kernel(a, b, pretended(kind, (64, 48), dtype, address=0x9000), c_dtype=dtype) is first
    assert matmul.kernel(a, b, c_dtype=dtype) is first and matmul.kernel(a, b, arch="sm_90a", require_record=False) is first
    assert len(decisions) == 1
    assert matmul.kernel(a, b, pretended(kind, (64, 48), dtype, address=0x8008)) is not first, "an unaligned result"
    assert matmul.kernel(a, b, pretended(kind, (64, 48), dtype, strides=(50, 1))) is not first, "a leading dimension"
    assert matmul.kernel(a, b, pretended(kind, (64, 48), dtype, strides=(1, 64))) is not first, "the other storage order"
    assert matmul.kernel(a, b, arch="sm_80") is not first


def test_the_next_tile_if_the_compiler_refuses_one(gpu, monkeypatch):
    """Some versions of ptxas serialize wgmma that others do not: the kernel is refused, and the next tile is used."""
    kernels, error = [], LaunchError("NVRTC refuses the source for sm_90a: 1 warning")
    monkeypatch.setattr(place, "refused_by_compiler", lambda kernel: kernels.append(kernel) or (error if len(kernels) < 3 else None))
    a, b = pretended("cupy", (2048, 64), "float16"), pretended("cupy", (64, 2048), "float16", address=0x400000)
    kernel = matmul.kernel(a, b, arch="sm_90a")
    assert len(kernels) == 3 and kernel.program is kernels[2].program is not kernels[0].program
    assert "was preferred, but NVRTC refuses the source" in matmul.choice(a, b, arch="sm_90a").why


def test_one_kernel_for_concurrent_threads(monkeypatch):
    decisions, real = [], matmul_choice.decided
    monkeypatch.setattr(matmul_choice, "decided", lambda *given: decisions.append(given) or real(*given))
    a = array((8, 8), "float32", "row")
    threads = [threading.Thread(target=matmul.kernel, args=(a, a)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(decisions) == 1


# ---------------------------------------------------------------------------------------------- fake arrays on a GPU


@attrs.frozen
class Pointer:
    ptr: int
    device_id: int = 0


def pretended(library_name, shape, dtype, address=0x1000, strides=None, device=0):
    """A fake array of a GPU library, with the few attributes that are read."""
    size = np.dtype(element(dtype)).itemsize
    steps = (shape[1], 1) if strides is None else strides
    if library_name == "cupy":
        fields = {
            "shape": shape,
            "dtype": element(dtype),
            "strides": tuple(step * size for step in steps),
            "data": Pointer(address, device),
        }
    elif library_name == "torch":
        fields = {
            "shape": shape, "dtype": f"torch.{dtype}", "is_cuda": True, "stride": lambda self: steps, "data_ptr": lambda self: address,
            "get_device": lambda self: device,
        }  # fmt: skip
    else:
        fields = {"shape": shape, "dtype": dtype, "__dlpack__": None, "__dlpack_device__": lambda self: (2, device)}
    return type("Array", (), {**fields, "__module__": library_name})()


@pytest.fixture
def gpu(monkeypatch):
    """A machine with GPUs that have only names and architectures; and a PyTorch that does not trace."""
    torch = types.ModuleType("torch")
    torch.Tensor, torch.nn = type("Tensor", (), {}), types.SimpleNamespace(Parameter=None)
    torch.compiler = types.SimpleNamespace(is_compiling=lambda: False)
    torch.is_autocast_enabled = lambda kind: False
    monkeypatch.setitem(sys.modules, "torch", torch)

    class Device:
        id = 0

        def __init__(self, number=0):
            pass

        def __enter__(self):
            return self

        def __exit__(self, *error):
            return None

    cuda = type(
        "cuda", (), {"Device": Device, "runtime": type("runtime", (), {"getDeviceProperties": lambda device: {"name": b"NVIDIA H200"}})}
    )
    monkeypatch.setattr(launch, "require_cupy", lambda: type("cupy", (), {"cuda": cuda}))
    monkeypatch.setattr(launch, "device_arch", lambda: "sm_90")
    monkeypatch.setattr(launch, "gpu_available", lambda: False)  # the version of its driver is not queried


@pytest.mark.parametrize("kind", ["cupy", "torch", "jaxlib"])
def test_other_libraries(gpu, kind):
    a, b = pretended(kind, (64, 32), "bfloat16"), pretended(kind, (32, 48), "bfloat16")
    spec = matmul.choice(a, b).strategy.spec
    assert spec == MatMul(64, 48, 32, dtype=bfloat16, A=RowMajor, B=RowMajor, C=RowMajor)(GL, GL, GL)(Kernel)
    assert matmul.kernel(a, b) is matmul.kernel(a, b)


@pytest.mark.parametrize("kind", ["cupy", "torch"])
def test_steps_and_alignment(gpu, kind):
    a = pretended(kind, (64, 320), "float16", strides=(328, 1))
    b = pretended(kind, (320, 48), "float16", address=0x1006, strides=(1, 320))
    spec = matmul.choice(a, b).strategy.spec
    assert (spec.A.tensor.layout, spec.B.tensor.layout) == (RowMajor(ld=328), ColMajor)
    assert (spec.A.tensor.align, spec.B.tensor.align, spec.C.tensor.align) == (16, 2, 16)
    kernel = matmul.kernel(a, b)
    assert kernel.ir.buffer("B").tensor.align == 2, "no wide access to B, so any address serves"
    text = kernel.asm["cuda"]
    assert "cp.async" in text, "of A"
    loose = matmul.kernel(pretended(kind, (64, 320), "float16", address=0x1006, strides=(328, 1)), b)
    assert loose.asm["cuda"] != text and loose.ir.buffer("A").tensor.align == 2


def test_strategies_that_need_more_alignment_are_skipped(gpu, tmp_path, monkeypatch):
    """A WMMA load from global memory needs an alignment of 32 bytes; arrays at multiples of 16 get another strategy."""
    wmma = library.find("wmma_simple").strategy
    record = attrs.evolve(
        recorded(tmp_path, monkeypatch, float16_gemm(64, 64, 64, c_dtype=float32)),
        strategy="wmma_simple",
        strategy_hash=strategy_hash(wmma),
        values={},
    )
    (tmp_path / "records.jsonl").write_text(record.line() + "\n")
    aligned = [pretended("cupy", (64, 64), "float16", address=0x1000) for _ in range(2)]
    assert matmul.choice(*aligned, c_dtype="float32").record == record
    loose = [pretended("cupy", (64, 64), "float16", address=0x1010) for _ in range(2)]
    assert matmul.choice(*loose, c_dtype="float32").record is None


def test_devices(gpu):
    with pytest.raises(ArgumentError, match="different places"):
        matmul.choice(pretended("cupy", (8, 8), "float32"), pretended("cupy", (8, 8), "float32", device=1))
    with pytest.raises(ArgumentError, match="different places"):
        matmul.choice(pretended("cupy", (4, 4), "float32"), ONES)
    host = type(
        "Tensor",
        (),
        {
            "__module__": "torch",
            "is_cuda": False,
            "device": "cpu",
            "shape": (4, 4),
            "dtype": "torch.float32",
            "stride": lambda self: (4, 1),
            "data_ptr": lambda self: 64,
            "get_device": lambda self: -1,
        },
    )()
    with pytest.raises(ArgumentError, match="host memory"):
        matmul.choice(host, host)


def test_architecture_of_the_gpu(gpu, monkeypatch):
    a = pretended("cupy", (8, 8), "float32")
    assert matmul.choice(a, a).program.architecture.name == "sm_90a"
    for name, target in (("sm_87", "sm_86"), ("sm_103", "sm_100"), ("sm_75", "sm_75")):
        monkeypatch.setattr(launch, "device_arch", lambda name=name: name)
        matmul.clear()
        assert matmul.choice(a, a).program.architecture.name == target
    monkeypatch.setattr(launch, "device_arch", lambda: "sm_30")
    matmul.clear()
    with pytest.raises(LaunchError, match="the GPU is sm_30, which is not supported"):
        matmul.choice(a, a)


def test_kernel_is_called_with_the_given_arrays(monkeypatch, gpu):
    from fireiron.gpu.kernel import CompiledKernel

    calls = []
    monkeypatch.setattr(CompiledKernel, "__call__", lambda self, *arrays, **named: calls.append((arrays, named)) or "result")
    a, out = pretended("torch", (8, 8), "float16"), pretended("torch", (8, 8), "float16", address=0x2000)
    assert matmul(a, a, out, stream=7) == "result"
    assert calls == [((a, a), {"out": out, "stream": 7})]


def test_row_major_floats_are_computed_transposed(monkeypatch, gpu):
    """C.T = B.T A.T on the same memory: the strategies without tensor cores store column-major."""
    from fireiron.gpu.kernel import CompiledKernel

    class Result:
        T = "the result, turned"

    calls = []
    monkeypatch.setattr(CompiledKernel, "__call__", lambda self, *arrays, **named: calls.append((self, arrays, named)) or Result())
    a, b, out = (
        pretended("torch", shape, "float32", address=at) for shape, at in (((40, 24), 0x1000), ((24, 8), 0x4000), ((40, 8), 0x8000))
    )
    for array, name in ((a, "a turned"), (b, "b turned"), (out, "out turned")):
        type(array).T = name
    assert matmul(a, b, stream=7) == "the result, turned" and matmul(a, b, out) is out
    assert [call[1:] for call in calls] == [
        (("b turned", "a turned"), {"stream": 7}),
        (("b turned", "a turned"), {"out": "out turned", "stream": None}),
    ]
    spec = calls[0][0].program.spec
    assert [str(size) for size in spec.C.shape] == ["8", "40"] and spec.C.tensor.layout == ColMajor
    assert {spec.A.tensor.layout, spec.B.tensor.layout} == {ColMajor}


def test_arrays_of_two_libraries_are_not_transposed(gpu):
    """A new result is of the library of the first array, which is `a` in either order of the elements."""
    a, b = pretended("cupy", (40, 24), "float32"), pretended("torch", (24, 8), "float32")
    spec = matmul.choice(a, b).strategy.spec
    assert [str(size) for size in spec.C.shape] == ["40", "8"] and spec.C.tensor.layout == RowMajor


def test_records_of_this_gpu_come_first_for_the_transposed_matmul_too(gpu, tmp_path, monkeypatch):
    transposed_spec = MatMul(48, 32, 64, dtype=float16, A=ColMajor, B=ColMajor, C=ColMajor)(GL, GL, GL)(Kernel)
    here = recorded(tmp_path, monkeypatch, transposed_spec)
    elsewhere = attrs.evolve(recorded(tmp_path, monkeypatch, float16_gemm(32, 48, 64)), gpu="NVIDIA GH200", us=1.0, quartiles=(1.0, 1.0))
    (tmp_path / "records.jsonl").write_text(f"{here.line()}\n{elsewhere.line()}\n")
    a, b = pretended("torch", (32, 64), "float16"), pretended("torch", (64, 48), "float16")
    assert matmul.choice(a, b).record == here


def test_records_of_hopper_are_used_only_if_tma_can_load_the_arrays(gpu, monkeypatch):
    """The values of a nearest record are for copies by TMA; if threads copy instead, other strategies are faster."""
    monkeypatch.setenv("FIREIRON_RECORDS", str(library.library_folder() / "records" / "h200.jsonl"))
    near = matmul.choice(pretended("cupy", (4096, 4096), "float16"), pretended("cupy", (4096, 4136), "float16"), c_dtype="float16")
    assert near.record is not None and near.record.strategy == "hopper" and not near.exact
    odd = matmul.choice(pretended("cupy", (4096, 4096), "float16"), pretended("cupy", (4096, 4097), "float16"), c_dtype="float16")
    assert odd.record.strategy == "hopper" and [one.name for one in odd.program.preceding] == ["B"], "it copies B first"
    few = matmul.choice(pretended("cupy", (16, 4096), "float16"), pretended("cupy", (4096, 4097), "float16"), c_dtype="float16")
    assert few.record is None or few.record.strategy != "hopper_skinny"


@pytest.mark.parametrize("kind", ["cupy", "torch"])
def test_batches_of_other_libraries(gpu, monkeypatch, kind):
    """The arrays are passed unchanged; batches whose rows are contiguous become one matrix, and the result a batch again."""
    from fireiron.gpu.kernel import CompiledKernel

    calls = []

    class Result:
        shape = (96, 48)

        def reshape(self, *shape):
            return "a batch", shape

    monkeypatch.setattr(
        CompiledKernel, "__call__", lambda self, *arrays, **named: calls.append((self.program.spec, arrays, named)) or Result()
    )
    stacked = pretended(kind, (3, 32, 64), "float16", strides=(2048, 64, 1))
    other = pretended(kind, (3, 64, 48), "float16", address=0x8000, strides=(3072, 48, 1))
    matrix = pretended(kind, (64, 48), "float16", address=0x8000)
    assert isinstance(matmul(stacked, other), Result)
    spec, arrays, named = calls.pop()
    assert spec.signature == "bmk,bkn->bmn" and arrays == (stacked, other) and named == {"out": None, "stream": None}
    assert "hopper_batched" in matmul.choice(stacked, other).why
    type(stacked).reshape = lambda self, *shape: ("folded", shape)
    assert matmul(stacked, matrix, stream=5) == ("a batch", (3, -1, 48))
    spec, arrays, named = calls.pop()
    assert spec.notation == "MatMul(96,48,64)(GL,GL,GL)(Kernel)" and arrays == (("folded", (-1, 64)), matrix) and named["stream"] == 5
    kernel = matmul.kernel(pretended(kind, (96, 64), "float16"), matrix)
    assert kernel is matmul.kernel(stacked, matrix), "the same problem"


def test_products_of_bytes_do_not_become_dp4a():
    """ptxas miscompiles NVVM's code for three consecutive products of bytes; `docs/decisions/0067-compilers.md`."""
    by_threads = lambda start: start.tile(4, 4).to(Thread).tile(1, 1).done()
    chain = (
        MatMul.tile(4, 4).to(Block).epilog(RF, by_threads(Init), by_threads(Move)).split(3).load(A, SH).load(B, SH).tile(4, 4).to(Thread)
    )
    chain = chain.load(A, RF, Move.done()).load(B, RF, Move.done()).split(1).tile(1, 1).unroll().done()
    text = chain(MatMul(8, 8, 6, dtype=int8)(GL, GL, GL)(Kernel)).cuda("sm_80")
    assert 'asm("" : "+r"(value));' in text and "widened(a_rf" in text
    if toolchain.serving("sm_80") is not None:
        assert "dp4a" in toolchain.compile_cuda(text.replace('asm("" : "+r"(value));', ""), "sm_80").ptx
        assert "dp4a" not in toolchain.compile_cuda(text, "sm_80").ptx
