"""mma.sync on int8 for whole warps, accumulating in int32: m16n8k32, m16n8k16 (Ampere), m8n8k16 (Turing).

PTX ISA, "Matrix Fragments for mma.m8n8k16", "for mma.m16n8k16 with integer type" and "for mma.m16n8k32", type .s8. With
g = lane/4 and t = lane%4, a lane holds, in this order:

    A  (g, 4t), ..., (g, 4t+3)    m16: then the same with 8 added to m;  k32: then all with 16 added to k
    B  (4t, g), ..., (4t+3, g)                                           k32: then the same with 16 added to k
    C  (g, 2t), (g, 2t+1)         m16: then the same with 8 added to m

Sums that do not fit 32 bits wrap around, as those of the simulator do.

>>> from fireiron import *
>>> leaf = MatMul(16, 8, 32, dtype=int8, c_dtype=int32)(RF, RF, RF)(Warp)
>>> [instruction.name for instruction in INSTRUCTIONS if not instruction.mismatches(leaf, ARCHITECTURES[-1])]
['IMMA_16832_S8']
>>> IMMA_16832_S8.maps()["A"].coordinate(5, 0)  # row and column of the first value of A in lane 5
(1, 4)
"""

from __future__ import annotations

from fireiron.ir.lanes import LaneMap, Part
from fireiron.performing.mma import Mma
from fireiron.values.machine import int8, int32


def _steps(k: int, dim: int) -> tuple[Part, ...]:
    return () if k == 16 else ((k // 16, dim, 16),)


def _form(m: int, k: int, capability: int) -> Mma:
    upper_rows: tuple[Part, ...] = ((2, 0, 8),) if m == 16 else ()
    a = LaneMap.along((m, k), ((4, 1, 4), (8, 0, 1)), ((4, 1, 1), *upper_rows, *_steps(k, 1)))
    b = LaneMap.along((k, 8), ((4, 0, 4), (8, 1, 1)), ((4, 0, 1), *_steps(k, 0)))
    c = LaneMap.along((m, 8), ((4, 1, 2), (8, 0, 1)), ((2, 1, 1), *upper_rows))
    opcode = f"mma.sync.aligned.m{m}n8k{k}.row.col.s32.s8.s8.s32"
    return Mma(f"IMMA_{m}8{k}_S8", (m, 8, k), (int8,), int32, opcode, a, b, c, capability=capability)


IMMA_16832_S8 = _form(16, 32, 80)
IMMA_16816_S8 = _form(16, 16, 80)
IMMA_8816_S8 = _form(8, 16, 75)

INSTRUCTIONS: tuple[Mma, ...] = (IMMA_16832_S8, IMMA_16816_S8, IMMA_8816_S8)
"""All forms, those with the most multiplications first."""

__all__ = ["IMMA_8816_S8", "IMMA_16816_S8", "IMMA_16832_S8"]
