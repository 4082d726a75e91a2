"""Attention as programs of tasks, FlashAttention-2 and -3, with mappings to Ampere and to Hopper (Cypress, section 5.3).

`flash_2` processes one block of keys after another; `flash_3` computes the scores of the next block before it multiplies the current
values. In `causal_2` and `causal_3` no query sees later keys, but all blocks of keys are computed. Tensors are those of `attention`.

Leaves of a warp or a warpgroup compute work on rows; matrix products and row sums go down to the threads of an instruction.
`hopper(U=192, WGS=3)` has three warpgroups instead of two. `rescale_rarely(mapping)` rescales only rows whose maximum changes.
"""

from fireiron import Pointwise, Reduction, Tunable
from fireiron.errors import DecompositionError
from fireiron.executable.pointwise import SKIP_IF_IDENTITY
from fireiron.strategies import attention
from fireiron.strategies.tasks_gemm import clear_inner, clear_thread, clear_tile, gemm_inner, gemm_steps, gemm_thread, gemm_tile
from fireiron.tasks import *
from fireiron.tasks import strategy as strategy_of

SIZES = (512, 512, 128)

LOG2_E = 1.4426950408889634

LOWEST = -(2.0**100)
"""Initial maximum: finite, because the difference of infinities is not a number."""

PARTS = 4
"""Number of partial sums of a row: one for each thread that shares the row."""


def head_of(tensor, b, g, *r):
    """Return the matrix of a head, by batch, key head, and query head of that key head."""
    heads = partition_by_slices(partition_by_slices(tensor, 0)[b], 1)[g]
    return partition_by_slices(heads, 1)[r[0]] if r else heads


@task("attention", Inner, reads=["Q", "K", "V", "scale"], writes=["O"])
def attention_host(O, Q, K, V, scale, *, U=tunable(int)):
    B, M, G, R, D = Q.shape
    for g, r, b, i in prange(G, R, B, cdiv(M, U)):
        result, queries = (partition_by_blocks(head_of(T, b, g, r), (U, D))[i, 0] for T in (O, Q))
        launch("attention", result, queries, head_of(K, b, g), head_of(V, b, g), scale)


@task("attention", Inner, reads=["Q", "K", "V", "scale"], writes=["O"])
def attention_block(O, Q, K, V, scale, *, W=tunable(int)):
    """FlashAttention-2: one block of keys after another."""
    (M, D), N = Q.shape, K.shape[0]
    S, P = make_tensor((M, W), "float32"), make_tensor((M, W), Q.dtype)
    acc = make_tensor((M, D), "float32")
    mx, l, alpha = make_tensor((M,), "float32"), make_tensor((M, PARTS), "float32"), make_tensor((M,), "float32")
    Kp, Vp = partition_by_blocks(K, (W, D)), partition_by_blocks(V, (W, D))
    launch("begin", acc, mx, l)
    for n in srange(cdiv(N, W)):
        launch("scores", S, Q, Kp[n, 0])
        launch("mask", S, Q, Kp[n, 0])
        launch("softmax", P, S, mx, l, alpha, scale)
        launch("rescale", acc, alpha)
        launch("values", acc, P, Vp[n, 0])
    launch("finish", O, acc, l)


@task("attention", Inner, reads=["Q", "K", "V", "scale"], writes=["O"])
def attention_ahead(O, Q, K, V, scale, *, W=tunable(int)):
    """FlashAttention-3: the scores of the next block of keys are computed before the current values are multiplied."""
    (M, D), N = Q.shape, K.shape[0]
    S, P = make_tensor((M, W), "float32"), make_tensor((M, W), Q.dtype)
    acc = make_tensor((M, D), "float32")
    mx, l, alpha = make_tensor((M,), "float32"), make_tensor((M, PARTS), "float32"), make_tensor((M,), "float32")
    Kp, Vp = partition_by_blocks(K, (W, D)), partition_by_blocks(V, (W, D))
    launch("begin", acc, mx, l)
    launch("scores", S, Q, Kp[0, 0])
    launch("mask", S, Q, Kp[0, 0])
    launch("softmax", P, S, mx, l, alpha, scale)
    last = cdiv(N, W) - 1
    for n in srange(last):
        launch("scores", S, Q, Kp[n + 1, 0])
        launch("values", acc, P, Vp[n, 0])
        launch("mask", S, Q, Kp[n + 1, 0])
        launch("softmax", P, S, mx, l, alpha, scale)
        launch("rescale", acc, alpha)
    launch("values", acc, P, Vp[last, 0])
    launch("finish", O, acc, l)


@task("scores", Inner, reads=["S", "Q", "K"], writes=["S"])
def scores_tile(S, Q, K):
    launch("clear", S)
    launch("gemm", S, Q, axes(K, 1, 0))


@task("mask", Inner, reads=["S", "Q", "K"], writes=["S"])
def mask_tile(S, Q, K, *, WM=tunable(int)):
    Sp, Qp = (partition_by_blocks(T, (T.shape[0] // WM, T.shape[1])) for T in (S, Q))
    for i in prange(WM):
        launch("mask", Sp[i, 0], Qp[i, 0], K)


@task("mask", Leaf, reads=["S", "Q", "K"], writes=["S"])
def mask_rows(S, Q, K):
    """Mask elements past the last key."""
    key, keys = coordinates(K, 0), extent(K, 0)
    call_external(Pointwise, s=S, s_before=S, index_n=key, size_n=keys, formula="s[m,n] = where(index_n[n] < size_n, s_before[m,n], -inf)")


@task("mask", Leaf, reads=["S", "Q", "K"], writes=["S"])
def causal_rows(S, Q, K):
    """Mask keys after the query, and elements past the last key."""
    row, key, keys = coordinates(Q, 0), coordinates(K, 0), extent(K, 0)
    formula = "s[m,n] = where(index_n[n] < size_n and index_n[n] <= index_m[m], s_before[m,n], -inf)"
    call_external(Pointwise, s=S, s_before=S, index_m=row, index_n=key, size_n=keys, formula=formula)


@task("values", Inner, reads=["acc", "P", "V"], writes=["acc"])
def values_tile(acc, P, V):
    launch("gemm", acc, P, V)


@task("begin", Inner, writes=["acc", "mx", "l"])
def begin_tile(acc, mx, l, *, WM=tunable(int)):
    M, D = acc.shape
    parts, sums = partition_by_blocks(acc, (M // WM, D)), partition_by_blocks(l, (M // WM, PARTS))
    tops = partition_by_blocks(mx, (M // WM,))
    for i in prange(WM):
        launch("begin", parts[i, 0], tops[i], sums[i, 0])


@task("begin", Leaf, writes=["acc", "mx", "l"])
def begin_rows(acc, mx, l):
    call_external("fill", mx, value=LOWEST)
    call_external("fill", l)
    call_external("fill", acc)


@task("softmax", Inner, reads=["S", "mx", "l", "alpha", "scale"], writes=["P", "S", "mx", "l", "alpha"])
def softmax_tile(P, S, mx, l, alpha, scale, *, WM=tunable(int)):
    M = S.shape[0]
    Pp, Sp, sums = (partition_by_blocks(T, (M // WM, T.shape[1])) for T in (P, S, l))
    tops, factors = (partition_by_blocks(T, (M // WM,)) for T in (mx, alpha))
    for i in prange(WM):
        launch("softmax", Pp[i, 0], Sp[i, 0], tops[i], sums[i, 0], factors[i], scale)


@task("softmax", Inner, reads=["S", "mx", "l", "alpha", "scale"], writes=["P", "S", "mx", "l", "alpha"])
def softmax_rows(P, S, mx, l, alpha, scale):
    sums = make_tensor(l.shape, "float32")
    launch("weights", S, mx, alpha, scale)
    launch("sums", sums, S)
    launch("update", P, l, S, alpha, sums)


@task("weights", Leaf, reads=["S", "mx", "scale"], writes=["S", "mx", "alpha"])
def weights_rows(S, mx, alpha, scale, *, RESCALE_THRESHOLD=tunable(int)):
    """Compute exponentials of scores minus the running maximum; `alpha` is the factor of the running sums.

    The maximum changes only if a score exceeds it by a factor of 2**RESCALE_THRESHOLD, so that rows are rarely rescaled.
    """
    top, new = make_tensor(mx.shape, "float32"), make_tensor(mx.shape, "float32")
    call_external(Reduction, S, top, by="max")
    scaled = f"top[m] * (scale * {LOG2_E})"
    greatest = f"where({scaled} > mx[m] + {RESCALE_THRESHOLD}, {scaled}, mx[m])" if RESCALE_THRESHOLD else f"max(mx[m], {scaled})"
    call_external(Pointwise, new=new, mx=mx, top=top, scale=scale, formula=f"new[m] = {greatest}")
    call_external(Pointwise, alpha=alpha, mx=mx, new=new, formula="alpha[m] = exp2(mx[m] - new[m])")
    call_external("copy", mx, new)
    formula = f"s[m,n] = exp2(s_before[m,n] * (scale * {LOG2_E}) - mx[m])"
    call_external(Pointwise, s=S, s_before=S, mx=mx, scale=scale, formula=formula)


def require_one(part):
    """Refuse a number of parts for a tensor that cannot be divided."""
    if part.shape[1] != 1:
        raise DecompositionError("sums: one part of each row where rows are not divided", got=part.shape[1], legal=1)


@task("sums", Inner, reads=["S"], writes=["sums"])
def sums_tile(sums, S, *, WM=tunable(int)):
    to, of = (partition_by_blocks(T, (T.shape[0] // WM, T.shape[1])) for T in (sums, S))
    for i in prange(WM):
        launch("sums", to[i, 0], of[i, 0])


@task("sums", Inner, reads=["S"], writes=["sums"])
def sums_inner(sums, S, *, INSTR=tunable(str), PIECES=tunable(int), PROC=tunable(processor)):
    """Each thread that shares a row accumulates its elements."""
    to, of = partition_by_mma(sums, INSTR, PROC, "parts"), partition_by_mma(S, INSTR, PROC, "C")
    for i in prange(PIECES):
        launch("sums", to[i], of[i])


@task("sums", Leaf, reads=["S"], writes=["sums"])
def sums_thread(sums, S):
    require_one(sums)
    call_external(Reduction, S, sums, signature="mn->mp")


@task("update", Leaf, reads=["l", "S", "alpha", "sums"], writes=["P", "l"])
def update_rows(P, l, S, alpha, sums):
    call_external(Pointwise, l=l, l_before=l, alpha=alpha, sums=sums, formula="l[m,p] = l_before[m,p] * alpha[m] + sums[m,p]")
    call_external("copy", P, S)


@task("rescale", Inner, reads=["acc", "alpha"], writes=["acc"])
def rescale_tile(acc, alpha, *, WM=tunable(int)):
    M, D = acc.shape
    parts, factors = partition_by_blocks(acc, (M // WM, D)), partition_by_blocks(alpha, (M // WM,))
    for i in prange(WM):
        launch("rescale", parts[i, 0], factors[i])


@task("rescale", Leaf, reads=["acc", "alpha"], writes=["acc"])
def rescale_rows(acc, alpha):
    call_external(Pointwise, acc=acc, acc_before=acc, alpha=alpha, formula="acc[m,d] = acc_before[m,d] * alpha[m]")


@task("finish", Inner, reads=["acc", "l"], writes=["O", "acc"])
def finish_tile(O, acc, l, *, WM=tunable(int)):
    M, D = acc.shape
    to, parts = (partition_by_blocks(T, (M // WM, D)) for T in (O, acc))
    sums = partition_by_blocks(l, (M // WM, PARTS))
    for i in prange(WM):
        launch("finish", to[i, 0], parts[i, 0], sums[i, 0])


@task("finish", Leaf, reads=["acc", "l"], writes=["O", "acc"])
def finish_rows(O, acc, l):
    whole, inverse = (make_tensor((l.shape[0],), "float32") for _ in range(2))
    call_external(Reduction, l, whole)
    call_external(Pointwise, inverse=inverse, whole=whole, formula="inverse[m] = where(whole[m] > 0, 1 / whole[m], 0)")
    call_external(Pointwise, acc=acc, acc_before=acc, inverse=inverse, formula="acc[m,d] = acc_before[m,d] * inverse[m]")
    call_external("copy", O, acc)


VARIANTS = (
    scores_tile, mask_tile, values_tile, begin_tile, begin_rows, softmax_tile, softmax_rows, weights_rows, sums_tile, sums_inner,
    sums_thread, update_rows, rescale_tile, rescale_rows, finish_tile,
    finish_rows, gemm_tile, gemm_steps, gemm_inner, gemm_thread, clear_tile, clear_inner, clear_thread,
)  # fmt: skip

flash_2 = Tasks(attention_host, attention_block, mask_rows, *VARIANTS)
flash_3 = Tasks(attention_host, attention_ahead, mask_rows, *VARIANTS)
causal_2 = Tasks(attention_host, attention_block, causal_rows, *VARIANTS)
causal_3 = Tasks(attention_host, attention_ahead, causal_rows, *VARIANTS)


IN_ORDER, AHEAD = "attention_block", "attention_ahead"
"""Variants of a block: FlashAttention-2 and -3."""

ORDER = {
    IN_ORDER: ["begin", "scores", "mask", "softmax", "rescale", "values", "finish"],
    AHEAD: ["begin", "scores", "mask", "softmax", "scores", "values", "mask", "softmax", "rescale", "values", "finish"],
}
"""The launches of each variant of a block, in program order."""


def of_block(variant, U, W, groups, processor, hides, persistent=0, **more):
    """Return the instances above matrix products: blocks of queries, and work on rows. A row belongs to one group of threads."""
    nothing, held = NONE, REGISTER

    def rows(task, outer, inner):
        return (
            TaskMapping(task, f"{task}_tile", BLOCK, outer, dict(WM=groups), [f"{task}_rows"]),
            TaskMapping(f"{task}_rows", f"{task}_rows", processor, inner),
        )

    return (
        TaskMapping("host", "attention_host", HOST, [GLOBAL] * 4 + [nothing], dict(U=U), ["block"], entrypoint=True, persistent=persistent),
        TaskMapping("block", variant, BLOCK, [GLOBAL, SHARED, GLOBAL, GLOBAL, nothing], dict(W=W), ORDER[variant], **more),
        TaskMapping("scores", "scores_tile", BLOCK, [nothing, SHARED, SHARED], calls=["clear", "scores_tile"]),
        TaskMapping("mask", "mask_tile", BLOCK, [nothing] * 3, dict(WM=groups), ["mask_rows"]),
        TaskMapping("mask_rows", hides, processor, [held, nothing, nothing]),
        TaskMapping("values", "values_tile", BLOCK, [nothing, nothing, SHARED], calls=["values_tile"]),
        TaskMapping("clear", "clear_tile", BLOCK, [nothing], dict(WM=groups, WN=1), ["clear_rows"]),
        TaskMapping("clear_rows", "clear_thread", processor, [held]),
        *rows("begin", [nothing] * 3, [held] * 3),
        TaskMapping("softmax", "softmax_tile", BLOCK, [nothing] * 6, dict(WM=groups), ["softmax_rows"]),
        TaskMapping("softmax_rows", "softmax_rows", processor, [nothing] * 6, calls=["weights", "sums", "update"]),
        TaskMapping("weights", "weights_rows", processor, [held, held, held, nothing], dict(RESCALE_THRESHOLD=0)),
        TaskMapping("update", "update_rows", processor, [held] * 5),
        *rows("rescale", [nothing] * 2, [held] * 2),
        *rows("finish", [GLOBAL, nothing, nothing], [SHARED, held, held]),
    )


def ampere(U=128, W=64, D=128, warps=8, stages=2, variant=IN_ORDER, hides="mask_rows"):
    """Map to warps with whole rows, mma.sync, and cp.async for keys and values; probabilities stay in registers."""
    rows, pieces = U // warps, dict(INSTR="mma.m16n8k16", PIECES=32, PROC=THREAD)

    def product(name, columns, mems):
        return (
            TaskMapping(f"{name}_tile", "gemm_tile", BLOCK, mems, dict(WM=warps, WN=1), [f"{name}_warp"]),
            TaskMapping(f"{name}_warp", "gemm_steps", WARP, mems, dict(W=16), [f"{name}_step"]),
            TaskMapping(
                f"{name}_step", "gemm_tile", WARP, [NONE, REGISTER, REGISTER], dict(WM=rows // 16, WN=columns // 8), [f"{name}_mma"]
            ),
            TaskMapping(f"{name}_mma", "gemm_inner", WARP, [NONE] * 3, pieces, [f"{name}_thread"]),
            TaskMapping(f"{name}_thread", "gemm_thread", THREAD, [REGISTER] * 3),
        )

    mapping = Mapping(
        [
            *of_block(variant, U, W, warps, WARP, hides, pipeline=stages),
            *product("scores", W, [NONE, SHARED, SHARED]),
            *product("values", D, [NONE, NONE, SHARED]),
            TaskMapping("sums", "sums_tile", WARP, [NONE] * 2, dict(WM=rows // 16), ["sums_mma"]),
            TaskMapping("sums_mma", "sums_inner", WARP, [NONE] * 2, pieces, ["sums_thread"]),
            TaskMapping("sums_thread", "sums_thread", THREAD, [REGISTER] * 2),
        ],
        AMPERE,
    )
    swizzled = Stored(swizzle=True)
    mapping = mapping.with_("block", layouts=dict(Q=swizzled)).with_("scores", layouts=dict(K=swizzled))
    return mapping.with_("values", layouts=dict(V=swizzled))


def hopper(U=128, W=128, WGS=2, stages=2, variant=IN_ORDER, persistent=0, hides="mask_rows"):
    """Map to warpgroups with whole rows, wgmma, and a producer warpgroup that issues TMA; probabilities stay in registers."""

    pieces = dict(INSTR="wgmma", PIECES=4, PROC=WARP), dict(INSTR="wgmma", PIECES=32, PROC=THREAD)

    def product(name, mems, leaf):
        return (
            TaskMapping(f"{name}_tile", "gemm_tile", BLOCK, mems, dict(WM=WGS, WN=1), [f"{name}_warpgroup"]),
            TaskMapping(f"{name}_warpgroup", "gemm_inner", WARPGROUP, mems, pieces[0], [f"{name}_warp"]),
            TaskMapping(f"{name}_warp", "gemm_inner", WARP, mems, pieces[1], [f"{name}_thread"]),
            TaskMapping(f"{name}_thread", "gemm_thread", THREAD, leaf),
        )

    return Mapping(
        [
            *of_block(variant, U, W, WGS, WARPGROUP, hides, persistent, pipeline=stages, warpspecialize=True, producer_threads=128),
            *product("scores", [NONE, SHARED, SHARED], [REGISTER, SHARED, SHARED]),
            *product("values", [NONE, NONE, SHARED], [REGISTER, REGISTER, SHARED]),
            TaskMapping("sums", "sums_inner", WARPGROUP, [NONE] * 2, pieces[0], ["sums_warp"]),
            TaskMapping("sums_warp", "sums_inner", WARP, [NONE] * 2, pieces[1], ["sums_thread"]),
            TaskMapping("sums_thread", "sums_thread", THREAD, [REGISTER] * 2),
        ]
    )


def rescale_rarely(mapping, RESCALE_THRESHOLD=8):
    """Return the mapping that rescales only rows whose maximum changes, which needs a score above it by 2**RESCALE_THRESHOLD."""
    return mapping.with_("weights", RESCALE_THRESHOLD=RESCALE_THRESHOLD).with_("rescale_rows", strategy=Pointwise.done(SKIP_IF_IDENTITY))


W, stages = Tunable("W", 64, 32), Tunable("stages", 2, 3)

strategy = strategy_of(flash_2, ampere(W=W, D=Tunable("D", 128, 64), stages=stages))

warpgroups = strategy_of(flash_3, hopper(W=Tunable("W", 128, 64), stages=stages, variant=AHEAD, persistent=132))

spec = attention.spec
