"""Which warps touch common elements: an event is about a piece as a whole, of which two warps may have parts that are apart."""

from __future__ import annotations

import functools
import itertools

import attrs
import numpy as np

from fireiron.check import Scene
from fireiron.check.blocks import local_coordinates
from fireiron.check.races.clusters import at_places
from fireiron.check.races.loops import Loops
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

    def meet(self, rule: Rule, mark: Mark, warps: tuple[int, int]) -> bool:
        """Whether two warps touch a common element of a buffer; as far as that is known."""
        if not rule.met or rule.private:
            return True
        return any(self._common((rule.first, name), (mark.path, name), warps) for name in rule.met)

    def _common(self, first: Place, second: Place, warps: tuple[int, int]) -> bool:
        if first not in self.touched or second not in self.touched:
            return True
        mine, theirs = (self.touched[place].get(warp) for place, warp in zip((first, second), warps, strict=True))
        return mine is not None and theirs is not None and bool(np.intersect1d(mine, theirs).size)

    @functools.cached_property
    def touched(self) -> dict[Place, dict[int, Array]]:
        """By path and buffer the grains of each warp."""
        scene = at_places(Scene(self.kernel))
        places = Places(scene, local_coordinates(scene))
        uses = [use for use in scene.uses if self.kernel.buffer(use.access.buffer).memory.of_block]
        loops = Loops(scene, places, uses)
        tracer = Tracer(scene, places, loops)
        traces = [trace for lengths in loops.lengths() for trace in tracer.traces(lengths)]
        for space in places.spaces.values():
            if space.patterns:
                space.settle()
        found: dict[Place, dict[int, list[Array]]] = {}
        for event in itertools.chain(*{id(one): one for one in traces}.values()):
            if isinstance(event, Touch):
                self._note(event, found)
        return {place: {warp: np.unique(np.concatenate(parts)) for warp, parts in warps.items()} for place, warps in found.items()}

    def _note(self, touch: Touch, found: dict[Place, dict[int, list[Array]]]) -> None:
        place = (touch.use.statement.path or ())[self.depth :], touch.use.access.buffer
        ends = touch.footprint.pattern.ends[0]
        for warp in np.unique(ends % WARP):
            grains = ends[ends % WARP == warp] // WARP + touch.footprint.shift
            found.setdefault(place, {}).setdefault(int(warp), []).append(grains)
