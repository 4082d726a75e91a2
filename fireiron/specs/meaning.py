"""What a formula means, in NumPy: of whole tensors in float64, and of the elements of one statement in their own types.

Two rules say how a kernel rounds. A sum of products is a chain of multiply-adds: each is rounded to the type of the result (to one of
16 bits once, behind product and sum). Any other sum is made in the type of its terms (float32 for 16-bit floats) and converted once. Both
add in the order of the dimensions that are reduced. Work on each element of its own is made in one type (`computing`) and converted once;
functions such as exp are those of NumPy, which threads meet within the errors of the CUDA Math API, and a kernel may contract a product and
a sum to one rounding.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import attrs

from fireiron.specs.arithmetic import LARGER, SMALLER, added, convert, exp2
from fireiron.specs.formula import Element, Formula, Number, Operation, Value, elements_of
from fireiron.specs.integers import INTEGRAL, WRAPPING, Range, is_integral, joined_in, range_of, sides_of
from fireiron.values.machine import DType, float32, float64, int32, tf32

_TF32_BITS: Final = 0xFFFFE000
"""The upper 19 bits of a float32."""


def multiplied(values: Any, dtype: DType) -> Any:
    """What a matrix instruction multiplies: of tf32 the upper 19 bits, of other types the elements themselves."""
    import numpy

    if dtype != tf32:
        return values
    return (numpy.ascontiguousarray(values, numpy.float32).view(numpy.uint32) & numpy.uint32(_TF32_BITS)).view(numpy.float32)


# ---------------------------------------------------------------------------------------------- whole tensors


def reference(formula: Formula, inputs: Mapping[str, Any], types: Mapping[str, DType], sizes: Mapping[str, int]) -> Any:
    """The result in float64 (int64 for integers), rounded once to its type; what it adds to counts as zero."""
    import numpy

    result = types[formula.output]
    shape = tuple(sizes[dim] for dim in formula.target.dims)
    arrays = {one.tensor: numpy.asarray(inputs[one.tensor]) for one in formula.elements}
    if isinstance(formula.value, (Element, Number)) and formula.reduction is None:
        return _elementwise(formula, arrays, types, shape)
    if formula.reduction is None:
        return _elementwise(formula, arrays, types, shape, made_in=float64)
    first = [result] if formula.is_product_sum else [types[name] for name in arrays]
    wide = numpy.float64 if any(one.kind == "float" for one in first) else numpy.int64
    taken = {name: _factor(formula, one, types[name]).astype(wide) for name, one in arrays.items()}
    with numpy.errstate(over="ignore", invalid="ignore", divide="ignore"):
        if formula.multiplies:
            left, right = taken.values()
            return convert(left @ right, result)
        if formula.contracts and all(one.plain for one in formula.elements):
            return convert(numpy.broadcast_to(_contracted(formula, [taken[one.tensor] for one in formula.elements]), shape), result)
        values = _evaluated(formula.value, _aligned(formula, taken))
        axes = tuple(range(len(shape), values.ndim))
        return convert(numpy.broadcast_to(_joined(formula.reduction, values, axes, result), shape), result)


def _contracted(formula: Formula, factors: Sequence[Any]) -> Any:
    """A sum of products of two elements, as products of matrices in stacks: the factors of all sums at once would fill the memory."""
    import numpy

    target, uses = formula.target.dims, [one.dims for one in formula.elements]
    for place, (dims, other) in enumerate(((uses[0], uses[1]), (uses[1], uses[0]))):
        alone = tuple(axis for axis, dim in enumerate(dims) if dim in formula.over and dim not in other)
        factors = [one.sum(axis=alone) if number == place else one for number, one in enumerate(factors)]
        uses[place] = tuple(dim for dim in dims if dim not in formula.over or dim in other)
    stack = [dim for dim in target if dim in uses[0] and dim in uses[1]]
    own = [[dim for dim in target if dim in dims and dim not in stack] for dims in uses]
    summed = [dim for dim in formula.over if dim in uses[0]]
    orders = ([*stack, *own[0], *summed], [*stack, *summed, *own[1]])
    sizes = {dim: size for dims, one in zip(uses, factors, strict=True) for dim, size in zip(dims, one.shape, strict=True)}
    counts = [math.prod(sizes[dim] for dim in dims) for dims in (own[0], summed, own[1])]
    left, right = (one.transpose([dims.index(dim) for dim in order]) for one, dims, order in zip(factors, uses, orders, strict=True))
    stacked = tuple(sizes[dim] for dim in stack)
    product = numpy.matmul(left.reshape(*stacked, *counts[:2]), right.reshape(*stacked, *counts[1:]))
    made = [*stack, *own[0], *own[1]]
    product = product.reshape([sizes[dim] for dim in made])
    there = product.transpose([made.index(dim) for dim in target if dim in made])
    return there[tuple(slice(None) if dim in made else None for dim in target)]


def evaluated(
    formula: Formula, taken: Mapping[Element, Any], dropped: tuple[str, ...], ranges: Mapping[str, Range], result: DType = float64
) -> Any:
    """What a step of several computes in float64, from its elements; of a dimension that is `dropped` they have one element.

    Of integers, whose tensors have `ranges`, it computes exact ones, or as many of their lower bits as count in the `result`. What is
    added to does not count. The result has the dimensions of the target, or one element along those that nothing read has.
    """

    lined = aligned(formula, taken, dropped)
    if formula.contracts:
        return summed(formula, lined)
    if formula.reduction is None:
        return _Evaluation(lined, ranges, None, float64).result(formula.value, result)
    axes = tuple(range(len(formula.target.dims), len(formula.dims)))
    return _joined(formula.reduction, _evaluated(formula.value, lined), axes, result)


def _joined(by: str, values: Any, axes: tuple[int, ...], result: DType) -> Any:
    """Values joined along axes: integers exactly, but for a product that 64 bits do not hold and that becomes a float."""
    import numpy

    integers = numpy.issubdtype(values.dtype, numpy.integer)
    if by == "prod" and integers and result.kind == "float" and (abs(values.astype(numpy.float64)).prod(axis=axes) >= 2.0**62).any():
        values = values.astype(numpy.float64)
    return joining(by).reduce(values, axis=axes)


def aligned(formula: Formula, taken: Mapping[Element, Any], dropped: tuple[str, ...]) -> dict[Element, Any]:
    """Elements with an axis for each dimension of a formula, in its order; along those that are `dropped` they have one element."""
    found = {}
    for one, array in taken.items():
        array = array.reshape([size for dim, size in zip(one.dims, array.shape, strict=True) if dim not in dropped])
        dims = [dim for dim in one.dims if dim not in dropped]
        array = array.transpose([dims.index(dim) for dim in formula.dims if dim in dims])
        found[one] = array[tuple(slice(None) if dim in dims else None for dim in formula.dims)]
    return found


def value_of(name: str, *arguments: Any) -> Any:
    """An operation or a function of formulas, on values of any type."""
    return _functions()[name, len(arguments)](*arguments)


def summed(formula: Formula, aligned: Mapping[Element, Any]) -> Any:
    """A sum of products of two elements, whose arrays have an axis for each dimension of the formula."""
    import numpy

    letters = {dim: chr(ord("a") + place) for place, dim in enumerate(formula.dims)}
    factors = list(elements_of(formula.value))
    names, arrays = [], []
    for one in factors:
        axes = [axis for axis, dim in enumerate(formula.dims) if dim not in one.dims]
        arrays.append(numpy.asarray(aligned[one]).squeeze(tuple(axes)))
        names.append("".join(letters[dim] for dim in formula.dims if dim in one.dims))
    result = "".join(letters[dim] for dim in formula.target.dims if any(dim in one.dims for one in factors))
    integers = all(numpy.issubdtype(one.dtype, numpy.integer) for one in arrays)
    count = math.prod(max(one.shape[formula.dims.index(dim)] for one in aligned.values()) for dim in formula.over)
    if not integers or _exact_in_float(arrays, count):  # which BLAS multiplies
        arrays = [one.astype(numpy.float64, copy=False) for one in arrays]
    made = numpy.einsum(f"{','.join(names)}->{result}", *arrays, optimize=True)
    made = made.astype(numpy.int64) if integers else made
    missing = [axis for axis, dim in enumerate(formula.target.dims) if letters[dim] not in result]
    return numpy.expand_dims(made, tuple(missing))


def _exact_in_float(factors: Sequence[Any], count: int) -> bool:
    """Whether sums of so many products of integers are exact in float64."""
    largest = [int(abs(one).max(initial=0)) for one in factors]
    return math.prod(largest) * count <= 1 << 53


# ---------------------------------------------------------------------------------------------- the elements of a statement


def perform(
    formula: Formula,
    values: Mapping[str, Any],
    types: Mapping[str, DType],
    accumulate: Any,
    made_in: DType | None = None,
    ranges: Mapping[str, Range] | None = None,
) -> Any:
    """New values of the output, from arrays with the operand's element dimensions first and any axes behind.

    Work on each element of its own is made in the type `made_in` where one is given; in float64 its sums are rounded with the result, once.
    `ranges` are those of tensors of integers, where they are narrower than their types say.
    """
    accumulate = accumulate if formula.joins else False
    if formula.reduction is not None:
        return _reduced(formula, values, types, accumulate)
    shape = values[formula.output].shape if formula.output in values else None
    made = _elementwise(formula, values, types, shape, made_in, ranges, once=made_in == float64)
    if accumulate is False or not formula.joins:
        return made
    return joining(formula.joins_by)(_old(formula, values[formula.output], accumulate), made)


def computing(formula: Formula, types: Mapping[str, DType]) -> DType:
    """The type in which threads compute each element of its own: float64 where an input is, int32 where all are integers, else float32.

    What is integral may need more bits, or fewer: `fireiron.specs.integers`.
    """
    return computing_of(formula.value, types)


def computing_of(value: Value | None, types: Mapping[str, DType]) -> DType:
    """The type in which a value is computed; what a condition compares does not count, as it is computed by itself."""
    read = [types[one.tensor] for one in elements_of(value, conditions=False)]
    if float64 in read:
        return float64
    return float32 if any(one.kind == "float" for one in read) or _is_real(value) else int32


def _is_real(value: Value | None) -> bool:
    """Whether a value of integers need be none."""
    if isinstance(value, Number):
        return isinstance(value.value, float)
    if not isinstance(value, Operation):
        return False
    if value.name == "where":
        return any(map(_is_real, value.arguments[1:]))
    return value.name not in INTEGRAL or any(map(_is_real, value.arguments))


def _elementwise(
    formula: Formula,
    values: Mapping[str, Any],
    types: Mapping[str, DType],
    shape: Any,
    made_in: DType | None = None,
    ranges: Mapping[str, Range] | None = None,
    once: bool = False,
) -> Any:
    """The result from the elements: as they are, or as threads compute it, or `made_in` another type.

    Of what is rounded `once`, sums are rounded with the result.
    """
    import numpy

    result = types[formula.output]
    if isinstance(formula.value, Number):
        number = formula.value if result.kind == "int" or abs(formula.value.value) < 1 << 63 else Number(float(formula.value.value))
        return numpy.full(shape, convert(_constant(number), result))
    with numpy.errstate(over="ignore", invalid="ignore", divide="ignore"):
        aligned = _aligned(formula, values)
        if isinstance(formula.value, Element):
            made = aligned[formula.value]
        else:
            made = _Evaluation(aligned, {**limits_of(types), **(ranges or {})}, types, made_in, once).result(formula.value, result)
        made = convert(numpy.asarray(made), result)
    every = all(set(one.dims) == set(formula.target.dims) for one in formula.elements)
    return made if every or shape is None else numpy.broadcast_to(made, numpy.broadcast_shapes(made.shape, tuple(shape)))


def limits_of(types: Mapping[str, DType]) -> dict[str, Range]:
    """The ranges of tensors of integers, as far as their types say."""
    return {name: dtype.limits for name, dtype in types.items() if dtype.kind == "int"}


def stored(number: Number, dtype: DType) -> int:
    """A constant as an element of a type of integers."""
    return int(convert(_constant(number), dtype))


def _constant(number: Number) -> Any:
    """A constant as an array: of integers the lower 64 bits."""
    import numpy

    if isinstance(number.value, int):
        return numpy.asarray(number.value & _ALL_BITS, numpy.uint64).astype(numpy.int64)
    return numpy.asarray(number.value, numpy.float64)


_ALL_BITS: Final = (1 << 64) - 1


def _reduced(formula: Formula, values: Mapping[str, Any], types: Mapping[str, DType], accumulate: Any) -> Any:
    """Terms one after the other, in the order of the dimensions that are reduced."""
    import numpy

    assert formula.reduction is not None
    result, chained = types[formula.output], formula.is_product_sum
    integers = all(types[one.tensor].kind == "int" for one in formula.elements)
    if integers and result.kind == "float" and not chained:
        return _integers_to_float(formula, values, types, accumulate)
    wide = _wide(result if chained else types[formula.elements[0].tensor])
    once = formula.contracts and wide != result.to_numpy() and result.kind == "float"  # a chain of HFMA2: products are exact in float64
    if once:
        wide = numpy.float64
    old = values[formula.output].astype(wide, copy=False)
    taken = {one.tensor: _factor(formula, values[one.tensor], types[one.tensor]).astype(wide, copy=False) for one in formula.elements}
    rounds = chained and numpy.dtype(wide) != numpy.dtype(result.to_numpy())
    total = _old(formula, old, accumulate) if chained or accumulate is not False else None
    with numpy.errstate(over="ignore", invalid="ignore", divide="ignore"):
        for term in _terms(formula, taken):
            total = term if total is None else added(total, term) if once else joining(formula.reduction)(total, term)
            if rounds:
                total = convert(total, result).astype(wide)
    return convert(total, result)


def _integers_to_float(formula: Formula, values: Mapping[str, Any], types: Mapping[str, DType], accumulate: Any) -> Any:
    """Integers are joined to each other where 64 bits hold what they make; that, once converted, is joined to the float that is there."""
    import numpy

    result, by = types[formula.output], formula.joins_by
    wide = _wide(result)
    taken = {one.tensor: values[one.tensor].astype(numpy.int64) for one in formula.elements}
    terms = list(_terms(formula, taken))
    exact = joined_in(by, types[formula.elements[0].tensor], len(terms)) is not None
    total = functools.reduce(joining(by), terms if exact else [one.astype(wide) for one in terms])
    total = convert(total, result).astype(wide)
    if accumulate is not False:
        total = joining(by)(_old(formula, values[formula.output].astype(wide, copy=False), accumulate), total)
    return convert(total, result)


def _wide(dtype: DType) -> Any:
    """The type in which elements are added: 16-bit and 8-bit floats in float32, 8-bit integers in int32."""
    import numpy

    small = dtype.bits < 32
    return dtype.to_numpy() if not small else numpy.float32 if dtype.kind == "float" else numpy.int32


def _factor(formula: Formula, values: Any, dtype: DType) -> Any:
    """What a formula reads of an operand: a factor of a product as matrix instructions take it."""
    return multiplied(values, dtype) if formula.is_product_sum else values


def _old(formula: Formula, held: Any, accumulate: Any) -> Any:
    """What the output held, where the condition holds, and else what changes no sum, maximum or minimum."""
    import numpy

    if accumulate is True:
        return held
    limits = None
    if numpy.issubdtype(held.dtype, numpy.integer):
        limits = int(numpy.iinfo(held.dtype).min), int(numpy.iinfo(held.dtype).max)
    return numpy.where(accumulate, held, _neutral(formula.joins_by, limits)).astype(held.dtype)


def neutral(by: str, dtype: DType) -> int | float:
    """What changes no sum, no maximum, no minimum or no product of elements of a type."""
    return _neutral(by, dtype.limits if dtype.kind == "int" else None)


def _neutral(by: str, limits: tuple[int, int] | None) -> int | float:
    least, most = (-math.inf, math.inf) if limits is None else limits
    return {"sum": 0, "max": least, "min": most, "prod": 1}[by]


def joining(name: str) -> Any:
    """The function that makes a sum, a maximum, a minimum or a product of two, or of many: `Extreme` says which number is the larger."""
    import numpy

    return {"sum": numpy.add, "max": LARGER, "min": SMALLER, "prod": numpy.multiply}[name]


def _terms(formula: Formula, taken: Mapping[str, Any]) -> Iterator[Any]:
    """The value of the reduction at each point of its dimensions."""
    rank = len(formula.target.dims)
    aligned = _aligned(formula, taken)
    counts = [max(one.shape[rank + place] for one in aligned.values()) for place in range(len(formula.over))]
    for point in itertools.product(*map(range, counts)):
        whole = (slice(None),) * rank
        at = {
            element: one[(*whole, *(index if one.shape[rank + place] > 1 else 0 for place, index in enumerate(point)))]
            for element, one in aligned.items()
        }
        yield _evaluated(formula.value, at)


def _aligned(formula: Formula, values: Mapping[str, Any]) -> dict[Element, Any]:
    """The arrays of the elements with one axis for each dimension of the formula, in its order; axes behind stay."""
    import numpy

    found = {}
    for one in formula.elements:
        array = values[one.tensor]
        for axis, index in enumerate(one.index):
            if not index.plain:
                array = numpy.take(array, index.source(numpy.arange(array.shape[axis])), axis)
        if one.dims != formula.dims:
            order = [one.dims.index(dim) for dim in formula.dims if dim in one.dims]
            array = array.transpose(*order, *range(len(order), array.ndim))
            array = array[tuple(slice(None) if dim in one.dims else None for dim in formula.dims)]
        found[one] = array
    return found


def _evaluated(value: Value | None, elements: Mapping[Element, Any]) -> Any:
    if isinstance(value, Element):
        return elements[value]
    if isinstance(value, Number):
        return value.value
    assert value is not None
    arguments = [_evaluated(argument, elements) for argument in value.arguments]
    return _functions()[value.name, len(arguments)](*arguments)


def number_of(value: Value) -> float:
    """A value made of numbers alone, in float64."""
    import numpy

    with numpy.errstate(all="ignore"):
        return float(_evaluated(_doubled(value), {}))


def _doubled(value: Value) -> Value:
    """The value with numbers as float64, which may be infinite."""
    import numpy

    if isinstance(value, Number):
        return Number(numpy.float64(value.value))
    return value if isinstance(value, Element) else Operation(value.name, tuple(map(_doubled, value.arguments)))


@attrs.frozen
class _Evaluation:
    """A value as threads compute it, from the arrays of its elements: floats in one type, integers exactly.

    That type is `made_in` where it is given, also for what conditions compare, where there are no `types` of tensors to tell. `ranges` are
    those of tensors of integers. What is rounded `once` is made of sums that are rounded with their result.
    """

    elements: Mapping[Element, Any]
    ranges: Mapping[str, Range]
    types: Mapping[str, DType] | None
    made_in: DType | None = None
    once: bool = False

    def result(self, value: Value | None, result: DType) -> Any:
        """The value, which becomes one of a type: an integer, or a float in the type that floats are made in."""
        assert value is not None
        if is_integral(value, self.ranges) and (result.kind == "int" or range_of(value, self.ranges) is not None):
            return self._integer(value)
        return self._float(value, self.made_in or self._wide(value))

    def _wide(self, value: Value) -> DType:
        kind = float64 if self.types is None else computing_of(value, self.types)
        return kind if kind.kind == "float" else float32

    def _integer(self, value: Value) -> Any:
        """An integer: exact where 64 bits hold it, else its lower 64 bits, where nothing but lower bits is asked for."""
        import numpy

        if isinstance(value, Number):
            return _constant(value)
        if isinstance(value, Element):
            return numpy.asarray(self.elements[value]).astype(numpy.int64)
        if value.name == "where":
            return numpy.where(self._condition(value.arguments[0]), *map(self._integer, value.arguments[1:]))
        assert value.name in WRAPPING or range_of(value, self.ranges) is not None, "refused where a kernel is asked for"
        return _functions()[value.name, len(value.arguments)](*map(self._integer, value.arguments))

    def _float(self, value: Value, wide: DType) -> Any:
        """A value in a type of floats; integers in it are converted once."""
        import numpy

        if isinstance(value, Operation) and range_of(value, self.ranges) is not None:
            return convert(numpy.asarray(self._integer(value)), wide)
        if isinstance(value, Element):
            return convert(numpy.asarray(self.elements[value]), wide)
        if isinstance(value, Number):
            return wide.to_numpy().type(value.value)
        if value.name == "where":
            return numpy.where(self._condition(value.arguments[0]), *(self._float(one, wide) for one in value.arguments[1:]))
        functions = _rounded_to_odd() if self.once else _functions()
        return functions[value.name, len(value.arguments)](*(self._float(one, wide) for one in value.arguments))

    def _condition(self, value: Value) -> Any:
        """Whether a condition holds: what it compares is computed in a type of its own."""
        assert isinstance(value, Operation)
        if value.name in ("and", "or"):
            return _functions()[value.name, 2](*map(self._condition, value.arguments))
        sides = sides_of(value, self.ranges)
        if all(range_of(one, self.ranges) is not None for one in sides):
            return _functions()[value.name, 2](*map(self._integer, sides))
        wide = (self.made_in if not self.once else None) or self._wide(Operation("+", sides))
        return _functions()[value.name, 2](*(self._float(one, wide) for one in sides))


@functools.cache
def _functions() -> Mapping[tuple[str, int], Callable[..., Any]]:
    import numpy

    return {
        ("+", 2): numpy.add, ("-", 2): numpy.subtract, ("*", 2): numpy.multiply, ("/", 2): numpy.divide, ("-", 1): numpy.negative,
        ("abs", 1): numpy.abs, ("exp", 1): numpy.exp, ("exp2", 1): exp2, ("log", 1): numpy.log, ("log2", 1): numpy.log2,
        ("max", 2): LARGER, ("min", 2): SMALLER, ("sqrt", 1): numpy.sqrt, ("tanh", 1): numpy.tanh,
        ("tanh_approx", 1): numpy.tanh,
        ("relu", 1): lambda x: LARGER(x, 0), ("rsqrt", 1): lambda x: 1 / numpy.sqrt(x), ("erf", 1): _erf,
        ("sigmoid", 1): lambda x: 1 / (1 + numpy.exp(-x)), ("silu", 1): lambda x: x / (1 + numpy.exp(-x)),
        ("gelu", 1): lambda x: 0.5 * x * (1 + _erf(x * math.sqrt(0.5))), ("where", 3): numpy.where,
        ("<", 2): numpy.less, ("<=", 2): numpy.less_equal, (">", 2): numpy.greater, (">=", 2): numpy.greater_equal,
        ("==", 2): numpy.equal, ("!=", 2): numpy.not_equal, ("and", 2): numpy.logical_and, ("or", 2): numpy.logical_or,
    }  # fmt: skip


@functools.cache
def _rounded_to_odd() -> Mapping[tuple[str, int], Callable[..., Any]]:
    """The same in float64, of which a sum is rounded once with the 16-bit result that it becomes."""

    def less(left: Any, right: Any) -> Any:
        return added(left, -right)

    return {**_functions(), ("+", 2): added, ("-", 2): less}


def _erf(values: Any) -> Any:
    """The error function, which NumPy has not."""
    import numpy

    made = numpy.frompyfunc(math.erf, 1, 1)(values)
    return numpy.asarray(made, numpy.asarray(values).dtype)
