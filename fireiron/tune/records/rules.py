"""Compare records: whether they are of the same measurement, their order, and their distance from a requested spec."""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Mapping
from typing import Any, Final

from fireiron.specs.formula import Definition
from fireiron.specs.fused_definition import FusedDefinition
from fireiron.tune.record import Record, definition_of
from fireiron.values.machine import DEFAULT_ARCHITECTURE, Architecture, as_architecture

FARTHEST: Final = 6.0
"""Largest distance of a neighbor: a factor of 4 in each of M, N and of 16 in K."""


REDUCED: Final = 0.5
"""Weight of a factor of two in a reduced dimension, such as K: it changes the work of a block, not the number of blocks."""


OTHER_CAPABILITY: Final = 1.0
"""Distance of another compute capability with the same major number (an sm_86 record for sm_89)."""


def same_measurement(record: Record) -> str:
    names = ("strategy", "strategy_hash", "values", "spec", "architecture", "gpu", "regime", "l2")
    return json.dumps([getattr(record, name) for name in names], sort_keys=True)


def recency(record: Record) -> tuple[Any, ...]:
    return record.date, _version(record.toolchain), -record.us, record.line()


def _version(text: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"[0-9]{1,9}", text)))


def preference(record: Record, gpu: str | None = None) -> tuple[Any, ...]:
    """Return a sort key: the preferred GPU first, then times after a pause on rotated buffers, then the fastest."""
    return gpu is not None and record.gpu != gpu, record.regime != "burst", record.l2 != "rotated", record.us, record.line()


def place(record: Record) -> tuple[Any, ...]:
    """Return the sort key of a record in a file: its problem, with sizes by value, then the fastest first."""
    described = {name: part for name, part in record.spec.items() if name != "sizes"}
    sizes = [(isinstance(size, str), size) for size in record.shape]
    return json.dumps(described, sort_keys=True), sizes, record.architecture, record.gpu, *preference(record)


def distance_to(record: Record, requested: Mapping[str, Any], target: Architecture) -> float | None:
    """Return the distance of a record from a requested spec; None if the record does not apply.

    The product of parallel sizes, such as batch and heads of attention, counts once: it determines the number of blocks.
    """
    capability = capability_of(record.architecture)
    is_comparable = record.spec["kind"] == requested["kind"] and capability // 10 == target.capability // 10
    if not is_comparable or _invariant(record.spec) != _invariant(requested):
        return None
    total = 0.0 if capability == target.capability else OTHER_CAPABILITY
    if set(requested["sizes"]) != set(record.spec["sizes"]):  # of another rank
        return None
    definition = definition_of(requested)
    results, whole, parallel_factor = {dim.upper() for dim in definition.tile_dims}, _whole(definition), 0.0
    parallel = {dim.upper() for dim in definition.batch} if isinstance(definition, FusedDefinition) else set()
    for name, size in requested["sizes"].items():
        other = record.spec["sizes"][name]
        if isinstance(size, str) or isinstance(other, str) or (name in whole and size != other):
            return None
        factor = math.log2(size / other)
        if name in parallel:
            parallel_factor += factor
        else:
            total += (1.0 if name in results else REDUCED) * abs(factor)
    return total + abs(parallel_factor)


def _whole(definition: Definition) -> set[str]:
    """Return the sizes of a fused definition that one step covers completely; a record applies only if these are equal."""
    if not isinstance(definition, FusedDefinition):
        return set()
    return {dim.upper() for step in definition.steps for dim in step.formula.over if dim not in definition.over}


def _invariant(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that must be equal for neighbors: all except sizes, leading dimensions and alignments."""
    return {name: part for name, part in spec.items() if name not in ("sizes", "leading", "align", "symbols")}


@functools.cache
def capability_of(name: str) -> int:
    return int(re.sub(r"\D", "", name))


def target_of(architecture: Any) -> Architecture:
    return as_architecture(DEFAULT_ARCHITECTURE if architecture is None else architecture)
