"""Order tiles by longest processing time first: `longest_first` on a tile distributed over blocks."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import attrs

from fireiron.errors import ArgumentError, DecompositionError, call_site
from fireiron.frozen import frozen
from fireiron.language.dividing import Step, shares_of_digits
from fireiron.language.grid import Names
from fireiron.language.tile_assignment import Place, by_digits
from fireiron.language.tree import Context, Decomposition, Refinement
from fireiron.language.tunable import Integer, chosen, integral
from fireiron.spec import Spec
from fireiron.values.expr import Expr, assume_positive, constant

MOST = 1 << 16
"""Maximum number of adjacent tiles of the other dimensions."""


def _group(value: Any) -> Any:
    return integral(value, "longest_first: group")


@frozen
class LastTilesFirst(Place):
    """The order that computes the last tiles of `dim` first; `group` tiles of the other dimensions vary fastest."""

    name: ClassVar[str] = "longest_first"
    proved: ClassVar[bool] = True
    dim: str
    group: int

    def tile(self, spec: Spec, digits: Sequence[Step], unit: Expr, names: Names) -> Sequence[tuple[Step, Expr]]:
        if self.dim not in spec.tile_dims:
            raise DecompositionError(f"longest_first({self.dim!r}): {self.dim} is not a tiled dimension", legal=spec.tile_dims)
        ordered = [digit for digit in digits if digit.dim == self.dim]
        grouped, rest = _grouped([digit for digit in digits if digit.dim != self.dim], self.group)
        # A digit is less than its size. If the size is known only at run time, ranges do not prove this, but the bounds check does.
        return [
            (digit, assume_positive(digit.size - index) - 1 if digit.dim == self.dim else index)
            for digit, index in by_digits([*grouped, *ordered, *rest], unit)
        ]


def _grouped(others: list[Step], group: int) -> tuple[list[Step], list[Step]]:
    """Return the digits that count `group` tiles (0: all tiles), fastest first, and the other digits."""
    if not group:
        return others, []
    static_digits = list(itertools.takewhile(lambda digit: constant(digit.size) is not None, others))
    shares = shares_of_digits(static_digits, group)
    if shares is None:
        sizes = "x".join(str(digit.size) for digit in others[::-1]) or "1"
        raise DecompositionError(
            f"longest_first: group={group} does not divide the number of the other tiles, {sizes}",
            legal="0 (all), or a divisor, fastest dimension first",
        )
    return [digit for digit, _ in shares[0]], [*shares[1], *others[len(static_digits) :]]


@frozen
class LongestFirst(Refinement):
    """Compute the tiles of the dimension `dim` from the last to the first, each with `group` tiles of the other dimensions.

    Under a causal mask, the last rows attend to the most keys. If their blocks start first, short blocks fill the gaps at the end of the
    kernel (longest processing time first). `group` is the number of tiles of the other dimensions (0: all) that are computed before the
    next tile of `dim`: the keys and values of `group` heads then stay in the L2 cache. Legal on a tile distributed over blocks, without
    `rasterize` and `cluster`. `group` must divide the number of the other tiles, counted from the fastest dimension, and may be a tunable.
    rewrite: block u: tile (u // others, u % others) --> block u: tile (last - u // others, u % others)

    Source: decision 40.

    >>> from fireiron import *
    >>> blocks = MatMul(64, 64, 64)(GL, GL, GL)(Kernel).tile(16, 16).to(Block).longest_first("m")
    >>> text = blocks.tile(1, 1).to(Thread).split(1).done().cuda()
    >>> [line.strip() for line in text.splitlines() if "int block_m" in line]
    ['const int block_m = 3 - blockIdx.x / 4;']
    """

    verb: ClassVar[str] = "longest_first"
    applies_to: ClassVar[tuple[str, ...]] = ("tile",)
    dim: str
    group: Integer = attrs.field(default=0, converter=_group)

    def __attrs_post_init__(self) -> None:
        if not isinstance(self.dim, str):
            raise ArgumentError("longest_first needs the name of a dimension", got=self.dim, at=call_site())

    @classmethod
    def choices(cls, step: Decomposition, spec: Spec, context: Context) -> Iterator[LongestFirst]:
        yield from (LongestFirst(dim, group) for dim in spec.tile_dims for group in (0, 1, 2, 3))

    def plan(self, plan: Any) -> Any:
        return plan.with_order(LastTilesFirst(self.dim, chosen(self.group, "longest_first: group", 0, MOST)))


__all__ = ["LongestFirst"]
