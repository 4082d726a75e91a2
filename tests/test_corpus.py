"""What the compiler makes of the strategies of `corpus`: the texts and the refusals that it made before, at any seed of hashes."""

import corpus
import pytest
from goldens.cases import cases, differences

OF_A_TEST = 20
"""So many strategies."""

KEPT = corpus.kept()


@pytest.mark.parametrize("first", range(0, len(KEPT), OF_A_TEST))
def test_nothing_changes_by_the_way(first):
    said = differences("corpus", [one.case() for one in KEPT[first : first + OF_A_TEST]])
    assert not said, said


def test_each_has_its_digests():
    assert [one.name for one in cases("corpus")] == [one.name for one in KEPT]


def test_what_lies_near_is_another_strategy():
    stored = [(one.target, str(one.strategy)) for one in KEPT]
    assert len({*stored}) == len(stored)
