"""Named numbers, each a `constexpr int` at the start of the kernel: stages, bytes and offsets in shared memory, tiles and blocks."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from fireiron.cuda.names import Names
from fireiron.ir import Buffer, Kernel, Let, Ring, execs
from fireiron.values.expr import ZERO, Expr, FloorDiv, Mod, Var, constant, replaced

T = TypeVar("T")


class Step(int):
    """A stride with a name, which `constants` declares when the text uses it."""

    name: str
    text: str
    constants: Constants

    def __str__(self) -> str:
        return self.constants.named(self.name, int(self), self.text)


class Constants:
    """The named numbers of one kernel; `declared` has those that its text uses."""

    def __init__(self, kernel: Kernel, names: Names) -> None:
        self.kernel, self.names = kernel, names
        self.stages = stages_of(kernel)
        self.declared: dict[tuple[str, int], tuple[str, str]] = {}
        """Maps a wanted name and a value to the name and the text of the value."""
        counts = {self.stages[buffer.name] for buffer in kernel.buffers if buffer.memory.in_shared and self.stages.get(buffer.name, 1) > 1}
        counts |= {ring.stages for ring in kernel.rings if ring.stages > 1 and not ring.is_order}
        self.common = counts.pop() if len(counts) == 1 else None
        """The number of stages, if it is the same for all buffers and rings with several stages; else None."""

    def named(self, wanted: str, value: int, text: str = "") -> str:
        """The name of a number, which is declared; `text` is the sum or product that defines it."""
        key = (wanted, value)
        if key not in self.declared:
            self.declared[key] = self.names.keep(wanted), text or str(value)
        return self.declared[key][0]

    def count(self, number: int) -> str:
        """The text of a number of stages."""
        return self.named("num_stages", number) if number == self.common else str(number)

    def divisor(self, number: Expr) -> Expr:
        """The divisor that computes the stage and phase of a fill index; its name if it is the common number of stages."""
        value = constant(number)
        return Var(self.count(value), value, value) if value is not None and value == self.common else number

    def phases(self, value: Expr) -> Expr:
        """A phase with the number of stages replaced by its name."""
        quotients = {part: FloorDiv(part.left, self.divisor(part.right)) for part in _quotients(value)}
        return replaced(value, {part: named for part, named in quotients.items() if named != part})

    def ring_bytes(self, ring: Ring) -> str:
        """The transaction bytes of a stage of a ring."""
        strides = [self.stride(self.kernel.buffer(name), self.kernel.buffer(name).dtype.bytes) for name in ring.buffers]
        parts = [stride for stride in strides if stride is not None]
        whole = len(parts) == len(strides) and sum(parts) == ring.bytes
        if whole and len(parts) == 1:
            return str(parts[0])
        return self.named(f"{ring.name}_bytes", ring.bytes, " + ".join(map(str, parts)) if whole else "")

    def stride(self, buffer: Buffer, size: int) -> int | None:
        """The step from one stage of a shared buffer to the next; an element has `size` units."""
        if self.stages.get(buffer.name, 1) != buffer.tensor.copies:
            return None  # each unit has stages
        return self.copy(buffer, size, "stage_")

    def copy(self, buffer: Buffer, size: int, kind: str = "") -> int | None:
        """The size of a stage of a shared buffer, or of the copy of a unit; an element has `size` units."""
        elements = constant(buffer.elements)
        if elements is None:
            return None
        shape = [constant(extent) or 0 for extent in buffer.tensor.shape]
        return self._step(f"{buffer.name}_{kind}", elements, size, shape if math.prod(shape) == elements else ())

    def panel(self, buffer: Buffer, size: int) -> int | None:
        """The step from one panel of a shared buffer to the next. A panel is all rows of some columns, or all columns of some rows."""
        elements = constant(buffer.elements)
        shape = [constant(extent) or 0 for extent in buffer.tensor.shape]
        for axis, digits in enumerate(buffer.storage.dims):
            modes = [(constant(digit.size) or 0, constant(digit.weight) or 0) for digit in digits if constant(digit.size) != 1]
            for count, weight in modes if len(modes) > 1 else ():
                if weight * count == elements:
                    panel = [extent // count if dim == axis else extent for dim, extent in enumerate(shape)]
                    return self._step(f"{buffer.name}_panel_", weight, size, panel if math.prod(panel) == weight else ())
        return None

    def _step(self, name: str, elements: int, size: int, shape: Sequence[int]) -> Step:
        step = Step(elements * size)
        step.constants, step.name = self, f"{name}{'bytes' if size > 1 else 'size'}"
        step.text = " * ".join(map(str, (*shape, *([size] if size > 1 else [])))) if shape else ""
        return step

    def offset(self, name: str, place: int) -> str:
        """The offset of a buffer or ring in shared memory, in bytes: the end of the one before it, if it follows immediately."""
        buffers = itertools.takewhile(lambda buffer: buffer.name != name, self.kernel.buffers)
        rings = itertools.takewhile(lambda ring: ring.name != name, self.kernel.rings)
        buffer = _last(buffer for buffer in buffers if buffer.memory.in_shared and buffer.offset + buffer.bytes == place)
        ring = _last(ring for ring in rings if ring.offset + ring.barrier_bytes == place)
        text = ""
        if ring is not None:
            arrays = ring.barrier_bytes // (8 * ring.stages)
            text = self._after(ring.name, ring.offset, f"{f'{arrays} * ' if arrays > 1 else ''}{self.count(ring.stages)} * 8")
        elif buffer is not None:
            text = self._after(buffer.name, buffer.offset, self._whole(buffer))
        return self.named(f"{name}_offset", place, text)

    def _after(self, name: str, place: int, size: str) -> str:
        """The text of the end of a buffer or ring that starts at byte `place` of shared memory; `size` is the text of its size."""
        return f"{self.offset(name, place)} + {size}" if place else size

    def _whole(self, buffer: Buffer) -> str:
        """The bytes of all copies of a shared buffer."""
        copies, staged = buffer.tensor.copies, self.stages.get(buffer.name) == buffer.tensor.copies
        size = str(self.copy(buffer, buffer.dtype.bytes, "stage_" if staged else ""))
        return size if copies == 1 else f"{self.count(copies) if staged else copies} * {size}"

    def lines(self) -> Iterator[str]:
        """The declarations."""
        counts = [item for item in self.declared.values() if item[1].isdecimal()]
        for name, text in (*counts, *(item for item in self.declared.values() if item not in counts)):
            yield f"constexpr int {name} = {text};"


def _last(values: Iterable[T]) -> T | None:
    """The last value; None if there is none."""
    return next(iter([*values][::-1]), None)


def stages_of(kernel: Kernel) -> dict[str, int]:
    """The number of stages of each buffer that has several: that of its ring, or the modulus of the expression that selects a stage."""
    stages = {name: ring.stages for ring in kernel.rings for name in ring.buffers}
    copied = {buffer.name: buffer for buffer in kernel.buffers if buffer.tensor.copies > 1 and buffer.name not in stages}
    stages |= {name: buffer.tensor.copies for name, buffer in copied.items() if buffer.memory.private}
    fixed = {kernel.block, kernel.thread, *(let.var for let in kernel.body if isinstance(let, Let))}
    for stmt, _ in execs(kernel.body) if copied else ():
        for access in stmt.accesses:
            if access.buffer in copied and access.copy != ZERO:
                number = max(_moduli(access.copy, fixed), default=1)
                if copied[access.buffer].tensor.copies % number == 0:
                    stages[access.buffer] = max(stages.get(access.buffer, 1), number)
    return stages


def _quotients(value: Expr) -> Iterator[FloorDiv]:
    if isinstance(value, FloorDiv):
        yield value
    for child in value.children:
        yield from _quotients(child)


def _moduli(value: Expr, fixed: set[Var]) -> Iterator[int]:
    """The divisors of the remainders of an expression that depend on loops."""
    if isinstance(value, Mod) and not value.variables() <= fixed:
        yield constant(value.right) or 1
    for child in value.children:
        yield from _moduli(child, fixed)


__all__ = ["Constants", "Step", "stages_of"]
