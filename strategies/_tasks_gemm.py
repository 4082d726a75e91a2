"""A matrix product as a program of tasks, with a mapping to Ampere's tensor cores, one to FFMA, and Hopper's (Cypress, Figure 5)."""

from fireiron.tasks import *


@task("gemm", Inner, reads=["A", "B"], writes=["C"])
def gemm_host(C, A, B, *, U=tunable(int), V=tunable(int)):
    (M, N), K = C.shape, A.shape[1]
    Cp, Ap, Bp = partition_by_blocks(C, (U, V)), partition_by_blocks(A, (U, K)), partition_by_blocks(B, (K, V))
    for i, j in prange(cdiv(M, U), cdiv(N, V)):
        launch("gemm", Cp[i, j], Ap[i, 0], Bp[0, j])


@task("gemm", Inner, reads=["A", "B"], writes=["C"])
def gemm_block(C, A, B, *, W=tunable(int)):
    (M, N), K = C.shape, A.shape[1]
    Cacc = make_tensor((M, N), "float32")
    Ap, Bp = partition_by_blocks(A, (M, W)), partition_by_blocks(B, (W, N))
    launch("clear", Cacc)
    for k in srange(cdiv(K, W)):
        launch("gemm", Cacc, Ap[0, k], Bp[k, 0])
    launch("copy", C, Cacc)


@task("gemm", Inner, reads=["A", "B", "C"], writes=["C"])
def gemm_tile(C, A, B, *, WM=tunable(int), WN=tunable(int)):
    (M, N), K = C.shape, A.shape[1]
    Cp = partition_by_blocks(C, (M // WM, N // WN))
    Ap, Bp = partition_by_blocks(A, (M // WM, K)), partition_by_blocks(B, (K, N // WN))
    for i, j in prange(WM, WN):
        launch("gemm", Cp[i, j], Ap[i, 0], Bp[0, j])


@task("gemm", Inner, reads=["A", "B", "C"], writes=["C"])
def gemm_steps(C, A, B, *, W=tunable(int)):
    (M, N), K = C.shape, A.shape[1]
    Ap, Bp = partition_by_blocks(A, (M, W)), partition_by_blocks(B, (W, N))
    for k in srange(cdiv(K, W)):
        launch("gemm", C, Ap[0, k], Bp[k, 0])


@task("gemm", Inner, reads=["A", "B", "C"], writes=["C"])
def gemm_inner(C, A, B, *, INSTR=tunable(str), PIECES=tunable(int), PROC=tunable(processor)):
    Cp, Ap, Bp = (partition_by_mma(T, INSTR, PROC, operand) for T, operand in ((C, "C"), (A, "A"), (B, "B")))
    for i in prange(PIECES):
        launch("gemm", Cp[i], Ap[i], Bp[i])


@task("gemm", Leaf, reads=["A", "B", "C"], writes=["C"])
def gemm_thread(C, A, B):
    call_external("matmul", C, A, B)


@task("clear", Inner, writes=["C"])
def clear_tile(C, *, WM=tunable(int), WN=tunable(int)):
    M, N = C.shape
    Cp = partition_by_blocks(C, (M // WM, N // WN))
    for i, j in prange(WM, WN):
        launch("clear", Cp[i, j])


@task("clear", Inner, writes=["C"])
def clear_inner(C, *, INSTR=tunable(str), PIECES=tunable(int), PROC=tunable(processor)):
    Cp = partition_by_mma(C, INSTR, PROC, "C")
    for i in prange(PIECES):
        launch("clear", Cp[i])


@task("clear", Leaf, writes=["C"])
def clear_thread(C):
    call_external("fill", C)


@task("copy", Inner, reads=["src"], writes=["dst"])
def copy_tile(dst, src, *, WM=tunable(int), WN=tunable(int)):
    M, N = dst.shape
    to, of = (partition_by_blocks(T, (M // WM, N // WN)) for T in (dst, src))
    for i, j in prange(WM, WN):
        launch("copy", to[i, j], of[i, j])


@task("copy", Inner, reads=["src"], writes=["dst"])
def copy_inner(dst, src, *, INSTR=tunable(str), PIECES=tunable(int), PROC=tunable(processor)):
    to, of = (partition_by_mma(T, INSTR, PROC, "C") for T in (dst, src))
    for i in prange(PIECES):
        launch("copy", to[i], of[i])


@task("copy", Leaf, reads=["src"], writes=["dst"])
def copy_thread(dst, src):
    call_external("copy", dst, src)


program = Tasks(
    gemm_host, gemm_block, gemm_tile, gemm_steps, gemm_inner, gemm_thread, clear_tile, clear_inner, clear_thread, copy_tile, copy_inner,
    copy_thread,
)  # fmt: skip


def of_warps(task, tensors, rows, columns):
    """The tree of `clear` or `copy`: tiles for warps, tiles of an instruction in each, and of these the parts of threads."""
    nothing, registers = [NONE] * tensors, [REGISTER] * tensors
    if task == "copy":
        nothing, registers = [GLOBAL, NONE], [GLOBAL, REGISTER]
    grid, pieces = dict(WM=rows[0], WN=columns[0]), dict(INSTR="mma.m16n8k16", PIECES=32, PROC=THREAD)
    return (
        TaskMapping(f"{task}_tile", f"{task}_tile", BLOCK, nothing, grid, [f"{task}_warp"]),
        TaskMapping(f"{task}_warp", f"{task}_tile", WARP, nothing, dict(WM=rows[1], WN=columns[1]), [f"{task}_mma"]),
        TaskMapping(f"{task}_mma", f"{task}_inner", WARP, nothing, pieces, [f"{task}_thread"]),
        TaskMapping(f"{task}_thread", f"{task}_thread", THREAD, registers),
    )


def ampere(U=128, V=128, W=32, rows=2, columns=2, stages=3):
    """Blocks of `rows` x `columns` warps, products by mma.sync, asynchronous copies to a pipeline of stages."""
    grids = (rows, U // rows // 16), (columns, V // columns // 8)
    (WM, TM), (WN, TN) = grids
    return Mapping(
        [
            TaskMapping("gemm_host", "gemm_host", HOST, [GLOBAL] * 3, dict(U=U, V=V), ["gemm_block"], entrypoint=True),
            TaskMapping(
                "gemm_block", "gemm_block", BLOCK, [GLOBAL] * 3, dict(W=W), ["clear_tile", "gemm_tile", "copy_tile"], pipeline=stages
            ),
            TaskMapping(
                "gemm_tile",
                "gemm_tile",
                BLOCK,
                [NONE, SHARED, SHARED],
                dict(WM=WM, WN=WN),
                ["gemm_warp"],
                layouts=dict(A=Stored(swizzle=True), B=Stored(swizzle=True)),
            ),
            TaskMapping("gemm_warp", "gemm_steps", WARP, [NONE, SHARED, SHARED], dict(W=16), ["gemm_step"]),
            TaskMapping("gemm_step", "gemm_tile", WARP, [NONE, REGISTER, REGISTER], dict(WM=TM, WN=TN), ["gemm_mma"]),
            TaskMapping("gemm_mma", "gemm_inner", WARP, [NONE] * 3, dict(INSTR="mma.m16n8k16", PIECES=32, PROC=THREAD), ["gemm_thread"]),
            TaskMapping("gemm_thread", "gemm_thread", THREAD, [REGISTER] * 3),
            *of_warps("clear", 1, *grids),
            *of_warps("copy", 2, *grids),
        ],
        AMPERE,
    )


def ffma(U=128, V=128, W=8, warps=(2, 4), lanes=(8, 4)):
    """Blocks of warps, products by the multiply-add of each lane, which has a tile of its own."""
    grids = [dict(WM=rows, WN=columns) for rows, columns in (warps, lanes)]

    def tree(task, block, thread, leaf):
        """The tiles of a task: for warps, and in each for lanes."""
        return (
            TaskMapping(f"{task}_tile", f"{task}_tile", BLOCK, block, grids[0], [f"{task}_warp"]),
            TaskMapping(f"{task}_warp", f"{task}_tile", WARP, block, grids[1], thread),
            TaskMapping(f"{task}_thread", f"{task}_thread", THREAD, leaf),
        )

    return Mapping(
        [
            TaskMapping("gemm_host", "gemm_host", HOST, [GLOBAL] * 3, dict(U=U, V=V), ["gemm_block"], entrypoint=True),
            TaskMapping("gemm_block", "gemm_block", BLOCK, [GLOBAL] * 3, dict(W=W), ["clear_tile", "gemm_tile", "copy_tile"]),
            *tree("gemm", [NONE, SHARED, SHARED], ["gemm_steps"], [REGISTER] * 3),
            TaskMapping("gemm_steps", "gemm_steps", THREAD, [NONE, SHARED, SHARED], dict(W=1), ["gemm_thread"]),
            *tree("clear", [NONE], ["clear_thread"], [REGISTER]),
            *tree("copy", [GLOBAL, NONE], ["copy_thread"], [GLOBAL, REGISTER]),
        ],
        AMPERE,
    )


def hopper(U=128, V=256, W=64, WGS=2, stages=3):
    """Figure 5: warpgroups that multiply by wgmma, a warp that loads ahead by TMA, accumulators in registers."""

    def tree(task, outer, leaf, W):
        """The instances of a task for a block, its warpgroups, their warps and threads, all the same but for their memories."""
        return (
            TaskMapping(f"{task}_tile", f"{task}_tile", BLOCK, outer, dict(WM=WGS, WN=1), [f"{task}_warpgroup"]),
            TaskMapping(f"{task}_warpgroup", f"{task}_inner", WARPGROUP, outer, dict(INSTR="wgmma", PIECES=4, PROC=WARP), [f"{task}_warp"]),
            TaskMapping(f"{task}_warp", f"{task}_inner", WARP, outer, dict(INSTR="wgmma", PIECES=32, PROC=THREAD), [f"{task}_thread"]),
            TaskMapping(f"{task}_thread", f"{task}_thread", THREAD, leaf),
        )

    calls = ["clear_tile", "gemm_tile", "copy_tile"]
    return Mapping(
        [
            TaskMapping("gemm_host", "gemm_host", HOST, [GLOBAL] * 3, dict(U=U, V=V), ["gemm_block"], entrypoint=True),
            TaskMapping("gemm_block", "gemm_block", BLOCK, [GLOBAL] * 3, dict(W=W), calls, warpspecialize=True, pipeline=stages),
            *tree("gemm", [NONE, SHARED, SHARED], [REGISTER, SHARED, SHARED], W),
            *tree("clear", [NONE], [REGISTER], W),
            *tree("copy", [GLOBAL, NONE], [GLOBAL, REGISTER], W),
        ]
    )
