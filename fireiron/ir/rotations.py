"""Loops that each block begins at another turn and goes round: turn `k` is step `(k + start) % turns`, as `staggered` makes them."""

from __future__ import annotations

from collections.abc import Mapping

from fireiron.ir.kernel import Kernel
from fireiron.ir.rewrite import execs, statements
from fireiron.ir.statement import For, Let
from fireiron.values.expr import Expr, Mod, Sum, Var, replaced


class Rotations:
    """The remainders of one kernel that are the steps of loops gone round, from places that named values or blocks say.

    `steps` are they, each with its loop and how many turns ahead of the loop's own it is the step of. Of all of them the start is proven to
    be less than the number of turns.
    """

    def __init__(self, kernel: Kernel) -> None:
        lets = (one for one in statements(kernel.body) if isinstance(one, Let))
        self._rights: Mapping[Var, Expr] = {one.var: one.value.right for one in lets if isinstance(one.value, Mod)}
        self.steps: dict[Expr, tuple[For, int]] = {}
        for statement, loops in execs(kernel.body):
            outer = [access for access in statement.accesses if kernel.buffer(access.buffer).memory.of_grid]
            for value in {value for access in outer for value in access.base}:
                for loop in loops:
                    self._find(value, loop)

    def whole(self, step: Expr) -> bool:
        """Whether a step is that of the loop's own turn, and goes round once: each of so many comes once."""
        loop, ahead = self.steps[step]
        return ahead == 0 and isinstance(step, Mod) and loop.extent == step.right

    def straight(self, value: Expr) -> Expr:
        """A value as it would be if all blocks began at turn 0."""
        return replaced(value, {step: loop.var for step, (loop, _) in self.steps.items() if self.whole(step)}) if self.steps else value

    def _find(self, value: Expr, loop: For) -> None:
        if loop.var not in value.variables():
            return
        ahead = self._ahead(value, loop) if isinstance(value, Mod) else None
        if ahead is not None:
            self.steps[value] = loop, ahead
        for child in value.children:
            self._find(child, loop)

    def _ahead(self, value: Mod, loop: For) -> int | None:
        """How many turns ahead a remainder `(turn + start + ahead) % turns` is; None where it is none, or its start is not below turns."""
        rest = value.left - loop.var
        ahead = rest.constant if isinstance(rest, Sum) else 0
        start = rest - ahead
        if not isinstance(start, Var) or start == loop.var or ahead < 0:
            return None
        below = loop.extent == value.right and 0 <= start.low <= start.high < value.right.low
        return ahead if below or self._rights.get(start) == value.right else None


__all__ = ["Rotations"]
