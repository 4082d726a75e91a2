"""`epilog`: a new accumulator, initialised, added to, written back (Fireiron, section 4.1)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

import attrs

from fireiron.decomp.load import Load, LoadPlan
from fireiron.errors import ArgumentError, DecompositionError, call_site
from fireiron.ir import Comment, Commit, Hole, filled
from fireiron.language.plain import without_ones
from fireiron.language.substrategy import chain, copies_of, default_copy, require_steps, steps_at, steps_for
from fireiron.language.tree import Child, Context, Decomposition, Expansion, verb
from fireiron.spec import Spec
from fireiron.specs.atomic_add import AtomicAdd
from fireiron.specs.fused import INDICES, FusedDefinition, fused
from fireiron.specs.init import Init
from fireiron.specs.move import Move
from fireiron.stepping.steps import Through, around_product
from fireiron.values.expr import FALSE, TRUE, constant
from fireiron.values.machine import DTYPES, MEMORIES, RF, SH, Block, DType, Memory, bfloat16, float16, float32
from fireiron.values.tensor import ColMajor, Tensor, whole_view

if TYPE_CHECKING:
    from fireiron.language.strategy import Strategy


def _through(store: tuple[Decomposition, ...]) -> Through | None:
    """The part of a store that goes to shared memory, if it begins with it."""
    first = store[0]
    if not isinstance(first, Load) or not first.memory.of_block:
        return None
    plan = first.planned(LoadPlan())
    return Through(first.move, store[1:], plan.pad, plan.reuse)


def _once(name: str, by_position: Any, by_name: Any) -> Any:
    if by_position is not None and by_name is not None:
        raise ArgumentError(f"epilog: {name} is given twice", legal="epilog(memory, [dtype,] init, store)", at=call_site())
    return by_name if by_position is None else by_position


STAGE = 128
"""Bytes: the size of a prefetched epilogue vector is a multiple of it, as the destination of a bulk copy."""


def _first_vector(spec: Spec) -> str | None:
    """The first operand in global memory that is read behind the product along one of the result's dimensions, in which its neighbours lie
    side by side; None without.
    """
    made = fused(spec)
    if made is None or made.product is None or spec.level != Block:
        return None
    return next(_vectors(spec, made), None)


def _vectors(spec: Spec, made: FusedDefinition) -> Iterator[str]:
    assert made.product is not None
    product = made.product.formula
    others = {*made.outputs, *(one.tensor for one in product.elements)}
    for name, dims in made.uses.items():
        view = spec.operands[name]
        wide = [dim for dim in dims if dim not in (*made.batch, *made.scan)]
        if name in others or name.startswith(INDICES) or not view.memory.of_grid or len(wide) != 1 or wide[0] not in product.target.dims:
            continue
        step = view.tensor.storage().steps[view.axis(dims.index(wide[0]))]
        if constant(spec.size(wide[0])) is not None and step is not None and constant(step) == 1:
            yield name


def _fetched(operand: str, spec: Spec, context: Context) -> Expansion:
    """The copy of a vector to shared memory, in front of the spec that reads it there, the child `body`."""
    view = spec.operands[operand]
    length = max(constant(size) or 0 for size in view.shape)
    made = Load(operand, SH, default_copy()[-1:], origin=context.origin).copied(spec, context, pad=-length % (STAGE // view.dtype.bytes))
    name = f"{operand}_ahead"
    children = tuple(attrs.evolve(one, name=name) if one.name == "move" else one for one in made.children)
    program = filled(made.program, {"move": (Hole(name), Commit()), "body": (Hole("body"),)})
    return attrs.evolve(made, children=children, program=program)


@attrs.frozen
class EpilogPlan:
    """Whether vectors that are read behind the product are fetched in front of it."""

    ahead: bool = False


@attrs.frozen
class Epilog(Decomposition):
    """The accumulator in `memory` with elements of `dtype` (None: the spec's accumulator); see the verb `epilog`."""

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
    def of(memory: Any, places: tuple[Any, ...], init: Any, store: Any, dtype: Any) -> Epilog:
        """An epilog from the arguments of the verb; an `ArgumentError` where they are too many strategies."""
        given = list(places)
        if isinstance(given[0], DType):
            dtype = _once("dtype", given.pop(0), dtype)
        if len(given) > 2 and given[2] is not None:
            raise ArgumentError("epilog: too many strategies", legal="epilog(memory, [dtype,] init, store)", at=call_site())
        init, store = _once("init", given[0], init), _once("store", given[1], store)
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
        vector = _first_vector(spec) if self.planned(EpilogPlan()).ahead else None
        if vector is not None:
            outer = _fetched(vector, spec, context)
            return outer.followed("body", self.expand(outer.child("body").spec, context.after(outer)))
        if fused(spec) is not None:
            return around_product(spec, self.memory, self.dtype, self.init, self.store, context, _through(self.store))
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
        loads = spec.accumulate == TRUE and not spec.in_parts
        init: Spec = Move.on(spec.level, target, fresh) if loads else Init.on(spec.level, fresh)
        store: Spec = AtomicAdd.on(spec.level, fresh, target) if spec.in_parts else Move.on(spec.level, fresh, target)
        body = spec.with_operands(C=fresh).with_options(accumulate=TRUE, in_parts=False)
        init, store = without_ones(init), without_ones(store)
        children = (self._outer("init", init, self.init), Child("body", body), self._outer("store", store, self.store))
        before, after = Comment(f"{name}: {init}"), Comment(f"{name} to C: {store}")
        return draft.expansion(children, (before, Hole("init"), Hole("body"), after, Hole("store")))

    def _outer(self, name: str, spec: Spec, steps: tuple[Decomposition, ...]) -> Child:
        """The init or the store; one that is not given follows whoever decides which thread holds what, if threads have their own."""
        follows = self.memory.private and steps == default_copy()
        return Child(name, spec, steps[-1:] if follows else steps_at(steps, spec), prefix=f"{name}_")

    def _check_memory(self) -> None:
        if self.memory.of_grid:
            raise DecompositionError("epilog(GL): buffers in global memory cannot be made inside a kernel", legal="SH RF")

    def _checked(self, spec: Spec) -> Spec:
        if not spec.contracts:
            raise DecompositionError(f"epilog: {spec.title} has no accumulator", legal="MatMul")
        if spec.level.is_launch:
            raise DecompositionError(
                "epilog at the level of the whole kernel: no group of threads owns it", hint=".tile(...).to(Block) first"
            )
        if spec.C.memory == self.memory:
            raise DecompositionError(f"epilog({self.memory}): the accumulator lies in {spec.C.memory} already", legal="SH RF")
        if spec.accumulate not in (TRUE, FALSE):
            raise DecompositionError(
                "epilog inside a split that adds up: it would write partial sums over each other", hint="put epilog before split"
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
    """A new accumulator: initialised by `init`, added to by the rest of the chain, written back by `store`.

    Args: `epilog(memory, init, store)` or `epilog(memory, dtype, init, store)`; the accumulator's type is the spec's
    `accumulator`, else that of C. Without strategies, in registers and fragments each thread sets and stores what the
    rest of the chain makes it hold; in shared memory, neighbours, one element a thread.
    Legal before any `split` that adds up. For a spec that accumulates, `init` loads C.
    rewrite: MatMul(..)(..,GL) --> Init(C'); MatMul(..)(..,RF); Move(C', RF -> GL)      (Fireiron, section 4.1)

    >>> from fireiron import *
    >>> print(MatMul(64, 64, 8)(GL, GL, GL)(Kernel).tile(64, 64).to(Block).epilog(RF).result)
    MatMul(64,64,8)(GL,GL,RF)(Block)
    """
    return Epilog.of(memory, (first, second, third), init, store, dtype)


__all__ = ["Epilog"]
