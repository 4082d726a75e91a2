"""`pin`: where a statement's condition leaves one value to the variable of a loop around it, the value stands in its accesses.

A loop of two turns that loads one turn ahead loads in its first turn only, into stage `(k + 1) % 2`: that is stage 1, and is printed so.
It is not for looks alone. ptxas of CUDA 12.6 and 13.0 takes `k` as 0 behind the branch `k == 0` as well, and then makes 0 of `~k & 1`,
which NVVM has made of `(k + 1) % 2`: the loads go to the stage that is being read, and the product is wrong
(docs/decisions/0067-compilers.md).
"""

from __future__ import annotations

from typing import Final

import attrs

from fireiron.ir import Exec, For, Kernel, Stmt, execs
from fireiron.values.expr import TRUE, Expr, Var, all_of, as_expr, conjuncts, constant

MOST_TURNS: Final = 64
"""Most loop iterations that are tried one by one. No pipeline makes a condition that selects one of more."""


def fold_single_trip(kernel: Kernel) -> Kernel:
    """The kernel with variables of loops replaced where only one value is possible; itself where there is no such place."""
    if not any(_values(statement, loops) for statement, loops in execs(kernel.body)):
        return kernel
    return attrs.evolve(kernel, body=_pinned(kernel.body, ()))


def _pinned(body: tuple[Stmt, ...], around: tuple[For, ...]) -> tuple[Stmt, ...]:
    return tuple(_one(statement, around) for statement in body)


def _one(statement: Stmt, around: tuple[For, ...]) -> Stmt:
    if isinstance(statement, Exec):
        values = _values(statement, around)
        return _with(statement, values) if values else statement
    if not statement.children:
        return statement
    inside = (*around, statement) if isinstance(statement, For) else around
    return statement.rebuilt(tuple(_pinned(child, inside) for child in statement.children))


def _with(statement: Exec, values: dict[Var, Expr]) -> Exec:
    """A statement with the values in it, and the conditions that say so as they were."""
    made = statement.substitute(values)
    assert isinstance(made, Exec)
    return attrs.evolve(made, active=all_of((statement.active, made.active)))


def _values(statement: Exec, loops: tuple[For, ...]) -> dict[Var, Expr]:
    """The variables of which a statement's condition leaves one value, if it touches anything that depends on them."""
    if statement.active == TRUE:
        return {}
    used = {var for access in statement.accesses for part in (*access.base, access.copy) for var in part.variables()}
    found = {}
    for loop in loops:
        if loop.var in used and not loop.unroll and (value := _only(loop, statement.active)) is not None:
            found[loop.var] = as_expr(value)
    return found


def _only(loop: For, condition: Expr) -> int | None:
    """The only value of a loop's variable with which a condition may hold; None if there are more, or it is not known."""
    count = constant(loop.extent)
    said = [one for one in conjuncts(condition) if one.variables() == {loop.var}]
    if count is None or not said or len(turns := loop.values(count)) > MOST_TURNS:
        return None
    left = [turn for turn in turns if all(one.substitute({loop.var: as_expr(turn)}) == TRUE for one in said)]
    return left[0] if len(left) == 1 else None
