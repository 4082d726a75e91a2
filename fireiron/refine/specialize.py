"""The loads of a pipelined split are issued by threads of their own: `specialize` on a split."""

from __future__ import annotations

from typing import Any, ClassVar

import attrs

from fireiron.errors import DecompositionError, call_site
from fireiron.ir.asks.produced import Produced
from fireiron.language.tree import Refinement, verb
from fireiron.language.tunable import Integer, chosen, count, integral

PRODUCERS = (32, 128)
"""A warp; or a warpgroup, which is what may give registers away (PTX ISA, setmaxnreg)."""


def _threads(value: Any) -> Any:
    return integral(value, "specialize")


@attrs.frozen
class Specialize(Refinement):
    """The loads under a pipelined split are issued by producer threads, all other work is done by the others, who consume.

    Stages become a ring: a producer fills each as soon as its consumers have emptied it (barriers in memory, Hopper). `threads` are those
    of the producer: a warp (32), or a warpgroup (128), whose registers then go to the consumers.
    Where TMA does none of the loads, or not all of them, all threads copy, and there is no producer. With `copies` the producer copies what
    TMA does not load, by cp.async where the width allows it, and TMA, if it loads anything, has a warp of its own.
    Legal on a split with `pipeline`; with `copies`, outside of clusters, and of tiles or products that are taken in turns.
    rewrite: for k: load(k); S(k) --> producer: for k: wait empty; load(k)   consumers: for k: wait full; S(k); say empty

    Source: decisions 27, 81.

    >>> from fireiron import *
    >>> halves = {"dtype": float16, "c_dtype": float16, "A": RowMajor, "B": RowMajor, "C": RowMajor}
    >>> blocks = MatMul(512, 512, 512, **halves)(GL, GL, GL)(Kernel).tile(128, 64).to(Block)
    >>> turns = blocks.epilog(RF, float32).split(64).pipeline(3).specialize()
    >>> loads = turns.load(A, SH, Move.done()).load(B, SH, Move.done())
    >>> text = loads.tile(64, 64).to(Warpgroup).done().cuda()
    >>> for line in text.splitlines():
    ...     if "mbarrier_wait(k" in line:
    ...         print(line.strip())
    mbarrier_wait(k_ring_full + k_stage * 8, k_parity);  // a_sh, b_sh of this turn are full
    mbarrier_wait(k_ring_empty + k_stage2 * 8, k_parity2);  // a_sh, b_sh of this turn are empty
    """

    applies_to: ClassVar[tuple[str, ...]] = ("split",)
    usual: ClassVar[tuple[tuple[Any, ...], ...]] = tuple((threads,) for threads in PRODUCERS)
    threads: Any = attrs.field(default=32, converter=_threads)
    copies: bool = False

    def __attrs_post_init__(self) -> None:
        if not isinstance(self.copies, bool):
            raise DecompositionError("specialize: copies is True or False", got=self.copies, at=call_site())

    def plan(self, plan: Any) -> Any:
        threads = chosen(self.threads, "specialize", 32, 128)
        if threads not in PRODUCERS:
            raise DecompositionError("specialize: the producer is a warp or a warpgroup", got=threads, legal=PRODUCERS)
        return plan.asking(Produced(threads, self.copies))

    def __str__(self) -> str:
        said = ([] if self.threads == 32 else [str(self.threads)]) + (["copies=True"] if self.copies else [])
        return f"specialize({', '.join(said)})"


@verb()
def specialize(threads: Integer = 32, copies: bool = False) -> Specialize:
    """Have the loads under a pipelined split issued by producer threads of their own, a warp (32) or a warpgroup (128).

    A warpgroup gives its registers to the consumers. Without `copies` TMA does all of the loads, or there is no producer; with it the
    producer copies what TMA does not load. Legal with `pipeline`.
    rewrite: for k: load(k); S(k) --> producer: for k: wait empty; load(k)   consumers: for k: wait full; S(k); say empty
    """
    return Specialize(count(threads, "specialize"), copies)


__all__ = ["Specialize"]
