"""The steps of loops that blocks begin at different turns and go round: what stands in the text for `(k + start) % turns`.

The sum of two numbers below a third is less than twice that: its remainder is itself, or the third less. That is a comparison and a
difference where the number of turns is no power of two, or known only at run time. The node is of the printer alone: every other reader
sees the remainder.
"""

from __future__ import annotations

from collections.abc import Mapping

from fireiron.ir import For, Kernel, Let, execs, statements
from fireiron.values.expr import Atoms, Expr, Mod, Var, constant
from fireiron.values.expr.nodes import node, range_fields, set_range
from fireiron.values.expr.normal import terms_of


@node
class Wrapped(Expr):
    """`number % whole`, where the number is less than twice the whole."""

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


class Rotations:
    """The remainders of one kernel that are the steps of loops gone round, from places that named values or blocks say."""

    def __init__(self, kernel: Kernel) -> None:
        lets = (one for one in statements(kernel.body) if isinstance(one, Let))
        self._rights: Mapping[Var, Expr] = {one.var: one.value.right for one in lets if isinstance(one.value, Mod)}
        self.ahead: dict[Expr, tuple[For, int]] = {}
        """Each with its loop, and how many turns ahead of the loop's own it is the step of."""
        for statement, loops in execs(kernel.body):
            outer = [access for access in statement.accesses if kernel.buffer(access.buffer).memory.of_grid]
            for value in {value for access in outer for value in access.base}:
                for loop in loops:
                    self._find(value, loop)

    def _find(self, value: Expr, loop: For) -> None:
        if loop.var not in value.variables():
            return
        found = self._start(value, loop) if isinstance(value, Mod) else None
        if found is not None:
            self.ahead[value] = loop, found[1]
        for child in value.children:
            self._find(child, loop)

    def shown(self, value: Expr) -> Expr:
        """A step as the text says it: wrapped where that is proven, and saves a division."""
        assert isinstance(value, Mod)
        loop, ahead = self.ahead[value]
        whole = constant(value.right)
        cheap = whole is not None and whole & (whole - 1) == 0
        return value if cheap or ahead or loop.extent != value.right else Wrapped(value.left, value.right)

    def _start(self, value: Mod, loop: For) -> tuple[Var, int] | None:
        """Of the remainder of `turn + start + ahead` by the number of turns, the start, which is below that, and how many turns ahead."""
        terms, ahead = terms_of(value.left - loop.var)
        if len(terms) != 1 or ahead < 0:
            return None
        ((atoms, coefficient),) = terms
        start = atoms[0]
        if coefficient != 1 or len(atoms) != 1 or not isinstance(start, Var) or start == loop.var:
            return None
        if self._rights.get(start) == value.right:
            return start, ahead
        return (start, ahead) if loop.extent == value.right and 0 <= start.low <= start.high < value.right.low else None


__all__ = ["Rotations", "Wrapped"]
