"""Reciprocals of launch constants: a kernel divides by sizes known at run time with a product, of which its launcher sends a factor.

An integer division takes a GPU some 20 instructions and as many waits for each other, and those that find the tile of a block stand in
front of its first load. The divisors of most of them are the same for all threads of a launch, so the host divides, once.

*Theorem.* For 0 <= x < 2^31 and 1 <= d < 2^31 let r = ceil(2^63 / d). Then floor(x * r / 2^63) = floor(x / d).
*Proof.* r = (2^63 + e) / d with 0 <= e < d, so x * r / 2^63 = x / d + (x * e / 2^63) / d. The last term is not negative, and less than
1 / d since x * e < 2^62. As x / d is a multiple of 1 / d, no integer lies above it and at most at the sum.

A kernel computes it as the upper 64 bits of (2 * x) * r: both factors fit, as 2 * x < 2^32 and r <= 2^63.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import attrs

from fireiron.ir.rewrite import lets
from fireiron.ir.statement import Stmt
from fireiron.values.expr import INT_MAX, Const, Expr, FloorDiv, Min, Mod, Positive, Sum, Var, constant, mod

ONE_HALF = 1 << 63
"""The dividend: 1, in units of 2^-63."""


@attrs.frozen
class Reciprocal:
    """A parameter of 64 bits, ceil(2^63 / divisor); the divisor hangs on sizes alone and is 1 ... 2^31 - 1."""

    name: str
    divisor: Expr

    def value(self, sizes: Mapping[str, int]) -> int:
        """The number to send for sizes."""
        return (ONE_HALF - 1) // int(self.divisor.evaluate(sizes)) + 1


@attrs.frozen
class Divisor:
    """What a quotient is divided by: a launch constant, or `whole`, and the launch constant only where it is less than that."""

    constant: Expr
    whole: int | None = None


class Divisors:
    """The divisors of a kernel's named values that are launch constants, or one of two."""

    def __init__(self, symbols: Sequence[Var], body: Sequence[Stmt]) -> None:
        self._named = lets(tuple(body))
        self._sizes = frozenset(symbols)

    def of(self, quotient: FloorDiv | Mod) -> Divisor | None:
        """The divisor of a quotient, or a remainder, that a product computes; None where it does not.

        The height of a band is `minimum(rows, lines - band * rows)`, taken to be at least 1. It is `rows`, or less: then it is congruent to
        `lines` and so its remainder, which is `(lines - 1) % rows + 1`. That is a divisor too where `lines` is a multiple of `rows`.
        """
        number, divisor = quotient.children
        if number.low < 0 or number.high > INT_MAX or divisor.low < 1 or divisor.high > INT_MAX or self._constant(number) is not None:
            return None
        told = self._constant(divisor)
        if told is not None:
            return None if constant(told) is not None else Divisor(told)
        height = self._named.get(divisor, divisor) if isinstance(divisor, Var) else divisor
        if not isinstance(height, Positive) or not isinstance(height.value, Min):
            return None
        rows, left = height.value.children
        return self._last(rows, left) or self._last(left, rows)

    def _last(self, rows: Expr, left: Expr) -> Divisor | None:
        """The divisor `minimum(rows, lines - band * rows)`, of which `left` is the second part."""
        number = constant(rows)
        if number is None or number < 1 or not isinstance(left, Sum):
            return None
        taken = [term for term in left.terms if any(self._constant(atom) is None for atom in term[0])]
        if len(taken) != 1 or taken[0][1] != -number:
            return None
        lines = self._constant(left - Sum(tuple(taken)))
        return None if lines is None or lines.low < 1 else Divisor(mod(lines - 1, Const(number)) + 1, number)

    def _constant(self, value: Expr) -> Expr | None:
        """A value in terms of sizes alone; None where it hangs on anything else."""
        free = value.variables() - self._sizes
        if not free:
            return value
        told: dict[Var, Expr | int] = {}
        for var in free:
            known = self._constant(self._named[var]) if var in self._named else None
            if known is None:
                return None
            told[var] = known
        return value.substitute(told)


def quotients(value: Expr) -> Iterable[FloorDiv | Mod]:
    """The quotients and remainders in a value, inner ones first."""
    for child in value.children:
        yield from quotients(child)
    if isinstance(value, (FloorDiv, Mod)):
        yield value


__all__ = ["Divisor", "Divisors", "Reciprocal", "quotients"]
