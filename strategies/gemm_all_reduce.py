"""GEMM + all-reduce over the GPUs of a node: each GPU stores columns of A and rows of B, and the sum of all products.

    MatMul(M,N,K)(GL,GL,GL)(Node(2))           A and B over k, C complete on each GPU
      to_gpus("k", sums=float16)               MatMul(M,N,K/2)(GL,GL,GL)(Kernel) on each GPU
      hopper                                   persistent GEMM: producer warp, TMA, circular buffer, wgmma
                                               sum_of_gpus(M,N,2)(GL,GL)(Kernel): the sums of all GPUs

As `gemm_reduce_scatter`, but each GPU adds the sums of all rows. All GPUs add in the same order, so they store the same bits. `few_rows` is
for at most 64 rows, which read the large matrix once. For a call on PyTorch tensors, see `fireiron.distributed.matmul_all_reduce`.
"""

from fireiron import *
from fireiron.strategies import hopper, hopper_skinny

SIZES = (1024, 512, 512)

strategy = MatMul.to_gpus("k", sums=float16).then(hopper.strategy)

few_rows = MatMul.to_gpus("k", sums=float16).then(hopper_skinny.strategy)


def spec(M, N, K, gpus=2, **options):
    """Return the problem of `gpus` GPUs: row-major float16 with float32 accumulators by default."""
    over = {name: options.pop(name, RowMajor).over(GPU, "k") for name in "AB"}
    return MatMul(M, N, K, **{"dtype": float16, "c_dtype": float16, **over, **options})(GL, GL, GL)(Node(gpus))
