"""Staggered loops (`stagger_blocks`): each block begins at another step and wraps around.

Iteration `k` is step `(k + start) % trip_count`.
"""

from __future__ import annotations

from collections.abc import Mapping

from fireiron.ir.kernel import Kernel
from fireiron.ir.rewrite import execs, statements
from fireiron.ir.statement import For, Let
from fireiron.values.expr import Expr, Mod, Sum, Var, replaced


class Rotations:
    """The remainders in a kernel that are the steps of staggered loops; a named value or the block number specifies the start.

    `steps` maps each remainder to its loop, and to the number of iterations that it is ahead of the current one. All starts are proved to
    be less than the trip count.
    """

    def __init__(self, kernel: Kernel) -> None:
        lets = (stmt for stmt in statements(kernel.body) if isinstance(stmt, Let))
        self._rights: Mapping[Var, Expr] = {one.var: one.value.right for one in lets if isinstance(one.value, Mod)}
        self.steps: dict[Expr, tuple[For, int]] = {}
        for statement, loops in execs(kernel.body):
            outer = [access for access in statement.accesses if kernel.buffer(access.buffer).memory.of_grid]
            for value in {value for access in outer for value in access.base}:
                for loop in loops:
                    self._find(value, loop)

    def whole(self, step: Expr) -> bool:
        """Whether a step belongs to the current iteration and the loop visits every step exactly once."""
        loop, ahead = self.steps[step]
        return ahead == 0 and isinstance(step, Mod) and loop.extent == step.right

    def straight(self, value: Expr) -> Expr:
        """The value for blocks that begin at step 0."""
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
        """The number of iterations that a remainder `(iteration + start + ahead) % trip_count` is ahead.

        None if it has another form, or if its start may reach the trip count.
        """
        rest = value.left - loop.var
        ahead = rest.constant if isinstance(rest, Sum) else 0
        start = rest - ahead
        if not isinstance(start, Var) or start == loop.var or ahead < 0:
            return None
        below = loop.extent == value.right and 0 <= start.low <= start.high < value.right.low
        return ahead if below or self._rights.get(start) == value.right else None


__all__ = ["Rotations"]
