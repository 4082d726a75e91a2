"""Replace loops whose executed iterations depend on data by loops with a run-time trip count, which the checks can follow.

A skipped iteration accesses nothing. If all iterations access the same elements of shared data, it does not matter which ones are executed:
they are equivalent to the first n iterations, with n known at run time. Reads of global memory may vary by iteration, because the loop does
not write there. Barriers, fences and waits for copies after a skipped iteration would only add order, so they are not counted. The index
among the executed iterations, which a ring uses as fill index, becomes the variable of the counted loop.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import attrs

from fireiron.ir import Acquire, Barrier, Comment, Fence, For, Kernel, Let, Release, Stmt, Wait, execs, statements, substituted
from fireiron.values.expr import ONE, Expr, Min, Var, constant, minimum, tables_of

COUNT_SUFFIX: Final = "_taken"
"""The suffix of the variable that counts the executed iterations of a loop."""

ORDERING: Final = (Barrier, Fence, Wait)
"""Statements that access nothing and order other accesses."""


def with_counted_iterations(kernel: Kernel) -> Kernel:
    """The kernel with counted loops in place of data-dependent ones, if they are equivalent."""
    lets = {one.var: one.value for one in statements(kernel.body) if isinstance(one, Let)}
    if not any(tables_of(value) for value in lets.values()):
        return kernel
    counters: list[Var] = []
    body = tuple(_with_counted_loops(one, kernel, lets, counters, False) for one in kernel.body)
    return attrs.evolve(kernel, body=body, symbols=(*kernel.symbols, *counters)) if counters else kernel


def max_trip_count(extent: Expr) -> Expr:
    """The maximum trip count of a loop: for a counted loop, the original extent."""
    if isinstance(extent, Min):
        for count, original in ((extent.left, extent.right), (extent.right, extent.left)):
            if isinstance(count, Var) and count.parameter and count.name.endswith(COUNT_SUFFIX):
                return original
    return extent


def _with_counted_loops(stmt: Stmt, kernel: Kernel, lets: Mapping[Var, Expr], counters: list[Var], repeated: bool) -> Stmt:
    """A statement whose data-dependent loops are counted, if possible. `repeated`: a surrounding loop executes it repeatedly."""
    if not stmt.children:
        return stmt
    inner = _conditional_body(stmt, lets) if isinstance(stmt, For) else None
    if inner is None or not isinstance(stmt, For) or not _can_count(stmt, inner, kernel, lets, repeated):
        repeated = repeated or isinstance(stmt, For)
        return stmt.rebuilt(
            tuple(tuple(_with_counted_loops(part, kernel, lets, counters, repeated) for part in child) for child in stmt.children)
        )
    # another role executes the same iterations
    count = next((known for known in counters if known.name == f"{stmt.var.name}{COUNT_SUFFIX}"), None)
    if count is None:
        counters.append(count := Var(f"{stmt.var.name}{COUNT_SUFFIX}", 0, max(stmt.extent.high, 0), parameter=True))
    if inner.prior_iterations is not None:
        inner = attrs.evolve(inner, prior_iterations=None, body=substituted(inner.body, {inner.prior_iterations: stmt.var}))
    ends = tuple(part for part in stmt.body if isinstance(part, ORDERING))
    extent = count if constant(stmt.extent) is not None else minimum(count, stmt.extent)
    return attrs.evolve(stmt, extent=extent, body=(attrs.evolve(inner, extent=ONE), *ends))


def _can_count(loop: For, inner: For, kernel: Kernel, lets: Mapping[Var, Expr], repeated: bool) -> bool:
    """Whether the first n iterations are equivalent to the n iterations that the data select."""
    continues = repeated and inner.prior_iterations is not None  # its count would continue from one execution to the next
    return not continues and _iterations_equivalent(loop, inner, kernel, lets) and _of_whole_clusters(inner.extent, kernel, lets)


def _conditional_body(loop: For, lets: Mapping[Var, Expr]) -> For | None:
    """The data-dependent body of an iteration, if the iteration contains nothing else but `ORDERING` statements after it; else None."""
    rest = [one for one in loop.body if not isinstance(one, (Let, Comment))]
    if not rest or any(not isinstance(one, ORDERING) for one in rest[1:]) or not isinstance(rest[0], For) or rest[0].extent.high > 1:
        return None
    return rest[0] if isinstance(rest[0].extent, Var) and _reads(rest[0].extent, lets) else None


def _of_whole_clusters(executed: Expr, kernel: Kernel, lets: Mapping[Var, Expr]) -> bool:
    """Whether all blocks of a cluster, which wait for each other, execute the same iterations."""
    return kernel.cluster is None or kernel.cluster.is_uniform(executed, kernel.block, lets)


def _reads(value: Expr, lets: Mapping[Var, Expr]) -> bool:
    """Whether a value depends on data that the kernel reads from memory."""
    return bool(tables_of(value)) or any(_reads(lets[var], lets) for var in value.variables() if var in lets)


def _iterations_equivalent(loop: For, inner: For, kernel: Kernel, lets: Mapping[Var, Expr]) -> bool:
    """Whether all iterations access the same elements of shared data, and write nothing else."""
    if any(isinstance(one, (Acquire, Release)) and _depends(one.fill_index, loop.var, lets) for one in statements(inner.body)):
        return False
    for statement, _ in execs(inner.body):
        for access in statement.accesses:
            shared = not kernel.buffer(access.buffer).memory.of_grid
            if access.write and not shared:
                return False
            if shared and any(_depends(value, loop.var, lets) for value in (*access.expressions(), statement.performed)):
                return False
    return True


def _depends(value: Expr, var: Var, lets: Mapping[Var, Expr]) -> bool:
    return any(one == var or (one in lets and _depends(lets[one], var, lets)) for one in value.variables())


__all__ = ["max_trip_count", "with_counted_iterations"]
