"""What a mutant does to the strategies of the corpus: those that run its function are lowered and printed again, as `tests/test_corpus.py` does."""

from __future__ import annotations

import functools
import gc
import json
import multiprocessing
import os
import re
import sys
import time
import types
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import attrs
import corpus

from mutation.operators import PACKAGE


@attrs.frozen
class Kept:
    """By module and function, the places in the corpus of what runs it, the quickest first."""

    functions: dict[str, list[int]]

    @staticmethod
    def traced() -> Kept:
        """Found out, by a run of the whole corpus, in which no strategy finds what others left in caches."""
        found: dict[str, list[tuple[float, int]]] = {}
        with multiprocessing.Pool(os.cpu_count()) as pool:
            for number, (names, seconds) in enumerate(pool.imap(_traced, corpus.kept(), chunksize=8)):
                for name in names:
                    found.setdefault(name, []).append((seconds, number))
        return Kept({name: [number for _, number in sorted(entries)] for name, entries in found.items()})

    def of(self, module: str, where: str) -> list[int]:
        """Those that run a function."""
        return self.functions.get(_name(module, where.split(".")), [])

    def save(self, file: Path) -> None:
        """Write it down."""
        file.write_text(json.dumps(self.functions), encoding="utf-8")

    @staticmethod
    def load(file: Path) -> Kept:
        """What was written down."""
        return Kept(json.loads(file.read_text(encoding="utf-8")))


def _name(module: str, where: Iterable[str]) -> str:
    """A function by its module and name, what stands in it counted to it."""
    return f"{module}:{'.'.join(part for part in where if not re.fullmatch('<.*>', part))}"


def _traced(one: corpus.Kept) -> tuple[set[str], float]:
    """The functions that one of them runs, and the seconds that it takes to find that out."""
    for cache in _caches():
        cache.cache_clear()
    before = time.process_time()
    codes = _run_by(one.outcome)
    seconds = time.process_time() - before
    prefix = f"{PACKAGE}/"
    files = [code for code in codes if code.co_filename.startswith(prefix)]
    return {_name(str(Path(code.co_filename).relative_to(PACKAGE)), code.co_qualname.split(".")) for code in files}, seconds


@functools.cache
def _caches() -> list[Any]:
    """The caches of the package's functions; most are there once it has made something."""
    corpus.kept()[0].outcome()
    wrappers = (one for one in gc.get_objects() if isinstance(one, functools._lru_cache_wrapper))
    return [one for one in wrappers if (getattr(one, "__module__", None) or "").startswith("fireiron")]


def _run_by(function: Callable[[], object]) -> set[types.CodeType]:
    """The code that a call runs."""
    codes: set[types.CodeType] = set()
    sys.setprofile(lambda frame, event, _: codes.add(frame.f_code))
    try:
        function()
    finally:
        sys.setprofile(None)
    return codes


def judged(numbers: Iterable[int], enough: float) -> dict[str, Any]:
    """Whether any of these is another than it was."""
    every, lines = corpus.kept(), corpus.outcomes()
    for ran, number in enumerate(numbers):
        if (line := every[number].line()) != lines[number]:
            return {"by": "tests", "what": f"tests/test_corpus.py::{every[number].name}: {line.split('  ')[1]}", "ran": ran + 1}
        if time.process_time() > enough:
            return {"by": "", "what": "only some of the corpus", "ran": ran + 1}
    return {"by": ""}
