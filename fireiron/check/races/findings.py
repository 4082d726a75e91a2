"""Describe races: the buffer, two threads, the address, the iterations and the lines of the strategy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import attrs

from fireiron.check.access_trace import AccessTrace
from fireiron.check.finding import Finding, described, line_of
from fireiron.check.races.conflicts import Conflicts, Point
from fireiron.check.races.order import Race
from fireiron.check.races.traces import AccessEvent
from fireiron.values.expr import Expr, conjuncts, constant

BETWEEN = "and no barrier orders them"
UNFENCED = "through the async proxy, and no fence.proxy.async is between"
IN_FLIGHT = "while the asynchronous copy is in flight"

_SIZES = (64, 1, 7, 1024)
"""Factors for the required multiple of each size, tried in order to show that conditions can hold."""


def undecided(buffer: str, why: str, at: str | None = None) -> Finding:
    """An error for a buffer whose accesses are undecided, at the step that allocates it."""
    advice = "use compile-time sizes and trip counts, or accept the risk with .unchecked(reason)"
    message = f"undecided for {buffer}: {why}; {advice}"
    return Finding("race", "error", buffer, message, at)


class Report:
    """Creates findings from races."""

    def __init__(self, access_trace: AccessTrace, conflicts: Conflicts) -> None:
        self.access_trace, self.conflicts = access_trace, conflicts

    def race(self, race: Race) -> Finding:
        """The first witness that some block and some sizes make possible; else an undecided finding."""
        pair = race.before, race.after
        assumed = [part for touch in pair for part in self._assumed(touch)]
        finding = None
        for points in self.conflicts.witnesses(*pair, race.warps, race.in_flight or race.unfenced):
            possible = not assumed or self._possible(assumed, points)
            finding = self._finding(
                pair, points, assumed, possible, UNFENCED if race.unfenced else IN_FLIGHT if race.in_flight else BETWEEN
            )
            if possible:
                break
        assert finding is not None
        return finding

    def in_one_step(self, access: AccessEvent, other: AccessEvent, conflict: tuple[int, int, int], in_flight: bool) -> Finding:
        """A conflict between two units of threads, or two threads, in one statement execution; or between two asynchronous copies of one
        thread.
        """
        key, row, other_row = conflict
        other_key = key + access.footprint.shift - other.footprint.shift
        again = access is other and row == other_row  # in another iteration of a loop that is taken as a whole
        points = self.conflicts.at_row(access, key, row), self.conflicts.at_row(other, other_key, other_row, again=again)
        ordered = points if points[0].thread <= points[1].thread else points[::-1]
        touches = (access, other) if ordered is points else (other, access)
        assumed = self._assumed(access)
        possible = not assumed or self._possible(assumed, points)
        return self._finding(touches, ordered, assumed, possible, IN_FLIGHT if in_flight else BETWEEN)

    # -------------------------------------------------------------------------------------- text

    def _finding(
        self, pair: tuple[AccessEvent, AccessEvent], points: tuple[Point, Point], assumed: Sequence[Expr], possible: bool, missing: str
    ) -> Finding:
        after = pair[1]
        uses = [touch.use for touch in pair]
        lines = [line_of(use.statement, use.access) or "an unknown line" for use in uses]
        name, element = after.use.access.buffer, list(points[1].element)
        first, second = (_acts(touch, point) for touch, point in zip(pair, points, strict=True))
        locations = [_location(touch, line) for touch, line in zip(pair, lines, strict=True)]
        if uses[0].access == uses[1].access and points[0].loops == points[1].loops:
            locations[1] = "in the same statement"
        text = f"{name}{element}: {first} {locations[0]}, {second} {locations[1]}, {missing}"
        if not possible:
            text = f"undecided: {text}, if {' and '.join(str(part) for part in dict.fromkeys(assumed))} can hold for both"
        details = {
            "address": points[1].address,
            "element": element,
            "threads": [point.thread for point in points],
            "loops": [dict(point.loops) for point in points],
            "statements": [described(use.statement, use.access) for use in uses],
            "buffers": [use.access.buffer for use in uses],
            "lines": lines,
        }
        if assumed:
            details["assumed"] = [str(part) for part in assumed]
        use = after.use
        return Finding("race", "error", name, text, line_of(use.statement, use.access), described(use.statement, use.access), details)

    # -------------------------------------------------------------------------------------- conditions

    def _assumed(self, touch: AccessEvent) -> list[Expr]:
        """The conditions that the check assumes to hold: those on the block and on sizes."""
        known = {"thread", *(loop.var.name for loop in touch.use.loops)}
        return [part for part in conjuncts(touch.use.statement.performed) if not self.access_trace.roots(part) <= known]

    def _possible(self, conditions: Iterable[Expr], points: Sequence[Point]) -> bool:
        """Whether the conditions can hold for both points: a few sizes are tried, with the first and last blocks."""
        conditions = tuple(conditions)
        count = constant(self.access_trace.kernel.grid) or 2
        for factor in _SIZES:
            sizes = {one.name: min(max(one.low, one.multiple_of * factor), one.high) for one in self.access_trace.kernel.symbols}
            for block in dict.fromkeys((0, 1, count - 1)):
                if all(self._hold(conditions, {**sizes, **point.loops, "thread": point.thread, "block": block}) for point in points):
                    return True
        return False

    def _hold(self, conditions: Iterable[Expr], values: Mapping[str, int]) -> bool:
        frame = self.access_trace.frame([], values)
        return all(bool(frame.value(part)) for part in conditions if self.access_trace.roots(part) <= set(values))


def trusted(findings: Iterable[Finding]) -> list[Finding]:
    """Convert errors into warnings, as `.unchecked(reason)` requests."""
    return [attrs.evolve(finding, severity="warning") if finding.severity == "error" else finding for finding in findings]


def _acts(touch: AccessEvent, point: Point) -> str:
    """The action of a thread as text: `thread 3 writes it in k=1`."""
    statement = touch.use.statement
    actor = f"{statement.spec.level} {point.unit}".lower() if statement.collective else f"thread {point.thread}"
    steps = f" in {', '.join(f'{name}={value}' for name, value in point.loops.items())}" if point.loops else ""
    return f"{actor} {'writes' if touch.use.access.write else 'reads'} it{steps}"


def _location(touch: AccessEvent, line: str) -> str:
    return f"({touch.use.statement.instruction.name} {touch.use.statement.spec} at {line})"
