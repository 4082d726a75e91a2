"""A kernel on a stage: its accesses in program order, and values of expressions for threads, blocks and loops, with NumPy."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs
import numpy as np

from fireiron.check.data_dependent_loops import with_counted_iterations
from fireiron.errors import ArgumentError, VerificationError
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
"""Most values that a check enumerates for one access; above it ranges decide, or the check is undecided."""


MARKED = 1 << 16
"""Possible rows up to which each has a mark, even if few occur."""


def distinct(values: Any, axis: int | None = None) -> Array:
    """The different values, or rows, in order. Asked for nothing else, `numpy.unique` loads `numpy.ma`, which takes 15 ms."""
    if axis == 0 and values.size and values.dtype.kind == "i":
        low, extents = values.min(axis=0), tuple(int(one) + 1 for one in np.ptp(values, axis=0))
        if math.prod(extents) <= max(MARKED, 2 * len(values)):  # a mark for each possible row: sorting them takes many times as long
            marks = np.zeros(extents, dtype=bool)
            marks[tuple((values - low).T)] = True
            return np.argwhere(marks) + low
    found, _ = np.unique(values, return_index=True, axis=axis)
    return found


@attrs.frozen(eq=False)
class Use:
    """An access with its statement and the loops around it, outermost first."""

    statement: Exec
    loops: tuple[For, ...]
    access: Access

    @property
    def atomic(self) -> bool:
        """Whether it adds atomically, which needs no order among those that do."""
        return self.statement.atomic and self.access.write

    @property
    def position(self) -> int | None:
        """The operand that the access belongs to; None for the statement's own scratch memory."""
        return next((position for position, access in enumerate(self.statement.accesses) if access is self.access), None)

    @property
    def width(self) -> int:
        """Elements that one load or store takes."""
        return 1 if self.position is None else self.statement.width(self.position)

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """The parts in which it is loaded or stored, each under its condition; none where the statement's text tests the bounds."""
        return () if self.position is None or not self.statement.pieces else self.statement.pieces[self.position]


def fills_rings(role: Role) -> bool:
    """Whether a role fills stages of rings for others."""
    return role.elected or any(one.ring for one, _ in execs(role.body))


class Frame(dict[str, Any]):
    """Values of variables by name, each an integer or an array along its own axis; named values appear when asked for."""

    def __init__(self, lets: Mapping[str, Expr], axes: Sequence[tuple[str, Array]], fixed: Mapping[str, int]) -> None:
        super().__init__(fixed)
        self.lets = lets
        self.axes = tuple(axes)
        self.shape = tuple(len(values) for _, values in axes)
        for axis, (name, values) in enumerate(axes):
            self[name] = np.reshape(values, [-1 if other == axis else 1 for other in range(len(axes))])

    def __missing__(self, name: str) -> Any:
        if name.endswith(BRACKETS):
            raise VerificationError(f"{name} is known only when the kernel runs, and a check asks for its elements")
        self[name] = value = compiled(self.lets[name])(self)
        return value

    def value(self, expression: Expr) -> Array:
        """The value, which broadcasts to the frame's shape."""
        return compiled(expression)(self)

    def full(self, expression: Expr) -> Array:
        """The value at every point of the frame."""
        value = np.asarray(self.value(expression))
        return value if value.shape == self.shape else np.broadcast_to(value, self.shape)

    def at(self, index: Sequence[int]) -> dict[str, int]:
        """The variables of the axes at one point."""
        return {name: int(values[position]) for (name, values), position in zip(self.axes, index, strict=True)}


class Elements:
    """Elements of an array in memory, all the same: for estimates, which have no data."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __call__(self, index: Any) -> Any:
        return np.zeros_like(np.asarray(index)) + self.value


def assumed(access_trace: AccessTrace, sizes: Mapping[str, int]) -> dict[str, Any]:
    """Elements by the name of each array of integers: the least or the most, by which block 0 takes more turns.

    For estimates and pictures, of ranges that are as long as they can be.
    """
    loops = [one for one in statements(access_trace.kernel.body) if isinstance(one, For)]
    names = [f"{one.name}{BRACKETS}" for one in access_trace.kernel.buffers if one.memory.of_grid and one.dtype == int32]
    found: dict[str, Any] = {name: Elements(0) for name in names}
    if not any(tables_of(value) for value in (*access_trace.lets.values(), *(one.extent for one in loops))):
        return found

    def turns() -> int:
        still = {**dict.fromkeys((*(one.var.name for one in loops), "block", "thread"), 0), **sizes, **found}
        return sum(max(int(np.max(Frame(access_trace.lets, (), still).value(one.extent))), 0) for one in loops)

    for name in names:
        few, found[name] = turns(), Elements(INT_MAX)
        if turns() <= few:
            found[name] = Elements(0)
    return found


class AccessTrace:
    """A kernel with its named values; the starting point of every check.

    `tiles` says of each number of a tile that blocks take as they become free how many tiles there are.
    """

    def __init__(self, kernel: Kernel) -> None:
        kernel = self.kernel = with_counted_iterations(kernel)
        self.threads = np.arange(kernel.workers)
        self.lets: dict[str, Expr] = {}
        for one in statements(kernel.body):
            # Passes copy parts of a program with the names in them: a name must mean the same wherever it stands.
            if isinstance(one, Let) and self.lets.setdefault(one.var.name, one.value) != one.value:
                raise VerificationError(f"{one.var} has two meanings, {self.lets[one.var.name]} and {one.value}")
        self.tiles = {one.var.name: one.tiles for one in statements(kernel.body) if isinstance(one, ClaimTile)}
        self.symbols = frozenset(symbol.name for symbol in kernel.symbols)
        self.roots = functools.lru_cache(maxsize=None)(self._roots)
        self.opened = functools.lru_cache(maxsize=None)(self._opened)
        self.uses = tuple(_uses(kernel.body))

    def _roots(self, expression: Expr) -> frozenset[str]:
        """Names of the thread, block, loops and sizes that an expression depends on, through named values."""
        found: set[str] = set()
        for var in expression.variables():
            found |= self.roots(self.lets[var.name]) if var.name in self.lets else {var.name}
        return frozenset(found)

    def needs(self, expressions: Iterable[Expr]) -> frozenset[str]:
        """The roots of several expressions."""
        return frozenset().union(*(self.roots(expression) for expression in expressions))

    def _opened(self, expression: Expr) -> Expr:
        """The expression over threads, blocks, loops and sizes alone, without named values."""
        while True:
            named = {var: self.lets[var.name] for var in expression.variables() if var.name in self.lets}
            if not named:
                return expression
            try:
                expression = expression.substitute(named)
            except ArgumentError:  # a divisor that is positive only because a name is bounded more closely than its value
                expression = expression.substitute({var: minimum(value, as_expr(var.high)) for var, value in named.items()})

    def guards(self, statement: Exec, known: frozenset[str]) -> tuple[list[Expr], list[Expr]]:
        """The conditions of a statement that depend on `known` names only, and the others."""
        kept: list[Expr] = []
        assumed: list[Expr] = []
        for condition in conjuncts(statement.active):
            (kept if self.roots(condition) <= known else assumed).append(condition)
        return kept, assumed

    def frame(self, axes: Sequence[tuple[str, Array]], fixed: Mapping[str, int] | None = None) -> Frame:
        """Values along axes."""
        return Frame(self.lets, axes, fixed or {})

    def loop_axes(self, loops: Sequence[For], needed: frozenset[str], limit: int = MANY) -> list[tuple[str, Array]] | None:
        """All values of the needed loops, or None where they are not known or too many."""
        around = [loop for loop in loops if loop.var.name in needed]
        known = {loop.var.name: loop.values(count) for loop in around if (count := constant(loop.extent)) is not None}
        # Half of the values decide nothing: whoever asks then reasons by ranges.
        if len(known) < len(around) or math.prod(map(len, known.values())) > limit:
            return None
        return [(name, np.arange(values.start, values.stop, values.step)) for name, values in known.items()]

    def inside(self, use: Use, frame: Frame, known: frozenset[str] | None = None) -> Array:
        """Which elements of an access are touched by those who perform its statement: the frame's shape, the elements along a last axis.

        Conditions on other names than the `known` ones, if these are given, count as true.
        """
        if use.pieces:
            held: dict[Expr, Array] = {}
            for piece in use.pieces:
                if piece.condition not in held:
                    parts = [part for part in conjuncts(piece.condition) if known is None or self.roots(part) <= known]
                    held[piece.condition] = frame.full(all_of(parts)) != 0
            return np.stack([held[piece.condition] for piece in use.pieces for _ in range(piece.width)], axis=-1)
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
        if not storage.layout.static:
            parts = [frame.full(buffer.address(access, offset)) for offset in access.elements()]
            return np.stack(parts, axis=-1)
        # Numbers from here on: an expression of each element's address would take longer to simplify than to evaluate.
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
    """A value over the axes of a frame that it depends on, with room for an access's elements along a last axis."""
    return np.asarray(frame.value(expression))[..., None]


def _uses(body: tuple[Stmt, ...]) -> Iterator[Use]:
    for statement, loops in execs(body):
        for access in accesses_of(statement):
            yield Use(statement, loops, access)


def accesses_of(statement: Exec) -> tuple[Access, ...]:
    """All accesses of a statement, that to its scratch memory included."""
    return statement.accesses if statement.scratch is None else (*statement.accesses, scratch_access(statement.scratch))


def linear(expression: Expr) -> tuple[list[tuple[tuple[Expr, ...], int]], int]:
    """The terms of a sum with their coefficients, and its constant."""
    number = constant(expression)
    if number is not None:
        return [], number
    return (list(expression.terms), expression.constant) if isinstance(expression, Sum) else ([((expression,), 1)], 0)


def less_a_minimum(value: Expr) -> bool:
    """Whether a value is a number less a minimum of it and another, and so not negative."""
    minima = [atom for (atom, *others), times in linear(value)[0] if times == -1 and not others]
    return any((value + one - side).low >= 0 for one in minima if isinstance(one, Min) for side in (one.left, one.right))


def product(atoms: Sequence[Expr], coefficient: int) -> Expr:
    """A term as an expression."""
    return functools.reduce(lambda left, right: left * right, atoms) * coefficient
