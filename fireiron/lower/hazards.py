"""Hazards of a statement list: pairs of accesses that need a barrier between them, with the positions where it may stand.

What a statement exposes to its neighbours is told scope by scope: a barrier of a scope ends what hazards of that scope, and of
narrower ones, can reach; a hazard across a wider group goes on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

import attrs

from fireiron.ir import For, Scope
from fireiron.lower.stabbing import Interval, around
from fireiron.lower.touches import Touch, Touches
from fireiron.values.expr import Var, constant


@attrs.frozen(eq=False)
class Exposure:
    """The touches before the first barrier and behind the last one, and whether one always runs between (`closed`)."""

    first: tuple[Touch, ...] = ()
    last: tuple[Touch, ...] = ()
    closed: bool = False


Summary: TypeAlias = "tuple[Exposure, ...]"
"""What of a statement is exposed, to each scope of barriers in turn."""


@attrs.frozen(eq=False)
class Hazard:
    """Two accesses, the interval of positions of which one needs a barrier, and the threads that meet."""

    interval: Interval
    before: Touch
    behind: Touch
    start: int
    witness: str

    @property
    def frees(self) -> bool:
        """Whether what was read is written again; else what was written is complete before it is touched."""
        return not self.before.access.write


def joined(parts: Sequence[Summary], scopes: Sequence[Scope]) -> Summary:
    """What a list exposes, from what its statements do."""
    return tuple(_joined([part[number] for part in parts]) for number in range(len(scopes)))


def _joined(parts: Sequence[Exposure]) -> Exposure:
    first = tuple(_until_closed(((part.first, part.closed) for part in parts)))
    last = tuple(_until_closed(((part.last, part.closed) for part in reversed(parts))))
    return Exposure(first, last, any(part.closed for part in parts))


def _until_closed(parts: Iterable[tuple[tuple[Touch, ...], bool]]) -> Iterator[Touch]:
    for touches, closed in parts:
        yield from touches
        if closed:
            return


def of_barrier(scope: Scope, scopes: Sequence[Scope]) -> Summary:
    """A barrier ends hazards of its scope and of those inside it."""
    return tuple(Exposure(closed=one <= scope) for one in scopes)


def of_loop(inner: Summary, loop: For) -> Summary:
    """What a loop exposes: of a pipelined one, before its first barrier the first iteration and behind its last one the last.

    Its barriers end nothing unless it provably runs.
    """
    runs = loop.extent.low >= 1
    return tuple(attrs.evolve(_at_the_ends(one, loop), closed=one.closed and runs) for one in inner)


def _at_the_ends(exposure: Exposure, loop: For) -> Exposure:
    if not exposure.closed or not loop.period:
        return exposure
    end = constant(loop.extent)
    first = tuple(touch.at(loop.var, 0) for touch in exposure.first)
    last = exposure.last if end is None else tuple(touch.at(loop.var, end - 1) for touch in exposure.last)
    return attrs.evolve(exposure, first=first, last=last)


@attrs.frozen(eq=False)
class Finder:
    """The hazards of one list: `loop` is the loop whose body it is, `loops` all around it, `commits` where groups of copies end."""

    touches: Touches
    scopes: tuple[Scope, ...]
    summaries: Sequence[Summary]
    loop: For | None
    loops: tuple[For, ...]
    commits: Sequence[int]

    def hazards(self) -> list[Hazard]:
        """All of them: forward, and carried from one iteration to a later one."""
        return [hazard for number in range(len(self.scopes)) for hazard in (*self._forward(number), *self._carried(number))]

    def _forward(self, number: int) -> Iterator[Hazard]:
        outer = tuple(loop.var for loop in self.loops)
        for i in range(len(self.summaries)):
            for j in range(i + 1, len(self.summaries)):
                for x, y in self._pairs(number, i, j):
                    yield from self._hazard(number, x, y, i, around(i + 1, j, len(self.summaries)), outer)
                if self.summaries[j][number].closed:
                    break

    def _carried(self, number: int) -> Iterator[Hazard]:
        if self.loop is None or self.loop.extent.high <= 1:
            return
        count = len(self.summaries)
        outer = tuple(loop.var for loop in self.loops[:-1])
        closed = [place for place in range(count) if self.summaries[place][number].closed]
        for i in range(count):
            for j in range(count):
                crossed = [place for place in closed if place > i or place < j] if j <= i else closed
                if crossed:
                    continue
                for x, y in self._pairs(number, i, j):
                    nearest = j <= i and self._next_iteration(x, y, outer)
                    if nearest or not closed:
                        positions = around(i + 1, j, count) if nearest else around(i + 1, i, count)
                        yield from self._hazard(number, x, y, i, positions, outer)

    def _pairs(self, number: int, i: int, j: int) -> Iterator[tuple[Touch, Touch]]:
        for x in self.summaries[i][number].last:
            for y in self.summaries[j][number].first:
                if self.touches.may_meet(x, y):
                    yield x, y

    def _next_iteration(self, x: Touch, y: Touch, outer: tuple[Var, ...]) -> bool:
        """Whether two accesses meet from an iteration to the next; if only later, any position in the loop lies between."""
        assert self.loop is not None
        var = self.loop.var
        if not self.loop.period or any(var not in self.touches.needs(one) for one in (x, y)):
            return True
        return self.touches.meets(x, y, (*outer, var), self.loop) is not None

    def _hazard(self, number: int, x: Touch, y: Touch, start: int, positions: tuple[int, ...], outer: tuple[Var, ...]) -> Iterator[Hazard]:
        conflict = self.touches.meets(x, y, outer)
        if conflict is None or conflict.scope != self.scopes[number]:
            return
        verbs = ["writes" if touch.access.write else "reads" for touch in (x, y)]
        places = [f"{touch.statement.spec} at {touch.access.origin or 'an unknown line'}" for touch in (x, y)]
        witness = f"thread {conflict.one} {verbs[0]} {conflict.place} ({places[0]}), thread {conflict.other} {verbs[1]} it ({places[1]})"
        yield Hazard(Interval(self._behind_commit(x, start, positions), conflict.scope), x, y, start, witness)

    def _behind_commit(self, x: Touch, start: int, positions: tuple[int, ...]) -> tuple[int, ...]:
        """For a copy that may be under way: only positions behind the commit of its group, where it can be waited for."""
        own = [place for place in self.commits if place >= start]
        if not x.statement.asynchronous or not own:
            return positions
        return tuple(place for place in positions if not start < place <= own[0]) or positions
