"""Triton's fused kernels by pointers: a multilayer perceptron, an LSTM cell, two GEMMs with a common operand, a GEMM and row sums;
restricted to `mma.sync` (peers.py) or with all instructions of the GPU.

Tensors are row-major float16 PyTorch tensors; the sizes are multiples of the tiles.
"""

import contextlib

import triton
import triton.language as tl
from peers import CONFIGS, GROUP, tile_of, without_wgmma

ROWS = ((128, 8, 2), (64, 4, 2), (128, 8, 3), (64, 4, 3), (128, 4, 2))
"""Rows of a program, its warps and stages, for the perceptron."""

CELLS = CONFIGS[:6]


@triton.jit
def perceptron(x, w, bias, y, L, BM: tl.constexpr, N: tl.constexpr):
    """BM rows through all layers; activations remain on the chip."""
    m, n = tl.program_id(0) * BM + tl.arange(0, BM), tl.arange(0, N)
    h = tl.load(x + m[:, None] * N + n[None, :])
    for layer in range(L):
        weights = tl.load(w + layer * N * N + n[:, None] * N + n[None, :])
        row = tl.load(bias + layer * N + n).to(tl.float32)
        h = tl.maximum(tl.dot(h, weights) + row[None, :], 0.0).to(x.dtype.element_ty)
    tl.store(y + m[:, None] * N + n[None, :], h)


@triton.jit
def cell(x, w, h, r, bias, d, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr):
    """A tile of relu(x @ w + h @ r + bias): one loop after the other, into one accumulator."""
    tile_m, tile_n = tile_of(tl.program_id(0), M, N, BM, BN, GROUP)
    m, n, k = tile_m * BM + tl.arange(0, BM), tile_n * BN + tl.arange(0, BN), tl.arange(0, BK)
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for start in range(0, K, BK):
        left = tl.load(x + m[:, None] * K + (start + k)[None, :])
        total = tl.dot(left, tl.load(w + (start + k)[:, None] * N + n[None, :]), total)
    for start in range(0, K, BK):
        left = tl.load(h + m[:, None] * K + (start + k)[None, :])
        total = tl.dot(left, tl.load(r + (start + k)[:, None] * N + n[None, :]), total)
    total = tl.maximum(total + tl.load(bias + n).to(tl.float32)[None, :], 0.0)
    tl.store(d + m[:, None] * N + n[None, :], total.to(d.dtype.element_ty))


@triton.jit
def duals(a, b, other, d, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr):
    """A tile of a @ b + a @ other."""
    tile_m, tile_n = tile_of(tl.program_id(0), M, N, BM, BN, GROUP)
    m, n, k = tile_m * BM + tl.arange(0, BM), tile_n * BN + tl.arange(0, BN), tl.arange(0, BK)
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for start in range(0, K, BK):
        left = tl.load(a + m[:, None] * K + (start + k)[None, :])
        total = tl.dot(left, tl.load(b + (start + k)[:, None] * N + n[None, :]), total)
        total = tl.dot(left, tl.load(other + (start + k)[:, None] * N + n[None, :]), total)
    tl.store(d + m[:, None] * N + n[None, :], total.to(d.dtype.element_ty))


@triton.jit
def sums(a, b, d, y, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr):
    """A tile of a @ b, and the sums of its rows of `a`, which the programs of the first column of tiles store."""
    tile_m, tile_n = tile_of(tl.program_id(0), M, N, BM, BN, GROUP)
    m, n, k = tile_m * BM + tl.arange(0, BM), tile_n * BN + tl.arange(0, BN), tl.arange(0, BK)
    total = tl.zeros((BM, BN), dtype=tl.float32)
    rows = tl.zeros((BM,), dtype=tl.float32)
    for start in range(0, K, BK):
        left = tl.load(a + m[:, None] * K + (start + k)[None, :])
        total = tl.dot(left, tl.load(b + (start + k)[:, None] * N + n[None, :]), total)
        rows += tl.sum(left.to(tl.float32), axis=1)
    tl.store(y + m, rows, mask=(m < M) & (tile_n == 0))
    tl.store(d + m[:, None] * N + n[None, :], total.to(d.dtype.element_ty))


def products(kernel, tensors, d, config, only_mma_sync):
    """Return a launch of `duals` or `sums` on its tensors, of which `d` is the GEMM result, with a configuration of peers.py."""
    (M, N), K = d.shape, tensors[0].shape[1]
    tiles = {"BM": config.bm, "BN": config.bn, "BK": config.bk, "GROUP": GROUP}

    def launch():
        with restricted(only_mma_sync):
            grid = (M // config.bm * (N // config.bn),)
            return kernel[grid](*tensors, M, N, K, **tiles, num_warps=config.warps, num_stages=config.stages)

    return launch


def restricted(yes):
    """Return a context in which Triton's compiler does not use wgmma, or one without effect."""
    return without_wgmma() if yes else contextlib.nullcontext()


def perceptrons(x, w, bias, y, rows, only_mma_sync):
    """Return a launch with rows, warps and stages; it returns Triton's compiled kernel."""
    bm, warps, stages = rows

    def launch():
        with restricted(only_mma_sync):
            return perceptron[(x.shape[0] // bm,)](x, w, bias, y, w.shape[0], BM=bm, N=x.shape[1], num_warps=warps, num_stages=stages)

    return launch


def cells(x, w, h, r, bias, d, config, only_mma_sync):
    """Return a launch with a configuration of peers.py; it returns Triton's compiled kernel."""
    (M, K), N = x.shape, w.shape[1]
    tiles = {"BM": config.bm, "BN": config.bn, "BK": config.bk, "GROUP": GROUP}

    def launch():
        with restricted(only_mma_sync):
            grid = (M // config.bm * (N // config.bn),)
            return cell[grid](x, w, h, r, bias, d, M, N, K, **tiles, num_warps=config.warps, num_stages=config.stages)

    return launch
