"""The gradient of RMSNorm of a sum Z = X + R with respect to X, which is that of R, and the scale of each row.

    rmsnorm_residual_input_gradient(M,N)(GL,GL,GL,GL,GL,GL)(Kernel)
      tile(m=rows).to(Block)           rmsnorm_residual_input_gradient(1,N)(GL,...)(Block)
      load(Z), load(dY), load(dZ)      rows to warps
      load(weight)                     rmsnorm_residual_input_gradient(1,N)(RF,RF,GL,RF,RF,...)(Block)
      done()                           each step on the registers of the row

dZ is the gradient that the residual stream carries. All arrays are read once.
"""

from fireiron import *
from fireiron.strategies._rows import cached, fitting, rows, streamed

SIZES = (4096, 1024)

rmsnorm_residual_input_gradient = Fused(
    name="rmsnorm_residual_input_gradient",
    dims="m n",
    operands={"Z": "m n", "weight": "n", "eps": "", "dY": "m n", "dZ": "m n", "dX": "m n", "scale": "m"},
    body={
        "square": "sq[m,n] = Z[m,n] * Z[m,n]",
        "weighted": "g[m,n] = dY[m,n] * weight[n]",
        "product": "gz[m,n] = g[m,n] * Z[m,n]",
        "squares": "r[m] = sum(n, sq[m,n])",
        "dot": "dot[m] = sum(n, gz[m,n])",
        "root": "r[m] = rsqrt(r[m] / size(n) + eps)",
        "scale": "scale[m] = r[m]",
        "factor": "dot[m] = dot[m] * r[m] * r[m] / size(n)",
        "out": "dx[m,n] = (g[m,n] - Z[m,n] * dot[m]) * r[m] + dZ[m,n]",
        "store": "dX[m,n] = dx[m,n]",
    },
    types={"scale": float32},
)

strategy = (
    rmsnorm_residual_input_gradient.tile(m=rows)
    .to(Block)
    .load("Z", RF, cached)
    .load("dY", RF, cached)
    .load("dZ", RF, cached)
    .load("weight", RF, Move.done())
    .step("store", streamed)
    .done()
)


def spec(M, N, **options):
    """Return the problem: float16 by default; options are `dtype`, `types` and strides by operand. It takes Z, weight, eps, dY and dZ."""
    return rmsnorm_residual_input_gradient(m=M, n=N, **options)


def values(spec):
    """Return tunables for a problem without a record, by row length."""
    return fitting(spec)
