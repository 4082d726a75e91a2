"""Random definitions with nested loops and random strategies: rows, scans in loops, three loops, products, online sums.

Outputs are compared with `reference()` within the error bounds, and with an evaluation that is independent of the package.
"""

from nested_generator import draw as drawn_definition
from nested_generator import objection, program_to_paste

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
    "nested",
    "random definitions with nested loops: close to float64, no alarm",
    draw,
    nightly=500,
    campaign=10_000,
    first=20_261_130,
    sample=2,
)
