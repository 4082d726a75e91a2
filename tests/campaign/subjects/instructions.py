"""Random small kernels with an instruction by name, so that rare forms are drawn as often as others."""

from instruction_generator import draw, objection, program_to_paste

from campaign import Subject, drawn_from

SUBJECT = Subject(
    "instructions",
    "small kernels with an instruction by name: exactly equal to NumPy, no alarm",
    drawn_from(draw, objection, program_to_paste),
    nightly=500,
    campaign=5_000,
    first=20_261_130,
)
