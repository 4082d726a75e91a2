"""LayerNorm of the rows of a matrix, with weight and bias: a row is in the registers of one warp, or of several warps of a block.

    layernorm(M,N)(GL,GL,GL,GL)(Kernel)
      tile(m=rows).to(Block)           layernorm(1,N)(GL,GL,GL,GL)(Block)
      load(X, RF), rows to warps       layernorm(1,N)(RF,GL,GL,GL)(Block)
      load(weight), load(bias)         layernorm(1,N)(RF,RF,RF,GL)(Block)
      done()                           each step on the registers of the row

Two sums in float32: the mean, then the squared deviations. Both use shuffles, and shared memory if several warps share a row. X is read
once; the loads of weight and bias are issued before the sums. `values(spec)` returns the tunables for a size.

`at_once` computes the sums of X and of its squares together, and the variance from both. It suits few rows: there a block waits longer
for two dependent sums than for memory. In float32 it is accurate while the mean is at most some tens of standard deviations. `in_parts` is
the same with one exchange between warps after all shuffles.
"""

from fireiron import *
from fireiron.strategies._rows import fitting, once, rows, streamed

SIZES = (4096, 1024)

OPERANDS = {"X": "m n", "weight": "n", "bias": "n", "eps": "", "Y": "m n"}

layernorm = Fused(
    name="layernorm",
    dims="m n",
    operands=OPERANDS,
    body={
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

one_pass = Fused(
    name="layernorm",
    dims="m n",
    operands=OPERANDS,
    body={
        "square": "sq[m,n] = X[m,n] * X[m,n]",
        "sum": "total[m] = sum(n, X[m,n])",
        "squares": "power[m] = sum(n, sq[m,n])",
        "mean": "mean[m] = total[m] / size(n)",
        "scale": "scale[m] = rsqrt(max(power[m] / size(n) - mean[m] * mean[m], 0) + eps)",
        "out": "y[m,n] = (X[m,n] - mean[m]) * scale[m] * weight[n] + bias[n]",
        "store": "Y[m,n] = y[m,n]",
    },
)


def of(definition):
    """Return the strategy for a definition."""
    return (
        definition.tile(m=rows)
        .to(Block)
        .load("X", RF, once)
        .load("weight", RF, Move.done())
        .load("bias", RF, Move.done())
        .step("store", streamed)
        .done()
    )


strategy, at_once = of(layernorm), of(one_pass)


def in_parts(warps):
    """Return `at_once` for `warps` warps per row (at least 2), which exchange both sums after the shuffles of both."""
    return of(one_pass.rfactor("sum", warps).rfactor("squares", warps))


gradient = ("layernorm_input_gradient", "layernorm_weight_gradient")
"""The functions of the backward pass."""


def spec(M, N, form="two_passes", **options):
    """Return the problem: float16 by default; options are `dtype`, `types`, strides by operand. The kernel takes X, weight, bias and eps.

    Args: `form`, "two_passes" (that of `strategy`) or "at_once".
    """
    return {"two_passes": layernorm, "at_once": one_pass}[form](m=M, n=N, **options)


def values(spec):
    """Return tunables for a problem without a record, by row length and number of rows (measured on an H200)."""
    return fitting(spec, few=2048, at_once=4096)
