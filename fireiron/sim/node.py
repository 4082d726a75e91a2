"""Simulate the launches of a program on all GPUs of a node, each with separate memory."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from fireiron.errors import SimulationError
from fireiron.sim.exchange import LAUNCHES, simulate_exchange
from fireiron.sim.launch import simulate
from fireiron.sim.plan import Array
from fireiron.sim.sequence import SimulatedLaunch, symbols_of_kernel
from fireiron.spec import Spec
from fireiron.values.distribution import Portion


def parts_of(spec: Spec, name: str, array: Array) -> list[Array]:
    """Return the part of an operand's array that each GPU stores; the complete array for each GPU if it is not distributed."""
    gpus, dim = spec.level.gpus or 1, spec.operands[name].tensor.distributed_over
    if dim is None:
        return [array] * gpus
    return np.split(np.asarray(array), gpus, axis=spec.kind.array_dims(spec.definition, name).index(dim))


def joined(spec: Spec, name: str, parts: Sequence[Array]) -> Array:
    """Return the array of an operand from the parts of all GPUs. Raises: SimulationError if GPUs store different complete arrays."""
    dim = spec.operands[name].tensor.distributed_over
    if dim is not None:
        return np.concatenate(parts, axis=spec.uses[name].index(dim))
    for gpu, part in enumerate(parts):
        if not np.array_equal(part, parts[0], equal_nan=part.dtype.kind == "f"):
            at = ", ".join(map(str, np.argwhere(part != parts[0])[0]))
            raise SimulationError(f"{name}[{at}] of GPU {gpu} differs from that of GPU 0", within=spec)
    return parts[0]


def portion_of(arrays: Sequence[Array], portion: Portion | None, gpu: int) -> Array:
    """Return the array that a launch on a GPU accesses; `arrays` are those of all GPUs."""
    if portion is None:
        return arrays[gpu]
    if portion.divided is not None:
        return np.stack(np.split(arrays[gpu], len(arrays), axis=portion.divided))
    accessed = list(arrays) if portion.gpu_axis is not None else [arrays[gpu]]
    if portion.own_along is not None:
        accessed = [np.split(one, len(arrays), axis=portion.own_along)[gpu] for one in accessed]
    if portion.gpu_axis is None:
        return accessed[0]
    return (np.concatenate if portion.joined else np.stack)(accessed, axis=portion.gpu_axis)


def _whole(array: Array, portion: Portion | None) -> Array:
    """Return the array of a GPU from what a launch wrote."""
    return array if portion is None or portion.divided is None else np.concatenate(list(array), axis=portion.divided)


def simulate_node(
    spec: Spec,
    launches: Iterable[SimulatedLaunch],
    arrays: Mapping[str, Array],
    symbols: Mapping[str, int] = {},
    *,
    order: random.Random | None = None,
    launches_in_a_row: int = LAUNCHES,
) -> dict[str, Array]:
    """Simulate each launch on all GPUs, in order, each as by `simulate`, and return the outputs as whole arrays.

    `arrays` are the whole arrays of the caller, by name. All GPUs finish a launch before the next one. A launch in which GPUs exchange sums
    runs on all of them at once, `launches_in_a_row` times, with other inputs before the last one. Raises: SimulationError if a launch
    reads an element that no earlier launch wrote, or if GPUs that store the same result have different values.
    """
    gpus = spec.level.gpus or 1
    stored = {name: parts_of(spec, name, array) for name, array in arrays.items()}
    known: dict[str, list[Array]] = {}
    for launch in launches:
        kernel = launch.kernel
        if kernel.exchanges:
            inputs = [
                {name: parts[gpu] for name, array in launch.arrays.items() if (parts := stored.get(array)) and array not in spec.outputs}
                for gpu in range(gpus)
            ]
            exchanged = simulate_exchange(kernel, inputs, symbols_of_kernel(kernel, symbols), order, launches_in_a_row)
            for name in exchanged.outputs[0]:
                stored[launch.arrays[name]] = [outputs_[name] for outputs_ in exchanged.outputs]
                known[launch.arrays[name]] = [written[name] for written in exchanged.written]
            continue
        portions = {name: kernel.buffer(name).tensor.array.portion for name in launch.arrays if kernel.buffer(name).memory.of_grid}
        outputs: dict[str, list[Array]] = {}
        valid_outputs: dict[str, list[Array]] = {}
        for gpu in range(gpus):
            given, valid = {}, {}
            for name, portion in portions.items():
                array = launch.arrays[name]
                if array in stored:
                    given[name] = portion_of(stored[array], portion, gpu)
                if array in known:
                    valid[name] = portion_of(known[array], portion, gpu)
            result = simulate(kernel, given, symbols_of_kernel(kernel, symbols), order=order, known=valid)
            for name, values in result.outputs.items():
                outputs.setdefault(launch.arrays[name], []).append(_whole(values, portions[name]))
                valid_outputs.setdefault(launch.arrays[name], []).append(_whole(result.written[name], portions[name]))
        stored |= outputs
        known |= valid_outputs
    for name in spec.outputs:
        for gpu, written in enumerate(known[name]):
            if not written.all():
                at = ", ".join(map(str, np.argwhere(~written)[0]))
                raise SimulationError(f"no launch on GPU {gpu} writes {name}[{at}] of its part", within=spec)
    return {name: joined(spec, name, stored[name]) for name in spec.outputs}


__all__ = ["joined", "parts_of", "portion_of", "simulate_node"]
