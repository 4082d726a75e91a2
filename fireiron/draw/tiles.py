"""The picture `tiles`: for each operand, which block, warp and lane owns which element, in every memory that stores it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from fireiron.check.access_trace import AccessTrace, Use, assumed_elements
from fireiron.check.persistence import persistence, static_schedule
from fireiron.check.streamed_tiles import streamed
from fireiron.compiler import Program
from fireiron.draw import colors
from fireiron.draw.copy_passes import copy_passes, passes_panel
from fireiron.draw.owners import Blocks, Owners, blocks_of, fixed_loops, members, owners, role, sample_sizes
from fireiron.draw.picture import Page, Picture
from fireiron.draw.shapes import PALE, Cells, Rect, Text, text_width
from fireiron.frozen import frozen
from fireiron.inspect.show import main_child
from fireiron.ir import Buffer
from fireiron.language.tree import Node
from fireiron.values.expr import Expr, compiled
from fireiron.values.machine import Block
from fireiron.values.tensor import View

Array = Any
WIDTH: Final = 900
_PANEL: Final = (256.0, 232.0)
"""Maximum number of pixels of a panel's grid."""
_LEFT: Final = (46.0, 336.0, 626.0)
"""Left edges of the grids of the three columns, with room for row numbers to their left."""


@frozen
class BufferUses:
    """A row of panels: a buffer of an operand, and how the kernel accesses it."""

    buffer: Buffer
    text: str
    uses: tuple[Use, ...]


def tiles(program: Program, sizes: Mapping[str, int] | None = None) -> Picture:
    """Draw the picture; run-time sizes have the values of `sizes`, or sample values."""
    kernel = static_schedule(program.lowered)
    access_trace = AccessTrace(kernel)
    values = sample_sizes(kernel, sizes or {})
    described = streamed(kernel)
    segment = {} if described is None else {described.segment: 0}  # of Stream-K, the first segment of each block
    fixed = {"block": 0, **segment, **sample_sizes(access_trace.kernel, values)}
    fixed |= assumed_elements(access_trace, fixed)
    page = Page()
    page.heading(f"Tiles and their owners: {program.spec}")
    y = page.paragraph(16, 48, _explanation(values, program))
    lets = {var.name: value for var, value in program.grown.names.items()}
    persistent = next(iter(persistence(kernel)), None)
    view_of = _block_views(program.tree)
    grid = _grid(kernel.grid, values)
    for operand, chain in operands(program.tree).items():
        ordered = sorted(places(access_trace, chain), key=_written_last)
        rows = [(place, owned) for place in ordered if (owned := owners_of(access_trace, place, fixed)) is not None]
        if not rows and operand not in view_of:
            continue
        y += 8
        y = page.bar(y, _headline(chain, access_trace), WIDTH - 32)
        bottom = y
        if operand in view_of:
            blocks = blocks_of(view_of[operand], lets, grid, {**values, **segment}, persistent)
            first = next((owned for place, owned in rows if place.buffer.parameter), None)
            bottom = max(bottom, _matrix_panel(page, y, operand, blocks, _first_step(access_trace, operand, fixed, first)))
        for place, owned in rows:
            bottom = max(bottom, _warp_panel(page, y, place, owned), _lane_panel(page, y, place, owned))
            y = bottom + 12
        y = bottom + 8
    return page.picture("tiles", f"Tiles and their owners: {program.spec}", WIDTH, y + 8)


def _explanation(values: Mapping[str, int], program: Program) -> str:
    text = (
        "Left: the matrix by block. Middle: the elements that block 0 accesses, by warp (32 threads). Right: the elements of warp 0, by "
        "lane. Numbers at the edges are rows and columns of the buffer. Everything is computed from the kernel's index expressions."
    )
    if any(len(view.tensor.shape) > 2 for view in program.spec.views):
        text += " Of a batch of matrices the first is drawn."
    if values:
        text += " Run-time sizes are drawn for " + ", ".join(f"{name} = {value}" for name, value in values.items()) + "."
    return text


def _grid(grid: Expr, values: Mapping[str, int]) -> int:
    return int(compiled(grid)(values))


# ---------------------------------------------------------------------------------------------- what to draw


def operands(node: Node) -> dict[str, tuple[str, ...]]:
    """Return, by operand, the tensors that store it along the main chain: `A` in `A`, `a_sh`, `a_rf`. Scalars are omitted."""
    stored_in: dict[str, dict[str, None]] = {}
    here: Node | None = node
    while here is not None:
        for name, view in here.spec.operands.items():
            if view.memory.is_coordinate or not view.tensor.shape:  # coordinates and scalars are not stored
                continue
            stored_in.setdefault(name, {})[view.tensor.name] = None
        main = main_child(here)
        here = None if main is None else main[1]
    return {name: tuple(tensors) for name, tensors in stored_in.items()}


def _block_views(node: Node) -> dict[str, View]:
    """Return the views of the first spec of level Block, by operand."""
    here: Node | None = node
    while here is not None:
        if here.spec.level == Block:
            return dict(here.spec.operands)
        main = main_child(here)
        here = None if main is None else main[1]
    return {}


_TEXTS: Final = {
    ("GL", "read"): "read",
    ("GL", "written"): "written",
    ("GL", "computed"): "computed in place",
    ("GL", "added"): "added to atomically",
    ("SH", "written"): "copied into shared memory",
    ("SH", "read"): "read from shared memory",
    ("SH", "computed"): "computed in shared memory",
    ("RF", "computed"): "computed in registers",
}


def places(access_trace: AccessTrace, chain: Sequence[str]) -> Iterator[BufferUses]:
    """Yield the rows of panels of an operand, ordered by memory; parts of a warp's fragment are in the picture `lanes` instead."""
    shared = any(access_trace.kernel.buffer(name).memory.of_block for name in chain if _known(access_trace, name))
    for name in chain:
        if not _known(access_trace, name):
            continue
        buffer = access_trace.kernel.buffer(name)
        memory = "GL" if buffer.memory.of_grid else "SH" if buffer.memory.of_block else "RF"
        for kind in ("computed", "written", "added", "read"):
            uses = tuple(use for use in access_trace.uses if use.access.buffer == name and role(use) == kind)
            uses = tuple(use for use in uses if not (kind == "read" and _also_written(use, name)))
            if not uses or (memory, kind) not in _TEXTS or (memory == "GL" and kind == "read" and shared):
                continue
            yield BufferUses(buffer, _TEXTS[memory, kind], _once(uses) if memory == "GL" and kind == "read" else uses)


def _written_last(place: BufferUses) -> bool:
    return place.buffer.parameter and place.text in ("written", "added to atomically")


def _known(access_trace: AccessTrace, name: str) -> bool:
    return any(buffer.name == name for buffer in access_trace.kernel.buffers)


def _also_written(use: Use, name: str) -> bool:
    return any(access.write and access.buffer == name for access in use.statement.accesses)


def _once(uses: Sequence[Use]) -> tuple[Use, ...]:
    """Return the uses without the copies of statements that the pass `pipeline` generates for later stages."""
    kept: dict[tuple[str, str], tuple[str, ...]] = {}
    result = []
    for use in uses:
        loops = tuple(loop.var.name for loop in use.loops)
        if kept.setdefault((use.statement.instruction.name, str(use.statement.spec)), loops) == loops:
            result.append(use)
    return tuple(result)


def owners_of(access_trace: AccessTrace, place: BufferUses, fixed: Mapping[str, int]) -> Owners | None:
    """Return the owners for a row of panels."""
    still = {name: 0 for use in place.uses for name in fixed_loops(access_trace, use, place.buffer)}
    return owners(access_trace, place.uses, {**still, **fixed}) or owners(access_trace, place.uses, fixed)


def _first_step(
    access_trace: AccessTrace, operand: str, fixed: Mapping[str, int], owned: Owners | None
) -> tuple[int, int, int, int] | None:
    """Return the rows and columns `(top, bottom, left, right)` that block 0 accesses first in global memory."""
    if owned is None:
        uses = [use for use in access_trace.uses if use.access.buffer == operand and role(use) == "read"]
        buffer = access_trace.kernel.buffer(operand)
        owned = owners_of(access_trace, BufferUses(buffer, "", _once(uses)), fixed) if uses else None
    if owned is None:
        return None
    return int(owned.rows[0]), int(owned.rows[-1]) + 1, int(owned.columns[0]), int(owned.columns[-1]) + 1


def _headline(chain: Sequence[str], access_trace: AccessTrace) -> str:
    parts = []
    for name in chain:
        if _known(access_trace, name):
            buffer = access_trace.kernel.buffer(name)
            shape = " × ".join(map(str, buffer.tensor.shape))
            copies = f", {buffer.tensor.copies} copies" if buffer.tensor.copies > 1 else ""
            parts.append(f"{name}: {shape} {buffer.dtype.name} in {buffer.memory.name}{copies}")
    return "   →   ".join(parts)


# ---------------------------------------------------------------------------------------------- panels


def _edges(start: float, marks: Sequence[int], room: float) -> tuple[float, ...]:
    scale = room / max(marks[-1] - marks[0], 1)
    return tuple(round(start + (mark - marks[0]) * scale, 1) for mark in marks)


def _matrix_panel(page: Page, y: float, operand: str, blocks: Blocks, step: tuple[int, int, int, int] | None) -> float:
    """Draw the matrix by block; return the lower edge."""
    x = _LEFT[0]
    rows, columns = blocks.rows, blocks.columns
    height, width = int(rows[-1]), int(columns[-1])
    scale = min(_PANEL[0] / width, _PANEL[1] / height)
    room = max(width * scale, 36.0), max(height * scale, 36.0)
    xs, ys = _edges(x, columns.tolist(), room[0]), _edges(y + 32, rows.tolist(), room[1])
    present = np.unique(blocks.first[blocks.first >= 0])
    palette = colors.distinct(len(present))
    values = np.where(blocks.first < 0, -1, np.searchsorted(present, blocks.first))
    plural = blocks.count.max() > 1
    page.text(x - 30, y + 11, f"{operand} by block: {blocks.grid} block{'s' if blocks.grid != 1 else ''}", 11, bold=True)
    page.add(Rect(x, y + 32, room[0], room[1], colors.EMPTY))
    titles = tuple(f"block {block}" for block in present.tolist())
    cells = Cells(xs, ys, _rows(values), palette, titles)
    page.add(cells)
    named = _labels(page, cells, [f"{block}{'+' if plural else ''}" for block in present.tolist()], True)
    note = "the lowest block is named; + : more blocks share it" if plural else "numbers are blocks, in launch order"
    note = note if named else f"dark to light: block {present[0]} to {present[-1]}" + (", the lowest of those that share" if plural else "")
    page.text(x - 30, y + 24, note, 9, color=PALE)
    if step is not None:
        top, bottom, left, right = step
        if bottom <= height and right <= width:
            sx, sy = room[0] / width, room[1] / height
            box = x + left * sx, y + 32 + top * sy, max((right - left) * sx, 2.0), max((bottom - top) * sy, 2.0)
            page.add(Rect(*box, stroke="#000000", line=1.8, title="first access of block 0"))
    _axis(page, x, y + 32, room, (0, height), (0, width))
    below = y + 32 + room[1] + 24
    notes = ["black frame: first access of block 0"] if step is not None else []
    if blocks.evaluated < blocks.tiles:
        notes.append(f"only the first {blocks.evaluated} {'blocks' if blocks.tiles == blocks.grid else 'tiles'} are drawn")
    for note in notes:
        page.text(x - 30, below, note, 9, color=PALE)
        below += 12
    return below


def _rows(values: Array) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(row) for row in values.tolist())


def _axis(page: Page, x: float, y: float, room: tuple[float, float], rows: tuple[int, int], columns: tuple[int, int]) -> None:
    """Label the first and the last row and column."""
    page.text(x - 4, y + 8, str(rows[0]), 8.5, anchor="end", color=PALE)
    if rows[1] > rows[0] and room[1] > 22:
        page.text(x - 4, y + room[1], str(rows[1]), 8.5, anchor="end", color=PALE)
    page.text(x, y + room[1] + 10, str(columns[0]), 8.5, color=PALE)
    if columns[1] > columns[0] and room[0] > text_width(f"{columns[0]}{columns[1]}", 8.5) + 8:
        page.text(x + room[0], y + room[1] + 10, str(columns[1]), 8.5, anchor="end", color=PALE)


def _gaps(page: Page, x: float, ys: Sequence[float], rows: Array) -> None:
    """Label the rows after gaps, if there is room between the first and the last row."""
    written = ys[0] + 8
    for row in (np.flatnonzero(np.diff(rows) != 1) + 1).tolist():
        if written + 9 <= ys[row] + 8 <= ys[-1] - 9:
            written = ys[row] + 8
            page.text(x - 4, written, str(rows[row]), 8.5, anchor="end", color=PALE)


def _labels(page: Page, cells: Cells, texts: Sequence[str], all_or_none: bool = False) -> bool:
    """Label the rectangles that have room for a label; return whether all have."""
    labels, complete = [], True
    for value, x, y, width, height in cells.boxes():
        lines = [texts[value]] if len(texts[value]) * 6 < width or height < 24 else texts[value].replace(" ... ", "\n... ").split("\n")
        size = round(min(10.0, (height - 2.0) / len(lines), (width - 3.0) / (max(map(len, lines)) * 0.6)), 1)
        if size < 6.4:
            complete = False
            continue
        ink = colors.ink_on(cells.colors[value])
        top = y + height / 2 + size * 0.36 - (len(lines) - 1) * size * 0.6
        labels += [Text(x + width / 2, top + row * size * 1.2, line, size, "middle", color=ink) for row, line in enumerate(lines)]
    if all_or_none and not complete:
        return False
    page.add(*sorted(labels, key=lambda label: (label.color, label.size)))
    return complete


def _sized(rows: int, columns: int) -> tuple[float, float]:
    """Return the pixels of a grid of elements; elements are square if that is legible."""
    wide = min(_PANEL[0] / columns, 20.0)
    tall = min(_PANEL[1] / rows, 20.0)
    wide, tall = min(wide, 5 * tall), min(tall, 5 * wide)
    return max(columns * wide, 24.0), max(rows * tall, 14.0)


def _categories(masks: Array) -> tuple[list[int], Array]:
    """Return the distinct masks, ordered by their lowest member, and the index of each cell's mask; -1 for empty masks."""
    present = sorted((int(mask) for mask in np.unique(masks) if mask), key=lambda mask: ((mask & -mask), mask))
    numbers = {mask: number for number, mask in enumerate(present)}
    numbers[0] = -1
    distinct, where = np.unique(masks, return_inverse=True)
    return present, np.array([numbers[int(mask)] for mask in distinct])[where].reshape(masks.shape)


def _warp_panel(page: Page, y: float, place: BufferUses, owned: Owners) -> float:
    """Draw the tile of block 0 by warp; return the lower edge."""
    x = _LEFT[1]
    masks, values = _categories(owned.warps)
    palette = colors.distinct(len(masks))
    room = _sized(len(owned.rows), len(owned.columns))
    xs = _edges(x, list(range(len(owned.columns) + 1)), room[0])
    ys = _edges(y + 32, list(range(len(owned.rows) + 1)), room[1])
    page.text(x - 30, y + 11, f"{place.buffer.name}: {place.text}, by warp", 11, bold=True)
    page.text(x - 30, y + 24, _sizes_text(owned.rows, owned.columns, place.buffer, owned.partial), 9, color=PALE)
    titles = tuple(f"warp{'s' if mask & (mask - 1) else ''} {members(mask)}" for mask in masks)
    cells = Cells(xs, ys, _rows(values), palette, titles, 0.4)
    shared = copy_passes(owned) if _striped(place, owned, cells) else None
    if shared is not None:
        return passes_panel(page, x, y + 36, shared)
    page.add(cells)
    texts = [members(mask) for mask in masks]
    named = _labels(page, cells, texts)
    _axis(page, x, y + 32, room, (int(owned.rows[0]), int(owned.rows[-1])), (int(owned.columns[0]), int(owned.columns[-1])))
    bottom = y + 32 + room[1] + 16
    if not named:
        entries = [(palette[number], text) for number, text in enumerate(texts)][:16]
        entries += [("#ffffff", f"... {len(texts) - 16} more")] if len(texts) > 16 else []
        bottom = page.legend(x - 30, bottom + 2, entries, 286, 9)
    return bottom + 8


def _striped(place: BufferUses, owned: Owners, cells: Cells) -> bool:
    """Return whether the rectangles of a per-thread copy are too small for the number of their warp."""
    copied = owned.lanes_known and all(use.statement.spec.copies for use in place.uses)
    return copied and any(width < 12 or height < 8.4 for _, _, _, width, height in cells.boxes())


def _sizes_text(rows: Array, columns: Array, buffer: Buffer, partial: bool) -> str:
    gaps = "; others left out" if _gappy(rows) or _gappy(columns) else ""
    step = " of the first copy" if buffer.tensor.copies > 1 else ""
    return f"{len(rows)} × {len(columns)} elements{step}" + (" (in part)" if partial else "") + gaps


def _gappy(numbers: Array) -> bool:
    return bool(len(numbers) > 1 and (np.diff(numbers) != 1).any())


def _unknown(place: BufferUses) -> str:
    together = dict.fromkeys(use.statement.instruction.name for use in place.uses if use.statement.collective)
    return f"decided inside {', '.join(together)}" if together else "not specified by the instruction (WMMA)"


def _lane_panel(page: Page, y: float, place: BufferUses, owned: Owners) -> float:
    """Draw the elements of warp 0 by lane, or only its upper left corner if that is more legible; return the lower edge."""
    x = _LEFT[2]
    thread = owned.points[0]
    warp = int(thread.min()) // 32
    page.text(x - 30, y + 11, f"warp {warp} by lane", 11, bold=True)
    if not owned.lanes_known:
        page.text(x - 30, y + 24, _unknown(place), 9, color=PALE)
        return y + 40
    row, column, masks = owned.lanes(warp)
    all_rows, all_columns = masks.shape
    for most in (64, 32, 16, 8):
        part = masks[:most, : most * 2 if most < 32 else most]
        room = _sized(*part.shape)
        present, values = _categories(part)
        texts = [members(mask) for mask in present]
        xs = _edges(x, list(range(part.shape[1] + 1)), room[0])
        ys = _edges(y + 32, list(range(part.shape[0] + 1)), room[1])
        cells = Cells(xs, ys, _rows(values), ("",) * len(present))
        fits = [width >= 6.6 * 0.6 * len(texts[value]) + 2 and height >= 8.6 for value, _, _, width, height in cells.boxes()]
        if fits and sum(fits) >= 0.9 * len(fits):
            break
    lanes = colors.lane_colors(32)
    palette = tuple(lanes[(mask & -mask).bit_length() - 1] if mask else "" for mask in present)
    corner = part.shape != masks.shape
    note = f"{all_rows} × {all_columns} elements"
    note = f"{part.shape[0]} × {part.shape[1]} of its {note}" if corner else note
    left_out = [name for name, places in (("rows", owned.rows[row]), ("columns", owned.columns[column])) if _gappy(places)]
    note += f", others' {' and '.join(left_out)} left out" if left_out else ""
    note += "; lanes share" if any(mask & (mask - 1) for mask in present) else ""
    page.text(x - 30, y + 24, note, 9, color=PALE)
    titles = tuple(f"lane{'s' if mask & (mask - 1) else ''} {members(mask)}" for mask in present)
    cells = Cells(xs, ys, _rows(values), palette, titles, 0.5)
    page.add(cells)
    _labels(page, cells, texts)
    shown = owned.rows[row[: part.shape[0]]], owned.columns[column[: part.shape[1]]]
    _gaps(page, x, ys, shown[0])
    _axis(page, x, y + 32, room, (int(shown[0][0]), int(shown[0][-1])), (int(shown[1][0]), int(shown[1][-1])))
    return y + 32 + room[1] + 24
