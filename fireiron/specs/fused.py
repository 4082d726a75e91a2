"""`Fused`: a definition of several steps, each a formula; a strategy makes one kernel of them.

    gemm_bias_relu = Fused(
        name="gemm_bias_relu", dims="m n k", operands={"A": "m k", "B": "k n", "bias": "n", "D": "m n"},
        body={"mm": "acc[m,n] = sum(k, A[m,k] * B[k,n])", "act": "D[m,n] = relu(acc[m,n] + bias[n])"},
    )

What a step is follows from its formula: a sum of products of two tensors is a `MatMul`, a sum, a maximum, a minimum or a product of the
elements of one tensor a `Reduction`, a copy a `Move`, a number everywhere an `Init`, anything else work on elements. Tensors that are
no operands are temporaries.

The steps of `body` are inside a loop over the dimensions `loop` (any number of elements at a time) or `scan` (one at a time, in order),
those of `init` before it, those of `final` after it. A tensor that one part writes and another reads, or that is read before it is written,
is carried. A dimension in the place of a value is the element's own coordinate: `where(n <= m, s[m,n], -inf)`; `size(n)` is its extent.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

import attrs

from fireiron.errors import ArgumentError, StoreError, closest
from fireiron.generated_verbs import ForFused
from fireiron.spec import TAKEN, Kind, Spec, Starter, check_layout, check_size, located
from fireiron.specs.arithmetic import convert
from fireiron.specs.formula import (
    FUNCTIONS,
    REDUCTIONS,
    Definition,
    Element,
    Formula,
    Index,
    Number,
    Operation,
    Value,
    elements_of,
    formula_of,
)
from fireiron.specs.integers import Range, check_integers
from fireiron.specs.meaning import computing, evaluated, joining, limits_of, multiplied, neutral
from fireiron.specs.terms import Sums
from fireiron.values.cuda_names import is_taken
from fireiron.values.expr import Expr, constant
from fireiron.values.machine import COORD, GL, VAL, DType, Kernel, as_dtype, float16, float32, float64, int8, int32, tf32
from fireiron.values.strides import MOST_ALIGNED, USUAL_ALIGNMENT, StorageOrder, Strides, strides_of
from fireiron.values.tensor import ColMajor, MatrixLayout, RowMajor, Tensor, whole_view

PARTS: Final = ("init", "body", "final")
"""The part of a step: before the loop, inside it, after it."""

ROLES: Final = ("loop", "scan", "batch")
"""Roles of dimensions in addition to tiled ones: a loop over any number of elements at a time, or over one; one element per block."""

_FIELDS: Final = {"loop": "over"}
"""The field of a `FusedDefinition` for an argument of `Fused`, where it has another name."""

INDICES: Final = "index_"
"""How the coordinates of a dimension are called, as an operand: `index_n`."""

EXTENTS: Final = "size_"
"""How the extent of a dimension is called, as an operand: `size_n`."""

FACTOR: Final = "factor "
"""In front of the name of an input: what products take of it, where that is not all of it."""

if TYPE_CHECKING:
    from fireiron.generated_verbs import FusedSpec


AGAIN = "again"
"""The part of the steps behind a loop that another loop over the same dimensions carries out."""


@attrs.frozen
class Step:
    """A step by name: its formula, and the part of the definition that it stands in.

    Of a reduction whose result is left in parts, `parts` is the dimension along which they lie: each is that of some of the terms.
    """

    name: str
    formula: Formula
    part: str = "body"
    parts: str = ""

    def __str__(self) -> str:
        return f"{self.name}: {shown(self.formula)}{', partial results' if self.parts else ''}"

    @property
    def reads(self) -> tuple[str, ...]:
        """The tensors that it reads; of a sum that is added to, the result too."""
        again = (self.formula.output,) if self.formula.joins else ()
        return (*dict.fromkeys(one.tensor for one in self.formula.elements), *again)

    @property
    def reads_others(self) -> tuple[str, ...]:
        """The tensors that it reads, but for the one that it writes."""
        return tuple(name for name in self.reads if name != self.formula.output)


@attrs.frozen
class Placed:
    """Where a temporary lies, if the strategy says so: its memory, the elements by which its rows are longer, another type than it has."""

    tensor: str
    memory: Any
    pad: int = 0
    dtype: DType | None = None


@attrs.frozen
class Skipped:
    """Steps, by name, that a warp leaves out where a condition holds for all elements that its threads have.

    The condition is one of elements, `new[m] == mx[m]`, or several with `and`.
    """

    steps: tuple[str, ...]
    condition: Operation


@attrs.frozen
class FusedDefinition(Definition):
    """The steps of a definition, or of a part of it, on `given` operands, each with its dimensions.

    `order` are all dimensions, `reduced` those that a step of the whole definition reduces; `stored` are temporaries of which nothing is
    made but results without further dimensions, so that one of their replicas is enough. `names` are all of its steps and `known` all
    of its operands, also those that this part has not; `positive` are the numbers by value that are above 0. `chosen` are
    strategies by step, `placed` the temporaries whose memory is said, `skipped` the steps that warps may leave out.
    """

    steps: tuple[Step, ...] = ()
    given: tuple[tuple[str, tuple[str, ...]], ...] = ()
    order: tuple[str, ...] = ()
    over: tuple[str, ...] = ()
    scan: tuple[str, ...] = ()
    batch: tuple[str, ...] = ()
    reduced: tuple[str, ...] = ()
    stored: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    known: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    types: tuple[tuple[str, DType], ...] = ()
    positive: tuple[str, ...] = ()
    chosen: tuple[tuple[str, Any], ...] = ()
    placed: tuple[Placed, ...] = ()
    skipped: tuple[Skipped, ...] = ()

    def __str__(self) -> str:
        return "; ".join(map(str, self.steps))

    def check_meaning(self) -> None:
        """Refuse a definition of which nothing says what it computes; the steps of any other say it."""

    only = None
    joins = False
    sets_numbers = False
    moved_indices = ()
    pointwise = False
    copies = moves = fills = allocates = is_product_sum = multiplies = contracts = reduces = False

    @functools.cached_property
    def uses(self) -> Mapping[str, tuple[str, ...]]:
        """The dimensions of each operand."""
        return dict(self.given)

    @functools.cached_property
    def arrays(self) -> tuple[str, ...]:
        """The operands that are no coordinates: what a kernel takes, and temporaries that were allocated."""
        return tuple(name for name in self.uses if not name.startswith(INDICES))

    @functools.cached_property
    def outputs(self) -> tuple[str, ...]:
        """The operands that a step writes."""
        written = {one.formula.output for one in self.steps}
        return tuple(name for name in self.uses if name in written)

    @functools.cached_property
    def elements(self) -> tuple[Element, ...]:
        """The elements of operands that are read, each once."""
        return tuple(dict.fromkeys(one for step in self.steps for one in step.formula.elements if one.tensor in self.uses))

    @property
    def tile_dims(self) -> tuple[str, ...]:
        """The dimensions that no step reduces, and over which no loop goes."""
        return tuple(dim for dim in self.dims if dim not in (*self.over, *self.scan, *self.reduced))

    @functools.cached_property
    def dims(self) -> tuple[str, ...]:
        """The dimensions that its operands have."""
        found = {dim for dims in self.uses.values() for dim in dims}
        return tuple(dim for dim in self.order if dim in found)

    @functools.cached_property
    def alike(self) -> tuple[tuple[str, str, str], ...]:
        """Pairs of dimensions that have as many elements, as a tensor goes along both, with its name."""
        found: dict[tuple[str, str, str], None] = {}
        for name, dims in {**self.uses, **self.temporaries}.items():
            gone = {*self.batch, *self.scan} - {*dims}  # of a part that all steps take one element of
            elements = [one for step in self.steps for one in (*step.formula.elements, step.formula.target) if one.tensor == name]
            for place in [[dim for dim in one.dims if dim not in gone] for one in elements]:
                found |= {(dim, other, name): None for dim, other in zip(dims, place, strict=True) if dim != other}
        return tuple(found)

    @functools.cached_property
    def loops(self) -> tuple[str, ...]:
        """The dimensions over which a loop goes."""
        return (*self.over, *self.scan)

    @functools.cached_property
    def temporaries(self) -> Mapping[str, tuple[str, ...]]:
        """The tensors that are no operands, with their dimensions."""
        return {one.formula.output: one.formula.target.dims for one in self.steps if one.formula.output not in self.uses}

    @functools.cached_property
    def carried(self) -> Mapping[str, tuple[str, ...]]:
        """The temporaries that outlive a turn of the loop: read in another part than written in, or before they are written."""
        found: dict[str, tuple[str, ...]] = {}
        written: dict[str, str] = {}
        for step in self.steps:
            for name in (*step.reads, step.formula.output):
                if name in self.temporaries and written.setdefault(name, step.part) != step.part:
                    found[name] = self.temporaries[name]
            for name in step.reads:
                if name in self.temporaries and not any(one.formula.output == name for one in self.steps[: self.steps.index(step)]):
                    found[name] = self.temporaries[name]
        return found

    def dtype_of(self, name: str, operands: Mapping[str, DType]) -> DType:
        """The type of a temporary: what the definition says; a factor of a product has the other factor's type; else float32."""
        said = dict(self.types).get(name)
        if said is not None:
            return said
        for one in self.steps:
            factors = [element.tensor for element in one.formula.elements] if one.formula.contracts else []
            if name in factors:
                others = [operands[other] for other in factors if other in operands]
                return others[0] if others else float16
        if any(kind == float64 for kind in operands.values()):
            return float64
        sums = [one.formula for one in self.steps if one.formula.output == name and one.formula.contracts]
        wholly = sums and all(operands.get(element.tensor) == int8 for one in sums for element in one.elements)
        return int32 if wholly else float32

    def kept_in(self, step: Step, types: Mapping[str, DType], declared: DType) -> DType:
        """The type in which the result of a step is kept, `types` being those of tensors as they are, `declared` that of its tensor.

        Floats that are made of an integer product, where its sum was, replace it, and are kept as floats until it is made again.
        """
        one = step.formula
        if one.contracts or one.output not in self.hidden:
            return declared
        if self.replaces(step, types):
            return computing(one, self._read_types(step, types))
        return types.get(one.output, declared)

    def replaces(self, step: Step, types: Mapping[str, DType]) -> bool:
        """Whether a step puts floats in the place of the integers of a product's sum, a temporary: `acc[m,n] = acc[m,n] * scale[n]`."""
        one = step.formula
        if types[one.output].kind == "float" or one.output not in self.hidden or one.contracts:
            return False
        if not any(other.formula.output == one.output and other.formula.contracts for other in self.steps):
            return False
        return not isinstance(one.value, (Element, Number)) and computing(one, self._read_types(step, types)).kind == "float"

    def _read_types(self, step: Step, types: Mapping[str, DType]) -> Mapping[str, DType]:
        """The types of what a step reads, coordinates and extents among it."""
        return {name: int32 if name.startswith((INDICES, EXTENTS)) else types[name] for name in step.reads}

    @property
    def product(self) -> Step | None:
        """The product of two operands around which all other steps stand, if there is one: a strategy for a product may take all of it."""
        found = [one for one in self.steps if one.formula.contracts]
        if len(found) != 1 or self.loops or self.batch:
            return None
        return found[0] if all(element.tensor in self.uses for element in found[0].formula.elements) else None

    # ------------------------------------------------------------------------------------------ parts

    def part(self, name: str) -> FusedDefinition:
        """The steps of one part, with the operands that they touch. Those that count tiled dimensions stay, so that all deal alike.

        So do those that count what a step reduces, or a loop goes over, as its last turn may pass the end.
        """
        steps = tuple(one for one in self.steps if one.part == name)
        touched = {tensor for one in steps for tensor in (*one.reads, one.formula.output)}
        counted = {*self.tile_dims, *(self.over if name in ("body", AGAIN) else ()), *(dim for one in steps for dim in one.formula.over)}
        counted |= {tensor[len(EXTENTS) :] for tensor in touched if tensor.startswith(EXTENTS)}
        touched |= {f"{INDICES}{dim}" for dim in counted}
        given = tuple((tensor, dims) for tensor, dims in self.given if tensor in touched)
        return self.of(steps=steps, given=given)

    def again(self) -> FusedDefinition:
        """The same with a part of its own for the steps of `final` from the first one on whose result has a dimension of the loop.

        Another loop may carry them out, in blocks of any size; they stay where one of them reduces such a dimension.
        """
        last = [one for one in self.steps if one.part == "final"]
        along = [set(one.formula.target.dims) & set(self.over) for one in last]
        start = next((number for number, dims in enumerate(along) if dims), len(last))
        if any(set(one.formula.over) & set(self.over) for one in last[start:]):
            return self
        return self.of(steps=tuple(attrs.evolve(one, part=AGAIN) if one in last[start:] else one for one in self.steps))

    def of(self, **changes: Any) -> FusedDefinition:
        """The same with other fields."""
        made = attrs.evolve(self, **changes)
        return attrs.evolve(made, formulas=tuple(one.formula for one in made.steps))

    def strategy_of(self, step: str) -> Any:
        """The strategy that was chosen for a step; None where none was."""
        return dict(self.chosen).get(step)

    def place_of(self, tensor: str) -> Placed | None:
        """Where a temporary was placed; None where nothing says so."""
        return next((one for one in self.placed if one.tensor == tensor), None)

    # ------------------------------------------------------------------------------------------ meaning

    def evaluate(self, arrays: Mapping[str, Any], sizes: Mapping[str, int], types: Mapping[str, DType], chunk: int = 0) -> dict[str, Any]:
        """The outputs in float64, from the inputs; loops over dimensions take `chunk` elements at a time, or all (0).

        Integers are exact: temporaries of integers have the values that a kernel's have.
        """
        import numpy

        known = self.all_types(types)
        values: dict[str, Any] = {name: numpy.asarray(one).astype(exact_in(known[name])) for name, one in arrays.items()}
        values |= factors(arrays, types)
        values |= {f"{INDICES}{dim}": numpy.arange(size) for dim, size in sizes.items()}
        values |= {f"{EXTENTS}{dim}": numpy.asarray(size) for dim, size in sizes.items()}
        for name in self.outputs:
            shape = [sizes[dim] for dim in self.uses[name]]
            values[name] = convert(numpy.full(shape, numpy.nan), known[name]).astype(exact_in(known[name]))
        with numpy.errstate(all="ignore"):
            self.turns(values, sizes, chunk, known)
        return {name: convert(values[name], types[name]) for name in self.outputs}

    def all_types(self, operands: Mapping[str, DType]) -> dict[str, DType]:
        """The types of operands, float64 where none is said, and of temporaries."""
        every = {**dict.fromkeys(self.arrays, float64), **operands}
        return {**every, **{name: self.dtype_of(name, every) for name in self.temporaries}}

    def turns(self, values: dict[str, Any], sizes: Mapping[str, int], chunk: int, types: Mapping[str, DType]) -> None:
        """All steps in all turns of the loops, on values by name, whose tensors have these types."""
        for batch in self._turns(self.batch, sizes, 1):
            self._run("init", values, batch, types)
            for place in self._turns(self.loops, sizes, chunk):
                self._run("body", values, {**batch, **place}, types)
            self._run("final", values, batch, types)

    def _turns(self, dims: tuple[str, ...], sizes: Mapping[str, int], chunk: int) -> Iterator[dict[str, slice]]:
        """The part of each dimension that a turn works on."""
        places: list[dict[str, slice]] = [{}]
        for dim in dims:
            step = 1 if dim in self.scan else chunk or sizes[dim]
            parts = [slice(start, min(start + step, sizes[dim])) for start in range(0, sizes[dim], step)]
            places = [{**one, dim: part} for one in places for part in parts]
        yield from places

    def _run(self, part: str, values: dict[str, Any], place: Mapping[str, slice], types: Mapping[str, DType]) -> None:
        for step in self.steps:
            if step.part == part:
                self.perform(step, values, place, types)

    def perform(self, step: Step, values: dict[str, Any], place: Mapping[str, slice], types: Mapping[str, DType]) -> None:
        """One step on the part of its dimensions that a turn works on."""
        import numpy

        one = step.formula
        taken = {element: self.read(one, values, element, place) for element in one.elements}
        dropped = tuple(dim for dim in (*self.scan, *self.batch) if dim not in one.target.dims)
        kept = self.kept_in(step, self.types_now(step, values, types), types[one.output])
        ranges = _ranges_now(step, values, types)
        made = (
            evaluated(one, taken, dropped, ranges, kept)
            if not step.parts
            else _by_parts(step, taken, dropped, len(values[f"{INDICES}{step.parts}"]), ranges)
        )
        shape = [_extent(dim, taken, values, place) for dim in one.target.dims]
        made = numpy.broadcast_to(made, shape)
        if one.joins and one.output in values:
            old = _at(values, one.target, self.uses, place)
            made = joining(one.joins_by)(old, made)
        whole = numpy.issubdtype(made.dtype, numpy.integer)
        if kept.kind == "int" or (whole and self.written_whole(step)):  # from 64 bits to the float of an output at once
            made = convert(made, kept)
        made = made.astype(exact_in(kept))
        if self.written_whole(step):
            values[one.output][tuple(place.get(dim, slice(None)) for dim in one.target.dims)] = made
        else:
            values[one.output] = made

    def types_now(self, step: Step, values: Mapping[str, Any], types: Mapping[str, DType]) -> dict[str, DType]:
        """The types of what a step reads and writes: of what floats have replaced, float64."""
        names = [name for name in (*step.reads, step.formula.output) if not name.startswith((INDICES, EXTENTS))]
        return {name: float64 if types[name].kind == "int" and _holds_floats(values.get(name)) else types[name] for name in names}

    def written_whole(self, step: Step) -> bool:
        """Whether a step writes a part of an operand, and no temporary, which has only that part."""
        return step.formula.output in self.uses and not step.formula.output.startswith(INDICES)

    def taken(self, values: Mapping[str, Any], element: Element, place: Mapping[str, slice]) -> Any:
        """The part of an operand that a turn works on."""
        return _at(values, element, self.uses, place)

    def read(self, one: Formula, values: Mapping[str, Any], element: Element, place: Mapping[str, slice]) -> Any:
        """The part of an operand that a formula reads in a turn: of a factor of a product what matrix instructions take of it."""
        factor = f"{FACTOR}{element.tensor}"
        return self.taken({**values, element.tensor: values[factor]} if one.is_product_sum and factor in values else values, element, place)


def factors(arrays: Mapping[str, Any], types: Mapping[str, DType]) -> dict[str, Any]:
    """What products take of inputs, by names of their own, of those of which they do not take all."""
    import numpy

    return {f"{FACTOR}{name}": multiplied(one, tf32).astype(numpy.float64) for name, one in arrays.items() if types.get(name) == tf32}


def _at(values: Mapping[str, Any], element: Element, uses: Mapping[str, tuple[str, ...]], place: Mapping[str, slice]) -> Any:
    """The part of an operand that a turn works on; a temporary has only that part."""
    array = values[element.tensor]
    if element.tensor not in uses and not element.tensor.startswith((INDICES, EXTENTS)):
        return array
    return array[tuple(place.get(dim, slice(None)) for dim in element.dims)]


def exact_in(dtype: DType) -> Any:
    """The type of NumPy in which values of a type are evaluated: integers exactly, floats in float64."""
    import numpy

    return numpy.int64 if dtype.kind == "int" else numpy.float64


def _holds_floats(array: Any) -> bool:
    import numpy

    return array is not None and not numpy.issubdtype(array.dtype, numpy.integer)


def _ranges_now(step: Step, values: Mapping[str, Any], types: Mapping[str, DType]) -> dict[str, Range]:
    """Between which numbers the integers lie that a step reads."""
    found = {}
    for name in (*step.reads, step.formula.output):
        if name.startswith(EXTENTS):
            found[name] = (int(values[name]), int(values[name]))
        elif name.startswith(INDICES):
            found[name] = (0, int(values[f"{EXTENTS}{name[len(INDICES) :]}"]) - 1)
        elif types[name].kind == "int" and not _holds_floats(values.get(name)):
            found[name] = types[name].limits
    return found


def _by_parts(step: Step, taken: Mapping[Element, Any], dropped: tuple[str, ...], count: int, ranges: Mapping[str, Range]) -> Any:
    """What the terms of each part make, its dimension last: any partition means the same, here every so many-th is of one part."""
    import numpy

    one = attrs.evolve(step.formula, target=Element(step.formula.output, step.formula.target.index[:-1]))
    ((element, terms),) = taken.items()
    axis = element.dims.index(one.over[0])
    number = numpy.arange(terms.shape[axis]).reshape([-1 if place == axis else 1 for place in range(terms.ndim)]) % count
    nothing = neutral(one.joins_by, float64)
    parts = ({element: numpy.where(number == part, terms, nothing)} for part in range(count))
    return numpy.stack([evaluated(one, part, dropped, ranges) for part in parts], -1)


def _extent(dim: str, taken: Mapping[Element, Any], values: Mapping[str, Any], place: Mapping[str, slice]) -> int:
    """How many elements of a dimension a turn works on."""
    for element, array in taken.items():
        if dim in element.dims:
            return int(array.shape[element.dims.index(dim)])
    return len(values[f"{INDICES}{dim}"][place.get(dim, slice(None))])


# ---------------------------------------------------------------------------------------------- kinds


@attrs.frozen
class FusedKind(Kind):
    """The kind of specs that a fused definition, or a part of it, makes."""

    made: FusedDefinition = attrs.field(kw_only=True)

    @property
    def starter(self) -> Fused:  # type: ignore[override]
        return Fused.of(self)

    def definition(self, parameters: tuple[tuple[str, Any], ...], rank: int = 2) -> Definition:
        return self.made

    def of_signature(self, parameters: tuple[tuple[str, Any], ...], signature: str) -> Definition:
        return self.made

    def of_sizes(self, parameters: tuple[tuple[str, Any], ...], count: int, signature: str = "") -> Definition:
        return self.made

    def of_views(self, parameters: tuple[tuple[str, Any], ...], views: tuple[Any, ...]) -> Definition:
        return self.made

    def reference(
        self, made: Definition, arrays: Mapping[str, Any], types: Mapping[str, DType], sizes: Mapping[str, int]
    ) -> tuple[Any, ...]:
        found = self.made.evaluate(arrays, sizes, types)
        return tuple(found[name] for name in self.made.outputs)

    def check_integers(self, spec: Spec) -> None:
        made = self.made
        types = made.all_types({name: view.dtype for name, view in spec.operands.items()})
        bounds: dict[str, str] = {}
        ranges = dict(limits_of({name: types[name] for name in types if not name.startswith(INDICES)}))
        for dim in made.order:
            size = spec.size(dim) if dim in spec.dims else None
            if size is None:
                continue
            ranges |= {f"{INDICES}{dim}": (0, max(size.high - 1, 0)), f"{EXTENTS}{dim}": (size.low, size.high)}
            text = ", ".join(f'sym("{one.name}", high=65536)' for one in sorted(size.variables(), key=str))
            bounds |= {f"{kind}{dim}": text for kind in (INDICES, EXTENTS) if text}
        for step in made.steps:
            if made.replaces(step, types):
                _check_replaced(made, step, types)
                types[step.formula.output] = made.kept_in(step, types, types[step.formula.output])
                ranges.pop(step.formula.output, None)
            check_integers(step.formula, ranges, bounds, f"step {step.name}", shown)

    def check_meaning(self, made: Definition) -> None:
        super().check_meaning(made)
        self.made.check_meaning()

    def short(self, spec: Spec) -> str | None:
        """The definition called with sizes, types and storage orders, where that makes the spec."""
        return _called_as(spec, Fused.of(self)) if self.whole else None

    @functools.cached_property
    def whole(self) -> bool:
        """Whether it is a definition as a user writes it, and not a part of one, or one to whose steps a strategy has come."""
        try:
            return Fused(**dict(words_of(self))).kind == self
        except ArgumentError:
            return False

    def of(self, **changes: Any) -> FusedKind:
        """The kind with other fields of its definition."""
        return attrs.evolve(self, made=self.made.of(**changes))


def fused(spec: Spec) -> FusedDefinition | None:
    """The definition of a spec of several steps; None for any other."""
    return spec.definition if isinstance(spec.definition, FusedDefinition) else None


def positive_numbers(spec: Spec) -> tuple[str, ...]:
    """The numbers by value that a spec's definition wants above 0."""
    made = fused(spec)
    return () if made is None else made.positive


def with_definition(spec: Spec, made: FusedDefinition, views: Mapping[str, Any]) -> Spec:
    """The spec with another definition, on its own views and others."""
    known = {**spec.operands, **views}
    assert isinstance(spec.kind, FusedKind)
    return attrs.evolve(spec, kind=attrs.evolve(spec.kind, made=made), views=tuple(known[name] for name in made.uses))


def _dims_of(text: object, what: str, known: Iterable[str] | None = None) -> tuple[str, ...]:
    """The dimensions of a text, apart by blanks."""
    if not isinstance(text, str):
        raise ArgumentError(f"Fused: {what} are a text, names apart by blanks", got=text, legal='"m n k"')
    dims = tuple(text.replace(",", " ").split())
    wrong = [dim for dim in dims if not dim.isidentifier() or (known is not None and dim not in known)]
    if wrong or len(set(dims)) != len(dims):
        raise ArgumentError(f"Fused: {what}", got=text, legal="different names" if known is None else tuple(known))
    return dims


class Fused(ForFused, Starter):
    """A definition of several steps: where chains for it start, and, called with sizes, its spec."""

    @located
    def __init__(
        self,
        name: str,
        dims: str,
        operands: Mapping[str, str],
        body: Mapping[str, str],
        init: Mapping[str, str] | None = None,
        final: Mapping[str, str] | None = None,
        loop: str = "",
        scan: str = "",
        batch: str = "",
        types: Mapping[str, Any] | None = None,
        positive: str = "",
    ) -> None:
        """Args:
            dims: all dimensions.
            operands: the dimensions of each tensor that the kernel takes; a number has none.
            init, body, final: formulas by the name of their step: before the loop, inside it, after it.
            loop: dimensions of which `body` may take any number of elements at a time.
            scan: dimensions of which `body` takes one element at a time, in order.
            batch: dimensions of which all steps take one element.
            types: element types of temporaries, if not the default (float32, and for a factor of an MMA the type of the other factor), and
                of operands, if the call does not specify others.
            positive: numbers passed by value that are above 0; a kernel refuses others.

        Raises: ArgumentError, by step, for formulas that no kernel can compute.
        """
        order = _dims_of(dims, "dims")
        for what, by_name, legal in (("operands", operands, '{"X": "m n"}'), ("types", types or {}, '{"t": float32}')):
            if not isinstance(by_name, Mapping):
                raise ArgumentError(f"Fused: {what} stand by name", got=by_name, legal=legal)
        uses = {one: _dims_of(text, f"the dimensions of {one}", order) for one, text in dict(operands).items()}
        roles = {role: _dims_of(text, role, order) for role, text in zip(ROLES, (loop, scan, batch), strict=True)}
        _check_names(name, order, uses, roles)
        parts = (("init", init or {}), ("body", body), ("final", final or {}))
        steps = tuple(
            Step(step, _read(text, step, order), part) for part, formulas in parts for step, text in _named(formulas, part, parts).items()
        )
        steps = _with_terms(steps, (*order, *uses), (*roles["scan"], *roles["batch"]))
        counted = {f"{INDICES}{dim}": (dim,) for dim in order}
        given = {**uses, **counted}
        known = tuple((one, as_dtype(kind)) for one, kind in (types or {}).items())
        reduced = tuple(dim for dim in order if dim in _reduced([one for one in steps if not _gathers(one, steps, uses)], given))
        hidden = dict.fromkeys(one.formula.output for one in steps if one.formula.output not in given)
        _check_typed(known, (*uses, *hidden))
        made = FusedDefinition(
            tuple(one.formula for one in steps), steps=steps, given=tuple(given.items()), order=order, reduced=reduced,
            stored=only_stored(steps, given), names=tuple(one.name for one in steps), known=tuple(given), hidden=tuple(hidden),
            types=known, positive=_positive_numbers(positive, uses),
            over=roles["loop"], scan=roles["scan"], batch=roles["batch"],
        )  # fmt: skip
        _check_steps(made)
        super().__init__(FusedKind(name, _text(made), made=made))

    def takes(self, start: Starter) -> bool:
        """A chain for a product fits a definition around one."""
        return super().takes(start) or (start.kind.title == "MatMul" and self.made.product is not None)

    @staticmethod
    def of(kind: FusedKind) -> Fused:
        """The definition of a kind."""
        made = Fused.__new__(Fused)
        Starter.__init__(made, kind)
        return made

    @property
    def made(self) -> FusedDefinition:
        """Its steps, operands and dimensions."""
        assert isinstance(self.kind, FusedKind)
        return self.kind.made

    @located
    def __call__(  # type: ignore[override]
        self, *, dtype: DType = float16, types: Mapping[str, DType] | None = None, **sizes: Expr | int | StorageOrder
    ) -> FusedSpec:
        """The spec of the kernel: sizes by dimension, integers or symbols; storage orders by operand, row-major where none is said.

        `dtype` is the type of operands with dimensions (float16), float32 that of numbers; `types` are others, by operand. Those that the
        definition states need not be said again.
        """
        made = self.made
        tensors = [one for one in made.uses if not one.startswith(INDICES)]
        layouts = {one: sizes.pop(one) for one in tensors if one in sizes}
        if set(sizes) != set(made.order):
            raise ArgumentError(f"{self.kind.title}: sizes of other dimensions", got=sorted(sizes), legal=made.order)
        extents = {dim: check_size(sizes[dim], dim) for dim in made.order}
        _check_alike(self.kind.title, made, extents)
        said, stated = {one: as_dtype(kind) for one, kind in (types or {}).items()}, dict(made.types)
        unknown = [one for one in said if one not in tensors]
        if unknown:
            raise ArgumentError(f"{self.kind.title}: {unknown[0]} is no operand", got=unknown[0], legal=tensors)
        views = []
        for one, dims in made.uses.items():
            shape = tuple(extents[dim] for dim in dims)
            if one.startswith(INDICES):
                views.append(whole_view(Tensor(one, shape, int32, COORD, ColMajor)))
                continue
            kind = said.get(one) or stated.get(one) or (as_dtype(dtype) if dims else float32)
            asked = layouts.get(one, RowMajor)
            align = asked.align if isinstance(asked, Strides) else USUAL_ALIGNMENT
            views.append(whole_view(Tensor(one, shape, kind, GL if dims else VAL, check_layout(asked, one, dims, shape), align=align)))
        return cast("FusedSpec", Spec(Kernel, self.kind, tuple(views)))

    def __repr__(self) -> str:
        assert isinstance(self.kind, FusedKind)
        return f"Fused({', '.join(f'{word}={value!r}' for word, value in words_of(self.kind).items())})"

    def __str__(self) -> str:
        return text_of(self.made, self.kind.title)

    @located
    def check(self, sizes: Mapping[str, int] | None = None, seed: int = 0) -> None:
        """Refuse a definition whose result depends on how a kernel goes along it, or in which a temporary serves nothing.

        A kernel takes as many elements of `loop` at a time as its strategy says. The definition is evaluated in float64 on the same
        random inputs, normal and positive ones, with all elements at a time, with 7 and with 1: the outputs have to be the same, but for
        rounding. Equal arguments give equal answers. `sizes` are those of dimensions, small ones where none are named.

        >>> from fireiron import *
        >>> total = Fused(name="total", dims="m n", loop="n", operands={"X": "m n", "y": "m"},
        ...     init={"zero": "s[m] = 0"}, body={"s": "s[m] += sum(n, X[m,n])"}, final={"y": "y[m] = s[m]"})
        >>> total.check()  # with s[m] = sum(n, X[m,n]) in its place the last turn's sum would be all that is left

        Raises: ArgumentError that names the output, an element and its two values; and the temporary that nothing reads.
        """
        import numpy

        made = self.made
        idle = [one for one in made.temporaries if all(one not in step.reads_others for step in made.steps)]
        if idle:
            raise ArgumentError(f"{self.kind.title}: nothing reads {idle[0]}", hint="leave its steps out, or make it an operand")
        unknown = [dim for dim in sizes or {} if dim not in made.order]
        if unknown:
            raise ArgumentError(f"{self.kind.title}.check: no dimension {unknown[0]}", legal=made.order)
        chosen = {dim: 9 + place for place, dim in enumerate(made.order)}
        for one, other, _ in made.alike:
            chosen[other] = chosen[one]
        chosen |= dict(sizes or {})
        _check_alike(self.kind.title, made, chosen)
        for positive in (False, True):
            arrays = _random_inputs(made, chosen, seed, positive)
            arrays |= {name: numpy.abs(arrays[name]) + 0.1 for name in made.positive}
            exact = made.of(types=())
            whole = exact.evaluate(arrays, chosen, dict.fromkeys(made.arrays, float64))
            for chunk in (7, 1) if made.over else ():
                parts = exact.evaluate(arrays, chosen, dict.fromkeys(made.arrays, float64), chunk)
                for name in made.outputs:
                    self._check_output(name, chunk, parts[name], whole[name])

    def _check_output(self, name: str, chunk: int, parts: Any, whole: Any) -> None:
        """Refuse an output that is not the same by parts."""
        import numpy

        with numpy.errstate(invalid="ignore"):
            wrong = ~numpy.isclose(parts, whole, rtol=1e-9, atol=1e-9, equal_nan=True)
        if not wrong.any():
            return
        made, place = self.made, tuple(map(int, numpy.argwhere(wrong)[0]))
        at = f"{name}[{','.join(map(str, place))}]"
        lost = [one for one in made.carried if not any(step.part == "init" and step.formula.output == one for step in made.steps)]
        step = next((one for one in made.steps if one.formula.output in lost and one.part == "body"), None)
        hint = "what a turn leaves to the next has to be carried, and rescaled where the new turn changes what it meant"
        if step is not None:
            hint = f"{step.formula.output} is carried: specify in init what it is before the loop, and join it in body: "
            hint += f"{step.formula.target} = {step.formula.target} + ..., or +="
        raise ArgumentError(
            f"{self.kind.title}: {name} depends on how many elements of {' '.join(made.over)} a turn of the loop takes",
            got=f"{chunk} at a time: {at} = {parts[place]:.6g}, all at a time: {at} = {whole[place]:.6g}",
            legal="outputs that are the same for any number",
            hint=hint,
        )


def _check_alike(title: str, made: FusedDefinition, sizes: Mapping[str, Any]) -> None:
    """Refuse sizes that differ where a tensor is read along one dimension and written along another."""
    for one, other, name in made.alike:
        if sizes[one] != sizes[other]:
            raise ArgumentError(
                f"{title}: {name} goes along {one} and along {other}, so both have as many elements",
                got=f"{one}={sizes[one]}, {other}={sizes[other]}", legal=f"{one}={sizes[one]}, {other}={sizes[one]}",
            )  # fmt: skip


def _random_inputs(made: FusedDefinition, sizes: Mapping[str, int], seed: int, positive: bool) -> dict[str, Any]:
    """Normal numbers for each input, or their magnitudes, of which every root and logarithm is a number."""
    import numpy

    random = numpy.random.default_rng(seed)
    inputs = [name for name in made.arrays if name not in made.outputs]
    drawn = {name: random.standard_normal([sizes[dim] for dim in made.uses[name]]) for name in inputs}
    return {name: numpy.abs(values) + 0.1 for name, values in drawn.items()} if positive else drawn


# ---------------------------------------------------------------------------------------------- texts


def words_of(kind: FusedKind) -> dict[str, Any]:
    """The arguments of `Fused` that make a definition, without those that are empty."""
    made = kind.made
    words: dict[str, Any] = {"name": kind.title, "dims": " ".join(made.order)}
    words["operands"] = {one: " ".join(dims) for one, dims in made.uses.items() if not one.startswith(INDICES)}
    words |= {part: {one.name: shown(one.formula) for one in made.steps if one.part == part} for part in PARTS}
    words |= {word: " ".join(getattr(made, _FIELDS.get(word, word))) for word in NAMES}
    words["types"] = dict(made.types)
    return {word: value for word, value in words.items() if value or word in ("operands", "body")}


PAIRED: Final = ("operands", *PARTS, "types")
"""What of a definition is by name."""

NAMES: Final = (*ROLES, "positive")
"""What of a definition are names, with blanks between."""


def definition_fields(kind: FusedKind) -> dict[str, Any]:
    """The arguments of `Fused` as plain values, mappings as pairs; a `StoreError` for a part of a definition, which no strategy is for."""
    if not kind.whole:
        raise StoreError(f"a part of the definition {kind.title} cannot be stored", hint="store the strategy and the spec of the kernel")
    words = {**{name: {} for name in PAIRED}, **dict.fromkeys(ROLES, ""), **words_of(kind)}
    return {name: [*value.items()] if name in PAIRED else value for name, value in words.items()}


def definition(fields: Mapping[str, Any]) -> FusedKind:
    """The kind of a definition from such arguments; refused where a name stands twice, or where `Fused` refuses it."""
    named = {name: dict(fields[name]) for name in PAIRED}
    for name, pairs in named.items():
        if len(pairs) != len(fields[name]):
            raise StoreError(f"{name} name one thing twice", got=[first for first, _ in fields[name]])
    kind = Fused(**{**fields, **named}).kind
    assert isinstance(kind, FusedKind)
    return kind


def text_of(made: FusedDefinition, title: str) -> str:
    """A definition for people: its dimensions with their roles, its operands, and a step a line."""
    roles = [f"{role} {' '.join(names)}" for role in ROLES if (names := getattr(made, _FIELDS.get(role, role)))]
    signs = dict.fromkeys(made.positive, " > 0")
    arrays = {one: dims for one, dims in made.uses.items() if not one.startswith(INDICES)}
    tensors = [f"{one}[{','.join(dims)}]" if dims else f"{one}{signs.get(one, '')}" for one, dims in arrays.items()]
    width = max(len(one.name) for one in made.steps)
    lines = [f"{title}({', '.join(made.order)})  {'  '.join(roles)}".rstrip(), f"  of {', '.join(tensors)}"]
    for part in PARTS:
        steps = [one for one in made.steps if one.part == part]
        lines += [f"  {part}"] if steps and (made.loops or part != "body") else []
        lines += [f"    {one.name:<{width}}  {shown(one.formula)}" for one in steps]
    return "\n".join(lines)


def _called_as(spec: Spec, start: Fused) -> str | None:
    """The call of a definition that makes a spec; None where none does."""
    sizes = {dim: spec.size(dim) for dim in start.made.order}
    views = {name: view for name, view in spec.operands.items() if not view.memory.counts}
    stated = dict(start.made.types)
    usual = {view.dtype for view in views.values() if view.tensor.shape}
    dtype = usual.pop() if len(usual) == 1 else float16
    types = {name: view.dtype for name, view in views.items() if name in stated or view.dtype != (dtype if view.tensor.shape else float32)}
    types = {name: kind for name, kind in types.items() if kind != stated.get(name)}
    orders: dict[str, Any] = {}
    for name, view in views.items():
        layout = view.tensor.layout
        said = layout if isinstance(layout, MatrixLayout) else strides_of(name, spec.uses[name], layout)
        if said is None or (isinstance(said, Strides) and view.tensor.align not in _ALIGNMENTS):
            return None
        if said != RowMajor:
            orders[name] = said.aligned(view.tensor.align) if isinstance(said, Strides) else said
    try:
        same = start(dtype=dtype, types=types, **sizes, **orders) == spec
    except ArgumentError:
        return None
    words = [f"{dim}={size if constant(size) is not None else repr(size)}" for dim, size in sizes.items()]
    words += [f"dtype={dtype!r}"] if dtype != float16 else []
    words += [f"types={types!r}"] if types else []
    words += [f"{name}={order!r}" for name, order in orders.items()]
    return f"{start!r}({', '.join(words)})" if same else None


_ALIGNMENTS: Final = tuple(1 << power for power in range(MOST_ALIGNED.bit_length()))
"""Bytes of whose multiples one the address of an operand may be said to be."""


# ---------------------------------------------------------------------------------------------- reading and checks


def _with_terms(steps: Sequence[Step], names: Iterable[str], single: Collection[str]) -> tuple[Step, ...]:
    """The steps, those that add up expressions with their terms in front."""
    taken = {*names, *(name for one in steps for name in (one.name, one.formula.output))}
    sums = Sums(taken, single, INDICES)
    return tuple(Step(name, made, one.part) for one in steps for name, made in sums.parted(one.name, one.formula))


def _positive_numbers(text: object, uses: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """The names of numbers by value that are above 0; refused where one is none."""
    found = tuple(text.split()) if isinstance(text, str) else None
    numbers = [name for name, dims in uses.items() if not dims]
    if found is None or not set(found) <= set(numbers) or len(set(found)) < len(found):
        raise ArgumentError("Fused: positive are operands without dimensions, by name", got=text, legal=" ".join(numbers) or "none here")
    return found


def _check_typed(types: Sequence[tuple[str, DType]], names: Sequence[str]) -> None:
    """Refuse a type of something that the definition has not."""
    for one, _ in types:
        if one not in names:
            raise ArgumentError(f"Fused: types name {one}, which is neither an operand nor a temporary", got=one, legal=names)


def _gathers(step: Step, steps: Iterable[Step], uses: Mapping[str, Any]) -> bool:
    """Whether a step reduces one tensor into an operand that no step reads: whoever has terms of a sum may add its part of it, and of
    another reduction a tile may have all."""
    one = step.formula
    return one.reduces and one.output in uses and not any(one.output in other.reads for other in steps)


def _other_names(elements: Sequence[Element]) -> list[tuple[Element, Element]]:
    """The pairs of elements of one tensor whose dimensions have other names: `h[m,n]` and `h[m,k]`."""
    alike: dict[str, list[tuple[Element, tuple[str, ...]]]] = {}
    for one in elements:
        alike.setdefault(one.tensor, []).append((one, one.dims))
    apart = {tensor: same for tensor, same in alike.items() if any(dims != same[0][1] for _, dims in same)}
    return [(one, other) for one in elements for other, dims in apart.get(one.tensor, ()) if one.dims != dims]


def _reduced(steps: Iterable[Step], uses: Mapping[str, Any]) -> set[str]:
    """The dimensions that a step reduces, and those under which another writes what is reduced: `h[m,n]`, of which `h[m,k]` is read."""
    found = {dim for one in steps for dim in one.formula.over}
    elements = [element for one in steps for element in (*one.formula.elements, one.formula.target) if element.tensor not in uses]
    again = _other_names(elements)
    for _ in again:
        found |= {other.dims[place] for one, other in again for place, dim in enumerate(one.dims[: len(other.dims)]) if dim in found}
    return found


def only_stored(steps: Sequence[Step], uses: Mapping[str, Any]) -> tuple[str, ...]:
    """The temporaries of which nothing is made but operands, and temporaries of this kind, of no further dimensions."""
    found = {one.formula.output: set(one.formula.target.dims) for one in steps if one.formula.output not in uses}
    readers: dict[str, list[Step]] = {}
    for step in steps:
        for name in step.reads:
            readers.setdefault(name, []).append(step)
    while True:
        kept = {
            name: dims
            for name, dims in found.items()
            if all(
                set(one.formula.target.dims) <= dims and (one.formula.output in uses or one.formula.output in found)
                for one in readers.get(name, ())
            )
        }
        if len(kept) == len(found):
            return tuple(kept)
        found = kept


def _named(formulas: object, part: str, parts: Iterable[tuple[str, Any]]) -> Mapping[str, str]:
    """The formulas of a part by step; refused where a name is none, or stands in two parts."""
    if not isinstance(formulas, Mapping):
        raise ArgumentError(f"Fused: {part} are formulas by the name of their step", got=formulas, legal='{"mm": "acc[m,n] = ..."}')
    names = [name for _, others in parts for name in (others if isinstance(others, Mapping) else ())]
    for name in formulas:
        if not isinstance(name, str) or not name.isidentifier() or names.count(name) > 1:
            twice = isinstance(name, str) and names.count(name) > 1
            what = f"Fused: the step {name} stands in two parts" if twice else f"Fused: {part} names a step {name!r}"
            raise ArgumentError(what, legal="different identifiers", hint="another name for one of them" if twice else None)
    return formulas


def _read(text: object, step: str, order: tuple[str, ...]) -> Formula:
    """The formula of a step, with the coordinates and extents of dimensions as operands."""
    if not isinstance(text, str):
        raise ArgumentError(f"Fused: the formula of {step} is a text", got=text)
    try:
        made = formula_of(with_extents(text))
    except ArgumentError as error:
        error.asked = f"step {step}: {error.asked}"
        raise
    for one in made.elements:
        if one.tensor.startswith(EXTENTS) and one.tensor[len(EXTENTS) :] not in order:
            raise ArgumentError(f"step {step}: size({one.tensor[len(EXTENTS) :]}): no such dimension", got=text, legal=order)
    value = _counted(made.value, order)
    reads = [one for one in elements_of(value) if one.tensor == made.target.tensor]
    if any(one.index != made.target.index for one in reads):
        raise ArgumentError(f"step {step}: {made.output} is read at another place than it is written", got=text)
    return attrs.evolve(made, value=value)


def with_extents(text: str) -> str:
    """A formula with extents of dimensions as operands: `size_n` for `size(n)`."""
    return re.sub(r"\bsize\(\s*(\w+)\s*\)", rf"{EXTENTS}\1", text)


def _counted(value: Value | None, order: tuple[str, ...]) -> Value | None:
    """A value with the coordinates of dimensions in the place of their names."""
    if isinstance(value, Element) and not value.index and value.tensor in order:
        return Element(f"{INDICES}{value.tensor}", (Index(value.tensor),))
    if isinstance(value, Operation):
        return Operation(value.name, tuple(_counted(one, order) for one in value.arguments))  # type: ignore[misc]
    return value


def shown(formula: Formula | Value) -> str:
    """The text of a step's formula, or of a value in it, as a user writes it."""
    text = re.sub(rf"\b{INDICES}(\w+)\[\w+\]", r"\1", str(formula))
    return re.sub(rf"\b{EXTENTS}(\w+)", r"size(\1)", text)


def _text(made: FusedDefinition) -> str:
    """All of a definition, for equality and for hashes."""
    given = ", ".join(f"{name}[{','.join(dims)}]" for name, dims in made.given)
    steps = "\n".join(f"{one.part} {one}" for one in made.steps)
    return f"{given} over {made.over} scan {made.scan} batch {made.batch}\n{steps}".replace("{", "(").replace("}", ")")


def _check_names(name: object, order: tuple[str, ...], uses: Mapping[str, Any], roles: Mapping[str, tuple[str, ...]]) -> None:
    """Refuse names that are none, or that mean something else."""
    if not isinstance(name, str) or not name.isidentifier() or not name.isascii() or name.startswith("__"):
        raise ArgumentError("Fused: the name of a definition is an identifier of CUDA C++", got=name, legal="softmax, my_kernel")
    for one in (*order, *uses):
        if one in FUNCTIONS or one in REDUCTIONS or one in TAKEN or one in ("inf", "and", "or") or one.startswith((INDICES, EXTENTS)):
            raise ArgumentError(f"Fused: {one} has a meaning of its own", hint="another name")
    for one in order:
        if not one.isascii() or one.startswith("__"):
            raise ArgumentError(f"Fused: {one} is no identifier of CUDA C++", legal="ASCII letters, no two underscores in front")
    for one in uses:
        if not one.isascii() or is_taken(one):
            raise ArgumentError(
                f"Fused: an operand called {one}, which means something in CUDA C++", legal="an identifier of ASCII letters",
                hint=f"{one.strip('_') if one.isascii() else 'x'}_values, or another name",
            )  # fmt: skip
    both = set(order) & set(uses)
    if both:
        raise ArgumentError(f"Fused: {both.pop()} is a dimension and an operand")
    said = [dim for dims in roles.values() for dim in dims]
    twice = [dim for dim in said if said.count(dim) > 1]
    if twice:
        raise ArgumentError(f"Fused: {twice[0]} has two roles", got={role: dims for role, dims in roles.items() if twice[0] in dims})


def _check_replaced(made: FusedDefinition, step: Step, types: Mapping[str, DType]) -> None:
    """Refuse floats in the place of a product's integers where a later turn of a loop, or another loop, goes on with these."""
    name = step.formula.output
    again = made.again()
    later = any(one.part == AGAIN and name in one.reads for one in again.steps) if step.part == "final" else name in made.carried
    if later:
        raise ArgumentError(
            f"step {step.name}: {name} is {types[name]}, and this step makes floats of it that outlive a turn of the loop",
            got=shown(step.formula), hint=f"another temporary: {name}_scaled[{','.join(step.formula.target.dims)}] = ...",
        )  # fmt: skip


def _check_steps(made: FusedDefinition) -> None:
    """Refuse steps that read what nothing wrote, or whose dimensions mean nothing; outputs that nothing writes, operands in no step."""
    known = dict(made.uses)
    written: set[str] = set(made.uses) - set(made.outputs)
    for step in made.steps:
        one = step.formula
        if not one.output.isascii() or one.output.startswith("__"):
            raise ArgumentError(
                f"step {step.name}: {one.output} is no identifier of CUDA C++", legal="ASCII letters, no two underscores in front"
            )
        for element in (one.target, *one.elements):
            _check_element(step, element, known, made)
        if one.joins and one.output in made.uses and one.output not in written:
            raise ArgumentError(
                f"step {step.name}: {one.sign} adds to the operand {one.output}, which holds nothing before the kernel",
                got=shown(one), legal=f"{one.target} = ...",
                hint=f"a temporary that is added to, and {one.target} = ... of it; or = and a sum over the dimension",
            )  # fmt: skip
        for name in step.reads:
            if name not in written and name not in made.temporaries and not name.startswith((INDICES, EXTENTS)):
                names = [*made.arrays, *made.temporaries]
                meant = closest(name, names)
                raise ArgumentError(
                    f"step {step.name}: {name} is no operand, and no step writes it",
                    got=shown(one), legal=names, hint=f"did you mean {meant}?" if meant else "an operand, or a step before that writes it",
                )  # fmt: skip
            if name not in written and not name.startswith(EXTENTS):
                hint = f"init={{...: '{one.target} = 0'}}" if name == one.output else "a step before that writes it"
                raise ArgumentError(f"step {step.name}: {name} is read before anything wrote it", got=shown(one), hint=hint)
        known.setdefault(one.output, one.target.dims)
        written.add(one.output)
        if one.output in made.uses and one.output in step.reads:
            raise ArgumentError(f"step {step.name}: the operand {one.output} is read and written", got=shown(one), hint="a temporary")
    idle = [one for one in made.uses if not one.startswith(INDICES) and not any(one in (*s.reads, s.formula.output) for s in made.steps)]
    if idle:
        raise ArgumentError(f"Fused: no step reads or writes {idle[0]}", legal="an operand that a step names")
    if not made.outputs:
        raise ArgumentError("Fused: no step writes an operand", legal=made.arrays)
    _check_roles(made)


def _check_roles(made: FusedDefinition) -> None:
    """Refuse dimensions that mean nothing: in no step, in a loop that no step of `body` goes along, reduced though one is taken."""
    counted: dict[str, set[str]] = {part: set() for part in PARTS}
    for step in made.steps:
        one = step.formula
        counted[step.part] |= {dim for element in (*one.elements, one.target) for dim in element.dims} | {*one.over}
    idle = [dim for dim in made.order if not any(dim in dims for dims in counted.values())]
    if idle:
        raise ArgumentError(f"Fused: no step has the dimension {idle[0]}", legal="dimensions of formulas", hint="leave it out of dims")
    for dim in made.loops:
        if dim not in counted["body"]:
            raise ArgumentError(f"Fused: the loop is over {dim}, which no step of body has", legal=sorted(counted["body"]))
    for step in made.steps:
        alone = [dim for dim in step.formula.over if dim in (*made.scan, *made.batch)]
        if alone:
            what = f"step {step.name}: it reduces {alone[0]}, of which all steps take one element at a time"
            raise ArgumentError(
                what, got=shown(step.formula), hint=f"leave {alone[0]} out of {'scan' if alone[0] in made.scan else 'batch'}"
            )
    for name in made.outputs:
        shared = [dim for dim in made.batch if dim not in made.uses[name]]
        if shared:
            raise ArgumentError(
                f"Fused: {name} has no {shared[0]}, so blocks of other elements of {shared[0]} would write over it",
                got=f"{name}[{','.join(made.uses[name])}]", legal=f"every dimension of batch in {name}",
            )  # fmt: skip
    around = [one for one in made.steps if one.part != "body"]
    if around and not made.loops:
        what = f"step {around[0].name}: {around[0].part} stands around a loop, and the definition has none"
        raise ArgumentError(what, hint=f"body={{{around[0].name!r}: ...}}, or loop=... names dimensions of a loop")


def _check_element(step: Step, element: Element, known: Mapping[str, tuple[str, ...]], made: FusedDefinition) -> None:
    """Refuse an element of other dimensions than its tensor has, or of dimensions that the step does not count."""
    if element.tensor.startswith(EXTENTS):
        return
    dims = known.get(element.tensor)
    unknown = [dim for dim in element.dims if dim not in made.order]
    if unknown or (dims is not None and len(dims) != len(element.dims)):
        what = f"{unknown[0]} is no dimension" if unknown else f"{element} has other dimensions than the tensor"
        what = f"step {step.name}: {what}"
        raise ArgumentError(what, got=shown(step.formula), legal=made.order if unknown else f"{element.tensor}[{','.join(dims or ())}]")
    free = {*step.formula.target.dims, *step.formula.over, *made.scan, *made.batch}
    loose = [dim for dim in element.dims if dim not in free]
    if loose:
        raise ArgumentError(f"step {step.name}: {loose[0]} of {element} is neither in the result nor reduced", got=shown(step.formula))


__all__ = ["Fused"]
