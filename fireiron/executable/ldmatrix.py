"""ldmatrix: 8x8 matrices of 16-bit elements from shared memory to the registers of a warp (Graphene, Figure 1, Table 2 row 4).

PTX ISA, "Warp-level matrix load instruction: ldmatrix". Eight lanes address the eight rows of a matrix, 16 bytes each:
lanes 0-7 those of the first, 8-15 of the second, and so on. Lane `l` receives elements `2*(l%4)` and `2*(l%4)+1` of row `l/4`
of every matrix; with `.trans` those of column `l/4`. Which matrix of the tile comes first is free (T027): the registers
are named by the elements they hold, so the order below only decides which lanes address which rows.
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
from fireiron.ir import Exec, Stmt
from fireiron.lanes import LaneMap, Part
from fireiron.machine import RF, SH, Architecture, Warp, bfloat16, float16
from fireiron.spec import MoveSpec, Spec
from fireiron.tensor import MatrixLayout
from fireiron.tree import Context, Executable, Mismatch


@attrs.frozen
class LdMatrix(Executable):
    """`Move(8*r, 8*c)(SH -> RF)(Warp)` of 16-bit elements, `matrices = (r, c)`.

    `along` is the dimension in which the source is contiguous: 0 for column-major storage, 1 for row-major. `pairs` is the
    dimension along which a lane receives two neighbours; where the two differ, the instruction transposes.
    """

    matrices: tuple[int, int] = (2, 2)
    along: int = 1
    pairs: int = 1
    capability: int = 75

    @property
    def count(self) -> int:
        """Matrices, and 32-bit registers."""
        return self.matrices[0] * self.matrices[1]

    @property
    def transposes(self) -> bool:
        """Whether the instruction is `.trans`."""
        return self.along != self.pairs

    @property
    def source(self) -> LaneMap:
        """Lane to the row of eight elements that it addresses; lanes beyond the last matrix repeat."""
        lanes = ((8, 1 - self.along, 1), *self._grid(), *(((4 // self.count, 0, 0),) if self.count < 4 else ()))
        return LaneMap(self._tile(), lanes, ((8, self.along, 1),))

    @property
    def target(self) -> LaneMap:
        """Lane and register half to the element received."""
        return LaneMap(self._tile(), ((4, self.pairs, 2), (8, 1 - self.pairs, 1)), ((2, self.pairs, 1), *self._grid()))

    def _tile(self) -> tuple[int, int]:
        return 8 * self.matrices[0], 8 * self.matrices[1]

    def _grid(self) -> tuple[Part, ...]:
        return tuple((count, dim, 8) for dim, count in enumerate(self.matrices) if count > 1)

    def maps(self) -> dict[str, LaneMap]:
        """The lane maps by operand."""
        return {"src": self.source, "dst": self.target}

    def performs(self) -> str:
        rows, columns = self._tile()
        return f"Move({rows},{columns})(SH,RF)(Warp), 16-bit, {'row' if self.along else 'column'}-major in SH, pairs along dimension {self.pairs}"

    def mismatches(self, spec: Spec, architecture: Architecture) -> tuple[Mismatch, ...]:
        if not isinstance(spec, MoveSpec):
            return (Mismatch("spec", "Move", spec.title),)
        found = [
            *level_mismatch(spec, Warp),
            *shape_mismatch(spec, tile_of(spec, self.maps()), multiples=True),
            *type_mismatch(spec, "src", (float16, bfloat16)),
            *type_mismatch(spec, "dst", (spec.src.dtype,)),
            *memory_mismatch(spec, "src", (SH,)),
            *memory_mismatch(spec, "dst", (RF,)),
            *target_mismatch(architecture, self.capability),
        ]
        layout = spec.src.tensor.layout
        order = "row" if self.along else "col"
        if not isinstance(layout, MatrixLayout) or layout.order != order:
            found.append(Mismatch("src layout", "RowMajor" if self.along else "ColMajor", str(layout)))
        return tuple(found)

    def fits(self, spec: Spec, context: Context) -> tuple[Mismatch, ...]:
        found = self.mismatches(spec, context.architecture)
        return found or self._held_mismatch(spec, context)

    def _held_mismatch(self, spec: Spec, context: Context) -> tuple[Mismatch, ...]:
        """Whether each lane receives what the instruction that reads the registers wants it to hold."""
        assert isinstance(spec, MoveSpec)
        wanted: LaneMap | None = context.held.get(spec.dst.tensor.name)
        if wanted is None:
            return (Mismatch("registers", "a reader that is an instruction of the warp", "none"),)
        difference = first_difference(self.target, wanted)
        return () if difference is None else (Mismatch("registers", *difference),)

    def emit(self, spec: Spec, context: Context) -> tuple[Stmt, ...]:
        return statements_by_lanes(self, spec, context, self.maps(), vector=8)

    def cuda(self, printer: Any, statement: Exec) -> list[str]:
        source, target = statement.accesses
        registers = printer.words(target, statement)
        names = ", ".join(f"%{number}" for number in range(self.count))
        trans = ".trans" if self.transposes else ""
        template = f"ldmatrix.sync.aligned.m8n8.x{self.count}{trans}.shared.b16 {{{names}}}, [%{self.count}];"
        outputs = [f'"=r"({register})' for register in registers]
        return list(printer.asm(template, outputs, [f'"r"({printer.shared_address(source)})'], memory=True))


def first_difference(given: LaneMap, wanted: LaneMap) -> tuple[str, str] | None:
    """The first coordinate, modulo the common tile, that a lane receives and should not hold; None if there is none."""
    if given.threads != wanted.threads:
        return f"{wanted.threads} lanes", f"{given.threads} lanes"
    tile = [min(one, other) for one, other in zip(given.tile, wanted.tile, strict=True)]
    for lane in range(given.threads):
        held = [tuple(int(part) % size for part, size in zip(point, tile, strict=True)) for point in wanted.table[lane]]
        for value, point in enumerate(given.table[lane]):
            got = tuple(int(part) % size for part, size in zip(point, tile, strict=True))
            if got not in held:
                first = ", ".join(map(str, dict.fromkeys(held)))
                return f"lane {lane} to hold {first} of each {tile[0]}x{tile[1]}", f"element {got} as its value {value}"
    return None


def _family() -> tuple[LdMatrix, ...]:
    found = []
    for matrices in ((2, 2), (4, 1), (1, 4), (2, 1), (1, 2), (1, 1)):
        for along, pairs in ((1, 1), (0, 0), (1, 0), (0, 1)):
            order, trans = "ROW" if along else "COL", "_T" if along != pairs else ""
            name = f"LDMATRIX_{8 * matrices[0]}x{8 * matrices[1]}_{order}{trans}"
            found.append(LdMatrix(name, matrices, along, pairs))
    return tuple(found)


LDMATRIX: tuple[LdMatrix, ...] = _family()
"""All forms, those with most matrices first."""

__all__ = ["LDMATRIX", "LdMatrix", "first_difference"]
