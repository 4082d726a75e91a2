"""Tuning: find the fastest values of a strategy's tunables on a GPU by measurement (docs/tuning.md).

Only what `import fireiron` needs is defined here; the parts are imported when they are used.

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
    """Measure a strategy's tunables for a spec, and find the fastest.

    All but the first two are options by name, each with a default; they become a `Task` (what), `Options` (how) and a `Place` (where).

    Args:
        strategy: with tunables; `spec` binds it, unless it is bound.
        arch: the target; that of the GPU if none is named.
        fixed: values of tunables that are not searched; `sizes` those of sizes known at run time.
        search: "exhaustive", "random" or "tpe" (needs optuna); the last two stop after `trials` legal candidates (100).
            With "exhaustive", `trials` keeps so many of the best predictions.
        seconds: stop then, with the best so far.
        prune: what is not measured: True, False, a factor of the best prediction, or a `Prune`.
        timeout: seconds that verifying and timing one candidate may take; slow kernels get more.
        seed: of the search.
        finalists: so many of the best are measured again together at the end.
        journal: the file of results, by default one in the cache folder for this task; results in it are not measured again.
            `restart` empties it first.
        gpu_ids: GPUs to use, one process each; by default the current one.
        executor: a `concurrent.futures.Executor`, in place of GPUs here: each candidate is one job.
        jobs: processes that lower and compile; by default one for each processor.
        report: called with a `Progress` now and then.
        measure: another measurement than `OnGpu()`.
        name: what records call the strategy: a name of the library, or `path.py:name`.
        instructions: the instruction set, if not the package's own.

    Raises:
        ArgumentError, LaunchError, StoreError: the arguments do not fit, there is no GPU, the journal is another task's. A candidate
            that fails, in whatever way, is a result, not an error.
    """
    from fireiron.tune import run
    from fireiron.tune.measure import OnGpu
    from fireiron.tune.search import Prune

    options = run.Options(
        search=search, trials=trials, seconds=seconds, prune=Prune.of(prune), seed=seed, finalists=finalists, report=report
    )
    place = run.Place(gpu_ids=gpu_ids, executor=executor, jobs=jobs, timeout=timeout, journal=journal, restart=restart)
    gauge = OnGpu() if measure is None else run.checked_measure(measure)
    # An executor's workers may be other machines: the GPU here says nothing about theirs.
    target = arch or (None if executor is not None else gauge.architecture())
    task = run.task_of(strategy, spec, target, fixed=fixed, sizes=sizes, name=name, instructions=instructions)
    return run.tuning(task, options, gauge, place)


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

    They are taken in a random order, always the same; after `seconds`, and 64 of them, the ranking is of those that were looked at, and
    `stopped` says how many these are.

    Raises: ArgumentError: there is no prediction for any of them.
    """
    from fireiron.tune import run

    task = run.task_of(strategy, spec, arch, fixed=fixed, sizes=sizes, name=name, instructions=instructions)
    return run.prediction(task, jobs, report, seconds)


__all__ = [
    "Candidate", "Display", "Measure", "Measured", "OnGpu", "Progress", "Prune", "Result", "Together", "Tuning", "rank", "tune",
]  # fmt: skip
