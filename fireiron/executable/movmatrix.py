"""movmatrix: transposes the distribution of an 8x8 matrix of 16-bit elements over the registers of a warp (Turing).

PTX ISA, "Warp-level matrix transpose instruction: movmatrix". As a copy, it transposes only the ownership: lane `l`
sends elements `2*(l%4)` and `2*(l%4)+1` of row `l/4`, and receives those of column `l/4`, or conversely.

>>> from fireiron import *
>>> leaf = Move(8, 8, dtype=float16)(RF, RF)(Warp)
>>> next(instruction for instruction in INSTRUCTIONS if not instruction.mismatches(leaf, ARCHITECTURES[-1])).name
'MOVMATRIX_ROW'
"""

from __future__ import annotations

from collections.abc import Sequence

from fireiron.frozen import frozen
from fireiron.ir import Exec, Stmt
from fireiron.ir.lanes import LaneMap
from fireiron.ir.text import Function, Item, Printer
from fireiron.language.tree import Context, Draft, Executable, Mismatch
from fireiron.performing.by_lanes import (
    level_mismatch,
    memory_mismatch,
    shape_mismatch,
    statements_by_lanes,
    target_mismatch,
    tile_of,
    type_mismatch,
    with_registers,
)
from fireiron.performing.matrices import received
from fireiron.performing.ownership_mismatch import ownership_mismatch
from fireiron.spec import Spec
from fireiron.values.document import called
from fireiron.values.machine import RF, Architecture, Warp, bfloat16, float16
from fireiron.values.units import same_threads

_MOVMATRIX = Function(
    "movmatrix",
    ("void* target", "const void* source"),
    (
        'asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;"',
        '    : "=r"(*static_cast<unsigned*>(target)) : "r"(*static_cast<const unsigned*>(source)));',
    ),
    "transpose an 8x8 matrix of 16-bit elements in the registers of a warp",
)


@frozen
class MovMatrix(Executable):
    """`Move(8,8)(RF -> RF)(Warp)` of 16-bit elements: a transposed distribution.

    A lane sends elements that are adjacent along dimension `pairs`, and receives pairs along the other.
    """

    pairs: int = 1
    capability: int = 75

    def maps(self) -> dict[str, LaneMap]:
        """Return the lane maps by operand."""
        return {"src": received((1, 1), self.pairs), "dst": received((1, 1), 1 - self.pairs)}

    def performs(self) -> str:
        return f"Move(8,8)(RF,RF)(Warp), 16-bit, pairs along dimension {self.pairs} to pairs along dimension {1 - self.pairs}"

    def may_perform(self, spec: Spec) -> bool:
        return spec.copies and same_threads(spec.level, Warp) and all(memory.like(RF) for memory in spec.memories)

    def mismatches(self, spec: Spec, architecture: Architecture) -> tuple[Mismatch, ...]:
        if not spec.copies:
            return (Mismatch("spec", "Move", spec.title),)
        if len(spec.dims) != 2:
            return (Mismatch("shape", "two dimensions", "x".join(map(str, spec.sizes))),)
        return (
            *level_mismatch(spec, Warp),
            *shape_mismatch(spec, tile_of(spec, self.maps()), multiples=True),
            *type_mismatch(spec, "src", (float16, bfloat16)),
            *type_mismatch(spec, "dst", (spec.src.dtype,)),
            *(mismatch for name in ("src", "dst") for mismatch in memory_mismatch(spec, name, (RF,))),
            *target_mismatch(architecture, self.capability),
        )

    def fits(self, spec: Spec, context: Context) -> tuple[Mismatch, ...]:
        return self.mismatches(spec, context.architecture) or self._ownership_mismatches(spec, context)

    def _ownership_mismatches(self, spec: Spec, context: Context) -> tuple[Mismatch, ...]:
        """Return the mismatches if lanes do not own the elements that they send, or must own other elements than they receive.

        An operand without owners gets them from this copy.
        """
        mismatches: list[Mismatch] = []
        for name, lane_map in self.maps().items():
            if spec.operands[name].tensor.name in context.owners:
                mismatches += ownership_mismatch(lane_map, spec, name, context)
        return tuple(mismatches)

    def emit(self, spec: Spec, draft: Draft) -> tuple[Stmt, ...]:
        return statements_by_lanes(self, spec, draft, self.maps(), vectors=(2, 2))

    def cuda(self, printer: Printer, statement: Exec) -> Sequence[Item]:
        source, target = (printer.registers(statement, position) for position in range(2))
        return with_registers([called(printer.function(_MOVMATRIX), target.place, source.place)], source, target)


MOVMATRIX_ROW = MovMatrix("MOVMATRIX_ROW", 1)
MOVMATRIX_COL = MovMatrix("MOVMATRIX_COL", 0)
MOVMATRIX: tuple[MovMatrix, ...] = (MOVMATRIX_ROW, MOVMATRIX_COL)
"""Both forms: a lane sends a part of a row (ROW), or a part of a column (COL)."""

INSTRUCTIONS: tuple[Executable, ...] = MOVMATRIX

__all__ = ["MOVMATRIX_COL", "MOVMATRIX_ROW", "MovMatrix"]
