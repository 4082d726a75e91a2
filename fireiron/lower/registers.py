"""What products of a warpgroup need in registers, and whether a thread has so many.

Where accumulators do not fit, ptxas issues each product by itself and waits for it (C7511, C7512), or refuses the text (C7602). A kernel is
refused before there is a text if one product does not fit: the accumulators and factors that it names, other accumulators that are in
use before and after it, or that the same program carries through its loops, and what a thread needs for addresses.
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
"""Most registers that an instruction can address."""

UNIT = 8
"""Allocation unit of registers per thread."""

GROUP_THREADS = 128
"""Registers are allocated to four warps at a time, one per SM partition."""

SPARE = 32
"""Registers of a thread in addition to accumulators and A operands: with 24 ptxas serializes the simplest kernels, with 32 none of the
library.
"""

MOST_GIVEN = 240
"""Registers per thread of two warpgroups when a third one, which loads, releases some."""


def require_registers(kernel: Kernel) -> None:
    """Refuse products whose accumulators and factors a thread cannot hold."""
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
    """The programs of the roles, or of all threads, and the registers that a thread has there."""
    threads = -(-kernel.threads // GROUP_THREADS) * GROUP_THREADS * max(kernel.effects[Residency].blocks, 1)
    launched = min(MOST, REGISTERS // threads // UNIT * UNIT)
    roles = [role for stmt in kernel.body if isinstance(stmt, Roles) for role in stmt.roles]
    if not roles:
        yield kernel.body, launched
    for role in roles:
        yield role.body, role.registers or launched


def _spans(kernel: Kernel, body: tuple[Stmt, ...]) -> dict[str, tuple[int, int]]:
    """The places of the first and the last use of each accumulator, in the order of the text."""
    spans: dict[str, tuple[int, int]] = {}
    for place, (stmt, _) in enumerate(execs(body)):
        for name in accumulators(kernel).intersection(access.buffer for access in stmt.accesses):
            spans[name] = spans.get(name, (place, place))[0], place
    return spans


def _carried(kernel: Kernel, body: tuple[Stmt, ...]) -> set[str]:
    """The accumulators that a program carries through loops."""
    products = [(stmt, loops) for stmt, loops in execs(body) if stmt.mechanism.in_registers]
    return {name for stmt, loops in products if is_carried(stmt, loops) for name in _registers(kernel, stmt, written=True)}


def _registers(kernel: Kernel, stmt: Exec, written: bool = False) -> Iterator[str]:
    """The buffers in registers that a product names, or only those that it writes."""
    for access in stmt.accesses:
        if kernel.buffer(access.buffer).memory.private and (access.write or not written):
            yield access.buffer


def _refusal(kernel: Kernel, stmt: Exec, buffers: list[Buffer], limit: int) -> ResourceError:
    needed = sum(map(register_words, buffers))
    parts = ", ".join(f"{buffer.name} {register_words(buffer)}" for buffer in buffers)
    largest = max(buffers, key=register_words)
    helps = needed + SPARE <= MOST_GIVEN and kernel.threads <= 3 * GROUP_THREADS and not _gives(kernel)
    more = "; or warp_specialize(128), whose producer gives others its registers" if helps else ""
    return ResourceError(
        f"{needed} registers of a thread for products, of {limit} with {kernel.threads} threads in a block: {parts}",
        within=stmt.spec,
        legal=f"at most {max(limit - SPARE, 0)} registers, as {SPARE} are for addresses",
        at=stmt.origin or largest.tensor.origin,
        hint=f"a smaller tile for Warpgroup, fewer warpgroups in a block{more}",
    )


def _gives(kernel: Kernel) -> bool:
    """Whether a producer gives registers already."""
    return any(role.registers for stmt in kernel.body if isinstance(stmt, Roles) for role in stmt.roles)
