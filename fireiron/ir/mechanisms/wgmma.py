"""Products of a warpgroup, whose groups are waited for (PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions")."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from fireiron.ir.accumulators import copied_in
from fireiron.ir.mechanism import Mechanism, Order
from fireiron.ir.text import Function, Item, Printer
from fireiron.values.machine import DType, float32

if TYPE_CHECKING:
    from fireiron.ir.statement import Exec

FENCE = Function(
    "wgmma_fence",
    (),
    ('asm volatile("wgmma.fence.sync.aligned;" ::: "memory");',),
    "what this thread did to its registers comes before the products that follow",
)

COMMIT = Function(
    "wgmma_commit",
    (),
    ('asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");',),
    "the products since the last commit become a group",
)

WAIT = Function(
    "wgmma_wait",
    (),
    ('asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(groups) : "memory");',),
    "all but the last so many groups of products are done",
    "int groups",
)


@functools.cache
def hold(kind: DType, copied: bool = False) -> Function:
    """The function that takes registers of a type as they are at its place, so that no use of them moves in front of it.

    Those that were `copied` there from memory, it computes: ptxas moves conversions and choices behind an empty `asm`, but neither a sum
    with -0 nor a permutation of bytes, which change nothing.
    """
    words, letter = ("values", "f") if kind == float32 else ("reinterpret_cast<unsigned*>(values)", "r")
    last = "count" if kind.bytes == 4 else f"count / {4 // kind.bytes}"
    computed = "__fadd_rn({}, -0.0f)" if kind == float32 else "__byte_perm({}, 0, 0x3210)"
    loop, word = f"for (int word = 0; word < {last}; ++word)", f"{words}[word]"
    held = f'  asm volatile("" : "+{letter}"({word}) :: "memory");'
    body = (f"{loop} {{", f"  {word} = {computed.format(word)};", held, "}") if copied else (loop, held)
    waited = "registers that products wrote are used behind the wait for them"
    note = "registers are filled before products add to them" if copied else waited
    return Function("hold_copied" if copied else "hold", (f"{kind.cuda} (&values)[count]",), ("#pragma unroll", *body), note, "int count")


class WgmmaGroups(Mechanism):
    """A product is done at a wait of its warpgroup for its group: until then its factors are read, and its registers are not touched."""

    name: ClassVar[str] = "wgmma_group"
    order: ClassVar[Order] = Order.GROUPS
    reads_late: ClassVar[bool] = True
    by_engine: ClassVar[bool] = True
    in_registers: ClassVar[bool] = True
    shared_wait: ClassVar[bool] = True
    rank: ClassVar[int] = 2
    what: ClassVar[str] = "products"
    unit: ClassVar[str] = "each warpgroup"
    instruction: ClassVar[str] = "wgmma"
    done: ClassVar[str] = "been read"
    under_way: ClassVar[str] = "products of"
    committing: ClassVar[Function] = COMMIT
    waiting: ClassVar[Function] = WAIT

    def wait(self, printer: Printer, groups: int, reason: str, holds: Sequence[str], of: Exec) -> Sequence[Item]:
        waited = super().wait(printer, groups, reason, holds, of)
        return [*waited, *(f"{printer.function(hold(_result(of)))}({name});" for name in holds)]

    def fence(self, printer: Printer, holds: Sequence[str], of: Exec) -> Sequence[Item]:
        held = [f"{printer.function(hold(_result(of), copied=True))}({name});" for name in holds]
        return [*held, f"{printer.function(FENCE)}();"]

    def held(self, printer: Printer, holds: Sequence[str], of: Exec) -> Sequence[Item]:
        copied = copied_in(printer.kernel)
        return [f"{printer.function(hold(_result(of), name in copied))}({name});" for name in holds]


def _result(product: Exec) -> DType:
    """The type of a product's accumulators."""
    return product.spec.operands["C"].dtype


MECHANISM = WGMMA_GROUPS = WgmmaGroups()
