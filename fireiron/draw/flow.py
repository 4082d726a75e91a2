"""The picture `flow`: how operands and temporaries connect the steps of a definition, one box per step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from fireiron.compiler import Program
from fireiron.draw import colors
from fireiron.draw.picture import Page, Picture
from fireiron.draw.shapes import PALE, Line, Rect, text_width, wrapped
from fireiron.frozen import frozen
from fireiron.spec import Spec
from fireiron.specs.fused_definition import FusedDefinition
from fireiron.specs.steps import Step, shown

WIDTH: Final = 900
_LEFT: Final = (16.0, 168.0)
_STEPS: Final = (236.0, 420.0)
_RIGHT: Final = (762.0, 122.0)
_LETTERS: Final = 66
_INPUT: Final = "#eaeef2"
_NESTED: Final = "#d8eaff"
_PARTS: Final = {"init": "#f6f8fa", "body": "#eef6ff", "final": "#f6f8fa"}


@frozen
class Edge:
    """A temporary from one step to another, by their positions; `carried` if the reader is in the next iteration of the loop."""

    name: str
    writer: int
    reader: int
    carried: bool = False


def steps_of(spec: Spec) -> tuple[Step, ...]:
    """Return the steps of a spec's definition; one per formula if it has no steps."""
    definition = spec.definition
    if isinstance(definition, FusedDefinition):
        return definition.steps
    return tuple(Step(spec.kind.title, formula) for formula in definition.formulas)


def edges(steps: Sequence[Step], given: Sequence[str]) -> tuple[Edge, ...]:
    """Return the temporaries between steps; `given` are the operands."""
    result = []
    for reader, step in enumerate(steps):
        for name in (one for one in step.reads if one not in given):
            writers = [place for place, one in enumerate(steps) if one.formula.output == name]
            before = [place for place in writers if place < reader]
            result += [Edge(name, before[-1], reader)] if before else []
            in_loop = next(
                (inside for loop in _loops_of(step) if (inside := [one for one in writers if loop in _loops_of(steps[one])])), []
            )
            if in_loop and not any(place < reader for place in in_loop):
                result.append(Edge(name, in_loop[-1], reader, carried=True))
    return tuple(result)


def _loops_of(step: Step) -> list[tuple[str, ...]]:
    """Return the loops around a step, from the innermost one; a loop is its part, and the loops inside of that part that contain it."""
    first = 0 if step.part == "body" else 1
    return [(step.part, *step.nest[:depth]) for depth in range(len(step.nest), first - 1, -1)]


def flow(program: Program) -> Picture:
    """Draw the picture, from left to right: inputs, steps, temporaries, outputs."""
    spec = program.spec
    steps = steps_of(spec)
    given = tuple(spec.operands)
    temporaries = edges(steps, given)
    color = dict(
        zip(dict.fromkeys(edge.name for edge in temporaries), colors.distinct(len({edge.name for edge in temporaries})), strict=True)
    )
    page = Page()
    page.heading(f"Data flow: {spec}")
    places, below = _boxes(page, spec, steps, color)
    below = max(below, _inputs(page, spec, steps, places))
    _outputs(page, spec, steps, places)
    _lines(page, temporaries, places, color)
    below = page.legend(16, below + 12, [(color[name], _label(name, steps)) for name in color]) if color else below
    text = "Dashed: read in the next iteration of the loop." if any(one.carried for one in temporaries) else ""
    below = page.paragraph(16, below + 12, text) if text else below
    return page.picture("flow", f"Data flow: {spec}", WIDTH, below + 8)


def _boxes(page: Page, spec: Spec, steps: Sequence[Step], color: Mapping[str, str]) -> tuple[list[tuple[float, float]], float]:
    """Draw the steps; return the upper and the lower edge of each, and the lower edge of all."""
    x, width = _STEPS
    y, box = 46.0, tuple[str, ...]()
    places = []
    heights = [34.0 + 13 * (len(wrapped(shown(step.formula), _LETTERS)) - 1) for step in steps]
    for number, step in enumerate(steps):
        if _box(step) != box and _title(spec, step):
            before, box = box, _box(step)
            count = next((place for place, other in enumerate(steps[number:]) if _box(other) != box), len(steps) - number)
            size = sum(height + 10 for height in heights[number : number + count]) + 22
            page.add(Rect(x - 12, y, width + 110, size, _NESTED if step.nest else _PARTS.get(step.part, "none"), radius=6.0))
            again = before[:1] == box[:1] and len(before) > len(box)
            page.text(x - 4, y + 14, _title(spec, step) + (f", after the loop over {before[len(box)]}" if again else ""), 10, color=PALE)
            y += 22
        page.add(Rect(x, y, width, heights[number], "#ffffff", "#57606a", 1.2, 5.0))
        if step.formula.output in color:
            page.add(Rect(x, y, 6, heights[number], color[step.formula.output], radius=2.0))
        page.text(x + 12, y + 13, step.name, 10, bold=True)
        for line, text in enumerate(wrapped(shown(step.formula), _LETTERS)):
            page.text(x + 12, y + 27 + 13 * line, text, 9.5, mono=True)
        places.append((y, y + heights[number]))
        y += heights[number] + 10
        if number + 1 < len(steps) and _box(steps[number + 1]) != _box(step):
            y += 8
    return places, y


def _box(step: Step) -> tuple[str, ...]:
    """Return the part of a step, and the loops around it inside of that part."""
    return (step.part, *step.nest)


def _title(spec: Spec, step: Step) -> str:
    """Return the title of a step's part, or of the nested loop around it; empty without a loop."""
    definition = spec.definition
    loops = definition.looped if isinstance(definition, FusedDefinition) else ()
    if not loops:
        return ""
    titles = {"init": "once, before the loop", "body": f"for each part of {', '.join(loops)}", "final": "once, after the loop"}
    inner = [f"for each part of {loop}" for loop in reversed(step.nest)]
    return ", ".join((*inner, titles.get(step.part, ""))) if inner else titles.get(step.part, "")


def _inputs(page: Page, spec: Spec, steps: Sequence[Step], places: Sequence[tuple[float, float]]) -> float:
    """Draw each input next to its first reader, with lines to all readers; return the lower edge."""
    x, width = _LEFT
    shown = [name for name, view in spec.operands.items() if not view.memory.is_coordinate]
    readers = {name: [place for place, step in enumerate(steps) if name in step.reads_others] for name in shown}
    y = 46.0
    for name, positions in sorted(readers.items(), key=lambda pair: pair[1][:1] or [len(steps)]):
        if not positions:
            continue
        top, bottom = places[positions[0]]
        y = max(y, (top + bottom) / 2 - 14)
        _operand(page, spec, name, x, y, width)
        for place in positions:
            end = sum(places[place]) / 2
            page.add(Line(((x + width, y + 14), (_STEPS[0] - 22, y + 14), (_STEPS[0], end)), "#8c959f", 1.0, arrow=True))
        y += 36
    return y


def _outputs(page: Page, spec: Spec, steps: Sequence[Step], places: Sequence[tuple[float, float]]) -> None:
    """Draw each output next to its last writer."""
    x, width = _RIGHT
    for name in spec.operands:
        writers = [place for place, step in enumerate(steps) if step.formula.output == name]
        if writers:
            y = sum(places[writers[-1]]) / 2
            page.add(Line(((sum(_STEPS), y), (x, y)), "#8c959f", 1.2, arrow=True))
            _operand(page, spec, name, x, y - 14, width)


def _operand(page: Page, spec: Spec, name: str, x: float, y: float, width: float) -> None:
    """Draw the box of an operand."""
    view = spec.operands[name]
    page.add(Rect(x, y, width, 28, _INPUT, "#57606a", 1.0, 4.0))
    page.text(x + 8, y + 12, name, 10, bold=True)
    text = f"{'×'.join(map(str, view.shape))} {view.dtype.name}".strip()
    page.text(x + 8, y + 23, text, round(min(8.5, 8.5 * (width - 12) / text_width(text, 8.5, mono=True)), 1), mono=True)


def _lines(page: Page, temporaries: Sequence[Edge], places: Sequence[tuple[float, float]], color: Mapping[str, str]) -> None:
    """Draw the lines of temporaries, each in a lane that is free between its ends."""
    occupied: list[list[tuple[float, float]]] = []
    routes = []
    for edge in sorted(temporaries, key=lambda edge: abs(edge.writer - edge.reader)):
        start, end = places[edge.writer][1] - 8, places[edge.reader][0] + 9
        low, high = min(start, end), max(start, end)
        lane = next((number for number, spans in enumerate(occupied) if all(high < a or b < low for a, b in spans)), len(occupied))
        if lane == len(occupied):
            occupied.append([])
        occupied[lane].append((low, high))
        routes.append((edge, lane, start, end))
    x, room = sum(_STEPS), _RIGHT[0] - sum(_STEPS) - 24
    for edge, lane, start, end in routes:
        at = x + 10 + lane * min(14.0, room / max(len(occupied), 1))
        page.add(Line(((x, start), (at, start), (at, end), (x, end)), color[edge.name], 1.6, edge.carried, arrow=True))


def _label(name: str, steps: Sequence[Step]) -> str:
    """Return the text of a temporary with its dimensions."""
    return str(next(step.formula.target for step in steps if step.formula.output == name))


__all__ = ["Edge", "edges", "flow", "steps_of"]
