"""Number the fills of a ring before and after the producer's loop, for example in a program that begins the next iteration early. The fills
of a list are numbered in its order.

    load(0); S; for k: { load(k+1); S }; load(n); S   -->   fill 0; for k: fill k+1; fill n+1
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeGuard

import attrs

from fireiron.errors import DecompositionError
from fireiron.ir import Access, Exec, For, Ring, Stmt, edited
from fireiron.ir.asks.producer_threads import ProducerThreads
from fireiron.values.expr import Expr, as_expr, mod


def is_open(statement: Stmt, buffers: Sequence[str] | None = None) -> TypeGuard[Exec]:
    """Whether a statement is a TMA load without a ring, to one of `buffers` if they are given."""
    if not isinstance(statement, Exec) or not statement.mechanism.counted or statement.ring:
        return False
    return buffers is None or statement.accesses[1].buffer in buffers


class PeeledFills:
    """The `buffers` that the producer's loop in a list fills and that loads before or after the loop fill, too."""

    def __init__(self, body: Sequence[Stmt]) -> None:
        self.body = body
        opened = {stmt.accesses[1].buffer for stmt in body if is_open(stmt)}
        self.loop = next((stmt for stmt in body if isinstance(stmt, For) and ProducerThreads in stmt.asks and opened & _loaded(stmt)), None)
        self.buffers = opened & _loaded(self.loop) if self.loop is not None else set()

    def number(self, loop: For, names: Sequence[str], usual: Expr, first: Expr, alone: bool) -> Expr:
        """The fill number of a loop iteration in a ring of some buffers.

        Without loads outside the loop it is `usual`. Otherwise it also counts these loads, and all fills of the list in its `first` earlier
        executions.

        Raises: DecompositionError if the buffers have different numbers of fills, or the ring is not `alone`: it is shared with other
        loads, or its loop has a varying trip count.
        """
        counts = {self._counted(name) for name in names} if self._is(loop) else {(0, 0)}
        if counts == {(0, 0)}:
            return usual
        if len(counts) == 1 and alone:
            ((before, after),) = counts
            return first * (loop.extent + before + after) + loop.var + before
        raise DecompositionError(
            f"{', '.join(names)}: stages of one ring are also filled before or after loop {loop.var}",
            at=loop.origin, legal="equally many loads of each buffer outside the loop, and a constant trip count",
            hint="separate buffers for launches outside the loop: another instance of the mapping",
        )  # fmt: skip

    def _is(self, statement: Stmt) -> bool:
        """Whether a statement is the loop, possibly changed by a pass."""
        return isinstance(statement, For) and self.loop is not None and statement.var == self.loop.var

    def _counted(self, name: str) -> tuple[int, int]:
        """The number of loads that fill a buffer before the loop, and after it."""
        place = next(place for place, stmt in enumerate(self.body) if self._is(stmt))
        parts = self.body[:place], self.body[place:]
        before, after = (sum(is_open(one, (name,)) for one in part) for part in parts)
        return before, after

    def staged(self, body: Sequence[Stmt], rings: Sequence[Ring], first: Expr) -> tuple[Stmt, ...]:
        """The list after the pass: loads outside the loop have fill numbers, and their readers use the corresponding stages.

        `first` is the number of earlier executions of the list.
        """
        if self.loop is None:
            return tuple(body)
        result = list(body)
        for ring in rings:
            if self.buffers & set(ring.buffers):
                before, after = self._counted(ring.buffers[0])
                result = _numbered(result, ring, self.loop, first * (self.loop.extent + before + after) - 1)
        return tuple(result)


def _loaded(loop: For) -> set[str]:
    """The buffers that TMA loads directly in a loop."""
    return {stmt.accesses[1].buffer for stmt in loop.body if is_open(stmt)}


def _numbered(body: Sequence[Stmt], ring: Ring, loop: For, before: Expr) -> list[Stmt]:
    """A list whose loads outside a loop fill a ring in order, after the fill `before`."""
    result: list[Stmt] = []
    fills = dict.fromkeys(ring.buffers, before)
    for stmt in body:
        if isinstance(stmt, For) and stmt.var == loop.var:
            fills = {name: fill + loop.extent for name, fill in fills.items()}
            result.append(stmt)
            continue
        if is_open(stmt, ring.buffers):
            name = stmt.accesses[1].buffer
            fills[name] = fills[name] + 1
            stmt = attrs.evolve(stmt, ring=ring.name, fill_index=fills[name])
        result += _at_stages(stmt, fills, ring.stages)
    return result


def _at_stages(statement: Stmt, fills: Mapping[str, Expr], stages: int) -> tuple[Stmt, ...]:
    """A statement that uses the stages of the current fills."""

    def staged(access: Access) -> Access:
        if access.buffer not in fills:
            return access
        return attrs.evolve(access, copy=access.copy * stages + mod(fills[access.buffer], as_expr(stages)))

    return edited((statement,), lambda one: attrs.evolve(one, accesses=tuple(map(staged, one.accesses))))


__all__ = ["PeeledFills", "is_open"]
