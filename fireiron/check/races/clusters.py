"""Follow the blocks of one cluster together, each with its own agents and shared memory.

All blocks run the same program. The blocks of a cluster run the same iterations of each loop; this module checks that. So the result for
one cluster holds for all. Accesses to global memory are followed in one block of the cluster, because another check compares blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import attrs
import numpy as np

from fireiron.check.access_trace import MANY, AccessTrace
from fireiron.check.persistence import persistence
from fireiron.frozen import frozen
from fireiron.ir import BlockCluster, BlockSet, ClaimTile, Exec, For, Kernel, Let, Release, Stmt, rewritten, statements
from fireiron.values.expr import Expr, Var, compiled, constant

ALIGNED = 1024
"""Alignment in bytes of the shared memories of a cluster's blocks in the address numbering of this check."""


@frozen(eq=False)
class ClusterBlocks:
    """The blocks of one cluster, or a single block without a cluster. `memory_stride` is the distance of their shared memories in bytes."""

    cluster: BlockCluster | None
    memory_stride: int

    @property
    def count(self) -> int:
        """The number of blocks."""
        return 1 if self.cluster is None else self.cluster.blocks

    @property
    def names(self) -> frozenset[str]:
        """The names of the variables that give a block's coordinates in its cluster."""
        return frozenset() if self.cluster is None else frozenset(map(_free_name, self.cluster.places))

    def coordinates(self, rank: int) -> Mapping[str, int]:
        """The cluster coordinates of the block with this rank, by variable name."""
        if self.cluster is None:
            return {}
        return {_free_name(var): self.cluster.values(rank)[var.name] for var in self.cluster.places}

    def ranks(self, peers: tuple[BlockSet, ...], rank: int) -> tuple[int, ...]:
        """The ranks of the blocks that the block with this rank accesses, its own included, each once; none without peers."""
        if not peers:
            return ()
        values = self.coordinates(rank)
        return tuple(dict.fromkeys(one for part in peers for one in part.ranks(int(compiled(part.first)(values)))))


def _free_name(place: Var) -> str:
    return f"{place.name} of the cluster"


def cluster_blocks(kernel: Kernel) -> ClusterBlocks:
    """The blocks that are followed together."""
    return ClusterBlocks(kernel.cluster, -(-kernel.block_bytes // ALIGNED) * ALIGNED)


def with_free_ranks(access_trace: AccessTrace) -> AccessTrace:
    """The trace, with the cluster coordinates as free variables wherever a block accesses other blocks."""
    kernel = access_trace.kernel
    if kernel.cluster is None:
        return access_trace
    free_ranks: dict[Var, Expr | int] = {var: Var(_free_name(var), var.low, var.high) for var in kernel.cluster.places}

    def with_free_rank(statement: Stmt) -> tuple[Stmt, ...]:
        if isinstance(statement, Exec) and statement.multicast is not None:
            source, target = statement.accesses
            peers = statement.multicast.substitute(free_ranks)
            return (attrs.evolve(statement, accesses=(source, target.substitute(free_ranks)), multicast=peers),)
        if isinstance(statement, Release) and statement.to:
            return (attrs.evolve(statement, to=tuple(peers.substitute(free_ranks) for peers in statement.to)),)
        return (statement,)

    return AccessTrace(attrs.evolve(kernel, body=rewritten(kernel.body, with_free_rank)))


def uneven_loops(access_trace: AccessTrace) -> Iterator[str]:
    """A message for each loop whose trip counts differ, or may differ, between blocks of a cluster."""
    kernel = access_trace.kernel
    if kernel.cluster is None:
        return
    each, grid = kernel.cluster.blocks, constant(kernel.grid)
    whole = {id(one.loop) for one in persistence(kernel) if one.tiles.factor % each == 0 and _step(one.loop, one.tile) % each == 0}
    for loop in statements(kernel.body):
        if isinstance(loop, For) and id(loop) not in whole and "block" in access_trace.roots(loop.extent):
            if grid is None or grid > MANY or access_trace.roots(loop.extent) != {"block"}:
                yield f"undecided: the trip count {loop.extent} of loop {loop.var} may differ between the blocks of a cluster"
                continue
            lengths = access_trace.frame([("block", np.arange(grid))]).full(loop.extent).reshape(-1, each)
            if (lengths != lengths[:, :1]).any():
                yield f"the trip count {loop.extent} of loop {loop.var} differs between blocks of a cluster that synchronize in it"


def _step(loop: For, tile: Let | ClaimTile) -> int:
    """The distance from a tile of a block to its next one; 1 if unknown."""
    if isinstance(tile, ClaimTile):
        return 1
    return constant(tile.value.substitute({loop.var: 1}) - tile.value.substitute({loop.var: 0})) or 1
