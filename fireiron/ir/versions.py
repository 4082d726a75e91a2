"""The two versions of a statement: without boundary conditions for interior tiles, and with them for others.

The pass `edge_versioning` determines where the first one applies. The choice is warp-uniform, and the printed text branches.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import attrs

from fireiron.ir.rewrite import edited
from fireiron.ir.statement import Comment, Exec, For, Stmt
from fireiron.values.expr import FALSE, Expr, Less, all_of, any_of, conjuncts, constant, less


def plain(one: Exec) -> Exec:
    """The version without the conditions that `whole` implies; the caller tests `whole`."""
    pieces = tuple(tuple(attrs.evolve(piece, condition=_rest(piece.condition, one.implied)) for piece in pieces) for pieces in one.pieces)
    active, guard = _rest(one.active, one.implied), _rest(one.guard, one.implied)
    return attrs.evolve(one, active=active, guard=guard, pieces=pieces, whole=FALSE, implied=())


def inside(one: Exec) -> Exec:
    """The version for interior tiles, which tests `whole`."""
    made = plain(one)
    return attrs.evolve(made, active=all_of((made.active, one.whole)))


def versions(one: Exec) -> tuple[Exec, ...]:
    """The versions that replace a statement, of which each thread performs one; the statement itself if it has one version."""
    if one.whole == FALSE:
        return (one,)
    outside = any_of(less(part.right - 1, part.left) for part in conjuncts(one.whole) if isinstance(part, Less))
    return inside(one), attrs.evolve(one, active=all_of((one.active, outside)), whole=FALSE, implied=())


def nest_of(statement: Stmt) -> tuple[tuple[For, ...], Exec | None]:
    """The nested loops of known trip counts around a single statement, and that statement; `((), None)` for anything else."""
    loops: list[For] = []
    while isinstance(statement, For) and constant(statement.extent) is not None:
        inner = [one for one in statement.body if not isinstance(one, Comment)]
        if len(inner) != 1:
            return (), None
        loops.append(statement)
        (statement,) = inner
    return tuple(loops), statement if isinstance(statement, Exec) else None


def whole_of(statement: Stmt) -> Expr:
    """The condition of the interior version of a statement with its own loops; false if it has none."""
    loops, one = nest_of(statement)
    if one is None or any(loop.var in one.whole.variables() for loop in loops):
        return FALSE
    return one.whole


def separated(body: Iterable[Stmt]) -> Iterator[Stmt]:
    """The statements of a list, with separate loops for each version."""
    for statement in body:
        if whole_of(statement) == FALSE:
            yield statement
        else:
            for number in range(2):
                yield from edited((statement,), lambda one, number=number: versions(one)[number])  # type: ignore[misc]


def _rest(condition: Expr, implied: Collection[Expr]) -> Expr:
    return all_of(part for part in conjuncts(condition) if part not in implied)
