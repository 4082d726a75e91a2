"""Print a loop in parts: the iterations in which no mask applies are a loop without masks.

A loop becomes up to three: iterations that may be masked, those without masks, and again iterations that may be masked, which keep the
conditions. `fireiron.ir.plain_iterations` computes their numbers.

for n < end: S; if 127 < n * 128 - row: mask    -->    for n < n_end: S
                                                       for n = n_end; n < end: S; if 127 < n * 128 - row: mask
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fireiron.cuda.names import Names
from fireiron.frozen import evolve
from fireiron.ir import Comment, Exec, For, Kernel, Let, Stmt, statements, substituted
from fireiron.ir.plain_iterations import is_separable, plain_iterations
from fireiron.values.expr import ZERO, Expr, Var, conjuncts, constant, minimum


def in_parts(kernel: Kernel, names: Names) -> Kernel:
    """The kernel with its `separated` loops in parts; the same kernel if it has none. `names` are those of the kernel."""
    if not any(isinstance(stmt, For) and stmt.separated for stmt in statements(kernel.body)):
        return kernel
    return evolve(kernel, body=_Separation(names).listed(kernel.body, frozenset({kernel.thread})))


class _Separation:
    """Rewrites the loops of a kernel."""

    def __init__(self, names: Names) -> None:
        self.names = names

    def listed(self, body: Iterable[Stmt], varying: frozenset[Var]) -> tuple[Stmt, ...]:
        """A list of statements; the values of the `varying` variables differ between threads."""
        result: list[Stmt] = []
        for statement in body:
            if isinstance(statement, Let) and not varying.isdisjoint(statement.value.variables()):
                varying |= {statement.var}
            if statement.children:
                statement = statement.rebuilt(tuple(self.listed(child, varying) for child in statement.children))
            result += self._separated(statement, varying) if isinstance(statement, For) and statement.separated else (statement,)
        return tuple(result)

    def _separated(self, loop: For, varying: frozenset[Var]) -> Sequence[Stmt]:
        """The parts of a loop; the loop itself if no condition separates its iterations."""
        if not is_separable(loop):
            return [loop]
        first, end, conditions = plain_iterations(loop, varying)
        if not conditions or end == ZERO or first == loop.extent:
            return [loop]
        plain = evolve(loop, body=_without(loop.body, conditions))
        lets: list[Let] = []
        parts: list[For] = []
        low: Expr = ZERO
        for high, own in ((first, loop), (end, plain), (loop.extent, loop)):
            if high in (ZERO, low):
                continue
            if high != loop.extent and constant(high) is None:
                lets.append(Let(Var(self.names.fresh(f"{loop.var.name}_end"), 0, loop.var.high + 1), low - minimum(low - high, ZERO)))
                high = lets[-1].var
            # New objects, because readers distinguish the statements of copied programs by identity.
            parts.append(evolve(own, first=low, extent=high, body=substituted(own.body, {})))
            low = high
        return [*lets, *parts]


def _without(body: Iterable[Stmt], conditions: frozenset[Expr]) -> tuple[Stmt, ...]:
    """A list without the statements that need one of the conditions, without loops that contain nothing else, and their comments."""
    result: list[Stmt] = []
    for statement in body:
        if isinstance(statement, Exec) and not conditions.isdisjoint(conjuncts(statement.active)):
            kept: Stmt | None = None
        elif isinstance(statement, For):
            inner = _without(statement.body, conditions)
            kept = statement.rebuilt((inner,)) if inner or not statement.body else None
        else:
            kept = (
                statement.rebuilt(tuple(_without(child, conditions) for child in statement.children)) if statement.children else statement
            )
        if kept is not None:
            result.append(kept)
        elif result and isinstance(result[-1], Comment):
            result.pop()
    return tuple(result)


__all__ = ["in_parts"]
