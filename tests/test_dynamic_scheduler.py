"""Dynamic tile scheduling: correct in every order of blocks, and faults in the claiming of tiles are found."""

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
    """A GEMM with persistent blocks and equal tiles, so that only the order of the tiles differs."""
    strategy = product((64, 64, 64), (64, 64), blocks=BLOCKS, dynamic=True, **options)
    return strategy(float16_gemm(256, 136, 64) if spec is None else spec).program(TARGET)


PROGRAM = program_of()


def factors(spec, sizes=()):
    """Operands of small integers, and the result."""
    values = np.random.default_rng(0)
    shapes = ([int(one.evaluate(dict(sizes))) for one in spec.operands[name].shape] for name in "AB")
    a, b = (integers(tuple(shape), float16, values) for shape in shapes)
    return {"A": a, "B": b}, (a.astype(np.float32) @ b.astype(np.float32)).astype(np.float16)


def edited(edit, kernel=PROGRAM.lowered):
    """The kernel with each statement edited."""
    return attrs.evolve(kernel, body=ir.rewritten(kernel.body, edit))


def of_tiles(change, takes=None):
    """The kernel with each `ClaimTile` changed, or only those of the claiming thread or of the others."""
    return edited(lambda one: change(one) if isinstance(one, ir.ClaimTile) and takes in (None, one.takes) else (one,))


def with_ring(**changes):
    """The kernel with changed fields of the ring of tiles."""
    kernel = PROGRAM.lowered
    return attrs.evolve(kernel, rings=tuple(attrs.evolve(one, **changes) if one.tiles else one for one in kernel.rings))


def test_all_orders_of_blocks_are_correct():
    """Without an order each block gets every third tile; with a random order, some blocks get only one tile."""
    arrays, expected = factors(PROGRAM.spec)
    for order in (None, 1):
        got = simulate(PROGRAM.ir, arrays, order=None if order is None else random.Random(order)).outputs["C"]
        np.testing.assert_array_equal(got, expected)


def test_sizes_known_at_run_time():
    """With fewer tiles than blocks, and with more."""
    program = program_of(float16_gemm(sym("M", multiple_of=8), sym("N", multiple_of=8), 64), group_m=2)
    assert "gridDim.x)" in program.text
    for m, n in ((64, 64), (264, 136)):
        arrays, expected = factors(program.spec, {"M": m, "N": n}.items())
        got = simulate(program.ir, arrays, {"M": m, "N": n}, order=random.Random(3)).outputs["C"]
        np.testing.assert_array_equal(got, expected)


def test_no_counter_if_each_block_has_one_tile():
    kernel = program_of(float16_gemm(64, 128, 64)).lowered
    assert kernel.counter is None and not persistence(kernel) and not any(one.tiles for one in kernel.rings)


def test_the_static_schedule_of_dynamic_tiles():
    """Analyses that need a schedule use that of blocks with tiles in round-robin order."""
    static = product((64, 64, 64), (64, 64), blocks=BLOCKS)(float16_gemm(256, 136, 64)).program(TARGET).lowered
    (first, second), (wanted, _) = persistence(static_schedule(PROGRAM.lowered)), persistence(static)
    assert first.tiles == second.tiles == wanted.tiles and first.loop.extent == wanted.loop.extent
    assert first.tile.value.evaluate({"block": 1, "iteration": 2}) == 7 and static_schedule(static) is static


FAULTS = {
    "no exit from the loop": edited(lambda one: () if isinstance(one, ir.ExitIfDone) else (one,)),
    "the number of the next fill": of_tiles(lambda one: (attrs.evolve(one, fill_index=one.fill_index + 1),)),
    "two tiles per iteration": of_tiles(lambda one: (one, attrs.evolve(one, var=Var("other", 0, 9))), True),
    "more tiles for the producer": of_tiles(lambda one: (attrs.evolve(one, tiles=one.tiles + 1),), True),
    "no thread claims": of_tiles(lambda one: (attrs.evolve(one, takes=False),), True),
    "all threads claim": of_tiles(lambda one: (attrs.evolve(one, takes=True),), False),
    "too many arrivals": with_ring(consumers=5),
    "too few arrivals": with_ring(consumers=3),
    "more blocks than tiles": attrs.evolve(PROGRAM.lowered, grid=PROGRAM.lowered.grid + 100),
    "every second iteration": edited(
        lambda one: (attrs.evolve(one, step=2),) if isinstance(one, ir.For) and one.var.name == "iteration" else (one,)
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_found(name):
    access_trace = AccessTrace(FAULTS[name])
    assert any(one.severity == "error" for one in (*check_dynamic_scheduler(access_trace), *check_races(access_trace)))


def test_missing_waits_and_arrivals_are_found():
    """By the check and by the simulator: a number that is overwritten before it is read, read before it is stored, or never released."""
    arrays, _ = factors(PROGRAM.spec)
    count = 0
    for name, faulty in dropped(PROGRAM.lowered):
        if getattr(name, "ring", "") == "tile_ring":
            count, access_trace = count + 1, AccessTrace(faulty)
            assert any(found.severity == "error" for found in (*check_dynamic_scheduler(access_trace), *check_races(access_trace))), name
            with pytest.raises(SimulationError):
                simulate(faulty, arrays, order=random.Random(1))
    assert count == 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda: product((64, 64, 64), (64, 64), blocks=2, dynamic=True, cluster=(2, 1)), "blocks of a cluster compute adjacent tiles"),
        (lambda: product((64, 64, 64), (64, 64), blocks=2, dynamic=True, pingpong=2), "groups alternate between tiles by index"),
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


def test_an_invalid_flag():
    with pytest.raises(ArgumentError, match="dynamic must be True or False"):
        MatMul.tile(64, 64).to(Block).persistent(2, dynamic=3)


def test_repr_and_json():
    plain, counted = (MatMul.tile(64, 64).to(Block).persistent(2, flag).steps[0].label() for flag in (False, True))
    assert plain.endswith(".persistent(2)") and counted.endswith(".persistent(2, dynamic=True)")


TEXTS = {
    "as it is printed": None,
    "no wait for the tile index": (r"mbarrier_wait\(tile_ring_full.*", ""),
    "a tile index is overwritten early": (r"mbarrier_wait\(tile_ring_empty.*", ""),
    "the last claim does not reset the counter": (r"atomicInc\(counter, num_tiles - 1\)", "atomicAdd(counter, 1u)"),
    "a tile is claimed twice": (r"iteration == 0 \? block : ", ""),
    "a tile index is never released": (r"mbarrier_arrive\(tile_ring_full.*", ""),
    "consumers do not exit": (r"if \(tile >= 12\) break;", ""),
}


@pytest.mark.nightly
@pytest.mark.skipif(printed_text.COMPILER is None, reason="no C++ compiler")
def test_printed_text(tmp_path):
    """The printed text, executed by threads in random order, and with injected faults."""
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
