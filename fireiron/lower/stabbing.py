"""The fewest barriers that meet every hazard of a statement list: interval stabbing, exact for any number of positions.

The gaps of a list of n statements are the positions 0..n; of a loop body they form a circle, n beside 0. A hazard is an
interval of positions, one of which needs a barrier of its scope or a wider one. On a line, the interval that ends first is
met best at its end: whatever else it could meet there it meets there too (the greedy rule for hitting sets of intervals), so
all that is left to try is which scope the barrier has. On a circle one interval is met by one of its own positions: cutting
there leaves a line.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TypeAlias

import attrs

from fireiron.ir import Scope

Cost: TypeAlias = "tuple[int, ...]"
"""Barriers per scope, the widest first: compared in this order, since a wider barrier holds more threads up."""


@attrs.frozen
class Interval:
    """Neighbouring positions, in order, around the end of the list where it is a loop's; `scope` is the least that will do."""

    positions: tuple[int, ...]
    scope: Scope

    def met(self, position: int, scope: Scope) -> bool:
        """Whether a barrier orders it."""
        return self.scope <= scope and position in self.positions


def around(start: int, stop: int, last: int) -> tuple[int, ...]:
    """The positions from `start` to `stop`, through the gap behind the `last` statement and the one before the first if need be."""
    return tuple(range(start, stop + 1)) if start <= stop else (*range(start, last + 1), *range(stop + 1))


def fewest(intervals: Iterable[Interval], preferred: Sequence[int], given: Mapping[int, Scope]) -> dict[int, Scope]:
    """Barriers at `preferred` positions that, with the `given` ones, meet all intervals: the least cost, earlier preferences first.

    Positions that are not preferred are forbidden: an interval without any allowed position must not be asked for.
    """
    chosen: dict[int, Scope] = {}
    left = frozenset(one for one in intervals if not any(one.met(*barrier) for barrier in given.items()))
    solver = _Solver(left, sorted(preferred))
    for scope in solver.scopes:
        for position in preferred:
            rest = _unmet(left, position, scope)
            needed = any(one.scope == scope for one in left - rest)
            if needed and _plus_one(solver.cost(rest), solver.scopes.index(scope)) == solver.cost(left):
                chosen[position] = scope
                left = rest
    assert not left
    return chosen


def _unmet(intervals: frozenset[Interval], position: int, scope: Scope) -> frozenset[Interval]:
    return frozenset(one for one in intervals if not one.met(position, scope))


def _plus_one(cost: Cost, place: int) -> Cost:
    return (*cost[:place], cost[place] + 1, *cost[place + 1 :])


class _Solver:
    """The least cost of meeting any of some intervals at allowed positions."""

    def __init__(self, intervals: Collection[Interval], allowed: Sequence[int]) -> None:
        self.number = {position: number for number, position in enumerate(allowed)}
        scopes = sorted({one.scope for one in intervals}, key=lambda scope: scope.threads or 0)
        self.scopes = [*(one for one in scopes if one.threads is None), *reversed([one for one in scopes if one.threads is not None])]
        self.nothing: Cost = (0,) * len(self.scopes)
        self.cost = functools.lru_cache(maxsize=None)(self._cost)

    def _cost(self, intervals: frozenset[Interval]) -> Cost:
        """Of intervals on a circle: cut at each position of one that only the widest scope meets, which meets all that lie across."""
        if not intervals:
            return self.nothing
        spans = {one: self._numbers(one) for one in intervals}
        if all(numbers == sorted(numbers) for numbers in spans.values()):
            return self._line([(numbers[0], numbers[-1], one.scope) for one, numbers in spans.items()])
        widest = next(scope for scope in self.scopes if any(one.scope == scope for one in intervals))
        shortest = min((one for one in intervals if one.scope == widest), key=lambda one: (len(spans[one]), spans[one]))
        costs = []
        for cut in spans[shortest]:
            turned = [[(number - cut) % len(self.number) for number in spans[one]] for one in intervals if cut not in spans[one]]
            scopes = [one.scope for one in intervals if cut not in spans[one]]
            line = self._line([(numbers[0], numbers[-1], scope) for numbers, scope in zip(turned, scopes, strict=True)])
            costs.append(_plus_one(line, self.scopes.index(widest)))
        return min(costs)

    def _numbers(self, interval: Interval) -> list[int]:
        return [self.number[position] for position in interval.positions if position in self.number]

    def _line(self, spans: Iterable[tuple[int, int, Scope]]) -> Cost:
        return self._along(tuple(sorted(set(spans), key=lambda span: (span[1], span[0], span[2].name))))

    def _along(self, spans: tuple[tuple[int, int, Scope], ...]) -> Cost:
        """Of intervals on a line, sorted by their ends: a barrier at the first end, as wide as it or as others that it meets need."""
        if not spans:
            return self.nothing
        _, end, least = spans[0]
        here = [scope for start, _, scope in spans if start <= end]
        costs = []
        for scope in {one for one in here if least <= one}:
            rest = tuple(span for span in spans if not (span[0] <= end and span[2] <= scope))
            costs.append(_plus_one(self._along(rest), self.scopes.index(scope)))
        return min(costs)
