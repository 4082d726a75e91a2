"""The compiler's results for the corpus strategies do not change: texts and refusals, with any hash seed."""

import corpus
import pytest
from goldens.cases import cases, differences

OF_A_TEST = 20
"""The number of strategies per test."""

KEPT = corpus.kept()


@pytest.mark.parametrize("first", range(0, len(KEPT), OF_A_TEST))
def test_results_do_not_change_unintentionally(first):
    changes = differences("corpus", [one.case() for one in KEPT[first : first + OF_A_TEST]])
    assert not changes, changes


def test_each_has_its_digests():
    assert [one.name for one in cases("corpus")] == [one.name for one in KEPT]


def test_a_perturbation_is_another_strategy():
    stored = [(one.target, str(one.strategy)) for one in KEPT]
    assert len({*stored}) == len(stored)
