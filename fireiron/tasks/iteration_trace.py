"""Refuse loops whose iterations differ by more than their index.

The compiler reads a loop's body once for all iterations, so it would lose state that Python carries from one iteration to the next. To
detect such state, the body is executed a second time, with the same indices and without entering its launches. The loop is refused if the
second execution uses another tensor, another piece, other sizes or other launches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from fireiron.errors import DecompositionError
from fireiron.frozen import frozen
from fireiron.values.expr import Expr, Var


@frozen
class Action:
    """An action of a variant: a launch, a loop, or a new tensor, with its line and its arguments."""

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
        return tuple(attrs.evolve(action, values=_renamed(action.values, names, allocations)) for action in self.actions[actions:])


@frozen
class NewTensor:
    """A tensor that a variant allocated, by its number; if `own`, the number counts from the start of the iteration."""

    number: int
    own: bool = False


def _renamed(value: Any, names: dict[Var, Var], allocations: int) -> Any:
    if isinstance(value, tuple):
        return tuple(_renamed(part, names, allocations) for part in value)
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
            "is missing in the first iteration"
            if action is None
            else "is missing in the second iteration"
            if other_action is None
            else "has other arguments"
        )
        raise DecompositionError(
            f"{variant}: iterations of a loop differ by more than their index: {where.what} {missing}",
            got=f"the loop at {line}", legal="tensors and numbers that the loop does not change, and its index",
            hint="write the iterations one by one, or call make_tensor inside the loop", at=where.at,
        )  # fmt: skip
