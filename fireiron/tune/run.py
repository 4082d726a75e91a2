"""Search for the best candidate: lower and predict, prune, measure in the order of predictions, and measure the finalists together."""

from __future__ import annotations

import datetime
import hashlib
import itertools
import json
import math
import os
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs

from fireiron import settings
from fireiron._version import VERSION
from fireiron.errors import ArgumentError
from fireiron.tune.bench import PREPARE, Local, Remote, Setting, surveys
from fireiron.tune.journal import Journal
from fireiron.tune.measure import Measure, Together
from fireiron.tune.progress import Progress, Report
from fireiron.tune.record import Record
from fireiron.tune.result import Result, Tuning, ranked
from fireiron.tune.search import MOST_EXHAUSTIVE, MOST_STALE, SEARCHES, TRIALS, Optimizer, Prune, draws, in_order
from fireiron.tune.task import Surveyed, Task, make_task, packed
from fireiron.tune.worker_pool import MEASURE, WorkerPool
from fireiron.values.machine import as_integer

REPORT_SECONDS: Final = 0.1
"""Minimum seconds between two progress reports, except at the start and the end of a phase."""

LEAST_PREDICTED: Final = 64
"""The number of candidates that the cost model ranks without a time limit: small spaces are ranked completely."""

MOST_FINALS: Final = 3
"""Maximum number of final measurements. A measurement that detects a wrong or outdated finalist is repeated."""


@attrs.frozen(kw_only=True)
class Options:
    """The checked arguments of `tune` that specify the search."""

    search: str = attrs.field()
    trials: int | None = attrs.field(validator=lambda _, field, value: _check_whole(field.name, value, 1))
    seconds: float | None = attrs.field(validator=lambda _, field, value: _check_positive(field.name, value))
    prune: Prune
    seed: int = attrs.field(validator=lambda _, field, value: _check_whole(field.name, value, 0))
    finalists: int = attrs.field(validator=lambda _, field, value: _check_whole(field.name, value, 1))
    report: Report | None

    @search.validator
    def _check_search(self, _: Any, value: str) -> None:
        if value not in SEARCHES:
            raise ArgumentError("tune: the search is unknown", got=value, legal=SEARCHES)


@attrs.frozen(kw_only=True)
class Execution:
    """The checked arguments of `tune` that specify the processes, GPUs and the journal."""

    gpu_ids: Sequence[int] | None
    executor: Any
    jobs: int | None = attrs.field(validator=lambda _, field, value: _check_whole(field.name, value, 1))
    timeout: float = attrs.field(validator=lambda _, field, value: _check_positive(field.name, value))
    journal: str | os.PathLike[str] | None
    restart: bool

    def __attrs_post_init__(self) -> None:
        if self.gpu_ids is not None and self.executor is not None:
            raise ArgumentError("tune: gpu_ids and executor exclude each other", hint="each worker of an executor uses its current GPU")
        if self.gpu_ids is not None and (not self.gpu_ids or len(set(self.gpu_ids)) < len(self.gpu_ids)):
            raise ArgumentError("tune: gpu_ids must be a list of different GPU numbers, and must not be empty", got=self.gpu_ids)
        if self.executor is not None and not callable(getattr(self.executor, "submit", None)):
            raise ArgumentError("tune: executor must be an executor", got=self.executor, legal="a concurrent.futures.Executor")


def _check_whole(what: str, value: Any, least: int) -> None:
    number = as_integer(value)
    if value is not None and (number is None or number < least):
        raise ArgumentError(f"tune: {what} must be an integer of at least {least}", got=value)


def _check_positive(what: str, value: Any) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0):
        raise ArgumentError(f"tune: {what} must be a positive number", got=value)


def checked_measure(measure: Any) -> Measure:
    """Return the measurement that was passed to `tune`. Raises: `ArgumentError` if it is not a `Measure`."""
    if not isinstance(measure, Measure):
        raise ArgumentError(
            "tune: measure must be a measurement", got=measure, legal="OnGpu(), or an object of a class derived from Measure"
        )
    return measure


def task_of(strategy: Any, spec: Any, arch: Any, *, fixed: Any, sizes: Any, name: str, instructions: Any) -> Task:
    """Return the task of the arguments of `tune`."""
    return make_task(strategy, spec, arch, fixed=fixed or {}, sizes=sizes or {}, name=name, instructions=instructions)


def tuning(task: Task, options: Options, measure: Measure, execution: Execution) -> Tuning:
    """Start the processes, open the journal, and search. Raises: `ArgumentError` if an exhaustive search is too long."""
    if options.search == "exhaustive" and len(task.space) > MOST_EXHAUSTIVE:
        raise ArgumentError(
            f"{len(task.space)} combinations are too many for an exhaustive search",
            legal=f"at most {MOST_EXHAUSTIVE}",
            hint='search="tpe" or "random", or fix some tunables',
        )
    setting = Setting(task, packed(task, measure), execution.timeout)
    devices: Sequence[str | None] = (None,) if execution.gpu_ids is None else measure.devices(execution.gpu_ids)
    roles: dict[str, Sequence[str | None]] = {PREPARE: _preparing(task, execution.jobs)}
    with WorkerPool(setting.payload, roles if execution.executor is not None else {**roles, MEASURE: devices}) as pool:
        bench = Local(setting, pool) if execution.executor is None else Remote(setting, execution.executor)
        where = bench.where()
        head = _head(task, options, measure, where)
        path = _default_journal(head) if execution.journal is None else Path(execution.journal)
        journal = Journal(path, task, head, execution.restart)
        try:
            return Run(task, options, pool, bench, journal, where).tuning()
        finally:
            journal.close()


def prediction(task: Task, jobs: int | None, report: Report | None, seconds: float | None = None) -> Tuning:
    """Rank all candidates by the cost model, or as many as the time limit permits."""
    options = Options(search="exhaustive", trials=None, seconds=seconds, prune=Prune.of(False), seed=0, finalists=1, report=report)
    with WorkerPool(packed(task, Measure()), {PREPARE: _preparing(task, jobs)}) as pool:
        return Run(task, options, pool, None, None, {}).predicted()


def _preparing(task: Task, jobs: int | None) -> tuple[None, ...]:
    """Return one process per processor, but no more than there are jobs."""
    return (None,) * min(jobs or _processors(), len(task.space))


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _head(task: Task, options: Options, measure: Measure, where: Mapping[str, Any]) -> dict[str, Any]:
    """Return the first line of the journal."""
    place = {name: value for name, value in where.items() if name != "newest"}
    return {
        **task.describe(),
        **place,
        "measure": measure.identity(),
        "code": _code(),
        "search": options.search,
        "seed": options.seed,
        "trials": options.trials,
        "prune": attrs.asdict(options.prune),
        "date": datetime.date.today().isoformat(),
    }


def _code() -> str:
    """Return a digest of this package's source, so that results of changed code are not reused by default."""
    package = Path(__file__).parent.parent
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _default_journal(head: Mapping[str, Any]) -> Path:
    lasting = {name: value for name, value in head.items() if name not in ("search", "seed", "trials", "prune", "date", "strategy")}
    digest = hashlib.sha256(json.dumps(lasting, sort_keys=True).encode()).hexdigest()[:16]
    return settings.cache_folder() / "tune" / f"{digest}.jsonl"


class Run:
    """One run of a search. `results` has the results of its candidates, by index. The journal may have results of further candidates."""

    def __init__(
        self, task: Task, options: Options, pool: WorkerPool, bench: Any, journal: Journal | None, where: Mapping[str, Any]
    ) -> None:
        self.task, self.options, self.pool, self.bench, self.journal, self.where = task, options, pool, bench, journal, where
        self.results: dict[int, Result] = {}
        self.surveyed: dict[int, Surveyed] = {}
        self.started = time.monotonic()
        self.phase_started = self.started
        self.phase = ("", 0, 0)
        self.reported = float("-inf")
        self.stopped = ""
        self.notes: list[str] = [] if journal is None else list(journal.notes)
        self.library_us: float | None = None
        self.least = 0

    # ------------------------------------------------------------------------------------------ the searches

    def tuning(self) -> Tuning:
        """Search, measure the finalists together, and return the result."""
        {"exhaustive": self._exhaustive, "random": self._random, "tpe": self._tpe}[self.options.search]()
        self._final()
        assert self.journal is not None
        best = next(iter(ranked(self.results.values())), None)
        if best is not None and self.task.unrecorded:
            self.notes.append(f"the best candidate cannot be recorded: {self.task.unrecorded}")
        return Tuning(
            best=None if best is None or self.task.unrecorded else self._record(best),
            results=tuple(self.results[number] for number in sorted(self.results)),
            library_us=self.library_us,
            complete=not self.stopped,
            stopped=self.stopped,
            notes=tuple(self.notes),
            journal=self.journal.path,
            where=self.where,
            seconds=time.monotonic() - self.started,
        )

    def predicted(self) -> Tuning:
        """Rank candidates by the cost model in random order within the time limit. Raises: `ArgumentError` without candidates."""
        total = len(self.task.space)
        self.least = LEAST_PREDICTED
        self._survey(itertools.islice(draws(self.task.space, self.options.seed), MOST_EXHAUSTIVE))
        seen = len(self.surveyed) + len(self.results)
        if seen < total:
            limit = "" if self.options.seconds is None else f" after {self.options.seconds:g} s"
            self.stopped = f"{limit}: {seen} of {total} combinations were examined, in random order".strip()
        for number, surveyed in self.surveyed.items():
            self.results[number] = self._unmeasured(number, "predicted", "")
            if surveyed.predicted_us is None:
                raise ArgumentError("the cost model has no prediction", hint="measure the candidates: tune without --predict")
        results = tuple(self.results[number] for number in sorted(self.results))
        spent = time.monotonic() - self.started
        return Tuning(best=None, results=results, complete=not self.stopped, stopped=self.stopped, seconds=spent, notes=tuple(self.notes))

    def _exhaustive(self) -> None:
        self._survey(range(len(self.task.space)))
        prune = self.options.prune
        if self.options.trials is not None:
            prune = attrs.evolve(prune, most=min(self.options.trials, prune.most or self.options.trials))
        self._measure(prune.reasons(self.surveyed))

    def _random(self) -> None:
        """Select random candidates until enough are legal. Their order does not depend on the speed of the processes."""
        wanted = self.options.trials or TRIALS
        numbers = draws(self.task.space, self.options.seed)
        while len(self.surveyed) < wanted and not self._stop():
            some = [number for number, _ in zip(numbers, range(wanted - len(self.surveyed)), strict=False)]
            if not some:
                break
            self._survey(some)
        self._measure(self.options.prune.reasons(self.surveyed))

    def _tpe(self) -> None:
        """Take batches from the optimizer until enough candidates are legal, or it proposes nothing new."""
        wanted = self.options.trials or TRIALS
        optimizer = Optimizer(self.task.space, self.options.seed)
        stale = 0
        while len(self.surveyed) < wanted and stale < MOST_STALE and len(self.results) < len(self.task.space):
            batch = optimizer.ask()
            new = [number for number in dict.fromkeys(number for _, number in batch) if number not in self.results]
            stale = 0 if new else stale + 1
            self._survey(new)
            self._measure(self.options.prune.reasons(self.surveyed), new)
            if self._stop():
                return
            for trial, number in batch:
                result = self.results[number]
                optimizer.tell(trial, result.us if result.status == "ok" else None)

    # ------------------------------------------------------------------------------------------ phases

    def _survey(self, numbers: Iterable[int]) -> None:
        """Lower candidates, except those whose outcome is in the journal."""
        numbers = list(numbers)
        known = {} if self.journal is None else self.journal.surveyed
        past = {} if self.journal is None else self.journal.results
        self.surveyed.update((number, known[number]) for number in numbers if number in known)
        rest = [number for number in numbers if number not in known]
        for number in rest:
            if number in past and past[number].status != "pruned":
                self.results[number] = past[number]
        rest = [number for number in rest if number not in self.results]
        self._begin("lower", len(rest))
        for outcome in surveys(self.pool, self.task, rest, self._stop):
            if outcome is not None:
                self._note_survey(*outcome)
            self._report(outcome is not None)

    def _note_survey(self, number: int, outcome: Surveyed | Result) -> None:
        if isinstance(outcome, Result):
            self._note(number, outcome)
        else:
            self.surveyed[number] = outcome
            if self.journal is not None:
                self.journal.add_surveyed(number, outcome)

    def _measure(self, left_out: Mapping[int, str], numbers: Iterable[int] | None = None) -> None:
        """Measure the surveyed candidates, or those with the given indices, except pruned ones and those in the journal."""
        assert self.journal is not None
        todo = []
        for number in in_order(
            self.surveyed
            if numbers is None
            else {candidate: self.surveyed[candidate] for candidate in numbers if candidate in self.surveyed}
        ):
            past = self.journal.results.get(number)
            if past is not None and past.status != "pruned":
                self.results[number] = past
            elif number in left_out:
                self._note(number, self._unmeasured(number, "pruned", left_out[number]))
            else:
                todo.append(number)
        self._run(todo)

    def _run(self, todo: Sequence[int]) -> None:
        self._begin("measure", len(todo))
        for outcome in self.bench.measured(todo, self.surveyed, self._stop):
            if outcome is not None:
                self._note(*outcome)
            self._report(outcome is not None)
        if self._stop():
            missing = sum(number not in self.results for number in todo)
            self.stopped = f"after {self.options.seconds:g} s; {missing} of {len(todo)} candidates were not measured"

    def _final(self) -> None:
        """Measure the finalists together, because their first times were measured minutes apart, with other clock states."""
        assert self.journal is not None
        for _ in range(MOST_FINALS):
            chosen = self._finalists()
            if not chosen:
                return
            if self._restored(chosen):
                return
            self._begin("final", len(chosen))
            self._report(False)
            together = self.bench.together(chosen, self.surveyed)
            if isinstance(together, str):
                self.notes.append(f"the final measurement failed; the ranking is that of the first measurements: {together}")
                return
            if self._accepted(chosen, together):
                return
        self.notes.append("no final measurement succeeded; the ranking is that of the first measurements")

    def _finalists(self) -> list[int]:
        timed = sorted((result.us, number) for number, result in self.results.items() if result.status == "ok" and result.us is not None)
        return sorted(number for _, number in timed[: self.options.finalists])

    def _restored(self, chosen: Sequence[int]) -> bool:
        """Return whether the journal has the final measurement of exactly these results."""
        assert self.journal is not None
        final = self.journal.final
        if final is None or final.get("of") != self._plain(chosen):
            return False
        self._take_final(chosen, final["us"], final["quartiles"], final["clocks"], final["library_us"])
        return True

    def _plain(self, chosen: Sequence[int]) -> Any:
        """Return the finalists' first results after a round trip through JSON."""
        return json.loads(json.dumps([self.results[number].plain() for number in chosen]))

    def _accepted(self, chosen: Sequence[int], together: Together) -> bool:
        """Store the joint measurement and return True; False if a finalist has changed, and is measured again, or is wrong."""
        assert self.journal is not None
        stale = [number for number, text in zip(chosen, together.texts, strict=True) if text != self.results[number].text]
        wrong = {number: measured.reason for number, measured in zip(chosen, together.measured, strict=True) if measured.us is None}
        for number in stale:
            del self.results[number]
            del self.journal.results[number]
        for number, reason in wrong.items():
            if number not in stale:
                self._note(
                    number, attrs.evolve(self.results[number], status="wrong", us=None, reason=f"in the final measurement: {reason}")
                )
        if stale:
            self.notes.append(f"{len(stale)} results of the journal belonged to kernels whose text has changed, and were measured again")
            self._run(stale)
        if stale or wrong:
            return False
        plain = {
            "of": self._plain(chosen),
            "us": [measured.us for measured in together.measured],
            "quartiles": [measured.quartiles for measured in together.measured],
            "clocks": [measured.clocks for measured in together.measured],
            "library_us": together.library_us,
        }
        self.journal.add_final(plain)
        self._take_final(chosen, plain["us"], plain["quartiles"], plain["clocks"], together.library_us)
        return True

    def _take_final(self, chosen: Sequence[int], us: Any, quartiles: Any, clocks: Any, library_us: float | None) -> None:
        self.library_us = library_us
        for number, final_us, pair, clock in zip(chosen, us, quartiles, clocks, strict=True):
            self.results[number] = attrs.evolve(self.results[number], final_us=final_us, quartiles=pair, clocks=clock)

    # ------------------------------------------------------------------------------------------ book-keeping

    def _unmeasured(self, number: int, status: str, reason: str) -> Result:
        surveyed = self.surveyed[number]
        return Result(
            values=self.task.space[number],
            status=status,
            reason=reason,
            predicted_us=surveyed.predicted_us,
            threads=surveyed.threads,
            shared_bytes=surveyed.shared_bytes,
        )

    def _note(self, number: int, result: Result) -> None:
        self.results[number] = result
        if self.journal is not None:
            self.journal.add(number, result)

    def _stop(self) -> bool:
        if len(self.surveyed) + len(self.results) < self.least:
            return False
        return self.options.seconds is not None and time.monotonic() - self.started > self.options.seconds

    def _begin(self, phase: str, total: int) -> None:
        self.phase = (phase, 0, total)
        self.reported = float("-inf")
        self.phase_started = time.monotonic()

    def _report(self, one_more: bool) -> None:
        phase, done, total = self.phase
        done += one_more
        self.phase = (phase, done, total)
        now = time.monotonic()
        if self.options.report is None or (now - self.reported < REPORT_SECONDS and done < total):
            return
        self.reported = now
        timed = [result for result in self.results.values() if result.status == "ok"]
        counts = Counter(result.status for result in self.results.values() if result.status not in ("ok", "pruned", "predicted"))
        self.options.report(
            Progress(
                phase=phase,
                done=done,
                total=total,
                best=min(timed, key=lambda result: result.time, default=self._best_predicted() if self.least else None),
                failures=dict(counts),
                seconds=now - self.started,
                remaining=(now - self.phase_started) / done * (total - done) if done else None,
                journal="" if self.journal is None else str(self.journal.path),
            )
        )

    def _best_predicted(self) -> Result | None:
        number = min(self.surveyed, key=lambda candidate: (self.surveyed[candidate].predicted_us or math.inf, candidate), default=None)
        return None if number is None else self._unmeasured(number, "predicted", "")

    def _record(self, best: Result) -> Record:
        """Return the best result as a record, with the time of the final measurement if there is one."""
        described = self.task.describe()
        us = best.time
        extra = {"first_us": best.us, "predicted_us": best.predicted_us, "sizes": dict(self.task.sizes) or None}
        return Record(
            strategy=self.task.name,
            strategy_hash=described["strategy_hash"],
            values=best.values,
            spec=described["spec"],
            architecture=self.task.architecture,
            gpu=self.where["gpu"],
            us=us,
            quartiles=best.quartiles or (us, us),
            tflops=self.task.operations / us / 1e6,
            regime=best.regime or "unknown",
            l2=best.l2 or "unknown",
            error=best.error or 0.0,
            registers=best.registers or 0,
            shared_bytes=best.shared_bytes or 0,
            spills=best.spills or 0,
            library_us=self.library_us,
            toolchain=self.where["toolchain"],
            driver=self.where["driver"],
            clocks=best.clocks,
            fireiron=VERSION,
            date=datetime.date.today().isoformat(),
            source=self._source(),
            extra={name: value for name, value in extra.items() if value is not None},
        )

    def _source(self) -> str:
        timed = sum(result.status == "ok" for result in self.results.values())
        early = ", stopped early" if self.stopped else ""
        seed = "" if self.options.search == "exhaustive" else f" with seed {self.options.seed}"
        return f"{self.options.search} search of {len(self.task.space)}{seed}, {timed} measured{early}"
