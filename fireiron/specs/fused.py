"""`Fused`: a definition of several steps, each with a formula, which a strategy compiles to one kernel.

    gemm_bias_relu = Fused(
        name="gemm_bias_relu", dims="m n k", operands={"A": "m k", "B": "k n", "bias": "n", "D": "m n"},
        body={"mm": "acc[m,n] = sum(k, A[m,k] * B[k,n])", "act": "D[m,n] = relu(acc[m,n] + bias[n])"},
    )

The formula of a step determines its kind of spec: a sum of products of two tensors is a `MatMul`; a sum, a maximum, a minimum or a product
of the elements of one tensor is a `Reduction`; a copy is a `Move`; a constant is an `Init`; everything else is elementwise work. Tensors
that are not operands are temporaries.

The steps of `body` are in a loop over the dimensions `loop` (any number of elements per iteration) or `scan` (one element per iteration, in
order). Those of `init` are before it, those of `final` after it. A part may contain a nested loop, `"k": {"mm": ...}`, and steps before
and after it. A tensor is carried between iterations if a step of another part
reads it, or if a step reads it before it is written. The name of a dimension, as a value, is the coordinate in that dimension:
`where(n <= m, s[m,n], -inf)`. `size(n)` is its extent. `mask={"causal": "n <= m"}` names a condition: `where(causal, s[m,n], -inf)`.

An index of an operand is a dimension, a digit of a coordinate (`S[n,k // 64]`), an element of an array of integers (`A[rows[m],k]`), or an
affine expression of coordinates (`X[c,p*2 + r - 1]`), or the exact quotient of one. `outside` states the value outside of the array.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

import attrs

from fireiron.errors import ArgumentError, StoreError, closest
from fireiron.generated_verbs import ForFused
from fireiron.spec import TAKEN, Kind, Spec, Starter, check_layout, check_size, located
from fireiron.specs.arithmetic import convert
from fireiron.specs.bits import Range
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
    condition,
    elements_of,
    formula_of,
)
from fireiron.specs.indirect import (
    Stored,
    check_outside,
    check_table_types,
    check_tables,
    derived_extents,
    distinct_tables,
    gathered,
    ranges_of,
    scattered,
    scattered_to,
    stored_operands,
    table_extents,
    tensor_of,
)
from fireiron.specs.integers import check_integers
from fireiron.specs.meaning import combining_function, computing, evaluated, limits_of, multiplied, neutral
from fireiron.specs.named_masks import Masks, check_masks, with_conditions, with_names
from fireiron.specs.nested import Nest, check_nests, dims_of, first_loop, flattened, from_pairs, nested_mapping, plain_pairs
from fireiron.specs.terms import SumSplitter
from fireiron.specs.tracing import Traced
from fireiron.values.cuda_names import is_taken
from fireiron.values.expr import Expr, as_expr, constant
from fireiron.values.machine import COORD, GL, VAL, DType, Kernel, as_dtype, float16, float32, float64, int8, int32, tf32
from fireiron.values.strides import MOST_ALIGNED, USUAL_ALIGNMENT, StorageOrder, Strides, strides_of
from fireiron.values.tensor import ColMajor, MatrixLayout, RowMajor, Tensor, whole_view

PARTS: Final = ("init", "body", "final")
"""The parts of a definition: the steps before the loop, inside it, and after it."""

ROLES: Final = ("loop", "scan", "batch")
"""Roles of dimensions that are not tiled: `loop` takes any number of elements per iteration, `scan` takes one; `batch` one per block."""

_FIELD_NAMES: Final = {"loop": "over"}
"""Arguments of `Fused` whose field of `FusedDefinition` has another name."""

INDICES: Final = "index_"
"""Prefix of the operand that holds the coordinates of a dimension: `index_n`."""

EXTENTS: Final = "size_"
"""Prefix of the operand that holds the extent of a dimension: `size_n`."""

FACTOR: Final = "factor "
"""Prefix of the name of an input whose values are truncated as matrix instructions truncate them."""

if TYPE_CHECKING:
    from fireiron.generated_verbs import FusedSpec


SECOND_LOOP: Final = "again"
"""The part of the steps that a second loop over the same dimensions executes, after the first one."""

LOOPED: Final = ("body", SECOND_LOOP)
"""The parts whose steps are in a loop."""


@attrs.frozen
class Step:
    """A named step: its formula, and its part of the definition. `nest` are the loops around it inside of that part.

    If a reduction is kept in partial results, `parts` is the dimension of these results. Each of them combines some of the terms.
    """

    name: str
    formula: Formula
    part: str = "body"
    parts: str = ""
    nest: Nest = ()

    def __str__(self) -> str:
        return f"{self.name}: {shown(self.formula)}{', partial results' if self.parts else ''}"

    @property
    def reads(self) -> tuple[str, ...]:
        """The tensors that the step reads, including its result if the step accumulates."""
        accumulated = (self.formula.output,) if self.formula.accumulates else ()
        return (*dict.fromkeys(element.tensor for element in self.formula.elements), *accumulated)

    @property
    def reads_others(self) -> tuple[str, ...]:
        """The tensors that the step reads, except for the tensor that it writes."""
        return tuple(name for name in self.reads if name != self.formula.output)


@attrs.frozen
class TemporaryMemory:
    """The memory that a strategy sets for a temporary, and an element type if it differs from that of the definition.

    - `pad`: the padding of its rows in elements. `stages`: the number of copies, which iterations use alternately (0: one copy).
    - `swizzle`: the swizzle of its addresses, or a function of the distance of its rows in elements and of the bytes of an element.
    - `free`: no layout is requested, so an instruction that reads the temporary may choose one.
    """

    tensor: str
    memory: Any
    pad: int = 0
    dtype: DType | None = None
    swizzle: Any = None
    stages: int = 0
    free: bool = False


@attrs.frozen
class Skipped:
    """Steps, by name, that a warp skips if a condition holds for all elements of its threads.

    The condition compares elements, `new[m] == mx[m]`; several are combined with `and`.
    """

    steps: tuple[str, ...]
    condition: Operation


@attrs.frozen
class FusedDefinition(Definition):
    """The steps of a definition, or of a part of it; `given` contains its operands with their dimensions.

    - `order`: all dimensions; `reduced`: those that a step of the whole definition reduces.
    - `over`, `scan`: the dimensions of loops; `looped`: those of the loop whose iterations are `body`; `around`: those of the loops that
      contain all steps of this part; `entered`: those of the loop whose iteration consists of these steps.
    - `stored`: temporaries that only results without further dimensions depend on, so that one replica is enough.
    - `names`, `known`: the steps and operands of the whole definition, including those of other parts.
    - `positive`: the parameters passed by value that are above 0.
    - `indirect`: operands whose indices are digits of coordinates or elements of arrays of integers; `array_dims`: the dimensions that only
      their arrays have; `ranges`: promises about arrays of integers; `distinct`: those with distinct indices.
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

    def __str__(self) -> str:
        return "; ".join(map(str, self.steps))

    def check_meaning(self) -> None:
        """Accept the definition: its steps define what it computes."""

    only = None
    coarse: ClassVar[Mapping[str, tuple[int, ...]]] = {}  # its operands have all dimensions, with repeated elements
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
        operand = self.array_of(name)
        return self.uses[name] if operand is None else operand.of

    @functools.cached_property
    def free_dims(self) -> tuple[str, ...]:
        """The dimensions that only arrays of indirect operands have, and whose sizes no digit determines."""
        derived = {dim for operand in self.indirect for dim, _ in operand.derived()}
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

    def in_loop(self) -> FusedDefinition:
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
        """Return the type of a temporary: the declared type; for an operand of an MMA, the type of the other operand; otherwise float32."""
        stated = dict(self.types).get(name)
        if stated is not None:
            return stated
        for step in self.steps:
            factors = [element.tensor for element in step.formula.elements] if step.formula.contracts else []
            if name in factors:
                others = [operands[other] for other in factors if other in operands]
                return others[0] if others else float16
        if any(kind == float64 for kind in operands.values()):
            return float64
        sums = [step.formula for step in self.steps if step.formula.output == name and step.formula.contracts]
        wholly = sums and all(operands.get(element.tensor) == int8 for formula in sums for element in formula.elements)
        return int32 if wholly else float32

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
        if not any(other.formula.output == formula.output and other.formula.contracts for other in self.steps):
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

    def part(self, name: str) -> FusedDefinition:
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
            *(attrs.evolve(step, part="init") for step in steps[:start]),
            *(attrs.evolve(step, part="body", nest=step.nest[1:]) for step in steps[start:end]),
            *(attrs.evolve(step, part="final") for step in steps[end:]),
        )
        return own.of(steps=inner, looped=tuple(steps[start].nest[0].split()))

    def with_second_loop(self) -> FusedDefinition:
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
        return self.of(steps=tuple(attrs.evolve(step, part=SECOND_LOOP) if step in last[start:] else step for step in self.steps))

    def of(self, **changes: Any) -> FusedDefinition:
        """Return the definition with other fields."""
        changed = attrs.evolve(self, **changes)
        return attrs.evolve(changed, formulas=tuple(step.formula for step in changed.steps))

    def strategy_of(self, step: str) -> Any:
        """The strategy of a step; None if it has none."""
        return dict(self.chosen).get(step)

    def memory_of(self, tensor: str) -> TemporaryMemory | None:
        """The memory of a temporary; None if it is not set."""
        return next((placed for placed in self.placed if placed.tensor == tensor), None)

    # ------------------------------------------------------------------------------------------ meaning

    def evaluate(self, arrays: Mapping[str, Any], sizes: Mapping[str, int], types: Mapping[str, DType], chunk: int = 0) -> dict[str, Any]:
        """Compute the outputs in float64 from the inputs. Loops take `chunk` elements per iteration; 0 means all.

        Integers are exact: temporaries of integers have the same values as in a kernel.
        """
        import numpy

        known = self.all_types(types)
        given = arrays
        arrays = {**arrays, **{one.operand: gathered(one, arrays, sizes) for one in self.indirect if one.operand in arrays}}
        values: dict[str, Any] = {name: numpy.asarray(array).astype(exact_in(known[name])) for name, array in arrays.items()}
        values |= factors(arrays, types)
        values |= {f"{INDICES}{dim}": numpy.arange(size) for dim, size in sizes.items()}
        values |= {f"{EXTENTS}{dim}": numpy.asarray(size) for dim, size in sizes.items()}
        for name in self.outputs:
            shape = [sizes[dim] for dim in self.uses[name]]
            values[name] = numpy.full(shape, self.before_steps(name, known[name]), exact_in(known[name]))
        with numpy.errstate(all="ignore"):
            self.run_iterations(values, sizes, chunk, known)
        results = {name: convert(values[name], types[name]) for name in self.outputs}
        for operand in self.scattered:
            shape = [sizes[dim] for dim in operand.of]
            name, added = operand.operand, operand.operand in self.added
            combiner = self.combiner_of(name) if added else ""
            scattered = scattered_to(operand, values[name] if added else results[name], given, shape, sizes, combiner, types[name])
            results[name] = convert(scattered, types[name]) if added else scattered
        return results

    def before_steps(self, output: str, dtype: DType) -> float:
        """The value of an output of a type before the steps: the neutral one if steps combine values in it, otherwise unspecified."""
        if output in self.added:
            return neutral(self.combiner_of(output), dtype)
        return float("nan") if dtype.kind == "float" else 0

    def combiner_of(self, output: str) -> str:
        """How steps combine values in an output: `sum`, `max` or `min`."""
        return next(step.formula.combiner for step in self.steps if step.formula.output == output)

    def all_types(self, operands: Mapping[str, DType]) -> dict[str, DType]:
        """Return the types of operands, float64 by default, and of temporaries."""
        every = {**dict.fromkeys(self.arrays, float64), **operands}
        return {**every, **{name: self.dtype_of(name, every) for name in self.temporaries}}

    def run_iterations(self, values: dict[str, Any], sizes: Mapping[str, int], chunk: int, types: Mapping[str, DType]) -> None:
        """Execute all steps in all iterations of the loops, on values by name; `types` are those of the tensors."""
        for batch in self._slices(self.batch, sizes, 1):
            self._run_loop(self.steps, self.looped, values, batch, sizes, chunk, types)

    def _slices(self, dims: tuple[str, ...], sizes: Mapping[str, int], chunk: int) -> Iterator[dict[str, slice]]:
        """Yield the slices of each iteration, by dimension."""
        places: list[dict[str, slice]] = [{}]
        for dim in dims:
            step = 1 if dim in self.scan else chunk or sizes[dim]
            parts = [slice(start, min(start + step, sizes[dim])) for start in range(0, sizes[dim], step)]
            places = [{**previous, dim: part} for previous in places for part in parts]
        yield from places

    def _run_loop(
        self, steps: Sequence[Step], dims: tuple[str, ...], values: dict[str, Any], place: Mapping[str, slice], sizes: Mapping[str, int],
        chunk: int, types: Mapping[str, DType],
    ) -> None:  # fmt: skip
        """Execute the steps of `init`, all iterations of those of `body`, and the steps of `final`."""
        parts = {part: [step for step in steps if step.part == part] for part in PARTS}
        self._run(parts["init"], values, place, sizes, chunk, types)
        for iteration in self._slices(dims, sizes, chunk):
            self._run(parts["body"], values, {**place, **iteration}, sizes, chunk, types)
        self._run(parts["final"], values, place, sizes, chunk, types)

    def _run(
        self, steps: Sequence[Step], values: dict[str, Any], place: Mapping[str, slice], sizes: Mapping[str, int], chunk: int,
        types: Mapping[str, DType],
    ) -> None:  # fmt: skip
        """Execute steps in order, with the iterations of nested loops."""
        for loop, group in itertools.groupby(steps, lambda step: step.nest[:1]):
            if loop:
                inner = [attrs.evolve(step, part="body", nest=step.nest[1:]) for step in group]
                self._run_loop(inner, tuple(loop[0].split()), values, place, sizes, chunk, types)
                continue
            for step in group:
                self.perform(step, values, place, types)

    def perform(self, step: Step, values: dict[str, Any], place: Mapping[str, slice], types: Mapping[str, DType]) -> None:
        """Execute one step on the slices of one iteration."""
        import numpy

        formula = step.formula
        operands = {element: self.read(formula, values, element, place) for element in formula.elements}
        dropped = tuple(dim for dim in (*self.scan, *self.batch) if dim not in formula.target.dims)
        kept = self.storage_type(step, self.present_types(step, values, types), types[formula.output])
        ranges = _ranges_now(step, values, types)
        result = (
            evaluated(formula, operands, dropped, ranges, kept)
            if not step.parts
            else _in_partial_results(step, operands, dropped, len(values[f"{INDICES}{step.parts}"]), ranges)
        )
        shape = [_extent(dim, operands, values, place) for dim in formula.target.dims]
        result = numpy.broadcast_to(result, shape)
        if formula.accumulates and formula.output in values:
            old = _at(values, formula.target, self.uses, place)
            result = combining_function(formula.combiner)(old, result)
        whole = numpy.issubdtype(result.dtype, numpy.integer)
        if kept.kind == "int" or (whole and self.writes_operand(step)):  # one conversion, from int64 to the type of the output
            result = convert(result, kept)
        result = result.astype(exact_in(kept))
        if self.writes_operand(step):
            values[formula.output][tuple(place.get(dim, slice(None)) for dim in formula.target.dims)] = result
        else:
            values[formula.output] = result

    def present_types(self, step: Step, values: Mapping[str, Any], types: Mapping[str, DType]) -> dict[str, DType]:
        """Return the types of the tensors that a step accesses; float64 for integers that floats have overwritten."""
        names = [name for name in (*step.reads, step.formula.output) if not name.startswith((INDICES, EXTENTS))]
        return {name: float64 if types[name].kind == "int" and _is_float_array(values.get(name)) else types[name] for name in names}

    def writes_operand(self, step: Step) -> bool:
        """Whether a step writes a slice of an operand. The array of a temporary is always the slice of one iteration."""
        return step.formula.output in self.uses and not step.formula.output.startswith(INDICES)

    def slice_of(self, values: Mapping[str, Any], element: Element, place: Mapping[str, slice]) -> Any:
        """The slice of an operand in an iteration."""
        return _at(values, element, self.uses, place)

    def read(self, formula: Formula, values: Mapping[str, Any], element: Element, place: Mapping[str, slice]) -> Any:
        """Return the slice of an operand that a formula reads in an iteration; a sum of products reads it as matrix instructions do."""
        factor = f"{FACTOR}{element.tensor}"
        return self.slice_of(
            {**values, element.tensor: values[factor]} if formula.is_product_sum and factor in values else values, element, place
        )


def factors(arrays: Mapping[str, Any], types: Mapping[str, DType]) -> dict[str, Any]:
    """Return truncated copies of the tf32 inputs, under separate names, because matrix instructions truncate these inputs."""
    import numpy

    return {f"{FACTOR}{name}": multiplied(array, tf32).astype(numpy.float64) for name, array in arrays.items() if types.get(name) == tf32}


def _at(values: Mapping[str, Any], element: Element, uses: Mapping[str, tuple[str, ...]], place: Mapping[str, slice]) -> Any:
    """Return the slice of an operand in an iteration. The array of a temporary already is that slice."""
    array = values[element.tensor]
    if element.tensor not in uses and not element.tensor.startswith((INDICES, EXTENTS)):
        return array
    return array[tuple(place.get(dim, slice(None)) for dim in element.dims)]


def exact_in(dtype: DType) -> Any:
    """Return the NumPy type in which values of a type are evaluated: int64 for integers, float64 for floats."""
    import numpy

    return numpy.int64 if dtype.kind == "int" else numpy.float64


def _is_float_array(array: Any) -> bool:
    import numpy

    return array is not None and not numpy.issubdtype(array.dtype, numpy.integer)


def _ranges_now(step: Step, values: Mapping[str, Any], types: Mapping[str, DType]) -> dict[str, Range]:
    """The ranges of the integers that a step accesses."""
    ranges_by_name = {}
    for name in (*step.reads, step.formula.output):
        if name.startswith(EXTENTS):
            ranges_by_name[name] = (int(values[name]), int(values[name]))
        elif name.startswith(INDICES):
            ranges_by_name[name] = (0, int(values[f"{EXTENTS}{name[len(INDICES) :]}"]) - 1)
        elif types[name].kind == "int" and not _is_float_array(values.get(name)):
            ranges_by_name[name] = types[name].limits
    return ranges_by_name


def _in_partial_results(
    step: Step, operands: Mapping[Element, Any], dropped: tuple[str, ...], count: int, ranges: Mapping[str, Range]
) -> Any:
    """Compute partial results of a step, as the last dimension. Any partition of the terms is correct; this one is round-robin."""
    import numpy

    term_formula = attrs.evolve(step.formula, target=Element(step.formula.output, step.formula.target.index[:-1]))
    ((element, terms),) = operands.items()
    axis = element.dims.index(term_formula.over[0])
    number = numpy.arange(terms.shape[axis]).reshape([-1 if place == axis else 1 for place in range(terms.ndim)]) % count
    nothing = neutral(term_formula.combiner, float64)
    parts = ({element: numpy.where(number == part, terms, nothing)} for part in range(count))
    return numpy.stack([evaluated(term_formula, part, dropped, ranges) for part in parts], -1)


def _extent(dim: str, operands: Mapping[Element, Any], values: Mapping[str, Any], place: Mapping[str, slice]) -> int:
    """Return the number of elements of a dimension in one iteration."""
    for element, array in operands.items():
        if dim in element.dims:
            return int(array.shape[element.dims.index(dim)])
    return len(values[f"{INDICES}{dim}"][place.get(dim, slice(None))])


# ---------------------------------------------------------------------------------------------- kinds


@attrs.frozen
class FusedKind(Kind):
    """The kind of the specs of a fused definition, or of a part of it."""

    fused_definition: FusedDefinition = attrs.field(kw_only=True)

    @property
    def starter(self) -> Fused:  # type: ignore[override]
        return Fused.of(self)

    def definition(self, parameters: tuple[tuple[str, Any], ...], rank: int = 2) -> Definition:
        return self.fused_definition

    def of_signature(self, parameters: tuple[tuple[str, Any], ...], signature: str) -> Definition:
        return self.fused_definition

    def of_sizes(self, parameters: tuple[tuple[str, Any], ...], count: int, signature: str = "") -> Definition:
        return self.fused_definition

    def of_views(self, parameters: tuple[tuple[str, Any], ...], views: tuple[Any, ...]) -> Definition:
        return self.fused_definition

    def array_dims(self, definition: Definition, name: str) -> tuple[str, ...]:
        return self.fused_definition.dims_of_array(name)

    def reference(
        self, definition: Definition, arrays: Mapping[str, Any], types: Mapping[str, DType], sizes: Mapping[str, int]
    ) -> tuple[Any, ...]:
        results = self.fused_definition.evaluate(arrays, sizes, types)
        return tuple(results[name] for name in self.fused_definition.outputs)

    def check_integers(self, spec: Spec) -> None:
        definition = self.fused_definition
        types = definition.all_types({name: view.dtype for name, view in spec.operands.items()})
        bounds: dict[str, str] = {}
        ranges = dict(limits_of({name: types[name] for name in types if not name.startswith(INDICES)}))
        for dim in definition.order:
            size = spec.size(dim) if dim in spec.dims else None
            if size is None:
                continue
            ranges |= {f"{INDICES}{dim}": (0, max(size.high - 1, 0)), f"{EXTENTS}{dim}": (size.low, size.high)}
            text = ", ".join(f'sym("{var.name}", high=65536)' for var in sorted(size.variables(), key=str))
            bounds |= {f"{kind}{dim}": text for kind in (INDICES, EXTENTS) if text}
        for step in definition.steps:
            if definition.replaces(step, types):
                _check_replaced(definition, step, types)
                types[step.formula.output] = definition.storage_type(step, types, types[step.formula.output])
                ranges.pop(step.formula.output, None)
            check_integers(step.formula, ranges, bounds, f"step {step.name}", shown)

    def check_meaning(self, definition: Definition) -> None:
        super().check_meaning(definition)
        self.fused_definition.check_meaning()

    def short(self, spec: Spec) -> str | None:
        """Return the call of the definition, with sizes, types and storage orders, that creates the spec; None if no call does."""
        return _call_text(spec, Fused.of(self)) if self.whole else None

    @functools.cached_property
    def whole(self) -> bool:
        """Whether a user can write the definition as a call of `Fused`: it is not a part, and has no strategies of steps."""
        try:
            return Fused(**dict(arguments_of(self))).kind == self
        except ArgumentError:
            return False

    def of(self, **changes: Any) -> FusedKind:
        """Return the kind with other fields of its definition."""
        return attrs.evolve(self, fused_definition=self.fused_definition.of(**changes))


def fused(spec: Spec) -> FusedDefinition | None:
    """Return the definition of a spec of several steps; None for other specs."""
    return spec.definition if isinstance(spec.definition, FusedDefinition) else None


def as_direct(spec: Spec, arrays: Mapping[str, Any], sizes: Mapping[str, int]) -> tuple[Spec, dict[str, Any]]:
    """Return the spec without indirect operands, and inputs gathered to the operands' own dimensions: the same results.

    `arrays` are inputs by name, as the kernel takes them; `sizes` are the values of symbols.
    """
    definition = fused(spec)
    if definition is None:
        return spec.kind.direct(spec, arrays)
    if not definition.indirect:
        return spec, dict(arrays)
    extents = {dim: int(spec.size(dim).evaluate(sizes)) for dim in spec.dims}
    inputs = {one.operand: gathered(one, arrays, extents) for one in definition.indirect if one.operand in arrays}
    return with_definition(spec, definition.of(indirect=(), array_dims=(), ranges=(), distinct=()), {}), {**arrays, **inputs}


def scattered_outputs(spec: Spec) -> tuple[str, ...]:
    """The outputs of which a kernel writes only the elements that indices name: by tables, or by digits, of a part of the last page.

    Outputs to which steps add are zeroed, so their other elements are zero.
    """
    definition = fused(spec)
    if definition is None:
        return ()
    return tuple(operand.operand for operand in definition.scattered if operand.operand not in definition.added)


def positive_numbers(spec: Spec) -> tuple[str, ...]:
    """Return the parameters passed by value that a spec's definition requires to be above 0."""
    definition = fused(spec)
    return () if definition is None else definition.positive


def with_definition(spec: Spec, definition: FusedDefinition, views: Mapping[str, Any]) -> Spec:
    """Return the spec with another definition, whose operands are those of the spec and those in `views`."""
    known = {**spec.operands, **views}
    assert isinstance(spec.kind, FusedKind)
    return attrs.evolve(
        spec, kind=attrs.evolve(spec.kind, fused_definition=definition), views=tuple(known[name] for name in definition.uses)
    )


def _dims_of(text: object, what: str, known: Iterable[str] | None = None) -> tuple[str, ...]:
    """Parse a list of dimensions, separated by blanks."""
    if not isinstance(text, str):
        raise ArgumentError(f"Fused: {what} must be a text, names separated by blanks", got=text, legal='"m n k"')
    dims = tuple(text.replace(",", " ").split())
    wrong = [dim for dim in dims if not dim.isidentifier() or (known is not None and dim not in known)]
    if wrong or len(set(dims)) != len(dims):
        raise ArgumentError(
            f"Fused: {what} must be different names of dimensions",
            got=text,
            legal="different identifiers" if known is None else tuple(known),
        )
    return dims


class Fused(ForFused, Starter):
    """A definition of several steps. A chain for it can start from it; a call with sizes returns its spec."""

    @located
    def __init__(
        self,
        name: str,
        dims: str,
        operands: Mapping[str, str],
        body: Mapping[str, Any],
        init: Mapping[str, Any] | None = None,
        final: Mapping[str, Any] | None = None,
        loop: str = "",
        scan: str = "",
        batch: str = "",
        types: Mapping[str, Any] | None = None,
        positive: str = "",
        ranges: Mapping[str, str] | None = None,
        distinct: str = "",
        mask: Mapping[str, str] | None = None,
        outside: Mapping[str, float | str] | None = None,
    ) -> None:
        """Args:
            dims: all dimensions.
            operands: the dimensions of each argument of the kernel; a number passed by value has none.
            init, body, final: formulas of the steps before the loop, in the loop, and after the loop, by name of step. A mapping under the
                name of dimensions is a nested loop over them: `{"zero": "s[m,n] = 0", "k": {"s": "s[m,n] += sum(k, ...)"}}`.
            loop: dimensions of the loop; one iteration of `body` takes any number of their elements.
            scan: dimensions of the loop; one iteration of `body` takes one element of them, in order.
            batch: dimensions that are not tiled; each block takes one element of them.
            types: element types of temporaries and operands. The default of a temporary is float32; if an MMA reads it, the type of the
                other operand. The call with sizes can override the types of operands.
            positive: numbers passed by value that must be above 0; a kernel refuses other values.
            ranges: promises that the elements of an array of integers are legal indices, `{"rows": "0 <= rows < r"}`. A kernel then uses
                them as indices without clamping.
            distinct: arrays of integers. The elements of each that are legal indices must differ, so that they may be indices of outputs,
                `Y[rows[m],n] = ...`. An element that is not a legal index, such as -1, writes nothing.
            mask: conditions by name, on dimensions, extents and inputs. `where` in a formula, or a later mask, may use the name.
            outside: by operand, the value of elements whose affine index is outside of the array, or a padding mode that moves the index
                into it: `{"X": "-inf"}`, `{"X": "reflect"}`, also `"replicate"` and `"circular"`. The default is zero.

        Raises: ArgumentError, which names the step, for formulas that no kernel can compute.
        """
        order = _dims_of(dims, "dims")
        for what, by_name, legal in (
            ("operands", operands, '{"X": "m n"}'),
            ("types", types or {}, '{"t": float32}'),
            ("mask", mask or {}, '{"causal": "n <= m"}'),
            ("outside", outside or {}, '{"X": "-inf"}'),
        ):
            if not isinstance(by_name, Mapping):
                raise ArgumentError(f"Fused: {what} must be a mapping from names", got=by_name, legal=legal)
        uses = {operand: _dims_of(text, f"the dimensions of {operand}", order) for operand, text in dict(operands).items()}
        roles = {role: _dims_of(text, role, order) for role, text in zip(ROLES, (loop, scan, batch), strict=True)}
        _check_names(name, order, uses, roles)
        parts = (("init", init or {}), ("body", body), ("final", final or {}))
        masks = _masks(mask or {}, order, uses)
        loops = (*roles["loop"], *roles["scan"])
        steps = tuple(
            Step(step, _read(text, step, order, masks), part, nest=nest)
            for part, formulas in _named(parts, loops).items()
            for step, text, nest in formulas
        )
        looped = tuple(dim for dim in loops if dim not in dims_of(step.nest for step in steps))
        check_nests([(step.part, step.nest) for step in steps], looped, roles)
        indirect = stored_operands([(step.name, step.formula) for step in steps], uses, outside or {})
        array_dims = _array_dims(order, steps, indirect, roles)
        order, declared = tuple(dim for dim in order if dim not in array_dims), uses
        uses = {**uses, **{operand.operand: operand.dims for operand in indirect}}
        steps = _with_terms(steps, (*order, *uses), (*roles["scan"], *roles["batch"]))
        counted = {f"{INDICES}{dim}": (dim,) for dim in order}
        given = {**uses, **counted}
        known = tuple((tensor, as_dtype(kind)) for tensor, kind in (types or {}).items())
        reduced = tuple(
            dim for dim in order if dim in _reduced([step for step in steps if not _reduces_to_operand(step, steps, uses)], given)
        )
        hidden = dict.fromkeys(step.formula.output for step in steps if step.formula.output not in given)
        _check_typed(known, (*uses, *hidden))
        inputs = [name for name in uses if all(step.formula.output != name for step in steps)]
        check_masks(masks, [step.formula.value for step in steps], inputs, tuple(hidden), (INDICES, EXTENTS), shown)
        definition = FusedDefinition(
            tuple(step.formula for step in steps), steps=steps, given=tuple(given.items()), order=order, reduced=reduced,
            stored=only_stored(steps, given), names=tuple(step.name for step in steps), known=tuple(given), hidden=tuple(hidden),
            types=known, positive=_positive_numbers(positive, uses), masks=masks,
            over=roles["loop"], scan=roles["scan"], looped=looped, batch=roles["batch"],
            indirect=indirect, array_dims=array_dims, ranges=ranges_of(ranges or {}, indirect),
            distinct=distinct_tables(
                distinct, scattered(indirect, {step.formula.output: step.name for step in steps if not step.formula.accumulates})
            ),
        )  # fmt: skip
        _check_array_dims(definition, declared)
        check_tables(indirect, {step.formula.output: step.name for step in steps})
        _check_steps(definition)
        super().__init__(FusedKind(name, _text(definition), fused_definition=definition))

    def takes(self, start: Starter) -> bool:
        """Whether a chain from `start` fits: one from this definition, or one from MatMul if the definition has one matmul."""
        return super().takes(start) or (start.kind.title == "MatMul" and self.fused_definition.product is not None)

    @staticmethod
    def of(kind: FusedKind) -> Fused:
        """Return the definition with a kind."""
        start = Fused.__new__(Fused)
        Starter.__init__(start, kind)
        return start

    @property
    def fused_definition(self) -> FusedDefinition:
        """The steps, operands and dimensions."""
        assert isinstance(self.kind, FusedKind)
        return self.kind.fused_definition

    @located
    def __call__(  # type: ignore[override]
        self, *, dtype: DType = float16, types: Mapping[str, DType] | None = None, **sizes: Expr | int | StorageOrder
    ) -> FusedSpec:
        """Return the spec of the kernel. Pass sizes by dimension (integers or symbols), and storage orders by operand (default: row-major).

        `dtype` is the type of operands with dimensions (float16 by default); numbers are float32. `types` specifies other types, by
        operand. Types that the definition declares need not be repeated.
        """
        definition = self.fused_definition
        tensors = [tensor for tensor in definition.uses if not tensor.startswith(INDICES)]
        layouts = {tensor: sizes.pop(tensor) for tensor in tensors if tensor in sizes}
        extents = _extents_of(self.kind.title, definition, sizes)
        _check_equal_sizes(self.kind.title, definition, extents)
        given_types, stated = {tensor: as_dtype(kind) for tensor, kind in (types or {}).items()}, dict(definition.types)
        unknown = [tensor for tensor in given_types if tensor not in tensors]
        if unknown:
            raise ArgumentError(f"{self.kind.title}: {unknown[0]} is not an operand", got=unknown[0], legal=tensors)
        arrays: dict[str, Tensor] = {}
        for tensor in tensors:
            dims = definition.dims_of_array(tensor)
            shape = tuple(extents[dim] for dim in dims)
            usual = int32 if tensor in definition.tables else as_dtype(dtype)
            kind = given_types.get(tensor) or stated.get(tensor) or (usual if dims else float32)
            order = layouts.get(tensor, RowMajor)
            scalar_result = not dims and tensor in definition.outputs
            align = order.align if isinstance(order, Strides) else kind.bytes if scalar_result else USUAL_ALIGNMENT
            memory = GL if dims or scalar_result else VAL
            arrays[tensor] = Tensor(tensor, shape, kind, memory, check_layout(order, tensor, dims, shape), align=align)
        kinds = {tensor: array.dtype for tensor, array in arrays.items()}
        check_table_types(definition.indirect, kinds)
        check_outside(definition.indirect, kinds)
        views = [whole_view(_operand_tensor(definition, name, arrays, extents)) for name in definition.uses]
        return cast("FusedSpec", Spec(Kernel, self.kind, tuple(views)))

    def __repr__(self) -> str:
        assert isinstance(self.kind, FusedKind)
        return f"Fused({', '.join(f'{word}={value!r}' for word, value in arguments_of(self.kind).items())})"

    def __str__(self) -> str:
        return text_of(self.fused_definition, self.kind.title)

    @located
    def check(self, sizes: Mapping[str, int] | None = None, seed: int = 0) -> None:
        """Refuse a definition whose result depends on the number of elements per iteration, or that has an unused temporary.

        A kernel takes as many elements of `loop` per iteration as its strategy specifies. This method evaluates the definition in float64
        on random inputs, normal and positive ones, with all elements per iteration, with 7 and with 1. The outputs must be equal, except
        for rounding. The inputs depend only on `seed` and the sizes. `sizes` are those of dimensions; the default is small.

        >>> from fireiron import *
        >>> total = Fused(name="total", dims="m n", loop="n", operands={"X": "m n", "y": "m"},
        ...     init={"zero": "s[m] = 0"}, body={"s": "s[m] += sum(n, X[m,n])"}, final={"y": "y[m] = s[m]"})
        >>> total.check()  # with s[m] = sum(n, X[m,n]), only the sum of the last iteration would remain

        Raises: ArgumentError that names the output, an element and its two values, or the temporary that no step reads.
        """
        import numpy

        definition = self.fused_definition
        idle = [tensor for tensor in definition.temporaries if all(tensor not in step.reads_others for step in definition.steps)]
        if idle:
            raise ArgumentError(f"{self.kind.title}: no step reads {idle[0]}", hint="remove its steps, or make it an operand")
        unknown = [dim for dim in sizes or {} if dim not in (*definition.order, *definition.array_dims)]
        if unknown:
            raise ArgumentError(f"{self.kind.title}.check: no dimension {unknown[0]}", legal=(*definition.order, *definition.array_dims))
        chosen = {dim: 9 + place for place, dim in enumerate((*definition.order, *definition.array_dims))}
        for dim, other, _ in definition.equal_sizes:
            chosen[other] = chosen[dim]
        chosen |= dict(sizes or {})
        derived = derived_extents(definition.indirect, {dim: as_expr(size) for dim, size in chosen.items()})
        chosen |= {dim: constant(size) or 1 for dim, (size, _) in derived.items() if dim not in (sizes or {})}
        _check_equal_sizes(self.kind.title, definition, chosen)
        for positive in (False, True):
            arrays = _random_inputs(definition, chosen, seed, positive)
            arrays |= {name: numpy.abs(arrays[name]) + 0.1 for name in definition.positive}
            exact = definition.of(types=())
            whole = exact.evaluate(arrays, chosen, dict.fromkeys(definition.arrays, float64))
            for chunk in (7, 1) if definition.over else ():
                parts = exact.evaluate(arrays, chosen, dict.fromkeys(definition.arrays, float64), chunk)
                for name in definition.outputs:
                    self._check_output(name, chunk, parts[name], whole[name])

    def _check_output(self, name: str, chunk: int, parts: Any, whole: Any) -> None:
        """Refuse an output that depends on the number of elements per iteration."""
        import numpy

        with numpy.errstate(invalid="ignore"):
            wrong = ~numpy.isclose(parts, whole, rtol=1e-9, atol=1e-9, equal_nan=True)
        if not wrong.any():
            return
        definition, place = self.fused_definition, tuple(map(int, numpy.argwhere(wrong)[0]))
        at = f"{name}[{','.join(map(str, place))}]"
        lost = [
            tensor
            for tensor in definition.carried
            if not any(step.part == "init" and step.formula.output == tensor for step in definition.steps)
        ]
        step = next((body_step for body_step in definition.steps if body_step.formula.output in lost and body_step.part == "body"), None)
        hint = "carry state between iterations in a temporary, and rescale it if a new iteration changes its scale"
        if step is not None:
            hint = f"{step.formula.output} is carried: set its first value in init, and accumulate to it in body: "
            hint += f"{step.formula.target} = {step.formula.target} + ..., or +="
        raise ArgumentError(
            f"{self.kind.title}: {name} depends on the number of elements of {' '.join(definition.over)} per iteration",
            got=f"{chunk} per iteration: {at} = {parts[place]:.6g}, all at once: {at} = {whole[place]:.6g}",
            legal="equal outputs for any number",
            hint=hint,
        )


def _check_equal_sizes(title: str, definition: FusedDefinition, sizes: Mapping[str, Any]) -> None:
    """Refuse different sizes of dimensions by which the same tensor is indexed."""
    for dim, other, name in definition.equal_sizes:
        if sizes[dim] != sizes[other]:
            raise ArgumentError(
                f"{title}: {name} is indexed by {dim} and by {other}, so both must have the same size",
                got=f"{dim}={sizes[dim]}, {other}={sizes[other]}", legal=f"{dim}={sizes[dim]}, {other}={sizes[dim]}",
            )  # fmt: skip


def _random_inputs(definition: FusedDefinition, sizes: Mapping[str, int], seed: int, positive: bool) -> dict[str, Any]:
    """Return standard normal numbers for each input. With `positive`, return their absolute values plus 0.1, for roots and logarithms."""
    import numpy

    random = numpy.random.default_rng(seed)
    inputs = [name for name in definition.arrays if name not in definition.outputs]
    drawn = {name: random.standard_normal([sizes[dim] for dim in definition.dims_of_array(name)]) for name in inputs}
    if positive:
        drawn = {name: numpy.abs(values) + 0.1 for name, values in drawn.items()}
    return drawn | {
        table: random.integers(0, least, drawn[table].shape) for table, least in table_extents(definition.indirect, sizes).items()
    }


# ---------------------------------------------------------------------------------------------- texts


def arguments_of(kind: FusedKind) -> dict[str, Any]:
    """Return the arguments of `Fused` that create a definition, without empty ones."""
    definition = kind.fused_definition
    words: dict[str, Any] = {"name": kind.title, "dims": " ".join((*definition.order, *definition.array_dims))}
    words["operands"] = {tensor: " ".join(definition.dims_of_array(tensor)) for tensor in definition.uses if not tensor.startswith(INDICES)}
    words |= {
        part: nested_mapping(
            (step.name, _with_masks(step.formula, definition), step.nest) for step in definition.steps if step.part == part
        )
        for part in PARTS
    }
    words |= {word: " ".join(getattr(definition, _FIELD_NAMES.get(word, word))) for word in NAMES}
    words["types"] = dict(definition.types)
    words["mask"] = _mask_texts(definition)
    words["ranges"] = dict(definition.ranges)
    words["outside"] = {one.operand: str(one.outside) for one in definition.indirect if one.outside is not None}
    return {word: value for word, value in words.items() if value or word in ("operands", "body")}


def _mask_texts(definition: FusedDefinition) -> dict[str, str]:
    """Return the condition of each mask, with the names of the masks before it."""
    texts: dict[str, str] = {}
    for number, (name, value) in enumerate(definition.masks):
        texts[name] = shown(cast(Value, with_names(value, definition.masks[:number])))
    return texts


def _with_masks(formula: Formula, definition: FusedDefinition) -> str:
    """Return the text of a step's formula, with the names of masks."""
    return shown(attrs.evolve(formula, value=with_names(formula.value, definition.masks)))


PAIRED: Final = ("operands", *PARTS, "types", "mask", "ranges", "outside")
"""The arguments of `Fused` that are mappings."""

NAMES: Final = (*ROLES, "positive", "distinct")
"""The arguments of `Fused` that are names, separated by blanks."""


def definition_fields(kind: FusedKind) -> dict[str, Any]:
    """Return the arguments of `Fused` as plain values, mappings as lists of pairs. Raises: StoreError for a part of a definition."""
    if not kind.whole:
        raise StoreError(f"a part of the definition {kind.title} cannot be stored", hint="store the strategy and the spec of the kernel")
    words = {**{name: {} for name in PAIRED if name not in ("mask", "ranges", "outside")}, **dict.fromkeys(ROLES, ""), **arguments_of(kind)}
    return {name: plain_pairs(value) if name in PAIRED else value for name, value in words.items()}


def definition(fields: Mapping[str, Any]) -> FusedKind:
    """Return the kind of a definition from the values of `definition_fields`.

    Raises: StoreError if a name occurs twice; errors of `Fused`.
    """
    for name in (name for name in PAIRED if name in fields):
        if len(dict(fields[name])) != len(fields[name]):
            raise StoreError(f"{name} contains a name twice", got=[first for first, _ in fields[name]])
    named = {name: from_pairs(fields[name]) if name in PARTS else dict(fields[name]) for name in PAIRED if name in fields}
    kind = Fused(**{**fields, **named}).kind
    assert isinstance(kind, FusedKind)
    return kind


def text_of(definition: FusedDefinition, title: str) -> str:
    """Format a definition: its dimensions with their roles, its operands, and one step per line."""
    roles = [f"{role} {' '.join(names)}" for role in ROLES if (names := getattr(definition, _FIELD_NAMES.get(role, role)))]
    roles += [f"arrays {' '.join(definition.array_dims)}"] if definition.array_dims else []
    signs = dict.fromkeys(definition.positive, " > 0")
    arrays = {tensor: definition.dims_of_array(tensor) for tensor in definition.uses if not tensor.startswith(INDICES)}
    signs |= {table: f" in {text}" for table, text in definition.ranges}
    signs |= {table: f"{signs.get(table, '')} distinct" for table in definition.distinct}
    signs |= {one.operand: f" outside {one.outside}" for one in definition.indirect if one.outside is not None}
    tensors = [
        f"{tensor}[{','.join(dims)}]{signs.get(tensor, '')}" if dims else f"{tensor}{signs.get(tensor, '')}"
        for tensor, dims in arrays.items()
    ]
    width = max(len(step.name) for step in definition.steps)
    lines = [f"{title}({', '.join(definition.order)})  {'  '.join(roles)}".rstrip(), f"  of {', '.join(tensors)}"]
    lines += [f"  mask {name}: {text}" for name, text in _mask_texts(definition).items()]
    for part in PARTS:
        steps = [step for step in definition.steps if step.part == part]
        lines += [f"  {part}"] if steps and (definition.loops or part != "body") else []
        nest: Nest = ()
        for step in steps:
            lines += [
                f"    {'  ' * depth}for {loop}" for depth, loop in enumerate(step.nest) if step.nest[: depth + 1] != nest[: depth + 1]
            ]
            indent, nest = "  " * len(step.nest), step.nest
            lines.append(f"    {indent}{step.name:<{width}}  {_with_masks(step.formula, definition)}")
    return "\n".join(lines)


def _call_text(spec: Spec, start: Fused) -> str | None:
    """Return the call of a definition that creates a spec; None if no call does."""
    definition = start.fused_definition
    sizes = {dim: spec.size(dim) for dim in definition.order} | definition.extents_of_arrays(spec)
    views = {name: view for name, view in spec.operands.items() if not view.memory.is_coordinate}
    stated = dict(definition.types)
    usual = {view.dtype for name, view in views.items() if view.tensor.shape and name not in definition.tables}
    dtype = usual.pop() if len(usual) == 1 else float16
    usual_types = {name: int32 if name in definition.tables else dtype if view.tensor.shape else float32 for name, view in views.items()}
    types = {name: view.dtype for name, view in views.items() if name in stated or view.dtype != usual_types[name]}
    types = {name: kind for name, kind in types.items() if kind != stated.get(name)}
    orders: dict[str, Any] = {}
    for name, view in views.items():
        layout = view.tensor.array.layout
        order = layout if isinstance(layout, MatrixLayout) else strides_of(name, definition.dims_of_array(name), layout)
        if order is None or (isinstance(order, Strides) and view.tensor.align not in _ALIGNMENTS):
            return None
        if order != RowMajor:
            orders[name] = order.aligned(view.tensor.align) if isinstance(order, Strides) else order
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
"""The alignments that an operand may be declared with, in bytes."""


# ---------------------------------------------------------------------------------------------- reading and checks


def _with_terms(steps: Sequence[Step], names: Iterable[str], single: Collection[str]) -> tuple[Step, ...]:
    """Insert steps that compute the terms of sums of expressions."""
    used_names = {*names, *(name for step in steps for name in (step.name, step.formula.output))}
    sums = SumSplitter(used_names, single, INDICES)
    split = ((step, sums.split(step.name, step.formula)) for step in steps)
    return tuple(attrs.evolve(step, name=name, formula=formula) for step, terms in split for name, formula in terms)


def _positive_numbers(text: object, uses: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Parse the names of parameters passed by value that are above 0; refuse other names."""
    names = tuple(text.split()) if isinstance(text, str) else None
    numbers = [name for name, dims in uses.items() if not dims]
    if names is None or not set(names) <= set(numbers) or len(set(names)) < len(names):
        raise ArgumentError(
            "Fused: positive must name different operands without dimensions", got=text, legal=" ".join(numbers) or "none here"
        )
    return names


def _check_typed(types: Sequence[tuple[str, DType]], names: Sequence[str]) -> None:
    """Refuse a type for a name that the definition does not have."""
    for name, _ in types:
        if name not in names:
            raise ArgumentError(f"Fused: types has {name}, which is neither an operand nor a temporary", got=name, legal=names)


def _reduces_to_operand(step: Step, steps: Iterable[Step], uses: Mapping[str, Any]) -> bool:
    """Whether a step reduces one tensor into an operand that no step reads, or adds a sum to an operand, also by another step.

    For a sum, threads may then add their terms to the operand separately. For another reduction, one tile must contain all terms.
    """
    formula = step.formula
    if formula.output not in uses and any(step in summands_of(other, steps) for other in steps if other.formula.output in uses):
        return True
    if formula.accumulates:
        return (formula.reduces or formula.contracts) and formula.output in uses
    return formula.reduces and formula.output in uses and not any(formula.output in other.reads for other in steps)


def summands_of(step: Step, steps: Iterable[Step]) -> tuple[Step, ...]:
    """Return the sum that a step only adds to an operand: the step `t[m] = sum(n, ...)` for `y[m] += t[m]`, if no other step has `t`.

    Both are in the same loops. Tiles may divide the dimensions of the sum: each adds its part.
    """
    formula = step.formula
    value = formula.value
    if formula.sign != "+=" or not isinstance(value, Element) or not {*value.dims} <= {*formula.target.dims} or formula.over:
        return ()
    accessing = [other for other in steps if value.tensor in (*other.reads, other.formula.output) and other is not step]
    if len(accessing) != 1:
        return ()
    (source,) = accessing
    is_sum = source.formula.sign == "=" and (source.formula.contracts or source.formula.reduction == "sum")
    here = (source.part, source.nest) == (step.part, step.nest) and source.formula.output == value.tensor
    return (source,) if is_sum and here and source.formula.target.dims == value.dims else ()


def _other_names(elements: Sequence[Element]) -> list[tuple[Element, Element]]:
    """Return pairs of elements of one tensor whose dimensions have different names: `h[m,n]` and `h[m,k]`."""
    by_tensor: dict[str, list[tuple[Element, tuple[str, ...]]]] = {}
    for element in elements:
        by_tensor.setdefault(element.tensor, []).append((element, element.dims))
    apart = {tensor: same for tensor, same in by_tensor.items() if any(dims != same[0][1] for _, dims in same)}
    return [(element, other) for element in elements for other, dims in apart.get(element.tensor, ()) if element.dims != dims]


def _reduced(steps: Iterable[Step], uses: Mapping[str, Any]) -> set[str]:
    """Return the dimensions that a step reduces, under all their names: if `h[m,k]` is reduced along k, and `h[m,n]` written, k and n."""
    dims = {dim for step in steps for dim in (*step.formula.over, *step.formula.along)}
    elements = [element for step in steps for element in (*step.formula.elements, step.formula.target) if element.tensor not in uses]
    pairs = _other_names(elements)
    for _ in pairs:
        dims |= {other.dims[place] for element, other in pairs for place, dim in enumerate(element.dims[: len(other.dims)]) if dim in dims}
    return dims


def only_stored(steps: Sequence[Step], uses: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the temporaries that are read only to compute operands, or temporaries of this kind, without further dimensions."""
    candidates = {step.formula.output: set(step.formula.target.dims) for step in steps if step.formula.output not in uses}
    readers: dict[str, list[Step]] = {}
    for step in steps:
        for name in step.reads:
            readers.setdefault(name, []).append(step)
    while True:
        kept = {
            name: dims
            for name, dims in candidates.items()
            if all(
                set(reader.formula.target.dims) <= dims and (reader.formula.output in uses or reader.formula.output in candidates)
                for reader in readers.get(name, ())
            )
        }
        if len(kept) == len(candidates):
            return tuple(kept)
        candidates = kept


def _named(parts: Iterable[tuple[str, object]], loops: Collection[str]) -> dict[str, list[tuple[str, Any, Nest]]]:
    """Return the steps of each part, with their formulas and the nested loops around them.

    Raises: ArgumentError if the name of a step is not an identifier, or occurs twice.
    """
    steps: dict[str, list[tuple[str, Any, Nest]]] = {}
    for part, formulas in parts:
        if not isinstance(formulas, Mapping):
            raise ArgumentError(
                f"Fused: {part} must be a mapping from names of steps to formulas", got=formulas, legal='{"mm": "acc[m,n] = ..."}'
            )
        steps[part] = [*flattened(formulas, part, loops)]
    names = [name for items in steps.values() for name, _, _ in items]
    for part, items in steps.items():
        for name, _, _ in items:
            if not isinstance(name, str) or not name.isidentifier() or names.count(name) > 1:
                twice = isinstance(name, str) and names.count(name) > 1
                apart = sum(name in (other for other, _, _ in others) for others in steps.values()) > 1
                what = f"Fused: the step {name} is in two {'parts' if apart else 'loops'}" if twice else ""
                what = what or f"Fused: {name!r} in {part} is not a name for a step"
                raise ArgumentError(what, legal="different identifiers", hint="another name for one of them" if twice else None)
    return steps


def _masks(texts: Mapping[str, str], order: tuple[str, ...], uses: Collection[str]) -> Masks:
    """Parse conditions by name; each may use the names of those before it."""
    masks: dict[str, Value] = {}
    for name, text in texts.items():
        if not isinstance(name, str) or not name.isidentifier() or name in _WORDS or name.startswith((INDICES, EXTENTS)):
            raise ArgumentError(
                f"Fused: mask names a condition {name!r}", legal='an identifier without another meaning: {"causal": "n <= m"}'
            )
        if name in order or name in uses:
            raise ArgumentError(f"Fused: {name} is a mask and {'a dimension' if name in order else 'an operand'}", hint="another name")
        if not isinstance(text, str):
            raise ArgumentError(f"Fused: mask {name} is a text", got=text, legal='"n <= m"')
        try:
            value = with_conditions(condition(with_extents(text)), masks)
        except ArgumentError as error:
            error.asked = f"mask {name}: {error.asked}"
            raise
        value = with_coordinates(value, order)
        for element in elements_of(value):
            _check_extent(element, f"mask {name}", text, order)
        assert value is not None
        masks[name] = value
    return tuple(masks.items())


def _check_extent(element: Element, what: str, text: str, order: tuple[str, ...]) -> None:
    """Refuse the extent of a dimension that the definition does not have."""
    if element.tensor.startswith(EXTENTS) and element.tensor[len(EXTENTS) :] not in order:
        raise ArgumentError(f"{what}: size({element.tensor[len(EXTENTS) :]}) names no dimension", got=text, legal=order)


def _read(text: object, step: str, order: tuple[str, ...], masks: Masks) -> Formula:
    """Parse the formula of a step, with coordinates and extents as operands, and conditions instead of names of masks."""
    if not isinstance(text, str):
        raise ArgumentError(f"Fused: the formula of step {step} must be a text", got=text)
    try:
        parsed = formula_of(with_extents(text))
        value = with_conditions(parsed.value, dict(masks))
    except ArgumentError as error:
        error.asked = f"step {step}: {error.asked}"
        raise
    for element in parsed.elements:
        _check_extent(element, f"step {step}", text, order)
    value = with_coordinates(value, order)
    reads = [element for element in elements_of(value) if element.tensor == parsed.target.tensor]
    if any(element.index != parsed.target.index for element in reads):
        raise ArgumentError(f"step {step}: {parsed.output} is read at other indices than it is written", got=text)
    return attrs.evolve(parsed, value=value)


_WORDS: Final = (*FUNCTIONS, *REDUCTIONS, "inf", "and", "or", "size")
"""Names with a meaning in formulas."""


def with_extents(text: str) -> str:
    """Replace extents by operands in a formula: `size(n)` by `size_n`."""
    return re.sub(r"\bsize\(\s*(\w+)\s*\)", rf"{EXTENTS}\1", text)


def with_coordinates(value: Value | None, order: tuple[str, ...]) -> Value | None:
    """Replace names of dimensions by coordinates: `n` by `index_n[n]`."""
    if isinstance(value, Element) and not value.index and value.tensor in order:
        return Element(f"{INDICES}{value.tensor}", (Index(value.tensor),))
    if isinstance(value, Operation):
        return Operation(value.name, tuple(with_coordinates(argument, order) for argument in value.arguments))  # type: ignore[misc]
    return value


def shown(formula: Formula | Value) -> str:
    """Return the text of a step's formula, or of a value in it, as a user writes it."""
    text = re.sub(rf"\b{INDICES}(\w+)\[\w+\]", r"\1", str(formula))
    return re.sub(rf"\b{EXTENTS}(\w+)", r"size(\1)", text)


def _array_dims(
    order: Sequence[str], steps: Iterable[Step], indirect: Iterable[Stored], roles: Mapping[str, tuple[str, ...]]
) -> tuple[str, ...]:
    """The dimensions that only arrays of indirect operands have: no formula has them."""
    counted = {dim for step in steps for element in (*step.formula.elements, step.formula.target) for dim in element.dims}
    counted |= {dim for step in steps for dim in step.formula.over} | {dim for dims in roles.values() for dim in dims}
    counted |= {element.tensor[len(EXTENTS) :] for step in steps for element in step.formula.elements if element.tensor.startswith(EXTENTS)}
    arrays = {dim for operand in indirect for dim in operand.of}
    return tuple(dim for dim in order if dim in arrays and dim not in counted)


def _check_array_dims(definition: FusedDefinition, declared: Mapping[str, tuple[str, ...]]) -> None:
    """Refuse operands whose array has a dimension that no index of it determines, because its operand is not indirect."""
    for name, dims in declared.items():
        loose = [dim for dim in dims if dim in definition.array_dims and definition.array_of(name) is None]
        if loose:
            raise ArgumentError(
                f"Fused: {name} has the dimension {loose[0]}, which no formula has", legal=definition.order,
                hint=f"a dimension of formulas, or an index such as {name}[rows[m]]",
            )  # fmt: skip


def _extents_of(title: str, definition: FusedDefinition, sizes: Mapping[str, Any]) -> dict[str, Expr]:
    """Return the sizes of all dimensions of a call. Those that a digit determines may be omitted.

    Raises: ArgumentError for sizes of other dimensions, and for sizes that differ from those that digits determine.
    """
    every = (*definition.order, *definition.array_dims)
    known = {dim: check_size(sizes[dim], dim) for dim in every if dim in sizes}
    derived = derived_extents(definition.indirect, known) if set(definition.order) <= set(known) else {}
    if not set(sizes) <= set(every) or not set(every) <= {*known, *derived}:
        raise ArgumentError(f"{title}: the sizes must be those of its dimensions", got=sorted(sizes), legal=every)
    for dim, (size, index) in derived.items():
        if known.setdefault(dim, size) != size:
            raise ArgumentError(
                f"{title}: the size of {dim} must be that of the index {index}", got=f"{dim}={known[dim]}", legal=f"{dim}={size}",
                hint=f"omit {dim}" if dim in definition.array_dims else None,
            )  # fmt: skip
    return {dim: known[dim] for dim in every}


def _operand_tensor(definition: FusedDefinition, name: str, arrays: Mapping[str, Tensor], extents: Mapping[str, Expr]) -> Tensor:
    """Return the tensor of an operand, or of the coordinates of a dimension."""
    shape = tuple(extents[dim] for dim in definition.uses[name])
    if name.startswith(INDICES):
        return Tensor(name, shape, int32, COORD, ColMajor)
    stored = definition.array_of(name)
    return (
        arrays[name]
        if stored is None
        else tensor_of(stored, arrays[name], arrays, shape, dict(definition.ranges), name in definition.outputs)
    )


def _text(definition: FusedDefinition) -> str:
    """The whole definition as text, for equality and hashes."""
    given = ", ".join(f"{name}[{','.join(dims)}]" for name, dims in definition.given)
    steps = "\n".join(" ".join((step.part, *(f"for {loop}:" for loop in step.nest), str(step))) for step in definition.steps)
    arrays = "".join(f" {one.operand} of {one.of}" for one in definition.indirect) + "".join(f" {text}" for _, text in definition.ranges)
    arrays += f" distinct {definition.distinct}" if definition.distinct else ""
    arrays += "".join(f" {one.operand} outside {one.outside}" for one in definition.indirect if one.outside is not None)
    return f"{given}{arrays} over {definition.over} scan {definition.scan} batch {definition.batch}\n{steps}".replace("{", "(").replace(
        "}", ")"
    )


def _check_names(name: object, order: tuple[str, ...], uses: Mapping[str, Any], roles: Mapping[str, tuple[str, ...]]) -> None:
    """Refuse names that are not identifiers, or that have another meaning."""
    if not isinstance(name, str) or not name.isidentifier() or not name.isascii() or name.startswith("__"):
        raise ArgumentError("Fused: the name of a definition must be an identifier of CUDA C++", got=name, legal="softmax, my_kernel")
    for label in (*order, *uses):
        if (
            label in FUNCTIONS
            or label in REDUCTIONS
            or label in TAKEN
            or label in ("inf", "and", "or")
            or label.startswith((INDICES, EXTENTS))
        ):
            raise ArgumentError(f"Fused: {label} is a reserved name", hint="another name")
    for label in order:
        if not label.isascii() or label.startswith("__"):
            raise ArgumentError(f"Fused: {label} is not an identifier of CUDA C++", legal="ASCII letters, without two leading underscores")
    for label in uses:
        if not label.isascii() or is_taken(label):
            raise ArgumentError(
                f"Fused: the operand name {label} has a meaning in CUDA C++", legal="an identifier of ASCII letters",
                hint=f"{label.strip('_') if label.isascii() else 'x'}_values, or another name",
            )  # fmt: skip
    both = set(order) & set(uses)
    if both:
        raise ArgumentError(f"Fused: {both.pop()} is a dimension and an operand")
    dims_with_role = [dim for dims in roles.values() for dim in dims]
    twice = [dim for dim in dims_with_role if dims_with_role.count(dim) > 1]
    if twice:
        raise ArgumentError(f"Fused: {twice[0]} has two roles", got={role: dims for role, dims in roles.items() if twice[0] in dims})


def _check_replaced(definition: FusedDefinition, step: Step, types: Mapping[str, DType]) -> None:
    """Refuse floats that overwrite an integer accumulator if a later iteration, or another loop, continues with its integers."""
    name = step.formula.output
    again = definition.with_second_loop()
    later = (
        any(later_step.part == SECOND_LOOP and name in later_step.reads for later_step in again.steps)
        if step.part == "final"
        else name in definition.carried
    )
    if later:
        raise ArgumentError(
            f"step {step.name} overwrites {name}, which is {types[name]}, with floats that are live across iterations",
            got=shown(step.formula), hint=f"another temporary: {name}_scaled[{','.join(step.formula.target.dims)}] = ...",
        )  # fmt: skip


def _check_steps(definition: FusedDefinition) -> None:
    """Refuse reads of tensors before any write, invalid dimensions, outputs that no step writes, and unused operands."""
    known = dict(definition.uses)
    written: set[str] = set(definition.uses) - set(definition.outputs)
    for step in definition.steps:
        formula = step.formula
        if not formula.output.isascii() or formula.output.startswith("__"):
            raise ArgumentError(
                f"step {step.name}: {formula.output} is not an identifier of CUDA C++",
                legal="ASCII letters, without two leading underscores",
            )
        for element in (formula.target, *formula.elements):
            _check_element(step, element, known, definition)
        if formula.output in definition.added:
            _check_added(definition, step)
            written.add(formula.output)
        for name in step.reads:
            if name not in written and name not in definition.temporaries and not name.startswith((INDICES, EXTENTS)):
                names = [*definition.arrays, *definition.temporaries]
                meant = closest(name, names)
                raise ArgumentError(
                    f"step {step.name}: {name} is not an operand, and no step writes it",
                    got=shown(formula), legal=names,
                    hint=f"did you mean {meant}?" if meant else "an operand, or an earlier step that writes it",
                )  # fmt: skip
            if name not in written and not name.startswith(EXTENTS):
                hint = f"init={{...: '{formula.target} = 0'}}" if name == formula.output else "an earlier step that writes it"
                raise ArgumentError(f"step {step.name}: {name} is read before it is written", got=shown(formula), hint=hint)
        known.setdefault(formula.output, formula.target.dims)
        written.add(formula.output)
        if formula.output in definition.uses and formula.output in (element.tensor for element in formula.elements):
            raise ArgumentError(
                f"step {step.name}: the operand {formula.output} is read and written", got=shown(formula), hint="a temporary"
            )
    idle = [
        operand
        for operand in definition.uses
        if not operand.startswith(INDICES)
        and operand not in definition.tables
        and not any(operand in (*s.reads, s.formula.output) for s in definition.steps)
    ]
    if idle:
        raise ArgumentError(f"Fused: no step reads or writes {idle[0]}", legal="operands that steps access")
    if not definition.outputs:
        raise ArgumentError("Fused: no step writes an operand", legal=definition.arrays)
    _check_roles(definition)


def _check_added(definition: FusedDefinition, step: Step) -> None:
    """Refuse a step that adds to an operand if another step stores or reads it, or if it does not add."""
    formula = step.formula
    name, target = formula.output, formula.target
    what = f"step {step.name}: {formula.sign} combines with the operand {name}"
    stored = next((other for other in definition.steps if other.formula.output == name and not other.formula.accumulates), None)
    if stored is not None:
        raise ArgumentError(
            f"{what}, and step {stored.name} stores it: blocks are not ordered", got=shown(formula),
            legal="= in one step, or += in all of them",
            hint=f"accumulate to a temporary, and then {target} = ...",
        )  # fmt: skip
    if formula.combiner == "prod":
        raise ArgumentError(
            f"{what}, but only sums, maxima and minima are combined in memory", got=shown(formula),
            legal=f"{target} += ..., {target} max= ..., {target} min= ...", hint=f"combine in a temporary, and then {target} = ...",
        )  # fmt: skip
    other = next(step for step in definition.steps if step.formula.output == name)
    if other.formula.combiner != formula.combiner:
        raise ArgumentError(
            f"{what}, and step {other.name} by {other.formula.sign}: the result would depend on their order", got=shown(formula),
            legal=f"{other.formula.sign} in all steps that write {name}", hint="two outputs",
        )  # fmt: skip
    reader = next((other for other in definition.steps if any(element.tensor == name for element in other.formula.elements)), None)
    if reader is not None:
        raise ArgumentError(
            f"{what}, and step {reader.name} reads it before all blocks have added", got=shown(reader.formula),
            hint=f"read the temporaries from which {name} is computed, or read {name} in a separate kernel",
        )  # fmt: skip


def _check_roles(definition: FusedDefinition) -> None:
    """Refuse roles that steps contradict: an unused dimension, a loop over a dimension that `body` lacks, a reduction over one element."""
    counted: dict[str, set[str]] = {}
    for step in definition.steps:
        counted[step.name] = {dim for element in (*step.formula.elements, step.formula.target) for dim in element.dims} | {
            *step.formula.over
        }
    idle = [dim for dim in definition.order if not any(dim in dims for dims in counted.values())]
    if idle:
        raise ArgumentError(f"Fused: no step has the dimension {idle[0]}", legal="dimensions of formulas", hint="remove it from dims")
    for dim in definition.loops:
        inside = {name for step in definition.steps if dim in definition.loops_around(step) for name in counted[step.name]}
        if dim not in inside:
            where = f"the loop over {dim}" if dim in definition.nested else "body"
            raise ArgumentError(f"Fused: no step of {where} has the loop's dimension {dim}", legal=sorted(inside))
    for step in definition.steps:
        outside = [dim for dim in definition.nested if dim in definition.scan and dim not in definition.loops_around(step)]
        outside = [dim for dim in outside if dim in counted[step.name]]
        if outside:
            raise ArgumentError(
                f"step {step.name} has the dimension {outside[0]}, but is not in the loop over {outside[0]}", got=shown(step.formula),
                legal=f"steps of the loop over {outside[0]}", hint=f"{outside[0]} in loop instead of scan, or move the step into the loop",
            )  # fmt: skip
    for step in definition.steps:
        alone = [dim for dim in (*step.formula.over, *step.formula.along) if dim in (*definition.scan, *definition.batch)]
        if alone:
            verb = "scans" if step.formula.along else "reduces"
            what = f"step {step.name} {verb} {alone[0]}, but steps have only one element of {alone[0]} at a time"
            raise ArgumentError(
                what, got=shown(step.formula), hint=f"remove {alone[0]} from {'scan' if alone[0] in definition.scan else 'batch'}"
            )
    for name in (name for name in definition.outputs if name not in definition.added):
        shared = [dim for dim in definition.batch if dim not in definition.uses[name]]
        if shared:
            element = Element(name, tuple(map(Index, definition.uses[name])))
            raise ArgumentError(
                f"Fused: {name} lacks the batch dimension {shared[0]}, so several blocks would write the same elements",
                got=str(element), legal=f"every dimension of batch in {name}", hint=f"{element} += ... for a sum over {shared[0]}",
            )  # fmt: skip
    around = [step for step in definition.steps if step.part != "body"]
    if around and not definition.loops:
        what = f"step {around[0].name}: {around[0].part} is for steps around a loop, and the definition has no loop"
        raise ArgumentError(what, hint=f"body={{{around[0].name!r}: ...}}, or loop=... names dimensions of a loop")


def _check_element(step: Step, element: Element, known: Mapping[str, tuple[str, ...]], definition: FusedDefinition) -> None:
    """Refuse an element with other dimensions than its tensor, or with dimensions that the step does not have."""
    if element.tensor.startswith(EXTENTS):
        return
    dims = known.get(element.tensor)
    unknown = [dim for dim in element.dims if dim not in definition.order]
    if unknown or (dims is not None and len(dims) != len(element.dims)):
        what = f"{unknown[0]} is not a dimension" if unknown else f"{element} has other dimensions than the tensor"
        what = f"step {step.name}: {what}"
        raise ArgumentError(
            what, got=shown(step.formula), legal=definition.order if unknown else f"{element.tensor}[{','.join(dims or ())}]"
        )
    free = {*step.formula.target.dims, *step.formula.over, *definition.scan, *definition.batch}
    loose = [dim for dim in element.dims if dim not in free]
    if loose:
        of = "" if element.tensor.startswith(INDICES) else f" of {element}"
        raise ArgumentError(f"step {step.name}: {loose[0]}{of} is neither in the result nor reduced", got=shown(step.formula))


__all__ = ["Fused"]
