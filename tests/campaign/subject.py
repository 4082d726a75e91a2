"""What a campaign is about: a subject, and the outcome of one of its draws."""

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Mapping, Sequence

import attrs

VERDICTS = ("agreed", "refused", "found")


@attrs.frozen
class Outcome:
    """What came of one seed.

    `agreed`: it was drawn, run and right by every oracle. `refused`: the project refused it with an error of its own, which the subject deems fair.
    `found`: anything else; then `story` says what, and holds a program to paste. `features` are counted in pairs; `counts` are added up.
    """

    verdict: str = attrs.field(validator=attrs.validators.in_(VERDICTS))
    features: frozenset[str] = attrs.field(default=frozenset(), converter=frozenset)
    counts: Mapping[str, int] = attrs.field(factory=dict)
    story: str = ""


def agreed(features: Iterable[str] = (), **counts: int) -> Outcome:
    """The outcome of a draw that every oracle calls right."""
    return Outcome("agreed", frozenset(features), counts)


def refused(features: Iterable[str] = (), **counts: int) -> Outcome:
    """The outcome of a draw that the project refused fairly."""
    return Outcome("refused", frozenset(features), counts)


def found(story: str, features: Iterable[str] = (), **counts: int) -> Outcome:
    """The outcome of a draw that shows a defect, of the project or of the subject."""
    return Outcome("found", frozenset(features), counts, story)


@attrs.frozen
class Subject:
    """Something that is drawn from seeds, over and over.

    `draw` maps a seed to an outcome and depends on nothing else; where many are cheaper together, `draw_together` maps several seeds to
    theirs, in order. `counted` names what the numbers of the tiers are about: "agreed", "drawn" (every seed), or a name in `counts`.
    `seconds` is what one draw may take before it counts as found; `needs` says why it cannot run here, or nothing.
    """

    name: str
    title: str
    draw: Callable[[int], Outcome]
    nightly: int
    campaign: int
    counted: str = "agreed"
    first: int = 1
    chunk: int = 50
    sample: int = 3
    """Draws in every run of the tests."""
    seconds: float = 120.0
    draw_together: Callable[[Sequence[int]], list[Outcome]] | None = None
    needs: Callable[[], str | None] = lambda: None
    together: Callable[[], Iterable[tuple[str, str]]] = tuple
    """The pairs of features of which none may be undrawn, as it draws them on purpose."""
    last: int | None = None
    """Where the seeds end, if they name things of which there are only so many."""

    def wanted(self, tier: str) -> int:
        """How many are wanted in a tier, `nightly` or `campaign`."""
        return {"nightly": self.nightly, "campaign": self.campaign}[tier]


def subjects() -> dict[str, Subject]:
    """All subjects by name: what the files of `subjects/` define as SUBJECT, or as SUBJECTS."""
    package = importlib.import_module("campaign.subjects")
    every: dict[str, Subject] = {}
    for module in sorted(one.name for one in pkgutil.iter_modules(package.__path__)):
        file = importlib.import_module(f"campaign.subjects.{module}")
        for subject in getattr(file, "SUBJECTS", None) or (file.SUBJECT,):
            assert subject.name not in every, f"two subjects are called {subject.name}"
            every[subject.name] = subject
    return every
