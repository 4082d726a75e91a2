"""Thread block clusters: `cluster` on a tile distributed over blocks (Hopper)."""

from __future__ import annotations

from typing import Any, ClassVar

import attrs

from fireiron.errors import DecompositionError
from fireiron.frozen import frozen
from fireiron.language.clusters import Clustered
from fireiron.language.tree import Refinement
from fireiron.language.tunable import Integer, chosen, integral

MOST = 16
"""Maximum number of blocks per cluster. More than 8 are not portable, and the launch must allow them (CUDA C++ Programming Guide)."""


def _blocks(value: Any) -> Any:
    return integral(value, "cluster")


@frozen
class Cluster(Refinement):
    """Assign `m` x `n` adjacent tiles to the blocks of a thread block cluster, which load shared data by multicast.

    If several blocks of a cluster need the same TMA load of a circular buffer, each block loads a part and multicasts it to all of them.
    The compiler infers barriers and arrivals across blocks. Legal on a tile of two dimensions that is distributed over blocks, for at most
    16 blocks, on sm_90a, with `warp_specialize` and at least one shared load; both numbers may be tunables. If clusters do not divide the
    tiles evenly, some blocks have a tile that is out of bounds.
    rewrite: block u: tile u --> blocks k * u ... k * u + k - 1: the k = m * n tiles of cluster u

    Source: decision 28.

    >>> from fireiron import *
    >>> halves = {"dtype": float16, "c_dtype": float16, "A": RowMajor, "B": RowMajor, "C": RowMajor}
    >>> blocks = MatMul(512, 512, 512, **halves)(GL, GL, GL)(Kernel).tile(128, 64).to(Block).cluster(2)
    >>> steps = blocks.epilog(RF, float32).split(64).pipeline(3).warp_specialize()
    >>> loads = steps.load(A, SH, Move.done()).load(B, SH, Move.done())
    >>> text = loads.tile(64, 64).to(Warpgroup).done().cuda()
    >>> [line.strip() for line in text.splitlines() if "__cluster_dims__" in line]
    ['extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(288)']
    """

    verb: ClassVar[str] = "cluster"
    applies_to: ClassVar[tuple[str, ...]] = ("tile",)
    usual: ClassVar[tuple[tuple[Any, ...], ...]] = ((2,), (1, 2), (2, 2), (4,), (1, 4), (3,))
    m: Integer = attrs.field(converter=_blocks)
    n: Integer = attrs.field(default=1, converter=_blocks)

    @property
    def idle(self) -> bool:
        return bool(self.m == self.n == 1)

    def plan(self, plan: Any) -> Any:
        sizes = tuple(chosen(size, "cluster", 1, MOST) for size in (self.m, self.n))
        if sizes[0] * sizes[1] > MOST:
            raise DecompositionError(f"cluster({self.m}, {self.n}): a cluster has at most {MOST} blocks", got=sizes[0] * sizes[1])
        return plan.with_grouping(Clustered(sizes))


__all__ = ["Cluster"]
