"""Rotary position embedding: the two halves of each head are rotated by the angles of their position.

    rope(B,M,H,2,2,D)(GL,GL,GL,GL)(Kernel)
      tile(b=1, m=1, h=heads).to(Block)   rope(1,1,heads,2,2,D)(GL,...)(Block)
      tile(h=each, d=vector).to(Thread)   rope(1,1,each,2,2,vector)(GL,...)(Thread)
      load(X), load(C), load(S)           vectors of both halves, of cosines and sines
      done()                              both halves of the result in registers

X[b,m,h,q,d] is element d of half q of a head: `x.unflatten(-1, (2, -1))` of an array (batch, position, head, element). C[m,d] and S[m,d]
are cosine and sine of the angle of element d at position m, in float32. Y has the layout of X: Y0 = X0 * C - X1 * S, Y1 = X1 * C + X0 * S.
"""

from fireiron import *
from fireiron.strategies._rows import widest_vector
from fireiron.values.expr import constant

SIZES = (2, 4096, 32, 64)

heads = Tunable("heads", 32, 16, 8, 4, 2, 1)
"""Heads of a block."""

each = Tunable("each", 2, 1, 4)
"""Heads of a thread, which share its cosines and sines."""

vector = Tunable("vector", 8, 4, 2, 1)
"""Elements of each half that a thread reads at a time."""

angles = Tunable("angles", 4, 2, 1)
"""Cosines or sines that a thread reads at a time."""


def definition(name, given, result, first, second):
    """Return the rotation of `given` to `result`; `first` and `second` are the factors of the other half in the first and second half."""
    turned = f"{given}[b,m,h,q,d] * where(p == q, C[m,d], where(p < q, {first}, {second}))"
    return Fused(
        name=name,
        dims="b m h p q d",
        batch="b m",
        operands={given: "b m h q d", "C": "m d", "S": "m d", result: "b m h p d"},
        body={"turn": f"f[d,h,p,q] = {turned}", "sum": "y[d,h,p] = sum(q, f[d,h,p,q])", "store": f"{result}[b,m,h,p,d] = y[d,h,p]"},
        types={"C": float32, "S": float32},
    )


def of(rotation):
    """Return the strategy for a rotation."""
    given = next(iter(rotation.fused_definition.arrays))
    halves = Move.tile(1, 1, vector).unroll().done()
    return (
        rotation.tile(b=1, m=1, h=heads)
        .to(Block)
        .tile(h=each, d=vector)
        .to(Thread)
        .load(given, RF, halves)
        .load("C", RF, Move.tile(angles).unroll().done())
        .load("S", RF, Move.tile(angles).unroll().done())
        .step("turn", AnySpec.tile(1, 1, 1, 1).unroll().done())
        .step("store", halves)
        .done()
    )


rope = definition("rope", "X", "Y", "-S[m,d]", "S[m,d]")
strategy = of(rope)

sizes = {"p": 2}
"""The number of halves of the result."""

gradient = ("rope_gradient",)
"""The function of the backward pass."""


def spec(B, M, H, D, **options):
    """Return the problem: float16 by default; D is half of the elements of a head. The kernel takes X, C and S."""
    return rope(b=B, m=M, h=H, p=2, q=2, d=D, **options)


def values(spec):
    """Return tunables for a problem without a record: all heads of a position in a block, up to 32."""
    count, lane = constant(spec.size("h")), widest_vector(spec, "d")
    few = (one for one in sorted(heads.values) if count is not None and one >= count)
    chosen = next(few, 32)
    return {"heads": chosen, "each": min(2, chosen), "vector": lane, "angles": min(lane, 4)}
