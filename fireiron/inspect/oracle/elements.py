"""Which warps touch common elements: an event is about a piece as a whole, of which two warps may have parts that are apart."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable

import attrs
import numpy as np

from fireiron.check import AccessTrace
from fireiron.check.access_trace import Array
from fireiron.check.blocks import local_coordinates
from fireiron.check.races.clusters import with_free_ranks
from fireiron.check.races.conflicts import Conflicts
from fireiron.check.races.footprints import WARP, Footprints
from fireiron.check.races.loops import Loops
from fireiron.check.races.traces import AccessEvent, Tracer
from fireiron.inspect.oracle.marks import Mark, Path
from fireiron.inspect.oracle.order import Rule
from fireiron.ir import Kernel

Place = tuple[Path, str]


@attrs.define(eq=False, slots=False)
class Elements:
    """The bytes that the statements of each path touch in shared buffers, by warp, in any of the turns that the race check follows."""

    kernel: Kernel
    depth: int

    def meet(self, rule: Rule, mark: Mark, warps: tuple[int, int], lanes: bool) -> bool:
        """Whether two warps touch a common element of a buffer, or other lanes of one do; as far as that is known."""
        if not rule.met or rule.private:
            return True
        return any(self._common((rule.first, name), (mark.path, name), warps, lanes) for name in rule.met)

    def _common(self, first: Place, second: Place, warps: tuple[int, int], lanes: bool) -> bool:
        if first not in self.touched or second not in self.touched:
            return True
        if lanes:
            pairs = itertools.product(self.touches[first].values(), self.touches[second].values())
            return not all(self.conflicts.same_thread(one, other, warps[1]) for one, other in pairs)
        mine, theirs = (self.touched[place].get(warp) for place, warp in zip((first, second), warps, strict=True))
        return mine is not None and theirs is not None and bool(np.intersect1d(mine, theirs).size)

    @functools.cached_property
    def conflicts(self) -> Conflicts:
        """Who touches what, as the race check asks it."""
        access_trace = with_free_ranks(AccessTrace(self.kernel))
        return Conflicts(Footprints(access_trace, local_coordinates(access_trace)))

    @functools.cached_property
    def touches(self) -> dict[Place, dict[int, AccessEvent]]:
        """By path and buffer a touch for each footprint."""
        places = self.conflicts.places
        access_trace = places.access_trace
        uses = [use for use in access_trace.uses if self.kernel.buffer(use.access.buffer).memory.of_block]
        loops = Loops(access_trace, places, uses)
        tracer = Tracer(access_trace, places, loops)
        traces = [trace for lengths in loops.lengths() for trace in tracer.traces(lengths)]
        for space in places.spaces.values():
            if space.patterns:
                space.number_grains()
        found: dict[Place, dict[int, AccessEvent]] = {}
        for event in itertools.chain(*{id(one): one for one in traces}.values()):
            if isinstance(event, AccessEvent):
                place = (event.use.statement.path or ())[self.depth :], event.use.access.buffer
                found.setdefault(place, {})[id(event.footprint)] = event
        return found

    @functools.cached_property
    def touched(self) -> dict[Place, dict[int, Array]]:
        """By path and buffer the grains of each warp."""
        return {place: _by_warp(several.values()) for place, several in self.touches.items()}


def _by_warp(touches: Iterable[AccessEvent]) -> dict[int, Array]:
    found: dict[int, list[Array]] = {}
    for one in touches:
        ends = one.footprint.pattern.ends[0]
        for warp in np.unique(ends % WARP):
            found.setdefault(int(warp), []).append(ends[ends % WARP == warp] // WARP + one.footprint.shift)
    return {warp: np.unique(np.concatenate(parts)) for warp, parts in found.items()}
