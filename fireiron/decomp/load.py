"""`load`: an input operand copied to a new buffer in another memory (Fireiron, section 3.3)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, ClassVar

import attrs

from fireiron.errors import ArgumentError, DecompositionError
from fireiron.expr import ZERO, Expr, constant
from fireiron.ir import Comment, Hole, Stmt, SyncPoint
from fireiron.layout import Layout, Swizzle
from fireiron.machine import GL, MEMORIES, Block, Kernel, Memory
from fireiron.spec import MoveSpec, Spec, Starter
from fireiron.tensor import MatrixLayout, Tensor, View, whole_view
from fireiron.tree import Child, Context, Decomposition, Expansion, call_site


@attrs.frozen(repr=False)
class Operand:
    """An operand's name: `A`, `B`, `C`, or `Move.src`."""

    name: str

    def __repr__(self) -> str:
        return self.name if len(self.name) == 1 else repr(self.name)


A = Operand("A")
B = Operand("B")
C = Operand("C")
SRC = Operand("src")
DST = Operand("dst")


def operand_name(value: object) -> str:
    """The name of an operand, given as an `Operand` or a string; `MatMul.a` of the paper is `A`."""
    if isinstance(value, Operand):
        return value.name
    if isinstance(value, str):
        return value
    raise ArgumentError("not an operand", got=value, legal='A B C "src"', at=call_site())


@attrs.frozen
class LoadPlan:
    """How the new buffer is laid out, and whether a barrier is forbidden right behind the copy."""

    layout: MatrixLayout | Layout | None = None
    pad: int = 0
    align: int = 16
    swizzle: Swizzle | None = None
    reuse: bool = False
    no_sync: str | None = None


@attrs.frozen
class Load(Decomposition):
    """The copy of `operand` to `memory`, carried out by the steps `move`; see the verb `load`."""

    verb: ClassVar[str] = "load"
    operand: str = ""
    memory: Memory = GL
    move: tuple[Decomposition, ...] = ()

    @staticmethod
    def of(operand: object, memory: object, move: Any) -> Load:
        """A load from the arguments of the verb."""
        if not isinstance(memory, Memory):
            raise ArgumentError("load: not a memory", got=memory, legal=[one.name for one in MEMORIES], at=call_site())
        return Load(operand_name(operand), memory, steps_for(move, "load", ("Move",)), origin=call_site())

    def label(self) -> str:
        return self._text(chain(self.move))

    def summary(self) -> str:
        return self._text(chain(self.move, summary=True))

    def _text(self, steps: str) -> str:
        move = "" if self.move == default_copy() else f", Move{steps}"
        return f"load({Operand(self.operand)}, {self.memory}{move})" + "".join(f".{refinement}" for refinement in self.refinements)

    def expand(self, spec: Spec, context: Context) -> Expansion:
        plan = self.planned(LoadPlan())
        view = self._operand_view(spec)
        shape = tuple(_static(size, self, spec) for size in view.shape)
        layout = plan.layout or _order_of(view)
        name = context.fresh(f"{_root(view.tensor.name)}_{self.memory.name.lower()}")
        copies, copy = copies_of(self.memory, spec, context)
        tensor = Tensor(
            name, view.shape, view.dtype, self.memory, _checked(layout, shape), plan.pad, plan.align, plan.swizzle, copies, plan.reuse,
            origin=context.origin,
        )  # fmt: skip
        fresh = whole_view(tensor, copy)
        move = MoveSpec(spec.level, view, fresh, _labels(spec, self.operand))
        children = (Child("move", move, self.move, prefix=f"{name}_"), Child("body", spec.with_operands(**{self.operand: fresh})))
        note = Comment(f"{self.operand} to {name}: {move}")
        program: tuple[Stmt, ...] = (note, Hole("move"), Hole("body"))
        if plan.no_sync is not None:
            program = (note, Hole("move"), SyncPoint(False, name, context.origin), Hole("body"))
        return Expansion(children, program)

    def _operand_view(self, spec: Spec) -> View:
        if self.operand not in spec.uses:
            raise DecompositionError(f"load({self.operand}): {spec.title} has no such operand", legal=spec.inputs)
        if self.operand in spec.outputs:
            hint = "epilog(memory, init, store) gives the output a new place" if spec.title == "MatMul" else "load(src, ...) instead"
            raise DecompositionError(f"load({self.operand}): an output is not loaded", legal=spec.inputs, hint=hint)
        if spec.level == Kernel:
            raise DecompositionError("load at the level of the whole kernel: no group of threads owns the buffer", hint=".tile(...).to(Block) first")
        view: View = getattr(spec, self.operand)
        if self.memory == GL:
            raise DecompositionError("load to GL: buffers in global memory cannot be made inside a kernel", legal="SH RF")
        if view.memory == self.memory:
            raise DecompositionError(f"load({self.operand}, {self.memory}): the operand is already in {self.memory}")
        return view

    def choices(self, spec: Spec, context: Context) -> Iterator[Load]:
        for name in spec.inputs:
            for memory in MEMORIES:
                if memory not in (GL, getattr(spec, name).memory):
                    yield Load(name, memory, default_copy())


def default_copy() -> tuple[Decomposition, ...]:
    """The copy that is always right: one element a thread, threads in turns."""
    from fireiron.decomp.done import Done
    from fireiron.decomp.tile import Tile
    from fireiron.machine import Thread
    from fireiron.refine.to import To

    return (Tile((1, 1), refinements=(To(Thread),)), Done())


def steps_for(move: Any, what: str, starters: tuple[str, ...]) -> tuple[Decomposition, ...]:
    """The steps of a strategy given as an argument; the default copy for None or `_`."""
    from fireiron.strategy import Strategy

    if move is None:
        return default_copy()
    if isinstance(move, Starter) and move.spec_class.title in starters:
        raise DecompositionError(f"{what}: {move!r} has no steps yet", hint=f"{move!r}.tile(...).to(...).done()", at=call_site())
    if not isinstance(move, Strategy):
        raise ArgumentError(f"{what}: not a strategy", got=move, legal=f"{starters[0]}.tile(...).to(...).done(), or nothing", at=call_site())
    return move.steps


def chain(steps: tuple[Decomposition, ...], summary: bool = False) -> str:
    """Steps as they are written in a chain; as a summary, without long texts."""
    return "".join(f".{step.summary() if summary else step.label()}" for step in steps)


def copies_of(memory: Memory, spec: Spec, context: Context) -> tuple[int, Expr]:
    """How many units own a copy of a buffer at this level, and this thread's copy."""
    if memory.private or spec.level in (Block, Kernel):
        return 1, ZERO
    if context.threads is None:
        return 1, ZERO
    return context.units(spec.level, Block), context.unit(spec.level, Block)


def _root(name: str) -> str:
    return name.split("_")[0].lower()


def _labels(spec: Spec, operand: str) -> tuple[str, ...]:
    return tuple(spec.labels[spec.dims.index(dim)] for dim in spec.uses[operand])


def _order_of(view: View) -> MatrixLayout:
    layout = view.tensor.layout
    return MatrixLayout(layout.order) if isinstance(layout, MatrixLayout) else MatrixLayout("col")


def _static(size: Expr, step: Load, spec: Spec) -> int:
    number = constant(size)
    if number is None:
        raise DecompositionError(
            f"load({step.operand}, {step.memory}): a buffer of {size} elements, a number known only at run time",
            within=spec,
            hint="split the dimension first: .split(8)",
        )
    return number


def _checked(layout: MatrixLayout | Layout, shape: tuple[int, ...]) -> MatrixLayout | Layout:
    if isinstance(layout, MatrixLayout):
        return layout
    sizes = tuple(_size_of(mode) for mode in layout.shape) if isinstance(layout.shape, tuple) else ()
    if sizes != shape:
        raise DecompositionError(f"storage_layout({layout}): has the shape {sizes}, the buffer {shape}")
    return layout


def _size_of(mode: Any) -> int:
    return math.prod(_size_of(part) for part in mode) if isinstance(mode, tuple) else int(mode)
