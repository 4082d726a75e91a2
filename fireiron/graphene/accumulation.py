"""Infer whether a MatMul without the option `accumulate` accumulates. In the paper, MatMul is a multiply-add.

- If an earlier statement wrote the whole result, as an `Init` does, the MatMul always accumulates.
- If nothing wrote the result, the MatMul overwrites it. In loops whose iterations share the result, all iterations but the first
  accumulate (`accumulate=0 < k`).
- Otherwise the text must specify `accumulate`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NoReturn

import attrs

from fireiron.errors import LayoutError
from fireiron.frozen import frozen
from fireiron.values.expr import TRUE, Expr, Var, any_of, as_expr, constant
from fireiron.values.tensor import Dim, Fixed, Mode, View

_MOST_ITERATIONS: Final = 4096
"""Maximum trip count of a loop for which the elements of all iterations are computed and compared."""


@frozen
class EnclosingLoop:
    """A loop around a statement."""

    var: Var
    first: int
    step: int
    extent: Expr

    @property
    def all_numbers(self) -> bool:
        """Whether the loop index takes each value from 0 to its upper bound."""
        return (self.first, self.step) == (0, 1) and constant(self.extent) == self.var.high + 1


@frozen
class Nest:
    """The context of a statement: loops (outermost first), conditions with their lines, and definitions of values that vary in loops."""

    loops: tuple[EnclosingLoop, ...] = ()
    conditions: tuple[tuple[int, frozenset[Var]], ...] = ()
    values: Mapping[Var, Expr] = attrs.field(factory=dict)

    def expanded(self, value: Expr) -> Expr:
        """Substitute definitions until an expression uses only loop indices and unit indices."""
        while not value.variables().isdisjoint(self.values):
            value = value.substitute({var: self.values[var] for var in value.variables() & set(self.values)})
        return value


@frozen
class _Write:
    view: View
    nest: Nest


@attrs.define
class Results:
    """The tensors of the text so far: the context in which each is defined, and its writes."""

    defined: dict[str, Nest] = attrs.field(factory=dict)
    writes: dict[str, list[_Write]] = attrs.field(factory=dict)

    def define(self, name: str, nest: Nest) -> None:
        """Record a new tensor."""
        self.defined[name] = nest

    def write(self, view: View, nest: Nest) -> None:
        """Record that a statement writes a view."""
        self.writes.setdefault(view.tensor.name, []).append(_Write(view, nest))

    def accumulates(self, result: View, nest: Nest) -> Expr:
        """Return the condition under which a MatMul accumulates.

        Raises: a `LayoutError` if the text does not determine it.
        """
        name = result.tensor.name
        around = self.defined.get(name, Nest())
        loops = nest.loops[len(around.loops) :]
        before = self.writes.get(name, [])
        if any(_overwrites(result, nest, write) for write in before):
            return TRUE
        if before:
            _refuse(f"earlier statements write %{name}, but none of them is known to write all of this part")
        return _all_but_first(result, nest, loops, nest.conditions[len(around.conditions) :])


def _refuse(reason: str) -> NoReturn:
    raise LayoutError(f"cannot infer whether this MatMul accumulates: {reason}", legal="{accumulate=0 < k}, {accumulate=1}, {accumulate=0}")


def _all_but_first(result: View, nest: Nest, loops: Sequence[EnclosingLoop], conditions: Iterable[tuple[int, frozenset[Var]]]) -> Expr:
    """Return the condition of all iterations but the first, over the loops whose iterations share the result."""
    names = {loop.var for loop in loops}
    indices = [nest.expanded(digit.index) for digit in _digits(result)]
    moving = names & {var for index in indices for var in index.variables()}
    condition_variables = {expanded for _, variables in conditions for var in variables for expanded in nest.expanded(var).variables()}
    for var in sorted(moving, key=str):
        if not _distinct_per_iteration(var, [index for index in indices if index.variables() & names == {var}]):
            _refuse(f"several iterations of {var} may write the same element of %{result.tensor.name}")
    for var in sorted((names - moving) & condition_variables, key=str):
        _refuse(f"a condition may exclude iterations of {var}")
    return any_of(as_expr(loop.first) < loop.var for loop in loops if loop.var not in moving)


def _digits(view: View) -> list[Fixed]:
    return [digit for part in view.numerals for digit in part.fixed]


def _distinct_per_iteration(var: Var, indices: Sequence[Expr]) -> bool:
    """Whether the indices select a different element in each iteration of a loop."""
    for index in indices:
        step = constant(index.substitute({var: var + 1}) - index) if index.variables() == {var} else None
        if step:
            return True
    own_indices = [index for index in indices if index.variables() == {var}]
    count = var.high - var.low + 1
    if not own_indices or count > _MOST_ITERATIONS:
        return False
    return (
        len({tuple(int(index.evaluate({var.name: number})) for index in own_indices) for number in range(var.low, var.high + 1)}) == count
    )


def _overwrites(result: View, nest: Nest, write: _Write) -> bool:
    """Whether an earlier statement, with its loops that have ended, wrote all elements of a result."""
    if write.nest.conditions != nest.conditions[: len(write.nest.conditions)]:
        return False
    over = [loop for loop in write.nest.loops if loop not in nest.loops]
    used = [
        index for index in (digit.index for digit in _digits(write.view)) for var in index.variables() if var in {one.var for one in over}
    ]
    ranges = {loop.var for loop in over if loop.all_numbers and sum(loop.var in index.variables() for index in used) == 1}
    if any(as_expr(loop.extent).low <= loop.first for loop in over):
        return False
    return all(
        _covers(wrote, part, size, write.nest, nest, ranges)
        for wrote, part, size in zip(write.view.numerals, result.numerals, result.tensor.shape, strict=True)
    )


def _covers(wrote: Dim, part: Dim, size: Expr, before: Nest, nest: Nest, ranges: set[Var]) -> bool:
    """Whether the written coordinates of a dimension contain those of the result.

    A loop in `ranges` takes all values of its digit, so that digit does not restrict the coordinates.
    """
    fixed = list(wrote.fixed)
    while fixed and fixed[-1].index in ranges and constant(fixed[-1].size) == fixed[-1].index.high + 1:
        fixed.pop()
    written_digits, result_digits = (
        [(one.size, one.stride, of.expanded(one.index)) for one in digits] for digits, of in ((fixed, before), (part.fixed, nest))
    )
    if written_digits != result_digits[: len(written_digits)]:
        return False
    if wrote.modes == part.modes and len(written_digits) == len(result_digits):
        return True
    total = Dim((*wrote.modes, *(Mode(one.size, one.stride) for one in wrote.fixed))).size
    return constant(total - size) is not None and (total - size).low >= 0


__all__ = ["Nest", "Results"]
