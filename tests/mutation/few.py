"""Judge a mutant by at most three test files: how many mutants the tests nearest to a module kill, without kernels, wider files and
digests.

    python -m mutation nearest check --first 0 --count 30

The nearest files are determined by a rule (`files`), not by choice: the first three, in this order, of

1. files named after the module, with more of its path first: of `check/races/order.py` `test_check_races_order.py`, `test_races_order.py`,
   `test_order.py`;
2. files of the table `covering.NEAREST` for this module alone;
3. files that import the module by its name;
4. files whose names begin with `test_` and the module's;
5. files named after its folders, the inner one first: `test_races.py`, `test_check.py`.

Stored outputs of a part are used, too: they are its contract. For the printer (`cuda`) these are the stored texts, for passes and
decompositions the stored cases of `test_passes`.

A mutant is killed by a test that fails, by a crash of the process, or by a test that runs a minute longer than all of them may take.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs

from mutation import printing
from mutation.covering import MOST_IMPORTING, NEAREST, TESTS, importing
from mutation.judge import DIGESTS, Verdict, Zygote, asked_tests, asserted, equivalents, fresh
from mutation.operators import Mutant, source

MOST_FILES = 3
"""The number of files used for a mutant."""

HANGING = 60.0
"""Seconds of processor time beyond those of all tests, after which a test is considered to hang."""

STORED = {printing.FOLDER: DIGESTS, "lower/": "tests/test_passes.py", "decomp/": "tests/test_passes.py"}
"""The stored outputs of parts."""

NEAR_TO_NOTHING = {"test_contracts", "test_documents", "test_mutants", "test_mutation", "test_campaign"}
"""Files of tests about all modules."""


@functools.cache
def files(module: str) -> tuple[str, ...]:
    """At most three test files nearest to a module, by the rule above."""
    names = dict.fromkeys((*_named(module), *_told(module), *_importing(module), *_alike(module), *_of_folders(module)))
    present = [name for name in names if name not in NEAR_TO_NOTHING and (TESTS / f"{name}.py").is_file()]
    stored = [Path(file).stem for part, file in STORED.items() if module.startswith(part)]
    return tuple(f"tests/{name}.py" for name in dict.fromkeys((*present[:MOST_FILES], *stored)))


@attrs.define
class Judge:
    """Judges mutants by their nearest files, with one process for those whose files are the same."""

    seconds: float = 60.0
    """Of processor time, for all files of a mutant together."""
    zygote: Zygote | None = None
    passing: set[tuple[str, ...]] = attrs.field(factory=set)
    """The files that are known to pass without a change."""

    def of(self, chosen: Sequence[tuple[int, Mutant]]) -> Iterator[tuple[int, Verdict]]:
        """The verdicts on numbered mutants, those with the same files one after the other."""
        try:
            for number, mutant in sorted(chosen, key=lambda pair: (files(pair[1].module), pair[0])):
                yield number, self.judge(mutant)
        finally:
            self._stop()

    def judge(self, mutant: Mutant) -> Verdict:
        """The verdict on a mutant."""
        if not mutant.is_one():
            return Verdict(mutant, "not one")
        if reason := equivalents().get(mutant.name) or asserted(mutant):
            return Verdict(mutant, "equivalent", reason)
        near = files(mutant.module)
        if not near:
            return Verdict(mutant, "", "no file is near")
        answer = self._answer(mutant, near)
        file, _, test = answer.get("what", "").partition("::")
        by = f"tests: {file.removeprefix('tests/')}" if answer["by"] == "tests" else answer["by"]
        return Verdict(mutant, by, test or file, seconds=answer.get("seconds", 0.0))

    def _answer(self, mutant: Mutant, near: tuple[str, ...]) -> dict[str, Any]:
        request: dict[str, Any] = {"module": mutant.module, "text": mutant.source(), "tests": list(near), "enough": self.seconds}
        request["seconds"] = self.seconds + HANGING
        if mutant.inside:
            answer = asked_tests(self._zygote(near).ask, request)
            if answer["by"] != "no place":
                return answer
        request |= {"kernels": [], "always": False}
        answer = fresh(request, bare=True)
        if answer["by"] == "tests":
            self._require_unchanged(mutant.module, near, request)
        return answer

    def _require_unchanged(self, module: str, near: tuple[str, ...], request: dict[str, Any]) -> None:
        """Require that the files pass without a change. Raises: RuntimeError if they fail."""
        if near not in self.passing:
            answer = fresh({**request, "text": source(module)}, bare=True)
            if answer["by"]:
                raise RuntimeError(f"{', '.join(near)} fail without a mutant: {answer['what']}")
            self.passing.add(near)

    def _zygote(self, near: tuple[str, ...]) -> Zygote:
        if self.zygote is None or self.zygote.files != near:
            self._stop()
            self.zygote = Zygote(near, bare=True)
        return self.zygote

    def _stop(self) -> None:
        if self.zygote is not None:
            self.zygote.stop()


# ---------------------------------------------------------------------------------------------- the rule


def _parts(module: str) -> list[str]:
    path = Path(module).with_suffix("")
    return [part for part in path.parts if part != "__init__"]


def _named(module: str) -> list[str]:
    parts = _parts(module)
    return ["_".join(("test", *parts[first:])) for first in range(len(parts))]


def _told(module: str) -> list[str]:
    return [f"test_{name}" for name in NEAREST.get(module, "").split()]


def _importing(module: str) -> list[str]:
    """Files that import the module itself, not modules in its folder; none if these are most files."""
    dotted = ".".join(("fireiron", *_parts(module)))
    folder, _, name = dotted.rpartition(".")
    pattern = re.compile(rf"{re.escape(dotted)}\b(?!\.)|from {re.escape(folder)} import [^\n]*\b{name}\b")
    stems = [Path(file).stem for file, text in importing() if pattern.search(text)]
    return [stem for stem in stems if not stem.endswith("_gpu")] if len(stems) <= MOST_IMPORTING else []


def _alike(module: str) -> list[str]:
    return sorted(file.stem for file in TESTS.glob(f"test_{_parts(module)[-1]}*.py") if not file.stem.endswith("_gpu"))


def _of_folders(module: str) -> list[str]:
    return [f"test_{part}" for part in _parts(module)[-2::-1]]
