"""The picture `lanes`: the lane and value number of each element of an instruction's tile, or the lane that provides its address."""

from __future__ import annotations

from typing import Final

from fireiron.compiler import Program
from fireiron.draw import colors
from fireiron.draw.picture import Page, Picture
from fireiron.draw.shapes import PALE, Cells, Text
from fireiron.frozen import frozen
from fireiron.ir import Exec, execs
from fireiron.ir.lanes import LaneMap

WIDTH: Final = 900
_CELL: Final = (24.0, 16.0)


@frozen
class Map:
    """A lane map with its operand."""

    operand: str
    memory: str
    dtype: str
    lane_map: LaneMap


def maps(program: Program) -> dict[str, tuple[Map, ...]]:
    """Return the lane maps of a kernel by instruction, compute instructions first.

    Copies are omitted if an earlier instruction shows the same lane map.
    """
    by_name: dict[str, tuple[Map, ...]] = {}
    shown: set[LaneMap] = set()
    spread = [statement for statement, _ in execs(program.lowered.body) if statement.lane_maps]
    for statement in sorted(spread, key=lambda stmt: stmt.spec.fills or stmt.spec.copies):
        parts = _maps(statement)
        if {part.lane_map for part in parts} <= shown:
            continue
        shown |= {part.lane_map for part in parts}
        name = statement.instruction.name
        while name in by_name:
            name += "'"
        by_name[name] = parts
    return by_name


def _maps(statement: Exec) -> tuple[Map, ...]:
    # For operands that hardware reads from memory itself, no thread owns an element.
    by_engine = statement.instruction.mechanism.by_engine
    return tuple(
        Map(operand, view.memory.name, view.dtype.name, lane_map)
        for (operand, view), lane_map in zip(statement.spec.operands.items(), statement.lane_maps, strict=True)
        if view.memory.private or not by_engine
    )


def owners_of_elements(lane_map: LaneMap) -> dict[tuple[int, int], tuple[tuple[int, int], ...]]:
    """Return all `(lane, value)` of each element of the tile; a vector is one row."""
    table: dict[tuple[int, int], tuple[tuple[int, int], ...]] = {}
    for lane, row in enumerate(lane_map.table):
        for value, place in enumerate(row):
            key = (place[0], place[1]) if len(place) > 1 else (0, place[0])
            table[key] = (*table.get(key, ()), (lane, value))
    return table


def lanes(program: Program) -> Picture:
    """Draw the picture; it contains only a sentence if no instruction distributes a tile over lanes."""
    page = Page()
    page.heading(f"Lanes: {program.spec}")
    by_name = maps(program)
    title = f"Lane maps: {program.spec}"
    if not by_name:
        page.text(16, 52, "No instruction of this kernel distributes a tile over the lanes of a warp: threads own elements.", 11)
        return page.picture("lanes", title, WIDTH, 72)
    y = page.paragraph(
        16,
        48,
        "A cell shows lane:value. The lane of the warp (quad-pair, warpgroup) holds the element, or, for a source in memory, "
        "provides its address; the value is its number among the values of the lane. Two values of 16 bits share a 32-bit register "
        "(register = value / 2), and four values of 8 bits. Four lanes share a hue. + : more lanes hold the same element.",
    )
    for name, parts in by_name.items():
        y += 10
        page.text(16, y + 12, name, 12, bold=True, mono=True)
        y = _flow(page, y + 22, parts)
    return page.picture("lanes", title, WIDTH, y + 4)


def _flow(page: Page, y: float, parts: tuple[Map, ...]) -> float:
    """Draw panels from left to right, in as many rows as needed; return the lower edge."""
    x, bottom = 16.0, y
    for part in parts:
        width, _ = _extent(part)
        if x > 16 and x + width > WIDTH - 16:
            x, y = 16.0, bottom
        bottom = max(bottom, _panel(page, x, y, part))
        x += width + 12
    return bottom


def _extent(part: Map) -> tuple[float, float]:
    tile = part.lane_map.tile
    rows, columns = (tile[0], tile[1]) if len(tile) > 1 else (1, tile[0])
    wide = min(_CELL[0], (WIDTH - 60) / columns)
    return 22 + max(columns * wide, 192), rows * (_CELL[1] if rows <= 32 else 9.0) + 54


def _panel(page: Page, x: float, y: float, part: Map) -> float:
    lane_map = part.lane_map
    tile = lane_map.tile
    rows, columns = (tile[0], tile[1]) if len(tile) > 1 else (1, tile[0])
    wide, tall = min(_CELL[0], (WIDTH - 60) / columns), _CELL[1] if rows <= 32 else 9.0
    table = owners_of_elements(lane_map)
    page.text(x, y + 11, f"{part.operand}: {' × '.join(map(str, tile))} {part.dtype} in {part.memory}", 11, bold=True)
    page.text(x, y + 23, f"{lane_map.threads} lanes, {lane_map.count} value{'s' if lane_map.count != 1 else ''} each", 9, color=PALE)
    left, top = x + 20, y + 42
    palette = colors.lane_colors(lane_map.threads)
    values = tuple(tuple(table[row, column][0][0] for column in range(columns)) for row in range(rows))
    xs = tuple(left + wide * column for column in range(columns + 1))
    ys = tuple(top + tall * row for row in range(rows + 1))
    page.add(Cells(xs, ys, values, palette, tuple(_label(table, lane) for lane in range(lane_map.threads)), 0.6))
    for column in range(columns):
        page.text(left + wide * (column + 0.5), top - 4, str(column), 8, anchor="middle", color=PALE)
    for row in range(rows):
        page.text(left - 5, top + tall * (row + 0.5) + 3, str(row), 8, anchor="end", color=PALE)
    inks = [colors.ink_on(color) for color in palette]
    for (row, column), holders in sorted(table.items(), key=lambda item: (inks[item[1][0][0]], item[0])):
        lane, value = holders[0]
        text = f"{lane}:{value}" + ("+" if len({one for one, _ in holders}) > 1 else "")
        size = min(7.8, (wide - 1) / (len(text) * 0.6), tall - 2)
        if size >= 5:
            page.add(Text(left + wide * (column + 0.5), top + tall * (row + 0.5) + 3, text, round(size, 1), "middle", color=inks[lane]))
    return top + rows * tall + 16


def _label(table: dict[tuple[int, int], tuple[tuple[int, int], ...]], lane: int) -> str:
    own = sorted((value, place) for place, owners in table.items() for owner, value in owners if owner == lane)
    return f"lane {lane}: " + ", ".join(f"{value} at ({row}, {column})" for value, (row, column) in own)
