"""Immutable classes with fields: `attrs.frozen`, but with fewer generated functions.

`attrs` compiles a source text for each class. More than half of it is `__repr__`, `__eq__` and `__hash__`, although a process compares few
classes of this package and prints fewer. `frozen` adds these three as functions that read a list of fields, so a class takes less time to
create (docs/decisions/0108-class-creation.md). Classes that are compared for each node of a kernel use `attrs.frozen(cache_hash=True)`.
"""

from __future__ import annotations

import functools
import operator
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import attrs

C = TypeVar("C", bound=type)

_PRINTING: Final = threading.local()
"""The ids of the objects that this thread is printing."""


def _frozen(cls: C) -> C:
    """Return `attrs.frozen(cls)`: the same fields, arguments, text, equality and immutability.

    Errors: TypeError for an exception, and for a field with a function for comparison. Use `attrs.frozen` for these and for options, such
    as `kw_only=True`.
    """
    if issubclass(cls, BaseException):
        raise TypeError(f"{cls.__qualname__}: exceptions are equal only to themselves; use attrs.frozen")
    own = vars(cls)
    prints, compares, hashes = ("__repr__" not in own, "__eq__" not in own and "__ne__" not in own, "__hash__" not in own)
    result: Any = attrs.frozen(repr=False, eq=False)(cls)
    fields = attrs.fields(result)
    if any(field.eq_key is not None for field in fields):
        raise TypeError(f"{cls.__qualname__}: a field has a function for comparison; use attrs.frozen")
    if prints:
        result.__repr__ = _printer(fields)
    if compares:
        result.__eq__ = _comparison(_values([field.name for field in fields if field.eq]))
        if hashes:
            hashed = [field.name for field in fields if (field.eq if field.hash is None else field.hash)]
            result.__hash__ = _hash(f"{cls.__module__}.{cls.__qualname__}", _values(hashed))
    return result  # type: ignore[no-any-return]


def _values(names: list[str]) -> Callable[[Any], Any]:
    """Return the function that returns the values of fields: one value, or a tuple."""
    return operator.attrgetter(*names) if names else lambda value: ()


def _comparison(values: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    def __eq__(self: Any, other: Any) -> Any:
        if other.__class__ is not self.__class__:
            return NotImplemented
        return values(self) == values(other)

    return __eq__


def _hash(name: str, values: Callable[[Any], Any]) -> Callable[[Any], int]:
    start = hash(name)

    def __hash__(self: Any) -> int:
        return hash((start, values(self)))

    return __hash__


def _evolve(instance: Any, **changes: Any) -> Any:
    """Return `attrs.evolve(instance, **changes)`: a copy with other values of some fields. It looks up the fields once per class."""
    cls = instance.__class__
    names, values = _arguments(cls)
    return cls(**dict(zip(names, values(instance)), **changes))


@functools.cache
def _arguments(cls: type) -> tuple[tuple[str, ...], Callable[[Any], Any]]:
    """Return the arguments of `__init__`, and the function that returns their values from an object."""
    fields = [field for field in attrs.fields(cls) if field.init]
    return tuple(field.alias for field in fields), _tuple([field.name for field in fields])


def _tuple(names: list[str]) -> Callable[[Any], Any]:
    """Return the function that returns the values of fields as a tuple."""
    values = _values(names)
    return (lambda value: (values(value),)) if len(names) == 1 else values


def _printer(fields: Any) -> Callable[[Any], str]:
    shown = [(field.name, repr if field.repr is True else field.repr) for field in fields if field.repr]

    def __repr__(self: Any) -> str:
        printing = _PRINTING.__dict__.setdefault("ids", set())
        if id(self) in printing:
            return "..."
        printing.add(id(self))
        try:
            name = self.__class__.__qualname__.rsplit(">.", 1)[-1]
            return f"{name}({', '.join([f'{field}={text(getattr(self, field))}' for field, text in shown])})"
        finally:
            printing.discard(id(self))

    return __repr__


if TYPE_CHECKING:
    from attrs import evolve as evolve
    from attrs import frozen as frozen
else:
    evolve = _evolve
    frozen = _frozen
