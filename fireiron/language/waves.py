"""How long a product of matrices takes on Hopper by tiles of a size: the estimate by which a tile is chosen where none is measured.

Blocks come in waves, one tile to a multiprocessor. A tile takes the time of its products, or of what passes shared memory, whichever is
longer; no less than its stages take to be filled again and again, each time after the memory's latency; the kernel no less than the memory
needs for A, B and C. Each wave begins with copies that nothing hides, and ends with a tile that is stored. That the last wave costs as much
as a full one is what decides between large tiles, latency between small ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import attrs

from fireiron.ir.cluster import MULTIPROCESSORS


@attrs.frozen
class Work:
    """A product: `stack` matrices of `rows` x `columns`, sums of `depth` products of elements of `bytes` bytes; C has `result_bytes`.

    `across` says of A and of B whether its rows (columns) are no multiples of a line of L2, so that most pieces of one lie across two.
    """

    rows: int
    columns: int
    depth: int
    bytes: int = 2
    result_bytes: int = 2
    stack: int = 1
    across: tuple[bool, bool] = (False, False)

    @property
    def least_bytes(self) -> int:
        """A, B and C, each once."""
        read = (self.rows + self.columns) * self.depth * self.bytes
        return self.stack * (read + self.rows * self.columns * self.result_bytes)

    def tiles(self, bm: int, bn: int) -> int:
        """Tiles of the result."""
        return self.stack * -(-self.rows // bm) * -(-self.columns // bn)


LINE_BYTES: Final = 128
"""Bytes of a line of L2."""

COPIED_BYTES: Final = 16
"""Bytes of which rows that TMA copies are multiples; others are copied first, to rows that begin where a line does."""


def across_lines(steps: Iterable[int], bytes: int, align: int) -> bool:
    """Whether most rows of a matrix, or columns where these are contiguous, begin inside a line of L2, as the kernel reads them.

    Args: `steps` are elements of `bytes` bytes of which the distances from row to row are multiples, in a stack also those from matrix to
        matrix; `align` are bytes of which the address is one. More is not known of the address: it counts as one where a line begins.

    >>> across_lines([520], bytes=2, align=16), across_lines([512], bytes=2, align=16)
    (True, False)
    """
    distances = [step * bytes for step in steps]
    copied_first = any(distance % COPIED_BYTES for distance in (align, *distances))
    return not copied_first and any(distance % LINE_BYTES for distance in distances)


@attrs.frozen
class Figures:
    """What the estimate divides by.

    Microseconds: `launch` of a kernel, `wave` of each wave, before its first product and behind its last one, `turn` of the stages of a
    block, from a copy that is asked for to the product that has read it. Clocks: `stored`, to store an element of a tile. Bytes: `copied`
    into shared memory and `read` by `wgmma` in a clock, `memory` in a microsecond. `outside`: what a byte counts that a tile reads beyond
    the edge of a matrix; `across`: what one counts that is copied in pieces that lie across two lines of L2. Times of two things that are
    done at once are added with the exponents `blocked`, for products and copies of a block, `turning`, for these and turns of stages, and
    `limited`, for blocks and memory. `clustered` is what the time is multiplied by where blocks wait for each other. `clock` is in MHz,
    `products` are bytes of two factors that a multiprocessor multiplies in a clock.
    """

    launch: float = 1.58
    wave: float = 0.717
    turn: float = 1.5
    stored: float = 0.063
    copied: float = 158.0
    read: float = 257.0
    memory: float = 4.25e6
    outside: float = 0.818
    across: float = 2.7
    clustered: float = 1.02
    blocked: float = 1.48
    turning: float = 6.74
    limited: float = 3.59
    clock: float = 1980.0
    products: float = 4096.0


H200: Final = Figures()
"""Fitted to 1022 times on an H200 (perf/results/2026-11-22-h200-hopper), of four types and storage orders: 3.6 % off on average;
`across` and `clustered` to 45 of two sizes, in clusters and without."""

SHARED_BYTES: Final = 227 * 1024
"""Shared memory of a block on Hopper, at most."""

MOST_BLOCKS: Final = 16
"""Blocks that a multiprocessor holds at once, at most, in this estimate."""

ROWS: Final = 64
"""Rows of A of a `wgmma`; columns of B in the transposed form."""


def estimated_us(work: Work, values: Mapping[str, int], figures: Figures = H200) -> float:
    """Microseconds of a kernel with a tile of `bm` x `bn`, `stages` of `bk` in shared memory.

    >>> round(estimated_us(Work(4096, 4096, 4096), {"bm": 128, "bn": 256, "bk": 64, "stages": 4}))
    182
    """
    bm, bn = values["bm"], values["bn"]
    tiles = work.tiles(bm, bn)
    waves = -(-tiles // (MULTIPROCESSORS * _blocks(work, values, tiles)))
    multiplied = bm * bn * work.bytes / figures.products
    copied = _copied(work, values, figures) * work.bytes / figures.copied + _read(values) * work.bytes / figures.read
    clocks = -(-tiles // MULTIPROCESSORS) * work.depth * _added(multiplied, copied, figures.blocked)
    turns = waves * max(0.0, work.depth / _ring(values) - 1)
    in_blocks = _added(clocks / figures.clock, turns * figures.turn, figures.turning)
    from_memory = (work.least_bytes + figures.outside * _outside(work, bm, bn)) / figures.memory
    edges = waves * (figures.wave + bm * bn * figures.stored / figures.clock)
    waiting = figures.clustered if _cluster(values) != (1, 1) else 1.0
    return waiting * (figures.launch + edges + _added(in_blocks, from_memory, figures.limited))


def _added(one: float, other: float, exponent: float) -> float:
    """What two things take that are done at once: the longer one, and somewhat more where they are alike."""
    return float((one**exponent + other**exponent) ** (1 / exponent))


def _cluster(values: Mapping[str, int]) -> tuple[int, int]:
    """Blocks of a cluster along rows and columns."""
    return values.get("cm", 1), values.get("cn", 1)


def _copied(work: Work, values: Mapping[str, int], figures: Figures) -> float:
    """What a block copies for each step of k, in elements of whole lines.

    Blocks of a cluster that share an operand copy a part of it each. That saves time where lines are what limits.
    """
    cm, cn = _cluster(values)
    a, b = (figures.across / shared if across else 1.0 for across, shared in zip(work.across, (cn, cm), strict=True))
    return max(1.0, a) * values["bm"] + max(1.0, b) * values["bn"]


def _ring(values: Mapping[str, int]) -> int:
    """Steps along k that the stages hold."""
    return values.get("stages", 4) * values.get("bk", 64)


def _read(values: Mapping[str, int]) -> int:
    """Elements that the warpgroups of a block read for each step of k: for 64 rows of a tile, or 64 columns, all the other side of it."""
    bm, bn = values["bm"], values["bn"]
    wm, wn = values.get("wm", bm), values.get("wn", bn)
    each = wm + wn * (wm // ROWS) if wm % ROWS == 0 else wn + wm * max(1, wn // ROWS)
    return _groups(values) * each


def _groups(values: Mapping[str, int]) -> int:
    """Warpgroups that multiply in a block."""
    bm, bn = values["bm"], values["bn"]
    return (bm // values.get("wm", bm)) * (bn // values.get("wn", bn))


def _outside(work: Work, bm: int, bn: int) -> int:
    """Bytes of A and B that tiles read beyond the last row and column. Where most tiles do so it takes as long as reading others."""
    rows, columns = -(-work.rows // bm), -(-work.columns // bn)
    beyond = columns * (rows * bm - work.rows) + rows * (columns * bn - work.columns)
    return work.stack * beyond * work.depth * work.bytes


def _blocks(work: Work, values: Mapping[str, int], tiles: int) -> int:
    """Blocks of one multiprocessor at a time: one where blocks stay, else as many as shared memory and the tiles give."""
    if values.get("blocks", tiles) < tiles:
        return 1
    bm, bn = values["bm"], values["bn"]
    staged = _groups(values) * values.get("rows", 64) * values.get("chunk", 64) * work.result_bytes
    shared = _ring(values) * (bm + bn) * work.bytes + staged + 1024
    return max(1, min(SHARED_BYTES // shared, -(-tiles // MULTIPROCESSORS), MOST_BLOCKS))
