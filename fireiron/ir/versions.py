"""The two versions of a statement: without the conditions of the edge where all lies inside, and with them elsewhere.

The pass `covered` says of a statement where that is. Which of the two is performed is the same in a warp: the text has a branch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import attrs

from fireiron.ir.rewrite import edited
from fireiron.ir.statement import Comment, Exec, For, Stmt
from fireiron.values.expr import FALSE, Expr, Less, all_of, any_of, conjuncts, constant, less


def plain(one: Exec) -> Exec:
    """The version without what `whole` implies; that this holds is said outside."""
    pieces = tuple(tuple(attrs.evolve(piece, condition=_rest(piece.condition, one.implied)) for piece in pieces) for pieces in one.pieces)
    active, guard = _rest(one.active, one.implied), _rest(one.guard, one.implied)
    return attrs.evolve(one, active=active, guard=guard, pieces=pieces, whole=FALSE, implied=())


def inside(one: Exec) -> Exec:
    """The version that is performed where all lies inside."""
    made = plain(one)
    return attrs.evolve(made, active=all_of((made.active, one.whole)))


def versions(one: Exec) -> tuple[Exec, ...]:
    """A statement as those that are performed in its place, by each thread one of them; itself where it has one version."""
    if one.whole == FALSE:
        return (one,)
    outside = any_of(less(part.right - 1, part.left) for part in conjuncts(one.whole) if isinstance(part, Less))
    return inside(one), attrs.evolve(one, active=all_of((one.active, outside)), whole=FALSE, implied=())


def nest_of(statement: Stmt) -> tuple[tuple[For, ...], Exec | None]:
    """The loops around a statement that stands alone in them, with numbers of turns that are known, and that statement; else None."""
    loops: list[For] = []
    while isinstance(statement, For) and constant(statement.extent) is not None:
        inner = [one for one in statement.body if not isinstance(one, Comment)]
        if len(inner) != 1:
            return (), None
        loops.append(statement)
        (statement,) = inner
    return tuple(loops), statement if isinstance(statement, Exec) else None


def whole_of(statement: Stmt) -> Expr:
    """Where a statement, with the loops that are its own, has a version without conditions; false where it has none."""
    loops, one = nest_of(statement)
    if one is None or any(loop.var in one.whole.variables() for loop in loops):
        return FALSE
    return one.whole


def separated(body: Iterable[Stmt]) -> Iterator[Stmt]:
    """Statements of a list, each version with loops of its own."""
    for statement in body:
        if whole_of(statement) == FALSE:
            yield statement
        else:
            for number in range(2):
                yield from edited((statement,), lambda one, number=number: versions(one)[number])  # type: ignore[misc]


def _rest(condition: Expr, implied: Collection[Expr]) -> Expr:
    return all_of(part for part in conjuncts(condition) if part not in implied)
