"""Programs that have all public names one after another: right in the simulator, no alarm."""

from named_generator import draw, objection, program_to_paste

from campaign import Subject, drawn_from

SUBJECT = Subject(
    "names",
    "functions, instructions and forms of the library, one after another: equal to NumPy or close to float64, no alarm",
    drawn_from(draw, objection, program_to_paste),
    nightly=1_000,
    campaign=10_000,
    chunk=3,
    first=20_261_130,
    seconds=300.0,
)
