"""Check the resources of a kernel: threads, shared memory, registers, and resident blocks per SM."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import attrs

from fireiron.check.access_trace import AccessTrace
from fireiron.check.finding import Finding
from fireiron.check.registers import array_limit, partitions, register_limit, register_prediction, rounded, warps_of
from fireiron.frozen import frozen
from fireiron.ir import Kernel, Roles
from fireiron.ir.effects.residency import Residency
from fireiron.ir.usage import Usage, pipelines, register_usage, shared_usage, usage_lines
from fireiron.values.expr import constant
from fireiron.values.machine import Architecture

RESERVED_SHARED = 1024
"""Bytes of shared memory that the system reserves per block (compute capability 8.0 and later)."""

REGISTER_UNIT = 256
"""Allocation unit of registers per warp (compute capability 3.0 and later)."""

REGISTERS_OF_ROLES = range(24, 257, 8)
"""The register counts that `setmaxnreg` accepts (PTX ISA)."""


@frozen
class Occupancy:
    """The share of an SM that the blocks of a kernel fill.

    Attributes:
        blocks: resident blocks per SM.
        warps: warps of these blocks.
        share: `warps` divided by the maximum number of warps per SM, 0 to 1.
        limited_by: the limiting resource: `"threads"`, `"registers"`, `"blocks"` or `"shared memory"`.
        limits: the blocks that each resource alone would allow.
    """

    blocks: int
    warps: int
    share: float
    limited_by: str
    limits: Mapping[str, int] = attrs.field(factory=dict, hash=False, repr=False)

    @property
    def limiting(self) -> str:
        """All resources that allow no more blocks, such as `registers and shared memory`."""
        return " and ".join(name for name, blocks in self.limits.items() if blocks == self.blocks) or self.limited_by


def occupancy(kernel: Kernel, registers: int | None = None) -> Occupancy:
    """The occupancy for a number of registers per thread, as reported by the compiler; by default the estimate.

    The rules follow `cuda_occupancy.h` of the CUDA toolkit. Each of the four partitions of an SM (two on sm_60) has an equal part of the
    registers, and allocates them per warp in units of 256. From compute capability 8.0 on, shared memory is allocated in units of 128
    bytes, plus 1024 bytes per block for the system; before, in units of 256 bytes (CUDA C++ Programming Guide, compute capabilities 8.x).
    The launch check rounds the warps of a block up to whole partitions.
    """
    target, warps = kernel.architecture, warps_of(kernel)
    used = register_prediction(kernel).given if registers is None else registers
    limits = {
        "threads": target.threads_per_sm // 32 // warps,
        "registers": _by_registers(target, warps, used),
        "blocks": target.blocks_per_sm,
    }
    if kernel.shared_bytes:
        unit, reserved = (128, RESERVED_SHARED) if target.capability >= 80 else (256, 0)
        limits["shared memory"] = target.shared_per_sm // rounded(kernel.shared_bytes + reserved, unit)
    reason = min(limits, key=lambda name: limits[name])
    resident_warps = limits[reason] * warps
    return Occupancy(limits[reason], resident_warps, resident_warps / (target.threads_per_sm // 32), reason, limits)


def _by_registers(target: Architecture, warps: int, registers: int) -> int:
    """The number of blocks that fit in the registers of an SM; 0 if one block, rounded up to whole partitions, does not fit."""
    parts = partitions(target)
    each = rounded(max(registers, 1) * 32, REGISTER_UNIT)
    return target.registers_per_sm // (parts * each) * parts // warps


def check_resources(access_trace: AccessTrace) -> tuple[Finding, ...]:
    """Errors if the target cannot run the kernel, warnings if registers overflow, notes with the numbers."""
    kernel = access_trace.kernel
    return (
        *_threads(kernel),
        *_shared(kernel),
        *_regions(kernel),
        *_registers(kernel),
        *_setmaxnreg(kernel),
        *_occupancy(kernel),
        *_of_effects(kernel),
    )


def resource_errors(kernel: Kernel) -> tuple[Finding, ...]:
    """Only the errors: resources that the kernel needs and the target does not have."""
    return tuple(
        finding for finding in (*_threads(kernel), *_shared(kernel), *_regions(kernel), *_setmaxnreg(kernel)) if finding.severity == "error"
    )


def _of_effects(kernel: Kernel) -> list[Finding]:
    """Errors of effects on the kernel as a whole that the kernel violates."""
    return [Finding("resources", "error", None, problem) for one in kernel.effects for problem in one.problems(kernel)]


def _threads(kernel: Kernel) -> list[Finding]:
    limit = kernel.architecture.threads_per_block
    details = {"threads": kernel.threads, "limit": limit}
    if kernel.threads > limit:
        message = f"{kernel.threads} threads in a block, but {kernel.architecture} has at most {limit}"
        return [Finding("resources", "error", None, message, details=details)]
    if kernel.threads % 32:
        idle = -kernel.threads % 32
        message = f"{kernel.threads} threads in a block: the last warp has {idle} idle lanes"
        if kernel.threads == 1:
            message = "1 thread in a block: no step assigns work to threads; .tile(...).to(Thread), or .load(NAME, RF, ...) of a definition"
        return [Finding("resources", "warning", None, message, details=details)]
    return [Finding("resources", "note", None, f"{kernel.threads} threads in a block, {kernel.threads // 32} warps", details=details)]


def _shared(kernel: Kernel) -> list[Finding]:
    limit = kernel.architecture.shared_per_block
    rows = shared_usage(kernel.buffers, pipelines(kernel))
    sizes = {one.name: one.amount for one in rows}
    details = {"bytes": kernel.shared_bytes, "limit": limit, "buffers": sizes, "origins": {one.name: one.origin for one in rows}}
    parts = ", ".join(f"{name} {size}" for name, size in sizes.items())
    top = max((buffer.offset + buffer.bytes for buffer in kernel.buffers if buffer.memory.in_shared), default=0)
    if max(kernel.shared_bytes, top) > limit:
        text = f"{max(kernel.shared_bytes, top)} bytes of shared memory in a block, but {kernel.architecture} has {limit}: {parts}"
        return [Finding("resources", "error", None, text, details=details)]
    if top > kernel.shared_bytes:
        text = f"buffers end at byte {top} of shared memory, but the kernel requests {kernel.shared_bytes} bytes"
        return [Finding("resources", "error", None, text, details=details)]
    text = f"{kernel.shared_bytes} of {limit} bytes of shared memory: {parts}" if sizes else "no shared memory"
    return [Finding("resources", "note", None, text, details=details)]


def _regions(kernel: Kernel) -> list[Finding]:
    """Errors of arrays in memory regions of a block other than shared memory: they exceed the region, or overlap other arrays."""
    findings, reached = [], kernel.shared_bytes
    inside = sorted((one for one in kernel.buffers if one.memory.of_block and not one.memory.in_shared), key=lambda one: one.offset)
    for region, group in itertools.groupby(inside, key=lambda one: one.memory.region):
        arrays = tuple(group)
        first, end = arrays[0].offset, max(one.offset + one.bytes for one in arrays)
        if end - first > region.bytes or first < reached:
            why = f"the region has {region.bytes} bytes" if end - first > region.bytes else f"other arrays use the bytes up to {reached}"
            names, verb = ", ".join(one.name for one in arrays), "uses" if len(arrays) == 1 else "use"
            text = f"{names} {verb} bytes {first} to {end} in {region.name}: {why}"
            findings.append(Finding("resources", "error", arrays[0].name, text, arrays[0].tensor.origin))
        reached = end
    return findings


def _registers(kernel: Kernel) -> list[Finding]:
    findings = []
    most = kernel.architecture.registers_per_thread
    arrays = {buffer.name: constant(buffer.elements) or 0 for buffer in kernel.buffers if buffer.memory.private}
    for buffer in kernel.buffers:
        if arrays.get(buffer.name, 0) > most:
            text = f"{buffer.name} has {arrays[buffer.name]} elements per thread: it is placed in local memory, not in registers"
            details = {"elements": arrays[buffer.name], "limit": most}
            findings.append(Finding("resources", "warning", buffer.name, text, buffer.tensor.origin, details=details))
    estimate, limit, rows = register_prediction(kernel), array_limit(kernel), _register_rows(kernel)
    by_buffer = {one.name: one.amount for one in register_usage(kernel)}
    numbers = {"registers": estimate.used, "limit": limit, "arrays": arrays, "by_buffer": by_buffer, "spilled": estimate.spilled}
    text = f"about {estimate.used} registers per thread ({', '.join(map(_amount, rows))})"
    if estimate.spilled:
        why = "available" if limit == most else f"that {_required_blocks(kernel)} leave per thread"
        at = max(rows, key=lambda one: one.amount).origin
        text += f": the arrays leave too few of the {limit} {why}; about {estimate.spilled} will spill"
        findings.append(Finding("resources", "warning", None, text, at, details=numbers))
    else:
        findings.append(Finding("resources", "note", None, text, details=numbers))
    return findings


def _amount(row: Usage) -> str:
    """A row in a sentence: `c_rf 64`, or `less 40 of arrays that are not live at the same time`."""
    kept = "in" if row.name == "spilled" else "of"
    return f"{row.name} {row.amount}" if row.amount >= 0 else f"less {-row.amount} {kept} {row.what}"


def _register_rows(kernel: Kernel) -> tuple[Usage, ...]:
    """The estimated registers of a thread by array, what arrays share because they are not live together, and the rest."""
    rows, estimate = register_usage(kernel), register_prediction(kernel)
    other = estimate.arrays - sum(one.amount for one in rows)
    what = "arrays that are not live at the same time" if other < 0 else "arrays that exceed the registers of a thread"
    shared = (Usage("reused" if other < 0 else "larger", other, what, None),) if other else ()
    spilled = (Usage("spilled", -estimate.spilled, "local memory", None),) if estimate.spilled else ()
    return (*rows, *shared, *spilled, Usage("the rest", estimate.rest, "addresses, counters: an estimate", None))


def _setmaxnreg(kernel: Kernel) -> list[Finding]:
    """Check roles that use `setmaxnreg`: legal counts, whole warpgroups, and a total within the launch allocation."""
    roles = [role for one in kernel.body if isinstance(one, Roles) for role in one.roles]
    given = {role.name: role.registers for role in roles if role.registers}
    if not given:
        return []
    launched = register_limit(kernel)
    each = ", ".join(f"{name} {registers}" for name, registers in given.items())
    text = f"registers per thread by role: {each}; launched with {launched}"
    wrong = [name for name, registers in given.items() if registers not in REGISTERS_OF_ROLES]
    if wrong:
        legal = f"multiples of {REGISTERS_OF_ROLES.step} from {REGISTERS_OF_ROLES[0]} to {REGISTERS_OF_ROLES[-1]}"
        return [Finding("resources", "error", None, f"{text}; legal: {legal}, which {', '.join(wrong)} violates")]
    groups: dict[int, set[int]] = {}
    for role in roles:
        for group in range(role.first // 128, -(-(role.first + role.threads) // 128)):
            groups.setdefault(group, set()).add(role.registers)
    if len(given) < len(roles) or kernel.threads % 128 or any(len(counts) > 1 for counts in groups.values()):
        return [Finding("resources", "error", None, f"{text}; legal: a count for every role, and roles of whole warpgroups")]
    # setmaxnreg.dec takes effect at once; setmaxnreg.inc waits until enough registers are free.
    if any((role.registers < launched) != (role.elected or role.first >= kernel.workers) for role in roles):
        return [Finding("resources", "error", None, f"{text}; legal: fewer for the producer, at least as many for the others")]
    if sum(role.threads * role.registers for role in roles) > launched * kernel.threads:
        return [Finding("resources", "error", None, f"{text}; legal: at most {launched * kernel.threads} for all threads together")]
    return []


def _required_blocks(kernel: Kernel) -> str:
    """The threads that must fit on an SM, as text: `256 threads`, `2 blocks of 256 threads`."""
    blocks, threads = kernel.effects[Residency].blocks, f"{kernel.threads} threads"
    return f"{blocks} blocks of {threads}" if blocks > 1 else threads


def _occupancy(kernel: Kernel) -> list[Finding]:
    result = occupancy(kernel)
    details = {"blocks": result.blocks, "limited_by": result.limited_by, "share": round(result.share, 3), "limits": dict(result.limits)}
    text = f"{_occupancy_text(result)}; limited by {result.limiting} (estimated)"
    return [Finding("resources", "note" if result.blocks else "warning", None, text, details=details)]


def _occupancy_text(result: Occupancy) -> str:
    number = f"{result.blocks} block{'' if result.blocks == 1 else 's'}"
    return f"{number} per SM, {result.warps} warps, {result.share:.0%} of the maximum"


# --- a report for people ----------------------------------------------------------------------------------------------


@frozen
class Measured:
    """The resources that the compiler reports: registers per thread, and bytes per thread that are spilled and in local memory."""

    registers: int
    spill_stores: int = 0
    spill_loads: int = 0
    stack: int = 0


def report(kernel: Kernel, measured: Measured | None = None) -> str:
    """Registers and shared memory by buffer, spills and occupancy; predicted, or as reported by the compiler."""
    return "\n".join([*_head(kernel), *_register_lines(kernel, measured), *_shared_lines(kernel), *_occupancy_lines(kernel, measured)])


def _head(kernel: Kernel) -> list[str]:
    warps = warps_of(kernel)
    return [f"{kernel.name} for {kernel.architecture}: {kernel.threads} threads per block, {warps} warp{'' if warps == 1 else 's'}"]


def _register_lines(kernel: Kernel, measured: Measured | None) -> list[str]:
    estimate = register_prediction(kernel)
    if measured is None:
        spilled = f"; about {estimate.spilled} will spill" if estimate.spilled else ""
        head = f"registers: about {estimate.used} per thread, of {array_limit(kernel)}{spilled}"
        return [head, *_indented(usage_lines(_register_rows(kernel), "registers")), *_local(kernel)]
    head = f"registers: {measured.registers} per thread, of {register_limit(kernel)} (about {estimate.used} expected)"
    rows = register_usage(kernel)
    left = measured.registers - sum(one.amount for one in rows)
    what = "indices, pointers, counters, temporaries" if left >= 0 else "not all arrays are live at the same time"
    rest = Usage("the rest", left, what, None)
    return [head, *_indented(usage_lines((*rows, rest), "registers")), *_local(kernel), *_spills(measured)]


def _local(kernel: Kernel) -> list[str]:
    """The arrays that are too large for registers."""
    most = kernel.architecture.registers_per_thread
    large = [one for one in kernel.buffers if one.memory.private and (constant(one.elements) or 0) > most]
    return [f"  {one.name} is in local memory: {one.bytes} bytes per thread  {one.tensor.origin or ''}".rstrip() for one in large]


def _spills(measured: Measured) -> list[str]:
    if not measured.spill_stores and not measured.spill_loads:
        stack = f"; {measured.stack} bytes of arrays in local memory" if measured.stack else ""
        return [f"spills: none{stack}"]
    return [
        f"spills: {measured.spill_stores} bytes per thread stored, {measured.spill_loads} loaded ({measured.stack} bytes of local memory)",
        "  to reduce: smaller tiles for Warp or Lane, more threads, fewer stages in registers, or fewer resident blocks",
    ]


def _shared_lines(kernel: Kernel) -> list[str]:
    stages = pipelines(kernel)
    rows = shared_usage(kernel.buffers, stages)
    if not rows:
        return ["shared memory: none"]
    head = f"shared memory: {kernel.shared_bytes} of {kernel.architecture.shared_per_block} bytes per block"
    saved = sum(one.amount for one in rows) - kernel.shared_bytes
    lines = [*usage_lines(rows, "bytes"), *(f"a stage of {', '.join(one.buffers)} takes {one.each} bytes" for one in stages)]
    return [head, *_indented([*lines, *([f"shared storage saves {saved} bytes"] if saved > 0 else [])])]


def _occupancy_lines(kernel: Kernel, measured: Measured | None) -> list[str]:
    result = occupancy(kernel, None if measured is None else measured.registers)
    limits = ", ".join(f"{name} {number}" for name, number in result.limits.items())
    guess = " (estimated)" if measured is None else ""
    return [f"occupancy: {_occupancy_text(result)}{guess}", f"  limited by {result.limiting}; blocks by resource: {limits}"]


def _indented(lines: list[str]) -> list[str]:
    return [f"  {line}" for line in lines]
