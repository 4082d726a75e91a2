"""What each step offers for specs of all kinds is what it offered before: the legal arguments that the tuner, the fuzzers and messages read.

The specs are those of trees of the corpus, as if nothing stood around them, and with their threads known. A digest says nothing of right and
wrong, which `test_contracts` and `test_choices` do: it says that no offer changes by the way. Where one is to, look at it, and
`python tests/test_offers.py` writes all anew.
"""

import hashlib
import json
import random
import sys
import time
from pathlib import Path

import attrs
import corpus
import pytest
from performed import context_of
from test_contracts import any_of_kind, steps_of_language

from fireiron.errors import FireironError
from fireiron.language.store import loads
from fireiron.values.expr import Var

OFFERS = Path(__file__).resolve().parent / "goldens" / "offers.txt"
EACH = 20
"""Of the corpus every so many-th strategy is asked."""

COUNT, OF_A_TEST = 524, 45

MOST_SECONDS = 1.0
"""Of processor time that the offers for one spec may take."""


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
                yield [one.label() for one in any_of_kind(step).choices(spec, context)]
            except FireironError as error:
                yield [str(error)]


def line(name, number, spec):
    found = [*offers(spec)]
    digest = hashlib.sha256(json.dumps(found).encode()).hexdigest()[:12]
    return f"{digest}  {sum(map(len, found))}  {name}, {number}"


def kept():
    return OFFERS.read_text(encoding="utf-8").splitlines()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("first", range(0, COUNT, OF_A_TEST))
def test_nothing_offered_changes_by_the_way(first):
    wanted = kept()[first : first + OF_A_TEST]
    places = [one.split("  ")[2].rpartition(", ") for one in wanted]
    found = [line(name, int(number), specs_of(name)[int(number)]) for name, _, number in places]
    assert found == wanted, "if they are to change: python tests/test_offers.py"


def test_much_is_offered():
    counts = [int(one.split("  ")[1]) for one in kept()]
    assert len(counts) == COUNT and sum(one > 0 for one in counts) > 0.6 * len(counts)


def main():
    lines = []
    for name in corpus.accepted()[::EACH]:
        for number, spec in enumerate(specs_of(name)):
            before = time.process_time()
            one = line(name, number, spec)
            if time.process_time() - before < MOST_SECONDS:
                lines.append(one)
    OFFERS.write_text("".join(f"{one}\n" for one in lines), encoding="utf-8")
    print(f"COUNT = {len(lines)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
