"""Specs: what to compute, as immutable values (Fireiron, section 3.1).

`MatMul(M, N, K)(GL, GL, GL)(Kernel)` is the short form. There is one class of specs. What tells a product from a copy is its `Kind`, a
declaration: a formula, from which dimensions, operands, outputs, the short form, texts and the meaning follow, so that the same verbs
work on every spec. The kinds are declared in `specs/`, one a file.
"""

from __future__ import annotations

import functools
import inspect
import math
import numbers
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Generic, ParamSpec, Self, TypedDict, TypeVar, cast

import attrs

from fireiron.display import Displayed
from fireiron.errors import ArgumentError, FireironError
from fireiron.generated_verbs import ForAny, ForEvery
from fireiron.specs.arithmetic import convert
from fireiron.specs.formula import REST, Definition, Number, definition, open_operands, signed, spelled
from fireiron.specs.integers import Range, check_integers
from fireiron.specs.meaning import neutral, perform, reference
from fireiron.specs.verbs import Offering, require_no_refinement, unfitting
from fireiron.values.cuda_names import is_taken
from fireiron.values.expr import FALSE, ONE, Expr, Var, as_expr, assume_positive, constant
from fireiron.values.layout import Layout, flatten
from fireiron.values.machine import (
    LEVELS,
    MATRIX_ONLY,
    MEMORIES,
    NAMED_MEMORIES,
    DType,
    Level,
    Memory,
    as_dtype,
    as_integer,
    float32,
    int8,
    int32,
)
from fireiron.values.strides import USUAL_ALIGNMENT, Strides, strides_chosen, strides_repr, surely_overlaps
from fireiron.values.tensor import ColMajor, MatrixLayout, RowMajor, Tensor, View, whole_view
from fireiron.values.typed import check_types

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S", bound="Spec")


def located(function: Callable[P, T]) -> Callable[P, T]:
    """The function, its errors with the line of the caller outside this package."""

    @functools.wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except FireironError as error:
            from fireiron.errors import call_site

            raise error.located(at=call_site()) from None
        except TypeError as error:
            raise unfitting(function, args, kwargs) or error from None

    return called


class OfMatrices(TypedDict, total=False):
    """Sizes that may be given by name where any number of them is taken."""

    M: Expr | int
    N: Expr | int
    P: Expr | int


_OF_MATRICES: Final = tuple(OfMatrices.__annotations__)


def short_form(function: Callable[P, T]) -> Callable[P, T]:
    """A short form whose sizes are of any number, `located`; those of matrices may be given by name: `Move(64, N=32)`.

    The function says so by `**named`, which it never sees.
    """
    *parameters, _ = inspect.signature(function).parameters.values()
    leading = next(number for number, one in enumerate(parameters) if one.kind is one.VAR_POSITIONAL)
    known = {one.name for one in parameters if one.kind is one.KEYWORD_ONLY}
    function.__dict__["__signature__"] = inspect.Signature(parameters)
    inner: Callable[..., T] = located(function)

    @functools.wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        following = _OF_MATRICES[max(len(args) - leading, 0) :]
        named = [name for name in following if name in kwargs]
        if named == list(following[: len(named)]):  # none before them is missing
            args = (*args, *(kwargs.pop(name) for name in named))  # type: ignore[assignment]
        if not known.issuperset(kwargs):
            raise unfitting(function, args, kwargs) or AssertionError(kwargs)
        return inner(*args, **kwargs)

    return called


# ---------------------------------------------------------------------------------------------- kinds


@attrs.frozen
class Parameter:
    """A part of a kind's formula that a spec fills in: an integer, any number (`real`), or a text.

    Of texts `legal` are all, if any are named. One without a default comes first in the short form.
    """

    name: str
    default: int | float | str | None = None
    text: bool = False
    legal: tuple[str, ...] = ()
    real: bool = False

    def __attrs_post_init__(self) -> None:
        check_types(self)
        if not self.name.isidentifier():
            raise ArgumentError("the name of a parameter is an identifier", got=self.name)

    def checked(self, value: Any, title: str) -> Any:
        """The value, or an `ArgumentError` where it is no integer, or not one of the texts."""
        if self.text:
            if not isinstance(value, str) or (self.legal and value not in self.legal):
                raise ArgumentError(f"{title}: unknown {self.name}", got=value, legal=self.legal or None)
            return value[:]  # of a class that is derived from str, a plain one
        number = as_number(value) if self.real else as_integer(value)
        if number is None:
            wanted = "a number, infinite or not" if self.real else "an integer"
            raise ArgumentError(f"{title}: {self.name} must be {wanted}", got=value)
        return number


def as_number(value: object) -> int | float | None:
    """A number as Python's own, an integer where it is whole; None for anything else.

    NaN and -0.0 are none: a spec is equal to another by its values, and these are not equal to themselves, or to another number.
    """
    whole = as_integer(value)
    if whole is not None or isinstance(value, bool) or not isinstance(value, numbers.Real):
        return whole
    number = float(value)
    if math.isnan(number) or (number == 0 and math.copysign(1, number) < 0):
        return None
    return int(number) if number.is_integer() else number


@attrs.frozen
class Kind:
    """A declaration of specs: the formula that they compute, with `{name}` in the place of each parameter.

    Where the formula has `...` in the place of an index, a spec has any number of dimensions there: as many as its sizes or views say.
    `atomic` says that each element of the result is added to memory in one step that nobody sees half of.

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
            raise ArgumentError("the title of a kind is an identifier", got=self.title)
        check_types(self)
        try:
            names = [field for _, field, _, _ in string.Formatter().parse(self.text) if field is not None]
        except ValueError as error:
            hint = "{name} for a parameter, and no other braces"
            raise ArgumentError(f"{self.title}: no formula: {error}", got=self.text, hint=hint) from None
        if set(names) != {one.name for one in self.parameters}:
            raise ArgumentError(f"{self.title}: the formula names other parameters than the kind", got=self.text, legal=self.parameters)
        if not names:
            self.definition(())

    @property
    def starter(self) -> OwnStarter:
        """The name from which chains and short forms of this kind start."""
        return OwnStarter(self)

    @functools.cached_property
    def required(self) -> tuple[str, ...]:
        """The parameters that a spec must name."""
        return tuple(one.name for one in self.parameters if one.default is None)

    @functools.cached_property
    def defaults(self) -> Mapping[str, Any]:
        """The other parameters, with their values where none is named."""
        return {one.name: one.default for one in self.parameters if one.default is not None}

    def filled(self, options: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
        """The parameters with their values, taken out of the options."""
        return tuple((one.name, one.checked(options.pop(one.name, one.default), self.title)) for one in self.parameters)

    def definition(self, parameters: tuple[tuple[str, Any], ...], rank: int = 2) -> Definition:
        """The formulas with values in the places of the parameters, and `rank` dimensions in that of `...`."""
        return definition(spelled(self._text(parameters), rank))

    def of_signature(self, parameters: tuple[tuple[str, Any], ...], signature: str) -> Definition:
        """The definition with the indices that a signature gives to its operands."""
        return signed(self.definition(parameters), signature)

    def of_sizes(self, parameters: tuple[tuple[str, Any], ...], count: int, signature: str = "") -> Definition:
        """The definition with so many dimensions, if it leaves their number open; by its signature, if there is one."""
        if signature:
            return self.of_signature(parameters, signature)
        if REST not in self._text(parameters):
            return self.definition(parameters)
        return self.definition(parameters, max(count - len(self.definition(parameters, 1).dims) + 1, 1))

    def of_views(self, parameters: tuple[tuple[str, Any], ...], views: tuple[View, ...]) -> Definition:
        """The definition whose operands have as many dimensions as views, if it leaves their number open."""
        text = self._text(parameters)
        for position, least in open_operands(text):
            if position < len(views) and isinstance(views[position], View):
                return definition(spelled(text, max(len(views[position].dims) - least + 1, 1)))
        return definition(spelled(text, 2))

    def reference(
        self, made: Definition, arrays: Mapping[str, Any], types: Mapping[str, DType], sizes: Mapping[str, int]
    ) -> tuple[Any, ...]:
        """The outputs of a definition of this kind, from its inputs: made in float64, rounded once."""
        return tuple(reference(one, arrays, types, sizes) for one in made.formulas)

    def perform(
        self,
        made: Definition,
        values: Mapping[str, Any],
        types: Mapping[str, DType],
        accumulate: Any,
        made_in: DType | None = None,
        ranges: Mapping[str, Range] | None = None,
    ) -> dict[str, Any]:
        """New values of the outputs of a definition of this kind, as a spec performs it; `ranges` are those of operands of integers."""
        self.check_meaning(made)
        return {one.output: perform(one, values, types, accumulate, made_in, ranges) for one in made.formulas}

    def check_integers(self, spec: Spec) -> None:
        """Refuse a spec of this kind of whose formulas an integer may need more than 64 bits, and all of them count."""
        for one in spec.definition.formulas:
            check_integers(one, spec.integer_ranges, {}, spec.title)

    @property
    def executes(self) -> bool:
        """Whether what it computes is known: by its formula, or by a function."""
        return True

    def check_meaning(self, made: Definition) -> None:
        """Refuse a definition that says nothing about the values of an output."""
        for one in made.formulas:
            if one.value is None:
                raise ArgumentError(f"{self.title} says nothing about the values of {one.output}", hint="a spec with a right side")

    def short(self, spec: Spec) -> str | None:
        """The short form of a spec of this kind, where it says all of it."""
        return _short_repr(spec)

    def _text(self, parameters: tuple[tuple[str, Any], ...]) -> str:
        return self.text.format(**dict(parameters)) if parameters else self.text


def as_condition(value: object) -> Expr:
    """A truth value or a condition as an expression, or an `ArgumentError`: when a spec adds to what its output holds."""
    condition = as_expr(int(value)) if isinstance(value, bool) else as_expr(value)
    if condition.low < 0 or condition.high > 1:
        raise ArgumentError(
            "accumulate: neither true nor false nor a condition", got=value, legal="False True, or a condition such as k > 0"
        )
    return condition


# ---------------------------------------------------------------------------------------------- specs


@attrs.frozen(repr=False)
class Spec(Offering, ForAny, Displayed):
    """What to compute: the kind, the level responsible, and the operands as views, in the order in which the formula names them.

    `accumulate` is the condition under which the result joins what the output holds, for a formula that can. `accumulator` is the type in
    which unrefined code should add up; the output's own if None. `in_parts` says that this is one part of a sum, to which other blocks add
    at the same time (`split_k`): it must be added atomically. A `Reduction` in parts leaves apart what several threads make of their own
    terms, along the dimension that only its result has. `names` are what the dimensions are called in generated code.
    `signature` gives the operands other indices than the kind does, as `einsum` writes them: `bmk,bkn->bmn`; sizes are those of the
    result's dimensions, then of those that are reduced.

    Legal when the operands agree on the sizes of the dimensions that they share; at the level Kernel, when all lie in GL.
    Made by the short form, or on views by the name of the kind: `Move.on(Block, src, dst)`.
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
            raise ArgumentError(f"{self.title}: other parameters than its kind", got=self.parameters, legal=self.kind.parameters)
        if len(self.views) != len(self.uses):
            raise ArgumentError(f"{self.title}: {len(self.views)} operands given", legal=" ".join(self.uses))
        _ = self.extents  # refused where operands do not agree on them
        _check_options(self)
        if any(not view.tensor.shape or view.tensor.memory.by_value for view in self.views):
            _check_scalars(self)
        if self.level.has_arguments:
            _check_kernel(self)

    def __getattr__(self, name: str) -> View:
        """An operand by its name, or the value of a parameter."""
        if not name.startswith("_"):  # asked thousands of times in a compilation, mostly for operands
            operands = self.operands
            if name in operands:
                return operands[name]
            for parameter, value in self.parameters:
                if parameter == name:
                    return value  # type: ignore[no-any-return]  # of `parameters`, where its type is known
            require_no_refinement(self, name)
        raise AttributeError(f"a {self.title if not name.startswith('_') else 'spec'} has no {name}")

    # ------------------------------------------------------------------------------------------ what the kind says

    @functools.cached_property
    def definition(self) -> Definition:
        """What it computes: a formula for each output."""
        if self.signature:
            return self.kind.of_signature(self.parameters, self.signature)
        return self.kind.of_views(self.parameters, self.views)

    @property
    def title(self) -> str:
        """The name of its kind."""
        return self.kind.title

    @property
    def starter(self) -> Starter:
        """The name from which a chain for this kind of spec starts."""
        return self.kind.starter

    @functools.cached_property
    def dims(self) -> tuple[str, ...]:
        """The iteration dimensions: those of the result, then those that are reduced."""
        return self.definition.dims

    @functools.cached_property
    def uses(self) -> Mapping[str, tuple[str, ...]]:
        """The dimensions of each operand, in the order of the short form."""
        return self.definition.uses

    @property
    def tile_dims(self) -> tuple[str, ...]:
        """The dimensions that `tile` takes by position."""
        return self.definition.tile_dims

    @functools.cached_property
    def outputs(self) -> tuple[str, ...]:
        """The operands that are written."""
        return self.definition.outputs

    @functools.cached_property
    def inputs(self) -> tuple[str, ...]:
        """Operands that are only read, but for coordinates, which nobody stores."""
        written = self.definition.outputs
        return tuple(name for name, view in self.operands.items() if name not in written and not view.memory.counts)

    @property
    def labels(self) -> tuple[str, ...]:
        """What the dimensions are called in generated code."""
        return self.names or self.dims

    @property
    def atomic(self) -> bool:
        """Whether each element is added in a step that nobody sees half of."""
        return self.kind.atomic

    @functools.cached_property
    def copies(self) -> bool:
        """Whether it is a copy of `src` to `dst`."""
        return self.definition.copies

    @property
    def moves(self) -> bool:
        """Whether it is a copy of `src` to `dst` that may turn it: `dst[n,m] = src[m,n]`."""
        return self.definition.moves

    @property
    def fills(self) -> bool:
        """Whether it sets all of `dst` to one value."""
        return self.definition.fills

    @property
    def allocates(self) -> bool:
        """Whether it says that a tensor is there, and nothing about its values."""
        return self.definition.allocates

    @functools.cached_property
    def multiplies(self) -> bool:
        """Whether it is the product of the matrices A (m x k) and B (k x n), added to C."""
        return self.definition.multiplies

    @property
    def contracts(self) -> bool:
        """Whether it adds up products of elements of A and B, with indices in any order, into C."""
        return self.definition.contracts

    @property
    def reduces(self) -> bool:
        """Whether it makes the sum, the maximum or the minimum of elements of `src` along any of its dimensions, into `dst`."""
        return self.definition.reduces

    @property
    def pointwise(self) -> bool:
        """Whether it computes each element of the result from elements in the same place."""
        return self.definition.pointwise and not self.atomic

    # ------------------------------------------------------------------------------------------ operands and sizes

    @functools.cached_property
    def operands(self) -> Mapping[str, View]:
        """Views by operand name, in the order of the short form."""
        return dict(zip(self.uses, self.views, strict=True))

    def with_operands(self, **views: View) -> Self:
        """The same spec on other views; an `ArgumentError` where they do not fit."""
        return self.at_level(self.level, **views)

    def with_options(self, **options: Any) -> Self:
        """The same spec with other options than operands: `accumulate`, `in_parts`."""
        return attrs.evolve(self, **options)

    def at_level(self, level: Level, **views: View) -> Self:
        """The same spec, another level responsible; on other views, where some are given."""
        unknown = [name for name in views if name not in self.uses]
        if unknown:
            raise ArgumentError(f"{self.title} has no operand {unknown[0]}", legal=self.uses)
        changed = tuple(views.get(name, view) for name, view in self.operands.items()) if views else self.views
        if type(self) is not Spec:
            return attrs.evolve(self, level=level, views=changed)
        return Spec(  # type: ignore[return-value]  # written out, as a tree makes hundreds of them
            level, self.kind, changed, self.parameters, self.accumulate, self.accumulator, self.in_parts, self.names, self.signature
        )

    def size(self, dim: str) -> Expr:
        """The extent of an iteration dimension, in elements; an `ArgumentError` if the spec has no such dimension."""
        if dim not in self.extents:
            raise ArgumentError(f"{self.title} has no dimension {dim}", legal=self.dims)
        return self.extents[dim]

    @functools.cached_property
    def extents(self) -> Mapping[str, Expr]:
        """The extents of the iteration dimensions, by name; an `ArgumentError` where two operands differ."""
        extents: dict[str, Expr] = {}
        for (name, dims), view in zip(self.uses.items(), self.views, strict=True):
            if not isinstance(view, View) or len(view.dims) != len(dims):
                raise ArgumentError(f"{self.title}: {name} must be a view of the dimensions {', '.join(dims)}", got=view)
            for dim, part in zip(dims, view.dims, strict=True):
                size = part.size
                known = extents.setdefault(dim, size)
                if known is not size and known != size:
                    raise ArgumentError(f"{self.title}: {name} has {size} elements along {dim}, another operand {extents[dim]}")
        return extents

    @functools.cached_property
    def sizes(self) -> tuple[Expr, ...]:
        """The extents of all iteration dimensions."""
        return tuple(self.size(dim) for dim in self.dims)

    @functools.cached_property
    def memories(self) -> tuple[Memory, ...]:
        """Where the operands lie."""
        return tuple(view.memory for view in self.views)

    def outside(self, name: str) -> int | float:
        """What elements of an input outside its tensor count as: zero, and in a maximum or a minimum what changes none."""
        only = self.definition.only
        by = only.joins_by if self.reduces and only is not None else "sum"
        return neutral(by, self.operands[name].dtype)

    @property
    def flops(self) -> Expr:
        """Operations on elements: those of each formula at each point of its dimensions."""
        total = as_expr(0)
        for one in self.definition.formulas:
            total = total + math.prod(map(self.size, one.dims), start=as_expr(one.operations))
        return total

    @property
    def bytes(self) -> Expr:
        """The least traffic: each input read once, each output written once, and read where it is added to."""
        total = as_expr(0)
        again = {one.output: ONE if self.atomic else self.accumulate for one in self.definition.formulas if one.joins}
        for name, view in self.operands.items():
            if view.memory.counts:
                continue
            times = ONE + again.get(name, FALSE)
            total = total + math.prod(view.shape, start=times * view.dtype.bytes)
        return total

    # ------------------------------------------------------------------------------------------ meaning

    def reference(self, *inputs: ArrayLike) -> Any:
        """The meaning in NumPy: whole arrays in logical shape in, the output out (of several, a tuple).

        It is made in float64 (int64 for integers) and rounded once; an `ArgumentError` where there are not as many arrays as inputs.
        """
        import numpy

        self.kind.check_meaning(self.definition)
        names = self.inputs
        if len(inputs) != len(names):
            shapes = [f"{name} ({' x '.join(map(str.upper, self.uses[name]))})" for name in names]
            raise ArgumentError(f"reference({', '.join(names)}): {len(inputs)} arrays", hint=f"pass {' and '.join(shapes)}")
        sizes = {dim: number for dim in self.dims if (number := constant(self.size(dim))) is not None}
        arrays = {name: numpy.asarray(one) for name, one in zip(names, inputs, strict=True)}
        for name, array in arrays.items():
            if array.ndim != len(self.uses[name]):
                wanted = ", ".join(f"{name}[{','.join(self.uses[name])}]" for name in names)
                raise ArgumentError(f"reference: arrays of the shapes {wanted} are expected", got=f"{name} of shape {array.shape}")
            sizes |= dict(zip(self.uses[name], array.shape, strict=True))
        types = {name: view.dtype for name, view in self.operands.items()}
        found = self.kind.reference(self.definition, arrays, types, sizes)
        return found if len(found) > 1 else found[0]

    def perform(self, values: Mapping[str, Any], accumulate: Any, made_in: DType | None = None) -> dict[str, Any]:
        """New values of the outputs, from arrays with the operand's element dimensions first and any axes behind.

        Of an atomic spec, what is added to them. Work on elements may be `made_in` another type than that of its elements. An
        `ArgumentError` where the kind says nothing about values.
        """
        types = {name: view.dtype for name, view in self.operands.items()}
        return self.kind.perform(self.definition, values, types, accumulate, made_in, self.integer_ranges)

    @functools.cached_property
    def integer_ranges(self) -> Mapping[str, Range]:
        """Between which numbers the elements of operands lie that are integers: as their types say, coordinates as their sizes do."""
        return {name: _range_of(view) for name, view in self.operands.items() if view.dtype.kind == "int"}

    # ------------------------------------------------------------------------------------------ texts

    @property
    def notation(self) -> str:
        """The papers' form: the kind, sizes, memories and the level."""
        given = [str(value) for name, value in self.parameters if name in self.kind.required]
        title = f"{self.title}<{', '.join(given)}>" if given else self.title
        sizes = ",".join(str(size) for size in self.sizes)
        return f"{title}({sizes})({','.join(memory.name for memory in self.memories if not memory.counts)})({self.level})"

    @property
    def stored(self) -> str:
        """Which operands of a whole kernel are not column-major float32: `A, B float16 RowMajor; C RowMajor`; nothing of parts.

        What lies below a kernel is part of its operands, or a buffer that a step made.
        """
        if not self.level.has_arguments or any(view.shape != view.tensor.shape for view in self.views):
            return ""
        groups: dict[str, list[str]] = {}
        for name, view in self.operands.items():
            said = "" if view.memory.counts else _unusual(self, name)
            groups.setdefault(said, []).append(name)
        return "; ".join(f"{', '.join(names)} {said}" for said, names in groups.items() if said)

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


def _unusual(spec: Spec, name: str) -> str:
    """An operand's element type and storage order, as far as they are not float32 and column-major; a vector has no order."""
    view = spec.operands[name]
    layout = view.tensor.layout
    plain = layout == ColMajor or (layout == RowMajor and len(view.tensor.shape) < 2)
    order = "" if plain else _order_repr(spec, name, layout) or str(layout)
    return " ".join(filter(None, ("" if view.dtype == float32 else str(view.dtype), order)))


_FIELDS: Final[Mapping[str, Any]] = attrs.fields_dict(Spec)
TAKEN: Final = frozenset((*_FIELDS, "type", "dtype"))
OPTIONS: Final = ("accumulate", "accumulator", "in_parts", "names", "signature")
"""What a spec says beside its level, operands and parameters."""


def _check_parts(spec: Spec) -> None:
    """Refuse what is no kind, no views, or no parameters by name."""
    views, given = spec.views, spec.parameters
    if not isinstance(spec.kind, Kind) or not isinstance(views, tuple) or not all(isinstance(view, View) for view in views):
        raise ArgumentError("Spec: a kind and its operands", got=(spec.kind, views), legal="MatMul(M, N, K)(GL, GL, GL)(Kernel)")
    if not isinstance(given, tuple) or not all(isinstance(one, tuple) and len(one) == 2 for one in given):
        raise ArgumentError(f"{spec.title}: parameters are names and values", got=given, legal='(("by", "max"),)')


def _check_options(spec: Spec) -> None:
    """Refuse options of wrong types, and those that the formula has no use for."""
    title, made = spec.title, spec.definition
    if not isinstance(spec.in_parts, bool):
        raise ArgumentError("in_parts: neither true nor false", got=spec.in_parts)
    if spec.accumulator is not None and not isinstance(spec.accumulator, DType):
        raise ArgumentError("accumulator: not an element type", got=spec.accumulator, legal="float32 float16 ..., or None")
    if spec.accumulate != FALSE and (spec.atomic or not made.joins):
        raise ArgumentError(
            f"{title} never adds to what its output holds", got=str(spec.accumulate), legal="accumulate=False", hint="+= in the formula"
        )
    no_parts = spec.in_parts and not made.is_product_sum and not made.reduces
    if (spec.accumulator is not None and not made.is_product_sum) or no_parts:
        raise ArgumentError(f"{title} is no sum of products, it has no accumulator and no parts")
    if not TAKEN.isdisjoint(spec.uses):
        taken = next(name for name in spec.uses if name in TAKEN)
        raise ArgumentError(f"{title}: {taken} is no name for an operand, a spec has one itself", hint="another name in the formula")
    if not _are_identifiers(spec.names) or len(spec.names) not in (0, len(spec.dims)):
        raise ArgumentError(f"{title}: its dimensions are named by {len(spec.dims)} identifiers", got=spec.names, legal=spec.dims)
    if made.sets_numbers:
        _check_values(made, {name: view.dtype for name, view in spec.operands.items()})
    for index in made.moved_indices:
        legal = index.leaves(constant(spec.size(index.dim)))
        if legal is not None:
            raise ArgumentError(f"{title}: {index} leaves the {spec.size(index.dim)} of {index.dim}", legal=legal)


def _are_identifiers(names: object) -> bool:
    return isinstance(names, tuple) and (not names or all(isinstance(name, str) and name.isidentifier() for name in names))


def _check_values(made: Definition, types: Mapping[str, DType]) -> None:
    """Refuse constants that the type of an output does not hold."""
    for one in made.formulas:
        if one.fills and isinstance(one.value, Number):
            check_value(one.value.value, types[one.output])


def default_result(dtype: DType) -> DType:
    """The type of C if none is named: int32 for int8, float32 for types that only matrix instructions take, else that of A."""
    return int32 if dtype == int8 else float32 if dtype in MATRIX_ONLY else dtype


# ---------------------------------------------------------------------------------------------- checks


def check_size(value: object, what: str) -> Expr:
    """A size as an expression: a positive integer, or an expression of symbols, never negative; a launch with 0 is refused."""
    if isinstance(value, Expr):
        if value.low < 0:
            raise ArgumentError(f"{what}={value}: may be negative ({value.low})", legal="sizes that are never negative")
        foreign = [var.name for var in value.variables() if not var.parameter]
        if foreign:
            raise ArgumentError(f"{what}={value}: {', '.join(foreign)} is no symbol", hint='make it with sym("M")')
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
    """Refuse a number that an element type does not represent exactly."""
    least, most = (-(2**dtype.mantissa), 2**dtype.mantissa) if dtype.kind == "float" else dtype.limits
    if isinstance(value, int) and least <= value <= most:
        return
    legal = f"{least} ... {most}"
    if dtype.kind == "float":
        if _held(value, dtype):
            return
        legal += ", and other numbers that it holds"
    raise ArgumentError(f"value={value}: no exact {dtype}", legal=legal)


def _held(value: float, dtype: DType) -> bool:
    """Whether a floating-point type has the number."""
    import numpy

    try:
        wide = numpy.float64(value)
    except OverflowError:
        return False
    return bool(wide == value and convert(numpy.asarray(wide), dtype).astype(numpy.float64) == wide)


def check_memory(value: object, what: str) -> Memory:
    """A memory, or an error that lists them."""
    if not isinstance(value, Memory):
        raise ArgumentError(f"{what}: not a memory", got=value, legal=MEMORIES)
    return value


def check_level(value: object) -> Level:
    """A level, or an error."""
    if not isinstance(value, Level):
        raise ArgumentError("not a level of the thread hierarchy", got=value, legal=LEVELS)
    return value


def check_layout(value: object, what: str, dims: Sequence[str], shape: tuple[Expr, ...]) -> MatrixLayout | Layout:
    """How an operand of these dimensions is stored; an `ArgumentError` for what is no layout, or one of other dimensions.

    Legal: row- or column-major, with a leading dimension that holds a row or column; strides by dimension; a layout of its shape.
    """
    if isinstance(value, Strides):
        return value.layout(what, dims, shape)
    if isinstance(value, Layout):
        sizes = tuple(math.prod(flatten(mode.shape), start=as_expr(1)) for mode in value) if isinstance(value.shape, tuple) else ()
        if sizes != shape:
            raise ArgumentError(f"{what}={value}: another shape than the operand's", got=sizes, legal=f"{tuple(map(str, shape))}")
        return value
    if not isinstance(value, MatrixLayout):
        legal = "RowMajor ColMajor RowMajor(ld=...) ColMajor(ld=...) Strides(m=..., n=...) Layout(shape, strides)"
        raise ArgumentError(f"{what}: not a storage layout", got=value, legal=legal)
    if value.leading is not None:
        need = shape[0] if value.order == "col" else shape[-1]
        number, least = constant(value.leading), constant(need)
        if number is not None and least is not None and number < least:
            raise ArgumentError(f"{what}={value}: shorter than the {least} elements it has to hold", legal=f"ld >= {least}")
    return value


def _check_scalars(spec: Spec) -> None:
    """Refuse what has dimensions, or is written, where it is passed by value."""
    for name, view in spec.operands.items():
        if view.memory.by_value and view.tensor.shape:
            what = f"{spec.title}: {name} has dimensions, and only one element is passed by value"
            raise ArgumentError(what, got=view.memory, legal="GL SH RF")
        if not view.dims and not view.tensor.shape and not view.memory.of_grid:
            what = f"{spec.title}: {name} has no dimensions, so it is a parameter of the kernel"
            raise ArgumentError(what, got=view.memory, legal="VAL, passed by value, or GL, an array of no dimensions")


def _alignment(layout: object, name: str, dtype: DType) -> int:
    """The bytes of whose multiples an operand's address is one."""
    align = layout.align if isinstance(layout, Strides) else USUAL_ALIGNMENT
    if align % dtype.bytes:
        raise ArgumentError(f"{name}={layout}: elements of {dtype} begin at multiples of {dtype.bytes} bytes", got=align)
    return align


def _range_of(view: View) -> Range:
    """Between which numbers the elements of a view of integers lie; of no dimensions, a coordinate may be the extent itself."""
    if not view.memory.counts:
        return view.dtype.limits
    size = as_expr(view.tensor.shape[0])
    extent = not view.dims and view.numerals[0].base == size
    return (size.low, size.high) if extent else (0, max(size.high - 1, 0))


def _check_kernel(spec: Spec) -> None:
    spec.kind.check_integers(spec)
    taken = next((name for name in spec.operands if not name.isascii() or is_taken(name)), None)
    if taken is not None:
        raise ArgumentError(
            f"{spec.title}: an operand called {taken}, which means something in CUDA C++", legal="an identifier of ASCII letters",
            hint="another name in the formula",
        )  # fmt: skip
    if any(not (memory.of_grid or memory.counts) for memory in spec.memories):
        names = ", ".join(memory.name for memory in spec.memories)
        raise ArgumentError(
            f"{spec.title}({names})({spec.level}): the operands of a kernel start in global memory", legal="GL for each operand"
        )
    for name in spec.outputs:
        tensor = spec.operands[name].tensor
        if isinstance(tensor.layout, Layout) and surely_overlaps(tensor.storage(), tensor.shape):
            what = f"{spec.title}: elements of the output {name} overlap in memory"
            raise ArgumentError(what, got=str(tensor.layout), legal="strides that lead each beyond what lies within the smaller ones")


# ---------------------------------------------------------------------------------------------- the short form


@attrs.frozen
class SpecShape(Generic[S]):
    """A spec without places, `MatMul(M, N, K)`: called with a memory for each operand, then with a level, it is the spec."""

    kind: Kind
    parameters: tuple[tuple[str, Any], ...]
    sizes: tuple[Expr, ...]
    dtypes: tuple[DType, ...]
    layouts: tuple[MatrixLayout | Layout, ...]
    options: tuple[tuple[str, Any], ...] = ()
    aligns: tuple[int, ...] = ()

    @located
    def __call__(self, *memories: Memory) -> PlacedShape[S]:
        names = tuple(self.kind.definition(self.parameters).uses)
        if len(memories) != len(names):
            raise ArgumentError(f"{len(memories)} memories given, one is needed for each operand", legal=" ".join(names))
        return PlacedShape(self, tuple(check_memory(one, f"memory of {name}") for one, name in zip(memories, names, strict=True)))


@attrs.frozen
class PlacedShape(Generic[S]):
    """A shape with its memories; calling it with a level gives the spec."""

    shape: SpecShape[S]
    memories: tuple[Memory, ...]

    @located
    def __call__(self, level: Level) -> S:
        shape, level = self.shape, check_level(level)
        made = shape.kind.of_sizes(shape.parameters, len(shape.sizes), dict(shape.options).get("signature", ""))
        extents = dict(zip(made.dims, shape.sizes, strict=True))
        aligns = shape.aligns or (USUAL_ALIGNMENT,) * len(made.uses)
        parts = zip(made.uses.items(), shape.dtypes, self.memories, shape.layouts, aligns, strict=True)
        views = tuple(
            whole_view(Tensor(name, tuple(extents[dim] for dim in dims), dtype, memory, layout, align=align))
            for (name, dims), dtype, memory, layout, align in parts
        )
        return cast("S", Spec(level, shape.kind, views, shape.parameters, **dict(shape.options)))


@attrs.frozen(repr=False)
class AnyStarter(Offering, ForEvery, Displayed):
    """Where a chain starts that is for specs of every kind: `AnySpec.tile(1, 1).to(Thread).done()`.

    Such a chain goes where one of any kind goes: bound to a spec, passed to a load or an epilog, behind another chain.
    """

    @property
    def title(self) -> str:
        """What messages call it."""
        return "AnySpec"

    def __repr__(self) -> str:
        return self.title


AnySpec: Final = AnyStarter()


@attrs.frozen(repr=False, eq=False)
class Starter(Offering, Displayed):
    """The name of a kind: where a chain starts without a size, `MatMul.tile(...)`. Called with sizes it is the short form of a spec.

    Two of one kind are equal, whatever their classes.
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
        """What messages call it."""
        return self.kind.title

    def takes(self, start: Starter) -> bool:
        """Whether a chain that starts from another name may be bound to specs of this kind."""
        return self == start

    def __call__(self, *arguments: Any, **options: Any) -> SpecShape[Any]:
        """Required parameters and sizes in order, then, by name, element types, storage orders, other parameters and options.

        `dtype` is the type of the inputs (or one for each), `dst_dtype` that of an output called dst; float32 and column-major unless
        said otherwise.
        """
        required = self.kind.required
        values = dict(zip(required, arguments, strict=False))
        if len(values) < len(required):
            raise ArgumentError(f"{self!r}: missing a required argument: {required[len(values)]!r}", legal=self._signature())
        values |= {name: options.pop(name) for name in self.kind.defaults if name in options}
        sizes = arguments[len(required) :]
        made = self.kind.of_sizes(self.kind.filled(dict(values)), len(sizes), options.get("signature", ""))
        known = {"dtype", *(f"{name.lower()}_dtype" for name in made.outputs), *OPTIONS, *self.kind.defaults, *made.uses}
        unknown = [name for name in options if name not in known]
        if unknown:
            raise ArgumentError(f"{self!r}: got an unexpected keyword argument {unknown[0]!r}", legal=sorted(known))
        results = {name: options.pop(f"{name.lower()}_dtype", None) for name in made.outputs}
        layouts = {name: options.pop(name) for name in made.uses if name in options}
        return self.shape(sizes, options.pop("dtype", float32), results, layouts, **values, **options)

    @located
    def shape(
        self, sizes: Iterable[Any], dtype: Any, results: Mapping[str, Any], layouts: Mapping[str, Any], **options: Any
    ) -> SpecShape[Any]:
        """The short form from its arguments: `dtype` of the inputs, `results` by output (None for what follows from them)."""
        kind = self.kind
        sizes = tuple(sizes)
        if not isinstance(options.get("signature", ""), str):
            raise ArgumentError(f"{self!r}: a signature is a text", got=options["signature"], legal="einsum's form, such as bmk,bkn->bmn")
        values = kind.filled(options)
        if not options.get("signature", ""):
            options.pop("signature", None)
        made = kind.of_sizes(values, len(sizes), options.get("signature", ""))
        if len(sizes) != len(made.dims):
            raise ArgumentError(f"{self!r}: {len(sizes)} sizes given", legal=" ".join(dim.upper() for dim in made.dims))
        extents = {dim: check_size(size, dim.upper()) for dim, size in zip(made.dims, sizes, strict=True)}
        dtypes = _types(made, dtype, results)
        orders = tuple(
            check_layout(layouts.get(name, ColMajor), name, dims, tuple(extents[dim] for dim in dims)) for name, dims in made.uses.items()
        )
        _check_values(made, dict(zip(made.uses, dtypes, strict=True)))
        if "accumulate" in options:
            options["accumulate"] = as_condition(options["accumulate"])
        if options.get("accumulator") is not None:
            options["accumulator"] = as_dtype(options["accumulator"])
        aligns = tuple(_alignment(layouts.get(name), name, dtype) for name, dtype in zip(made.uses, dtypes, strict=True))
        return SpecShape(kind, values, tuple(extents.values()), dtypes, orders, tuple(options.items()), aligns)

    def on(self, level: Level, *views: View, **options: Any) -> Spec:
        """The spec on views: in the order of the short form, or by name; parameters and options by name; or an `ArgumentError`."""
        kind = self.kind
        values = kind.filled(options)
        made = kind.definition(values)
        named = [options.pop(name) for name in list(made.uses)[len(views) :] if name in options]
        unknown = [name for name in options if name not in OPTIONS]
        if unknown:
            raise ArgumentError(f"{self!r}: neither an operand nor an option: {unknown[0]}", legal=(*made.uses, *OPTIONS))
        if isinstance(options.get("names"), tuple) and options["names"] == made.dims:
            del options["names"]
        return Spec(level, kind, (*views, *named), values, **options)

    def _signature(self) -> str:
        return f"{self!r}({', '.join([*self.kind.required, 'sizes'])})"


class OwnStarter(ForEvery, Starter):
    """The name of a kind that is declared without a class of its own."""


def _types(made: Definition, dtype: Any, results: Mapping[str, Any]) -> tuple[DType, ...]:
    """The element types of the operands: those of the inputs, and of the results what follows from the first, where none is named."""
    inputs = len(made.uses) - len(made.outputs)
    given = dtype if isinstance(dtype, tuple) else (dtype,) * max(inputs, 1)
    if len(given) != max(inputs, 1):
        raise ArgumentError("dtype: one element type, or one for each input", got=dtype)
    types = tuple(map(as_dtype, given))
    found = list(types[:inputs])
    for one in made.formulas:
        named = results.get(one.output)
        follows = default_result(types[0]) if one.is_product_sum else types[0]
        found.append(follows if named is None else as_dtype(named))
    return tuple(found)


def _short_repr(spec: Spec) -> str | None:
    """The short form, where it says all of the spec."""
    if len(spec.definition.formulas) != len(spec.outputs):
        return None
    if any(memory.counts for memory in spec.memories):
        return None
    layouts = {name: view.tensor.layout for name, view in spec.operands.items()}
    orders = {name: _order_repr(spec, name, layout) for name, layout in layouts.items()}
    named = all(view.memory in NAMED_MEMORIES for view in spec.views)
    if None in orders.values() or not named or any(constant(size) is None and size.low < 0 for size in spec.sizes):
        return None
    keywords = _type_words(spec)
    said = {name: getattr(spec, name) for name in ("accumulator", "accumulate", "signature")}
    keywords |= {name: repr(value) for name, value in said.items() if value not in (None, FALSE, "")}
    defaults = spec.kind.defaults
    keywords |= {name: _value_repr(value) for name, value in spec.parameters if name in defaults and value != defaults[name]}
    keywords |= {name: str(orders[name]) for name, layout in layouts.items() if layout != ColMajor}
    options = (("accumulate", spec.accumulate), ("accumulator", spec.accumulator), ("signature", spec.signature))
    dtypes = tuple(view.dtype for view in spec.views)
    pairs = zip(layouts.values(), spec.views, strict=True)
    aligns = tuple(USUAL_ALIGNMENT if isinstance(layout, MatrixLayout) else view.tensor.align for layout, view in pairs)
    rebuilt: SpecShape[Spec] = SpecShape(spec.kind, spec.parameters, spec.sizes, dtypes, tuple(layouts.values()), options, aligns)
    try:
        if PlacedShape(rebuilt, spec.memories)(spec.level) != spec:
            return None
    except ArgumentError:  # such a spec nobody can state: a tile of storage with gaps is no array of its own
        return None
    words = [_value_repr(value) for name, value in spec.parameters if name in spec.kind.required]
    words += [*map(_size_repr, spec.sizes), *(f"{name}={value}" for name, value in keywords.items())]
    return f"{spec.title}({', '.join(words)})({', '.join(map(repr, spec.memories))})({spec.level})"


def _order_repr(spec: Spec, name: str, layout: MatrixLayout | Layout) -> str | None:
    """How the short form says the storage of an operand; None for a hierarchical layout, which is made for one shape."""
    return (
        repr(layout) if isinstance(layout, MatrixLayout) else strides_repr(name, spec.uses[name], layout, spec.operands[name].tensor.align)
    )


def _type_words(spec: Spec) -> dict[str, str]:
    """The element types that the short form must name."""
    types = {name: view.dtype for name, view in spec.operands.items()}
    first = [kind for name, kind in types.items() if name not in spec.outputs] or [types[spec.outputs[0]]]
    words = {}
    if set(first) != {float32}:
        words["dtype"] = repr(first[0]) if len(set(first)) == 1 else f"({', '.join(map(repr, first))})"
    follow = dict(zip(spec.uses, _types(spec.definition, tuple(first), {}), strict=True))
    return words | {f"{name.lower()}_dtype": repr(types[name]) for name in spec.outputs if types[name] != follow[name]}


def _value_repr(value: object) -> str:
    """A value as Python reads it: infinity has no name of its own."""
    return f"float({str(value)!r})" if isinstance(value, float) and math.isinf(value) else repr(value)


def _size_repr(size: Expr) -> str:
    number = constant(size)
    return repr(size) if number is None else str(number)


def symbols_of(spec: Spec) -> tuple[Var, ...]:
    """The run-time sizes and strides of a spec, in order of appearance; an `ArgumentError` where two of one name differ."""
    strides = [stride for view in spec.operands.values() for stride in _strides_of(view.tensor.layout)]
    found: dict[str, Var] = {}
    for value in (*spec.sizes, *strides, spec.accumulate):
        if value is not None:
            for var in sorted(value.variables(), key=lambda one: one.name):
                if found.setdefault(var.name, var) != var:
                    raise ArgumentError(f"two symbols are called {var.name}, with different facts", hint="use one sym(...) object")
    return tuple(found.values())


def sizes_of(spec: Spec) -> tuple[Var, ...]:
    """The symbols of a spec without which nothing is known: all but those that are strides only, of which there is always a choice."""
    needed = frozenset().union(*(value.variables() for value in (*spec.sizes, spec.accumulate)))
    strides = {step for view in spec.operands.values() for step in view.tensor.storage().steps}
    return tuple(var for var in symbols_of(spec) if var in needed or var not in strides)


def with_strides(spec: Spec, known: Mapping[str, int]) -> dict[str, int]:
    """Values of symbols, and of those that are strides where they have none: elements without gaps."""
    found = dict(known)
    symbols = {var.name for var in symbols_of(spec)} - {var.name for var in sizes_of(spec)}
    for view in spec.operands.values() if symbols - set(found) else ():
        if all(var.name in found for size in view.tensor.shape for var in size.variables()):
            shape = [int(size.evaluate(found)) for size in view.tensor.shape]
            found |= {name: value for name, value in strides_chosen(view.tensor.storage(), shape, found).items() if name in symbols}
    return found


def _strides_of(layout: MatrixLayout | Layout) -> list[Expr | None]:
    """What a layout says of distances in memory that may be known only at run time."""
    if isinstance(layout, MatrixLayout):
        return [layout.leading]
    return [stride for stride in flatten(layout.stride) if isinstance(stride, Expr)]  # type: ignore[misc]


__all__ = ["AnySpec", "AnyStarter", "ColMajor", "Kind", "OwnStarter", "Parameter", "RowMajor", "Spec", "Starter", "symbols_of"]
