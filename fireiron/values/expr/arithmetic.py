"""Sums, products, quotients and remainders, simplified.

One module, because they depend on each other: a sum folds a quotient with its remainder, and a quotient is a sum of quotients.
"""

from __future__ import annotations

import functools

from fireiron.errors import ArgumentError
from fireiron.values.expr.nodes import ONE, ZERO, Atoms, Const, Expr, FloorDiv, Mod, Sum, as_expr, constant, integer
from fireiron.values.expr.normal import polynomial, product_of, sort_key, split_by_factor, split_exact, terms_of
from fireiron.values.expr.ranges import product_range


def add(left: Expr, right: Expr) -> Expr:
    """The sum, with `c*b*(x//b) + c*(x%b)` folded to `c*x`, and `c*(x//d)` to `(c//d)*x` where `d` divides `x` and `c`."""
    if right.__class__ is Const:
        if right.value == 0:
            return left
        if left.__class__ is Const:
            return integer(left.value + right.value)
    elif left.__class__ is Const and left.value == 0:
        return right
    return _add(left, right)


@functools.lru_cache(maxsize=50_000)
def _add(left: Expr, right: Expr) -> Expr:
    if isinstance(right, Const):
        return _raised(left, right.value)
    if isinstance(left, Const):
        return _raised(right, left.value)
    left_terms, left_constant = terms_of(left)
    right_terms, right_constant = terms_of(right)
    total = dict(left_terms)
    for atoms, coefficient in right_terms:
        total[atoms] = total.get(atoms, 0) + coefficient
    return _folded(total, left_constant + right_constant)


def subtract(left: Expr, right: Expr) -> Expr:
    """The difference, folded as in `add`."""
    if isinstance(right, Const):
        if right.value == 0:
            return left
        if isinstance(left, Const):
            return integer(left.value - right.value)
    return _subtract(left, right)


def _raised(value: Expr, number: int) -> Expr:
    """A value plus a number; a constant enables no folding, so the terms stay unchanged."""
    if not isinstance(value, Sum):
        return Sum((((value,), 1),), number)
    total = value.constant + number
    if total == 0 and len(value.terms) == 1 and value.terms[0][1] == 1 and len(value.terms[0][0]) == 1:
        return value.terms[0][0][0]
    return Sum(value.terms, total)


@functools.lru_cache(maxsize=50_000)
def _subtract(left: Expr, right: Expr) -> Expr:
    if isinstance(right, Const):
        return _raised(left, -right.value)
    left_terms, left_constant = terms_of(left)
    right_terms, right_constant = terms_of(right)
    total = dict(left_terms)
    for atoms, coefficient in right_terms:
        total[atoms] = total.get(atoms, 0) - coefficient
    return _folded(total, left_constant - right_constant)


def _folded(total: dict[Atoms, int], number: int) -> Expr:
    """The polynomial after two rules for tiled coordinates: a coordinate that is split into digits and reassembled is the coordinate.

    One fold may enable the next, so the result is folded again. Each fold removes a quotient or a remainder, so this terminates.
    """
    for atoms, coefficient in total.items():
        if not coefficient:
            continue
        for position, atom in enumerate(atoms):
            if isinstance(atom, FloorDiv):
                canceled = _cancel(coefficient, atom, atoms[:position] + atoms[position + 1 :])
                if canceled is not None:
                    remaining = {key: value for key, value in total.items() if key != atoms}
                    return add(_folded(remaining, number), canceled)
            if isinstance(atom, Mod):
                rest = atoms[:position] + atoms[position + 1 :]
                merged = _merge_remainder(total, atoms, coefficient, atom, rest)
                if merged is not None:
                    remaining, extra = merged
                    return add(_folded(remaining, number), extra)
    return polynomial(total, number)


def _cancel(coefficient: int, quotient: FloorDiv, rest: Atoms) -> Expr | None:
    """`coefficient * (x // d) * rest` with `d` dividing `x` and the coefficient: `(coefficient // d) * x * rest`."""
    divisor = constant(quotient.right)
    if divisor is None or coefficient % divisor or quotient.left.factor % divisor:
        return None
    return _scaled(coefficient // divisor, quotient.left, rest)


def _scaled(coefficient: int, value: Expr, atoms: Atoms) -> Expr:
    """`coefficient * value * atoms`."""
    product = mul(integer(coefficient), value)
    for atom in atoms:
        product = mul(product, atom)
    return product


def _merge_remainder(
    total: dict[Atoms, int], atoms: Atoms, coefficient: int, remainder: Mod, rest: Atoms
) -> tuple[dict[Atoms, int], Expr] | None:
    """`c*(x % b)` next to `c*b*(x // b)` or `c*b*((x // b) % a)`: the pair taken out, and what it equals."""
    if len(total) == 1:
        return None
    quotient = floordiv(remainder.left, remainder.right)
    for other_atoms, other_coefficient in total.items():
        if not other_coefficient or other_atoms == atoms:
            continue
        for position, atom in enumerate(other_atoms):
            whole = _quotient_partner(atom, quotient, remainder)
            if whole is None:
                continue
            scaled = _scaled(other_coefficient, ONE, other_atoms[:position] + other_atoms[position + 1 :])
            if scaled == _scaled(coefficient, remainder.right, rest):
                remaining = {key: value for key, value in total.items() if key not in (atoms, other_atoms)}
                return remaining, _scaled(coefficient, whole, rest)
    return None


def _quotient_partner(atom: Expr, quotient: Expr, remainder: Mod) -> Expr | None:
    """What `b*atom + remainder` equals for `remainder = x % b`, if the atom is `x // b`, `x // b - c` or `(x // b) % a`."""
    if atom == quotient:
        return remainder.left
    if isinstance(atom, FloorDiv) and isinstance(quotient, Sum) and quotient.terms == (((atom,), 1),):
        return add(remainder.left, mul(remainder.right, integer(-quotient.constant)))
    if isinstance(atom, Mod) and atom.left == quotient:
        return mod(remainder.left, mul(remainder.right, atom.right))
    return None


def mul(left: Expr, right: Expr) -> Expr:
    """The product, distributed over sums and folded as in `add`."""
    if left.__class__ is Const:
        left, right = right, left
    if right.__class__ is Const:
        if right.value == 1:
            return left
        if right.value == 0:
            return ZERO
        if left.__class__ is Const:
            return integer(left.value * right.value)
    return _mul(left, right)


@functools.lru_cache(maxsize=50_000)
def _mul(left: Expr, right: Expr) -> Expr:
    left_terms, left_constant = terms_of(left)
    if isinstance(right, Const):
        return _folded({atoms: coefficient * right.value for atoms, coefficient in left_terms}, left_constant * right.value)
    right_terms, right_constant = terms_of(right)
    total: dict[Atoms, int] = {}
    for left_atoms, left_coefficient in (*left_terms, ((), left_constant)):
        for right_atoms, right_coefficient in (*right_terms, ((), right_constant)):
            coefficient = left_coefficient * right_coefficient
            if not coefficient:
                continue
            atoms = tuple(sorted(left_atoms + right_atoms, key=sort_key))
            total[atoms] = total.get(atoms, 0) + coefficient
    number = total.pop((), 0)
    return _folded(total, number)


# ---------------------------------------------------------------------------------------------- division


def _check_divisor(divisor: Expr) -> None:
    if divisor.low < 1:
        raise ArgumentError(f"division by {divisor}: the divisor may be {divisor.low}", legal="a divisor that is always positive")


def floordiv(left: Expr, right: Expr) -> Expr:
    """`left // right`, rounding down; legal when the divisor is always positive."""
    _check_divisor(right)
    if isinstance(right, Const):
        if right.value == 1:
            return left
        if isinstance(left, Const):
            return integer(left.value // right.value)
        return _floordiv_constant(left, right.value)
    return ONE if left == right else _divide_symbolic(left, right)


def _divide_symbolic(left: Expr, right: Expr) -> Expr:
    """Terms with the divisor as a factor are divided; the rest stays in the quotient."""
    terms, number = terms_of(left)
    whole: Expr = ZERO
    rest: Expr = integer(number)
    for atoms, coefficient in terms:
        if right in atoms:
            position = atoms.index(right)
            whole = add(whole, _scaled(coefficient, ONE, atoms[:position] + atoms[position + 1 :]))
        else:
            rest = add(rest, product_of(atoms, coefficient))
    if isinstance(rest, Mod) and rest.right == right:
        return whole
    if isinstance(rest, Sum) and isinstance(right, Sum):
        factor = _factored(rest, right)
        if factor is not None:
            return add(whole, factor)
    return add(whole, _decided(FloorDiv(rest, right)))


def _factored(left: Sum, right: Sum) -> Expr | None:
    """The quotient of two polynomials if `left - quotient * right` is provably 0 or a remainder; else None."""
    leading, scale = right.terms[0]
    quotient: Expr = ZERO
    for atoms, coefficient in left.terms:
        rest = list(atoms)
        if coefficient % scale or any(rest.count(atom) < leading.count(atom) for atom in leading):
            continue
        for atom in leading:
            rest.remove(atom)
        quotient = add(quotient, product_of(tuple(rest), coefficient // scale) if rest else integer(coefficient // scale))
    if quotient == ZERO:
        return None
    remainder = add(left, mul(integer(-1), mul(quotient, right)))
    return quotient if remainder.low >= 0 and remainder.high < right.low else None


def _decided(quotient: FloorDiv) -> Expr:
    return integer(quotient.low) if quotient.low == quotient.high else quotient


@functools.lru_cache(maxsize=50_000)
def _floordiv_constant(left: Expr, divisor: int) -> Expr:
    terms, number = terms_of(left)
    whole: dict[Atoms, int] = {}
    rest: dict[Atoms, int] = {}
    for atoms, coefficient in terms:
        if coefficient % divisor == 0:
            whole[atoms] = coefficient // divisor
        else:
            rest[atoms] = coefficient
    remainder = polynomial(rest, number % divisor)
    quotient = polynomial(whole, number // divisor)
    return add(quotient, _floordiv_remainder(remainder, divisor))


def _floordiv_remainder(left: Expr, divisor: int) -> Expr:
    if left.low // divisor == left.high // divisor:
        return integer(left.low // divisor)
    if left.high <= 0:  # -(-n // d) rounds up; C++ truncates, so it must never divide a negative number
        return mul(integer(-1), floordiv(add(mul(left, integer(-1)), integer(divisor - 1)), integer(divisor)))
    if isinstance(left, FloorDiv) and isinstance(left.right, Const):
        return floordiv(left.left, integer(left.right.value * divisor))
    if isinstance(left, Mod) and isinstance(left.right, Const) and left.right.value % divisor == 0:
        return mod(floordiv(left.left, integer(divisor)), integer(left.right.value // divisor))
    split = split_by_factor(left, divisor)
    if split is not None:
        scaled, scale = split
        return floordiv(scaled, integer(divisor // scale))
    exact = split_exact(left, divisor)
    if exact is not None:
        part, other = exact
        return add(floordiv(part, integer(divisor)), floordiv(other, integer(divisor)))
    return FloorDiv(left, integer(divisor))


def mod(left: Expr, right: Expr) -> Expr:
    """`left % right`, never negative; legal when the divisor is always positive."""
    _check_divisor(right)
    if left.low >= 0 and left.high < right.low:
        return left
    if left.high < 0 and left.low >= -right.low:
        return add(left, right)
    if isinstance(right, Const):
        if right.value == 1:
            return ZERO
        if isinstance(left, Const):
            return integer(left.value % right.value)
        return _mod_constant(left, right.value)
    if left == right:
        return ZERO
    if isinstance(left, Mod) and left.right == right:
        return left
    terms, number = terms_of(left)
    rest = {atoms: coefficient for atoms, coefficient in terms if right not in atoms}
    if len(rest) < len(terms):
        return mod(polynomial(rest, number), right)
    return Mod(left, right)


@functools.lru_cache(maxsize=50_000)
def _mod_constant(left: Expr, divisor: int) -> Expr:
    terms, number = terms_of(left)
    rest = {atoms: coefficient for atoms, coefficient in terms if product_range(atoms, coefficient)[2] % divisor}
    reduced = polynomial(rest, number % divisor)
    if reduced.low // divisor == reduced.high // divisor:
        return _lifted(reduced, divisor)
    if isinstance(reduced, Mod) and isinstance(reduced.right, Const) and reduced.right.value % divisor == 0:
        return mod(reduced.left, integer(divisor))
    if reduced.low < 0:  # C's `%` has the sign of the dividend, Python's that of the divisor: they agree for nonnegative numbers
        reduced = _lifted(reduced, divisor)
    split = split_by_factor(reduced, divisor)
    if split is not None:
        scaled, scale = split
        low_part = add(reduced, mul(scaled, integer(-scale)))
        return add(mul(mod(scaled, integer(divisor // scale)), integer(scale)), low_part)
    return Mod(reduced, integer(divisor))


def _lifted(value: Expr, divisor: int) -> Expr:
    """The same residue class with a nonnegative range, so that C's `%` agrees."""
    return add(value, integer(-(value.low // divisor) * divisor))


def ceildiv(left: Expr | int, right: Expr | int) -> Expr:
    """`left / right` rounded up; legal when the divisor is always positive."""
    divisor = as_expr(right)
    return floordiv(add(as_expr(left), add(divisor, integer(-1))), divisor)
