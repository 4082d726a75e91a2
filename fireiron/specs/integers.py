"""Integers in formulas: which values are integers, between which numbers they lie, and how many bits hold them.

Coordinates, extents, whole constants and elements of int8, uint8 and int32 are integers, and so are sums, differences, products, negatives,
absolute values, maxima, minima and choices of integers. They are exact: nothing wraps around on the way. What they become decides the rest:

- a comparison of integers is exact;
- a result in an integer type keeps the lower bits of the exact integer, as a conversion in C and `astype` in NumPy do;
- where an integer meets a float it is converted, once, to the type of the float.

So 32 bits are enough where the ranges say so, and where only lower bits are kept; else 64 bits are used. An integer that may need more is
made in float where it becomes one, and refused elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from fireiron.errors import ArgumentError
from fireiron.specs.formula import COMPARISONS, CONDITIONS, Element, Formula, Number, Operation, Value, elements_of
from fireiron.values.machine import DType, int32

Range = tuple[int, int]
"""The least and the largest of some integers."""

INTEGRAL: Final = ("+", "-", "*", "abs", "max", "min", "relu")
"""Operations whose results of integers are integers."""

WRAPPING: Final = ("+", "-", "*")
"""Operations whose lower bits follow from the lower bits of their arguments."""

int64: Final = DType("int64", 64, "int", "long long", "int64")
"""What integers of formulas are computed in where 32 bits could overflow; no array has it."""

uint32: Final = DType("uint32", 32, "int", "unsigned int", "uint32")
"""What the lower bits of integers are computed in where 32 bits could overflow; no array has it."""


def fits(span: Range, dtype: DType) -> bool:
    """Whether a type holds all integers of a range."""
    least, most = dtype.limits
    return least <= span[0] and span[1] <= most


def is_integral(value: Value, ranges: Mapping[str, Range]) -> bool:
    """Whether a value is an integer, of tensors of which those with a range hold integers."""
    if isinstance(value, Number):
        return isinstance(value.value, int)
    if isinstance(value, Element):
        return value.tensor in ranges
    arguments = value.arguments[1:] if value.name == "where" else value.arguments
    return (value.name == "where" or value.name in INTEGRAL) and all(is_integral(one, ranges) for one in arguments)


def range_of(value: Value, ranges: Mapping[str, Range]) -> Range | None:
    """Between which numbers an integer lies; None for what is no integer, or may need more than 64 bits on the way."""
    if isinstance(value, Number):
        span = (value.value, value.value) if isinstance(value.value, int) else None
    elif isinstance(value, Element):
        span = ranges.get(value.tensor)
    else:
        span = _range_of_operation(value, ranges)
    return span if span is not None and fits(span, int64) else None


def _range_of_operation(value: Operation, ranges: Mapping[str, Range]) -> Range | None:
    if value.name != "where" and value.name not in INTEGRAL:
        return None
    spans = []
    for one in value.arguments[1:] if value.name == "where" else value.arguments:
        span = range_of(one, ranges)
        if span is None:
            return None
        spans.append(span)
    return _applied(value.name, spans)


def _applied(name: str, spans: list[Range]) -> Range:
    """The range of an operation on integers of these ranges."""
    least, most = spans[0]
    if name == "-" and len(spans) == 1:
        return -most, -least
    if name == "abs":
        return max(least, -most, 0), max(-least, most)
    if name == "relu":
        return max(least, 0), max(most, 0)
    other_least, other_most = spans[1]
    match name:
        case "+":
            return least + other_least, most + other_most
        case "-":
            return least - other_most, most - other_least
        case "max":
            return max(least, other_least), max(most, other_most)
        case "min":
            return min(least, other_least), min(most, other_most)
        case "where":
            return min(least, other_least), max(most, other_most)
    products = [one * other for one in (least, most) for other in (other_least, other_most)]
    return min(products), max(products)


def joined_in(by: str, dtype: DType, count: int) -> DType | None:
    """The type that holds the sum, the maximum, the minimum or the product of so many integers of a type; None where 64 bits may not."""
    size = max(map(abs, dtype.limits))
    most = {"sum": size * count, "prod": size**count}.get(by, size)
    return next((kind for kind in (int32, int64) if fits((-most, most), kind)), None)


def sides_of(test: Operation, ranges: Mapping[str, Range]) -> tuple[Value, Value]:
    """The sides of a comparison: of integers, whole numbers that are written as floats, such as 3e9, are integers too."""
    left, right = test.arguments
    whole = tuple(map(_with_whole_numbers, test.arguments))
    return (whole[0], whole[1]) if all(is_integral(one, ranges) for one in whole) else (left, right)


def _with_whole_numbers(value: Value) -> Value:
    if isinstance(value, Number):
        return Number(int(value.value)) if isinstance(value.value, float) and value.value.is_integer() else value
    if isinstance(value, Operation) and value.name not in CONDITIONS:
        return Operation(value.name, tuple(map(_with_whole_numbers, value.arguments)))
    return value


def check_integers(
    formula: Formula, ranges: Mapping[str, Range], bounds: Mapping[str, str], what: str, shown: Callable[[Formula | Value], str] = str
) -> None:
    """Refuse a formula of which an integer may need more than 64 bits, where it neither becomes a float nor is cut off.

    `ranges` are those of the tensors that hold integers; `bounds` are what to write to bound a coordinate or an extent, `shown` is how a
    formula is shown, for the message. A sum of products that is kept as an integer has integers for factors.
    """
    value = formula.value
    if value is None:
        return
    if formula.is_product_sum and formula.output in ranges and _has_fractions(value):
        raise ArgumentError(
            f"{what}: a sum that is kept as an integer has a factor that is none", got=shown(formula),
            legal="factors of integers; or a result in float32", hint="multiply the sum, in a step behind",
        )  # fmt: skip
    if formula.reduction is not None:
        return
    for part in _exact_parts(value, ranges, formula.output in ranges):
        if range_of(part, ranges) is None:
            names = dict.fromkeys(bounds[one.tensor] for one in elements_of(part) if one.tensor in bounds)
            hint = f"bound the sizes: {', '.join(names)}" if names else "a float among its factors: 1.0 * ..."
            raise ArgumentError(
                f"{what}: {shown(part)} may need more than 64 bits", got=shown(formula), legal="integers from -2^63 to 2^63 - 1", hint=hint
            )


def _has_fractions(value: Value) -> bool:
    """Whether a number in a value is no integer."""
    if isinstance(value, Operation):
        return any(map(_has_fractions, value.arguments))
    return isinstance(value, Number) and not float(value.value).is_integer()


def _exact_parts(value: Value, ranges: Mapping[str, Range], cut: bool) -> Iterator[Value]:
    """The integers in a value all of whose bits count: what is compared, and, of a result that is `cut` to fewer bits, what is ordered."""
    if not isinstance(value, Operation):
        return
    if value.name in COMPARISONS:
        sides = sides_of(value, ranges)
        exact = all(is_integral(one, ranges) for one in sides)
        for side in sides:
            if exact:
                yield side
            yield from _exact_parts(side, ranges, False)
        return
    cut = cut and is_integral(value, ranges)
    wraps = value.name in WRAPPING or value.name == "where"
    if cut and not wraps:
        yield value
    for argument in value.arguments:
        yield from _exact_parts(argument, ranges, cut and wraps)
