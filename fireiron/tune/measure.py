"""Verify and time candidates: on the GPU, or by a measurement that a user or a test defines."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import attrs

from fireiron.errors import ArgumentError, FireironError, WrongResultError
from fireiron.frozen import frozen
from fireiron.tune.task import Candidate, Task, why


class GpuLostError(FireironError):
    """The GPU reported an error after which this process cannot use it: an illegal address, a trap."""


def _times(owner: Any, field: Any, value: Any) -> None:
    for time in value if isinstance(value, tuple) else (value,):
        if time is not None and not (math.isfinite(time) and time > 0):
            raise ArgumentError(f"Measured: {field.name} must be a time", got=time, legal="a finite number above 0")


def _finite(owner: Any, field: Any, value: Any) -> None:
    if value is not None and not math.isfinite(value):
        raise ArgumentError(f"Measured: {field.name} must be a finite number", got=value)


@attrs.frozen(kw_only=True)
class Measured:
    """The time of a verified candidate. If the result was wrong, `us` is None and `reason` is the reason."""

    us: float | None = attrs.field(default=None, validator=_times)
    quartiles: tuple[float, float] | None = attrs.field(default=None, validator=_times)
    error: float | None = attrs.field(default=None, validator=_finite)
    regime: str = ""
    l2: str = ""
    clocks: tuple[int, int] | None = None
    reason: str = ""


@attrs.frozen(kw_only=True)
class Together:
    """The joint measurement of the finalists, in their order, and of the vendor's library.

    `texts` are the digests of their CUDA texts, which the caller of the measurement fills in.
    """

    measured: tuple[Measured, ...]
    library_us: float | None = None
    texts: tuple[str, ...] = ()


class Measure:
    """The base class of measurements. A measurement must be picklable, and its class at the top level of a module.

    It is pickled to separate processes. Each process calls `start` once, and then `measure` for one candidate at a time. If `measure`
    crashes, hangs or raises an error, the candidate has failed; a `WrongResultError` gives it the status "wrong". Only a process that
    returned a time is used again.
    """

    compiles: ClassVar[bool] = False
    """Whether candidates are compiled to machine code before the measurement."""

    def identity(self) -> str:
        """Return the identity of the measurement. Times of another identity are not comparable, so their journal is rejected."""
        return repr(self)

    def architecture(self) -> str | None:
        """Return the default target; None selects the strategy's target."""
        return None

    def devices(self, gpu_ids: Sequence[int]) -> tuple[str, ...]:
        """Return `CUDA_VISIBLE_DEVICES` for the processes of these GPUs of the calling process."""
        return tuple(map(str, gpu_ids))

    def start(self, task: Task) -> Measure:
        """Start the measurement in its process; return the object that measures."""
        return self

    def where(self) -> Mapping[str, Any]:
        """Return `gpu`, `driver`, `toolchain` and `newest`, the newest CUDA version that the driver supports, or None. Plain JSON."""
        return {"gpu": "none", "driver": "none", "toolchain": "none", "newest": None}

    def measure(self, candidate: Candidate) -> Measured:
        """Verify and time a candidate. If an error is raised, it is the reason why the candidate has no time."""
        raise NotImplementedError

    def together(self, candidates: Sequence[Candidate]) -> Together:
        """Verify and time the finalists; by default one after the other."""
        return Together(measured=tuple(map(self.measure, candidates)))


@frozen
class OnGpu(Measure):
    """Measure on the current GPU: `data.verify`, then `timing.measure`; the finalists alternate with the vendor's library.

    A candidate is measured in `rounds` rounds, a finalist in `final_rounds` rounds. `seed` is the seed of the input data.
    """

    compiles: ClassVar[bool] = True

    rounds: int = 12
    final_rounds: int = 40
    seed: int = 0

    def architecture(self) -> str | None:
        from fireiron.gpu import launch
        from fireiron.gpu.kernel import target_for

        return target_for(launch.device_arch())

    def devices(self, gpu_ids: Sequence[int]) -> tuple[str, ...]:
        """Use UUIDs, which do not depend on the visible GPUs. Raises: `ArgumentError` for an index without a GPU.

        Source: CUDA C++ Programming Guide, CUDA Environment Variables.
        """
        from fireiron.gpu import launch

        runtime = launch.require_cupy().cuda.runtime
        count = runtime.getDeviceCount()
        unknown = [gpu for gpu in gpu_ids if not 0 <= gpu < count]
        if unknown:
            raise ArgumentError(f"there is no GPU {unknown[0]}", legal=range(count))
        return tuple(_uuid(runtime.getDeviceProperties(gpu)["uuid"]) for gpu in gpu_ids)

    def start(self, task: Task) -> Measure:
        return _Gauge(self, task)


def _uuid(raw: bytes) -> str:
    digits = bytes(raw).hex()
    return f"GPU-{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


class _Gauge(Measure):
    """`OnGpu` in its process: the data are created once and shared by all candidates."""

    def __init__(self, settings: OnGpu, task: Task) -> None:
        from fireiron.measure.data import Data, Derived

        spec = task.strategy.spec
        assert spec is not None
        self.settings = settings
        self.task = task
        self.data = Data.of(spec, sizes=task.sizes, seed=settings.seed)
        for tolerance in (None, Derived()):  # CuPy's compilation must not count as a candidate's time
            self.data.verify(functools.partial(_write_truth, self.data), tolerance)

    def where(self) -> Mapping[str, Any]:
        from fireiron.gpu import launch, toolchain
        from fireiron.measure import timing

        newest = launch.driver_version()
        state = timing.environment()
        chain = toolchain.compilation("", self.task.architecture, newest=newest).chain
        return {"gpu": str(state["gpu"]), "driver": str(state["driver"]), "toolchain": str(chain), "newest": list(newest)}

    def measure(self, candidate: Candidate) -> Measured:
        calls, error = _or_lost(lambda: self._verified(candidate))
        timing = _or_lost(lambda: _timed({"candidate": calls}, self.settings.rounds))["candidate"]
        return _measured(timing, error)

    def together(self, candidates: Sequence[Candidate]) -> Together:
        contenders: dict[str, Any] = {}
        results: dict[str, Measured] = {}
        for number, candidate in enumerate(candidates):
            try:
                contenders[str(number)], error = _or_lost(functools.partial(self._verified, candidate))
                results[str(number)] = Measured(error=error)
            except WrongResultError as wrong:
                results[str(number)] = Measured(reason=why(wrong))
        library = self._library()
        if library is not None:
            contenders["library"] = library
        timings = _or_lost(lambda: _timed(contenders, self.settings.final_rounds)) if contenders else {}
        measured = (_measured(timings[name], result.error) if name in timings else result for name, result in results.items())
        return Together(measured=tuple(measured), library_us=timings["library"].us if "library" in timings else None)

    def _verified(self, candidate: Candidate) -> tuple[Any, float]:
        calls = self.data.calls(candidate.kernel)
        return calls, self.data.verify(calls[0], self.data.tolerance_for(candidate.kernel))

    def _library(self) -> Any:
        """Return launches of the vendor's matmul; None if it does not support the spec."""
        from fireiron.measure import timing

        return timing.library(self.data)


def _write_truth(data: Any) -> None:
    for name, right in data.references.items():
        data.sets[0][name][...] = right


def _timed(contenders: Mapping[str, Any], rounds: int) -> Any:
    from fireiron.measure import timing

    return timing.measure(contenders, rounds=rounds)


def _measured(timing: Any, error: float | None) -> Measured:
    return Measured(us=timing.us, quartiles=timing.quartiles, error=error, regime=timing.regime, l2=timing.l2, clocks=timing.clocks)


def _or_lost(action: Callable[[], Any]) -> Any:
    """Return the action's value. Raises: `GpuLostError` if the process can no longer use the GPU."""
    try:
        return action()
    except (FireironError, RuntimeError) as error:  # RuntimeError: CuPy's errors of driver and runtime
        lost = _lost()
        if lost is None:
            raise
        raise GpuLostError(f"the GPU reported: {lost}") from error


def _lost() -> str | None:
    from fireiron.gpu import launch

    runtime = launch.require_cupy().cuda.runtime
    try:
        runtime.deviceSynchronize()
    except RuntimeError as error:
        return " ".join(str(error).split())
    return None
