"""Specs for the GPUs of a node: distributed operands, launches on each GPU, and their simulation."""

import re

import attrs
import numpy as np
import printed_text
import pytest

from fireiron import *
from fireiron.errors import ArgumentError, FireironError, LayoutError, SimulationError
from fireiron.gpu.node import _steps
from fireiron.gpu.toolchain import compile_cuda, toolchains
from fireiron.graphene import graphene_text
from fireiron.inspect.explain import explain
from fireiron.inspect.explain import text as explain_text
from fireiron.inspect.show import show
from fireiron.language.statement import parse_spec, spec_text
from fireiron.sim.node import joined, parts_of, portion_of, simulate_node
from fireiron.spec import symbols_of
from fireiron.strategies import hopper
from fireiron.values.distribution import Portion
from fireiron.values.notation import level_text, parse_level, parse_view

simple = MatMul.tile(8, 8).to(Block).tile(1, 1).to(Thread).split(4).split(1).done()
"""FFMA with one element per thread."""

KINDS = {
    "gathered": ({"A": "m", "B": "n", "C": "n"}, MatMul.to_gpus("n").load("A", GL)),
    "direct": ({"A": "m", "B": "n", "C": "n"}, MatMul.to_gpus("n")),
    "replicated": ({"B": "n", "C": "n"}, MatMul.to_gpus("n")),
    "sliced": ({"C": "m"}, MatMul.to_gpus("m")),
    "scattered": ({"A": "k", "B": "k", "C": "m"}, MatMul.to_gpus("k")),
    "sliced sums": ({"B": "k", "C": "n"}, MatMul.to_gpus("k")),
    "reduced": ({"A": "k", "B": "k"}, MatMul.to_gpus("k")),
}
"""How operands are distributed, and the steps of a node."""


def spec(kind, gpus, sizes=(8, 8, 4), **options):
    """A product whose sizes are multiples of the number of GPUs."""
    m, n, k = (size * gpus for size in sizes)
    orders = {name: RowMajor.over(GPU, KINDS[kind][0][name]) if name in KINDS[kind][0] else RowMajor for name in "ABC"}
    return MatMul(m, n, k, **{**orders, **options})(GL, GL, GL)(Node(gpus))


def strategy(kind, rest=simple):
    return KINDS[kind][1].then(rest)


def data(problem, seed=0):
    generator = np.random.default_rng(seed)
    m, n, k = (int(size.evaluate({})) for size in problem.sizes)
    dtype = np.float16 if problem.A.dtype == float16 else np.float32
    return generator.integers(-4, 5, (m, k)).astype(dtype), generator.integers(-4, 5, (k, n)).astype(dtype)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("kind", "gpus"), [*((kind, 2) for kind in KINDS), ("gathered", 3), ("scattered", 4), ("direct", 8), ("reduced", 8)]
)
def test_all_gpus_together_compute_the_product(kind, gpus):
    problem = spec(kind, gpus, (10, 6, 4))
    a, b = data(problem)
    assert np.array_equal(strategy(kind)(problem).compile("sm_80")(a, b), a @ b)


@pytest.mark.parametrize("kind", ["gathered", "direct", "scattered"])
def test_hopper(kind):
    """TMA reads parts of other GPUs by one tensor map, whose last dimension is the GPU."""
    problem = spec(kind, 2, (128, 64, 32), dtype=float16, c_dtype=float16)
    kernel = strategy(kind, hopper.strategy)(problem).compile("sm_90a")
    a, b = data(problem)
    assert np.array_equal(kernel(a, b), (a.astype(float) @ b.astype(float)).astype(np.float16))
    assert ("tma_load_3d(" in kernel.program.text) == (kind == "direct")


def test_launches():
    """A barrier precedes a launch that reads parts of other GPUs, and the sums are added in the order of the GPUs."""
    texts = {}
    for kind in KINDS:
        kernel = strategy(kind)(spec(kind, 2)).compile("sm_80")
        texts[kind] = [(step.launch.program.name, step.waits) for step in _steps(kernel)]
    assert texts["gathered"] == [("matmul_gather_a", True), ("matmul", False)]
    assert texts["direct"] == [("matmul", True)] and texts["replicated"] == texts["sliced"] == [("matmul", False)]
    assert texts["scattered"] == texts["reduced"] == [("matmul_sums", False), ("matmul", True)]
    total = strategy("reduced")(spec("reduced", 3)).program("sm_80").text
    assert re.search(r"= acc\[add_n\] \+ p_rf\[add_n\] \+ p_rf\[add_n \+ 4\] \+ p_rf\[add_n \+ 8\];", total)


def test_the_type_of_sums():
    """Sums of parts have the type of the accumulator, or that of the result if the strategy specifies it."""
    half = {"dtype": float16, "c_dtype": float16}
    for options, steps, expected in ((half, {}, "float32"), ({"dtype": float64}, {}, "float64"), (half, {"sums": float16}, "float16")):
        first, *_ = MatMul.to_gpus("k", **steps).then(simple)(spec("scattered", 2, **options)).program("sm_80").launches
        assert str(first.spec.C.dtype) == expected


@pytest.mark.parametrize(
    ("options", "vector"), [({}, "float4"), ({"c_dtype": float16, "dtype": float16}, "uint4"), ({"C": ColMajor}, "float4")]
)
def test_vectors_of_sums(options, vector):
    """The parts of all GPUs are loaded and the result is stored by vectors of 16 bytes, also of a column-major result."""
    orders = {"C": options["C"].over(GPU, "m")} if "C" in options else {}
    problem, steps = spec("scattered", 2, (16, 16, 4), **{**options, **orders}), {"sums": float16} if "dtype" in options else {}
    bound = MatMul.to_gpus("k", **steps).then(simple)(problem)
    text = bound.program("sm_80").text
    assert f"*reinterpret_cast<const {vector}*>(&p_source" in text and f"*reinterpret_cast<{vector}*>(&C[" in text
    a, b = data(problem)
    assert np.array_equal(bound.compile("sm_80")(a, b), a @ b)


@pytest.mark.skipif(printed_text.COMPILER is None, reason="no C++ compiler")
def test_printed_text(tmp_path):
    """The text of the kernel of one GPU on a CPU. The parts of two GPUs are at a distance."""
    problem = spec("direct", 2)
    program = strategy("direct")(problem).program("sm_80")
    a, b = data(problem)
    parts, host = np.stack(parts_of(problem, "A", a)), printed_text.HostProgram([printed_text.Printed.of(program)], tmp_path)
    for gpu in (0, 1):
        given = {"A": parts, "B": np.ascontiguousarray(parts_of(problem, "B", b)[gpu])}
        result = host.run(0, given, {"stride_A_gpu": parts[0].size + 64})["C"]
        assert np.array_equal(result, parts_of(problem, "C", a @ b)[gpu])


@pytest.mark.skipif(not toolchains(), reason="no NVRTC is installed")
@pytest.mark.parametrize("kind", ["gathered", "scattered"])
def test_nvrtc_compiles_the_text(kind):
    for target in ("sm_80", "sm_90a"):
        assert compile_cuda(strategy(kind)(spec(kind, 2)).cuda(target), target).cubin


@pytest.mark.parametrize("kind", KINDS)
def test_repr_json_and_text(kind):
    bound = strategy(kind)(spec(kind, 4))
    assert eval(repr(bound)) == bound
    assert type(bound).from_json(bound.to_json()) == bound
    for launch in bound.program("sm_80").launches:
        for view in launch.spec.views:
            assert parse_view(str(view), {var.name: var for var in symbols_of(launch.spec)}) == view


def test_portions():
    """The arrays that launches on the GPUs access."""
    parts = [np.arange(8).reshape(2, 4) + 10 * gpu for gpu in (0, 1)]
    assert portion_of(parts, None, 1) is parts[1]
    assert portion_of(parts, Portion(0), 1).shape == (2, 2, 4)
    assert np.array_equal(portion_of(parts, Portion(2, 1), 1)[..., 0], parts[0][:, 2:])
    assert np.array_equal(portion_of(parts, Portion(own_along=0), 1), parts[1][1:])


def test_levels():
    assert Node(2) == Node(2) != Node(3) and Node(2).gpus == 2 and Node.gpus is None and Kernel.gpus is None
    assert GPU.is_below(Node(2)) and Kernel.is_below(Node(2)) and Thread.is_below(Node(2)) and not Node(2).is_below(Kernel)
    assert str(Node(2)) == "Node(2)"


def test_notation():
    """Levels and specs of a node, and launches that read parts of other GPUs, have a text that is read back."""
    for level in (Node, Node(1), Node(2), GPU):
        assert parse_level(level_text(level)) == level
    with pytest.raises(LayoutError, match="not a level"):
        parse_level("#gpu:[2].gpu")
    problem = spec("direct", 2)
    assert "<- MatMul<<<#node:[2].gpu>>>(%A" in spec_text(problem) and parse_spec(spec_text(problem)) == problem
    (launch,) = strategy("direct")(problem).program("sm_80").launches
    assert "Size stride_A_gpu" in graphene_text(launch.program)


REFUSALS = {
    "not at a node": (lambda: MatMul(8, 8, 8, A=RowMajor.over(GPU, "m"))(GL, GL, GL)(Kernel), "a number of GPUs, Node(2)"),
    "no number": (lambda: MatMul(8, 8, 8, A=RowMajor.over(GPU, "m"))(GL, GL, GL)(Node), "a number of GPUs, Node(2)"),
    "unequal parts": (lambda: MatMul(9, 8, 8, A=RowMajor.over(GPU, "m"))(GL, GL, GL)(Node(2)), "a multiple of 2"),
    "another level": (lambda: RowMajor.over(Block, "m"), "GPU"),
    "a leading dimension": (lambda: RowMajor(ld=16).over(GPU, "m"), "RowMajor, ColMajor"),
    "another dimension": (lambda: MatMul(8, 8, 8, A=RowMajor.over(GPU, "n")), "m k"),
    "no units": (lambda: Node(0), "Node(2)"),
    "threads": (lambda: Warp(2), "Node(2)"),
    "not a dimension": (lambda: MatMul.to_gpus(3), '"n"'),
    "an unknown dimension": (lambda: MatMul.to_gpus("x").then(simple)(spec("gathered", 2)).cuda("sm_80"), "m n k"),
    "one GPU": (lambda: MatMul.to_gpus("n").then(simple)(MatMul(8, 8, 8)(GL, GL, GL)(Kernel)).cuda("sm_80"), "Node(2)"),
    "no step": (lambda: simple(spec("gathered", 2)).cuda("sm_80"), "to_gpus(dim) first"),
    "indivisible sums": (lambda: MatMul.to_gpus("k").then(simple)(MatMul(8, 8, 9, C=RowMajor)(GL, GL, GL)(Node(2))).cuda("sm_80"), "a multiple of 2"),
    "indivisible": (lambda: MatMul.to_gpus("n").then(simple)(MatMul(8, 9, 8)(GL, GL, GL)(Node(2))).cuda("sm_80"), "a multiple of 2"),
    "a result elsewhere": (lambda: MatMul.to_gpus("m").then(simple)(spec("gathered", 2)).cuda("sm_80"), "C=RowMajor.over(GPU, 'm'), or to_gpus('n')"),
    "a complete result": (lambda: MatMul.to_gpus("m").then(simple)(MatMul(8, 8, 8, C=RowMajor)(GL, GL, GL)(Node(2))).cuda("sm_80"), "C=RowMajor.over(GPU, 'm')"),
    "slices of parts": (lambda: MatMul.to_gpus("k").then(simple)(spec("gathered", 2)).cuda("sm_80"), "store it on each GPU"),
    "its own part": (lambda: MatMul.to_gpus("n").load("B", GL).then(simple)(spec("gathered", 2)).cuda("sm_80"), "legal   A"),
    "several tiles": (lambda: MatMul.tile(16, 4).to(GPU).then(simple)(spec("gathered", 2)).cuda("sm_80"), "tile(n=8)"),
    "sums of another type": (lambda: MatMul.to_gpus("k", sums=int8).then(simple)(spec("scattered", 2)).cuda("sm_80"), "legal   float32"),
    "no sums": (lambda: MatMul.to_gpus("n", sums=float32).then(simple)(spec("gathered", 2)).cuda("sm_80"), "no sums"),
    "sums without a type": (lambda: MatMul.to_gpus("k", sums="float16"), "float16"),
    "an added result": (lambda: MatMul.to_gpus("n").then(simple)(spec("gathered", 2, accumulate=True)).cuda("sm_80"), "accumulate=False"),
    "added sums": (lambda: MatMul.to_gpus("k").then(simple)(spec("scattered", 2, accumulate=True)).cuda("sm_80"), "accumulate=False"),
    "a late step": (lambda: MatMul.tile(16, 16).to(Block).to_gpus("n").tile(1, 1).to(Thread).done()(MatMul(8, 8, 8)(GL, GL, GL)(Kernel)).cuda("sm_80"), "at the start of a chain"),
    "a pointwise sum": (lambda: Move.to_gpus("n")(Move(8, 8, src=RowMajor, dst=RowMajor)(GL, GL)(Node(2))).program("sm_80").launches, "dst=RowMajor.over(GPU, 'n')"),
    "GPU arrays": (lambda: strategy("gathered")(spec("gathered", 2)).compile("sm_80")(1, 2), "kernel.over(group)"),
    "too few arrays": (lambda: strategy("gathered")(spec("gathered", 2)).compile("sm_80")(np.zeros((16, 8), np.float32)), "A B"),
    "prepared": (lambda: strategy("gathered")(spec("gathered", 2)).compile("sm_80").prepare(), "kernel.over(group)"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals(name):
    make, expected = REFUSALS[name]
    with pytest.raises(FireironError) as caught:
        make()
    assert expected in str(caught.value)


def test_tiles_of_gpus():
    """A tile of explicit size, which has the same launches as `to_gpus`."""
    problem = spec("gathered", 2)
    given, expected = (
        [launch.kernel.body for launch in steps.load("A", GL).then(simple)(problem).program("sm_80").launches]
        for steps in (MatMul.tile(16, 8).to(GPU), MatMul.to_gpus("n"))
    )
    assert given == expected


# ---------------------------------------------------------------------------------------------- faults


class Changed:
    """A launch with other arrays or another portion of an operand."""

    def __init__(self, launch, arrays=None, portions=None):
        self.arrays = {**launch.arrays, **(arrays or {})}
        kernel = launch.kernel
        if portions:
            buffers = tuple(with_portion(buffer, portions[buffer.name]) if buffer.name in portions else buffer for buffer in kernel.buffers)
            kernel = attrs.evolve(kernel, buffers=buffers)
        self.kernel = kernel


def with_portion(buffer, portion):
    tensor = buffer.tensor
    through = None if tensor.through is None else attrs.evolve(tensor.through, array=attrs.evolve(tensor.array, portion=portion))
    return attrs.evolve(buffer, tensor=attrs.evolve(tensor, portion=portion, through=through))


def test_faults_are_found():
    """A launch that is missing, reads an array that no launch wrote, or only the sums of one GPU."""
    problem = spec("scattered", 2)
    a, b = data(problem)
    sums, total = strategy("scattered")(problem).program("sm_80").launches
    given = {"A": a, "B": b}
    assert np.array_equal(simulate_node(problem, (sums, total), given)["C"], a @ b)
    for launches in ((total,), (Changed(sums, {"C": "other"}), total)):
        with pytest.raises((SimulationError, ArgumentError)):
            simulate_node(problem, launches, given)
    with pytest.raises(FireironError):
        simulate_node(problem, (sums, Changed(total, portions={"P": Portion(None, 0)})), given)


def test_results_that_differ_between_gpus_are_refused():
    problem = spec("reduced", 2)
    parts = [np.zeros((32, 32), np.float32) for _ in range(2)]
    assert joined(problem, "C", parts).shape == (32, 32)
    parts[1][3, 5] = 1
    with pytest.raises(SimulationError, match=r"C\[3, 5\] of GPU 1 differs"):
        joined(problem, "C", parts)


def test_the_order_of_launches_is_checked():
    from fireiron.check.launches import check_launches

    problem = spec("scattered", 2)
    program = strategy("scattered")(problem).program("sm_80")
    sums, total = program._plan.before[0], program._plan.last
    assert not list(check_launches(problem, (sums, total)))
    assert any("no earlier launch wrote" in finding.message for finding in check_launches(problem, (total,)))
    assert any("but no launch does" in finding.message for finding in check_launches(problem, (sums,)))


# ---------------------------------------------------------------------------------------------- reports


def test_expected_times():
    """The link and barriers are parts of the time. Sums in 16 bits halve the bytes; reading a part in several tiles multiplies them."""
    options = {"dtype": float16, "c_dtype": float16}
    scattered, gathered = spec("scattered", 2, (128, 128, 64), **options), spec("gathered", 2, (128, 128, 64), **options)
    plain, rounded = (
        predict(MatMul.to_gpus("k", **sums).then(hopper.strategy)(scattered).program("sm_90a")) for sums in ({}, {"sums": float16})
    )
    assert plain.bytes["link"] == 128 * 256 * 4 == 2 * rounded.bytes["link"]
    assert plain.parts["link"] == pytest.approx(plain.bytes["link"] / 333e3) and plain.parts["barriers of GPUs"] == 5.0
    loaded, direct = (predict(strategy(kind, hopper.strategy)(gathered).program("sm_90a")) for kind in ("gathered", "direct"))
    assert loaded.bytes["link"] == 128 * 128 * 2 == direct.bytes["link"] and loaded.us > loaded.parts["link"] + 5
    assert "link" in str(loaded) and "barriers of GPUs" in str(loaded)
    alone = predict(strategy("replicated", hopper.strategy)(spec("replicated", 2, (128, 128, 64), **options)).program("sm_90a"))
    assert "barriers of GPUs" not in alone.parts and not alone.bytes["link"]


def test_explain_and_show():
    """What each launch reads of other GPUs, and why barriers precede and follow it."""
    bound = strategy("scattered")(spec("scattered", 2))
    lines = [
        "barrier of all GPUs before matmul: other GPUs write sums_of_C", "matmul reads 0.000512 MB of sums_of_C in the memory of other GPUs",
        "barrier of all GPUs at the end: other GPUs read sums_of_C, which may change afterwards",
    ]  # fmt: skip
    text = explain_text(explain(bound))
    assert all(f"\n{line}\n" in text for line in lines)
    shown = "\n".join(show(bound.program("sm_80")))
    assert all(f"between GPUs     {line}" in shown for line in lines)
    assert "between GPUs" not in "\n".join(show(strategy("sliced")(spec("sliced", 2)).program("sm_80")))


def test_flow():
    """The picture has the part of each GPU, complete operands once, and a bar per launch and barrier."""
    bound = MatMul.to_gpus("k").then(hopper.strategy)(spec("reduced", 4, (64, 64, 64), dtype=float16, c_dtype=float16))
    picture = draw(bound, "flow", architecture="sm_90a")
    _, *titles = re.findall("<title>(.*?)</title>", picture.svg)
    assert [f"the part of {name} that GPU {gpu} stores" for name in "AB" for gpu in range(4)] == titles[:8]
    assert [title.partition(":")[0] for title in titles[8:]] == ["matmul_sums", "barrier", "matmul", "the link", "barrier"]
