"""The two versions of a statement: without boundary conditions, for interior tiles; and with them, for other tiles.

The pass `edge_versioning` determines the condition of the first one. The condition is warp-uniform, and the printed text branches on it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import attrs

from fireiron.ir.rewrite import edited
from fireiron.ir.statement import Comment, Exec, For, Stmt
from fireiron.values.expr import FALSE, Expr, Less, all_of, any_of, conjuncts, constant, less


def plain(stmt: Exec) -> Exec:
    """The version without the conditions that `interior` implies; the caller tests `interior`."""
    pieces = tuple(tuple(piece.under(stmt.implied) for piece in pieces) for pieces in stmt.pieces)
    active, guard = without(stmt.active, stmt.implied), without(stmt.guard, stmt.implied)
    return attrs.evolve(stmt, active=active, guard=guard, pieces=pieces, interior=FALSE, implied=())


def inside(stmt: Exec) -> Exec:
    """The version for interior tiles: it tests only `interior` and the conditions that `interior` does not imply."""
    version = plain(stmt)
    return attrs.evolve(version, active=all_of((version.active, stmt.interior)))


def versions(stmt: Exec) -> tuple[Exec, ...]:
    """The versions that replace a statement, of which each thread performs one; the statement itself if it has one version."""
    if stmt.interior == FALSE:
        return (stmt,)
    outside = any_of(less(part.right - 1, part.left) for part in conjuncts(stmt.interior) if isinstance(part, Less))
    return inside(stmt), attrs.evolve(stmt, active=all_of((stmt.active, outside)), interior=FALSE, implied=())


def nest_of(statement: Stmt) -> tuple[tuple[For, ...], Exec | None]:
    """The nested loops of known trip counts around a single statement, and that statement; `((), None)` for anything else."""
    loops: list[For] = []
    while isinstance(statement, For) and constant(statement.extent) is not None:
        inner = [stmt for stmt in statement.body if not isinstance(stmt, Comment)]
        if len(inner) != 1:
            return (), None
        loops.append(statement)
        (statement,) = inner
    return tuple(loops), statement if isinstance(statement, Exec) else None


def interior_condition(statement: Stmt) -> Expr:
    """The condition of the interior version of a statement with its own loops; false if it has none."""
    loops, stmt = nest_of(statement)
    if stmt is None or any(loop.var in stmt.interior.variables() for loop in loops):
        return FALSE
    return stmt.interior


def separated(body: Iterable[Stmt]) -> Iterator[Stmt]:
    """The statements of a list, with separate loops for each version."""
    for statement in body:
        if interior_condition(statement) == FALSE:
            yield statement
        else:
            for number in range(2):
                yield from edited((statement,), lambda one, number=number: versions(one)[number])  # type: ignore[misc]


def without(condition: Expr, implied: Collection[Expr]) -> Expr:
    """A condition without those of its parts that are implied."""
    return all_of(part for part in conjuncts(condition) if part not in implied)
