"""Registers that are read before anything was put into them: no load, no write stands in front of the read on some way through the kernel.

The program of a block's threads is followed, with a mark for each register of each thread. A loop is followed for the values of its
variable on which registers or conditions in it depend, else once, as no register is lost on the way; what is behind a loop that may have
no turn, or behind a body that a warp may skip, does not count on it. Conditions on threads and loops are taken as they are; those on
blocks, sizes and data count as true, of those who write and of those who read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import attrs
import numpy as np

from fireiron.check.finding import Finding
from fireiron.check.scene import Frame, Scene, Use
from fireiron.ir import Access, Buffer, Exec, For, Roles, Skip, Stmt, statements
from fireiron.values.expr import FALSE, Expr, all_of, conjuncts, constant

Array = Any

MANY = 256
"""Values of a loop that are followed at most: a thread has no more registers, which a loop might number."""


def check_loaded(scene: Scene) -> tuple[Finding, ...]:
    """An error for each statement that reads a register which nothing was put into."""
    if not any(buffer.memory.private for buffer in scene.kernel.buffers):
        return ()
    way = _Way(scene)
    way.follow(scene.kernel.body, {})
    return tuple(way.findings.values())


@attrs.frozen(eq=False)
class _Touch:
    """Registers by thread, `(threads, elements)`, and which of them are touched."""

    registers: Array
    mask: Array


class _Way:
    """The threads of a block on their way; `put` says per buffer which registers of which threads have been put something into."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.thread = next(iter(scene.kernel.thread.variables())).name
        self.private = {buffer.name: buffer for buffer in scene.kernel.buffers if buffer.memory.private}
        self.put: dict[str, Array] = {}
        self.findings: dict[tuple[int, str], Finding] = {}
        self.touches: dict[tuple[Any, ...], _Touch | None] = {}
        self.relied: dict[int, tuple[frozenset[str], frozenset[str]]] = {}

    def follow(self, body: Sequence[Stmt], loops: dict[str, int]) -> None:
        """Follow a list, at values of the loops around it."""
        for statement in body:
            match statement:
                case For():
                    self._loop(statement, loops)
                case Exec():
                    self._perform(statement, loops)
                case Roles():
                    before, behind = self._marks(), []
                    for child in statement.children:
                        self.put = {name: marks.copy() for name, marks in before.items()}
                        self.follow(child, loops)
                        behind.append(self.put)
                    self.put = _joined(behind)
                case Skip():
                    before = self._marks()
                    self.follow(statement.body, loops)
                    self.put = before
                case _:
                    pass

    def _marks(self) -> dict[str, Array]:
        return {name: marks.copy() for name, marks in self.put.items()}

    def _loop(self, loop: For, loops: dict[str, int]) -> None:
        known = self._known(loops)
        count = self.scene.frame([], loops).value(loop.extent) if self.scene.roots(loop.extent) <= known else None
        count = None if count is None else int(count)
        before = self._marks() if count is None and loop.extent.low < 1 else None
        values: Sequence[int] = loop.values(count if count is not None else max(loop.extent.low, loop.first + 2 * loop.step))
        numbered, tested = self._reliance(loop)
        if loop.var.name not in numbered:
            values = [*values[:3], *values[3:][-1:]] if loop.var.name in tested else values[:1]
        for value in values[:MANY]:
            self.follow(loop.body, {**loops, loop.var.name: value})
        if before is not None:
            self.put = before

    def _reliance(self, loop: For) -> tuple[frozenset[str], frozenset[str]]:
        """The names on which the numbers of registers in a loop depend, and those on which conditions do."""
        if id(loop) not in self.relied:
            inside = [one for one in statements(loop.body) if isinstance(one, Exec)]
            numbers = [
                value for one in inside for access in one.accesses if access.buffer in self.private for value in access.expressions()
            ]
            tested = [value for one in inside for value in (one.active, one.guard, one.accumulate)]
            tested += [one.extent for one in statements(loop.body) if isinstance(one, For)]
            self.relied[id(loop)] = self.scene.needs(numbers), self.scene.needs(tested)
        return self.relied[id(loop)]

    def _known(self, loops: dict[str, int]) -> frozenset[str]:
        return frozenset(loops) | {self.thread}

    # ------------------------------------------------------------------------------------------ statements

    def _perform(self, statement: Exec, loops: dict[str, int]) -> None:
        touched = [access for access in statement.accesses if access.buffer in self.private]
        if not touched:
            return
        for access in touched:
            if not access.write:
                self._read(statement, access, self._touch(statement, access, loops, statement.performed))
            elif statement.accumulate != FALSE:
                condition = all_of((statement.performed, statement.accumulate))
                decided = self.scene.roots(statement.accumulate) <= self._known(loops)
                self._read(statement, access, self._touch(statement, access, loops, condition) if decided else None)
        for access in touched:
            if access.write:
                self._write(access, self._touch(statement, access, loops, statement.performed))

    def _touch(self, statement: Exec, access: Access, loops: dict[str, int], condition: Expr) -> _Touch | None:
        """What an access touches; None where that depends on more than threads and loops."""
        roots = self.scene.needs((*access.expressions(), condition, *_tests(statement, access)))
        key = (id(statement), id(access), condition, *((name, loops[name]) for name in sorted(roots & frozenset(loops))))
        if key not in self.touches:
            self.touches[key] = self._touched(statement, access, loops, condition)
        return self.touches[key]

    def _touched(self, statement: Exec, access: Access, loops: dict[str, int], condition: Expr) -> _Touch | None:
        known, scene = self._known(loops), self.scene
        if not scene.needs((*access.base, access.copy)) <= known:
            return None
        frame = scene.frame([(self.thread, scene.threads)], loops)
        who = _holds(scene, frame, condition, known)
        mask = scene.inside(Use(statement, (), access), frame, known) & who[:, None]
        return _Touch(scene.addresses(frame, access), mask)

    def _of(self, name: str, registers: int) -> Array:
        """The marks of a buffer, of at least so many registers."""
        marks = self.put.get(name)
        if marks is None or len(marks) < registers:
            longer = np.zeros((max(registers, _registers(self.private[name])), len(self.scene.threads)), dtype=bool)
            if marks is not None:
                longer[: len(marks)] = marks
            marks = self.put[name] = longer
        return marks

    def _write(self, access: Access, touch: _Touch | None) -> None:
        if touch is None:
            self._of(access.buffer, 1)[:] = True
            return
        marks = self._of(access.buffer, int(touch.registers.max(initial=0)) + 1)
        lanes = np.broadcast_to(np.arange(len(touch.mask))[:, None], touch.mask.shape)
        marks[touch.registers[touch.mask], lanes[touch.mask]] = True

    def _read(self, statement: Exec, access: Access, touch: _Touch | None) -> None:
        if touch is None or (id(statement), access.buffer) in self.findings:
            return
        marks = self._of(access.buffer, int(touch.registers.max(initial=0)) + 1)
        lanes = np.broadcast_to(np.arange(len(touch.mask))[:, None], touch.mask.shape)
        missing = np.argwhere(touch.mask & ~marks[touch.registers, lanes])
        if len(missing):
            thread, element = map(int, missing[0])
            number, threads = int(touch.registers[thread, element]), len(set(missing[:, 0]))
            text = f"{statement.spec} reads {access.buffer}[{number}], a register that nothing was put into before, in thread {thread}" + (
                f" and {threads - 1} others" if threads > 1 else ""
            )
            found = Finding("registers", "error", access.buffer, text, access.origin or statement.origin)
            self.findings[id(statement), access.buffer] = found


def _joined(ways: Sequence[dict[str, Array]]) -> dict[str, Array]:
    """What was put by the threads of any role: each has its own."""
    found: dict[str, Array] = {}
    for way in ways:
        for name, marks in way.items():
            other = found.get(name)
            long, short = (marks, other) if other is None or len(marks) >= len(other) else (other, marks)
            found[name] = long.copy()
            if short is not None:
                found[name][: len(short)] |= short
    return found


def _holds(scene: Scene, frame: Frame, condition: Expr, known: frozenset[str]) -> Array:
    """Of which threads a condition holds, as far as it depends on them."""
    return frame.full(all_of([part for part in conjuncts(condition) if scene.roots(part) <= known])) != 0


def _tests(statement: Exec, access: Access) -> Iterator[Expr]:
    """The conditions under which elements of an access are touched."""
    for position, one in enumerate(statement.accesses):
        if one is access and statement.pieces:
            yield from (piece.condition for piece in statement.pieces[position])


def _registers(buffer: Buffer) -> int:
    return constant(buffer.elements) or 1


__all__ = ["check_loaded"]
