"""Values that steps give elements past the end of a dimension that they reduce, derived from formulas: which are neutral already."""

from __future__ import annotations

import attrs

from fireiron.specs.formula import Element, Number, Value
from fireiron.specs.fused import Step
from fireiron.stepping.masked_tile_effects import Unknown, Values


@attrs.define
class OutOfBoundsValues(Values):
    """The values past the end of `dim`: of tensors along it that steps wrote the known values, of all others their own.

    So for a score that is -inf there `exp2(s - mx)` is 0, which neither a sum nor a product has to exclude.
    """

    dim: str

    def perform(self, step: Step, masked_value: Number | None = None) -> None:
        """Set the value of a step's output."""
        super().perform(step, masked_value)
        if self.dim not in step.formula.target.dims:
            del self.known[step.formula.output], self.targets[step.formula.output]

    def element(self, element: Element) -> Value:
        """The value of an element; not known for one that is read along other dimensions than it was written."""
        if element.tensor in self.known and element.index != self.targets[element.tensor].index:
            return Unknown("written", (element,), str(element))
        return super().element(element)

    def is_number(self, element: Element, number: int | float) -> bool:
        """Whether an element is a certain number."""
        return self.element(element) == Number(number)
