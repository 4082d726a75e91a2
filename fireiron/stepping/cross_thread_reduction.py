"""Reductions over registers: first within each thread, then across lanes by butterfly shuffles, then across warps in shared memory.

The ownership determines which digits of the thread index step along a reduced dimension. For a digit of the lane index, `shfl.sync.bfly`
exchanges values bit by bit, so that all lanes of the group have the result. Digits of the warp index, and digits whose radix is not a power
of two, are reduced through shared memory; `synchronize` inserts the barrier.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import attrs

from fireiron.errors import DecompositionError
from fireiron.executable.reduce import MOST_PARTS
from fireiron.ir import Comment, For, Hole, Stmt
from fireiron.ir.register_ownership import Digit, DigitKind, Ownership
from fireiron.language.dividing import moved
from fireiron.language.substrategy import default_copy, temporary, written
from fireiron.language.tree import Context, Decomposition, Expansion
from fireiron.performing.layout_propagation import (
    Following,
    expand_definitions,
    first_replica,
    in_bounds,
    is_owner,
    overhanging,
    same_elements,
    step_of,
    steps_of,
    views_of_thread,
    with_bounds,
    with_modes,
)
from fireiron.spec import AnySpec, Spec
from fireiron.specs.init import Init
from fireiron.specs.meaning import neutral
from fireiron.specs.move import Move
from fireiron.specs.pointwise import BinaryPointwise
from fireiron.specs.reduction import Reduction
from fireiron.specs.shfl import Shfl
from fireiron.stepping.cross_thread import JOINED, LANES, CrossThread, number_of
from fireiron.values.expr import TRUE, Expr, Var, all_of, as_expr, compiled, constant, less
from fireiron.values.machine import RF, SH, Block, Level, Memory, Warp
from fireiron.values.tensor import ColMajor, Dim, Fixed, MatrixLayout, Mode, RowMajor, View

LETTERS = "abcdefghijklmnopqrstuvwxy"
PARTS = "z"
"""The label of the dimension of partial results."""

Visits = Sequence[tuple[Digit, Expr]]
"""Digits that a thread visits, each with the variable of its loop."""


def reduced_by(spec: Spec, context: Context) -> Following | None:
    """Return the ownership that a reduction follows: that of the source in registers, or else of the result; None if neither has one."""
    if not spec.reduces:
        return None
    if spec.in_parts and not spec.src.memory.private:
        raise DecompositionError(
            f"{spec}: the owners of the terms in registers determine the parts", got=f"terms in {spec.src.memory}",
            hint="load the terms to RF with a strategy, or remove .rfactor(...)",
        )  # fmt: skip
    name = "src" if spec.src.memory.private else "dst"
    ownership = context.owners.get(spec.operands[name].tensor.name)
    if ownership is None:
        return None
    steps = steps_of(spec, name, ownership)
    if steps is not None and name == "dst":
        steps = (*steps, *_all_terms(spec))
    return Following(spec, name, ownership, steps)


def _all_terms(spec: Spec) -> list[Digit]:
    """Return the reduced dimensions as digits that one thread visits completely."""
    sizes = [(dim, constant(spec.size(name)) or 0) for dim, name in enumerate(spec.dims) if name not in spec.tile_dims]
    return [Digit(dim, size, 1, DigitKind.VALUES) for dim, size in sizes if size != 1]


def reduction(following: Following, step: Decomposition, context: Context) -> Expansion:
    """Expand a reduction of elements in registers; `step` ends the chain of each of its parts."""
    if not following.spec.in_parts:
        return _CrossThreadReduction(following, step, context.draft()).expansion()
    following, parts = partial_reduction(following, context)
    return _CrossThreadReduction(following, step, context.draft(), parts).expansion()


def require_apart(spec: Spec) -> None:
    """Refuse a reduction in parts if one thread has all terms."""
    if spec.level.threads == 1:
        raise DecompositionError(
            f"{spec}: one thread has all terms of a result, so there are no parts",
            hint="distribute the terms over lanes, or remove .rfactor(...)",
        )


def partial_reduction(following: Following, context: Context) -> tuple[Following, tuple[Digit, ...]]:
    """Return a reduction in parts with digits along the dimension of the parts, and the digits of the terms that become these digits.

    Raises: DecompositionError if the number of parts is not that of the threads with terms of a result, or parts are not in registers.
    """
    spec = following.spec
    fresh = [dim for dim in spec.uses["dst"] if dim not in spec.uses["src"]]
    if len(fresh) != 1:
        raise DecompositionError(
            f"{spec}: the terms do not have all dimensions of the result, so threads have no parts of a result",
            within=spec,
            at=context.origin,
            hint="remove .rfactor(...)",
        )
    (dim,) = fresh
    count = constant(spec.size(dim))
    assert count is not None  # a number of parts that a strategy specifies
    if not spec.dst.memory.private:
        raise DecompositionError(
            f"{spec}: parts must be in registers of the threads that compute them",
            got=f"{spec.dst.tensor.name} in {spec.dst.memory}",
            hint="set_memory applies to the complete result",
        )
    terms = [digit for digit in following.steps or () if spec.dims[digit.dim] not in spec.tile_dims and digit.index is not None]
    _, lanes, rest = butterfly(terms, following.ownership, context)
    most_expensive = [digit for digits in (rest, lanes) for digit in sorted(digits, key=lambda digit: -digit.stride)]
    part_digits = _leading(most_expensive, count)
    if part_digits is None:
        total = math.prod(digit.size for digit in most_expensive)
        legal = [number for number in range(2, total + 1) if _leading(most_expensive, number) is not None]
        raise DecompositionError(
            f"{spec}: {count} parts of each result, but {total} threads have terms of a result",
            got=count, legal=legal or "none: remove .rfactor(...)", within=spec, at=context.origin,
        )  # fmt: skip
    others = [digit for digit in following.steps or () if digit not in terms]
    joined = _without(most_expensive, part_digits)
    weight, parts = 1, []
    for digit in reversed(part_digits):
        parts.append(attrs.evolve(digit, dim=spec.dims.index(dim), stride=weight))
        weight *= digit.size
    return attrs.evolve(following, steps=(*others, *part_digits, *joined, *parts)), tuple(part_digits)


def _leading(digits: Sequence[Digit], count: int) -> list[Digit] | None:
    """Return the first digits whose sizes multiply to `count`, with only the upper part of the last one; None if there are none."""
    parts: list[Digit] = []
    for digit in digits:
        size = math.gcd(digit.size, count)
        part = digit.between(digit.end // size, digit.end)
        if part is None or size < min(digit.size, count):
            return None
        parts += [part] if size > 1 else []
        count //= size
    return parts if count == 1 else None


def _without(digits: Sequence[Digit], removed: Sequence[Digit]) -> list[Digit]:
    """Return the digits without the upper parts `removed`."""
    sizes = {(digit.dim, digit.end): digit.size for digit in removed}
    rest = (digit.between(digit.stride, digit.end // sizes.get((digit.dim, digit.end), 1)) for digit in digits)
    return [digit for digit in rest if digit is not None and digit.size > 1]


def butterfly(terms: Sequence[Digit], ownership: Ownership, context: Context) -> tuple[tuple[int, ...], list[Digit], list[Digit]]:
    """Return the shuffle masks that combine all lanes of some digits, these digits, and the other digits (of warps, or other radices)."""
    masks: list[int] = []
    joined: list[Digit] = []
    rest: list[Digit] = []
    for digit in terms:
        digit_masks = _masks(digit, ownership, context)
        masks += digit_masks
        middle = digit.stride << len(digit_masks)
        for digits, part in ((joined, digit.between(digit.stride, middle)), (rest, digit.between(middle, digit.end))):
            digits += [part] if part is not None and part.size > 1 else []
    return tuple(sorted(masks, reverse=True)), joined, rest


def _masks(digit: Digit, ownership: Ownership, context: Context) -> list[int]:
    """Return the bits of the lane index that form a digit, lowest first; none if there are no such bits, or the first lane has no terms."""
    import numpy

    workers = context.workers or 1
    if workers % LANES or not _warps_whole(context):
        return []
    assert digit.index is not None
    threads = numpy.arange(workers)
    index, owning = (
        numpy.broadcast_to(compiled(expand_definitions(value, context))({context.thread.name: threads}), threads.shape).astype(int)
        for value in (digit.index, is_owner(ownership, context))
    )
    second = (index == 1) & (owning == 1)  # a dimension of one element has no second element
    weight = int(numpy.argmax(second if second.any() else index == 1))
    if not weight or LANES % weight or (index != threads // weight % digit.size)[owning == 1].any():
        return []
    lanes = math.gcd(digit.size, LANES // weight)
    masks = [weight << bit for bit in range(lanes.bit_length() - 1)]
    # Lanes without terms have a neutral value. But the first lane of each exchange must own terms, because it stores the result.
    return masks if all((owning[threads & ~mask] >= owning).all() for mask in masks) else []


def _warps_whole(context: Context) -> bool:
    """Whether all or no lanes of each warp are active."""
    warp, lane = Var("#warp", 0, max(context.thread.high // LANES, 0)), Var("#lane", 0, LANES - 1)
    return lane not in expand_definitions(context.active, context).substitute({context.thread: warp * LANES + lane}).variables()


@attrs.define
class _CrossThreadReduction(CrossThread):
    """A reduction across threads, with the children that it creates."""

    parts: tuple[Digit, ...] = ()
    """The digits of the terms that are not combined, because the result has a part for each value."""

    def expansion(self) -> Expansion:
        at_once, looped = self._own_terms()
        if not self._digits(kept=False, distributed=True) and not looped and self._delivers():
            program = self._direct(at_once)
        else:
            program = self._by_parts(at_once, looped)
        allocations = tuple(Hole(child.name) for child in self.children if child.spec.allocates)
        return self.draft.expansion(tuple(self.children), (*allocations, *program))

    # ------------------------------------------------------------------------------------------ stages

    def _direct(self, at_once: Sequence[Digit]) -> tuple[Stmt, ...]:
        """Expand the case without exchange: each thread reduces its terms into the result."""
        once = TRUE if self.spec.dst.memory.private else self._first(())
        visits, active = self._visits(), all_of((self._owning, once))
        views = self._at(visits, at_once)
        active = all_of((active, self._in_bounds("src", views)))
        own = self.spec.at_level(self._level).with_operands(**views).with_options(in_parts=False)
        return self._nest(visits, self._child("own", own, active))

    def _by_parts(self, at_once: Sequence[Digit], looped: Sequence[Digit]) -> tuple[Stmt, ...]:
        """Expand the case with exchange: within each thread, then across the lanes of a warp, then through shared memory."""
        masks, joined, rest = butterfly(self._digits(kept=False, distributed=True), self.following.ownership, self.draft)
        part = self._allocated("rf", (self.draft.workers or 1, *(self._counts or (1,))), RF)
        overhang = overhanging(self.spec, self._steps)
        fill = self._filled(part) if looped or overhang or self._owning != TRUE else ()
        program = (self._note(masks, rest), *fill, *self._own(part, at_once, looped, bool(fill)), *self._shuffled(part, masks))
        if not rest and self._delivers():
            once = TRUE if self.spec.dst.memory.private else self._first(joined)
            return (*program, *self._total(self._row, part, once))
        return (*program, *self._through_shared(part, self._first(joined), rest))

    def _note(self, masks: Sequence[int], rest: Sequence[Digit]) -> Comment:
        """Return the comment about the stages of the reduction."""
        parts = ["in each thread"] if self._digits(kept=False, distributed=False) else []
        parts += [f"over {2 ** len(masks)} lanes by shuffles"] if masks else []
        parts += [f"{math.prod(digit.size for digit in rest)} partial results through shared memory"] if rest else []
        return Comment(f"{self.spec}: {', '.join(parts or ['through shared memory'])}")

    def _filled(self, part: View) -> tuple[Stmt, ...]:
        """Return the init with the neutral value, in all threads: those without terms execute the shuffles too."""
        visits = self._visits()
        return self._nest(
            visits, self._child("neutral", Init.on(self._level, self._row(part, visits), value=neutral(self._by, self._dtype)))
        )

    def _own(self, part: View, at_once: Sequence[Digit], looped: Sequence[Digit], accumulate: bool) -> tuple[Stmt, ...]:
        """Return the reduction of a thread's terms into its partial results."""
        visits, loops = self._visits(), self._visits_of(looped)
        views = self._at((*visits, *loops), at_once)
        letters = dict(zip(self.spec.dims, LETTERS, strict=False))
        read, written = ("".join(letters[dim] for dim in self.spec.uses[name]) for name in ("src", "dst"))
        target = self._row(part, visits, thread=False)
        options = {"by": self._by, "signature": f"{read}->{written}", "accumulate": accumulate}
        active = all_of((self._owning, self._in_bounds("src", views)))
        return self._nest((*visits, *loops), self._child("own", Reduction.on(self._level, views["src"], target, **options), active))

    def _shuffled(self, part: View, masks: Sequence[int]) -> tuple[Stmt, ...]:
        """Return the steps in which each lane combines its value with its partner's, one mask after the other."""
        if not masks:
            return ()
        other = self._allocated("other", part.shape, RF)
        outer = [(count, Var(self.draft.fresh(self.spec.labels[dim]), 0, count - 1)) for dim, count in enumerate(self._counts) if dim]
        own, received = (self._slice(view, [var for _, var in outer], self._thread()) for view in (part, other))
        sent, exchanged = (self._slice(view, [var for _, var in outer], self._warp()) for view in (part, other))
        program: tuple[Stmt, ...] = ()
        for mask in masks:
            program += self._child(f"shuffle{mask}", Shfl.on(Warp, sent, exchanged, mask=mask))
            program += self._child(f"join{mask}", BinaryPointwise.on(self._level, own, received, own, operation=JOINED[self._by]))
        for count, var in reversed(outer):
            program = (For(var, as_expr(count), program, True, self.draft.origin),)
        return program

    def _through_shared(self, part: View, once: Expr, rest: Sequence[Digit]) -> tuple[Stmt, ...]:
        """Return the steps that write partial results to shared memory, in threads for which `once` holds, and read them by the owners."""
        parts = math.prod(digit.size for digit in rest)
        self._require_parts(number_of(rest), parts)
        shared = self._allocated("sh", (parts, *map(self.spec.size, self.spec.tile_dims)), SH, RowMajor)
        visits = self._visits()
        active = all_of((self._owning, once, self._in_bounds("dst", self._at(visits, ()))))
        target = self._placed(shared, visits, _numbered(rest))
        store = self._nest(visits, self._child("parts", Move.on(self._level, self._row(part, visits), target), active))
        private = self.spec.dst.memory.private
        if private and self.spec.dst.tensor.name not in self.draft.owners:
            all_parts = Dim((Mode(parts, 1),))
            return (*store, *self._total(lambda view, visits: self._placed(view, visits, all_parts), shared, TRUE))
        total = self._to_result(self.spec.level, shared, self.spec.dst)
        steps = (self.step,) if private else _result_steps(total, parts, self.step)
        return (*store, Comment(f"{shared.tensor.name}: {total}"), *self._child("total", total, steps=steps))

    def _total(self, of: Callable[[View, Visits], View], source: View, active: Expr) -> tuple[Stmt, ...]:
        """Return the step that copies partial results to the result, in the threads that own its elements."""
        visits = self._visits()
        views = self._at(visits, ())
        total = self._to_result(self._level, of(source, visits), views["dst"])
        return self._nest(visits, self._child("total", total, all_of((self._owning, active, self._in_bounds("dst", views)))))

    def _to_result(self, level: Level, source: View, target: View) -> Spec:
        kept = LETTERS[: self._rank]
        options = {"by": self._by, "signature": f"{PARTS}{kept}->{kept}", "accumulate": self.spec.accumulate}
        return Reduction.on(level, source, target, **options)

    # ------------------------------------------------------------------------------------------ properties

    @property
    def _rank(self) -> int:
        return len(self.spec.tile_dims)

    @property
    def _counts(self) -> list[int]:
        """Return the number of results of which a thread has a part, by dimension."""
        kept = self._digits(kept=True, distributed=False)
        return [math.prod(digit.size for digit in kept if digit.dim == dim) for dim in range(self._rank)]

    def _digits(self, kept: bool, distributed: bool) -> list[Digit]:
        """Return the digits along dimensions of the result or reduced dimensions, distributed over threads or visited."""
        steps = [digit for digit in self._steps if digit not in self.parts]
        digits = [digit for digit in steps if (digit.dim < self._rank) == kept and (digit.index is not None) == distributed]
        return sorted(digits, key=lambda digit: (digit.dim, digit.stride))

    def _own_terms(self) -> tuple[list[Digit], list[Digit]]:
        """Return the digits of the terms that one statement processes, and those over which it loops."""
        at_once: list[Digit] = []
        looped: list[Digit] = []
        for digit in self._digits(kept=False, distributed=False):
            few = (
                not looped
                and digit not in overhanging(self.spec, [digit])
                and math.prod(previous.size for previous in at_once) * digit.size <= MOST_PARTS
            )
            (at_once if few else looped).append(digit)
        return at_once, looped

    def _delivers(self) -> bool:
        """Whether the threads with the parts of an element own that element."""
        target = self.spec.dst
        ownership = self.draft.owners.get(target.tensor.name) if target.memory.private else None
        if ownership is None or self.following.name == "dst":
            return True
        result_digits = steps_of(self.spec, "dst", ownership)
        kept_digits = self._digits(kept=True, distributed=True) + self._digits(kept=True, distributed=False)
        return result_digits is not None and same_elements(kept_digits, result_digits, self.draft)

    def _first(self, joined: Sequence[Digit]) -> Expr:
        """Return the condition under which a thread is the first one with its value, among lanes after the shuffles and among replicas."""
        distributed = [digit for digit in self._steps if digit.index is not None and digit not in self.parts]
        first = [less(digit.index, as_expr(1)) for digit in joined if digit.index is not None]
        return all_of((*first, first_replica(self.spec, distributed, self.following.ownership, self.draft)))

    # ------------------------------------------------------------------------------------------ views, loops, children

    def _in_bounds(self, name: str, views: Mapping[str, View]) -> Expr:
        """Return the condition that a thread's element is in bounds of an operand in its last iteration."""
        return in_bounds(self.spec, views[name], self.spec.uses[name], self._steps)

    def _visits(self) -> list[tuple[Digit, Var]]:
        return self._visits_of(self._digits(kept=True, distributed=False))

    def _at(self, visits: Visits, at_once: Sequence[Digit]) -> dict[str, View]:
        """Return the operands at the elements of a thread in an iteration of its loops, with the terms of one statement."""
        distributed = [digit for digit in self._steps if digit.index is not None]
        views = views_of_thread(self.spec, with_modes(self.spec, at_once), distributed, at_once)
        for digit, index in visits:
            views = moved(views, self.spec, step_of(self.spec, digit), index, unit=False)
        return with_bounds(self.spec, views, [digit for digit, _ in visits], at_once)

    def _thread(self) -> Dim:
        """Return a thread's row of partial results."""
        return Dim((Mode(1, 1),), None, (Fixed(self.draft.workers or 1, 1, True, self.draft.thread),))

    def _warp(self) -> Dim:
        """Return the rows of the lanes of a warp."""
        warps = (self.draft.workers or 1) // LANES
        return Dim((Mode(LANES, 1),), None, (Fixed(warps, LANES, True, self.draft.unit(Warp, Block)),))

    def _row(self, part: View, visits: Visits, thread: bool = True) -> View:
        """Return a thread's partial result in an iteration of its loops; without the dimension of threads if `thread` is False."""
        view = part if self._rank else part.only((0,))
        for dim in range(self._rank):
            fixed: list[Fixed] = []
            weight = 1
            for digit, index in (pair for pair in visits if pair[0].dim == dim):
                fixed.append(Fixed(digit.size, weight, False, index))
                weight *= digit.size
            view = view.with_dims({dim + 1: Dim((Mode(1, 1),), None, tuple(fixed))})
        return view.with_dims({0: self._thread()}) if thread else view.at(0, self.draft.thread, unit=True)

    def _slice(self, part: View, outer: Sequence[Var], rows: Dim) -> View:
        """Return the partial results of some threads along the first dimension, at one index of the others."""
        view = part.with_dims({0: rows})
        for var in outer:
            view = view.at(2, var, unit=False)
        return view

    def _placed(self, shared: View, visits: Visits, number: Dim) -> View:
        """Return a thread's element in shared memory: at the index of its part and the element's coordinates in the result."""
        places: list[list[Fixed]] = [[] for _ in range(self._rank)]
        for digit in self._digits(kept=True, distributed=True):
            assert digit.index is not None
            places[digit.dim].append(Fixed(digit.size, digit.stride, True, digit.index))
        for digit, index in visits:
            if digit.dim < self._rank:
                places[digit.dim].append(Fixed(digit.size, digit.stride, False, index))
        dims = {dim + 1: Dim((Mode(1, 1),), None, tuple(fixed)) for dim, fixed in enumerate(places)}
        return shared.with_dims({0: number, **dims})

    def _allocated(self, suffix: str, shape: Sequence[Expr | int], memory: Memory, layout: MatrixLayout = ColMajor) -> View:
        """Allocate a temporary for partial results."""
        name = suffix if self.draft.prefix.endswith(f"{self._by}_") else f"{self._by}_{suffix}"  # a step may be called sum
        view, allocation = temporary(self.spec, self.draft, name, shape, self._dtype, memory, layout)
        self.children.append(allocation)
        return view


def _numbered(rest: Sequence[Digit]) -> Dim:
    """Return the index of a part from the digits of threads."""
    fixed: list[Fixed] = []
    weight = 1
    for digit in rest:
        assert digit.index is not None
        fixed.append(Fixed(digit.size, weight, True, digit.index))
        weight *= digit.size
    return Dim((Mode(1, 1),), None, tuple(fixed))


def _result_steps(total: Spec, parts: int, last: Decomposition) -> tuple[Decomposition, ...]:
    """Return the steps that compute one element of a result in memory per thread, in several steps if it has too many parts."""
    layout = total.dst.tensor.layout
    order = RowMajor if isinstance(layout, MatrixLayout) and layout.order == "row" else ColMajor
    tile = default_copy(order, len(total.tile_dims))[:-1]
    steps = written(AnySpec.split(**{PARTS: math.gcd(parts, MOST_PARTS)})) if parts > MOST_PARTS else ()
    return (*tile, *steps, last)
