"""The compiler's results for the corpus strategies do not change: texts and refusals, with any hash seed."""

import corpus
import pytest
import test_passes
from goldens.cases import cases, differences

PARTS, OTHER_PARTS = 20, 160
"""The numbers of tests among which the strategies are distributed."""


@pytest.mark.parametrize("part", range(PARTS))
def test_results_do_not_change_unintentionally(part):
    """Each combination of classes, targets and outcomes of the corpus, without those of `test_passes`."""
    passed = {name for subject, name in test_passes.CASES if subject == "corpus"}
    changes = differences("corpus", [one.case() for one in corpus.covering()[part::PARTS] if one.name not in passed])
    assert not changes, changes


@pytest.mark.sampled(36)
@pytest.mark.parametrize("part", range(OTHER_PARTS))
def test_further_results_do_not_change_unintentionally(part):
    """The same combinations with other sizes, types and orders."""
    changes = differences("corpus", [one.case() for one in corpus.others()[part::OTHER_PARTS]])
    assert not changes, changes


def test_each_has_its_digests():
    assert [one.name for one in cases("corpus")] == [one.name for one in corpus.kept()]


def test_a_perturbation_is_another_strategy():
    stored = [(one.target, str(one.strategy)) for one in corpus.kept()]
    assert len({*stored}) == len(stored)
