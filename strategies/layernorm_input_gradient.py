"""The gradient of LayerNorm with respect to its input, and mean and scale of each row, which the gradients of weight and bias read.

    layernorm_input_gradient(M,N)(GL,GL,GL,GL,GL,GL)(Kernel)
      tile(m=rows).to(Block)           layernorm_input_gradient(1,N)(GL,...)(Block)
      load(X, RF), load(dY, RF)        rows to warps
      load(weight)                     layernorm_input_gradient(1,N)(RF,RF,GL,RF,...)(Block)
      done()                           each step on the registers of the row

X and dY are read once. Mean and scale are computed again, so the forward pass need not store them.
"""

from fireiron import *
from fireiron.strategies._rows import cached, fitting, rows, streamed

SIZES = (4096, 1024)

layernorm_input_gradient = Fused(
    name="layernorm_input_gradient",
    dims="m n",
    operands={"X": "m n", "weight": "n", "eps": "", "dY": "m n", "dX": "m n", "mean": "m", "scale": "m"},
    body={
        "sum": "u[m] = sum(n, X[m,n])",
        "middle": "u[m] = u[m] / size(n)",
        "center": "c[m,n] = X[m,n] - u[m]",
        "square": "sq[m,n] = c[m,n] * c[m,n]",
        "weighted": "g[m,n] = dY[m,n] * weight[n]",
        "product": "gc[m,n] = g[m,n] * c[m,n]",
        "squares": "r[m] = sum(n, sq[m,n])",
        "dot": "dot[m] = sum(n, gc[m,n])",
        "total": "all[m] = sum(n, g[m,n])",
        "root": "r[m] = rsqrt(r[m] / size(n) + eps)",
        "mean": "mean[m] = u[m]",
        "scale": "scale[m] = r[m]",
        "factor": "dot[m] = dot[m] * r[m] * r[m] / size(n)",
        "shift": "all[m] = all[m] / size(n)",
        "out": "dx[m,n] = (g[m,n] - all[m] - c[m,n] * dot[m]) * r[m]",
        "store": "dX[m,n] = dx[m,n]",
    },
    types={"mean": float32, "scale": float32},
)

strategy = (
    layernorm_input_gradient.tile(m=rows)
    .to(Block)
    .load("X", RF, cached)
    .load("dY", RF, cached)
    .load("weight", RF, Move.done())
    .step("store", streamed)
    .done()
)


def spec(M, N, **options):
    """Return the problem: float16 by default; options are `dtype`, `types`, strides by operand. The kernel takes X, weight, eps and dY."""
    return layernorm_input_gradient(m=M, n=N, **options)


def values(spec):
    """Return tunables for a problem without a record, by row length."""
    return fitting(spec)
