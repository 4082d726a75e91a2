"""Mutants of the compiler, drawn by rule (`mutation`): for each part of the package the nearest three test files kill at least a given
fraction.

Nothing of the package is quoted here, so code may move. Part of the nightly tier: `FIREIRON_FUZZ=7 pytest -s tests/test_mutants.py` uses
seed 7. A part below its limit prints its survivors with their changes; answer them with tests in the nearest files, or with a reason in
`mutation/equivalent.json`.
"""

import os
import random

import pytest
from mutation import few
from mutation.judge import summary
from mutation.operators import sample

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif("FIREIRON_FUZZ" not in os.environ, reason="part of the long tier: set FIREIRON_FUZZ"),
]

SEED = os.environ.get("FIREIRON_FUZZ", "1")
COUNT = 20
"""The number of mutants of each part."""

FLOORS = {
    "lower": 0.6,
    "cuda": 0.4,
    "check": 0.6,
    "sim": 0.55,
    "decomp": 0.4,
}
"""The fraction killed of those that are not equivalent, by part of the package.

Each is two standard deviations of 20 draws below the measured one: 16 of 20 of `lower`, 13 of 20 of `cuda` and of `decomp`; of `check` and
`sim` see `docs/reliability-appendix.md`.
"""


def drawn(part):
    """Mutants of a part, with their numbers in `python -m mutation nearest PART`."""
    numbered = [*enumerate(sample((part,)))]
    return random.Random(f"{SEED} {part}").sample(numbered, COUNT)


@pytest.mark.parametrize("part", FLOORS)
def test_the_nearest_files_notice(part):
    verdicts = [*few.Judge().of(drawn(part))]
    total, killed, equivalent = summary(verdict for _, verdict in verdicts)
    survivors = [f"{number} {verdict.mutant.name}\n{verdict.mutant.difference()}" for number, verdict in verdicts if not verdict.by]
    print(f"{part}, seed {SEED}: {killed} of {total - equivalent} noticed", *survivors, sep="\n\n")
    assert killed >= FLOORS[part] * (total - equivalent), f"{killed} of {total - equivalent} mutants of {part} noticed, seed {SEED}"
