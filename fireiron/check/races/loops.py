"""Which iterations of a loop decide about all of them.

A loop in which nothing orders threads is taken as a whole: a union over its values. The others are followed in order. Where
addresses repeat after a period, a race shows within one period and the iterations for which copies may be under way, so a run of
equal iterations is cut to that many, at the same place in the period; where they move on in equal steps, it is cut to as many
as can meet. Loops of a length known only at run time are followed for each of these lengths. What is neither is undecided.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

import attrs
import numpy as np

from fireiron.check.access_trace import MANY, AccessTrace, Array, Use, distinct, less_a_minimum, linear
from fireiron.check.races.footprints import Footprints, element_tests
from fireiron.check.races.lengths import at_lengths
from fireiron.check.races.tiles import SEQUENCE_PART, opened, tile_lengths, varying_tiles
from fireiron.ir import Acquire, Barrier, Commit, Exec, Fence, For, Release, Wait, located, statements
from fireiron.values.expr import Expr, FloorDiv, Less, Min, Mod, Var, as_expr, compiled, conjuncts, constant

MOST_ITERATIONS = 4096
"""Most iterations of a loop that are all followed if they all differ."""

MOST_COMPARED = 1 << 24
"""Most iterations of a loop, or values of a condition, that are all compared."""

LONGEST_PERIOD = 64
"""Longest period of addresses, in iterations; longer ones count as not repeating."""

MOST_LENGTHS = 512
"""Most combinations of run-time loop lengths that are followed."""

ORDERING = (Barrier, Commit, Wait, Fence, Acquire, Release)
"""The statements that order accesses."""

Lengths = Mapping[Expr, int]


@attrs.frozen(eq=False)
class Course:
    """How a loop in order runs: after `period` iterations addresses repeat, or move by equal steps (`moves`), or neither
    (`period` None); `kept` equal iterations decide about any number of them; `varies` if anything depends on the iteration.
    `addresses` is the period without the turns of rings, which loops inside may count too.
    """

    period: int | None
    moves: bool
    kept: int
    varies: bool
    addresses: int = 1


@attrs.frozen(eq=False)
class Nested:
    """A loop of an unknown length inside another: which of their lengths decide together.

    Agents in a ring, and copies under way, are no more than `window` iterations of the inner loop apart, and behind `period` of them all is
    as before. So where the inner loop is longer than the window, two of its ends are never in sight of each other: what an end does depends
    on where in the period it is, and on the addresses of the outer loop. Where those stay, the first end of each of `period` lengths shows
    all of it, in `few` outer iterations; a long run of the outer loop needs the shorter ones alone, in which ends meet. Where outer
    addresses change (`few` above 2), long runs need those `period` lengths too. Lengths beyond are those with more turns between their
    ends: one outer iteration follows them to each end of the kernel.
    """

    outer: Expr
    few: int
    inner: Expr
    window: int
    period: int

    def is_new(self, lengths: Lengths) -> bool:
        """Whether a combination of lengths shows what no shorter one does."""
        outer, inner = lengths[self.outer], lengths[self.inner]
        if outer <= 1 or inner <= self.window:
            return True
        return inner <= self.window + self.period and (outer <= self.few or self.few > 2)


class Loops:
    """The loops of a kernel around accesses to memory that threads share."""

    def __init__(self, access_trace: AccessTrace, places: Footprints, uses: Sequence[Use]) -> None:
        self.access_trace, self.places, self.uses = access_trace, places, uses
        self.undecided: dict[str, str] = {}
        self.tested: dict[int, tuple[Expr, ...]] = {}
        around = [(one, [other for other in outer if isinstance(other, For)]) for one, outer in located(access_trace.kernel.body)]
        self.all = {id(one): (one, *outer) for one, outer in around if isinstance(one, For)}
        self.inside = {id(one): [use for use in uses if any(loop is one for loop in use.loops)] for one, *_ in self.all.values()}
        self.ordered = {id(one) for one, *_ in self.all.values() if self._is_ordered(one)}
        self.in_turns = any(one.step > 1 for one, *_ in self.all.values())
        self.course = functools.lru_cache(maxsize=None)(self._common_course)
        self.varying_tiles = varying_tiles(access_trace, self.course)
        self.tiles = frozenset(one.tile.name for one in self.varying_tiles.values())
        self.tile_lengths = tile_lengths(self.varying_tiles.values())

    def in_order(self, loops: Iterable[For]) -> frozenset[str]:
        """The names of those loops that are followed one iteration after the other."""
        return frozenset(loop.var.name for loop in loops if id(loop) in self.ordered)

    def opened(self, value: Expr) -> Expr:
        """An expression over loops, numbers of tiles that are chosen, and what is known at run time only."""
        return opened(self.access_trace, value, self.tiles) if self.tiles else self.access_trace.opened(value)

    # -------------------------------------------------------------------------------------- as a whole, or in order

    def _is_ordered(self, loop: For) -> bool:
        """Whether the order of iterations matters, or they are too many to take as a whole."""
        parts = (loop, *statements(loop.body))
        if any(isinstance(one, ORDERING) or (isinstance(one, For) and constant(one.extent) is None) for one in parts):
            return True
        uses = self.inside[id(loop)]
        if any(use.statement.collective or (use.access.spread and use.access.write) for use in uses):
            return True
        copies = [use for use in uses if use.statement.asynchronous]
        if copies and (len(copies) < len(uses) or not all(self._moves_with(loop, use) for use in copies)):
            return True
        return any(self._points(loop, use) > MANY for use in uses)

    def _moves_with(self, loop: For, use: Use) -> bool:
        return loop.var.name in self.access_trace.needs(self.places.parts(use.access))

    def _points(self, loop: For, use: Use) -> int:
        position = next(number for number, one in enumerate(use.loops) if one is loop)
        counts = (constant(one.extent) or 1 for one in use.loops[position:])
        return math.prod(counts) * self.access_trace.kernel.workers * len(use.access.elements())

    # -------------------------------------------------------------------------------------- how a loop runs

    def _common_course(self, loop: For) -> Course:
        """The course of a loop, one for all roles that have it: each follows the turns that another waits for."""
        alike = self._alike(loop)
        if len(alike) == 1:
            return self._course(loop)
        courses = [self._course(one) for one in alike]
        steps = [one.step for one in alike]
        period = None if any(one.period is None for one in courses) else math.lcm(*steps, *(one.period or 1 for one in courses))
        kept = (period or 1) + max(period or 1, *(one.kept - (one.period or 1) - 2 for one in courses)) + 2
        addresses = math.lcm(*steps, *(one.addresses for one in courses))
        return Course(period, any(one.moves for one in courses), kept, any(one.varies for one in courses), addresses)

    def _alike(self, loop: For) -> list[For]:
        """A loop as all roles have it."""
        if not self.access_trace.kernel.rings:
            return [loop]
        return [one for one, *_ in self.all.values() if (one.var, one.extent) == (loop.var, loop.extent)]

    def _course(self, loop: For) -> Course:
        moving = [use for use in self.inside[id(loop)] if loop.var.name in self.access_trace.needs(self.places.parts(use.access))]
        groups = max((one.groups for one in statements(loop.body) if isinstance(one, Wait)), default=0)
        period: int | None = 1
        moves = False
        for space in dict.fromkeys(self._space(use) for use in moving):
            repeats = self._period([use for use in moving if self._space(use) == space], loop.var)
            reach = None if repeats is not None else self._reach(space, loop)
            moves = moves or reach is not None
            groups = max(groups, reach or 0)
            period = math.lcm(period, repeats or 1) if period is not None and (repeats or reach) is not None else None
        addresses = period or 1
        for one in statements(loop.body):
            if isinstance(one, (Acquire, Release)) or (isinstance(one, Exec) and one.ring):
                # A barrier in memory tells of rounds by their parity alone, and counts the bytes of each turn.
                rounds = 2 * self.access_trace.kernel.ring(one.ring).stages
                step = _coefficient(self.access_trace.opened(one.fill_index), loop.var)
                period = math.lcm(period or 1, rounds // math.gcd(rounds, step or 1))
        kept = (period or 1) + max(period or 1, groups) + 2
        varies = bool(moving) or any(True for _ in self._conditions(loop))
        return Course(period, moves, kept, varies, addresses)

    def _period(self, uses: Sequence[Use], var: Var) -> int | None:
        """After how many iterations all addresses repeat, if they do soon."""
        parts = {self.access_trace.opened(part) for use in uses for part in self.places.parts(use.access)}
        parts = {part for part in parts if var in part.variables()}
        if any(_coefficient(part, var) for part in parts):  # equal steps come back to no place
            return None
        sizes = {one for part in parts for one in _periods(part, var)}
        period = math.lcm(*sizes) if sizes else 1
        free = Var(var.name, var.low, var.high + period)
        if period > LONGEST_PERIOD or any(part.substitute({var: free + period}) != part.substitute({var: free}) for part in parts):
            return None
        return period

    def _space(self, use: Use) -> str:
        return "" if self.places.space(use.access.buffer).shared else use.access.buffer

    def _reach(self, space: str, loop: For) -> int | None:
        """How many iterations hold all pairs that meet, where each moves all accesses of a space by the same steps, and no other
        statement touches it.
        """
        uses = [use for use in self.uses if self._space(use) == space]
        if not space or any(all(one is not loop for one in use.loops) for use in uses):
            return None
        parts = [[self.access_trace.opened(part) for part in self.places.parts(use.access)] for use in uses]
        steps = {tuple(_coefficient(part, loop.var) for part in one) for one in parts}
        if len(steps) > 1 or None in (amounts := steps.pop()):
            return None
        found = []
        for dim, step in enumerate(amounts):
            if step:
                # Two iterations meet in a dimension only while they are no further apart than its accesses reach.
                rests = [one[dim] - loop.var * step for one in parts]
                last = max(use.access.reach[dim] for use in uses)
                found.append((max(one.high for one in rests) - min(one.low for one in rests) + last + 1) // abs(step) + 1)
        reach = min(found, default=None)
        return None if reach is None or reach > LONGEST_PERIOD else reach

    # -------------------------------------------------------------------------------------- lengths known at run time

    def lengths(self) -> list[Lengths]:
        """Numbers of iterations, by extent, for the loops whose length is known only at run time."""
        found: dict[Expr, set[int]] = {}
        for loop, *outer in self.all.values():
            extent = self.opened(loop.extent)
            if id(loop) in self.varying_tiles:
                found[SEQUENCE_PART] = set(range(self.varying_tiles[id(loop)].pieces))
            if id(loop) in self.varying_tiles or any(var.name in self.tiles for var in extent.variables()):
                continue
            if not self.matters(loop) or constant(extent) is not None or self.access_trace.roots(extent) <= self.in_order(outer):
                continue
            if not self.access_trace.roots(extent).isdisjoint(one.var.name for one in outer):
                self.doubt(loop, f"the length {extent} of loop {loop.var} depends on another loop and on what is known at run time only")
            found[extent] = found.get(extent, set()) | self._lengths_of(loop, extent)
        found = {extent: counts for extent, counts in found.items() if found.keys().isdisjoint(_sides(extent))}
        if math.prod(len(one) for one in found.values()) > MOST_LENGTHS:
            for loop, *_ in self.all.values():
                if self.access_trace.opened(loop.extent) in found:
                    self.doubt(loop, f"{' x '.join(str(len(one)) for one in found.values())} combinations of loop lengths matter")
            found = {extent: {max(counts)} for extent, counts in found.items()}
        nested = [one for loop, *_ in self.all.values() for one in self._nested(loop, found)]
        combinations = (dict(zip(found, one, strict=True)) for one in itertools.product(*(sorted(counts) for counts in found.values())))
        return [one for one in combinations if all(pair.is_new(one) for pair in nested)]

    def _nested(self, outer: For, found: Mapping[Expr, set[int]]) -> Iterator[Nested]:
        """The loops of such lengths inside a loop of such a length, as far as the lengths that stand for others are followed."""
        extent = self.opened(outer.extent)
        if extent not in found:
            return
        few = self.course(outer).addresses + 1
        if not found[extent] >= set(range(1, few + 1)):
            return
        inside = {self.opened(one.extent) for one in statements(outer.body) if isinstance(one, For)}
        for length in [one for one in found if one in inside and one != extent]:
            courses = [self.course(one) for one, *_ in self.all.values() if self.opened(one.extent) == length]
            window = max(one.kept - (one.period or 1) for one in courses)
            period = math.lcm(*(one.period or 1 for one in courses))
            if found[length] >= set(range(1, window + period + 1)):
                yield Nested(extent, few, length, window, period)

    def matters(self, loop: For) -> bool:
        """Whether anything in a loop touches memory that threads share, or orders threads."""
        return bool(self.inside[id(loop)]) or any(isinstance(one, ORDERING) for one in statements(loop.body))

    def _lengths_of(self, loop: For, extent: Expr) -> set[int]:
        course = self.course(loop)
        low, high = max(extent.low, self._least(loop.extent), 0), extent.high
        known = self._of_blocks(extent)
        if known is None and high <= course.kept:
            known = set(range(low, high + 1))
        # Few iterations are followed one by one, whatever their addresses are.
        if course.period is None and (known is None or max(known, default=0) > course.kept):
            self.doubt(loop, f"loop {loop.var} runs {extent} times, and its addresses neither repeat nor move by equal steps")
        if known is not None:
            period = course.period or 1
            return {one if one <= course.kept + period else course.kept + (one - course.kept) % period for one in known}
        counts = (course.varies and not course.moves) or any(isinstance(one, (Commit, Wait)) for one in statements(loop.body))
        wanted: Iterable[int] = range(course.kept + (course.period or 1)) if counts else (0, course.kept)
        if counts and any(isinstance(one, For) and constant(self.access_trace.opened(one.extent)) is None for one in statements(loop.body)):
            # A run of fewer rounds begins like one of more, and ends as one of a few does: at which turn of a ring, the lengths of
            # the loops inside say, and all of those are followed.
            wanted = (*range(course.addresses + 2), course.kept)
        return {min(max(one, low), high) for one in wanted if one >= low or one == course.kept}

    def _least(self, extent: Expr) -> int:
        """The least length that named values say, where each of them is proved to be as large as its name says."""
        named = [(var, self.access_trace.lets[var.name]) for var in extent.variables() if var.name in self.access_trace.lets]
        kept = all(value.low >= var.low or (var.low == 0 and less_a_minimum(value)) for var, value in named)
        return extent.low if kept else 0

    def _of_blocks(self, extent: Expr) -> set[int] | None:
        """The lengths of a loop that differ from block to block, in a grid of known size."""
        grid = constant(self.access_trace.kernel.grid)
        if grid is None or grid > MANY or self.access_trace.roots(extent) != {"block"}:
            return None
        lengths = self.access_trace.frame([("block", np.arange(grid))]).full(extent)
        return {max(int(one), 0) for one in distinct(lengths)}

    def doubt(self, loop: For, why: str) -> None:
        """Note for all buffers that are touched in a loop why they are not decided."""
        for use in self.inside[id(loop)]:
            self.undecided.setdefault(use.access.buffer, why)

    def doubt_all(self, why: str) -> None:
        """Note for all buffers why they are not decided."""
        for use in self.uses:
            self.undecided.setdefault(use.access.buffer, why)

    # -------------------------------------------------------------------------------------- the iterations to follow

    def iterations(self, loop: For, fixed: Mapping[str, int], lengths: Lengths) -> Sequence[int]:
        """The values of a loop in order, in its course, that decide about all of them; of one that takes turns with others, or
        begins later than those, its own.
        """
        found = self._iterations(loop, fixed, lengths)
        if loop.step == 1 and not loop.first:
            return found
        return [one for one in found if one >= loop.first and (one - loop.first) % loop.step == 0]

    def _iterations(self, loop: For, fixed: Mapping[str, int], lengths: Lengths) -> Sequence[int]:
        if id(loop) in self.varying_tiles:
            return self._turns_of_tiles(loop, fixed, lengths[SEQUENCE_PART])
        extent = self.opened(loop.extent)
        if extent in lengths:
            return range(lengths[extent])
        if any(side in lengths for side in _sides(extent)):  # it takes the first turns of another loop
            extent = at_lengths(extent, {other: as_expr(length) for other, length in lengths.items() if other is not SEQUENCE_PART})
        extent = at_lengths(extent, self.tile_lengths) if self.tile_lengths else extent
        number = constant(extent)
        try:
            count = max(int(compiled(extent)(fixed)) if number is None else number, 0)
        except KeyError as unknown_name:
            self.doubt_all(f"how often loop {loop.var} runs depends on {unknown_name.args[0]}, which is known at run time only")
            return range(1)
        course = self.course(loop)
        if count <= course.kept + (course.period or 1):
            return range(count)
        if course.period is not None:
            every = [self._changes(one, fixed, count) for one in self._alike(loop)]
            changes = np.unique(np.concatenate(every)) if len(every) > 1 else every[0]
            # Roles name the last turn of a loop, which some follow and others count to.
            found = _shortened(np.union1d(changes, [count - 1]) if self.in_turns else changes, count, course)
            if len(found) <= MOST_ITERATIONS:
                return found
        if count > MOST_ITERATIONS:
            self.doubt(loop, f"loop {loop.var} runs {count} times, and its iterations are all different")
        return range(min(count, MOST_ITERATIONS))

    def _turns_of_tiles(self, loop: For, fixed: Mapping[str, int], number: int) -> Sequence[int]:
        """The turns at which a block takes a piece of a sequence of tiles, and of those behind it what decides about all."""
        one, course = self.varying_tiles[id(loop)], self.course(loop)
        new, count = len(one.piece(number)), one.turns(number)
        if course.period is None or count <= new + course.kept:
            return range(count)
        every = [self._changes(other, fixed, count) for other in self._alike(loop)]
        return _shortened(np.unique(np.concatenate((np.arange(1, new + 1), *every))), count, course)

    def _changes(self, loop: For, fixed: Mapping[str, int], count: int) -> Array:
        """The iterations that differ from the one before in which threads are active, or in the length of a loop inside."""
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
        """The same for a loop of so many iterations that nobody looks at each: a comparison of what moves by equal steps changes once."""
        found: list[Array] = []
        for value in self._conditions(loop):
            axes = self._axes(loop, value, fixed)
            if axes is None:
                continue
            opened = self.access_trace.opened(value)
            step = _coefficient(opened.left - opened.right, loop.var) if isinstance(opened, Less) else None
            if step is None or not isinstance(opened, Less):
                self.doubt(loop, f"loop {loop.var} runs {count} times, and {value} may change in each of them")
            elif step:
                first = self.access_trace.frame([(loop.var.name, np.zeros(1, dtype=np.int64)), *axes], dict(fixed)).full(
                    opened.left - opened.right
                )
                found.append(np.unique(-(first // step) if step > 0 else first // -step + 1))
        changes = np.unique(np.concatenate([np.zeros(0, dtype=np.int64), *found]))
        return changes[(changes > 0) & (changes < count)]

    def _conditions(self, loop: For) -> Iterable[Expr]:
        conditions = [part for use in self.inside[id(loop)] for part in self._tested(use)]
        extents = [one.extent for one in statements(loop.body) if isinstance(one, For)]
        return dict.fromkeys(part for part in (*conditions, *extents) if loop.var.name in self.access_trace.roots(part))

    def _tested(self, use: Use) -> Iterable[Expr]:
        """The conditions of a statement, and those of single elements of an access."""
        if id(use) not in self.tested:
            self.tested[id(use)] = (*conjuncts(use.statement.performed), *dict.fromkeys(condition for condition, _ in element_tests(use)))
        return self.tested[id(use)]

    def _axes(self, loop: For, value: Expr, fixed: Mapping[str, int]) -> list[tuple[str, Array]] | None:
        """All values of what else a condition depends on, or None where that is the block or a size: there it is taken as true."""
        ranges: dict[str, Array | range] = {"thread": self.access_trace.threads}
        for one in statements(loop.body):
            if isinstance(one, For):
                ranges[one.var.name] = range(self._most(one))
        free = self.access_trace.roots(value) - {loop.var.name} - set(fixed)
        if not free <= set(ranges):
            return None
        if math.prod(len(ranges[name]) for name in free) > MOST_COMPARED:
            self.doubt(loop, f"{value} has more values in an iteration of loop {loop.var} than are looked at")
            return None
        return [(name, np.asarray(ranges[name])) for name in sorted(free)]

    def _most(self, loop: For) -> int:
        """The most iterations of a loop that are followed, or that there are."""
        extent = self.access_trace.opened(loop.extent)
        at_run_time = not self.access_trace.roots(extent).isdisjoint(self.access_trace.symbols | {"block"})
        course = self.course(loop)
        return max(course.kept + (course.period or 1) if at_run_time else extent.high, 0)

    def is_trusted(self, condition: Expr, loops: Iterable[For]) -> bool:
        """Whether what a condition says in the iterations that are followed holds for all: false for one that may begin to hold later
        in a loop of a length known at run time only.
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
    """Whether a condition holds, where loops in order and assumed lengths say so."""
    if access_trace.roots(condition) <= set(fixed):
        return bool(compiled(access_trace.opened(condition))(fixed))
    if isinstance(condition, Less) and access_trace.roots(condition.left) <= set(fixed):
        length = lengths.get(access_trace.opened(condition.right))
        return None if length is None else bool(compiled(access_trace.opened(condition.left))(fixed) < length)
    return None


def _sides(extent: Expr) -> tuple[Expr, ...]:
    """What an extent is the smaller of, a number and a length known at run time only; none of others."""
    sides = (extent.left, extent.right) if isinstance(extent, Min) else ()
    return sides if any(constant(side) is not None for side in sides) else ()


def _shortened(changes: Array, count: int, course: Course) -> list[int]:
    """The iterations that are left when each run of equal ones is cut."""
    kept, period = course.kept, course.period or 1
    ends = [0, *(int(one) for one in changes), count]
    values: list[int] = []
    for start, end in itertools.pairwise(ends):
        cut = max(end - start - kept, 0) // period * period
        values += [*range(start, min(start + kept, end)), *range(min(start + kept, end) + cut, end)]
    return values


def _periods(value: Expr, var: Var) -> Iterable[int]:
    """Candidates for a period: the size of each remainder, times what it was divided by before."""
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
    """The step of a coordinate from an iteration to the next, if it is always the same."""
    found = 0
    for atoms, coefficient in linear(part)[0]:
        if atoms == (var,):
            found = coefficient
        elif any(var in atom.variables() for atom in atoms):
            return None
    return found
