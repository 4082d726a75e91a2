"""Numbers that the text calls by name: stages, bytes of a stage, tiles and blocks. Each is a `constexpr int` at the top of the kernel."""

from __future__ import annotations

import math
from collections.abc import Iterator

from fireiron.cuda.names import Names
from fireiron.ir import Buffer, Kernel, Let, Ring, execs
from fireiron.values.expr import ZERO, Expr, FloorDiv, Mod, Var, constant, replaced


class Step(int):
    """A stride that has a name; `constants` declares it when the text uses it."""

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
        """By wanted name and value, the name and the text of the value."""
        counts = {self.stages[buffer.name] for buffer in kernel.buffers if buffer.memory.in_shared and self.stages.get(buffer.name, 1) > 1}
        counts |= {ring.stages for ring in kernel.rings if ring.stages > 1 and not ring.is_order}
        self.common = counts.pop() if len(counts) == 1 else None
        """The number of stages, if all buffers and rings that have several have the same."""

    def named(self, wanted: str, value: int, text: str = "") -> str:
        """The name of a number, which is declared from now on; `text` is a product that shows what it consists of."""
        key = (wanted, value)
        if key not in self.declared:
            self.declared[key] = self.names.keep(wanted), text or str(value)
        return self.declared[key][0]

    def count(self, number: int) -> str:
        """A number of stages."""
        return self.named("num_stages", number) if number == self.common else str(number)

    def divisor(self, number: Expr) -> Expr:
        """The divisor of a fill's number, from which its stage and phase follow, by name if it is the number of stages."""
        value = constant(number)
        return Var(self.count(value), value, value) if value is not None and value == self.common else number

    def phases(self, value: Expr) -> Expr:
        """A phase with the number of stages by its name."""
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
        """The step from one stage of a shared buffer to the next, in units of which `size` are an element."""
        elements = constant(buffer.elements)
        if elements is None or self.stages.get(buffer.name, 1) != buffer.tensor.copies:
            return None  # each of several units has stages
        step = Step(elements * size)
        step.constants, step.name = self, f"{buffer.name}_stage_{'bytes' if size > 1 else 'size'}"
        shape = [constant(extent) for extent in buffer.tensor.shape]
        factors = [*map(str, shape), *([str(size)] if size > 1 else [])]
        step.text = " * ".join(factors) if None not in shape and math.prod(shape) == elements else ""  # type: ignore[arg-type]
        return step

    def lines(self) -> Iterator[str]:
        """The declarations."""
        counts = [item for item in self.declared.values() if item[1].isdecimal()]
        for name, text in (*counts, *(item for item in self.declared.values() if item not in counts)):
            yield f"constexpr int {name} = {text};"


def stages_of(kernel: Kernel) -> dict[str, int]:
    """The stages of each buffer that has several: those of its ring, or as many as the remainder that selects one."""
    stages = {name: ring.stages for ring in kernel.rings for name in ring.buffers}
    several = {buffer.name: buffer for buffer in kernel.buffers if buffer.tensor.copies > 1 and buffer.name not in stages}
    stages |= {name: buffer.tensor.copies for name, buffer in several.items() if buffer.memory.private}
    fixed = {kernel.block, kernel.thread, *(let.var for let in kernel.body if isinstance(let, Let))}
    for stmt, _ in execs(kernel.body) if several else ():
        for access in stmt.accesses:
            if access.buffer in several and access.copy != ZERO:
                number = max(_moduli(access.copy, fixed), default=1)
                if several[access.buffer].tensor.copies % number == 0:
                    stages[access.buffer] = max(stages.get(access.buffer, 1), number)
    return stages


def _quotients(value: Expr) -> Iterator[FloorDiv]:
    if isinstance(value, FloorDiv):
        yield value
    for child in value.children:
        yield from _quotients(child)


def _moduli(value: Expr, fixed: set[Var]) -> Iterator[int]:
    """The divisors of the remainders of an expression that loops change."""
    if isinstance(value, Mod) and not value.variables() <= fixed:
        yield constant(value.right) or 1
    for child in value.children:
        yield from _moduli(child, fixed)


__all__ = ["Constants", "Step", "stages_of"]
