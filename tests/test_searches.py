"""The search of a strategy visits candidates in the same order, and explains its choice in the same words, for stored specs.

Nothing is lowered: a digest of the values gives the time of a candidate, and some are refused. So the search varies decisions and tricks, and
falls back to other ones, as no prediction makes it do. The stored outcome has all candidates in the order of the search, the ranking, the
reasons, and the refusals.
"""

import functools

import pytest
import test_rules
from goldens.cases import TEXT, Case, Outcome, cases, differences, digest

from fireiron import ARCHITECTURES
from fireiron.derive import RULES
from fireiron.derive.facts import Facts
from fireiron.derive.search import Candidate, Search
from fireiron.errors import ArgumentError

EVERY, CANDIDATES, PARTS = 15, 40, 2
"""One of this number of cases of `test_rules`; the limit of candidates; the number of tests."""


class Modeled(Search):
    """A search whose candidates have times of a model, and one of six is refused."""

    def _lowered(self, sketch, values, strategy):
        number = int(digest(f"{sketch.skeleton} {sorted(values.items())} {sorted(dict(sketch.tricks))}"), 16)
        return (
            Candidate(sketch, values, None, "refused by the model")
            if number % 6 == 0
            else Candidate(sketch, values, 10 + number % 997 / 100)
        )

    def _answer(self):
        if not self._ranking():
            raise self._no_strategy()
        return self


@functools.cache
def names():
    """The names of the cases."""
    return test_rules.names()[::EVERY]


@functools.cache
def searched(name):
    """The search for a case, when it is over."""
    form, target = name.split(", ")
    architecture = next(one for one in ARCHITECTURES if one.name == target)
    return Modeled(Facts(test_rules.spec_named(form), architecture), RULES, candidates=CANDIDATES).run()


def lines(name):
    """All candidates, the ranking, the reasons and the refusals."""
    search = searched(name)
    yield from map(str, search._examined.values())
    ranking = search._ranking()
    yield from (f"{place} {one}" for place, one in enumerate(ranking))
    yield from map(str, search._reasons(ranking[0]))
    yield from (f"{name}: {why}" for name, why in sorted(search.refusals.items()))


def outcome(name):
    """The search for a case."""
    try:
        return Outcome(TEXT, "\n".join(lines(name)))
    except ArgumentError as error:
        return Outcome.refused(error)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("part", range(PARTS))
def test_searches_do_not_change_unintentionally(part):
    stored = cases("searches")[part::PARTS]
    changes = differences("searches", [Case.of(one.name, outcome(one.name)) for one in stored])
    assert not changes and [one.name for one in stored] == names()[part::PARTS], changes


@pytest.mark.sampled(1)
def test_the_best_candidate_is_first():
    """No legal candidate gains more than the model's error for the sketch of the first one, and no refused one has a rank."""
    for name in names():
        if outcome(name).kind != TEXT:
            continue
        search = searched(name)
        ranking = search._ranking()
        legal = [one for one in search._examined.values() if one.us is not None]
        assert len(ranking) == len({id(one) for one in ranking}) and {*map(id, ranking)} <= {*map(id, legal)}
        assert [one.us for one in ranking[1:]] == sorted(one.us for one in ranking[1:])
        assert all(one.us >= ranking[0].us * (1 - ranking[0].sketch.gain) for one in ranking)
