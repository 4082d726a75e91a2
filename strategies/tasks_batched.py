"""Batched GEMM as a program of tasks: `tasks_gemm` for each matrix, with a mapping to Ampere and one to Hopper."""

import attrs

from fireiron.strategies import hopper_batched
from fireiron.strategies import tasks_gemm as gemm
from fireiron.tasks import *
from fireiron.tasks import strategy as strategy_of

SIZES = (1024, 1024, 1024)


@task("batched", Inner, reads=["A", "B"], writes=["C"])
def batched_host(C, A, B, *, U=tunable(int), V=tunable(int)):
    (L, M, N), K = C.shape, A.shape[2]
    Cs, As, Bs = (partition_by_slices(T) for T in (C, A, B))
    for b, i, j in prange(L, cdiv(M, U), cdiv(N, V)):
        Cp, Ap, Bp = partition_by_blocks(Cs[b], (U, V)), partition_by_blocks(As[b], (U, K)), partition_by_blocks(Bs[b], (K, V))
        launch("gemm", Cp[i, j], Ap[i, 0], Bp[0, j])


program = Tasks(batched_host, *gemm.program.variants)


def of_each(mapping):
    """Return the mapping of a product for a batch: its host iterates over the batch."""
    root = attrs.evolve(mapping.root, instance="batched_host", variant="batched_host")
    return attrs.evolve(mapping, instances=(root, *(one for one in mapping.instances if not one.entrypoint)))


def ampere(*sizes, **options):
    """Map each product of a batch to mma.sync."""
    return of_each(gemm.ampere(*sizes, **options))


def hopper(*sizes, **options):
    """Map each product of a batch as in Figure 5."""
    return of_each(gemm.hopper(*sizes, **options))


strategy = strategy_of(program, ampere(128, gemm.V, 32, 2, gemm.V // 64, gemm.stages, lookahead=2, staged=True, group_m=gemm.group_m))

warpgroups = strategy_of(program, hopper(128, gemm.V, 64, 2, gemm.stages, epi_n=64, **gemm.GRID))

spec = hopper_batched.spec
