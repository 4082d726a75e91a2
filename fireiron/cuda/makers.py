"""Map statements to the tree steps that created them.

The pass `walk` records the step of a statement. For a statement that another pass inserts, these are the steps of related statements: a
barrier belongs to the steps that it orders, an mbarrier to those whose buffers it guards, a comment to the next statement, and a commit to
the previous one. A loop belongs to the step that created it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fireiron.cuda.outlining import OutlinedCall
from fireiron.cuda.reductions import LaneReduction
from fireiron.ir import (
    Acquire,
    Barrier,
    ClaimTile,
    Comment,
    Commit,
    Dependence,
    Exec,
    Fence,
    For,
    Kernel,
    Let,
    Release,
    Roles,
    StepMarker,
    Stmt,
    Wait,
    execs,
)
from fireiron.ir.text import Path

Steps = tuple[Path, ...]
"""Steps of a tree, each once."""


class Makers:
    """The steps that created the statements of one kernel."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel

    def of_list(self, body: Sequence[Stmt], start: int, stop: int) -> Steps:
        """The steps of the statements `body[start:stop]`; for a single comment or commit, those of the statement that it belongs to."""
        steps = _unique(step for stmt in body[start:stop] for step in self.of(stmt))
        if steps or stop - start != 1:
            return steps
        neighbors: Iterable[Stmt] = ()
        if isinstance(body[start], (Comment, StepMarker)):
            neighbors = body[stop:]
        elif isinstance(body[start], Commit):
            neighbors = reversed(body[:start])
        return next((steps for stmt in neighbors if (steps := self.of(stmt))), ())

    def of(self, statement: Stmt) -> Steps:
        """The steps of a statement; empty if it belongs to the whole kernel."""
        match statement:
            case Exec(path=path):
                return () if path is None else (path,)
            case Let(var=var) | For(var=var) if var.name in self.kernel.makers:
                return (self.kernel.makers[var.name],)
            case Barrier(orders=orders) | Wait(orders=orders) | Fence(orders=orders):
                return _ordered(orders)
            case Acquire(ring=ring) | Release(ring=ring) | ClaimTile(ring=ring):
                return self.of_ring(ring)
            case LaneReduction(body=body) | OutlinedCall(body=body):
                return _unique(stmt.path for stmt, _ in execs(body) if stmt.path is not None)
            case Roles():
                return ()
        return _common(one.path for one, _ in execs((statement,)) if one.path is not None)

    def of_buffer(self, name: str) -> Steps:
        """The step that created a buffer; none for a parameter."""
        return (self.kernel.makers[name],) if name in self.kernel.makers else ()

    def of_ring(self, name: str) -> Steps:
        """The steps that fill a ring."""
        filled = _unique(one.path for one, _ in execs(self.kernel.body) if one.ring == name and one.path is not None)
        return filled or _unique(step for buffer in self.kernel.ring(name).buffers for step in self.of_buffer(buffer))


def _ordered(orders: Iterable[Dependence]) -> Steps:
    both = (one for order in orders for one in (order.before, order.after))
    return _unique(one.path for one in both if one is not None and one.path is not None)


def _unique(steps: Iterable[Path]) -> Steps:
    return tuple(dict.fromkeys(steps))


def _common(paths: Iterable[Path]) -> Steps:
    """The innermost step that contains all paths."""
    every_path = list(paths)
    if not every_path:
        return ()
    length = 0
    while all(len(one) > length and one[length] == every_path[0][length] for one in every_path):
        length += 1
    return (every_path[0][:length],)


__all__ = ["Makers", "Steps"]
