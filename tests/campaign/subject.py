"""Subjects of campaigns, and the outcome of a draw."""

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import attrs

from campaign.names import names_of
from fireiron.compiler import Program

VERDICTS = ("agreed", "refused", "found")


@attrs.frozen
class Outcome:
    """The outcome of one seed.

    `agreed`: it was drawn, executed and right by every oracle. `refused`: refused with an error of the project, which the subject accepts
    as fair. `found`: anything else; `story` then describes it, with a program to paste. Pairs of `features` are counted; `counts` are
    summed. `names` are the public names (`campaign.names`) that the executed programs use; they and their pairs are counted if the outcome
    is `agreed`.
    """

    verdict: str = attrs.field(validator=attrs.validators.in_(VERDICTS))
    features: frozenset[str] = attrs.field(default=frozenset(), converter=frozenset)
    counts: Mapping[str, int] = attrs.field(factory=dict)
    story: str = ""
    names: tuple[frozenset[str], ...] = ()
    """The public names that each executed program uses (`campaign.names`)."""


def agreed(features: Iterable[str] = (), *programs: Program, **counts: int) -> Outcome:
    """The outcome of a draw that every oracle accepts, with the programs that were executed and compared."""
    return Outcome("agreed", frozenset(features), counts, names=tuple(map(names_of, programs)))


def refused(features: Iterable[str] = (), **counts: int) -> Outcome:
    """The outcome of a fairly refused draw."""
    return Outcome("refused", frozenset(features), counts)


def found(story: str, features: Iterable[str] = (), **counts: int) -> Outcome:
    """The outcome of a draw that shows a defect, of the project or of the subject."""
    return Outcome("found", frozenset(features), counts, story)


def drawn_from(
    draw: Callable[[int], tuple[Any, int]], objection: Callable[[Any, int], str], paste: Callable[[Any], str]
) -> Callable[[int], Outcome]:
    """The draw of a subject whose generator gives a case with `features` and the number of refusals before it.

    `objection` is an oracle's objection to a case, empty if all is well; an exception is one, too. `paste` is a program that shows it.
    """

    def of_seed(seed: int) -> Outcome:
        case, refusals = draw(seed)
        try:
            message = objection(case, seed)
        except Exception as error:
            message = f"{type(error).__name__}: {error}"
        if message:
            return found(f"{message}\n{paste(case)}", case.features)
        return agreed(case.features, case.program, clean=1, refusals=refusals)

    return of_seed


@attrs.frozen
class Subject:
    """A source of draws from seeds.

    `draw` maps a seed to an outcome and depends on nothing else; if several are cheaper together, `draw_together` maps several seeds to
    theirs, in order. `counted` names the amount that the tiers specify: "agreed", "drawn" (every seed), or a name in `counts`. `seconds`
    limits one draw, which otherwise counts as found; `needs` returns why it cannot run here, or None.
    """

    name: str
    title: str
    draw: Callable[[int], Outcome]
    nightly: int
    campaign: int
    counted: str = "agreed"
    first: int = 1
    chunk: int = 50
    sample: int = 1
    """The number of draws in every run of the tests."""
    seconds: float = 120.0
    draw_together: Callable[[Sequence[int]], list[Outcome]] | None = None
    needs: Callable[[], str | None] = lambda: None
    together: Callable[[], Iterable[tuple[str, str]]] = tuple
    """The pairs of features that must all be drawn, since the subject draws them deliberately."""
    last: int | None = None
    """The end of the seeds, if they name a finite number of cases."""

    def wanted(self, tier: str) -> int:
        """The required amount in a tier, `nightly` or `campaign`."""
        return {"nightly": self.nightly, "campaign": self.campaign}[tier]


def subjects() -> dict[str, Subject]:
    """All subjects by name: those that the files of `subjects/` define as SUBJECT, or as SUBJECTS."""
    package = importlib.import_module("campaign.subjects")
    by_name: dict[str, Subject] = {}
    for module in sorted(one.name for one in pkgutil.iter_modules(package.__path__)):
        file = importlib.import_module(f"campaign.subjects.{module}")
        for subject in getattr(file, "SUBJECTS", None) or (file.SUBJECT,):
            assert subject.name not in by_name, f"two subjects are called {subject.name}"
            by_name[subject.name] = subject
    return by_name
