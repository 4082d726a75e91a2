"""Loops of which data say what turns are taken, as loops of so many turns: what the checks follow.

A turn that is left out touches nothing. Where all turns touch the same elements of what threads share, whichever of them are taken are as
good as the first ones: as many turns, a number known only at run time. Reads of global memory that the turn moves do not matter, as
nothing writes there. Barriers, fences and waits for copies after a turn that is left out would order more, and are not
counted. The number of a turn among those that were taken, by which a ring goes on, is that of the counted loop.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import attrs

from fireiron.ir import Acquire, Barrier, Comment, Fence, For, Kernel, Let, Release, Stmt, Wait, execs, statements, substituted
from fireiron.values.expr import ONE, Expr, Min, Var, constant, minimum, tables_of

TAKEN: Final = "_taken"
"""The end of the name of how many turns of a loop are taken."""

ORDERING: Final = (Barrier, Fence, Wait)
"""Statements that touch nothing and order what others touch."""


def with_counted_iterations(kernel: Kernel) -> Kernel:
    """The kernel with loops of so many turns, known at run time, in the place of those whose turns data choose, where that is the same."""
    lets = {one.var: one.value for one in statements(kernel.body) if isinstance(one, Let)}
    if not any(tables_of(value) for value in lets.values()):
        return kernel
    counts: list[Var] = []
    body = tuple(_counted(one, kernel, lets, counts, False) for one in kernel.body)
    return attrs.evolve(kernel, body=body, symbols=(*kernel.symbols, *counts)) if counts else kernel


def max_trip_count(extent: Expr) -> Expr:
    """The turns that a loop may have: of one that is counted, those that it had before."""
    if isinstance(extent, Min):
        for count, turns in ((extent.left, extent.right), (extent.right, extent.left)):
            if isinstance(count, Var) and count.parameter and count.name.endswith(TAKEN):
                return turns
    return extent


def _counted(one: Stmt, kernel: Kernel, lets: Mapping[Var, Expr], counts: list[Var], again: bool) -> Stmt:
    """A statement with such loops in it counted; `again` says that a loop around executes it again and again."""
    if not one.children:
        return one
    inner = _chosen(one, lets) if isinstance(one, For) else None
    if inner is None or not isinstance(one, For) or not _may_count(one, inner, kernel, lets, again):
        again = again or isinstance(one, For)
        return one.rebuilt(tuple(tuple(_counted(part, kernel, lets, counts, again) for part in child) for child in one.children))
    count = next((known for known in counts if known.name == f"{one.var.name}{TAKEN}"), None)  # another role takes the same turns
    if count is None:
        counts.append(count := Var(f"{one.var.name}{TAKEN}", 0, max(one.extent.high, 0), parameter=True))
    if inner.prior_iterations is not None:
        inner = attrs.evolve(inner, prior_iterations=None, body=substituted(inner.body, {inner.prior_iterations: one.var}))
    ends = tuple(part for part in one.body if isinstance(part, ORDERING))
    extent = count if constant(one.extent) is not None else minimum(count, one.extent)
    return attrs.evolve(one, extent=extent, body=(attrs.evolve(inner, extent=ONE), *ends))


def _may_count(loop: For, inner: For, kernel: Kernel, lets: Mapping[Var, Expr], again: bool) -> bool:
    """Whether as many turns are as good as those that data choose."""
    goes_on = again and inner.prior_iterations is not None  # its count would go on from one execution to the next
    return not goes_on and _alike(loop, inner, kernel, lets) and _of_whole_clusters(inner.extent, kernel, lets)


def _chosen(loop: For, lets: Mapping[Var, Expr]) -> For | None:
    """What a turn does if data say so, and nothing else does anything in it, but for `ORDERING` statements after it."""
    rest = [one for one in loop.body if not isinstance(one, (Let, Comment))]
    if not rest or any(not isinstance(one, ORDERING) for one in rest[1:]) or not isinstance(rest[0], For) or rest[0].extent.high > 1:
        return None
    return rest[0] if isinstance(rest[0].extent, Var) and _reads(rest[0].extent, lets) else None


def _of_whole_clusters(taken: Expr, kernel: Kernel, lets: Mapping[Var, Expr]) -> bool:
    """Whether all blocks of a cluster, which wait for each other, take a turn or none does."""
    return kernel.cluster is None or kernel.cluster.is_uniform(taken, kernel.block, lets)


def _reads(value: Expr, lets: Mapping[Var, Expr]) -> bool:
    """Whether a value is made of what the kernel reads from memory."""
    return bool(tables_of(value)) or any(_reads(lets[var], lets) for var in value.variables() if var in lets)


def _alike(loop: For, inner: For, kernel: Kernel, lets: Mapping[Var, Expr]) -> bool:
    """Whether all turns touch the same elements of what threads share, and write nothing else."""
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
