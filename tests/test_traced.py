"""Kernels of traced calls: they are chosen and compiled in a thread while `torch.compile` traces, and the launch finds them."""

import sys
import threading
import types

import numpy as np
import pytest

from fireiron import attention, function, matmul, operators
from fireiron.errors import ArgumentError
from fireiron.front import place, traced
from fireiron.front.call import Request
from fireiron.gpu import early, launch
from fireiron.gpu.kernel import CompiledKernel

as_strided = np.lib.stride_tricks.as_strided


class Meta:
    """A tensor without memory, as far as it is used; the elements of `array` are its indices."""

    __module__, _base = "torch", None

    def __init__(self, array, base=None):
        self.array, self._base = array, base
        self.shape, self.dtype = array.shape, "torch.float16"

    def stride(self):
        return tuple(step // self.array.itemsize for step in self.array.strides)

    def of(self, array):
        return type(self)(array, self)

    new_empty = lambda self, shape, dtype=None: type(self)(empty(shape).array)
    clone = lambda self, memory_format=None: type(self)(empty(self.shape).array)
    as_strided = lambda self, shape, steps: self.of(as_strided(self.array, shape, [step * self.array.itemsize for step in steps]))
    view = reshape = lambda self, *shape: self.of(self.array.reshape(*shape))
    storage_offset = lambda self: int(self.array.flat[0])
    element_size = lambda self: 2
    T = property(lambda self: self.of(self.array.T))
    __getitem__ = lambda self, index: self.of(self.array[index])


def empty(shape, strides=None, dtype=None, device="meta"):
    array = np.arange(np.prod(shape) * 4).reshape(-1)
    steps = np.cumprod([1, *shape[:0:-1]])[::-1] if strides is None else strides
    return Meta(as_strided(array, shape, [int(step) * array.itemsize for step in steps]))


def tensor(*shape, strides=None, offset=0, device="cuda", index=0):
    """A traced tensor."""
    meta = empty([64 if isinstance(size, Symbol) else size for size in shape], strides)
    kind = types.SimpleNamespace(type=device, index=index)
    fields = {"shape": shape, "stride": meta.stride, "storage_offset": lambda: offset, "dtype": meta.dtype, "device": kind}
    return types.SimpleNamespace(**fields, is_cuda=device == "cuda")


class Symbol(int):
    """A size that is known only when the operator runs."""


class Launched(Meta):
    """A tensor with memory on a GPU."""

    __module__, is_cuda, get_device = "torch", True, lambda self: 0
    data_ptr = lambda self: 0x4000 + 2 * self.storage_offset()


@pytest.fixture
def torch(monkeypatch):
    """A PyTorch that compiles while `context` is not None, on a machine with a GPU, without its compiler."""
    module = types.ModuleType("torch")
    module.context, module.exporting, module.empty_strided, module.float16 = object(), False, empty, "torch.float16"
    module.contiguous_format = None
    module._guards = types.SimpleNamespace(TracingContext=types.SimpleNamespace(try_get=lambda: module.context))
    module.compiler = types.SimpleNamespace(is_exporting=lambda: module.exporting, is_compiling=lambda: False)
    monkeypatch.setitem(sys.modules, "torch", module)
    monkeypatch.setattr(place, "target_of", lambda device: "sm_80")
    monkeypatch.setattr(place, "gpu_name", lambda device: "NVIDIA H200")
    monkeypatch.setattr(launch, "gpu_available", lambda: False)
    monkeypatch.setattr(early, "prove", lambda *programs: [program.ir for program in programs])
    begun = []
    monkeypatch.setattr(CompiledKernel, "begin", lambda self: begun.append((threading.current_thread(), self)))
    module.begun = begun
    for call in (matmul, attention):
        call.clear()
    yield module
    for call in (matmul, attention):
        call.clear()


def begin(call, *arguments, **options):
    traced.begin(lambda *known: call.begin(sys.modules[type(call).__module__].request(*known, **options)), arguments)
    traced.queue.wait()


CASES = [
    (matmul, ((48, 32), (32, 40))),
    (matmul, ((3, 8, 32), (32, 40))),
    (matmul, ((2, 1, 8, 32), (3, 32, 8))),
    (attention, ((2, 32, 16), (2, 32, 16), (2, 32, 16))),
]


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("call", "shapes"), CASES, ids=lambda value: type(value).__name__ if callable(value) else str(value))
def test_launch_finds_the_kernel(torch, call, shapes):
    """The kernel is chosen in the thread, for the properties that the launch reads."""
    begin(call, *(tensor(*shape) for shape in shapes))
    ((thread, kernel),) = torch.begun
    assert thread is not threading.current_thread() and thread.name == "fireiron: kernels of traced calls"
    assert call.kernel(*(Launched(empty(shape).array) for shape in shapes)) is kernel


def test_views_are_described(torch):
    """Strides and the alignment of a view select the kernel; memory that must be copied is described as its copy."""
    a, b = tensor(48, 32, strides=(96, 1), offset=4), tensor(32, 40, strides=(80, 2))
    begin(matmul, a, b)
    ((_, kernel),) = torch.begun  # of A in place and a copy of B
    launched = Launched(empty((48, 36), (96, 1)).array[:, 4:]), Launched(empty((32, 40), (80, 2)).array)
    assert matmul.kernel(*launched) is kernel and kernel.program.spec.operands["A"].tensor.align == 8


def test_function(torch):
    """A function flattens leading dimensions of descriptions, too."""
    softmax = function("softmax")
    softmax.clear()
    traced.begin(lambda x: softmax.begin(Request((x,), None, None)), [tensor(2, 3, 64)])
    traced.queue.wait()
    ((_, kernel),) = torch.begun
    assert softmax.kernel(Launched(empty((2, 3, 64)).array)) is kernel
    softmax.clear()


@pytest.mark.parametrize(
    "change",
    [
        lambda torch: setattr(torch, "context", None),
        lambda torch: setattr(torch, "exporting", True),
        lambda torch: delattr(torch, "_guards"),
    ],
)
def test_only_while_compiling(torch, change):
    change(torch)
    begin(matmul, tensor(48, 32), tensor(32, 40))
    assert not torch.begun and not matmul.answers.entries


@pytest.mark.parametrize("other", [tensor(Symbol(32), 40), tensor(32, 40, device="meta"), tensor(32, 40, index=None), object()])
def test_only_known_sizes_on_a_gpu(torch, other):
    begin(matmul, tensor(48, 32), other)
    assert not torch.begun and not matmul.answers.entries


def test_errors_are_those_of_the_launch(torch):
    """The thread reports no error and continues; the launch raises it."""
    seen = []
    traced.queue.add(lambda: 1 / 0)
    begin(matmul, tensor(48, 32), tensor(31, 40))
    traced.queue.add(lambda: seen.append(threading.current_thread().name))
    traced.queue.wait()
    assert seen and not torch.begun
    with pytest.raises(ArgumentError, match="a has 32 columns, but b has 31 rows"):
        matmul.kernel(Launched(empty((48, 32)).array), Launched(empty((31, 40)).array))


def test_tasks_are_discarded_after_the_main_thread(torch, monkeypatch):
    """A process that ends does not wait for kernels that nothing will launch."""
    gate, seen = threading.Event(), []
    traced.queue.add(gate.wait)
    traced.queue.add(lambda: seen.append(1))
    monkeypatch.setattr(threading, "main_thread", lambda: types.SimpleNamespace(is_alive=lambda: False))
    gate.set()
    traced.queue.wait()
    assert not seen


def test_tracing_does_not_wait_for_kernels(torch):
    """Tracing registers operators, which must not wait for a kernel that the thread compiles under the lock of its call."""
    assert operators.registering is not matmul.lock and operators.registering is not attention.lock


# ---------------------------------------------------------------------------------------------- PyTorch itself


def test_operators_begin_while_torch_compile_traces(monkeypatch):
    real = pytest.importorskip("torch", reason="needs PyTorch")
    seen = []
    monkeypatch.setattr(operators, "SERVED", ("cpu", "cuda", "meta"))
    of = lambda one: traced._Traced(tuple(one.shape), one.stride(), one.dtype, 0, one.storage_offset())
    monkeypatch.setattr(traced, "_traced", of)
    name = "fireiron_test::traced_once"
    text = lambda one: f"{type(one._meta).__name__} {tuple(one.shape)} at {one.data_ptr()}"
    begin = lambda *arguments: traced.begin(lambda a, more, x: seen.append(f"{text(a)}, {text(*more)}, {x}"), arguments)
    schema = "(Tensor a, Tensor[] more, float x) -> Tensor"
    run = lambda a, more, x: a + x
    operator = operators.define(name, schema, run, lambda a, more, x: a.new_empty(a.shape), begin=begin)
    operator.register_kernel("cpu")(run)
    call = lambda a: real.ops.fireiron_test.traced_once(a + 1, [a[1:]], 0.5)
    a = real.zeros(4, 3)
    call(a)
    traced.queue.wait()
    assert not seen, "an eager call begins nothing"
    real._dynamo.reset()
    real.testing.assert_close(real.compile(call, backend="aot_eager", fullgraph=True)(a), a + 1.5)
    traced.queue.wait()
    assert set(seen) == {"Tensor (4, 3) at 0, Tensor (3, 3) at 12, 0.5"}, "not traced tensors, because the thread does not trace"
    seen.clear()
    real.export.export(type("Block", (real.nn.Module,), {"forward": lambda self, a: call(a)})(), (a,))
    traced.queue.wait()
    assert not seen, "an exported program may run elsewhere"


def test_descriptions_behave_as_tensors():
    real = pytest.importorskip("torch", reason="needs PyTorch")
    data = real.arange(4096, dtype=real.float16)
    own = traced.Described(real.empty_strided((6, 8, 10), (100, 10, 1), dtype=real.float16, device="meta"), 0, 24)
    other = data.as_strided((6, 8, 10), (100, 10, 1), 24)
    for change in (
        lambda x: x,
        lambda x: x.as_strided((8, 6), (10, 100)),
        lambda x: x[2],
        lambda x: x[1].T,
        lambda x: x[None],
        lambda x: x.reshape(48, -1),
        lambda x: x.reshape(6, -1),
        lambda x: x.view(6, 80),
        lambda x: x.clone(memory_format=real.contiguous_format)[3],
        lambda x: x.new_empty((3, 5), dtype=real.float32),
        lambda x: x[..., :4].zero_().copy_(x[..., :4]),
    ):
        described, tensor = change(own), change(other)
        assert (described.shape, described.stride(), described.dtype) == (tensor.shape, tensor.stride(), tensor.dtype)
        if tensor.untyped_storage().data_ptr() == data.untyped_storage().data_ptr():
            assert described.data_ptr() == tensor.data_ptr() - data.data_ptr()
    assert described.is_cuda and described.get_device() == 0
