"""Prefetch of epilogue vectors before the main loop: `prefetch_epilogue` on an epilog."""

from __future__ import annotations

from typing import Any, ClassVar

import attrs

from fireiron.errors import ArgumentError, call_site
from fireiron.frozen import frozen
from fireiron.language.tree import Refinement


@frozen
class PrefetchEpilogue(Refinement):
    """Copy vectors that an epilogue reads, such as `bias[n]` or `scale[m]`, to shared memory before the main loop.

    The copies are in flight while the MMAs run, so the epilogue does not wait for them. In a kernel with `warp_specialize`, the producer
    loads them by TMA, in a persistent block during the previous tile. In other kernels, all threads copy them. Legal on an epilog; it has
    no effect if the epilogue reads no such vector. `MatMul.fuse_epilogue` adds it to a strategy with `warp_specialize` unless the strategy
    specifies `prefetch_epilogue(enable=False)`.
    rewrite: acc = sum(A B); C = f(acc, bias) --> bias_sh = bias; acc = sum(A B); C = f(acc, bias_sh)

    Source: docs/epilogues.md.

    >>> from fireiron import *
    >>> types = {"dtype": float16, "c_dtype": float16, "A": RowMajor, "B": RowMajor, "C": RowMajor}
    >>> tiles = MatMul(512, 512, 512, **types)(GL, GL, GL)(Kernel).tile(128, 64).to(Block).epilog(RF, float32).prefetch_epilogue()
    >>> steps = tiles.split(64).pipeline(3).warp_specialize().load(A, SH, Move.done()).load(B, SH, Move.done())
    >>> text = steps.tile(64, 64).to(Warpgroup).done().fuse_epilogue("relu(acc + bias[n])").cuda()
    >>> [line.strip() for line in text.splitlines() if "tma_load_1d(b" in line]
    ['tma_load_1d(bias_sh_address, &bias_map, block_n * 64, bias_sh_ring_full);']
    """

    verb: ClassVar[str] = "prefetch_epilogue"
    applies_to: ClassVar[tuple[str, ...]] = ("epilog",)
    usual: ClassVar[tuple[tuple[Any, ...], ...]] = ((), (False,))
    enable: bool = attrs.field(default=True)

    @enable.validator
    def _is_bool(self, _field: Any, value: Any) -> None:
        if not isinstance(value, bool):
            raise ArgumentError("prefetch_epilogue: enable must be True or False", got=value, at=call_site())

    def plan(self, plan: Any) -> Any:
        return attrs.evolve(plan, prefetch=self.enable)


__all__ = ["PrefetchEpilogue"]
