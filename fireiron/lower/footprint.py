"""Which thread touches which element: accesses evaluated for all threads and loop values of one block, with NumPy.

What a block's number or a run-time size decides is not enumerated: such a condition counts as true, whatever block 0 would
say, and a loop whose extent depends on them runs through all values that the extent allows where those are few.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Any

import attrs
import numpy as np

from fireiron.ir import Access, Exec, For, Kernel, lets
from fireiron.values.expr import Expr, Var, compiled, conjuncts, constant

Array = Any

MOST_VALUES = 4096
"""Values of a loop of undecided extent that are all enumerated; one that may run longer stays at its first value."""


@attrs.frozen
class Grid:
    """Values of variables: loops along the first axes, threads along the last. Sizes known only at run time are absent.

    `decided` are the names of which every value stands on the grid, `loops` those along its axes. A loop that may run longer
    than `MOST_VALUES` stays at its first value: buffers in shared memory and registers have static sizes, so no such loop
    numbers their elements, and tiles of a written array are disjoint from one value to the next.
    """

    environment: Mapping[str, Array]
    shape: tuple[int, ...]
    decided: frozenset[str]
    loops: tuple[For, ...]


class Named:
    """The named values of a kernel, and what they depend on."""

    def __init__(self, kernel: Kernel) -> None:
        self.values = lets(kernel.body)
        self.by_name = {var.name: value for var, value in self.values.items()}
        self.roots = functools.lru_cache(maxsize=None)(self._roots)

    def _roots(self, value: Expr) -> frozenset[str]:
        """Names of the thread, block, loops and sizes that an expression depends on, through named values."""
        found: set[str] = set()
        for var in value.variables():
            found |= self.roots(self.by_name[var.name]) if var.name in self.by_name else {var.name}
        return frozenset(found)


@functools.lru_cache(maxsize=64)
def named(kernel: Kernel) -> Named:
    """The named values of a kernel."""
    return Named(kernel)


@functools.lru_cache(maxsize=512)
def thread_values(kernel: Kernel) -> Mapping[str, Array]:
    """The named values that depend on the thread alone, for all threads of block 0; sizes known at run time are left out.

    A part of block 0's own number is 0 whatever the sizes are, so it is evaluated at their least values.
    """
    values: dict[str, Array] = {"thread": np.arange(kernel.threads), "block": np.zeros(1, dtype=np.int64)}
    least = {var.name: var.low for var in kernel.symbols}
    of_block = {"block"}
    for var, value in lets(kernel.body).items():
        names = {one.name for one in value.variables()}
        if names <= of_block | set(least):
            of_block.add(var.name)
            with np.errstate(divide="ignore"):
                values[var.name] = np.asarray(compiled(value)({**least, **values}))
        elif names <= set(values):
            values[var.name] = np.asarray(compiled(value)(values))
    return values


def grid_of(kernel: Kernel, loops: tuple[For, ...], needed: frozenset[Var], fixed: Mapping[str, int] = {}) -> Grid:
    """Axes for the loops that occur in `needed` and are not `fixed`, then one for the threads.

    Loops whose addresses repeat run through one period.
    """
    values: dict[str, Array] = {**thread_values(kernel), **fixed}
    used = [loop for loop in loops if loop.var in needed and loop.var.name not in fixed]
    counts = {loop.var: period_of(kernel, loop) for loop in used}
    static = [loop for loop in used if counts[loop.var] is not None]
    shape = (*(counts[loop.var] or 1 for loop in static), kernel.threads)
    rank = len(shape)
    for axis, loop in enumerate(static):
        values[loop.var.name] = np.arange(shape[axis]).reshape([-1 if other == axis else 1 for other in range(rank)])
    for loop in used:
        values.setdefault(loop.var.name, np.zeros(1, dtype=np.int64))
    inner: dict[str, Array] = {}
    for var, value in lets(kernel.body).items():
        if var.name not in values and {one.name for one in value.variables()} <= {*values, *inner}:
            inner[var.name] = np.asarray(compiled(value)({**values, **inner}))
    decided = {"thread", *fixed, *(loop.var.name for loop in static if not _repeating(loop))}
    return Grid(values | inner, shape, frozenset(decided), tuple(static))


def period_of(kernel: Kernel, loop: For) -> int | None:
    """How many values of a loop say all about the addresses in it; None where those are too many to tell."""
    count = constant(loop.extent)
    if loop.period:
        return loop.period if count is None else min(count, loop.period)
    return loop.extent.high if count is None and loop.extent.high <= MOST_VALUES else count


def _repeating(loop: For) -> bool:
    """Whether one value on the grid stands for several iterations."""
    count = constant(loop.extent)
    return bool(loop.period) and (count is None or count > loop.period)


def closure(kernel: Kernel, variables: Iterable[Var]) -> frozenset[Var]:
    """The variables, and those that the named ones among them are computed from."""
    table = named(kernel).values
    found = set(variables)
    waiting = [var for var in found if var in table]
    while waiting:
        new = table[waiting.pop()].variables() - found
        found |= new
        waiting += [var for var in new if var in table]
    return frozenset(found)


def evaluate(value: Expr, grid: Grid) -> Array:
    """The value of an expression on a grid, broadcast to its shape."""
    return np.broadcast_to(np.asarray(compiled(value)(grid.environment)), grid.shape)


def active_mask(statement: Exec, grid: Grid, kernel: Kernel) -> Array:
    """Which threads take part, at some iteration that a point of the grid stands for; undecided conditions count as true."""
    mask = np.ones(grid.shape, dtype=bool)
    of_loop: dict[str, list[Expr]] = {}
    for condition in conjuncts(statement.active):
        roots = named(kernel).roots(condition)
        if roots <= grid.decided:
            mask &= np.asarray(evaluate(condition, grid), dtype=bool)
        elif len(roots) == 1:
            of_loop.setdefault(next(iter(roots)), []).append(condition)
    for axis, loop in enumerate(grid.loops):
        if loop.var.name in of_loop and _repeating(loop) and constant(loop.extent) is not None:
            sometimes = _sometimes(kernel, loop, of_loop[loop.var.name])
            mask &= sometimes.reshape([-1 if other == axis else 1 for other in range(len(grid.shape))])
    return mask


def _sometimes(kernel: Kernel, loop: For, conditions: Iterable[Expr]) -> Array:
    """For each place in the period of a loop, whether the conditions hold together at an iteration there."""
    count = constant(loop.extent) or 0
    values: dict[str, Array] = {loop.var.name: np.arange(count)}
    table = named(kernel)
    for var, value in table.values.items():
        if table.roots(value) == {loop.var.name}:
            values[var.name] = np.asarray(compiled(value)(values))
    holds = np.zeros(-(-count // loop.period) * loop.period, dtype=bool)
    holds[:count] = np.logical_and.reduce([np.broadcast_to(compiled(one)(values), (count,)) for one in conditions])
    return holds.reshape(-1, loop.period).any(axis=0)


def needed_variables(kernel: Kernel, statement: Exec, access: Access) -> frozenset[Var]:
    """Everything that an access's coordinates and its statement's decidable conditions depend on."""
    undecided = {"block", *(symbol.name for symbol in kernel.symbols)}
    found: set[Var] = set().union(*(value.variables() for value in (*access.base, access.copy)))
    for condition in conjuncts(statement.active):
        if named(kernel).roots(condition).isdisjoint(undecided):
            found |= condition.variables()
    return closure(kernel, found)
