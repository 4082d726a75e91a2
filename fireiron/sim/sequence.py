"""Simulate launches in order, on the same arrays: a launch may read only what the caller or an earlier launch wrote, element by element."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import numpy as np

from fireiron.errors import SimulationError
from fireiron.ir import Kernel
from fireiron.sim.launch import simulate
from fireiron.sim.plan import Array


class SimulatedLaunch(Protocol):
    """A launch: its final kernel, and the array of each operand."""

    @property
    def kernel(self) -> Kernel:
        """The final kernel IR."""

    @property
    def arrays(self) -> Mapping[str, str]:
        """The array name of each operand of the kernel."""


def simulate_launches(
    launches: Iterable[SimulatedLaunch],
    arrays: Mapping[str, Array],
    symbols: Mapping[str, int] = {},
    *,
    outputs: Sequence[str],
    order: random.Random | None = None,
) -> dict[str, Array]:
    """Simulate launches in order, each as by `simulate`, and return the outputs.

    `arrays` are those of the caller, by name. Other arrays start as poison. Raises `SimulationError` if a launch reads an element that no
    earlier launch wrote, or if no launch writes an element of an output.
    """
    arrays_, written = dict(arrays), dict[str, Array]()
    for launch in launches:
        kernel = launch.kernel
        named = {name: array for name, array in launch.arrays.items() if kernel.buffer(name).memory.of_grid}
        for name, array in named.items():
            if array not in arrays_ and not kernel.buffer(name).written:
                raise SimulationError(f"{kernel.name} reads {array}, which no earlier launch wrote", within=kernel.spec)
        given = {name: arrays_[array] for name, array in named.items() if array in arrays_}
        known = {name: written[array] for name, array in named.items() if array in written}
        result = simulate(kernel, given, symbols_of_kernel(kernel, symbols), order=order, known=known)
        for name, values in result.outputs.items():
            array = named[name]
            if array not in arrays:
                written[array] = result.written[name] | written.get(array, False)
            arrays_[array] = values
    for name in outputs:
        _require_whole(name, arrays_, written)
    return {name: arrays_[name] for name in outputs}


def symbols_of_kernel(kernel: Kernel, symbols: Mapping[str, int]) -> Mapping[str, int]:
    """The sizes that are symbols of a kernel."""
    known = {symbol.name for symbol in kernel.symbols}
    return {name: value for name, value in symbols.items() if name in known}


def _require_whole(name: str, arrays_: Mapping[str, Array], written: Mapping[str, Array]) -> None:
    """Raise if no launch writes some element of an output."""
    if name not in arrays_:
        raise SimulationError(f"no launch writes {name}")
    if name in written and not written[name].all():
        at = ", ".join(map(str, np.argwhere(~written[name])[0]))
        raise SimulationError(f"no launch writes {name}[{at}]")


__all__ = ["SimulatedLaunch", "simulate_launches", "symbols_of_kernel"]
