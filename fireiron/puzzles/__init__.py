"""Exercises with a checker: a problem, a target, and goals for the kernel. `fireiron puzzle` lists them.

`exercises.py` states the puzzles. `goals.py` measures a lowered program, and `puzzle.py` checks a strategy: static checks, goals, and a run
in the simulator. Solutions are in the tests only.

May import: everything below the command line.
"""

from fireiron.puzzles.exercises import PUZZLES
from fireiron.puzzles.puzzle import Puzzle, Verdict, puzzle_of, verdicts

__all__ = ["PUZZLES", "Puzzle", "Verdict", "puzzle_of", "verdicts"]
