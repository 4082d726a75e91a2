"""Reductions over registers: each thread reduces what it holds, lanes of a warp by butterfly shuffles, the others through shared memory.

The holding says which digits of the thread's number step along a dimension that is reduced. A digit of the lane's number, wherever it
stands in it, is exchanged bit by bit (`shfl.sync.bfly`), so that all lanes of the group have the result. What differs from warp to warp, or
is no power of two, is written to shared memory and read back; `synchronize` finds the barrier between.
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
from fireiron.language.tree import Child, Context, Decomposition, Draft, Expansion
from fireiron.performing.layout_propagation import (
    Following,
    by_thread,
    ended,
    first_replica,
    inside,
    overhanging,
    placed_threads,
    same_elements,
    step_of,
    steps_of,
    taking_part,
    with_modes,
)
from fireiron.spec import AnySpec, Spec
from fireiron.specs.init import Init
from fireiron.specs.meaning import neutral
from fireiron.specs.move import Move
from fireiron.specs.pointwise import BinaryPointwise
from fireiron.specs.reduction import Reduction
from fireiron.specs.shfl import Shfl
from fireiron.values.expr import TRUE, Expr, Var, all_of, as_expr, compiled, constant, less
from fireiron.values.machine import RF, SH, Block, DType, Lane, Level, Memory, Thread, Warp, float32, int32
from fireiron.values.tensor import ColMajor, Dim, Fixed, MatrixLayout, Mode, RowMajor, View

LANES = 32
"""Threads of a warp."""

LETTERS = "abcdefghijklmnopqrstuvwxy"
PARTS = "z"
"""The dimension of partial results, beside those that have one of the letters."""

JOINED = {"sum": "+", "max": "max", "min": "min", "prod": "*"}

Visits = Sequence[tuple[Digit, Expr]]
"""Digits that a thread visits, each with the variable of its loop."""


def reduced_by(spec: Spec, context: Context) -> Following | None:
    """What says which thread reduces what: the holder of the source in registers, or else of the result; None where there is none."""
    if not spec.reduces:
        return None
    if spec.in_parts and not spec.src.memory.private:
        raise DecompositionError(
            f"{spec}: only what threads hold of the terms says whose part is which", got=f"terms in {spec.src.memory}",
            hint="a load of the terms to RF with a strategy, or no rfactor(...)",
        )  # fmt: skip
    name = "src" if spec.src.memory.private else "dst"
    holding = context.held.get(spec.operands[name].tensor.name)
    if holding is None:
        return None
    steps = steps_of(spec, name, holding)
    if steps is not None and name == "dst":
        steps = (*steps, *_all_terms(spec))
    return Following(spec, name, holding, steps)


def _all_terms(spec: Spec) -> list[Digit]:
    """The reduced dimensions as digits of which a thread visits all."""
    sizes = [(dim, constant(spec.size(name)) or 0) for dim, name in enumerate(spec.dims) if name not in spec.tile_dims]
    return [Digit(dim, size, 1, DigitKind.VALUES) for dim, size in sizes if size != 1]


def reduction(following: Following, step: Decomposition, context: Context) -> Expansion:
    """A reduction of what threads hold; `step` ends the chain of each of its parts."""
    if not following.spec.in_parts:
        return _Across(following, step, context.draft()).expansion()
    following, parts = left_in_parts(following, context)
    return _Across(following, step, context.draft(), parts).expansion()


def require_apart(spec: Spec) -> None:
    """Refuse a reduction in parts of which one thread has all terms."""
    if spec.level.threads == 1:
        raise DecompositionError(
            f"{spec}: one thread has all terms of a result, so there are no parts",
            hint="deal the terms to lanes, or leave rfactor(...) out",
        )


def left_in_parts(following: Following, context: Context) -> tuple[Following, tuple[Digit, ...]]:
    """A reduction in parts with digits along the dimension of the parts; and the digits of the terms that become these.

    Raises: DecompositionError where the threads that have terms of one result are not so many, or do not keep their parts in registers.
    """
    spec = following.spec
    fresh = [dim for dim in spec.uses["dst"] if dim not in spec.uses["src"]]
    if len(fresh) != 1:
        raise DecompositionError(
            f"{spec}: of terms that have not all dimensions of the result no threads hold parts of one",
            within=spec,
            at=context.origin,
            hint="leave partial out",
        )
    (dim,) = fresh
    count = constant(spec.size(dim))
    assert count is not None  # a number of parts that a strategy says
    if not spec.dst.memory.private:
        raise DecompositionError(
            f"{spec}: parts lie in registers of who adds them up",
            got=f"{spec.dst.tensor.name} in {spec.dst.memory}",
            hint="place the whole",
        )
    terms = [one for one in following.steps or () if spec.dims[one.dim] not in spec.tile_dims and one.index is not None]
    _, lanes, rest = butterfly(terms, following.holding, context)
    dearest = [one for digits in (rest, lanes) for one in sorted(digits, key=lambda one: -one.stride)]
    found = _leading(dearest, count)
    if found is None:
        total = math.prod(one.size for one in dearest)
        legal = [number for number in range(2, total + 1) if _leading(dearest, number) is not None]
        raise DecompositionError(
            f"{spec}: {count} parts of each result, and {total} threads have terms of one",
            got=count, legal=legal or "none: leave partial out", within=spec, at=context.origin,
        )  # fmt: skip
    others = [one for one in following.steps or () if one not in terms]
    joined = _without(dearest, found)
    weight, parts = 1, []
    for one in reversed(found):
        parts.append(attrs.evolve(one, dim=spec.dims.index(dim), stride=weight))
        weight *= one.size
    return attrs.evolve(following, steps=(*others, *found, *joined, *parts)), tuple(found)


def _leading(digits: Sequence[Digit], count: int) -> list[Digit] | None:
    """So many parts of digits, the first ones; of the last its upper part; None where they are not so many."""
    found: list[Digit] = []
    for one in digits:
        size = math.gcd(one.size, count)
        part = one.between(one.end // size, one.end)
        if part is None or size < min(one.size, count):
            return None
        found += [part] if size > 1 else []
        count //= size
    return found if count == 1 else None


def _without(digits: Sequence[Digit], parts: Sequence[Digit]) -> list[Digit]:
    """What is left of digits behind their upper parts."""
    taken = {(one.dim, one.end): one.size for one in parts}
    rest = (one.between(one.stride, one.end // taken.get((one.dim, one.end), 1)) for one in digits)
    return [one for one in rest if one is not None and one.size > 1]


def butterfly(terms: Sequence[Digit], holding: Ownership, context: Context) -> tuple[tuple[int, ...], list[Digit], list[Digit]]:
    """The masks of the shuffles that join all lanes of some digits, these digits, and those that are left: of warps, of other radices."""
    masks: list[int] = []
    joined: list[Digit] = []
    rest: list[Digit] = []
    for one in terms:
        found = _masks(one, holding, context)
        masks += found
        middle = one.stride << len(found)
        for digits, part in ((joined, one.between(one.stride, middle)), (rest, one.between(middle, one.end))):
            digits += [part] if part is not None and part.size > 1 else []
    return tuple(sorted(masks, reverse=True)), joined, rest


def _masks(one: Digit, holding: Ownership, context: Context) -> list[int]:
    """The bits of the lane's number that are a digit's, lowest first; none where it is not in it, or the first lane has no terms."""
    import numpy

    workers = context.workers or 1
    if workers % LANES or not _warps_whole(context):
        return []
    assert one.index is not None
    threads = numpy.arange(workers)
    index, taking = (
        numpy.broadcast_to(compiled(by_thread(value, context))({context.thread.name: threads}), threads.shape).astype(int)
        for value in (one.index, taking_part(holding, context))
    )
    second = (index == 1) & (taking == 1)  # of a dimension of one element nobody has a second
    weight = int(numpy.argmax(second if second.any() else index == 1))
    if not weight or LANES % weight or (index != threads // weight % one.size)[taking == 1].any():
        return []
    lanes = math.gcd(one.size, LANES // weight)
    found = [weight << bit for bit in range(lanes.bit_length() - 1)]
    # Who holds no terms has what changes nothing; but the first of those who exchange theirs has to hold some, as it speaks for them.
    return found if all((taking[threads & ~mask] >= taking).all() for mask in found) else []


def _warps_whole(context: Context) -> bool:
    """Whether all lanes of a warp take part, or none."""
    warp, lane = Var("#warp", 0, max(context.thread.high // LANES, 0)), Var("#lane", 0, LANES - 1)
    return lane not in by_thread(context.active, context).substitute({context.thread: warp * LANES + lane}).variables()


@attrs.define
class _Across:
    """One such reduction, with the children that it makes."""

    following: Following
    step: Decomposition
    draft: Draft
    parts: tuple[Digit, ...] = ()
    """The digits of the terms that nobody joins, as the result has a part for each."""
    children: list[Child] = attrs.field(factory=list, init=False)

    def expansion(self) -> Expansion:
        at_once, looped = self._own_terms()
        if not self._digits(kept=False, dealt=True) and not looped and self._delivers():
            program = self._direct(at_once)
        else:
            program = self._by_parts(at_once, looped)
        made = tuple(Hole(one.name) for one in self.children if one.spec.allocates)
        return self.draft.expansion(tuple(self.children), (*made, *program))

    # ------------------------------------------------------------------------------------------ stages

    def _direct(self, at_once: Sequence[Digit]) -> tuple[Stmt, ...]:
        """No term is another thread's: each reduces what it has into the result."""
        once = TRUE if self.spec.dst.memory.private else self._first(())
        visits, active = self._visits(), all_of((self._taking, once))
        views = self._at(visits, at_once)
        active = all_of((active, self._inside("src", views)))
        own = self.spec.at_level(self._level).with_operands(**views).with_options(in_parts=False)
        return self._nest(visits, self._child("own", own, active))

    def _by_parts(self, at_once: Sequence[Digit], looped: Sequence[Digit]) -> tuple[Stmt, ...]:
        """Each thread its own terms, then the lanes of a warp, then those that do not meet by shuffles."""
        masks, joined, rest = butterfly(self._digits(kept=False, dealt=True), self.following.holding, self.draft)
        part = self._allocated("rf", (self.draft.workers or 1, *self._counts), RF)
        overhang = overhanging(self.spec, self.following.steps or ())
        fill = self._filled(part) if looped or overhang or self._taking != TRUE else ()
        program = (self._note(masks, rest), *fill, *self._own(part, at_once, looped, bool(fill)), *self._shuffled(part, masks))
        if not rest and self._delivers():
            once = TRUE if self.spec.dst.memory.private else self._first(joined)
            return (*program, *self._total(self._row, part, once))
        return (*program, *self._through_shared(part, self._first(joined), rest))

    def _note(self, masks: Sequence[int], rest: Sequence[Digit]) -> Comment:
        """Who reduces what, for the reader of the text."""
        parts = ["in each thread"] if self._digits(kept=False, dealt=False) else []
        parts += [f"over {2 ** len(masks)} lanes by shuffles"] if masks else []
        parts += [f"{math.prod(one.size for one in rest)} partial results through shared memory"] if rest else []
        return Comment(f"{self.spec}: {', '.join(parts or ['through shared memory'])}")

    def _filled(self, part: View) -> tuple[Stmt, ...]:
        """What changes nothing, in all threads: those that hold no terms take part in shuffles too."""
        visits = self._visits()
        return self._nest(
            visits, self._child("neutral", Init.on(self._level, self._row(part, visits), value=neutral(self._by, self._dtype)))
        )

    def _own(self, part: View, at_once: Sequence[Digit], looped: Sequence[Digit], accumulate: bool) -> tuple[Stmt, ...]:
        """What a thread holds of the terms, into its own partial results."""
        visits, loops = self._visits(), self._visits_of(looped)
        views = self._at((*visits, *loops), at_once)
        letters = dict(zip(self.spec.dims, LETTERS, strict=False))
        read, written = ("".join(letters[dim] for dim in self.spec.uses[name]) for name in ("src", "dst"))
        target = self._row(part, visits, thread=False)
        options = {"by": self._by, "signature": f"{read}->{written}", "accumulate": accumulate}
        active = all_of((self._taking, self._inside("src", views)))
        return self._nest((*visits, *loops), self._child("own", Reduction.on(self._level, views["src"], target, **options), active))

    def _shuffled(self, part: View, masks: Sequence[int]) -> tuple[Stmt, ...]:
        """Each lane joins what it has with what its partner has, one mask after the other."""
        if not masks:
            return ()
        other = self._allocated("other", part.shape, RF)
        outer = [(count, Var(self.draft.fresh(self.spec.labels[dim]), 0, count - 1)) for dim, count in enumerate(self._counts) if dim]
        own, received = (self._slice(one, [var for _, var in outer], self._thread()) for one in (part, other))
        given, taken = (self._slice(one, [var for _, var in outer], self._warp()) for one in (part, other))
        program: tuple[Stmt, ...] = ()
        for mask in masks:
            program += self._child(f"shuffle{mask}", Shfl.on(Warp, given, taken, mask=mask))
            program += self._child(f"join{mask}", BinaryPointwise.on(self._level, own, received, own, operation=JOINED[self._by]))
        for count, var in reversed(outer):
            program = (For(var, as_expr(count), program, True, self.draft.origin),)
        return program

    def _through_shared(self, part: View, once: Expr, rest: Sequence[Digit]) -> tuple[Stmt, ...]:
        """Partial results to shared memory, of those that hold the same `once`, and back to whoever wants the result."""
        parts = math.prod(one.size for one in rest)
        self._require_parts(rest, parts)
        shared = self._allocated("sh", (parts, *map(self.spec.size, self.spec.tile_dims)), SH, RowMajor)
        visits = self._visits()
        active = all_of((self._taking, once, self._inside("dst", self._at(visits, ()))))
        target = self._placed(shared, visits, _numbered(rest))
        store = self._nest(visits, self._child("parts", Move.on(self._level, self._row(part, visits), target), active))
        private = self.spec.dst.memory.private
        if private and self.spec.dst.tensor.name not in self.draft.held:
            whole = Dim((Mode(parts, 1),))
            return (*store, *self._total(lambda one, visits: self._placed(one, visits, whole), shared, TRUE))
        total = self._to_result(self.spec.level, shared, self.spec.dst)
        steps = (self.step,) if private else _in_turns(total, parts, self.step)
        return (*store, Comment(f"{shared.tensor.name}: {total}"), *self._child("total", total, steps=steps))

    def _require_parts(self, rest: Sequence[Digit], parts: int) -> None:
        """Refuse parts that no thread has which takes part: what is read of them in shared memory nobody would have written."""
        import numpy

        threads = numpy.arange(self.draft.workers or 1)
        taking, *indices = (
            numpy.broadcast_to(compiled(by_thread(one, self.draft))({self.draft.thread.name: threads}), threads.shape)
            for one in (self._taking, *(one.index for one in rest if one.index is not None))
        )
        written = set(zip(*(one[taking == 1].tolist() for one in indices), strict=True))
        if rest and len(written) < parts:
            raise DecompositionError(
                f"{self.spec}: some of the parts that go through shared memory no thread has",
                got=f"{len(written)} parts of {parts}", within=self.spec, at=self.draft.origin,
                hint="tiles of its load that fill the threads to which they are dealt",
            )  # fmt: skip

    def _total(self, of: Callable[[View, Visits], View], source: View, active: Expr) -> tuple[Stmt, ...]:
        """The result where threads hold its elements, from what each of them finds at its own."""
        visits = self._visits()
        views = self._at(visits, ())
        total = self._to_result(self._level, of(source, visits), views["dst"])
        return self._nest(visits, self._child("total", total, all_of((self._taking, active, self._inside("dst", views)))))

    def _to_result(self, level: Level, source: View, target: View) -> Spec:
        kept = LETTERS[: self._rank]
        options = {"by": self._by, "signature": f"{PARTS}{kept}->{kept}", "accumulate": self.spec.accumulate}
        return Reduction.on(level, source, target, **options)

    # ------------------------------------------------------------------------------------------ what is known

    @property
    def spec(self) -> Spec:
        """The reduction."""
        return self.following.spec

    @property
    def _by(self) -> str:
        (only,) = self.spec.definition.formulas
        return only.joins_by

    @property
    def _rank(self) -> int:
        return len(self.spec.tile_dims)

    @property
    def _level(self) -> Level:
        """That of what a thread does alone."""
        return Lane if self.spec.level == Warp or self.spec.level.is_below(Warp) else Thread

    @property
    def _dtype(self) -> DType:
        """The type of partial results: that of the terms, of 32 bits at least, so that none is rounded before the end."""
        kind = self.spec.src.dtype
        return kind if kind.bits >= 32 else float32 if kind.kind == "float" else int32

    @property
    def _taking(self) -> Expr:
        return taking_part(self.following.holding, self.draft)

    @property
    def _counts(self) -> list[int]:
        """How many results a thread has a part of, by dimension."""
        kept = self._digits(kept=True, dealt=False)
        return [math.prod(one.size for one in kept if one.dim == dim) for dim in range(self._rank)]

    def _digits(self, kept: bool, dealt: bool) -> list[Digit]:
        """The digits along dimensions of the result, or reduced ones; dealt to threads, or visited."""
        steps = [one for one in self.following.steps or () if one not in self.parts]
        found = [one for one in steps if (one.dim < self._rank) == kept and (one.index is not None) == dealt]
        return sorted(found, key=lambda one: (one.dim, one.stride))

    def _own_terms(self) -> tuple[list[Digit], list[Digit]]:
        """The digits of the terms that one statement takes, and those over which it is repeated."""
        at_once: list[Digit] = []
        looped: list[Digit] = []
        for one in self._digits(kept=False, dealt=False):
            few = (
                not looped
                and one not in overhanging(self.spec, [one])
                and math.prod(other.size for other in at_once) * one.size <= MOST_PARTS
            )
            (at_once if few else looped).append(one)
        return at_once, looped

    def _delivers(self) -> bool:
        """Whether the threads that have the parts of an element are those that want it."""
        target = self.spec.dst
        holding = self.draft.held.get(target.tensor.name) if target.memory.private else None
        if holding is None or self.following.name == "dst":
            return True
        wanted = steps_of(self.spec, "dst", holding)
        own = self._digits(kept=True, dealt=True) + self._digits(kept=True, dealt=False)
        return wanted is not None and same_elements(own, wanted, self.draft)

    def _first(self, joined: Sequence[Digit]) -> Expr:
        """The condition under which a thread is the first of those that have the same: of lanes that joined theirs, and of replicas."""
        dealt = [one for one in self.following.steps or () if one.index is not None and one not in self.parts]
        first = [less(one.index, as_expr(1)) for one in joined if one.index is not None]
        return all_of((*first, first_replica(self.spec, dealt, self.following.holding, self.draft)))

    # ------------------------------------------------------------------------------------------ views, loops, children

    def _inside(self, name: str, views: Mapping[str, View]) -> Expr:
        """The condition that a thread does not go over the end of a dimension of an operand in its last turn."""
        return inside(self.spec, views[name], self.spec.uses[name], self.following.steps or ())

    def _visits_of(self, digits: Sequence[Digit]) -> list[tuple[Digit, Var]]:
        names = [self.draft.fresh(self.spec.labels[one.dim]) for one in digits]
        return [(one, Var(name, 0, one.size - 1)) for one, name in zip(digits, names, strict=True)]

    def _visits(self) -> list[tuple[Digit, Var]]:
        return self._visits_of(self._digits(kept=True, dealt=False))

    def _at(self, visits: Visits, at_once: Sequence[Digit]) -> dict[str, View]:
        """The operands where a thread has them, in the turn of its loops, with the terms that it takes at once."""
        dealt = [one for one in self.following.steps or () if one.index is not None]
        views = placed_threads(self.spec, with_modes(self.spec, at_once), dealt, at_once)
        for one, index in visits:
            views = moved(views, self.spec, step_of(self.spec, one), index, unit=False)
        return ended(self.spec, views, [one for one, _ in visits], at_once)

    def _thread(self) -> Dim:
        """A thread's own row of partial results."""
        return Dim((Mode(1, 1),), None, (Fixed(self.draft.workers or 1, 1, True, self.draft.thread),))

    def _warp(self) -> Dim:
        """The rows of the lanes of a warp."""
        warps = (self.draft.workers or 1) // LANES
        return Dim((Mode(LANES, 1),), None, (Fixed(warps, LANES, True, self.draft.unit(Warp, Block)),))

    def _row(self, part: View, visits: Visits, thread: bool = True) -> View:
        """A thread's partial result in the turn of its loops; without the dimension of threads, if so asked."""
        view = part
        for dim in range(self._rank):
            fixed: list[Fixed] = []
            weight = 1
            for one, index in (pair for pair in visits if pair[0].dim == dim):
                fixed.append(Fixed(one.size, weight, False, index))
                weight *= one.size
            view = view.with_dims({dim + 1: Dim((Mode(1, 1),), None, tuple(fixed))})
        return view.with_dims({0: self._thread()}) if thread else view.at(0, self.draft.thread, unit=True)

    def _slice(self, part: View, outer: Sequence[Var], rows: Dim) -> View:
        """The partial results of some threads along the first dimension, at one place of the others."""
        view = part.with_dims({0: rows})
        for var in outer:
            view = view.at(2, var, unit=False)
        return view

    def _placed(self, shared: View, visits: Visits, number: Dim) -> View:
        """A thread's place in shared memory: at the number of its part, and where the element lies in the result."""
        places: list[list[Fixed]] = [[] for _ in range(self._rank)]
        for one in self._digits(kept=True, dealt=True):
            assert one.index is not None
            places[one.dim].append(Fixed(one.size, one.stride, True, one.index))
        for one, index in visits:
            if one.dim < self._rank:
                places[one.dim].append(Fixed(one.size, one.stride, False, index))
        dims = {dim + 1: Dim((Mode(1, 1),), None, tuple(fixed)) for dim, fixed in enumerate(places)}
        return shared.with_dims({0: number, **dims})

    def _allocated(self, suffix: str, shape: Sequence[Expr | int], memory: Memory, layout: MatrixLayout = ColMajor) -> View:
        """A temporary for partial results, with the child that says so."""
        name = suffix if self.draft.prefix.endswith(f"{self._by}_") else f"{self._by}_{suffix}"  # a step may be called sum
        view, made = temporary(self.spec, self.draft, name, shape, self._dtype, memory, layout)
        self.children.append(made)
        return view

    def _nest(self, visits: Sequence[tuple[Digit, Var]], inner: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        """Loops over digits around statements."""
        for one, var in visits:
            inner = (For(var, as_expr(one.size), inner, True, self.draft.origin),)
        return inner

    def _child(self, name: str, spec: Spec, active: Expr = TRUE, steps: tuple[Decomposition, ...] = ()) -> tuple[Stmt, ...]:
        self.children.append(Child(name, spec, steps or (self.step,), active))
        return (Hole(name),)


def _numbered(rest: Sequence[Digit]) -> Dim:
    """The number of a part, by the digits that tell threads apart."""
    fixed: list[Fixed] = []
    weight = 1
    for one in rest:
        assert one.index is not None
        fixed.append(Fixed(one.size, weight, True, one.index))
        weight *= one.size
    return Dim((Mode(1, 1),), None, tuple(fixed))


def _in_turns(total: Spec, parts: int, last: Decomposition) -> tuple[Decomposition, ...]:
    """One element of a result in memory a thread, those of more parts than a statement takes in steps."""
    layout = total.dst.tensor.layout
    order = RowMajor if isinstance(layout, MatrixLayout) and layout.order == "row" else ColMajor
    tile = default_copy(order, len(total.tile_dims))[:-1]
    turns = written(AnySpec.split(**{PARTS: math.gcd(parts, MOST_PARTS)})) if parts > MOST_PARTS else ()
    return (*tile, *turns, last)
