"""Division by run-time sizes as multiplication by a reciprocal that the launcher passes.

An integer division takes about 20 dependent instructions on a GPU, and those that compute the tile of a block precede its first load. Most
divisors are the same for all threads of a launch, so the host divides once.

*Theorem.* For 0 <= x < 2^31 and 1 <= d < 2^31 let r = ceil(2^63 / d). Then floor(x * r / 2^63) = floor(x / d).

*Proof.* r = (2^63 + e) / d with 0 <= e < d, so x * r / 2^63 = x / d + (x * e / 2^63) / d. The last term is at least 0, and less than 1 / d
since x * e < 2^62. As x / d is a multiple of 1 / d, no integer is above it and at most the sum.

A kernel computes it as the upper 64 bits of (2 * x) * r. Both operands fit, as 2 * x < 2^32 and r <= 2^63.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from fireiron.frozen import frozen
from fireiron.ir.rewrite import lets
from fireiron.ir.statement import Stmt
from fireiron.values.expr import INT_MAX, Const, Expr, FloorDiv, Min, Mod, Positive, Sum, Var, constant, mod

ONE_HALF = 1 << 63
"""The dividend: 1 in units of 2^-63."""


@frozen
class Reciprocal:
    """A 64-bit parameter, ceil(2^63 / divisor). The divisor depends only on sizes and is between 1 and 2^31 - 1."""

    name: str
    divisor: Expr

    def value(self, sizes: Mapping[str, int]) -> int:
        """The value to pass for given sizes."""
        return (ONE_HALF - 1) // int(self.divisor.evaluate(sizes)) + 1


@frozen
class Divisor:
    """A divisor that has at most two values in a launch: `constant`, which depends only on sizes, and `whole`, if it is not None."""

    constant: Expr
    whole: int | None = None


class Divisors:
    """Finds the divisors in a kernel that have at most two values in a launch."""

    def __init__(self, symbols: Sequence[Var], body: Sequence[Stmt]) -> None:
        self._named = lets(tuple(body))
        self._sizes = frozenset(symbols)

    def of(self, quotient: FloorDiv | Mod) -> Divisor | None:
        """The divisor of a quotient or remainder that multiplication can compute; None if there is none.

        The height of a band of tiles is `minimum(rows, lines - band * rows)`, at least 1. If it is less than `rows`, it is congruent to
        `lines` modulo `rows`, so it equals `(lines - 1) % rows + 1`. If `lines` is a multiple of `rows`, the same formula gives `rows`.
        """
        number, divisor = quotient.children
        if number.low < 0 or number.high > INT_MAX or divisor.low < 1 or divisor.high > INT_MAX or self._constant(number) is not None:
            return None
        launch_constant = self._constant(divisor)
        if launch_constant is not None:
            return None if constant(launch_constant) is not None else Divisor(launch_constant)
        height = self._named.get(divisor, divisor) if isinstance(divisor, Var) else divisor
        if not isinstance(height, Positive) or not isinstance(height.value, Min):
            return None
        rows, left = height.value.children
        return self._last(rows, left) or self._last(left, rows)

    def _last(self, rows: Expr, left: Expr) -> Divisor | None:
        """The divisor `minimum(rows, lines - band * rows)`; `left` is its second argument. None if `left` has another form."""
        number = constant(rows)
        if number is None or number < 1 or not isinstance(left, Sum):
            return None
        terms = [term for term in left.terms if any(self._constant(atom) is None for atom in term[0])]
        if len(terms) != 1 or terms[0][1] != -number:
            return None
        lines = self._constant(left - Sum(tuple(terms)))
        return None if lines is None or lines.low < 1 else Divisor(mod(lines - 1, Const(number)) + 1, number)

    def _constant(self, value: Expr) -> Expr | None:
        """A value as a function of sizes only; None if it depends on anything else."""
        free = value.variables() - self._sizes
        if not free:
            return value
        known_values: dict[Var, Expr | int] = {}
        for var in free:
            known = self._constant(self._named[var]) if var in self._named else None
            if known is None:
                return None
            known_values[var] = known
        return value.substitute(known_values)


def quotients(value: Expr) -> Iterable[FloorDiv | Mod]:
    """The quotients and remainders in a value, inner ones first."""
    for child in value.children:
        yield from quotients(child)
    if isinstance(value, (FloorDiv, Mod)):
        yield value


__all__ = ["Divisor", "Divisors", "Reciprocal", "quotients"]
