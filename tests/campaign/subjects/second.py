"""Whole scripts as text, by a generator independent of the other one: written from the documentation, judged by separate oracles.

A draw is the text of a program up to `problem` and `strategy`: a GEMM with any order of verbs, a definition by formulas, copies, reductions
and user-defined kinds, a program of tasks with a mapping. It is executed unchanged. Refusals must be as documented: class, place, words.
Accepted scripts equal NumPy (einsum, or the formulas evaluated in float64 by `second_formula`), with two thread orders; have no finding of
`check`; survive JSON and `repr`, down to the printed text; give the same without refinements, with other tiles, transposed; and a twentieth
of the printed texts run on the CPU. Findings are shrunk line by line.
"""

import random

from second_fused import fused
from second_judge import judged
from second_others import other
from second_products import product
from second_tasks import tasks

from campaign import Outcome, Subject

FAMILIES = {"product": (product, 10), "fused": (fused, 6), "other": (other, 2), "tasks": (tasks, 1)}


def draw(seed: int) -> Outcome:
    """One script, of the family that the seed selects."""
    makers, weights = zip(*FAMILIES.values(), strict=True)
    (maker,) = random.Random(f"family {seed}").choices(makers, weights)
    return judged(maker(seed), seed)


SUBJECT = Subject(
    "second", "scripts of a second generator, from the documentation alone: NumPy, simulator, checks, text, equivalent scripts", draw, nightly=4_000, campaign=15_000, first=1,
    seconds=300.0,
)  # fmt: skip
