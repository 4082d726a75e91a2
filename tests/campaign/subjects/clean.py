"""No false findings: random kernels of all forms, with all checks and with shadow memory under several schedules, with bit-equal results."""

from __future__ import annotations

import random

from campaign import Outcome, Subject, agreed, found
from campaign.faults import detectors as who
from campaign.faults.kernels import FORMS, case

SHARES = {"threads": 6, "pipeline": 4, "fused": 8, "ring": 4, "ampere-tasks": 3, "hopper-tasks": 3, "dynamic": 2}
"""The frequency of a form, if not once: cheap ones more often."""

NAMES = [name for name in FORMS for _ in range(SHARES.get(name, 1))]


def draw(seed: int) -> Outcome:
    """One kernel without findings."""
    drawn_case = case(NAMES[seed % len(NAMES)], seed)
    features = {drawn_case.form, *drawn_case.features}
    alarms = who.errors(drawn_case.kernel)
    if alarms:
        return found(f"false alarm: {alarms}\n{drawn_case.paste}", features)
    clean = who.outputs(drawn_case, drawn_case.kernel, None)
    orders = list(who.schedules(seed, 4))[1:]
    report, changed = who.shadow_of(drawn_case, drawn_case.kernel, clean, random.Random(seed).sample(orders, 1))
    if report or changed:
        return found(f"in another order: {report or changed}\n{drawn_case.paste}", features)
    return agreed(features, clean=1)


SUBJECT = Subject("clean", "kernels of all forms without a fault, no alarm under any schedule", draw, nightly=2_000, campaign=10_000, first=20_261_123, sample=1)  # fmt: skip
