"""Traversal and rewriting of programs. All passes and readers use these functions."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

from fireiron.ir.ask import Ask
from fireiron.ir.statement import Exec, For, Hole, Let, Stmt
from fireiron.values.expr import Expr, Var

T = TypeVar("T")

MOST_REMEMBERED: Final = 256
"""Maximum number of results that `by_identity` caches."""

MOST_SMALL: Final = 4096
"""Maximum number of results that `by_identities` caches."""


def rewritten(body: Iterable[Stmt], rewrite: Callable[[Stmt], Sequence[Stmt]]) -> tuple[Stmt, ...]:
    """The program with each statement replaced by the result of `rewrite`, inner statements first.

    `rewrite` returns the statements that replace its argument: `(statement,)` keeps it, `()` removes it. A statement without changes inside
    stays the same object.
    """
    result: list[Stmt] = []
    for statement in body:
        children = statement.children
        if children:
            # Unchanged statements stay the same objects: they cache their hashes, and the caches of readers find them.
            others = tuple([rewritten(child, rewrite) for child in children])
            if not all(map(_same_statements, children, others)):
                statement = statement.rebuilt(others)
        result += rewrite(statement)
    return tuple(result)


def _same_statements(body: Sequence[Stmt], other: Sequence[Stmt]) -> bool:
    return len(body) == len(other) and all(map(operator.is_, body, other))


def edited(body: Iterable[Stmt], edit: Callable[[Exec], Exec]) -> tuple[Stmt, ...]:
    """The program with each `Exec` replaced by the result of `edit`."""
    return rewritten(body, lambda statement: (edit(statement) if isinstance(statement, Exec) else statement,))


def substituted(body: Iterable[Stmt], values: Mapping[Var, Expr | int]) -> tuple[Stmt, ...]:
    """The program with variables replaced everywhere."""
    return rewritten(body, lambda statement: (statement.substitute(values),))


def without_asks(body: tuple[Stmt, ...], *kinds: type[Ask]) -> tuple[Stmt, ...]:
    """The program after a pass that handles these kinds of requests: no loop has them."""
    if not any(kind in stmt.asks for stmt in statements(body) if isinstance(stmt, For) for kind in kinds):
        return body
    return rewritten(body, lambda statement: (statement.without(*kinds) if isinstance(statement, For) else statement,))


def filled(program: Iterable[Stmt], holes: Mapping[str, tuple[Stmt, ...]]) -> tuple[Stmt, ...]:
    """The program with each hole replaced by the statements of its name."""
    return rewritten(program, lambda statement: holes[statement.child] if isinstance(statement, Hole) else (statement,))


def statements(body: Iterable[Stmt]) -> Iterator[Stmt]:
    """All statements, outer before inner, in program order."""
    if isinstance(body, tuple):
        return iter(_all(body) if len(body) > 1 else _of_single(body))
    return iter(_flat(body))


def located(body: Iterable[Stmt]) -> Iterator[tuple[Stmt, tuple[Stmt, ...]]]:
    """All statements in program order, each with the statements that contain it, outermost first."""
    return iter(_all_located(body) if isinstance(body, tuple) else _placed(body, (), []))


def execs(body: Iterable[Stmt]) -> Iterator[tuple[Exec, tuple[For, ...]]]:
    """All `Exec` statements with the loops around them, outermost first."""
    if isinstance(body, tuple):
        return iter(_all_execs(body) if len(body) > 1 else _execs_of_single(body))
    return iter(_looped(body, (), []))


def variables(body: Iterable[Stmt]) -> set[Var]:
    """All variables that the statements refer to."""
    return {var for statement in statements(body) for value in statement.expressions for var in value.variables()}


def by_identity(function: Callable[[Any], T]) -> Callable[[Any], T]:
    """Cache the last results of a function by the identity of its argument; comparing programs for equality would take longer."""
    known: dict[int, tuple[Any, T]] = {}  # with the object, so that its id stays unique

    @functools.wraps(function)
    def answer(value: Any) -> T:
        cached = known.get(id(value))
        if cached is None:
            if len(known) >= MOST_REMEMBERED:
                known.clear()
            cached = known[id(value)] = (value, function(value))
        return cached[1]

    return answer


def by_identities(function: Callable[..., T]) -> Callable[..., T]:
    """Cache small results of a function of several objects, such as a statement and its context, like `by_identity`."""
    known: dict[tuple[int, ...], tuple[tuple[Any, ...], T]] = {}

    @functools.wraps(function)
    def answer(*values: Any) -> T:
        key = tuple(map(id, values))
        cached = known.get(key)
        if cached is None:
            if len(known) >= MOST_SMALL:
                known.clear()
            cached = known[key] = (values, function(*values))
        return cached[1]

    return answer


def _flat(body: Iterable[Stmt]) -> list[Stmt]:
    result: list[Stmt] = []
    for statement in body:
        result.append(statement)
        for child in statement.children:
            result += _flat(child)
    return result


Located = tuple[Stmt, tuple[Stmt, ...]]


def _placed(body: Iterable[Stmt], around: tuple[Stmt, ...], result: list[Located]) -> list[Located]:
    for statement in body:
        result.append((statement, around))
        for child in statement.children:
            _placed(child, (*around, statement), result)
    return result


Looped = tuple[Exec, tuple[For, ...]]


def _looped(body: Iterable[Stmt], loops: tuple[For, ...], result: list[Looped]) -> list[Looped]:
    for statement in body:
        if isinstance(statement, Exec):
            result.append((statement, loops))
        elif children := statement.children:
            inside = (*loops, statement) if isinstance(statement, For) else loops
            for child in children:
                _looped(child, inside, result)
    return result


@by_identity
def _all(body: tuple[Stmt, ...]) -> list[Stmt]:
    return _flat(body)


def _of_single(body: tuple[Stmt, ...]) -> Sequence[Stmt]:
    """All statements of a list of at most one, cached by this statement: callers create such lists for a part of a program."""
    return _inside(body[0]) if body and body[0].children else body


@by_identity
def _inside(statement: Stmt) -> list[Stmt]:
    return _flat((statement,))


def _execs_of_single(body: tuple[Stmt, ...]) -> Sequence[Looped]:
    """The same for `Exec` statements with the loops around them."""
    if body and isinstance(body[0], Exec):
        return ((body[0], ()),)
    return _execs_inside(body[0]) if body and body[0].children else ()


@by_identity
def _execs_inside(statement: Stmt) -> list[Looped]:
    return _looped((statement,), (), [])


@by_identity
def _all_located(body: tuple[Stmt, ...]) -> list[Located]:
    return _placed(body, (), [])


@by_identity
def _all_execs(body: tuple[Stmt, ...]) -> list[Looped]:
    return _looped(body, (), [])


@by_identity
def lets(body: tuple[Stmt, ...]) -> Mapping[Var, Expr]:
    """All names with their definitions, in program order."""
    return {statement.var: statement.value for statement in statements(body) if isinstance(statement, Let)}
