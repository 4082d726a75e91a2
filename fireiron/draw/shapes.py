"""Shapes of pictures, in pixels from the upper left corner of the page; other modules print them as SVG, PNG or HTML."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from fireiron.frozen import frozen

INK: Final = "#1f2328"
PALE: Final = "#59636e"
SANS: Final = 0.57
"""Upper estimate of the mean width of a letter of the sans-serif font, in font sizes."""
MONO: Final = 0.625
"""Upper estimate of the width of a letter of the monospaced font, in font sizes."""


@frozen
class Rect:
    """A rectangle with corners of radius `radius`; `title` is its tooltip."""

    x: float
    y: float
    width: float
    height: float
    fill: str = "none"
    stroke: str = "none"
    line: float = 1.0
    radius: float = 0.0
    dash: bool = False
    title: str = ""


@frozen
class Line:
    """A line through points; with `arrow`, it ends in an arrow head."""

    points: tuple[tuple[float, float], ...]
    stroke: str = PALE
    line: float = 1.0
    dash: bool = False
    arrow: bool = False


@frozen
class Text:
    """A line of text; `y` is its base line, `anchor` is `"start"`, `"middle"` or `"end"`."""

    x: float
    y: float
    text: str
    size: float = 11.0
    anchor: str = "start"
    bold: bool = False
    mono: bool = False
    color: str = INK
    title: str = ""

    @property
    def width(self) -> float:
        """Return an upper estimate of the width."""
        return text_width(self.text, self.size, self.mono, self.bold)


@frozen
class Cells:
    """A colored grid: cell `(row, column)` is between `ys[row], ys[row + 1]` and `xs[column], xs[column + 1]`.

    `values` are indices into `colors` (and `titles`), -1 for empty cells. Adjacent cells of equal value are merged to one rectangle.
    """

    xs: tuple[float, ...]
    ys: tuple[float, ...]
    values: tuple[tuple[int, ...], ...]
    colors: tuple[str, ...]
    titles: tuple[str, ...] = ()
    gap: float = 0.5

    def boxes(self) -> Iterator[tuple[int, float, float, float, float]]:
        """Yield `(value, x, y, width, height)` of the merged rectangles, starting at the upper left."""
        for value, left, top, right, bottom in merged(self.values):
            yield value, self.xs[left], self.ys[top], self.xs[right] - self.xs[left], self.ys[bottom] - self.ys[top]


Shape = Rect | Line | Text | Cells


def merged(values: Sequence[Sequence[int]]) -> list[tuple[int, int, int, int, int]]:
    """Return `(value, left, top, right, bottom)` of rectangles of equal values, which cover each cell once, except those of value -1."""
    done: list[tuple[int, int, int, int, int]] = []
    before: dict[tuple[int, int, int], int] = {}
    for top, row in enumerate(values):
        here: dict[tuple[int, int, int], int] = {}
        left = 0
        while left < len(row):
            right = left + 1
            while right < len(row) and row[right] == row[left]:
                right += 1
            if row[left] >= 0:
                key = (row[left], left, right)
                here[key] = before.pop(key, top)
            left = right
        done += [(value, start, first, end, top) for (value, start, end), first in before.items()]
        before = here
    done += [(value, start, first, end, len(values)) for (value, start, end), first in before.items()]
    return sorted(done, key=lambda box: (box[2], box[1]))


def text_width(text: str, size: float, mono: bool = False, bold: bool = False) -> float:
    """Return an upper estimate of the width of a text in pixels."""
    return len(text) * size * (MONO if mono else SANS * (1.08 if bold else 1.0))


def wrapped(text: str, letters: int, breaks: str = " .,") -> list[str]:
    """Wrap a text to lines of at most `letters` letters; break after a space or a comma or before a dot if possible."""
    lines = []
    while len(text) > letters:
        places = [at for at in range(letters // 2, letters) if text[at] in breaks]
        place = letters
        if places:
            place = places[-1] if text[places[-1]] == "." else places[-1] + 1
        lines.append(text[:place].rstrip())
        text = text[place:].lstrip()
    return [*lines, text]
