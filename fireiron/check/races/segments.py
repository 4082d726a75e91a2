"""Segments: what each warp touches from one event that orders threads to the next, as one operation for each kind of touch.

What an agent knows changes at such events alone, so the touches of one kind between two of them know the same operations, and
whoever knows one of them knows all. Segments that are all ordered mean touches that are all ordered, at a tenth of the work. The converse
does not hold: of touches of one warp in one segment the same thread may order some, and segments do not tell. So where segments
meet unordered, the touches themselves are to be followed.
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
from fireiron.ir import Mechanism

SEVERAL = -1
"""Step of a segment of several executions: membership orders none of their threads."""


@attrs.frozen(eq=False, slots=False)
class Shape:
    """The grains of several footprints together, counted from their least: for each the warps that touch it, as bits.

    `doubled` says whether a warp touches a grain in two of them.
    """

    warps: Array
    doubled: bool

    @functools.cached_property
    def changes(self) -> Array:
        """The grains from which on other warps touch; the end is one of them."""
        inside = np.flatnonzero(self.warps[1:] != self.warps[:-1]) + 1
        return np.concatenate(([0], inside, [len(self.warps)]))


@attrs.define(eq=False)
class Area:
    """A shape at its first grain: what a segment touches of a space."""

    first: int
    shape: Shape
    atoms: Sequence[Sequence[int]] = ()

    @property
    def warps(self) -> Array:
        """For each grain from the first on, the warps that touch it as bits."""
        return self.shape.warps

    @property
    def changes(self) -> Array:
        """The grains, counted from the first, from which on other warps touch."""
        return self.shape.changes


@attrs.frozen(eq=False)
class Segment:
    """The touches of one kind between two events that order threads, as one operation: what a `Touch` is of one access."""

    step: int
    footprint: Area
    kind: Kind
    in_flight: bool
    by_engine: bool
    mechanism: Mechanism
    turn: StageEvent | None
    bytes: int


class Unordered(Exception):
    """A segment does not know what it meets."""


class Segments:
    """The segments of traces, as far as they touch some spaces; equal ones share their areas."""

    def __init__(self, spaces: Sequence[Space], blocks: int) -> None:
        self.blocks = blocks
        self.spaces = set(map(id, spaces))
        self.shapes: dict[Any, Shape] = {}
        self.areas: dict[tuple[int, int, int], tuple[Space, Area]] = {}

    def unordered(self, traces: Sequence[Traces], ways: Sequence[type[SegmentOrder]]) -> list[Traces]:
        """The traces, one for each choice of lengths, in which none of some ways to follow segments finds all of them ordered that meet."""
        different = {id(trace): trace for agents in traces for trace in agents}
        joined = {number: self._joined(trace) for number, trace in different.items()}
        count = 0
        for _, areas in itertools.groupby(sorted(self.areas.values(), key=_space), key=_space):
            count += split([area for _, area in areas], len(traces[0]) // self.blocks, count)
        found = []
        for agents in traces:
            course = [segments for trace in agents if (segments := joined[id(trace)]) is not None]
            if len(course) < len(agents) or not any(way(course, self.blocks, count).run_all() for way in ways):
                found.append(agents)
        return found

    def _joined(self, trace: Trace) -> Sequence[Any] | None:
        """A trace of segments; None where a warp writes a grain twice in one."""
        events: list[Any] = []
        for touches, part in itertools.groupby(trace, lambda event: isinstance(event, AccessEvent)):
            if not touches:
                events += part
                continue
            found = self._operations(part)
            if found is None:
                return None
            events += found
        return events

    def _operations(self, touches: Iterable[Any]) -> list[Segment] | None:
        alike: dict[tuple[Any, ...], list[AccessEvent]] = {}
        for touch in touches:
            if id(touch.footprint.space) in self.spaces and touch.footprint.pattern.span[1]:
                key = (id(touch.footprint.space), touch.kind, touch.in_flight, touch.by_engine, touch.mechanism, _turn_of(touch))
                alike.setdefault(key, []).append(touch)
        found = []
        for same in alike.values():
            first = same[0]
            area = self._area(same, first.kind == Kind.WRITE)
            if area is None:
                return None
            size = sum(one.bytes for one in same if one.turn)
            how = first.kind, first.in_flight, first.by_engine, first.mechanism, first.turn
            found.append(Segment(_one_step(same), area, *how, size))
        return found

    def _area(self, touches: Sequence[AccessEvent], once: bool) -> Area | None:
        """What touches of one space cover; with `once`, None where a warp touches a grain in two of them."""
        footprints = [touch.footprint for touch in touches]
        if not once:
            footprints = list({id(one): one for one in footprints}.values())
        first = min(one.first for one in footprints)
        key = tuple((id(one.pattern), one.first - first) for one in footprints)
        shape = self.shapes.get(key)
        if shape is None:
            shape = self.shapes[key] = _shape(footprints, first)
        if once and shape.doubled:
            return None
        space = footprints[0].space
        return self.areas.setdefault((id(space), id(shape), first), (space, Area(first, shape)))[1]


def _one_step(touches: Sequence[AccessEvent]) -> int:
    """The one execution of a statement that touches belong to, whose threads need no order among each other."""
    step = touches[0].step
    return step if all(one.step == step for one in touches) else SEVERAL


def _turn_of(touch: AccessEvent) -> tuple[str, int, tuple[int, ...]] | None:
    return None if touch.turn is None else (touch.turn.ring.name, touch.turn.number, touch.turn.ranks)


def _space(entry: tuple[Space, Area]) -> int:
    return id(entry[0])


def _shape(footprints: Sequence[Footprint], first: int) -> Shape:
    warps = np.zeros(max(one.first + len(one.warps) for one in footprints) - first, dtype=np.uint32)
    doubled = False
    for one in footprints:
        part = warps[one.first - first : one.first - first + len(one.warps)]
        doubled = doubled or bool((part & one.warps).any())
        part |= one.warps
    return Shape(warps, doubled)


class SegmentOrder(HappensBefore):
    """Segments on their way, up to the first that does not know what it meets."""

    rules: ClassVar[Mapping[type, Callable[..., bool]]] = MappingProxyType({**HappensBefore.rules, Segment: HappensBefore._touch})

    def __init__(self, traces: Sequence[Sequence[Any]], blocks: int, atoms: int) -> None:
        super().__init__(traces, blocks, atoms, lambda before, behind, warp: False, {}, {})

    def run_all(self) -> bool:
        """Run all agents to the end, and say whether all segments are ordered."""
        try:
            self.run()
        except Unordered:
            return False
        return not self.broken

    def _ordered_within(self, event: Any) -> int:
        return 0 if event.step == SEVERAL else super()._ordered_within(event)

    def _meet(self, agent: Agent, event: Any, late: int, hidden: bool = False) -> None:
        raise Unordered
