"""Random definitions with nested loops and random strategies: rows, scans in loops, three loops, products, online sums.

Outputs are compared with `reference()` within the error bounds, and with an evaluation that is independent of the package.
"""

from nested_generator import draw as drawn_definition
from nested_generator import objection, program_to_paste

from campaign import Subject, drawn_from

SUBJECT = Subject(
    "nested",
    "random definitions with nested loops: close to float64, no alarm",
    drawn_from(drawn_definition, objection, program_to_paste),
    nightly=500,
    campaign=10_000,
    first=20_261_130,
)
