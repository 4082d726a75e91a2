"""Softmax of the rows of a matrix: a row is in the registers of one warp, or of several warps of a block.

    softmax(M,N)(GL,GL)(Kernel)
      tile(m=rows).to(Block)           softmax(1,N)(GL,GL)(Block)
      load(X, RF), rows to warps       softmax(1,N)(RF,GL)(Block)
      done()                           each step on the registers of the row

First the maximum, then the sum of powers of two, both in float32, by shuffles, and through shared memory if several warps share a row.
`values(spec)` returns the tunables for a size.
"""

from fireiron import *
from fireiron.strategies._rows import fitting, once, rows, streamed

SIZES = (4096, 1024)

LOG2_E = 1.4426950408889634
"""exp(x) = 2 ** (x * LOG2_E)."""

softmax = Fused(
    name="softmax",
    dims="m n",
    operands={"X": "m n", "Y": "m n"},
    body={
        "top": "top[m] = max(n, X[m,n])",
        "scaled": f"top[m] = top[m] * {LOG2_E}",
        "power": f"e[m,n] = exp2(X[m,n] * {LOG2_E} - top[m])",
        "sum": "total[m] = sum(n, e[m,n])",
        "part": "total[m] = 1 / total[m]",
        "out": "y[m,n] = e[m,n] * total[m]",
        "store": "Y[m,n] = y[m,n]",
    },
)

strategy = softmax.tile(m=rows).to(Block).load("X", RF, once).step("store", streamed).done()

gradient = ("softmax_gradient",)
"""The functions of the backward pass."""


def spec(M, N, **options):
    """Return the problem: float16 by default; options are `dtype`, `types` and strides by operand."""
    return softmax(m=M, n=N, **options)


def values(spec):
    """Return tunables for a problem without a record, by row length."""
    return fitting(spec)
