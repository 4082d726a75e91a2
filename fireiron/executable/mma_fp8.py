"""mma.sync on 8-bit floats for whole warps: m16n8k32, m16n8k16 (Ada); A and B each e4m3 or e5m2, accumulating in f32 or f16.

PTX ISA, "Matrix Fragments for mma.m16n8k16 with integer type" and "for mma.m16n8k32", types .e4m3 and .e5m2: the layout of the bytes is
that of integers. With g = lane/4 and t = lane%4, a lane has, in this order:

    A  (g, 4t), ..., (g, 4t+3), (g+8, 4t), ..., (g+8, 4t+3)    k32: then the same with 16 added to k
    B  (4t, g), ..., (4t+3, g)                                 k32: then the same with 16 added to k
    C  (g, 2t), (g, 2t+1), (g+8, 2t), (g+8, 2t+1)

m16n8k16, and f16 accumulators, require PTX ISA 8.7 (CUDA 12.8); older compilers refuse them.

>>> from fireiron import *
>>> leaf = MatMul(16, 8, 32, dtype=(float8_e4m3, float8_e5m2), c_dtype=float32)(RF, RF, RF)(Warp)
>>> [instruction.name for instruction in INSTRUCTIONS if not instruction.mismatches(leaf, ARCHITECTURES[-1])]
['QMMA_16832_F32_E4M3_E5M2']
>>> QMMA_16832_F32_E4M3_E5M2.maps()["A"].coordinate(5, 0)  # row and column of the first value of A in lane 5
(1, 4)
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

from fireiron.ir.lanes import LaneMap, Part
from fireiron.performing.mma import Mma
from fireiron.values.machine import DType, float8_e4m3, float8_e5m2, float16, float32

_PTX: Mapping[DType, str] = {float8_e4m3: "e4m3", float8_e5m2: "e5m2", float16: "f16", float32: "f32"}
_C = LaneMap.along((16, 8), ((4, 1, 2), (8, 0, 1)), ((2, 1, 1), (2, 0, 8)))


def _steps(k: int, dim: int) -> tuple[Part, ...]:
    return () if k == 16 else ((k // 16, dim, 16),)


@functools.cache
def _maps(k: int) -> tuple[LaneMap, LaneMap]:
    """Return the lane maps of A and B."""
    a = LaneMap.along((16, k), ((4, 1, 4), (8, 0, 1)), ((4, 1, 1), (2, 0, 8), *_steps(k, 1)))
    return a, LaneMap.along((k, 8), ((4, 0, 4), (8, 1, 1)), ((4, 0, 1), *_steps(k, 0)))


def _form(k: int, factor: tuple[DType, DType], result: DType) -> Mma:
    a, b = _maps(k)
    left, right, wide = _PTX[factor[0]], _PTX[factor[1]], _PTX[result]
    opcode = f"mma.sync.aligned.m16n8k{k}.row.col.{wide}.{left}.{right}.{wide}"
    types = left.upper() if left == right else f"{left}_{right}".upper()
    return Mma(f"QMMA_168{k}_{wide.upper()}_{types}", (16, 8, k), factor, result, opcode, a, b, _C, capability=89)


_PAIRS = tuple((left, right) for left in (float8_e4m3, float8_e5m2) for right in (float8_e4m3, float8_e5m2))

INSTRUCTIONS: tuple[Mma, ...] = tuple(_form(k, pair, result) for k in (32, 16) for result in (float32, float16) for pair in _PAIRS)
"""All forms, those with the most multiplications first."""

(
    QMMA_16832_F32_E4M3, QMMA_16832_F32_E4M3_E5M2, QMMA_16832_F32_E5M2_E4M3, QMMA_16832_F32_E5M2,
    QMMA_16832_F16_E4M3, QMMA_16832_F16_E4M3_E5M2, QMMA_16832_F16_E5M2_E4M3, QMMA_16832_F16_E5M2,
    QMMA_16816_F32_E4M3, QMMA_16816_F32_E4M3_E5M2, QMMA_16816_F32_E5M2_E4M3, QMMA_16816_F32_E5M2,
    QMMA_16816_F16_E4M3, QMMA_16816_F16_E4M3_E5M2, QMMA_16816_F16_E5M2_E4M3, QMMA_16816_F16_E5M2,
) = INSTRUCTIONS  # fmt: skip

__all__ = [
    "QMMA_16816_F16_E4M3",
    "QMMA_16816_F16_E4M3_E5M2",
    "QMMA_16816_F16_E5M2",
    "QMMA_16816_F16_E5M2_E4M3",
    "QMMA_16816_F32_E4M3",
    "QMMA_16816_F32_E4M3_E5M2",
    "QMMA_16816_F32_E5M2",
    "QMMA_16816_F32_E5M2_E4M3",
    "QMMA_16832_F16_E4M3",
    "QMMA_16832_F16_E4M3_E5M2",
    "QMMA_16832_F16_E5M2",
    "QMMA_16832_F16_E5M2_E4M3",
    "QMMA_16832_F32_E4M3",
    "QMMA_16832_F32_E4M3_E5M2",
    "QMMA_16832_F32_E5M2",
    "QMMA_16832_F32_E5M2_E4M3",
]
