"""Print statements with two versions as one branch; consecutive statements with the same condition share it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import attrs

from fireiron.frozen import evolve
from fireiron.ir import Comment, Kernel, Stmt, edited, execs, interior_condition, plain
from fireiron.values.expr import FALSE, Expr, Var


@attrs.frozen(cache_hash=True)
class Branch(Stmt):
    """The statements to execute if `interior` is true, and those if it is false; the condition is warp-uniform."""

    interior: Expr
    inside: tuple[Stmt, ...]
    outside: tuple[Stmt, ...]

    @property
    def children(self) -> tuple[tuple[Stmt, ...], ...]:
        """Both lists."""
        return (self.inside, self.outside)

    def rebuilt(self, children: tuple[tuple[Stmt, ...], ...]) -> Branch:
        """The same condition between other lists."""
        inside, outside = children
        return evolve(self, inside=inside, outside=outside)

    @property
    def expressions(self) -> tuple[Expr, ...]:
        """The condition."""
        return (self.interior,)

    def substitute(self, values: Mapping[Var, Expr | int]) -> Branch:
        """The branch with variables replaced in its condition."""
        return evolve(self, interior=self.interior.substitute(values))


def branched(kernel: Kernel) -> Kernel:
    """Replace statements that have two versions by a branch."""
    if all(one.interior == FALSE for one, _ in execs(kernel.body)):
        return kernel
    return evolve(kernel, body=_listed(kernel.body))


def _listed(body: Iterable[Stmt]) -> tuple[Stmt, ...]:
    result: list[Stmt] = []
    run: list[Stmt] = []
    for statement in body:
        interior = interior_condition(statement)
        if run and (isinstance(statement, Comment) or interior == interior_condition(run[0])):
            run.append(statement)
            continue
        result += _branch(run)
        run = [] if interior == FALSE else [statement]
        if not run:
            result.append(statement.rebuilt(tuple(map(_listed, statement.children))) if statement.children else statement)
    return (*result, *_branch(run))


def _branch(run: Sequence[Stmt]) -> list[Stmt]:
    """Make one branch of a run; comments go to its first part, those after the last statement follow it."""
    if not run:
        return []
    last = max(place for place, one in enumerate(run) if not isinstance(one, Comment))
    shared = run[: last + 1]
    outside = edited((one for one in shared if not isinstance(one, Comment)), lambda one: evolve(one, interior=FALSE, implied=()))
    return [Branch(interior_condition(run[0]), edited(shared, plain), outside), *run[last + 1 :]]
