"""What steps make of elements behind the end of a dimension that they reduce, worked out on formulas: which are nothing already."""

from __future__ import annotations

import attrs

from fireiron.specs.formula import Element, Number, Value
from fireiron.specs.fused import Step
from fireiron.stepping.masked_tile_effects import Unknown, Values


@attrs.define
class OutOfBoundsValues(Values):
    """What is there behind the end of `dim`: of tensors along it that steps wrote what is known, of all others what they are.

    So of a score that is -inf there `exp2(s - mx)` is 0, which neither a sum nor a product has to leave out.
    """

    dim: str

    def perform(self, step: Step, hidden: Number | None = None) -> None:
        """What a step makes its output."""
        super().perform(step, hidden)
        if self.dim not in step.formula.target.dims:
            del self.known[step.formula.output], self.targets[step.formula.output]

    def element(self, one: Element) -> Value:
        """What an element is; not known of one that is read along other dimensions than it was written."""
        if one.tensor in self.known and one.index != self.targets[one.tensor].index:
            return Unknown("written", (one,), str(one))
        return super().element(one)

    def is_number(self, one: Element, number: int | float) -> bool:
        """Whether an element is a certain number."""
        return self.element(one) == Number(number)
