"""ldmatrix: 8x8 matrices of 16-bit elements from shared memory to the registers of a warp (Graphene, Figure 1, Table 2 row 4).

PTX ISA, "Warp-level matrix load instruction: ldmatrix". Eight lanes address the eight rows of a matrix, 16 bytes each:
lanes 0-7 address those of the first matrix, 8-15 those of the second, and so on. Lane `l` receives elements `2*(l%4)` and `2*(l%4)+1` of
row `l/4` of every matrix; with `.trans` those of column `l/4`. The order of the matrices in a tile is free: the names of registers
depend on their elements, so the order only determines which lanes address which rows.

>>> from fireiron import *
>>> leaf = Move(16, 16, dtype=float16, src=RowMajor)(SH, RF)(Warp)
>>> next(instruction for instruction in INSTRUCTIONS if not instruction.mismatches(leaf, ARCHITECTURES[-1])).name
'LDMATRIX_16x16_ROW'
"""

from __future__ import annotations

from collections.abc import Sequence

from fireiron.frozen import frozen
from fireiron.ir import Exec, Stmt
from fireiron.ir.lanes import LaneMap
from fireiron.ir.text import Function, Item, Printer
from fireiron.language.tree import Context, Draft, Mismatch
from fireiron.performing.by_lanes import listed, registers, statements_by_lanes, with_registers
from fireiron.performing.layout_propagation import lanes_of
from fireiron.performing.matrices import MatrixCopy, addressed, family, matrices, received
from fireiron.performing.ownership_mismatch import ownership_mismatch
from fireiron.spec import Spec
from fireiron.values.document import called
from fireiron.values.machine import Architecture


@frozen
class LdMatrix(MatrixCopy):
    """`Move(8*r, 8*c)(SH -> RF)(Warp)`: each lane receives the elements that the instruction reading the registers requires."""

    @property
    def source(self) -> LaneMap:
        """Return the map from lane to the row of eight elements that it addresses; lanes past the last matrix repeat."""
        return addressed(self.matrices, self.along)

    @property
    def target(self) -> LaneMap:
        """Return the map from lane and register half to the element received."""
        return received(self.matrices, self.pairs)

    def maps(self) -> dict[str, LaneMap]:
        """Return the lane maps by operand."""
        return {"src": self.source, "dst": self.target}

    def performs(self) -> str:
        rows, columns = self.source.tile
        order = "row" if self.along else "column"
        return f"Move({rows},{columns})(SH,RF)(Warp), 16-bit, {order}-major in SH, pairs along dimension {self.pairs}"

    def may_perform(self, spec: Spec) -> bool:
        return super().may_perform(spec) and spec.src.memory.of_block and self.follows_rows(spec.src)

    def mismatches(self, spec: Spec, architecture: Architecture) -> tuple[Mismatch, ...]:
        if not spec.copies:
            return (Mismatch("spec", "Move", spec.title),)
        return self.common_mismatches(spec, architecture, "src", "dst")

    def fits(self, spec: Spec, context: Context) -> tuple[Mismatch, ...]:
        mismatches = self.mismatches(spec, context.architecture)
        return mismatches or self._ownership_mismatch(spec, context)

    def _ownership_mismatch(self, spec: Spec, context: Context) -> tuple[Mismatch, ...]:
        """Return the mismatch if a lane does not receive the elements that the reader of the registers requires."""
        return ownership_mismatch(self.target, spec, "dst", context)

    def emit(self, spec: Spec, draft: Draft) -> tuple[Stmt, ...]:
        transposed = self._next_along(spec, draft) == 1
        maps = {"src": addressed(self.matrices, self.along, transposed), "dst": received(self.matrices, self.pairs, transposed)}
        return statements_by_lanes(self, spec, draft, maps, vectors=(8, 2))

    def _next_along(self, spec: Spec, context: Context) -> int:
        """Return the dimension along which the reading instruction has its second register, which determines the order of the matrices."""
        ownership = context.owners.get(spec.operands["dst"].tensor.name)
        required_map = None if ownership is None else lanes_of(spec, "dst", ownership, context)
        if required_map is None or required_map.count < 4:
            return 0
        first, second = required_map.table[0][0], required_map.table[0][2]
        return 1 if first[0] == second[0] else 0

    def cuda(self, printer: Printer, statement: Exec) -> Sequence[Item]:
        target = printer.registers(statement, 1)
        return with_registers(
            [called(printer.function(self._function()), target.place, printer.shared_address(statement.accesses[0]))], target
        )

    def _function(self) -> Function:
        """Return the device function of the load; its arguments are the registers and the address of this lane."""
        trans = ".trans" if self.transposes else ""
        template = f"ldmatrix.sync.aligned.m8n8.x{self.count}{trans}.shared.b16 {registers(0, self.count)}, [%{self.count}];"
        body = (
            "unsigned* const words = static_cast<unsigned*>(target);",
            f'asm volatile("{template}"',
            f"    : {listed('=r', 'words', self.count)}",
            '    : "r"(source) : "memory");',
        )
        note = f"load {matrices(self.count)} from shared memory into the registers of a warp{', transposed' if trans else ''}"
        return Function(f"ldmatrix_x{self.count}{'_trans' if trans else ''}", ("void* target", "unsigned source"), body, note)


LDMATRIX: tuple[LdMatrix, ...] = family(LdMatrix, "LDMATRIX")

INSTRUCTIONS = LDMATRIX

__all__ = ["LDMATRIX", "LdMatrix"]
