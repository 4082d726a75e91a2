"""mma.sync for 8-bit operands that are converted to 16 bits in registers: lanes have adjacent bytes, because k or n is interleaved.

The sum over k does not depend on the order of k, and the order of columns is arbitrary if the accumulators have it, too. So the same
instruction multiplies with other lane maps (PTX ISA, "Matrix fragments for mma.m16n8k16 with floating point type"). With g = lane / 4 and
t = lane % 4, in the order of the registers:

    K interleaved (m16n8k16), 4 adjacent elements of a row of B stored by columns
    A  (g, 4t), (g, 4t+1), (g+8, 4t), (g+8, 4t+1)         then the same with 2 added to k
    B  (4t, g), (4t+1, g), (4t+2, g), (4t+3, g)

    N interleaved (m16n32k16, four instructions j = 0 to 3), 4 adjacent elements of each of 4 rows of B stored by rows
    B  (2t, 4g+j), (2t+1, 4g+j)                           then the same with 8 added to k
    C  (g, 8t+j), (g, 8t+4+j), (g+8, 8t+j), (g+8, 8t+4+j)

>>> from fireiron import *
>>> HMMA_16816_F32_K4.maps()["B"].coordinate(5, 3), HMMA_163216_F32_N4.maps()["B"].coordinate(5, 4)  # of lane 5
((7, 1), (2, 5))
"""

from __future__ import annotations

from typing import Final

import attrs

from fireiron.ir.lanes import LaneMap
from fireiron.ir.text import Function, Printer
from fireiron.performing.mma import Mma

WIDTH: Final = 4
"""Adjacent 8-bit elements of a lane: a register."""

_A_K4 = LaneMap.along((16, 16), ((4, 1, WIDTH), (8, 0, 1)), ((2, 1, 1), (2, 0, 8), (2, 1, 2)))
_B_K4 = LaneMap.along((16, 8), ((4, 0, WIDTH), (8, 1, 1)), ((WIDTH, 0, 1),))
_B_N4 = LaneMap.along((16, 32), ((4, 0, 2), (8, 1, WIDTH)), ((2, 0, 1), (2, 0, 8), (WIDTH, 1, 1)))
_C_N4 = LaneMap.along((16, 32), ((4, 1, 2 * WIDTH), (8, 0, 1)), ((2, 1, WIDTH), (2, 0, 8), (WIDTH, 1, 1)))


@attrs.frozen(repr=False)
class InterleavedMma(Mma):
    """`MatMul(16,32,16)(RF,RF,RF)(Warp)`: four instructions whose columns are interleaved. `plain` is the instruction."""

    plain: Mma | None = None

    def _function(self, printer: Printer) -> Function:
        assert self.plain is not None
        inner = printer.function(self.plain._function(printer))
        kinds = {name: self.factors[name.upper()].cuda for name in "ab"}
        counts = {name: lane_map.count for name, lane_map in self.plain.maps().items()}
        body = (
            "#pragma unroll",
            f"for (int j = 0; j < {WIDTH}; ++j)",
            f"  {inner}(c + j * {counts['C']}, a, b + j * {counts['B']});",
        )
        assert self.result is not None
        parameters = (f"{self.result.cuda}* c", f"const {kinds['a']}* a", f"const {kinds['b']}* b")
        return Function(f"{inner}_n{WIDTH}", parameters, body, "c += a * b: columns 4g + j of B, interleaved over four instructions")


def interleaved_k(plain: Mma) -> Mma:
    """Return the form of an instruction of m16n8k16 with interleaved k."""
    return attrs.evolve(plain, name=f"{plain.name}_K4", a=_A_K4, b=_B_K4)


def interleaved_n(plain: Mma) -> InterleavedMma:
    """Return the form with interleaved n of four instructions of m16n8k16."""
    name, opcode = f"{plain.name.replace('16816', '163216')}_N4", plain.opcode
    return InterleavedMma(name, (16, 32, 16), plain.factor, plain.result, opcode, plain.a, _B_N4, _C_N4, capability=80, plain=plain)


__all__ = ["InterleavedMma", "interleaved_k", "interleaved_n"]
