"""Random definitions whose strategies get further verbs at random places: right by the oracles of each generator, no alarm."""

from refined_generator import draw, objection, program_to_paste

from campaign import Subject, drawn_from

SUBJECT = Subject(
    "refined",
    "definitions whose strategies get further verbs: equal to NumPy or close to float64, no alarm",
    drawn_from(draw, objection, program_to_paste),
    nightly=300,
    campaign=10_000,
    first=20_261_130,
)
