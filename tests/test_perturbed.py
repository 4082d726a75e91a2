"""The results of the passes for kernel IR changed between two of them (`perturbed`) do not change.

A digest does not prove a result right, which the other oracles test for strategies: it detects unintended changes of pass decisions, also
where no strategy leads. `python -m goldens draw perturbed` draws others.
"""

import pytest
from goldens.cases import TEXT, cases, differences
from perturbed import COUNT, Perturbed

OF_A_TEST = 25
CASES = cases("perturbed")


@pytest.mark.sampled(40)
@pytest.mark.parametrize("first", range(0, COUNT, OF_A_TEST))
def test_results_do_not_change_unintentionally(first):
    """In the default tier 25 of the draws."""
    computed = [Perturbed.of(one.name).case() for one in CASES[first : first + OF_A_TEST]]
    changes = differences("perturbed", computed)
    assert not changes, changes


def test_most_go_through_all_passes():
    kinds = [one.kind for one in CASES]
    assert len(kinds) == COUNT and kinds.count(TEXT) > 0.7 * COUNT
    assert kinds.count("VerificationError") < 0.2 * COUNT, "the passes come to see few"


def test_passes_refuse_and_do_not_crash():
    """A kernel that the verifier accepts is compiled, or refused by one of our errors."""
    kinds = {one.kind for one in CASES}
    assert kinds <= {TEXT, "ArgumentError", "DecompositionError", "ResourceError", "SynchronizationError", "VerificationError"}
