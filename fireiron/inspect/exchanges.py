"""What the GPUs of a node read of each other or store there: by launch, with the barriers between launches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from fireiron.values.expr import constant

if TYPE_CHECKING:
    from fireiron.compiler import Launch, Program


def exchanges(program: Program) -> Iterator[str]:
    """Yield a line for each launch that accesses memory of other GPUs, and for each barrier; nothing for other programs."""
    if program.spec.level.gpus is None:
        return
    *before, after = program.barriers
    for launch, reason in zip(program.launches, before, strict=True):
        if reason:
            yield f"barrier of all GPUs before {launch.program.name}: {reason}"
        for name in launch.spec.inputs:
            if launch.spec.operands[name].tensor.of_all_gpus:
                yield f"{launch.program.name} reads {_bytes(launch, name)} of {launch.arrays[name]} in the memory of other GPUs"
        exchange = None if launch.kernel.workspace is None else launch.kernel.workspace.exchange
        if exchange is not None:
            stored = f"{exchange.stored / 1e6:.3g} MB of {'its part' if launch.kernel.gathers else 'sums'}"
            use = "read it" if launch.kernel.gathers else "add them"
            yield f"{launch.program.name} stores {stored} in the memory of other GPUs, which {use} in the same launch"
    if after:
        yield f"barrier of all GPUs at the end: {after}"


def _bytes(launch: Launch, name: str) -> str:
    """Return the bytes of the parts of other GPUs that a launch on one GPU accesses, if it reads each once."""
    tensor = launch.spec.operands[name].tensor
    array = tensor.array
    if tensor.through is not None and tensor.through.tables:
        return "rows"
    sizes = [constant(size) for size in array.shape]
    axis = array.portion.gpu_axis if array.portion is not None else None
    if axis is None or None in sizes:
        return "parts"
    total = array.dtype.bytes
    for place, size in enumerate(sizes):
        total *= (size or 1) - (place == axis)
    return f"{total / 1e6:.3g} MB"


__all__ = ["exchanges"]
