"""Decisions of the printer on hand-made kernels: conversion in pairs, a single shared-memory array, tile orders on a curve."""

import attrs
import making
import pytest
from handmade import access, execution, kernel_of, local
from touching import Step

from fireiron import *
from fireiron.cuda.frame import _on_a_curve
from fireiron.cuda.names import Names
from fireiron.cuda.printer import KernelPrinter
from fireiron.values.expr import ONE, TRUE, Hilbert, Var, as_expr, less

THREAD = Var("thread", 0, 31)
SPEC = Move(1, 1)(RF, RF)(Thread)


def in_pairs(source=float32, target=float16, memories=(RF, RF), first=0, count=4, step=1, condition=TRUE, width=1):
    """Whether elements of one array are converted in pairs to those of another one."""
    arrays = local("x", (16,), memories[0], source), local("y", (16,), memories[1], target)
    read, write = access("x", (0,), (count,)), access("y", (first,), (count,), write=True)
    write = attrs.evolve(write, modes=tuple(tuple(attrs.evolve(mode, stride=as_expr(step)) for mode in modes) for modes in write.modes))
    pieces = tuple(tuple(making.piece(start, width, condition=condition) for start in range(0, count, width)) for _ in range(2))
    statement = execution(Step(), SPEC, read, write, pieces=pieces)
    return KernelPrinter(kernel_of(Move(8, 8)(GL, GL), (statement,), *arrays), Names(set()))._in_pairs(statement)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("options", "pairs"),
    [
        ({}, True),
        ({"target": bfloat16}, True),
        ({"first": 2, "count": 2}, True),
        ({"source": float64}, False),  # the functions take floats
        ({"source": float16, "target": bfloat16}, False),
        ({"target": float32}, False),
        ({"memories": (SH, RF)}, False),
        ({"memories": (RF, SH)}, False),
        ({"memories": (RF, FR(16, 16, 16))}, False),  # the layout of a fragment is known to its instructions only
        ({"first": 1}, False),  # adjacent elements in two registers
        ({"count": 3}, False),
        ({"step": 2}, False),
        ({"condition": less(THREAD, 5)}, False),
        ({"width": 2}, False),  # moved at once
    ],
    ids=str,
)
def test_conversions_in_pairs(options, pairs):
    assert in_pairs(**options) is pairs


def shared(*places):
    """The dynamic bytes of a launch, for buffers with these offsets and numbers of floats."""
    buffers = [attrs.evolve(local(f"s{number}", (size,), SH), offset=offset) for number, (offset, size) in enumerate(places)]
    kernel = kernel_of(Move(8, 8)(GL, GL), (), *buffers)
    return attrs.evolve(kernel, shared_bytes=max(one.offset + one.bytes for one in buffers)).dynamic_shared_bytes


def test_shared_memory_is_one_array_where_buffers_overlap_or_are_large():
    assert shared((0, 16), (64, 16)) == shared((64, 16), (0, 16)) == shared((0, 16), (64, 16), (128, 4)) == 0, "side by side"
    assert shared((0, 16), (60, 16)) == shared((60, 16), (0, 16)) == 124 and shared((0, 16), (0, 4)) == 64
    assert shared((0, 12 * 1024)) == 0 and shared((0, 12 * 1024 + 1)) == 4 * (12 * 1024 + 1)


def test_tile_orders_on_a_curve():
    curve = Hilbert(Var("block", 0, 63), as_expr(8), as_expr(8))
    assert _on_a_curve(curve) and _on_a_curve(curve * 3 + THREAD) and not _on_a_curve(THREAD + ONE)
