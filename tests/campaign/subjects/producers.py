"""Random strategies for warpgroups with producers of all kinds, with plain, gathered and scattered operands."""

from producer_generator import draw, objection, program_to_paste

from campaign import Subject, drawn_from

SUBJECT = Subject(
    "producers",
    "wgmma strategies with producers of all kinds: equal to NumPy or close to float64, no alarm",
    drawn_from(draw, objection, program_to_paste),
    nightly=300,
    campaign=5_000,
    first=20_261_130,
)
