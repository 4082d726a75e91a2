"""Outputs beside what somebody else computed in float64: each element within the bound that is derived for it from the inputs."""

import numpy as np

from fireiron.measure.inputs import all_sizes
from fireiron.measure.rounding import Bounded, expected, worst


class Near:
    """Compares outputs with values by name that no rounding went over; the inputs are drawn, of mean zero.

    `values` may have other shapes than the operands, with as many elements in the same order; an output without one is not compared.
    """

    def __init__(self, spec, arrays, values, sizes=None, adder=None):
        made = expected(spec, arrays, all_sizes(spec, sizes or {}), adder, random=True)
        self.types = {name: spec.operands[name].dtype for name in values}
        self.right = {name: Bounded(np.asarray(one), made[name].error.reshape(np.shape(one))) for name, one in values.items()}

    def wrong(self, got):
        """The worst element that is off, as a text; an empty one where none is."""
        for name, right in self.right.items():
            if off := worst(np.asarray(got[name]).reshape(right.value.shape), right, self.types[name]):
                return f"{name}{list(off.at)} is {off}; {off.count} of {right.value.size}"
        return ""

    def require(self, got):
        """Fail where an element is off."""
        assert not (said := self.wrong(got)), said
