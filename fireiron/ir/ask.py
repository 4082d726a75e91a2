"""What a refinement asks of a later pass: a value on the loop that it refines, in a file of its own in `fireiron.ir.asks`.

An ask names the pass that takes it. The verifier refuses what is left behind that pass, so nothing that a strategy says is lost in silence;
`For` has no field for it, and a pass that does not know it hands it on.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import ClassVar, Final, Self

import attrs

from fireiron.errors import LayoutError
from fireiron.ir.record import Record
from fireiron.values.expr import Expr, Var


@attrs.frozen
class Ask:
    """What is asked of a pass, for one loop; made without arguments it asks for nothing."""

    taker: ClassVar[str] = ""
    """The pass that takes it, by its name: behind it no loop asks for this."""

    def substitute(self, values: Mapping[Var, Expr | int]) -> Self:
        """The ask with variables replaced in its expressions."""
        return self

    options: ClassVar[tuple[str, ...]] = ()
    """The options by which a listing writes it behind the loop, by example: `stages=3`; a flag is a word alone."""

    def written(self, text_of: Callable[[Expr], str]) -> Mapping[str, str]:
        """The options of this ask with their texts; a flag has an empty one. `text_of` writes an expression."""
        return {}

    @classmethod
    def read(cls, options: Mapping[str, str], expression_of: Callable[[str], Expr]) -> Self:
        """The ask that options of its own say, as `written` gives them.

        Raises: LayoutError where one has a value that it cannot have.
        """
        return cls()


def number_of(options: Mapping[str, str], name: str, otherwise: int) -> int:
    """The number that an option says, or `otherwise` where it is not said; a LayoutError where it is none."""
    text = options.get(name, str(otherwise)).strip()
    if not re.fullmatch(r"[0-9]{1,10}", text):
        raise LayoutError(f"{name} is a number", got=text, legal="0, 1, 2, ...")
    return int(text)


def pair_of(options: Mapping[str, str], name: str) -> tuple[str, str]:
    """The two words with a colon between them that an option says; a LayoutError where it says others."""
    first, *others = options[name].split(":")
    if len(others) != 1:
        raise LayoutError(f"{name} is two names", got=options[name], legal=f"{name}=one:other")
    return first, others[0]


@attrs.frozen
class Asks(Record[Ask]):
    """What is asked of later passes for one loop.

    >>> from fireiron.ir.asks.pipelined import Pipelined
    >>> asks = Asks((Pipelined(3),))
    >>> asks[Pipelined].stages, asks.without(Pipelined) == NOTHING
    (3, True)
    """

    def substitute(self, values: Mapping[Var, Expr | int]) -> Asks:
        """The record with variables replaced in what is asked."""
        return Asks(tuple(one.substitute(values) for one in self.all)) if self.all else self


NOTHING: Final = Asks()
"""The record of a loop for which nothing is asked."""

__all__ = ["NOTHING", "Ask", "Asks", "number_of", "pair_of"]
