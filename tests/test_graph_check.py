"""The checks between the kernels of a graph: planted faults, each with its message; legal graphs have no error."""

import attrs
import making
import pytest
from graph_examples import chain, decode, layer_norm, of_elements
from ringed import float16_gemm, product

from fireiron import *
from fireiron.check.launch_sequence import check_sequence, reads, writes
from fireiron.ir import GridDepAction
from fireiron.ir.effect import Effects
from fireiron.ir.effects.dependent_launch import DependentLaunch
from fireiron.refine.programmatic_launch import ProgrammaticLaunch
from fireiron.values.expr import as_expr


@attrs.frozen(eq=False)
class Planted:
    """A launch with parts that a test may change."""

    name: str
    spec: object
    arrays: dict
    kernel: object


def launches_of(graph, target="sm_90"):
    program = graph.program(target)
    return [Planted(launch.name, launch.spec, dict(launch.arrays), launch.kernel) for launch in program.launches]


def messages(launches, graph):
    return [finding.message for finding in check_sequence(launches, graph.inputs, graph.outputs)]


@pytest.mark.parametrize("graph", [chain(), chain(dependent=True), decode(), layer_norm(), layer_norm(dependent=True), chain(sym("n"))])
def test_legal_graphs(graph):
    program = graph.program("sm_90")
    assert program.between() == () and not [finding for finding in program.check() if finding.severity == "error"]
    assert {finding.details.get("kernel") for finding in program.check()} >= {launch.name for launch in program.launches}


def test_reads_and_writes_of_the_ir():
    statistics, normalize = layer_norm().program("sm_90").launches
    assert (reads(statistics.kernel), writes(statistics.kernel)) == (("X",), ("mean", "rstd"))
    assert (reads(normalize.kernel), writes(normalize.kernel)) == (("X", "mean", "rstd", "G"), ("Y",))


def test_tables_count_as_reads():
    gather = Fused(name="gather", dims="m n r", operands={"A": "r n", "rows": "m", "Y": "m n"}, types={"rows": int32},
        body={"y": "Y[m,n] = A[rows[m],n]"})  # fmt: skip
    strategy = gather.tile(m=4, n=32).to(Block).tile(m=1, n=1).to(Thread).done()
    kernel = strategy(gather(m=8, n=32, r=20, dtype=float32)).program("sm_90").ir
    assert set(reads(kernel)) == {"A", "rows"} and writes(kernel) == ("Y",)


def changed(launches, place, **fields):
    launches[place] = attrs.evolve(launches[place], **fields)


def with_buffer(kernel, name, **fields):
    """The kernel with another tensor for a parameter."""
    buffers = [
        attrs.evolve(buffer, tensor=attrs.evolve(buffer.tensor, **fields)) if buffer.name == name else buffer for buffer in kernel.buffers
    ]
    return attrs.evolve(kernel, buffers=tuple(buffers))


def without_waits(kernel):
    return attrs.evolve(kernel, body=tuple(stmt for stmt in kernel.body if stmt != making.grid_dep_control(GridDepAction.WAIT)))


def late_wait(kernel):
    return attrs.evolve(kernel, body=(*without_waits(kernel).body, making.grid_dep_control(GridDepAction.WAIT)))


def swap(launches):
    launches.reverse()


FAULTS = {
    "the writer runs after the reader": (swap, "shift reads square.Y, which neither the caller passes nor an earlier kernel writes"),
    "no writer": (lambda launches: launches.pop(0), "shift reads square.Y, which neither"),
    "another array": (lambda launches: launches[1].arrays.update(Y="square.W"), "shift reads square.W, which neither"),
    "no result": (lambda launches: launches.pop(1), "no kernel writes the result shift.Z"),
    "an argument is written": (lambda launches: launches[0].arrays.update(Y="square.X"), "square writes square.X, which is an argument"),
    "an array is read and written": (
        lambda launches: launches[1].arrays.update(Z="square.Y"), "shift writes square.Y as Z and reads it as Y, but its blocks are not ordered"
    ),
    "another type": (
        lambda launches: changed(launches, 1, kernel=with_buffer(launches[1].kernel, "Y", dtype=float16)),
        "shift and square access square.Y with different element types: float16, float32",
    ),
    "another shape": (
        lambda launches: changed(launches, 1, kernel=with_buffer(launches[1].kernel, "Y", shape=(99,))),
        "shift and square access square.Y with different shapes: 99, 100",
    ),
    "no wait": (
        lambda launches: changed(launches, 1, kernel=without_waits(launches[1].kernel)),
        "shift starts before the previous kernel ends, and never waits for it",
    ),
    "an access before the wait": (
        lambda launches: changed(launches, 1, kernel=late_wait(launches[1].kernel)),
        "shift accesses Y before it waits for the previous kernel, which an earlier kernel accesses as square.Y",
    ),
    "an old target": (
        lambda launches: changed(launches, 1, kernel=attrs.evolve(launches[1].kernel, architecture=of_elements(square="Y[n] = X[n]").program("sm_80").architecture)),
        "shift uses programmatic dependent launch, which sm_80 does not have",
    ),
    "a promise about a workspace": (
        lambda launches: changed(launches, 1, kernel=attrs.evolve(late_wait(launches[1].kernel), effects=Effects().adding(DependentLaunch(True, ("Y",))))),
        "the launch shift does not wait for Y, but an earlier launch writes square.Y",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults(fault):
    graph = chain(dependent=True)
    launches = launches_of(graph)
    assert messages(launches, graph) == []
    plant, message = FAULTS[fault]
    plant(launches)
    assert [text for text in messages(launches, graph) if message in text], messages(launches, graph)


def test_the_wait_of_one_branch_orders_nothing_else():
    """A wait inside a loop does not order what follows the loop."""
    graph = chain(dependent=True)
    launches = launches_of(graph)
    kernel = launches[1].kernel
    place = next(place for place, stmt in enumerate(kernel.body) if stmt == making.grid_dep_control(GridDepAction.WAIT))
    loop = making.loop(Var("i", 0, 3), as_expr(4), (kernel.body[place],))
    changed(launches, 1, kernel=attrs.evolve(kernel, body=(*kernel.body[:place], loop, *kernel.body[place + 1 :])))
    assert any("accesses Y before it waits" in message for message in messages(launches, graph))


def test_different_strides():
    """Connected matrices whose IR has other strides; a dimension of one element may have any."""
    tiles = MatMul.tile(8, 8).to(Block).tile(1, 1).to(Thread).split(1).done()
    first, second = (tiles(MatMul(8, 8, 8)(GL, GL, GL)(Kernel)) for _ in range(2))
    graph = KernelGraph("chain", {"first": first, "second": second}, {"second.A": "first.C"})
    launches = launches_of(graph)
    changed(launches, 1, kernel=tiles(MatMul(8, 8, 8, A=RowMajor)(GL, GL, GL)(Kernel)).program("sm_90").ir)
    assert any("different strides" in message for message in messages(launches, graph))
    column = [tiles(MatMul(8, 1, size, **orders)(GL, GL, GL)(Kernel)) for size, orders in ((8, {}), (1, {"A": RowMajor}))]
    graph = KernelGraph("thin", dict(zip(("first", "second"), column, strict=True)), {"second.A": "first.C"})
    assert graph.program("sm_90").between() == ()


SCATTER = Fused(name="scatter", dims="m n r", operands={"A": "m n", "rows": "m", "Y": "r n"}, types={"rows": int32}, distinct="rows",
    body={"y": "Y[rows[m],n] = A[m,n]"})  # fmt: skip


def test_a_workspace_has_no_initial_values():
    """A kernel that writes only the elements that a table names."""
    scatter = SCATTER.tile(m=4, n=32).to(Block).tile(m=1, n=1).to(Thread).done()(SCATTER(m=8, n=32, r=20, dtype=float32))
    copy = Move.tile(4, 32).to(Block).tile(1, 1).to(Thread).done()(Move(20, 32, src=RowMajor, dst=RowMajor)(GL, GL)(Kernel))
    with pytest.raises(DecompositionError, match="scatter writes only the elements of Y that its indices name") as info:
        KernelGraph("scattered", {"scatter": scatter, "copy": copy}, {"copy.src": "scatter.Y"})
    assert "scatter.Y to outputs=" in str(info.value.hint)
    graph = KernelGraph("scattered", {"scatter": scatter, "copy": copy}, {"copy.src": "scatter.Y"}, ("copy.dst", "scatter.Y"))
    launches = launches_of(graph)
    assert messages(launches, graph) == []
    hidden = [finding.message for finding in check_sequence(launches, graph.inputs, ("copy.dst",))]
    assert hidden == ["scatter writes only the elements of scatter.Y that its indices name, and scatter.Y has no other values"]


def test_sums_of_several_blocks_may_be_a_workspace():
    """The launcher sets such an output to zero."""
    total = Fused(name="total", dims="m n", operands={"X": "m n", "s": "n"}, types={"s": float32}, body={"s": "s[n] += sum(m, X[m,n])"})
    sums = total.tile(m=4, n=32).to(Block).tile(n=1).to(Thread).done()(total(m=12, n=40, dtype=float32))
    double = Fused(
        name="double", dims="n", operands={"s": "n", "y": "n"}, types={"s": float32, "y": float32}, body={"y": "y[n] = s[n] * 2"}
    )
    twice = double.tile(n=32).to(Block).tile(n=1).to(Thread).done()(double(n=40, dtype=float32))
    graph = KernelGraph("sums", {"sums": sums, "twice": twice}, {"twice.s": "sums.s"})
    launches = launches_of(graph)
    assert messages(launches, graph) == []


def test_compile_refuses_what_the_check_finds():
    mm = product((64, 64, 64), (64, 64), 2).at(Tile).refine(ProgrammaticLaunch("B"))(float16_gemm(64, 64, 64, orders="NN"))
    layout = mm.spec.B.tensor.layout
    copy = Move.tile(8, 8).to(Block).tile(1, 1).to(Thread).done()(Move(64, 64, dtype=float16, src=layout, dst=layout)(GL, GL)(Kernel))
    graph = KernelGraph("waits", {"copy": copy, "mm": mm}, {"mm.B": "copy.dst"})
    with pytest.raises(DecompositionError, match="mm does not wait for B"):
        graph.compile("sm_90a")


def test_programmatic_launch_where_it_is_legal():
    """Kernels after the first; a kernel whose output is set to zero first stays as it is."""
    graph = layer_norm().with_programmatic_launch("sm_90")
    assert [launch.dependent for launch in graph.program("sm_90").launches] == [False, True] and graph.program("sm_90").between() == ()
    assert graph == layer_norm(dependent=True) and graph.with_programmatic_launch("sm_90") == graph
    total = Fused(name="total", dims="m n", operands={"X": "m n", "s": "n"}, types={"s": float32}, body={"s": "s[n] += sum(m, X[m,n])"})
    sums = total.tile(m=4, n=32).to(Block).tile(n=1).to(Thread).done()(total(m=12, n=50, dtype=float32))
    added = KernelGraph("added", {**dict(layer_norm().kernels), "sums": sums}, {**dict(layer_norm().connect), "sums.X": "normalize.Y"})
    assert [launch.dependent for launch in added.with_programmatic_launch("sm_90").program("sm_90").launches] == [False, True, False]
    with pytest.raises(ArgumentError, match="sm_80 has no programmatic dependent launch"):
        graph.with_programmatic_launch("sm_80")


def test_different_orders_of_run_time_sizes():
    """Strides that sizes determine are compared as expressions; each call compares strides that are symbols."""
    m, n = sym("M"), sym("N")
    tiles = MatMul.tile(8, 8).to(Block).tile(1, 1).to(Thread).split(1).done()
    first = tiles(MatMul(m, n, 8, C=RowMajor)(GL, GL, GL)(Kernel))
    for order, legal in ((RowMajor, True), (ColMajor, False), (RowMajor(ld=sym("lda")), True)):
        second = tiles(MatMul(m, 8, n, A=order)(GL, GL, GL)(Kernel))
        graph = KernelGraph("orders", {"first": first, "second": second}, {"second.A": "first.C"})
        errors = [finding.message for finding in graph.program("sm_90").between()]
        assert (errors == []) == legal, (order, errors)
    with pytest.raises(DecompositionError, match="different strides"):
        KernelGraph("orders", {"first": first, "second": tiles(MatMul(m, 8, n)(GL, GL, GL)(Kernel))}, {"second.A": "first.C"}).compile(
            "sm_90"
        )
