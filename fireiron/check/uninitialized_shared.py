"""Report reads of shared memory before any write: no load and no other write precedes the read in program order.

The check executes the program of a block with a mark for each written element of shared memory. It ignores which threads write and read,
because the race check requires that accesses happen in program order. A loop without ordering statements is executed as a whole, all its
writes first. Any other loop is followed for the values of its variable that change addresses or conditions: for one period if they repeat,
and for its last value. This suffices because marks are never removed. Writes in a loop that may have no iteration count only inside it. For
consumers of a ring, all writes of its producer count, because the race check requires that they wait for it.

Conditions on threads and loops are evaluated. Conditions on blocks, sizes and data are assumed to hold, for writes and for reads. A write
to an unknown location counts as a write to the whole buffer.

A copy of a buffer (a stage, or a unit's copy) is *complete* if all its elements were written. Reads of complete copies need no check.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import numpy as np

from fireiron.check.access_trace import AccessTrace, Use, filled_by, in_order_of_fills
from fireiron.check.finding import Finding
from fireiron.frozen import frozen
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
"""The statements that order threads."""

MAX_FOLLOWED = 1024
"""Maximum number of values of a loop that are followed."""

POINTS = 1 << 20
"""Maximum number of elements that are compared at once; if there are more, the location is unknown."""


def check_uninitialized_shared(access_trace: AccessTrace) -> tuple[Finding, ...]:
    """An error for each statement that reads an element of shared memory before any write to it."""
    if not any(buffer.memory.of_block for buffer in access_trace.kernel.buffers):
        return ()
    execution = _Execution(access_trace)
    execution.follow(access_trace.kernel.body, {})
    return tuple(execution.findings.values())


@frozen(eq=False)
class _Access:
    """A statement that accesses shared memory, with the surrounding loops that are executed as a whole."""

    statement: Exec
    inner: tuple[For, ...] = ()


@frozen(eq=False)
class _Accessed:
    """Elements within one copy of a buffer, `(*frame, elements)`, the mask of accessed ones, and the loop values of the frame."""

    elements: Array
    mask: Array
    axes: tuple[tuple[str, Array], ...]


class _Written:
    """The written elements of a buffer, `(copies, elements)`, and the complete copies."""

    def __init__(self, buffer: Buffer) -> None:
        self.copies = buffer.tensor.copies
        elements = constant(buffer.elements) or 1
        sizes = [constant(size) for size in buffer.tensor.shape]
        self.needed = math.prod(size or 0 for size in sizes) or elements
        self.written = np.zeros((self.copies, elements), dtype=bool)
        self.complete = np.zeros(self.copies, dtype=bool)

    def copied(self) -> _Written:
        """A copy of the marks, to restore later."""
        other = object.__new__(_Written)
        other.copies, other.needed = self.copies, self.needed
        other.written, other.complete = self.written.copy(), self.complete.copy()
        return other

    @property
    def all_complete(self) -> bool:
        """Whether all elements of all copies were written."""
        return bool(self.complete.all())

    def write(self, copies: Array, elements: Array) -> None:
        """Mark elements of copies."""
        self.written[copies, elements] = True
        for copy in np.flatnonzero(~self.complete):
            # Different coordinates have different addresses. If the number of marks equals the tensor size, all of its elements are marked,
            # and padding is not.
            self.complete[copy] = np.count_nonzero(self.written[copy]) >= self.needed

    def write_all(self) -> None:
        """Mark everything."""
        self.written[:] = True
        self.complete[:] = True


class _Execution:
    """The execution of a block; `marks` contains the written elements per buffer."""

    def __init__(self, access_trace: AccessTrace) -> None:
        self.access_trace = access_trace
        self.thread = access_trace.kernel.thread.name
        self.shared = {buffer.name: buffer for buffer in access_trace.kernel.buffers if buffer.memory.of_block}
        self.marks = {name: _Written(buffer) for name, buffer in self.shared.items()}
        self.filled: frozenset[str] = frozenset()
        self.findings: dict[tuple[int, str], Finding] = {}
        self.accessed_by: dict[tuple[Any, ...], _Accessed | None] = {}
        self.dependences: dict[int, tuple[frozenset[str], bool]] = {}
        self.roots: dict[int, frozenset[str]] = {}
        self.accesses_in_loop: dict[int, list[_Access]] = {}

    def follow(self, body: Sequence[Stmt], loops: Mapping[str, int]) -> None:
        """Execute a list at the given values of the surrounding loops."""
        for statement in body:
            match statement:
                case For():
                    self._loop(statement, loops)
                case Exec():
                    self._perform((_Access(statement),), loops)
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
        kernel = self.access_trace.kernel
        for role in in_order_of_fills(statement.roles, kernel):
            self.filled = filled_by(role, kernel)
            self.follow(role.body, loops)
        self.filled = frozenset()

    def _saved(self) -> dict[str, _Written]:
        return {name: marks.copied() for name, marks in self.marks.items()}

    # ------------------------------------------------------------------------------------------ loops

    def _loop(self, loop: For, loops: Mapping[str, int]) -> None:
        if self._is_complete(loop):
            return
        roots, ordered = self._dependences(loop)
        count = self.access_trace.iterations(loop, loops)
        if count == 0:
            return
        # Buffers that the role fills keep their marks: if its loop has no iteration, the loop of the consumers has none, either.
        before = self._saved() if count is None and loop.extent.low < 1 else None
        if not ordered and count is not None:
            self._perform(self._inside(loop), loops)
        else:
            values = loop.values(max(loop.extent.low, loop.first + 2 * loop.step) if count is None else count)
            for value in self._followed_values(values, loop, loop.var.name in roots):
                if self._is_complete(loop):
                    break
                self.follow(loop.body, {**loops, loop.var.name: value})
        if before is not None:
            self.marks = {name: self.marks[name] if name in self.filled else marks for name, marks in before.items()}

    def _inside(self, loop: For) -> list[_Access]:
        if id(loop) not in self.accesses_in_loop:
            inside = execs(loop.body)
            self.accesses_in_loop[id(loop)] = [
                _Access(statement, (loop, *inner)) for statement, inner in inside if self._accesses(statement)
            ]
        return self.accesses_in_loop[id(loop)]

    def _accesses(self, statement: Exec) -> list[Access]:
        return [access for access in statement.accesses if access.buffer in self.shared]

    def _is_complete(self, loop: For) -> bool:
        """Whether everything that a loop accesses was written."""
        return all(self.marks[access.buffer].all_complete for work in self._inside(loop) for access in self._accesses(work.statement))

    def _followed_values(self, values: Sequence[int], loop: For, matters: bool) -> Sequence[int]:
        """The values of a loop that are followed: one period, if its variable affects only the copy indices of buffers."""
        inside = [self._roots_inside(work.statement, access) for work in self._inside(loop) for access in self._accesses(work.statement)]
        alone = loop.period and not any(loop.var.name in roots for roots in inside)
        once = (loop.period if alone else MAX_FOLLOWED) + 1 if matters else 1
        return values if len(values) <= once else [*values[:once], values[-1]] if matters else values[:1]

    def _dependences(self, loop: For) -> tuple[frozenset[str], bool]:
        """The names that the accesses in a loop depend on, and whether the loop contains ordering statements."""
        if id(loop) not in self.dependences:
            inside = list(statements(loop.body))
            touching = [self._roots(work.statement, access) for work in self._inside(loop) for access in self._accesses(work.statement)]
            lengths = self.access_trace.needs(nested.extent for nested in inside if isinstance(nested, For))
            ordered = any(isinstance(statement, ORDERING) for statement in inside)
            self.dependences[id(loop)] = lengths.union(*touching), ordered
        return self.dependences[id(loop)]

    # ------------------------------------------------------------------------------------------ statements

    def _perform(self, accesses: Sequence[_Access], loops: Mapping[str, int]) -> None:
        """Execute the accesses between two ordering statements: reads of accumulators first, then all writes, then all other reads."""
        touching = [(work, access) for work in accesses for access in self._accesses(work.statement)]
        touching = [(work, access) for work, access in touching if not self.marks[access.buffer].all_complete]
        for work, access in touching:
            accumulate = work.statement.accumulate
            if access.write and accumulate != FALSE and len(accesses) == 1 and self.access_trace.roots(accumulate) <= {*loops, self.thread}:
                self._read(work, access, loops, (work.statement.performed, accumulate))
        for work, access in touching:
            if access.write:
                self._write(work, access, loops)
        for work, access in touching:
            if not access.write:
                self._read(work, access, loops, (work.statement.performed,))

    def _write(self, work: _Access, access: Access, loops: Mapping[str, int]) -> None:
        marks = self.marks[access.buffer]
        if self._all_complete(access, loops):
            return
        touch = self._accessed(work, access, loops, (work.statement.performed,))
        if touch is None:
            marks.write_all()
        else:
            marks.write(*self._locations(touch, access, loops))

    def _read(self, work: _Access, access: Access, loops: Mapping[str, int], conditions: tuple[Expr, ...]) -> None:
        statement, marks = work.statement, self.marks[access.buffer]
        if (id(statement), access.buffer) in self.findings or self._all_complete(access, loops):
            return
        touch = self._accessed(work, access, loops, conditions)
        if touch is None:
            return
        copies, elements = self._locations(touch, access, loops)
        unwritten = ~marks.written[copies, elements]
        if unwritten.any():
            missing = sorted(set((copies * marks.written.shape[1] + elements)[unwritten].tolist()))
            many = f" and {len(missing) - 1} others" if len(missing) > 1 else ""
            text = f"{statement.spec} reads {access.buffer}[{missing[0]}]{many} before any write to this shared memory"
            finding = Finding("shared", "error", access.buffer, text, access.origin or statement.origin)
            self.findings[id(statement), access.buffer] = finding

    def _all_complete(self, access: Access, loops: Mapping[str, int]) -> bool:
        """Whether all copies that an access may use are complete, as far as the surrounding loops determine them."""
        marks = self.marks[access.buffer]
        if marks.all_complete or not marks.complete.any() or not self.access_trace.roots(access.copy) <= frozenset(loops):
            return marks.all_complete
        copy = int(self.access_trace.frame([], loops).value(access.copy))
        return 0 <= copy < marks.copies and bool(marks.complete[copy])

    def _locations(self, touch: _Accessed, access: Access, loops: Mapping[str, int]) -> tuple[Array, Array]:
        """The accessed copies and the elements in them, as two lists. The bounds check reports elements outside of the buffer."""
        frame, marks = self.access_trace.frame(touch.axes, loops), self.marks[access.buffer]
        copies = np.broadcast_to(frame.full(access.copy)[..., None], touch.mask.shape)[touch.mask]
        elements = touch.elements[touch.mask]
        inside = (elements >= 0) & (elements < marks.written.shape[1]) & (copies >= 0) & (copies < marks.copies)
        return copies[inside], elements[inside]

    def _roots(self, statement: Exec, access: Access) -> frozenset[str]:
        """The names that determine the accessed elements and their copy."""
        return self._roots_inside(statement, access) | self.access_trace.roots(access.copy)

    def _roots_inside(self, statement: Exec, access: Access) -> frozenset[str]:
        """The names that determine the accessed elements within a copy. Often only the copy changes from iteration to iteration."""
        if id(access) not in self.roots:
            pieces = [parts for other, parts in zip(statement.accesses, statement.pieces, strict=False) if other is access]
            tested = {piece.condition for parts in pieces for piece in parts}
            accumulate = (statement.accumulate,) if access.write else ()
            bounds = [bound for bound in access.bounds if bound is not None]
            self.roots[id(access)] = self.access_trace.needs((*access.base, *bounds, statement.performed, *accumulate, *tested))
        return self.roots[id(access)]

    def _accessed(self, work: _Access, access: Access, loops: Mapping[str, int], conditions: tuple[Expr, ...]) -> _Accessed | None:
        """The accessed elements, at all values of the inner loops; None if they depend on more than threads and loops."""
        roots = self._roots_inside(work.statement, access)
        key = (id(access), len(conditions), *((name, value) for name, value in loops.items() if name in roots))
        if key not in self.accessed_by:
            self.accessed_by[key] = self._enumerated(work, access, loops, conditions)
        return self.accessed_by[key]

    def _enumerated(self, work: _Access, access: Access, loops: Mapping[str, int], conditions: tuple[Expr, ...]) -> _Accessed | None:
        access_trace, statement = self.access_trace, work.statement
        needed = self._roots(statement, access)
        inner = access_trace.loop_axes(work.inner, needed)
        if inner is None:
            return None
        # The first thread of a group that executes a statement represents all of them.
        group_size = (statement.spec.level.threads or len(access_trace.threads)) if statement.collective else 1
        threads = access_trace.threads[::group_size] if self.thread in needed else access_trace.threads[:1]
        axes: list[tuple[str, Array]] = [(self.thread, threads), *inner]
        frame = access_trace.frame(axes, loops)
        known = frozenset((self.thread, *loops, *(name for name, _ in inner)))
        if not access_trace.needs((*access.base, access.copy)) <= known or math.prod(frame.shape) * access.count > POINTS:
            return None
        parts = [part for condition in conditions for part in conjuncts(condition) if access_trace.roots(part) <= known]
        mask = access_trace.inside(Use(statement, (), access), frame, known) & (frame.full(all_of(parts)) != 0)[..., None]
        return _Accessed(access_trace.addresses(frame, attrs.evolve(access, copy=ZERO)), mask, tuple(axes))


__all__ = ["check_uninitialized_shared"]
