"""Blocks whose tiles lie last along a dimension begin first: `last_first` on a tile dealt to Block."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import attrs

from fireiron.errors import ArgumentError, DecompositionError, call_site
from fireiron.language.dealing import Place, by_digits
from fireiron.language.dividing import Step, shares_of_digits
from fireiron.language.grid import Names
from fireiron.language.tree import Context, Decomposition, Refinement
from fireiron.language.tunable import Integer, chosen, integral
from fireiron.spec import Spec
from fireiron.values.expr import Expr, constant, positive

MOST = 1 << 16
"""Most tiles side by side."""


def _together(value: Any) -> Any:
    return integral(value, "last_first: together")


@attrs.frozen
class FromTheLast(Place):
    """The last tiles of the dimension `dim` first, each with `together` tiles of the others, which are fastest."""

    name: ClassVar[str] = "last_first"
    proved: ClassVar[bool] = True
    dim: str
    together: int

    def tile(self, spec: Spec, digits: Sequence[Step], unit: Expr, names: Names) -> Sequence[tuple[Step, Expr]]:
        if self.dim not in spec.tile_dims:
            raise DecompositionError(f"last_first({self.dim!r}): no dimension that is tiled", legal=spec.tile_dims)
        ordered = [digit for digit in digits if digit.dim == self.dim]
        beside, rest = _beside([digit for digit in digits if digit.dim != self.dim], self.together)
        # A digit is less than its size, which ranges alone do not tell where that is known at run time; the check of bounds does.
        return [
            (digit, positive(digit.size - index) - 1 if digit.dim == self.dim else index)
            for digit, index in by_digits([*beside, *ordered, *rest], unit)
        ]


def _beside(others: list[Step], together: int) -> tuple[list[Step], list[Step]]:
    """The digits of so many tiles, or of all, fastest first; and those that are left."""
    if not together:
        return others, []
    known = list(itertools.takewhile(lambda digit: constant(digit.size) is not None, others))
    shares = shares_of_digits(known, together)
    if shares is None:
        sizes = "x".join(str(digit.size) for digit in others[::-1]) or "1"
        raise DecompositionError(
            f"last_first: {together} of {sizes} tiles side by side", legal="0 (all), or a divisor of the fastest of them"
        )
    return [digit for digit, _ in shares[0]], [*shares[1], *others[len(known) :]]


@attrs.frozen
class LastFirst(Refinement):
    """Blocks take the tiles of the dimension `dim` from the last to the first, in each place so many tiles of the other dimensions.

    Under a causal mask the last rows see the most keys: where their blocks begin first, the short ones fill the gaps at the end. With
    `together` tiles of the other dimensions (0: all of them) the blocks that run at a time read few of these: so many heads, whose keys
    and values then stay in the L2 cache. Legal on a tile that is dealt to Block, in neither bands nor clusters; `together` divides the
    number of those tiles, the fastest of them first, and a tunable may stand for it.
    rewrite: block u: tile (u // others, u % others) --> block u: tile (last - u // others, u % others)

    Source: decision 40.

    >>> from fireiron import *
    >>> blocks = MatMul(64, 64, 64)(GL, GL, GL)(Kernel).tile(16, 16).to(Block).last_first("m")
    >>> text = blocks.tile(1, 1).to(Thread).split(1).done().cuda()
    >>> [line.strip() for line in text.splitlines() if "int block_m" in line]
    ['const int block_m = 3 - blockIdx.x / 4;']
    """

    verb: ClassVar[str] = "last_first"
    applies_to: ClassVar[tuple[str, ...]] = ("tile",)
    dim: str
    together: Integer = attrs.field(default=0, converter=_together)

    def __attrs_post_init__(self) -> None:
        if not isinstance(self.dim, str):
            raise ArgumentError("last_first: the name of a dimension", got=self.dim, at=call_site())

    @classmethod
    def choices(cls, step: Decomposition, spec: Spec, context: Context) -> Iterator[LastFirst]:
        yield from (LastFirst(dim, together) for dim in spec.tile_dims for together in (0, 1, 2, 3))

    def plan(self, plan: Any) -> Any:
        return plan.placing(FromTheLast(self.dim, chosen(self.together, "last_first: together", 0, MOST)))


__all__ = ["LastFirst"]
