"""SwiGLU: silu of the first half of each row times the second half.

    swiglu(M,2,N)(GL,GL)(Kernel)
      tile(m=1, n=columns).to(Block)   swiglu(1,2,columns)(GL,GL)(Block)
      tile(n=vector).to(Thread)        swiglu(1,2,vector)(GL,GL)(Thread)
      load(X)                          a vector of each half
      done()                           each element in registers

X[m,q,n] is element n of half q of a row: `x.unflatten(-1, (2, -1))` of an array (row, element), such as the product of rows with the
matrices of both projections, which is one product. The gradient has the same layout, so it is the operand of one product, too.
"""

from fireiron import *
from fireiron.strategies._rows import widest_vector

SIZES = (512, 1024)

threads = Tunable("threads", 256, 128, 64, 32)
"""Threads of a block."""

vector = Tunable("vector", 8, 4, 2, 1)
"""Elements of each half that a thread reads at a time."""

HALVES = {
    "first": "a[m,n,q] = where(q == 0, X[m,q,n], 0)",
    "gate": "g[m,n] = sum(q, a[m,n,q])",
    "second": "b[m,n,q] = where(q == 1, X[m,q,n], 0)",
    "up": "u[m,n] = sum(q, b[m,n,q])",
}
"""Steps that read both halves of a row."""

swiglu = Fused(
    name="swiglu",
    dims="m q n",
    operands={"X": "m q n", "Y": "m n"},
    body={**HALVES, "act": "y[m,n] = silu(g[m,n]) * u[m,n]", "store": "Y[m,n] = y[m,n]"},
)


both = Move.tile(1, 1, vector).unroll().done(EVICT_FIRST)
"""Copy a vector of each half."""

strategy = swiglu.tile(m=1, n=threads * vector).to(Block).tile(n=vector).to(Thread).load("X", RF, both).done()

sizes = {"q": 2}
"""The number of halves of a row."""

gradient = ("swiglu_gradient",)
"""The function of the backward pass."""


def spec(M, N, **options):
    """Return the problem: float16 by default; N is half of the elements of a row of X."""
    return swiglu(m=M, q=2, n=N, **options)


def values(spec):
    """Return tunables for a problem without a record, by row length."""
    return {"vector": widest_vector(spec)}
