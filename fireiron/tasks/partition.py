"""Partitions: the pieces of a tensor, for NumPy and for the compiler (Cypress, section 3.2).

A partition says how many pieces a shape has, the shape of a piece, and the coordinates of each piece along each dimension. The set is
open: a subclass of `Partition`, a frozen attrs class, is an operator of its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Final

import attrs

from fireiron.errors import ArgumentError, DecompositionError, call_site
from fireiron.tasks.mapping import THREAD, WARP, Processor
from fireiron.values.expr import Expr, as_expr, ceildiv, constant
from fireiron.values.tensor import View


@attrs.frozen
class Partition:
    """Pieces of a tensor. `raises` says that only a group of threads together has all pieces, of which each is a thread's part."""

    raises: ClassVar[bool] = False

    @property
    def disjoint(self) -> bool:
        """Whether two pieces have no element in common, as soon as one of their indices differs."""
        return False

    def check(self, shape: tuple[Any, ...]) -> None:
        """Refuse shapes that it does not divide."""

    def counts(self, shape: tuple[Any, ...]) -> tuple[Any, ...]:
        """How many pieces there are, by index."""
        raise NotImplementedError

    def shape(self, shape: tuple[Any, ...]) -> tuple[Any, ...]:
        """The shape of a piece."""
        raise NotImplementedError

    def coordinates(self, shape: tuple[int, ...], place: tuple[int, ...]) -> tuple[list[int], ...]:
        """The coordinates of a piece along each dimension."""
        raise NotImplementedError

    def view(self, whole: View, place: tuple[Expr, ...], units: frozenset[Expr]) -> View:
        """The piece as a view; indices in which `units` are differ from unit to unit."""
        raise NotImplementedError


@attrs.frozen
class Blocks(Partition):
    """Blocks of `sizes` neighbours; those at the end may overhang, and elements outside count as zeros."""

    sizes: tuple[int, ...] = attrs.field(converter=tuple)

    @property
    def disjoint(self) -> bool:
        return True

    def check(self, shape: tuple[Any, ...]) -> None:
        if len(self.sizes) != len(shape):
            raise ArgumentError(f"{self}: the tensor has {len(shape)} dimensions", legal="a size for each", at=call_site())
        if any((number := constant(as_expr(size))) is not None and number < 1 for size in self.sizes):
            raise ArgumentError(f"{self}: blocks of no elements", legal="1 and more", at=call_site())

    def counts(self, shape: tuple[Any, ...]) -> tuple[Any, ...]:
        found = tuple(ceildiv(as_expr(whole), as_expr(size)) for whole, size in zip(shape, self.sizes, strict=True))
        return tuple(one if constant(one) is None else constant(one) for one in found)

    def shape(self, shape: tuple[Any, ...]) -> tuple[Any, ...]:
        return self.sizes

    def coordinates(self, shape: tuple[int, ...], place: tuple[int, ...]) -> tuple[list[int], ...]:
        pairs = zip(place, self.sizes, strict=True)
        return tuple(list(range(number * int(size), (number + 1) * int(size))) for number, size in pairs)

    def view(self, whole: View, place: tuple[Expr, ...], units: frozenset[Expr]) -> View:
        for dim, (index, size) in enumerate(zip(place, self.sizes, strict=True)):
            if as_expr(size) == whole.shape[dim]:
                continue  # all of the dimension
            tiled = whole.tile(*(int(size) if other == dim else None for other in range(len(self.sizes))))
            numbers = tuple(index if other == dim else as_expr(0) for other in range(len(self.sizes)))
            whole = tiled.at(numbers, unit=bool(units & index.variables()))
        return whole

    def __str__(self) -> str:
        return f"partition_by_blocks({', '.join(map(str, self.sizes))})"


@attrs.frozen
class Instruction:
    """A matrix instruction as a partition knows it: the tile of C that it makes, by the warps that do it together."""

    name: str
    rows: int
    columns: int
    warps: int


INSTRUCTIONS: Final = (Instruction("wgmma", 64, 8, 4), Instruction("mma.m16n8k16", 16, 8, 1))
"""Their accumulators: columns are multiples of these. Source: PTX ISA, the fragments of wgmma and of mma.m16n8k16 (Cypress, Figure 4)."""


@attrs.frozen
class MmaPieces(Partition):
    """The parts of an instruction's operand that its warps, or the threads of a warp, work on.

    Of C a warp has 16 rows; a thread has rows g and g + 8 of them, and of each 8 columns 2t and 2t + 1, where its lane is 4g + t. Pieces
    of A and B conform with those of C: its rows, or its columns, and all of k.
    """

    raises: ClassVar[bool] = True
    instruction: Instruction
    processor: Processor
    operand: str

    @property
    def disjoint(self) -> bool:
        return self.operand == "C"

    def check(self, shape: tuple[Any, ...]) -> None:
        rows = self.instruction.rows if self.processor == WARP else 16
        wanted: Mapping[str, tuple[int, int]] = {"A": (rows, 1), "B": (1, self.instruction.columns)}
        unit = wanted.get(self.operand, (rows, self.instruction.columns))
        if len(shape) != 2 or any(constant(as_expr(size)) is None or int(size) % one for size, one in zip(shape, unit, strict=True)):
            raise DecompositionError(
                f"{self}: {' x '.join(map(str, shape))} elements are no operand of the instruction",
                legal=f"multiples of {' x '.join(map(str, unit))}", at=call_site(),
            )  # fmt: skip
        if self.operand != "B" and int(shape[0]) != rows:
            raise DecompositionError(f"{self}: {shape[0]} rows", legal=str(rows), at=call_site())

    def counts(self, shape: tuple[Any, ...]) -> tuple[Any, ...]:
        return (self.instruction.warps if self.processor == WARP else 32,)

    def shape(self, shape: tuple[Any, ...]) -> tuple[Any, ...]:
        rows, columns = self.coordinates(shape, (0,))
        return (len(rows), len(columns))

    def coordinates(self, shape: tuple[int, ...], place: tuple[int, ...]) -> tuple[list[int], ...]:
        (number,) = place
        if self.processor == WARP:
            rows, columns = list(range(16 * number, 16 * number + 16)), list(range(int(shape[1])))
        else:
            rows = [number // 4, number // 4 + 8]
            columns = [8 * group + 2 * (number % 4) + one for group in range(int(shape[1]) // 8) for one in (0, 1)]
        return {"A": (rows, list(range(int(shape[1])))), "B": (list(range(int(shape[0]))), columns)}.get(self.operand, (rows, columns))

    def __str__(self) -> str:
        return f"partition_by_mma({self.instruction.name}, {self.processor}, {self.operand})"


def mma_pieces(instruction: str, processor: Processor, operand: str) -> MmaPieces:
    """The partition for an instruction by name; refused where no instruction has the name, or no such processors do it."""
    known = {one.name: one for one in INSTRUCTIONS}
    if instruction not in known:
        raise ArgumentError("partition_by_mma: an unknown instruction", got=instruction, legal=tuple(known), at=call_site())
    legal = (WARP, THREAD) if known[instruction].warps > 1 else (THREAD,)
    if processor not in legal:
        raise ArgumentError(f"partition_by_mma({instruction}): its parts are those of {legal}", got=processor, at=call_site())
    if operand not in ("A", "B", "C"):
        raise ArgumentError("partition_by_mma: an unknown operand", got=operand, legal="A B C", at=call_site())
    return MmaPieces(known[instruction], processor, operand)


def pieces(counts: tuple[Any, ...]) -> int | None:
    """How many pieces there are in all; None where that is known only at run time."""
    numbers = [constant(as_expr(one)) for one in counts]
    return None if None in numbers else math.prod(one for one in numbers if one is not None)
