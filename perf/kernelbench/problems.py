"""All problems, in the order of levels and numbers."""

from kernelbench import level1, level1_windows

PROBLEMS = tuple(sorted((*level1.PROBLEMS, *level1_windows.PROBLEMS), key=lambda problem: (problem.level, problem.number)))
