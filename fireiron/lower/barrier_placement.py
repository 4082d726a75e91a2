"""Minimum set of barriers that cover given arcs, exact for any number of positions and scopes.

Positions are on a circle. An arc is a set of positions that are adjacent on the circle after forbidden positions are removed. A barrier
covers an arc if it is at one of its positions and has its scope or a wider one.

On a line, the interval that ends first is best covered at its end, because a barrier there also covers whatever a barrier at another
position of the interval covers. Only the scope of the barrier remains to be chosen. On a circle, every solution has a barrier at some
position of the smallest arc of the widest scope. For each such position, the circle is cut there, and the arcs that the barrier does not
cover are intervals of a line.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Sequence
from typing import TypeAlias

Arc = frozenset[int]
Cost: TypeAlias = "tuple[int, ...]"
"""Barriers of each scope, the widest first; costs compare in this order, since a wider barrier delays more threads."""


def fewest_of_scopes(arcs: Iterable[tuple[Arc, int]], preferred: Sequence[int]) -> dict[int, int]:
    """The scope of the barrier at each position that needs one, with the fewest wide barriers, and then the fewest narrow ones.

    Scopes are numbers; a wider scope is greater than those that it contains. Among several solutions, the first one in the order of
    `preferred` is returned, wide barriers first.

    Raises: ValueError for an arc without a position.
    """
    left = _minimal(arcs)
    if not left:
        return {}
    solver = _Solver(left, preferred)
    chosen: dict[int, int] = {}
    for scope in solver.scopes:  # the widest first: the remaining arcs then need no wider one
        for position in preferred:
            rest = frozenset(one for one in left if position not in one[0])
            # A barrier wider than everything it covers is never cheapest; this test is faster than computing its cost.
            useful = any(needed == scope for _, needed in left - rest)
            if useful and solver.plus(solver.cost(rest), scope) == solver.cost(left):
                chosen[position] = scope
                left = rest
    return chosen


def _minimal(arcs: Iterable[tuple[Arc, int]]) -> frozenset[tuple[Arc, int]]:
    """The arcs that contain no other arc of their scope or a wider one; a set of barriers that covers these covers all."""
    minimal: list[tuple[Arc, int]] = []
    # Arcs that an arc may contain precede it: shorter arcs, and the same arc for a wider scope.
    for arc, scope in sorted(set(arcs), key=lambda one: (len(one[0]), -one[1])):
        if not arc:
            raise ValueError("an arc without a position")
        if not any(other <= arc and scope <= wide for other, wide in minimal):
            minimal.append((arc, scope))
    return frozenset(minimal)


class _Solver:
    """Computes the least cost of covering arcs."""

    def __init__(self, arcs: Iterable[tuple[Arc, int]], positions: Sequence[int]) -> None:
        self.scopes = sorted({scope for _, scope in arcs}, reverse=True)
        self.nothing: Cost = (0,) * len(self.scopes)
        # numbered without forbidden positions, so that each arc is a range
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
        """The arcs that a barrier of the widest needed scope at a position does not cover, as intervals of the line that starts after
        it.
        """
        first, count = self.number[position], len(self.number)
        spans = []
        for arc, scope in arcs:
            if position not in arc:
                places = [(self.number[one] - first) % count for one in arc]
                spans.append((max(places), min(places), scope))
        return self._along(tuple(sorted(set(spans))))

    def _along(self, spans: tuple[tuple[int, int, int], ...]) -> Cost:
        """The cost for intervals sorted by their ends: a barrier at the first end, with the scope of its interval or of another one
        there.
        """
        cost = self.nothing
        while spans:
            end, _, least = spans[0]
            scopes = {scope for _, start, scope in spans if start <= end and scope >= least}
            rests = {scope: tuple(span for span in spans if not (span[1] <= end and span[2] <= scope)) for scope in scopes}
            # Only where intervals of several scopes overlap is there a choice; elsewhere the loop handles any number of hazards.
            if len(rests) > 1:
                after = min(self.plus(self._along(rest), scope) for scope, rest in rests.items())
                return tuple(map(operator.add, cost, after))
            cost, spans = self.plus(cost, least), rests[least]
        return cost
