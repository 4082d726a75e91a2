"""Places of elements in global memory, and numbers of blocks, that may need more than 64 bits: of sizes that nobody bounds.

A size known at run time is below 2^31 where nothing else is said, so a product of three of them may need 93 bits. What engines copy has
coordinates and no such place (decision 29).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from fireiron.check.access_trace import AccessTrace, linear
from fireiron.check.finding import Finding, described, line_of
from fireiron.values.expr import Expr, Var, constant

BITS = 63
"""Value bits of a signed 64-bit number."""


def beyond_64_bits(access_trace: AccessTrace) -> Iterator[Finding]:
    """An error for each array whose elements may lie too far, and for the grid; it says which sizes want a bound."""
    kernel, said = access_trace.kernel, set()
    if not kernel.symbols:
        return
    for use in access_trace.uses:
        buffer = kernel.buffer(use.access.buffer)
        if buffer.memory.of_grid and not use.statement.instruction.mechanism.by_engine and buffer.name not in said:
            term = _wide(buffer.address(use.access, (0,) * len(use.access.base)))
            if term is not None:
                said.add(buffer.name)
                message = (
                    f"{buffer.name}: the place of an element, with {term} in it, may need more than 64 bits: {_bound(buffer.tensor.shape)}"
                )
                line = line_of(use.statement, use.access)
                yield Finding("bounds", "error", buffer.name, message, line, described(use.statement, use.access))


def _wide(value: Expr) -> str | None:
    """The first product in a value, or in a part of it, that may need more bits."""
    for atoms, coefficient in linear(value)[0]:
        if abs(coefficient) * math.prod(max(1, -atom.low, atom.high) for atom in atoms) >= 1 << BITS:
            return " * ".join(map(str, (*atoms, *([coefficient] if coefficient != 1 else []))))
    return next((found for child in value.children if (found := _wide(child)) is not None), None)


def _bound(sizes: Sequence[Expr]) -> str:
    """What to do: bounds of the sizes, of which the product of all fits."""
    names = sorted({var for size in sizes for var in size.variables() if isinstance(var, Var) and var.parameter}, key=lambda var: var.name)
    known = math.prod(abs(number) for size in sizes if (number := constant(size)))
    high = 1 << max((BITS - 1 - known.bit_length()) // max(len(names), 1), 0)
    return f"bound {', '.join(f'sym({one.name!r}, high={min(high, one.high)})' for one in names)}, or less"


__all__ = ["beyond_64_bits"]
