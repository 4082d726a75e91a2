"""RMSNorm of the rows of a matrix, with a weight: a row in the registers of one warp, or of several of a block.

    rmsnorm(M,N)(GL,GL,GL)(Kernel)
      tile(m=rows).to(Block)           rmsnorm(1,N)(GL,GL,GL)(Block)
      load(X, RF), rows to warps       rmsnorm(1,N)(RF,GL,GL)(Block)
      load(weight)                     rmsnorm(1,N)(RF,RF,GL)(Block)
      done()                           each step where the row is held

The sum of squares in float32, by shuffles, and through shared memory where several warps have a row. `values(spec)` are the tunables
for a size.
"""

from fireiron import *
from fireiron.strategies._rows import fitting, once, rows, streamed

SIZES = (4096, 1024)

rmsnorm = Fused(
    name="rmsnorm",
    dims="m n",
    operands={"X": "m n", "weight": "n", "eps": "", "Y": "m n"},
    body={
        "square": "sq[m,n] = X[m,n] * X[m,n]",
        "sum": "scale[m] = sum(n, sq[m,n])",
        "scale": "scale[m] = rsqrt(scale[m] / size(n) + eps)",
        "out": "y[m,n] = X[m,n] * scale[m] * weight[n]",
        "store": "Y[m,n] = y[m,n]",
    },
)

strategy = rmsnorm.tile(m=rows).to(Block).load("X", RF, once).load("weight", RF, Move.done()).step("store", streamed).done()


def spec(M, N, **options):
    """Halves, unless said otherwise: `dtype`, `types` by operand, strides by operand. The kernel takes X, weight and eps."""
    return rmsnorm(m=M, n=N, **options)


def values(spec):
    """The tunables for a problem, which is not measured: by the elements of a row, and how many rows there are (measured on an H200)."""
    return fitting(spec, few=16384)
