"""Extract the main loop from the CUDA text of a kernel."""

from __future__ import annotations

import re
from typing import Final

COMPUTES: Final = tuple(map(re.compile, (r"mma_m\d|mma_sync\(|fmaf?\(|__hfma2", r"exp2|rsqrt|fmax", r" [+*] ")))
"""Patterns of lines that compute, the most significant first."""


def main_loop(text: str, most: int) -> list[str]:
    """Return the largest loop of at most `most` lines around the last line that computes, unindented.

    For a kernel without such a loop, return the lines around that line.

    >>> main_loop("__global__ void k() {\\n  for (;;) {\\n    c = fmaf(a, b, c);\\n  }\\n}", 9)
    ['for (;;) {', '  c = fmaf(a, b, c);', '}']
    """
    lines = text.splitlines()
    begin = next(number for number, line in enumerate(lines) if "__global__" in line)
    computing = (number for pattern in COMPUTES for number in reversed(range(begin, len(lines))) if pattern.search(lines[number]))
    at = next(computing, begin)
    loops = [(number, _end(lines, number)) for number in range(begin, at) if re.match(r"\s+for \(", lines[number])]
    fitting = [(first, last) for first, last in loops if last >= at and last - first < most]
    first, last = fitting[0] if fitting else (max(begin, at - most // 2), min(len(lines) - 1, at + most // 2))
    shown = lines[first : last + 1]
    left = min(_indent(line) for line in shown if line.strip() and line[0] != "#")
    return [line if line.startswith("#") else line[left:] for line in shown]


def _end(lines: list[str], number: int) -> int:
    """Return the number of the last line of a loop: its closing brace, or the last line of its indented body."""
    end = number
    for index in range(number + 1, len(lines)):
        line = lines[index]
        if line.strip() and line[0] != "#" and _indent(line) <= _indent(lines[number]):
            return index if line[_indent(lines[number]) :] == "}" else end
        end = index
    return end


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
