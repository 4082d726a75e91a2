"""Verbs of Hopper's fused strategies combined: defer, order_mma, share_stages, dynamic tiles; on attention and on two GEMMs."""

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
    ordered=(),
    share=False,
    first="K",
    blocks=0,
    dynamic=False,
    mma_in_flight=None,
    stages=2,
    skip=False,
    **options,
):
    """Attention with some of the verbs."""
    definition = attention.definition(**options)
    chain = definition.tile(m=rows, r=1, g=1, b=1).to(Block)
    chain = chain.persistent(blocks, dynamic) if blocks else chain
    chain = chain.load("Q", SH, copy).split(n=16).pipeline(stages).warp_specialize()
    chain = chain.defer("pv", after="s") if delay else chain
    chain = chain.order_mma(*ordered) if ordered else chain
    chain = chain if mma_in_flight is None else chain.mma_in_flight(mma_in_flight)
    chain = chain.skip_masked_tiles() if skip else chain
    second = "V" if first == "K" else "K"
    chain = chain.load(first, SH, copy).load(second, SH, copy)
    chain = chain.share_stages(first) if share else chain
    chain = chain.tile(m=64).to(Warpgroup).step("s", by_warpgroups).step("pv", by_warpgroups).step("store", stored(16)).done()
    return chain(attention.spec(*sizes, 16, fused=definition)).program(TARGET)


def require_right(program, **masks):
    """No finding, and equal to softmax, with warps in random order."""
    assert errors(program.ir) == []
    arrays = inputs(program.spec)
    near_softmax(program.spec, arrays, **masks).require(simulate(program.ir, arrays, order=random.Random(1)).outputs)


RIGHT = {
    "order_mma with shared stages": ((128, 32), {"rows": 128, "ordered": ("s", "pv"), "share": True, "mma_in_flight": 0}),
    "order_mma of values alone": ((128, 32), {"rows": 128, "ordered": ("pv", "pv"), "share": True, "mma_in_flight": 0}),
    "loads in another order than they are used": ((64, 80), {"first": "V", "share": True, "stages": 3}),
    "tiles of one dimension, as blocks become free": ((192, 192), {"causal": True, "skip": True, "blocks": 2, "dynamic": True}),
}


@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=[pytest.mark.nightly] if "alone" in one or "tiles" in one else []) for one in RIGHT]
)
def test_kernels_are_right(name):
    sizes, options = RIGHT[name]
    require_right(attended(sizes, **options), **({"causal": True} if "causal" in options else {}))


def test_the_tile_number_determines_the_trip_count():
    """As claimed from the counter, if the tiles have one dimension."""
    assert "n_count += tile * 4 + 4;" in attended((192, 192), causal=True, skip=True, blocks=2, dynamic=True).cuda


def test_fills_of_the_last_iteration_are_derived_from_the_trip_count():
    """The number of a tile's last block of keys, times the number of warpgroups, is not a number of blocks of keys."""
    sizes, options = (256, 256), {"rows": 128, "causal": True, "skip": True}
    assert errors(attended(sizes, delay=True, ordered=("pv", "pv"), **options).ir) == []


def test_shared_stages_are_filled_in_the_order_of_use():
    """Whichever load is written first."""
    producer = next(one for one in attended((64, 80), first="V", share=True).ir.body if isinstance(one, ir.Roles)).roles[1]
    loads = [(one.accesses[0].buffer, str(one.fill_index)) for one, _ in ir.execs(producer.body) if one.accesses[0].buffer in "KV"]
    assert loads == [("K", "n * 2"), ("V", "n * 2 + 1")]


def test_early_releases_are_detected_with_ordered_mma():
    """Each warpgroup counts the fills of all rings except the order separately."""
    kernel = attended((128, 48), rows=128, delay=True, ordered=("s", "pv")).ir
    for ring, number in (("k_sh_ring", 1), ("v_sh_ring", 0)):
        faulty = with_changed(kernel, of_kind(ir.Release, ring=ring, state=ir.StageState.EMPTY), number, later(-1))
        assert any("but the agent is at fill" in str(one) for one in errors(faulty))


DUAL = Fused(
    name="dual", dims="m n k", loop="k", operands={"A": "m k", "B": "k n", "C": "k n", "D": "m n"},
    init={"one": "p[m,n] = 0", "other": "q[m,n] = 0"},
    body={"left": "p[m,n] += sum(k, A[m,k] * B[k,n])", "right": "q[m,n] += sum(k, A[m,k] * C[k,n])"},
    final={"sum": "h[m,n] = p[m,n] + q[m,n]", "store": "D[m,n] = h[m,n]"},
)  # fmt: skip


def both_read(blocks=lambda tiles: tiles, change=lambda chain: chain.defer("right", after="left"), m=64):
    """Two MMAs with a common operand, one of them deferred by an iteration."""
    chain = change(blocks(DUAL.tile(m=64, n=16).to(Block)).split(k=16).pipeline(3).warp_specialize())
    for name in "ABC":
        chain = chain.load(name, SH, copy)
    chain = chain.tile(m=64).to(Warpgroup).step("left", by_warpgroups).step("right", by_warpgroups).step("store", stored(16)).done()
    return chain(DUAL(m=m, n=72, k=32, dtype=float16)).program(TARGET)


def test_coordinates_of_tiles_from_a_counter_are_enumerated():
    """With raster groups ranges alone do not prove that they are in bounds; all other findings are checked, too."""
    program = both_read(lambda tiles: tiles.rasterize(group_m=2).persistent(2, dynamic=True), lambda chain: chain, m=192)
    assert not [one for one in check(program.ir) if one.severity == "error"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (both_read, "which runs an iteration later, read stages of one ring"),
        (lambda: attended((64, 80), delay=True, share=True, stages=4), "share the stages of k_sh are read in different iterations"),
    ],
    ids=("one factor", "share"),
)
def test_stages_of_one_ring_are_released_in_the_iteration_that_waits(change, message):
    with pytest.raises(DecompositionError, match=message) as caught:
        _ = change().ir
    assert "leave out" in str(caught.value) and "defer(...)" in str(caught.value)


def test_a_product_writes_registers_as_it_numbers_them():
    """Also with a single instruction: a later copy would read the registers while the MMA runs."""
    assert "s_values" not in attended((64, 32)).text
