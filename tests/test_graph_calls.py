"""Prepared kernel graphs on a simulated driver, and kernel graphs as operators of PyTorch."""

import types

import attrs
import fake_gpu
import numpy as np
import pytest
from fake_gpu import FakeGpu, installed
from graph_examples import chain, of_elements
from test_launch import addresses

from fireiron import *
from fireiron.errors import ArgumentError, LaunchError
from fireiron.gpu import launch, replays, torch_operator
from fireiron.gpu.interface import Interface, undetermined
from fireiron.recorder import recorded

torch, jax = fake_gpu.torch, fake_gpu.jax


def matrices(text, names, m=4, dependent=False):
    """A kernel of one thread per element of matrices."""
    start = Fused(name="work", dims="m n", operands=dict.fromkeys(names, "m n"), body={"work": text})
    blocks = start.tile(m=1, n=32).to(Block)
    blocks = blocks.programmatic_launch() if dependent else blocks
    return blocks.tile(m=1, n=1).to(Thread).done()(start(m=m, n=30, dtype=float32))


def on_fake_gpu(graph):
    """The compiled graph, with fake machine code."""
    call = graph.compile("sm_90")
    for kernel in call.kernels:
        kernel.__dict__["compiled"] = types.SimpleNamespace(cubin=b"\x7fELF")
    return call


@pytest.fixture
def gpu(monkeypatch):
    return installed(monkeypatch, FakeGpu(parameters=2))


def twice(m=4, dependent=False):
    square = matrices("Y[m,n] = X[m,n] * X[m,n]", "XY", m)
    second = matrices("Y[m,n] = X[m,n] * X[m,n]", "XY", m, dependent)
    return KernelGraph("twice", {"one": square, "two": second}, {"two.X": "one.Y"})


def test_prepared_graphs_keep_their_workspaces(gpu):
    call = on_fake_gpu(twice())
    x, y = gpu.array((4, 30)), gpu.array((4, 30))
    prepared = call.prepare(x, out=y)
    assert not gpu.launches, "preparation launches nothing"
    stream = gpu.cupy.cuda.Stream()
    assert prepared() is y and prepared(stream=stream) is y
    (a, workspace), (b, result), *again = (launch[-1] for launch in gpu.launches)
    assert [a, result] == addresses(x, y) and workspace == b and again == [[a, workspace], [b, result]]
    assert [launch[4] for launch in gpu.launches][2:] == [stream.ptr] * 2
    assert repr(prepared) == "<prepared graph twice of 2 kernels>"


def test_prepared_graphs_on_other_arrays(gpu):
    prepared = on_fake_gpu(twice()).prepare(gpu.array((4, 30)))
    x, y = gpu.array((4, 30)), gpu.array((4, 30))
    result = prepared.out
    assert prepared(x) is result and prepared(x, out=y) is y
    (a, workspace), (_, first), (_, again), (_, second) = (launch[-1] for launch in gpu.launches)
    assert [a, first, second] == addresses(x, result, y) and workspace == again
    with pytest.raises(ArgumentError, match="2 arrays given, twice was prepared for 1"):
        prepared(x, y)
    with pytest.raises(ArgumentError, match="differs from the array that the launch was prepared for") as info:
        prepared(gpu.array((5, 30)))
    assert info.value.within == "the kernel one of twice"


def test_a_dimension_of_one_element_may_have_any_stride(gpu):
    """Libraries give such a dimension any stride, which is no other signature."""
    call = on_fake_gpu(twice(m=1))
    x, strided = gpu.array((1, 30)), gpu.array((1, 30), ld=64)
    prepared = call.prepare(x)
    assert x.strides != strided.strides
    prepared(strided, out=gpu.array((1, 30), ld=48))
    call(strided)
    assert len(gpu.launches) == 4


def test_prepared_results_do_not_overlap_later_arguments(gpu):
    kernels = {"one": matrices("Y[m,n] = X[m,n] * X[m,n]", "XY"), "two": matrices("Z[m,n] = Y[m,n] + X[m,n]", "YXZ")}
    call = on_fake_gpu(KernelGraph("apart", kernels, {"two.Y": "one.Y"}, outputs=("one.Y", "two.Z")))
    x, y, z = (gpu.array((4, 30)) for _ in range(3))
    with pytest.raises(LaunchError, match=r"Y overlaps two.X in memory"):
        call.prepare(x, y, out=(y, z))
    prepared = call.prepare(x, y)
    with pytest.raises(LaunchError, match="overlaps"):
        prepared(x, y, out=(y, z))
    assert not gpu.launches


def test_arrays_in_host_memory_are_not_prepared(gpu):
    with pytest.raises(ArgumentError, match="a prepared launch requires arrays on a GPU"):
        on_fake_gpu(twice()).prepare(np.ones((4, 30), np.float32))


def test_dependent_kernels_are_launched_with_the_attribute(gpu):
    """The second kernel starts while the first one ends."""
    prepared = on_fake_gpu(twice(dependent=True)).prepare(gpu.array((4, 30)))
    prepared()
    kinds = [step[0] for step in gpu.done if step[0] in ("launch", "attributes")]
    assert kinds.count("launch") == 2 and len(kinds) > 2, kinds


def test_a_call_with_given_results_is_replayed(gpu, torch, monkeypatch):
    """The first kernel writes a given result and a workspace, which a replay allocates."""
    monkeypatch.setattr(launch, "context_of", lambda device: 77)
    gpu.parameters = 3
    start = Fused(
        name="both",
        dims="m n",
        operands=dict.fromkeys("XYZ", "m n"),
        body={"y": "Y[m,n] = X[m,n] * X[m,n]", "z": "Z[m,n] = X[m,n] + X[m,n]"},
    )
    both = start.tile(m=1, n=32).to(Block).tile(m=1, n=1).to(Thread).done()(start(m=4, n=30, dtype=float32))
    sum_of = matrices("Z[m,n] = X[m,n] + Y[m,n]", "XYZ")
    kernels, connect = {"one": both, "two": sum_of}, {"two.X": "one.Y"}
    call = on_fake_gpu(KernelGraph("results", kernels, connect, ("one.Z", "two.Z")))
    x, y, first, second = (torch.Tensor((4, 30), (30, 1), torch.float32) for _ in range(4))
    with recorded() as recording:
        assert call(x, y, out=(first, second)) == (first, second)
    recipe = replays.recipe((x, y), (first, second), (first, second), recording)
    (_, workspace, result), (read, *_) = (one[-1] for one in gpu.launches)
    assert workspace == read and result == first.data_ptr(), "the workspace is new, the result given"
    assert recipe is not None and len(recipe[2]) == 1, "a replay allocates the workspace"


# ---------------------------------------------------------------------------------------------- the interface


def interface_of(program: Interface):
    return (
        program.inputs,
        program.outputs,
        list(program.numbers),
        [size.name for size in program.sizes],
        program.adds_to,
        undetermined(program),
    )


def test_a_graph_of_one_kernel_has_the_interface_of_its_kernel():
    n = sym("n")
    for strategy in (of_elements(n, scale="Z[n] = Y[n] * f"), of_elements(90, square="Y[n] = X[n] * X[n]")):
        alone, program = strategy.program("sm_90"), KernelGraph("alone", {"one": strategy}).program("sm_90")
        assert interface_of(alone) == interface_of(program)
        for name in (*alone.inputs, *alone.outputs):
            assert alone.shape(name) == program.shape(name) and alone.stored(name).array == program.stored(name).array
            assert dict(alone.symbols_for(name, {"n": 3})) == dict(program.symbols_for(name, {"n": 3}))


def test_sizes_that_no_argument_determines():
    ramp = Fused(name="ramp", dims="n", operands={"a": "", "Y": "n"}, body={"y": "Y[n] = a * n"})
    strategy = ramp.tile(n=32).to(Block).tile(n=1).to(Thread).done()(ramp(n=sym("n"), dtype=float32))
    both = of_elements(sym("n"), both="Z[n] = Y[n] + Y[n]")
    kernels, connect = {"ramp": strategy, "both": both}, {"both.Y": "ramp.Y"}
    with pytest.raises(DecompositionError, match="ramp reads no array, so no argument determines the GPU of its workspace Y"):
        KernelGraph("ramps", kernels, connect)
    call = KernelGraph("ramps", kernels, connect, ("both.Z", "ramp.Y")).compile("sm_90")
    z, y = (np.empty(5, np.float32) for _ in range(2))
    assert call.undetermined == ("n",) and call(2.0, out=(z, y), n=5)[0] is z and list(z) == [0, 4, 8, 12, 16]


def test_added_outputs():
    tiles = MatMul.tile(8, 8).to(Block).tile(1, 1).to(Thread).split(1).done()
    graph = KernelGraph("adds", {"mm": tiles(MatMul(8, 8, 8, accumulate=True)(GL, GL, GL)(Kernel))})
    assert graph.program("sm_90").adds_to == ("C",)
    with pytest.raises(ArgumentError, match="the kernel adds to C"):
        graph.compile("sm_90").as_torch_op("fireiron_tests::adds")


@pytest.mark.parametrize(
    ("gradient", "message"),
    [
        (of_elements(100, d="Z[n] = W[n] * X[n]"), "the gradient reads W, which the operator does not have"),
        (of_elements(100, d="Y[n] = X[n] * 2"), "the gradient writes Y, which is no gradient of an input"),
    ],
)
def test_refused_gradients(gradient, message):
    call = chain().compile("sm_90")
    with pytest.raises(ArgumentError, match=message):
        call.as_torch_op("fireiron_tests::chain", gradient=gradient.compile("sm_90"))
    with pytest.raises(ArgumentError, match="has no gradient"):
        call.as_torch_op("fireiron_tests::chain", into=True, gradient=gradient.compile("sm_90"))
    with pytest.raises(ArgumentError, match="the name of an operator"):
        call.as_torch_op("chain")
    assert attrs.evolve(chain(), name="other").compile("sm_90").program.name == "other"


# ---------------------------------------------------------------------------------------------- gradients


class Tensor(np.ndarray):
    """A NumPy array with the methods of a tensor that operators use."""

    def stride(self):
        return tuple(step // self.itemsize for step in self.strides)

    def new_empty_strided(self, shape, strides, dtype=None):
        span = 1 + sum((size - 1) * step for size, step in zip(shape, strides, strict=True))
        steps = [step * self.itemsize for step in strides]
        return np.ndarray(tuple(shape), self.dtype, np.zeros(span, self.dtype), strides=steps).view(Tensor)

    def copy_(self, other):
        self[...] = other
        return self


def tensor(array):
    return np.asarray(array, np.float32).view(Tensor)


class Kept(types.SimpleNamespace):
    """The context of autograd."""

    def save_for_backward(self, *tensors):
        self.saved_tensors = tensors


GRADIENT = Fused(
    name="gradient", dims="n", operands={"X": "n", "dZ": "n", "f": "", "dX": "n"}, body={"d": "dX[n] = (2 * X[n] + f) * dZ[n]"}
)


def scaled(n):
    """`Z = X * X + f * X`, and its gradient."""
    square = of_elements(n, square="Y[n] = X[n] * X[n]")
    shift = of_elements(n, shift="Z[n] = Y[n] + X[n] * f")
    graph = KernelGraph("scaled", {"square": square, "shift": shift}, {"shift.Y": "square.Y", "shift.X": "square.X"})
    return graph, GRADIENT.tile(n=32).to(Block).tile(n=1).to(Thread).done()(GRADIENT(n=n, dtype=float32))


@pytest.fixture
def differentiated(monkeypatch):
    """The operator and the gradient of a graph, with calls of the gradient in the simulator."""
    graph, backward = scaled(sym("n"))
    operator = torch_operator._Operator(graph.compile("sm_90"))
    gradient = torch_operator._Gradient(operator, backward.compile("sm_90"), "fireiron_tests::scaled_backward")
    monkeypatch.setattr(torch_operator, "_registered", lambda name: gradient.backward.run)
    return operator, gradient


def test_schema(differentiated):
    operator, gradient = differentiated
    assert operator.arguments == ["Tensor X", "float f"] and operator.labels(operator.outputs) == ["Z"]
    assert gradient.backward.arguments == ["Tensor X", "Tensor dZ", "float f"]
    apart = KernelGraph("apart", dict(scaled(90)[0].kernels), {"shift.Y": "square.Y"}).compile("sm_90")
    assert torch_operator._Operator(apart).arguments == ["Tensor square_X", "Tensor shift_X", "float f"]


def test_gradients_by_another_kernel(differentiated):
    """Saved tensors, numbers, and an incoming gradient that repeats one number."""
    operator, gradient = differentiated
    x, ctx = tensor([1, 2, 3, -1]), Kept(needs_input_grad=(True, False))
    z = operator.run(x, 0.5)
    np.testing.assert_array_equal(z, x * x + 0.5 * x)
    gradient.keep(ctx, (x, 0.5), z)
    assert ctx.kept == ["X"] and ctx.numbers == {"f": 0.5} and ctx.sizes == {"n": 4}
    for incoming in (tensor([1, 1, 1, 1]), np.broadcast_to(np.float32(1), 4).view(Tensor)):
        dx, df = gradient.differentiate(ctx, incoming)
        np.testing.assert_array_equal(dx, 2 * x + 0.5)
        assert df is None


def test_a_missing_gradient_is_an_error():
    graph, _ = scaled(90)
    shift = KernelGraph("apart", dict(graph.kernels), {"shift.Y": "square.Y"}).compile("sm_90")
    backward = Fused(name="backward", dims="n", operands={"dZ": "n", "dshift_X": "n"}, body={"d": "dshift_X[n] = dZ[n]"})
    strategy = backward.tile(n=32).to(Block).tile(n=1).to(Thread).done()(backward(n=90, dtype=float32))
    gradient = torch_operator._Gradient(torch_operator._Operator(shift), strategy.compile("sm_90"), "fireiron_tests::apart_backward")
    ctx = Kept(needs_input_grad=(True, True, False), kept=[], saved_tensors=(), numbers={}, sizes={})
    with pytest.raises(ArgumentError, match=r"no output dsquare\.X, and square\.X requires a gradient"):
        gradient.differentiate(ctx, tensor(np.ones(90)))


def test_shapes_of_a_traced_call(differentiated, monkeypatch):
    operator, _ = differentiated
    monkeypatch.setattr(torch_operator._Operator, "_check_type", lambda self, name, given: None)
    assert operator.known({"X": tensor(np.ones(7))}, {}) == {"n": 7}
    assert operator.strides("Z", {"n": 7}) == ([7], [1])
    with pytest.raises(ArgumentError, match="X has 2 dimensions"):
        operator.known({"X": tensor(np.ones((7, 1)))}, {})


# ---------------------------------------------------------------------------------------------- JAX


def test_a_call_that_jax_traces_is_a_call_of_each_kernel(gpu, jax, monkeypatch):
    """The workspaces are values of the traced program; the results come from the last kernel."""

    class Traced(jax.core.Tracer):
        def __init__(self, name):
            self.name = name

        shape, dtype = (4, 30), np.dtype("float32")

    calls = []

    def traced_call(kernel, arrays, out, stream, sizes):
        assert out is None and stream is None
        calls.append((kernel.program.name, [array.name for array in arrays], dict(sizes)))
        return Traced(f"result of {kernel.program.name}")

    monkeypatch.setattr("fireiron.gpu.jax_calls.traced_call", traced_call)
    kernels = {"one": matrices("Y[m,n] = X[m,n] * X[m,n]", "XY"), "two": matrices("Z[m,n] = Y[m,n] + X[m,n]", "YXZ")}
    call = KernelGraph("traced", kernels, {"two.Y": "one.Y", "two.X": "one.X"}).compile("sm_90")
    assert call(Traced("x")).name == "result of traced_two"
    assert calls == [("traced_one", ["x"], {}), ("traced_two", ["result of traced_one", "x"], {})]
