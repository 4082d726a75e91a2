"""Dropout: each element is kept with a probability and then divided by it. Philox makes the random numbers of element and seed.

    dropout(M,N)(GL,GL)(Kernel)
      tile(m=1, n=columns).to(Block)   dropout(1,columns)(GL,GL)(Block)
      load(X, RF)                      vectors to each thread, so that it computes keys of random numbers and 1 / keep once for several
      done()                           each element: a random number in [0, 1), compared with `keep`

Four adjacent elements of a row use the four words of one random number. The same seed gives the same mask, so the backward pass is the
same function of the gradient, and no mask is stored.
"""

from fireiron import *
from fireiron.strategies._rows import LANES, streamed, widest_vector
from fireiron.values.expr import constant

SIZES = (4096, 1024)

warps = Tunable("warps", 4, 8, 2, 1)
"""Warps of a block."""

vector = Tunable("vector", 8, 4, 2, 1)
"""Elements that a lane reads at a time."""

each = Tunable("each", 2, 1, 4)
"""Vectors of a lane."""

dropout = Fused(
    name="dropout",
    dims="m n",
    operands={"X": "m n", "seed": "", "keep": "", "Y": "m n"},
    body={
        "scale": "scale = 1 / keep",
        "out": "y[m,n] = where(uniform(seed, m, n // 4, 0, 0, n % 4) < keep, X[m,n] * scale, 0)",
        "store": "Y[m,n] = y[m,n]",
    },
    types={"seed": int32},
)

strategy = (
    dropout.tile(m=1, n=LANES * vector * warps * each)
    .to(Block)
    .load("X", RF, Move.tile(1, LANES * vector * each).to(Warp).tile(1, vector).to(Lane).done(EVICT_FIRST))
    .step("store", streamed)
    .done()
)

gradient = ("dX = dropout(X=dY)",)
"""The function of the backward pass."""


def spec(M, N, **options):
    """Return the problem: float16 by default; options are `dtype`, `types` and strides by operand. The kernel takes X, seed and keep."""
    return dropout(m=M, n=N, **options)


def values(spec):
    """Return tunables for a problem without a record, by row length: as many vectors per lane as fill a block."""
    size, lane = constant(spec.size("n")), widest_vector(spec)
    fits = (count for count in (4, 2) if size is not None and size >= LANES * lane * warps.values[0] * count)
    return {"vector": lane, "each": next(fits, 1)}
