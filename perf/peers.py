"""Triton's GEMM on the tensor-core instructions that our strategies use: `mma.sync`, without `wgmma`, also on Hopper.

    from peers import CONFIGS, Config, instructions, triton_mma_sync_matmul

    compiled = triton_mma_sync_matmul(a, b, out, CONFIGS[0])   # PyTorch tensors, float16 or bfloat16; any strides
    assert instructions(compiled) == "mma.sync"

Triton has no option for this, but its compiler reads the environment. With DISABLE_MMA_V3=1, the pass that chooses the layout of
each `tl.dot` (TritonGPUAccelerateMatmul) skips version 3, which is wgmma, and uses version 2, which is mma.sync. The variable is
part of the key of Triton's cache on disk, so a kernel compiled without it is not reused. It is set only around the calls here.
`instructions` reads the compiled PTX, so it detects a version of Triton that ignores the variable.
"""

import os
from contextlib import contextmanager
from typing import NamedTuple

import triton
import triton.language as tl

SWITCH = "DISABLE_MMA_V3"
GROUP = 8  # rows of output tiles that are computed together, so that their parts of A stay in L2


class Config(NamedTuple):
    """The tile of a block, the depth of its pipeline, and its warps."""

    bm: int
    bn: int
    bk: int
    stages: int
    warps: int

    def __str__(self):
        return f"{self.bm}x{self.bn}x{self.bk}, {self.stages} stages, {self.warps} warps"


CONFIGS = (
    Config(128, 128, 32, 4, 4),
    Config(128, 128, 32, 5, 8),
    Config(128, 128, 64, 3, 4),
    Config(128, 128, 64, 4, 8),
    Config(128, 256, 32, 4, 8),
    Config(256, 128, 32, 4, 8),
    Config(128, 256, 64, 3, 8),
    Config(256, 128, 64, 3, 8),
)


@triton.jit
def tile_of(program, M, N, BM: tl.constexpr, BN: tl.constexpr, GROUP: tl.constexpr):
    """The output tile of a program: down the rows of a group, then along its columns."""
    rows = tl.cdiv(M, BM)
    columns = tl.cdiv(N, BN)
    first = program // (GROUP * columns) * GROUP
    height = min(rows - first, GROUP)
    inside = program % (GROUP * columns)
    return first + inside % height, inside // height


@triton.jit
def matmul(
    a, b, c, M, N, K, a_m, a_k, b_k, b_n, c_m, c_n, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr, WHOLE_K: tl.constexpr
):  # fmt: skip
    """One output tile; rows and columns beyond the edge wrap around when they are read, and are not written."""
    tile_m, tile_n = tile_of(tl.program_id(0), M, N, BM, BN, GROUP)
    m = tile_m * BM + tl.arange(0, BM)
    n = tile_n * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    a_tile = a + (m % M)[:, None] * a_m + k[None, :] * a_k
    b_tile = b + k[:, None] * b_k + (n % N)[None, :] * b_n
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for start in range(0, K, BK):
        if WHOLE_K:
            total = tl.dot(tl.load(a_tile), tl.load(b_tile), total)
        else:
            left = tl.load(a_tile, mask=k[None, :] < K - start, other=0.0)
            total = tl.dot(left, tl.load(b_tile, mask=k[:, None] < K - start, other=0.0), total)
        a_tile += BK * a_k
        b_tile += BK * b_k
    inside = (m[:, None] < M) & (n[None, :] < N)
    tl.store(c + m[:, None] * c_m + n[None, :] * c_n, total.to(c.dtype.element_ty), mask=inside)


@contextmanager
def without_wgmma():
    """Disable wgmma in Triton's compiler inside the with-statement."""
    before = os.environ.get(SWITCH)
    os.environ[SWITCH] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[SWITCH]
        else:
            os.environ[SWITCH] = before


def triton_mma_sync_matmul(a, b, out, config):
    """out = a @ b with accumulation in float32, on PyTorch's current stream; returns Triton's compiled kernel.

    The first call of a configuration compiles; call it once before a graph is captured.
    """
    (M, K), N = a.shape, b.shape[1]
    grid = (triton.cdiv(M, config.bm) * triton.cdiv(N, config.bn),)
    tile = {"BM": config.bm, "BN": config.bn, "BK": config.bk, "GROUP": GROUP, "WHOLE_K": K % config.bk == 0}
    strides = *a.stride(), *b.stride(), *out.stride()
    with without_wgmma():
        return matmul[grid](a, b, out, M, N, K, *strides, **tile, num_stages=config.stages, num_warps=config.warps)


def instructions(compiled):
    """Return the tensor-core instructions in a kernel's PTX: "mma.sync", or "not restricted" where it has wgmma or no mma.sync."""
    ptx = compiled.asm["ptx"]
    return "mma.sync" if "mma.sync" in ptx and "wgmma" not in ptx else "not restricted"
