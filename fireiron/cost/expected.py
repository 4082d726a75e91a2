"""Insert barriers at their expected positions, so that kernels can be compared before synchronization is inferred.

The passes `synchronize` and `wait` compute exact positions by enumerating accesses. This module approximates them by buffer names. It is
only for predictions: no kernel with these barriers is printed or run.
"""

from __future__ import annotations

import attrs

from fireiron.ir import BLOCK_SCOPE, Barrier, Exec, For, Kernel, Stmt, SyncPoint, Wait, execs


def with_expected_barriers(kernel: Kernel) -> Kernel:
    """Return a kernel before synchronization with barriers and waits at about their final positions.

    In a pipelined loop, they are where the pass `pipeline` requires them. Elsewhere, they are between a statement that writes a shared
    buffer and the next statement that reads it, and before a statement that overwrites data that a loop reads.
    """
    shared = frozenset(buffer.name for buffer in kernel.buffers if buffer.memory.of_block)
    return attrs.evolve(kernel, body=_Expected(shared).listed(kernel.body, 0))


class _Expected:
    """Inserts the barriers. `written` and `read` are the shared buffers that were accessed since the last barrier."""

    def __init__(self, shared: frozenset[str]) -> None:
        self.shared = shared
        self.written: set[str] = set()
        self.read: set[str] = set()

    def listed(self, body: tuple[Stmt, ...], stages: int) -> tuple[Stmt, ...]:
        """Return statements with their barriers. The surrounding loop is pipelined with `stages` stages (0: not pipelined)."""
        result: list[Stmt] = []
        for statement in body:
            if isinstance(statement, SyncPoint):
                result += self._barrier(stages) if statement.require is not False else ()
                continue
            inner = stages
            if not stages:
                reads, writes = self._shared_buffers(statement)
                result += self._barrier(0) if reads & self.written or writes & self.read else ()
                if isinstance(statement, Exec):
                    self.written |= writes
                    self.read |= reads
                elif isinstance(statement, For):
                    self.read |= reads & writes  # by the previous iteration
                    inner = statement.period
            if statement.children:
                statement = statement.rebuilt(tuple(self.listed(child, inner) for child in statement.children))
            result.append(statement)
        return tuple(result)

    def _barrier(self, stages: int) -> tuple[Stmt, ...]:
        """Return a block barrier. In a pipelined loop, the wait for the oldest group of copies precedes it."""
        self.written.clear()
        self.read.clear()
        barrier = Barrier(BLOCK_SCOPE, "expected")
        return (Wait(stages - 2), barrier) if stages > 1 else (barrier,)

    def _shared_buffers(self, statement: Stmt) -> tuple[set[str], set[str]]:
        """Return the shared buffers that a statement, including its body, reads, and those that it writes."""
        accesses = [access for inner, _ in execs((statement,)) for access in inner.accesses]
        reads = {access.buffer for access in accesses if not access.write}
        writes = {access.buffer for access in accesses if access.write}
        return reads & self.shared, writes & self.shared
