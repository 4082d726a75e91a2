"""Vectors of one length in another element type: gradients that were added up in float32."""

import functools

from fireiron import *


@functools.cache
def converted(count):
    """Return the definition that converts `count` vectors. The types of its outputs are those of the given arrays."""
    operands = {name: "n" for number in range(count) for name in (f"X{number}", f"Y{number}")}
    return Fused(
        name="converted",
        dims="n",
        operands=operands,
        body={f"convert{number}": f"Y{number}[n] = X{number}[n]" for number in range(count)},
        types={f"X{number}": float32 for number in range(count)},
    )


def by_elements(definition):
    """Return the strategy with one element per thread."""
    return definition.tile(n=256).to(Block).tile(n=1).to(Thread).done()
