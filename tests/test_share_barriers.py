"""`share_barriers`: loads that complete on the same mbarriers, in the simulator, with injected faults, and refused."""

import functools

import pytest
from ringed import TARGET, dropped, errors, float16_gemm, roles_of, with_changed

from fireiron import *
from fireiron import ir
from fireiron.errors import FireironError
from fireiron.graphene import graphene_text, parse_kernel
from fireiron.language.store import dumps, loads
from fireiron.strategies import attention_backward as file


@functools.cache
def bound_of(joined=True, **options):
    form = file.by_keys(file.definition(late=True, dk_of="dst"), **file.AT_END, **{"tma": False, "joined": joined, **options})
    spec = file.spec(100, 70, 64, fused=form.start)
    return file.with_values(form, {**file.values(spec), "bm": 64, "stages": 2})(spec)


def test_rings_are_joined():
    rings = [{ring.buffers for ring in bound_of(joined).program(TARGET).ir.rings} for joined in (False, True)]
    assert {("l_sh",), ("q_sh",), ("d_sh",), ("do_sh",)} < rings[0] and {("l_sh", "q_sh"), ("d_sh", "do_sh")} < rings[1]
    consumers, producer = roles_of(bound_of().program(TARGET).ir)
    acquired = [len([one for one in ir.statements(role.body) if isinstance(one, ir.Acquire)]) for role in (consumers, producer)]
    assert acquired == [3, 3]  # K with V, Q with L, dO with D


def test_check_and_notation():
    program = bound_of().program(TARGET)
    assert errors(program.ir) == []
    assert parse_kernel(graphene_text(program)).text == program.text
    assert loads(dumps(bound_of())).program(TARGET).cuda == program.cuda
    assert "joins=q_sh" in graphene_text(program) and ".share_barriers('Q')" in program.text


@pytest.mark.parametrize("kind", [ir.Acquire, ir.Release])
def test_a_missing_wait_or_release_is_found(kind):
    program = bound_of().program(TARGET)
    planted = with_changed(program.ir, lambda stmt: isinstance(stmt, kind) and stmt.ring == "q_sh_ring", 0, dropped)
    assert errors(planted)


REFUSALS = {
    "another operand": (lambda chain: chain.load("A", SH, Move.done()).share_barriers("B"), "no load to SH above this one"),
    "registers": (
        lambda chain: chain.load("A", SH, Move.done()).load("B", RF).share_barriers("A"),
        "share_barriers has no effect on registers",
    ),
    "other stages": (
        lambda chain: chain.load("A", SH, Move.done()).load("B", SH, Move.done()).stages(2).share_barriers("A"),
        "b_sh 2, a_sh 3",
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals(name):
    add, words = REFUSALS[name]
    chain = float16_gemm_chain().split(64).pipeline(3).warp_specialize()
    with pytest.raises(FireironError) as caught:
        add(chain).tile(64, 64).to(Warpgroup).done().cuda(TARGET)
    assert words in str(caught.value)


def float16_gemm_chain():
    return float16_gemm(128, 128, 192).tile(128, 64).to(Block).epilog(RF, float32)


def test_threads_that_copy_have_no_barriers():
    chain = float16_gemm_chain().split(64).pipeline(3).load("A", SH, Move.coalesced_copy(8).done())
    with pytest.raises(FireironError, match="share_barriers: no producer fills b_sh"):
        chain.load("B", SH, Move.coalesced_copy(8).done()).share_barriers("A").tile(64, 64).to(Warpgroup).done().cuda(TARGET)
