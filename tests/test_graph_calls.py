"""Prepared kernel graphs on a simulated driver, and kernel graphs as operators of PyTorch."""

import types

import attrs
import fake_gpu
import numpy as np
import pytest
from fake_gpu import FakeGpu, installed
from graph_examples import chain, elementwise
from test_launch import addresses

from fireiron import *
from fireiron.errors import ArgumentError, LaunchError
from fireiron.gpu.interface import Interface, undetermined

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
    for strategy in (elementwise(n, scale="Z[n] = Y[n] * f"), elementwise(90, square="Y[n] = X[n] * X[n]")):
        alone, program = strategy.program("sm_90"), KernelGraph("alone", {"one": strategy}).program("sm_90")
        assert interface_of(alone) == interface_of(program)
        for name in (*alone.inputs, *alone.outputs):
            assert alone.shape(name) == program.shape(name) and alone.stored(name).array == program.stored(name).array
            assert dict(alone.symbols_for(name, {"n": 3})) == dict(program.symbols_for(name, {"n": 3}))


def test_sizes_that_no_argument_determines():
    ramp = Fused(name="ramp", dims="n", operands={"a": "", "Y": "n"}, body={"y": "Y[n] = a * n"})
    strategy = ramp.tile(n=32).to(Block).tile(n=1).to(Thread).done()(ramp(n=sym("n"), dtype=float32))
    both = elementwise(sym("n"), both="Z[n] = Y[n] + Y[n]")
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
        (elementwise(100, d="Z[n] = W[n] * X[n]"), "the gradient reads W, which the operator does not have"),
        (elementwise(100, d="Y[n] = X[n] * 2"), "the gradient writes Y, which is no gradient of an input"),
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
