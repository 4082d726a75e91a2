"""Numbers that a variant meets and the compiler does not know: loop indices and sizes. They add up as integers do, and decide nothing.

A variant is read once for all turns of its loops. A Python `if` on an index would be taken one way for all of them, so it is refused
wherever not all values agree.
"""

from __future__ import annotations

from typing import Any, NoReturn

from fireiron.errors import ArgumentError, DecompositionError, call_site
from fireiron.values.expr import Expr, as_expr, constant, equal, less


class Scalar:
    """An integer that is known only when the kernel runs. `expression` is what it stands for."""

    __slots__ = ("expression",)
    expression: Expr

    def __init__(self, expression: Expr) -> None:
        self.expression = expression

    def __add__(self, other: object) -> Any:
        return scalar(self.expression + operand(other))

    def __radd__(self, other: object) -> Any:
        return scalar(operand(other) + self.expression)

    def __sub__(self, other: object) -> Any:
        return scalar(self.expression - operand(other))

    def __rsub__(self, other: object) -> Any:
        return scalar(operand(other) - self.expression)

    def __mul__(self, other: object) -> Any:
        return scalar(self.expression * operand(other))

    def __rmul__(self, other: object) -> Any:
        return scalar(operand(other) * self.expression)

    def __floordiv__(self, other: object) -> Any:
        return scalar(self.expression // operand(other))

    def __rfloordiv__(self, other: object) -> Any:
        return scalar(operand(other) // self.expression)

    def __mod__(self, other: object) -> Any:
        return scalar(self.expression % operand(other))

    def __rmod__(self, other: object) -> Any:
        return scalar(operand(other) % self.expression)

    def __neg__(self) -> Any:
        return scalar(-self.expression)

    def __eq__(self, other: object) -> Any:
        try:
            found = as_expr(other)
        except ArgumentError:
            return NotImplemented  # a text, or None, which no number is
        return self._decided(equal(self.expression, found), "==", other)

    def __ne__(self, other: object) -> Any:
        return not self == other

    def __lt__(self, other: object) -> bool:
        return self._decided(less(self.expression, operand(other)), "<", other)

    def __le__(self, other: object) -> bool:
        return self._decided(less(self.expression, operand(other) + 1), "<=", other)

    def __gt__(self, other: object) -> bool:
        return self._decided(less(operand(other), self.expression), ">", other)

    def __ge__(self, other: object) -> bool:
        return self._decided(less(operand(other), self.expression + 1), ">=", other)

    def __bool__(self) -> bool:
        return bool(self != 0)

    def __hash__(self) -> int:
        self._refuse("as a key")

    def __index__(self) -> int:
        self._refuse("where Python needs an integer")

    __int__ = __index__

    def __truediv__(self, other: object) -> NoReturn:
        raise DecompositionError(f"{self} / {other}: sizes and indices are integers", legal="//  cdiv(...)", at=call_site())

    __rtruediv__ = __truediv__

    def __repr__(self) -> str:
        return str(self.expression)

    def _decided(self, condition: Expr, sign: str, other: object) -> bool:
        """A comparison whose answer is the same for all values."""
        found = constant(condition)
        if found is None:
            self._refuse(f"in {self} {sign} {other}")
        return bool(found)

    def _refuse(self, where: str) -> NoReturn:
        raise DecompositionError(
            f"{self}, {where}: it is known only when the kernel runs, and a variant is read once for all turns and sizes",
            legal="indices of pieces, extents of loops, sizes, arithmetic", hint="a loop that begins or ends there: srange(i + 1)",
            at=call_site(),
        )  # fmt: skip


def operand(value: object) -> Expr:
    """An operand of a scalar's arithmetic; an `ArgumentError` with the line for what is no integer."""
    try:
        return as_expr(value)
    except ArgumentError as error:
        raise error.located(at=call_site()) from None


def scalar(value: object) -> Any:
    """A number as a variant meets it: an integer where it is known, a `Scalar` where not."""
    found = operand(value)
    number = constant(found)
    return Scalar(found) if number is None else number
