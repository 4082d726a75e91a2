"""Split-K for matmuls with few tiles and large K: the number of parts, and the expected time.

If C is small, one block per tile leaves most SMs idle, and each block loops over all of K. So K is split: the parts form a batched GEMM
with float32 results, which a second kernel sums (`strategies/add_parts.py`); it starts by programmatic launch while the first one ends.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Final

from fireiron.errors import FireironError
from fireiron.ir.cluster import SM_COUNT
from fireiron.language.library import LIBRARY
from fireiron.spec import Spec
from fireiron.tune.record import Record
from fireiron.tune.records.choosing import Question
from fireiron.tune.records.tiles import candidates
from fireiron.values.expr import constant
from fireiron.values.machine import WARPGROUP_ARCHITECTURE, bfloat16, float8_e4m3, float8_e5m2, float16, tf32

TYPES: Final = (float16, bfloat16, tf32, float8_e4m3, float8_e5m2)
"""Element types with a float32 accumulator."""

GRANULE: Final = 16
"""Alignment in bytes of parts of a row, as TMA requires."""

LEAST: Final = 256
"""Minimum elements of K per part."""

MOST: Final = 64
"""Maximum number of parts."""

TRIED: Final = 4
"""Maximum number of candidates for the number of parts."""

TILES: Final = (64, 128)
"""Rows and columns of the tiles that determine how many parts fill the GPU."""

ADD_US: Final = 1.3
"""Minimum microseconds that the second kernel adds to a call."""

BLOCK_US: Final = 1.15e-3
"""Microseconds that each block of the second kernel adds: fitted to 42 split-K matmuls (perf/results/2026-11-30-h200-choice)."""

ADD_BYTES_PER_US: Final = 5.0e6
"""Bytes of partial results that the second kernel reads from L2 per microsecond."""


def numbers(rows: int, columns: int, depth: int, bytes: int) -> list[int]:
    """Return candidates for the number of parts, those first that fill the GPU about once; empty if C has many tiles or K is short."""
    tiles = next((count for size in TILES if 2 * (count := -(-rows // size) * -(-columns // size)) <= SM_COUNT), None)
    if tiles is None:
        return []
    legal = [
        parts for parts in range(2, MOST + 1) if depth % parts == 0 and depth // parts >= LEAST and depth // parts * bytes % GRANULE == 0
    ]
    return sorted(legal, key=lambda parts: abs(parts * tiles / SM_COUNT - 1))[:TRIED]


def numbers_for(spec: Spec, question: Question) -> list[int]:
    """Return the candidates of `numbers` for a matmul spec; an empty list for other specs and other targets."""
    sizes = [constant(spec.size(dim)) for dim in "mnk"] if set(spec.dims) == set("mnk") else [None]
    dtype = spec.operands["A"].dtype
    if None in sizes or dtype not in TYPES or question.target.name != WARPGROUP_ARCHITECTURE:
        return []
    rows, columns, depth = (size or 0 for size in sizes)
    return numbers(rows, columns, depth, dtype.bytes)


def adding_us(rows: int, columns: int, parts: int) -> float:
    """Return the expected microseconds of the sum over parts."""
    _, blocks = importlib.import_module(f"{LIBRARY}.add_parts").blocks(rows, columns)
    return float(ADD_US + max(blocks * BLOCK_US, 4 * rows * columns * parts / ADD_BYTES_PER_US))


def expected(records: Sequence[Record], question: Question) -> float | None:
    """Return the expected microseconds of the preferred tile; None without an applicable record."""
    try:
        ranked = candidates(records, question)
    except FireironError:
        return None
    return ranked[0].us if ranked else None


__all__ = ["adding_us", "expected", "numbers", "numbers_for"]
