"""Stored cases that together run most lines of passes, decompositions and the printer, in two seconds: their texts and refusals do not change.

They are a part of the cases of `corpus` and `perturbed`, listed in `passed_cases.txt` (`kind name`): in each step the case that runs the
most lines that fewer than two chosen cases run, for its time. Mutants of passes are judged by them, too (`mutation.few`).
"""

from pathlib import Path

import corpus
import pytest
from goldens.cases import case, differences
from perturbed import Perturbed

CASES = [line.split(" ", 1) for line in (Path(__file__).parent / "passed_cases.txt").read_text(encoding="utf-8").splitlines()]
PARTS = 4


def computed(subject, name):
    """The case as it is now."""
    return corpus.by_name()[name].case() if subject == "corpus" else Perturbed.of(name).case()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("part", range(PARTS))
def test_results_do_not_change_unintentionally(part):
    for subject in ("corpus", "perturbed"):
        own = [computed(subject, name) for kind, name in CASES[part::PARTS] if kind == subject]
        changes = differences(subject, own)
        assert not changes, changes


def test_all_are_stored():
    assert all(case(subject, name) is not None for subject, name in CASES)
