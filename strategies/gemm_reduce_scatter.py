"""GEMM + reduce-scatter over the GPUs of a node: each GPU stores columns of A and rows of B, and rows of the sum of all products.

    MatMul(M,N,K)(GL,GL,GL)(Node(2))           A and B over k, C over m
      to_gpus("k", sums=float16)               MatMul(M,N,K/2)(GL,GL,GL)(Kernel) on each GPU, for all rows
      hopper                                   persistent GEMM: producer warp, TMA, circular buffer, wgmma
                                               sum_of_gpus(M/2,N,2)(GL,GL)(Kernel): the sums of all GPUs for the rows of this GPU

Each GPU stores its sums for all rows. A second launch reads the sums of all GPUs for the rows that the GPU stores, by vectors of 16 bytes,
and adds them in the order of the GPUs. So results are the same in each run. `strategy` rounds the sums of a GPU to float16, as collectives
do, so that half the bytes cross the link; `exact` keeps them in float32.

Barriers of all GPUs precede the second launch, because other GPUs write their sums, and follow it, before they write the next ones.

In `exchanged`, one launch without barriers does both: blocks store tiles on the GPU that adds them, and `adding_warps` warps of each block
add a region after all GPUs have stored it. A region has half of the rows of a tile, if this is what warpgroups store: 668 us instead of 712
us for 8192 x 8192 x 3584 on two H200. `exchanged_values_of` returns the tunables for a tile of `hopper`.

In `storing`, a separate warp stores the tiles, from a circular buffer of all pieces of a tile. It waits until they have arrived, and counts
the tile, while the warpgroups compute the next one: a fence at the scope of the system takes 3 us on an H200. `storing_values_of` returns
the tunables.

The other tunables are those of `hopper`. For a call on PyTorch tensors, see `fireiron.distributed.matmul_reduce_scatter`.
"""

from fireiron import *
from fireiron.strategies import hopper

SIZES = (1024, 512, 512)

strategy = MatMul.to_gpus("k", sums=float16).then(hopper.strategy)

exact = MatMul.to_gpus("k").then(hopper.strategy)

region_rows = Tunable("region_rows", 128, 16, 32, 64, 192, 256)
region_columns = Tunable("region_columns", 256, 32, 64, 128, 192)
adding_warps = Tunable("adding_warps", 2, 1, 3)

exchanged = MatMul.to_gpus("k", sums=float16).overlap(region_rows, region_columns, adding_warps).then(hopper.strategy)


storing = MatMul.to_gpus("k", sums=float16).overlap(region_rows, region_columns, adding_warps).then(hopper.storing)

PIECE = 64
"""Columns of a piece that the storing warp stores at once."""

SHARED_BYTES = 226 * 1024
"""Bytes of shared memory of a block for tiles: those of an SM, without 1 KB of the system and 1 KB for mbarriers."""


def storing_values_of(tile, M, N, blocks=132):
    """Return the values of `storing`; None if a tile is illegal, or if other than two warpgroups compute it, in rows of one instruction."""
    values = exchanged_values_of(tile, M, N, blocks)
    bm, bn, bk = tile["bm"], tile["bn"], tile.get("bk", hopper.bk.values[0])
    wm, wn = tile.get("wm", bm), tile.get("wn", bn)
    pieces = wn // PIECE
    stages = (SHARED_BYTES - 2 * bm * bn) // (2 * bk * (bm + bn))
    if values is None or wm != 64 or (bm // wm) * (bn // wn) != 2 or wn % PIECE or pieces not in hopper.store_stages.values:
        return None
    kept = {name: value for name, value in values.items() if name != "producer_threads"}
    own = {"epi_m": wm, "epi_n": PIECE, "store_stages": pieces, "region_rows": bm, "stages": min(stages, max(hopper.stages.values))}
    return {**kept, **own} if stages > 1 else None


def exchanged_values_of(tile, M, N, blocks=132):
    """Return the values of `exchanged` for a tile of `hopper`, `M` rows that a GPU adds, and `blocks` resident blocks; None if illegal.

    Tiles divide the rows and columns. Clusters are slower (716 instead of 680 us for 8192 x 8192 x 3584), so tiles in clusters have none.
    Warpgroups that compute different tiles are illegal.
    """
    bm, bn = tile["bm"], tile["bn"]
    resident = [count for count in hopper.num_blocks.values if count <= blocks]
    alone = tile.get("cluster_m", 1) * tile.get("cluster_n", 1) == 1
    if M % bm or N % bn or bm not in region_rows.values or bn not in region_columns.values or not resident or not alone:
        return None
    warps = 2 if M * N // (8 * min(bn, 256)) % 2 == 0 else 1
    rows = bm // 2 if bm // 2 % tile.get("wm", bm) == 0 and bm // 2 in region_rows.values else bm  # warps wait for fewer tiles
    return {**tile, "num_blocks": max(resident), "region_rows": rows, "region_columns": bn, "adding_warps": warps}


def spec(M, N, K, gpus=2, **options):
    """Return the problem of `gpus` GPUs: row-major float16 with float32 accumulators by default."""
    over = {name: options.pop(name, RowMajor).over(GPU, dim) for name, dim in (("A", "k"), ("B", "k"), ("C", "m"))}
    return MatMul(M, N, K, **{"dtype": float16, "c_dtype": float16, **over, **options})(GL, GL, GL)(Node(gpus))
