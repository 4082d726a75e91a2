"""stmatrix: 8x8 matrices of 16-bit elements from the registers of a warp to shared memory (Hopper).

PTX ISA, "Warp-level matrix store instruction: stmatrix": ldmatrix reversed. Lane `l` gives elements `2*(l%4)` and
`2*(l%4)+1` of row `l/4` of every matrix, with `.trans` those of column `l/4`; eight lanes address the eight rows of a matrix,
16 bytes each, lanes 0-7 those of the first, 8-15 of the second, and so on. Nothing is converted: an accumulator in float32
goes the way of `LaneMove`, which rounds each value.
"""

from __future__ import annotations

from typing import Any

import attrs

from fireiron.executable.by_lanes import (
    level_mismatch,
    memory_mismatch,
    shape_mismatch,
    statements_by_lanes,
    target_mismatch,
    tile_of,
    type_mismatch,
)
from fireiron.executable.ldmatrix import addressed, received, registers_mismatch
from fireiron.ir import Exec, Stmt
from fireiron.lanes import LaneMap
from fireiron.machine import RF, SH, Architecture, Warp, bfloat16, float16
from fireiron.spec import MoveSpec, Spec
from fireiron.tensor import MatrixLayout
from fireiron.tree import Context, Executable, Mismatch


@attrs.frozen
class StMatrix(Executable):
    """`Move(8*r, 8*c)(RF -> SH)(Warp)` of 16-bit elements, `matrices = (r, c)`.

    `along` is the dimension in which the target is contiguous: 0 for column-major storage, 1 for row-major. `pairs` is the
    dimension along which a lane holds two neighbours; where the two differ, the instruction transposes.
    """

    matrices: tuple[int, int] = (2, 2)
    along: int = 1
    pairs: int = 1
    capability: int = 90

    @property
    def count(self) -> int:
        """Matrices, and 32-bit registers."""
        return self.matrices[0] * self.matrices[1]

    @property
    def transposes(self) -> bool:
        """Whether the instruction is `.trans`."""
        return self.along != self.pairs

    def maps(self) -> dict[str, LaneMap]:
        """The lane maps by operand."""
        return {"src": received(self.matrices, self.pairs), "dst": addressed(self.matrices, self.along)}

    def performs(self) -> str:
        rows, columns = (8 * count for count in self.matrices)
        order = "row" if self.along else "column"
        return f"Move({rows},{columns})(RF,SH)(Warp), 16-bit, {order}-major in SH, pairs along dimension {self.pairs}"

    def mismatches(self, spec: Spec, architecture: Architecture) -> tuple[Mismatch, ...]:
        if not isinstance(spec, MoveSpec):
            return (Mismatch("spec", "Move", spec.title),)
        found = [
            *level_mismatch(spec, Warp),
            *shape_mismatch(spec, tile_of(spec, self.maps()), multiples=True),
            *type_mismatch(spec, "src", (float16, bfloat16)),
            *type_mismatch(spec, "dst", (spec.src.dtype,)),
            *memory_mismatch(spec, "src", (RF,)),
            *memory_mismatch(spec, "dst", (SH,)),
            *target_mismatch(architecture, self.capability),
        ]
        layout = spec.dst.tensor.layout
        order = "row" if self.along else "col"
        if not isinstance(layout, MatrixLayout) or layout.order != order:
            found.append(Mismatch("dst layout", "RowMajor" if self.along else "ColMajor", str(layout)))
        return tuple(found)

    def fits(self, spec: Spec, context: Context) -> tuple[Mismatch, ...]:
        return self.mismatches(spec, context.architecture) or self._held_mismatch(spec, context)

    def _held_mismatch(self, spec: Spec, context: Context) -> tuple[Mismatch, ...]:
        """Whether each lane holds what it has to give."""
        assert isinstance(spec, MoveSpec)
        held: LaneMap | None = context.held.get(spec.src.tensor.name)
        if held is None:
            return (Mismatch("registers", "what an instruction of the warp holds", "none"),)
        return registers_mismatch(self.maps()["src"], held)

    def emit(self, spec: Spec, context: Context) -> tuple[Stmt, ...]:
        spread = ("dst",) if self.count < 4 else ()  # lanes beyond the last matrix repeat addresses, which are not used
        return statements_by_lanes(self, spec, context, self.maps(), spread, vector=8, vectors=(1, 8))

    def cuda(self, printer: Any, statement: Exec) -> list[str]:
        source, target = statement.accesses
        registers = printer.words(source, statement)
        names = ", ".join(f"%{number}" for number in range(1, self.count + 1))
        trans = ".trans" if self.transposes else ""
        template = f"stmatrix.sync.aligned.m8n8.x{self.count}{trans}.shared.b16 [%0], {{{names}}};"
        inputs = [f'"r"({text})' for text in (printer.shared_address(target), *registers)]
        return list(printer.asm(template, [], inputs, memory=True))


def _family() -> tuple[StMatrix, ...]:
    found = []
    for matrices in ((2, 2), (4, 1), (1, 4), (2, 1), (1, 2), (1, 1)):
        for along, pairs in ((1, 1), (0, 0), (1, 0), (0, 1)):
            order, trans = "ROW" if along else "COL", "_T" if along != pairs else ""
            name = f"STMATRIX_{8 * matrices[0]}x{8 * matrices[1]}_{order}{trans}"
            found.append(StMatrix(name, matrices, along, pairs))
    return tuple(found)


STMATRIX: tuple[StMatrix, ...] = _family()
"""All forms, those with most matrices first."""
