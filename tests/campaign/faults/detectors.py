"""Detectors of faults: the verifier, the static checks, shadow memory under several schedules, and changed outputs."""

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
    """Loads complete as soon as they are issued."""

    getrandbits = random.Random.getrandbits  # numbers below a limit are made of bits, and not of `random`

    def random(self) -> float:
        return 0.0


class Slow(random.Random):
    """Loads complete when no warp can continue without them."""

    getrandbits = random.Random.getrandbits

    def random(self) -> float:
        return 1.0


class Greedy(Slow):
    """The last active warp continues as long as it can: the others lag as far as possible."""

    def randrange(self, *arguments: int) -> int:  # type: ignore[override]
        return range(*arguments)[-1]


def schedules(seed: int, most: int) -> Iterator[Schedule]:
    """All threads in lockstep; fast and slow loads; warps that run ahead; then warps and loads in random orders."""
    yield None
    for number in range(most - 1):
        yield (Slow, Greedy, random.Random, Fast)[min(number % 5, 3) if number < 4 else 2](seed * 1000 + number)


@attrs.frozen
class Found:
    """The reports of each detector for a kernel: the first message, or nothing."""

    verifier: str = ""
    static: str = ""
    shadow: str = ""
    values: str = ""

    @property
    def who(self) -> tuple[str, ...]:
        """The names of the detectors that reported."""
        return tuple(name for name in ("verifier", "static", "shadow", "values") if getattr(self, name))

    @property
    def by_both(self) -> bool:
        """Whether both race detectors reported, or the verifier refuses the kernel."""
        return bool(self.verifier or (self.static and (self.shadow or self.values)))


def outputs(case: Case, kernel: ir.Kernel, schedule: Schedule) -> Mapping[str, Any]:
    """The outputs of a kernel."""
    return simulate(kernel, case.arrays, case.symbols, order=schedule).outputs


def errors(kernel: ir.Kernel) -> list[str]:
    """The errors of the static checks."""
    try:
        return [one.message for one in check(kernel) if one.severity == "error"]
    except FireironError as error:
        return [str(error)]


def differs(expected: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """The first output that is not equal bit for bit."""
    for name, array in expected.items():
        if array.shape != other[name].shape or not np.array_equal(array.view(np.uint8), other[name].view(np.uint8)):
            return f"{name} differs"
    return ""


def shadow_of(case: Case, kernel: ir.Kernel, clean: Mapping[str, Any], orders: Iterable[Schedule]) -> tuple[str, str]:
    """The first report of the simulator, and the difference of outputs, under several schedules; it stops at the first report."""
    changed = ""
    for schedule in orders:
        try:
            changed = changed or differs(outputs(case, kernel, schedule), clean)
        except (SimulationError, FireironError) as error:
            return str(error), changed
    return "", changed


def found(case: Case, kernel: ir.Kernel, clean: Mapping[str, Any], orders: Sequence[Schedule]) -> Found:
    """The reports of all detectors for a kernel with a fault."""
    try:
        ir.verify(kernel, final=True)
    except VerificationError as error:
        return Found(verifier=str(error))
    static = errors(kernel)
    shadow, values = shadow_of(case, kernel, clean, orders)
    return Found("", static[0] if static else "", shadow, values)
