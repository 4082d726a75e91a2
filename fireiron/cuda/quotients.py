"""Print quotients by launch constants as multiplications: `x / d` with the reciprocal of d, a parameter of the kernel.

Only the printer has these nodes; all passes see quotients and remainders. `fireiron.ir.reciprocal` has the proof.
"""

from __future__ import annotations

from fireiron.ir import Divisors, Kernel, quotients
from fireiron.ir.text import Function
from fireiron.values.expr import Atoms, Expr, FloorDiv, Mod, Var, replaced
from fireiron.values.expr.nodes import node, range_fields, set_range

QUOTIENT = Function(
    "quotient",
    ("int number", "unsigned long long reciprocal"),
    ("return static_cast<int>(__umul64hi(2u * number, reciprocal));",),
    "number / divisor for number >= 0, where reciprocal is 2^63 / divisor, rounded up",
    result="int",
)


@node
class Quotient(Expr):
    """`number / divisor` by a reciprocal; with `whole`, the divisor may also be `whole`, which the reciprocal does not cover."""

    number: Expr
    divisor: Expr
    reciprocal: str
    whole: int | None
    low: int = range_fields()
    high: int = range_fields()
    factor: int = range_fields()

    def __attrs_post_init__(self) -> None:
        set_range(self, self.number.low // self.divisor.high, self.number.high // self.divisor.low)

    @property
    def children(self) -> Atoms:
        return (self.number, self.divisor)

    def rebuilt(self, children: Atoms) -> Expr:
        return Quotient(children[0], children[1], self.reciprocal, self.whole)


@node
class Residue(Expr):
    """`number - quotient * divisor`; no part of it is larger than the number."""

    number: Expr
    quotient: Expr
    divisor: Expr
    low: int = range_fields()
    high: int = range_fields()
    factor: int = range_fields()

    def __attrs_post_init__(self) -> None:
        set_range(self, 0, min(self.number.high, self.divisor.high - 1))

    @property
    def children(self) -> Atoms:
        return (self.number, self.quotient, self.divisor)

    def rebuilt(self, children: Atoms) -> Expr:
        return Residue(children[0], children[1], children[2])


class Quotients:
    """The quotients of one kernel; `named` are those that have a name at the current position of the text."""

    def __init__(self, kernel: Kernel) -> None:
        self._divisors = Divisors(kernel.symbols, kernel.body)
        self._reciprocals = {one.divisor: one.name for one in kernel.reciprocals}
        self.named: dict[Expr, Var] = {}

    def define(self, var: Var, value: Expr) -> Expr:
        """The value of a name, for the text; later expressions use the name."""
        text_value = self.shown(value)
        if self._reciprocals and isinstance(value, FloorDiv):
            self.named[value] = var
        return text_value

    def shown(self, value: Expr) -> Expr:
        """The value with quotients replaced by multiplications."""
        products: dict[Expr, Expr] = {}
        for quotient in quotients(value) if self._reciprocals else ():
            divisor = self._divisors.of(quotient)
            if divisor is not None and divisor.constant in self._reciprocals:
                number, by = (replaced(child, products) for child in quotient.children)
                product: Expr = Quotient(number, by, self._reciprocals[divisor.constant], divisor.whole)
                product = self.named.get(FloorDiv(*quotient.children), product)
                products[quotient] = Residue(number, product, by) if isinstance(quotient, Mod) else product
        return replaced(value, products)


__all__ = ["QUOTIENT", "Quotient", "Quotients", "Residue"]
