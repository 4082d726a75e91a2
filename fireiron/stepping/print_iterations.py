"""Print the accumulator of a matmul after each iteration of the loop in its own strategy: `print_values("acc", iterations=True)`.

The strategy of a matmul knows views of its operands, but no coordinates of the definition. A step after its first split adds the spec that
prints: the accumulator's elements, with coordinates of the definition's tile plus those inside of the accumulator, and the first
coordinate of the iteration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import attrs

from fireiron.errors import DecompositionError
from fireiron.executable.print_value import PrintValue
from fireiron.frozen import frozen
from fireiron.ir import Comment, Hole
from fireiron.language.substrategy import copies_of
from fireiron.language.tree import Child, Context, Decomposition, Expansion
from fireiron.spec import Kind, Spec
from fireiron.specs.formula import Element, Index
from fireiron.specs.steps import EXTENTS, INDICES
from fireiron.specs.tracing import FIRST, SUFFIX, Traced
from fireiron.stepping import tracing
from fireiron.values.expr import ONE, ZERO
from fireiron.values.machine import RF
from fireiron.values.tensor import ColMajor, Dim, Tensor, View, whole_view

Chain = tuple[Decomposition, ...]


@frozen
class PrintIterations(Decomposition):
    """Print elements of the accumulator after an iteration.

    - `traced`, `step`: what to print, and the name of the step. `dims`: the dimensions of the accumulator, in the order of its indices.
    - `coordinates`: the coordinates of the dimensions of the step, by name, for the tile of the definition. `extents`: their extents.
    - `last`: the end of a chain without a strategy.
    """

    verb: ClassVar[str] = "print_values"
    in_words: ClassVar[bool] = False
    traced: Traced = attrs.field(kw_only=True)
    step: str = attrs.field(kw_only=True)
    dims: tuple[str, ...] = attrs.field(kw_only=True)
    coordinates: Mapping[str, View] = attrs.field(kw_only=True, eq=False, repr=False)
    extents: Mapping[str, View] = attrs.field(kw_only=True, eq=False, repr=False)
    last: Decomposition = attrs.field(kw_only=True)

    def label(self) -> str:
        return f"print_values({self.traced.tensor!r}, iterations=True)"

    def expand(self, spec: Spec, context: Context) -> Expansion:
        draft = context.draft()
        accumulator = spec.operands["C"]
        if not tracing.is_readable(accumulator):
            raise DecompositionError(
                f"{self.label()}: the accumulator of step {self.step} is in {accumulator.memory.name}", within=spec,
                legal="an accumulator in RF or SH", at=draft.origin,
            )  # fmt: skip
        labels = [spec.labels[spec.dims.index(dim)] for dim in spec.uses["C"]]
        names = [dim for dim in self.dims if dim in labels]
        accumulator = accumulator.only([labels.index(dim) for dim in names])  # a sparse right factor has a transposed product
        target = Element(self.traced.tensor, tuple(map(Index, names)))
        places = {f"{INDICES}{name}": self._coordinate(name, part, spec) for name, part in zip(names, accumulator.dims, strict=True)}
        first = {f"{FIRST}{spec.labels[spec.dims.index(dim)]}": self._first(dim, spec) for dim in spec.dims if dim not in spec.uses["C"]}
        extents = {f"{EXTENTS}{name}": view for name, view in self.extents.items()}
        formula = tracing.traced_formula(
            self.traced, target, target, first=[name.removeprefix(FIRST) for name in first],
            past_end=[name for name in names if self.coordinates[name].bounded], known=first, spec=spec,
        )  # fmt: skip
        copies, copy = copies_of(RF, spec, draft)
        name = draft.fresh(f"{self.step}{SUFFIX}")
        values = Tensor(draft.fresh(formula.output), accumulator.shape, accumulator.dtype, RF, ColMajor, copies=copies, origin=draft.origin)
        views = {**places, **first, **extents, self.traced.tensor: accumulator, formula.output: whole_view(values, copy)}
        kind = Kind(f"{self.step.capitalize()}_iteration", str(formula))
        printed = kind.starter.on(spec.level, *(views[operand] for operand in kind.definition(()).uses))
        printing = attrs.evolve(self.last, executable=PrintValue(tensor=self.traced.tensor, step=self.step))  # type: ignore[call-arg]
        children = (
            Child("body", spec),
            Child(name, printed, (*tracing.distributed(printed), printing), prefix=f"{name}_", alone=()),
        )
        expansion = draft.expansion(children, (Hole("body"), Comment(tracing.text(self.traced, target)), Hole(name)))
        coordinates = {view.tensor.name for view in self.coordinates.values()}  # known to the definition, but not to the matmul
        return attrs.evolve(expansion, names=(*expansion.names, *sorted(coordinates - {*expansion.names})))

    def _coordinate(self, name: str, part: Dim, spec: Spec) -> View:
        """Return the coordinates of the accumulator's elements along a dimension, in the whole array."""
        view = self.coordinates[name]
        (tile,) = view.dims
        if len(tile.modes) != 1 or tile.modes[0].stride != ONE:
            raise DecompositionError(
                f"{self.label()}: the tile of the definition along {name} is not contiguous", within=spec, legal="contiguous tiles"
            )
        return view.with_dims({0: Dim(part.modes, tile.bound, (*tile.fixed, *part.fixed))})

    def _first(self, dim: str, spec: Spec) -> View:
        """Return the first coordinate of the iteration along a reduced dimension."""
        view = self.coordinates[spec.labels[spec.dims.index(dim)]]
        part = spec.operands["B"].dims[spec.uses["B"].index(dim)]
        own = view.with_dims({0: Dim(part.modes, None, (*view.dims[0].fixed, *part.fixed))})
        return own.at(0, ZERO, False) if len(part.modes) == 1 else own.only(())


def in_loop(steps: Chain, prints: Sequence[PrintIterations], spec: Spec) -> Chain:
    """Return the strategy of a matmul with prints after each iteration of its first loop. Refuse a strategy without a loop."""
    place = next((number for number, step in enumerate(steps) if step.verb == "split"), None)
    if place is None:
        raise DecompositionError(
            f"{prints[0].label()}: the strategy of step {prints[0].step} has no loop", within=spec, legal="a strategy with split(...)",
            hint="print_values without iterations=True prints the result",
        )  # fmt: skip
    return (*steps[: place + 1], *prints, *steps[place + 1 :])


__all__ = ["PrintIterations", "in_loop"]
