"""Factors of products that stay in registers through a loop, and what some compilers overwrite them with.

ptxas of CUDA 13.0 and before gives the registers of such a factor to another product's factor of as many registers where the latter is
written behind the one product and read by the next: both are never wanted at once in one iteration. From the second iteration on the
result is wrong, and nothing is said. `fireiron.gpu.sass_register_check` finds it in SASS; here such a program is refused for all compilers,
as it is not known which will be taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fireiron.check.access_trace import AccessTrace
from fireiron.check.finding import Finding
from fireiron.ir import Exec, For, Kernel, execs, statements
from fireiron.values.expr import constant


def check_ptxas_register_hazard(access_trace: AccessTrace) -> tuple[Finding, ...]:
    """An error for each loop with a factor that some compilers overwrite."""
    return tuple(finding for loop in _loops(access_trace.kernel) for finding in _of_loop(access_trace.kernel, loop))


def holds_operand_in_registers(kernel: Kernel) -> bool:
    """Whether in some loop one factor of a warpgroup's products stays in registers and another, in registers too, is computed."""
    return any(all(_kept(kernel, loop)) for loop in _loops(kernel))


def _loops(kernel: Kernel) -> list[For]:
    """The loops of several iterations."""
    return [one for one in statements(kernel.body) if isinstance(one, For) and constant(one.extent) != 1]


def _kept(kernel: Kernel, loop: For) -> tuple[dict[str, Exec], dict[str, Exec]]:
    """The factors in registers of the products in a loop, each with a product of it: those that nothing in it writes, and the others."""
    private = {buffer.name for buffer in kernel.buffers if buffer.memory.private}
    inside = [one for one, _ in execs(loop.body)]
    written = {access.buffer for one in inside for access in one.accesses if access.write}
    factors = {name: one for one in inside if one.mechanism.in_registers for name in _factors(one) if name in private}
    kept = {name: one for name, one in factors.items() if name not in written}
    return kept, {name: one for name, one in factors.items() if name in written}


def _of_loop(kernel: Kernel, loop: For) -> Iterator[Finding]:
    inside = [one for one, _ in execs(loop.body)]
    stay, change = _kept(kernel, loop)
    for kept, product in stay.items():
        for other in change:
            if _bytes(kernel, other) == _bytes(kernel, kept) and _made_behind(inside, kept, other):
                text = (
                    f"{kept} stays in registers through the loop over {loop.var}, and {other}, of as many registers, is computed behind "
                    f"its product {product.spec}: NVRTC before 13.5 puts both into the same ones; multiply {other} in the next iteration, "
                    f".defer(step, after=) with its product and that of {kept}, or leave out the load to RF"
                )
                yield Finding("registers", "error", kept, text, product.origin)


def _factors(product: Exec) -> set[str]:
    """What a product reads and does not write."""
    return {access.buffer for access in product.accesses} - {access.buffer for access in product.accesses if access.write}


def _bytes(kernel: Kernel, name: str) -> int | None:
    buffer = kernel.buffer(name)
    return None if (count := constant(buffer.elements)) is None else count * buffer.dtype.bytes


def _made_behind(inside: Sequence[Exec], kept: str, other: str) -> bool:
    """Whether a factor is written before it is read, behind the last product of a kept one."""
    last = max(position for position, one in enumerate(inside) if kept in _factors(one))
    behind = [*inside[last + 1 :], *inside[: last + 1]]
    touches = ({access.write for access in one.accesses if access.buffer == other} for one in behind)
    return next((True in touch for touch in touches if touch), False)
