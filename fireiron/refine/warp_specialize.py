"""Dedicated producer threads for the loads of a pipelined split, and a dedicated warp for stores: `warp_specialize` on a split."""

from __future__ import annotations

from typing import Any, ClassVar

import attrs

from fireiron.errors import DecompositionError, call_site
from fireiron.frozen import frozen
from fireiron.ir.asks.producer_threads import ProducerThreads
from fireiron.ir.asks.storing import Storing
from fireiron.language.tree import Refinement, verb
from fireiron.language.tunable import Integer, chosen, count, integral
from fireiron.specs.operand import Operand, operand_name

PRODUCERS = (32, 128)
"""A warp; or a warpgroup, which may release registers (PTX ISA, setmaxnreg)."""

MOST_STORE_STAGES = 16
"""Maximum number of stages of a circular buffer whose tiles a warp stores."""


def _producer_threads(value: Any) -> Any:
    return integral(value, "warp_specialize")


def _store_stages(value: Any) -> Any:
    return integral(value, "warp_specialize")


def _separate(value: Any) -> tuple[str, ...]:
    names = tuple(map(operand_name, value if isinstance(value, (tuple, list)) else (value,)))
    if len(set(names)) < len(names):
        raise DecompositionError(
            "warp_specialize: `separate` must name each operand once", got=value, legal="warp_specialize(separate=B)", at=call_site()
        )
    return names


@frozen
class WarpSpecialize(Refinement):
    """Issue the loads under a pipelined split by producer threads; the other threads, the consumers, execute all other statements.

    The stages become a circular buffer: the producer fills a stage after its consumers have released it (mbarriers, Hopper). The producer
    is a warp (`producer_threads=32`) or a warpgroup (128), which gives registers to the consumers (setmaxnreg).

    - If TMA cannot do all of the loads, all threads copy, and there is no producer. With `copies`, the producer also executes loads
      that TMA cannot do, by cp.async if the width allows it. If TMA does some loads, a separate warp issues them.
    - The loads of each operand of `separate` have a separate producer: a warp for TMA, `producer_threads` for copies. Several producers may
      fill one circular buffer; none of them waits for the loads of another.
    - With `store_stages`, a storing warp issues the TMA stores of the kernel. Consumers write each tile to a stage of a circular buffer
      with `store_stages` stages, then continue, for example with the next tile of a persistent block. Without TMA stores, or without a
      producer, it has no effect, and a comment in the generated CUDA states the reason. A producer that loads by TMA is then a warp.

    Legal on a split with `pipeline`; with `copies`, `separate` or `store_stages`, without `pingpong` and `order_mma`; with `copies` or
    `separate`, also without clusters and dynamic tile scheduling.
    rewrite: for k: load(k); S(k) --> producer: for k: wait empty; load(k)   consumers: for k: wait full; S(k); release

    Source: decisions 27, 81, 84.

    >>> from fireiron import *
    >>> types = {"dtype": float16, "c_dtype": float16, "A": RowMajor, "B": RowMajor, "C": RowMajor}
    >>> blocks = MatMul(512, 512, 512, **types)(GL, GL, GL)(Kernel).tile(128, 64).to(Block)
    >>> steps = blocks.epilog(RF, float32).split(64).pipeline(3).warp_specialize()
    >>> loads = steps.load(A, SH, Move.done()).load(B, SH, Move.done())
    >>> text = loads.tile(64, 64).to(Warpgroup).done().cuda()
    >>> for line in text.splitlines():
    ...     if "mbarrier_wait(k" in line:
    ...         print(line.strip())
    mbarrier_wait(k_ring_full + k_stage * 8, k_phase);  // wait until a_sh, b_sh are full
    mbarrier_wait(k_ring_empty + k_stage * 8, k_phase);  // wait until a_sh, b_sh are empty
    """

    applies_to: ClassVar[tuple[str, ...]] = ("split",)
    usual: ClassVar[tuple[tuple[Any, ...], ...]] = tuple((threads,) for threads in PRODUCERS)
    producer_threads: Any = attrs.field(default=32, converter=_producer_threads)
    copies: bool = False
    separate: tuple[str, ...] = attrs.field(default=(), converter=_separate)
    store_stages: Any = attrs.field(default=0, converter=_store_stages)

    def __attrs_post_init__(self) -> None:
        if not isinstance(self.copies, bool):
            raise DecompositionError("warp_specialize: copies must be True or False", got=self.copies, at=call_site())

    def plan(self, plan: Any) -> Any:
        threads = chosen(self.producer_threads, "warp_specialize", 32, 128)
        if threads not in PRODUCERS:
            raise DecompositionError("warp_specialize: the producer must be a warp or a warpgroup", got=threads, legal=PRODUCERS)
        stages = chosen(self.store_stages, "warp_specialize: store_stages", 0, MOST_STORE_STAGES)
        requests = plan.with_asks(ProducerThreads(threads, self.copies, self.separate))
        return requests.with_asks(Storing(stages)) if stages else requests

    def __str__(self) -> str:
        arguments = [str(self.producer_threads)] if self.producer_threads != 32 else []
        arguments += ["copies=True"] if self.copies else []
        names = ", ".join(repr(Operand(name)) for name in self.separate)
        arguments += [f"separate={names if len(self.separate) == 1 else f'({names})'}"] if names else []
        arguments += [f"store_stages={self.store_stages}"] if self.store_stages != 0 else []
        return f"warp_specialize({', '.join(arguments)})"


@verb()
def warp_specialize(
    producer_threads: Integer = 32,
    copies: bool = False,
    separate: Operand | str | tuple[Operand | str, ...] = (),
    store_stages: Integer = 0,
) -> WarpSpecialize:
    """Issue the loads under a pipelined split by dedicated producer threads, a warp (32) or a warpgroup (128).

    A producer warpgroup gives registers to the consumers. Without `copies`, there is a producer only if TMA can do all of the loads. With
    `copies`, the producer also executes loads that TMA cannot do. Legal with `pipeline`.

    Args: separate: operands whose loads have a separate producer each: `warp_specialize(separate=B)`. store_stages: if not 0, a separate
    warp issues the TMA stores, from a circular buffer with this number of stages, which consumers fill.
    rewrite: for k: load(k); S(k) --> producer: for k: wait empty; load(k)   consumers: for k: wait full; S(k); release
    """
    stages = count(store_stages, "warp_specialize: store_stages", 0, MOST_STORE_STAGES)
    return WarpSpecialize(count(producer_threads, "warp_specialize"), copies, separate, stages)


__all__ = ["WarpSpecialize"]
