"""`repack`: an operand copied, by a launch of its own, to an array that the widest accesses take: first, where its own is not one.

TMA and 16-byte copies want rows that are multiples of 16 bytes apart, which the user's array may not have; a copy of a matrix costs
as much time as its bytes take, the product of two large ones far more.
"""

from __future__ import annotations

from typing import Any, ClassVar

import attrs

from fireiron.errors import DecompositionError, call_site
from fireiron.language.substrategy import chain, require_steps, steps_for
from fireiron.language.tree import Context, Decomposition, Expansion
from fireiron.spec import Spec
from fireiron.specs.move import Move
from fireiron.specs.operand import Operand, operand_name
from fireiron.values.expr import Expr, as_expr
from fireiron.values.machine import GL, Block, Kernel, Thread
from fireiron.values.tensor import ColMajor, MatrixLayout, RowMajor, Tensor, View, whole_view

MULTIPLE = 16
"""Bytes of which rows (columns) and the address are multiples behind it."""

RUN, ROWS = 256, 16
"""Elements side by side, one a thread, and rows (columns) of a block in the copy that is taken if none is said: each thread has as many
loads under way as there are rows."""


@attrs.frozen
class Repack(Decomposition):
    """The copy of `operand` in front, carried out by the steps `move` (none: one that suits its storage); see the verb `repack`."""

    verb: ClassVar[str] = "repack"
    operand: str = attrs.field(converter=operand_name)
    move: tuple[Decomposition, ...] = ()

    def __attrs_post_init__(self) -> None:
        require_steps(self.move, "repack")

    @staticmethod
    def of(operand: object, move: Any) -> Repack:
        """The step from the arguments of the verb."""
        return Repack(operand_name(operand), () if move is None else steps_for(move, "repack", ("Move",)), origin=call_site())

    def label(self) -> str:
        return self._text(chain(self.move))

    def summary(self) -> str:
        return self._text(chain(self.move, summary=True))

    def _text(self, steps: str) -> str:
        return f"repack({Operand(self.operand)}{f', Move{steps}' if self.move else ''})"

    def expand(self, spec: Spec, context: Context) -> Expansion:
        raise DecompositionError(
            f"repack({self.operand}): a copy for all blocks is a launch of its own, before the first step that deals work",
            legal="first in a chain, for a spec of the whole kernel",
            within=spec,
            hint="move it to the front: MatMul.repack(A).tile(...).to(Block)",
        )

    def reason(self, spec: Spec) -> str | None:
        """Why the operand is copied; None where its own array serves."""
        view = self._view(spec)
        step = _apart(view)
        if view.order is None or step is None:
            return f"{self.operand} has no neighbours side by side"
        if view.tensor.align % MULTIPLE:
            return f"{self.operand} starts at a multiple of {view.tensor.align} bytes"
        if step.factor * view.dtype.bytes % MULTIPLE:
            return f"{self.operand} has {'rows' if view.order == 'row' else 'columns'} {step} elements of {view.dtype.bytes} bytes apart"
        return None

    def copy(self, spec: Spec) -> Spec:
        """The copy, from the operand's array to the new one."""
        view = self._view(spec)
        rows, columns = view.shape
        made: Spec = Move(rows, columns, dtype=view.dtype, src=view.tensor.layout, dst=self._packed(view))(GL, GL)(Kernel)
        source = attrs.evolve(made.src.tensor, align=view.tensor.align)
        return made.with_operands(src=whole_view(source))

    def steps(self, spec: Spec) -> tuple[Decomposition, ...]:
        """The steps of the copy."""
        return self.move or _in_rows(self._packed(self._view(spec)))

    def behind(self, spec: Spec) -> Spec:
        """The spec that is left, whose operand is the new array."""
        tensor = self._view(spec).tensor
        new = Tensor(tensor.name, tensor.shape, tensor.dtype, tensor.memory, self._packed(self._view(spec)), origin=tensor.origin)
        return spec.with_operands(**{self.operand: whole_view(new)})

    def _packed(self, view: View) -> MatrixLayout:
        order = ColMajor if view.order == "col" else RowMajor
        inner: Expr = view.shape[0 if order == ColMajor else 1]
        many = MULTIPLE // view.dtype.bytes
        return order(ld=(inner + many - 1) // many * many)

    def _view(self, spec: Spec) -> View:
        """The operand, if it can be copied."""
        if self.operand not in spec.inputs:
            raise DecompositionError(f"repack({self.operand}): {spec.title} reads no such operand", legal=spec.inputs, within=spec)
        view: View = spec.operands[self.operand]
        if spec.level != Kernel or not view.memory.of_grid:
            raise DecompositionError(
                f"repack({self.operand}): {view.memory} at the level {spec.level}", legal="operands in GL, at the whole kernel", within=spec
            )
        if len(view.dims) != 2 or len(view.tensor.shape) != 2:
            raise DecompositionError(
                f"repack({self.operand}): an operand of {len(view.tensor.shape)} dimensions", legal="matrices", within=spec
            )
        return view


def _apart(view: View) -> Expr | None:
    """Elements from one row (column) to the next."""
    step = view.tensor.storage().steps[1 if view.order == "col" else 0]
    return None if step is None else as_expr(step)


def _in_rows(layout: MatrixLayout) -> tuple[Decomposition, ...]:
    """Neighbouring threads copy neighbours; each has its loads of several rows under way together."""
    if layout.order == "row":
        return Move.tile(ROWS, RUN).to(Block).tile(ROWS, 1).to(Thread).tile(1, 1).unroll().done().steps
    return Move.tile(RUN, ROWS).to(Block).tile(1, ROWS).to(Thread).tile(1, 1).unroll().done().steps


EXAMPLES = (Repack("A"),)
"""Any of the kind, which cannot be made without arguments."""

__all__ = ["Repack"]
