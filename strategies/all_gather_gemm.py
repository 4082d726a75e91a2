"""All-gather + GEMM over the GPUs of a node: each GPU stores rows of A and columns of B, and computes columns of C.

    MatMul(M,N,K)(GL,GL,GL)(Node(2))           A over m, B and C over n
      to_gpus("n")                             MatMul(M,N/2,K)(GL,GL,GL)(Kernel) on each GPU, which needs the rows of all GPUs
      load(A, GL)                              a launch copies the rows of all GPUs to each GPU, by vectors of 16 bytes
      hopper                                   persistent GEMM: producer warp, TMA, circular buffer, wgmma

A launch that reads a part of another GPU moves it over the link each time, because no cache keeps it. So `strategy` copies A once. `direct`
has no copy: the tiles of the GEMM read the parts of A by TMA. It is faster if all columns of a GPU fit in one or two tiles.

Barriers of all GPUs precede the copy, because other GPUs write their rows, and follow the last launch, before A may change. The tunables
are those of `hopper`. For a call on PyTorch tensors, see `fireiron.distributed.all_gather_matmul`.
"""

from fireiron import *
from fireiron.strategies import hopper

SIZES = (1024, 512, 512)

strategy = MatMul.to_gpus("n").load(A, GL).then(hopper.strategy)

direct = MatMul.to_gpus("n").then(hopper.strategy)


def spec(M, N, K, gpus=2, **options):
    """Return the problem of `gpus` GPUs: row-major float16 with float32 accumulators by default."""
    over = {name: options.pop(name, RowMajor).over(GPU, dim) for name, dim in (("A", "m"), ("B", "n"), ("C", "n"))}
    return MatMul(M, N, K, **{"dtype": float16, "c_dtype": float16, **over, **options})(GL, GL, GL)(Node(gpus))
