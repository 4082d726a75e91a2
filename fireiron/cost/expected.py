"""Barriers at their expected positions, so that kernels can be compared before synchronization is inferred.

`synchronize` and `wait` compute them exactly, by enumerating accesses. This is an approximation by buffer names. It serves predictions
only: no kernel with such barriers is printed or run.
"""

from __future__ import annotations

import attrs

from fireiron.ir import BLOCK_SCOPE, Barrier, Exec, For, Kernel, Stmt, SyncPoint, Wait, execs


def with_expected_barriers(kernel: Kernel) -> Kernel:
    """A kernel before synchronization, with barriers and waits at about their final positions.

    In a pipelined loop they are where the pass `pipeline` requires them. Elsewhere they are between a statement that writes a shared buffer
    and the next one that reads it, and before data that a loop reads is overwritten.
    """
    shared = frozenset(buffer.name for buffer in kernel.buffers if buffer.memory.of_block)
    return attrs.evolve(kernel, body=_Expected(shared).listed(kernel.body, 0))


class _Expected:
    """`written` and `read` are the shared buffers that were accessed since the last barrier."""

    def __init__(self, shared: frozenset[str]) -> None:
        self.shared = shared
        self.written: set[str] = set()
        self.read: set[str] = set()

    def listed(self, body: tuple[Stmt, ...], stages: int) -> tuple[Stmt, ...]:
        """A statement list in a loop that is pipelined in `stages` stages; 0: not pipelined."""
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
        """A block barrier; in a pipelined loop after the wait for the oldest group of copies."""
        self.written.clear()
        self.read.clear()
        barrier = Barrier(BLOCK_SCOPE, "expected")
        return (Wait(stages - 2), barrier) if stages > 1 else (barrier,)

    def _shared_buffers(self, statement: Stmt) -> tuple[set[str], set[str]]:
        """The shared buffers that a statement, or its content, reads, and those that it writes."""
        accesses = [access for one, _ in execs((statement,)) for access in one.accesses]
        reads = {access.buffer for access in accesses if not access.write}
        writes = {access.buffer for access in accesses if access.write}
        return reads & self.shared, writes & self.shared
