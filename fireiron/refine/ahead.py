"""The vectors of an epilogue are fetched in front of the product: `ahead` on an epilog."""

from __future__ import annotations

from typing import Any, ClassVar

import attrs

from fireiron.errors import ArgumentError, call_site
from fireiron.language.tree import Refinement


@attrs.frozen
class Ahead(Refinement):
    """Vectors that an epilogue reads, such as `bias[n]` or `scale[m]`, are copied to shared memory in front of the product.

    Nobody waits for them behind it: they are on their way while the products run.
    In a kernel with `specialize` the producer fetches it by TMA, for a persistent block while the tile before is computed; else all threads
    copy it. Legal on an epilog; where nothing of the kind is read it changes nothing. `MatMul.epilogue` takes it by itself for a strategy
    with `specialize`, unless the strategy says `ahead(fetched=False)`.
    rewrite: acc = sum(A B); C = f(acc, bias) --> bias_sh = bias; acc = sum(A B); C = f(acc, bias_sh)

    Source: docs/epilogues.md.

    >>> from fireiron import *
    >>> halves = {"dtype": float16, "c_dtype": float16, "A": RowMajor, "B": RowMajor, "C": RowMajor}
    >>> blocks = MatMul(512, 512, 512, **halves)(GL, GL, GL)(Kernel).tile(128, 64).to(Block).epilog(RF, float32).ahead()
    >>> turns = blocks.split(64).pipeline(3).specialize().load(A, SH, Move.done()).load(B, SH, Move.done())
    >>> text = turns.tile(64, 64).to(Warpgroup).done().epilogue("relu(acc + bias[n])").cuda()
    >>> [line.strip() for line in text.splitlines() if "tma_load_1d(b" in line]
    ['tma_load_1d(bias_sh_address, &bias_map, block_n * 64, bias_sh_ring_full);']
    """

    verb: ClassVar[str] = "ahead"
    applies_to: ClassVar[tuple[str, ...]] = ("epilog",)
    usual: ClassVar[tuple[tuple[Any, ...], ...]] = ((), (False,))
    fetched: bool = attrs.field(default=True)

    @fetched.validator
    def _is_bool(self, _field: Any, value: Any) -> None:
        if not isinstance(value, bool):
            raise ArgumentError("ahead: True or False", got=value, at=call_site())

    def plan(self, plan: Any) -> Any:
        return attrs.evolve(plan, ahead=self.fetched)


__all__ = ["Ahead"]
