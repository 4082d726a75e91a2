"""Faults injected into the final IR of random kernels: both detectors report those of synchronization, at least one detector all others.

The seed determines the kind, so that all kinds are drawn equally often; kernels are drawn until the kind can be injected into one, at a
random position. With run-time sizes the static check covers all of them, and a report of the static check alone need not occur at the drawn
sizes: it is counted separately. A fault that no detector reports has no effect: under many more schedules, fast, slow and mixed, and with
other data, the kernel's outputs equal those without it bit for bit, and the kind states why this may be. Everything else is a finding.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import attrs
import numpy as np

from campaign import Outcome, Subject, agreed, found
from campaign.faults import KINDS, Kind, Planted
from campaign.faults import detectors as who
from campaign.faults.kernels import Case, case
from fireiron import ir
from fireiron.errors import FireironError

KERNELS = 60
"""The maximum number of kernels drawn for a kind."""

FEW, MANY = 4, 6
"""The schedules under which a fault is searched, and those under which an unreported one must have no effect."""


def draw(seed: int) -> Outcome:
    """One fault of the seed's kind."""
    kind, chance = KINDS[seed % len(KINDS)], random.Random(seed)
    drawn_case, (where, make) = planted(kind, seed, chance)
    try:
        faulty = make()
    except FireironError:
        return agreed({drawn_case.form, kind.name}, **{f"{kind.name}: no kernel has it": 1})
    return judged(kind, drawn_case, where, faulty, seed)


def planted(kind: Kind, seed: int, chance: random.Random) -> tuple[Case, Planted]:
    """A kernel into which a kind of fault can be injected, and one of the positions."""
    for attempt in range(KERNELS):
        drawn_case = case(chance.choice(kind.forms), seed * KERNELS + attempt)
        places = list(kind.plant(drawn_case.kernel))
        if places:
            return drawn_case, chance.choice(places)
    raise AssertionError(f"{kind.name}: no place in {KERNELS} kernels of {', '.join(kind.forms)}")


def judged(kind: Kind, drawn_case: Case, where: str, faulty: ir.Kernel, seed: int) -> Outcome:
    """The reports of the detectors for a fault, and whether they suffice."""
    clean = who.outputs(drawn_case, drawn_case.kernel, None)
    verdict = who.found(drawn_case, faulty, clean, list(who.schedules(seed, FEW)))
    if kind.about == "synchronization" and verdict.static and not verdict.by_both:  # the schedule that shows it may be rare
        shadow, values = who.shadow_of(drawn_case, faulty, clean, list(who.schedules(seed + 1, MANY)))
        verdict = attrs.evolve(verdict, shadow=shadow, values=verdict.values or values)
    features = {drawn_case.form, kind.name}
    names = {f"{kind.name}: {name}": 1 for name in verdict.who}
    if verdict.by_both and kind.about == "synchronization":
        return agreed(features, planted=1, **names)
    if verdict.who and kind.about != "synchronization":
        return agreed(features, **{kind.about: 1}, **names)
    if verdict.who == ("static",) and drawn_case.symbols:
        return agreed(features, other_sizes=1, **{f"{kind.name}: static, for other sizes": 1})
    if not verdict.who and kind.needless and makes_no_difference(drawn_case, faulty, seed):
        return agreed(features, equivalent=1, **{f"{kind.name}: makes no difference": 1})
    text = f"{kind.name} at {where}: found by {', '.join(verdict.who) or 'nobody'}\n{verdict}\n{drawn_case.paste}"
    return found(f"{text}\nplanted by campaign.faults, kind {kind.name!r}, place {where!r}", features)


def makes_no_difference(drawn_case: Case, faulty: ir.Kernel, seed: int) -> bool:
    """Whether a kernel equals the one without the fault bit for bit, with other data, under many schedules."""
    other = attrs.evolve(drawn_case, arrays=other_data(drawn_case.arrays, seed))
    clean = who.outputs(other, drawn_case.kernel, None)
    return who.shadow_of(other, faulty, clean, list(who.schedules(seed + 2, MANY))) == ("", "")


def other_data(arrays: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Arrays of the same shapes and types, whose elements are likely to differ."""
    generator = np.random.default_rng(seed)

    def other(array: Any) -> Any:
        array = np.asarray(array)
        if not array.ndim:  # a definition may be valid for some values of a scalar only
            return array
        return (
            generator.permutation(array.size).reshape(array.shape) % 97 - 48
            if array.dtype.kind in "iu"
            else generator.standard_normal(array.shape)
        )

    return {name: np.asarray(other(array)).astype(np.asarray(array).dtype) for name, array in arrays.items()}


SUBJECT = Subject(
    "faults",
    "injected synchronization faults, found by both detectors",
    draw,
    nightly=240,
    campaign=600,
    counted="planted",
    first=20_261_123 // len(KINDS) * len(KINDS),
    chunk=10,
    seconds=400.0,
)
