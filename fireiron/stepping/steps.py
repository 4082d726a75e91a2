"""Expand a fused definition to its steps, in order: each is a separate spec, with its strategy if the user gave one.

A step without a strategy uses the register layout that other steps determine. A MatMul requires a strategy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import attrs

from fireiron.errors import DecompositionError
from fireiron.executable.atomic_add import ADDED_TYPES, ROUNDED_TYPES, TYPES
from fireiron.executable.atomic_extreme import EXTREME_TYPES
from fireiron.executable.micro_kernel import MicroKernel
from fireiron.executable.print_value import PrintValue
from fireiron.frozen import evolve, frozen
from fireiron.ir import Comment, Hole, IfAnyLane, SemaphoreAction, StepMarker, Stmt
from fireiron.ir.effect import Effects
from fireiron.ir.effects.zeroed import Zeroed
from fireiron.language.plain import without_ones
from fireiron.language.substrategy import copies_of, default_copy, steps_at
from fireiron.language.tree import Child, Context, Decomposition, Draft, Expansion, count_workers
from fireiron.performing.layout_propagation import LARGEST, expand_definitions, in_pairs_from_memory
from fireiron.spec import Kind, Spec
from fireiron.specs.atomic_add import AtomicAdd
from fireiron.specs.atomic_extremes import AtomicMax, AtomicMin
from fireiron.specs.formula import DECOMPRESSED, REDUCTIONS, Element, Formula, Index, Number, Operation, Value, elements_of
from fireiron.specs.fused import fused, with_definition
from fireiron.specs.fused_definition import FusedDefinition
from fireiron.specs.fused_dims import summands_of
from fireiron.specs.fused_sizes import swapped_indices
from fireiron.specs.init import Init
from fireiron.specs.matmul import MatMul
from fireiron.specs.meaning import computing, neutral, stored
from fireiron.specs.move import Move
from fireiron.specs.reduction import Reduction
from fireiron.specs.scan import LinearRecurrence, Scan
from fireiron.specs.sparse_matmul import SparseMatMul
from fireiron.specs.steps import EXTENTS, INDICES, Skipped, Step, TemporaryMemory, shown
from fireiron.specs.tracing import FIRST, SUFFIX, Traced
from fireiron.stepping import tracing
from fireiron.stepping.joint_tiles import (
    Share,
    StreamedSum,
    is_ordered,
    is_streamed,
    is_summed_by_last_block,
    streamed_sum,
    summed_by_last_block,
)
from fireiron.stepping.look_back import words_of_tiles
from fireiron.stepping.masks import in_place, may_fail, numbers_of
from fireiron.stepping.out_of_bounds import OutOfBoundsValues
from fireiron.stepping.predicated_region import Run, group_steps
from fireiron.stepping.print_iterations import PrintIterations, in_loop
from fireiron.stepping.shares import by_first_unit, can_be_shared, first_of, share_of_unit
from fireiron.stepping.vectors import from_memory_to_shared, steps_to_shared
from fireiron.values.expr import FALSE, ONE, TRUE, ZERO, Expr, Var, all_of, constant
from fireiron.values.layout import Swizzle
from fireiron.values.machine import RF, SH, Block, DType, Memory, float32, int32
from fireiron.values.tensor import ColMajor, Dim, Fixed, RowMajor, Tensor, View, whole_view

Chain = tuple[Decomposition, ...]

COMBINED = ("sum", "max", "min")
"""The combiners of formulas that combine values in memory atomically."""

LETTERS = "abcdefghijklmnopqrstuvwxyz"

OTHER_VARIABLES = (0, 1, 2, 5)
"""Number of values of loops and blocks at which digits of threads are compared with copies."""


def unchanged(spec: Spec) -> Expansion:
    """Return the expansion of a part of a definition to which a verb does not apply: the part unchanged."""
    return Expansion((Child("body", spec),), (Hole("body"),))


def without_single(spec: Spec, operand: str) -> Spec:
    """Return a spec of several steps without the dimensions along which all steps process one element."""
    definition = fused(spec)
    assert definition is not None
    kept = tuple(dim for dim in definition.uses[operand] if dim not in (*definition.batch, *definition.scan) or spec.size(dim) != ONE)
    view = spec.operands[operand].only([definition.uses[operand].index(dim) for dim in kept])
    given = tuple((name, kept if name == operand else dims) for name, dims in definition.given)
    return with_definition(spec, definition.of(given=given), {operand: view})


def in_order(spec: Spec, last: Decomposition, context: Context) -> Expansion:
    """Expand a spec to its steps, each a child; `last` ends the chains of those without a strategy."""
    return _Steps(spec, last, context.draft()).expansion()


@frozen
class StagedStore:
    """The steps that store an accumulator in fragments through shared memory: `steps` copy it to a buffer, `after` are the copies after it.

    `pad` is the padding of the buffer's rows in elements; with `reuse` it may share the bytes of other buffers.
    """

    steps: Chain
    after: Chain = attrs.field(factory=default_copy)
    pad: int = 0
    reuse: bool = False


def around_product(
    spec: Spec, memory: Memory, dtype: DType | None, init: Chain, store: Chain, context: Context, through: StagedStore | None = None
) -> Expansion:
    """Expand a definition around a MatMul with an accumulator in `memory`: the rest of the chain decomposes the MatMul.

    The init of the accumulator and the copies of results to memory have strategies; all other steps follow the distribution of the
    accumulator. Fragments are stored `through` shared memory; None: by the steps of the store.
    """
    definition = fused(spec)
    assert definition is not None
    if definition.product is None:
        raise DecompositionError(f"epilog: {spec.title} is not a MatMul of two operands followed by an epilogue", hint=".step(...)")
    placed = [*definition.placed, TemporaryMemory(definition.product.formula.output, memory, dtype=dtype)]
    if memory.fragment is not None:  # the owners of the elements are unknown, so all values computed from them are in shared memory
        placed += [TemporaryMemory(name, SH) for name in definition.temporaries if all(placement.tensor != name for placement in placed)]
    inner = evolve(spec, kind=spec.kind.of(placed=tuple(placed)))  # type: ignore[attr-defined]
    return _Steps(inner, default_copy()[-1], context.draft(), (init, store), through).expansion()


def implied(step: Decomposition, spec: Spec, context: Context) -> Expansion:
    """Apply a step of a MatMul to a definition around it without `epilog`: the accumulator is in registers, without strategies."""
    outer = around_product(spec, RF, None, default_copy(), default_copy(), context)
    inner = step.expand(outer.child("body").spec, context.after(outer))
    return outer.followed("body", inner)


def workers_of(spec: Spec, last: Decomposition, context: Context, copies: bool = False) -> int | None:
    """Return the threads per block that the strategies of the steps require: those of the copies, or else of all other steps."""
    steps = _Steps(spec, last, context.draft())
    steps.expansion()
    own_children = [child for child in steps.children if child.name in steps.own and child.spec.moves is copies]
    counts = [count_workers(child.spec, child.steps or (), context.enter(child)) for child in own_children]
    return max((count for count in counts if count is not None), default=None)


def allocated(spec: Spec, names: Mapping[str, tuple[str, ...]], draft: Draft) -> dict[str, View]:
    """Return new tensors for temporaries of a definition, with the extents of the spec."""
    definition = fused(spec)
    assert definition is not None
    operands = {name: view.dtype for name, view in spec.operands.items()}
    views = {}
    for name, dims in names.items():
        shape = tuple(spec.size(dim) for dim in dims)
        if any(constant(size) is None for size in shape):
            wrong = next(dim for dim, size in zip(dims, shape, strict=True) if constant(size) is None)
            hint = f"tile({wrong}=64).to(Block)" if wrong in definition.tile_dims else f"split({wrong}=64)"
            raise DecompositionError(
                f"{name}: its extent along {wrong} is known only at run time", within=spec, at=draft.origin, hint=f"add .{hint} first"
            )
        placed = definition.memory_of(name)
        memory = RF if placed is None else placed.memory
        copies, copy = copies_of(memory, spec, draft)
        sums = any(step.formula.output == name and step.formula.is_product_sum for step in definition.steps)
        placed = placed or TemporaryMemory(name, RF)
        dtype = definition.dtype_of(name, operands) if placed.dtype is None else placed.dtype
        tensor = Tensor(
            draft.fresh(name, f"{name}_{memory.label}"), shape, dtype, memory, RowMajor if memory.of_block else ColMajor,
            pad=placed.pad, swizzle=_swizzle_of(placed, shape, dtype), copies=copies, owner="accumulates" if sums else "reads",
            free=placed.free and memory.in_shared and len(shape) == 2, alternating=placed.stages,
            origin=draft.origin,
        )  # fmt: skip
        views[name] = whole_view(tensor, copy)
    return views


def _swizzle_of(placed: TemporaryMemory, shape: tuple[Expr, ...], dtype: DType) -> Swizzle | None:
    """Return the swizzle of a temporary's addresses; a function of it gets the distance of the rows and the bytes of an element."""
    if placed.swizzle is None or isinstance(placed.swizzle, Swizzle):
        return placed.swizzle
    swizzle: Swizzle | None = placed.swizzle((constant(shape[-1]) or 0) + placed.pad, dtype.bytes)
    return swizzle


@attrs.define
class _Steps:
    """The steps of a spec and their children; `own` are the steps with a strategy of the user.

    `outer` are the chains of an accumulator's init and of copies to memory, if the rest of the chain is that of the MatMul.
    `out_of_bounds` are the values past the end of the dimensions along which a tile may be partly out of bounds; for `zero_filled`, copies
    of operands are known to be zero there.
    `streamed` is the sum of the segments of a tile, and the number of statements before it; only the last block executes those after it.
    `added` are the values that steps combine with outputs in global memory, by step.
    `need_specs` compute which warps require the steps that may be skipped; `needed` is the spec for the steps that are being expanded.
    """

    spec: Spec
    last: Decomposition
    draft: Draft
    outer: tuple[Chain, Chain] | None = None
    through: StagedStore | None = None
    children: list[Child] = attrs.field(factory=list, init=False)
    program: list[Stmt] = attrs.field(factory=list, init=False)
    zeroed: Zeroed = attrs.field(factory=Zeroed, init=False)
    own: set[str] = attrs.field(factory=set, init=False)
    views: dict[str, View] = attrs.field(factory=dict, init=False)
    need_specs: dict[Skipped, Spec] = attrs.field(factory=dict, init=False)
    needed: Spec | None = attrs.field(default=None, init=False)
    out_of_bounds: dict[str, OutOfBoundsValues] = attrs.field(factory=dict, init=False)
    zero_filled: dict[str, OutOfBoundsValues] = attrs.field(factory=dict, init=False)
    streamed: tuple[StreamedSum, int] | None = attrs.field(default=None, init=False)
    added: dict[str, Element] = attrs.field(factory=dict, init=False)

    @property
    def definition(self) -> FusedDefinition:
        """Return the definition."""
        definition = fused(self.spec)
        assert definition is not None
        return definition

    def expansion(self) -> Expansion:
        self._require_no_loop()
        self._require_whole()
        self.views = dict(self.spec.operands)
        for name, dims in self.definition.uses.items():
            if not self.views[name].memory.is_coordinate:
                single = (*self.definition.batch, *self.definition.scan)
                self.views[name] = self.views[name].only([number for number, dim in enumerate(dims) if dim not in single])
        self.views |= allocated(self.spec, self.definition.temporaries, self.draft)
        self.out_of_bounds = {dim: OutOfBoundsValues(self.definition, dim) for dim in self.definition.dims if self._may_overhang(dim)}
        self.zero_filled = {dim: self._with_zeros(dim) for dim in self.out_of_bounds}
        for run in group_steps(self.definition):
            self._run(run)
        program = tuple(self.program)
        if self.streamed is not None:
            streamed, position = self.streamed
            program = (*program[:position], *streamed.around(*program[position:]))
        return self.draft.expansion(tuple(self.children), program, effects=Effects((self.zeroed,)))

    def _require_no_loop(self) -> None:
        """Refuse parts that a loop separates, and dimensions of more than one element if each step processes only one."""
        parts = {step.part for step in self.definition.steps}
        if len(parts) > 1 and not all(self.spec.size(dim) == ONE for dim in self.definition.scan if dim in self.spec.dims):
            dims = self.definition.looped or self.definition.loops
            raise DecompositionError(
                f"{self.spec.title}: {' and '.join(sorted(parts))} are separated by a loop over {', '.join(dims)}",
                within=self.spec,
                at=self.draft.origin,
                hint=f".split({dims[0] if dims else 'k'}=...) first",
            )
        for dim in (*self.definition.batch, *self.definition.scan):
            if dim in self.spec.dims and self.spec.size(dim) != ONE:
                verb = f"tile({dim}=1)" if dim in self.definition.batch else f"split({dim}=1)"
                raise DecompositionError(
                    f"{self.spec.title}: its steps process one element of {dim}",
                    got=str(self.spec.size(dim)), within=self.spec, at=self.draft.origin, hint=f".{verb} first",
                )  # fmt: skip

    def _require_whole(self) -> None:
        """Refuse tiles of a dimension if an index of a tensor is not the declared dimension: the tiles of both differ."""
        for own, other, name in self.definition.equal_sizes:
            for dim in (own, other):
                coordinate = self.spec.operands.get(f"{INDICES}{dim}")
                if coordinate is None or _is_whole(coordinate):
                    continue
                hint = f"use tile({dim}={coordinate.tensor.shape[0]}), and strategies of steps that divide it further"
                if name in self.spec.operands and self.spec.operands[name].memory.of_grid:
                    hint = f"{swapped_indices(self.definition, name) or 'declare its dimensions as they are read'}; or {hint}"
                raise DecompositionError(
                    f"{self.spec.title}: {name} is indexed by {own} and by {other}, and a tile covers only a part",
                    got=f"{coordinate.shape[0]} of {coordinate.tensor.shape[0]} along {dim}",
                    legal=f"all of {own} and of {other} in a tile", within=self.spec, at=self.draft.origin, hint=hint,
                )  # fmt: skip

    # ------------------------------------------------------------------------------------------ steps that warps may skip

    def _run(self, run: Run) -> None:
        """Expand steps in order; steps that warps may skip become one region, after the spec that computes which warps require it."""
        if run.skipped is None:
            for step in run.steps:
                self._step(step)
            return
        for step in run.steps:
            self._require_private(step)
        self.program.append(StepMarker(run.steps[0].name))
        self.needed = self._needed_for(run.skipped)
        for step, number in run.numbers:
            view = self._view(step.formula.target)
            cleared = Init.on(self.spec.level, view, value=_nearest(number.value, view.dtype), names=self._dims(step.formula.target))
            self.program.append(Comment(f"{step.formula.target} = {number.value:g}, where {step.name} is skipped"))
            self._child(f"{step.name}_values_if_skipped", cleared, None)
        outer, self.program = self.program, []
        for step in run.steps:
            self._step(step, traces=False)
        outer.append(Comment(f"skip {', '.join(step.name for step in run.steps)} where {run.skipped.condition}"))
        inside = tuple(stmt for stmt in self.program if not isinstance(stmt, StepMarker))
        outer.append(IfAnyLane(self.needed.operands[self.needed.outputs[0]].tensor.name, inside))
        self.program, self.needed = outer, None
        for step in run.steps:
            self._traces(step)

    def _needed_for(self, skipped: Skipped) -> Spec:
        """Return the spec that computes where a condition fails, before the first of the steps."""
        if skipped not in self.need_specs:
            elements = tuple(elements_of(skipped.condition))
            for element in elements:
                if element.tensor not in self.views:
                    raise DecompositionError(
                        f"skip_steps: the condition reads {element}, which has no value here before step {skipped.steps[0]}",
                        legal=[name for name in self.definition.temporaries if name in self.views],
                        hint="a condition on tensors that steps of the same loop compute before",
                    )
            target = Element(
                f"{skipped.steps[0]}_needed", tuple(map(Index, dict.fromkeys(dim for element in elements for dim in self._dims(element))))
            )
            typed_spec = evolve(self.spec, kind=self.spec.kind.of(types=(*self.definition.types, (target.tensor, int32))))  # type: ignore[attr-defined]
            self.views |= allocated(typed_spec, {target.tensor: target.dims}, self.draft)
            formula = Formula(target, "=", Operation("where", (skipped.condition, Number(0), Number(1))))
            self.program.append(Comment(f"{target.tensor}: {shown(formula)}"))
            self._pointwise(target.tensor, formula, None)
            self.children[-1] = evolve(self.children[-1], alone=())  # it follows the owners of the elements and determines no ownership
            self.need_specs[skipped] = self.children[-1].spec
        return self.need_specs[skipped]

    def _require_private(self, step: Step) -> None:
        """Refuse to skip a step that accesses memory shared with other threads, or has a separate strategy."""
        names = (*step.reads, step.formula.output)
        wrong = next((name for name in names if not self._is_private(name)), None)
        if wrong is not None:
            raise DecompositionError(
                f"skip_steps: step {step.name} accesses {wrong}, which threads share", got=shown(step.formula),
                legal="steps on registers", within=self.spec, at=self.draft.origin, hint=f"add load({wrong!r}, RF, ...)",
            )  # fmt: skip
        if self.definition.strategy_of(step.name) is not None:
            raise DecompositionError(
                f"skip_steps: step {step.name} has a separate strategy", within=self.spec, at=self.draft.origin,
                legal="steps without a strategy, which use the distribution of their registers",
            )  # fmt: skip

    def _is_private(self, name: str) -> bool:
        memory = RF if name.startswith(EXTENTS) else self.views[name].memory
        return memory.private or memory.is_coordinate or memory.by_value

    # ------------------------------------------------------------------------------------------ one step

    def _step(self, step: Step, traces: bool = True) -> None:
        self.program += [StepMarker(step.name), Comment(str(step))]
        original = step
        if traces:
            self._traces_of_inputs(original)
        step = self._masked(step)
        for values in (*self.out_of_bounds.values(), *self.zero_filled.values()):
            values.perform(original)
        if step.formula.accumulates and self.views[step.formula.output].memory.of_grid:
            self._added(step)
        else:
            self._computed(step)
        if traces:
            self._traces(original)

    # ------------------------------------------------------------------------------------------ printed values

    def _traces_of_inputs(self, step: Step) -> None:
        """Print the elements of inputs that the strategy requests before a step."""
        for traced in self.definition.traced:
            readers = [other.name for other in self.definition.steps if traced.tensor in other.reads]
            if traced.precedes(step.name, readers):
                target = next(element for element in step.formula.elements if element.tensor == traced.tensor)
                tracing.require_input(traced, self.views[traced.tensor], self.spec, self.draft)
                self._trace(traced, step, target, target)

    def _with_prints(self, step: Step, spec: Spec, steps: Chain) -> Chain:
        """Return the strategy of a step, with prints after each iteration of its loop if the strategy of the definition requests them."""
        name, output = step.name, step.formula.output
        requests = [traced for traced in self.definition.traced if traced.iterations and traced.follows(name, output)]
        if not requests or not step.formula.contracts:
            return steps
        dims = [dim for dim in spec.labels if f"{INDICES}{dim}" in self.views]
        coordinates = {dim: self.views[f"{INDICES}{dim}"] for dim in dims}
        extents = {dim: extent_of(view) for dim, view in coordinates.items()}
        of_step = PrintIterations(
            traced=requests[0], step=name, dims=self._dims(step.formula.target), coordinates=coordinates, extents=extents, last=self.last
        )  # fmt: skip
        prints = [evolve(of_step, traced=traced) for traced in requests]
        return in_loop(steps, prints, spec)

    def _traces(self, step: Step) -> None:
        """Print the elements that the strategy requests after a step: of its result, or those that a block adds to an output."""
        target, view = step.formula.target, self.views[step.formula.output]
        for traced in self.definition.traced:
            if traced.iterations or not traced.follows(step.name, step.formula.output):
                continue
            added = self.added.get(step.name)
            if added is not None:
                self._trace(traced, step, target, added, REDUCTIONS[step.formula.combiner])
                continue
            tracing.require_formula(traced, step, view, self.spec, self.draft)
            value = target if tracing.is_readable(view) else step.formula.value
            assert value is not None
            self._trace(traced, step, target, value)

    def _trace(self, traced: Traced, step: Step, target: Element, value: Value, sign: str = "=") -> None:
        """Add a spec that selects and prints elements of a tensor; the threads that own the elements perform it."""
        single = [dim for dim in target.dims if dim in self.definition.batch]
        target = Element(target.tensor, tuple(map(Index, self._dims(target))))
        value = target if isinstance(value, Element) and value.tensor == target.tensor else value
        view = self.views[value.tensor if isinstance(value, Element) and not value.tensor.startswith(EXTENTS) else target.tensor]
        around = [dim for dim in (*single, *self.definition.loops) if dim not in target.dims]
        self.views |= tracing.first_coordinates(self.views, self.definition.order)
        formula = tracing.traced_formula(
            traced, target, value, first=[dim for dim in around if f"{FIRST}{dim}" in self.views],
            past_end=[dim for dim in target.dims if self._may_overhang(dim)], known=self.views, spec=self.spec,
        )  # fmt: skip
        types = (*self.definition.types, (formula.output, view.dtype))
        typed_spec = evolve(self.spec, kind=self.spec.kind.of(types=types))  # type: ignore[attr-defined]
        self.views |= allocated(typed_spec, {formula.output: formula.target.dims}, self.draft)
        spec, _ = self._elementwise_spec(f"{step.name}{SUFFIX}", formula)
        name = self.draft.fresh(f"{step.name}{SUFFIX}")
        printing = evolve(self.last, executable=PrintValue(tensor=traced.tensor, step=step.name, sign=sign))  # type: ignore[call-arg]
        self.program += [Comment(tracing.text(traced, target)), Hole(name)]
        active = self._first_unit(step) if sign == "=" else self._first_unit(step, step.formula.over)
        self.children.append(Child(name, spec, (*tracing.distributed(spec), printing), active, prefix=_prefix(name), alone=()))

    # ------------------------------------------------------------------------------------------ kinds of steps

    def _computed(self, step: Step) -> None:
        """Expand a step that stores its result."""
        formula = step.formula
        if formula.contracts:
            self._product(step)
        elif formula.reduces:
            self._reduction(step)
        elif formula.scan is not None:
            self._scan(step)
        elif formula.reduction is not None:
            raise DecompositionError(
                f"step {step.name}: {formula.reduction} cannot be applied to an expression",
                got=shown(formula),
                legal=f"{formula.reduction} of one tensor, sum of a product of two",
                hint="compute the terms in an earlier step",
            )
        elif isinstance(formula.value, Number) and not formula.accumulates:
            view = self._view(formula.target)
            value = _nearest(formula.value.value, view.dtype)
            self._child(step.name, Init.on(self.spec.level, view, value=value, names=self._dims(formula.target)), step)
        elif (
            isinstance(formula.value, Element)
            and not formula.accumulates
            and set(self._dims(formula.value)) == set(self._dims(formula.target))
        ):
            source = self._view(formula.value, self._dims(formula.target))
            self._child(step.name, Move.on(self.spec.level, source, self._view(formula.target), names=self._dims(formula.target)), step)
        else:
            self._pointwise(step.name, formula, step)

    def _replace_by_floats(self, step: Step | None) -> bool:
        """Whether a step converts the integers of a matmul to floats: later steps use a new tensor."""
        if step is None or self.views[step.formula.output].dtype.kind == "float":
            return False
        name, types = step.formula.output, {tensor: view.dtype for tensor, view in self.views.items()}
        if not self.definition.replaces(step, types):
            return False
        dtype = self.definition.storage_type(step, types, types[name])
        if self.needed is not None:
            raise DecompositionError(
                f"skip_steps: step {step.name} converts {name} from {types[name]} to {dtype}", got=shown(step.formula), within=self.spec,
                at=self.draft.origin, hint="use a separate temporary for its result",
            )  # fmt: skip
        self.views[name] = self._retyped(name, dtype)
        return True

    def _retyped(self, name: str, dtype: DType) -> View:
        """Return a tensor like a temporary, with elements of another type."""
        view = self.views[name]
        copies, copy = copies_of(view.memory, self.spec, self.draft)
        tensor = evolve(
            view.tensor, name=self.draft.fresh(f"{name}_{dtype}"), shape=view.shape, dtype=dtype, copies=copies, owner="reads",
            origin=self.draft.origin,
        )  # fmt: skip
        return whole_view(tensor, copy)

    def _product(self, step: Step) -> None:
        formula = step.formula
        spec = self._matmul(formula) if formula.sparse is None else self._sparse_matmul(step, formula.sparse)
        cleared = Init.on(self.spec.level, self._view(formula.target), names=self._dims(formula.target))
        if self.outer is not None:
            self._outer("init", cleared, self.outer[0])
            self.program.append(Hole("body"))
            self.children.append(Child("body", spec))
            self._sum_parts(formula)
            self._fragments_to_shared(formula.output)
            return
        if not formula.accumulates:
            self._child(f"{step.name}_init", cleared, None)
        if self.definition.strategy_of(step.name) is None:  # an open leaf: no other statement determines the distribution of a MatMul
            self.program.append(Hole(step.name))
            self.children.append(Child(step.name, spec, (), self._first_unit(step), prefix=_prefix(step.name)))
            return
        self._child(step.name, spec, step)
        self._sum_parts(formula)

    def _matmul(self, formula: Formula) -> Spec:
        """Return the product of two tensors."""
        elements = (*formula.factors, formula.target)
        dims = [self._dims(element) for element in elements]
        order = tuple(dict.fromkeys((*dims[2], *(dim for dim in formula.over))))
        letters = _letters(order)
        signature = [("".join(letters[dim] for dim in part)) for part in dims]
        equation = f"{signature[0]},{signature[1]}->{signature[2]}"
        options = {} if equation == "mk,kn->mn" else {"signature": equation}
        return MatMul.on(self.spec.level, *map(self._view, elements), names=order, accumulate=TRUE, **options)

    def _sparse_matmul(self, step: Step, sparse: Operation) -> Spec:
        """Return the product of a 2:4 sparse matrix and a tensor. The sparse matrix is A, so the result may be transposed."""
        formula, (values, metadata) = step.formula, elements_of(sparse)
        other = next(element for element in formula.factors if element != values)
        (k,), own = formula.over, [dim for dim in self._dims(values) if dim not in formula.over]
        rest = [dim for dim in self._dims(other) if dim not in formula.over]
        if len(own) != 1 or len(rest) != 1 or sorted(self._dims(formula.target)) != sorted((*own, *rest)):
            raise DecompositionError(
                f"step {step.name}: the product of a 2:4 sparse matrix and a matrix has two dimensions", got=shown(formula),
                legal=f"C[m,n] = sum(k, {DECOMPRESSED}(A[m,k // 2], E[m,k // 8]) * B[k,n]), and dimensions of batch and scan",
                within=self.spec, at=self.draft.origin, hint="batch=... in the definition for a dimension of several products",
            )  # fmt: skip
        (m,), (n,) = own, rest
        orders = ((values, (m, k)), (metadata, (m, k)), (other, (k, n)), (formula.target, (m, n)))
        return SparseMatMul.on(self.spec.level, *(self._view(*pair) for pair in orders), names=(m, n, k), accumulate=TRUE)

    def _sum_parts(self, formula: Formula) -> None:
        """After a matmul of which each block computes a part, let the last block of a tile continue with the sum of all parts."""
        if is_streamed(self.draft):
            streamed = streamed_sum(self._view(formula.target), self.spec, formula.output, self.draft)
            self.children += streamed.children
            self.streamed = streamed, len(self.program)
            return
        if self.definition.around or not is_summed_by_last_block(self.draft):  # the parts of a loop are summed after it
            return
        places = [self._place(dim) for dim in self._dims(formula.target)]
        children, program = summed_by_last_block(self._view(formula.target), places, self.spec, formula.output, self.draft)
        self.children += children
        self.program += program

    def _place(self, dim: str) -> tuple[Dim, Expr]:
        """Return the part of a dimension that this tile covers, and the extent of the dimension."""
        name = f"{INDICES}{dim}"
        if name not in self.views:
            name = next(operand for operand, dims in self.definition.uses.items() if dim in dims)
        view, number = self.views[name], 0 if name.startswith(INDICES) else self.definition.uses[name].index(dim)
        return view.dims[number], view.extent(number)

    def _fragments_to_shared(self, name: str) -> None:
        """Copy an accumulator in fragments to shared memory, because it is unspecified which elements a lane owns.

        The store's strategy decomposes the copy; if the store uses shared memory, its first part does.
        """
        view = self.views[name]
        if view.memory.fragment is None or self.outer is None:
            return
        through = self.through or StagedStore(self.outer[1])
        copies, copy = copies_of(SH, self.spec, self.draft)
        tensor = Tensor(
            self.draft.fresh(f"{name}_sh"), view.shape, view.dtype, SH, RowMajor, copies=copies, origin=self.draft.origin,
            pad=through.pad, reuse=through.reuse,
        )  # fmt: skip
        self.views[name] = whole_view(tensor, copy)
        self.outer = (self.outer[0], through.after)
        move = without_ones(Move.on(self.spec.level, view, self.views[name]))
        self.program += [Comment(f"{name} to {tensor.name}: {move}"), Hole("shared")]
        self.children.append(Child("shared", move, steps_at(through.steps, move), prefix=_prefix(name)))

    def _reduction(self, step: Step) -> None:
        formula = step.formula
        (source,) = elements_of(formula.value)
        dims = tuple(dict.fromkeys((*self._dims(formula.target), *formula.over)))
        letters = _letters(dims)
        read, written = ("".join(letters[dim] for dim in self._dims(element)) for element in (source, formula.target))
        target = self._view(formula.target)
        part = self._part_of_sum(step, target)
        spec = Reduction.on(
            self.spec.level, self._view(source), part or target, by=formula.combiner, signature=f"{read}->{written}", names=dims,
            accumulate=TRUE if formula.accumulates else FALSE, in_parts=bool(step.parts),
        )  # fmt: skip
        self._child(step.name, spec, step)
        if part is not None:
            self.views[part.tensor.name] = part
            self.added[step.name] = Element(part.tensor.name, formula.target.index)
            self._add(step, part, f"{step.name}_added", None)

    def _scan(self, step: Step) -> None:
        """Expand a scan: its dimension is the last one of the spec."""
        formula = step.formula
        if not formula.scans:
            raise DecompositionError(
                f"step {step.name}: {formula.scan} cannot be applied to an expression", got=shown(formula), within=self.spec,
                legal=f"{formula.scan} of tensors", hint="compute the terms in an earlier step",
            )  # fmt: skip
        dims = (*(dim for dim in self._dims(formula.target) if dim not in formula.along), *formula.along)
        views = [self._view(element, dims) for element in (*elements_of(formula.value), formula.target)]
        if formula.recurs:
            self._require_float(step, views)
            spec = LinearRecurrence.on(self.spec.level, *views, names=dims)
        else:
            self._require_scan_types(step, *(view.dtype for view in views))
            spec = Scan.on(self.spec.level, *views, by=formula.scan, names=dims)
        words, allocations = words_of_tiles(step, dims, views[-2].dtype, self)
        self.children += allocations
        self.program += [Hole(child.name) for child in allocations]
        self._child(step.name, spec, step)
        self.children[-1] = evolve(self.children[-1], words=words)

    def _require_float(self, step: Step, views: Sequence[View]) -> None:
        """Refuse a linear recurrence of integers."""
        if any(view.dtype.kind != "float" for view in views):
            raise DecompositionError(
                f"step {step.name}: a linear recurrence of integers", got=", ".join(str(view.dtype) for view in views),
                legal="floats of at least 16 bits", within=self.spec, at=self.draft.origin, hint="convert in an earlier step: x * 1.0",
            )  # fmt: skip

    def _require_scan_types(self, step: Step, source: DType, result: DType) -> None:
        """Refuse a scan of integers to floats or of floats to integers, whose partial results would differ, and one of int64."""
        name, read = step.formula.output, step.formula.elements[0].tensor
        if source.kind != result.kind:
            raise DecompositionError(
                f"step {step.name}: a scan of {source} with a result in {result}", got=shown(step.formula), within=self.spec,
                legal="integers scanned to integers, floats to floats", at=self.draft.origin,
                hint=f"types={{{name!r}: {'int32' if source.kind == 'int' else 'float32'}}}, and a later step that converts {name}",
            )  # fmt: skip
        if source.kind == "int" and 64 in (source.bits, result.bits):
            raise DecompositionError(
                f"step {step.name}: a scan of int64", got=shown(step.formula), legal="int32, int8, uint8, and floats", within=self.spec,
                at=self.draft.origin, hint=f"int32({read}[...]) in an earlier step",
            )  # fmt: skip

    def _added(self, step: Step) -> None:
        """Expand a step that adds to an output: compute its values in registers if they are not in a tensor, then add them atomically."""
        formula, target = step.formula, self._view(step.formula.target)
        self._require_atomic(step, target)
        self._require_integers(step, target)
        value = formula.value
        if formula.reduction is None and isinstance(value, Element) and set(self._dims(value)) == set(self._dims(formula.target)):
            self.added[step.name] = value
            self._add(step, self._view(value, self._dims(formula.target)), step.name, step)
            return
        part = Element(self.draft.fresh(f"{formula.output}_part"), formula.target.index)
        self.views[part.tensor] = self._register_tensor(part.tensor, target, float32 if target.dtype in ROUNDED_TYPES else target.dtype)
        self._computed(evolve(step, formula=evolve(formula, target=part, sign="=")))
        self.added[step.name] = part
        self._add(step, self.views[part.tensor], f"{step.name}_added", None)

    def _add(self, step: Step, source: View, name: str, own: Step | None) -> None:
        """Add the values of a tensor to an output, once for each part of a sum and each element of a batch; the launcher zeroes it."""
        formula, target = step.formula, self._view(step.formula.target)
        start = neutral(formula.combiner, target.dtype)
        self.zeroed = self.zeroed.joined(Zeroed((target.tensor.name,), ((target.tensor.name, start),) if start else ()))
        kind = {"sum": AtomicAdd, "max": AtomicMax, "min": AtomicMin}[formula.combiner]
        added = kind.on(self.spec.level, source, target, names=self._dims(formula.target))
        share = self._share(step) if is_ordered(self.draft) else None
        if share is not None:
            self.program.append(share.barrier(SemaphoreAction.WAIT, "blocks add in a fixed order"))
        self._child(name, added, own, self._first_unit(step, formula.over))
        if share is not None:
            self.program.append(share.barrier(SemaphoreAction.COUNT, "the next block may add"))

    def _share(self, step: Step) -> Share:
        """Return the blocks that add to the same tile of an output, and the position of this block among them."""
        output, kept = step.formula.output, step.formula.target.dims
        self._require_one_addition(step)
        others = [dim for dim in self.definition.dims if dim not in kept]
        digits = [digit for dim in others for digit in self._digits(dim) if constant(digit.size) != 1]
        looped = next((dim for dim in others if any(not digit.unit for digit in self._digits(dim) if constant(digit.size) != 1)), None)
        if looped is not None:
            raise self._not_ordered(
                step, f"a block adds once in each iteration over {looped}", "add in a temporary in the loop, and to the output after it"
            )
        of_tile = [digit for dim in kept for digit in self._digits(dim) if constant(digit.size) != 1]
        index, count = _mixed_radix([(digit.index, digit.size) for digit in of_tile])
        rank = {var: number for number, var in enumerate(self.draft.whole.definitions)}  # the fastest digit of a block is named first
        by_rank = sorted(digits, key=lambda digit: min((rank.get(var, 0) for var in digit.index.variables()), default=0))
        position, blocks = _mixed_radix([(digit.index, digit.size) for digit in by_rank])
        return Share(output, index, count, blocks, position)

    def _digits(self, dim: str) -> tuple[Fixed, ...]:
        """Return the digits of a dimension that the tile of a block, and the iterations of loops, fix."""
        return self._place(dim)[0].fixed

    def _require_one_addition(self, step: Step) -> None:
        """Refuse additions whose order a semaphore per tile of blocks does not fix."""
        if self.spec.level != Block:
            raise self._not_ordered(step, f"a {self.spec.level} adds its part", "use the strategies of steps, after tile(...).to(Block)")
        if any(operand.operand == step.formula.output for operand in self.definition.scattered):
            raise self._not_ordered(step, "its indices select elements of several tiles", "store to an output with plain indices")
        others = [other for other in self.definition.steps if other.name != step.name and other.formula.output == step.formula.output]
        if others:
            raise self._not_ordered(step, f"step {others[0].name} adds to {step.formula.output}, too", "add both values in one step")

    def _not_ordered(self, step: Step, why: str, hint: str) -> DecompositionError:
        return DecompositionError(
            f"ordered: step {step.name} adds in no fixed order, since {why}", got=shown(step.formula),
            legal="each block adds once to each element", within=self.spec, at=self.draft.origin, hint=hint,
        )  # fmt: skip

    def _part_of_sum(self, step: Step, target: View) -> View | None:
        """Return a tensor for a unit's part of a sum, which is then added to memory atomically; None for a complete sum."""
        formula = step.formula
        coordinates = [self.views[f"{INDICES}{dim}"] for dim in formula.over]
        complete = all(view.shape == view.tensor.shape and _is_first(view) for view in coordinates)
        if not target.memory.of_grid or complete or (target.dtype not in TYPES and all(map(_is_whole, coordinates))):
            return None
        if formula.combiner != "sum":
            self._require_all(step, coordinates)
            return None
        self._require_atomic(step, target)
        self._require_integers(step, target)
        return self._register_tensor(self.draft.fresh(f"{formula.output}_part"), target)

    def _require_atomic(self, step: Step, target: View) -> None:
        """Refuse a type without atomic additions, and one in which each addition rounds, unless the formula itself adds."""
        formula = step.formula
        if formula.combiner != "sum":
            self._require_extreme(step, target)
        elif target.dtype not in (ADDED_TYPES if formula.accumulates else TYPES):
            rounds, types = target.dtype in ROUNDED_TYPES, ADDED_TYPES if formula.accumulates else TYPES
            why = f"in {target.dtype} each addition would round" if rounds else f"{target.dtype} has no atomic addition"
            raise DecompositionError(
                f"step {step.name}: each block adds its part of {formula.output}, but {why}",
                got=shown(formula), legal=[str(dtype) for dtype in types], within=self.spec, at=self.draft.origin,
                hint=f'types={{"{formula.output}": float32}} in the call of the definition (in a file: in spec)',
            )  # fmt: skip

    def _require_extreme(self, step: Step, target: View) -> None:
        """Refuse a type without an atomic maximum and minimum."""
        formula = step.formula
        if target.dtype not in EXTREME_TYPES:
            raise DecompositionError(
                f"step {step.name}: blocks combine {formula.output}, but {target.dtype} has no atomic {formula.combiner}imum",
                got=shown(formula), legal=[str(dtype) for dtype in EXTREME_TYPES], within=self.spec, at=self.draft.origin,
                hint=f'types={{"{formula.output}": float32}}',
            )  # fmt: skip

    def _require_integers(self, step: Step, target: View) -> None:
        """Refuse to add floats to integers: the sum would depend on which terms are added together before they are truncated."""
        formula = step.formula
        types = {element.tensor: self._view(element).dtype for element in formula.elements}
        if target.dtype.kind == "int" and computing(formula, types).kind == "float":
            source = next((name for name, dtype in types.items() if dtype.kind == "float"), None)
            raise DecompositionError(
                f"step {step.name}: {formula.output} is {target.dtype}, and each addition would truncate a float", got=shown(formula),
                legal="integers added to integers", within=self.spec, at=self.draft.origin,
                hint=f"types={{{source or formula.output!r}: {'int32' if source else 'float32'}}}",
            )  # fmt: skip

    def _register_tensor(self, name: str, target: View, dtype: DType | None = None) -> View:
        """Return a tensor in registers with the shape and, by default, the type of an output, for a part of its sum."""
        copies, copy = copies_of(RF, self.spec, self.draft)
        tensor = Tensor(
            name, target.shape, dtype or target.dtype, RF, ColMajor, copies=copies, owner="accumulates", origin=self.draft.origin
        )
        return whole_view(tensor, copy)

    def _require_all(self, step: Step, coordinates: Sequence[View]) -> None:
        """Refuse a maximum, minimum or product if a tile computes only a part of it: only sums are combined in memory."""
        formula = step.formula
        part = next((dim for dim, view in zip(formula.over, coordinates, strict=True) if not _is_whole(view)), None)
        if part is not None:
            separate = f"{formula.reduction}({part}, ...) in a separate kernel"
            other = f"{formula.target} {REDUCTIONS[formula.combiner]} ..." if formula.combiner in COMBINED else separate
            size, extent = (str(shape[0]) for shape in (self.views[f"{INDICES}{part}"].shape, self.views[f"{INDICES}{part}"].tensor.shape))
            raise DecompositionError(
                f"step {step.name}: each tile computes a part of {formula.output}, but = combines only sums in memory",
                got=f"{shown(formula)}, {size} of {extent} along {part}", legal=f"a tile with all of {part}", within=self.spec,
                at=self.draft.origin, hint=f"use a tile of {extent} along {part}; or {other}",
            )  # fmt: skip

    def _pointwise(self, name: str, formula: Formula, step: Step | None) -> None:
        """Expand an elementwise step; a tensor that is read and written has two names, `x` and `x_before`.

        If a mask keeps elements in place, only units whose tile has elements for which the condition may fail execute it.
        """
        if formula.accumulates:
            raise DecompositionError(
                f"step {name}: {formula.sign} cannot add the value of an expression",
                got=shown(formula),
                hint=f"{formula.target} = {formula.target} + ...",
            )
        spec, is_retyped = self._elementwise_spec(name, formula, step)
        condition = None if is_retyped else in_place(formula)
        needed = TRUE if condition is None else may_fail(condition, self.views, self._numbers(condition))
        if needed != FALSE:
            self._child(name, spec, step, needed)

    def _elementwise_spec(self, name: str, formula: Formula, step: Step | None = None) -> tuple[Spec, bool]:
        """Return the spec of an elementwise formula, and whether floats replace the integers of its result from now on."""
        names = {
            element: f"{element.tensor}_before" if element.tensor == formula.output else element.tensor for element in formula.elements
        }
        kept = {element: Element(label, tuple(map(Index, self._dims(element)))) for element, label in names.items()}
        target = Element(formula.output, tuple(map(Index, self._dims(formula.target))))
        renamed = evolve(formula, target=target, value=_renamed(formula.value, kept))
        kind = Kind(name.capitalize() if name.isidentifier() else "Work", str(renamed))
        views = {kept[element].tensor: self._view(element) for element in formula.elements}
        is_retyped = self._replace_by_floats(step)
        views[formula.output] = self._view(formula.target)
        return kind.starter.on(self.spec.level, *(views[operand] for operand in kind.definition(()).uses)), is_retyped

    def _numbers(self, condition: Value) -> Mapping[str, Expr]:
        """Return the integers with which a condition compares coordinates; a tile reads one of each."""
        coordinates = [element for element in elements_of(condition) if element.tensor.startswith(INDICES)]
        if not coordinates or not self.definition.over:
            return {}
        most = max((self.views[element.tensor].tensor.shape[0] for element in coordinates), key=lambda size: size.high)
        return numbers_of(self.definition, self.views, most)

    def _masked(self, step: Step) -> Step:
        """Return the step with the terms past the end of a reduced dimension replaced by neutral values.

        A copy of an operand has zeros past the end. If zeros change the result, the step reads separate terms. Values that an earlier step
        wrote past the end, such as an exponential of -inf, may already be neutral.
        """
        for dim in step.formula.over:
            if dim in self.out_of_bounds:
                for element in step.formula.elements:
                    if dim in element.dims:
                        step = self._masked_along(dim, element, step)
        return step

    def _may_overhang(self, dim: str) -> bool:
        """Whether the tile may extend past the end of a dimension."""
        coordinate = self.views.get(f"{INDICES}{dim}")
        return coordinate is not None and coordinate.bounded

    def _with_zeros(self, dim: str) -> OutOfBoundsValues:
        """Return the values past the end of a dimension, where copies of operands are zero."""
        values = OutOfBoundsValues(self.definition, dim)
        for element in self.definition.elements:
            memory, name = self.views[element.tensor].memory, element.tensor
            copied = name not in self.definition.hidden and self.definition.array_of(name) is None  # an affine one may be another value
            if dim in element.dims and copied and not (memory.of_grid or memory.is_coordinate):
                values.assume(element, Number(0))
        return values

    def _adds_nothing(self, dim: str, element: Element, formula: Formula) -> bool:
        """Whether terms of a sum are zero past the end: a temporary is zero, or is finite there and multiplied by zeros of its part."""
        values = self.zero_filled[dim]
        if values.is_number(element, 0):
            return True
        others = [other for other in formula.elements if other != element and dim in other.dims]
        placed = element.tensor in self.definition.uses and values.is_finite(element)
        return formula.contracts and placed and any(values.is_number(other, 0) for other in others)

    def _is_carried(self, name: str) -> bool:
        """Whether a temporary is in registers that another part of the definition allocates."""
        return name in self.definition.hidden and self.definition.memory_of(name) is None and self.views[name].memory.private

    def _masked_along(self, dim: str, element: Element, step: Step) -> Step:
        """Return the step with a neutral element past the end of a dimension."""
        formula, view = step.formula, self.views[element.tensor]
        neutral_value = neutral((formula.reduction if formula.reduces else None) or "sum", view.dtype)
        if self.out_of_bounds[dim].is_number(element, neutral_value):
            return step
        target = element
        if element.tensor in self.definition.hidden:
            placed = element.tensor in self.definition.uses  # in registers or shared memory that a loop or `set_memory` allocates
            if placed and not neutral_value and self._adds_nothing(dim, element, formula):
                return step
        elif element.tensor in self.definition.uses and (not neutral_value or view.memory.of_grid):
            return step
        if element.tensor in self.definition.uses and neutral_value and not self._is_carried(element.tensor):
            target = Element(f"{step.name}_terms", element.index)
            whole = ((target.tensor, view.dtype),) if view.dtype.kind == "int" else ()  # a float has fewer digits than an integer
            typed_spec = evolve(self.spec, kind=self.spec.kind.of(types=(*self.definition.types, *whole)))  # type: ignore[attr-defined]
            self.views |= allocated(typed_spec, {target.tensor: element.dims}, self.draft)
        inside = Operation("<", (Element(f"{INDICES}{dim}", (Index(dim),)), Element(f"{EXTENTS}{dim}", ())))
        value = Operation("where", (inside, element, Number(neutral_value)))
        self._pointwise(self._unused_name(f"{step.name}_inside", dim), Formula(target, "=", value), None)
        for values in (self.out_of_bounds[dim], self.zero_filled[dim]):
            values.assume(target, Number(neutral_value))
        renamed = {other: target if other == element else other for other in formula.elements}
        return evolve(step, formula=evolve(formula, value=_renamed(formula.value, renamed)))

    def _unused_name(self, name: str, dim: str) -> str:
        """Return the name of a child, with the dimension if another child has it: the tile may extend past the end of several."""
        return f"{name}_{dim}" if any(child.name == name for child in self.children) else name

    # ------------------------------------------------------------------------------------------ parts

    def _dims(self, element: Element) -> tuple[str, ...]:
        """Return the dimensions of an element, without those along which all steps process one element."""
        return tuple(dim for dim in element.dims if dim not in (*self.definition.batch, *self.definition.scan))

    def _view(self, element: Element, order: tuple[str, ...] = ()) -> View:
        """Return the view of an element's tensor for a step, with its dimensions in the given order."""
        if element.tensor.startswith(EXTENTS):
            return extent_of(self.views[f"{INDICES}{element.tensor[len(EXTENTS) :]}"])
        view = self.views[element.tensor]
        dims = self._dims(element)
        if view.memory.is_coordinate:
            return view if dims else view.only(())
        return view.only([dims.index(dim) for dim in order if dim in dims]) if order else view

    def _child(self, name: str, spec: Spec, step: Step | None, needed: Expr = TRUE) -> None:
        """Add a child with the strategy of its step, if there is one; it executes only if `needed` holds."""
        chosen = None if step is None else self.definition.strategy_of(step.name)
        active = needed
        is_outer = self.outer is not None and spec.moves and not spec.dst.memory.private
        if step is not None and spec.operands[spec.outputs[0]].tensor == self.views[step.formula.output].tensor:
            # each unit computes a part of a sum in a separate tensor
            spec, in_charge = self._shared_work(step, spec, divides=chosen is None and not is_outer)
            active = all_of((needed, in_charge))
        if self.outer is not None and is_outer:
            self._outer(name, spec, self.outer[1], active)
            return
        self.program.append(Hole(name))
        if chosen is not None:
            self.own.add(name)
            steps = steps_at(chosen, spec) if step is None else self._with_prints(step, spec, steps_at(chosen, spec))
            self.children.append(Child(name, spec, steps, active, prefix=_prefix(name)))
            return
        if self.needed is not None:
            self.children.append(Child(name, spec, (self.last,), active, prefix=_prefix(name), needed=self.needed))
            return
        private = any(view.memory.private for view in spec.operands.values())
        to_shared = self._is_placed(spec) and from_memory_to_shared(spec)
        steps = steps_to_shared(spec) if to_shared else (self.last,) if in_pairs_from_memory(spec) else steps_at(default_copy(), spec)
        alone = steps if private and not spec.scans else ()
        self.children.append(Child(name, spec, (self.last,) if private else steps, active, prefix=_prefix(name), alone=alone))

    def _is_placed(self, spec: Spec) -> bool:
        """Return whether a spec writes a temporary whose memory the strategy sets."""
        tensor = spec.operands[spec.outputs[0]].tensor
        placed = (placement.tensor for placement in self.definition.placed if placement.tensor in self.views)
        return any(self.views[name].tensor == tensor for name in placed)

    def _outer(self, name: str, spec: Spec, steps: Chain, active: Expr = TRUE) -> None:
        """Add the init of an accumulator, or a copy to memory; without a strategy it uses the distribution of its registers."""
        follows = steps == default_copy()
        self._require_owner(spec, steps)
        spec = without_ones(spec)
        self.program.append(Hole(name))
        self.children.append(Child(name, spec, steps[-1:] if follows else steps_at(steps, spec), active, prefix=_prefix(name)))

    def _require_owner(self, spec: Spec, steps: Chain) -> None:
        """Refuse a store by a micro-kernel from registers that no MatMul fills: no other statement determines who owns an element."""
        product = self.definition.product
        texts = [step for step in steps if isinstance(getattr(step, "executable", None), MicroKernel)]
        if not texts or product is None or not spec.moves or not spec.src.memory.private:
            return
        if spec.src.tensor != self.views[product.formula.output].tensor:
            raise DecompositionError(
                f"{spec.src.tensor.name}: a micro-kernel can store only the registers of the accumulator",
                got=str(spec), legal=f"stores of {product.formula.output}", within=self.spec, at=self.draft.origin,
                hint=f"assign {product.formula.output} = ... in the epilogue, and store it; or store without a micro-kernel",
            )  # fmt: skip

    def _first_unit(self, step: Step, partial_dims: tuple[str, ...] = ()) -> Expr:
        """Return the condition under which a unit writes a result to memory, or computes a sum that is only stored.

        Among the units with the same elements, this is the first one. Units that differ along one of `partial_dims` have different parts of
        a sum. Shared memory is separate for each block, and may have a copy for each unit of a level. Then the first unit among those that
        share a copy writes it.
        """
        return first_of(self._equal_units(step, partial_dims))

    def _shared_work(self, step: Step, spec: Spec, divides: bool) -> tuple[Spec, Expr]:
        """Return the part of a step that a unit computes, and the condition under which it has one.

        Units with the same elements in shared memory compute a part each if `divides` and their elements can be divided. Otherwise, the
        first unit computes all.
        """
        units = self._equal_units(step)
        share = share_of_unit(spec, units, self.draft) if divides and units and can_be_shared(spec) else None
        if share is None:
            if self.views[step.formula.output].memory.of_block:
                self.program += by_first_unit(units, step.formula.output)
            return spec, first_of(units)
        self.program.append(Comment(f"each of {share.parts} units computes a part of {step.formula.output}"))
        return share.spec, share.active

    def _equal_units(self, step: Step, partial_dims: tuple[str, ...] = ()) -> list[Fixed]:
        """Return the digits in which units differ that would write the same elements, or would compute a sum that is only stored."""
        view = self.views[step.formula.output]
        memory = view.memory
        if memory.private and not (step.formula.reduces and step.formula.output in self.definition.stored):
            return []
        if step.formula.accumulates and memory.of_grid:  # each part of a sum, and each element of a batch, is added
            sources = [source for source in summands_of(step, self.definition.steps) if source.formula.output in self.definition.hidden]
            summed = [dim for source in sources for dim in source.formula.over]
            partial_dims = (*partial_dims, *step.formula.over, *summed, *self.definition.batch)
        others = [dim for dim in self.definition.tile_dims if dim not in (*step.formula.target.dims, *partial_dims)]
        digits = [digit for dim in others for digit in self.views[f"{INDICES}{dim}"].dims[0].fixed if digit.unit]
        return [digit for digit in digits if not memory.of_block or self._differs_within_copy(digit, view.copy)]

    def _differs_within_copy(self, digit: Fixed, copy: Expr) -> bool:
        """Whether a digit differs between threads that share a copy of a tensor: those of a block, or of one of its units."""
        index, copy = (expand_definitions(value, self.draft) for value in (digit.index, copy))
        thread = self.draft.thread
        if thread not in index.variables() or copy == ZERO:
            return thread in index.variables()
        threads = range(self.draft.workers or 1)
        return any(not _is_function(index, copy, thread, threads, value) for value in OTHER_VARIABLES)


def _is_function(value: Expr, of: Expr, thread: Var, threads: Iterable[int], others: int) -> bool:
    """Whether threads with the same value of `of` have the same `value`; all variables except the thread index have the value `others`."""
    values: dict[int, int] = {}
    environment = {var.name: others for var in value.variables() | of.variables()}
    pairs = ((of.evaluate(here), value.evaluate(here)) for here in ({**environment, thread.name: number} for number in threads))
    return all(values.setdefault(key, result) == result for key, result in pairs)


def _prefix(name: str) -> str:
    """Return the prefix of the names of a step's variables: in lowercase, like the pointer names of the printer."""
    return f"{name.lower()}_"


def _letters(dims: tuple[str, ...]) -> dict[str, str]:
    """Return a letter for each dimension: its name if that is a letter."""
    if all(len(dim) == 1 and dim.islower() for dim in dims):
        return dict(zip(dims, dims, strict=True))
    return dict(zip(dims, LETTERS, strict=False))


def _nearest(value: int | float, dtype: DType) -> int | float:
    """Round a number of a formula to the nearest float of a type; for an integer type return the integer that is stored."""
    return dtype.to_numpy().type(value).item() if dtype.kind == "float" else stored(Number(value), dtype)


def _is_whole(coordinate: View) -> bool:
    """Whether a tile covers all of a dimension, given its coordinates."""
    size, extent = coordinate.shape[0], coordinate.tensor.shape[0]
    return _is_first(coordinate) and (size == extent or (constant(size) or 0) >= (constant(extent) or LARGEST))


def _is_first(coordinate: View) -> bool:
    """Whether all tiles start at the first element of the dimension; otherwise a later tile would overwrite the complete sum."""
    return coordinate.dims[0].base.high == 0


def _mixed_radix(digits: Iterable[tuple[Expr, Expr]]) -> tuple[Expr, Expr]:
    """Return the number with these digits, each with the number of its values, the fastest first; and how many numbers there are."""
    number: Expr = ZERO
    count: Expr = ONE
    for digit, size in digits:
        number, count = number + digit * count, count * size
    return number, count


def extent_of(coordinate: View) -> View:
    """Return a view without dimensions whose value is the extent of a dimension, given the view of its coordinates."""
    (size,) = coordinate.tensor.shape
    return View(coordinate.tensor, (Dim((), None, (Fixed(size + 1, 1, False, size),)),), coordinate.copy, ())


def _renamed(value: Value | None, names: Mapping[Element, Element]) -> Value | None:
    if isinstance(value, Element):
        return names[value]
    if isinstance(value, Operation):
        return Operation(value.name, tuple(_renamed(argument, names) for argument in value.arguments))  # type: ignore[misc]
    return value


def parts_of(spec: Spec, draft: Draft) -> tuple[Spec, dict[str, View]]:
    """Return a spec whose carried temporaries are operands, as a loop requires, and their views."""
    definition = fused(spec)
    assert definition is not None
    fresh = allocated(spec, {name: dims for name, dims in definition.carried.items() if name not in definition.uses}, draft)
    given = (*definition.given, *((name, definition.temporaries[name]) for name in fresh))
    types: dict[str, DType] = {**dict(definition.types), **{name: view.dtype for name, view in fresh.items()}}
    return with_definition(spec, definition.of(given=given, types=tuple(types.items())), fresh), fresh
