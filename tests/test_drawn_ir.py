"""The text of kernels that are drawn as IR (`drawn_ir`) is the text that was printed before, or the refusal.

A digest says nothing of right and wrong, which the other oracles do of what strategies come to: it says that no decision of the printer
changes by the way.
"""

import pytest
from drawn_ir import draw
from goldens.cases import TEXT, Case, Outcome, cases, differences

from fireiron.cuda import printed
from fireiron.errors import FireironError

COUNT, OF_A_TEST = 480, 60


def outcome(seed):
    """The text of a kernel with the steps of each line, or the refusal."""
    try:
        return Outcome.of_lines(printed(draw(int(seed))))
    except FireironError as error:
        return Outcome.refused(error)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("first", range(0, COUNT, OF_A_TEST))
def test_no_text_changes_by_the_way(first):
    said = differences("drawn_ir", [Case.of(str(seed), outcome(seed)) for seed in range(first, first + OF_A_TEST)])
    assert not said, said


def test_most_are_printed():
    kinds = [one.kind for one in cases("drawn_ir")]
    assert len(kinds) == COUNT and kinds.count(TEXT) > 0.75 * COUNT and set(kinds) == {TEXT, "VerificationError"}
