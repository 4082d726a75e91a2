"""Combine parts of attention: the second kernel of `attention_decode`.

    attention_combine(m,d,p)(GL,GL,GL,GL)(Kernel)
      tile(m=1, b=1, g=1).to(Block)    attention_combine(1,d,p)(GL,...)(Block)    one row
      split(p=bp)                      attention_combine(1,d,16)(GL,...)(Block)   `bp` parts per iteration
      tile(d=1).to(Thread)             attention_combine(1,1,16)(GL,...)(Thread)  one column; coalesced

For part `p` of the keys, P[b,g,p,m,d] is a weighted sum of values, T[b,g,p,m] the maximum that was subtracted in the exponent, and
S[b,g,p,m] the sum of the weights, all float32. O[b,g,m,d] is attention over all parts. A row that sees no key in any part is 0.

`hopper` uses programmatic dependent launch: it starts before the previous kernel ends.
"""

from fireiron import *
from fireiron.values.expr import constant

SIZES = (4, 8, 128)

bp = Tunable("bp", 16, 8, 32)

definition = Fused(
    name="attention_combine",
    dims="m d p b g",
    loop="p",
    batch="b g",
    operands={"P": "b g p m d", "T": "b g p m", "S": "b g p m", "O": "b g m d"},
    init={"mx": "mx[m] = -1e30", "l": "l[m] = 0", "acc": "acc[m,d] = 0"},
    body={
        "top": "top[m] = max(p, T[b,g,p,m])",
        "new": "new[m] = max(mx[m], top[m])",
        "alpha": "alpha[m] = exp2(mx[m] - new[m])",
        "keep": "mx[m] = new[m]",
        "weight": "w[m,p] = exp2(T[b,g,p,m] - mx[m])",
        "weighted": "weighted[m,p] = w[m,p] * S[b,g,p,m]",
        "sums": "sums[m] = sum(p, weighted[m,p])",
        "update": "l[m] = l[m] * alpha[m] + sums[m]",
        "values": "values[m,d,p] = w[m,p] * P[b,g,p,m,d]",
        "part": "part[m,d] = sum(p, values[m,d,p])",
        "rescale": "acc[m,d] = acc[m,d] * alpha[m] + part[m,d]",
    },
    final={"inverse": "inverse[m] = where(l[m] > 0, 1 / l[m], 0)", "store": "O[b,g,m,d] = acc[m,d] * inverse[m]"},
)


def by_columns(programmatic_launch=False):
    """Return one block per row, one thread per element; with `programmatic_launch` it starts before the previous kernel ends."""
    rows = definition.tile(m=1, b=1, g=1).to(Block)
    rows = rows.programmatic_launch() if programmatic_launch else rows
    return rows.split(p=bp).tile(d=1).to(Thread).done()


strategy = by_columns()
hopper = by_columns(programmatic_launch=True)


def spec(M, P, D, heads=1, batch=1, **options):
    """Return the problem of M rows per key head, `heads` key heads, P parts and D elements per head; O is float16 by default."""
    types = dict.fromkeys("PTS", float32) | options.pop("types", {})
    return definition(m=M, p=P, d=D, g=heads, b=batch, types=types, **options)


def values(spec):
    """Return tunables: no more parts per iteration than exist."""
    parts = constant(spec.size("p")) or 16
    return {"bp": 8 if parts <= 8 else 16 if parts <= 16 else 32}
