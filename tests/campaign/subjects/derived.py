"""Derived strategies for random specs, on all targets: right by the oracles of each generator, no alarm."""

from derived_generator import draw, objection, program_to_paste

from campaign import Subject, drawn_from

SUBJECT = Subject(
    "derived",
    "derived strategies for random specs: equal to NumPy or close to float64, no alarm",
    drawn_from(draw, objection, program_to_paste),
    nightly=300,
    campaign=5_000,
    first=20_261_130,
)
