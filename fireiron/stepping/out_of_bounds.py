"""Derive from formulas the values past the end of a reduced dimension: neutral values need no mask."""

from __future__ import annotations

import attrs

from fireiron.specs.formula import Element, Number, Value
from fireiron.specs.steps import Step
from fireiron.stepping.masked_tile_effects import Unknown, Values


@attrs.define
class OutOfBoundsValues(Values):
    """The values past the end of `dim`: known values of tensors that steps wrote, and the elements themselves of all others.

    For example, if a score is -inf there, `exp2(s - mx)` is 0, which a sum need not exclude.
    """

    dim: str

    def perform(self, step: Step, masked_value: Number | None = None) -> None:
        """Set the value of a step's output."""
        super().perform(step, masked_value)
        if self.dim not in step.formula.target.dims:
            del self.known[step.formula.output], self.targets[step.formula.output]

    def element(self, element: Element) -> Value:
        """Return the value of an element; unknown if it is read along other dimensions than it was written."""
        if element.tensor in self.known and element.index != self.targets[element.tensor].index:
            return Unknown("written", (element,), str(element))
        return super().element(element)

    def is_finite(self, element: Element) -> bool:
        """Whether an element of a tensor that a step wrote is finite."""
        return element.tensor in self.known and self._finite(self.element(element))

    def is_number(self, element: Element, number: int | float) -> bool:
        """Whether an element is the given number."""
        return self.element(element) == Number(number)
