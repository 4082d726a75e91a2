"""Blocks whose tiles lie last along a dimension begin first: `last_first` on a tile dealt to Block."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import attrs

from fireiron.errors import ArgumentError, call_site
from fireiron.language.tree import Context, Decomposition, Refinement
from fireiron.language.tunable import Integer, chosen, integral
from fireiron.spec import Spec

MOST = 1 << 16
"""The most tiles side by side."""


def _together(value: Any) -> Any:
    return integral(value, "last_first: together")


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
        return attrs.evolve(plan, last_first=(self.dim, chosen(self.together, "last_first: together", 0, MOST)))


__all__ = ["LastFirst"]
