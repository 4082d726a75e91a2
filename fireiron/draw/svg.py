"""Print pictures as well-formed SVG, with the same bytes for equal pictures."""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING

from fireiron.draw.shapes import Cells, Line, Rect, Shape, Text

if TYPE_CHECKING:
    from fireiron.draw.picture import Picture

_SANS = "Helvetica, Arial, 'DejaVu Sans', sans-serif"
_MONO = "'DejaVu Sans Mono', Menlo, Consolas, monospace"
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def svg(picture: Picture, inline: bool = False) -> str:
    """Return the SVG text of a picture; `inline` omits the XML declaration, for HTML."""
    width, height = number(picture.width), number(picture.height)
    lines = [] if inline else ['<?xml version="1.0" encoding="UTF-8"?>']
    lines.append(
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="img" '
        f'font-family="{_SANS}">'
    )
    lines.append(f"<title>{escaped(picture.title)}</title>")
    lines.append(f"<style>.m{{font-family:{_MONO}}}</style>")
    lines.append(f'<rect width="{width}" height="{height}" fill="#ffffff"/>')
    for style, run in itertools.groupby(picture.shapes, _style):
        texts = list(run)
        if style and len(texts) > 2:
            lines += [f"<g{style}>", *(_text(one, True) for one in texts if isinstance(one, Text)), "</g>"]
        else:
            lines += [printed(shape) for shape in texts]
    return "\n".join([*lines, "</svg>", ""])


def escaped(text: str) -> str:
    """Escape a text for XML content and attributes; characters that XML does not allow become question marks."""
    text = _NOT_XML.sub("?", text)
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")


def number(value: float) -> str:
    """Format a number with at most two decimals."""
    return f"{value:.2f}".rstrip("0").rstrip(".") if value % 1 else str(int(value))


def printed(shape: Shape) -> str:
    """Return the SVG element of a shape."""
    match shape:
        case Rect():
            return _rect(shape)
        case Line():
            return _line(shape)
        case Text():
            return _text(shape)
        case Cells():
            return _cells(shape)


def _closed(element: str, name: str, title: str) -> str:
    return f"{element}><title>{escaped(title)}</title></{name}>" if title else f"{element}/>"


def _rect(shape: Rect) -> str:
    x, y, width, height = map(number, (shape.x, shape.y, shape.width, shape.height))
    text = f'<rect x="{x}" y="{y}" width="{width}" height="{height}" fill="{shape.fill}"'
    if shape.radius:
        text += f' rx="{number(shape.radius)}"'
    return _closed(text + _stroke(shape.stroke, shape.line, shape.dash), "rect", shape.title)


def _stroke(stroke: str, line: float, dash: bool) -> str:
    if stroke == "none":
        return ""
    return f' stroke="{stroke}" stroke-width="{number(line)}"' + (' stroke-dasharray="4 3"' if dash else "")


def _line(shape: Line) -> str:
    points = " ".join(f"{number(x)},{number(y)}" for x, y in shape.points)
    text = f'<polyline points="{points}" fill="none"{_stroke(shape.stroke, shape.line, shape.dash)}/>'
    if shape.arrow:
        head = " ".join(f"{number(x)},{number(y)}" for x, y in arrow_head(shape))
        text += f'<polygon points="{head}" fill="{shape.stroke}"/>'
    return text


def arrow_head(shape: Line) -> tuple[tuple[float, float], ...]:
    """Return the triangle at the end of a line."""
    (x0, y0), (x, y) = shape.points[-2:]
    length = ((x - x0) ** 2 + (y - y0) ** 2) ** 0.5 or 1.0
    dx, dy = (x - x0) / length, (y - y0) / length
    return (x, y), (x - 7 * dx - 3.5 * dy, y - 7 * dy + 3.5 * dx), (x - 7 * dx + 3.5 * dy, y - 7 * dy - 3.5 * dx)


def _style(shape: Shape) -> str:
    """Return the attributes that consecutive texts may share."""
    if not isinstance(shape, Text):
        return ""
    text = f' font-size="{number(shape.size)}" fill="{shape.color}"'
    text += f' text-anchor="{shape.anchor}"' if shape.anchor != "start" else ""
    text += ' font-weight="bold"' if shape.bold else ""
    return text + (' class="m"' if shape.mono else "")


def _text(shape: Text, grouped: bool = False) -> str:
    text = f'<text x="{number(shape.x)}" y="{number(shape.y)}"' + ("" if grouped else _style(shape))
    text += ' xml:space="preserve"' if "  " in shape.text or shape.text.startswith(" ") else ""
    title = f"<title>{escaped(shape.title)}</title>" if shape.title else ""
    return f"{text}>{title}{escaped(shape.text)}</text>"


def _cells(shape: Cells) -> str:
    paths: dict[int, list[str]] = {}
    for value, x, y, width, height in shape.boxes():
        paths.setdefault(value, []).append(f"M{number(x)} {number(y)}h{number(width)}v{number(height)}h{number(-width)}z")
    elements = []
    for value in sorted(paths):
        line = f' stroke="#ffffff" stroke-width="{number(shape.gap)}"' if shape.gap else ""
        text = f'<path fill="{shape.colors[value]}"{line} d="{"".join(paths[value])}"'
        elements.append(_closed(text, "path", shape.titles[value] if shape.titles else ""))
    return "\n".join(elements)
