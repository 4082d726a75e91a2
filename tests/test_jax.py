"""Calls traced by JAX, without a GPU: XLA compiles and calls the handler on the host, and a simulated driver launches."""

import ctypes
import shutil
import subprocess
import types
from pathlib import Path

import numpy as np
import pytest

from fireiron import *
from fireiron.front import arrays, place
from fireiron.gpu import jax_calls
from fireiron.gpu.kernel import CompiledKernel
from fireiron.ir import Buffer
from fireiron.language.library import find
from fireiron.values.expr import Var

jax = pytest.importorskip("jax", reason="needs JAX")
COMPILER = next((found for name in jax_calls.COMPILERS if (found := shutil.which(name))), None)
pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler")
ROWS = {"A": RowMajor, "B": RowMajor, "C": RowMajor}
IMAGE = b"\177ELF" + bytes(range(251))


class Config(ctypes.Structure):
    """The beginning of a launch's configuration."""

    _fields_ = (("shape", ctypes.c_uint * 6), ("shared", ctypes.c_uint), ("stream", ctypes.c_void_p))


LAUNCH = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(Config), ctypes.c_char_p, ctypes.POINTER(ctypes.c_void_p))


class Driver:
    """The simulated driver: `launches` has names, shapes and bytes of shared memory. A launch computes the outputs of the kernel's spec if all
    parameters are arrays of float32, numbers and sizes.
    """

    def __init__(self, folder):
        path = folder / "driver.so"
        subprocess.run(["cc", "-shared", "-fPIC", str(Path(__file__).with_name("jax_driver.c")), "-o", str(path)], check=True)
        self.library, self.launches, self.known, self.words = ctypes.CDLL(str(path)), [], {}, []
        self.sizes = {}
        self._called = LAUNCH(self._launch)  # kept alive: the library has its address
        ctypes.c_void_p.in_dll(self.library, "on_launch").value = ctypes.cast(self._called, ctypes.c_void_p).value
        jax_calls.register_for("cpu", "fireiron_launch_on_host").fireiron_driver(str(path).encode())

    def _launch(self, config, name, table):
        spec, parameters = self.known[name.decode()]
        self.launches.append((name.decode(), tuple(config.contents.shape), config.contents.shared))
        words = lambda place, count: np.ctypeslib.as_array(ctypes.cast(table[place], ctypes.POINTER(ctypes.c_int64)), (count,)).copy()
        self.words = [words(place, 7 if type(one).__name__ == "TensorMap" else 1) for place, one in enumerate(parameters)]
        buffers = [one for one in parameters if isinstance(one, Buffer)]
        known = all(one.dtype == float32 and one.name in spec.operands for one in buffers)
        if known and all(isinstance(one, Buffer | Var) for one in parameters):
            self.sizes = {one.name: int(self.words[place][0]) for place, one in enumerate(parameters) if isinstance(one, Var)}
            self._perform(spec, {one.name: self.words[place][0] for place, one in enumerate(parameters) if one.name in spec.operands})
        return 0

    def _perform(self, spec, given):
        """Write the outputs of the spec; `given` are addresses, and the bits of numbers passed by value."""
        values = {
            name: np.array([word], np.int64).view(np.float32)[0] if spec.operands[name].memory.by_value else self._array(word, spec, name)
            for name, word in given.items()
        }
        results = spec.reference(*(values[name] for name in spec.inputs))
        for name, result in zip(spec.outputs, results if isinstance(results, tuple) else (results,), strict=True):
            values[name][...] = result

    def _array(self, address, spec, name):
        shape = tuple(self.sizes.get(str(size)) or int(str(size)) for size in spec.operands[name].shape)
        order = "C" if spec.operands[name].tensor.layout == RowMajor or len(shape) == 3 else "F"
        flat = np.ctypeslib.as_array(ctypes.cast(int(address), ctypes.POINTER(ctypes.c_float)), (int(np.prod(shape)),))
        return flat.reshape(shape, order=order)


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    folder = tmp_path_factory.mktemp("jax")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FIREIRON_CACHE_DIR", str(folder))
        yield Driver(folder)


@pytest.fixture
def gpu(driver, monkeypatch):
    """JAX computes on a GPU whose machine code is ignored."""
    attributes = jax_calls._attributes
    driver.launches.clear()

    def named(kernel, kept, given, symbols):
        name = f"kernel{len(driver.known)}"
        driver.known[name] = kernel.program.spec, kernel.ir.parameters
        return {**attributes(kernel, kept, given, symbols), "name": name, "key": np.int64(len(driver.known))}

    monkeypatch.setattr(jax_calls, "_attributes", named)
    monkeypatch.setattr(jax_calls, "register", lambda: None)
    monkeypatch.setattr(CompiledKernel, "compiled", types.SimpleNamespace(cubin=IMAGE))
    monkeypatch.setattr(arrays, "_current_device", lambda: 0)
    for name, value in (("target_of", "sm_80"), ("gpu_name", "NVIDIA H200"), ("refused_by_compiler", None)):
        monkeypatch.setattr(place, name, lambda *_, value=value: value)
    with jax.default_device(jax.devices("cpu")[0]):  # with a GPU, JAX would compute there
        yield driver


def floats(*shape):
    return jax.numpy.asarray(np.random.default_rng(shape).standard_normal(shape).astype(np.float32))


def close(got, expected):
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "shapes", [((4, 5), (5, 6)), ((3, 4, 5), (5, 6)), ((4, 5), (3, 5, 6)), ((2, 1, 4, 5), (3, 5, 6)), ((5,), (5,)), ((5,), (5, 6))], ids=str
)
def test_matmul_and_its_gradients(gpu, shapes):
    a, b = (floats(*shape) for shape in shapes)
    weight = floats(*jax.numpy.matmul(a, b).shape)
    close(jax.jit(matmul)(a, b), jax.numpy.matmul(a, b))
    ours, reference = (
        jax.grad(lambda a, b, product=product: (product(a, b) * weight).sum(), (0, 1)) for product in (matmul, jax.numpy.matmul)
    )
    for got, expected in zip(jax.jit(ours)(a, b), reference(a, b), strict=True):
        close(got, expected)
    assert gpu.launches, "it was our handler"


def test_kernels(gpu):
    """Between XLA operations, mapped, in other storage orders, with run-time sizes."""
    a, b = floats(64, 48), floats(48, 80)
    spec = MatMul(64, 80, 48, **ROWS)(GL, GL, GL)(Kernel)
    kernel = find("gemm_tt").strategy.with_(bm=64, bn=64)(spec).compile("sm_80")
    close(jax.jit(lambda a, b: jax.numpy.tanh(kernel(a + 1, b)))(a, b), np.tanh((a + 1) @ b))
    assert gpu.launches == [(gpu.launches[0][0], (2, 1, 1, 64, 1, 1), 0)]
    close(jax.vmap(lambda a: kernel(a, b))(jax.numpy.stack([a, a + 1])), np.stack([a @ b, (a + 1) @ b]))
    columns = find("gemm_nn").strategy.with_(bm=64, bn=64)(MatMul(64, 80, 48)(GL, GL, GL)(Kernel)).compile("sm_80")
    close(jax.jit(columns)(a, b), a @ b)
    free = find("gemm_tt").strategy.with_(bm=64, bn=64)(MatMul(sym("M"), sym("N"), sym("K"), **ROWS)(GL, GL, GL)(Kernel)).compile("sm_80")
    jax.jit(free)(a, b).block_until_ready()
    assert [int(one[0]) for one in gpu.words[3:]] == [64, 80, 48]


def test_tensor_maps(gpu):
    half = np.zeros((256, 128), np.float16)
    kernel = matmul.kernel(half, half.T.copy(), arch="sm_90a")
    jax.jit(kernel)(jax.numpy.asarray(half), jax.numpy.asarray(half.T)).block_until_ready()
    maps = [tuple(one[1:5]) for one in gpu.words]
    assert maps == [(2, 128, 256, 256), (2, 256, 128, 512), (2, 256, 256, 512)]
    stack = np.zeros((9, 127, 127), np.float16)
    kernel = matmul.kernel(stack, stack, arch="sm_90a")
    assert len(kernel.route.before) == 2, "rows of 254 bytes, which TMA does not take"
    del gpu.launches[:]
    jax.jit(lambda a, b: kernel(a, b))(stack, stack).block_until_ready()
    assert len(gpu.launches) == 3 and int(gpu.words[0][4]) == 256


def test_refusals(gpu, monkeypatch):
    a, b = floats(64, 48), floats(48, 80)
    kernel = find("gemm_tt").strategy.with_(bm=64, bn=64)(MatMul(64, 80, 48, **ROWS)(GL, GL, GL)(Kernel)).compile("sm_80")
    for call, message in (
        (lambda a, b: kernel(a, b, out=b), "out= is illegal in a call that JAX traces"),
        (lambda a, b: matmul(a, b, out=a), "out= is not supported in a call that JAX traces"),
        (lambda a, b: kernel(b, a), "A has the shape"),
        (lambda a, b: kernel(a), "1 arrays given"),
        (lambda a, b: kernel(a.astype("float16"), b), "A has elements of another type"),
        (lambda a, b: matmul(a, b[1:]), "a has 48 columns, but b has 47 rows"),
    ):
        with pytest.raises(FireironError, match=message):
            jax.jit(call)(a, b)
    with pytest.raises(ValueError, match="cannot be differentiated"):
        jax.grad(lambda a: kernel(a, b).sum())(a)
    monkeypatch.setattr(CompiledKernel, "compiled", types.SimpleNamespace(cubin=b"nonsense"))
    with pytest.raises(RuntimeError, match="the GPU does not load kernel.*CUDA_ERROR_INVALID_IMAGE"):
        jax.jit(lambda a, b: kernel(a, b))(a, b).block_until_ready()
    monkeypatch.undo()
    if jax.default_backend() == "cpu":  # otherwise it would be registered for the GPU, with the simulated driver
        with pytest.raises(LaunchError, match="runs on a GPU") as caught:
            jax_calls.register()
        assert "JAX computes on cpu" in str(caught.value)
