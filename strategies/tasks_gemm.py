"""GEMM as a program of tasks, with mappings to Ampere's tensor cores, to FFMA, and to Hopper (Cypress, Figure 5)."""

from fireiron import GL, Kernel, MatMul, RowMajor, Tunable, float16
from fireiron.tasks import *
from fireiron.tasks import strategy as strategy_of
from fireiron.tasks.usual import (
    clear_inner,
    clear_thread,
    clear_tile,
    copy_inner,
    copy_thread,
    copy_tile,
    gemm_inner,
    gemm_steps,
    gemm_thread,
    gemm_tile,
)  # fmt: skip

SIZES = (4096, 4096, 4096)


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


@task("copy", Inner, reads=["src"], writes=["dst"])
def copy_through(dst, src):
    staged = make_tensor(dst.shape, dst.dtype)
    launch("copy", staged, src)
    launch("copy", dst, staged)


program = Tasks(
    gemm_host, gemm_block, gemm_tile, gemm_steps, gemm_inner, gemm_thread, clear_tile, clear_inner, clear_thread, copy_tile, copy_inner,
    copy_through, copy_thread,
)  # fmt: skip


def of_warps(task, tensors, rows, columns):
    """Return the tree of `clear` or `copy`: tiles of warps, in them tiles of an instruction, in them the fragments of threads."""
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


def staged_by_warps(rows, columns):
    """Return the tree of `copy` from registers of warps through shared memory, in pieces of 16 bytes."""
    stores, bytes_of_others = ["copy_in", "copy_out"], dict(dst=Stored(swizzle=True, reuse=True))
    return (
        TaskMapping("copy_tile", "copy_tile", BLOCK, [GLOBAL, NONE], dict(WM=rows, WN=columns), ["copy_warp"]),
        TaskMapping("copy_warp", "copy_through", WARP, [GLOBAL, NONE], {}, stores),
        TaskMapping("copy_in", "copy_thread", WARP, [SHARED, NONE], layouts=bytes_of_others),
        TaskMapping("copy_out", "copy_thread", WARP, [GLOBAL, SHARED]),
    )


def of_fragments(rows, columns):
    """Return the tree of `gemm` on fragments of a warp: `rows` x `columns` tiles of an instruction, in them the fragments of threads."""
    pieces = dict(INSTR="mma.m16n8k16", PIECES=32, PROC=THREAD)
    return (
        TaskMapping("gemm_step", "gemm_tile", WARP, [NONE, REGISTER, REGISTER], dict(WM=rows, WN=columns), ["gemm_mma"]),
        TaskMapping("gemm_mma", "gemm_inner", WARP, [NONE] * 3, pieces, ["gemm_thread"]),
        TaskMapping("gemm_thread", "gemm_thread", THREAD, [REGISTER] * 3),
    )


def staged_by_block(rows, columns):
    """Return the tree of `copy` from registers of warps to shared memory of the block, which stores in pieces of 16 bytes."""
    stores, padded = ["copy_in", "copy_out"], dict(dst=Stored(pad=8, reuse=True))
    return (
        TaskMapping("copy_tile", "copy_through", BLOCK, [GLOBAL, NONE], {}, stores),
        TaskMapping("copy_in", "copy_tile", BLOCK, [SHARED, NONE], dict(WM=rows, WN=columns), ["copy_warp"], layouts=padded),
        TaskMapping("copy_warp", "copy_thread", WARP, [SHARED, NONE]),
        TaskMapping("copy_out", "copy_thread", BLOCK, [GLOBAL, SHARED]),
    )


def ampere(U=128, V=128, W=32, rows=2, columns=2, stages=3, lookahead=0, staged=False, **grid):
    """Map to blocks of `rows` x `columns` warps, mma.sync, and cp.async in `stages` stages.

    Args: `lookahead`, the number of steps whose fragments are in registers; `staged`, store the result through shared memory; `grid`,
        fields of the host's instance.
    """
    (WM, TM), (WN, TN) = grids = (rows, U // rows // 16), (columns, V // columns // 8)
    calls, loop = ["clear_tile", "gemm_tile", "copy_tile"], dict(pipeline=stages, interleave=lookahead > 0 and stages not in (0, 1))
    layouts = dict(A=Stored(swizzle=True), B=Stored(swizzle=True))
    return Mapping(
        [
            TaskMapping("gemm_host", "gemm_host", HOST, [GLOBAL] * 3, dict(U=U, V=V), ["gemm_block"], entrypoint=True, **grid),
            TaskMapping("gemm_block", "gemm_block", BLOCK, [GLOBAL] * 3, dict(W=W), calls, **loop),
            TaskMapping("gemm_tile", "gemm_tile", BLOCK, [NONE, SHARED, SHARED], dict(WM=WM, WN=WN), ["gemm_warp"], layouts=layouts),
            TaskMapping("gemm_warp", "gemm_steps", WARP, [NONE, SHARED, SHARED], dict(W=16), ["gemm_step"], pipeline=lookahead),
            *of_fragments(TM, TN),
            *of_warps("clear", 1, *grids),
            *(staged_by_block(rows, columns) if staged else of_warps("copy", 2, *grids)),
        ],
        AMPERE,
    )


def ffma(U=128, V=128, W=8, warps=(2, 4), lanes=(8, 4)):
    """Map to blocks of warps whose lanes compute separate tiles by multiply-adds."""
    grids = [dict(WM=rows, WN=columns) for rows, columns in (warps, lanes)]

    def tree(task, block, thread, leaf):
        """Return the tiles of a task: of warps, and in them of lanes."""
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


def staged_copy(groups, chunks, rows=1):
    """Return the tree of `copy` from registers of warpgroups through shared memory, in chunks: by stmatrix, then by TMA."""
    stores = ["copy_in", "copy_out"]
    return (
        TaskMapping("copy_tile", "copy_tile", BLOCK, [GLOBAL, NONE], dict(WM=groups[0], WN=groups[1]), ["copy_chunks"]),
        TaskMapping("copy_chunks", "copy_tile", WARPGROUP, [GLOBAL, NONE], dict(WM=rows, WN=chunks), ["copy_chunk"]),
        TaskMapping("copy_chunk", "copy_through", WARPGROUP, [GLOBAL, NONE], {}, stores),
        TaskMapping("copy_in", "copy_thread", WARPGROUP, [SHARED, NONE]),
        TaskMapping("copy_out", "copy_thread", WARPGROUP, [GLOBAL, SHARED]),
    )


def by_warpgroups(task, groups, outer, leaf, whole=False, **layouts):
    """Return the tree of a task for a block, its warpgroups, their warps and threads, which differ only in their memories.

    With `whole` the tile of a warpgroup is one leaf of any number of rows, which instructions implement.
    """
    grid, mma = dict(WM=groups[0], WN=groups[1]), dict(INSTR="wgmma")
    tile = TaskMapping(f"{task}_tile", f"{task}_tile", BLOCK, outer, grid, [f"{task}_warpgroup"], layouts=layouts)
    if whole:
        return tile, TaskMapping(f"{task}_warpgroup", f"{task}_thread", WARPGROUP, leaf)
    return (
        tile,
        TaskMapping(f"{task}_warpgroup", f"{task}_inner", WARPGROUP, outer, dict(mma, PIECES=4, PROC=WARP), [f"{task}_warp"]),
        TaskMapping(f"{task}_warp", f"{task}_inner", WARP, outer, dict(mma, PIECES=32, PROC=THREAD), [f"{task}_thread"]),
        TaskMapping(f"{task}_thread", f"{task}_thread", THREAD, leaf),
    )


def hopper(U=128, V=256, W=64, WGS=2, stages=3, epi_n=0, columns=1, pieces=True, **grid):
    """Map to wgmma with accumulators in registers, and a producer warp that issues TMA (Figure 5).

    Args: `WGS` x `columns` warpgroups, each with the 64 rows of the instruction; without `pieces` a tile is one leaf of any number of
        rows; `epi_n`, columns per store through shared memory by TMA, 0: directly from registers; `grid`, fields of the host's instance.
    """
    groups, calls, whole = (WGS, columns), ["clear_tile", "gemm_tile", "copy_tile"], not pieces
    copy = by_warpgroups("copy", groups, [GLOBAL, NONE], [GLOBAL, REGISTER], whole)
    if epi_n:
        copy = staged_copy(groups, V // columns // epi_n, max(U // WGS // 64, 1))
    return Mapping(
        [
            TaskMapping("gemm_host", "gemm_host", HOST, [GLOBAL] * 3, dict(U=U, V=V), ["gemm_block"], entrypoint=True, **grid),
            TaskMapping("gemm_block", "gemm_block", BLOCK, [GLOBAL] * 3, dict(W=W), calls, warpspecialize=True, pipeline=stages),
            *by_warpgroups("gemm", groups, [NONE, SHARED, SHARED], [REGISTER, SHARED, SHARED], whole),
            *by_warpgroups("clear", groups, [NONE], [REGISTER], whole),
            *copy,
        ]
    )


V, stages = Tunable("V", 256, 128), Tunable("stages", 4, 3)
group_m = Tunable("group_m", 8, 4, 16)

GRID = dict(group_m=group_m, persistent=132)

strategy = strategy_of(program, ampere(128, V, 32, 2, V // 64, stages, lookahead=2, staged=True, group_m=group_m))

warpgroups = strategy_of(program, hopper(128, V, 64, 2, stages, epi_n=64, **GRID))


def spec(M, N, K, **options):
    """Return the problem: row-major float16 with float32 accumulators by default."""
    options = {"dtype": float16, "c_dtype": float16, "A": RowMajor, "B": RowMajor, "C": RowMajor, **options}
    return MatMul(M, N, K, **options)(GL, GL, GL)(Kernel)
