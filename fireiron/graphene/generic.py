"""`Spec`: a spec whose meaning is that of its decomposition (Graphene, section 5.3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs

from fireiron.errors import ArgumentError
from fireiron.spec import Spec
from fireiron.specs.fused import FusedDefinition, FusedKind
from fireiron.values.machine import DType, Level
from fireiron.values.tensor import View

GENERIC: Final = "Spec"
"""What such specs are called in texts."""


@attrs.frozen
class GenericDefinition(FusedDefinition):
    """Operands with their dimensions, of which the last `results` are written: the formulas are those of specs inside."""

    results: int = 0

    @property
    def outputs(self) -> tuple[str, ...]:
        """The operands that are written."""
        return tuple(name for name, _ in self.given[len(self.given) - self.results :])

    def evaluate(self, arrays: Mapping[str, Any], sizes: Mapping[str, int], types: Mapping[str, DType], chunk: int = 0) -> dict[str, Any]:
        """Refused: there is no formula."""
        raise _no_formula()

    def check_meaning(self) -> None:
        raise _no_formula()


def _no_formula() -> ArgumentError:
    return ArgumentError(
        "a generic spec means what its decomposition does: nothing to compare it with",
        legal="MatMul Move ...",
        hint="the outermost spec by its kind, as `%3 <- MatMul<<<#4, #5>>>(%1, %2) {`: its results are compared with what that means",
    )


def generic_spec(level: Level, operands: Sequence[View], results: Sequence[View]) -> Spec:
    """The generic spec of operands and results; of the latter each has another name than the others."""
    views = (*operands, *results)
    names: list[str] = []
    for number, view in enumerate(views):
        name = view.tensor.name or f"operand{number}"
        names.append(name if name not in names else f"{name}_{number}")
    given = tuple((name, tuple(f"{name}{dim}" for dim in range(len(view.dims)))) for name, view in zip(names, views, strict=True))
    order = tuple(dim for _, dims in given for dim in dims)
    made = GenericDefinition((), given=given, order=order, known=tuple(names), results=len(results))
    return Spec(level, FusedKind(GENERIC, "", made=made), views)
