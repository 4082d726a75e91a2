"""What a spec and a target specify, as the rules read it: the roles of dimensions, the products, the storage of operands."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Final

import attrs

from fireiron.cost.gpus import Gpu, of_architecture
from fireiron.executable import INSTRUCTIONS
from fireiron.executable.wgmma import Wgmma
from fireiron.frozen import frozen
from fireiron.performing.mma import Mma
from fireiron.spec import Spec, sizes_of
from fireiron.specs.formula import Element, Formula, Looked
from fireiron.specs.fused import fused
from fireiron.specs.fused_definition import FusedDefinition
from fireiron.specs.steps import EXTENTS, INDICES, Step
from fireiron.values.expr import Var, constant
from fireiron.values.machine import WARPGROUP_ARCHITECTURE, Architecture, DType
from fireiron.values.tensor import View

ASSUMED: Final = 4096
"""Elements that a dimension with a run-time size is assumed to have, rounded to the multiple that the size promises."""

VECTOR_BYTES: Final = 16
"""Bytes of the widest access of a thread."""


@frozen
class Product:
    """A sum of products of two operands: `result[batch, rows, columns] = sum(over, left[batch, rows, over] * right[batch, over, columns])`.

    - `step`: the name of the step of a definition; empty for a spec that is a product itself.
    - `rows`, `columns`: the dimensions of the result that only `left`, or only `right`, has; `over`: those that are summed.
    - `types`: the element types of the operands; `sum_type`: that of the accumulator.
    - `arrays`: those of its operands that are arrays in global memory, not temporaries.
    - `looped`: whether a loop of the definition iterates over the summed dimension.
    - `over_first`: for each operand, whether the first of its two dimensions is the one that is summed.
    """

    step: str
    left: str
    right: str
    result: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    over: tuple[str, ...]
    types: tuple[DType, DType]
    sum_type: DType
    arrays: tuple[str, ...]
    looped: bool = False
    over_first: tuple[bool, bool] = (False, True)

    @property
    def is_matrix(self) -> bool:
        """Whether it has one dimension of rows, one of columns, and one that is summed."""
        return len(self.rows) == len(self.columns) == len(self.over) == 1


@attrs.frozen(eq=False, slots=False)
class Facts:
    """The facts of a spec on a target. `definition` is that of several steps; None for other specs."""

    spec: Spec
    target: Architecture

    @functools.cached_property
    def gpu(self) -> Gpu:
        """The GPU whose time is predicted: the default one of the target."""
        return of_architecture(self.target)

    @functools.cached_property
    def definition(self) -> FusedDefinition | None:
        return fused(self.spec)

    # ------------------------------------------------------------------------------------------ dimensions

    @functools.cached_property
    def steps(self) -> tuple[Step, ...]:
        """The steps: those of the definition, or the only one of another spec."""
        if self.definition is not None:
            return self.definition.steps
        return tuple(Step(formula.output, formula) for formula in self.spec.definition.formulas)

    def extent(self, dim: str) -> int | None:
        """Return the extent of a dimension; None if it is known only at run time."""
        return constant(self.spec.size(dim)) if dim in self.spec.dims else None

    def about(self, dim: str) -> int:
        """Return the extent of a dimension, or the one that is assumed for a run-time size."""
        known = self.extent(dim)
        return int(self.spec.size(dim).evaluate(self.assumed)) if known is None and dim in self.spec.dims else known or 1

    @functools.cached_property
    def assumed(self) -> Mapping[str, int]:
        """The values that are assumed for run-time sizes, by name."""
        return {var.name: assumed_value(var) for var in sizes_of(self.spec)}

    @functools.cached_property
    def loops(self) -> tuple[str, ...]:
        """The dimensions of loops, nested ones included."""
        known = self.definition
        return () if known is None else (*known.loops, *(dim for dim in known.nested if dim not in known.loops))

    @functools.cached_property
    def batch(self) -> tuple[str, ...]:
        """The dimensions of which a block has one element."""
        return () if self.definition is None else self.definition.batch

    @functools.cached_property
    def single(self) -> tuple[str, ...]:
        """The dimensions of which a step has one element: those of the batch, and of a loop with a state."""
        return () if self.definition is None else (*self.definition.batch, *self.definition.scan)

    @functools.cached_property
    def used(self) -> tuple[str, ...]:
        """The dimensions of elements that steps read or write, in the order of the spec."""
        named = {dim for step in self.steps for element in (step.formula.target, *step.formula.elements) for dim in element.dims}
        return tuple(dim for dim in self.spec.dims if dim in named)

    @functools.cached_property
    def reduced(self) -> tuple[str, ...]:
        """The dimensions that a step reduces or scans, other than by adding to an output: a block has all of them, or a loop."""
        added = () if self.definition is None else self.definition.added
        known = {dim for step in self.steps if step.formula.output not in added for dim in (*step.formula.over, *step.formula.along)}
        known |= {other for pair in self._equal for other in pair if known & set(pair)}
        return tuple(dim for dim in self.spec.dims if dim in known)

    @functools.cached_property
    def _equal(self) -> tuple[tuple[str, str], ...]:
        return () if self.definition is None else tuple((dim, other) for dim, other, _ in self.definition.equal_sizes)

    @functools.cached_property
    def parallel(self) -> tuple[str, ...]:
        """The dimensions that blocks can divide: no step reduces them, and no loop iterates over them."""
        legal = self.spec.tile_dims if self.definition is None else (*self.definition.tile_dims, *self.definition.batch)
        return tuple(dim for dim in self.used if dim in legal and dim not in self.reduced and dim not in self.loops)

    @functools.cached_property
    def summed(self) -> tuple[str, ...]:
        """The parallel dimensions along which blocks add to an output."""
        added = () if self.definition is None else self.definition.added
        over = {dim for step in self.steps if step.formula.output in added for dim in step.formula.over}
        return tuple(dim for dim in self.parallel if dim in over)

    # ------------------------------------------------------------------------------------------ steps

    @functools.cached_property
    def products(self) -> tuple[Product, ...]:
        """The sums of products of two elements, in order."""
        return tuple(self._product(step) for step in self.steps if step.formula.contracts)

    @functools.cached_property
    def reductions(self) -> tuple[Step, ...]:
        """The sums, maxima and minima of elements of one tensor, in order."""
        return tuple(step for step in self.steps if step.formula.reduction is not None and not step.formula.contracts)

    @functools.cached_property
    def scans(self) -> tuple[Step, ...]:
        """The scans along a dimension."""
        return tuple(step for step in self.steps if step.formula.scan is not None)

    def _product(self, step: Step) -> Product:
        formula = step.formula
        left, right = formula.factors
        target = formula.target.dims
        rows = tuple(dim for dim in target if dim in left.dims and dim not in right.dims)
        columns = tuple(dim for dim in target if dim in right.dims and dim not in left.dims)
        names = (left.tensor, right.tensor)
        return Product(
            step.name if self.definition is not None else "",
            left.tensor,
            right.tensor,
            formula.output,
            tuple(dim for dim in rows if dim not in self.batch),
            tuple(dim for dim in columns if dim not in self.batch),
            formula.over,
            (self.types[left.tensor], self.types[right.tensor]),
            self._sum_type(formula),
            tuple(name for name in names if name in self.spec.operands),
            any(dim in self.loops for dim in formula.over),
            (self._first_of(left) in formula.over, self._first_of(right) in formula.over),
        )

    def _first_of(self, element: Element) -> str:
        """Return the first of the last two dimensions of an element, those of a block."""
        dims = [dim for dim in element.dims if dim not in self.batch]
        return dims[-2] if len(dims) > 1 else ""

    def _sum_type(self, formula: Formula) -> DType:
        if self.definition is None:
            return self.spec.accumulator or self.types[formula.output]
        return self.types[formula.output]

    @functools.cached_property
    def types(self) -> Mapping[str, DType]:
        """The element types of operands and temporaries."""
        operands = {name: view.dtype for name, view in self.spec.operands.items()}
        return operands if self.definition is None else {**operands, **self.definition.all_types(operands)}

    @functools.cached_property
    def live_results(self) -> int:
        """The largest number of temporaries with the dimensions of the products' results that are live at the same time."""
        shapes = {frozenset((*product.rows, *product.columns)) for product in self.products}
        last: dict[str, int] = {}
        for place, step in enumerate(self.steps):
            last |= dict.fromkeys((element.tensor for element in step.formula.elements), place)
        names = {
            step.formula.output: place
            for place, step in enumerate(self.steps)
            if step.formula.output not in self.spec.operands and frozenset(step.formula.target.dims) - {*self.batch} in shapes
        }
        live = (sum(first <= place < last.get(name, 0) for name, first in names.items()) for place in range(len(self.steps)))
        return max(live, default=1)

    # ------------------------------------------------------------------------------------------ operands

    @functools.cached_property
    def arrays(self) -> tuple[str, ...]:
        """The operands in global memory that are read, without parameters, coordinates and extents."""
        return tuple(name for name in self.spec.inputs if self.spec.operands[name].memory.of_grid and not self._is_number(name))

    def _is_number(self, name: str) -> bool:
        return self.spec.operands[name].memory.by_value or name.startswith((INDICES, EXTENTS))

    def view(self, name: str) -> View:
        """Return the view of an operand."""
        return self.spec.operands[name]

    def dims_of(self, name: str) -> tuple[str, ...]:
        """Return the dimensions of an operand, or of a temporary of a definition."""
        if name in self.spec.uses:
            return self.spec.uses[name]
        return () if self.definition is None else self.definition.temporaries.get(name, ())

    def is_direct(self, name: str) -> bool:
        """Whether the indices of an operand are its dimensions: no table, digit or affine index."""
        return self.view(name).tensor.through is None

    def contiguous(self, name: str) -> str:
        """Return the dimension along which elements of an operand are adjacent in memory; empty without one, or if an index is computed."""
        view, dims = self.view(name), self.dims_of(name)
        if not self.is_direct(name):
            return ""
        steps = view.tensor.storage().steps
        along = [dim for axis, dim in enumerate(dims) if (step := steps[view.axis(axis)]) is not None and constant(step) == 1]
        return next((dim for dim in reversed(along) if self.extent(dim) != 1), along[-1] if along else "")

    def vector(self, name: str, most: int = VECTOR_BYTES) -> int:
        """Return the elements of the widest vector of an operand, at most `most` bytes, that provably divides all of its rows."""
        view, along = self.view(name), self.contiguous(name)
        if not along:
            return 1
        widest = max(most // view.dtype.bytes, 1)
        steps = [step for axis, dim in enumerate(self.dims_of(name)) if dim != along and (step := self._step(name, axis)) is not None]
        multiples = [self.multiple(along), *steps, max(view.tensor.align // view.dtype.bytes, 1)]
        return math.gcd(widest, *multiples)

    def bytes_of(self, name: str) -> float:
        """Return the bytes of an operand per element of its dimensions: less than those of its type if several share a stored element."""
        view, points = self.view(name), math.prod(map(self.about, self.dims_of(name)))
        if self._looked_up(name):
            return view.dtype.bytes
        stored = math.prod(int(size.evaluate(self.assumed)) for size in view.tensor.array.shape)
        return view.dtype.bytes * min(1.0, stored / max(points, 1))

    def _looked_up(self, name: str) -> bool:
        """Whether an index of an operand is an element of a table."""
        elements = [element for step in self.steps for element in step.formula.elements if element.tensor == name]
        return any(isinstance(index, Looked) for element in elements for index in element.stored)

    def _step(self, name: str, axis: int) -> int | None:
        view = self.view(name)
        step = view.tensor.storage().steps[view.axis(axis)]
        if step is None:
            return 1
        return None if constant(step) == 0 else step.factor

    def multiple(self, dim: str) -> int:
        """Return a number that divides the extent of a dimension."""
        return self.spec.size(dim).factor

    # ------------------------------------------------------------------------------------------ instructions

    def by_warpgroup(self, product: Product) -> bool:
        """Whether an instruction of warpgroups multiplies these types (Hopper)."""
        if self.target.name != WARPGROUP_ARCHITECTURE:
            return False
        known = [one for one in INSTRUCTIONS if isinstance(one, Wgmma)]
        return any(one.factors == product.types and one.result == product.sum_type for one in known)

    def by_warp(self, product: Product) -> Mma | None:
        """Return the matrix instruction of a warp for these types; None if the target has none."""
        capability = self.target.capability
        known = (mma for mma in INSTRUCTIONS if isinstance(mma, Mma) and mma.capability <= capability <= (mma.last or capability))
        return next((mma for mma in known if tuple(mma.factors.values()) == product.types and mma.result == product.sum_type), None)


def is_copy(step: Step) -> bool:
    """Whether a step copies elements of one tensor, in any order of its dimensions."""
    formula = step.formula
    return formula.elementwise and len(formula.elements) == 1 and str(formula.value) == str(formula.elements[0])


def assumed_value(var: Var) -> int:
    """Return the value that is assumed for a run-time size: about `ASSUMED`, in its range."""
    value = max(ASSUMED // var.multiple_of, 1) * var.multiple_of
    return min(max(value, var.low), var.high)
