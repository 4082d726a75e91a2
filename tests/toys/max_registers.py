"""A kernel effect: the maximum number of registers per thread (`__maxnreg__`, CUDA C++ Programming Guide, "Maximum Number of Registers per
Thread").
"""

import attrs

from fireiron.ir.effect import Effect


@attrs.frozen
class MaxRegisters(Effect):
    """The compiler uses at most `count` registers; 0: no limit."""

    count: int = 0

    def qualifiers(self, kernel):
        return (f"__maxnreg__({self.count})",)

    def problems(self, kernel):
        private = sum(-(-buffer.bytes // 4) for buffer in kernel.buffers if buffer.memory.private)
        return (f"max_registers({self.count}): buffers alone take {private} registers",) if private > self.count else ()
