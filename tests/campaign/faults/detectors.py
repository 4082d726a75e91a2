"""Who finds a fault: the verifier, the static checks, shadow memory under several schedules, or other values than without it."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs
import numpy as np

from campaign.faults.kernels import Case
from fireiron import ir
from fireiron.check import check
from fireiron.errors import FireironError, SimulationError, VerificationError
from fireiron.sim import simulate

Schedule = random.Random | None


class Fast(random.Random):
    """Loads arrive as soon as they are issued."""

    getrandbits = random.Random.getrandbits  # numbers below others are made of bits, and not of `random`

    def random(self) -> float:
        return 0.0


class Slow(random.Random):
    """Loads arrive when no warp can go on without."""

    getrandbits = random.Random.getrandbits

    def random(self) -> float:
        return 1.0


class Greedy(Slow):
    """The warp that went on last goes on, as long as it can: others are as far behind as may be."""

    def randrange(self, *arguments: int) -> int:  # type: ignore[override]
        return range(*arguments)[-1]


def schedules(seed: int, most: int) -> Iterator[Schedule]:
    """All threads in step; loads that are fast and slow; warps that run ahead; then warps and loads in random orders."""
    yield None
    for number in range(most - 1):
        yield (Slow, Greedy, random.Random, Fast)[min(number % 5, 3) if number < 4 else 2](seed * 1000 + number)


@attrs.frozen
class Found:
    """What each detector says of a kernel: the first message, or nothing."""

    verifier: str = ""
    static: str = ""
    shadow: str = ""
    values: str = ""

    @property
    def who(self) -> tuple[str, ...]:
        """The names of those who found something."""
        return tuple(name for name in ("verifier", "static", "shadow", "values") if getattr(self, name))

    @property
    def by_both(self) -> bool:
        """Whether both detectors of races did, or no reader takes such a kernel at all."""
        return bool(self.verifier or (self.static and (self.shadow or self.values)))


def outputs(case: Case, kernel: ir.Kernel, schedule: Schedule) -> Mapping[str, Any]:
    """What a kernel computes."""
    return simulate(kernel, case.arrays, case.symbols, order=schedule).outputs


def errors(kernel: ir.Kernel) -> list[str]:
    """What the static checks refuse a kernel for."""
    try:
        return [one.message for one in check(kernel) if one.severity == "error"]
    except FireironError as error:
        return [str(error)]


def differs(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """The first output that is not bit for bit the same."""
    for name, array in one.items():
        if array.shape != other[name].shape or not np.array_equal(array.view(np.uint8), other[name].view(np.uint8)):
            return f"{name} differs"
    return ""


def shadow_of(case: Case, kernel: ir.Kernel, clean: Mapping[str, Any], orders: Iterable[Schedule]) -> tuple[str, str]:
    """What the simulator meets first, and how outputs differ, under several schedules; it stops where it meets something."""
    changed = ""
    for schedule in orders:
        try:
            changed = changed or differs(outputs(case, kernel, schedule), clean)
        except (SimulationError, FireironError) as error:
            return str(error), changed
    return "", changed


def found(case: Case, kernel: ir.Kernel, clean: Mapping[str, Any], orders: Sequence[Schedule]) -> Found:
    """What all detectors say of a kernel with a fault."""
    try:
        ir.verify(kernel, final=True)
    except VerificationError as error:
        return Found(verifier=str(error))
    static = errors(kernel)
    shadow, values = shadow_of(case, kernel, clean, orders)
    return Found("", static[0] if static else "", shadow, values)
