"""Implement the pytest plugin. `pytest_fireiron` loads this module when a test uses `gpu_benchmark`.

A benchmark verifies the kernel and its rivals, measures them on the GPU, and passes the rounds to pytest-benchmark. Thus its table,
`--benchmark-json`, `--benchmark-autosave`, `--benchmark-compare` and `--benchmark-compare-fail` work with GPU times. pytest-benchmark reads
a clock before and after each round. The plugin provides a clock that advances only by the seconds that a launch took.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from fireiron.errors import ArgumentError, DecompositionError, IncompleteError, MatchError, ResourceError, SynchronizationError
from fireiron.frozen import frozen
from fireiron.gpu import launch
from fireiron.gpu.kernel import CompiledKernel, target_for
from fireiron.language.strategy import Strategy
from fireiron.measure import timing
from fireiron.measure.data import Tolerance
from fireiron.measure.simulated import Verified, verified
from fireiron.measure.sweeps import Case
from fireiron.spec import Spec

if TYPE_CHECKING:
    from fireiron.compiler import Program

OURS = "fireiron"
"""The name of the kernel among the contenders."""

NO_GPU = "needs a CUDA GPU and CuPy (pip install 'fireiron[cuda13]')"
"""The reason for which `pytest_fireiron` skips tests marked `gpu`."""

SIMULATED_SECONDS = 10.0
"""Approximate limit in seconds for verifying one kernel in the simulator."""

ILLEGAL = (ArgumentError, DecompositionError, IncompleteError, MatchError, ResourceError, SynchronizationError)
"""Errors that mark an illegal combination of a sweep. Other errors are defects."""


@frozen
class Row:
    """One line of the table at the end of a session. A kernel that is only simulated has no times, and its registers are unknown."""

    name: str
    shape: str
    us: float | None
    tflops: float | None
    gb_s: float | None
    ratio: float | None
    registers: int | None
    shared: int
    spills: int | None
    simulated: str | None = None

    HEADS = ("benchmark", "shape", "us", "TFLOP/s", "GB/s", "ratio", "registers", "shared", "spills", "simulated")


@frozen
class Benchmarked:
    """The result of a benchmark: the error and the timing of each contender, by name.

    There are no timings if benchmarks are disabled or simulated.
    """

    kernel: CompiledKernel
    errors: Mapping[str, float]
    timings: Mapping[str, Any] = attrs.field(factory=dict)
    info: Mapping[str, Any] = attrs.field(factory=dict)

    @property
    def timing(self) -> Any:
        """The timing of the kernel; None if benchmarks are disabled."""
        return self.timings.get(OURS)

    @property
    def us(self) -> float | None:
        """The median time of a launch, in microseconds."""
        return None if self.timing is None else float(self.timing.us)

    @property
    def ratio(self) -> float | None:
        """The speedup over the first rival."""
        return self.info.get("ratio")


class GpuBenchmark:
    """The fixture `gpu_benchmark`: call it once in a test."""

    def __init__(self, node: Any, benchmark: Any, clock: Any, options: Mapping[str, Any], report: Callable[[Row], None]) -> None:
        self.node = node
        self.benchmark = benchmark
        self.clock = clock
        self.options = options
        self.report = report

    def __call__(
        self,
        kernel: Case | Strategy | CompiledKernel,
        spec: Spec | None = None,
        *,
        sizes: Mapping[str, int] | None = None,
        against: Mapping[str, Any] | None = None,
        rounds: int | None = None,
        regime: str | None = None,
        l2: str | None = None,
        tolerance: Tolerance | None = None,
        flops: int | None = None,
        **options: Any,
    ) -> Benchmarked:
        """Verify a kernel and its rivals, measure them alternately, and report the GPU times to pytest-benchmark.

        Args:
            kernel: a case of `sweep`, a strategy (bound, or with `spec`), or a compiled kernel.
            sizes: the values of the spec's symbols.
            against: rivals by name. A rival is a compiled kernel, or a function that takes the arrays of a set by name and returns the
                launch on them (`fireiron.measure.timing.cublas`).
            rounds, regime, l2: as for `timing.measure`. Default: the options of the command line.
            tolerance: as for `Data.verify`.
            flops: the number of operations of a launch, for user-defined specs.
            options: further options of `timing.measure`.

        Raises: `WrongResultError` if the kernel or a rival is wrong. An illegal combination of a sweep skips the test.
        """
        if self._simulates:
            return self._simulated(kernel, spec, sizes)
        compiled, values = self._compiled(kernel, spec)
        rivals = dict(against or {})
        if OURS in rivals:
            raise ArgumentError(f"against: {OURS} is the name of the kernel itself", got=tuple(rivals), hint="use a different name")
        options_ = {"rounds": rounds, "regime": regime, "l2": l2}
        settings: dict[str, Any] = {name: self.options[name] if value is None else value for name, value in options_.items()}

        def work() -> Benchmarked:
            data, calls, errors = self._verified(compiled, rivals, sizes, settings["l2"], tolerance)
            if self._disabled:
                return Benchmarked(compiled, errors)
            timings = timing.measure(calls, **settings, **options)
            speed = timing.throughput(data.spec, timings[OURS].us, sizes, flops=flops)
            info = _information(compiled, values, timings, errors, speed)
            self.report(_row(self.node.name, data.spec, data.sizes, info))
            return Benchmarked(compiled, errors, timings, info)

        return work() if self.benchmark is None else self._recorded(work, settings["rounds"])

    def _verified(
        self, kernel: CompiledKernel, rivals: Mapping[str, Any], sizes: Mapping[str, int] | None, l2: str, tolerance: Tolerance | None
    ) -> tuple[timing.Data, dict[str, Any], dict[str, float]]:
        """Verify the contenders. Return the data, and the launches and the error of each contender."""
        rotate = l2 == "rotated" and not self._disabled
        data = timing.Data.of(kernel.program.spec, sizes=sizes, rotate_bytes=timing.ROTATE_BYTES if rotate else 0)
        if rotate:
            data.check_rotation()
        contenders = {OURS: kernel, **rivals}
        calls = {name: data.calls(contender) for name, contender in contenders.items()}
        bounds = {name: data.tolerance_for(contender) if tolerance is None else tolerance for name, contender in contenders.items()}
        return data, calls, {name: data.verify(launches[0], bounds[name]) for name, launches in calls.items()}

    @property
    def _simulates(self) -> bool:
        """Whether kernels are verified in the simulator, because it is requested and no GPU is available."""
        return bool(self.options["simulate"]) and not launch.gpu_available()

    def _simulated(self, kernel: Any, spec: Spec | None, sizes: Mapping[str, int] | None) -> Benchmarked:
        """Verify a kernel in the simulator. No rival runs, no time is measured, and pytest-benchmark records nothing."""
        program = self._program(kernel, spec)
        results: list[Verified] = []

        def work() -> None:
            results.append(verified(program, sizes, seconds=SIMULATED_SECONDS))

        if self.benchmark is None:
            work()
        else:
            self.benchmark.disabled = True
            self.benchmark.pedantic(work)
        outcome = str(results[0])
        shape = "x".join(str(size.evaluate(results[0].at)) for size in program.spec.sizes)
        self.report(Row(self.node.name, shape, None, None, None, None, None, program.ir.shared_bytes, None, outcome))
        return Benchmarked(CompiledKernel(program), {}, info={"simulated": outcome})

    def _program(self, kernel: Any, spec: Spec | None) -> Program:
        """Return the program for the requested target, or else for the target of the strategy."""
        if isinstance(kernel, CompiledKernel):
            return kernel.program
        bound = kernel.bound if isinstance(kernel, Case) else _strategy(kernel) if spec is None else _strategy(kernel)(spec)
        with _skip_illegal(isinstance(kernel, Case)):
            program: Program = bound.program(self.options["architecture"])
            _ = program.ir
            return program

    @property
    def _disabled(self) -> bool:
        """Whether kernels are only verified, under pytest-xdist or with `--benchmark-disable`."""
        return self.benchmark is not None and bool(self.benchmark.disabled)

    def _compiled(self, kernel: Any, spec: Spec | None) -> tuple[CompiledKernel, Mapping[str, int]]:
        """Return the kernel for this GPU, and the values of its tunables."""
        if isinstance(kernel, CompiledKernel):
            return kernel, kernel.program.chosen
        architecture = self.options["architecture"] or target_for(launch.device_arch())
        if isinstance(kernel, Case):
            with _skip_illegal():
                compiled = kernel.bound.compile(architecture)
                _ = compiled.ir
            return compiled, {**compiled.program.chosen, **kernel.values}
        strategy = _strategy(kernel)
        compiled = (strategy if spec is None else strategy(spec)).compile(architecture)
        return compiled, compiled.program.chosen

    def _recorded(self, work: Callable[[], Benchmarked], rounds: int) -> Benchmarked:
        """Let pytest-benchmark run rounds. Each round advances its clock by the seconds that a launch took on the GPU.

        The work is part of the first round, so that pytest-benchmark notices a failing benchmark.
        """
        results: list[Benchmarked] = []
        seconds: Iterator[float] = iter(())

        def restart() -> None:
            nonlocal seconds
            if not results:
                results.append(work())
                self.benchmark.extra_info.update(results[0].info)
                seconds = itertools.cycle(() if results[0].timing is None else [us / 1e6 for us in results[0].timing.rounds])
            self.clock.now = 0.0

        def one_round() -> None:
            self.clock.now += next(seconds, 0.0)

        self.benchmark.pedantic(one_round, setup=restart, rounds=rounds, iterations=1, warmup_rounds=0)
        return results[0]


def _strategy(kernel: Any) -> Strategy:
    if not isinstance(kernel, Strategy):
        raise ArgumentError(
            "gpu_benchmark: the argument is not a kernel", got=kernel, legal="a case of sweep, a strategy, a compiled kernel"
        )
    return kernel


@contextlib.contextmanager
def _skip_illegal(sweeps: bool = True) -> Iterator[None]:
    """Skip the test if a combination of a sweep is illegal. Without `sweeps`, raise the error instead."""
    import pytest

    try:
        yield
    except ILLEGAL as error:
        if not sweeps:
            raise
        pytest.skip(f"illegal: {error.asked}")


def _information(
    kernel: CompiledKernel, values: Mapping[str, int], timings: Mapping[str, Any], errors: Mapping[str, float], speed: Any
) -> dict[str, Any]:
    """Return the data that a benchmark records in addition to its times, as plain JSON."""
    ours, resources = timings[OURS], kernel.resources
    occupancy = getattr(kernel, "occupancy", None)
    rivals = {name: timing for name, timing in timings.items() if name != OURS}
    first = next(iter(rivals.values()), None)
    return {
        "us": ours.us,
        "minimum_us": ours.minimum,
        "tflops": speed.tflops,
        "gb_s": speed.gb_s,
        "error": errors[OURS],
        "registers": resources.registers,
        "spills": resources.spill_stores + resources.spill_loads,
        "shared_bytes": kernel.ir.shared_bytes,
        "occupancy": None if occupancy is None else occupancy.share,
        "values": dict(values),
        "architecture": kernel.program.architecture.name,
        "spec": str(kernel.program.spec),
        "regime": ours.regime,
        "l2": ours.l2,
        "rounds": len(ours.rounds),
        "launches": ours.launches,
        "graph": ours.graph,
        "clocks": None if ours.clocks is None else list(ours.clocks),
        "temperature": ours.temperature,
        "power": ours.power,
        "ratio": None if first is None else first.us / ours.us,
        "against": {name: _rival(timing, ours, errors[name]) for name, timing in rivals.items()},
    }


def _rival(timing: Any, ours: Any, error: float) -> dict[str, Any]:
    return {"us": timing.us, "ratio": timing.us / ours.us, "error": error, "graph": timing.graph}


def _row(name: str, spec: Spec, sizes: Mapping[str, int], info: Mapping[str, Any]) -> Row:
    shape = "x".join(str(size.evaluate(sizes)) for size in spec.sizes)
    keys = ("us", "tflops", "gb_s", "ratio", "registers", "shared_bytes", "spills")
    return Row(name, shape, *(info[key] for key in keys))


def table(rows: Sequence[Row]) -> str:
    """Return a table with one line for each benchmark of a session, without empty columns."""
    from tabulate import tabulate

    columns = [number for number in range(len(Row.HEADS)) if any(attrs.astuple(row)[number] is not None for row in rows)]
    cells = [[attrs.astuple(row)[number] for number in columns] for row in rows]
    return str(tabulate(cells, [Row.HEADS[number] for number in columns], floatfmt=".4g", missingval="-"))


def make(request: Any, benchmark: Any, clock: Any, rows: list[Row]) -> GpuBenchmark:
    """Return the value of the fixture, with the options of the command line as defaults."""
    options_ = request.config.getoption
    options = {name: options_(f"fireiron_{name}") for name in ("rounds", "regime", "l2", "architecture", "simulate")}
    return GpuBenchmark(request.node, benchmark, clock, options, rows.append)
