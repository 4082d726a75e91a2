"""mma.sync on float16 and bfloat16 for whole warps: m16n8k8 (Turing), m16n8k16 (Ampere) (Graphene, Table 2 row 11).

PTX ISA, "Matrix fragments for mma.m16n8k8" and "... mma.m16n8k16 with floating point type". With g = lane / 4 and
t = lane % 4, in the order of the registers:

    A  (g, 2t), (g, 2t+1), (g+8, 2t), (g+8, 2t+1)        k16: then the same with 8 added to k
    B  (2t, g), (2t+1, g)                                k16: then the same with 8 added to k
    C  (g, 2t), (g, 2t+1), (g+8, 2t), (g+8, 2t+1)

`done(HMMA_16816_F32_K4)` and `done(HMMA_163216_F32_N4)` request forms with interleaved k or n (`fireiron.performing.mma_interleaved`).

>>> from fireiron import *
>>> leaf = MatMul(16, 8, 8, dtype=bfloat16, c_dtype=float32)(RF, RF, RF)(Warp)
>>> [instruction.name for instruction in INSTRUCTIONS if not instruction.mismatches(leaf, ARCHITECTURES[-1])]
['HMMA_1688_F32_BF16']
>>> HMMA_1688_F32_BF16.maps()["A"].coordinate(5, 0)  # row and column of the first value of A in lane 5
(1, 2)
"""

from __future__ import annotations

from fireiron.ir.lanes import LaneMap
from fireiron.performing.mma import Mma
from fireiron.performing.mma_interleaved import InterleavedMma, interleaved_k, interleaved_n
from fireiron.values.layout import Layout
from fireiron.values.machine import DType, bfloat16, float16, float32

C_M16N8 = LaneMap((16, 8), Layout((4, 8), (32, 1)), Layout((2, 2), (16, 8)))
A_M16K8 = LaneMap((16, 8), Layout((4, 8), (32, 1)), Layout((2, 2), (16, 8)))
B_K8N8 = LaneMap((8, 8), Layout((4, 8), (2, 8)), Layout((2,), (1,)))
A_M16K16 = LaneMap((16, 16), Layout((4, 8), (32, 1)), Layout((2, 2, 2), (16, 8, 128)))
B_K16N8 = LaneMap((16, 8), Layout((4, 8), (2, 16)), Layout((2, 2), (1, 8)))

_PTX = {float16: "f16", bfloat16: "bf16", float32: "f32"}


def _form(k: int, factor: DType, result: DType, capability: int) -> Mma:
    kind, wide = _PTX[factor], _PTX[result]
    opcode = f"mma.sync.aligned.m16n8k{k}.row.col.{wide}.{kind}.{kind}.{wide}"
    a, b = (A_M16K16, B_K16N8) if k == 16 else (A_M16K8, B_K8N8)
    name = f"HMMA_168{k}_{wide.upper()}" + ("_BF16" if factor == bfloat16 else "")
    return Mma(name, (16, 8, k), (factor,), result, opcode, a, b, C_M16N8, capability=capability)


HMMA_16816_F32 = _form(16, float16, float32, 80)
HMMA_16816_F16 = _form(16, float16, float16, 80)
HMMA_16816_F32_BF16 = _form(16, bfloat16, float32, 80)
HMMA_1688_F32 = _form(8, float16, float32, 75)
HMMA_1688_F16 = _form(8, float16, float16, 75)
HMMA_1688_F32_BF16 = _form(8, bfloat16, float32, 80)

INSTRUCTIONS: tuple[Mma, ...] = (HMMA_16816_F32, HMMA_16816_F16, HMMA_16816_F32_BF16, HMMA_1688_F32, HMMA_1688_F16, HMMA_1688_F32_BF16)
"""All forms, those with the largest k first."""

HMMA_16816_F32_K4, HMMA_16816_F32_BF16_K4 = map(interleaved_k, (HMMA_16816_F32, HMMA_16816_F32_BF16))
HMMA_163216_F32_N4, HMMA_163216_F32_BF16_N4 = map(interleaved_n, (HMMA_16816_F32, HMMA_16816_F32_BF16))

__all__ = [
    "InterleavedMma",
    "HMMA_163216_F32_BF16_N4",
    "HMMA_163216_F32_N4",
    "HMMA_16816_F32_BF16_K4",
    "HMMA_16816_F32_K4",
    "HMMA_1688_F16",
    "HMMA_1688_F32",
    "HMMA_1688_F32_BF16",
    "HMMA_16816_F16",
    "HMMA_16816_F32",
    "HMMA_16816_F32_BF16",
]
