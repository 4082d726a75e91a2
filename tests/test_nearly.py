"""Perturbed strategies (`nearly`) differ from the given one, which is unchanged, and the order of refinements is preserved."""

import copy
import json
import random
from collections import Counter

import corpus
import pytest
from nearly import near, refinements_in

from fireiron.errors import FireironError
from fireiron.language.store import loads

KEPT = corpus.kept()[:12]
REFINEMENTS = [one for each in KEPT for one in refinements_in(each.strategy)]


def test_most_perturbations_differ_and_the_original_is_unchanged():
    before = copy.deepcopy([one.strategy for one in KEPT])
    changed = sum(near(one.strategy, random.Random(seed), REFINEMENTS) != one.strategy for one in KEPT for seed in range(10))
    assert changed > 90 and before == [one.strategy for one in KEPT]


def test_the_same_seed_draws_the_same():
    assert near(KEPT[0].strategy, random.Random(3), REFINEMENTS) == near(KEPT[0].strategy, random.Random(3), REFINEMENTS)


@pytest.mark.parametrize("stored", KEPT[:4], ids=lambda one: one.name)
def test_they_are_refused_by_errors_of_the_project_or_accepted(stored):
    outcomes = Counter()
    for seed in range(8):
        try:
            _ = loads(json.dumps(near(stored.strategy, random.Random(seed), REFINEMENTS))).program(stored.target).ir
        except FireironError as error:
            outcomes[type(error).__name__] += 1
        else:
            outcomes["accepted"] += 1
    assert outcomes.total() == 8


def test_refinements_are_those_of_strategies_inside_too():
    stored = {"steps": [{"refinements": [{"type": "To"}], "move": [{"type": "Tile", "refinements": [{"type": "Pad"}]}]}]}
    assert [one["type"] for one in refinements_in(stored)] == ["To", "Pad"]
