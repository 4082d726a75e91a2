"""The picture `timeline`: which copy of each shared buffer is filled and which is read in each iteration of a pipeline."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np

from fireiron.check.access_trace import AccessTrace, Frame, Use, assumed_elements
from fireiron.check.persistence import static_schedule
from fireiron.check.variable_trip_count import varying_trip_counts
from fireiron.compiler import Program
from fireiron.draw.owners import sample_sizes
from fireiron.draw.picture import Page, Picture
from fireiron.draw.ring import picture_of_ring, roles_of
from fireiron.draw.shapes import PALE, Rect
from fireiron.frozen import frozen
from fireiron.ir import For, Wait, statements
from fireiron.values.expr import ZERO, conjuncts, constant

WIDTH: Final = 900
_FILLED: Final = "#f7c873"
_READ: Final = "#9bd0f0"


@frozen
class Slot:
    """In iteration `step` (-1: before the loop), the data of iteration `data` are written to, or read from, a copy of a buffer."""

    step: int
    buffer: str
    copy: int
    data: int
    write: bool


def pipeline_loop(program: Program) -> For | None:
    """Return the loop whose iterations alternate between the copies of a shared buffer; None if there is none."""
    kernel = static_schedule(program.lowered)
    access_trace = AccessTrace(kernel)
    for use in access_trace.uses:
        buffer = kernel.buffer(use.access.buffer)
        if buffer.memory.of_block and buffer.tensor.copies > 1:
            for loop in use.loops:
                if not loop.var.name.endswith("_ahead") and loop.var.name in access_trace.needs((use.access.copy,)):
                    return loop
    return None


def slots(program: Program, loop: For, steps: int, sizes: Mapping[str, int]) -> tuple[Slot, ...]:
    """Return which copies are written and read before the loop and in its first iterations, in program order.

    Copy indices and the conditions of statements are evaluated. Written data are numbered by the offset of their source in global
    memory; read data are those last written to the copy.
    """
    access_trace = AccessTrace(static_schedule(program.lowered))
    staged = [
        use
        for use in access_trace.uses
        if (buffer := access_trace.kernel.buffer(use.access.buffer)).memory.of_block and buffer.tensor.copies > 1
    ]
    used: dict[Slot, None] = {}
    latest: dict[tuple[str, int], int] = {}
    for step in range(-1, steps):
        for use in staged:
            if (step >= 0) != _inside(use, loop):
                continue
            for copy, place in _copies_used(access_trace, use, loop, step, sizes):
                key = use.access.buffer, copy
                if use.access.write:
                    origin, pace = _pace(access_trace, staged, use.access.buffer, loop, sizes)
                    latest[key] = (place - origin) // pace
                if key in latest:
                    used[Slot(step, *key, latest[key], use.access.write)] = None
    return tuple(used)


def _inside(use: Use, loop: For) -> bool:
    return any(one.var.name == loop.var.name for one in use.loops)


def _copies_used(
    access_trace: AccessTrace, use: Use, loop: For, step: int, sizes: Mapping[str, int], checked: bool = True
) -> Iterator[tuple[int, int]]:
    """Yield `(copy, place)` of an access of thread 0 in one iteration: `place` is the offset in its source."""
    sources = [access for access in use.statement.accesses if not access.write]
    place = sum(sources[0].base, ZERO) if use.access.write and sources else ZERO
    ahead = [inner for inner in use.loops if inner.var.name != loop.var.name and inner.var.name in access_trace.needs((use.access.copy,))]
    still = (
        {one.var.name: 0 for one in use.loops} | dict(sizes) | {loop.var.name: max(step, 0), "block": sizes.get("block", 0), "thread": 0}
    )
    known = frozenset(still)
    conditions = (
        [condition for condition in conjuncts(use.statement.performed) if access_trace.roots(condition) <= known] if checked else []
    )
    for index in np.ndindex(*(constant(one.extent) or 1 for one in ahead)):
        frame = Frame(access_trace.lets, (), still | {one.var.name: number for one, number in zip(ahead, index, strict=True)})
        if all(bool(np.all(frame.value(one))) for one in conditions):
            yield int(frame.value(use.access.copy)), int(frame.value(place))


def _pace(access_trace: AccessTrace, staged: Sequence[Use], buffer: str, loop: For, sizes: Mapping[str, int]) -> tuple[int, int]:
    """Return the lowest offset of a buffer's source, and its step from one iteration to the next."""
    writes = [use for use in staged if use.access.buffer == buffer and use.access.write]
    places = [place for use in writes for _, place in _copies_used(access_trace, use, loop, 0, sizes, False)]
    pace = 0
    for use in writes:
        if _inside(use, loop):
            (_, first), (_, second) = (next(_copies_used(access_trace, use, loop, step, sizes, False)) for step in (0, 1))
            pace = max(pace, abs(second - first))
    return min(places), pace or 1


def timeline(program: Program, sizes: Mapping[str, int] | None = None) -> Picture:
    """Draw the picture: lanes and stages for a ring; it contains only a sentence without a pipeline through shared memory."""
    if roles_of(program.lowered) is not None:
        return picture_of_ring(program, sizes)
    page = Page()
    page.heading(f"Pipeline: {program.spec}")
    title = f"Pipeline: {program.spec}"
    loop = pipeline_loop(program)
    if loop is None:
        page.text(16, 52, "No shared buffer of this kernel has several copies that iterations alternate between.", 11)
        return page.picture("timeline", title, WIDTH, 72)
    values = sample_sizes(program.lowered, sizes or {})
    access_trace = AccessTrace(static_schedule(program.lowered))
    values |= assumed_elements(access_trace, values)
    uneven = {one.loop.var.name: one for one in varying_trip_counts(access_trace, values)}.get(loop.var.name)
    block = 0 if uneven is None else int(uneven.blocks[np.argmax(uneven.counts)])
    values = {**values, "block": block}
    extent = int(np.max(Frame(access_trace.lets, (), values).value(loop.extent)))
    steps = max(min(extent, 8), 1)
    used = slots(program, loop, steps, values)
    waits = [stmt.groups for stmt in statements(loop.body) if isinstance(stmt, Wait) and stmt.mechanism.arrives_in_groups]
    text = f"Columns are iterations of the loop over {loop.var} ({extent} in all); rows are the copies of each shared buffer. "
    text += "Data are numbered by their tile of global memory."
    if uneven is not None:
        text += f" Of the {str(uneven).replace(': a block', ' a block')}. Those of block {block} are drawn."
    if waits:
        text += f" Each iteration waits until at most {max(waits)} group{'s' if max(waits) != 1 else ''} of copies are in flight."
    y = page.paragraph(16, 48, text)
    y = page.legend(16, y, [(_FILLED, "copy from global memory is issued"), (_READ, "read by the computation")])
    wide = 720.0 / (steps + 1)
    left = 150.0
    for column in range(steps + 1):
        name = "before" if column == 0 else f"{loop.var} = {column - 1}"
        page.text(left + wide * (column + 0.5), y + 12, name, 10, anchor="middle", color=PALE)
    y += 20
    for buffer in dict.fromkeys(slot.buffer for slot in used):
        copies = program.lowered.buffer(buffer).tensor.copies
        for copy in range(copies):
            page.text(left - 8, y + 17, f"{buffer}, copy {copy}", 10.5, anchor="end")
            for column in range(steps + 1):
                page.add(Rect(left + wide * column, y, wide - 3, 26, "#f6f8fa", "#d1d9e0", 0.6, 3.0))
                here = [slot for slot in used if (slot.buffer, slot.copy, slot.step) == (buffer, copy, column - 1)]
                _slot(page, left + wide * column, y, wide - 3, here)
            y += 29
        y += 10
    return page.picture("timeline", title, WIDTH, y + 6)


def _slot(page: Page, x: float, y: float, width: float, here: list[Slot]) -> None:
    """Draw the accesses to a copy in one iteration, in program order from the top."""
    parts = list(dict.fromkeys((slot.write, slot.data) for slot in here))
    height = 26.0 / max(len(parts), 1)
    for position, (write, data) in enumerate(parts):
        page.add(Rect(x, y + position * height, width, height, _FILLED if write else _READ, radius=3.0))
        size = min(10.0, height - 2)
        text = f"{'fill' if write else 'use'} {data}"
        page.text(x + width / 2, y + (position + 0.5) * height + size * 0.36, text, size, anchor="middle")
