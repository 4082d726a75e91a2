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
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import attrs

from fireiron.errors import ArgumentError, StoreError
from fireiron.frozen import evolve, frozen
from fireiron.generated_verbs import ForFused
from fireiron.spec import Kind, Spec, Starter, check_distribution, check_level, located
from fireiron.specs.compressed import check_metadata_types, dense_operands, of_dense
from fireiron.specs.compression import random_metadata
from fireiron.specs.formula import Definition
from fireiron.specs.fused_building import Arguments, check_mapping, definition_of
from fireiron.specs.fused_checks import check_names, check_replaced, check_terms
from fireiron.specs.fused_definition import FusedDefinition
from fireiron.specs.fused_parsing import parsed_dims
from fireiron.specs.fused_sizes import check_equal_sizes, extents_of, operand_array, operand_tensor, usual_type
from fireiron.specs.fused_texts import PAIRED, arguments_of, call_text, content_of, text_of
from fireiron.specs.fused_trials import check_iterations, check_temporaries_are_read
from fireiron.specs.indirect import check_outside, check_table_types, gathered
from fireiron.specs.integers import check_integers
from fireiron.specs.meaning import limits_of
from fireiron.specs.nested import from_pairs, plain_pairs
from fireiron.specs.steps import EXTENTS, INDICES, PARTS, ROLES, shown
from fireiron.values.expr import Expr
from fireiron.values.machine import DType, Kernel, Level, as_dtype, float16
from fireiron.values.orders import Distributed
from fireiron.values.strides import StorageOrder
from fireiron.values.tensor import RowMajor, whole_view

if TYPE_CHECKING:
    from fireiron.generated_verbs import FusedSpec


@frozen
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

    def random_input(self, name: str, shape: Sequence[int], generator: Any) -> Any:
        return random_metadata(shape, generator) if name in self.fused_definition.metadata else None

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
                check_replaced(definition, step, types)
                types[step.formula.output] = definition.storage_type(step, types, types[step.formula.output])
                ranges.pop(step.formula.output, None)
            check_terms(definition, step, types, ranges)
            check_integers(step.formula, ranges, bounds, f"step {step.name}", shown)

    def check_meaning(self, definition: Definition) -> None:
        super().check_meaning(definition)
        self.fused_definition.check_meaning()

    def short(self, spec: Spec) -> str | None:
        """Return the call of the definition, with sizes, types and storage orders, that creates the spec; None if no call does."""
        return call_text(spec, Fused.of(self)) if self.whole else None

    @functools.cached_property
    def whole(self) -> bool:
        """Whether a user can write the definition as a call of `Fused`: it is not a part, and has no strategies of steps."""
        try:
            return Fused(**dict(arguments_of(self))).kind == self
        except ArgumentError:
            return False

    def of(self, **changes: Any) -> FusedKind:
        """Return the kind with other fields of its definition."""
        return evolve(self, fused_definition=self.fused_definition.of(**changes))


def fused(spec: Spec) -> FusedDefinition | None:
    """Return the definition of a spec of several steps; None for other specs."""
    return spec.definition if isinstance(spec.definition, FusedDefinition) else None


def as_direct(spec: Spec, arrays: Mapping[str, Any], sizes: Mapping[str, int]) -> tuple[Spec, dict[str, Any]]:
    """Return the spec without indirect and compressed operands, and inputs in the operands' own dimensions: the same results.

    `arrays` are inputs by name, as the kernel takes them; `sizes` are the values of symbols.
    """
    definition = fused(spec)
    if definition is None:
        return spec.kind.direct(spec, arrays)
    spec, arrays = _with_dense_operands(spec, definition, arrays)
    definition = fused(spec)
    assert definition is not None
    if not definition.indirect:
        return spec, dict(arrays)
    extents = {dim: int(spec.size(dim).evaluate(sizes)) for dim in spec.dims}
    inputs = {one.operand: gathered(one, arrays, extents) for one in definition.indirect if one.operand in arrays}
    return with_definition(spec, definition.of(indirect=(), array_dims=(), ranges=(), distinct=()), {}), {**arrays, **inputs}


def _with_dense_operands(spec: Spec, definition: FusedDefinition, arrays: Mapping[str, Any]) -> tuple[Spec, dict[str, Any]]:
    """Return the spec with dense operands instead of compressed ones, and its inputs."""
    if not definition.compressed:
        return spec, dict(arrays)
    dense = {name: array for name, array in dense_operands(definition.compressed, arrays).items() if name not in definition.metadata}
    steps = tuple(evolve(step, formula=of_dense(step.formula)) for step in definition.steps)
    given = tuple((name, dims) for name, dims in definition.given if name not in definition.metadata)
    array_dims = tuple(dim for dim in definition.array_dims if any(dim in operand.of for operand in definition.indirect))
    views = {}
    for name in (operand.values.operand for operand in definition.compressed):
        shape = tuple(spec.size(dim) for dim in definition.uses[name])
        views[name] = whole_view(evolve(spec.operands[name].tensor, shape=shape, layout=RowMajor))
    plain = with_definition(spec, definition.of(steps=steps, given=given, array_dims=array_dims, compressed=()), views)
    return plain, {name: array for name, array in {**arrays, **dense}.items() if name not in definition.metadata}


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
    return evolve(spec, kind=evolve(spec.kind, fused_definition=definition), views=tuple(known[name] for name in definition.uses))


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
        dims_in_order = parsed_dims(dims, "dims")
        for what, by_name in (("operands", operands), ("types", types or {}), ("mask", mask or {}), ("outside", outside or {})):
            check_mapping(what, by_name)
        arguments = Arguments(
            order=dims_in_order,
            uses={operand: parsed_dims(text, f"the dimensions of {operand}", dims_in_order) for operand, text in dict(operands).items()},
            roles={role: parsed_dims(text, role, dims_in_order) for role, text in zip(ROLES, (loop, scan, batch), strict=True)},
            parts=(("init", init or {}), ("body", body), ("final", final or {})),
            types=types or {}, positive=positive, ranges=ranges or {}, distinct=distinct, mask=mask or {}, outside=outside or {},
        )  # fmt: skip
        check_names(name, arguments.order, arguments.uses, arguments.roles)
        definition = definition_of(arguments)
        super().__init__(FusedKind(name, content_of(definition), fused_definition=definition))

    def takes(self, start: Starter) -> bool:
        """Whether a chain from `start` fits: one from this definition; if it has one matmul, also one from the kind of this matmul, and one
        from a definition that differs only in declared types, such as that of the accumulator.
        """
        product = self.fused_definition.product
        if super().takes(start) or product is None:
            return super().takes(start)
        if isinstance(start, Fused) and start.title == self.title:
            return start.fused_definition.of(types=()) == self.fused_definition.of(types=())
        return start.kind.title == product.kind_of_product

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
        self, *, dtype: DType = float16, types: Mapping[str, DType] | None = None, level: Level = Kernel,
        **sizes: Expr | int | StorageOrder | Distributed,
    ) -> FusedSpec:  # fmt: skip
        """Return the spec of the kernel. Pass sizes by dimension (integers or symbols), and storage orders by operand (default: row-major).

        `dtype` is the type of operands with dimensions (float16 by default); numbers are float32. `types` specifies other types, by
        operand. Types that the definition declares need not be repeated. `level` is that of the spec: `Node(2)` for the GPUs of a node,
        which may store parts of operands: `X=RowMajor.over(GPU, "m")`.
        """
        definition = self.fused_definition
        tensors = [tensor for tensor in definition.uses if not tensor.startswith(INDICES)]
        layouts = {tensor: sizes.pop(tensor) for tensor in tensors if tensor in sizes}
        extents = extents_of(self.kind.title, definition, sizes)
        check_equal_sizes(self.kind.title, definition, extents)
        given_types, stated = {tensor: as_dtype(kind) for tensor, kind in (types or {}).items()}, dict(definition.types)
        unknown = [tensor for tensor in given_types if tensor not in tensors]
        if unknown:
            raise ArgumentError(f"{self.kind.title}: {unknown[0]} is not an operand", got=unknown[0], legal=tensors)
        all_types = {tensor: given_types.get(tensor) or stated.get(tensor) or usual_type(definition, tensor, dtype) for tensor in tensors}
        arrays = {
            tensor: operand_array(self.kind.title, definition, tensor, extents, all_types[tensor], layouts.get(tensor, RowMajor))
            for tensor in tensors
        }
        kinds = {tensor: array.dtype for tensor, array in arrays.items()}
        check_distribution(self.kind.title, check_level(level), {name: array.layout for name, array in arrays.items()}, extents)
        check_table_types(definition.indirect, kinds)
        check_metadata_types(definition.compressed, kinds)
        check_outside(definition.indirect, kinds)
        views = [whole_view(operand_tensor(definition, name, arrays, extents)) for name in definition.uses]
        return cast("FusedSpec", Spec(level, self.kind, tuple(views)))

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
        check_temporaries_are_read(self.kind.title, self.fused_definition)
        check_iterations(self.kind.title, self.fused_definition, sizes or {}, seed)


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


__all__ = ["Fused"]
