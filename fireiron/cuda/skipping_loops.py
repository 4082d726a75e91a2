"""Print loops that skip iterations depending on data: 32 conditions are tested at a time, so that not each skipped iteration waits for a
load.

for g: begin_here = begin[g]; seen = ...; for i < seen: S    -->    mask = conditions of the next 32 iterations, as bits
                                                                       for g in mask: S
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs

from fireiron.frozen import frozen
from fireiron.ir import Barrier, Comment, For, Let, Stmt, substituted, variables
from fireiron.ir.text import Braces, Item, Noted
from fireiron.values.expr import ONE, Expr, Var, constant, tables_of

WORD_BITS = 32
"""Iterations that are tested together: the bits of a word."""


@frozen
class SkippingLoop:
    """A loop that executes an iteration if the last of `names` is true; the body of `loop` is that of an executed iteration."""

    loop: For
    names: tuple[Let, ...]

    def items(self, count: str, fresh: Callable[[str], str], tests: Sequence[Item], body: Sequence[Item]) -> list[Item]:
        """Print the loop: `count` is the text of the extent, `tests` has the items that test an iteration, `body` those that execute it."""
        var, most = self.loop.var.name, constant(self.loop.extent)
        seen = f"static_cast<unsigned>({self.names[-1].var})"
        which, first, ahead = (fresh(f"{var}_{name}") for name in ("mask", "base", "bit"))
        alone = most is not None and most <= WORD_BITS
        iteration: tuple[Item, ...] = ()
        if alone:
            head, bit = f"for (int {var} = 0; {var} < {most}; ++{var})", f"{which} |= {seen} << {var};"
        else:
            head, place = f"for (int {ahead} = 0; {ahead} < {WORD_BITS}; ++{ahead})", f"{first} + {ahead}"
            whole = most is not None and most % WORD_BITS == 0
            iteration = (f"const int {var} = {place if whole else f'min({place}, {count} - 1)'};",)
            bit = f"{which} |= {seen if whole else f'({place} < {count} ? {seen} : 0u)'} << {ahead};"
        number = f"__ffs({which}) - 1" if alone else f"{first} + __ffs({which}) - 1"
        items: tuple[Item, ...] = (
            Noted(f"unsigned {which} = 0;", f"iterations of {var} to execute, one bit each"),
            Braces(head, (*iteration, *tests, bit), "#pragma unroll"),
            Braces(f"for (; {which} != 0; {which} &= {which} - 1)", (f"const int {var} = {number};", *body)),
        )
        return list(items) if alone else [Braces(f"for (int {first} = 0; {first} < {count}; {first} += {WORD_BITS})", items)]


def as_skipping_loop(loop: For) -> SkippingLoop | None:
    """Match a loop whose body is executed only if integers in memory allow it, apart from barriers after it; None for other loops."""
    names = tuple(one for one in loop.body if isinstance(one, Let))
    rest = [one for one in loop.body if not isinstance(one, (Let, Comment))]
    if not names or not rest or any(not isinstance(one, Barrier) for one in rest[1:]) or loop.extent == ONE or loop.unroll:
        return None
    inner, seen = rest[0], names[-1].var
    if (
        not isinstance(inner, For)
        or inner.extent != seen
        or seen.high > 1
        or (loop.first, loop.step, loop.prior_iterations) != (0, 1, None)
    ):
        return None
    if not any(tables_of(one.value) for one in names):
        return None
    body = (*substituted(inner.body, {inner.var: 0}), *rest[1:])
    return SkippingLoop(attrs.evolve(loop, body=(*_used(names, body), *body), prior_iterations=inner.prior_iterations), names)


def _used(names: Sequence[Let], body: tuple[Stmt, ...]) -> tuple[Let, ...]:
    """The names that a body refers to, directly or through other names."""
    used: set[Var | Expr] = set(variables(body))
    kept: list[Let] = []
    for let in reversed(names):
        if let.var in used:
            kept.append(let)
            used |= let.value.variables()
    return tuple(reversed(kept))


__all__ = ["SkippingLoop", "as_skipping_loop"]
