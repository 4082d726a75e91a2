"""Tiles whose indices are digits of coordinates, loaded by TMA: right in the simulator, refused where no box is the tile, and checked."""

import random

import attrs
import numpy as np
import pytest
from ringed import with_changed

from fireiron import *
from fireiron import ir
from fireiron.check import AccessTrace, check, check_tma_boxes
from fireiron.sim import simulate
from fireiron.strategies import w4a16

unpacked = Fused(
    name="unpacked",
    dims="m n k q g",
    loop="k",
    operands={"A": "m k", "P": "n q", "S": "g n", "C": "m n"},
    init={"zero": "acc[n,m] = 0"},
    body={
        "weight": "w[n,k] = ((P[n,k // 8] >> 4 * (k % 8) & 15) - 8) * S[k // 64,n]",
        "product": "acc[n,m] += sum(k, w[n,k] * A[m,k])",
    },
    final={"store": "C[m,n] = acc[n,m]"},
    types={"P": int32},
)
"""Weights of 4 bits in their natural order, with a scale for 64 of them."""


ANY = Move.done()


def strategy(words=ANY, scales=ANY, pad=0, step=64):
    loop = unpacked.tile(m=64, n=64).to(Block).split(k=step).pipeline(2).warp_specialize(128).load("A", SH, Move.done())
    loop = loop.load("P", SH, words)
    loop = loop.pad(pad) if pad else loop
    tiles = loop.load("S", SH, scales).tile(n=64).to(Warpgroup)
    return tiles.step("product", MatMul.split(16).unroll().done()).done()


def kernel(m=64, n=128, k=256, **options):
    return strategy(**options)(unpacked(m=m, n=n, k=k, q=k // 8, g=k // 64))


def loads_of(program):
    return [stmt for stmt in ir.statements(program.body) if isinstance(stmt, ir.Exec) and stmt.instruction == TMA_DIGIT_LOAD]


@pytest.fixture(scope="module")
def program():
    return kernel().program("sm_90a")


def test_boxes_have_each_element_once(program):
    maps = {stmt.tensor_map.buffer: (stmt.tensor_map.order, stmt.tensor_map.box) for stmt in loads_of(program.ir)}
    assert maps == {"P": ((1, 0), (8, 64)), "S": ((1, 0), (64, 1))}
    assert program.cuda.count("tma_load(") == 4  # the function, and the loads of A, P and S
    assert "&P_map, k * 8, block * 64" in program.cuda and "&S_map, block * 64, k," in program.cuda


@pytest.mark.parametrize(("m", "n"), [(64, 128), (70, 104)])
def test_against_float64(m, n):
    """Rows of weights past the end are zeros in the box, and are not stored."""
    bound, k = kernel(m, n, 128), 128
    generator = np.random.default_rng(0)
    a, integers = generator.standard_normal((m, k)).astype(np.float16), generator.integers(0, 16, (n, k))
    scales = generator.random((k // 64, n)).astype(np.float16)
    words = sum(integers.reshape(n, k // 8, 8)[:, :, place] << 4 * place for place in range(8)).astype(np.uint32).view(np.int32)
    result = simulate(bound.program("sm_90a").ir, {"A": a, "P": words, "S": scales}, order=random.Random(0)).outputs["C"]
    right = a.astype(float) @ ((integers - 8) * np.repeat(scales.astype(float), 64, 0).T).T
    assert np.abs(result - right).max() < 2e-3 * np.abs(right).max()
    assert len(loads_of(bound.program("sm_90a").ir)) == 2


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"pad": 4}, "elements in the order of the array, without padding"),
        ({"step": 16}, "rows of a multiple of 16 bytes"),
        ({"n": 100}, "multiples of 16 bytes"),
    ],
    ids=["padding", "short rows", "stride of scales"],
)
def test_refused(options, reason):
    """The error states what differs; without a given instruction, threads copy the tile."""
    with pytest.raises(MatchError, match=reason):
        _ = kernel(words=Move.done(TMA_DIGIT_LOAD), scales=Move.done(TMA_DIGIT_LOAD), **options).program("sm_90a").cuda
    assert loads_of(kernel(**options).program("sm_90a").ir) == []


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"box": (8, 32)}, ""),
        ({"box": (4, 64)}, "at byte"),
        ({"box": (16, 64)}, "a box of the map has 1024 elements"),
        ({"span": 32}, "at byte"),
        ({"order": (0, 1)}, "is contiguous in the map"),
    ],
    ids=str,
)
def test_wrong_maps_are_reported(program, changes, text):
    def is_load(stmt):
        return isinstance(stmt, ir.Exec) and stmt.instruction == TMA_DIGIT_LOAD and stmt.tensor_map.buffer == "P"

    def changed(stmt):
        return (attrs.evolve(stmt, tensor_map=attrs.evolve(stmt.tensor_map, **changes)),)

    messages = [finding.message for finding in check_tma_boxes(AccessTrace(with_changed(program.ir, is_load, 0, changed)))]
    assert len(messages) == bool(text) and all(text in message for message in messages), messages


def test_a_digit_that_carries_is_reported():
    """Words 4 * (k // 32) + k // 2 % 4 from k = 64 on are a box; from k = 66 on, words of two groups change places."""
    program = w4a16.strategy.with_(bm=64, bn=64, stages=2)(w4a16.spec(64, 64, 256)).program("sm_90a")

    def is_load(stmt):
        return isinstance(stmt, ir.Exec) and stmt.instruction == TMA_DIGIT_LOAD and stmt.tensor_map.buffer == "P"

    def moved(by):
        def changed(stmt):
            outside, inside = stmt.accesses
            outside = attrs.evolve(outside, base=(outside.base[0], outside.base[1] + by))
            return (attrs.evolve(stmt, accesses=(outside, inside)),)

        return [one.message for one in check_tma_boxes(AccessTrace(with_changed(program.ir, is_load, 0, changed)))]

    assert moved(64) == [] and "a digit of element" in moved(2)[0]
    assert [one for one in check(program.lowered) if one.severity == "error"] == []
