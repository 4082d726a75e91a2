"""Barriers where they are to be expected: kernels can be compared before synchronisation is inferred.

What `synchronize` and `wait` find out exactly, by enumerating who touches what, is here a rule of thumb on names of buffers. It serves
predictions alone: no kernel with such barriers is printed or run.
"""

from __future__ import annotations

import attrs

from fireiron.ir import BLOCK_SCOPE, Barrier, Exec, For, Kernel, Stmt, SyncPoint, Wait, execs


def with_expected_barriers(kernel: Kernel) -> Kernel:
    """A kernel that was not synchronised yet, with barriers and waits about where they will stand.

    In a pipelined loop they stand where the pass `pipeline` wants them; elsewhere between a statement that writes a buffer in
    shared memory and the next one that reads it, and before what is read in a loop is written again.
    """
    shared = frozenset(buffer.name for buffer in kernel.buffers if buffer.memory.of_block)
    return attrs.evolve(kernel, body=_Expected(shared).listed(kernel.body, 0))


class _Expected:
    """`written` and `read` are the shared buffers that were touched since the last barrier."""

    def __init__(self, shared: frozenset[str]) -> None:
        self.shared = shared
        self.written: set[str] = set()
        self.read: set[str] = set()

    def listed(self, body: tuple[Stmt, ...], stages: int) -> tuple[Stmt, ...]:
        """A statement list in a loop that is pipelined in so many stages; 0: in none."""
        result: list[Stmt] = []
        for statement in body:
            if isinstance(statement, SyncPoint):
                result += self._barrier(stages) if statement.require is not False else ()
                continue
            inner = stages
            if not stages:
                reads, writes = self._touched(statement)
                result += self._barrier(0) if reads & self.written or writes & self.read else ()
                if isinstance(statement, Exec):
                    self.written |= writes
                    self.read |= reads
                elif isinstance(statement, For):
                    self.read |= reads & writes  # by the iteration before
                    inner = statement.period
            if statement.children:
                statement = statement.rebuilt(tuple(self.listed(child, inner) for child in statement.children))
            result.append(statement)
        return tuple(result)

    def _barrier(self, stages: int) -> tuple[Stmt, ...]:
        """A barrier of the block; in a pipelined loop behind the wait for the oldest group of copies."""
        self.written.clear()
        self.read.clear()
        barrier = Barrier(BLOCK_SCOPE, "expected")
        return (Wait(stages - 2), barrier) if stages > 1 else (barrier,)

    def _touched(self, statement: Stmt) -> tuple[set[str], set[str]]:
        """The shared buffers that a statement, or what it contains, reads, and those that it writes."""
        accesses = [access for one, _ in execs((statement,)) for access in one.accesses]
        reads = {access.buffer for access in accesses if not access.write}
        writes = {access.buffer for access in accesses if access.write}
        return reads & self.shared, writes & self.shared
