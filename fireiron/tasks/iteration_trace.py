"""Comparison of loop iterations: a variant is read once for all of them, so state that Python carries between iterations would be lost.

The reader executes a loop's body a second time, with the same indices and without entering its launches. If the second execution differs
(another tensor, another piece, other sizes, other launches), the iterations differ by more than their index.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from fireiron.errors import DecompositionError
from fireiron.values.expr import Expr, Var


@attrs.frozen
class Action:
    """An action of a variant at a position of its text: a launch, a loop, or a new tensor, with its arguments."""

    what: str
    at: str | None
    values: tuple[Any, ...]


@attrs.define(eq=False)
class Trace:
    """The actions of a variant so far, the variables of its loops in the order of their start, and the number of tensors it allocated."""

    actions: list[Action] = attrs.field(factory=list)
    variables: list[Var] = attrs.field(factory=list)
    allocations: int = 0

    def mark(self) -> tuple[int, int, int]:
        """The position at the start of an iteration."""
        return len(self.actions), len(self.variables), self.allocations

    def back_to(self, mark: tuple[int, int, int]) -> None:
        """Remove the actions of a second execution."""
        actions, variables, self.allocations = mark
        del self.actions[actions:], self.variables[variables:]

    def since(self, mark: tuple[int, int, int]) -> tuple[Action, ...]:
        """The actions of an iteration, with its own loops and tensors numbered by their order."""
        actions, variables, allocations = mark
        names: dict[Var, Var] = {}
        for number, var in enumerate(self.variables[variables:]):
            names.setdefault(var, Var(f"loop{number}", var.low, var.high))
        return tuple(attrs.evolve(one, values=_renamed(one.values, names, allocations)) for one in self.actions[actions:])


@attrs.frozen
class NewTensor:
    """A tensor that a variant allocated, by its number."""

    number: int
    own: bool = False


def _renamed(value: Any, names: dict[Var, Var], allocations: int) -> Any:
    if isinstance(value, tuple):
        return tuple(_renamed(one, names, allocations) for one in value)
    if isinstance(value, NewTensor):
        return NewTensor(value.number - allocations, True) if value.number >= allocations else value
    return value.substitute(dict(names)) if isinstance(value, Expr) else value


def require_same_actions(variant: str, line: str | None, first: Sequence[Action], again: Sequence[Action]) -> None:
    """Refuse a loop whose second iteration differs from the first by more than its index."""
    for number in range(max(len(first), len(again))):
        action = first[number] if number < len(first) else None
        other_action = again[number] if number < len(again) else None
        if action == other_action:
            continue
        where = other_action or action
        assert where is not None
        missing = (
            "is missing in the first" if action is None else "is missing in the second" if other_action is None else "has other arguments"
        )
        raise DecompositionError(
            f"{variant}: iterations of a loop differ by more than their index: {where.what} {missing}",
            got=f"the loop at {line}", legal="tensors and numbers that the loop does not change, and its index",
            hint="write the iterations one by one, or a make_tensor inside", at=where.at,
        )  # fmt: skip
