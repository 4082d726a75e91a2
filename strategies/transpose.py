"""Transpose the last two dimensions of a batch of matrices, through shared memory.

    transpose(B,M,N)(GL,GL)(Kernel)
      tile(b=1).to(Block)              transpose(1,M,N)(GL,GL)(Block)
      tile(m=bm, n=bn).to(Block)       transpose(1,bm,bn)(GL,GL)(Block)
        .layout(ColMajor)              columns of tiles: adjacent blocks write adjacent parts of rows of Y
      load(X, SH)                      vectors along n, into padded rows
      step(copy)                       Move(1,bm,bn)(SH,GL)(Block)     a lane collects a vector along m from as many rows

Rows of X and of Y are read and written in vectors of at most 16 bytes, if rows are multiples of them. `lanes` lanes of a warp write
adjacent vectors of a row of Y. `fireiron.function("transpose")` returns a new array.
"""

from fireiron import *

SIZES = (1024, 1024)

bm = Tunable("bm", 32, 64, 128)
bn = Tunable("bn", 64, 32, 128)
lanes = Tunable("lanes", 4, 8, 2, 1)
"""Lanes of a warp that write adjacent vectors of a row of Y."""

pad = Tunable("pad", 2, 8)
"""Elements after each row in shared memory, so that the lanes of a warp read different banks."""

vector = Tunable("vector", 8, 4, 2, 1)
"""Elements that a lane writes at a time."""

transpose = Fused(name="transpose", dims="b m n", batch="b", operands={"X": "b m n", "Y": "b n m"}, body={"copy": "Y[b,n,m] = X[b,m,n]"})

strategy = (
    transpose.tile(b=1)
    .to(Block)
    .tile(m=bm, n=bn)
    .to(Block)
    .layout(ColMajor)
    .load("X", SH, Move.coalesced_copy(8).done())
    .pad(pad)
    .step("copy", Move.tile(32 // lanes, lanes * vector).to(Warp).tile(1, vector).to(Lane).done())
    .done()
)

gradient = ("dX = transpose(X=dY)",)
"""The function of the backward pass."""


def spec(M, N, B=2, **options):
    """Return the problem: float16 by default; options are `dtype`, `types` and strides by operand. The kernel takes X."""
    return transpose(b=B, m=M, n=N, **options)
