"""Draw pictures as PNG with matplotlib."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from fireiron.draw.shapes import Cells, Line, Rect, Shape, Text
from fireiron.draw.svg import arrow_head
from fireiron.errors import ArgumentError

if TYPE_CHECKING:
    from fireiron.draw.picture import Picture

_DPI = 100
_SMALLER = 0.93
"""Font scale: DejaVu Sans, which matplotlib includes, is wider than the sans-serif fonts of browsers."""


def png(picture: Picture, scale: float = 2.0) -> bytes:
    """Return a PNG with `scale` pixels per SVG pixel. Raises: `ArgumentError` for a scale above 8, or without matplotlib."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise ArgumentError("PNG needs matplotlib", hint="pip install 'fireiron[plot]', or write .svg or .html") from None
    if not 0 < scale <= 8:
        raise ArgumentError("the scale of a PNG is out of range", got=scale, legal="more than 0, at most 8")
    figure = Figure(figsize=(picture.width / _DPI, picture.height / _DPI), dpi=_DPI, facecolor="white")
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, picture.width)
    axes.set_ylim(picture.height, 0)
    axes.set_axis_off()
    for order, shape in enumerate(picture.shapes):
        _draw(axes, shape, order)
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=_DPI * scale, metadata={"Software": None, "Title": picture.title})
    return stream.getvalue()


def _points(pixels: float) -> float:
    return pixels * 72 / _DPI


def _draw(axes: Any, shape: Shape, order: int) -> None:
    from matplotlib import patches
    from matplotlib.collections import PatchCollection

    match shape:
        case Rect():
            style: dict[str, Any] = {
                "facecolor": shape.fill,
                "edgecolor": shape.stroke,
                "linewidth": _points(shape.line) if shape.stroke != "none" else 0,
                "linestyle": (0, (4, 3)) if shape.dash else "-",
                "zorder": order,
            }
            if shape.radius and min(shape.width, shape.height) > 2 * shape.radius:
                box = f"round,pad=0,rounding_size={shape.radius}"
                axes.add_patch(patches.FancyBboxPatch((shape.x, shape.y), shape.width, shape.height, boxstyle=box, **style))
            else:
                axes.add_patch(patches.Rectangle((shape.x, shape.y), shape.width, shape.height, **style))
        case Line():
            xs, ys = zip(*shape.points, strict=True)
            dashes = (0, (4, 3)) if shape.dash else "-"
            axes.plot(xs, ys, color=shape.stroke, linewidth=_points(shape.line), zorder=order, linestyle=dashes)
            if shape.arrow:
                axes.add_patch(patches.Polygon(arrow_head(shape), facecolor=shape.stroke, linewidth=0, zorder=order))
        case Text():
            place = {"start": "left", "middle": "center", "end": "right"}[shape.anchor]
            axes.text(
                shape.x,
                shape.y,
                shape.text,
                fontsize=_points(shape.size) * (1.0 if shape.mono else _SMALLER),
                family="DejaVu Sans Mono" if shape.mono else "DejaVu Sans",
                weight="bold" if shape.bold else "normal",
                color=shape.color,
                ha=place,
                va="baseline",
                zorder=order,
                parse_math=False,
            )
        case Cells():
            boxes = list(shape.boxes())
            rectangles = [patches.Rectangle((x, y), width, height) for _, x, y, width, height in boxes]
            colors = [shape.colors[value] for value, *_ in boxes]
            line = _points(shape.gap)
            collection = PatchCollection(rectangles, facecolor=colors, edgecolor="white", linewidth=line, zorder=order)
            axes.add_collection(collection, autolim=False)
