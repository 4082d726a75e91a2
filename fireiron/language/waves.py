"""Estimate the time of a matmul on Hopper by tile size, to choose a tile without a measurement.

`Work` is a matmul. `line_waves` has the estimate, in which blocks run in waves of one tile per SM.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Final

from fireiron.frozen import frozen
from fireiron.ir.cluster import SM_COUNT, concurrent_blocks
from fireiron.language import line_waves
from fireiron.language.line_waves import COPIED_BYTES, LINE_BYTES, ROWS, Tiling


@frozen
class Work:
    """A matmul: `batch` matrices C of `rows` x `columns`, with `depth` elements along k.

    Attributes:
        bytes, result_bytes: the bytes per element of A and B, and of C.
        row_alignments: the alignment of all rows of A and of B (columns if column-major) in bytes, a power of two up to an L2 line.
            If it is less than a line, a copied row spans one more line.
        along_c: whether A is contiguous along m, and B along n. The copied rows of such an operand are as long as a tile, and those of
            another operand as long as a step along k.
        copied: whether A or B is copied first, because TMA does not accept its rows.
    """

    rows: int
    columns: int
    depth: int
    bytes: int = 2
    result_bytes: int = 2
    batch: int = 1
    row_alignments: tuple[int, int] = (128, 128)
    along_c: tuple[bool, bool] = (False, False)
    copied: bool = False

    @property
    def across_lines(self) -> bool:
        """Whether rows of A or B are not aligned to L2 lines."""
        return min(self.row_alignments) < LINE_BYTES

    @property
    def least_bytes(self) -> int:
        """The bytes of A, B and C."""
        read = (self.rows + self.columns) * self.depth * self.bytes
        return self.batch * (read + self.rows * self.columns * self.result_bytes)

    def tiles(self, bm: int, bn: int, cluster: tuple[int, int] = (1, 1)) -> int:
        """Return the number of tiles of the result, rounded up to complete clusters along rows and columns.

        >>> Work(6000, 2000, 3000).tiles(128, 256), Work(6000, 2000, 3000).tiles(128, 256, (2, 1))
        (376, 384)
        """
        (cm, cn), down, along = cluster, -(-self.rows // bm), -(-self.columns // bn)
        return self.batch * -(-down // cm) * cm * -(-along // cn) * cn


def row_alignment(steps: Iterable[int], bytes: int, align: int) -> int:
    """Return the alignment of all rows of a matrix (columns if column-major), in bytes: a power of two, at most an L2 line.

    Args:
        steps: divisors, in elements of `bytes` bytes, of the strides between rows and between matrices of a batch.
        align: the alignment of the address. The address itself counts as aligned to a line. An operand that is copied first is aligned.

    >>> row_alignment([520], bytes=2, align=16), row_alignment([512], bytes=2, align=16), row_alignment([513], bytes=2, align=16)
    (16, 128, 128)
    """
    distances = [step * bytes for step in steps]
    return LINE_BYTES if is_copied((align, *distances)) else math.gcd(LINE_BYTES, *distances)


def is_copied(distances: Iterable[int]) -> bool:
    """Return whether a matrix is copied first. `distances` are its alignment and divisors of the strides between its rows, in bytes."""
    return any(distance % COPIED_BYTES for distance in distances)


SHARED_BYTES: Final = 227 * 1024
"""Maximum shared memory of a block on Hopper, in bytes."""

MOST_BLOCKS: Final = 16
"""Maximum number of resident blocks per SM in this estimate."""


def estimated_us(work: Work, values: Mapping[str, int]) -> float:
    """Return the estimated time in microseconds of a kernel with a tile of `bm` x `bn`, and `stages` of `bk` in shared memory.

    >>> round(estimated_us(Work(4096, 4096, 4096), {"bm": 128, "bn": 256, "bk": 64, "stages": 4}))
    185
    """
    tiling = _tiling(work, values)
    if work.across_lines:
        return line_waves.estimated_us(tiling)
    if work.copied:
        return line_waves.estimated_us(tiling, terms={})
    return line_waves.estimated_us(tiling, line_waves.ALIGNED, line_waves.ALIGNED_TERMS)


def _tiling(work: Work, values: Mapping[str, int]) -> Tiling:
    """Return a matmul and its tiles, as `line_waves` describes them."""
    value = values.get
    bm, bn, step = values["bm"], values["bn"], value("bk", 64)
    wm, wn, ring = value("wm", bm), value("wn", bn), value("stages", 4) * step
    cluster = value("cluster_m", 1), value("cluster_n", 1)
    tiles, groups, upright = work.tiles(bm, bn, cluster), (bm // wm) * (bn // wn), wm % ROWS == 0
    persistent = value("num_blocks", tiles) < tiles
    staged = groups * value("epi_m", 64) * value("epi_n", 64) * work.result_bytes
    return Tiling(
        work.rows,
        work.columns,
        work.depth,
        work.batch,
        work.bytes,
        work.result_bytes,
        work.row_alignments,
        work.along_c,
        bm,
        bn,
        wn,
        groups,
        upright,
        cluster,
        ring,
        step,
        persistent,
        max(1, wm // value("epi_m", ROWS)) * max(1, wn // value("epi_n", ROWS)),
        tiles,
        concurrent_blocks(cluster[0] * cluster[1]),
        1 if persistent else _blocks(tiles, ring * (bm + bn) * work.bytes + staged + 1024),
        SM_COUNT,
        # each `wgmma` reads its complete B operand from shared memory
        groups * (wm + wn * (wm // ROWS) if upright else wn + wm * max(1, wn // ROWS)),
    )


def _blocks(tiles: int, shared_bytes: int) -> int:
    """Return the number of resident blocks per SM of a kernel that is not persistent: shared memory and the number of tiles limit it."""
    return max(1, min(SHARED_BYTES // shared_bytes, -(-tiles // SM_COUNT), MOST_BLOCKS))
