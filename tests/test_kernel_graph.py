"""`KernelGraph`: several kernels as one program. Which graphs are refused, calls in the simulator and on a fake GPU, storage."""

import json
import pickle
import types

import attrs
import fake_gpu
import numpy as np
import pytest
from fake_gpu import FakeGpu, installed
from ringed import float16_gemm, product
from test_launch import addresses

from fireiron import *
from fireiron.errors import ArgumentError, DecompositionError, LaunchError, StoreError
from fireiron.strategies import attention_combine, attention_decode

torch, jax = fake_gpu.torch, fake_gpu.jax
COPY = Move.tile(8, 8).to(Block).tile(1, 1).to(Thread).done()


def elementwise(size=100, types=None, **texts):
    """A kernel of one thread per element; `texts` are its formulas by name, in which `x[n]` are its operands in capital letters."""
    text = " ".join(texts.values())
    names = dict.fromkeys(name for name in "ABCXYZ" if f"{name}[n]" in text)
    start = Fused(name="work", dims="n", operands={**dict.fromkeys(names, "n"), **({"f": ""} if " f" in text else {})}, body=texts)
    return start.tile(n=32).to(Block).tile(n=1).to(Thread).done()(start(n=size, dtype=float32, types=types or {}))


SQUARE = elementwise(square="Y[n] = X[n] * X[n]")
SHIFT = elementwise(shift="Z[n] = Y[n] + X[n]")
TWO = elementwise(sum="A[n] = X[n] + 1", other="B[n] = X[n] * 2")
BOTH = KernelGraph("both", {"square": SQUARE, "shift": SHIFT}, {"shift.Y": "square.Y", "shift.X": "square.X"})


def inputs(*counts, seed=1):
    return [np.random.default_rng(seed + place).integers(-8, 8, count).astype(np.float32) for place, count in enumerate(counts)]


def decode(rows=4, keys=70, d=16, size=32):
    """Attention of few queries as one program."""
    split, combine = attention_decode.spec(rows, keys, d, size=size), attention_combine.spec(rows, -(-keys // size), d)
    parts = attention_decode.by_parts(split.starter).with_(**attention_decode.values(split))
    columns = attention_combine.strategy.with_(**attention_combine.values(combine))
    return KernelGraph("decode", {"split": parts(split), "combine": columns(combine)}, {"combine": "split"})


def windows():
    """A graph whose second kernel reads windows of the first one's result."""
    shift = Fused(name="shift", dims="c h", operands={"X": "c h", "S": "c h"}, body={"shift": "S[c,h] = X[c,h] + 1"})
    pool = Fused(
        name="pool", dims="c p r h", operands={"S": "c h", "rows": "c", "Y": "c p"},
        body={"sum": "t[c,p] = sum(r, S[c,p*2 + r - 1])", "y": "Y[c,p] = t[c,p] + rows[c]"},
    )  # fmt: skip
    first = shift.tile(c=2, h=8).to(Block).tile(c=1, h=1).to(Thread).done()(shift(c=3, h=10, dtype=float32))
    second = pool.tile(c=2, p=4).to(Block).tile(c=1, p=1).to(Thread).done()
    return KernelGraph(
        "windows", {"shift": first, "pool": second(pool(c=3, p=5, r=3, h=10, dtype=float32, types={"rows": int32}))}, {"pool.S": "shift.S"}
    )


# ---------------------------------------------------------------------------------------------- the value


def test_arguments_results_and_workspaces():
    assert (BOTH.inputs, BOTH.outputs, BOTH.workspaces) == (("square.X",), ("shift.Z",), ("square.Y",))
    assert str(BOTH).splitlines()[0] == "both(X) -> Z" and str(BOTH).endswith("X, Y -> Z")
    apart = KernelGraph("apart", {"square": SQUARE, "shift": SHIFT}, {"shift.Y": "square.Y"})
    assert apart.inputs == ("square.X", "shift.X") and str(apart).startswith("apart(square.X, shift.X) -> Z")
    both = attrs.evolve(BOTH, outputs=("shift.Z", "square.Y"))
    assert both.outputs == ("shift.Z", "square.Y") and both.workspaces == ()
    assert BOTH["shift"] == SHIFT


def test_kernels_connect_the_operands_of_the_same_name():
    graph = decode()
    assert dict(graph.connect) == {f"combine.{name}": f"split.{name}" for name in "PTS"}
    assert str(graph).startswith("decode(Q, K, V, scale) -> O")
    short = KernelGraph("both", dict(BOTH.kernels), {"shift": "square", "shift.X": "square.X"})
    assert short.inputs == BOTH.inputs and dict(short.connect) == dict(BOTH.connect)


def test_equality_repr_json_and_pickle():
    named = attrs.evolve(BOTH, outputs=("square.Y", "shift.Z"))
    for graph in (BOTH, named, decode()):
        for same in (eval(repr(graph)), KernelGraph.from_json(graph.to_json()), pickle.loads(pickle.dumps(graph))):
            assert same == graph and hash(same) == hash(graph) and (same.inputs, same.outputs) == (graph.inputs, graph.outputs)
    assert named != BOTH and attrs.evolve(BOTH, name="other") != BOTH
    assert attrs.evolve(BOTH, outputs=("shift.Z",)) == BOTH
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        BOTH.name = "other"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda fields: fields.pop("outputs"), "the field 'outputs' is missing"),
        (lambda fields: fields.update(extra=1), "the field 'extra' is unknown"),
        (lambda fields: fields.update(connect=[]), "the field 'connect' has a wrong type"),
        (lambda fields: fields["connect"].update({"shift.Y": "square.Q"}), "square has no operand Q"),
        (lambda fields: fields["kernels"].update(shift=3), "not a stored strategy"),
    ],
)
def test_edited_json(change, message):
    document = json.loads(BOTH.to_json())
    change(document["kernel graph"])
    with pytest.raises(StoreError, match=message):
        KernelGraph.from_json(json.dumps(document))


# ---------------------------------------------------------------------------------------------- refusals


HALF = elementwise(types={"Y": float16}, square="Y[n] = X[n] * X[n]")
SHORT = elementwise(size=96, square="Y[n] = X[n] * X[n]")
PAIR = {"square": SQUARE, "shift": SHIFT}
TILES = MatMul.tile(8, 8).to(Block).tile(1, 1).to(Thread).split(1).done()


def gemm(**options):
    return TILES(MatMul(8, 8, 8, **options)(GL, GL, GL)(Kernel))


@pytest.mark.parametrize(
    ("kernels", "connect", "outputs", "error", "message"),
    [
        (PAIR, {"shft.Y": "square.Y"}, (), ArgumentError, "the graph has no kernel shft"),
        (PAIR, {"shift.Q": "square.Y"}, (), ArgumentError, "shift has no operand Q"),
        (PAIR, {"shift.Y": 3}, (), ArgumentError, "not the name of an operand"),
        (PAIR, {"shift.Y": "square"}, (), ArgumentError, "shift.Y is an operand, and square is a kernel"),
        (PAIR, {"square": "shift"}, (), ArgumentError, "no input of square has the name of an output of shift"),
        (PAIR, {"shift.Z": "square.Y"}, (), ArgumentError, "two kernels would write square.Y"),
        (PAIR, (("shift.Y", "square.Y"), ("shift.Y", "square.X")), (), ArgumentError, "shift.Y is connected twice"),
        (PAIR, {"square.X": "shift.Z"}, (), ArgumentError, "square.X reads shift.Z, but shift is after square"),
        (PAIR, {"square.X": "shift.Z", "shift.Y": "square.Y"}, (), ArgumentError, "the kernels depend on each other"),
        (PAIR, {"square.X": "square.Y"}, (), ArgumentError, "belong to one kernel"),
        ({**PAIR, "square": HALF}, {"shift.Y": "square.Y"}, (), DecompositionError, "different element types"),
        ({**PAIR, "square": SHORT}, {"shift.Y": "square.Y"}, (), DecompositionError, "different shapes"),
        ({"one": gemm(), "two": gemm(A=RowMajor)}, {"two.A": "one.C"}, (), DecompositionError, "different storage"),
        (
            {"square": SQUARE, "scale": elementwise(scale="Z[n] = Y[n] * f")},
            {"scale.f": "square.Y"}, (), DecompositionError, "passed differently",
        ),
        (PAIR, {"shift.Y": "square.Y"}, ("square.X",), ArgumentError, "not an output of a kernel"),
        (PAIR, {"shift.Y": "square.Y"}, ("shift.Z", "shift.Z"), ArgumentError, "named twice"),
        (PAIR, {"shift.Y": "square.Y"}, "shift.Z", ArgumentError, "not a tuple of operands"),
        (PAIR, {}, ("shift.Z",), ArgumentError, "nothing uses the results of square"),
        ({"one": gemm(accumulate=True), "two": gemm()}, {"two.A": "one.C"}, (), DecompositionError, "one adds to C"),
        ({}, {}, (), ArgumentError, "no kernels"),
        ({"a-b": SQUARE}, {}, (), ArgumentError, "must be an identifier"),
        ((("one", SQUARE), ("one", SQUARE)), {}, (), ArgumentError, "two kernels are called one"),
        ({"one": TILES}, {}, (), ArgumentError, "not a bound strategy"),
        ({"one": SQUARE.spec}, {}, (), ArgumentError, "not a bound strategy"),
        ({"one": Move.tile(1, 1)(Move(8, 8)(GL, SH)(Block))}, {}, (), ArgumentError, "not a whole kernel"),
        ([SQUARE], {}, (), ArgumentError, "not a mapping"),
    ],
)  # fmt: skip
def test_refused_graphs(kernels, connect, outputs, error, message):
    with pytest.raises(error, match=message) as info:
        KernelGraph("graph", kernels, connect, outputs)
    assert "test_kernel_graph.py" in str(info.value.at)


def test_a_refusal_names_a_legal_order():
    with pytest.raises(ArgumentError) as info:
        KernelGraph("graph", {"shift": SHIFT, "square": SQUARE}, {"shift.Y": "square.Y"})
    assert info.value.legal == "square, shift"


def test_a_kernel_waits_for_arrays_of_the_graph():
    """`no_wait` is a promise about other kernels, which the graph contradicts."""
    mm = product((64, 64, 64), (64, 64), 2).at(Tile).refine(ProgrammaticLaunch("B"))(float16_gemm(64, 64, 64, orders="NN"))
    layout = mm.spec.B.tensor.layout
    copy = COPY(Move(64, 64, dtype=float16, src=layout, dst=layout)(GL, GL)(Kernel))
    assert KernelGraph("alone", {"mm": mm}).inputs == ("mm.A", "mm.B")
    with pytest.raises(DecompositionError, match="mm does not wait for B, but an earlier launch writes copy.dst"):
        KernelGraph("waits", {"copy": copy, "mm": mm}, {"mm.B": "copy.dst"}).compile("sm_90a")


# ---------------------------------------------------------------------------------------------- the simulator


def test_kernels_run_in_order():
    (x,) = inputs(100)
    graph = BOTH.compile("sm_90")
    assert (graph.inputs, graph.outputs) == (("X",), ("Z",))
    assert [kernel.program.name for kernel in graph.kernels] == ["both_square", "both_shift"]
    np.testing.assert_array_equal(graph(x), x * x + x)
    np.testing.assert_array_equal(BOTH.reference(x), x * x + x)
    out = np.empty_like(x)
    assert graph(x, out=out) is out and graph(x, out={"Z": out}) is out
    np.testing.assert_array_equal(out, x * x + x)
    assert graph.cuda.index("both_square") < graph.cuda.index("both_shift")


def test_a_kernel_reads_windows_of_the_array_of_another():
    """The operand has the shape (c, p, r); the array that it reads has (c, h)."""
    x, rows = np.arange(30, dtype=np.float32).reshape(3, 10), np.array([3, 1, 2], np.int32)
    padded = np.pad(x + 1, ((0, 0), (1, 1)))
    right = sum(padded[:, r : r + 9 : 2] for r in range(3)) + rows[:, None]
    assert np.array_equal(windows().compile("sm_80")(x, rows), right)
    assert np.array_equal(windows().reference(x, rows), right)


def test_attention_of_few_queries():
    graph, draw = decode(), np.random.default_rng(2).standard_normal
    q, k, v = (draw(shape).astype(np.float16) for shape in ((1, 1, 4, 16), (1, 70, 1, 16), (1, 70, 1, 16)))
    got, right = graph.compile("sm_80")(q, k, v, 0.25), graph.reference(q, k, v, 0.25)
    np.testing.assert_allclose(got.astype(float), right, atol=2e-3)
    scores = q[0, 0].astype(float) @ k[0, :, 0].astype(float).T * 0.25
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    np.testing.assert_allclose(got[0, 0].astype(float), weights / weights.sum(-1, keepdims=True) @ v[0, :, 0].astype(float), atol=2e-3)


def test_results_and_workspaces_of_one_kernel():
    """`A` is a result and `B` a workspace, both written by the first kernel; the caller may pass the array of `A` only."""
    last = elementwise(last="Z[n] = B[n] + X[n]")
    graph = KernelGraph("mixed", {"two": TWO, "last": last}, {"last.B": "two.B"}, outputs=("last.Z", "two.A"))
    x, y = inputs(100, 100)
    call = graph.compile("sm_90")
    for out in (None, {"Z": np.empty_like(x), "A": np.empty_like(x)}, (np.empty_like(x), np.empty_like(x))):
        z, a = call(x, y, out=out)
        np.testing.assert_array_equal(z, x * 2 + y)
        np.testing.assert_array_equal(a, x + 1)
    for wrong, message in (({"Z": x}, "other names"), ((x,), "2 results"), (x, "2 results")):
        with pytest.raises(ArgumentError, match=message):
            call(x, y, out=wrong)
    with pytest.raises(LaunchError, match="A overlaps last.X in memory"):  # the last kernel reads X after A is written
        call(x, y, out=(np.empty_like(x), y))
    z = np.empty_like(x)
    with pytest.raises(LaunchError, match=r"overlaps \w+ in memory"):
        call(x, y, out=(z, z))


def test_run_time_sizes_have_one_value():
    n = sym("n")
    square, shift = elementwise(n, square="Y[n] = X[n] * X[n]"), elementwise(n, shift="Z[n] = Y[n] + X[n]")
    graph = KernelGraph("sized", {"square": square, "shift": shift}, {"shift.Y": "square.Y"})
    call = graph.compile("sm_90")
    for size in (5, 70):
        x, y = inputs(size, size)
        np.testing.assert_array_equal(call(x, y), x * x + y)
    with pytest.raises(ArgumentError, match="the size n has two values") as info:
        call(*inputs(5, 6))
    assert info.value.got == "square.X: 5, shift.X: 6"
    with pytest.raises(ArgumentError, match="takes no such argument"):
        call(x, y, m=3)
    with pytest.raises(ArgumentError, match="1 arrays given, sized reads 2"):
        call(x)
    with pytest.raises(ArgumentError, match="1 arrays given"):
        graph.reference(x)
    other = elementwise(sym("m"), shift="Z[n] = Y[n] + X[n]")
    with pytest.raises(DecompositionError, match="different shapes"):
        KernelGraph("sized", {"square": square, "shift": other}, {"shift.Y": "square.Y"})


def test_errors_name_the_kernel():
    call = KernelGraph("apart", {"square": SQUARE, "shift": SHIFT}, {"shift.Y": "square.Y"}).compile("sm_90")
    x, y = inputs(100, 90)
    with pytest.raises(FireironError) as info:
        call(x, y)
    assert info.value.within == "the kernel shift of apart"
    with pytest.raises(FireironError):
        KernelGraph("open", {"one": MatMul.tile(8, 8).to(Block)(gemm().spec)}).compile("sm_90")


def test_a_kernel_with_several_launches():
    """A kernel that copies an operand before it, whose copy reads a workspace of the graph."""
    rows = {"A": RowMajor, "B": RowMajor, "C": RowMajor}
    first = TILES(MatMul(9, 7, 5, **rows)(GL, GL, GL)(Kernel))
    second = MatMul.repack(A).then(TILES)(MatMul(9, 6, 7, **rows)(GL, GL, GL)(Kernel))
    graph = KernelGraph("chain", {"first": first, "second": second}, {"second.A": "first.C"})
    assert graph.inputs == ("first.A", "first.B", "second.B")
    a, b, c = (np.random.default_rng(4).integers(-4, 4, shape).astype(np.float32) for shape in ((9, 5), (5, 7), (7, 6)))
    call = graph.compile("sm_90")
    assert len(call.kernels[1].program.launches) == 2
    np.testing.assert_array_equal(call(a, b, c), a @ b @ c)
    np.testing.assert_array_equal(graph.reference(a, b, c), a @ b @ c)


# ---------------------------------------------------------------------------------------------- a fake GPU


@pytest.fixture
def gpu(monkeypatch):
    return installed(monkeypatch, FakeGpu(parameters=2))


def matrices(text, names):
    """A kernel of one thread per element of matrices."""
    start = Fused(name="work", dims="m n", operands=dict.fromkeys(names, "m n"), body={"work": text})
    return start.tile(m=1, n=32).to(Block).tile(m=1, n=1).to(Thread).done()(start(m=4, n=30, dtype=float32))


def on_fake_gpu(graph):
    """The compiled graph, with fake machine code."""
    call = graph.compile("sm_90")
    for kernel in call.kernels:
        kernel.__dict__["compiled"] = types.SimpleNamespace(cubin=b"\x7fELF")
    return call


@pytest.fixture
def call(gpu):
    square = matrices("Y[m,n] = X[m,n] * X[m,n]", "XY")
    return on_fake_gpu(KernelGraph("twice", {"one": square, "two": square}, {"two.X": "one.Y"}))


def test_all_kernels_run_on_the_stream_of_the_call(gpu, call):
    x, y = gpu.array((4, 30)), gpu.array((4, 30))
    stream = gpu.cupy.cuda.Stream()
    assert call(x, out=y, stream=stream) is y
    (a, workspace), (b, result) = (launch[-1] for launch in gpu.launches)
    assert [a, result] == addresses(x, y) and workspace == b and workspace not in (a, result)
    assert {launch[4] for launch in gpu.launches} == {stream.ptr}
    del gpu.done[:]
    output = call(x)
    (_, workspace), (b, result) = (launch[-1] for launch in gpu.launches)
    assert addresses(output) == [result] and workspace == b


def test_jax_and_pytorch_arrays(gpu, call, torch, jax):
    given = torch.Tensor((4, 30), (30, 1), torch.float32, 0)
    assert isinstance(call(given), torch.Tensor)
    del gpu.done[:]
    result = call(jax.Array((4, 30)))
    assert isinstance(result, jax.Array)
    (_, workspace), (read, _) = (launch[-1] for launch in gpu.launches)
    assert workspace == read


def test_results_do_not_overlap_later_arguments_on_a_gpu(gpu):
    kernels = {"one": matrices("Y[m,n] = X[m,n] * X[m,n]", "XY"), "two": matrices("Z[m,n] = Y[m,n] + X[m,n]", "YXZ")}
    call = on_fake_gpu(KernelGraph("apart", kernels, {"two.Y": "one.Y"}, outputs=("one.Y", "two.Z")))
    x, y, z, other = (gpu.array((4, 30)) for _ in range(4))
    with pytest.raises(LaunchError, match=r"Y overlaps two.X in memory"):
        call(x, y, out=(y, z))
    with pytest.raises(LaunchError, match=r"overlaps \w in memory"):
        call(x, y, out=(z, z))
    assert not gpu.launches
    call(x, y, out=(other, z))
    assert [launch[-1] for launch in gpu.launches] == [addresses(x, other), addresses(other, y)]  # the first two parameters
