"""Formulas: what a spec computes, as text. `C[m,n] += sum(k, A[m,k] * B[k,n])` states the operands, the dimensions and the meaning.

A spec with several outputs has one formula per output, separated by `;`. Formulas are data, never code: the parser of this file is the only
reader.

    definition = formula {";" formula}
    formula   = element [("=" | "+=" | "sum=" | "max=" | "min=" | "*=" | "prod=") (reduction | scan | value)]
    scan      = ("cumsum" | "cummax" | "cummin" | "cumprod") "(" dimension "," value ")"
              | "linear_recurrence" "(" dimension "," value "," value ")"
    reduction = ("sum" | "max" | "min" | "prod") "(" dimension {"," dimension} "," value ")"
    value     = or {("max" | "min") or}           or = xor {"|" xor}       xor = and {"^" and}      and = shift {"&" shift}
    shift     = sum {("<<" | ">>") sum}           sum = term {("+" | "-") term}
    term      = factor {("*" | "/" | "//" | "%") factor}
    factor    = ("-" | "~") factor | number | "inf" | element | function "(" value {"," value} ")" | "(" value ")" | choice
    choice    = "where" "(" condition "," value "," value ")"
    condition = both {"or" both}                both = test {"and" test}
    test      = value ("<" | "<=" | ">" | ">=" | "==" | "!=") value | "(" condition ")"
    element   = tensor ["[" [index {"," index}] "]"]
    index     = dimension ["^" integer | ("+" | "-" | "=") integer "in" integer] | digit | array "[" digit {"," digit} "]" | affine
    affine    = sum | "(" sum ")" "/" integer | dimension "/" integer
    sum       = ["-"] part {("+" | "-") part}   part = integer | (dimension | "size" "(" dimension ")") ["*" integer]
    digit     = dimension [("//" | "%") integer]
    sparse    = "decompressed" "(" element "," element ")"          a factor of a sum of products

Operators bind as in Python. `// % << >> & | ^ ~` are for integers (`fireiron.specs.bits`), and a number may be hexadecimal: `0xff`.

A tensor without indices is a scalar, an input or a result: `y[m] += alpha * x[m]`, `total += sum(m, x[m])`. `total[]` is the same.

An index with an operator selects another element of its dimension. `t ^ 5` selects the element whose number differs from `t` in the bits of
5. The other operators work in groups of 8 adjacent elements: `t + 1 in 8` selects the next element and `t - 1 in 8` the previous one (at
the end of the group, the element itself); `t = 3 in 8` selects element 3 of the group.

In steps of a definition, an index of an operand may be a digit of a coordinate, `S[n,k // 64]`, or an element of an array of integers,
`A[rows[m],k]`; or an affine expression of coordinates and extents, `X[c,p * 2 + r - 1]`, which reads zero where it is outside of the
array. The element has the dimensions that occur in its indices.

`decompressed(W[m,k // 2], E[m,k // 8])` is an element of a 2:4 sparse matrix: W has the two kept elements of each four along k, and E the
metadata of eight elements of k per byte. It may be a factor of a sum of products along k.

As an index, `...` represents the dimensions of a spec of any rank (`expand_ellipsis`). `sum=` is another spelling of `+=`, `prod=` of `*=`.

A formula without a right side allocates its tensor, whose values are unspecified. If the spec accumulates, `+=` adds the result to the
present value of the tensor, `*=` multiplies the two, and `max=` and `min=` keep the larger or smaller one.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, TypeGuard

import attrs

from fireiron.errors import ArgumentError, closest
from fireiron.frozen import frozen
from fireiron.values.affine import affine_text, digit_text

FUNCTIONS: Final[Mapping[str, int]] = {
    "abs": 1, "bits": 1, "clamp": 3, "cos": 1, "e2m1": 1, "e8m0": 1, "erf": 1, "exp": 1, "exp2": 1, "floor": 1, "from_bits": 1, "gelu": 1,
    "int32": 1, "log": 1, "log1p": 1, "log2": 1, "max": 2, "min": 2, "mulhi": 2, "philox": 2, "relu": 1, "round": 1, "rsqrt": 1,
    "sigmoid": 1, "silu": 1, "sin": 1, "sqrt": 1, "tanh": 1, "tanh_approx": 1, "uniform": 2, "where": 3,
}  # fmt: skip
"""Functions of elements, with the number of their arguments; `where` takes a condition and two values."""

MOST_ARGUMENTS: Final[Mapping[str, int]] = {"philox": 6, "uniform": 6}
"""The largest number of arguments of functions with optional ones."""

DECOMPRESSED: Final = "decompressed"
"""The operation whose value is an element of a 2:4 sparse matrix: of the kept values and the metadata, its two arguments."""

SPARSE_DIGITS: Final = (2, 8)
"""Coordinates per element along the compressed dimension: of the kept values, and of the metadata."""

WORK: Final[Mapping[str, int]] = {"philox": 100, "uniform": 102, "clamp": 2, DECOMPRESSED: 0}
"""Arithmetic operations of functions that are not one: ten rounds of two products, two of their upper halves, and sums."""

COMPARISONS: Final = ("<", "<=", ">", ">=", "==", "!=")
"""Comparison operators of conditions."""

CONDITIONS: Final = (*COMPARISONS, "and", "or")
"""Operators of conditions, the first argument of `where`."""

REDUCTIONS: Final[Mapping[str, str]] = {"sum": "+=", "max": "max=", "min": "min=", "prod": "*="}
"""Reductions, with the sign that combines their result with the present value of the output."""

SCANS: Final[Mapping[str, str]] = {"cumsum": "sum", "cummax": "max", "cummin": "min", "cumprod": "prod"}
"""Scans, with the reduction that combines elements: `cumsum(n, x[m,n])` at n is the sum of `x[m,0]` to `x[m,n]`."""

RECURRENCE: Final = "linear_recurrence"
"""The scan of two values: `linear_recurrence(n, a[m,n], x[m,n])` is h with h[n] = a[n] * h[n - 1] + x[n], from h = 0 before the first."""

ALL_SCANS: Final = (*SCANS, RECURRENCE)
"""The names of all scans."""

PAIR: Final = ","
"""The name of the operation whose arguments are the two values of a recurrence."""

EXTREMES: Final = ("max", "min")
"""Reductions that ignore NaN if another value is a number."""


@frozen
class Number:
    """A constant."""

    value: int | float

    def __str__(self) -> str:
        return str(self.value)


@frozen
class Index:
    """An index: a dimension, or with a sign, another element of that dimension. Shuffles between lanes use signs.

    The sign `^` selects the element whose number differs in the bits of `number`. In groups of `width` adjacent elements, `+` and `-`
    select the element `number` after or before (at the end of the group, the element itself), and `=` the element with that number. The
    signs `//` and `%` select the quotient and the remainder, as an index of another dimension.
    """

    dim: str
    sign: str = ""
    number: int = 0
    width: int = 0

    def __str__(self) -> str:
        group = f" in {self.width}" if self.width else ""
        return f"{self.dim} {self.sign} {self.number}{group}" if self.sign else self.dim

    @property
    def plain(self) -> bool:
        """Whether the index is the dimension itself, without a sign."""
        return not self.sign

    def source(self, place: Any) -> Any:
        """Return the number of the element that the index selects at element number `place`; `place` may be an array."""
        if self.sign == "^":
            return place ^ self.number
        if self.sign in DIGITS:
            return place // self.number if self.sign == "//" else place % self.number
        first = place - place % self.width
        if self.sign == "=":
            return first + self.number
        other = place + self.number if self.sign == "+" else place - self.number
        inside = (other >= first) & (other < first + self.width)
        return other * inside + place * (1 - inside)

    def legal_numbers(self, size: int | None) -> str | None:
        """Describe the legal numbers if the index may select an element past the end of its dimension; None if it cannot.

        `size` is the size of the dimension; None if it is known only at run time.
        """
        if self.plain:
            return None
        span = self.width or size or 0
        if size is None or span < 1 or span & (span - 1) or size % span or not self.number < span:
            return "a power of two, and less" if self.sign == "^" else "less than the width, a power of two that divides the dimension"
        return None


DIGITS: Final = ("//", "%")
"""The signs of indices that are digits of a coordinate."""


@frozen
class Looked:
    """An index that is an element of an array of integers: `rows[m]`, `table[b,n // 16]`."""

    array: str
    index: tuple[Index, ...]

    def __str__(self) -> str:
        return f"{self.array}[{','.join(map(str, self.index))}]"

    @property
    def dims(self) -> tuple[str, ...]:
        """The names of the dimensions."""
        return tuple(index.dim for index in self.index)


@frozen
class Affine:
    """The sum of coordinates times factors, of extents times factors, and of an integer: `p * 2 + r - 1`, `size(n) - 1 - i`.

    A term may be a digit of a coordinate, `m // 56 % 56 * 2`: `digits` are dimension, divisor, modulus (0: none) and factor. With a
    `divisor`, the exact quotient of the sum: `(p + 1 - r) / 2`. An element at another quotient does not exist.
    """

    terms: tuple[tuple[str, int], ...]
    number: int = 0
    extents: tuple[tuple[str, int], ...] = ()
    divisor: int = 1
    digits: tuple[tuple[str, int, int, int], ...] = ()

    def __str__(self) -> str:
        extents = [(f"size_{dim}", factor) for dim, factor in self.extents]
        digits = [(digit_text(dim, divisor, modulus), factor) for dim, divisor, modulus, factor in self.digits]
        return affine_text((*extents, *self.terms, *digits), self.number, self.divisor)

    @property
    def dims(self) -> tuple[str, ...]:
        """The names of the dimensions whose coordinates it has."""
        return tuple(dict.fromkeys((*(dim for dim, _ in self.terms), *(dim for dim, *_ in self.digits))))


@frozen
class Element:
    """An element of an operand: a tensor, and an index for each of its dimensions.

    The dimensions of an indirect operand are those of its indices. `stored` are then the indices of the array that stores it.
    """

    tensor: str
    index: tuple[Index, ...]
    stored: tuple[Index | Looked | Affine, ...] = ()

    @staticmethod
    def of(tensor: str, index: tuple[Index | Looked | Affine, ...]) -> Element:
        """The element with these indices of its array."""
        plain = tuple(one for one in index if isinstance(one, Index) and one.sign not in DIGITS)
        if len(plain) == len(index):
            return Element(tensor, plain)
        dims = dict.fromkeys(dim for one in index for dim in ((one.dim,) if isinstance(one, Index) else one.dims))
        return Element(tensor, tuple(map(Index, dims)), index)

    @functools.cached_property
    def dims(self) -> tuple[str, ...]:
        """The names of the dimensions."""
        return tuple([index.dim for index in self.index])

    @functools.cached_property
    def plain(self) -> bool:
        """Whether all indices are dimensions themselves."""
        return all(index.plain for index in self.index)

    def __str__(self) -> str:
        return f"{self.tensor}[{','.join(map(str, self.stored or self.index))}]" if self.index else self.tensor


@frozen
class Operation:
    """A binary or unary operator, or a function, applied to values."""

    name: str
    arguments: tuple[Value, ...]

    def __str__(self) -> str:
        if self.name == PAIR:
            return ", ".join(map(str, self.arguments))
        if self.name in _CALLED:
            return f"{self.name}({', '.join(map(str, self.arguments))})"
        if len(self.arguments) == 1:
            return f"{self.name}{_bracketed(self.arguments[0], _UNARY)}"
        left, right = self.arguments
        level = _LEVELS[self.name]
        return f"{_bracketed(left, level)} {self.name} {_bracketed(right, level + 1)}"


Value = Number | Element | Operation

_CALLED: Final = frozenset((*FUNCTIONS, DECOMPRESSED))
"""Operations that are written as calls."""

_LEVELS: Final[Mapping[str, int]] = {
    "or": -2, "and": -1, **dict.fromkeys(COMPARISONS, 0), "|": 1, "^": 2, "&": 3, "<<": 4, ">>": 4, "+": 5, "-": 5, "*": 6, "/": 6, "//": 6,
    "%": 6,
}  # fmt: skip
"""How tightly each binary operator binds."""

_UNARY: Final = 7
"""How tightly a unary operator binds."""


def _bracketed(value: Value, level: int) -> str:
    """Return the text of an operand, in parentheses if it binds less tightly than its operator, which has precedence `level`."""
    infix = isinstance(value, Operation) and value.name not in _CALLED
    binds = _UNARY if not infix or len(value.arguments) == 1 else _LEVELS.get(value.name, _UNARY)  # type: ignore[union-attr]
    return f"({value})" if binds < level or (infix and level == _UNARY) else str(value)


@frozen
class Formula:
    """`target sign reduction(over, value)`, or `target sign value` without a reduction; without a `value`, an allocation of the target.

    A `scan` combines the elements of the value `along` a dimension of the target, up to and including each. The value of a linear
    recurrence is a pair: the factors and the added values.
    """

    target: Element
    sign: str = "="
    value: Value | None = None
    reduction: str | None = None
    over: tuple[str, ...] = ()
    scan: str | None = None
    along: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.value is None:
            return str(self.target)
        if self.scan is not None:
            return f"{self.target} {self.sign} {self.scan}({', '.join(self.along)}, {self.value})"
        right = str(self.value) if self.reduction is None else f"{self.reduction}({', '.join(self.over)}, {self.value})"
        return f"{self.target} {self.sign} {right}"

    # ------------------------------------------------------------------------------------------ operands and dimensions

    @functools.cached_property
    def elements(self) -> tuple[Element, ...]:
        """The elements that are read, from left to right, without repetitions."""
        return tuple(dict.fromkeys(elements_of(self.value)))

    @functools.cached_property
    def uses(self) -> Mapping[str, tuple[str, ...]]:
        """The dimensions of each operand: first of inputs, then of the output."""
        return {element.tensor: element.dims for element in (*self.elements, self.target)}

    @functools.cached_property
    def dims(self) -> tuple[str, ...]:
        """All dimensions: those of the result, then the reduction dimensions."""
        return (*self.target.dims, *self.over)

    @property
    def output(self) -> str:
        """The operand that is written."""
        return self.target.tensor

    # ------------------------------------------------------------------------------------------ classification

    @functools.cached_property
    def drops_nan(self) -> bool:
        """Whether a result may be a number although an input is NaN: maximum and minimum ignore NaN, and comparisons with NaN are false."""
        return (
            self.reduction in EXTREMES
            or SCANS.get(self.scan or "") in EXTREMES
            or self.sign.removesuffix("=") in EXTREMES
            or names_of(self.value) & {*EXTREMES, "relu", "where"} != set()
        )

    @property
    def accumulates(self) -> bool:
        """Whether the formula can combine its result with the present value of the output."""
        return self.sign != "="

    @property
    def combiner(self) -> str:
        """The reduction that combines results: `sum`, `max`, `min` or `prod`."""
        return self.reduction or SCANS.get(self.scan or "") or next((name for name, sign in REDUCTIONS.items() if sign == self.sign), "sum")

    @property
    def copies(self) -> bool:
        """Whether the formula copies elements to the same indices."""
        plain = self.sign == "=" and self.reduction is None and self.scan is None
        return plain and isinstance(self.value, Element) and self.value.index == self.target.index

    @property
    def moves(self) -> bool:
        """Whether it copies each element once: to the same indices, or with a permutation of the dimensions."""
        plain = self.sign == "=" and self.reduction is None and self.scan is None and isinstance(self.value, Element) and self.value.plain
        return plain and set(self.elements[0].dims) == set(self.target.dims)

    @property
    def allocates(self) -> bool:
        """Whether the values of its target are unspecified."""
        return self.value is None

    @property
    def fills(self) -> bool:
        """Whether it writes a constant."""
        return self.sign == "=" and self.reduction is None and isinstance(self.value, Number)

    @property
    def is_product_sum(self) -> bool:
        """Whether it is a sum of products, which multiply-adds compute."""
        return self.reduction == "sum" and isinstance(self.value, Operation) and self.value.name == "*"

    @property
    def multiplies(self) -> bool:
        """Whether it is a multiplication of two matrices."""
        if not self.is_product_sum or len(self.over) != 1 or len(self.target.dims) != 2:
            return False
        assert isinstance(self.value, Operation)
        (m, n), (k,) = self.target.dims, self.over
        return [getattr(argument, "index", None) for argument in self.value.arguments] == [(Index(m), Index(k)), (Index(k), Index(n))]

    @property
    def contracts(self) -> bool:
        """Whether it is a sum of products of two elements, with any indices."""
        return len(self.factors) == 2

    @functools.cached_property
    def factors(self) -> tuple[Element, ...]:
        """The two elements whose products it sums; of a 2:4 sparse matrix, that of the kept values. Empty for other formulas."""
        if not self.is_product_sum or not isinstance(self.value, Operation):
            return ()
        read = tuple(argument.arguments[0] if is_decompressed(argument) else argument for argument in self.value.arguments)
        return tuple(one for one in read if isinstance(one, Element)) if all(isinstance(one, Element) for one in read) else ()

    @functools.cached_property
    def sparse(self) -> Operation | None:
        """The factor of a sum of products that is an element of a 2:4 sparse matrix; None if there is none."""
        arguments = self.value.arguments if self.is_product_sum and isinstance(self.value, Operation) else ()
        return next((argument for argument in arguments if is_decompressed(argument)), None)

    @property
    def dense(self) -> Formula:
        """The formula with the elements of the kept values instead of those of a 2:4 sparse matrix: the product of a dense matrix."""
        return self if self.sparse is None else attrs.evolve(self, value=Operation("*", self.factors))

    @property
    def reduces(self) -> bool:
        """Whether it is the sum, the maximum, the minimum or the product of elements along dimensions."""
        return self.reduction is not None and isinstance(self.value, Element) and self.value.plain

    @property
    def scans(self) -> bool:
        """Whether it is the scan of a tensor along a dimension, or the linear recurrence of two tensors."""
        return self.scan is not None and all(isinstance(one, Element) and one.plain for one in self.scanned)

    @property
    def recurs(self) -> bool:
        """Whether it is a linear recurrence."""
        return self.scan == RECURRENCE

    @property
    def scanned(self) -> tuple[Value, ...]:
        """The values that a scan combines: one, or the two values of a recurrence."""
        pair = isinstance(self.value, Operation) and self.value.name == PAIR
        return self.value.arguments if pair else (self.value,)  # type: ignore[union-attr,return-value]

    @property
    def elementwise(self) -> bool:
        """Whether it computes each element separately, from elements with the same indices."""
        elementwise = self.reduction is None and self.scan is None and self.value is not None
        return elementwise and all(element.plain and set(element.dims) <= set(self.target.dims) for element in self.elements)

    @property
    def pointwise(self) -> bool:
        """Whether it computes each element separately from elements with the same indices, and is not a copy or a constant."""
        return self.elementwise and not self.moves and not self.fills

    @functools.cached_property
    def operations(self) -> int:
        """Arithmetic operations per point of its dimensions."""
        return _operations(self.value) + (self.reduction is not None or self.scan is not None or self.accumulates)


@frozen
class Definition:
    """What a spec computes: one formula per output, in the same dimensions. No formula reads the output of another."""

    formulas: tuple[Formula, ...]

    def __str__(self) -> str:
        return "; ".join(map(str, self.formulas))

    @property
    def only(self) -> Formula | None:
        """The formula, if there is only one."""
        return self.formulas[0] if len(self.formulas) == 1 else None

    @functools.cached_property
    def outputs(self) -> tuple[str, ...]:
        """The operands that are written."""
        return tuple(formula.output for formula in self.formulas)

    @functools.cached_property
    def elements(self) -> tuple[Element, ...]:
        """The elements that are read, without repetitions."""
        return tuple(dict.fromkeys(element for formula in self.formulas for element in formula.elements))

    @functools.cached_property
    def uses(self) -> Mapping[str, tuple[str, ...]]:
        """The dimensions of each operand: first of inputs, then of outputs."""
        return {element.tensor: element.dims for element in (*self.elements, *(element.target for element in self.formulas))}

    @functools.cached_property
    def coarse(self) -> Mapping[str, tuple[int, ...]]:
        """Operands with fewer elements than coordinates, by name: along each dimension, the coordinates per element.

        `A[m,k // 2]` has one element per two coordinates of k: (1, 2).
        """
        by_name = {element.tensor: tuple(map(_per_element, element.stored)) for element in self.elements if element.stored}
        return {name: counts for name, counts in by_name.items() if any(count > 1 for count in counts)}

    @property
    def tile_dims(self) -> tuple[str, ...]:
        """The dimensions of the results along which tiles are independent."""
        first = self.formulas[0]
        return tuple(dim for dim in first.target.dims if dim not in first.along)

    @functools.cached_property
    def dims(self) -> tuple[str, ...]:
        """All dimensions: those of the results, then the reduction dimensions, or the dimension of a scan."""
        return tuple(dict.fromkeys((*self.tile_dims, *(dim for formula in self.formulas for dim in (*formula.over, *formula.along)))))

    @functools.cached_property
    def accumulates(self) -> bool:
        """Whether a formula can combine its result with the present value of its output."""
        return any(formula.accumulates for formula in self.formulas)

    @functools.cached_property
    def sets_numbers(self) -> bool:
        """Whether an output is set to a constant."""
        return any(formula.fills for formula in self.formulas)

    @functools.cached_property
    def moved_indices(self) -> tuple[Index, ...]:
        """The indices with a sign."""
        return tuple(index for element in self.elements for index in element.index if not index.plain)

    # ------------------------------------------------------------------------------------------ classification, for instructions

    @functools.cached_property
    def copies(self) -> bool:
        """Whether it is a copy of `src` to `dst`."""
        return self.only is not None and self.only.copies and self._is_of("src", "dst")

    @functools.cached_property
    def moves(self) -> bool:
        """Whether it is a copy of `src` to `dst`, possibly transposed: `dst[n,m] = src[m,n]`."""
        return self.only is not None and self.only.moves and self._is_of("src", "dst")

    @functools.cached_property
    def allocates(self) -> bool:
        """Whether it allocates a tensor whose values are unspecified."""
        return self.only is not None and self.only.allocates

    @functools.cached_property
    def fills(self) -> bool:
        """Whether it sets all elements of `dst` to one value."""
        return self.only is not None and self.only.fills and self._is_of("dst")

    @functools.cached_property
    def is_product_sum(self) -> bool:
        """Whether it is a single sum of products."""
        return self.only is not None and self.only.is_product_sum

    @functools.cached_property
    def multiplies(self) -> bool:
        """Whether it multiplies the matrices A (m x k) and B (k x n) and accumulates to C."""
        return self.only is not None and self.only.multiplies and self._is_of("A", "B", "C")

    @functools.cached_property
    def contracts(self) -> bool:
        """Whether it sums products of elements of A and B, with indices in any order, into C."""
        return self.only is not None and self.only.contracts and self._is_of("A", "B", "C")

    @functools.cached_property
    def reduces(self) -> bool:
        """Whether it is the sum, the maximum, the minimum or the product of elements of `src` along dimensions, into `dst`."""
        return self.only is not None and self.only.reduces and self._is_of("src", "dst")

    @functools.cached_property
    def scans(self) -> bool:
        """Whether it is a scan of elements of `src` along a dimension, into `dst`; a recurrence has a `factor` of each element, too."""
        return self.only is not None and self.only.scans and (self._is_of("src", "dst") or self._is_of("factor", "src", "dst"))

    @functools.cached_property
    def pointwise(self) -> bool:
        """Whether it computes each element of its results from elements with the same indices, and is not a single copy or constant."""
        return all(formula.elementwise for formula in self.formulas) if self.only is None else self.only.pointwise

    def _is_of(self, *operands: str) -> bool:
        return tuple(self.uses) == operands


def _per_element(index: Index | Looked | Affine) -> int:
    return index.number if isinstance(index, Index) and index.sign == "//" else 1


def is_decompressed(value: Value | None) -> TypeGuard[Operation]:
    """Whether a value is an element of a 2:4 sparse matrix."""
    return isinstance(value, Operation) and value.name == DECOMPRESSED


def names_of(value: Value | None) -> set[str]:
    """The operators and functions of a value."""
    if not isinstance(value, Operation):
        return set()
    return {value.name}.union(*map(names_of, value.arguments))


def elements_of(value: Value | None, conditions: bool = True) -> Iterator[Element]:
    """Yield the elements that a value reads, from left to right. If `conditions` is false, omit elements in conditions of `where`."""
    if isinstance(value, Element):
        yield value
    elif isinstance(value, Operation):
        for argument in value.arguments[0 if conditions or value.name != "where" else 1 :]:
            yield from elements_of(argument, conditions)


def _operations(value: Value | None) -> int:
    return WORK.get(value.name, 1) + sum(map(_operations, value.arguments)) if isinstance(value, Operation) else 0


# ---------------------------------------------------------------------------------------------- reading

ELLIPSIS: Final = "..."
"""The placeholder for the dimensions of a spec of any rank, in an index list."""

NAMES: Final = "mnpqrstuvwxyzabcdefgh"
"""The names of dimensions that replace `...`, in this order; names that the formula already uses are omitted."""


@functools.lru_cache(maxsize=4096)
def expand_ellipsis(text: str, rank: int) -> str:
    """Replace each `...` by `rank` named dimensions.

    >>> expand_ellipsis("dst[...] += sum(p, src[...,p])", 3)
    'dst[m,n,q] += sum(p, src[m,n,q,p])'

    Raises: ArgumentError if there are more dimensions than names.
    """
    if ELLIPSIS not in text:
        return text
    if rank == 0:
        return text.replace(f"{ELLIPSIS},", "").replace(f",{ELLIPSIS}", "").replace(ELLIPSIS, "")
    free = [name for name in NAMES if name not in set(re.findall(r"\w+", text))]
    if not 1 <= rank <= len(free):
        raise ArgumentError(f"{text}: ... cannot represent {rank} dimensions", legal=f"0 to {len(free)}")
    return text.replace(ELLIPSIS, ",".join(free[:rank]))


@functools.lru_cache(maxsize=4096)
def open_operands(text: str) -> tuple[tuple[int, int], ...]:
    """Return the operands with `...` among their indices, as pairs: position, and rank if `...` represents one dimension."""
    if ELLIPSIS not in text:
        return ()
    least, more = (definition(expand_ellipsis(text, rank)).uses.values() for rank in (1, 2))
    pairs = enumerate(zip(least, more, strict=True))
    return tuple((position, len(least_dims)) for position, (least_dims, other) in pairs if len(other) > len(least_dims))


def with_signature(base: Definition, signature: str) -> Definition:
    """Return the same computation with the indices of a signature, which has one letter per index, as in `einsum`.

    Dimensions of inputs that the result does not have are reduced, in order of appearance.

    >>> str(with_signature(definition("C[m,n] += sum(k, A[m,k] * B[k,n])"), "bmk,bkn->bmn"))
    'C[b,m,n] += sum(k, A[b,m,k] * B[b,k,n])'

    Raises: ArgumentError if the signature is invalid, or does not fit this formula.
    """
    match = re.fullmatch(r"((?:[a-z]+(?:,[a-z]+)*)?)->([a-z]*)", signature.replace(" ", "")) if isinstance(signature, str) else None
    only = base.only
    tensors = [name for name in base.uses if name not in base.outputs]
    parts = [] if match is None else [part for part in match[1].split(",") if part]
    if match is None or only is None or len(parts) != len(tensors) or not all(element.plain for element in base.elements):
        raise ArgumentError(f"the signature does not fit {base}", got=signature, legal="the form of einsum, such as bmk,bkn->bmn")
    over = tuple(dict.fromkeys(dim for part in parts for dim in part if dim not in match[2]))
    if bool(over) != (only.reduction is not None):
        raise ArgumentError(
            f"the signature must reduce {'a dimension' if only.reduction else 'no dimension'}, as {base} does", got=signature
        )
    index = {name: tuple(map(Index, part)) for name, part in zip(tensors, parts, strict=True)}
    value = _indexed(only.value, index)
    return definition(str(attrs.evolve(only, target=Element(only.output, tuple(map(Index, match[2]))), value=value, over=over)))


def _indexed(value: Value | None, index: Mapping[str, tuple[Index, ...]]) -> Value | None:
    if isinstance(value, Element):
        return Element(value.tensor, index[value.tensor])
    if isinstance(value, Operation):
        return Operation(value.name, tuple(_indexed(argument, index) for argument in value.arguments))  # type: ignore[misc]
    return value


MOST_TEXT: Final = 2000
"""Maximum length of a definition, in characters."""

_TOKEN: Final = re.compile(
    r"\s*(?:(0[xX][0-9a-fA-F]+|\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+)"
    r"|((?:sum|max|min|prod)=(?!=)|[+*]=|[<>=!]=|<<|>>|//|[A-Za-z_]\w*|[-+*/%&|~^=<>,()\[\]])|(\S))"
)


@functools.lru_cache(maxsize=4096)
def definition(text: str) -> Definition:
    """Parse a definition: one formula per output.

    >>> definition("s[m,n] = a[m,n] + b[m,n]; d[n,m] = a[m,n] - b[m,n]").outputs
    ('s', 'd')

    Raises: ArgumentError if the text is not a definition, at the position of the error.
    """
    if not isinstance(text, str) or len(text) > MOST_TEXT:
        raise ArgumentError(f"a formula is a text of at most {MOST_TEXT} characters", got=text if not isinstance(text, str) else text[:80])
    result = Definition(tuple(formula(part.strip()) for part in text.split(";")))
    if len(set(result.outputs)) != len(result.outputs):
        raise ArgumentError("formula: a tensor is written twice", got=text)
    for part in result.formulas:
        if set(part.target.dims) != set(result.formulas[0].target.dims) or part.along != result.formulas[0].along:
            raise ArgumentError(f"formula: {part.target} has other dimensions than {result.formulas[0].target}", got=text)
    for element in result.elements:
        if element.tensor in result.outputs:
            raise ArgumentError(f"formula: {element.tensor} is read and written", got=text, hint="a separate spec")
        if any(other.tensor == element.tensor and other != element for other in result.elements):
            raise ArgumentError(f"formula: {element.tensor} is read with two different index lists", got=text)
    return result


@functools.lru_cache(maxsize=4096)
def formula(text: str) -> Formula:
    """Parse the formula of one output.

    >>> str(formula("y[m]+=sum(n,A[m,n]*(x[n]))"))
    'y[m] += sum(n, A[m,n] * x[n])'

    Raises: ArgumentError if the text is not a formula, at the position of the error.
    """
    try:
        return _checked(_Reader(text).formula(), text)
    except RecursionError:
        raise ArgumentError("a formula is nested too deeply", got=text[:80]) from None


def formula_of(text: str) -> Formula:
    """Parse the formula of a step of a definition. It may read the tensor that it writes, and read a tensor at several indices.

    >>> str(formula_of("s[m,n] = exp(s[m,n] - top[m])"))
    's[m,n] = exp(s[m,n] - top[m])'

    Raises: ArgumentError if the text is not a formula, at the position of the error.
    """
    if not isinstance(text, str) or len(text) > MOST_TEXT:
        raise ArgumentError(f"a formula is a text of at most {MOST_TEXT} characters", got=text if not isinstance(text, str) else text[:80])
    return _formula_of(text)


@functools.lru_cache(maxsize=4096)
def _formula_of(text: str) -> Formula:
    try:
        parsed = _Reader(text).formula()
    except RecursionError:
        raise ArgumentError("a formula is nested too deeply", got=text[:80]) from None
    if parsed.value is None:
        raise ArgumentError("formula: nothing is written", got=text, legal=f"{parsed.target} = ...")
    _check_result(parsed, text)
    _check_sparse(parsed, text)
    for element in parsed.elements:
        if not element.plain:
            raise ArgumentError(f"formula: the indices of {element} must be dimensions", got=text, legal="plain dimensions")
        if len(set(element.dims)) != len(element.dims):
            raise ArgumentError(f"formula: {element} has a dimension twice", got=text)
    require_same_indices((*parsed.elements, parsed.target), "formula", text)
    return parsed


def require_same_indices(elements: Iterable[Element], what: str, got: object) -> None:
    """Refuse an operand with digits or numbers of tables as indices that has other indices elsewhere."""
    first: dict[str, Element] = {}
    for element in elements:
        other = first.setdefault(element.tensor, element)
        if other.stored != element.stored:
            raise ArgumentError(
                f"{what}: {element.tensor} has two index lists, {other} and {element}", got=got,
                legal="the same indices everywhere, if one is a digit, an element of an array or an affine expression",
                hint=f"pass the array twice: another operand for {element}; of a temporary, the operand that it is computed from",
            )  # fmt: skip


@functools.lru_cache(maxsize=4096)
def condition(text: str) -> Value:
    """Parse a condition, as the first argument of `where`.

    >>> str(condition("n<=m and (k<3 or causal)"))
    'n <= m and (k < 3 or causal != 0)'

    Raises: ArgumentError if the text is not a condition, at the position of the error.
    """
    if not isinstance(text, str) or len(text) > MOST_TEXT:
        raise ArgumentError(
            f"a condition is a text of at most {MOST_TEXT} characters", got=text if not isinstance(text, str) else text[:80]
        )
    reader = _Reader(text, is_condition=True)
    try:
        parsed = reader.condition()
    except RecursionError:
        raise ArgumentError("a formula is nested too deeply", got=text[:80]) from None
    if reader.next is not None:
        reader.refuse("the end")
    return parsed


_SIZE: Final = "size_"
"""Prefix of the names of extents."""


def _is_term(token: str) -> bool:
    """Whether a token may be a name or an integer of an affine index."""
    return (token.isidentifier() and token != "in") or token.isdecimal()


_CONDITION_ENDS: Final = (",", ")", "and", "or")
"""Tokens that may follow a complete condition."""


@frozen
class _Scan:
    """The right side of a scan."""

    name: str
    along: str
    value: Value

    def of(self, target: Element, sign: str) -> Formula:
        """The formula that writes its results."""
        return Formula(target, sign, self.value, scan=self.name, along=(self.along,))


@attrs.define
class _Reader:
    """A recursive-descent parser of a formula or, with `is_condition`, a condition: its tokens, and the number of tokens already read."""

    text: str
    is_condition: bool = attrs.field(default=False, kw_only=True)
    tokens: tuple[str, ...] = attrs.field(init=False)
    place: int = 0

    def __attrs_post_init__(self) -> None:
        self.tokens = tuple(number or word or other for number, word, other in _TOKEN.findall(self.text))

    # One method per rule of the grammar.

    def formula(self) -> Formula:
        target = self.element(self.name("the tensor that is written"))
        if self.next is None and self.place == 1:
            legal = f"{target.tensor}[m,n], or {target.tensor}[] without dimensions"
            raise ArgumentError(f"formula: {target.tensor!r} without its indices", got=self.text, legal=legal)
        if self.next is None:
            return Formula(target)
        named = {f"{name}=": sign for name, sign in REDUCTIONS.items()}
        sign = self.one_of("=", "sum=", "prod=", *REDUCTIONS.values())
        sign = named.get(sign, sign)
        start = self.place
        reduction = self.reduction()
        of_two = reduction is not None and reduction[1] in EXTREMES and len(reduction[2]) == 1
        if reduction is not None and of_two and (self.next is not None or reduction[2][0] in target.dims):
            # `max(m, n) * 2`: the maximum of two coordinates. A reduction would be the whole value, of a dimension that the result lacks.
            self.place, reduction = start, None
        scan = self.scan() if reduction is None else None
        if scan is not None:
            parsed = scan.of(target, sign)
        else:
            parsed = Formula(target, sign, self.value()) if reduction is None else Formula(target, sign, *reduction)
        if self.next is not None:
            self.refuse("the end")
        return parsed

    def reduction(self) -> tuple[Value, str, tuple[str, ...]] | None:
        """Read a reduction; return its value, name and dimensions, or None if the next tokens are not a reduction."""
        name, parts = self.next or "", self.tokens[self.place + 1 : self.place + 4]
        if (
            name not in REDUCTIONS
            or len(parts) < 3
            or parts[0] != "("
            or not parts[1].isidentifier()
            or parts[1] == "inf"
            or parts[2] != ","
        ):
            return None
        self.place += 2
        over = [self.name("a dimension")]
        self.take(",")
        while self.next is not None and self.next.isidentifier() and self.tokens[self.place + 1 : self.place + 2] == (",",):
            over.append(self.name("a dimension"))
            self.take(",")
        value = self.value()
        self.take(")")
        return value, name, tuple(over)

    def scan(self) -> _Scan | None:
        """Read a scan; None if the next tokens are not a scan."""
        if self.next not in ALL_SCANS:
            return None
        name = self.one_of()
        self.take("(")
        along = self.name("a dimension")
        self.take(",")
        value = self.value()
        if name == RECURRENCE:
            self.take(",")
            value = Operation(PAIR, (value, self.value()))
        self.take(")")
        return _Scan(name, along, value)

    def value(self) -> Value:
        return self.chain(self.bits, ("max", "min"))

    def bits(self) -> Value:
        return self.chain(lambda: self.chain(lambda: self.chain(self.shift, ("&",)), ("^",)), ("|",))

    def shift(self) -> Value:
        return self.chain(self.sum, ("<<", ">>"))

    def sum(self) -> Value:
        return self.chain(self.term, ("+", "-"))

    def term(self) -> Value:
        return self.chain(self.factor, ("*", "/", "//", "%"))

    def chain(self, part: Callable[[], Value], signs: tuple[str, ...]) -> Value:
        left = part()
        while self.next in signs:
            left = Operation(self.one_of(*signs), (left, part()))
        return left

    def factor(self) -> Value:
        if self.next == "-":
            self.take("-")
            inner = self.factor()
            return Number(-inner.value) if isinstance(inner, Number) else Operation("-", (inner,))
        if self.next == "~":
            self.take("~")
            inner = self.factor()
            whole = isinstance(inner, Number) and isinstance(inner.value, int)
            return Number(~inner.value) if whole else Operation("~", (inner,))  # type: ignore[union-attr,operator]
        if self.next == "(":
            self.take("(")
            inner = self.value()
            self.take(")")
            return inner
        if self.next is not None and re.match(r"[\d.]", self.next):
            return self.number()
        name = self.name("a value")
        if name == "inf":
            return Number(float("inf"))
        return self.called(name) if self.next == "(" else self.element(name)

    def number(self) -> Number:
        text = self.one_of()
        try:
            return Number(int(text, 16) if text[:2] in ("0x", "0X") else int(text) if text.isdecimal() else float(text))
        except ValueError:  # more digits than Python reads
            raise ArgumentError("formula: not a number", got=text[:40]) from None

    def called(self, name: str) -> Value:
        if name == DECOMPRESSED:
            return self.decompressed()
        if name not in FUNCTIONS:
            kind = "a reduction" if name in REDUCTIONS else "a scan" if name in ALL_SCANS else ""
            instead = _INSTEAD.get(name) or _near_function(name)
            hint = f"{kind} must be the whole right side; assign its result to a tensor" if kind else instead
            what = f"{name!r} is {kind}, which cannot be a part of a value" if kind else f"unknown function {name!r}"
            raise ArgumentError(f"formula: {what}", got=self.text, legal=FUNCTIONS, hint=hint)
        self.take("(")
        arguments = [self.condition() if name == "where" else self.value()]
        while self.next == ",":
            self.take(",")
            arguments.append(self.value())
        self.take(")")
        least, most = FUNCTIONS[name], MOST_ARGUMENTS.get(name, FUNCTIONS[name])
        if not least <= len(arguments) <= most:
            count = str(least) if least == most else f"{least} to {most}"
            raise ArgumentError(f"formula: {name} takes {count} values, not {len(arguments)}", got=self.text)
        return Operation(name, tuple(arguments))

    def decompressed(self) -> Operation:
        """An element of a 2:4 sparse matrix: two elements with the same indices, except for the compressed dimension, the last one."""
        self.take("(")
        values = self.element(self.name("the kept values"))
        self.take(",")
        metadata = self.element(self.name("the metadata"))
        self.take(")")
        *first, last = values.stored or (None,)
        dim = last.dim if isinstance(last, Index) else "k"
        kept, per_byte = (Index(dim, "//", number) for number in SPARSE_DIGITS)
        plain = all(isinstance(index, Index) and index.plain for index in first)
        if not plain or last != kept or metadata.stored != (*first, per_byte) or len(set(values.dims)) != len(values.stored):
            dims = ",".join((*(index.dim for index in first if isinstance(index, Index)), "")) if plain and first else "m,"
            legal = f"{values.tensor}[{dims}{kept}], {metadata.tensor}[{dims}{per_byte}]"
            raise ArgumentError(
                f"formula: {DECOMPRESSED} of {values} and {metadata}", got=self.text, legal=f"{DECOMPRESSED}({legal})",
                hint="the kept values have one element per two coordinates along their last dimension, the metadata one per eight",
            )  # fmt: skip
        return Operation(DECOMPRESSED, (values, metadata))

    def condition(self) -> Value:
        return self.chain(lambda: self.chain(self.test, ("and",)), ("or",))

    def test(self) -> Value:
        start = self.place
        if self.next == "(":  # around a condition, or around a part of a value
            try:
                self.take("(")
                inner = self.condition()
                self.take(")")
                if self.ends_condition:
                    return inner
            except ArgumentError:
                pass
            self.place = start
        left = self.value()
        if self.ends_condition:  # as in C, a number as a condition is true if it is not zero
            return Operation("!=", (left, Number(0)))
        return Operation(self.one_of(*COMPARISONS), (left, self.value()))

    def element(self, tensor: str) -> Element:
        if self.next != "[":
            return self.scalar(tensor)
        self.take("[")
        if self.next == "]":
            self.take("]")
            return self.scalar(tensor)
        index = [self.array_index()]
        while self.next == ",":
            self.take(",")
            index.append(self.array_index())
        self.take("]")
        return Element.of(tensor, tuple(index))

    def scalar(self, tensor: str) -> Element:
        if tensor in FUNCTIONS or tensor in REDUCTIONS:
            self.refuse(f"the arguments of the function {tensor}")
        return Element(tensor, ())

    def array_index(self) -> Index | Looked | Affine:
        """An index of a tensor: a dimension, a digit of one, an element of an array of integers, or an affine expression."""
        if self.begins_affine:
            return self.affine()
        if self.tokens[self.place + 1 : self.place + 2] != ("[",):
            return self.index()
        array = self.name("an array of integers")
        self.take("[")
        digits = [self.digit(array)]
        while self.next == ",":
            self.take(",")
            digits.append(self.digit(array))
        self.take("]")
        return Looked(array, tuple(digits))

    @property
    def begins_affine(self) -> bool:
        """Whether the next index is an affine expression of coordinates."""
        rest = self.tokens[self.place :]
        end = next((place for place, token in enumerate(rest) if token in (",", "]")), len(rest))
        index = rest[:end]
        signs = {"+", "-", "*", *(("(", ")", "/") if "/" in index or index[:1] == ("(",) else ())}
        if end > 1 and (signs & set(index) or sum(token in DIGITS for token in index) > 1):  # a digit alone is an `Index`
            signs |= set(DIGITS)
        return end > 1 and set(index) <= {*signs, *filter(_is_term, index)} and not (end > 1 and index[1] == "in")

    def affine(self) -> Affine | Index:
        """An affine index, with one term per dimension; a plain one if it is a dimension."""
        start = self.place
        terms, divisor = self.quotient() if self.next == "(" else (self.affine_sum(), 1)
        if self.next == "/":
            if divisor > 1 or len(terms) > 1 or "" in terms:
                text = self.between(start, self.place)
                raise ArgumentError(
                    f"formula: / after a part of the index {text}", got=self.text, legal="the exact quotient of a whole index",
                    hint=f"({text}) / 2",
                )  # fmt: skip
            divisor = self.divisor()
        common = math.gcd(divisor, *terms.values())
        terms, divisor = {name: factor // common for name, factor in terms.items()}, divisor // common
        number = terms.pop("", 0)
        digits = tuple((*_digit_of(name), factor) for name, factor in terms.items() if factor and set(DIGITS) & set(name.split()))
        terms = {name: factor for name, factor in terms.items() if not set(DIGITS) & set(name.split())}
        coordinates = tuple((name, factor) for name, factor in terms.items() if factor and not name.startswith(_SIZE))
        extents = tuple((name.removeprefix(_SIZE), factor) for name, factor in terms.items() if factor and name.startswith(_SIZE))
        if not coordinates and not digits:
            text = self.between(start, self.place)
            raise ArgumentError(f"formula: the index {text} has no coordinate", got=self.text, legal="p * 2 + r - 1, size(n) - 1 - i")
        if coordinates and coordinates == ((coordinates[0][0], 1),) and not number and not extents and divisor == 1 and not digits:
            return Index(coordinates[0][0])
        return Affine(coordinates, number, extents, divisor, digits)

    def quotient(self) -> tuple[dict[str, int], int]:
        """A sum in parentheses and its divisor; 1 if there is none."""
        self.take("(")
        terms = self.affine_sum()
        self.take(")")
        return terms, self.divisor()

    def divisor(self) -> int:
        """The divisor of an exact quotient."""
        self.take("/")
        number = self.integer("/")
        if number < 1:
            raise ArgumentError(f"formula: an index divided by {number}", got=self.text, legal="an integer of at least 1")
        return number

    def affine_sum(self) -> dict[str, int]:
        """The factor of each name in a sum; the number has no name."""
        terms: dict[str, int] = {}
        sign = 1
        if self.next == "-":
            self.take("-")
            sign = -1
        while True:
            name, factor = self.affine_part()
            terms[name] = terms.get(name, 0) + sign * factor
            if self.next not in ("+", "-"):
                return terms
            sign = 1 if self.one_of() == "+" else -1

    def affine_part(self) -> tuple[str, int]:
        """A name and its factor; an integer has no name."""
        factors: list[int] = []
        name = ""
        while True:
            if self.next is not None and self.next.isidentifier() and not name:
                name = self.one_of()
                if self.next in DIGITS:
                    name = self.digit_of(name, bool(factors))
            else:
                factors.append(self.integer("a sign in an affine index"))
            if self.next != "*":
                return name, math.prod(factors)
            self.take("*")

    def digit_of(self, name: str, multiplied: bool) -> str:
        """The text of a digit of a dimension in a sum, `m // 56 % 56`; `multiplied` if a factor precedes it."""
        divisor, modulus = 1, 0
        if self.next == "//":
            self.take("//")
            divisor = self.integer(f"{name} //")
        if self.next == "%":
            self.take("%")
            modulus = self.integer(f"{name} %")
            if not modulus:
                raise ArgumentError(f"formula: {name} % 0", got=self.text, legal="an integer of at least 1")
        if multiplied or self.next in DIGITS or divisor < 1 or name.startswith(_SIZE):
            what = "a factor before a digit" if multiplied else f"the digit of {name}"
            raise ArgumentError(f"formula: {what} in an index", got=self.text, legal="m // 56 % 56 * 2: quotient, remainder, factor")
        return digit_text(name, divisor, modulus)

    def digit(self, array: str) -> Index:
        """An index of an array of integers."""
        if self.tokens[self.place + 1 : self.place + 2] == ("[",):
            raise ArgumentError(
                f"formula: an index of {array} is an element of another array", got=self.text,
                legal="dimensions, quotients and remainders as indices of an array of integers",
                hint="an array of integers with one level: compose the two arrays before the call",
            )  # fmt: skip
        index = self.index()
        if not index.plain and index.sign not in DIGITS:
            raise ArgumentError(f"formula: {index} as an index of {array}", got=self.text, legal=f"{index.dim}, {index.dim} // 16")
        return index

    def index(self) -> Index:
        dim = self.name("a dimension")
        if self.next in DIGITS:
            sign = self.one_of()
            number = self.integer(f"{dim} {sign}")
            if number < 1:
                raise ArgumentError(f"formula: {dim} {sign} {number}", got=self.text, legal="an integer of at least 1")
            return Index(dim, sign, number)
        if self.next not in ("^", "+", "-", "="):
            return Index(dim)
        sign = self.one_of()
        number = self.integer(f"{dim} {sign}")
        if sign == "^":
            return Index(dim, sign, number) if number else Index(dim)
        self.take("in")
        width = self.integer(f"{dim} {sign} {number} in")
        return Index(dim, sign, number, width) if number or sign == "=" else Index(dim)

    def integer(self, before: str) -> int:
        number = self.next or ""
        if not number.isdecimal() or len(number) > 9:
            self.refuse(f"an integer after {before}")
        return int(self.one_of())

    # Tokens.

    @property
    def ends_condition(self) -> bool:
        """Whether a condition may end here."""
        return self.next in _CONDITION_ENDS or (self.is_condition and self.next is None)

    @property
    def next(self) -> str | None:
        return self.tokens[self.place] if self.place < len(self.tokens) else None

    def one_of(self, *wanted: str) -> str:
        """Read the next token, which must be in `wanted`; if `wanted` is empty, any token is legal."""
        token = self.next
        if token is None or (wanted and token not in wanted):
            self.refuse(" or ".join(wanted))
        self.place += 1
        return str(token)

    def take(self, wanted: str) -> None:
        self.one_of(wanted)

    def name(self, what: str) -> str:
        if self.next is None or not self.next.isidentifier():
            self.refuse(what)
        return self.one_of()

    def between(self, start: int, end: int) -> str:
        """The text of the tokens from number `start` to before number `end`, as the user wrote it."""
        places = [match.span() for match in _TOKEN.finditer(self.text)][start:end]
        return self.text[places[0][0] : places[-1][1]].strip() if places else ""

    def refuse(self, wanted: str) -> None:
        """Raise an error that names the next token and the expected one."""
        before = self.between(0, self.place)[-60:]
        token = "the end" if self.next is None else repr(self.next[:40])
        hint = _HINTS.get("".join(self.tokens[max(self.place - 1, 0) : self.place + 1])) or _HINTS.get(self.next or "")
        if self.next in COMPARISONS:
            hint = f"a condition is the first argument of where: where(... {self.next} ..., 1, 0)"
        elif wanted == "a dimension" and self.next is not None and self.next.isdigit():
            hint = "an operand without this dimension, and a slice of the array in the call"
        elif self.next == "%" and wanted == "/":
            hint = "an index is a dimension, a shift (d + 64) or a digit (k // 8 % 4); to rotate, use d + 64 and outside={'X': 'circular'}"
        elif wanted == "the end" and ")" in self.tokens[: self.place] and not set(REDUCTIONS).isdisjoint(self.tokens):
            hint = "a reduction is the whole right side; use its result in the next step"
        raise ArgumentError(f"formula: expected {wanted}, got {token} after {before!r}", got=self.text, hint=hint)


_INSTEAD: Final[Mapping[str, str]] = {
    "mean": "sum(n, ...) in one step, and / size(n) in the next one", "not": "the opposite comparison, as <= for not >",
    "pow": "x * x, or exp2(y * log2(x))", "tan": "sin(x) / cos(x)", "sign": "where(x > 0, 1, where(x < 0, -1, 0))",
    "softmax": "steps: a maximum, exponentials, their sum, and a quotient", "argmax": "a maximum, and the least coordinate that has it",
    "swish": "silu(x)", "square": "x * x", "leaky_relu": "where(x > 0, x, 0.01 * x)", "elu": "where(x > 0, x, exp(x) - 1)",
    "clip": "clamp(x, low, high)", "heaviside": "where(x > 0, 1, 0)",
}  # fmt: skip
"""What to write instead of functions that formulas do not have."""


def _near_function(name: str) -> str | None:
    """Return a hint with a function of nearly this name; None if there is none."""
    near = closest(name, FUNCTIONS)
    return f"did you mean {near}?" if near else None


_HINTS: Final[Mapping[str, str]] = {
    "**": "x * x, or exp2(y * log2(x))",
    "if": "where(condition, value, other value)",
    "else": "where(condition, value, other value)",
    "&&": "and", "||": "or",
}  # fmt: skip
"""What to write instead of operators of other languages, by the token, or the two tokens, at which the parser stops."""


def _digit_of(text: str) -> tuple[str, int, int]:
    """The dimension, the divisor and the modulus (0: none) of a digit, given its text."""
    name, *rest = text.split()
    numbers = {sign: int(number) for sign, number in zip(rest[::2], rest[1::2], strict=True)}
    return name, numbers.get("//", 1), numbers.get("%", 0)


def _checked(parsed: Formula, text: str) -> Formula:
    """Refuse dimensions that are neither in the result nor reduced, a result that is read, and a tensor with two index lists."""
    target = parsed.target
    _check_result(parsed, text)
    for element in (target, *parsed.elements):
        if element.stored:
            by = "an affine index" if any(isinstance(one, Affine) for one in element.stored) else "a digit or an array"
            legal = "in steps of Fused(...)" + ("; t - 1 in 32, of lanes" if by == "an affine index" else "")
            raise ArgumentError(f"formula: {element} selects elements by {by}", got=text, legal=legal)
    for element in parsed.elements:
        loose = [dim for dim in element.dims if dim not in parsed.dims]
        if loose:
            raise ArgumentError(f"formula: {loose[0]} of {element} is neither in the result nor reduced", got=text, legal=parsed.dims)
        if element.tensor == target.tensor:
            raise ArgumentError(f"formula: {element.tensor} is read and written", got=text, hint="+= adds to the present value")
        if any(other.tensor == element.tensor and other != element for other in parsed.elements):
            raise ArgumentError(f"formula: {element.tensor} is read with two different index lists", got=text)
        if len(set(element.dims)) != len(element.dims):
            raise ArgumentError(f"formula: {element} has a dimension twice", got=text)
    return parsed


def _check_scan(parsed: Formula, text: str) -> None:
    """Refuse a scan along a dimension that the result or the value lacks, and one that is combined with an old value."""
    if parsed.scan is None:
        return
    (dim,) = parsed.along
    if parsed.accumulates:
        raise ArgumentError(
            f"formula: {parsed.scan} needs the sign =, not {parsed.sign}", got=text, legal=f"{parsed.target} = {parsed.scan}({dim}, ...)",
            hint="add the old value in a later step",
        )  # fmt: skip
    values = [("the value", tuple(dim for one in elements_of(value) for dim in one.dims)) for value in parsed.scanned]
    for what, dims in (("the result", parsed.target.dims), *values):
        if dim not in dims:
            raise ArgumentError(f"formula: {parsed.scan} along {dim}, but {what} does not have {dim}", got=text, legal=dims)


def _decompressions(value: Value | None) -> Iterator[Operation]:
    """Yield the elements of 2:4 sparse matrices in a value."""
    if is_decompressed(value):
        yield value
    elif isinstance(value, Operation):
        for argument in value.arguments:
            yield from _decompressions(argument)


def _check_sparse(parsed: Formula, text: str) -> None:
    """Refuse an element of a 2:4 sparse matrix that is not one of two factors of a sum along its compressed dimension."""
    reads = tuple(_decompressions(parsed.value))
    if not reads:
        return
    values = reads[0].arguments[0]
    assert isinstance(values, Element)
    *own, dim = values.dims
    other_dim = next(name for name in NAMES if name not in values.dims and name != "m")
    other = parsed.value.arguments[1 - parsed.value.arguments.index(reads[0])] if reads[0] == parsed.sparse else None  # type: ignore[union-attr]
    dims = {dim for element in elements_of(other) for dim in element.dims}
    if parsed.sparse is None or len(reads) > 1 or parsed.over != (dim,) or dim not in dims:
        raise ArgumentError(
            f"formula: {reads[0]} is not a factor of a sum of products along {dim}", got=text,
            legal=f"C[{','.join((*own[-1:], other_dim))}] = sum({dim}, {reads[0]} * X[{dim},{other_dim}])",
            hint="one factor is sparse along the only dimension of the sum; functions and scales belong to other steps",
        )  # fmt: skip


def _check_result(parsed: Formula, text: str) -> None:
    """Refuse a result without dimensions or with a repeated one, a reduction over a dimension of no element, and a mismatched sign."""
    target = parsed.target
    if not target.plain or len(set(parsed.dims)) != len(parsed.dims):
        raise ArgumentError("formula: the result must have each of its dimensions once, without offset", got=text)
    _check_scan(parsed, text)
    idle = [dim for dim in parsed.over if not any(dim in element.dims for element in parsed.elements)]
    if idle:
        of_two = parsed.reduction in FUNCTIONS and len(parsed.over) == 1
        hint = f"write the value that is not a name first: {parsed.reduction}({parsed.value}, {idle[0]})" if of_two else None
        raise ArgumentError(f"formula: {idle[0]} is reduced, but no element has it", got=text, hint=hint)
    if parsed.accumulates and parsed.reduction is not None and REDUCTIONS[parsed.reduction] != parsed.sign:
        raise ArgumentError(f"formula: {parsed.reduction} needs the sign = or {REDUCTIONS[parsed.reduction]}, not {parsed.sign}", got=text)
