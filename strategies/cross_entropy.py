"""Cross-entropy of rows of logits and labels, and the log-sum-exp of each row. The row has any length: it is read in a loop.

    cross_entropy(M,N)(GL,GL,GL,GL)(Kernel)
      tile(m=1).to(Block)              cross_entropy(1,N)(GL,GL,GL,GL)(Block)
      split(n=part)                    cross_entropy(1,part)(GL,GL,GL,GL)(Block), running maximum and sum in registers
      load(X, RF)                      a part of the row to all threads
      done()                           each step on the registers of the part

The label -100 excludes a row: its loss is 0, as PyTorch's `ignore_index`. Logits are read once, in float16, bfloat16 or float32; loss and
log-sum-exp are float32.
"""

import math

from fireiron import *
from fireiron.strategies._rows import LANES, widest_vector
from fireiron.values.expr import constant

SIZES = (512, 4096)

LOG2_E = 1.4426950408889634
"""exp(x) = 2 ** (x * LOG2_E)."""

IGNORED = -100
"""The label of a row without a loss."""

MANY = 4096
"""Rows from which on one warp has a row: there are enough rows for all warps, and nothing crosses the warps of a block (H200)."""

warps = Tunable("warps", 4, 16, 8, 2, 1)
"""Warps of a block."""

vector = Tunable("vector", 8, 4, 2, 1)
"""Elements that a lane reads at a time."""

iterations = Tunable("iterations", 2, 1, 4, 8)
"""Vectors of a lane in one part of a row. With more, fewer sums and maxima cross the warps of a block."""

cross_entropy = Fused(
    name="cross_entropy",
    dims="m n",
    loop="n",
    operands={"X": "m n", "label": "m", "loss": "m", "lse": "m"},
    init={"top": "top[m] = -1e30", "total": "total[m] = 0", "none": "picked[m] = 0"},
    body={
        "largest": "part[m] = max(n, X[m,n])",
        "larger": "new[m] = max(top[m], part[m])",
        "power": f"e[m,n] = exp2((X[m,n] - new[m]) * {LOG2_E})",
        "sum": "sums[m] = sum(n, e[m,n])",
        "add": f"total[m] = total[m] * exp2((top[m] - new[m]) * {LOG2_E}) + sums[m]",
        "keep": "top[m] = new[m]",
        "select": "mine[m,n] = where(n == label[m], X[m,n], 0)",
        "pick": "picks[m] = sum(n, mine[m,n])",
        "picked": "picked[m] = picked[m] + picks[m]",
    },
    final={
        "lse": "lse[m] = log(total[m]) + top[m]",
        "loss": f"loss[m] = where(label[m] == {IGNORED}, 0, log(total[m]) + top[m] - picked[m])",
    },
    types={"label": int64, "loss": float32, "lse": float32},
)

strategy = (
    cross_entropy.tile(m=1)
    .to(Block)
    .split(n=LANES * vector * warps * iterations)
    .load("X", RF, Move.tile(1, LANES * vector * iterations).to(Warp).tile(1, vector).to(Lane).done(EVICT_FIRST))
    .done()
)

gradient = ("cross_entropy_gradient",)
"""The function of the backward pass."""


def spec(M, N, **options):
    """Return the problem: float16 logits by default; options are `dtype`, `types` and strides by operand. The kernel takes X and label."""
    return cross_entropy(m=M, n=N, **options)


def values(spec):
    """Return tunables for a problem without a record, by row length and number of rows: the widest vectors, and no idle warps."""
    size, lane, rows = constant(spec.size("n")), widest_vector(spec), constant(spec.size("m"))
    if rows is not None and rows >= MANY:
        return {"vector": lane, "warps": 1, "iterations": 2}
    pairs = ((count, times) for count in (1, 2, 4) for times in (1, 2))
    few = (pair for pair in pairs if size is not None and math.prod(pair) * LANES * lane >= size)
    count, times = next(few, (4, 2))  # measured on an H200
    return {"vector": lane, "warps": count, "iterations": times}
