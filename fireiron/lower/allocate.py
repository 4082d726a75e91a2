"""`allocate`: shared buffers get their place. They share storage only where `reuse_buffer` asks."""

from __future__ import annotations

import attrs

from fireiron.errors import DecompositionError, ResourceError
from fireiron.ir import Buffer, Exec, Kernel, Stmt, execs
from fireiron.ir.chunks import ALIGNMENT
from fireiron.ir.usage import Stages, pipelines, shared_usage, usage_lines

BARRIER = 8
"""Bytes of a barrier in memory."""


def allocate(kernel: Kernel) -> Kernel:
    """The kernel with an offset for every shared buffer; refused where they do not fit the target."""
    kernel = _placed(_aligned(kernel))
    if kernel.shared_bytes > kernel.architecture.shared_per_block:
        _refuse(kernel)
    return kernel


def _placed(kernel: Kernel) -> Kernel:
    """The kernel with its shared buffers in order of declaration, each at the next place, or in one that is free."""
    spans = live_spans(kernel)
    placed: list[Buffer] = []
    result = []
    top = 0
    for buffer in kernel.buffers:
        if buffer.memory.of_block and buffer.name in spans:
            offset = _offset(buffer, placed, spans)
            buffer = attrs.evolve(buffer, offset=offset)
            placed.append(buffer)
            top = max(top, offset + buffer.bytes)
        result.append(buffer)
    rings = []
    for ring in kernel.rings:
        rings.append(attrs.evolve(ring, offset=_align(top, BARRIER)))
        top = rings[-1].offset + ring.barrier_bytes
    return attrs.evolve(kernel, buffers=tuple(result), rings=tuple(rings), shared_bytes=top)


def _aligned(kernel: Kernel) -> Kernel:
    """Arrays start at multiples of what an instruction takes of them at once."""
    needed: dict[str, int] = {}
    for statement, _ in execs(kernel.body):
        for position, access in enumerate(statement.accesses):
            buffer = kernel.buffer(access.buffer)
            size = statement.width(position) * buffer.dtype.bytes
            if statement.instruction.by_engine and buffer.memory.of_block:
                size = ALIGNMENT
            needed[access.buffer] = max(needed.get(access.buffer, 1), size)
    buffers = []
    for buffer in kernel.buffers:
        align = max(buffer.tensor.align, needed.get(buffer.name, 1))
        # Arrays in registers are aligned by `guard`, which knows the last widths of their accesses.
        private = buffer.memory.private or align == buffer.tensor.align
        buffers.append(buffer if private else attrs.evolve(buffer, tensor=attrs.evolve(buffer.tensor, align=align)))
    return attrs.evolve(kernel, buffers=tuple(buffers))


def _align(offset: int, alignment: int) -> int:
    return -(-offset // alignment) * alignment


def _offset(buffer: Buffer, placed: list[Buffer], spans: dict[str, tuple[int, int]]) -> int:
    """Behind all others; or, where the buffer may reuse storage, the lowest place free during its life."""
    # 16 bytes are the most that one load, store or cp.async takes: at less, `vectorize` would have to know where buffers lie.
    alignment = max(16, buffer.tensor.align)
    end = max((other.offset + other.bytes for other in placed), default=0)
    if not buffer.tensor.reuse:
        return _align(end, alignment)
    start, stop = spans[buffer.name]
    living = [other for other in placed if spans[other.name][0] <= stop and start <= spans[other.name][1]]
    # The lowest free place is the first one, or one right behind a living buffer.
    for offset in sorted({0, *(_align(other.offset + other.bytes, alignment) for other in living)}):
        if all(offset + buffer.bytes <= other.offset or other.offset + other.bytes <= offset for other in living):
            break
    # Scratch memory of a micro-kernel reuses what it can; only a user's `reuse_buffer` must find something.
    if offset >= end and not buffer.tensor.must_reuse:
        return _align(end, alignment)
    if offset >= end:
        names = ", ".join(other.name for other in living) or "none was allocated before"
        raise DecompositionError(
            f"reuse_buffer: no earlier shared buffer is dead while {buffer.name} lives (living: {names})",
            at=buffer.tensor.origin,
            hint="leave reuse_buffer out",
        )
    return offset


def live_spans(kernel: Kernel) -> dict[str, tuple[int, int]]:
    """First and last position of each buffer's uses; a loop is one position, so what is used in it lives all through it."""
    spans: dict[str, tuple[int, int]] = {}
    _visit(kernel.body, [0], spans)
    return spans


def _visit(body: tuple[Stmt, ...], clock: list[int], spans: dict[str, tuple[int, int]]) -> None:
    for statement in body:
        if statement.children:
            start = clock[0]
            inner: dict[str, tuple[int, int]] = {}
            for child in statement.children:
                _visit(child, clock, inner)
            clock[0] += 1
            for name in inner:
                _extend(spans, name, start, clock[0])
        if isinstance(statement, Exec):
            for name in [access.buffer for access in statement.accesses] + ([statement.scratch.name] if statement.scratch else []):
                _extend(spans, name, clock[0], clock[0])
        clock[0] += 1


def _extend(spans: dict[str, tuple[int, int]], name: str, start: int, stop: int) -> None:
    old = spans.get(name, (start, stop))
    spans[name] = (min(old[0], start), max(old[1], stop))


def _refuse(kernel: Kernel) -> None:
    """The error of shared memory that overflows: what each buffer takes and who made it, and how many stages would fit."""
    limit = kernel.architecture.shared_per_block
    stages, spans = pipelines(kernel), live_spans(kernel)
    rows = shared_usage((one for one in kernel.buffers if one.name in spans), stages)
    largest = max(rows, key=lambda row: row.amount)
    parts = ", ".join(f"{row.name} {row.amount}" for row in rows)
    text = f"{kernel.shared_bytes} bytes of shared memory in a block, {kernel.architecture} has {limit}: {parts}"
    advice = [one for one in (_fewer(kernel, stage) for stage in stages) if one]
    raise ResourceError(
        "\n".join([text, *(f"  {line}" for line in usage_lines(rows, "bytes"))]),
        within=kernel.spec,
        legal=f"at most {limit} bytes",
        at=largest.origin,
        hint=", or ".join([*advice, "smaller tiles, a smaller split, a 16-bit type, or reuse_buffer()"]),
    )


def _fewer(kernel: Kernel, stages: Stages) -> str:
    """How many stages of a pipeline would fit, if any."""
    each = f"each of the {stages.stages} stages of {', '.join(stages.buffers)} takes {stages.each} bytes"
    for number in range(stages.stages - 1, 0, -1):
        needed = _with_stages(kernel, stages, number).shared_bytes
        if needed <= kernel.architecture.shared_per_block:
            return f"pipeline({number}), which takes {needed} ({each})"
    return ""


def _with_stages(kernel: Kernel, stages: Stages, number: int) -> Kernel:
    """The kernel as if its pipeline had another number of stages."""
    buffers = tuple(
        attrs.evolve(one, tensor=attrs.evolve(one.tensor, copies=one.tensor.copies // stages.stages * number))
        if one.name in stages.buffers
        else one
        for one in kernel.buffers
    )
    return _placed(attrs.evolve(kernel, buffers=buffers))
