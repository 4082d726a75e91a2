"""`split_k`: the reduction dimension dealt to units that work side by side, and their partial results added up.

In a block, each part has its own accumulators; they meet in shared memory (Fireiron, section 5.3: the warps of cuBLAS for
small sizes, arranged in three dimensions). Across blocks there is no memory to meet in but C itself: each adds to it, atomically.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

import attrs

from fireiron.errors import ArgumentError, DecompositionError, call_site
from fireiron.executable.atomic_add import TYPES
from fireiron.ir import Comment, Hole
from fireiron.ir.effect import Effects
from fireiron.ir.effects.zeroed import Zeroed
from fireiron.language.substrategy import chain, copies_of, default_copy, divisors, require_steps, steps_at, steps_for
from fireiron.language.tree import Child, Context, Decomposition, Draft, Expansion, verb
from fireiron.language.tunable import Integer, chosen, count, integral
from fireiron.spec import Spec
from fireiron.specs.fused import fused
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
"""Most parts: each element adds this many partial results."""


def _parts(value: Any) -> Any:
    return integral(value, "split_k")


def _combine(value: Any) -> Any:
    if value is None:
        return None
    steps = require_steps(value, "split_k combine")
    return None if steps == default_copy() else steps


@attrs.frozen
class SplitKPlan:
    """Elements added to the leading dimension of the partial results; None for the swizzle that keeps them free of conflicts."""

    pad: int | None = None


@attrs.frozen
class SplitK(Decomposition):
    """Chunks of `step` elements of k, dealt in turn to `parts` units of `level`; see the verb `split_k`.

    `combine` are the steps of the sum; None for one element a thread, in the storage order of C.
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
        """The step from the arguments of the verb."""
        steps = None if combine is None else steps_for(combine, "split_k combine", ("Reduction",))
        return SplitK(count(parts, "split_k"), level, count(step, "split_k step"), steps)

    def label(self) -> str:
        return self._text("" if self.combine is None else chain(self.combine))

    def summary(self) -> str:
        return self._text("" if self.combine is None else chain(self.combine, summary=True))

    def _text(self, steps: str) -> str:
        combine = f", Reduction{steps}" if steps else ""
        return f"split_k({self.parts}, {self.level}, {self.step}{combine})" + "".join(f".{one.label()}" for one in self.refinements)

    def threads(self, spec: Spec, context: Context) -> int | None:
        if spec.level != Block or self.level.threads is None:
            return None
        return threads_for(chosen(self.parts, "split_k", 1, MOST_PARTS), self.level)

    def expand(self, spec: Spec, context: Context) -> Expansion:
        parts = chosen(self.parts, "split_k", 1, MOST_PARTS)
        made = fused(spec)
        if made is not None and made.product is not None and not spec.level.is_launch:
            return implied(self, spec, context)
        if made is not None and made.product is not None:
            raise DecompositionError(
                f"split_k({self.parts}, {self.level}): no block has a whole sum, and {spec.title} computes with whole sums",
                legal="a plain MatMul; or split_k to Warp, inside a block",
                within=spec,
                hint="tile(...).to(Block).split_k(parts, Warp, step); or the product first, and a kernel behind it",
            )
        spec = _checked(spec)
        check_below(self.level, spec.level, spec, context.origin)
        if spec.level.is_launch:
            return self._across_blocks(spec, parts, context)
        if any(constant(size) is None for size in spec.C.shape):
            raise DecompositionError(
                "split_k: the size of the partial results is known only at run time", hint=".tile(64, 64).to(Block) first"
            )
        units = context.units(self.level, spec.level) if context.workers is not None or spec.level.threads is not None else parts
        if parts > units:
            raise DecompositionError(
                f"split_k({parts}, {self.level}): a {spec.level} has {units} units of {self.level}", legal=f"at most {units}"
            )
        draft = context.draft()
        unit: Expr = draft.unit(self.level, spec.level)
        active = less(unit, ZERO + parts)
        if active != TRUE:  # units are left over
            unit = draft.let(f"{draft.prefix}{self.level.label}_part", unit, high=parts - 1)
        partial = self._partial(spec, parts, draft)
        own = partial.at(len(spec.tile_dims), unit, unit=True)
        left, right = self._parts_of(spec, parts, unit)
        body = spec.at_level(self.level, A=left, B=right, C=own).with_options(accumulate=FALSE)
        kept = _wide(spec.C)
        stack = partial.only((*kept, len(spec.tile_dims))) if len(kept) < len(spec.tile_dims) else partial
        total = Reduction.on(spec.level, stack, spec.C.only(kept), accumulate=spec.accumulate)
        name = partial.tensor.name
        steps = default_copy(_order(spec.C.only(kept)), len(kept)) if self.combine is None else steps_at(self.combine, total)
        children = (Child("body", body, active=active), Child("combine", total, steps, prefix="combine_"))
        before = Comment(f"each {self.level} its part of k, into {name}: {body}")
        after = Comment(f"{name} to C: {total}")
        return draft.expansion(children, (before, Hole("body"), after, Hole("combine")))

    def _partial(self, spec: Spec, parts: int, draft: Draft) -> View:
        """The stack of partial results, each in the storage order of C.

        As the spec accumulates; else of 32 bits at least, so that none is rounded before the sum.
        """
        pad: int | None = self.planned(SplitKPlan()).pad
        matrix = spec.C.only(_wide(spec.C))
        m, n = constant(matrix.shape[0]) or 1, constant(matrix.shape[-1]) or 1
        swizzle = None if pad is not None else _conflict_free(2 * m if _order(matrix) == ColMajor else n)
        copies, copy = copies_of(SH, spec, draft)
        dtype = spec.accumulator or (float32 if spec.C.dtype in (float16, bfloat16) else spec.C.dtype)
        shape: tuple[Expr, ...] = (*spec.C.shape, ZERO + parts)
        name = draft.fresh("p_sh")
        tensor = Tensor(name, shape, dtype, SH, _stacked(spec.C, parts, pad or 0), swizzle=swizzle, copies=copies, origin=draft.origin)
        return whole_view(tensor, copy)

    def _parts_of(self, spec: Spec, parts: int, unit: Expr) -> list[View]:
        """A and B with the chunks of one part only."""
        step = chosen(self.step, "split_k step")
        found = []
        for name in ("A", "B"):
            view = spec.operands[name]
            if _reduced(spec) not in spec.uses[name]:
                found.append(view)
                continue
            position = spec.uses[name].index(_reduced(spec))
            part = _interleaved(view.dims[position], parts, step, view.extent(position), unit, self.label(), spec)
            found.append(view.with_dims({position: part}))
        return found

    def _across_blocks(self, spec: Spec, parts: int, context: Context) -> Expansion:
        """Blocks that add to C; which of them a block is, the tile for Block decides, as it knows the grid."""
        _check_atomic(spec, context.architecture)
        if self.combine is not None:
            raise DecompositionError("split_k(.., Block): blocks add to C, there is no sum to decompose", hint="leave combine out")
        if context.whole.grid is not None or context.whole.part is not None:
            raise DecompositionError("split_k(.., Block): tiles are dealt to Block already", hint="split_k before tile(...).to(Block)")
        draft = context.draft()
        unit = Var(draft.fresh("block_k"), 0, parts - 1)
        zeroed = Zeroed((spec.C.tensor.name,) if spec.accumulate == FALSE else ())
        left, right = self._parts_of(spec, parts, unit)
        body = spec.with_operands(A=left, B=right).with_options(in_parts=True, accumulate=FALSE)
        return draft.expansion((Child("body", body),), (Hole("body"),), part=unit, effects=Effects((zeroed,)))

    @classmethod
    def choices(cls, spec: Spec, context: Context) -> Iterator[SplitK]:
        try:
            spec = _checked(spec)
        except DecompositionError:
            return
        total = constant(spec.size(_reduced(spec)))
        below = [one for one in (Block, Warpgroup, Warp) if (one == Block) == spec.level.is_launch and one.is_below(spec.level)]
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
        raise DecompositionError(f"split_k: {spec.title} is no matrix product", legal="MatMul")
    if spec.in_parts:
        raise DecompositionError("split_k inside split_k(.., Block): blocks add their tiles to C as they are", hint="one of the two")
    if spec.C.memory.fragment is not None:
        raise DecompositionError(f"split_k: C lies in {spec.C.memory}, which threads cannot add to", hint="split_k before epilog")
    return spec


def _reduced(spec: Spec) -> str:
    """The dimension that is dealt: of those that are added up the first with several elements."""
    dims = [dim for dim in spec.dims if dim not in spec.tile_dims]
    return next((dim for dim in dims if spec.size(dim) != ONE), dims[0])


def _wide(view: View) -> tuple[int, ...]:
    """The dimensions of C without those of one element, as long as a matrix is left."""
    ones = [dim for dim, size in enumerate(view.shape) if size == ONE][: max(len(view.dims) - 2, 0)]
    return tuple(dim for dim in range(len(view.dims)) if dim not in ones)


def _stacked(view: View, parts: int, pad: int) -> Layout:
    """Parts one behind the other, each in the storage order of a C of any rank, with `pad` elements behind each of its rows."""
    sizes = [constant(size) or 1 for size in view.shape]
    strides, weight = [0] * len(sizes), 1
    padded = False
    for dim in view.storage_order:
        strides[dim] = weight
        weight *= sizes[dim] + (pad if sizes[dim] > 1 and not padded else 0)
        padded = padded or sizes[dim] > 1
    return Layout((*sizes, parts), (*strides, weight))


def _check_atomic(spec: Spec, architecture: Architecture) -> None:
    """Blocks add in C's own type, so it must be one in which nothing is lost."""
    if spec.accumulate not in (TRUE, FALSE):
        raise DecompositionError(f"split_k(.., Block): blocks cannot agree on {spec.accumulate}", legal="accumulate=True or False")
    first = TYPES.get(spec.C.dtype)
    if first is None:
        raise DecompositionError(
            f"split_k(.., Block): C has elements of {spec.C.dtype}, and each block would round the sum to them once more",
            legal=[str(dtype) for dtype in TYPES],
            hint="c_dtype=float32, and a conversion behind it; or split_k to Warp, inside a block",
        )
    if architecture.capability < first:
        raise DecompositionError(
            f"split_k(.., Block): {architecture} has no atomic addition of {spec.C.dtype}", legal=f"sm_{first} or newer"
        )


def _interleaved(dim: Dim, parts: int, step: int, extent: Expr, unit: Expr, what: str, spec: Spec) -> Dim:
    """The chunks `unit`, `unit + parts`, ... of a dimension; those behind its end lie outside the tensor, and count as zero."""
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
    """The swizzle by which the accumulators of a matrix instruction, eight neighbours and four times `step` on, lie in all banks.

    That is how the lanes of mma.sync hold 32-bit results: rows in row-major storage, every second column in column-major.
    Runs of 32 elements, which the sum reads, stay free of conflicts.
    """
    if step < 16 or step & (step - 1):
        return None
    return Swizzle(1, 3, 2) if step == 16 else Swizzle(2, 3, step.bit_length() - 4)


@verb()
def split_k(parts: Integer, level: Level, step: Integer, combine: Strategy | None = None) -> SplitK:
    """A reduction dimension dealt to units that work side by side, in chunks in turn; their partial results are added up.

    Args: the parts; the level of the units; elements of k in a chunk, a multiple of the next `split`; a strategy for the
    `Reduction` that adds the partial results (none: one element a thread).
    In a block, each unit of a level below has accumulators of its own, which meet in shared memory. At the kernel, the
    level is Block: blocks add to C atomically, and C is zero before the launch (the launcher and the simulator see to it).
    k is the first dimension of several elements that is added up.
    Legal on a MatMul before `epilog`; across blocks before `tile(...).to(Block)`, for C of float32, float64 or int32.
    rewrite: MatMul(M,N,K)(Block) --> unit u: MatMul(M,N,K/parts)(.., P[u])(level); Reduction(M,N,parts)(P, C)

    >>> from fireiron import *
    >>> mm = MatMul(64, 64, 256)(GL, GL, GL)(Kernel).tile(16, 16).to(Block)
    >>> print(mm.split_k(2, Warp, 64).result)
    MatMul(16,16,128)(GL,GL,SH)(Warp)

    Source: Fireiron, section 5.3; decision 11.
    """
    return SplitK.of(parts, level, step, combine)


EXAMPLES = (SplitK(2, Warp, 8),)
"""Any of the kind, which cannot be made without arguments."""

__all__ = ["SplitK"]
