"""Software-pipelined loads: `pipeline` on a split."""

from __future__ import annotations

from typing import Any, ClassVar

import attrs

from fireiron.errors import DecompositionError, call_site
from fireiron.frozen import frozen
from fireiron.ir.asks.pipelined import Pipelined
from fireiron.language.tree import Refinement, verb
from fireiron.language.tunable import Integer, chosen, count, integral

MOST = 16
"""Maximum number of stages. Each stage holds one copy of all buffers of the loop."""


def _stages(value: Any) -> Any:
    return integral(value, "pipeline")


@frozen
class Pipeline(Refinement):
    """Issue the loads directly under the split `stages - 1` iterations ahead, into `stages` buffers each.

    Legal from 1 to 16 stages if at least one load is under the split; the number may be a tunable. Loads to shared memory become
    asynchronous copies if the target supports them and the width allows it. Loads to registers are prefetched one iteration ahead;
    inside a pipelined split, also across its iterations. With `interleave`, the copies are issued between the MMAs of the inner split; this
    needs at least 2 stages.
    rewrite: for k: load(k); S(k) --> load(0) ... load(stages-2); for k: { load(k+stages-1); S(k) }

    Source: decision 10.

    >>> from fireiron import *
    >>> blocks = MatMul(64, 64, 64)(GL, GL, GL)(Kernel).tile(32, 32).to(Block)
    >>> loads = blocks.split(8).pipeline(3).load(A, SH).load(B, SH)
    >>> text = loads.tile(4, 4).to(Thread).tile(1, 1).split(1).done().cuda()
    >>> for line in text.splitlines():
    ...     if "__shared__" in line:
    ...         print(line.strip())
    __shared__ __align__(16) float a_sh[768];  // 32 x 8, 3 stages
    __shared__ __align__(16) float b_sh[768];  // 8 x 32, 3 stages
    """

    applies_to: ClassVar[tuple[str, ...]] = ("split",)
    usual: ClassVar[tuple[tuple[Any, ...], ...]] = ((1,), (2,), (3,), (4,), (5,), (2, True), (3, True), (4, True))
    stages: Any = attrs.field(converter=_stages)
    interleave: bool = False

    def __attrs_post_init__(self) -> None:
        if not isinstance(self.interleave, bool):
            raise DecompositionError("pipeline: interleave must be True or False", got=self.interleave, at=call_site())

    def plan(self, plan: Any) -> Any:
        stages = chosen(self.stages, "pipeline", 1, MOST)
        if self.interleave and stages == 1:
            raise DecompositionError(
                "pipeline(1, interleave=True): with one stage, no copy runs ahead, so none can be interleaved", legal=f"2 ... {MOST} stages"
            )
        return plan.with_asks(Pipelined(stages, self.interleave))

    def __str__(self) -> str:
        return f"pipeline({self.stages}{', interleave=True' if self.interleave else ''})"


@verb()
def pipeline(stages: Integer, interleave: bool = False) -> Pipeline:
    """Issue the loads directly under the split `stages - 1` iterations ahead, into `stages` buffers each.

    Args: stages: 1 to 16, or a tunable; interleave: issue the copies between the MMAs of the inner split instead of all at once. Legal if
    at least one load is under the split.
    rewrite: for k: load(k); S(k) --> load(0) ... load(stages-2); for k: { load(k+stages-1); S(k) }
    """
    return Pipeline(count(stages, "pipeline"), interleave)


__all__ = ["Pipeline"]
