"""Random definitions with indirect operands, with random strategies: gathered and scattered rows, pages, digits.

The reference gathers and scatters element by element, with Python's integers.
"""

import random

import numpy as np
from indirect_generator import DrawnIndirect
from indirect_generator import draw as drawn_definition
from test_indirect_random import outputs_of, program_to_paste, references

from campaign import Subject, drawn_from
from fireiron.check import safety
from fireiron.measure.data import all_sizes, random_inputs
from fireiron.measure.rounding import differing
from fireiron.sim import simulate


def objection(definition: DrawnIndirect, seed: int) -> str:
    """An oracle's objection to a program; empty if all is well."""
    alarms = [str(finding) for finding in safety(definition.program.lowered) if finding.severity == "error"]
    if alarms:
        return f"an alarm: {'; '.join(alarms)}"
    sizes = all_sizes(definition.bound, definition.symbols)
    arrays = random_inputs(definition.bound, sizes, np.random.default_rng(seed))
    got = simulate(definition.program.lowered, arrays | outputs_of(definition, sizes), sizes, order=random.Random(seed)).outputs
    return "; ".join(differing(definition.bound, sizes, got, arrays, references(definition, arrays, sizes)))


SUBJECT = Subject(
    "indirect",
    "random definitions with gathered and scattered rows, pages and digits: close to float64, no alarm",
    drawn_from(drawn_definition, objection, program_to_paste),
    nightly=1_000,
    campaign=20_000,
    first=20_261_129,
    sample=2,
)
