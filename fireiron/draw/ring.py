"""The picture `timeline` of a kernel with a ring: a lane for the producer, one for the consumers, and one for each stage between them.

The programs of the roles are executed statement by statement, with their fill numbers, conditions and loops. Only durations are assumed:
one step for a use, two for a load, two for the store of a tile. So the picture shows which role waits for which, but not how long.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from fireiron.check.access_trace import AccessTrace, Frame, assumed_elements
from fireiron.check.persistence import static_schedule
from fireiron.compiler import Program
from fireiron.draw.owners import sample_sizes
from fireiron.draw.picture import Page, Picture
from fireiron.draw.shapes import PALE, Rect
from fireiron.frozen import frozen
from fireiron.ir import (
    Acquire,
    Barrier,
    ClaimTile,
    Comment,
    Commit,
    Exec,
    ExitIfDone,
    Fence,
    For,
    GridDepControl,
    IfAnyLane,
    Kernel,
    Let,
    Release,
    Ring,
    Role,
    Roles,
    StageState,
    Stmt,
    Wait,
    execs,
    statements,
    unknown,
)
from fireiron.values.expr import Expr

WIDTH: Final = 900
STEPS: Final = 20
"""Maximum number of drawn steps."""

LOAD, USE, STORE = 2, 1, 2
"""Assumed durations in steps: of a load, of the use of a stage, and of the store of a tile."""

_LOADING: Final = "#f7c873"
_FULL: Final = "#d7f0c9"
_READ: Final = "#9bd0f0"
_LATE: Final = "#6fa8dc"
_STORED: Final = "#d9c7f0"


@frozen
class Fill:
    """A fill of a ring, with its `number` in the program and the steps of its events.

    The producer requests the loads, the fill is full, its use begins and ends, and it is released (None: after the drawn steps).
    """

    number: int
    stage: int
    requested: int
    full: int
    began: int
    ended: int
    released: int | None


@frozen
class Timeline:
    """The fills in order, and the start and end of each store of a tile."""

    ring: Ring
    fills: tuple[Fill, ...]
    stores: tuple[tuple[int, int], ...]
    shortened: tuple[tuple[str, int, int], ...]
    """Loops with omitted iterations: `(name, drawn, iterations)`."""


def roles_of(kernel: Kernel) -> tuple[Role, Role] | None:
    """Return the consumers of a kernel with a ring, and the first producer of its first ring: all producers wait for the same fills."""
    roles = next((stmt for stmt in kernel.body if isinstance(stmt, Roles)), None)
    if roles is None or not kernel.rings:
        return None
    consumers, *others = roles.roles
    filling = (role for role in others if any(stmt.ring == kernel.rings[0].name for stmt, _ in execs(role.body)))
    return consumers, next(filling, others[0])


class _Walk:
    """Executes the consumers of block 0, and the producer, which requests the loads of a stage as soon as the stage is released."""

    def __init__(self, kernel: Kernel, sizes: Mapping[str, int]) -> None:
        self.access_trace = AccessTrace(static_schedule(kernel))
        self.kernel, self.ring = self.access_trace.kernel, self.access_trace.kernel.rings[0]
        self.values: dict[str, Any] = {**sample_sizes(self.kernel, sizes), "block": 0, "thread": 0}
        self.values |= assumed_elements(self.access_trace, self.values)
        self.now, self.over = 0, False
        self.requested: list[int] = []
        self.parts: list[tuple[int, int, int]] = []
        self.released: list[int] = []
        self.stores: list[tuple[int, int]] = []
        self.shortened: dict[str, tuple[str, int, int]] = {}

    def timeline(self) -> Timeline:
        """Return the recorded timeline."""
        fills = tuple(
            Fill(
                number, number % self.ring.stages, self.requested[place], self.requested[place] + LOAD, began, ended, self._released(place)
            )
            for place, (number, began, ended) in enumerate(self.parts)
        )
        return Timeline(self.ring, fills, tuple(self.stores), tuple(self.shortened.values()))

    def _released(self, place: int) -> int | None:
        return self.released[place] if place < len(self.released) else None

    def consumers(self) -> None:
        """Execute the program of the consumers."""
        roles = roles_of(self.kernel)
        assert roles is not None
        self.follow(roles[0].body)

    def follow(self, body: Sequence[Stmt]) -> None:
        """Execute a list of statements of the consumers."""
        for statement in body:
            if self.over:
                return
            match statement:
                case Acquire(state=StageState.FULL) if statement.ring == self.ring.name:
                    self._use(self._value(statement.fill_index))
                case Release(state=StageState.EMPTY) if statement.ring == self.ring.name and self._value(statement.active):
                    self.released.append(self.now)
                case For() if any(isinstance(stmt, Acquire) for stmt in statements(statement.body)):
                    self._loop(statement)
                case For() | Exec() if self._writes(statement):
                    self.stores.append((self.now, self.now + STORE))
                    self.now += STORE
                case (
                    (
                        For()
                        | Exec()
                        | IfAnyLane()
                        | Let()
                        | Comment()
                        | Acquire()
                        | Release()
                        | Barrier()
                        | Commit()
                        | Wait()
                        | Fence()
                        | GridDepControl()
                    )
                    | ClaimTile()
                    | ExitIfDone()
                ):
                    pass
                case _:
                    raise unknown(statement, "the picture of a ring")

    def _loop(self, loop: For) -> None:
        extent = self._value(loop.extent)
        drawn = self._drawn(loop, extent)
        if drawn < extent:
            self.shortened[loop.var.name] = (loop.var.name, drawn, extent)
        for value in range(drawn):
            self.values[loop.var.name] = value
            self.follow(loop.body)
        self.values.pop(loop.var.name, None)

    def _drawn(self, loop: For, extent: int) -> int:
        """Return a small number of iterations after which the ring is at the same stage as after all of them."""
        if not any(isinstance(stmt, Acquire) for stmt in loop.body):
            return extent
        few = extent % self.ring.stages
        while few <= self.ring.stages:
            few += self.ring.stages
        return min(few, extent)

    def _use(self, number: int) -> None:
        self.over = self.now >= STEPS
        if self.over:
            return
        place = len(self.parts)
        free = self.released[place - self.ring.stages] if place >= self.ring.stages else 0
        self.requested.append(max(free, self.requested[-1] if self.requested else 0))
        began = max(self.now, self.requested[-1] + LOAD)
        self.now = began + USE
        self.parts.append((number, began, self.now))

    def _writes(self, statement: Stmt) -> bool:
        """Whether consumers store a result, or write a tile that another role stores."""
        inside = ((stmt, access) for stmt, _ in execs((statement,)) for access in stmt.accesses if access.write)
        return any(stmt.ring or self.kernel.buffer(access.buffer).memory.of_grid for stmt, access in inside)

    def _value(self, expression: Expr) -> int:
        return int(np.max(Frame(self.access_trace.lets, (), self.values).value(expression)))


def ring_timeline(program: Program, sizes: Mapping[str, int]) -> Timeline:
    """Return the timeline of the first block of a program with a ring."""
    walk = _Walk(program.lowered, sizes)
    walk.consumers()
    return walk.timeline()


# ---------------------------------------------------------------------------------------------- the picture


def picture_of_ring(program: Program, sizes: Mapping[str, int] | None = None) -> Picture:
    """Draw the lanes of producer and consumers, and the stages of their ring."""
    kernel = program.lowered
    roles = roles_of(kernel)
    assert roles is not None
    consumers, producer = roles
    events = ring_timeline(program, sample_sizes(kernel, sizes or {}))
    title = f"Ring: {program.spec}"
    page = Page()
    page.heading(title)
    y = page.paragraph(16, 48, _explained(events))
    entries = [(_LOADING, "loads in flight"), (_FULL, "full"), (_READ, "in use")]
    entries += [(_LATE, "MMAs still read it")] if any(fill.released not in (None, fill.ended) for fill in events.fills) else []
    entries += [(_STORED, "a tile is stored")] if events.stores else []
    y = page.legend(16, y, entries)
    lanes = _Lanes(page, events)
    y = lanes.axis(y)
    y = lanes.row(y, f"{producer.name}, 1 thread" if producer.elected else producer.name, lanes.requested())
    y += 8
    for stage in range(events.ring.stages):
        y = lanes.row(y, f"stage {stage}", lanes.stage(stage))
    y += 8
    y = lanes.row(y, f"{consumers.name}, {consumers.threads // 32} warps", lanes.used())
    return page.picture("timeline", title, WIDTH, y + 6)


def _explained(events: Timeline) -> str:
    ring = events.ring
    text = f"{', '.join(ring.buffers)} in {ring.stages} stages of {ring.bytes} bytes. "
    text += "Numbers are fills: the producer fills a stage, the consumers use and release it. "
    text += f"Durations are assumed: {USE} step for a use, {LOAD} for loads, {STORE} for the store of a tile. "
    for name, drawn, extent in events.shortened:
        text += f"Of the {extent} iterations of the loop over {name}, {drawn} are drawn. "
    return text


@frozen
class _Box:
    """A colored box with a text from one step to another; `part` of `parts` boxes that share the row's height."""

    start: float
    stop: float
    color: str
    text: str
    part: int = 0
    parts: int = 1


class _Lanes:
    LEFT = 150.0
    HEIGHT = 26.0

    def __init__(self, page: Page, events: Timeline) -> None:
        self.page, self.events = page, events
        ends = [fill.ended for fill in events.fills] + [stop for _, stop in events.stores]
        self.steps = min(max(ends, default=1), STEPS)
        self.wide = 730.0 / self.steps

    def axis(self, y: float) -> float:
        """Draw the numbers of the steps."""
        for step in range(self.steps):
            self.page.text(self.LEFT + self.wide * (step + 0.5), y + 12, str(step), 9, anchor="middle", color=PALE)
        self.page.text(self.LEFT - 8, y + 12, "step", 9, anchor="end", color=PALE)
        return y + 20

    def row(self, y: float, name: str, boxes: Iterator[_Box]) -> float:
        """Draw a lane; return its lower edge."""
        self.page.text(self.LEFT - 8, y + 17, name, 10.5, anchor="end")
        self.page.add(Rect(self.LEFT, y, self.wide * self.steps, self.HEIGHT, "#f6f8fa", "#d1d9e0", 0.6, 3.0))
        for box in boxes:
            start, stop = max(box.start, 0), min(box.stop, self.steps)
            if start >= stop:
                continue
            x, width, height = self.LEFT + self.wide * start, self.wide * (stop - start) - 1.5, self.HEIGHT / box.parts
            top = y + box.part * height
            self.page.add(Rect(x, top, width, height, box.color, radius=3.0))
            size = min(10.0, height - 1)
            self.page.text(x + width / 2, top + height / 2 + size * 0.36, box.text, round(size, 1), anchor="middle")
        return y + self.HEIGHT + 3

    def requested(self) -> Iterator[_Box]:
        """Yield the fills that the producer requests; those of the same step one below the other."""
        for step in dict.fromkeys(fill.requested for fill in self.events.fills):
            here = [fill for fill in self.events.fills if fill.requested == step]
            for part, fill in enumerate(here):
                yield _Box(step, step + 1, _LOADING, str(fill.number), part, len(here))

    def stage(self, stage: int) -> Iterator[_Box]:
        """Yield the states of a stage."""
        for fill in self.events.fills:
            if fill.stage == stage:
                yield _Box(fill.requested, fill.full, _LOADING, f"fill {fill.number}")
                yield _Box(fill.full, fill.began, _FULL, "")
                yield _Box(fill.began, fill.ended, _READ, f"use {fill.number}")
                yield _Box(fill.ended, self.steps if fill.released is None else fill.released, _LATE, "")

    def used(self) -> Iterator[_Box]:
        """Yield the uses and stores of the consumers."""
        for fill in self.events.fills:
            yield _Box(fill.began, fill.ended, _READ, str(fill.number))
        for start, stop in self.events.stores:
            yield _Box(start, stop, _STORED, "store")
