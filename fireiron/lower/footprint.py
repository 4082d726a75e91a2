"""Evaluate accesses with NumPy, for all threads and loop values of one block, to find which thread accesses which element."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import numpy as np

from fireiron.errors import ResourceError
from fireiron.frozen import frozen
from fireiron.ir import Access, ClaimTile, Exec, For, Kernel, Stmt, execs, lets, statements
from fireiron.ir.rewrite import by_identity
from fireiron.values.expr import Expr, Less, Var, as_expr, compiled, conjuncts, constant

Array = Any


MOST_VALUES = 4096
"""Maximum number of values of a loop of unknown extent that are enumerated."""

MOST_POINTS = 1 << 22
"""Maximum number of combinations of threads, loop values and elements of an access: 16 times the registers of a block of 1024
threads, a fraction of a second in NumPy.
"""


@frozen
class Grid:
    """Values of variables: loops along the first axes, threads along the last. Sizes known only at run time are absent.

    A loop of unknown extent takes all its possible values or, if there are too many, only its first. Buffers in shared memory and registers
    have static sizes, so no such loop determines their elements; and tiles of a written array are disjoint for different values.

    - `axes`: the loops that have an axis, in order.
    - `undecided`: names that have several possible values; the grid contains that of block 0 or of the first iteration.
    - `repeating`: loops of which a value represents several iterations; `partly`: the names that depend on them.
    """

    environment: Mapping[str, Array]
    shape: tuple[int, ...]
    axes: tuple[str, ...] = ()
    undecided: frozenset[str] = frozenset()
    repeating: tuple[For, ...] = ()
    partly: frozenset[str] = frozenset()

    def at_threads(self, threads: Array) -> Grid:
        """The grid restricted to some threads."""
        count = self.shape[-1]
        values = {
            name: value[..., threads] if isinstance(value, np.ndarray) and value.ndim and value.shape[-1] == count else value
            for name, value in self.environment.items()
        }
        return attrs.evolve(self, environment=values, shape=(*self.shape[:-1], len(threads)))


@frozen
class Named:
    """The named values that depend only on the thread and the block, for all threads of block 0.

    `of_block` are the names that depend on the block. Run-time sizes are absent. Each part of the number of block 0 is 0 for all sizes, so
    such names are evaluated at the lower bounds of sizes.
    """

    values: Mapping[str, Array]
    of_block: frozenset[str]


@by_identity
def thread_values(kernel: Kernel) -> Named:
    """The values of all names of a kernel that are known before any loop runs."""
    values: dict[str, Array] = {"thread": np.arange(kernel.workers), "block": np.zeros(1, dtype=np.int64)}
    least = {var.name: var.low for var in kernel.symbols}
    tiles = {stmt.var.name for stmt in statements(kernel.body) if isinstance(stmt, ClaimTile)}  # depends on the block
    values |= dict.fromkeys(tiles, values["block"])
    block_alone = {"block", *tiles}
    of_block = {"block", *tiles}
    for var, value, names in _named(kernel.body):
        if names & of_block:
            of_block.add(var.name)
        if names <= block_alone | set(least):
            block_alone.add(var.name)
            # A size may be 0 at its lower bound, though never in a launch. NumPy's quotient by 0 is 0, which is right for block 0.
            with np.errstate(divide="ignore"):
                values[var.name] = np.asarray(compiled(value)({**least, **values}))
        elif names <= set(values):
            values[var.name] = np.asarray(compiled(value)(values))
    return Named(values, frozenset(of_block))


def grid_of(kernel: Kernel, loops: tuple[For, ...], needed: frozenset[Var], fixed: Mapping[str, int] = {}) -> Grid:
    """A grid with an axis for each loop that occurs in `needed` and is not `fixed`, a last axis for the threads, and the values of all
    names that these determine.

    Loops whose addresses repeat take the values of one period.
    """
    named = thread_values(kernel)
    values: dict[str, Array] = {**named.values, **fixed}
    used = [loop for loop in loops if loop.var in needed and loop.var.name not in fixed]
    counts = _few(used, kernel.workers)
    static = [loop for loop in used if counts[loop.var] is not None]
    shape = (*(counts[loop.var] or 1 for loop in static), kernel.workers)
    require_few(math.prod(shape), static)
    rank = len(shape)
    for axis, loop in enumerate(static):
        values[loop.var.name] = np.arange(shape[axis]).reshape([-1 if other == axis else 1 for other in range(rank)])
    for loop in used:
        # A loop without an axis has its first value. If it has several values, `undecided` contains its name.
        values.setdefault(loop.var.name, np.zeros(1, dtype=np.int64))
    undecided = {*named.of_block, *(loop.var.name for loop in used if counts[loop.var] is None)}
    repeating = tuple(loop for loop in static if _repeats(loop))
    partly = {loop.var.name for loop in repeating}
    known = set(values)
    everything: dict[str, Array] = {var.name: var.low for var in kernel.symbols} | values
    with np.errstate(divide="ignore"):  # as in `thread_values`: undecided anyway, at the lower bounds of sizes
        for var, value, names in _named(kernel.body):
            if var.name not in known and (names <= known or (names <= everything.keys() and not names.isdisjoint(undecided))):
                values[var.name] = everything[var.name] = np.asarray(compiled(value)(everything))
                known.add(var.name)
                undecided |= {var.name} if not names.isdisjoint(undecided) else set()
                partly |= {var.name} if not names.isdisjoint(partly) else set()
    return Grid(values, shape, tuple(loop.var.name for loop in static), frozenset(undecided), repeating, frozenset(partly))


@by_identity
def _named(body: tuple[Stmt, ...]) -> tuple[tuple[Var, Expr, frozenset[str]], ...]:
    """All names with their definitions and the names in these, in program order."""
    return tuple((var, value, frozenset(inner.name for inner in value.variables())) for var, value in lets(body).items())


def require_few(points: int, loops: Sequence[For]) -> None:
    """Refuse to enumerate more than `MOST_POINTS` elements. Such a kernel would be slow anyway."""
    if points > MOST_POINTS:
        inside = f" (loops: {', '.join(f'{loop.var} of {loop.extent}' for loop in loops)})" if loops else ""
        raise ResourceError(
            f"the threads of a block access {points} elements in one statement, too many to compare{inside}",
            legal=f"at most {MOST_POINTS}",
            at=next((loop.origin for loop in reversed(loops)), None),
            hint="smaller tiles for Block",
        )


def require_small(kernel: Kernel) -> None:
    """Refuse statements that access too many elements at once, per block or per unit, before they are enumerated."""
    for statement, _ in execs(kernel.body):
        for access in statement.accesses:
            require_few(math.prod(access.shape) * (1 if statement.collective else kernel.workers), ())


def _values(loop: For) -> int | None:
    """The number of loop values that determine all addresses; None if it is unknown."""
    count = constant(loop.extent)
    if loop.period:
        return loop.period if count is None else min(count, loop.period)
    return loop.extent.high if count is None and loop.extent.high <= MOST_VALUES else count


def _few(loops: Sequence[For], threads: int) -> dict[Var, int | None]:
    """The number of values of each loop. If the product is too large, the longest loops of unknown extent have None."""
    counts = {loop.var: _values(loop) for loop in loops}
    undecided = sorted((loop.var for loop in loops if constant(loop.extent) is None and not loop.period), key=lambda var: counts[var] or 0)
    while undecided and threads * math.prod(count or 1 for count in counts.values()) > MOST_POINTS:
        counts[undecided.pop()] = None
    return counts


def _repeats(loop: For) -> bool:
    """Whether a value within the loop's period represents several iterations."""
    count = constant(loop.extent)
    return bool(loop.period) and (count is None or count > loop.period)


def closure(kernel: Kernel, variables: frozenset[Var]) -> frozenset[Var]:
    """The variables, and those from which the named ones among them are computed."""
    table = _closures(kernel.body)
    named = variables & table.keys()
    return variables.union(*(table[var] for var in named)) if named else frozenset(variables)


@by_identity
def _closures(body: tuple[Stmt, ...]) -> Mapping[Var, frozenset[Var]]:
    """For each name, all names from which it is computed."""
    result: dict[Var, frozenset[Var]] = {}
    for var, value in lets(body).items():  # a name depends on earlier ones only
        parts = frozenset(value.variables())
        result[var] = parts.union(*(result[one] for one in parts if one in result))
    return result


def evaluate(value: Expr, grid: Grid) -> Array:
    """The value of an expression on a grid, broadcast to its shape."""
    return np.broadcast_to(np.asarray(compiled(value)(grid.environment)), grid.shape)


def active_mask(statement: Exec, grid: Grid) -> Array:
    """A mask of the threads that perform a statement in some block, in some of the iterations that a loop value represents.

    Conditions count as true if they depend on the block, on run-time sizes, or on a loop whose values are not distinguished. A condition on
    one repeating loop is true if it is true in some iteration at that position of the period.
    """
    mask = np.ones(grid.shape, dtype=bool)
    known = grid.environment.keys() - grid.undecided - grid.partly
    alone: dict[str, list[Expr]] = {}
    for condition in conjuncts(statement.active):
        names = {var.name for var in condition.variables()}
        if names <= known:
            mask &= np.asarray(evaluate(condition, grid), dtype=bool)
        # A condition with several names, of which one is undecided, counts as true. A condition on one repeating loop is decided below.
        elif len(names) == 1:
            alone.setdefault(names.pop(), []).append(condition)
    for loop in grid.repeating:
        if loop.var.name in alone and constant(loop.extent) is not None:
            axis = grid.axes.index(loop.var.name)
            mask &= _sometimes(loop, alone[loop.var.name]).reshape([-1 if other == axis else 1 for other in range(mask.ndim)])
    return mask


def _sometimes(loop: For, conditions: Sequence[Expr]) -> Array:
    """For each position in the period of a loop, whether all conditions are true in some iteration at that position."""
    return _iterations(loop, conditions) > 0


def _iterations(loop: For, conditions: Sequence[Expr]) -> Array:
    """For each position in the period of a loop of known extent, the number of iterations in which all conditions are true."""
    count = constant(loop.extent) or 0
    if count > MOST_POINTS:
        return _iterations_of_steps(loop, conditions, count)
    values = {loop.var.name: np.arange(count)}
    # Padded to whole periods with iterations that do not run.
    holds = np.zeros(-(-count // loop.period) * loop.period, dtype=bool)
    holds[:count] = True
    for condition in conditions:
        holds[:count] &= np.asarray(compiled(condition)(values), dtype=bool)
    return holds.reshape(-1, loop.period).sum(axis=0)


def _iterations_of_steps(loop: For, conditions: Sequence[Expr], count: int) -> Array:
    """The same for more iterations than are enumerated: linear comparisons are true from one iteration on, or up to one; others count as
    true.
    """
    first, end = 0, count
    for condition in conditions:
        moving = condition.left - condition.right if isinstance(condition, Less) else as_expr(0)
        free = Var(loop.var.name, loop.var.low, loop.var.high + 1)
        now = moving.substitute({loop.var: free})
        step, start = constant(now.substitute({free: free + 1}) - now), constant(moving.substitute({loop.var: as_expr(0)}))
        if step and start is not None:
            first, end = (first, min(end, -(start // step))) if step > 0 else (max(first, start // -step + 1), end)
    places = np.arange(loop.period)
    return np.maximum((end - 1 - places) // loop.period - (first - 1 - places) // loop.period, 0)


def revisits(statement: Exec, loop: For) -> bool:
    """Whether a statement is executed in two iterations of a loop with the same addresses."""
    if not _repeats(loop):
        return False
    # for some sizes it has enough iterations
    if constant(loop.extent) is None:
        return True
    alone = [condition for condition in conjuncts(statement.active) if condition.variables() == {loop.var}]
    return bool((_iterations(loop, alone) > 1).any())


def needed_variables(kernel: Kernel, statement: Exec, access: Access) -> frozenset[Var]:
    """All variables that an access's coordinates and its statement's condition depend on."""
    variables: frozenset[Var] = frozenset(statement.active.variables()).union(*(value.variables() for value in (*access.base, access.copy)))
    return closure(kernel, variables)
