"""No false alarm: drawn kernels of all forms, with all checks and with shadow memory under several schedules, bit for bit the same results."""

from __future__ import annotations

import random

from campaign import Outcome, Subject, agreed, found
from campaign.faults import detectors as who
from campaign.faults.kernels import FORMS, case

SHARES = {"threads": 6, "pipeline": 4, "fused": 8, "ring": 4, "ampere-tasks": 3, "hopper-tasks": 3, "dynamic": 2}
"""How often a form is drawn, if not once: those that cost little more often."""

NAMES = [name for name in FORMS for _ in range(SHARES.get(name, 1))]


def draw(seed: int) -> Outcome:
    """One kernel of which nobody has anything to say."""
    one = case(NAMES[seed % len(NAMES)], seed)
    features = {one.form, *one.features}
    alarms = who.errors(one.kernel)
    if alarms:
        return found(f"false alarm: {alarms}\n{one.paste}", features)
    clean = who.outputs(one, one.kernel, None)
    orders = list(who.schedules(seed, 4))[1:]
    met, changed = who.shadow_of(one, one.kernel, clean, random.Random(seed).sample(orders, 1))
    if met or changed:
        return found(f"in another order: {met or changed}\n{one.paste}", features)
    return agreed(features, clean=1)


SUBJECT = Subject("clean", "kernels of all forms without a fault, no alarm under any schedule", draw, nightly=2_000, campaign=10_000, first=20_261_123, sample=1)  # fmt: skip
