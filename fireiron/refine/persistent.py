"""Persistent blocks, which compute several tiles each: `persistent` on a tile distributed over blocks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import attrs

from fireiron.errors import ArgumentError, call_site
from fireiron.frozen import frozen
from fireiron.ir.asks.consumer_groups import ConsumerGroups
from fireiron.language.clusters import require_whole_clusters
from fireiron.language.grid import BodyNames, persistent_tile_loop
from fireiron.language.tile_assignment import SelectedTile, Selection
from fireiron.language.tree import Draft, Refinement, verb
from fireiron.language.tunable import Integer, chosen, count, integral
from fireiron.values.expr import Expr, as_expr, constant, minimum

MOST = 1 << 16
"""Maximum number of blocks: more than any GPU runs at once."""


@frozen
class PersistentBlocks(Selection):
    """At most `blocks` blocks. Block b computes tiles b, b + blocks, ...; if `dynamic`, it claims its next tile from a counter."""

    blocks: int
    dynamic: bool = False

    @property
    def stated(self) -> Mapping[str, str]:
        dynamic = {"dynamic": f"persistent({self.blocks}, dynamic=True)"} if self.dynamic else {}
        return {"persistent": f"persistent({self.blocks})", **dynamic, **self.of_groups}

    @property
    def most(self) -> int:
        return self.blocks

    def selected(self, block: Expr, tiles: Expr, together: int, draft: Draft) -> SelectedTile:
        number = constant(tiles)
        if number is not None and number <= self.blocks:
            return super().selected(block, tiles, together, draft)
        if together > 1:
            require_whole_clusters(self.blocks, together)
        names = BodyNames(draft)
        tile, loop = persistent_tile_loop(tiles, self.blocks, self.groups, self.dynamic, draft)
        return SelectedTile(tile.var, names, minimum(tiles, as_expr(self.blocks)), loop.with_asks(ConsumerGroups(self.groups)), tile)


def _blocks(value: Any) -> Any:
    return integral(value, "persistent")


def _flag(_: Any, attribute: Any, value: Any) -> None:
    if not isinstance(value, bool):
        raise ArgumentError(f"persistent: {attribute.name} must be True or False", got=value, legal="True or False", at=call_site())


@frozen
class Persistent(Refinement):
    """Launch at most `blocks` blocks, for example one per SM. Each computes every `blocks`-th tile, in a loop.

    With `warp_specialize`, the loads of the next tile overlap the store of the current one. If `dynamic`, a block claims its next tile from
    a counter in global memory when it is free. This balances tiles of different cost if the most expensive ones come first.
    Legal on a tile distributed over blocks; the number may be a tunable. `dynamic` requires `warp_specialize`, whose producer claims the
    next tile during the MMAs of the current one, and excludes `cluster`, `pingpong` and `programmatic_launch`.
    rewrite: block u: tile u --> block u: tiles u, u + blocks, u + 2 * blocks ...; dynamic: tile u, then the next unclaimed tile

    Source: decision 40.

    >>> from fireiron import *
    >>> blocks = MatMul(64, 64, 64)(GL, GL, GL)(Kernel).tile(16, 16).to(Block).persistent(4)
    >>> text = blocks.tile(1, 1).to(Thread).split(1).done().cuda()
    >>> [line.strip() for line in text.splitlines() if "int tile" in line]
    ['for (int tile = blockIdx.x; tile < num_tiles; tile += num_blocks) {']
    """

    applies_to: ClassVar[tuple[str, ...]] = ("tile",)
    usual: ClassVar[tuple[tuple[Any, ...], ...]] = ((1,), (2,), (3,), (132,), (1, True), (2, True), (132, True))
    blocks: Any = attrs.field(converter=_blocks)
    dynamic: bool = attrs.field(default=False, validator=_flag)

    def plan(self, plan: Any) -> Any:
        return plan.with_selection(PersistentBlocks(chosen(self.blocks, "persistent", 1, MOST), self.dynamic))

    def __str__(self) -> str:
        return f"persistent({self.blocks}{', dynamic=True' if self.dynamic else ''})"


@verb()
def persistent(blocks: Integer = 132, dynamic: bool = False) -> Persistent:
    """Launch at most `blocks` persistent blocks, each of which computes several tiles; the default is the 132 SMs of an H100 or H200.

    With `warp_specialize`, the loads of the next tile overlap the store of the current one. With `dynamic`, a block claims its next tile
    from a counter when it is free. This is for tiles of different cost, as under a causal mask; combine it with `longest_first`. Legal on a
    tile distributed over blocks, for a number or a tunable. `dynamic` requires `warp_specialize`, and excludes cluster, pingpong and
    programmatic_launch.
    rewrite: block u: tile u --> block u: tiles u, u + blocks, u + 2 * blocks ...; dynamic: tile u, then the next unclaimed tile
    """
    return Persistent(count(blocks, "persistent"), dynamic)


__all__ = ["Persistent"]
