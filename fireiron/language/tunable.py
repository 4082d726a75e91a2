"""Tunables: named integers that get their value later. They are legal wherever an integer is legal."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping
from typing import Any, Final, SupportsIndex, TypeAlias, TypeVar

import attrs

from fireiron.errors import ArgumentError, DecompositionError, call_site, shown
from fireiron.frozen import evolve
from fireiron.ir.rewrite import by_identities
from fireiron.values.layout import Layout
from fireiron.values.machine import as_integer
from fireiron.values.tensor import tile_fault

T = TypeVar("T")

_OPERATORS: Mapping[str, Callable[[int, int], int]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "//": operator.floordiv, "%": operator.mod,
}  # fmt: skip

MAX_DEPTH = 32
"""Maximum depth of arithmetic on tunables; much less than Python's recursion limit."""

LARGEST = 2**31 - 1
"""The largest size."""


class _Arithmetic:
    """Integer arithmetic on values that are not chosen yet."""

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
        raise ArgumentError(f"{self!r} / {shown(other)}: sizes must be integers", hint=f"{self!r} // {shown(other)}", at=call_site())

    def __rtruediv__(self, other: Any) -> Derived:
        raise ArgumentError(f"{shown(other)} / {self!r}: sizes must be integers", hint=f"{shown(other)} // {self!r}", at=call_site())

    def _unordered(self, other: Any) -> bool:
        raise ArgumentError(
            f"{self!r} has no value yet and cannot be compared",
            hint="set a value by with_(...), or make one strategy per case",
            at=call_site(),
        )

    __lt__ = __le__ = __gt__ = __ge__ = _unordered


@attrs.frozen(repr=False, init=False)
class Tunable(_Arithmetic):
    """A named choice among integers of at least 0; the default is the first legal one.

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
                f"Tunable({name!r}) needs one or more values, integers of at least 0",
                got=values,
                legal=f"0 ... {LARGEST}",
                at=call_site(),
                hint=f'Tunable("{name}", 64, 128)',
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
            raise ArgumentError("arithmetic on tunables: unknown operation", got=self.op, legal=_OPERATORS, at=call_site())
        for name in ("left", "right"):
            part = getattr(self, name)
            if not isinstance(part, _Arithmetic):
                if as_integer(part) is None:
                    raise ArgumentError(
                        "arithmetic on tunables: the operand is neither an integer nor a tunable",
                        got=part,
                        legal=f"bm {self.op} 2",
                        at=call_site(),
                    )
                object.__setattr__(self, name, as_integer(part))
        object.__setattr__(self, "depth", 1 + max(getattr(part, "depth", 0) for part in (self.left, self.right)))
        if self.depth > MAX_DEPTH:
            raise ArgumentError(f"arithmetic on tunables is nested deeper than {MAX_DEPTH}", at=call_site())

    def __repr__(self) -> str:
        parts = [f"({part!r})" if isinstance(part, Derived) else repr(part) for part in (self.left, self.right)]
        return f"{parts[0]} {self.op} {parts[1]}"


Integer: TypeAlias = SupportsIndex | Tunable | Derived
"""An argument of a verb: an integer of Python or NumPy, or a tunable."""

TileSize: TypeAlias = Integer | Layout
"""A tile size along a dimension: a number of elements, or the layout of the elements."""


def resolve(value: T, values: Mapping[str, int]) -> T:
    """Return a value with tunables replaced, inside tuples and attrs classes. Refinements that then have no effect are dropped.

    This function does not refuse illegal values and divisions by zero. `chosen` refuses them when the step is expanded, so that a sweep
    gets all errors of a combination at one point.
    """
    return _resolve(value, values)  # type: ignore[no-any-return]


_PLAIN: Final = frozenset({int, str, bool, float, type(None)})
"""The classes of most fields of steps, which contain no tunables."""


def _resolve(value: Any, values: Mapping[str, int]) -> Any:
    if value.__class__ in _PLAIN:
        return value
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
    parts = _parts(value.__class__)
    if parts:
        updates = {}
        for part in parts:
            old = getattr(value, part.name)
            new = _resolve(old, values)
            if new is not old:
                updates[part.alias or part.name] = new
        return evolve(value, **updates) if updates else value
    return value


def count(value: Any, what: str, least: int = 1, most: int = LARGEST, more: str = "") -> Any:
    """Return an argument of a verb as a plain integer; refuse anything but an integer from `least` to `most`.

    A tunable is returned unchanged; `chosen` checks it when it has a value. `more` names other legal arguments, for the message.
    """
    if isinstance(value, _Arithmetic):
        return value
    number = as_integer(value)
    if number is None or not least <= number <= most:
        required = _required(number, least, most)
        raise DecompositionError(f"{what}: must be {required}{more}", got=value, legal=f"{least} ... {most}{more}", at=call_site())
    return number


def _required(number: int | None, least: int, most: int) -> str:
    """Return the requirement that a value violates, for messages."""
    if number is not None and number > most:
        return f"at most {most}"
    return "a positive integer" if least == 1 else "an integer" if number is None else f"at least {least}"


def integral(value: Any, what: str) -> Any:
    """Return an integer of any size, or a tunable, as the field of a step; refuse anything else."""
    return count(value, what, least=-(2**62), most=2**62)


def chosen(value: Any, what: str, least: int = 1, most: int = LARGEST) -> int:
    """Return the integer in a field of a step when it is used. Raises: `DecompositionError` if it is out of range or still a tunable."""
    if isinstance(value, _Arithmetic):
        raise DecompositionError(f"{what}: {value!r} has no value", hint="set it by strategy.with_(...), and do not divide by zero")
    if not least <= value <= most:
        raise DecompositionError(f"{what}: must be {_required(value, least, most)}", got=value, legal=f"{least} ... {most}")
    return int(value)


def tile_size(value: Any, what: str) -> Any:
    """Return a tile size along a dimension as the field of a step: an integer, a tunable, or the layout of a tile's elements."""
    return value if isinstance(value, Layout) else integral(value, what)


def checked_tile_size(value: Any, what: str) -> Any:
    """Return a tile size given to a verb; refuse anything but a positive integer, a tunable, or a layout that tiles a dimension."""
    return _tile(value, what, call_site()) if isinstance(value, Layout) else count(value, what, more=", or a Layout")


def chosen_tile_size(value: Any, what: str) -> int | Layout:
    """Return the tile size in a field of a step when it is used, as `chosen` does."""
    return _tile(value, what, None) if isinstance(value, Layout) else chosen(value, what)


def _tile(value: Layout, what: str, at: str | None) -> Layout:
    fault = tile_fault(value)
    if fault is not None:
        raise DecompositionError(f"{what}: {value} cannot tile a dimension: {fault}", legal="Layout(2, 2), as [2:2]", at=at)
    return value


def by_dimension(value: Any, what: str) -> tuple[tuple[str, Any], ...]:
    """Return tile sizes by dimension, as pairs. Raises: `DecompositionError` for anything else."""
    if not isinstance(value, tuple) or any(not isinstance(pair, tuple) or len(pair) != 2 or not isinstance(pair[0], str) for pair in value):
        raise DecompositionError(f"{what}: sizes by dimension must be pairs", got=value, legal='(("m", 64), ("n", 32))', at=call_site())
    return tuple((dim, tile_size(size, f"{what}({dim}=...)")) for dim, size in value)


def tunables_in(value: Any) -> dict[str, Tunable]:
    """Return all tunables in a value, by name; refuse two different tunables of the same name."""
    tunables: dict[str, Tunable] = {}
    _collect(value, tunables)
    return tunables


def has_part(part: Any, value: Any) -> bool:
    """Return whether `value`, with all nested steps and fields, contains `part`."""
    if isinstance(value, type(part)):
        return value is part
    if isinstance(value, tuple):
        return any(has_part(part, element) for element in value)
    return any(has_part(part, getattr(value, field.name)) for field in _parts(value.__class__))


@functools.cache
def _parts(kind: type) -> tuple[attrs.Attribute[Any], ...]:
    """Return the fields of an attrs class that are arguments; none for other classes, and for expressions, which contain no tunables."""
    fields = () if hasattr(kind, "low") else getattr(kind, "__attrs_attrs__", ())
    return tuple(field for field in fields if field.init)


def _collect(value: Any, tunables: dict[str, Tunable]) -> None:
    if isinstance(value, Tunable):
        if tunables.setdefault(value.name, value) != value:
            raise ArgumentError(
                f"two tunables have the name {value.name}: {tunables[value.name]} and {value}",
                hint="use one object, or two names",
                at=call_site(),
            )
    elif isinstance(value, tuple):
        for part in value:
            _collect(part, tunables)
    elif _parts(value.__class__):
        for tunable in _inside(value):
            _collect(tunable, tunables)


@by_identities  # a strategy is resolved often, and its steps contain strategies
def _inside(value: Any) -> tuple[Tunable, ...]:
    """Return the tunables in the fields of a step or of another attrs class."""
    tunables: dict[str, Tunable] = {}
    for field in _parts(value.__class__):
        _collect(getattr(value, field.name), tunables)
    return tuple(tunables.values())
