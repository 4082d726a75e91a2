"""How long a product of matrices takes on Hopper by tiles of a size: the estimate by which a tile is chosen where none is measured.

Blocks come in waves, one tile to a multiprocessor. A tile takes the time of its products or of its copies into shared memory, whichever is
longer; the kernel no less than the memory needs for A, B and C. Each wave begins with copies that nothing hides, and ends with a tile that
is stored. That the last wave costs as much as a full one is what decides between tiles.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import attrs

from fireiron.ir.cluster import MULTIPROCESSORS


@attrs.frozen
class Work:
    """A product: `stack` matrices of `rows` x `columns`, sums of `depth` products of elements of `bytes` bytes; C has `result_bytes`."""

    rows: int
    columns: int
    depth: int
    bytes: int = 2
    result_bytes: int = 2
    stack: int = 1

    @property
    def least_bytes(self) -> int:
        """A, B and C, each once."""
        read = (self.rows + self.columns) * self.depth * self.bytes
        return self.stack * (read + self.rows * self.columns * self.result_bytes)

    def tiles(self, bm: int, bn: int) -> int:
        """Tiles of the result."""
        return self.stack * -(-self.rows // bm) * -(-self.columns // bn)


@attrs.frozen
class Figures:
    """What the estimate divides by.

    Microseconds: `launch` of a kernel, `wave` of each wave, before its first product and behind its last one, `latency` of the memory.
    Clocks: `stored`, to store an element of a tile. Bytes: `copied` into shared memory in a clock, `memory` in a microsecond. `clock` is
    in MHz, `products` are bytes of two factors that a multiprocessor multiplies in a clock. Times of two things that are done at once are
    added with the exponents `blocked`, for products and copies of a block, and `limited`, for blocks and memory.
    """

    launch: float = 1.08
    wave: float = 1.2
    stored: float = 0.0356
    copied: float = 80.0
    memory: float = 4.51e6
    latency: float = 0.07
    blocked: float = 1.53
    limited: float = 2.4
    clock: float = 1980.0
    products: float = 4096.0


H200: Final = Figures()
"""Fitted to 273 times on an H200 (perf/results/2026-11-22-h200-hopper), of bfloat16, tf32 and 8-bit floats too: 4.3 % off on average."""

SHARED_BYTES: Final = 227 * 1024
MOST_BLOCKS: Final = 16
"""Blocks that a multiprocessor holds at once, at most, in this estimate."""


def estimated_us(work: Work, values: Mapping[str, int], figures: Figures = H200) -> float:
    """Microseconds of a kernel with a tile of `bm` x `bn`, `stages` of `bk` in shared memory.

    >>> round(estimated_us(Work(4096, 4096, 4096), {"bm": 128, "bn": 256, "bk": 64, "stages": 4}))
    178
    """
    bm, bn = values["bm"], values["bn"]
    tiles = work.tiles(bm, bn)
    at_once = MULTIPROCESSORS * _blocks(work, values, tiles)
    waves = -(-tiles // at_once)
    multiplied = bm * bn * work.bytes / figures.products
    copied = (bm + bn) * work.bytes / figures.copied
    clocks = -(-tiles // MULTIPROCESSORS) * work.depth * _added(multiplied, copied, figures.blocked)
    under_way = min(tiles, at_once) * min(_ring(values), work.depth) * (bm + bn) * work.bytes
    from_memory = work.least_bytes / min(figures.memory, under_way / figures.latency)
    edges = waves * (figures.wave + bm * bn * figures.stored / figures.clock)
    return figures.launch + edges + _added(clocks / figures.clock, from_memory, figures.limited)


def _added(one: float, other: float, exponent: float) -> float:
    """What two things take that are done at once: the longer one, and somewhat more where they are alike."""
    return float((one**exponent + other**exponent) ** (1 / exponent))


def _ring(values: Mapping[str, int]) -> int:
    """Steps along k that the stages hold."""
    return values.get("stages", 4) * values.get("bk", 64)


def _blocks(work: Work, values: Mapping[str, int], tiles: int) -> int:
    """Blocks of one multiprocessor at a time: one where blocks stay, else as many as shared memory and the tiles give."""
    if values.get("blocks", tiles) < tiles:
        return 1
    bm, bn = values["bm"], values["bn"]
    groups = (bm // values.get("wm", bm)) * (bn // values.get("wn", bn))
    staged = groups * values.get("rows", 64) * values.get("chunk", 64) * work.result_bytes
    shared = _ring(values) * (bm + bn) * work.bytes + staged + 1024
    return max(1, min(SHARED_BYTES // shared, tiles // MULTIPROCESSORS, MOST_BLOCKS))
