"""Copy in the launch that reads the copy, or add sums of GPUs in the launch that computes them: `overlap`."""

from __future__ import annotations

from typing import Any, ClassVar

import attrs

from fireiron.frozen import frozen
from fireiron.language.launching import OverlapPlan
from fireiron.language.tree import Refinement, verb
from fireiron.language.tunable import Integer, chosen, integral

MOST = 1 << 20
"""Maximum number of rows or columns of a region."""

WARPS, MOST_WARPS = 1, 8
"""The default and the maximum number of copying warps: with 8 kB in flight, one per block keeps NVLink busy."""


def _size(value: Any) -> Any:
    return integral(value, "overlap")


@frozen
class Overlap(Refinement):
    """Copy in the launch that reads the copy, by additional warps of its blocks, instead of a separate launch before it.

    Readers wait for a region of `rows` x `columns` elements at their first load from it. A block has `warps` copying warps, which copy the
    part of their GPU to the others, and count there the copies of each region. So the copy overlaps with the computation. The part of the
    own GPU is read in place, and first. Legal on a load to GL, if the sizes are constants, regions divide the part of a GPU and are
    multiples of the tiles that a producer loads (`warp_specialize`), and all blocks are resident at once (`persistent`).
    rewrite: launch 1: A' = A; launch 2: S(A') --> one launch: copying warps: A' = A; others: wait for regions; S(A')

    On `to_gpus` of a reduction dimension, blocks store tiles of sums on the GPU that stores these rows of the result. Its `warps` wait for
    the tiles of all GPUs in a region, and add them in the order of GPUs, in the same launch. If C is complete on each GPU, blocks store
    tiles on all GPUs. Legal if C is row-major and distributed over rows, if at all, and warpgroups store tiles by TMA.
    rewrite: launch 1: P = S; launch 2: C = sum of P --> one launch: S stores P on its owner; adding warps: wait for regions; C = sum of P

    Source: decisions 117, 121, 131 and 140.

    >>> from fireiron import *
    >>> from fireiron.strategies import hopper
    >>> over = {"A": RowMajor.over(GPU, "m"), "B": RowMajor.over(GPU, "n"), "C": RowMajor.over(GPU, "n")}
    >>> product = MatMul(512, 512, 1024, dtype=float16, c_dtype=float16, **over)(GL, GL, GL)(Node(2))
    >>> text = MatMul.to_gpus("n").load("A", GL).overlap(128, 512).then(hopper.strategy)(product).cuda("sm_90a")
    >>> [line.split(", ")[1] for line in text.splitlines() if " await_copies(workspace" in line]
    ['16']
    """

    applies_to: ClassVar[tuple[str, ...]] = ("load", "to_gpus")
    usual: ClassVar[tuple[tuple[Any, ...], ...]] = ((128, 512),)
    rows: Any = attrs.field(converter=_size)
    columns: Any = attrs.field(converter=_size)
    warps: Any = attrs.field(converter=_size, default=WARPS)

    def plan(self, plan: Any) -> Any:
        tile = (chosen(self.rows, "overlap", 1, MOST), chosen(self.columns, "overlap", 1, MOST))
        return attrs.evolve(plan, overlap=OverlapPlan(tile, chosen(self.warps, "overlap", 1, MOST_WARPS)))

    def __str__(self) -> str:
        warps = f", warps={self.warps}" if self.warps != WARPS else ""
        return f"overlap({self.rows}, {self.columns}{warps})"


@verb()
def overlap(rows: Integer, columns: Integer, warps: Integer = WARPS) -> Overlap:
    """Copy in the launch that reads the copy, by additional warps; readers wait for regions of `rows` x `columns` elements.

    On `to_gpus("k")`, additional warps add the sums of all GPUs in the launch that computes them. Legal on a load to GL and on `to_gpus` of
    a reduction dimension, with constant sizes, in a kernel with a producer whose blocks are all resident.
    rewrite: launch 1: A' = A; launch 2: S(A') --> one launch: copying warps: A' = A; others: wait for regions; S(A')

    Args:
        rows, columns: the sizes of a region, multiples of a tile that the producer loads, or that warpgroups store.
        warps: the number of copying or adding warps of a block.
    """
    return Overlap(rows, columns, warps)


EXAMPLES = (Overlap(128, 512),)
"""Examples of the class, which has no default arguments."""

__all__ = ["Overlap"]
