"""Index expressions as C++: 64-bit where 32 bits could overflow, parentheses where the language or a reader needs them."""

from __future__ import annotations

import enum
import functools
import math
from collections.abc import Collection, Sequence

from fireiron.cuda.quotients import QUOTIENT, Quotient, Residue
from fireiron.cuda.rotations import Wrapped
from fireiron.errors import VerificationError
from fireiron.ir.text import Function
from fireiron.values.document import Chain, Joined, Text
from fireiron.values.expr import (
    INT_MAX,
    All,
    AnyOf,
    BitAnd,
    BitOr,
    BitXor,
    Const,
    Equal,
    Expr,
    FloorDiv,
    Hilbert,
    Less,
    Lookup,
    Min,
    Mod,
    Positive,
    Sum,
    Var,
    bit_xor,
)
from fireiron.values.expr.ranges import product_range

HILBERT = Function(
    "hilbert",
    ("int number", "int lines", "int columns"),
    (
        "int first = 0, second = 0, first_inside = lines, second_inside = columns, side = 1;",
        "bool swapped = false, backward = false;",
        "while (side < (max(lines, columns) + 1) / 2) side *= 2;",
        "for (; side > 0; side /= 2) {",
        "  int near = min(first_inside, side);",
        "  int before = (backward ? first_inside - near : near) * second_inside;",
        "  const bool half = number >= before;",
        "  if (half) number -= before;",
        "  bool far = half != backward;",
        "  if (far) first += side;",
        "  first_inside = far ? first_inside - near : near;",
        "  near = min(second_inside, side);",
        "  before = (far ? second_inside - near : near) * first_inside;",
        "  const bool quarter = number >= before;",
        "  if (quarter) number -= before;",
        "  far = far != quarter;",
        "  if (far) second += side;",
        "  second_inside = far ? second_inside - near : near;",
        "  if (half == quarter) {",
        "    const int other = first, other_inside = first_inside;",
        "    first = second, first_inside = second_inside;",
        "    second = other, second_inside = other_inside;",
        "    swapped = !swapped;",
        "    backward = backward != half;",
        "  }",
        "}",
        "return swapped ? second * columns + first : first * columns + second;",
    ),
    "row-major index of tile `number` on a Hilbert curve that skips positions outside the grid",
    result="int",
)
"""The function for the node of this name; `fireiron.values.expr.hilbert` defines what it computes."""


class Precedence(enum.IntEnum):
    """The precedence of operators, the lowest first. An operand whose precedence is lower than required is put in parentheses.

    The right operand of a product, quotient or remainder must be a FACTOR. All bit operations have one precedence here, so nested ones
    always have parentheses.
    """

    LOWEST = 0
    ANY = 1
    ALL = 2
    BITS = 3
    COMPARISON = 4
    SUM = 5
    PRODUCT = 6
    FACTOR = 7
    NAME = 8


@functools.lru_cache(maxsize=20_000)
def is_wide(value: Expr) -> bool:
    """Whether evaluating the expression, or a partial sum or product of it, needs 64 bits; a `VerificationError` if it needs more."""
    if isinstance(value, Sum):
        ranges = [product_range(*term) for term in value.terms]
        # In any order of the terms, each partial sum is between the sum of the negative and the sum of the positive terms.
        above = max(0, value.constant) + sum(max(0, high) for _, high, _ in ranges)
        below = max(0, -value.constant) + sum(max(0, -low) for low, _, _ in ranges)
        products = (abs(coefficient) * math.prod(max(1, -atom.low, atom.high) for atom in atoms) for atoms, coefficient in value.terms)
        extreme = max(above, below, *products)
        if extreme >= 1 << 63:
            sizes = sorted(one.name for one in value.variables() if one.parameter) or ["M"]
            bounds = ", ".join(f'sym("{name}", high=65536)' for name in sizes)
            raise VerificationError(f"{value} does not fit 64 bits", hint=f"bound the sizes: {bounds}")
        if extreme > INT_MAX:
            return True
    elif max(-value.low, value.high) > INT_MAX:
        return True
    return any(is_wide(child) for child in value.children)


def expression(value: Expr) -> str:
    """C++ text of an expression; 64-bit where 32 bits could overflow. Quotients and remainders must be of nonnegative values."""
    return operand(value, Precedence.LOWEST)


def operand(value: Expr, required: Precedence) -> str:
    """The text of an expression as an operand whose precedence must be at least `required`."""
    text, precedence = _node(value)
    return f"({text})" if precedence < required else text


def document(value: Expr) -> Text:
    """The text of an expression, with possible line breaks between its terms or conditions."""
    if isinstance(value, Sum):
        term, *terms = summands(value)
        return Chain((term, *terms)) if terms else term
    if isinstance(value, All):
        first, *others = (operand(condition, Precedence.COMPARISON) for condition in value.conditions)
        return Chain((first, *(f"&& {one}" for one in others)))
    if isinstance(value, Less) and isinstance(side := value.right if isinstance(value.left, Const) else value.left, Sum):
        shown = document(side)
        return Joined((shown, expression(value).removeprefix(str(shown))))
    return expression(value)


def summands(value: Expr, strides: Sequence[int] = (), shifted: Collection[Var] = ()) -> tuple[Text, ...]:
    """The terms of an expression, each after its sign, except a first plus.

    A coefficient that is a multiple of one of the `strides` is printed as a product, `row * 64 * 4096`. A constant that is a multiple of
    the coefficient of a variable in `shifted` is added to the variable, `(k + 3) * 64`.
    """
    if isinstance(value, Sum):
        return tuple(_signed(_terms(value, strides, shifted)))
    if isinstance(value, Const) and any(type(stride) is not int and value.value % stride == 0 for stride in strides if value.value > 0):
        return (" * ".join(_coefficient(value.value, [stride for stride in strides if type(stride) is not int])),)
    return (_flipped(value) or operand(value, Precedence.PRODUCT),)


def _flipped(value: Expr) -> Text | None:
    """An XOR in parentheses, with possible line breaks before its sign and inside its operands; None for other expressions."""
    if not isinstance(value, BitXor):
        return None
    left, right = (Joined(("(", Chain(summands(side)), ")")) if isinstance(side, Sum) else _bits(side) for side in value.children)
    return Joined(("(", Chain((left, Joined(("^ ", right)))), ")"))


def _node(value: Expr) -> tuple[str, Precedence]:
    match value:
        case Const(value=number):
            return f"{number}{_suffix(number)}", Precedence.NAME if number >= 0 else Precedence.SUM
        case Var(name=name):
            return name, Precedence.NAME
        case Sum():
            return _sum(value)
        case FloorDiv(left=left, right=right):
            return f"{_dividend(left)} / {operand(right, Precedence.FACTOR)}", Precedence.PRODUCT
        case Mod(left=left, right=right):
            return f"{_dividend(left)} % {operand(right, Precedence.FACTOR)}", Precedence.PRODUCT
        case Quotient():
            return _quotient(value)
        case Residue(number=number, quotient=quotient, divisor=divisor):
            product = f"{operand(quotient, Precedence.PRODUCT)} * {operand(divisor, Precedence.FACTOR)}"
            return f"{operand(number, Precedence.SUM)} - {product}", Precedence.SUM
        case Wrapped(number=number, whole=whole):
            return _wrapped(number, whole), Precedence.LOWEST
        case BitAnd(left=left, right=right):
            return f"{_bits(left)} & {_bits(right)}", Precedence.BITS
        case BitXor(left=left, right=right):
            return f"{_bits(left)} ^ {_bits(right)}", Precedence.BITS
        case BitOr(left=left, right=right):
            return f"{_bits(left)} | {_bits(right)}", Precedence.BITS
        case Positive(value=inner):
            return _node(inner)
        case Min(left=left, right=right):
            # Both sides: CUDA has a `min` for two values of one type.
            cast = "(long long)" if is_wide(value) else ""
            return (
                f"min({', '.join(f'{cast}({expression(side)})' if cast else expression(side) for side in (left, right))})",
                Precedence.NAME,
            )
        case Lookup(index=index, most=most, ends=True):
            return f"(int)min((unsigned){value.array}[{expression(index)}], {most}u)", Precedence.FACTOR
        case Lookup(index=index, promised=True):
            return f"{value.array}[{expression(index)}]", Precedence.NAME
        case Lookup(index=index, most=most):
            return f"min(max({value.array}[{expression(index)}], 0), {most})", Precedence.NAME
        case Hilbert():
            return f"{HILBERT.name}({', '.join(expression(one) for one in value.children)})", Precedence.NAME
        case Less(left=Const() as left, right=right):
            return f"{operand(right, Precedence.SUM)} > {operand(left, Precedence.SUM)}", Precedence.COMPARISON
        case Less(left=left, right=Const(value=1)) if left.low >= 0:
            return f"{operand(left, Precedence.SUM)} == 0", Precedence.COMPARISON
        case Less(left=left, right=right):
            return f"{operand(left, Precedence.SUM)} < {operand(right, Precedence.SUM)}", Precedence.COMPARISON
        case Equal(left=left, right=right):
            return f"{operand(left, Precedence.SUM)} == {operand(right, Precedence.SUM)}", Precedence.COMPARISON
        case All(conditions=conditions):
            return " && ".join(operand(condition, Precedence.COMPARISON) for condition in conditions), Precedence.ALL
        case AnyOf(conditions=conditions):
            return " || ".join(operand(condition, Precedence.COMPARISON) for condition in conditions), Precedence.ANY
    raise VerificationError(f"{type(value).__name__} has no text in C++")


def _quotient(value: Quotient) -> tuple[str, Precedence]:
    """The multiplication for a quotient; if the divisor may be `whole`, which is not a launch constant, also the division by it."""
    product = f"{QUOTIENT.name}({expression(value.number)}, {value.reciprocal})"
    if value.whole is None:
        return product, Precedence.NAME
    whole = f"{operand(value.number, Precedence.PRODUCT)} / {value.whole}"
    return f"{operand(value.divisor, Precedence.SUM)} < {value.whole} ? {product} : {whole}", Precedence.LOWEST


def _wrapped(number: Expr, whole: Expr) -> str:
    total = operand(number, Precedence.SUM)
    return f"{total} < {operand(whole, Precedence.SUM)} ? {total} : {total} - {operand(whole, Precedence.PRODUCT)}"


def _suffix(number: int) -> str:
    return "LL" if abs(number) > INT_MAX else ""


def _bits(value: Expr) -> str:
    """An operand of a bit operation, with arithmetic in parentheses, because these precedences are easily misread."""
    text, precedence = _node(value)
    return text if precedence >= Precedence.FACTOR else f"({text})"


def _dividend(left: Expr) -> str:
    if left.low < 0:
        raise VerificationError(f"{left} may be negative, and is divided: C++ rounds toward zero")
    return operand(left, Precedence.PRODUCT)


def _sum(value: Sum) -> tuple[str, Precedence]:
    terms = _terms(value)
    text = " ".join(map(str, _signed(terms)))
    single = len(terms) == 1 and not text.startswith("-")
    return text, Precedence.PRODUCT if single else Precedence.SUM


def _signed(terms: list[tuple[bool, Text]]) -> list[Text]:
    """Terms after their operator, the first without a plus."""
    (negative, first), *others = terms
    return [_after_sign("-", first) if negative else first, *(_after_sign("- " if minus else "+ ", text) for minus, text in others)]


def _after_sign(sign: str, text: Text) -> Text:
    return sign + text if isinstance(text, str) else Joined((sign, text))


def _terms(value: Sum, strides: Sequence[int] = (), shifted: Collection[Var] = ()) -> list[tuple[bool, Text]]:
    """The terms, positive ones first, large steps before small ones, the constant last: whether each is subtracted, and its text."""
    wide = is_wide(value)
    constant = value.constant
    parts: list[tuple[bool, Text]] = []
    for atoms, coefficient in sorted(value.terms, key=lambda term: (term[1] < 0, -_weight(term))):
        flipped = _flipped(*atoms) if len(atoms) == 1 and coefficient == 1 and not wide else None
        if flipped is not None:
            parts.append((False, flipped))
            continue
        factors = [
            operand(atom, Precedence.PRODUCT if position == 0 else Precedence.FACTOR)
            for position, atom in enumerate(sorted(atoms, key=lambda a: isinstance(a, Var)))
        ]
        plain = factors[0].isidentifier()
        if len(atoms) == 1 and atoms[0] in shifted and constant > 0 and constant % coefficient == 0:
            factors[0], plain = f"({factors[0]} + {constant // coefficient})", True
            constant = 0
        factors += _coefficient(abs(coefficient), strides)
        if wide:
            # A product is computed from left to right: if the first factor is wide, all of it is.
            factors[0] = f"(long long){factors[0] if plain else f'({factors[0]})'}"
        parts.append((coefficient < 0, " * ".join(factors)))
    if constant:
        negative = constant < 0
        place = 0 if parts[0][0] and not negative else len(parts)  # a text begins with a minus only if all terms are negative
        parts.insert(place, (negative, " * ".join(_coefficient(abs(constant), strides) or ["1"])))
    return parts


def _coefficient(number: int, strides: Sequence[int]) -> list[str]:
    """The factors of a step: none for 1, a number of strides if it is one, largest strides first."""
    if number == 1:
        return []
    for stride in strides:
        if 1 < stride < number and number % stride == 0:
            return [str(number // stride), str(stride)]
        if stride == number and type(stride) is not int:  # a stride that has a name
            return [str(stride)]
    return [f"{number}{_suffix(number)}"]


def _weight(term: tuple[tuple[Expr, ...], int]) -> int:
    low, high, _ = product_range(*term)
    return max(abs(low), abs(high))


def scaled(value: Expr, size: int) -> Expr:
    """Convert an offset from elements to bytes; the factor, a power of two, is moved into XORs, so that only sums are outside of them."""
    if isinstance(value, Sum):
        total: Expr = Const(value.constant * size)
        for atoms, coefficient in value.terms:
            match atoms:
                case (BitXor() as flips,):
                    total = total + scaled(flips, size) * coefficient
                case _:
                    total = total + Sum(((atoms, coefficient * size),), 0)
        return total
    if isinstance(value, BitXor):
        return bit_xor(scaled(value.left, size), scaled(value.right, size))
    return value * size
