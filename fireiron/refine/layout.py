"""The order in which tiles are assigned to units: `layout` on a tile (Fireiron, section 4.2)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, ClassVar

import attrs

from fireiron.errors import DecompositionError, call_site
from fireiron.frozen import frozen
from fireiron.language.tree import Context, Decomposition, Refinement, verb
from fireiron.spec import Spec
from fireiron.values.tensor import ColMajor, MatrixLayout, RowMajor


@frozen
class TileOrder(Refinement):
    """Assign tiles to units in row-major or column-major order, or in another order of dimensions (Fireiron, section 4.2).

    With `RowMajor` the last dimension varies fastest, with `ColMajor` the first. A tuple of positions, such as `(1, 0, 2)`, lists the
    dimensions from the fastest to the slowest.
    Legal on a tile that is distributed with `to`. rewrite: tile (u // columns, u % columns) --> tile (u % rows, u // rows)

    >>> from fireiron import *
    >>> blocks = MatMul(64, 64, 64)(GL, GL, GL)(Kernel).tile(16, 16).to(Block).layout(ColMajor)
    >>> text = blocks.tile(1, 1).to(Thread).split(1).done().cuda()
    >>> [line.strip() for line in text.splitlines() if "int block_m" in line]
    ['const int block_m = blockIdx.x % 4;']
    """

    applies_to: ClassVar[tuple[str, ...]] = ("tile",)
    order: MatrixLayout | tuple[int, ...]

    def __attrs_post_init__(self) -> None:
        named = isinstance(self.order, MatrixLayout) and self.order.leading is None
        if not named and not _is_permutation(self.order):
            raise DecompositionError(
                "layout: the order of tiles must be a matrix layout or a permutation of positions",
                got=self.order,
                legal="RowMajor ColMajor (1, 0, 2)",
                at=call_site(),
            )

    @classmethod
    def choices(cls, step: Decomposition, spec: Spec, context: Context) -> Iterator[TileOrder]:
        yield from map(TileOrder, (RowMajor, ColMajor))
        if len(spec.tile_dims) > 2:
            yield from map(TileOrder, itertools.permutations(range(len(spec.tile_dims))))

    def plan(self, plan: Any) -> Any:
        return attrs.evolve(plan, order=self.order)

    def __str__(self) -> str:
        return f"layout({self.order})"


@verb()
def layout(order: MatrixLayout | tuple[int, ...]) -> TileOrder:
    """Assign tiles to units in row-major or column-major order, or in an order of dimensions by position, the fastest first.

    Legal on a tile that is distributed with `to`. rewrite: tile (u // columns, u % columns) --> tile (u % rows, u // rows)
    """
    return TileOrder(order)


def _is_permutation(value: Any) -> bool:
    numbers = isinstance(value, tuple) and value and all(type(position) is int for position in value)
    return bool(numbers) and sorted(value) == list(range(len(value)))


__all__ = ["TileOrder"]
