"""RMSNorm of a sum: Z = X + R, the new residual stream, and Y, its normalized rows times a weight.

    rmsnorm_residual(M,N)(GL,GL,GL,GL,GL)(Kernel)
      tile(m=rows).to(Block)           rmsnorm_residual(1,N)(GL,...)(Block)
      load(X, RF), load(R, RF)         rows to warps
      load(weight)                     rmsnorm_residual(1,N)(RF,RF,RF,GL,GL)(Block)
      done()                           each step on the registers of the row

The norm reads the sum in float32, before it is rounded to the type of Z. `eight_bit` writes Y as 8-bit floats with a scale per row:
`Y * scale` are the normalized rows times the weight, and the largest element of a row of Y is 448.
"""

from fireiron import *
from fireiron.strategies._rows import cached, fitting, rows

SIZES = (4096, 1024)

LARGEST = 448
"""The largest finite value of float8_e4m3."""

NORMALIZED = {
    "add": "t[m,n] = X[m,n] + R[m,n]",
    "square": "sq[m,n] = t[m,n] * t[m,n]",
    "sum": "r[m] = sum(n, sq[m,n])",
    "root": "r[m] = rsqrt(r[m] / size(n) + eps)",
    "out": "y[m,n] = t[m,n] * r[m] * weight[n]",
    "residual": "Z[m,n] = t[m,n]",
}
INPUTS = {"X": "m n", "R": "m n", "weight": "n", "eps": ""}

rmsnorm_residual = Fused(
    name="rmsnorm_residual",
    dims="m n",
    operands={**INPUTS, "Z": "m n", "Y": "m n"},
    body={**NORMALIZED, "store": "Y[m,n] = y[m,n]"},
)

quantized = Fused(
    name="rmsnorm_residual",
    dims="m n",
    operands={**INPUTS, "Z": "m n", "Y": "m n", "scale": "m"},
    body={
        **NORMALIZED,
        "abs": "a[m,n] = abs(y[m,n])",
        "top": "top[m] = max(n, a[m,n])",
        "least": "top[m] = max(top[m], 1e-12)",
        "scale": f"scale[m] = top[m] / {LARGEST}",
        "factor": f"f[m] = {LARGEST} / top[m]",
        "eight": "y[m,n] = y[m,n] * f[m]",
        "store": "Y[m,n] = y[m,n]",
    },
    types={"Y": float8_e4m3, "scale": float32},
)


def of(definition):
    """Return the strategy for a definition."""
    return definition.tile(m=rows).to(Block).load("X", RF, cached).load("R", RF, cached).load("weight", RF, Move.done()).done()


strategy, eight_bit = of(rmsnorm_residual), of(quantized)

gradient = ("rmsnorm_residual_input_gradient", "dR = dX", "rmsnorm_weight_gradient(X=Z)")
"""The functions of the backward pass of `strategy`."""


def spec(M, N, form="plain", **options):
    """Return the problem: float16 by default; options are `dtype`, `types`, strides by operand. The kernel takes X, R, weight and eps.

    Args: `form`, "plain" (that of `strategy`) or "eight_bit".
    """
    return {"plain": rmsnorm_residual, "eight_bit": quantized}[form](m=M, n=N, **options)


def values(spec):
    """Return tunables for a problem without a record, by row length."""
    return fitting(spec)
