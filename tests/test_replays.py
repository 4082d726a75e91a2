"""Calls that `replays.c` repeats, on a machine without a GPU: tensors, PyTorch's exchange of them and the driver are stand-ins."""

import ctypes
import gc
import itertools
import os
import random
import subprocess
import sys
import types
import weakref

import numpy as np
import pytest

from fireiron.errors import ArgumentError, LaunchError
from fireiron.gpu import built, launch, replays
from fireiron.gpu.arrays import ArrayView
from fireiron.recorder import Recording, current, note_other_work, recorded
from fireiron.repeated import Replays

ELEMENTS = {"float32": (2, 32), "float16": (2, 16), "bfloat16": (4, 16), "int32": (0, 32), "uint8": (1, 8)}


class Tensor:
    """A tensor of bytes in a simulated address space."""

    requires_grad = False
    negated = False
    places = itertools.count(1 << 20, 1 << 16)

    def __init__(self, shape, strides=None, dtype="float32", address=None, device=0):
        self.shape, self.dtype, self.device, self.kind = tuple(shape), dtype, device, 2
        self.strides = tuple(strides) if strides else tuple(int(np.prod(shape[dim + 1 :])) for dim in range(len(shape)))
        self.address = next(Tensor.places) if address is None else address
        self.dims = (ctypes.c_int64 * len(self.shape))(*self.shape), (ctypes.c_int64 * len(self.shape))(*self.strides)

    def is_neg(self):
        return self.negated

    def stride(self):
        return self.strides

    def data_ptr(self):
        return self.address

    def as_strided(self, shape, strides, offset):
        return type(self)(shape, strides, self.dtype, self.address + offset * self.element_size(), self.device)

    def element_size(self):
        return ELEMENTS[self.dtype][1] // 8


class Parameter(Tensor):
    """Another plain type."""


class Subclass(Tensor):
    """A subclass of the plain type."""


class Described(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("kind", ctypes.c_int32),
        ("device", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("offset", ctypes.c_uint64),
    )


READ = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(Described))
STREAM = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))


class Exchange(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("unused", ctypes.c_void_p * 4),
        ("read", READ),
        ("stream", STREAM),
    )


class Machine:
    """PyTorch and the driver, with a log of the calls to them."""

    def __init__(self):
        self.launches, self.fills, self.maps, self.contexts = [], [], [], [77]
        self.gradients = False
        self.stream, self.status, self.capturing, self.context_error = 5, 0, 0, 0
        self.keep = []
        self.exchange = Exchange(1, 1, (ctypes.c_void_p * 4)(), READ(self.read), STREAM(self.current_stream))
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
        self.name = b"dlpack_exchange_api"
        self.capsule = new(ctypes.addressof(self.exchange), self.name, None)
        pointer, unsigned, number, size = ctypes.c_void_p, ctypes.c_uint, ctypes.c_int, ctypes.c_size_t
        self.functions = (
            self.callback_of(self.launch, pointer, *(unsigned,) * 7, *(pointer,) * 3),
            self.callback_of(self.launch_with, *(pointer,) * 4),
            self.callback_of(self.encode, pointer, number, ctypes.c_uint32, *(pointer,) * 5, *(number,) * 4),
            self.callback_of(self.fill, ctypes.c_uint64, ctypes.c_ubyte, size, pointer),
            self.callback_of(self.fill_rows, ctypes.c_uint64, size, ctypes.c_ubyte, size, size, pointer),
            self.callback_of(self.context, ctypes.POINTER(pointer)),
            self.callback_of(self.push, pointer),
            self.callback_of(self.pop, ctypes.POINTER(pointer)),
            self.callback_of(self.is_capturing, pointer, ctypes.POINTER(number)),
        )

    def callback_of(self, function, *arguments):
        callback = ctypes.PYFUNCTYPE(ctypes.c_int, *arguments)(function)
        self.keep.append(callback)
        return ctypes.cast(callback, ctypes.c_void_p).value

    def read(self, tensor, out):
        if not hasattr(tensor, "dims"):
            return 1
        code, bits = ELEMENTS[tensor.dtype]
        shape, strides = tensor.dims
        out[0] = Described(tensor.address - 16, tensor.kind, tensor.device, len(shape), code, bits, 1, shape, strides, 16)
        return 0

    def current_stream(self, kind, device, out):
        out[0] = self.stream
        return 0

    def slots(self, table, count=8):
        addresses = (ctypes.c_void_p * count).from_address(table)
        return [ctypes.c_uint64.from_address(one).value for one in addresses if one]

    parameters = 0

    def arguments(self, table):
        addresses = (ctypes.c_void_p * self.parameters).from_address(table)
        return [ctypes.c_uint64.from_address(one).value for one in addresses]

    def launch(self, function, gx, gy, gz, bx, by, bz, shared, stream, table, extra):
        if self.status:
            return self.status
        self.launches.append((function, (gx, gy, gz, bx, by, bz), shared, stream, self.arguments(table), self.contexts[-1]))
        return 0

    def launch_with(self, config, function, table, extra):
        shape = tuple((ctypes.c_uint * 6).from_address(config))
        stream = ctypes.c_void_p.from_address(config + 32).value
        attribute = ctypes.c_void_p.from_address(config + 40).value
        kind, value = ctypes.c_int.from_address(attribute).value, ctypes.c_int.from_address(attribute + 8).value
        assert (kind, value, ctypes.c_uint.from_address(config + 48).value) == (6, 1, 1)
        self.launches.append((function, shape, "chained", stream, self.arguments(table), self.contexts[-1]))
        return 0

    def encode(self, to, element, rank, address, extents, strides, box, element_strides, interleave, swizzle, promotion, fill):
        assert to % 64 == 0 and (interleave, fill) == (0, 0)
        sizes = tuple((ctypes.c_uint64 * rank).from_address(extents)), tuple((ctypes.c_uint64 * (rank - 1)).from_address(strides))
        boxes = tuple((ctypes.c_uint32 * rank).from_address(box)), tuple((ctypes.c_uint32 * rank).from_address(element_strides))
        if address % 32:
            return 1
        self.maps.append((element, address, *sizes, *boxes, swizzle, promotion))
        ctypes.c_uint64.from_address(to).value = address * 10
        return 0

    def fill(self, address, value, width, stream):
        self.fills.append((address, value, width, stream))
        return 0

    def fill_rows(self, address, pitch, value, width, height, stream):
        self.fills.append((address, pitch, value, width, height, stream))
        return 0

    def context(self, out):
        out[0] = self.contexts[-1]
        return 0

    def push(self, context):
        self.contexts.append(context)
        return self.context_error

    def pop(self, out):
        out[0] = self.contexts.pop()
        return 0

    def is_capturing(self, stream, out):
        out[0] = self.capturing
        return 0


@pytest.fixture(scope="module")
def module(tmp_path_factory):
    """The module, compiled here with warnings as errors."""
    import sysconfig

    compiler = built.compiler_among(replays.COMPILERS)
    headers = sysconfig.get_paths()["include"]
    if compiler is None or not replays.Path(headers, "Python.h").exists():
        pytest.skip("no C compiler, or no Python.h")
    path = tmp_path_factory.mktemp("replays") / "replays.so"
    options = [one for one in replays.OPTIONS if one != "-w"] + os.environ.get("SANITIZED", "").split()
    command = [compiler, *options, "-Wall", "-Wextra", "-Werror", f"-I{headers}", str(replays.SOURCE)]
    return replays._loaded(built.Building.start(command, path).finish("the module"))


@pytest.fixture
def machine(module):
    stand_in = Machine()
    module.configure(stand_in.capsule, (Tensor, Parameter), lambda: stand_in.gradients, stand_in.functions)
    yield stand_in
    module.configure(stand_in.capsule, (Tensor,), lambda: False, stand_in.functions)


FUNCTION, SHAPE = 4096, (3, 2, 1, 128, 1, 1)
ADDRESS, WORD, MAP, COUNTER = replays.ADDRESS, replays.WORD, replays.MAP, replays.COUNTER


def launched(*parameters, fills=(), programmatic=False):
    return FUNCTION, SHAPE, 1024, programmatic, parameters, tuple(fills)


def described(*launches, makers=(), results=(), is_tuple=False, spans=(), device=0, context=77):
    return device, context, tuple(makers), tuple(results), is_tuple, tuple(spans), tuple(launches)


def bytes_of(*tensors):
    return tuple(replays._Array.of(one).end - one.address for one in tensors)


# ---------------------------------------------------------------------------------------------- lookup


def test_call_is_replayed_on_other_tensors(module, machine):
    calls, a, b = module.Replays(), Tensor((4, 8)), Tensor((8, 5), dtype="float16")
    results = []

    def maker():
        results.append(Tensor((4, 5)))
        return results[-1]

    assert calls(None, None, a, b) is NotImplemented and len(calls) == 0
    launch_recipe = launched((ADDRESS, 1, 0), (ADDRESS, 0, 64), (WORD, 1234), (ADDRESS, 2, 0))
    assert calls.add(None, None, (a, b), described(launch_recipe, makers=[maker], results=[0], spans=bytes_of(a, b, Tensor((4, 5)))))
    assert len(calls) == 1
    machine.parameters = 4
    for _ in range(3):
        a, b = Tensor((4, 8)), Tensor((8, 5), dtype="float16")
        assert calls(None, None, a, b) is results[-1]
        expected = FUNCTION, SHAPE, 1024, 5, [b.address, a.address + 64, 1234, results[-1].address], 77
        assert machine.launches[-1] == expected
    assert len(results) == len(machine.launches) == 3


def test_a_given_output_is_returned(module, machine):
    calls, a = module.Replays(), Tensor((4, 8))
    out = Tensor((4, 8))
    assert calls(None, out, a) is NotImplemented
    assert calls.add(None, out, (a,), described(launched((ADDRESS, 1, 0)), spans=bytes_of(a, out)))
    machine.parameters = 1
    for given in (Tensor((4, 8)), (out,), [out]):
        result = calls(None, given, a)
        assert result is given
    assert [one[4] for one in machine.launches] == [[machine.launches[0][4][0]], [out.address], [out.address]]
    assert calls(None, None, a) is NotImplemented and calls(None, (out, Tensor((4, 8))), a) is NotImplemented


def test_several_results_form_a_tuple(module, machine):
    calls, a = module.Replays(), Tensor((4,))
    results = [Tensor((4,)), Tensor((2,)), Tensor((1,))]
    makers = [lambda one=one: one for one in results]
    recipe = described(launched((ADDRESS, 3, 4)), makers=makers, results=[0, 1], is_tuple=True, spans=bytes_of(a, *results))
    calls.add(None, None, (a,), recipe)
    machine.parameters = 1
    assert calls(None, None, a) == tuple(results[:2])
    assert machine.launches[-1][4] == [results[2].address + 4]


def test_signatures_distinguish_calls(module, machine):
    """By shapes, strides, types, GPU, alignment, options and numbers."""
    calls = module.Replays()
    known = [
        (None, (Tensor((4, 8)), 1.5)),
        (None, (Tensor((8, 4)), 1.5)),
        (None, (Tensor((4, 8), (16, 1)), 1.5)),
        (None, (Tensor((4, 8), dtype="int32"), 1.5)),
        (None, (Tensor((4, 8), dtype="bfloat16"), 1.5)),
        (None, (Tensor((4, 8), device=1), 1.5)),
        (None, (Tensor((4, 8), address=(1 << 40) + 16), 1.5)),
        (None, (Tensor((4, 8)), 2.5)),
        (None, (Tensor((4, 8)), 1)),
        (None, (Tensor((4, 8)), 2)),
        (None, (Tensor((4, 8)),)),
        (None, (Tensor((4, 8)), Tensor((4, 8)))),
        (None, (Tensor((32,)), 1.5)),
        (("x", 1), (Tensor((4, 8)), 1.5)),
        (("x", 2), (Tensor((4, 8)), 1.5)),
        ("x", (Tensor((4, 8)), 1.5)),
    ]
    for number, (options, inputs) in enumerate(known):
        assert calls(options, None, *inputs) is NotImplemented
        tensors = [one for one in inputs if isinstance(one, Tensor)]
        assert calls.add(
            options, None, inputs, described((number, SHAPE, 0, False, (), ()), spans=bytes_of(*tensors), device=tensors[0].device)
        )
    assert len(calls) == len(known)
    for number, (options, inputs) in enumerate(known):
        assert calls(options if options is None else eval(repr(options)), None, *inputs) is None  # without an output the result is None
        assert machine.launches[-1][0] == (number or None)
    calls.clear()
    assert len(calls) == 0 and all(calls(options, None, *inputs) is NotImplemented for options, inputs in known)


def test_alignment_of_a_tensor_matters_but_not_its_address(module, machine):
    calls = module.Replays()
    base = 1 << 40
    calls.add(None, None, (Tensor((4,), address=base + 16),), described(launched(), spans=[16]))
    for offset in range(0, 4096, 2):
        aligned = (offset & -offset or 64) == 16
        assert (calls(None, None, Tensor((4,), address=base + offset)) is None) == aligned
    calls.add(None, None, (Tensor((4,), address=base),), described(launched(), spans=[16]))
    assert (
        calls(None, None, Tensor((4,), address=base + 64)) is None and calls(None, None, Tensor((4,), address=base + 32)) is NotImplemented
    )


@pytest.mark.parametrize(
    ("spoil", "again"),
    [
        (lambda a, machine: setattr(a, "kind", 1), None),
        (lambda a, machine: setattr(a, "negated", True), None),
        (lambda a, machine: (setattr(a, "requires_grad", True), setattr(machine, "gradients", True)), ...),
        (lambda a, machine: setattr(a, "dims", (a.dims[0].__class__(0, 8), a.dims[1])), None),
        (lambda a, machine: delattr(a, "dims"), None),
        (lambda a, machine: setattr(a, "requires_grad", True), "replayed"),
        (lambda a, machine: setattr(machine, "gradients", True), "replayed"),
    ],
)
def test_unusual_calls_are_left_to_the_caller(module, machine, spoil, again):
    calls, a, result = module.Replays(), Tensor((4, 8)), Tensor((1,))
    calls.add(None, None, (a,), described(launched(), makers=[lambda: result], results=[0], spans=bytes_of(a, result)))
    assert calls(None, None, a) is result
    spoil(a, machine)
    assert calls(None, None, a) is (result if again == "replayed" else again)
    assert len(machine.launches) == (2 if again == "replayed" else 1)


def test_arguments_other_than_plain_tensors_and_numbers_are_left_to_the_caller(module, machine):
    calls, a = module.Replays(), Tensor((4, 8))
    for argument in (Subclass((4, 8)), np.zeros(3), True, "text", None, np.float32(1), 1 << 70, [a]):
        assert calls(None, None, a, argument) is None
        assert not calls.add(None, None, (a, argument), None)
    assert calls(None, np.zeros(3), a) is None and calls(None, (), a) is None and calls(None, {"C": a}, a) is None
    assert calls(None, None, 1.5) is None and calls(None, None) is None
    assert calls(None, None, Parameter((4, 8))) is NotImplemented and calls([], None, a) is None
    assert calls(None, None, Tensor((1,) * 8)) is NotImplemented and calls(None, None, Tensor((1,) * 9)) is None
    assert calls(None, None, *[a] * 32) is NotImplemented and calls(None, None, *[a] * 33) is None
    with pytest.raises(TypeError):
        calls(None)
    with pytest.raises(TypeError):
        calls(None, None, a=a)


def test_a_call_that_is_never_replayed(module, machine):
    calls, a = module.Replays(), Tensor((4, 8))
    assert calls.add(None, None, (a,), None)
    assert calls(None, None, a) is None and len(calls) == 1 and not machine.launches
    assert calls.add(None, None, (a,), described(launched(), spans=bytes_of(a)))
    assert calls(None, None, a) is None and len(calls) == 1 and len(machine.launches) == 1


def test_an_output_over_another_tensor_is_left_to_the_caller(module, machine):
    calls, a, out, more = module.Replays(), Tensor((4, 8)), Tensor((4, 8)), Tensor((4, 8))
    calls.add(None, (out, more), (a,), described(launched(), spans=bytes_of(a, out, more)))
    ends = bytes_of(a)[0]
    for first, second, legal in (
        (a.address, more.address, False),
        (a.address + ends - 64, more.address, False),
        (a.address + ends, more.address, True),
        (a.address - ends + 64, more.address, False),
        (a.address - ends, more.address, True),
        (out.address, out.address, False),
        (out.address, out.address + ends - 64, False),
        (out.address, out.address + ends, True),
        (out.address, a.address, False),
    ):
        before = len(machine.launches)
        calls(None, (Tensor((4, 8), address=first), Tensor((4, 8), address=second)), a)
        assert (len(machine.launches) > before) == legal


# ---------------------------------------------------------------------------------------------- launches


def test_launches_run_in_order_with_intermediate_tensors(module, machine):
    calls, a = module.Replays(), Tensor((4,))
    between, result = Tensor((64,)), Tensor((4,))
    first = launched((ADDRESS, 0, 0), (ADDRESS, 2, 0))
    second = launched((ADDRESS, 2, 128), (ADDRESS, 1, 0), fills=[(1, 4, 12, 1, 12), (2, 0, 4, 3, 16)], programmatic=True)
    recipe = described(first, second, makers=[lambda: result, lambda: between], results=[0], spans=bytes_of(a, result, between))
    calls.add(None, None, (a,), recipe)
    machine.parameters = 2
    assert calls(None, None, a) is result
    assert [one[4] for one in machine.launches] == [[a.address, between.address], [between.address + 128, result.address]]
    assert [one[2] for one in machine.launches] == [1024, "chained"] and [one[3] for one in machine.launches] == [5, 5]
    assert machine.fills == [(result.address + 4, 0, 12, 5), (between.address, 16, 0, 4, 3, 5)]


@pytest.mark.parametrize(
    ("modes", "contexts", "is_quick"),
    [(lambda: 0, [77], True), (lambda: 1, [77], False), (lambda: 0, [78], False), (lambda: 1 / 0, [77], False), (None, [77], False)],
)
def test_quick_functions_allocate_on_the_current_gpu(module, machine, modes, contexts, is_quick):
    """Not if a dispatch mode watches operators, and not in the context of another GPU."""
    module.configure(machine.capsule, (Tensor,), bool, machine.functions, modes)
    machine.contexts = contexts
    calls, a, slow, quick, plain = module.Replays(), Tensor((4,)), Tensor((1,)), Tensor((1,)), Tensor((2,))
    makers = [(lambda: slow, lambda: quick), lambda: plain]
    calls.add(None, None, (a,), described(launched(), makers=makers, results=[0, 1], is_tuple=True, spans=bytes_of(a, slow, plain)))
    assert calls(None, None, a) == (quick if is_quick else slow, plain) and len(machine.launches) == 1


def test_maps_are_encoded_once_for_an_address(module, machine):
    calls = module.Replays()
    form = MAP, 0, 256, 9, 3, 2, (64, 32), (128,), (64, 8)
    tensors = [Tensor((32, 64), dtype="bfloat16") for _ in range(9)]
    calls.add(None, None, (tensors[0],), described(launched(form, (WORD, 7)), spans=bytes_of(tensors[0])))
    machine.parameters = 2
    for tensor in (*tensors[:8], *tensors[:8]):
        calls(None, None, tensor)
        assert machine.launches[-1][4] == [(tensor.address + 256) * 10, 7]
    assert len(machine.maps) == 8
    assert machine.maps[0] == (9, tensors[0].address + 256, (64, 32), (128,), (64, 8), (1, 1), 3, 2)
    calls(None, None, tensors[8])  # the ninth replaces the first
    calls(None, None, tensors[1])
    assert len(machine.maps) == 9
    calls(None, None, tensors[0])
    assert len(machine.maps) == 10


def test_maps_of_python_are_encoded_once_for_an_address(module, machine):
    calls, asked = module.Replays(), []

    def encode(address):
        asked.append(address)
        if address > last.address:
            raise LaunchError("no map")
        return (address * 10).to_bytes(8, "little") + bytes(120)

    tensors = [Tensor((32, 64), dtype="bfloat16") for _ in range(3)]
    last = tensors[1]
    calls.add(None, None, (tensors[0],), described(launched((WORD, 7), (MAP, 0, 0, encode)), spans=bytes_of(tensors[0])))
    machine.parameters = 2
    for tensor in (*tensors[:2], *tensors[:2]):
        calls(None, None, tensor)
        assert machine.launches[-1][4] == [7, tensor.address * 10]
    assert asked == [one.address for one in tensors[:2]]
    assert calls(None, None, tensors[2]) is None and len(machine.launches) == 4
    with pytest.raises(TypeError):
        calls.add(None, None, (tensors[0],), described(launched((MAP, 0, "", encode)), spans=bytes_of(tensors[0])))
    before = sys.getrefcount(encode)
    calls.clear()
    assert sys.getrefcount(encode) == before - 1


def test_a_map_that_the_driver_refuses_is_left_to_the_caller(module, machine):
    calls = module.Replays()
    form = MAP, 0, 16, 9, 3, 2, (64, 32), (128,), (64, 8)
    a = Tensor((32, 64), dtype="bfloat16")
    calls.add(None, None, (a,), described(launched(form), spans=bytes_of(a)))
    assert calls(None, None, a) is None and not machine.launches and not machine.maps


def test_counters_by_stream(module, machine):
    calls, a, requested_streams = module.Replays(), Tensor((4,)), []

    def of(stream):
        requested_streams.append(stream)
        return 1000 + stream

    calls.add(None, None, (a,), described(launched((COUNTER, of), (ADDRESS, 0, 0)), launched((WORD, 1), (COUNTER, of)), spans=bytes_of(a)))
    machine.parameters = 2
    for stream in (5, 6, 5, 6):
        machine.stream = stream
        calls(None, None, a)
        assert [one[4] for one in machine.launches[-2:]] == [[1000 + stream, a.address], [1, 1000 + stream]]
    assert requested_streams == [5, 5, 6, 6]
    machine.capturing = 1
    calls(None, None, a)
    machine.capturing, machine.stream = 0, 2
    calls(None, None, a)
    calls(None, None, a)
    assert requested_streams[4:] == [6, 6, 2, 2, 2, 2]


def test_a_counter_that_fails_is_left_to_the_caller(module, machine):
    calls, a = module.Replays(), Tensor((4,))
    calls.add(None, None, (a,), described(launched((COUNTER, lambda stream: 1 // 0)), spans=bytes_of(a)))
    assert calls(None, None, a) is None and not machine.launches


def test_another_context_is_current(module, machine):
    calls, a = module.Replays(), Tensor((4,))
    calls.add(None, None, (a,), described(launched(), spans=bytes_of(a), context=88))
    calls(None, None, a)
    assert machine.launches[-1][-1] == 88 and machine.contexts == [77]
    machine.context_error = 3
    assert calls(None, None, a) is None and len(machine.launches) == 1


def test_a_launch_that_the_driver_refuses_is_left_to_the_caller(module, machine):
    calls, a, result = module.Replays(), Tensor((4,)), Tensor((4,))
    calls.add(None, None, (a,), described(launched(), makers=[lambda: result], results=[0], spans=bytes_of(a, result)))
    machine.status = 700
    assert calls(None, None, a) is None and not machine.launches
    machine.status = 0
    assert calls(None, None, a) is result


def test_memory_that_runs_out_is_an_error(module, machine):
    calls, a = module.Replays(), Tensor((4,))

    def nothing():
        raise MemoryError("full")

    calls.add(None, None, (a,), described(launched(), makers=[lambda: Tensor((4,)), nothing], results=[0], spans=[16, 16, 16]))
    with pytest.raises(MemoryError, match="full"):
        calls(None, None, a)
    assert not machine.launches


def test_calls_may_be_cleared_during_a_call(module, machine):
    calls, a, result = module.Replays(), Tensor((4,)), Tensor((4,))

    def maker():
        calls.clear()
        gc.collect()
        return result

    recipe = described(launched((ADDRESS, 1, 0)), makers=[maker], results=[0], spans=bytes_of(a, result))
    calls.add(("some", "options"), None, (a,), recipe)
    del recipe, maker
    machine.parameters = 1
    assert calls(("some", "options"), None, a) is result and machine.launches[-1][4] == [result.address]
    assert len(calls) == 0


def test_tensors_are_not_kept_alive(module, machine):
    calls, a = module.Replays(), Tensor((4,))
    kept = Parameter((1,))
    seen = weakref.ref(kept)
    calls.add(("x", id(kept)), None, (a,), described(launched(), makers=[lambda kept=kept: a], spans=[16, 16]))
    del kept
    assert seen() is not None
    before = sys.getrefcount(a)
    for _ in range(100):
        calls(("x",), None, a)
        calls(None, a, a)
    assert sys.getrefcount(a) == before
    del calls
    gc.collect()
    assert seen() is None


def test_the_oldest_calls_are_dropped(module, machine):
    """All entries are dropped at once: a program with more signatures than that gains nothing from replays."""
    calls = module.Replays()
    for size in range(1, 1026):
        a = Tensor((size,))
        calls.add(None, None, (a,), described(launched(), spans=bytes_of(a)))
        assert len(calls) == (size if size <= 1024 else size - 1024)
    before = len(machine.launches)
    assert calls(None, None, Tensor((1025,))) is None and len(machine.launches) == before + 1
    assert calls(None, None, Tensor((1024,))) is NotImplemented


@pytest.mark.parametrize(
    "recipe",
    [
        described(launched((ADDRESS, 1, 0)), spans=[16]),
        described(launched((ADDRESS, -1, 0)), spans=[16]),
        described(launched((9, 0, 0)), spans=[16]),
        described(launched(()), spans=[16]),
        described(launched((MAP, 0, 0, 9, 3, 2, (1,) * 6, (1,), (1,))), spans=[16]),
        described(launched(fills=[(1, 0, 4, 1, 4)]), spans=[16]),
        described(launched(*[(WORD, 1)] * 97), spans=[16]),
        described(*[launched()] * 17, spans=[16]),
        described(launched(), makers=[int] * 17, spans=[16] * 18),
        described(launched(), makers=[int], results=[1], spans=[16, 16]),
        described((FUNCTION, (1, 2, 3), 0, False, (), ()), spans=[16]),
        described(launched(), spans=[16, 16]),
        (1, 2),
    ],
)
def test_malformed_recipes_are_refused(module, machine, recipe):
    calls, a = module.Replays(), Tensor((4,))
    with pytest.raises((ValueError, TypeError)):
        calls.add(None, None, (a,), recipe)
    assert len(calls) == 0 and calls(None, None, a) is NotImplemented


def test_unknown_versions_of_the_exchange_are_refused(module, machine):
    machine.exchange.major = 2
    with pytest.raises(ValueError, match="version 2.1"):
        module.configure(machine.capsule, (Tensor,), bool, machine.functions)
    machine.exchange.major = 1
    with pytest.raises(ValueError, match="lacks functions"):
        module.configure(machine.capsule, (Tensor,), bool, (0, *machine.functions[1:]))


# ---------------------------------------------------------------------------------------------- what is recorded


class Fixed:
    """A fixed launch of which only the description matters."""

    function, shape, shared, is_programmatic = FUNCTION, SHAPE, 512, False

    def __init__(self, values=(), fills=(), parameters=None, counter=None):
        self.values, self.fills, self.parameters, self.counter = values, fills, parameters, counter


class Plan:
    """A plan for arrays, some of which are numbers."""

    device = 0

    def __init__(self, fixed, views, by_value=(), order=None):
        self.launch, self.views, self.order = fixed, views, order
        self.buffers = [types.SimpleNamespace(memory=types.SimpleNamespace(by_value=place in by_value)) for place in range(len(views))]

    def placed(self, addresses):
        return addresses if self.order is None else tuple(addresses[place] for place in self.order)


def view(tensor):
    shape, strides = tensor.shape, tuple(step * tensor.element_size() for step in tensor.strides)
    return ArrayView(shape, strides, tensor.dtype, tensor.element_size(), 0, False)


@pytest.fixture(autouse=True)
def pytorch(monkeypatch):
    monkeypatch.setattr(launch, "context_of", lambda device: 77)
    fake = types.SimpleNamespace(
        empty_strided=lambda shape, strides, dtype, device: Tensor(shape, strides, dtype, device=device),
        zeros=lambda size, dtype, device: Tensor((size,), None, dtype, device=device),
        uint8="uint8",
        cuda=types.SimpleNamespace(is_current_stream_capturing=lambda: False),
    )
    monkeypatch.setitem(sys.modules, "torch", fake)


def recording(*launches, outputs=()):
    return Recording([(plan, addresses) for plan, addresses in launches], list(outputs))


def test_recipe_describes_a_call():
    a, b, c = Tensor((4, 8)), Tensor((8, 6)), Tensor((4, 6), (1, 4))
    part = Tensor((3, 8), (8, 1), address=a.address + 32)
    fill = launch.Fill(96, 1, 96, (0, 96), None)
    plan = Plan(
        Fixed((5, 1 << 40), [(0, fill)]), [view(part), view(b), ArrayView((), (), "float32", 4, 0, True), view(c)], {2}, (3, 0, 2, 1)
    )
    recipe = replays.recipe((a, b, 2.0), None, c, recording((plan, (part.address, b.address, 77, c.address)), outputs=[c]))
    device, context, makers, results, is_tuple, spans, ((function, shape, shared, programmatic, parameters, fills),) = recipe
    assert (device, context, results, is_tuple, spans) == (0, 77, (0,), False, (128, 192, 96))
    assert (function, shape, shared, programmatic) == (FUNCTION, SHAPE, 512, False)
    assert parameters == ((ADDRESS, 2, 0), (ADDRESS, 0, 32), (WORD, 77), (ADDRESS, 1, 0), (WORD, 5), (WORD, 1 << 40))
    assert fills == ((2, 0, 96, 1, 96), (2, 96, 96, 1, 96))
    (maker,) = makers
    again = maker()
    assert (again.shape, again.strides, again.dtype, again.device) == (c.shape, c.strides, c.dtype, 0) and again.address != c.address


def test_a_quick_allocation_has_the_same_layout():
    guards = types.SimpleNamespace(_empty_strided_cuda=lambda shape, strides, dtype: Tensor(shape, strides, dtype, device=0))
    sys.modules["torch"]._C = types.SimpleNamespace(_dynamo=types.SimpleNamespace(guards=guards))
    a, c = Tensor((4, 8)), Tensor((4, 6), (1, 4), dtype="float16")
    ((plain, quick),) = replays.recipe((a,), None, c, recording((Plan(Fixed(), [view(a), view(c)]), (a.address, c.address))))[2]
    for output in (plain(), quick()):
        assert (output.shape, output.strides, output.dtype, output.device) == (c.shape, c.strides, c.dtype, c.device)


def test_maps_and_counters_are_described():
    a, out = Tensor((4, 8)), Tensor((4, 8))
    form = launch.TiledForm(7, (8, 4), (32,), (8, 2), 1)
    fixed = Fixed((9,), parameters=[launch.Mapped(1, None, form), 0, 3, 2], counter=len)
    plan = Plan(fixed, [view(a), view(out)])
    recipe = replays.recipe((a,), out, out, recording((plan, (a.address, out.address))))
    assert recipe[2:5] == ((), (), False)
    assert recipe[-1][0][4] == ((MAP, 1, 0, 7, 1, launch.PROMOTED, (8, 4), (32,), (8, 2)), (ADDRESS, 0, 0), (WORD, 9), (COUNTER, len))
    room = ctypes.create_string_buffer(bytes(range(128)), 128)
    fixed.parameters = [launch.Mapped(1, lambda address: launch.EncodedMap(ctypes.addressof(room), address))]
    ((kind, place, offset, encode),) = replays.recipe((a,), out, out, recording((plan, (a.address, out.address))))[-1][0][4]
    assert (kind, place, offset, encode(77)) == (MAP, 1, 0, bytes(range(128)))


def test_intermediate_tensors_are_one_allocation_of_each_replay():
    a, between, last, result = Tensor((4, 8)), Tensor((130,)), Tensor((64,)), Tensor((4, 8))
    first = Plan(Fixed(), [view(a), view(between)]), (a.address, between.address)
    half = Tensor((32,), address=last.address + 128)
    second = Plan(Fixed(), [view(between), view(half)]), (between.address, half.address)
    third = Plan(Fixed(), [view(last), view(result)]), (last.address, result.address)
    recipe = replays.recipe((a,), None, result, recording(first, second, third, outputs=[between, last, result]))
    assert len(recipe[2]) == 2 and recipe[3] == (0,) and recipe[5] == (128, 128, 1024 + 512)
    memory = recipe[2][1]()
    assert (memory.shape, memory.dtype, memory.device) == ((1536,), "uint8", 0)
    assert [one[4] for one in recipe[-1]] == [
        ((ADDRESS, 0, 0), (ADDRESS, 2, 0)),
        ((ADDRESS, 2, 0), (ADDRESS, 2, 1024 + 128)),
        ((ADDRESS, 2, 1024), (ADDRESS, 1, 0)),
    ]


def test_fills_of_adjacent_intermediate_tensors_are_joined():
    a, first, last, result = Tensor((4, 8)), Tensor((8,)), Tensor((150,)), Tensor((8,))
    fixed = Fixed(fills=[(3, fill_of(32)), (2, fill_of(600)), (1, fill_of(32))])
    plan = Plan(fixed, [view(one) for one in (a, first, last, result)]), [one.address for one in (a, first, last, result)]
    recipe = replays.recipe((a,), None, result, recording(plan, outputs=[first, last, result]))
    assert recipe[-1][0][5] == ((1, 0, 32, 1, 32), (2, 0, 512 + 600, 1, 512 + 600))
    apart = (2, 0, 32, 1, 32), (2, 1024, 32, 1, 32)
    assert replays._joined(apart, 2) == apart and replays._joined(((1, 0, 32, 1, 32), (1, 32, 32, 1, 32)), 2) != ((1, 0, 64, 1, 64),)


def fill_of(width):
    return launch.Fill(width, 1, width, (0,), None)


def test_a_result_that_is_a_view_is_returned_as_that_view():
    """The result is a view, with the same bytes, of the tensor that the launch wrote."""
    a, written = Tensor((4, 8)), Tensor((4, 8))
    transposed = Tensor((8, 4), (1, 8), address=written.address)
    recipe = replays.recipe(
        (a,), None, transposed, recording((Plan(Fixed(), [view(a), view(written)]), (a.address, written.address)), outputs=[written])
    )
    assert len(recipe[2]) == 1 and recipe[2][0]().strides == (1, 8)
    smaller = Tensor((2, 8), address=written.address)
    assert replays.recipe((a,), None, smaller, recording((Plan(Fixed(), [view(a), view(written)]), (a.address, written.address)))) is None


def test_launches_on_memory_of_no_tensor_are_not_replayed():
    a, out = Tensor((4, 8)), Tensor((4, 8))
    for address in (a.address - 4, a.address + 4, 4096):
        plan = Plan(Fixed(), [view(a), view(out)])
        assert replays.recipe((a,), out, out, recording((plan, (address, out.address)))) is None


def test_overlapping_tensors_are_ambiguous():
    a, out = Tensor((4, 8)), Tensor((4, 8))
    plan = Plan(Fixed(), [view(a), view(a), view(out)])
    for other in (a, Tensor((4, 8), address=a.address + 124), Tensor((8, 4), (1, 8), address=a.address)):
        with pytest.raises(replays.AmbiguousError):
            replays.recipe((a, other), out, out, recording((plan, (a.address, other.address, out.address))))
    shifted = Tensor((4, 8), address=a.address + 128)
    assert replays.recipe((a, shifted), out, out, recording((plan, (a.address, shifted.address, out.address)))) is not None


def test_more_than_launches_is_not_replayed():
    a, out = Tensor((4, 8)), Tensor((4, 8))
    plan = Plan(Fixed(), [view(a), view(out)])
    record = recording((plan, (a.address, out.address)))
    assert replays.recipe((a,), out, out, record) is not None
    record.is_whole = False
    assert replays.recipe((a,), out, out, record) is None
    assert replays.recipe((a,), out, out, Recording()) is None


def test_recordings_are_of_one_thread_and_nest():
    assert current.recording is None
    note_other_work()
    with recorded() as outer:
        with recorded() as inner:
            note_other_work()
        assert current.recording is outer and outer.is_whole and not inner.is_whole
    assert current.recording is None


# ---------------------------------------------------------------------------------------------- from call to replay


def product(calls, a, b, plan_of, requests):
    """A call with two tensors and one launch."""

    def make(out, a, b):
        requests.append(1)
        result = Tensor((a.shape[0], b.shape[1]))
        if current.recording is not None:
            current.recording.launches.append((plan_of(a, b, result), (a.address, b.address, result.address)))
            current.recording.allocated.append(result)
        return result

    return calls.call(None, None, (a, b), make)


def at_rest(monkeypatch):
    """PyTorch neither traces nor converts."""
    monkeypatch.setattr(sys.modules["torch"], "compiler", types.SimpleNamespace(is_compiling=lambda: False), raising=False)
    monkeypatch.setattr(sys.modules["torch"], "_C", types.SimpleNamespace(_is_any_autocast_enabled=lambda: False), raising=False)


def test_calls_are_recorded_once_and_replayed(module, machine, monkeypatch):
    at_rest(monkeypatch)
    monkeypatch.setattr(replays, "module_here", lambda: module)
    calls, requests = Replays(), []
    machine.parameters = 3

    def plan_of(a, b, c):
        return Plan(Fixed(), [view(a), view(b), view(c)])

    rng = random.Random(5)
    shapes = [(4, 8, 6), (4, 8, 5), (2, 3, 7)]
    for _ in range(30):
        m, k, n = rng.choice(shapes)
        a, b = Tensor((m, k)), Tensor((k, n))
        c = product(calls, a, b, plan_of, requests)
        assert c.shape == (m, n)
        if machine.launches:
            assert machine.launches[-1][4][2] in (c.address, machine.launches[-1][4][2])
    assert len(requests) == 3 and len(machine.launches) == 27
    calls.clear()
    product(calls, Tensor((4, 8)), Tensor((8, 6)), plan_of, requests)
    assert len(requests) == 4


def test_one_tensor_passed_twice_is_recorded_with_other_tensors(module, machine, monkeypatch):
    """The recording uses zeros in separate memory; the caller gets the result for its own tensors."""
    at_rest(monkeypatch)
    monkeypatch.setattr(replays, "module_here", lambda: module)
    calls, requests, seen = Replays(), [], []
    machine.parameters = 3

    def plan_of(a, b, c):
        seen.append((a, b, c))
        return Plan(Fixed(), [view(a), view(b), view(c)])

    a = Tensor((4, 4), (6, 1), dtype="float16", address=(1 << 40) + 8)
    transposed = Tensor((4, 4), (1, 6), dtype="float16", address=a.address)
    first = product(calls, a, transposed, plan_of, requests)
    assert first is seen[0][2] and len(requests) == 2
    first_seen, other, _ = seen[1]
    assert (first_seen.shape, first_seen.strides, other.strides) == ((4, 4), (6, 1), (1, 6)) and {
        first_seen.address % 16,
        other.address % 16,
    } == {8}
    second = product(calls, a, transposed, plan_of, requests)
    assert len(requests) == 2 and machine.launches[-1][4] == [a.address, a.address, second.address]
    apart = Tensor((4, 4), (1, 6), dtype="float16", address=a.address + 4096)
    product(calls, a, apart, plan_of, requests)
    assert len(requests) == 2 and machine.launches[-1][4][:2] == [a.address, apart.address]


def test_one_tensor_twice_in_a_capture_is_not_recorded(module, machine, monkeypatch):
    """The extra call on other tensors would become part of the graph."""
    at_rest(monkeypatch)
    monkeypatch.setattr(sys.modules["torch"], "cuda", types.SimpleNamespace(is_current_stream_capturing=lambda: True))
    monkeypatch.setattr(replays, "module_here", lambda: module)
    calls, requests, a = Replays(), [], Tensor((4, 4))
    for _ in range(2):
        product(calls, a, a, lambda a, b, c: Plan(Fixed(), [view(a), view(b), view(c)]), requests)
    assert len(requests) == 2 and len(calls.again) == 0


def test_a_call_within_a_recorded_call_is_made(module, machine, monkeypatch):
    """The recording of the outer call contains the launches of the inner one."""
    at_rest(monkeypatch)
    inner, calls = Replays(), []
    inner.again = module.Replays()
    a = Tensor((4, 8))
    inner.again.add(None, None, (a,), described(launched(), spans=bytes_of(a)))
    with recorded():
        assert inner.call(None, None, (a,), lambda out, *inputs: calls.append(inputs)) is None
    assert calls == [(a,)] and not machine.launches


def test_without_a_module_calls_are_made(monkeypatch):
    monkeypatch.setattr(replays, "module_here", lambda: None)
    calls = Replays()
    assert calls.call(None, None, (1,), lambda out, one: "made") == "made" and calls.again is None and not calls.tracing()
    calls.clear()


def test_a_call_that_fails_is_not_recorded(module, machine, monkeypatch):
    at_rest(monkeypatch)
    monkeypatch.setattr(replays, "module_here", lambda: module)
    calls, a = Replays(), Tensor((4,))

    def make(out, a):
        raise ArgumentError("no such thing")

    for _ in range(2):
        with pytest.raises(ArgumentError):
            calls.call(None, None, (a,), make)
    assert current.recording is None and len(calls.again) == 0


def test_no_module_without_pytorch_or_a_cache(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    loader = replays._Module()
    assert loader() is None and not loader.is_given_up
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(Tensor=Tensor))
    assert loader() is None and loader.is_given_up


def test_module_is_compiled_in_the_background_and_cached(monkeypatch, tmp_path, module):
    machine = Machine()
    monkeypatch.setenv("FIREIRON_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("FIREIRON_NO_CACHE", raising=False)
    kind = type("Tensor", (), {"__dlpack_c_exchange_api__": machine.capsule})
    fake = types.SimpleNamespace(
        Tensor=kind,
        nn=types.SimpleNamespace(Parameter=Parameter),
        is_grad_enabled=bool,
    )
    monkeypatch.setitem(sys.modules, "torch", fake)
    monkeypatch.setattr(launch, "addresses_of", lambda functions: machine.functions)
    first = replays._Module()
    assert first() is None and not first.is_given_up
    first.wait()
    assert first() is not None and [one.suffix for one in tmp_path.iterdir()] == [".so"]
    second = replays._Module()
    assert second() is not None, "another process finds it"
    monkeypatch.setattr(replays, "COMPILERS", ("no-such-compiler",))
    monkeypatch.setattr(replays, "OPTIONS", (*replays.OPTIONS, "-DOTHER"))
    third = replays._Module()
    assert third() is None and third.is_given_up and "no compiler" in third.why


@pytest.mark.nightly
def test_memory_and_arithmetic_of_the_module():
    """Repeats the tests above under the sanitizers of the C compiler."""
    compiler = built.compiler_among(("gcc",))
    library = subprocess.run([compiler, "-print-file-name=libasan.so"], capture_output=True, text=True).stdout.strip() if compiler else ""
    if not os.path.isabs(library) or "SANITIZED" in os.environ:
        pytest.skip("no sanitizers of gcc, or they are at work")
    options = "-fsanitize=address,undefined -fno-sanitize-recover=all -g"
    watched = {"LD_PRELOAD": library, "ASAN_OPTIONS": "detect_leaks=0", "PYTHONMALLOC": "malloc", "SANITIZED": options}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:cov", __file__]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **watched})
    assert done.returncode == 0 and "passed" in done.stdout, (done.stdout + done.stderr)[-3000:]
