"""Run one tuning job on an executor's worker in a separate process, so that the worker survives a crash."""

from __future__ import annotations

from typing import Any

from fireiron.tune.worker_pool import MEASURE, Outcome, WorkerPool


def run_isolated(payload: bytes, verb: str, arguments: tuple[Any, ...], seconds: float) -> tuple[dict[str, Any], Outcome | None]:
    """Start the measurement, execute one job (none if `verb` is empty), and end. Return the place and the outcome of the job."""
    with WorkerPool(payload, {MEASURE: [None]}, renews=False) as pool:
        (where,) = pool.where()
        if not verb:
            return where, None
        pool.give(MEASURE, 0, verb, arguments, seconds)
        while True:
            outcomes = pool.outcomes(seconds)
            if outcomes:
                return where, outcomes[0]
