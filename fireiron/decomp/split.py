"""`split`: a sequential loop over a reduction dimension (Fireiron, section 4.1)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import attrs

from fireiron.errors import DecompositionError, call_site
from fireiron.frozen import evolve, frozen
from fireiron.ir import For, Hole, Let, Stmt, SyncPoint
from fireiron.ir.ask import NOTHING, Ask, Asks
from fireiron.ir.asks.deferred import Deferred
from fireiron.ir.asks.ordered_mma import OrderedMma
from fireiron.ir.asks.pending_mmas import PendingMmas
from fireiron.ir.asks.pipelined import Pipelined
from fireiron.ir.asks.producer_threads import ProducerThreads
from fireiron.language.dividing import Extent, Step, divide, loop_over, moved
from fireiron.language.segments import Segment
from fireiron.language.substrategy import divisors, fits
from fireiron.language.tree import Child, Context, Decomposition, Draft, Expansion, verb
from fireiron.language.tunable import TileSize, by_dimension, checked_tile_size, chosen_tile_size, tile_size
from fireiron.spec import Spec
from fireiron.specs.fused import fused, with_definition
from fireiron.specs.fused_definition import FusedDefinition
from fireiron.specs.partial_sums import looped_sum
from fireiron.specs.steps import SECOND_LOOP
from fireiron.stepping.joint_tiles import is_summed_by_last_block, summed_by_last_block
from fireiron.stepping.masked_tiles import masked_iteration
from fireiron.stepping.masks import VisibleIterations, visible, without_masks
from fireiron.stepping.segments import segment_loop
from fireiron.stepping.stagger import require_order_free, staggered_loop
from fireiron.stepping.steps import implied, parts_of, unchanged
from fireiron.values.expr import ONE, TRUE, ZERO, Expr, Var, any_of, as_expr, ceildiv, constant, minimum
from fireiron.values.tensor import Dim, View


@frozen
class SplitPlan:
    """How the loop is executed.

    `unroll`: the loop is unrolled. `sync`: a barrier is required at the end of its body. `skip`: fully masked iterations are skipped.
    `stagger`: the offset of the first iteration between consecutive blocks. `asks`: requests that later passes implement.
    """

    unroll: bool = False
    sync: str | None = None
    skip: bool = False
    stagger: int = 0
    asks: Asks = NOTHING

    def with_asks(self, ask: Ask) -> SplitPlan:
        """Return the plan with a request to a later pass."""
        return evolve(self, asks=self.asks.with_(ask))


def _sizes(value: Any) -> tuple[Any, ...]:
    if not isinstance(value, tuple):
        raise DecompositionError("split: sizes must be integers or layouts", got=value, legal="split(8)", at=call_site())
    return tuple(tile_size(size, "split") for size in value)


def _by_dim(value: Any) -> tuple[tuple[str, Any], ...]:
    return by_dimension(value, "split")


@frozen
class Split(Decomposition):
    """A loop over a reduction dimension in steps of `sizes` elements; see the verb `split`."""

    verb: ClassVar[str] = "split"
    kinds: ClassVar[tuple[str, ...]] = ("MatMul", "Reduction", "Fused")
    sizes: tuple[Any, ...] = attrs.field(default=(), converter=_sizes)
    by_dim: tuple[tuple[str, Any], ...] = attrs.field(default=(), converter=_by_dim)

    @staticmethod
    def of(sizes: tuple[Any, ...], by_dim: Mapping[str, Any]) -> Split:
        """Return the step for the arguments of the verb. Raises: DecompositionError if no size is given."""
        if not sizes and not by_dim:
            raise DecompositionError("split(): no size given", hint="split(8)", at=call_site())
        for size in (*sizes, *by_dim.values()):
            checked_tile_size(size, "split")
        return Split(tuple(sizes), tuple(by_dim.items()))

    def label(self) -> str:
        arguments = [repr(size) for size in self.sizes] + [f"{dim}={size!r}" for dim, size in self.by_dim]
        return f"split({', '.join(arguments)})" + "".join(f".{refinement.label()}" for refinement in self.refinements)

    def extents(self, spec: Spec) -> dict[str, Extent]:
        """Return the elements per iteration, by reduction dimension. Raises: DecompositionError if the spec has no such dimension."""
        dims = tuple(dim for dim in spec.dims if dim not in spec.tile_dims)
        if spec.scans:
            raise DecompositionError(
                f"{self.label()}: {spec.title} is a scan, whose iterations depend on each other", within=spec, legal="done()",
                hint=f"loop={dims[0]!r} in the definition, with a step that adds the sum of the iterations before",
            )  # fmt: skip
        if not dims:
            raise DecompositionError(f"split: {spec.title} has no reduction dimension", hint="tile(...) divides its dimensions")
        if len(self.sizes) > len(dims):
            raise DecompositionError(f"split takes at most {len(dims)} sizes for {spec.title}: {', '.join(dims)}")
        named: dict[str, Extent] = {dim: chosen_tile_size(size, "split") for dim, size in zip(dims, self.sizes, strict=False)}
        for dim, size in self.by_dim:
            if dim not in dims or dim in named:
                raise DecompositionError(f"split({dim}={size}): {dim} is not a reduction dimension, or is given twice", legal=dims)
            named[dim] = chosen_tile_size(size, f"split({dim}=...)")
        if not named:
            raise DecompositionError("split(): no size given", hint="split(8)")
        return named

    def expand(self, spec: Spec, context: Context) -> Expansion:
        if fused(spec) is not None:
            return self._around_loop(spec, context)
        return self._loop(spec, context)

    def _around_loop(self, spec: Spec, context: Context) -> Expansion:
        """Expand a definition of several steps: the steps of `init`, the loop over those of `body`, and the steps of `final`."""
        definition = fused(spec)
        assert definition is not None
        if definition.product is not None and not definition.loops:
            return implied(self, spec, context)
        named = [dim for dim, _ in self.by_dim]
        if self.sizes or not set(named) <= set(definition.loops):
            reducing = [step.name for step in definition.steps if {*named} & {*step.formula.over}]
            split = f"AnySpec.split({', '.join(str(size) for _, size in self.by_dim)})"
            hint = f".step({reducing[0]!r}, {split}...), or loop={' '.join(named)!r} in the definition" if reducing else None
            what = f"{self.label()} names no loop dimension of {spec.title}"
            raise DecompositionError(what, legal=definition.loops or "none", hint=hint)
        if {*named} <= {*definition.entered} and any(dim in spec.dims for dim in named):
            return self._loop(spec, context)  # an iteration is divided again
        self._require_level(definition, named, spec)
        steps = {step.part for step in definition.steps}
        if "body" not in steps or not set(named) <= set(definition.looped) or not any(dim in spec.dims for dim in named):
            return unchanged(spec)
        draft = context.draft()
        loop_spec, _ = parts_of(with_definition(spec, definition.with_second_loop(), {}), draft)
        inside = fused(loop_spec)
        assert inside is not None
        if steps == {"body"} and not inside.nested:
            return self._loop(with_definition(loop_spec, inside.in_loop(), {}), draft)
        children: list[Child] = []
        program: tuple[Stmt, ...] = ()
        for part, name in (("init", "before"), ("body", "body"), ("final", "after"), (SECOND_LOOP, SECOND_LOOP)):
            if not any(step.part == part for step in inside.steps):
                continue
            own = with_definition(loop_spec, inside.part(part), {})
            loop = self._loop(own, draft, name) if part in ("body", SECOND_LOOP) else None
            children += [Child(name, own)] if loop is None else loop.children
            program += (Hole(name),) if loop is None else loop.program
            if part == "body" and is_summed_by_last_block(context):
                summed, total = _complete_sum(loop_spec, looped_sum(spec, definition), draft)
                children, program = [*children, *summed], (*program, *total)
        return draft.expansion(tuple(children), program)

    def _require_level(self, definition: FusedDefinition, named: Sequence[str], spec: Spec) -> None:
        """Refuse a loop whose outer loop is not split yet, and one of whose iterations these steps are only a part."""
        outer = [dim for dim in named if dim in definition.around and dim in spec.dims]
        if outer:
            raise DecompositionError(
                f"{self.label()}: the steps are only a part of an iteration over {outer[0]}", got=named,
                legal=definition.entered or definition.looped or "none", within=spec,
                hint=f"split({outer[0]}=...) before the split of the loop inside of it",
            )  # fmt: skip
        inner = next((dim for dim in named if dim in definition.nested), None)
        if inner is not None and definition.looped:
            splits = ", ".join(f"{dim}=..." for dim in definition.looped)
            raise DecompositionError(
                f"{self.label()}: the loop over {' '.join(definition.looped)} is split before that over {inner}", got=named,
                legal=definition.looped, within=spec, hint=f".split({splits}).split({inner}=...)",
            )  # fmt: skip

    def _loop(self, spec: Spec, context: Context, name: str = "body") -> Expansion:
        plan = self.planned(SplitPlan())
        _require_flat(spec, plan)
        views, digits = divide(spec, self.extents(spec), self.label())
        inner: tuple[Stmt, ...] = (Hole(name),)
        if plan.stagger:
            require_order_free(spec, digits, self.label(), context)
        draft = context if isinstance(context, Draft) else context.draft()
        segment = self._segment(spec, plan, context)
        if segment is not None:
            views, program, variables = segment_loop(spec, views, digits, segment, plan.unroll, draft, inner)
        elif plan.skip and self._one_at_a_time(spec):
            if Pipelined in plan.asks:
                raise DecompositionError(
                    f"{self.label()}: loads run ahead of iterations that may be skipped",
                    hint="pipeline an inner split, or remove skip_masked_tiles()",
                )
            point, inner = Hole(name), ()
            views, program, variables = loop_over(spec, views, digits, plan.unroll, draft, inner)
            program = _innermost(program, masked_iteration(spec, views, draft, (point,)))
        elif plan.skip:
            spec, views, program, variables = self._unmasked_loop(spec, views, digits, plan.unroll, draft, inner)
        elif plan.stagger and digits:
            views, program, variables = staggered_loop(spec, views, digits[0], plan.stagger, plan.unroll, draft, inner)
        else:
            views, program, variables = loop_over(spec, views, digits, plan.unroll, draft, inner)
        child = spec.with_operands(**views)
        if fused(spec) is None and spec.accumulate != TRUE:
            child = child.with_options(accumulate=any_of([spec.accumulate, *(var > ZERO for var in variables)]))
        _require_stages(plan)
        if ProducerThreads in plan.asks and not any(isinstance(stmt, For) for stmt in program):
            # A loop of one iteration is kept, because a producer fills its stages and mbarriers count the fills.
            label = spec.labels[spec.dims.index(next(iter(self.extents(spec))))]
            program = (For(Var(draft.fresh(label), 0, 0), ONE, program, False, draft.origin),)
        if Deferred in plan.asks:
            _require_steps(spec, plan.asks[Deferred])
        if OrderedMma in plan.asks:
            _require_ordered_steps(spec, plan.asks)
        asks = _of_arrays(plan.asks, spec)
        program = tuple(evolve(stmt, asks=asks) if isinstance(stmt, For) else stmt for stmt in program)
        if plan.sync is not None:
            program = _with_required_barrier(program, plan.sync, context)
        return draft.expansion((Child(name, child),), program, segment=None if segment is None else evolve(segment, divided=True))

    def _segment(self, spec: Spec, plan: SplitPlan, context: Context) -> Segment | None:
        """Return the segment over whose units the loop iterates, if this is the first loop over k of a tile that blocks share.

        Raises: `DecompositionError` for a loop that cannot start at any unit of the tile.
        """
        segment = context.whole.segment
        if segment is None or segment.divided or not spec.contracts:
            return None
        extents = self.extents(spec)
        size = next(iter(extents.values()))
        if len(extents) > 1 or not isinstance(size, int) or segment.step % size:
            raise DecompositionError(
                f"{self.label()}: stream_k distributes units of {segment.step} elements of k over blocks",
                got=", ".join(map(str, extents.values())), legal=f"a divisor of {segment.step}", within=spec, hint=f"split({segment.step})",
            )  # fmt: skip
        if plan.skip or plan.stagger:
            verb = "skip_masked_tiles" if plan.skip else "stagger_blocks"
            raise DecompositionError(
                f"{self.label()}: stream_k and {verb} both choose the first iteration of a block", legal="one of them", within=spec,
                hint=f"remove {verb}(), or persistent() instead of stream_k",
            )  # fmt: skip
        return segment

    def _one_at_a_time(self, spec: Spec) -> bool:
        """Whether the loop is over dimensions with the role `scan`, so that an iteration has one element."""
        definition = fused(spec)
        return definition is not None and set(self.extents(spec)) <= set(definition.scan)

    def _unmasked_loop(
        self, spec: Spec, views: dict[str, View], digits: list[Step], unroll: bool, draft: Draft, inner: tuple[Stmt, ...]
    ) -> tuple[Spec, dict[str, View], tuple[Stmt, ...], list[Var]]:
        """Return the loop over the iterations that are not fully masked, with the spec, the views and the variables of its body.

        The spec of the body has no masks that are equal for all elements of an iteration.
        """
        if fused(spec) is None or len(self.extents(spec)) != 1:
            raise DecompositionError(
                f"{self.label()}: skip_masked_tiles needs a mask along one dimension",
                legal="one dimension of a fused definition",
                within=spec,
            )
        ((dim, size),) = self.extents(spec).items()
        if not isinstance(size, int) or len(digits) > 1:
            raise DecompositionError(
                f"{self.label()}: skip_masked_tiles requires contiguous iterations", got=size, legal=f"split({dim}=64).skip_masked_tiles()"
            )
        if not digits:
            return self._unmasked_iteration(spec, dim, size, views, unroll, draft, inner)
        all_iterations = ceildiv(spec.size(dim), as_expr(size))
        visible_iterations = visible(spec, dim, size, all_iterations)
        label = spec.labels[spec.dims.index(dim)]
        var = Var(draft.fresh(label), 0, max(all_iterations.high - 1, 0))
        last, masked = max(all_iterations.high, 1) * size - 1, visible_iterations.masked
        if masked.high > last:  # the window of some rows is past the last element
            masked, last = minimum(masked, all_iterations * size), all_iterations.high * size
        masked = draft.let(f"{label}_hidden", masked, last)
        first = masked // size
        # The extent of the loop bounds the tile's number, but the range analysis cannot derive this, so the minimum states it.
        number: Expr = var if first == ZERO else minimum(first + var, all_iterations - 1)
        origins, views = views, moved(views, spec, digits[0], number, unit=False)
        count, lets = self._iterations(visible_iterations, first, all_iterations, label, draft)
        if lets and first != ZERO:
            views = moved(origins, spec, digits[0], minimum(lets[0].var + var, all_iterations - 1), unit=False)
        body = _without_masks(spec, visible_iterations)
        views = {name: view for name, view in views.items() if name in body.operands}
        return body, views, (*lets, For(var, count, inner, unroll, draft.origin)), [var]

    def _unmasked_iteration(
        self, spec: Spec, dim: str, size: int, views: dict[str, View], unroll: bool, draft: Draft, inner: tuple[Stmt, ...]
    ) -> tuple[Spec, dict[str, View], tuple[Stmt, ...], list[Var]]:
        """Return a single iteration, which is skipped if a mask masks all of its elements."""
        try:
            visible_iterations = visible(spec, dim, size, ONE)
        except DecompositionError:  # a single iteration needs no bound
            return (spec, *loop_over(spec, views, [], unroll, draft, inner))
        executed = minimum(visible_iterations.end - minimum(visible_iterations.masked // size, visible_iterations.end), ONE)
        if not visible_iterations.whole and (executed.low > 0 or Deferred in self.planned(SplitPlan()).asks):
            return (spec, *loop_over(spec, views, [], unroll, draft, inner))
        label = spec.labels[spec.dims.index(dim)]
        # Its length has the range of a loop, because passes count the iterations of a branch (at most 1) in the loop around it.
        count = Let(Var(draft.fresh(f"{label}_iterations"), 0, 2), executed)
        body = _without_masks(spec, visible_iterations)
        views = {name: view for name, view in views.items() if name in body.operands}
        return body, views, (count, For(Var(draft.fresh(label), 0, 1), count.var, inner, unroll, draft.origin)), []

    def _iterations(
        self, visible_iterations: VisibleIterations, first: Expr, all_iterations: Expr, label: str, draft: Draft
    ) -> tuple[Expr, tuple[Let, ...]]:
        """Return the number of iterations from `first` to the last visible one, and named values before the loop.

        No fully masked iteration runs: in an MMA, zero times a NaN or an infinity of a masked element is NaN. Only a deferred step, which
        always runs after the loop, requires at least one iteration.
        """
        end, asks = visible_iterations.end, self.planned(SplitPlan()).asks
        if visible_iterations.whole:
            begin = Let(Var(draft.fresh(f"{label}_first"), 0, all_iterations.high), minimum(first, end))
            lets = () if first == ZERO else (begin,)
            length = Let(Var(draft.fresh(f"{label}_iterations"), 0, all_iterations.high), end - begin.var if lets else end)
            return length.var, (*lets, length)
        if ProducerThreads not in asks or (end - first).low > 0:
            return end - first, ()
        if Deferred in asks:
            return minimum(draft.let(f"{label}_more", end - 1 - minimum(first, end - 1)), all_iterations - 1) + 1, ()
        return minimum(draft.let(f"{label}_iterations", end - minimum(first, end)), all_iterations), ()

    @classmethod
    def choices(cls, spec: Spec, context: Context) -> Iterator[Split]:
        for dim in spec.dims:
            total = constant(spec.size(dim))
            if dim not in spec.tile_dims and total is not None:
                yield from (Split((), ((dim, size),)) for size in divisors(total) if fits(spec, dim, size))


def _without_masks(spec: Spec, visible_iterations: VisibleIterations) -> Spec:
    """Return the spec of an iteration that is executed, without the masks that are equal for all of its elements."""
    definition = fused(spec)
    assert definition is not None
    types = definition.all_types({name: view.dtype for name, view in spec.operands.items()})
    return with_definition(spec, without_masks(definition, visible_iterations.whole, types), {})


def _complete_sum(spec: Spec, name: str, draft: Draft) -> tuple[tuple[Child, ...], tuple[Stmt, ...]]:
    """Return the children and the program that, after the loop, replace a block's part of its sum by the sum of all parts."""
    places = [_place_of(spec, dim) for dim in spec.uses[name]]
    return summed_by_last_block(spec.operands[name], places, spec, name, draft)


def _place_of(spec: Spec, dim: str) -> tuple[Dim, Expr]:
    """Return the part of a dimension that a tile covers, and the extent of the dimension, from an operand in memory."""
    operand = next(name for name, dims in spec.uses.items() if dim in dims and not spec.operands[name].memory.private)
    view, number = spec.operands[operand], spec.uses[operand].index(dim)
    return view.dims[number], view.extent(number)


def _require_flat(spec: Spec, plan: SplitPlan) -> None:
    """Refuse requests that reorder the steps of an iteration if the iteration contains a loop."""
    definition = fused(spec)
    if definition is None or not definition.has_inner_loop:
        return
    inner = " ".join(definition.looped or definition.nested)
    requested = [("defer", plan.asks[Deferred].step)] if Deferred in plan.asks else []
    requested += [("order_mma", plan.asks[OrderedMma].first)] if OrderedMma in plan.asks else []
    for label, step in requested:
        raise DecompositionError(
            f"{label}: an iteration contains the loop over {inner}, so its steps have no single order",
            got=f"{label}({step!r}, ...)",
            legal=f"{label} after split({inner.split()[0]}=...), for steps of that loop",
            within=spec,
        )


def _of_arrays(asks: Asks, spec: Spec) -> Asks:
    """Replace the operands whose loads have a separate producer by their arrays."""
    separate = asks[ProducerThreads].separate
    unknown = [name for name in separate if name not in spec.inputs]
    if unknown:
        raise DecompositionError(
            f"warp_specialize(separate={', '.join(separate)}): {unknown[0]} is not an input", legal=spec.inputs, within=spec
        )
    arrays = tuple(spec.operands[name].tensor.name for name in separate)
    return asks.with_(evolve(asks[ProducerThreads], separate=arrays)) if arrays else asks


def _require_stages(plan: SplitPlan) -> None:
    """Refuse a producer without stages, and `mma_in_flight` without a producer or with too few stages."""
    stages, running = plan.asks[Pipelined].stages, plan.asks[PendingMmas].groups
    if ProducerThreads in plan.asks and not stages:
        raise DecompositionError(
            "warp_specialize: the split has no pipeline, so a producer has no stages to fill", hint=".pipeline(4).warp_specialize()"
        )
    if running is None:
        return
    if ProducerThreads not in plan.asks:
        raise DecompositionError(
            f"mma_in_flight({running}): the split has no producer", hint=f".warp_specialize().mma_in_flight({running})"
        )
    if not stages > running:
        raise DecompositionError(
            f"mma_in_flight({running}): each iteration in flight occupies a stage, and one more must be filled",
            got=f"{stages} stages",
            legal=f"pipeline({running + 1}) or more",
        )


def _require_steps(spec: Spec, delayed: Deferred) -> None:
    """Refuse a `defer` if the loop lacks one of its steps, or has them in the other order."""
    step, after = delayed.step, delayed.after
    label, definition = f"defer({step!r}, after={after!r})", fused(spec)
    if definition is None:
        raise DecompositionError(f"{label}: {spec.title} is one step", legal="the split of a Fused definition", within=spec)
    names = [definition_step.name for definition_step in definition.steps]
    for name in (step, after):
        if name not in names:
            raise DecompositionError(f"{label}: the loop has no step {name}", legal=names, within=spec)
    if names.index(after) >= names.index(step):
        raise DecompositionError(
            f"{label}: {after} is not before {step}",
            legal=names[: names.index(step)] or "none: it is the first step",
            within=spec,
        )


def _require_ordered_steps(spec: Spec, asks: Asks) -> None:
    """Refuse an `order_mma` if the loop lacks one of its steps, has them in the other order, or has no producer."""
    first, last = asks[OrderedMma].first, asks[OrderedMma].last
    label, definition = f"order_mma({first!r}, {last!r})", fused(spec)
    if definition is None:
        raise DecompositionError(f"{label}: {spec.title} is one step", legal="the split of a Fused definition", within=spec)
    names = [definition_step.name for definition_step in definition.steps]
    for name in (first, last):
        if name not in names:
            raise DecompositionError(f"{label}: the loop has no step {name}", legal=names, within=spec)
    if names.index(last) < names.index(first):
        raise DecompositionError(f"{label}: {last} comes before {first}", legal=names[names.index(first) :], within=spec)
    if ProducerThreads not in asks:
        raise DecompositionError(
            f"{label}: the split has no producer whose stages the warpgroups read",
            hint=f".pipeline(2).warp_specialize().{label}",
            within=spec,
        )


def _innermost(program: tuple[Stmt, ...], inner: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    """Put statements into the innermost of nested loops."""
    if not program:
        return inner
    (loop,) = program
    assert isinstance(loop, For)
    return (evolve(loop, body=_innermost(loop.body, inner)),)


def _with_required_barrier(program: tuple[Stmt, ...], subject: str, context: Context) -> tuple[Stmt, ...]:
    loop = program[0]
    point = SyncPoint(True, subject, context.origin)
    if not isinstance(loop, For):
        return (*program, point)
    return (evolve(loop, body=(*loop.body, point)),)


@verb()
def split(*sizes: TileSize, **by_dim: TileSize) -> Split:
    """Loop sequentially over a reduction dimension and accumulate the results.

    Args: the number of elements of k per iteration, or their layout as in `tile`. Legal on a spec with a reduction dimension, if the size
    divides a static tile.
    rewrite: MatMul(M,N,K) --> for k: MatMul(M,N,kBlock), accumulating      (Fireiron, section 4.1)

    >>> from fireiron import *
    >>> print(MatMul(64, 64, 8)(GL, GL, GL)(Kernel).tile(64, 64).to(Block).split(4).result)
    MatMul(64,64,4)(GL,GL,GL)(Block)
    """
    return Split.of(sizes, by_dim)


__all__ = ["Split"]
