"""A copy that threads share in turns, drawn large: the vectors of the first warps by thread, the other warps and turns a line each.

Drawn to scale, the tile of a coalesced copy is stripes too thin to name. What a reader asks is regular: which thread has the first
vector, which the next one, where the next warp goes on, and from where the threads start again.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Sequence
from typing import Any, Final

import attrs
import numpy as np

from fireiron.draw import colours
from fireiron.draw.owners import Owners
from fireiron.draw.picture import Page
from fireiron.draw.shapes import PALE, Cells, Rect, Text, text_width

Array = Any
_WIDTH: Final = 256.0
_CELL: Final = (40.0, 13.0)
"""Most pixels of the width of a vector; its height."""
_LETTERS: Final = 8.0
_LARGE: Final = 2
"""Warps whose vectors are drawn."""
_LINES: Final = 8
"""Lines of a warp, other warps and later turns that are drawn at most."""


@attrs.frozen
class Vector:
    """Neighbours that one thread copies: places `start` up to `stop`, exclusive, of a line."""

    line: int
    start: int
    stop: int
    thread: int


@attrs.frozen(slots=False)
class Turns:
    """All vectors, turn by turn; `threads` of them are a turn, line by line, and the threads of all turns are the same in the same order.

    A line is a row, or with `vertical` a column: the direction in which a thread's elements are neighbours.
    """

    vectors: tuple[Vector, ...]
    threads: int
    vertical: bool

    def warps(self) -> dict[int, list[Vector]]:
        """The vectors of the first turn, by warp."""
        found: dict[int, list[Vector]] = {}
        for vector in self.vectors[: self.threads]:
            found.setdefault(vector.thread // 32, []).append(vector)
        return found

    def turns(self) -> list[Sequence[Vector]]:
        """The vectors of each turn; the last one may be shorter."""
        return [self.vectors[start : start + self.threads] for start in range(0, len(self.vectors), self.threads)]

    def where(self, vectors: Sequence[Vector]) -> str:
        """Where vectors lie: `rows 4-7`, and the columns where they are not those of all vectors."""
        line, across = ("column", "row") if self.vertical else ("row", "column")
        text, places = _numbered(line, (one.line for one in vectors)), _places(vectors)
        return text if places == self.places else f"{text}, {_numbered(across, places)}"

    @functools.cached_property
    def places(self) -> frozenset[int]:
        """All places of all lines."""
        return _places(self.vectors)


def _places(vectors: Sequence[Vector]) -> frozenset[int]:
    return frozenset(place for start, stop in {(one.start, one.stop) for one in vectors} for place in range(start, stop))


def _numbered(noun: str, numbers: Iterable[int]) -> str:
    """`row 4`, `rows 4-7`, or `rows 0 8 ... 56` where there are gaps."""
    first, *others = sorted(set(numbers))
    if not others:
        return f"{noun} {first}"
    if others[-1] - first == len(others):
        return f"{noun}s {first}-{others[-1]}"
    return f"{noun}s {first} {others[0]}" + (f" ... {others[-1]}" if len(others) > 1 else "")


def turns(found: Owners) -> Turns | None:
    """How threads take turns at the elements, or None where they do not: an element of two threads, or another order later."""
    thread, row, column = found.points
    points = np.unique(np.stack([found.rows[row], found.columns[column], thread], axis=1), axis=0)
    if len(np.unique(points[:, :2], axis=0)) < len(points):
        return None
    lying, standing = _vectors(points), _vectors(points[:, [1, 0, 2]])
    vertical = len(standing) < len(lying)
    table = _by_turns(standing if vertical else lying)
    threads = len(np.unique(table[:, 3]))
    if (table[:, 3] != table[np.arange(len(table)) % threads, 3]).any():
        return None
    return Turns(tuple(Vector(*one) for one in table.tolist()), threads, vertical)


def _vectors(points: Array) -> Array:
    """`(line, start, stop, thread)` of the neighbours of one thread, from `(line, place, thread)` of each element."""
    line, place, thread = points[np.lexsort((points[:, 1], points[:, 0]))].T
    new = (np.diff(line) != 0) | (np.diff(place) != 1) | (np.diff(thread) != 0)
    first = np.flatnonzero(np.concatenate([[True], new]))
    last = np.concatenate([first[1:], [len(line)]]) - 1
    return np.stack([line[first], place[first], place[last] + 1, thread[first]], axis=1)


def _by_turns(vectors: Array) -> Array:
    """The first vector of each thread, the second one of each, and so on; line by line."""
    order = np.argsort(vectors[:, 3], kind="stable")
    thread = vectors[order, 3]
    turn = np.empty(len(order), dtype=np.int64)
    turn[order] = np.arange(len(order)) - np.searchsorted(thread, thread)
    return vectors[np.argsort(turn, kind="stable")]


_Bars = Sequence[tuple[str, Sequence[Vector], str]]


def turns_panel(page: Page, x: float, y: float, dealt: Turns) -> float:
    """The first warps large, the other warps and turns a bar each; its lower edge."""
    warps, start = dealt.warps(), "turn 1, " if len(dealt.turns()) > 1 else ""
    palette = dict(zip(warps, colours.distinct(len(warps)), strict=True))
    line, lengths = "column" if dealt.vertical else "row", {one.stop - one.start for one in dealt.vectors}
    size = f"{min(lengths)} neighbours" if len(lengths) == 1 and min(lengths) > 1 else "an element" if lengths == {1} else "neighbours"
    page.text(x - 30, y, f"a box is {size} of a {line}; its number is the thread", 9, colour=PALE)
    y += 8
    for warp, mine in list(warps.items())[:_LARGE]:
        page.text(x, y + 9, f"{start}warp {warp}: {dealt.where(mine)}", 9, bold=True)
        y = _large(page, x, y + 13, dealt, mine, palette[warp]) + 4
    others: _Bars = [(f"warp {warp}", vectors, palette[warp]) for warp, vectors in list(warps.items())[_LARGE:]]
    for name, vectors, colour in _shortened(others, "warps"):
        threads = _numbered("thread", (one.thread for one in vectors))
        y = _bar(page, x, y, f"{name}: {dealt.where(vectors)}, {threads}", colour)
    later = [(f"turn {number}", vectors, colours.EMPTY) for number, vectors in enumerate(dealt.turns(), 1)][1:]
    for name, vectors, colour in _shortened(later, "turns"):
        y = _bar(page, x, y, f"{name}: {dealt.where(vectors)}, the same threads again", colour)
    return y + 8


def _shortened(bars: _Bars, noun: str) -> _Bars:
    """The bars; of many the first ones, with one for all others."""
    if len(bars) <= _LINES:
        return bars
    kept, rest = bars[: _LINES - 1], bars[_LINES - 1 :]
    first, last = (name.split()[1] for name in (rest[0][0], rest[-1][0]))
    return [*kept, (f"{noun} {first}-{last}", [one for _, vectors, _ in rest for one in vectors], colours.EMPTY)]


def _bar(page: Page, x: float, y: float, text: str, colour: str) -> float:
    size = round(min(8.5, (_WIDTH - 8) * 8.5 / text_width(text, 8.5)), 1)
    page.add(Rect(x, y, _WIDTH, 13.0, colour, "#d0d7de" if colour == colours.EMPTY else "none", 0.6))
    page.text(x + 4, y + 9.6, text, size, colour=colours.ink_on(colour))
    return y + 14.5


def _large(page: Page, x: float, y: float, dealt: Turns, vectors: Sequence[Vector], colour: str) -> float:
    """The vectors of a warp, a line of boxes for each line of the tile."""
    lines: dict[int, list[Vector]] = {}
    for vector in vectors:
        lines.setdefault(vector.line, []).append(vector)
    for line, pieces in list(lines.items())[:_LINES]:
        page.text(x - 4, y + 9.6, str(line), 8.5, anchor="end", colour=PALE)
        _boxes(page, x, y, dealt, pieces, colour)
        y += _CELL[1]
    if len(lines) > _LINES:
        hidden = list(lines.values())[_LINES:]
        page.text(x, y + 10, f"and so on: {dealt.where([one for pieces in hidden for one in pieces])}", 8.5, colour=PALE)
        y += 13
    return y


def _boxes(page: Page, x: float, y: float, dealt: Turns, pieces: Sequence[Vector], colour: str) -> None:
    """A box for each vector of a line, as many as have room for their numbers; the last box stands for the others."""
    need = text_width("0" * len(str(max(one.thread for one in pieces))), _LETTERS) + 3
    names, wide, end = [str(one.thread) for one in pieces], min(_CELL[0], _WIDTH / len(pieces)), 0.0
    if wide < need:
        rest = f"... {pieces[-1].thread}"
        end = text_width(rest, _LETTERS) + 6
        count = int((_WIDTH - end) // need)
        names, wide = [*names[:count], rest], (_WIDTH - end) / count
    xs = [round(x + number * wide, 1) for number in range(len(names) + (0 if end else 1))] + ([x + _WIDTH] if end else [])
    shown = [*([one] for one in pieces[: len(names) - 1]), pieces[len(names) - 1 :]]
    titles = [f"{_numbered('thread', (one.thread for one in some))}: {dealt.where(some)}" for some in shown]
    numbers = tuple(range(len(names)))
    page.add(Cells(tuple(xs), (y, y + _CELL[1]), (numbers,), (colour,) * len(names), tuple(titles), 1.0))
    ink = colours.ink_on(colour)
    middles = [(left + right) / 2 for left, right in itertools.pairwise(xs)]
    page.add(*(Text(middle, y + 9.4, name, _LETTERS, "middle", colour=ink) for middle, name in zip(middles, names, strict=True)))
