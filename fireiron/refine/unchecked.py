"""Downgrade errors of the race check to warnings, for a given reason: `unchecked` on any step."""

from __future__ import annotations

from typing import Any, ClassVar

import attrs

from fireiron.errors import DecompositionError, call_site
from fireiron.frozen import frozen
from fireiron.ir import Comment
from fireiron.ir.effects.unchecked import Unchecked as UncheckedEffect
from fireiron.language.tree import Context, Expansion, Refinement, verb


@frozen
class Unchecked(Refinement):
    """Report data races in this strategy as warnings, and print the reason in the kernel's header.

    Legal with a reason of one line. rewrite: S --> // unchecked: reason; S

    Source: decision 4.

    >>> from fireiron import *
    >>> blocks = MatMul(64, 64, 64)(GL, GL, GL)(Kernel).tile(16, 16).to(Block).unchecked("a lock orders the blocks")
    >>> text = blocks.tile(1, 1).to(Thread).split(1).done().cuda()
    >>> [line.strip() for line in text.splitlines() if "// unchecked" in line]
    ['// unchecked: a lock orders the blocks']
    """

    applies_to: ClassVar[tuple[str, ...]] = ("tile", "load", "split", "split_k", "epilog")
    usual: ClassVar[tuple[tuple[Any, ...], ...]] = (("drawn",),)
    reason: str

    def __attrs_post_init__(self) -> None:
        if not isinstance(self.reason, str) or not self.reason.strip():
            raise DecompositionError("unchecked needs a reason", got=self.reason, at=call_site())
        if not self.reason.isprintable() or self.reason.endswith("\\"):
            raise DecompositionError(
                "unchecked: the reason is printed in a comment, so it must be one line of text", got=self.reason, at=call_site()
            )

    def rewrite(self, expansion: Expansion, context: Context) -> Expansion:
        program = (Comment(f"unchecked: {self.reason}"), *expansion.program)
        return attrs.evolve(expansion, program=program, effects=expansion.effects.adding(UncheckedEffect((self.reason,))))

    def __str__(self) -> str:
        return f"unchecked({self.reason!r})"


@verb()
def unchecked(reason: str) -> Unchecked:
    """Report data races as warnings, and print the reason in the kernel's header.

    Legal with a reason of one line. rewrite: S --> // unchecked: reason; S
    """
    return Unchecked(reason)


__all__ = ["Unchecked"]
