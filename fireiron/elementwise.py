"""`elementwise`: a vectorized strategy for a formula, in one line.

>>> from fireiron import *
>>> add = elementwise("Z[n] = X[n] + Y[n]")
>>> kernel = add(add.start(n=1000, dtype=float32)).compile("sm_80")
"""

from __future__ import annotations

from typing import Final

from fireiron.errors import ArgumentError, call_site
from fireiron.language.strategy import Strategy
from fireiron.spec import AnySpec
from fireiron.specs.formula import formula_of
from fireiron.specs.fused import Fused
from fireiron.specs.move import Move
from fireiron.values.machine import RF, Block, Thread

THREADS: Final = 128
"""Threads of a block."""


def elementwise(text: str, width: int = 8, name: str = "elementwise") -> Strategy:
    """Return a strategy that computes a formula with vectors, and starts from the definition of the formula.

    The definition is the attribute `start` of the result, which makes specs: `strategy.start(n=1000, dtype=float32)`. Its dimensions are
    those of the result in order, and its operands have the dimensions of the formula; names without indices are numbers passed by value. A
    block computes `128 * width` elements along the last dimension, and each thread `width` of them. Operands along the last dimension are
    read in vectors.

    Args:
        text: an elementwise formula such as `Y[m,n] = relu(X[m,n] + bias[n])`.
        width: the contiguous elements of a thread: 8 for 16 bytes of float16, 4 for float32.
        name: the name of the definition and of the kernel.

    Raises: an `ArgumentError` if the text is not an elementwise formula of a tensor with dimensions.
    """
    parsed = formula_of(text)
    dims = parsed.target.dims
    elements = parsed.elements
    if parsed.reduction or not dims or any(dim not in dims for element in elements for dim in element.dims):
        legal = "a formula whose operands have dimensions of the result, such as Y[m,n] = relu(X[m,n] + bias[n])"
        raise ArgumentError("elementwise: the formula is not elementwise", got=text, legal=legal, at=call_site())
    operands = {element.tensor: " ".join(element.dims) for element in (*elements, parsed.target)}
    definition = Fused(name=name, dims=" ".join(dims), operands=operands, body={name: text})
    last = dims[-1]
    rows = dict.fromkeys(dims[:-1], 1)
    strategy: Strategy = definition.tile(**rows, **{last: THREADS * width}).to(Block).tile(**rows, **{last: width}).to(Thread)
    for element in {element.tensor: element for element in elements}.values():
        if element.dims and element.dims[-1] == last and element.tensor != parsed.target.tensor:
            strategy = strategy.then(AnySpec.load(element.tensor, RF, Move.done()))
    return strategy.then(AnySpec.done())


__all__ = ["elementwise"]
