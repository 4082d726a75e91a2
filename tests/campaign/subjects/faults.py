"""Faults planted in the final IR of drawn kernels: those of synchronisation are found by both detectors, all others by one at least.

The kind is the seed's, so that all kinds are drawn as often; of a kind a kernel is drawn until it can be planted there, and one of its places.
Where sizes are known only at run time the static check speaks of all of them, and what it alone finds need not happen at those that were drawn:
it is counted apart. A fault that nobody finds makes no difference: under many more schedules, fast, slow and mixed, and with other data, the kernel's outputs are
bit for bit those without it, and the kind says by which reason that may be. All else is a finding.
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
"""Kernels that are drawn for a kind at most."""

FEW, MANY = 4, 6
"""Schedules under which a fault is looked for, and those under which one that nobody found makes no difference."""


def draw(seed: int) -> Outcome:
    """One fault of the seed's kind."""
    kind, chance = KINDS[seed % len(KINDS)], random.Random(seed)
    one, (where, make) = planted(kind, seed, chance)
    try:
        faulty = make()
    except FireironError:
        return agreed({one.form, kind.name}, **{f"{kind.name}: no kernel has it": 1})
    return judged(kind, one, where, faulty, seed)


def planted(kind: Kind, seed: int, chance: random.Random) -> tuple[Case, Planted]:
    """A kernel in which a kind of fault can be planted, and one of the places."""
    for attempt in range(KERNELS):
        one = case(chance.choice(kind.forms), seed * KERNELS + attempt)
        places = list(kind.plant(one.kernel))
        if places:
            return one, chance.choice(places)
    raise AssertionError(f"{kind.name}: no place in {KERNELS} kernels of {', '.join(kind.forms)}")


def judged(kind: Kind, one: Case, where: str, faulty: ir.Kernel, seed: int) -> Outcome:
    """What the detectors say of a fault, and whether that is enough."""
    clean = who.outputs(one, one.kernel, None)
    said = who.found(one, faulty, clean, list(who.schedules(seed, FEW)))
    if kind.about == "synchronisation" and said.static and not said.by_both:  # which of the ways to run shows it may be rare
        shadow, values = who.shadow_of(one, faulty, clean, list(who.schedules(seed + 1, MANY)))
        said = attrs.evolve(said, shadow=shadow, values=said.values or values)
    features = {one.form, kind.name}
    names = {f"{kind.name}: {name}": 1 for name in said.who}
    if said.by_both and kind.about == "synchronisation":
        return agreed(features, planted=1, **names)
    if said.who and kind.about != "synchronisation":
        return agreed(features, **{kind.about: 1}, **names)
    if said.who == ("static",) and one.symbols:
        return agreed(features, other_sizes=1, **{f"{kind.name}: static, for other sizes": 1})
    if not said.who and kind.needless and makes_no_difference(one, faulty, seed):
        return agreed(features, equivalent=1, **{f"{kind.name}: makes no difference": 1})
    text = f"{kind.name} at {where}: found by {', '.join(said.who) or 'nobody'}\n{said}\n{one.paste}"
    return found(f"{text}\nplanted by campaign.faults, kind {kind.name!r}, place {where!r}", features)


def makes_no_difference(one: Case, faulty: ir.Kernel, seed: int) -> bool:
    """Whether a kernel computes bit for bit what the kernel without the fault does, with other data, under many schedules."""
    other = attrs.evolve(one, arrays=other_data(one.arrays, seed))
    clean = who.outputs(other, one.kernel, None)
    return who.shadow_of(other, faulty, clean, list(who.schedules(seed + 2, MANY))) == ("", "")


def other_data(arrays: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Arrays of the same shapes and types, all of whose elements are likely to be different."""
    generator = np.random.default_rng(seed)

    def other(array: Any) -> Any:
        array = np.asarray(array)
        if not array.ndim:  # of a single number a definition may hold for some values only
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
    sample=2,
    seconds=400.0,
)
