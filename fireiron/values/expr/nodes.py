"""The nodes of expressions with the ranges of their values, and the operations of all expressions.

The smart constructors create and simplify nodes; only they (and tests) call the classes directly.
"""

from __future__ import annotations

import contextlib
import functools
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, Literal, TypeAlias, TypeVar, dataclass_transform

import attrs

from fireiron.errors import ArgumentError, shown
from fireiron.values.expr.ranges import bits_below, product_range, term_bits

INT_MAX = 2**31 - 1
"""Largest value of a 32-bit index."""

Atoms: TypeAlias = "tuple[Expr, ...]"
Terms: TypeAlias = "tuple[tuple[Atoms, int], ...]"
Node = TypeVar("Node")


class Rules:
    """The functions that implement the operators and methods of `Expr`, which depend on the node classes.

    The package binds them on import (`operators`), because nodes, their constructors and their printers depend on each other. They are
    bound once, so an operator costs only one lookup more than a call.
    """

    add: ClassVar[Callable[[Expr, Expr], Expr]]
    subtract: ClassVar[Callable[[Expr, Expr], Expr]]
    mul: ClassVar[Callable[[Expr, Expr], Expr]]
    floordiv: ClassVar[Callable[[Expr, Expr], Expr]]
    mod: ClassVar[Callable[[Expr, Expr], Expr]]
    bit_and: ClassVar[Callable[[Expr, Expr], Expr]]
    bit_or: ClassVar[Callable[[Expr, Expr], Expr]]
    bit_xor: ClassVar[Callable[[Expr, Expr], Expr]]
    less: ClassVar[Callable[[Expr, Expr], Expr]]
    text: ClassVar[Callable[[Expr], str]]
    representation: ClassVar[Callable[[Expr], str]]
    compiled: ClassVar[Callable[[Expr], Callable[[Mapping[str, Any]], Any]]]


class Expr:
    """An integer (or truth) value known when the kernel runs; immutable, equal by value."""

    __slots__ = ("_order", "_variables")
    low: int
    high: int
    factor: int
    _order: str
    _variables: frozenset[Var]

    def __add__(self, other: object) -> Expr:
        return Rules.add(self, other if isinstance(other, Expr) else as_expr(other))

    __radd__ = __add__

    def __mul__(self, other: object) -> Expr:
        return Rules.mul(self, other if isinstance(other, Expr) else as_expr(other))

    __rmul__ = __mul__

    def __neg__(self) -> Expr:
        return Rules.mul(self, MINUS_ONE)

    def __sub__(self, other: object) -> Expr:
        return Rules.subtract(self, other if isinstance(other, Expr) else as_expr(other))

    def __rsub__(self, other: object) -> Expr:
        return Rules.subtract(as_expr(other), self)

    def __floordiv__(self, other: object) -> Expr:
        return Rules.floordiv(self, other if isinstance(other, Expr) else as_expr(other))

    def __rfloordiv__(self, other: object) -> Expr:
        return Rules.floordiv(as_expr(other), self)

    def __mod__(self, other: object) -> Expr:
        return Rules.mod(self, other if isinstance(other, Expr) else as_expr(other))

    def __rmod__(self, other: object) -> Expr:
        return Rules.mod(as_expr(other), self)

    def __and__(self, other: object) -> Expr:
        mask = as_expr(other)
        if isinstance(mask, Const) and mask.value < 0:  # such as ~7, whose high bits are ones
            mask = Const(mask.value & possible_bits(self))
        return Rules.bit_and(self, mask)

    __rand__ = __and__

    def __or__(self, other: object) -> Expr:
        return Rules.bit_or(self, as_expr(other))

    __ror__ = __or__

    def __xor__(self, other: object) -> Expr:
        return Rules.bit_xor(self, as_expr(other))

    __rxor__ = __xor__

    def __lshift__(self, other: object) -> Expr:
        return Rules.mul(self, integer(1 << _shift(other)))

    def __rlshift__(self, other: object) -> Expr:
        return as_expr(other) << self

    def __rshift__(self, other: object) -> Expr:
        return Rules.floordiv(self, integer(1 << _shift(other)))

    def __rrshift__(self, other: object) -> Expr:
        return as_expr(other) >> self

    def __lt__(self, other: object) -> Expr:
        return Rules.less(self, as_expr(other))

    def __le__(self, other: object) -> Expr:
        return Rules.less(self, as_expr(other) + 1)

    def __gt__(self, other: object) -> Expr:
        return Rules.less(as_expr(other), self)

    def __ge__(self, other: object) -> Expr:
        return Rules.less(as_expr(other), self + 1)

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

    def set_bits(self) -> int:
        """A mask of the bits that may be set; legal only for nonnegative values."""
        return bits_below(self.high, self.factor)

    def variables(self) -> frozenset[Var]:
        """All variables that occur."""
        try:
            return self._variables
        except AttributeError:  # on first use
            result = frozenset((self,)) if isinstance(self, Var) else frozenset().union(*(child.variables() for child in self.children))
            assign(self, "_variables", result)
            return result

    def subexpressions(self) -> Iterator[Expr]:
        """The expression itself, and all expressions inside it."""
        yield self
        for child in self.children:
            yield from child.subexpressions()

    def substitute(self, values: Mapping[Var, Expr | int]) -> Expr:
        """The expression with variables replaced and simplified; an `ArgumentError` for a key that is not a variable."""
        for variable in values:
            if not isinstance(variable, Var):
                raise ArgumentError(f"substitute({shown(variable)}): {shown(variable)} is not a variable", legal="a Var for each value")
        if not values or values.keys().isdisjoint(self.variables()):
            return self
        return _substituted(self, {name: as_expr(value) for name, value in values.items()}, {})

    def evaluate(self, environment: Mapping[str, Any]) -> Any:
        """The value for integers, or NumPy arrays, by variable name; an `ArgumentError` if one is missing."""
        try:
            return Rules.compiled(self)(environment)
        except KeyError as error:
            needed = sorted(variable.name for variable in self.variables())
            raise ArgumentError(f"{self} has no value: no value is given for {error}", legal=f"values for {' '.join(needed)}") from None

    def __str__(self) -> str:
        return Rules.text(self)

    def __repr__(self) -> str:
        return Rules.representation(self)


def range_fields(*, init: Literal[False] = False) -> Any:
    """A field derived from the others: not an argument, not compared, not shown."""
    return attrs.field(init=init, eq=False, repr=False)


@dataclass_transform(frozen_default=True, field_specifiers=(range_fields,))
def node(cls: type[Node]) -> type[Node]:
    """A frozen class with slots. It caches its hash: nodes are keys of every cache, and hashing traverses the whole tree."""
    result = attrs.frozen(cls, slots=True, eq=True, repr=False, cache_hash=True, order=False)
    if "__ne__" in vars(result):  # that of `object` inverts `__eq__` without Python code
        del result.__ne__
    return result


assign = object.__setattr__
"""Set a derived field of a frozen node, once."""


def set_range(node: Expr, low: int, high: int, factor: int = 1) -> None:
    """Set the range of a node, reduced to the nearest multiples of the factor: values of `4 * x` below 7 are at most 4."""
    if factor > 1:
        low, high = low + -low % factor, high - high % factor
    assign(node, "low", low)
    assign(node, "high", high)
    assign(node, "factor", factor)


def _integer(value: object, what: str) -> int:
    """The value as a plain integer, also from NumPy; anything else is refused, including truth values."""
    try:
        return operator.index(None if isinstance(value, bool) else value)  # type: ignore[arg-type]
    except TypeError:
        raise ArgumentError(f"{what} must be an integer", got=value) from None


@node
class Const(Expr):
    """An integer."""

    value: int
    low: int = range_fields()
    high: int = range_fields()
    factor: int = range_fields()

    def __attrs_post_init__(self) -> None:
        if type(self.value) is not int:
            assign(self, "value", _integer(self.value, "Const: value"))
        assign(self, "low", self.value)
        assign(self, "high", self.value)
        assign(self, "factor", abs(self.value))


@node
class Var(Expr):
    """A variable with values `low..high`, all divisible by `multiple_of`.

    A variable that is a `parameter` is a run-time size or stride and becomes a kernel parameter.
    """

    name: str
    low: int = 0
    high: int = INT_MAX
    multiple_of: int = 1
    parameter: bool = False
    factor: int = range_fields()

    def __attrs_post_init__(self) -> None:
        for field in ("low", "high", "multiple_of"):
            if type(getattr(self, field)) is not int:
                assign(self, field, _integer(getattr(self, field), f"Var: {field}"))
        if not isinstance(self.name, str) or not isinstance(self.parameter, bool):
            raise ArgumentError("Var: name must be a string, and parameter a bool", got=(self.name, self.parameter), legal='Var("i", 0, 7)')
        if self.multiple_of < 1:
            raise ArgumentError(f"Var({self.name!r}, multiple_of={self.multiple_of}): multiple_of must be a positive integer")
        low = -(-self.low // self.multiple_of) * self.multiple_of
        high = self.high // self.multiple_of * self.multiple_of
        if low > high:
            raise ArgumentError(f"Var({self.name!r}): no multiple of {self.multiple_of} between {self.low} and {self.high}")
        set_range(self, low, high, self.multiple_of)


@node
class Sum(Expr):
    """A polynomial: `sum of coefficient * product of atoms, plus constant`. Use the operators to build it."""

    terms: Terms
    constant: int = 0
    low: int = range_fields()
    high: int = range_fields()
    factor: int = range_fields()

    def __attrs_post_init__(self) -> None:
        low = high = self.constant
        factor = abs(self.constant)
        for atoms, coefficient in self.terms:
            term_low, term_high, term_factor = product_range(atoms, coefficient)
            low, high, factor = low + term_low, high + term_high, math.gcd(factor, term_factor)
        set_range(self, low, high, factor)

    def set_bits(self) -> int:
        """If no two terms share a bit, adding them causes no carries: the set bits are those of the terms."""
        bits = bits_below(self.high, self.factor)
        if self.constant < 0 or any(coefficient <= 0 for _, coefficient in self.terms):
            return bits
        seen = self.constant
        for atoms, coefficient in self.terms:
            part = term_bits(atoms, coefficient)
            if seen & part:
                return bits
            seen |= part
        return bits & seen

    @property
    def children(self) -> Atoms:
        return tuple(atom for atoms, _ in self.terms for atom in atoms)

    def rebuilt(self, children: Atoms) -> Expr:
        rest = iter(children)
        total: Expr = integer(self.constant)
        for atoms, coefficient in self.terms:
            product: Expr = integer(coefficient)
            for _ in atoms:
                product = product * next(rest)
            total = total + product
        return total


@node
class Binary(Expr):
    """A node with two operands; `build` is the constructor that creates and simplifies it."""

    left: Expr
    right: Expr
    low: int = range_fields()
    high: int = range_fields()
    factor: int = range_fields()
    build: ClassVar[Callable[[Expr, Expr], Expr]]

    @property
    def children(self) -> Atoms:
        return (self.left, self.right)

    def rebuilt(self, children: Atoms) -> Expr:
        return type(self).build(children[0], children[1])


@node
class FloorDiv(Binary):
    """`left // right`, the divisor positive."""

    def __attrs_post_init__(self) -> None:
        # floor division by a positive number is monotonic in each operand, so the extremes are at the ends
        ends = [value // divisor for value in (self.left.low, self.left.high) for divisor in (self.right.low, self.right.high)]
        exact = isinstance(self.right, Const) and self.left.factor % self.right.value == 0
        set_range(self, min(ends), max(ends), self.left.factor // self.right.low if exact else 1)


@node
class Mod(Binary):
    """`left % right`, the divisor positive; never negative."""

    def __attrs_post_init__(self) -> None:
        top = self.right.high - 1
        high = min(self.left.high, top) if self.left.low >= 0 else top
        divides = isinstance(self.right, Const)
        set_range(self, 0, high, math.gcd(self.left.factor, self.right.low) if divides else 1)


@node
class BitAnd(Binary):
    """`left & right`, both not negative."""

    def __attrs_post_init__(self) -> None:
        bits = possible_bits(self.left) & possible_bits(self.right)
        set_range(self, 0, min(self.left.high, self.right.high, bits), bits & -bits)

    def set_bits(self) -> int:
        """The bits that both operands may have."""
        return super().set_bits() & possible_bits(self.left) & possible_bits(self.right)


@node
class BitOr(Binary):
    """`left | right`, both not negative."""

    def __attrs_post_init__(self) -> None:
        bits = possible_bits(self.left) | possible_bits(self.right)
        set_range(self, max(self.left.low, self.right.low), bits, bits & -bits)

    def set_bits(self) -> int:
        """The bits that either operand may have."""
        return super().set_bits() & (possible_bits(self.left) | possible_bits(self.right))


@node
class BitXor(Binary):
    """`left ^ right`, both not negative."""

    def __attrs_post_init__(self) -> None:
        bits = possible_bits(self.left) | possible_bits(self.right)
        set_range(self, 0, bits, bits & -bits)

    def set_bits(self) -> int:
        """The bits that either operand may have."""
        return super().set_bits() & (possible_bits(self.left) | possible_bits(self.right))


@node
class Min(Binary):
    """The smaller of two values."""

    def __attrs_post_init__(self) -> None:
        low, high = min(self.left.low, self.right.low), min(self.left.high, self.right.high)
        set_range(self, low, high, math.gcd(self.left.factor, self.right.factor))


@node
class Positive(Expr):
    """A size assumed to be at least 1; the launcher checks it."""

    value: Expr
    low: int = range_fields()
    high: int = range_fields()
    factor: int = range_fields()

    def __attrs_post_init__(self) -> None:
        set_range(self, max(1, self.value.low), max(1, self.value.high), self.value.factor)

    @property
    def children(self) -> Atoms:
        return (self.value,)

    def rebuilt(self, children: Atoms) -> Expr:
        return assume_positive(children[0])


@node
class Less(Binary):
    """The truth of `left < right`."""

    def __attrs_post_init__(self) -> None:
        set_range(self, 0, 1)


@node
class Equal(Binary):
    """The truth of `left == right`."""

    def __attrs_post_init__(self) -> None:
        set_range(self, 0, 1)


@node
class Junction(Expr):
    """A conjunction or disjunction; `join` is the constructor that creates and simplifies it."""

    conditions: Atoms
    low: int = range_fields()
    high: int = range_fields()
    factor: int = range_fields()
    join: ClassVar[Callable[[Iterable[Expr]], Expr]]

    def __attrs_post_init__(self) -> None:
        set_range(self, 0, 1)

    @property
    def children(self) -> Atoms:
        return self.conditions

    def rebuilt(self, children: Atoms) -> Expr:
        return type(self).join(children)


@node
class All(Junction):
    """The conjunction of conditions, none of them itself a conjunction."""


@node
class AnyOf(Junction):
    """The disjunction of conditions, none of them itself a disjunction."""


TRUE = Const(1)
FALSE = Const(0)
ZERO = Const(0)
ONE = Const(1)
MINUS_ONE = Const(-1)


def as_expr(value: object) -> Expr:
    """An integer, an expression, or an object with an `expression`, as an expression; anything else is refused."""
    if isinstance(value, Expr):
        return value
    if type(value) is int:
        return integer(value)
    expression = getattr(value, "expression", None)
    if isinstance(expression, Expr):
        return expression
    if not isinstance(value, bool):
        with contextlib.suppress(TypeError):
            return Const(operator.index(value))  # type: ignore[arg-type]
    raise ArgumentError(f"{shown(value)} is not an integer expression", legal="an int or an expression of symbols")


@functools.lru_cache(maxsize=10_000)
def integer(value: int) -> Const:
    """An integer; common ones are cached."""
    return Const(value)


def constant(value: Expr | int) -> int | None:
    """The integer value, or None if it is known only at run time."""
    if value.__class__ is Const:  # the most frequent question about expressions
        return value.value
    return value if isinstance(value, int) else None


def _shift(amount: object) -> int:
    value = constant(as_expr(amount))
    if value is None or value < 0 or value > 62:
        raise ArgumentError(f"shift by {amount}: the amount must be an integer from 0 to 62")
    return value


def assume_positive(value: Expr | int) -> Expr:
    """The value, assumed to be at least 1; the caller must ensure it."""
    size = as_expr(value)
    return size if size.low >= 1 else Positive(size)


def possible_bits(value: Expr) -> int:
    """A mask of the bits that may be set; legal if the value is never negative."""
    if value.low < 0:
        raise ArgumentError(f"bits of {value}: the value may be negative ({value.low})", legal="a value that is never negative")
    if isinstance(value, Const):
        return value.value
    return _possible_bits(value)


@functools.lru_cache(maxsize=20_000)
def _possible_bits(value: Expr) -> int:
    return value.set_bits()


def _substituted(value: Expr, values: Mapping[Var, Expr], memo: dict[Expr, Expr]) -> Expr:
    if value.__class__ is Var:
        return values.get(value, value)
    if value.__class__ is Const:
        return value
    if value in memo:  # sub-expressions are shared, and the expanded tree may be exponentially larger than its nodes
        return memo[value]
    if not value.children or values.keys().isdisjoint(value.variables()):
        result = value
    else:
        result = value.rebuilt(tuple(_substituted(child, values, memo) for child in value.children))
    memo[value] = result
    return result


def replaced(value: Expr, names: Mapping[Expr, Expr]) -> Expr:
    """The expression with some subexpressions replaced, for example by their names."""
    if not names:
        return value
    if value in names:
        return names[value]
    children = value.children
    if not children:
        return value
    others = tuple(replaced(child, names) for child in children)
    return value if others == children else value.rebuilt(others)
