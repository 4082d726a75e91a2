"""Blocks that are launched together and share what they load: `cluster` on a tile dealt to Block (Hopper)."""

from __future__ import annotations

from typing import Any, ClassVar

import attrs

from fireiron.errors import DecompositionError
from fireiron.language.clusters import Clustered
from fireiron.language.tree import Refinement
from fireiron.language.tunable import Integer, chosen, integral

MOST = 16
"""Most blocks of a cluster; more than 8 are not portable, and a launch must allow them (CUDA C++ Programming Guide)."""


def _blocks(value: Any) -> Any:
    return integral(value, "cluster")


@attrs.frozen
class Cluster(Refinement):
    """Neighbouring tiles, `m` x `n` of them, go to blocks that run at the same time and load for each other what they have in common.

    Of what TMA loads into a ring, and is the same for several blocks of a cluster, each of these loads a part and sends it to all
    (multicast). Barriers and arrivals across blocks are inferred. Legal on a tile of two dimensions that is dealt to Block, for at most
    16 blocks, on sm_90a, where a producer loads (`warp_specialize`) and some load is shared; tunables may stand for the numbers. Where
    tiles are no multiple, clusters overhang: some blocks have a tile outside.
    rewrite: block u: tile u --> blocks k * u ... k * u + k - 1: the k = m * n tiles of cluster u

    Source: decision 28.

    >>> from fireiron import *
    >>> halves = {"dtype": float16, "c_dtype": float16, "A": RowMajor, "B": RowMajor, "C": RowMajor}
    >>> blocks = MatMul(512, 512, 512, **halves)(GL, GL, GL)(Kernel).tile(128, 64).to(Block).cluster(2)
    >>> turns = blocks.epilog(RF, float32).split(64).pipeline(3).warp_specialize()
    >>> loads = turns.load(A, SH, Move.done()).load(B, SH, Move.done())
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
        sizes = tuple(chosen(one, "cluster", 1, MOST) for one in (self.m, self.n))
        if sizes[0] * sizes[1] > MOST:
            raise DecompositionError(f"cluster({self.m}, {self.n}): a cluster has at most {MOST} blocks", got=sizes[0] * sizes[1])
        return plan.together(Clustered(sizes))


__all__ = ["Cluster"]
