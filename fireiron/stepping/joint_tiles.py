"""The statements with which several blocks produce one result: the sum of partial results by the last block, and ordered additions."""

from __future__ import annotations

from collections.abc import Sequence

from fireiron.errors import DecompositionError
from fireiron.frozen import frozen
from fireiron.ir import BLOCK_SCOPE, Comment, For, Hole, SemaphoreAction, SemaphoreBarrier, Stmt
from fireiron.ir.effects.joint_tiles import Combination, JointTiles
from fireiron.language.substrategy import default_copy, steps_at
from fireiron.language.tree import Child, Context, Draft
from fireiron.spec import Spec
from fireiron.specs.move import Move
from fireiron.specs.pointwise import BinaryPointwise
from fireiron.specs.reduction import Reduction
from fireiron.values.expr import FALSE, TRUE, ZERO, Expr, Var, as_expr, constant, less, minimum
from fireiron.values.layout import Layout
from fireiron.values.machine import GL
from fireiron.values.tensor import Dim, Fixed, MatrixLayout, Mode, RowMajor, Tensor, View, whole_view

LETTERS = "mnbcdefghijkl"
"""Names of the dimensions of a result, in signatures; `p` is the dimension of the parts."""


@frozen
class Share:
    """The blocks that share a result: its semaphore `index` among `count`, the number of `blocks`, and the `position` of this block."""

    group: str
    index: Expr
    count: Expr
    blocks: Expr
    position: Expr

    def barrier(self, action: SemaphoreAction, reason: str) -> SemaphoreBarrier:
        """Return the statement at which the block waits for the blocks before it, or is counted."""
        return SemaphoreBarrier(
            BLOCK_SCOPE, reason, action=action, group=self.group, index=self.index, count=self.count, blocks=self.blocks,
            position=self.position if action is SemaphoreAction.WAIT else ZERO,
        )  # fmt: skip


def share_of_parts(group: str, context: Context) -> Share:
    """Return the blocks that compute the parts of one tile, after a split of K over blocks and a tile that determines the grid."""
    part, grid = context.whole.part, context.whole.grid
    assert part is not None and grid is not None
    parts, number = part.high + 1, constant(grid)
    block = Var(context.block.name, 0, context.block.high if number is None else number - 1)
    return Share(group, block // parts, grid // parts, as_expr(parts), part)


def is_ordered(context: Context) -> bool:
    """Whether blocks add in a fixed order."""
    return context.whole.effects[JointTiles].combination is Combination.ORDERED


def in_order(share: Share, program: Sequence[Stmt]) -> tuple[Stmt, ...]:
    """Return a program that a block executes after all blocks before it."""
    wait = share.barrier(SemaphoreAction.WAIT, "blocks add in a fixed order")
    return (wait, *program, share.barrier(SemaphoreAction.COUNT, "the next block may add"))


def is_summed_by_last_block(context: Context) -> bool:
    """Whether the last block that finishes a tile sums the partial results of all blocks."""
    return context.whole.part is not None and context.whole.effects[JointTiles].combination is Combination.LAST_BLOCK


def is_streamed(context: Context) -> bool:
    """Whether blocks share the iterations of tiles by Stream-K."""
    return context.whole.segment is not None


@frozen
class StreamedSum:
    """The sum of the segments of a tile.

    Attributes:
        children: the children for the partial results and their sum.
        program: the statements after the matmul of a segment.
        last: the variable that is 1 in the block that finishes the tile last, which performs the epilogue.
        sum: the statements with which this block replaces its part by the sum of all parts.
        loop: the variable of the loop that executes the epilogue once, or not at all.
    """

    children: tuple[Child, ...]
    program: tuple[Stmt, ...]
    last: Var
    sum: tuple[Stmt, ...]
    loop: Var

    def around(self, *epilogue: Stmt) -> tuple[Stmt, ...]:
        """Return the program after the matmul of a segment, with the epilogue of the last block."""
        return (*self.program, For(self.loop, self.last, (*self.sum, *epilogue)))


def streamed_sum(accumulator: View, level: Spec, name: str, draft: Draft) -> StreamedSum:
    """Return the statements with which the last block of a tile sums the parts in an accumulator of all blocks.

    A block that computes a whole tile uses neither the workspace nor a semaphore. `level` is the spec at whose level the work is done.
    """
    segment = draft.whole.segment
    assert segment is not None
    if not accumulator.memory.private or accumulator.memory.fragment is not None or accumulator.dtype.bytes < 4:
        what = accumulator.dtype if accumulator.memory.private and accumulator.memory.fragment is None else accumulator.memory
        raise DecompositionError(
            f"stream_k: the partial results of {name} are in {what}", legal="float32, float64 or int32 in RF",
            within=level, at=draft.origin, hint="epilog(RF, float32)",
        )  # fmt: skip
    shape = (as_expr(segment.slots), *accumulator.shape)
    tensor = Tensor(
        draft.fresh(f"{name.lower()}_parts"), shape, accumulator.dtype, GL, _by_fragments(shape), origin=draft.origin,
    )  # fmt: skip
    kept = [number for number, size in enumerate(accumulator.shape) if constant(size) != 1] or [0]
    source = accumulator.only(kept)
    part = Var(draft.fresh("part"), 0, max(segment.parts.high - 2, 0))
    # The number of parts bounds the place, but the range analysis cannot derive this, so the minimum states it.
    places = segment.slot, segment.first_slot, minimum(segment.first_slot + part + 1, segment.slots - 1)
    own, start, other = (_in_slot(tensor, place).only([1 + number for number in kept]) for place in places)
    stored, loaded = Move.on(level.level, source, own), Move.on(level.level, start, source)
    added = BinaryPointwise.on(level.level, source, other, source, operation="+")
    follows = default_copy()[-1:]
    children = tuple(
        Child(f"{name}_{what}", spec, follows, prefix=f"{name.lower()}_{what}_")
        for what, spec in (("part", stored), ("start", loaded), ("sum", added))
    )
    shared = less(1, segment.parts)
    barrier = SemaphoreBarrier(
        BLOCK_SCOPE, "find the last block of the tile", action=SemaphoreAction.FIND_LAST, group=name, index=segment.index,
        count=as_expr(segment.count), blocks=segment.parts, last=segment.last,
    )  # fmt: skip
    program = (
        Comment(f"the part of this block, if the tile has several: {stored}"),
        For(Var(draft.fresh("store_part"), 0, 0), shared, (Hole(f"{name}_part"),)),
        barrier,
    )
    total = (
        Comment(f"the sum of all parts, in the order of k: {loaded}, {added}"),
        For(Var(draft.fresh("load_part"), 0, 0), shared, (Hole(f"{name}_start"),)),
        For(part, segment.parts - 1, (Hole(f"{name}_sum"),)),
    )
    return StreamedSum(children, program, segment.last, total, Var(draft.fresh("finish"), 0, 0))


def _by_fragments(shape: Sequence[Expr]) -> Layout | MatrixLayout:
    """Return the layout of partial results of matrices: blocks of 16 x 8 elements in the order in which a warp owns them after an MMA.

    Each lane then stores and loads 8 adjacent bytes, and a warp 256. Other shapes are row-major. Source: PTX ISA, "Matrix Fragments for
    mma.m16n8k16 with floating point type". A warp owns the accumulators of wgmma in the same order.
    """
    sizes = [constant(size) or 0 for size in shape]
    if len(sizes) != 3 or sizes[1] % 16 or sizes[2] % 8:
        return RowMajor
    slots, rows, columns = sizes
    along_rows = (8, 2, rows // 16), (8, 64, 128)
    along_columns = (2, 4, columns // 8), (1, 2, rows * 8)
    return Layout((slots, along_rows[0], along_columns[0]), (rows * columns, along_rows[1], along_columns[1]))


def _in_slot(tensor: Tensor, slot: Expr) -> View:
    """Return the view of a tensor at one place of its first dimension, which keeps one element."""
    dims = whole_view(tensor).dims[1:]
    return View(tensor, (Dim((), None, (Fixed(as_expr(tensor.shape[0]), as_expr(1), True, slot),)), *dims))


def summed_by_last_block(
    accumulator: View, places: Sequence[tuple[Dim, Expr]], level: Spec, name: str, draft: Draft, before: Sequence[Child] = ()
) -> tuple[tuple[Child, ...], tuple[Stmt, ...]]:
    """Return the children and the program that replace a block's part in an accumulator by the sum of all parts, in the last block.

    `places` are the dimension of the result for each dimension of the accumulator, and its extent in the whole result. `level` is the spec
    at whose level the work is done. `before` writes the first term of the sum, to the accumulator.
    """
    if accumulator.memory.fragment is not None or accumulator.dtype.bytes < 4:
        what = accumulator.memory if accumulator.memory.fragment is not None else accumulator.dtype
        raise DecompositionError(
            f"reduce_in_last_block: the partial results of {name} are in {what}", legal="float32, float64 or int32 in RF or SH",
            within=level, at=draft.origin, hint="epilog(RF, float32)",
        )  # fmt: skip
    part = draft.whole.part
    assert part is not None
    share = share_of_parts(name, draft)
    shape = (as_expr(part.high + 1), *(extent for _, extent in places))
    tensor = Tensor(draft.fresh(f"{name.lower()}_parts"), shape, accumulator.dtype, GL, RowMajor, origin=draft.origin)
    dims, extents = [dim for dim, _ in places], [number for number, size in enumerate(accumulator.shape) if constant(size) != 1]
    kept = extents or [0]
    own = View(tensor, (Dim((), None, (Fixed(as_expr(part.high + 1), as_expr(1), True, part),)), *dims))
    every = View(tensor, (Dim((Mode(as_expr(part.high + 1), as_expr(1)),)), *dims))
    source = accumulator.only(kept)
    letters = LETTERS[: len(kept)]
    stored = Move.on(level.level, source, own.only([1 + dim for dim in kept]))
    added = Reduction.on(
        level.level, every.only([0, *(1 + dim for dim in kept)]), source, signature=f"p{letters}->{letters}",
        names=(*letters, "p"), accumulate=TRUE if before else FALSE,
    )  # fmt: skip
    follows = default_copy()[-1:] if accumulator.memory.private else None
    children = (
        Child(f"{name}_part", stored, follows or steps_at(default_copy(), stored), prefix=f"{name.lower()}_part_"),
        *before,
        Child(f"{name}_sum", added, follows or steps_at(default_copy(), added), prefix=f"{name.lower()}_sum_"),
    )
    program = (
        Comment(f"the part of this block: {stored}"),
        Hole(f"{name}_part"),
        share.barrier(SemaphoreAction.LAST, "only the last block of a tile continues"),
        *(Hole(child.name) for child in before),
        Comment(f"the sum of all parts, in their order: {added}"),
        Hole(f"{name}_sum"),
    )
    return children, program


__all__ = [
    "Share",
    "StreamedSum",
    "in_order",
    "is_ordered",
    "is_streamed",
    "is_summed_by_last_block",
    "share_of_parts",
    "streamed_sum",
    "summed_by_last_block",
]
