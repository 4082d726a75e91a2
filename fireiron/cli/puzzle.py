"""`fireiron puzzle`: list the puzzles, print one, and check a solution."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from fireiron.cli.arguments import Add, loaded, positive
from fireiron.cli.output import FAILED, paint, print_json, working
from fireiron.errors import ArgumentError
from fireiron.files import exists

if TYPE_CHECKING:
    from fireiron.puzzles import Puzzle


def register(add: Add) -> None:
    """Add the command."""
    command = add("puzzle", run, "list ten puzzles, print one, or check a solution; needs no GPU", strategy=False)
    command.add_argument("number", nargs="?", type=positive, metavar="NUMBER", help="of a puzzle; without it, list all")
    command.add_argument("file", nargs="?", metavar="FILE", help="path.py or path.py:NAME with a strategy, to check")
    command.add_argument("--new", action="store_true", help="write FILE, with a strategy to start from")
    command.add_argument("--hint", type=positive, metavar="N", help="print hint N")
    command.add_argument("--solution", action="store_true", help="print a strategy that reaches all goals")


def run(arguments: argparse.Namespace) -> int:
    from fireiron.puzzles import PUZZLES, puzzle_of

    if arguments.number is None:
        return _list(PUZZLES, arguments.json)
    puzzle = puzzle_of(arguments.number, PUZZLES)
    if arguments.hint is not None:
        return _hint(puzzle, arguments)
    if arguments.solution:
        return _solution(puzzle, arguments)
    if arguments.file is None:
        return _print(puzzle, arguments.number, arguments.json)
    if arguments.new:
        return _write(puzzle, arguments)
    return _check(puzzle, arguments)


def _list(puzzles: tuple[Puzzle, ...], as_json: bool) -> int:
    if as_json:
        return print_json([{"number": number, "title": puzzle.title} for number, puzzle in enumerate(puzzles, 1)])
    for number, puzzle in enumerate(puzzles, 1):
        print(f"{number:3}  {puzzle.title}")
    print("\nfireiron puzzle 1 prints a puzzle; fireiron puzzle 1 mine.py --new writes a file to start from.")
    return 0


def _print(puzzle: Puzzle, number: int, as_json: bool) -> int:
    if as_json:
        goals = [str(goal) for goal in puzzle.goals]
        fields = {"text": puzzle.text, "target": puzzle.target, "goals": goals, "hints": len(puzzle.hints), "file": puzzle.file(number)}
        return print_json({"number": number, "title": puzzle.title, **fields})
    print(puzzle.file(number))
    print(f"# fireiron puzzle {number} mine.py --new    write this file")
    print(f"# fireiron puzzle {number} mine.py          check it")
    print(f"# fireiron puzzle {number} --hint 1         one of {len(puzzle.hints)} hints")
    return 0


def _hint(puzzle: Puzzle, arguments: argparse.Namespace) -> int:
    number, hint = arguments.number, arguments.hint
    if hint > len(puzzle.hints):
        raise ArgumentError(f"puzzle {number} has no hint {hint}", legal=f"1 to {len(puzzle.hints)}")
    if arguments.json:
        return print_json({"number": number, "hint": puzzle.hints[hint - 1]})
    print(puzzle.hints[hint - 1])
    return 0


def _solution(puzzle: Puzzle, arguments: argparse.Namespace) -> int:
    if arguments.json:
        return print_json({"number": arguments.number, "solution": puzzle.solution})
    print(f"strategy = {puzzle.solution}")
    return 0


def _write(puzzle: Puzzle, arguments: argparse.Namespace) -> int:
    number, path = arguments.number, Path(arguments.file)
    from fireiron.language.store import write_text

    if exists(path):
        raise ArgumentError(f"puzzle: {path} exists", hint="use another name")
    write_text(path, puzzle.file(number))
    if arguments.json:
        return print_json({"number": number, "files": [str(path)]})
    print(f"{path}: puzzle {number}, {puzzle.title}\n\n  fireiron puzzle {number} {shlex.quote(str(path))}  check it")
    return 0


def _check(puzzle: Puzzle, arguments: argparse.Namespace) -> int:
    """Print whether each condition is met. Return the exit status: 1 if one is not."""
    from fireiron.puzzles import verdicts

    place, colon, _ = arguments.file.partition(".py:")
    path = Path(f"{place}.py" if colon else place)
    if path.suffix == ".py" and not exists(path):
        raise ArgumentError(f"puzzle: {path} does not exist", hint=f"fireiron puzzle {arguments.number} {shlex.quote(str(path))} --new")

    with working(f"checking {arguments.file}"):
        results = list(verdicts(puzzle, loaded(arguments, arguments.file).entry().strategy))
    solved = all(verdict.reached for verdict in results)
    if arguments.json:
        conditions = [{"goal": verdict.goal, "reached": verdict.reached, "got": verdict.got} for verdict in results]
        print_json({"number": arguments.number, "solved": solved, "conditions": conditions})
    else:
        for verdict in results:
            print(f"{paint('[x]', 32) if verdict.reached else paint('[ ]', 31)} {verdict.goal}")
            if verdict.got:
                print(f"    got: {verdict.got}")
        print(
            f"\n{'Solved.' if solved else f'Not solved. fireiron puzzle {arguments.number} --hint 1 prints a hint, --solution a solution.'}"
        )
    return 0 if solved else FAILED
