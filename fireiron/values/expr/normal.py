"""Polynomials over atoms, the normal form: ordered nonzero terms, and a separate constant.

Equal polynomials are equal nodes; equality of values is decided by this form.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from fireiron.values.expr.nodes import Atoms, Const, Expr, Sum, Terms, assign, integer
from fireiron.values.expr.printing import text
from fireiron.values.expr.ranges import product_range


def terms_of(value: Expr) -> tuple[Terms, int]:
    """The terms and the constant of any value; a value that is not a sum is one term with one atom."""
    if isinstance(value, Const):
        return (), value.value
    if isinstance(value, Sum):
        return value.terms, value.constant
    return (((value,), 1),), 0


def polynomial(terms: Mapping[Atoms, int], number: int) -> Expr:
    """The value of terms and a constant: a `Const` or an atom if it is just that, else a `Sum` in order."""
    kept = [(atoms, coefficient) for atoms, coefficient in terms.items() if coefficient]
    if not kept:
        return integer(number)
    if len(kept) == 1 and number == 0 and kept[0][1] == 1 and len(kept[0][0]) == 1:
        return kept[0][0][0]
    if len(kept) > 1:
        kept.sort(key=_order)
    return Sum(tuple(kept), number)


def product_of(atoms: Atoms, coefficient: int) -> Expr:
    """One term as a value."""
    return polynomial({atoms: coefficient}, 0)


def _order(term: tuple[Atoms, int]) -> tuple[str, ...]:
    atoms = term[0]
    return (sort_key(atoms[0]),) if len(atoms) == 1 else tuple(sort_key(atom) for atom in atoms)


def sort_key(value: Expr) -> str:
    """The sort key of factors and terms: the text, which is the same in every process.

    A hash would suffice for equality, but it differs between processes, and so would the printed kernel.
    """
    try:
        return value._order
    except AttributeError:  # on first use
        assign(value, "_order", text(value))
        return value._order


def in_order(left: Expr, right: Expr) -> tuple[Expr, Expr]:
    """The operands of a commutative operation in a fixed order, so that `a ^ b` and `b ^ a` are equal nodes."""
    return (left, right) if sort_key(left) <= sort_key(right) else (right, left)


def split_by_factor(left: Expr, divisor: int) -> tuple[Expr, int] | None:
    """`left = scale*y + r` with `0 <= r < scale` and `scale` dividing the divisor: `(y, scale)`, largest scale first."""
    terms, number = terms_of(left)
    scales = {math.gcd(coefficient, divisor) for _, coefficient in terms} | {math.gcd(number, divisor) if number else 1}
    # Any scale is correct; the largest leaves the smallest divisor, so nested divisions collapse in one step.
    for scale in sorted(scales, reverse=True):
        if scale <= 1:
            continue
        high_part = {atoms: coefficient // scale for atoms, coefficient in terms if coefficient % scale == 0}
        low_part = polynomial({atoms: coefficient for atoms, coefficient in terms if coefficient % scale}, number % scale)
        if low_part.low >= 0 and low_part.high < scale:
            return polynomial(high_part, number // scale), scale
    return None


def split_exact(left: Expr, divisor: int) -> tuple[Expr, Expr] | None:
    """The terms whose values are all multiples of the divisor, and the rest."""
    terms, number = terms_of(left)
    exact = {atoms: coefficient for atoms, coefficient in terms if product_range(atoms, coefficient)[2] % divisor == 0}
    if not exact or (len(exact) == len(terms) and number == 0):
        return None
    rest = {atoms: coefficient for atoms, coefficient in terms if atoms not in exact}
    return polynomial(exact, 0), polynomial(rest, number)
