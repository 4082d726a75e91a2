"""Draw a copy that needs several passes of all threads: the vectors of the first warps by thread, one line per other warp and later pass.

Drawn to scale, the tile of a coalesced copy has stripes that are too thin for labels. The assignment is regular: it follows from the
threads of the first vectors, the start of the next warp, and the start of the next pass.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Sequence
from typing import Any, Final

import attrs
import numpy as np

from fireiron.draw import colors
from fireiron.draw.owners import Owners
from fireiron.draw.picture import Page
from fireiron.draw.shapes import PALE, Cells, Rect, Text, text_width
from fireiron.frozen import frozen

Array = Any
_WIDTH: Final = 256.0
_CELL: Final = (40.0, 13.0)
"""Maximum width and height of a vector in pixels."""
_LETTERS: Final = 8.0
_LARGE: Final = 2
"""Number of warps whose vectors are drawn."""
_LINES: Final = 8
"""Maximum number of drawn lines of a warp, of other warps, and of later passes."""


@frozen
class Vector:
    """Adjacent elements that one thread copies: positions `start` to `stop`, exclusive, of a line."""

    line: int
    start: int
    stop: int
    thread: int


@attrs.frozen(slots=False)
class CopyPasses:
    """All vectors, pass by pass and line by line. A pass has `threads` vectors; all passes have the same threads in the same order.

    A line is a row, or with `vertical` a column: the direction in which a thread's elements are adjacent.
    """

    vectors: tuple[Vector, ...]
    threads: int
    vertical: bool

    def warps(self) -> dict[int, list[Vector]]:
        """Return the vectors of the first pass, by warp."""
        by_warp: dict[int, list[Vector]] = {}
        for vector in self.vectors[: self.threads]:
            by_warp.setdefault(vector.thread // 32, []).append(vector)
        return by_warp

    def passes(self) -> list[Sequence[Vector]]:
        """Return the vectors of each pass; the last pass may be shorter."""
        return [self.vectors[start : start + self.threads] for start in range(0, len(self.vectors), self.threads)]

    def where(self, vectors: Sequence[Vector]) -> str:
        """Return the position of vectors: `rows 4-7`, and the columns if they are not those of all vectors."""
        line, across = ("column", "row") if self.vertical else ("row", "column")
        text, places = _numbered(line, (vector.line for vector in vectors)), _places(vectors)
        return text if places == self.places else f"{text}, {_numbered(across, places)}"

    @functools.cached_property
    def places(self) -> frozenset[int]:
        """All positions in lines."""
        return _places(self.vectors)


def _places(vectors: Sequence[Vector]) -> frozenset[int]:
    return frozenset(place for start, stop in {(vector.start, vector.stop) for vector in vectors} for place in range(start, stop))


def _numbered(noun: str, numbers: Iterable[int]) -> str:
    """Format numbers after a noun: `row 4`, `rows 4-7`, or `rows 0 8 ... 56` with gaps."""
    first, *others = sorted(set(numbers))
    if not others:
        return f"{noun} {first}"
    if others[-1] - first == len(others):
        return f"{noun}s {first}-{others[-1]}"
    return f"{noun}s {first} {others[0]}" + (f" ... {others[-1]}" if len(others) > 1 else "")


def copy_passes(owned: Owners) -> CopyPasses | None:
    """Return the passes of a copy. None if an element has two threads, or the order of threads differs between passes."""
    thread, row, column = owned.points
    points = np.unique(np.stack([owned.rows[row], owned.columns[column], thread], axis=1), axis=0)
    if len(np.unique(points[:, :2], axis=0)) < len(points):
        return None
    in_rows, in_columns = _vectors(points), _vectors(points[:, [1, 0, 2]])
    vertical = len(in_columns) < len(in_rows)
    table = _by_pass(in_columns if vertical else in_rows)
    threads = len(np.unique(table[:, 3]))
    if (table[:, 3] != table[np.arange(len(table)) % threads, 3]).any():
        return None
    return CopyPasses(tuple(Vector(*values) for values in table.tolist()), threads, vertical)


def _vectors(points: Array) -> Array:
    """Return `(line, start, stop, thread)` of adjacent elements of one thread, from `(line, place, thread)` of each element."""
    line, place, thread = points[np.lexsort((points[:, 1], points[:, 0]))].T
    new = (np.diff(line) != 0) | (np.diff(place) != 1) | (np.diff(thread) != 0)
    first = np.flatnonzero(np.concatenate([[True], new]))
    last = np.concatenate([first[1:], [len(line)]]) - 1
    return np.stack([line[first], place[first], place[last] + 1, thread[first]], axis=1)


def _by_pass(vectors: Array) -> Array:
    """Sort vectors: the first vector of each thread, then the second of each, and so on; line by line."""
    order = np.argsort(vectors[:, 3], kind="stable")
    thread = vectors[order, 3]
    number = np.empty(len(order), dtype=np.int64)
    number[order] = np.arange(len(order)) - np.searchsorted(thread, thread)
    return vectors[np.argsort(number, kind="stable")]


_Bars = Sequence[tuple[str, Sequence[Vector], str]]


def passes_panel(page: Page, x: float, y: float, copy: CopyPasses) -> float:
    """Draw the first warps large, and a bar for each other warp and later pass; return the lower edge."""
    warps, start = copy.warps(), "pass 1, " if len(copy.passes()) > 1 else ""
    palette = dict(zip(warps, colors.distinct(len(warps)), strict=True))
    line, lengths = "column" if copy.vertical else "row", {vector.stop - vector.start for vector in copy.vectors}
    size = f"{min(lengths)} elements" if len(lengths) == 1 and min(lengths) > 1 else "an element" if lengths == {1} else "elements"
    page.text(x - 30, y, f"a box is {size} of a {line}; its number is the thread", 9, color=PALE)
    y += 8
    for warp, first in list(warps.items())[:_LARGE]:
        page.text(x, y + 9, f"{start}warp {warp}: {copy.where(first)}", 9, bold=True)
        y = _large(page, x, y + 13, copy, first, palette[warp]) + 4
    others: _Bars = [(f"warp {warp}", vectors, palette[warp]) for warp, vectors in list(warps.items())[_LARGE:]]
    for name, vectors, color in _shortened(others, "warps"):
        threads = _numbered("thread", (vector.thread for vector in vectors))
        y = _bar(page, x, y, f"{name}: {copy.where(vectors)}, {threads}", color)
    later = [(f"pass {number}", vectors, colors.EMPTY) for number, vectors in enumerate(copy.passes(), 1)][1:]
    for name, vectors, color in _shortened(later, "passes"):
        y = _bar(page, x, y, f"{name}: {copy.where(vectors)}, the same threads again", color)
    return y + 8


def _shortened(bars: _Bars, noun: str) -> _Bars:
    """Return the bars; if there are many, the first ones and one for all others."""
    if len(bars) <= _LINES:
        return bars
    kept, rest = bars[: _LINES - 1], bars[_LINES - 1 :]
    first, last = (name.split()[1] for name in (rest[0][0], rest[-1][0]))
    return [*kept, (f"{noun} {first}-{last}", [vector for _, vectors, _ in rest for vector in vectors], colors.EMPTY)]


def _bar(page: Page, x: float, y: float, text: str, color: str) -> float:
    size = round(min(8.5, (_WIDTH - 8) * 8.5 / text_width(text, 8.5)), 1)
    page.add(Rect(x, y, _WIDTH, 13.0, color, "#d0d7de" if color == colors.EMPTY else "none", 0.6))
    page.text(x + 4, y + 9.6, text, size, color=colors.ink_on(color))
    return y + 14.5


def _large(page: Page, x: float, y: float, copy: CopyPasses, vectors: Sequence[Vector], color: str) -> float:
    """Draw the vectors of a warp, with a row of boxes for each line of the tile."""
    lines: dict[int, list[Vector]] = {}
    for vector in vectors:
        lines.setdefault(vector.line, []).append(vector)
    for line, pieces in list(lines.items())[:_LINES]:
        page.text(x - 4, y + 9.6, str(line), 8.5, anchor="end", color=PALE)
        _boxes(page, x, y, copy, pieces, color)
        y += _CELL[1]
    if len(lines) > _LINES:
        hidden = list(lines.values())[_LINES:]
        page.text(x, y + 10, f"and so on: {copy.where([vector for pieces in hidden for vector in pieces])}", 8.5, color=PALE)
        y += 13
    return y


def _boxes(page: Page, x: float, y: float, copy: CopyPasses, pieces: Sequence[Vector], color: str) -> None:
    """Draw a box for each vector of a line whose number has room; the last box represents the others."""
    need = text_width("0" * len(str(max(vector.thread for vector in pieces))), _LETTERS) + 3
    names, wide, end = [str(vector.thread) for vector in pieces], min(_CELL[0], _WIDTH / len(pieces)), 0.0
    if wide < need:
        rest = f"... {pieces[-1].thread}"
        end = text_width(rest, _LETTERS) + 6
        count = int((_WIDTH - end) // need)
        names, wide = [*names[:count], rest], (_WIDTH - end) / count
    xs = [round(x + number * wide, 1) for number in range(len(names) + (0 if end else 1))] + ([x + _WIDTH] if end else [])
    shown = [*([vector] for vector in pieces[: len(names) - 1]), pieces[len(names) - 1 :]]
    titles = [f"{_numbered('thread', (vector.thread for vector in some))}: {copy.where(some)}" for some in shown]
    numbers = tuple(range(len(names)))
    page.add(Cells(tuple(xs), (y, y + _CELL[1]), (numbers,), (color,) * len(names), tuple(titles), 1.0))
    ink = colors.ink_on(color)
    middles = [(left + right) / 2 for left, right in itertools.pairwise(xs)]
    page.add(*(Text(middle, y + 9.4, name, _LETTERS, "middle", color=ink) for middle, name in zip(middles, names, strict=True)))
