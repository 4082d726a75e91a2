"""Softmax of long rows in two passes over chunks: the first computes the running maximum and sum, the second the result.

    softmax_online(M,N)(GL,GL)(Kernel)
      tile(m=1).to(Block)              softmax_online(1,N)(GL,GL)(Block)
      split(n=chunk)                   softmax_online(1,chunk)(GL,GL)(Block)   and a second time, for the result
      load(X, RF), chunk to warps      softmax_online(1,chunk)(RF,GL)(Block)
      done()                           each step on the registers of the chunk

For rows that do not fit in registers, and for run-time sizes. When the maximum grows, the running sum is rescaled. X is read twice, the
second time mostly from L2.
"""

from fireiron import *
from fireiron.strategies._rows import LANES, cached, iterations, streamed, vector
from fireiron.strategies.softmax import LOG2_E

SIZES = (264, 65536)

warps = Tunable("warps", 8, 1, 2, 4, 16)

softmax_online = Fused(
    name="softmax_online",
    dims="m n",
    loop="n",
    operands={"X": "m n", "Y": "m n"},
    init={"none": "high[m] = -inf", "empty": "total[m] = 0"},
    body={
        "top": "top[m] = max(n, X[m,n])",
        "new": f"new[m] = max(high[m], top[m] * {LOG2_E})",
        "less": "less[m] = exp2(high[m] - new[m])",
        "keep": "high[m] = new[m]",
        "power": f"e[m,n] = exp2(X[m,n] * {LOG2_E} - new[m])",
        "sum": "part[m] = sum(n, e[m,n])",
        "update": "total[m] = total[m] * less[m] + part[m]",
    },
    final={
        "share": "total[m] = 1 / total[m]",
        "out": f"y[m,n] = exp2(X[m,n] * {LOG2_E} - high[m]) * total[m]",
        "store": "Y[m,n] = y[m,n]",
    },
)

strategy = (
    softmax_online.tile(m=1).to(Block).split(n=warps * LANES * vector * iterations).load("X", RF, cached).step("store", streamed).done()
)


def spec(M, N, **options):
    """Return the problem: float16 by default; options are `dtype`, `types` and strides by operand."""
    return softmax_online(m=M, n=N, **options)
