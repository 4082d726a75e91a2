"""Select the iterations of a loop that decide for all of them.

A loop without ordering events is taken as a whole: the union of the accesses for all its values. Other loops are followed iteration by
iteration. If addresses repeat with a period, any race occurs within one period plus the iterations for which copies may be in flight. So a
run of equal iterations is reduced to that many, at the same position in the period. If addresses move by equal steps, the run is reduced to
the number of iterations that can overlap. Loops with a run-time trip count are followed for each decisive trip count. All other cases are
undecided.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from fireiron.check.access_trace import MANY, AccessTrace, Array, Use, distinct, less_a_minimum, linear
from fireiron.check.races.footprints import Footprints, element_tests
from fireiron.check.races.lengths import at_lengths
from fireiron.check.races.tiles import SEQUENCE_PART, opened, tile_lengths, varying_tiles
from fireiron.frozen import frozen
from fireiron.ir import Acquire, Barrier, Commit, Exec, Fence, For, Release, Wait, located, statements
from fireiron.values.expr import Expr, FloorDiv, Less, Min, Mod, Var, as_expr, compiled, conjuncts, constant

MOST_ITERATIONS = 4096
"""Maximum number of pairwise different iterations of a loop that are all followed."""

MOST_COMPARED = 1 << 24
"""Maximum number of iterations of a loop, or of values of a condition, that are all compared."""

LONGEST_PERIOD = 64
"""Longest period of addresses, in iterations. Longer ones count as not repeating."""

MOST_LENGTHS = 512
"""Maximum number of combinations of run-time trip counts that are followed."""

ORDERING = (Barrier, Commit, Wait, Fence, Acquire, Release)
"""The statements that order accesses."""

Lengths = Mapping[Expr, int]


@frozen(eq=False)
class LoopCourse:
    """How the accesses of an ordered loop change between iterations.

    The addresses repeat after `period` iterations, or move by equal steps (`moves`), or neither (`period` is None). The result for `kept`
    equal iterations holds for any larger number. `varies`: addresses or conditions depend on the iteration. `addresses` is the period
    without fill indices, which inner loops may count, too; `places` is the period of addresses with the stages of rings, but without the
    phases of their mbarriers.

    `kept` is a period, in which each phase occurs, plus the distance of accesses that decides (`places`, or the iterations in flight), plus
    2. A larger distance decides nothing new: of two accesses to the same place, one is repeated `places` iterations nearer to the other,
    and the order of both pairs orders the first.
    """

    period: int | None
    moves: bool
    kept: int
    varies: bool
    addresses: int = 1
    places: int = 1


@frozen(eq=False)
class Nested:
    """A loop with a run-time trip count inside another such loop, and which combinations of their trip counts are decisive.

    Agents of a ring, and copies in flight, are at most `window` inner iterations apart, and the state repeats after `period` inner
    iterations. If the inner loop is longer than the window, the ends of two of its executions do not interact. The effect of an end then
    depends only on its position in the period and on the addresses of the outer loop.

    - All trip counts up to the window are followed with all numbers of outer iterations, because their ends interact.
    - If the addresses of the outer loop stay the same, the next `period` trip counts show all effects within `few` outer iterations. If
      they change (`few` above 2), these trip counts are followed with all numbers of outer iterations.
    - Larger trip counts only have more iterations between their ends. They are followed in one outer iteration.
    """

    outer: Expr
    few: int
    inner: Expr
    window: int
    period: int

    def is_new(self, lengths: Lengths) -> bool:
        """Whether a combination of trip counts may have an effect that no smaller combination has."""
        outer, inner = lengths[self.outer], lengths[self.inner]
        if outer <= 1 or inner <= self.window:
            return True
        return inner <= self.window + self.period and (outer <= self.few or self.few > 2)


class Loops:
    """The loops of a kernel around accesses to memory that threads share."""

    def __init__(self, access_trace: AccessTrace, footprints: Footprints, uses: Sequence[Use]) -> None:
        self.access_trace, self.footprints, self.uses = access_trace, footprints, uses
        self.undecided: dict[str, str] = {}
        self.conditions_of: dict[int, tuple[Expr, ...]] = {}
        around = [(one, [other for other in outer if isinstance(other, For)]) for one, outer in located(access_trace.kernel.body)]
        self.all = {id(one): (one, *outer) for one, outer in around if isinstance(one, For)}
        self.inside = {id(one): [use for use in uses if any(loop is one for loop in use.loops)] for one, *_ in self.all.values()}
        self.ordered = {id(one) for one, *_ in self.all.values() if self._is_ordered(one)}
        self.alternating = any(one.step > 1 for one, *_ in self.all.values())
        self.course = functools.lru_cache(maxsize=None)(self._common_course)
        self.varying_tiles = varying_tiles(access_trace, self.course)
        self.tiles = frozenset(one.tile.name for one in self.varying_tiles.values())
        self.tile_lengths = tile_lengths(self.varying_tiles.values())

    def in_order(self, loops: Iterable[For]) -> frozenset[str]:
        """The variables of those loops that are followed iteration by iteration."""
        return frozenset(loop.var.name for loop in loops if id(loop) in self.ordered)

    def opened(self, value: Expr) -> Expr:
        """An expression over loop variables, chosen tile indices and run-time values."""
        return opened(self.access_trace, value, self.tiles) if self.tiles else self.access_trace.opened(value)

    # -------------------------------------------------------------------------------------- as a whole, or in order

    def _is_ordered(self, loop: For) -> bool:
        """Whether the order of iterations matters, or there are too many to take as a whole."""
        parts = (loop, *statements(loop.body))
        if any(isinstance(one, ORDERING) or (isinstance(one, For) and constant(one.extent) is None) for one in parts):
            return True
        uses = self.inside[id(loop)]
        if any(use.statement.collective or (use.access.spread and use.access.write) for use in uses):
            return True
        copies = [use for use in uses if use.statement.asynchronous]
        if copies and (len(copies) < len(uses) or not all(self._moves_with(loop, use) for use in copies)):
            return True
        return any(self._point_count(loop, use) > MANY for use in uses)

    def _moves_with(self, loop: For, use: Use) -> bool:
        return loop.var.name in self.access_trace.needs(self.footprints.parts(use.access))

    def _point_count(self, loop: For, use: Use) -> int:
        position = next(number for number, one in enumerate(use.loops) if one is loop)
        counts = (constant(one.extent) or 1 for one in use.loops[position:])
        return math.prod(counts) * self.access_trace.kernel.workers * len(use.access.elements())

    # -------------------------------------------------------------------------------------- how a loop runs

    def _common_course(self, loop: For) -> LoopCourse:
        """The course of a loop in all roles that contain it. It is the same for all of them, because roles wait for each other's fills."""
        copies = self._same_in_all_roles(loop)
        if len(copies) == 1:
            return self._course(loop)
        courses = [self._course(one) for one in copies]
        steps = [one.step for one in copies]
        period = None if any(one.period is None for one in courses) else math.lcm(*steps, *(one.period or 1 for one in courses))
        places = math.lcm(*steps, *(one.places for one in courses))
        kept = (period or 1) + max(places, *(one.kept - (one.period or 1) - 2 for one in courses)) + 2
        addresses = math.lcm(*steps, *(one.addresses for one in courses))
        return LoopCourse(period, any(one.moves for one in courses), kept, any(one.varies for one in courses), addresses, places)

    def _same_in_all_roles(self, loop: For) -> list[For]:
        """The instances of a loop in all roles."""
        if not self.access_trace.kernel.rings:
            return [loop]
        return [one for one, *_ in self.all.values() if (one.var, one.extent) == (loop.var, loop.extent)]

    def _course(self, loop: For) -> LoopCourse:
        moving = [use for use in self.inside[id(loop)] if loop.var.name in self.access_trace.needs(self.footprints.parts(use.access))]
        groups = max((one.groups for one in statements(loop.body) if isinstance(one, Wait)), default=0)
        period: int | None = 1
        moves = False
        for space in dict.fromkeys(self._space(use) for use in moving):
            repeats = self._period([use for use in moving if self._space(use) == space], loop.var)
            reach = None if repeats is not None else self._reach(space, loop)
            moves = moves or reach is not None
            groups = max(groups, reach or 0)
            period = math.lcm(period, repeats or 1) if period is not None and (repeats or reach) is not None else None
        addresses = places = period or 1
        for stmt in statements(loop.body):
            if isinstance(stmt, (Acquire, Release)) or (isinstance(stmt, Exec) and stmt.ring):
                # An mbarrier distinguishes rounds by parity only, and counts the bytes of each fill.
                stages = self.access_trace.kernel.ring(stmt.ring).stages
                step = _coefficient(self.access_trace.opened(stmt.fill_index), loop.var)
                rounds = 2 * stages // math.gcd(2 * stages, step or 1)
                period = None if period is None else math.lcm(period, rounds)
                places = math.lcm(places, stages // math.gcd(stages, step) if step else rounds)
        kept = (period or 1) + max(places, groups) + 2
        varies = bool(moving) or any(True for _ in self._conditions(loop))
        return LoopCourse(period, moves, kept, varies, addresses, places)

    def _period(self, uses: Sequence[Use], var: Var) -> int | None:
        """The number of iterations after which all addresses repeat, if it is small; else None."""
        parts = {self.access_trace.opened(part) for use in uses for part in self.footprints.parts(use.access)}
        parts = {part for part in parts if var in part.variables()}
        if any(_coefficient(part, var) for part in parts):  # equal steps never return to the same address
            return None
        sizes = {one for part in parts for one in _periods(part, var)}
        period = math.lcm(*sizes) if sizes else 1
        free = Var(var.name, var.low, var.high + period)
        if period > LONGEST_PERIOD or any(part.substitute({var: free + period}) != part.substitute({var: free}) for part in parts):
            return None
        return period

    def _space(self, use: Use) -> str:
        return "" if self.footprints.space(use.access.buffer).shared else use.access.buffer

    def _reach(self, space: str, loop: For) -> int | None:
        """The number of iterations that contain all overlapping pairs, if each iteration moves all accesses of a space by the same steps
        and no other statement accesses it; else None.
        """
        uses = [use for use in self.uses if self._space(use) == space]
        if not space or any(all(other is not loop for other in use.loops) for use in uses):
            return None
        parts = [[self.access_trace.opened(part) for part in self.footprints.parts(use.access)] for use in uses]
        steps = {tuple(_coefficient(part, loop.var) for part in coordinates) for coordinates in parts}
        if len(steps) > 1 or None in (amounts := steps.pop()):
            return None
        reaches = []
        for dim, step in enumerate(amounts):
            if step:
                # Two iterations overlap in a dimension only if their distance is at most the extent of the accesses.
                rests = [coordinates[dim] - loop.var * step for coordinates in parts]
                last = max(use.access.reach[dim] for use in uses)
                reaches.append((max(rest.high for rest in rests) - min(rest.low for rest in rests) + last + 1) // abs(step) + 1)
        reach = min(reaches, default=None)
        return None if reach is None or reach > LONGEST_PERIOD else reach

    # -------------------------------------------------------------------------------------- lengths known at run time

    def lengths(self) -> list[Lengths]:
        """The decisive trip counts, by extent, of loops with a run-time trip count."""
        trip_counts: dict[Expr, set[int]] = {}
        for loop, *outer in self.all.values():
            extent = self.opened(loop.extent)
            if id(loop) in self.varying_tiles:
                trip_counts[SEQUENCE_PART] = set(range(self.varying_tiles[id(loop)].part_count))
            if id(loop) in self.varying_tiles or any(var.name in self.tiles for var in extent.variables()):
                continue
            if not self.matters(loop) or constant(extent) is not None or self.access_trace.roots(extent) <= self.in_order(outer):
                continue
            if not self.access_trace.roots(extent).isdisjoint(one.var.name for one in outer):
                self.mark_undecided(loop, f"the trip count {extent} of loop {loop.var} depends on another loop and on run-time values")
            trip_counts[extent] = trip_counts.get(extent, set()) | self._lengths_of(loop, extent)
        trip_counts = {extent: counts for extent, counts in trip_counts.items() if trip_counts.keys().isdisjoint(_sides(extent))}
        if math.prod(len(one) for one in trip_counts.values()) > MOST_LENGTHS:
            for loop, *_ in self.all.values():
                if self.access_trace.opened(loop.extent) in trip_counts:
                    self.mark_undecided(
                        loop,
                        f"{' x '.join(str(len(one)) for one in trip_counts.values())} combinations of trip counts must be followed, "
                        f"but the limit is {MOST_LENGTHS}",
                    )
            trip_counts = {extent: {max(counts)} for extent, counts in trip_counts.items()}
        nested = [one for loop, *_ in self.all.values() for one in self._nested(loop, trip_counts)]
        combinations = (
            dict(zip(trip_counts, combination, strict=True))
            for combination in itertools.product(*(sorted(counts) for counts in trip_counts.values()))
        )
        return [one for one in combinations if all(pair.is_new(one) for pair in nested)]

    def _nested(self, outer: For, trip_counts: Mapping[Expr, set[int]]) -> Iterator[Nested]:
        """The pairs of `outer` and a loop inside it, both with run-time trip counts, for which representative trip counts are followed."""
        extent = self.opened(outer.extent)
        if extent not in trip_counts:
            return
        few = self.course(outer).addresses + 1
        if not trip_counts[extent] >= set(range(1, few + 1)):
            return
        inside = {self.opened(other.extent) for other in statements(outer.body) if isinstance(other, For)}
        for length in [other for other in trip_counts if other in inside and other != extent]:
            courses = [self.course(other) for other, *_ in self.all.values() if self.opened(other.extent) == length]
            window = max(other.kept - (other.period or 1) for other in courses)
            period = math.lcm(*(other.period or 1 for other in courses))
            if trip_counts[length] >= set(range(1, window + period + 1)):
                yield Nested(extent, few, length, window, period)

    def matters(self, loop: For) -> bool:
        """Whether a loop contains accesses to memory that threads share, or ordering statements."""
        return bool(self.inside[id(loop)]) or any(isinstance(one, ORDERING) for one in statements(loop.body))

    def _lengths_of(self, loop: For, extent: Expr) -> set[int]:
        course = self.course(loop)
        low, high = max(extent.low, self._min_trip_count(loop.extent), 0), extent.high
        known = self._trip_counts_of_blocks(extent)
        if known is None and high <= course.kept:
            known = set(range(low, high + 1))
        # Few iterations are followed individually, whatever their addresses are.
        if course.period is None and (known is None or max(known, default=0) > course.kept):
            self.mark_undecided(
                loop, f"the addresses of loop {loop.var}, which runs {extent} times, neither repeat nor move by equal steps"
            )
        if known is not None:
            period = course.period or 1
            return {one if one <= course.kept + period else course.kept + (one - course.kept) % period for one in known}
        counts = (course.varies and not course.moves) or any(isinstance(one, (Commit, Wait)) for one in statements(loop.body))
        wanted: Iterable[int] = range(course.kept + (course.period or 1)) if counts else (0, course.kept)
        if counts and any(isinstance(one, For) and constant(self.access_trace.opened(one.extent)) is None for one in statements(loop.body)):
            # A run of fewer iterations begins like a longer one and ends like a short one. The trip counts of the inner loops, all of which
            # are followed, determine the fill at which it ends.
            wanted = (*range(course.addresses + 2), course.kept)
        return {min(max(one, low), high) for one in wanted if one >= low or one == course.kept}

    def _min_trip_count(self, extent: Expr) -> int:
        """The minimum trip count by the bounds of named values, if each value is proved to respect the lower bound of its name."""
        named = [(var, self.access_trace.lets[var.name]) for var in extent.variables() if var.name in self.access_trace.lets]
        kept = all(value.low >= var.low or (var.low == 0 and less_a_minimum(value)) for var, value in named)
        return extent.low if kept else 0

    def _trip_counts_of_blocks(self, extent: Expr) -> set[int] | None:
        """The trip counts of a loop in the blocks of a grid of known size."""
        grid = constant(self.access_trace.kernel.grid)
        if grid is None or grid > MANY or self.access_trace.roots(extent) != {"block"}:
            return None
        lengths = self.access_trace.frame([("block", np.arange(grid))]).full(extent)
        return {max(int(one), 0) for one in distinct(lengths)}

    def mark_undecided(self, loop: For, why: str) -> None:
        """Record for all buffers that a loop accesses why they are undecided."""
        for use in self.inside[id(loop)]:
            self.undecided.setdefault(use.access.buffer, why)

    def mark_all_undecided(self, why: str) -> None:
        """Record for all buffers why they are undecided."""
        for use in self.uses:
            self.undecided.setdefault(use.access.buffer, why)

    # -------------------------------------------------------------------------------------- the iterations to follow

    def iterations(self, loop: For, fixed: Mapping[str, int], lengths: Lengths) -> Sequence[int]:
        """The values of an ordered loop that decide for all of them, restricted to the values that the loop takes."""
        values = self._iterations(loop, fixed, lengths)
        if loop.step == 1 and not loop.first:
            return values
        return [value for value in values if value >= loop.first and (value - loop.first) % loop.step == 0]

    def _iterations(self, loop: For, fixed: Mapping[str, int], lengths: Lengths) -> Sequence[int]:
        if id(loop) in self.varying_tiles:
            return self._iterations_of_tiles(loop, fixed, lengths[SEQUENCE_PART])
        extent = self.opened(loop.extent)
        if extent in lengths:
            return range(lengths[extent])
        if any(side in lengths for side in _sides(extent)):  # it runs the first iterations of another loop
            extent = at_lengths(extent, {other: as_expr(length) for other, length in lengths.items() if other is not SEQUENCE_PART})
        extent = at_lengths(extent, self.tile_lengths) if self.tile_lengths else extent
        number = constant(extent)
        try:
            count = max(int(compiled(extent)(fixed)) if number is None else number, 0)
        except KeyError as unknown_name:
            self.mark_all_undecided(f"the trip count of loop {loop.var} depends on {unknown_name.args[0]}, which is known only at run time")
            return range(1)
        course = self.course(loop)
        if count <= course.kept + (course.period or 1):
            return range(count)
        if course.period is not None:
            every = [self._changes(one, fixed, count) for one in self._same_in_all_roles(loop)]
            changes = np.unique(np.concatenate(every)) if len(every) > 1 else every[0]
            # Some roles execute the last iteration of a loop, and others count up to it.
            values = _without_repetitions(np.union1d(changes, [count - 1]) if self.alternating else changes, count, course)
            if len(values) <= MOST_ITERATIONS:
                return values
        if count > MOST_ITERATIONS:
            self.mark_undecided(loop, f"the {count} iterations of loop {loop.var} are all different, but the limit is {MOST_ITERATIONS}")
        return range(min(count, MOST_ITERATIONS))

    def _iterations_of_tiles(self, loop: For, fixed: Mapping[str, int], number: int) -> Sequence[int]:
        """The iterations in which a block executes one part of a tile sequence, and of the following ones those that decide for all."""
        tiles, course = self.varying_tiles[id(loop)], self.course(loop)
        tile_count, count = len(tiles.part(number)), tiles.iterations(number)
        if course.period is None or count <= tile_count + course.kept:
            return range(count)
        changes = [self._changes(other, fixed, count) for other in self._same_in_all_roles(loop)]
        return _without_repetitions(np.unique(np.concatenate((np.arange(1, tile_count + 1), *changes))), count, course)

    def _changes(self, loop: For, fixed: Mapping[str, int], count: int) -> Array:
        """The iterations that differ from the previous one in the active threads, or in the trip count of an inner loop."""
        if count > MOST_COMPARED:
            return self._changes_of_steps(loop, fixed, count)
        changed = np.zeros(count, dtype=bool)
        for value in self._conditions(loop):
            axes = self._axes(loop, value, fixed)
            if axes is None:
                continue
            size = max(MANY // max(math.prod(len(values) for _, values in axes), 1), 2)
            for start in range(0, count, size - 1):
                numbers = np.arange(start, min(start + size, count))
                rows = self.access_trace.frame([(loop.var.name, numbers), *axes], dict(fixed)).full(value).reshape(len(numbers), -1)
                changed[numbers[1:]] |= (rows[1:] != rows[:-1]).any(axis=1)
        return np.flatnonzero(changed)

    def _changes_of_steps(self, loop: For, fixed: Mapping[str, int], count: int) -> Array:
        """The same for a loop with too many iterations to compare each: a comparison of values that move by equal steps changes once."""
        positions: list[Array] = []
        for value in self._conditions(loop):
            axes = self._axes(loop, value, fixed)
            if axes is None:
                continue
            opened = self.access_trace.opened(value)
            step = _coefficient(opened.left - opened.right, loop.var) if isinstance(opened, Less) else None
            if step is None or not isinstance(opened, Less):
                self.mark_undecided(loop, f"{value} may change in each of the {count} iterations of loop {loop.var}")
            elif step:
                first = self.access_trace.frame([(loop.var.name, np.zeros(1, dtype=np.int64)), *axes], dict(fixed)).full(
                    opened.left - opened.right
                )
                positions.append(np.unique(-(first // step) if step > 0 else first // -step + 1))
        changes = np.unique(np.concatenate([np.zeros(0, dtype=np.int64), *positions]))
        return changes[(changes > 0) & (changes < count)]

    def _conditions(self, loop: For) -> Iterable[Expr]:
        conditions = [part for use in self.inside[id(loop)] for part in self._conditions_of(use)]
        extents = [one.extent for one in statements(loop.body) if isinstance(one, For)]
        return dict.fromkeys(part for part in (*conditions, *extents) if loop.var.name in self.access_trace.roots(part))

    def _conditions_of(self, use: Use) -> Iterable[Expr]:
        """The conditions of a statement, and those of single elements of an access."""
        if id(use) not in self.conditions_of:
            self.conditions_of[id(use)] = (
                *conjuncts(use.statement.performed),
                *dict.fromkeys(condition for condition, _ in element_tests(use)),
            )
        return self.conditions_of[id(use)]

    def _axes(self, loop: For, value: Expr, fixed: Mapping[str, int]) -> list[tuple[str, Array]] | None:
        """All values of the other names in a condition; None if those include the block or a size, in which case the condition is assumed
        to hold.
        """
        ranges: dict[str, Array | range] = {"thread": self.access_trace.threads}
        for stmt in statements(loop.body):
            if isinstance(stmt, For):
                ranges[stmt.var.name] = range(self._max_trip_count(stmt))
        free = self.access_trace.roots(value) - {loop.var.name} - set(fixed)
        if not free <= set(ranges):
            return None
        if math.prod(len(ranges[name]) for name in free) > MOST_COMPARED:
            self.mark_undecided(loop, f"{value} has more than {MOST_COMPARED} values in an iteration of loop {loop.var}")
            return None
        return [(name, np.asarray(ranges[name])) for name in sorted(free)]

    def _max_trip_count(self, loop: For) -> int:
        """The maximum trip count of a loop, or the number of iterations that are followed if it is known only at run time."""
        extent = self.access_trace.opened(loop.extent)
        at_run_time = not self.access_trace.roots(extent).isdisjoint(self.access_trace.symbols | {"block"})
        course = self.course(loop)
        return max(course.kept + (course.period or 1) if at_run_time else extent.high, 0)

    def is_trusted(self, condition: Expr, loops: Iterable[For]) -> bool:
        """Whether the value of a condition in the followed iterations holds for all: False if it may begin to hold later in a loop with a
        run-time trip count.
        """
        for loop in loops:
            extent = self.access_trace.opened(loop.extent)
            at_run_time = not self.access_trace.roots(extent).isdisjoint(self.access_trace.symbols | {"block"})
            if at_run_time and loop.var.name in self.access_trace.roots(condition):
                opened = self.access_trace.opened(condition)
                step = _coefficient(opened.left - opened.right, loop.var) if isinstance(opened, Less) else None
                if step is None or step < 0:
                    return False
        return True


def decided(condition: Expr, access_trace: AccessTrace, fixed: Mapping[str, int], lengths: Lengths) -> bool | None:
    """Whether a condition holds, if ordered loops and assumed trip counts decide it; else None."""
    if access_trace.roots(condition) <= set(fixed):
        return bool(compiled(access_trace.opened(condition))(fixed))
    if isinstance(condition, Less) and access_trace.roots(condition.left) <= set(fixed):
        length = lengths.get(access_trace.opened(condition.right))
        return None if length is None else bool(compiled(access_trace.opened(condition.left))(fixed) < length)
    return None


def _sides(extent: Expr) -> tuple[Expr, ...]:
    """The two sides of an extent that is the minimum of a constant and a run-time trip count; else none."""
    sides = (extent.left, extent.right) if isinstance(extent, Min) else ()
    return sides if any(constant(side) is not None for side in sides) else ()


def _without_repetitions(changes: Array, count: int, course: LoopCourse) -> list[int]:
    """The iterations that remain if each run of equal iterations is cut."""
    kept, period = course.kept, course.period or 1
    ends = [0, *(int(one) for one in changes), count]
    values: list[int] = []
    for start, end in itertools.pairwise(ends):
        cut = max(end - start - kept, 0) // period * period
        values += [*range(start, min(start + kept, end)), *range(min(start + kept, end) + cut, end)]
    return values


def _periods(value: Expr, var: Var) -> Iterable[int]:
    """Candidates for a period: the divisor of each remainder, times earlier divisors."""
    for child in value.children:
        if var in child.variables():
            yield from _periods(child, var)
    size = constant(value.right) if isinstance(value, Mod) else None
    if size is not None and var in value.variables():
        yield size * math.lcm(*_divisors(value, var))


def _divisors(value: Expr, var: Var) -> Iterable[int]:
    yield 1
    for child in value.children:
        if var in child.variables():
            yield from _divisors(child, var)
    if isinstance(value, FloorDiv) and var in value.left.variables():
        yield constant(value.right) or 1


def _coefficient(part: Expr, var: Var) -> int | None:
    """The step of a coordinate from one iteration to the next, if it is constant; else None."""
    result = 0
    for atoms, coefficient in linear(part)[0]:
        if atoms == (var,):
            result = coefficient
        elif any(var in atom.variables() for atom in atoms):
            return None
    return result
