"""`allocate`: assign offsets to shared buffers. Buffers share bytes where `reuse_buffer` requests it, or where the bound on shared memory
requires it.

With a bound, no two buffers share bytes at first (a complete interference graph). Then edges between buffers that are never used at the
same time are removed, as few as needed to fit. `synchronize`, which compares bytes, places the barrier between the last use of one buffer
and the first write to the other.

Source: Cypress (PLDI 2025), section 4.2.4.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from fireiron.errors import DecompositionError, ResourceError
from fireiron.frozen import evolve
from fireiron.ir import Buffer, Exec, Kernel, Stmt, execs
from fireiron.ir.effects.shared_bound import SharedBound
from fireiron.ir.smem_layouts import ALIGNMENT
from fireiron.ir.usage import Stages, pipelines, shared_usage, usage_lines

BARRIER = 8
"""Bytes of an mbarrier."""


def allocate(kernel: Kernel) -> Kernel:
    """The kernel with an offset for every shared buffer; an error if they do not fit the target."""
    kernel = _placed(_aligned(kernel))
    bound = _bound(kernel)
    if kernel.effects[SharedBound].bytes and kernel.shared_bytes > bound:
        kernel = _shared_within(kernel, bound) or kernel
    if kernel.shared_bytes > bound:
        _refuse(kernel)
    return _in_regions(kernel)


def _bound(kernel: Kernel) -> int:
    """The bound on shared memory in bytes."""
    most = kernel.architecture.shared_per_block
    return min(kernel.effects[SharedBound].bytes, most) if kernel.effects[SharedBound].bytes else most


Pair = frozenset[str]
"""The names of two buffers."""

FEW = 5
"""Maximum number of buffers for which every order of packing is tried."""

MOST_CHOICES = 4096
"""Maximum number of sets of pairs that are tried; beyond it pairs are removed one by one, the most effective first."""


def _shared_within(kernel: Kernel, bound: int) -> Kernel | None:
    """The kernel with buffers that share bytes, with the fewest such pairs that fit the bound; None if nothing fits."""
    spans = live_spans(kernel)
    buffers = [buffer for buffer in kernel.buffers if buffer.memory.in_shared and buffer.name in spans]
    apart = [
        frozenset((buffer.name, other.name))
        for buffer, other in itertools.combinations(buffers, 2)
        if spans[buffer.name][1] < spans[other.name][0] or spans[other.name][1] < spans[buffer.name][0]
    ]
    for pairs in _choices(buffers, apart):
        offsets = _packed(buffers, pairs)
        shared = _with_offsets(kernel, offsets, {max(pair, key=lambda name: spans[name]) for pair in pairs})
        if shared.shared_bytes <= bound:
            return shared
    return None


def _choices(buffers: Sequence[Buffer], apart: Sequence[Pair]) -> Iterator[frozenset[Pair]]:
    """Sets of pairs that may share bytes, small ones first."""
    if 1 << len(apart) <= MOST_CHOICES:
        for count in range(1, len(apart) + 1):
            yield from map(frozenset, itertools.combinations(apart, count))
        return
    chosen: frozenset[Pair] = frozenset()
    for _ in apart:
        rest = [pair for pair in apart if pair not in chosen]
        best = min(rest, key=lambda pair: _top(buffers, _packed(buffers, chosen | {pair})))
        chosen |= {best}
        yield chosen


def _packed(buffers: Sequence[Buffer], pairs: frozenset[Pair]) -> dict[str, int]:
    """The offsets of buffers, each at the lowest address at which it overlaps only its partners. Few buffers are tried in every order."""
    few = len(buffers) <= FEW
    orders: Iterable[Sequence[Buffer]] = itertools.permutations(buffers) if few else (buffers, sorted(buffers, key=lambda one: -one.bytes))
    return min((_stacked(order, pairs) for order in orders), key=lambda offsets: _top(buffers, offsets))


def _stacked(buffers: Sequence[Buffer], pairs: frozenset[Pair]) -> dict[str, int]:
    offsets: dict[str, int] = {}
    placed: list[Buffer] = []
    for buffer in buffers:
        alignment = max(16, buffer.tensor.align)
        others = [(offsets[one.name], one.bytes) for one in placed if frozenset((one.name, buffer.name)) not in pairs]
        places = sorted({0, *(_align(start + size, alignment) for start, size in others)})
        offsets[buffer.name] = next(
            place for place in places if all(place + buffer.bytes <= start or start + size <= place for start, size in others)
        )
        placed.append(buffer)
    return offsets


def _top(buffers: Sequence[Buffer], offsets: Mapping[str, int]) -> int:
    return max(offsets[buffer.name] + buffer.bytes for buffer in buffers)


def _with_offsets(kernel: Kernel, offsets: Mapping[str, int], later: Collection[str]) -> Kernel:
    """The kernel with its buffers at these offsets; `later` ones reuse bytes of others."""
    buffers = []
    for buffer in kernel.buffers:
        if buffer.name in offsets:
            tensor = evolve(buffer.tensor, reuse=True) if buffer.name in later else buffer.tensor
            buffer = evolve(buffer, offset=offsets[buffer.name], tensor=tensor)
        buffers.append(buffer)
    return _with_barriers_last(
        evolve(kernel, buffers=tuple(buffers)),
        max(offsets[buffer.name] + buffer.bytes for buffer in buffers if buffer.name in offsets),
    )


def _in_regions(kernel: Kernel) -> Kernel:
    """The kernel with its arrays in other memory regions of a block allocated one after the other; all regions are numbered after shared
    memory.

    Raises: ResourceError if a region is too small.
    """
    top = kernel.shared_bytes
    other_regions = [buffer for buffer in kernel.buffers if buffer.memory.of_block and not buffer.memory.in_shared]
    placed: dict[str, Buffer] = {}
    for region in dict.fromkeys(one.memory.region for one in other_regions):
        inside = [one for one in other_regions if one.memory.region == region]
        start = top = _align(top, ALIGNMENT)
        for buffer in inside:
            placed[buffer.name] = evolve(buffer, offset=_align(top, max(16, buffer.tensor.align)))
            top = placed[buffer.name].offset + buffer.bytes
        if top - start > region.bytes:
            largest = max(inside, key=lambda one: one.bytes)
            raise ResourceError(
                f"{top - start} bytes in {region.name}: {', '.join(f'{buffer.name} {buffer.bytes}' for buffer in inside)}",
                within=kernel.spec, legal=f"at most {region.bytes} bytes", at=largest.tensor.origin, hint="smaller tiles, or a load to SH",
            )  # fmt: skip
    return evolve(kernel, buffers=tuple(placed.get(buffer.name, buffer) for buffer in kernel.buffers)) if placed else kernel


def _placed(kernel: Kernel) -> Kernel:
    """The kernel with its shared buffers in order of declaration, each at the next free offset, or at a reused one."""
    spans = live_spans(kernel)
    placed: list[Buffer] = []
    result = []
    top = 0
    for buffer in kernel.buffers:
        if buffer.memory.in_shared and buffer.name in spans:
            offset = _offset(buffer, placed, spans)
            buffer = evolve(buffer, offset=offset)
            placed.append(buffer)
            top = max(top, offset + buffer.bytes)
        result.append(buffer)
    return _with_barriers_last(evolve(kernel, buffers=tuple(result)), top)


BLOCK_NUMBER_BYTES = 32
"""Bytes of shared memory for the number of a block, twice: as a static array, and in the size of the dynamic ones."""


def _with_barriers_last(kernel: Kernel, top: int) -> Kernel:
    """The kernel with the mbarriers of its rings after all buffers."""
    rings = []
    for ring in kernel.rings:
        rings.append(evolve(ring, offset=_align(top, BARRIER)))
        top = rings[-1].offset + ring.barrier_bytes
    if kernel.workspace is not None and kernel.workspace.looks_back:
        top = _align(top, BARRIER) + BLOCK_NUMBER_BYTES
    return evolve(kernel, rings=tuple(rings), shared_bytes=top)


def _aligned(kernel: Kernel) -> Kernel:
    """Align arrays to the widest access of an instruction."""
    needed: dict[str, int] = {}
    for statement, _ in execs(kernel.body):
        for position, access in enumerate(statement.accesses):
            buffer = kernel.buffer(access.buffer)
            size = statement.width(position) * buffer.dtype.bytes
            if statement.instruction.mechanism.by_engine and buffer.memory.of_block:
                size = ALIGNMENT
            needed[access.buffer] = max(needed.get(access.buffer, 1), size)
    buffers = []
    for buffer in kernel.buffers:
        align = max(buffer.tensor.align, needed.get(buffer.name, 1))
        # `guard` aligns arrays in registers: it knows the final widths of their accesses.
        private = buffer.memory.private or align == buffer.tensor.align
        buffers.append(buffer if private else evolve(buffer, tensor=evolve(buffer.tensor, align=align)))
    return evolve(kernel, buffers=tuple(buffers))


def _align(offset: int, alignment: int) -> int:
    return -(-offset // alignment) * alignment


def _offset(buffer: Buffer, placed: list[Buffer], spans: dict[str, tuple[int, int]]) -> int:
    """The end of all others; if the buffer may reuse storage, the lowest offset that is free during its lifetime."""
    # 16 bytes is the widest load, store or cp.async; with less, `vectorize` would have to know the offsets.
    alignment = max(16, buffer.tensor.align)
    end = max((other.offset + other.bytes for other in placed), default=0)
    if not buffer.tensor.reuse:
        return _align(end, alignment)
    start, stop = spans[buffer.name]
    living = [other for other in placed if spans[other.name][0] <= stop and start <= spans[other.name][1]]
    # The lowest free offset is 0, or the end of a live buffer.
    for offset in sorted({0, *(_align(other.offset + other.bytes, alignment) for other in living)}):
        if all(offset + buffer.bytes <= other.offset or other.offset + other.bytes <= offset for other in living):
            break
    # Scratch memory of a micro-kernel reuses bytes if possible; a user's `reuse_buffer` must succeed.
    if offset >= end and not buffer.tensor.must_reuse:
        return _align(end, alignment)
    if offset >= end:
        names = ", ".join(other.name for other in living) or "none allocated before it"
        raise DecompositionError(
            f"reuse_buffer: no earlier shared buffer is dead while {buffer.name} is live (live: {names})",
            at=buffer.tensor.origin,
            hint="leave out reuse_buffer",
        )
    return offset


def live_spans(kernel: Kernel) -> dict[str, tuple[int, int]]:
    """The first and last position of each buffer's uses; a loop is one position, so a buffer used in it is live in all of it."""
    spans: dict[str, tuple[int, int]] = {}
    clock = [0]
    _visit(kernel.body, clock, spans)
    in_rings = {name for ring in kernel.rings for name in ring.buffers}
    for stmt, _ in execs(kernel.body):
        if stmt.mechanism.outlives:  # a separate role stores the stages of a ring, at any time: no barrier orders it with other buffers
            spans |= {access.buffer: (0, clock[0]) for access in stmt.accesses if access.buffer in in_rings}
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
    """Record another use, after all others."""
    first, _ = spans.get(name, (start, stop))
    spans[name] = (first, stop)


def _refuse(kernel: Kernel) -> None:
    """The error for too much shared memory: the bytes and origin of each buffer, and how many stages would fit."""
    limit = _bound(kernel)
    stages, spans = pipelines(kernel), live_spans(kernel)
    rows = shared_usage((buffer for buffer in kernel.buffers if buffer.name in spans), stages)
    largest = max(rows, key=lambda row: row.amount)
    parts = ", ".join(f"{row.name} {row.amount}" for row in rows)
    bound = kernel.effects[SharedBound].bytes
    limit_text = f"max_shared_bytes({bound}) allows" if limit == bound else f"{kernel.architecture} has"
    text = f"{kernel.shared_bytes} bytes of shared memory in a block, but {limit_text} {limit}: {parts}"
    advice = [one for one in (_fewer(kernel, stage) for stage in stages) if one]
    raise ResourceError(
        "\n".join([text, *(f"  {line}" for line in usage_lines(rows, "bytes"))]),
        within=kernel.spec,
        legal=f"at most {limit} bytes",
        at=largest.origin,
        hint=", or ".join([*advice, f"smaller tiles, a smaller split, a 16-bit type, or {_last_resort(kernel)}"]),
    )


def _last_resort(kernel: Kernel) -> str:
    if kernel.effects[SharedBound].bytes:
        return "a larger bound: these arrays are live at the same time"
    return f"for a program of tasks Mapping(..., max_shared_bytes={_bound(kernel)})" if kernel.title else "reuse_buffer()"


def _fewer(kernel: Kernel, stages: Stages) -> str:
    """How many stages of a pipeline would fit, if any."""
    each = f"each of the {stages.stages} stages of {', '.join(stages.buffers)} takes {stages.each} bytes"
    for number in range(stages.stages - 1, 0, -1):
        needed = _with_stages(kernel, stages, number).shared_bytes
        if needed <= _bound(kernel):
            verb = "stages" if kernel.buffer(stages.buffers[0]).tensor.stages else "pipeline"
            return f"{verb}({number}), which takes {needed} ({each})"
    return ""


def _with_stages(kernel: Kernel, stages: Stages, number: int) -> Kernel:
    """The kernel as if its pipeline had another number of stages."""
    buffers = tuple(
        evolve(buffer, tensor=evolve(buffer.tensor, copies=buffer.tensor.copies // stages.stages * number))
        if buffer.name in stages.buffers
        else buffer
        for buffer in kernel.buffers
    )
    return _placed(evolve(kernel, buffers=buffers))
