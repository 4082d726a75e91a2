"""The picture `flow` of a kernel graph: one box per kernel, and how arguments, workspaces and results connect them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fireiron.draw import colors
from fireiron.draw.picture import Page, Picture
from fireiron.draw.shapes import PALE, Line, Rect, text_width
from fireiron.inspect.graphs import ArrayRow, array_rows
from fireiron.kernel_graph.program import GraphProgram

WIDTH: Final = 900
_LEFT: Final = (16.0, 168.0)
_KERNELS: Final = (236.0, 420.0)
_RIGHT: Final = (762.0, 122.0)
_BOX: Final = "#eaeef2"
_LINE: Final = "#8c959f"
_ROW: Final = 36.0


def graph_flow(program: GraphProgram) -> Picture:
    """Draw the picture, from left to right: arguments, kernels in order, workspaces, results."""
    graph = program.graph
    rows = array_rows(graph)
    hidden = [row for row in rows if row.writer and (row.role == "workspace" or row.readers)]
    color = dict(zip((row.name for row in hidden), colors.distinct(len(hidden)), strict=True))
    page = Page()
    page.heading(f"Kernels of {graph.name} on {program.architecture}")
    places, below = _kernels(page, program, rows)
    _lines(page, hidden, places, color)
    below = page.legend(16, below + 12, [(color[row.name], f"{row.name}: {row.shape} {row.dtype}") for row in hidden]) if hidden else below
    dashed = any(launch.dependent for launch in program.launches)
    text = "Dashed: starts before the previous kernel ends (programmatic dependent launch)." if dashed else ""
    below = page.paragraph(16, below + 12, text) if text else below
    return page.picture("flow", f"Kernels of {graph.name}", WIDTH, below + 8)


def _kernels(page: Page, program: GraphProgram, rows: tuple[ArrayRow, ...]) -> tuple[dict[str, tuple[float, float]], float]:
    """Draw kernels with their arguments and results; return the upper and the lower edge of each, and the lower edge of all."""
    x, width = _KERNELS
    places: dict[str, tuple[float, float]] = {}
    boxes: dict[str, float] = {}
    y = 46.0
    for name, part in program.kernels.items():
        given = [row for row in rows if row.role in ("argument", "number") and name in row.readers]
        results = [row for row in rows if row.role == "result" and row.writer == name]
        new = [row for row in given if row.name not in boxes]
        height = max(58.0, _ROW * max(len(new), len(results)))
        dependent = any(launch.dependent for launch in program.launches if launch.program is part or launch.name == name)
        page.add(Rect(x, y, width, height - 8, "#ffffff", "#57606a", 1.2, 5.0))
        if dependent:
            page.add(Line(((x, y - 5), (x + width, y - 5)), "#57606a", 1.2, True))
        page.text(x + 12, y + 16, name, 11, bold=True)
        page.text(
            x + 12, y + 31, str(part.spec), round(min(9.5, 9.5 * (width - 24) / text_width(str(part.spec), 9.5, mono=True)), 1), mono=True
        )
        page.text(x + 12, y + 44, f"{part.grown.grid} blocks of {part.grown.threads} threads", 9, color=PALE)
        places[name] = (y, y + height - 8)
        for number, row in enumerate(new):
            boxes[row.name] = y + number * _ROW
            _array(page, row, _LEFT[0], boxes[row.name], _LEFT[1])
        for row in given:
            start = boxes[row.name] + 14
            end = min(max(start, y + 10), y + height - 18)
            page.add(Line(((sum(_LEFT), start), (x - 22, start), (x, end)), _LINE, 1.0, arrow=True))
        for number, row in enumerate(results):
            top = y + number * _ROW
            page.add(Line(((x + width, top + 14), (_RIGHT[0], top + 14)), _LINE, 1.2, arrow=True))
            _array(page, row, _RIGHT[0], top, _RIGHT[1])
        y += height + 14
    return places, y


def _array(page: Page, row: ArrayRow, x: float, y: float, width: float) -> None:
    page.add(Rect(x, y, width, 28, _BOX, "#57606a", 1.0, 4.0))
    page.text(x + 8, y + 12, row.name, 10, bold=True)
    text = f"{row.shape} {row.dtype}".strip()
    page.text(x + 8, y + 23, text, round(min(8.5, 8.5 * (width - 12) / text_width(text, 8.5, mono=True)), 1), mono=True)


def _lines(page: Page, rows: list[ArrayRow], places: Mapping[str, tuple[float, float]], color: Mapping[str, str]) -> None:
    """Draw the lines of workspaces to the right of the kernels, each in its own lane."""
    x, room = sum(_KERNELS), _RIGHT[0] - sum(_KERNELS) - 24
    for lane, row in enumerate(rows):
        at = x + 10 + lane * min(14.0, room / len(rows))
        for reader in row.readers:
            start, end = places[row.writer][1] - 6 - lane % 8 * 4, places[reader][0] + 14 + lane % 8 * 4
            page.add(Line(((x, start), (at, start), (at, end), (x, end)), color[row.name], 1.6, arrow=True))


__all__ = ["graph_flow"]
