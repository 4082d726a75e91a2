"""Gated linear unit as a program of tasks: D = silu(A·B1) * (A·B2), one accumulator per product; mappings to Ampere and Hopper."""

from fireiron import Pointwise, Tunable
from fireiron.strategies import gated
from fireiron.strategies import tasks_gemm as gemm
from fireiron.strategies.tasks_gemm import by_warpgroups, of_warps, staged_copy
from fireiron.tasks import *
from fireiron.tasks import strategy as strategy_of

SIZES = (4096, 4096, 4096)


@task("gated", Inner, reads=["A", "B1", "B2"], writes=["D"])
def gated_host(D, A, B1, B2, *, U=tunable(int), V=tunable(int)):
    (M, N), K = D.shape, A.shape[1]
    Dp, Ap = partition_by_blocks(D, (U, V)), partition_by_blocks(A, (U, K))
    B1p, B2p = partition_by_blocks(B1, (K, V)), partition_by_blocks(B2, (K, V))
    for i, j in prange(cdiv(M, U), cdiv(N, V)):
        launch("gated", Dp[i, j], Ap[i, 0], B1p[0, j], B2p[0, j])


@task("gated", Inner, reads=["A", "B1", "B2"], writes=["D"])
def gated_block(D, A, B1, B2, *, W=tunable(int)):
    (M, N), K = D.shape, A.shape[1]
    gate, up = make_tensor((M, N), "float32"), make_tensor((M, N), "float32")
    Ap, B1p, B2p = partition_by_blocks(A, (M, W)), partition_by_blocks(B1, (W, N)), partition_by_blocks(B2, (W, N))
    launch("clear", gate)
    launch("clear", up)
    for k in srange(cdiv(K, W)):
        launch("products", gate, up, Ap[0, k], B1p[k, 0], B2p[k, 0])
    launch("act", gate, up)
    launch("copy", D, gate)


@task("products", Inner, reads=["A", "B1", "B2", "gate", "up"], writes=["gate", "up"])
def products_tile(gate, up, A, B1, B2, *, WM=tunable(int), WN=tunable(int)):
    (M, N), K = gate.shape, A.shape[1]
    gates, ups = (partition_by_blocks(T, (M // WM, N // WN)) for T in (gate, up))
    Ap, B1p, B2p = partition_by_blocks(A, (M // WM, K)), partition_by_blocks(B1, (K, N // WN)), partition_by_blocks(B2, (K, N // WN))
    for i, j in prange(WM, WN):
        launch("products", gates[i, j], ups[i, j], Ap[i, 0], B1p[0, j], B2p[0, j])


@task("products", Inner, reads=["A", "B1", "B2", "gate", "up"], writes=["gate", "up"])
def products_steps(gate, up, A, B1, B2, *, W=tunable(int)):
    (M, N), K = gate.shape, A.shape[1]
    Ap, B1p, B2p = partition_by_blocks(A, (M, W)), partition_by_blocks(B1, (W, N)), partition_by_blocks(B2, (W, N))
    for k in srange(cdiv(K, W)):
        launch("products", gate, up, Ap[0, k], B1p[k, 0], B2p[k, 0])


@task("products", Inner, reads=["A", "B1", "B2", "gate", "up"], writes=["gate", "up"])
def products_both(gate, up, A, B1, B2):
    launch("gemm", gate, A, B1)
    launch("gemm", up, A, B2)


@task("act", Leaf, reads=["gate", "up"], writes=["gate"])
def act(gate, up):
    call_external(Pointwise, gate, up, gate, formula="z[m,n] = silu(x[m,n]) * y[m,n]")


program = Tasks(gated_host, gated_block, products_tile, products_steps, products_both, act, *gemm.program.variants)


def ampere(U=128, V=64, W=32, rows=2, columns=2, stages=4, lookahead=2, group_m=8):
    """Map to blocks of `rows` x `columns` warps, mma.sync, and cp.async in `stages` stages; fragments are loaded one step early."""
    (WM, TM), (WN, TN) = grids = (rows, U // rows // 16), (columns, V // columns // 8)
    layouts, calls = (
        dict.fromkeys(("A", "B1", "B2"), Stored(swizzle=True)),
        ["clear_tile", "clear_tile", "products_tile", "act", "copy_tile"],
    )
    shared, fragments = ([NONE, NONE, place, place, place] for place in (SHARED, REGISTER))
    return Mapping(
        [
            TaskMapping("gated_host", "gated_host", HOST, [GLOBAL] * 4, dict(U=U, V=V), ["gated_block"], entrypoint=True, group_m=group_m),
            TaskMapping("gated_block", "gated_block", BLOCK, [GLOBAL] * 4, dict(W=W), calls, pipeline=stages, interleave=True),
            TaskMapping("products_tile", "products_tile", BLOCK, shared, dict(WM=WM, WN=WN), ["products_warp"], layouts=layouts),
            TaskMapping("products_warp", "products_steps", WARP, shared, dict(W=16), ["products_both"], pipeline=lookahead),
            TaskMapping("products_both", "products_both", WARP, fragments, {}, ["gemm_step", "gemm_step"]),
            TaskMapping("act", "act", BLOCK, [NONE, NONE]),
            *gemm.of_fragments(TM, TN),
            *of_warps("clear", 1, *grids),
            *gemm.staged_by_warps(rows, columns),
        ],
        AMPERE,
    )


def hopper(U=128, V=128, W=64, WGS=2, stages=3, epi_n=128, group_m=16, num_blocks=132):
    """Map to wgmma and a producer warp that issues TMA; both accumulators are in registers."""
    groups, calls = (WGS, 1), ["clear_tile", "clear_tile", "products_both", "act", "copy_tile"]
    grid, ring = dict(group_m=group_m, persistent=num_blocks), dict(warpspecialize=True, pipeline=stages, producer_threads=128)
    return Mapping(
        [
            TaskMapping("gated_host", "gated_host", HOST, [GLOBAL] * 4, dict(U=U, V=V), ["gated_block"], entrypoint=True, **grid),
            TaskMapping("gated_block", "gated_block", BLOCK, [GLOBAL] * 4, dict(W=W), calls, **ring),
            TaskMapping("products_both", "products_both", BLOCK, [NONE, NONE] + [GLOBAL] * 3, {}, ["gemm_tile", "gemm_tile"]),
            TaskMapping("act", "act", BLOCK, [NONE, NONE]),
            *by_warpgroups("gemm", groups, [NONE, SHARED, SHARED], [REGISTER, SHARED, SHARED]),
            *by_warpgroups("clear", groups, [NONE], [REGISTER]),
            *staged_copy(groups, V // epi_n),
        ]
    )


strategy = strategy_of(program, ampere(stages=Tunable("stages", 4, 3), group_m=Tunable("group_m", 8, 4, 16)))

warpgroups = strategy_of(program, hopper(stages=Tunable("stages", 3, 2), group_m=Tunable("group_m", 16, 4, 8)))

spec = gated.spec
