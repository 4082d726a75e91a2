"""Printed values and headers, evaluated: repeated numbers have the bytes of an array, loops of one iteration are their bodies."""

import re

import attrs
import numpy as np
import pytest
from test_cuda_types import shown
from touching import T, i, kernel, loop, reads, writes

from fireiron import *
from fireiron.cuda.frame import _includes
from fireiron.cuda.statements import straightened
from fireiron.cuda.types import applied, carrier, repeated
from fireiron.ir import Exec, For, statements
from fireiron.values.machine import as_dtype

ONES = {"float16": 1.0, "bfloat16": -2.5, "float8_e4m3": 1.5, "float8_e5m2": -0.5, "int8": -3, "uint8": 200, "int32": -7, "int64": 5}


@pytest.mark.parametrize("bits", [16, 32, 64, 128])
@pytest.mark.parametrize("name", ["float16", "bfloat16", "float8_e4m3", "float8_e5m2", "int8", "uint8", "int32"])
def test_repeated_numbers_have_the_bytes_of_an_array(name, bits):
    dtype = as_dtype(name)
    width = bits // dtype.bits
    if width < 2:
        return
    text = repeated(ONES[name], dtype, width)
    words = [int(word.rstrip("u"), 16) for word in re.findall(r"0x[0-9a-f]+u?", text)]
    assert b"".join(word.to_bytes(min(bits, 32) // 8, "little") for word in words) == np.full(width, ONES[name], dtype.to_numpy()).tobytes()
    kind = carrier(dtype, width)
    assert text.startswith("0x" if len(words) == 1 else f"make_{kind}(") and ("int(" in text) == (len(words) > 1 and kind[0] == "i")


@pytest.mark.parametrize(
    ("name", "dtype", "text"),
    [
        ("abs", int32, "abs(x)"), ("abs", int64, "llabs(x)"), ("max", int64, "max(x)"), ("abs", float32, "fabsf(x)"), ("abs", float64, "fabs(x)"),
        ("relu", int32, "max(x, 0)"),
    ],
)  # fmt: skip
def test_functions_of_each_type(name, dtype, text):
    assert shown(applied(name, dtype, "x")) == text


@pytest.mark.parametrize(("count", "step", "kept"), [(1, 1, False), (1, 2, True), (2, 1, True)])
def test_only_loops_of_one_iteration_are_their_bodies(count, step, kept):
    """A loop with another step is printed with this step, which its body may use."""
    before = kernel(attrs.evolve(loop(count, writes(i * 128 + T)), step=step), reads(T))
    after = straightened(before)
    assert [isinstance(stmt, For) for stmt in after.body] == [kept, False]
    assert len([stmt for stmt in statements(after.body) if isinstance(stmt, Exec)]) == 2


@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16", "float8_e4m3", "float8_e5m2"])
def test_headers_of_element_types(name):
    copy = Move.tile(8, 8).to(Block).tile(1, 1).to(Thread).done()
    program = copy(Move(8, 8, dtype=as_dtype(name))(GL, GL)(Kernel)).program("sm_90a")
    headers = {"float16": "cuda_fp16.h", "bfloat16": "cuda_bf16.h", "float8_e4m3": "cuda_fp8.h", "float8_e5m2": "cuda_fp8.h"}
    assert [*_includes(program.lowered)] == ([f"#include <{headers[name]}>"] if name in headers else [])
