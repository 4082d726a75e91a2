"""Tunables: named integers that may stand wherever an integer may, until a value is chosen."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any, SupportsIndex, TypeAlias, TypeVar

import attrs

from fireiron.errors import ArgumentError, DecompositionError, call_site, shown
from fireiron.values.layout import Layout
from fireiron.values.machine import as_integer
from fireiron.values.tensor import tile_fault

T = TypeVar("T")

_OPERATORS: Mapping[str, Callable[[int, int], int]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "//": operator.floordiv, "%": operator.mod,
}  # fmt: skip

MAX_DEPTH = 32
"""Deepest nesting of arithmetic on tunables: far above any use, far below Python's recursion limit."""

LARGEST = 2**31 - 1
"""The largest size."""


class _Arithmetic:
    """Integer arithmetic that waits for the values."""

    __slots__ = ()

    def __add__(self, other: Any) -> Derived:
        return Derived("+", self, other)

    def __radd__(self, other: Any) -> Derived:
        return Derived("+", other, self)

    def __sub__(self, other: Any) -> Derived:
        return Derived("-", self, other)

    def __rsub__(self, other: Any) -> Derived:
        return Derived("-", other, self)

    def __mul__(self, other: Any) -> Derived:
        return Derived("*", self, other)

    def __rmul__(self, other: Any) -> Derived:
        return Derived("*", other, self)

    def __floordiv__(self, other: Any) -> Derived:
        return Derived("//", self, other)

    def __rfloordiv__(self, other: Any) -> Derived:
        return Derived("//", other, self)

    def __mod__(self, other: Any) -> Derived:
        return Derived("%", self, other)

    def __rmod__(self, other: Any) -> Derived:
        return Derived("%", other, self)

    def __truediv__(self, other: Any) -> Derived:
        raise ArgumentError(f"{self!r} / {shown(other)}: sizes are integers", hint=f"{self!r} // {shown(other)}", at=call_site())

    def __rtruediv__(self, other: Any) -> Derived:
        raise ArgumentError(f"{shown(other)} / {self!r}: sizes are integers", hint=f"{shown(other)} // {self!r}", at=call_site())

    def _unordered(self, other: Any) -> bool:
        raise ArgumentError(
            f"{self!r} has no value yet, so it cannot be compared",
            hint="with_(...) gives it one; or make one strategy per case",
            at=call_site(),
        )

    __lt__ = __le__ = __gt__ = __ge__ = _unordered


@attrs.frozen(repr=False, init=False)
class Tunable(_Arithmetic):
    """A named choice among positive integers; the first that is legal is the default.

    >>> Tunable("bm", 64, 128) // 2
    Tunable('bm', 64, 128) // 2
    """

    name: str
    values: tuple[int, ...]

    def __init__(self, name: str, *values: int) -> None:
        if not isinstance(name, str) or not name.isidentifier():
            raise ArgumentError("Tunable: a name must be an identifier", got=name, at=call_site())
        numbers = [number for number in map(as_integer, values) if number is not None and 0 <= number <= LARGEST]
        if not values or len(numbers) < len(values):
            raise ArgumentError(
                f"Tunable({name!r}): values must be integers, not negative, at least one",
                got=values,
                legal=f"0 ... {LARGEST}",
                at=call_site(),
                hint=f'Tunable("{name}", 64, 128): one after the other',
            )
        self.__attrs_init__(name, tuple(dict.fromkeys(numbers)))

    def __repr__(self) -> str:
        return f"Tunable({self.name!r}, {', '.join(map(str, self.values))})"


@attrs.frozen(repr=False)
class Derived(_Arithmetic):
    """An integer computed from tunables.

    >>> from fireiron import *
    >>> MatMul.tile(Tunable("bm", 32, 64), 16).to(Block).tile(Tunable("bm", 32, 64) // 4, 4).to(Thread).with_(bm=64)
    MatMul.tile(64, 16).to(Block).tile(16, 4).to(Thread)
    """

    op: str
    left: Any
    right: Any
    depth: int = attrs.field(init=False, eq=False)

    def __attrs_post_init__(self) -> None:
        if not isinstance(self.op, str) or self.op not in _OPERATORS:
            raise ArgumentError("arithmetic on tunables: no such operation", got=self.op, legal=_OPERATORS, at=call_site())
        for name in ("left", "right"):
            part = getattr(self, name)
            if not isinstance(part, _Arithmetic):
                if as_integer(part) is None:
                    raise ArgumentError(
                        "arithmetic on tunables: neither an integer nor a tunable", got=part, legal=f"bm {self.op} 2", at=call_site()
                    )
                object.__setattr__(self, name, as_integer(part))
        object.__setattr__(self, "depth", 1 + max(getattr(part, "depth", 0) for part in (self.left, self.right)))
        if self.depth > MAX_DEPTH:
            raise ArgumentError(f"arithmetic on tunables is nested deeper than {MAX_DEPTH}", at=call_site())

    def __repr__(self) -> str:
        parts = [f"({part!r})" if isinstance(part, Derived) else repr(part) for part in (self.left, self.right)]
        return f"{parts[0]} {self.op} {parts[1]}"


Integer: TypeAlias = SupportsIndex | Tunable | Derived
"""A number given to a verb: an integer of Python or NumPy, or a tunable that becomes one."""

TileSize: TypeAlias = Integer | Layout
"""A size along a dimension: elements, or a layout that says which."""


def resolve(value: T, values: Mapping[str, int]) -> T:
    """The value with tunables replaced, through tuples and attrs classes. Refinements that say nothing with them are left out.

    Nothing is judged here: what is illegal, a division by zero too, is refused where the step is expanded, as `chosen` does,
    so that a sweep meets the error of each combination in one place.
    """
    return _resolve(value, values)  # type: ignore[no-any-return]


def _resolve(value: Any, values: Mapping[str, int]) -> Any:
    if isinstance(value, Tunable):
        return values.get(value.name, value)
    if isinstance(value, Derived):
        left, right = _resolve(value.left, values), _resolve(value.right, values)
        if isinstance(left, int) and isinstance(right, int) and not (value.op in ("//", "%") and right == 0):
            return _OPERATORS[value.op](left, right)
        if left is value.left and right is value.right:
            return value
        return Derived(value.op, left, right)
    if isinstance(value, tuple):
        changed = tuple(_resolve(part, values) for part in value)
        if all(new is old for new, old in zip(changed, value, strict=True)):
            return value
        return tuple(new for new, old in zip(changed, value, strict=True) if new is old or not getattr(new, "idle", False))
    if hasattr(value, "resolved"):
        return value.resolved(lambda part: _resolve(part, values))
    parts = _parts(value)
    if parts:
        updates = {}
        for part in parts:
            old = getattr(value, part.name)
            new = _resolve(old, values)
            if new is not old:
                updates[part.alias or part.name] = new
        return attrs.evolve(value, **updates) if updates else value
    return value


def count(value: Any, what: str, least: int = 1, most: int = LARGEST, more: str = "") -> Any:
    """A number given to a verb, as a plain integer; refused where it is no integer from `least` to `most`. `more` is legal there, too.

    A tunable stays as it is, and is checked by `chosen` when it has a value.
    """
    if isinstance(value, _Arithmetic):
        return value
    number = as_integer(value)
    if number is None or not least <= number <= most:
        required = _required(number, least, most)
        raise DecompositionError(f"{what}: must be {required}{more}", got=value, legal=f"{least} ... {most}{more}", at=call_site())
    return number


def _required(number: int | None, least: int, most: int) -> str:
    """What a value that is no integer, or one out of range, would have to be."""
    if number is not None and number > most:
        return f"at most {most}"
    return "a positive integer" if least == 1 else "an integer" if number is None else f"at least {least}"


def integral(value: Any, what: str) -> Any:
    """An integer or a tunable, whatever its value: what a step may hold."""
    return count(value, what, least=-(2**62), most=2**62)


def chosen(value: Any, what: str, least: int = 1, most: int = LARGEST) -> int:
    """The number that a step holds, when it is used: in range, and no tunable any more, or a `DecompositionError`."""
    if isinstance(value, _Arithmetic):
        raise DecompositionError(f"{what}: {value!r} has no value", hint="strategy.with_(...), and no division by zero")
    if not least <= value <= most:
        raise DecompositionError(f"{what}: must be {_required(value, least, most)}", got=value, legal=f"{least} ... {most}")
    return int(value)


def tile_size(value: Any, what: str) -> Any:
    """What a step may hold as the size of its tiles along a dimension: an integer, a tunable, or the layout of a tile's elements."""
    return value if isinstance(value, Layout) else integral(value, what)


def checked_tile_size(value: Any, what: str) -> Any:
    """A tile size given to a verb; refused where it is no positive integer, nor a layout that tiles anything."""
    return _tile(value, what, call_site()) if isinstance(value, Layout) else count(value, what, more=", or a Layout")


def chosen_tile_size(value: Any, what: str) -> int | Layout:
    """The tile size that a step holds, when it is used, as `chosen`."""
    return _tile(value, what, None) if isinstance(value, Layout) else chosen(value, what)


def _tile(value: Layout, what: str, at: str | None) -> Layout:
    fault = tile_fault(value)
    if fault is not None:
        raise DecompositionError(f"{what}: tiles of {value} divide nothing: {fault}", legal="Layout(2, 2), as [2:2]", at=at)
    return value


def by_dimension(value: Any, what: str) -> tuple[tuple[str, Any], ...]:
    """Sizes by dimension name, as pairs, each a tile size; a `DecompositionError` for anything else."""
    if not isinstance(value, tuple) or any(not isinstance(pair, tuple) or len(pair) != 2 or not isinstance(pair[0], str) for pair in value):
        raise DecompositionError(f"{what}: sizes by dimension are pairs", got=value, legal='(("m", 64), ("n", 32))', at=call_site())
    return tuple((dim, tile_size(size, f"{what}({dim}=...)")) for dim, size in value)


def tunables_in(value: Any) -> dict[str, Tunable]:
    """All tunables that occur, by name; two of one name must be equal."""
    found: dict[str, Tunable] = {}
    _collect(value, found)
    return found


def has_part(part: Any, value: Any) -> bool:
    """Whether a value stands somewhere in steps, those of their substrategies included."""
    if isinstance(value, type(part)):
        return value is part
    if isinstance(value, tuple):
        return any(has_part(part, one) for one in value)
    return any(has_part(part, getattr(value, field.name)) for field in _parts(value))


def _parts(value: Any) -> tuple[attrs.Attribute[Any], ...]:
    """The arguments that an instance of an attrs class was made of; none of anything else, and of an expression, which holds no tunable."""
    fields = getattr(type(value), "__attrs_attrs__", ())
    return () if not fields or hasattr(value, "low") else tuple(field for field in fields if field.init)


def _collect(value: Any, found: dict[str, Tunable]) -> None:
    if isinstance(value, Tunable):
        if found.setdefault(value.name, value) != value:
            raise ArgumentError(
                f"two tunables are called {value.name}: {found[value.name]} and {value}",
                hint="use one object, or two names",
                at=call_site(),
            )
    elif isinstance(value, tuple):
        for part in value:
            _collect(part, found)
    else:
        for field in _parts(value):
            _collect(getattr(value, field.name), found)
