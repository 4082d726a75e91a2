"""Turns of a loop, compared: a variant is read once for all of them, so what Python carries from one to the next would be lost.

The reading runs a loop's body a second time, with the same indices and without entering what it launches. Where that says anything else
than the first time (another tensor, another piece, other sizes, other launches), the turns differ by more than their index.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from fireiron.errors import DecompositionError
from fireiron.values.expr import Expr, Var


@attrs.frozen
class Said:
    """What a variant says at a place of its text: a launch, a loop, a new tensor; with the values that it gives."""

    what: str
    at: str | None
    values: tuple[Any, ...]


@attrs.define(eq=False)
class Record:
    """What a run of a variant has said so far, the variables of its loops in the order that they began, and how many tensors it made."""

    said: list[Said] = attrs.field(factory=list)
    variables: list[Var] = attrs.field(factory=list)
    made: int = 0

    def mark(self) -> tuple[int, int, int]:
        """Where a turn begins."""
        return len(self.said), len(self.variables), self.made

    def back_to(self, mark: tuple[int, int, int]) -> None:
        """Forget what a second look said."""
        said, variables, self.made = mark
        del self.said[said:], self.variables[variables:]

    def since(self, mark: tuple[int, int, int]) -> tuple[Said, ...]:
        """What a turn said, with loops and tensors of its own by their order in it."""
        said, variables, made = mark
        names: dict[Var, Var] = {}
        for number, var in enumerate(self.variables[variables:]):
            names.setdefault(var, Var(f"turn{number}", var.low, var.high))
        return tuple(attrs.evolve(one, values=_named(one.values, names, made)) for one in self.said[said:])


@attrs.frozen
class Made:
    """A tensor that a run of a variant made, by its number."""

    number: int
    own: bool = False


def _named(value: Any, names: dict[Var, Var], made: int) -> Any:
    if isinstance(value, tuple):
        return tuple(_named(one, names, made) for one in value)
    if isinstance(value, Made):
        return Made(value.number - made, True) if value.number >= made else value
    return value.substitute(dict(names)) if isinstance(value, Expr) else value


def require_alike(variant: str, line: str | None, first: Sequence[Said], again: Sequence[Said]) -> None:
    """Refuse a loop whose second turn says anything else than the first, apart from its index."""
    for number in range(max(len(first), len(again))):
        one = first[number] if number < len(first) else None
        other = again[number] if number < len(again) else None
        if one == other:
            continue
        where = other or one
        assert where is not None
        missing = "is not there in the first" if one is None else "is not there in the next" if other is None else "has other arguments"
        raise DecompositionError(
            f"{variant}: turns of a loop differ by more than their index: {where.what} {missing}",
            got=f"the loop at {line}", legal="tensors and numbers that no turn changes, and its index",
            hint="write the turns out, or a make_tensor inside", at=where.at,
        )  # fmt: skip
