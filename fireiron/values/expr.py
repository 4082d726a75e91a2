"""Index expressions: exact integer arithmetic with ranges; smart constructors simplify, nothing is approximate.

Every expression knows the closed interval `[low, high]` of its values and a `factor` that divides all of them.
Division and remainder are Python's (floor), exact for all integers. Polynomials over atoms are the normal form:
two expressions with equal polynomials are equal values.

>>> lane = Var("lane", 0, 31)
>>> print((lane // 4) * 4 + lane % 4)
lane
>>> print(((lane >> 1) & 7) | (lane & 0x30) | ((lane & 1) << 3))
lane // 16 * 16 + lane % 2 * 8 + lane // 2 % 8
"""

from __future__ import annotations

import contextlib
import functools
import keyword
import math
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Literal, TypeAlias, TypeVar, dataclass_transform

import attrs

from fireiron.errors import ArgumentError, shown

INT_MAX = 2**31 - 1
"""Largest value of a 32-bit index."""

SYMBOL_MAX = 2**31 - 2**12
"""The default upper end of a symbol: rounding it up to a tile still fits 32 bits, so tiles are counted without 64-bit divisions."""

Atoms: TypeAlias = "tuple[Expr, ...]"
Terms: TypeAlias = "tuple[tuple[Atoms, int], ...]"
Node = TypeVar("Node")


class Expr:
    """An integer (or truth) value known when the kernel runs; immutable, equal by value."""

    __slots__ = ("_order", "_variables")
    low: int
    high: int
    factor: int
    _order: str
    _variables: frozenset[Var]

    def __add__(self, other: object) -> Expr:
        return add(self, as_expr(other))

    __radd__ = __add__

    def __mul__(self, other: object) -> Expr:
        return mul(self, as_expr(other))

    __rmul__ = __mul__

    def __neg__(self) -> Expr:
        return mul(self, _MINUS_ONE)

    def __sub__(self, other: object) -> Expr:
        return subtract(self, as_expr(other))

    def __rsub__(self, other: object) -> Expr:
        return subtract(as_expr(other), self)

    def __floordiv__(self, other: object) -> Expr:
        return floordiv(self, as_expr(other))

    def __rfloordiv__(self, other: object) -> Expr:
        return floordiv(as_expr(other), self)

    def __mod__(self, other: object) -> Expr:
        return mod(self, as_expr(other))

    def __rmod__(self, other: object) -> Expr:
        return mod(as_expr(other), self)

    def __and__(self, other: object) -> Expr:
        mask = as_expr(other)
        if isinstance(mask, Const) and mask.value < 0:  # as ~7: all bits above the other side's are ones, and meet zeros
            mask = Const(mask.value & possible_bits(self))
        return bit_and(self, mask)

    __rand__ = __and__

    def __or__(self, other: object) -> Expr:
        return bit_or(self, as_expr(other))

    __ror__ = __or__

    def __xor__(self, other: object) -> Expr:
        return bit_xor(self, as_expr(other))

    __rxor__ = __xor__

    def __lshift__(self, other: object) -> Expr:
        return mul(self, Const(1 << _shift(other)))

    def __rlshift__(self, other: object) -> Expr:
        return as_expr(other) << self

    def __rshift__(self, other: object) -> Expr:
        return floordiv(self, Const(1 << _shift(other)))

    def __rrshift__(self, other: object) -> Expr:
        return as_expr(other) >> self

    def __lt__(self, other: object) -> Expr:
        return less(self, as_expr(other))

    def __le__(self, other: object) -> Expr:
        return less(self, as_expr(other) + 1)

    def __gt__(self, other: object) -> Expr:
        return less(as_expr(other), self)

    def __ge__(self, other: object) -> Expr:
        return less(as_expr(other), self + 1)

    def __bool__(self) -> bool:
        raise ArgumentError(
            f"the expression {self} has no truth value before the kernel runs", hint="use equal(a, b), less(a, b), or evaluate it"
        )

    @property
    def children(self) -> Atoms:
        """Direct sub-expressions."""
        return ()

    def rebuilt(self, children: Atoms) -> Expr:
        """The same node over other children, simplified."""
        return self

    def variables(self) -> frozenset[Var]:
        """All variables that occur."""
        try:
            return self._variables
        except AttributeError:  # asked for the first time
            found = frozenset((self,)) if isinstance(self, Var) else frozenset().union(*(child.variables() for child in self.children))
            _assign(self, "_variables", found)
            return found

    def substitute(self, values: Mapping[Var, Expr | int]) -> Expr:
        """The expression with variables replaced, simplified again."""
        for variable in values:
            if not isinstance(variable, Var):
                raise ArgumentError(f"substitute({shown(variable)}): {shown(variable)} is no variable", legal="a Var for each value")
        if not values or self.variables().isdisjoint(values):
            return self
        return _substitute(self, {name: as_expr(value) for name, value in values.items()}, {})

    def evaluate(self, environment: Mapping[str, Any]) -> Any:
        """The value for integers, or NumPy arrays, by variable name."""
        try:
            return compiled(self)(environment)
        except KeyError as error:
            needed = sorted(variable.name for variable in self.variables())
            raise ArgumentError(f"{self} has no value: none is given for {error}", legal=f"values for {' '.join(needed)}") from None

    def __str__(self) -> str:
        return _text(self, 0)

    def __repr__(self) -> str:
        return _text(self, 0, _variable_repr)


def _range_fields(*, init: Literal[False] = False) -> Any:
    return attrs.field(init=init, eq=False, repr=False)


@dataclass_transform(frozen_default=True, field_specifiers=(_range_fields,))
def _node(cls: type[Node]) -> type[Node]:
    return attrs.frozen(cls, slots=True, eq=True, repr=False, cache_hash=True, order=False)


_assign = object.__setattr__


def _set(node: Expr, low: int, high: int, factor: int = 1) -> None:
    if factor > 1:
        low, high = low + -low % factor, high - high % factor
    _assign(node, "low", low)
    _assign(node, "high", high)
    _assign(node, "factor", factor)


@_node
class Const(Expr):
    """An integer."""

    value: int
    low: int = _range_fields()
    high: int = _range_fields()
    factor: int = _range_fields()

    def __attrs_post_init__(self) -> None:
        _assign(self, "low", self.value)
        _assign(self, "high", self.value)
        _assign(self, "factor", abs(self.value))


@_node
class Var(Expr):
    """A variable with values `low..high`, all divisible by `multiple_of`.

    A variable that is a `parameter` is a run-time size or stride and becomes a kernel parameter.
    """

    name: str
    low: int = 0
    high: int = INT_MAX
    multiple_of: int = 1
    parameter: bool = False
    factor: int = _range_fields()

    def __attrs_post_init__(self) -> None:
        if self.multiple_of < 1:
            raise ArgumentError(f"Var({self.name!r}, multiple_of={self.multiple_of}): multiple_of must be a positive integer")
        low = -(-self.low // self.multiple_of) * self.multiple_of
        high = self.high // self.multiple_of * self.multiple_of
        if low > high:
            raise ArgumentError(f"Var({self.name!r}): no multiple of {self.multiple_of} between {self.low} and {self.high}")
        _set(self, low, high, self.multiple_of)


@_node
class Sum(Expr):
    """A polynomial: `sum of coefficient * product of atoms, plus constant`. Use the operators to build it."""

    terms: Terms
    constant: int = 0
    low: int = _range_fields()
    high: int = _range_fields()
    factor: int = _range_fields()

    def __attrs_post_init__(self) -> None:
        low = high = self.constant
        factor = abs(self.constant)
        for atoms, coefficient in self.terms:
            term_low, term_high, term_factor = _product_range(atoms, coefficient)
            low, high, factor = low + term_low, high + term_high, math.gcd(factor, term_factor)
        _set(self, low, high, factor)

    @property
    def children(self) -> Atoms:
        return tuple(atom for atoms, _ in self.terms for atom in atoms)

    def rebuilt(self, children: Atoms) -> Expr:
        rest = iter(children)
        total: Expr = Const(self.constant)
        for atoms, coefficient in self.terms:
            product: Expr = Const(coefficient)
            for _ in atoms:
                product = product * next(rest)
            total = total + product
        return total


@_node
class _Binary(Expr):
    left: Expr
    right: Expr
    low: int = _range_fields()
    high: int = _range_fields()
    factor: int = _range_fields()
    build: ClassVar[Callable[[Expr, Expr], Expr]]

    @property
    def children(self) -> Atoms:
        return (self.left, self.right)

    def rebuilt(self, children: Atoms) -> Expr:
        return type(self).build(children[0], children[1])


@_node
class FloorDiv(_Binary):
    """`left // right`, the divisor positive."""

    def __attrs_post_init__(self) -> None:
        ends = [value // divisor for value in (self.left.low, self.left.high) for divisor in (self.right.low, self.right.high)]
        exact = isinstance(self.right, Const) and self.left.factor % self.right.value == 0
        _set(self, min(ends), max(ends), self.left.factor // self.right.low if exact else 1)


@_node
class Mod(_Binary):
    """`left % right`, the divisor positive; never negative."""

    def __attrs_post_init__(self) -> None:
        top = self.right.high - 1
        high = min(self.left.high, top) if self.left.low >= 0 else top
        divides = isinstance(self.right, Const)
        _set(self, 0, high, math.gcd(self.left.factor, self.right.low) if divides else 1)


@_node
class BitAnd(_Binary):
    """`left & right`, both not negative."""

    def __attrs_post_init__(self) -> None:
        bits = possible_bits(self.left) & possible_bits(self.right)
        _set(self, 0, min(self.left.high, self.right.high, bits), bits & -bits)


@_node
class BitOr(_Binary):
    """`left | right`, both not negative."""

    def __attrs_post_init__(self) -> None:
        bits = possible_bits(self.left) | possible_bits(self.right)
        _set(self, max(self.left.low, self.right.low), bits, bits & -bits)


@_node
class BitXor(_Binary):
    """`left ^ right`, both not negative."""

    def __attrs_post_init__(self) -> None:
        bits = possible_bits(self.left) | possible_bits(self.right)
        _set(self, 0, bits, bits & -bits)


@_node
class Min(_Binary):
    """The smaller of two values."""

    def __attrs_post_init__(self) -> None:
        _set(self, min(self.left.low, self.right.low), min(self.left.high, self.right.high), math.gcd(self.left.factor, self.right.factor))


@_node
class Positive(Expr):
    """A size that is known to be at least 1, because whoever launches the kernel checks it."""

    value: Expr
    low: int = _range_fields()
    high: int = _range_fields()
    factor: int = _range_fields()

    def __attrs_post_init__(self) -> None:
        _set(self, max(1, self.value.low), max(1, self.value.high), self.value.factor)

    @property
    def children(self) -> Atoms:
        return (self.value,)

    def rebuilt(self, children: Atoms) -> Expr:
        return positive(children[0])


@_node
class Less(_Binary):
    """The truth of `left < right`."""

    def __attrs_post_init__(self) -> None:
        _set(self, 0, 1)


@_node
class Equal(_Binary):
    """The truth of `left == right`."""

    def __attrs_post_init__(self) -> None:
        _set(self, 0, 1)


@_node
class _Junction(Expr):
    conditions: Atoms
    low: int = _range_fields()
    high: int = _range_fields()
    factor: int = _range_fields()
    join: ClassVar[Callable[[Iterable[Expr]], Expr]]

    def __attrs_post_init__(self) -> None:
        _set(self, 0, 1)

    @property
    def children(self) -> Atoms:
        return self.conditions

    def rebuilt(self, children: Atoms) -> Expr:
        return type(self).join(children)


@_node
class All(_Junction):
    """The conjunction of conditions, none of them itself a conjunction."""


@_node
class AnyOf(_Junction):
    """The disjunction of conditions, none of them itself a disjunction."""


_CPP_KEYWORDS = """
    alignas alignof and_eq asm auto bitand bitor bool case catch char char8_t char16_t char32_t compl concept const consteval
    constexpr constinit const_cast co_await co_return co_yield decltype default delete do double dynamic_cast enum explicit export
    extern false float friend goto inline int long mutable namespace new noexcept not_eq nullptr operator or_eq private protected
    public register reinterpret_cast requires short signed sizeof static static_assert static_cast struct switch template this
    thread_local throw true try typedef typeid typename union unsigned using virtual void volatile wchar_t xor xor_eq
"""

TRUE = Const(1)
FALSE = Const(0)
ZERO = Const(0)
ONE = Const(1)
_MINUS_ONE = Const(-1)


def is_cuda_name(name: object) -> bool:
    """Whether generated code may bind a name: an ASCII identifier that is a keyword neither of Python nor of C++."""
    return (
        isinstance(name, str) and name.isidentifier() and name.isascii() and not (keyword.iskeyword(name) or name in _CPP_KEYWORDS.split())
    )


def sym(name: str, multiple_of: int = 1, low: int = 1, high: int = SYMBOL_MAX) -> Var:
    """A size or stride known at run time; becomes a kernel parameter `name`.

    Legal when the name is an identifier of Python and C++, `multiple_of >= 1` and `low <= high`.

    >>> M = sym("M", multiple_of=8)
    >>> print((M * 4) % 32)
    0
    """
    if not isinstance(name, str) or not name.isidentifier() or not name.isascii():
        raise ArgumentError(f"sym({shown(name)}): a name must be an identifier", legal="ASCII letters, digits and _", hint='sym("M")')
    if keyword.iskeyword(name) or name in _CPP_KEYWORDS.split():
        raise ArgumentError(f"sym({name!r}): {name} is a keyword of Python or C++", hint=f'sym("{name}_size")')
    for label, value in (("multiple_of", multiple_of), ("low", low), ("high", high)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ArgumentError(f"sym({name!r}, {label}={shown(value)}): {label} must be a positive integer")
    if low > high or high > INT_MAX or high // multiple_of * multiple_of < low:
        raise ArgumentError(f"sym({name!r}): no multiple of {multiple_of} between {low} and {high}", legal=f"1 <= low <= high <= {INT_MAX}")
    return Var(name, low, high, multiple_of, True)


def as_expr(value: object) -> Expr:
    """An integer or an expression as an expression; anything else is refused."""
    if isinstance(value, Expr):
        return value
    if type(value) is int:
        return _integer(value)
    if not isinstance(value, bool):
        with contextlib.suppress(TypeError):
            return Const(operator.index(value))  # type: ignore[arg-type]
    raise ArgumentError(f"{shown(value)} is no integer expression", legal="an int or an expression of symbols")


@functools.lru_cache(maxsize=10_000)
def _integer(value: int) -> Const:
    return Const(value)


def constant(value: Expr | int) -> int | None:
    """The integer value, or None if it is known only at run time."""
    if isinstance(value, int):
        return value
    return value.value if isinstance(value, Const) else None


def _shift(amount: object) -> int:
    value = constant(as_expr(amount))
    if value is None or value < 0 or value > 62:
        raise ArgumentError(f"shift by {amount}: the amount must be an integer from 0 to 62")
    return value


def _product_range(atoms: Atoms, coefficient: int) -> tuple[int, int, int]:
    if len(atoms) == 1:
        atom = atoms[0]
        if coefficient < 0:
            return coefficient * atom.high, coefficient * atom.low, -coefficient * atom.factor
        return coefficient * atom.low, coefficient * atom.high, coefficient * atom.factor
    low = high = coefficient
    factor = abs(coefficient)
    for atom in atoms:
        ends = (low * atom.low, low * atom.high, high * atom.low, high * atom.high)
        low, high, factor = min(ends), max(ends), factor * atom.factor
    return low, high, factor


# ---------------------------------------------------------------------------------------------- sums and products


def _terms(value: Expr) -> tuple[Terms, int]:
    if isinstance(value, Const):
        return (), value.value
    if isinstance(value, Sum):
        return value.terms, value.constant
    return (((value,), 1),), 0


def _build(terms: Mapping[Atoms, int], number: int) -> Expr:
    kept = [(atoms, coefficient) for atoms, coefficient in terms.items() if coefficient]
    if not kept:
        return _integer(number)
    if len(kept) == 1 and number == 0 and kept[0][1] == 1 and len(kept[0][0]) == 1:
        return kept[0][0][0]
    if len(kept) > 1:
        kept.sort(key=_order)
    return Sum(tuple(kept), number)


def _order(term: tuple[Atoms, int]) -> tuple[str, ...]:
    atoms = term[0]
    return (_key(atoms[0]),) if len(atoms) == 1 else tuple(_key(atom) for atom in atoms)


def _key(value: Expr) -> str:
    """By what factors and terms are sorted: the text, which is equal in every process."""
    try:
        return value._order
    except AttributeError:  # asked for the first time
        _assign(value, "_order", _text(value, 0))
        return value._order


def add(left: Expr, right: Expr) -> Expr:
    """The sum, with `c*b*(x//b) + c*(x%b)` folded to `c*x`, and `c*(x//d)` to `(c//d)*x` where `d` divides `x` and `c`."""
    if isinstance(right, Const):
        if right.value == 0:
            return left
        if isinstance(left, Const):
            return _integer(left.value + right.value)
    elif isinstance(left, Const) and left.value == 0:
        return right
    return _add(left, right)


@functools.lru_cache(maxsize=50_000)
def _add(left: Expr, right: Expr) -> Expr:
    left_terms, left_constant = _terms(left)
    right_terms, right_constant = _terms(right)
    total = dict(left_terms)
    for atoms, coefficient in right_terms:
        total[atoms] = total.get(atoms, 0) + coefficient
    return _folded(total, left_constant + right_constant)


def subtract(left: Expr, right: Expr) -> Expr:
    """The difference, folded as in `add`."""
    if isinstance(right, Const):
        if right.value == 0:
            return left
        if isinstance(left, Const):
            return _integer(left.value - right.value)
    return _subtract(left, right)


@functools.lru_cache(maxsize=50_000)
def _subtract(left: Expr, right: Expr) -> Expr:
    left_terms, left_constant = _terms(left)
    right_terms, right_constant = _terms(right)
    total = dict(left_terms)
    for atoms, coefficient in right_terms:
        total[atoms] = total.get(atoms, 0) - coefficient
    return _folded(total, left_constant - right_constant)


def _folded(total: dict[Atoms, int], number: int) -> Expr:
    for atoms, coefficient in total.items():
        if not coefficient:
            continue
        for position, atom in enumerate(atoms):
            if isinstance(atom, FloorDiv):
                cancelled = _cancel(coefficient, atom, atoms[:position] + atoms[position + 1 :])
                if cancelled is not None:
                    remaining = {key: value for key, value in total.items() if key != atoms}
                    return add(_folded(remaining, number), cancelled)
            if isinstance(atom, Mod):
                rest = atoms[:position] + atoms[position + 1 :]
                merged = _merge_remainder(total, atoms, coefficient, atom, rest)
                if merged is not None:
                    remaining, extra = merged
                    return add(_folded(remaining, number), extra)
    return _build(total, number)


def _cancel(coefficient: int, quotient: FloorDiv, rest: Atoms) -> Expr | None:
    """`coefficient * (x // d) * rest` with `d` dividing `x` and the coefficient: `(coefficient // d) * x * rest`."""
    divisor = constant(quotient.right)
    if divisor is None or coefficient % divisor or quotient.left.factor % divisor:
        return None
    product = mul(Const(coefficient // divisor), quotient.left)
    for atom in rest:
        product = mul(product, atom)
    return product


def _merge_remainder(
    total: dict[Atoms, int], atoms: Atoms, coefficient: int, remainder: Mod, rest: Atoms
) -> tuple[dict[Atoms, int], Expr] | None:
    """`c*(x % b)` beside `c*b*(x // b)` or `c*b*((x // b) % a)`: the pair taken out, and what it equals."""
    if len(total) == 1:
        return None
    quotient = floordiv(remainder.left, remainder.right)
    for other_atoms, other_coefficient in total.items():
        if not other_coefficient or other_atoms == atoms:
            continue
        for position, atom in enumerate(other_atoms):
            whole = _quotient_partner(atom, quotient, remainder)
            if whole is None:
                continue
            other_rest = Const(other_coefficient)
            for factor in other_atoms[:position] + other_atoms[position + 1 :]:
                other_rest = mul(other_rest, factor)  # type: ignore[assignment]
            wanted = mul(Const(coefficient), remainder.right)
            for factor in rest:
                wanted = mul(wanted, factor)
            if other_rest == wanted:
                remaining = {key: value for key, value in total.items() if key not in (atoms, other_atoms)}
                extra = mul(Const(coefficient), whole)
                for factor in rest:
                    extra = mul(extra, factor)
                return remaining, extra
    return None


def _quotient_partner(atom: Expr, quotient: Expr, remainder: Mod) -> Expr | None:
    """What `b*atom + remainder` equals for `remainder = x % b`, if the atom is `x // b`, `x // b - c` or `(x // b) % a`."""
    if atom == quotient:
        return remainder.left
    if isinstance(atom, FloorDiv) and isinstance(quotient, Sum) and quotient.terms == (((atom,), 1),):
        return add(remainder.left, mul(remainder.right, Const(-quotient.constant)))
    if isinstance(atom, Mod) and atom.left == quotient:
        return mod(remainder.left, mul(remainder.right, atom.right))
    return None


def mul(left: Expr, right: Expr) -> Expr:
    """The product, distributed over sums and folded as in `add`."""
    if isinstance(left, Const):
        left, right = right, left
    if isinstance(right, Const):
        if right.value == 1:
            return left
        if right.value == 0:
            return ZERO
        if isinstance(left, Const):
            return _integer(left.value * right.value)
    return _mul(left, right)


@functools.lru_cache(maxsize=50_000)
def _mul(left: Expr, right: Expr) -> Expr:
    left_terms, left_constant = _terms(left)
    right_terms, right_constant = _terms(right)
    total: dict[Atoms, int] = {}
    for left_atoms, left_coefficient in (*left_terms, ((), left_constant)):
        for right_atoms, right_coefficient in (*right_terms, ((), right_constant)):
            coefficient = left_coefficient * right_coefficient
            if not coefficient:
                continue
            atoms = tuple(sorted(left_atoms + right_atoms, key=_key))
            total[atoms] = total.get(atoms, 0) + coefficient
    number = total.pop((), 0)
    return _folded(total, number)


# ---------------------------------------------------------------------------------------------- division


def _check_divisor(divisor: Expr) -> None:
    if divisor.low < 1:
        raise ArgumentError(f"division by {divisor}: the divisor may be {divisor.low}", legal="a divisor that is always positive")


def floordiv(left: Expr, right: Expr) -> Expr:
    """`left // right`, rounding down; legal when the divisor is always positive."""
    _check_divisor(right)
    if isinstance(right, Const):
        if right.value == 1:
            return left
        if isinstance(left, Const):
            return _integer(left.value // right.value)
        return _floordiv_constant(left, right.value)
    return ONE if left == right else _divide_symbolic(left, right)


def _divide_symbolic(left: Expr, right: Expr) -> Expr:
    """Terms that carry the divisor as a factor leave the quotient; the rest stays below the line."""
    terms, number = _terms(left)
    whole: Expr = ZERO
    rest: Expr = Const(number)
    for atoms, coefficient in terms:
        if right in atoms:
            position = atoms.index(right)
            part: Expr = Const(coefficient)
            for atom in atoms[:position] + atoms[position + 1 :]:
                part = mul(part, atom)
            whole = add(whole, part)
        else:
            rest = add(rest, _product(atoms, coefficient))
    if isinstance(rest, Mod) and rest.right == right:
        return whole
    if isinstance(rest, Sum) and isinstance(right, Sum):
        factor = _factored(rest, right)
        if factor is not None:
            return add(whole, factor)
    return add(whole, _decided(FloorDiv(rest, right)))


def _factored(left: Sum, right: Sum) -> Expr | None:
    """The quotient of two polynomials where `left - quotient * right` is provably 0 or a remainder; None where it is not."""
    leading, scale = right.terms[0]
    quotient: Expr = ZERO
    for atoms, coefficient in left.terms:
        rest = list(atoms)
        if coefficient % scale or any(rest.count(atom) < leading.count(atom) for atom in leading):
            continue
        for atom in leading:
            rest.remove(atom)
        quotient = add(quotient, _product(tuple(rest), coefficient // scale) if rest else Const(coefficient // scale))
    if quotient == ZERO:
        return None
    remainder = add(left, mul(Const(-1), mul(quotient, right)))
    return quotient if remainder.low >= 0 and remainder.high < right.low else None


def _decided(quotient: FloorDiv) -> Expr:
    return Const(quotient.low) if quotient.low == quotient.high else quotient


def _product(atoms: Atoms, coefficient: int) -> Expr:
    return _build({atoms: coefficient}, 0)


@functools.lru_cache(maxsize=50_000)
def _floordiv_constant(left: Expr, divisor: int) -> Expr:
    terms, number = _terms(left)
    whole: dict[Atoms, int] = {}
    rest: dict[Atoms, int] = {}
    for atoms, coefficient in terms:
        if coefficient % divisor == 0:
            whole[atoms] = coefficient // divisor
        else:
            rest[atoms] = coefficient
    remainder = _build(rest, number % divisor)
    quotient = _build(whole, number // divisor)
    return add(quotient, _floordiv_remainder(remainder, divisor))


def _floordiv_remainder(left: Expr, divisor: int) -> Expr:
    if left.low // divisor == left.high // divisor:
        return _integer(left.low // divisor)
    if isinstance(left, FloorDiv) and isinstance(left.right, Const):
        return floordiv(left.left, Const(left.right.value * divisor))
    if isinstance(left, Mod) and isinstance(left.right, Const) and left.right.value % divisor == 0:
        return mod(floordiv(left.left, Const(divisor)), Const(left.right.value // divisor))
    split = _split_by_factor(left, divisor)
    if split is not None:
        scaled, scale = split
        return floordiv(scaled, Const(divisor // scale))
    exact = _split_exact(left, divisor)
    if exact is not None:
        part, other = exact
        return add(floordiv(part, Const(divisor)), floordiv(other, Const(divisor)))
    return FloorDiv(left, Const(divisor))


def _split_by_factor(left: Expr, divisor: int) -> tuple[Expr, int] | None:
    """`left = scale*y + r` with `0 <= r < scale` and `scale` dividing the divisor: `(y, scale)`, largest scale first."""
    terms, number = _terms(left)
    scales = {math.gcd(coefficient, divisor) for _, coefficient in terms} | {math.gcd(number, divisor) if number else 1}
    for scale in sorted(scales, reverse=True):
        if scale <= 1:
            continue
        high_part = {atoms: coefficient // scale for atoms, coefficient in terms if coefficient % scale == 0}
        low_part = _build({atoms: coefficient for atoms, coefficient in terms if coefficient % scale}, number % scale)
        if low_part.low >= 0 and low_part.high < scale:
            return _build(high_part, number // scale), scale
    return None


def _split_exact(left: Expr, divisor: int) -> tuple[Expr, Expr] | None:
    """Terms all of whose values are multiples of the divisor (a symbol's fact), and the rest."""
    terms, number = _terms(left)
    exact = {atoms: coefficient for atoms, coefficient in terms if _product_range(atoms, coefficient)[2] % divisor == 0}
    if not exact or (len(exact) == len(terms) and number == 0):
        return None
    rest = {atoms: coefficient for atoms, coefficient in terms if atoms not in exact}
    return _build(exact, 0), _build(rest, number)


def mod(left: Expr, right: Expr) -> Expr:
    """`left % right`, never negative; legal when the divisor is always positive."""
    _check_divisor(right)
    if left.low >= 0 and left.high < right.low:
        return left
    if left.high < 0 and left.low >= -right.low:
        return add(left, right)
    if isinstance(right, Const):
        if right.value == 1:
            return ZERO
        if isinstance(left, Const):
            return _integer(left.value % right.value)
        return _mod_constant(left, right.value)
    if left == right:
        return ZERO
    if isinstance(left, Mod) and left.right == right:
        return left
    terms, number = _terms(left)
    rest = {atoms: coefficient for atoms, coefficient in terms if right not in atoms}
    if len(rest) < len(terms):
        return mod(_build(rest, number), right)
    return Mod(left, right)


@functools.lru_cache(maxsize=50_000)
def _mod_constant(left: Expr, divisor: int) -> Expr:
    terms, number = _terms(left)
    rest = {atoms: coefficient for atoms, coefficient in terms if _product_range(atoms, coefficient)[2] % divisor}
    reduced = _build(rest, number % divisor)
    if reduced.low // divisor == reduced.high // divisor:
        return _lifted(reduced, divisor)
    if isinstance(reduced, Mod) and isinstance(reduced.right, Const) and reduced.right.value % divisor == 0:
        return mod(reduced.left, Const(divisor))
    if reduced.low < 0:
        reduced = _lifted(reduced, divisor)
    split = _split_by_factor(reduced, divisor)
    if split is not None:
        scaled, scale = split
        low_part = add(reduced, mul(scaled, Const(-scale)))
        return add(mul(mod(scaled, Const(divisor // scale)), Const(scale)), low_part)
    return Mod(reduced, Const(divisor))


def _lifted(value: Expr, divisor: int) -> Expr:
    """The same residue class with a range that is not negative, so that C's `%` agrees."""
    return add(value, Const(-(value.low // divisor) * divisor))


def ceildiv(left: Expr | int, right: Expr | int) -> Expr:
    """`left / right` rounded up; legal when the divisor is always positive."""
    divisor = as_expr(right)
    return floordiv(add(as_expr(left), add(divisor, Const(-1))), divisor)


# ---------------------------------------------------------------------------------------------- bits


def possible_bits(value: Expr) -> int:
    """A mask of the bits that may be set; legal when the value is never negative."""
    if value.low < 0:
        raise ArgumentError(f"bits of {value}, which may be negative ({value.low})", legal="a value that is never negative")
    if isinstance(value, Const):
        return value.value
    return _possible_bits(value)


@functools.lru_cache(maxsize=20_000)
def _possible_bits(value: Expr) -> int:
    top = (1 << value.high.bit_length()) - 1
    trailing = value.factor & -value.factor if value.factor else 1
    bits = top & ~(trailing - 1)
    if isinstance(value, BitAnd):
        return bits & possible_bits(value.left) & possible_bits(value.right)
    if isinstance(value, (BitOr, BitXor)):
        return bits & (possible_bits(value.left) | possible_bits(value.right))
    if isinstance(value, Sum) and value.constant >= 0 and all(coefficient > 0 for _, coefficient in value.terms):
        seen = value.constant
        for atoms, coefficient in value.terms:
            part = _term_bits(atoms, coefficient)
            if seen & part:
                return bits
            seen |= part
        return bits & seen
    return bits


def _term_bits(atoms: Atoms, coefficient: int) -> int:
    low, high, factor = _product_range(atoms, coefficient)
    if low < 0:
        return -1
    trailing = factor & -factor if factor else 1
    return ((1 << high.bit_length()) - 1) & ~(trailing - 1)


def bit_and(left: Expr, right: Expr) -> Expr:
    """`left & right`; legal when neither is ever negative. A constant mask becomes remainders."""
    if isinstance(left, Const):
        left, right = right, left
    both = possible_bits(left) & possible_bits(right)
    if both == 0:
        return ZERO
    if isinstance(right, Const):
        if isinstance(left, Const):
            return Const(left.value & right.value)
        return _masked(left, right.value & possible_bits(left))
    return left if left == right else BitAnd(*_sorted(left, right))


def _masked(value: Expr, mask: int) -> Expr:
    """The bits of a mask, one run of ones after the other, as sums of shifted remainders."""
    total: Expr = ZERO
    while mask:
        start = (mask & -mask).bit_length() - 1
        run = (~(mask >> start) & -~(mask >> start)).bit_length() - 1
        field = mod(floordiv(value, Const(1 << start)), Const(1 << run))
        total = add(total, mul(field, Const(1 << start)))
        mask &= ~(((1 << run) - 1) << start)
    return total


def _sorted(left: Expr, right: Expr) -> tuple[Expr, Expr]:
    return (left, right) if _key(left) <= _key(right) else (right, left)


def bit_or(left: Expr, right: Expr) -> Expr:
    """`left | right`; legal when neither is ever negative. Disjoint bits become a sum."""
    if possible_bits(left) & possible_bits(right) == 0:
        return add(left, right)
    if isinstance(left, Const) and isinstance(right, Const):
        return Const(left.value | right.value)
    return left if left == right else BitOr(*_sorted(left, right))


def bit_xor(left: Expr, right: Expr) -> Expr:
    """`left ^ right`; legal when neither is ever negative. Disjoint bits become a sum.

    Bits below all those of the other side leave the node: a swizzled address plus a step inside the vector is
    the swizzled address of the vector, plus the step. Each such split raises the lowest bit of one side, so they end.
    """
    if possible_bits(left) & possible_bits(right) == 0:
        return add(left, right)
    if isinstance(left, Const) and isinstance(right, Const):
        return Const(left.value ^ right.value)
    if left == right:
        return ZERO
    for value, other in ((left, right), (right, left)):
        step = Const(possible_bits(other) & -possible_bits(other))
        below = mod(value, step)
        if below != ZERO:
            return add(bit_xor(mul(floordiv(value, step), step), other), below)
    return BitXor(*_sorted(left, right))


def positive(value: Expr | int) -> Expr:
    """The value, taken to be at least 1; whoever uses it must check that."""
    size = as_expr(value)
    return size if size.low >= 1 else Positive(size)


def minimum(left: Expr | int, right: Expr | int) -> Expr:
    """The smaller of two values."""
    first, second = as_expr(left), as_expr(right)
    if first.high <= second.low:
        return first
    if second.high <= first.low:
        return second
    return first if first == second else Min(*_sorted(first, second))


# ---------------------------------------------------------------------------------------------- conditions


def less(left: Expr | int, right: Expr | int) -> Expr:
    """The truth of `left < right`; decided at once where the range of the difference decides it."""
    first, second = as_expr(left), as_expr(right)
    if first.high < second.low:
        return TRUE
    if first.low >= second.high:
        return FALSE
    gap = subtract(second, first)
    if gap.low > 0:
        return TRUE
    if gap.high <= 0:
        return FALSE
    return Less(first, second)


def equal(left: Expr | int, right: Expr | int) -> Expr:
    """The truth of `left == right`."""
    first, second = as_expr(left), as_expr(right)
    gap = subtract(first, second)
    if gap.low > 0 or gap.high < 0:
        return FALSE
    if gap.low == gap.high:
        return TRUE
    return Equal(first, second)


def _parts(conditions: Iterable[Expr], kind: type[All] | type[AnyOf]) -> Iterable[Expr]:
    if not isinstance(conditions, Iterable):
        raise ArgumentError("conditions to join must come in a sequence", got=conditions, legal="all_of((less(a, b), equal(c, d)))")
    for condition in conditions:
        if not isinstance(condition, Expr) or condition.low < 0 or condition.high > 1:
            raise ArgumentError(f"{shown(condition)} is no condition", legal="less(a, b), equal(a, b), and all_of or any_of of conditions")
        yield from condition.conditions if isinstance(condition, kind) else (condition,)


def all_of(conditions: Iterable[Expr]) -> Expr:
    """The conjunction; true when there is none. Equal conditions stand once, in order of first appearance."""
    flat: dict[Expr, None] = {}
    for part in _parts(conditions, All):
        if part == FALSE:
            return FALSE
        if part != TRUE:
            flat[part] = None
    parts = tuple(flat)
    return TRUE if not parts else parts[0] if len(parts) == 1 else All(parts)


def any_of(conditions: Iterable[Expr]) -> Expr:
    """The disjunction; false when there is none."""
    flat: dict[Expr, None] = {}
    for part in _parts(conditions, AnyOf):
        if part == TRUE:
            return TRUE
        if part != FALSE:
            flat[part] = None
    parts = tuple(flat)
    return FALSE if not parts else parts[0] if len(parts) == 1 else AnyOf(parts)


def conjuncts(condition: Expr) -> Atoms:
    """The parts of a conjunction; none for true."""
    if condition == TRUE:
        return ()
    return condition.conditions if isinstance(condition, All) else (condition,)


FloorDiv.build = staticmethod(floordiv)
Mod.build = staticmethod(mod)
BitAnd.build = staticmethod(bit_and)
BitOr.build = staticmethod(bit_or)
BitXor.build = staticmethod(bit_xor)
Min.build = staticmethod(minimum)
Less.build = staticmethod(less)
Equal.build = staticmethod(equal)
All.join = staticmethod(all_of)
AnyOf.join = staticmethod(any_of)


# ---------------------------------------------------------------------------------------------- walking


def _substitute(value: Expr, values: Mapping[Var, Expr], memo: dict[Expr, Expr]) -> Expr:
    if value in memo:
        return memo[value]
    if isinstance(value, Var):
        result = values.get(value, value)
    elif not value.children or value.variables().isdisjoint(values):
        result = value
    else:
        result = value.rebuilt(tuple(_substitute(child, values, memo) for child in value.children))
    memo[value] = result
    return result


_PRECEDENCE = {BitOr: 1, BitXor: 2, BitAnd: 3}


def _variable_name(value: Var) -> str:
    return value.name


def _variable_repr(value: Var) -> str:
    return f"Var({value.name!r}, {value.low}, {value.high}, {value.multiple_of}, {value.parameter})"


def _text(value: Expr, outer: int, name: Callable[[Var], str] = _variable_name) -> str:
    """Python source; `outer` is the precedence of what stands around: 1 | 2 ^ 3 & 4 + 5 * // %."""
    if isinstance(value, Const):
        text, precedence = str(value.value), 9 if value.value >= 0 else 4
        if name is _variable_repr and outer == 0:
            return f"Const({value.value})"
    elif isinstance(value, Var):
        return name(value)
    elif isinstance(value, Positive):
        return f"positive({_text(value.value, 0, name)})" if name is _variable_repr else _text(value.value, outer, name)
    else:
        text, precedence = _node_text(value, lambda part, level: _text(part, level, name))
    return f"({text})" if precedence < outer else text


def _node_text(value: Expr, show: Callable[[Expr, int], str]) -> tuple[str, int]:
    match value:
        case Sum():
            return _sum_text(value, show)
        case FloorDiv(left=left, right=right):
            return f"{show(left, 5)} // {show(right, 6)}", 5
        case Mod(left=left, right=right):
            return f"{show(left, 5)} % {show(right, 6)}", 5
        case BitAnd(left=left, right=right):
            return f"{show(left, 3)} & {show(right, 4)}", 3
        case BitXor(left=left, right=right):
            return f"{show(left, 2)} ^ {show(right, 3)}", 2
        case BitOr(left=left, right=right):
            return f"{show(left, 1)} | {show(right, 2)}", 1
        case Min(left=left, right=right):
            return f"minimum({show(left, 0)}, {show(right, 0)})", 9
        case Less(left=left, right=right):
            return f"{show(left, 1)} < {show(right, 1)}", 0
        case Equal(left=left, right=right):
            return f"equal({show(left, 0)}, {show(right, 0)})", 9
        case All(conditions=conditions):
            return f"all_of(({', '.join(show(c, 0) for c in conditions)},))", 9
        case AnyOf(conditions=conditions):
            return f"any_of(({', '.join(show(c, 0) for c in conditions)},))", 9
    raise TypeError(type(value))


def _sum_text(value: Sum, show: Callable[[Expr, int], str]) -> tuple[str, int]:
    parts: list[str] = []
    for atoms, coefficient in sorted(value.terms, key=lambda term: -term[1] if term[1] > 0 else -term[1] + 2**70):
        first = 5 if parts or coefficient > 0 else 6  # Python reads -a // b as (-a) // b
        product = " * ".join(show(atom, first if position == 0 else 6) for position, atom in enumerate(atoms))
        size = abs(coefficient)
        text = product if size == 1 else f"{product} * {size}"
        parts.append(("- " if coefficient < 0 else "+ ") + text)
    if value.constant:
        parts.append(f"{'-' if value.constant < 0 else '+'} {abs(value.constant)}")
    if len(parts) == 1 and parts[0].startswith("+ "):
        return parts[0][2:], 5
    text = " ".join(parts)
    return (text[2:] if text.startswith("+ ") else f"-{text[2:]}" if not text.startswith("- -") else text), 4


def source(value: Expr) -> str:
    """Python source that evaluates with NumPy for `&`, conditions and minimum alike."""
    match value:
        case Const():
            return str(value.value) if value.value >= 0 else f"({value.value})"
        case Var():
            return f"e[{value.name!r}]"
        case Sum():
            parts = ["*".join([*(_number_source(a) for a in atoms), *([str(c)] if c != 1 else [])]) for atoms, c in value.terms]
            return f"({'+'.join([*parts, *([str(value.constant)] if value.constant else [])])})"
        case FloorDiv(left=left, right=right):
            return f"({source(left)}//{source(right)})"
        case Mod(left=left, right=right):
            return f"({source(left)}%{source(right)})"
        case BitAnd(left=left, right=right):
            return f"({source(left)}&{source(right)})"
        case BitOr(left=left, right=right):
            return f"({source(left)}|{source(right)})"
        case BitXor(left=left, right=right):
            return f"({source(left)}^{source(right)})"
        case Positive(value=inner):
            return source(inner)
        case Min(left=left, right=right):
            return f"_min({source(left)},{source(right)})"
        case Less(left=left, right=right):
            return f"({source(left)}<{source(right)})"
        case Equal(left=left, right=right):
            return f"({source(left)}=={source(right)})"
        case All():
            return f"({'&'.join(source(c) for c in value.conditions)})"
        case AnyOf():
            return f"({'|'.join(source(c) for c in value.conditions)})"
    raise TypeError(type(value))


def _number_source(value: Expr) -> str:
    """A truth value as a number: NumPy's sum of two truth values is their disjunction."""
    return f"({source(value)}*1)" if isinstance(value, (Less, Equal, All, AnyOf)) else source(value)


def _numeric_minimum(left: Any, right: Any) -> Any:
    if isinstance(left, int) and isinstance(right, int):
        return min(left, right)
    import numpy

    return numpy.minimum(left, right)


@functools.lru_cache(maxsize=20_000)
def compiled(value: Expr) -> Callable[[Mapping[str, Any]], Any]:
    """A function from an environment (name to integer or array) to the value."""
    scope: dict[str, Any] = {"_min": _numeric_minimum}
    exec(f"def f(e): return {source(value)}", scope)
    return scope["f"]  # type: ignore[no-any-return]
