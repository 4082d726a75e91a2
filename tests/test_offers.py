"""The choices of each step for specs of all kinds do not change: the legal arguments that the tuner, the fuzzers and messages use.

The specs are those of corpus trees, without their surroundings, and with known threads. A digest does not prove choices right, which
`test_contracts` and `test_choices` test: it detects unintended changes. `python -m goldens draw offers` selects other specs.
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
"""One in this many corpus strategies is used."""

OF_A_TEST = 45
CASES = cases("offers")

MOST_SECONDS = 1.0
"""The limit of processor time for the choices of one spec."""


@functools.lru_cache(maxsize=8)
def specs_of(name):
    """Some distinct specs of a tree."""
    stored = corpus.by_name()[name]
    nodes = {str(node.spec): node.spec for node in loads(json.dumps(stored.strategy)).program(stored.target).tree.nodes()}
    return random.Random(name).sample([*nodes.values()], min(len(nodes), 4))


def offers(spec):
    """The labels of the choices of each step, without and with known threads."""
    alone = context_of(spec)
    for step in steps_of_language():
        for context in (alone, attrs.evolve(alone, workers=64, thread=Var("thread", 0, 63))):
            try:
                yield step, [one.label() for one in any_of_kind(step).choices(spec, context)]
            except FireironError as error:
                yield step, [str(error)]


def outcome(case):
    """All labels for a spec: a line per step without known threads, and one with known threads."""
    name, _, number = case.rpartition(", ")
    try:
        labels_by_step = [*offers(specs_of(name)[int(number)])]
    except FireironError as error:
        return Outcome.refused(error)
    lines = [json.dumps([step.__name__, *labels]) for step, labels in labels_by_step]
    return Outcome("offers" if any(labels for _, labels in labels_by_step) else "nothing", "\n".join(lines))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("first", range(0, len(CASES), OF_A_TEST))
def test_choices_do_not_change_unintentionally(first):
    changes = differences("offers", [Case.of(one.name, outcome(one.name)) for one in CASES[first : first + OF_A_TEST]])
    assert not changes, changes


def test_much_is_offered():
    assert len(CASES) > 500 and [one.kind for one in CASES].count("offers") > 0.6 * len(CASES)


def drawn():
    """The names of specs whose choices are quick to list."""
    names = []
    for name in corpus.accepted()[::EACH]:
        for number, _ in enumerate(specs_of(name)):
            before = time.process_time()
            outcome(f"{name}, {number}")
            if time.process_time() - before < MOST_SECONDS:
                names.append(f"{name}, {number}")
    return names
