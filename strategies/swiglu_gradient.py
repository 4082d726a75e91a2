"""The gradient of SwiGLU with respect to both halves of each row.

    swiglu_gradient(M,2,N)(GL,GL,GL)(Kernel)
      ...                              as `swiglu`

dX[m,0,n] is dY * X1 * sigmoid(X0) * (1 + X0 * (1 - sigmoid(X0))), and dX[m,1,n] is dY * silu(X0).
"""

from fireiron import *
from fireiron.strategies import swiglu

SIZES = (512, 1024)

swiglu_gradient = Fused(
    name="swiglu_gradient",
    dims="m p q n",
    operands={"dY": "m n", "X": "m q n", "dX": "m p n"},
    body={
        **swiglu.HALVES,
        "sigmoid": "s[m,n] = sigmoid(g[m,n])",
        "silu": "h[m,n] = g[m,n] * s[m,n]",
        "of_up": "du[m,n] = dY[m,n] * h[m,n]",
        "of_gate": "dg[m,n] = dY[m,n] * u[m,n] * (s[m,n] + h[m,n] - h[m,n] * s[m,n])",
        "out": "d[m,n,p] = where(p == 0, dg[m,n], du[m,n])",
        "store": "dX[m,p,n] = d[m,n,p]",
    },
)

strategy = (
    swiglu_gradient.tile(m=1, n=swiglu.threads * swiglu.vector)
    .to(Block)
    .tile(n=swiglu.vector)
    .to(Thread)
    .load("X", RF, swiglu.both)
    .load("dY", RF, Move.done(EVICT_FIRST))
    .step("store", Move.tile(1, 1, swiglu.vector).unroll().done())
    .done()
)

sizes = {"p": 2, "q": 2}
"""The number of halves of the result and of a row."""


def spec(M, N, **options):
    """Return the problem: float16 by default; N is half of the elements of a row of X. The kernel takes dY and X."""
    return swiglu_gradient(m=M, p=2, q=2, n=N, **options)


def values(spec):
    """Return tunables for a problem without a record: those of `swiglu`."""
    return swiglu.values(spec)
