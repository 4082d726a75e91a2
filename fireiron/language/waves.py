"""Estimate the time of a matmul on Hopper by tile size, to choose a tile without a measurement.

Blocks run in waves of one tile per SM. Blocks of clusters use only the SMs on which clusters fit. The time of a tile is the maximum of
three
times: its MMAs, its shared-memory traffic, and the fills of its stages, each of which takes the memory latency. The time of the kernel is
at least that of reading A and B and writing C. Each wave starts with copies that nothing overlaps, and ends with storing a tile. For large
tiles, the estimates differ by the last wave, which takes as long as a full wave; for small tiles, by latency.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from fireiron.frozen import frozen
from fireiron.ir.cluster import SM_COUNT, concurrent_blocks
from fireiron.language import line_waves
from fireiron.language.line_waves import LINE_BYTES, Tiling


@frozen
class Work:
    """A matmul: `batch` matrices C of `rows` x `columns`, with `depth` elements along k.

    Attributes:
        bytes, result_bytes: the bytes per element of A and B, and of C.
        row_alignments: the alignment of all rows of A and of B (columns if column-major) in bytes, a power of two up to an L2 line.
            If it is less than a line, a copied row spans one more line.
        along_c: whether A is contiguous along m, and B along n. The copied rows of such an operand are as long as a tile, and those of
        another
            operand as long as a step along k.
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


COPIED_BYTES: Final = 16
"""TMA requires row strides that are a multiple of this many bytes. Other operands are copied first, to rows aligned to L2 lines."""


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


@frozen
class ModelParameters:
    """The parameters of the estimate.

    Times in microseconds:
        launch: the launch of a kernel.
        wave: the part of each wave before its first MMA and after its last.
        block: each further block of an SM in a wave.
        next_wave: each further wave of blocks that are not persistent.
        fill: one pass over all stages of a block, from the copy to the MMA that reads it.
        cluster_launch: by cluster size, the start and the end of clusters.

    Throughput:
        copied, read: bytes per clock copied to shared memory, and read by `wgmma`.
        products: bytes of A and B that the tensor cores of an SM multiply per clock.
        memory: bytes per microsecond.
        stored: clocks to store an element of a tile.
        clock: MHz.

    Factors:
        hidden: for a wave and its stores, if a persistent block overlaps them with the loads of its next tile (rows aligned to L2 lines).
        outside: for a byte that a tile reads past the end of a matrix.
        least: the minimum number of bytes for which one copied row counts.
        received, requested: by row alignment below an L2 line, for a byte that a block receives, and for a byte that it requests. Blocks of
            a cluster that share an operand request a part each.
        partial_line: the increase for tiles that end inside an L2 line.
        clustered: by cluster size, for the rest of the time.

    Exponents that combine the times of overlapping activities:
        blocked: MMAs and copies of a block; `blocked_across` if rows are not aligned to L2 lines.
        filling: the activities of a block and the fills of its stages.
        limited: the activities of blocks and memory traffic.
    """

    launch: float = 1.58
    wave: float = 0.717
    fill: float = 1.5
    stored: float = 0.063
    copied: float = 158.0
    read: float = 257.0
    memory: float = 4.25e6
    outside: float = 0.818
    received: Mapping[int, float] = MappingProxyType({16: 0.62, 32: 1.23, 64: 0.77})
    requested: Mapping[int, float] = MappingProxyType({16: 3.38, 32: 1.64, 64: 2.22})
    partial_line: float = 0.48
    least: float = 79.0
    block: float = 0.31
    next_wave: float = 1.35
    hidden: float = 0.6
    cluster_launch: Mapping[int, float] = MappingProxyType({1: 0.0, 2: 0.98, 4: 1.37, 8: 2.92})
    clustered: Mapping[int, float] = MappingProxyType({1: 1.0, 2: 1.0, 4: 1.0, 8: 1.11})
    blocked: float = 1.48
    blocked_across: float = 2.94
    filling: float = 6.74
    limited: float = 3.59
    clock: float = 1980.0
    products: float = 4096.0


H200: Final = ModelParameters()
"""Fitted to 1022 times of four types and storage orders on an H200 (perf/results/2026-11-22-h200-hopper), with a mean error of 3.6 %. The
parameters of copied rows, alignment, clusters and blocks that share an SM are fitted to 2988 times of 270 sizes: the same times and
perf/results/2026-11-28-h200-choice, with a mean error of 7 %."""

SHARED_BYTES: Final = 227 * 1024
"""Maximum shared memory of a block on Hopper, in bytes."""

MOST_BLOCKS: Final = 16
"""Maximum number of resident blocks per SM in this estimate."""

ROWS: Final = 64
"""Rows of A of a `wgmma`; columns of B in the transposed form."""


def estimated_us(work: Work, values: Mapping[str, int], parameters: ModelParameters = H200) -> float:
    """Return the estimated time in microseconds of a kernel with a tile of `bm` x `bn`, and `stages` of `bk` in shared memory.

    If rows of A or B are not aligned to L2 lines, or are copied first, it is the estimate of `line_waves`, which has its own parameters.
    Otherwise it is the longer one: the estimate of this module alone is too short for small tiles, whose copies L2 limits.

    >>> round(estimated_us(Work(4096, 4096, 4096), {"bm": 128, "bn": 256, "bk": 64, "stages": 4}))
    186
    """
    by_lines = line_waves.estimated_us(_tiling(work, values))
    return by_lines if work.across_lines or work.copied else max(by_lines, _aligned_us(work, values, parameters))


def _aligned_us(work: Work, values: Mapping[str, int], parameters: ModelParameters) -> float:
    """Return the estimate if all rows are aligned to L2 lines."""
    bm, bn, cluster = values["bm"], values["bn"], _cluster(values)
    in_cluster = cluster[0] * cluster[1]
    tiles, resident = work.tiles(bm, bn, cluster), concurrent_blocks(in_cluster)
    tiles_per_sm = -(-tiles // resident)
    waves = -(-tiles // (resident * _blocks(work, values, tiles)))
    multiplied = bm * bn * work.bytes / parameters.products
    copied = _copied(work, values, parameters) * work.bytes / parameters.copied + _read(values) * work.bytes / parameters.read
    clocks = tiles_per_sm * work.depth * _overlapped(multiplied, copied, parameters.blocked)
    fills = waves * max(0.0, work.depth / _ring(values) - 1)
    in_blocks = _overlapped(clocks / parameters.clock, fills * parameters.fill, parameters.filling)
    from_memory = (work.least_bytes + parameters.outside * _outside(work, bm, bn)) / parameters.memory
    persistent = values.get("num_blocks", tiles) < tiles
    next_wave = 0.0 if persistent else (tiles_per_sm - waves) * parameters.block + (waves - 1) * parameters.next_wave
    hidden = parameters.hidden if persistent else 1.0
    edges = (1 + (waves - 1) * hidden) * (parameters.wave + bm * bn * parameters.stored / parameters.clock) + next_wave
    cluster_size = min(in_cluster, max(parameters.cluster_launch))
    running = edges + _overlapped(in_blocks, from_memory, parameters.limited)
    return parameters.launch + parameters.cluster_launch[cluster_size] + parameters.clustered[cluster_size] * running


def _tiling(work: Work, values: Mapping[str, int]) -> Tiling:
    """Return a matmul and its tiles, as `line_waves` describes them."""
    bm, bn, cluster = values["bm"], values["bn"], _cluster(values)
    tiles = work.tiles(bm, bn, cluster)
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
        values.get("wn", bn),
        _groups(values),
        values.get("wm", bm) % ROWS == 0,
        cluster,
        _ring(values),
        values.get("bk", 64),
        values.get("num_blocks", tiles) < tiles,
        values.get("epi_n", ROWS) > ROWS,
        tiles,
        concurrent_blocks(math.prod(cluster)),
        _blocks(work, values, tiles),
        SM_COUNT,
        _read(values),
    )


def _overlapped(first: float, second: float, exponent: float) -> float:
    """Return the time of two overlapping activities: the longer time, plus an amount that is largest if both times are equal."""
    return float((first**exponent + second**exponent) ** (1 / exponent))


def _cluster(values: Mapping[str, int]) -> tuple[int, int]:
    """Return the blocks of a cluster along rows and columns."""
    return values.get("cluster_m", 1), values.get("cluster_n", 1)


def _copied(work: Work, values: Mapping[str, int], parameters: ModelParameters) -> float:
    """Return the number of elements that a block copies per element along k, with partial L2 lines counted as complete."""
    cm, cn = _cluster(values)
    return _lines(work, values, 0, "bm", cn, parameters) + _lines(work, values, 1, "bn", cm, parameters)


def _lines(work: Work, values: Mapping[str, int], operand: int, side: str, shared: int, parameters: ModelParameters) -> float:
    """Return the copied elements of one operand per element along k. `shared` blocks of a cluster copy a part each."""
    alignment, along_c = work.row_alignments[operand], work.along_c[operand]
    width = (values[side] if along_c else values.get("bk", 64)) * work.bytes
    copied = values[side] * max(1.0, parameters.least / min(width, LINE_BYTES))
    if alignment >= LINE_BYTES:
        return copied
    partial_line = parameters.partial_line if along_c and width % LINE_BYTES else 0.0
    return copied * (1 + partial_line) * max(1.0, parameters.received[alignment] + parameters.requested[alignment] / shared)


def _ring(values: Mapping[str, int]) -> int:
    """Return the elements along k of all stages."""
    return values.get("stages", 4) * values.get("bk", 64)


def _read(values: Mapping[str, int]) -> int:
    """Return the elements that the warpgroups of a block read per element along k: each `wgmma` reads its complete B operand."""
    bm, bn = values["bm"], values["bn"]
    wm, wn = values.get("wm", bm), values.get("wn", bn)
    each = wm + wn * (wm // ROWS) if wm % ROWS == 0 else wn + wm * max(1, wn // ROWS)
    return _groups(values) * each


def _groups(values: Mapping[str, int]) -> int:
    """Return the number of consumer warpgroups of a block."""
    bm, bn = values["bm"], values["bn"]
    return (bm // values.get("wm", bm)) * (bn // values.get("wn", bn))


def _outside(work: Work, bm: int, bn: int) -> int:
    """Return the bytes of A and B that tiles read past the last row and column."""
    rows, columns = -(-work.rows // bm), -(-work.columns // bn)
    beyond = columns * (rows * bm - work.rows) + rows * (columns * bn - work.columns)
    return work.batch * beyond * work.depth * work.bytes


def _blocks(work: Work, values: Mapping[str, int], tiles: int) -> int:
    """Return the number of resident blocks per SM: one if persistent, otherwise limited by shared memory and the number of tiles."""
    if values.get("num_blocks", tiles) < tiles:
        return 1
    bm, bn = values["bm"], values["bn"]
    staged = _groups(values) * values.get("epi_m", 64) * values.get("epi_n", 64) * work.result_bytes
    shared = _ring(values) * (bm + bn) * work.bytes + staged + 1024
    return max(1, min(SHARED_BYTES // shared, -(-tiles // SM_COUNT), MOST_BLOCKS))
