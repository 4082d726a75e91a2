"""`asynchronous`: replace copies that may be asynchronous by the target's instruction for it, if their width allows.

A copy that is too narrow (odd sizes, unaligned rows) stays a load and a store: correct, but slower.
"""

from __future__ import annotations

from fireiron.frozen import evolve
from fireiron.ir import AT_ONCE, Commit, Exec, Kernel, Mechanism, Stmt, edited, execs, rewritten


def asynchronous(kernel: Kernel) -> Kernel:
    """The kernel with asynchronous copies where possible, and without commits of copies that it does not have."""
    body = edited(kernel.body, lambda statement: _decided(kernel, statement) if _is_marked(statement) else statement)
    # Commits of `pipeline` would form empty groups, and the printer would have no statement that prints them.
    issued = {statement.mechanism for statement, _ in execs(body)}
    return evolve(kernel, body=rewritten(body, lambda one: () if _is_empty(one, issued) else (one,)))


def _is_empty(statement: Stmt, issued: set[Mechanism]) -> bool:
    """Whether a statement commits copies of a mechanism that no statement uses."""
    return isinstance(statement, Commit) and statement.mechanism.arrives_in_groups and statement.mechanism not in issued


def _is_marked(statement: Exec) -> bool:
    """Whether a copy may be asynchronous but its instruction is not yet."""
    return statement.mechanism.arrives_in_groups and statement.mechanism is not statement.instruction.mechanism


def _decided(kernel: Kernel, statement: Exec) -> Exec:
    buffers = [kernel.buffer(access.buffer) for access in statement.accesses]
    widths = {statement.width(position) for position in range(2)}
    offer = getattr(statement.instruction, "async_copy", None)
    instruction = None
    # The instruction copies the same number of bytes and cannot convert; outside of an array it writes zeros.
    fits = buffers[0].dtype == buffers[1].dtype and not buffers[0].storage.outside
    if offer is not None and widths == {statement.vector} and fits:
        instruction = offer(kernel.architecture, statement.vector * buffers[0].dtype.bytes)
    return evolve(statement, mechanism=AT_ONCE) if instruction is None else evolve(statement, instruction=instruction)
