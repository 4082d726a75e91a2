"""Atomic maximum and minimum in global memory (CUDA C++ Programming Guide, "atomicMax()", "atomicMin()").

There is no instruction for float32. The bits of floats that are not negative have the order of signed integers, and the bits of negative
floats have the opposite order of unsigned integers, in which they are larger than all others. So an integer maximum or minimum, chosen by
the sign of the value, computes the result for any present value other than NaN. NaN has no effect, as in `fmaxf`.

>>> from fireiron import *
>>> leaf = AtomicMax(1, 1)(RF, GL)(Thread)
>>> [instruction.name for instruction in INSTRUCTIONS if not instruction.mismatches(leaf, ARCHITECTURES[-1])]
['AtomicMax']
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Final

from fireiron.frozen import frozen
from fireiron.ir import Exec
from fireiron.ir.text import Function, Item, Printer
from fireiron.language.tree import Executable, Mismatch
from fireiron.performing.atomics import atomic_mismatches, atomic_text
from fireiron.spec import Spec
from fireiron.specs.atomic_extremes import AtomicMax, AtomicMin
from fireiron.values.machine import GL, RF, Architecture, DType, Thread, float32, int32

EXTREME_TYPES: Final[Mapping[DType, int]] = {float32: 50, int32: 50}
"""Element types of atomic maximum and minimum, and the first compute capability with each."""

INTRINSICS: Final[Mapping[str, tuple[str, str]]] = {"max": ("atomicMax", "atomicMin"), "min": ("atomicMin", "atomicMax")}
"""The functions for integers: for floats that are not negative, and for negative ones."""


def _float_function(by: str) -> Function:
    positive, negative = INTRINSICS[by]
    body = (
        "if (value != value)",
        "  return;",
        "if (__float_as_int(value) >= 0)",
        f"  {positive}(reinterpret_cast<int*>(place), __float_as_int(value));",
        "else",
        f"  {negative}(reinterpret_cast<unsigned*>(place), __float_as_uint(value));",
    )
    note = f"{by}imum of a float in memory and a value, by the order of their bits; NaN has no effect"
    return Function(f"atomic_{by}", ("float* place", "float value"), body, note)


FLOAT_FUNCTIONS: Final[Mapping[str, Function]] = {by: _float_function(by) for by in INTRINSICS}
"""The functions for float32."""


@frozen
class ThreadAtomicExtreme(Executable):
    """`AtomicMax(1,1)` or `AtomicMin(1,1)` of one thread; `by` is `max` or `min`."""

    by: str = "max"
    each: ClassVar[bool] = True

    def performs(self) -> str:
        return f"Atomic{self.by.capitalize()}(1,1)(GL|SH|RF -> GL)(Thread), {' or '.join(map(str, EXTREME_TYPES))}"

    def may_perform(self, spec: Spec) -> bool:
        return spec.atomic

    def mismatches(self, spec: Spec, architecture: Architecture) -> tuple[Mismatch, ...]:
        return atomic_mismatches(spec, architecture, self.by, EXTREME_TYPES)

    def cuda(self, printer: Printer, statement: Exec) -> Sequence[Item]:
        is_float = statement.spec.dst.dtype == float32
        return atomic_text(printer, statement, printer.function(FLOAT_FUNCTIONS[self.by]) if is_float else INTRINSICS[self.by][0])


ATOMIC_MAX, ATOMIC_MIN = (ThreadAtomicExtreme(f"Atomic{by.capitalize()}", by) for by in INTRINSICS)

INSTRUCTIONS: tuple[Executable, ...] = (ATOMIC_MAX, ATOMIC_MIN)

EXAMPLES: tuple[Spec, ...] = (AtomicMax(1, 1)(RF, GL)(Thread), AtomicMin(1, 1)(RF, GL)(Thread))

__all__ = ["ThreadAtomicExtreme"]
