"""Clusters in the race check: the blocks of one cluster are followed together, each with its agents and its shared memory.

All blocks run the same program, and those of a cluster the same turns of each loop, which is looked at here. So what one cluster does
decides about all. Arrays in global memory are followed in one of its blocks: blocks are told apart there by the check between blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import attrs
import numpy as np

from fireiron.check.access_trace import MANY, AccessTrace
from fireiron.check.persistence import persistence
from fireiron.ir import BlockCluster, BlockSet, ClaimTile, Exec, For, Kernel, Let, Release, Stmt, rewritten, statements
from fireiron.values.expr import Expr, Var, compiled, constant

ALIGNED = 1024
"""Alignment in bytes of the shared memories of the blocks of a cluster, in the numbering of this check."""


@attrs.frozen(eq=False)
class Blocks:
    """The blocks of one cluster, or one block that has none: how many, and by how many bytes their shared memories are apart."""

    cluster: BlockCluster | None
    apart: int

    @property
    def count(self) -> int:
        """How many they are."""
        return 1 if self.cluster is None else self.cluster.blocks

    @property
    def names(self) -> frozenset[str]:
        """Names of the variables that say where in its cluster a block is."""
        return frozenset() if self.cluster is None else frozenset(map(_free_name, self.cluster.places))

    def places(self, rank: int) -> Mapping[str, int]:
        """Their values in the block of a rank."""
        if self.cluster is None:
            return {}
        return {_free_name(var): self.cluster.values(rank)[var.name] for var in self.cluster.places}

    def ranks(self, peers: tuple[BlockSet, ...], rank: int) -> tuple[int, ...]:
        """The ranks of other blocks, or of this one, that a block of a rank reaches into, each once."""
        values = self.places(rank)
        return tuple(dict.fromkeys(one for part in peers for one in part.ranks(int(compiled(part.first)(values)))))


def _free_name(place: Var) -> str:
    return f"{place.name} of the cluster"


def cluster_blocks(kernel: Kernel) -> Blocks:
    """The blocks that are followed together."""
    return Blocks(kernel.cluster, -(-kernel.block_bytes // ALIGNED) * ALIGNED)


def with_free_ranks(access_trace: AccessTrace) -> AccessTrace:
    """The scene, with the places of blocks in their cluster as free variables wherever a block reaches into others."""
    kernel = access_trace.kernel
    if kernel.cluster is None:
        return access_trace
    free: dict[Var, Expr | int] = {var: Var(_free_name(var), var.low, var.high) for var in kernel.cluster.places}

    def freed(statement: Stmt) -> tuple[Stmt, ...]:
        if isinstance(statement, Exec) and statement.multicast is not None:
            source, target = statement.accesses
            peers = statement.multicast.substitute(free)
            return (attrs.evolve(statement, accesses=(source, target.substitute(free)), multicast=peers),)
        if isinstance(statement, Release) and statement.to:
            return (attrs.evolve(statement, to=tuple(peers.substitute(free) for peers in statement.to)),)
        return (statement,)

    return AccessTrace(attrs.evolve(kernel, body=rewritten(kernel.body, freed)))


def uneven_loops(access_trace: AccessTrace) -> Iterator[str]:
    """The loops whose lengths differ between blocks of a cluster, or may."""
    kernel = access_trace.kernel
    if kernel.cluster is None:
        return
    each, grid = kernel.cluster.blocks, constant(kernel.grid)
    whole = {id(one.loop) for one in persistence(kernel) if one.tiles.factor % each == 0 and _step(one.loop, one.tile) % each == 0}
    for loop in statements(kernel.body):
        if isinstance(loop, For) and id(loop) not in whole and "block" in access_trace.roots(loop.extent):
            if grid is None or grid > MANY or access_trace.roots(loop.extent) != {"block"}:
                yield f"undecided: the length {loop.extent} of loop {loop.var} may differ between the blocks of a cluster"
                continue
            lengths = access_trace.frame([("block", np.arange(grid))]).full(loop.extent).reshape(-1, each)
            if (lengths != lengths[:, :1]).any():
                yield f"the length {loop.extent} of loop {loop.var} differs between blocks of a cluster, which wait for each other in it"


def _step(loop: For, tile: Let | ClaimTile) -> int:
    """How many tiles further on the next one of a block is; 1 where nobody knows."""
    if isinstance(tile, ClaimTile):
        return 1
    return constant(tile.value.substitute({loop.var: 1}) - tile.value.substitute({loop.var: 0})) or 1
