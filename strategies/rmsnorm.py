"""RMSNorm of the rows of a matrix, with a weight: a row is in the registers of one warp, or of several warps of a block.

    rmsnorm(M,N)(GL,GL,GL)(Kernel)
      tile(m=rows).to(Block)           rmsnorm(1,N)(GL,GL,GL)(Block)
      load(X, RF), rows to warps       rmsnorm(1,N)(RF,GL,GL)(Block)
      load(weight)                     rmsnorm(1,N)(RF,RF,GL)(Block)
      done()                           each step on the registers of the row

The sum of squares is float32, by shuffles, and through shared memory if several warps share a row. `values(spec)` returns the tunables
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

gradient = ("rmsnorm_input_gradient", "rmsnorm_weight_gradient")
"""The functions of the backward pass."""


def spec(M, N, **options):
    """Return the problem: float16 by default; options are `dtype`, `types` and strides by operand. The kernel takes X, weight and eps."""
    return rmsnorm(m=M, n=N, **options)


def values(spec):
    """Return tunables for a problem without a record, by row length and number of rows (measured on an H200)."""
    return fitting(spec, few=16384)
