"""Compare outputs with independently computed float64 values: each element within the bound derived from the inputs."""

import numpy as np

from fireiron.measure.inputs import all_sizes
from fireiron.measure.rounding import Bounded, expected, worst


class Near:
    """Compares outputs with unrounded values by name; the inputs are random with mean zero.

    `values` may have other shapes than the operands, with as many elements in the same order; an output without a value is not compared.
    """

    def __init__(self, spec, arrays, values, sizes=None, adder=None):
        bounds = expected(spec, arrays, all_sizes(spec, sizes or {}), adder, random=True)
        self.types = {name: spec.operands[name].dtype for name in values}
        self.right = {name: Bounded(np.asarray(one), bounds[name].error.reshape(np.shape(one))) for name, one in values.items()}

    def wrong(self, got):
        """The worst element out of its bound, as text; empty if there is none."""
        for name, right in self.right.items():
            if off := worst(np.asarray(got[name]).reshape(right.value.shape), right, self.types[name]):
                return f"{name}{list(off.at)} is {off}; {off.count} of {right.value.size}"
        return ""

    def require(self, got):
        """Fail if an element is out of its bound."""
        assert not (message := self.wrong(got)), message
