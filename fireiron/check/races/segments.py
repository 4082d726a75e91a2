"""Combine the accesses of a warp between two ordering events into segments: one operation per kind of access.

The knowledge of an agent changes only at ordering events. So the same operations are known before all accesses of one kind between two such
events, and an agent that knows one of these accesses knows all. If all segments are ordered, all accesses are ordered, and the check takes
a tenth of the time. The converse does not hold: accesses of one warp in one segment may be ordered because the same thread performs them,
and segments do not distinguish threads. If segments are unordered, the accesses themselves must be checked.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar

import attrs
import numpy as np

from fireiron.check.access_trace import Array
from fireiron.check.races.atoms import split
from fireiron.check.races.footprints import Footprint, Space
from fireiron.check.races.order import Agent, HappensBefore
from fireiron.check.races.traces import AccessEvent, Kind, StageEvent, Trace, Traces
from fireiron.frozen import frozen
from fireiron.ir import Mechanism

SEVERAL = -1
"""The step of a segment with several statement executions: their threads are not ordered by belonging to one execution."""


@attrs.frozen(eq=False, slots=False)
class Shape:
    """The union of the grains of several footprints, relative to the lowest one: for each grain the bit set of warps that access it.

    `doubled`: some warp accesses a grain in two of the footprints.
    """

    warps: Array
    doubled: bool

    @functools.cached_property
    def changes(self) -> Array:
        """The grains at which the set of warps changes, and the end."""
        inside = np.flatnonzero(self.warps[1:] != self.warps[:-1]) + 1
        return np.concatenate(([0], inside, [len(self.warps)]))


@attrs.define(eq=False)
class Area:
    """A shape at its first grain: the grains that a segment accesses in a space."""

    first: int
    shape: Shape
    atoms: Sequence[Sequence[int]] = ()

    @property
    def warps(self) -> Array:
        """For each grain from the first on, the bit set of warps that access it."""
        return self.shape.warps

    @property
    def changes(self) -> Array:
        """The grains, relative to the first, at which the set of warps changes."""
        return self.shape.changes


@frozen(eq=False)
class Segment:
    """The accesses of one kind between two ordering events, as one operation. It replaces an `AccessEvent`."""

    step: int
    footprint: Area
    kind: Kind
    in_flight: bool
    by_engine: bool
    mechanism: Mechanism
    fill: StageEvent | None
    bytes: int


class Unordered(Exception):
    """Raised if a conflicting operation is not known before an access."""


class Segments:
    """The segments of traces, restricted to some spaces. Equal segments share their areas."""

    def __init__(self, spaces: Sequence[Space], blocks: int) -> None:
        self.blocks = blocks
        self.spaces = set(map(id, spaces))
        self.shapes: dict[Any, Shape] = {}
        self.areas: dict[tuple[int, int, int], tuple[Space, Area]] = {}
        self.known: dict[tuple[Any, ...], Area | None] = {}

    def unordered(self, traces: Sequence[Traces], orders: Sequence[type[SegmentOrder]]) -> list[Traces]:
        """The traces, one per choice of loop lengths, for which none of the `orders` finds all segments ordered."""
        traces_by_id = {id(trace): trace for agents in traces for trace in agents}
        joined = {number: self._joined(trace) for number, trace in traces_by_id.items()}
        count = 0
        for _, areas in itertools.groupby(sorted(self.areas.values(), key=_space), key=_space):
            count += split([area for _, area in areas], len(traces[0]) // self.blocks, count)
        unordered = []
        for agents in traces:
            segmented = [segments for trace in agents if (segments := joined[id(trace)]) is not None]
            if len(segmented) < len(agents) or not any(order(segmented, self.blocks, count).run_all() for order in orders):
                unordered.append(agents)
        return unordered

    def _joined(self, trace: Trace) -> Sequence[Any] | None:
        """A trace of segments; None if a warp writes a grain twice in one segment."""
        events: list[Any] = []
        accesses: list[AccessEvent] = []
        for event in (*trace, None):  # None ends the last segment
            if event.__class__ is AccessEvent:
                accesses.append(event)
                continue
            if accesses:
                segments = self._operations(accesses)
                if segments is None:
                    return None
                events += segments
                accesses = []
            events.append(event)
        return events[:-1]

    def _operations(self, accesses: Iterable[Any]) -> list[Segment] | None:
        groups: dict[tuple[Any, ...], list[AccessEvent]] = {}
        for access in accesses:
            space, pattern = id(access.footprint.space), access.footprint.pattern
            if space in self.spaces and pattern.span[1]:
                key = (space, access.kind, access.in_flight, pattern.by_engine, pattern.mechanism, access.fill)
                groups.setdefault(key, []).append(access)
        segments = []
        for accesses in groups.values():
            first = accesses[0]
            area = self._area(accesses, first.kind == Kind.WRITE)
            if area is None:
                return None
            size = sum(access.bytes for access in accesses if access.fill)
            properties = first.kind, first.in_flight, first.by_engine, first.mechanism, first.fill
            segments.append(Segment(_one_step(accesses), area, *properties, size))
        return segments

    def _area(self, accesses: Sequence[AccessEvent], once: bool) -> Area | None:
        """The area that accesses of one space cover. With `once`, None if a warp accesses a grain in two of them."""
        footprints = [access.footprint for access in accesses]
        key = (once, *map(id, footprints))
        if key not in self.known:  # iterations of a ring repeat their footprints
            self.known[key] = self._area_of(footprints, once)
        return self.known[key]

    def _area_of(self, footprints: list[Footprint], once: bool) -> Area | None:
        if not once:
            footprints = list({id(footprint): footprint for footprint in footprints}.values())
        first = min(footprint.first for footprint in footprints)
        key = tuple((id(footprint.pattern), footprint.first - first) for footprint in footprints)
        shape = self.shapes.get(key)
        if shape is None:
            shape = self.shapes[key] = _shape(footprints, first)
        if once and shape.doubled:
            return None
        space = footprints[0].space
        return self.areas.setdefault((id(space), id(shape), first), (space, Area(first, shape)))[1]


def _one_step(accesses: Sequence[AccessEvent]) -> int:
    """The step if all accesses belong to one statement execution, whose threads need no mutual order; else `SEVERAL`."""
    step = accesses[0].step
    return step if all(access.step == step for access in accesses) else SEVERAL


def _space(entry: tuple[Space, Area]) -> int:
    return id(entry[0])


def _shape(footprints: Sequence[Footprint], first: int) -> Shape:
    warps = np.zeros(max(footprint.first + len(footprint.warps) for footprint in footprints) - first, dtype=np.uint32)
    doubled = False
    for footprint in footprints:
        part = warps[footprint.first - first : footprint.first - first + len(footprint.warps)]
        doubled = doubled or bool((part & footprint.warps).any())
        part |= footprint.warps
    return Shape(warps, doubled)


class SegmentOrder(HappensBefore):
    """Run segments up to the first one that is not ordered."""

    rules: ClassVar[Mapping[type, Callable[..., bool]]] = MappingProxyType({**HappensBefore.rules, Segment: HappensBefore._access})

    def __init__(self, traces: Sequence[Sequence[Any]], blocks: int, atoms: int) -> None:
        super().__init__(traces, blocks, atoms, lambda before, after, warp: False, {}, {})

    def run_all(self) -> bool:
        """Run all agents to the end; True if all segments are ordered."""
        try:
            self.run()
        except Unordered:
            return False
        return not self.violations

    def _ordered_within(self, event: Any) -> int:
        return 0 if event.step == SEVERAL else super()._ordered_within(event)

    def _report_unordered(self, agent: Agent, event: Any, late: int, unfenced: bool = False) -> None:
        raise Unordered
