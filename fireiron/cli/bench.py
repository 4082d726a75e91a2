"""`fireiron bench`: print a table of times for strategies, sizes and values of tunables, compared with the vendor's library."""

from __future__ import annotations

import argparse
import itertools
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import attrs

from fireiron.cli.arguments import Add, positive, run_time_sizes, strategy_of, takes_run_time_sizes
from fireiron.cli.folded import shortened
from fireiron.cli.output import FAILED, print_json, progress, width_of_output, working
from fireiron.errors import ArgumentError, FireironError, WrongResultError
from fireiron.frozen import frozen

if TYPE_CHECKING:
    from fireiron.compiler import Program
    from fireiron.language.strategy import Strategy

OURS: Final = "fireiron"
LIBRARY: Final = "library"

SECONDS: Final = 5.0
"""Approximate limit in seconds for verifying one kernel in the simulator."""

FEWEST: Final = 24
"""Minimum width of a note in columns."""


@frozen
class Wanted:
    """A requested line of the table: the name of a strategy, sizes, and values of tunables."""

    name: str
    sizes: Mapping[str, int]
    values: Mapping[str, int]
    shown_sizes: str = "-"

    @property
    def cells(self) -> tuple[str, str, str]:
        """The cells of the table."""
        return (
            self.name,
            self.shown_sizes,
            " ".join(f"{name}={value}" for name, value in self.values.items()) or "-",
        )


@frozen
class Line:
    """A result.

    Attributes:
        status: measured, verified (in the simulator), illegal, wrong, or failed.
        note: details of the status.
        us: the measured time in microseconds: the median of `rounds` rounds. A round is the mean of `launches` launches.
        predicted_us: the prediction of the cost model.
        library_us: the time of the vendor's library, measured in the same call.
    """

    strategy: str
    spec: str
    values: Mapping[str, int]
    status: str
    note: str = ""
    us: float | None = None
    predicted_us: float | None = None
    library_us: float | None = None
    tflops: float | None = None
    error: float | None = None
    rounds: int | None = None
    launches: int | None = None

    @property
    def ratio(self) -> float | None:
        """The speedup over the library."""
        return None if self.us is None or self.library_us is None else self.library_us / self.us


def register(add: Add) -> None:
    """Add the command."""
    command = add(
        "bench", run, "time strategies and compare with the vendor's library; without a GPU: verify in the simulator and predict times"
    )
    command.add_argument("strategies", metavar="STRATEGY", nargs="+", help="library strategies, path.py, or path.py:NAME")
    command.add_argument(
        "--shape",
        action="append",
        default=[],
        type=_shape,
        metavar="MxNxK",
        help="all sizes in the order of the problem, such as 512x512x4096 (repeatable)",
    )
    command.add_argument(
        "--sweep",
        action="append",
        default=[],
        type=_swept,
        metavar="bm=64,128",
        help="values of a tunable; bm alone: all values (repeatable)",
    )
    takes_run_time_sizes(command)
    command.add_argument("--rounds", type=positive, default=20, metavar="N", help="rounds of timing per kernel (20), within --seconds")
    command.add_argument(
        "--seconds",
        type=positive,
        default=10,
        metavar="N",
        help="time limit for timing one kernel (10); a slow kernel gets fewer rounds, at least three",
    )
    command.add_argument("--clocks", choices=("burst", "busy"), default="burst", help="time after pauses, or on a busy GPU (burst)")
    command.add_argument("--l2", choices=("rotated", "flushed", "hot"), default="rotated", help="the state of the L2 cache (rotated)")
    command.add_argument("--gpu", metavar="NAME", help="without a GPU: predict times for this GPU, such as A100")
    command.add_argument("--simulate", action="store_true", help="use the simulator even if there is a GPU")


def run(arguments: argparse.Namespace) -> int:
    """Run the command. Return exit status 1 if a result is wrong, a measurement failed, or no combination is legal."""
    from fireiron.gpu import launch

    with working("looking for a GPU"):
        measures = not arguments.simulate and launch.gpu_available()
    wanted = list(_wanted(arguments))
    lines = _lines(wanted, arguments, measures)
    results = list(lines) if arguments.json else list(_printed(lines, wanted, measures, _where(measures, arguments)))
    if arguments.json:
        print_json(
            {
                "measured": measures,
                "where": _environment(measures),
                "lines": [attrs.asdict(line) | {"ratio": line.ratio} for line in results],
            }
        )
    good = any(line.status in ("measured", "verified") for line in results)
    return FAILED if any(line.status in ("wrong", "failed") for line in results) or not good else 0


# ---------------------------------------------------------------------------------------------- the requested lines


def _shape(text: str) -> tuple[int, ...]:
    if re.fullmatch(r"[1-9][0-9]{0,8}(x[1-9][0-9]{0,8})*", text, re.ASCII) is None:
        raise argparse.ArgumentTypeError(f"{text!r} are not sizes, such as 512x512x4096")
    return tuple(map(int, text.split("x")))


def _swept(text: str) -> tuple[str, tuple[int, ...]]:
    name, _, values = text.partition("=")
    if not name.isidentifier() or not re.fullmatch(r"([0-9]{1,10}(,[0-9]{1,10})*)?", values, re.ASCII):
        raise argparse.ArgumentTypeError(f"{text!r} is neither NAME=INTEGER,INTEGER,... nor NAME")
    return name, tuple(int(value) for value in values.split(",") if value)


def _wanted(arguments: argparse.Namespace) -> Iterator[Wanted]:
    """Yield all combinations, strategy by strategy. A tunable is swept only in the strategies that have it."""
    from fireiron.language.library import find
    from fireiron.values.machine import as_architecture, as_dtype

    if arguments.dtype is not None:
        as_dtype(arguments.dtype)  # an unknown type is an error of the command, not of a combination
    if arguments.arch is not None:
        as_architecture(arguments.arch)

    named = {dim: getattr(arguments, dim) for dim in "MNK" if getattr(arguments, dim) is not None}
    if named and arguments.shape:
        raise ArgumentError("bench: -M, -N, -K and --shape both specify sizes", hint="use one of them")
    swept = {**{name: (value,) for name, value in arguments.set}, **dict(arguments.sweep)}
    tunables = {name: find(name).strategy.tunables() for name in arguments.strategies}
    for name in swept:
        if not any(name in known for known in tunables.values()):
            raise _no_tunable(name, swept[name], tunables)
    shapes = {name: [_sizes_of_shape(name, shape) for shape in arguments.shape] or [named] for name in tunables}
    for strategy, known in tunables.items():
        here = {name: values or known[name].values for name, values in swept.items() if name in known}
        for shape in shapes[strategy]:
            for chosen in itertools.product(*here.values()):
                yield Wanted(strategy, shape, dict(zip(here, chosen, strict=True)), _shown_sizes(strategy, shape, arguments))


def _no_tunable(name: str, values: Sequence[int], tunables: Mapping[str, Mapping[str, object]]) -> ArgumentError:
    """Return the error for a tunable that no strategy has; it may be a size."""
    from fireiron.language.library import find

    legal = sorted({tunable for known in tunables.values() for tunable in known}) or "none"
    places = {strategy: [dim.lower() for dim in _dims(strategy)] for strategy in tunables}
    sized = next((strategy for strategy, dims in places.items() if name.lower() in dims), None)
    if sized is None:
        return ArgumentError(f"{name}: no given strategy has such a tunable", legal=legal)
    usual = dict(zip(places[sized], find(sized).sizes, strict=False))
    shapes = " ".join(f"--shape {'x'.join(map(str, (usual | {name.lower(): value}).values()))}" for value in values)
    return ArgumentError(f"{name} is a size, and no given strategy has such a tunable", legal=legal, hint=shapes or f"-s {name}=64")


def _dims(name: str) -> tuple[str, ...]:
    """Return the names of the sizes of a strategy's problem, in order."""
    from fireiron.language.entries import dimensions
    from fireiron.language.library import find

    entry = find(name)
    spec = entry.strategy.spec
    return tuple(dimensions(entry) if spec is None else spec.dims)


def _sizes_of_shape(name: str, shape: tuple[int, ...]) -> dict[str, int]:
    """Return sizes by name. Refuse a number of sizes that the strategy's problem does not have."""
    from fireiron.language.library import find

    dims, known = _dims(name), len(find(name).sizes)
    if len(shape) > len(dims) or len(shape) < min(known, len(dims)):
        legal = " x ".join(dims[: max(known, len(shape))])
        raise ArgumentError(f"--shape {'x'.join(map(str, shape))}: the problem of {name} has other sizes", legal=legal or "none")
    return dict(zip(dims, shape, strict=False))


def _reason(error: FireironError) -> str:
    """Return why a line is illegal: the error's first line, with the legal values of an argument."""
    legal = error.legal if isinstance(error.legal, str) else " ".join(map(str, error.legal or ()))
    return f"{error.headline}; legal {legal}" if legal and isinstance(error, ArgumentError) else error.headline


def _shown_sizes(name: str, sizes: Mapping[str, int], arguments: argparse.Namespace) -> str:
    """Return the sizes of a line: those of the command, and those of the strategy's file for the others."""
    from fireiron.language.entries import dimensions
    from fireiron.language.library import find

    entry = find(name)
    if entry.strategy.spec is not None:
        return "x".join(map(str, entry.strategy.spec.sizes))
    dims = dimensions(entry)
    given = dict([*sizes.items(), *arguments.sizes])
    chosen = [
        next((given[key] for key in (dim, dim.upper(), dim.lower()) if key in given), default)
        for dim, default in itertools.zip_longest(dims, entry.sizes, fillvalue="")
    ]
    return "x".join(str(given.get(str(size), size)) for size in chosen if size != "") or "-"


def _bound(wanted: Wanted, arguments: argparse.Namespace, architecture: str | None) -> Strategy:
    given = [] if any(getattr(arguments, dim) is not None for dim in "MNK") else list(wanted.sizes.items())
    changed = {"strategy": wanted.name, "set": list(wanted.values.items()), "sizes": [*arguments.sizes, *given]}
    return strategy_of(argparse.Namespace(**{**vars(arguments), **changed}), architecture=architecture)


# ---------------------------------------------------------------------------------------------- the results


def _lines(wanted: Sequence[Wanted], arguments: argparse.Namespace, measures: bool) -> Iterator[Line]:
    from fireiron.gpu import launch
    from fireiron.gpu.kernel import target_for
    from fireiron.measure.plugin import ILLEGAL

    architecture = arguments.arch or (target_for(launch.device_arch()) if measures else _target(arguments.gpu))
    for number, wanted_line in enumerate(wanted, 1):
        progress(f"{number} of {len(wanted)}: {' '.join(wanted_line.cells)} ...")
        try:
            program = _bound(wanted_line, arguments, architecture).program(architecture)
            _ = program.ir
        except ILLEGAL as error:
            yield Line(wanted_line.name, " ".join(wanted_line.cells[1:2]), wanted_line.values, "illegal", _reason(error))
            continue
        verified = Line(wanted_line.name, str(program.spec), {**program.chosen, **wanted_line.values}, "wrong")
        try:
            yield (_measured if measures else _simulated)(verified, program, arguments)
        except WrongResultError as error:
            yield attrs.evolve(verified, note=str(error))
        except FireironError as error:  # an error of the measurement, such as a type that CuPy does not have
            yield attrs.evolve(verified, status="failed", note=str(error))


def _target(gpu: str | None) -> str | None:
    from fireiron.cost.gpus import as_gpu

    return None if gpu is None else as_gpu(gpu).architecture


def _measured(line: Line, program: Program, arguments: argparse.Namespace) -> Line:
    """Verify a kernel by comparison with float64, and time it together with the library."""
    from fireiron.gpu.kernel import CompiledKernel
    from fireiron.measure import timing

    kernel, sizes = CompiledKernel(program), run_time_sizes(arguments, program.spec, line.strategy)
    rotated = arguments.l2 == "rotated"
    data = timing.Data.of(program.spec, sizes=sizes, rotate_bytes=timing.ROTATE_BYTES if rotated else 0)
    if rotated:
        data.check_rotation()
    calls = {OURS: data.calls(kernel)}
    error = data.verify(calls[OURS][0], data.tolerance_for(kernel))
    library_calls = timing.library(data)
    contenders = calls if library_calls is None else {**calls, LIBRARY: library_calls}
    times = timing.measure(contenders, rounds=arguments.rounds, regime=arguments.clocks, l2=arguments.l2, seconds=arguments.seconds)
    ours = times[OURS]
    us, few = ours.us, len(ours.rounds) < arguments.rounds
    note = "; ".join(filter(None, (ours.note, few and f"{len(ours.rounds)} rounds within --seconds {arguments.seconds}")))
    library = times[LIBRARY].us if LIBRARY in times else None
    speed = timing.throughput(data.spec, us, data.sizes)
    return attrs.evolve(
        line,
        status="measured",
        us=us,
        library_us=library,
        tflops=speed.tflops,
        error=error,
        note=note,
        rounds=len(ours.rounds),
        launches=ours.launches,
    )


def _simulated(line: Line, program: Program, arguments: argparse.Namespace) -> Line:
    from fireiron.cost import predict
    from fireiron.measure.simulated import verified

    checked = verified(program, run_time_sizes(arguments, program.spec, line.strategy), seconds=SECONDS, progress=progress)
    prediction = predict(program, arguments.gpu, dict(checked.at))
    return attrs.evolve(
        line,
        status="verified",
        predicted_us=prediction.us,
        tflops=prediction.tflops,
        note=f"{checked} {'simulated: ' if checked.blocks < checked.total else ''}correct; limited by {prediction.bottleneck}",
    )


# ---------------------------------------------------------------------------------------------- the table


def _where(measures: bool, arguments: argparse.Namespace) -> str:
    if not measures:
        why = "--simulate" if arguments.simulate else "no GPU"
        return f"NOTHING WAS MEASURED ({why}): kernels are verified in the simulator, times are predictions of the cost model"
    about = _environment(True)
    rounds = f"medians of {arguments.rounds} rounds unless noted"
    return f"{about.get('gpu')}, {rounds}, {arguments.clocks}, L2 {arguments.l2}, verified against float64"


def _environment(measures: bool) -> dict[str, Any]:
    if not measures:
        return {}
    from fireiron.measure.timing import environment

    return environment()


def _printed(lines: Iterator[Line], wanted: Sequence[Wanted], measures: bool, where: str) -> Iterator[Line]:
    """Print each line as soon as it is available, and yield it."""
    numbers = ("us", "TFLOP/s", "library us", "speedup", "error") if measures else ("predicted us", "TFLOP/s")
    heads = ("strategy", "sizes", "values")
    cells = [line.cells for line in wanted]
    widths = [max(len(head), *(len(row[i]) for row in cells)) for i, head in enumerate(heads)] + [max(len(head), 8) for head in numbers]
    print(f"{where}\n")
    _print_row((*heads, *numbers, "note"), widths)
    _print_row([*("-" * width for width in widths), "-" * FEWEST], widths)
    if len({line.name for line in wanted}) == len(wanted) and len({line.shown_sizes for line in wanted}) > 1:
        note = "the strategies have different sizes, so their times cannot be compared; -M, -N, -K or -s give all the same sizes"
        print(note, file=sys.stderr)
    for wanted_line, line in zip(wanted, lines, strict=True):
        progress("")
        shown = (line.us, line.tflops, line.library_us, line.ratio, line.error) if measures else (line.predicted_us, line.tflops)
        note = line.note if line.status in ("measured", "verified") else f"{line.status}: {line.note}"
        _print_row((*wanted_line.cells, *map(_number, shown), " ".join(note.split())), widths)
        yield line


def _print_row(cells: Sequence[str], widths: Sequence[int]) -> None:
    """Print a row: names left-aligned, numbers right-aligned, and the note shortened to the width of the output."""
    padded = [
        f"{cell:<{width}}" if place < 3 else f"{cell:>{width}}" for place, (cell, width) in enumerate(zip(cells, widths, strict=False))
    ]
    text = "  ".join(padded)
    room = width_of_output()
    note = cells[-1] if room is None or room - len(text) < FEWEST else shortened(cells[-1], room - len(text) - 2)
    print(f"{text}  {note}".rstrip(), flush=True)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}" if value >= 0.01 else f"{value:.1e}"
