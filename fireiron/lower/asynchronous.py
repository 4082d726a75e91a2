"""`asynchronous`: copies that may be under way on their own get the target's instruction for it, where their width allows.

A copy that is too narrow for it (odd sizes, unaligned rows) stays what it was, a load and a store: right, and slower.
"""

from __future__ import annotations

import attrs

from fireiron.ir import Commit, Completion, Exec, For, Kernel, Stmt, execs


def asynchronous(kernel: Kernel) -> Kernel:
    """The kernel with asynchronous copies where they are possible, and without commits where there are none."""
    body = _list(kernel, kernel.body)
    if not any(statement.asynchronous for statement, _ in execs(body)):
        body = _without_commits(body)
    return attrs.evolve(kernel, body=body)


def _list(kernel: Kernel, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    result: list[Stmt] = []
    for statement in body:
        if isinstance(statement, For):
            statement = attrs.evolve(statement, body=_list(kernel, statement.body))
        elif isinstance(statement, Exec) and statement.asynchronous:
            statement = _decided(kernel, statement)
        result.append(statement)
    return tuple(result)


def _decided(kernel: Kernel, statement: Exec) -> Exec:
    buffers = [kernel.buffer(access.buffer) for access in statement.accesses]
    widths = {statement.width(position) for position in range(2)}
    offer = getattr(statement.instruction, "under_way", None)
    found = None
    if offer is not None and widths == {statement.vector} and buffers[0].dtype == buffers[1].dtype:
        found = offer(kernel.architecture, statement.vector * buffers[0].dtype.bytes)
    return attrs.evolve(statement, completion=Completion.NONE) if found is None else attrs.evolve(statement, instruction=found)


def _without_commits(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    result: list[Stmt] = []
    for statement in body:
        if isinstance(statement, For):
            statement = attrs.evolve(statement, body=_without_commits(statement.body))
        if not isinstance(statement, Commit):
            result.append(statement)
    return tuple(result)
