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

import attrs

from fireiron.ir import Exec
from fireiron.ir.text import Function, Item, Printer
from fireiron.language.tree import Executable, Mismatch
from fireiron.spec import Spec
from fireiron.specs.atomic_extremes import AtomicMax, AtomicMin
from fireiron.values.document import Joined, Text, called
from fireiron.values.expr import constant
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


@attrs.frozen
class ThreadAtomicExtreme(Executable):
    """`AtomicMax(1,1)` or `AtomicMin(1,1)` of one thread; `by` is `max` or `min`."""

    by: str = "max"
    each: ClassVar[bool] = True

    def performs(self) -> str:
        return f"Atomic{self.by.capitalize()}(1,1)(GL|SH|RF -> GL)(Thread), {' or '.join(map(str, EXTREME_TYPES))}"

    def mismatches(self, spec: Spec, architecture: Architecture) -> tuple[Mismatch, ...]:
        only = spec.definition.only
        if not spec.atomic or only is None or only.combiner != self.by:
            return (Mismatch("spec", f"Atomic{self.by.capitalize()}", spec.title),)
        mismatches = []
        if not spec.dst.memory.of_grid:
            mismatches.append(Mismatch("dst memory", "GL", spec.dst.memory.name))
        first = EXTREME_TYPES.get(spec.dst.dtype)
        if first is None:
            mismatches.append(Mismatch("dst type", " or ".join(map(str, EXTREME_TYPES)), str(spec.dst.dtype)))
        elif architecture.capability < first:
            mismatches.append(Mismatch("target", f"sm_{first} or newer", architecture.name))
        if spec.level.threads != 1:
            mismatches.append(Mismatch("level", "Thread", spec.level.name))
        if any(constant(size) != 1 for size in spec.sizes):
            mismatches.append(Mismatch("shape", "1x1", "x".join(map(str, spec.sizes))))
        if spec.src.memory.fragment is not None:
            mismatches.append(Mismatch("src memory", "GL SH RF", spec.src.memory.name))
        return tuple(mismatches)

    def cuda(self, printer: Printer, statement: Exec) -> Sequence[Item]:
        source, target = (view.dtype for view in statement.spec.operands.values())
        function = printer.function(FLOAT_FUNCTIONS[self.by]) if target == float32 else INTRINSICS[self.by][0]

        def line(value: Text, place: Text) -> Text:
            return called(function, Joined(("&", place)), printer.converted(value, source, target))

        return printer.each(statement, line)


ATOMIC_MAX, ATOMIC_MIN = (ThreadAtomicExtreme(f"Atomic{by.capitalize()}", by) for by in INTRINSICS)

INSTRUCTIONS: tuple[Executable, ...] = (ATOMIC_MAX, ATOMIC_MIN)

EXAMPLES = (AtomicMax(1, 1)(RF, GL)(Thread), AtomicMin(1, 1)(RF, GL)(Thread))

__all__ = ["ThreadAtomicExtreme"]
