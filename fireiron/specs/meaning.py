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

from fireiron.specs.arithmetic import LARGER, SMALLER, added, convert, exp2
from fireiron.specs.formula import Element, Formula, Number, Operation, Value, elements_of
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
        return _elementwise(formula, arrays, result, shape)
    first = [result] if formula.is_product_sum else [types[name] for name in arrays]
    wide = numpy.float64 if any(one.kind == "float" for one in first) else numpy.int64
    taken = {name: _factor(formula, one, types[name]).astype(wide) for name, one in arrays.items()}
    if formula.reduction is None:
        return _elementwise(formula, taken, result, shape)
    with numpy.errstate(over="ignore", invalid="ignore", divide="ignore"):
        if formula.multiplies:
            left, right = taken.values()
            return convert(left @ right, result)
        if formula.contracts and all(one.plain for one in formula.elements):
            return convert(numpy.broadcast_to(_contracted(formula, [taken[one.tensor] for one in formula.elements]), shape), result)
        values = _evaluated(formula.value, _aligned(formula, taken))
        axes = tuple(range(len(shape), values.ndim))
        return convert(numpy.broadcast_to(joining(formula.reduction).reduce(values, axis=axes), shape), result)


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


def evaluated(formula: Formula, taken: Mapping[Element, Any], dropped: tuple[str, ...]) -> Any:
    """What a step of several computes in float64, from its elements; of a dimension that is `dropped` they have one element.

    What is added to does not count. The result has the dimensions of the target, or one element along those that nothing read has.
    """

    lined = aligned(formula, taken, dropped)
    if formula.contracts:
        return summed(formula, lined)
    values = _evaluated(formula.value, lined)
    if formula.reduction is None:
        return values
    axes = tuple(range(len(formula.target.dims), len(formula.dims)))
    return joining(formula.reduction).reduce(values, axis=axes)


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
        arrays.append(aligned[one].squeeze(tuple(axes)))
        names.append("".join(letters[dim] for dim in formula.dims if dim in one.dims))
    result = "".join(letters[dim] for dim in formula.target.dims if any(dim in one.dims for one in factors))
    made = numpy.einsum(f"{','.join(names)}->{result}", *arrays, optimize=True)
    missing = [axis for axis, dim in enumerate(formula.target.dims) if letters[dim] not in result]
    return numpy.expand_dims(made, tuple(missing))


# ---------------------------------------------------------------------------------------------- the elements of a statement


def perform(formula: Formula, values: Mapping[str, Any], types: Mapping[str, DType], accumulate: Any, made_in: DType | None = None) -> Any:
    """New values of the output, from arrays with the operand's element dimensions first and any axes behind.

    Work on each element of its own is made in the type `made_in` where one is given; in float64 its sums are rounded with the result, once.
    """
    accumulate = accumulate if formula.joins else False
    if formula.reduction is not None:
        return _reduced(formula, values, types, accumulate)
    shape = values[formula.output].shape if formula.output in values else None
    made = _elementwise(formula, values, types[formula.output], shape, types if isinstance(formula.value, Operation) else None, made_in)
    if accumulate is False or not formula.joins:
        return made
    return joining(formula.joins_by)(_old(formula, values[formula.output], accumulate), made)


def computing(formula: Formula, types: Mapping[str, DType]) -> DType:
    """The type in which threads compute each element of its own: float64 where an input is, int32 where all is integral, else float32."""
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
    return value.name not in _INTEGRAL or any(map(_is_real, value.arguments))


_INTEGRAL: Final = ("+", "-", "*", "abs", "max", "min", "relu")
"""Operations whose results of integers are integers."""


def _elementwise(
    formula: Formula,
    values: Mapping[str, Any],
    result: DType,
    shape: Any,
    types: Mapping[str, DType] | None = None,
    made_in: DType | None = None,
) -> Any:
    """The result from the elements as they are, or, by their `types`, as threads compute it."""
    import numpy

    if isinstance(formula.value, Number):
        return numpy.full(shape, formula.value.value, result.to_numpy())
    with numpy.errstate(over="ignore", invalid="ignore", divide="ignore"):
        aligned = _aligned(formula, values)
        made = _evaluated(formula.value, aligned) if types is None else _computed(formula.value, aligned, types, made_in)
        made = convert(made, result)
    every = all(set(one.dims) == set(formula.target.dims) for one in formula.elements)
    return made if every or shape is None else numpy.broadcast_to(made, numpy.broadcast_shapes(made.shape, tuple(shape)))


def _reduced(formula: Formula, values: Mapping[str, Any], types: Mapping[str, DType], accumulate: Any) -> Any:
    """Terms one after the other, in the order of the dimensions that are reduced."""
    import numpy

    assert formula.reduction is not None
    result, chained = types[formula.output], formula.is_product_sum
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


def _computed(value: Value | None, elements: Mapping[Element, Any], types: Mapping[str, DType], made_in: DType | None = None) -> Any:
    """A value as threads compute it: all in one type, that of its elements or `made_in`, but for what a condition compares."""
    import numpy

    wide = made_in or computing_of(value, types)
    functions = _functions() if made_in != float64 else _rounded_to_odd()

    def made(part: Value | None) -> Any:
        if isinstance(part, Element):
            return convert(elements[part], wide)
        if isinstance(part, Number):
            return part.value if wide.kind != "float" else wide.to_numpy().type(part.value)
        assert part is not None
        if part.name == "where":
            return numpy.where(condition(part.arguments[0]), *map(made, part.arguments[1:]))
        return functions[part.name, len(part.arguments)](*map(made, part.arguments))

    def condition(part: Value) -> Any:
        assert isinstance(part, Operation)
        if part.name in ("and", "or"):
            return _functions()[part.name, 2](*map(condition, part.arguments))
        kind = computing_of(Operation("+", part.arguments), types)
        sides = (_computed(one, elements, types) for one in part.arguments)
        return _functions()[part.name, 2](*(convert(numpy.asarray(one), kind) for one in sides))

    return made(value)


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
