"""stmatrix: 8x8 matrices of 16-bit elements from the registers of a warp to shared memory (Hopper).

PTX ISA, "Warp-level matrix store instruction: stmatrix": the inverse of ldmatrix. Lane `l` provides elements `2*(l%4)` and
`2*(l%4)+1` of row `l/4` of every matrix, with `.trans` those of column `l/4`; eight lanes address the eight rows of a matrix,
16 bytes each: lanes 0-7 those of the first matrix, 8-15 those of the second, and so on. The instruction does not convert types. For a
float32 accumulator, each thread rounds and stores its values separately.

>>> from fireiron import *
>>> leaf = Move(16, 16, dtype=float16, dst=RowMajor)(RF, SH)(Warp)
>>> next(instruction for instruction in INSTRUCTIONS if not instruction.mismatches(leaf, ARCHITECTURES[-1])).name
'STMATRIX_16x16_ROW'
"""

from __future__ import annotations

from collections.abc import Sequence

from fireiron.frozen import frozen
from fireiron.ir import Exec, Stmt
from fireiron.ir.lanes import LaneMap
from fireiron.ir.text import Function, Item, Printer
from fireiron.language.tree import Context, Draft, Mismatch
from fireiron.performing.by_lanes import listed, registers, statements_by_lanes, with_registers
from fireiron.performing.matrices import MatrixCopy, addressed, family, matrices, received
from fireiron.performing.ownership_mismatch import ownership_mismatch
from fireiron.spec import Spec
from fireiron.values.document import called
from fireiron.values.machine import Architecture


@frozen
class StMatrix(MatrixCopy):
    """`Move(8*r, 8*c)(RF -> SH)(Warp)`: each lane stores the elements that it owns."""

    capability: int = 90

    def maps(self) -> dict[str, LaneMap]:
        """Return the lane maps by operand."""
        return {"src": received(self.matrices, self.pairs), "dst": addressed(self.matrices, self.along)}

    def performs(self) -> str:
        rows, columns = (8 * count for count in self.matrices)
        order = "row" if self.along else "column"
        return f"Move({rows},{columns})(RF,SH)(Warp), 16-bit, {order}-major in SH, pairs along dimension {self.pairs}"

    def may_perform(self, spec: Spec) -> bool:
        return super().may_perform(spec) and spec.dst.memory.of_block and self.follows_rows(spec.dst)

    def mismatches(self, spec: Spec, architecture: Architecture) -> tuple[Mismatch, ...]:
        if not spec.copies:
            return (Mismatch("spec", "Move", spec.title),)
        return self.common_mismatches(spec, architecture, "dst", "src")

    def fits(self, spec: Spec, context: Context) -> tuple[Mismatch, ...]:
        return self.mismatches(spec, context.architecture) or self._ownership_mismatch(spec, context)

    def _ownership_mismatch(self, spec: Spec, context: Context) -> tuple[Mismatch, ...]:
        """Return the mismatch if a lane does not own the elements that it must provide."""
        return ownership_mismatch(self.maps()["src"], spec, "src", context)

    def emit(self, spec: Spec, draft: Draft) -> tuple[Stmt, ...]:
        spread = ("dst",) if self.count < 4 else ()  # lanes past the last matrix repeat addresses, which are not used
        return statements_by_lanes(self, spec, draft, self.maps(), spread, vectors=(2, 8))

    def cuda(self, printer: Printer, statement: Exec) -> Sequence[Item]:
        source = printer.registers(statement, 0)
        return with_registers(
            [called(printer.function(self._function()), printer.shared_address(statement.accesses[1]), source.place)], source
        )

    def _function(self) -> Function:
        """Return the device function of the store; its arguments are the address and the registers of this lane."""
        trans = ".trans" if self.transposes else ""
        template = f"stmatrix.sync.aligned.m8n8.x{self.count}{trans}.shared.b16 [%0], {registers(1, self.count)};"
        body = (
            "const unsigned* const words = static_cast<const unsigned*>(source);",
            f'asm volatile("{template}"',
            f'    :: "r"(target), {listed("r", "words", self.count)} : "memory");',
        )
        note = f"store {matrices(self.count)} from the registers of a warp to shared memory{', transposed' if trans else ''}"
        return Function(f"stmatrix_x{self.count}{'_trans' if trans else ''}", ("unsigned target", "const void* source"), body, note)


STMATRIX: tuple[StMatrix, ...] = family(StMatrix, "STMATRIX")

INSTRUCTIONS = STMATRIX

__all__ = ["STMATRIX", "StMatrix"]
