"""Which records measure the same thing, which is the better one, and how far one is from what is asked for."""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Mapping
from typing import Any, Final

from fireiron.specs.formula import Definition
from fireiron.specs.fused import FusedDefinition
from fireiron.tune.record import Record, definition_of
from fireiron.values.machine import DEFAULT_ARCHITECTURE, Architecture, as_architecture

FARTHEST: Final = 6.0
"""Largest distance of a neighbor: a factor of 4 in each of M, N and of 16 in K."""


REDUCED: Final = 0.5
"""Weight of a factor of two in a reduced dimension, such as K: it changes the work of a block, not the number of blocks."""


OTHER_CAPABILITY: Final = 1.0
"""Weight of another compute capability with the same major number (an sm_86 record for sm_89)."""


def same_measurement(record: Record) -> str:
    names = ("strategy", "strategy_hash", "values", "spec", "architecture", "gpu", "regime", "l2")
    return json.dumps([getattr(record, name) for name in names], sort_keys=True)


def recency(record: Record) -> tuple[Any, ...]:
    return record.date, _version(record.toolchain), -record.us, record.line()


def _version(text: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"[0-9]{1,9}", text)))


def preference(record: Record, gpu: str | None = None) -> tuple[Any, ...]:
    """The asked GPU first, then times after a pause on rotated buffers, then the fastest."""
    return gpu is not None and record.gpu != gpu, record.regime != "burst", record.l2 != "rotated", record.us, record.line()


def place(record: Record) -> tuple[Any, ...]:
    """Where a record stands in a file: what it is for, sizes by their value, then the fastest."""
    described = {name: part for name, part in record.spec.items() if name != "sizes"}
    sizes = [(isinstance(size, str), size) for size in record.shape]
    return json.dumps(described, sort_keys=True), sizes, record.architecture, record.gpu, *preference(record)


def distance_to(record: Record, asked: Mapping[str, Any], target: Architecture) -> float | None:
    """How far a record is from what is asked for; None where it cannot answer.

    What a definition does in parallel, such as heads of attention, counts by its product: so many blocks there are.
    """
    capability = capability_of(record.architecture)
    is_alike = record.spec["kind"] == asked["kind"] and capability // 10 == target.capability // 10
    if not is_alike or _kept(record.spec) != _kept(asked):
        return None
    total = 0.0 if capability == target.capability else OTHER_CAPABILITY
    if set(asked["sizes"]) != set(record.spec["sizes"]):  # of another rank
        return None
    definition = definition_of(asked)
    results, whole, stacks = {dim.upper() for dim in definition.tile_dims}, _whole(definition), 0.0
    parallel = {dim.upper() for dim in definition.batch} if isinstance(definition, FusedDefinition) else set()
    for name, size in asked["sizes"].items():
        other = record.spec["sizes"][name]
        if isinstance(size, str) or isinstance(other, str) or (name in whole and size != other):
            return None
        factor = math.log2(size / other)
        if name in parallel:
            stacks += factor
        else:
            total += (1.0 if name in results else REDUCED) * abs(factor)
    return total + abs(stacks)


def _whole(definition: Definition) -> set[str]:
    """The sizes of a definition of several steps that a step takes whole: values for other rows, or other heads, say nothing of these."""
    if not isinstance(definition, FusedDefinition):
        return set()
    return {dim.upper() for step in definition.steps for dim in step.formula.over if dim not in definition.over}


def _kept(spec: Mapping[str, Any]) -> dict[str, Any]:
    """What a neighbor has in common: all but sizes, leading dimensions and alignments."""
    return {name: part for name, part in spec.items() if name not in ("sizes", "leading", "align", "symbols")}


@functools.cache
def capability_of(name: str) -> int:
    return int(re.sub(r"\D", "", name))


def target_of(architecture: Any) -> Architecture:
    return as_architecture(DEFAULT_ARCHITECTURE if architecture is None else architecture)
