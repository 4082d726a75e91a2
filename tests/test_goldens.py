"""Stored texts and refusals (`goldens`): kinds of changes, the reports of a failing test and of `make goldens`, and written files."""

import lzma

import attrs
import pytest
from goldens import __main__ as command
from goldens import cases, readable
from goldens.cases import ACCEPTED, BY_CODE, BY_COMMENTS, BY_WORDS, NEW, REFUSED, TEXT, Case, Outcome

from fireiron.cuda import Line
from fireiron.errors import DecompositionError

TEXTS = {
    "as it was": ["int a;", "  b();  // waits"],
    "another comment": ["int a;", "  b();  // waits for a"],
    "a comment more": ["// of two lines", "int a;", "  b();  // waits"],
    "other code": ["int a;", "  c();  // waits"],
}


def outcome(name, steps=()):
    return Outcome.of_lines([Line(text, steps) for text in TEXTS[name]])


def refusal(message, hint=None):
    return Outcome.refused(DecompositionError(message, hint=hint))


@pytest.mark.parametrize(
    ("before", "after", "way"),
    [
        (outcome("as it was"), outcome("as it was"), ""),
        (outcome("as it was"), outcome("another comment"), BY_COMMENTS),
        (outcome("as it was"), outcome("a comment more"), BY_COMMENTS),
        (outcome("as it was"), outcome("as it was", (("body", "move"),)), BY_COMMENTS),
        (outcome("as it was"), outcome("other code"), BY_CODE),
        (outcome("as it was"), refusal("no"), REFUSED),
        (refusal("no"), outcome("as it was"), ACCEPTED),
        (refusal("no"), refusal("no", "leave it out"), BY_WORDS),
        (refusal("no"), attrs.evolve(refusal("no"), kind="ArgumentError"), BY_WORDS),
        (refusal("no"), refusal("no"), ""),
    ],
)
def test_how_a_case_changed(before, after, way):
    assert Case.of("a", after).way(Case.of("a", before)) == way


def test_a_case_that_is_not_stored_is_new():
    assert Case.of("a", outcome("as it was")).way(None) == NEW


@pytest.fixture
def store(tmp_path, monkeypatch):
    """Cases in a separate folder."""
    monkeypatch.setattr(cases, "CASES", tmp_path / "cases.xz")
    monkeypatch.setattr(cases, "SUMMARY", tmp_path / "summary.txt")
    cases.stored.cache_clear()
    yield cases.store
    cases.stored.cache_clear()


def some(count, name="as it was"):
    return [Case.of(f"case {number}", outcome(name)) for number in range(count)]


def test_stored_cases_are_read(store):
    store({"first": some(3), "second": [Case.of("no", refusal("no"))]})
    store({"second": [*some(1), Case.of("no", refusal("no"))]})
    assert cases.cases("first") == some(3) and cases.case("second", "no").kind == "DecompositionError" and cases.cases("third") == []
    first, second = cases.SUMMARY.read_text(encoding="utf-8").splitlines()
    assert first.startswith("first: 3 cases, 0 of them refused: ") and second.startswith("second: 2 cases, 1 of them refused: ")
    store({"first": some(3, "another comment")})
    assert cases.SUMMARY.read_text(encoding="utf-8").splitlines()[1] == second, "one line for each subject"


def test_an_unchanged_file_is_not_written(store):
    store({"first": some(3)})
    cases.CASES.write_bytes(lzma.compress(lzma.decompress(cases.CASES.read_bytes()), preset=0))
    before = cases.CASES.read_bytes()
    store({"first": some(3)})
    assert cases.CASES.read_bytes() == before, "also where another library would compress it otherwise"


def test_a_failing_test_reports_names_and_commands(store):
    store({"first": some(20)})
    assert cases.differences("first", some(20)) == ""
    changed = [Case.of("case 0", outcome("another comment")), *some(14, "other code")[1:], *some(20)[14:]]
    assert cases.differences("first", changed).splitlines() == [
        "14 of 20 cases of first differ: 13 by code, 1 by comments alone",
        *(f"  by code: case {number}" for number in range(1, 11)),
        "difference of one: PYTHONPATH=.:tests python -m goldens show first 'case 0'",
        "accept all: make goldens",
    ]


def test_the_report_counts_changed_and_removed_cases(store):
    store({"first": [*some(3), Case.of("no", refusal("no")), Case.of("old", refusal("no"))]})
    computed = [*some(1), *some(2, "other code")[1:], Case.of("case 2", refusal("no")), Case.of("no", outcome("as it was"))]
    assert command._changes("first", computed) == "first: 4 of 4 cases changed: 1 by code, 1 refused now, 1 no longer refused, 1 gone"
    assert command._changes("first", some(3)) == "first: 2 of 3 cases changed: 2 gone"


def test_the_difference_of_one_case():
    difference = [*command._difference("a", "HEAD", outcome("as it was"), outcome("another comment"))]
    assert difference[:2] == ["--- a, HEAD", "+++ a, working tree"] and difference[-1] == "+  b();  // waits for a"
    of_steps = [*command._difference("a", "HEAD", outcome("as it was"), outcome("as it was", (("body", "move"),)))]
    assert of_steps[-1] == "+  b();  // waits  // body/move", "texts that agree differ in the steps beside them"
    assert [*command._difference("a", "HEAD", refusal("no"), refusal("no"))] == ["a: no difference"]
    assert [*command._difference("a", "HEAD", refusal("no"), outcome("as it was"))][3] == "-DecompositionError"


def test_readable_goldens_are_written_where_they_changed(tmp_path, monkeypatch):
    monkeypatch.setattr(readable, "ROOT", tmp_path)
    path = tmp_path / "texts" / "a.cu"
    assert [*readable.write({path: "one\ntwo\n"})][-2:] == ["+one", "+two"] and [*readable.write({path: "one\ntwo\n"})] == []
    assert readable.differences(path, "one\ntwo\n") == ""
    assert readable.differences(path, "one\n2\n").splitlines()[-3:] == ["-two", "+2", "accept: make goldens"]
    assert readable.differences(path, "one\n2\n", most=4).splitlines()[-2:] == ["... 2 more lines", "accept: make goldens"]


def test_only_refusals_are_named_like_errors():
    assert {one.kind for found in cases.stored().values() for one in found.values() if not one.refused} <= {TEXT, "offers", "nothing"}


def test_an_error_states_its_case(monkeypatch):
    """A StopIteration would end the iteration over cases without a message."""

    def fails(pair):
        raise StopIteration

    monkeypatch.setattr(command, "case_of", fails)
    with pytest.raises(RuntimeError, match="goldens show corpus 'pair 7': StopIteration"):
        command._named(("corpus", "pair 7"))
