"""The picture `thread`: the tiles that lead from the block to one thread, and the elements in each of its registers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from fireiron.check.access_trace import AccessTrace
from fireiron.check.persistence import static_schedule
from fireiron.compiler import Program
from fireiron.draw import colors
from fireiron.draw.owners import sample_sizes
from fireiron.draw.picture import Page, Picture
from fireiron.draw.shapes import PALE, Cells, Rect, Text, wrapped
from fireiron.errors import ArgumentError
from fireiron.frozen import frozen
from fireiron.inspect.show import main_child
from fireiron.ir import Buffer
from fireiron.language.tree import Node
from fireiron.values.expr import Expr, Var, as_expr, constant
from fireiron.values.machine import Block

Array = Any
WIDTH: Final = 900
SHOWN: Final = 6
"""Largest number of arrays that are drawn: those with the most registers."""

_GRID: Final = (256.0, 232.0)
"""Largest width and height of the grid of the whole tile, in pixels."""

_ENLARGED: Final = 16
"""Largest number of rows and of columns of the enlarged grid."""

_CELL: Final = (30.0, 15.0)
_LEFT, _MIDDLE = 46.0, 360.0
_OWN, _WARP = "#d55e00", "#fbd9a0"


@frozen(eq=False)
class Held:
    """The elements of an array in registers: `rows` and `columns` by lane of the warp and register; `own` is the lane of the thread."""

    buffer: Buffer
    rows: Array
    columns: Array
    own: int

    @property
    def count(self) -> int:
        """The number of elements of the thread."""
        return int(self.rows.shape[1])

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the tile; a vector is one row."""
        sizes = [constant(size) or 1 for size in self.buffer.tensor.shape]
        return (sizes[-2], sizes[-1]) if len(sizes) > 1 else (1, sizes[0])


def thread_picture(program: Program, number: int, sizes: Mapping[str, int] | None = None) -> Picture:
    """Draw the picture of a thread; `number` is its number among those that compute. Raises: `ArgumentError` if there is no such thread."""
    kernel = static_schedule(program.lowered)
    access_trace = AccessTrace(kernel)
    if not 0 <= number < kernel.workers:
        raise ArgumentError(f"thread={number}: a block has no such thread that computes", got=number, legal=f"0 ... {kernel.workers - 1}")
    page = Page()
    title = f"Thread {number}: {program.spec}"
    page.heading(title)
    y = page.paragraph(16, 48, _explanation(number, kernel.workers))
    y = _path(page, y + 4, program.tree)
    fixed = {"block": 0, **sample_sizes(kernel, sizes or {})}
    private = [buffer for buffer in kernel.buffers if buffer.memory.private]
    arrays = [held(access_trace, buffer, number, fixed) for buffer in private if _is_known(buffer)]
    largest = sorted((array for array in arrays if array.count > 1), key=lambda array: -array.count)[:SHOWN]
    drawn = largest or arrays[:SHOWN]
    for array in (array for array in arrays if array in drawn):
        y = _array(page, y + 8, array, access_trace, number, fixed)
    others = [f"{array.buffer.name} ({array.count})" for array in arrays if array not in drawn]
    unknown = [buffer.name for buffer in private if not _is_known(buffer)]
    if others:
        y = page.paragraph(16, y + 16, f"Smaller arrays, with the number of elements of the thread: {', '.join(others)}.")
    if unknown:
        y = page.paragraph(16, y + 16, f"Fragments whose lanes are not specified by the instruction (WMMA): {', '.join(unknown)}.")
    if not private:
        y = page.paragraph(16, y + 16, "This kernel has no arrays in registers.")
    return page.picture("thread", title, WIDTH, y + 8)


def _is_known(buffer: Buffer) -> bool:
    """Whether it is specified which thread has which element of an array in registers; not so for fragments of WMMA."""
    return bool(buffer.register_origin) and not buffer.memory.name.startswith("FR")


def _explanation(number: int, workers: int) -> str:
    return (
        f"Thread {number} of {workers} is lane {number % 32} of warp {number // 32}. Left: the tile of each array in registers. Dark: the "
        "elements of this thread; light: those of the other lanes of its warp. Right: the rows and columns of this thread, with the number "
        "of each element in the array of the thread, as in c_rf[0]. The formulas are those of the kernel; r is this number."
    )


def _path(page: Page, y: float, node: Node | None) -> float:
    """Draw the tiles from the block to the thread, as a chain of specs; return the lower edge."""
    specs: list[str] = []
    while node is not None:
        level = node.spec.level
        is_new = not specs or not specs[-1].endswith(f"({level.name})")
        if is_new and (level == Block or level.threads is not None):
            specs.append(_short(node))
        child = main_child(node)
        node = None if child is None else child[1]
    x = 16.0
    for place, text in enumerate(specs):
        width = len(text) * 9.5 * 0.625 + 10
        if place and x + width > WIDTH - 16:
            x, y = 34.0, y + 22
        x = page.chip(x, y, text, colors.tint(colors.SCALE[min(place, 3)], 0.75)) + 2
        if place + 1 < len(specs):
            page.text(x, y + 11, "→", 11, color=PALE)
            x += 16
    return y + 24


def _short(node: Node) -> str:
    """Return a spec without its memories: `MatMul(128,128,64)(Block)`."""
    spec = node.spec
    return f"{spec.title}({','.join(map(str, spec.sizes))})({spec.level.name})"


def held(access_trace: AccessTrace, buffer: Buffer, number: int, fixed: Mapping[str, int]) -> Held:
    """Return the elements that the warp of a thread has in an array of registers."""
    register = Var("register", 0, max((constant(buffer.elements) or 1) - 1, 0))
    coordinates = buffer.register_coordinates(as_expr(register))
    lanes = access_trace.threads[number // 32 * 32 : number // 32 * 32 + 32]
    still = {**_first_iterations(access_trace, coordinates, register), **fixed}
    frame = access_trace.frame([("thread", lanes), (register.name, np.arange(register.high + 1))], still)
    places = [np.asarray(frame.full(coordinate)) for coordinate in coordinates]
    rows, columns = (places[-2], places[-1]) if len(places) > 1 else (np.zeros_like(places[0]), places[0])
    return Held(buffer, rows, columns, number % 32)


def _array(page: Page, y: float, array: Held, access_trace: AccessTrace, number: int, fixed: Mapping[str, int]) -> float:
    """Draw an array; return the lower edge."""
    buffer, (rows, columns) = array.buffer, array.shape
    copies = f", {buffer.tensor.copies} copies" if buffer.tensor.copies > 1 else ""
    shape = " × ".join(map(str, buffer.tensor.shape))
    packed = f", {32 // buffer.dtype.bits} of which share a 32-bit register" if buffer.dtype.bits < 32 and array.count > 1 else ""
    elements = f"{array.count} element{'s' if array.count != 1 else ''} of the thread{packed}"
    y = page.bar(y, f"{buffer.name}: {shape} {buffer.dtype.name}{copies}; {elements}", WIDTH - 32)
    left = _tile(page, y + 4, array, rows, columns)
    right = _enlarged(page, y + 4, array)
    y = max(left, right) + 6
    for line in _formulas(array, access_trace, number, fixed):
        for part in wrapped(line, int((WIDTH - 40) / (10 * 0.625)), " "):
            page.text(16, y + 10, part, 10, mono=True)
            y += 14
    return y + 6


def _tile(page: Page, y: float, array: Held, rows: int, columns: int) -> float:
    """Draw the whole tile, with the elements of the warp and of the thread."""
    wide, tall = min(_GRID[0] / columns, 20.0), min(_GRID[1] / rows, 20.0)
    wide, tall = min(wide, 5 * tall), min(tall, 5 * wide)
    room = max(columns * wide, 24.0), max(rows * tall, 14.0)
    values = np.full((rows, columns), -1)
    inside = (array.rows < rows) & (array.columns < columns)
    values[array.rows[inside], array.columns[inside]] = 0
    own = inside[array.own]
    values[array.rows[array.own][own], array.columns[array.own][own]] = 1
    xs = tuple(round(_LEFT + room[0] * column / columns, 2) for column in range(columns + 1))
    ys = tuple(round(y + room[1] * row / rows, 2) for row in range(rows + 1))
    page.add(Rect(_LEFT, y, *room, colors.EMPTY, "#8c959f", 0.6))
    titles = ("other lanes of the warp", "the thread")
    page.add(Cells(xs, ys, tuple(tuple(row) for row in values.tolist()), (_WARP, _OWN), titles, 0.0))
    page.text(_LEFT - 4, y + 8, "0", 8.5, anchor="end", color=PALE)
    page.text(_LEFT - 4, y + room[1], str(rows), 8.5, anchor="end", color=PALE) if room[1] > 22 else None
    page.text(_LEFT, y + room[1] + 10, "0", 8.5, color=PALE)
    page.text(_LEFT + room[0], y + room[1] + 10, str(columns), 8.5, anchor="end", color=PALE)
    return y + room[1] + 16


def _enlarged(page: Page, y: float, array: Held) -> float:
    """Draw the first rows and columns of the thread, with the number of each element."""
    own_rows, own_columns = array.rows[array.own], array.columns[array.own]
    rows, columns = np.unique(own_rows), np.unique(own_columns)
    kept_rows, kept_columns = rows[:_ENLARGED], columns[:_ENLARGED]
    number_of = {place: number for number, place in reversed([*enumerate(zip(own_rows.tolist(), own_columns.tolist(), strict=True))])}
    wide, tall = _CELL
    top = y + 14
    labels: list[Text] = []
    for place, column in enumerate(kept_columns.tolist()):
        labels.append(Text(_MIDDLE + wide * (place + 0.5), y + 9, str(column), 8, "middle", color=PALE))
    for place, row in enumerate(kept_rows.tolist()):
        labels.append(Text(_MIDDLE - 5, top + tall * (place + 0.5) + 3, str(row), 8, "end", color=PALE))
        for position, column in enumerate(kept_columns.tolist()):
            number = number_of.get((row, column))
            if number is not None:
                page.add(Rect(_MIDDLE + wide * position, top + tall * place, wide - 1, tall - 1, colors.tint(_OWN, 0.72)))
                labels.append(Text(_MIDDLE + wide * (position + 0.5) - 0.5, top + tall * (place + 0.5) + 3, str(number), 9, "middle"))
    page.add(*labels)
    bottom = top + tall * len(kept_rows)
    left_out = [
        f"{len(all_places) - len(kept)} more {name}"
        for name, all_places, kept in (("rows", rows, kept_rows), ("columns", columns, kept_columns))
        if len(all_places) > len(kept)
    ]
    if left_out:
        page.text(_MIDDLE, bottom + 11, " and ".join(left_out), 9, color=PALE)
        bottom += 14
    return bottom


def _formulas(array: Held, access_trace: AccessTrace, number: int, fixed: Mapping[str, int]) -> Iterator[str]:
    """Yield the formulas of row and column, and the values of the names that occur in them."""
    register = Var("r", 0, max(array.count - 1, 0))
    coordinates = array.buffer.register_coordinates(as_expr(register))
    names = ("row", "column") if len(coordinates) > 1 else ("element",)
    for name, coordinate in zip(names, coordinates[-2:], strict=True):
        yield f"{name:<6} = {coordinate}"
    used = _names(coordinates, register)
    if used:
        still = {**_first_iterations(access_trace, coordinates, register), **fixed}
        frame = access_trace.frame([("thread", np.array([number]))], still)
        yield "with     " + ", ".join(f"{name} = {int(np.max(frame.value(value)))}" for name, value in used.items())


def _first_iterations(access_trace: AccessTrace, coordinates: Sequence[Expr], register: Var) -> dict[str, int]:
    """Return the loops that coordinates depend on, each in its first iteration."""
    return dict.fromkeys(access_trace.needs(coordinates) - {"thread", register.name}, 0)


def _names(coordinates: Sequence[Expr], register: Var) -> dict[str, Expr]:
    """Return the variables of the formulas, without that of the register."""
    variables = [var for coordinate in coordinates for var in coordinate.variables() if var.name != register.name]
    return {var.name: as_expr(var) for var in sorted(variables, key=lambda var: var.name)}


__all__ = ["Held", "held", "thread_picture"]
