"""Check a kernel against the events of its task program: its happens-before relation must contain each order that the events require.

The event program is derived from names and partitions only. The kernel is derived by the passes that all strategies use. Each copy and call
of the event program is matched to statements of the kernel by its launch, and its iterations by their numbers. Then the agents of the race
check execute the kernel's statements. Each statement must be ordered after those for which its launch waits (Cypress, section 4.1).

Limits: the oracle does not check orders that no event requires, the order of a warp's lanes without shared memory, and launches whose
iterations differ from those of the event program (`EventReport.omitted`).
"""

from __future__ import annotations

import attrs

from fireiron.check import Finding
from fireiron.compiler import Program
from fireiron.inspect.oracle.comparison import Comparison, EventReport
from fireiron.ir import Kernel
from fireiron.language.tree import Node
from fireiron.tasks.allocate import allocated
from fireiron.tasks.events import EventProgram
from fireiron.tasks.passes import events_of
from fireiron.tasks.step import TaskProgram
from fireiron.values.expr import Var

SIZE = 200
"""Minimum extent of a run-time dimension, so that loops have several iterations."""


def check_events(program: Program, kernel: Kernel | None = None, events: EventProgram | None = None) -> tuple[Finding, ...]:
    """Return an error for each order of events that the kernel does not guarantee. Return none if the strategy is not a task program.

    `kernel` and `events` replace those of the program, for tests of the oracle.

    Raises: the errors of the program if it has no kernel.
    """
    return compare_events(program, kernel, events).findings


def compare_events(program: Program, kernel: Kernel | None = None, events: EventProgram | None = None) -> EventReport:
    """Return the findings of `check_events`, and the orders that were compared."""
    task = _task(program.tree)
    if task is None:
        return EventReport()
    depth, node = task
    kernel = program.lowered if kernel is None else kernel
    sizes = {symbol.name: _size(symbol) for symbol in kernel.symbols}
    events = _events(node, kernel) if events is None else events
    return Comparison(node, depth, kernel, events, sizes).compare_events()


def _task(tree: Node) -> tuple[int, Node] | None:
    """Return the node of the task program and the length of its path."""
    return next(((len(path), node) for path, node in tree.paths() if isinstance(node.step, TaskProgram)), None)


def _events(node: Node, kernel: Kernel) -> EventProgram:
    """Return the event program without aliasing of tensors in shared memory, which the race check covers."""
    assert isinstance(node.step, TaskProgram)
    mapping = node.step.mapped
    return allocated(events_of(node.step.program, mapping, node.spec, until="eliminate"), attrs.evolve(mapping, max_shared_bytes=0))


def _size(symbol: Var) -> int:
    """Return a value for a run-time size with which loops have a few iterations."""
    step = max(symbol.multiple_of, 1)
    return max(min(-(-SIZE // step) * step, symbol.high), symbol.low)


__all__ = ["EventReport", "check_events", "compare_events"]
