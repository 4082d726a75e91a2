"""Triton's best GEMM on Hopper: copies by TMA, `wgmma`, persistent programs if there are several waves.

    from triton_wgmma import configurations, launcher

    call = launcher(a, b, out, configurations(work)[0])   # PyTorch tensors on a GPU; A and B in either storage order

The tiles were the fastest of 43 configurations for squares from 128 to 8192 (NN and NT). For each problem, the wave estimate that chooses
our tiles selects the fastest of these.
"""

from typing import NamedTuple

import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from fireiron.ir.cluster import SM_COUNT
from fireiron.language.waves import estimated_us

GROUP = 8  # rows of tiles computed together, so that their parts of A remain in L2


class Config(NamedTuple):
    """The tile of a block, bytes of a step along k, pipeline stages, warps, whether it is persistent, and whether C is stored in two parts."""

    bm: int
    bn: int
    step: int
    stages: int
    warps: int
    persistent: bool = False
    halved: bool = False

    def __str__(self):
        return f"{self.bm}x{self.bn}x{self.step} bytes, {self.stages} stages, {self.warps} warps{', persistent' * self.persistent}"


CONFIGS = (
    Config(64, 32, 256, 5, 4),
    Config(64, 64, 256, 4, 4),
    Config(64, 128, 256, 3, 4),
    Config(64, 128, 128, 5, 4),
    Config(128, 128, 128, 4, 8),
    Config(128, 128, 128, 4, 4, True, True),
    Config(128, 256, 128, 3, 8),
    Config(128, 256, 128, 4, 8, True, True),
    Config(128, 256, 128, 3, 8, True, True),
)


def configurations(work, most=3):
    """Return the configurations with the smallest estimated time for a GEMM; persistent ones only if there are several waves."""

    def us(config):
        return estimated_us(work, {"bm": config.bm, "bn": config.bn, "bk": config.step // work.bytes, "stages": config.stages})

    suited = [one for one in CONFIGS if not one.persistent or work.tiles(one.bm, one.bn) > SM_COUNT]
    return sorted(suited, key=us)[:most]


@triton.jit
def tile_of(number, M, N, BM: tl.constexpr, BN: tl.constexpr, GROUP: tl.constexpr):
    """The output tile of a number: down the rows of a group, then along its columns."""
    rows = tl.cdiv(M, BM)
    width = GROUP * tl.cdiv(N, BN)
    first = number // width * GROUP
    height = min(rows - first, GROUP)
    return first + number % width % height, number % width // height


@triton.jit
def summed(a, b, m, n, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, A_BY_COLUMNS: tl.constexpr, B_BY_COLUMNS: tl.constexpr):
    """The sums of a tile."""
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, K, BK):
        left = a.load([k, m]).T if A_BY_COLUMNS else a.load([m, k])
        right = b.load([n, k]).T if B_BY_COLUMNS else b.load([k, n])
        total = tl.dot(left, right, total)
    return total


@triton.jit
def stored(c, total, m, n, BM: tl.constexpr, BN: tl.constexpr, HALVED: tl.constexpr):
    """Store a tile, in two parts if requested."""
    if HALVED:
        left, right = tl.split(tl.permute(tl.reshape(total, (BM, 2, BN // 2)), (0, 2, 1)))
        c.store([m, n], left.to(c.dtype))
        c.store([m, n + BN // 2], right.to(c.dtype))
    else:
        c.store([m, n], total.to(c.dtype))


@triton.jit
def matmul(
    a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr, A_BY_COLUMNS: tl.constexpr,
    B_BY_COLUMNS: tl.constexpr, HALVED: tl.constexpr,
):  # fmt: skip
    """One program per tile."""
    tile_m, tile_n = tile_of(tl.program_id(0), M, N, BM, BN, GROUP)
    total = summed(a, b, tile_m * BM, tile_n * BN, K, BM, BN, BK, A_BY_COLUMNS, B_BY_COLUMNS)
    stored(c, total, tile_m * BM, tile_n * BN, BM, BN, HALVED)


@triton.jit
def persistent_matmul(
    a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr, A_BY_COLUMNS: tl.constexpr,
    B_BY_COLUMNS: tl.constexpr, HALVED: tl.constexpr, PROGRAMS: tl.constexpr,
):  # fmt: skip
    """Each program computes one tile after the other."""
    tiles = tl.cdiv(M, BM) * tl.cdiv(N, BN)
    store_tile = tl.program_id(0) - PROGRAMS
    for number in tl.range(tl.program_id(0), tiles, PROGRAMS, flatten=True):
        tile_m, tile_n = tile_of(number, M, N, BM, BN, GROUP)
        total = summed(a, b, tile_m * BM, tile_n * BN, K, BM, BN, BK, A_BY_COLUMNS, B_BY_COLUMNS)
        store_tile += PROGRAMS  # a separate counter, so that the store does not wait for the next tile's number
        tile_m, tile_n = tile_of(store_tile, M, N, BM, BN, GROUP)
        stored(c, total, tile_m * BM, tile_n * BN, BM, BN, HALVED)


def launcher(a, b, out, config):
    """Return a launch of out = a @ b on PyTorch's current stream; the first one of a configuration compiles."""
    (M, K), N = a.shape, b.shape[1]
    bk = config.step // a.element_size()
    a_by_columns, b_by_columns = a.stride(1) != 1, b.stride(1) != 1
    left = TensorDescriptor.from_tensor(a.T, [bk, config.bm]) if a_by_columns else TensorDescriptor.from_tensor(a, [config.bm, bk])
    right = TensorDescriptor.from_tensor(b.T, [config.bn, bk]) if b_by_columns else TensorDescriptor.from_tensor(b, [bk, config.bn])
    result = TensorDescriptor.from_tensor(out, [config.bm, config.bn // 2 if config.halved else config.bn])
    tiles = triton.cdiv(M, config.bm) * triton.cdiv(N, config.bn)
    fixed = {"BM": config.bm, "BN": config.bn, "BK": bk, "GROUP": GROUP, "A_BY_COLUMNS": a_by_columns, "B_BY_COLUMNS": b_by_columns}
    fixed |= {"HALVED": config.halved, "num_warps": config.warps, "num_stages": config.stages}
    kernel, programs = (matmul, tiles) if not config.persistent else (persistent_matmul, min(SM_COUNT, tiles))
    if config.persistent:
        fixed["PROGRAMS"] = SM_COUNT
    return lambda: kernel[(programs,)](left, right, result, M, N, K, **fixed)
