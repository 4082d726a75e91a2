"""How programs are walked and rewritten: every pass and reader goes through these, and through nothing of its own."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

from fireiron.ir.statement import Exec, For, Hole, Let, Stmt
from fireiron.values.expr import Expr, Var

T = TypeVar("T")

MOST_REMEMBERED: Final = 256
"""Answers that `by_identity` keeps."""


def rewritten(body: Iterable[Stmt], rewrite: Callable[[Stmt], Sequence[Stmt]]) -> tuple[Stmt, ...]:
    """The program with each statement replaced by what `rewrite` makes of it, inner statements before the one around them.

    `rewrite` returns the statements that take the place of its argument: `(statement,)` leaves it, `()` removes it. A
    statement of which nothing changed inside stays the same object.
    """
    result: list[Stmt] = []
    for statement in body:
        children = statement.children
        if children:
            # Unchanged statements stay the same objects: hashes are kept in them, and memo tables of readers find them again.
            others = tuple(rewritten(child, rewrite) for child in children)
            if any(new is not old for child, other in zip(children, others) for new, old in itertools.zip_longest(other, child)):
                statement = statement.rebuilt(others)
        result += rewrite(statement)
    return tuple(result)


def edited(body: Iterable[Stmt], edit: Callable[[Exec], Exec]) -> tuple[Stmt, ...]:
    """The program with each `Exec` replaced by what `edit` makes of it."""
    return rewritten(body, lambda statement: (edit(statement) if isinstance(statement, Exec) else statement,))


def substituted(body: Iterable[Stmt], values: Mapping[Var, Expr | int]) -> tuple[Stmt, ...]:
    """The program with variables replaced everywhere."""
    return rewritten(body, lambda statement: (statement.substitute(values),))


def filled(program: Iterable[Stmt], holes: Mapping[str, tuple[Stmt, ...]]) -> tuple[Stmt, ...]:
    """The program with each hole replaced by the statements of its name."""
    return rewritten(program, lambda statement: holes[statement.child] if isinstance(statement, Hole) else (statement,))


def statements(body: Iterable[Stmt]) -> Iterator[Stmt]:
    """All statements, outer before inner, in program order."""
    for statement in body:
        yield statement
        for child in statement.children:
            yield from statements(child)


def located(body: Iterable[Stmt], around: tuple[Stmt, ...] = ()) -> Iterator[tuple[Stmt, tuple[Stmt, ...]]]:
    """All statements in program order, each with the statements that contain it, outermost first."""
    for statement in body:
        yield statement, around
        for child in statement.children:
            yield from located(child, (*around, statement))


def execs(body: Iterable[Stmt]) -> Iterator[tuple[Exec, tuple[For, ...]]]:
    """All `Exec` with the loops around them, outermost first."""
    for statement, around in located(body):
        if isinstance(statement, Exec):
            yield statement, tuple(one for one in around if isinstance(one, For))


def variables(body: Iterable[Stmt]) -> set[Var]:
    """All variables that the statements refer to."""
    return {var for statement in statements(body) for value in statement.expressions for var in value.variables()}


def by_identity(function: Callable[[Any], T]) -> Callable[[Any], T]:
    """The function, which remembers its last answers for the very same object: to compare two equal programs would take longer."""
    known: dict[int, tuple[Any, T]] = {}  # with the object, so that no other gets its number

    @functools.wraps(function)
    def answer(value: Any) -> T:
        found = known.get(id(value))
        if found is None:
            if len(known) >= MOST_REMEMBERED:
                known.clear()
            found = known[id(value)] = (value, function(value))
        return found[1]

    return answer


@by_identity
def lets(body: tuple[Stmt, ...]) -> Mapping[Var, Expr]:
    """All names with their definitions, in program order."""
    return {statement.var: statement.value for statement in statements(body) if isinstance(statement, Let)}
