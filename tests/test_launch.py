"""Launching on fake GPUs (tests/fake_gpu.py): what reaches the driver, and what is refused before."""

import contextlib
import copy
import ctypes
import pickle
import sys
import threading
import time
import types

import fake_gpu
import making
import numpy as np
import outputs
import pytest
from fake_gpu import Capsule, FakeGpu, Interfaced, installed, memory
from problems import library
from toys.in_launches import InLaunches
from toys.sequence import SEQUENCE

from fireiron import *
from fireiron.gpu import arguments, arrays, launch, prepared
from fireiron.gpu.arrays import ArrayView
from fireiron.gpu.kernel import CompiledKernel, architecture_here

ROWS = {"A": RowMajor, "B": RowMajor, "C": RowMajor}
COPY = Move.tile(1, 1).to(Thread).done()
torch, jax = fake_gpu.torch, fake_gpu.jax


def compiled(spec, strategy=None):
    """A kernel with fake machine code."""
    kernel = (strategy or library("naive").strategy)(spec).compile("sm_90")
    kernel.__dict__["compiled"] = types.SimpleNamespace(cubin=b"\x7fELF")
    return kernel


@pytest.fixture
def gpu(monkeypatch):
    return installed(monkeypatch, FakeGpu())


@pytest.fixture(scope="module")
def shared_kernels():
    return {}


@pytest.fixture
def kernel(shared_kernels):
    """C = A @ B, 20 x 12 x 8, row-major float32. The program is shared, the kernel is new."""
    if "matmul" not in shared_kernels:
        shared_kernels["matmul"] = compiled(library("naive").spec(20, 12, 8, **ROWS)).program
    kernel = CompiledKernel(shared_kernels["matmul"])
    kernel.__dict__["compiled"] = types.SimpleNamespace(cubin=b"\x7fELF")
    return kernel


def operands(gpu, device=None):
    return gpu.array((20, 8), device=device), gpu.array((8, 12), device=device), gpu.array((20, 12), device=device)


def addresses(*given):
    return [array.data.ptr if hasattr(array, "data") else array.data_ptr() for array in given]


def tensor(torch, shape, order="C", dtype="float32", device=0, **options):
    strides = (shape[1], 1) if order == "C" else (1, shape[0])
    return torch.Tensor(shape, strides, getattr(torch, dtype), device, **options)


def tensors(torch, **options):
    return tuple(tensor(torch, shape, **options) for shape in ((20, 8), (8, 12), (20, 12)))


# ---------------------------------------------------------------------------------------------- what reaches the driver


def test_a_call_passes_addresses_grid_and_block(gpu, kernel):
    a, b, c = operands(gpu)
    assert kernel(a, b, out=c) is c
    ((device, grid, block, shared, stream, values),) = gpu.launches
    assert (device, grid, block, shared, stream) == (0, (kernel.grid(), 1, 1), (kernel.block, 1, 1), 0, 0)
    assert values == addresses(a, b, c)


def test_sizes_follow_the_addresses(gpu):
    M, N, K = sym("M"), sym("N"), sym("K")
    kernel = compiled(library("naive").spec(M, N, K, **ROWS))
    gpu.parameters = 6 + len(kernel.ir.reciprocals)
    for sizes in ((20, 12, 8), (5, 300, 77)):
        a, b, c = gpu.array((sizes[0], sizes[2])), gpu.array((sizes[2], sizes[1])), gpu.array(sizes[:2])
        kernel(a, b, out=c)
        _, grid, _, _, _, values = gpu.launches[-1]
        assert values[:3] == addresses(a, b, c)
        given = dict(zip("MNK", sizes))
        assert values[3:6] == [given[var.name] for var in kernel.ir.symbols]
        assert values[6:] == [one.value(given) for one in kernel.ir.reciprocals] == []
        assert grid == (kernel.grid(**given), 1, 1)


def test_a_leading_dimension_is_read_from_the_array_or_a_keyword(gpu):
    gpu.parameters = 4
    kernel = compiled(library("naive").spec(20, 12, 8, A=RowMajor, B=RowMajor, C=RowMajor(ld=sym("ld"))))
    a, b, _ = operands(gpu)
    for ld in (12, 16):
        c = gpu.array((20, 12), ld=ld)
        kernel(a, b, out=c, ld=ld)
        assert gpu.launches[-1][-1] == [*addresses(a, b, c), ld]
    with pytest.raises(LaunchError, match="other strides"):
        kernel(a, b, out=gpu.array((20, 12), ld=16), ld=12)
    for ld in (12, 14):
        c = gpu.array((20, 12), ld=ld)
        kernel(a, b, out=c)
        assert gpu.launches[-1][-1] == [*addresses(a, b, c), ld]
    with pytest.raises(LaunchError, match="does not support these sizes: the leading dimension of C is at least 12"):
        kernel(a, b, out=gpu.array((20, 12), order="F"))
    assert kernel(a, b).strides == (48, 4), "a new output has no gaps"


def test_the_second_call_checks_only_addresses(gpu, kernel, monkeypatch):
    first, second = operands(gpu), operands(gpu)
    kernel(*first[:2], out=first[2])
    monkeypatch.setattr(prepared, "check_view", None)
    monkeypatch.setattr(prepared, "solve_symbols", None)
    kernel(*second[:2], out=second[2])
    assert [values for *_, values in gpu.launches] == [addresses(*first), addresses(*second)]
    assert gpu.loaded == [(0, b"\x7fELF")]


def test_signatures_are_bounded(gpu, monkeypatch):
    gpu.parameters = 6
    monkeypatch.setattr(prepared, "KEPT", 3)
    kernel = compiled(library("naive").spec(sym("M"), sym("N"), sym("K"), **ROWS))
    for M in (*range(1, 9), 1):
        a, b, c = gpu.array((M, 8)), gpu.array((8, 12)), gpu.array((M, 12))
        kernel(a, b, out=c)
        assert M in gpu.launches[-1][-1]
        assert len(kernel._calls._plans) == min(len(gpu.launches), 3)


def test_outputs_are_set_to_zero_first_and_nothing_between(gpu):
    spec = MatMul(20, 12, 8, C=ColMajor(ld=32))(GL, GL, GL)(Kernel)
    from test_split_k import blocks

    kernel = compiled(spec, blocks(2, 2))
    assert making.effect_of(kernel.ir, "zeroed") == ("C",)
    a, b = gpu.array((20, 8), order="F"), gpu.array((8, 12), order="F")
    whole = gpu.array((32, 12), order="F")
    whole.host[...] = 9
    c = gpu.cupy.ndarray((20, 12), "float32", memoryview(whole.host.T.reshape(-1).view(np.uint8)), (4, 128))
    kernel(a, b, out=c, stream=4096)
    assert [step[0] for step in gpu.done] == ["memset2d", "launch"]
    assert gpu.of("memset2d") == [(0, 80, 12, 4096)] and gpu.launches[0][4] == 4096
    assert (whole.host[:20] == 0).all() and (whole.host[20:] == 9).all()


def test_maxima_start_at_minus_infinity(gpu):
    from test_atomic_extremes import columns

    kernel = columns()[0].compile("sm_90")
    kernel.__dict__["compiled"] = types.SimpleNamespace(cubin=b"\x7fELF")
    x, top = gpu.array((20, 70), np.float16), gpu.cupy.ndarray((70,), "float32", memory(280), (4,))
    top.host[...] = 9
    gpu.parameters = 2
    kernel(x, out=top, stream=4096)
    assert [step[0] for step in gpu.done] == ["words", "launch"] and gpu.of("words") == [(0, 70, 1, 4096)]
    assert (top.host == -np.inf).all()


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("shape", "strides"),
    [((6,), (4,)), ((3, 5), (20, 4)), ((3, 5), (4, 12)), ((3, 5), (64, 4)), ((3, 1), (64, 4)), ((1, 5), (64, 4)), ((2, 3, 4), (256, 64, 8)),
     ((2, 3, 4), (200, 16, 4)), ((1, 1), (4, 4)), ((2, 2), (8, 12)), ((2, 3), (8, 4)), ((4, 2), (0, 4))],
)  # fmt: skip
def test_fills_touch_every_element_and_no_other(gpu, shape, strides):
    whole = fake_gpu.memory(1024).view(np.float32)
    whole[...] = 5
    view = np.ndarray(shape, np.float32, whole, strides=strides)
    expected = whole.copy()
    np.ndarray(shape, np.float32, expected, strides=strides)[...] = 0
    launch.fill_of(shape, strides, 4)(view.ctypes.data, 0)
    np.testing.assert_array_equal(whole, expected)


def test_zero_is_on_the_current_stream_or_the_given_one(gpu):
    array = gpu.array((4, 4))
    with gpu.cupy.cuda.Stream() as stream:
        launch.zero(array)
    launch.zero(array, 77)
    assert [step[-1] for step in gpu.of("memset")] == [stream.ptr, 77]
    assert (array.host == 0).all()


def test_a_fill_is_a_value(gpu):
    """The object that sets an array to zero."""
    fill = launch.fill_of((3, 5), (64, 4), 4)
    assert repr(fill) == "Fill(width=20, height=3, pitch=64, starts=(0,), bits=0)"
    assert fill == launch.Fill(20, 3, 64, (0,), None) != launch.Fill(20, 3, 64, (4,), None)
    assert launch.fill_of((1, 5), (0, 4), 4) == launch.Fill(20, 1, 20, (0,), None), "one, whatever the stride of a single element"


# ---------------------------------------------------------------------------------------------- what is requested of the driver


def loading(gpu, static=0):
    """The function attributes that are set while kernels with `static` bytes of static shared memory are loaded."""
    attributes_set = []
    gpu.cupy.cuda.driver.funcGetAttribute = lambda attribute, function: {1: static}[attribute]
    gpu.cupy.cuda.driver.funcSetAttribute = lambda function, attribute, value: attributes_set.append((attribute, value))
    return attributes_set


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "static, dynamic, expected",
    [
        (0, 49_152, []),
        (0, 49_153, [(8, 49_153)]),
        (1024, 48_128, []),
        (1024, 48_129, [(8, 48_129)]),
        (49_152, 0, []),
        (0, 232_448, [(8, 232_448)]),
    ],
)
def test_more_than_48_kib_of_shared_memory_are_requested(gpu, static, dynamic, expected):
    """Static and dynamic together; the attribute is the dynamic part (CUDA C++ Programming Guide, compute capabilities)."""
    attributes_set = loading(gpu, static)
    launcher = launch.load(b"", "k", dynamic)
    assert attributes_set == expected and launcher.dynamic_shared == dynamic and launcher.name == "k"
    gpu.parameters = 1
    launcher.fixed(0, 7, 64, 1, ())((4096,), 0)
    ((device, grid, block, shared, stream, _),) = gpu.launches
    assert (device, grid, block, shared, stream) == (0, (7, 1, 1), (64, 1, 1), dynamic, 0)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("static, dynamic", [(0, 232_449), (1, 232_448), (232_449, 0), (0, -1)])
def test_more_shared_memory_than_available_is_refused(gpu, static, dynamic):
    attributes_set = loading(gpu, static)
    with pytest.raises(LaunchError, match="bytes of shared memory per block") as caught:
        launch.load(b"", "k", dynamic)
    assert caught.value.legal == "at most 232448 on this GPU" and not attributes_set


@pytest.mark.sampled(1)
@pytest.mark.parametrize("cluster, expected", [(1, []), (8, []), (9, [(14, 1)]), (16, [(14, 1)])])
def test_more_than_eight_blocks_of_a_cluster_are_requested(gpu, cluster, expected):
    """CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED."""
    attributes_set = loading(gpu)
    launch.load(b"", "k", cluster=cluster)
    assert attributes_set == expected


def test_sizes_of_parameters_are_read_from_the_driver(monkeypatch):
    """One after the other, until no parameter has the number (`cuFuncGetParamInfo`)."""
    sizes = [8, 128, 4]

    def query(function, position, offset, size):
        assert function == 77
        if position >= len(sizes):
            return 1
        size._obj.value = sizes[position]
        return 0

    query.argtypes = None
    monkeypatch.setattr(launch, "_driver", lambda: types.SimpleNamespace(cuFuncGetParamInfo=query))
    assert launch._parameter_sizes(77) == (8, 128, 4)
    sizes.clear()
    assert launch._parameter_sizes(77) == ()

    def broken(*_):
        return 700

    monkeypatch.setattr(launch, "_driver", lambda: types.SimpleNamespace(cuFuncGetParamInfo=broken))
    assert launch._parameter_sizes(77) is None
    monkeypatch.setattr(launch, "_driver", lambda: None)
    assert launch._parameter_sizes(77) is None, "a driver older than CUDA 12.4"


@pytest.mark.sampled(1)
@pytest.mark.parametrize("values, sizes, fits", [
    ((2**31 - 1,), (8, 4), True), ((2**31,), (8, 8), True), ((2**31,), (8, 4), False), ((0, 2**62), (8, 4, 8), True), ((5,), (8, 8), False),
    ((5,), (8, 4, 4), False),
])  # fmt: skip
def test_integers_have_four_bytes_where_they_fit(gpu, values, sizes, fits):
    launcher = launch.Launcher("k", 0, sizes, gpu.cupy.cuda.Module().get_function("k"), gpu.cupy.ndarray)
    if not fits:
        with pytest.raises(LaunchError, match="argument 1 of 'k'|takes 3 arguments"):
            launcher.fixed(0, 1, 32, 1, values)
        return
    gpu.parameters = len(sizes)
    launcher.fixed(0, (3, 2), 32, 1, values)((4096,), 8192)
    ((_, grid, block, _, stream, passed),) = gpu.launches
    assert (grid, block, stream, passed) == ((3, 2, 1), (32, 1, 1), 8192, [4096, *values])


@pytest.mark.sampled(1)
@pytest.mark.parametrize("number, version", [(13000, (13, 0)), (12080, (12, 8)), (11080, (11, 8)), (12999, (12, 99))])
def test_the_version_of_the_driver(gpu, number, version):
    """1000 for each major version and 10 for each minor one."""
    gpu.cupy.cuda.runtime.driverGetVersion = lambda: number
    assert launch.driver_version() == version


# ---------------------------------------------------------------------------------------------- streams


def test_the_current_stream_of_cupy(gpu, kernel):
    a, b, c = operands(gpu)
    with gpu.cupy.cuda.Stream() as stream:
        kernel(a, b, out=c)
    kernel(a, b, out=c)
    assert [one[4] for one in gpu.launches] == [stream.ptr, 0]


def test_the_current_stream_of_torch(gpu, torch, kernel):
    a, b, c = tensors(torch)
    torch.state.stream = 640
    with gpu.cupy.cuda.Stream():
        assert kernel(a, b, out=c) is c
    assert gpu.launches[0][4] == 640 and gpu.launches[0][-1] == addresses(a, b, c)


def test_torch_without_its_private_function(gpu, torch, kernel):
    del torch._C._cuda_getCurrentRawStream
    torch.cuda.current_stream = lambda device: types.SimpleNamespace(cuda_stream=96 + device)
    a, b, c = tensors(torch)
    kernel(a, b, out=c)
    assert gpu.launches[0][4] == 96


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", ["address", "protocol", "torch", "cupy"])
def test_a_given_stream(gpu, kernel, kind):
    stream = {
        "address": 8192,
        "protocol": types.SimpleNamespace(__cuda_stream__=lambda: (0, 8192)),
        "torch": types.SimpleNamespace(cuda_stream=8192, device_index=0),
        "cupy": gpu.cupy.cuda.Stream(8192),
    }[kind]
    a, b, c = operands(gpu)
    kernel(a, b, out=c, stream=stream)
    kernel.prepare(a, b, out=c)(stream=stream)
    assert [one[4] for one in gpu.launches] == [8192, 8192]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("stream", ["default", True, -1, 1.5])
def test_what_is_not_a_stream(gpu, kernel, stream):
    a, b, c = operands(gpu)
    with pytest.raises(LaunchError, match="not a CUDA stream"):
        kernel(a, b, out=c, stream=stream)
    assert not gpu.launches


def test_libraries_must_agree_on_the_stream(gpu, torch, kernel):
    a, b, _ = tensors(torch)
    c = gpu.array((20, 12))
    kernel(a, b, out=c)  # both on the default stream, which has two addresses
    torch.state.stream = 1
    kernel(a, b, out=c)
    torch.state.stream = 640
    with pytest.raises(LaunchError, match=r"A is an array of PyTorch, out one of CuPy, and their current streams differ"):
        kernel(a, b, out=c)
    kernel(a, b, out=c, stream=640)
    assert [one[4] for one in gpu.launches] == [0, 1, 640]


def test_a_capture_needs_nothing_but_the_launch(gpu, kernel):
    """Between begin and end of a capture only the launch runs, on the captured stream."""
    a, b, c = operands(gpu)
    kernel.prepare(a, b, out=c)
    with gpu.cupy.cuda.Stream() as stream:
        gpu.captured.add(stream.ptr)
        kernel(a, b, out=c)
    assert [step[0] for step in gpu.done] == ["launch"] and gpu.launches[0][4] == stream.ptr


def test_a_refusal_in_a_capture_has_a_remedy(gpu, kernel):
    a, b, c = operands(gpu)
    gpu.refuse = "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT: operation would make the legacy stream depend on a capturing stream"
    with pytest.raises(LaunchError, match=r"refuses to launch 'matmul' on GPU 0") as caught:
        kernel(a, b, out=c)
    assert "pass stream=" in caught.value.hint
    gpu.refuse = "CUDA_ERROR_INVALID_VALUE: invalid argument"
    with pytest.raises(LaunchError) as caught:
        kernel(a, b, out=c)
    assert caught.value.hint is None
    gpu.refuse = None
    kernel(a, b, out=c)
    assert len(gpu.launches) == 1


# ---------------------------------------------------------------------------------------------- outputs


def test_outputs_are_of_the_inputs_library(gpu, torch, jax, kernel):
    a, b, _ = operands(gpu)
    assert isinstance(kernel(a, b), gpu.cupy.ndarray)
    c = kernel(*tensors(torch)[:2])
    assert isinstance(c, torch.Tensor) and (c.shape, c.stride(), c.dtype) == ((20, 12), (12, 1), torch.float32)
    assert gpu.launches[-1][-1][-1] == c.data_ptr()
    c = kernel(jax.Array((20, 8)), jax.Array((8, 12)))
    assert isinstance(c, jax.Array) and c.shape == (20, 12) and gpu.launches[-1][-1][-1] == c.unsafe_buffer_pointer()
    assert isinstance(kernel(Interfaced(a), Interfaced(b)), gpu.cupy.ndarray)
    assert isinstance(kernel(Capsule(a), Capsule(b)), gpu.cupy.ndarray)


def test_allocated_outputs_have_the_layout(gpu, torch, jax):
    kernel = compiled(library("naive").spec(20, 12, 8, C=ColMajor(ld=32)))
    a, b = gpu.array((20, 8), order="F"), gpu.array((8, 12), order="F")
    c = kernel(a, b)
    assert (c.shape, c.strides) == ((20, 12), (4, 128))
    c = kernel(*(tensor(torch, shape, "F") for shape in ((20, 8), (8, 12))))
    assert (c.shape, c.stride()) == ((20, 12), (1, 32))


def test_jax_gets_a_column_major_output_transposed(gpu, jax):
    kernel = compiled(library("naive").spec(20, 12, 8, A=RowMajor, B=RowMajor))
    c = kernel(jax.Array((20, 8)), jax.Array((8, 12)))
    assert c.shape == (20, 12) and c.host.flags.f_contiguous
    padded = compiled(library("naive").spec(20, 12, 8, A=RowMajor, B=RowMajor, C=RowMajor(ld=16)))
    with pytest.raises(LaunchError, match="JAX arrays cannot have padded rows"):
        padded(jax.Array((20, 8)), jax.Array((8, 12)))


def test_jax_imports_the_output_on_the_stream_of_the_kernel(gpu, jax, kernel):
    inputs = jax.Array((20, 8)), jax.Array((8, 12))
    kernel(*inputs, stream=8192)
    with gpu.cupy.cuda.Stream() as stream:
        kernel(*inputs)
    assert [one[4] for one in gpu.launches] == [8192, stream.ptr] == [one[0] for one in gpu.of("import")]


def test_torch_allocates_on_the_given_stream(gpu, torch, kernel):
    kernel(*tensors(torch)[:2], stream=640)
    assert gpu.of("empty") == [(640,)] and gpu.launches[0][4] == 640 and torch.state.stream == 0


def test_what_atomics_add_to_must_be_passed():
    """New memory has arbitrary values, to which nothing can be added."""
    spec = AtomicAdd(8, 8)(GL, GL)(Kernel)
    kernel = AtomicAdd.tile(8, 8).to(Block).tile(1, 1).to(Thread).done()(spec).compile("sm_80")
    src, dst = np.ones((8, 8), "float32", order="F"), np.full((8, 8), 2, "float32", order="F")
    with pytest.raises(ArgumentError, match="adds to dst"):
        kernel(src)
    assert kernel(src, out=dst) is dst and (dst == 3).all()


def test_an_output_that_is_added_to_must_be_passed(gpu):
    kernel = compiled(library("naive").spec(20, 12, 8, accumulate=True, **ROWS))
    a, b, c = operands(gpu)
    for call in (kernel, kernel.prepare):
        with pytest.raises(ArgumentError, match="adds to C"):
            call(a, b)
    kernel(a, b, out=c)
    assert len(gpu.launches) == 1


# ---------------------------------------------------------------------------------------------- what is refused


def wrong(gpu):
    """Wrong arrays instead of A, and the words of the error."""
    shared = gpu.array((20, 8))
    reversed_rows = gpu.array((20, 8))
    reversed_rows.host = reversed_rows.host[::-1]
    broadcast = gpu.array((20, 8))
    broadcast.host = np.broadcast_to(broadcast.host[:1], (20, 8))
    swapped = gpu.array((20, 8))
    swapped.host = swapped.host.view(">f4")
    return {
        "type": (gpu.array((20, 8), "float64"), "A has elements of another type", "float64"),
        "byte order": (swapped, "A has elements of another type", ">f4"),
        "shape": (gpu.array((20, 9)), "A has the shape (20, 9)", ""),
        "dimensions": (gpu.cupy.ndarray((160,), "float32", fake_gpu.memory(640)), "A has 1 dimension, the kernel reads 2", ""),
        "layout": (gpu.array((20, 8), order="F"), "A has other strides", "make the spec with A=ColMajor, or pass"),
        "padding": (gpu.array((20, 8), ld=10), "A has other strides", "ld=..."),
        "reversed": (reversed_rows, "A has other strides", "reversed view"),
        "broadcast": (broadcast, "A has other strides", "broadcast view"),
        "nothing": (gpu.array((0, 8)), "A has the shape (0, 8)", ""),
        "host": (np.zeros((20, 8), np.float32), "A is a NumPy array, B, out not", ""),
        "list": ([[1.0]], "A is not an array", "list"),
        "masked": (Interfaced(shared, mask=shared), "A is a masked array", ""),
        "dlpack host": (Capsule(shared, kind=1), "A is not in GPU memory", "Capsule"),
    }


@pytest.mark.sampled(1)
@pytest.mark.parametrize("case", wrong(FakeGpu()))
def test_wrong_arrays_are_refused_before_a_launch(gpu, kernel, case):
    array, message, more = wrong(gpu)[case]
    _, b, c = operands(gpu)
    for call in (kernel, kernel.prepare):
        with pytest.raises((ArgumentError, LaunchError)) as caught:
            call(array, b, out=c)
        assert message in caught.value.asked and more in str(caught.value)
    assert not gpu.launches


def test_a_refused_type_has_the_spec_that_takes_it(gpu, kernel):
    """`dtype` is the type of all inputs; the kernel that the hint proposes takes the array."""
    move = Move(20, 8, src=RowMajor, dst=RowMajor)(GL, GL)(Kernel)
    copy = compiled(move, Move.tile(20, 8).to(Block).tile(1, 1).to(Thread).done())
    a, b, c = operands(gpu)
    for call, hint in (
        (lambda: kernel(gpu.array((20, 8), "float16"), b, out=c), "make the spec with dtype=float16, or convert the array"),
        (lambda: copy(gpu.array((20, 8), "float16"), out=a), "make the spec with dtype=float16, or convert the array"),
        (lambda: copy(gpu.array((20, 8)), out=gpu.array((20, 8), "float16")), "make the spec with dst_dtype=float16, or convert the array"),
        (lambda: kernel(gpu.array((20, 8), "uint16"), b, out=c), "convert it to one of float64 float32"),
    ):
        with pytest.raises(LaunchError, match="elements of another type") as caught:
            call()
        assert caught.value.hint.startswith(hint)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("case", ["type", "layout", "padding", "broadcast", "reversed"])
def test_wrong_outputs_are_refused(gpu, kernel, case):
    c = {
        "type": lambda: gpu.array((20, 12), "int32"),
        "layout": lambda: gpu.array((20, 12), order="F"),
        "padding": lambda: gpu.array((20, 12), ld=13),
        "broadcast": lambda: gpu.cupy.ndarray((20, 12), "float32", fake_gpu.memory(960), (0, 4)),
        "reversed": lambda: Interfaced(gpu.array((20, 12)), strides=(-48, 4)),
    }[case]()
    a, b, _ = operands(gpu)
    with pytest.raises(LaunchError, match="^out has"):
        kernel(a, b, out=c)
    assert not gpu.launches


def test_alignment_is_checked_at_every_call(gpu):
    kernel = compiled(library("gemm_nn").spec(128, 128, 64))
    align = kernel.ir.buffer("A").tensor.align
    assert align > 4, "the kernel loads vectors"
    good = gpu.array((128, 64), order="F"), gpu.array((64, 128), order="F"), gpu.array((128, 128), order="F")
    kernel(*good[:2], out=good[2])
    off = gpu.array((128, 64), order="F", offset=4)
    with pytest.raises(LaunchError, match=f"A starts at an address that is not a multiple of {align} bytes"):
        kernel(off, good[1], out=good[2])
    launches = kernel.prepare(*good[:2], out=good[2])
    with pytest.raises(LaunchError, match="A starts at"):
        launches(off, good[1], out=good[2])
    c_align = kernel.ir.buffer("C").tensor.align
    if c_align > 4:
        with pytest.raises(LaunchError, match="out starts at"):
            kernel(*good[:2], out=gpu.array((128, 128), order="F", offset=4))
    assert len(gpu.launches) == 1


def test_overlap_is_checked_at_every_call(gpu):
    kernel = compiled(library("naive").spec(8, 8, 8, **ROWS))
    a, b, c = (gpu.array((8, 8)) for _ in range(3))
    kernel(a, b, out=c)
    with pytest.raises(LaunchError, match="out overlaps A"):
        kernel(a, b, out=a)
    with pytest.raises(LaunchError, match="out overlaps B"):
        kernel.prepare(a, b, out=b)
    kernel(a, a, out=c)  # inputs may
    assert len(gpu.launches) == 2


@pytest.mark.sampled(1)
@pytest.mark.parametrize("starts", [(0, 128), (128, 0)])
def test_an_output_that_begins_or_ends_inside_an_input_is_refused(gpu, starts):
    kernel = compiled(library("naive").spec(8, 8, 8, **ROWS))
    both, b = fake_gpu.memory(384), gpu.array((8, 8))
    a, c = (gpu.cupy.ndarray((8, 8), "float32", both[start : start + 256]) for start in starts)
    with pytest.raises(LaunchError, match="out overlaps A"):
        kernel(a, b, out=c)
    assert not gpu.launches


def test_columns_of_one_matrix_do_not_overlap(gpu):
    wide = RowMajor(ld=24)
    kernel = compiled(library("naive").spec(8, 8, 8, A=wide, B=wide, C=wide))
    whole = fake_gpu.memory(8 * 24 * 4)
    parts = [gpu.cupy.ndarray((8, 8), "float32", whole[start * 4 :], (96, 4)) for start in (0, 8, 16, 12)]
    kernel(parts[0], parts[1], out=parts[2])
    with pytest.raises(LaunchError, match="out overlaps B"):
        kernel(parts[0], parts[1], out=parts[3])
    assert len(gpu.launches) == 1


def test_share_memory_is_exact():
    generator = np.random.default_rng(2)
    for _ in range(300):
        views, where = [], []
        for _ in range(2):
            shape = tuple(int(size) for size in generator.integers(1, 5, 2))
            strides = tuple(int(stride) for stride in generator.integers(1, 12, 2) * 2)
            views.append(ArrayView(shape, strides, "float16", 2, 0, False))
            where.append(int(generator.integers(0, 40)) * 2 + 4096)
        touched = [
            {address + i * view.strides[0] + j * view.strides[1] for i in range(view.shape[0]) for j in range(view.shape[1])}
            for view, address in zip(views, where)
        ]
        assert arguments.share_memory(views[0], where[0], views[1], where[1]) == bool(touched[0] & touched[1])


def test_read_only_outputs_are_refused(gpu, jax, kernel):
    a, b, c = operands(gpu)
    with pytest.raises(LaunchError, match="out is read-only"):
        kernel(a, b, out=Interfaced(c, readonly=True))
    with pytest.raises(LaunchError, match="out is a JAX array, which cannot be written"):
        kernel(a, b, out=jax.Array((20, 12)))
    kernel(Interfaced(a, readonly=True), b, out=Interfaced(c))
    assert len(gpu.launches) == 1


def test_the_number_of_arrays(gpu, kernel):
    a, b, c = operands(gpu)
    with pytest.raises(ArgumentError, match="1 arrays given, MatMul reads 2"):
        kernel(a)
    with pytest.raises(ArgumentError, match="3 arrays given"):
        kernel(a, b, c)
    with pytest.raises(ArgumentError, match="M=3: the kernel has no such size"):
        kernel(a, b, out=c, M=3)


# ---------------------------------------------------------------------------------------------- PyTorch and JAX


def test_torch_tensors_that_are_refused(gpu, torch, kernel):
    a, b, c = tensors(torch)
    host = tensor(torch, (20, 8), device=-1)
    with pytest.raises(LaunchError, match="A is a PyTorch tensor that is not in GPU memory") as caught:
        kernel(host, b, out=c)
    assert ".cuda()" in caught.value.hint and ".numpy()" in caught.value.hint
    learned = tensor(torch, (20, 8), requires_grad=True)
    with pytest.raises(LaunchError, match="A requires a gradient") as caught:
        kernel(learned, b, out=c)
    assert ".detach()" in caught.value.hint
    torch.state.grad = False
    kernel(learned, b, out=c)
    torch.state.grad = True
    with pytest.raises(LaunchError, match="out requires a gradient"):
        kernel(a, b, out=tensor(torch, (20, 12), requires_grad=True))
    a.layout = "sparse_csr"
    with pytest.raises(LaunchError, match="A is a tensor without strides"):
        kernel(a, b, out=c)
    a.layout, a.negative = torch.strided, True
    with pytest.raises(LaunchError, match="is a lazily negated tensor"):
        kernel(a, b, out=c)
    a.negative = False
    kernel(a, b, out=c)
    assert len(gpu.launches) == 2


@pytest.mark.parametrize("dtype", [bfloat16, float16, int8, float64], ids=str)
def test_torch_types_are_read_by_name(gpu, torch, dtype):
    kernel = compiled(library("naive").spec(20, 12, 8, dtype=dtype, **ROWS))
    a, b, _ = tensors(torch, dtype=dtype.numpy)
    result = kernel.ir.buffer("C").dtype.numpy
    kernel(a, b, out=(c := tensor(torch, (20, 12), dtype=result)))
    assert kernel(a, b).dtype is getattr(torch, result)
    with pytest.raises(LaunchError) as caught:
        kernel(tensor(torch, (20, 8)), b, out=c)
    assert caught.value.got == "float32" and caught.value.legal == dtype.numpy


def test_eight_bit_floats(gpu, torch):
    gpu.parameters = 2
    spec = Move(16, 8, dtype=float8_e4m3, src=RowMajor, dst=RowMajor)(GL, GL)(Kernel)
    kernel = compiled(spec, Move.tile(8, 8).to(Block).then(COPY))
    source, target = (tensor(torch, (16, 8), dtype="float8_e4m3fn") for _ in range(2))
    kernel(source, out=target)
    ml_dtypes = pytest.importorskip("ml_dtypes")
    kernel(gpu.array((16, 8), ml_dtypes.float8_e4m3fn), out=gpu.array((16, 8), ml_dtypes.float8_e4m3fn))
    assert len(gpu.launches) == 2
    with pytest.raises(LaunchError, match="another type"):
        kernel(gpu.array((16, 8), ml_dtypes.float8_e5m2), out=target, stream=0)


def test_ml_dtypes_in_cupy_and_with_an_interface(gpu):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    kernel = compiled(library("naive").spec(20, 12, 8, dtype=bfloat16, **ROWS))
    a, b, c = (gpu.array(shape, ml_dtypes.bfloat16) for shape in ((20, 8), (8, 12), (20, 12)))
    kernel(a, b, out=c)
    named = Interfaced(a)
    with pytest.raises(LaunchError) as caught:
        kernel(named, b, out=c)  # "<V2" does not name a type
    assert "V2" in caught.value.got or "void" in caught.value.got
    Typed = type("Typed", (Interfaced,), {"dtype": property(lambda self: self.array.dtype)})
    kernel(Typed(a), b, out=c)
    assert len(gpu.launches) == 2


def test_jax_inputs_are_waited_for_and_kept(gpu, jax, kernel):
    a, b = jax.Array((20, 8)), jax.Array((8, 12))
    _, _, c = operands(gpu)
    kernel(a, b, out=c)
    assert (a.waited, b.waited) == (1, 1)
    kept_alive = arrays.library_of(jax.Array).kept_alive
    assert {id(thing) for _, thing in kept_alive._queue} == {id(a), id(b)}
    for event, _ in kept_alive._queue:
        event.done = True
    other = jax.Array((20, 8)), jax.Array((8, 12))
    kernel(*other, out=c)
    assert {id(thing) for _, thing in kept_alive._queue} == set(map(id, other))


def test_jax_arrays_that_are_refused(gpu, jax, kernel):
    _, b, c = operands(gpu)
    with pytest.raises(LaunchError, match="A is a JAX tracer"):
        kernel.prepare(jax.core.Tracer(), b, out=c)
    with pytest.raises(ArgumentError, match="out= is illegal in a call that JAX traces"):
        kernel(jax.core.Tracer(), b, out=c)
    with pytest.raises(LaunchError, match="A is a JAX array that is not in GPU memory"):
        kernel(jax.Array((20, 8), kind=1), b, out=c)
    sharded = jax.Array((20, 8))
    sharded.unsafe_buffer_pointer = lambda: (_ for _ in ()).throw(ValueError("sharded"))
    with pytest.raises(LaunchError, match="A is not a JAX array on a single GPU"):
        kernel(sharded, b, out=c)


def test_jax_layouts_are_read(gpu, jax, kernel):
    a = jax.Array((20, 8))
    a.format = types.SimpleNamespace(layout=types.SimpleNamespace(major_to_minor=(1, 0)))
    _, b, c = operands(gpu)
    with pytest.raises(LaunchError, match="A has other strides"):
        kernel(a, b, out=c)


def test_a_producers_stream_is_waited_for_both_ways(gpu, kernel):
    a, b, c = operands(gpu)
    kernel(Interfaced(a, stream=640), b, out=Interfaced(c, stream=1))
    (recorded_event, recorded), (waiting, waited) = gpu.of("record")[0], gpu.of("wait")[0]
    assert (recorded, waiting) == (640, 0) and recorded_event == waited, "ours waits for the producer's"
    assert [step[0] for step in gpu.done] == ["record", "wait", "launch", "record", "wait"]
    assert gpu.of("record")[1][1] == 0 and gpu.of("wait")[1][0] == 640, "and the producer's for ours; 1 is the stream 0"


def test_in_a_capture_nothing_waits(gpu, kernel):
    a, b, c = operands(gpu)
    gpu.captured.add(8192)
    kernel(Interfaced(a, stream=640), Capsule(b), out=c, stream=8192)
    assert [step[0] for step in gpu.done] == ["launch"]


def test_dlpack_arrays_are_kept(gpu, kernel):
    a, b, c = operands(gpu)
    kernel(Capsule(a), Capsule(b), out=Capsule(c))
    assert gpu.launches[0][-1] == addresses(a, b, c)
    kernel(Capsule(a, 13), Capsule(b), out=Capsule(c))  # kDLCUDAManaged
    assert gpu.launches[1][-1] == addresses(a, b, c)
    kept_alive = arrays.library_of(Capsule).kept_alive
    assert {one.array for _, (one, _) in kept_alive._queue} >= {a, b, c}


# ---------------------------------------------------------------------------------------------- prepared launches


def test_a_prepared_launch_runs_on_the_same_arrays(gpu, kernel):
    a, b, c = operands(gpu)
    prepared = kernel.prepare(a, b, out=c)
    assert not gpu.launches and gpu.loaded
    assert prepared() is c and prepared() is c and prepared.out is c
    assert [one[-1] for one in gpu.launches] == [addresses(a, b, c)] * 2
    assert repr(prepared) == "<prepared launch of matmul on GPU 0>"


def test_a_prepared_launch_runs_on_others(gpu, kernel):
    a, b, c = operands(gpu)
    prepared = kernel.prepare(a, b, out=c)
    other = operands(gpu)
    assert prepared(*other[:2], out=other[2]) is other[2]
    fresh = prepared(*other[:2])
    assert fresh is not c and fresh is not other[2]
    another = gpu.array((20, 12))
    assert prepared(out=another) is another
    prepared()
    assert [one[-1] for one in gpu.launches] == [
        addresses(*other),
        addresses(*other[:2], fresh),
        addresses(a, b, another),
        addresses(a, b, c),
    ]


def test_a_prepared_launch_allocates_once(gpu, torch, kernel):
    prepared = kernel.prepare(*tensors(torch)[:2])
    assert prepared() is prepared() is prepared.out and isinstance(prepared.out, torch.Tensor)
    assert gpu.of("empty") == [(0,)]


def test_a_prepared_launch_refuses_what_differs(gpu, torch, kernel):
    a, b, c = operands(gpu)
    prepared = kernel.prepare(a, b, out=c)
    for arrays_, message in (
        ((gpu.array((20, 9)), b), "A differs from the array"),
        ((a, gpu.array((8, 12), order="F")), "B differs from the array"),
        ((gpu.array((20, 8), "float64"), b), "A differs from the array that the launch was prepared for"),
        (tensors(torch)[:2], "A differs from the array that the launch was prepared for"),
        ((a,), "1 arrays given"),
        ((a, np.zeros((8, 12), np.float32)), "runs on a GPU"),
    ):
        for out in (c, None):
            with pytest.raises(ArgumentError, match=message):
                prepared(*arrays_, out=out)
    with pytest.raises(ArgumentError, match="out differs from the array that the launch was prepared for"):
        prepared(a, b, out=gpu.array((20, 12), ld=16))
    with pytest.raises(LaunchError, match="out overlaps A"):
        compiled(library("naive").spec(8, 8, 8, **ROWS)).prepare(*(x := [gpu.array((8, 8)) for _ in "abc"])[:2], out=x[2])(
            x[0], x[1], out=x[0]
        )
    assert not gpu.launches
    with pytest.raises(ArgumentError, match="requires arrays on a GPU"):
        kernel.prepare(np.zeros((20, 8), np.float32), np.zeros((8, 12), np.float32))


def test_a_tensor_that_moved_is_noticed(gpu, torch, kernel):
    a, b, c = tensors(torch)
    prepared = kernel.prepare(a, b, out=c)
    prepared()
    a.bytes = fake_gpu.memory(640)
    prepared()
    assert gpu.launches[0][-1][0] != gpu.launches[1][-1][0] == a.data_ptr()


def test_an_interface_without_a_stream_is_read_again(gpu, kernel):
    a, b, c = operands(gpu)
    moving = Interfaced(a)
    prepared = kernel.prepare(moving, b, out=c)
    assert prepared() is c
    moving.array = gpu.array((20, 8))
    prepared()
    assert [one[-1] for one in gpu.launches] == [addresses(a, b, c), addresses(moving.array, b, c)]
    moving.array = gpu.array((20, 8), ld=9)
    with pytest.raises(ArgumentError, match="A differs from the array"):
        prepared()


def test_a_kernel_without_inputs_is_given_its_output(gpu):
    gpu.parameters = 1
    kernel = compiled(Init(8, 8)(GL)(Kernel), Init.tile(8, 8).to(Block).tile(4, 4).to(Thread).tile(1, 1).done())
    out = gpu.array((8, 8), order="F")
    assert kernel(out=out) is out and kernel.prepare(out=out)() is out
    assert [one[-1] for one in gpu.launches] == [addresses(out)] * 2
    for call in (kernel, kernel.prepare):
        with pytest.raises(ArgumentError, match="no array that determines the GPU of its output"):
            call()


def test_prepared_launches_of_jax_give_new_arrays(gpu, jax, kernel):
    prepared = kernel.prepare(jax.Array((20, 8)), jax.Array((8, 12)))
    first, second = prepared(), prepared()
    assert isinstance(first, jax.Array) and first is not second
    assert first.unsafe_buffer_pointer() != second.unsafe_buffer_pointer()


# ---------------------------------------------------------------------------------------------- preceding copies


@pytest.fixture
def copying(shared_kernels, gpu):
    """A matmul after copies of both operands: three launches, of which the first two arguments are compared."""
    if "copying" not in shared_kernels:
        body = MatMul.tile(32, 64).to(Block).tile(4, 4).to(Thread).split(1).tile(1, 1).done()
        shared_kernels["copying"] = compiled(library("naive").spec(20, 13, 7, **ROWS), MatMul.repack(A).repack(B).then(body)).program
    kernel = CompiledKernel(shared_kernels["copying"])
    for launched in (kernel, *(before.kernel for before in kernel.route.before)):
        launched.__dict__["compiled"] = types.SimpleNamespace(cubin=b"\x7fELF")
    gpu.parameters = 2
    return kernel


def odd(gpu):
    """Operands whose rows are not multiples of 16 bytes."""
    return [gpu.array(shape) for shape in ((20, 7), (7, 13), (20, 13))]


def copied(launches):
    """Which arrays were copied; the matmul reads the copies."""
    (a, first), (b, second), operands = (launch[-1] for launch in launches)
    assert operands == [first, second]
    return [a, b]


def test_copies_precede_each_launch(gpu, copying):
    (a, b, c), (d, e, f) = odd(gpu), odd(gpu)
    stream = gpu.cupy.cuda.Stream()
    assert copying(a, b, out=c, stream=stream) is c
    assert copied(gpu.launches) == addresses(a, b) and {one[4] for one in gpu.launches} == {stream.ptr}
    prepared = copying.prepare(d, e, out=f, stream=stream)
    del gpu.done[:]
    assert prepared(stream=stream) is prepared.out is f and repr(prepared).startswith("<prepared launches: 2 copies, <prepared launch of")
    assert copied(gpu.launches) == addresses(d, e) and {one[4] for one in gpu.launches} == {stream.ptr}


def test_prepared_copies_run_on_other_arrays(gpu, copying):
    (a, b, c), (d, e, f) = odd(gpu), odd(gpu)
    prepared = copying.prepare(a, b, out=c)
    del gpu.done[:]
    stream = gpu.cupy.cuda.Stream()
    assert prepared(d, e, out=f, stream=stream) is f and prepared(out=f) is f and prepared() is c
    first, second, third = (gpu.launches[start : start + 3] for start in (0, 3, 6))
    assert copied(first) == addresses(d, e) and copied(second) == copied(third) == addresses(a, b)
    assert first[-1][-1] == second[-1][-1] == third[-1][-1], "the copies are made once"
    assert {one[4] for one in first} == {stream.ptr} and {one[4] for one in second} == {0}
    for given in ((d,), (d, e, f)):
        with pytest.raises(ArgumentError, match=f"{len(given)} arrays given, the launch was prepared for 2"):
            prepared(*given)


def test_one_operand_alone_is_copied(gpu, jax):
    """The other one is passed as it is, also to prepared launches that copy again."""
    body = MatMul.tile(32, 64).to(Block).tile(4, 4).to(Thread).split(1).tile(1, 1).done()
    kernel = compiled(library("naive").spec(20, 13, 7, **ROWS), MatMul.repack(A).then(body))
    kernel.route.before[0].kernel.__dict__["compiled"] = types.SimpleNamespace(cubin=b"\x7fELF")
    gpu.parameters = 2
    (a, b, c), (d, e, _) = odd(gpu), odd(gpu)
    prepared = kernel.prepare(a, b, out=c)
    given = jax.Array((20, 7)), jax.Array((7, 13))
    immutable = kernel.prepare(*given)
    del gpu.done[:]
    prepared(), prepared(d, e), immutable()
    passed = [one[-1] for one in gpu.launches]
    assert [one[0] for one in passed[::2]] == [a.data.ptr, d.data.ptr, given[0].unsafe_buffer_pointer()]
    assert [one[1] for one in passed[1::2]] == [b.data.ptr, e.data.ptr, given[1].unsafe_buffer_pointer()]
    assert all(copy[1] == product[0] for copy, product in zip(passed[::2], passed[1::2], strict=True))


def test_copies_of_jax_have_gaps_between_rows(gpu, jax, copying):
    """No JAX array has such gaps. The output is a JAX array, and what the matmul reads is kept alive until it has run."""
    a, b = jax.Array((20, 7)), jax.Array((7, 13))
    out = copying(a, b)
    assert isinstance(out, jax.Array) and out.shape == (20, 13)
    assert copied(gpu.launches) == [one.unsafe_buffer_pointer() for one in (a, b)]
    assert len(arrays.library_of(jax.Array).kept_alive) == 4


def test_prepared_copies_of_jax_are_made_again(gpu, jax, copying):
    """JAX arrays are immutable: the copies of the last call cannot be overwritten."""
    a, b = jax.Array((20, 7)), jax.Array((7, 13))
    prepared = copying.prepare(a, b)
    del gpu.done[:]
    stream = gpu.cupy.cuda.Stream()
    first, second = prepared(), prepared(stream=stream)
    assert isinstance(first, jax.Array) and first is not second and {one[4] for one in gpu.launches[3:]} == {stream.ptr}
    for launches in (gpu.launches[:3], gpu.launches[3:]):
        assert copied(launches) == [one.unsafe_buffer_pointer() for one in (a, b)]
    assert gpu.launches[2][-1] != gpu.launches[5][-1]


# ---------------------------------------------------------------------------------------------- programs of several launches


def in_launches(step, rest, count):
    """A matmul in several launches, with fake machine code."""
    kernel = compiled(MatMul(16, 24, 32, **ROWS)(GL, GL, GL)(SEQUENCE), MatMul.then(step).then(rest))
    for launched in (kernel, *(before.kernel for before in kernel.route.before)):
        launched.__dict__["compiled"] = types.SimpleNamespace(cubin=b"\x7fELF")
    assert len(kernel.route.before) == count - 1
    return kernel


BY_THREADS = MatMul.tile(8, 8).to(Block).tile(1, 1).to(Thread).split(1).done()
SUM = AnySpec.tile(8, 8).to(Block).tile(1, 1).to(Thread).done()


def whole(gpu):
    return [gpu.array(shape) for shape in ((16, 32), (32, 24), (16, 24))]


def test_launches_that_add_to_one_output(gpu):
    """All of them write the caller's array, or a new array that the first launch allocates."""
    kernel = in_launches(InLaunches("k", 4), BY_THREADS, 4)
    gpu.parameters = 3
    (a, b, c), (d, e, f) = whole(gpu), whole(gpu)
    stream = gpu.cupy.cuda.Stream()
    assert kernel(a, b, out=c, stream=stream) is c
    assert [one[-1] for one in gpu.launches] == [addresses(a, b, c)] * 4 and {one[4] for one in gpu.launches} == {stream.ptr}
    new = kernel(a, b)
    assert [one[-1] for one in gpu.launches[4:]] == [addresses(a, b, new)] * 4 and new is not c
    prepared = kernel.prepare(a, b, out=c)
    assert len(gpu.launches) == 8, "nothing is added before it runs"
    assert prepared() is c and prepared.out is c and repr(prepared).startswith("<prepared launches: 3 before, <prepared launch of")
    assert prepared(d, e, out=f) is f and prepared(out=f) is f and prepared() is c
    assert [one[-1] for one in gpu.launches[8:]] == [
        *[addresses(a, b, c)] * 4, *[addresses(d, e, f)] * 4, *[addresses(a, b, f)] * 4, *[addresses(a, b, c)] * 4,
    ]  # fmt: skip
    fresh = prepared(d, e)
    assert [one[-1] for one in gpu.launches[24:]] == [addresses(d, e, fresh)] * 4 and fresh is not f
    own = kernel.prepare(d, e)
    assert own() is own.out and [one[-1] for one in gpu.launches[28:]] == [addresses(d, e, own.out)] * 4


def test_launches_with_temporaries(gpu):
    kernel = in_launches(InLaunches("k", 2, BY_THREADS.steps), SUM, 3)
    gpu.parameters = 3
    (a, b, c), (d, e, f) = whole(gpu), whole(gpu)
    assert kernel(a, b, out=c) is c
    first_part, second_part, last = (launch[-1] for launch in gpu.launches)
    assert (
        first_part[:2] == second_part[:2] == addresses(a, b)
        and last == [first_part[2], second_part[2], *addresses(c)]
        and first_part[2] != second_part[2]
    )
    prepared = kernel.prepare(a, b, out=c)
    del gpu.done[:]
    assert prepared() is c and prepared(d, e, out=f) is f
    for first, launches in ((addresses(a, b), gpu.launches[:3]), (addresses(d, e), gpu.launches[3:])):
        first_part, second_part, last = (launch[-1] for launch in launches)
        assert first_part[:2] == second_part[:2] == first and last[:2] == [first_part[2], second_part[2]]
    assert gpu.launches[0][-1] == [*addresses(a, b), gpu.launches[3][-1][2]], "the temporaries are made once"
    with pytest.raises(ArgumentError, match="a prepared launch requires arrays on a GPU"):
        kernel.prepare(np.zeros((16, 32), np.float32), np.zeros((32, 24), np.float32))
    with pytest.raises(ArgumentError, match="1 arrays given, MatMul reads 2"):
        kernel.prepare(a)


def test_an_output_of_jax_is_written_once(gpu, jax):
    kernel = in_launches(InLaunches("k", 2), BY_THREADS, 2)
    given = jax.Array((16, 32)), jax.Array((32, 24))
    for call in (kernel, kernel.prepare):
        with pytest.raises(ArgumentError, match="several launches of MatMul write C, and a JAX array is written only once"):
            call(*given)
    assert not gpu.launches
    through = in_launches(InLaunches("k", 2, BY_THREADS.steps), SUM, 3)
    gpu.parameters = 3
    assert isinstance(through(*given), jax.Array) and len(gpu.launches) == 3


# ---------------------------------------------------------------------------------------------- several outputs


@pytest.fixture
def crossing(shared_kernels, gpu):
    """Three outputs of 40 x 50, of three types and storages (tests/outputs.py)."""
    gpu.parameters = 5
    if "cross" not in shared_kernels:
        shared_kernels["cross"] = compiled(outputs.cross(40, 50), outputs.by_elements).program
    kernel = CompiledKernel(shared_kernels["cross"])
    kernel.__dict__["compiled"] = types.SimpleNamespace(cubin=b"\x7fELF")
    return kernel


def crossed(gpu, device=None):
    """Arrays for it: the inputs, and the outputs by name."""
    a, b, total = gpu.array((40, 50), device=device), *(gpu.array((40, 50), order="F", device=device) for _ in range(2))
    return (a, b), {
        "total": total,
        "apart": gpu.array((40, 50), "int32", device=device),
        "transposed": gpu.array((50, 40), "float64", device=device),
    }


def test_several_outputs_are_called_with_a_tuple_or_by_name(gpu, crossing):
    inputs, outs = crossed(gpu)
    swapped = dict(reversed(outs.items()))
    for out in (tuple(outs.values()), list(outs.values()), outs, swapped):
        got = crossing(*inputs, out=out)
        assert type(got) is tuple and all(one is other for one, other in zip(got, outs.values(), strict=True))
    assert [one[-1] for one in gpu.launches] == [addresses(*inputs, *outs.values())] * 4


def test_several_outputs_are_allocated_in_their_storage(gpu, torch, jax, crossing):
    total, apart, transposed = crossing(*crossed(gpu)[0])
    assert all(isinstance(one, gpu.cupy.ndarray) for one in (total, apart, transposed))
    assert [(one.shape, one.strides, one.dtype.name) for one in (total, apart, transposed)] == [
        ((40, 50), (4, 160), "float32"), ((40, 50), (200, 4), "int32"), ((50, 40), (320, 8), "float64"),
    ]  # fmt: skip
    assert gpu.launches[-1][-1][2:] == addresses(total, apart, transposed)
    got = crossing(tensor(torch, (40, 50)), tensor(torch, (40, 50), "F"), stream=640)
    assert [(one.shape, one.stride(), one.dtype.name) for one in got] == [
        ((40, 50), (1, 40), "float32"), ((40, 50), (50, 1), "int32"), ((50, 40), (40, 1), "float64"),
    ]  # fmt: skip
    assert gpu.launches[-1][-1][2:] == addresses(*got) and gpu.of("empty") == [(640,)] * 3
    got = compiled(outputs.rows(64, 5), outputs.by_rows)
    gpu.parameters = 3
    total, largest = got(jax.Array((64, 5)))
    assert isinstance(total, jax.Array) and (total.shape, largest.shape) == ((64,), (64,))
    assert gpu.launches[-1][-1][1:] == [one.unsafe_buffer_pointer() for one in (total, largest)] and len(gpu.of("import")) == 2


def test_several_outputs_and_sizes(gpu):
    gpu.parameters = 7
    kernel = compiled(outputs.cross(sym("M"), sym("N"), apart=RowMajor(ld=64)), outputs.by_elements)
    a, b = gpu.array((9, 33)), gpu.array((9, 33), order="F")
    total, apart, transposed = kernel(a, b)
    assert (total.shape, apart.strides, transposed.shape) == ((9, 33), (256, 4), (33, 9))
    assert gpu.launches[-1][-1] == [*addresses(a, b, total, apart, transposed), 9, 33]
    assert gpu.launches[-1][1] == (kernel.grid(M=9, N=33), 1, 1)


def test_the_second_call_for_several_outputs_checks_only_addresses(gpu, crossing, monkeypatch):
    (inputs, outs), (others, more) = crossed(gpu), crossed(gpu)
    crossing(*inputs, out=outs)
    monkeypatch.setattr(prepared, "check_view", None)
    monkeypatch.setattr(prepared, "solve_symbols", None)
    crossing(*others, out=more)
    assert [values for *_, values in gpu.launches] == [addresses(*inputs, *outs.values()), addresses(*others, *more.values())]


def wrong_outs(gpu):
    """Wrong values of `out` for several outputs, and the words of the error."""
    outs = crossed(gpu)[1]
    total, apart, transposed = outs.values()
    readonly = Interfaced(apart, readonly=True)
    return {
        "one array": (total, "out: Cross has 3 outputs", "a tuple (total, apart, transposed)"),
        "NumPy's": (np.zeros((40, 50), np.float32), "out: Cross has 3 outputs", "ndarray"),
        "too few": ((total, apart), "out: 2 arrays are given, but Cross has 3 outputs", "by name"),
        "too many": ((*outs.values(), total), "out: 4 arrays are given, but Cross has 3 outputs", ""),
        "none": ((), "out: 0 arrays", ""),
        "another name": ({**outs, "C": total}, "out: Cross has no output 'C'", "total"),
        "an input's name": ({"a": total}, "out: Cross has no output 'a'", ""),
        "a name is missing": ({"total": total, "transposed": transposed}, "out: apart missing", ""),
        "an order": ((apart, total, transposed), "total has elements of another type", "float32"),
        "shape": ({**outs, "transposed": gpu.array((40, 50), "float64")}, "transposed does not have the shape", "(50, 40)"),
        "layout": ({**outs, "total": gpu.array((40, 50))}, "total has other strides", "total=RowMajor"),
        "read-only": ({**outs, "apart": readonly}, "apart is read-only", "remove out="),
        "nothing": ((total, None, transposed), "apart is not an array", "NoneType"),
        "host": ((total, np.zeros((40, 50), np.int32), transposed), "apart is a NumPy array, a, b, total, transposed not", ""),
        "twice": ({**outs, "apart": total}, "apart has elements of another type", ""),
    }


@pytest.mark.sampled(1)
@pytest.mark.parametrize("case", wrong_outs(FakeGpu()))
def test_wrong_out_of_several_outputs_is_refused(gpu, crossing, case):
    out, message, more = wrong_outs(gpu)[case]
    inputs, outs = crossed(gpu)
    ready = crossing.prepare(*inputs, out=outs)
    for call in (crossing, crossing.prepare):
        with pytest.raises((ArgumentError, LaunchError)) as caught:
            call(*inputs, out=out)
        assert message in caught.value.asked and more in str(caught.value)
    with pytest.raises((ArgumentError, LaunchError)):
        ready(*inputs, out=out)
    assert not gpu.launches


def test_overlap_of_outputs_is_checked_at_every_call(gpu, crossing):
    """With inputs and with each other, at any position among the outputs; columns of one matrix do not overlap."""
    gpu.parameters = 3
    kernel = compiled(outputs.rows(64, 5), outputs.by_rows)
    whole, src = fake_gpu.memory(4 * 400), gpu.array((64, 5))
    line = lambda start: gpu.cupy.ndarray((64,), "float32", whole[4 * start :])
    kernel(src, out=(line(0), line(64)))
    kernel(src, out=(line(64), line(0)))
    ready = kernel.prepare(src, out=(line(0), line(64)))
    within = gpu.cupy.ndarray((64,), "float32", src.host.reshape(-1).view(np.uint8)[64:])
    for out, message in (
        ((line(0), line(60)), "largest overlaps total"),
        ((line(60), line(0)), "largest overlaps total"),
        ((line(0), line(0)), "largest overlaps total"),
        ((within, line(0)), "total overlaps src"),
        ((line(0), within), "largest overlaps src"),
    ):
        for call in (kernel, kernel.prepare, ready):
            with pytest.raises(LaunchError, match=message):
                call(src, out=out)
    with pytest.raises(LaunchError, match="largest starts at an address that is not a multiple"):
        kernel(src, out=(line(0), gpu.cupy.ndarray((64,), "float32", whole[4 * 64 + 2 :])))
    assert len(gpu.launches) == 2


def test_interleaved_outputs_do_not_overlap(gpu):
    gpu.parameters = 5
    wide = RowMajor(ld=16)
    kernel = compiled(outputs.cross(8, 8, total=wide, apart=wide), outputs.by_elements)
    whole = fake_gpu.memory(8 * 16 * 4)
    part = lambda start, dtype: gpu.cupy.ndarray((8, 8), dtype, whole[4 * start :], (64, 4))
    a, b, transposed = gpu.array((8, 8)), gpu.array((8, 8), order="F"), gpu.array((8, 8), "float64")
    kernel(a, b, out=(part(8, "float32"), part(0, "int32"), transposed))
    with pytest.raises(LaunchError, match="apart overlaps total"):
        kernel(a, b, out=(part(4, "float32"), part(0, "int32"), transposed))
    assert len(gpu.launches) == 1


def test_outputs_on_another_gpu(monkeypatch):
    gpu = installed(monkeypatch, FakeGpu(devices=2, parameters=5))
    kernel = compiled(outputs.cross(40, 50), outputs.by_elements)
    inputs, outs = crossed(gpu)
    with pytest.raises(LaunchError, match="a is on GPU 0, but transposed is on GPU 1"):
        kernel(*inputs, out={**outs, "transposed": crossed(gpu, 1)[1]["transposed"]})
    got = kernel(*crossed(gpu, 1)[0])
    assert [one.data.device_id for one in got] == [1, 1, 1] and gpu.launches[-1][0] == 1


def test_several_outputs_that_are_added_to_must_be_passed(gpu):
    gpu.parameters = 5
    kernel = compiled(outputs.cross(40, 50, kind=outputs.ADDED), outputs.by_elements)
    inputs, outs = crossed(gpu)
    for call in (kernel, kernel.prepare):
        with pytest.raises(ArgumentError, match="adds to total, apart, transposed") as caught:
            call(*inputs)
        assert "pass them: kernel(..., out=(total, apart, transposed))" in str(caught.value)
    kernel(*inputs, out=outs)
    assert len(gpu.launches) == 1


def test_a_prepared_launch_of_several_outputs(gpu, torch, jax, crossing):
    inputs, outs = crossed(gpu)
    ready = crossing.prepare(*inputs, out=outs)
    assert ready() == ready() == ready.out == tuple(outs.values())
    others, more = crossed(gpu)
    assert ready(*others, out=dict(reversed(more.items()))) == tuple(more.values())
    assert ready(out=tuple(more.values())) == tuple(more.values())
    fresh = ready(*others)
    assert not set(fresh) & {*outs.values(), *more.values()}
    assert [one[-1] for one in gpu.launches] == [
        *[addresses(*inputs, *outs.values())] * 2, addresses(*others, *more.values()), addresses(*inputs, *more.values()), addresses(*others, *fresh),
    ]  # fmt: skip
    with pytest.raises(ArgumentError, match="transposed differs from the array"):
        ready(*inputs, out={**outs, "transposed": gpu.array((50, 40), "float64", ld=48)})
    allocating = crossing.prepare(tensor(torch, (40, 50)), tensor(torch, (40, 50), "F"))
    assert allocating() is allocating() is allocating.out and len(allocating.out) == 3 and gpu.of("empty") == [(0,)] * 3
    allocating.out[1].bytes = fake_gpu.memory(40 * 50 * 4)
    allocating()
    assert gpu.launches[-1][-1][2:] == addresses(*allocating.out), "a tensor that moved is noticed"
    gpu.parameters = 3
    foreign = compiled(outputs.rows(64, 5), outputs.by_rows).prepare(jax.Array((64, 5)))
    first, second = foreign(), foreign()
    assert all(isinstance(one, jax.Array) for one in (*first, *second)) and not set(first) & set(second)


def test_preparing_with_too_few_arrays(gpu, kernel, crossing):
    a, b, c = operands(gpu)
    for arrays_, options in (((a,), {}), ((a,), {"out": c}), ((a, b, c), {})):
        with pytest.raises(ArgumentError, match=f"{len(arrays_)} arrays given, MatMul reads 2"):
            kernel.prepare(*arrays_, **options)
    inputs, outs = crossed(gpu)
    for call in (crossing, crossing.prepare):
        for out in (None, outs):
            with pytest.raises(ArgumentError, match="1 arrays given, Cross reads 2"):
                call(inputs[0], out=out)


class TestSeveralOutputsOfNumpy:
    """The same in the simulator."""

    @pytest.fixture
    def arrays(self, crossing):
        return list(outputs.drawn(crossing.program.spec).values())

    def test_a_tuple_in_the_order_of_the_spec(self, crossing, arrays):
        got, right = crossing(*arrays), crossing.program.spec.reference(*arrays)
        assert type(got) is tuple and [(one.dtype, one.strides) for one in got] == [
            (np.float32, (4, 160)), (np.int32, (200, 4)), (np.float64, (320, 8)),
        ]  # fmt: skip
        for result, expected in zip(got, right, strict=True):
            np.testing.assert_array_equal(result, expected)
        src = outputs.drawn(outputs.rows(64, 5))["src"]
        total, largest = compiled(outputs.rows(64, 5), outputs.by_rows)(src)
        np.testing.assert_array_equal(total, src.sum(axis=1))
        np.testing.assert_array_equal(largest, src.max(axis=1))

    def test_out(self, crossing, arrays):
        right = crossing(*arrays)
        for given in (tuple, lambda outs: dict(reversed(list(zip(crossing.program.spec.outputs, outs))))):
            outs = tuple(np.full_like(one, 7) for one in right)
            got = crossing(*arrays, out=given(outs))
            assert all(one is other for one, other in zip(got, outs, strict=True))
            for output, expected in zip(outs, right, strict=True):
                np.testing.assert_array_equal(output, expected)

    def test_added_to(self, gpu, arrays):
        kernel = compiled(outputs.cross(40, 50, kind=outputs.ADDED), outputs.by_elements)
        with pytest.raises(ArgumentError, match="adds to total, apart, transposed"):
            kernel(*arrays)
        more = kernel.program.spec.reference(*arrays)
        orders = ("F", "C", "C")
        outs = [np.asarray(np.full_like(one, 5), order=order) for one, order in zip(more, orders, strict=True)]
        for output, total in zip(kernel(*arrays, out=outs), more, strict=True):
            np.testing.assert_array_equal(output, total + 5)

    def test_refusals(self, gpu, crossing, arrays):
        total, apart, transposed = outs = crossing(*arrays)
        frozen = total.copy(order="F")
        frozen.flags.writeable = False
        for out, message in (
            (total, "out: Cross has 3 outputs"),
            (np.zeros((3, 40, 50)), "out: Cross has 3 outputs"),
            (outs[:2], "out: 2 arrays are given, but Cross has 3 outputs"),
            ({"total": total}, "out: apart, transposed missing"),
            ({"x": total}, "out: Cross has no output 'x'"),
            ("abc", "out: Cross has 3 outputs"),
            ((total, transposed, apart), "apart has elements of another type"),
            ((frozen, apart, transposed), "total is read-only"),
            ((total, [1], transposed), "apart is not an array"),
            ((total, crossed(gpu)[1]["apart"], transposed), "a is a NumPy array, apart not"),
        ):
            with pytest.raises((ArgumentError, LaunchError)) as caught:
                crossing(*arrays, out=out)
            assert message in caught.value.asked
        kernel = compiled(outputs.rows(64, 5), outputs.by_rows)
        whole, src = np.zeros(400, np.float32), np.zeros((64, 5), np.float32)
        kernel(src, out=(whole[:64], whole[64:128]))
        for out, message in (
            ((whole[:64], whole[60:124]), "largest overlaps total"),
            ((whole[:64], whole[:64]), "largest overlaps total"),
            ((src.reshape(-1)[64:128], whole[:64]), "total overlaps src"),
            ((whole[:64], src.reshape(-1)[64:128]), "largest overlaps src"),
        ):
            with pytest.raises(LaunchError, match=message):
                kernel(src, out=out)


# ---------------------------------------------------------------------------------------------- several GPUs


def test_a_kernel_runs_where_its_arrays_are(monkeypatch):
    gpu = installed(monkeypatch, FakeGpu(devices=2))
    kernel = compiled(library("naive").spec(20, 12, 8, **ROWS))
    for device in (1, 0, 1):
        a, b, c = operands(gpu, device)
        kernel(a, b, out=c)
        assert gpu.launches[-1][0] == device and gpu.launches[-1][-1] == addresses(a, b, c)
        assert gpu.current == 0, "the current GPU stays"
    assert [device for device, _ in gpu.loaded] == [1, 0], "loaded once on each"
    assert kernel(*operands(gpu, 1)[:2]).data.device_id == 1
    kernel.prepare(*operands(gpu, 1)[:2])()
    assert gpu.launches[-1][0] == 1


def test_arrays_on_two_gpus(monkeypatch):
    gpu = installed(monkeypatch, FakeGpu(devices=2))
    kernel = compiled(library("naive").spec(20, 12, 8, **ROWS))
    a, b, c = operands(gpu)
    with pytest.raises(LaunchError, match="A is on GPU 0, but B is on GPU 1"):
        kernel(a, operands(gpu, 1)[1], out=c)
    with pytest.raises(LaunchError, match="A is on GPU 0, but out is on GPU 1"):
        kernel(a, b, out=operands(gpu, 1)[2])
    with pytest.raises(LaunchError, match="A is on GPU 0, but B is on GPU 1"):
        kernel(Interfaced(a), Interfaced(operands(gpu, 1)[1]), out=c)
    kernel(a, b, out=c)
    with pytest.raises(LaunchError, match="the stream is of GPU 1, the arrays are on GPU 0"):
        kernel(a, b, out=c, stream=gpu.cupy.cuda.Stream(8192, 1))
    with pytest.raises(LaunchError, match="the stream is of GPU 1"):
        kernel(a, b, out=c, stream=types.SimpleNamespace(cuda_stream=8192, device_index=1))
    assert len(gpu.launches) == 1


def test_another_architecture_is_refused_on_its_gpu(gpu):
    gpu.capability = "80"
    a, b, c = operands(gpu)
    with pytest.raises(LaunchError, match="compiled for sm_90, the GPU is sm_80"):
        compiled(library("naive").spec(20, 12, 8, **ROWS))(a, b, out=c)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("target", "device", "runs"),
    [
        ("sm_90a", "90", True), ("sm_90", "90", True), ("sm_80", "86", True), ("sm_86", "80", False), ("sm_90", "100", False),
        ("sm_90a", "100", False), ("sm_90a", "91", False), ("sm_90", "91", True),
    ],
)  # fmt: skip
def test_which_targets_a_gpu_runs(gpu, target, device, runs):
    """Code whose target ends in `a` is for that capability alone."""
    gpu.capability = device
    a, b, c = operands(gpu)
    kernel = CompiledKernel(library("naive").strategy(library("naive").spec(20, 12, 8, **ROWS)).program(target))
    kernel.__dict__["compiled"] = types.SimpleNamespace(cubin=b"\x7fELF")
    with contextlib.nullcontext() if runs else pytest.raises(LaunchError, match=f"compiled for {target}, the GPU is sm_{device}"):
        kernel(a, b, out=c)
    assert len(gpu.launches) == runs


# ---------------------------------------------------------------------------------------------- threads


def test_threads_do_not_mix_their_arguments(gpu, kernel, monkeypatch):
    """The driver is slow here: other threads run after the arguments are filled and before they are read."""
    sets = [operands(gpu) for _ in range(8)]
    launch_kernel, barrier = gpu._launch, threading.Barrier(8)

    def slow(*args):
        with contextlib.suppress(threading.BrokenBarrierError):
            barrier.wait(1)
        launch_kernel(*args)

    gpu.cupy.cuda.driver.launchKernel = slow
    load = gpu.cupy.cuda.Module.load
    monkeypatch.setattr(gpu.cupy.cuda.Module, "load", lambda module, cubin: (time.sleep(0.05), load(module, cubin)))
    failed = []

    def work(arrays_):
        try:
            kernel(*arrays_[:2], out=arrays_[2])
            barrier.wait(5)
            for _ in range(20):
                kernel(*arrays_[:2], out=arrays_[2])
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(one,)) for one in sets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert len(gpu.loaded) == 1, "loaded once"
    seen = sorted(tuple(values) for *_, values in gpu.launches)
    assert seen == sorted(tuple(addresses(*one)) for one in sets for _ in range(21))


def test_a_new_thread_gets_a_context(gpu, kernel):
    a, b, c = operands(gpu)
    kernel(a, b, out=c)
    chosen = []
    set_device = gpu.cupy.cuda.runtime.setDevice
    gpu.cupy.cuda.runtime.setDevice = lambda device: (chosen.append((threading.get_ident(), device)), set_device(device))
    thread = threading.Thread(target=lambda: [kernel(a, b, out=c) for _ in range(3)])
    thread.start()
    ident = thread.ident
    thread.join()
    kernel(a, b, out=c)
    assert chosen == [(ident, 0)], "once a thread"


# ---------------------------------------------------------------------------------------------- the kernel object


def test_a_kernel_describes_itself(kernel):
    assert repr(kernel).startswith("<kernel matmul of MatMul(20,12,8)") and repr(kernel).endswith("for sm_90>")
    assert kernel.block == kernel.ir.threads and kernel.grid() == int(str(kernel.ir.grid))
    symbolic = library("naive").strategy(library("naive").spec(sym("M"), sym("N"), 8)).compile("sm_90")
    assert symbolic.grid(M=1, N=1) == 1 and symbolic.grid(M=1000, N=1000) > 1
    with pytest.raises(ArgumentError, match="the grid depends on N"):
        symbolic.grid(M=1)
    with pytest.raises(ArgumentError, match="M=0"):
        symbolic.grid(M=0, N=1)


def test_a_kernel_is_pickled_without_its_loaded_module(gpu, kernel):
    a, b, c = operands(gpu)
    kernel(a, b, out=c)
    for other in (copy.copy(kernel), copy.deepcopy(kernel)):
        assert other.program.spec == kernel.program.spec and "_calls" not in vars(other)
    assert kernel.__reduce__() == (CompiledKernel, (kernel.program, kernel.options))
    assert pickle.loads(pickle.dumps(kernel.program.spec)) == kernel.program.spec


# ---------------------------------------------------------------------------------------------- the architecture


@pytest.mark.parametrize(
    ("device", "target"),
    [
        (None, None),
        ("sm_90", "sm_90a"),
        ("sm_80", "sm_80"),
        ("sm_87", "sm_86"),
        ("sm_103", "sm_100"),
        ("sm_121", "sm_120"),
        ("sm_72", "sm_70"),
    ],
)
def test_compile_is_for_the_present_gpu(monkeypatch, device, target):
    monkeypatch.setattr(launch, "visible_arch", lambda: device)
    assert architecture_here() == target
    kernel = library("naive").strategy(library("naive").spec(8, 8, 8)).compile()
    assert kernel.program.architecture.name == (target or "sm_90")
    assert library("naive").strategy(library("naive").spec(8, 8, 8)).compile("sm_75").program.architecture.name == "sm_75"


def test_a_gpu_of_an_unknown_generation(monkeypatch):
    monkeypatch.setattr(launch, "visible_arch", lambda: "sm_130")
    with pytest.raises(LaunchError, match="the GPU is sm_130"):
        architecture_here()


class FakeDriver:
    """The driver's functions that report a GPU's architecture."""

    def __init__(self, devices=("90",), current=None, status=0):
        self.devices, self.current, self.status = devices, current, status

    @staticmethod
    def put(reference, value, kind=ctypes.c_int):
        ctypes.cast(reference, ctypes.POINTER(kind)).contents.value = value
        return 0

    def cuInit(self, flags):
        return self.status

    def cuCtxGetCurrent(self, context):
        return self.put(context, None if self.current is None else 4096, ctypes.c_void_p)

    def cuCtxGetDevice(self, device):
        return self.put(device, self.current)

    def cuDeviceGet(self, device, number):
        return self.put(device, number) if number < len(self.devices) else 101

    def cuDeviceGetAttribute(self, value, attribute, device):
        text = self.devices[device.value]
        return self.put(value, int(text[:-1] if attribute == 75 else text[-1]))


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("driver", "arch"),
    [
        (None, None),
        (FakeDriver(status=100), None),
        (FakeDriver(), "sm_90"),
        (FakeDriver(()), None),
        (FakeDriver(("80", "120")), "sm_80"),
        (FakeDriver(("80", "120"), current=1), "sm_120"),
    ],
)
def test_the_architecture_is_read_without_importing_cupy(monkeypatch, driver, arch):
    monkeypatch.setattr(launch, "_driver", lambda: driver)
    monkeypatch.setitem(sys.modules, "cupy", None)
    assert launch.visible_arch() == arch


# ---------------------------------------------------------------------------------------------- what is missing


def missing(monkeypatch, cupy=None, builds=(), driver=None, hidden=0):
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setattr(launch, "_installed", lambda package: package in builds)
    monkeypatch.setattr(launch, "_driver", lambda: driver)
    monkeypatch.setattr(launch, "_gpus_of_the_driver", lambda: hidden)
    with pytest.raises(LaunchError) as caught:
        launch.require_cupy()
    return str(caught.value)


def cupy_that_counts(answer):
    def count():
        if isinstance(answer, int):
            return answer
        raise DriverMissing(answer)

    return types.SimpleNamespace(cuda=types.SimpleNamespace(runtime=types.SimpleNamespace(getDeviceCount=count)))


class DriverMissing(RuntimeError):
    """CuPy's CUDARuntimeError in these tests."""


def test_cupy_is_not_installed(monkeypatch):
    monkeypatch.setattr(launch.importlib, "import_module", lambda name: (_ for _ in ()).throw(ModuleNotFoundError("no", name="cupy")))
    text = missing(monkeypatch)
    assert "CuPy, which is not installed" in text and "pip install 'fireiron[cuda13]'" in text


def test_cupy_cannot_be_imported(monkeypatch):
    monkeypatch.setattr(launch.importlib, "import_module", lambda name: (_ for _ in ()).throw(ImportError("libnvrtc.so.13: no such file")))
    text = missing(monkeypatch, builds=("cupy-cuda13x",))
    assert "CuPy (cupy-cuda13x) cannot be imported" in text and "libnvrtc.so.13" in text
    text = missing(monkeypatch, builds=("cupy-cuda12x", "cupy-cuda13x"))
    assert "cupy-cuda12x and cupy-cuda13x are installed together" in text
    assert "pip uninstall cupy-cuda12x cupy-cuda13x" in text


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("answer", "driver", "hidden", "message"),
    [
        ("cudaErrorInsufficientDriver: CUDA driver version is insufficient", None, 0, "the NVIDIA driver is not (no libcuda.so.1)"),
        ("cudaErrorInsufficientDriver: CUDA driver version is insufficient", "there", 1, "the NVIDIA driver is older than CuPy needs"),
        ("cudaErrorNoDevice: no CUDA-capable device is detected", "there", 0, "there is no GPU"),
        ("cudaErrorNoDevice: no CUDA-capable device is detected", "there", 2, "the driver has 2 GPUs, this process sees none"),
        (0, "there", 1, "CUDA_VISIBLE_DEVICES hides them"),
    ],
)
def test_the_driver_or_the_gpu_is_missing(monkeypatch, answer, driver, hidden, message):
    assert message in missing(monkeypatch, cupy_that_counts(answer), driver=driver, hidden=hidden)


def test_builds_of_cupy_are_looked_up_as_installed(monkeypatch, tmp_path):
    for name in ("cupy_cuda12x", "cupy_cuda13x"):
        folder = tmp_path / f"{name}-14.2.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: 14.2.0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert launch.cupy_builds()[-2:] == ("cupy-cuda12x", "cupy-cuda13x")


def test_gpus_of_the_driver_are_counted(tmp_path):
    assert launch._gpus_of_the_driver(str(tmp_path / "none")) == 0
    (tmp_path / "0000:01:00.0").mkdir()
    assert launch._gpus_of_the_driver(str(tmp_path)) == 1
