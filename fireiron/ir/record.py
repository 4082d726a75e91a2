"""Open records: values of any kinds, at most one of a kind. Who reads one asks for the kinds that it knows, so a new kind needs no reader.

A value of a kind that is made without arguments says nothing; a record leaves it out, and gives it where nothing is said.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Generic, Self, TypeVar

import attrs

T = TypeVar("T")
KindT = TypeVar("KindT")


def _in_order(values: Iterable[Any]) -> tuple[Any, ...]:
    """Values that say something, one of a kind, by the names of their classes."""
    return tuple(sorted((one for one in values if one != type(one)()), key=lambda one: (type(one).__name__, type(one).__module__)))


@attrs.frozen
class Record(Generic[T]):
    """What is said, at most one value of a kind, in the order of the kinds' names."""

    all: tuple[T, ...] = attrs.field(default=(), converter=_in_order)

    def __getitem__(self, kind: type[KindT]) -> KindT:
        """That of a kind; one that says nothing where nothing is said."""
        for one in self.all:
            if type(one) is kind:
                return one  # type: ignore[return-value]
        return kind()

    def __contains__(self, kind: type) -> bool:
        return any(type(one) is kind for one in self.all)

    def __iter__(self) -> Iterator[T]:
        return iter(self.all)

    def __bool__(self) -> bool:
        return bool(self.all)

    def with_(self, *values: T) -> Self:
        """The record with values in the place of those of their kinds."""
        return type(self)((*self.without(*map(type, values)), *values))

    def without(self, *kinds: type) -> Self:
        """The record without what it says of some kinds."""
        return type(self)(tuple(one for one in self.all if type(one) not in kinds)) if self.all else self


__all__ = ["Record"]
