"""`fold_single_trip`: if the condition of a statement leaves one value for a loop variable, use the value in its accesses.

A loop of two iterations that loads one iteration ahead loads only in its first iteration, into stage `(k + 1) % 2`, which is printed as
stage 1. This also avoids a bug of ptxas in CUDA 12.6 and 13.0: NVVM rewrites `(k + 1) % 2` as `~k & 1`, and after the branch `k == 0` ptxas
computes it as 0. The loads then overwrite the stage that is being read (docs/decisions/0067-compilers.md).
"""

from __future__ import annotations

from typing import Final

import attrs

from fireiron.ir import Exec, For, Kernel, Stmt, execs
from fireiron.values.expr import TRUE, Expr, Var, all_of, as_expr, conjuncts, constant

MOST_ITERATIONS: Final = 64
"""Maximum number of loop iterations that are tried one by one. No pipeline creates a condition that selects one of more iterations."""


def fold_single_trip(kernel: Kernel) -> Kernel:
    """The kernel with loop variables replaced where only one value is possible; the same kernel if there is none."""
    if not any(_values(statement, loops) for statement, loops in execs(kernel.body)):
        return kernel
    return attrs.evolve(kernel, body=_folded(kernel.body, ()))


def _folded(body: tuple[Stmt, ...], around: tuple[For, ...]) -> tuple[Stmt, ...]:
    return tuple(_folded_statement(statement, around) for statement in body)


def _folded_statement(statement: Stmt, around: tuple[For, ...]) -> Stmt:
    if isinstance(statement, Exec):
        values = _values(statement, around)
        return _with(statement, values) if values else statement
    if not statement.children:
        return statement
    inside = (*around, statement) if isinstance(statement, For) else around
    return statement.rebuilt(tuple(_folded(child, inside) for child in statement.children))


def _with(statement: Exec, values: dict[Var, Expr]) -> Exec:
    """A statement with the values in its accesses; its conditions stay."""
    result = statement.substitute(values)
    assert isinstance(result, Exec)
    return attrs.evolve(result, active=all_of((statement.active, result.active)))


def _values(statement: Exec, loops: tuple[For, ...]) -> dict[Var, Expr]:
    """The loop variables for which a statement's condition leaves one value, if an access depends on them."""
    if statement.active == TRUE:
        return {}
    used = {var for access in statement.accesses for part in (*access.base, access.copy) for var in part.variables()}
    values = {}
    for loop in loops:
        if loop.var in used and not loop.unroll and (value := _only(loop, statement.active)) is not None:
            values[loop.var] = as_expr(value)
    return values


def _only(loop: For, condition: Expr) -> int | None:
    """The only value of a loop variable for which a condition may be true; None if there are several or they are unknown."""
    count = constant(loop.extent)
    conditions = [part for part in conjuncts(condition) if part.variables() == {loop.var}]
    if count is None or not conditions or len(iterations := loop.values(count)) > MOST_ITERATIONS:
        return None
    left = [iteration for iteration in iterations if all(part.substitute({loop.var: as_expr(iteration)}) == TRUE for part in conditions)]
    return left[0] if len(left) == 1 else None
