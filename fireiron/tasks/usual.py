# ruff: noqa: B008
# mypy: disable-error-code="no-untyped-def"
"""Variants that many programs use: of `gemm` (C += A B), of `clear` (C = 0), and of `copy` (from src to dst).

Each decomposes its tensors into tiles, or into the parts of a matrix instruction, down to a leaf; `gemm` also loops over k in steps.
"""

from __future__ import annotations

from typing import Final

from fireiron.tasks.program import (
    Inner,
    Leaf,
    call_external,
    cdiv,
    launch,
    partition_by_blocks,
    partition_by_mma,
    prange,
    processor,
    srange,
    task,
    tunable,
)


@task("gemm", Inner, reads=["A", "B", "C"], writes=["C"])
def gemm_tile(C, A, B, *, WM=tunable(int), WN=tunable(int)):
    """Decompose the result into `WM` x `WN` tiles."""
    (M, N), K = C.shape, A.shape[1]
    Cp = partition_by_blocks(C, (M // WM, N // WN))
    Ap, Bp = partition_by_blocks(A, (M // WM, K)), partition_by_blocks(B, (K, N // WN))
    for i, j in prange(WM, WN):
        launch("gemm", Cp[i, j], Ap[i, 0], Bp[0, j])


@task("gemm", Inner, reads=["A", "B", "C"], writes=["C"])
def gemm_steps(C, A, B, *, W=tunable(int)):
    """Decompose k into sequential steps of `W`."""
    (M, N), K = C.shape, A.shape[1]
    Ap, Bp = partition_by_blocks(A, (M, W)), partition_by_blocks(B, (W, N))
    for k in srange(cdiv(K, W)):
        launch("gemm", C, Ap[0, k], Bp[k, 0])


@task("gemm", Inner, reads=["A", "B", "C"], writes=["C"])
def gemm_inner(C, A, B, *, INSTR=tunable(str), PIECES=tunable(int), PROC=tunable(processor)):
    """Decompose the operands of a matrix instruction into the parts of warps or threads."""
    Cp, Ap, Bp = (partition_by_mma(T, INSTR, PROC, operand) for T, operand in ((C, "C"), (A, "A"), (B, "B")))
    for i in prange(PIECES):
        launch("gemm", Cp[i], Ap[i], Bp[i])


@task("gemm", Leaf, reads=["A", "B", "C"], writes=["C"])
def gemm_thread(C, A, B):
    """Accumulate the product to the result."""
    call_external("matmul", C, A, B)


@task("clear", Inner, writes=["C"])
def clear_tile(C, *, WM=tunable(int), WN=tunable(int)):
    """Decompose the tensors into `WM` x `WN` tiles."""
    M, N = C.shape
    Cp = partition_by_blocks(C, (M // WM, N // WN))
    for i, j in prange(WM, WN):
        launch("clear", Cp[i, j])


@task("clear", Inner, writes=["C"])
def clear_inner(C, *, INSTR=tunable(str), PIECES=tunable(int), PROC=tunable(processor)):
    """Decompose the result of a matrix instruction into its parts."""
    Cp = partition_by_mma(C, INSTR, PROC, "C")
    for i in prange(PIECES):
        launch("clear", Cp[i])


@task("clear", Leaf, writes=["C"])
def clear_thread(C):
    """Fill with zeros."""
    call_external("fill", C)


@task("copy", Inner, reads=["src"], writes=["dst"])
def copy_tile(dst, src, *, WM=tunable(int), WN=tunable(int)):
    """Decompose the tensors into `WM` x `WN` tiles."""
    M, N = dst.shape
    to, of = (partition_by_blocks(T, (M // WM, N // WN)) for T in (dst, src))
    for i, j in prange(WM, WN):
        launch("copy", to[i, j], of[i, j])


@task("copy", Inner, reads=["src"], writes=["dst"])
def copy_inner(dst, src, *, INSTR=tunable(str), PIECES=tunable(int), PROC=tunable(processor)):
    """Decompose the result of a matrix instruction into its parts."""
    to, of = (partition_by_mma(T, INSTR, PROC, "C") for T in (dst, src))
    for i in prange(PIECES):
        launch("copy", to[i], of[i])


@task("copy", Leaf, reads=["src"], writes=["dst"])
def copy_thread(dst, src):
    """Copy the source, converted to the element type of the destination."""
    call_external("copy", dst, src)


GEMM: Final = (gemm_tile, gemm_steps, gemm_inner, gemm_thread)
"""Variants of `gemm`, C += A B: tiles, steps of k, parts of an instruction, and the leaf."""

CLEAR: Final = (clear_tile, clear_inner, clear_thread)
"""Variants of `clear`, which fills C with zeros."""

COPY: Final = (copy_tile, copy_inner, copy_thread)
"""Variants of `copy`, from src to dst."""
