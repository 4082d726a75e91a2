"""List the accesses of a kernel in program order, and evaluate expressions for threads, blocks and loops with NumPy."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fireiron.check.data_dependent_loops import with_counted_iterations
from fireiron.errors import ArgumentError, VerificationError
from fireiron.frozen import frozen
from fireiron.ir import Access, ClaimTile, Exec, For, Kernel, Let, Piece, Role, Stmt, execs, scratch_access, statements
from fireiron.values.expr import (
    BRACKETS,
    INT_MAX,
    ZERO,
    Expr,
    Min,
    Sum,
    all_of,
    as_expr,
    compiled,
    conjuncts,
    constant,
    minimum,
    tables_of,
)
from fireiron.values.machine import int32

Array = Any

MANY = 1 << 22
"""Maximum number of values that a check enumerates for one access. If there are more, ranges decide, or the check is undecided."""


MAX_MARKED_ROWS = 1 << 16
"""Maximum number of possible rows for which `distinct` uses a mark per row, even if few occur."""


def distinct(values: Any, axis: int | None = None) -> Array:
    """The distinct values, or rows, in ascending order.

    `numpy.unique` without further outputs loads `numpy.ma`, which takes 15 ms, so an output is requested.
    """
    if axis == 0 and values.size and values.dtype.kind == "i":
        low, extents = values.min(axis=0), tuple(int(size) + 1 for size in np.ptp(values, axis=0))
        if math.prod(extents) <= max(MAX_MARKED_ROWS, 2 * len(values)):  # a mark per possible row is much faster than sorting
            marks = np.zeros(extents, dtype=bool)
            marks[tuple((values - low).T)] = True
            return np.argwhere(marks) + low
    result, _ = np.unique(values, return_index=True, axis=axis)
    return result


@frozen(eq=False)
class Use:
    """An access with its statement and the surrounding loops, outermost first."""

    statement: Exec
    loops: tuple[For, ...]
    access: Access

    @property
    def atomic(self) -> bool:
        """Whether it is an atomic addition, which needs no order among atomic additions."""
        return self.statement.atomic and self.access.write

    @property
    def position(self) -> int | None:
        """The operand index of the access; None for the statement's scratch memory."""
        return next((position for position, access in enumerate(self.statement.accesses) if access is self.access), None)

    @property
    def width(self) -> int:
        """The number of elements per load or store."""
        return 1 if self.position is None else self.statement.width(self.position)

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """The parts of the access, each with its condition; none if the statement's own text tests the bounds."""
        return () if self.position is None or not self.statement.pieces else self.statement.pieces[self.position]


def filled_by(role: Role, kernel: Kernel) -> frozenset[str]:
    """The buffers that a role fills for other roles: those of its rings, or everything that an elected thread writes."""
    filled = {name for ring in {one.ring for one, _ in execs(role.body) if one.ring} for name in kernel.ring(ring).buffers}
    written = {access.buffer for one, _ in execs(role.body) for access in one.accesses if access.write} if role.elected else set()
    return frozenset(filled | written)


def in_order_of_fills(roles: Iterable[Role], kernel: Kernel) -> list[Role]:
    """Roles in an order in which each role follows those that fill the rings that it uses, as far as such an order exists."""
    left = list(roles)
    ordered: list[Role] = []
    while left:
        role = next((role for role in left if _uses_no_fills_of(role, left, kernel)), left[0])
        left.remove(role)
        ordered.append(role)
    return ordered


def _uses_no_fills_of(role: Role, others: Iterable[Role], kernel: Kernel) -> bool:
    """Whether a role uses no rings that other roles fill, except those that it fills, too."""
    used = {access.buffer for one, _ in execs(role.body) for access in one.accesses} - filled_by(role, kernel)
    return all(other is role or used.isdisjoint(filled_by(other, kernel)) for other in others)


class Frame(dict[str, Any]):
    """Values of variables by name, each an integer or an array along its own axis. Named values are computed on first use."""

    def __init__(self, lets: Mapping[str, Expr], axes: Sequence[tuple[str, Array]], fixed: Mapping[str, int]) -> None:
        super().__init__(fixed)
        self.lets = lets
        self.axes = tuple(axes)
        self.shape = tuple(len(values) for _, values in axes)
        for axis, (name, values) in enumerate(axes):
            self[name] = np.reshape(values, [-1 if other == axis else 1 for other in range(len(axes))])

    def __missing__(self, name: str) -> Any:
        if name.endswith(BRACKETS):
            raise VerificationError(f"{name} is known only at run time, but a check needs its elements")
        self[name] = value = compiled(self.lets[name])(self)
        return value

    def value(self, expression: Expr) -> Array:
        """The value of an expression; it broadcasts to the frame's shape."""
        return compiled(expression)(self)

    def full(self, expression: Expr) -> Array:
        """The value at every point of the frame."""
        value = np.asarray(self.value(expression))
        return value if value.shape == self.shape else np.broadcast_to(value, self.shape)

    def at(self, index: Sequence[int]) -> dict[str, int]:
        """The axis variables at one point."""
        return {name: int(values[position]) for (name, values), position in zip(self.axes, index, strict=True)}


class Elements:
    """An array in memory whose elements are all equal. Estimates use it, because they have no data."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __call__(self, index: Any) -> Any:
        return np.zeros_like(np.asarray(index)) + self.value

    signed = __call__


def assumed_elements(access_trace: AccessTrace, sizes: Mapping[str, int]) -> dict[str, Any]:
    """Assumed elements of each integer array, by name: the minimum or the maximum, whichever gives block 0 more iterations.

    For estimates and pictures, which assume that ranges have their maximum length.
    """
    loops = [one for one in statements(access_trace.kernel.body) if isinstance(one, For)]
    names = [f"{one.name}{BRACKETS}" for one in access_trace.kernel.buffers if one.memory.of_grid and one.dtype == int32]
    elements: dict[str, Any] = {name: Elements(0) for name in names}
    if not any(tables_of(value) for value in (*access_trace.lets.values(), *(one.extent for one in loops))):
        return elements

    def iterations() -> int:
        values = {**dict.fromkeys((*(one.var.name for one in loops), "block", "thread"), 0), **sizes, **elements}
        return sum(max(int(np.max(Frame(access_trace.lets, (), values).value(one.extent))), 0) for one in loops)

    for name in names:
        fewer, elements[name] = iterations(), Elements(INT_MAX)
        if iterations() <= fewer:
            elements[name] = Elements(0)
    return elements


class AccessTrace:
    """A kernel with its named values; the input of every check.

    `tiles` gives the number of tiles by the variable of each dynamically claimed tile.
    """

    def __init__(self, kernel: Kernel) -> None:
        kernel = self.kernel = with_counted_iterations(kernel)
        self.threads = np.arange(kernel.workers)
        self.lets: dict[str, Expr] = {}
        for stmt in statements(kernel.body):
            # Passes copy parts of a program with their names, so a name must have the same value everywhere.
            if isinstance(stmt, Let) and self.lets.setdefault(stmt.var.name, stmt.value) != stmt.value:
                raise VerificationError(f"{stmt.var} has two values, {self.lets[stmt.var.name]} and {stmt.value}")
        self.tiles = {one.var.name: one.tiles for one in statements(kernel.body) if isinstance(one, ClaimTile)}
        self.symbols = frozenset(symbol.name for symbol in kernel.symbols)
        self.roots = functools.lru_cache(maxsize=None)(self._roots)
        self.opened = functools.lru_cache(maxsize=None)(self._opened)
        self.uses = tuple(_uses(kernel.body))

    def _roots(self, expression: Expr) -> frozenset[str]:
        """Names of the thread, block, loops and sizes that an expression depends on, through named values."""
        roots: set[str] = set()
        for var in expression.variables():
            roots |= self.roots(self.lets[var.name]) if var.name in self.lets else {var.name}
        return frozenset(roots)

    def iterations(self, loop: For, loops: Mapping[str, int]) -> int | None:
        """The number of iterations of a loop inside iterations of others; None if they do not determine it."""
        return int(self.frame([], loops).value(loop.extent)) if self.roots(loop.extent) <= frozenset(loops) else None

    def needs(self, expressions: Iterable[Expr]) -> frozenset[str]:
        """The roots of several expressions."""
        return frozenset().union(*(self.roots(expression) for expression in expressions))

    def _opened(self, expression: Expr) -> Expr:
        """The expression in terms of threads, blocks, loops and sizes only, without named values."""
        while True:
            named = {var: self.lets[var.name] for var in expression.variables() if var.name in self.lets}
            if not named:
                return expression
            try:
                expression = expression.substitute(named)
            except ArgumentError:  # a divisor that is positive only because the bounds of a name are tighter than those of its value
                expression = expression.substitute({var: minimum(value, as_expr(var.high)) for var, value in named.items()})

    def guards(self, statement: Exec, known: frozenset[str]) -> tuple[list[Expr], list[Expr]]:
        """The conditions of a statement that depend on `known` names only, and the others."""
        decided: list[Expr] = []
        assumed: list[Expr] = []
        for condition in conjuncts(statement.active):
            (decided if self.roots(condition) <= known else assumed).append(condition)
        return decided, assumed

    def frame(self, axes: Sequence[tuple[str, Array]], fixed: Mapping[str, int] | None = None) -> Frame:
        """A frame of values along axes."""
        return Frame(self.lets, axes, fixed or {})

    def loop_axes(self, loops: Sequence[For], needed: frozenset[str], limit: int = MANY) -> list[tuple[str, Array]] | None:
        """All values of the needed loops; None if they are unknown or too many."""
        around = [loop for loop in loops if loop.var.name in needed]
        known = {loop.var.name: loop.values(count) for loop in around if (count := constant(loop.extent)) is not None}
        # Some of the values alone would prove nothing, so the caller then uses ranges.
        if len(known) < len(around) or math.prod(map(len, known.values())) > limit:
            return None
        return [(name, np.arange(values.start, values.stop, values.step)) for name, values in known.items()]

    def inside(self, use: Use, frame: Frame, known: frozenset[str] | None = None) -> Array:
        """The mask of elements that an access covers: the frame's shape, the elements along a last axis.

        Conditions on names other than the `known` ones, if given, are assumed to hold.
        """
        if use.pieces:
            masks: dict[Expr, Array] = {}
            for piece in use.pieces:
                if piece.condition not in masks:
                    parts = [part for part in conjuncts(piece.condition) if known is None or self.roots(part) <= known]
                    masks[piece.condition] = frame.full(all_of(parts)) != 0
            return np.stack([masks[piece.condition] for piece in use.pieces for _ in range(piece.width)], axis=-1)
        mask = np.ones((*frame.shape, use.access.count), dtype=bool)
        steps = use.access.table().T
        for base, step, bound in zip(use.access.base, steps, use.access.bounds, strict=True):
            if bound is not None and (known is None or self.roots(bound) <= known):
                room = frame.full(bound) - frame.full(base)
                if room.size and room.min() <= step.max():
                    mask &= step < room[..., None]
        return mask

    def addresses(self, frame: Frame, access: Access) -> Array:
        """Addresses in elements at every point of the frame, the access's elements along a last axis."""
        buffer = self.kernel.buffer(access.buffer)
        storage = access.storage or buffer.storage
        if not storage.layout.static or not access.base:
            parts = [frame.full(buffer.address(access, offset)) for offset in access.elements()]
            return np.stack(parts, axis=-1)
        # The elements' offsets are added as numbers: simplifying an expression per element would take longer than evaluating it.
        steps = access.table().T
        places = storage.address([_along(frame, base) + step for base, step in zip(access.base, steps, strict=True)])
        if access.copy != ZERO:
            places = places + _along(frame, access.copy) * _along(frame, buffer.elements)
        return np.broadcast_to(places, (*frame.shape, access.count))

    def coordinates(self, frame: Frame, access: Access) -> list[Array]:
        """Coordinates per dimension at every point of the frame, the access's elements along a last axis."""
        steps = access.table().T
        return [frame.full(base)[..., None] + step for base, step in zip(access.base, steps, strict=True)]


def _along(frame: Frame, expression: Expr) -> Array:
    """A value over the frame axes that it depends on, with a last axis for the access's elements."""
    return np.asarray(frame.value(expression))[..., None]


def _uses(body: tuple[Stmt, ...]) -> Iterator[Use]:
    for statement, loops in execs(body):
        for access in accesses_of(statement):
            yield Use(statement, loops, access)


def accesses_of(statement: Exec) -> tuple[Access, ...]:
    """All accesses of a statement, including the one to its scratch memory."""
    return statement.accesses if statement.scratch is None else (*statement.accesses, scratch_access(statement.scratch))


def linear(expression: Expr) -> tuple[list[tuple[tuple[Expr, ...], int]], int]:
    """The terms of a sum with their coefficients, and its constant."""
    number = constant(expression)
    if number is not None:
        return [], number
    return (list(expression.terms), expression.constant) if isinstance(expression, Sum) else ([((expression,), 1)], 0)


def less_a_minimum(value: Expr) -> bool:
    """Whether a value is an expression minus a minimum that includes this expression, so that the value is not negative."""
    minima = [atom for (atom, *others), times in linear(value)[0] if times == -1 and not others]
    return any((value + one - side).low >= 0 for one in minima if isinstance(one, Min) for side in (one.left, one.right))


def product(atoms: Sequence[Expr], coefficient: int) -> Expr:
    """A term as an expression."""
    return functools.reduce(lambda left, right: left * right, atoms) * coefficient
