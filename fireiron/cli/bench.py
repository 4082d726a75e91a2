"""`fireiron bench`: strategies, sizes and values of tunables as a table of times, beside the vendor's library."""

from __future__ import annotations

import argparse
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import attrs

from fireiron.cli.arguments import Add, add_json, positive, run_time_sizes, strategy_of, takes_run_time_sizes
from fireiron.cli.folded import shortened
from fireiron.cli.output import FAILED, print_json, progress, width_of_output, working
from fireiron.errors import ArgumentError, FireironError, WrongResultError

if TYPE_CHECKING:
    from fireiron.compiler import Program
    from fireiron.language.strategy import Strategy

OURS: Final = "fireiron"
LIBRARY: Final = "library"

SECONDS: Final = 5.0
"""Approximate limit in seconds for verifying one kernel in the simulator."""

FEWEST: Final = 24
"""Least columns of a note."""


@attrs.frozen
class Wanted:
    """One line of the table to be: a strategy by name, sizes, values of its tunables."""

    name: str
    sizes: Mapping[str, int]
    values: Mapping[str, int]

    @property
    def cells(self) -> tuple[str, str, str]:
        """As the table shows it."""
        return (
            self.name,
            "x".join(map(str, self.sizes.values())) or "-",
            " ".join(f"{name}={one}" for name, one in self.values.items()) or "-",
        )


@attrs.frozen
class Line:
    """What became of it. `status`: measured, verified (in the simulator), illegal, wrong, or failed; `note` says more.

    Times in microseconds: `us` measured, `predicted_us` by the cost model, `library_us` of the vendor's library beside it. `us` is the
    median of so many `rounds`, each the mean of so many `launches`.
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
        "bench", run, "a table of times beside the library's; without a GPU: verified in the simulator, predicted, nothing measured"
    )
    command.add_argument("strategies", metavar="STRATEGY", nargs="+", help="names of the library, path.py, or path.py:name")
    command.add_argument(
        "--shape", action="append", default=[], type=_shape, metavar="MxNxK", help="sizes of a product, such as 512x512x4096 (repeatable)"
    )
    command.add_argument(
        "--sweep",
        action="append",
        default=[],
        type=_swept,
        metavar="bm=64,128",
        help="values of a tunable; bm alone: all it has (repeatable)",
    )
    takes_run_time_sizes(command)
    command.add_argument("--rounds", type=positive, default=20, metavar="N", help="how often each is timed (20), if --seconds allow")
    command.add_argument(
        "--seconds",
        type=positive,
        default=10,
        metavar="N",
        help="how long timing a kernel may take (10): of a slow one there are fewer rounds, at least three",
    )
    command.add_argument("--clocks", choices=("burst", "busy"), default="burst", help="time after pauses, or on a busy GPU (burst)")
    command.add_argument("--l2", choices=("rotated", "flushed", "hot"), default="rotated", help="the state of the L2 cache (rotated)")
    command.add_argument("--gpu", metavar="NAME", help="without a GPU: the one to predict for, such as A100")
    command.add_argument("--simulate", action="store_true", help="as without a GPU, though there is one")
    add_json(command)


def run(arguments: argparse.Namespace) -> int:
    """Exit status 1 if a result is wrong, a measurement failed, or no combination is legal."""
    from fireiron.gpu import launch

    with working("looking for a GPU"):
        measures = not arguments.simulate and launch.gpu_available()
    wanted = list(_wanted(arguments))
    lines = _lines(wanted, arguments, measures)
    found = list(lines) if arguments.json else list(_printed(lines, wanted, measures, _where(measures, arguments)))
    if arguments.json:
        print_json(
            {"measured": measures, "where": _environment(measures), "lines": [attrs.asdict(one) | {"ratio": one.ratio} for one in found]}
        )
    good = any(one.status in ("measured", "verified") for one in found)
    return FAILED if any(one.status in ("wrong", "failed") for one in found) or not good else 0


# ---------------------------------------------------------------------------------------------- what is asked for


def _shape(text: str) -> dict[str, int]:
    match = re.fullmatch(r"([1-9][0-9]{0,8})x([1-9][0-9]{0,8})x([1-9][0-9]{0,8})", text, re.ASCII)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no MxNxK, such as 512x512x4096")
    return dict(zip("MNK", map(int, match.groups()), strict=True))


def _swept(text: str) -> tuple[str, tuple[int, ...]]:
    name, _, values = text.partition("=")
    if not name.isidentifier() or not re.fullmatch(r"([0-9]{1,10}(,[0-9]{1,10})*)?", values, re.ASCII):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=INTEGER,INTEGER,... and no NAME")
    return name, tuple(int(one) for one in values.split(",") if one)


def _wanted(arguments: argparse.Namespace) -> Iterator[Wanted]:
    """All combinations, strategy by strategy; a tunable that only some strategies have is swept in those."""
    from fireiron.language.library import find
    from fireiron.values.machine import as_architecture, as_dtype

    if arguments.dtype is not None:
        as_dtype(arguments.dtype)  # what no combination can be is no matter of combinations
    if arguments.arch is not None:
        as_architecture(arguments.arch)

    named = {dim: getattr(arguments, dim) for dim in "MNK" if getattr(arguments, dim) is not None}
    if named and arguments.shape:
        raise ArgumentError("bench: -M, -N, -K and --shape both say sizes", hint="give one of them")
    swept = {**{name: (value,) for name, value in arguments.set}, **dict(arguments.sweep)}
    tunables = {name: find(name).strategy.tunables() for name in arguments.strategies}
    for name in swept:
        if not any(name in known for known in tunables.values()):
            legal = sorted({one for known in tunables.values() for one in known})
            raise ArgumentError(f"{name}: no strategy here has such a tunable", legal=legal or "none")
    for strategy, known in tunables.items():
        here = {name: values or known[name].values for name, values in swept.items() if name in known}
        for shape in arguments.shape or [named]:
            for chosen in itertools.product(*here.values()):
                yield Wanted(strategy, shape, dict(zip(here, chosen, strict=True)))


def _bound(one: Wanted, arguments: argparse.Namespace, architecture: str | None) -> Strategy:
    changed = {"strategy": one.name, "set": list(one.values.items()), **one.sizes}
    return strategy_of(argparse.Namespace(**{**vars(arguments), **changed}), architecture=architecture)


# ---------------------------------------------------------------------------------------------- what becomes of it


def _lines(wanted: Sequence[Wanted], arguments: argparse.Namespace, measures: bool) -> Iterator[Line]:
    from fireiron.gpu import launch
    from fireiron.gpu.kernel import target_for
    from fireiron.measure.plugin import ILLEGAL

    architecture = arguments.arch or (target_for(launch.device_arch()) if measures else _target(arguments.gpu))
    for number, one in enumerate(wanted, 1):
        progress(f"{number} of {len(wanted)}: {' '.join(one.cells)} ...")
        try:
            program = _bound(one, arguments, architecture).program(architecture)
            _ = program.ir
        except ILLEGAL as error:
            yield Line(one.name, " ".join(one.cells[1:2]), one.values, "illegal", error.headline)
            continue
        known = Line(one.name, str(program.spec), {**program.chosen, **one.values}, "wrong")
        try:
            yield (_measured if measures else _simulated)(known, program, arguments)
        except WrongResultError as error:
            yield attrs.evolve(known, note=str(error))
        except FireironError as error:  # of measuring: a type that CuPy does not have, sets that do not rotate
            yield attrs.evolve(known, status="failed", note=str(error))


def _target(gpu: str | None) -> str | None:
    from fireiron.cost.gpus import as_gpu

    return None if gpu is None else as_gpu(gpu).architecture


def _measured(line: Line, program: Program, arguments: argparse.Namespace) -> Line:
    """Verified against float64 and timed beside the library, in one call of the function that measures everything here."""
    from fireiron.gpu.kernel import CompiledKernel
    from fireiron.measure import timing

    kernel, sizes = CompiledKernel(program), run_time_sizes(arguments, program.spec, line.strategy)
    rotated = arguments.l2 == "rotated"
    data = timing.Data.of(program.spec, sizes=sizes, rotate_bytes=timing.ROTATE_BYTES if rotated else 0)
    if rotated:
        data.check_rotation()
    calls = {OURS: data.calls(kernel)}
    error = data.verify(calls[OURS][0], data.tolerance_for(kernel))
    beside = timing.library(data)
    contenders = calls if beside is None else {**calls, LIBRARY: beside}
    times = timing.measure(contenders, rounds=arguments.rounds, regime=arguments.clocks, l2=arguments.l2, seconds=arguments.seconds)
    ours = times[OURS]
    us, few = ours.us, len(ours.rounds) < arguments.rounds
    note = "; ".join(filter(None, (ours.note, few and f"{len(ours.rounds)} rounds, as --seconds {arguments.seconds} allow")))
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

    checked = verified(program, run_time_sizes(arguments, program.spec, line.strategy), seconds=SECONDS, tell=progress)
    found = predict(program, arguments.gpu, dict(checked.at))
    return attrs.evolve(
        line, status="verified", predicted_us=found.us, tflops=found.tflops, note=f"{checked} right; limited by {found.bottleneck}"
    )


# ---------------------------------------------------------------------------------------------- the table


def _where(measures: bool, arguments: argparse.Namespace) -> str:
    if not measures:
        why = "as asked" if arguments.simulate else "no GPU here"
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
    """The lines, each printed as soon as it is there."""
    numbers = ("us", "TFLOP/s", "library us", "speedup", "error") if measures else ("predicted us", "TFLOP/s")
    heads = ("strategy", "sizes", "values")
    cells = [one.cells for one in wanted]
    widths = [max(len(head), *(len(row[i]) for row in cells)) for i, head in enumerate(heads)] + [max(len(one), 8) for one in numbers]
    print(f"{where}\n")
    _print_row((*heads, *numbers, "note"), widths)
    _print_row([*("-" * width for width in widths), "-" * FEWEST], widths)
    for one, line in zip(wanted, lines, strict=True):
        progress("")
        shown = (line.us, line.tflops, line.library_us, line.ratio, line.error) if measures else (line.predicted_us, line.tflops)
        note = line.note if line.status in ("measured", "verified") else f"{line.status}: {line.note}"
        _print_row((*one.cells, *map(_number, shown), " ".join(note.split())), widths)
        yield line


def _print_row(cells: Sequence[str], widths: Sequence[int]) -> None:
    """Names to the left, numbers to the right, and the note as far as it fits."""
    padded = [
        f"{cell:<{width}}" if place < 3 else f"{cell:>{width}}" for place, (cell, width) in enumerate(zip(cells, widths, strict=False))
    ]
    text = "  ".join(padded)
    room = width_of_output()
    note = cells[-1] if room is None or room - len(text) < FEWEST else shortened(cells[-1], room - len(text) - 2)
    print(f"{text}  {note}".rstrip(), flush=True)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}" if value >= 0.01 else f"{value:.1e}"
