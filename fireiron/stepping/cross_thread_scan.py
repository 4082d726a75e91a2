"""Scans over registers: within each thread, then across lanes by shuffles, then across warps in shared memory, then across blocks.

The ownership of the elements determines which digits of the thread index step along the dimension of the scan. In the order of that
dimension, these must be: elements of one thread, lanes, iterations of a warp, warps, iterations of all threads. Each thread scans its own
adjacent elements. The lanes scan the totals of threads by `shfl.sync.up`, with twice the distance in each step (Hillis and Steele, 1986).
The last lane of each warp writes its total to shared memory, and a thread combines the totals of the warps before its own. Iterations are
sequential: the total of each is combined with the elements of the next one. `synchronize` inserts the barriers.

A linear recurrence h[n] = a[n] * h[n-1] + x[n] is a scan of the functions h -> a[n] * h + x[n]. The total of adjacent elements is such a
function, too: (a2, x2) after (a1, x1) is (a1 * a2, a2 * x1 + x2). Functions do not commute, so all totals are combined in order.

If blocks scan tiles of the dimension, the block publishes the total of its tile, and obtains that of all tiles before it (`TilePrefix`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import attrs

from fireiron.errors import DecompositionError
from fireiron.frozen import frozen
from fireiron.ir import Comment, For, Hole, Stmt
from fireiron.ir.register_ownership import Digit
from fireiron.language.dividing import moved
from fireiron.language.substrategy import temporary
from fireiron.language.tree import Decomposition, Draft, Expansion
from fireiron.performing.layout_propagation import (
    Following,
    expand_definitions,
    first_replica,
    in_bounds,
    step_of,
    views_of_thread,
    with_bounds,
    with_modes,
)
from fireiron.spec import Spec
from fireiron.specs.formula import RECURRENCE, SCANS
from fireiron.specs.init import Init
from fireiron.specs.meaning import neutral
from fireiron.specs.move import Move
from fireiron.specs.pointwise import BinaryPointwise, Pointwise
from fireiron.specs.shfl import Shfl, ShflIdx, ShflUp
from fireiron.specs.tile_prefix import StatePrefix, TilePrefix
from fireiron.stepping.cross_thread import JOINED, LANES, CrossThread, number_of
from fireiron.stepping.cross_thread_reduction import butterfly
from fireiron.values.expr import ONE, TRUE, ZERO, Expr, Var, all_of, as_expr, compiled, less
from fireiron.values.machine import RF, SH, Block, Memory, Warp
from fireiron.values.tensor import ColMajor, Dim, Fixed, Mode, RowMajor, View

Visits = Sequence[tuple[Digit, Var]]
"""Digits that a thread visits, each with the variable of its loop."""

UNROLLED = 8
"""The largest number of parts in shared memory whose loop is unrolled."""

MULTIPLY_ADD = "y[...] = a[...] * h[...] + x[...]"
"""The formula of a step of a linear recurrence."""


def scan(following: Following, step: Decomposition, draft: Draft) -> Expansion:
    """Expand a scan whose elements threads own; `step` ends the chain of each of its parts.

    Raises: DecompositionError if the elements are distributed in another order than the order of stages.
    """
    return _CrossThreadScan(following, step, draft).expansion()


@frozen
class _State:
    """The total of adjacent elements: a `value`, and for a recurrence its `factor`; without the factor, the value of the last element.

    Each is an array of registers of each thread, or an array in shared memory.
    """

    value: View
    factor: View | None = None


@attrs.define
class _CrossThreadScan(CrossThread):
    """A scan across threads, with the children that it creates.

    The digits along its dimension are, in this order: `low` of the elements of a thread, `lanes`, `middle` of iterations of a warp, `rest`
    of warps, `high` of iterations of all threads. `masks` are the bits of the lane index that `lanes` form.

    A thread keeps `below`, the total of the elements of the lanes before it and of earlier iterations of its warp, and `start`, the total
    of all elements before its warp. If `words` is given, `start` begins at the first element of the tile; otherwise at that of the row.
    """

    low: list[Digit] = attrs.field(factory=list, init=False)
    lanes: list[Digit] = attrs.field(factory=list, init=False)
    middle: list[Digit] = attrs.field(factory=list, init=False)
    rest: list[Digit] = attrs.field(factory=list, init=False)
    high: list[Digit] = attrs.field(factory=list, init=False)
    masks: tuple[int, ...] = attrs.field(default=(), init=False)

    def expansion(self) -> Expansion:
        self._order_digits()
        program = self._within_block() if self._words is None else self._across_blocks(self._words)
        allocations = tuple(Hole(child.name) for child in self.children if child.spec.allocates)
        expansion = self.draft.expansion(tuple(self.children), (*allocations, self._note(), *program))
        words = tuple(view.tensor.name for view in self._words or ())
        return attrs.evolve(expansion, names=(*expansion.names, *words))

    def _within_block(self) -> tuple[Stmt, ...]:
        """Return the scan of rows of which each block has all elements: results follow the totals in each iteration."""
        kept, high, middle = self._visits(self._kept), self._visits(self.high), self._visits(self.middle)
        own = self._own(self.low, self.middle)
        below = self._state("below", [self.middle]) if self.masks or self.middle else None
        start = self._state("before", [], whole=True) if self.rest or self.high else None
        carry = self._state("carry", [], whole=True) if self.high else None
        program = self._totals(own, below, start, carry, kept, high, middle, ())
        program += self._results(own, below, start, None, kept, high, middle, ())
        first = () if carry is None else self._init("first", carry)
        return self._nest(kept, (*first, *self._nest(high, program)))

    def _across_blocks(self, words: Sequence[View]) -> tuple[Stmt, ...]:
        """Return the scan of tiles: the totals of all iterations, an exchange with other blocks, and then the results."""
        kept, high, middle = self._visits(self._kept), self._visits(self.high), self._visits(self.middle)
        around = [self.high, self._kept]
        own = self._own(self.low, self.middle, *around)
        below = self._state("below", [self.middle, *around]) if self.masks or self.middle else None
        start = self._state("before", around) if self.rest or self.high else None
        carry = self._state("carry", [])
        program = self._totals(own, below, start, carry, kept, high, middle, (*high, *kept))
        totals = self._shared("tile", ())
        inner = (*self._init("first", carry), *self._nest(high, program), *self._stored_totals(carry, totals, kept))
        first = self._nest(kept, inner)
        before = self._shared("tiles_before", ())
        exchange = self._exchanged(totals, before, words)
        kept, high, middle = self._visits(self._kept), self._visits(self.high), self._visits(self.middle)
        inner = self._results(own, below, start, before, kept, high, middle, (*high, *kept))
        return (*first, *exchange, *self._nest(kept, self._nest(high, inner)))

    # ------------------------------------------------------------------------------------------ the order of digits

    def _order_digits(self) -> None:
        """Divide the digits along the dimension; refuse another order than low, lanes, middle, rest, high."""
        along = sorted((digit for digit in self._steps if digit.dim == self._axis), key=lambda digit: digit.stride)
        distributed = [digit for digit in along if digit.index is not None]
        masks, self.lanes, self.rest = butterfly(distributed, self.following.ownership, self.draft)
        self.masks = tuple(sorted(masks))
        self.rest.sort(key=lambda digit: digit.stride)
        self.lanes.sort(key=lambda digit: digit.stride)
        for digit in (digit for digit in along if digit.index is None):
            self._stage(digit, distributed).append(digit)
        if self.masks and not self._are_adjacent_lanes():
            self._refuse_order("adjacent lanes do not have adjacent elements")

    def _stage(self, digit: Digit, distributed: Sequence[Digit]) -> list[Digit]:
        """Return the list of the stage in which a thread visits a digit of its elements."""
        if not distributed or digit.end <= distributed[0].stride:
            return self.low
        if digit.stride >= distributed[-1].end:
            return self.high
        if self.lanes and self.rest and digit.stride >= self.lanes[-1].end and digit.end <= self.rest[0].stride:
            return self.middle
        self._refuse_order("elements of one thread are between those of other threads")
        return []

    def _are_adjacent_lanes(self) -> bool:
        """Whether the number of a thread's elements grows with its lane, and those of all lanes of a warp precede those of the next one."""
        import numpy

        weight, count = self.masks[0], 2 ** len(self.masks)
        if list(self.masks) != [weight << bit for bit in range(len(self.masks))]:
            return False
        if self.rest and self.rest[0].stride < self.lanes[-1].end:
            return False
        threads = numpy.arange(self.draft.workers or 1)
        rank, owning = (
            numpy.broadcast_to(compiled(expand_definitions(value, self.draft))({self.draft.thread.name: threads}), threads.shape)
            for value in (number_of(self.lanes), self._owning)
        )
        return bool((rank == threads // weight % count)[owning == 1].all())

    def _refuse_order(self, why: str) -> None:
        along = [digit for digit in self._steps if digit.dim == self._axis]
        raise DecompositionError(
            f"{self.spec}: {why}", got=", ".join(f"{digit.size} at distance {digit.stride}" for digit in along),
            legal="in the order of the dimension: elements of a thread, lanes, warps, iterations", within=self.spec, at=self.draft.origin,
            hint="load the elements in such a layout: .load('X', RF, Move.tile(1, 128).to(Warp).tile(1, 4).to(Lane).done())",
        )  # fmt: skip

    # ------------------------------------------------------------------------------------------ totals

    def _note(self) -> Comment:
        """Return the comment about the stages of the scan."""
        parts = [f"of {_product(self.low)} elements in each thread"] if self.low else []
        parts += [f"over {2 ** len(self.masks)} lanes by shuffles"] if self.masks else []
        parts += [f"in {_product(self.middle)} iterations of a warp"] if self.middle else []
        parts += [f"over {_product(self.rest)} partial results in shared memory"] if self.rest else []
        parts += [f"in {_product(self.high)} iterations"] if self.high else []
        parts += ["over the tiles of other blocks"] if self._words is not None else []
        return Comment(f"{self.spec}: {', '.join(parts or ['of one element'])}")

    def _totals(
        self, own: View | None, below: _State | None, start: _State | None, carry: _State | None, kept: Visits, high: Visits,
        middle: Visits, around: Visits,
    ) -> tuple[Stmt, ...]:  # fmt: skip
        """Return the steps of an iteration that compute `below` and `start`, and add the iteration to `carry`."""
        total = self._state("total", [])
        warp = self._state("warp", []) if self.middle else None
        program = self._scanned(own, total, kept, high, middle, around)
        if self.masks:
            assert below is not None
            program += self._shuffled(total, self._at_visits(below, (*middle, *around)))
        if warp is not None:
            assert below is not None
            here = self._at_visits(below, (*middle, *around))
            if self.masks:
                program += self._combined("warp_below", warp, here, here)
            else:
                program += self._copied("warp_below", warp, here)
            steps, whole = self._whole(total) if self.masks else ((), total)
            program += (*steps, *self._combined("warp_total", warp, whole, warp))
            program = (*self._init("warp_start", warp), *self._nest(middle, program))
        if start is not None:
            here = self._at_visits(start, around)
            program += self._copied("start", carry, here) if carry is not None else self._init("start", here)
        if self.rest:
            assert start is not None
            return program + self._through_shared(warp or total, self._at_visits(start, around), carry, kept, warp is not None)
        if carry is not None:
            steps, whole = self._whole(total) if self.masks else ((), total)
            program += (*steps, *self._combined("carried", carry, whole, carry))
        return program

    def _scanned(self, own: View | None, total: _State, kept: Visits, high: Visits, middle: Visits, around: Visits) -> tuple[Stmt, ...]:
        """Return the scan of a thread's elements, and their `total`; threads without elements have the neutral element."""
        visits = self._visits(self.low)
        views = self._views((*kept, *high, *middle, *visits))
        active = all_of((self._owning, self._in_bounds("src", views)))
        places = (*visits, *middle, *around)
        if active == TRUE:
            program = self._element_added(total, views, TRUE)
            if own is not None:
                program += self._child("own", Move.on(self._level, self._element(total.value), self._at(own, places)))
            return (*self._init("nothing", total), *self._nest(visits, program))
        # The readers of registers own them. Threads without elements take part in the scan of totals, but not in these statements.
        sums = self._state("sums", [])
        program = self._element_added(sums, views, active)
        if own is not None:
            value = self._element(self._allocated("value", 1, RF))
            program += self._child("value", Move.on(self._level, self._element(sums.value), value))
            program += self._child("own", Move.on(self._level, value, self._at(own, places)), active)
        return (*self._init("nothing", sums), *self._nest(visits, program), *self._copied("total", sums, total))

    def _element_added(self, total: _State, views: dict[str, View], active: Expr) -> tuple[Stmt, ...]:
        """Return the steps that combine a total with the next element."""
        value = self._element(total.value)
        program = self._next("scanned", value, views, value, active)
        if total.factor is not None:
            factor = self._element(total.factor)
            spec = BinaryPointwise.on(self._level, factor, views["factor"], factor, operation="*")
            program += self._child("scanned_factor", spec, active)
        return program

    def _next(self, name: str, value: View, views: dict[str, View], result: View, active: Expr) -> tuple[Stmt, ...]:
        """Return the step from the value of an element to that of the next one."""
        if self._recurs:
            return self._multiplied(name, views["factor"], value, views["src"], result, active)
        return self._child(name, BinaryPointwise.on(self._level, value, views["src"], result, operation=JOINED[self._by]), active)

    def _whole(self, total: _State) -> tuple[tuple[Stmt, ...], _State]:
        """Return the steps that give all lanes the total of the last one, which is that of all lanes after `_shuffled`."""
        whole, weight, count = self._state("whole", []), self.masks[0], 2 ** len(self.masks)
        program: tuple[Stmt, ...] = ()
        for (name, source), target in zip(_named(total, "all"), _parts(whole), strict=True):
            if weight == 1:
                received = self._allocated(f"{name}_of_lane", 1, RF)
                program += self._child(
                    f"{name}_lane", ShflIdx.on(Warp, self._of_warp(source), self._of_warp(received), lane=count - 1, width=count)
                )
                program += self._child(name, Move.on(self._level, self._element(received), self._element(target)))
            else:
                program += self._last_of(name, source, target, weight, count)
        return program, whole

    def _last_of(self, name: str, source: View, target: View, weight: int, count: int) -> tuple[Stmt, ...]:
        """Return the steps that give lanes at distance `weight` the total of the last of them: each keeps the one of the higher lane."""
        program = self._child(name, Move.on(self._level, self._element(source), self._element(target)))
        other = self._allocated(f"{name}_partner", 1, RF)
        for mask in self.masks:
            higher = less(number_of(self.lanes) // (mask // weight) - number_of(self.lanes) // (mask // weight) // 2 * 2, ONE)
            program += self._child(f"{name}_partner{mask}", Shfl.on(Warp, self._of_warp(target), self._of_warp(other), mask=mask))
            program += self._child(f"{name}{mask}", Move.on(self._level, self._element(other), self._element(target)), higher)
        return program

    def _shuffled(self, total: _State, below: _State) -> tuple[Stmt, ...]:
        """Return the scan of totals over lanes; `below` becomes the total of the lanes before the own one."""
        rank, weight = number_of(self.lanes), self.masks[0]
        lower, received = self._state("lower", []), self._state("received", [])
        program: tuple[Stmt, ...] = ()
        for mask in self.masks:
            program += self._received(f"up{mask}", total, lower, received, mask)
            program += self._combined(f"up_join{mask}", received, total, total, less(as_expr(mask // weight - 1), rank))
        program += self._received("below", total, lower, received, weight)
        program += self._init("below_none", below)
        return program + self._combined("below_join", received, below, below, less(ZERO, rank))

    def _received(self, name: str, total: _State, lower: _State, received: _State, delta: int) -> tuple[Stmt, ...]:
        """Return the steps that give each lane the total of the lane `delta` before it, or its own; all lanes read it, so all own it."""
        width = self.masks[-1] * 2
        program: tuple[Stmt, ...] = ()
        for (part, source), target in zip(_named(total, name), _parts(lower), strict=True):
            program += self._child(part, ShflUp.on(Warp, self._of_warp(source), self._of_warp(target), delta=delta, width=width))
        return program + self._copied(f"{name}_received", lower, received)

    def _through_shared(self, total: _State, start: _State, carry: _State | None, kept: Visits, everywhere: bool) -> tuple[Stmt, ...]:
        """Return the steps that write the totals of warps to shared memory, and combine those of the warps before the own one.

        The last lane has the total of its warp; all lanes if `everywhere`.
        """
        number, parts = number_of(self.rest), _product(self.rest)
        self._require_parts(number, parts)
        shared = self._shared("parts", (parts,))
        last = [] if not self.masks else [less(as_expr(2 ** len(self.masks) - 2), number_of(self.lanes))]
        first = first_replica(self.spec, self._distributed, self.following.ownership, self.draft)
        rows = all_of((self._owning, self._rows_in_bounds(kept)))
        program: tuple[Stmt, ...] = ()
        for (name, source), target in zip(_named(total, "stored"), _parts(shared), strict=True):
            store = Move.on(self._level, self._element(source), self._placed(target, number, kept, unit=True))
            program += self._child(name, store, all_of((rows, *last, first)))
        for name, state, active in (("earlier", start, True), ("carried", carry, False)):
            if state is not None:
                var = Var(self.draft.fresh("part"), 0, parts - 1)
                part = _State(*(self._placed(view, var, kept, unit=False) for view in _parts(shared)))
                joined = self._combined(name, state, part, state, all_of((rows, less(var, number) if active else TRUE)))
                program += (For(var, as_expr(parts), joined, parts <= UNROLLED, self.draft.origin),)
        return program

    # ------------------------------------------------------------------------------------------ tiles of other blocks

    def _stored_totals(self, carry: _State, totals: _State, kept: Visits) -> tuple[Stmt, ...]:
        """Return the steps that store the total of the tile's rows in shared memory, by the first thread of each row."""
        none = [less(number_of(digits), ONE) for digits in (self.lanes, self.rest) if digits]
        active = all_of((self._owning, first_replica(self.spec, self._distributed, self.following.ownership, self.draft), *none))
        program: tuple[Stmt, ...] = ()
        for (name, source), target in zip(_named(carry, "tile_stored"), _parts(totals), strict=True):
            program += self._child(name, Move.on(self._level, self._element(source), self._of_row(target, kept)), active)
        return program

    def _exchanged(self, totals: _State, before: _State, words: Sequence[View]) -> tuple[Stmt, ...]:
        """Return the step by which the block publishes its totals and obtains those of the tiles before it."""
        if self._recurs:
            assert totals.factor is not None
            spec = StatePrefix.on(self.spec.level, totals.factor, totals.value, *words, before.value)
        else:
            spec = TilePrefix.on(self.spec.level, totals.value, *words, before.value, by=SCANS_OF[self._by])
        return (Comment(f"the part of the rows before this tile: {spec}"), *self._child("exchanged", spec))

    # ------------------------------------------------------------------------------------------ results

    def _results(
        self, own: View | None, below: _State | None, start: _State | None, tiles: _State | None, kept: Visits, high: Visits,
        middle: Visits, around: Visits,
    ) -> tuple[Stmt, ...]:  # fmt: skip
        """Return the step that combines each element with those before the thread's elements."""
        visits = self._visits(self.low)
        views = self._views((*kept, *high, *middle, *visits))
        once: Expr = TRUE
        if not self.spec.dst.memory.private:
            once = first_replica(self.spec, self._distributed, self.following.ownership, self.draft)
        active = all_of((self._owning, once, self._in_bounds("dst", views)))
        program, before = self._before(below, start, tiles, kept, middle, around)
        if before is None and own is not None:
            source = self._at(own, (*visits, *middle, *around))
            return self._nest(middle, self._nest(visits, self._child("result", Move.on(self._level, source, views["dst"]), active)))
        if before is None:
            before = self._allocated("h", 1, RF)
            program = self._init("nothing_before", _State(before))
        if active != TRUE or own is None:
            prefix = self._allocated("prefix", 1, RF)
            program += self._child("prefix", Move.on(self._level, self._element(before), self._element(prefix)))
            before = prefix
        element = self._element(before)
        if own is None:
            step = self._next("again", element, views, element, active)
            step += self._child("result", Move.on(self._level, element, views["dst"]), active)
        else:
            source = self._at(own, (*visits, *middle, *around))
            step = self._child("result", self._joining(element, source, views["dst"]), active)
        return self._nest(middle, (*program, *self._nest(visits, step)))

    def _before(
        self, below: _State | None, start: _State | None, tiles: _State | None, kept: Visits, middle: Visits, around: Visits
    ) -> tuple[tuple[Stmt, ...], View | None]:
        """Return the steps that combine all elements before those of a thread, and their value; None if there are none."""
        states = [self._at_visits(start, around)] if start is not None else []
        states += [self._at_visits(below, (*middle, *around))] if below is not None else []
        if tiles is None and len(states) < 2:
            return (), states[0].value if states else None
        value = self._allocated("all_before", 1, RF)
        program: tuple[Stmt, ...]
        if tiles is None:
            first, *states = states
            program = self._child("all_before", Move.on(self._level, self._element(first.value), self._element(value)))
        else:
            program = self._init("no_tiles", _State(value))
            here, operation = self._element(value), "+" if self._recurs else JOINED[self._by]
            row = BinaryPointwise.on(self._level, self._of_row(tiles.value, kept), here, here, operation=operation)
            program += self._child("tiles_before", row, self._owning)
        for number, state in enumerate(states):
            program += self._combined(f"all_before{number}", _State(value), state, _State(value))
        return program, value

    # ------------------------------------------------------------------------------------------ properties

    @property
    def _recurs(self) -> bool:
        """Whether it is a linear recurrence."""
        (only,) = self.spec.definition.formulas
        return only.scan == RECURRENCE

    @property
    def _words(self) -> Sequence[View] | None:
        """The part of a workspace in which the block publishes the totals of its tile; None if a block has all elements of a row."""
        return self.draft.words or None

    @property
    def _axis(self) -> int:
        """The dimension of the scan."""
        (only,) = self.spec.definition.formulas
        return self.spec.dims.index(only.along[0])

    @property
    def _kept(self) -> list[Digit]:
        """The digits of rows that a thread visits."""
        return [digit for digit in self._steps if digit.dim != self._axis and digit.index is None]

    @property
    def _prefix(self) -> str:
        """The beginning of the names of temporaries."""
        (only,) = self.spec.definition.formulas
        return "recurrence" if self._recurs else SCANS_OF[only.combiner]

    # ------------------------------------------------------------------------------------------ views

    def _in_bounds(self, name: str, views: dict[str, View]) -> Expr:
        return in_bounds(self.spec, views[name], self.spec.uses[name], self._steps)

    def _rows_in_bounds(self, kept: Visits) -> Expr:
        """Return the condition that a thread's row is in bounds; its elements may be past the end of the row."""
        digits = [digit for digit in self._steps if digit.dim != self._axis]
        return in_bounds(self.spec, self._views(kept)["src"], self.spec.uses["src"], digits)

    def _visits(self, digits: Sequence[Digit]) -> list[tuple[Digit, Var]]:
        """Return digits with variables of loops, in the order of their strides."""
        return self._visits_of(sorted(digits, key=lambda digit: (digit.dim, digit.stride)))

    def _views(self, visits: Visits) -> dict[str, View]:
        """Return the operands at an element of a thread."""
        views = views_of_thread(self.spec, with_modes(self.spec, ()), self._distributed)
        for digit, index in visits:
            views = moved(views, self.spec, step_of(self.spec, digit), index, unit=False)
        return with_bounds(self.spec, views, [digit for digit, _ in visits])

    def _at(self, view: View, visits: Visits) -> View:
        """Return the copy of an element of a thread, by the digits of its number."""
        weight, fixed = 1, []
        for digit, index in visits:
            fixed.append(Fixed(digit.size, weight, False, index))
            weight *= digit.size
        return self._row(view, Dim((Mode(1, 1),), None, tuple(fixed)))

    def _at_visits(self, state: _State, visits: Visits) -> _State:
        """Return a state as an element of a thread, by the digits of its number."""
        return _State(*(self._at(view, visits) for view in _parts(state)))

    def _element(self, view: View) -> View:
        """Return a thread's register; a view of one element is unchanged."""
        return view if len(view.dims) == len(self.spec.dims) else self._row(view, Dim((Mode(1, 1),)))

    def _row(self, view: View, place: Dim) -> View:
        return view.with_dims({self._axis + 1: place}).at(0, self.draft.thread, unit=True)

    def _of_warp(self, view: View) -> View:
        """Return a register of all lanes of a warp, as lanes and one value."""
        warps = (self.draft.workers or 1) // LANES
        view = view.with_dims({0: Dim((Mode(LANES, 1),), None, (Fixed(warps, LANES, True, self.draft.unit(Warp, Block)),))})
        for _ in range(len(view.dims) - 2):
            view = view.at(2, ZERO, unit=False)
        return view

    def _places(self, kept: Visits) -> dict[int, Dim]:
        """Return the coordinates of a thread's row in a tile, by dimension."""
        places: dict[int, list[Fixed]] = {dim: [] for dim in range(len(self.spec.dims)) if dim != self._axis}
        for digit in self._distributed:
            if digit.dim != self._axis and digit.index is not None:
                places[digit.dim].append(Fixed(digit.size, digit.stride, True, digit.index))
        for digit, index in kept:
            places[digit.dim].append(Fixed(digit.size, digit.stride, False, index))
        return {dim: Dim((Mode(1, 1),), None, tuple(sorted(fixed, key=lambda one: str(one.stride)))) for dim, fixed in places.items()}

    def _placed(self, shared: View, number: Expr, kept: Visits, unit: bool) -> View:
        """Return the total of a part of a row in shared memory."""
        dims = {dim + 1: place for dim, place in self._places(kept).items()}
        return shared.with_dims({self._axis + 1: Dim((Mode(1, 1),)), **dims}).at(0, number, unit=unit)

    def _of_row(self, shared: View, kept: Visits) -> View:
        """Return the total of a thread's row in shared memory."""
        return shared.with_dims({self._axis: Dim((Mode(1, 1),)), **self._places(kept)})

    # ------------------------------------------------------------------------------------------ temporaries and children

    def _own(self, *digits: Sequence[Digit]) -> View | None:
        """Allocate the scanned elements of a thread; None if it computes them again from the value before them.

        A recurrence does. So do tiles in shared memory: without a copy of their elements in registers, an SM has more blocks.
        """
        again = self._recurs or (self._words is not None and not self.spec.src.memory.private)
        return None if again else self._allocated("own", math.prod(map(_product, digits)), RF)

    def _state(self, suffix: str, digits: Sequence[Sequence[Digit]], whole: bool = False) -> _State:
        """Allocate a total per thread, for each value of some digits; without a factor if it begins at the `whole` row's first element."""
        count = math.prod(map(_product, digits))
        value = self._allocated(suffix, count, RF)
        return _State(value, self._allocated(f"{suffix}_factor", count, RF) if self._recurs and not whole else None)

    def _shared(self, suffix: str, parts: tuple[int, ...]) -> _State:
        """Allocate totals of all rows in shared memory, for a number of parts."""
        rows = [self.spec.sizes[dim] if dim != self._axis else ONE for dim in range(len(self.spec.dims))]
        views = []
        for name in (suffix, f"{suffix}_factor") if self._recurs and suffix != "tiles_before" else (suffix,):
            view, allocation = temporary(self.spec, self.draft, f"{self._prefix}_{name}", (*parts, *rows), self._dtype, SH, RowMajor)
            self.children.append(allocation)
            views.append(view)
        return _State(*views)

    def _allocated(self, suffix: str, count: int, memory: Memory) -> View:
        """Allocate `count` partial results per thread."""
        places: list[Expr | int] = [ONE] * len(self.spec.dims)
        places[self._axis] = count
        shape: tuple[Expr | int, ...] = (self.draft.workers or 1, *places)
        view, allocation = temporary(self.spec, self.draft, f"{self._prefix}_{suffix}", shape, self._dtype, memory, ColMajor)
        self.children.append(allocation)
        return view

    def _init(self, name: str, state: _State) -> tuple[Stmt, ...]:
        """Return the steps that set a state to the total of no elements."""
        value = 0 if self._recurs else neutral(self._by, self._dtype)
        program = self._child(name, Init.on(self._level, self._element(state.value), value=value))
        if state.factor is not None:
            program += self._child(f"{name}_factor", Init.on(self._level, self._element(state.factor), value=1))
        return program

    def _copied(self, name: str, source: _State, target: _State, active: Expr = TRUE) -> tuple[Stmt, ...]:
        """Return the steps that copy a state."""
        program = self._child(name, Move.on(self._level, self._element(source.value), self._element(target.value)), active)
        if source.factor is not None and target.factor is not None:
            copy = Move.on(self._level, self._element(source.factor), self._element(target.factor))
            program += self._child(f"{name}_factor", copy, active)
        return program

    def _combined(self, name: str, left: _State, right: _State, result: _State, active: Expr = TRUE) -> tuple[Stmt, ...]:
        """Return the steps that combine the totals of earlier and of later elements; `result` may be one of them."""
        earlier, later, target = (self._element(state.value) for state in (left, right, result))
        if not self._recurs:
            return self._child(name, self._joining(earlier, later, target), active)
        assert right.factor is not None
        factor = self._element(right.factor)
        program = self._multiplied(name, factor, earlier, later, target, active)
        if left.factor is not None and result.factor is not None:
            spec = BinaryPointwise.on(self._level, self._element(left.factor), factor, self._element(result.factor), operation="*")
            program += self._child(f"{name}_factor", spec, active)
        return program

    def _joining(self, left: View, right: View, result: View) -> Spec:
        return BinaryPointwise.on(self._level, left, right, result, operation=JOINED[self._by])

    def _multiplied(self, name: str, factor: View, value: View, added: View, result: View, active: Expr) -> tuple[Stmt, ...]:
        """Return the step result = factor * value + added."""
        return self._child(name, Pointwise.on(self._level, factor, value, added, result, formula=MULTIPLY_ADD), active)


SCANS_OF = {by: name for name, by in SCANS.items()}
"""The scan that combines elements by a reduction."""


def _product(digits: Sequence[Digit]) -> int:
    return math.prod(digit.size for digit in digits)


def _parts(state: _State) -> tuple[View, ...]:
    """Return the views of a state."""
    return (state.value,) if state.factor is None else (state.value, state.factor)


def _named(state: _State, name: str) -> tuple[tuple[str, View], ...]:
    """Return the views of a state, each with the name of a child."""
    return tuple(zip((name, f"{name}_factor"), _parts(state), strict=False))
