"""Execute printed texts in which GPUs exchange data on the CPU: each GPU has separate arrays, and all access the mapped workspaces.

The blocks of all GPUs run at once, in random order, and launches follow each other on each GPU, so that a GPU may be a launch ahead. TMA
stores to workspaces arrive as late as a wait for their arrival permits. Numbers that threads store arrive at once.
"""

from __future__ import annotations

import numpy as np
from printed_text import FRAME, POISON, HostProgram, Placed, map_words

from fireiron.ir import Buffer, TensorMap
from fireiron.ir.semaphore import MOST_SEMAPHORES, SEMAPHORE_BYTES
from fireiron.spec import with_strides
from fireiron.values.expr import Var, compiled

HEADER = MOST_SEMAPHORES * SEMAPHORE_BYTES
"""Bytes at the beginning of each workspace, before its rows; they are zero before the first launch."""


def run_exchange(host: HostProgram, number, inputs, symbols=None, seed=0):
    """The outputs of the last launch, by GPU. `inputs` has the arrays by name, of each GPU, of each launch."""
    kernel = host.printed[number].kernel
    exchange = kernel.workspace.exchange
    values = with_strides(kernel.spec, symbols or {})
    ranks = [{**values, exchange.rank.name: gpu} for gpu in range(exchange.gpus)]
    grid, launches = int(compiled(kernel.grid)(ranks[0])), len(inputs)
    registers = sum(buffer.bytes for buffer in kernel.buffers if buffer.memory.private)
    job = [f"kernel {number} grid {grid} threads {kernel.threads} cluster {grid * exchange.gpus} gpus {exchange.gpus} launches {launches}"]
    job += [f"shared {kernel.dynamic_shared_bytes} frame {(FRAME + 3 * registers) // 4096 * 4096} seed {seed}"]
    workspace = host.folder / "workspace.bin"
    _workspaces(kernel, ranks).tofile(workspace)
    job.append(f"array {workspace} {workspace.stat().st_size} {1 << 10}")
    lists, arrays, outputs = [], 1, []
    for launch, by_gpu in enumerate(inputs):
        for gpu, (given, own) in enumerate(zip(by_gpu, ranks, strict=True)):
            placed = {one.name: Placed(one, own, kernel) for one in kernel.buffers if one.parameter and not one.workspace}
            places = {}
            for name, parameter in placed.items():
                file = host.folder / f"{name}-{launch}-{gpu}.bin"
                parameter.filled(given.get(name)).tofile(file)
                job.append(f"array {file} {parameter.bytes} {parameter.buffer.tensor.align}")
                places[name], arrays = arrays, arrays + 1
            if launch == launches - 1:
                outputs.append({name: one for name, one in placed.items() if one.buffer.written})
            lists.append([_argument(kernel, parameter, places, own) for parameter in kernel.parameters])
    job += [line for place, arguments in enumerate(lists) for line in (["next"] if place else []) + arguments]
    host.launched(number, job)
    read = lambda name, gpu: np.fromfile(host.folder / f"{name}-{launches - 1}-{gpu}.bin", np.uint8)
    return [{name: one.result_of(read(name, gpu)) for name, one in of_gpu.items()} for gpu, of_gpu in enumerate(outputs)]


def _workspaces(kernel, ranks):
    """The workspaces of all GPUs at their distances: zeros for semaphores and numbers of launches, and poison."""
    size = int(compiled(kernel.workspace_bytes)(ranks[0]))
    memory = np.resize(POISON, size)
    for start in range(0, size, kernel.workspace.exchange.distance):
        memory[start : start + HEADER] = 0
    return memory


def _argument(kernel, parameter, places, values):
    """The line of a job for a parameter."""
    if isinstance(parameter, TensorMap):
        buffer = kernel.buffer(parameter.buffer)
        start = HEADER if buffer.workspace else 0
        return f"shift {start} map {places.get(parameter.buffer, 0)} {map_words(parameter, buffer, values)}"
    if isinstance(parameter, Var):
        return f"int {values[parameter.name]}"
    return f"pointer {places.get(parameter.name, 0) if isinstance(parameter, Buffer) else 0}"
