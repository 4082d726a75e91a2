"""Unit `uid` takes the tile that the expression names: `swizzle` on a tile (Fireiron, section 4.2)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import attrs

from fireiron.errors import DecompositionError, call_site
from fireiron.language.tree import Context, Decomposition, Refinement
from fireiron.spec import Spec
from fireiron.values.expr import Expr, Var

MOST_NODES = 400
"""Most parts of an expression: far above any use, and small enough for every reader of expressions to recurse over."""

MOST_BITS = 62
"""Bits that every intermediate value must fit, so that NumPy and C++ compute it exactly."""


def check_permutation(value: Any) -> None:
    """Refuse what is no expression over `uid` that every reader can evaluate."""
    if not isinstance(value, Expr):
        raise DecompositionError("swizzle: not an expression over uid", got=value, legal="lambda uid: uid ^ 1", at=call_site())
    waiting, seen = [value], 0
    while waiting:
        node = waiting.pop()
        seen += 1
        waiting += node.children
        if seen > MOST_NODES:
            raise DecompositionError(f"swizzle: an expression of more than {MOST_NODES} parts", at=call_site())
        if max(abs(node.low), abs(node.high)).bit_length() > MOST_BITS:
            raise DecompositionError(f"swizzle: an intermediate value needs more than {MOST_BITS} bits", at=call_site())
    foreign = sorted(var.name for var in value.variables() if var.name != "uid")
    if foreign:
        raise DecompositionError(f"swizzle({value}): {', '.join(foreign)} is unknown here", legal="uid", at=call_site())


@attrs.frozen
class Permute(Refinement):
    """Unit `uid` takes the tile that the expression names: `swizzle` on a tile (Fireiron, section 4.2).

    Legal when the expression permutes the units. rewrite: unit u: tile u --> unit u: tile permutation(u)

    >>> from fireiron import *
    >>> blocks = MatMul(64, 64, 64)(GL, GL, GL)(Kernel).tile(16, 16).to(Block).swizzle(lambda uid: uid ^ 1)
    >>> text = blocks.tile(1, 1).to(Thread).split(1).done().cuda()
    >>> [line.strip() for line in text.splitlines() if "int block_tile" in line]
    ['const int block_tile = 1 ^ blockIdx.x;']
    """

    applies_to: ClassVar[tuple[str, ...]] = ("tile",)
    permutation: Expr

    def __attrs_post_init__(self) -> None:
        check_permutation(self.permutation)

    @classmethod
    def choices(cls, step: Decomposition, spec: Spec, context: Context) -> Iterator[Permute]:
        uid = Var("uid", 0, 2**31 - 1)
        yield from (Permute(uid ^ bit) for bit in (1, 2, 3))
        yield Permute(uid ^ uid // 2 % 2)

    def plan(self, plan: Any) -> Any:
        return attrs.evolve(plan, permutation=self.permutation)

    def __str__(self) -> str:
        return f"swizzle({str(self.permutation)!r})"


__all__ = ["Permute"]
