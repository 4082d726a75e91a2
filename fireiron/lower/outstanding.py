"""What is outstanding at a place of a program: issued, in a group that was committed since, and not known to be done.

One lattice for all passes that follow what goes on while threads do: which products are under way, which copies arrive at a wait, which
have no group yet. Groups of one mechanism are done in the order of their commits, so how old one is decides: a wait leaves the last few.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Generic, TypeVar

import attrs

from fireiron.ir import Mechanism

T = TypeVar("T")
OtherT = TypeVar("OtherT")

OLDEST: Final = 32
"""Oldest age of a group: at least this many groups were committed after it."""


@attrs.frozen
class Age:
    """How many groups of its mechanism were committed behind a group: at least, and at most.

    A statement in a loop has several executions, so the two differ: it may be outstanding as long as its youngest is (`least`), and may be
    done as soon as its oldest is (`most`).
    """

    least: int = 0
    most: int = 0

    def older(self) -> Age:
        """Behind one more group."""
        return Age(min(self.least + 1, OLDEST), min(self.most + 1, OLDEST))

    def joined(self, other: Age, widened: bool) -> Age:
        """Where two ways meet; where one of them is a way back, an age that grew may grow on."""
        most = max(self.most, other.most)
        return Age(min(self.least, other.least), OLDEST if widened and other.most > self.most else most)


@attrs.frozen
class Outstanding(Generic[T]):
    """Items that may be outstanding, by mechanism: those `open`, in no group yet, and those in `groups`, with their ages."""

    open: Mapping[Mechanism, frozenset[T]] = attrs.field(factory=dict)
    groups: Mapping[Mechanism, Mapping[T, Age]] = attrs.field(factory=dict)

    def issue(self, mechanism: Mechanism, items: Iterable[T]) -> Outstanding[T]:
        """Items are under way, and wait for the next commit."""
        return attrs.evolve(self, open={**self.open, mechanism: self.open.get(mechanism, frozenset()).union(items)})

    def commit(self, mechanism: Mechanism) -> Outstanding[T]:
        """What is open becomes a group; those before it are one group older."""
        ages = {item: age.older() for item, age in self.groups.get(mechanism, {}).items()}
        for item in self.open.get(mechanism, ()):
            ages[item] = Age(0, ages[item].most if item in ages else 0)
        rest = {kind: items for kind, items in self.open.items() if kind is not mechanism}
        return Outstanding(rest, {**self.groups, mechanism: ages})

    def wait(self, mechanism: Mechanism, left: int) -> Outstanding[T]:
        """All groups but the last `left` are done."""
        ages = self.groups.get(mechanism, {})
        kept = {item: Age(age.least, min(age.most, left - 1)) for item, age in ages.items() if age.least < left}
        return attrs.evolve(self, groups={**self.groups, mechanism: kept})

    def done_by(self, mechanism: Mechanism, left: int) -> frozenset[T]:
        """Items that a wait for all groups but the last `left` may find, or make, done."""
        return frozenset(item for item, age in self.groups.get(mechanism, {}).items() if age.most >= left)

    def joined(self, other: Outstanding[T], widened: bool = False) -> Outstanding[T]:
        """What may be outstanding where two ways meet; `widened` where the other is a way back, so that a loop is followed a few times."""
        kinds = dict.fromkeys((*self.open, *other.open))
        opened = {kind: self.open.get(kind, frozenset()) | other.open.get(kind, frozenset()) for kind in kinds}
        groups: dict[Mechanism, Mapping[T, Age]] = {}
        for kind in dict.fromkeys((*self.groups, *other.groups)):
            mine, others = self.groups.get(kind, {}), other.groups.get(kind, {})
            both = {item: age.joined(others[item], widened) for item, age in mine.items() if item in others}
            groups[kind] = {**mine, **others, **both}
        return Outstanding(opened, groups)

    def renamed(self, name: Callable[[T], Any]) -> Outstanding[Any]:
        """The same of items that are called otherwise: those of an iteration are, in the next one, those of the one before."""
        return Outstanding(
            {kind: frozenset(map(name, items)) for kind, items in self.open.items()},
            {kind: {name(item): age for item, age in ages.items()} for kind, ages in self.groups.items()},
        )

    def without(self, items: Iterable[T]) -> Outstanding[T]:
        """The same, but for items that nobody asks for any more."""
        gone = set(items)
        return Outstanding(
            {kind: some - gone for kind, some in self.open.items()},
            {kind: {item: age for item, age in ages.items() if item not in gone} for kind, ages in self.groups.items()},
        )

    def age(self, mechanism: Mechanism, item: T) -> int | None:
        """How many groups were committed behind the youngest with an item; None where none is outstanding."""
        found = self.groups.get(mechanism, {}).get(item)
        return None if found is None else found.least
