"""The printer on single statements: conversion in pairs, accesses by functions, headers; on hand-made IR, without a strategy."""

import attrs
import making
import pytest
from handmade import THREAD, access, execution, kernel_of, local

from fireiron import *
from fireiron.cuda import carrier, emit
from fireiron.cuda.frame import _first_access
from fireiron.cuda.names import Names
from fireiron.cuda.printer import KernelPrinter
from fireiron.errors import VerificationError
from fireiron.executable.thread_move import EVICT_FIRST, MOVE
from fireiron.gpu.toolchain import compile_cuda, toolchains
from fireiron.lower.guard import guard
from fireiron.values.expr import TRUE, ZERO, Var, as_expr, equal
from fireiron.values.machine import COORD
from fireiron.values.tensor import Mode


def lines_of(*statements, buffers=(), spec=None):
    """The lines of a kernel of one thread."""
    text = emit(guard(kernel_of(spec or Move(16, 1)(GL, GL), statements, *buffers, threads=1)))
    return [line.strip() for line in text.splitlines()]


def conversion(count, first, target=float16, registers=16, before=RF):
    """The printed conversion of `count` floats, from element `first` of a register array on."""
    r, h = local("r", (16, 1), before), local("h", (registers, 1), RF, target)
    move = execution(
        MOVE, Move(count, 1)(before, RF)(Thread), access("r", (0, 0), (count, 1)), access("h", (first, 0), (count, 1), write=True)
    )
    return [line for line in lines_of(move, buffers=(r, h)) if line.endswith(";") and "=" in line]


def test_floats_are_converted_in_pairs():
    """Two adjacent results that share a register, from an even element on, are converted together."""
    assert conversion(2, 0) == ["*reinterpret_cast<__half2*>(h) = __floats2half2_rn(r[0], r[1]);"]
    assert conversion(4, 2) == [
        "*reinterpret_cast<__half2*>(&h[2]) = __floats2half2_rn(r[0], r[1]);",
        "*reinterpret_cast<__half2*>(&h[4]) = __floats2half2_rn(r[2], r[3]);",
    ]
    assert conversion(2, 0, bfloat16) == ["*reinterpret_cast<__nv_bfloat162*>(h) = __floats2bfloat162_rn(r[0], r[1]);"]


def test_single_elements_are_converted_one_by_one():
    assert conversion(3, 0) == [f"h[{one}] = __float2half_rn(r[{one}]);" for one in range(3)], "the last one is left over"
    assert conversion(2, 1) == ["h[1] = __float2half_rn(r[0]);", "h[2] = __float2half_rn(r[1]);"], "two registers"
    assert conversion(1, 0) == ["h[0] = __float2half_rn(r[0]);"]
    assert conversion(2, 0, before=SH) == ["h[0] = __float2half_rn(r[0]);", "h[1] = __float2half_rn(r[1]);"], "from shared memory"
    assert conversion(2, 0, float64) == ["h[0] = static_cast<double>(r[0]);", "h[1] = static_cast<double>(r[1]);"]


def evict_first_move(dtype, shape):
    r = local("r", (16, 1), RF, dtype)
    load = execution(EVICT_FIRST, Move(*shape)(GL, RF)(Thread), access("src", (0, 0), shape), access("r", (0, 0), shape, write=True))
    store = execution(EVICT_FIRST, Move(*shape)(RF, GL)(Thread), access("r", (0, 0), shape), access("dst", (0, 0), shape, write=True))
    return lines_of(load, store, buffers=(r,), spec=Move(16, 1, dtype=dtype)(GL, GL))


@pytest.mark.parametrize("dtype", [float32, float16, int8], ids=str)
def test_single_elements_with_cache_operators_keep_their_type(dtype):
    """As an integer of equal width, the element would be converted."""
    lines = evict_first_move(dtype, (1, 1))
    if toolchains():
        compile_cuda("\n".join(lines), "sm_80")
    assert "r[0] = __ldcs(src);" in lines and "__stcs(dst, r[0]);" in lines


HEADERS = {float16: "cuda_fp16.h", bfloat16: "cuda_bf16.h", float8_e4m3: "cuda_fp8.h", float8_e5m2: "cuda_fp8.h"}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", [float32, float64, int32, *HEADERS], ids=str)
def test_each_type_has_its_header(dtype):
    """And no other header: each takes compile time."""
    move = execution(MOVE, Move(1, 1)(GL, GL)(Thread), access("src", (0, 0)), access("dst", (0, 0), write=True))
    lines = lines_of(move, spec=Move(16, 1, dtype=dtype)(GL, GL))
    if toolchains():
        compile_cuda("\n".join(lines), "sm_90")
    assert [line for line in lines if line.startswith("#include")] == ([f"#include <{HEADERS[dtype]}>"] if dtype in HEADERS else [])


# ---------------------------------------------------------------------------------------------- what instructions require


def printer_of(statement, *buffers, spec=None):
    """A printer of a kernel with one statement."""
    return KernelPrinter(kernel_of(spec or Move(16, 1)(GL, GL), (statement,), *buffers, threads=1), Names(set()))


def registers_at_distance(name, step, write=False):
    """Three registers, `step` apart."""
    return attrs.evolve(
        access(name, (1, 0), (3, 1), write=write), modes=((Mode(as_expr(3), as_expr(step)),), (Mode(as_expr(1), as_expr(1)),))
    )


def gathered(write, step=2, accumulate=ZERO):
    """The name of registers gathered into an array, and the lines before and after its use."""
    kinds = (GL, RF) if write else (RF, GL)
    sides = (
        (access("src", (0, 0), (3, 1)), registers_at_distance("r", step, True))
        if write
        else (registers_at_distance("r", step), access("dst", (0, 0), (3, 1), write=True))
    )
    statement = execution(MOVE, Move(3, 1)(*kinds)(Thread), *sides, accumulate=accumulate)
    gathered_registers = printer_of(statement, local("r", (8, 1), RF)).registers(statement, int(write))
    return str(gathered_registers.place), *(
        tuple(str(item).rstrip(";") for item in side) for side in (gathered_registers.before, gathered_registers.after)
    )


def test_registers_at_a_distance_are_gathered():
    """They are loaded before the statement if it reads them, and stored after it if it writes them."""
    declaration, stores = "__align__(16) float r_values[3]", ("r[1] = r_values[0]", "r[3] = r_values[1]", "r[5] = r_values[2]")
    values = f"{declaration} = {{r[1], r[3], r[5]}}"
    for write, accumulate, before, after in (
        (False, ZERO, values, ()), (False, TRUE, values, ()), (True, ZERO, declaration, stores), (True, TRUE, values, stores),
        (True, equal(THREAD, 0), values, stores),
    ):  # fmt: skip
        name, first, last = gathered(write, accumulate=accumulate)
        assert (name, first, last) == ("r_values", (before,), after), (write, str(accumulate))
    assert gathered(False, step=1) == ("&r[1]", (), ()), "neighbors are an array already"


@pytest.mark.parametrize("dtype", [float32, float16, int8], ids=str)
def test_pieces_of_one_element_are_not_read_as_integers(dtype):
    """An integer of equal width would be converted to the element's type."""
    move = execution(
        MOVE, Move(4, 1, dtype=dtype)(GL, GL)(Thread), access("src", (0, 0), (4, 1)), access("dst", (0, 0), (4, 1), write=True)
    )
    printer = printer_of(move, spec=Move(16, 1, dtype=dtype)(GL, GL))
    first, two = making.piece(1, 1, condition=TRUE), making.piece(2, 2, condition=TRUE)
    wide = carrier(dtype, 2)
    assert (
        str(printer.stored(move, 1, first, "x[1]")) == "dst[1] = x[1];" and str(printer.loaded(move, 0, first, "x[1]")) == "x[1] = src[1];"
    )
    assert str(printer.stored(move, 1, two, "x[2]")) == f"*reinterpret_cast<{wide}*>(&dst[2]) = *reinterpret_cast<const {wide}*>(&x[2]);"
    assert str(printer.loaded(move, 0, two, "x[2]")) == f"*reinterpret_cast<{wide}*>(&x[2]) = *reinterpret_cast<const {wide}*>(&src[2]);"


def coordinate(base, step, most, dtype=float32):
    """The text of a coordinate in a type: `base` plus the term of an unrolled loop with `most` iterations."""
    iteration = Var("turn", 0, most - 1)
    place = local("m", (1 << 30, 1), COORD, int32)
    value = access("m", (base + iteration * step, 0))
    fill = execution(MOVE, Move(1, 1)(GL, GL)(Thread), value, access("dst", (0, 0), write=True))
    kernel = kernel_of(Move(16, 1)(GL, GL), (making.loop(iteration, as_expr(most), (fill,), unroll=True),), place)
    return str(KernelPrinter(kernel, Names(set())).value(fill, 0, 0, dtype))


def test_coordinates_are_converted_once_for_all_unrolled_iterations():
    """If both terms of the sum are exact in a float, which holds integers below 2^24."""
    parts = "(static_cast<float>(x) + static_cast<float>((turn * 2)))"
    for low, high in ((0, 2**24 - 1), (1 - 2**24, 0)):
        assert coordinate(Var("x", low, high), 2, 3) == parts
    for low, high in ((0, 2**24), (-(2**24), 0)):
        assert coordinate(Var("x", low, high), 2, 3) == "static_cast<float>((x + turn * 2))"
    assert coordinate(Var("x", 0, 9), 2, 3, float64) == "static_cast<double>((x + turn * 2))", "of doubles nothing is saved"
    assert coordinate(as_expr(5), 2, 3) == "static_cast<float>((turn * 2 + 5))", "no sum of two variables"
    assert coordinate(Var("x", 0, 9), 0, 3) == "static_cast<float>(x)"


def test_an_array_is_declared_by_its_accesses():
    """By the statement whose fragments it may hold, whichever comes first."""
    first = execution(MOVE, Move(1, 1)(GL, GL)(Thread), access("src", (0, 0)), access("dst", (0, 0), write=True))
    second = execution(MOVE, Move(1, 1)(GL, RF)(Thread), access("src", (0, 0)), access("r", (0, 0), write=True))
    registers, other = local("r", (1, 1), RF), local("nobody", (1, 1), RF)
    kernel = kernel_of(Move(16, 1)(GL, GL), (first, second), registers, other)
    assert _first_access(kernel, registers) is second
    with pytest.raises(VerificationError, match="no statement accesses nobody"):
        _first_access(kernel, other)
