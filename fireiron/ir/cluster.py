"""Thread block clusters (Hopper): blocks that run concurrently on nearby SMs and access each other's shared memory.

PTX ISA, "Cluster of Cooperative Thread Arrays". The blocks of a cluster are adjacent in the grid. The *rank* of a block is its number
modulo the cluster size.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping

import attrs

from fireiron.errors import ArgumentError
from fireiron.frozen import frozen
from fireiron.values.expr import Expr, Var, as_expr

SM_COUNT = 132
"""SMs of an H100 or H200."""

CONCURRENT_CLUSTERS = {1: 132, 2: 66, 4: 30, 8: 15, 16: 7}
"""The number of concurrent clusters by cluster size, at one block per SM. Clusters do not cross GPCs, which differ in their number of SMs
(measured on an H200, cuOccupancyMaxActiveClusters).
"""

PORTABLE = 8
"""The largest portable cluster size; a launch must allow larger ones (CUDA C++ Programming Guide)."""


def concurrent_blocks(blocks: int) -> int:
    """The number of concurrent blocks in clusters of `blocks` blocks, at one block per SM."""
    return CONCURRENT_CLUSTERS.get(blocks, SM_COUNT // blocks) * blocks


@frozen
class BlockCluster:
    """A cluster of `sizes` blocks along some dimensions of the grid of tiles; ranks count the first of them fastest.

    `places` are the variables, one per size, of a block's coordinates in its cluster. The kernel computes them from the block's number.
    """

    sizes: tuple[int, ...]
    places: tuple[Var, ...]

    @property
    def blocks(self) -> int:
        """The number of blocks of a cluster."""
        return math.prod(self.sizes)

    @property
    def steps(self) -> tuple[int, ...]:
        """The rank difference of adjacent blocks, for each of the sizes."""
        return tuple(math.prod(self.sizes[:position]) for position in range(len(self.sizes)))

    def values(self, rank: int) -> Mapping[str, int]:
        """The coordinates of the block with a rank, by the names of their variables."""
        return {var.name: rank // step % size for var, step, size in zip(self.places, self.steps, self.sizes, strict=True)}

    def is_uniform(self, value: Expr, block: Var, named: Mapping[Var, Expr]) -> bool:
        """Whether a value is provably equal in all blocks of each cluster; `named` defines the names in it."""
        first = Var("cluster", 0, block.high // self.blocks) * self.blocks
        try:
            while definitions := {var: named[var] for var in value.variables() if var in named}:
                value = value.substitute(definitions)
            return len({value.substitute({block: first + rank}) for rank in range(self.blocks)}) == 1
        except ArgumentError:  # a divisor that is positive only because a name has tighter bounds than its value
            return False

    def block_set(self, along: tuple[int, ...]) -> BlockSet:
        """The blocks that differ from the executing one only in the coordinates with positions `along`."""
        spans = [[step * place for place in range(size)] for step, size in zip(self.steps, self.sizes, strict=True)]
        pattern = sum(1 << sum(one) for one in itertools.product(*(spans[position] for position in along)))
        first = as_expr(0)
        for position, (var, step) in enumerate(zip(self.places, self.steps, strict=True)):
            if position not in along:
                first = first + var * step
        return BlockSet(pattern, first)


@frozen
class BlockSet:
    """Blocks of a cluster: those with ranks `first + j` for each bit `j` of the `pattern`."""

    pattern: int
    first: Expr = attrs.field(converter=as_expr)

    @property
    def count(self) -> int:
        """The number of blocks."""
        return self.pattern.bit_count()

    def ranks(self, first: int) -> Iterator[int]:
        """Their ranks for a value of `first`."""
        return (first + bit for bit in range(self.pattern.bit_length()) if self.pattern >> bit & 1)

    def substitute(self, values: Mapping[Var, Expr | int]) -> BlockSet:
        """The set with variables replaced."""
        return attrs.evolve(self, first=self.first.substitute(values))

    def __str__(self) -> str:
        return f"{self.first} + {{{', '.join(map(str, self.ranks(0)))}}}"
