"""`fireiron tune`: find the fastest values of a strategy's tunables by measurement."""

from __future__ import annotations

import argparse
import re
import sys
from typing import TYPE_CHECKING, Any

from fireiron.cli.arguments import Add, add_strategy, natural, positive, run_time_sizes, strategy_of, takes_run_time_sizes
from fireiron.cli.output import FAILED, print_json, progress, width_of_output
from fireiron.errors import ArgumentError, LaunchError

if TYPE_CHECKING:
    from fireiron.tune.progress import Progress
    from fireiron.tune.result import Tuning

INTERRUPTED = 128 + 2
PREDICT_SECONDS = 15.0
"""Default time limit in seconds for ranking combinations with `--predict`."""

_MEASURES: dict[str, Any] = {  # options of the search and of the measurement, with their defaults
    "gpus": None,
    "search": "exhaustive",
    "trials": None,
    "measure_top": None,
    "timeout": 30.0,
    "seed": 0,
    "journal": None,
    "restart": False,
}


def register(add: Add) -> None:
    """Add the command."""
    command = add("tune", run, "find the fastest values of the tunables: verify and time candidates on the GPU, with a journal")
    add_strategy(command)
    command.add_argument("--gpus", type=_numbers, metavar="0,1", help="GPUs to use, one process each (default: the current one)")
    command.add_argument("--search", default="exhaustive", choices=("exhaustive", "random", "tpe"), help="the search (exhaustive)")
    command.add_argument("--trials", type=positive, metavar="N", help="number of legal candidates of a random or tpe search (100)")
    command.add_argument("--seconds", type=_seconds, metavar="S", help="time limit of the search (with --predict: 15)")
    command.add_argument(
        "--prune",
        type=_prune,
        default=True,
        metavar="FACTOR",
        help="skip candidates whose prediction is more than FACTOR times the best (3); or none",
    )
    command.add_argument("--measure-top", type=positive, metavar="N", help="measure only the N best predictions")
    command.add_argument("--timeout", type=_seconds, default=30.0, metavar="S", help="time limit per candidate (30; more for slow kernels)")
    command.add_argument("--seed", type=natural, default=0, help="seed of the search (0)")
    command.add_argument("--jobs", type=positive, metavar="N", help="processes that lower and compile (default: one per processor)")
    command.add_argument("--journal", metavar="FILE", help="file of results, which are not measured again (default: in the cache folder)")
    command.add_argument("--restart", action="store_true", help="discard the journal")
    command.add_argument("--save", metavar="RECORDS", help="append the best result to a file of records")
    command.add_argument(
        "--predict",
        action="store_true",
        help="rank combinations by the cost model, in random order within --seconds; needs no GPU, measures nothing",
    )
    takes_run_time_sizes(command)


def run(arguments: argparse.Namespace) -> int:
    """Run the command. Return exit status 1 if no candidate was verified and timed."""
    progress(f"searching the tunables of {arguments.strategy} ...")  # until the first report of candidates
    strategy = strategy_of(argparse.Namespace(**{**vars(arguments), "set": []}), open_values=True)
    common: dict[str, Any] = {
        "arch": arguments.arch,
        "fixed": dict(arguments.set),
        "sizes": {} if strategy.spec is None else run_time_sizes(arguments, strategy.spec),
        "jobs": arguments.jobs,
        "name": arguments.strategy,
    }
    watch = _Watch(quiet=arguments.json)
    try:
        tuning = _predicted(strategy, common, watch, arguments) if arguments.predict else _tuned(strategy, common, watch, arguments)
    except LaunchError as error:
        error.hint = f"{error.hint}; without a GPU, --predict ranks the candidates by the cost model" if error.hint else None
        raise
    except KeyboardInterrupt:
        watch.close()
        print(watch.interruption_message(), file=sys.stderr)
        return INTERRUPTED
    finally:
        watch.close()
        progress("")
    return _print_result(tuning, arguments)


def _predicted(strategy: Any, common: dict[str, Any], watch: _Watch, arguments: argparse.Namespace) -> Tuning:
    from fireiron.tune import rank

    if arguments.save is not None:
        raise ArgumentError("--predict measures nothing, so there is no record to save", hint="remove --save or --predict")
    unused = [f"--{name}" for name, default in _MEASURES.items() if getattr(arguments, name) != default]
    if unused:
        hint = "remove them or --predict; --set bm=64 reduces the combinations"
        raise ArgumentError(f"--predict measures nothing: {', '.join(unused)} would have no effect", hint=hint)
    return rank(strategy, report=watch, seconds=arguments.seconds or PREDICT_SECONDS, **common)


def _tuned(strategy: Any, common: dict[str, Any], watch: _Watch, arguments: argparse.Namespace) -> Tuning:
    from fireiron.tune import Prune, tune

    prune = Prune.of(arguments.prune)
    if arguments.measure_top is not None:
        import attrs

        prune = attrs.evolve(prune, most=arguments.measure_top)
    return tune(
        strategy,
        search=arguments.search,
        trials=arguments.trials,
        seconds=arguments.seconds,
        prune=prune,
        timeout=arguments.timeout,
        seed=arguments.seed,
        journal=arguments.journal,
        restart=arguments.restart,
        gpu_ids=arguments.gpus,
        report=watch,
        **common,
    )


def _print_result(tuning: Tuning, arguments: argparse.Namespace) -> int:
    best = next((result for result in tuning.ranking if result.status == "ok"), None)
    if arguments.json:
        print_json(tuning.plain())
    else:
        print(tuning.table(width_of_output()))
        if tuning.stopped:
            print(f"\nstopped {tuning.stopped}" + ("; increase --seconds for more" if arguments.predict else ""))
        if best is not None:
            print(f"\nbest: {' '.join(f'--set {name}={value}' for name, value in best.values.items())}")
        if tuning.journal is not None:
            print(f"journal: {tuning.journal}")
    if arguments.save is not None and best is not None:
        tuning.save(arguments.save)
    return 0 if best is not None or (arguments.predict and tuning.ranking) else FAILED


class _Watch:
    """A callback that shows progress, and keeps it for the message after an interruption."""

    def __init__(self, quiet: bool) -> None:
        from fireiron.tune.progress import Display

        self.display = None if quiet else Display()
        self.last: Progress | None = None

    def __call__(self, progress: Progress) -> None:
        self.last = progress
        if self.display is not None:
            self.display(progress)

    def close(self) -> None:
        """Restore the terminal."""
        display, self.display = self.display, None
        if display is not None:
            display.close()

    def interruption_message(self) -> str:
        """Return the message after an interruption: the progress, and how to continue."""
        if self.last is None or not self.last.journal:
            return "fireiron: interrupted"
        return f"fireiron: interrupted ({self.last}); the same command continues from {self.last.journal}"


def _numbers(text: str) -> tuple[int, ...]:
    if not re.fullmatch(r"[0-9]{1,3}(,[0-9]{1,3})*", text, re.ASCII):
        raise argparse.ArgumentTypeError(f"{text!r}: give indices of GPUs, such as 0,1")
    return tuple(map(int, text.split(",")))


def _seconds(text: str) -> float:
    if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,6})?", text, re.ASCII) or not float(text) > 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number of seconds")
    return float(text)


def _prune(text: str) -> bool | float:
    if text == "none":
        return False
    if not re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,6})?", text, re.ASCII) or not float(text) >= 1:
        raise argparse.ArgumentTypeError(f"{text!r}: give a factor of at least 1, or none")
    return float(text)
