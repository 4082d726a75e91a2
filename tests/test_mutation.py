"""The mutation tool (`mutation`): the changes that it makes, that a change takes effect, and that a child process always ends."""

import ast
import functools
import json
import os
import subprocess
import sys
import time

import attrs
import numpy as np
import pytest
from campaign.subjects.mutants import PASSES, PRINTER
from corpus import by_name
from goldens.cases import cases
from mutation import battery, covering, few, fresh, judge, keeping, printing, zygote
from mutation.covering import MOST_TESTS, Covering, _shortest, nearest
from mutation.judge import Verdict, summary
from mutation.operators import Mutant, Sites, modules, mutants, sample, source

from fireiron.cuda import emit
from fireiron.errors import VerificationError

CASES = [one for one in cases("corpus") if not one.refused][:3]
KEPT = [by_name()[one.name] for one in CASES]


def changes(text, monkeypatch):
    """The changed texts of a module, by operator."""
    sites = Sites("module.py", text).found()
    monkeypatch.setattr("mutation.operators.source", lambda module: text)
    return [(one.operator, one.source()) for one in sites if one.is_one()]


@pytest.mark.parametrize(
    ("text", "operator", "new"),
    [
        ("a = b < c", "comparison", "a = (b <= c)"),
        ("a = b and c", "and and or", "a = (b or c)"),
        ("a = b and c", "operand dropped", "a = (c)"),
        ("if b:\n    pass", "condition False", "if False:\n    pass"),
        ("a = [b for b in c if d]", "condition True", "a = [b for b in c if True]"),
        ("def f(a):\n    return a < b", "condition True", "def f(a):\n    return True"),
        ("def f(a):\n    return any(a)", "condition False", "def f(a):\n    return False"),
        ("def f(a):\n    return changed(a, b)", "call dropped", "def f(a):\n    return a"),
        ("a = changed(a, b)", "statement dropped", "pass"),
        ("a = -(-b // c)", "rounded down", None),
        ("a = b // c", "rounded up", "a = (-(-b // c))"),
        ("a = min(b, c)", "other function", "a = max(b, c)"),
        ("a = range(b, c)", "arguments swapped", "a = (range(c, b))"),
        ("a = [b, *c]", "element dropped", "a = ([*c])"),
        ("a = (*b, c)", "element dropped", "a = ((*b,))"),
        ("a = b + [c]", "part dropped", "a = (b)"),
        ("a = b[1:]", "bound dropped", "a = b[:]"),
        ("a = f(b, c=d)", "keyword dropped", "a = (f(b))"),
        ("a[b] = c", "statement dropped", "pass"),
        ("def f(a=1):\n    return a", "constant", "def f(a=2):\n    return a"),
        ("for a in b:\n    continue", "continue and break", "for a in b:\n    break"),
        ("match a:\n    case 1 | 2:\n        b()", "pattern dropped", "match a:\n    case 2:\n        b()"),
        ("match a:\n    case B():\n        b()", "case dropped", "match a:\n    case B() if False:\n        b()"),
    ],
)
def test_operators(text, operator, new, monkeypatch):
    changed_texts = changes(text, monkeypatch)
    assert new is None or (operator, new) in changed_texts, changed_texts


@pytest.mark.parametrize(
    "text",
    [
        '"""A text of 3 lines."""',
        "a: Final[1]",
        "raise ArgumentError(1 + 2, legal=[3])",
        "if TYPE_CHECKING:\n    import a",
        "def __repr__(self):\n    return self.a + 1",
        "class AError(Exception):\n    a = 1",
        "assert a < b",
        "def _refused(a):\n    return a[:3]",
        "@cache(3)\ndef f(a: Annotated[int, 3]) -> Literal[4]:\n    return a",
        'a = f"{b + 1}"',
        "return_ = None",
    ],
)
def test_excluded_code_is_not_mutated(text, monkeypatch):
    assert not changes(text, monkeypatch)


def test_line_numbers_do_not_change():
    for mutant in mutants("lower/guard.py"):
        assert mutant.source().count("\n") == source("lower/guard.py").count("\n"), mutant.difference()
        ast.parse(mutant.source())


def test_the_order_is_the_same_everywhere_and_contains_all():
    mutants_of_both = sample(("lower/guard.py", "lower/peeled_fills.py"))
    assert mutants_of_both == sample(("lower/peeled_fills.py", "lower/guard.py"))
    assert sorted(mutant.name for mutant in mutants_of_both) == sorted(
        mutant.name for name in ("guard", "peeled_fills") for mutant in mutants(f"lower/{name}.py")
    )
    assert len({one.module for one in mutants_of_both[:20]}) == 2


def test_every_mutated_module_has_near_test_files():
    mutated_modules = modules(*PASSES, *PRINTER)
    assert not [one for one in mutated_modules if not nearest(one) and mutants(one)]
    assert set(nearest("lower/guard.py")) >= {"tests/test_guard.py"}


def rounding():
    return next(one for one in mutants("lower/allocate.py") if one.operator == "rounded down" and one.inside)


@pytest.mark.nightly
def test_a_change_takes_effect_in_a_child_alone():
    """Every importer of the function, in any form, sees the change in the child; this process does not."""
    from fireiron.lower import allocate

    mutant = rounding()
    function = getattr(allocate, mutant.where)

    def changed(request):
        zygote.swap(mutant.module, mutant.source())
        return {"value": function(17, 16)}

    assert zygote.in_a_child(changed, {"seconds": 20})["value"] == 16
    assert function(17, 16) == 32


@pytest.mark.nightly
def test_code_that_runs_at_import_cannot_be_changed_in_place():
    outside = next(one for one in mutants("lower/pipeline.py") if not one.inside)
    with pytest.raises(zygote.NoPlace):
        zygote.swap(outside.module, outside.source())


def test_a_separate_process_has_the_change(tmp_path):
    """Also for a module that is imported only after pytest starts, and whose import hook comes first."""
    (tmp_path / "test_it.py").write_text("from fireiron.cuda.types import INT_MIN\n\n\ndef test_it():\n    assert INT_MIN == -(2**31)\n")
    (tmp_path / "kernels.json").write_text("[]")
    mutant = next(one for one in mutants("cuda/types.py") if one.where == "" and one.old == "31" and one.new == "30")
    request = {
        "module": mutant.module,
        "text": mutant.source(),
        "kernels": [],
        "always": False,
        "tests": [str(tmp_path / "test_it.py")],
        "enough": 1e9,
    }
    (tmp_path / "asked.json").write_text(json.dumps(request))
    environment = {**os.environ, zygote.FRESH: str(tmp_path / "asked.json"), zygote.KERNELS: str(tmp_path / "kernels.json")}
    environment["PYTHONPATH"] = os.pathsep.join([str(judge.ROOT), str(judge.ROOT / "tests")])
    done = subprocess.run([sys.executable, "-m", "mutation.fresh"], env=environment, cwd=judge.ROOT, capture_output=True, text=True)
    assert json.loads(done.stdout.splitlines()[-1])["by"] == "tests", done.stderr


def test_nested_functions_are_replaced_with_their_enclosing_one():
    """A change that removes a generator inside a function is made in place."""
    from fireiron.cuda import skipping_loops

    mutant = next(
        mutant
        for mutant in mutants("cuda/skipping_loops.py")
        if mutant.where == "as_skipping_loop"
        and mutant.operator == "operand dropped"
        and "for one in" in mutant.old
        and "for one in" not in mutant.new
    )
    assert zygote.in_a_child(lambda asked: {"by": str(zygote.swap(mutant.module, mutant.source()))}, {"seconds": 20})["by"] == "None"
    assert callable(skipping_loops.as_skipping_loop)


def test_a_child_that_hangs_or_dies_gives_a_verdict():
    assert zygote.in_a_child(lambda asked: time.sleep(600), {"seconds": 0.01})["by"] == "time"
    assert zygote.in_a_child(lambda asked: os._exit(3), {"seconds": 1})["by"] == "crash: process"
    assert zygote.in_a_child(lambda asked: 1 // 0, {"seconds": 1})["by"] == "crash: ZeroDivisionError"


class Kernel:
    """A kernel whose text changes, or which a detector reports."""

    name = "kernel"

    def __init__(self, who, what):
        self.answer = who, what

    def judged(self, always):
        return self.answer


def test_the_first_kernel_that_is_wrong_kills():
    same, other, wrong = Kernel("", "same"), Kernel("", "another text"), Kernel("NumPy", "C is not what NumPy says")
    assert zygote.of_kernels([same], False) == {"by": "", "changed": False, "what": ""}
    assert zygote.of_kernels([same, other], False) == {"by": "", "changed": True, "what": "kernel"}
    assert zygote.of_kernels([other, wrong, same], False)["by"] == "NumPy"


class Text:
    """A lowered kernel, its printed text, and whether that gives wrong results."""

    item = Kernel("", "")
    kernels = ()

    def __init__(self, now, wrong="", before="", before_wrong=""):
        self.now, self.text, self.verdicts = now, before or "text", {now: wrong, before or "text": before_wrong}

    def printed(self):
        if isinstance(self.now, Exception):
            raise self.now
        return self.now

    def wrong(self, text):
        return self.verdicts[text]


def test_only_texts_with_wrong_results_kill():
    assert printing.judged([Text("text")]) == {"by": "", "changed": False, "what": ""}
    assert printing.judged([Text("text"), Text("other")])["changed"], "another text alone kills nobody"
    assert printing.judged([Text("text"), Text("other", "C is not what NumPy says")])["by"] == "printed text"
    assert printing.judged([Text("other", "no emulation", before_wrong="no emulation")])["by"] == "", "what cannot be run kills nobody"
    assert printing.judged([Text(KeyError("a"))])["by"] == "crash: KeyError"
    assert printing.judged([Text(VerificationError("a"))])["by"] == "refusal: VerificationError"


@pytest.mark.nightly
def test_a_kernel_is_printed_and_run():
    """Compiled twice, with sanitizers."""
    from printed_text import COMPILER
    from test_texts import kernel

    item = battery.Item("naive", "", None, {}, True)
    lowered = kernel("naive")
    item.arrays = {"A": np.ones((40, 40), np.float32), "B": np.ones((40, 48), np.float32)}
    item.expected = {"C": item.arrays["A"] @ item.arrays["B"]}
    case = printing.Lowered(item, (lowered,), emit(lowered))
    assert case.printed() == case.text and case.wrong(case.text) == ""
    if COMPILER is not None:
        assert case.wrong(case.text.replace("k > 0 ?", "k > 1 ?")) == "C is not what NumPy says"


def test_tests_that_fail_without_a_change_kill_nothing(monkeypatch):
    failing = {"a": {None, "change"}, "b": {"change"}, "c": set()}

    class Asked:
        def ask(self, request):
            tests = [one for one in request["tests"] if one not in request["without"]]
            failed = next((one for one in tests if request["text"] in failing[one]), None)
            return {"by": "tests", "what": failed} if failed else {"by": ""}

    monkeypatch.setattr(judge, "zygote_of", lambda module: Asked())
    monkeypatch.setattr(judge, "FAILING", set())
    monkeypatch.setattr(judge, "PASSING", set())
    ask = functools.partial(judge._asked_tests, "lower/guard.py")
    assert ask({"text": "change", "tests": ["a", "b"]})["what"] == "b"
    assert ask({"text": "change", "tests": ["a", "c"]})["by"] == "" and {*judge.FAILING} == {"a"}


def test_the_nearest_files_are_found_by_a_rule(monkeypatch, tmp_path):
    """By name, longer parts of the path first; the table; imports; prefixes of names; folders."""
    files = {
        "test_order.py": "", "test_races_order.py": "", "test_other.py": "from fireiron.check.races import order, places",
        "test_orders.py": "", "test_races.py": "", "test_check.py": "import fireiron.check.races.order_of",
    }  # fmt: skip
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(few, "TESTS", tmp_path)
    monkeypatch.setattr(covering, "TESTS", tmp_path)
    test_names = ["test_races_order", "test_order", "test_told", "test_other", "test_orders", "test_races", "test_check"]
    monkeypatch.setitem(covering.NEAREST, "check/races/order.py", "told")
    few.files.cache_clear(), covering.importing.cache_clear()
    try:
        assert few.files("check/races/order.py") == ("tests/test_races_order.py", "tests/test_order.py", "tests/test_other.py")
        monkeypatch.setattr(few, "MOST_FILES", len(test_names))
        few.files.cache_clear()
        (tmp_path / "test_told.py").write_text("")
        assert few.files("check/races/order.py") == tuple(f"tests/{name}.py" for name in test_names)
    finally:
        few.files.cache_clear(), covering.importing.cache_clear()


def test_every_detector_has_near_test_files():
    detector_modules = modules("check", "sim")
    assert not [one for one in detector_modules if mutants(one) and not few.files(one)]
    assert all(len(few.files(one)) <= few.MOST_FILES for one in detector_modules)


@pytest.mark.nightly
def test_only_the_nearest_files_run(monkeypatch):
    """A near test that fails kills, in a child as in a process that imports the change; without one the mutant survives."""
    outside = next(one for one in mutants("lower/allocate.py") if not one.inside and one.is_one())
    skipping_loops = [(3, rounding()), (4, outside)]
    monkeypatch.setattr(few, "files", lambda module: ("tests/test_numerals.py",))
    assert {number: verdict.by for number, verdict in few.Judge(10.0).of(skipping_loops)} == {3: "", 4: ""}
    monkeypatch.setattr(few, "files", lambda module: ("tests/test_allocate.py",))
    ((number, verdict),) = few.Judge(10.0).of(skipping_loops[:1])
    assert (number, verdict.killed, verdict.by) == (3, True, "tests: test_allocate.py") and verdict.what.startswith("test_")


def test_assertions_are_left_alone():
    all_mutants = mutants("gpu/prepared.py")
    assertions = [one for one in all_mutants if judge.asserted(one)]
    assert {one.operator for one in assertions} == {"keyword dropped", "constant"} and all("strict" in one.text for one in assertions)
    others = {one.operator for one in all_mutants if "strict=True" in one.text and not judge.asserted(one)}
    assert "loop never" in others, "what else may be changed of such a line"


def test_the_score_leaves_out_equivalents():
    mutant = rounding()
    verdicts = [Verdict(mutant, by) for by in ("NumPy", "tests: test_guard.py", "", "equivalent", "not one")]
    assert summary(verdicts) == (4, 2, 1)
    assert [one.killed for one in verdicts] == [True, True, False, False, False]


def test_equivalents_belong_to_existing_mutants():
    """A removed line takes its mutants with it."""
    listed = judge.equivalents()
    known = {one.name for module in {name.partition(":")[0] for name in listed} for one in mutants(module)}
    assert not [name for name in listed if name not in known], "remove these from equivalent.json"
    assert all(len(reason) > 20 for reason in listed.values())


def test_moved_lines_keep_their_tests(monkeypatch):
    old = "a\nb\nc\n"
    covering = Covering([("tests/test_a.py::test", 0.5)], {"m.py": {"2": [0]}}, {"m.py": old})
    monkeypatch.setattr("mutation.covering.source", functools.partial({"m.py": "x\na\nb\nc\n"}.__getitem__))
    assert covering.of("m.py", 3) == [("tests/test_a.py::test", 0.5)] and covering.of("m.py", 2) == []


def test_the_shortest_tests_of_each_file_are_stored_for_a_line():
    few = [("a::1", 3.0), ("a::2", 1.0), ("b::1", 2.0), ("a::3", 2.5)]
    assert _shortest(few, range(4)) == [1, 2, 3, 0]
    many = [(f"{'abc'[number % 3]}::{number}", float(number)) for number in range(200)]
    kept = _shortest(many, range(200))
    assert len(kept) == MOST_TESTS and {many[one][0][0] for one in kept} == set("abc") and max(kept) < MOST_TESTS + 3


@pytest.mark.nightly
def test_strategies_of_the_corpus_run_by_function(tmp_path):
    names, seconds = keeping._traced(KEPT[0])
    assert {"lower/walk.py:grow_tree", "compiler.py:Program.lowered"} <= names and seconds > 0
    stored = keeping.Kept({"lower/walk.py:a.b": [2, 0]})
    stored.save(tmp_path / "kept.json")
    assert keeping.Kept.load(tmp_path / "kept.json") == stored
    assert stored.of("lower/walk.py", "a.b") == [2, 0] and stored.of("lower/walk.py", "a") == []
    assert keeping._name("lower/walk.py", ["a", "<locals>", "b", "<locals>", "<listcomp>"]) == "lower/walk.py:a.b"


def test_a_strategy_that_is_another_kills(monkeypatch):
    known = [*CASES[:2], attrs.evolve(CASES[2], whole="another")]
    monkeypatch.setattr(keeping.corpus, "kept", lambda: KEPT[:3])
    monkeypatch.setattr(keeping, "known", lambda: known)
    assert keeping.judged([0, 1], 1000.0) == {"by": ""}
    assert keeping.judged([0, 2], 1000.0)["what"].startswith(f"tests/test_corpus.py::{KEPT[2].name}")
    assert keeping.judged([0, 2], 0.0)["what"] == "only some of the corpus"


def test_a_separate_process_stops_at_its_time_limit():
    watch = fresh.Until(1e9)
    watch.pytest_runtest_logfinish()
    assert watch.pytest_runtest_protocol() is None
    watch.enough = 0.0
    watch.pytest_runtest_logfinish()
    assert watch.pytest_runtest_protocol() is True and watch.failed == ""


def test_a_mutant_name_is_stable_under_other_changes():
    mutant = rounding()
    assert isinstance(mutant, Mutant) and mutant.name.startswith("lower/allocate.py:") and str(mutant.line) not in mutant.name.split(":")[1]


@pytest.mark.parametrize(("module", "name"), [("lower/walk.py", "fireiron.lower.walk"), ("ir/__init__.py", "fireiron.ir")])
def test_a_separate_process_imports_the_change(module, name, tmp_path):
    """Also for a module that is not imported when pytest starts, and which finds the package's files itself."""
    assert zygote.dotted(module) == name
    request = tmp_path / "request.json"
    request.write_text(json.dumps({"module": module, "text": "1 // 0", "kernels": [], "tests": [], "always": False}), encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), zygote.FRESH: str(request), zygote.KERNELS: ""}
    done = subprocess.run([sys.executable, "-m", "mutation.fresh"], env=environment, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1])["by"] == "import: ZeroDivisionError"
