"""Define `Spec`: a generic spec, whose decomposition defines what it computes (Graphene, section 5.3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from fireiron.errors import ArgumentError
from fireiron.frozen import frozen
from fireiron.spec import Spec
from fireiron.specs.fused import FusedKind
from fireiron.specs.fused_definition import FusedDefinition
from fireiron.values.machine import DType, Level
from fireiron.values.tensor import View

GENERIC: Final = "Spec"
"""The keyword of generic specs in texts."""


@frozen
class GenericDefinition(FusedDefinition):
    """The operands of a generic spec with their dimensions.

    The last `results` operands are written. Only the specs of the body have formulas.
    """

    results: int = 0

    @property
    def outputs(self) -> tuple[str, ...]:
        """Return the operands that are written."""
        return tuple(name for name, _ in self.given[len(self.given) - self.results :])

    def evaluate(self, arrays: Mapping[str, Any], sizes: Mapping[str, int], types: Mapping[str, DType], chunk: int = 0) -> dict[str, Any]:
        """Raise an `ArgumentError`: a generic spec has no formula."""
        raise _no_formula()

    def check_meaning(self) -> None:
        raise _no_formula()


def _no_formula() -> ArgumentError:
    return ArgumentError(
        "a generic spec has no formula, so its results cannot be compared",
        legal="MatMul Move ...",
        hint="give the outermost spec a kind, as `%3 <- MatMul<<<#4, #5>>>(%1, %2) {`",
    )


def generic_spec(level: Level, operands: Sequence[View], results: Sequence[View]) -> Spec:
    """Return the generic spec of operands and results. If several tensors have the same name, numbers are appended."""
    views = (*operands, *results)
    names: list[str] = []
    for number, view in enumerate(views):
        name = view.tensor.name or f"operand{number}"
        names.append(name if name not in names else f"{name}_{number}")
    given = tuple((name, tuple(f"{name}{dim}" for dim in range(len(view.dims)))) for name, view in zip(names, views, strict=True))
    order = tuple(dim for _, dims in given for dim in dims)
    definition = GenericDefinition((), given=given, order=order, known=tuple(names), results=len(results))
    return Spec(level, FusedKind(GENERIC, "", fused_definition=definition), views)
