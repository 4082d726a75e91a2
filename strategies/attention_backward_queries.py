"""The gradient of attention's queries in its own kernel: with it, gradients have the same bits in each run.

    attention_backward_queries(m,n,d)(GL,GL,GL,GL,GL,GL,VAL,GL)(Kernel)
      tile(r=1, g=1, b=1).to(Block)           one head after another
      tile(m=bm).to(Block)                    its queries; under a causal mask the last ones, which see the most keys, first
      load(Q, SH), load(dO, SH)               TMA, once per tile
      split(n=bn).pipeline(stages)            one block of keys per iteration
        .warp_specialize(128)                 a producer warpgroup fills the stages
      load(K, SH), load(V, SH)                TMA
      step(s), step(dp)                       MatMul(64,bn,d)(SH,SH,RF)(Warpgroup)   scores and their gradients
      step(dq)                                MatMul(64,d,bn)(RF,SH,RF)(Warpgroup)   the scores are A fragments without any data movement
      step(dQ)                                Move(64,d)(RF,GL)(Warpgroup)           stmatrix, TMA

`attention_backward` adds parts of dQ from all blocks of keys, in an order that varies. Here a block has all keys of its queries, and a
second kernel, `attention_backward` without dQ, computes dK and dV. Both compute the probabilities: seven matmuls instead of five, but no
array of dQ in float32.
"""

import functools

from fireiron import *
from fireiron.strategies import attention_backward
from fireiron.strategies.attention_backward import exponent_of, masked, parts, slope_of, vectors
from fireiron.values.expr import constant

SIZES = (512, 512, 128)

bm = Tunable("bm", 128, 64, 32)
bn = Tunable("bn", 64, 128, 32)
stages = Tunable("stages", 2, 1, 3)
columns = Tunable("columns", 64, 32, 128)
score_n = Tunable("score_n", 32, 16, 64)
epi_n = Tunable("epi_n", 64, 32, 128)
heads_per_group = Tunable("heads_per_group", 0, 1, 2, 4, 8, 16)

IN_CACHE = 16 << 20
"""Bytes of keys and values that stay in L2 while blocks read them."""


@functools.cache
def definition(causal=False, window=None, score=None):
    """Return the gradient of the queries as formulas; the arguments are as in `attention_backward.definition`."""
    return Fused(
        name="attention_backward_queries",
        dims="m n d b g r",
        loop="n",
        batch="b g r",
        operands={
            "Q": "b m g r d", "K": "b n g d", "V": "b n g d", "dO": "b m g r d", "L": "b g r m", "D": "b g r m", "scale": "",
            "dQ": "b m g r d",
        },
        init={"zero": "dq[m,d] = 0", "lse": "lse[m] = L[b,g,r,m]", "sums": "sums[m] = D[b,g,r,m]"},
        body={
            "s": "s[m,n] = sum(d, Q[b,m,g,r,d] * K[b,n,g,d])",
            "dp": "dp[m,n] = sum(d, dO[b,m,g,r,d] * V[b,n,g,d])",
            "p": f"p[m,n] = exp2({exponent_of(score, 'm,n')} - lse[m])",
            **masked("p", "m,n", causal, window),
            **slope_of(score, "m,n"),
            "ds": "ds[m,n] = p[m,n] * (dp[m,n] - sums[m])",
            **masked("ds", "m,n", causal, window),
            "dst": "dst[m,n] = ds[m,n]",
            "dq": "dq[m,d] += sum(n, dst[m,n] * K[b,n,g,d])",
        },
        final={"scaled": "dq[m,d] = dq[m,d] * scale", "dQ": "dQ[b,m,g,r,d] = dq[m,d]"},
        types={"L": float32, "D": float32},
    )  # fmt: skip


copy = Move.done()
staged = Move.tile(64).to(Warpgroup).tile(64, epi_n).unroll().load(SRC, SH, copy).cast_on_copy().reuse_buffer().done()


def by_rows(fused):
    """Return the strategy with TMA, wgmma and a producer: a warpgroup has 64 queries."""
    loop = _tiles(fused).load("Q", SH, copy).load("dO", SH, copy).split(n=bn).pipeline(stages)
    loop = loop.skip_masked_tiles() if _is_masked(fused) else loop
    loop = loop.warp_specialize(128).load("K", SH, copy).load("V", SH, copy)
    product = MatMul.tile(64).to(Warpgroup).split(16).unroll().done()
    return loop.step("s", product).step("dp", product).step("dq", product).step("dQ", staged).done()


def by_warps(fused):
    """Return the strategy for instructions up to sm_80: gradients of scores pass through shared memory."""
    product = MatMul.split(16).unroll().load(A, RF, parts).load(B, RF, parts).tile(16, 16).unroll().mma_tile().done()
    blocks = _tiles(fused).load("Q", SH, vectors).swizzle_storage().load("dO", SH, vectors).swizzle_storage()
    loop = blocks.split(n=bn)
    loop = loop.skip_masked_tiles() if _is_masked(fused) else loop
    loop = loop.load("K", SH, vectors).swizzle_storage().load("V", SH, vectors).swizzle_storage().set_memory("dst", SH).swizzle_storage()
    steps = loop.step("s", MatMul.tile(16, score_n).to(Warp).then(product)).step("dp", MatMul.tile(16, score_n).to(Warp).then(product))
    return steps.step("dq", MatMul.tile(16, columns).to(Warp).then(product)).done()


def _tiles(fused):
    """Return the blocks: queries of one head; under a causal mask the last ones first."""
    if "mask_p" in _names(fused):
        return fused.tile(m=bm, r=1, g=1, b=1).to(Block).longest_first("m", heads_per_group)
    return fused.tile(r=1, g=1, b=1).to(Block).tile(m=bm).to(Block)


def _is_masked(fused):
    return bool(_names(fused) & {"mask_p", "window_p"})


def _names(fused):
    return {step.name for step in fused.fused_definition.steps}


strategy = by_rows(definition())
causal = by_rows(definition(causal=True))
ampere = by_warps(definition())
causal_ampere = by_warps(definition(causal=True))


def spec(M, N, D, heads=1, batch=1, shared=1, fused=None, **options):
    """Return the problem of M queries, N keys and D elements per head, with `heads` query heads, `shared` of them per key head."""
    return (definition() if fused is None else fused)(m=M, n=N, d=D, b=batch, g=heads // shared, r=shared, **options)


def graph(strategies, M, N, D, heads=1, batch=1, shared=1, dtype=float16, lse_grad=False, **orders):
    """Return the three kernels for strategies of the queries and of the keys; sizes, arguments and results as in `attention_backward`."""
    of_queries, of_keys = strategies
    file, sizes = attention_backward, (M, N, D, heads, batch, shared)
    only, rows = file.only, file.rows_definition(lse_grad)
    given = {"m": M, "d": D, "b": batch, "g": heads // shared, "r": shared, "dtype": dtype}
    queries = spec(*sizes, of_queries.start, dtype=dtype, **only(orders, "Q", "K", "V", "dO", "dQ"))
    keys = file.spec(*sizes, of_keys.start, dtype=dtype, **only(orders, "Q", "K", "V", "dO", "dK", "dV"))
    shared_inputs = {f"keys.{name}": f"queries.{name}" for name in ("Q", "K", "V", "scale")}
    of_rows = {f"{kernel}.{name}": f"rows.{array}" for kernel in ("queries", "keys") for name, array in FROM_ROWS.items()}
    return KernelGraph(
        "attention_backward_ordered",
        {"rows": file.rows(D, lse_grad)(rows(**given, **only(orders, "O", "dO"))), "queries": of_queries(queries), "keys": of_keys(keys)},
        {**shared_inputs, **of_rows},
        outputs=("queries.dQ", "keys.dK", "keys.dV"),
    )


FROM_ROWS = {"D": "D", "L": "L2", "dO": "dO"}
"""Operands of both kernels that the kernel of row sums writes or reads."""


def values(spec, target=None):
    """Return tunables for a problem without a record."""
    d = constant(spec.size("d")) or 128
    return {"bm": 128, "bn": 64, "stages": 1 if d > 128 else 2, "epi_n": 64 if d == 64 else 128, "heads_per_group": grouped_heads(spec)}


def grouped_heads(spec):
    """Return the number of query heads whose keys and values fit in L2 while blocks read them."""
    n, d, g, r = (constant(spec.size(dim)) or unknown for dim, unknown in (("n", 4096), ("d", 128), ("g", 1), ("r", 1)))
    known = (heads for heads in (16, 8, 4, 2) if r % heads == 0 or (heads % r == 0 and g % (heads // r) == 0))
    return next((heads for heads in known if max(heads // r, 1) * n * d * 4 <= IN_CACHE), 1)


causal_values = values


def ampere_values(spec, target=None):
    """Return tunables for instructions up to sm_80: 8 warps with 64 queries and 64 keys, or 4 warps with 32 of each."""
    d = constant(spec.size("d")) or 128
    size, score = (64, 32) if d <= 128 else (32, 16)
    return {"bm": size, "bn": size, "score_n": score, "columns": d // 2, "heads_per_group": 1}


causal_ampere_values = ampere_values


def candidates(d, hopper, sizes=None, **options):
    """Return pairs of strategies with values, of the queries and of the keys, by name, the preferred first; as `attention_backward`."""
    own = {name: value for name, value in options.items() if name != "shared"}
    fused = definition(**own)
    forms = {"by_warps": (by_warps, ampere_values)}
    forms = {"by_rows": (by_rows, values)} | forms if hopper else forms
    problem = fused(**attention_backward.ONE_HEAD | (sizes or {}), d=d)
    queries = {name: attention_backward.with_values(form(fused), values_of(problem)) for name, (form, values_of) in forms.items()}
    keys = attention_backward.candidates(d, hopper, queries=False, sizes=sizes, **options)
    return {
        f"{first} and {second}": (of_queries, of_keys)
        for first, of_queries in queries.items()
        for second, of_keys in keys.items()
        if (first == "by_warps") == (second == "by_warps")
    }
