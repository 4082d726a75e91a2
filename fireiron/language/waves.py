"""How long a product of matrices takes on Hopper by tiles of a size: the estimate by which a tile is chosen where none is measured.

Blocks come in waves, one tile to a multiprocessor; blocks of clusters to as many multiprocessors as clusters fit on. A tile takes the time
of its products, or of what passes shared memory, whichever is longer; no less than its stages take to be filled again and again, each time
after the memory's latency; the kernel no less than the memory needs for A, B and C. Each wave begins with copies that nothing hides, and
ends with a tile that is stored. That the last wave costs as much as a full one is what decides between large tiles, latency between small
ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

import attrs

from fireiron.ir.cluster import MULTIPROCESSORS, at_once


@attrs.frozen
class Work:
    """A product: `stack` matrices of `rows` x `columns`, sums of `depth` products of elements of `bytes` bytes; C has `result_bytes`.

    `begins` says of A and of B of how many bytes, a power of two up to a line of L2, all its rows (columns, where these are
    contiguous) begin at multiples: where it is less than a line, pieces of a line lie across two. `beside` says whether a line of A goes
    along the rows of C, a line of B along its columns: such an operand is copied in pieces as wide as a tile, others as a step along k.
    """

    rows: int
    columns: int
    depth: int
    bytes: int = 2
    result_bytes: int = 2
    stack: int = 1
    begins: tuple[int, int] = (128, 128)
    beside: tuple[bool, bool] = (False, False)

    @property
    def across_lines(self) -> bool:
        """Whether pieces of A or B lie across lines."""
        return min(self.begins) < LINE_BYTES

    @property
    def least_bytes(self) -> int:
        """A, B and C, each once."""
        read = (self.rows + self.columns) * self.depth * self.bytes
        return self.stack * (read + self.rows * self.columns * self.result_bytes)

    def tiles(self, bm: int, bn: int, cluster: tuple[int, int] = (1, 1)) -> int:
        """Tiles of the result; along rows and columns as many as whole clusters have, those beyond the edges included.

        >>> Work(6000, 2000, 3000).tiles(128, 256), Work(6000, 2000, 3000).tiles(128, 256, (2, 1))
        (376, 384)
        """
        (cm, cn), down, along = cluster, -(-self.rows // bm), -(-self.columns // bn)
        return self.stack * -(-down // cm) * cm * -(-along // cn) * cn


LINE_BYTES: Final = 128
"""Bytes of an L2 line."""

COPIED_BYTES: Final = 16
"""Bytes: rows that TMA copies are a multiple of it; other rows are copied first, to rows that start at an L2 line."""


def row_begins(steps: Iterable[int], bytes: int, align: int) -> int:
    """Of how many bytes, a power of two up to a line of L2, all rows of a matrix (columns, where these are contiguous) begin at multiples.

    Args: `steps` are elements of `bytes` bytes of which the distances from row to row are multiples, in a stack also those from matrix to
        matrix; `align` are bytes of which the address is one. More is not known of the address: it counts as one where a line begins. What
        is copied first begins at lines.

    >>> row_begins([520], bytes=2, align=16), row_begins([512], bytes=2, align=16), row_begins([513], bytes=2, align=16)
    (16, 128, 128)
    """
    distances = [step * bytes for step in steps]
    copied_first = any(distance % COPIED_BYTES for distance in (align, *distances))
    return LINE_BYTES if copied_first else math.gcd(LINE_BYTES, *distances)


@attrs.frozen
class Figures:
    """What the estimate divides by.

    Microseconds: `launch` of a kernel, `wave` of each wave, before its first product and behind its last one, `block` of each further block
    that a multiprocessor has in a wave, `renewed` of each further wave of blocks that do not stay, `turn` of the stages of a block, from a
    copy that is asked for to the product that has read it. `behind`: what a wave and the stores of its tiles count that a block which stays
    hides behind the loads of its next tile, where rows begin at lines of L2.
    Clocks: `stored`, to store an element of a tile. Bytes: `copied` into shared memory and `read` by `wgmma` in a clock, `memory` in a
    microsecond; `least`, what a piece counts at least that is copied as one. `outside`: what a byte counts that a tile reads beyond the
    edge of a matrix.

    Of pieces that lie across lines of L2, by the bytes of which their rows begin at multiples: what a byte counts that a block receives
    (`received`) and that it asks for (`asked`), of which blocks of a cluster that share an operand have a part each; `broken`: how much
    more it counts in tiles that end inside a line. `joined`: microseconds of a kernel in which clusters of so many blocks begin and end
    together; `clustered`: what the rest of its time is multiplied by.

    Times of two things that are done at once are added with the exponents `blocked`, for products and copies of a block (`blocked_across`
    where pieces lie across lines), `turning`, for these and turns of stages, and `limited`, for blocks and memory. `clock` is in MHz,
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
    received: Mapping[int, float] = MappingProxyType({16: 0.62, 32: 1.23, 64: 0.77})
    asked: Mapping[int, float] = MappingProxyType({16: 3.38, 32: 1.64, 64: 2.22})
    broken: float = 0.48
    least: float = 79.0
    block: float = 0.31
    renewed: float = 1.35
    behind: float = 0.6
    joined: Mapping[int, float] = MappingProxyType({1: 0.0, 2: 0.98, 4: 1.37, 8: 2.92})
    clustered: Mapping[int, float] = MappingProxyType({1: 1.0, 2: 1.0, 4: 1.0, 8: 1.11})
    blocked: float = 1.48
    blocked_across: float = 2.94
    turning: float = 6.74
    limited: float = 3.59
    clock: float = 1980.0
    products: float = 4096.0


H200: Final = Figures()
"""Fitted to 1022 times on an H200 (perf/results/2026-11-22-h200-hopper), of four types and storage orders: 3.6 % off on average;
what pieces, pieces across lines, clusters and blocks that share a multiprocessor cost to 2988 of 270 sizes, those and
perf/results/2026-11-28-h200-choice: 7 % off."""

SHARED_BYTES: Final = 227 * 1024
"""Most shared memory of a block on Hopper, in bytes."""

MOST_BLOCKS: Final = 16
"""Most resident blocks per SM in this estimate."""

ROWS: Final = 64
"""Rows of A of a `wgmma`; columns of B in the transposed form."""


def estimated_us(work: Work, values: Mapping[str, int], figures: Figures = H200) -> float:
    """Microseconds of a kernel with a tile of `bm` x `bn`, `stages` of `bk` in shared memory.

    >>> round(estimated_us(Work(4096, 4096, 4096), {"bm": 128, "bn": 256, "bk": 64, "stages": 4}))
    186
    """
    bm, bn, cluster = values["bm"], values["bn"], _cluster(values)
    in_cluster = cluster[0] * cluster[1]
    tiles, resident = work.tiles(bm, bn, cluster), at_once(in_cluster)
    each = -(-tiles // resident)
    waves = -(-tiles // (resident * _blocks(work, values, tiles)))
    multiplied = bm * bn * work.bytes / figures.products
    copied = _copied(work, values, figures) * work.bytes / figures.copied + _read(values) * work.bytes / figures.read
    blocked = figures.blocked_across if work.across_lines else figures.blocked
    clocks = each * work.depth * _added(multiplied, copied, blocked)
    turns = waves * max(0.0, work.depth / _ring(values) - 1)
    in_blocks = _added(clocks / figures.clock, turns * figures.turn, figures.turning)
    from_memory = (work.least_bytes + figures.outside * _outside(work, bm, bn)) / figures.memory
    stays = values.get("num_blocks", tiles) < tiles
    renewed = 0.0 if stays else (each - waves) * figures.block + (waves - 1) * figures.renewed
    hidden = figures.behind if stays and not work.across_lines else 1.0
    edges = (1 + (waves - 1) * hidden) * (figures.wave + bm * bn * figures.stored / figures.clock) + renewed
    together = min(in_cluster, max(figures.joined))
    running = edges + _added(in_blocks, from_memory, figures.limited)
    return figures.launch + figures.joined[together] + figures.clustered[together] * running


def _added(one: float, other: float, exponent: float) -> float:
    """What two things take that are done at once: the longer one, and somewhat more where they are alike."""
    return float((one**exponent + other**exponent) ** (1 / exponent))


def _cluster(values: Mapping[str, int]) -> tuple[int, int]:
    """Blocks of a cluster along rows and columns."""
    return values.get("cluster_m", 1), values.get("cluster_n", 1)


def _copied(work: Work, values: Mapping[str, int], figures: Figures) -> float:
    """What a block copies for each step of k, in elements of whole lines."""
    cm, cn = _cluster(values)
    return _lines(work, values, 0, "bm", cn, figures) + _lines(work, values, 1, "bn", cm, figures)


def _lines(work: Work, values: Mapping[str, int], operand: int, side: str, shared: int, figures: Figures) -> float:
    """The same of one operand, of which `shared` blocks copy a part each."""
    begins, beside = work.begins[operand], work.beside[operand]
    width = (values[side] if beside else values.get("bk", 64)) * work.bytes
    copied = values[side] * max(1.0, figures.least / min(width, LINE_BYTES))
    if begins >= LINE_BYTES:
        return copied
    broken = figures.broken if beside and width % LINE_BYTES else 0.0
    return copied * (1 + broken) * max(1.0, figures.received[begins] + figures.asked[begins] / shared)


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
    if values.get("num_blocks", tiles) < tiles:
        return 1
    bm, bn = values["bm"], values["bn"]
    staged = _groups(values) * values.get("epi_m", 64) * values.get("epi_n", 64) * work.result_bytes
    shared = _ring(values) * (bm + bn) * work.bytes + staged + 1024
    return max(1, min(SHARED_BYTES // shared, -(-tiles // MULTIPROCESSORS), MOST_BLOCKS))
