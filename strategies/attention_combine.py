"""Combine parts of attention: the second kernel of `attention_decode`.

    attention_combine(m,d,p)(GL,GL,GL,GL)(Kernel)
      tile(m=1, b=1, g=1).to(Block)    attention_combine(1,d,p)(GL,...)(Block)    one row
      split(p=bp)                      attention_combine(1,d,16)(GL,...)(Block)   `bp` parts per iteration
      tile(d=1).to(Thread)             attention_combine(1,1,16)(GL,...)(Thread)  one column; coalesced

For part `p` of the keys, P[b,g,p,m,d] is a weighted sum of values, T[b,g,p,m] the maximum that was subtracted in the exponent, and
S[b,g,p,m] the sum of the weights, all float32. O[b,g,m,d] is attention over all parts. A row that sees no key in any part is 0.

`hopper` uses programmatic dependent launch: it starts before the previous kernel ends.
"""

import functools

from fireiron import *
from fireiron.strategies.attention import LN_2, LOG2_E
from fireiron.values.expr import constant

SIZES = (4, 8, 128)

bp = Tunable("bp", 16, 8, 32)


@functools.cache
def combined(lse=False, sinks=False, queries=1):
    """Return the combination of parts as formulas.

    Args:
        lse: also write the log-sum-exp of each row's scores, to L[b,g,m].
        sinks: each query head has a score sinks[g,r], a logarithm, to which no value belongs.
        queries: the number of queries of a sequence. With more than one, row m of O is O[b,g,m // queries,m % queries,d].
    """
    head, row = "g m" if queries == 1 else "g r", "m" if queries == 1 else f"m // {queries},m % {queries}"
    rows = "b g m" if queries == 1 else "b g r i"
    sink = f"sinks[g,{row.partition(',')[0]}] * {LOG2_E}"
    return Fused(
        name="attention_combine",
        dims="m d p b g" + " r i" * (queries > 1),
        loop="p",
        batch="b g",
        operands={
            "P": "b g p m d",
            "T": "b g p m",
            "S": "b g p m",
            **({"sinks": head} if sinks else {}),
            "O": f"{rows} d",
            **({"L": rows} if lse else {}),
        },
        init={"mx": f"mx[m] = {sink if sinks else '-1e30'}", "l": f"l[m] = {int(sinks)}", "acc": "acc[m,d] = 0"},
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
        final={
            "inverse": "inverse[m] = where(l[m] > 0, 1 / l[m], 0)",
            "store": f"O[b,g,{row},d] = acc[m,d] * inverse[m]",
            **({"lse": f"L[b,g,{row}] = (mx[m] + log2(l[m])) * {LN_2}"} if lse else {}),
        },
    )


definition = combined()


def by_columns(programmatic_launch=False, fused=definition):
    """Return one block per row, one thread per element; with `programmatic_launch` it starts before the previous kernel ends."""
    rows = fused.tile(m=1, b=1, g=1).to(Block)
    rows = rows.programmatic_launch() if programmatic_launch else rows
    return rows.split(p=bp).tile(d=1).to(Thread).done()


strategy = by_columns()
hopper = by_columns(programmatic_launch=True)


def spec(M, P, D, heads=1, batch=1, fused=definition, queries=1, **options):
    """Return the problem of M rows per key head, `heads` key heads, P parts and D elements per head; O is float16 by default.

    Args: `fused`, another definition, for this number of `queries` of a sequence.
    """
    floats = [name for name in ("P", "T", "S", "sinks", "L") if name in fused.fused_definition.uses]
    types = dict.fromkeys(floats, float32) | options.pop("types", {})
    sizes = {} if queries == 1 else {"r": M // queries, "i": queries}
    return fused(m=M, p=P, d=D, g=heads, b=batch, types=types, **sizes, **options)


def values(spec):
    """Return tunables: no more parts per iteration than exist."""
    parts = constant(spec.size("p")) or 16
    return {"bp": 8 if parts <= 8 else 16 if parts <= 16 else 32}
