"""Verbs of Hopper's fused strategies together: delay, turns of warpgroups, share, tiles from a counter; on attention and on two products."""

import random

import pytest
from ringed import TARGET, errors, later, of_kind, with_changed
from test_fused_attention import inputs, near_softmax

from fireiron import *
from fireiron import ir
from fireiron.check import check
from fireiron.sim import simulate
from fireiron.strategies import attention
from fireiron.strategies._fused import by_warpgroups, stored

copy = Move.done()


def attended(
    sizes,
    *,
    rows=64,
    delay=False,
    turns=(),
    share=False,
    first="K",
    blocks=0,
    dynamic=False,
    in_flight=None,
    stages=2,
    skip=False,
    **options,
):
    """Attention with some of the verbs."""
    made = attention.definition(**options)
    chain = made.tile(m=rows, r=1, g=1, b=1).to(Block)
    chain = chain.persistent(blocks, dynamic) if blocks else chain
    chain = chain.load("Q", SH, copy).split(n=16).pipeline(stages).warp_specialize()
    chain = chain.defer("pv", after="s") if delay else chain
    chain = chain.order_mma(*turns) if turns else chain
    chain = chain if in_flight is None else chain.mma_in_flight(in_flight)
    chain = chain.skip_masked_tiles() if skip else chain
    second = "V" if first == "K" else "K"
    chain = chain.load(first, SH, copy).load(second, SH, copy)
    chain = chain.share_stages(first) if share else chain
    chain = chain.tile(m=64).to(Warpgroup).step("s", by_warpgroups).step("pv", by_warpgroups).step("store", stored(16)).done()
    return chain(attention.spec(*sizes, 16, made=made)).program(TARGET)


def require_right(program, **masks):
    """No finding, and the softmax, with warps in random order."""
    assert errors(program.ir) == []
    arrays = inputs(program.spec)
    near_softmax(program.spec, arrays, **masks).require(simulate(program.ir, arrays, order=random.Random(1)).outputs)


RIGHT = {
    "turns in the slots of one ring": ((128, 32), {"rows": 128, "turns": ("s", "pv"), "share": True, "in_flight": 0}),
    "turns of values alone": ((128, 32), {"rows": 128, "turns": ("pv", "pv"), "share": True, "in_flight": 0}),
    "loads in another order than they are used": ((64, 80), {"first": "V", "share": True, "stages": 3}),
    "tiles of one dimension, as blocks become free": ((192, 192), {"causal": True, "skip": True, "blocks": 2, "dynamic": True}),
}


@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=[pytest.mark.nightly] if "alone" in one or "tiles" in one else []) for one in RIGHT]
)
def test_kernels_are_right(name):
    sizes, options = RIGHT[name]
    require_right(attended(sizes, **options), **({"causal": True} if "causal" in options else {}))


def test_the_number_of_a_tile_says_how_long_its_loop_is():
    """As it is taken from the counter, where tiles have one dimension."""
    assert "n_before += tile * 4 + 4;" in attended((192, 192), causal=True, skip=True, blocks=2, dynamic=True).cuda


def test_turns_of_the_last_iteration_are_told_by_how_many_there_are():
    """The number of the last block of keys of a tile, times the warpgroups, is no more a number of blocks of keys itself."""
    sizes, options = (256, 256), {"rows": 128, "causal": True, "skip": True}
    assert errors(attended(sizes, delay=True, turns=("pv", "pv"), **options).ir) == []


def test_slots_have_turns_in_the_order_of_use():
    """Whichever load is written first."""
    producer = next(one for one in attended((64, 80), first="V", share=True).ir.body if isinstance(one, ir.Roles)).roles[1]
    loads = [(one.accesses[0].buffer, str(one.fill_index)) for one, _ in ir.execs(producer.body) if one.accesses[0].buffer in "KV"]
    assert loads == [("K", "n * 2"), ("V", "n * 2 + 1")]


def test_stages_given_back_too_early_are_found_where_warpgroups_take_turns():
    """The turns of all rings but the order are each warpgroup's own."""
    kernel = attended((128, 48), rows=128, delay=True, turns=("s", "pv")).ir
    for ring, number in (("k_sh_ring", 1), ("v_sh_ring", 0)):
        faulty = with_changed(kernel, of_kind(ir.Release, ring=ring, state=ir.StageState.EMPTY), number, later(-1))
        assert any("it is the agent's turn" in str(one) for one in errors(faulty))


DUAL = Fused(
    name="dual", dims="m n k", loop="k", operands={"A": "m k", "B": "k n", "C": "k n", "D": "m n"},
    init={"one": "p[m,n] = 0", "other": "q[m,n] = 0"},
    body={"left": "p[m,n] += sum(k, A[m,k] * B[k,n])", "right": "q[m,n] += sum(k, A[m,k] * C[k,n])"},
    final={"sum": "h[m,n] = p[m,n] + q[m,n]", "store": "D[m,n] = h[m,n]"},
)  # fmt: skip


def both_read(blocks=lambda tiles: tiles, change=lambda turns: turns.defer("right", after="left"), m=64):
    """Two products of one factor, one of them a turn later."""
    chain = change(blocks(DUAL.tile(m=64, n=16).to(Block)).split(k=16).pipeline(3).warp_specialize())
    for name in "ABC":
        chain = chain.load(name, SH, copy)
    chain = chain.tile(m=64).to(Warpgroup).step("left", by_warpgroups).step("right", by_warpgroups).step("store", stored(16)).done()
    return chain(DUAL(m=m, n=72, k=32, dtype=float16)).program(TARGET)


def test_coordinates_of_tiles_from_a_counter_are_enumerated():
    """In bands, where ranges alone do not say that they stay inside; and all else that is found of a kernel."""
    program = both_read(lambda tiles: tiles.rasterize(group_m=2).persistent(2, dynamic=True), lambda turns: turns, m=192)
    assert not [one for one in check(program.ir) if one.severity == "error"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (both_read, "which is done a turn later, read stages of one ring"),
        (lambda: attended((64, 80), delay=True, share=True, stages=4), "share the slots of k_sh are read in different turns"),
    ],
    ids=("one factor", "share"),
)
def test_stages_of_one_ring_are_given_back_in_the_turn_that_waits_for_them(change, said):
    with pytest.raises(DecompositionError, match=said) as caught:
        _ = change().ir
    assert "leave out" in str(caught.value) and "defer(...)" in str(caught.value)


def test_a_product_writes_registers_as_it_numbers_them():
    """Of one instruction alone, too: what is copied behind it would be read while it runs."""
    assert "s_values" not in attended((64, 32)).text
