"""The one way past the race check: the user takes it upon himself and says why."""

from __future__ import annotations

from typing import Any, ClassVar

import attrs

from fireiron.ir import Comment
from fireiron.tree import Context, Expansion, Refinement


@attrs.frozen
class Unchecked(Refinement):
    """Races in this strategy are reported as warnings, and the reason is printed in the kernel's header."""

    applies_to: ClassVar[tuple[str, ...]] = ("tile", "load", "split", "epilog")
    reason: str = ""

    def plan(self, plan: Any) -> Any:
        return plan

    def rewrite(self, expansion: Expansion, context: Context) -> Expansion:
        context.names.unchecked.append(self.reason)
        return attrs.evolve(expansion, program=(Comment(f"unchecked: {self.reason}"), *expansion.program))

    def __str__(self) -> str:
        return f"unchecked({self.reason!r})"
