"""The command line of the mutants; see `mutation`."""

import argparse
import sys
import time
from collections import Counter
from pathlib import Path

from tabulate import tabulate

from mutation import few, survey
from mutation.covering import Covering
from mutation.judge import Verdict, judge, summary
from mutation.measuring import measure
from mutation.operators import modules, mutants, sample


def main(arguments: list[str] | None = None) -> int:
    """Run what the arguments specify; 1 if a mutant survives."""
    options = _parser().parse_args(arguments)
    if options.command == "list":
        return _list(options.parts)
    if options.command == "measure":
        return measure(options.jobs)
    if options.command == "survey":
        chosen = sample(tuple(options.parts))[options.first :][: options.count]
        survey.survey(chosen, survey.candidates(options.jobs), options.seconds, options.jobs, options.file)
        return 0
    if options.command == "cover":
        Covering.load().with_data(options.data, options.durations).save()
        return 0
    if options.command == "nearest":
        return _nearest(options)
    chosen = sample(tuple(options.parts))
    numbers = options.seed if options.seed is not None else range(options.first, min(options.first + options.count, len(chosen)))
    verdicts, until = [], time.monotonic() + options.seconds
    for number in numbers:
        if time.monotonic() > until:
            break
        verdict = judge(chosen[number], options.budget, tuple(options.without))
        verdicts.append(verdict)
        say(number, verdict, options.seed is not None or not (verdict.killed or verdict.by))
    report(verdicts)
    return int(any(not verdict.by for verdict in verdicts))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m mutation", description="Mutants of the compiler, and what kills them.")
    commands = parser.add_subparsers(dest="command", required=True)
    listed = commands.add_parser("list", help="number of mutants, by module and operator")
    judged = commands.add_parser("judge", help="draw mutants and report what kills each")
    near = commands.add_parser("nearest", help="run at most three test files for each, those nearest to its module (`mutation.few`)")
    for command in (listed, judged, near):
        command.add_argument("parts", nargs="+", help="folders or modules of the package: lower, decomp/tile.py")
    for command in (judged, near):
        command.add_argument("--count", type=int, default=20, help="number of mutants (default: 20)")
        command.add_argument("--first", type=int, default=0, help="number of the first mutant (default: 0)")
        command.add_argument("--seed", type=int, nargs="+", help="only the mutants with these numbers")
        command.add_argument("--seconds", type=float, default=float("inf"), help="start none after this many seconds")
    near.add_argument("--budget", type=float, default=60.0, help="seconds of processor time for the files of a mutant (default: 60)")
    near.add_argument("--files", action="store_true", help="list the test files for each module, and run none")
    judged.add_argument("--budget", type=float, default=40.0, help="seconds of processor time for each request (default: 40)")
    judged.add_argument("--without", nargs="+", default=[], metavar="FILE", help="test files that are not run: tests/test_texts.py")
    surveyed = commands.add_parser("survey", help="find the mutants, numbered as for `judge`, that change no stored strategy or kernel")
    surveyed.add_argument("parts", nargs="+", help="as for list")
    surveyed.add_argument("--file", type=Path, required=True, help="file with a line of JSON per mutant; present ones are not tried again")
    surveyed.add_argument("--first", type=int, default=0, help="number of the first mutant (default: 0)")
    surveyed.add_argument("--count", type=int, help="number of mutants (default: all)")
    surveyed.add_argument("--seconds", type=float, default=1.0, help="seconds of processor time for each surviving mutant (default: 1)")
    surveyed.add_argument("--jobs", type=int, default=2, help="number of processes (default: 2)")
    measured = commands.add_parser("measure", help="run the tests under coverage (contexts by test), and store which lines they run")
    measured.add_argument("--jobs", type=int, default=2, help="number of processes (default: 2)")
    cover = commands.add_parser("cover", help="store the data of coverage (contexts by test), and the duration of each test")
    cover.add_argument("data", type=Path, help="data file of coverage")
    cover.add_argument("durations", type=Path, help="lines of seconds and test names")
    return parser


def _nearest(options: argparse.Namespace) -> int:
    """Run the command `nearest`; 1 if a mutant survives."""
    if options.files:
        print(tabulate([[module, " ".join(few.files(module))] for module in modules(*options.parts)], ["module", "test files"]))
        return 0
    chosen = sample(tuple(options.parts))
    numbers = options.seed if options.seed is not None else range(options.first, min(options.first + options.count, len(chosen)))
    verdicts, until = [], time.monotonic() + options.seconds
    for number, verdict in few.Judge(options.budget).of([(number, chosen[number]) for number in numbers]):
        verdicts.append(verdict)
        say(number, verdict, options.seed is not None or not verdict.by)
        if time.monotonic() > until:
            break
    report(verdicts)
    return int(any(not verdict.by for verdict in verdicts))


def _list(parts: list[str]) -> int:
    by_module = Counter({module: len(mutants(module)) for module in modules(*parts)})
    by_operator = Counter(one.operator for module in by_module for one in mutants(module))
    print(
        tabulate(by_module.most_common(), ["module", "mutants"]), "", tabulate(by_operator.most_common(), ["operator", "mutants"]), sep="\n"
    )
    return 0


def say(number: int, verdict: Verdict, whole: bool) -> None:
    """Print a line about a mutant, with the change if `whole`."""
    print(
        f"{number:5} {verdict.seconds:6.1f} s  {verdict.by or 'SURVIVED'}{' (another text)' * (verdict.changed and not verdict.by)}",
        end="  ",
    )
    print(verdict.mutant.name)
    if whole:
        print(verdict.mutant.difference(), verdict.what, sep="\n")
    sys.stdout.flush()


def report(verdicts: list[Verdict]) -> None:
    """Print the tables: mutants by detector, and the score of each module."""
    print(tabulate(Counter(one.detector for one in verdicts).most_common(), ["detector", "mutants"]))
    rows = []
    for module in sorted({one.mutant.module for one in verdicts}):
        total, killed, equivalent = summary(one for one in verdicts if one.mutant.module == module)
        rows.append([module, total, killed, equivalent, _score(total, killed, equivalent)])
    total, killed, equivalent = summary(verdicts)
    rows.append(["all", total, killed, equivalent, _score(total, killed, equivalent)])
    print(tabulate(rows, ["module", "mutants", "killed", "equivalent", "score"]))
    print(f"{sum(one.seconds for one in verdicts) / max(len(verdicts), 1):.1f} s of processor time each")


def _score(total: int, killed: int, equivalent: int) -> str:
    return f"{100 * killed / max(total - equivalent, 1):.1f} %"


if __name__ == "__main__":
    sys.exit(main())
