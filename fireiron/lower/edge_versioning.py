"""`edge_versioning`: add a version of statements without boundary conditions, for warps whose elements are all in bounds.

A condition that differs between threads, or between iterations of an unrolled loop, is true for all of them if it is true for the largest
coordinate: a single warp-uniform comparison. If it is true, the warp runs a version without the implied conditions, else the original
statement. So the elements of a vector need no separate branches, and loads need not wait for each other.

Copies and reductions in memory run under a predicate as fast as without one. Only computing the predicate costs time, if it changes in
each iteration of the enclosing loop. So a copy gets two versions only if all its conditions change in each iteration.

Kernels of one step consist of copies and MMAs, and are not changed.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from fireiron.frozen import evolve
from fireiron.ir import Exec, For, Kernel, Let, Stmt, edited, nest_of
from fireiron.specs.fused import fused
from fireiron.values.expr import FALSE, TRUE, Expr, Less, Var, all_of, compiled, conjuncts, constant, less
from fireiron.values.expr.normal import polynomial, terms_of

WARP = 32
"""Threads of a warp."""

MOST_ELEMENTS = 512
"""Maximum number of elements per thread, over all iterations, of a statement with an interior and a boundary version."""


def edge_versioning(kernel: Kernel) -> Kernel:
    """The kernel with the conditions of interior versions (see `fireiron.ir.versions`)."""
    if fused(kernel.spec) is None:
        return kernel
    return evolve(kernel, body=_Versioning(kernel).listed(kernel.body, {}))


class _Versioning:
    """Rewrites the statement lists of a kernel."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.warp_uniform: dict[Expr, bool] = {}

    def listed(self, body: Sequence[Stmt], names: Mapping[Var, Expr], around: For | None = None) -> tuple[Stmt, ...]:
        """A list inside the loop `around`, if any; `names` are the values defined before it."""
        result: list[Stmt] = []
        known = dict(names)
        for statement in body:
            loops, stmt = nest_of(statement)
            if isinstance(statement, Let):
                known[statement.var] = statement.value
            if stmt is not None:
                parts = self._interior_conditions(stmt, loops, known, around)
                interior = strongest(parts.values())
                if interior not in (TRUE, FALSE):
                    versioned = evolve(stmt, interior=interior, implied=tuple(parts))
                    (statement,) = edited((statement,), lambda _, replacement=versioned: replacement)  # type: ignore[misc]
            elif statement.children:
                loop = statement if isinstance(statement, For) else around
                statement = statement.rebuilt(tuple(self.listed(child, known, loop) for child in statement.children))
            result.append(statement)
        return tuple(result)

    # ------------------------------------------------------------------------------------------ conditions

    def _interior_conditions(self, stmt: Exec, loops: Sequence[For], names: Mapping[Var, Expr], around: For | None) -> dict[Expr, Expr]:
        """The conditions of a statement that a warp-uniform condition implies, each with that condition; empty if versions do not pay off.

        `loops` are the loops of the statement alone, `around` the enclosing loop.
        """
        if not stmt.pieces or stmt.spec.level.threads != 1 or stmt.atomic:
            return {}
        iterations = math.prod(constant(loop.extent) or 0 for loop in loops)
        if iterations * max(access.count for access in stmt.accesses) > MOST_ELEMENTS:
            return {}
        own = frozenset(loop.var for loop in loops)
        tested = dict.fromkeys(_tested(stmt))
        parts = {part: interior for part in tested if (interior := self._warp_condition(part, own, names)) != FALSE}
        if not stmt.spec.moves:
            return parts
        changing = around is not None and all(around.var in _written_out(interior, names).variables() for interior in parts.values())
        return parts if changing and len(parts) == len(tested) else {}

    def _warp_condition(self, condition: Expr, own: Collection[Var], names: Mapping[Var, Expr]) -> Expr:
        """The condition that the largest coordinate in a warp, over all iterations of the `own` loops, is less than an extent; false if it
        is unknown or does not pay off.

        That coordinate is the last one before the next multiple of the common divisor of the uniform part and the extent.
        """
        if not isinstance(condition, Less) or not self._uniform(condition.right, own, names):
            return FALSE
        terms, number = terms_of(condition.left)
        uniform = {atoms: count for atoms, count in terms if self._uniform(polynomial({atoms: count}, 0), own, names)}
        varying = polynomial({atoms: count for atoms, count in terms if atoms not in uniform}, number)
        if varying.low == varying.high:
            return FALSE
        rest = polynomial(uniform, 0)
        step = math.gcd(rest.factor, condition.right.factor) or 1
        last = rest + (varying.high // step * step + step - 1)
        decided = less(last, condition.right)
        return decided if decided in (TRUE, FALSE) else Less(last, condition.right)

    def _uniform(self, value: Expr, own: Collection[Var], names: Mapping[Var, Expr]) -> bool:
        """Whether a value is the same in all threads of a warp and in all iterations of some loops."""
        value = _written_out(value, names)
        if not value.variables().isdisjoint(own):
            return False
        if self.kernel.thread not in value.variables():
            return True
        if value.variables() != {self.kernel.thread}:
            return False
        if value not in self.warp_uniform:
            self.warp_uniform[value] = self._is_warp_uniform(value)
        return self.warp_uniform[value]

    def _is_warp_uniform(self, value: Expr) -> bool:
        import numpy

        threads = numpy.arange(-(-self.kernel.workers // WARP) * WARP)
        values = numpy.broadcast_to(compiled(value)({self.kernel.thread.name: threads}), threads.shape).reshape(-1, WARP)
        return bool((values == values[:, :1]).all())


def strongest(conditions: Iterable[Expr]) -> Expr:
    """The conjunction of comparisons. Of those with one extent and a constant difference, only the one with the largest coordinate is
    kept.
    """
    kept: list[Less] = []
    for comparison in dict.fromkeys(part for part in conditions if isinstance(part, Less)):
        gaps = [(other, constant(comparison.left - other.left)) for other in kept if other.right == comparison.right]
        if all(gap is None or gap > 0 for _, gap in gaps):
            weaker = [other for other, gap in gaps if gap is not None]
            kept = [*(other for other in kept if other not in weaker), comparison]
    return all_of(kept)


def _written_out(value: Expr, names: Mapping[Var, Expr]) -> Expr:
    """A value with names replaced by their definitions."""
    while not value.variables().isdisjoint(names):
        value = value.substitute({var: names[var] for var in value.variables() & set(names)})
    return value


def _tested(stmt: Exec) -> Iterator[Expr]:
    """The conditions of a statement and of its pieces. For copies only those of the pieces, which determine what is loaded."""
    if not stmt.spec.moves:
        yield from conjuncts(stmt.performed)
    for pieces in stmt.pieces:
        for piece in pieces:
            yield from conjuncts(piece.condition)
