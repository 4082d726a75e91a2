"""Random scans with random strategies: exact for integers, within the error bounds for floats, and equal to a loop over the elements."""

from scans import draw as drawn_scan
from scans import objection, program_to_paste

from campaign import Subject, drawn_from

SUBJECT = Subject(
    "scans",
    "random scans: exact for integers, close to float64 otherwise, no alarm",
    drawn_from(drawn_scan, objection, program_to_paste),
    nightly=500,
    campaign=10_000,
    first=20_261_201,
)
