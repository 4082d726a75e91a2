"""The lines that a kernel prints: elements of traced steps, in the form that the GPU prints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import numpy as np

from fireiron.sim.block_batch import BlockBatch
from fireiron.sim.locations import ThreadGroup, pick
from fireiron.sim.plan import Array, Environment, PlannedStatement
from fireiron.specs.meaning import perform
from fireiron.specs.steps import INDICES
from fireiron.specs.tracing import FIRST, coordinates, line_format, selection
from fireiron.values.machine import int32


@attrs.frozen(order=True)
class Line:
    """A printed line, in the order of blocks, and in each block of statements, iterations and threads."""

    block: int
    statement: int
    iteration: tuple[int, ...]
    thread: int
    text: str


def lines(
    site: PlannedStatement, values: Mapping[str, Array], result: Array, batch: BlockBatch, env: Environment, group: ThreadGroup, number: int
) -> list[Line]:
    """Return the lines of one executed statement.

    Args:
        values: the operands on one element, with axes for loops, threads and blocks, and `result` the output.
        number: the number of statements that the batch has executed.
    """
    spec, ((_, write, _),) = site.statement.spec, site.outputs
    (formula,) = spec.definition.formulas
    types: dict[str, Any] = {name: view.dtype for name, view in spec.operands.items()} | {formula.output: int32}
    chosen = perform(selection(formula), values, types, False, ranges=spec.integer_ranges)
    mask, _, _ = batch.coordinates(site, write, env, group)
    counts = (len(np.atleast_1d(value).ravel()) for value in _loops(site, env))
    shape = (1, *counts, group.threads.size, batch.width)
    selected = np.broadcast_to(_last(chosen, len(shape)) != 0, shape) & (True if mask is None else np.broadcast_to(mask, shape))
    places, first = coordinates(formula, INDICES), coordinates(formula, FIRST)
    instruction: Any = site.statement.instruction
    names = [element.tensor.removeprefix(FIRST) for element in first]
    dtype, sign = spec.operands[formula.output].dtype, instruction.sign
    form = line_format(instruction.step, instruction.tensor, dtype, len(places), names, wide="", sign=sign)
    result_lines = []
    for index in map(tuple, np.argwhere(selected)):
        numbers = [pick(_last(values[element.tensor], len(shape)), index) for element in (*places, *first)]
        value = np.broadcast_to(_last(result, len(shape)), shape)[index].item()
        block, thread = batch.block(index[-1]), int(group.threads[index[-2]])
        text = form % (*numbers[: len(places)], value, *numbers[len(places) :], block, thread)
        result_lines.append(Line(block, number, tuple(map(int, index[1:-2])), thread, text))
    return result_lines


def _loops(site: PlannedStatement, env: Environment) -> list[Any]:
    """The numbers of the iterations of each loop that is an axis."""
    return [np.arange(int(np.asarray(extent(env)).flat[0])) for _, extent in site.loops]


def _last(values: Array, rank: int) -> Array:
    """The array with the axes of loops, threads and blocks only, after one axis for the element."""
    values = np.asarray(values)
    extra = values.ndim - rank
    return values.reshape(values.shape[extra:]) if extra > 0 else values


__all__ = ["Line", "lines"]
