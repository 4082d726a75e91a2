"""The one way past the race check: the user takes it upon himself and says why."""

from __future__ import annotations

from typing import ClassVar

import attrs

from fireiron.errors import DecompositionError, call_site
from fireiron.ir import Comment
from fireiron.language.tree import Context, Expansion, Refinement


@attrs.frozen
class Unchecked(Refinement):
    """Races in this strategy are reported as warnings, and the reason is printed in the kernel's header.

    Legal with a reason of one line. rewrite: S --> // unchecked: reason; S
    """

    applies_to: ClassVar[tuple[str, ...]] = ("tile", "load", "split", "split_k", "epilog")
    reason: str

    def __attrs_post_init__(self) -> None:
        if not isinstance(self.reason, str) or not self.reason.strip():
            raise DecompositionError("unchecked: a reason is needed", got=self.reason, at=call_site())
        if not self.reason.isprintable() or self.reason.endswith("\\"):
            raise DecompositionError(
                "unchecked: the reason is printed in a comment, so it is one line of text", got=self.reason, at=call_site()
            )

    def rewrite(self, expansion: Expansion, context: Context) -> Expansion:
        program = (Comment(f"unchecked: {self.reason}"), *expansion.program)
        return attrs.evolve(expansion, program=program, unchecked=(*expansion.unchecked, self.reason))

    def __str__(self) -> str:
        return f"unchecked({self.reason!r})"


__all__ = ["Unchecked"]
