"""The effect of a mutant on the corpus strategies, and on kernels changed between two passes: those that run its function are lowered
again, as in `tests/test_corpus.py` and `tests/test_perturbed.py`.
"""

from __future__ import annotations

import functools
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
from goldens.cases import Case, cases
from perturbed import Perturbed

from mutation import zygote
from mutation.operators import PACKAGE


@attrs.frozen
class Kept:
    """By module and function, the numbers (in `everything`) of what runs it, the quickest first."""

    functions: dict[str, list[int]]

    @staticmethod
    def traced() -> Kept:
        """Traced by running everything with empty caches."""
        by_function: dict[str, list[tuple[float, int]]] = {}
        with multiprocessing.Pool(os.cpu_count()) as pool:
            for number, (names, seconds) in enumerate(pool.imap(_traced, everything(), chunksize=8)):
                for name in names:
                    by_function.setdefault(name, []).append((seconds, number))
        return Kept({name: [number for _, number in sorted(entries)] for name, entries in by_function.items()})

    def of(self, module: str, where: str) -> list[int]:
        """Those that run a function."""
        return self.functions.get(_name(module, where.split(".")), [])

    def save(self, file: Path) -> None:
        """Write it to a file."""
        file.write_text(json.dumps(self.functions), encoding="utf-8")

    @staticmethod
    def load(file: Path) -> Kept:
        """Read it from a file."""
        return Kept(json.loads(file.read_text(encoding="utf-8")))


@functools.cache
def everything() -> list[corpus.Kept | Perturbed]:
    """All stored cases: strategies, then changed kernels."""
    return [*corpus.kept(), *(Perturbed.of(one.name) for one in cases("perturbed"))]


@functools.cache
def known() -> list[Case]:
    """The stored result of each."""
    return [*cases("corpus"), *cases("perturbed")]


def _name(module: str, where: Iterable[str]) -> str:
    """A function by its module and name; nested functions count as their enclosing one."""
    return f"{module}:{'.'.join(part for part in where if not re.fullmatch('<.*>', part))}"


def _traced(stored: corpus.Kept | Perturbed) -> tuple[set[str], float]:
    """The functions that a case runs, for a changed kernel after the change, and the seconds for tracing it."""
    if isinstance(stored, Perturbed):
        stored.kernel()
    for cache in _caches():
        cache.cache_clear()
    before = time.process_time()
    codes = _run_by(stored.outcome)
    seconds = time.process_time() - before
    prefix = f"{PACKAGE}/"
    files = [code for code in codes if code.co_filename.startswith(prefix)]
    return {_name(str(Path(code.co_filename).relative_to(PACKAGE)), code.co_qualname.split(".")) for code in files}, seconds


@functools.cache
def _caches() -> list[Any]:
    """The caches of the package's functions; most exist once it has compiled something."""
    corpus.kept()[0].outcome()
    wrappers = (one for one in zygote.objects() if isinstance(one, functools._lru_cache_wrapper))
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
    """Whether any of the given cases has changed."""
    for ran, number in enumerate(numbers):
        stored = everything()[number]
        if (case := stored.case()) != known()[number]:
            file = "test_perturbed" if isinstance(stored, Perturbed) else "test_corpus"
            return {"by": "tests", "what": f"tests/{file}.py::{stored.name}: {case.kind}", "ran": ran + 1}
        if time.process_time() > enough:
            return {"by": "", "what": "only some of the corpus", "ran": ran + 1}
    return {"by": ""}
