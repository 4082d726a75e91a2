"""What all mutants of some modules do to what is kept (`keeping`): which of them change none of it, so that somebody else must notice.

A quick sieve in front of the judge, which asks the tests too: two mutants a second. Each has a fork, in which strategies and changed kernels that
run its line are lowered again, some cheap ones first, then others at random, until one is another than before or the time is over.

    PYTHONPATH=.:tests python -m mutation survey lower decomp --file build/mutation/survey.jsonl
"""

from __future__ import annotations

import functools
import gc
import json
import multiprocessing
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
import coverage
from goldens.cases import Case
from tqdm import tqdm

from mutation import battery, keeping, zygote
from mutation.covering import FOLDER
from mutation.judge import asserted, equivalents
from mutation.operators import PACKAGE, Mutant

CHEAP = 4
"""Strategies that are asked first."""

MOST_SECONDS = 0.4
"""What takes longer to lower and print is not asked."""


@attrs.frozen
class Asked:
    """One strategy, or changed kernel, that is asked: its outcome, the seconds that it takes, and the lines of the package that it runs, by module."""

    one: Any
    case: Case
    seconds: float
    lines: dict[str, frozenset[int]]


@attrs.frozen
class Said:
    """What came of one mutant: by which strategy it is noticed (none: empty), and how many were asked of those that run its line."""

    mutant: Mutant
    by: str
    asked: int
    running: int

    def json(self) -> str:
        """One line."""
        return json.dumps({"name": self.mutant.name, "by": self.by, "asked": self.asked, "running": self.running})


def survey(mutants: Sequence[Mutant], every: Sequence[Asked], seconds: float, jobs: int, file: Path) -> None:
    """Ask about each mutant that the file says nothing of yet, and add a line for each."""
    known = {json.loads(line)["name"] for line in file.read_text(encoding="utf-8").splitlines()} if file.is_file() else set()
    left = [one for one in mutants if one.name not in known and one.inside and not (asserted(one) or one.name in equivalents())]
    _prepare(every)
    with file.open("a", encoding="utf-8") as lines, multiprocessing.Pool(jobs) as pool:
        noticed = 0
        progress = tqdm(pool.imap_unordered(functools.partial(_said, seconds=seconds), left), total=len(left), mininterval=5.0)
        for number, said in enumerate(progress):
            noticed += bool(said.by)
            progress.set_postfix_str(f"{noticed} of {number + 1} noticed", refresh=False)
            lines.write(said.json() + "\n")
            lines.flush()


EVERY: list[Asked] = []


def _prepare(every: Sequence[Asked]) -> None:
    """What each fork finds done already."""
    EVERY[:] = every
    EVERY[0].one.outcome()
    zygote._forget()
    zygote._all_functions()
    gc.collect()
    gc.freeze()


def _said(mutant: Mutant, seconds: float) -> Said:
    running = [one for one in EVERY if mutant.line in one.lines.get(mutant.module, ())]
    if not running or not mutant.is_one():
        return Said(mutant, "" if not running else "not one", 0, len(running))
    running.sort(key=lambda one: one.seconds)
    others = running[CHEAP:]
    random.Random(mutant.name).shuffle(others)
    answer = zygote.in_a_child(
        functools.partial(_answer, mutant, [*running[:CHEAP], *others]), {"seconds": seconds + 20, "enough": seconds}
    )
    return Said(mutant, answer["by"], answer.get("ran", 0), len(running))


def _answer(mutant: Mutant, running: Sequence[Asked], asked: dict[str, Any]) -> dict[str, Any]:
    try:
        zygote.swap(mutant.module, mutant.source())
    except zygote.NoPlace:
        return {"by": "no place"}
    for ran, one in enumerate(running):
        if one.one.case() != one.case:
            return {"by": one.one.name, "ran": ran + 1}
        if time.process_time() > asked["enough"]:
            return {"by": "", "ran": ran + 1}
    return {"by": "", "ran": len(running)}


# ---------------------------------------------------------------------------------------------- which lines they run


def asked(jobs: int) -> list[Asked]:
    """All that is kept and does not take long, with the lines that each runs: found out once for the sources as they are."""
    file = FOLDER / f"lines-{battery.source()}.json"
    if not file.is_file():
        FOLDER.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps([*traced_lines(keeping.everything(), jobs)]), encoding="utf-8")
    stored = json.loads(file.read_text(encoding="utf-8"))
    every = (
        Asked(one, case, seconds, {name: frozenset(some) for name, some in lines.items()})
        for one, case, (seconds, lines) in zip(keeping.everything(), keeping.known(), stored, strict=True)
    )
    return [one for one in every if one.seconds <= MOST_SECONDS]


def traced_lines(every: Sequence[Any], jobs: int) -> Iterator[tuple[float, dict[str, list[int]]]]:
    """Of each the seconds that it takes, and the lines that it runs."""
    with multiprocessing.Pool(jobs) as pool:
        yield from tqdm(pool.imap(_traced, every, chunksize=8), total=len(every), mininterval=5.0, file=sys.stderr)


def _traced(one: Any) -> tuple[float, dict[str, list[int]]]:
    for cache in keeping._caches():
        cache.cache_clear()
    before = time.process_time()
    one.case()
    seconds = time.process_time() - before
    for cache in keeping._caches():
        cache.cache_clear()
    return seconds, _lines_of(one.outcome)


def _lines_of(function: Callable[[], object]) -> dict[str, list[int]]:
    measured = coverage.Coverage(
        data_file=None, include=[f"{PACKAGE}/lower/*", f"{PACKAGE}/decomp/*", f"{PACKAGE}/stepping/*"], messages=False
    )
    measured.start()
    try:
        function()
    finally:
        measured.stop()
    data = measured.get_data()
    return {str(Path(file).relative_to(PACKAGE)): sorted(data.lines(file) or ()) for file in data.measured_files()}
