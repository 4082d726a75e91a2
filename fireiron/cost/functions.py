"""Instructions of functions of elements, which the model of a kernel does not count (docs/decisions/0161-functions-in-the-backend.md)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Final

from fireiron.cost.gpus import Gpu
from fireiron.specs.formula import Number, Operation, Value
from fireiron.specs.fused_definition import FusedDefinition

INSTRUCTIONS: Final[Mapping[str, float]] = {
    "exp": 8.5, "exp2": 4, "log": 26, "log1p": 30, "log2": 28, "tanh": 15.5, "erf": 22, "gelu": 26, "sigmoid": 22, "silu": 23, "rsqrt": 4,
    "sqrt": 12, "/": 12, "sin": 25, "cos": 25,
}  # fmt: skip
"""Instructions of a function for one float32 element: those of NVRTC 13 for sm_90a, without the paths for rare
arguments. Other functions have one."""

CACHED: Final = 45_000.0
"""Bytes of code without a loop from which an SM waits for instructions: the caches near its schedulers have this size or more. Epilogues of
8.4 million results, 128 per thread, took 0, 11, 38 and 217 us for 32, 37, 62 and about 140 instructions per result (2026-11-30, H200);
`delay_us` has 4, 7, 32 and 215 us."""

INSTRUCTION_BYTES: Final = 16
"""Bytes of an instruction, from Volta on."""


def instructions_of(value: Value | None) -> float:
    """Return the instructions that compute a value from its elements. Equal parts count once; a sum with a product is a multiply-add."""
    return sum(map(_instructions, set(_operations(value))))


def _operations(value: Value | None) -> Iterator[Operation]:
    """Yield the operations of a value that have operands other than numbers."""
    if isinstance(value, Operation) and not all(isinstance(one, Number) for one in value.arguments):
        yield value
        for argument in value.arguments:
            yield from _operations(argument)


def _instructions(operation: Operation) -> float:
    is_fused = operation.name in ("+", "-") and any(isinstance(one, Operation) and one.name == "*" for one in operation.arguments)
    return 0.0 if is_fused else INSTRUCTIONS.get(operation.name, 1.0)


def instructions(definition: FusedDefinition, sizes: Mapping[str, int]) -> float:
    """Return the instructions of the functions of all steps, without contractions, for all elements."""
    formulas = [step.formula for step in definition.steps if not step.formula.contracts]
    return sum(instructions_of(one.value) * math.prod(sizes[dim] for dim in (*one.target.dims, *one.over)) for one in formulas)


def instructions_us(count: float, gpu: Gpu) -> float:
    """Return the microseconds of instructions that all SMs execute at their full rate."""
    return count / (gpu.multiprocessors * gpu.lanes * gpu.clock)


def delay_us(count: float, results: int, per_thread: int, gpu: Gpu) -> float:
    """Return the microseconds that an epilogue takes longer because its code exceeds the caches of instructions.

    Args:
        count: the instructions for all results.
        results: the number of results.
        per_thread: the results that a thread computes without a loop.
        gpu: the GPU.
    """
    code = count / results * per_thread * INSTRUCTION_BYTES
    return instructions_us(count, gpu) * max(code / CACHED - 1, 0.0)


__all__ = ["CACHED", "INSTRUCTIONS", "delay_us", "instructions", "instructions_of", "instructions_us"]
