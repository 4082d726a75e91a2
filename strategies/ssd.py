"""State space duality (Mamba-2) and linear attention with decay, in chunks, on Hopper: TMA, wgmma, a producer.

    state = exp(a[t]) * state + dt[t] * X[t] B[t]^T           p x n numbers per head; a[t] is the logarithm of the decay
    Y[t] = state C[t]

    ssd(t,u,p,n)(GL,...)(Kernel)
      tile(b=1, h=1, p=64).to(Block)            one head of a sequence
      split(c=1).pipeline(stages)               one chunk of `CHUNK` positions per iteration; the state stays in registers
        .warp_specialize(128)                   a producer fills the stages
      load(C, SH), load(B, SH), load(X, SH)     TMA, in the layout that wgmma reads
      set_memory(z, SH)                         the state before the chunk
      step(s)                                   MatMul(64,64,n)(SH,SH,RF)(Warpgroup)    C B^T
      step(past)                                MatMul(64,p,n)(SH,SH,RF)(Warpgroup)     the outputs of earlier chunks
      step(own)                                 MatMul(64,p,64)(RF,SH,RF)(Warpgroup)    C B^T times the decays, in registers
      step(add)                                 MatMul(p,n,64)(RF,SH,RF)(Warpgroup)     the state after the chunk
      step(store)                               Move(64,p)(RF,GL)(Warpgroup)            stmatrix, TMA

`decays` is a separate kernel. In chunk c, exp2(at[b,h,c,t] - au[b,h,c,u]) is the weight of position u at position t, rest[b,h,c,u] its
weight at the end of the chunk, and keep[b,h,c,p] that of the state. They contain dt, and the scale of linear attention.

If there are fewer heads than SMs, a sequence has several parts, each of which is a sequence of the batch: `states` computes the state that
a part adds, `joined` the state before each part, and `definition` with `initial` the outputs. `pairs`, `dots` and
`scaled` are for the gradients.

X[b,c,u,h,p], B[b,c,u,g,n], C[b,c,t,g,n], Y[b,c,t,h,p]. If a sequence is not a multiple of the chunk, X[b,l,h,p], B[b,l,g,n] and
C[b,l,g,n] have its length, and Y all chunks.
"""

import functools

from fireiron import *

SIZES = (256, 64, 128)

CHUNK = 64
"""Number of positions of a chunk."""

LOG2_E = 1.4426950408889634

LEAST = -128
"""Lower bound of a logarithm in base 2. Sums of larger negative numbers would have no digits left for the positions after them."""

ORDER = ("carry", "save", "s", "past", "w", "decay", "store_past", "own", "shrink", "xs", "add", "total", "skip", "gate", "store")
"""The order of the steps of a chunk: the factors of the state are computed while the products of the outputs run."""

stages = Tunable("stages", 2, 1, 3)
c_stages = Tunable("c_stages", 2, 1)

copy = Move.done()
vectors = Move.coalesced_copy(8).done()
parts = Move.done()


@functools.cache
def decays_definition(steps=True, ragged=False, dtype=float32):
    """Return the sums of the logarithms of decays as formulas.

    Args:
        steps: the logarithm is dt[b,c,t,h] * A[h], and a position is weighted by dt, which is not negative. Without it, the logarithm is
            decay[b,c,t,h], and results are multiplied by a scale.
        ragged: a sequence has l positions. The logarithm after its end is 0.
        dtype: the type of dt, or of the decay.
    """
    name, place = "dt" if steps else "decay", f"b,c * {CHUNK} + t,h" if ragged else "b,c,t,h"
    operands = {
        name: "b l h" if ragged else "b c t h",
        "A" if steps else "scale": "h" if steps else "",
        "at": "b h c t",
        "au": "b h c t",
        "rest": "b h c t",
        "keep": "b h c p",
    }
    return Fused(
        name="ssd_decays",
        dims="b c t h p" + " l" * ragged,
        batch="b c",
        operands=operands,
        body={
            "read": f"d[t,h] = {name}[{place}]",
            "raw": f"raw[t,h] = d[t,h] * {f'(A[h] * {LOG2_E})' if steps else LOG2_E}",
            "log": f"log[t,h] = where(raw[t,h] < {LEAST}, {LEAST}, raw[t,h])",
            "sums": "sums[t,h] = cumsum(t, log[t,h])",
            "whole": "whole[h] = sum(t, log[t,h])",
            "weight": "weight[t,h] = sums[t,h]" + (" - log2(d[t,h])" if steps else ""),
            "at": "at[b,h,c,t] = sums[t,h]" + ("" if steps else " + log2(scale)"),
            "au": "au[b,h,c,t] = weight[t,h]",
            "rest": "rest[b,h,c,t] = exp2(whole[h] - weight[t,h])",
            "kept": "kept[h,p] = exp2(whole[h])",
            "keep": "keep[b,h,c,p] = kept[h,p]",
        },
        types=_singles(operands) | {name: dtype},
        positive="" if steps else "scale",
    )


@functools.cache
def definition(shared=None, ragged=False, skip=False, gate=False, initial=False, outputs=True, past=False):
    """Return the recurrence in chunks as formulas.

    Args:
        shared: the number of heads that share a head of B and C; None if all heads do, and B and C have no dimension of heads.
        ragged: X, B and C have the dimension l of positions instead of chunks.
        skip: D[h] * X is added to the result.
        gate: the result is multiplied by silu(Z).
        initial: the state I[b,h,p,n] before the first chunk; zeros without it.
        outputs: compute Y. Without it, W[b,h,p] is the product of all decays.
        past: also return the part of Y that comes from earlier chunks, and the state before each chunk.
    """
    group, dim = _heads_of(shared)
    t, u = (f"b,c * {CHUNK} + {v}" if ragged else f"b,c,{v}" for v in "tu")
    positions = ("b l", "b l") if ragged else ("b c t", "b c u")
    steps = {
        "shrink": "state[p,n] = state[p,n] * keep[b,h,c,p]",
        "xs": f"xs[u,p] = X[{u},h,p] * rest[b,h,c,u]",
        "add": f"state[p,n] += sum(u, xs[u,p] * B[{u},{group}n])",
        "total": "total[p] = total[p] * keep[b,h,c,p]",
        "s": f"s[t,u] = sum(n, C[{t},{group}n] * B[{u},{group}n])",
        "carry": "z[p,n] = state[p,n]",
        "save": "States[b,c,h,p,n] = z[p,n]",
        "past": f"y[t,p] = sum(n, C[{t},{group}n] * z[p,n])",
        "w": "w[t,u] = where(u <= t, s[t,u] * exp2(at[b,h,c,t] - au[b,h,c,u]), 0)",
        "decay": "y[t,p] = y[t,p] * exp2(at[b,h,c,t])",
        "store_past": "Past[b,c,t,h,p] = y[t,p]",
        "own": f"y[t,p] += sum(u, w[t,u] * X[{u},h,p])",
        "skip": f"y[t,p] = y[t,p] + D[h] * Xt[{t},h,p]",
        "gate": f"y[t,p] = y[t,p] * silu(Z[{t},h,p])",
        "store": "Y[b,c,t,h,p] = y[t,p]",
    }
    options = (("skip", skip), ("gate", gate), ("store_past", past), ("save", past), ("total", not outputs))
    absent = {name for name, used in options if not used}
    used = set(steps) - absent if outputs else {"shrink", "xs", "add", "total"}
    body = {name: steps[name] for name in ORDER if name in used}
    operands = {
        **({"C": f"{positions[0]} {dim}n"} if outputs else {}),
        "B": f"{positions[1]} {dim}n",
        "X": f"{positions[1]} h p",
        **({"at": "b h c t"} if outputs else {}),
        **({"au": "b h c u"} if outputs else {}),
        "rest": "b h c u",
        "keep": "b h c p",
        **({"Xt": f"{positions[0]} h p", "D": "h"} if skip else {}),
        **({"Z": f"{positions[0]} h p"} if gate else {}),
        **({"I": "b h p n"} if initial else {}),
        **({"Y": "b c t h p"} if outputs else {"W": "b h p"}),
        **({"Past": "b c t h p", "States": "b c h p n"} if past else {}),
        "F": "b h p n",
    }
    return Fused(
        name="ssd" if outputs else "ssd_states",
        dims="b c" + " t" * outputs + " u h p n" + " g" * (dim == "g ") + " l" * ragged,
        batch="b h",
        scan="c",
        operands=operands,
        init={"start": "state[p,n] = " + ("I[b,h,p,n]" if initial else "0"), **({} if outputs else {"one": "total[p] = 1"})},
        body=body,
        final={"final": "F[b,h,p,n] = state[p,n]", **({} if outputs else {"whole": "W[b,h,p] = total[p]"})},
        types=_singles(operands),
    )


@functools.cache
def pairs_definition(shared=None):
    """Return, for the gradients of logarithms, the sum of all pairs of positions of a chunk with position u + 1 between them.

    The pair of t and u contributes the gradient of Y[t] times the part of Y[t] that comes from X[u]. G is the gradient of Y.
    """
    group, dim = _heads_of(shared)
    operands = {
        "C": f"b c t {dim}n",
        "B": f"b c u {dim}n",
        "G": "b c t h p",
        "X": "b c u h p",
        "at": "b h c t",
        "au": "b h c u",
        "Q": "b h c u",
    }
    return Fused(
        name="ssd_pairs",
        dims="b c t u h p n" + " g" * (dim == "g "),
        batch="b h c",
        operands=operands,
        body={
            "s": f"s[t,u] = sum(n, C[b,c,t,{group}n] * B[b,c,u,{group}n])",
            "v": "v[t,u] = sum(p, G[b,c,t,h,p] * X[b,c,u,h,p])",
            "pair": "pair[t,u] = where(u <= t, s[t,u] * v[t,u] * exp2(at[b,h,c,t] - au[b,h,c,u]), 0)",
            "before": "before[t,u] = cumsum(u, pair[t,u])",
            "after": "after[t,u] = where(u < t, before[t,u], 0)",
            "all": "q[u] = sum(t, after[t,u])",
            "store": "Q[b,h,c,u] = q[u]",
        },
        types=_singles(operands),
    )


def crossing_definition(count):
    """Return, for the gradients of logarithms, the products of states of both directions at the first position of each chunk but the first.

    S[b,c,r,n] are the states before each of `count` chunks, G[b,c,r,n] those of the recurrence in reverse, whose chunks are in reverse.
    """
    return Fused(
        name="ssd_crossing",
        dims="b c r n s",
        batch="b c",
        operands={"S": "b s r n", "G": "b s r n", "d": "b c r"},
        body={
            "term": f"term[r,n] = S[b,c + 1,r,n] * G[b,{count - 1} - c,r,n]",
            "sum": "total[r] = sum(n, term[r,n])",
            "store": "d[b,c,r] = total[r]",
        },
        types={"d": float32},
    )


row_dots = Fused(
    name="ssd_dots",
    dims="m p",
    operands={"A": "m p", "G": "m p", "d": "m"},
    body={
        "term": "term[m,p] = A[m,p] * G[m,p]",
        "sum": "total[m] = sum(p, term[m,p])",
        "store": "d[m] = total[m]",
    },
    types={"d": float32},
)
"""The product of each row of A with that of G."""

scaled_rows = Fused(
    name="ssd_scaled",
    dims="m p",
    operands={"A": "m p", "d": "m", "S": "m p"},
    body={"scale": "s[m,p] = A[m,p] * d[m]", "store": "S[m,p] = s[m,p]"},
    types={"d": float32},
)
"""Each row of A times a number."""

repeated_rows = Fused(
    name="ssd_repeated", dims="m r p", operands={"A": "m p", "S": "m r p"},
    body={"load": "s[m,r,p] = A[m,p]", "store": "S[m,r,p] = s[m,r,p]"},
)  # fmt: skip
"""Each row of A, several times: those of a group for each of its heads."""


def reversed_rows(length):
    """Return the definition of rows in reverse order; a sequence has `length` of them."""
    body = {"load": f"s[b,t,p] = A[b,{length - 1} - t,p]", "store": "S[b,t,p] = s[b,t,p]"}
    return Fused(name="ssd_reversed", dims="b u t p", operands={"A": "b u p", "S": "b t p"}, body=body)


def _heads_of(shared):
    """Return the index and the dimension of heads of B and C: see `definition`."""
    if shared is None:
        return "", ""
    return ("h,", "h ") if shared == 1 else (f"h // {shared},", "g ")


@functools.cache
def joined_definition(initial=False):
    """Return the states before each part q of a sequence, and after the last one, from the states that the parts add.

    F[b,q,h,p,n] and W[b,q,h,p] are the results of `definition` without outputs, J the state of the sequence before the first part.
    """
    operands = {"F": "b q h p n", "W": "b q h p", **({"J": "b h p n"} if initial else {}), "I": "b q h p n", "last_state": "b h p n"}
    return Fused(
        name="ssd_joined",
        dims="b q h p n",
        batch="b h",
        scan="q",
        operands=operands,
        init={"start": "state[p,n] = " + ("J[b,h,p,n]" if initial else "0")},
        body={
            "before": "I[b,q,h,p,n] = state[p,n]",
            "after": "state[p,n] = state[p,n] * W[b,q,h,p] + F[b,q,h,p,n]",
        },
        final={"final": "last_state[b,h,p,n] = state[p,n]"},
        types=_singles(operands),
    )


def _singles(operands):
    """Return the types of operands: all but those of the problem's type are float32."""
    return {name: float32 for name in operands if name not in ("B", "C", "G", "Past", "States", "X", "Xt", "Y", "Z")}


def by_threads(fused):
    """Return the strategy for `decays_definition`, for any number of elements of X: a thread has one head of one chunk."""
    vector = AnySpec.tile(1, 4).unroll().done()
    heads = fused.tile(b=1, c=1, h=32).to(Block).tile(h=1).to(Thread)
    for name in ("at", "au", "rest", "keep"):
        heads = heads.step(name, vector)
    return heads.done()


def by_scans(fused):
    """Return the strategy for `decays_definition`: a warp has one head of one chunk. X has a multiple of 32 elements."""
    return fused.tile(b=1, c=1, h=8).to(Block).tile(h=1).to(Warp).done()


def by_wgmma(fused):
    """Return the strategy for `definition` on Hopper: a warpgroup has one head, a producer loads, and an SM has two blocks."""
    chunks = fused.tile(b=1, h=1, p=64).to(Block).min_blocks_per_sm(2).split(c=1).pipeline(stages).warp_specialize(128)
    for name in ("C", "B", "X", "at", "au", "rest", "keep"):
        chunks = chunks.load(name, SH, copy) if name in fused.fused_definition.arrays else chunks
        chunks = chunks.stages(c_stages) if name == "C" and name in fused.fused_definition.arrays else chunks
    steps = chunks.set_memory("z", SH) if "carry" in _names(fused) else chunks
    for name in _products(fused):
        steps = steps.step(name, MatMul.tile(64).to(Warpgroup).split(16).unroll().done())
    staged = Move.tile(64).to(Warpgroup).load(SRC, SH, copy).cast_on_copy().done()
    for name, how in (("save", Move.tile(64).to(Warpgroup).done()), ("store_past", staged), ("store", staged)):
        steps = steps.step(name, how) if name in _names(fused) else steps
    return steps.done()


def by_warps(fused):
    """Return the strategy for `definition` with mma.sync: four warps have one head, and `cp.async` loads."""
    chunks = fused.tile(b=1, h=1, p=64).to(Block).split(c=1)
    for name in ("C", "B", "X"):
        chunks = chunks.load(name, SH, vectors).swizzle_storage() if name in fused.fused_definition.arrays else chunks
    for name, step in (("z", "carry"), ("xs", "xs"), ("w", "w")):
        chunks = chunks.set_memory(name, SH).swizzle_storage() if step in _names(fused) else chunks
    steps = chunks
    product = MatMul.split(16).unroll().load(A, RF, parts).load(B, RF, parts).tile(16, 16).unroll().mma_tile().done()
    for name in _products(fused):
        steps = steps.step(name, MatMul.tile(16).to(Warp).then(product))
    return steps.done()


def _names(fused):
    return {one.name for one in fused.fused_definition.steps}


def _products(fused):
    return [name for name in ("s", "past", "add", "own") if name in _names(fused)]


def by_pairs(fused):
    """Return the strategy for `pairs_definition`: four warps have one chunk of a head."""
    steps = fused.tile(b=1, h=1, c=1).to(Block)
    for name in ("C", "B", "G", "X"):
        steps = steps.load(name, SH, vectors).swizzle_storage()
    product = MatMul.split(16).unroll().load(A, RF, parts).load(B, RF, parts).tile(16, 16).unroll().mma_tile().done()
    for name in ("s", "v"):
        steps = steps.step(name, MatMul.tile(16).to(Warp).then(product))
    return steps.done()


def by_elements(fused):
    """Return the strategy for `joined_definition`: a thread has four elements of the state of a head."""
    rows = fused.tile(b=1, h=1, p=8).to(Block).split(q=1).tile(p=1, n=4).to(Thread)
    return rows.done()


strategy = by_wgmma(definition())
ampere = by_warps(definition())
states = by_wgmma(definition(outputs=False))
decays = by_scans(decays_definition())
joined = by_elements(joined_definition())
pairs = by_pairs(pairs_definition())
by_rows = AnySpec.tile(b=1, c=1, r=32).to(Block).load("S", RF, vectors).load("G", RF, vectors).done()
dots = row_dots.tile(m=32).to(Block).load("A", RF, vectors).load("G", RF, vectors).done()
scaled = scaled_rows.tile(m=32).to(Block).load("A", RF, vectors).done()
VECTOR = 8
"""Elements of 16 bits that a thread copies at a time."""

repeated = AnySpec.tile(m=1, r=16).to(Block).tile(m=1, r=1, p=VECTOR).to(Thread).done()
in_reverse = AnySpec.tile(b=1, t=4, p=1024).to(Block).tile(b=1, t=1, p=VECTOR).to(Thread).done()

FORMS = {
    "outputs": definition,
    "states": functools.partial(definition, outputs=False),
    "decays": decays_definition,
    "joined": joined_definition,
    "pairs": pairs_definition,
    "dots": lambda: row_dots,
    "scaled": lambda: scaled_rows,
}
"""The definitions by the names of problems."""


def spec(L, P, N, heads=1, batch=1, groups=None, fused=None, chunks=None, form="outputs", **options):
    """Return the problem of `batch` sequences of L positions, with `heads` heads of P elements, and states of P x N numbers.

    Args:
        L, P, N, heads, batch: sizes.
        groups: the number of heads of B and C; None if the definition has no dimension for them.
        fused: one of the definitions of this file.
        chunks: the number of chunks, or of parts; the number of chunks of L by default.
        form: the name of the definition, if `fused` is None.
        options: element types and storage orders.
    """
    fused = FORMS[form]() if fused is None else fused
    stated = fused.fused_definition
    dims = {dim for name in stated.arrays for dim in stated.dims_of_array(name)}
    count = -(-L // CHUNK) if chunks is None else chunks
    sizes = {
        "b": batch,
        "c": count,
        "t": CHUNK,
        "u": CHUNK,
        "h": heads,
        "p": P,
        "n": N,
        "g": groups,
        "l": L,
        "q": count,
        "m": batch * L * heads,
    }
    return fused(**{dim: size for dim, size in sizes.items() if dim in dims}, **options)


def values(spec, target=None):
    """Return tunables for a problem without a record. With `Past`, a second stage of C would leave one block per SM."""
    return {"stages": 2, "c_stages": 1 if "Past" in spec.operands else 2}
