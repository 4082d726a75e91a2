"""Kernel graphs in show, explain, cost, draw, notebooks, Graphene's notation, and the command line."""

import json
import re

import attrs
import pytest
from graph_examples import chain, decode, layer_norm

from fireiron import *
from fireiron.cli import main
from fireiron.cost.graph_prediction import GraphPrediction
from fireiron.errors import ArgumentError, LayoutError
from fireiron.gpu import launch
from fireiron.inspect.graphs import array_rows, dependences, explain_graph, graph_dict, show_graph, workspace_bytes
from fireiron.kernel_graph.notation import graph_text, is_graph_text, parse_graph
from fireiron.kernel_graph.program import GraphProgram
from fireiron.measure import graph_runs
from fireiron.notebook import html, pretty

BOTH = chain()
OPEN = KernelGraph("open", {"one": MatMul.tile(8, 8).to(Block)(MatMul(8, 8, 8)(GL, GL, GL)(Kernel))})


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch):
    monkeypatch.setattr(launch, "gpu_available", lambda: False)


def test_arrays():
    rows = {row.name: row for row in array_rows(BOTH)}
    assert {name: (row.role, row.bytes, row.writer, row.readers) for name, row in rows.items()} == {
        "X": ("argument", "400", "", ("square", "shift")),
        "Y": ("workspace", "400", "square", ("shift",)),
        "Z": ("result", "400", "shift", ()),
    }
    assert workspace_bytes(BOTH) == 400 and workspace_bytes(chain(sym("n"))) is None
    assert {row.name: row.role for row in array_rows(decode())}["scale"] == "number"


def test_show():
    text = "\n".join(show_graph(BOTH.program("sm_90")))
    assert text.startswith("both(X) -> Z\n") and "workspace" in text
    assert text.index("square: ---") < text.index("shift: ---") and text.count("threads a block") == 2
    assert "open " in "\n".join(show_graph(OPEN.program("sm_90")))
    value = json.loads(json.dumps(graph_dict(BOTH.program("sm_90"))))
    assert list(value["kernels"]) == ["square", "shift"] and value["arrays"][1]["role"] == "workspace"


def test_explain():
    (plain,), (dependent,) = (dependences(chain(dependent=early).program("sm_90")) for early in (False, True))
    assert str(plain) == "shift reads Y of square, after square has ended"
    assert "griddepcontrol.wait precedes all accesses" in str(dependent)
    assert "performed by Pointwise" in str(explain_graph(BOTH)) and not explain_graph(BOTH).refused
    refused = explain_graph(OPEN)
    assert refused.refused and "one: " in refused.refused[0] and "one" in refused.as_dict()["kernels"]
    json.dumps(explain_graph(BOTH).as_dict())


def test_cost_is_the_sum_of_kernels_and_launches():
    prediction = predict(BOTH, "H200 SXM")
    assert isinstance(prediction, GraphPrediction) and list(prediction.kernels) == ["square", "shift"]
    assert prediction.us == sum(predict(BOTH[name], "H200 SXM").us for name in ("square", "shift"))
    assert prediction.launch_us == 2 * prediction.kernels["square"].parts["launch"]
    assert prediction.bottleneck in prediction.kernels and "2 kernels" in str(prediction)
    assert predict(BOTH.compile("sm_90")).us == predict(BOTH.program("sm_90")).us == prediction.us
    sized = chain(sym("n"))
    assert predict(sized, sizes={"n": 1000}).us > 0
    with pytest.raises(ArgumentError, match="no run-time size m"):
        predict(sized, sizes={"m": 3})
    with pytest.raises(ArgumentError, match="depends on n"):
        predict(sized)


def test_draw(tmp_path):
    picture = draw(decode(), "flow", architecture="sm_80")
    for text in ("split", "combine", "scale", "3 blocks of 32 threads"):
        assert text in picture.svg
    assert "Dashed" in draw(chain(dependent=True), "flow", architecture="sm_90").svg
    gallery = draw(BOTH.program("sm_90"), ("flow", "tree"), tmp_path / "both.html")
    assert [picture.name for picture in gallery] == ["flow", "square_tree", "shift_tree"]
    assert "both_square" in (tmp_path / "both.html").read_text()
    assert len(draw(BOTH, "tree")) == 2
    with pytest.raises(ArgumentError, match="already has its target"):
        draw(BOTH.program("sm_90"), architecture="sm_80")
    with pytest.raises(ArgumentError, match="no run-time size"):
        draw(BOTH, "flow", sizes={"q": 3})


def test_notebook():
    values = (BOTH, BOTH.program("sm_90"), BOTH.compile("sm_90"), predict(BOTH))
    for value in values:
        assert "square" in html(value) and value._repr_html_() == html(value)
    assert "after square has ended" in html(values[1]) and "<svg" in html(values[1])
    assert "open" in html(OPEN.program("sm_90"))
    assert eval(pretty(BOTH)) == BOTH and pretty(values[3]) == str(values[3])


@pytest.mark.parametrize("graph", [BOTH, chain(dependent=True), layer_norm(), attrs.evolve(BOTH, outputs=("shift.Z", "square.Y"))])
def test_notation(graph):
    program = graph.program("sm_90")
    text = graph_text(program)
    again = parse_graph(text)
    assert is_graph_text(text) and again.program("sm_90").cuda == program.cuda
    assert (again.name, again.connect, again.outputs, again.inputs) == (graph.name, graph.connect, graph.outputs, graph.inputs)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text.replace("Graph both\n", "Graph\n"), "line 1: not a line of a graph"),
        (lambda text: text.replace("Connect shift.Y = square.Y", "Connect shift.Y"), "line 2: not a line of a graph"),
        (lambda text: text.replace("GraphKernel shift", "GraphKernel square"), "two kernels are called square"),
        (lambda text: text.partition("GraphKernel")[0], "not a graph"),
        (lambda text: text.replace("%Y <- work", "%Q <- work", 1), "Q"),
    ],
)
def test_wrong_notation(change, message):
    with pytest.raises((LayoutError, FireironError), match=message):
        parse_graph(change(graph_text(BOTH.program("sm_90"))))


def test_several_launches_have_no_notation():
    rows = {"A": RowMajor, "B": RowMajor, "C": RowMajor}
    tiles = MatMul.tile(8, 8).to(Block).tile(1, 1).to(Thread).split(1).done()
    graph = KernelGraph("one", {"copied": MatMul.repack(A).then(tiles)(MatMul(9, 6, 7, **rows)(GL, GL, GL)(Kernel))})
    with pytest.raises(LayoutError) as info:
        graph_text(graph.program("sm_90"))
    assert info.value.within == "the kernel copied of one"
    program = graph.program("sm_90")
    assert [item.name for item in program.launches] == ["copied.A", "copied"] and program.between() == ()


# ---------------------------------------------------------------------------------------------- the command line


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "graphs.py"
    path.write_text(
        "from graph_examples import chain, decode\nfrom fireiron import *\ngraph = chain()\nsized = chain(sym('n'))\n"
        "early = chain(dependent=True)\ncompiled = graph.compile('sm_80')\nnormal = graph['shift']\n"
    )
    return path


def run(capsys, *arguments):
    status = main([str(argument) for argument in arguments])
    out, error = capsys.readouterr()
    return status, out + error


def test_commands(capsys, file, tmp_path):
    for command in ("show", "check", "explain", "cost", "run", "emit"):
        status, text = run(capsys, command, file)
        assert status == 0 and "square" in text and "shift" in text, command
        if command != "emit":
            assert run(capsys, command, f"{file}:compiled", "--json")[0] == 0
    assert "PASS" in run(capsys, "run", f"{file}:sized", "--size", "n=70")[1]
    assert "between kernels: no error" in run(capsys, "check", f"{file}:early", "--arch", "sm_90")[1]
    assert "griddepcontrol.wait" in run(capsys, "explain", f"{file}:early", "--arch", "sm_90", "--sync")[1]
    assert run(capsys, "draw", file, "--what", "flow", "-o", tmp_path / "flow.svg")[0] == 0
    status, text = run(capsys, "show", file, "--graphene", "--arch", "sm_90")
    (tmp_path / "both.graphene").write_text(text)
    assert status == 0 and run(capsys, "run", tmp_path / "both.graphene")[0] == 0


def test_a_kernel_of_a_graph(capsys, file):
    status, text = run(capsys, "check", "--wide", f"{file}:graph.shift")
    assert status == 0 and "Shift" in text
    assert (
        "the graph has no kernel" in run(capsys, "check", f"{file}:graph.left")[1]
        or "has no kernel left" in run(capsys, "check", f"{file}:graph.left")[1]
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tune", "FILE:graph"], "is a graph of several kernels"),
        (["show", "FILE:graph", "-M", "4"], "-M cannot be chosen"),
        (["check", "FILE:graph", "-s", "n=4"], "--size cannot be chosen"),
        (["show", "FILE:compiled", "--arch", "sm_90"], "compiled for sm_80"),
        (["show", "FILE:graph", "--events"], "--events shows one kernel"),
        (["run", "FILE:graph", "--blocks", "2"], "all blocks of both are executed"),
        (["run", "FILE:graph", "--size", "q=2"], "both has no such size"),
        (["draw", "FILE:graph", "--html", "x.html"], "--html shows one kernel"),
    ],
)
def test_refused_commands(capsys, file, arguments, message):
    status, text = run(capsys, *(argument.replace("FILE", str(file)) for argument in arguments))
    assert status == 2 and message in text, text


def test_check_reports_the_error_of_a_kernel(capsys, tmp_path):
    path = tmp_path / "wrong.py"
    path.write_text("from graph_examples import chain\ngraph = chain(dependent=True)\n")
    status, text = run(capsys, "check", path, "--arch", "sm_80")
    assert (status == 1 and "the kernel shift of both" in text) or "programmatic" in text


def test_run_finds_a_wrong_kernel(monkeypatch):
    """A call that reads another array is found, and so is a wrong result of one kernel."""
    graph = graph_runs.with_all_results(BOTH)
    call = graph.compile("sm_90")
    arrays = graph_runs.graph_inputs(graph, {}, 0)
    assert graph_runs.graph_wrong(call.program, {}, arrays, call)[0] is None
    wrong, _ = graph_runs.graph_wrong(call.program, {}, arrays, lambda x: (x * x, x * x * 2))
    assert wrong["kernel"] == "shift" and wrong["message"].startswith("shift: ")
    shift = call.steps[1]
    call.__dict__["steps"] = (
        call.steps[0],
        attrs.evolve(shift, takes=tuple(reversed(shift.takes)) if shift.takes[0] != shift.takes[1] else shift.takes),
    )
    swapped, _ = graph_runs.graph_wrong(call.program, {}, arrays, call)
    assert swapped is None  # Y + X is X + Y
    call.__dict__["steps"] = (call.steps[0], attrs.evolve(shift, takes=(0, 0)))
    assert graph_runs.graph_wrong(call.program, {}, arrays, call)[0]["kernel"] == "shift"


def test_run_refuses_added_outputs():
    tiles = MatMul.tile(8, 8).to(Block).tile(1, 1).to(Thread).split(1).done()
    graph = KernelGraph("adds", {"mm": tiles(MatMul(8, 8, 8, accumulate=True)(GL, GL, GL)(Kernel))})
    with pytest.raises(ArgumentError, match="mm adds to an output"):
        graph_runs.graph_inputs(graph, {}, 0)


def test_program():
    program = decode().program()
    assert isinstance(program, GraphProgram) and re.match("<program decode of 2 kernels for sm_", repr(program))
    assert (program.inputs, program.outputs) == (("Q", "K", "V", "scale"), ("O",)) and list(program.numbers) == ["scale"]
    assert program.stored("O").written and list(map(str, program.shape("O"))) == ["1", "1", "4", "16"]
    with pytest.raises(ArgumentError, match="no argument or result P"):
        program.stored("P")
