"""The text of kernels that are generated as IR (`drawn_ir`) equals the golden text or refusal.

A digest does not prove correctness, which other oracles check; it proves that no printing decision changed by accident.
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


@pytest.mark.sampled(3)
@pytest.mark.parametrize("first", range(0, COUNT, OF_A_TEST))
def test_printed_text_equals_the_golden_digest(first):
    changes = differences("drawn_ir", [Case.of(str(seed), outcome(seed)) for seed in range(first, first + OF_A_TEST)])
    assert not changes, changes


def test_most_generated_kernels_are_printed():
    kinds = [one.kind for one in cases("drawn_ir")]
    assert len(kinds) == COUNT and kinds.count(TEXT) > 0.75 * COUNT and set(kinds) == {TEXT, "VerificationError"}
