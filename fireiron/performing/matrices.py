"""Copies of 8x8 matrices of 16-bit elements between shared memory and the registers of a warp: code shared by ldmatrix and stmatrix.

Eight lanes address the eight rows of a matrix, and each lane has two adjacent elements of it in a register (PTX ISA, "Warp-level matrix
load instruction: ldmatrix").
"""

from __future__ import annotations

import functools
import math
from typing import TypeVar

from fireiron.frozen import frozen
from fireiron.ir.lanes import LaneMap, Part
from fireiron.language.tree import Executable, Mismatch
from fireiron.performing.by_lanes import level_mismatch, memory_mismatch, shape_mismatch, target_mismatch, tile_of, type_mismatch
from fireiron.spec import Spec
from fireiron.values.expr import as_expr
from fireiron.values.machine import RF, SH, Architecture, Warp, bfloat16, float16
from fireiron.values.sharer import BLOCK, THREAD
from fireiron.values.tensor import View
from fireiron.values.units import same_threads

Copy = TypeVar("Copy", bound="MatrixCopy")

_SHARED_AND_REGISTERS = frozenset({(BLOCK, None), (THREAD, None)})
"""The scopes of the two memories of a copy of matrices, without fragments."""


@frozen
class MatrixCopy(Executable):
    """A copy of `r x c` matrices, `matrices = (r, c)`, of 8x8 elements of 16 bits between shared memory and the registers of a warp.

    `along` is the dimension in which shared memory is contiguous: 0 for column-major storage, 1 for row-major. `pairs` is the
    dimension along which a lane has two adjacent elements; where the two differ, the instruction transposes.
    """

    matrices: tuple[int, int] = (2, 2)
    along: int = 1
    pairs: int = 1
    capability: int = 75

    @property
    def count(self) -> int:
        """Return the number of matrices, which is the number of 32-bit registers."""
        return self.matrices[0] * self.matrices[1]

    @property
    def transposes(self) -> bool:
        """Whether the instruction is `.trans`."""
        return self.along != self.pairs

    def maps(self) -> dict[str, LaneMap]:
        """Return the lane maps by operand."""
        return {}

    def may_perform(self, spec: Spec) -> bool:
        if not spec.copies or not same_threads(spec.level, Warp) or len(spec.dims) != 2:
            return False
        return {(memory.shared_by, memory.fragment) for memory in spec.memories} == _SHARED_AND_REGISTERS

    def follows_rows(self, view: View) -> bool:
        """Whether an operand in shared memory is contiguous along the dimension in which lanes address rows."""
        return view.order == ("row" if self.along else "col")

    def common_mismatches(self, spec: Spec, architecture: Architecture, shared: str, in_registers: str) -> tuple[Mismatch, ...]:
        """Return the mismatches of a copy between the operands `shared`, in shared memory, and `in_registers`."""
        if len(spec.dims) != 2:
            return (Mismatch("shape", "two dimensions", "x".join(map(str, spec.sizes))),)
        mismatches = [
            *level_mismatch(spec, Warp),
            *shape_mismatch(spec, tile_of(spec, self.maps()), multiples=True),
            *type_mismatch(spec, "src", (float16, bfloat16)),
            *type_mismatch(spec, "dst", (spec.src.dtype,)),
            *memory_mismatch(spec, shared, (SH,)),
            *memory_mismatch(spec, in_registers, (RF,)),
            *target_mismatch(architecture, self.capability),
        ]
        view = spec.operands[shared]
        if not self.follows_rows(view):
            mismatches.append(Mismatch(f"{shared} layout", "RowMajor" if self.along else "ColMajor", str(view.tensor.layout)))
        elif not _rows_whole(view, self.along):
            mismatches.append(Mismatch(f"{shared} rows", "8 contiguous elements, at multiples of 16 bytes", _storage_text(view)))
        return tuple(mismatches)


def _rows_whole(view: View, along: int) -> bool:
    """Whether eight elements along a dimension are contiguous and start at a multiple of eight elements."""
    tensor = view.tensor
    storage = tensor.storage()
    if tensor.swizzle is not None and tensor.swizzle.bits and tensor.swizzle.base < 3:
        return False
    steps = [as_expr(digit.weight).factor for dim, digits in enumerate(storage.dims) if dim != view.axis(along) for digit in digits]
    return math.gcd(view.dims[along].base.factor, *steps) % 8 == 0


def _storage_text(view: View) -> str:
    tensor = view.tensor
    swizzle = "" if tensor.swizzle is None else f", {tensor.swizzle}"
    return f"{tensor.layout} {'x'.join(map(str, tensor.shape))}, pad {tensor.pad}{swizzle}"


def family(kind: type[Copy], name: str) -> tuple[Copy, ...]:
    """Return all forms of a copy, those with most matrices first."""
    forms = []
    for matrices in ((2, 2), (4, 1), (1, 4), (2, 1), (1, 2), (1, 1)):
        for along, pairs in ((1, 1), (0, 0), (1, 0), (0, 1)):
            order, trans = "ROW" if along else "COL", "_T" if along != pairs else ""
            forms.append(kind(f"{name}_{8 * matrices[0]}x{8 * matrices[1]}_{order}{trans}", matrices, along, pairs))
    return tuple(forms)


def matrices(count: int) -> str:
    """Return the text for a number of matrices, for a comment."""
    number = {1: "an", 2: "two", 4: "four"}[count]
    return f"{number} 8x8 {'matrices' if count > 1 else 'matrix'} of 16-bit elements"


@functools.cache
def addressed(matrices: tuple[int, int], along: int, transposed: bool = False) -> LaneMap:
    """Return the map from lane to the row of eight elements that it addresses; lanes past the last matrix repeat."""
    count = matrices[0] * matrices[1]
    lanes = ((8, 1 - along, 1), *_grid(matrices, transposed), *(((4 // count, 0, 0),) if count < 4 else ()))
    return LaneMap.along((8 * matrices[0], 8 * matrices[1]), lanes, ((8, along, 1),))


@functools.cache
def received(matrices: tuple[int, int], pairs: int, transposed: bool = False) -> LaneMap:
    """Return the map from lane and register half to the element in it."""
    return LaneMap.along(
        (8 * matrices[0], 8 * matrices[1]), ((4, pairs, 2), (8, 1 - pairs, 1)), ((2, pairs, 1), *_grid(matrices, transposed))
    )


def _grid(matrices: tuple[int, int], transposed: bool) -> tuple[Part, ...]:
    """Return the matrices in order: along the first dimension first, or along the last if `transposed`."""
    parts = tuple((count, dim, 8) for dim, count in enumerate(matrices) if count > 1)
    return parts[::-1] if transposed else parts
