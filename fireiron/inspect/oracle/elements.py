"""Which warps touch common elements: an event is about a piece as a whole, of which two warps may have parts that are apart."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable

import attrs
import numpy as np

from fireiron.check import Scene
from fireiron.check.blocks import local_coordinates
from fireiron.check.races.clusters import at_places
from fireiron.check.races.loops import Loops
from fireiron.check.races.meetings import Meetings
from fireiron.check.races.places import WARP, Places
from fireiron.check.races.traces import Touch, Tracer
from fireiron.check.scene import Array
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
            return not all(self.meetings.same_thread(one, other, warps[1]) for one, other in pairs)
        mine, theirs = (self.touched[place].get(warp) for place, warp in zip((first, second), warps, strict=True))
        return mine is not None and theirs is not None and bool(np.intersect1d(mine, theirs).size)

    @functools.cached_property
    def meetings(self) -> Meetings:
        """Who touches what, as the race check asks it."""
        scene = at_places(Scene(self.kernel))
        return Meetings(Places(scene, local_coordinates(scene)))

    @functools.cached_property
    def touches(self) -> dict[Place, dict[int, Touch]]:
        """By path and buffer a touch for each footprint."""
        places = self.meetings.places
        scene = places.scene
        uses = [use for use in scene.uses if self.kernel.buffer(use.access.buffer).memory.of_block]
        loops = Loops(scene, places, uses)
        tracer = Tracer(scene, places, loops)
        traces = [trace for lengths in loops.lengths() for trace in tracer.traces(lengths)]
        for space in places.spaces.values():
            if space.patterns:
                space.settle()
        found: dict[Place, dict[int, Touch]] = {}
        for event in itertools.chain(*{id(one): one for one in traces}.values()):
            if isinstance(event, Touch):
                place = (event.use.statement.path or ())[self.depth :], event.use.access.buffer
                found.setdefault(place, {})[id(event.footprint)] = event
        return found

    @functools.cached_property
    def touched(self) -> dict[Place, dict[int, Array]]:
        """By path and buffer the grains of each warp."""
        return {place: _by_warp(several.values()) for place, several in self.touches.items()}


def _by_warp(touches: Iterable[Touch]) -> dict[int, Array]:
    found: dict[int, list[Array]] = {}
    for one in touches:
        ends = one.footprint.pattern.ends[0]
        for warp in np.unique(ends % WARP):
            found.setdefault(int(warp), []).append(ends[ends % WARP == warp] // WARP + one.footprint.shift)
    return {warp: np.unique(np.concatenate(parts)) for warp, parts in found.items()}
