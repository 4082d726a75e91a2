"""Resource usage of a kernel's buffers: bytes of shared memory per block, registers per thread, and pipeline stages."""

from __future__ import annotations

from collections.abc import Iterable

from fireiron.frozen import frozen
from fireiron.ir import Buffer, Exec, For, Kernel, Stmt, statements
from fireiron.values.expr import constant
from fireiron.values.region import Region


@frozen
class Usage:
    """The usage of one buffer.

    `amount` is in bytes per block for shared memory and in 32-bit registers per thread for registers. `what` is the element type and shape,
    `origin` the line of the strategy that created the buffer.
    """

    name: str
    amount: int
    what: str
    origin: str | None


@frozen
class Stages:
    """The shared buffers of a pipeline with `stages` stages, which take `bytes` in total, `bytes // stages` each."""

    stages: int
    bytes: int
    buffers: tuple[str, ...]
    origin: str | None

    @property
    def each(self) -> int:
        """Bytes of one stage."""
        return self.bytes // self.stages


def shared_usage(buffers: Iterable[Buffer], stages: Iterable[Stages] = ()) -> tuple[Usage, ...]:
    """The buffers in shared memory, in the order of their declaration."""
    depth = {name: one.stages for one in stages for name in one.buffers}
    return tuple(
        Usage(buffer.name, buffer.bytes, _described(buffer, depth.get(buffer.name, 1)), buffer.tensor.origin)
        for buffer in buffers
        if buffer.memory.in_shared
    )


def region_starts(buffers: Iterable[Buffer]) -> dict[Region, int]:
    """The first byte of each memory region of a block except shared memory, in the common numbering of all bytes of a block."""
    starts: dict[Region, int] = {}
    for buffer in buffers:
        if buffer.memory.of_block and not buffer.memory.in_shared:
            starts[buffer.memory.region] = min(starts.get(buffer.memory.region, buffer.offset), buffer.offset)
    return starts


def register_words(buffer: Buffer) -> int:
    """The 32-bit registers per thread that an array takes."""
    return -(-buffer.bytes // 4)


def register_usage(kernel: Kernel) -> tuple[Usage, ...]:
    """The arrays in registers. Arrays with more elements than a thread has registers are in local memory and are omitted."""
    return tuple(
        Usage(buffer.name, register_words(buffer), _described(buffer, 1), buffer.tensor.origin)
        for buffer in kernel.buffers
        if buffer.memory.private and (constant(buffer.elements) or 0) <= kernel.architecture.registers_per_thread
    )


def pipelines(kernel: Kernel) -> tuple[Stages, ...]:
    """The pipelines of a kernel, outermost first, with the shared buffers that have stages."""
    result = []
    counted: set[str] = set()
    rings = {name: ring.stages for ring in kernel.rings for name in ring.buffers}
    for loop in statements(kernel.body):
        if isinstance(loop, For) and loop.period > 1:
            names = dict.fromkeys(_staged(loop, loop.body))
            buffers = [kernel.buffer(name) for name in names if name not in counted]
            depth = {buffer.name: rings.get(buffer.name, loop.period) for buffer in buffers}
            for stages in dict.fromkeys(depth.values()):
                candidates = (buffer for buffer in buffers if depth[buffer.name] == stages)
                staged = [one for one in candidates if one.memory.in_shared and one.tensor.copies % stages == 0]
                counted |= {one.name for one in staged}
                if staged:
                    result.append(Stages(stages, sum(one.bytes for one in staged), tuple(one.name for one in staged), loop.origin))
    return tuple(result)


def _staged(loop: For, body: tuple[Stmt, ...]) -> Iterable[str]:
    """The buffers that have different copies for successive iterations of the loop."""
    for stmt in statements(body):
        if isinstance(stmt, Exec):
            yield from (access.buffer for access in stmt.accesses if loop.var in access.copy.variables())


def _described(buffer: Buffer, stages: int) -> str:
    tensor = buffer.tensor
    parts = [f"{tensor.dtype} {' x '.join(map(str, tensor.shape))}"]
    stages = tensor.copies if tensor.memory.private else stages
    units = tensor.copies // stages
    parts += [f"{stages} stages"] if stages > 1 else []
    parts += [f"{units} copies"] if units > 1 else []
    parts += ["over the threads"] if tensor.memory.private else []
    return ", ".join(parts)


def usage_lines(rows: Iterable[Usage], unit: str) -> list[str]:
    """The rows as aligned text: name, amount, element type and shape, line of the strategy."""
    rows = tuple(rows)
    name = max((len(one.name) for one in rows), default=0)
    amount = max((len(str(one.amount)) for one in rows), default=0)
    what = max((len(one.what) for one in rows), default=0)
    return [f"{one.name:<{name}}  {one.amount:>{amount}} {unit}  {one.what:<{what}}  {one.origin or ''}".rstrip() for one in rows]
