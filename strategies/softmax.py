"""Softmax of the rows of a matrix: a row in the registers of one warp, or of several of a block.

    softmax(M,N)(GL,GL)(Kernel)
      tile(m=rows).to(Block)           softmax(1,N)(GL,GL)(Block)
      load(X, RF), rows to warps       softmax(1,N)(RF,GL)(Block)
      done()                           each step where the row is held

The maximum first, then the sum of powers of two, in float32, both by shuffles, and through shared memory where several warps have a
row. `values(spec)` are the tunables for a size.
"""

from fireiron import *
from fireiron.strategies._rows import fitting, once, rows, streamed

SIZES = (4096, 1024)

LOG2_E = 1.4426950408889634
"""exp(x) is 2 to the power of x times this."""

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


def spec(M, N, **options):
    """Halves, unless said otherwise: `dtype`, `types` by operand, strides by operand."""
    return softmax(m=M, n=N, **options)


def values(spec):
    """The tunables for a problem, which is not measured: by the elements of a row."""
    return fitting(spec)
