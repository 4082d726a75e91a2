"""GEMM and row sums of A as a program of tasks: D = A·B and y[m] = sum of A[m,k], with mappings to Ampere and Hopper.

The sums are in registers, as a whole or as partial sums of the threads that have the terms; or, by another mapping, in shared memory
(Cypress, section 5.2). Only the first column of tiles computes them.
"""

from fireiron import Reduction, Tunable
from fireiron.strategies import gemm_row_sum
from fireiron.strategies import tasks_gemm as gemm
from fireiron.strategies.tasks_gemm import by_warpgroups, of_warps, staged_copy
from fireiron.tasks import *
from fireiron.tasks import strategy as strategy_of

SIZES = (4096, 4096, 4096)


@task("sums", Inner, reads=["A", "B"], writes=["D", "y"])
def sums_host(D, y, A, B, *, U=tunable(int), V=tunable(int)):
    (M, N), K = D.shape, A.shape[1]
    Dp, yp = partition_by_blocks(D, (U, V)), partition_by_first(y, (U,), cdiv(N, V))
    Ap, Bp = partition_by_blocks(A, (U, K)), partition_by_blocks(B, (K, V))
    for i, j in prange(cdiv(M, U), cdiv(N, V)):
        launch("sums", Dp[i, j], yp[i, j], Ap[i, 0], Bp[0, j])


@task("sums", Inner, reads=["A", "B"], writes=["D", "y"])
def sums_block(D, y, A, B, *, W=tunable(int)):
    (M, N), K = D.shape, A.shape[1]
    Dacc, s = make_tensor((M, N), "float32"), make_tensor((M,), "float32")
    Ap, Bp = partition_by_blocks(A, (M, W)), partition_by_blocks(B, (W, N))
    launch("clear", Dacc)
    launch("clear", s)
    for k in srange(cdiv(K, W)):
        launch("step", Dacc, s, Ap[0, k], Bp[k, 0])
    launch("copy", D, Dacc)
    launch("copy", y, s)


@task("sums", Inner, reads=["A", "B"], writes=["D", "y"])
def sums_block_parts(D, y, A, B, *, W=tunable(int), PARTS=tunable(int)):
    (M, N), K = D.shape, A.shape[1]
    Dacc, s = make_tensor((M, N), "float32"), make_tensor((M, PARTS), "float32")
    Ap, Bp = partition_by_blocks(A, (M, W)), partition_by_blocks(B, (W, N))
    launch("clear", Dacc)
    launch("clear", s)
    for k in srange(cdiv(K, W)):
        launch("step", Dacc, s, Ap[0, k], Bp[k, 0])
    launch("copy", D, Dacc)
    launch("join", y, s)


@task("step", Inner, reads=["A", "B", "D", "s"], writes=["D", "s"])
def step_tile(D, s, A, B, *, WM=tunable(int), WN=tunable(int)):
    (M, N), K = D.shape, A.shape[1]
    Dp, sp = partition_by_blocks(D, (M // WM, N // WN)), partition_by_first(s, (M // WM,), WN)
    Ap, Bp = partition_by_blocks(A, (M // WM, K)), partition_by_blocks(B, (K, N // WN))
    for i, j in prange(WM, WN):
        launch("step", Dp[i, j], sp[i, j], Ap[i, 0], Bp[0, j])


@task("step", Inner, reads=["A", "B", "D", "s"], writes=["D", "s"])
def step_steps(D, s, A, B, *, W=tunable(int)):
    (M, N), K = D.shape, A.shape[1]
    Ap, Bp = partition_by_blocks(A, (M, W)), partition_by_blocks(B, (W, N))
    for k in srange(cdiv(K, W)):
        launch("step", D, s, Ap[0, k], Bp[k, 0])


@task("step", Inner, reads=["A", "B", "D", "s"], writes=["D", "s"])
def step_both(D, s, A, B):
    launch("gemm", D, A, B)
    launch("row", s, A)


@task("row", Inner, reads=["A", "s"], writes=["s"])
def row_tile(s, A, *, WM=tunable(int)):
    M, K = A.shape
    sp, Ap, rest = partition_by_blocks(s, (M // WM, *s.shape[1:])), partition_by_blocks(A, (M // WM, K)), (0,) * (s.rank - 1)
    for i in prange(WM):
        launch("row", sp[i, *rest], Ap[i, 0])


@task("row", Leaf, reads=["A", "s"], writes=["s"])
def row_whole(s, A):
    call_external(Reduction, A, s, accumulate=True)


@task("row", Leaf, reads=["A", "s"], writes=["s"])
def row_parts(s, A):
    call_external(Reduction, A, s, signature="mk->mp", in_parts=True, accumulate=True)


@task("join", Inner, reads=["s"], writes=["y"])
def join_tile(y, s, *, WM=tunable(int)):
    M, P = s.shape
    to, of = partition_by_blocks(y, (M // WM,)), partition_by_blocks(s, (M // WM, P))
    for i in prange(WM):
        launch("join", to[i], of[i, 0])


@task("join", Inner, reads=["s"], writes=["y"])
def join_through(y, s):
    whole = make_tensor(y.shape, "float32")
    launch("join", whole, s)
    launch("copy", y, whole)


@task("join", Leaf, reads=["s"], writes=["y"])
def join_parts(y, s):
    call_external(Reduction, s, y)


@task("clear", Inner, writes=["C"])
def clear_rows(C, *, WM=tunable(int)):
    rows, rest = C.shape[0] // WM, (0,) * (C.rank - 1)
    Cp = partition_by_blocks(C, (rows, *C.shape[1:]))
    for i in prange(WM):
        launch("clear", Cp[i, *rest])


@task("copy", Inner, reads=["src"], writes=["dst"])
def copy_rows(dst, src, *, WM=tunable(int), WN=tunable(int)):
    to, of = (partition_by_first(T, (T.shape[0] // WM,), WN) for T in (dst, src))
    for i, j in prange(WM, WN):
        launch("copy", to[i, j], of[i, j])


program = Tasks(
    sums_host, sums_block, sums_block_parts, step_tile, step_steps, step_both, row_tile, row_whole, row_parts, join_tile, join_through,
    join_parts, clear_rows, copy_rows, *gemm.program.variants,
)  # fmt: skip


def ampere(U=128, V=128, W=32, rows=2, columns=2, stages=4, lookahead=2, group_m=8):
    """Map to blocks of `rows` x `columns` warps and mma.sync; the first column of warps also sums its fragments of A."""
    (WM, TM), (WN, TN) = grids = (rows, U // rows // 16), (columns, V // columns // 8)
    layouts, calls = (
        dict(A=Stored(swizzle=True), B=Stored(swizzle=True)),
        ["clear_tile", "clear_sums", "step_tile", "copy_tile", "copy_sums"],
    )
    shared, fragments = ([NONE, NONE, place, place] for place in (SHARED, REGISTER))
    return Mapping(
        [
            TaskMapping("sums_host", "sums_host", HOST, [GLOBAL] * 4, dict(U=U, V=V), ["sums_block"], entrypoint=True, group_m=group_m),
            TaskMapping("sums_block", "sums_block", BLOCK, [GLOBAL] * 4, dict(W=W), calls, pipeline=stages, interleave=True),
            TaskMapping("clear_sums", "clear_thread", BLOCK, [NONE]),
            TaskMapping("step_tile", "step_tile", BLOCK, shared, dict(WM=WM, WN=WN), ["step_warp"], layouts=layouts),
            TaskMapping("step_warp", "step_steps", WARP, shared, dict(W=16), ["step_both"], pipeline=lookahead),
            TaskMapping("step_both", "step_both", WARP, fragments, {}, ["gemm_step", "row_whole"]),
            TaskMapping("row_whole", "row_whole", WARP, [REGISTER, REGISTER]),
            TaskMapping("copy_sums", "copy_rows", BLOCK, [GLOBAL, NONE], dict(WM=WM, WN=WN), ["copy_sum"]),
            TaskMapping("copy_sum", "copy_thread", WARP, [GLOBAL, REGISTER]),
            *gemm.of_fragments(TM, TN),
            *of_warps("clear", 1, *grids),
            *gemm.staged_by_warps(rows, columns),
        ],
        AMPERE,
    )


def hopper(U=128, V=256, W=64, WGS=2, stages=3, epi_n=256, group_m=8, num_blocks=132, parts=4):
    """Map to wgmma, during which warpgroups sum the rows of A, and a producer warp that issues TMA; `parts` partial sums in registers.

    With 0 parts the sums are in shared memory, where each step reads and writes them (Cypress, section 5.2).
    """
    groups, rows = (WGS, 1), dict(WM=WGS)
    grid, ring = dict(group_m=group_m, persistent=num_blocks), dict(warpspecialize=True, pipeline=stages, producer_threads=128)
    variant, last = ("sums_block_parts", "join_tile") if parts else ("sums_block", "copy_sums")
    calls, tunables = ["clear_tile", "clear_sums", "step_both", "copy_tile", last], dict(W=W) | (dict(PARTS=parts) if parts else {})
    place, row = (REGISTER, "row_parts") if parts else (SHARED, "row_whole")
    return Mapping(
        [
            TaskMapping("sums_host", "sums_host", HOST, [GLOBAL] * 4, dict(U=U, V=V), ["sums_block"], entrypoint=True, **grid),
            TaskMapping("sums_block", variant, BLOCK, [GLOBAL] * 4, tunables, calls, **ring),
            TaskMapping("clear_sums", "clear_rows", BLOCK, [NONE], rows, ["clear_sum"]),
            TaskMapping("clear_sum", "clear_thread", WARPGROUP, [place]),
            TaskMapping("step_both", "step_both", BLOCK, [NONE, NONE, GLOBAL, GLOBAL], {}, ["gemm_tile", "row_tile"]),
            TaskMapping("row_tile", "row_tile", BLOCK, [NONE, SHARED], rows, ["row"]),
            TaskMapping("row", row, WARPGROUP, [place, REGISTER]),
            *(joined(rows) if parts else ()),
            TaskMapping("copy_sums", "copy_rows", BLOCK, [GLOBAL, NONE], dict(WM=WGS, WN=1), ["copy_sum"]),
            TaskMapping("copy_sum", "copy_thread", WARPGROUP, [GLOBAL, place]),
            *by_warpgroups("gemm", groups, [NONE, SHARED, SHARED], [REGISTER, SHARED, SHARED]),
            *by_warpgroups("clear", groups, [NONE], [REGISTER]),
            *staged_copy(groups, V // epi_n),
        ]
    )


def joined(rows):
    """Return the tree of `join`: combine the partial sums of each row in registers, and store them."""
    return (
        TaskMapping("join_tile", "join_tile", BLOCK, [GLOBAL, NONE], rows, ["join_group"]),
        TaskMapping("join_group", "join_through", WARPGROUP, [GLOBAL, NONE], {}, ["join_parts", "copy_sum"]),
        TaskMapping("join_parts", "join_parts", WARPGROUP, [REGISTER, REGISTER]),
    )


group_m = Tunable("group_m", 8, 4, 16)

stages = Tunable("stages", 3, 2)

strategy = strategy_of(program, ampere(stages=Tunable("stages", 4, 3), group_m=group_m))

warpgroups = strategy_of(program, hopper(stages=stages, group_m=group_m))

warpgroups_shared = strategy_of(program, hopper(stages=stages, group_m=group_m, parts=0))

spec = gemm_row_sum.spec
