"""Scalars: loop indices and sizes that are known only at run time. They support integer arithmetic, but not control flow.

The compiler reads a variant once for all iterations of its loops. A Python `if` on an index would select one branch for all of them, so the
comparison is refused unless it has the same result for all values.
"""

from __future__ import annotations

from typing import Any, NoReturn

from fireiron.errors import ArgumentError, DecompositionError, call_site
from fireiron.values.expr import Expr, as_expr, constant, equal, less


class Scalar:
    """An integer that is known only at run time, given by `expression`."""

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
            number = as_expr(other)
        except ArgumentError:
            return NotImplemented  # such as a text or None
        return self._decided(equal(self.expression, number), "==", other)

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
        """The result of a comparison, if it is the same for all values."""
        answer = constant(condition)
        if answer is None:
            self._refuse(f"in {self} {sign} {other}")
        return bool(answer)

    def _refuse(self, where: str) -> NoReturn:
        raise DecompositionError(
            f"{self} is known only at run time and cannot be used {where}: a variant is read once for all iterations and sizes",
            legal="indices of pieces, extents of loops, sizes, arithmetic", hint="use it as the bound of a loop: srange(i + 1)",
            at=call_site(),
        )  # fmt: skip


def operand(value: object) -> Expr:
    """An operand of scalar arithmetic as an expression. Raises: ArgumentError if the value is not an integer."""
    try:
        return as_expr(value)
    except ArgumentError as error:
        raise error.located(at=call_site()) from None


def scalar(value: object) -> Any:
    """An integer if the value is known, otherwise a `Scalar`."""
    expression = operand(value)
    number = constant(expression)
    return Scalar(expression) if number is None else number
