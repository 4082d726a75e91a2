"""Asynchronous MMAs of a warpgroup, which complete by groups (PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions")."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from fireiron.ir import execs
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
    "order register accesses of this warpgroup before the wgmma that follow",
)

COMMIT = Function(
    "wgmma_commit_group",
    (),
    ('asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");',),
    "commit the wgmma of this warpgroup as a group",
)

WAIT = Function(
    "wgmma_wait_group",
    (),
    ('asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(N) : "memory");',),
    "wait until at most N wgmma groups are pending",
    "int N",
)


@functools.cache
def pin_function(kind: DType, copied: bool = False) -> Function:
    """The function that pins registers of a type: the compiler moves no use of them before its call.

    `copied` registers were loaded from memory. ptxas moves conversions and selects past an empty `asm`. So the function computes these
    registers by an operation that does not change them: adding -0, or a byte permutation.
    """
    words, letter = ("values", "f") if kind == float32 else ("reinterpret_cast<unsigned*>(values)", "r")
    last = "count" if kind.bytes == 4 else f"count / {4 // kind.bytes}"
    computed = "__fadd_rn({}, -0.0f)" if kind == float32 else "__byte_perm({}, 0, 0x3210)"
    loop, word = f"for (int word = 0; word < {last}; ++word)", f"{words}[word]"
    pin = f'  asm volatile("" : "+{letter}"({word}) :: "memory");'
    body = (f"{loop} {{", f"  {word} = {computed.format(word)};", pin, "}") if copied else (loop, pin)
    waited = "compiler barrier: read accumulators only after wgmma_wait_group"
    note = "compiler barrier: fill accumulators before wgmma adds to them" if copied else waited
    return Function(
        "pin_copied_registers" if copied else "pin_registers",
        (f"{kind.cuda} (&values)[count]",),
        ("#pragma unroll", *body),
        note,
        "int count",
    )


class WgmmaGroups(Mechanism):
    """An MMA completes when its warpgroup waits for its group; until then it reads its operands, and its registers must not be accessed."""

    name: ClassVar[str] = "wgmma_group"
    order: ClassVar[Order] = Order.GROUPS
    reads_late: ClassVar[bool] = True
    by_engine: ClassVar[bool] = True
    in_registers: ClassVar[bool] = True
    shared_wait: ClassVar[bool] = True
    rank: ClassVar[int] = 2
    what: ClassVar[str] = "MMAs"
    unit: ClassVar[str] = "each warpgroup"
    instruction: ClassVar[str] = "wgmma"
    done: ClassVar[str] = "been read"
    in_flight: ClassVar[str] = "MMAs of"
    committing: ClassVar[Function] = COMMIT
    waiting: ClassVar[Function] = WAIT

    def wait(self, printer: Printer, groups: int, reason: str, pinned_registers: Sequence[str], of: Exec) -> Sequence[Item]:
        waited = super().wait(printer, groups, reason, pinned_registers, of)
        return [*waited, *(f"{printer.function(pin_function(_accumulator_type(of)))}({name});" for name in pinned_registers)]

    def fence(self, printer: Printer, pinned_registers: Sequence[str], of: Exec) -> Sequence[Item]:
        pins = [f"{printer.function(_preparing(printer, name, of))}({name});" for name in pinned_registers]
        return [*pins, f"{printer.function(FENCE)}();"]

    def pin(self, printer: Printer, pinned_registers: Sequence[str], of: Exec) -> Sequence[Item]:
        copied = copied_in(printer.kernel)
        return [f"{printer.function(pin_function(_accumulator_type(of), name in copied))}({name});" for name in pinned_registers]


def _preparing(printer: Printer, name: str, mma: Exec) -> Function:
    """The function that an instruction states for its input registers; for accumulators, the one that pins them."""
    for stmt, _ in execs(printer.kernel.body):
        for operand, access in stmt.operands.items():
            if access.buffer == name and not access.write and (function := stmt.instruction.prepared(operand)) is not None:
                return function
    return pin_function(_accumulator_type(mma), copied=True)


def _accumulator_type(mma: Exec) -> DType:
    """The type of an MMA's accumulators."""
    return mma.spec.operands["C"].dtype


MECHANISM = WGMMA_GROUPS = WgmmaGroups()
