"""Which thread touches which element: accesses evaluated for all threads and loop values of one block, with NumPy."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import numpy as np

from fireiron.errors import ResourceError
from fireiron.ir import Access, Exec, For, Kernel, execs, lets
from fireiron.values.expr import Expr, Var, compiled, conjuncts, constant

Array = Any


MOST_POINTS = 1 << 22
"""The most combinations of threads, loop values and elements of an access that are told apart: 16 times what the registers of a
block of 1024 threads hold, and a fraction of a second of NumPy's time."""


@attrs.frozen
class Grid:
    """Values of variables: loops along the first axes, threads along the last. Sizes known only at run time are absent.

    A loop whose extent is known only at run time stays at its first value: buffers in shared memory and registers have static
    sizes, so no such loop numbers their elements, and tiles of a written array are disjoint from one value to the next.
    """

    environment: Mapping[str, Array]
    shape: tuple[int, ...]


@functools.lru_cache(maxsize=512)
def thread_values(kernel: Kernel) -> Mapping[str, Array]:
    """The named values that depend on the thread alone, for all threads of block 0; sizes known at run time are left out.

    A part of block 0's own number is 0 whatever the sizes are, so it is evaluated at their least values.
    """
    values: dict[str, Array] = {"thread": np.arange(kernel.workers), "block": np.zeros(1, dtype=np.int64)}
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

    Loops of unknown extent stay at their first value; those whose addresses repeat run through one period.
    """
    values: dict[str, Array] = {**thread_values(kernel), **fixed}
    used = [loop for loop in loops if loop.var in needed and loop.var.name not in fixed]
    counts = {loop.var: _values(loop) for loop in used}
    static = [loop for loop in used if counts[loop.var] is not None]
    shape = (*(counts[loop.var] or 1 for loop in static), kernel.workers)
    require_few(math.prod(shape), static)
    rank = len(shape)
    for axis, loop in enumerate(static):
        values[loop.var.name] = np.arange(shape[axis]).reshape([-1 if other == axis else 1 for other in range(rank)])
    for loop in used:
        values.setdefault(loop.var.name, np.zeros(1, dtype=np.int64))
    inner: dict[str, Array] = {}
    for var, value in lets(kernel.body).items():
        if var.name not in values and {one.name for one in value.variables()} <= {*values, *inner}:
            inner[var.name] = np.asarray(compiled(value)({**values, **inner}))
    values |= inner
    return Grid(values, shape)


def require_few(points: int, loops: Sequence[For]) -> None:
    """Refuse to enumerate more than `MOST_POINTS`: a block that does so much in one statement is no good kernel either."""
    if points > MOST_POINTS:
        inside = f" (loops: {', '.join(f'{loop.var} of {loop.extent}' for loop in loops)})" if loops else ""
        raise ResourceError(
            f"the threads of a block touch {points} elements in one statement, of which each is compared with the others{inside}",
            legal=f"at most {MOST_POINTS}",
            at=next((loop.origin for loop in reversed(loops)), None),
            hint="smaller tiles for Block",
        )


def require_small(kernel: Kernel) -> None:
    """Refuse statements that take too many elements at once, before anything lists them: those of all threads, or of a unit together."""
    for statement, _ in execs(kernel.body):
        for access in statement.accesses:
            require_few(math.prod(access.shape) * (1 if statement.collective else kernel.workers), ())


def _values(loop: For) -> int | None:
    """How many values of a loop say all about the addresses in it; None where that is not known."""
    count = constant(loop.extent)
    if loop.period:
        return loop.period if count is None else min(count, loop.period)
    return count


def closure(kernel: Kernel, variables: frozenset[Var]) -> frozenset[Var]:
    """The variables, and those that the named ones among them are computed from."""
    table = lets(kernel.body)
    found = set(variables)
    for var in reversed(tuple(table)):
        if var in found:
            found |= table[var].variables()
    return frozenset(found)


def evaluate(value: Expr, grid: Grid) -> Array:
    """The value of an expression on a grid, broadcast to its shape."""
    return np.broadcast_to(np.asarray(compiled(value)(grid.environment)), grid.shape)


def active_mask(statement: Exec, grid: Grid) -> Array:
    """Which threads take part; conditions that depend on run-time sizes are taken as true."""
    mask = np.ones(grid.shape, dtype=bool)
    for condition in conjuncts(statement.active):
        if condition.variables() <= _known(grid, condition):
            mask &= np.asarray(evaluate(condition, grid), dtype=bool)
    return mask


def _known(grid: Grid, value: Expr) -> frozenset[Var]:
    return frozenset(var for var in value.variables() if var.name in grid.environment)


def needed_variables(kernel: Kernel, statement: Exec, access: Access) -> frozenset[Var]:
    """Everything that an access's coordinates and its statement's condition depend on."""
    variables: frozenset[Var] = frozenset(statement.active.variables()).union(*(value.variables() for value in (*access.base, access.copy)))
    return closure(kernel, variables)
