"""`epilog`: allocate an accumulator, initialize it, accumulate to it, and store it (Fireiron, section 4.1)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

import attrs

from fireiron.decomp.load import Load, LoadPlan
from fireiron.errors import ArgumentError, DecompositionError, call_site
from fireiron.frozen import frozen
from fireiron.ir import Comment, Commit, Hole, Stmt, filled
from fireiron.language.plain import without_ones
from fireiron.language.substrategy import chain, copies_of, default_copy, require_steps, steps_at, steps_for
from fireiron.language.tree import Child, Context, Decomposition, Expansion, verb
from fireiron.spec import Spec
from fireiron.specs.atomic_add import AtomicAdd
from fireiron.specs.fused import fused
from fireiron.specs.fused_definition import FusedDefinition
from fireiron.specs.init import Init
from fireiron.specs.move import Move
from fireiron.specs.steps import INDICES
from fireiron.stepping.joint_tiles import (
    in_order,
    is_ordered,
    is_streamed,
    is_summed_by_last_block,
    share_of_parts,
    streamed_sum,
    summed_by_last_block,
)
from fireiron.stepping.steps import StagedStore, around_product
from fireiron.values.expr import FALSE, TRUE, constant
from fireiron.values.machine import DTYPES, MEMORIES, RF, SH, Block, DType, Memory, bfloat16, float16, float32
from fireiron.values.tensor import ColMajor, Tensor, whole_view

if TYPE_CHECKING:
    from fireiron.language.strategy import Strategy


def _shared_part(store: tuple[Decomposition, ...]) -> StagedStore | None:
    """Return the first step of a store if it is a load to shared memory; otherwise None."""
    first = store[0]
    if not isinstance(first, Load) or not first.memory.of_block:
        return None
    plan = first.planned(LoadPlan())
    return StagedStore(first.move, store[1:], plan.pad, plan.reuse)


def _given_once(name: str, by_position: Any, by_name: Any) -> Any:
    if by_position is not None and by_name is not None:
        raise ArgumentError(f"epilog: {name} is given twice", legal="epilog(memory, [dtype,] init, store)", at=call_site())
    return by_name if by_position is None else by_position


STAGE = 128
"""Alignment in bytes of the destination of a bulk copy; prefetched epilogue vectors are padded to a multiple of it."""


def _first_vector(spec: Spec) -> str | None:
    """Return the first contiguous vector in global memory that a step after the matmul reads along a dimension of the result, or None."""
    definition = fused(spec)
    if definition is None or definition.product is None or spec.level != Block:
        return None
    return next(_vectors(spec, definition), None)


def _vectors(spec: Spec, definition: FusedDefinition) -> Iterator[str]:
    assert definition.product is not None
    product = definition.product.formula
    others = {*definition.outputs, *(element.tensor for element in product.elements)}
    for name, dims in definition.uses.items():
        view = spec.operands[name]
        wide = [dim for dim in dims if dim not in (*definition.batch, *definition.scan)]
        if name in others or name.startswith(INDICES) or not view.memory.of_grid or len(wide) != 1 or wide[0] not in product.target.dims:
            continue
        step = view.tensor.storage().steps[view.axis(dims.index(wide[0]))]
        if constant(spec.size(wide[0])) is not None and step is not None and constant(step) == 1:
            yield name


def _prefetched(operand: str, spec: Spec, context: Context) -> Expansion:
    """Copy a vector to shared memory before the spec that reads it there, which is the child `body`."""
    view = spec.operands[operand]
    length = max(constant(size) or 0 for size in view.shape)
    copied = Load(operand, SH, default_copy()[-1:], origin=context.origin).copied(spec, context, pad=-length % (STAGE // view.dtype.bytes))
    name = f"{operand}_ahead"
    children = tuple(attrs.evolve(child, name=name) if child.name == "move" else child for child in copied.children)
    program = filled(copied.program, {"move": (Hole(name), Commit()), "body": (Hole("body"),)})
    return attrs.evolve(copied, children=children, program=program)


@frozen
class EpilogPlan:
    """Whether the vectors that the epilogue reads are copied to shared memory before the main loop."""

    prefetch: bool = False


@frozen
class Epilog(Decomposition):
    """An accumulator in `memory` with elements of `dtype` (None: the spec's accumulator type); see the verb `epilog`."""

    verb: ClassVar[str] = "epilog"
    kinds: ClassVar[tuple[str, ...]] = ("MatMul", "Fused")
    memory: Memory = RF
    init: tuple[Decomposition, ...] = attrs.field(factory=default_copy)
    store: tuple[Decomposition, ...] = attrs.field(factory=default_copy)
    dtype: DType | None = None

    def __attrs_post_init__(self) -> None:
        if not isinstance(self.memory, Memory):
            raise ArgumentError("epilog: not a memory", got=self.memory, legal=MEMORIES, at=call_site())
        if self.dtype is not None and not isinstance(self.dtype, DType):
            raise ArgumentError("epilog: not an element type", got=self.dtype, legal=DTYPES, at=call_site())
        require_steps(self.init, "epilog init")
        require_steps(self.store, "epilog store")

    @staticmethod
    def of(memory: Any, positional: tuple[Any, ...], init: Any, store: Any, dtype: Any) -> Epilog:
        """Return the step for the arguments of the verb. Raises: ArgumentError if an argument is given twice."""
        given = list(positional)
        if isinstance(given[0], DType):
            dtype = _given_once("dtype", given.pop(0), dtype)
        if len(given) > 2 and given[2] is not None:
            raise ArgumentError("epilog: too many strategies", legal="epilog(memory, [dtype,] init, store)", at=call_site())
        init, store = _given_once("init", given[0], init), _given_once("store", given[1], store)
        return Epilog(memory, steps_for(init, "epilog init", ("Init", "Move")), steps_for(store, "epilog store", ("Move",)), dtype)

    def label(self) -> str:
        return self._text(chain(self.init), chain(self.store))

    def summary(self) -> str:
        return self._text(chain(self.init, summary=True), chain(self.store, summary=True))

    def _text(self, init: str, store: str) -> str:
        dtype = "" if self.dtype is None else f", {self.dtype}"
        plain = self.init == default_copy() and self.store == default_copy()
        strategies = "" if plain else f", Init{init}, Move{store}"
        return f"epilog({self.memory}{dtype}{strategies})" + "".join(f".{refinement.label()}" for refinement in self.refinements)

    def expand(self, spec: Spec, context: Context) -> Expansion:
        self._check_memory()
        vector = _first_vector(spec) if self.planned(EpilogPlan()).prefetch else None
        if vector is not None:
            outer = _prefetched(vector, spec, context)
            return outer.followed("body", self.expand(outer.child("body").spec, context.after(outer)))
        if fused(spec) is not None:
            return around_product(spec, self.memory, self.dtype, self.init, self.store, context, _shared_part(self.store))
        spec = self._checked(spec)
        target = spec.C
        if any(constant(size) is None for size in target.shape):
            raise DecompositionError("epilog: the accumulator's size is known only at run time", hint=".tile(128, 128).to(Block) first")
        draft = context.draft()
        name = draft.fresh(f"c_{self.memory.label}")
        copies, copy = copies_of(self.memory, spec, draft)
        dtype = self.dtype or spec.accumulator or target.dtype
        tensor = Tensor(name, target.shape, dtype, self.memory, ColMajor, copies=copies, owner="accumulates", origin=context.origin)
        fresh = whole_view(tensor, copy)
        by_last_block = spec.in_parts and is_summed_by_last_block(context)
        loads = spec.accumulate == TRUE and not spec.in_parts
        init: Spec = Move.on(spec.level, target, fresh) if loads else Init.on(spec.level, fresh)
        streams = spec.in_parts and is_streamed(context)
        adds = spec.in_parts and not by_last_block and not streams
        store: Spec = AtomicAdd.on(spec.level, fresh, target) if adds else Move.on(spec.level, fresh, target)
        body = spec.with_operands(C=fresh).with_options(accumulate=TRUE, in_parts=False)
        init, store = without_ones(init), without_ones(store)
        children: tuple[Child, ...] = (
            self._init_or_store("init", init, self.init),
            Child("body", body),
            self._init_or_store("store", store, self.store),
        )
        before, after = Comment(f"{name}: {init}"), Comment(f"{name} to C: {store}")
        stored: tuple[Stmt, ...] = (after, Hole("store"))
        if by_last_block:
            places = [(dim, target.extent(number)) for number, dim in enumerate(target.dims)]
            read = self._init_or_store("read", without_ones(Move.on(spec.level, target, fresh)), self.store)
            added, summed = summed_by_last_block(fresh, places, spec, target.tensor.name, draft, (read,) if spec.accumulate == TRUE else ())
            children, stored = (*children, *added), (*summed, *stored)
        elif streams:
            streamed = streamed_sum(fresh, spec, target.tensor.name, draft)
            children, stored = (*children, *streamed.children), streamed.around(*stored)
        elif adds and is_ordered(context):
            stored = in_order(share_of_parts(target.tensor.name, context), stored)
        return draft.expansion(children, (before, Hole("init"), Hole("body"), *stored))

    def _init_or_store(self, name: str, spec: Spec, steps: tuple[Decomposition, ...]) -> Child:
        """Return the init or the store. Without a strategy, a private accumulator is distributed over threads as the body requires."""
        follows = self.memory.private and steps == default_copy()
        return Child(name, spec, steps[-1:] if follows else steps_at(steps, spec), prefix=f"{name}_")

    def _check_memory(self) -> None:
        if self.memory.of_grid:
            raise DecompositionError("epilog(GL): a kernel cannot allocate global memory", legal="SH RF")

    def _checked(self, spec: Spec) -> Spec:
        if not (spec.definition.is_product_sum and "C" in spec.outputs):
            raise DecompositionError(f"epilog: {spec.title} has no accumulator", legal="MatMul")
        if spec.level.is_launch:
            raise DecompositionError(
                "epilog at the level of the whole kernel: no group of threads owns the accumulator", hint=".tile(...).to(Block) first"
            )
        if spec.C.memory == self.memory:
            raise DecompositionError(
                f"epilog({self.memory}): the accumulator is already in {spec.C.memory}",
                legal="RF" if self.memory == SH else "SH",
                hint="remove one of the two epilog steps",
            )
        if spec.accumulate not in (TRUE, FALSE):
            raise DecompositionError(
                "epilog inside a split that accumulates: it would overwrite partial sums", hint="put epilog before split"
            )
        return spec

    @classmethod
    def choices(cls, spec: Spec, context: Context) -> Iterator[Epilog]:
        for memory in MEMORIES:
            step = Epilog(memory)
            try:
                step._check_memory()
                target = step._checked(spec).C
            except DecompositionError:
                continue
            if all(constant(size) is not None for size in target.shape):
                yield step
                if target.dtype in (float16, bfloat16):
                    yield Epilog(memory, dtype=float32)


@verb()
def epilog(
    memory: Memory,
    first: Strategy | DType | None = None,
    second: Strategy | None = None,
    third: Strategy | None = None,
    *,
    init: Strategy | None = None,
    store: Strategy | None = None,
    dtype: DType | None = None,
) -> Epilog:
    """Allocate an accumulator: `init` initializes it, the rest of the chain accumulates to it, and `store` copies it to C.

    Args: `epilog(memory, init, store)` or `epilog(memory, dtype, init, store)`. The default type of the accumulator is the spec's
    `accumulator`, or if it has none, that of C. Without strategies, each thread initializes and stores the elements that it owns if the
    accumulator is in registers or fragments; in shared memory, adjacent threads handle adjacent elements. Legal before any `split` that
    accumulates. For a spec that accumulates, `init` loads C.
    rewrite: MatMul(..)(..,GL) --> Init(C'); MatMul(..)(..,RF); Move(C', RF -> GL)      (Fireiron, section 4.1)

    >>> from fireiron import *
    >>> print(MatMul(64, 64, 8)(GL, GL, GL)(Kernel).tile(64, 64).to(Block).epilog(RF).result)
    MatMul(64,64,8)(GL,GL,RF)(Block)
    """
    return Epilog.of(memory, (first, second, third), init, store, dtype)


__all__ = ["Epilog"]
