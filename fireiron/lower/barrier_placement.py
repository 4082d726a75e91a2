"""The fewest barriers that meet all of some arcs, exactly, for any number of positions and scopes.

Positions lie on a circle. An arc is a set of positions that are neighbours on it once the positions that are not allowed are taken
out; it is met by a barrier at one of them, of its scope or a wider one. On a line, the interval that ends first is met best at its
end: whatever else a barrier could meet there in its place it meets there too, so that only the scope of the barrier is left to try.
On a circle one position of the smallest arc of the widest scope is in every answer: with it taken and the circle cut there, the
arcs that it does not meet are intervals of a line.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Sequence
from typing import TypeAlias

Arc = frozenset[int]
Cost: TypeAlias = "tuple[int, ...]"
"""Barriers of each scope, the widest first; costs are compared in this order, since a wider barrier holds more threads up."""


def fewest(arcs: Iterable[Arc], preferred: Sequence[int]) -> tuple[int, ...]:
    """As few positions as meet all arcs; of all such answers the first in the order of `preferred`, which names every position.

    Raises: ValueError for an arc without a position, which nothing can meet.
    """
    return tuple(fewest_of_scopes([(arc, 0) for arc in arcs], preferred))


def fewest_of_scopes(arcs: Iterable[tuple[Arc, int]], preferred: Sequence[int]) -> dict[int, int]:
    """The scope of a barrier for each position that needs one: as few wide ones as can be, then as few narrow ones.

    Scopes are numbers, a wide one greater than those it contains. Of all such answers the first in the order of `preferred`, wide
    barriers before narrow ones. Raises: ValueError for an arc without a position.
    """
    left = _minimal(arcs)
    if not left:
        return {}
    solver = _Solver(left, preferred)
    chosen: dict[int, int] = {}
    for scope in solver.scopes:  # the widest first: what is left needs none that is wider
        for position in preferred:
            rest = frozenset(one for one in left if position not in one[0])
            # A barrier wider than all that it meets is never cheapest; seeing that takes less time than the cost, which would say it too.
            useful = any(needed == scope for _, needed in left - rest)
            if useful and solver.plus(solver.cost(rest), scope) == solver.cost(left):
                chosen[position] = scope
                left = rest
    return chosen


def _minimal(arcs: Iterable[tuple[Arc, int]]) -> frozenset[tuple[Arc, int]]:
    """The arcs that contain no other of their scope or a wider one: whatever meets these meets all."""
    found: list[tuple[Arc, int]] = []
    # Whatever an arc may contain comes before it: shorter arcs, and the same arc for a wider scope.
    for arc, scope in sorted(set(arcs), key=lambda one: (len(one[0]), -one[1])):
        if not arc:
            raise ValueError("an arc without a position")
        if not any(other <= arc and scope <= wide for other, wide in found):
            found.append((arc, scope))
    return frozenset(found)


class _Solver:
    """The least cost of meeting any of some arcs."""

    def __init__(self, arcs: Iterable[tuple[Arc, int]], positions: Sequence[int]) -> None:
        self.scopes = sorted({scope for _, scope in arcs}, reverse=True)
        self.nothing: Cost = (0,) * len(self.scopes)
        # Without gaps where positions are forbidden, so that each arc is a run of numbers.
        self.number = {position: number for number, position in enumerate(sorted(positions))}
        self.cost = functools.lru_cache(maxsize=None)(self._cost)

    def plus(self, cost: Cost, scope: int) -> Cost:
        """The cost with one more barrier."""
        place = self.scopes.index(scope)
        return (*cost[:place], cost[place] + 1, *cost[place + 1 :])

    def _cost(self, arcs: frozenset[tuple[Arc, int]]) -> Cost:
        if not arcs:
            return self.nothing
        widest = max(scope for _, scope in arcs)
        smallest = min((arc for arc, scope in arcs if scope == widest), key=lambda arc: (len(arc), sorted(arc)))
        return min(self.plus(self._cut(arcs, position), widest) for position in smallest)

    def _cut(self, arcs: frozenset[tuple[Arc, int]], position: int) -> Cost:
        """Of the arcs that a barrier as wide as any needs does not meet at a position: intervals of the line that begins behind it."""
        first, count = self.number[position], len(self.number)
        spans = []
        for arc, scope in arcs:
            if position not in arc:
                places = [(self.number[one] - first) % count for one in arc]
                spans.append((max(places), min(places), scope))
        return self._along(tuple(sorted(set(spans))))

    def _along(self, spans: tuple[tuple[int, int, int], ...]) -> Cost:
        """Of intervals, sorted by their ends: a barrier at the first end, as wide as its interval or another there needs."""
        cost = self.nothing
        while spans:
            end, _, least = spans[0]
            scopes = {scope for _, start, scope in spans if start <= end and scope >= least}
            rests = {scope: tuple(span for span in spans if not (span[1] <= end and span[2] <= scope)) for scope in scopes}
            # A choice is left only where intervals of several scopes overlap: elsewhere the loop goes on, however many hazards there are.
            if len(rests) > 1:
                behind = min(self.plus(self._along(rest), scope) for scope, rest in rests.items())
                return tuple(map(operator.add, cost, behind))
            cost, spans = self.plus(cost, least), rests[least]
        return cost
