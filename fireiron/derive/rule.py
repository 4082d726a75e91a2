"""The two kinds of rules: a skeleton makes a sketch for a spec, a trick changes a sketch.

A rule is a frozen value. The rules of the package are in `rules`; `schedule(spec, rules=(MINE, *RULES))` adds one from outside.
"""

from __future__ import annotations

from typing import ClassVar

from fireiron.derive.facts import Facts
from fireiron.derive.sketch import Sketch


class Rule:
    """A rule with a name: lower-case letters and underscores, unique among the rules of a search."""

    name: ClassVar[str]


class Skeleton(Rule):
    """A rule that makes a complete strategy, with open decisions, for the specs to which it applies."""

    def refusal(self, facts: Facts) -> str:
        """Return why the skeleton does not apply; an empty text if it does."""
        raise NotImplementedError

    def sketch(self, facts: Facts) -> Sketch:
        """Return the sketch of a spec to which the skeleton applies."""
        raise NotImplementedError


class Trick(Rule):
    """A rule that changes the steps of a sketch. The language checks whether the result is legal, so a trick needs no such test.

    `usual` tricks are part of the first candidate; the search tries all others one by one. It leaves out a usual trick if the predicted
    time falls, unless the trick is `trusted`: its effect was measured, but the cost model does not predict it.
    """

    usual: ClassVar[bool] = True
    trusted: ClassVar[bool] = False

    def refusal(self, facts: Facts, sketch: Sketch) -> str:
        """Return why the trick does not apply to a sketch; an empty text if it does."""
        raise NotImplementedError

    def amend(self, facts: Facts, sketch: Sketch) -> Sketch:
        """Return the changed sketch, and give the reason by `sketch.tricks`."""
        raise NotImplementedError
