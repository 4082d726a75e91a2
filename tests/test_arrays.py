"""Arrays of each library, read without a GPU through stand-ins: addresses, signatures, stream order, and the allocation of outputs."""

import types

import fake_gpu
import ml_dtypes
import numpy as np
import pytest
from fake_gpu import Capsule, DriverError, FakeGpu, Interfaced, installed

from fireiron import *
from fireiron.gpu import arrays, launch
from fireiron.gpu.arrays import NO_DEVICE, ArrayView, Between, Order, Scalars, library_of, row_major

torch, jax = fake_gpu.torch, fake_gpu.jax


@pytest.fixture
def gpu(monkeypatch):
    return installed(monkeypatch, FakeGpu(devices=3))


def read(array, name="A"):
    """Address, view and stream order of an array."""
    address, signature, order = library_of(type(array)).read(name, array)
    return address, signature[0].view(signature), order


# ---------------------------------------------------------------------------------------------- layouts


@pytest.mark.parametrize(
    ("shape", "order", "strides"),
    [((), None, ()), ((5,), None, (4,)), ((2, 3, 5), None, (60, 20, 4)), ((2, 3, 5), (2, 1, 0), (4, 8, 24)), ((2, 3, 5), (1, 0, 2), (20, 40, 4)),
     ((2, 3, 5), (0, 2, 1), (60, 4, 12)), ((1, 3), (0, 1), (12, 4)), ((2, 0, 3), None, (0, 12, 4))],
)  # fmt: skip
def test_strides_without_holes(shape, order, strides):
    assert row_major(shape, 4, order) == strides


@pytest.mark.parametrize(
    ("shape", "strides", "end"), [((2, 3), (12, 4), 24), ((2, 3), (100, 4), 112), ((1, 3), (100, 4), 12), ((2, 3), (0, 4), 12), ((), (), 4), ((2, 0), (4, 4), 8)]
)  # fmt: skip
def test_the_byte_after_the_last_one(shape, strides, end):
    assert ArrayView(shape, strides, "float32", 4, 0, False).end == end


# ---------------------------------------------------------------------------------------------- each library


def test_cupy(gpu):
    array = gpu.array((4, 6), "float16", ld=8, device=2)
    assert read(array) == (array.data.ptr, ArrayView((4, 6), (16, 2), "float16", 2, 2, False), None)
    library = library_of(gpu.cupy.ndarray)
    assert library.name == "CuPy" and library.owns_stream and library is library_of(type("Own", (gpu.cupy.ndarray,), {}))
    gpu.current = 1
    with gpu.cupy.cuda.Stream() as stream:
        assert library.stream(1) == stream.ptr and library.stream(0) == 0


def test_torch(gpu, torch):
    tensor = torch.Tensor((4, 6), (8, 1), torch.bfloat16, 1)
    assert read(tensor) == (tensor.data_ptr(), ArrayView((4, 6), (16, 2), "bfloat16", 2, 1, False), None)
    library = library_of(torch.Tensor)
    torch.state.stream = 640
    assert library.owns_stream and library.name == "PyTorch" and library.stream(1) == 640


@pytest.mark.parametrize(
    ("changes", "message", "hint"),
    [
        ({"index": -1}, "A is a PyTorch tensor that is not in GPU memory", "pass .cuda(), or .numpy() (of all arrays) for the simulator"),
        ({"requires_grad": True}, "A requires a gradient, but autograd cannot differentiate a kernel", None),
        ({"layout": "sparse"}, "A is a tensor without strides", "pass .to_dense()"),
        ({"negative": True}, "A is a lazily negated tensor", "pass .resolve_neg()"),
    ],
)
def test_tensors_that_are_refused(gpu, torch, changes, message, hint):
    tensor = torch.Tensor((4, 6), (6, 1), torch.float32)
    read(tensor)
    vars(tensor).update(changes)
    with pytest.raises(LaunchError) as caught:
        read(tensor)
    assert caught.value.asked == message and (hint is None or caught.value.hint == hint)
    torch.state.grad = False
    if "requires_grad" in changes:
        read(tensor)
    else:
        with pytest.raises(LaunchError):
            read(tensor)


def test_tensors_without_memory(gpu, torch):
    tensor = torch.Tensor((4, 6), (6, 1), torch.float32)
    tensor.data_ptr = lambda: (_ for _ in ()).throw(RuntimeError("fake"))
    with pytest.raises(LaunchError, match="A has no memory") as caught:
        read(tensor)
    assert caught.value.got == "fake"


def test_jax(gpu, jax):
    array = jax.Array((4, 6), device=2)
    address, view, order = read(array)
    assert (address, view) == (array.unsafe_buffer_pointer(), ArrayView((4, 6), (24, 4), "float32", 4, 2, True))
    assert array.waited == 1 and order.keep is array and order.stream is None and order.kept_alive is library_of(jax.Array).kept_alive
    array.format = types.SimpleNamespace(layout=types.SimpleNamespace(major_to_minor=(1, 0)))
    assert read(array)[1].strides == (4, 16)
    array.format = types.SimpleNamespace(layout=None)
    assert read(array)[1].strides == (24, 4)
    assert not library_of(jax.Array).owns_stream


@pytest.mark.parametrize("method", ["__dlpack_device__", "block_until_ready", "unsafe_buffer_pointer"])
@pytest.mark.parametrize("error", [ValueError, BufferError, RuntimeError])
def test_sharded_jax_arrays(gpu, jax, method, error):
    broken = type("Broken", (jax.Array,), {method: lambda self: (_ for _ in ()).throw(error("sharded"))})
    with pytest.raises(LaunchError, match="A is not a JAX array on a single GPU") as caught:
        read(broken((4, 6)))
    assert caught.value.got == "sharded"


@pytest.mark.parametrize("kind, on_gpu", [(1, False), (2, True), (3, False), (13, True), (14, False)])
def test_devices_of_arrays(gpu, jax, kind, on_gpu):
    """kDLCUDA and kDLCUDAManaged; no pointer is requested for other devices."""
    array = jax.Array((4, 6), kind=kind)
    if not on_gpu:
        array.unsafe_buffer_pointer = None
    for container in (array, Capsule(gpu.array((4, 6)), kind)):
        if on_gpu:
            assert read(container)[0]
        else:
            with pytest.raises(LaunchError, match="not in GPU memory"):
                read(container)


@pytest.mark.parametrize("strides", [None, (32, 4), (4, 16)])
@pytest.mark.parametrize("stream", [None, 1, 640])
def test_interfaces(gpu, strides, stream):
    """Row-major without strides; ordered with their stream if they name one."""
    array = gpu.array((4, 6), ld=8, device=1)
    address, view, order = read(Interfaced(array, stream, True, strides=strides, shape=[4, 6]))
    assert (address, view) == (array.data.ptr, ArrayView((4, 6), strides or (24, 4), "float32", 4, 1, True))
    assert order is None if stream is None else (order.stream, order.keep, order.kept_alive) == (stream, None, None)
    assert read(Interfaced(array))[1].readonly is False and not library_of(Interfaced).owns_stream


def test_interfaces_that_are_refused_or_empty(gpu):
    array = gpu.array((4, 6))
    with pytest.raises(LaunchError, match="A is a masked array") as caught:
        read(Interfaced(array, mask=array))
    assert caught.value.hint == "fill it first"
    read(Interfaced(array, mask=None))
    gpu.cupy.cuda.runtime.pointerGetAttributes = lambda address: types.SimpleNamespace(device=2, devicePointer=0)
    with pytest.raises(LaunchError, match="A is not in GPU memory") as caught:
        read(Interfaced(array))
    assert "cupy.asarray" in caught.value.hint
    gpu.cupy.cuda.runtime.pointerGetAttributes = lambda address: (_ for _ in ()).throw(DriverError("invalid"))
    with pytest.raises(LaunchError, match="A is not in GPU memory") as caught:
        read(Interfaced(array))
    assert caught.value.got == "invalid"
    address, view, _ = read(Interfaced(array, data=(0, False), shape=(0, 6), strides=None))
    assert (address, view.device) == (0, 0), "of an array without memory nobody is asked"


@pytest.mark.parametrize(
    ("typestr", "own", "expected"),
    [("<f4", None, "float32"), ("<V2", ml_dtypes.bfloat16, "bfloat16"), ("<V2", np.float32, "|V2"), ("<V2", None, "|V2"),
     ("<f4", np.int32, "float32"), ("|V1", ml_dtypes.float8_e5m2, "float8_e5m2")],
)  # fmt: skip
def test_element_types_without_an_interface_name_come_from_the_array(typestr, own, expected):
    array = types.SimpleNamespace() if own is None else types.SimpleNamespace(dtype=np.dtype(own))
    assert str(arrays._element_type(array, typestr)) == expected


def test_dlpack(gpu):
    array = gpu.array((4, 6), ld=8, device=1)
    gpu.current = 1
    capsule = Capsule(array)
    with gpu.cupy.cuda.Stream() as stream:
        address, view, order = read(capsule)
    assert (address, view) == (array.data.ptr, ArrayView((4, 6), (32, 4), "float32", 4, 1, False))
    assert order.stream == stream.ptr and order.keep == (capsule, array) and order.kept_alive is library_of(Capsule).kept_alive
    for error in (TypeError, ValueError, BufferError, RuntimeError):
        gpu.cupy.from_dlpack = lambda one, error=error: (_ for _ in ()).throw(error("no"))
        with pytest.raises(LaunchError, match="A cannot be imported through DLPack") as caught:
            read(capsule)
        assert caught.value.got == "no"


def test_numbers_have_a_signature_of_their_type():
    for dtype in (float16, bfloat16, int32):
        library, *rest = signature = Scalars.signature(dtype)
        assert library is Scalars.signature(float32)[0]
        assert library.view(signature) == ArrayView((), (), dtype.numpy, dtype.bytes, NO_DEVICE, True) and rest[-2:] == [NO_DEVICE, True]


def test_which_library_an_array_is_of(gpu, torch, jax):
    class Both(Interfaced, Capsule):
        pass

    class Half:
        def __dlpack__(self):
            raise AssertionError

    names = {np.ndarray: None, np.float32: None, float: None, list: None, Half: None, Interfaced: "__cuda_array_interface__", Capsule: "DLPack",
             Both: "__cuda_array_interface__", gpu.cupy.ndarray: "CuPy", torch.Tensor: "PyTorch", jax.Array: "JAX", Between: "CuPy"}  # fmt: skip
    assert {kind: getattr(arrays._library_of(kind), "name", None) for kind in names} == names
    assert type(arrays._library_of(Between)) is arrays._Copies
    own = type("Own", (), {"__module__": "jaxlib.xla", "unsafe_buffer_pointer": None})
    foreign = type("Own", (), {"__module__": "other.jax", "unsafe_buffer_pointer": None})
    bare = type("Own", (), {"__module__": "jax.core"})
    assert arrays._library_of(own).name == "JAX" and arrays._library_of(foreign) is arrays._library_of(bare) is None


def test_refusals_of_non_arrays_name_accepted_types():
    error = arrays.refused("A", [1])
    assert error.asked == "A is not an array" and error.got == "list" and "__dlpack__" in error.legal


# ---------------------------------------------------------------------------------------------- order with producers


def test_order_with_a_stream_and_for_as_long_as_a_kernel_runs(gpu):
    alive = launch.KeptAlive()
    Order(640, "thing", alive).before(4096)
    assert [step[0] for step in gpu.done] == ["record", "wait"] and gpu.of("record")[0][1] == 640 and gpu.of("wait")[0][0] == 4096
    assert not len(alive)
    gpu.done.clear()
    Order(640, "thing", alive).after(4096)
    assert [step[0] for step in gpu.done] == ["record", "wait", "record"] and gpu.of("record")[0][1] == 4096 and gpu.of("wait")[0][0] == 640
    assert gpu.of("record")[1][1] == 4096 and [thing for _, thing in alive._queue] == ["thing"]
    gpu.done.clear()
    none = Order(None, None, None)
    none.before(4096)
    none.after(4096)
    assert not gpu.done


# ---------------------------------------------------------------------------------------------- outputs


def asked_of(gpu):
    """The sizes of memory requested from CuPy."""
    requests, plain = [], gpu.cupy.cuda.alloc
    gpu.cupy.cuda.alloc = lambda size: (requests.append(size), plain(size))[1]
    return requests


@pytest.mark.parametrize(
    ("shape", "strides", "dtype", "size"),
    [
        ((4, 6), (24, 4), float32, 96),
        ((4, 6), (32, 4), float32, 120),
        ((4, 6), (2, 8), float16, 48),
        ((1, 1), (4, 4), float32, 4),
        ((), (), float64, 8),
    ],
)
def test_outputs_take_just_their_memory(gpu, shape, strides, dtype, size):
    requests = asked_of(gpu)
    output = library_of(gpu.cupy.ndarray).maker(shape, strides, dtype, 0)()
    assert requests == [size] and output.shape == shape and output.strides == strides and output.dtype == dtype.to_numpy()
    assert library_of(gpu.cupy.ndarray).finished(output) is output


def test_outputs_of_torch(gpu, torch):
    make = library_of(torch.Tensor).maker((4, 6), (32, 4), float32, 2)
    first, second = make(), make()
    assert first is not second and first.shape == (4, 6) and first.stride() == (8, 1) and first.dtype is torch.float32 and first.index == 2
    half = library_of(torch.Tensor).maker((4, 6), (2, 8), float16, 0)()
    assert half.stride() == (1, 4) and half.dtype is torch.float16


def test_streams_of_torch_are_current_for_a_while(gpu, torch):
    requests = []
    torch.cuda.ExternalStream = lambda address, device: (requests.append((address, device)), types.SimpleNamespace(cuda_stream=address))[1]
    with library_of(torch.Tensor).using(4096, 2):
        assert torch.state.stream == 4096
    assert torch.state.stream == 0 and requests == [(4096, 2)]
    with pytest.raises(LaunchError, match="stream is of GPU 1"), library_of(torch.Tensor).using(gpu.cupy.cuda.Stream(4096, 1), 2):
        pass


@pytest.mark.parametrize("old", [False, True])
def test_streams_of_cupy_are_current_for_a_while(gpu, monkeypatch, old):
    """CuPy's own streams unchanged, others by their address; before CuPy 14 by `ExternalStream`."""
    library, seen = library_of(Interfaced), []
    if old:
        monkeypatch.delattr(gpu.cupy.cuda.Stream, "from_external")
        gpu.cupy.cuda.ExternalStream = lambda address: (seen.append(address), gpu.cupy.cuda.Stream(address, -1))[1]
    own = gpu.cupy.cuda.Stream(8192, 0)
    for stream, address in ((own, 8192), (4096, 4096), (types.SimpleNamespace(__cuda_stream__=lambda: (0, 640)), 640)):
        with library.using(stream, 0):
            assert gpu.cupy.cuda.get_current_stream(0).ptr == address == library.stream(0)
            assert (gpu.cupy.cuda.get_current_stream(0) is own) == (stream is own)
        assert library.stream(0) == 0
    assert seen == ([4096, 640] if old else [])
    with pytest.raises(LaunchError, match="stream is of GPU 0"), library.using(own, 1):
        pass


# ---------------------------------------------------------------------------------------------- outputs of JAX


@pytest.fixture
def imported(jax):
    """The arrays given to JAX, and those requested as another type."""
    given = []
    jax.dlpack.from_dlpack = lambda array: (given.append((array.dtype, array.strides)), jax.Array(None, host=array))[1]
    jax.lax = types.SimpleNamespace(bitcast_convert_type=lambda array, dtype: jax.Array(None, host=array.host.view(dtype)))
    return given


@pytest.mark.parametrize("dtype", [np.float32, np.int8, np.float16])
def test_jax_takes_rows_unchanged_and_columns_transposed(jax, imported, dtype):
    rows, columns = np.zeros((4, 6), dtype), np.zeros((4, 6), dtype, order="F")
    for array in (rows, columns):
        array[1, 2] = 3
        result = library_of(jax.Array).finished(array)
        assert result.shape == (4, 6) and result.dtype == dtype and result.host[1, 2] == 3
    size = np.dtype(dtype).itemsize
    assert imported == [(dtype, (6 * size, size)), (dtype, (4 * size, size))]


@pytest.mark.parametrize(
    "dtype, bits", [(ml_dtypes.bfloat16, "uint16"), (ml_dtypes.float8_e4m3fn, "uint8"), (ml_dtypes.float8_e5m2, "uint8")]
)
def test_jax_types_unknown_to_dlpack_are_passed_as_bits(jax, imported, dtype, bits):
    array = np.arange(24).reshape(4, 6).astype(dtype)
    result = library_of(jax.Array).finished(array)
    assert imported == [(np.dtype(bits), array.strides)] and result.dtype == dtype and (result.host == array).all()


def test_jax_has_no_arrays_with_gaps(jax, imported):
    for array in (np.zeros((4, 8), np.float32)[:, :6], np.zeros((8, 6), np.float32, order="F")[:4]):
        with pytest.raises(LaunchError, match="JAX arrays cannot have padded rows") as caught:
            library_of(jax.Array).finished(array)
        assert caught.value.got == array.strides
    assert not imported


def test_intermediate_tensors_are_read_as_arrays_of_their_library(gpu, jax):
    library, intermediate = library_of(jax.Array), gpu.array((4, 6), ld=8, device=1)
    between = library.between(intermediate)
    address, signature, order = library_of(Between).read("A", between)
    assert address == intermediate.data.ptr and signature == (library, (4, 6), (32, 4), intermediate.dtype, 1, True)
    assert (order.stream, order.keep, order.kept_alive) == (None, intermediate, library.kept_alive)
    assert library_of(gpu.cupy.ndarray).between(intermediate) is intermediate
