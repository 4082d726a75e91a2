"""Build and measure candidates: in local processes, one per GPU, or on the workers of an executor."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, cast

import attrs

from fireiron.errors import LaunchError
from fireiron.frozen import frozen
from fireiron.tune.isolated import run_isolated
from fireiron.tune.measure import Measured, Together
from fireiron.tune.result import Result
from fireiron.tune.task import Built, Surveyed, Task
from fireiron.tune.worker_pool import MEASURE, START_SECONDS, Outcome, WorkerPool

PREPARE: Final = "prepare"
"""The role of processes that lower and compile."""

SURVEY_SECONDS: Final = 120.0
"""Time limit in seconds for lowering one candidate."""

BUILD_SECONDS: Final = 300.0
"""Time limit in seconds for checking and compiling one candidate."""

LAUNCHES: Final = 20_000
"""The number of launches of a measurement. Its time limit is extended by their predicted time."""

AHEAD: Final = 4
"""The number of compiled candidates that wait for each GPU."""

WINDOW: Final = 64
"""Maximum number of jobs that an executor has at a time: more than its workers, and few enough to stop soon."""

TICK: Final = 0.5
"""Seconds between two tests whether to stop, while waiting."""

Stop = Callable[[], bool]


@frozen
class Setting:
    """The settings that all candidates share."""

    task: Task
    payload: bytes
    timeout: float

    def seconds(self, surveyed: Surveyed | None) -> float:
        """Return the time limit of one measurement: longer for slow kernels."""
        predicted = surveyed.predicted_us if surveyed is not None and surveyed.predicted_us is not None else 0.0
        return self.timeout + LAUNCHES * predicted * 1e-6


class Local:
    """Measures in local processes. Other processes lower and compile a few candidates in advance."""

    def __init__(self, setting: Setting, pool: WorkerPool) -> None:
        self.setting = setting
        self.pool = pool
        self.newest: tuple[int, int] | None = None

    def where(self) -> dict[str, Any]:
        """Return the GPU, driver and toolchain, the same for all GPUs. Raises: `LaunchError` if they differ."""
        places = self.pool.where()
        for place in places:
            if place != places[0]:
                raise LaunchError("the GPUs differ, so their times cannot be compared", got=place, legal=f"{places[0]}")
        self.newest = _newest(places[0])
        return places[0]

    def measured(self, order: Iterable[int], known: Mapping[int, Surveyed], stop: Stop) -> Iterator[tuple[int, Result] | None]:
        """Yield results as they arrive, and None if no result arrives for `TICK` seconds."""
        waiting, built, busy = deque(order), deque[tuple[int, Built]](), 0
        values = self.setting.task.space
        ahead = AHEAD * len(self.pool.roles[MEASURE])
        while waiting or built or busy:
            if stop():
                waiting.clear()
                built.clear()
            while waiting and self.pool.idle(PREPARE) and busy + len(built) < ahead + len(self.pool.roles[PREPARE]):
                number = waiting.popleft()
                self.pool.give(PREPARE, ("build", number, None), "build", (values[number], self.newest), BUILD_SECONDS)
                busy += 1
            while built and self.pool.idle(MEASURE):
                number, compiled = built.popleft()
                surveyed = known.get(number)
                arguments = (values[number], compiled, None if surveyed is None else surveyed.predicted_us)
                self.pool.give(MEASURE, ("measure", number, compiled), "measure", arguments, self.setting.seconds(surveyed))
                busy += 1
            outcomes = self.pool.outcomes(TICK) if busy or waiting or built else []
            for outcome in outcomes:
                busy -= 1
                result = self._result(outcome, known, built)
                if result is not None:
                    yield result
            if not outcomes:
                yield None

    def _result(self, outcome: Outcome, known: Mapping[int, Surveyed], built: deque[tuple[int, Built]]) -> tuple[int, Result] | None:
        verb, number, compiled = cast(tuple[str, int, Built | None], outcome.key)
        values, surveyed = self.setting.task.space[number], known.get(number)
        if verb == "build":
            if outcome.kind == "done":
                built.append((number, outcome.value))
                return None
            return number, unbuilt(values, surveyed, outcome)
        if outcome.kind in ("refused", "failed"):
            self.pool.replace(MEASURE, outcome.place)  # it may have overwritten memory that the next candidate reads
        return number, verdict(values, surveyed, compiled, outcome, self.setting.seconds(surveyed))

    def together(self, numbers: Sequence[int], known: Mapping[int, Surveyed]) -> Together | str:
        """Measure the finalists on the first GPU. If that fails, return the reason."""
        built = self._built(numbers)
        if isinstance(built, str):
            return built
        jobs = [(self.setting.task.space[number], built[number], _predicted(known.get(number))) for number in numbers]
        seconds = sum(2 * self.setting.seconds(known.get(number)) for number in numbers)
        while not self.pool.roles[MEASURE][0].idle:
            self.pool.outcomes(START_SECONDS)
        self.pool.give(MEASURE, "together", "together", (jobs,), seconds)
        while True:
            for outcome in self.pool.outcomes(TICK):
                if outcome.kind in ("refused", "failed"):
                    self.pool.replace(MEASURE, outcome.place)
                return _together(outcome, seconds)

    def _built(self, numbers: Sequence[int]) -> dict[int, Built] | str:
        """Compile the finalists, or read them from the disk cache. If that fails, return the reason."""
        waiting, compiled, busy = deque(numbers), dict[int, Built](), 0
        while waiting or busy:
            while waiting and self.pool.idle(PREPARE):
                number = waiting.popleft()
                self.pool.give(PREPARE, number, "build", (self.setting.task.space[number], self.newest), BUILD_SECONDS)
                busy += 1
            for outcome in self.pool.outcomes(TICK):
                busy -= 1
                if outcome.kind != "done":
                    return f"{self.setting.task.space[_number(outcome.key)]}: {_reason(outcome, BUILD_SECONDS)}"
                compiled[_number(outcome.key)] = outcome.value
        return compiled


class Remote:
    """Measures on the workers of an executor: each job compiles, verifies and times one candidate."""

    def __init__(self, setting: Setting, executor: Any) -> None:
        self.setting = setting
        self.executor = executor
        self.place: dict[str, Any] = {}

    def where(self) -> dict[str, Any]:
        """Return the GPU, driver and toolchain of one worker; a candidate that runs on another GPU fails."""
        future = self._submit("", (), 0.0)
        self.place, _ = future.result()
        return self.place

    def measured(self, order: Iterable[int], known: Mapping[int, Surveyed], stop: Stop) -> Iterator[tuple[int, Result] | None]:
        """Yield results as they arrive, and None if no result arrives for `TICK` seconds."""
        from concurrent.futures import FIRST_COMPLETED, wait

        waiting, running = deque(order), dict[Any, int]()
        try:
            while waiting or running:
                if stop():
                    waiting.clear()
                while waiting and len(running) < WINDOW:
                    number = waiting.popleft()
                    surveyed = known.get(number)
                    arguments = (self.setting.task.space[number], _newest(self.place), _predicted(surveyed))
                    future = self._submit("whole", arguments, self.setting.seconds(surveyed) + BUILD_SECONDS)
                    running[future] = number
                done, _ = wait(running, timeout=TICK, return_when=FIRST_COMPLETED)
                for future in done:
                    number = running.pop(future)
                    yield number, self._result(number, future, known.get(number))
                if not done:
                    yield None
        finally:
            for future in running:
                future.cancel()

    def _submit(self, verb: str, arguments: tuple[Any, ...], seconds: float) -> Any:
        try:
            return self.executor.submit(run_isolated, self.setting.payload, verb, arguments, seconds)
        except RuntimeError as error:  # BrokenExecutor, or an executor that is shut down
            raise LaunchError("the executor does not accept jobs", got=str(error)) from error

    def _result(self, number: int, future: Any, surveyed: Surveyed | None) -> Result:
        values = self.setting.task.space[number]
        error = future.exception()
        if error is not None:
            return _evolved(values, surveyed, None, status="crashed", reason=f"the executor's worker: {type(error).__name__}: {error}")
        where, outcome = future.result()
        if where != self.place:
            return _evolved(
                values, surveyed, None, status="failed", reason=f"this worker runs in another environment: {where}, not {self.place}"
            )
        seconds = self.setting.seconds(surveyed) + BUILD_SECONDS
        if outcome.kind != "done":
            return verdict(values, surveyed, None, outcome, seconds)
        built, answer = outcome.value
        if answer is None:
            return unbuilt(values, surveyed, Outcome(number, "refused", built))
        return verdict(values, surveyed, built, Outcome(number, *answer), seconds)

    def together(self, numbers: Sequence[int], known: Mapping[int, Surveyed]) -> Together | str:
        """Build and measure the finalists on one worker. If that fails, return the reason."""
        jobs = [(self.setting.task.space[number], _predicted(known.get(number))) for number in numbers]
        seconds = sum(2 * self.setting.seconds(known.get(number)) + BUILD_SECONDS for number in numbers)
        future = self._submit("whole_together", (jobs, _newest(self.place)), seconds)
        error = future.exception()
        if error is not None:
            return f"the executor's worker: {type(error).__name__}: {error}"
        where, outcome = future.result()
        return _together(outcome, seconds) if where == self.place else f"this worker runs in another environment: {where}"


# ---------------------------------------------------------------------------------------------- verdicts


def surveys(pool: WorkerPool, task: Task, numbers: Iterable[int], stop: Stop) -> Iterator[tuple[int, Surveyed | Result] | None]:
    """Yield lowered and predicted candidates as they arrive, and None if none arrives for `TICK` seconds."""
    waiting, busy = deque(numbers), 0
    while waiting or busy:
        if stop():
            waiting.clear()
        while waiting and pool.idle(PREPARE):
            number = waiting.popleft()
            pool.give(PREPARE, number, "survey", (task.space[number],), SURVEY_SECONDS)
            busy += 1
        outcomes = pool.outcomes(TICK) if busy or waiting else []
        for outcome in outcomes:
            busy -= 1
            yield _number(outcome.key), _surveyed(task, outcome)
        if not outcomes:
            yield None


def _number(key: Hashable) -> int:
    assert isinstance(key, int)
    return key


def _surveyed(task: Task, outcome: Outcome) -> Surveyed | Result:
    values = task.space[_number(outcome.key)]
    if outcome.kind != "done":
        return Result(values=values, status="failed", reason=f"lowering: {_reason(outcome, SURVEY_SECONDS)}")
    surveyed: Surveyed = outcome.value
    return surveyed if surveyed.reason is None else Result(values=values, status="illegal", reason=surveyed.reason)


def unbuilt(values: Mapping[str, int], surveyed: Surveyed | None, outcome: Outcome) -> Result:
    """Return the result of a candidate that was not compiled, because the race check or the compiler refused it."""
    reason = _reason(outcome, BUILD_SECONDS)
    if outcome.kind in ("died", "late"):
        return _evolved(values, surveyed, None, status="compile failed", reason=f"the compiler: {reason}")
    illegal = outcome.kind == "refused" and outcome.value[0] != "LaunchError"
    return _evolved(values, surveyed, None, status="illegal" if illegal else "compile failed", reason=reason)


def verdict(values: Mapping[str, int], surveyed: Surveyed | None, built: Built | None, outcome: Outcome, seconds: float) -> Result:
    """Return the result of a measured candidate."""
    make = functools.partial(_evolved, values, surveyed, built)
    if outcome.kind == "done":
        measured: Measured = outcome.value
        if measured.us is None:
            return make(status="wrong", reason=measured.reason)
        known = attrs.asdict(measured)
        return make(status="ok", gpu=outcome.place, **known)
    kinds = {"died": "crashed", "late": "hung"}
    status = kinds.get(outcome.kind) or {"WrongResultError": "wrong", "GpuLostError": "crashed"}.get(outcome.value[0], "failed")
    return make(status=status, reason=_reason(outcome, seconds))


def _reason(outcome: Outcome, seconds: float) -> str:
    if outcome.kind == "late":
        return f"stopped after {seconds:.3g} s"
    return str(outcome.value if outcome.kind == "died" else outcome.value[1])


def _evolved(values: Mapping[str, int], surveyed: Surveyed | None, built: Built | None, **fields: Any) -> Result:
    known: dict[str, Any] = {}
    if surveyed is not None:
        known |= {"predicted_us": surveyed.predicted_us, "threads": surveyed.threads, "shared_bytes": surveyed.shared_bytes}
    if built is not None:
        known |= {"threads": built.threads, "shared_bytes": built.shared_bytes, "registers": built.registers, "spills": built.spills}
        known |= {"compile_seconds": built.seconds, "text": built.text}
    return Result(values=values, **known, **fields)


def _together(outcome: Outcome, seconds: float) -> Together | str:
    if outcome.kind == "done":
        together: Together = outcome.value
        return together
    return _reason(outcome, seconds)


def _predicted(surveyed: Surveyed | None) -> float | None:
    return None if surveyed is None else surveyed.predicted_us


def _newest(place: Mapping[str, Any]) -> tuple[int, int] | None:
    newest = place.get("newest")
    return None if newest is None else (newest[0], newest[1])
