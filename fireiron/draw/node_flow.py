"""The picture `flow` of a program for the GPUs of a node: which GPU stores what, and the launches on a time axis with the link."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from fireiron.compiler import Program
from fireiron.cost import predict
from fireiron.cost.gpus import of_architecture
from fireiron.cost.prediction import LINK
from fireiron.draw import colors
from fireiron.draw.picture import Page, Picture
from fireiron.draw.shapes import PALE, Rect
from fireiron.frozen import frozen
from fireiron.inspect.exchanges import exchanges
from fireiron.values.expr import constant

WIDTH: Final = 900
_LEFT: Final = 16.0
_SIDE: Final = 150.0
_AXIS: Final = (150.0, 720.0)
_SHARED: Final = "#d0d7de"
_BARRIER: Final = "#57606a"


@frozen
class _Span:
    """A part of the time: a launch or a barrier, with the microseconds that the link needs for it alone."""

    name: str
    us: float
    link: float
    is_barrier: bool


def node_flow(program: Program) -> Picture:
    """Draw the picture. Raises: the errors of the cost model."""
    gpus = program.spec.level.gpus or 1
    page = Page()
    page.heading(f"{program.spec.title} on {gpus} GPUs: parts, launches and the link")
    own = colors.distinct(gpus)
    below = _operands(page, program, own, 52.0)
    shown = [(color, f"GPU {gpu}") for gpu, color in enumerate(own[:8])]
    below = page.legend(_LEFT, below + 14, [*shown, (_SHARED, "complete on each GPU"), (_BARRIER, "barrier of all GPUs")])
    below = _timeline(page, list(_spans(program)), below + 26)
    for line in exchanges(program):
        below = page.paragraph(_LEFT, below + 6, line)
    return page.picture("flow", f"Parts and launches of {program.name} on {gpus} GPUs", WIDTH, below + 8)


def _operands(page: Page, program: Program, own: tuple[str, ...], y: float) -> float:
    """Draw the operands with the part of each GPU; return the lower edge."""
    spec, x, most = program.spec, _LEFT, 0.0
    stored = {name: view for name, view in spec.operands.items() if not view.memory.is_coordinate}
    sizes = {name: [float(constant(size) or 1) for size in view.tensor.array.shape[-2:]] for name, view in stored.items()}
    longest = max(size for pair in sizes.values() for size in pair)
    for name, view in stored.items():
        dims, tensor = spec.kind.array_dims(spec.definition, name), view.tensor.array
        height, width = (max(_SIDE * size / longest, 14.0) for size in (sizes[name] if len(sizes[name]) == 2 else [1.0, *sizes[name]]))
        page.text(x, y, f"{name}[{','.join(dims)}] {tensor.dtype}", 10, bold=True)
        axis = None if tensor.distributed_over is None else dims.index(tensor.distributed_over) - len(dims)
        if axis is None:
            page.add(Rect(x, y + 8, width, height, _SHARED, "#ffffff"))
        for gpu, color in enumerate(own if axis is not None else ()):
            share, place = 1 / len(own), gpu / len(own)
            box = (x + place * width, y + 8, width * share, height) if axis == -1 else (x, y + 8 + place * height, width, height * share)
            page.add(Rect(*box, color, "#ffffff", title=f"the part of {name} that GPU {gpu} stores"))
        x, most = x + max(width, 110.0) + 40, max(most, height)
    return y + 8 + most


def _spans(program: Program) -> Iterator[_Span]:
    """Yield the launches and barriers in order."""
    *before, after = program.barriers
    for launch, reason in zip(program.launches, before, strict=True):
        alone = launch.program.last if launch.program is program else launch.program
        prediction = predict(alone)
        if reason:
            yield _Span("barrier", prediction.gpu.barrier_us, 0.0, True)
        yield _Span(alone.name, prediction.us, prediction.parts.get(LINK, 0.0), False)
    if after:
        yield _Span("barrier", of_architecture(program.architecture).barrier_us, 0.0, True)


def _timeline(page: Page, spans: list[_Span], y: float) -> float:
    """Draw the spans on a time axis, with a row for the SMs and one for the link; return the lower edge."""
    start, width = _AXIS
    total = sum(span.us for span in spans) or 1.0
    page.text(_LEFT, y + 13, "each GPU", 10, bold=True)
    page.text(_LEFT, y + 37, "the link", 10, bold=True)
    page.text(start, y - 4, f"{total:.1f} us (predicted)", 9, color=PALE)
    now = start
    for span, color in zip(spans, colors.distinct(len(spans)), strict=True):
        length = max(span.us / total * width, 1.5)
        title = f"{span.name}: {span.us:.1f} us"
        page.add(Rect(now, y, length, 18, _BARRIER if span.is_barrier else colors.tint(color, 0.4), "#ffffff", title=title))
        if not span.is_barrier and length > 60:
            page.text(now + 4, y + 13, f"{span.name} {span.us:.1f}", 9, mono=True)
        if span.link:
            page.add(Rect(now, y + 24, min(span.link / total * width, length), 18, color, "#ffffff", title=f"the link: {span.link:.1f} us"))
        now += length
    return y + 52


__all__ = ["node_flow"]
