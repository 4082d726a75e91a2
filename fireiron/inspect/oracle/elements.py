"""Determine which warps access common elements. An event orders a whole piece, but two warps may access disjoint parts of the piece."""

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

PathAndBuffer = tuple[Path, str]


@attrs.define(eq=False, slots=False)
class Elements:
    """The bytes of shared buffers that the statements of each path access, by warp, in all iterations that the race check traces."""

    kernel: Kernel
    depth: int

    def may_conflict(self, rule: Rule, mark: Mark, warps: tuple[int, int], lanes: bool) -> bool:
        """Whether two warps, or two lanes of a warp, access a common element of a buffer. True if this is unknown."""
        if not rule.conflicting or rule.private:
            return True
        shared = (name for name in rule.conflicting if not self.kernel.buffer(name).memory.private)
        return any(self._share_element((rule.first, name), (mark.path, name), warps, lanes) for name in shared)

    def _share_element(self, first: PathAndBuffer, second: PathAndBuffer, warps: tuple[int, int], lanes: bool) -> bool:
        if first not in self.grains or second not in self.grains:
            return True
        if lanes:
            pairs = itertools.product(self.accesses[first].values(), self.accesses[second].values())
            return not all(self.conflicts.same_thread(access, other_access, warps[1]) for access, other_access in pairs)
        grains, other_grains = (self.grains[key].get(warp) for key, warp in zip((first, second), warps, strict=True))
        return grains is not None and other_grains is not None and bool(np.intersect1d(grains, other_grains).size)

    @functools.cached_property
    def conflicts(self) -> Conflicts:
        """Return the conflicts of the race check."""
        access_trace = with_free_ranks(AccessTrace(self.kernel))
        return Conflicts(Footprints(access_trace, local_coordinates(access_trace)))

    @functools.cached_property
    def accesses(self) -> dict[PathAndBuffer, dict[int, AccessEvent]]:
        """Return, by path and buffer, an access for each footprint."""
        footprints = self.conflicts.footprints
        access_trace = footprints.access_trace
        uses = [use for use in access_trace.uses if self.kernel.buffer(use.access.buffer).memory.of_block]
        loops = Loops(access_trace, footprints, uses)
        tracer = Tracer(access_trace, footprints, loops)
        traces = [trace for lengths in loops.lengths() for trace in tracer.traces(lengths)]
        for space in footprints.spaces.values():
            if space.patterns:
                space.number_grains()
        accesses: dict[PathAndBuffer, dict[int, AccessEvent]] = {}
        for event in itertools.chain(*{id(trace): trace for trace in traces}.values()):
            if isinstance(event, AccessEvent):
                key = (event.use.statement.path or ())[self.depth :], event.use.access.buffer
                accesses.setdefault(key, {})[id(event.footprint)] = event
        return accesses

    @functools.cached_property
    def grains(self) -> dict[PathAndBuffer, dict[int, Array]]:
        """Return, by path and buffer, the grains that each warp accesses."""
        return {key: _by_warp(events.values()) for key, events in self.accesses.items()}


def _by_warp(events: Iterable[AccessEvent]) -> dict[int, Array]:
    parts_by_warp: dict[int, list[Array]] = {}
    for event in events:
        ends = event.footprint.pattern.ends[0]
        for warp in np.unique(ends % WARP):
            parts_by_warp.setdefault(int(warp), []).append(ends[ends % WARP == warp] // WARP + event.footprint.shift)
    return {warp: np.unique(np.concatenate(parts)) for warp, parts in parts_by_warp.items()}
