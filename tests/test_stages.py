"""`stages` on a load: rings of different depths in one loop."""

import os
import random
import re

import attrs
import numpy as np
import pytest
from printed_text import COMPILER, HostProgram, Printed
from ringed import TARGET, errors, float16_gemm, is_product, ring_faults, with_changed
from test_graphene_text import read_back
from test_rings import is_harmless
from test_rings_by_users import COPY, MMA, STORED, given, outcome, wanted

from fireiron import *
from fireiron import ir
from fireiron.check.resources import report
from fireiron.ir.usage import pipelines
from fireiron.strategies import dual
from fireiron.values.expr import as_expr, mod

SEED = 20261123
SCALE = int(os.environ.get("FIREIRON_FUZZ", "1"))
OPERANDS = ("A", "B1", "B2")


def sums(sizes, depth, *, stages=4, blocks=1, rows=64, producer=True, late=None):
    """Two MMAs with a common A, whose loads have rings of the given depth by operand; bound."""
    chain = dual.definition.tile(m=rows, n=64).to(Block)
    chain = (chain.persistent(blocks) if blocks else chain).split(k=64).pipeline(stages)
    chain = chain.warp_specialize(128) if producer else chain
    chain = chain if late is None else chain.mma_in_flight(late)
    for name in OPERANDS:
        chain = chain.load(name, SH, COPY)
        chain = chain.stages(depth[name]) if name in depth else chain
    chain = chain.tile(m=64).to(Warpgroup).step("left", MMA).step("right", MMA)
    return chain.step("store", STORED).done()(dual.spec(*sizes))


UNEQUAL = sums((128, 64, 320), {"A": 3, "B1": 2}, stages=4)


def depth_of(program):
    """The stages of the rings, by buffer."""
    return {name: ring.stages for ring in program.ir.rings for name in ring.buffers}


def code(program):
    """The text without its header, which contains the strategy."""
    return program.cuda[program.cuda.index("#include") :]


def test_each_ring_has_its_stages():
    """The loop's period is a multiple of all depths; texts count each ring separately."""
    program = UNEQUAL.program(TARGET)
    assert depth_of(program) == {"a_sh": 3, "b1_sh": 2, "b2_sh": 4}
    assert {one.name: one.tensor.copies for one in program.ir.buffers if one.name in depth_of(program)} == depth_of(program)
    assert [loop.period for loop in ir.statements(program.ir.body) if isinstance(loop, ir.For) and loop.period] == [12, 12]
    tile = 64 * 64 * 2
    expected = [(3, tile, ("a_sh",)), (2, tile, ("b1_sh",)), (4, tile, ("b2_sh",))]
    assert [(one.stages, one.each, one.buffers) for one in pipelines(program.ir)] == expected
    assert "float16 64 x 64, 3 stages" in report(program.ir)
    counted = re.findall(r"\+\+k_stage\d* == (\d)\)", program.cuda)
    assert counted == ["3", "2", "4"] * 2


def test_equal_stages_are_those_of_the_pipeline():
    """Whether stated by load or by pipeline; buffers with the same users share a ring only if their depths are equal."""
    plain, explicit = (
        sums((64, 64, 128), depth, stages=stages).program(TARGET) for depth, stages in (({}, 2), (dict.fromkeys(OPERANDS, 2), 3))
    )
    assert code(plain) == code(explicit) and plain.ir.rings == explicit.ir.rings
    chain = MatMul.tile(64, 64).to(Block).epilog(RF, float32, Init.done(), Move.done()).split(64).pipeline(3).warp_specialize()
    program = (
        chain.load(A, SH, COPY).stages(2).load(B, SH, COPY).tile(64, 64).to(Warpgroup).done()(float16_gemm(64, 64, 128)).program(TARGET)
    )
    assert [(ring.buffers, ring.stages) for ring in program.ir.rings] == [(("a_sh",), 2), (("b_sh",), 3)]


@pytest.mark.parametrize("bound", [UNEQUAL, sums((64, 64, 192), {"A": 1}, stages=3, blocks=0, late=1)], ids=["unequal", "one stage"])
def test_kernels_are_right(bound):
    """No false findings, and equal to NumPy with fast and slow loads and MMAs, and warps in any order."""
    program = bound.program(TARGET)
    assert errors(program.ir) == []
    arrays = given(program.spec)
    assert {outcome(program.ir, arrays, wanted(program.spec, arrays), order) for order in (None, 1)} == {"right"}


@pytest.mark.nightly
@pytest.mark.skipif(COMPILER is None or SCALE == 1, reason="the long tier, with a C++ compiler")
def test_printed_text_on_a_cpu(tmp_path):
    program = UNEQUAL.program(TARGET)
    host = HostProgram([Printed.of(program)], tmp_path)
    arrays = given(program.spec)
    result = host.run(0, arrays, {}, 1)
    assert all(np.allclose(result[name], value, rtol=1e-2) for name, value in wanted(program.spec, arrays).items())


def test_text_is_read_back():
    program = UNEQUAL.program(TARGET)
    assert Strategy.from_json(UNEQUAL.to_json()) == UNEQUAL and eval(repr(UNEQUAL)) == UNEQUAL
    assert ".load('B1', SH, Move.done()).stages(2)" in repr(UNEQUAL)
    assert "%a_sh:[64,64].fp16.SH{stages=3, free}" in read_back(program)


# ---------------------------------------------------------------------------------------------- injected faults


def test_a_stage_counted_as_in_another_ring():
    """An operand at the stage that the iteration has in the ring of the other one: both detectors report it."""
    kernel = UNEQUAL.program(TARGET).ir
    ring = {name: one for one in kernel.rings for name in one.buffers}
    fill = next(one.fill_index for one in ir.statements(kernel.body) if isinstance(one, ir.Acquire))
    arrays = given(kernel.spec)
    for name, other in (("a_sh", "b1_sh"), ("b1_sh", "a_sh")):
        stage = mod(fill, as_expr(min(ring[other].stages, ring[name].stages))) if name == "a_sh" else mod(fill + fill // 2, as_expr(2))

        def moved(stmt, name=name, stage=stage):
            return (attrs.evolve(stmt, accesses=tuple(attrs.evolve(x, copy=stage) if x.buffer == name else x for x in stmt.accesses)),)

        faulty = with_changed(
            kernel, lambda one, name=name: is_product(one) and one.accesses[0 if name == "a_sh" else 1].buffer == name, 0, moved
        )
        assert errors(faulty), name
        assert outcome(faulty, arrays, wanted(kernel.spec, arrays), 3) != "right", name


def test_faults_are_found():
    """By both, also in the ring that the shallower ones order: a protocol violation and a wrong result, which need not be a race (decision
    39).
    """
    kernel = UNEQUAL.program(TARGET).ir
    arrays = given(kernel.spec)
    expected = wanted(kernel.spec, arrays)
    faulty_kernels = [(name, faulty) for name, faulty in ring_faults(kernel) if not is_harmless(name, kernel) and "Fence 1" not in name]
    assert len(faulty_kernels) > 80
    ordered = [
        (name, faulty) for name, faulty in faulty_kernels if re.match("early.*b2_|dropped: Acquire 5|a load to another stage of b2_", name)
    ]
    assert len(ordered) == 4
    drawn = random.Random(SEED).sample(
        [one for one in faulty_kernels if one[0] not in dict(ordered)], 8 if SCALE == 1 else len(faulty_kernels) - 4
    )
    for name, faulty in (*ordered, *drawn):
        assert errors(faulty), f"the checks miss {name}"
        assert any(outcome(faulty, arrays, expected, one) != "right" for one in (None, 3)), f"the simulator misses {name}"


def once_per_tile(stages):
    """The same MMAs in a persistent block, which loads A once per tile, outside of the split, with this number of stages if it is stated."""
    chain = dual.definition.tile(m=64, n=64).to(Block).persistent(1).load("A", SH, COPY)
    chain = (chain if stages is None else chain.stages(stages)).split(k=64).pipeline(2).warp_specialize(128)
    chain = chain.load("B1", SH, COPY).load("B2", SH, COPY).tile(m=64).to(Warpgroup).step("left", MMA).step("right", MMA)
    return chain.step("store", STORED).done()(dual.spec(192, 64, 128))


@pytest.mark.parametrize("stages", [None, 1])
def test_loads_once_per_tile(stages):
    """Two stages by default; with one, the producer waits until all MMAs of the tile have read it."""
    program = once_per_tile(stages).program(TARGET)
    assert depth_of(program)["a_sh"] == (stages or 2)
    kernel = program.ir
    arrays = given(kernel.spec)
    expected = wanted(kernel.spec, arrays)
    assert not errors(kernel) and outcome(kernel, arrays, expected, 3) == "right"
    ring = next(ring.name for ring in kernel.rings if "a_sh" in ring.buffers)
    for kind in (ir.Acquire, ir.Release):
        of_ring = [stmt for stmt in ir.statements(kernel.body) if isinstance(stmt, kind) and stmt.ring == ring]
        assert of_ring
        for number in range(len(of_ring)):
            faulty = with_changed(kernel, lambda stmt, kind=kind: isinstance(stmt, kind) and stmt.ring == ring, number, lambda _: ())
            assert errors(faulty), f"the checks miss a dropped {of_ring[number]}"


# ---------------------------------------------------------------------------------------------- refusals

REFUSED = {
    "no producer": (
        lambda: sums((64, 64, 128), {"A": 2}, producer=False),
        r"stages\(2\) of a_sh: no producer fills it, so it has no separate ring",
    ),
    "no loop": (
        lambda: (
            MatMul.tile(64, 64).to(Block).load(A, SH).stages(2).tile(8, 8).to(Thread).tile(1, 1).split(1).done()(float16_gemm(64, 64, 16))
        ),
        r"stages\(2\) of a_sh: no producer fills it, so it has no separate ring",
    ),
    "too many": (lambda: sums((64, 64, 128), {"A": 17}), r"stages: must be at most 16\n +got +17\n(.*\n)* +legal +1 \.\.\. 16"),
    "none": (lambda: sums((64, 64, 128), {"A": 0}), "stages: must be a positive integer"),
    "no room": (lambda: sums((64, 128, 320), {"A": 2, "B1": 16, "B2": 14}), r"stages\(11\), which takes 229888"),
    "registers": (
        lambda: MatMul.tile(16, 16).to(Block).load(A, RF).stages(2).done()(float16_gemm(16, 16, 16)),
        "stages has no effect on registers",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name):
    bound, message = REFUSED[name]
    with pytest.raises(FireironError) as caught:
        _ = bound().program(TARGET).ir
    assert re.search(message, str(caught.value)), caught.value


def test_where_threads_load_all_have_the_stages_of_the_pipeline():
    """As without a specification by `warp_specialize`."""
    copy = Move.coalesced_copy(8).done()

    def program(deep):
        chain = MatMul.tile(64, 64).to(Block).split(64).pipeline(2).warp_specialize().load(A, SH, copy)
        chain = (chain.stages(3) if deep else chain).load(B, SH, copy).tile(8, 4).to(Thread).tile(1, 1).split(1).done()
        return chain(float16_gemm(64, 64, 128)).program(TARGET)

    assert code(program(True)) == code(program(False))
