"""The gradient of cross-entropy with respect to the logits, from the log-sum-exp of each row.

    cross_entropy_gradient(M,N)(GL,GL,GL,GL,GL,GL)(Kernel)
      tile(m=1, n=columns).to(Block)   cross_entropy_gradient(1,columns)(GL,...)(Block)
      load(X, RF)                      a vector to each thread
      done()                           each element: softmax, minus 1 at the label, times the gradient of the loss

`dloss` and `dlse` are the gradients of loss and log-sum-exp of each row. A row with the label -100 has only the second.
"""

from fireiron import *
from fireiron.strategies._rows import LANES, streamed, widest_vector
from fireiron.values.expr import constant

SIZES = (512, 4096)

LOG2_E = 1.4426950408889634
"""exp(x) = 2 ** (x * LOG2_E)."""

IGNORED = -100
"""The label of a row without a loss."""

warps = Tunable("warps", 8, 16, 4, 2, 1)
"""Warps of a block."""

vector = Tunable("vector", 8, 4, 2, 1)
"""Elements that a lane reads at a time."""

cross_entropy_gradient = Fused(
    name="cross_entropy_gradient",
    dims="m n",
    operands={"X": "m n", "label": "m", "lse": "m", "dloss": "m", "dlse": "m", "dX": "m n"},
    body={
        "of_loss": f"g[m] = where(label[m] == {IGNORED}, 0, dloss[m])",
        "of_all": "h[m] = g[m] + dlse[m]",
        "power": f"p[m,n] = exp2((X[m,n] - lse[m]) * {LOG2_E})",
        "out": "dx[m,n] = p[m,n] * h[m] - where(n == label[m], g[m], 0)",
        "store": "dX[m,n] = dx[m,n]",
    },
    types={"label": int64, "lse": float32, "dloss": float32, "dlse": float32},
)

strategy = (
    cross_entropy_gradient.tile(m=1, n=LANES * vector * warps)
    .to(Block)
    .load("X", RF, Move.tile(1, LANES * vector).to(Warp).tile(1, vector).to(Lane).done(EVICT_FIRST))
    .step("store", streamed)
    .done()
)


def spec(M, N, **options):
    """Return the problem: float16 logits by default. The kernel takes X, label, lse, dloss and dlse."""
    return cross_entropy_gradient(m=M, n=N, **options)


def values(spec):
    """Return tunables for a problem without a record, by row length."""
    size, lane = constant(spec.size("n")), widest_vector(spec)
    few = (count for count in sorted(warps.values) if size is not None and count * LANES * lane >= size)
    return {"vector": lane, "warps": next(few, 8)}
