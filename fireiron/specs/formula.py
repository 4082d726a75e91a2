"""Formulas: what a spec computes, as text. `C[m,n] += sum(k, A[m,k] * B[k,n])` says its operands, its dimensions and its meaning.

A spec with several outputs has a formula for each, apart by `;`. It is read by the parser below and by nothing else: data, never code.

    definition = formula {";" formula}
    formula   = element [("=" | "+=" | "sum=" | "max=" | "min=" | "*=" | "prod=") (reduction | value)]
    reduction = ("sum" | "max" | "min" | "prod") "(" dimension {"," dimension} "," value ")"
    value     = sum {("max" | "min") sum}         sum = term {("+" | "-") term}
             term = factor {("*" | "/") factor}
    factor    = "-" factor | number | "inf" | element | function "(" value {"," value} ")" | "(" value ")" | choice
    choice    = "where" "(" condition "," value "," value ")"
    condition = both {"or" both}                both = test {"and" test}
    test      = value ("<" | "<=" | ">" | ">=" | "==" | "!=") value | "(" condition ")"
    element   = tensor ["[" index {"," index} "]"]
    index     = dimension ["^" integer | ("+" | "-" | "=") integer "in" integer]

A tensor without indices is a scalar, which is only read: `y[m] += alpha * x[m]`.

An index other than a dimension names another of its elements: `t ^ 5` that whose number differs in these bits; in groups of 8 neighbours,
`t + 1 in 8` the next, `t - 1 in 8` the one before (where the group has none, its own), `t = 3 in 8` that of number 3.

In the place of an index, `...` stands for as many dimensions as a spec has (`spelled`). `sum=` is another text of `+=`, `prod=` of `*=`.

Without a right side a formula says that its tensor is there, and nothing about its values. `+=` adds to what the tensor holds, where
the spec says so; `max=` and `min=` compare with it, `*=` multiplies it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import attrs

from fireiron.errors import ArgumentError

FUNCTIONS: Final[Mapping[str, int]] = {
    "abs": 1, "erf": 1, "exp": 1, "exp2": 1, "gelu": 1, "log": 1, "log2": 1, "max": 2, "min": 2, "relu": 1, "rsqrt": 1, "sigmoid": 1,
    "silu": 1, "sqrt": 1, "tanh": 1, "tanh_approx": 1, "where": 3,
}  # fmt: skip
"""Functions of elements, with the number of their arguments; `where` takes a condition and two values."""

COMPARISONS: Final = ("<", "<=", ">", ">=", "==", "!=")
"""Signs between two values that make a condition."""

CONDITIONS: Final = (*COMPARISONS, "and", "or")
"""What makes a condition, the first argument of `where`."""

REDUCTIONS: Final[Mapping[str, str]] = {"sum": "+=", "max": "max=", "min": "min=", "prod": "*="}
"""What a dimension may be reduced by, with the sign by which its result joins what the output holds."""


EXTREMES: Final = ("max", "min")
"""Of a number and NaN these are the number."""


@attrs.frozen
class Number:
    """A constant."""

    value: int | float

    def __str__(self) -> str:
        return str(self.value)


@attrs.frozen
class Index:
    """A dimension in the place of an index, or another of its elements, as lanes receive what others hold.

    By the sign `^` that whose number differs in the bits of `number`; in groups of `width` neighbours by `+` and `-` that so many further
    on or before (where there is none, its own), by `=` that of this number.
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
        """Whether it is the dimension as it is."""
        return not self.sign

    def source(self, place: Any) -> Any:
        """The number of the element that stands in a place, or of those in an array of places."""
        if self.sign == "^":
            return place ^ self.number
        first = place - place % self.width
        if self.sign == "=":
            return first + self.number
        other = place + self.number if self.sign == "+" else place - self.number
        inside = (other >= first) & (other < first + self.width)
        return other * inside + place * (1 - inside)

    def leaves(self, size: int | None) -> str | None:
        """Why it leaves a dimension of a size; None if it does not. Of a size known only at run time it may."""
        if self.plain:
            return None
        span = self.width or size or 0
        if size is None or span < 1 or span & (span - 1) or size % span or not self.number < span:
            return "a power of two, and less" if self.sign == "^" else "less than the width, a power of two that divides the dimension"
        return None


@attrs.frozen
class Element:
    """An element of an operand: a tensor and an index for each of its dimensions."""

    tensor: str
    index: tuple[Index, ...]

    @property
    def dims(self) -> tuple[str, ...]:
        """The dimensions by name."""
        return tuple(one.dim for one in self.index)

    @property
    def plain(self) -> bool:
        """Whether its indices are dimensions as they are."""
        return all(one.plain for one in self.index)

    def __str__(self) -> str:
        return f"{self.tensor}[{','.join(map(str, self.index))}]" if self.index else self.tensor


@attrs.frozen
class Operation:
    """A sign between two values or in front of one, or a function of values."""

    name: str
    arguments: tuple[Value, ...]

    def __str__(self) -> str:
        if self.name in FUNCTIONS:
            return f"{self.name}({', '.join(map(str, self.arguments))})"
        if len(self.arguments) == 1:
            return f"-{_bracketed(self.arguments[0], 3)}"
        left, right = self.arguments
        level = _LEVELS[self.name]
        return f"{_bracketed(left, level)} {self.name} {_bracketed(right, level + 1)}"


Value = Number | Element | Operation

_LEVELS: Final[Mapping[str, int]] = {"or": -2, "and": -1, **dict.fromkeys(COMPARISONS, 0), "+": 1, "-": 1, "*": 2, "/": 2}


def _bracketed(value: Value, level: int) -> str:
    """A value as an operand of a sign: in parentheses where it binds less."""
    infix = isinstance(value, Operation) and value.name not in FUNCTIONS
    binds = 3 if not infix else 3 if len(value.arguments) == 1 else _LEVELS[value.name]  # type: ignore[union-attr]
    return f"({value})" if binds < level or (infix and level == 3) else str(value)


@attrs.frozen
class Formula:
    """`target sign reduction(over, value)`, or `target sign value` with no reduction; `value` None says nothing about the target."""

    target: Element
    sign: str = "="
    value: Value | None = None
    reduction: str | None = None
    over: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.value is None:
            return str(self.target)
        right = str(self.value) if self.reduction is None else f"{self.reduction}({', '.join(self.over)}, {self.value})"
        return f"{self.target} {self.sign} {right}"

    # ------------------------------------------------------------------------------------------ what it names

    @functools.cached_property
    def elements(self) -> tuple[Element, ...]:
        """The elements that are read, from left to right; one that stands twice counts once."""
        return tuple(dict.fromkeys(elements_of(self.value)))

    @functools.cached_property
    def uses(self) -> Mapping[str, tuple[str, ...]]:
        """The dimensions of each operand: those that are read, then the one that is written."""
        return {one.tensor: one.dims for one in (*self.elements, self.target)}

    @functools.cached_property
    def dims(self) -> tuple[str, ...]:
        """All dimensions: those of the result, then those that are reduced."""
        return (*self.target.dims, *self.over)

    @property
    def output(self) -> str:
        """The operand that is written."""
        return self.target.tensor

    # ------------------------------------------------------------------------------------------ what it does

    @functools.cached_property
    def drops_nan(self) -> bool:
        """Whether a result may be a number where NaN is read: maxima and minima take the number, and a comparison with NaN is false."""
        return (
            self.reduction in EXTREMES
            or self.sign.removesuffix("=") in EXTREMES
            or _names(self.value) & {*EXTREMES, "relu", "where"} != set()
        )

    @property
    def joins(self) -> bool:
        """Whether its result can join what the output holds."""
        return self.sign != "="

    @property
    def joins_by(self) -> str:
        """How results meet: as a sum, a maximum, a minimum or a product."""
        return self.reduction or next((name for name, sign in REDUCTIONS.items() if sign == self.sign), "sum")

    @property
    def copies(self) -> bool:
        """Whether it writes elements as they are, each in its own place."""
        return self.sign == "=" and self.reduction is None and isinstance(self.value, Element) and self.value.index == self.target.index

    @property
    def moves(self) -> bool:
        """Whether it writes elements as they are, each once: in its own place, or with indices in another order."""
        plain = self.sign == "=" and self.reduction is None and isinstance(self.value, Element) and self.value.plain
        return plain and set(self.elements[0].dims) == set(self.target.dims)

    @property
    def allocates(self) -> bool:
        """Whether it says nothing about the values of its target."""
        return self.value is None

    @property
    def fills(self) -> bool:
        """Whether it writes one constant."""
        return self.sign == "=" and self.reduction is None and isinstance(self.value, Number)

    @property
    def is_product_sum(self) -> bool:
        """Whether it is a sum of products, which multiply-adds make."""
        return self.reduction == "sum" and isinstance(self.value, Operation) and self.value.name == "*"

    @property
    def multiplies(self) -> bool:
        """Whether it is the product of two matrices."""
        if not self.is_product_sum or len(self.over) != 1 or len(self.target.dims) != 2:
            return False
        assert isinstance(self.value, Operation)
        (m, n), (k,) = self.target.dims, self.over
        return [getattr(one, "index", None) for one in self.value.arguments] == [(Index(m), Index(k)), (Index(k), Index(n))]

    @property
    def contracts(self) -> bool:
        """Whether it adds up products of two elements, whatever their indices are."""
        if not self.is_product_sum:
            return False
        assert isinstance(self.value, Operation)
        return all(isinstance(one, Element) for one in self.value.arguments)

    @property
    def reduces(self) -> bool:
        """Whether it makes the sum, the maximum, the minimum or the product of elements along dimensions."""
        return self.reduction is not None and isinstance(self.value, Element) and self.value.plain

    @property
    def elementwise(self) -> bool:
        """Whether it makes each element of its own, from elements in the same place."""
        made = self.reduction is None and self.value is not None
        return made and all(one.plain and set(one.dims) <= set(self.target.dims) for one in self.elements)

    @property
    def pointwise(self) -> bool:
        """Whether it computes each element of its own from elements in the same place: no copy, and no constant."""
        return self.elementwise and not self.moves and not self.fills

    @functools.cached_property
    def operations(self) -> int:
        """Operations for each point of its dimensions."""
        return _operations(self.value) + (self.reduction is not None or self.joins)


@attrs.frozen
class Definition:
    """What a spec computes: a formula for each of its outputs, in the same dimensions; none reads what another writes."""

    formulas: tuple[Formula, ...]

    def __str__(self) -> str:
        return "; ".join(map(str, self.formulas))

    @property
    def only(self) -> Formula | None:
        """The formula, where there is one."""
        return self.formulas[0] if len(self.formulas) == 1 else None

    @functools.cached_property
    def outputs(self) -> tuple[str, ...]:
        """The operands that are written."""
        return tuple(one.output for one in self.formulas)

    @functools.cached_property
    def elements(self) -> tuple[Element, ...]:
        """The elements that are read, each once."""
        return tuple(dict.fromkeys(element for one in self.formulas for element in one.elements))

    @functools.cached_property
    def uses(self) -> Mapping[str, tuple[str, ...]]:
        """The dimensions of each operand: those that are read, then those that are written."""
        return {one.tensor: one.dims for one in (*self.elements, *(one.target for one in self.formulas))}

    @property
    def tile_dims(self) -> tuple[str, ...]:
        """The dimensions of the results."""
        return self.formulas[0].target.dims

    @functools.cached_property
    def dims(self) -> tuple[str, ...]:
        """All dimensions: those of the results, then those that are reduced."""
        return tuple(dict.fromkeys((*self.tile_dims, *(dim for one in self.formulas for dim in one.over))))

    @functools.cached_property
    def joins(self) -> bool:
        """Whether a result can join what its output holds."""
        return any(one.joins for one in self.formulas)

    @functools.cached_property
    def sets_numbers(self) -> bool:
        """Whether all of an output is set to one number."""
        return any(one.fills for one in self.formulas)

    @functools.cached_property
    def moved_indices(self) -> tuple[Index, ...]:
        """The indices of elements in another place than the result."""
        return tuple(index for element in self.elements for index in element.index if not index.plain)

    # ------------------------------------------------------------------------------------------ what it is to instructions

    @functools.cached_property
    def copies(self) -> bool:
        """Whether it is a copy of `src` to `dst`."""
        return self.only is not None and self.only.copies and self._is_of("src", "dst")

    @functools.cached_property
    def moves(self) -> bool:
        """Whether it is a copy of `src` to `dst` that may turn it: `dst[n,m] = src[m,n]`."""
        return self.only is not None and self.only.moves and self._is_of("src", "dst")

    @functools.cached_property
    def allocates(self) -> bool:
        """Whether it says that a tensor is there, and nothing about its values."""
        return self.only is not None and self.only.allocates

    @functools.cached_property
    def fills(self) -> bool:
        """Whether it sets all of `dst` to one value."""
        return self.only is not None and self.only.fills and self._is_of("dst")

    @functools.cached_property
    def is_product_sum(self) -> bool:
        """Whether it is a sum of products, and nothing else."""
        return self.only is not None and self.only.is_product_sum

    @functools.cached_property
    def multiplies(self) -> bool:
        """Whether it is the product of the matrices A (m x k) and B (k x n), added to C."""
        return self.only is not None and self.only.multiplies and self._is_of("A", "B", "C")

    @functools.cached_property
    def contracts(self) -> bool:
        """Whether it adds up products of elements of A and B, with indices in any order, into C."""
        return self.only is not None and self.only.contracts and self._is_of("A", "B", "C")

    @functools.cached_property
    def reduces(self) -> bool:
        """Whether it makes the sum, the maximum, the minimum or the product of elements of `src` along dimensions, into `dst`."""
        return self.only is not None and self.only.reduces and self._is_of("src", "dst")

    @functools.cached_property
    def pointwise(self) -> bool:
        """Whether it computes each element of its results from elements in the same place; one result alone is no copy and no constant."""
        return all(one.elementwise for one in self.formulas) if self.only is None else self.only.pointwise

    def _is_of(self, *operands: str) -> bool:
        return tuple(self.uses) == operands


def _names(value: Value | None) -> set[str]:
    """The signs and functions of a value."""
    if not isinstance(value, Operation):
        return set()
    return {value.name}.union(*map(_names, value.arguments))


def elements_of(value: Value | None, conditions: bool = True) -> Iterator[Element]:
    """The elements that a value reads, from left to right; without those of its conditions, where these do not count."""
    if isinstance(value, Element):
        yield value
    elif isinstance(value, Operation):
        for argument in value.arguments[0 if conditions or value.name != "where" else 1 :]:
            yield from elements_of(argument, conditions)


def _operations(value: Value | None) -> int:
    return 1 + sum(map(_operations, value.arguments)) if isinstance(value, Operation) else 0


# ---------------------------------------------------------------------------------------------- reading

REST: Final = "..."
"""Dimensions that a formula leaves open, in the place of an index."""

NAMES: Final = "mnpqrstuvwxyzabcdefgh"
"""What dimensions that are left open are called, but for those that the formula names itself."""


@functools.lru_cache(maxsize=4096)
def spelled(text: str, rank: int) -> str:
    """A text in which `...` stands for `rank` dimensions, with their names.

    >>> spelled("dst[...] += sum(p, src[...,p])", 3)
    'dst[m,n,q] += sum(p, src[m,n,q,p])'

    Raises: ArgumentError where there are more dimensions than names.
    """
    if REST not in text:
        return text
    free = [name for name in NAMES if name not in set(re.findall(r"\w+", text))]
    if not 1 <= rank <= len(free):
        raise ArgumentError(f"{text}: {rank} dimensions in the place of ...", legal=f"1 to {len(free)}")
    return text.replace(REST, ",".join(free[:rank]))


@functools.lru_cache(maxsize=4096)
def open_operands(text: str) -> tuple[tuple[int, int], ...]:
    """The operands with `...` among their indices: which they are, and how many dimensions they have where it stands for one."""
    if REST not in text:
        return ()
    least, more = (definition(spelled(text, rank)).uses.values() for rank in (1, 2))
    pairs = enumerate(zip(least, more, strict=True))
    return tuple((position, len(one)) for position, (one, other) in pairs if len(other) > len(one))


def signed(made: Definition, signature: str) -> Definition:
    """The same work with other indices: `signature` gives those of each operand, a letter each, as `einsum` does.

    What an input has and the result has not is reduced, in the order in which it comes.

    >>> str(signed(definition("C[m,n] += sum(k, A[m,k] * B[k,n])"), "bmk,bkn->bmn"))
    'C[b,m,n] += sum(k, A[b,m,k] * B[b,k,n])'

    Raises: ArgumentError where the signature is none, or none of this formula.
    """
    found = re.fullmatch(r"((?:[a-z]+(?:,[a-z]+)*)?)->([a-z]+)", signature.replace(" ", "")) if isinstance(signature, str) else None
    only = made.only
    tensors = [name for name in made.uses if name not in made.outputs]
    parts = [] if found is None else [part for part in found[1].split(",") if part]
    if found is None or only is None or len(parts) != len(tensors) or not all(one.plain for one in made.elements):
        raise ArgumentError(f"signature: none of {made}", got=signature, legal="einsum's form, such as bmk,bkn->bmn")
    over = tuple(dict.fromkeys(dim for part in parts for dim in part if dim not in found[2]))
    if bool(over) != (only.reduction is not None):
        raise ArgumentError(f"signature: {made} reduces {'some dimension' if only.reduction else 'none'}", got=signature)
    index = {name: tuple(map(Index, part)) for name, part in zip(tensors, parts, strict=True)}
    value = _indexed(only.value, index)
    return definition(str(attrs.evolve(only, target=Element(only.output, tuple(map(Index, found[2]))), value=value, over=over)))


def _indexed(value: Value | None, index: Mapping[str, tuple[Index, ...]]) -> Value | None:
    if isinstance(value, Element):
        return Element(value.tensor, index[value.tensor])
    if isinstance(value, Operation):
        return Operation(value.name, tuple(_indexed(one, index) for one in value.arguments))  # type: ignore[misc]
    return value


MOST_TEXT: Final = 2000
"""Most characters of a definition."""

_TOKEN: Final = re.compile(
    r"\s*(?:(\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+)|((?:sum|max|min|prod)=(?!=)|[+*]=|[<>=!]=|[A-Za-z_]\w*|[-+*/^=<>,()\[\]])|(\S))"
)


@functools.lru_cache(maxsize=4096)
def definition(text: str) -> Definition:
    """The definition of a text: a formula for each output.

    >>> definition("s[m,n] = a[m,n] + b[m,n]; d[n,m] = a[m,n] - b[m,n]").outputs
    ('s', 'd')

    Raises: ArgumentError where the text is none; it says where.
    """
    if not isinstance(text, str) or len(text) > MOST_TEXT:
        raise ArgumentError(f"a formula is a text of at most {MOST_TEXT} characters", got=text if not isinstance(text, str) else text[:80])
    made = Definition(tuple(formula(part.strip()) for part in text.split(";")))
    if len(set(made.outputs)) != len(made.outputs):
        raise ArgumentError("formula: a tensor is written twice", got=text)
    for one in made.formulas:
        if set(one.target.dims) != set(made.tile_dims):
            raise ArgumentError(f"formula: {one.target} has other dimensions than {made.formulas[0].target}", got=text)
    for read in made.elements:
        if read.tensor in made.outputs:
            raise ArgumentError(f"formula: {read.tensor} is read and written", got=text, hint="a spec of its own")
        if any(other.tensor == read.tensor and other != read for other in made.elements):
            raise ArgumentError(f"formula: {read.tensor} stands with two forms of indices", got=text)
    return made


@functools.lru_cache(maxsize=4096)
def formula(text: str) -> Formula:
    """The formula of a text for one output.

    >>> str(formula("y[m]+=sum(n,A[m,n]*(x[n]))"))
    'y[m] += sum(n, A[m,n] * x[n])'

    Raises: ArgumentError where the text is no formula; it says where.
    """
    try:
        return _checked(_Reader(text).formula(), text)
    except RecursionError:
        raise ArgumentError("a formula is nested too deeply", got=text[:80]) from None


@functools.lru_cache(maxsize=4096)
def formula_of(text: str) -> Formula:
    """The formula of a text for a step of several, which may read what it writes, and one tensor with different indices.

    >>> str(formula_of("s[m,n] = exp(s[m,n] - top[m])"))
    's[m,n] = exp(s[m,n] - top[m])'

    Raises: ArgumentError where the text is no formula; it says where.
    """
    if not isinstance(text, str) or len(text) > MOST_TEXT:
        raise ArgumentError(f"a formula is a text of at most {MOST_TEXT} characters", got=text if not isinstance(text, str) else text[:80])
    try:
        made = _Reader(text).formula()
    except RecursionError:
        raise ArgumentError("a formula is nested too deeply", got=text[:80]) from None
    if made.value is None:
        raise ArgumentError("formula: nothing is written", got=text, legal=f"{made.target} = ...")
    _check_result(made, text)
    for one in made.elements:
        if not one.plain:
            raise ArgumentError(f"formula: {one} stands in another place than the result", got=text, legal="dimensions as they are")
        if len(set(one.dims)) != len(one.dims):
            raise ArgumentError(f"formula: {one} has a dimension twice", got=text)
    return made


_CONDITION_ENDS: Final = (",", ")", "and", "or")
"""What may stand behind a condition."""


@attrs.define
class _Reader:
    """The tokens of a text, and how many of them are read."""

    text: str
    tokens: tuple[str, ...] = attrs.field(init=False)
    place: int = 0

    def __attrs_post_init__(self) -> None:
        self.tokens = tuple(number or word or other for number, word, other in _TOKEN.findall(self.text))

    # One method for each rule of the grammar.

    def formula(self) -> Formula:
        target = self.element(self.name("the tensor that is written"))
        if self.next is None:
            return Formula(target)
        named = {f"{name}=": sign for name, sign in REDUCTIONS.items()}
        sign = self.one_of("=", "sum=", "prod=", *REDUCTIONS.values())
        sign = named.get(sign, sign)
        start = self.place
        reduction = self.reduction()
        if reduction is not None and self.next is not None and reduction[1] in EXTREMES and len(reduction[2]) == 1:
            # `max(m, n) * 2`: no reduction, which would be all of the value, but the larger of two coordinates.
            self.place, reduction = start, None
        made = Formula(target, sign, self.value()) if reduction is None else Formula(target, sign, *reduction)
        if self.next is not None:
            self.refuse(", its end")
        return made

    def reduction(self) -> tuple[Value, str, tuple[str, ...]] | None:
        """The value, by what it is reduced, and the dimensions; None where no reduction stands here."""
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

    def value(self) -> Value:
        return self.chain(self.sum, ("max", "min"))

    def sum(self) -> Value:
        return self.chain(self.term, ("+", "-"))

    def term(self) -> Value:
        return self.chain(self.factor, ("*", "/"))

    def chain(self, part: Callable[[], Value], signs: tuple[str, ...]) -> Value:
        made = part()
        while self.next in signs:
            made = Operation(self.one_of(*signs), (made, part()))
        return made

    def factor(self) -> Value:
        if self.next == "-":
            self.take("-")
            inner = self.factor()
            return Number(-inner.value) if isinstance(inner, Number) else Operation("-", (inner,))
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
            return Number(int(text) if text.isdecimal() else float(text))
        except ValueError:  # more digits than Python reads
            raise ArgumentError("formula: no number", got=text[:40]) from None

    def called(self, name: str) -> Value:
        if name not in FUNCTIONS:
            hint = "a reduction is the whole right side; its result is a tensor of its own" if name in REDUCTIONS else None
            raise ArgumentError(f"formula: unknown function {name!r}", got=self.text, legal=FUNCTIONS, hint=hint)
        self.take("(")
        arguments = [self.condition() if name == "where" else self.value()]
        while self.next == ",":
            self.take(",")
            arguments.append(self.value())
        self.take(")")
        if len(arguments) != FUNCTIONS[name]:
            raise ArgumentError(f"formula: {name} takes {FUNCTIONS[name]} values, not {len(arguments)}", got=self.text)
        return Operation(name, tuple(arguments))

    def condition(self) -> Value:
        return self.chain(lambda: self.chain(self.test, ("and",)), ("or",))

    def test(self) -> Value:
        start = self.place
        if self.next == "(":  # around a condition, or around a part of a value
            try:
                self.take("(")
                inner = self.condition()
                self.take(")")
                if self.next in _CONDITION_ENDS:
                    return inner
            except ArgumentError:
                pass
            self.place = start
        left = self.value()
        if self.next in _CONDITION_ENDS:  # as in C, a number is a condition: that it is not zero
            return Operation("!=", (left, Number(0)))
        return Operation(self.one_of(*COMPARISONS), (left, self.value()))

    def element(self, tensor: str) -> Element:
        if self.next != "[":
            return self.scalar(tensor)
        self.take("[")
        index = [self.index()]
        while self.next == ",":
            self.take(",")
            index.append(self.index())
        self.take("]")
        return Element(tensor, tuple(index))

    def scalar(self, tensor: str) -> Element:
        if tensor in FUNCTIONS or tensor in REDUCTIONS:
            self.refuse(f"; {tensor} is a function, and no scalar: its arguments")
        return Element(tensor, ())

    def index(self) -> Index:
        dim = self.name("a dimension")
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
            self.refuse(f"; {before} takes an integer")
        return int(self.one_of())

    # Tokens.

    @property
    def next(self) -> str | None:
        return self.tokens[self.place] if self.place < len(self.tokens) else None

    def one_of(self, *wanted: str) -> str:
        """The next token, one of those wanted (any if none is named)."""
        found = self.next
        if found is None or (wanted and found not in wanted):
            self.refuse(f", {' or '.join(wanted)}")
        self.place += 1
        return str(found)

    def take(self, wanted: str) -> None:
        self.one_of(wanted)

    def name(self, what: str) -> str:
        if self.next is None or not self.next.isidentifier():
            self.refuse(f", {what}")
        return self.one_of()

    def refuse(self, wanted: str) -> None:
        """Say what stands in the place of what is wanted."""
        before = " ".join(self.tokens[: self.place])[-60:]
        found = "it ends" if self.next is None else f"{self.next[:40]!r} stands"
        raise ArgumentError(f"formula: {found} behind {before!r}{wanted} is wanted".replace(", ;", ";"), got=self.text)


def _checked(made: Formula, text: str) -> Formula:
    """Refuse what has no meaning: dimensions that nothing counts, a result that is read, a tensor of two forms."""
    target = made.target
    _check_result(made, text)
    for one in made.elements:
        loose = [dim for dim in one.dims if dim not in made.dims]
        if loose:
            raise ArgumentError(f"formula: {loose[0]} of {one} is neither in the result nor reduced", got=text, legal=made.dims)
        if one.tensor == target.tensor:
            raise ArgumentError(f"formula: {one.tensor} is read and written", got=text, hint="+= adds to what it holds")
        if any(other.tensor == one.tensor and other != one for other in made.elements):
            raise ArgumentError(f"formula: {one.tensor} stands with two forms of indices", got=text)
        if len(set(one.dims)) != len(one.dims):
            raise ArgumentError(f"formula: {one} has a dimension twice", got=text)
    return made


def _check_result(made: Formula, text: str) -> None:
    """Refuse a result without dimensions or with one twice, a reduction of what no element has, and one that joins by another sign."""
    target = made.target
    if not target.index:
        raise ArgumentError(f"formula: {target.tensor!r} without its indices", got=text, legal=f"{target.tensor}[m,n]")
    if not target.plain or len(set(made.dims)) != len(made.dims):
        raise ArgumentError("formula: the result has each of its dimensions once, as it is", got=text)
    idle = [dim for dim in made.over if not any(dim in one.dims for one in made.elements)]
    if idle:
        of_two = made.reduction in FUNCTIONS and len(made.over) == 1
        hint = f"of two values the one that is no name stands first: {made.reduction}({made.value}, {idle[0]})" if of_two else None
        raise ArgumentError(f"formula: {idle[0]} is reduced, but no element has it", got=text, hint=hint)
    if made.joins and made.reduction is not None and REDUCTIONS[made.reduction] != made.sign:
        raise ArgumentError(f"formula: a {made.reduction} joins by {REDUCTIONS[made.reduction]}", got=text)
