"""Report element indices in global memory that may exceed 64 bits because sizes are unbounded.

A run-time size is below 2^31 by default, so a product of three sizes may need 93 bits. TMA copies use coordinates instead of indices
(decision 29).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from fireiron.check.access_trace import AccessTrace, linear
from fireiron.check.finding import Finding, described, line_of
from fireiron.values.expr import Expr, Var, constant

BITS = 63
"""Value bits of a signed 64-bit integer."""


def beyond_64_bits(access_trace: AccessTrace) -> Iterator[Finding]:
    """An error for each array whose element indices may need more than 64 bits. It lists the sizes to bound."""
    kernel, reported = access_trace.kernel, set()
    if not kernel.symbols:
        return
    for use in access_trace.uses:
        buffer = kernel.buffer(use.access.buffer)
        if buffer.memory.of_grid and not use.statement.instruction.mechanism.by_engine and buffer.name not in reported:
            term = _wide_product(buffer.address(use.access, (0,) * len(use.access.base)))
            if term is not None:
                reported.add(buffer.name)
                message = (
                    f"{buffer.name}: an element index contains {term} and may need more than 64 bits: {_bounds_to_add(buffer.tensor.shape)}"
                )
                line = line_of(use.statement, use.access)
                yield Finding("bounds", "error", buffer.name, message, line, described(use.statement, use.access))


def _wide_product(value: Expr) -> str | None:
    """The first product in an expression, or in a part of it, that may exceed 64 bits; else None."""
    for atoms, coefficient in linear(value)[0]:
        if abs(coefficient) * math.prod(max(1, -atom.low, atom.high) for atom in atoms) >= 1 << BITS:
            return " * ".join(map(str, (*atoms, *([coefficient] if coefficient != 1 else []))))
    return next((found for child in value.children if (found := _wide_product(child)) is not None), None)


def _bounds_to_add(sizes: Sequence[Expr]) -> str:
    """The remedy: bounds of the sizes such that their product fits."""
    names = sorted({var for size in sizes for var in size.variables() if isinstance(var, Var) and var.parameter}, key=lambda var: var.name)
    known = math.prod(abs(number) for size in sizes if (number := constant(size)))
    high = 1 << max((BITS - 1 - known.bit_length()) // max(len(names), 1), 0)
    return f"bound {', '.join(f'sym({one.name!r}, high={min(high, one.high)})' for one in names)}, or less"


__all__ = ["beyond_64_bits"]
