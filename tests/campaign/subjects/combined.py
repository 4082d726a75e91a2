"""Random definitions whose outputs several blocks combine, with random strategies: sums, maxima, minima, scalars, elements of tables.

The reference combines element by element, with Python's numbers.
"""

from combined_generator import draw as drawn_definition
from test_combined_random import objection, program_to_paste

from campaign import Outcome, Subject, agreed, found


def draw(seed: int) -> Outcome:
    """One definition with an accepted strategy."""
    definition, refusals = drawn_definition(seed)
    try:
        message = objection(definition, seed)
    except Exception as error:
        message = f"{type(error).__name__}: {error}"
    if message:
        return found(f"{message}\n{program_to_paste(definition)}", {*definition.features})
    return agreed({*definition.features}, clean=1, refusals=refusals)


SUBJECT = Subject(
    "combined",
    "random definitions whose outputs several blocks combine: close to float64, no alarm",
    draw,
    nightly=1_000,
    campaign=20_000,
    first=20_261_130,
    sample=2,
)
