"""Print the steps `(k + start) % extent` of `.stagger_blocks` loops without a division.

The sum of two numbers below the extent is less than twice the extent, so its remainder is the sum, or the sum minus the extent. This is a
comparison and a subtraction if the extent is not a power of two, or known only at run time. Only the printer has this node; all passes
see the remainder.
"""

from __future__ import annotations

from fireiron.ir import Rotations
from fireiron.values.expr import Atoms, Expr, Mod, constant
from fireiron.values.expr.nodes import node, range_fields, set_range


@node
class Wrapped(Expr):
    """`number % whole`, for a number that is less than twice `whole`."""

    number: Expr
    whole: Expr
    low: int = range_fields()
    high: int = range_fields()
    factor: int = range_fields()

    def __attrs_post_init__(self) -> None:
        set_range(self, 0, min(self.number.high, self.whole.high - 1))

    @property
    def children(self) -> Atoms:
        return (self.number, self.whole)

    def rebuilt(self, children: Atoms) -> Expr:
        return Wrapped(*children)


def shown(step: Expr, rotations: Rotations) -> Expr:
    """Wrap a step if this is proved correct and saves a division."""
    assert isinstance(step, Mod)
    whole = constant(step.right)
    cheap = whole is not None and whole & (whole - 1) == 0
    return step if cheap or not rotations.whole(step) else Wrapped(step.left, step.right)


__all__ = ["Wrapped", "shown"]
