"""`share_stages`: loads that share the stages of one ring, in the text, in the simulator, with injected faults, and refused."""

import random
import types

import attrs
import numpy as np
import pytest
from printed_text import COMPILER, HostProgram, Printed
from ringed import TARGET, dropped, errors, float16_gemm, ring_faults, roles_of, with_changed
from test_rings import is_harmless
from test_rings_by_users import U, V, given, loop_of_fills, outcome, pair, wanted

from fireiron import *
from fireiron import ir
from fireiron.lower.shared_stages import SharedStages
from fireiron.values.notation import parse_tensor, tensor_text
from fireiron.values.tensor import Tensor

BOTH = (("C", "A"), ("E", "B"))
"""C alternates with A in a ring, and E with B."""

AFTER = ["full a k * 2 + 1", *V[1:]]
FIRST = ["full a k * 2", *U[1:]]


def test_one_ring_has_the_fills_of_both_loads():
    """It has the number of stages that `pipeline` specifies, and only A's and B's buffers."""
    kernel = pair("u v low", stages=3, shares=BOTH).program(TARGET).ir
    assert [(ring.buffers, ring.stages) for ring in kernel.rings] == [(("a_sh", "b_sh"), 3)]
    assert {one.name for one in kernel.buffers if one.memory.of_block} == {"a_sh", "b_sh", "store_u_sh"}
    assert kernel.shared_bytes < pair("u v low", stages=2).program(TARGET).ir.shared_bytes
    consumers, producer = roles_of(kernel)
    assert [str(one.fill_index) for one in ir.statements(producer.body) if isinstance(one, ir.Acquire)] == ["k * 2", "k * 2 + 1"]
    assert not [one for one in ir.statements(consumers.body) if isinstance(one, ir.Exec) and one.ring]


@pytest.mark.parametrize(
    ("order", "stages", "mma_in_flight", "expected"),
    [
        ("u v", 4, 0, [*FIRST, "wait 0", "empty a k * 2", *AFTER, "wait 0", "empty a k * 2 + 1"]),
        ("u v", 3, 1, [*FIRST, "wait 1", "empty a k * 2 - 1 later", *AFTER, "wait 1", "empty a k * 2"]),
        ("u v low high", 2, None, [*FIRST, *AFTER, "wait 1", "empty a k * 2", "do u", "wait 0", "empty a k * 2 + 1", "do v"]),
    ],
)
def test_stages_are_released_one_by_one(order, stages, mma_in_flight, expected):
    body, _ = loop_of_fills(pair(order, stages=stages, shares=BOTH, mma_in_flight=mma_in_flight).program(TARGET))
    assert body == expected


RIGHT = {
    "three stages, tiles": pair("u low v", (192, 64, 192), blocks=2, stages=3, shares=BOTH),
    "two stages": pair("u v low high", stages=2, shares=BOTH, rows=128),
    "one later": pair("u v", (192, 64, 192), blocks=2, stages=3, shares=BOTH, mma_in_flight=1),
}


@pytest.mark.parametrize("name", ["three stages, tiles", *(pytest.param(name, marks=pytest.mark.nightly) for name in RIGHT)])
def test_kernels_are_right(name):
    program = RIGHT[name].program(TARGET)
    assert errors(program.ir) == []
    arrays = given(program.spec)
    assert {outcome(program.ir, arrays, wanted(program.spec, arrays), order) for order in (None, 1)} == {"right"}


@pytest.mark.nightly
@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")
def test_the_printed_text_on_a_cpu(tmp_path):
    program = RIGHT["three stages, tiles"].program(TARGET)
    arrays = given(program.spec)
    results = HostProgram([Printed.of(program)], tmp_path).run(0, arrays, {}, 1)
    assert all(np.allclose(results[name], value, rtol=1e-2) for name, value in wanted(program.spec, arrays).items())


@pytest.mark.parametrize(
    ("which", "count"), [("three stages, tiles", 4), *(pytest.param(name, 400, marks=pytest.mark.nightly) for name in RIGHT)]
)
def test_faults_are_found_by_both(which, count):
    """Operations on the common ring left out, moved or too early."""
    kernel = RIGHT[which].program(TARGET).ir
    arrays = given(kernel.spec)
    expected = wanted(kernel.spec, arrays)
    fences = [one for one in ir.statements(kernel.body) if isinstance(one, ir.Fence) and one.kind is ir.FenceKind.WGMMA_REGISTERS]
    spare = with_changed(
        kernel, lambda one: one is fences[1], 0, dropped
    ).body  # of registers that no statement accessed after the previous fence
    faults = [(name, faulty) for name, faulty in ring_faults(kernel) if not is_harmless(name, kernel) and faulty.body != spare]
    assert len(faults) > 30
    for name, faulty in random.Random(5).sample(faults, min(count, len(faults))):
        assert errors(faulty), f"the race check misses {name}"
        assert any(outcome(faulty, arrays, expected, one) != "right" for one in (None, 3)), f"the simulator misses {name}"


# ---------------------------------------------------------------------------------------------- refused


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shares": (("C", "E"), ("E", "B"))}, "share_stages('E'): no load to SH above this one allocates a buffer for that operand"),
        ({"shares": (("B", "A"),)}, "share_stages: a_sh, b_sh are used together"),
        (
            {"shares": (("C", "A"),)},
            "share_stages: c_sh, e_sh are used together, so each must share the stages of a different buffer of one ring",
        ),
        ({"shares": (("C", "A"), ("E", "A"))}, "share_stages: c_sh, e_sh are used together"),
        ({"shares": BOTH, "stages": 1}, "share_stages: each iteration has 2 fills in the stages of a_sh, b_sh"),
        ({"shares": (("C", "B"),), "rows": 128}, "share_stages('B'): a stage can only hold tiles of one shape and type"),
    ],
)
def test_refused(options, message):
    with pytest.raises(DecompositionError) as caught:
        _ = pair("u v low", **options).program(TARGET).ir
    assert str(caught.value).startswith(message)


def test_a_ring_is_needed():
    """Copies by all threads have no ring, and registers cannot be shared."""
    plain = (
        MatMul.split(64).pipeline(2).load(A, SH, Move.coalesced_copy(8).done()).load(B, SH, Move.coalesced_copy(8).done()).share_stages(A)
    )
    chain = MatMul.tile(64, 64).to(Block).then(plain).tile(8, 4).to(Thread).tile(1, 1).split(1).done()
    with pytest.raises(DecompositionError, match="share_stages: no producer fills b_sh,"):
        _ = chain(float16_gemm(64, 64, 128)).program(TARGET).stages["pipeline"]
    chain = MatMul.tile(64, 64).to(Block).load(A, SH, Move.done()).load(B, RF, Move.done()).share_stages(A).done()
    with pytest.raises(DecompositionError, match="share_stages has no effect on registers, which threads do not share"):
        _ = chain(float16_gemm(64, 64, 64)).program(TARGET).tree


def test_texts():
    """The text of a strategy lists its refinements; the text of a tensor can be read back."""
    assert ".load(C, SH, Move.done()).share_stages('A')" in str(pair("u v", shares=BOTH)).replace("\n", "").replace("  ", "")
    tensor = parse_tensor("%h_sh:[64,64].fp16.SH{free, shares=x_sh}")
    assert tensor.shares == "x_sh" and parse_tensor(tensor_text(tensor)) == tensor


def test_operands_of_one_mma_cannot_share_stages():
    """With a ring of one buffer they would have the same bytes in each iteration."""
    ring = Tensor("a_sh", (64, 64), float16, SH, RowMajor)
    both = [attrs.evolve(ring, name=name, shares="a_sh") for name in ("c_sh", "e_sh")]
    slots = SharedStages(types.SimpleNamespace(buffers=[types.SimpleNamespace(name=one.name, tensor=one) for one in (ring, *both)]))
    loop = types.SimpleNamespace(origin=None)
    assert slots.rings([["a_sh"], ["c_sh"]], {"a_sh": 2}, loop) == [[["a_sh"], ["c_sh"]]]
    for others, legal in (([["a_sh"]], "those of a_sh"), ([], "this split has no ring of other buffers")):
        with pytest.raises(DecompositionError, match="share_stages: c_sh, e_sh are used together") as caught:
            slots.rings([*others, ["c_sh", "e_sh"]], {"a_sh": 4}, loop)
        assert caught.value.legal == legal
