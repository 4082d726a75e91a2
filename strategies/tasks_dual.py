"""Two matrix products with one A as a program of tasks: D = A·B1 + A·B2; mappings to Ampere and to Hopper, where A is loaded once."""

from fireiron import Tunable
from fireiron.strategies import dual
from fireiron.strategies import tasks_gemm as gemm
from fireiron.strategies.tasks_gemm import by_warpgroups, of_warps, staged_copy
from fireiron.tasks import *
from fireiron.tasks import strategy as strategy_of

SIZES = (4096, 4096, 4096)


@task("dual", Inner, reads=["A", "B1", "B2"], writes=["D"])
def dual_host(D, A, B1, B2, *, U=tunable(int), V=tunable(int)):
    (M, N), K = D.shape, A.shape[1]
    Dp, Ap = partition_by_blocks(D, (U, V)), partition_by_blocks(A, (U, K))
    B1p, B2p = partition_by_blocks(B1, (K, V)), partition_by_blocks(B2, (K, V))
    for i, j in prange(cdiv(M, U), cdiv(N, V)):
        launch("dual", Dp[i, j], Ap[i, 0], B1p[0, j], B2p[0, j])


@task("dual", Inner, reads=["A", "B1", "B2"], writes=["D"])
def dual_block(D, A, B1, B2, *, W=tunable(int)):
    (M, N), K = D.shape, A.shape[1]
    Dacc = make_tensor((M, N), "float32")
    Ap, B1p, B2p = partition_by_blocks(A, (M, W)), partition_by_blocks(B1, (W, N)), partition_by_blocks(B2, (W, N))
    launch("clear", Dacc)
    for k in srange(cdiv(K, W)):
        launch("dual", Dacc, Ap[0, k], B1p[k, 0], B2p[k, 0])
    launch("copy", D, Dacc)


@task("dual", Inner, reads=["A", "B1", "B2", "D"], writes=["D"])
def dual_tile(D, A, B1, B2, *, WM=tunable(int), WN=tunable(int)):
    (M, N), K = D.shape, A.shape[1]
    Dp, Ap = partition_by_blocks(D, (M // WM, N // WN)), partition_by_blocks(A, (M // WM, K))
    B1p, B2p = partition_by_blocks(B1, (K, N // WN)), partition_by_blocks(B2, (K, N // WN))
    for i, j in prange(WM, WN):
        launch("dual", Dp[i, j], Ap[i, 0], B1p[0, j], B2p[0, j])


@task("dual", Inner, reads=["A", "B1", "B2", "D"], writes=["D"])
def dual_steps(D, A, B1, B2, *, W=tunable(int)):
    (M, N), K = D.shape, A.shape[1]
    Ap, B1p, B2p = partition_by_blocks(A, (M, W)), partition_by_blocks(B1, (W, N)), partition_by_blocks(B2, (W, N))
    for k in srange(cdiv(K, W)):
        launch("dual", D, Ap[0, k], B1p[k, 0], B2p[k, 0])


@task("dual", Inner, reads=["A", "B1", "B2", "D"], writes=["D"])
def dual_both(D, A, B1, B2):
    launch("gemm", D, A, B1)
    launch("gemm", D, A, B2)


program = Tasks(dual_host, dual_block, dual_tile, dual_steps, dual_both, *gemm.program.variants)


def ampere(U=128, V=128, W=32, rows=2, columns=2, stages=4, lookahead=2, group_m=8):
    """Map to blocks of `rows` x `columns` warps, mma.sync, and cp.async in `stages` stages; fragments are loaded one step early."""
    (WM, TM), (WN, TN) = grids = (rows, U // rows // 16), (columns, V // columns // 8)
    swizzled = dict.fromkeys(("A", "B1", "B2"), Stored(swizzle=True))
    calls = ["clear_tile", "dual_tile", "copy_tile"]
    return Mapping(
        [
            TaskMapping("dual_host", "dual_host", HOST, [GLOBAL] * 4, dict(U=U, V=V), ["dual_block"], entrypoint=True, group_m=group_m),
            TaskMapping("dual_block", "dual_block", BLOCK, [GLOBAL] * 4, dict(W=W), calls, pipeline=stages, interleave=True),
            TaskMapping("dual_tile", "dual_tile", BLOCK, [NONE] + [SHARED] * 3, dict(WM=WM, WN=WN), ["dual_warp"], layouts=swizzled),
            TaskMapping("dual_warp", "dual_steps", WARP, [NONE] + [SHARED] * 3, dict(W=16), ["dual_step"], pipeline=lookahead),
            TaskMapping("dual_step", "dual_both", WARP, [NONE] + [REGISTER] * 3, {}, ["gemm_step", "gemm_step"]),
            *gemm.of_fragments(TM, TN),
            *of_warps("clear", 1, *grids),
            *gemm.staged_by_warps(rows, columns),
        ],
        AMPERE,
    )


def hopper(U=128, V=256, W=64, WGS=2, stages=2, depth=3, epi_n=64, group_m=16, num_blocks=132, mma_in_flight=1):
    """Map to wgmma and a producer warp that issues TMA: circular buffers of `depth` stages for A, `stages` for each B."""
    groups, calls = (WGS, 1), ["clear_tile", "dual_both", "copy_tile"]
    grid, ring = (
        dict(group_m=group_m, persistent=num_blocks),
        dict(warpspecialize=True, pipeline=stages, producer_threads=128, mma_in_flight=mma_in_flight),
    )
    return Mapping(
        [
            TaskMapping("dual_host", "dual_host", HOST, [GLOBAL] * 4, dict(U=U, V=V), ["dual_block"], entrypoint=True, **grid),
            TaskMapping("dual_block", "dual_block", BLOCK, [GLOBAL] * 4, dict(W=W), calls, **ring),
            TaskMapping("dual_both", "dual_both", BLOCK, [NONE] + [GLOBAL] * 3, {}, ["gemm_tile", "gemm_tile"]),
            *by_warpgroups("gemm", groups, [NONE, SHARED, SHARED], [REGISTER, SHARED, SHARED], A=Stored(stages=depth)),
            *by_warpgroups("clear", groups, [NONE], [REGISTER]),
            *staged_copy(groups, V // epi_n),
        ]
    )


strategy = strategy_of(program, ampere(stages=Tunable("stages", 4, 3), group_m=Tunable("group_m", 8, 4, 16)))

warpgroups = strategy_of(program, hopper(depth=Tunable("depth", 3, 2), group_m=Tunable("group_m", 16, 4, 8)))

spec = dual.spec
