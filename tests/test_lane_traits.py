"""Lane maps compared with those of CUTLASS: `(thread, value)` to the colexicographic number of an element, for each operand.

The layouts are properties of the instructions, quoted from `include/cute/atom/mma_traits_sm70.hpp`, `mma_traits_sm75.hpp`,
`mma_traits_sm80.hpp`, `mma_traits_sm89.hpp` and `mma_traits_sm90.hpp` of NVIDIA CUTLASS. There A is (m, k), B is (n, k), C is (m, n). Of
our own forms, those that combine four quad-pairs have no trait.
"""

import itertools

import pytest

from fireiron import INSTRUCTIONS
from fireiron.ir.lanes import LaneMap
from fireiron.performing.mma import Mma
from fireiron.values.layout import parse
from fireiron.values.machine import QuadPair, float16

C_16X8 = "((4,8),(2,2)):((32,1),(16,8))"  # SM80_16x8_Row
C_8X8 = "((4,8),2):((16,1),8)"  # SM80_8x8_Row

BY_8_BITS = {
    (8, 8, 16): ("((4,8),4):((32,1),8)", "((4,8),4):((32,1),8)", C_8X8),
    (16, 8, 16): ("((4,8),(4,2)):((64,1),(16,8))", "((4,8),4):((32,1),8)", C_16X8),
    (16, 8, 32): ("((4,8),(4,2,2)):((64,1),(16,8,256))", "((4,8),(4,2)):((32,1),(8,128))", C_16X8),
}
BY_16_BITS = {
    (16, 8, 8): (C_16X8, C_8X8, C_16X8),
    (16, 8, 16): ("((4,8),(2,2,2)):((32,1),(16,8,128))", "((4,8),(2,2)):((16,1),(8,64))", C_16X8),
}
BY_TF32 = {
    (16, 8, 4): ("((4,8),2):((16,1),8)", "((4,8),1):((8,1),0)", C_16X8),
    (16, 8, 8): ("((4,8),(2,2)):((16,1),(8,64))", "((4,8),2):((8,1),32)", C_16X8),
}
BY_64_BITS = BY_TF32 | {
    (8, 8, 4): ("((4,8),1):((8,1),0)", "((4,8),1):((8,1),0)", C_8X8),
    (16, 8, 16): ("((4,8),(2,4)):((16,1),(8,64))", "((4,8),4):((8,1),32)", C_16X8),
}
BY_TYPE = {"float16": BY_16_BITS, "bfloat16": BY_16_BITS, "tf32": BY_TF32, "float64": BY_64_BITS} | dict.fromkeys(
    ("int8", "float8_e4m3", "float8_e5m2"), BY_8_BITS
)

VOLTA_ROW, VOLTA_COLUMN = "(8,4):(1,8)", "((4,2),4):((8,4),1)"  # SM70_8x4_Row, SM70_8x4_Col
VOLTA_RESULT = {"float16": "(8,8):(1,8)", "float32": "((2,2,2),(2,2,2)):((1,16,4),(8,2,32))"}  # SM70_8x8_16b, SM70_8x8_32b

FORMS = [one for one in INSTRUCTIONS if isinstance(one, Mma)]


def traits_of(form):
    """The published layouts of A, B and C; B of mma.m8n8k4 is (n, k), so its row-major form is a column there."""
    if form.level == QuadPair:
        a, b = form.orders
        return (
            VOLTA_ROW if a == "row" else VOLTA_COLUMN,
            VOLTA_COLUMN if b == "row" else VOLTA_ROW,
            VOLTA_RESULT[form.result.name],
        )
    if form.shape[:2] == (16, 16) or (form.factor[0] == float16 and form.shape == (8, 8, 4)):
        return None
    return BY_TYPE[form.factor[0].name][form.shape]


@pytest.mark.parametrize("form", [one for one in FORMS if traits_of(one) is not None], ids=lambda one: one.name)
def test_lane_maps_are_the_published_ones(form):
    for name, text in zip("ABC", traits_of(form), strict=True):
        trait, lane_map = parse(text), form.maps()[name]
        rows = lane_map.tile[1 if name == "B" else 0]
        assert trait.rank() == 2 and (trait[0].size(), trait[1].size()) == (lane_map.threads, lane_map.count)
        for lane, value in itertools.product(range(lane_map.threads), range(lane_map.count)):
            row, column = lane_map.coordinate(lane, value)[:: -1 if name == "B" else 1]
            assert trait(lane, value) == row + rows * column


def test_forms_without_a_trait():
    """Four quad-pairs together are our own composition of four instructions."""
    without = [one.name for one in FORMS if traits_of(one) is None]
    assert all("X4" in name for name in without) and len(without) == 8 and len(FORMS) - len(without) == 39


@pytest.mark.parametrize("columns", [8, 24, 128, 256])
def test_hoppers_accumulator_is_a_layout(columns):
    """wgmma's m64nNk16 D fragment as worded in the PTX ISA ("Register Fragments for wgmma.mma_async") is CUTLASS's CLayout_64xN."""
    trait = parse(f"((4,8,4),(2,2,{columns // 8})):((128,1,16),(64,8,512))")
    lane_map = LaneMap((64, columns), *trait)
    for thread, value in itertools.product(range(128), range(columns // 2)):
        row = 16 * (thread // 32) + thread % 32 // 4 + 8 * (value // 2 % 2)
        column = 8 * (value // 4) + 2 * (thread % 4) + value % 2
        assert trait(thread, value) == row + 64 * column and lane_map.coordinate(thread, value) == (row, column)
