"""Followers: copies and other work on elements whose registers are held as something else decided, as statements of threads.

A spec follows if it reduces no dimension, and reads no neighbours: what a thread does to an element then does not depend on others.
The holding of its operand in registers says which elements are a thread's. The digits of the thread are placed on all operands, those
that it visits become loops, and the values that the deciding instruction takes at once one statement, where the text takes several.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs

from fireiron.errors import DecompositionError
from fireiron.ir import Exec, Hole, Stmt, filled
from fireiron.ir.lanes import LaneMap, Part, placed
from fireiron.ir.register_ownership import Digit, DigitKind, Ownership
from fireiron.ir.rewrite import by_identities
from fireiron.language.dividing import Step, loop_over, moved
from fireiron.language.tree import Context, Draft, Executable, Mismatch, access_of
from fireiron.spec import Spec
from fireiron.values.expr import ONE, TRUE, Expr, Var, all_of, as_expr, compiled, conjuncts, constant, less
from fireiron.values.machine import Block, Level
from fireiron.values.tensor import Dim, Mode, View
from fireiron.values.units import index_in, thread_of, unit_in

WIDEST = 16
"""Bytes of the widest load or store of a thread."""

MOST_NEIGHBOURS = 8
"""Most contiguous elements of one statement: 16 bytes of float16."""

LARGEST = 2**31
"""Larger than any distance in memory."""

MOST_TRIED = 4096
"""Most loop iterations in which the position of a view is evaluated."""

MOST_AT_ONCE = 16
"""Most values of one statement without a loop: those of a lane for any 8-bit operand."""


def elementwise(spec: Spec) -> bool:
    """Whether each element of the result is made of those in its own place, and of no other; an input may have fewer dimensions."""
    formulas = spec.definition.formulas
    return all(one.reduction is None and all(element.plain for element in one.elements) for one in formulas)


def unheld(spec: Spec, context: Context) -> bool:
    """Whether a spec works on registers of which nobody says yet who holds what."""
    views = tuple(spec.operands.values())
    if spec.reduces:
        # Who holds the terms says who makes the results; only without terms in registers it is the other way round.
        views = tuple(view for view in views if view.memory.private)[:1]
    elif not elementwise(spec):
        return False
    return any(view.memory.private and view.tensor.name not in context.held for view in views)


@attrs.frozen
class Following:
    """A spec that follows: `name` is the operand in registers, `holding` who holds it, and `steps` its digits inside the spec.

    No step goes over the end of a mode of any operand; None where the digits do not number the elements of the spec.
    """

    spec: Spec
    name: str
    holding: Ownership
    steps: tuple[Digit, ...] | None

    @staticmethod
    def of(spec: Spec, context: Context) -> Following | None:
        """What a spec follows, if anything; of what it writes and what it reads, the former decides."""
        for name in (*spec.outputs, *spec.inputs) if elementwise(spec) else ():
            if len(spec.uses[name]) < len(spec.dims):
                continue
            holding = context.held.get(spec.operands[name].tensor.name)
            if holding is not None:
                return Following(spec, name, holding, steps_of(spec, name, holding))
        return None

    @property
    def level(self) -> Level:
        """The level at which a single thread follows."""
        one = next((level for level in (self.holding.level, self.spec.level) if level.threads == 1), None)
        return one or thread_of(self.holding.level)

    @functools.cached_property
    def element(self) -> Spec:
        """The spec of one element of a thread, by which its instruction is found."""
        return element_of(self.spec, self.level)

    def mismatches(self, context: Context) -> tuple[Mismatch, ...]:
        """Why the threads of the spec do not hold its elements as another statement says."""
        return _mismatches(self, context)

    def _mismatches(self, context: Context) -> tuple[Mismatch, ...]:
        threads, other = self.spec.level.threads, self.holding.level.threads
        if threads is not None and threads != 1 and other is not None and threads < other:
            return (Mismatch("level", f"a group of {other} threads", self.spec.level.name),)
        sizes = "x".join(map(str, self.spec.sizes))
        if self.steps is None:
            lanes = self.holding.lane_map
            tile = sizes if lanes is None else f"multiples of {'x'.join(map(str, lanes.tile))}"
            held = f"{self.spec.operands[self.name].tensor.name} is held by {self.holding.level}"
            return (Mismatch("shape", f"{tile}, as {held}", sizes),)
        if self.in_turns(context):
            return (Mismatch("registers", "tiles that are dealt once", "tiles that are dealt in turns"),)
        own = self.spec.operands[self.name]
        if not _whole(self.spec, self.steps, self.holding, context) or not _reached_by_some(own, self.holding, context):
            return (Mismatch("level", f"one whose threads hold all of the {sizes} elements", self.spec.level.name),)
        if not _is_own(own, self.holding, context):
            held = f"as {self.holding.level} holds {own.tensor.name}"
            return (Mismatch("shape", f"tiles that reach over all threads which hold a part, {held}", f"{sizes} of some of them"),)
        return ()

    def in_turns(self, context: Context) -> bool:
        """Whether which tile is a thread's changes from turn to turn, and with it what its registers hold."""
        return in_turns(self.holding.digits, context)

    def require_distributed_once(self, context: Context) -> None:
        """Refuse tiles that are dealt in turns."""
        if self.in_turns(context):
            summed = self.holding.spec is not None and self.holding.spec.reduces
            own = "; the sum of split_k deals them by its last argument, Reduction.tile(...).to(Thread)...done()" if summed else ""
            raise DecompositionError(
                f"{self.spec.operands[self.name].tensor.name} cannot be divided over registers: its tiles are dealt in turns",
                got=self.holding.spec and f"{self.holding.spec}, whose tile is another in each turn",
                within=self.spec,
                at=context.origin,
                hint=f"make the number of tiles a multiple of, or divide, the number of units{own}",
            )

    @property
    def shared(self) -> bool:
        """Whether smaller groups of threads hold the spec together, so that an instruction of such a group may do its part."""
        whole = not overhanging(self.spec, self.steps or ())
        return whole and self.holding.level.threads not in (1, None) and self.holding.level.is_below(self.spec.level)

    def below(self, draft: Draft) -> tuple[Spec, Expr]:
        """The spec of such a group, all that its threads hold of the whole, and which groups take part."""
        assert self.steps is not None
        kept = sorted((one for one in self.steps if one.kind is not DigitKind.THREADS), key=lambda one: one.stride)
        views = _merged(with_modes(self.spec, kept))
        views = placed_threads(self.spec, views, [one for one in self.steps if one.kind is DigitKind.THREADS])
        active = all_of((taking_part(self.holding, draft), self._once(draft)))
        return self.spec.at_level(self.holding.level, **views), active

    def statements(self, executable: Executable, draft: Draft) -> tuple[Stmt, ...]:
        """Each thread does to what it holds of the spec what its instruction does to elements."""
        assert self.steps is not None
        visited = [one for one in self.steps if one.index is None]
        taken = self._together(visited) if self.holding.free else visited
        pairs = executable.on_pairs(self.element, draft.architecture) is not None
        values, loops = _values_and_loops(executable, self.spec, self.element, taken, pairs)
        views = placed_threads(self.spec, with_modes(self.spec, values), [one for one in self.steps if one.index is not None], visited)
        views = ended(self.spec, views, [one for one in visited if self._straddles(one, values, visited)], visited)
        active = TRUE if self.spec.level == self.holding.level else taking_part(self.holding, draft)
        active = all_of((active, self._once(draft)))
        unroll = all(one.unroll for one in loops)
        turns = list(_in_order(self.spec, loops))
        views, program, variables = loop_over(self.spec, views, turns, unroll, draft, (Hole("elements"),))
        end = inside(self.spec, views[self.name], self.spec.uses[self.name], self.steps)
        first = [var for var, turn in zip(variables, turns, strict=True) if self._within(turn, visited)]
        active = all_of((active, end.substitute(dict.fromkeys(first, 0))))
        inner = _statement(executable, self.spec.at_level(self.level, **views), self.spec, values, active, draft)
        return filled(program, {"elements": (inner,)})

    def _together(self, visited: Sequence[Digit]) -> list[Digit]:
        """What a thread visits, neighbours in memory first, as values that a statement may take at once; but not what goes over an end."""
        ends = overhanging(self.spec, visited)
        order = sorted(visited, key=lambda one: (*self._apart(one), one.stride))
        return [one if one in ends else attrs.evolve(one, kind=DigitKind.VALUES) for one in order]

    def _straddles(self, digit: Digit, values: Sequence[Digit], visited: Sequence[Digit]) -> bool:
        """Whether values of one statement lie on both sides of the end that a digit goes over: their first does not say it of all."""
        taken = math.prod(one.size for one in values if one.dim == digit.dim)
        return taken > neighbours(self.spec, digit.dim, visited)

    def _within(self, turn: Step, visited: Sequence[Digit]) -> bool:
        """Whether a loop stays in neighbours that all lie inside a dimension where the first does."""
        dim = self.spec.dims.index(turn.dim)
        own = turn.strides[self.name]
        together = neighbours(self.spec, dim, visited)
        return (constant(own * turn.size) or LARGEST) <= together

    def _apart(self, digit: Digit) -> tuple[int, ...]:
        """How far the elements of a digit lie apart in the operands in memory; those of which it is not known last."""
        spec, dim, found = self.spec, self.spec.dims[digit.dim], []
        for name, view in spec.operands.items():
            if dim in spec.uses[name] and not view.memory.private and not view.memory.counts:
                step = view.tensor.storage().steps[view.axis(spec.uses[name].index(dim))]
                found.append(LARGEST if step is None else constant(step) or LARGEST)
        return tuple(step * digit.stride for step in found)

    def _once(self, context: Context) -> Expr:
        """The condition under which a thread writes to memory that others see: of threads that hold the same, the first does."""
        assert self.steps is not None
        if all(self.spec.operands[name].memory.private for name in self.spec.outputs):
            return TRUE
        return first_replica(self.spec, [one for one in self.steps if one.index is not None], self.holding, context)


@by_identities  # each way in which a leaf may be performed asks
def _mismatches(following: Following, context: Context) -> tuple[Mismatch, ...]:
    return following._mismatches(context)


def in_turns(digits: Iterable[Digit], context: Context) -> bool:
    """Whether which tile is a thread's changes from turn to turn: nothing that the thread's number says."""
    known = context.whole.definitions.keys()
    return any(one.index is not None and any(var not in known and var != context.thread for var in one.index.variables()) for one in digits)


def element_of(spec: Spec, level: Level) -> Spec:
    """The spec of one element at a level."""
    one = (Mode(1, 1),)
    views = {
        name: view.with_dims({number: Dim(one, dim.bound, dim.fixed) for number, dim in enumerate(view.dims)})
        for name, view in spec.operands.items()
    }
    return spec.at_level(level, **views)


# ---------------------------------------------------------------------------------------------- digits of a spec


def steps_of(spec: Spec, name: str, holding: Ownership) -> tuple[Digit, ...] | None:
    """The digits inside a spec, none of which goes over the end of a mode of any operand; None where they do not number its elements.

    They count dimensions as the spec does, whichever of them the operand has.
    """
    inside = holding.inside(spec.operands[name])
    found = None if inside is None else tuple(one.along(spec.dims.index(spec.uses[name][one.dim])) for one in inside)
    for operand, view in spec.operands.items():
        for dim, part in zip(spec.uses[operand], view.dims, strict=True):
            reached = 1
            for number, mode in enumerate(part.modes):
                size = constant(mode.size)
                if found is None or size is None:
                    return None
                reached *= size
                if number < len(part.modes) - 1:
                    found = _cut(found, spec.dims.index(dim), reached)
    ends = {spec.dims[one.dim] for one in overhanging(spec, found or ())}
    along = [part for name in spec.operands for dim, part in zip(spec.uses[name], spec.operands[name].dims, strict=True) if dim in ends]
    return found if all(len(part.modes) == 1 for part in along) else None


def overhanging(spec: Spec, steps: Sequence[Digit]) -> tuple[Digit, ...]:
    """The digits whose last turn goes over the end of a dimension, as the units did not divide the tiles that were dealt to them."""
    return tuple(one for one in steps if one.end > (constant(spec.sizes[one.dim]) or 0))


def inside(spec: Spec, view: View, dims: Sequence[str], steps: Sequence[Digit]) -> Expr:
    """The condition that what a thread visits does not lie over the end of a dimension, by where it stands in one of the operands."""
    ends = [(dims.index(spec.dims[one.dim]), spec.sizes[one.dim]) for one in overhanging(spec, steps) if spec.dims[one.dim] in dims]
    return all_of(less(view.dims[position].base, size) for position, size in ends)


def _cut(digits: Sequence[Digit], dim: int, end: int) -> tuple[Digit, ...] | None:
    """The digits, of one that goes over an end along a dimension the parts before and behind it."""
    result: list[Digit] = []
    for one in digits:
        if one.dim != dim or not one.stride < end < one.end:
            result.append(one)
            continue
        parts = one.between(one.stride, end), one.between(end, one.end)
        if parts[0] is None or parts[1] is None:
            return None
        result += [part for part in parts if part is not None]
    return tuple(result)


def _placed(spec: Spec, name: str, digit: Digit) -> Iterator[tuple[int, int]]:
    """A digit in coordinates of an operand's tensor; nothing where the operand has not its dimension."""
    dims = spec.uses[name]
    if spec.dims[digit.dim] not in dims:
        return
    position = dims.index(spec.dims[digit.dim])
    modes = spec.operands[name].dims[position].modes
    if digit.end > (constant(spec.sizes[digit.dim]) or 0) and len(modes) == 1:  # its last turn goes over the end
        yield digit.size, (constant(modes[0].stride) or 1) * digit.stride
    else:
        yield from placed(spec.operands[name], digit.size, position, digit.stride)


def step_of(spec: Spec, digit: Digit) -> Step:
    """A digit as a step of all operands that have its dimension."""
    strides = {name: as_expr(stride) for name in spec.operands for _, stride in _placed(spec, name, digit)}
    return Step(spec.dims[digit.dim], as_expr(digit.size), strides)


def with_modes(spec: Spec, digits: Sequence[Digit]) -> dict[str, View]:
    """The operands with some digits only, at the others' first."""
    views = {}
    for name, view in spec.operands.items():
        dims = {}
        for number, (dim, part) in enumerate(zip(spec.uses[name], view.dims, strict=True)):
            found = [one for one in digits if spec.dims[one.dim] == dim]
            modes = [Mode(size, stride) for one in found for size, stride in _placed(spec, name, one)]
            dims[number] = Dim(tuple(modes) or (Mode(1, 1),), part.bound, part.fixed)
        views[name] = view.with_dims(dims)
    return views


def neighbours(spec: Spec, dim: int, visited: Sequence[Digit]) -> int:
    """How many elements side by side along a dimension a thread visits that all lie inside it, or none of them."""
    reached = 1
    for one in sorted((one for one in visited if one.dim == dim), key=lambda one: one.stride):
        size = constant(spec.sizes[dim])
        if one.stride != reached or size is None or size % one.end:
            break
        reached = one.end
    return reached


def placed_threads(spec: Spec, views: dict[str, View], digits: Sequence[Digit], visited: Sequence[Digit] = ()) -> dict[str, View]:
    """The views where a thread has them. Of what it has `visited` along a dimension whose end the last threads go over, a condition on
    the first of neighbours says whether it lies inside; other elements are asked one by one."""
    for one in digits:
        assert one.index is not None
        views = moved(views, spec, step_of(spec, one), one.index, unit=True)
    return ended(spec, views, digits, visited)


def ended(spec: Spec, views: dict[str, View], digits: Sequence[Digit], visited: Sequence[Digit] = ()) -> dict[str, View]:
    """The views with the ends of dimensions that the last turn of a digit, of threads or of a loop, goes over."""
    for one in overhanging(spec, digits):
        views = _ended(spec, views, one, neighbours(spec, one.dim, visited))
    return views


def _ended(spec: Spec, views: Mapping[str, View], digit: Digit, together: int) -> dict[str, View]:
    """The views with an end along the dimension of a digit: its own, or that of the dimension where elements are asked one by one."""
    found = dict(views)
    dim = spec.dims[digit.dim]
    for name in (name for name in views if dim in spec.uses[name]):
        position = spec.uses[name].index(dim)
        whole, part = spec.operands[name].dims[position], found[name].dims[position]
        taken = constant(part.size) or LARGEST
        if whole.bound is None:
            size = as_expr(digit.end) if taken <= together else spec.sizes[digit.dim]
            found[name] = found[name].with_dims({position: attrs.evolve(part, bound=whole.base + size)})
    return found


def same_elements(one: Sequence[Digit], other: Sequence[Digit], context: Context) -> bool:
    """Whether each thread has the same elements by some digits as by others."""
    return all(_reached(one, dim, context) == _reached(other, dim, context) for dim in {digit.dim for digit in (*one, *other)})


def _reached(digits: Sequence[Digit], dim: int, context: Context) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Along a dimension, where each thread starts, and how far from there its elements are."""
    import numpy

    threads = numpy.arange(context.workers or 1)
    start, offsets = 0 * threads, [0]
    for one in (one for one in digits if one.dim == dim):
        if one.index is None:
            offsets = [offset + index * one.stride for offset in offsets for index in range(one.size)]
        else:
            start = start + compiled(by_thread(one.index, context))({context.thread.name: threads}) * one.stride
    return tuple(start.tolist()), tuple(sorted(offsets))


# ---------------------------------------------------------------------------------------------- what is refused


def _whole(spec: Spec, steps: Sequence[Digit], holding: Ownership, context: Context) -> bool:
    """Whether the threads of each unit of a spec's level hold all of its elements together."""
    dealt = [one for one in steps if one.index is not None]
    lanes = [one for one in holding.digits if one.kind is DigitKind.LANES]
    if spec.level.threads is None:
        return True
    if spec.level == holding.level and lanes:
        # The lanes of an instruction hold its tile by what a lane map is; what is dealt to groups must not be asked of one of them.
        own_lanes = [one for one in steps if one.kind is DigitKind.LANES]
        return len(own_lanes) >= len(lanes) and not any(one.kind is DigitKind.THREADS for one in dealt)
    return not dealt or _covered(spec, dealt, holding, context)


def _count(values: Any) -> int:
    """How many different values there are; `numpy.unique` loads `numpy.ma`, which takes 8 ms."""
    ordered = values.ravel().copy()
    ordered.sort()
    return int((ordered[1:] != ordered[:-1]).sum()) + bool(ordered.size)


def _covered(spec: Spec, dealt: Sequence[Digit], holding: Ownership, context: Context) -> bool:
    """Whether in each unit that takes part all values of the threads' digits occur."""
    units, numbers = _placed_threads(spec, dealt, holding, context)
    total = math.prod(one.size for one in dealt)
    inside = bool(((numbers >= 0) & (numbers < total)).all())
    # Of a buffer that each unit has for itself nobody else writes the part of a unit whose threads hold nothing.
    own = any(spec.operands[name].memory.of_block and spec.operands[name].tensor.copies > 1 for name in spec.outputs)
    asked = _asked_of(spec, context) if own else units
    return inside and _count(units * total + numbers) == _count(asked) * total


def _asked_of(spec: Spec, context: Context) -> Any:
    """For each thread of whom the spec is asked its unit: those whose threads hold nothing of it are among them."""
    import numpy

    at = {context.thread.name: numpy.arange(context.workers or spec.level.threads or 1)}
    unit = compiled(unit_in(spec.level, Block, context.thread))(at)
    units, active = numpy.broadcast_arrays(unit, compiled(_of_threads(context.active, context))(at))
    return units[active != 0]


def _reached_by_some(view: View, holding: Ownership, context: Context) -> bool:
    """Whether each part of a tensor that threads perform a spec on is a part of some that take part: what the others hold nobody would
    hand them, where their parts are others."""
    import numpy

    threads = numpy.arange(context.workers or 1)
    known = {context.thread.name: threads}
    places = [by_thread(dim.base, context) for dim in view.dims]
    starts = [place.substitute({var: 0 for var in place.variables() if var != context.thread}) for place in places]
    performing = compiled(_of_threads(context.active, context))(known)
    taking = compiled(_of_threads(all_of((taking_part(holding, context), context.active)), context))(known)
    part = numpy.stack(numpy.broadcast_arrays(threads * 0, *(compiled(one)(known) for one in starts)))
    performing, taking = (numpy.broadcast_to(one, threads.shape) != 0 for one in (performing, taking))
    return {*map(tuple, part[:, performing].T.tolist())} <= {*map(tuple, part[:, taking].T.tolist())}


def _is_own(view: View, holding: Ownership, context: Context) -> bool:
    """Whether a view stands, for each thread that takes part and in all turns of loops, where the thread's own elements are.

    A tile smaller than what lies between two elements of a thread is some threads' and not others'.
    """
    import numpy

    threads = numpy.arange(context.workers or 1)
    taking = compiled(_of_threads(all_of((taking_part(holding, context), context.active)), context))({context.thread.name: threads})
    threads = threads[numpy.broadcast_to(taking, threads.shape) != 0]
    dims = {view.axis(dim): part for dim, part in enumerate(view.dims)}
    for one in holding.digits:
        if one.index is None or one.dim not in dims:
            continue
        index, part = by_thread(one.index, context), dims[one.dim]
        for outside in _outside(one, part):
            place = by_thread(part.base, context) // outside.stride % outside.size
            own = index // (outside.stride // one.stride) % outside.size
            if place != own and not _agree(place, own, context.thread.name, threads):
                return False
    return True


def _outside(digit: Digit, part: Dim) -> Iterator[Digit]:
    """What of a digit no coordinate of a view says: what its modes leave over of it."""
    low = digit.stride
    for mode in sorted(part.modes, key=lambda one: constant(one.stride) or 0):
        size, stride = constant(mode.size), constant(mode.stride)
        if size is None or stride is None or size == 1:
            continue
        if (before := digit.between(low, stride)) is not None and before.size > 1 and stride > low:
            yield before
        low = max(low, size * stride)
    if part.whole:
        return
    rest = digit.between(low, digit.end) if low < digit.end else None
    if rest is not None and rest.size > 1:
        yield rest


def _agree(one: Expr, other: Expr, thread: str, threads: Any) -> bool:
    """Whether two values are the same for some threads, whatever the other variables are; False where these are too many to be tried."""
    import numpy

    free = sorted((var for var in one.variables() | other.variables() if var.name != thread), key=lambda var: var.name)
    counts = [var.high - var.low + 1 for var in free]
    if math.prod(counts) > MOST_TRIED:
        return False
    for turn in itertools.product(*(range(var.low, var.low + count) for var, count in zip(free, counts, strict=True))):
        at = {thread: threads, **{var.name: value for var, value in zip(free, turn, strict=True)}}
        first, second, _ = numpy.broadcast_arrays(compiled(one)(at), compiled(other)(at), threads)
        if not numpy.array_equal(first, second):
            return False
    return True


def _taken(spec: Spec, dealt: Sequence[Digit], holding: Ownership, context: Context) -> list[tuple[int, int]]:
    """For each thread that takes part its unit of a spec's level, and the number that its digits make."""
    units, numbers = _placed_threads(spec, dealt, holding, context)
    return list(zip(units.tolist(), numbers.tolist(), strict=True))


def _placed_threads(spec: Spec, dealt: Sequence[Digit], holding: Ownership, context: Context) -> tuple[Any, Any]:
    """The same as two arrays."""
    import numpy

    at = {context.thread.name: numpy.arange(context.workers or spec.level.threads or 1)}
    number, total = 0 * at[context.thread.name], 1
    for one in dealt:
        assert one.index is not None
        number, total = number + compiled(by_thread(one.index, context))(at) * total, total * one.size
    unit = compiled(unit_in(spec.level, Block, context.thread))(at)
    active = compiled(by_thread(taking_part(holding, context), context))(at) & compiled(_of_threads(context.active, context))(at)
    units, numbers, active = numpy.broadcast_arrays(unit, number, active)
    return units[active != 0], numbers[active != 0]


def _of_threads(active: Expr, context: Context) -> Expr:
    """The conditions of a thread's number alone: which block or iteration it is does not matter to who holds what."""
    return all_of(one for one in conjuncts(by_thread(active, context)) if one.variables() <= {context.thread})


def first_replica(spec: Spec, dealt: Sequence[Digit], holding: Ownership, context: Context) -> Expr:
    """The condition under which a thread is the first in its unit of those that hold the same: one of them stores it for all."""
    count = spec.level.threads or context.workers or 1
    if math.prod(one.size for one in dealt) == count:
        return TRUE
    taken = _taken(spec, dealt, holding, context)
    if len(set(taken)) == len(taken):
        return TRUE
    parts = _lane_parts(dealt, count, context, taking_part(holding, context))
    if parts is None:
        parts = _bits(spec, taken, count, context)
    conditions = []
    weight = 1
    for size, _, stride in parts:
        if not stride:
            conditions.append(less(index_in(spec.level, context.thread) // weight % size, as_expr(1)))
        weight *= size
    return all_of(conditions)


def _bits(spec: Spec, taken: Sequence[tuple[int, int]], count: int, context: Context) -> tuple[Part, ...]:
    """A thread's number in its unit as parts, by its bits: those that move nothing stand for replicas, as of tiles that a permutation
    of the bits deals. A `DecompositionError` where others do."""
    workers = context.workers or count
    still = [bit for bit in range(count.bit_length() - 1) if _moves_nothing(taken, bit)] if len(taken) == workers else []
    if len(taken) != len(set(taken)) << len(still):
        raise DecompositionError(
            "several threads hold the same elements, and neither digits nor bits of their number say which of them is the first",
            got=f"{len(taken)} threads for {len(set(taken))} parts",
            legal="lanes dealt by digits, or by a permutation of the bits of their number",
            within=spec, at=context.origin, hint="deal the tiles without .swizzle(...), or store them through shared memory",
        )  # fmt: skip
    runs = itertools.groupby(range(count.bit_length() - 1), still.__contains__)
    return tuple((2 ** len(list(run)), 0, int(not replicas)) for replicas, run in runs)


def _moves_nothing(taken: Sequence[tuple[int, int]], bit: int) -> bool:
    """Whether each thread has what its partner has, whose number differs in a bit."""
    return all(one == taken[number ^ 1 << bit] for number, one in enumerate(taken))


def by_thread(value: Expr, context: Context) -> Expr:
    """A value with the names that steps gave to parts of it written out."""
    return _opened(value, context.whole.definitions)


@by_identities  # each instruction and each operand that is compared asks for the same few
def _opened(value: Expr, definitions: Mapping[Var, Expr]) -> Expr:
    while not definitions.keys().isdisjoint(value.variables()):
        value = value.substitute({var: definitions[var] for var in value.variables() if var in definitions})
    return value


@by_identities  # several instructions are asked about one operand, one after the other
def lanes_of(spec: Spec, name: str, holding: Ownership, context: Context) -> LaneMap | None:
    """What the lanes of a spec's group hold of an operand, as a map; None where no digits of the lane's number say it."""
    if holding.lane_map is not None:
        return holding.lane_map
    view = spec.operands[name]
    steps = holding.inside(view)
    if (
        steps is None
        or in_turns(steps, context)
        or overhanging(spec, steps)
        or spec.level.threads is None
        or not _whole(spec, steps, holding, context)
    ):
        return None
    lanes = _lane_parts([one for one in steps if one.index is not None], spec.level.threads, context)
    values = tuple((one.size, one.dim, one.stride) for one in steps if one.index is None)
    tile = tuple(constant(size) or 1 for size in view.shape)
    return None if lanes is None else LaneMap.along(tile, lanes, values)


def _lane_parts(dealt: Sequence[Digit], count: int, context: Context, taking: Expr = TRUE) -> tuple[Part, ...] | None:
    """The digits of threads as parts of a thread's number in a group of `count`, between them those that move nothing.

    Threads that are not `taking` part may have any number.
    """
    import numpy

    lane = numpy.arange(count)
    takes = compiled(by_thread(taking, context))
    asked = [
        numpy.broadcast_to(takes({context.thread.name: first + lane}), lane.shape) != 0 for first in range(0, context.workers or 1, count)
    ]
    placed_at: list[tuple[int, Digit]] = []
    for one in dealt:
        assert one.index is not None
        index = by_thread(one.index, context)
        numbers = [compiled(index)({context.thread.name: first + lane}) for first in range(0, context.workers or 1, count)]
        weight = next((number for number, value in enumerate(numbers[0] + 0 * lane) if value == 1), 0)
        if not weight or any(((value != lane // weight % one.size) & part).any() for value, part in zip(numbers, asked, strict=True)):
            return None
        placed_at.append((weight, one))
    parts: list[Part] = []
    reached = 1
    for weight, one in sorted(placed_at, key=lambda pair: pair[0]):
        if weight % reached:
            return None
        parts += [(weight // reached, 0, 0)] if weight > reached else []
        parts.append((one.size, one.dim, one.stride))
        reached = weight * one.size
    return (*parts, (count // reached, 0, 0)) if reached < count else tuple(parts)


# ---------------------------------------------------------------------------------------------- statements


def taking_part(holding: Ownership, context: Context) -> Expr:
    """The condition under which a thread holds anything, beside those under which the follower runs."""
    known = set(conjuncts(context.active))
    return all_of(one for one in conjuncts(holding.active) if one not in known and by_thread(one, context).variables() <= {context.thread})


def _merged(views: dict[str, View]) -> dict[str, View]:
    """Views whose modes that go on where the one before ends are one mode."""
    return {name: view.with_dims({number: _joined(dim) for number, dim in enumerate(view.dims)}) for name, view in views.items()}


def _joined(dim: Dim) -> Dim:
    modes = [dim.modes[0]]
    for mode in dim.modes[1:]:
        last = modes[-1]
        if mode.stride == last.stride * last.size:
            modes[-1] = Mode(last.size * mode.size, last.stride)
        else:
            modes.append(mode)
    return Dim(tuple(modes), dim.bound, dim.fixed)


def _values_and_loops(
    executable: Executable, spec: Spec, element: Spec, visited: Sequence[Digit], pairs: bool
) -> tuple[list[Digit], list[Digit]]:
    """The digits that one statement takes, in their order, and those over which it is repeated; `pairs` of neighbours are one to it."""
    values: list[Digit] = []
    loops: list[Digit] = []
    if executable.takes_neighbours(element):
        values, loops = _neighbours(spec, visited, _side_by_side)
        return (values, loops) if values or not pairs else _neighbours(spec, visited, _paired)
    for one in visited:
        taken = math.prod(other.size for other in values) * one.size
        at_once = one.kind is DigitKind.VALUES and executable.each and taken <= MOST_AT_ONCE
        (values if at_once else loops).append(one)
    return values, loops


def _neighbours(spec: Spec, visited: Sequence[Digit], together: Callable[[Spec, Digit], int]) -> tuple[list[Digit], list[Digit]]:
    """The digit of neighbours that may be taken `together`, if there is one; and all others."""
    beyond = overhanging(spec, visited)
    for place, one in enumerate(visited):
        many = together(spec, one) if one.stride == 1 and one not in beyond else 1
        while many > 1 and one.size % many:
            many //= 2
        taken, rest = one.between(1, many), one.between(many, one.end)
        if many > 1 and taken is not None:
            return [taken], [*visited[:place], *([] if rest is None or rest.size == 1 else [rest]), *visited[place + 1 :]]
    return [], list(visited)


def _paired(spec: Spec, digit: Digit) -> int:
    """The most neighbours that are taken at once where all are in registers: as many as later a load or a store of them may take."""
    dim = spec.dims[digit.dim]
    return MOST_NEIGHBOURS if all(spec.operands[name].memory.private for name in spec.operands if dim in spec.uses[name]) else 1


def _side_by_side(spec: Spec, digit: Digit) -> int:
    """The most elements that one access of some operand in memory may take along the dimension of a digit, as far as its strides say."""
    dim, most = spec.dims[digit.dim], 1
    for name, view in spec.operands.items():
        if view.memory.private or view.memory.by_value or view.memory.counts or dim not in spec.uses[name]:
            continue
        position = spec.uses[name].index(dim)
        axis, part = view.axis(position), view.dims[position]
        steps = view.tensor.storage().steps
        if steps[axis] == ONE:
            others = [step for number, step in enumerate(steps) if number != axis and step is not None]
            factors = [value.factor for value in (*others, part.base, view.tensor.shape[axis])]
            most = max(most, _power_of_two(math.gcd(*factors), min(WIDEST // view.dtype.bytes, MOST_NEIGHBOURS)))
    return most


def _power_of_two(factor: int, most: int) -> int:
    """The largest power of two that divides a number, and is at most another; 0 is divided by all."""
    return min(factor & -factor, most) if factor else most


def _in_order(spec: Spec, loops: Sequence[Digit]) -> Iterator[Step]:
    """Loops by dimension, slowest first; neighbours of which one goes on where the other ends are one."""
    for dim in range(len(spec.dims)):
        steps: list[Step] = []
        for one in sorted((one for one in loops if one.dim == dim), key=lambda one: one.stride):
            step = step_of(spec, one)
            if steps and all(stride == steps[-1].strides[name] * steps[-1].size for name, stride in step.strides.items()):
                step = Step(step.dim, steps[-1].size * step.size, steps.pop().strides)
            steps.append(step)
        yield from reversed(steps)


def _statement(executable: Executable, spec: Spec, whole: Spec, values: Sequence[Digit], active: Expr, draft: Draft) -> Exec:
    accesses = []
    for name, view in spec.operands.items():
        access = access_of(view, name in spec.outputs, draft.origin)
        accesses.append(attrs.evolve(access, points=_points(whole, name, values)) if values else access)
    return Exec(executable, spec, tuple(accesses), active=all_of((draft.active, active)), follows=True, origin=draft.origin)


def _points(spec: Spec, name: str, values: Sequence[Digit]) -> tuple[tuple[int, ...], ...]:
    """The offsets of the values in an operand, in the order in which the deciding statement numbers them."""
    view = spec.operands[name]
    points = [(0,) * len(view.numerals)]
    for one in values:
        if spec.dims[one.dim] not in spec.uses[name]:
            continue
        ((_, step),) = _placed(spec, name, one)
        axis = view.axis(spec.uses[name].index(spec.dims[one.dim]))
        points = [(*point[:axis], point[axis] + index * step, *point[axis + 1 :]) for index in range(one.size) for point in points]
    return tuple(points)
