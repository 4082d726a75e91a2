"""Choose a derived strategy for a call without a record and without a strategy of the library."""

from __future__ import annotations

from typing import Final

from fireiron.derive.facts import Facts
from fireiron.derive.rules import RULES
from fireiron.derive.search import Search
from fireiron.errors import ArgumentError
from fireiron.spec import Spec
from fireiron.tune.records.choosing import Accept, Choice, any_program
from fireiron.values.machine import Architecture

FEW: Final = 16
"""Number of candidates that a first call lowers. `schedule` examines more."""


def derived_choice(spec: Spec, architecture: Architecture, accept: Accept = any_program, candidates: int = FEW) -> Choice:
    """Return the choice of a derived strategy, the best prediction of a few candidates that is accepted.

    Args: `candidates`, the number of candidates that are lowered.

    Raises: `ArgumentError` if no rule finds a legal strategy, or if none is accepted.
    """
    answer = Search(Facts(spec, architecture), RULES, candidates=candidates).run()
    if accept(answer.program):
        return Choice(None, False, f"no record applies; derived: {answer.chosen}", answer.program)
    for candidate in answer.ranking[1:]:
        program = candidate.strategy(spec).program(architecture)
        _ = program.ir
        if accept(program):
            return Choice(None, False, f"no record applies; derived: {candidate}", program)
    raise ArgumentError(f"no derived strategy for {spec} on {architecture} is accepted", hint="aligned arrays")
