"""Findings: order, uniqueness and text."""

import attrs
from touching import T, kernel, reads, writes

from fireiron import *
from fireiron.check.finding import Finding, described, line_of, ordered, plain, table


def test_errors_come_first_then_kinds_then_the_program():
    kinds = [("note", "banks"), ("error", "race"), ("warning", "banks"), ("error", "bounds"), ("error", "race"), ("note", "alignment")]
    findings = [Finding(kind, severity, "s", f"number {place}") for place, (severity, kind) in enumerate(kinds)]
    assert [finding.message[-1] for finding in ordered(findings)] == ["3", "1", "4", "2", "5", "0"]


def test_equal_findings_are_reported_once():
    finding = Finding("race", "error", "s", "what", "a.py:1", "who", {"thread": 3})
    again = attrs.evolve(finding, details={"thread": 4})
    assert [each.details for each in ordered((finding, again))] == [{"thread": 3}]
    others = [
        attrs.evolve(finding, **{name: value})
        for name, value in (("kind", "bounds"), ("severity", "note"), ("buffer", "t"), ("message", "else"), ("at", None), ("access", "b"))
    ]
    assert len(ordered((finding, *others))) == 7


def test_texts_and_rows():
    finding = Finding("race", "error", None, "what")
    assert str(finding) == "error: race: what" and str(attrs.evolve(finding, at="a.py:1")) == "a.py:1: error: race: what"
    assert table((finding, attrs.evolve(finding, buffer="s", at="a.py:1"))) == [
        ["severity", "kind", "buffer", "at", "message"], ["error", "race", "", "", "what"], ["error", "race", "s", "a.py:1", "what"],
    ]  # fmt: skip
    assert finding.as_dict() == {
        "kind": "race", "severity": "error", "buffer": None, "message": "what", "at": None, "access": None, "details": {},
    }  # fmt: skip


def test_plain_values():
    assert plain([1, (2.5, True), {"a": None}, "text", T]) == [1, [2.5, True], {"a": None}, "text", "thread"]
    assert plain(True) is True and plain({1: 2}) == {"1": 2}


def test_description_of_an_access():
    read, write = reads(T), writes(T)
    assert described(read, read.accesses[0]) == "s read by step Move(1,1)(RF,SH)(Thread)"
    assert described(write, write.accesses[0]) == "s written by step Move(1,1)(RF,SH)(Thread)"
    same = attrs.evolve(read, instruction=attrs.evolve(read.instruction, name="Move"))
    assert described(same, same.accesses[0]) == "s read by Move(1,1)(RF,SH)(Thread)"
    own = attrs.evolve(read.accesses[0], origin=None)
    assert line_of(read, read.accesses[0]) == "hand.py:1" and line_of(attrs.evolve(read, origin="mine.py:3"), own) == "mine.py:3"
    assert line_of(attrs.evolve(read, origin="mine.py:3"), read.accesses[0]) == "hand.py:1" and line_of(read, own) is None
    assert kernel(read).body == (read,)
