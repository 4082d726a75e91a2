"""Random scans with random strategies: exact for integers, within the error bounds for floats, and equal to a loop over the elements."""

from scans import draw as drawn_scan
from scans import objection, program_to_paste

from campaign import Outcome, Subject, agreed, found


def draw(seed: int) -> Outcome:
    """One definition with an accepted strategy."""
    case, refusals = drawn_scan(seed)
    try:
        message = objection(case, seed)
    except Exception as error:
        message = f"{type(error).__name__}: {error}"
    if message:
        return found(f"{message}\n{program_to_paste(case)}", {*case.features})
    return agreed({*case.features}, clean=1, refusals=refusals)


SUBJECT = Subject(
    "scans",
    "random scans: exact for integers, close to float64 otherwise, no alarm",
    draw,
    nightly=500,
    campaign=10_000,
    first=20_261_201,
    sample=2,
)
