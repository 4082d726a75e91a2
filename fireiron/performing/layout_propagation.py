"""Layout propagation: statements on registers whose elements another statement has already distributed over threads.

A spec follows that distribution if it reduces no dimension, and its definition reads each operand at the element's own coordinates. Then
each thread executes the spec on the elements that it owns, independently of other threads. The digits of the thread index are substituted
in all operands, and the other digits become loops. The instruction that determines the distribution may process several values at once.
They become one statement, if the executable supports several values.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs

from fireiron.errors import DecompositionError
from fireiron.frozen import evolve, frozen
from fireiron.ir import Exec, Hole, Stmt, filled
from fireiron.ir.lanes import LaneMap, Part, placed
from fireiron.ir.register_ownership import Digit, DigitKind, Ownership
from fireiron.ir.rewrite import by_identities
from fireiron.language.dividing import Step, loop_over, moved
from fireiron.language.tree import Context, Draft, Executable, Mismatch, access_of
from fireiron.performing.packed import KINDS, packs, reads_bytes, unpacks
from fireiron.spec import Spec
from fireiron.specs.bits import RANDOM
from fireiron.specs.formula import names_of
from fireiron.values.expr import ONE, TRUE, Expr, Var, all_of, as_expr, compiled, conjuncts, constant, less
from fireiron.values.machine import Block, Level
from fireiron.values.tensor import Dim, Mode, Storage, View
from fireiron.values.units import index_in, thread_of, unit_in

WIDEST = 16
"""Bytes of the widest load or store of a thread."""

MOST_CONTIGUOUS = 8
"""Maximum number of contiguous elements of a statement: 16 bytes of float16."""

LARGEST = 2**31
"""Larger than any distance in memory."""

MOST_TRIED = 4096
"""Maximum number of loop iterations for which the position of a view is evaluated."""

MOST_AT_ONCE = 16
"""Maximum number of values of a statement without a loop: those of a lane for any 8-bit operand."""


def elementwise(spec: Spec) -> bool:
    """Whether each element of the result is computed from elements at its own coordinates only; an input may have fewer dimensions."""
    formulas = spec.definition.formulas
    return all(formula.reduction is None and all(element.plain for element in formula.elements) for formula in formulas)


def undistributed(spec: Spec, context: Context) -> bool:
    """Whether a spec accesses registers whose distribution over threads is not decided yet."""
    views = tuple(spec.operands.values())
    if spec.reduces:
        # The owners of the terms compute the results. Without terms in registers, the ownership of the result decides.
        views = tuple(view for view in views if view.memory.private)[:1]
    elif not elementwise(spec):
        return False
    return any(view.memory.private and view.tensor.name not in context.owners for view in views)


def _any_size(spec: Spec | None) -> str:
    """Return the advice for a copy to registers whose tiles do not fit the size; an empty text for other specs."""
    if spec is None or not spec.copies:
        return ""
    width = max(constant(size) or 1 for size in spec.sizes)
    return f".load(..., RF, Move.coalesced_copy({width}).done()) distributes rows of any size; or "


@frozen
class Following:
    """A spec that follows the ownership of its operand `name` in registers; `steps` are the digits of the ownership in the spec.

    No step exceeds a mode of an operand. `steps` is None if the digits do not enumerate the elements of the spec. `storages` are those that
    readers chose for buffers, by name, if they matter.
    """

    spec: Spec
    name: str
    ownership: Ownership
    steps: tuple[Digit, ...] | None
    storages: Mapping[str, Storage] = attrs.field(factory=dict, eq=False)

    @staticmethod
    def of(spec: Spec, context: Context) -> Following | None:
        """Return the operand whose ownership a spec follows, if any; outputs are tried before inputs."""
        for name in (*spec.outputs, *spec.inputs) if elementwise(spec) else ():
            if len(spec.uses[name]) < len(spec.dims):
                continue
            ownership = context.owners.get(spec.operands[name].tensor.name)
            if ownership is not None:
                return Following(spec, name, ownership, steps_of(spec, name, ownership))
        return None

    @staticmethod
    def alone(spec: Spec, context: Context) -> Following | None:
        """Return the elementwise work of one thread on memory, which owns all elements of its tile; None for other specs."""
        (name,) = spec.outputs if len(spec.outputs) == 1 and (spec.pointwise or spec.atomic) else ("",)
        views = spec.operands
        if not name or spec.level.threads != 1 or any(view.memory.private for view in views.values()):
            return None
        if not (views[name].memory.of_block or in_pairs_from_memory(spec)) or any(constant(size) is None for size in spec.sizes):
            return None
        digits = tuple(Digit(dim, constant(size) or 1, 1, DigitKind.LOOP) for dim, size in enumerate(spec.sizes) if size != ONE)
        steps = _within_modes(spec, digits)
        ownership = Ownership(spec.level, (), (), free=True, spec=spec)
        return None if steps is None else Following(spec, name, ownership, steps, context.whole.chosen_storage)

    @property
    def level(self) -> Level:
        """Return the level of the statements of a single thread."""
        level = next((level for level in (self.ownership.level, self.spec.level) if level.threads == 1), None)
        return level or thread_of(self.ownership.level)

    @functools.cached_property
    def element(self) -> Spec:
        """Return the spec of one element of a thread, which determines its instruction."""
        return element_of(self.spec, self.level)

    def mismatches(self, context: Context) -> tuple[Mismatch, ...]:
        """Return why the threads of the spec do not own its elements as another statement requires."""
        return _mismatches(self, context)

    def _mismatches(self, context: Context) -> tuple[Mismatch, ...]:
        threads, other = self.spec.level.threads, self.ownership.level.threads
        if threads is not None and threads != 1 and other is not None and threads < other:
            return (Mismatch("level", f"a group of {other} threads", self.spec.level.name),)
        sizes = "x".join(map(str, self.spec.sizes))
        if self.steps is None:
            lanes = self.ownership.lane_map
            tile = sizes if lanes is None else f"multiples of {'x'.join(map(str, lanes.tile))}"
            owner = f"{self.spec.operands[self.name].tensor.name} is owned by {self.ownership.level}"
            return (Mismatch("shape", f"{tile}, as {owner}", sizes),)
        if self.distributed_in_iterations(context):
            return (Mismatch("registers", "tiles that are distributed once", "tiles that are distributed in iterations"),)
        own = self.spec.operands[self.name]
        if not _owned_by_unit(self.spec, self.steps, self.ownership, context) or not _covered_by_owners(own, self.ownership, context):
            return (Mismatch("level", f"one whose threads own all of the {sizes} elements", self.spec.level.name),)
        if not _at_own_elements(own, self.ownership, context):
            owner = f"as {self.ownership.level} owns {own.tensor.name}"
            return (Mismatch("shape", f"tiles that cover all threads which own a part, {owner}", f"{sizes} of some of them"),)
        return ()

    def distributed_in_iterations(self, context: Context) -> bool:
        """Whether a thread's tile changes from iteration to iteration, and with it the contents of its registers."""
        return distributed_in_iterations(self.ownership.digits, context)

    def require_distributed_once(self, context: Context) -> None:
        """Refuse tiles that are distributed in several iterations."""
        if self.distributed_in_iterations(context):
            summed = self.ownership.spec is not None and self.ownership.spec.reduces
            own = "; the sum of split_k distributes them by its last argument, Reduction.tile(...).to(Thread)...done()" if summed else ""
            raise DecompositionError(
                f"{self.spec.operands[self.name].tensor.name} cannot be divided over registers: its tiles are distributed in iterations",
                got=self.ownership.spec and f"{self.ownership.spec}, whose tile changes in each iteration",
                within=self.spec,
                at=context.origin,
                hint=f"{_any_size(self.ownership.spec)}a number of tiles that is a multiple or a divisor of the number of units{own}",
            )

    @property
    def shared(self) -> bool:
        """Whether smaller groups of threads own parts of the spec, so that an instruction of such a group may perform a part."""
        divides_evenly = not overhanging(self.spec, self.steps or ())
        return divides_evenly and self.ownership.level.threads not in (1, None) and self.ownership.level.is_below(self.spec.level)

    def below(self, draft: Draft) -> tuple[Spec, Expr]:
        """Return the spec of a smaller group, with all elements that its threads own, and the condition that the group is active."""
        assert self.steps is not None
        kept = sorted((digit for digit in self.steps if digit.kind is not DigitKind.THREADS), key=lambda digit: digit.stride)
        views = _merged(with_modes(self.spec, kept))
        views = views_of_thread(self.spec, views, [digit for digit in self.steps if digit.kind is DigitKind.THREADS])
        active = all_of((is_owner(self.ownership, draft), self._first_replica(draft)))
        return self.spec.at_level(self.ownership.level, **views), active

    def statements(self, executable: Executable, draft: Draft) -> tuple[Stmt, ...]:
        """Return the statements by which each thread executes the instruction on its elements."""
        assert self.steps is not None
        visited = [digit for digit in self.steps if digit.index is None]
        taken_digits = self._contiguous_first(visited) if self.ownership.free else visited
        on_pairs = executable.on_pairs(self.element, draft.architecture)
        words = None if on_pairs is None else _not_in_registers(on_pairs, self.element)
        values, loops = _values_and_loops(executable, self.spec, self.element, taken_digits, words, self.storages)
        views = views_of_thread(
            self.spec, with_modes(self.spec, values), [digit for digit in self.steps if digit.index is not None], visited
        )
        views = with_bounds(self.spec, views, [digit for digit in visited if self._straddles(digit, values, visited)], visited)
        active = TRUE if self.spec.level == self.ownership.level else is_owner(self.ownership, draft)
        active = all_of((active, self._first_replica(draft)))
        unroll = all(loop.unroll for loop in loops)
        loop_steps = list(_in_order(self.spec, loops))
        views, program, variables = loop_over(self.spec, views, loop_steps, unroll, draft, (Hole("elements"),))
        end = in_bounds(self.spec, views[self.name], self.spec.uses[self.name], self.steps)
        first = [var for var, step in zip(variables, loop_steps, strict=True) if self._is_contiguous_loop(step, visited)]
        active = all_of((active, end.substitute(dict.fromkeys(first, 0))))
        inner = _statement(executable, self.spec.at_level(self.level, **views), self.spec, values, active, draft)
        return filled(program, {"elements": (inner,)})

    def _contiguous_first(self, visited: Sequence[Digit]) -> list[Digit]:
        """Return the visited digits that one statement may process at once: contiguous elements first, none out of bounds."""
        ends = overhanging(self.spec, visited)
        order = sorted(visited, key=lambda digit: (*self._distances(digit), digit.stride))
        return [digit if digit in ends else evolve(digit, kind=DigitKind.VALUES) for digit in order]

    def _straddles(self, digit: Digit, values: Sequence[Digit], visited: Sequence[Digit]) -> bool:
        """Whether some values of a statement are in bounds and others not, so that a test of the first does not suffice."""
        count = math.prod(other.size for other in values if other.dim == digit.dim)
        return count > contiguous_elements(self.spec, digit.dim, visited)

    def _is_contiguous_loop(self, step: Step, visited: Sequence[Digit]) -> bool:
        """Whether a loop visits contiguous elements that are all in bounds if the first one is."""
        dim = self.spec.dims.index(step.dim)
        stride = step.strides[self.name]
        contiguous = contiguous_elements(self.spec, dim, visited)
        return (constant(stride * step.size) or LARGEST) <= contiguous

    def _distances(self, digit: Digit) -> tuple[int, ...]:
        """Return the strides of a digit in the operands in memory; unknown strides count as the largest."""
        spec, dim, distances = self.spec, self.spec.dims[digit.dim], []
        for name, view in spec.operands.items():
            if dim in spec.uses[name] and not view.memory.private and not view.memory.is_coordinate:
                step = view.tensor.storage().steps[view.axis(spec.uses[name].index(dim))]
                distances.append(LARGEST if step is None else constant(step) or LARGEST)
        return tuple(step * digit.stride for step in distances)

    def _first_replica(self, context: Context) -> Expr:
        """Return the condition under which a thread writes to memory: of threads with the same elements, only the first writes."""
        assert self.steps is not None
        if all(self.spec.operands[name].memory.private for name in self.spec.outputs):
            return TRUE
        return first_replica(self.spec, [digit for digit in self.steps if digit.index is not None], self.ownership, context)


def in_pairs_from_memory(spec: Spec) -> bool:
    """Whether one thread computes elements in global memory from memory, and pairs of adjacent ones have faster instructions.

    These are conversions of packed numbers and of bytes to 16-bit floats, and atomic additions to these.
    """
    only = spec.definition.only
    if spec.level.threads != 1 or only is None or any(view.memory.private for view in spec.operands.values()):
        return False
    types = {name: view.dtype for name, view in spec.operands.items()}
    result = spec.operands[only.output]
    if not result.memory.of_grid or result.dtype not in KINDS or all(size == ONE for size in spec.sizes):
        return False
    return (
        only.combiner == "sum"
        if spec.atomic
        else spec.pointwise and packs(only, types) and (unpacks(only, types) or reads_bytes(only, types))
    )


@by_identities  # called for each executable that may perform a leaf
def _mismatches(following: Following, context: Context) -> tuple[Mismatch, ...]:
    return following._mismatches(context)


def distributed_in_iterations(digits: Iterable[Digit], context: Context) -> bool:
    """Whether a thread's tile changes between iterations: its index depends on variables other than the thread index."""
    definitions = context.whole.definitions.keys()
    return any(
        digit.index is not None and any(var not in definitions and var != context.thread for var in digit.index.variables())
        for digit in digits
    )


def element_of(spec: Spec, level: Level) -> Spec:
    """Return the spec of one element at a level."""
    modes = (Mode(1, 1),)
    views = {
        name: view.with_dims({number: Dim(modes, dim.bound, dim.fixed) for number, dim in enumerate(view.dims)})
        for name, view in spec.operands.items()
    }
    return spec.at_level(level, **views)


# ---------------------------------------------------------------------------------------------- digits of a spec


def steps_of(spec: Spec, name: str, ownership: Ownership) -> tuple[Digit, ...] | None:
    """Return the digits inside a spec, none of which exceeds a mode of an operand; None if they do not enumerate its elements.

    Their dimensions are those of the spec, not of the operand.
    """
    inside = ownership.inside(spec.operands[name])
    steps = None if inside is None else tuple(digit.along(spec.dims.index(spec.uses[name][digit.dim])) for digit in inside)
    return _within_modes(spec, steps)


def _within_modes(spec: Spec, steps: tuple[Digit, ...] | None) -> tuple[Digit, ...] | None:
    """Return digits of a spec, split so that none exceeds a mode of an operand; None if they do not enumerate its elements."""
    for operand, view in spec.operands.items():
        for dim, part in zip(spec.uses[operand], view.dims, strict=True):
            reached = 1
            for number, mode in enumerate(part.modes):
                size = constant(mode.size)
                if steps is None or size is None:
                    return None
                reached *= size
                if number < len(part.modes) - 1:
                    steps = _split_at_end(steps, spec.dims.index(dim), reached)
    ends = {spec.dims[digit.dim] for digit in overhanging(spec, steps or ())}
    along = [part for name in spec.operands for dim, part in zip(spec.uses[name], spec.operands[name].dims, strict=True) if dim in ends]
    return steps if all(len(part.modes) == 1 for part in along) else None


def overhanging(spec: Spec, steps: Sequence[Digit]) -> tuple[Digit, ...]:
    """Return the digits whose last iteration exceeds a dimension, because the number of units does not divide the number of tiles."""
    return tuple(digit for digit in steps if digit.end > (constant(spec.sizes[digit.dim]) or 0))


def in_bounds(spec: Spec, view: View, dims: Sequence[str], steps: Sequence[Digit]) -> Expr:
    """Return the condition that the elements of a thread are in bounds, from their position in one operand."""
    ends = [(dims.index(spec.dims[digit.dim]), spec.sizes[digit.dim]) for digit in overhanging(spec, steps) if spec.dims[digit.dim] in dims]
    return all_of(less(view.dims[position].base, size) for position, size in ends)


def _split_at_end(digits: Sequence[Digit], dim: int, end: int) -> tuple[Digit, ...] | None:
    """Split the digit that exceeds an end along a dimension into its parts before and after the end."""
    result: list[Digit] = []
    for digit in digits:
        if digit.dim != dim or not digit.stride < end < digit.end:
            result.append(digit)
            continue
        parts = digit.between(digit.stride, end), digit.between(end, digit.end)
        if parts[0] is None or parts[1] is None:
            return None
        result += [part for part in parts if part is not None]
    return tuple(result)


def _in_tensor(spec: Spec, name: str, digit: Digit) -> Iterator[tuple[int, int]]:
    """Yield a digit in coordinates of an operand's tensor, if the operand has its dimension."""
    dims = spec.uses[name]
    if spec.dims[digit.dim] not in dims:
        return
    position = dims.index(spec.dims[digit.dim])
    modes = spec.operands[name].dims[position].modes
    if digit.end > (constant(spec.sizes[digit.dim]) or 0) and len(modes) == 1:  # its last iteration exceeds the dimension
        yield digit.size, (constant(modes[0].stride) or 1) * digit.stride
    else:
        yield from placed(spec.operands[name], digit.size, position, digit.stride)


def step_of(spec: Spec, digit: Digit) -> Step:
    """Convert a digit to a step of all operands that have its dimension."""
    strides = {name: as_expr(stride) for name in spec.operands for _, stride in _in_tensor(spec, name, digit)}
    return Step(spec.dims[digit.dim], as_expr(digit.size), strides)


def with_modes(spec: Spec, digits: Sequence[Digit]) -> dict[str, View]:
    """Return the operands with only the given digits; all others are 0."""
    views = {}
    for name, view in spec.operands.items():
        dims = {}
        for number, (dim, part) in enumerate(zip(spec.uses[name], view.dims, strict=True)):
            own_digits = [digit for digit in digits if spec.dims[digit.dim] == dim]
            modes = [Mode(size, stride) for digit in own_digits for size, stride in _in_tensor(spec, name, digit)]
            dims[number] = Dim(tuple(modes) or (Mode(1, 1),), part.bound, part.fixed)
        views[name] = view.with_dims(dims)
    return views


def contiguous_elements(spec: Spec, dim: int, visited: Sequence[Digit]) -> int:
    """Return the number of contiguous elements along a dimension that a thread visits, and of which all or none are in bounds."""
    reached = 1
    for digit in sorted((digit for digit in visited if digit.dim == dim), key=lambda digit: digit.stride):
        size = constant(spec.sizes[dim])
        if digit.stride != reached or size is None or size % digit.end:
            break
        reached = digit.end
    return reached


def views_of_thread(spec: Spec, views: dict[str, View], digits: Sequence[Digit], visited: Sequence[Digit] = ()) -> dict[str, View]:
    """Return the views at a thread's elements.

    If the last threads exceed a dimension, one condition guards contiguous `visited` elements; others are tested one by one.
    """
    for digit in digits:
        assert digit.index is not None
        views = moved(views, spec, step_of(spec, digit), digit.index, unit=True)
    return with_bounds(spec, views, digits, visited)


def with_bounds(spec: Spec, views: dict[str, View], digits: Sequence[Digit], visited: Sequence[Digit] = ()) -> dict[str, View]:
    """Return the views with bounds for the dimensions that the last iteration of a digit, of threads or of a loop, exceeds."""
    for digit in overhanging(spec, digits):
        views = _with_bound(spec, views, digit, contiguous_elements(spec, digit.dim, visited))
    return views


def _with_bound(spec: Spec, views: Mapping[str, View], digit: Digit, contiguous: int) -> dict[str, View]:
    """Return the views with a bound along a digit's dimension: the digit's end, or the dimension's if elements are tested one by one."""
    views_with_end = dict(views)
    dim = spec.dims[digit.dim]
    for name in (name for name in views if dim in spec.uses[name]):
        position = spec.uses[name].index(dim)
        operand_dim, part = spec.operands[name].dims[position], views_with_end[name].dims[position]
        count = constant(part.size) or LARGEST
        if operand_dim.bound is None:
            size = as_expr(digit.end) if count <= contiguous else spec.sizes[digit.dim]
            views_with_end[name] = views_with_end[name].with_dims({position: evolve(part, bound=operand_dim.base + size)})
    return views_with_end


def same_elements(left: Sequence[Digit], right: Sequence[Digit], context: Context) -> bool:
    """Whether each thread has the same elements according to both sequences of digits."""
    return all(
        _element_offsets(left, dim, context) == _element_offsets(right, dim, context) for dim in {digit.dim for digit in (*left, *right)}
    )


def _element_offsets(digits: Sequence[Digit], dim: int, context: Context) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return, along a dimension, each thread's first coordinate and the offsets of its elements."""
    import numpy

    threads = numpy.arange(context.workers or 1)
    start, offsets = 0 * threads, [0]
    for digit in (digit for digit in digits if digit.dim == dim):
        if digit.index is None:
            offsets = [offset + index * digit.stride for offset in offsets for index in range(digit.size)]
        else:
            start = start + compiled(expand_definitions(digit.index, context))({context.thread.name: threads}) * digit.stride
    return tuple(start.tolist()), tuple(sorted(offsets))


# ---------------------------------------------------------------------------------------------- refusals


def _owned_by_unit(spec: Spec, steps: Sequence[Digit], ownership: Ownership, context: Context) -> bool:
    """Whether the threads of each unit of a spec's level together own all of its elements."""
    distributed = [digit for digit in steps if digit.index is not None]
    lanes = [digit for digit in ownership.digits if digit.kind is DigitKind.LANES]
    if spec.level.threads is None:
        return True
    if spec.level == ownership.level and lanes:
        # The lane map of an instruction distributes its tile over lanes; digits of groups are not required of a single lane.
        own_lanes = [digit for digit in steps if digit.kind is DigitKind.LANES]
        return len(own_lanes) >= len(lanes) and not any(digit.kind is DigitKind.THREADS for digit in distributed)
    return not distributed or _has_all_parts(spec, distributed, ownership, context)


def _count(values: Any) -> int:
    """Return the number of distinct values; `numpy.unique` would import `numpy.ma`, which takes 8 ms."""
    ordered = values.ravel().copy()
    ordered.sort()
    return int((ordered[1:] != ordered[:-1]).sum()) + bool(ordered.size)


def _has_all_parts(spec: Spec, distributed: Sequence[Digit], ownership: Ownership, context: Context) -> bool:
    """Whether the threads of each active unit have all values of their digits."""
    units, numbers = _owned_parts_as_arrays(spec, distributed, ownership, context)
    total = math.prod(digit.size for digit in distributed)
    inside = bool(((numbers >= 0) & (numbers < total)).all())
    # In a buffer with a copy per unit, no other unit writes the part of a unit whose threads own nothing.
    own = any(spec.operands[name].memory.of_block and spec.operands[name].tensor.copies > 1 for name in spec.outputs)
    requested = _requested_units(spec, context) if own else units
    return inside and _count(units * total + numbers) == _count(requested) * total


def _requested_units(spec: Spec, context: Context) -> Any:
    """Return the unit of each thread that executes the spec, including threads that own none of its elements."""
    import numpy

    at = {context.thread.name: numpy.arange(context.workers or spec.level.threads or 1)}
    unit = compiled(unit_in(spec.level, Block, context.thread))(at)
    units, active = numpy.broadcast_arrays(unit, compiled(_of_threads(context.active, context))(at))
    return units[active != 0]


def _covered_by_owners(view: View, ownership: Ownership, context: Context) -> bool:
    """Whether active threads own each part of a tensor that a spec accesses; otherwise a thread would need values of another thread."""
    import numpy

    threads = numpy.arange(context.workers or 1)
    values = {context.thread.name: threads}
    performing = compiled(_of_threads(context.active, context))(values)
    owning = compiled(_of_threads(all_of((is_owner(ownership, context), context.active)), context))(values)
    performing, owning = (numpy.broadcast_to(mask, threads.shape) != 0 for mask in (performing, owning))
    if not (performing & ~owning).any():
        return True
    bases = [expand_definitions(dim.base, context) for dim in view.dims]
    starts = [base.substitute({var: 0 for var in base.variables() if var != context.thread}) for base in bases]
    part = numpy.stack(numpy.broadcast_arrays(threads * 0, *(compiled(place)(values) for place in starts)))
    return {*map(tuple, part[:, performing].T.tolist())} <= {*map(tuple, part[:, owning].T.tolist())}


def _at_own_elements(view: View, ownership: Ownership, context: Context) -> bool:
    """Whether the view of each active thread contains, in all loop iterations, elements that the thread owns.

    A tile smaller than the distance between two elements of a thread is owned by some threads and not by others.
    """
    import numpy

    threads = numpy.arange(context.workers or 1)
    owning = compiled(_of_threads(all_of((is_owner(ownership, context), context.active)), context))({context.thread.name: threads})
    threads = threads[numpy.broadcast_to(owning, threads.shape) != 0]
    dims = {view.axis(dim): part for dim, part in enumerate(view.dims)}
    for digit in ownership.digits:
        if digit.index is None or digit.dim not in dims:
            continue
        index, part = expand_definitions(digit.index, context), dims[digit.dim]
        for outside in _uncovered_parts(digit, part):
            part_index = expand_definitions(part.base, context) // outside.stride % outside.size
            owned_index = index // (outside.stride // digit.stride) % outside.size
            if part_index != owned_index and not _are_equal(part_index, owned_index, context.thread.name, threads):
                return False
    return True


def _uncovered_parts(digit: Digit, part: Dim) -> Iterator[Digit]:
    """Yield the parts of a digit that the modes of a view do not cover."""
    low = digit.stride
    for mode in sorted(part.modes, key=lambda mode: constant(mode.stride) or 0):
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


def _are_equal(left: Expr, right: Expr, thread: str, threads: Any) -> bool:
    """Whether two values are equal for the given threads and all values of the other variables; False if there are too many to test."""
    import numpy

    free = sorted((var for var in left.variables() | right.variables() if var.name != thread), key=lambda var: var.name)
    counts = [var.high - var.low + 1 for var in free]
    if math.prod(counts) > MOST_TRIED:
        return False
    for values in itertools.product(*(range(var.low, var.low + count) for var, count in zip(free, counts, strict=True))):
        at = {thread: threads, **{var.name: value for var, value in zip(free, values, strict=True)}}
        first, second, _ = numpy.broadcast_arrays(compiled(left)(at), compiled(right)(at), threads)
        if not numpy.array_equal(first, second):
            return False
    return True


def _owned_parts(spec: Spec, distributed: Sequence[Digit], ownership: Ownership, context: Context) -> list[tuple[int, int]]:
    """Return, for each active thread, its unit of the spec's level and the number that its digits form."""
    units, numbers = _owned_parts_as_arrays(spec, distributed, ownership, context)
    return list(zip(units.tolist(), numbers.tolist(), strict=True))


def _owned_parts_as_arrays(spec: Spec, distributed: Sequence[Digit], ownership: Ownership, context: Context) -> tuple[Any, Any]:
    """Return the result of `_owned_parts` as two arrays."""
    import numpy

    at = {context.thread.name: numpy.arange(context.workers or spec.level.threads or 1)}
    number, total = 0 * at[context.thread.name], 1
    for digit in distributed:
        assert digit.index is not None
        number, total = number + compiled(expand_definitions(digit.index, context))(at) * total, total * digit.size
    unit = compiled(unit_in(spec.level, Block, context.thread))(at)
    active = compiled(expand_definitions(is_owner(ownership, context), context))(at) & compiled(_of_threads(context.active, context))(at)
    units, numbers, active = numpy.broadcast_arrays(unit, number, active)
    return units[active != 0], numbers[active != 0]


def _of_threads(active: Expr, context: Context) -> Expr:
    """Return the conjuncts that depend on the thread index only: ownership does not depend on the block or the iteration."""
    return all_of(condition for condition in conjuncts(expand_definitions(active, context)) if condition.variables() <= {context.thread})


def first_replica(spec: Spec, distributed: Sequence[Digit], ownership: Ownership, context: Context) -> Expr:
    """Return the condition under which a thread is the first one in its unit with its elements: only this thread stores them."""
    count = spec.level.threads or context.workers or 1
    if math.prod(digit.size for digit in distributed) == count:
        return TRUE
    owned = _owned_parts(spec, distributed, ownership, context)
    if len(set(owned)) == len(owned):
        return TRUE
    parts = _lane_parts(distributed, count, context, is_owner(ownership, context))
    if parts is None:
        parts = _bits(spec, owned, count, context)
    conditions = []
    weight = 1
    for size, _, stride in parts:
        if not stride:
            conditions.append(less(index_in(spec.level, context.thread) // weight % size, as_expr(1)))
        weight *= size
    return all_of(conditions)


def _bits(spec: Spec, owned: Sequence[tuple[int, int]], count: int, context: Context) -> tuple[Part, ...]:
    """Split a thread's index in its unit into parts by bits. Bits that do not change the elements enumerate replicas.

    Raises: DecompositionError if replicas differ otherwise.
    """
    workers = context.workers or count
    still = [bit for bit in range(count.bit_length() - 1) if _is_replica_bit(owned, bit)] if len(owned) == workers else []
    if len(owned) != len(set(owned)) << len(still):
        raise DecompositionError(
            "several threads own the same elements, and neither digits nor bits of their number decide which of them is the first",
            got=f"{len(owned)} threads for {len(set(owned))} parts",
            legal="lanes distributed by digits, or by a permutation of the bits of their number",
            within=spec, at=context.origin, hint="distribute the tiles without .swizzle(...), or store them through shared memory",
        )  # fmt: skip
    runs = itertools.groupby(range(count.bit_length() - 1), still.__contains__)
    return tuple((2 ** len(list(run)), 0, int(not replicas)) for replicas, run in runs)


def _is_replica_bit(owned: Sequence[tuple[int, int]], bit: int) -> bool:
    """Whether each thread has the same elements as the thread whose index differs in one bit."""
    return all(own == owned[number ^ 1 << bit] for number, own in enumerate(owned))


def expand_definitions(value: Expr, context: Context) -> Expr:
    """Substitute the definitions of variables in a value."""
    return _expanded(value, context.whole.definitions)


@by_identities  # comparisons of several instructions and operands use the same few values
def _expanded(value: Expr, definitions: Mapping[Var, Expr]) -> Expr:
    while not definitions.keys().isdisjoint(value.variables()):
        value = value.substitute({var: definitions[var] for var in value.variables() if var in definitions})
    return value


@by_identities  # several instructions are compared with the same operand
def lanes_of(spec: Spec, name: str, ownership: Ownership, context: Context) -> LaneMap | None:
    """Return the lane map of an operand's elements; None if they are not digits of the lane index."""
    view = spec.operands[name]
    if ownership.lane_map is not None:
        axes = view.axes or ()
        in_order = list(axes) == sorted(axes)
        return ownership.lane_map if in_order else ownership.lane_map.transposed(tuple(sorted(axes).index(axis) for axis in axes))
    steps = ownership.inside(view)
    if (
        steps is None
        or distributed_in_iterations(steps, context)
        or overhanging(spec, steps)
        or spec.level.threads is None
        or not _owned_by_unit(spec, steps, ownership, context)
    ):
        return None
    lanes = _lane_parts([digit for digit in steps if digit.index is not None], spec.level.threads, context)
    values = tuple((digit.size, digit.dim, digit.stride) for digit in steps if digit.index is None)
    tile = tuple(constant(size) or 1 for size in view.shape)
    return None if lanes is None else LaneMap.along(tile, lanes, values)


def _lane_parts(distributed: Sequence[Digit], count: int, context: Context, owning: Expr = TRUE) -> tuple[Part, ...] | None:
    """Return the digits of threads as parts of a thread's index in a group of `count`; parts between them do not change the elements.

    Threads for which `owning` does not hold may have any index.
    """
    import numpy

    lane = numpy.arange(count)
    takes = compiled(expand_definitions(owning, context))
    active_lanes = [
        numpy.broadcast_to(takes({context.thread.name: first + lane}), lane.shape) != 0 for first in range(0, context.workers or 1, count)
    ]
    placed_at: list[tuple[int, Digit]] = []
    for digit in distributed:
        assert digit.index is not None
        index = expand_definitions(digit.index, context)
        numbers = [compiled(index)({context.thread.name: first + lane}) for first in range(0, context.workers or 1, count)]
        weight = next((number for number, value in enumerate(numbers[0] + 0 * lane) if value == 1), 0)
        if not weight or any(
            ((value != lane // weight % digit.size) & part).any() for value, part in zip(numbers, active_lanes, strict=True)
        ):
            return None
        placed_at.append((weight, digit))
    parts: list[Part] = []
    reached = 1
    for weight, digit in sorted(placed_at, key=lambda pair: pair[0]):
        if weight % reached:
            return None
        parts += [(weight // reached, 0, 0)] if weight > reached else []
        parts.append((digit.size, digit.dim, digit.stride))
        reached = weight * digit.size
    return (*parts, (count // reached, 0, 0)) if reached < count else tuple(parts)


# ---------------------------------------------------------------------------------------------- statements


def is_owner(ownership: Ownership, context: Context) -> Expr:
    """Return the condition under which a thread owns any elements, in addition to the conditions of the statement."""
    active_conditions = set(conjuncts(context.active))
    return all_of(
        condition
        for condition in conjuncts(ownership.active)
        if condition not in active_conditions and expand_definitions(condition, context).variables() <= {context.thread}
    )


def _not_in_registers(on_pairs: Executable, element: Spec) -> frozenset[str]:
    """Return the operands of an instruction on pairs that need not be adjacent in registers."""
    words = (name for pair in on_pairs.words(element) for name in pair)
    return frozenset(words) | on_pairs.singles(element) | on_pairs.repeats(element)


def _merged(views: dict[str, View]) -> dict[str, View]:
    """Merge each mode with the preceding one if it continues it."""
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
    executable: Executable,
    spec: Spec,
    element: Spec,
    visited: Sequence[Digit],
    words: frozenset[str] | None,
    storages: Mapping[str, Storage],
) -> tuple[list[Digit], list[Digit]]:
    """Return the digits that one statement processes, in order, and those over which it loops.

    `words` are the operands of an instruction on pairs that need not be in registers; None: there is no such instruction.
    """
    values: list[Digit] = []
    loops: list[Digit] = []
    if executable.takes_neighbors(element):
        values, loops = _contiguous_digit(spec, visited, functools.partial(_most_in_memory, storages))
        if values:
            return _continued(spec, values, loops)
        if words is None:
            return values, loops
        return _contiguous_digit(spec, visited, functools.partial(_most_in_registers, words))
    for digit in visited:
        count = math.prod(digit.size for digit in values) * digit.size
        at_once = digit.kind is DigitKind.VALUES and executable.each and count <= MOST_AT_ONCE
        (values if at_once else loops).append(digit)
    return values, loops


def _contiguous_digit(
    spec: Spec, visited: Sequence[Digit], most_contiguous: Callable[[Spec, Digit], int]
) -> tuple[list[Digit], list[Digit]]:
    """Return the digit of contiguous elements that a statement may process together, if any, and the other digits."""
    beyond = overhanging(spec, visited)
    for position, digit in enumerate(visited):
        count = most_contiguous(spec, digit) if digit.stride == 1 and digit not in beyond else 1
        while count > 1 and digit.size % count:
            count //= 2
        first, rest = digit.between(1, count), digit.between(count, digit.end)
        if count > 1 and first is not None:
            return [first], [*visited[:position], *([] if rest is None or rest.size == 1 else [rest]), *visited[position + 1 :]]
    return [], list(visited)


def _continued(spec: Spec, values: list[Digit], loops: list[Digit]) -> tuple[list[Digit], list[Digit]]:
    """Move digits from the loops to the values that a statement processes together if they continue a contiguous run in memory, as pairs
    of rows do in the storage order of accumulators; up to the elements of one access.
    """
    beyond, rest = overhanging(spec, loops), list(loops)
    for digit in loops:
        reach = math.prod(value.size for value in values)
        if digit not in beyond and any(_continues(view, spec, name, digit, reach) for name, view in spec.operands.items()):
            values, rest = [*values, digit], [other for other in rest if other is not digit]
    return values, rest


def _continues(view: View, spec: Spec, name: str, digit: Digit, reach: int) -> bool:
    """Whether a digit is one of an array's digits, of which the dimension has several, and whose weight is `reach` elements."""
    dim = spec.dims[digit.dim]
    if not view.memory.of_grid or dim not in spec.uses[name] or reach * digit.size > WIDEST // view.dtype.bytes:
        return False
    digits = view.tensor.storage().dims[view.axis(spec.uses[name].index(dim))]
    return len(digits) > 1 and any((own.size, own.step, own.weight) == (digit.size, digit.stride, reach) for own in digits)


def _most_in_registers(words: frozenset[str], spec: Spec, digit: Digit) -> int:
    """Return how many contiguous elements a statement on registers, and on `words`, processes at once: as many as a later memory access
    may have.
    """
    dim = spec.dims[digit.dim]
    private = (spec.operands[name].memory.private for name in spec.operands if dim in spec.uses[name] and name not in words)
    return MOST_CONTIGUOUS if all(private) else 1


def _most_in_memory(storages: Mapping[str, Storage], spec: Spec, digit: Digit) -> int:
    """Return the maximum number of elements of a memory access along a digit's dimension, which strides and alignment limit."""
    dim, most = spec.dims[digit.dim], 1
    for name, view in spec.operands.items():
        if view.memory.private or view.memory.by_value or view.memory.is_coordinate or dim not in spec.uses[name]:
            continue
        position = spec.uses[name].index(dim)
        axis, part = view.axis(position), view.dims[position]
        if view.tensor.name in storages:
            most = max(most, _contiguous_in(storages[view.tensor.name], axis, view))
            continue
        storage = view.tensor.storage()
        steps = storage.steps
        if view.memory.of_grid and steps[axis] is None and len(storage.dims[axis]) > 1 and storage.layout.static and not storage.tables:
            most = max(most, _contiguous_in(storage, axis, view))
        elif steps[axis] == ONE:
            others = [step for number, step in enumerate(steps) if number != axis and step is not None]
            factors = [value.factor for value in (*others, part.base, view.tensor.shape[axis])]
            most = max(most, _power_of_two(math.gcd(*factors), min(WIDEST // view.dtype.bytes, MOST_CONTIGUOUS)))
    return most


def _contiguous_in(storage: Storage, axis: int, view: View) -> int:
    """Return how many elements along a dimension a storage keeps contiguous, as many as a vector has."""
    run = next((digit.size for digit in storage.dims[axis] if digit.weight == 1), 1)
    most = min(WIDEST // view.dtype.bytes, MOST_CONTIGUOUS)
    return _power_of_two(0 if run is None else constant(as_expr(run)) or 1, most)


def _power_of_two(factor: int, most: int) -> int:
    """Return the largest power of two that divides `factor` and is at most `most`; all powers divide 0."""
    return min(factor & -factor, most) if factor else most


def _in_order(spec: Spec, loops: Sequence[Digit]) -> Iterator[Step]:
    """Yield loops by dimension, slowest first; a loop that continues the preceding one is merged with it.

    For random numbers, the longest dimension is outermost. Elements that share parts of a random number then follow each other; otherwise
    these parts of a whole row are in registers at the same time.
    """
    dims = list(range(len(spec.dims)))
    if any(names_of(formula.value).intersection(RANDOM) for formula in spec.definition.formulas):
        dims.sort(key=lambda dim: -math.prod(digit.size for digit in loops if digit.dim == dim))
    for dim in dims:
        steps: list[Step] = []
        for digit in sorted((digit for digit in loops if digit.dim == dim), key=lambda digit: digit.stride):
            step = step_of(spec, digit)
            if steps and all(stride == steps[-1].strides[name] * steps[-1].size for name, stride in step.strides.items()):
                step = Step(step.dim, steps[-1].size * step.size, steps.pop().strides)
            steps.append(step)
        yield from reversed(steps)


def _statement(executable: Executable, spec: Spec, whole: Spec, values: Sequence[Digit], active: Expr, draft: Draft) -> Exec:
    accesses = []
    for name, view in spec.operands.items():
        access = access_of(view, name in spec.outputs, draft.origin)
        accesses.append(evolve(access, points=_points(whole, name, values)) if values else access)
    return Exec(executable, spec, tuple(accesses), active=all_of((draft.active, active)), inherits_ownership=True, origin=draft.origin)


def _points(spec: Spec, name: str, values: Sequence[Digit]) -> tuple[tuple[int, ...], ...]:
    """Return the offsets of the values in an operand, in the order of the deciding statement."""
    view = spec.operands[name]
    points = [(0,) * len(view.numerals)]
    for digit in values:
        if spec.dims[digit.dim] not in spec.uses[name]:
            continue
        ((_, step),) = _in_tensor(spec, name, digit)
        axis = view.axis(spec.uses[name].index(spec.dims[digit.dim]))
        points = [(*point[:axis], point[axis] + index * step, *point[axis + 1 :]) for index in range(digit.size) for point in points]
    return tuple(points)
