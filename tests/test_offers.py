"""What each step offers for specs of all kinds is what it offered before: the legal arguments that the tuner, the fuzzers and messages read.

The specs are those of trees of the corpus, as if nothing stood around them, and with their threads known. A digest says nothing of right and
wrong, which `test_contracts` and `test_choices` do: it says that no offer changes by the way. `python -m goldens draw offers` takes other specs.
"""

import functools
import json
import random
import time

import attrs
import corpus
import pytest
from goldens.cases import Case, Outcome, cases, differences
from performed import context_of
from test_contracts import any_of_kind, steps_of_language

from fireiron.errors import FireironError
from fireiron.language.store import loads
from fireiron.values.expr import Var

EACH = 20
"""Of the corpus every so many-th strategy is asked."""

OF_A_TEST = 45
CASES = cases("offers")

MOST_SECONDS = 1.0
"""Of processor time that the offers for one spec may take."""


@functools.lru_cache(maxsize=8)
def specs_of(name):
    """Some specs of a tree, other than each other."""
    one = corpus.by_name()[name]
    nodes = {str(node.spec): node.spec for node in loads(json.dumps(one.strategy)).program(one.target).tree.nodes()}
    return random.Random(name).sample([*nodes.values()], min(len(nodes), 4))


def offers(spec):
    """For each step the labels of what it offers, threads unknown and known."""
    alone = context_of(spec)
    for step in steps_of_language():
        for context in (alone, attrs.evolve(alone, workers=64, thread=Var("thread", 0, 63))):
            try:
                yield step, [one.label() for one in any_of_kind(step).choices(spec, context)]
            except FireironError as error:
                yield step, [str(error)]


def outcome(case):
    """All labels that are offered for a spec: a line for each step, threads unknown, and one, threads known."""
    name, _, number = case.rpartition(", ")
    try:
        every = [*offers(specs_of(name)[int(number)])]
    except FireironError as error:
        return Outcome.refused(error)
    lines = [json.dumps([step.__name__, *labels]) for step, labels in every]
    return Outcome("offers" if any(labels for _, labels in every) else "nothing", "\n".join(lines))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("first", range(0, len(CASES), OF_A_TEST))
def test_nothing_offered_changes_by_the_way(first):
    said = differences("offers", [Case.of(one.name, outcome(one.name)) for one in CASES[first : first + OF_A_TEST]])
    assert not said, said


def test_much_is_offered():
    assert len(CASES) > 500 and [one.kind for one in CASES].count("offers") > 0.6 * len(CASES)


def drawn():
    """The names of specs for which the offers do not take long."""
    names = []
    for name in corpus.accepted()[::EACH]:
        for number, _ in enumerate(specs_of(name)):
            before = time.process_time()
            outcome(f"{name}, {number}")
            if time.process_time() - before < MOST_SECONDS:
                names.append(f"{name}, {number}")
    return names
