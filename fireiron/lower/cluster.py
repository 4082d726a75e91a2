"""`cluster`: insert cluster barriers before the first access to another block, and before a block exits.

No block may arrive at the mbarriers of another block, or load into its shared memory, before these mbarriers are initialized. A block that
exits releases its shared memory. Between these two barriers, blocks synchronize by arriving at the mbarriers of other blocks.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from fireiron.errors import DecompositionError
from fireiron.ir import Acquire, BlockCluster, ClusterBarrier, Exec, For, Kernel, Let, execs, lets, statements
from fireiron.values.expr import Expr, Var, tables_of

INITIALIZED = "the mbarriers of all blocks of the cluster are initialized"
COMPLETE = "no block exits while others write to its shared memory or arrive at its mbarriers"


def cluster(kernel: Kernel) -> Kernel:
    """Add the cluster barriers to a kernel with a cluster.

    Raises: DecompositionError if the blocks of the cluster share no load, or have different trip counts.
    """
    if kernel.cluster is None:
        return kernel
    if all(stmt.multicast is None for stmt, _ in execs(kernel.body)):
        raise _nothing_shared(kernel)
    _require_uniform_trip_counts(kernel, kernel.cluster)
    names = tuple(stmt for stmt in kernel.body if isinstance(stmt, Let))
    program = tuple(stmt for stmt in kernel.body if not isinstance(stmt, Let))
    return attrs.evolve(kernel, body=(*names, ClusterBarrier(INITIALIZED), *program, ClusterBarrier(COMPLETE)))


def _require_uniform_trip_counts(kernel: Kernel, cluster: BlockCluster) -> None:
    """Refuse loops over ring fills whose trip count depends on data of each block."""
    named = lets(kernel.body)
    for loop in statements(kernel.body):
        waits = isinstance(loop, For) and any(isinstance(stmt, Acquire) for stmt in statements(loop.body))
        if not isinstance(loop, For) or not waits or not _read(loop.extent, named) or cluster.is_uniform(loop.extent, kernel.block, named):
            continue
        raise DecompositionError(
            f"cluster: the trip count {loop.extent} depends on data of each block, but the {cluster.blocks} blocks wait for each other",
            at=loop.origin,
            within=kernel.spec,
            legal="a cluster along dimensions that the trip count does not contain",
            hint="cluster(1, 2), or no cluster",
        )


def _read(value: Expr, named: Mapping[Var, Expr]) -> bool:
    """Whether a value depends on what the kernel reads from memory."""
    return bool(tables_of(value)) or any(_read(named[var], named) for var in value.variables() if var in named)


def _nothing_shared(kernel: Kernel) -> DecompositionError:
    assert kernel.cluster is not None
    loads = [stmt for stmt, _ in execs(kernel.body) if stmt.mechanism.counted]
    why = "no load is a TMA load into a ring" if not loads else "; ".join(dict.fromkeys(map(_why, loads)))
    return DecompositionError(
        f"cluster: the {kernel.cluster.blocks} blocks share no load: {why}",
        within=kernel.spec,
        hint=".pipeline(4).warp_specialize() and TMA loads from tiles that adjacent blocks share; or no cluster",
    )


def _why(load: Exec) -> str:
    return f"{load.spec} differs between the blocks, or cannot be divided into equal parts"
