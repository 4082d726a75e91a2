"""Calls that JAX traces, without JAX: the plan for the handler is the launch that a direct call makes, read back from the simulated driver."""

import math
import sys
import types

import fake_gpu
import numpy as np
import pytest
from fake_gpu import FakeGpu, installed
from graph_examples import of_elements
from mapped import kernel_of
from ringed import float16_gemm, product
from test_im2col import SMALL, STRATEGY, spec_of

from fireiron import *
from fireiron.gpu import jax_calls, launch, maps
from fireiron.gpu.arguments import buffer_shape
from fireiron.ir import TensorMap

POINTER, NUMBER, MAP, PIXELS = range(4)  # as in `jax_handler.cpp`
ROWS = {"A": RowMajor, "B": RowMajor, "C": RowMajor}
THREADS = MatMul.tile(8, 8).to(Block).tile(1, 1).to(Thread).split(1).tile(1, 1).done()


def of_threads(*sizes, **layouts):
    return THREADS(MatMul(*sizes, **layouts)(GL, GL, GL)(Kernel)).program("sm_80")


def of_parts():
    """Blocks add parts of the sum in a workspace with semaphores."""
    chain = MatMul.split_k(4, Block, 8).reduce_in_last_block().tile(16, 8).to(Block).epilog(RF, float32)
    return chain.tile(1, 1).to(Thread).split(1).done()(MatMul(16, 8, 32)(GL, GL, GL)(Kernel)).program("sm_80")


def of_sums():
    """Blocks add to an output that is zero before."""
    chain = MatMul.split_k(4, Block, 8).tile(16, 8).to(Block).epilog(RF, float32)
    return chain.tile(1, 1).to(Thread).split(1).done()(MatMul(16, 8, 32)(GL, GL, GL)(Kernel)).program("sm_80")


def repacked():
    """A copy of A with rows of 12 elements instead of 9, and a product that reads it."""
    return MatMul.repack(A).then(THREADS)(MatMul(20, 12, 9, **ROWS)(GL, GL, GL)(Kernel)).program("sm_80")


def of_stages(**options):
    return product((64, 64, 64), (64, 64), producer=128, **options)(float16_gemm(64, 128, 128)).program("sm_90a")


PROGRAMS = {
    "rows": lambda: of_threads(20, 12, 8, **ROWS),
    "columns": lambda: of_threads(20, 12, 8),
    "run-time sizes": lambda: of_threads(sym("M"), sym("N"), 8, **ROWS),
    "a workspace": of_parts,
    "an output of zeros": of_sums,
    "boxes": of_stages,
    "clusters": lambda: of_stages(cluster=(1, 2)),
    "a number": lambda: of_elements(70, d="Z[n] = f * X[n]").program("sm_80"),
    "several outputs": lambda: of_elements(70, d="Z[n] = W[n] * X[n]", e="Y[n] = X[n] + 1").program("sm_80"),
}


@pytest.fixture
def traced(monkeypatch):
    """The calls that XLA gets: shapes and layouts of outputs, layouts of inputs, inputs, and attributes."""
    calls = []

    def ffi_call(target, outputs, vmap_method, input_layouts, output_layouts):
        def call(*inputs, **attributes):
            calls.append(types.SimpleNamespace(outputs=outputs, inputs=inputs, layouts=(input_layouts, output_layouts), **attributes))
            return tuple(np.zeros(one.shape, one.dtype) for one in outputs)

        assert (target, vmap_method) == (jax_calls.TARGET, "sequential")
        return call

    jax = types.ModuleType("jax")
    jax.ShapeDtypeStruct = lambda shape, dtype: types.SimpleNamespace(shape=tuple(shape), dtype=np.dtype(dtype))
    jax.Array, jax.core = fake_gpu.FakeGpu, types.SimpleNamespace(Tracer=fake_gpu.FakeGpu)  # no array is traced
    jax.ffi = types.SimpleNamespace(ffi_call=ffi_call)
    monkeypatch.setitem(sys.modules, "jax", jax)
    monkeypatch.setattr(jax_calls, "register", lambda: None)
    return calls


def arrays_of(program):
    """Arrays for the inputs of a program, in storage order of its spec; a number for an input by value."""
    sizes = {"M": 19, "N": 13}
    arrays = {}
    for name in (*program.spec.inputs, *program.spec.outputs):
        operand = program.spec.operands[name]
        shape = tuple(sizes.get(str(size)) or int(str(size)) for size in operand.shape)
        order = "F" if len(shape) == 2 and operand.tensor.layout == ColMajor else "C"
        arrays[name] = 1.5 if operand.memory.by_value else np.zeros(shape, operand.dtype.numpy, order)
    return arrays


def launched(program, arrays, monkeypatch):
    """The launch of a direct call: its shape, zeroed bytes by parameter, and each parameter: an operand, a number or the arguments of a map."""
    gpu = installed(monkeypatch, FakeGpu(parameters=len(program.ir.parameters), capability=program.ir.architecture.name.strip("sm_a")))
    given = {}
    for name, array in arrays.items():
        given[name] = array
        if isinstance(array, np.ndarray):
            given[name] = gpu.cupy.ndarray(
                array.shape, array.dtype, array.data if array.flags.c_contiguous else array.T.data, array.strides
            )
    outs = [given[name] for name in program.spec.outputs]
    maps.encoded.cache_clear()  # their numbers are those of another driver
    kernel = kernel_of(program)
    kernel(*(given[name] for name in program.spec.inputs), out=outs[0] if len(outs) == 1 else tuple(outs))
    places = {one.data.ptr: name for name, one in given.items() if not isinstance(one, float)}
    ((_, grid, block, shared, _, values),) = gpu.launches
    parameters = []
    encoded = iter(gpu.maps)
    for parameter, value in zip(program.ir.parameters, values, strict=True):
        if isinstance(parameter, TensorMap):
            kind, address, extents, strides, box, modes = next(encoded)
            parameters.append((MAP, places[address], kind, modes[1], extents, strides, box))
        else:
            parameters.append((POINTER, places[value]) if value in places else (NUMBER, value))
    return (grid, block, shared), parameters, gpu


class Words:
    """The words of a plan, taken one after the other."""

    def __init__(self, words):
        self.words = list(map(int, words))

    def take(self, count=1):
        taken, self.words = self.words[:count], self.words[count:]
        return tuple(taken) if count > 1 else taken[0]


def decoded(call, operands):
    """The shape of the launch, the blocks of a cluster, zeroed bytes by operand, and the parameters, of a plan."""
    plan, parameters = Words(call.plan), []
    grid, threads, shared, blocks, _, zeroed, count = plan.take(7)
    fills = [(operands[place], size) for place, size in (plan.take(2) for _ in range(zeroed))]
    for _ in range(count):
        kind, value = plan.take(2)
        if kind == POINTER:
            parameters.append((POINTER, operands[value]))
        elif kind == NUMBER:
            parameters.append((NUMBER, value))
        else:
            dtype, span, rank = plan.take(3)
            extents, strides, box = (tuple(plan.take() for _ in range(size)) for size in (rank, rank - 1, rank))
            parameters.append((kind, operands[value], dtype, span, extents, strides, box))
            if kind == PIXELS:
                parameters[-1] += (tuple(plan.take() for _ in range(3 * (rank - 2))),)
    assert not plan.words, "the plan ends with the last parameter"
    return ((grid, 1, 1), (threads, 1, 1), shared), blocks, fills, parameters


def traced_call(program, arrays, calls):
    """The result of a traced call, and the names of the arrays of the last launch in the order of its plan."""
    result = jax_calls.traced_call(kernel_of(program), [arrays[name] for name in program.spec.inputs], None, None, {})
    spec = program.spec
    operands = [name for name in (*spec.inputs, *spec.outputs) if not spec.operands[name].memory.by_value]
    return result, [*operands, "provided"]


@pytest.mark.parametrize("name", PROGRAMS)
def test_traced_launches_are_those_of_direct_calls(name, traced, monkeypatch):
    program = PROGRAMS[name]()
    arrays, spec, sizes = arrays_of(program), program.spec, []
    provided = np.zeros(1024, np.uint32)
    monkeypatch.setattr(launch, "zeros", lambda device, size: sizes.append(size) or provided.ctypes.data)
    shape, parameters, gpu = launched(program, arrays, monkeypatch)
    result, operands = traced_call(program, arrays, traced)
    (call,) = traced
    traced_shape, blocks, fills, traced_parameters = decoded(call, operands)
    assert traced_shape == shape and blocks == (program.ir.cluster.blocks if program.ir.cluster else 1)
    address = (NUMBER, provided.ctypes.data)
    assert traced_parameters == [(POINTER, "provided") if one == address else one for one in parameters]
    assert [(len(call.image) * 8, call.name)] == [(8, program.ir.name)] and bytes(call.image) == b"\x7fELF" + bytes(4)

    outputs = call.outputs[: len(spec.outputs)]
    assert [(one.shape, one.dtype) for one in outputs] == [(arrays[name].shape, arrays[name].dtype) for name in spec.outputs]
    assert [one.shape for one in (result if len(outputs) > 1 else (result,))] == [one.shape for one in outputs]
    orders = [
        (1, 0) if array.flags.f_contiguous and array.ndim == 2 else tuple(range(array.ndim))
        for array in arrays.values()
        if hasattr(array, "ndim")
    ]
    assert [*call.layouts[0], *call.layouts[1]][: len(orders)] == orders
    assert [*map(id, call.inputs)] == [id(arrays[name]) for name in spec.inputs if isinstance(arrays[name], np.ndarray)]

    set_to_zero = sum(size for name, size in fills if name != "provided")
    assert set_to_zero == sum(count for _, count, _ in gpu.of("memset")) and all(name in (*spec.outputs, "provided") for name, _ in fills)
    assert (name == "an output of zeros") == bool(set_to_zero)
    words = [math.prod(one.shape) for one in call.outputs[len(spec.outputs) :]]
    assert [-(-size // 4) for size in sizes] == words and len(words) == (name == "a workspace")
    assert all(0 < size <= 4 * words[0] for name, size in fills if name == "provided") and (len(fills) > 0) == bool(words or set_to_zero)


def test_memory_of_a_preceding_copy_is_the_operand_of_the_next_launch(traced):
    """The copy writes whole rows of padded memory, which the last launch reads as one dimension."""
    program = repacked()
    arrays = arrays_of(program)
    kernel = kernel_of(program)
    for before in kernel.route.before:
        before.kernel.__dict__["compiled"] = kernel.compiled
    jax_calls.traced_call(kernel, [arrays[name] for name in program.spec.inputs], None, None, {})
    first, last = traced
    (memory,) = first.outputs
    assert first.inputs[0] is arrays["A"] and first.layouts == ([(0, 1)], [(0,)]) and memory.shape == (19 * 12 + 9,)
    assert last.inputs[0].shape == memory.shape and last.inputs[1] is arrays["B"] and last.layouts == ([(0,), (0, 1)], [(0, 1)])
    assert [one.shape for one in last.outputs] == [(20, 12)]


def test_maps_of_pixels(traced):
    """Images of 9 by 8 pixels with 128 channels, and 3 by 3 taps with padding 1 and stride 2."""
    program = STRATEGY.with_(**SMALL)(spec_of("stride")).program("sm_90a")
    shapes = {name: buffer_shape(program.ir.buffer(name), {}) for name in program.spec.inputs}
    _, operands = traced_call(program, {name: np.zeros(shape, np.float16) for name, shape in shapes.items()}, traced)
    ((pixels, *_),) = [[one for one in decoded(call, operands)[3] if one[0] == PIXELS] for call in traced]
    _, _, _, span, extents, strides, box, mode = pixels
    assert (span, extents, strides) == (3, (128, 8, 9, 3), (256, 8 * 256, 72 * 256)) and box[:2] == (64, 64)
    assert mode[:2] == (-1, -1) and mode[4:] == (2, 2) and all(-3 < upper < 0 for upper in mode[2:4])


def test_refusals(traced, monkeypatch):
    program = PROGRAMS["rows"]()
    kernel, (a, b, c) = kernel_of(program), arrays_of(program).values()
    call = lambda *arrays, kernel=kernel, out=None, stream=None: jax_calls.traced_call(kernel, arrays, out, stream, {})
    padded = kernel_of(of_threads(20, 12, 8, A=RowMajor(ld=16), B=RowMajor, C=RowMajor))
    for refused, message in (
        (lambda: call(a, b, out=c), "out= is illegal in a call that JAX traces"),
        (lambda: call(a, b, stream=0), "stream= is illegal in a call that JAX traces"),
        (lambda: call(a), "1 arrays given"),
        (lambda: call(b, a), "A has the shape"),
        (lambda: call(a.astype(np.float16), b), "A has elements of another type"),
        (lambda: call(a, b, kernel=padded), "A has strides that JAX arrays do not support"),
    ):
        with pytest.raises(FireironError, match=message):
            refused()
    assert not traced
    monkeypatch.undo()
    for backend in ("cpu", "gpu", "cuda"):
        platforms = []
        monkeypatch.setitem(sys.modules, "jax", types.SimpleNamespace(default_backend=lambda backend=backend: backend))
        monkeypatch.setattr(jax_calls, "register_for", lambda *names, platforms=platforms: platforms.append(names))
        if backend == "cpu":
            with pytest.raises(LaunchError, match="runs on a GPU") as caught:
                jax_calls.register()
            assert caught.value.got == "JAX computes on cpu" and not platforms
        else:
            jax_calls.register()
            assert platforms == [("CUDA", "fireiron_launch")]
