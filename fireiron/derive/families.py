"""Families of instructions that multiply matrices: which types they have, the tiles that suit them, and their steps inside of a block."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

from fireiron.decomp.tile import Strided
from fireiron.derive.facts import Facts, Product
from fireiron.derive.sketch import Decision, Values
from fireiron.frozen import frozen
from fireiron.language.substrategy import Chain
from fireiron.language.tunable import Tunable
from fireiron.specs.matmul import MatMul
from fireiron.specs.move import Move
from fireiron.specs.operand import A, B
from fireiron.values.machine import MATRIX_ONLY, RF, Architecture, Lane, Warp, Warpgroup

MOST_OPTIONS: Final = 14
"""Tiles of a decision, from the shortest estimated time on."""

L2_PORT: Final = 64
"""Bytes per clock from L2 to an SM (NVIDIA A100 Tensor Core GPU Architecture white paper)."""

START_CLOCKS: Final = 3000
"""Clocks of a block before its first and after its last multiplication: launch, latency of the first copies, store. An estimate."""

LATENCY: Final = 1200
"""Clocks from the start of a copy until its data are in shared memory, with a busy memory. An estimate."""

LINE: Final = 128
"""Bytes of a cache line: shorter rows of a tile read memory in parts."""

READ_SHARE: Final = 0.85
"""Share of the memory bandwidth that reads reach (`cost.constants`)."""

ACCUMULATORS: Final = 160
"""32-bit accumulators of a thread; the others of 255 registers hold operands and addresses."""

SM_REGISTERS: Final = 65536
"""32-bit registers of an SM (CUDA C++ Programming Guide, compute capabilities)."""

OTHERS: Final = 24
"""Registers of a thread for operands and addresses."""

PRODUCER: Final = 128
"""Threads of a producer warp group."""

LANES: Final = 32

BATCHED: Final = 65536
"""Value of `num_blocks` that means a block for each tile."""


@frozen
class Tile:
    """A tile of a block, and of the warps or warpgroups in it; `keep` is the share of the instruction's rate that it reaches, about."""

    bm: int
    bn: int
    wm: int
    wn: int
    keep: float = 1.0


class Family:
    """Instructions that multiply matrices."""

    name: ClassVar[str]
    most_stages: ClassVar[int]
    asynchronous: ClassVar[bool] = False
    """Whether a producer warp fills a ring by TMA."""
    threads: ClassVar[int] = LANES
    """The threads that share a tile of `wm` x `wn`."""

    def refusal(self, facts: Facts, product: Product) -> str:
        """Return why the target has no such instruction for a product; empty if it has one."""
        raise NotImplementedError

    def tiles(self, facts: Facts, product: Product) -> Sequence[Tile]:
        """Return the tiles that suit the instructions."""
        raise NotImplementedError

    def depths(self, facts: Facts, product: Product) -> tuple[int, ...]:
        """Return the elements along k of an iteration, the preferred ones first."""
        raise NotImplementedError

    def rate(self, facts: Facts, product: Product) -> float:
        """Return the multiply-adds of an SM per clock."""
        raise NotImplementedError

    def inner(self, facts: Facts, product: Product, wm: Any, wn: Any) -> Chain:
        """Return the steps of a product of a block whose operands are in shared memory."""
        raise NotImplementedError


class Warpgroups(Family):
    """wgmma: warpgroups read operands from shared memory, which a producer warp fills by TMA (Hopper)."""

    name: ClassVar[str] = "warpgroups"
    most_stages: ClassVar[int] = 8
    asynchronous: ClassVar[bool] = True
    threads: ClassVar[int] = 4 * LANES

    def refusal(self, facts: Facts, product: Product) -> str:
        types = f"{product.types[0]}, {product.types[1]} and {product.sum_type}"
        return "" if facts.by_warpgroup(product) else f"{facts.target} has no wgmma for {types}"

    def tiles(self, facts: Facts, product: Product) -> Sequence[Tile]:
        return _WARPGROUP_TILES

    def depths(self, facts: Facts, product: Product) -> tuple[int, ...]:
        return (128 // product.types[0].bytes, 64 // product.types[0].bytes, 256 // product.types[0].bytes)

    def rate(self, facts: Facts, product: Product) -> float:
        from fireiron.cost.gpus import wgmma_rate_name

        return facts.gpu.tensor_rate(wgmma_rate_name(product.types[0].name)) / 2 or 1500.0

    def inner(self, facts: Facts, product: Product, wm: Any, wn: Any) -> Chain:
        return MatMul.tile(wm, wn).to(Warpgroup).split(32 // product.types[0].bytes).unroll().done()


class Warps(Family):
    """mma.sync: warps load fragments by ldmatrix from shared memory, which all threads fill by cp.async."""

    name: ClassVar[str] = "warps"
    most_stages: ClassVar[int] = 4

    def refusal(self, facts: Facts, product: Product) -> str:
        types = f"{product.types[0]}, {product.types[1]} and {product.sum_type}"
        return "" if facts.by_warp(product) is not None else f"{facts.target} has no mma.sync for {types}"

    def tiles(self, facts: Facts, product: Product) -> Sequence[Tile]:
        # Before Turing a lane has more elements of a fragment, and copies pass through registers: a warp has fewer rows.
        most = 32 if facts.target.capability < 75 else 64
        return tuple(tile for tile in _WARP_TILES if tile.wm <= most)

    def depths(self, facts: Facts, product: Product) -> tuple[int, ...]:
        bytes_of = max(dtype.bytes for dtype in product.types)
        return (64 // bytes_of, 128 // bytes_of)

    def rate(self, facts: Facts, product: Product) -> float:
        return facts.gpu.tensor_rate(product.types[0].name) / 2 or 256.0

    def inner(self, facts: Facts, product: Product, wm: Any, wn: Any) -> Chain:
        mma = facts.by_warp(product)
        depth = max(16, 32 // product.types[0].bytes) if mma is None else max(mma.shape[2], 16)
        chain: Any = MatMul.tile(wm, wn).to(Warp).split(depth).unroll().pipeline(Tunable("lookahead", 2, 1))
        chain = chain.load(A, RF, Move.done()).load(B, RF, Move.done())
        return chain.tile(16, 16).unroll().mma_tile().done()  # type: ignore[no-any-return]


class Lanes(Family):
    """FFMA: each lane multiplies vectors of both operands, which it reads from shared memory."""

    name: ClassVar[str] = "lanes"
    most_stages: ClassVar[int] = 4

    def refusal(self, facts: Facts, product: Product) -> str:
        matrix_only = [str(dtype) for dtype in product.types if dtype in MATRIX_ONLY]
        return f"multiply-adds have no operands of {', '.join(matrix_only)}" if matrix_only else ""

    def tiles(self, facts: Facts, product: Product) -> Sequence[Tile]:
        words = max(product.sum_type.bytes // 4, 1)
        tiles = _WORD_TILES if _of_words(product) else _LANE_TILES
        return tuple(tile for tile in tiles if tile.wm * tile.wn * words // LANES <= ACCUMULATORS)

    def depths(self, facts: Facts, product: Product) -> tuple[int, ...]:
        return (16, 8)

    def rate(self, facts: Facts, product: Product) -> float:
        return float(facts.gpu.lanes)

    def inner(self, facts: Facts, product: Product, wm: Any, wn: Any) -> Chain:
        if _of_words(product) and len(product.arrays) == 2:
            return _by_vectors(product, wm, wn)
        lanes: Any = MatMul.tile(wm, wn).to(Warp).tile(Strided((4, 32), (4, 16))).to(Lane).split(1).unroll()
        for operand, name in ((A, product.left), (B, product.right)):
            lanes = lanes.load(operand, RF) if name in product.arrays else lanes
        return lanes.tile(1, 1).unroll().done()  # type: ignore[no-any-return]


def _of_words(product: Product) -> bool:
    """Whether operands and sums have 32 bits, so that a vector of 16 bytes has four of them."""
    return all(dtype.bytes == 4 for dtype in (*product.types, product.sum_type))


def _by_vectors(product: Product, wm: Any, wn: Any) -> Chain:
    """Return the multiply-adds of lanes with vectors of both operands, which they load one step early.

    A lane of a tile of 64 x 64 has 16 x 8 sums in vectors of four; one of 64 x 32 has 8 x 8.
    """
    lanes: Any = MatMul.tile(wm, wn).to(Warp).tile(Strided((4, 1024 // wn), (4, wn // 2))).to(Lane).split(1).unroll().pipeline(2)
    for operand, over_first in zip((A, B), product.over_first, strict=True):
        lanes = lanes.load(operand, RF, (Move.tile(1, 4) if over_first else Move.tile(4, 1)).unroll().done())
    return lanes.tile(wm * wn // 256, 1).unroll().tile(1, 1).unroll().done()  # type: ignore[no-any-return]


_WARPGROUP_TILES: Final = tuple(
    Tile(bm, bn, 64, wn, keep)
    for bm, bn, wn, keep in (
        (128, 256, 256, 1.0), (192, 192, 192, 0.99), (256, 128, 128, 0.98), (128, 192, 192, 0.97), (128, 128, 128, 0.95),
        (192, 96, 96, 0.93), (64, 256, 128, 0.93), (64, 192, 96, 0.9), (128, 64, 64, 0.85), (64, 128, 128, 0.8),
        (64, 64, 64, 0.7), (64, 32, 32, 0.5), (64, 16, 16, 0.4),
    )
) + tuple(
    Tile(rows, columns, rows, 64, keep) for rows, columns, keep in ((32, 128, 0.6), (32, 64, 0.5), (16, 128, 0.4), (16, 64, 0.4))
)  # fmt: skip
"""Tiles of fewer than 64 rows have the transposed form of wgmma: its 64 rows are columns of the result."""

_WARP_TILES: Final = tuple(
    Tile(*sizes)
    for sizes in (
        (128, 256, 64, 64, 1.0), (256, 128, 64, 64, 1.0), (128, 128, 64, 64, 0.95), (128, 128, 64, 32, 0.9), (128, 128, 32, 64, 0.9),
        (128, 64, 32, 64, 0.85), (64, 128, 32, 64, 0.85), (64, 64, 32, 32, 0.75), (64, 32, 32, 16, 0.6), (32, 64, 16, 32, 0.6),
        (32, 32, 16, 16, 0.5), (16, 64, 16, 16, 0.4), (16, 32, 16, 16, 0.3),
    )
)  # fmt: skip

_WORD_TILES: Final = tuple(
    Tile(*sizes)
    for sizes in (
        (128, 128, 64, 64, 1.0), (128, 64, 64, 32, 0.9), (64, 128, 64, 64, 0.9), (64, 64, 64, 32, 0.8), (64, 64, 32, 32, 0.7),
        (64, 32, 32, 32, 0.6), (32, 32, 32, 32, 0.4),
    )
)  # fmt: skip

_LANE_TILES: Final = tuple(
    Tile(*sizes)
    for sizes in (
        (128, 128, 64, 32, 1.0), (128, 64, 64, 32, 0.9), (64, 128, 64, 32, 0.9), (64, 64, 32, 32, 0.75), (64, 32, 32, 32, 0.6),
        (32, 32, 32, 32, 0.4),
    )
)  # fmt: skip

FAMILIES: Final[tuple[Family, ...]] = (Warpgroups(), Warps(), Lanes())
"""All families, the fastest first."""


def family(name: str) -> Family:
    """Return the family of a name."""
    return next(each for each in FAMILIES if each.name == name)


@frozen
class Loaded:
    """An operand that an iteration copies to shared memory: its elements per iteration are the product of its tile sizes by dimension."""

    name: str
    dims: tuple[str, ...]
    bytes: float


def decision(
    facts: Facts,
    by: Family,
    product: Product,
    loaded: Sequence[Loaded],
    sizes: Mapping[str, str],
    outputs_bytes: int = 0,
    sums: int = 1,
    live: int = 1,
) -> Decision:
    """Return the decision about the tiles of blocks and warps, the depth and the number of stages, by the estimated time.

    Args:
        loaded: the operands that an iteration copies.
        sizes: the name of the tile size of each tiled dimension: `{"m": "bm", "n": "bn", "k": "bk"}`. Others count as whole.
        outputs_bytes: bytes per element of the tile that a staged store needs in addition to the stages.
        sums: the number of accumulators of the tile's shape.
        live: the number of results of steps of the tile's shape that are live at the same time.
    """
    m, n, k = (math.prod(map(facts.about, dims)) for dims in (product.rows, product.columns, product.over))
    known = [dim for dim in facts.parallel if dim not in (*product.rows, *product.columns)]
    batch = math.prod(map(facts.about, known))
    memory_clocks = (m + n) * k * batch * product.types[0].bytes * facts.gpu.clock / (facts.gpu.memory_gb_s * 1000 * READ_SHARE)
    words = max(product.sum_type.bytes // 4, 1)
    options: dict[tuple[tuple[str, int], ...], float] = {}
    for tile in by.tiles(facts, product):
        if tile.wm * tile.wn * max(sums, live) * words // by.threads > _accumulators(tile, by):
            continue
        for depth in by.depths(facts, product):
            base = {"bm": tile.bm, "bn": tile.bn, "wm": tile.wm, "wn": tile.wn, "bk": depth}
            spare = outputs_bytes * (tile.bm * tile.bn if by.asynchronous else 0)
            stage = stage_bytes(facts, loaded, sizes, base)
            stages = most_stages(facts.target, stage, spare, by.most_stages)
            if not stages or (by.asynchronous and stages < 2):
                continue
            tiles = -(-m // tile.bm) * -(-n // tile.bn) * batch
            waves = -(-tiles // facts.gpu.multiprocessors)
            moved = k * (tile.bm + tile.bn) * product.types[0].bytes / L2_PORT
            waiting = k / depth / stages * LATENCY if by.asynchronous else 0.0
            clocks = max(tile.bm * tile.bn * k * sums / by.rate(facts, product) / tile.keep, moved, waiting)
            few = 1.0 if stages > 2 else 1.17  # two stages cost 17 % (perf/results/2026-11-22-h200-hopper)
            shallow = 1.0 if depth == by.depths(facts, product)[0] else 1.02
            run = min(tile.bn * product.types[1].bytes / LINE, 1.0) if not product.over_first[1] or by.asynchronous else 1.0
            estimate = math.hypot(waves * (clocks * few * shallow + START_CLOCKS), memory_clocks / run)
            options[tuple({**base, "stages": stages}.items())] = estimate
    ordered = sorted(options, key=lambda option: options[option])[:MOST_OPTIONS]
    because = f"{{bm}} x {{bn}} of {m} x {n} per block, {{wm}} x {{wn}} per unit, {{bk}} of {k} per iteration, {{stages}} stages in flight"
    return Decision("tile", tuple(dict(option) for option in ordered), because)


def _accumulators(tile: Tile, by: Family) -> int:
    """Return the 32-bit accumulators that a thread may have: fewer if a block has many threads."""
    threads = tile.bm // tile.wm * (tile.bn // tile.wn) * by.threads + (PRODUCER if by.asynchronous else 0)
    return min(ACCUMULATORS, SM_REGISTERS // threads - OTHERS)


def stage_bytes(facts: Facts, loaded: Sequence[Loaded], sizes: Mapping[str, str], values: Values) -> int:
    """Return the bytes of shared memory of one stage."""
    return sum(
        math.ceil(operand.bytes * math.prod(values[sizes[dim]] if dim in sizes else facts.about(dim) for dim in operand.dims))
        for operand in loaded
    )


RESERVED: Final = 2048
"""Bytes of shared memory for barriers and alignment."""


def most_stages(target: Architecture, stage: int, spare: int, most: int) -> int:
    """Return the stages that fit in the shared memory of a block, at most `most`; without asynchronous copies at most two."""
    limit = most if target.capability >= 80 else 2
    return min(limit, max((target.shared_per_block - RESERVED - spare) // max(stage, 1), 0))
