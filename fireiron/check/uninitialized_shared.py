"""Shared memory that is read before anything was written to it: no load and no other write precedes the read in the program.

The check follows the program of a block, with a mark for each element of shared memory, whichever threads write and read: the race check
requires that they are ordered as the program says. A loop in which nothing orders threads is taken as a whole, its writes first. Any
other loop is followed for the values of its variable with which addresses or conditions differ, once round where they repeat, and for its
last: nothing is lost on the path. What is written in a loop that may have no iteration counts inside it alone. Consumers of a ring find
what its producer writes there in all iterations: the race check requires that they wait for it, too.

Conditions on threads and loops are evaluated; those on blocks, sizes and data count as true, for writes and for reads; and a write of
which the place is not known counts as one to the whole buffer.

A copy of a buffer (a stage, or that of a unit) in which all elements were written is *whole*: nothing has to be asked about it any more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import numpy as np

from fireiron.check.access_trace import AccessTrace, Use, fills_rings
from fireiron.check.finding import Finding
from fireiron.ir import (
    Access,
    Acquire,
    Barrier,
    Buffer,
    ClaimTile,
    ClusterBarrier,
    Comment,
    Commit,
    Exec,
    ExitIfDone,
    Fence,
    For,
    GridDepControl,
    IfAnyLane,
    Let,
    Release,
    Roles,
    Stmt,
    Wait,
    execs,
    statements,
    unknown,
)
from fireiron.values.expr import FALSE, ZERO, Expr, all_of, conjuncts, constant

Array = Any

ORDERING = (Barrier, Wait, Acquire, Release, ClusterBarrier, ClaimTile)
"""What orders threads."""

FOLLOWED = 1024
"""Most values of a loop that are followed."""

POINTS = 1 << 20
"""Most elements that are compared together; the location of more is unknown."""


def check_uninitialized_shared(access_trace: AccessTrace) -> tuple[Finding, ...]:
    """An error for each statement that reads an element of shared memory to which nothing was written."""
    if not any(buffer.memory.of_block for buffer in access_trace.kernel.buffers):
        return ()
    path = _Path(access_trace)
    path.follow(access_trace.kernel.body, {})
    return tuple(path.findings.values())


@attrs.frozen(eq=False)
class _Work:
    """A statement that touches shared memory, with the loops around it that are taken as a whole."""

    statement: Exec
    inner: tuple[For, ...] = ()


@attrs.frozen(eq=False)
class _Touch:
    """Elements inside one copy of a buffer, `(*frame, elements)`, and which of them are touched; the frame and its values of loops."""

    elements: Array
    mask: Array
    axes: tuple[tuple[str, Array], ...]


class _Marks:
    """The elements of a buffer that were written, `(copies, elements)`; and the copies in which all were."""

    def __init__(self, buffer: Buffer) -> None:
        self.copies = buffer.tensor.copies
        elements = constant(buffer.elements) or 1
        sizes = [constant(size) for size in buffer.tensor.shape]
        self.needed = math.prod(size or 0 for size in sizes) or elements
        self.written = np.zeros((self.copies, elements), dtype=bool)
        self.whole = np.zeros(self.copies, dtype=bool)

    def copied(self) -> _Marks:
        """The same marks, to come back to."""
        other = object.__new__(_Marks)
        other.copies, other.needed = self.copies, self.needed
        other.written, other.whole = self.written.copy(), self.whole.copy()
        return other

    @property
    def all_whole(self) -> bool:
        """Whether all elements of all copies were written."""
        return bool(self.whole.all())

    def write(self, copies: Array, elements: Array) -> None:
        """Mark elements of copies."""
        self.written[copies, elements] = True
        for copy in np.flatnonzero(~self.whole):
            # Coordinates have different places: with as many marks as the tensor has elements, all of these are marked, and no gap between.
            self.whole[copy] = np.count_nonzero(self.written[copy]) >= self.needed

    def write_all(self) -> None:
        """Mark everything."""
        self.written[:] = True
        self.whole[:] = True


class _Path:
    """A block on its path; `marks` says per buffer which elements were written."""

    def __init__(self, access_trace: AccessTrace) -> None:
        self.access_trace = access_trace
        self.thread = access_trace.kernel.thread.name
        self.shared = {buffer.name: buffer for buffer in access_trace.kernel.buffers if buffer.memory.of_block}
        self.marks = {name: _Marks(buffer) for name, buffer in self.shared.items()}
        self.producing = False
        self.findings: dict[tuple[int, str], Finding] = {}
        self.touches: dict[tuple[Any, ...], _Touch | None] = {}
        self.relied: dict[int, tuple[frozenset[str], bool]] = {}
        self.roots: dict[int, frozenset[str]] = {}
        self.works: dict[int, list[_Work]] = {}

    def follow(self, body: Sequence[Stmt], loops: Mapping[str, int]) -> None:
        """Follow a list, at values of the loops around it."""
        for statement in body:
            match statement:
                case For():
                    self._loop(statement, loops)
                case Exec():
                    self._perform((_Work(statement),), loops)
                case IfAnyLane():
                    before = self._saved()
                    self.follow(statement.body, loops)
                    self.marks = before
                case Roles():
                    self._roles(statement, loops)
                case (
                    Let()
                    | Comment()
                    | Barrier()
                    | ClusterBarrier()
                    | Commit()
                    | Wait()
                    | Fence()
                    | Acquire()
                    | Release()
                    | GridDepControl()
                ):
                    pass
                case ClaimTile() | ExitIfDone():
                    pass
                case _:
                    raise unknown(statement, "the check of shared memory")

    def _roles(self, statement: Roles, loops: Mapping[str, int]) -> None:
        for role in sorted(statement.roles, key=lambda role: not fills_rings(role)):
            self.producing = fills_rings(role)
            self.follow(role.body, loops)
        self.producing = False

    def _saved(self) -> dict[str, _Marks]:
        return {name: marks.copied() for name, marks in self.marks.items()}

    # ------------------------------------------------------------------------------------------ loops

    def _loop(self, loop: For, loops: Mapping[str, int]) -> None:
        if self._is_whole(loop):
            return
        roots, ordered = self._reliance(loop)
        count = self._count(loop, loops)
        if count == 0:
            return
        # Without an iteration of its loop the producer of a ring leaves out what its consumers leave out, too.
        before = self._saved() if count is None and loop.extent.low < 1 else None
        if not ordered and count is not None:
            self._perform(self._inside(loop), loops)
        else:
            values = loop.values(max(loop.extent.low, loop.first + 2 * loop.step) if count is None else count)
            for value in self._few(values, loop, loop.var.name in roots):
                if self._is_whole(loop):
                    break
                self.follow(loop.body, {**loops, loop.var.name: value})
        if before is not None and not self.producing:
            self.marks = before

    def _inside(self, loop: For) -> list[_Work]:
        if id(loop) not in self.works:
            inside = execs(loop.body)
            self.works[id(loop)] = [_Work(statement, (loop, *inner)) for statement, inner in inside if self._touching(statement)]
        return self.works[id(loop)]

    def _touching(self, statement: Exec) -> list[Access]:
        return [access for access in statement.accesses if access.buffer in self.shared]

    def _count(self, loop: For, loops: Mapping[str, int]) -> int | None:
        if self.access_trace.roots(loop.extent) <= frozenset(loops):
            return int(self.access_trace.frame([], loops).value(loop.extent))
        return None

    def _is_whole(self, loop: For) -> bool:
        """Whether all that a loop touches was written."""
        return all(self.marks[access.buffer].all_whole for work in self._inside(loop) for access in self._touching(work.statement))

    def _few(self, values: Sequence[int], loop: For, matters: bool) -> Sequence[int]:
        """The values of a loop that are followed: once round its period, if nothing but the copies of buffers depends on its variable."""
        inside = [self._roots_inside(work.statement, access) for work in self._inside(loop) for access in self._touching(work.statement)]
        alone = loop.period and not any(loop.var.name in roots for roots in inside)
        once = (loop.period if alone else FOLLOWED) + 1 if matters else 1
        return values if len(values) <= once else [*values[:once], values[-1]] if matters else values[:1]

    def _reliance(self, loop: For) -> tuple[frozenset[str], bool]:
        """The names on which depends what is touched in a loop; and whether anything orders threads there."""
        if id(loop) not in self.relied:
            inside = list(statements(loop.body))
            touching = [self._roots(work.statement, access) for work in self._inside(loop) for access in self._touching(work.statement)]
            lengths = self.access_trace.needs(nested.extent for nested in inside if isinstance(nested, For))
            ordered = any(isinstance(statement, ORDERING) for statement in inside)
            self.relied[id(loop)] = lengths.union(*touching), ordered
        return self.relied[id(loop)]

    # ------------------------------------------------------------------------------------------ statements

    def _perform(self, works: Sequence[_Work], loops: Mapping[str, int]) -> None:
        """Some work between two events that order threads: what one statement reads of its own output, then all writes, then all reads."""
        touching = [(work, access) for work in works for access in self._touching(work.statement)]
        touching = [(work, access) for work, access in touching if not self.marks[access.buffer].all_whole]
        for work, access in touching:
            accumulate = work.statement.accumulate
            if access.write and accumulate != FALSE and len(works) == 1 and self.access_trace.roots(accumulate) <= {*loops, self.thread}:
                self._read(work, access, loops, (work.statement.performed, accumulate))
        for work, access in touching:
            if access.write:
                self._write(work, access, loops)
        for work, access in touching:
            if not access.write:
                self._read(work, access, loops, (work.statement.performed,))

    def _write(self, work: _Work, access: Access, loops: Mapping[str, int]) -> None:
        marks = self.marks[access.buffer]
        if self._all_whole(access, loops):
            return
        touch = self._touch(work, access, loops, (work.statement.performed,))
        if touch is None:
            marks.write_all()
        else:
            marks.write(*self._places(touch, access, loops))

    def _read(self, work: _Work, access: Access, loops: Mapping[str, int], conditions: tuple[Expr, ...]) -> None:
        statement, marks = work.statement, self.marks[access.buffer]
        if (id(statement), access.buffer) in self.findings or self._all_whole(access, loops):
            return
        touch = self._touch(work, access, loops, conditions)
        if touch is None:
            return
        copies, elements = self._places(touch, access, loops)
        unwritten = ~marks.written[copies, elements]
        if unwritten.any():
            missing = sorted(set((copies * marks.written.shape[1] + elements)[unwritten].tolist()))
            many = f" and {len(missing) - 1} others" if len(missing) > 1 else ""
            text = f"{statement.spec} reads {access.buffer}[{missing[0]}]{many}, shared memory that nothing was put into before"
            finding = Finding("shared", "error", access.buffer, text, access.origin or statement.origin)
            self.findings[id(statement), access.buffer] = finding

    def _all_whole(self, access: Access, loops: Mapping[str, int]) -> bool:
        """Whether all copies that an access may touch are whole, as far as the loops around it decide which these are."""
        marks = self.marks[access.buffer]
        if marks.all_whole or not marks.whole.any() or not self.access_trace.roots(access.copy) <= frozenset(loops):
            return marks.all_whole
        copy = int(self.access_trace.frame([], loops).value(access.copy))
        return 0 <= copy < marks.copies and bool(marks.whole[copy])

    def _places(self, touch: _Touch, access: Access, loops: Mapping[str, int]) -> tuple[Array, Array]:
        """The copies and the elements in them that are touched, as two lists; the bounds check reports those outside of the buffer."""
        frame, marks = self.access_trace.frame(touch.axes, loops), self.marks[access.buffer]
        copies = np.broadcast_to(frame.full(access.copy)[..., None], touch.mask.shape)[touch.mask]
        elements = touch.elements[touch.mask]
        inside = (elements >= 0) & (elements < marks.written.shape[1]) & (copies >= 0) & (copies < marks.copies)
        return copies[inside], elements[inside]

    def _roots(self, statement: Exec, access: Access) -> frozenset[str]:
        """What decides which elements an access touches, and in which copy."""
        return self._roots_inside(statement, access) | self.access_trace.roots(access.copy)

    def _roots_inside(self, statement: Exec, access: Access) -> frozenset[str]:
        """What decides which elements of a copy an access touches: that of the copy changes from iteration to iteration, often alone."""
        if id(access) not in self.roots:
            pieces = [parts for other, parts in zip(statement.accesses, statement.pieces, strict=False) if other is access]
            tested = {piece.condition for parts in pieces for piece in parts}
            accumulate = (statement.accumulate,) if access.write else ()
            bounds = [bound for bound in access.bounds if bound is not None]
            self.roots[id(access)] = self.access_trace.needs((*access.base, *bounds, statement.performed, *accumulate, *tested))
        return self.roots[id(access)]

    def _touch(self, work: _Work, access: Access, loops: Mapping[str, int], conditions: tuple[Expr, ...]) -> _Touch | None:
        """What an access touches, at all values of the inner loops; None where that depends on more than threads and loops."""
        roots = self._roots_inside(work.statement, access)
        key = (id(access), len(conditions), *((name, value) for name, value in loops.items() if name in roots))
        if key not in self.touches:
            self.touches[key] = self._enumerated(work, access, loops, conditions)
        return self.touches[key]

    def _enumerated(self, work: _Work, access: Access, loops: Mapping[str, int], conditions: tuple[Expr, ...]) -> _Touch | None:
        access_trace, statement = self.access_trace, work.statement
        needed = self._roots(statement, access)
        inner = access_trace.loop_axes(work.inner, needed)
        if inner is None:
            return None
        # The first of the threads that perform a statement together stands for all of them.
        together = (statement.spec.level.threads or len(access_trace.threads)) if statement.collective else 1
        threads = access_trace.threads[::together] if self.thread in needed else access_trace.threads[:1]
        axes: list[tuple[str, Array]] = [(self.thread, threads), *inner]
        frame = access_trace.frame(axes, loops)
        known = frozenset((self.thread, *loops, *(name for name, _ in inner)))
        if not access_trace.needs((*access.base, access.copy)) <= known or math.prod(frame.shape) * access.count > POINTS:
            return None
        parts = [part for condition in conditions for part in conjuncts(condition) if access_trace.roots(part) <= known]
        mask = access_trace.inside(Use(statement, (), access), frame, known) & (frame.full(all_of(parts)) != 0)[..., None]
        return _Touch(access_trace.addresses(frame, attrs.evolve(access, copy=ZERO)), mask, tuple(axes))


__all__ = ["check_uninitialized_shared"]
