"""Tiles that blocks take from a counter as they become free: right in every order, and what is wrong with how a block comes by one is found."""

import random

import attrs
import numpy as np
import printed_text
import pytest
from faults import dropped
from problems import integers
from ringed import float16_gemm, product

from fireiron import *
from fireiron import ir
from fireiron.check import AccessTrace, check_dynamic_scheduler, check_races
from fireiron.check.persistence import persistence, static_schedule
from fireiron.errors import SimulationError
from fireiron.sim import simulate

TARGET, BLOCKS = "sm_90a", 3


def program_of(spec=None, **options):
    """A product by blocks that stay, whose tiles are all as long, so that only the order in which they are taken differs."""
    strategy = product((64, 64, 64), (64, 64), blocks=BLOCKS, dynamic=True, **options)
    return strategy(float16_gemm(256, 136, 64) if spec is None else spec).program(TARGET)


PROGRAM = program_of()


def factors(spec, sizes=()):
    """Factors of small integers, and the product."""
    values = np.random.default_rng(0)
    shapes = ([int(one.evaluate(dict(sizes))) for one in spec.operands[name].shape] for name in "AB")
    a, b = (integers(tuple(shape), float16, values) for shape in shapes)
    return {"A": a, "B": b}, (a.astype(np.float32) @ b.astype(np.float32)).astype(np.float16)


def edited(edit, kernel=PROGRAM.lowered):
    """The kernel with each statement as an edit makes it."""
    return attrs.evolve(kernel, body=ir.rewritten(kernel.body, edit))


def of_tiles(change, takes=None):
    """The kernel with another statement in the place of each that says a tile's number, or of those of who takes it, or is told."""
    return edited(lambda one: change(one) if isinstance(one, ir.ClaimTile) and takes in (None, one.takes) else (one,))


def with_ring(**changes):
    """The kernel with a ring of tiles of another kind."""
    kernel = PROGRAM.lowered
    return attrs.evolve(kernel, rings=tuple(attrs.evolve(one, **changes) if one.tiles else one for one in kernel.rings))


def test_any_order_is_right():
    """Without an order each block takes every third tile; else who comes first is drawn, and some take none but their own."""
    arrays, expected = factors(PROGRAM.spec)
    for order in (None, 1):
        got = simulate(PROGRAM.ir, arrays, order=None if order is None else random.Random(order)).outputs["C"]
        np.testing.assert_array_equal(got, expected)


def test_sizes_known_at_run_time():
    """Fewer tiles than blocks, and more."""
    program = program_of(float16_gemm(sym("M", multiple_of=8), sym("N", multiple_of=8), 64), group_m=2)
    assert "gridDim.x)" in program.text
    for m, n in ((64, 64), (264, 136)):
        arrays, expected = factors(program.spec, {"M": m, "N": n}.items())
        got = simulate(program.ir, arrays, {"M": m, "N": n}, order=random.Random(3)).outputs["C"]
        np.testing.assert_array_equal(got, expected)


def test_no_counter_where_each_block_has_one_tile():
    kernel = program_of(float16_gemm(64, 128, 64)).lowered
    assert kernel.counter is None and not persistence(kernel) and not any(one.tiles for one in kernel.rings)


def test_one_way_of_dealing_them():
    """For readers who want one, that of blocks that take tiles in turns."""
    static = product((64, 64, 64), (64, 64), blocks=BLOCKS)(float16_gemm(256, 136, 64)).program(TARGET).lowered
    (one, other), (wanted, _) = persistence(static_schedule(PROGRAM.lowered)), persistence(static)
    assert one.tiles == other.tiles == wanted.tiles and one.loop.extent == wanted.loop.extent
    assert one.tile.value.evaluate({"block": 1, "iteration": 2}) == 7 and static_schedule(static) is static


FAULTS = {
    "nobody leaves the loop": edited(lambda one: () if isinstance(one, ir.ExitIfDone) else (one,)),
    "the number of the next turn": of_tiles(lambda one: (attrs.evolve(one, fill_index=one.fill_index + 1),)),
    "two tiles a turn": of_tiles(lambda one: (one, attrs.evolve(one, var=Var("other", 0, 9))), True),
    "more tiles for the producer": of_tiles(lambda one: (attrs.evolve(one, tiles=one.tiles + 1),), True),
    "nobody takes": of_tiles(lambda one: (attrs.evolve(one, takes=False),), True),
    "all take": of_tiles(lambda one: (attrs.evolve(one, takes=True),), False),
    "too many arrivals": with_ring(consumers=5),
    "too few arrivals": with_ring(consumers=3),
    "more blocks than tiles": attrs.evolve(PROGRAM.lowered, grid=PROGRAM.lowered.grid + 100),
    "every second turn": edited(
        lambda one: (attrs.evolve(one, step=2),) if isinstance(one, ir.For) and one.var.name == "iteration" else (one,)
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_found(name):
    access_trace = AccessTrace(FAULTS[name])
    assert any(one.severity == "error" for one in (*check_dynamic_scheduler(access_trace), *check_races(access_trace)))


def test_waits_and_arrivals_that_are_missing_are_found():
    """By the check and by the simulator: the number overwritten before it is read, read before it is there, and never given on."""
    arrays, _ = factors(PROGRAM.spec)
    count = 0
    for one, faulty in dropped(PROGRAM.lowered):
        if getattr(one, "ring", "") == "tile_ring":
            count, access_trace = count + 1, AccessTrace(faulty)
            assert any(found.severity == "error" for found in (*check_dynamic_scheduler(access_trace), *check_races(access_trace))), one
            with pytest.raises(SimulationError):
                simulate(faulty, arrays, order=random.Random(1))
    assert count == 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda: product((64, 64, 64), (64, 64), blocks=2, dynamic=True, cluster=(2, 1)), "blocks of a cluster compute adjacent tiles"),
        (lambda: product((64, 64, 64), (64, 64), blocks=2, dynamic=True, pingpong=2), "groups alternate tiles"),
        (
            lambda: (
                MatMul.tile(64, 64)
                .to(Block)
                .programmatic_launch()
                .persistent(2, dynamic=True)
                .tile(8, 8)
                .to(Thread)
                .tile(1, 1)
                .split(1)
                .done()
            ),
            "the preceding kernel may still claim tiles",
        ),
        (
            lambda: MatMul.tile(64, 64).to(Block).persistent(2, dynamic=True).tile(8, 8).to(Thread).tile(1, 1).split(1).done(),
            "the kernel has no producer to claim tiles",
        ),
    ],
    ids=("cluster", "turns", "chained", "no producer"),
)
def test_refusals(change, message):
    with pytest.raises(DecompositionError, match=message) as caught:
        change()(float16_gemm(512, 256, 64)).program(TARGET).ir  # noqa: B018
    assert "dynamic=True" in str(caught.value)


def test_a_flag_that_is_none():
    with pytest.raises(ArgumentError, match="dynamic is true or false"):
        MatMul.tile(64, 64).to(Block).persistent(2, dynamic=3)


def test_it_is_written_as_it_reads():
    plain, counted = (MatMul.tile(64, 64).to(Block).persistent(2, flag).steps[0].label() for flag in (False, True))
    assert plain.endswith(".persistent(2)") and counted.endswith(".persistent(2, dynamic=True)")


TEXTS = {
    "as it is printed": None,
    "numbers are not waited for": (r"mbarrier_wait\(tile_ring_full.*", ""),
    "numbers are overwritten early": (r"mbarrier_wait\(tile_ring_empty.*", ""),
    "the last to ask leaves the counter": (r"atomicInc\(counter, num_tiles - 1\)", "atomicAdd(counter, 1u)"),
    "a tile is taken twice": (r"iteration == 0 \? block : ", ""),
    "numbers are never given on": (r"mbarrier_arrive\(tile_ring_full.*", ""),
    "consumers stay": (r"if \(tile >= 12\) break;", ""),
}


@pytest.mark.nightly
@pytest.mark.skipif(printed_text.COMPILER is None, reason="no C++ compiler")
def test_printed_text(tmp_path):
    """The text itself, run by threads in random order, and with faults planted in it."""
    printed = printed_text.Printed.of(PROGRAM)
    host = printed_text.HostProgram([printed if one is None else printed.changed(*one) for one in TEXTS.values()], tmp_path)
    arrays, expected = factors(PROGRAM.spec)
    for number, name in enumerate(TEXTS):
        wrong = 0
        for seed in range(1 if number == 0 else 4):
            try:
                wrong += not np.array_equal(host.run(number, arrays, seed=seed)["C"], expected)
            except printed_text.Refused:
                wrong += 1
        assert bool(wrong) == bool(number), name
