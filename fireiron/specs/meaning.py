"""Evaluate formulas with NumPy: whole tensors in float64, or the elements of one statement in their own types.

Two rules define how a kernel rounds. A sum of products is a chain of multiply-adds, each rounded to the type of the result (for a 16-bit
type, once, after product and sum). Any other sum is computed in the type of its terms (float32 for 16-bit floats) and converted once.
Both add in the order of the reduction dimensions. Elementwise work is computed in one type (`computing`) and converted once. Functions such
as exp are those of NumPy. Results of a kernel may differ from them: threads compute functions within the error bounds of the CUDA Math API,
and may contract a product and a sum to one rounding.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from fireiron.frozen import frozen
from fireiron.specs.arithmetic import LARGER, SMALLER, added, convert, exp2
from fireiron.specs.bits import INTEGER_ONLY, OF_INTEGERS, RANDOM, TO_INTEGER, Range
from fireiron.specs.formula import Element, Formula, Number, Operation, Value, elements_of
from fireiron.specs.integers import INTEGRAL, WRAPPING, accumulator_type, is_integral, range_of, sides_of, with_whole_numbers
from fireiron.specs.philox import philox, uniform
from fireiron.specs.small_floats import DECODERS
from fireiron.values.machine import DType, float32, float64, int32, tf32

FULL_COUNTER: Final = 5
"""The number of arguments of `philox` without the number of a word: a seed, and the words of the counter."""

_TF32_BITS: Final = 0xFFFFE000
"""The upper 19 bits of a float32."""


def multiplied(values: Any, dtype: DType) -> Any:
    """Return values as a matrix instruction reads them: the upper 19 bits of tf32, and all bits of other types."""
    import numpy

    if dtype != tf32:
        return values
    return (numpy.ascontiguousarray(values, numpy.float32).view(numpy.uint32) & numpy.uint32(_TF32_BITS)).view(numpy.float32)


# ---------------------------------------------------------------------------------------------- whole tensors


def reference(formula: Formula, inputs: Mapping[str, Any], types: Mapping[str, DType], sizes: Mapping[str, int]) -> Any:
    """Compute the result in float64 (int64 for integers) and round it once to its type. The previous value of the output counts as zero."""
    import numpy

    result = types[formula.output]
    shape = tuple(sizes[dim] for dim in formula.target.dims)
    arrays = {element.tensor: numpy.asarray(inputs[element.tensor]) for element in formula.elements}
    if formula.scan is not None:
        exact = numpy.float64 if any(types[name].kind == "float" for name in arrays) else numpy.int64
        elements = _aligned(formula, {name: array.astype(exact) for name, array in arrays.items()})
        return convert(_scanned(formula, [numpy.broadcast_to(_evaluated(value, elements), shape) for value in formula.scanned]), result)
    if isinstance(formula.value, (Element, Number)) and formula.reduction is None:
        return _elementwise(formula, arrays, types, shape)
    if formula.reduction is None:
        return _elementwise(formula, arrays, types, shape, compute_type=float64)
    first = [result] if formula.is_product_sum else [types[name] for name in arrays]
    wide = numpy.float64 if any(dtype.kind == "float" for dtype in first) else numpy.int64
    factors = {name: _factor(formula, array, types[name]).astype(wide) for name, array in arrays.items()}
    with numpy.errstate(over="ignore", invalid="ignore", divide="ignore"):
        if formula.multiplies:
            left, right = factors.values()
            return convert(left @ right, result)
        if formula.contracts and all(element.plain for element in formula.elements):
            return convert(
                numpy.broadcast_to(_contracted(formula, [factors[element.tensor] for element in formula.elements]), shape), result
            )
        values = _evaluated(formula.value, _aligned(formula, factors))
        axes = tuple(range(len(shape), values.ndim))
        return convert(numpy.broadcast_to(_reduce_axes(formula.reduction, values, axes, result), shape), result)


def _contracted(formula: Formula, factors: Sequence[Any]) -> Any:
    """Compute a sum of products of two elements as a batched matmul, because an array of all products may not fit into memory."""
    import numpy

    target, uses = formula.target.dims, [element.dims for element in formula.elements]
    for place, (dims, other) in enumerate(((uses[0], uses[1]), (uses[1], uses[0]))):
        alone = tuple(axis for axis, dim in enumerate(dims) if dim in formula.over and dim not in other)
        factors = [factor.sum(axis=alone) if number == place else factor for number, factor in enumerate(factors)]
        uses[place] = tuple(dim for dim in dims if dim not in formula.over or dim in other)
    batch = [dim for dim in target if dim in uses[0] and dim in uses[1]]
    own = [[dim for dim in target if dim in dims and dim not in batch] for dims in uses]
    summed = [dim for dim in formula.over if dim in uses[0]]
    orders = ([*batch, *own[0], *summed], [*batch, *summed, *own[1]])
    sizes = {dim: size for dims, factor in zip(uses, factors, strict=True) for dim, size in zip(dims, factor.shape, strict=True)}
    counts = [math.prod(sizes[dim] for dim in dims) for dims in (own[0], summed, own[1])]
    left, right = (factor.transpose([dims.index(dim) for dim in order]) for factor, dims, order in zip(factors, uses, orders, strict=True))
    batch_shape = tuple(sizes[dim] for dim in batch)
    product = numpy.matmul(left.reshape(*batch_shape, *counts[:2]), right.reshape(*batch_shape, *counts[1:]))
    result_dims = [*batch, *own[0], *own[1]]
    product = product.reshape([sizes[dim] for dim in result_dims])
    transposed = product.transpose([result_dims.index(dim) for dim in target if dim in result_dims])
    return transposed[tuple(slice(None) if dim in result_dims else None for dim in target)]


def evaluated(
    formula: Formula, operands: Mapping[Element, Any], dropped: tuple[str, ...], ranges: Mapping[str, Range], result: DType = float64
) -> Any:
    """Compute the result of a step in float64 from the arrays of its elements, without the previous value of the output.

    The arrays have size one along the dimensions in `dropped`. Tensors with `ranges` hold integers. These are computed exactly, or, if the
    type `result` keeps only low bits, as many low bits. The result has the dimensions of the target, with size one along those that no
    element has.
    """

    by_element = aligned(formula, operands, dropped)
    if formula.scan is not None:
        import numpy

        evaluation = _Evaluation(by_element, ranges, None, float64)
        return _scanned(formula, numpy.broadcast_arrays(*(evaluation.result(value, result) for value in formula.scanned)))
    if formula.contracts:
        return summed(formula, by_element)
    if formula.reduction is None:
        return _Evaluation(by_element, ranges, None, float64).result(formula.value, result)
    axes = tuple(range(len(formula.target.dims), len(formula.dims)))
    return _reduce_axes(formula.reduction, _evaluated(formula.value, by_element), axes, result)


def _scanned(formula: Formula, values: Sequence[Any]) -> Any:
    """Combine values along a dimension, up to and including each, in the type of the values; a recurrence has factors and values."""
    import numpy

    axis = formula.target.dims.index(formula.along[0])
    *factors, rows = (numpy.moveaxis(numpy.asarray(value), axis, 0) for value in values)
    combined = recurrence(factors[0], rows) if factors else itertools.accumulate(rows, combining_function(formula.combiner))
    return numpy.moveaxis(numpy.stack([*combined]) if len(rows) else rows, 0, axis)


def recurrence(factors: Any, values: Any) -> Iterator[Any]:
    """Yield h[n] = factors[n] * h[n - 1] + values[n], with h = 0 before the first element, along the first axis."""
    state = 0
    for factor, value in zip(factors, values, strict=True):
        state = factor * state + value
        yield state


def _reduce_axes(by: str, values: Any, axes: tuple[int, ...], result: DType) -> Any:
    """Reduce values along axes. Integers are exact, except for a product that needs more than 64 bits, which becomes a float."""
    import numpy

    integers = numpy.issubdtype(values.dtype, numpy.integer)
    if by == "prod" and integers and result.kind == "float" and (abs(values.astype(numpy.float64)).prod(axis=axes) >= 2.0**62).any():
        values = values.astype(numpy.float64)
    return combining_function(by).reduce(values, axis=axes)


def integer_of(value: Value, elements: Mapping[Element, Any], ranges: Mapping[str, Range]) -> Any:
    """An integer, from integer arrays of its elements: exact if 64 bits suffice for these, whatever their `ranges`."""
    import numpy

    with numpy.errstate(over="ignore", divide="ignore", invalid="ignore"):
        return _Evaluation(elements, ranges, None, float64, checked=False).integer(value)


def float_of(value: Value, elements: Mapping[Element, Any], ranges: Mapping[str, Range]) -> Any:
    """A value in float64, from arrays of its elements."""
    import numpy

    with numpy.errstate(over="ignore", divide="ignore", invalid="ignore"):
        return _Evaluation(elements, ranges, None, float64, checked=False).result(value, float64)


def aligned(formula: Formula, operands: Mapping[Element, Any], dropped: tuple[str, ...]) -> dict[Element, Any]:
    """Return the arrays with one axis per dimension of the formula, in its order, and size one along dimensions in `dropped`."""
    arrays = {}
    for element, array in operands.items():
        array = array.reshape([size for dim, size in zip(element.dims, array.shape, strict=True) if dim not in dropped])
        dims = [dim for dim in element.dims if dim not in dropped]
        array = array.transpose([dims.index(dim) for dim in formula.dims if dim in dims])
        arrays[element] = array[tuple(slice(None) if dim in dims else None for dim in formula.dims)]
    return arrays


def value_of(name: str, *arguments: Any) -> Any:
    """Apply an operation or function of formulas to values of any type."""
    return _functions()[name, len(arguments)](*arguments)


def summed(formula: Formula, aligned: Mapping[Element, Any]) -> Any:
    """Compute a sum of products of two elements. Their arrays have one axis per dimension of the formula."""
    import numpy

    letters = {dim: chr(ord("a") + place) for place, dim in enumerate(formula.dims)}
    factors = list(elements_of(formula.value))
    names, arrays = [], []
    for element in factors:
        axes = [axis for axis, dim in enumerate(formula.dims) if dim not in element.dims]
        arrays.append(numpy.asarray(aligned[element]).squeeze(tuple(axes)))
        names.append("".join(letters[dim] for dim in formula.dims if dim in element.dims))
    result = "".join(letters[dim] for dim in formula.target.dims if any(dim in element.dims for element in factors))
    integers = all(numpy.issubdtype(array.dtype, numpy.integer) for array in arrays)
    count = math.prod(max(array.shape[formula.dims.index(dim)] for array in aligned.values()) for dim in formula.over)
    if not integers or _exact_in_float(arrays, count):  # BLAS multiplies floats
        arrays = [array.astype(numpy.float64, copy=False) for array in arrays]
    result_array = numpy.einsum(f"{','.join(names)}->{result}", *arrays, optimize=True)
    result_array = result_array.astype(numpy.int64) if integers else result_array
    missing = [axis for axis, dim in enumerate(formula.target.dims) if letters[dim] not in result]
    return numpy.expand_dims(result_array, tuple(missing))


def _exact_in_float(factors: Sequence[Any], count: int) -> bool:
    """Whether sums of `count` products of integers are exact in float64."""
    largest = [int(abs(factor).max(initial=0)) for factor in factors]
    return math.prod(largest) * count <= 1 << 53


# ---------------------------------------------------------------------------------------------- the elements of a statement


def perform(
    formula: Formula,
    values: Mapping[str, Any],
    types: Mapping[str, DType],
    accumulate: Any,
    compute_type: DType | None = None,
    ranges: Mapping[str, Range] | None = None,
) -> Any:
    """Return the new values of the output. The arrays have the dimensions of their element first, then any further axes.

    If `compute_type` is given, elementwise work is computed in that type; in float64, its sums are rounded only once, with the result.
    `ranges` are those of tensors of integers, if they are narrower than their types.
    """
    accumulate = accumulate if formula.accumulates else False
    if formula.scan is not None:
        wide = {one.tensor: values[one.tensor].astype(_wide(types[one.tensor]), copy=False) for one in formula.elements}
        elements = _aligned(formula, wide)
        return convert(_scanned(formula, [_evaluated(value, elements) for value in formula.scanned]), types[formula.output])
    if formula.reduction is not None:
        return _reduced(formula, values, types, accumulate)
    shape = values[formula.output].shape if formula.output in values else None
    result = _elementwise(formula, values, types, shape, compute_type, ranges, once=compute_type == float64)
    if accumulate is False or not formula.accumulates:
        return result
    old, dtype = _previous(formula, values[formula.output], accumulate), types[formula.output]
    if dtype.kind == "float" and dtype.bits == 8:
        return convert(combining_function(formula.combiner)(convert(old, float32), convert(result, float32)), dtype)
    return combining_function(formula.combiner)(old, result)


def computing(formula: Formula, types: Mapping[str, DType]) -> DType:
    """The type in which threads compute elementwise work: float64 if an input has it, int32 if all are integers, otherwise float32.

    Integers may need more bits, or fewer: see `fireiron.specs.integers`.
    """
    return computing_of(formula.value, types)


def computing_of(value: Value | None, types: Mapping[str, DType]) -> DType:
    """Return the type in which a value is computed. A comparison has its own type, so its operands do not count."""
    read = [types[element.tensor] for element in _float_elements(value)]
    if float64 in read:
        return float64
    return float32 if any(dtype.kind == "float" for dtype in read) or _is_real(value) else int32


def _float_elements(value: Value | None) -> Iterator[Element]:
    """The elements that determine the type of a computation: not those of conditions, nor of functions whose results are integers."""
    if isinstance(value, Element):
        yield value
    elif isinstance(value, Operation) and value.name not in TO_INTEGER:
        for argument in value.arguments[value.name == "where" :]:
            yield from _float_elements(argument)


def _is_real(value: Value | None) -> bool:
    """Whether a value of integers may be a fraction."""
    if isinstance(value, Number):
        return isinstance(value.value, float)
    if not isinstance(value, Operation) or value.name in TO_INTEGER:
        return False
    if value.name == "where":
        return any(map(_is_real, value.arguments[1:]))
    return value.name not in INTEGRAL or any(map(_is_real, value.arguments))


def _elementwise(
    formula: Formula,
    values: Mapping[str, Any],
    types: Mapping[str, DType],
    shape: Any,
    compute_type: DType | None = None,
    ranges: Mapping[str, Range] | None = None,
    once: bool = False,
) -> Any:
    """Compute elementwise work from arrays, in the types of threads, or in `compute_type` if it is given.

    With `once`, sums are rounded only once, with the result.
    """
    import numpy

    result = types[formula.output]
    if isinstance(formula.value, Number):
        number = formula.value if result.kind == "int" or abs(formula.value.value) < 1 << 63 else Number(float(formula.value.value))
        return numpy.full(shape, convert(_constant(number), result))
    with numpy.errstate(over="ignore", invalid="ignore", divide="ignore"):
        aligned = _aligned(formula, values)
        if isinstance(formula.value, Element):
            result_values = aligned[formula.value]
        else:
            result_values = _Evaluation(aligned, {**limits_of(types), **(ranges or {})}, types, compute_type, once).result(
                formula.value, result
            )
        result_values = convert(numpy.asarray(result_values), result)
    every = all(set(element.dims) == set(formula.target.dims) for element in formula.elements)
    return (
        result_values
        if every or shape is None
        else numpy.broadcast_to(result_values, numpy.broadcast_shapes(result_values.shape, tuple(shape)))
    )


def limits_of(types: Mapping[str, DType]) -> dict[str, Range]:
    """The ranges of tensors of integers, according to their types."""
    return {name: dtype.limits for name, dtype in types.items() if dtype.kind == "int"}


def stored(number: Number, dtype: DType) -> int:
    """A constant as an element of an integer type."""
    return int(convert(_constant(number), dtype))


def _constant(number: Number) -> Any:
    """A constant as an array; for integers, the low 64 bits."""
    import numpy

    if isinstance(number.value, int):
        return numpy.asarray(number.value & _ALL_BITS, numpy.uint64).astype(numpy.int64)
    return numpy.asarray(number.value, numpy.float64)


_ALL_BITS: Final = (1 << 64) - 1


def _reduced(formula: Formula, values: Mapping[str, Any], types: Mapping[str, DType], accumulate: Any) -> Any:
    """Reduce terms one after the other, in the order of the reduction dimensions."""
    import numpy

    assert formula.reduction is not None
    result, adds_products = types[formula.output], formula.is_product_sum
    integers = all(types[element.tensor].kind == "int" for element in formula.elements)
    if integers and result.kind == "float" and not adds_products:
        return _integers_to_float(formula, values, types, accumulate)
    wide = _wide(result if adds_products else types[formula.elements[0].tensor])
    once = formula.contracts and wide != result.to_numpy() and result.kind == "float"  # HFMA2 chain: products are exact in float64
    if once:
        wide = numpy.float64
    old = values[formula.output].astype(wide, copy=False)
    factors = {
        element.tensor: _factor(formula, values[element.tensor], types[element.tensor]).astype(wide, copy=False)
        for element in formula.elements
    }
    rounds = adds_products and numpy.dtype(wide) != numpy.dtype(result.to_numpy())
    total = _previous(formula, old, accumulate) if adds_products or accumulate is not False else None
    with numpy.errstate(over="ignore", invalid="ignore", divide="ignore"):
        for term in _terms(formula, factors):
            total = term if total is None else added(total, term) if once else combining_function(formula.reduction)(total, term)
            if rounds:
                total = convert(total, result).astype(wide)
    return convert(total, result)


def _integers_to_float(formula: Formula, values: Mapping[str, Any], types: Mapping[str, DType], accumulate: Any) -> Any:
    """Reduce integers to a float: exactly if 64 bits suffice. The result is converted and then combined with the previous value."""
    import numpy

    result, by = types[formula.output], formula.combiner
    wide = _wide(result)
    integers_by_name = {element.tensor: values[element.tensor].astype(numpy.int64) for element in formula.elements}
    terms = list(_terms(formula, integers_by_name))
    exact = accumulator_type(by, types[formula.elements[0].tensor], len(terms)) is not None
    total = functools.reduce(combining_function(by), terms if exact else [term.astype(wide) for term in terms])
    total = convert(total, result).astype(wide)
    if accumulate is not False:
        total = combining_function(by)(_previous(formula, values[formula.output].astype(wide, copy=False), accumulate), total)
    return convert(total, result)


def _wide(dtype: DType) -> Any:
    """The type in which elements are added: float32 for 16-bit and 8-bit floats, int32 for 8-bit integers."""
    import numpy

    small = dtype.bits < 32
    return dtype.to_numpy() if not small else numpy.float32 if dtype.kind == "float" else numpy.int32


def _factor(formula: Formula, values: Any, dtype: DType) -> Any:
    """Return an operand as a formula reads it. A sum of products reads it as a matrix instruction does."""
    return multiplied(values, dtype) if formula.is_product_sum else values


def _previous(formula: Formula, present: Any, accumulate: Any) -> Any:
    """Return the previous value of the output if the condition `accumulate` holds, otherwise the neutral element of the reduction."""
    import numpy

    if accumulate is True:
        return present
    limits = None
    if numpy.issubdtype(present.dtype, numpy.integer):
        limits = int(numpy.iinfo(present.dtype).min), int(numpy.iinfo(present.dtype).max)
    return numpy.where(accumulate, present, _neutral(formula.combiner, limits)).astype(present.dtype)


def neutral(by: str, dtype: DType) -> int | float:
    """The neutral element of a sum, maximum, minimum or product of a type."""
    return _neutral(by, dtype.limits if dtype.kind == "int" else None)


def _neutral(by: str, limits: tuple[int, int] | None) -> int | float:
    least, most = (-math.inf, math.inf) if limits is None else limits
    return {"sum": 0, "max": least, "min": most, "prod": 1}[by]


def combining_function(name: str) -> Any:
    """The NumPy function of a reduction; `Extreme` defines maximum and minimum."""
    import numpy

    return {"sum": numpy.add, "max": LARGER, "min": SMALLER, "prod": numpy.multiply}[name]


def _terms(formula: Formula, factors: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the reduced value at each point of the reduction dimensions."""
    rank = len(formula.target.dims)
    aligned = _aligned(formula, factors)
    counts = [max(array.shape[rank + place] for array in aligned.values()) for place in range(len(formula.over))]
    for point in itertools.product(*map(range, counts)):
        whole = (slice(None),) * rank
        at = {
            element: array[(*whole, *(index if array.shape[rank + place] > 1 else 0 for place, index in enumerate(point)))]
            for element, array in aligned.items()
        }
        yield _evaluated(formula.value, at)


def _aligned(formula: Formula, values: Mapping[str, Any]) -> dict[Element, Any]:
    """The arrays of the elements with one axis per dimension of the formula, in its order; further axes stay last."""
    import numpy

    arrays = {}
    for element in formula.elements:
        array = values[element.tensor]
        for axis, index in enumerate(element.index):
            if not index.plain:
                array = numpy.take(array, index.source(numpy.arange(array.shape[axis])), axis)
        if element.dims != formula.dims:
            order = [element.dims.index(dim) for dim in formula.dims if dim in element.dims]
            array = array.transpose(*order, *range(len(order), array.ndim))
            array = array[tuple(slice(None) if dim in element.dims else None for dim in formula.dims)]
        arrays[element] = array
    return arrays


def _evaluated(value: Value | None, elements: Mapping[Element, Any]) -> Any:
    if isinstance(value, Element):
        return elements[value]
    if isinstance(value, Number):
        return value.value
    assert value is not None
    arguments = [_evaluated(argument, elements) for argument in value.arguments]
    return _functions()[value.name, len(arguments)](*arguments)


def number_of(value: Value) -> float:
    """The value of an expression of numbers, in float64; NaN for an operator of integers on fractions."""
    import numpy

    if not isinstance(value, Operation) or value.name not in (*OF_INTEGERS, *TO_INTEGER):
        with numpy.errstate(all="ignore"):
            return float(_evaluated(_with_float64(value), {}))
    whole = Operation(value.name, tuple(with_whole_numbers(Number(number_of(argument))) for argument in value.arguments))
    if value.name in OF_INTEGERS and not all(is_integral(argument, {}) for argument in whole.arguments):
        return math.nan
    if value.name in INTEGER_ONLY:  # exact, also if the result needs more than 64 bits, of which the formula then uses the low ones
        return float(_functions()[value.name, len(whole.arguments)](*(numpy.array(int(number_of(one)), object) for one in value.arguments)))
    return float(_Evaluation({}, {}, None, float64, checked=False).result(whole, float64))


def _with_float64(value: Value) -> Value:
    """A value with its numbers as float64, which may be infinite."""
    import numpy

    if isinstance(value, Number):
        return Number(numpy.float64(value.value))
    return value if isinstance(value, Element) else Operation(value.name, tuple(map(_with_float64, value.arguments)))


@frozen
class _Evaluation:
    """Evaluates a value as threads compute it, from the arrays of its elements: floats in one type, integers exactly.

    That type is `compute_type` if it is given; if the `types` of tensors are not known, operands of comparisons have it, too. `ranges` are
    those of tensors of integers. With `once`, sums are rounded only once, with the result. `checked` values fit 64 bits, or only their low
    bits are used.
    """

    elements: Mapping[Element, Any]
    ranges: Mapping[str, Range]
    types: Mapping[str, DType] | None
    compute_type: DType | None = None
    once: bool = False
    checked: bool = True

    def result(self, value: Value | None, result: DType) -> Any:
        """Return the value for a result of type `result`: an integer, or a float in the type of the computation."""
        assert value is not None
        if is_integral(value, self.ranges) and (result.kind == "int" or range_of(value, self.ranges) is not None):
            return self.integer(value)
        return self._float(value, self.compute_type or self._wide(value))

    def _wide(self, value: Value) -> DType:
        kind = float64 if self.types is None else computing_of(value, self.types)
        return kind if kind.kind == "float" else float32

    def integer(self, value: Value) -> Any:
        """Return an integer: exact if 64 bits suffice, otherwise its low 64 bits."""
        import numpy

        if isinstance(value, Number):
            return _constant(value)
        if isinstance(value, Element):
            return numpy.asarray(self.elements[value]).astype(numpy.int64)
        if value.name == "where":
            return numpy.where(self._condition(value.arguments[0]), *map(self.integer, value.arguments[1:]))
        if value.name in TO_INTEGER:
            return self._converted(value)
        if value.name in ("floor", "round"):
            return self.integer(value.arguments[0])
        fits = value.name in WRAPPING or range_of(value, self.ranges) is not None
        assert fits or not self.checked, "refused when the kernel is requested"
        return _functions()[value.name, len(value.arguments)](*map(self.integer, value.arguments))

    def _converted(self, value: Operation) -> Any:
        """One of `TO_INTEGER`."""
        import numpy

        (first, *_) = value.arguments
        if value.name in RANDOM:
            return self._random(value)
        if value.name == "mulhi":
            factors = list(map(self.integer, value.arguments))
            wide = numpy.uint64 if any((factor > int32.limits[1]).any() for factor in factors) else numpy.int64
            return (factors[0].astype(wide) * factors[1].astype(wide) >> wide(32)).astype(numpy.int64)
        if value.name == "int32" and is_integral(first, self.ranges):
            return numpy.asarray(self.integer(first)).astype(numpy.int32).astype(numpy.int64)
        number = self._float(first, self.compute_type or self._wide(first))
        if value.name == "int32":
            return convert(numpy.asarray(number), int32).astype(numpy.int64)
        return numpy.asarray(convert(numpy.asarray(number), float32)).view(numpy.uint32).astype(numpy.int64)

    def _random(self, value: Operation) -> Any:
        seed, *counter = map(self.integer, value.arguments)
        word = counter.pop() if len(value.arguments) > FULL_COUNTER else 0
        return (philox if value.name == "philox" else uniform)(seed, *counter, word=word)

    def _float(self, value: Value, wide: DType) -> Any:
        """Return a value in the float type `wide`; an integer in it is converted once."""
        import numpy

        if isinstance(value, Operation) and range_of(value, self.ranges) is not None:
            return convert(numpy.asarray(self.integer(value)), wide)
        if isinstance(value, Element):
            return convert(numpy.asarray(self.elements[value]), wide)
        if isinstance(value, Number):
            return wide.to_numpy().type(value.value)
        if value.name == "where":
            return numpy.where(self._condition(value.arguments[0]), *(self._float(argument, wide) for argument in value.arguments[1:]))
        if value.name == "uniform":
            return convert(self._random(value), wide)
        if value.name in DECODERS:
            return convert(DECODERS[value.name](self.integer(value.arguments[0])), wide)
        if value.name == "from_bits":
            pattern = numpy.asarray(self.integer(value.arguments[0])).astype(numpy.uint32)
            return convert(pattern.view(numpy.float32), wide)
        functions = _rounded_to_odd() if self.once else _functions()
        return functions[value.name, len(value.arguments)](*(self._float(argument, wide) for argument in value.arguments))

    def _condition(self, value: Value) -> Any:
        """Whether a condition holds; each comparison is computed in its own type."""
        assert isinstance(value, Operation)
        if value.name in ("and", "or"):
            return _functions()[value.name, 2](*map(self._condition, value.arguments))
        sides = sides_of(value, self.ranges)
        if all(range_of(side, self.ranges) is not None for side in sides):
            return _functions()[value.name, 2](*map(self.integer, sides))
        wide = (self.compute_type if not self.once else None) or self._wide(Operation("+", sides))
        return _functions()[value.name, 2](*(self._float(side, wide) for side in sides))


@functools.cache
def _functions() -> Mapping[tuple[str, int], Callable[..., Any]]:
    import numpy

    return {
        ("+", 2): numpy.add, ("-", 2): numpy.subtract, ("*", 2): numpy.multiply, ("/", 2): numpy.divide, ("-", 1): numpy.negative,
        ("abs", 1): numpy.abs, ("exp", 1): numpy.exp, ("exp2", 1): exp2, ("log", 1): numpy.log, ("log2", 1): numpy.log2,
        ("log1p", 1): numpy.log1p, ("max", 2): LARGER, ("min", 2): SMALLER, ("sqrt", 1): numpy.sqrt, ("tanh", 1): numpy.tanh,
        ("tanh_approx", 1): numpy.tanh,
        ("relu", 1): lambda x: LARGER(x, 0), ("rsqrt", 1): lambda x: 1 / numpy.sqrt(x), ("erf", 1): _erf,
        ("sigmoid", 1): lambda x: 1 / (1 + numpy.exp(-x)), ("silu", 1): lambda x: x / (1 + numpy.exp(-x)),
        ("gelu", 1): lambda x: 0.5 * x * (1 + _erf(x * math.sqrt(0.5))), ("where", 3): numpy.where,
        ("<", 2): numpy.less, ("<=", 2): numpy.less_equal, (">", 2): numpy.greater, (">=", 2): numpy.greater_equal,
        ("floor", 1): numpy.floor, ("round", 1): numpy.rint, ("sin", 1): numpy.sin, ("cos", 1): numpy.cos,
        ("clamp", 3): lambda x, low, high: SMALLER(LARGER(x, low), high),
        ("//", 2): numpy.floor_divide, ("%", 2): numpy.mod, ("<<", 2): numpy.left_shift, (">>", 2): numpy.right_shift,
        ("&", 2): numpy.bitwise_and, ("|", 2): numpy.bitwise_or, ("^", 2): numpy.bitwise_xor, ("~", 1): numpy.invert,
        ("==", 2): numpy.equal, ("!=", 2): numpy.not_equal, ("and", 2): numpy.logical_and, ("or", 2): numpy.logical_or,
    }  # fmt: skip


@functools.cache
def _rounded_to_odd() -> Mapping[tuple[str, int], Callable[..., Any]]:
    """The same functions in float64, with sums rounded to odd, so that the conversion to a 16-bit result is the only rounding."""

    def less(left: Any, right: Any) -> Any:
        return added(left, -right)

    return {**_functions(), ("+", 2): added, ("-", 2): less}


def _erf(values: Any) -> Any:
    """The error function, which NumPy does not have."""
    import numpy

    erf_values = numpy.frompyfunc(math.erf, 1, 1)(values)
    return numpy.asarray(erf_values, numpy.asarray(values).dtype)
