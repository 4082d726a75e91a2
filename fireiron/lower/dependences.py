"""`Dependences`: which accesses to memory that threads share must be ordered. The one definition of a conflict and of its distance.

Two accesses conflict if they may touch the same place, at least one of them writes, and not both are atomic additions. A dependence is a
conflict between different threads, or with a copy that is in flight, with the loop that carries it and the narrowest scope that contains
all threads that meet. Buffers that cannot conflict are found by their bytes once; tables of places are compared only for the pairs that a
pass asks about, once for each set of loops around both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import attrs
import numpy as np

from fireiron.ir import BLOCK_SCOPE, WARP_SCOPE, WARPGROUP_SCOPE, Dependence, Exec, For, Kernel, Roles, Scope
from fireiron.lower.access_map import Footprint, Touch, Touches
from fireiron.lower.footprint import Array, revisits
from fireiron.values.expr import Var


@attrs.frozen(eq=False)
class Edge:
    """A dependence: `after` must wait for `before`.

    `scope` is the number of the narrowest scope that contains every pair of threads that meet. `carried` is the loop of which they are in
    different iterations, an earlier one and a later one; None: they are in the same iteration of all loops around both. `adjacent` is false
    if they never meet from an iteration to the next one, only further apart: known of loops in which addresses repeat, else true.
    """

    before: Touch
    after: Touch
    scope: int
    carried: For | None = None
    adjacent: bool = True

    @property
    def is_reuse(self) -> bool:
        """Whether memory is written again that was only read before."""
        return not self.before.access.write

    @property
    def dependence(self) -> Dependence:
        """The same for readers."""
        x, y = self.before, self.after
        name = "" if self.carried is None else self.carried.var.name
        return Dependence(x.access.buffer, x.statement, y.statement, (x.access.write, y.access.write), name)


@attrs.frozen(eq=False)
class _Meeting:
    """Whether two accesses meet at `some` place, and the number of the narrowest scope of the places of different threads, if any."""

    some: bool
    scope: int | None


def scopes_of(kernel: Kernel) -> tuple[Scope, ...]:
    """The scopes of barriers that a block has, narrow ones first. A warpgroup of its own is worth a named barrier beside others only."""
    # The threads to which tiles are dealt: a named barrier counts who arrives at it, and those of a producer wait at a ring's alone.
    groups = kernel.workers % 128 == 0 and kernel.workers != 128
    roles = next((one for one in kernel.body if isinstance(one, Roles)), None)
    widest = BLOCK_SCOPE if roles is None else Scope(roles.roles[0].name, roles.roles[0].threads)
    return (
        WARP_SCOPE,
        *((WARPGROUP_SCOPE,) if groups or (widest.threads or 0) == 128 else ()),
        *(() if widest.threads == 128 else (widest,)),
    )


class Dependences:
    """The dependences of a kernel, found when they are asked for."""

    def __init__(self, kernel: Kernel) -> None:
        self.touches = Touches(kernel)
        self.scopes = scopes_of(kernel)
        self._meetings: dict[Any, _Meeting] = {}

    def of(self, statement: Exec, loops: tuple[For, ...]) -> tuple[Touch, ...]:
        """The touches of a statement that may depend on others."""
        return self.touches.of(statement, loops)

    def may_conflict(self, x: Touch, y: Touch) -> bool:
        """Whether one of two accesses has to wait for the other if they touch the same place, as far as buffers tell."""
        return (x.access.write or y.access.write) and self.touches.may_overlap(x, y) and not (x.atomic and y.atomic)

    def between(
        self, before: Iterable[Touch], after: Iterable[Touch], scope: int, around: tuple[Var, ...], carried: For | None = None
    ) -> Iterator[Edge]:
        """The edges of a scope from some touches to others.

        `around` are the variables of the loops of which both are in one iteration. Those of all other loops count with every value, so of a
        loop that carries the edge, which is inside these, a pair of different iterations is not told apart from one of the same.
        """
        others = tuple(after)
        for x in before:
            for y in others:
                if self.may_conflict(x, y) and self.scope(x, y, around) == scope:
                    yield Edge(x, y, scope, carried, carried is None or not carried.period or self._is_adjacent(x, y, around, carried))

    def scope(self, x: Touch, y: Touch, around: tuple[Var, ...]) -> int | None:
        """The number of the scope of the edge from one touch to the other; None: there is no edge."""
        needed = self.touches.needed
        shared = needed(x) & needed(y)
        # Loops around both are compared value by value, if both sides depend on them; of all others every iteration counts.
        # A loop of one value needs no such comparison.
        met = self._meeting(x, y, tuple(var for var in around if var in shared and var.low < var.high))
        if not met.some or (x is y and self._meets_itself_only(x, around)):
            return None
        # What is in flight must be waited for, even by the thread that issued it.
        return 0 if met.scope is None and x.under_way else met.scope

    def _is_adjacent(self, x: Touch, y: Touch, around: tuple[Var, ...], loop: For) -> bool:
        """Whether two accesses meet from an iteration to the next."""
        shared = self.touches.needed(x) & self.touches.needed(y)
        if loop.var not in shared:
            return True  # as the one that knows nothing of the loop meets the other in each of its iterations
        met = self._meeting(x, y, tuple(var for var in (*around, loop.var) if var in shared), loop.var)
        return met.scope is not None or (met.some and x.under_way)

    def _meeting(self, x: Touch, y: Touch, kept: tuple[Var, ...], later: Var | None = None) -> _Meeting:
        # Ids stay unique: `Touches` keeps alive whatever it was asked about.
        first, second = id(x), id(y)
        memo = (second, first, kept, later) if later is None and second < first else (first, second, kept, later)
        if memo not in self._meetings:
            one, other = self._footprints(x, y, kept, later)
            low, high = one.extremes(other)
            self._meetings[memo] = _Meeting(bool(low.size), self._narrowest(low, high) if low.size else None)
        return self._meetings[memo]

    def _footprints(self, x: Touch, y: Touch, kept: tuple[Var, ...], later: Var | None = None) -> tuple[Footprint, Footprint]:
        """Those of two accesses, in places that compare."""
        granule = self.touches.granule(x, y)
        span = self.touches.span(granule, x, y)
        return self.touches.footprint(x, granule, span, kept), self.touches.footprint(y, granule, span, kept, later)

    def _narrowest(self, low: Array, high: Array) -> int | None:
        """The number of the narrowest scope of which one group contains each pair of threads; None: each thread meets itself alone."""
        # Two numbers are in one aligned group of a power of two if they differ in the bits below it only.
        apart = int((low ^ high).max())
        if not apart:
            return None
        return next((number for number, scope in enumerate(self.scopes[:-1]) if apart < (scope.threads or 0)), len(self.scopes) - 1)

    def _meets_itself_only(self, touch: Touch, around: tuple[Var, ...]) -> bool:
        """Whether a touch meets itself in one execution only, which is no conflict.

        Which lane touches what of a spread access is not known, so each place seems to meet itself; it does only when touched again.
        """
        if not (touch.access.spread or touch.under_way or touch.statement.collective):
            return False
        needed = self.touches.needed(touch)
        varying = [loop for loop in touch.loops if loop.var not in around]
        if any(loop.var not in needed or revisits(touch.statement, loop) for loop in varying):
            return False
        granule = self.touches.granule(touch)
        kept = tuple(var for var in around if var in needed)
        places = self.touches.footprint(touch, granule, self.touches.span(granule, touch), kept)
        return bool(places.keys.size >= self.touches.times(touch, granule))

    def witness(self, edge: Edge) -> str:
        """Two threads that meet, and where."""
        x, y = edge.before, edge.after
        one, other = self._footprints(x, y, ())
        keys, low, high = one.met(other)
        apart = low != high
        if edge.scope:
            # Of all pairs that meet one that the next narrower scope does not contain: the others alone would not require this barrier.
            narrower = self.scopes[edge.scope - 1].threads or 1
            apart = low // narrower != high // narrower
        place = 0 if x.under_way and not edge.scope else int(np.flatnonzero(apart)[0])
        verbs = ["writes" if touch.access.write else "reads" for touch in (x, y)]
        places = [f"{touch.statement.spec} at {touch.access.origin or 'an unknown line'}" for touch in (x, y)]
        granule = self.touches.granule(x, y)
        address = self.touches.named(x, int(keys[place]), granule, self.touches.span(granule, x, y))
        return f"thread {low[place]} {verbs[0]} {address} ({places[0]}), thread {high[place]} {verbs[1]} it ({places[1]})"
