"""Survey all mutants of some modules: which of them change no stored strategy or kernel (`keeping`), and must be killed by other tests.

It is a quick filter before the judge, which also runs tests: two mutants per second. Each mutant has a forked process, which lowers the
stored strategies and changed kernels that run its line again, some cheap ones first, then others at random, until one differs or the time
has elapsed.

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
"""The number of strategies to try first."""

MOST_SECONDS = 0.4
"""Strategies that take longer to lower and print are not tried."""


@attrs.frozen
class Candidate:
    """A strategy or changed kernel to try: its outcome, the seconds that it takes, and the lines of the package that it runs, by module."""

    stored: Any
    case: Case
    seconds: float
    lines: dict[str, frozenset[int]]


@attrs.frozen
class Result:
    """The result for one mutant: the strategy that detects it (empty: none), and the number of tried ones among those that run its line."""

    mutant: Mutant
    by: str
    tried: int
    running: int

    def json(self) -> str:
        """As one line of JSON."""
        return json.dumps({"name": self.mutant.name, "by": self.by, "asked": self.tried, "running": self.running})


def survey(mutants: Sequence[Mutant], candidates: Sequence[Candidate], seconds: float, jobs: int, file: Path) -> None:
    """Try each mutant that is missing in the file, and add a line for each."""
    known = {json.loads(line)["name"] for line in file.read_text(encoding="utf-8").splitlines()} if file.is_file() else set()
    left = [one for one in mutants if one.name not in known and one.inside and not (asserted(one) or one.name in equivalents())]
    _prepare(candidates)
    with file.open("a", encoding="utf-8") as lines, multiprocessing.Pool(jobs) as pool:
        noticed = 0
        progress = tqdm(pool.imap_unordered(functools.partial(_result, seconds=seconds), left), total=len(left), mininterval=5.0)
        for number, result in enumerate(progress):
            noticed += bool(result.by)
            progress.set_postfix_str(f"{noticed} of {number + 1} noticed", refresh=False)
            lines.write(result.json() + "\n")
            lines.flush()


EVERY: list[Candidate] = []


def _prepare(candidates: Sequence[Candidate]) -> None:
    """Prepare what all forked processes share."""
    EVERY[:] = candidates
    EVERY[0].stored.outcome()
    zygote._forget()
    zygote._all_functions()
    gc.collect()
    gc.freeze()


def _result(mutant: Mutant, seconds: float) -> Result:
    running = [one for one in EVERY if mutant.line in one.lines.get(mutant.module, ())]
    if not running or not mutant.is_one():
        return Result(mutant, "" if not running else "not one", 0, len(running))
    running.sort(key=lambda one: one.seconds)
    others = running[CHEAP:]
    random.Random(mutant.name).shuffle(others)
    answer = zygote.in_a_child(
        functools.partial(_answer, mutant, [*running[:CHEAP], *others]), {"seconds": seconds + 20, "enough": seconds}
    )
    return Result(mutant, answer["by"], answer.get("ran", 0), len(running))


def _answer(mutant: Mutant, running: Sequence[Candidate], request: dict[str, Any]) -> dict[str, Any]:
    try:
        zygote.swap(mutant.module, mutant.source())
    except zygote.NoPlace:
        return {"by": "no place"}
    for ran, candidate in enumerate(running):
        if candidate.stored.case() != candidate.case:
            return {"by": candidate.stored.name, "ran": ran + 1}
        if time.process_time() > request["enough"]:
            return {"by": "", "ran": ran + 1}
    return {"by": "", "ran": len(running)}


# ---------------------------------------------------------------------------------------------- lines by strategy


def candidates(jobs: int) -> list[Candidate]:
    """All stored strategies that do not take long, with the lines that each runs; traced once for the present sources."""
    file = FOLDER / f"lines-{battery.source()}.json"
    if not file.is_file():
        FOLDER.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps([*traced_lines(keeping.everything(), jobs)]), encoding="utf-8")
    stored = json.loads(file.read_text(encoding="utf-8"))
    traced = (
        Candidate(strategy, case, seconds, {name: frozenset(some) for name, some in lines.items()})
        for strategy, case, (seconds, lines) in zip(keeping.everything(), keeping.known(), stored, strict=True)
    )
    return [one for one in traced if one.seconds <= MOST_SECONDS]


def traced_lines(stored: Sequence[Any], jobs: int) -> Iterator[tuple[float, dict[str, list[int]]]]:
    """The seconds of each, and the lines that it runs."""
    with multiprocessing.Pool(jobs) as pool:
        yield from tqdm(pool.imap(_traced, stored, chunksize=8), total=len(stored), mininterval=5.0, file=sys.stderr)


def _traced(stored: Any) -> tuple[float, dict[str, list[int]]]:
    for cache in keeping._caches():
        cache.cache_clear()
    before = time.process_time()
    stored.case()
    seconds = time.process_time() - before
    for cache in keeping._caches():
        cache.cache_clear()
    return seconds, _lines_of(stored.outcome)


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
