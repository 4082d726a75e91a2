"""`divide`: replace divisions by run-time sizes by multiplication with reciprocals that the launcher passes.

These divisions are in named values that determine a block's tile. `fireiron.ir.reciprocal` proves the replacement correct.

Only kernels with a producer are changed: there, two divisions precede each tile's first load. In other kernels they run once, and
reciprocals would cost a thread two registers that kernels with large tiles do not have (on sm_80, `gemm_nn` spilled three).
"""

from __future__ import annotations

import attrs

from fireiron.ir import Divisors, Kernel, Let, Reciprocal, quotients, statements
from fireiron.lower.walk import fresh_name, taken_names
from fireiron.values.expr import Expr


def divide(kernel: Kernel) -> Kernel:
    """The kernel with a reciprocal for each launch constant that named values are divided by; the same kernel if no producer waits for one.

    A reciprocal is named after the first of these values.
    """
    if not repeats_divisions(kernel):
        return kernel
    divisors, used_names = Divisors(kernel.symbols, kernel.body), taken_names(kernel)
    reciprocals: dict[Expr, Reciprocal] = {}
    for let in (stmt for stmt in statements(kernel.body) if isinstance(stmt, Let)):
        for quotient in quotients(let.value):
            divisor = divisors.of(quotient)
            if divisor is not None and divisor.constant not in reciprocals:
                name = fresh_name(f"{let.var.name}_reciprocal", used_names)
                reciprocals[divisor.constant] = Reciprocal(name, divisor.constant)
    return attrs.evolve(kernel, reciprocals=tuple(reciprocals.values()))


def repeats_divisions(kernel: Kernel) -> bool:
    """Whether loads of a kernel wait for divisions repeatedly: a producer's loads wait for them in each tile."""
    return bool(kernel.rings)
