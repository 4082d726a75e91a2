"""Estimate the time of a matmul on Hopper by tile size, to choose a tile without a measurement.

Blocks run in waves of one tile per SM. Blocks of clusters use only the SMs on which clusters fit. The time of a tile is that of its MMAs
and its copies, and of the fills of its stages, each of which takes the memory latency. An SM requests and receives lines of L2, and all SMs
share a part of the time of the requests. The time of the kernel is at least that of reading A and B and writing C. Each wave starts with
copies that nothing overlaps, and ends with storing a tile. For large tiles, the estimates differ by the last wave, which takes as long as a
full wave; for small tiles, by latency.

TMA takes longer for rows out of bounds. So a box that is partly past the end of a matrix delays its block, and the blocks of its cluster,
which share its copies. Boxes that are wholly past the end are not loaded (`lower/wrap_boxes.py`). If one wave occupies nearly all SMs, the
kernel takes as long as the slowest one.

A row that is not aligned to lines of L2 takes two of them. Then copies limit many tiles, and clusters and the number of concurrent blocks
matter more. The estimate for such rows has separate parameters, and a second part: a linear correction of its logarithm, by the products of
properties in `TERMS`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import attrs

from fireiron.frozen import frozen
from fireiron.ir.maps import rows_of_box

LINE_BYTES: Final = 128
"""Bytes of an L2 line."""

COPIED_BYTES: Final = 16
"""TMA requires row strides that are a multiple of this many bytes. Other operands are copied first, to rows aligned to L2 lines."""

SECTOR_BYTES: Final = 32
"""Bytes of a sector, a quarter of a line."""

ROWS: Final = 64
"""Rows of A of a `wgmma`; columns of B in the transposed form."""


@frozen
class Tiling:
    """A matmul and the tiles of its result.

    Attributes:
        rows, columns, depth, batch: the sizes of the matmul.
        bytes, result_bytes: the bytes per element of A and B, and of C.
        row_alignments, along_c: as in `waves.Work`.
        height, width: the tile of a block.
        group_width, groups: the width of a warpgroup's part of the tile, and the number of warpgroups.
        upright: whether the rows of `wgmma` are rows of C.
        cluster: the blocks of a cluster along rows and columns.
        ring, step: the elements along k of all stages, and of one stage.
        persistent: whether blocks are persistent.
        pieces: the number of pieces in which a warpgroup stores its part of C.
        tiles: the number of tiles, with those that complete clusters.
        resident, blocks: the number of blocks that run at once, one per SM, and how many blocks fit on an SM.
        sm_count: the number of SMs.
        read: the elements that the warpgroups of a block read from shared memory per element along k.
        down, along: the tiles along the rows and along the columns of C.
        used_tiles: the number of tiles that contain elements of C.
        tiles_per_sm: the number of tiles of the busiest SM.
        padded_depth: the elements along k of all iterations.
    """

    rows: int
    columns: int
    depth: int
    batch: int
    bytes: int
    result_bytes: int
    row_alignments: tuple[int, int]
    along_c: tuple[bool, bool]
    height: int
    width: int
    group_width: int
    groups: int
    upright: bool
    cluster: tuple[int, int]
    ring: int
    step: int
    persistent: bool
    pieces: int
    tiles: int
    resident: int
    blocks: int
    sm_count: int
    read: int

    down: int = attrs.field(init=False)
    along: int = attrs.field(init=False)
    used_tiles: int = attrs.field(init=False)
    tiles_per_sm: int = attrs.field(init=False)
    padded_depth: int = attrs.field(init=False)

    @down.default
    def _down(self) -> int:
        return -(-self.rows // self.height)

    @along.default
    def _along(self) -> int:
        return -(-self.columns // self.width)

    @used_tiles.default
    def _used_tiles(self) -> int:
        return self.batch * self.down * self.along

    @tiles_per_sm.default
    def _tiles_per_sm(self) -> int:
        return -(-self.tiles // self.resident)

    @padded_depth.default
    def _padded_depth(self) -> int:
        return -(-self.depth // self.step) * self.step


@frozen
class LineParameters:
    """The parameters of the first part.

    Times in microseconds:
        launch: the launch of a kernel.
        wave: the part of each wave before its first MMA and after its last.
        block: each further block of an SM in a wave.
        next_wave: each further wave of blocks that are not persistent.
        piece, piece_next: in the first wave and in further ones, each piece of C after the first one: the warpgroup waits for the store.
        divided: a tile that is stored in several pieces.
        fill: one pass over all stages of a block, from the copy to the MMA that reads it. Stages after `most_filled` elements along k do
            not help.
        iteration: by cluster size, each step along k, if nothing else takes longer: blocks of a cluster wait for each other in each step.
        cluster_launch: by cluster size, the start and the end of clusters.

    Throughput:
        products: bytes of A and B that the tensor cores of an SM multiply per clock.
        read: bytes per clock that `wgmma` reads from shared memory.
        requested: by row alignment, clocks per 128 bytes that a block requests. Blocks of a cluster request a part of a shared operand
            each.
        received: clocks per 128 bytes that a block receives.
        out, inside_row: clocks per row of at most 128 bytes that TMA copies to a block, out of bounds and inside.
        memory: bytes per microsecond.
        stored: clocks to store an element of a tile.
        by_threads: microseconds per element of a piece of a warpgroup, if threads store it: rows of C are not multiples of 16 bytes.
            Stores of a piece overlap with the preparation of the next one.
        clock: MHz.

    Factors:
        shared: the fraction of the time of requests that depends on the tiles of all SMs, not on those of the busiest SM.
        partial_swizzle: the increase for B if the width of a warpgroup is not a multiple of 128 bytes: its rows are copied in parts.
        least: the minimum fraction of 128 bytes for which a copied row counts.
        inside: the fraction of the time of rows past the end of a matrix that their copies do not take.
        partly: the part of the time of a row out of bounds that a row takes which is partly inside.
        crowded: the increase of the time of MMAs and copies if a single wave occupies all SMs.
        outside: for a byte that a tile reads past the end of a matrix.
        transposed: the increase of the time of MMAs in the transposed form.
        hidden: for a wave and its stores, if a persistent block overlaps them with the loads of its next tile.
        stored_next: for the stores of further waves.
        unfetched: for these stores and the root of the part of K that the stages of a persistent block do not hold: its copies start
            after the store. For aligned rows, a term of the correction has this effect.
        cluster_kinds: by blocks of a cluster along rows and columns, for the rest of the time; `large_clusters` for others.
        eight_next: for clusters of eight blocks in several waves: a cluster starts when all blocks of another one have ended.
        four_next: the same for clusters of 1 x 4: the mean error of 24 times.
        square_next: the same for eight blocks along rows and columns; assumed, because they are measured in single waves only.

    Exponents that combine the times of overlapping activities:
        blocked: MMAs and copies of a block.
        filling: the activities of a block and the fills of its stages.
        limited: the activities of blocks and memory traffic.
        delayed: the activities of a block, and the copies of a block with rows out of bounds.

    Other exponents:
        low: of the ratio by which a tile that threads store has fewer than 64 rows.
    """

    launch: float = 1.729
    wave: float = 0.5022
    fill: float = 0.5708
    most_filled: float = 805.3
    iteration: Mapping[int, float] = MappingProxyType({1: 0.002231, 2: 0.02995, 4: 0.05247, 8: 0.08819})
    stored: float = 0.1309
    received: float = 0.8261
    memory: float = 4.349e06
    outside: float = 0.3131
    partial_swizzle: float = 0.4571
    least: float = 0.2955
    block: float = 0.1531
    next_wave: float = 1.615
    hidden: float = 0.4457
    stored_next: float = 1.131
    unfetched: float = 0.155
    piece: float = 0.02774
    piece_next: float = 0.28
    divided: float = 0.06
    products: float = 3544.0
    transposed: float = 0.007863
    read: float = 663.8
    shared: float = 0.4905
    inside: float = 0.2059
    blocked: float = 10.68
    filling: float = 2.663
    limited: float = 3.215
    out: float = 2.611
    inside_row: float = 0.01981
    partly: float = 0.08413
    crowded: float = 0.09818
    delayed: float = 2.569
    requested: Mapping[int, float] = MappingProxyType({16: 2.883, 32: 1.596, 64: 1.263, 128: 0.7477})
    cluster_launch: Mapping[int, float] = MappingProxyType({1: 0.0, 2: 0.6731, 4: 0.811, 8: 0.8404})
    cluster_kinds: Mapping[tuple[int, int], float] = MappingProxyType(
        {
            (1, 1): 1.0,
            (2, 1): 0.9799,
            (1, 2): 1.024,
            (2, 2): 0.9599,
            (4, 1): 0.9307,
            (1, 4): 0.9446,
            (4, 2): 1.017,
            (2, 4): 1.017,
            (8, 1): 1.013,
        }
    )
    large_clusters: float = 1.04
    eight_next: float = 0.9746
    four_next: float = 1.03
    square_next: float = 1.15
    by_threads: float = 0.0001
    low: float = 0.0722
    clock: float = 1980.0


H200: Final = LineParameters()
"""Fitted to row-major float16 on an H200: 588 times of 24 sizes (perf/results/2026-12-01-h200-choice-6), and times of 376 sizes
(perf/results/2026-11-28-h200-choice, 2026-11-30-h200-choice to 2026-11-30-h200-choice-4, 2026-11-30-h200-first, 2026-11-30-h200-first-2,
2026-11-30-h200-parts and 2026-12-01-h200-choice-5) without clusters along rows and columns, because lanes of a warp did not yet arrive
at blocks concurrently: clusters of four and eight blocks count 1.5 and 3.5 % less. Kernels whose boxes out of bounds were still loaded are
left out."""

ALIGNED: Final = LineParameters(
    out=0.0,
    inside_row=0.0,
    crowded=0.0,
    eight_next=1.0176,
    four_next=1.0,
    most_filled=math.inf,
    iteration=MappingProxyType({1: 0.0, 2: 0.0, 4: 0.0, 8: 0.0}),
    divided=0.0,
    unfetched=0.0,
    launch=1.9274,
    wave=0.4142,
    fill=1.1904,
    stored=0.0794,
    received=0.6469,
    outside=0.6049,
    partial_swizzle=0.9306,
    least=0.537,
    block=0.1378,
    next_wave=1.3742,
    hidden=0.4584,
    transposed=0.0327,
    shared=0.4994,
    inside=0.2925,
    blocked=4.8551,
    filling=10.7239,
    limited=2.7094,
    piece=0.0559,
    piece_next=0.0759,
    stored_next=0.725,
    memory=4.930e06,
    products=3178.4,
    read=297.3,
    requested=MappingProxyType({128: 0.7856}),
    cluster_launch=MappingProxyType({1: 0.0, 2: 0.8317, 4: 0.9948, 8: 2.726}),
    cluster_kinds=MappingProxyType({(1, 1): 1.0, (2, 1): 1.0286, (1, 2): 1.0214, (2, 2): 1.157, (4, 1): 0.9659, (1, 4): 1.0554}),
)
"""Fitted to 2366 times of 255 sizes whose rows are aligned to L2 lines (the same results and perf/results/2026-11-22-h200-hopper)."""

TERMS: Final[Mapping[tuple[str, str], float]] = MappingProxyType(
    {
        ("height", "pairs_n"): -0.0068,
        ("width", "pairs_m"): -0.0089,
        ("pairs_m", "uneven_a"): -0.0061,
        ("pairs_m", "uneven_b"): -0.0255,
        ("rows", "pairs_n"): -0.0054,
        ("clustered", "ring"): -0.0076,
        ("fours_m", "past_columns"): -0.0805,
        ("whole_column", "past_rows"): -0.0517,
        ("height", "three_groups"): -0.0139,
        ("rows", "persistent"): 0.0139,
        ("aligned_a", "occupied"): 0.0338,
        ("slender", "uneven_b"): 0.0065,
        ("batched", "clustered"): 0.05,
        ("one", "thin_parts"): 0.0121,
        ("one", "short_columns"): 0.0181,
        ("clustered", "shallow"): -0.0118,
        ("occupied", "pairs_m"): 0.0531,
        ("occupied", "fours_m"): 0.0305,
        ("one", "square"): -0.0337,
        ("depth", "eights"): -0.0097,
        ("depth", "fours_n"): -0.0214,
        ("depth", "fours_m"): -0.0057,
        ("height", "fours_n"): 0.0043,
        ("width", "fours_m"): 0.0044,
        ("occupied", "eights"): -0.0494,
        ("uneven_b", "fours_m"): -0.007,
        ("shallow", "square"): 0.0113,
        ("one", "large"): -0.007,
    }
)
"""The coefficients of products of properties in the correction; `_properties` defines the properties.

Pairs of blocks along the rows gain more than the first part expects if rows of B are not aligned to a sector of L2. Clusters gain more with
a longer ring and with large K, and clusters of eight blocks if they occupy all SMs. Fitted to the same times as `H200`. Further products
of two properties improve the choice for sizes that are left out by less than 0.2 %.
"""

ALIGNED_TERMS: Final[Mapping[tuple[str, str], float]] = MappingProxyType(
    {
        ("long", "pairs_m"): 0.01,
        ("one", "long"): -0.009,
        ("brief", "persistent"): -0.0307,
        ("brief", "height"): 0.0067,
        ("brief", "width"): 0.0093,
        ("shallow", "unfetched"): 0.0259,
    }
)
"""The same for aligned rows. With K = 16384 and one wave, 20 tiles took 6 % longer in pairs; 0 % were expected. The fast tiles of one wave
with K = 8192 and 16384 took 2 to 4 % less time than expected, so that parts of K seemed faster. Persistent tiles of 50 sizes with K up to
128 took 3 to 11 % less time, the smallest tiles least. A persistent block that stores a tile loads the next one as far as its stages reach:
tiles of 128 x 256 with three stages and K = 256 took 3 to 6 % longer."""

BRIEF: Final = 256
"""Elements along k below which kernels consist of their start, one or two fills, and stores."""

THIN: Final = 24
"""Rows of a box from which on TMA copies a row as fast as in larger boxes."""

SHORT: Final = 48
"""Rows of a tile from which on clusters with four and more blocks along the rows take no longer than expected."""

LARGEST_CORRECTION: Final = 0.3
"""Limit of the absolute value of the correction."""


def estimated_us(tiling: Tiling, parameters: LineParameters = H200, terms: Mapping[tuple[str, str], float] = TERMS) -> float:
    """Return the estimated time in microseconds."""
    time = _uncorrected_us(tiling, parameters)
    if not terms:
        return time
    properties = _properties(tiling)
    correction = 0.0
    for (first, second), coefficient in terms.items():
        correction += coefficient * properties[first] * properties[second]
    return time * math.exp(min(LARGEST_CORRECTION, max(-LARGEST_CORRECTION, correction)))


def _uncorrected_us(tiling: Tiling, parameters: LineParameters) -> float:
    """Return the first part of the estimate."""
    t, p = tiling, parameters
    waves = -(-t.tiles // (t.resident * t.blocks))
    multiplied = t.height * t.width * t.bytes / p.products * (1 if t.upright else 1 + p.transposed)
    clocks = t.padded_depth * _overlapped(t.tiles_per_sm * multiplied, _copied(t, p), p.blocked) * _crowded(t, waves, p)
    size = t.cluster[0] * t.cluster[1]
    if size not in p.cluster_launch:
        size = max(p.cluster_launch)
    passes = max(0.0, t.padded_depth / min(t.ring, p.most_filled) - 1)
    fills = waves * (passes * p.fill + t.padded_depth / t.step * p.iteration[size])
    in_blocks = _overlapped(clocks / p.clock, fills, p.filling)
    tile = in_blocks / t.tiles_per_sm
    in_blocks += _overlapped(tile, t.padded_depth * _copied_past_end(t, p) / p.clock, p.delayed) - tile
    next_wave = 0.0 if t.persistent else (t.tiles_per_sm - waves) * p.block + (waves - 1) * p.next_wave
    hidden = p.hidden if t.persistent else 1.0
    stores = t.height * t.width * p.stored / p.clock
    first = stores + (t.pieces - 1) * p.piece + (p.divided if t.pieces > 1 else 0.0)
    further = stores * p.stored_next + (t.pieces - 1) * p.piece_next
    edges = p.wave + first + (waves - 1) * (hidden * (p.wave + further) + _unfetched(t) * stores * p.unfetched) + next_wave
    running = edges + _overlapped(in_blocks, _from_memory(t, p), p.limited)
    by_threads = t.columns * t.result_bytes % COPIED_BYTES > 0  # C counts as row-major
    if by_threads:
        running += t.tiles_per_sm * t.height * t.width / (t.groups * t.pieces) * p.by_threads
    kind = p.cluster_kinds.get(t.cluster, p.large_clusters) * (_next_clusters(t.cluster, p) if waves > 1 else 1.0)
    time = p.launch + p.cluster_launch[size] + kind * running
    return time * (ROWS / t.height) ** p.low if by_threads and t.height < ROWS else time


def _unfetched(tiling: Tiling) -> float:
    """Return the root of the part of K that the stages of a persistent block do not hold: it is copied after the store of a tile."""
    t = tiling
    return math.sqrt(max(0.0, 1 - t.ring / t.padded_depth)) if t.persistent else 0.0


def _next_clusters(cluster: tuple[int, int], parameters: LineParameters) -> float:
    """Return the factor for clusters in several waves."""
    if math.prod(cluster) >= 8:
        return parameters.eight_next if min(cluster) == 1 else parameters.square_next
    return parameters.four_next if cluster == (1, 4) else 1.0


def _copied(tiling: Tiling, parameters: LineParameters) -> float:
    """Return the clocks per element along k in which the busiest SM copies, and its warpgroups read shared memory."""
    t, p = tiling, parameters
    lines = LINE_BYTES / t.bytes
    swizzled = 1.0 if t.group_width * t.bytes % LINE_BYTES == 0 or not t.along_c[1] else 1 + p.partial_swizzle
    a, b = (max(side, p.least * lines) if along else side for side, along in zip((t.height, t.width), t.along_c, strict=True))
    a, b = a / lines, b / lines * swizzled
    requested = a * p.requested[t.row_alignments[0]] / t.cluster[1] * _inside(t.rows / (t.down * t.height), p)
    requested += b * p.requested[t.row_alignments[1]] / t.cluster[0] * _inside(t.columns / (t.along * t.width), p)
    mean = t.used_tiles / t.sm_count
    own = t.tiles_per_sm * ((a + b) * p.received + t.read * t.bytes / p.read)
    return own + requested * (t.tiles_per_sm * (1 - p.shared) + mean * p.shared)


def _crowded(tiling: Tiling, waves: int, parameters: LineParameters) -> float:
    """Return the factor of the time of MMAs and copies: several waves balance the SMs, and so do idle ones."""
    occupied = tiling.tiles / (waves * tiling.resident * tiling.blocks)
    return 1 + parameters.crowded * max(0.0, (occupied - BALANCED) / (1 - BALANCED)) / waves


BALANCED: Final = 0.7
"""The fraction of SMs up to which a single wave is balanced."""


def _copied_past_end(tiling: Tiling, parameters: LineParameters) -> float:
    """Return the clocks per element along k in which TMA copies the tiles of the block with the most rows out of bounds."""
    t, p = tiling, parameters
    sides = (
        (t.height, t.rows, t.down, t.cluster[1], t.along_c[0], t.height),
        (t.width, t.columns, t.along, t.cluster[0], t.along_c[1], t.group_width),
    )
    clocks = 0.0
    for side, size, tiles, shared, along_c, part in sides:
        row = (math.gcd(part * t.bytes, LINE_BYTES) if along_c else LINE_BYTES) // t.bytes
        rows = side / row  # per element along k: of an operand contiguous along k, each row has `row` of them
        outside = tiles * side - size
        equal = not along_c or rows % shared == 0  # blocks of a cluster copy different rows, or a part of all
        # Boxes that are wholly out of bounds are not loaded.
        past = float(outside % row != 0) * p.partly if along_c else outside % rows_of_box(side // shared, size) / row
        past = past if equal else past / shared
        clocks += past * p.out + max(0.0, rows / shared - past) * p.inside_row
    return clocks


def _inside(fraction: float, parameters: LineParameters) -> float:
    """Return the part of the time of copies, if a fraction of the rows of all tiles is inside the matrix."""
    return 1 - parameters.inside * (1 - fraction)


def _from_memory(tiling: Tiling, parameters: LineParameters) -> float:
    """Return the microseconds in which device memory is read and written."""
    t = tiling
    least = t.batch * ((t.rows + t.columns) * t.depth * t.bytes + t.rows * t.columns * t.result_bytes)
    beyond = t.along * (t.down * t.height - t.rows) + t.down * (t.along * t.width - t.columns)
    return (least + parameters.outside * t.batch * beyond * t.depth * t.bytes) / parameters.memory


def _overlapped(first: float, second: float, exponent: float) -> float:
    """Return the time of two overlapping activities, as in `waves`."""
    most = max(first, second)
    if most <= 0:
        return 0.0
    return float(most * ((first / most) ** exponent + (second / most) ** exponent) ** (1 / exponent))


def _properties(tiling: Tiling) -> dict[str, float]:
    """Return the properties of `TERMS`: logarithms of sizes, parts, and 1 or 0 for conditions.

    `past_rows` and `past_columns` are the shares of rows and columns past the end, at most 1. `thin_parts` is the logarithm by which the
    part of A that a block loads for its cluster has fewer rows than `THIN`, and `short_columns` that by which the tiles of a column of four
    and more blocks are shorter than `SHORT`. `unfetched` is the logarithm by which K exceeds all stages of a persistent block, and
    `large` that by which a tile exceeds 128 x 128.
    """
    t = tiling
    cm, cn = t.cluster
    depth, height, width = math.log2(t.depth / 1024), math.log2(t.height / 128), math.log2(t.width / 128)
    wave = t.resident * t.blocks
    return {
        "one": 1.0,
        "height": height,
        "width": width,
        "rows": math.log2(t.rows / 1024),
        "depth": depth,
        "long": max(0.0, depth),
        "shallow": max(0.0, -depth),
        "brief": max(0.0, math.log2(BRIEF / t.depth)),
        "ring": math.log2(t.ring / 512),
        "slender": abs(math.log2(t.down / t.along)),
        "occupied": t.tiles / (-(-t.tiles // wave) * wave),
        "past_rows": min(1.0, t.down * t.height / t.rows - 1),
        "past_columns": min(1.0, t.along * t.width / t.columns - 1),
        "uneven_a": float(t.row_alignments[0] < SECTOR_BYTES),
        "uneven_b": float(t.row_alignments[1] < SECTOR_BYTES),
        "aligned_a": float(t.row_alignments[0] == LINE_BYTES),
        "large": max(0.0, height + width),
        "three_groups": float(t.groups == 3),
        "persistent": float(t.persistent),
        "unfetched": max(0.0, math.log2(t.padded_depth / t.ring)) * t.persistent,
        "batched": float(t.batch > 1),
        "clustered": float(cm * cn > 1),
        "whole_column": float(cm >= t.down),
        "pairs_m": float(cm == 2),
        "pairs_n": float(cn == 2),
        "fours_m": float(cm == 4),
        "fours_n": float(cn == 4),
        "eights": float(cm * cn == 8),
        "square": float(cm > 1 and cn > 1),
        "thin_parts": max(0.0, math.log2(THIN * cn / t.height)) if cn > 1 else 0.0,
        "short_columns": max(0.0, math.log2(SHORT / t.height)) if cm >= 4 else 0.0,
    }
