"""The sketches that the rules make do not change unintentionally: steps, options of decisions in their order, reasons and refusals.

The specs are those of all forms of the library, and drawn definitions (`sketched_specs.txt`). Nothing is lowered. A digest does not prove a
choice right, which `test_derive` and the subject `derived` test.
"""

import functools
from pathlib import Path

import named_generator
import pytest
import test_library_sizes as library
from goldens.cases import TEXT, Case, Outcome, cases, differences

import fireiron
from fireiron import ARCHITECTURES
from fireiron.derive import RULES
from fireiron.derive.facts import Facts
from fireiron.derive.forms import forms_of
from fireiron.derive.search import Search
from fireiron.errors import FireironError
from fireiron.language.entries import spec_of
from fireiron.language.library import find

FILE = Path(__file__).parent / "sketched_specs.txt"
TARGETS = ("sm_80", "sm_90a")
OF_A_TEST = 50


@functools.cache
def drawn():
    """The drawn specs, one a line."""
    return FILE.read_text(encoding="utf-8").splitlines()


@functools.cache
def names():
    """The names of the cases: a form of the library, or the number of a drawn spec, and the target. Forms of the same spec are one."""
    forms = {repr(spec_named(form)): form for form in reversed([*filter(named_generator.for_one_gpu, library.FORMS)])}
    return [f"{form}, {target}" for form in (*sorted(forms.values()), *map(str, range(len(drawn())))) for target in TARGETS]


def spec_named(form):
    """The spec of a case."""
    if form.isdigit():
        return eval(drawn()[int(form)], {**vars(fireiron)})
    return spec_of(find(form), library.dimensions(form), library.OPTIONS.get(form, {}))


def lines_of(sketch):
    """A sketch, and why its values cannot be legal, for the first ones and each other option."""
    yield f"{sketch.skeleton} {sketch.family} {sketch.because} {sketch.last_resort} {sketch.gain} {sketch.tricks}"
    yield from map(repr, sketch.parts)
    yield from (f"{one.name} {one.because} {list(map(dict, one.options))}" for one in sketch.decisions)
    values = [sketch.first(), *({**sketch.first(), **option} for one in sketch.decisions for option in one.options)]
    yield str([sketch.exceeds(one) for one in values])


def lines(spec, target):
    """All sketches of a spec, with its usual tricks, then with each other one, and what does not apply."""
    architecture = next(one for one in ARCHITECTURES if one.name == target)
    search = Search(facts := Facts(spec, architecture), RULES)
    for sketch in search._sketches():
        yield from lines_of(sketch)
        for trick in search._tricks():
            if not trick.usual:
                yield trick.refusal(facts, sketch) or f"{trick.amend(facts, sketch).tricks}"
    yield from (f"{name}: {why}" for name, why in sorted(search.refusals.items()))
    yield from (f"{form.name} {form.because} {other!r}" for form, other in forms_of(spec))


@functools.cache
def outcome(case):
    """The sketches for the spec of a case."""
    form, target = case.split(", ")
    try:
        return Outcome(TEXT, "\n".join(lines(spec_named(form), target)))
    except FireironError as error:
        return Outcome.refused(error)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("first", range(0, len(names()), OF_A_TEST))
def test_sketches_do_not_change_unintentionally(first):
    stored = cases("sketches")[first : first + OF_A_TEST]
    changes = differences("sketches", [Case.of(one.name, outcome(one.name)) for one in stored])
    assert not changes and [one.name for one in stored] == names()[first : first + OF_A_TEST], changes


def test_every_rule_applies_to_a_case():
    seen = "\n".join(outcome(name).body for name in names())
    missing = [rule.name for rule in RULES if f"\n{rule.name} " not in f"\n{seen}" and f"('{rule.name}', " not in seen]
    assert not missing
