"""XOR swizzle of a buffer's addresses, against bank conflicts: `swizzle_storage` on a load or a `set_memory`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import attrs

from fireiron.errors import DecompositionError, call_site
from fireiron.frozen import frozen
from fireiron.language.tree import Context, Decomposition, Refinement
from fireiron.spec import Spec
from fireiron.values.layout import Swizzle


@frozen
class SwizzleStorage(Refinement):
    """XOR the addresses in the new buffer as the swizzle specifies, against bank conflicts.

    Legal for every `Swizzle`; the size of the buffer is rounded up to a multiple of its period. The default depends on the leading
    dimension of the buffer, so that 16-byte pieces of adjacent rows (columns) are in different banks.
    rewrite: A_sh[i] --> A_sh[swizzle(i)]

    Source: CUDA C++ Programming Guide, "Shared Memory".

    >>> from fireiron import *
    >>> blocks = MatMul(64, 64, 64)(GL, GL, GL)(Kernel).tile(32, 32).to(Block)
    >>> loads = blocks.split(8).load(A, SH).swizzle_storage(Swizzle(2, 0, 3)).load(B, SH)
    >>> text = loads.tile(4, 4).to(Thread).tile(1, 1).split(1).done().cuda()
    >>> [line.strip() for line in text.splitlines() if "int a_sh_swizzle" in line]
    ['const int a_sh_swizzle = thread_m % 4;', 'const int a_sh_swizzle2 = thread_m / 2;']
    """

    verb: ClassVar[str] = "swizzle_storage"
    applies_to: ClassVar[tuple[str, ...]] = ("load", "set_memory")
    swizzle: Swizzle | None = None

    def __attrs_post_init__(self) -> None:
        if self.swizzle is not None and not isinstance(self.swizzle, Swizzle):
            raise DecompositionError(
                "swizzle_storage: the argument is not a Swizzle", got=self.swizzle, legal="Swizzle(bits, base, shift)", at=call_site()
            )

    @classmethod
    def choices(cls, step: Decomposition, spec: Spec, context: Context) -> Iterator[SwizzleStorage]:
        yield SwizzleStorage()
        yield from (SwizzleStorage(Swizzle(*numbers)) for numbers in ((1, 0, 3), (2, 0, 3), (2, 2, 3), (3, 3, 3)))

    def plan(self, plan: Any) -> Any:
        return attrs.evolve(plan, swizzle=self.swizzle or by_rows)

    def __str__(self) -> str:
        return f"swizzle_storage({'' if self.swizzle is None else repr(self.swizzle)})"


PIECE = 4
"""log2 of 16, the bytes of a piece that stays contiguous."""

LINE = 7
"""log2 of 128, the bytes of one line of all banks."""


def by_rows(leading: int, element: int) -> Swizzle | None:
    """Return the swizzle of a buffer whose rows start `leading` elements of `element` bytes apart; None if no swizzle helps.

    The number of a 16-byte piece is XORed with the row number, for eight rows that start in the same bank. Rows shorter than 128 bytes
    share a line, so fewer rows collide, and fewer bits are needed. The result is None if pieces cannot collide, or do not divide a row.
    """
    size = leading * element
    row = (size & -size).bit_length() - 1
    bits, source = min(3, row - PIECE), max(row, LINE)
    unit = element.bit_length() - 1
    return Swizzle(bits, PIECE - unit, source - PIECE) if bits > 0 else None


__all__ = ["SwizzleStorage"]
