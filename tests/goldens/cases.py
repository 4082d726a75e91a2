"""Cases with their stored results: two digests each, in one compressed file for all, and a readable line per subject."""

from __future__ import annotations

import functools
import hashlib
import lzma
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import attrs

from fireiron.cuda import Line
from fireiron.errors import FireironError

FOLDER = Path(__file__).resolve().parent
CASES, SUMMARY = FOLDER / "cases.xz", FOLDER / "summary.txt"
MOST_NAMES = 10
"""The number of cases that a message names."""

TEXT = "text"
BY_CODE, BY_COMMENTS, BY_WORDS = "by code", "by comments alone", "refused in other words"
REFUSED, ACCEPTED, NEW, GONE = "refused now", "no longer refused", "new", "gone"
WAYS = (BY_CODE, BY_COMMENTS, BY_WORDS, REFUSED, ACCEPTED, NEW, GONE)
"""The kinds of changes of a case."""


@attrs.frozen
class Outcome:
    """The outcome of a case: a text, or a refusal with the whole error.

    `annotations` is unprinted data of a text: the steps of the tree that made each line. It counts as a comment.
    """

    kind: str
    body: str
    annotations: str = ""

    @staticmethod
    def of_lines(lines: Iterable[Line]) -> Outcome:
        """The outcome of a case that ends in the lines of a text."""
        all_lines = [*lines]
        return Outcome(
            TEXT, "\n".join(line.text for line in all_lines), "\n".join(f"{line.text}  // {_written(line)}" for line in all_lines)
        )

    @staticmethod
    def refused(error: FireironError) -> Outcome:
        """The outcome of a case that ends in an error."""
        return Outcome(
            type(error).__name__, "\n".join(str(part) for part in (error.asked, error.got, error.legal, error.within, error.hint))
        )

    @property
    def code(self) -> str:
        """The text without comments; empty for a refusal."""
        if self.kind.endswith("Error"):
            return ""
        lines = (re.sub(r"[ \t]*//.*", "", line) for line in self.body.splitlines())
        return "\n".join(line for line in lines if line)


@attrs.frozen
class Case:
    """One line of the file: a case by its name, its kind (`text`, or the name of an error), and the digests of its code and of everything."""

    name: str
    kind: str
    code: str
    whole: str

    @staticmethod
    def of(name: str, outcome: Outcome) -> Case:
        """The case with an outcome."""
        return Case(name, outcome.kind, digest(outcome.code), digest(f"{outcome.body}\n{outcome.annotations}"))

    @property
    def refused(self) -> bool:
        """Whether the outcome is an error."""
        return self.kind.endswith("Error")

    def way(self, before: Case | None) -> str:
        """The kind of difference from the stored case; empty if there is none."""
        if before is None:
            return NEW
        if self == before:
            return ""
        if self.refused or before.refused:
            return BY_WORDS if self.refused and before.refused else REFUSED if self.refused else ACCEPTED
        return BY_COMMENTS if (self.kind, self.code) == (before.kind, before.code) else BY_CODE


def _written(line: Line) -> str:
    return " ".join("/".join(map(str, path)) for path in line.steps)


def digest(text: str) -> str:
    """A short hash of 40 bits, to detect changed texts."""
    return hashlib.sha256(text.encode()).hexdigest()[:10]


# ---------------------------------------------------------------------------------------------- what is stored


@functools.cache
def stored() -> Mapping[str, Mapping[str, Case]]:
    """The cases of all subjects by their names, in stored order."""
    by_subject: dict[str, dict[str, Case]] = {}
    if CASES.is_file():
        for line in lzma.decompress(CASES.read_bytes()).decode().splitlines():
            subject, *fields = line.split("\t")
            case = Case(*fields)
            by_subject.setdefault(subject, {})[case.name] = case
    return by_subject


def cases(subject: str) -> list[Case]:
    """The stored cases of a subject."""
    return [*stored().get(subject, {}).values()]


def case(subject: str, name: str) -> Case:
    """One stored case."""
    return stored()[subject][name]


def store(cases_by_subject: Mapping[str, Iterable[Case]]) -> None:
    """Store the cases of these subjects instead of the present ones, and keep those of other subjects. Unchanged files are not written."""
    together = {
        **{subject: [*found.values()] for subject, found in stored().items()},
        **{subject: [*found] for subject, found in cases_by_subject.items()},
    }
    lines = ["\t".join((subject, *attrs.astuple(one))) for subject, found in sorted(together.items()) for one in found]
    text = "".join(f"{line}\n" for line in lines).encode()
    if not CASES.is_file() or lzma.decompress(CASES.read_bytes()) != text:
        CASES.write_bytes(lzma.compress(text, preset=9))
    SUMMARY.write_text(summary(together), encoding="utf-8")
    stored.cache_clear()


def summary(cases_by_subject: Mapping[str, Sequence[Case]]) -> str:
    """The text of `summary.txt`: a line for each subject."""
    lines = []
    for subject, subject_cases in sorted(cases_by_subject.items()):
        refused = sum(one.refused for one in subject_cases)
        of_all = digest("\n".join("\t".join(attrs.astuple(one)) for one in subject_cases))
        lines.append(f"{subject}: {len(subject_cases)} cases, {refused} of them refused: {of_all}\n")
    return "".join(lines)


# ---------------------------------------------------------------------------------------------- what changed


def differences(subject: str, computed: Sequence[Case]) -> str:
    """The report of a test about cases that differ from the stored ones, with the commands that show and accept the change; empty if none
    differ.
    """
    before = stored().get(subject, {})
    changed = [(way, one.name) for one in computed if (way := one.way(before.get(one.name)))]
    if not changed:
        return ""
    counts = Counter(way for way, _ in changed)
    named = [f"  {way}: {name}" for way, name in sorted(changed, key=lambda pair: WAYS.index(pair[0]))[:MOST_NAMES]]
    return "\n".join(
        (
            f"{len(changed)} of {len(computed)} cases of {subject} differ: {', '.join(f'{counts[way]} {way}' for way in WAYS if counts[way])}",
            *named,
            f"difference of one: PYTHONPATH=.:tests python -m goldens show {subject} {shlex.quote(changed[0][1])}",
            "accept all: make goldens",
        )
    )
