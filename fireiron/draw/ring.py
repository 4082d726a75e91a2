"""The picture `timeline` of a kernel with a ring: producer and consumers as lanes, between them what becomes of each stage.

The programs of the roles are followed statement by statement, with the turns, conditions and loops that they have. Only durations are made
up, and said: a use takes a step, a load two, the store of a tile two. So it shows who waits for whom, not for how long.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import attrs
import numpy as np

from fireiron.check.access_trace import AccessTrace, Frame, assumed_elements
from fireiron.check.persistence import static_schedule
from fireiron.compiler import Program
from fireiron.draw.owners import sample_sizes
from fireiron.draw.picture import Page, Picture
from fireiron.draw.shapes import PALE, Rect
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
"""Most steps that are drawn."""

LOAD, USE, STORE = 2, 1, 2
"""Steps that are made up: until a stage is full, that its use takes, and that the store of a tile takes."""

_ASKED: Final = "#f7c873"
_FULL: Final = "#d7f0c9"
_READ: Final = "#9bd0f0"
_LATE: Final = "#6fa8dc"
_STORED: Final = "#d9c7f0"


@attrs.frozen
class Turn:
    """A turn of a ring, `number` counted by the program, and in steps when it happens: its loads are asked for, its stage is full, its use
    begins and ends, and its stage is given back (None: not in what is drawn).
    """

    number: int
    stage: int
    asked: int
    full: int
    began: int
    ended: int
    released: int | None


@attrs.frozen
class Timeline:
    """The turns in order, and from when to when the consumers store a tile."""

    ring: Ring
    turns: tuple[Turn, ...]
    stores: tuple[tuple[int, int], ...]
    shortened: tuple[tuple[str, int, int], ...]
    """Loops of which fewer iterations are drawn than there are: `(name, drawn, iterations)`."""


def roles_of(kernel: Kernel) -> tuple[Role, Role] | None:
    """The consumers of a kernel with a ring, and its producer; of several, all of which wait for the same turns, the first one."""
    roles = next((one for one in kernel.body if isinstance(one, Roles)), None)
    return None if roles is None or not kernel.rings else (roles.roles[0], roles.roles[1])


class _Walk:
    """Follows the consumers of block 0, and with them the producer, who asks for a stage as soon as it is given back."""

    def __init__(self, kernel: Kernel, sizes: Mapping[str, int]) -> None:
        self.access_trace = AccessTrace(static_schedule(kernel))
        self.kernel, self.ring = self.access_trace.kernel, self.access_trace.kernel.rings[0]
        self.values: dict[str, Any] = {**sample_sizes(self.kernel, sizes), "block": 0, "thread": 0}
        self.values |= assumed_elements(self.access_trace, self.values)
        self.now, self.over = 0, False
        self.asked: list[int] = []
        self.parts: list[tuple[int, int, int]] = []
        self.released: list[int] = []
        self.stores: list[tuple[int, int]] = []
        self.shortened: dict[str, tuple[str, int, int]] = {}

    def timeline(self) -> Timeline:
        """What was seen."""
        turns = tuple(
            Turn(number, number % self.ring.stages, self.asked[place], self.asked[place] + LOAD, began, ended, self._released(place))
            for place, (number, began, ended) in enumerate(self.parts)
        )
        return Timeline(self.ring, turns, tuple(self.stores), tuple(self.shortened.values()))

    def _released(self, place: int) -> int | None:
        return self.released[place] if place < len(self.released) else None

    def consumers(self) -> None:
        """The whole program of the consumers."""
        roles = roles_of(self.kernel)
        assert roles is not None
        self.follow(roles[0].body)

    def follow(self, body: Sequence[Stmt]) -> None:
        """A list of the consumers."""
        for statement in body:
            if self.over:
                return
            match statement:
                case Acquire(state=StageState.FULL) if statement.ring == self.ring.name:
                    self._use(self._value(statement.fill_index))
                case Release(state=StageState.EMPTY) if statement.ring == self.ring.name and self._value(statement.active):
                    self.released.append(self.now)
                case For() if any(isinstance(one, Acquire) for one in statements(statement.body)):
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
        """Few iterations, behind which a ring stands at the stage where it stands behind all of them."""
        if not any(isinstance(one, Acquire) for one in loop.body):
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
        self.asked.append(max(free, self.asked[-1] if self.asked else 0))
        began = max(self.now, self.asked[-1] + LOAD)
        self.now = began + USE
        self.parts.append((number, began, self.now))

    def _writes(self, statement: Stmt) -> bool:
        inside = (access for one, _ in execs((statement,)) for access in one.accesses)
        return any(access.write and self.kernel.buffer(access.buffer).memory.of_grid for access in inside)

    def _value(self, expression: Expr) -> int:
        return int(np.max(Frame(self.access_trace.lets, (), self.values).value(expression)))


def ring_timeline(program: Program, sizes: Mapping[str, int]) -> Timeline:
    """Who does what when, in the first block, of a program with a ring."""
    walk = _Walk(program.lowered, sizes)
    walk.consumers()
    return walk.timeline()


# ---------------------------------------------------------------------------------------------- the picture


def picture_of_ring(program: Program, sizes: Mapping[str, int] | None = None) -> Picture:
    """The lanes of producer and consumers, and the stages of their ring."""
    kernel = program.lowered
    roles = roles_of(kernel)
    assert roles is not None
    consumers, producer = roles
    found = ring_timeline(program, sample_sizes(kernel, sizes or {}))
    title = f"Ring: {program.spec}"
    page = Page()
    page.heading(title)
    y = page.paragraph(16, 48, _explained(found))
    entries = [(_ASKED, "loads under way"), (_FULL, "full"), (_READ, "in use")]
    entries += [(_LATE, "products still read it")] if any(turn.released not in (None, turn.ended) for turn in found.turns) else []
    entries += [(_STORED, "a tile is stored")] if found.stores else []
    y = page.legend(16, y, entries)
    lanes = _Lanes(page, found)
    y = lanes.axis(y)
    y = lanes.row(y, f"{producer.name}, 1 thread" if producer.elected else producer.name, lanes.asked())
    y += 8
    for stage in range(found.ring.stages):
        y = lanes.row(y, f"stage {stage}", lanes.stage(stage))
    y += 8
    y = lanes.row(y, f"{consumers.name}, {consumers.threads // 32} warps", lanes.used())
    return page.picture("timeline", title, WIDTH, y + 6)


def _explained(found: Timeline) -> str:
    ring = found.ring
    text = f"{', '.join(ring.buffers)} in {ring.stages} stages of {ring.bytes} bytes. "
    text += "Numbers are turns: each is filled by the producer, used by the consumers and given back. "
    text += f"Steps are made up: a use takes {USE}, loads {LOAD}, the store of a tile {STORE}. "
    for name, drawn, extent in found.shortened:
        text += f"Of the {extent} turns of the loop over {name} {drawn} are drawn. "
    return text


@attrs.frozen
class _Box:
    """From a step to another: a colour and a text; `part` of `parts` boxes that share the row's height."""

    start: float
    stop: float
    colour: str
    text: str
    part: int = 0
    parts: int = 1


class _Lanes:
    LEFT = 150.0
    HEIGHT = 26.0

    def __init__(self, page: Page, found: Timeline) -> None:
        self.page, self.found = page, found
        ends = [turn.ended for turn in found.turns] + [stop for _, stop in found.stores]
        self.steps = min(max(ends, default=1), STEPS)
        self.wide = 730.0 / self.steps

    def axis(self, y: float) -> float:
        """The numbers of the steps."""
        for step in range(self.steps):
            self.page.text(self.LEFT + self.wide * (step + 0.5), y + 12, str(step), 9, anchor="middle", colour=PALE)
        self.page.text(self.LEFT - 8, y + 12, "step", 9, anchor="end", colour=PALE)
        return y + 20

    def row(self, y: float, name: str, boxes: Iterator[_Box]) -> float:
        """A lane; its lower edge."""
        self.page.text(self.LEFT - 8, y + 17, name, 10.5, anchor="end")
        self.page.add(Rect(self.LEFT, y, self.wide * self.steps, self.HEIGHT, "#f6f8fa", "#d1d9e0", 0.6, 3.0))
        for box in boxes:
            start, stop = max(box.start, 0), min(box.stop, self.steps)
            if start >= stop:
                continue
            x, width, height = self.LEFT + self.wide * start, self.wide * (stop - start) - 1.5, self.HEIGHT / box.parts
            top = y + box.part * height
            self.page.add(Rect(x, top, width, height, box.colour, radius=3.0))
            size = min(10.0, height - 1)
            self.page.text(x + width / 2, top + height / 2 + size * 0.36, box.text, round(size, 1), anchor="middle")
        return y + self.HEIGHT + 3

    def asked(self) -> Iterator[_Box]:
        """The turns that the producer asks for, those of one step one below the other."""
        for step in dict.fromkeys(turn.asked for turn in self.found.turns):
            here = [turn for turn in self.found.turns if turn.asked == step]
            for part, turn in enumerate(here):
                yield _Box(step, step + 1, _ASKED, str(turn.number), part, len(here))

    def stage(self, stage: int) -> Iterator[_Box]:
        """What becomes of a stage."""
        for turn in self.found.turns:
            if turn.stage == stage:
                yield _Box(turn.asked, turn.full, _ASKED, f"fill {turn.number}")
                yield _Box(turn.full, turn.began, _FULL, "")
                yield _Box(turn.began, turn.ended, _READ, f"use {turn.number}")
                yield _Box(turn.ended, self.steps if turn.released is None else turn.released, _LATE, "")

    def used(self) -> Iterator[_Box]:
        """What consumers do."""
        for turn in self.found.turns:
            yield _Box(turn.began, turn.ended, _READ, str(turn.number))
        for start, stop in self.found.stores:
            yield _Box(start, stop, _STORED, "store")
