"""`fence`: what threads write to shared memory is brought to the asynchronous proxy before an engine reads it.

A thread fences its own writes, and a barrier tells the others, so a fence stands in front of the first barrier behind writes to a buffer
that some engine touches. Copies under way count as written where they are waited for. The program is followed once, loops twice, so
that what an iteration leaves behind meets the barriers of the next.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import attrs

from fireiron.ir import (
    Acquire,
    Barrier,
    Comment,
    Commit,
    Dependence,
    Exec,
    Fence,
    For,
    Kernel,
    Leave,
    Let,
    NextTile,
    Reach,
    Release,
    Roles,
    Skip,
    Stmt,
    Wait,
    execs,
    rewritten,
    unknown,
)

Writers: TypeAlias = "dict[str, dict[int, Exec]]"
"""The statements that wrote to a buffer, by the buffer's name."""


def _joined(some: Writers, others: Writers) -> Writers:
    return {name: {**some.get(name, {}), **others.get(name, {})} for name in (*some, *others)}


def fence(kernel: Kernel) -> Kernel:
    """The kernel with the fences that its engines need."""
    engines = [statement for statement, _ in execs(kernel.body) if statement.instruction.mechanism.by_engine]
    read = {access.buffer for statement in engines for access in statement.accesses}
    read = {name for name in read if kernel.buffer(name).memory.of_block}
    if not read:
        return kernel
    places = _Places(frozenset(read))
    places.follow(kernel.body)

    def fenced(statement: Stmt) -> tuple[Stmt, ...]:
        names = places.barriers.get(id(statement))  # by identity: equal barriers stand at several places
        if names is None:
            return (statement,)
        return (Fence(Reach.PROXY, f"{', '.join(names)} for the asynchronous proxy", orders=_orders(names, engines)), statement)

    return attrs.evolve(kernel, body=rewritten(kernel.body, fenced))


def _orders(written: Writers, engines: Iterable[Exec]) -> tuple[Dependence, ...]:
    """From each that wrote to each engine that touches what it wrote."""
    return tuple(
        Dependence(access.buffer, writer, engine, (True, access.write))
        for engine in engines
        for access in engine.accesses
        for writer in written.get(access.buffer, {}).values()
    )


class _Places:
    """The barriers that need a fence in front of them, with the buffers that it is for."""

    def __init__(self, read: frozenset[str]) -> None:
        self.read = read
        self.barriers: dict[int, Writers] = {}
        self.written: Writers = {}
        self.under_way: Writers = {}

    def follow(self, body: tuple[Stmt, ...]) -> None:
        """Follow a list, from what was written, or is under way, since the last fence."""
        for statement in body:
            match statement:
                case Exec():
                    self._exec(statement)
                case Wait():
                    self.written = _joined(self.written, self.under_way if statement.mechanism.arrives_in_groups else {})
                case Barrier():
                    if self.written:
                        self.barriers[id(statement)] = _joined(self.barriers.get(id(statement), {}), self.written)
                    self.written = {}
                case For():
                    self.follow(statement.body)
                    self.follow(statement.body)
                case Roles():
                    for child in statement.children:
                        self.written, self.under_way = {}, {}
                        self.follow(child)
                case Let() | Comment() | Commit() | Fence() | Acquire() | Release() | NextTile() | Leave() | Skip():
                    pass
                case _:
                    raise unknown(statement, "fence")

    def _exec(self, statement: Exec) -> None:
        if not statement.instruction.mechanism.by_engine:
            names = {one.buffer: {id(statement): statement} for one in statement.accesses if one.write and one.buffer in self.read}
            if statement.asynchronous:
                self.under_way = _joined(self.under_way, names)
            else:
                self.written = _joined(self.written, names)
