"""Holding: which thread holds which elements of a tensor in registers, as the statement that decides it has them.

Whoever decides (an instruction by its lane map, a tile dealt to threads, a load by either) touches the tensor by an access, and the
digits of that access say everything: each is `size` coordinates, `stride` apart, along a dimension. A thread has one of them (its
`index`), or all of them, one after the other. Registers are numbered by the digits that a thread visits; whoever follows places the
digits of the thread on its own operands and visits the others.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator, Sequence

import attrs

from fireiron.ir.access import Access
from fireiron.ir.lanes import LaneMap
from fireiron.ir.statement import Exec, For
from fireiron.spec import Spec
from fireiron.values.expr import FALSE, TRUE, ZERO, Expr, all_of, as_expr, conjuncts, constant
from fireiron.values.expr.normal import terms_of
from fireiron.values.machine import Level
from fireiron.values.tensor import Tensor, View


def owns(tensor: Tensor, statement: Exec, access: Access) -> bool:
    """Whether an access decides who holds what: one that adds to an accumulator, or reads another tensor, and does not write it too.

    A product that runs on wants its accumulator as it numbers it, if it begins with that product, too.
    """
    if statement.follows:
        return False
    if tensor.owner == "accumulates":
        return access.write and (statement.accumulate != FALSE or statement.mechanism.in_registers)
    return not access.write and not any(other.write and other.buffer == access.buffer for other in statement.accesses)


class By(enum.Enum):
    """Who takes a digit: tiles are dealt to THREADS or groups of them, an instruction deals its tile to LANES, a LOOP visits one
    tile after the other, and a statement takes all of its VALUES."""

    THREADS = "threads"
    LANES = "lanes"
    LOOP = "loop"
    VALUES = "values"


@attrs.frozen
class Digit:
    """`size` coordinates, `stride` apart, along dimension `dim`; with an `index`, a thread has only that one of them.

    `unroll` says that the loop over them is to be unrolled.
    """

    dim: int
    size: int
    stride: int
    by: By
    index: Expr | None = None
    unroll: bool = True

    @property
    def end(self) -> int:
        """The coordinates over which it steps."""
        return self.size * self.stride

    def between(self, low: int, high: int) -> Digit | None:
        """The part of it that steps from `low` to `high` coordinates; itself with size 1 if there is none, None if it does not divide."""
        low, high = max(low, self.stride), min(high, self.end)
        if low >= high:
            return Digit(self.dim, 1, self.stride, self.by, self.index, self.unroll)
        if low % self.stride or high % low or self.end % high:
            return None
        index = self.index
        if index is not None:
            index = index // (low // self.stride) if low > self.stride else index
            index = index % (high // low) if high < self.end else index
        return Digit(self.dim, high // low, low, self.by, index, self.unroll)

    def along(self, dim: int) -> Digit:
        """The same along another dimension."""
        return self if dim == self.dim else Digit(dim, self.size, self.stride, self.by, self.index, self.unroll)


@attrs.frozen
class Holding:
    """Who holds what of a tensor: `first` are the coordinates of a thread's first element, from where it visits its digits.

    `digits` are the values of the deciding statement as it numbers them, then what was dealt or visited on the way to it. `level`
    is the statement's; `lane_map` says how its instruction spreads a tile over lanes, whose dimensions stand as in the tensor; `active`
    says which threads hold anything. With `free` it is that of a follower, which visits one by one what another may take at once. `spec`
    is what the statement performs, for messages.
    """

    level: Level
    first: tuple[Expr, ...]
    digits: tuple[Digit, ...]
    lane_map: LaneMap | None = None
    active: Expr = TRUE
    free: bool = False
    spec: Spec | None = attrs.field(default=None, eq=False, repr=False)

    @staticmethod
    def of(statement: Exec, access: Access, loops: Sequence[For]) -> Holding:
        """What a statement makes its threads hold by one of its accesses, inside loops."""
        position = next(number for number, one in enumerate(statement.accesses) if one is access)
        view = tuple(statement.spec.operands.values())[position]
        lane_map: LaneMap | None = statement.lane_maps[position] if statement.lane_maps else None
        if lane_map is not None and view.axes is not None and view.axes != tuple(sorted(view.axes)):
            lane_map = lane_map.turned(tuple(sorted(range(len(view.axes)), key=view.axes.__getitem__)))
        dims = view.numerals
        variables = {loop.var for loop in loops}
        first = access.substitute(dict.fromkeys(variables, 0)).base
        digits = list(_values(access))
        for dim, base in enumerate(first):
            groups = len(dims[dim].dealt) if lane_map is not None and dim < len(dims) else len(access.dealt[dim])
            digits += _dealt(access, dim, groups, base, loops, lane_map is not None)
        active = all_of(part for part in conjuncts(statement.active) if variables.isdisjoint(part.variables()))
        return Holding(statement.spec.level, first, tuple(digits), lane_map, active, statement.follows, statement.spec)

    @property
    def visited(self) -> tuple[Digit, ...]:
        """The digits of which a thread has all, in registers."""
        return tuple(one for one in self.digits if one.index is None)

    @property
    def dealt(self) -> bool:
        """Whether threads hold different elements."""
        return any(one.index is not None for one in self.digits)

    def inside(self, view: View) -> tuple[Digit, ...] | None:
        """The digits inside a view of the tensor, with strides in its own coordinates; None if they do not number its elements."""
        found: list[Digit] = []
        dims = {view.axis(dim): dim for dim in range(len(view.dims))}
        for digit in self.digits:
            reached = 1
            for mode in view.dims[dims[digit.dim]].modes if digit.dim in dims else ():
                size, stride = constant(mode.size), constant(mode.stride)
                if size is None or stride is None:
                    return None
                # The last turn may go over the end of a dimension: of what lies beyond it no thread has anything.
                part = digit.between(stride, digit.end if view.dims[dims[digit.dim]].whole else stride * size)
                if part is None or (part.size > 1 and part.stride % stride):
                    return None
                if part.size > 1:
                    found.append(Digit(dims[digit.dim], part.size, part.stride // stride * reached, part.by, part.index, part.unroll))
                reached *= size
        for dim, shape in enumerate(view.shape):
            reached = 1
            for one in sorted((one for one in found if one.dim == dim), key=lambda one: one.stride):
                if one.stride != reached:
                    return None
                reached = one.end
            if constant(shape) != reached and not (view.dims[dim].whole and 0 < (constant(shape) or 0) < reached):
                return None
        return tuple(found)


def _values(access: Access) -> list[Digit]:
    """The digits that a statement takes at once, as it numbers them."""
    found = []
    for dim, modes in enumerate(access.modes):
        for mode in modes:
            size, stride = constant(mode.size), constant(mode.stride)
            if size is not None and stride is not None and size > 1:
                found.append(Digit(dim, size, stride, By.VALUES))
    if access.points:
        rank = len(access.base)
        found.sort(key=lambda one: access.points.index(tuple(one.stride if dim == one.dim else 0 for dim in range(rank))))
    return found


def _dealt(access: Access, dim: int, groups: int, first: Expr, loops: Sequence[For], unroll: bool) -> Iterator[Digit]:
    """The digits taken out of a dimension: of the units, the first `groups` belong to threads or groups of them, the others to lanes."""
    dealt = [(position, one) for position, one in enumerate(access.dealt[dim]) if one.size > 1]
    indices = _indices(first, [(one.size, one.stride) for _, one in dealt if one.unit])
    for position, one in dealt:
        if one.unit:
            yield Digit(dim, one.size, one.stride, By.THREADS if position < groups else By.LANES, indices[one.stride])
        else:
            yield Digit(dim, one.size, one.stride, By.LOOP, unroll=unroll or _unrolled(access.base[dim], one.stride, loops))


def _unrolled(base: Expr, stride: int, loops: Sequence[For]) -> bool:
    """Whether the loop that steps by a stride is unrolled."""
    steps = {atoms[0]: coefficient for atoms, coefficient in terms_of(base)[0] if len(atoms) == 1}
    return any(loop.unroll and steps.get(loop.var) == stride for loop in loops)


def _indices(first: Expr, digits: Sequence[tuple[int, int]]) -> dict[int, Expr]:
    """The index of each of a thread's digits `(size, stride)`, by stride: the terms of its first coordinate that step so far.

    Where terms were folded together the coordinate is divided, as the number that has these digits.
    """
    found: dict[int, Expr] = {stride: ZERO for _, stride in digits}
    terms, start = terms_of(first)
    known = True
    for atoms, coefficient in terms:
        stride = max((one for one in found if coefficient > 0 and coefficient % one == 0), default=0)
        if stride:
            found[stride] = found[stride] + math.prod(atoms, start=as_expr(coefficient // stride))
        known = known and stride > 0
    if known and all(found[stride].low >= 0 and found[stride].high < size for size, stride in digits):
        return found
    return {stride: (first - start) // stride % size for size, stride in digits}
