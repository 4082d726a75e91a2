"""Tuning: find the fastest values of a strategy's tunables on a GPU by measurement (docs/tuning.md).

This module defines only the names that `import fireiron` needs. It imports the other modules when they are used.

May import: the compiler, gpu, measure, and what these may import.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from fireiron.language.strategy import Strategy
    from fireiron.language.tree import Executable
    from fireiron.spec import Spec
    from fireiron.tune.measure import Measure, Measured, OnGpu, Together
    from fireiron.tune.progress import Display, Progress, Report
    from fireiron.tune.result import Result, Tuning
    from fireiron.tune.search import Prune
    from fireiron.tune.task import Candidate
    from fireiron.values.machine import Architecture

_PARTS: Final[Mapping[str, str]] = {
    "Candidate": "task", "Display": "progress", "Measure": "measure", "Measured": "measure", "OnGpu": "measure", "Progress": "progress",
    "Prune": "search", "Result": "result", "Together": "measure", "Tuning": "result",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _PARTS:
        raise AttributeError(f"module 'fireiron.tune' has no attribute {name!r}")
    return getattr(importlib.import_module(f"fireiron.tune.{_PARTS[name]}"), name)


def tune(
    strategy: Strategy,
    spec: Spec | None = None,
    *,
    arch: Architecture | str | None = None,
    fixed: Mapping[str, int] | None = None,
    sizes: Mapping[str, int] | None = None,
    search: str = "exhaustive",
    trials: int | None = None,
    seconds: float | None = None,
    prune: Prune | float | bool | None = True,
    timeout: float = 30.0,
    seed: int = 0,
    finalists: int = 5,
    journal: str | os.PathLike[str] | None = None,
    restart: bool = False,
    gpu_ids: Sequence[int] | None = None,
    executor: Any = None,
    jobs: int | None = None,
    report: Report | None = None,
    measure: Measure | None = None,
    name: str = "strategy",
    instructions: tuple[Executable, ...] | None = None,
) -> Tuning:
    """Measure values of a strategy's tunables for a spec, and find the fastest ones.

    All arguments except the first two are keywords with a default. They are grouped into a `Task`, `Options` and an `Execution`.

    Args:
        strategy: a strategy with tunables.
        spec: the spec to which the strategy is bound; None if it is already bound.
        arch: the target; default: the target of the GPU.
        fixed: values of tunables that are not searched.
        sizes: the values of run-time sizes.
        search: "exhaustive", "random" or "tpe" (needs optuna).
        trials: the number of legal candidates after which "random" and "tpe" stop (default 100). With "exhaustive", only the
            candidates with the `trials` best predictions are measured.
        seconds: stop after this time, with the best candidate so far.
        prune: the rules for candidates that are not measured: True, False, a factor of the best prediction, or a `Prune`.
        timeout: seconds that verifying and timing one candidate may take; slow kernels get more.
        seed: the seed of the search.
        finalists: the number of best candidates that are measured again, together, at the end.
        journal: the file of results; default: a file in the cache folder for this task. Results in it are not measured again.
        restart: discard the results in the journal.
        gpu_ids: GPUs to use, one process each; default: the current GPU.
        executor: a `concurrent.futures.Executor` to use instead of local GPUs: each candidate is one job.
        jobs: the number of processes that lower and compile; default: one for each processor.
        report: a function that is called with a `Progress` several times per second.
        measure: a measurement other than `OnGpu()`.
        name: the name of the strategy in records: a name of the library, or `path.py:name`.
        instructions: the instruction set, if it is not the package's.

    Raises:
        ArgumentError, LaunchError, StoreError: the arguments do not match, there is no GPU, or the journal belongs to another task.
            A candidate that fails raises no error: the failure is its result.
    """
    from fireiron.tune import run
    from fireiron.tune.measure import OnGpu
    from fireiron.tune.search import Prune

    options = run.Options(
        search=search, trials=trials, seconds=seconds, prune=Prune.of(prune), seed=seed, finalists=finalists, report=report
    )
    execution = run.Execution(gpu_ids=gpu_ids, executor=executor, jobs=jobs, timeout=timeout, journal=journal, restart=restart)
    gauge = OnGpu() if measure is None else run.checked_measure(measure)
    # An executor's workers may run on other machines with other GPUs.
    target = arch or (None if executor is not None else gauge.architecture())
    task = run.task_of(strategy, spec, target, fixed=fixed, sizes=sizes, name=name, instructions=instructions)
    return run.tuning(task, options, gauge, execution)


def rank(
    strategy: Strategy,
    spec: Spec | None = None,
    *,
    arch: Architecture | str | None = None,
    fixed: Mapping[str, int] | None = None,
    sizes: Mapping[str, int] | None = None,
    seconds: float | None = None,
    jobs: int | None = None,
    report: Report | None = None,
    name: str = "strategy",
    instructions: tuple[Executable, ...] | None = None,
) -> Tuning:
    """Rank all candidates by the cost model, without compiler, GPU and measurement. Arguments as for `tune`.

    Candidates are lowered in a fixed random order. The search ends after `seconds`, but not before 64 candidates; `stopped` then reports
    how many were examined.

    Raises: ArgumentError if the cost model has no prediction for a legal candidate.
    """
    from fireiron.tune import run

    task = run.task_of(strategy, spec, arch, fixed=fixed, sizes=sizes, name=name, instructions=instructions)
    return run.prediction(task, jobs, report, seconds)


__all__ = [
    "Candidate", "Display", "Measure", "Measured", "OnGpu", "Progress", "Prune", "Result", "Together", "Tuning", "rank", "tune",
]  # fmt: skip
