"""All-gather + GEMM over the GPUs of a node: each GPU stores rows of A and columns of B, and computes columns of C.

    MatMul(M,N,K)(GL,GL,GL)(Node(2))           A over m, B and C over n
      to_gpus("n")                             MatMul(M,N/2,K)(GL,GL,GL)(Kernel) on each GPU, which needs the rows of all GPUs
      load(A, GL)                              a launch copies the rows of all GPUs to each GPU, by vectors of 16 bytes
      hopper                                   persistent GEMM: producer warp, TMA, circular buffer, wgmma

A launch that reads a part of another GPU moves it over the link each time, because no cache keeps it. So `strategy` copies A once. `direct`
has no copy: the tiles of the GEMM read the parts of A by TMA. It is faster if all columns of a GPU fit in one or two tiles.

In `overlapped`, the launch of the GEMM copies A: `copying_warps` warps of each block copy the rows of their GPU to the others, and the
producer waits for a region of A, which has `region_rows` rows, those of a tile, and `region_columns` columns. Large regions need few waits:
2048 columns were faster than 512 on two H200, unless each block computes one tile. `overlapped_values_of` returns the tunables for a tile
of `hopper`.

In the other two, barriers of all GPUs precede the launch that reads rows of others, because other GPUs write them, and follow the last
launch, before A may change. The other tunables are those of `hopper`. For a call on PyTorch tensors, see
`fireiron.distributed.all_gather_matmul`.
"""

from fireiron import *
from fireiron.strategies import hopper

SIZES = (1024, 512, 512)

region_rows = Tunable("region_rows", 128, 64, 192, 256)
region_columns = Tunable("region_columns", 512, 64, 128, 256, 1024, 2048, 4096)
copying_warps = Tunable("copying_warps", 1, 2, 3)

MOST_COLUMNS, OF_FIRST = 2048, 512
"""Columns of a region, if they divide a row of A; fewer if each block computes one tile, so that all of them wait for the first copies."""

strategy = MatMul.to_gpus("n").load(A, GL).then(hopper.strategy)

overlapped = MatMul.to_gpus("n").load(A, GL).overlap(region_rows, region_columns, copying_warps).then(hopper.strategy)

direct = MatMul.to_gpus("n").then(hopper.strategy)


def overlapped_values_of(tile, M, N, K, blocks=132):
    """Return the values of `overlapped` for a tile of `hopper` and `blocks` resident blocks; None if the copy cannot overlap with it.

    Args: `M`, `N`, `K` are the sizes of the product of one GPU.

    A region has the rows of a tile, so these divide M. Clusters of two tiles along M are legal: other clusters are not faster on two H200.
    """
    bm, bk = tile["bm"], tile.get("bk", hopper.bk.values[0])
    most = OF_FIRST if -(-M // bm) * -(-N // tile["bn"]) <= blocks else MOST_COLUMNS
    columns = [size for size in region_columns.values if size <= most and K % size == 0 and size % bk == 0]
    resident = [count for count in hopper.num_blocks.values if count <= blocks]
    cluster_m, cluster_n = tile.get("cluster_m", 1), tile.get("cluster_n", 1)
    if M % (bm * cluster_m) or bm not in region_rows.values or not columns or not resident or cluster_m > 2 or cluster_n > 1:
        return None
    own = {"num_blocks": max(resident), "region_rows": bm, "region_columns": max(columns), "copying_warps": 1}
    return {**tile, **own}


def spec(M, N, K, gpus=2, **options):
    """Return the problem of `gpus` GPUs: row-major float16 with float32 accumulators by default."""
    over = {name: options.pop(name, RowMajor).over(GPU, dim) for name, dim in (("A", "m"), ("B", "n"), ("C", "n"))}
    return MatMul(M, N, K, **{"dtype": float16, "c_dtype": float16, **over, **options})(GL, GL, GL)(Node(gpus))
