"""When a product that is written without `accumulate` adds to its result: the paper's MatMul is a multiply-add.

It adds to what its result holds. Where nothing has been written yet that is nothing, so the product is the first term: with no loop
around it in which the result stays, it writes; with such loops, all of their turns but the first add (`accumulate=0 < k`). Behind a
statement that wrote the whole result, as an `Init`, all of them add. What cannot be told from the text must be said.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NoReturn

import attrs

from fireiron.errors import LayoutError
from fireiron.values.expr import TRUE, Expr, Var, any_of, as_expr, constant
from fireiron.values.tensor import Dim, Fixed, Mode, View

_MOST_TURNS: Final = 4096
"""Of a loop whose index is asked turn by turn which element it names."""


@attrs.frozen
class Around:
    """A loop around a statement."""

    var: Var
    first: int
    step: int
    extent: Expr

    @property
    def all_numbers(self) -> bool:
        """Whether its index takes all numbers from 0 to the highest."""
        return (self.first, self.step) == (0, 1) and constant(self.extent) == self.var.high + 1


@attrs.frozen
class Nest:
    """What stands around a statement: loops from the outermost on, conditions by their lines, and what values that change in loops are."""

    loops: tuple[Around, ...] = ()
    conditions: tuple[tuple[int, frozenset[Var]], ...] = ()
    values: Mapping[Var, Expr] = attrs.field(factory=dict)

    def expanded(self, value: Expr) -> Expr:
        """An expression over loops and units alone."""
        while not value.variables().isdisjoint(self.values):
            value = value.substitute({var: self.values[var] for var in value.variables() & set(self.values)})
        return value


@attrs.frozen
class _Writer:
    view: View
    nest: Nest


@attrs.define
class Results:
    """The tensors of a text, in its order: where each was made, and what has written it."""

    made: dict[str, Nest] = attrs.field(factory=dict)
    writers: dict[str, list[_Writer]] = attrs.field(factory=dict)

    def make(self, name: str, nest: Nest) -> None:
        """A tensor of which nothing is written yet."""
        self.made[name] = nest

    def write(self, view: View, nest: Nest) -> None:
        """Something writes a view."""
        self.writers.setdefault(view.tensor.name, []).append(_Writer(view, nest))

    def accumulates(self, result: View, nest: Nest) -> Expr:
        """When a product adds to its result; a `LayoutError` where the text leaves that open."""
        name = result.tensor.name
        around = self.made.get(name, Nest())
        loops = nest.loops[len(around.loops) :]
        before = self.writers.get(name, [])
        if any(_writes_all_of(result, nest, one) for one in before):
            return TRUE
        if before:
            _open(f"%{name} is written by other statements, of which none writes just this part for all")
        return _all_but_first(result, nest, loops, nest.conditions[len(around.conditions) :])


def _open(reason: str) -> NoReturn:
    raise LayoutError(
        f"does this product add to what its result holds? {reason}", legal="{accumulate=0 < k}, {accumulate=1}, {accumulate=0}"
    )


def _all_but_first(result: View, nest: Nest, loops: Sequence[Around], conditions: Iterable[tuple[int, frozenset[Var]]]) -> Expr:
    """The turns of the loops in which a result stays, but for the first."""
    names = {loop.var for loop in loops}
    places = [nest.expanded(digit.index) for digit in _digits(result)]
    moving = names & {var for place in places for var in place.variables()}
    asked = {expanded for _, variables in conditions for var in variables for expanded in nest.expanded(var).variables()}
    for var in sorted(moving, key=str):
        if not _names_each(var, [place for place in places if place.variables() & names == {var}]):
            _open(f"iterations of {var} may have one element of %{result.tensor.name} in common")
    for var in sorted((names - moving) & asked, key=str):
        _open(f"a condition chooses among the iterations of {var}")
    return any_of(as_expr(loop.first) < loop.var for loop in loops if loop.var not in moving)


def _digits(view: View) -> list[Fixed]:
    return [digit for part in view.numerals for digit in part.fixed]


def _names_each(var: Var, places: Sequence[Expr]) -> bool:
    """Whether indices name other elements in each turn of a loop."""
    for place in places:
        step = constant(place.substitute({var: var + 1}) - place) if place.variables() == {var} else None
        if step:
            return True
    own = [place for place in places if place.variables() == {var}]
    count = var.high - var.low + 1
    if not own or count > _MOST_TURNS:
        return False
    return len({tuple(int(place.evaluate({var.name: number})) for place in own) for number in range(var.low, var.high + 1)}) == count


def _writes_all_of(result: View, nest: Nest, writer: _Writer) -> bool:
    """Whether an earlier statement wrote all elements of a result, in those of its loops that are over by then."""
    if writer.nest.conditions != nest.conditions[: len(writer.nest.conditions)]:
        return False
    over = [loop for loop in writer.nest.loops if loop not in nest.loops]
    used = [
        index for index in (digit.index for digit in _digits(writer.view)) for var in index.variables() if var in {one.var for one in over}
    ]
    ranges = {loop.var for loop in over if loop.all_numbers and sum(loop.var in index.variables() for index in used) == 1}
    if any(as_expr(loop.extent).low <= loop.first for loop in over):
        return False
    return all(
        _covers(wrote, part, size, writer.nest, nest, ranges)
        for wrote, part, size in zip(writer.view.numerals, result.numerals, result.tensor.shape, strict=True)
    )


def _covers(wrote: Dim, part: Dim, size: Expr, before: Nest, nest: Nest, ranges: set[Var]) -> bool:
    """Whether a dimension of what was written has all coordinates that a result has there, loops over all numbers of a digit let be."""
    fixed = list(wrote.fixed)
    while fixed and fixed[-1].index in ranges and constant(fixed[-1].size) == fixed[-1].index.high + 1:
        fixed.pop()
    mine, yours = (
        [(one.size, one.stride, of.expanded(one.index)) for one in digits] for digits, of in ((fixed, before), (part.fixed, nest))
    )
    if mine != yours[: len(mine)]:
        return False
    if wrote.modes == part.modes and len(mine) == len(yours):
        return True
    total = Dim((*wrote.modes, *(Mode(one.size, one.stride) for one in wrote.fixed))).size
    return constant(total - size) is not None and (total - size).low >= 0


__all__ = ["Nest", "Results"]
