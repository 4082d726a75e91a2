"""The iterations of a loop in which no condition of its statements holds, for loops that are printed in parts (`For.separated`).

A statement of the loop, such as a mask, runs under a condition `left < right` that is linear in the loop variable. So it is false in the
first or in the last iterations, and their number is a quotient. Bounds of the terms that differ between threads make the numbers the same
for all of them. A bound that is not tight costs only time, because the other iterations keep the conditions.
"""

from __future__ import annotations

from collections.abc import Iterator

from fireiron.ir.rewrite import execs, statements
from fireiron.ir.statement import For, GridDepControl, Let
from fireiron.values.expr import ZERO, AnyOf, Expr, Less, Min, Var, conjuncts, less, minimum, replaced
from fireiron.values.expr.normal import polynomial, terms_of


def is_separable(loop: For) -> bool:
    """Whether a loop can be printed in parts: a condition separates its iterations, and it runs over a range that is not unrolled."""
    if loop.unroll or loop.first or loop.step != 1 or loop.prior_iterations is not None:
        return False
    if any(isinstance(stmt, GridDepControl) for stmt in statements(loop.body)):
        return False  # the numbers may be in arrays that an earlier kernel still writes
    return bool(plain_iterations(loop, frozenset())[2])


def plain_iterations(loop: For, varying: frozenset[Var]) -> tuple[Expr, Expr, frozenset[Expr]]:
    """The first iteration without masks and the end of these iterations, and the conditions that are false in them.

    Both are between 0 and the extent, and there is no such iteration if the end is not after the first one.
    """
    first: Expr = ZERO
    end, separated = loop.extent, []
    for condition, comparisons in _conditions(loop):
        lines = [_linear(value, loop.var) for one in comparisons for value in _unclamped(one.right - one.left, loop)]
        if any(loop.var in rest.variables() for _, rest in lines):
            continue
        separated.append(condition)
        for slope, rest in lines:
            if slope > 0:  # true from an iteration on: rest + slope * n > 0
                end = _smaller(end, _bound(-rest, varying, high=False) // slope + 1)
            else:  # true up to an iteration, or in all or none
                most = _bound(rest, varying, high=True)
                last = (most - slope - 1) // -slope if slope else less(ZERO, most) * loop.extent
                first = last - _smaller(last - first, ZERO)
    return _smaller(first, loop.extent), _at_least_zero(end), frozenset(separated)


def _conditions(loop: For) -> Iterator[tuple[Expr, tuple[Less, ...]]]:
    """The conditions of statements that are comparisons of the loop variable with names from outside the loop, or a disjunction of them."""
    inside = {stmt.var for stmt in statements(loop.body) if isinstance(stmt, (Let, For))}
    for condition in dict.fromkeys(part for stmt, _ in execs(loop.body) for part in conjuncts(stmt.active)):
        parts = condition.conditions if isinstance(condition, AnyOf) else (condition,)
        comparisons = tuple(one for one in parts if isinstance(one, Less) and loop.var in one.variables())
        if inside.isdisjoint(condition.variables()) and len(comparisons) == len(parts):
            yield condition, comparisons


def _unclamped(value: Expr, loop: For) -> list[Expr]:
    """Values of which one is at least the given value, without minima of a number and an increasing term.

    A minimum is at most the term. It is the term if that does not exceed the number in the last iteration.
    """
    atoms = {atoms[0]: count for atoms, count in terms_of(value)[0] if len(atoms) == 1 and isinstance(atoms[0], Min)}
    values = [value]
    for atom, count in atoms.items():
        number, term = (atom.left, atom.right) if loop.var in atom.right.variables() else (atom.right, atom.left)
        slope, rest = _linear(term, loop.var)
        if slope <= 0:
            continue
        is_term = count > 0 or (number - rest - (loop.extent - 1) * slope).low >= 0
        values = [replaced(one, {atom: other}) for one in values for other in ((term,) if is_term else (term, number))]
    return values


def _linear(value: Expr, var: Var) -> tuple[int, Expr]:
    """The coefficient of a variable, and the rest, which contains the variable if the value is not linear."""
    terms, number = terms_of(value)
    return dict(terms).get((var,), 0), polynomial({atoms: count for atoms, count in terms if atoms != (var,)}, number)


def _bound(value: Expr, varying: frozenset[Var], high: bool) -> Expr:
    """A bound of a value over all threads: terms that differ between them are replaced by their smallest or `high` value."""
    terms, number = terms_of(value)
    parts = {atoms: polynomial({atoms: count}, 0) for atoms, count in terms}
    bounded = [part for part in parts.values() if not varying.isdisjoint(part.variables())]
    same = {atoms: count for atoms, count in terms if varying.isdisjoint(parts[atoms].variables())}
    return polynomial(same, number + sum(part.high if high else part.low for part in bounded))


def _smaller(value: Expr, other: Expr) -> Expr:
    """The minimum of two values; one of them, if their difference has a sign."""
    return value if (other - value).low >= 0 else other if (value - other).low >= 0 else minimum(value, other)


def _at_least_zero(value: Expr) -> Expr:
    """The maximum of a value and 0."""
    return ZERO - _smaller(ZERO - value, ZERO)


__all__ = ["is_separable", "plain_iterations"]
