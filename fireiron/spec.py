"""Specs: what to compute, as immutable values (Fireiron, section 3.1).

`MatMul(M, N, K)(GL, GL, GL)(Kernel)` is the short form. All specs have the same class. The `Kind` of a spec is a declaration with a
formula. The dimensions, operands, outputs, short form, texts and meaning of a spec are derived from it, so the same verbs work on every
spec. The kinds are declared in `specs/`, one per file.
"""

from __future__ import annotations

import functools
import inspect
import math
import numbers
import string
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Generic, ParamSpec, Self, TypedDict, TypeVar, cast

import attrs

from fireiron.display import Displayed
from fireiron.errors import ArgumentError, FireironError
from fireiron.frozen import frozen
from fireiron.generated_verbs import ForAny, ForEvery
from fireiron.specs.arithmetic import convert
from fireiron.specs.bits import Range
from fireiron.specs.formula import ELLIPSIS, Definition, Number, definition, expand_ellipsis, open_operands, with_signature
from fireiron.specs.integers import check_integers
from fireiron.specs.meaning import neutral, perform, reference
from fireiron.specs.verbs import Offering, argument_error, require_no_refinement
from fireiron.values.affine import AffineIndex, affine_text, digit_text
from fireiron.values.cuda_names import is_taken
from fireiron.values.expr import FALSE, ONE, Expr, Var, as_expr, assume_positive, constant
from fireiron.values.indirect import DimIndex, TableIndex
from fireiron.values.layout import Layout, flatten
from fireiron.values.machine import (
    GL,
    LEVELS,
    MATRIX_ONLY,
    MEMORIES,
    NAMED_MEMORIES,
    DType,
    Kernel,
    Level,
    Memory,
    as_dtype,
    as_integer,
    float32,
    int8,
    int32,
)
from fireiron.values.orders import Distributed
from fireiron.values.strides import USUAL_ALIGNMENT, StorageOrder, Strides, strides_chosen, strides_repr, surely_overlaps
from fireiron.values.tensor import ColMajor, MatrixLayout, RowMajor, Tensor, Through, View, whole_view
from fireiron.values.typed import check_types

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S", bound="Spec")


def located(function: Callable[P, T]) -> Callable[P, T]:
    """Wrap a function so that its errors contain the line of the caller outside this package."""

    @functools.wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except FireironError as error:
            from fireiron.errors import call_site

            raise error.located(at=call_site()) from None
        except TypeError as error:
            raise argument_error(function, args, kwargs) or error from None

    return called


class OfMatrices(TypedDict, total=False):
    """Keywords for the sizes of a short form with any number of sizes."""

    M: Expr | int
    N: Expr | int
    P: Expr | int


_OF_MATRICES: Final = tuple(OfMatrices.__annotations__)


def short_form(function: Callable[P, T]) -> Callable[P, T]:
    """Wrap a short form with any number of sizes: sizes may also be given by name, `Move(64, N=32)`. The result is `located`.

    The function declares `**named` for type checkers, but never receives it.
    """
    *parameters, _ = inspect.signature(function).parameters.values()
    leading = next(number for number, parameter in enumerate(parameters) if parameter.kind is parameter.VAR_POSITIONAL)
    known = {parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY}
    function.__dict__["__signature__"] = inspect.Signature(parameters)
    inner: Callable[..., T] = located(function)

    @functools.wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        following = _OF_MATRICES[max(len(args) - leading, 0) :]
        named = [name for name in following if name in kwargs]
        if named == list(following[: len(named)]):  # no earlier size is missing
            args = (*args, *(kwargs.pop(name) for name in named))  # type: ignore[assignment]
        if not known.issuperset(kwargs):
            raise argument_error(function, args, kwargs) or AssertionError(kwargs)
        return inner(*args, **kwargs)

    return called


# ---------------------------------------------------------------------------------------------- kinds


@frozen
class Parameter:
    """A part of a kind's formula to which a spec gives a value: an integer, any number (`real`), or a text.

    If `legal` is not empty, other texts are refused. Parameters without a default come first in the short form.
    """

    name: str
    default: int | float | str | None = None
    text: bool = False
    legal: tuple[str, ...] = ()
    real: bool = False

    def __attrs_post_init__(self) -> None:
        check_types(self)
        if not self.name.isidentifier():
            raise ArgumentError("the name of a parameter must be an identifier", got=self.name)

    def checked(self, value: Any, title: str) -> Any:
        """Return the value. Raises: ArgumentError if it has the wrong type, or is not one of the legal texts."""
        if self.text:
            if not isinstance(value, str) or (self.legal and value not in self.legal):
                raise ArgumentError(f"{title}: unknown {self.name}", got=value, legal=self.legal or None)
            return value[:]  # convert subclasses of str to str
        number = as_number(value) if self.real else as_integer(value)
        if number is None:
            wanted = "a number other than NaN and -0.0" if self.real else "an integer"
            raise ArgumentError(f"{title}: {self.name} must be {wanted}", got=value)
        return number


def as_number(value: object) -> int | float | None:
    """Return a number as a Python number, an integer if it is whole; None for other values.

    NaN and -0.0 also give None, because specs are compared by value: NaN is not equal to itself, and -0.0 equals 0.
    """
    whole = as_integer(value)
    if whole is not None or isinstance(value, bool) or not isinstance(value, numbers.Real):
        return whole
    number = float(value)
    if math.isnan(number) or (number == 0 and math.copysign(1, number) < 0):
        return None
    return int(number) if number.is_integer() else number


@frozen
class Kind:
    """A declaration of specs: the formula that they compute, with `{name}` for each parameter.

    If an index list of the formula contains `...`, a spec may have any number of dimensions; its sizes or views determine it. `atomic`:
    each element of the result is added to memory atomically.

    >>> from fireiron import *
    >>> scale = Kind("Scale", "y[i,j] = {by} * x[i,j]", (Parameter("by"),)).starter
    >>> print(scale(3, 64, 64)(GL, GL)(Kernel))
    Scale<3>(64,64)(GL,GL)(Kernel)
    >>> shift = Kind("Shift", "y[...] = x[...] + 1").starter
    >>> print(shift(64)(GL, GL)(Kernel), shift(8, 4, 2)(GL, GL)(Kernel))
    Shift(64)(GL,GL)(Kernel) Shift(8,4,2)(GL,GL)(Kernel)
    """

    title: str
    text: str
    parameters: tuple[Parameter, ...] = ()
    atomic: bool = False

    def __attrs_post_init__(self) -> None:
        if not isinstance(self.title, str) or not self.title.isidentifier():
            raise ArgumentError("the title of a kind must be an identifier", got=self.title)
        check_types(self)
        try:
            names = [field for _, field, _, _ in string.Formatter().parse(self.text) if field is not None]
        except ValueError as error:
            hint = "write {name} for a parameter, and no other braces"
            raise ArgumentError(f"{self.title}: the text is not a formula: {error}", got=self.text, hint=hint) from None
        if set(names) != {parameter.name for parameter in self.parameters}:
            raise ArgumentError(
                f"{self.title}: the parameters of the formula are not those of the kind", got=self.text, legal=self.parameters
            )
        if not names:
            self.definition(())

    @property
    def starter(self) -> OwnStarter:
        """The starter of chains and short forms of this kind."""
        return OwnStarter(self)

    @functools.cached_property
    def required(self) -> tuple[str, ...]:
        """The parameters that a spec must specify."""
        return tuple(parameter.name for parameter in self.parameters if parameter.default is None)

    @functools.cached_property
    def defaults(self) -> Mapping[str, Any]:
        """The other parameters, with their default values."""
        return {parameter.name: parameter.default for parameter in self.parameters if parameter.default is not None}

    def filled(self, options: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
        """Return the parameters with their values, and remove these from the options."""
        return tuple(
            (parameter.name, parameter.checked(options.pop(parameter.name, parameter.default), self.title)) for parameter in self.parameters
        )

    def definition(self, parameters: tuple[tuple[str, Any], ...], rank: int = 2) -> Definition:
        """Return the formulas, with the values of parameters, and `rank` dimensions for `...`."""
        return definition(expand_ellipsis(self._text(parameters), rank))

    def of_signature(self, parameters: tuple[tuple[str, Any], ...], signature: str) -> Definition:
        """Return the definition with the indices of a signature."""
        return with_signature(self.definition(parameters), signature)

    def of_sizes(self, parameters: tuple[tuple[str, Any], ...], count: int, signature: str = "") -> Definition:
        """Return the definition with a signature, or with `count` dimensions if the formula contains `...`."""
        if signature:
            return self.of_signature(parameters, signature)
        if ELLIPSIS not in self._text(parameters):
            return self.definition(parameters)
        return self.definition(parameters, max(count - len(self.definition(parameters, 1).dims) + 1, 0))

    def array_dims(self, definition: Definition, name: str) -> tuple[str, ...]:
        """The dimensions of an operand's array: those of the operand, unless it is indirect."""
        return definition.uses[name]

    def of_views(self, parameters: tuple[tuple[str, Any], ...], views: tuple[View, ...]) -> Definition:
        """Return the definition with the number of dimensions of the views, if the formula contains `...`."""
        text = self._text(parameters)
        for position, least in open_operands(text):
            if position < len(views) and isinstance(views[position], View):
                return definition(expand_ellipsis(text, max(len(views[position].dims) - least + 1, 0)))
        return definition(expand_ellipsis(text, 2))

    def reference(
        self, definition: Definition, arrays: Mapping[str, Any], types: Mapping[str, DType], sizes: Mapping[str, int]
    ) -> tuple[Any, ...]:
        """Compute the outputs of a definition of this kind from its inputs, in float64 and rounded once."""
        return tuple(reference(formula, arrays, types, sizes) for formula in definition.formulas)

    def perform(
        self,
        definition: Definition,
        values: Mapping[str, Any],
        types: Mapping[str, DType],
        accumulate: Any,
        compute_type: DType | None = None,
        ranges: Mapping[str, Range] | None = None,
    ) -> dict[str, Any]:
        """Return new values of the outputs of a definition of this kind; `ranges` are those of integer operands."""
        self.check_meaning(definition)
        return {formula.output: perform(formula, values, types, accumulate, compute_type, ranges) for formula in definition.formulas}

    def direct(self, spec: Spec, arrays: Mapping[str, Any]) -> tuple[Spec, dict[str, Any]]:
        """Return a spec with the same results whose operands have an element per coordinate, and its inputs."""
        return spec, dict(arrays)

    def random_input(self, name: str, shape: Sequence[int], generator: Any) -> Any:
        """Return random legal values of an input whose type has values that are not legal; None for other inputs."""
        return None

    def check_integers(self, spec: Spec) -> None:
        """Refuse a spec of this kind with an integer whose exact value may need more than 64 bits."""
        for formula in spec.definition.formulas:
            check_integers(formula, spec.integer_ranges, {}, spec.title)

    @property
    def executes(self) -> bool:
        """Whether the simulator can compute its results, by the formula or by a function."""
        return True

    def check_meaning(self, definition: Definition) -> None:
        """Refuse a definition that leaves the values of an output unspecified."""
        for formula in definition.formulas:
            if formula.value is None:
                raise ArgumentError(
                    f"{self.title} leaves the values of {formula.output} unspecified", hint="use a formula with a right side"
                )

    def short(self, spec: Spec) -> str | None:
        """Return the short form of a spec of this kind; None if it does not determine the spec."""
        return _short_repr(spec)

    def _text(self, parameters: tuple[tuple[str, Any], ...]) -> str:
        return self.text.format(**dict(parameters)) if parameters else self.text


def as_condition(value: object) -> Expr:
    """Convert a truth value or a condition to an expression: whether a spec adds to the present value of its output."""
    condition = as_expr(int(value)) if isinstance(value, bool) else as_expr(value)
    if condition.low < 0 or condition.high > 1:
        raise ArgumentError("accumulate must be True, False or a condition", got=value, legal="False True, or a condition such as k > 0")
    return condition


# ---------------------------------------------------------------------------------------------- specs


@attrs.frozen(repr=False)
class Spec(Offering, ForAny, Displayed):
    """A spec: the kind, the level of the executing threads, and the operands as views, in the order of the formula.

    - `accumulate`: the condition under which the result is combined with the present value of the output, if the formula permits it.
    - `accumulator`: the accumulator type of unrefined code; None for the output's type.
    - `in_parts`: this is one part of a sum to which other blocks add at the same time (`split_k`), so it must be added atomically. A
      `Reduction` in parts keeps the partial results of several threads, along a dimension that only its result has.
    - `names`: the names of the dimensions in generated code.
    - `signature`: indices of the operands that replace those of the kind, in the notation of `einsum`: `bmk,bkn->bmn`. Sizes are those of
      the dimensions of the result, then of the reduction dimensions.

    Legal if the operands agree on the sizes of shared dimensions; at the level Kernel, if all are in GL. Specs are built by the short form,
    or from views by the name of the kind: `Move.on(Block, src, dst)`.
    """

    level: Level
    kind: Kind
    views: tuple[View, ...]
    parameters: tuple[tuple[str, Any], ...] = ()
    accumulate: Expr = attrs.field(default=FALSE, converter=as_condition)
    accumulator: DType | None = None
    in_parts: bool = False
    names: tuple[str, ...] = ()
    signature: str = ""

    def __attrs_post_init__(self) -> None:
        check_level(self.level)
        _check_parts(self)
        if (self.parameters or self.kind.parameters) and self.kind.filled(dict(self.parameters)) != self.parameters:
            raise ArgumentError(f"{self.title}: the parameters are not those of its kind", got=self.parameters, legal=self.kind.parameters)
        if len(self.views) != len(self.uses):
            raise ArgumentError(f"{self.title}: {len(self.views)} operands are given", legal=" ".join(self.uses))
        _ = self.extents  # refuses operands that do not agree
        _check_options(self)
        if any(not view.tensor.shape or view.tensor.memory.by_value for view in self.views):
            _check_scalars(self)
        if self.level.has_arguments:
            _check_kernel(self)

    def __getattr__(self, name: str) -> View:
        """Return an operand, or the value of a parameter, by name."""
        if not name.startswith("_"):  # accessed thousands of times per compilation, mostly for operands
            operands = self.operands
            if name in operands:
                return operands[name]
            for parameter, value in self.parameters:
                if parameter == name:
                    return value  # type: ignore[no-any-return]  # of `parameters`, where its type is known
            require_no_refinement(self, name)
        raise AttributeError(f"a {self.title if not name.startswith('_') else 'spec'} has no {name}")

    # ------------------------------------------------------------------------------------------ properties of the kind

    @functools.cached_property
    def definition(self) -> Definition:
        """The definition of the spec: one formula per output."""
        if self.signature:
            return self.kind.of_signature(self.parameters, self.signature)
        return self.kind.of_views(self.parameters, self.views)

    @property
    def title(self) -> str:
        """The name of its kind."""
        return self.kind.title

    @property
    def starter(self) -> Starter:
        """The starter of chains for this kind of spec."""
        return self.kind.starter

    @functools.cached_property
    def dims(self) -> tuple[str, ...]:
        """The iteration dimensions: those of the result, then the reduction dimensions."""
        return self.definition.dims

    @functools.cached_property
    def uses(self) -> Mapping[str, tuple[str, ...]]:
        """The dimensions of each operand, in the order of the short form."""
        return self.definition.uses

    @property
    def tile_dims(self) -> tuple[str, ...]:
        """The dimensions of the positional sizes of `tile`."""
        return self.definition.tile_dims

    @functools.cached_property
    def outputs(self) -> tuple[str, ...]:
        """The operands that are written."""
        return self.definition.outputs

    @functools.cached_property
    def inputs(self) -> tuple[str, ...]:
        """Operands that are only read, except for coordinates, which are not stored."""
        written = self.definition.outputs
        return tuple(name for name, view in self.operands.items() if name not in written and not view.memory.is_coordinate)

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the dimensions in generated code."""
        return self.names or self.dims

    @property
    def atomic(self) -> bool:
        """Whether each element is added atomically."""
        return self.kind.atomic

    @functools.cached_property
    def copies(self) -> bool:
        """Whether it is a copy of `src` to `dst`."""
        return self.definition.copies

    @property
    def moves(self) -> bool:
        """Whether it is a copy of `src` to `dst`, possibly transposed: `dst[n,m] = src[m,n]`."""
        return self.definition.moves

    @property
    def fills(self) -> bool:
        """Whether it sets all elements of `dst` to one value."""
        return self.definition.fills

    @property
    def allocates(self) -> bool:
        """Whether it allocates a tensor whose values are unspecified."""
        return self.definition.allocates

    @functools.cached_property
    def multiplies(self) -> bool:
        """Whether it multiplies the matrices A (m x k) and B (k x n) and accumulates to C."""
        return self.definition.multiplies

    @property
    def contracts(self) -> bool:
        """Whether it sums products of elements of A and B, with indices in any order, into C."""
        return self.definition.contracts

    @property
    def reduces(self) -> bool:
        """Whether it is the sum, the maximum, the minimum or the product of elements of `src` along dimensions, into `dst`."""
        return self.definition.reduces

    @property
    def scans(self) -> bool:
        """Whether it is a scan of elements of `src` along a dimension, into `dst`."""
        return self.definition.scans

    @property
    def pointwise(self) -> bool:
        """Whether it computes each element of the result from elements with the same indices."""
        return self.definition.pointwise and not self.atomic

    # ------------------------------------------------------------------------------------------ operands and sizes

    @functools.cached_property
    def operands(self) -> Mapping[str, View]:
        """Views by operand name, in the order of the short form."""
        return dict(zip(self.uses, self.views, strict=True))

    def with_operands(self, **views: View) -> Self:
        """Return the spec on other views. Raises: ArgumentError if they do not fit."""
        return self.at_level(self.level, **views)

    def with_options(self, **options: Any) -> Self:
        """Return the spec with other options, such as `accumulate` or `in_parts`."""
        return attrs.evolve(self, **options)

    def at_level(self, level: Level, **views: View) -> Self:
        """Return the spec at another level, and on other views if they are given."""
        unknown = [name for name in views if name not in self.uses]
        if unknown:
            raise ArgumentError(f"{self.title} has no operand {unknown[0]}", legal=self.uses)
        changed = tuple(views.get(name, view) for name, view in self.operands.items()) if views else self.views
        if type(self) is not Spec:
            return attrs.evolve(self, level=level, views=changed)
        return Spec(  # type: ignore[return-value]  # faster than attrs.evolve: a tree calls this hundreds of times
            level, self.kind, changed, self.parameters, self.accumulate, self.accumulator, self.in_parts, self.names, self.signature
        )

    def size(self, dim: str) -> Expr:
        """Return the extent of an iteration dimension, in elements. Raises: ArgumentError if the spec has no such dimension."""
        if dim not in self.extents:
            raise ArgumentError(f"{self.title} has no dimension {dim}", legal=self.dims)
        return self.extents[dim]

    @functools.cached_property
    def extents(self) -> Mapping[str, Expr]:
        """The extents of the iteration dimensions, by name. Raises: ArgumentError if two operands differ."""
        extents: dict[str, Expr] = {}
        coarse = self.definition.coarse
        for (name, dims), view in zip(self.uses.items(), self.views, strict=True):
            if not isinstance(view, View) or len(view.dims) != len(dims):
                raise ArgumentError(f"{self.title}: {name} must be a view with the dimensions {', '.join(dims)}", got=view)
            for place, (dim, part) in enumerate(zip(dims, view.dims, strict=True)):
                if name in coarse and coarse[name][place] > 1:
                    continue
                size = part.size
                known = extents.setdefault(dim, size)
                if known is not size and known != size:
                    raise ArgumentError(f"{self.title}: {name} has {size} elements along {dim}, but another operand has {extents[dim]}")
        for name, counts in coarse.items():
            _check_coarse(self, name, counts, extents)
        return extents

    @functools.cached_property
    def sizes(self) -> tuple[Expr, ...]:
        """The extents of all iteration dimensions."""
        return tuple(self.size(dim) for dim in self.dims)

    @functools.cached_property
    def memories(self) -> tuple[Memory, ...]:
        """The memories of the operands."""
        return tuple(view.memory for view in self.views)

    def outside(self, name: str) -> int | float:
        """Return the value of out-of-bounds elements of an input: zero, or the neutral element of the reduction."""
        only = self.definition.only
        by = only.combiner if self.reduces and only is not None else "sum"
        return neutral(by, self.operands[name].dtype)

    @property
    def flops(self) -> Expr:
        """Arithmetic operations: those of each formula at each point of its dimensions."""
        total = as_expr(0)
        for formula in self.definition.formulas:
            total = total + math.prod(map(self.size, formula.dims), start=as_expr(formula.operations))
        return total

    @property
    def bytes(self) -> Expr:
        """The minimum traffic in bytes: each input is read once, and each output is written once, and read once if the spec accumulates."""
        total = as_expr(0)
        again = {formula.output: ONE if self.atomic else self.accumulate for formula in self.definition.formulas if formula.accumulates}
        for name, view in self.operands.items():
            if view.memory.is_coordinate:
                continue
            times = ONE + again.get(name, FALSE)
            shape = view.shape if view.tensor.through is None else view.tensor.array.shape
            total = total + math.prod(shape, start=times * view.dtype.bytes)
        return total

    # ------------------------------------------------------------------------------------------ meaning

    def reference(self, *inputs: ArrayLike) -> Any:
        """Compute the output (a tuple for several outputs) with NumPy from whole arrays in logical shape.

        The result is computed in float64 (int64 for integers) and rounded once. Raises: ArgumentError if the number of arrays is not the
        number of inputs.
        """
        import numpy

        self.kind.check_meaning(self.definition)
        names = self.inputs
        dims = {name: self.kind.array_dims(self.definition, name) for name in names}
        if len(inputs) != len(names):
            shapes = [f"{name} ({' x '.join(map(str.upper, dims[name]))})" for name in names]
            raise ArgumentError(f"reference({', '.join(names)}): {len(inputs)} arrays are given", hint=f"pass {' and '.join(shapes)}")
        sizes = {dim: number for dim in self.dims if (number := constant(self.size(dim))) is not None}
        arrays = {name: numpy.asarray(array) for name, array in zip(names, inputs, strict=True)}
        for name, array in arrays.items():
            if array.ndim != len(dims[name]):
                wanted = ", ".join(f"{name}[{','.join(dims[name])}]" for name in names)
                raise ArgumentError(f"reference: the arrays must have the shapes {wanted}", got=f"{name} of shape {array.shape}")
            sizes |= dict(zip(dims[name], array.shape, strict=True))
        for name in (output for output in self.outputs if self.kind.array_dims(self.definition, output) != self.uses[output]):
            array_sizes = zip(self.kind.array_dims(self.definition, name), self.operands[name].tensor.array.shape, strict=True)
            sizes |= {dim: number for dim, size in array_sizes if dim not in sizes and (number := constant(size)) is not None}
        types = {name: view.dtype for name, view in self.operands.items()}
        outputs = self.kind.reference(self.definition, arrays, types, sizes)
        return outputs if len(outputs) > 1 else outputs[0]

    def perform(self, values: Mapping[str, Any], accumulate: Any, compute_type: DType | None = None) -> dict[str, Any]:
        """Return new values of the outputs. The arrays have the dimensions of their element first, then any further axes.

        For an atomic spec, the result contains the values that are added. If `compute_type` is given, elementwise work is computed in it.
        Raises: ArgumentError if the kind leaves values unspecified.
        """
        types = {name: view.dtype for name, view in self.operands.items()}
        return self.kind.perform(self.definition, values, types, accumulate, compute_type, self.integer_ranges)

    @functools.cached_property
    def integer_ranges(self) -> Mapping[str, Range]:
        """The ranges of integer operands: those of their types, and for coordinates those of their sizes."""
        return {name: _range_of(view) for name, view in self.operands.items() if view.dtype.kind == "int"}

    # ------------------------------------------------------------------------------------------ texts

    @property
    def notation(self) -> str:
        """The notation of the papers: the kind, sizes, memories and the level."""
        given = [str(value) for name, value in self.parameters if name in self.kind.required]
        title = f"{self.title}<{', '.join(given)}>" if given else self.title
        sizes = ",".join(str(size) for size in self.sizes)
        return f"{title}({sizes})({','.join(memory.name for memory in self.memories if not memory.is_coordinate)})({self.level})"

    @property
    def stored(self) -> str:
        """The operands of a whole kernel that are not column-major float32: `A, B float16 RowMajor; C RowMajor`. Empty for parts.

        The operands of a part are views of the kernel's operands, or buffers that a step allocated.
        """
        if not self.level.has_arguments or any(view.shape != view.tensor.shape for view in self.views):
            return ""
        groups: dict[str, list[str]] = {}
        for name, view in self.operands.items():
            storage = "" if view.memory.is_coordinate else _unusual(self, name)
            groups.setdefault(storage, []).append(name)
        return "; ".join(f"{', '.join(names)} {storage}" for storage, names in groups.items() if storage)

    def __str__(self) -> str:
        return f"{self.notation} with {self.stored}" if self.stored else self.notation

    def __repr__(self) -> str:
        short = self.kind.short(self)
        if short is not None:
            return short
        options = dict(self.parameters)
        options |= {name: getattr(self, name) for name in OPTIONS if getattr(self, name) != _FIELDS[name].default}
        given = [f"{name}={_value_repr(value)}" for name, value in options.items()]
        return f"{self.starter!r}.on({', '.join([repr(self.level), *map(repr, self.views), *given])})"


def _index_text(through: Through, dims: Sequence[str]) -> str:
    """The indices of the array of an indirect operand, `at [rows[m],k // 64]`; `dims` are the names of the operand's dimensions."""

    def text(index: DimIndex | TableIndex | AffineIndex) -> str:
        if isinstance(index, TableIndex):
            return f"{index.array}[{','.join(map(text, index.index))}]"
        if isinstance(index, AffineIndex):
            digits = ((digit_text(dims[term.dim], term.divisor, term.modulus), term.factor) for term in index.digits)
            return affine_text((*((dims[dim], factor) for dim, factor in index.terms), *digits), index.offset, index.divisor)
        name = dims[index.dim]
        return f"{name} % {index.modulus}" if index.modulus else f"{name} // {index.divisor}" if index.divisor > 1 else name

    outside = f" outside {through.outside}" if through.outside != "0" else ""
    return f"at [{','.join(map(text, through.index))}]{outside}"


def _unusual(spec: Spec, name: str) -> str:
    """Return the element type and storage order of an operand if they are not float32 and column-major. A vector has no order."""
    view = spec.operands[name]
    layout = view.tensor.array.layout
    plain = layout == ColMajor or (layout == RowMajor and len(view.tensor.array.shape) < 2)
    if view.tensor.through is not None:
        return f"{view.dtype} {layout} {_index_text(view.tensor.through, spec.uses[name])}"
    order = "" if plain else _order_repr(spec, name, layout) or str(layout)
    return " ".join(filter(None, ("" if view.dtype == float32 else str(view.dtype), order)))


_FIELDS: Final[Mapping[str, Any]] = attrs.fields_dict(Spec)
TAKEN: Final = frozenset((*_FIELDS, "type", "dtype"))
OPTIONS: Final = ("accumulate", "accumulator", "in_parts", "names", "signature")
"""The options of a spec: its properties other than level, operands and parameters."""


def _check_parts(spec: Spec) -> None:
    """Refuse values that are not a kind, views, or parameters by name."""
    views, given = spec.views, spec.parameters
    if not isinstance(spec.kind, Kind) or not isinstance(views, tuple) or not all(isinstance(view, View) for view in views):
        raise ArgumentError("Spec needs a kind and its operands", got=(spec.kind, views), legal="MatMul(M, N, K)(GL, GL, GL)(Kernel)")
    if not isinstance(given, tuple) or not all(isinstance(pair, tuple) and len(pair) == 2 for pair in given):
        raise ArgumentError(f"{spec.title}: parameters must be names and values", got=given, legal='(("by", "max"),)')


def _check_coarse(spec: Spec, name: str, counts: Sequence[int], extents: Mapping[str, Expr]) -> None:
    """Refuse an operand whose elements do not represent exactly the coordinates of the other operands."""
    view = spec.views[list(spec.uses).index(name)]
    for dim, part, count in zip(spec.uses[name], view.dims, counts, strict=True):
        if count > 1 and part.size * count != _exact_quotient(extents[dim], count) * count:
            raise ArgumentError(
                f"{spec.title}: {name} has one element per {count} coordinates of {dim}",
                got=f"{part.size} elements for {dim}={extents[dim]}", legal=f"a multiple of {count} coordinates",
            )  # fmt: skip


def coarse_shape(definition: Definition, name: str, extents: Mapping[str, Expr], title: str) -> tuple[Expr, ...]:
    """Return the shape of an operand's array. Raises: ArgumentError if an element would represent coordinates past the end."""
    dims = definition.uses[name]
    counts = definition.coarse.get(name, (1,) * len(dims))
    for dim in dims:
        most, operand = max(_counts_along(definition, dim), default=(1, name))
        if extents[dim].factor % most:
            symbol = "" if constant(extents[dim]) is not None else f', such as sym("{dim.upper()}", multiple_of={most})'
            raise ArgumentError(
                f"{title}: {operand} has one element per {most} coordinates of {dim}", got=f"{dim.upper()}={extents[dim]}",
                legal=f"multiples of {most}{symbol}", hint=f"extend {dim} with zeros to a multiple of {most}",
            )  # fmt: skip
    return tuple(_exact_quotient(extents[dim], count) for dim, count in zip(dims, counts, strict=True))


def _counts_along(definition: Definition, dim: str) -> Iterator[tuple[int, str]]:
    """Yield the coordinates of a dimension per element, for each operand that has fewer elements than coordinates."""
    for name, counts in definition.coarse.items():
        yield from ((count, name) for own, count in zip(definition.uses[name], counts, strict=True) if own == dim)


def _exact_quotient(size: Expr, count: int) -> Expr:
    """Return a multiple of `count` divided by it, as a multiple of a known factor: K // 64 * 32 for half of a multiple of 64."""
    if count == 1 or constant(size) is not None:
        return size // count
    return size // size.factor * (size.factor // count)


def _check_options(spec: Spec) -> None:
    """Refuse options of wrong types, and options that the formula does not support."""
    title, definition = spec.title, spec.definition
    if not isinstance(spec.in_parts, bool):
        raise ArgumentError("in_parts must be True or False", got=spec.in_parts)
    if spec.accumulator is not None and not isinstance(spec.accumulator, DType):
        raise ArgumentError("accumulator must be an element type", got=spec.accumulator, legal="float32 float16 ..., or None")
    if spec.accumulate != FALSE and (spec.atomic or not definition.accumulates):
        raise ArgumentError(f"{title} cannot accumulate", got=str(spec.accumulate), legal="accumulate=False", hint="use += in the formula")
    no_parts = spec.in_parts and not definition.is_product_sum and not definition.reduces
    if (spec.accumulator is not None and not definition.is_product_sum) or no_parts:
        raise ArgumentError(f"{title} is not a sum of products, so it has no accumulator and no parts")
    if not TAKEN.isdisjoint(spec.uses):
        taken = next(name for name in spec.uses if name in TAKEN)
        raise ArgumentError(f"{title}: the operand name {taken} is reserved", hint="use another name in the formula")
    if not _are_identifiers(spec.names) or len(spec.names) not in (0, len(spec.dims)):
        raise ArgumentError(f"{title}: names must be {len(spec.dims)} identifiers", got=spec.names, legal=spec.dims)
    if definition.sets_numbers:
        _check_values(definition, {name: view.dtype for name, view in spec.operands.items()})
    for index in definition.moved_indices:
        legal = index.legal_numbers(constant(spec.size(index.dim)))
        if legal is not None:
            raise ArgumentError(
                f"{title}: the index {index} leaves the dimension {index.dim} of {spec.size(index.dim)} elements", legal=legal
            )


def _are_identifiers(names: object) -> bool:
    return isinstance(names, tuple) and (not names or all(isinstance(name, str) and name.isidentifier() for name in names))


def _check_values(definition: Definition, types: Mapping[str, DType]) -> None:
    """Refuse constants that the type of an output does not represent exactly."""
    for formula in definition.formulas:
        if formula.fills and isinstance(formula.value, Number):
            check_value(formula.value.value, types[formula.output])


def default_result(dtype: DType) -> DType:
    """Return the default type of C: int32 for int8, float32 for types that only matrix instructions support, otherwise that of A."""
    return int32 if dtype == int8 else float32 if dtype in MATRIX_ONLY else dtype


# ---------------------------------------------------------------------------------------------- checks


def check_size(value: object, what: str) -> Expr:
    """Return a size as an expression: a positive integer, or an expression of symbols that is never negative.

    A launch with size 0 is refused.
    """
    if isinstance(value, Expr):
        if value.low < 0:
            raise ArgumentError(f"{what}={value}: the size may be negative ({value.low})", legal="sizes that are never negative")
        foreign = [var.name for var in value.variables() if not var.parameter]
        if foreign:
            raise ArgumentError(f"{what}={value}: {', '.join(foreign)} is not a symbol", hint='make it with sym("M")')
        if constant(value) is None:
            return assume_positive(value)
        value = constant(value)
    number = as_integer(value)
    if number is None:
        raise ArgumentError(f"{what}: a size must be an integer or a symbol", got=value, legal='1, 2, 3, ... or sym("M")')
    if not 1 <= number < 2**31:
        raise ArgumentError(f"{what}={number}: a size must be positive and below 2**31", legal="1 ... 2147483647")
    return as_expr(number)


def check_value(value: float, dtype: DType) -> None:
    """Refuse a number that a type does not represent exactly."""
    least, most = (-(2**dtype.mantissa), 2**dtype.mantissa) if dtype.kind == "float" else dtype.limits
    if isinstance(value, int) and least <= value <= most:
        return
    legal = f"{least} ... {most}"
    if dtype.kind == "float":
        if _represents(value, dtype):
            return
        legal += ", and other numbers that it represents exactly"
    raise ArgumentError(f"value={value}: {dtype} cannot represent the value exactly", legal=legal)


def _represents(value: float, dtype: DType) -> bool:
    """Whether a floating-point type represents a number exactly."""
    import numpy

    try:
        wide = numpy.float64(value)
    except OverflowError:
        return False
    return bool(wide == value and convert(numpy.asarray(wide), dtype).astype(numpy.float64) == wide)


def check_memory(value: object, what: str) -> Memory:
    """Return the memory. Raises: ArgumentError that lists the memories."""
    if not isinstance(value, Memory):
        raise ArgumentError(f"{what}: this is not a memory", got=value, legal=MEMORIES)
    return value


def check_level(value: object) -> Level:
    """Return the level. Raises: ArgumentError that lists the levels."""
    if not isinstance(value, Level):
        raise ArgumentError("this is not a level of the thread hierarchy", got=value, legal=LEVELS)
    return value


def check_layout(value: object, what: str, dims: Sequence[str], shape: tuple[Expr, ...]) -> MatrixLayout | Layout | Distributed:
    """Return the storage of an operand with these dimensions. Raises: ArgumentError for other values, or a layout with another shape.

    Legal: row- or column-major, with a leading dimension of at least a row or column; strides by dimension; a layout of its shape.
    """
    if isinstance(value, Distributed):
        if value.dim not in dims:
            raise ArgumentError(f"{what}={value}: the operand has no dimension {value.dim}", legal=dims)
        return value
    if isinstance(value, Strides):
        return value.layout(what, dims, shape)
    if isinstance(value, Layout):
        sizes = tuple(math.prod(flatten(mode.shape), start=as_expr(1)) for mode in value) if isinstance(value.shape, tuple) else ()
        if sizes != shape:
            raise ArgumentError(
                f"{what}={value}: the layout does not have the shape of the operand", got=sizes, legal=f"{tuple(map(str, shape))}"
            )
        return value
    if not isinstance(value, MatrixLayout):
        legal = "RowMajor ColMajor RowMajor(ld=...) ColMajor(ld=...) Strides(m=..., n=...) Layout(shape, strides)"
        raise ArgumentError(f"{what}: this is not a storage layout", got=value, legal=legal)
    if value.leading is not None:
        need = shape[0] if value.order == "col" else shape[-1]
        number, least = constant(value.leading), constant(need)
        if number is not None and least is not None and number < least:
            raise ArgumentError(f"{what}={value}: ld is less than the {least} elements of a row or column", legal=f"ld >= {least}")
    return value


def check_distribution(title: str, level: Level, layouts: Mapping[str, object], extents: Mapping[str, Expr]) -> None:
    """Refuse distributed operands at a level without GPUs, and dimensions that the GPUs cannot divide equally."""
    distributed = {name: layout for name, layout in layouts.items() if isinstance(layout, Distributed)}
    for name, layout in distributed.items():
        if level.gpus is None:
            raise ArgumentError(
                f"{title}: {name}={layout} is distributed over GPUs", got=f"level {level}", legal="a number of GPUs, Node(2)"
            )
        if extents[layout.dim].factor % level.gpus:
            size = extents[layout.dim]
            raise ArgumentError(
                f"{title}: {name}={layout}: the {level.gpus} GPUs cannot store equal parts", got=f"{layout.dim.upper()}={size}",
                legal=f"a multiple of {level.gpus}",
            )  # fmt: skip


def _check_scalars(spec: Spec) -> None:
    """Refuse operands passed by value that have dimensions or are written."""
    for name, view in spec.operands.items():
        if view.memory.by_value and view.tensor.shape:
            what = f"{spec.title}: {name} has dimensions, but only single elements are passed by value"
            raise ArgumentError(what, got=view.memory, legal="GL SH RF")
        if spec.level.has_arguments and not view.dims and not view.tensor.shape and not view.memory.of_grid:
            what = f"{spec.title}: {name} has no dimensions, so it is a parameter of the kernel"
            raise ArgumentError(what, got=view.memory, legal="VAL, passed by value, or GL, an array of no dimensions")


def _alignment(layout: object, name: str, dtype: DType) -> int:
    """Return the alignment of an operand's address, in bytes."""
    align = layout.align if isinstance(layout, Strides) else USUAL_ALIGNMENT
    if align % dtype.bytes:
        raise ArgumentError(f"{name}={layout}: elements of {dtype} must be aligned to {dtype.bytes} bytes", got=align)
    return align


def _range_of(view: View) -> Range:
    """Return the range of the elements of an integer view. A coordinate view without dimensions may be the extent."""
    if not view.memory.is_coordinate:
        return view.dtype.limits
    size = as_expr(view.tensor.shape[0])
    extent = not view.dims and view.numerals[0].base == size
    return (size.low, size.high) if extent else (0, max(size.high - 1, 0))


def _check_kernel(spec: Spec) -> None:
    spec.kind.check_integers(spec)
    taken = next((name for name in spec.operands if not name.isascii() or is_taken(name)), None)
    if taken is not None:
        raise ArgumentError(
            f"{spec.title}: the operand name {taken} has a meaning in CUDA C++", legal="an identifier of ASCII letters",
            hint="another name in the formula",
        )  # fmt: skip
    if any(not (memory.of_grid or memory.is_coordinate) for memory in spec.memories):
        names = ", ".join(memory.name for memory in spec.memories)
        raise ArgumentError(
            f"{spec.title}({names})({spec.level}): the operands of a kernel must be in global memory", legal="GL for each operand"
        )
    for name in spec.outputs:
        tensor = spec.operands[name].tensor.array
        if isinstance(tensor.layout, Layout) and surely_overlaps(tensor.storage(), tensor.shape):
            what = f"{spec.title}: elements of the output {name} overlap in memory"
            raise ArgumentError(what, got=str(tensor.layout), legal="strides larger than the extent of the elements with smaller strides")


# ---------------------------------------------------------------------------------------------- the short form


@frozen
class SpecShape(Generic[S]):
    """A spec without memories and level, `MatMul(M, N, K)`: call it with a memory for each operand, then with a level.

    Without both, it stands for the spec of a whole kernel, `of_kernel`: its verbs and attributes, and strategies bound to it, use that.
    """

    kind: Kind
    parameters: tuple[tuple[str, Any], ...]
    sizes: tuple[Expr, ...]
    dtypes: tuple[DType, ...]
    layouts: tuple[MatrixLayout | Layout | Distributed, ...]
    options: tuple[tuple[str, Any], ...] = ()
    aligns: tuple[int, ...] = ()

    @property
    def of_kernel(self) -> S:
        """The spec with all operands in global memory, at the level Kernel."""
        return self(*(GL for _ in self.dtypes))(Kernel)

    def __getattr__(self, name: str) -> Any:
        """Return a verb or an attribute of the spec `of_kernel`."""
        return _of_whole_kernel(self, name)

    @located
    def __call__(self, *memories: Memory) -> PlacedShape[S]:
        names = tuple(self.kind.definition(self.parameters).uses)
        if len(memories) != len(names):
            raise ArgumentError(f"{len(memories)} memories given, but each operand needs one", legal=" ".join(names))
        return PlacedShape(self, tuple(check_memory(memory, f"memory of {name}") for memory, name in zip(memories, names, strict=True)))


@frozen
class PlacedShape(Generic[S]):
    """A spec without a level: call it with a level. Without one, it stands for the spec of a whole kernel, `of_kernel`."""

    shape: SpecShape[S]
    memories: tuple[Memory, ...]

    @property
    def of_kernel(self) -> S:
        """The spec at the level Kernel."""
        return self(Kernel)

    def __getattr__(self, name: str) -> Any:
        """Return a verb or an attribute of the spec at the level Kernel."""
        return _of_whole_kernel(self, name)

    @located
    def __call__(self, level: Level) -> S:
        shape, level = self.shape, check_level(level)
        definition = shape.kind.of_sizes(shape.parameters, len(shape.sizes), dict(shape.options).get("signature", ""))
        extents = dict(zip(definition.dims, shape.sizes, strict=True))
        aligns = shape.aligns or (USUAL_ALIGNMENT,) * len(definition.uses)
        check_distribution(shape.kind.title, level, dict(zip(definition.uses, shape.layouts, strict=True)), extents)
        parts = zip(definition.uses.items(), shape.dtypes, self.memories, shape.layouts, aligns, strict=True)
        views = tuple(
            whole_view(Tensor(name, coarse_shape(definition, name, extents, shape.kind.title), dtype, memory, layout, align=align))
            for (name, _), dtype, memory, layout, align in parts
        )
        return cast("S", Spec(level, shape.kind, views, shape.parameters, **dict(shape.options)))


def _of_whole_kernel(short: SpecShape[Any] | PlacedShape[Any], name: str) -> Any:
    """Return an attribute of the spec that a short form stands for."""
    if name.startswith("_"):
        raise AttributeError(f"a short form of a spec has no {name}")
    return getattr(short.of_kernel, name)


def as_spec(value: Any) -> Any:
    """Return a short form without memories or level as the spec of a whole kernel, and any other value unchanged.

    >>> from fireiron import *
    >>> as_spec(MatMul(8, 8, 8)) == MatMul(8, 8, 8)(GL, GL, GL)(Kernel)
    True
    """
    return value.of_kernel if isinstance(value, (SpecShape, PlacedShape)) else value


@attrs.frozen(repr=False)
class AnyStarter(Offering, ForEvery, Displayed):
    """The start of a chain for specs of every kind: `AnySpec.tile(1, 1).to(Thread).done()`.

    Such a chain is legal wherever a chain of any kind is legal: bound to a spec, passed to a load or an epilog, or after another chain.
    """

    @property
    def title(self) -> str:
        """The name in messages."""
        return "AnySpec"

    def __repr__(self) -> str:
        return self.title


AnySpec: Final = AnyStarter()


@attrs.frozen(repr=False, eq=False)
class Starter(Offering, Displayed):
    """The name of a kind, from which a chain starts: `MatMul.tile(...)`. Called with sizes, it is the short form of a spec.

    Two starters of one kind are equal, even if their classes differ.
    """

    kind: Kind

    def __eq__(self, other: object) -> bool:
        return self.kind == other.kind if isinstance(other, Starter) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.kind)

    def __repr__(self) -> str:
        return self.kind.title

    @property
    def title(self) -> str:
        """The name in messages."""
        return self.kind.title

    def takes(self, start: Starter) -> bool:
        """Whether a chain of another starter may be bound to specs of this kind."""
        return self == start

    def __call__(self, *arguments: Any, **options: Any) -> SpecShape[Any]:
        """Return a spec without memories and level. Pass required parameters and sizes in order, and other arguments by name.

        `dtype` is the type of the inputs (or one type per input), `dst_dtype` that of an output called dst. Storage orders, other
        parameters and options are also passed by name; `order` is the storage order of all operands without one. The default is
        column-major float32.
        """
        required = self.kind.required
        values = dict(zip(required, arguments, strict=False))
        if len(values) < len(required):
            raise ArgumentError(f"{self!r}: missing a required argument: {required[len(values)]!r}", legal=self._signature())
        values |= {name: options.pop(name) for name in self.kind.defaults if name in options}
        sizes = arguments[len(required) :]
        definition = self.kind.of_sizes(self.kind.filled(dict(values)), len(sizes), options.get("signature", ""))
        known = {
            "dtype",
            "order",
            *(f"{name.lower()}_dtype" for name in definition.outputs),
            *OPTIONS,
            *self.kind.defaults,
            *definition.uses,
        }
        unknown = [name for name in options if name not in known]
        if unknown:
            raise ArgumentError(f"{self!r}: got an unexpected keyword argument {unknown[0]!r}", legal=sorted(known))
        results = {name: options.pop(f"{name.lower()}_dtype", None) for name in definition.outputs}
        layouts = {name: options.pop(name) for name in definition.uses if name in options}
        return self.shape(sizes, options.pop("dtype", float32), results, layouts, **values, **options)

    @located
    def shape(
        self,
        sizes: Iterable[Any],
        dtype: Any,
        results: Mapping[str, Any],
        layouts: Mapping[str, Any],
        order: StorageOrder = ColMajor,
        **options: Any,
    ) -> SpecShape[Any]:
        """Return the short form for its arguments.

        `dtype` is the type of the inputs, `results` are the types by output (None for the default), and `order` is the storage order of
        operands without one in `layouts`.
        """
        layouts = {name: layout for name, layout in layouts.items() if layout is not None}
        kind = self.kind
        sizes = tuple(sizes)
        if not isinstance(options.get("signature", ""), str):
            raise ArgumentError(
                f"{self!r}: signature must be a text", got=options["signature"], legal="the form of einsum, such as bmk,bkn->bmn"
            )
        values = kind.filled(options)
        if not options.get("signature", ""):
            options.pop("signature", None)
        definition = kind.of_sizes(values, len(sizes), options.get("signature", ""))
        if len(sizes) != len(definition.dims):
            raise ArgumentError(f"{self!r}: {len(sizes)} sizes given", legal=" ".join(dim.upper() for dim in definition.dims))
        extents = {dim: check_size(size, dim.upper()) for dim, size in zip(definition.dims, sizes, strict=True)}
        dtypes = _types(definition, dtype, results)
        orders = tuple(
            check_layout(layouts.get(name, order), name, dims, coarse_shape(definition, name, extents, kind.title))
            for name, dims in definition.uses.items()
        )
        _check_values(definition, dict(zip(definition.uses, dtypes, strict=True)))
        if "accumulate" in options:
            options["accumulate"] = as_condition(options["accumulate"])
        if options.get("accumulator") is not None:
            options["accumulator"] = as_dtype(options["accumulator"])
        aligns = tuple(_alignment(layouts.get(name, order), name, dtype) for name, dtype in zip(definition.uses, dtypes, strict=True))
        return SpecShape(kind, values, tuple(extents.values()), dtypes, orders, tuple(options.items()), aligns)

    def on(self, level: Level, *views: View, **options: Any) -> Spec:
        """Return the spec on views. Pass views in the order of the short form or by name, and parameters and options by name."""
        kind = self.kind
        values = kind.filled(options)
        definition = kind.definition(values)
        named = [options.pop(name) for name in list(definition.uses)[len(views) :] if name in options]
        unknown = [name for name in options if name not in OPTIONS]
        if unknown:
            raise ArgumentError(f"{self!r}: {unknown[0]} is neither an operand nor an option", legal=(*definition.uses, *OPTIONS))
        if isinstance(options.get("names"), tuple) and options["names"] == definition.dims:
            del options["names"]
        return Spec(level, kind, (*views, *named), values, **options)

    def _signature(self) -> str:
        return f"{self!r}({', '.join([*self.kind.required, 'sizes'])})"


class OwnStarter(ForEvery, Starter):
    """The starter of a kind that is declared without a separate starter class."""


def _types(definition: Definition, dtype: Any, results: Mapping[str, Any]) -> tuple[DType, ...]:
    """Return the element types of the operands: those of inputs, and those of results; a result without a type follows the first input."""
    inputs = len(definition.uses) - len(definition.outputs)
    given = dtype if isinstance(dtype, tuple) else (dtype,) * max(inputs, 1)
    if len(given) != max(inputs, 1):
        raise ArgumentError("dtype must be one element type, or one for each input", got=dtype)
    types = tuple(map(as_dtype, given))
    types_of_operands = list(types[:inputs])
    for formula in definition.formulas:
        named = results.get(formula.output)
        follows = default_result(types[0]) if formula.is_product_sum else types[0]
        types_of_operands.append(follows if named is None else as_dtype(named))
    return tuple(types_of_operands)


def _short_repr(spec: Spec) -> str | None:
    """Return the short form; None if it does not determine the spec."""
    if len(spec.definition.formulas) != len(spec.outputs):
        return None
    if any(memory.is_coordinate for memory in spec.memories):
        return None
    layouts = {name: view.tensor.layout for name, view in spec.operands.items()}
    orders = {name: _order_repr(spec, name, layout) for name, layout in layouts.items()}
    named = all(view.memory in NAMED_MEMORIES for view in spec.views)
    if None in orders.values() or not named or any(constant(size) is None and size.low < 0 for size in spec.sizes):
        return None
    keywords = _type_words(spec)
    options_of_spec = {name: getattr(spec, name) for name in ("accumulator", "accumulate", "signature")}
    keywords |= {name: repr(value) for name, value in options_of_spec.items() if value not in (None, FALSE, "")}
    defaults = spec.kind.defaults
    keywords |= {name: _value_repr(value) for name, value in spec.parameters if name in defaults and value != defaults[name]}
    keywords |= {name: str(orders[name]) for name, layout in layouts.items() if layout != ColMajor}
    options = (("accumulate", spec.accumulate), ("accumulator", spec.accumulator), ("signature", spec.signature))
    dtypes = tuple(view.dtype for view in spec.views)
    pairs = zip(layouts.values(), spec.views, strict=True)
    aligns = tuple(USUAL_ALIGNMENT if isinstance(layout, (MatrixLayout, Distributed)) else view.tensor.align for layout, view in pairs)
    rebuilt: SpecShape[Spec] = SpecShape(spec.kind, spec.parameters, spec.sizes, dtypes, tuple(layouts.values()), options, aligns)
    try:
        if PlacedShape(rebuilt, spec.memories)(spec.level) != spec:
            return None
    except ArgumentError:  # a tile of storage with gaps is not an array, so it has no short form
        return None
    words = [_value_repr(value) for name, value in spec.parameters if name in spec.kind.required]
    words += [*map(_size_repr, spec.sizes), *(f"{name}={value}" for name, value in keywords.items())]
    return f"{spec.title}({', '.join(words)})({', '.join(map(repr, spec.memories))})({spec.level})"


def _order_repr(spec: Spec, name: str, layout: MatrixLayout | Layout | Distributed) -> str | None:
    """Return the storage of an operand in the short form; None for a hierarchical layout, which is specific to one shape."""
    if isinstance(layout, (MatrixLayout, Distributed)):
        return repr(layout)
    return strides_repr(name, spec.uses[name], layout, spec.operands[name].tensor.align)


def _type_words(spec: Spec) -> dict[str, str]:
    """Return the element types that the short form must specify."""
    types = {name: view.dtype for name, view in spec.operands.items()}
    first = [kind for name, kind in types.items() if name not in spec.outputs] or [types[spec.outputs[0]]]
    words = {}
    if set(first) != {float32}:
        words["dtype"] = repr(first[0]) if len(set(first)) == 1 else f"({', '.join(map(repr, first))})"
    follow = dict(zip(spec.uses, _types(spec.definition, tuple(first), {}), strict=True))
    return words | {f"{name.lower()}_dtype": repr(types[name]) for name in spec.outputs if types[name] != follow[name]}


def _value_repr(value: object) -> str:
    """Return a value in Python syntax; infinity has no literal."""
    return f"float({str(value)!r})" if isinstance(value, float) and math.isinf(value) else repr(value)


def _size_repr(size: Expr) -> str:
    number = constant(size)
    return repr(size) if number is None else str(number)


def symbols_of(spec: Spec) -> tuple[Var, ...]:
    """Return the run-time sizes and strides of a spec, in order of appearance. Raises: ArgumentError if two of one name differ."""
    strides = [stride for view in spec.operands.values() for stride in _strides_of(view.tensor.array.layout)]
    shapes = [size for view in spec.operands.values() if view.tensor.through is not None for size in view.tensor.array.shape]
    symbols: dict[str, Var] = {}
    for value in (*spec.sizes, *shapes, *strides, spec.accumulate):
        if value is not None:
            for var in sorted(value.variables(), key=lambda variable: variable.name):
                if symbols.setdefault(var.name, var) != var:
                    raise ArgumentError(f"two symbols named {var.name} have different properties", hint="use one sym(...) object")
    return tuple(symbols.values())


def sizes_of(spec: Spec) -> tuple[Var, ...]:
    """Return the symbols of a spec that must have values: all except those that are only strides, which can be chosen."""
    shapes = [size for view in spec.operands.values() if view.tensor.through is not None for size in view.tensor.array.shape]
    needed = frozenset().union(*(value.variables() for value in (*spec.sizes, *shapes, spec.accumulate)))
    strides = {step for view in spec.operands.values() for step in view.tensor.array.storage().steps}
    return tuple(var for var in symbols_of(spec) if var in needed or var not in strides)


def with_strides(spec: Spec, known: Mapping[str, int]) -> dict[str, int]:
    """Return values of symbols. Strides without a value are chosen so that the storage has no gaps."""
    values = dict(known)
    symbols = {var.name for var in symbols_of(spec)} - {var.name for var in sizes_of(spec)}
    for view in spec.operands.values() if symbols - set(values) else ():
        array = view.tensor.array
        if all(var.name in values for size in array.shape for var in size.variables()):
            shape = [int(size.evaluate(values)) for size in array.shape]
            values |= {name: value for name, value in strides_chosen(array.storage(), shape, values).items() if name in symbols}
    return values


def _strides_of(layout: MatrixLayout | Layout | Distributed) -> list[Expr | None]:
    """Return the strides of a layout that may be known only at run time."""
    if isinstance(layout, (MatrixLayout, Distributed)):
        return [layout.leading] if isinstance(layout, MatrixLayout) else []
    return [stride for stride in flatten(layout.stride) if isinstance(stride, Expr)]  # type: ignore[misc]


__all__ = ["AnySpec", "AnyStarter", "ColMajor", "Kind", "OwnStarter", "Parameter", "RowMajor", "Spec", "Starter", "symbols_of"]
