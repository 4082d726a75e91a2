"""Pictures as values: a list of shapes on a page, in pixels from the upper left corner; printed as SVG, PNG or HTML elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import attrs

INK: Final = "#1f2328"
PALE: Final = "#59636e"
SANS: Final = 0.57
"""Mean width of a letter of the sans-serif font, in font sizes; on the safe side."""
MONO: Final = 0.625
"""Width of a letter of the monospaced font, in font sizes; on the safe side."""


@attrs.frozen
class Rect:
    """A rectangle, its corners rounded by `radius`; `title` is the text that appears under the mouse."""

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


@attrs.frozen
class Line:
    """A line through points; with `arrow`, its end has a head."""

    points: tuple[tuple[float, float], ...]
    stroke: str = PALE
    line: float = 1.0
    dash: bool = False
    arrow: bool = False


@attrs.frozen
class Text:
    """A line of text; `y` is its base line, `anchor` is `"start"`, `"middle"` or `"end"`."""

    x: float
    y: float
    text: str
    size: float = 11.0
    anchor: str = "start"
    bold: bool = False
    mono: bool = False
    colour: str = INK
    title: str = ""

    @property
    def width(self) -> float:
        """Its width, estimated on the safe side."""
        return text_width(self.text, self.size, self.mono, self.bold)


@attrs.frozen
class Cells:
    """A coloured grid: cell `(row, column)` lies between `ys[row], ys[row + 1]` and `xs[column], xs[column + 1]`.

    `values` are indices into `colours` (and `titles`), -1 where nothing is drawn. Neighbours of one value become one rectangle.
    """

    xs: tuple[float, ...]
    ys: tuple[float, ...]
    values: tuple[tuple[int, ...], ...]
    colours: tuple[str, ...]
    titles: tuple[str, ...] = ()
    gap: float = 0.5

    def boxes(self) -> Iterator[tuple[int, float, float, float, float]]:
        """`(value, x, y, width, height)` of the merged rectangles, from the upper left one on."""
        for value, left, top, right, bottom in merged(self.values):
            yield value, self.xs[left], self.ys[top], self.xs[right] - self.xs[left], self.ys[bottom] - self.ys[top]


Shape = Rect | Line | Text | Cells


def merged(values: Sequence[Sequence[int]]) -> list[tuple[int, int, int, int, int]]:
    """`(value, left, top, right, bottom)` of rectangles of equal values that cover all cells but those of -1, each once."""
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
    """The width of a text in pixels, estimated on the safe side."""
    return len(text) * size * (MONO if mono else SANS * (1.08 if bold else 1.0))


def wrapped(text: str, letters: int, breaks: str = " .,") -> list[str]:
    """The text in lines of at most so many letters, broken behind a space or a comma or before a dot where that is possible."""
    lines = []
    while len(text) > letters:
        places = [at for at in range(letters // 2, letters) if text[at] in breaks]
        place = letters
        if places:
            place = places[-1] if text[places[-1]] == "." else places[-1] + 1
        lines.append(text[:place].rstrip())
        text = text[place:].lstrip()
    return [*lines, text]
