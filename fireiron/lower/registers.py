"""Refuse wgmmas that need more registers than a thread has.

If accumulators do not fit, ptxas serializes the wgmmas (C7511, C7512) or rejects the code (C7602). So such a kernel is refused before it is
printed. An MMA needs registers for its accumulators and A operands, for other accumulators that are live around it or that loops of the
same program carry, and for addresses.
"""

from __future__ import annotations

from collections.abc import Iterator

from fireiron.errors import ResourceError
from fireiron.ir import Buffer, Exec, Kernel, Roles, Stmt, execs
from fireiron.ir.accumulators import accumulators, is_carried
from fireiron.ir.effects.residency import Residency
from fireiron.ir.usage import register_words

REGISTERS = 65536
"""32-bit registers of a Hopper SM (CUDA C++ Programming Guide, "Compute Capabilities")."""

MOST = 255
"""Maximum number of registers per thread that instructions can address."""

UNIT = 8
"""Allocation unit of registers per thread."""

GROUP_THREADS = 128
"""Threads of a warpgroup. Registers are allocated to four warps at a time, one per SM partition."""

SPARE = 32
"""Registers of a thread in addition to accumulators and A operands: with 24 ptxas serializes the simplest kernels, with 32 none of the
library.
"""

MOST_GIVEN = 240
"""Registers per thread of two warpgroups when a third one, which loads, releases some."""


def require_registers(kernel: Kernel) -> None:
    """Refuse MMAs whose accumulators and A operands exceed the registers of a thread."""
    if not accumulators(kernel):
        return
    for body, limit in _programs(kernel):
        spans, carried = _spans(kernel, body), _carried(kernel, body)
        for place, (stmt, _) in enumerate(execs(body)):
            if not stmt.mechanism.in_registers:
                continue
            alive = {name for name, (first, last) in spans.items() if first <= place <= last}
            names = {*carried, *alive, *_registers(kernel, stmt)}
            buffers = [buffer for buffer in kernel.buffers if buffer.name in names]
            if sum(map(register_words, buffers)) + SPARE > limit:
                raise _refusal(kernel, stmt, buffers, limit)


def _programs(kernel: Kernel) -> Iterator[tuple[tuple[Stmt, ...], int]]:
    """The programs of the roles, or of all threads, and the registers per thread there."""
    threads = -(-kernel.threads // GROUP_THREADS) * GROUP_THREADS * max(kernel.effects[Residency].blocks, 1)
    launched = min(MOST, REGISTERS // threads // UNIT * UNIT)
    roles = [role for stmt in kernel.body if isinstance(stmt, Roles) for role in stmt.roles]
    if not roles:
        yield kernel.body, launched
    for role in roles:
        yield role.body, role.registers or launched


def _spans(kernel: Kernel, body: tuple[Stmt, ...]) -> dict[str, tuple[int, int]]:
    """The positions of the first and last use of each accumulator, in program order."""
    spans: dict[str, tuple[int, int]] = {}
    for place, (stmt, _) in enumerate(execs(body)):
        for name in accumulators(kernel).intersection(access.buffer for access in stmt.accesses):
            spans[name] = spans.get(name, (place, place))[0], place
    return spans


def _carried(kernel: Kernel, body: tuple[Stmt, ...]) -> set[str]:
    """The accumulators that the loops of a program carry."""
    products = [(stmt, loops) for stmt, loops in execs(body) if stmt.mechanism.in_registers]
    return {name for stmt, loops in products if is_carried(stmt, loops) for name in _registers(kernel, stmt, written=True)}


def _registers(kernel: Kernel, stmt: Exec, written: bool = False) -> Iterator[str]:
    """The buffers in registers that an MMA uses, or only those that it writes."""
    for access in stmt.accesses:
        if kernel.buffer(access.buffer).memory.private and (access.write or not written):
            yield access.buffer


def _refusal(kernel: Kernel, stmt: Exec, buffers: list[Buffer], limit: int) -> ResourceError:
    needed = sum(map(register_words, buffers))
    parts = ", ".join(f"{buffer.name} {register_words(buffer)}" for buffer in buffers)
    largest = max(buffers, key=register_words)
    helps = needed + SPARE <= MOST_GIVEN and kernel.threads <= 3 * GROUP_THREADS and not _releases_registers(kernel)
    more = "; or warp_specialize(128), whose producer releases registers to the consumers" if helps else ""
    return ResourceError(
        f"MMAs need {needed} registers per thread, but with {kernel.threads} threads per block a thread has {limit}: {parts}",
        within=stmt.spec,
        legal=f"at most {max(limit - SPARE, 0)} registers, as {SPARE} are needed for addresses",
        at=stmt.origin or largest.tensor.origin,
        hint=f"a smaller tile for Warpgroup, fewer warpgroups in a block{more}",
    )


def _releases_registers(kernel: Kernel) -> bool:
    """Whether a producer already releases registers."""
    return any(role.registers for stmt in kernel.body if isinstance(stmt, Roles) for role in stmt.roles)
