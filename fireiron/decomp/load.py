"""`load`: copy an input operand to a new buffer in another memory (Fireiron, section 3.3)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import attrs

from fireiron.errors import ArgumentError, DecompositionError, call_site
from fireiron.frozen import evolve, frozen
from fireiron.ir import Comment, Hole, Stmt, SyncPoint
from fireiron.language.launching import Given, Launches, LaunchRequest, OverlapPlan
from fireiron.language.node_parts import copy_by_warps, copy_of_parts, gathered, of_own_part, to_other_gpus
from fireiron.language.plain import as_matrix
from fireiron.language.substrategy import chain, copies_of, default_copy, require_steps, steps_at, steps_for
from fireiron.language.tree import Child, Context, Decomposition, Expansion, verb
from fireiron.spec import Spec
from fireiron.specs.fused import fused
from fireiron.specs.move import Move
from fireiron.specs.operand import Operand, operand_name
from fireiron.stepping.steps import unchanged, without_single
from fireiron.values.expr import ONE, Expr, constant
from fireiron.values.layout import Digit, Layout, Swizzle
from fireiron.values.machine import MEMORIES, SH, WIDER, DType, Memory
from fireiron.values.tensor import Dim, Fixed, MatrixLayout, Mode, Tensor, View, whole_view

if TYPE_CHECKING:
    from fireiron.language.strategy import Strategy


@frozen
class LoadPlan:
    """The layout, the stages and the sharing of the new buffer, and whether a barrier directly after the copy is forbidden."""

    layout: MatrixLayout | Layout | None = None
    pad: int = 0
    align: int = 16
    swizzle: Swizzle | Callable[[int, int], Swizzle | None] | None = None
    reuse: bool = False
    no_sync: str | None = None
    converted: bool = False
    stages: int = 0
    shares: str = ""
    joins: str = ""
    overlap: OverlapPlan | None = None


@frozen
class Load(Decomposition):
    """A copy of `operand` to `memory`, decomposed by the steps `move`; see the verb `load`."""

    verb: ClassVar[str] = "load"
    kinds: ClassVar[tuple[str, ...]] = ("MatMul", "Move", "Reduction", "AtomicAdd", "Pointwise", "Fused")
    operand: str = attrs.field(converter=operand_name)
    memory: Memory
    move: tuple[Decomposition, ...] = attrs.field(factory=default_copy)

    def __attrs_post_init__(self) -> None:
        if not isinstance(self.memory, Memory):
            raise ArgumentError("load: not a memory", got=self.memory, legal=MEMORIES, at=call_site())
        require_steps(self.move, "load")

    @staticmethod
    def of(operand: object, memory: Any, move: Any) -> Load:
        """Return the step for the arguments of the verb."""
        return Load(operand_name(operand), memory, steps_for(move, "load", ("Move",)))

    def label(self) -> str:
        return self._text(chain(self.move))

    def summary(self) -> str:
        return self._text(chain(self.move, summary=True))

    def _text(self, steps: str) -> str:
        move = "" if self.move == default_copy() else f", Move{steps}"
        return f"load({Operand(self.operand)}, {self.memory}{move})" + "".join(f".{refinement.label()}" for refinement in self.refinements)

    @property
    def makes_launches(self) -> bool:  # type: ignore[override]
        """Whether it copies to global memory, which a separate launch does."""
        return self.memory.of_grid

    def launches(self, spec: Spec, given: Given) -> Launches:
        """Return the launch that copies the parts of all GPUs of a node, and the spec that reads the copy."""
        copy, rest = gathered(spec, self.operand, self.summary())
        plan = self.planned(LoadPlan())
        overlap = plan.overlap
        if overlap is not None:
            own = of_own_part(copy.src.tensor)
            overlap = overlap if own is copy.src.tensor else attrs.evolve(overlap, given=whole_view(own))
            copy = to_other_gpus(copy)
        steps = copy_of_parts(copy) if self.move == default_copy() else steps_at(self.move, copy)
        arrays = {"src": copy.src.tensor.name, "dst": copy.dst.tensor.name}
        reason = f"{self.operand} is distributed over the GPUs"
        kernel = f"gather_{self.operand.lower()}"
        if overlap is not None and self.move == default_copy():
            steps = copy_by_warps(copy, overlap.tile)
        return Launches((LaunchRequest(self.operand, copy, reason, steps, arrays, kernel, overlap),), rest)

    def expand(self, spec: Spec, context: Context) -> Expansion:
        definition = fused(spec)
        if definition is not None and self.operand in definition.known and self.operand not in definition.uses:
            return unchanged(spec)
        return self.copied(spec, context)

    def copied(self, spec: Spec, context: Context, **changes: Any) -> Expansion:
        """Expand to a copy to a new buffer, and the spec that reads the buffer. `changes` are fields of the `LoadPlan`."""
        definition, plan = fused(spec), self.planned(LoadPlan(**changes))
        if plan.overlap is not None:
            raise DecompositionError(
                f"load({self.operand}, {self.memory}): overlap divides a copy to global memory among warps", within=spec,
                legal='on load("A", GL), before steps that divide the launch', hint="pipeline(...) overlaps copies to SH",
            )  # fmt: skip
        self._require_effect(plan, spec)
        spec = as_matrix(spec, self._checked(spec)) if definition is None else without_single(spec, self._checked(spec))
        view: View = spec.operands[self.operand]
        shape = tuple(_static(size, self, spec) for size in view.shape)
        repeats = _repeats(view) if self.memory.in_shared and plan.layout is None and plan.swizzle is None else (1,) * len(shape)
        digits = _stored_digits(view) if self.memory.in_shared and plan.layout is None and plan.swizzle is None else None
        once = _once(view, shape, repeats, plan.pad) if max(repeats, default=1) > 1 else None
        once = once if digits is None else _once_by_digits(digits, plan.pad)
        layout = plan.layout or _order_of(view, spec)
        dtype = self._dtype(spec, view, plan)
        swizzle = plan.swizzle
        if callable(swizzle) and not isinstance(swizzle, Swizzle):
            swizzle = swizzle(_leading(layout, shape, plan.pad), dtype.bytes)
        draft = context.draft()
        name = draft.fresh(f"{_root(view.tensor.name.removeprefix(draft.prefix))}_{self.memory.label}")
        copies, copy = copies_of(self.memory, spec, draft)
        stored = once or _checked(layout, shape)
        tensor = Tensor(
            name, view.shape, dtype, self.memory, stored, plan.pad, plan.align, swizzle, copies, plan.reuse,
            free=self.memory.in_shared and plan.layout is None and plan.swizzle is None and not plan.pad and once is None,
            stages=plan.stages,
            shares=self._shared_stages(plan, spec, shape, dtype), joins=self._joined(plan, spec), origin=context.origin,
        )  # fmt: skip
        fresh = whole_view(tensor, copy)
        sides = (_firsts(side, repeats) if digits is None else _of_stored_digits(side, digits) for side in (view, fresh))
        move = Move.on(spec.level, *sides, names=_labels(spec, self.operand))
        children = (
            self._copy(move, f"{name}_"),
            Child("body", spec.with_operands(**{self.operand: _bounded(fresh, view, spec, self.operand)})),
        )
        note = Comment(f"{self.operand} to {name}: {move}")
        program: tuple[Stmt, ...] = (note, Hole("move"), Hole("body"))
        if plan.no_sync is not None:
            program = (note, Hole("move"), SyncPoint(False, name, context.origin), Hole("body"))
        return draft.expansion(children, program)

    def _copy(self, move: Spec, prefix: str) -> Child:
        """Return the copy. Without a strategy, a private buffer is distributed over threads as its readers require."""
        steps = steps_at(self.move, move)
        follows = self.memory.private and move.level.threads != 1 and self.move == default_copy()
        return Child("move", move, steps[-1:], prefix=prefix, alone=steps) if follows else Child("move", move, steps, prefix=prefix)

    def _require_effect(self, plan: LoadPlan, spec: Spec) -> None:
        """Refuse refinements that have no effect on private arrays of threads."""
        refinements = {
            "no_sync": plan.no_sync is not None,
            "reuse_buffer": plan.reuse,
            "stages": plan.stages > 0,
            "share_stages": plan.shares != "",
            "share_barriers": plan.joins != "",
        }
        requested = [name for name, is_requested in refinements.items() if is_requested]
        if self.memory.private and requested:
            raise DecompositionError(
                f"load({self.operand}, {self.memory}): {' and '.join(requested)} has no effect on registers, which threads do not share",
                legal="on loads to SH",
                within=spec,
                hint=f"drop {', '.join(f'.{name}()' for name in requested)}",
            )

    def _shared_stages(self, plan: LoadPlan, spec: Spec, shape: tuple[int, ...], dtype: DType) -> str:
        """Return the name of the circular buffer whose stages the new buffer shares; empty if it shares none."""
        if not plan.shares:
            return ""
        view = self._loaded_before("share_stages", plan.shares, spec)
        other = tuple(constant(size) for size in view.shape), view.dtype
        if other != (shape, dtype):
            raise DecompositionError(
                f"share_stages({plan.shares!r}): a stage can only hold tiles of one shape and type",
                got=f"{'x'.join(map(str, shape))} of {dtype}, and {'x'.join(map(str, other[0]))} of {other[1]}",
                legal="the same shape and element type",
                within=spec,
            )
        return view.tensor.shares or view.tensor.name

    def _joined(self, plan: LoadPlan, spec: Spec) -> str:
        """Return the name of the buffer with whose mbarriers the new buffer is filled and released; empty if it has its own."""
        return self._loaded_before("share_barriers", plan.joins, spec).tensor.name if plan.joins else ""

    def _loaded_before(self, verb: str, operand: str, spec: Spec) -> View:
        """Return the buffer of another load. Raises: `DecompositionError` if there is none."""
        others = [name for name, view in spec.operands.items() if name != self.operand and view.tensor.memory.of_block]
        if operand not in others:
            raise DecompositionError(
                f"{verb}({operand!r}): no load to SH above this one allocates a buffer for that operand",
                legal=others or "none is loaded yet",
                within=spec,
                hint=f".load({operand!r}, SH) above, or remove .{verb}(...)",
            )
        return spec.operands[operand]

    def _dtype(self, spec: Spec, view: View, plan: LoadPlan) -> DType:
        if not plan.converted:
            return view.dtype
        if (spec.contracts or spec.multiplies) and self.operand in ("A", "B"):
            return self._other_factor(spec, view)
        if not spec.moves:
            legal = "the load of a Move's source, or of a factor of a MatMul"
            raise DecompositionError(f"cast_on_copy: {spec.title} has no single destination", legal=legal)
        return spec.operands["dst"].dtype

    def _other_factor(self, spec: Spec, view: View) -> DType:
        """Return the type of the other factor of a MatMul, if it has all numbers of the operand's type."""
        other = spec.operands["B" if self.operand == "A" else "A"].dtype
        if other in WIDER.get(view.dtype, ()):
            return other
        asked = f"cast_on_copy: the other factor of {spec.title} has no type with all numbers of {view.dtype}"
        legal = [f"{kind} with {', '.join(map(str, wider))}" for kind, wider in WIDER.items()]
        raise DecompositionError(asked, within=spec, got=other, legal=legal, hint="a step of the definition that converts the operand")

    def _checked(self, spec: Spec) -> str:
        """Return the operand, or refuse it if it cannot be loaded."""
        if self.operand not in spec.uses:
            own = next((name for name in spec.inputs if spec.operands[name].tensor.name == self.operand), None)
            hint = None if own is None else f"load({own}): in the strategy of this step, {self.operand} is the operand {own}"
            raise DecompositionError(f"load({self.operand}): {spec.title} has no such operand", legal=spec.inputs, hint=hint)
        if self.operand in spec.outputs:
            hint = "epilog(memory, init, store) allocates a buffer for the output" if spec.title == "MatMul" else "load(src, ...) instead"
            raise DecompositionError(
                f"load({self.operand}): an output cannot be loaded", legal=spec.inputs or "none: it has no inputs", hint=hint
            )
        if spec.level.is_launch:
            raise DecompositionError(
                "load at the level of the whole kernel: no group of threads owns the buffer", hint=".tile(...).to(Block) first"
            )
        definition = fused(spec)
        reads = () if definition is None else {name for step in definition.steps for name in step.reads}
        if definition is not None and self.operand in definition.tables and self.operand not in reads:
            raise DecompositionError(
                f"load({self.operand}): addresses read it from global memory, and no step reads it", within=spec,
                legal=[name for name in spec.inputs if name not in definition.tables],
                hint=f"remove the load; the compiler keeps elements of {self.operand} in registers",
            )  # fmt: skip
        view: View = getattr(spec, self.operand)
        if not view.dims:
            raise DecompositionError(
                f"load({self.operand}): each thread reads an operand of one element directly", legal="operands with dimensions"
            )
        if self.memory.of_grid:
            raise DecompositionError("load to GL: a kernel cannot allocate global memory", legal="SH RF")
        if view.memory == self.memory and not self._redistributes(spec):
            others = [name for name in spec.inputs if spec.operands[name].memory.depth < self.memory.depth]
            raise DecompositionError(
                f"load({self.operand}, {self.memory}): the operand is already in {self.memory}",
                hint=" or ".join(f"load({name}, {self.memory})" for name in others) or "remove this load, or load to a deeper memory",
            )
        return self.operand

    def _redistributes(self, spec: Spec) -> bool:
        """Whether a copy from registers to registers can have an effect: it may assign the elements to other threads of the group."""
        return self.memory.private and self.memory.fragment is None and spec.level.threads != 1

    @classmethod
    def choices(cls, spec: Spec, context: Context) -> Iterator[Load]:
        for name, memory in itertools.product(spec.inputs, MEMORIES):
            view: View = getattr(spec, name)
            static = all(constant(size) is not None for size in view.shape) and bool(view.dims)
            if static and not spec.level.is_launch and not memory.of_grid and memory != view.memory:
                yield Load(name, memory)


def _repeats(view: View) -> tuple[int, ...]:
    """By dimension, the number of adjacent elements of a tile that are one element of its array: 64 along k of `S[n,k // 64]`."""
    counts, storage = [], view.tensor.storage()
    for dim, part in enumerate(view.dims):
        count, size = storage.repeats(view.axis(dim)), constant(part.size) or 1
        count = math.gcd(count, size)
        plain = len(part.modes) == 1 and part.modes[0].stride == ONE
        counts.append(count if plain and part.base.factor % count == 0 else 1)
    return tuple(counts)


def _once(view: View, shape: tuple[int, ...], repeats: tuple[int, ...], pad: int) -> Layout:
    """The layout of a buffer that stores repeated elements once, in the order of the array."""
    digits = view.tensor.storage().dims
    by_rows = any(digit.weight == 1 for digit in digits[view.axis(len(shape) - 1)][:1])
    stride, strides = 1, [0] * len(shape)
    for place, dim in enumerate(reversed(range(len(shape))) if by_rows else range(len(shape))):
        count = shape[dim] // repeats[dim]
        strides[dim] = stride if count > 1 else 0
        stride *= count + (pad if place == 0 else 0)
    parts = [
        (size, step) if times == 1 else (size, 0) if times == size else ((times, size // times), (0, step))
        for size, times, step in zip(shape, repeats, strides, strict=True)
    ]
    return Layout(tuple(size for size, _ in parts), tuple(step for _, step in parts))


@frozen
class _StoredDigit:
    """A digit of a coordinate in a tile: `size` values, `step` coordinates apart; in the array, `weight` elements apart (0: the same)."""

    size: int
    step: int
    weight: int


def _stored_digits(view: View) -> tuple[tuple[_StoredDigit, ...], ...] | None:
    """Return the digits of the coordinates of a tile, if some of them do not affect the address and others below them do.

    An example is `P[n,k // 32 * 4 + k // 2 % 4]`: elements k, k + 1 and k + 8 are one element of the array. None for other tiles, and for
    those that contain a part of a digit.
    """
    storage, digits = view.tensor.storage(), []
    if storage.tables or storage.computed or storage.windows or storage.reversed:
        return None
    for dim, part in enumerate(view.dims):
        size, axis = constant(part.size), view.axis(dim)
        of_tile = None if size is None or len(part.modes) > 1 else _digits_below(storage.dims[axis], size)
        if of_tile is None or any(mode.stride != ONE for mode in part.modes) or part.base.factor % (size or 1):
            return None
        digits.append(of_tile)
    weights = [digit.weight for of_tile in digits for digit in of_tile if digit.weight]
    apart = any(digit.weight == 0 for of_tile in digits for digit in of_tile[1:])
    return tuple(digits) if apart and len(set(weights)) == len(weights) else None


def _digits_below(digits: Sequence[Digit], size: int) -> tuple[_StoredDigit, ...] | None:
    """Return the digits of the first `size` coordinates, those without a weight included; None if one is divided."""
    parts: list[_StoredDigit] = []
    step = 1
    for digit in digits:
        count, weight = constant(digit.size), constant(digit.weight)
        if weight is None:
            return None
        if digit.step > step:
            if digit.step >= size:
                break
            parts.append(_StoredDigit(digit.step // step, step, 0))
            step = digit.step
        count = size // step if digit.open or count is None else min(count, size // step)
        if step * count > size or size % (step * count):
            return None
        parts.append(_StoredDigit(count, step, weight))
        step *= count
        if step >= size:
            break
    if step < size:
        parts.append(_StoredDigit(size // step, step, 0))
    return tuple(digit for digit in parts if digit.size > 1)


def _once_by_digits(digits: Sequence[Sequence[_StoredDigit]], pad: int) -> Layout:
    """Return the layout of a buffer that stores each element of a tile once, in the order of the array."""
    weights = sorted({digit.weight for of_tile in digits for digit in of_tile if digit.weight})
    stride, strides = 1, {0: 0}
    lowest = next((of_tile for of_tile in digits if any(digit.weight == weights[0] for digit in of_tile)), ())
    for weight in weights:
        strides[weight] = stride
        stride *= next(digit.size for of_tile in digits for digit in of_tile if digit.weight == weight)
        last = max((digit.weight for digit in lowest), default=0)
        stride += pad if weight == last else 0
    parts = [
        (tuple(digit.size for digit in of_tile) or (1,), tuple(strides[digit.weight] for digit in of_tile) or (0,)) for of_tile in digits
    ]
    return Layout(
        tuple(sizes[0] if len(sizes) == 1 else sizes for sizes, _ in parts),
        tuple(steps[0] if len(steps) == 1 else steps for _, steps in parts),
    )


def _of_stored_digits(view: View, digits: Sequence[Sequence[_StoredDigit]]) -> View:
    """Return the view with each element of the array once."""
    dims = {}
    for dim, (part, of_tile) in enumerate(zip(view.dims, digits, strict=True)):
        modes = tuple(Mode(digit.size, digit.step) for digit in of_tile if digit.weight)
        fixed = tuple(Fixed(digit.size, digit.step, False, 0) for digit in of_tile if not digit.weight)
        dims[dim] = Dim(modes, part.bound, (*part.fixed, *fixed))
    return view.with_dims(dims)


def _firsts(view: View, repeats: tuple[int, ...]) -> View:
    """The first element of each group of repeated elements."""
    dims = {}
    for dim, (part, times) in enumerate(zip(view.dims, repeats, strict=True)):
        if times > 1:
            count = (constant(part.size) or 0) // times
            modes = (Mode(count, times),) if count > 1 else ()
            dims[dim] = Dim(modes, part.bound, (*part.fixed, Fixed(times, 1, False, 0)))
    return view.with_dims(dims) if dims else view


def _bounded(fresh: View, view: View, spec: Spec, operand: str) -> View:
    """Return the new buffer.

    It keeps the bounds of the source if elements past the end must not count as the zeros that the copy writes.
    """
    if not spec.outside(operand):
        return fresh
    dims = {}
    for number, (dim, part, own) in enumerate(zip(spec.uses[operand], view.dims, fresh.dims, strict=True)):
        if part.bound is None or dim in spec.tile_dims:  # elements past the end of a result are not stored
            continue
        if len(part.modes) > 1 or any(mode.stride != ONE for mode in part.modes):
            raise DecompositionError(
                f"load({operand}): a strided tile of {view.tensor.name} is partly out of bounds, and its buffer cannot represent where",
                within=spec,
                hint="use a contiguous tile before the load, or sizes that the tiles divide",
            )
        dims[number] = evolve(own, bound=part.bound - part.base)
    return fresh.with_dims(dims)


def _leading(layout: MatrixLayout | Layout, shape: tuple[int, ...], pad: int) -> int:
    """Return the distance between adjacent rows (columns) of a buffer, in elements."""
    if not isinstance(layout, MatrixLayout):
        raise DecompositionError(
            "swizzle_storage(): rows of a hierarchical layout have no fixed distance", hint="swizzle_storage(Swizzle(bits, base, shift))"
        )
    number = None if layout.leading is None else constant(layout.leading)
    return number or shape[0 if layout.order == "col" else -1] + pad


def _root(name: str) -> str:
    return name.split("_")[0].lower()


def _labels(spec: Spec, operand: str) -> tuple[str, ...]:
    return tuple(spec.labels[spec.dims.index(dim)] for dim in spec.uses[operand])


def _order_of(view: View, spec: Spec) -> MatrixLayout:
    """Return the storage order of the source. Registers have no order, so a copy from registers gets the order of its destination."""
    if view.memory.private and spec.copies:
        view = spec.dst
    return MatrixLayout(view.order or "col")


def _static(size: Expr, step: Load, spec: Spec) -> int:
    number = constant(size)
    if number is None:
        raise DecompositionError(
            f"load({step.operand}, {step.memory}): the size of the buffer, {size}, is known only at run time",
            within=spec,
            hint=_with_known_size(size, spec),
        )
    return number


def _with_known_size(size: Expr, spec: Spec) -> str:
    """Return how to get a buffer of a known size: only a matmul and a loop of a definition can be split."""
    if spec.contracts:
        return "split the dimension first: .split(8)"
    dim = next((dim for dim in spec.dims if spec.size(dim) == size), "n")
    return f"a kernel per size, with an integer for {dim}; or a definition with loop={dim!r}, and .split({dim}=8) before this load"


def _checked(layout: MatrixLayout | Layout, shape: tuple[int, ...]) -> MatrixLayout | Layout:
    if isinstance(layout, MatrixLayout):
        line = shape[0 if layout.order == "col" else -1]
        leading = line if layout.leading is None else constant(layout.leading)
        if leading is None or leading < line:
            why = "ld is known only at run time" if leading is None else f"ld is less than the {line} elements of a row or column"
            raise DecompositionError(f"storage_layout({layout!r}): {why}", legal=f"ld >= {line}")
        return layout
    sizes = tuple(_size_of(mode) for mode in layout.shape) if isinstance(layout.shape, tuple) else ()
    if sizes != shape:
        raise DecompositionError(f"storage_layout({layout}): the layout has the shape {sizes}, but the buffer has the shape {shape}")
    if not layout.is_injective():
        raise DecompositionError(
            f"storage_layout({layout}): two elements have the same address",
            legal=f"strides that give each element a different address, such as {Layout(layout.shape)}",
        )
    return layout


def _size_of(mode: Any) -> int:
    return math.prod(_size_of(part) for part in mode) if isinstance(mode, tuple) else int(mode)


@verb()
def load(operand: Operand | str, memory: Memory, move: Strategy | None = None) -> Load:
    """Copy an input operand to a new buffer in another memory; `move` decomposes the copy.

    Args: operand: `A`, `B`, `Move.src`, or a name. memory: the memory of the buffer. move: a strategy for the `Move` (None: one element per
    thread and iteration, which is always legal).
    Legal for inputs of static size. A buffer in private memory is distributed over threads as its readers require. For one matrix of a
    batch (`bmk`, if a tile has one b), the buffer is a matrix.
    rewrite: MatMul(..)(GL,..) --> Move(A, GL -> SH); MatMul(..)(SH,..)      (Fireiron, section 3.3)

    >>> from fireiron import *
    >>> print(MatMul(64, 64, 8)(GL, GL, GL)(Kernel).tile(64, 64).to(Block).load(A, SH).result)
    MatMul(64,64,8)(SH,GL,GL)(Block)
    """
    return Load.of(operand, memory, move)


EXAMPLES = (Load("A", SH, ()),)
"""Examples of the class, which has no default arguments."""

__all__ = ["Load"]
