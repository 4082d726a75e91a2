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
      step(dq)                                AtomicAdd(64,..)(RF,GL)(Warpgroup)     to float32, from registers or shared memory
    scaled(b,m,g,r,d)                         dQ in the type of Q

Probabilities are computed again from the log-sum-exp of the forward pass. Masks change values in place, so only tiles on the diagonal
execute them, and fully masked tiles are skipped. The order of the additions to dQ varies, so its last bits do, too.

Q[b,m,g,r,d], K[b,n,g,d], V[b,n,g,d], O and dO as Q, L[b,g,r,m]: as in `attention`, with `r` query heads for each of the `g` key heads.
With `shared`, a block adds up the gradients of all query heads of its keys in a loop over `r`.
"""

import functools

from fireiron import *
from fireiron.specs.derivative import derivative
from fireiron.strategies.attention import LOG2_E, formula_of
from fireiron.values.expr import constant
from fireiron.values.machine import WARPGROUP_ARCHITECTURE

SIZES = (512, 512, 128)

bm = Tunable("bm", 64, 128, 32)
bn = Tunable("bn", 128, 64, 32)
stages = Tunable("stages", 2, 1, 3)
columns = Tunable("columns", 64, 32, 128)
score_m = Tunable("score_m", 32, 16, 64)
add_n = Tunable("add_n", 64, 32, 128)
epi_n = Tunable("epi_n", 64, 32, 128)
heads_per_group = Tunable("heads_per_group", 1, 2, 4, 8, 16)
num_blocks = Tunable("num_blocks", 132, 264)

IN_CACHE = 32 << 20
"""Bytes of queries and their gradients that stay in L2 while blocks read and add to them."""

BLOCKS = 128
"""Number of blocks of one group of heads, about one per SM: with fewer, the long blocks of the last group start late."""


@functools.cache
def definition(
    causal=False, window=None, shared=False, score=None, late=False, dk_first=False, dk_of="dss", rounded=False, queries=True, packed=False
):
    """Return the gradients as formulas: dQ, without the scale and in float32, dK and dV.

    Args:
        causal, window: the mask, as in `attention.definition`.
        score: a formula that changes the scaled score, as in `attention.definition`. Its derivative multiplies the gradient.
        shared: several query heads read a key head, and a loop over `r` adds up the gradients of its keys.
        late: compute dV after the gradients of the scores, which needs fewer registers.
        dk_first: compute dK before dQ.
        dk_of: the A operand of dK: "dss" in shared memory, or "dst" in registers.
        rounded: compute the gradients of scores from the rounded probabilities, which need half of the registers.
        queries: compute dQ, too. Without it, `attention_backward_queries` computes dQ in a fixed order.
        packed: tokens of packed sequences, and keys in tiles `t`, as in `attention_packed_backward`; without the mask.
    """
    row, key, sums = ("m,g,r,d", "t,n,g,d", "g,r,m") if packed else ("b,m,g,r,d", "b,n,g,d", "b,g,r,m")
    masks = {name: own_ranges(name) if packed else masked(name, "n,m", causal, window) for name in ("p", "ds")}
    slopes = slope_of(score, "n,m")
    values = {"pt": "pt[n,m] = p[n,m]", "dv": f"dv[n,d] += sum(m, pt[n,m] * dO[{row}])"}
    keys = {"dk": f"dk[n,d] += sum(m, {dk_of}[n,m] * Q[{row}])"}
    of_queries = {"dqp": f"dqp[m,d] = sum(n, dss[n,m] * K[{key}])"} if queries else {}
    steps = {
        "s": f"s[n,m] = sum(d, K[{key}] * Q[{row}])",
        "dp": f"dp[n,m] = sum(d, V[{key}] * dO[{row}])",
        "p": f"p[n,m] = exp2({exponent_of(score, 'n,m')} - L[{sums}])",
        **({} if late and not slopes else masks["p"]),
        **({"pt": values.pop("pt"), **slopes} if slopes else {}),
        **({} if late else values),
        "ds": f"ds[n,m] = {'pt' if rounded and not slopes else 'p'}[n,m] * (dp[n,m] - D[{sums}])",
        **(masks["p"] if late and not slopes else {}),  # adjacent masks share a branch
        **masks["ds"],
        **(values if late else {}),
        "dst": "dst[n,m] = ds[n,m]",
        **({"dss": "dss[n,m] = dst[n,m]"} if queries or dk_of == "dss" else {}),
        **({**keys, **of_queries} if dk_first else {**of_queries, **keys}),
        **({"dq": f"dQ[{row}] += dqp[m,d]"} if queries else {}),
    }
    index = key if shared else key.replace("g", "g,r")
    batch = f"{key[0]} g" if shared else f"{key[0]} g r"
    operands = {"Q": row, "K": key, "V": key, "dO": row, "L": sums, "D": sums, "scale": ""}
    operands |= {"begin": "t", "end": "t", "inner": "t", "outer": "t", "low": "t,n", "high": "t,n"} if packed else {}
    operands |= {**({"dQ": row} if queries else {}), "dK": index, "dV": index}
    own = {"first": "first[n] = low[t,n]", "last": "last[n] = high[t,n]"} if packed else {}  # in registers, not loaded in each iteration
    ranges = dict.fromkeys(("begin", "end", "inner", "outer", "low", "high", *own), int32) if packed else {}
    return Fused(
        name="attention_packed_backward" if packed else "attention_backward",
        dims="m n d t g r" if packed else "m n d b g r",
        loop="m",
        scan="r" if shared else "",
        batch=batch,
        operands={name: dims.replace(",", " ") for name, dims in operands.items()},
        init={"zero_v": "dv[n,d] = 0", "zero_k": "dk[n,d] = 0"} | own,
        body={"m": steps} if shared else steps,
        final={"scaled": "dk[n,d] = dk[n,d] * scale", "dK": f"dK[{index}] = dk[n,d]", "dV": f"dV[{index}] = dv[n,d]"},
        types={"L": float32, "D": float32} | ({"dQ": float32} if queries else {}) | ranges,
    )


def own_ranges(value):
    """Return the steps that set a value to zero for queries that do not attend to the tile of packed keys, and to single keys."""
    conditions = {
        "mask": "begin[t] <= m",
        "end": "m < end[t]",
        "low": "inner[t] <= m or first[n] <= m",
        "high": "m < outer[t] or m < last[n]",
    }
    return {f"{name}_{value}": f"{value}[n,m] = where({condition}, {value}[n,m], 0)" for name, condition in conditions.items()}


def masked(value, index, causal, window):
    """Return the step that sets masked elements of a value, such as `p`, to zero; `index` is "n,m" or "m,n". It is empty without a mask."""
    conditions = ["n <= m"] * (causal or window is not None) + [f"m < n + {window}"] * (window is not None)
    if not conditions:
        return {}
    name = "mask" if window is None else "window"
    return {f"{name}_{value}": f"{value}[{index}] = where({' and '.join(conditions)}, {value}[{index}], 0)"}


def slope_of(score, index):
    """Return the step that multiplies probabilities by the derivative of a score formula. It is empty if the derivative is 1."""
    slope = "1" if score is None else str(derivative(score, "s"))
    return {} if slope == "1" else {"slope": f"p[{index}] = p[{index}] * ({_scaled(slope, index)})"}


def exponent_of(score, index):
    """Return the score in base 2."""
    return f"s[{index}] * (scale * {LOG2_E})" if score is None else f"({_scaled(score, index)}) * {LOG2_E}"


def _scaled(formula, index):
    """Return a formula of the score `s` of query `m` and key `n`, as a formula of the product `s[n,m]` or `s[m,n]`."""
    return formula_of(formula).replace("s[m,n]", f"s[{index}]")


@functools.cache
def rows_definition(lse_grad=False):
    """Return the row sums of dO * O and the log-sum-exp in base 2; that of a query without keys is infinite, so its probabilities are 0.

    With `lse_grad`, minus the gradient G of the log-sum-exp: a probability is the derivative of the log-sum-exp by its score.
    """
    sums = {"sum": "sums[m] = sum(d, O[b,m,g,r,d] * dO[b,m,g,r,d])", "D": "D[b,g,r,m] = sums[m] - G[b,g,r,m]"}
    return Fused(
        name="attention_backward_rows",
        dims="m d b g r",
        batch="b g r",
        operands={"O": "b m g r d", "dO": "b m g r d", "L": "b g r m"}
        | ({"G": "b g r m"} if lse_grad else {})
        | {"D": "b g r m", "L2": "b g r m"},
        body={
            **(sums if lse_grad else {"D": "D[b,g,r,m] = sum(d, O[b,m,g,r,d] * dO[b,m,g,r,d])"}),
            "L2": f"L2[b,g,r,m] = where(L[b,g,r,m] > -1e30, L[b,g,r,m] * {LOG2_E}, inf)",
        },
        types={"L": float32, "D": float32, "L2": float32} | ({"G": float32} if lse_grad else {}),
    )


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


def rows(d, lse_grad=False):
    """Return the strategy of `rows_definition` for heads of d elements: 8 per lane."""
    lanes = Move.tile(max(1, 256 // d), d).to(Warp).tile(1, 8).to(Lane).done()
    return rows_definition(lse_grad).tile(m=max(1, 256 // d) * 8, r=1, g=1, b=1).to(Block).load("O", RF, lanes).load("dO", RF, lanes).done()


def scaled(d, by_tiles=False):
    """Return the strategy of `scaled_definition` for heads of d elements: a thread has vectors of four elements of two rows.

    With `by_tiles`, X has the storage order `in_fragments`: a warp has 16 x 16 elements, which are adjacent there, and a lane has eight.
    """
    if by_tiles:
        warps = scaled_definition.tile(m=64, d=64, r=1, g=1, b=1).to(Block).tile(m=16, d=16).to(Warp).tile(m=1, d=8).to(Lane)
        return warps.load("X", RF, Move.done()).done()
    vectors = Move.tile(1, 4).unroll().done()
    threads = scaled_definition.tile(m=2048 // d, r=1, g=1, b=1).to(Block).tile(m=2, d=4).to(Thread).load("X", RF, vectors)
    return threads.step("dQ", AnySpec.tile(1, 4).unroll().done()).done()


def by_keys(
    fused, panel=None, in_flight=None, tma=True, blocks=None, dynamic=False, score_stages=1, at_end=False, joined=False, stagger=0,
    separate=False,
):  # fmt: skip
    """Return the strategy for a definition: a warpgroup has 64 keys and all columns of their gradients.

    Args:
        panel: columns of K per swizzled chunk, if `columns` is smaller than a chunk of 64; heads have twice as many elements.
        in_flight: as in `mma_in_flight`.
        tma: TMA adds to dQ; otherwise each thread adds its elements.
        blocks: the number of persistent blocks, whose loads of the next tile overlap the stores of the current one. None: a block per tile
        dynamic: persistent blocks claim the next tile from a counter.
        score_stages: stages of the gradients of scores. With two, warpgroups wait for each other once per iteration instead of twice.
        at_end: wait for the MMAs beyond `in_flight` only at the end of an iteration.
        joined: row sums are loaded with the same mbarriers as Q and dO.
        stagger: block b begins with the block of queries number b * stagger, so that blocks of a head add to different parts of dQ.
        separate: masked blocks of queries have a separate loop.
    """
    tiles, persistent = _blocks(fused, bn), blocks is not None
    tiles = tiles.persistent(blocks, dynamic) if persistent else tiles
    loop = _loop(fused, tiles, panel, in_flight, persistent, at_end, joined, stagger, separate)
    loop = _in_shared(loop, fused, "dss", stages=score_stages)
    steps = loop.step("s", _product(bm)).step("dp", _product(bm)).step("dv", _product()).step("dk", _product())
    if "dqp" in _names(fused):
        steps = steps.step("dqp", _product(columns))
        steps = steps.step("dq", _added) if tma else steps
    staged = Move.tile(64).to(Warpgroup).tile(64, epi_n).unroll().load(SRC, SH, copy).cast_on_copy()
    staged = (staged if persistent else staged.reuse_buffer()).done()
    return steps.step("dK", staged).step("dV", staged).done()


def through_shared(fused, in_flight=None, tma=True, at_end=False, score_stages=1, joined=False, stagger=0, separate=False):
    """Return the strategy for heads of 256 elements: a warpgroup has a part of the queries or of the columns of each product.

    Probabilities and gradients of scores are A operands in shared memory, because a warpgroup has no registers for all columns.
    """
    loop = _loop(fused, _blocks(fused, bn), None, in_flight, at_end=at_end, joined=joined, stagger=stagger, separate=separate)
    steps = _in_shared(loop, fused, "pt", "dss", stages=score_stages).step("s", _product(score_m)).step("dp", _product(score_m))
    for name in _products(fused):
        steps = steps.step(name, _product(columns))
    staged = Move.tile(64, columns).to(Warpgroup).tile(64, epi_n).unroll().load(SRC, SH, copy).cast_on_copy().reuse_buffer().done()
    steps = steps.step("dq", _added) if "dq" in _names(fused) and tma else steps
    return steps.step("dK", staged).step("dV", staged).done()


def _product(columns=None):
    """Return a matmul by wgmma of operands in shared memory, or of A in registers; a warpgroup has 64 rows and these columns, or all."""
    tile = MatMul.tile(64) if columns is None else MatMul.tile(64, columns)
    return tile.to(Warpgroup).split(16).unroll().done()


_added = AtomicAdd.tile(64, columns).to(Warpgroup).tile(64, add_n).unroll().load(SRC, SH, copy).done()


def _blocks(fused, keys):
    """Return the blocks: one head of keys, and `keys` of them.

    Under a causal mask, the first keys have the most queries. Their blocks start first, for `heads_per_group` heads at a time.
    """
    head = {"g": 1} if _is_shared(fused) else {"g": 1, "r": 1}
    batch = {dim: 1 for dim in "bt" if dim in fused.fused_definition.batch}  # tiles of packed keys have the dimension t
    if "mask_p" in _names(fused) and "b" in batch:
        return fused.tile(g=heads_per_group, **batch).to(Block).tile(n=keys, **head).to(Block)
    return fused.tile(**head, **batch).to(Block).tile(n=keys).to(Block)


def _queries(blocks, fused, queries):
    """Return the loop over queries; under a mask without iterations in which no query attends to a key of the tile."""
    return (blocks.split(r=1) if _is_shared(fused) else blocks).split(m=queries)


def _is_shared(fused):
    return "r" in fused.fused_definition.scan


def _is_masked(fused):
    return bool(_names(fused) & {"mask_p", "window_p"})


def _names(fused):
    return {one.name for one in fused.fused_definition.steps}


def _products(fused):
    """Return the names of the products that compute gradients."""
    return [name for name in ("dv", "dk", "dqp") if name in _names(fused)]


def _in_shared(loop, fused, *tensors, stages=1):
    """Store those of the tensors that the definition has in shared memory, with stages that iterations use alternately."""
    for name in tensors:
        loop = loop.set_memory(name, SH) if name in _names(fused) else loop
        loop = loop.stages(stages) if name in _names(fused) and stages > 1 else loop
    return loop


def _loop(fused, tiles, panel, in_flight, persistent=False, at_end=False, joined=False, stagger=0, separate=False):
    """Return the loop of a producer that loads queries by TMA. Keys of persistent blocks have one stage, to leave space for queries."""
    keys = tiles.load("K", SH, copy)
    if panel is not None:
        keys = keys.storage_layout(Layout((128, (panel, 2)), (panel, (1, 128 * panel)))).swizzle_storage(Swizzle(2, 3, 3))
    keys = (keys.stages(1) if persistent else keys).load("V", SH, copy)
    loop = _queries(keys.stages(1) if persistent else keys, fused, bm).pipeline(stages)
    loop = loop.skip_masked_tiles() if _is_masked(fused) else loop.stagger_blocks(stagger) if stagger else loop
    loop = loop.separate_masked_tiles() if separate else loop
    loop = loop.warp_specialize(128)
    loop = loop if in_flight is None else loop.mma_in_flight(in_flight, at_end=at_end)
    for name, other in (("Q", ""), ("dO", ""), ("L", "Q"), ("D", "dO")):
        loop = loop.load(name, SH, copy)
        loop = loop.share_barriers(other) if joined and other else loop
    return loop


parts = Move.done()
vectors = Move.coalesced_copy(8).done()


def by_warps(fused):
    """Return the strategy for instructions up to sm_80: probabilities and gradients of scores pass through shared memory."""
    product = MatMul.split(16).unroll().load(A, RF, parts).load(B, RF, parts).tile(16, 16).unroll().mma_tile().done()
    blocks = _blocks(fused, bn).load("K", SH, vectors).swizzle_storage().load("V", SH, vectors).swizzle_storage()
    loop = _queries(blocks, fused, bm)
    loop = loop.skip_masked_tiles() if _is_masked(fused) else loop
    loop = loop.load("Q", SH, vectors).swizzle_storage().load("dO", SH, vectors).swizzle_storage()
    steps = loop.set_memory("pt", SH).swizzle_storage().set_memory("dss", SH).swizzle_storage()
    for name in ("s", "dp"):
        steps = steps.step(name, MatMul.tile(16, score_m).to(Warp).then(product))
    for name in _products(fused):
        steps = steps.step(name, MatMul.tile(16, columns).to(Warp).then(product))
    return steps.done()


strategy = by_keys(definition())
causal = by_keys(definition(causal=True))
wide = through_shared(definition())
causal_wide = through_shared(definition(causal=True))
ampere = by_warps(definition())
causal_ampere = by_warps(definition(causal=True))


def spec(M, N, D, heads=1, batch=1, shared=1, fused=None, **options):
    """Return the problem of M queries, N keys and D elements per head, with `heads` query heads, `shared` of them per key head."""
    fused = definition() if fused is None else fused
    return fused(m=M, n=N, d=D, b=batch, g=heads // shared, r=shared, **options)


def graph(kernel, M, N, D, heads=1, batch=1, shared=1, dtype=float16, lse_grad=False, **orders):
    """Return the three kernels for a strategy `kernel` of the gradients; sizes as for `spec`.

    The arguments are O, dO, L, with `lse_grad` G, then Q, K, V and the scale, the results dQ, dK and dV. L is the log-sum-exp
    `L[b,g,r,m]`, float32, and G its gradient. `orders` are storage orders by name, such as `Q=Strides(b=..., m=..., g=..., r=..., d=1)`.
    """
    sizes = {"m": M, "d": D, "b": batch, "g": heads // shared, "r": shared}
    by_tiles = M % 64 == 0 and kernel.target == WARPGROUP_ARCHITECTURE
    sums = in_fragments(M, D, heads, shared, batch) if by_tiles else by_head(M, D, heads, shared)
    problem = spec(M, N, D, heads, batch, shared, kernel.start, dtype=dtype, dQ=sums, **only(orders, "Q", "K", "V", "dO", "dK", "dV"))
    return KernelGraph(
        "attention_backward",
        {
            "rows": rows(D, lse_grad)(rows_definition(lse_grad)(**sizes, dtype=dtype, **only(orders, "O", "dO"))),
            "gradients": kernel(problem),
            "scaled": scaled(D, by_tiles)(scaled_definition(**sizes, dtype=dtype, X=sums, **only(orders, "dQ"))),
        },
        {
            "gradients.D": "rows.D", "gradients.L": "rows.L2", "gradients.dO": "rows.dO",
            "scaled.X": "gradients.dQ", "scaled.scale": "gradients.scale",
        },
        outputs=("scaled.dQ", "gradients.dK", "gradients.dV"),
    )  # fmt: skip


def by_head(M, D, heads, shared):
    """Return the storage order of sums of dQ in which the rows of a head are adjacent: a tile that TMA adds is contiguous."""
    return Strides(b=heads * M * D, g=shared * M * D, r=M * D, m=D, d=1)


def in_fragments(M, D, heads, shared, batch):
    """Return the storage order of sums of dQ as the accumulators of wgmma: a tile of 64 x 64 elements of a head is contiguous, and
    thread t of a warpgroup owns elements 4 t to 4 t + 3 of each of its parts of 64 x 8 elements.

    Legal when M and D are multiples of 64.
    """
    rows, columns = Layout((8, 2, 4, M // 64), (16, 2, 128, 64 * D)), Layout((2, 4, 8, D // 64), (1, 4, 512, 4096))
    head = M * D
    dims = {"b": (batch, heads * head), "m": rows, "g": (heads // shared, shared * head), "r": (shared, head), "d": columns}
    modes = [mode if isinstance(mode, Layout) else Layout(*mode) for mode in dims.values()]
    return Layout(tuple(mode.shape for mode in modes), tuple(mode.stride for mode in modes))


def only(orders, *names):
    return {name: orders[name] for name in names if name in orders}


def values(spec, target=None):
    """Return tunables for a problem without a record. Under a mask, three stages are not faster than two."""
    d = constant(spec.size("d")) or 128
    own = {"bn": 128, "columns": 64, "add_n": 64, "epi_n": 64, "heads_per_group": grouped_heads(spec)}
    if d <= 64:
        return {"bm": 128, "stages": 2, **own}
    masked = _is_masked(spec.starter)
    return {**own, "bm": 64, "stages": 2 if masked else 3, "epi_n": 64 if masked else 128}


def grouped_heads(spec, keys=128):
    """Return the number of key heads whose queries, with their gradients, fit in L2 while blocks of `keys` keys read and add to them.

    There are more if these heads have fewer than `BLOCKS` blocks.
    """
    known = (("m", 4096), ("n", 4096), ("d", 128), ("g", 1), ("r", 1))
    sizes = {dim: constant(spec.size(dim)) or unknown for dim, unknown in known}
    head_bytes, tiles = 8 * sizes["m"] * sizes["d"] * sizes["r"], -(-sizes["n"] // keys)
    legal = [heads for heads in (1, 2, 4, 8, 16) if sizes["g"] % heads == 0]
    enough = next((heads for heads in legal if heads * tiles >= BLOCKS), legal[-1])
    return max(enough, *(heads for heads in legal if heads * head_bytes <= IN_CACHE or heads == 1))


causal_values = values


def wide_values(spec, target=None):
    """Return tunables for heads of 256 elements. Two stages of queries are 2 to 6 % slower than one. Additions to dQ in one piece per
    warpgroup are 20 % faster than in four, each of which waits for the previous one.
    """
    own = {"bm": 64, "bn": 64, "stages": 1, "score_m": 32, "columns": 128, "add_n": 128, "epi_n": 64}
    return {**own, "heads_per_group": grouped_heads(spec, own["bn"])}


causal_wide_values = wide_values


def ampere_values(spec, target=None):
    """Return tunables for instructions up to sm_80: 8 warps with 64 keys and 64 queries, or 4 warps with 32 of each."""
    d = constant(spec.size("d")) or 128
    size, score = (64, 32) if d <= 128 else (32, 16)
    return {"bm": size, "bn": size, "score_m": score, "columns": d // 2, "heads_per_group": grouped_heads(spec, size)}


causal_ampere_values = ampere_values


def candidates(d, hopper, queries=True, sizes=None, **options):
    """Return strategies with values, by name, the preferred first.

    Args:
        d: elements of a head.
        hopper: whether the target has TMA and wgmma.
        queries: as in `definition`.
        sizes: the sizes of the other dimensions, for the values; one head of 64 queries and keys by default.
        options: those of `definition`.
    """
    masked = bool(options.get("causal") or options.get("window"))
    forms = {"by_warps": (by_warps, ampere_values, {}, {})}
    if hopper and d > 128:
        given = {"in_flight": 0, "joined": True, "stagger": 0 if masked else 1, "separate": masked}
        forms = {"through_shared": (through_shared, wide_values, {"dk_first": True}, given)} | forms
    elif hopper and queries:
        own, given = FASTEST[d, masked]
        by_tiles = ((sizes or {}).get("m") or 0) % 64 == 0
        given = {**AT_END, **(given if by_tiles else {})}
        forms = {"by_keys, fastest": (by_keys, values, own, given), "by_keys": (by_keys, values, {}, {})} | forms
    elif hopper:
        own = {"rounded": True, "dk_of": "dst"}
        forms = {"by_keys": (by_keys, values, own, {"in_flight": 1}), "by_keys, in shared": (by_keys, values, {}, {"in_flight": 0})} | forms
    strategies = {}
    for name, (form, values_of, own, given) in forms.items():
        fused = definition(**options, **own, queries=queries)
        strategies[name] = with_values(form(fused, **given), values_of(fused(**ONE_HEAD | (sizes or {}), d=d)))
    return strategies


ONE_HEAD = {"m": 64, "n": 64, "b": 1, "g": 1, "r": 1}
"""Sizes of a small problem."""


def with_values(form, known):
    """Return a strategy with the known values of its tunables."""
    return form.with_(**{name: value for name, value in known.items() if name in form.tunables()})


AT_END = {"in_flight": 0, "at_end": True, "score_stages": 2}
"""Warpgroups wait for each other once per iteration, and for all MMAs at its end."""

VECTORS, CLAIMED = {"tma": False}, {"blocks": 132, "dynamic": True}
"""Threads add vectors of four elements of dQ, which the storage order `in_fragments` allows; blocks claim tiles of keys from a counter."""

FASTEST = {
    (64, False): ({"rounded": True, "dk_of": "dst"}, {**VECTORS, "joined": True, "stagger": 1}),
    (64, True): ({"rounded": True, "dk_of": "dst"}, {**VECTORS, **CLAIMED, "joined": True}),
    (128, False): ({"late": True, "dk_of": "dst"}, {**VECTORS, "joined": True, "stagger": 1}),
    (128, True): ({"late": True, "dk_of": "dst"}, {**VECTORS, **CLAIMED}),
}
"""Options of `definition`, and of `by_keys` in addition to `AT_END`, that are fastest on an H200, by the elements of a head and whether
there is a mask; those of `by_keys` for numbers of queries that are multiples of 64."""
