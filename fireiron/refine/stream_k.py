"""Stream-K: persistent blocks that share the iterations of tiles evenly: `stream_k` on a tile distributed over blocks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import attrs

from fireiron.errors import DecompositionError, ResourceError
from fireiron.frozen import frozen
from fireiron.ir import For, Let
from fireiron.ir.asks.consumer_groups import ConsumerGroups
from fireiron.ir.effect import Effects
from fireiron.ir.effects.joint_tiles import Combination, JointTiles, StreamedTiles
from fireiron.language.grid import BodyNames
from fireiron.language.segments import Segment
from fireiron.language.tile_assignment import SelectedTile, Selection
from fireiron.language.tree import Draft, Refinement, verb
from fireiron.language.tunable import Integer, chosen, count, integral
from fireiron.spec import Spec
from fireiron.specs.fused import fused
from fireiron.specs.partial_sums import reduced_dim, with_complete_sums
from fireiron.values.expr import FALSE, TRUE, Expr, Var, as_expr, constant, equal, less, minimum

MOST = 1 << 16
"""Maximum number of blocks: more than any GPU runs at once."""

MOST_WAVES = 1 << 16
"""Maximum number of waves: more than any GPU computes in a launch."""

MOST_PRODUCT = 2**31 - 1
"""Largest product of the number of blocks and the number of streamed units, which blocks compute as 32-bit integers."""


@frozen
class StreamedBlocks(Selection):
    """At most `blocks` blocks, which share the units of the streamed tiles evenly; a unit is `step` elements of k of one tile.

    Streamed are the tiles of the last, partial wave, and of `waves` complete waves. The other tiles have one block each. `dim` is the
    dimension k, and `units` the number of units per tile; None before `for_spec`.
    """

    blocks: int
    step: int
    waves: int
    dim: str | None = None
    units: int = 0

    @property
    def stated(self) -> Mapping[str, str]:
        return {"stream_k": self.text, **self.of_groups}

    @property
    def text(self) -> str:
        """The refinement as text."""
        return f"stream_k({self.blocks}, {self.step}{'' if self.waves == 1 else f', waves={self.waves}'})"

    @property
    def most(self) -> int:
        return self.blocks

    def for_spec(self, spec: Spec) -> StreamedBlocks:
        definition = fused(spec)
        if definition is not None and definition.product is not None and not definition.loops:
            with_complete_sums(spec, definition, definition.product, "stream_k")
        elif definition is not None or not spec.contracts:
            raise DecompositionError(
                f"stream_k: {spec.title} is not one matrix multiplication", legal="MatMul; Fused with one matmul and no loop", within=spec,
                hint=f"persistent({self.blocks})",
            )  # fmt: skip
        elif spec.accumulate != FALSE:
            raise DecompositionError(
                "stream_k: the matmul adds to C, which each block of a tile would add", got=f"accumulate={spec.accumulate}",
                legal="accumulate=False", within=spec, hint="an epilogue that reads C, or persistent()",
            )  # fmt: skip
        dim = reduced_dim(spec)
        extent = constant(spec.size(dim))
        if extent is None:
            raise DecompositionError(
                f"stream_k: the size of {dim} is known only at run time", got=str(spec.size(dim)), legal="constant sizes", within=spec,
                hint=f"persistent({self.blocks})",
            )  # fmt: skip
        return attrs.evolve(self, dim=dim, units=-(-extent // self.step))

    def work(self, spec: Spec) -> Spec:
        """Return the spec of a block, whose MatMul computes a part of the sum."""
        return spec if fused(spec) is not None else spec.with_options(in_parts=True)

    def selected(self, block: Expr, tiles: Expr, together: int, draft: Draft) -> SelectedTile:
        number, blocks, units = constant(tiles), self.blocks, self.units
        if self.dim is None or together > 1:
            raise DecompositionError(f"{self.text}: blocks share the iterations of tiles of one kernel", legal="a tile of a kernel")
        if number is None:
            raise DecompositionError(
                f"{self.text}: the number of tiles is known only at run time", got=str(tiles), legal="constant sizes",
                hint=f"persistent({blocks})",
            )  # fmt: skip
        streamed = min(number, (number % blocks + self.waves * blocks) or blocks)
        total, whole = streamed * units, (number - streamed) // blocks
        sharing = min(_equal_parts(streamed, blocks, units) or blocks, total)
        blocks = blocks if whole else sharing
        if total * (blocks + 1) > MOST_PRODUCT:
            raise ResourceError(
                f"{self.text}: {blocks} blocks and {total} units", legal=f"a product of at most {MOST_PRODUCT}",
                hint="a larger step, or fewer waves",
            )  # fmt: skip
        return _selected(self, Var(draft.block.name, 0, blocks - 1), _Division(number, streamed, whole, blocks, sharing), draft)


def _equal_parts(streamed: int, blocks: int, units: int) -> int:
    """Return the number of blocks that share tiles, if each tile has at least two blocks with equal parts; otherwise 0.

    Blocks with equal parts read the same rows of A, or columns of B, at about the same time, and so from the L2 cache.
    """
    parts = min(blocks // streamed, units)
    return parts * streamed if parts > 1 else 0


@frozen
class _Division:
    """The number of tiles, of streamed tiles, of other tiles per block, of blocks, and of those blocks that share the streamed tiles."""

    tiles: int
    streamed: int
    whole: int
    blocks: int
    sharing: int


def _selected(selection: StreamedBlocks, block: Var, division: _Division, draft: Draft) -> SelectedTile:
    """Return the loop over the segments of a block.

    Complete tiles come first, because blocks that start together read the same parts of A and B. The streamed tiles follow.
    """
    assert selection.dim is not None
    tiles, streamed, whole, blocks, sharing = attrs.astuple(division)
    units, dim, total = selection.units, selection.dim, streamed * selection.units
    first = draft.let("first_unit", minimum(block * total // sharing, total - 1), total - 1)
    end = (block * total + (total - sharing)) // sharing  # (block + 1) * total / sharing - 1
    last = draft.let("last_unit", minimum(end, total - 1), total - 1)
    first_tile = draft.let("first_tile", first // units, streamed - 1)
    most = min(-(-total // sharing) // units + 2, streamed, total)
    takes_part = less(block, sharing)
    of_streamed = draft.let("num_streamed", takes_part * (last // units - first_tile + 1), most)
    segment = Var(draft.fresh("segment"), 0, most + whole - 1)
    names = BodyNames(draft)
    tile = Var(draft.fresh("tile"), 0, tiles - 1)
    is_streamed: Expr = TRUE
    shared = first_tile + segment
    if whole:
        is_streamed = names.let("is_streamed", less(whole - 1, segment), 1)
        place = first_tile + (segment - minimum(segment, whole))
        shared = names.let("streamed_tile", minimum(place, streamed - 1), streamed - 1)
        complete = names.let("complete_tile", minimum(segment, whole - 1) * blocks + block, tiles - 1)
        names.lets.append(Let(tile, complete + is_streamed * (shared + whole * blocks - complete)))
    else:
        names.lets.append(Let(tile, shared))
        shared = tile
    start = names.let(f"{dim}_first", equal(segment, whole) * (first % units), units - 1)
    missing = equal(segment, of_streamed + (whole - 1)) * ((units - 1) - last % units)
    number = Var(draft.fresh(f"{dim}_units"), 1, units)
    names.lets.append(Let(number, as_expr(units) - start - missing))
    first_block = names.let("first_block", (shared * (units * sharing) + (sharing - 1)) // total, sharing - 1)
    last_block = (shared * (units * sharing) + (units * sharing - 1)) // total
    most_parts = min(sharing, (units - 1) // max(total // sharing, 1) + 2)
    parts = Var(draft.fresh("num_parts"), 1, most_parts)
    names.lets.append(Let(parts, is_streamed * (last_block - first_block) + 1))
    slots = streamed + sharing - 1
    slot = names.let("part_slot", minimum(shared + block, slots - 1), slots - 1)
    first_slot = names.let("first_slot", shared + first_block, slots - 1)
    is_last = Var(draft.fresh("is_last"), 0, 1)
    loop = For(segment, of_streamed + whole, (), False, draft.origin).with_asks(ConsumerGroups(selection.groups))
    work = Segment(
        selection.step, dim, start, number, units, parts, shared, streamed, slot, first_slot, slots, is_last,
    )  # fmt: skip
    described = StreamedTiles(
        segment.name, tile.name, str(start), str(number), str(parts), str(slot), str(first_slot), is_last.name, tiles, units
    )
    effects = Effects((JointTiles(Combination.LAST_BLOCK), described))
    return SelectedTile(tile, names, as_expr(blocks), loop, None, work, effects)


def _number(value: Any) -> Any:
    return integral(value, "stream_k")


@frozen
class StreamK(Refinement):
    """Launch at most `blocks` blocks, which share the iterations of all tiles evenly (Stream-K).

    If the number of tiles is not a multiple of the number of SMs, the last wave of tiles uses only some of them. With Stream-K, each block
    computes the same number of units of `step` elements of k, up to one, and a tile may have several blocks. Each of these stores its part
    of the sum in a workspace. The block that finishes last adds the parts in the order of k, and performs the epilogue, so the result is
    the same in each run. Only the partial wave and `waves` complete waves are shared in this way; the other tiles have one block each. If
    at most half as many tiles as blocks are shared, each of them has the same number of blocks, with equal parts.
    Legal on a tile of a MatMul, or of a Fused spec with one matmul, distributed over blocks, for constant sizes, if an `epilog`, or the
    steps of the Fused spec, follow, and a `split` of k whose size divides `step`.
    rewrite: block u: tile u --> block u: units u*T/n to (u+1)*T/n - 1 of all T units; the last block of a tile: C = epilogue(sum of parts)

    Source: Osama et al., Stream-K, PPoPP 2023; decision 99.

    >>> from fireiron import *
    >>> blocks = MatMul(48, 32, 64)(GL, GL, GL)(Kernel).tile(16, 16).to(Block).stream_k(4, 8)
    >>> text = blocks.epilog(RF).tile(1, 1).to(Thread).split(8).split(1).done().cuda()
    >>> [line.split(";")[0].strip() for line in text.splitlines() if "= is_last_block(&" in line]
    ['const int is_last = is_last_block(&workspace[tile], num_parts)']
    """

    applies_to: ClassVar[tuple[str, ...]] = ("tile",)
    usual: ClassVar[tuple[tuple[Any, ...], ...]] = ((1, 8), (3, 8), (132, 16), (3, 8, 0))
    blocks: Any = attrs.field(converter=_number)
    step: Any = attrs.field(converter=_number)
    waves: Any = attrs.field(default=1, converter=_number)

    def plan(self, plan: Any) -> Any:
        blocks, step = chosen(self.blocks, "stream_k", 1, MOST), chosen(self.step, "stream_k step")
        return plan.with_selection(StreamedBlocks(blocks, step, chosen(self.waves, "stream_k waves", 0, MOST_WAVES)))

    def __str__(self) -> str:
        return f"stream_k({self.blocks}, {self.step}{'' if self.waves == 1 else f', waves={self.waves}'})"


@verb()
def stream_k(blocks: Integer, step: Integer, waves: Integer = 1) -> StreamK:
    """Launch at most `blocks` persistent blocks, which share the iterations of tiles evenly (Stream-K).

    Args: blocks: the number of blocks, usually the SMs of the GPU. step: elements of k per unit of work, a multiple of the next `split`.
    waves: complete waves of tiles that are also shared, in addition to the partial last wave; a number of at least the waves of all tiles
    shares all of them, and 0 only the partial wave. The last block of a tile adds the parts of the sum in the order of k, and performs the
    epilogue. Legal on a tile of a MatMul, or of a Fused spec with one matmul, distributed over blocks, for constant sizes.
    rewrite: block u: tile u --> block u: units u*T/n to (u+1)*T/n - 1 of all T units; the last block of a tile: C = epilogue(sum of parts)
    """
    return StreamK(count(blocks, "stream_k"), count(step, "stream_k step"), count(waves, "stream_k waves", 0))


__all__ = ["StreamK"]
