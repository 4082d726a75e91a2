"""Reject a wgmma A operand that stays in registers through a loop, if some compilers overwrite these registers.

ptxas up to CUDA 13.0 may assign the registers of such an operand also to the A operand of another MMA, of the same size. It does so if the
other operand is written after the first MMA and read by the next one: within one iteration, the two operands are never live at the same
time. From the second iteration on, the result is wrong, and ptxas reports nothing. `fireiron.gpu.sass_register_check` finds the hazard in
SASS. This check rejects such a program for all compilers, because the compiler is not known yet.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fireiron.check.access_trace import AccessTrace
from fireiron.check.finding import Finding
from fireiron.ir import Exec, For, Kernel, execs, statements
from fireiron.ir.rewrite import by_identity
from fireiron.values.expr import constant


def check_ptxas_register_hazard(access_trace: AccessTrace) -> tuple[Finding, ...]:
    """An error for each loop with an A operand that some compilers overwrite."""
    return tuple(finding for loop in _loops(access_trace.kernel) for finding in _hazards(access_trace.kernel, loop))


def holds_operand_in_registers(kernel: Kernel) -> bool:
    """Whether in some loop an A operand of wgmma stays in registers, and another A operand in registers is computed."""
    return any(all(_register_operands(kernel, loop)) for loop in _loops(kernel))


def _loops(kernel: Kernel) -> list[For]:
    """The loops with more than one iteration; none if no MMA reads registers asynchronously."""
    if not any(one.mechanism.in_registers for one, _ in execs(kernel.body)):
        return []
    return [one for one in statements(kernel.body) if isinstance(one, For) and constant(one.extent) != 1]


def _register_operands(kernel: Kernel, loop: For) -> tuple[dict[str, Exec], dict[str, Exec]]:
    """The register operands of the MMAs in a loop, each with an MMA that reads it: those that the loop does not write, and the others."""
    private = _private(kernel)
    inside = [one for one, _ in execs(loop.body)]
    written = {access.buffer for one in inside for access in one.accesses if access.write}
    operands = {name: one for one in inside if one.mechanism.in_registers for name in _operands(one) if name in private}
    constant_operand = {name: one for name, one in operands.items() if name not in written}
    return constant_operand, {name: one for name, one in operands.items() if name in written}


@by_identity
def _private(kernel: Kernel) -> frozenset[str]:
    """The names of the buffers in registers."""
    return frozenset(buffer.name for buffer in kernel.buffers if buffer.memory.private)


def _hazards(kernel: Kernel, loop: For) -> Iterator[Finding]:
    inside = [one for one, _ in execs(loop.body)]
    invariant, others = _register_operands(kernel, loop)
    for constant_operand, mma in invariant.items():
        for other in others:
            if _bytes(kernel, other) == _bytes(kernel, constant_operand) and _written_after(inside, constant_operand, other):
                text = (
                    f"{constant_operand} stays in registers through the loop over {loop.var}, and {other}, of the same size, is computed "
                    f"after its MMA {mma.spec}: NVRTC before 13.5 assigns both to the same registers; defer the MMA of {other} by one "
                    f"iteration, .defer(step, after=) with its MMA and that of {constant_operand}, or omit the load to RF"
                )
                yield Finding("registers", "error", constant_operand, text, mma.origin)


def _operands(mma: Exec) -> set[str]:
    """The buffers that an MMA reads and does not write."""
    return {access.buffer for access in mma.accesses} - {access.buffer for access in mma.accesses if access.write}


def _bytes(kernel: Kernel, name: str) -> int | None:
    buffer = kernel.buffer(name)
    return None if (count := constant(buffer.elements)) is None else count * buffer.dtype.bytes


def _written_after(inside: Sequence[Exec], constant_operand: str, other: str) -> bool:
    """Whether an operand is written before it is read, after the last MMA of a constant one."""
    last = max(position for position, one in enumerate(inside) if constant_operand in _operands(one))
    after = [*inside[last + 1 :], *inside[: last + 1]]
    accesses = ({access.write for access in one.accesses if access.buffer == other} for one in after)
    return next((True in writes for writes in accesses if writes), False)
