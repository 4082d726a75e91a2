"""`fence`: what threads write to shared memory is brought to the asynchronous proxy before an engine reads it.

A thread fences its own writes, and a barrier tells the others, so a fence stands in front of the first barrier behind writes to a buffer
that some engine touches. Copies under way count as written where they are waited for. The program is followed once, loops twice, so
that what an iteration leaves behind meets the barriers of the next.
"""

from __future__ import annotations

import attrs

from fireiron.ir import (
    Acquire,
    Barrier,
    Comment,
    Commit,
    Completion,
    Exec,
    Fence,
    For,
    Kernel,
    Let,
    Reach,
    Release,
    Roles,
    Stmt,
    Wait,
    execs,
    rewritten,
    unknown,
)


def fence(kernel: Kernel) -> Kernel:
    """The kernel with the fences that its engines need."""
    read = {access.buffer for statement, _ in execs(kernel.body) if statement.instruction.by_engine for access in statement.accesses}
    read = {name for name in read if kernel.buffer(name).memory.of_block}
    if not read:
        return kernel
    places = _Places(frozenset(read))
    places.follow(kernel.body)

    def fenced(statement: Stmt) -> tuple[Stmt, ...]:
        names = places.barriers.get(id(statement))  # by identity: equal barriers stand at several places
        return (statement,) if names is None else (Fence(Reach.PROXY, f"{', '.join(names)} for the asynchronous proxy"), statement)

    return attrs.evolve(kernel, body=rewritten(kernel.body, fenced))


class _Places:
    """The barriers that need a fence in front of them, with the buffers that it is for."""

    def __init__(self, read: frozenset[str]) -> None:
        self.read = read
        self.barriers: dict[int, dict[str, None]] = {}
        self.written: dict[str, None] = {}
        self.under_way: dict[str, None] = {}

    def follow(self, body: tuple[Stmt, ...]) -> None:
        """Follow a list, from what was written, or is under way, since the last fence."""
        for statement in body:
            match statement:
                case Exec():
                    self._exec(statement)
                case Wait():
                    self.written |= self.under_way if statement.completion is Completion.GROUP else {}
                case Barrier():
                    if self.written:
                        self.barriers.setdefault(id(statement), {}).update(self.written)
                    self.written = {}
                case For():
                    self.follow(statement.body)
                    self.follow(statement.body)
                case Roles():
                    for child in statement.children:
                        self.written, self.under_way = {}, {}
                        self.follow(child)
                case Let() | Comment() | Commit() | Fence() | Acquire() | Release():
                    pass
                case _:
                    raise unknown(statement, "fence")

    def _exec(self, statement: Exec) -> None:
        if not statement.instruction.by_engine:
            names = {one.buffer: None for one in statement.accesses if one.write and one.buffer in self.read}
            if statement.asynchronous:
                self.under_way |= names
            else:
                self.written |= names
