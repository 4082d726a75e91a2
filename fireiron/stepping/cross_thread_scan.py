"""Scans over registers: first within each thread, then across lanes by shuffles, then across warps in shared memory.

The ownership of the elements determines which digits of the thread index step along the dimension of the scan. In the order of that
dimension, these must be: elements of one thread, lanes, warps, iterations. Each thread scans its own adjacent elements. The lanes scan the
totals of threads by `shfl.sync.up`, with twice the distance in each step (Hillis and Steele, 1986). The last lane of each warp writes its
total to shared memory, and a thread combines the totals of the warps before its own. Iterations are sequential: the total of each
is combined with the elements of the next one. `synchronize` inserts the barriers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import attrs

from fireiron.errors import DecompositionError
from fireiron.ir import Comment, For, Hole, Stmt
from fireiron.ir.register_ownership import Digit
from fireiron.language.dividing import moved
from fireiron.language.substrategy import temporary
from fireiron.language.tree import Child, Decomposition, Draft, Expansion
from fireiron.performing.layout_propagation import (
    Following,
    expand_definitions,
    first_replica,
    in_bounds,
    is_owner,
    step_of,
    views_of_thread,
    with_bounds,
    with_modes,
)
from fireiron.spec import Spec
from fireiron.specs.formula import SCANS
from fireiron.specs.init import Init
from fireiron.specs.meaning import neutral
from fireiron.specs.move import Move
from fireiron.specs.pointwise import BinaryPointwise
from fireiron.specs.shfl import Shfl, ShflUp
from fireiron.stepping.cross_thread_reduction import JOINED, LANES, butterfly
from fireiron.values.expr import ONE, TRUE, ZERO, Expr, Var, all_of, as_expr, compiled, less
from fireiron.values.machine import RF, SH, Block, DType, Lane, Level, Memory, Thread, Warp, float32, int32
from fireiron.values.tensor import ColMajor, Dim, Fixed, Mode, RowMajor, View

Visits = Sequence[tuple[Digit, Var]]
"""Digits that a thread visits, each with the variable of its loop."""

UNROLLED = 8
"""The largest number of parts in shared memory whose loop is unrolled."""


def scan(following: Following, step: Decomposition, draft: Draft) -> Expansion:
    """Expand a scan whose elements threads own; `step` ends the chain of each of its parts.

    Raises: DecompositionError if the distribution of the elements has another order than threads, lanes, warps, iterations.
    """
    return _CrossThreadScan(following, step, draft).expansion()


@attrs.define
class _CrossThreadScan:
    """A scan across threads, with the children that it creates.

    The digits along its dimension are, in this order: `low` of the elements of a thread, `lanes`, `rest` of warps, `high` of iterations.
    `masks` are the bits of the lane index that `lanes` form.
    """

    following: Following
    step: Decomposition
    draft: Draft
    low: list[Digit] = attrs.field(factory=list, init=False)
    lanes: list[Digit] = attrs.field(factory=list, init=False)
    rest: list[Digit] = attrs.field(factory=list, init=False)
    high: list[Digit] = attrs.field(factory=list, init=False)
    masks: tuple[int, ...] = attrs.field(default=(), init=False)
    children: list[Child] = attrs.field(factory=list, init=False)

    def expansion(self) -> Expansion:
        self._order_digits()
        kept = self._visits([digit for digit in self._steps if digit.dim != self._axis and digit.index is None])
        high = self._visits(self.high)
        own = self._allocated("own", math.prod(digit.size for digit in self.low), RF)
        before = self._allocated("before", 1, RF) if self._is_prefixed else None
        carry = self._allocated("carry", 1, RF) if self.high else None
        total = self._allocated("total", 1, RF)
        program = (*self._scanned(own, total, kept, high), *self._combined(total, before, carry, kept))
        program += self._results(own, before, kept, high)
        program = self._nest(high, program)
        if carry is not None:
            program = (*self._init("first", carry), *program)
        program = (self._note(), *self._nest(kept, program))
        allocations = tuple(Hole(child.name) for child in self.children if child.spec.allocates)
        return self.draft.expansion(tuple(self.children), (*allocations, *program))

    # ------------------------------------------------------------------------------------------ the order of digits

    def _order_digits(self) -> None:
        """Divide the digits along the dimension; refuse another order than low, lanes, rest, high."""
        along = sorted((digit for digit in self._steps if digit.dim == self._axis), key=lambda digit: digit.stride)
        distributed = [digit for digit in along if digit.index is not None]
        first, last = (distributed[0].stride, distributed[-1].end) if distributed else (0, 0)
        for digit in (digit for digit in along if digit.index is None):
            (self.high if distributed and digit.stride >= last else self.low).append(digit)
        if any(digit.end > first for digit in self.low) and distributed:
            self._refuse_order("elements of one thread are between those of other threads")
        masks, self.lanes, self.rest = butterfly(distributed, self.following.ownership, self.draft)
        self.masks = tuple(sorted(masks))
        if self.masks and not self._are_adjacent_lanes():
            self._refuse_order("adjacent lanes do not have adjacent elements")

    def _are_adjacent_lanes(self) -> bool:
        """Whether the number of a thread's elements grows with its lane, and those of all lanes of a warp precede those of the next one."""
        import numpy

        weight, count = self.masks[0], 2 ** len(self.masks)
        if list(self.masks) != [weight << bit for bit in range(len(self.masks))]:
            return False
        if self.rest and min(digit.stride for digit in self.rest) < max(digit.end for digit in self.lanes):
            return False
        threads = numpy.arange(self.draft.workers or 1)
        rank, owning = (
            numpy.broadcast_to(compiled(expand_definitions(value, self.draft))({self.draft.thread.name: threads}), threads.shape)
            for value in (_number(self.lanes), self._owning)
        )
        return bool((rank == threads // weight % count)[owning == 1].all())

    def _refuse_order(self, why: str) -> None:
        along = [digit for digit in self._steps if digit.dim == self._axis]
        raise DecompositionError(
            f"{self.spec}: {why}", got=", ".join(f"{digit.size} at distance {digit.stride}" for digit in along),
            legal="in the order of the dimension: elements of a thread, lanes, warps, iterations", within=self.spec, at=self.draft.origin,
            hint="load the elements in such a layout: .load('X', RF, Move.tile(1, 128).to(Warp).tile(1, 4).to(Lane).done())",
        )  # fmt: skip

    # ------------------------------------------------------------------------------------------ stages

    def _note(self) -> Comment:
        """Return the comment about the stages of the scan."""
        parts = [f"of {math.prod(digit.size for digit in self.low)} elements in each thread"] if self.low else []
        parts += [f"over {2 ** len(self.masks)} lanes by shuffles"] if self.masks else []
        parts += [f"over {self._parts} partial results in shared memory"] if self.rest else []
        parts += [f"in {math.prod(digit.size for digit in self.high)} iterations"] if self.high else []
        return Comment(f"{self.spec}: {', '.join(parts or ['of one element'])}")

    def _scanned(self, own: View, total: View, kept: Visits, high: Visits) -> tuple[Stmt, ...]:
        """Return the scan of a thread's elements, and their `total`; threads without elements have the neutral element."""
        visits = self._visits(self.low)
        views = self._views((*kept, *high, *visits))
        active = all_of((self._owning, self._in_bounds("src", views)))
        element, so_far = self._at(own, visits), self._element(total)
        if active == TRUE:
            program = self._join("scanned", so_far, views["src"], so_far)
            program += self._child("own", Move.on(self._level, so_far, element))
            return (*self._init("nothing", total), *self._nest(visits, program))
        # The readers of registers own them. Threads without elements take part in the scan of totals, but not in these statements.
        sums, value = self._allocated("sums", 1, RF), self._element(self._allocated("value", 1, RF))
        so_far = self._element(sums)
        program = self._join("scanned", so_far, views["src"], so_far, active)
        program += self._child("value", Move.on(self._level, so_far, value))
        program += self._child("own", Move.on(self._level, value, element), active)
        last = self._child("total", Move.on(self._level, so_far, self._element(total)))
        return (*self._init("nothing", sums), *self._nest(visits, program), *last)

    def _combined(self, total: View, before: View | None, carry: View | None, kept: Visits) -> tuple[Stmt, ...]:
        """Return the steps that compute the combination `before` of all elements before those of a thread, and update `carry`."""
        if before is None:
            return ()
        whole, program = total, self._init("start", before)
        if self.masks:
            if carry is not None and not self.rest:
                steps, whole = self._whole(total)
                program += steps
            program += self._shuffled(total, before)
        if carry is not None:
            program += self._join("start_carry", self._element(carry), self._element(before), self._element(before))
        if self.rest:
            return program + self._through_shared(total, before, carry, self._allocated("parts", self._parts, SH), kept)
        if carry is not None:
            program += self._join("carried", self._element(carry), self._element(whole), self._element(carry))
        return program

    def _whole(self, total: View) -> tuple[tuple[Stmt, ...], View]:
        """Return the steps that combine the totals of all lanes, by butterfly shuffles, and their result."""
        whole, other = self._allocated("whole", 1, RF), self._allocated("partner", 1, RF)
        program = self._child("all", Move.on(self._level, self._element(total), self._element(whole)))
        for mask in self.masks:
            program += self._child(f"partner{mask}", Shfl.on(Warp, self._of_warp(whole), self._of_warp(other), mask=mask))
            program += self._join(f"all{mask}", self._element(whole), self._element(other), self._element(whole))
        return program, whole

    def _shuffled(self, total: View, before: View) -> tuple[Stmt, ...]:
        """Return the scan of totals over lanes; `before` is combined with the totals of the lanes before the own one."""
        rank, weight = _number(self.lanes), self.masks[0]
        lower, received = self._allocated("lower", 1, RF), self._allocated("received", 1, RF)
        program: tuple[Stmt, ...] = ()
        for mask in self.masks:
            program += self._received(f"up{mask}", total, lower, received, mask)
            has_lower = less(as_expr(mask // weight - 1), rank)
            program += self._join(f"up_join{mask}", self._element(received), self._element(total), self._element(total), has_lower)
        program += self._received("below", total, lower, received, weight)
        return program + self._join("below_join", self._element(before), self._element(received), self._element(before), less(ZERO, rank))

    def _received(self, name: str, total: View, lower: View, received: View, delta: int) -> tuple[Stmt, ...]:
        """Return the steps that give each lane the total of the lane `delta` before it, or its own; all lanes read it, so all own it."""
        width = self.masks[-1] * 2
        program = self._child(name, ShflUp.on(Warp, self._of_warp(total), self._of_warp(lower), delta=delta, width=width))
        return program + self._child(f"{name}_received", Move.on(self._level, self._element(lower), self._element(received)))

    def _through_shared(self, total: View, before: View, carry: View | None, shared: View, kept: Visits) -> tuple[Stmt, ...]:
        """Return the steps that write the totals of warps to shared memory, and combine those of the warps before the own one."""
        number, parts = _number(self.rest), self._parts
        self._require_parts(number, parts)
        last = [less(as_expr(2 ** len(self.masks) - 2), _number(self.lanes))] if self.masks else []
        distributed = [digit for digit in self._steps if digit.index is not None]
        first = first_replica(self.spec, distributed, self.following.ownership, self.draft)
        store = Move.on(self._level, self._element(total), self._placed(shared, number, kept, unit=True))
        rows = all_of((self._owning, self._rows_in_bounds(kept)))
        program = self._child("stored", store, all_of((rows, *last, first)))
        for name, view, active in (("earlier", before, True), ("carried", carry, False)):
            if view is not None:
                var = Var(self.draft.fresh("part"), 0, parts - 1)
                part = self._placed(shared, var, kept, unit=False)
                joined = self._join(
                    name, self._element(view), part, self._element(view), all_of((rows, less(var, number) if active else TRUE))
                )
                program += (For(var, as_expr(parts), joined, parts <= UNROLLED, self.draft.origin),)
        return program

    def _results(self, own: View, before: View | None, kept: Visits, high: Visits) -> tuple[Stmt, ...]:
        """Return the step that combines each element with those before the thread's elements."""
        visits = self._visits(self.low)
        views = self._views((*kept, *high, *visits))
        once: Expr = TRUE
        if not self.spec.dst.memory.private:
            distributed = [digit for digit in self._steps if digit.index is not None]
            once = first_replica(self.spec, distributed, self.following.ownership, self.draft)
        active = all_of((self._owning, once, self._in_bounds("dst", views)))
        source = self._at(own, visits)
        if before is None:
            return self._nest(visits, self._child("result", Move.on(self._level, source, views["dst"]), active))
        prefix = before
        program: tuple[Stmt, ...] = ()
        if active != TRUE:
            prefix = self._allocated("prefix", 1, RF)
            program = self._child("prefix", Move.on(self._level, self._element(before), self._element(prefix)))
        return (*program, *self._nest(visits, self._join("result", self._element(prefix), source, views["dst"], active)))

    # ------------------------------------------------------------------------------------------ properties

    @property
    def spec(self) -> Spec:
        """The scan."""
        return self.following.spec

    @property
    def _by(self) -> str:
        (only,) = self.spec.definition.formulas
        return only.combiner

    @property
    def _axis(self) -> int:
        """The dimension of the scan."""
        (only,) = self.spec.definition.formulas
        return self.spec.dims.index(only.along[0])

    @property
    def _steps(self) -> tuple[Digit, ...]:
        return self.following.steps or ()

    @property
    def _level(self) -> Level:
        """Return the level of the statements of a single thread."""
        return Lane if self.spec.level == Warp or self.spec.level.is_below(Warp) else Thread

    @property
    def _dtype(self) -> DType:
        """Return the type of partial results: that of the elements with at least 32 bits, so that only the results are rounded."""
        kind = self.spec.src.dtype
        return kind if kind.bits >= 32 else float32 if kind.kind == "float" else int32

    @property
    def _neutral(self) -> int | float:
        return neutral(self._by, self._dtype)

    @property
    def _owning(self) -> Expr:
        return is_owner(self.following.ownership, self.draft)

    @property
    def _is_prefixed(self) -> bool:
        """Whether other threads, or other iterations, have elements before those of a thread."""
        return bool(self.masks or self.rest or self.high)

    @property
    def _parts(self) -> int:
        """The number of totals in shared memory, for each row."""
        return math.prod(digit.size for digit in self.rest)

    def _require_parts(self, number: Expr, parts: int) -> None:
        """Refuse parts without an active thread: their totals in shared memory would never be written."""
        import numpy

        threads = numpy.arange(self.draft.workers or 1)
        numbers, owning = (
            numpy.broadcast_to(compiled(expand_definitions(value, self.draft))({self.draft.thread.name: threads}), threads.shape)
            for value in (number, self._owning)
        )
        written = len(set(numbers[owning == 1].tolist()))
        if written < parts:
            raise DecompositionError(
                f"{self.spec}: some of the parts that go through shared memory have no thread", got=f"{written} parts of {parts}",
                within=self.spec, at=self.draft.origin, hint="choose tiles of the load that use all threads to which they are assigned",
            )  # fmt: skip

    # ------------------------------------------------------------------------------------------ views, loops, children

    def _in_bounds(self, name: str, views: dict[str, View]) -> Expr:
        return in_bounds(self.spec, views[name], self.spec.uses[name], self._steps)

    def _rows_in_bounds(self, kept: Visits) -> Expr:
        """Return the condition that a thread's row is in bounds; its elements may be past the end of the row."""
        digits = [digit for digit in self._steps if digit.dim != self._axis]
        return in_bounds(self.spec, self._views(kept)["src"], self.spec.uses["src"], digits)

    def _visits(self, digits: Sequence[Digit]) -> list[tuple[Digit, Var]]:
        """Return digits with variables of loops, in the order of their strides."""
        ordered = sorted(digits, key=lambda digit: (digit.dim, digit.stride))
        return [(digit, Var(self.draft.fresh(self.spec.labels[digit.dim]), 0, digit.size - 1)) for digit in ordered]

    def _views(self, visits: Visits) -> dict[str, View]:
        """Return the operands at an element of a thread."""
        distributed = [digit for digit in self._steps if digit.index is not None]
        views = views_of_thread(self.spec, with_modes(self.spec, ()), distributed)
        for digit, index in visits:
            views = moved(views, self.spec, step_of(self.spec, digit), index, unit=False)
        return with_bounds(self.spec, views, [digit for digit, _ in visits])

    def _at(self, own: View, visits: Visits) -> View:
        """Return the copy of an element of a thread, by the digits `low`."""
        weight, fixed = 1, []
        for digit, index in visits:
            fixed.append(Fixed(digit.size, weight, False, index))
            weight *= digit.size
        return self._row(own, Dim((Mode(1, 1),), None, tuple(fixed)))

    def _element(self, view: View) -> View:
        """Return a thread's register."""
        return self._row(view, Dim((Mode(1, 1),)))

    def _row(self, view: View, place: Dim) -> View:
        return view.with_dims({self._axis + 1: place}).at(0, self.draft.thread, unit=True)

    def _of_warp(self, view: View) -> View:
        """Return a register of all lanes of a warp, as lanes and one value."""
        warps = (self.draft.workers or 1) // LANES
        view = view.with_dims({0: Dim((Mode(LANES, 1),), None, (Fixed(warps, LANES, True, self.draft.unit(Warp, Block)),))})
        for _ in range(len(view.dims) - 2):
            view = view.at(2, ZERO, unit=False)
        return view

    def _placed(self, shared: View, number: Expr, kept: Visits, unit: bool) -> View:
        """Return the total of a part of a row in shared memory."""
        places: dict[int, list[Fixed]] = {dim: [] for dim in range(len(self.spec.dims)) if dim != self._axis}
        for digit in self._steps:
            if digit.dim != self._axis and digit.index is not None:
                places[digit.dim].append(Fixed(digit.size, digit.stride, True, digit.index))
        for digit, index in kept:
            places[digit.dim].append(Fixed(digit.size, digit.stride, False, index))
        dims = {dim + 1: Dim((Mode(1, 1),), None, tuple(fixed)) for dim, fixed in places.items()}
        return shared.with_dims({self._axis + 1: Dim((Mode(1, 1),)), **dims}).at(0, number, unit=unit)

    def _allocated(self, suffix: str, count: int, memory: Memory) -> View:
        """Allocate `count` partial results per thread, or the parts of all rows in shared memory."""
        name = f"{SCANS_OF[self._by]}_{suffix}"
        places: list[Expr | int] = [ONE] * len(self.spec.dims)
        if memory.private:
            places[self._axis] = count
            shape: tuple[Expr | int, ...] = (self.draft.workers or 1, *places)
        else:
            rows = [self.spec.sizes[dim] if dim != self._axis else ONE for dim in range(len(self.spec.dims))]
            shape = (count, *rows)
        layout = ColMajor if memory.private else RowMajor
        view, allocation = temporary(self.spec, self.draft, name, shape, self._dtype, memory, layout)
        self.children.append(allocation)
        return view

    def _init(self, name: str, view: View) -> tuple[Stmt, ...]:
        return self._child(name, Init.on(self._level, self._element(view), value=self._neutral))

    def _join(self, name: str, left: View, right: View, result: View, active: Expr = TRUE) -> tuple[Stmt, ...]:
        return self._child(name, BinaryPointwise.on(self._level, left, right, result, operation=JOINED[self._by]), active)

    def _nest(self, visits: Visits, inner: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        """Return loops over digits around statements: that of the largest stride is the outer one."""
        for digit, var in visits:
            inner = (For(var, as_expr(digit.size), inner, True, self.draft.origin),)
        return inner

    def _child(self, name: str, spec: Spec, active: Expr = TRUE) -> tuple[Stmt, ...]:
        self.children.append(Child(name, spec, (self.step,), active))
        return (Hole(name),)


SCANS_OF = {by: name for name, by in SCANS.items()}
"""The scan that combines elements by a reduction."""


def _number(digits: Sequence[Digit]) -> Expr:
    """Return the number that digits of threads form, the first one with the smallest stride."""
    total, weight = as_expr(0), 1
    for digit in sorted(digits, key=lambda digit: digit.stride):
        assert digit.index is not None
        total, weight = total + digit.index * weight, weight * digit.size
    return total
