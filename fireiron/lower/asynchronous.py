"""`asynchronous`: copies that may be under way on their own get the target's instruction for it, where their width allows.

A copy that is too narrow for it (odd sizes, unaligned rows) stays what it was, a load and a store: right, and slower.
"""

from __future__ import annotations

import attrs

from fireiron.ir import AT_ONCE, Commit, Exec, Kernel, Mechanism, Stmt, edited, execs, rewritten


def asynchronous(kernel: Kernel) -> Kernel:
    """The kernel with asynchronous copies where they are possible, and without commits of what it has none of."""
    body = edited(kernel.body, lambda statement: _decided(kernel, statement) if _is_marked(statement) else statement)
    # The commits of `pipeline` would make groups without copies, and the printer has no statement to ask for their text.
    issued = {statement.mechanism for statement, _ in execs(body)}
    return attrs.evolve(kernel, body=rewritten(body, lambda one: () if _is_empty(one, issued) else (one,)))


def _is_empty(statement: Stmt, issued: set[Mechanism]) -> bool:
    """Whether a statement commits copies of a mechanism by which nothing is issued."""
    return isinstance(statement, Commit) and statement.mechanism.arrives_in_groups and statement.mechanism not in issued


def _is_marked(statement: Exec) -> bool:
    """Whether a copy may be under way, and its instruction is not yet one that lets it be."""
    return statement.mechanism.arrives_in_groups and statement.mechanism is not statement.instruction.mechanism


def _decided(kernel: Kernel, statement: Exec) -> Exec:
    buffers = [kernel.buffer(access.buffer) for access in statement.accesses]
    widths = {statement.width(position) for position in range(2)}
    offer = getattr(statement.instruction, "under_way", None)
    found = None
    # The instruction takes as many bytes from one memory as it brings to the other, and cannot convert on the way.
    if offer is not None and widths == {statement.vector} and buffers[0].dtype == buffers[1].dtype:
        found = offer(kernel.architecture, statement.vector * buffers[0].dtype.bytes)
    return attrs.evolve(statement, mechanism=AT_ONCE) if found is None else attrs.evolve(statement, instruction=found)
