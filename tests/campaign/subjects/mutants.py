"""Mutants of the passes, of the printer and of launches: each seed is one change of a line, in an order that is the same everywhere; a
detector must kill it.

A surviving mutant is a finding, until a test kills it, its line is gone, or `mutation/equivalent.json` states why no test can.
"""

import functools

from mutation.judge import judge
from mutation.operators import Mutant, sample

from campaign import Outcome, Subject, agreed, found, refused

PASSES = ("lower", "decomp", "stepping", "values")
PRINTER = ("cuda", "gpu/maps.py", "gpu/arguments.py", "gpu/prepared.py", "gpu/launch.py", "gpu/arrays.py")
"""The printer, and the part of launches that computes their parameters without a GPU."""


@functools.cache
def every(parts: tuple[str, ...]) -> list[Mutant]:
    """The mutants of some parts of the package, in order."""
    return sample(parts)


def draw(parts: tuple[str, ...], number: int) -> Outcome:
    """One mutant; refused if it does not change the program, or is proved equivalent."""
    mutants = every(parts)
    verdict = judge(mutants[number % len(mutants)])
    mutant = verdict.mutant
    features = {mutant.module, mutant.operator}
    if verdict.by == "not one":
        return refused(features)
    if verdict.by == "equivalent":
        return refused(features, equivalent=1)
    if verdict.killed:
        return agreed({*features, f"by {verdict.detector}"}, mutants=1)
    verdict_text = "a kernel has another text, " * verdict.changed + "no kernel, check or test notices it"
    return found(f"{verdict_text}:\n{mutant.difference()}\nname: {mutant.name}", features, mutants=1)


def subject(name: str, title: str, parts: tuple[str, ...]) -> Subject:
    """The mutants of some parts as a subject."""
    return Subject(
        name,
        title,
        functools.partial(draw, parts),
        nightly=100,
        campaign=1_000,
        counted="mutants",
        first=0,
        chunk=5,
        sample=0,
        seconds=3_600.0,
    )


SUBJECTS = (
    subject("mutants", "mutants of the passes, killed", PASSES),
    subject("mutants-printer", "mutants of the printer and of launches, killed", PRINTER),
)
