"""Asynchronous operations that may be outstanding at a point of a program: issued, possibly committed, not known to be complete.

All data-flow analyses of asynchronous operations use this lattice: which MMAs are in flight, which copies complete at a wait, which copies
are uncommitted. Groups of a mechanism complete in commit order, and a wait leaves the N youngest. So the age of a group determines whether
it is complete.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Generic, TypeVar

import attrs

from fireiron.frozen import frozen
from fireiron.ir import Mechanism

T = TypeVar("T")

OLDEST: Final = 32
"""Oldest age of a group: at least this many groups were committed after it."""


@frozen
class Age:
    """The number of groups of its mechanism committed after a group: at least, and at most.

    A statement in a loop has several executions, so the two differ. The group may be outstanding as long as its youngest instance is
    (`least`), and may be complete as soon as its oldest instance is (`most`).
    """

    least: int = 0
    most: int = 0

    def older(self) -> Age:
        """The age after one more commit."""
        return Age(min(self.least + 1, OLDEST), min(self.most + 1, OLDEST))

    def joined(self, other: Age, widened: bool) -> Age:
        """The join of two paths. On a back edge (`widened`) an age that increased becomes `OLDEST`."""
        most = max(self.most, other.most)
        return Age(min(self.least, other.least), OLDEST if widened and other.most > self.most else most)


@frozen
class Outstanding(Generic[T]):
    """Items that may be outstanding, by mechanism: `open` ones, not yet committed, and those in `groups`, with their ages."""

    open: Mapping[Mechanism, frozenset[T]] = attrs.field(factory=dict)
    groups: Mapping[Mechanism, Mapping[T, Age]] = attrs.field(factory=dict)

    def issue(self, mechanism: Mechanism, items: Iterable[T]) -> Outstanding[T]:
        """Items are issued, and belong to the next commit."""
        return attrs.evolve(self, open={**self.open, mechanism: self.open.get(mechanism, frozenset()).union(items)})

    def commit(self, mechanism: Mechanism) -> Outstanding[T]:
        """Open items become a group; earlier groups become one older."""
        ages = {item: age.older() for item, age in self.groups.get(mechanism, {}).items()}
        for item in self.open.get(mechanism, ()):
            ages[item] = Age(0, ages[item].most if item in ages else 0)
        rest = {kind: items for kind, items in self.open.items() if kind is not mechanism}
        return Outstanding(rest, {**self.groups, mechanism: ages})

    def wait(self, mechanism: Mechanism, left: int) -> Outstanding[T]:
        """All groups but the last `left` are complete."""
        ages = self.groups.get(mechanism, {})
        kept = {item: Age(age.least, min(age.most, left - 1)) for item, age in ages.items() if age.least < left}
        return attrs.evolve(self, groups={**self.groups, mechanism: kept})

    def done_by(self, mechanism: Mechanism, left: int) -> frozenset[T]:
        """Items that a wait for all groups but the last `left` may complete, or find complete."""
        return frozenset(item for item, age in self.groups.get(mechanism, {}).items() if age.most >= left)

    def joined(self, other: Outstanding[T], widened: bool = False) -> Outstanding[T]:
        """The join of two paths; `widened` for a back edge, so that the analysis of a loop converges after a few rounds."""
        kinds = dict.fromkeys((*self.open, *other.open))
        opened = {kind: self.open.get(kind, frozenset()) | other.open.get(kind, frozenset()) for kind in kinds}
        groups: dict[Mechanism, Mapping[T, Age]] = {}
        for kind in dict.fromkeys((*self.groups, *other.groups)):
            own_ages, others = self.groups.get(kind, {}), other.groups.get(kind, {})
            both = {item: age.joined(others[item], widened) for item, age in own_ages.items() if item in others}
            groups[kind] = {**own_ages, **others, **both}
        return Outstanding(opened, groups)

    def renamed(self, name: Callable[[T], Any]) -> Outstanding[Any]:
        """The same with renamed items: at the head of a loop, the items of the last iteration become items of the previous iteration."""
        return Outstanding(
            {kind: frozenset(map(name, items)) for kind, items in self.open.items()},
            {kind: {name(item): age for item, age in ages.items()} for kind, ages in self.groups.items()},
        )

    def without(self, items: Iterable[T]) -> Outstanding[T]:
        """The same without items that are no longer tracked."""
        gone = set(items)
        return Outstanding(
            {kind: some - gone for kind, some in self.open.items()},
            {kind: {item: age for item, age in ages.items() if item not in gone} for kind, ages in self.groups.items()},
        )

    def age(self, mechanism: Mechanism, item: T) -> int | None:
        """The number of groups committed after the youngest group with an item; None if the item is not outstanding."""
        age = self.groups.get(mechanism, {}).get(item)
        return None if age is None else age.least
