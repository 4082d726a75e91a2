"""One job of a tuning on an executor's worker: in a process of its own there, so that the worker outlives whatever happens."""

from __future__ import annotations

from typing import Any

from fireiron.tune.worker_pool import MEASURE, Outcome, WorkerPool


def run_isolated(payload: bytes, verb: str, arguments: tuple[Any, ...], seconds: float) -> tuple[dict[str, Any], Outcome | None]:
    """Start the measurement here, do one job (none if `verb` is empty), end; the place, and what became of the job."""
    with WorkerPool(payload, {MEASURE: [None]}, renews=False) as pool:
        (where,) = pool.where()
        if not verb:
            return where, None
        pool.give(MEASURE, 0, verb, arguments, seconds)
        while True:
            found = pool.outcomes(seconds)
            if found:
                return where, found[0]
