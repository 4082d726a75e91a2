"""Lane maps of a warpgroup: the elements of accumulators, and of an A operand in registers, that each thread owns.

PTX ISA, "Register Fragments for wgmma".
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

from fireiron.ir.lanes import LaneMap

ROWS = 64
"""Rows of an accumulator."""


@functools.lru_cache(maxsize=256)
def accumulator_map(columns: int, swapped: bool) -> LaneMap:
    """Return the owner of each element of 64 x n in a warpgroup (PTX ISA, "Register Fragments for wgmma", D)."""
    m, n = (1, 0) if swapped else (0, 1)
    tile = (columns, ROWS) if swapped else (ROWS, columns)
    return LaneMap.along(tile, ((4, n, 2), (8, m, 1), (4, m, 16)), ((2, n, 1), (2, m, 8), (columns // 8, n, 8)))


@functools.cache
def a_operand_map(element: int, swapped: bool) -> LaneMap:
    """Return the owner of each element of 64 rows by 32 bytes in a warpgroup (PTX ISA, "Register Fragments for wgmma", A)."""
    m, k = (1, 0) if swapped else (0, 1)
    per_register = 4 // element
    tile = (8 * per_register, ROWS) if swapped else (ROWS, 8 * per_register)
    return LaneMap.along(tile, ((4, k, per_register), (8, m, 1), (4, m, 16)), ((per_register, k, 1), (2, m, 8), (2, k, 4 * per_register)))


def wrong_sizes(legal: Mapping[str, tuple[str, bool]], sizes: Mapping[str, int]) -> tuple[str, str]:
    """Return what is required of the sizes that are not legal, and these sizes. `legal` has the requirement, and whether it is met."""
    wrong = [name for name, (_, is_met) in legal.items() if not is_met]
    return "; ".join(f"{name} {legal[name][0]}" for name in wrong), ", ".join(f"{name} {sizes[name]}" for name in wrong)
