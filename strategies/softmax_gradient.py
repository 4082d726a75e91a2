"""The gradient of softmax: dX = Y * (dY - sum(dY * Y)) for each row, from the result Y.

softmax_gradient(M,N)(GL,GL,GL)(Kernel)
  tile(m=rows).to(Block)           softmax_gradient(1,N)(GL,GL,GL)(Block)
  load(Y, RF), load(dY, RF)        rows to warps
  done()                           each step on the registers of the row
"""

from fireiron import *
from fireiron.strategies._rows import cached, fitting, rows, streamed

SIZES = (4096, 1024)

softmax_gradient = Fused(
    name="softmax_gradient",
    dims="m n",
    operands={"Y": "m n", "dY": "m n", "dX": "m n"},
    body={
        "product": "p[m,n] = Y[m,n] * dY[m,n]",
        "dot": "dot[m] = sum(n, p[m,n])",
        "out": "dx[m,n] = Y[m,n] * (dY[m,n] - dot[m])",
        "store": "dX[m,n] = dx[m,n]",
    },
)

strategy = softmax_gradient.tile(m=rows).to(Block).load("Y", RF, cached).load("dY", RF, cached).step("store", streamed).done()


def spec(M, N, **options):
    """Return the problem: float16 by default; options are `dtype`, `types` and strides by operand."""
    return softmax_gradient(m=M, n=N, **options)


def values(spec):
    """Return tunables for a problem without a record, by row length."""
    return fitting(spec)
