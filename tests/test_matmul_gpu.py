"""`fireiron.matmul` on a GPU: CuPy, PyTorch and JAX arrays, all storage orders, slices, odd sizes; bit-equal on integers."""

import numpy as np
import pytest

from fireiron import *
from fireiron.gpu import launch
from fireiron.measure.data import tolerance_of
from fireiron.measure.rounding import differing

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not launch.gpu_available(), reason="needs a CUDA GPU and CuPy (pip install 'fireiron[cuda13]')"),
]

SIZES = [(256, 256, 256), (33, 65, 17), (1, 1, 1), (1, 200, 99), (200, 1, 64), (1000, 1024, 96), (2048, 2048, 64)]
STORED = ("row", "col", "row slice", "col slice")
ODD = ("odd row", "odd col")
"""Slices that begin at an odd element, so not at a multiple of 16 bytes."""


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.delenv("FIREIRON_RECORDS", raising=False)
    monkeypatch.delenv("FIREIRON_REQUIRE_RECORD", raising=False)
    matmul.clear()


def empty(xp, shape, dtype, stored):
    """An array of CuPy or PyTorch with a given storage order."""
    rows, columns = shape
    if stored.startswith(("col", "odd col")):
        return empty(xp, (columns, rows), dtype, stored.replace("col", "row")).T
    options = {"device": "cuda"} if xp.__name__ == "torch" else {}
    if stored == "row":
        return xp.empty(shape, dtype=dtype, **options)
    start, more = (8, 24) if stored == "row slice" else (1, 5)
    return xp.empty((rows + 2, columns + more), dtype=dtype, **options)[1 : rows + 1, start : columns + start]


def filled(xp, shape, dtype, stored, seed):
    values = np.random.default_rng(seed).integers(-2, 3, shape)
    array = empty(xp, shape, dtype, stored)
    array[...] = xp.asarray(values).astype(dtype) if xp.__name__ == "cupy" else xp.from_numpy(values).to(dtype).cuda()
    return array, values


def on_host(array):
    return array.get() if hasattr(array, "get") else array.cpu().double().numpy()


def check(xp, sizes, dtype, stored, tolerance=0.0):
    """The product against exact integers: 16-bit results may be rounded."""
    M, N, K = sizes
    a, left = filled(xp, (M, K), dtype, stored[0], 1)
    b, right = filled(xp, (K, N), dtype, stored[1], 2)
    out = None if stored[2] is None else empty(xp, (M, N), dtype, stored[2])
    if out is not None:
        out[...] = 77
    got = matmul(a, b, out)
    assert out is None or got is out
    assert type(got) is type(a) and got.dtype == a.dtype and got.shape == (M, N)
    np.testing.assert_allclose(on_host(got).astype("float64"), left @ right, rtol=tolerance, atol=0)


@pytest.mark.parametrize("sizes", SIZES, ids=lambda sizes: "x".join(map(str, sizes)))
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_cupy(dtype, sizes):
    check(pytest.importorskip("cupy"), sizes, dtype, ("row", "row", None))


@pytest.mark.parametrize("sizes", SIZES, ids=lambda sizes: "x".join(map(str, sizes)))
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_torch(dtype, sizes):
    torch = pytest.importorskip("torch")
    check(torch, sizes, getattr(torch, dtype), ("row", "row", None), 2.0**-8 if dtype == "bfloat16" else 0.0)


@pytest.mark.parametrize("out", STORED)
@pytest.mark.parametrize("b", STORED)
@pytest.mark.parametrize("a", STORED)
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_storage(dtype, a, b, out):
    check(pytest.importorskip("cupy"), (136, 264, 72), dtype, (a, b, out))


@pytest.mark.parametrize(
    "stored", [("odd row", "row", None), ("row", "odd col", "row"), ("odd col", "odd row", "odd row"), ("row", "row", "odd col")]
)
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_slices_at_odd_addresses(dtype, stored):
    check(pytest.importorskip("cupy"), (136, 264, 72), dtype, stored)


def test_large_default_at_an_odd_address():
    check(pytest.importorskip("cupy"), (2048, 2048, 128), "float16", ("odd row", "odd col", "odd row"))


def test_more_dimensions():
    """Vectors, and leading dimensions that are repeated or reversed in memory, into a given output."""
    cupy = pytest.importorskip("cupy")
    drawn = lambda *shape: cupy.asarray(np.random.default_rng(shape).integers(-2, 3, shape)).astype("float16")
    a, b, out = drawn(3, 2, 40, 32).swapaxes(0, 1), drawn(3, 32, 24), cupy.zeros((2, 3, 40, 24), "float16")
    assert matmul(a, b, out) is out
    cupy.testing.assert_array_equal(out, cupy.matmul(a, b))
    cupy.testing.assert_array_equal(matmul(a, b[0, :, 0]), cupy.matmul(a, b[0, :, 0]))


def test_integers():
    cupy = pytest.importorskip("cupy")
    a, left = filled(cupy, (130, 70), "int8", "row", 1)
    b, right = filled(cupy, (70, 90), "int8", "col", 2)
    got = matmul(a, b)
    assert got.dtype == np.int32
    np.testing.assert_array_equal(got.get(), left @ right)


def test_standard_normal_data():
    cupy = pytest.importorskip("cupy")
    a, b = cupy.random.standard_normal((2, 1024, 1024)).astype("float16")
    right = {"C": (a.astype("float64") @ b.astype("float64")).get()}
    arrays = {"A": a.get(), "B": b.get()}
    for c_dtype in (float16, float32):
        spec = MatMul(1024, 1024, 1024, dtype=float16, c_dtype=c_dtype, accumulator=float32)(GL, GL, GL)(Kernel)
        got = {"C": matmul(a, b, c_dtype=str(c_dtype)).get()}
        assert not differing(spec, {}, got, arrays, right)
        assert np.linalg.norm(got["C"].astype("float64") - right["C"]) < tolerance_of(spec) * np.linalg.norm(right["C"])


def test_jax():
    jax = pytest.importorskip("jax")
    if jax.default_backend() != "gpu":
        pytest.skip("JAX sees no GPU")
    a = jax.numpy.arange(48 * 32, dtype="float32").reshape(48, 32) % 5
    got = matmul(a, a.T)
    np.testing.assert_array_equal(np.asarray(got.get() if hasattr(got, "get") else got), np.asarray(a) @ np.asarray(a).T)


def test_stream_and_graph():
    """A call whose kernel is compiled can be captured."""
    cupy = pytest.importorskip("cupy")
    a, left = filled(cupy, (256, 256), "float16", "row", 1)
    out = cupy.zeros((256, 256), "float16")
    matmul(a, a, out)
    stream = cupy.cuda.Stream(non_blocking=True)
    out.fill(0)
    cupy.cuda.Device().synchronize()
    with stream:
        stream.begin_capture()
        matmul(a, a, out)
        graph = stream.end_capture()
    assert not out.any()
    graph.launch(stream)
    stream.synchronize()
    np.testing.assert_array_equal(out.get(), left @ left)


def test_a_known_shape_is_quick():
    """A call of a known shape costs microseconds, not the search for a strategy."""
    import time

    cupy = pytest.importorskip("cupy")
    a, _ = filled(cupy, (64, 64), "float16", "row", 1)
    out = cupy.empty((64, 64), "float16")
    matmul(a, a, out)
    started = time.perf_counter()
    for _ in range(200):
        matmul(a, a, out)
    cupy.cuda.Device().synchronize()
    each = (time.perf_counter() - started) / 200
    print(f"{each * 1e6:.1f} us a call")
    assert each < 300e-6


def test_other_gpu():
    cupy = pytest.importorskip("cupy")
    if cupy.cuda.runtime.getDeviceCount() < 2:
        pytest.skip("needs two GPUs")
    for device in (0, 1):
        with cupy.cuda.Device(device):
            check(cupy, (64, 64, 64), "float32", ("row", "row", None))


def test_tuned_matmul(monkeypatch, tmp_path):
    """The measured choice is used in this process and in the cache, and is right; also with parts of K."""
    torch = pytest.importorskip("torch", reason="needs PyTorch")
    monkeypatch.setenv("FIREIRON_CACHE_DIR", str(tmp_path))
    for m, n, k in ((300, 520, 1000), (128, 128, 8192)):
        a, b = torch.randn(m, k, device="cuda").half(), torch.randn(k, n, device="cuda").half()
        lines = []
        choice = matmul.tuned(a, b, candidates=2, report=lines.append)
        assert "measured for these arrays" in choice.why and len(lines) >= 2
        assert matmul.choice(a, b).why == choice.why
        for _ in range(3):
            torch.testing.assert_close(matmul(a, b), a @ b, rtol=1e-2, atol=0.2)
        matmul.clear()
        assert matmul.choice(a, b).why == choice.why, "found on disk"
        torch.testing.assert_close(matmul(a, b), a @ b, rtol=1e-2, atol=0.2)


@pytest.mark.parametrize("library", ["cupy", "torch"])
@pytest.mark.parametrize("stored", ["row", "col", "odd row"])
@pytest.mark.parametrize("shape", [(72, 80, 4104), (65, 66, 4097), (391, 456, 7984)])
def test_parts_of_k_with_a_shorter_last_part(shape, stored, library):
    """New results and given ones, repeatedly, and other arrays of the same shape; integers are exact."""
    xp = pytest.importorskip(library)
    rows, columns, depth = shape
    (a, left), (b, right) = filled(xp, (rows, depth), xp.float16, stored, 0), filled(xp, (depth, columns), xp.float16, stored, 1)
    assert "elements but the last one" in matmul.choice(a, b).why
    wanted = left @ right
    out = filled(xp, (rows, columns), xp.float32, "row", 2)[0]
    for _ in range(3):
        assert np.array_equal(on_host(matmul(a, b, c_dtype="float32")), wanted)
        assert matmul(a, b, out=out) is out and np.array_equal(on_host(out), wanted)
    other, left = filled(xp, (rows, depth), xp.float16, stored, 5)
    assert np.array_equal(on_host(matmul(other, b, c_dtype="float32")), left @ right)


@pytest.mark.parametrize("shape", [(16, 256, 8192), (64, 64, 4096), (40, 72, 4096), (40, 72, 4104)])
def test_parts_of_k_with_an_epilogue(shape):
    """Eager, with `out`, and compiled by PyTorch; the second kernel applies the epilogue. Integers are exact."""
    torch = pytest.importorskip("torch")
    rows, columns, depth = shape
    (a, left), (b, right) = filled(torch, (rows, depth), torch.float16, "row", 0), filled(torch, (depth, columns), torch.float16, "row", 1)
    bias = torch.arange(columns, device="cuda", dtype=torch.float16)
    wanted = np.maximum(left @ right + np.arange(columns), 0)
    text = "relu(acc + bias[n])"
    assert "parts of K" in matmul.choice(a, b, epilogue=text, bias=bias).why
    out = torch.full((rows, columns), float("nan"), device="cuda", dtype=torch.float32)
    assert np.array_equal(matmul(a, b, out=out, epilogue=text, bias=bias).cpu().numpy(), wanted)
    compiled = torch.compile(lambda a, b, bias: matmul(a, b, c_dtype="float32", epilogue=text, bias=bias) + 0)
    assert np.array_equal(compiled(a, b, bias).cpu().numpy(), wanted)
    c, sums = matmul(a, b, c_dtype="float32", epilogue="C = acc; y[m] += sum(n, acc)")
    assert np.array_equal(c.cpu().numpy(), left @ right) and np.array_equal(sums.cpu().numpy(), (left @ right).sum(1))
