"""`fireiron derive`: derive a strategy for a spec, with a reason for each choice."""

from __future__ import annotations

import argparse
import importlib
import sys
from typing import TYPE_CHECKING, Any

from fireiron.cli.arguments import Add, assignment, loaded, positive, strategy_of
from fireiron.cli.output import print_json
from fireiron.errors import ArgumentError

if TYPE_CHECKING:
    from fireiron.derive.search import Progress
    from fireiron.spec import Spec


def register(add: Add) -> None:
    """Add the command."""
    command = add("derive", run, "derive a strategy for a problem, with a reason for each choice; needs no compiler and no GPU")
    command.add_argument("strategy", metavar="PROBLEM", help="path.py:NAME of a spec or definition, or a strategy, whose problem is taken")
    command.add_argument("--fix", action="append", default=[], type=assignment, metavar="bm=64", help="a value that is given (repeatable)")
    command.add_argument("--avoid", action="append", default=[], metavar="RULE", help="a rule that is not used (repeatable)")
    command.add_argument("--candidates", type=positive, default=None, metavar="N", help="number of candidates to lower (64)")
    command.add_argument("--seconds", type=positive, default=60, metavar="S", help="time limit of the search (60)")
    command.add_argument("--screen", action="store_true", help="compile the best candidates by NVRTC, and take the first that it accepts")
    command.add_argument("-o", dest="output", metavar="FILE", help="write a strategy file, which all commands read")
    command.add_argument("--force", action="store_true", help="overwrite the file")
    command.add_argument(
        "--explain", action="store_true", help="print each decision, its reason, and the next best choice, or why no rule finds a strategy"
    )


def run(arguments: argparse.Namespace) -> int:
    """Derive a strategy and print it."""
    from fireiron.derive import CANDIDATES, NoStrategyError, schedule

    spec = _problem(arguments)
    count = CANDIDATES if arguments.candidates is None else arguments.candidates
    try:
        with _Bar(count, quiet=arguments.json) as report:
            answer = schedule(
                spec,
                arguments.arch,
                fixed=dict(arguments.fix),
                avoid=tuple(arguments.avoid),
                candidates=count,
                seconds=arguments.seconds,
                progress=report,
                screen=arguments.screen,
            )
    except NoStrategyError as error:
        if arguments.explain and not arguments.json:
            print("\n".join(f"{name:<20} {reason}" for name, reason in error.refusals.items()))
        raise
    if arguments.output is not None:
        from fireiron.language.store import write_text

        write_text(arguments.output, answer.source(), overwrite=arguments.force)
    if arguments.json:
        return print_json(answer.as_dict())
    print(answer)
    if arguments.output is not None:
        print(f"\n{arguments.output}: fireiron show, check, run, cost and bench read it")
    if arguments.explain:
        print()
        print(answer.explain())
    return 0


def _problem(arguments: argparse.Namespace) -> Spec:
    """Return the spec of the argument: a spec, a definition with sizes from `--size`, or the problem of a strategy."""
    from fireiron.spec import Spec, as_spec
    from fireiron.specs.fused import Fused

    source = loaded(arguments, arguments.strategy)
    value: Any = vars(source.module).get(source.name or "problem")
    if isinstance(value, Fused):
        value = value(**dict(arguments.sizes))
    value = as_spec(value)
    if isinstance(value, Spec):
        return value
    spec = strategy_of(arguments).spec
    if spec is None:
        raise ArgumentError(f"{arguments.strategy} has no problem", hint="path.py:NAME of a spec")
    return spec


class _Bar:
    """A progress bar of candidates on a terminal, by tqdm if it is installed; otherwise nothing is shown."""

    def __init__(self, total: int, quiet: bool) -> None:
        self.bar: Any = None
        if quiet or not sys.stderr.isatty():
            return
        try:
            tqdm = importlib.import_module("tqdm").tqdm
        except ImportError:
            return
        self.bar = tqdm(total=total, unit="candidate", leave=False)

    def __enter__(self) -> Progress:
        return self._shown

    def __exit__(self, *error: object) -> None:
        if self.bar is not None:
            self.bar.close()

    def _shown(self, count: int, text: str) -> None:
        if self.bar is not None:
            self.bar.update(count - self.bar.n)
            self.bar.set_postfix_str(text[:60])
