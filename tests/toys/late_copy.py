"""The instruction that copies by `LateCopies`: an element of 4 bytes from global to shared memory by one thread."""

from typing import ClassVar

import attrs
import making

from fireiron.ir import Mechanism
from fireiron.ir.text import Function
from fireiron.language.tree import Executable, Mismatch, execution
from fireiron.values.document import called
from toys.late_copies import LATE

BODY = 'asm volatile("{ .reg .f32 word; ld.global.f32 word, [%1]; st.shared.f32 [%0], word; }" :: "r"(target), "l"(source) : "memory");'

COPY = Function("late_copy", ("unsigned target", "const void* source"), (BODY,), "an element, which is there late")


@attrs.frozen
class LateCopy(Executable):
    """`Move(1,1)(GL -> SH)(Thread)` of float32."""

    mechanism: ClassVar[Mechanism] = LATE

    def mismatches(self, spec, architecture):
        fits = spec.copies and spec.level.threads == 1 and spec.src.memory.of_grid and spec.dst.memory.of_block
        return () if fits and set(map(str, spec.sizes)) == {"1"} else (Mismatch("spec", "Move(1,1)(GL -> SH)(Thread)", str(spec)),)

    def emit(self, spec, draft):
        return (attrs.evolve(execution(self, spec, draft), mechanism=self.mechanism), making.commit(self.mechanism))

    def cuda(self, printer, statement):
        (copy,) = printer.copies(statement)
        assert copy.condition is None
        return [called(printer.function(COPY), copy.target, copy.source)]
