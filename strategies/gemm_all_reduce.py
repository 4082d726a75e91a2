"""GEMM + all-reduce over the GPUs of a node: each GPU stores columns of A and rows of B, and the sum of all products.

    MatMul(M,N,K)(GL,GL,GL)(Node(2))           A and B over k, C complete on each GPU
      to_gpus("k", sums=float16)               MatMul(M,N,K/2)(GL,GL,GL)(Kernel) on each GPU
      hopper                                   persistent GEMM: producer warp, TMA, circular buffer, wgmma
                                               sum_of_gpus(M,N,2)(GL,GL)(Kernel): the sums of all GPUs

As `gemm_reduce_scatter`, but each GPU adds the sums of all rows. All GPUs add in the same order, so they store the same bits. `few_rows` is
for at most 64 rows, which read the large matrix once.

In `exchanged` and `few_rows_exchanged`, one launch without barriers does both: blocks store tiles on all GPUs, and `adding_warps` warps of
each block add a region after all GPUs have stored it. This is for few rows, as each GPU receives the sums of all others. For a call on
PyTorch tensors, see `fireiron.distributed.matmul_all_reduce`.
"""

from fireiron import *
from fireiron.strategies import hopper, hopper_skinny

SIZES = (1024, 512, 512)

strategy = MatMul.to_gpus("k", sums=float16).then(hopper.strategy)

few_rows = MatMul.to_gpus("k", sums=float16).then(hopper_skinny.strategy)

region_rows = Tunable("region_rows", 16, 8, 32, 64, 128, 192, 256)
region_columns = Tunable("region_columns", 64, 32, 128, 192, 256)
adding_warps = Tunable("adding_warps", 2, 1, 3, 4, 8)

FEW_REGISTERS = 64 * 128
"""Elements of a warpgroup's tile with which an SM has registers for more than 12 warps."""

together = MatMul.to_gpus("k", sums=float16).overlap(region_rows, region_columns, adding_warps)

exchanged = together.then(hopper.strategy)

few_rows_exchanged = together.then(hopper_skinny.strategy)


def exchanged_values_of(tile, M, N, blocks=132):
    """Return the values of `exchanged`, or `few_rows_exchanged`, for a tile of `hopper` or `hopper_skinny`; None if it is illegal.

    The tiles of `hopper_skinny` have a block each, so all must be resident; `hopper` gets `blocks` blocks.
    """
    bm, bn = tile["bm"], tile["bn"]
    resident = [count for count in hopper.num_blocks.values if count <= blocks]
    alone = tile.get("cluster_m", 1) * tile.get("cluster_n", 1) == 1
    skinny = "wm" not in tile
    if M % bm or N % bn or bm not in region_rows.values or bn not in region_columns.values or not resident or not alone:
        return None
    if skinny and bm * bn * blocks < M * N:
        return None
    tiles, working = M * N // (8 * min(bn, 256)), min(M * N // (bm * bn), blocks)  # tiles that warps add, and blocks with tiles
    most = 2 if tile.get("wm", bm) * tile.get("wn", bn) > FEW_REGISTERS else 8
    warps = next((warps for warps in (8, 4, 2) if warps <= most and tiles % warps == 0 and tiles >= warps * working), 1)
    own = {"region_rows": bm, "region_columns": bn, "adding_warps": warps}
    return {**tile, **own} if skinny else {**tile, **own, "num_blocks": max(resident)}


def spec(M, N, K, gpus=2, **options):
    """Return the problem of `gpus` GPUs: row-major float16 with float32 accumulators by default."""
    over = {name: options.pop(name, RowMajor).over(GPU, "k") for name in "AB"}
    return MatMul(M, N, K, **{"dtype": float16, "c_dtype": float16, "C": RowMajor, **over, **options})(GL, GL, GL)(Node(gpus))
