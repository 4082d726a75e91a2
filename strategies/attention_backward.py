"""Gradients of attention on Hopper: one kernel for dQ, dK and dV, between two small ones (the structure of FlashAttention-3).

    rows(b,g,r,m,d)                           D = rowsum(dO * O), and the log-sum-exp in base 2
    attention_backward(m,n,d)(GL,...)(Kernel)
      tile(r=1, g=1, b=1).to(Block)           one head after another
      tile(n=bn).to(Block)                    its keys, the first ones first: under a causal mask they have the most queries
      load(K, SH), load(V, SH)                TMA, once per tile
      split(m=bm).pipeline(stages)            one block of queries per iteration
        .warp_specialize(128)                 a producer warpgroup fills the stages
      load(Q, SH), load(dO, SH), load(L), load(D)     TMA
      set_memory(dss, SH)                     the gradients of the scores, which all warpgroups read
      step(s), step(dp)                       MatMul(64,bm,d)(SH,SH,RF)(Warpgroup)   scores of 64 keys, transposed: K Q^T and V dO^T
      step(dv), step(dk)                      MatMul(64,d,bm)(RF,SH,RF)(Warpgroup)   the scores are A fragments without any data movement
      step(dqp)                               MatMul(64,..,bn)(SH,SH,RF)(Warpgroup)  each warpgroup computes a part of the columns
      step(dq)                                AtomicAdd(64,..)(RF,GL)(Warpgroup)     shared memory, then TMA adds to float32
    scaled(b,m,g,r,d)                         dQ in the type of Q

Probabilities are computed again from the log-sum-exp of the forward pass. Masks change values in place, so only tiles on the diagonal
execute them, and fully masked tiles are skipped. The order of the additions to dQ varies, so its last bits do, too.

Q[b,m,g,r,d], K[b,n,g,d], V[b,n,g,d], O and dO as Q, L[b,g,r,m]: as in `attention`, with `r` query heads for each of the `g` key heads.
With `shared`, a block adds up the gradients of all query heads of its keys in a loop over `r`.
"""

import functools

from fireiron import *
from fireiron.strategies.attention import LOG2_E
from fireiron.values.expr import constant

SIZES = (512, 512, 128)

bm = Tunable("bm", 64, 128)
bn = Tunable("bn", 128, 64, 192)
stages = Tunable("stages", 2, 1, 3)
columns = Tunable("columns", 64, 32, 128)
add_n = Tunable("add_n", 64, 32, 128)
epi_n = Tunable("epi_n", 64, 32, 128)


@functools.cache
def definition(causal=False, window=None, shared=False, late=False, dk_first=False, dk_of="dss"):
    """Return the gradients as formulas: dQ, without the scale and in float32, dK and dV.

    Args:
        causal, window: the mask, as in `attention.definition`.
        shared: several query heads read a key head, and a loop over `r` adds up the gradients of its keys.
        late: compute dV after the gradients of the scores, which needs fewer registers.
        dk_first: compute dK before dQ.
    """
    seen = ["n <= m"] * (causal or window is not None) + [f"m < n + {window}"] * (window is not None)
    name = "mask" if window is None else "window"
    masked = lambda tensor: {f"{name}_{tensor}": f"{tensor}[n,m] = where({' and '.join(seen)}, {tensor}[n,m], 0)"} if seen else {}
    values = {"pt": "pt[n,m] = p[n,m]", "dv": "dv[n,d] += sum(m, pt[n,m] * dO[b,m,g,r,d])"}
    keys = {"dk": f"dk[n,d] += sum(m, {dk_of}[n,m] * Q[b,m,g,r,d])"}
    queries = {"dqp": "dqp[m,d] = sum(n, dss[n,m] * K[b,n,g,d])"}
    steps = {
        "s": "s[n,m] = sum(d, K[b,n,g,d] * Q[b,m,g,r,d])",
        "dp": "dp[n,m] = sum(d, V[b,n,g,d] * dO[b,m,g,r,d])",
        "p": f"p[n,m] = exp2(s[n,m] * (scale * {LOG2_E}) - L[b,g,r,m])",
        **masked("p"),
        **({} if late else values),
        "ds": "ds[n,m] = p[n,m] * (dp[n,m] - D[b,g,r,m])",
        **masked("ds"),
        **(values if late else {}),
        "dst": "dst[n,m] = ds[n,m]",
        "dss": "dss[n,m] = dst[n,m]",
        **({**keys, **queries} if dk_first else {**queries, **keys}),
        "dq": "dQ[b,m,g,r,d] += dqp[m,d]",
    }
    stored = "b n g d" if shared else "b n g r d"
    index = stored.replace(" ", ",")
    return Fused(
        name="attention_backward",
        dims="m n d b g r",
        loop="m",
        scan="r" if shared else "",
        batch="b g" if shared else "b g r",
        operands={
            "Q": "b m g r d", "K": "b n g d", "V": "b n g d", "dO": "b m g r d", "L": "b g r m", "D": "b g r m", "scale": "",
            "dQ": "b m g r d", "dK": stored, "dV": stored,
        },
        init={"zero_v": "dv[n,d] = 0", "zero_k": "dk[n,d] = 0"},
        body={"m": steps} if shared else steps,
        final={"scaled": "dk[n,d] = dk[n,d] * scale", "dK": f"dK[{index}] = dk[n,d]", "dV": f"dV[{index}] = dv[n,d]"},
        types={"L": float32, "D": float32, "dQ": float32},
    )  # fmt: skip


rows_definition = Fused(
    name="attention_backward_rows",
    dims="m d b g r",
    batch="b g r",
    operands={"O": "b m g r d", "dO": "b m g r d", "L": "b g r m", "D": "b g r m", "L2": "b g r m"},
    body={
        "D": "D[b,g,r,m] = sum(d, O[b,m,g,r,d] * dO[b,m,g,r,d])",
        "L2": f"L2[b,g,r,m] = where(L[b,g,r,m] > -1e30, L[b,g,r,m] * {LOG2_E}, inf)",
    },
    types={"L": float32, "D": float32, "L2": float32},
)
"""Row sums of dO * O, and the log-sum-exp in base 2; that of a query without keys is infinite, so all its probabilities are 0."""

scaled_definition = Fused(
    name="attention_backward_scaled",
    dims="m d b g r",
    batch="b g r",
    operands={"X": "b m g r d", "scale": "", "dQ": "b m g r d"},
    body={"dQ": "dQ[b,m,g,r,d] = X[b,m,g,r,d] * scale"},
    types={"X": float32},
)
"""The gradient of the queries, scaled and rounded once."""

copy = Move.done()


def rows(d):
    """Return the strategy of `rows_definition` for heads of d elements: 8 per lane."""
    lanes = Move.tile(max(1, 256 // d), d).to(Warp).tile(1, 8).to(Lane).done()
    return rows_definition.tile(m=max(1, 256 // d) * 8, r=1, g=1, b=1).to(Block).load("O", RF, lanes).load("dO", RF, lanes).done()


scaled = scaled_definition.tile(m=32, r=1, g=1, b=1).to(Block).tile(m=1, d=4).to(Thread).done()


def by_keys(
    fused, d, bm=bm, bn=bn, stages=stages, columns=columns, add_n=add_n, epi_n=epi_n, in_flight=None, defer=None, tma=True, panels=None
):
    """Return the strategy for a definition with heads of d elements."""
    names = {one.name for one in fused.fused_definition.steps}
    shared = "r" in fused.fused_definition.scan
    product = lambda columns: MatMul.tile(64, columns).to(Warpgroup).split(16).unroll().done()
    blocks = (fused.tile(g=1, b=1) if shared else fused.tile(r=1, g=1, b=1)).to(Block).tile(n=bn).to(Block)
    keys = blocks.load("K", SH, copy)
    keys = keys if panels is None else keys.storage_layout(Layout((bn, (panels, d // panels)), (panels, (1, bn * panels))))
    keys = keys if panels is None else keys.swizzle_storage(Swizzle(2, 3, 3))
    blocks = keys.load("V", SH, copy)
    loop = (blocks.split(r=1) if shared else blocks).split(m=bm).pipeline(stages)
    loop = loop.skip_masked_tiles() if names & {"mask_p", "window_p"} else loop
    loop = loop.warp_specialize(128)
    loop = loop if in_flight is None else loop.mma_in_flight(in_flight)
    loop = loop if defer is None else loop.defer(defer[0], after=defer[1])
    for name in ("Q", "dO", "L", "D"):
        loop = loop.load(name, SH, copy)
    loop = loop.set_memory("dss", SH)
    steps = loop.step("s", product(bm)).step("dp", product(bm)).step("dv", product(d)).step("dk", product(d)).step("dqp", product(columns))
    if tma:
        steps = steps.step("dq", AtomicAdd.tile(64, columns).to(Warpgroup).tile(64, add_n).unroll().load(SRC, SH, copy).done())
    staged = Move.tile(64, d).to(Warpgroup).tile(64, epi_n).unroll().load(SRC, SH, copy).cast_on_copy().done()
    return steps.step("dK", staged).step("dV", staged).done()


def spec(M, N, D, heads=1, batch=1, shared=1, fused=None, **options):
    """Return the problem of M queries, N keys and D elements per head, with `heads` query heads, `shared` of them per key head."""
    fused = definition() if fused is None else fused
    return fused(m=M, n=N, d=D, b=batch, g=heads // shared, r=shared, **options)


def graph(kernel, problem):
    """Return the three kernels for a strategy of the gradients and its problem."""
    sizes = {dim: constant(size) or size for dim in "mdbgr" for size in [problem.size(dim)]}
    d, dtype = sizes["d"], problem.operands["Q"].dtype
    return KernelGraph(
        "attention_backward",
        {
            "rows": rows(d)(rows_definition(**sizes, dtype=dtype)),
            "gradients": kernel(problem),
            "scaled": scaled(scaled_definition(**sizes, dtype=dtype)),
        },
        {
            "gradients.D": "rows.D", "gradients.L": "rows.L2", "gradients.dO": "rows.dO",
            "scaled.X": "gradients.dQ", "scaled.scale": "gradients.scale",
        },
        outputs=("scaled.dQ", "gradients.dK", "gradients.dV"),
    )  # fmt: skip


def through_shared(fused, bm=bm, bn=bn, stages=stages, columns=columns, add_n=add_n, epi_n=epi_n, in_flight=None):
    """Return the strategy for heads of 256 elements: a warpgroup has a part of the queries or of the columns of each product.

    Probabilities and gradients of scores are A operands in shared memory, because a warpgroup has no registers for all columns.
    """
    names = {one.name for one in fused.fused_definition.steps}
    shared = "r" in fused.fused_definition.scan
    product = lambda columns: MatMul.tile(64, columns).to(Warpgroup).split(16).unroll().done()
    blocks = (fused.tile(g=1, b=1) if shared else fused.tile(r=1, g=1, b=1)).to(Block).tile(n=bn).to(Block)
    blocks = blocks.load("K", SH, copy).load("V", SH, copy)
    loop = (blocks.split(r=1) if shared else blocks).split(m=bm).pipeline(stages)
    loop = loop.skip_masked_tiles() if names & {"mask_p", "window_p"} else loop
    loop = loop.warp_specialize(128)
    loop = loop if in_flight is None else loop.mma_in_flight(in_flight)
    for name in ("Q", "dO", "L", "D"):
        loop = loop.load(name, SH, copy)
    loop = loop.set_memory("pt", SH).set_memory("dss", SH)
    steps = loop.step("s", product(bm // 2)).step("dp", product(bm // 2))
    for name in ("dv", "dk", "dqp"):
        steps = steps.step(name, product(columns))
    steps = steps.step("dq", AtomicAdd.tile(64, columns).to(Warpgroup).tile(64, add_n).unroll().load(SRC, SH, copy).done())
    staged = Move.tile(64, columns).to(Warpgroup).tile(64, epi_n).unroll().load(SRC, SH, copy).cast_on_copy().reuse_buffer().done()
    return steps.step("dK", staged).step("dV", staged).done()


parts = Move.done()
vectors = Move.coalesced_copy(8).done()


def by_warps(fused, d, stages=1):
    """Return the strategy for instructions up to sm_80: probabilities and gradients of scores pass through shared memory.

    A block has 64 keys and 64 queries for heads of up to 128 elements, otherwise 32 of each; cp.async copies the operands.
    """
    names = {one.name for one in fused.fused_definition.steps}
    shared = "r" in fused.fused_definition.scan
    size, score, wide = (64, (16, 32), (16, d // 2)) if d <= 128 else (32, (16, 16), (16, d // 2))
    product = MatMul.split(16).unroll().load(A, RF, parts).load(B, RF, parts).tile(16, 16).unroll().mma_tile().done()
    tiled = lambda tile: MatMul.tile(*tile).to(Warp).then(product)
    blocks = (fused.tile(g=1, b=1) if shared else fused.tile(r=1, g=1, b=1)).to(Block).tile(n=size).to(Block)
    blocks = blocks.load("K", SH, vectors).swizzle_storage().load("V", SH, vectors).swizzle_storage()
    loop = (blocks.split(r=1) if shared else blocks).split(m=size)
    loop = loop.pipeline(stages) if stages > 1 else loop
    loop = loop.skip_masked_tiles() if names & {"mask_p", "window_p"} else loop
    loop = loop.load("Q", SH, vectors).swizzle_storage().load("dO", SH, vectors).swizzle_storage()
    loop = loop.set_memory("pt", SH).swizzle_storage().set_memory("dss", SH).swizzle_storage()
    steps = loop.step("s", tiled(score)).step("dp", tiled(score))
    for name in ("dv", "dk", "dqp"):
        steps = steps.step(name, tiled(wide))
    return steps.done()
