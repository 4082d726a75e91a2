"""Find the accesses that must be ordered: dependences between accesses to memory that threads share.

Two accesses conflict if they may access the same address, at least one of them writes, and not both are atomic additions. A dependence is a
conflict between different threads, or with a copy that is in flight. It has the loop that carries it, and the narrowest scope that contains
all conflicting threads. Accesses to buffers without common bytes are excluded first. Address tables are compared only for pairs that a pass
requests, once for each set of loops around both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from fireiron.frozen import frozen
from fireiron.ir import BLOCK_SCOPE, WARP_SCOPE, WARPGROUP_SCOPE, Dependence, Exec, For, Kernel, Roles, Scope
from fireiron.lower.access_map import AccessMap, Footprint, Touch
from fireiron.lower.footprint import Array, revisits
from fireiron.values.expr import Var


@frozen(eq=False)
class Edge:
    """A dependence: `after` must wait for `before`.

    - `scope`: the number of the narrowest scope that contains every pair of conflicting threads.
    - `carried`: the loop that carries the dependence from an earlier to a later iteration; None within an iteration of all common loops.
    - `adjacent`: false if no conflict is between successive iterations. It can be false only for loops in which addresses repeat.
    """

    before: Touch
    after: Touch
    scope: int
    carried: For | None = None
    adjacent: bool = True

    @property
    def is_reuse(self) -> bool:
        """Whether it is a write after a read."""
        return not self.before.access.write

    @property
    def dependence(self) -> Dependence:
        """The dependence as it is stored in barriers, for printing and checks."""
        x, y = self.before, self.after
        name = "" if self.carried is None else self.carried.var.name
        return Dependence(x.access.buffer, x.statement, y.statement, (x.access.write, y.access.write), name)


@frozen(eq=False)
class _Overlap:
    """Whether two accesses conflict at `some` address, and the number of the narrowest scope of conflicting threads, if any."""

    some: bool
    scope: int | None


def scopes_of(kernel: Kernel) -> tuple[Scope, ...]:
    """The scopes of a block's barriers, narrow ones first. A single warpgroup needs a named barrier only if there are other threads."""
    # Only threads over which tiles are distributed use barriers: a named barrier counts arriving threads, and producer threads synchronize
    # only by rings.
    groups = kernel.workers % 128 == 0 and kernel.workers != 128
    roles = next((stmt for stmt in kernel.body if isinstance(stmt, Roles)), None)
    widest = BLOCK_SCOPE if roles is None else Scope(roles.roles[0].name, roles.roles[0].threads)
    return (
        WARP_SCOPE,
        *((WARPGROUP_SCOPE,) if groups or (widest.threads or 0) == 128 else ()),
        *(() if widest.threads == 128 else (widest,)),
    )


class Dependences:
    """The dependences of a kernel, computed on demand."""

    def __init__(self, kernel: Kernel) -> None:
        self.touches = AccessMap(kernel)
        self.scopes = scopes_of(kernel)
        self._overlaps: dict[Any, _Overlap] = {}

    def of(self, statement: Exec, loops: tuple[For, ...]) -> tuple[Touch, ...]:
        """The accesses of a statement that may have dependences."""
        return self.touches.of(statement, loops)

    def may_conflict(self, x: Touch, y: Touch) -> bool:
        """Whether two accesses must be ordered if they access the same address, as far as their buffers determine."""
        return (x.access.write or y.access.write) and self.touches.may_overlap(x, y) and not (x.atomic and y.atomic)

    def between(
        self, before: Iterable[Touch], after: Iterable[Touch], scope: int, around: tuple[Var, ...], carried: For | None = None
    ) -> Iterator[Edge]:
        """The edges with a given scope from some accesses to others.

        `around` are the variables of loops whose iteration is the same for both accesses. Variables of all other loops take every value.
        So for a loop that carries the edge, pairs of different iterations are not distinguished from pairs of one iteration.
        """
        others = tuple(after)
        for x in before:
            for y in others:
                if self.may_conflict(x, y) and self.scope(x, y, around) == scope:
                    yield Edge(x, y, scope, carried, carried is None or not carried.period or self._is_adjacent(x, y, around, carried))

    def scope(self, x: Touch, y: Touch, around: tuple[Var, ...]) -> int | None:
        """The scope number of the edge from one access to the other; None if there is no edge."""
        needed = self.touches.needed
        shared = needed(x) & needed(y)
        # Common loops are compared value by value if both accesses depend on them. Of all other loops, every iteration counts. A loop of
        # one value needs no comparison.
        overlap = self._overlap(x, y, tuple(var for var in around if var in shared and var.low < var.high))
        if not overlap.some or (x is y and self._overlaps_itself_only(x, around)):
            return None
        # Even the issuing thread must wait for a copy in flight.
        return 0 if overlap.scope is None and x.asynchronous_write else overlap.scope

    def _is_adjacent(self, x: Touch, y: Touch, around: tuple[Var, ...], loop: For) -> bool:
        """Whether two accesses conflict between successive iterations."""
        shared = self.touches.needed(x) & self.touches.needed(y)
        if loop.var not in shared:
            return True  # the access that does not depend on the loop conflicts in each iteration
        overlap = self._overlap(x, y, tuple(var for var in (*around, loop.var) if var in shared), loop.var)
        return overlap.scope is not None or (overlap.some and x.asynchronous_write)

    def _overlap(self, x: Touch, y: Touch, kept: tuple[Var, ...], later: Var | None = None) -> _Overlap:
        # Ids stay unique, because `AccessMap` keeps references to these accesses.
        first, second = id(x), id(y)
        memo = (second, first, kept, later) if later is None and second < first else (first, second, kept, later)
        if memo not in self._overlaps:
            footprint, other_footprint = self._footprints(x, y, kept, later)
            low, high = footprint.extremes(other_footprint)
            self._overlaps[memo] = _Overlap(bool(low.size), self._narrowest(low, high) if low.size else None)
        return self._overlaps[memo]

    def _footprints(self, x: Touch, y: Touch, kept: tuple[Var, ...], later: Var | None = None) -> tuple[Footprint, Footprint]:
        """The footprints of two accesses, in comparable addresses."""
        granule = self.touches.granule(x, y)
        span = self.touches.span(granule, x, y)
        return self.touches.footprint(x, granule, span, kept), self.touches.footprint(y, granule, span, kept, later)

    def _narrowest(self, low: Array, high: Array) -> int | None:
        """The number of the narrowest scope with a group that contains each pair of threads; None if each thread only conflicts with
        itself.
        """
        # Two numbers are in the same aligned group of 2^n if they differ only in the lowest n bits.
        apart = int((low ^ high).max())
        if not apart:
            return None
        return next((number for number, scope in enumerate(self.scopes[:-1]) if apart < (scope.threads or 0)), len(self.scopes) - 1)

    def _overlaps_itself_only(self, touch: Touch, around: tuple[Var, ...]) -> bool:
        """Whether an access overlaps only itself in one execution, which is not a conflict.

        For a spread access it is unspecified which lane accesses which element, so every address appears to conflict with itself. There is
        a conflict only if the address is accessed again.
        """
        if not (touch.access.spread or touch.asynchronous_write or touch.statement.collective):
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
        """Text that names two conflicting threads and the address."""
        x, y = edge.before, edge.after
        footprint, other = self._footprints(x, y, ())
        keys, low, high = footprint.common_places(other)
        apart = low != high
        if edge.scope:
            # A pair that the next narrower scope does not contain: other pairs would not require this barrier.
            narrower = self.scopes[edge.scope - 1].threads or 1
            apart = low // narrower != high // narrower
        place = 0 if x.asynchronous_write and not edge.scope else int(np.flatnonzero(apart)[0])
        verbs = ["writes" if touch.access.write else "reads" for touch in (x, y)]
        places = [f"{touch.statement.spec} at {touch.access.origin or 'an unknown line'}" for touch in (x, y)]
        granule = self.touches.granule(x, y)
        address = self.touches.named(x, int(keys[place]), granule, self.touches.span(granule, x, y))
        return f"thread {low[place]} {verbs[0]} {address} ({places[0]}), thread {high[place]} {verbs[1]} it ({places[1]})"
