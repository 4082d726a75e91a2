"""Launches in order, on the same arrays: what one reads, an earlier one or the caller wrote, element by element."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import numpy as np

from fireiron.errors import SimulationError
from fireiron.ir import Kernel
from fireiron.sim.launch import simulate
from fireiron.sim.plan import Array


class Launched(Protocol):
    """A launch: its final kernel, and which array each operand is."""

    @property
    def kernel(self) -> Kernel:
        """The final kernel IR."""

    @property
    def arrays(self) -> Mapping[str, str]:
        """By operand of the kernel, the name of the array."""


def simulate_launches(
    launches: Iterable[Launched],
    arrays: Mapping[str, Array],
    symbols: Mapping[str, int] = {},
    *,
    outputs: Sequence[str],
    order: random.Random | None = None,
) -> dict[str, Array]:
    """The outputs after all launches, each simulated as by `simulate`.

    `arrays` are those of the caller, by name. Others begin as poison: a launch that reads an element that no launch before it wrote is
    refused, and so is an element of an output that none writes.

    Raises: a `SimulationError`.
    """
    held, written = dict(arrays), dict[str, Array]()
    for launch in launches:
        kernel = launch.kernel
        named = {name: array for name, array in launch.arrays.items() if kernel.buffer(name).memory.of_grid}
        for name, array in named.items():
            if array not in held and not kernel.buffer(name).written:
                raise SimulationError(f"{kernel.name} reads {array}, which no launch before it wrote", within=kernel.spec)
        given = {name: held[array] for name, array in named.items() if array in held}
        known = {name: written[array] for name, array in named.items() if array in written}
        result = simulate(kernel, given, _own(kernel, symbols), order=order, known=known)
        for name, values in result.outputs.items():
            array = named[name]
            if array not in arrays:
                written[array] = result.written[name] | written.get(array, False)
            held[array] = values
    for name in outputs:
        _require_whole(name, held, written)
    return {name: held[name] for name in outputs}


def _own(kernel: Kernel, symbols: Mapping[str, int]) -> Mapping[str, int]:
    """The sizes that a kernel knows."""
    known = {symbol.name for symbol in kernel.symbols}
    return {name: value for name, value in symbols.items() if name in known}


def _require_whole(name: str, held: Mapping[str, Array], written: Mapping[str, Array]) -> None:
    """Refuse an output of which no launch writes an element."""
    if name not in held:
        raise SimulationError(f"no launch writes {name}")
    if name in written and not written[name].all():
        at = ", ".join(map(str, np.argwhere(~written[name])[0]))
        raise SimulationError(f"no launch writes {name}[{at}]")


__all__ = ["Launched", "simulate_launches"]
