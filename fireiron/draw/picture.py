"""Pictures, which can be written as SVG, PNG and HTML, and pages to compose them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import attrs

from fireiron.draw import files, png, svg
from fireiron.draw.shapes import PALE, SANS, Rect, Shape, Text, text_width, wrapped
from fireiron.frozen import frozen


@frozen
class Picture:
    """A picture: `name` is the kind (`"tree"`, `"tiles"`, ...), `title` a line for pages, `shapes` from back to front.

    Notebooks display it.
    """

    name: str
    title: str
    width: float
    height: float
    shapes: tuple[Shape, ...] = attrs.field(repr=False)

    @property
    def svg(self) -> str:
        """Return SVG text; the same bytes for equal pictures."""
        return svg.svg(self)

    def png(self, scale: float = 2.0) -> bytes:
        """Return a PNG with `scale` pixels per SVG pixel; needs matplotlib."""
        return png.png(self, scale)

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Write it to `.svg`, `.png` or `.html`; an existing file is kept unless `overwrite`."""
        files.save((self,), path, overwrite=overwrite)

    def _repr_svg_(self) -> str:
        return self.svg


class Page:
    """The shapes of a picture under construction."""

    def __init__(self) -> None:
        self.shapes: list[Shape] = []

    def add(self, *shapes: Shape) -> None:
        """Add shapes on top of the existing ones."""
        self.shapes += shapes

    def text(self, x: float, y: float, text: str, size: float = 11.0, **options: Any) -> float:
        """Add a text; return its estimated right end."""
        label = Text(x, y, text, size, **options)
        self.shapes.append(label)
        return x + label.width

    def chip(self, x: float, y: float, text: str, fill: str, size: float = 9.5, title: str = "") -> float:
        """Add a text on a rounded rectangle with the given upper left corner; return where the next one may start."""
        width = text_width(text, size, True) + 10
        self.add(Rect(x, y, width, size + 6, fill, "none", 1.0, 4.0, title=title))
        self.add(Text(x + 5, y + size + 1.2, text, size, mono=True))
        return x + width + 5

    def heading(self, text: str, width: float = 868.0) -> None:
        """Add the title line of the picture, in smaller letters if it is long."""
        self.text(16, 28, text, round(min(15.0, 15.0 * width / text_width(text, 15.0, bold=True)), 1), bold=True)

    def bar(self, y: float, text: str, width: float) -> float:
        """Add a heading on a gray bar; return the lower edge."""
        size = min(12.0, 12.0 * (width - 16) / text_width(text, 12.0, bold=True))
        self.add(Rect(16, y, width, 24, "#eaeef2", radius=4))
        self.text(24, y + 16.5, text, round(size, 1), bold=True)
        return y + 34

    def legend(self, x: float, y: float, entries: Iterable[tuple[str, str]], width: float = 868.0, size: float = 10.0) -> float:
        """Add squares with texts, in as many rows as needed; return the lower edge."""
        start, last = x, x + width
        for color, text in entries:
            need = 16 + text_width(text, size) + 14
            if x + need > last and x > start:
                x, y = start, y + size + 8
            self.add(Rect(x, y, 11, 11, color, "#8c959f", 0.6, 2.0), Text(x + 16, y + 9.5, text, size))
            x += need
        return y + size + 10

    def paragraph(self, x: float, y: float, text: str) -> float:
        """Add a text in as many lines as needed; return the lower edge."""
        for line in wrapped(text, int(868.0 / (10.5 * SANS)), " "):
            self.text(x, y, line, 10.5, color=PALE)
            y += 14.5
        return y

    def picture(self, name: str, title: str, width: float, height: float) -> Picture:
        """Return the finished picture."""
        return Picture(name, title, width, height, tuple(self.shapes))
