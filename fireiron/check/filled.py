"""Shared memory that is read before anything was put there: no load, no write stands in front of the read in the program.

The program of a block is followed, with a mark for each element of shared memory, whichever threads write and read: that they are ordered
as the program says is for the race check. A loop in which nothing orders threads is taken as a whole, its writes first. Any other one is
followed for the values of its variable with which addresses or conditions differ, once round where they repeat, and for its last: nothing
is lost on the way. What is behind a loop that may have no turn does not count on it. Those who empty a ring find what its producer puts
there in all of its turns: that they wait for them is for the race check, too.

Conditions on threads and loops are taken as they are; those on blocks, sizes and data count as true, of those who write and of those who
read; and a write of which it is not known where it goes counts as one everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import numpy as np

from fireiron.check.finding import Finding
from fireiron.check.scene import Scene, Use
from fireiron.ir import Access, Acquire, Barrier, ClusterBarrier, Exec, For, Release, Roles, Stmt, Wait, execs, statements
from fireiron.ir.tickets import NextTile
from fireiron.values.expr import FALSE, Expr, all_of, conjuncts, constant

Array = Any

ORDERING = (Barrier, Wait, Acquire, Release, ClusterBarrier, NextTile)
"""What orders threads."""

FOLLOWED = 64
"""Values of a loop that are followed at most."""

POINTS = 1 << 20
"""Elements that are looked at together at most; of more it is not known where they lie."""


def check_filled(scene: Scene) -> tuple[Finding, ...]:
    """An error for each statement that reads an element of shared memory which nothing was put into."""
    if not any(buffer.memory.of_block for buffer in scene.kernel.buffers):
        return ()
    way = _Way(scene)
    way.follow(scene.kernel.body, {})
    return tuple(way.findings.values())


@attrs.frozen(eq=False)
class _Work:
    """A statement that touches shared memory, with the loops around it that are taken as a whole."""

    statement: Exec
    inner: tuple[For, ...] = ()


class _Way:
    """A block on its way; `put` says per buffer which elements have been put something into."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.thread = scene.kernel.thread.name
        self.shared = {one.name: one for one in scene.kernel.buffers if one.memory.of_block}
        self.put = {name: np.zeros(constant(one.total) or 1, dtype=bool) for name, one in self.shared.items()}
        self.producing = False
        self.findings: dict[tuple[int, str], Finding] = {}
        self.touches: dict[tuple[Any, ...], Array | None] = {}
        self.relied: dict[int, tuple[frozenset[str], bool]] = {}
        self.roots: dict[int, frozenset[str]] = {}
        self.works: dict[int, list[_Work]] = {}

    def follow(self, body: Sequence[Stmt], loops: Mapping[str, int]) -> None:
        """Follow a list, at values of the loops around it."""
        for statement in body:
            if isinstance(statement, For):
                self._loop(statement, loops)
            elif isinstance(statement, Exec):
                self._perform((_Work(statement),), loops)
            elif isinstance(statement, Roles):
                for role in sorted(statement.roles, key=lambda one: not one.elected):
                    self.producing = role.elected
                    self.follow(role.body, loops)
                self.producing = False

    # ------------------------------------------------------------------------------------------ loops

    def _loop(self, loop: For, loops: Mapping[str, int]) -> None:
        roots, ordered = self._reliance(loop)
        if not roots:
            return
        count = self._count(loop, loops)
        # Without a turn of its loop the producer of a ring leaves out what those who empty it leave out, too.
        before = {name: marks.copy() for name, marks in self.put.items()} if count is None and loop.extent.low < 1 else None
        if not ordered and count is not None:
            self._perform(self._inside(loop), loops)
        else:
            values = loop.values(max(loop.extent.low, loop.first + 2 * loop.step) if count is None else count)
            for value in self._few(values, loop, loop.var.name in roots):
                self.follow(loop.body, {**loops, loop.var.name: value})
        if before is not None and not self.producing:
            self.put = before

    def _inside(self, loop: For) -> list[_Work]:
        if id(loop) not in self.works:
            found = [(one, inner) for one, inner in execs(loop.body) if any(access.buffer in self.shared for access in one.accesses)]
            self.works[id(loop)] = [_Work(one, (loop, *inner)) for one, inner in found]
        return self.works[id(loop)]

    def _count(self, loop: For, loops: Mapping[str, int]) -> int | None:
        if self.scene.roots(loop.extent) <= frozenset(loops):
            return int(self.scene.frame([], loops).value(loop.extent))
        return None

    @staticmethod
    def _few(values: Sequence[int], loop: For, matters: bool) -> Sequence[int]:
        once = (loop.period or FOLLOWED) + 1 if matters else 1
        return values if len(values) <= once else [*values[:once], values[-1]] if matters else values[:1]

    def _reliance(self, loop: For) -> tuple[frozenset[str], bool]:
        """The names on which depends what is touched in a loop, none where nothing is; and whether anything orders threads there."""
        if id(loop) not in self.relied:
            inside = list(statements(loop.body))
            works = [one for one in inside if isinstance(one, Exec)]
            touching = [self._roots(one, access) for one in works for access in one.accesses if access.buffer in self.shared]
            lengths = self.scene.needs(one.extent for one in inside if isinstance(one, For))
            roots = lengths.union({self.thread}, *touching) if touching else frozenset()
            self.relied[id(loop)] = roots, any(isinstance(one, ORDERING) for one in inside)
        return self.relied[id(loop)]

    # ------------------------------------------------------------------------------------------ statements

    def _perform(self, works: Sequence[_Work], loops: Mapping[str, int]) -> None:
        """Some work between two events that order threads: what one statement reads of its own output, then all writes, then all reads."""
        touching = [(work, access) for work in works for access in work.statement.accesses if access.buffer in self.shared]
        for work, access in touching:
            accumulate = work.statement.accumulate
            if access.write and accumulate != FALSE and len(works) == 1 and self.scene.roots(accumulate) <= {*loops, self.thread}:
                self._read(work, access, loops, (work.statement.performed, accumulate))
        for work, access in touching:
            if access.write:
                self._write(work, access, loops)
        for work, access in touching:
            if not access.write:
                self._read(work, access, loops, (work.statement.performed,))

    def _write(self, work: _Work, access: Access, loops: Mapping[str, int]) -> None:
        found = self._touched(work, access, loops, (work.statement.performed,))
        self.put[access.buffer][slice(None) if found is None else found] = True

    def _read(self, work: _Work, access: Access, loops: Mapping[str, int], conditions: tuple[Expr, ...]) -> None:
        statement = work.statement
        if (id(statement), access.buffer) in self.findings:
            return
        found = self._touched(work, access, loops, conditions)
        missing: Array = () if found is None else found[~self.put[access.buffer][found]]
        if len(missing):
            many = f" and {len(missing) - 1} others" if len(missing) > 1 else ""
            text = f"{statement.spec} reads {access.buffer}[{int(missing[0])}]{many}, shared memory that nothing was put into before"
            made = Finding("shared", "error", access.buffer, text, access.origin or statement.origin)
            self.findings[id(statement), access.buffer] = made

    def _roots(self, statement: Exec, access: Access) -> frozenset[str]:
        """What decides which elements an access touches."""
        if id(access) not in self.roots:
            pieces = [some for one, some in zip(statement.accesses, statement.pieces, strict=False) if one is access]
            tested = {piece.condition for some in pieces for piece in some}
            accumulate = (statement.accumulate,) if access.write else ()
            self.roots[id(access)] = self.scene.needs((*access.expressions(), statement.performed, *accumulate, *tested))
        return self.roots[id(access)]

    def _touched(self, work: _Work, access: Access, loops: Mapping[str, int], conditions: tuple[Expr, ...]) -> Array | None:
        """The elements that an access touches, at all values of the inner loops; None where that depends on more than threads and loops."""
        roots = self._roots(work.statement, access)
        key = (id(access), len(conditions), *((name, value) for name, value in loops.items() if name in roots))
        if key not in self.touches:
            self.touches[key] = self._elements(work, access, loops, conditions)
        return self.touches[key]

    def _elements(self, work: _Work, access: Access, loops: Mapping[str, int], conditions: tuple[Expr, ...]) -> Array | None:
        scene, statement = self.scene, work.statement
        needed = self._roots(statement, access)
        axes = scene.loop_axes(work.inner, needed)
        if axes is None:
            return None
        # What threads perform together the first of them stands for.
        together = (statement.spec.level.threads or len(scene.threads)) if statement.collective else 1
        threads = scene.threads[::together] if self.thread in needed else scene.threads[:1]
        all_axes: list[tuple[str, Array]] = [(self.thread, threads), *axes]
        frame = scene.frame(all_axes, loops)
        shape: tuple[int, ...] = frame.shape
        known = frozenset((self.thread, *loops, *(name for name, _ in axes)))
        if not scene.needs((*access.base, access.copy)) <= known or math.prod(shape) * len(access.elements()) > POINTS:
            return None
        parts = [part for condition in conditions for part in conjuncts(condition) if scene.roots(part) <= known]
        mask = scene.inside(Use(statement, (), access), frame, known) & (frame.full(all_of(parts)) != 0)[..., None]
        found = np.unique(scene.addresses(frame, access)[mask])
        return found[(found >= 0) & (found < len(self.put[access.buffer]))]  # of others the check of bounds speaks


__all__ = ["check_filled"]
