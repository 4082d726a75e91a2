"""LayerNorm of the rows of a matrix, with weight and bias: a row in the registers of one warp, or of several of a block.

    layernorm(M,N)(GL,GL,GL,GL)(Kernel)
      tile(m=rows).to(Block)           layernorm(1,N)(GL,GL,GL,GL)(Block)
      load(X, RF), rows to warps       layernorm(1,N)(RF,GL,GL,GL)(Block)
      load(weight), load(bias)         layernorm(1,N)(RF,RF,RF,GL)(Block)
      done()                           each step where the row is held

The mean first, then the squares of what differs from it, in float32, both by shuffles, and through shared memory where several warps
have a row. X is read once; weight and bias are on their way before the sums begin. `values(spec)` are the tunables for a size.

`at_once` sums X and its squares beside each other, and has the variance from both: for few rows, of which a block waits for two sums, one
after the other, longer than for memory. In float32 it is good while the mean is no more than some tens of standard deviations; `in_parts`
is the same, with one exchange between warps behind all shuffles.
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
    """The strategy for a definition."""
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
    """`at_once` where so many warps share a row (2 or more): they exchange both sums behind the shuffles of both."""
    return of(one_pass.rfactor("sum", warps).rfactor("squares", warps))


def spec(M, N, form="two_passes", **options):
    """Halves, unless said otherwise: `dtype`, `types` by operand, strides by operand. The kernel takes X, weight, bias and eps.

    `form` is that of `strategy`, or "at_once".
    """
    return {"two_passes": layernorm, "at_once": one_pass}[form](m=M, n=N, **options)


def values(spec):
    """The tunables for a problem, which is not measured: by the elements of a row, and how many rows there are (measured on an H200)."""
    return fitting(spec, few=2048, at_once=4096)
