"""Thread block clusters (Hopper): blocks that run at the same time on neighbouring multiprocessors and reach each other's shared memory.

PTX ISA, "Cluster of Cooperative Thread Arrays". The blocks of a cluster are neighbours in the grid: the *rank* of a block in its cluster is
the remainder of its number.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping

import attrs

from fireiron.errors import ArgumentError
from fireiron.values.expr import Expr, Var, as_expr

MULTIPROCESSORS = 132
"""SMs of an H100 or H200."""

AT_ONCE = {1: 132, 2: 66, 4: 30, 8: 15, 16: 7}
"""How many clusters of so many blocks run at once, if a multiprocessor holds one block: clusters do not cross the borders of its groups of
multiprocessors, which are not all equal (measured on an H200, cuOccupancyMaxActiveClusters)."""

PORTABLE = 8
"""Most blocks of a portable cluster; a launch must allow more (CUDA C++ Programming Guide)."""


def at_once(blocks: int) -> int:
    """How many blocks of clusters of so many run at once, if a multiprocessor holds one."""
    return AT_ONCE.get(blocks, MULTIPROCESSORS // blocks) * blocks


@attrs.frozen
class BlockCluster:
    """A cluster of `sizes` blocks along some dimensions of the grid of tiles, the first the fastest.

    `places` are the variables, one for each of the sizes, that say where in its cluster a block is: each names a value that the kernel
    computes from the block's number.
    """

    sizes: tuple[int, ...]
    places: tuple[Var, ...]

    @property
    def blocks(self) -> int:
        """How many blocks a cluster has."""
        return math.prod(self.sizes)

    @property
    def steps(self) -> tuple[int, ...]:
        """By how much ranks differ from a block to its neighbour, for each of the sizes."""
        return tuple(math.prod(self.sizes[:position]) for position in range(len(self.sizes)))

    def values(self, rank: int) -> Mapping[str, int]:
        """The places of the block of a rank, by the names of their variables."""
        return {var.name: rank // step % size for var, step, size in zip(self.places, self.steps, self.sizes, strict=True)}

    def alike(self, value: Expr, block: Var, named: Mapping[Var, Expr]) -> bool:
        """Whether a value of the block's number, with named values in it, is proved to be the same in all blocks of each cluster."""
        first = Var("cluster", 0, block.high // self.blocks) * self.blocks
        try:
            while found := {var: named[var] for var in value.variables() if var in named}:
                value = value.substitute(found)
            return len({value.substitute({block: first + rank}) for rank in range(self.blocks)}) == 1
        except ArgumentError:  # a divisor that is positive only because a name is bounded more closely than its value
            return False

    def peers(self, along: tuple[int, ...]) -> BlockSet:
        """The blocks that differ from the one that says so in the places `along` alone, by position."""
        spans = [[step * place for place in range(size)] for step, size in zip(self.steps, self.sizes, strict=True)]
        pattern = sum(1 << sum(one) for one in itertools.product(*(spans[position] for position in along)))
        first = as_expr(0)
        for position, (var, step) in enumerate(zip(self.places, self.steps, strict=True)):
            if position not in along:
                first = first + var * step
        return BlockSet(pattern, first)


@attrs.frozen
class BlockSet:
    """Blocks of a cluster: those of ranks `first + j` for each bit `j` of the `pattern`."""

    pattern: int
    first: Expr = attrs.field(converter=as_expr)

    @property
    def count(self) -> int:
        """How many blocks they are."""
        return self.pattern.bit_count()

    def ranks(self, first: int) -> Iterator[int]:
        """Their ranks, where `first` has this value."""
        return (first + bit for bit in range(self.pattern.bit_length()) if self.pattern >> bit & 1)

    def substitute(self, values: Mapping[Var, Expr | int]) -> BlockSet:
        """The same with variables replaced."""
        return attrs.evolve(self, first=self.first.substitute(values))

    def __str__(self) -> str:
        return f"{self.first} + {{{', '.join(map(str, self.ranks(0)))}}}"
