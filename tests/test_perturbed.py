"""What the passes make of kernel IR that is changed between two of them (`perturbed`) is what they made of it before.

A digest says nothing of right and wrong, which the other oracles do of what strategies come to: it says that no decision of a pass changes by
the way, also where no strategy leads. `python -m goldens draw perturbed` draws others.
"""

import pytest
from goldens.cases import TEXT, cases, differences
from perturbed import COUNT, Perturbed

OF_A_TEST = 100
CASES = cases("perturbed")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("first", range(0, COUNT, OF_A_TEST))
def test_nothing_changes_by_the_way(first):
    found = [Perturbed.of(one.name).case() for one in CASES[first : first + OF_A_TEST]]
    said = differences("perturbed", found)
    assert not said, said


def test_most_go_through_all_passes():
    kinds = [one.kind for one in CASES]
    assert len(kinds) == COUNT and kinds.count(TEXT) > 0.7 * COUNT
    assert kinds.count("VerificationError") < 0.2 * COUNT, "the passes come to see few"


def test_passes_refuse_and_do_not_crash():
    """What the verifier lets through becomes a kernel, or one of our errors says why not."""
    kinds = {one.kind for one in CASES}
    assert kinds <= {TEXT, "ArgumentError", "DecompositionError", "ResourceError", "SynchronizationError", "VerificationError"}
