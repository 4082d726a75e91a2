"""What the compiler makes of the strategies of `corpus`: the texts and the refusals that it made before, at any seed of hashes."""

import corpus
import pytest

OF_A_TEST = 20
"""So many strategies."""

KEPT, LINES = corpus.kept(), corpus.outcomes()


@pytest.mark.parametrize("first", range(0, len(KEPT), OF_A_TEST))
def test_nothing_changes_by_the_way(first):
    changed = [
        line for one, line in zip(KEPT[first : first + OF_A_TEST], LINES[first : first + OF_A_TEST], strict=True) if one.line() != line
    ]
    assert not changed, "if these are to change: python tests/corpus.py"


def test_each_has_its_line():
    assert [line.split("  ", 2)[2] for line in LINES] == [one.name for one in KEPT]


def test_what_lies_near_is_another_strategy():
    stored = [(one.target, str(one.strategy)) for one in KEPT]
    assert len({*stored}) == len(stored)
