"""Open records: values of different kinds, at most one of a kind. A reader requests the kinds that it knows, so a new kind needs no change
in readers.

A value created without arguments is neutral. A record omits neutral values and returns one for a kind that it does not contain.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Generic, Self, TypeVar

import attrs

from fireiron.frozen import frozen

T = TypeVar("T")
KindT = TypeVar("KindT")


def _in_order(values: Iterable[Any]) -> tuple[Any, ...]:
    """The values that are not neutral, one of a kind, ordered by class name."""
    return tuple(sorted((one for one in values if one != type(one)()), key=lambda one: (type(one).__name__, type(one).__module__)))


@frozen
class Record(Generic[T]):
    """At most one value of each kind, ordered by class name."""

    all: tuple[T, ...] = attrs.field(default=(), converter=_in_order)

    def __getitem__(self, kind: type[KindT]) -> KindT:
        """The value of a kind; a neutral one if there is none."""
        for value in self.all:
            if type(value) is kind:
                return value  # type: ignore[return-value]
        return kind()

    def __contains__(self, kind: type) -> bool:
        return kind in map(type, self.all)

    def __iter__(self) -> Iterator[T]:
        return iter(self.all)

    def __bool__(self) -> bool:
        return bool(self.all)

    def with_(self, *values: T) -> Self:
        """The record with these values; they replace those of their kinds."""
        return type(self)((*self.without(*map(type, values)), *values))

    def without(self, *kinds: type) -> Self:
        """The record without the values of some kinds."""
        return type(self)(tuple(one for one in self.all if type(one) not in kinds)) if self.all else self


__all__ = ["Record"]
