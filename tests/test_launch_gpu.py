"""Launching on a GPU: every library's arrays, streams and graphs, and what is refused (oracle: NumPy on integers)."""

import os
import threading
import warnings

import numpy as np
import outputs
import pytest
from problems import integers, library, stored
from test_split_k import blocks

from fireiron import *
from fireiron.gpu import launch
from fireiron.gpu.kernel import architecture_here

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not launch.gpu_available(), reason="needs a CUDA GPU and CuPy (pip install 'fireiron[cuda13]')"),
]
ROWS = {"A": RowMajor, "B": RowMajor, "C": RowMajor}
M, N, K = 130, 70, 40


def devices():
    import cupy

    return cupy.cuda.runtime.getDeviceCount()


two_gpus = pytest.mark.skipif(not launch.gpu_available() or devices() < 2, reason="needs two GPUs")


@pytest.fixture(scope="module")
def kernel():
    return library("gemm_nn").strategy(library("gemm_nn").spec(M, N, K, **ROWS)).compile()


@pytest.fixture(scope="module")
def adding():
    """A kernel whose output is zeroed first, because blocks add to it."""
    return blocks(5, 8)(MatMul(100, 70, 333, C=ColMajor(ld=128))(GL, GL, GL)(Kernel)).compile()


def problem(seed=3, shape=(M, N, K), dtype=float32):
    generator = np.random.default_rng(seed)
    m, n, k = shape
    a, b = integers((m, k), dtype, generator), integers((k, n), dtype, generator)
    return a, b, a.astype(np.float64) @ b.astype(np.float64)


def on_cupy(*arrays):
    import cupy

    return tuple(cupy.asarray(array) for array in arrays)


def on_torch(*arrays):
    torch = pytest.importorskip("torch")
    return tuple(torch.from_numpy(np.ascontiguousarray(array)).cuda() for array in arrays)


def as_numpy(array):
    import cupy

    return array.float().cpu().numpy() if hasattr(array, "cpu") else cupy.asnumpy(array)


def jax_on_gpu():
    """JAX, which allocates GPU memory on demand because other libraries use the GPU, too."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    jax = pytest.importorskip("jax")
    if not any(device.platform in ("gpu", "cuda") for device in jax.devices()):
        pytest.skip("JAX sees no GPU")
    return jax


class Capsule:
    """DLPack only."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


class Interface:
    """`__cuda_array_interface__` only."""

    def __init__(self, array, **entries):
        self.array, self.entries = array, entries

    @property
    def __cuda_array_interface__(self):
        return {**self.array.__cuda_array_interface__, **self.entries}


# ---------------------------------------------------------------------------------------------- libraries


def test_compile_is_for_this_gpu(kernel):
    assert launch.visible_arch() == launch.device_arch()
    assert kernel.program.architecture.name == architecture_here()


@pytest.mark.parametrize("place", [on_cupy, on_torch], ids=["cupy", "torch"])
def test_allocated_and_passed_outputs(kernel, place):
    a, b, expected = problem()
    a, b = place(a, b)
    (out,) = place(np.full((M, N), np.nan, np.float32))
    assert kernel(a, b, out=out) is out
    output = kernel(a, b)
    assert type(output) is type(out)
    for array in (out, output):
        np.testing.assert_array_equal(as_numpy(array), expected)


@pytest.fixture(scope="module")
def crossing():
    """Three outputs of three types and storage orders (tests/outputs.py), at run-time sizes."""
    return outputs.by_elements(outputs.cross(sym("M"), 50)).compile()


def crossed(size=41):
    """Inputs on the GPU, and the expected outputs."""
    import cupy

    inputs = outputs.drawn(outputs.cross(size, 50))
    return [cupy.asarray(one, order="F" if one.flags.fnc else "C") for one in inputs.values()], outputs.cross(size, 50).reference(
        *inputs.values()
    )


def check_all(got, right):
    assert type(got) is tuple
    for result, expected in zip(got, right, strict=True):
        np.testing.assert_array_equal(as_numpy(result), expected)


def test_several_outputs(crossing):
    import cupy

    inputs, right = crossed()
    outputs = crossing(*inputs)
    check_all(outputs, right)
    outs = {name: cupy.full_like(one, 77) for name, one in zip(crossing.program.spec.outputs, outputs, strict=True)}
    got = crossing(*inputs, out=dict(reversed(outs.items())))
    check_all(got, right)
    assert all(one is other for one, other in zip(got, outs.values(), strict=True))
    for out in ({**outs, "apart": cupy.ndarray((41, 50), "int32", outs["total"].data)}, {**outs, "total": inputs[1]}):
        with pytest.raises(LaunchError, match="apart overlaps total|total overlaps b"):
            crossing(*inputs, out=out)


def test_several_outputs_of_torch_prepared_and_captured(crossing):
    torch = pytest.importorskip("torch")
    inputs, right = crossed()
    a, b = (torch.from_dlpack(one) for one in inputs)
    check_all(crossing(a, b), right)
    ready = crossing.prepare(a, b)
    assert all(isinstance(one, torch.Tensor) for one in ready.out)
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.graph(graph, stream=stream):
        ready()
    for result in ready.out:
        result.fill_(77)
    graph.replay()
    torch.cuda.synchronize()
    for result, expected in zip(ready.out, right, strict=True):
        np.testing.assert_array_equal(result.cpu().numpy(), expected)


def test_several_outputs_of_jax():
    jax = jax_on_gpu()
    kernel = outputs.by_rows(outputs.rows(64, 5)).compile()
    src = outputs.drawn(outputs.rows(64, 5))["src"]
    total, largest = kernel(jax.numpy.asarray(src))
    assert isinstance(total, jax.Array) and isinstance(largest, jax.Array)
    np.testing.assert_array_equal(np.asarray(total), src.sum(axis=1))
    np.testing.assert_array_equal(np.asarray(largest), src.max(axis=1))


@pytest.mark.parametrize("wrap", [Capsule, Interface])
def test_arrays_of_unknown_libraries(kernel, wrap):
    import cupy

    a, b, expected = problem()
    a, b, out = on_cupy(a, b, np.full((M, N), np.nan, np.float32))
    assert isinstance(kernel(wrap(a), wrap(b)), cupy.ndarray)
    stream = cupy.cuda.Stream(non_blocking=True)
    kernel(wrap(a), wrap(b), out=wrap(out), stream=stream)
    stream.synchronize()
    np.testing.assert_array_equal(as_numpy(out), expected)


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float64", "int8"])
def test_torch_types(name):
    torch = pytest.importorskip("torch")
    dtype = next(one for one in (float16, bfloat16, float64, int8) if one.name == name)
    kernel = library("naive").strategy(library("naive").spec(M, N, K, dtype=dtype, **ROWS)).compile()
    a, b, expected = problem()
    a, b = (one.to(getattr(torch, name)) for one in on_torch(a, b))
    output = kernel(a, b)
    assert output.dtype is getattr(torch, kernel.ir.buffer("C").dtype.numpy)
    np.testing.assert_array_equal(output.double().cpu().numpy(), expected)


@pytest.mark.parametrize("dtype", [float8_e4m3, float8_e5m2], ids=str)
def test_torch_eight_bit_floats(dtype):
    torch = pytest.importorskip("torch")
    kind = getattr(torch, dtype.numpy)
    copy = Move.tile(8, 8).to(Block).then(Move.tile(1, 1).to(Thread).done())
    kernel = copy(Move(16, 24, dtype=dtype, src=RowMajor, dst=RowMajor)(GL, GL)(Kernel)).compile()
    source = torch.arange(16 * 24, device="cuda").remainder(7).reshape(16, 24).float().to(kind)
    output = kernel(source)
    assert output.dtype is kind and torch.equal(output.float(), source.float())


def test_torch_views():
    torch = pytest.importorskip("torch")
    a, b, expected = problem()
    transposed = library("gemm_nn").strategy(library("gemm_nn").spec(M, N, K)).compile()
    a_t, b_t = on_torch(a.T, b.T)
    output = transposed(a_t.T, b_t.T)
    assert output.stride() == (1, M)
    np.testing.assert_array_equal(output.cpu().numpy(), expected)
    wide = library("gemm_nn").spec(M, N, K, A=RowMajor(ld=64), B=RowMajor, C=RowMajor(ld=96))
    padded = library("gemm_nn").strategy(wide).compile()
    whole, target = torch.zeros(M, 64, device="cuda"), torch.full((M, 96), 9.0, device="cuda")
    whole[:, :K] = on_torch(a)[0]
    padded(whole[:, :K], *on_torch(b), out=target[:, :N])
    np.testing.assert_array_equal(target[:, :N].cpu().numpy(), expected)
    assert bool((target[:, N:] == 9).all())
    assert padded(whole[:, :K], *on_torch(b)).stride() == (96, 1)


def test_torch_tensors_that_are_refused(kernel):
    torch = pytest.importorskip("torch")
    a, b = on_torch(*problem()[:2])
    for array, message in (
        (a.cpu(), "not in GPU memory"),
        (a.clone().requires_grad_(), "requires a gradient"),
        (torch.nn.Parameter(a), "requires a gradient"),
        (a.to_sparse(), "without strides"),
        (a.double(), "another type"),
        (a[:1].expand(M, K), "broadcast view"),
        (a.T.contiguous().T, "other strides"),
        (a[:0], "shape"),
        (a.to("meta"), "not in GPU memory"),
    ):
        with pytest.raises((LaunchError, ArgumentError), match=message):
            kernel(array, b)
    with torch.no_grad():
        kernel(torch.nn.Parameter(a), b)
    with pytest.raises(ArgumentError, match="A is a NumPy array"):
        kernel(a.cpu().numpy(), b)


def test_jax():
    jax = jax_on_gpu()
    a, b, expected = problem()
    rows = library("gemm_nn").strategy(library("gemm_nn").spec(M, N, K, **ROWS)).compile()
    row_major = library("gemm_nn").strategy(library("gemm_nn").spec(M, N, K, A=RowMajor, B=RowMajor)).compile()
    x, y = jax.device_put(a), jax.device_put(b)
    for kernel in (rows, row_major):
        result = kernel(x + 0, y)  # an input that is still being computed
        assert isinstance(result, jax.Array)
        np.testing.assert_array_equal(np.asarray(result), expected)
        np.testing.assert_array_equal(np.asarray(result + 1), expected + 1)
    for _ in range(50):  # inputs that are freed at once, whose memory JAX reuses
        result = rows(x * 1, y * 1)
        _ = jax.numpy.full((M, K), 1000.0) * 2
        np.testing.assert_array_equal(np.asarray(result), expected)
    (out,) = on_cupy(np.zeros((M, N), np.float32))
    assert rows(x, y, out=out) is out
    np.testing.assert_array_equal(as_numpy(out), expected)
    with pytest.raises(LaunchError, match="cannot be written"):
        rows(x, y, out=result)
    np.testing.assert_array_equal(np.asarray(jax.jit(lambda one: rows(one, y) + 1)(x)), expected + 1)
    prepared = rows.prepare(x, y)
    np.testing.assert_array_equal(np.asarray(prepared()), expected)


def test_jax_bfloat16():
    jax = jax_on_gpu()
    a, b, expected = problem()
    kernel = library("naive").strategy(library("naive").spec(M, N, K, dtype=bfloat16, **ROWS)).compile()
    output = kernel(*(jax.numpy.asarray(one, dtype=jax.numpy.bfloat16) for one in (a, b)))
    assert isinstance(output, jax.Array) and str(output.dtype) == kernel.ir.buffer("C").dtype.numpy
    np.testing.assert_array_equal(np.asarray(output.astype("float32")), expected)


# ---------------------------------------------------------------------------------------------- streams and graphs


def busy():
    """Some milliseconds of work on the current stream, so that a missing wait gives wrong results."""
    import cupy

    cupy.RawKernel(
        'extern "C" __global__ void spin(long long n) { long long t = clock64(); while (clock64() - t < n); }', "spin"
    )((1,), (1,), (np.int64(2e7),))  # fmt: skip


def test_kernels_run_on_cupys_current_stream(kernel):
    import cupy

    a, b, expected = problem()
    (right, b_there), source = on_cupy(a, b), cupy.zeros((M, K), np.float32)
    for given in (False, True):
        source[...] = 0
        cupy.cuda.Device().synchronize()
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream:
            busy()
            source[...] = right
            out = None if given else kernel(source, b_there)
        if given:
            out = kernel(source, b_there, stream=stream)
        stream.synchronize()
        np.testing.assert_array_equal(cupy.asnumpy(out), expected)


@pytest.mark.parametrize("given", [False, True], ids=["current", "given"])
def test_kernels_run_on_torchs_current_stream(kernel, given):
    torch = pytest.importorskip("torch")
    a, b, expected = problem()
    right, b_there = on_torch(a, b)
    source = torch.zeros_like(right)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        source.copy_(right)
        if not given:
            out = kernel(source, b_there)
    if given:
        out = kernel(source, b_there, stream=stream)
    stream.synchronize()
    np.testing.assert_array_equal(out.cpu().numpy(), expected)


def test_an_interface_that_names_its_stream_is_waited_for(kernel):
    import cupy

    a, b, expected = problem()
    (right, b_there), source = on_cupy(a, b), cupy.zeros((M, K), np.float32)
    cupy.cuda.Device().synchronize()
    producer, ours = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)
    with producer:
        busy()
        source[...] = right
    out = kernel(Interface(source, stream=producer.ptr), b_there, stream=ours)
    ours.synchronize()
    np.testing.assert_array_equal(cupy.asnumpy(out), expected)


def test_current_streams_that_differ(kernel):
    import cupy

    torch = pytest.importorskip("torch")
    a, b, expected = problem()
    (a, b), (out,) = on_torch(a, b), on_cupy(np.zeros((M, N), np.float32))
    kernel(a, b, out=out)
    np.testing.assert_array_equal(cupy.asnumpy(out), expected)
    with torch.cuda.stream(torch.cuda.Stream()), pytest.raises(LaunchError, match="current streams differ"):
        kernel(a, b, out=out)


@pytest.mark.parametrize("first", [False, True], ids=["loaded", "first call"])
def test_cupy_graphs(first):
    import cupy

    kernel = library("naive").strategy(library("naive").spec(M, N, K, **ROWS)).compile()
    a, b, expected = problem()
    a, b, out = on_cupy(a, b, np.zeros((M, N), np.float32))
    if not first:
        kernel.prepare(a, b, out=out)
    _ = kernel.compiled
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        kernel(a, b, out=out)
        graph = stream.end_capture()
    cupy.cuda.Device().synchronize()
    assert not out.any(), "captured, not run"
    graph.launch(stream)
    stream.synchronize()
    np.testing.assert_array_equal(cupy.asnumpy(out), expected)


@pytest.mark.parametrize("first", [False, True], ids=["loaded", "first call"])
@pytest.mark.parametrize("passed", [False, True], ids=["allocated", "passed"])
def test_torch_graphs(first, passed):
    torch = pytest.importorskip("torch")
    kernel = library("naive").strategy(library("naive").spec(M, N, K, **ROWS)).compile()
    a, b, expected = problem()
    a, b = on_torch(a, b)
    out = torch.zeros(M, N, device="cuda") if passed else None
    if not first:
        kernel(a, b)
    _ = kernel.compiled
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = kernel(a, b, out=out)
    for factor in (1, 2):
        a.mul_(factor)
        graph.replay()
        torch.cuda.synchronize()
        np.testing.assert_array_equal(output.cpu().numpy(), expected * factor)


def test_zeros_are_captured_by_torch(adding):
    torch = pytest.importorskip("torch")
    a, b, expected = problem(shape=(100, 70, 333))
    a_t, b_t = on_torch(a.T, b.T)
    whole = torch.full((70, 128), 9.0, device="cuda")
    out = whole.T[:100]
    adding.prepare(a_t.T, b_t.T, out=out)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        adding(a_t.T, b_t.T, out=out)
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    np.testing.assert_array_equal(out.cpu().numpy(), expected)
    assert bool((whole[:, 100:] == 9).all())


def test_zeros_need_no_deprecated_stream(adding):
    import cupy

    a, b, expected = problem(shape=(100, 70, 333))
    a, b = stored(a, ColMajor, cupy), stored(b, ColMajor, cupy)
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        out = adding(a, b, stream=stream.ptr)
    stream.synchronize()
    np.testing.assert_array_equal(cupy.asnumpy(out), expected)


# ---------------------------------------------------------------------------------------------- what is refused


def test_wrong_arrays(kernel):
    import cupy

    a, b = on_cupy(*problem()[:2])
    shifted = cupy.zeros(M * K + 1, np.float32)[1:].reshape(M, K)
    out = cupy.zeros((M, N), np.float32)
    for arrays, options, message in (
        ((a.astype("f8"), b), {}, "another type"),
        ((a[:, ::-1], b), {}, "reversed view"),
        ((cupy.broadcast_to(a[:1], (M, K)), b), {}, "broadcast view"),
        ((cupy.asfortranarray(a), b), {}, "other strides"),
        ((a[:-1], b), {}, "shape"),
        ((a, b), {"out": out.astype("i4")}, "another type"),
        ((a, b), {"out": out[:, :-1]}, "shape"),
        ((a, b), {"stream": "fast"}, "not a CUDA stream"),
        ((a, b), {"stream": True}, "not a CUDA stream"),
        *(((shifted, b), {}, "not a multiple of"),) * (kernel.ir.buffer("A").tensor.align > 4),
    ):
        with pytest.raises((LaunchError, ArgumentError), match=message):
            kernel(*arrays, **options)
    square = library("naive").strategy(library("naive").spec(64, 64, 64, **ROWS)).compile()
    x, y = cupy.ones((64, 64), np.float32), cupy.ones((64, 64), np.float32)
    for call in (square, square.prepare):
        with pytest.raises(LaunchError, match="out overlaps A"):
            call(x, y, out=x)
    assert int(kernel.grid()) > 0 and kernel.block > 0


# ---------------------------------------------------------------------------------------------- prepared launches, threads


@pytest.mark.parametrize("place", [on_cupy, on_torch], ids=["cupy", "torch"])
def test_prepared_launches(kernel, place):
    a, b, expected = problem()
    a2, b2, expected2 = problem(seed=4)
    a, b, a2, b2, out = place(a, b, a2, b2, np.zeros((M, N), np.float32))
    prepared = kernel.prepare(a, b, out=out)
    assert not as_numpy(out).any(), "nothing ran"
    assert prepared() is out
    np.testing.assert_array_equal(as_numpy(out), expected)
    np.testing.assert_array_equal(as_numpy(prepared(a2, b2)), expected2)
    assert prepared(a2, b2, out=out) is out
    np.testing.assert_array_equal(as_numpy(out), expected2)
    a *= 2
    prepared()
    np.testing.assert_array_equal(as_numpy(out), 2 * expected)
    with pytest.raises(ArgumentError, match="A differs from the array that the launch was prepared for"):
        prepared(a[:-1], b, out=out)


def test_a_tensor_with_new_memory(kernel):
    torch = pytest.importorskip("torch")
    a, b, expected = problem()
    a, b = on_torch(a, b)
    source = torch.zeros_like(a)
    prepared = kernel.prepare(source, b)
    prepared()
    source.data = a
    np.testing.assert_array_equal(prepared().cpu().numpy(), expected)


def test_threads(kernel):
    import cupy

    problems = [problem(seed) for seed in range(6)]
    fresh = library("naive").strategy(library("naive").spec(M, N, K, **ROWS)).compile()
    failed = []

    def work(a, b, expected):
        try:
            with cupy.cuda.Stream(non_blocking=True) as stream:
                a, b = cupy.asarray(a), cupy.asarray(b)
                for _ in range(100):
                    out = fresh(a, b)
                stream.synchronize()
                np.testing.assert_array_equal(cupy.asnumpy(out), expected)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=one) for one in problems]
    for worker in threads:
        worker.start()
    for worker in threads:
        worker.join()
    assert not failed


def test_a_thread_without_a_context(kernel):
    a, b, expected = problem()
    a, b, out = on_cupy(a, b, np.zeros((M, N), np.float32))
    prepared, failed = kernel.prepare(a, b, out=out), []

    def work():
        try:
            prepared()
        except LaunchError as error:
            failed.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert not failed
    np.testing.assert_array_equal(as_numpy(out), expected)


# ---------------------------------------------------------------------------------------------- two GPUs


@two_gpus
def test_a_kernel_runs_where_its_arrays_are(kernel):
    import cupy

    a, b, expected = problem()
    for device in (1, 0):
        with cupy.cuda.Device(device):
            on_other_gpu = on_cupy(a, b)
        out = kernel(*on_other_gpu)
        assert out.device.id == device and cupy.cuda.Device().id == 0
        np.testing.assert_array_equal(cupy.asnumpy(out), expected)
        prepared = kernel.prepare(*on_other_gpu)
        np.testing.assert_array_equal(cupy.asnumpy(prepared()), expected)


@two_gpus
def test_torch_on_the_second_gpu(kernel):
    torch = pytest.importorskip("torch")
    a, b, expected = problem()
    a, b = (one.to("cuda:1") for one in on_torch(a, b))
    out = kernel(a, b)
    assert out.device.index == 1 and torch.cuda.current_device() == 0
    np.testing.assert_array_equal(out.cpu().numpy(), expected)


@two_gpus
@pytest.mark.parametrize("current", [0, 1])
@pytest.mark.parametrize("device", [0, 1])
def test_torchs_current_gpu_is_respected_and_kept(kernel, current, device):
    """CuPy and PyTorch have separate CUDA runtimes; both must use the same current GPU."""
    torch = pytest.importorskip("torch")
    a, b, expected = problem()
    a, b = (one.to(f"cuda:{device}") for one in on_torch(a, b))
    torch.cuda.synchronize(device)
    with torch.cuda.device(current):
        out = kernel(a, b)
        prepared = kernel.prepare(a, b)
        prepared()
        assert torch.cuda.current_device() == current
        assert torch.ones(1, device="cuda").device.index == current
    for result in (out, prepared.out):
        assert result.device.index == device
        np.testing.assert_array_equal(result.cpu().numpy(), expected)


@two_gpus
def test_zeros_on_the_second_gpu(adding):
    import cupy

    a, b, expected = problem(shape=(100, 70, 333))
    with cupy.cuda.Device(1):
        on_second = stored(a, ColMajor, cupy), stored(b, ColMajor, cupy)
    np.testing.assert_array_equal(cupy.asnumpy(adding(*on_second)), expected)


@two_gpus
def test_arrays_on_two_gpus(kernel):
    import cupy

    a, b, _ = problem()
    (a,) = on_cupy(a)
    with cupy.cuda.Device(1):
        (b,) = on_cupy(b)
        stream = cupy.cuda.Stream()
    with pytest.raises(LaunchError, match="A is on GPU 0, but B is on GPU 1"):
        kernel(a, b)
    with pytest.raises(LaunchError, match="the stream is of GPU 1"):
        kernel(a, on_cupy(problem()[1])[0], stream=stream)
