"""Random sparse matmuls with random strategies for mma.sp and wgmma.sp."""

from sparse_generator import draw as drawn
from test_sparse import objection_to

from campaign import Outcome, Subject, agreed, found


def draw(seed: int) -> Outcome:
    """Draw a kernel until one is legal; simulate it in two orders of the threads."""
    case, program, refusals = drawn(seed)
    story = objection_to(case, program, seed)
    if story:
        text = f"{story}\nfrom fireiron import *\nstrategy = {case.chain!r}\nspec = {case.spec!r}\nsymbols = {case.symbols}"
        return found(text, case.features, refusals=refusals)
    return agreed(case.features, program, refusals=refusals)


SUBJECT = Subject("sparse", "2:4 sparse matmuls", draw, nightly=50, campaign=2000)
