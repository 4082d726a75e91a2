"""Report reads of registers before any write: on some path, no load and no other write precedes the read.

The check executes the program of a block's threads with a mark for each written register of each thread. Marks are never removed. So a loop
is followed only for the values of its variable that change register indices or conditions, or once if there are none. If everything that a
loop reads was written before it, all its writes are marked at once. Writes in a loop that may have no iteration, or in a body that a warp
may skip, count only inside it. Conditions on threads and loops are evaluated; conditions on blocks, sizes and data are assumed to hold, for
writes and for reads.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fireiron.check.access_trace import AccessTrace, Frame, Use
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
from fireiron.values.expr import FALSE, Expr, all_of, conjuncts, constant

Array = Any

MANY = 256
"""Maximum number of values of a loop that are followed: a thread has no more registers that a loop could index."""

POINTS = 1 << 20
"""Maximum number of registers of all threads that are marked at once."""


def check_uninitialized_registers(access_trace: AccessTrace) -> tuple[Finding, ...]:
    """An error for each statement that reads a register before any write to it."""
    if not any(buffer.memory.private for buffer in access_trace.kernel.buffers):
        return ()
    execution = _Execution(access_trace)
    execution.follow(access_trace.kernel.body, {})
    return tuple(execution.findings.values())


@frozen(eq=False)
class _Accessed:
    """Registers by thread, `(threads, elements)`, and the mask of accessed ones."""

    registers: Array
    mask: Array


@frozen(eq=False)
class _Marks:
    """The state at a point of the program: per buffer the marks `(registers, threads)`, and the complete buffers."""

    written: Mapping[str, Array]
    complete: frozenset[str]


class _Execution:
    """The execution of the threads of a block.

    `written` contains, per buffer, the written registers of each thread. A buffer is in `complete` if each thread that reads the buffer has
    written all its registers. Reads of complete buffers need no check.
    """

    def __init__(self, access_trace: AccessTrace) -> None:
        self.access_trace = access_trace
        self.thread = next(iter(access_trace.kernel.thread.variables())).name
        self.private = {buffer.name: buffer for buffer in access_trace.kernel.buffers if buffer.memory.private}
        self.written: dict[str, Array] = {}
        self.complete: set[str] = set()
        self.findings: dict[tuple[int, str], Finding] = {}
        self.accessed_by: dict[tuple[Any, ...], _Accessed | None] = {}
        self.dependences: dict[int, tuple[frozenset[str], frozenset[str]]] = {}
        self.inner: dict[int, tuple[tuple[Exec, tuple[For, ...]], ...]] = {}
        self.readers = _readers(access_trace, self.private)

    def follow(self, body: Sequence[Stmt], loops: Mapping[str, int]) -> None:
        """Execute a list at the given values of the surrounding loops."""
        for statement in body:
            match statement:
                case For():
                    self._loop(statement, loops)
                case Exec():
                    self._perform(statement, loops)
                case Roles():
                    self._roles(statement, loops)
                case IfAnyLane():
                    before = self._marks()
                    self.follow(statement.body, loops)
                    self._restore(before)
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
                    raise unknown(statement, "the check of registers")

    def _roles(self, statement: Roles, loops: Mapping[str, int]) -> None:
        """Each role starts with what was written before. After the roles, the writes of all roles count, each to its own threads'
        registers.
        """
        before, after = self._marks(), []
        for child in statement.children:
            self._restore(before)
            self.follow(child, loops)
            after.append(self._marks())
        self.written = _joined([marks.written for marks in after])
        self.complete = set().union(*(marks.complete for marks in after))

    def _marks(self) -> _Marks:
        return _Marks({name: marks.copy() for name, marks in self.written.items()}, frozenset(self.complete))

    def _restore(self, marks: _Marks) -> None:
        self.written = {name: written.copy() for name, written in marks.written.items()}
        self.complete = set(marks.complete)

    # ------------------------------------------------------------------------------------------ loops

    def _loop(self, loop: For, loops: Mapping[str, int]) -> None:
        if all(access.buffer in self.complete for statement, _ in self._inside(loop) for access in self._accesses(statement)):
            return
        count = self.access_trace.iterations(loop, loops)
        if count is not None and self._mark_at_once(loop, count, loops):
            return
        before = self._marks() if count is None and loop.extent.low < 1 else None
        values: Sequence[int] = loop.values(count if count is not None else max(loop.extent.low, loop.first + 2 * loop.step))
        numbered, tested = self._dependences(loop)
        if loop.var.name not in numbered:
            values = [*values[:3], *values[3:][-1:]] if loop.var.name in tested else values[:1]
        for value in values[:MANY]:
            self.follow(loop.body, {**loops, loop.var.name: value})
        if before is not None:
            self._restore(before)

    def _inside(self, loop: For) -> tuple[tuple[Exec, tuple[For, ...]], ...]:
        """The statements in a loop that access registers, each with the loops around it from this one on."""
        if id(loop) not in self.inner:
            inside = execs(loop.body)
            self.inner[id(loop)] = tuple((statement, (loop, *inner)) for statement, inner in inside if self._accesses(statement))
        return self.inner[id(loop)]

    def _mark_at_once(self, loop: For, count: int, loops: Mapping[str, int]) -> bool:
        """Mark everything that a loop writes, if it reads only registers that were written before; False if it may read others."""
        if any(isinstance(statement, (Roles, IfAnyLane)) for statement in statements(loop.body)):
            return False
        writes: list[tuple[Access, _Accessed]] = []
        for statement, around in self._inside(loop):
            for access in self._accesses(statement):
                if access.buffer in self.complete:
                    continue
                if not access.write or statement.accumulate != FALSE:
                    return False
                touch = self._accessed_in_loops(statement, access, around, count, loops)
                if touch is None:
                    return False
                writes.append((access, touch))
        for access, touch in writes:
            self._write(access, touch)
        return True

    def _accessed_in_loops(
        self, statement: Exec, access: Access, around: Sequence[For], count: int, loops: Mapping[str, int]
    ) -> _Accessed | None:
        """The registers of an access in all iterations of the surrounding loops; None if they depend on more, or are too many."""
        if statement.collective:
            return None
        counts = [count]
        for loop in around[1:]:
            number = constant(loop.extent)
            if number is None:
                return None
            counts.append(number)
        needed = self.access_trace.needs((*access.expressions(), statement.performed, *_tests(statement, access)))
        axes = [(loop.var.name, np.array(loop.values(number), dtype=int)) for loop, number in zip(around, counts, strict=True)]
        axes = [(name, values if name in needed else values[:1]) for name, values in axes]
        if len(self.access_trace.threads) * math.prod(len(values) for _, values in axes) * access.count > POINTS:
            return None
        return self._enumerated(statement, access, axes, loops, statement.performed)

    def _dependences(self, loop: For) -> tuple[frozenset[str], frozenset[str]]:
        """The names that register indices in a loop depend on, and those that conditions depend on."""
        if id(loop) not in self.dependences:
            inside = [statement for statement in statements(loop.body) if isinstance(statement, Exec)]
            numbers = [value for statement in inside for access in self._accesses(statement) for value in access.expressions()]
            tested = [value for statement in inside for value in (statement.active, statement.guard, statement.accumulate)]
            tested += [value for statement in inside for access in self._accesses(statement) for value in _tests(statement, access)]
            tested += [nested.extent for nested in statements(loop.body) if isinstance(nested, For)]
            self.dependences[id(loop)] = self.access_trace.needs(numbers), self.access_trace.needs(tested)
        return self.dependences[id(loop)]

    def _known(self, loops: Iterable[str]) -> frozenset[str]:
        return frozenset((*loops, self.thread))

    # ------------------------------------------------------------------------------------------ statements

    def _accesses(self, statement: Exec) -> list[Access]:
        return [access for access in statement.accesses if access.buffer in self.private]

    def _perform(self, statement: Exec, loops: Mapping[str, int]) -> None:
        touched = [access for access in self._accesses(statement) if access.buffer not in self.complete]
        for access in touched:
            if not access.write:
                self._read(statement, access, self._accessed(statement, access, loops, statement.performed))
            elif statement.accumulate != FALSE:
                condition = all_of((statement.performed, statement.accumulate))
                decided = self.access_trace.roots(statement.accumulate) <= self._known(loops)
                self._read(statement, access, self._accessed(statement, access, loops, condition) if decided else None)
        for access in touched:
            if access.write:
                self._write(access, self._accessed(statement, access, loops, statement.performed))

    def _accessed(self, statement: Exec, access: Access, loops: Mapping[str, int], condition: Expr) -> _Accessed | None:
        """The registers of an access; None if they depend on more than threads and loops, or if only the text of a micro-kernel determines
        them.
        """
        if statement.collective:
            return None
        roots = self.access_trace.needs((*access.expressions(), condition, *_tests(statement, access)))
        key = (id(statement), id(access), condition, *((name, loops[name]) for name in sorted(roots & frozenset(loops))))
        if key not in self.accessed_by:
            self.accessed_by[key] = self._enumerated(statement, access, (), loops, condition)
        return self.accessed_by[key]

    def _enumerated(
        self, statement: Exec, access: Access, axes: Sequence[tuple[str, Array]], loops: Mapping[str, int], condition: Expr
    ) -> _Accessed | None:
        """The registers of an access by thread, in the iterations of the axes; None if they depend on other names."""
        access_trace, known = self.access_trace, self._known((*loops, *(name for name, _ in axes)))
        if not access_trace.needs((*access.base, access.copy)) <= known:
            return None
        frame = access_trace.frame([(self.thread, access_trace.threads), *axes], loops)
        performing = _holds(access_trace, frame, condition, known)
        mask = access_trace.inside(Use(statement, (), access), frame, known) & performing[..., None]
        threads = len(access_trace.threads)
        return _Accessed(access_trace.addresses(frame, access).reshape(threads, -1), mask.reshape(threads, -1))

    def _marks_of(self, name: str, registers: int) -> Array:
        """The marks of a buffer, of at least this many registers."""
        marks = self.written.get(name)
        if marks is None or len(marks) < registers:
            longer = np.zeros((max(registers, _registers(self.private[name])), len(self.access_trace.threads)), dtype=bool)
            if marks is not None:
                longer[: len(marks)] = marks
            marks = self.written[name] = longer
        return marks

    def _write(self, access: Access, touch: _Accessed | None) -> None:
        if touch is None:
            self._marks_of(access.buffer, 1)[:] = True
        else:
            self._marks_of(access.buffer, int(touch.registers.max(initial=0)) + 1)[
                touch.registers[touch.mask], np.nonzero(touch.mask)[0]
            ] = True
        if constant(self.private[access.buffer].total) is not None and self.written[access.buffer][:, self.readers[access.buffer]].all():
            self.complete.add(access.buffer)

    def _read(self, statement: Exec, access: Access, touch: _Accessed | None) -> None:
        if touch is None or (id(statement), access.buffer) in self.findings:
            return
        marks = self._marks_of(access.buffer, int(touch.registers.max(initial=0)) + 1)
        thread_of = np.broadcast_to(np.arange(len(touch.mask))[:, None], touch.mask.shape)
        missing = np.argwhere(touch.mask & ~marks[touch.registers, thread_of])
        if len(missing):
            thread, element = map(int, missing[0])
            number, threads = int(touch.registers[thread, element]), len(set(missing[:, 0]))
            text = f"{statement.spec} reads register {access.buffer}[{number}] before any write to it, in thread {thread}" + (
                f" and {threads - 1} others" if threads > 1 else ""
            )
            finding = Finding("registers", "error", access.buffer, text, access.origin or statement.origin)
            self.findings[id(statement), access.buffer] = finding


def _readers(access_trace: AccessTrace, private: Mapping[str, Buffer]) -> dict[str, Array]:
    """Per buffer, the threads that may read it: those for which the thread conditions of some reading statement hold."""
    thread = next(iter(access_trace.kernel.thread.variables())).name
    frame, known = access_trace.frame([(thread, access_trace.threads)]), frozenset((thread,))
    readers = {name: np.zeros(len(access_trace.threads), dtype=bool) for name in private}
    performing: dict[Expr, Array] = {}
    for use in access_trace.uses:
        if use.access.buffer in private and not (use.access.write and use.statement.accumulate == FALSE):
            condition = use.statement.performed
            if condition not in performing:
                performing[condition] = _holds(access_trace, frame, condition, known)
            readers[use.access.buffer] |= performing[condition]
    return readers


def _joined(written_by_role: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    """The registers written by the threads of any role."""
    joined: dict[str, Array] = {}
    for written in written_by_role:
        for name, marks in written.items():
            other = joined.get(name)
            long, short = (marks, other) if other is None or len(marks) >= len(other) else (other, marks)
            joined[name] = long.copy()
            if short is not None:
                joined[name][: len(short)] |= short
    return joined


def _holds(access_trace: AccessTrace, frame: Frame, condition: Expr, known: frozenset[str]) -> Array:
    """The threads for which a condition holds, as far as it depends on known names."""
    return frame.full(all_of([part for part in conjuncts(condition) if access_trace.roots(part) <= known])) != 0


def _tests(statement: Exec, access: Access) -> Iterator[Expr]:
    """The conditions of the elements of an access."""
    for position, other in enumerate(statement.accesses):
        if other is access and statement.pieces:
            yield from (piece.condition for piece in statement.pieces[position])


def _registers(buffer: Buffer) -> int:
    return constant(buffer.total) or 1


__all__ = ["check_uninitialized_registers"]
