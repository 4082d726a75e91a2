"""Rotary embedding of one new token of each sequence, whose rotated key and value are written into the caches: one kernel for decoding.

    rope_cache(B,G,R,2,2,D,N)(GL,...)(Kernel)
      tile(b=1, g=1).to(Block)         a key head of a sequence, and the R query heads that share it
        .programmatic_launch()         (hopper)
      tile(d=vector).to(Thread)        elements of both halves
      load(Q), load(K)                 vectors of both halves
      done()                           each step in registers

Q[b,g,r,q,d] is element d of half q of query head r among those that share key head g, K[b,g,q,d] and V[b,g,q,d] are the new key and
value. They may be views of one array, the result of one product. C[b,d] and S[b,d] are cosine and sine of the angle of element d at the
position of sequence b. Row `slot[b,g]` of the caches gets key and value: for caches (batch, head, position, element), that is
`(b * heads + g) * positions + position`. The numbers in `slot` differ from each other, and -1 writes nothing.
"""

from fireiron import *
from fireiron.values.expr import constant

SIZES = (64,)

vector = Tunable("vector", 2, 1, 4, 8)
"""Elements of each half that a thread rotates."""


def _rotated(result, given, own):
    """Return the two steps that rotate the halves of an array; `own` are its dimensions between the batch and the half."""
    angle = "where(p == q, C[b,d], where(p < q, -S[b,d], S[b,d]))"
    return {
        f"turn_{result}": f"turned_{result}[{own},d,p,q] = {given}[b,{own},q,d] * {angle}",
        f"sum_{result}": f"{result}[{own},d,p] = sum(q, turned_{result}[{own},d,p,q])",
    }


rope_cache = Fused(
    name="rope_cache",
    dims="b g r p q d n",
    batch="b",
    operands={
        "Q": "b g r q d", "K": "b g q d", "V": "b g q d", "C": "b d", "S": "b d", "slot": "b g",
        "Y": "b g r p d", "keys": "n p d", "values": "n q d",
    },
    body={
        **_rotated("y", "Q", "g,r"),
        **_rotated("x", "K", "g"),
        "store": "Y[b,g,r,p,d] = y[g,r,d,p]",
        "store_keys": "keys[slot[b,g],p,d] = x[g,d,p]",
        "store_values": "values[slot[b,g],q,d] = V[b,g,q,d]",
    },
    types={"C": float32, "S": float32, "slot": int32},
    distinct="slot",
)  # fmt: skip


def of(definition, programmatic_launch=False):
    """Return the strategy for the definition; with `programmatic_launch` it starts before the previous kernel ends."""
    rows = Move.tile(1, 1, vector).unroll().done()
    key = Move.tile(1, vector).unroll().done()
    blocks = definition.tile(b=1, g=1).to(Block)
    return (
        (blocks.programmatic_launch() if programmatic_launch else blocks)
        .tile(d=vector)
        .to(Thread)
        .load("Q", RF, rows)
        .load("K", RF, key)
        .step("store", rows)
        .step("store_keys", key)
        .step("store_values", key)
        .done()
    )


strategy, hopper = of(rope_cache), of(rope_cache, programmatic_launch=True)

sizes = {"p": 2}
"""The number of halves of the result."""


def spec(D, B=16, G=8, R=4, N=0, **options):
    """Return the problem: float16 by default; D is half of the elements of a head, N the rows of the caches (default: 4096 per head)."""
    return rope_cache(b=B, g=G, r=R, p=2, q=2, d=D, n=N or B * G * 4096, **options)


def values(spec):
    """Return tunables for a problem without a record, by the elements of a head."""
    size = constant(spec.size("d"))
    return {"vector": next(count for count in (2, 1) if size is None or size % count == 0)}
