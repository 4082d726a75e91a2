"""Tunables: named integers that may stand wherever an integer may, until a value is chosen."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import attrs

from fireiron.errors import ArgumentError

T = TypeVar("T")

_OPERATORS: Mapping[str, Callable[[int, int], int]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "//": operator.floordiv, "%": operator.mod,
}  # fmt: skip


class _Arithmetic:
    """Integer arithmetic that waits for the values."""

    __slots__ = ()

    def __add__(self, other: Any) -> Derived:
        return Derived("+", self, other)

    def __radd__(self, other: Any) -> Derived:
        return Derived("+", other, self)

    def __sub__(self, other: Any) -> Derived:
        return Derived("-", self, other)

    def __mul__(self, other: Any) -> Derived:
        return Derived("*", self, other)

    def __rmul__(self, other: Any) -> Derived:
        return Derived("*", other, self)

    def __floordiv__(self, other: Any) -> Derived:
        return Derived("//", self, other)

    def __mod__(self, other: Any) -> Derived:
        return Derived("%", self, other)

    tunable_values = True


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
            raise ArgumentError("Tunable: a name must be an identifier", got=name)
        if not values or any(isinstance(value, bool) or not isinstance(value, int) or value < 0 for value in values):
            raise ArgumentError(f"Tunable({name!r}): values must be integers, not negative, at least one", got=values)
        self.__attrs_init__(name, tuple(dict.fromkeys(values)))  # type: ignore[attr-defined]

    def __repr__(self) -> str:
        return f"Tunable({self.name!r}, {', '.join(map(str, self.values))})"


@attrs.frozen(repr=False)
class Derived(_Arithmetic):
    """An integer computed from tunables."""

    op: str
    left: Any
    right: Any

    def __repr__(self) -> str:
        parts = [f"({part!r})" if isinstance(part, Derived) else repr(part) for part in (self.left, self.right)]
        return f"{parts[0]} {self.op} {parts[1]}"


def resolve(value: T, values: Mapping[str, int]) -> T:
    """The value with tunables replaced, through tuples and attrs classes."""
    return _resolve(value, values)  # type: ignore[no-any-return]


def _resolve(value: Any, values: Mapping[str, int]) -> Any:
    if isinstance(value, Tunable):
        return values.get(value.name, value)
    if isinstance(value, Derived):
        left, right = _resolve(value.left, values), _resolve(value.right, values)
        if isinstance(left, int) and isinstance(right, int):
            if value.op in ("//", "%") and right == 0:
                raise ArgumentError(f"{value}: division by zero")
            return _OPERATORS[value.op](left, right)
        return Derived(value.op, left, right)
    if isinstance(value, tuple):
        changed = tuple(_resolve(part, values) for part in value)
        return value if all(new is old for new, old in zip(changed, value, strict=True)) else changed
    if attrs.has(type(value)) and not hasattr(value, "low"):
        updates = {}
        for field in attrs.fields(type(value)):
            if field.init:
                old = getattr(value, field.name)
                new = _resolve(old, values)
                if new is not old:
                    updates[field.alias] = new
        return attrs.evolve(value, **updates) if updates else value
    return value


def tunables_in(value: Any) -> dict[str, Tunable]:
    """All tunables that occur, by name; two of one name must be equal."""
    found: dict[str, Tunable] = {}
    _collect(value, found)
    return found


def _collect(value: Any, found: dict[str, Tunable]) -> None:
    if isinstance(value, Tunable):
        if found.setdefault(value.name, value) != value:
            raise ArgumentError(f"two tunables are called {value.name}: {found[value.name]} and {value}", hint="use one object, or two names")
    elif isinstance(value, tuple):
        for part in value:
            _collect(part, found)
    elif attrs.has(type(value)) and not hasattr(value, "low"):
        for field in attrs.fields(type(value)):
            if field.init:
                _collect(getattr(value, field.name), found)
