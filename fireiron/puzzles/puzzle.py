"""A puzzle, and the check of a solution."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from fireiron.check import check
from fireiron.compiler import Program
from fireiron.errors import ArgumentError
from fireiron.frozen import frozen
from fireiron.language.strategy import Strategy
from fireiron.measure.simulated import data_for, simulated, symbol_values
from fireiron.puzzles.goals import Goal, spec_of
from fireiron.spec import Spec

SEED: Final = 0
"""The seed of the inputs, so that a verdict is always the same."""


@frozen
class Puzzle:
    """An exercise: write a strategy that reaches the goals.

    Attributes:
        title: what to do, in a few words.
        text: the exercise, in sentences.
        setup: Python code that defines `problem`, after `from fireiron import *`.
        start: Python code of a correct strategy that misses a goal.
        target: the architecture.
        goals: what a solution must reach, in addition to a correct result without errors of `check`.
        hints: from the first to the last, each more specific.
        solution: Python code of a strategy that reaches the goals.
    """

    title: str
    text: str
    setup: str
    start: str
    target: str
    goals: tuple[Goal, ...]
    hints: tuple[str, ...]
    solution: str

    @property
    def problem(self) -> Spec:
        """The problem."""
        return spec_of(self.setup)

    def file(self, number: int) -> str:
        """Return a file to start from."""
        goals = "\n".join(f"- {goal}" for goal in self.goals)
        head = f'"""Puzzle {number}: {self.title}.\n\n{self.text}\n\nTarget: {self.target}. Goals:\n\n{goals}\n"""'
        return f"{head}\n\nfrom fireiron import *\n\n{self.setup}\n\nstrategy = {self.start}\n"


@frozen
class Verdict:
    """A condition of a puzzle, whether it is met, and what the kernel has instead."""

    goal: str
    reached: bool
    got: str = ""


def puzzle_of(number: int, puzzles: tuple[Puzzle, ...]) -> Puzzle:
    """Return a puzzle by its number, from 1. Raises: an `ArgumentError` if there is no such puzzle."""
    if not 1 <= number <= len(puzzles):
        raise ArgumentError(f"puzzle {number} does not exist", legal=f"1 to {len(puzzles)}", hint="fireiron puzzle")
    return puzzles[number - 1]


def verdicts(puzzle: Puzzle, strategy: Strategy) -> Iterator[Verdict]:
    """Yield a verdict for each condition of a puzzle: no errors, a correct result, and the goals.

    Raises: a `FireironError` if the strategy is illegal for the problem.
    """
    program = strategy(puzzle.problem).program(puzzle.target)
    findings = [finding for launch in program.launches for finding in check(launch.program.ir)]
    errors = [str(finding) for finding in findings if finding.severity == "error"]
    yield Verdict("no errors of `check`", not errors, "; ".join(errors[:1]))
    if errors:
        return
    wrong = _wrong(program)
    yield Verdict("correct result in the simulator", not wrong, wrong)
    for goal in puzzle.goals:
        got = goal.measured(program, findings)
        yield Verdict(str(goal), not got, got)


def _wrong(program: Program) -> str:
    """Return the first wrong element, or an empty text."""
    symbols = symbol_values(program.spec, {})
    arrays, judge = data_for(program, symbols, SEED)
    wrong = simulated(program, symbols, arrays, judge)
    return "" if wrong is None else str(wrong["message"])


__all__ = ["Puzzle", "Verdict", "puzzle_of", "verdicts"]
