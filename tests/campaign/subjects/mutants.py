"""Mutants of the passes that make a kernel: each seed is one change of a line, in an order that is the same everywhere; somebody must notice.

A mutant that nobody notices is found, until a test kills it, its line is gone, or `mutation/equivalent.json` says why nobody can.
"""

import functools

from mutation.judge import judge
from mutation.operators import Mutant, sample

from campaign import Outcome, Subject, agreed, found, refused

PARTS = ("lower", "decomp", "values")


@functools.cache
def every() -> list[Mutant]:
    return sample(PARTS)


def draw(number: int) -> Outcome:
    """One mutant; refused if it is no other program, or proved equivalent."""
    mutants = every()
    verdict = judge(mutants[number % len(mutants)])
    mutant = verdict.mutant
    features = {mutant.module, mutant.operator}
    if verdict.by == "not one":
        return refused(features)
    if verdict.by == "equivalent":
        return refused(features, equivalent=1)
    if verdict.killed:
        return agreed({*features, f"by {verdict.detector}"}, mutants=1)
    said = "a kernel has another text, " * verdict.changed + "no kernel, check or test notices it"
    return found(f"{said}:\n{mutant.difference()}\nname: {mutant.name}", features, mutants=1)


SUBJECT = Subject(
    "mutants",
    "mutants of the passes, killed",
    draw,
    night=100,
    campaign=1_000,
    counted="mutants",
    first=0,
    chunk=5,
    sample=0,
    seconds=3_600.0,
)
