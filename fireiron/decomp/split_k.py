"""`split_k`: distribute the reduction dimension over parallel units, and sum their partial results.

In a block, each part has separate accumulators, and the block sums them in shared memory (Fireiron, section 5.3: the warps of cuBLAS for
small sizes, arranged in three dimensions). Blocks share only global memory, so each block adds its part to C atomically.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

import attrs

from fireiron.errors import ArgumentError, DecompositionError, call_site
from fireiron.executable.atomic_add import TYPES
from fireiron.frozen import frozen
from fireiron.ir import Comment, Hole, effect
from fireiron.ir.effect import Effect, Effects
from fireiron.ir.effects.joint_tiles import Combination, JointTiles
from fireiron.ir.effects.zeroed import Zeroed
from fireiron.language.substrategy import chain, copies_of, default_copy, divisors, require_steps, steps_at, steps_for
from fireiron.language.tree import Child, Context, Decomposition, Draft, Expansion, verb
from fireiron.language.tunable import Integer, chosen, count, integral
from fireiron.spec import Spec
from fireiron.specs.fused import fused
from fireiron.specs.partial_sums import looped_sum, reduced_dim, with_complete_sums
from fireiron.specs.reduction import Reduction
from fireiron.stepping.steps import implied
from fireiron.values.expr import FALSE, ONE, TRUE, ZERO, Expr, Var, constant, less
from fireiron.values.layout import Layout, Swizzle
from fireiron.values.machine import SH, Architecture, Block, Level, Warp, Warpgroup, bfloat16, float16, float32
from fireiron.values.tensor import ColMajor, Dim, Fixed, MatrixLayout, Mode, RowMajor, Tensor, View, cut, require_cut, whole_view
from fireiron.values.units import check_below, threads_for

if TYPE_CHECKING:
    from fireiron.language.strategy import Strategy

MOST_PARTS = 64
"""Maximum number of parts: each element of C is the sum of that many partial results."""


def _parts(value: Any) -> Any:
    return integral(value, "split_k")


def _combine(value: Any) -> Any:
    if value is None:
        return None
    steps = require_steps(value, "split_k combine")
    return None if steps == default_copy() else steps


@frozen
class SplitKPlan:
    """How partial results are stored and combined.

    `pad` is the padding of their leading dimension in shared memory, in elements; None for a swizzle that avoids bank conflicts.
    `effects` state how blocks combine them.
    """

    pad: int | None = None
    effects: Effects = effect.NONE

    def with_effect(self, kernel_effect: Effect) -> SplitKPlan:
        """Return the plan with one more effect on the whole kernel."""
        return attrs.evolve(self, effects=self.effects.adding(kernel_effect))


@frozen
class SplitK(Decomposition):
    """Chunks of `step` elements of k, assigned round-robin to `parts` units of `level`; see the verb `split_k`.

    `combine` are the steps of the sum; None for one element per thread, in the storage order of C.
    """

    verb: ClassVar[str] = "split_k"
    kinds: ClassVar[tuple[str, ...]] = ("MatMul", "Fused")
    parts: Any = attrs.field(converter=_parts)
    level: Level
    step: Any = attrs.field(converter=_parts)
    combine: tuple[Decomposition, ...] | None = attrs.field(default=None, converter=_combine)

    def __attrs_post_init__(self) -> None:
        if not isinstance(self.level, Level):
            raise ArgumentError("split_k: not a level", got=self.level, legal="Block Warpgroup Warp", at=call_site())

    @staticmethod
    def of(parts: Any, level: Any, step: Any, combine: Any) -> SplitK:
        """Return the step for the arguments of the verb."""
        steps = None if combine is None else steps_for(combine, "split_k combine", ("Reduction",))
        return SplitK(count(parts, "split_k"), level, count(step, "split_k step"), steps)

    def label(self) -> str:
        return self._text("" if self.combine is None else chain(self.combine))

    def summary(self) -> str:
        return self._text("" if self.combine is None else chain(self.combine, summary=True))

    def _text(self, steps: str) -> str:
        combine = f", Reduction{steps}" if steps else ""
        return f"split_k({self.parts}, {self.level}, {self.step}{combine})" + "".join(
            f".{refinement.label()}" for refinement in self.refinements
        )

    def threads(self, spec: Spec, context: Context) -> int | None:
        if spec.level != Block or self.level.threads is None:
            return None
        return threads_for(chosen(self.parts, "split_k", 1, MOST_PARTS), self.level)

    def expand(self, spec: Spec, context: Context) -> Expansion:
        parts = chosen(self.parts, "split_k", 1, MOST_PARTS)
        definition, by_last_block = fused(spec), self._combination is Combination.LAST_BLOCK
        if definition is not None and definition.product is not None and not spec.level.is_launch:
            return implied(self, spec, context)
        if definition is not None and definition.product is not None and by_last_block:
            check_below(self.level, spec.level, spec, context.origin)
            return self._across_blocks(with_complete_sums(spec, definition, definition.product), parts, context)
        if definition is not None and definition.product is not None:
            raise DecompositionError(
                f"split_k({self.parts}, {self.level}): no block has a complete sum, and {spec.title} computes with complete sums",
                legal="a plain MatMul; or split_k to Warp, inside a block",
                within=spec,
                hint=f"split_k({self.parts}, {self.level}, {self.step}).reduce_in_last_block(); or split_k(parts, Warp, step) in a block",
            )
        if definition is not None and definition.loops and spec.level.is_launch and self.level == Block and by_last_block:
            looped_sum(spec, definition)
            return self._across_blocks(spec, parts, context)
        spec = _checked(spec)
        check_below(self.level, spec.level, spec, context.origin)
        if spec.level.is_launch:
            return self._across_blocks(spec, parts, context)
        self._require_parts_of_a_block()
        if any(constant(size) is None for size in spec.C.shape):
            raise DecompositionError(
                "split_k: the size of the partial results is known only at run time", hint=".tile(64, 64).to(Block) first"
            )
        units = context.units(self.level, spec.level) if context.workers is not None or spec.level.threads is not None else parts
        if parts > units:
            raise DecompositionError(
                f"split_k({parts}, {self.level}): a {spec.level} has {units} units of level {self.level}", legal=f"at most {units}"
            )
        draft = context.draft()
        unit: Expr = draft.unit(self.level, spec.level)
        active = less(unit, ZERO + parts)
        if active != TRUE:  # more units than parts
            unit = draft.let(f"{draft.prefix}{self.level.label}_part", unit, high=parts - 1)
        partial = self._partial(spec, parts, draft)
        own = partial.at(len(spec.tile_dims), unit, unit=True)
        body = spec.at_level(self.level, **self._operands_of_part(spec, parts, unit), C=own).with_options(accumulate=FALSE)
        kept = _larger_dims(spec.C)
        batch = partial.only((*kept, len(spec.tile_dims))) if len(kept) < len(spec.tile_dims) else partial
        total = Reduction.on(spec.level, batch, spec.C.only(kept), accumulate=spec.accumulate)
        name = partial.tensor.name
        steps = default_copy(_order(spec.C.only(kept)), len(kept)) if self.combine is None else steps_at(self.combine, total)
        children = (Child("body", body, active=active), Child("combine", total, steps, prefix="combine_"))
        before = Comment(f"each {self.level} computes its part of k, into {name}: {body}")
        after = Comment(f"{name} to C: {total}")
        return draft.expansion(children, (before, Hole("body"), after, Hole("combine")))

    def _partial(self, spec: Spec, parts: int, draft: Draft) -> View:
        """Allocate the partial results: a batch of matrices, each in the storage order of C.

        Their type is the spec's accumulator, or if it has none, a type of at least 32 bits, so that no partial result is rounded.
        """
        pad: int | None = self.planned(SplitKPlan()).pad
        matrix = spec.C.only(_larger_dims(spec.C))
        m, n = constant(matrix.shape[0]) or 1, constant(matrix.shape[-1]) or 1
        swizzle = None if pad is not None else _conflict_free(2 * m if _order(matrix) == ColMajor else n)
        copies, copy = copies_of(SH, spec, draft)
        dtype = spec.accumulator or (float32 if spec.C.dtype in (float16, bfloat16) else spec.C.dtype)
        shape: tuple[Expr, ...] = (*spec.C.shape, ZERO + parts)
        name = draft.fresh("p_sh")
        tensor = Tensor(name, shape, dtype, SH, _batch_layout(spec.C, parts, pad or 0), swizzle=swizzle, copies=copies, origin=draft.origin)
        return whole_view(tensor, copy)

    @property
    def _combination(self) -> Combination:
        plan: SplitKPlan = self.planned(SplitKPlan())
        return plan.effects[JointTiles].combination

    def _require_parts_of_a_block(self) -> None:
        """Refuse refinements for parts of different blocks."""
        verbs = {Combination.LAST_BLOCK: "reduce_in_last_block", Combination.ORDERED: "ordered"}
        if self._combination in verbs:
            raise DecompositionError(
                f"{verbs[self._combination]}: the parts of {self.summary()} belong to one block, which sums them in a fixed order",
                legal="split_k(parts, Block, step), before tile(...).to(Block)", hint=f"remove {verbs[self._combination]}()",
            )  # fmt: skip

    def _operands_of_part(self, spec: Spec, parts: int, unit: Expr) -> dict[str, View]:
        """Return the operands with the distributed dimension, restricted to the chunks of one part."""
        step = chosen(self.step, "split_k step")
        reduced, views = reduced_dim(spec), {}
        for name, dims in spec.uses.items():
            if reduced in dims:
                view, position = spec.operands[name], dims.index(reduced)
                part = _interleaved(view.dims[position], parts, step, view.extent(position), unit, self.label(), spec)
                views[name] = view.with_dims({position: part})
        return views

    def _across_blocks(self, spec: Spec, parts: int, context: Context) -> Expansion:
        """Expand a split over blocks. A later tile for Block defines the grid, and with it each block's part.

        Blocks add to C atomically, or the last block of a tile sums all parts.
        """
        by_last_block = self._combination is Combination.LAST_BLOCK
        if not by_last_block:
            _check_atomic(spec, context.architecture)
        elif spec.accumulate not in (TRUE, FALSE):
            raise _differing_condition(spec)
        if self.combine is not None:
            how = "the last block sums the registers of its threads" if by_last_block else "blocks add to C atomically"
            raise DecompositionError(f"split_k(.., Block): {how}, so there is no sum to decompose", hint="remove combine=")
        if context.whole.grid is not None or context.whole.part is not None:
            raise DecompositionError(
                "split_k(.., Block): tiles are already distributed over Block", hint="split_k before tile(...).to(Block)"
            )
        draft = context.draft()
        unit = Var(draft.fresh("block_k"), 0, parts - 1)
        body = spec.with_operands(**self._operands_of_part(spec, parts, unit))
        if by_last_block:
            body = body if fused(spec) is not None else body.with_options(in_parts=True)
            effects = Effects((JointTiles(self._combination),))
        else:
            body = body.with_options(in_parts=True, accumulate=FALSE)
            effects = Effects((Zeroed((spec.C.tensor.name,) if spec.accumulate == FALSE else ()), JointTiles(self._combination)))
        return draft.expansion((Child("body", body),), (Hole("body"),), part=unit, effects=effects)

    @classmethod
    def choices(cls, spec: Spec, context: Context) -> Iterator[SplitK]:
        try:
            spec = _checked(spec)
        except DecompositionError:
            return
        total = constant(spec.size(reduced_dim(spec)))
        below = [level for level in (Block, Warpgroup, Warp) if (level == Block) == spec.level.is_launch and level.is_below(spec.level)]
        for level in below if total is not None else ():
            for parts in (1, 2, 3, 4):
                for size in divisors(total or 1):
                    step = SplitK(parts, level, size)
                    if _legal(step, spec, context):
                        yield step


def _legal(step: SplitK, spec: Spec, context: Context) -> bool:
    try:
        step.expand(spec, context)
    except DecompositionError:
        return False
    return True


def _checked(spec: Spec) -> Spec:
    if not spec.contracts:
        raise DecompositionError(f"split_k: {spec.title} is not a matrix multiplication", legal="MatMul")
    if spec.in_parts:
        raise DecompositionError("split_k inside split_k(.., Block): blocks add their tiles to C atomically", hint="use only one split_k")
    if spec.C.memory.fragment is not None:
        raise DecompositionError(f"split_k: C is in {spec.C.memory}, to which threads cannot add", hint="split_k before epilog")
    return spec


def _larger_dims(view: View) -> tuple[int, ...]:
    """Return the dimensions of C without those of size one, but at least two."""
    unit_dims = [dim for dim, size in enumerate(view.shape) if size == ONE][: max(len(view.dims) - 2, 0)]
    return tuple(dim for dim in range(len(view.dims)) if dim not in unit_dims)


def _batch_layout(view: View, parts: int, pad: int) -> Layout:
    """Return the layout of a batch of parts, each in the storage order of C (of any rank), with rows padded by `pad` elements."""
    sizes = [constant(size) or 1 for size in view.shape]
    strides, weight = [0] * len(sizes), 1
    padded = False
    for dim in view.storage_order:
        strides[dim] = weight
        weight *= sizes[dim] + (pad if sizes[dim] > 1 and not padded else 0)
        padded = padded or sizes[dim] > 1
    return Layout((*sizes, parts), (*strides, weight))


def _check_atomic(spec: Spec, architecture: Architecture) -> None:
    """Refuse an atomic sum in a type that would round it, or that the target does not support."""
    if spec.accumulate not in (TRUE, FALSE):
        raise _differing_condition(spec)
    first = TYPES.get(spec.C.dtype)
    if first is None:
        raise DecompositionError(
            f"split_k(.., Block): C has the type {spec.C.dtype}, so the addition of each block would round the sum",
            legal=[str(dtype) for dtype in TYPES],
            hint="split_k(...).reduce_in_last_block(); or c_dtype=float32; or split_k to Warp, inside a block",
        )
    if architecture.capability < first:
        raise DecompositionError(
            f"split_k(.., Block): {architecture} has no atomic addition of {spec.C.dtype}", legal=f"sm_{first} or newer"
        )


def _differing_condition(spec: Spec) -> DecompositionError:
    return DecompositionError(
        f"split_k(.., Block): the condition to accumulate, {spec.accumulate}, differs between blocks", legal="accumulate=True or False"
    )


def _interleaved(dim: Dim, parts: int, step: int, extent: Expr, unit: Expr, what: str, spec: Spec) -> Dim:
    """Return the chunks `unit`, `unit + parts`, ... of a dimension. Chunks past its end are out of bounds, and count as zero."""
    pieces = require_cut(cut(dim, step, extent), step, dim, what, spec)
    first, rest = (pieces.outer[0], pieces.outer[1:]) if pieces.outer else (Mode(1, step), ())
    bound = pieces.bound
    if first.size.factor % parts == 0:
        count = first.size // parts
    elif dim.whole:
        count, bound = (first.size + (parts - 1)) // parts, extent
    else:
        number = constant(first.size) or first.size
        raise DecompositionError(
            f"{what}: {parts} parts do not divide the {number} chunks of {step} elements",
            within=spec,
            hint="fewer parts, or a smaller step",
        )
    outer = tuple(mode for mode in (Mode(count, first.stride * parts), *rest) if constant(mode.size) != 1)
    return Dim((*pieces.inner, *outer), bound, dim.fixed).moved(Fixed(parts, first.stride, True, unit))


def _order(view: View) -> MatrixLayout:
    return RowMajor if view.order == "row" else ColMajor


def _conflict_free(step: int) -> Swizzle | None:
    """Return the swizzle with which stores of MMA accumulators (eight adjacent elements, four rows `step` apart) access all banks.

    The lanes of mma.sync own 32-bit results in this way: rows in row-major storage, every second column in column-major. Reads of 32
    contiguous elements by the sum remain free of conflicts.
    """
    if step < 16 or step & (step - 1):
        return None
    return Swizzle(1, 3, 2) if step == 16 else Swizzle(2, 3, step.bit_length() - 4)


@verb()
def split_k(parts: Integer, level: Level, step: Integer, combine: Strategy | None = None) -> SplitK:
    """Distribute a reduction dimension over parallel units, in chunks assigned round-robin, and sum the partial results.

    Args: parts: the number of parts. level: the level of the units. step: elements of k per chunk, a multiple of the next `split`. combine:
    a strategy for the `Reduction` that sums the partial results (None: one element per thread). In a block, each unit has separate
    accumulators, which are summed in shared memory. On a spec of the whole kernel, the level is Block: blocks add to C atomically, and the
    launcher (or the simulator) sets C to zero before the launch. k is the first reduction dimension with several elements. Legal on a
    MatMul before `epilog`; across blocks before `tile(...).to(Block)`, for C of float32, float64 or int32. With `reduce_in_last_block`, C
    may have any type, and a `Fused` spec may have steps after its matmul.
    rewrite: MatMul(M,N,K)(Block) --> unit u: MatMul(M,N,K/parts)(.., P[u])(level); Reduction(M,N,parts)(P, C)

    >>> from fireiron import *
    >>> mm = MatMul(64, 64, 256)(GL, GL, GL)(Kernel).tile(16, 16).to(Block)
    >>> print(mm.split_k(2, Warp, 64).result)
    MatMul(16,16,128)(GL,GL,SH)(Warp)

    Source: Fireiron, section 5.3; decision 11.
    """
    return SplitK.of(parts, level, step, combine)


EXAMPLES = (SplitK(2, Warp, 8),)
"""Examples of the class, which has no default arguments."""

__all__ = ["SplitK"]
