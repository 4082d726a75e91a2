"""mma.sync.m8n8k4: float16 by quad-pairs, the first tensor cores (Graphene, Table 2 row 10; Fireiron, section 4.3, HMMA.884).

PTX ISA, "Matrix Fragments for mma.m8n8k4 with .f16 floating point type". A quad-pair is four lanes of the lower half of a
warp and the same four of the upper half, `(4,2):(1,16)`; a warp executes four such MMAs at once. With t = lane%4 and
h = lane/16, a lane holds, in this order:

    A  row  (t+4h, 0), ..., (t+4h, 3)                    col  (4h, t), ..., (4h+3, t)
    B  row  (t, 4h), ..., (t, 4h+3)                      col  (0, t+4h), ..., (3, t+4h)
    C  f16  (t+4h, 0), ..., (t+4h, 7)
       f32  (x, y), (x, y+1), (x+2, y), (x+2, y+1), then the same with 4 added to y;  x = t%2 + 4h, y = t/2*2

Each of the four layouts of A and B is a separate form: `row` requires A row-major, which is T in BLAS, and so on, so that
the four values of a lane are contiguous in storage. The paper prints this instruction at the level Thread, with the shapes
of one thread's operands, 1x4, 4x1 and 1x8, which cannot be multiplied. Here it is a statement of eight threads.

The forms X4 are the same instruction at the level of a warp: its quad-pairs form a 2x2 grid over a tile of 16x16x4, so that
strategies for the instructions of a warp run on Volta unchanged. Targets after Volta execute all of them slowly.

>>> from fireiron import *
>>> leaf = MatMul(8, 8, 4, dtype=float16, c_dtype=float32, A=RowMajor)(RF, RF, RF)(QuadPair)
>>> [instruction.name for instruction in INSTRUCTIONS if not instruction.mismatches(leaf, ARCHITECTURES[-1])]
['HMMA_884_F32_TN']
>>> HMMA_884_F32_TN.maps()["A"].coordinate(5, 0)  # row and column of the first value of A in lane 5
(5, 0)
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

from fireiron.ir.lanes import LaneMap, Part
from fireiron.performing.mma import Mma
from fireiron.values.machine import DType, QuadPair, Warp, float16, float32

_LOW: Mapping[str, Part] = {"Arow": (4, 0, 1), "Acol": (4, 1, 1), "Brow": (4, 0, 1), "Bcol": (4, 1, 1)}
_HIGH: Mapping[str, Part] = {"A": (2, 0, 4), "B": (2, 1, 4)}
_VALUES: Mapping[str, Part] = {"Arow": (4, 1, 1), "Acol": (4, 0, 1), "Brow": (4, 1, 1), "Bcol": (4, 0, 1)}

_C_LOW: Mapping[DType, tuple[Part, ...]] = {float16: ((4, 0, 1),), float32: ((2, 0, 1), (2, 1, 2))}
_C_VALUES: Mapping[DType, tuple[Part, ...]] = {float16: ((8, 1, 1),), float32: ((2, 1, 1), (2, 0, 2), (2, 1, 4))}

_BLAS: Mapping[tuple[str, str], str] = {("row", "col"): "TN", ("col", "col"): "NN", ("col", "row"): "NT", ("row", "row"): "TT"}
_PTX: Mapping[DType, str] = {float16: "f16", float32: "f32"}
_GRID: Mapping[str, tuple[Part, ...]] = {"A": ((2, 0, 8), (2, 0, 0)), "B": ((2, 1, 0), (2, 1, 8)), "C": ((2, 0, 8), (2, 1, 8))}
"""Positions of the four quad-pairs of a warp in a tile of the forms X4; quad-pairs of the same row share their part of A."""


@functools.cache
def _factor(operand: str, order: str, warp: bool) -> LaneMap:
    tile = {"A": (8, 4), "B": (4, 8)}[operand]
    if warp:
        tile = {"A": (16, 4), "B": (4, 16)}[operand]
    key = operand + order
    return LaneMap.along(tile, (_LOW[key], *(_GRID[operand] if warp else ()), _HIGH[operand]), (_VALUES[key],))


@functools.cache
def _accumulator(result: DType, warp: bool) -> LaneMap:
    tile = (16, 16) if warp else (8, 8)
    return LaneMap.along(tile, (*_C_LOW[result], *(_GRID["C"] if warp else ()), (2, 0, 4)), _C_VALUES[result])


def _form(orders: tuple[str, str], result: DType, warp: bool = False) -> Mma:
    wide = _PTX[result]
    return Mma(
        f"HMMA_884{'X4' if warp else ''}_{wide.upper()}_{_BLAS[orders]}",
        (16, 16, 4) if warp else (8, 8, 4),
        (float16,),
        result,
        f"mma.sync.aligned.m8n8k4.{orders[0]}.{orders[1]}.{wide}.f16.f16.{wide}",
        _factor("A", orders[0], warp),
        _factor("B", orders[1], warp),
        _accumulator(result, warp),
        Warp if warp else QuadPair,
        capability=70,
        last=75,
        orders=orders,
    )


_TN, _NN, _NT, _TT = _BLAS

HMMA_884_F32_TN, HMMA_884_F16_TN = _form(_TN, float32), _form(_TN, float16)
HMMA_884_F32_NN, HMMA_884_F16_NN = _form(_NN, float32), _form(_NN, float16)
HMMA_884_F32_NT, HMMA_884_F16_NT = _form(_NT, float32), _form(_NT, float16)
HMMA_884_F32_TT, HMMA_884_F16_TT = _form(_TT, float32), _form(_TT, float16)

HMMA_884X4_F32_TN, HMMA_884X4_F16_TN = _form(_TN, float32, True), _form(_TN, float16, True)
HMMA_884X4_F32_NN, HMMA_884X4_F16_NN = _form(_NN, float32, True), _form(_NN, float16, True)
HMMA_884X4_F32_NT, HMMA_884X4_F16_NT = _form(_NT, float32, True), _form(_NT, float16, True)
HMMA_884X4_F32_TT, HMMA_884X4_F16_TT = _form(_TT, float32, True), _form(_TT, float16, True)

INSTRUCTIONS: tuple[Mma, ...] = (
    HMMA_884X4_F32_TN, HMMA_884X4_F32_NN, HMMA_884X4_F32_NT, HMMA_884X4_F32_TT,
    HMMA_884X4_F16_TN, HMMA_884X4_F16_NN, HMMA_884X4_F16_NT, HMMA_884X4_F16_TT,
    HMMA_884_F32_TN, HMMA_884_F32_NN, HMMA_884_F32_NT, HMMA_884_F32_TT,
    HMMA_884_F16_TN, HMMA_884_F16_NN, HMMA_884_F16_NT, HMMA_884_F16_TT,
)  # fmt: skip
"""All forms. Those of a warp are first, because `mma_tile` uses them."""

__all__ = [
    "HMMA_884X4_F16_NN",
    "HMMA_884X4_F16_NT",
    "HMMA_884X4_F16_TN",
    "HMMA_884X4_F16_TT",
    "HMMA_884X4_F32_NN",
    "HMMA_884X4_F32_NT",
    "HMMA_884X4_F32_TN",
    "HMMA_884X4_F32_TT",
    "HMMA_884_F16_NN",
    "HMMA_884_F16_NT",
    "HMMA_884_F16_TN",
    "HMMA_884_F16_TT",
    "HMMA_884_F32_NN",
    "HMMA_884_F32_NT",
    "HMMA_884_F32_TN",
    "HMMA_884_F32_TT",
]
