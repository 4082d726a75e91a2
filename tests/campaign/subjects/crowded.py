"""Products with many public names: any instruction, an epilogue of functions and operators, further verbs."""

from crowded_generator import draw, objection, program_to_paste

from campaign import Subject, drawn_from

SUBJECT = Subject(
    "crowded",
    "products with any instruction, epilogues of several functions and operators, and further verbs: close to float64, no alarm",
    drawn_from(draw, objection, program_to_paste),
    nightly=300,
    campaign=5_000,
    first=20_261_130,
)
