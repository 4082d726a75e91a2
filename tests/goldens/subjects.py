"""The subjects with stored cases: their names, and the outcome of a case."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs

from goldens.cases import Case, Outcome, cases


@attrs.frozen
class Subject:
    """Cases of a kind. `draw` makes other ones, if the names are not those of something stored elsewhere."""

    names: Callable[[], Sequence[str]]
    outcome: Callable[[str], Outcome]
    draw: Callable[[], Sequence[str]] | None = None


def _corpus() -> Subject:
    import corpus

    return Subject(lambda: [*corpus.by_name()], lambda name: corpus.by_name()[name].outcome())


def _perturbed() -> Subject:
    import perturbed

    return Subject(lambda: _names("perturbed"), lambda name: perturbed.Perturbed.of(name).outcome(), perturbed.drawn)


def _drawn_ir() -> Subject:
    import test_drawn_ir

    return Subject(lambda: [*map(str, range(test_drawn_ir.COUNT))], test_drawn_ir.outcome)


def _offers() -> Subject:
    import test_offers

    return Subject(lambda: _names("offers"), test_offers.outcome, test_offers.drawn)


def _library() -> Subject:
    import test_texts

    return Subject(test_texts.forms, test_texts.outcome)


def _sketches() -> Subject:
    import test_rules

    return Subject(test_rules.names, test_rules.outcome)


def _searches() -> Subject:
    import test_searches

    return Subject(test_searches.names, test_searches.outcome)


def _verdicts() -> Subject:
    import test_verdicts

    return Subject(test_verdicts.names, test_verdicts.outcome)


SUBJECTS: dict[str, Callable[[], Subject]] = {
    "corpus": _corpus,
    "drawn_ir": _drawn_ir,
    "library": _library,
    "offers": _offers,
    "perturbed": _perturbed,
    "searches": _searches,
    "sketches": _sketches,
    "verdicts": _verdicts,
}
"""By name; a subject's imports are executed when it is used."""


def _names(subject: str) -> list[str]:
    return [one.name for one in cases(subject)]


def case_of(numbered: tuple[str, str]) -> Case:
    """The outcome of a case, by its subject and name."""
    subject, name = numbered
    return Case.of(name, SUBJECTS[subject]().outcome(name))
