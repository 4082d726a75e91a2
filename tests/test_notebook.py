"""Displays of values in notebooks, and the notebook of docs/."""

import functools
import json
from html.parser import HTMLParser
from pathlib import Path

import pytest
import scripts

import fireiron
from fireiron import *
from fireiron.check import Finding, Findings, check
from fireiron.display import Displayed
from fireiron.language.library import bind, find, names
from fireiron.notebook import html, laid_out, pretty
from fireiron.notebook.views import VIEWS
from fireiron.strategies import attention as attention_strategies
from fireiron.strategies import tasks_gemm
from fireiron.tune.result import Result, Tuning

ROOT = Path(__file__).parent.parent
BAD = '<script>alert(1)</script> & "</b>" \''
"""Markup that a careless page would interpret."""


@functools.cache
def small():
    strategy = MatMul.tile(16, 16).to(Block).tile(1, 1).to(Thread).split(1).done()
    return strategy(MatMul(64, 32, 16)(GL, GL, GL)(Kernel))


def tasks_step():
    return tasks_gemm.strategy.steps[0]


def mapping():
    return tasks_step().mapping


def tuning():
    values = {"bm": 64, "bn": 32}
    results = (Result(values=values, status="ok", us=12.5, registers=40), Result(values={"bm": 1, "bn": 2}, status="illegal", reason=BAD))
    return Tuning(best=None, results=results, notes=(BAD,), library_us=10.0)


def graph():
    """Two products, one after the other."""
    return KernelGraph("chain", {"first": square(), "second": square()}, {"second.A": "first.C"})


def square():
    tiles = MatMul.tile(16, 16).to(Block).tile(1, 1).to(Thread).split(1).tile(1, 1).done()
    return tiles(MatMul(16, 16, 16)(GL, GL, GL)(Kernel))


def choice():
    from fireiron.tune.records import Choice

    return Choice(None, False, BAD, small().program())


EXAMPLES = {
    "AnyStarter": (lambda: AnySpec, ["AnySpec"]),
    "CompiledGraph": (lambda: graph().compile("sm_80"), ["first", "second"]),
    "GraphPrediction": (lambda: predict(graph(), "A100"), ["first", "second", "us"]),
    "GraphProgram": (lambda: graph().program("sm_80"), ["first", "second"]),
    "KernelGraph": (lambda: graph(), ["first", "second"]),
    "Choice": (choice, ["MatMul(64,32,16)", "why"]),
    "CompiledKernel": (lambda: small().compile("sm_80"), ["kernel(A, B)", "fmaf", "64 × 16", "ColMajor", "sm_80", "<svg"]),
    "Finding": (lambda: Finding("race", "error", "a_sh", BAD, at=BAD), ["1 error", "a_sh", "race"]),
    "Findings": (lambda: Findings((Finding("banks", "warning", "x", BAD),) * 3), ["3 warnings", "(3 times)"]),
    "Function": (lambda: fireiron.function(TWICE), ["y[i] = x[i] + x[i]", "in", "out"]),
    "Kernel": (lambda: small().program().ir, ["kernel IR", "FFMA", "threads a block"]),
    "Mapping": (mapping, ["gemm_host", "gemm_block", "SHARED"]),
    "Prediction": (lambda: predict(small(), "A100"), ["us on one A100", "bottleneck", 'class="bar"']),
    "Program": (lambda: small().program(), ["tile(16, 16).to(Block)", "fmaf", "<svg", "threads a block"]),
    "Record": (lambda: next(iter(Records.shipped())), ["strategy hash", "toolchain"]),
    "Records": (lambda: Records(tuple(Records.shipped())[:3]), ["3 records", "TFLOP/s"]),
    "Result": (lambda: tuning().results[1], ["bm=1", "illegal"]),
    "Spec": (lambda: small().spec, ["64 × 16", "float32", "GL", "ColMajor", "formula"]),
    "Starter": (lambda: attention_strategies.strategy.start, ["acc[m,d] = 0", "init", "body", "final"]),
    "Strategy": (small, ["tile(16, 16).to(Block)", "MatMul(16,16,16)(GL,GL,GL)(Block)", "by FFMA"]),
    "TaskMapping": (lambda: mapping().root, ["gemm_host", "HOST"]),
    "Tasks": (lambda: tasks_step().program, ["gemm_block", "inner", "W: int"]),
    "Tuning": (tuning, ["1 ok, 1 illegal", "12.5", "bm=64"]),
}
"""By view: a value, and its display."""

TWICE = Fused(name="twice", dims="i", operands={"x": "i", "y": "i"}, body={"y": "y[i] = x[i] + x[i]"})


class Tags(HTMLParser):
    """An error if tags are not closed, or if content would be executed or loaded."""

    def __init__(self):
        super().__init__()
        self.open = []

    def handle_starttag(self, tag, attributes):
        assert tag != "script" and not {"src", "href"} & {name for name, _ in attributes}
        assert not any(name.startswith("on") for name, _ in attributes)
        self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def well_formed(text):
    tags = Tags()
    tags.feed(text)
    tags.close()
    assert not tags.open and "@import" not in text and "url(" not in text


def test_every_view_has_an_example():
    assert set(EXAMPLES) == set(VIEWS)
    shown = set()
    todo = list(Displayed.__subclasses__())
    while todo:
        kind = todo.pop()
        todo += kind.__subclasses__()
        shown |= {kind} if any(one.__name__ in VIEWS for one in kind.__mro__) else set()
        assert kind in shown, f"{kind.__name__} is Displayed, and has no view"


@pytest.mark.parametrize("name", EXAMPLES)
def test_values_show_themselves(name):
    make, words = EXAMPLES[name]
    value = make()
    assert isinstance(value, Displayed) and name in {kind.__name__ for kind in type(value).__mro__}
    text = value._repr_html_()
    well_formed(text)
    assert [word for word in words if word not in text] == []
    assert "alert(1)</script>" not in text
    assert value._repr_html_() == html(value) == text


def test_unfinished_and_illegal_strategies_have_displays():
    problem = MatMul(64, 32, 16)(GL, GL, GL)(Kernel)
    opened = MatMul.tile(16, 16).to(Block)
    assert "(open)" in html(opened(problem)) and "is not decomposed yet" in html(opened(problem).program())
    illegal = html(MatMul.tile(16, 16).to(Block).tile(3, 5).to(Thread).done()(problem))
    well_formed(illegal)
    assert "not legal" in illegal and ".tile(3, 5).to(Thread)" in illegal
    assert "Tunable(&#x27;bm&#x27;" in html(find("hopper").strategy) or "Tunable('bm'" in html(find("hopper").strategy)
    racy = small().program()
    assert "refused" not in html(racy)


def test_findings_are_still_a_tuple():
    findings = check(small().program().ir)
    assert isinstance(findings, tuple) and findings == tuple(findings) and len(findings) == len(list(findings))
    assert pretty(findings).splitlines() == [str(one) for one in findings]


# ---------------------------------------------------------------------------------------------- texts


@pytest.mark.parametrize("name", [name for name in names() if not name.startswith("tasks_")])
def test_expressions_over_several_lines_evaluate(name):
    """The same value, with lines as wide as a window, except for strings written by a user."""
    strategy = find(name).strategy
    for value in (strategy, bind(find(name)).spec):
        text = pretty(value)
        assert eval(text) == value
        assert max(len(line) for line in text.splitlines() if not line.lstrip().startswith("'")) <= 120
    assert len(pretty(strategy).splitlines()) > 2


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("f(1)", "f(1)"),
        ("no python at all, in more than twenty columns", "no python at all, in more than twenty columns"),
        ("f(first=1, second='two', third=[3, 4])", "f(\n    first=1,\n    second='two',\n    third=[3, 4],\n)"),
        ("A.one(1).two(2).three(3).four(4)", "(\n    A\n    .one(1)\n    .two(2)\n    .three(3)\n    .four(4)\n)"),
        ("f('a line\\nanother line\\nthe last')", "f(\n    'a line\\n'\n    'another line\\n'\n    'the last',\n)"),
        ("(100000000000, 20000000000)", "(\n    100000000000,\n    20000000000,\n)"),
        ("{'one': 1, 'two': 2, 'three': 3}", "{\n    'one': 1,\n    'two': 2,\n    'three': 3,\n}"),
        ("f((1 + 22222222) * 3333333333)", "f(\n    (1 + 22222222)\n    * 3333333333,\n)"),
        ("f(a=1)(b=2000000000000, c=3)", "f(a=1)(\n    b=2000000000000,\n    c=3,\n)"),
    ],
)
def test_layout(text, expected):
    assert laid_out(text, 20) == expected


def test_methods_that_begin_no_line():
    text = laid_out("MatMul.tile(8, 8).to(Block).split(4).unroll().done()", 30, {"tile", "split", "done"})
    assert text == "(\n    MatMul\n    .tile(8, 8).to(Block)\n    .split(4).unroll()\n    .done()\n)"


def test_texts_of_large_values_are_short():
    program = bind(find("maxwell")).program()
    for value in (program, program.lowered, program.tree):
        assert len(repr(value)) < 200, type(value)
    kernel = MicroKernel("copy", "dst[0] = src[0];")
    assert repr(kernel) == "MicroKernel(name='copy', text='dst[0] = src[0];')" and eval(repr(kernel)) == kernel
    assert eval(repr(MicroKernel("copy", "x", threads=32))) == MicroKernel("copy", "x", threads=32)


# ---------------------------------------------------------------------------------------------- the notebook of docs/


@functools.cache
def make_notebook():
    return scripts.loaded("docs/make_notebook.py")


def stored():
    return json.loads(make_notebook().NOTEBOOK.read_text(encoding="utf-8"))


def test_the_notebook_has_the_form_of_notebooks():
    """nbformat 4.5: all fields of its schema, and no others."""
    notebook = stored()
    assert set(notebook) == {"cells", "metadata", "nbformat", "nbformat_minor"} and (notebook["nbformat"], notebook["nbformat_minor"]) == (
        4,
        5,
    )
    assert notebook["metadata"]["kernelspec"] == {"display_name": "Python 3", "language": "python", "name": "python3"}
    identities = [cell["id"] for cell in notebook["cells"]]
    assert len(set(identities)) == len(identities) and all(1 <= len(one) <= 64 for one in identities)
    for cell in notebook["cells"]:
        more = {"code": {"execution_count", "outputs"}, "markdown": set()}[cell["cell_type"]]
        assert set(cell) == {"cell_type", "id", "metadata", "source"} | more
        assert all(isinstance(line, str) and line.endswith("\n") for line in cell["source"][:-1])
        for output in cell.get("outputs", ()):
            if output["output_type"] == "stream":
                assert set(output) == {"output_type", "name", "text"} and output["name"] == "stdout"
            else:
                assert set(output) == {"output_type", "data", "metadata", "execution_count"} and output["output_type"] == "execute_result"
                assert "text/plain" in output["data"] and output["execution_count"] == cell["execution_count"]


def test_the_notebook_contains_its_outputs():
    """All cells are executed in order, and their outputs are the stored ones; run `python docs/make_notebook.py` if this fails."""
    notebook = stored()
    again = make_notebook().executed(notebook)
    for cell, other in zip(notebook["cells"], again["cells"], strict=True):
        assert cell == other, cell["id"]
    shown = {cell["id"]: cell["outputs"] for cell in again["cells"] if cell["cell_type"] == "code"}
    assert shown["run"][0]["text"] == ["largest difference from NumPy: 0.0\n"] and shown["value"][0]["data"]["text/plain"] == ["True"]
    assert any("bank conflict" in line for line in shown["swap"][0]["data"]["text/html"])
    assert shown["race"][0]["text"][0].startswith("race on ")
    for outputs in shown.values():
        for output in outputs:
            if output["output_type"] == "execute_result" and "text/html" in output["data"]:
                well_formed("".join(output["data"]["text/html"]))


def test_rules_of_tables_outrank_those_of_notebooks():
    """Jupyter's rules have a class and an element, and come later in some programs: each of ours begins with three classes."""
    sheet = small()._repr_html_().partition("<style>")[2].partition("</style>")[0]
    selectors = [part for rule in sheet.split("}") if rule for part in rule.partition("{")[0].split(",")]
    assert len(selectors) > 10 and all(selector.startswith(".fireiron.fireiron.fireiron") for selector in selectors)
    assert "text-align:left" in sheet and "white-space:pre-wrap" in sheet
