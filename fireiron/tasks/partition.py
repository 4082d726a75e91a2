"""Partitions of tensors into pieces, for NumPy and for the compiler (Cypress, section 3.2).

A partition defines, for a shape, the number of pieces, the shape of a piece, and the coordinates of each piece along each dimension. To add
a partition, define a subclass of `Partition` as a frozen attrs class.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, Final

import attrs

from fireiron.errors import ArgumentError, DecompositionError, call_site
from fireiron.frozen import frozen
from fireiron.tasks.mapping import THREAD, WARP, Processor, listed
from fireiron.values.expr import ONE, TRUE, Expr, as_expr, ceildiv, constant, less
from fireiron.values.tensor import View


@frozen
class Partition:
    """A partition of a tensor into pieces.

    If it is `of_threads`, each piece is the part of one thread, and only a group of threads together has all pieces. The declaration of a
    partition is checked element by element, for each shape that it is applied to. A `proven` partition is not checked and also applies to
    run-time sizes.
    """

    of_threads: ClassVar[bool] = False
    proven: ClassVar[bool] = False

    @property
    def disjoint(self) -> bool:
        """Whether two pieces are disjoint if any of their indices differ."""
        return False

    @property
    def dropped(self) -> tuple[int, ...]:
        """The dimensions of the tensor that its pieces do not have, because a piece has a single coordinate along them."""
        return ()

    def present(self, place: tuple[Expr, ...]) -> Expr:
        """The condition under which a piece has any elements; otherwise its coordinates are past the end."""
        return TRUE

    def check(self, shape: tuple[Any, ...]) -> None:
        """Refuse shapes that the partition cannot divide."""

    def counts(self, shape: tuple[Any, ...]) -> tuple[Any, ...]:
        """The number of pieces, per index."""
        raise NotImplementedError

    def shape(self, shape: tuple[Any, ...]) -> tuple[Any, ...]:
        """The shape of a piece."""
        raise NotImplementedError

    def coordinates(self, shape: tuple[int, ...], place: tuple[int, ...]) -> tuple[list[int], ...]:
        """The coordinates of a piece along each dimension of the tensor."""
        raise NotImplementedError

    def axes(self, rank: int) -> tuple[int, ...]:
        """Return the dimensions of the tensor that a piece has, in the piece's order. Along the others, it has a single coordinate."""
        return tuple(dim for dim in range(rank) if dim not in self.dropped)

    def view(self, whole: View, place: tuple[Expr, ...], units: frozenset[Expr]) -> View:
        """The piece as a view; indices that contain `units` differ between units."""
        raise NotImplementedError


@frozen
class Axes(Partition):
    """A single piece with all elements and the dimensions `dims`, in this order. All other dimensions have size 1."""

    proven: ClassVar[bool] = True
    dims: tuple[int, ...] = attrs.field(converter=listed)

    @property
    def disjoint(self) -> bool:
        return True

    def check(self, shape: tuple[Any, ...]) -> None:
        single = [dim for dim, size in enumerate(shape) if constant(as_expr(size)) == 1]
        left = [dim for dim in range(len(shape)) if dim not in self.dims and dim not in single]
        if left or len(set(self.dims)) != len(self.dims) or not set(self.dims) <= set(range(len(shape))):
            raise ArgumentError(
                f"{self} does not fit a tensor of {' x '.join(map(str, shape))} elements",
                legal=f"each dimension at most once; only dimensions of size 1 may be omitted: {single or 'none'}", at=call_site(),
            )  # fmt: skip

    def counts(self, shape: tuple[Any, ...]) -> tuple[Any, ...]:
        return ()

    def shape(self, shape: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(shape[dim] for dim in self.dims)

    def coordinates(self, shape: tuple[int, ...], place: tuple[int, ...]) -> tuple[list[int], ...]:
        return tuple(list(range(int(size))) for size in shape)

    def axes(self, rank: int) -> tuple[int, ...]:
        return self.dims

    def view(self, whole: View, place: tuple[Expr, ...], units: frozenset[Expr]) -> View:
        return whole.only(self.dims)

    def __str__(self) -> str:
        return f"axes({', '.join(map(str, self.dims))})"


@frozen
class Blocks(Partition):
    """Blocks of `sizes` contiguous elements. The last block along a dimension may overhang; its elements out of bounds read as zero."""

    proven: ClassVar[bool] = True
    sizes: tuple[int, ...] = attrs.field(converter=listed)

    @property
    def disjoint(self) -> bool:
        return True

    def check(self, shape: tuple[Any, ...]) -> None:
        if len(self.sizes) != len(shape):
            raise ArgumentError(
                f"{self}: the tensor has {len(shape)} dimensions, {' x '.join(map(str, shape))}",
                legal="one size per dimension",
                at=call_site(),
            )
        if any((number := constant(as_expr(size))) is not None and number < 1 for size in self.sizes):
            raise ArgumentError(f"{self}: the blocks have no elements", legal="sizes of 1 or more", at=call_site())

    def counts(self, shape: tuple[Any, ...]) -> tuple[Any, ...]:
        counts = tuple(ceildiv(as_expr(whole), as_expr(size)) for whole, size in zip(shape, self.sizes, strict=True))
        return tuple(count if constant(count) is None else constant(count) for count in counts)

    def shape(self, shape: tuple[Any, ...]) -> tuple[Any, ...]:
        return self.sizes

    def coordinates(self, shape: tuple[int, ...], place: tuple[int, ...]) -> tuple[list[int], ...]:
        pairs = zip(place, self.sizes, strict=True)
        return tuple(list(range(number * int(size), (number + 1) * int(size))) for number, size in pairs)

    def view(self, whole: View, place: tuple[Expr, ...], units: frozenset[Expr]) -> View:
        for dim, (index, size) in enumerate(zip(place, self.sizes, strict=True)):
            if as_expr(size) == whole.shape[dim]:
                continue  # all of the dimension
            if constant(as_expr(size)) is None:
                raise DecompositionError(
                    f"{self}: the block size {size} along dimension {dim}, of {whole.shape[dim]} elements, is known only at run time",
                    legal="a known size, or the whole dimension", at=call_site(),
                )  # fmt: skip
            tiled = whole.tile(*(int(size) if other == dim else None for other in range(len(self.sizes))))
            numbers = tuple(index if other == dim else as_expr(0) for other in range(len(self.sizes)))
            whole = tiled.at(numbers, unit=bool(units & index.variables()))
        return whole

    def __str__(self) -> str:
        return f"partition_by_blocks({', '.join(map(str, self.sizes))})"


@frozen
class First(Partition):
    """Blocks of `sizes` contiguous elements for launch 0 of `takers` launches. The pieces of all other launches are empty.

    The last index of a piece is the number of the launch. Use it for a result that all launches could compute, to compute it once.
    """

    proven: ClassVar[bool] = True
    sizes: tuple[int, ...] = attrs.field(converter=listed)
    takers: Any

    @property
    def disjoint(self) -> bool:
        return True

    @property
    def blocks(self) -> Blocks:
        """The blocks of the first taker."""
        return Blocks(self.sizes)

    def present(self, place: tuple[Expr, ...]) -> Expr:
        return less(place[-1], ONE)

    def check(self, shape: tuple[Any, ...]) -> None:
        self.blocks.check(shape)

    def counts(self, shape: tuple[Any, ...]) -> tuple[Any, ...]:
        return (*self.blocks.counts(shape), self.takers)

    def shape(self, shape: tuple[Any, ...]) -> tuple[Any, ...]:
        return self.sizes

    def coordinates(self, shape: tuple[int, ...], place: tuple[int, ...]) -> tuple[list[int], ...]:
        coordinates = self.blocks.coordinates(shape, place[:-1])
        return coordinates if not place[-1] else tuple([OUTSIDE] * len(axis) for axis in coordinates)

    def view(self, whole: View, place: tuple[Expr, ...], units: frozenset[Expr]) -> View:
        return self.blocks.view(whole, place[:-1], units)

    def __str__(self) -> str:
        return f"partition_by_first({', '.join(map(str, self.sizes))}; {self.takers})"


OUTSIDE: Final = 2**62
"""A coordinate past the end of every tensor."""


@frozen
class Slices(Partition):
    """One piece per coordinate along the dimension `dim`, for example each matrix of a batch. Pieces do not have this dimension."""

    proven: ClassVar[bool] = True
    dim: int

    @property
    def disjoint(self) -> bool:
        return True

    @property
    def dropped(self) -> tuple[int, ...]:
        return (self.dim,)

    def check(self, shape: tuple[Any, ...]) -> None:
        if not 0 <= self.dim < len(shape) or len(shape) < 2:
            raise ArgumentError(
                f"{self}: the tensor has {len(shape)} dimensions",
                legal=f"a dimension from 0 to {len(shape) - 1}, of a tensor of 2 or more dimensions",
                at=call_site(),
            )

    def counts(self, shape: tuple[Any, ...]) -> tuple[Any, ...]:
        return (shape[self.dim],)

    def shape(self, shape: tuple[Any, ...]) -> tuple[Any, ...]:
        return (*shape[: self.dim], *shape[self.dim + 1 :])

    def coordinates(self, shape: tuple[int, ...], place: tuple[int, ...]) -> tuple[list[int], ...]:
        return tuple(list(place) if dim == self.dim else list(range(int(size))) for dim, size in enumerate(shape))

    def view(self, whole: View, place: tuple[Expr, ...], units: frozenset[Expr]) -> View:
        (index,) = place
        if len(whole.dims[self.dim].modes) != 1:
            raise DecompositionError(f"{self}: the dimension {self.dim} has more than one mode", got=whole, at=call_site())
        return whole.at(self.dim, index, bool(units & index.variables()))

    def __str__(self) -> str:
        return f"partition_by_slices({self.dim})"


@frozen
class Instruction:
    """A matrix instruction as a partition sees it: its tile of C, and the number of warps that execute it."""

    name: str
    rows: int
    columns: int
    warps: int


INSTRUCTIONS: Final = (Instruction("wgmma", 64, 8, 4), Instruction("mma.m16n8k16", 16, 8, 1))
"""Accumulators; columns are multiples of these. Source: PTX ISA, the fragments of wgmma and of mma.m16n8k16 (Cypress, Figure 4)."""


OPERANDS: Final = ("A", "B", "C", "rows", "parts")

LANES_OF_ROW: Final = 4
"""Threads that share a row of an accumulator."""


@frozen
class MmaPieces(Partition):
    """The parts of an instruction's operand that belong to its warps, or to the threads of a warp.

    A warp has 16 rows of C. The thread with lane 4g + t has rows g and g + 8, and columns 2t and 2t + 1 of each group of 8 columns. A piece
    of A has the same rows as the piece of C, and all of k. A piece of B has the same columns, and all of k. `rows` is a tensor with one
    number per row of C. `parts` is a tensor with four numbers per row, of which thread t has number t.
    """

    of_threads: ClassVar[bool] = True
    proven: ClassVar[bool] = True
    instruction: Instruction
    processor: Processor
    operand: str

    @property
    def disjoint(self) -> bool:
        return self.operand in ("C", "parts")

    def check(self, shape: tuple[Any, ...]) -> None:
        rows = self.instruction.rows if self.processor == WARP else 16
        columns = {"A": (1,), "rows": (), "parts": (LANES_OF_ROW,)}.get(self.operand, (self.instruction.columns,))
        unit = (1 if self.operand == "B" else rows, *columns)
        if len(shape) != len(unit) or any(
            constant(as_expr(size)) is None or int(size) % unit_size for size, unit_size in zip(shape, unit, strict=True)
        ):
            raise DecompositionError(
                f"{self}: {' x '.join(map(str, shape))} elements are not an operand of the instruction",
                legal=f"multiples of {' x '.join(map(str, unit))}", at=call_site(),
            )  # fmt: skip
        if self.operand != "B" and int(shape[0]) != rows:
            raise DecompositionError(f"{self}: the tensor has {shape[0]} rows", legal=str(rows), at=call_site())
        if self.operand == "parts" and int(shape[1]) != LANES_OF_ROW:
            raise DecompositionError(f"{self}: the tensor has {shape[1]} numbers per row", legal=str(LANES_OF_ROW), at=call_site())

    def counts(self, shape: tuple[Any, ...]) -> tuple[Any, ...]:
        return (self.instruction.warps if self.processor == WARP else 32,)

    def shape(self, shape: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(map(len, self.coordinates(shape, (0,))))

    def coordinates(self, shape: tuple[int, ...], place: tuple[int, ...]) -> tuple[list[int], ...]:
        (number,) = place
        every = [list(range(int(size))) for size in shape]
        if self.operand == "B":
            return every[0], every[1] if self.processor == WARP else self._columns(shape[1], number)
        if self.processor == WARP:
            return (list(range(16 * number, 16 * number + 16)), *every[1:])
        rows = [number // 4, number // 4 + 8]
        if self.operand in ("A", "rows"):
            return (rows, *every[1:])
        return rows, [number % LANES_OF_ROW] if self.operand == "parts" else self._columns(shape[1], number)

    def _columns(self, size: int, lane: int) -> list[int]:
        """The columns of C of a thread."""
        return [8 * group + 2 * (lane % LANES_OF_ROW) + offset for group in range(int(size) // 8) for offset in (0, 1)]

    def __str__(self) -> str:
        return f"partition_by_mma({self.instruction.name}, {self.processor}, {self.operand})"


def mma_pieces(instruction: str, processor: Processor, operand: str) -> MmaPieces:
    """Return the partition for an instruction by name. Raises: ArgumentError for an unknown name, processor or operand."""
    known = {instruction_entry.name: instruction_entry for instruction_entry in INSTRUCTIONS}
    if not isinstance(instruction, str) or instruction not in known:
        raise ArgumentError("partition_by_mma: the instruction is unknown", got=instruction, legal=tuple(known), at=call_site())
    legal = (WARP, THREAD) if known[instruction].warps > 1 else (THREAD,)
    if not isinstance(processor, Processor) or processor not in legal:
        raise ArgumentError(
            f"partition_by_mma({instruction}): its parts do not belong to this processor", got=processor, legal=legal, at=call_site()
        )
    if not isinstance(operand, str) or operand not in OPERANDS:
        raise ArgumentError("partition_by_mma: the operand is unknown", got=operand, legal=" ".join(OPERANDS), at=call_site())
    return MmaPieces(known[instruction], processor, operand)


def pieces(counts: tuple[Any, ...]) -> int | None:
    """The total number of pieces; None if it is known only at run time."""
    numbers = [constant(as_expr(count)) for count in counts]
    return None if None in numbers else math.prod(number for number in numbers if number is not None)
