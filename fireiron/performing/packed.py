"""Formulas on pairs of 16-bit floats: one instruction computes both halves of a packed register (HADD2, HMUL2, HFMA2, HMNMX2).

A formula is packed if half arithmetic gives the same result as float32 with one final rounding: all elements have the type of the result,
its constants are representable in this type, and at most one intermediate value is rounded. That is a sum, a difference or a product,
or a product and a sum, which HFMA2 rounds once; also with signs, absolute values, maxima, minima and selections. Two
consecutive sums are not packed: half arithmetic would also round the first. A definition requests this by steps with 16-bit
temporaries.

Unpacked numbers of 4 bits, E8M0 scales and their products are leaves (`Leaf`), which have conversions of pairs.

`exp2` and `tanh` of pairs are approximations of the GPU (`APPROXIMATIONS`), which are less exact than one rounding. They are used only if
a strategy allows them.

Rounding is monotonic, so it may be done before or after a maximum. The maximum or minimum of a number and NaN is the number, for
`max.f16x2` as for `fmaxf`. `fma.rn.relu` would return NaN, so it is not used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Final

from fireiron.frozen import frozen
from fireiron.ir.text import Function
from fireiron.performing.packed_integers import Fields, fields_of, is_byte, is_exact, shared
from fireiron.specs.arithmetic import convert
from fireiron.specs.formula import Element, Formula, Number, Operation, Value, elements_of
from fireiron.values.document import Call, Text
from fireiron.values.machine import DType, bfloat16, float8_e4m3, float8_e5m2, float16

SUMS: Final[Mapping[str, str]] = {"+": "__hadd2", "-": "__hsub2", "*": "__hmul2_rn"}
"""Operations that round. The compiler does not contract a product with a sum of another step: the temporary between them is rounded."""

LIMITS: Final[Mapping[str, str]] = {"max": "__hmax2", "min": "__hmin2", "relu": "__hmax2"}
"""Operations that are one instruction on pairs since sm_80; before, CUDA implements them by comparisons in float."""

APPROXIMATIONS: Final[Mapping[str, Mapping[DType, tuple[str, int, str]]]] = {
    "exp2": {
        float16: ("ex2.approx.f16x2", 75, "a relative error of at most 2^-9.9"),
        bfloat16: ("ex2.approx.ftz.bf16x2", 90, "a relative error of at most 2^-7"),
    },
    "tanh": {
        float16: ("tanh.approx.f16x2", 75, "an error of at most 2^-10.987"),
        bfloat16: ("tanh.approx.bf16x2", 90, "an error of at most 2^-8"),
    },
}
"""Functions that are one instruction on pairs: its name, the first compute capability that has it, and its error (PTX ISA, "Half Precision
Floating Point Instructions")."""

KINDS: Final[Mapping[DType, tuple[str, str]]] = {
    float16: ("__half2", "__half2half2"),
    bfloat16: ("__nv_bfloat162", "__bfloat162bfloat162"),
}
"""The type of a pair, and the function that creates a pair of equal numbers."""

_SASS: Final[Mapping[str, str]] = {
    "+": "HADD2", "-": "HADD2", "*": "HMUL2", "fma": "HFMA2", "abs": "HADD2", "max": "HMNMX2", "min": "HMNMX2", "relu": "HMNMX2",
    "where": "SEL", "exp2": "MUFU.EX2", "tanh": "MUFU.TANH",
}  # fmt: skip

EIGHT_BITS: Final = (float8_e4m3, float8_e5m2)
"""Types of scales of unpacked numbers that both 16-bit floats represent."""


@frozen
class Leaf:
    """A value of integers that has a conversion of pairs: `fields`, a power of two `scale` of integers (E8M0), or the product of both."""

    fields: Fields | None = None
    scale: Value | None = None


def leaf_of(value: Value | None, types: Mapping[str, DType], dtype: DType) -> Leaf | None:
    """Return the leaf of a formula with a result of this type; None for other values.

    bfloat16 represents all E8M0 numbers, float16 only their products with fields, after the last rounding.
    """
    fields = fields_of(value, types)
    if fields is not None:
        return Leaf(fields)
    match value:
        case Operation("e8m0", (scale,)) if dtype == bfloat16:
            return Leaf(None, scale)
        case Operation("*", (field, Operation("e8m0", (scale,)))) | Operation("*", (Operation("e8m0", (scale,)), field)):
            fields = fields_of(field, types) if dtype == float16 else None
            return Leaf(fields, scale) if fields is not None and fields.is_e2m1 else None
    return None


def unpacks(formula: Formula, types: Mapping[str, DType]) -> bool:
    """Whether a formula unpacks numbers of 4 bits. Pairs of its other operands may then be equal elements in memory, such as scales."""
    return any(True for _ in shared(formula.value, types))


def reads_bytes(formula: Formula, types: Mapping[str, DType]) -> bool:
    """Whether a formula converts bytes to 16-bit floats."""
    return any(is_byte(types[element.tensor], types[formula.output]) for element in elements_of(formula.value, conditions=False))


def read_singly(value: Value | None) -> Iterator[str]:
    """Yield the tensors whose elements a packed formula reads one by one: those of E8M0 scales."""
    if isinstance(value, Operation):
        if value.name == "e8m0":
            yield from (element.tensor for element in elements_of(value))
        for argument in value.arguments[value.name == "where" :]:
            yield from read_singly(argument)


_MANY = 2
"""A number of roundings that no packed formula has."""


def packs(formula: Formula, types: Mapping[str, DType], approximately: bool = False) -> bool:
    """Whether half arithmetic gives the same value of a formula as float32 with one final rounding, on any target.

    With `approximately`, functions of `APPROXIMATIONS` count as one rounding.
    """
    dtype = types[formula.output]
    if dtype not in KINDS or formula.accumulates or formula.reduction is not None or not isinstance(formula.value, Operation):
        return False
    scales = EIGHT_BITS if unpacks(formula, types) else ()
    types = {name: dtype if kind in scales else kind for name, kind in types.items()}  # such an element is representable
    return _roundings(formula.value, types, dtype, approximately) < _MANY


def capability(formula: Formula, dtype: DType) -> int:
    """Return the first compute capability with instructions on pairs for all operations of a packed formula."""
    operations = list(_operations(formula.value))
    capabilities = (APPROXIMATIONS[operation.name][dtype][1] for operation in operations if operation.name in APPROXIMATIONS)
    return max(80 if dtype == bfloat16 or any(operation.name in LIMITS for operation in operations) else 53, *capabilities, 0)


def approximation(name: str, dtype: DType) -> Function:
    """Return the device function for one of the instructions of `APPROXIMATIONS`."""
    instruction, _, error = APPROXIMATIONS[name][dtype]
    kind, _ = KINDS[dtype]
    body = (
        "unsigned bits;",
        f'asm("{instruction} %0, %1;" : "=r"(bits) : "r"(*reinterpret_cast<const unsigned*>(&x)));',
        f"return *reinterpret_cast<const {kind}*>(&bits);",
    )
    note = f"{'2^x' if name == 'exp2' else 'tanh(x)'} with {error}"
    return Function(f"{name}_pair", (f"{kind} x",), body, note, result=kind)


def opcodes(formula: Formula, types: Mapping[str, DType] = MappingProxyType({})) -> str:
    """Return the SASS instructions of a packed formula: `HFMA2+HMNMX2`."""
    return "+".join(dict.fromkeys(_opcodes(formula.value, types))) or "HADD2"


def packed(
    value: Value | None,
    leaf: Callable[[Value], Text],
    is_leaf: Callable[[Value], bool],
    chosen: Callable[[Operation, Text, Text], Text],
    approximate: Callable[[str, Text], Text],
) -> Text:
    """Print a packed formula as a pair.

    `leaf` prints an element, a number, or another value for which `is_leaf` holds, `chosen` a selection between two pairs, and
    `approximate` a function of a pair.
    """

    def text_of(part: Value) -> Text:
        if not isinstance(part, Operation) or is_leaf(part):
            return leaf(part)
        if part.name == "*" and part.arguments[1] == Number(1):
            return text_of(part.arguments[0])
        if part.name == "where":
            return chosen(part, text_of(part.arguments[1]), text_of(part.arguments[2]))
        if part.name in SUMS and len(part.arguments) == 2:
            return contracted(part) if _product_of(part) is not None else Call(SUMS[part.name], tuple(map(text_of, part.arguments)))
        if part.name == "-":
            return Call("__hneg2", (text_of(part.arguments[0]),))
        if part.name in APPROXIMATIONS:
            return approximate(part.name, text_of(part.arguments[0]))
        if part.name == "abs":
            return Call("__habs2", (text_of(part.arguments[0]),))
        arguments = (*part.arguments, Number(0)) if part.name == "relu" else part.arguments
        return Call(LIMITS[part.name], tuple(map(text_of, arguments)))

    def contracted(part: Operation) -> Text:
        product = _product_of(part)
        assert product is not None
        first, second = map(text_of, product.arguments)
        other = text_of(part.arguments[1] if product is part.arguments[0] else part.arguments[0])
        if part.name == "-" and product is part.arguments[0]:
            other = Call("__hneg2", (other,))
        elif part.name == "-":
            first = Call("__hneg2", (first,))
        return Call("__hfma2", (first, second, other))

    assert value is not None
    return text_of(value)


def _product_of(part: Operation) -> Operation | None:
    """Return the product in a sum or difference of one product and another term; None for other values."""
    if part.name not in ("+", "-") or len(part.arguments) != 2:
        return None
    products = [argument for argument in part.arguments if isinstance(argument, Operation) and argument.name == "*"]
    return products[0] if len(products) == 1 else None


def _roundings(value: Value, types: Mapping[str, DType], dtype: DType, approximately: bool) -> int:
    """Return the number of roundings from a value's elements to a 16-bit result; `_MANY` if half arithmetic cannot compute it."""
    if isinstance(value, Element):
        return 0 if types[value.tensor] == dtype or is_byte(types[value.tensor], dtype) else _MANY
    if isinstance(value, Number):
        return 0 if _is_representable(dtype, value.value) else _MANY
    leaf = leaf_of(value, types, dtype)
    if leaf is not None:
        exact = leaf.fields is None or is_exact(leaf.fields, dtype)
        return _MANY if not exact else 0 if None in (leaf.fields, leaf.scale) else 1
    arguments = value.arguments[1:] if value.name == "where" else value.arguments
    most = max(_roundings(argument, types, dtype, approximately) for argument in arguments)
    if value.name in ("where", "abs", *LIMITS) or (value.name == "-" and len(arguments) == 1):
        return most
    if value.name not in SUMS and not (approximately and value.name in APPROXIMATIONS):
        return _MANY
    product = _product_of(value)
    if product is not None:
        arguments = (*product.arguments, *(argument for argument in arguments if argument is not product))
        most = max(_roundings(argument, types, dtype, approximately) for argument in arguments)
    return _MANY if most else 1


def _is_representable(dtype: DType, number: float) -> bool:
    """Whether a number is representable in a type."""
    import numpy

    return float(convert(numpy.float64(number), dtype)) == number


def _operations(value: Value | None) -> Iterator[Operation]:
    """Yield the operations of a value without those of its conditions."""
    if isinstance(value, Operation):
        yield value
        for argument in value.arguments[1 if value.name == "where" else 0 :]:
            yield from _operations(argument)


def _opcodes(value: Value | None, types: Mapping[str, DType]) -> Iterator[str]:
    if not isinstance(value, Operation):
        return
    fields = fields_of(value, types)
    if fields is not None:
        yield from ("LOP3", "PRMT", "HMUL2" if fields.is_e2m1 else "HADD2")
        return
    if value.name == "e8m0":
        return
    product = _product_of(value)
    inner = value.arguments[1 if value.name == "where" else 0 :]
    for argument in inner:
        parts = argument.arguments if argument is product and isinstance(argument, Operation) else (argument,)
        for part in parts:
            yield from _opcodes(part, types)
    if value.name != "-" or len(value.arguments) == 2:  # the sign of an operand is part of the instruction that reads it
        yield _SASS["fma" if product is not None else value.name]
