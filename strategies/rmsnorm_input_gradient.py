"""The gradient of RMSNorm with respect to its input, and the scale of each row, which the gradient of the weight reads.

    rmsnorm_input_gradient(M,N)(GL,GL,GL,GL,GL)(Kernel)
      tile(m=rows).to(Block)           rmsnorm_input_gradient(1,N)(GL,...)(Block)
      load(X, RF), load(dY, RF)        rows to warps
      load(weight)                     rmsnorm_input_gradient(1,N)(RF,RF,GL,RF,...)(Block)
      done()                           each step on the registers of the row

X and dY are read once. The scale is computed again, so the forward pass need not store it.
"""

from fireiron import *
from fireiron.strategies._rows import cached, fitting, rows, streamed

SIZES = (4096, 1024)

rmsnorm_input_gradient = Fused(
    name="rmsnorm_input_gradient",
    dims="m n",
    operands={"X": "m n", "weight": "n", "eps": "", "dY": "m n", "dX": "m n", "scale": "m"},
    body={
        "square": "sq[m,n] = X[m,n] * X[m,n]",
        "weighted": "g[m,n] = dY[m,n] * weight[n]",
        "product": "gx[m,n] = g[m,n] * X[m,n]",
        "squares": "r[m] = sum(n, sq[m,n])",
        "dot": "dot[m] = sum(n, gx[m,n])",
        "root": "r[m] = rsqrt(r[m] / size(n) + eps)",
        "scale": "scale[m] = r[m]",
        "factor": "dot[m] = dot[m] * r[m] * r[m] / size(n)",
        "out": "dx[m,n] = (g[m,n] - X[m,n] * dot[m]) * r[m]",
        "store": "dX[m,n] = dx[m,n]",
    },
    types={"scale": float32},
)

strategy = (
    rmsnorm_input_gradient.tile(m=rows)
    .to(Block)
    .load("X", RF, cached)
    .load("dY", RF, cached)
    .load("weight", RF, Move.done())
    .step("store", streamed)
    .done()
)


def spec(M, N, **options):
    """Return the problem: float16 by default; options are `dtype`, `types`, strides by operand. The kernel takes X, weight, eps and dY."""
    return rmsnorm_input_gradient(m=M, n=N, **options)


def values(spec):
    """Return tunables for a problem without a record, by row length."""
    return fitting(spec)
