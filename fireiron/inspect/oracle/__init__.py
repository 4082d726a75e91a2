"""Events as an oracle: every order that the events of a program of tasks ask for holds in its kernel's happens-before.

The event program is derived from names and partitions alone, the kernel by the passes of all strategies. Each copy and call of the one is
found in the other by the launch that it is of, and each turn by its number. Then the agents of the race check run the kernel's statements,
and each statement must know of those that its launch waits for (Cypress, section 4.1).

What it does not see: orders that no event asks for, lanes of one warp where shared memory is not involved, and launches whose turns are not
those of the event program (`Account.left_out`).
"""

from __future__ import annotations

import attrs

from fireiron.check import Finding
from fireiron.compiler import Program
from fireiron.inspect.oracle.comparison import Account, Comparison
from fireiron.ir import Kernel
from fireiron.language.tree import Node
from fireiron.tasks.allocate import allocated
from fireiron.tasks.events import EventProgram
from fireiron.tasks.passes import events_of
from fireiron.tasks.step import TaskProgram
from fireiron.values.expr import Var

SIZE = 200
"""Least elements of a run-time dimension, so that loops have several iterations."""


def check_events(program: Program, kernel: Kernel | None = None, events: EventProgram | None = None) -> tuple[Finding, ...]:
    """An error for each order of events that the kernel does not keep; nothing for strategies that are no program of tasks.

    Args: another `kernel` than the program's, or other `events`, for tests of the oracle itself.

    Raises: the program's own errors where it has no kernel.
    """
    return account(program, kernel, events).findings


def account(program: Program, kernel: Kernel | None = None, events: EventProgram | None = None) -> Account:
    """The findings of `check_events`, and what they are about."""
    task = _task(program.tree)
    if task is None:
        return Account()
    depth, node = task
    kernel = program.lowered if kernel is None else kernel
    sizes = {one.name: _size(one) for one in kernel.symbols}
    events = _events(node, kernel) if events is None else events
    return Comparison(node, depth, kernel, events, sizes).account()


def _task(tree: Node) -> tuple[int, Node] | None:
    """The node that is a program of tasks, and how many names lead to it."""
    return next(((len(path), node) for path, node in tree.paths() if isinstance(node.step, TaskProgram)), None)


def _events(node: Node, kernel: Kernel) -> EventProgram:
    """The event program, in which no two tensors share bytes: that is the kernel's own affair, and the race check's."""
    assert isinstance(node.step, TaskProgram)
    mapping = node.step.mapped
    return allocated(events_of(node.step.program, mapping, node.spec, until="eliminate"), attrs.evolve(mapping, max_shared_bytes=0))


def _size(symbol: Var) -> int:
    """A size known at run time only, for which loops have a few turns."""
    step = max(symbol.multiple_of, 1)
    return max(min(-(-SIZE // step) * step, symbol.high), symbol.low)


__all__ = ["Account", "account", "check_events"]
