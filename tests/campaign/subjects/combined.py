"""Random definitions whose outputs several blocks combine, with random strategies: sums, maxima, minima, scalars, elements of tables.

The reference combines element by element, with Python's numbers.
"""

from combined_generator import draw as drawn_definition
from test_combined_random import objection, program_to_paste

from campaign import Subject, drawn_from

SUBJECT = Subject(
    "combined",
    "random definitions whose outputs several blocks combine: close to float64, no alarm",
    drawn_from(drawn_definition, objection, program_to_paste),
    nightly=1_000,
    campaign=20_000,
    first=20_261_130,
)
