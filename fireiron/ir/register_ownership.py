"""Ownership of registers: which thread owns which elements of a tensor in registers.

One statement determines the ownership of a tensor: an instruction by its lane map, a tile distributed over threads, a load by either. The
digits of its access specify it: a digit is `size` coordinates, `stride` apart, along a dimension. A thread owns one coordinate of a digit
(its `index`) or all of them. A register number consists of the digits of which a thread owns all coordinates. Other statements follow this
ownership: they map the thread's digits to their operands, and iterate over the other digits.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator, Sequence

import attrs

from fireiron.frozen import frozen
from fireiron.ir.access import Access
from fireiron.ir.lanes import LaneMap
from fireiron.ir.statement import Exec, For
from fireiron.spec import Spec
from fireiron.values.expr import FALSE, TRUE, ZERO, Expr, all_of, as_expr, conjuncts, constant
from fireiron.values.expr.normal import terms_of
from fireiron.values.machine import Level
from fireiron.values.tensor import Tensor, View


def owns(tensor: Tensor, statement: Exec, access: Access) -> bool:
    """Whether an access determines the ownership: it accumulates, or it reads the tensor without writing it.

    An asynchronous MMA determines the ownership of its accumulator even if it overwrites it.
    """
    if statement.inherits_ownership:
        return False
    if tensor.owner == "accumulates":
        return access.write and (statement.accumulate != FALSE or statement.mechanism.in_registers)
    return not access.write and not any(other.write and other.buffer == access.buffer for other in statement.accesses)


class DigitKind(enum.Enum):
    """The units over which a digit is distributed.

    THREADS, or groups of them; the LANES of an instruction; the iterations of a LOOP; or the VALUES that a statement accesses at once.
    """

    THREADS = "threads"
    LANES = "lanes"
    LOOP = "loop"
    VALUES = "values"


@frozen
class Digit:
    """`size` coordinates, `stride` apart, along dimension `dim`; with an `index`, a thread owns only that one.

    `unroll` specifies that the loop over the digit is unrolled.
    """

    dim: int
    size: int
    stride: int
    kind: DigitKind
    index: Expr | None = None
    unroll: bool = True

    @property
    def end(self) -> int:
        """The extent that the digit covers, in coordinates."""
        return self.size * self.stride

    def between(self, low: int, high: int) -> Digit | None:
        """The part from `low` to `high` coordinates. Size 1 if there is none; None if the bounds do not divide the digit."""
        low, high = max(low, self.stride), min(high, self.end)
        if low >= high:
            return Digit(self.dim, 1, self.stride, self.kind, self.index, self.unroll)
        if low % self.stride or high % low or self.end % high:
            return None
        index = self.index
        if index is not None:
            index = index // (low // self.stride) if low > self.stride else index
            index = index % (high // low) if high < self.end else index
        return Digit(self.dim, high // low, low, self.kind, index, self.unroll)

    def along(self, dim: int) -> Digit:
        """The same digit along another dimension."""
        return self if dim == self.dim else Digit(dim, self.size, self.stride, self.kind, self.index, self.unroll)


@frozen
class Ownership:
    """The ownership of a tensor: `first` are the coordinates of a thread's first element.

    - `digits`: the values of the determining statement in its order, then the digits that are distributed or iterated over around it.
    - `level`: the level of that statement. `spec`: the spec that it performs, for messages.
    - `lane_map`: how its instruction distributes a tile over lanes, with the dimensions in the order of the tensor.
    - `active`: the condition that a thread owns elements.
    - `free`: a statement that follows another ownership determines it. It accesses single elements; other statements may access several at
      once.
    """

    level: Level
    first: tuple[Expr, ...]
    digits: tuple[Digit, ...]
    lane_map: LaneMap | None = None
    active: Expr = TRUE
    free: bool = False
    spec: Spec | None = attrs.field(default=None, eq=False, repr=False)

    @staticmethod
    def of(statement: Exec, access: Access, loops: Sequence[For]) -> Ownership:
        """The ownership that a statement specifies by one of its accesses, inside loops."""
        position = next(number for number, one in enumerate(statement.accesses) if one is access)
        view = tuple(statement.spec.operands.values())[position]
        lane_map: LaneMap | None = statement.lane_maps[position] if statement.lane_maps else None
        if lane_map is not None and view.axes is not None and view.axes != tuple(sorted(view.axes)):
            lane_map = lane_map.transposed(tuple(sorted(range(len(view.axes)), key=view.axes.__getitem__)))
        dims = view.numerals
        variables = {loop.var for loop in loops}
        first = access.substitute(dict.fromkeys(variables, 0)).base
        digits = list(_values(access))
        for dim, base in enumerate(first):
            groups = len(dims[dim].unit_modes) if lane_map is not None and dim < len(dims) else len(access.unit_modes[dim])
            digits += _distributed(access, dim, groups, base, loops, lane_map is not None)
        active = all_of(part for part in conjuncts(statement.active) if variables.isdisjoint(part.variables()))
        return Ownership(statement.spec.level, first, tuple(digits), lane_map, active, statement.inherits_ownership, statement.spec)

    @property
    def visited(self) -> tuple[Digit, ...]:
        """The digits of which a thread owns all coordinates, in registers."""
        return tuple(digit for digit in self.digits if digit.index is None)

    @property
    def is_distributed(self) -> bool:
        """Whether threads own different elements."""
        return any(digit.index is not None for digit in self.digits)

    def inside(self, view: View) -> tuple[Digit, ...] | None:
        """The digits inside a view of the tensor, with strides in the view's coordinates; None if they do not enumerate its elements."""
        digits: list[Digit] = []
        dims = {view.axis(dim): dim for dim in range(len(view.dims))}
        for digit in self.digits:
            reached = 1
            for mode in view.dims[dims[digit.dim]].modes if digit.dim in dims else ():
                size, stride = constant(mode.size), constant(mode.stride)
                if size is None or stride is None:
                    return None
                # The last iteration may extend past the end of a dimension, where no thread owns anything.
                part = digit.between(stride, digit.end if view.dims[dims[digit.dim]].whole else stride * size)
                if part is None or (part.size > 1 and part.stride % stride):
                    return None
                if part.size > 1:
                    digits.append(Digit(dims[digit.dim], part.size, part.stride // stride * reached, part.kind, part.index, part.unroll))
                reached *= size
        for dim, shape in enumerate(view.shape):
            reached = 1
            for inner in sorted((digit for digit in digits if digit.dim == dim), key=lambda digit: digit.stride):
                if inner.stride != reached:
                    return None
                reached = inner.end
            if constant(shape) != reached and not (view.dims[dim].whole and 0 < (constant(shape) or 0) < reached):
                return None
        return tuple(digits)


def _values(access: Access) -> list[Digit]:
    """The digits that a statement accesses at once, in its order."""
    digits = []
    for dim, modes in enumerate(access.modes):
        for mode in modes:
            size, stride = constant(mode.size), constant(mode.stride)
            if size is not None and stride is not None and size > 1:
                digits.append(Digit(dim, size, stride, DigitKind.VALUES))
    if access.points:
        rank = len(access.base)
        digits.sort(key=lambda one: access.points.index(tuple(one.stride if dim == one.dim else 0 for dim in range(rank))))
    return digits


def _distributed(access: Access, dim: int, groups: int, first: Expr, loops: Sequence[For], unroll: bool) -> Iterator[Digit]:
    """The distributed digits of a dimension. Of the units, the first `groups` are threads or groups of threads, the others lanes."""
    distributed = [(position, one) for position, one in enumerate(access.unit_modes[dim]) if one.size > 1]
    indices = _indices(first, [(one.size, one.stride) for _, one in distributed if one.unit])
    for position, mode in distributed:
        if mode.unit:
            yield Digit(dim, mode.size, mode.stride, DigitKind.THREADS if position < groups else DigitKind.LANES, indices[mode.stride])
        else:
            yield Digit(dim, mode.size, mode.stride, DigitKind.LOOP, unroll=unroll or _unrolled(access.base[dim], mode.stride, loops))


def _unrolled(base: Expr, stride: int, loops: Sequence[For]) -> bool:
    """Whether the loop that advances by a stride is unrolled."""
    steps = {atoms[0]: coefficient for atoms, coefficient in terms_of(base)[0] if len(atoms) == 1}
    return any(loop.unroll and steps.get(loop.var) == stride for loop in loops)


def _indices(first: Expr, digits: Sequence[tuple[int, int]]) -> dict[int, Expr]:
    """The index of each of a thread's digits `(size, stride)`, by stride: the terms of its first coordinate with that stride.

    If terms were merged, the index is computed from the coordinate by division and remainder.
    """
    indices: dict[int, Expr] = {stride: ZERO for _, stride in digits}
    terms, start = terms_of(first)
    known = True
    for atoms, coefficient in terms:
        stride = max((one for one in indices if coefficient > 0 and coefficient % one == 0), default=0)
        if stride:
            indices[stride] = indices[stride] + math.prod(atoms, start=as_expr(coefficient // stride))
        known = known and stride > 0
    if known and all(indices[stride].low >= 0 and indices[stride].high < size for size, stride in digits):
        return indices
    return {stride: (first - start) // stride % size for size, stride in digits}
