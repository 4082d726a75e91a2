"""What the printer makes of single statements: pairs that are converted at once, accesses by functions, headers; by hand, without a strategy."""

import pytest
from handmade import access, execution, kernel_of, local

from fireiron import *
from fireiron.cuda import emit
from fireiron.executable.thread_move import MOVE, STREAMED
from fireiron.gpu.toolchain import compile_cuda, toolchains
from fireiron.lower.guard import guard


def lines_of(*statements, buffers=(), spec=None):
    """The lines of a kernel of one thread."""
    text = emit(guard(kernel_of(spec or Move(16, 1)(GL, GL), statements, *buffers, threads=1)))
    return [line.strip() for line in text.splitlines()]


def converted(count, first, target=float16, registers=16, before=RF):
    """What converts `count` floats, from element `first` of an array in registers on."""
    r, h = local("r", (16, 1), before), local("h", (registers, 1), RF, target)
    move = execution(MOVE, Move(count, 1)(before, RF)(Thread), access("r", (0, 0), (count, 1)), access("h", (first, 0), (count, 1), write=True))
    return [line for line in lines_of(move, buffers=(r, h)) if line.endswith(";") and "=" in line]


def test_floats_are_converted_in_pairs():
    """Where two neighbours of the result are one register, from an even element on."""
    assert converted(2, 0) == ["*reinterpret_cast<__half2*>(h) = __floats2half2_rn(r[0], r[1]);"]
    assert converted(4, 2) == [
        "*reinterpret_cast<__half2*>(&h[2]) = __floats2half2_rn(r[0], r[1]);",
        "*reinterpret_cast<__half2*>(&h[4]) = __floats2half2_rn(r[2], r[3]);",
    ]
    assert converted(2, 0, bfloat16) == ["*reinterpret_cast<__nv_bfloat162*>(h) = __floats2bfloat162_rn(r[0], r[1]);"]


def test_what_is_no_pair_is_converted_one_by_one():
    assert converted(3, 0) == [f"h[{one}] = __float2half_rn(r[{one}]);" for one in range(3)], "the last one is left over"
    assert converted(2, 1) == ["h[1] = __float2half_rn(r[0]);", "h[2] = __float2half_rn(r[1]);"], "two registers"
    assert converted(1, 0) == ["h[0] = __float2half_rn(r[0]);"]
    assert converted(2, 0, before=SH) == ["h[0] = __float2half_rn(r[0]);", "h[1] = __float2half_rn(r[1]);"], "from shared memory"
    assert converted(2, 0, float64) == ["h[0] = static_cast<double>(r[0]);", "h[1] = static_cast<double>(r[1]);"]


def streamed(dtype, shape):
    r = local("r", (16, 1), RF, dtype)
    load = execution(STREAMED, Move(*shape)(GL, RF)(Thread), access("src", (0, 0), shape), access("r", (0, 0), shape, write=True))
    store = execution(STREAMED, Move(*shape)(RF, GL)(Thread), access("r", (0, 0), shape), access("dst", (0, 0), shape, write=True))
    return lines_of(load, store, buffers=(r,), spec=Move(16, 1, dtype=dtype)(GL, GL))


@pytest.mark.parametrize("dtype", [float32, float16, int8], ids=str)
def test_single_elements_go_through_the_caches_as_what_they_are(dtype):
    """As an integer as wide an element would be converted."""
    lines = streamed(dtype, (1, 1))
    if toolchains():
        compile_cuda("\n".join(lines), "sm_80")
    assert "r[0] = __ldcs(src);" in lines and "__stcs(dst, r[0]);" in lines


HEADERS = {float16: "cuda_fp16.h", bfloat16: "cuda_bf16.h", float8_e4m3: "cuda_fp8.h", float8_e5m2: "cuda_fp8.h"}


@pytest.mark.parametrize("dtype", [float32, float64, int32, *HEADERS], ids=str)
def test_each_type_has_its_header(dtype):
    """And no other one: each takes the compiler a while."""
    move = execution(MOVE, Move(1, 1)(GL, GL)(Thread), access("src", (0, 0)), access("dst", (0, 0), write=True))
    lines = lines_of(move, spec=Move(16, 1, dtype=dtype)(GL, GL))
    if toolchains():
        compile_cuda("\n".join(lines), "sm_90")
    assert [line for line in lines if line.startswith("#include")] == ([f"#include <{HEADERS[dtype]}>"] if dtype in HEADERS else [])
