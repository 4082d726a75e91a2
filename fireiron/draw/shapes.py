"""Pictures as values: a list of shapes on a page, in pixels from the upper left corner; printed as SVG, PNG or HTML elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

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


@attrs.frozen
class Picture:
    """A picture: `name` is the kind (`"tree"`, `"tiles"`, ...), `title` a line for pages, `shapes` from back to front.

    In a notebook it shows itself.
    """

    name: str
    title: str
    width: float
    height: float
    shapes: tuple[Shape, ...] = attrs.field(repr=False)

    @property
    def svg(self) -> str:
        """The picture as SVG text; the same bytes for equal pictures."""
        from fireiron.draw.svg import svg

        return svg(self)

    def png(self, scale: float = 2.0) -> bytes:
        """The picture as PNG, `scale` pixels for one of the SVG; needs matplotlib."""
        from fireiron.draw.png import png

        return png(self, scale)

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Write it to `.svg`, `.png` or `.html`; an existing file stays unless `overwrite`."""
        from fireiron.draw.files import save

        save((self,), path, overwrite=overwrite)

    def _repr_svg_(self) -> str:
        return self.svg


class Page:
    """Shapes on the way to a picture."""

    def __init__(self) -> None:
        self.shapes: list[Shape] = []

    def add(self, *shapes: Shape) -> None:
        """Put shapes on top of those that are there."""
        self.shapes += shapes

    def text(self, x: float, y: float, text: str, size: float = 11.0, **options: Any) -> float:
        """Put a text; where it ends, estimated."""
        one = Text(x, y, text, size, **options)
        self.shapes.append(one)
        return x + one.width

    def chip(self, x: float, y: float, text: str, fill: str, size: float = 9.5, title: str = "", stroke: str = "none") -> float:
        """Put a text on a rounded rectangle whose upper left corner is given; where the next one may start."""
        width = text_width(text, size, True) + 10
        self.add(Rect(x, y, width, size + 6, fill, stroke, 1.0, 4.0, title=title))
        self.add(Text(x + 5, y + size + 1.2, text, size, mono=True))
        return x + width + 5

    def heading(self, text: str, width: float = 868.0) -> None:
        """Put what the picture shows in its first line, in smaller letters where it is long."""
        self.text(16, 28, text, round(min(15.0, 15.0 * width / text_width(text, 15.0, bold=True)), 1), bold=True)

    def bar(self, y: float, text: str, width: float) -> float:
        """Put a heading on a grey bar; the y below it."""
        size = min(12.0, 12.0 * (width - 16) / text_width(text, 12.0, bold=True))
        self.add(Rect(16, y, width, 24, "#eaeef2", radius=4))
        self.text(24, y + 16.5, text, round(size, 1), bold=True)
        return y + 34

    def legend(self, x: float, y: float, entries: Iterable[tuple[str, str]], width: float = 868.0, size: float = 10.0) -> float:
        """Put squares with texts, in as many lines as they need; the y below them."""
        start, last = x, x + width
        for colour, text in entries:
            need = 16 + text_width(text, size) + 14
            if x + need > last and x > start:
                x, y = start, y + size + 8
            self.add(Rect(x, y, 11, 11, colour, "#8c959f", 0.6, 2.0), Text(x + 16, y + 9.5, text, size))
            x += need
        return y + size + 10

    def paragraph(self, x: float, y: float, text: str, size: float = 10.5, width: float = 868.0, colour: str = PALE) -> float:
        """Put a text in as many lines as it needs; the y below it."""
        for line in wrapped(text, int(width / (size * SANS)), " "):
            self.text(x, y, line, size, colour=colour)
            y += size + 4
        return y

    def picture(self, name: str, title: str, width: float, height: float) -> Picture:
        """The finished picture."""
        return Picture(name, title, width, height, tuple(self.shapes))
