"""Split-K for matmuls with few tiles and large K: the number of parts, and the expected time.

If C is small, one block per tile leaves most SMs idle, and each block loops over all of K. So K is split: the parts form a batched GEMM
with float32 results, which a second kernel sums (`strategies/add_parts.py`); it starts by programmatic launch while the first one ends.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Sequence
from typing import Final

from fireiron.errors import FireironError
from fireiron.frozen import evolve
from fireiron.ir.cluster import SM_COUNT
from fireiron.language.library import LIBRARY, work_of
from fireiron.language.waves import Work, estimated_us
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

STEP: Final = 256
"""Parts that do not divide K equally are multiples of this many bytes, so that all steps of a tile along K are complete."""

TRIED: Final = 3
"""Maximum number of candidates for the number of parts."""

TILES: Final = ((64, 64), (128, 128), (128, 256))
"""Tiles whose number determines numbers of parts."""

HOPELESS: Final = 1.2
"""Numbers of parts whose estimate is this factor of the one for complete K, by few tiles and without records, are not compared."""

MOST_TILES: Final = 96
"""Maximum number of tiles. More tiles occupy most SMs without parts."""

ADD_US: Final = 1.4
"""Minimum microseconds that the second kernel adds to a call."""

BLOCK_US: Final = 1.2e-3
"""Microseconds that each block of the second kernel adds, which starts while the first kernel ends: fitted to 61 split-K kernels
(perf/results/2026-12-01-h200-choice-5)."""

LATER_BLOCK_US: Final = 1.6e-3
"""The same for each block that does not run at once with the first ones."""

ADD_BYTES_PER_US: Final = 4.0e7
"""Bytes of partial results by which the call takes a microsecond longer: they are in L2."""


def part_of(depth: int, parts: int, bytes: int) -> int:
    """Return the elements of K of each part but the last one, which may be shorter; 0 if K is too short for this number of parts.

    Parts are equal if TMA accepts this.

    >>> part_of(7984, 2, 2), part_of(7984, 5, 2), part_of(600, 4, 2)
    (3992, 1664, 0)
    """
    part = depth // parts
    if depth % parts or part * bytes % GRANULE:
        step = STEP // bytes
        part = -(-depth // (parts * step)) * step
    return part if depth >= 2 * LEAST and part >= LEAST and -(-depth // part) == parts else 0


def numbers(rows: int, columns: int, depth: int, bytes: int) -> list[int]:
    """Return numbers of parts that occupy a quarter of the GPU, half, all of it, or all of it twice with one of `TILES`.

    The result is empty if C has many tiles or K is short.
    """
    counts = [-(-rows // height) * -(-columns // width) for height, width in TILES]
    wanted = [waves * SM_COUNT / count for count in counts if count <= MOST_TILES for waves in (0.25, 0.5, 1, 2)]
    legal = [parts for parts in range(2, MOST + 1) if part_of(depth, parts, bytes)]
    nearest = [min(legal, key=lambda parts: abs(math.log(parts / number))) for number in wanted if legal and number >= 1.5]
    return list(dict.fromkeys(nearest))


def numbers_for(spec: Spec, question: Question) -> list[int]:
    """Return the candidates of `numbers` for a matmul spec, those with the least estimated time first; none for other specs and targets."""
    sizes = [constant(spec.size(dim)) for dim in "mnk"] if set(spec.dims) == set("mnk") else [None]
    dtype, work = spec.operands["A"].dtype, work_of(spec)
    if None in sizes or work is None or dtype not in TYPES or question.target.name != WARPGROUP_ARCHITECTURE:
        return []
    times = {parts: _estimated_us(work, parts) for parts in numbers(work.rows, work.columns, work.depth, work.bytes)}
    most = HOPELESS * _estimated_us(work, 1) if times else 0.0
    return sorted((parts for parts, us in times.items() if us < most), key=lambda parts: times[parts])[:TRIED]


def _estimated_us(work: Work, parts: int) -> float:
    """Return the estimated microseconds of the parts and of their sum, by few tiles and without records."""
    batch = work if parts == 1 else evolve(work, batch=parts, depth=part_of(work.depth, parts, work.bytes), result_bytes=4)
    tiles = importlib.import_module(f"{LIBRARY}.hopper_batched").defaults(work.rows, work.columns, batch.depth)
    return min(estimated_us(batch, values) for values in tiles) + (adding_us(work.rows, work.columns, parts) if parts > 1 else 0.0)


def adding_us(rows: int, columns: int, parts: int) -> float:
    """Return the expected microseconds of the sum over parts."""
    add_parts = importlib.import_module(f"{LIBRARY}.add_parts")
    blocks = add_parts.blocks(rows, columns)
    later = max(0, blocks - add_parts.BLOCKS)
    return float(ADD_US + (blocks - later) * BLOCK_US + later * LATER_BLOCK_US + 4 * rows * columns * parts / ADD_BYTES_PER_US)


def expected(records: Sequence[Record], question: Question) -> float | None:
    """Return the expected microseconds of the preferred tile; None without an applicable record."""
    try:
        ranked = candidates(records, question)
    except FireironError:
        return None
    return ranked[0].us if ranked else None


__all__ = ["adding_us", "expected", "numbers", "numbers_for", "part_of"]
