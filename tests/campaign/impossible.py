"""Pairs of verbs and refinements that no draw can have, each with the reason and a strategy that is refused for it.

`--pairs` does not ask for these; `tests/test_walker.py` holds that each is refused still.
"""

from collections.abc import Callable

import attrs

from fireiron import *
from fireiron.language.strategy import Strategy


@attrs.frozen
class Reason:
    """Why a feature cannot be drawn with others, and a bound strategy that tries: it is refused with a text that has `says` in it."""

    why: str
    tried: Callable[[], Strategy]
    says: str


blocks = MatMul(32, 32, 32)(GL, GL, GL)(Kernel).tile(16, 16).to(Block)

OF_DEFINITIONS: dict[str, Reason] = {
    "refine Delay": Reason("names steps of a definition", lambda: blocks.split(8).delay("a", behind="b"), "is one step"),
    "refine InTurns": Reason("names steps of a definition", lambda: blocks.split(8).turns("a", "b"), "is one step"),
    "refine Skip": Reason("a mask of a definition says what to skip", lambda: blocks.split(8).skip(), "no mask says what to skip"),
}
"""Refinements of loops of definitions: with no other feature of a plain product."""

IMPOSSIBLE: dict[frozenset[str], Reason] = {}
"""Pairs of features of products each of which is drawn."""


def reason(one: str, other: str) -> Reason | None:
    """Why no product can have both; None where it can."""
    return OF_DEFINITIONS.get(one) or OF_DEFINITIONS.get(other) or IMPOSSIBLE.get(frozenset((one, other)))


def possible(one: str, other: str) -> bool:
    """Whether a product can have both."""
    return reason(one, other) is None
