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
    """Run what the arguments say; 1 if a mutant survives."""
    asked = _parser().parse_args(arguments)
    if asked.command == "list":
        return _list(asked.parts)
    if asked.command == "measure":
        return measure(asked.jobs)
    if asked.command == "survey":
        chosen = sample(tuple(asked.parts))[asked.first :][: asked.count]
        survey.survey(chosen, survey.asked(asked.jobs), asked.seconds, asked.jobs, asked.file)
        return 0
    if asked.command == "cover":
        Covering.load().with_data(asked.data, asked.durations).save()
        return 0
    if asked.command == "nearest":
        return _nearest(asked)
    chosen = sample(tuple(asked.parts))
    numbers = asked.seed if asked.seed is not None else range(asked.first, min(asked.first + asked.count, len(chosen)))
    found, until = [], time.monotonic() + asked.seconds
    for number in numbers:
        if time.monotonic() > until:
            break
        verdict = judge(chosen[number], asked.budget, tuple(asked.without))
        found.append(verdict)
        say(number, verdict, asked.seed is not None or not (verdict.killed or verdict.by))
    report(found)
    return int(any(not one.by for one in found))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m mutation", description="Mutants of the compiler, and who notices them.")
    commands = parser.add_subparsers(dest="command", required=True)
    listed = commands.add_parser("list", help="how many there are, by module and operator")
    judged = commands.add_parser("judge", help="draw some and say who notices")
    near = commands.add_parser("nearest", help="ask at most three test files of each, those nearest to its module (`mutation.few`)")
    for one in (listed, judged, near):
        one.add_argument("parts", nargs="+", help="folders or modules of the package: lower, decomp/tile.py")
    for one in (judged, near):
        one.add_argument("--count", type=int, default=20, help="how many (default: 20)")
        one.add_argument("--first", type=int, default=0, help="the number to begin with (default: 0)")
        one.add_argument("--seed", type=int, nargs="+", help="only these, by their numbers")
        one.add_argument("--seconds", type=float, default=float("inf"), help="begin none after so long")
    near.add_argument("--budget", type=float, default=60.0, help="seconds of processor time for the files of one (default: 60)")
    near.add_argument("--files", action="store_true", help="list the files that are asked of each module, and ask none")
    judged.add_argument("--budget", type=float, default=40.0, help="seconds of processor time for each question (default: 40)")
    judged.add_argument("--without", nargs="+", default=[], metavar="FILE", help="files of tests that are not asked: tests/test_texts.py")
    surveyed = commands.add_parser("survey", help="which of all, in the order in which `judge` numbers them, change nothing that is kept")
    surveyed.add_argument("parts", nargs="+", help="as for list")
    surveyed.add_argument("--file", type=Path, required=True, help="a line of JSON for each; those that it has are not asked again")
    surveyed.add_argument("--first", type=int, default=0, help="the number to begin with (default: 0)")
    surveyed.add_argument("--count", type=int, help="how many (default: all)")
    surveyed.add_argument("--seconds", type=float, default=1.0, help="of processor time for each that nothing notices (default: 1)")
    surveyed.add_argument("--jobs", type=int, default=2, help="processes (default: 2)")
    measured = commands.add_parser("measure", help="run the tests under coverage (contexts by test), and take in what they run")
    measured.add_argument("--jobs", type=int, default=2, help="processes (default: 2)")
    cover = commands.add_parser("cover", help="take in what coverage measured (contexts by test), and how long each test took")
    cover.add_argument("data", type=Path, help="the data file of coverage")
    cover.add_argument("durations", type=Path, help="lines of seconds and names of tests")
    return parser


def _nearest(asked: argparse.Namespace) -> int:
    """Run the command `nearest`; 1 if a mutant survives."""
    if asked.files:
        print(tabulate([[module, " ".join(few.files(module))] for module in modules(*asked.parts)], ["module", "test files"]))
        return 0
    chosen = sample(tuple(asked.parts))
    numbers = asked.seed if asked.seed is not None else range(asked.first, min(asked.first + asked.count, len(chosen)))
    verdicts, until = [], time.monotonic() + asked.seconds
    for number, verdict in few.Judge(asked.budget).of([(number, chosen[number]) for number in numbers]):
        verdicts.append(verdict)
        say(number, verdict, asked.seed is not None or not verdict.by)
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
    """One line about a mutant, with the change if asked for."""
    print(
        f"{number:5} {verdict.seconds:6.1f} s  {verdict.by or 'SURVIVED'}{' (another text)' * (verdict.changed and not verdict.by)}",
        end="  ",
    )
    print(verdict.mutant.name)
    if whole:
        print(verdict.mutant.difference(), verdict.what, sep="\n")
    sys.stdout.flush()


def report(verdicts: list[Verdict]) -> None:
    """The tables: who killed how many, and the score of each module."""
    print(tabulate(Counter(one.detector for one in verdicts).most_common(), ["who", "mutants"]))
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
