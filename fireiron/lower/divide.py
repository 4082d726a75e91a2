"""`divide`: quotients by sizes known at run time become products, for which the launcher sends reciprocals.

They are those in named values, which say where the tile of a block is. `fireiron.ir.reciprocal` proves that the products are right.

Only kernels with a producer have them: there two divisions stand in front of each tile's first load. Elsewhere they stand in front of
the kernel alone, and would cost a thread two registers that tiles of many elements have not (on sm_80, `gemm_nn` spilled three).
"""

from __future__ import annotations

import attrs

from fireiron.ir import Divisors, Kernel, Let, Reciprocal, quotients, statements
from fireiron.lower.walk import fresh_name, taken_names
from fireiron.values.expr import Expr


def divide(kernel: Kernel) -> Kernel:
    """The kernel with a reciprocal for each launch constant that a named value is divided by; itself where no producer waits for one.

    A reciprocal is called after the first of these values.
    """
    if not gains(kernel):
        return kernel
    divisors, taken = Divisors(kernel.symbols, kernel.body), taken_names(kernel)
    found: dict[Expr, Reciprocal] = {}
    for let in (one for one in statements(kernel.body) if isinstance(one, Let)):
        for quotient in quotients(let.value):
            divisor = divisors.of(quotient)
            if divisor is not None and divisor.constant not in found:
                name = fresh_name(f"{let.var.name}_reciprocal", taken)
                found[divisor.constant] = Reciprocal(name, divisor.constant)
    return attrs.evolve(kernel, reciprocals=tuple(found.values()))


def gains(kernel: Kernel) -> bool:
    """Whether loads of a kernel wait for divisions again and again: a producer's, tile by tile."""
    return bool(kernel.rings)
