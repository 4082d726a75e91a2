"""mma.sync on tf32 for whole warps: m16n8k8, m16n8k4 (Ampere).

PTX ISA, "Matrix Fragments for mma.m16n8k4" and "for mma.m16n8k8", type .tf32. With g = lane/4 and t = lane%4, a lane holds,
in this order:

    A  (g, t), (g+8, t)                                  k8: then the same with 4 added to k
    B  (t, g)                                            k8: then (t+4, g)
    C  (g, 2t), (g, 2t+1), (g+8, 2t), (g+8, 2t+1)

Elements are float32 in memory and in registers; the instruction reads the upper 19 bits of each and drops the last 13 bits
of the mantissa, toward zero. The simulator does the same (`fireiron.specs.meaning.multiplied`).

>>> from fireiron import *
>>> leaf = MatMul(16, 8, 8, dtype=tf32, c_dtype=float32)(RF, RF, RF)(Warp)
>>> [instruction.name for instruction in INSTRUCTIONS if not instruction.mismatches(leaf, ARCHITECTURES[-1])]
['HMMA_1688_F32_TF32']
>>> HMMA_1688_F32_TF32.maps()["A"].coordinate(5, 0)  # row and column of the first value of A in lane 5
(1, 1)
"""

from __future__ import annotations

from fireiron.ir.lanes import LaneMap
from fireiron.performing.mma import Mma
from fireiron.values.machine import float32, tf32

_ROWS = ((4, 1, 1), (8, 0, 1))
_COLUMNS = ((4, 0, 1), (8, 1, 1))
_C = LaneMap.along((16, 8), ((4, 1, 2), (8, 0, 1)), ((2, 1, 1), (2, 0, 8)))


def _form(k: int) -> Mma:
    steps = () if k == 4 else (k // 4,)
    a = LaneMap.along((16, k), _ROWS, ((2, 0, 8), *((count, 1, 4) for count in steps)))
    b = LaneMap.along((k, 8), _COLUMNS, tuple((count, 0, 4) for count in steps))
    return Mma(f"HMMA_168{k}_F32_TF32", (16, 8, k), (tf32,), float32, f"mma.sync.aligned.m16n8k{k}.row.col.f32.tf32.tf32.f32", a, b, _C)


HMMA_1688_F32_TF32 = _form(8)
HMMA_1684_F32_TF32 = _form(4)

INSTRUCTIONS: tuple[Mma, ...] = (HMMA_1688_F32_TF32, HMMA_1684_F32_TF32)
"""Both forms, that with the larger k first."""

__all__ = ["HMMA_1684_F32_TF32", "HMMA_1688_F32_TF32"]
