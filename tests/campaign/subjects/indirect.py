"""Random definitions with indirect operands, with random strategies: gathered and scattered rows, pages, digits.

The reference gathers and scatters element by element, with Python's integers.
"""

from indirect_generator import draw as drawn_definition
from test_indirect_random import objection, program_to_paste

from campaign import Subject, drawn_from

SUBJECT = Subject(
    "indirect",
    "random definitions with gathered and scattered rows, pages and digits: close to float64, no alarm",
    drawn_from(drawn_definition, objection, program_to_paste),
    nightly=1_000,
    campaign=20_000,
    first=20_261_129,
)
