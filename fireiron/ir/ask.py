"""Requests of a refinement to a later pass, stored on the loop that it refines; each file of `fireiron.ir.asks` defines one kind.

An `Ask` names the pass that handles it. After that pass, the verifier refuses a loop that still has the request, so no part of a strategy
is ignored silently. `For` has one field for all kinds, and passes copy requests that they do not know.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import ClassVar, Final, Self

from fireiron.errors import LayoutError
from fireiron.frozen import frozen
from fireiron.ir.record import Record
from fireiron.values.expr import Expr, Var


@frozen
class Ask:
    """A request to a pass for one loop; created without arguments, it requests nothing."""

    taker: ClassVar[str] = ""
    """The name of the pass that handles it; after this pass no loop has the request."""

    def substitute(self, values: Mapping[Var, Expr | int]) -> Self:
        """The request with variables replaced in its expressions."""
        return self

    options: ClassVar[tuple[str, ...]] = ()
    """Examples of the options that represent the request in a listing of the loop, such as `stages=3`; a flag is a single word."""

    def written(self, text_of: Callable[[Expr], str]) -> Mapping[str, str]:
        """The options of this request with their values; a flag has an empty one. `text_of` writes an expression."""
        return {}

    @classmethod
    def read(cls, options: Mapping[str, str], expression_of: Callable[[str], Expr]) -> Self:
        """The request for given options, the inverse of `written`.

        Raises: LayoutError if an option has an illegal value.
        """
        return cls()


def number_of(options: Mapping[str, str], name: str, otherwise: int) -> int:
    """The number that an option specifies, or `otherwise` without the option; a LayoutError if it is not a number."""
    text = options.get(name, str(otherwise)).strip()
    if not re.fullmatch(r"[0-9]{1,10}", text):
        raise LayoutError(f"{name} must be a number", got=text, legal="0, 1, 2, ...")
    return int(text)


def pair_of(options: Mapping[str, str], name: str) -> tuple[str, str]:
    """The two names that an option specifies, separated by a colon; a LayoutError otherwise."""
    first, *others = options[name].split(":")
    if len(others) != 1:
        raise LayoutError(f"{name} takes two names", got=options[name], legal=f"{name}=one:other")
    return first, others[0]


@frozen
class Asks(Record[Ask]):
    """The requests to later passes for one loop.

    >>> from fireiron.ir.asks.pipelined import Pipelined
    >>> asks = Asks((Pipelined(3),))
    >>> asks[Pipelined].stages, asks.without(Pipelined) == NOTHING
    (3, True)
    """

    def substitute(self, values: Mapping[Var, Expr | int]) -> Asks:
        """The requests with variables replaced in their expressions."""
        return Asks(tuple(one.substitute(values) for one in self.all)) if self.all else self


NOTHING: Final = Asks()
"""The record of a loop without requests."""

__all__ = ["NOTHING", "Ask", "Asks", "number_of", "pair_of"]
