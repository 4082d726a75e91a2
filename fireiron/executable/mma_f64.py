"""mma.sync on float64 for whole warps: m16n8k16, m16n8k8, m16n8k4 (Hopper), m8n8k4 (Ampere).

PTX ISA, "Matrix Fragments for mma.m8n8k4 with .f64 floating point type", "for mma.m16n8k4", "for mma.m16n8k8" and "for
mma.m16n8k16 with floating point type", type .f64. With g = lane/4 and t = lane%4, a lane holds, in this order:

    A  (g, t)                  m16: then (g+8, t)        k8, k16: then the same with 4, 8, 12 added to k
    B  (t, g)                                            k8, k16: then (t+4, g), (t+8, g), (t+12, g)
    C  (g, 2t), (g, 2t+1)      m16: then the same with 8 added to m

>>> from fireiron import *
>>> leaf = MatMul(8, 8, 4, dtype=float64)(RF, RF, RF)(Warp)
>>> [instruction.name for instruction in INSTRUCTIONS if not instruction.mismatches(leaf, ARCHITECTURES[-1])]
['DMMA_884']
>>> DMMA_884.maps()["A"].coordinate(5, 0)  # row and column of the first value of A in lane 5
(1, 1)
"""

from __future__ import annotations

from fireiron.ir.lanes import LaneMap, Part
from fireiron.performing.mma import Mma
from fireiron.values.machine import float64


def _steps(k: int, dim: int) -> tuple[Part, ...]:
    return () if k == 4 else ((k // 4, dim, 4),)


def _form(m: int, k: int, capability: int) -> Mma:
    upper_rows: tuple[Part, ...] = ((2, 0, 8),) if m == 16 else ()
    a = LaneMap.along((m, k), ((4, 1, 1), (8, 0, 1)), (*upper_rows, *_steps(k, 1)))
    b = LaneMap.along((k, 8), ((4, 0, 1), (8, 1, 1)), _steps(k, 0))
    c = LaneMap.along((m, 8), ((4, 1, 2), (8, 0, 1)), ((2, 1, 1), *upper_rows))
    opcode = f"mma.sync.aligned.m{m}n8k{k}.row.col.f64.f64.f64.f64"
    return Mma(f"DMMA_{m}8{k}", (m, 8, k), (float64,), float64, opcode, a, b, c, capability=capability)


DMMA_16816 = _form(16, 16, 90)
DMMA_1688 = _form(16, 8, 90)
DMMA_1684 = _form(16, 4, 90)
DMMA_884 = _form(8, 4, 80)

INSTRUCTIONS: tuple[Mma, ...] = (DMMA_16816, DMMA_1688, DMMA_1684, DMMA_884)
"""All forms, those with the most multiplications first."""

__all__ = ["DMMA_884", "DMMA_1684", "DMMA_1688", "DMMA_16816"]
