"""Derived strategies for random specs: definitions of all generators, and products; targets and sizes are random, too."""

import random

import attrs
import combined_generator
import fused_generator
import generator
import indirect_generator
import nested_generator
import scans
from campaign.judged import wrong
from test_combined_random import objection as objection_to_combined
from test_fused_random import objection as objection_to_definition
from test_indirect_random import objection as objection_to_indirect

from fireiron import schedule
from fireiron.errors import ArgumentError

FAMILIES = {
    "definition": (fused_generator.draw, objection_to_definition),
    "indirect": (indirect_generator.draw, objection_to_indirect),
    "combined": (combined_generator.draw, objection_to_combined),
    "nested": (nested_generator.draw, nested_generator.objection),
    "scan": (scans.draw, scans.objection),
    "product": (generator.draw, lambda case, seed: wrong(case.program, case.symbols, seed)),
}
"""The generator of specs of a family, and the judge of a program for one."""

TARGETS = ("sm_70", "sm_80", "sm_86", "sm_90", "sm_90a", "sm_90a")
CANDIDATES = 3


@attrs.define(eq=False)
class DrawnDerivation:
    """A drawn spec (`case`) with a derived program."""

    case: object
    family: str
    target: str
    program: object
    features: frozenset


def draw(seed):
    """A spec for which a strategy is derived, and the number of specs before it for which no rule has one."""
    chosen, refused = random.Random(f"derived {seed}"), 0
    while True:
        family, target = chosen.choice(list(FAMILIES)), chosen.choice(TARGETS)
        case, _ = FAMILIES[family][0](f"{seed}/{refused}" if family != "indirect" else chosen.randrange(1 << 30))
        bound = case.spec if family == "product" else case.bound
        try:
            answer = schedule(bound, target, candidates=CANDIDATES)
        except ArgumentError as error:
            refused += 1
            if refused > 40:
                raise error
            continue
        case.program = answer.program
        return DrawnDerivation(case, family, target, answer.program, frozenset({family, f"target {target}"})), refused


def objection(drawn, seed):
    """An oracle's objection to the derived program; empty if all is well."""
    return FAMILIES[drawn.family][1](drawn.case, seed)


def program_to_paste(drawn):
    return f"\nfrom fireiron import *\nspec = {drawn.program.spec!r}\nstrategy = {drawn.program.strategy!r}\ntarget, sizes = {drawn.target!r}, {drawn.case.symbols}"
