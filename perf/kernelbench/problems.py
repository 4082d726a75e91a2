"""All problems, in the order of levels and numbers."""

from kernelbench import level1, level1_windows, level2_conv, level2_matmul

ALL = (*level1.PROBLEMS, *level1_windows.PROBLEMS, *level2_matmul.PROBLEMS, *level2_conv.PROBLEMS)
PROBLEMS = tuple(sorted(ALL, key=lambda problem: (problem.level, problem.number)))
