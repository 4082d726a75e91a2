"""Check that no access leaves its buffer, for all run-time sizes.

Three proofs show that a coordinate in global memory is below its extent: the ranges of its variables; the largest values of loop variables
and of digits of the block index, as exact expressions of the sizes; or a condition of the access that compares it with the extent. If these
do not decide, all values are enumerated, provided they are static. An access that is not proved in bounds is an error, with a
counterexample if one is found.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fireiron.check.access_trace import MANY, AccessTrace, Array, Frame, Use, less_a_minimum, linear, product
from fireiron.check.data_dependent_loops import max_trip_count
from fireiron.check.finding import Finding, described, line_of
from fireiron.check.index_width import beyond_64_bits
from fireiron.check.persistence import persistence
from fireiron.check.table_indices import wrong_tables
from fireiron.check.windows import wrong_windows
from fireiron.frozen import evolve
from fireiron.ir import Buffer, For, Piece, inside, statements
from fireiron.values.expr import (
    FALSE,
    TRUE,
    ZERO,
    Expr,
    FloorDiv,
    Less,
    Min,
    Mod,
    Positive,
    Var,
    as_expr,
    conjuncts,
    constant,
    floordiv,
    less,
)
from fireiron.values.layout import Swizzle
from fireiron.values.tensor import Storage


def check_bounds(access_trace: AccessTrace) -> tuple[Finding, ...]:
    """All accesses that are not proved in bounds, all named values that may leave their range, and indices that may exceed 64 bits."""
    return (*_Bounds(access_trace).findings(), *wrong_tables(access_trace), *wrong_windows(access_trace), *beyond_64_bits(access_trace))


class _Bounds:
    """Checks the accesses of a kernel one by one. `proved` and `range_kept` cache results."""

    def __init__(self, access_trace: AccessTrace) -> None:
        self.access_trace = access_trace
        self.kernel = access_trace.kernel
        loops = [one for one in statements(self.kernel.body) if isinstance(one, For)]
        self.persistence = persistence(self.kernel)
        self.counts = {"block": self.kernel.grid, **{one.tile.var.name: one.tiles for one in self.persistence}}
        # A block executes no more iterations than there are tiles.
        self.limited_tile_loops = {one.loop.var.name for one in self.persistence if self._upper_limit(one.tiles) - 1 <= one.loop.var.high}
        self.lengths = {"thread": ZERO + self.kernel.workers, "block": self._blocks()}
        extents = {one.var.name: one.extent for one in loops}
        self.extents = {name: max_trip_count(extent) for name, extent in extents.items()}
        self.loops_of_equal_name = {one.var.name for one in loops if one.extent != extents[one.var.name]}
        self.proved: dict[tuple[Expr, Expr], bool] = {}
        self.range_kept: dict[tuple[Var, tuple[int, ...]], bool] = {}
        self.counts_down_from_one_or_more = functools.cache(self._counts_down_from_one_or_more)

    def _blocks(self) -> Expr:
        """The number of blocks; a launch cannot exceed the target's limit."""
        limit = self.kernel.architecture.grid_x
        return self.kernel.grid if self.kernel.grid.high <= limit else ZERO + limit

    def findings(self) -> Iterator[Finding]:
        """One finding for each access and dimension, or address."""
        for use in itertools.chain.from_iterable(map(_versions, self.access_trace.uses)):
            buffer = self.kernel.buffer(use.access.buffer)
            if use.statement.active == FALSE or buffer.memory.is_coordinate:
                continue
            if self.loops_of_equal_name:
                self._enter(use.loops)
            self.trusted = self._trusts(use)
            if buffer.memory.of_grid:
                yield from self._in_global(use)
            elif not (buffer.memory.private and (use.statement.collective or not any(buffer.storage.dims))):
                yield from self._in_buffer(use)

    def _enter(self, loops: Sequence[For]) -> None:
        """Use the extents of these loops from now on, because consecutive loops may have the same name."""
        if not self.loops_of_equal_name.isdisjoint(one.var.name for one in loops):
            self.extents = self.extents | {one.var.name: max_trip_count(one.extent) for one in loops}
            self.proved = {}

    # -------------------------------------------------------------------------------------- named values

    def _trusts(self, use: Use) -> bool:
        """Whether all ranges that this access relies on hold under its statement's condition."""
        values = use.access.expressions()
        names = {var for value in values for var in self._closure(value)}
        return all(map(self.counts_down_from_one_or_more, values)) and all(self._keeps_range(var, use) for var in names)

    def _closure(self, value: Expr) -> set[Var]:
        names = set(value.variables())
        for var in value.variables():
            if var.name in self.access_trace.lets:
                names |= self._closure(self.access_trace.lets[var.name])
        return names

    def _keeps_range(self, var: Var, use: Use) -> bool:
        """Whether a variable stays in its declared range at an access."""
        length = self.extents.get(var.name, self.lengths.get(var.name))
        if length is not None:  # threads, blocks and iterations count from 0, regardless of the declared range
            return var.low <= 0 and (length.high - 1 <= var.high or var.name in self.limited_tile_loops)
        value = self.access_trace.lets.get(var.name)
        if value is None:
            return True
        if not self.counts_down_from_one_or_more(value):
            return False
        below = value.high <= var.high or self._implied(conjuncts(use.statement.performed), value, ZERO + (var.high + 1))
        if below and value.low >= var.low:
            return True
        key = (var, tuple(map(id, use.loops)))
        if key not in self.range_kept:
            self.range_kept[key] = self._always_keeps_range(var, value, use.loops)
        return self.range_kept[key]

    def _always_keeps_range(self, var: Var, value: Expr, around: Sequence[For]) -> bool:
        """Whether a named value stays in the range of its variable in each iteration of the surrounding loops, unconditionally."""
        if var.name in self.counts and min(self.counts[var.name].high, self._upper_limit(self.counts[var.name])) <= var.high + 1:
            return True
        largest = self._largest_digit(value)
        if largest is not None and largest.high <= var.high and value.low >= var.low:
            return True
        if var.low == 0 and value.high <= var.high and (less_a_minimum(value) or self._nonnegative_in_loop(value, around)):
            return True
        loops = {loop.var.name: loop for loop in around if loop.var.name in self.access_trace.roots(value)}
        needed = self.access_trace.needs((value, *(loop.extent for loop in loops.values())))
        if not needed <= {"thread", "block", *loops}:
            return False
        ranges: list[tuple[str, Array | range]] = [(name, range(loop.extent.high)) for name, loop in loops.items()]
        ranges += [("block", range(constant(self.kernel.grid) or MANY))] if "block" in needed else []
        ranges += [("thread", self.access_trace.threads)] if "thread" in needed else []
        if math.prod(len(values) for _, values in ranges) > MANY:
            return False
        frame = self.access_trace.frame([(name, np.asarray(values)) for name, values in ranges])
        executed = (frame.full(less(loop.var, loop.extent)) for loop in loops.values())
        values = frame.full(value)[functools.reduce(np.logical_and, executed, np.ones(frame.shape, dtype=bool))]
        return bool(np.all((values >= var.low) & (values <= var.high)))

    def _nonnegative_in_loop(self, value: Expr, around: Sequence[For]) -> bool:
        """Whether a named value is not negative because a surrounding loop, whose extent is a minimum, executes an iteration."""
        extents = (loop.extent for loop in around)
        sides = (side for extent in extents for side in (extent.children if isinstance(extent, Min) else (extent,)))
        return any((value - side).low >= -1 for side in sides)

    def _counts_down_from_one_or_more(self, value: Expr) -> bool:
        """Whether each `Positive` part of a value, such as a size minus a digit of the block index, is at least 1 for all sizes.

        True for values without such a part.
        """
        for atoms, _ in linear(value)[0]:
            for left in (atom.value for atom in atoms if isinstance(atom, Positive)):
                digits = [
                    part[0]
                    for part, times in linear(left)[0]
                    if times == -1 and len(part) == 1 and "block" in self.access_trace.roots(part[0])
                ]
                tops = [(digit, self._largest_digit(digit)) for digit in digits]
                if any(top is None or (left + digit - top).low < 1 for digit, top in tops):
                    return False
        return True

    def _upper_limit(self, value: Expr) -> int:
        """The upper limit of a value by a fact that the launcher checks."""
        facts = (one.right for _, one in self.kernel.facts if isinstance(one, Less) and one.left == value)
        return min((limit - 1 for one in facts if (limit := constant(one)) is not None), default=value.high)

    def _largest_digit(self, value: Expr) -> Expr | None:
        """The largest value of a digit of the block or tile index, in terms of the sizes; ranges do not express it."""
        if isinstance(value, Mod):
            return value.right - 1
        if isinstance(value, Min):
            known = [side for side in value.children if side.variables() and self.access_trace.roots(side) <= self.access_trace.symbols]
            return known[0] if known else None
        if isinstance(value, Var) and value.name in self.counts:
            return self.counts[value.name] - 1
        if isinstance(value, FloorDiv):
            left: Expr = value.left
            divisor = value.right
            while isinstance(left, FloorDiv):
                divisor = divisor * left.right
                left = left.left
            if isinstance(left, Var) and left.name not in self.counts:
                left = self.access_trace.lets.get(left.name, left)
            total = left.right if isinstance(left, Mod) else self.counts.get(left.name) if isinstance(left, Var) else None
            count = None if total is None else self._quotient(total, divisor)
            return None if count is None else count - 1
        return self._largest_down(value)

    def _quotient(self, total: Expr, divisor: Expr) -> Expr | None:
        """The quotient of a number of tiles, if it is exact, else None. The known divisors of sizes are used."""
        count = floordiv(total, divisor)
        if count * divisor == total:
            return count
        units = {one: Var(f"{one.name} units", one.low // one.multiple_of, one.high // one.multiple_of) for one in self.kernel.symbols}
        in_units = {one: unit * one.multiple_of for one, unit in units.items()}
        count = floordiv(total.substitute(in_units), divisor.substitute(in_units))
        if count * divisor.substitute(in_units) != total.substitute(in_units):
            return None
        return count.substitute({unit: floordiv(one, as_expr(one.multiple_of)) for one, unit in units.items()})

    def _largest_down(self, value: Expr) -> Expr | None:
        """The largest value of a `Positive` expression that counts down from a size: its value if nothing is subtracted."""
        terms, number = linear(value)
        if len(terms) != 1 or terms[0][1] != 1 or len(terms[0][0]) != 1 or not isinstance(terms[0][0][0], Positive):
            return None
        parts, rest = linear(terms[0][0][0].value)
        highest = ZERO + rest
        for atoms, times in parts:
            part = product(atoms, times)
            highest = highest if part.high <= 0 else highest + part
        return self._largest(highest) + number

    # -------------------------------------------------------------------------------------- proofs

    def _largest(self, value: Expr, side: int | None = None) -> Expr:
        """An upper bound in terms of the sizes: loops at their last iteration, digits of the block index at their largest value.

        For a loop whose extent is a minimum of several trip counts, `side` selects the first or the last one that depends on sizes.
        """
        terms, number = linear(value)
        total: Expr = ZERO + number
        for atoms, coefficient in terms:
            atom, *others = atoms
            top = self._top(atom, side) if not others and coefficient > 0 else None
            total = total + (product(atoms, coefficient) if top is None else top * coefficient)
        return total

    def _top(self, atom: Expr, side: int | None) -> Expr | None:
        if not isinstance(atom, Var):
            return self._largest_digit(atom)
        if atom.name in self.extents:
            extent = self.extents[atom.name]
            sized = [one for one in extent.children if one.variables()] if isinstance(extent, Min) else []
            return (sized[side] if sized and side is not None else extent) - 1
        # The number of values of a tile index is known separately: its definition does not contain it.
        return self._largest_digit(atom if atom.name in self.counts else self.access_trace.lets.get(atom.name, atom))

    def _below(self, value: Expr, extent: Expr) -> bool:
        """Whether `value < extent` always holds."""
        key = (value, extent)
        if key not in self.proved:
            tops = itertools.chain((value,), (self._largest(value, side) for side in (None, 0, -1)))
            self.proved[key] = any(less(top, extent) == TRUE for top in tops)
        return self.proved[key]

    def _implied(self, conditions: Iterable[Expr], value: Expr, extent: Expr) -> bool:
        """Whether conditions imply `value < extent`."""
        spares = [_spare(one) for one in conditions if isinstance(one, Less)]
        choices = [_multiples(value, spare) for spare in spares]
        combined = itertools.islice(itertools.product(*choices), MOST_COMBINATIONS)
        # If not all combinations are tried, also try each condition alone, because one condition may suffice.
        alone = _each_alone(choices) if math.prod(map(len, choices)) > MOST_COMBINATIONS else ()
        for times in itertools.chain(combined, alone):
            highest = value
            for spare, number in zip(spares, times, strict=True):
                highest = highest + spare * number
            if self._below(highest, extent) or less(self.access_trace.opened(highest), extent) == TRUE:
                return True
        return False

    # -------------------------------------------------------------------------------------- global memory

    def _in_global(self, use: Use) -> Iterator[Finding]:
        for dim in range(len(use.access.base)):
            finding = self._in_dimension(use, dim)
            if finding is not None:
                yield finding

    def _in_dimension(self, use: Use, dim: int) -> Finding | None:
        """A finding for the coordinates along a dimension, if they are not proved in bounds."""
        base = use.access.base[dim]
        extent = self.kernel.buffer(use.access.buffer).tensor.shape[dim]
        if self.trusted and base.low >= 0 and self._below(base + use.access.reach[dim], extent):
            return None
        steps = use.access.steps(dim)
        if self.trusted and base.low >= 0 and self._proved(use, dim, base, steps, extent):
            return None
        return self._straddles_bound(use, base, steps, extent, dim) or self._enumerated(use, dim, base, steps, extent)

    def _proved(self, use: Use, dim: int, base: Expr, steps: Sequence[int], extent: Expr) -> bool:
        """Whether the tests of the pieces prove all accessed elements below the extent of a dimension."""
        last = base + use.access.reach[dim]
        outer = conjuncts(use.statement.performed)
        if use.pieces:
            return all(self._inside_with_first(piece, outer, base, steps, extent) for piece in use.pieces)
        bound = use.access.bounds[dim]
        return (bound is not None and self._below(bound, extent + 1)) or self._implied(outer, last, extent)

    def _inside_with_first(self, piece: Piece, outer: tuple[Expr, ...], base: Expr, steps: Sequence[int], extent: Expr) -> bool:
        """Whether a piece is below the extent. A test of its first element covers all elements if the piece width divides the bound."""
        part = steps[piece.first : piece.first + piece.width]
        last = base + max(part)
        conditions = (*outer, *conjuncts(piece.condition))
        if FALSE in conditions:  # it is never accessed
            return True
        return self._below(last, extent) or self._implied(conditions, last, extent)

    def _tests(self, conditions: Iterable[Expr], value: Expr, extent: Expr) -> Iterator[Less]:
        """The conditions that place a value below the extent."""
        for condition in conditions:
            if isinstance(condition, Less) and condition == less(value, condition.right) and self._below(condition.right, extent + 1):
                yield condition

    def _straddles_bound(self, use: Use, base: Expr, steps: Sequence[int], extent: Expr, dim: int) -> Finding | None:
        """A piece of several elements whose first element is tested while the others may still be out of bounds."""
        outer = conjuncts(use.statement.performed)
        for piece in use.pieces:
            first = base + steps[piece.first]
            for test in self._tests((*outer, *conjuncts(piece.condition)), first, extent):
                if piece.width == 1 or self._inside_with_first(piece, outer, base, steps, extent):
                    continue
                message = (
                    f"{use.access.buffer}: a vector of {piece.width} elements is accessed, but only its first element is tested against "
                    f"{test.right}; the others may be out of bounds, since {test.right} is not known to be a multiple of {piece.width}"
                )
                return _finding(use, message, {"dimension": dim, "bound": str(test.right), "vector": piece.width})
        return None

    # -------------------------------------------------------------------------------------- shared memory and registers

    def _in_buffer(self, use: Use) -> Iterator[Finding]:
        """Check addresses in shared memory and register indices: by ranges of coordinates, else of addresses, else by enumeration."""
        buffer = self.kernel.buffer(use.access.buffer)
        if not buffer.memory.private:
            outside = next((found for dim in range(len(use.access.base)) if (found := self._in_dimension(use, dim))), None)
            if outside is not None:
                yield outside
                return
        total = buffer.total
        if use.access.copy.low >= 0 and use.access.copy.high < buffer.tensor.copies:
            # Check the access to copy 0 instead. It is checked by its bounds, because `pieces` belong to the original access.
            use = evolve(use, access=evolve(use.access, copy=ZERO))
            total = buffer.elements
        if self.trusted and (self._by_ranges(use, buffer, total) or self._by_addresses(use, buffer, total)):
            return
        finding = self._by_enumeration(use, buffer, total)
        if finding is not None:
            yield finding

    def _by_ranges(self, use: Use, buffer: Buffer, total: Expr) -> bool:
        """Whether the largest value of each digit of the coordinates gives an address below the total."""
        access, storage = use.access, use.access.storage or buffer.storage
        if access.copy != ZERO or any(base.low < 0 for base in access.base):
            return False
        highest = 0
        for base, step, digits in zip(access.base, access.reach, storage.dims, strict=True):
            for digit in digits:
                value = (base.high + step) // digit.step
                highest += as_expr(digit.weight).high * (value if digit.open else min(value, as_expr(digit.size).high - 1))
        return _last_of_span(highest, storage.swizzle) < total.low

    def _by_addresses(self, use: Use, buffer: Buffer, total: Expr) -> bool:
        """Whether the ranges of the addresses, or the statement's condition, prove each of them below the total."""
        storage = use.access.storage or buffer.storage
        if storage.swizzle is not None and total.factor % storage.swizzle.size() == 0:
            storage = storage.plain  # addresses below the total stay below it, since spans end at it
        access = evolve(use.access, storage=storage)
        elements = access.elements()
        if _monotone(storage):
            elements = (elements[0], access.reach)
        if len(elements) > MOST_ADDRESSES:
            return False
        parts = [buffer.address(access, offset) for offset in elements]
        tests = conjuncts(use.statement.performed)
        return all(part.low >= 0 and (less(part, total) == TRUE or self._implied(tests, part, total)) for part in parts)

    def _by_enumeration(self, use: Use, buffer: Buffer, total: Expr) -> Finding | None:
        """The first out-of-bounds address over all threads and relevant loops of known length."""
        static = tuple(loop for loop in use.loops if constant(loop.extent) is not None)
        conditions, _ = self.access_trace.guards(use.statement, frozenset({"thread", *(loop.var.name for loop in static)}))
        needed = self.access_trace.needs((*use.access.base, use.access.copy, *conditions))
        axes = self.access_trace.loop_axes(use.loops, needed, MANY // (self.kernel.workers * len(use.access.elements())))
        limit = constant(total)
        if axes is None or limit is None or not needed <= {"thread", *(name for name, _ in axes)}:
            return _finding(use, f"{buffer.name}: the address is not proved to be below {total}", {"elements": str(total)})
        frame = self.access_trace.frame([("thread", self.access_trace.threads), *axes])
        values = self.access_trace.addresses(frame, use.access)
        bad = (values < 0) | (values >= limit)
        for condition in conditions:
            bad = bad & np.asarray(frame.full(condition), dtype=bool)[..., None]
        bad = bad & self.access_trace.inside(use, frame, needed)
        if not bad.any():
            return None
        index = tuple(int(x) for x in np.argwhere(bad)[0])
        point = frame.at(index[:-1])
        message = f"{buffer.name}: {_where(point)} accesses address {int(values[index])}, but {buffer.name} has {limit} elements"
        return _finding(use, message, {**_split(point), "address": int(values[index]), "elements": limit})

    # -------------------------------------------------------------------------------------- enumeration

    def _enumerated(self, use: Use, dim: int, base: Expr, steps: Sequence[int], extent: Expr) -> Finding | None:
        """Check a coordinate at all threads, blocks and loop values: None if it stays in bounds, else the first violation."""
        complete = False
        if self.trusted and self._stays_inside(use, base, steps, extent):
            return None
        tested = (base, extent, use.statement.performed, *(one.condition for one in use.pieces), *_tested_bounds(use))
        for sizes in self._sizes():
            frame, complete = self._frame(use, sizes, tested)
            bad = self._outside(use, frame, base, steps, extent)
            if bad.any():
                index = tuple(int(x) for x in np.argwhere(bad)[0])
                return self._counterexample(use, dim, frame, index, (base, steps, extent), sizes)
        if complete and self._static(tested, use):
            return None
        name = use.access.buffer
        message = f"{name}: coordinate {dim}, {base + max(steps)}, is not proved to be in 0 .. {extent - 1}, and no condition tests it"
        return _finding(use, message, {"dimension": dim, "coordinate": str(base), "extent": str(extent)})

    def _stays_inside(self, use: Use, base: Expr, steps: Sequence[int], extent: Expr) -> bool:
        """Whether a coordinate stays in bounds: the part of threads and static loops is enumerated, and the rest is bounded by its range.

        Run-time conditions are ignored, because they only remove accesses.
        """
        static = {loop.var.name: loop for loop in use.loops if constant(loop.extent) is not None}
        inner = frozenset({"thread", *static})
        parts = self._parts(base, inner)
        conditions, _ = self.access_trace.guards(use.statement, inner)
        needed = self.access_trace.needs((parts[1], *conditions))
        axes = self.access_trace.loop_axes(tuple(static.values()), needed, MANY // self.kernel.workers)
        if axes is None:
            return False
        frame = self.access_trace.frame([("thread", self.access_trace.threads), *axes])
        executed = functools.reduce(np.logical_and, (frame.full(one).astype(bool) for one in conditions), np.ones(frame.shape, dtype=bool))
        values = frame.full(parts[1])[executed]
        if values.size == 0:
            return True
        lowest, highest = int(values.min()) + min(steps), int(values.max()) + max(steps)
        return parts[0].low + lowest >= 0 and self._below(parts[0] + highest, extent)

    def _parts(self, base: Expr, inner: frozenset[str]) -> tuple[Expr, Expr]:
        """Split a coordinate into the part that depends on blocks and sizes, and the part of threads and static loops."""
        terms, number = linear(base)
        outside: Expr = ZERO
        inside = as_expr(number)
        for atoms, coefficient in terms:
            term = product(atoms, coefficient)
            if self.access_trace.roots(term) <= inner:
                inside = inside + term
            else:
                outside = outside + term
        return outside, inside

    def _static(self, values: Iterable[Expr], use: Use) -> bool:
        """Whether nothing relevant depends on a run-time size."""
        needed = self.access_trace.needs((*values, *(loop.extent for loop in use.loops)))
        launched = {"block": self.kernel.grid, **self.access_trace.tiles}
        return needed.isdisjoint(self.access_trace.symbols) and all(
            constant(launched[name]) is not None for name in needed & launched.keys()
        )

    def _sizes(self) -> Iterator[Mapping[str, int]]:
        """Small sizes that the symbols may take; one empty choice for a static kernel."""
        choices = []
        for symbol in self.kernel.symbols:
            step = symbol.multiple_of
            values = {-(-target // step) * step for target in (symbol.low, 1, 127, 129, 500)} | {2 * step, 3 * step, 37 * step}
            choices.append(sorted(value for value in values if symbol.low <= value <= symbol.high))
        for combination in itertools.islice(itertools.product(*choices), 64):
            yield {symbol.name: value for symbol, value in zip(self.kernel.symbols, combination, strict=True)}

    def _frame(self, use: Use, sizes: Mapping[str, int], values: Iterable[Expr]) -> tuple[Frame, bool]:
        """Threads, blocks and loops at given sizes, and whether that covers all of them."""
        needed = self.access_trace.needs(values)
        empty = self.access_trace.frame([], sizes)
        axes: list[tuple[str, Sequence[int]]] = [("thread", range(self.kernel.workers if "thread" in needed else 1))]
        fixed = dict(sizes)
        extents = {"block": self.kernel.grid, **self.access_trace.tiles, **{loop.var.name: loop.extent for loop in use.loops}}
        complete = True
        for name, extent in extents.items():
            if name in needed and self.access_trace.roots(extent) <= self.access_trace.symbols:
                count = max(int(empty.value(extent)), 0)
                axes.append((name, range(count)))
            elif name in needed:
                fixed[name] = 0
                complete = False
        while math.prod(len(one) for _, one in axes) > MANY:
            largest = max(range(len(axes)), key=lambda position: len(axes[position][1]))
            name, values_of_axis = axes[largest]
            # The longest axis is reduced to its ends and middle, then to its ends, then to its first value: it keeps at least one value.
            places = (
                {0, 1, len(values_of_axis) // 2, len(values_of_axis) - 2, len(values_of_axis) - 1}
                if len(values_of_axis) > 5
                else {0, len(values_of_axis) - 1}
                if len(values_of_axis) > 2
                else {0}
            )
            axes[largest] = (name, [values_of_axis[place] for place in sorted(places)])
            complete = False
        return self.access_trace.frame([(name, np.asarray(values)) for name, values in axes], fixed), complete

    def _outside(self, use: Use, frame: Frame, base: Expr, steps: Sequence[int], extent: Expr) -> Array:
        first, elements = frame.full(base), np.array(steps)
        room = frame.full(extent) - first
        bad = (elements < -first[..., None]) | (elements >= room[..., None])
        bad &= np.asarray(frame.full(use.statement.performed), dtype=bool)[..., None]
        return bad & self.access_trace.inside(use, frame) if bad.any() else bad

    def _counterexample(
        self,
        use: Use,
        dim: int,
        frame: Frame,
        index: tuple[int, ...],
        coordinate_and_extent: tuple[Expr, Sequence[int], Expr],
        sizes: Mapping[str, int],
    ) -> Finding:
        base, steps, extent = coordinate_and_extent
        point = frame.at(index[:-1])
        coordinate = int(frame.full(base)[index[:-1]]) + steps[index[-1]]
        limit = int(np.asarray(frame.full(extent))[index[:-1]])
        at_sizes = f" at {', '.join(f'{name}={value}' for name, value in sizes.items())}" if sizes else ""
        verb = "writes" if use.access.write else "reads"
        message = (
            f"{use.access.buffer}: {_where(point)} {verb} coordinate {coordinate} of dimension {dim}, whose extent is {limit}{at_sizes}"
        )
        details = {**_split(point), "dimension": dim, "coordinate": coordinate, "extent": limit, "sizes": dict(sizes)}
        return _finding(use, message, details)


MOST_ADDRESSES = 8
"""Maximum number of elements of an access whose addresses are checked individually."""

MOST_COMBINATIONS = 64
"""Maximum number of combinations of a statement's conditions that one proof tries."""


def _versions(use: Use) -> Iterator[Use]:
    """An access of a statement, and the same access in the statement's in-bounds version."""
    yield use
    if use.statement.interior != FALSE and use.position is not None:
        version = inside(use.statement)
        yield evolve(use, statement=version, access=version.accesses[use.position])


def _spare(test: Less) -> Expr:
    """What is at least 0 if a test holds. A divisor of a positive difference is at most as large as the difference.

    The largest multiple of 8 below 38 is 32: `8 * x < 38` implies `32 - 8 * x >= 0`.
    """
    gap, limit, factor = test.right - test.left, constant(test.right), test.left.factor
    if limit is None or factor < 1:
        return gap - gap.factor
    return min(limit - gap.factor, (limit - 1) // factor * factor) - test.left


def _multiples(value: Expr, spare: Expr) -> list[int]:
    """The factors with which to add a nonnegative expression to a value: those by which a common variable cancels, 1 and 0."""
    own = dict(linear(value)[0])
    ratios = {-own[atoms] // coefficient for atoms, coefficient in linear(spare)[0] if atoms in own and own[atoms] % coefficient == 0}
    return [*sorted(ratio for ratio in ratios if ratio > 1), 1, 0]


def _each_alone(choices: Sequence[Sequence[int]]) -> Iterator[tuple[int, ...]]:
    """Each factor of each condition, with factor 0 for all other conditions."""
    for place, numbers in enumerate(choices):
        yield from (tuple(number * (other == place) for other in range(len(choices))) for number in numbers if number)


def _tested_bounds(use: Use) -> tuple[Expr, ...]:
    """The bounds that a statement's text tests itself, and the tested coordinates."""
    pairs = () if use.pieces else zip(use.access.base, use.access.bounds, strict=True)
    return tuple(value for base, bound in pairs if bound is not None for value in (base, bound))


def _where(point: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {value}" if name in ("thread", "block") else f"{name}={value}" for name, value in point.items())


def _split(point: Mapping[str, int]) -> dict[str, Any]:
    loops = {name: value for name, value in point.items() if name not in ("thread", "block")}
    return {**{name: value for name, value in point.items() if name in ("thread", "block")}, "loops": loops}


def _last_of_span(address: int, swizzle: Swizzle | None) -> int:
    """The largest address to which a swizzle maps any address up to this one. A swizzle permutes addresses within aligned spans."""
    span = 1 if swizzle is None else swizzle.size()
    return address // span * span + span - 1


def _monotone(storage: Storage) -> bool:
    """Whether addresses grow with each coordinate, so that the first and the last element bound all others."""
    return storage.swizzle is None and None not in storage.steps


def _finding(use: Use, message: str, details: Mapping[str, Any]) -> Finding:
    access = described(use.statement, use.access)
    return Finding("bounds", "error", use.access.buffer, message, line_of(use.statement, use.access), access, details)
