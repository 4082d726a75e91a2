"""Integers in formulas: which values are integers, their ranges, and the number of bits that they need.

Coordinates, extents, integer constants and elements of int8, uint8, int32 and int64 are integers; so are sums, differences, products,
negatives, absolute values, maxima, minima and selections of integers, and the results of the operators of `fireiron.specs.bits`, which only
integers have. They are exact: intermediate values do not wrap around. The rest depends on their use:

- a comparison of integers is exact;
- a result in an integer type keeps the low bits of the exact integer, as a conversion in C and `astype` in NumPy do;
- an integer combined with a float is converted, once, to the type of the float.

So 32 bits suffice in two cases: the ranges prove it, or only the low bits are kept. Otherwise the kernel uses 64 bits. An integer that may
need more than 64 bits is computed as a float if the formula converts it to a float; otherwise the formula is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from fireiron.errors import ArgumentError
from fireiron.specs.bits import (
    BITWISE,
    INTEGER_ONLY,
    OF_INTEGERS,
    OF_LOW_BITS,
    QUOTIENTS,
    RANDOM,
    TO_INTEGER,
    Range,
    legal_operand,
    range_of_bits,
    range_of_call,
    uint32,
)
from fireiron.specs.formula import COMPARISONS, CONDITIONS, Element, Formula, Number, Operation, Value, elements_of
from fireiron.values.machine import DType, int32, int64

INTEGRAL: Final = ("+", "-", "*", "abs", "max", "min", "relu", "clamp", "floor", "round", *INTEGER_ONLY)
"""Operations whose results on integers are integers."""

WRAPPING: Final = ("+", "-", "*", "<<", *BITWISE)
"""Operations whose low bits depend only on the low bits of their arguments; a number of bits to shift by must be known exactly."""

EXACT: Final = ("+", "-", "*", *INTEGER_ONLY, *TO_INTEGER)
"""Operations that are done in integers if their operands are integers, also if the result becomes a float."""


def fits(span: Range, dtype: DType) -> bool:
    """Whether a type can represent all integers of a range."""
    least, most = dtype.limits
    return least <= span[0] and span[1] <= most


def is_integral(value: Value, ranges: Mapping[str, Range]) -> bool:
    """Whether a value is an integer; `ranges` contains the tensors of integers."""
    if isinstance(value, Number):
        return isinstance(value.value, int)
    if isinstance(value, Element):
        return value.tensor in ranges
    if value.name in TO_INTEGER:
        return True
    arguments = value.arguments[1:] if value.name == "where" else value.arguments
    return (value.name == "where" or value.name in INTEGRAL) and all(is_integral(argument, ranges) for argument in arguments)


def range_of(value: Value, ranges: Mapping[str, Range]) -> Range | None:
    """The range of an integer; None for other values and for integers that may need more than 64 bits in between."""
    if isinstance(value, Number):
        span = (value.value, value.value) if isinstance(value.value, int) else None
    elif isinstance(value, Element):
        span = ranges.get(value.tensor)
    else:
        span = _range_of_operation(value, ranges)
    return span if span is not None and fits(span, int64) else None


def _range_of_operation(value: Operation, ranges: Mapping[str, Range]) -> Range | None:
    if value.name in TO_INTEGER:
        return range_of_call(value.name, [range_of(argument, ranges) for argument in value.arguments])
    if value.name != "where" and value.name not in INTEGRAL:
        return None
    mask = mask_of(value, ranges)
    if mask is not None and is_integral(value, ranges):
        return 0, mask
    spans = []
    for argument in value.arguments[1:] if value.name == "where" else value.arguments:
        span = range_of(argument, ranges)
        if span is None:
            return None
        spans.append(span)
    if value.name in INTEGER_ONLY:
        return None if legal_operand(value.name, spans[-1]) else range_of_bits(value.name, spans)
    return _range_of_result(value.name, spans)


def mask_of(value: Value, ranges: Mapping[str, Range]) -> int | None:
    """The largest value of `x & mask` if the mask has at most 32 bits and x may need more than 64, of which only the low ones count."""
    if not isinstance(value, Operation) or value.name != "&":
        return None
    spans = [range_of(argument, ranges) for argument in value.arguments]
    known = [span for span in spans if span is not None and span[0] >= 0 and fits(span, uint32)]
    return known[0][1] if None in spans and known else None


def _range_of_result(name: str, spans: list[Range]) -> Range:
    """The range of an operation on integers of these ranges."""
    least, most = spans[0]
    if name in ("floor", "round"):
        return spans[0]
    if name == "clamp":
        (low, most_low), (high, most_high) = spans[1:]
        return min(max(least, low), high), min(max(most, most_low), most_high)
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
    products = [left_bound * other for left_bound in (least, most) for other in (other_least, other_most)]
    return min(products), max(products)


def accumulator_type(by: str, dtype: DType, count: int) -> DType | None:
    """The accumulator type for the sum, maximum, minimum or product of `count` integers of a type; None if 64 bits may not suffice."""
    size = max(map(abs, dtype.limits))
    most = {"sum": size * count, "prod": size**count}.get(by, size)
    return next((kind for kind in (int32, int64) if fits((-most, most), kind)), None)


def sides_of(test: Operation, ranges: Mapping[str, Range]) -> tuple[Value, Value]:
    """The sides of a comparison; if both are integers, a whole number that is written as a float, such as 3e9, is an integer, too."""
    left, right = test.arguments
    whole = tuple(map(with_whole_numbers, test.arguments))
    return (whole[0], whole[1]) if all(is_integral(side, ranges) for side in whole) else (left, right)


def with_whole_numbers(value: Value) -> Value:
    """A value with its whole numbers as integers."""
    if isinstance(value, Number):
        return Number(int(value.value)) if isinstance(value.value, float) and value.value.is_integer() else value
    if isinstance(value, Operation) and value.name not in CONDITIONS:
        return Operation(value.name, tuple(map(with_whole_numbers, value.arguments)))
    return value


def check_integers(
    formula: Formula, ranges: Mapping[str, Range], bounds: Mapping[str, str], what: str, shown: Callable[[Formula | Value], str] = str
) -> None:
    """Refuse a formula with an integer that may need more than 64 bits and neither becomes a float nor is truncated.

    `ranges` are those of the tensors of integers. For the message, `bounds` are the declarations that bound coordinates and extents, and
    `shown` formats a formula. A sum of products that is stored as an integer must have integer operands.
    """
    value = formula.value
    if value is None:
        return
    _check_operators(formula, ranges, what, shown)
    if formula.is_product_sum and formula.output in ranges and _has_fractions(value):
        raise ArgumentError(
            f"{what}: a sum that is stored as an integer has a factor that is not an integer", got=shown(formula),
            legal="integer factors; or a result in float32", hint="multiply the sum in a later step",
        )  # fmt: skip
    if formula.reduction is not None:
        _check_reduced(formula, ranges, what, shown)
        return
    for part in _matters(formula, value, ranges):
        if range_of(part, ranges) is None:
            names = dict.fromkeys(bounds[element.tensor] for element in elements_of(part) if element.tensor in bounds)
            masked = isinstance(part, Operation) and part.name in INTEGER_ONLY
            unbounded = "mask its operands, such as x & 0xffffffff" if masked else "multiply by a float: 1.0 * ..."
            hint = f"bound the sizes: {', '.join(names)}" if names else unbounded
            raise ArgumentError(
                f"{what}: {shown(part)} may need more than 64 bits", got=shown(formula), legal="integers from -2^63 to 2^63 - 1", hint=hint
            )


def _check_reduced(formula: Formula, ranges: Mapping[str, Range], what: str, shown: Callable[[Formula | Value], str]) -> None:
    """Refuse a reduction of 64-bit integers, or to them."""
    for element in (*formula.elements, formula.target):
        if element.tensor in ranges and not fits(ranges[element.tensor], int32):
            raise ArgumentError(
                f"{what}: a {formula.reduction} with {element}, which is int64", got=shown(formula), legal="int8, uint8, int32 or floats",
                hint=f"an earlier step: t[{','.join(element.dims)}] = int32({element})",
            )  # fmt: skip


def _matters(formula: Formula, value: Value, ranges: Mapping[str, Range]) -> Iterator[Value]:
    """The integers in the value of a formula of which more than the low 32 bits matter."""
    wide = formula.output in ranges and not fits(ranges[formula.output], int32)
    if wide and is_integral(value, ranges):
        yield value
    yield from _exact_parts(value, ranges, formula.output in ranges and not wide)


def _check_operators(formula: Formula, ranges: Mapping[str, Range], what: str, shown: Callable[[Formula | Value], str]) -> None:
    """Refuse operators and functions of integers on other values, divisors that may not be positive, and shifts by more than 63 bits."""
    for value in _operations(formula.value):
        if formula.reduction is not None:
            raise ArgumentError(
                f"{what}: {value.name} under a {formula.reduction}", got=shown(formula),
                hint="an earlier step that computes the terms, and then the reduction",
            )  # fmt: skip
        for argument in value.arguments:
            _check_argument(value, argument, ranges, what, lambda: shown(formula), shown)
        for argument in value.arguments[-1:] if value.name != "mulhi" else value.arguments:
            span = range_of(argument, ranges)
            legal = "" if span is None else legal_operand(value.name, span)
            if span is not None and legal:
                side = "right operand of" if value.name in INTEGER_ONLY else "argument of"
                raise ArgumentError(
                    f"{what}: the {side} {value.name} may be {span[0] if span[0] < 1 else span[1]}", got=shown(value), legal=legal,
                    hint=_legal_form(value.name, shown(argument), span),
                )  # fmt: skip
        if value.name == "mulhi" and range_of(value, ranges) is None and all(range_of(one, ranges) for one in value.arguments):
            raise ArgumentError(
                f"{what}: mulhi of an integer that may be negative and one that may be above 2^31 - 1", got=shown(value),
                legal="integers of int32, or from 0 to 2^32 - 1", hint="mulhi(x & 0xffffffff, y), or mulhi(x, int32(y))",
            )  # fmt: skip


def _check_argument(
    value: Operation,
    argument: Value,
    ranges: Mapping[str, Range],
    what: str,
    got: Callable[[], str],
    shown: Callable[[Formula | Value], str],
) -> None:
    """Refuse a float as an argument of a function of integers, and an integer as that of `bits`."""
    integral = is_integral(argument, ranges)
    if value.name in OF_INTEGERS and not integral:
        stored = isinstance(argument, Element)
        raise ArgumentError(
            f"{what}: {value.name} is for integers, and {shown(argument)} is a float", got=got(),
            legal="coordinates, extents, whole constants, elements of int8, uint8, int32 and int64",
            hint=f"int32({shown(argument)}){', or types={...} for an operand of integers' if stored else ''}",
        )  # fmt: skip
    if value.name == "bits" and integral:
        raise ArgumentError(
            f"{what}: bits is for floats, and {shown(argument)} is an integer", got=got(), hint=f"{shown(argument)} & 0xffffffff"
        )


def _legal_form(name: str, text: str, span: Range) -> str | None:
    """An operand that is legal, in place of one that may not be."""
    if name in QUOTIENTS:
        return f"max({text}, 1)" if span[1] >= 1 else None
    return f"{text} & {'0xffffffff' if name == 'mulhi' else 31}"


def _operations(value: Value | None) -> Iterator[Operation]:
    """The operators and functions of integers in a value."""
    if isinstance(value, Operation):
        if value.name in OF_INTEGERS or value.name in TO_INTEGER:
            yield value
        for argument in value.arguments:
            yield from _operations(argument)


def _has_fractions(value: Value) -> bool:
    """Whether a value contains a number that is not an integer."""
    if isinstance(value, Operation):
        return any(map(_has_fractions, value.arguments))
    return isinstance(value, Number) and not float(value.value).is_integer()


def _exact_parts(value: Value, ranges: Mapping[str, Range], truncated: bool) -> Iterator[Value]:
    """The integers in a value whose high bits matter: sides of comparisons, operands of shifts to the right, quotients and remainders, and,
    in a truncated result, values of max, min, abs and relu."""
    if not isinstance(value, Operation):
        return
    if value.name in COMPARISONS:
        sides = sides_of(value, ranges)
        exact = all(is_integral(side, ranges) for side in sides)
        for side in sides:
            if exact:
                yield side
            yield from _exact_parts(side, ranges, False)
        return
    truncated = truncated and is_integral(value, ranges)
    wraps = value.name in WRAPPING or value.name == "where"
    if (truncated and not wraps) or (value.name in (*INTEGER_ONLY, "mulhi") and not (truncated and wraps)):
        yield value
    if value.name in RANDOM:
        yield value.arguments[0]
    if value.name in ("<<", "%", "//"):  # 64 bits of a divisor or of a number of bits do not suffice
        yield value.arguments[1]
    low_bits = (truncated or value.name in BITWISE) and wraps
    for argument in value.arguments:
        yield from _exact_parts(argument, ranges, low_bits or value.name in (*RANDOM, *OF_LOW_BITS, "int32"))
