"""The resource check: threads, shared memory, registers, and how many blocks a multiprocessor holds."""

from __future__ import annotations

from fireiron.check.finding import Finding
from fireiron.check.scene import Scene
from fireiron.expr import constant
from fireiron.ir import Kernel
from fireiron.machine import SH

OVERHEAD = 24
"""Registers that a kernel takes beside its arrays: indices, pointers, loop counters; a rule of thumb."""

RESERVED_SHARED = 1024
"""Bytes of shared memory that the system takes for each block on compute capability 8.0 and later."""


def register_estimate(kernel: Kernel) -> int:
    """32-bit registers of a thread: its arrays that can live in registers, and a constant for the rest."""
    total = OVERHEAD
    for buffer in kernel.buffers:
        count = constant(buffer.elements) or 0
        if buffer.memory.private and count <= kernel.architecture.registers_per_thread:
            total += -(-count * buffer.dtype.bytes // 4)
    return total


def occupancy(kernel: Kernel) -> tuple[int, str]:
    """Blocks on a multiprocessor at once, and what limits them."""
    target = kernel.architecture
    warps = -(-kernel.threads // 32)
    registers = -(-min(register_estimate(kernel), target.registers_per_thread) // 8) * 8
    reserved = RESERVED_SHARED if target.capability >= 80 else 0
    limits = {
        "threads": target.threads_per_sm // (warps * 32),
        "registers": target.registers_per_sm // (registers * 32 * warps),
        "blocks": target.blocks_per_sm,
    }
    if kernel.shared_bytes:
        limits["shared memory"] = target.shared_per_sm // (kernel.shared_bytes + reserved)
    reason = min(limits, key=lambda name: limits[name])
    return limits[reason], reason


def check_resources(scene: Scene) -> tuple[Finding, ...]:
    """Errors where the target cannot run the kernel, warnings where registers overflow, notes with the numbers."""
    kernel = scene.kernel
    return (*_threads(kernel), *_shared(kernel), *_registers(kernel), *_occupancy(kernel))


def _threads(kernel: Kernel) -> list[Finding]:
    limit = kernel.architecture.threads_per_block
    details = {"threads": kernel.threads, "limit": limit}
    if kernel.threads > limit:
        message = f"{kernel.threads} threads in a block, {kernel.architecture} has at most {limit}"
        return [Finding("resources", "error", None, message, details=details)]
    if kernel.threads % 32:
        idle = -kernel.threads % 32
        message = f"{kernel.threads} threads in a block: the last warp has {idle} idle lanes"
        return [Finding("resources", "warning", None, message, details=details)]
    return [Finding("resources", "note", None, f"{kernel.threads} threads in a block, {kernel.threads // 32} warps", details=details)]


def _shared(kernel: Kernel) -> list[Finding]:
    limit = kernel.architecture.shared_per_block
    sizes = {buffer.name: buffer.bytes for buffer in kernel.buffers if buffer.memory == SH}
    details = {"bytes": kernel.shared_bytes, "limit": limit, "buffers": sizes}
    parts = ", ".join(f"{name} {size}" for name, size in sizes.items())
    top = max((buffer.offset + buffer.bytes for buffer in kernel.buffers if buffer.memory == SH), default=0)
    if max(kernel.shared_bytes, top) > limit:
        text = f"{max(kernel.shared_bytes, top)} bytes of shared memory in a block, {kernel.architecture} has {limit}: {parts}"
        return [Finding("resources", "error", None, text, details=details)]
    if top > kernel.shared_bytes:
        text = f"buffers reach byte {top} of shared memory, the kernel asks for {kernel.shared_bytes}"
        return [Finding("resources", "error", None, text, details=details)]
    text = f"{kernel.shared_bytes} of {limit} bytes of shared memory: {parts}" if sizes else "no shared memory"
    return [Finding("resources", "note", None, text, details=details)]


def _registers(kernel: Kernel) -> list[Finding]:
    findings = []
    limit = kernel.architecture.registers_per_thread
    arrays = {buffer.name: constant(buffer.elements) or 0 for buffer in kernel.buffers if buffer.memory.private}
    for buffer in kernel.buffers:
        if arrays.get(buffer.name, 0) > limit:
            text = f"{buffer.name} has {arrays[buffer.name]} elements in each thread: it lives in local memory, not in registers"
            details = {"elements": arrays[buffer.name], "limit": limit}
            findings.append(Finding("resources", "warning", buffer.name, text, buffer.tensor.origin, details=details))
    estimate = register_estimate(kernel)
    numbers = {"registers": estimate, "limit": limit, "arrays": arrays}
    text = f"about {estimate} registers a thread ({', '.join(f'{name} {count}' for name, count in arrays.items()) or 'no arrays'})"
    if estimate > limit:
        findings.append(Finding("resources", "warning", None, f"{text}: more than the {limit} there are, some will spill", details=numbers))
    else:
        findings.append(Finding("resources", "note", None, text, details=numbers))
    return findings


def _occupancy(kernel: Kernel) -> list[Finding]:
    blocks, reason = occupancy(kernel)
    share = blocks * kernel.threads / kernel.architecture.threads_per_sm
    details = {"blocks": blocks, "limited_by": reason, "share": round(share, 3)}
    number = f"{blocks} block{'s' if blocks != 1 else ''}"
    text = f"{number} on a multiprocessor at once, {share:.0%} of its threads; limited by {reason} (estimated)"
    return [Finding("resources", "note" if blocks else "warning", None, text, details=details)]
