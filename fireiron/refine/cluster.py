"""Blocks that are launched together and share what they load: `cluster` on a tile dealt to Block (Hopper)."""

from __future__ import annotations

from typing import Any, ClassVar

import attrs

from fireiron.errors import DecompositionError
from fireiron.language.tree import Refinement
from fireiron.language.tunable import chosen, integral

MOST = 16
"""The most blocks of a cluster; more than 8 are not portable, and a launch has to allow them (CUDA C++ Programming Guide)."""


def _blocks(value: Any) -> Any:
    return integral(value, "cluster")


@attrs.frozen
class Cluster(Refinement):
    """Neighbouring tiles, `m` x `n` of them, go to blocks that run at the same time and load for each other what they have in common.

    Of what TMA loads into a ring, and is the same for several blocks of a cluster, each of these loads a part and sends it to all
    (multicast). Barriers and arrivals across blocks are inferred. Legal on a tile of two dimensions that is dealt to Block, for at most
    16 blocks, on sm_90a, where a producer loads (`specialize`) and some load is shared; tunables may stand for the numbers. Where
    tiles are no multiple, clusters overhang: some blocks have a tile outside.
    rewrite: block u: tile u --> blocks k * u ... k * u + k - 1: the k = m * n tiles of cluster u
    """

    verb: ClassVar[str] = "cluster"
    applies_to: ClassVar[tuple[str, ...]] = ("tile",)
    m: Any = attrs.field(converter=_blocks)
    n: Any = attrs.field(default=1, converter=_blocks)

    @property
    def idle(self) -> bool:
        return bool(self.m == self.n == 1)

    def plan(self, plan: Any) -> Any:
        sizes = tuple(chosen(one, "cluster", 1, MOST) for one in (self.m, self.n))
        if sizes[0] * sizes[1] > MOST:
            raise DecompositionError(f"cluster({self.m}, {self.n}): a cluster has at most {MOST} blocks", got=sizes[0] * sizes[1])
        return attrs.evolve(plan, cluster=sizes)


__all__ = ["Cluster"]
