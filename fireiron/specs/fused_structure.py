"""The structure of a definition of several steps: its dimensions, tensors, types, loops and parts."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, Self

from fireiron.frozen import evolve, frozen
from fireiron.spec import Spec
from fireiron.specs.compressed import Compressed
from fireiron.specs.formula import SCANS, Definition, Element, Number
from fireiron.specs.indirect import Stored
from fireiron.specs.integers import fits, is_integral, range_of
from fireiron.specs.meaning import computing, limits_of
from fireiron.specs.named_masks import Masks
from fireiron.specs.nested import dims_of, first_loop
from fireiron.specs.steps import EXTENTS, INDICES, LOOPED, SECOND_LOOP, Skipped, Step, TemporaryMemory
from fireiron.specs.tracing import Traced
from fireiron.values.expr import INT_MAX, Expr
from fireiron.values.machine import DType, float16, float32, float64, int8, int32


@frozen
class FusedStructure(Definition):
    """The steps of a definition, or of a part of it; `given` contains its operands with their dimensions.

    - `order`: all dimensions; `reduced`: those that a step of the whole definition reduces.
    - `over`, `scan`: the dimensions of loops; `looped`: those of the loop whose iterations are `body`; `around`: those of the loops that
      contain all steps of this part; `entered`: those of the loop whose iteration consists of these steps.
    - `stored`: temporaries that only results without further dimensions depend on, so that one replica is enough.
    - `names`, `known`: the steps and operands of the whole definition, including those of other parts.
    - `sums`: the tensors that matmuls of the whole definition compute.
    - `positive`: the parameters passed by value that are above 0.
    - `indirect`: operands whose indices are digits of coordinates or elements of arrays of integers; `array_dims`: the dimensions that only
      their arrays have; `ranges`: promises about arrays of integers; `distinct`: those with distinct indices.
    - `compressed`: 2:4 sparse operands, whose arrays have fewer elements than coordinates.
    - `masks`: conditions with a name. Formulas contain the conditions; texts of the definition contain the names.
    - `chosen`: strategies by step; `placed`: temporaries whose memory is set; `skipped`: steps that warps may skip; `traced`:
      tensors whose elements the kernel prints.
    """

    steps: tuple[Step, ...] = ()
    given: tuple[tuple[str, tuple[str, ...]], ...] = ()
    order: tuple[str, ...] = ()
    over: tuple[str, ...] = ()
    scan: tuple[str, ...] = ()
    looped: tuple[str, ...] = ()
    around: tuple[str, ...] = ()
    entered: tuple[str, ...] = ()
    batch: tuple[str, ...] = ()
    reduced: tuple[str, ...] = ()
    stored: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    known: tuple[str, ...] = ()
    sums: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    types: tuple[tuple[str, DType], ...] = ()
    positive: tuple[str, ...] = ()
    masks: Masks = ()
    chosen: tuple[tuple[str, Any], ...] = ()
    placed: tuple[TemporaryMemory, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    traced: tuple[Traced, ...] = ()
    indirect: tuple[Stored, ...] = ()
    array_dims: tuple[str, ...] = ()
    ranges: tuple[tuple[str, str], ...] = ()
    distinct: tuple[str, ...] = ()
    compressed: tuple[Compressed, ...] = ()

    def __str__(self) -> str:
        return "; ".join(map(str, self.steps))

    def check_meaning(self) -> None:
        """Accept the definition: its steps define what it computes."""

    only = None
    accumulates = False
    sets_numbers = False
    moved_indices = ()
    pointwise = False
    copies = moves = fills = allocates = is_product_sum = multiplies = contracts = reduces = False

    @functools.cached_property
    def uses(self) -> Mapping[str, tuple[str, ...]]:
        """The dimensions of each operand."""
        return dict(self.given)

    @functools.cached_property
    def coarse(self) -> Mapping[str, tuple[int, ...]]:
        """Arrays of compressed operands: along each dimension, the coordinates per element. Other operands have repeated elements."""
        arrays = (array for operand in self.compressed for array in operand.arrays if array.operand in self.uses)
        return {array.operand: array.counts for array in arrays}

    @functools.cached_property
    def metadata(self) -> tuple[str, ...]:
        """The arrays with the metadata of compressed operands."""
        return tuple(dict.fromkeys(operand.metadata.operand for operand in self.compressed))

    @functools.cached_property
    def indexed(self) -> tuple[Stored, ...]:
        """The operands that formulas read at other indices than their dimensions: indirect and compressed ones."""
        return (*self.indirect, *(array for operand in self.compressed for array in operand.arrays))

    @functools.cached_property
    def tables(self) -> tuple[str, ...]:
        """The arrays of integers whose elements are indices of operands."""
        return tuple(dict.fromkeys(table.array for operand in self.indirect for table in operand.tables))

    @functools.cached_property
    def scattered(self) -> tuple[Stored, ...]:
        """The outputs of which a kernel accesses the elements that its indices name; others keep their values, or are zero (`added`)."""
        return tuple(operand for operand in self.indirect if operand.operand in self.outputs)

    def array_of(self, name: str) -> Stored | None:
        """The array of an indirect operand and its indices; None for other operands."""
        return next((operand for operand in self.indirect if operand.operand == name), None)

    def dims_of_array(self, name: str) -> tuple[str, ...]:
        """The dimensions of an operand's array."""
        return next((operand.of for operand in self.indexed if operand.operand == name), self.uses[name])

    @functools.cached_property
    def free_dims(self) -> tuple[str, ...]:
        """The dimensions that only arrays of indirect operands have, and whose sizes no digit determines."""
        derived = {dim for operand in self.indexed for dim, _ in operand.derived()}
        return tuple(dim for dim in self.array_dims if dim not in derived)

    def extents_of_arrays(self, spec: Spec) -> dict[str, Expr]:
        """The sizes of `free_dims` in a spec."""
        sizes: dict[str, Expr] = {}
        for operand in self.indirect:
            sizes |= dict(zip(operand.of, spec.operands[operand.operand].tensor.array.shape, strict=True))
        return {dim: sizes[dim] for dim in self.free_dims}

    @functools.cached_property
    def combined(self) -> tuple[str, ...]:
        """The dimensions along which a step combines elements, so that elements past the end matter: a result lacks them."""
        lost = {
            dim
            for step in self.steps
            for element in step.formula.elements
            for dim in (*element.dims, *step.formula.over)
            if dim not in step.formula.target.dims
        }
        return tuple(dim for dim in self.order if dim in lost)

    @functools.cached_property
    def arrays(self) -> tuple[str, ...]:
        """The operands other than coordinates: the kernel's arguments, and temporaries that are allocated."""
        return tuple(name for name in self.uses if not name.startswith(INDICES))

    @functools.cached_property
    def outputs(self) -> tuple[str, ...]:
        """The operands that a step writes."""
        written = {step.formula.output for step in self.steps}
        return tuple(name for name in self.uses if name in written)

    @functools.cached_property
    def added(self) -> tuple[str, ...]:
        """The outputs to which steps add: the launcher sets them to zero, and each block and each iteration adds its values atomically."""
        joined = {step.formula.output for step in self.steps if step.formula.accumulates} - {*self.hidden}
        return tuple(name for name in self.outputs if name in joined)

    @functools.cached_property
    def elements(self) -> tuple[Element, ...]:
        """The elements of operands that are read, without repetitions."""
        return tuple(dict.fromkeys(element for step in self.steps for element in step.formula.elements if element.tensor in self.uses))

    @property
    def tile_dims(self) -> tuple[str, ...]:
        """The dimensions that no step reduces and that no loop iterates over."""
        return tuple(dim for dim in self.dims if dim not in (*self.over, *self.scan, *self.reduced))

    @functools.cached_property
    def dims(self) -> tuple[str, ...]:
        """The dimensions of its operands."""
        names = {dim for dims in self.uses.values() for dim in dims}
        return tuple(dim for dim in self.order if dim in names)

    @functools.cached_property
    def equal_sizes(self) -> tuple[tuple[str, str, str], ...]:
        """Pairs of dimensions that must have equal sizes, because a tensor is indexed by both, with the name of that tensor."""
        pairs: dict[tuple[str, str, str], None] = {}
        for name, dims in {**self.uses, **self.temporaries}.items():
            gone = {*self.batch, *self.scan} - {*dims}  # the steps of this part have one element of these
            accessed = [element for step in self.steps for element in (*step.formula.elements, step.formula.target)]
            elements = [element for element in accessed if element.tensor == name]
            for place in [[dim for dim in element.dims if dim not in gone] for element in elements]:
                pairs |= {(dim, other, name): None for dim, other in zip(dims, place, strict=True) if dim != other}
        return tuple(pairs)

    @functools.cached_property
    def loops(self) -> tuple[str, ...]:
        """The dimensions of all loops."""
        return (*self.over, *self.scan)

    @functools.cached_property
    def nested(self) -> tuple[str, ...]:
        """The dimensions of the loops inside of `init`, `body` and `final`."""
        return dims_of(step.nest for step in self.steps)

    def loops_around(self, step: Step) -> tuple[str, ...]:
        """The dimensions of the loops that repeat a step."""
        return (*self.around, *(self.looped if step.part in LOOPED else ()), *dims_of([step.nest]))

    @property
    def has_inner_loop(self) -> bool:
        """Whether some of its steps are in a loop that contains not all of them."""
        return any(step.nest or (self.looped and step.part in LOOPED) for step in self.steps)

    def in_loop(self) -> Self:
        """Return the steps of `body` as those of one iteration of the loop."""
        return self.of(around=(*self.around, *self.looped), entered=self.looped, looped=())

    @functools.cached_property
    def temporaries(self) -> Mapping[str, tuple[str, ...]]:
        """The tensors that are not operands, with their dimensions."""
        return {step.formula.output: step.formula.target.dims for step in self.steps if step.formula.output not in self.uses}

    @functools.cached_property
    def carried(self) -> Mapping[str, tuple[str, ...]]:
        """The temporaries that are live across iterations: another part reads them, or a step reads them before they are written."""
        carried: dict[str, tuple[str, ...]] = {}
        written: dict[str, str] = {}
        for step in self.steps:
            for name in (*step.reads, step.formula.output):
                if name in self.temporaries and written.setdefault(name, step.part) != step.part:
                    carried[name] = self.temporaries[name]
            for name in step.reads:
                if name in self.temporaries and not any(other.formula.output == name for other in self.steps[: self.steps.index(step)]):
                    carried[name] = self.temporaries[name]
        return carried

    def dtype_of(self, name: str, operands: Mapping[str, DType]) -> DType:
        """Return the type of a temporary: the declared type; for an operand of an MMA, the type of the other operand; otherwise float32.

        Integers that only reductions and scans with an integer result read are int32: as floats they would be rounded.
        """
        stated = dict(self.types).get(name)
        if stated is not None:
            return stated
        if self._holds_integer_terms(name, operands):
            return int32
        for step in self.steps:
            factors = [element.tensor for element in step.formula.factors]
            if name in factors:
                others = [operands[other] for other in factors if other in operands]
                return others[0] if others else float16
        if any(kind == float64 for kind in operands.values()):
            return float64
        sums = [step.formula for step in self.steps if step.formula.output == name and step.formula.contracts]
        wholly = sums and all(operands.get(element.tensor) == int8 for formula in sums for element in formula.factors)
        return int32 if wholly else float32

    def _holds_integer_terms(self, name: str, operands: Mapping[str, DType]) -> bool:
        """Whether a temporary has integers that fit in int32 or are kept modulo 2^32, and only reductions to integers read it."""
        writers = [step.formula for step in self.steps if step.formula.output == name]
        readers = [step.formula for step in self.steps if any(element.tensor == name for element in step.formula.elements)]
        types = {**operands, **dict(self.types)}
        results = [types.get(formula.output) for formula in readers if formula.reduces or formula.scans]
        if not results or len(results) < len(readers) or any(dtype is None or dtype.kind != "int" for dtype in results):
            return False
        if any(formula.accumulates or formula.reduction or formula.scan or formula.value is None for formula in writers):
            return False
        ranges = dict(limits_of(types)) | {f"{kind}{dim}": (0, INT_MAX) for kind in (INDICES, EXTENTS) for dim in self.order}
        values = [formula.value for formula in writers if formula.value is not None]
        keeps_low_bits = all((formula.reduction or SCANS.get(formula.scan or "")) in ("sum", "prod") for formula in readers)
        spans = [range_of(value, ranges) for value in values if is_integral(value, ranges)]
        return len(spans) == len(values) > 0 and all(keeps_low_bits or (span is not None and fits(span, int32)) for span in spans)

    def storage_type(self, step: Step, types: Mapping[str, DType], declared: DType) -> DType:
        """Return the type in which the result of a step is stored. `types` are the present types of tensors, `declared` that of the result.

        If floats that are computed from an integer accumulator overwrite it, they are stored as floats until an MMA computes it again.
        """
        formula = step.formula
        if formula.contracts or formula.output not in self.hidden:
            return declared
        if self.replaces(step, types):
            return computing(formula, self._read_types(step, types))
        return types.get(formula.output, declared)

    def replaces(self, step: Step, types: Mapping[str, DType]) -> bool:
        """Whether a step overwrites a temporary, an integer accumulator, with floats: `acc[m,n] = acc[m,n] * scale[n]`."""
        formula = step.formula
        if types[formula.output].kind == "float" or formula.output not in self.hidden or formula.contracts:
            return False
        if formula.output not in self.sums:
            return False
        return not isinstance(formula.value, (Element, Number)) and computing(formula, self._read_types(step, types)).kind == "float"

    def _read_types(self, step: Step, types: Mapping[str, DType]) -> Mapping[str, DType]:
        """The types of the tensors that a step reads, including coordinates and extents."""
        return {name: int32 if name.startswith((INDICES, EXTENTS)) else types[name] for name in step.reads}

    @property
    def product(self) -> Step | None:
        """The matmul of two operands, if it is the only one and no loop exists; otherwise None. A strategy for a MatMul may then apply."""
        products = [step for step in self.steps if step.formula.contracts]
        if len(products) != 1 or self.loops or self.batch:
            return None
        return products[0] if all(element.tensor in self.uses for element in products[0].formula.elements) else None

    # ------------------------------------------------------------------------------------------ parts

    def part(self, name: str) -> Self:
        """Return the steps of one part, with the operands that they access.

        Coordinates of tiled dimensions remain operands, so that all parts are tiled equally. So do coordinates of dimensions that a step
        reduces or that a loop iterates over, because the last iteration may be partial. If the steps contain a loop, it becomes the loop of
        the part: the steps before it are its `init`, those after it its `final`.
        """
        repeated = name in LOOPED
        steps = tuple(step for step in self.steps if step.part == name)
        touched = {tensor for step in steps for tensor in (*step.reads, step.formula.output)}
        counted = {
            *self.tile_dims,
            *(dim for dim in self.over if dim in self.around or (repeated and dim in self.looped)),
            *(dim for dim in self.scan if self.traced and (dim in self.around or (name == "body" and dim in self.looped))),
            *(dim for step in steps for dim in (*step.formula.over, *step.formula.along)),
        }
        counted |= {tensor[len(EXTENTS) :] for tensor in touched if tensor.startswith(EXTENTS)}
        touched |= {f"{INDICES}{dim}" for dim in counted}
        given = tuple((tensor, dims) for tensor, dims in self.given if tensor in touched)
        start, end = first_loop([step.nest for step in steps])
        own = (self.in_loop() if repeated else self.of(entered=())).of(steps=steps, given=given)
        if start == len(steps):
            return own
        inner = (
            *(evolve(step, part="init") for step in steps[:start]),
            *(evolve(step, part="body", nest=step.nest[1:]) for step in steps[start:end]),
            *(evolve(step, part="final") for step in steps[end:]),
        )
        return own.of(steps=inner, looped=tuple(steps[start].nest[0].split()))

    def with_second_loop(self) -> Self:
        """Move steps of `final` to a separate part, which a second loop can execute in tiles of any size.

        These are the steps from the first one whose result has a loop dimension. If one of them reduces a loop dimension, or is in a nested
        loop, nothing moves.
        """
        last = [step for step in self.steps if step.part == "final"]
        over = {dim for dim in self.over if dim in self.looped}
        along = [set(step.formula.target.dims) & over for step in last]
        start = next((number for number, dims in enumerate(along) if dims), len(last))
        if any(set(step.formula.over) & over or step.nest for step in last[start:]):
            return self
        return self.of(steps=tuple(evolve(step, part=SECOND_LOOP) if step in last[start:] else step for step in self.steps))

    def of(self, **changes: Any) -> Self:
        """Return the definition with other fields."""
        changed = evolve(self, **changes)
        return evolve(changed, formulas=tuple(step.formula for step in changed.steps))

    def strategy_of(self, step: str) -> Any:
        """The strategy of a step; None if it has none."""
        return dict(self.chosen).get(step)

    def memory_of(self, tensor: str) -> TemporaryMemory | None:
        """The memory of a temporary; None if it is not set."""
        return next((placed for placed in self.placed if placed.tensor == tensor), None)
