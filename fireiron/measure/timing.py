"""Measure kernel times. Benchmarks, the tuner, tests and users use the same function.

    data = Data.of(spec)
    calls = {"ours": data.calls(kernel), "cublas": data.calls(cublas)}
    for launches in calls.values():
        data.verify(launches[0])
    times = measure(calls)

- *Graphs.* The contenders' launches are captured in CUDA graphs whose replay takes about 4 ms. Events before and after a replay measure its
  time. Launches that cannot be captured are repeated by the host, and `Timing.graph` is false.
- *Clock states.* Contenders alternate. In the clock state `"burst"`, a pause of 0.25 s precedes each burst of about 25 ms of work. A
  power-limited GPU then runs near its highest clock. In the clock state `"busy"`, the GPU works for a second before the measurement, and
  there are no pauses. Times are comparable only if they have the same clock state and are measured in the same call.
- *L2 cache.* `"rotated"` cycles through buffer sets of `Data` that together exceed the cache. `"flushed"` overwrites the cache before each
  launch and measures each launch separately. This adds one or two microseconds for the start of a graph. `"hot"` reuses the first set.
- *Rounds.* If the rounds of a kernel take longer than `seconds`, fewer rounds are run, but at least three.
- *Result.* `us` is the median of the rounds, and `minimum` the fastest round. The Fireiron paper reports the least kernel time of 1000
  runs. This is `measure(..., rounds=1000, launches=1, l2="hot")[name].minimum`.

Sources: CUDA C++ Programming Guide, "CUDA Graphs"; `cupy.cuda.Stream.begin_capture` of CuPy 14; `torch.cuda.ExternalStream`.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import importlib
import itertools
import math
import platform
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs

from fireiron._version import VERSION
from fireiron.errors import ArgumentError, FireironError, LaunchError
from fireiron.frozen import frozen
from fireiron.gpu import launch
from fireiron.gpu import state as gpu_state
from fireiron.gpu.arguments import evaluated
from fireiron.gpu.kernel import CompiledKernel
from fireiron.measure.data import ROTATE_BYTES, Call, Data, Derived, Tolerance, all_sizes, tolerance_of
from fireiron.measure.revision import revision
from fireiron.spec import Spec

REGIMES = ("burst", "busy")
L2_STATES = ("rotated", "flushed", "hot")

REPLAY = 4000.0
"""Target duration of one graph replay in microseconds: far above the cost of starting a graph."""

BURST = 20_000.0
"""Microseconds of timed work in a burst. A replay that is not timed precedes it."""

PAUSE = 0.25
"""Seconds before each burst."""

SETTLING = 0.1
"""Minimum number of seconds between the preparation of the contenders and the first burst. The preparation may exceed the power limit of a
GPU. On an H200, the clock then is at 1500 MHz instead of 1980 MHz for tens of milliseconds, and the first contender takes up to 15 % longer
(perf/results/2026-11-30-h200-choice-3)."""

SECONDS = 10.0
"""Maximum time in seconds for the rounds of a contender, without pauses. `MIN_ROUNDS` rounds are run even if they take longer."""

MIN_ROUNDS = 3
"""Minimum number of rounds of a contender, even if they exceed the time limit."""

WARMING = 100_000.0
"""Microseconds of work after which a contender is warm, even if not all buffer sets were used."""

HEATING = 1.0
"""Seconds of work before the busy clock state is measured."""

MAX_LAUNCHES = 4000
"""Maximum number of launches in one graph."""

SAMPLE = 64
"""Maximum number of launches from which the length of a graph is determined."""

FLUSH_BYTES = 256_000_000
"""Minimum number of bytes that overwrite the cache between two launches. Larger caches are overwritten by four times their size."""


@frozen
class Timing:
    """The measurement of a contender. Times are in microseconds per launch.

    Attributes:
        us: the median of the rounds.
        quartiles: the first and the third quartile of the rounds.
        minimum: the fastest round.
        rounds: a value for each round: the mean of its launches, or their median with a flushed cache.
        launches: the number of launches per round.
        regime: "burst" or "busy".
        l2: "rotated", "flushed" or "hot".
        clocks: SM clocks in MHz, after the first replay and after the last round; None if unknown.
        temperature: degrees Celsius after the last round, if known.
        power: watts after the last round, if known.
        throttle_reasons: why the clock was limited after the last round, according to NVML: "power cap", "heat", ...
        graph: whether the launches were replayed from a graph. If not, the host launched each, and times may include its overhead.
        note: why there is no graph.
    """

    us: float
    quartiles: tuple[float, float]
    minimum: float
    rounds: tuple[float, ...]
    launches: int
    regime: str
    l2: str
    clocks: tuple[int, int] | None = None
    temperature: int | None = None
    power: float | None = None
    throttle_reasons: tuple[str, ...] = ()
    graph: bool = True
    note: str = ""

    @staticmethod
    def of(rounds: Sequence[float], launches: int = 1, regime: str = "burst", l2: str = "rotated", **others: Any) -> Timing:
        """Return the timing with these rounds, in microseconds. Raises: `ArgumentError` if there are none, or one is not positive."""
        values = tuple(float(value) for value in rounds)
        if not values or not all(math.isfinite(value) and value > 0 for value in values):
            raise ArgumentError("a timing requires at least one time, and all times must be positive", got=values)
        low, _, high = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
        return Timing(statistics.median(values), (low, high), min(values), values, launches, regime, l2, **others)


def measure(
    contenders: Mapping[str, Sequence[Call]],
    *,
    rounds: int = 20,
    regime: str = "burst",
    l2: str = "rotated",
    launches: int | None = None,
    pause: float = PAUSE,
    heating: float = HEATING,
    seconds: float = SECONDS,
    burst: float = BURST,
) -> dict[str, Timing]:
    """Time contenders alternately on the current GPU.

    Args:
        contenders: by name, a callable for each buffer set. It takes no arguments and launches on the current stream of CuPy or PyTorch
            (both are set), into existing memory (`out=`). Verify it before.
        rounds: the number of rounds of each contender, if `seconds` allow.
        regime, l2: see the module. "rotated" requires at least two sets.
        launches: the number of launches per round. Default: as many as take 4 ms.
        pause: the seconds before each burst.
        heating: the seconds of work before the measurement in the busy clock state.
        seconds: the time limit for the rounds of a contender, without pauses. Slower contenders run fewer rounds, but at least three (or
            `rounds`, if that is less). `math.inf`: all rounds.
        burst: the microseconds of timed work in a burst. If all rounds together take less, contenders do not alternate.

    Returns: a timing for each name. `len(timing.rounds)` is the number of rounds.

    Raises: `ArgumentError` for invalid arguments, and for a contender that launches on another stream; `LaunchError` without a GPU; any
    error that a contender raises in its first call.
    """
    _check(contenders, rounds, regime, l2, launches, seconds)
    cupy = launch.require_cupy()
    cupy.cuda.Device().synchronize()
    with _on(_stream(cupy, cupy.cuda.Device().id)) as stream:
        replays = {name: _prepared(cupy, stream, name, tuple(calls), l2, launches) for name, calls in contenders.items()}
        contenders_ = {
            name: _Contender(replay, _round_count(replay.work, rounds, regime, seconds, burst)) for name, replay in replays.items()
        }
        if regime == "burst":
            if pause < SETTLING:
                time.sleep(SETTLING - pause)
            _run_bursts(contenders_, pause, burst)
        else:
            _run_busy(contenders_, heating)
        return {name: contender.timing(regime, l2) for name, contender in contenders_.items()}


def time_kernel(
    kernel: CompiledKernel,
    *,
    sizes: Mapping[str, int] | None = None,
    data: Data | None = None,
    rounds: int = 20,
    regime: str = "burst",
    l2: str = "rotated",
    tolerance: Tolerance | None = None,
    **options: Any,
) -> Timing:
    """Verify a kernel, then measure it.

    Args:
        kernel: a compiled kernel.
        sizes: the values of the spec's symbols.
        data: existing data, instead of `sizes`.
        rounds, regime, l2, options: as for `measure`.
        tolerance: as for `Data.verify`.

    Raises: `WrongResultError` if the kernel is wrong. It is not timed in this case.
    """
    if not isinstance(kernel, CompiledKernel):
        raise ArgumentError("time_kernel: the argument is not a compiled kernel", got=kernel, hint="strategy(spec).compile()")
    if data is None:
        data = Data.of(kernel.program.spec, sizes=sizes, rotate_bytes=ROTATE_BYTES if l2 == "rotated" else 0)
    if l2 == "rotated":
        data.check_rotation()
    calls = data.calls(kernel)
    data.verify(calls[0], data.tolerance_for(kernel) if tolerance is None else tolerance)
    return measure({"kernel": calls}, rounds=rounds, regime=regime, l2=l2, **options)["kernel"]


def cublas(arrays: Mapping[str, Any]) -> Call:
    """Return the product C = A B by cuBLAS on the arrays of a set, for `Data.calls`: through PyTorch if it is imported, else through CuPy.

    PyTorch multiplies into row-major output, so a column-major C is computed as C.T = B.T A.T.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        cupy = launch.require_cupy()
        a, b, c = (arrays[name] for name in "ABC")
        return functools.partial(cupy.matmul, a, b, out=c)
    a, b, c = (_as_torch(torch, arrays[name]) for name in "ABC")
    if c.stride(1) != 1:
        a, b, c = b.T, a.T, c.T
    if a.dtype != c.dtype:
        return functools.partial(torch.mm, a, b, out_dtype=c.dtype, out=c)
    return functools.partial(torch.matmul, a, b, out=c)


def library(data: Data) -> tuple[Call, ...] | None:
    """Return verified launches of the vendor's matrix product; None if it does not support the spec or computes a wrong result."""
    spec = data.spec
    if spec.title != "MatMul" or spec.operands["C"].dtype.kind != "float" or data.initials:
        return None
    with contextlib.suppress(ImportError, OSError):
        importlib.import_module("torch")  # without PyTorch, CuPy calls the same library
    try:
        calls = data.calls(cublas)
        data.verify(calls[0])
    except (FireironError, RuntimeError, TypeError, ValueError):  # PyTorch and CuPy: an unsupported type
        return None
    return calls


# ---------------------------------------------------------------------------------------------- throughput


@frozen
class Throughput:
    """Arithmetic operations and minimum bytes of one launch, and both per second."""

    flops: int
    bytes: int
    tflops: float
    gb_s: float


def throughput(spec: Spec, us: float, sizes: Mapping[str, int] | None = None, *, flops: int | None = None) -> Throughput:
    """Return the throughput of a launch that takes `us` microseconds. Raises: `ArgumentError` unless `us` is positive.

    A matrix product counts as 2 M N K operations, a pointwise operation and an addition as one, and a copy as none. For user-defined specs,
    `flops` is the number of operations. Bytes are the minimum traffic: each input is read once, and each output is written once. An output
    is also read if the kernel accumulates into it.
    """
    if not us > 0:
        raise ArgumentError("throughput: the time of a launch must be positive", got=us)
    known = all_sizes(spec, sizes)
    operations = evaluated(spec.flops, known) if flops is None else flops
    moved = evaluated(spec.bytes, known)
    return Throughput(operations, moved, operations / us / 1e6, moved / us / 1e3)


# ---------------------------------------------------------------------------------------------- environment


def environment() -> dict[str, Any]:
    """Return the date, the GPU, the driver and versions, as plain JSON. Missing values are None."""
    torch = sys.modules.get("torch")
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "fireiron": VERSION,
        "revision": revision(),
        "python": platform.python_version(),
        "numpy": importlib.import_module("numpy").__version__,
        "torch": None if torch is None else str(torch.__version__),
        **_gpu_environment(),
    }


def _gpu_environment() -> dict[str, Any]:
    if not launch.gpu_available():
        return dict.fromkeys(("gpu", "architecture", "driver", "cuda", "cupy", "clock", "temperature", "power"))
    cupy = launch.require_cupy()
    name = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)["name"]
    state = gpu_state.read_state()
    return {
        "gpu": name.decode() if isinstance(name, bytes) else str(name),
        "architecture": launch.device_arch(),
        "driver": gpu_state.driver_release(),
        "cuda": ".".join(map(str, launch.driver_version())),
        "cupy": cupy.__version__,
        "clock": None if state is None else state.clock,
        "temperature": None if state is None else state.temperature,
        "power": None if state is None else state.power,
    }


# ---------------------------------------------------------------------------------------------- streams and graphs


@functools.cache
def _stream(cupy: Any, device: int) -> Any:
    """Return the stream for captures. There is one per GPU, because cuBLAS keeps a workspace for each stream that it has used."""
    return cupy.cuda.Stream(non_blocking=True)


@contextlib.contextmanager
def _on(stream: Any) -> Iterator[Any]:
    """Make the stream current in CuPy. If PyTorch is imported and has a GPU, make it current in PyTorch too."""
    with contextlib.ExitStack() as both:
        both.enter_context(stream)
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_available():
            device = launch.require_cupy().cuda.Device().id
            both.enter_context(torch.cuda.stream(torch.cuda.ExternalStream(stream.ptr, device=device)))
        yield stream


def _as_torch(torch: Any, array: Any) -> Any:
    """Return the array as a PyTorch tensor. bfloat16 is converted via integers, which every array exchange protocol supports."""
    import numpy

    if array.dtype.name == "bfloat16":
        return torch.from_dlpack(array.view(numpy.int16)).view(torch.bfloat16)
    return torch.from_dlpack(array)


def _captured(stream: Any, name: str, calls: Sequence[Call]) -> tuple[Any, str]:
    """Capture the calls in a graph. Return the graph and an empty text, or None and the reason why they cannot be captured.

    Raises: `ArgumentError` if there are fewer launches on the stream than calls, because then calls use a different stream.
    """
    stream.begin_capture()
    graph, nodes, why = None, None, ""
    try:
        for call in calls:
            call()
        nodes = gpu_state.captured_nodes(stream.ptr)
        graph = stream.end_capture()
    except (RuntimeError, LaunchError) as error:  # CuPy's, PyTorch's and Triton's errors of CUDA
        why = f"it cannot be captured: {(str(error) or type(error).__name__).splitlines()[0]}"
    finally:
        if graph is None:
            _discard_capture(stream)
    if graph is None:
        return None, why
    if nodes is not None and nodes < len(calls):
        raise ArgumentError(
            f"{name} does not launch on the current stream: {len(calls)} calls resulted in {nodes} launches there",
            hint="launch on cupy.cuda.get_current_stream() or torch.cuda.current_stream()",
        )
    return graph, ""


def _discard_capture(stream: Any) -> None:
    """End a capture and discard its graph. The driver's error about an invalid capture is expected."""
    with contextlib.suppress(RuntimeError):
        stream.end_capture()


# ---------------------------------------------------------------------------------------------- one contender


@attrs.frozen(eq=False)
class _Replays:
    """A cyclic sequence of replays: round `i` runs `replays[i % len(replays)]`."""

    cupy: Any
    stream: Any
    replays: tuple[Call, ...]
    launches: int
    work: float  # microseconds of a round
    note: str

    def round(self, number: int) -> float:
        """Run a round. Return the microseconds of a launch: the mean of the round."""
        return self._elapsed(self.replays[number % len(self.replays)]) / self.launches

    def warm(self, number: int = 0) -> None:
        """Run the replay that precedes round `number`, so that the buffers of that round are the least recently used."""
        self.replays[(number - 1) % len(self.replays)]()
        self.stream.synchronize()

    def _elapsed(self, replay: Call) -> float:
        start, stop = self.cupy.cuda.Event(), self.cupy.cuda.Event()
        start.record(self.stream)
        replay()
        stop.record(self.stream)
        stop.synchronize()
        return 1000 * float(self.cupy.cuda.get_elapsed_time(start, stop))


@attrs.frozen(eq=False)
class _Flushed(_Replays):
    """Replays of a single launch each. The cache is overwritten before each launch, and each launch is timed separately."""

    flush: Call

    def round(self, number: int) -> float:
        """Run a round. Return the microseconds of a launch: the median of the round."""
        events = []
        for position in range(number * self.launches, (number + 1) * self.launches):
            self.flush()
            start, stop = self.cupy.cuda.Event(), self.cupy.cuda.Event()
            start.record(self.stream)
            self.replays[position % len(self.replays)]()
            stop.record(self.stream)
            events.append((start, stop))
        self.stream.synchronize()
        return statistics.median(1000 * float(self.cupy.cuda.get_elapsed_time(*pair)) for pair in events)


def _prepared(cupy: Any, stream: Any, name: str, calls: tuple[Call, ...], l2: str, launches: int | None) -> _Replays:
    """Warm up a contender, estimate the time of a launch, and capture its launches."""
    if l2 == "hot":
        calls = calls[:1]
    calls[0]()
    stream.synchronize()
    warm_up, warmed = _Replays(cupy, stream, calls, 1, 0.0, ""), 0.0
    for number in range(min(SAMPLE, len(calls))):
        warmed += warm_up.round(number)
        if warmed > WARMING:
            break
    us, note = _estimate(cupy, stream, name, calls)
    if l2 == "flushed":
        return _flushed(cupy, stream, name, calls, us, launches, note)
    parts = _parts(calls, us, launches)
    replays, note = _replays(stream, name, parts, note)
    return _Replays(cupy, stream, replays, len(parts[0]), us * len(parts[0]), note)


def _replays(stream: Any, name: str, parts: Sequence[Sequence[Call]], note: str) -> tuple[tuple[Call, ...], str]:
    """Return a replay for each part, and a note. If all parts can be captured, the replays are graphs, and the note is empty."""
    graphs = []
    for part in () if note else parts:
        graph, note = _captured(stream, name, part)
        if graph is None:
            break
        graphs.append(functools.partial(graph.launch, stream))
    return (tuple(functools.partial(_call_all, part) for part in parts) if note else tuple(graphs)), note


def _call_all(calls: Sequence[Call]) -> None:
    for call in calls:
        call()


def _estimate(cupy: Any, stream: Any, name: str, calls: tuple[Call, ...]) -> tuple[float, str]:
    """Return an estimate of the microseconds of a launch, and the reason if it cannot be captured."""
    first_replays = _Replays(cupy, stream, calls, 1, 0.0, "")
    slow = max(1.0, min(first_replays.round(number) for number in range(2)))  # including the host's launch overhead
    part = list(itertools.islice(itertools.cycle(calls), max(1, min(SAMPLE, round(REPLAY / slow)))))
    replays, note = _replays(stream, name, [part], "")
    sample = _Replays(cupy, stream, replays, len(part), 0.0, note)
    sample.warm()
    return max(0.1, statistics.median(sample.round(0) for _ in range(3 if slow < WARMING else 1))), note


def _parts(calls: tuple[Call, ...], us: float, launches: int | None) -> list[list[Call]]:
    """Return the calls of each replay. All replays have the same number of calls. Replays use all sets before they reuse one."""
    sets = len(calls)
    count = launches or max(1, min(MAX_LAUNCHES, round(REPLAY / us)))
    if launches is None:
        count = count // sets * sets if count >= sets else math.ceil(sets / math.ceil(sets / count))
    whole = math.lcm(count, sets)
    replays = whole // count if whole <= MAX_LAUNCHES else math.ceil(sets / count)
    endless = itertools.cycle(calls)
    return [list(itertools.islice(endless, count)) for _ in range(replays)]


def _flushed(cupy: Any, stream: Any, name: str, calls: tuple[Call, ...], us: float, launches: int | None, note: str) -> _Flushed:
    replays, note = _replays(stream, name, [[call] for call in calls[:SAMPLE]], note)
    size = max(FLUSH_BYTES, 4 * int(cupy.cuda.Device().attributes.get("L2CacheSize", 0)))
    buffer = cupy.empty(size, dtype=cupy.uint8)
    flush = functools.partial(buffer.data.memset_async, 0, size, stream)
    cost = _Replays(cupy, stream, (flush,), 1, 0.0, "").round(0)
    count = max(1, min(SAMPLE, round(REPLAY / (us + cost)))) if launches is None else launches
    return _Flushed(cupy, stream, replays, count, count * (us + cost), note, flush)


# ---------------------------------------------------------------------------------------------- alternation of contenders


class _Contender:
    """A contender with its times, the number of rounds to run, and the state of the GPU before and after the rounds."""

    def __init__(self, replays: _Replays, wanted: int) -> None:
        self.replays = replays
        self.wanted = wanted
        self.times: list[float] = []
        self.before: gpu_state.State | None = None
        self.after: gpu_state.State | None = None

    @property
    def remaining(self) -> int:
        """The number of remaining rounds."""
        return self.wanted - len(self.times)

    def run_rounds(self, rounds: int) -> None:
        """Time some rounds."""
        if not self.times:
            self.before = gpu_state.read_state()
        for _ in range(rounds):
            self.times.append(self.replays.round(len(self.times)))
        if not self.remaining:
            self.after = gpu_state.read_state()

    def timing(self, regime: str, l2: str) -> Timing:
        """Return the measurement."""
        before, after = self.before, self.after
        return Timing.of(
            self.times,
            self.replays.launches,
            regime,
            l2,
            clocks=None if before is None or after is None else (before.clock, after.clock),
            temperature=None if after is None else after.temperature,
            power=None if after is None else after.power,
            throttle_reasons=() if after is None else after.throttle_reasons,
            graph=not self.replays.note,
            note=self.replays.note,
        )


def _round_count(work: float, rounds: int, regime: str, seconds: float, burst: float) -> int:
    """Return the number of rounds of `work` microseconds that fit into `seconds`, at least three. Each burst has an additional replay."""
    repeated = 1 + 1 / _rounds_per_burst(work, burst) if regime == "burst" else 1
    return int(max(min(MIN_ROUNDS, rounds), min(rounds, seconds * 1e6 / (work * repeated))))


def _rounds_per_burst(work: float, burst: float) -> int:
    """Return the number of rounds of `work` microseconds in `burst` microseconds."""
    return max(1, round(burst / work))


def _run_bursts(contenders: Mapping[str, _Contender], pause: float, burst: float) -> None:
    """Alternate bursts of the contenders. A burst consists of a pause, a replay, and rounds of about `burst` microseconds."""
    while any(contender.remaining for contender in contenders.values()):
        for contender in contenders.values():
            if contender.remaining:
                time.sleep(pause)
                contender.replays.warm(len(contender.times))
                contender.run_rounds(min(contender.remaining, _rounds_per_burst(contender.replays.work, burst)))


def _run_busy(contenders: Mapping[str, _Contender], heating: float) -> None:
    """Alternate single rounds without pauses, after some seconds of work."""
    stop = time.monotonic() + heating
    while True:
        for contender in contenders.values():
            contender.replays.warm()
        if time.monotonic() >= stop:
            break
    while any(contender.remaining for contender in contenders.values()):
        for contender in contenders.values():
            if contender.remaining:
                contender.run_rounds(1)


def _check(contenders: Mapping[str, Sequence[Call]], rounds: int, regime: str, l2: str, launches: int | None, seconds: float) -> None:
    if not contenders or not all(calls and all(map(callable, calls)) for calls in contenders.values()):
        raise ArgumentError("measure: each contender must be a sequence of callables, one for each set of buffers", got=dict(contenders))
    for name, value in (("rounds", rounds), ("launches", launches)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise ArgumentError(f"measure: {name} must be a positive integer", got=value)
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not seconds > 0:
        raise ArgumentError("measure: seconds must be a positive number", got=seconds)
    if regime not in REGIMES:
        raise ArgumentError("measure: unknown clock state", got=regime, legal=REGIMES)
    if l2 not in L2_STATES:
        raise ArgumentError("measure: unknown cache state", got=l2, legal=L2_STATES)
    few = [name for name, calls in contenders.items() if len(calls) < 2]
    if l2 == "rotated" and few:
        raise ArgumentError(
            f'measure: {", ".join(few)} has only one set of buffers, but l2="rotated" requires two', hint='l2="hot", or Data.of(spec)'
        )


__all__ = [
    "L2_STATES", "REGIMES", "ROTATE_BYTES", "Call", "Data", "Derived", "Throughput", "Timing", "cublas", "environment", "library",
    "measure", "throughput",
    "time_kernel", "tolerance_of",
]  # fmt: skip
