"""Triton's best fused kernels on Hopper: copies by TMA, `wgmma`, and the compiler's warp specialization if supported.

    from triton_tma import DUALS, dual

    call = dual(a, both, d, DUALS[0])   # row-major float16 PyTorch tensors; sizes are multiples of the tiles

The forms and tiles were the fastest of several on an H200 (Triton 3.6). There the compiler specializes only loops of four warps with 128
rows, and only with descriptors created on the device.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor
from triton_wgmma import GROUP, tile_of

from fireiron.ir.cluster import SM_COUNT


class Tiles(NamedTuple):
    """The tile of a program, its warps and stages, and whether the compiler specializes its warps."""

    bm: int
    bn: int
    bk: int
    warps: int
    stages: int
    specialized: bool = False

    def __str__(self):
        return f"{self.bm}x{self.bn}x{self.bk}, {self.warps} warps, {self.stages} stages{', specialized' * self.specialized}"


DUALS = (Tiles(128, 256, 64, 4, 3, True), Tiles(128, 128, 64, 4, 3), Tiles(128, 256, 64, 8, 2))
SUMS = (Tiles(128, 256, 64, 8, 3), Tiles(128, 128, 64, 4, 4))
CELLS = (Tiles(128, 256, 64, 8, 3), Tiles(128, 128, 64, 8, 4), Tiles(128, 128, 64, 4, 4), Tiles(64, 128, 64, 4, 4), Tiles(64, 64, 64, 4, 5))
STACKS = (Tiles(128, 256, 64, 8, 3), Tiles(128, 128, 64, 8, 4))
HEADS = (
    Tiles(64, 64, 0, 4, 3),
    Tiles(128, 64, 0, 4, 3),
    Tiles(128, 128, 0, 8, 2),
    Tiles(128, 128, 0, 4, 2, True),
    Tiles(128, 64, 0, 4, 2, True),
)
"""The candidates."""


@triton.jit
def duals(a, b, other, d, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr):
    """A tile of a @ b + a @ other."""
    tile_m, tile_n = tile_of(tl.program_id(0), M, N, BM, BN, GROUP)
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, K, BK):
        left = a.load([tile_m * BM, k])
        total = tl.dot(left, b.load([k, tile_n * BN]), total)
        total = tl.dot(left, other.load([k, tile_n * BN]), total)
    d.store([tile_m * BM, tile_n * BN], total.to(d.dtype))


@triton.jit
def duals_specialized(
    a, both, d, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr, PROGRAMS: tl.constexpr
):
    """The same as one loop over both operands, one above the other: columns of `a` start again."""
    a = tl.make_tensor_descriptor(a, shape=[M, K], strides=[K, 1], block_shape=[BM, BK])
    both = tl.make_tensor_descriptor(both, shape=[2 * K, N], strides=[N, 1], block_shape=[BK, BN])
    d = tl.make_tensor_descriptor(d, shape=[M, N], strides=[N, 1], block_shape=[BM, BN])
    for number in tl.range(tl.program_id(0), tl.cdiv(M, BM) * tl.cdiv(N, BN), PROGRAMS, warp_specialize=True):
        tile_m, tile_n = tile_of(number, M, N, BM, BN, GROUP)
        total = tl.zeros((BM, BN), dtype=tl.float32)
        for step in range(tl.cdiv(2 * K, BK)):
            left = a.load([tile_m * BM, step * BK % K])
            total = tl.dot(left, both.load([step * BK, tile_n * BN]), total)
        d.store([tile_m * BM, tile_n * BN], total.to(tl.float16))


@triton.jit
def sums(a, b, d, y, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr, EVERY: tl.constexpr):
    """A tile of a @ b, and the sums of its rows of `a`: by every program, or by those of the first column."""
    tile_m, tile_n = tile_of(tl.program_id(0), M, N, BM, BN, GROUP)
    total = tl.zeros((BM, BN), dtype=tl.float32)
    rows = tl.zeros((BM,), dtype=tl.float32)
    for k in range(0, K, BK):
        left = a.load([tile_m * BM, k])
        total = tl.dot(left, b.load([k, tile_n * BN]), total)
        if EVERY:
            rows += tl.sum(left.to(tl.float32), axis=1)
        else:
            if tile_n == 0:
                rows += tl.sum(left.to(tl.float32), axis=1)
    m = tile_m * BM + tl.arange(0, BM)
    tl.store(y + m, rows, mask=(m < M) & (tile_n == 0))
    d.store([tile_m * BM, tile_n * BN], total.to(d.dtype))


@triton.jit
def cell(x, w, h, r, bias, d, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr):
    """A tile of relu(x @ w + h @ r + bias): one loop after the other, into one accumulator."""
    tile_m, tile_n = tile_of(tl.program_id(0), M, N, BM, BN, GROUP)
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, K, BK):
        total = tl.dot(x.load([tile_m * BM, k]), w.load([k, tile_n * BN]), total)
    for k in range(0, K, BK):
        total = tl.dot(h.load([tile_m * BM, k]), r.load([k, tile_n * BN]), total)
    n = tile_n * BN + tl.arange(0, BN)
    total = tl.maximum(total + tl.load(bias + n).to(tl.float32)[None, :], 0.0)
    d.store([tile_m * BM, tile_n * BN], total.to(d.dtype))


@triton.jit
def stacks(a, b, d, M, N, K, COUNT, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr, PROGRAMS: tl.constexpr):
    """GEMM of matrices stored one below the other; programs compute one tile after the other, and store each in two parts."""
    each = tl.cdiv(M, BM) * tl.cdiv(N, BN)
    store_tile = tl.program_id(0) - PROGRAMS
    for number in tl.range(tl.program_id(0), each * COUNT, PROGRAMS, flatten=True):
        tile_m, tile_n = tile_of(number % each, M, N, BM, BN, GROUP)
        above = number // each
        total = tl.zeros((BM, BN), dtype=tl.float32)
        for k in range(0, K, BK):
            total = tl.dot(a.load([above * M + tile_m * BM, k]), b.load([above * K + k, tile_n * BN]), total)
        store_tile += PROGRAMS  # a separate counter, so that the store does not wait for the next tile's number
        tile_m, tile_n = tile_of(store_tile % each, M, N, BM, BN, GROUP)
        row = store_tile // each * M + tile_m * BM
        left, right = tl.split(tl.permute(tl.reshape(total, (BM, 2, BN // 2)), (0, 2, 1)))
        d.store([row, tile_n * BN], left.to(d.dtype))
        d.store([row, tile_n * BN + BN // 2], right.to(d.dtype))


@triton.jit
def attention(q, k, v, o, S, scale, BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr, CAUSAL: tl.constexpr, SPECIALIZED: tl.constexpr):
    """BM queries of a head; scores use exp2. With a mask the blocks before the diagonal come first, or all in one loop if specialized."""
    first = tl.program_id(1) * S
    if SPECIALIZED:
        rows = S * tl.num_programs(1)
        q = tl.make_tensor_descriptor(q, shape=[rows, D], strides=[D, 1], block_shape=[BM, D])
        k = tl.make_tensor_descriptor(k, shape=[rows, D], strides=[D, 1], block_shape=[BN, D])
        v = tl.make_tensor_descriptor(v, shape=[rows, D], strides=[D, 1], block_shape=[BN, D])
    block = tl.program_id(0)
    if CAUSAL:
        block = tl.cdiv(S, BM) - 1 - block
    queries = q.load([first + block * BM, 0])
    m, n = block * BM + tl.arange(0, BM), tl.arange(0, BN)
    most = tl.full((BM,), float("-inf"), dtype=tl.float32)
    share = tl.zeros((BM,), dtype=tl.float32)
    total = tl.zeros((BM, D), dtype=tl.float32)
    end = S
    if CAUSAL:
        end = (block + 1) * BM if SPECIALIZED else block * BM
    for start in tl.range(0, end, BN, warp_specialize=SPECIALIZED):
        scores = tl.dot(queries, k.load([first + start, 0]).T) * scale
        if CAUSAL and SPECIALIZED:
            scores = tl.where(m[:, None] >= (start + n)[None, :], scores, -1.0e30)
        now = tl.maximum(most, tl.max(scores, 1))
        p = tl.math.exp2(scores - now[:, None])
        less = tl.math.exp2(most - now)
        share = share * less + tl.sum(p, 1)
        total = tl.dot(p.to(tl.float16), v.load([first + start, 0]), total * less[:, None])
        most = now
    if CAUSAL and not SPECIALIZED:
        for start in range(end, end + BM, BN):
            scores = tl.dot(queries, k.load([first + start, 0]).T) * scale
            scores = tl.where(m[:, None] >= (start + n)[None, :], scores, -1.0e30)
            now = tl.maximum(most, tl.max(scores, 1))
            p = tl.math.exp2(scores - now[:, None])
            less = tl.math.exp2(most - now)
            share = share * less + tl.sum(p, 1)
            total = tl.dot(p.to(tl.float16), v.load([first + start, 0]), total * less[:, None])
            most = now
    d = tl.arange(0, D)
    tl.store(o + (first + m)[:, None] * D + d[None, :], (total / share[:, None]).to(tl.float16))


def described(tensor, rows, columns):
    """Return a descriptor of a matrix for tiles of a given size; for a batch all matrices one below the other."""
    return TensorDescriptor.from_tensor(tensor.reshape(-1, tensor.shape[-1]), [rows, columns])


def room(size, alignment, stream):
    """Memory for descriptors created on the device."""
    return torch.empty(size, device="cuda", dtype=torch.int8)


def options(tiles):
    """Return the common launch options."""
    return {"BM": tiles.bm, "BN": tiles.bn, "BK": tiles.bk, "GROUP": GROUP, "num_warps": tiles.warps, "num_stages": tiles.stages}


def grid(d, tiles):
    """One program per tile."""
    return (triton.cdiv(d.shape[-2], tiles.bm) * triton.cdiv(d.shape[-1], tiles.bn),)


def dual(a, both, d, tiles):
    """Return a launch of d = a @ both[0] + a @ both[1]."""
    (M, K), N = a.shape, d.shape[1]
    if tiles.specialized:
        triton.set_allocator(room)
        programs = min(SM_COUNT, grid(d, tiles)[0])
        return lambda: duals_specialized[(programs,)](a, both, d, M, N, K, PROGRAMS=programs, **options(tiles))
    left, first, second = described(a, tiles.bm, tiles.bk), *(described(one, tiles.bk, tiles.bn) for one in both)
    result = described(d, tiles.bm, tiles.bn)
    return lambda: duals[grid(d, tiles)](left, first, second, result, M, N, K, **options(tiles))


def row_sum(a, b, d, y, tiles, all_programs):
    """A launch of d = a @ b and y = a.sum(1); `all_programs`: every program sums its rows, else those of the first column of tiles."""
    (M, K), N = a.shape, d.shape[1]
    left, right, result = described(a, tiles.bm, tiles.bk), described(b, tiles.bk, tiles.bn), described(d, tiles.bm, tiles.bn)
    return lambda: sums[grid(d, tiles)](left, right, result, y, M, N, K, EVERY=all_programs, **options(tiles))


def lstm(x, w, h, r, bias, d, tiles):
    """Return a launch of d = relu(x @ w + h @ r + bias)."""
    (M, K), N = x.shape, d.shape[1]
    lefts, rights = (
        [described(one, *size) for one in pair] for pair, size in (((x, h), (tiles.bm, tiles.bk)), ((w, r), (tiles.bk, tiles.bn)))
    )
    result = described(d, tiles.bm, tiles.bn)
    return lambda: cell[grid(d, tiles)](lefts[0], rights[0], lefts[1], rights[1], bias, result, M, N, K, **options(tiles))


def batched(a, b, d, tiles):
    """Return a launch of d[i] = a[i] @ b[i]."""
    (count, M, K), N = a.shape, d.shape[-1]
    left, right, result = described(a, tiles.bm, tiles.bk), described(b, tiles.bk, tiles.bn), described(d, tiles.bm, tiles.bn // 2)
    programs = min(SM_COUNT, grid(d, tiles)[0] * count)
    return lambda: stacks[(programs,)](left, right, result, M, N, K, count, PROGRAMS=programs, **options(tiles))


def heads(q, k, v, o, causal, tiles):
    """Return a launch of attention on arrays (b, h, m, d)."""
    b, h, S, D = q.shape
    ends = (q, k, v)
    if tiles.specialized:
        triton.set_allocator(room)
    else:
        ends = [described(one, rows, D) for one, rows in zip(ends, (tiles.bm, tiles.bn, tiles.bn), strict=True)]
    fixed = {"BM": tiles.bm, "BN": tiles.bn, "D": D, "CAUSAL": causal, "SPECIALIZED": tiles.specialized}
    fixed |= {"num_warps": tiles.warps, "num_stages": tiles.stages}
    return lambda: attention[(triton.cdiv(S, tiles.bm), b * h)](*ends, o, S, 1.4426950408889634 * D**-0.5, **fixed)
