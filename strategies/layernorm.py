"""LayerNorm of the rows of a matrix, with weight and bias: a row in the registers of one warp, or of several of a block.

    layernorm(M,N)(GL,GL,GL,GL)(Kernel)
      tile(m=rows).to(Block)           layernorm(1,N)(GL,GL,GL,GL)(Block)
      load(X, RF), rows to warps       layernorm(1,N)(RF,GL,GL,GL)(Block)
      load(weight), load(bias)         layernorm(1,N)(RF,RF,RF,GL)(Block)
      done()                           each step where the row is held

The mean first, then the squares of what differs from it, in float32, both by shuffles, and through shared memory where several warps
have a row. X is read once; weight and bias are on their way before the sums begin. `values(spec)` are the tunables for a size.
"""

from fireiron import *
from fireiron.strategies._rows import fitting, once, rows, streamed

SIZES = (4096, 1024)

layernorm = Fused(
    name="layernorm",
    dims="m n",
    operands={"X": "m n", "weight": "n", "bias": "n", "eps": "", "Y": "m n"},
    each={
        "sum": "mean[m] = sum(n, X[m,n])",
        "mean": "mean[m] = mean[m] / size(n)",
        "center": "c[m,n] = X[m,n] - mean[m]",
        "square": "sq[m,n] = c[m,n] * c[m,n]",
        "squares": "scale[m] = sum(n, sq[m,n])",
        "scale": "scale[m] = rsqrt(scale[m] / size(n) + eps)",
        "out": "y[m,n] = c[m,n] * scale[m] * weight[n] + bias[n]",
        "store": "Y[m,n] = y[m,n]",
    },
)

strategy = (
    layernorm.tile(m=rows)
    .to(Block)
    .load("X", RF, once)
    .load("weight", RF, Move.done())
    .load("bias", RF, Move.done())
    .step("store", streamed)
    .done()
)


def spec(M, N, **options):
    """Halves, unless said otherwise: `dtype`, `types` by operand, strides by operand. The kernel takes X, weight, bias and eps."""
    return layernorm(m=M, n=N, **options)


def values(spec):
    """The tunables for a problem, which is not measured: by the elements of a row, and how many rows there are (measured on an H200)."""
    return fitting(spec, few=4096)
