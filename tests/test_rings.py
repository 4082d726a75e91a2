"""Circular buffers: kernels with a producer against NumPy, generated strategies, and injected faults for race check and simulator."""

import os
import random
import re

import attrs
import pytest
from ringed import (
    ORDERS,
    TARGET,
    by_all_lanes,
    by_threads,
    by_warps,
    dropped,
    errors,
    float16_gemm,
    inputs_of,
    is_load,
    is_product,
    later,
    of_kind,
    outcome,
    product,
    require_right,
    ring_faults,
    stage_moved,
    weaker,
    with_changed,
    with_rings,
)

from fireiron import *
from fireiron import ir
from fireiron.ir.mechanisms.tma_store import TMA_STORES
from fireiron.ir.mechanisms.wgmma import WGMMA_GROUPS
from fireiron.values.expr import Var, all_of, any_of, as_expr, less

np = pytest.importorskip("numpy")
SCALE = int(os.environ.get("FIREIRON_FUZZ", "1"))
SEED = 20271122
M, N, K = sym("M", multiple_of=8), sym("N", multiple_of=8), sym("K", multiple_of=8)

# ---------------------------------------------------------------------------------------------- results against NumPy

KERNELS = {
    "two warpgroups along m": (product(), (256, 128, 320)),
    "two along n": (product((64, 128, 64), (64, 64), 3), (128, 256, 192)),
    "one warpgroup, an iteration in flight": (product((64, 64, 64), (64, 64), 3), (128, 64, 448)),
    "swapped": (product((16, 128, 64), (16, 64), 3), (32, 128, 192)),
    "128 rows a warpgroup": (product((128, 64, 64), (128, 64), 2), (256, 64, 192)),
    "steps of 128": (product((64, 64, 128), (64, 64), 2), (64, 128, 384)),
    "a warpgroup produces": (product(producer=128), (128, 128, 192)),
    "stored by threads": (product(tma=False), (128, 64, 192)),
    "one stage": (product(stages=1), (128, 64, 192)),
    "more stages than iterations": (product(stages=4), (128, 64, 128)),
    "persistent, bands": (product(blocks=3, group_m=2), (512, 128, 192)),
}


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_are_right(name):
    strategy, sizes = KERNELS[name]
    require_right(strategy, float16_gemm(*sizes))


@pytest.mark.parametrize("orders", ORDERS)
def test_storage_orders(orders):
    """Each storage order of A and B is loaded unchanged, and wgmma reads it in that order."""
    program = require_right(product((64, 128, 64), (64, 64)), float16_gemm(64, 256, 192, orders=orders))
    assert program.cuda.count("tma_load(") > 2


@pytest.mark.parametrize("strategy", [by_warps(), by_warps(3, producer=128), by_warps(tma=True), by_threads(3)], ids=str)
def test_ordinary_consumers(strategy):
    """Ordinary loads from shared memory are consumers too; a warp barrier precedes their release."""
    kernel = require_right(strategy, float16_gemm(128, 64, 192, c_dtype=float32)).ir
    (loop,) = [one for one in ir.statements(kernel.body) if isinstance(one, ir.For) and any(isinstance(s, ir.Acquire) for s in one.body)][
        :1
    ]
    assert [type(one) for one in loop.body[-2:]] == [ir.Barrier, ir.Release] and loop.body[-2].scope == ir.WARP_SCOPE


@pytest.mark.parametrize("sizes", [(136, 72, 40), (8, 8, 8), (72, 200, 64), (200, 136, 328)])
@pytest.mark.parametrize("blocks", [0, 3])
def test_sizes_that_are_no_multiples_of_tiles(sizes, blocks):
    """TMA loads zeros for out-of-bounds elements and does not store them."""
    program = require_right(product(blocks=blocks, group_m=2 * (blocks > 0)), float16_gemm(*sizes), orders=(None,))
    assert "tma_load(" in program.cuda and "tma_store(" in program.cuda


@pytest.mark.parametrize("blocks", [0, 3])
def test_sizes_known_at_run_time(blocks):
    """One kernel for all sizes, checked once."""
    program = product(blocks=blocks, group_m=2 * (blocks > 0))(float16_gemm(M, N, K)).program(TARGET)
    assert errors(program.ir) == []
    for sizes in ((136, 72, 40), (256, 128, 192), (8, 8, 8), (200, 136, 328)):
        values = dict(zip("MNK", sizes, strict=True))
        arrays, expected = inputs_of(program.spec, values)
        assert outcome(program.ir, arrays, expected, 1, values) == "right", sizes


# ---------------------------------------------------------------------------------------------- generated strategies


def generated(seed):
    """A generated strategy with a ring, and a problem for it."""
    chance = random.Random(seed)
    bk = chance.choice((64, 64, 128))
    wm, wn = chance.choice(((64, 64), (64, 128), (64, 32), (128, 64), (64, 96), (16, 64)))
    warpgroups = chance.choice(((1, 1), (2, 1), (1, 2)))
    tiles = (wm * warpgroups[0], wn * warpgroups[1], bk)
    stages = chance.randint(1, min(4, 196608 // ((tiles[0] + tiles[1]) * bk * 2)))
    options = {
        "producer": chance.choice((32, 128)),
        "chunk": 32 if wn % 64 else 64 if wm < 64 else chance.choice((64, 32)),
        "mma_in_flight": chance.choice((None, *range(min(stages, 3)))),
        "group_m": chance.choice((0, 2)),
        "blocks": chance.choice((0, 0, 2, 3)),
        "tma": chance.random() < 0.7,
    }
    sizes = tuple(max(8, tile * chance.randint(1, 3) - chance.choice((0, 0, 8, 24))) for tile in tiles)
    return product(tiles, (wm, wn), stages, **options), float16_gemm(*sizes, orders=chance.choice(list(ORDERS)))


@pytest.mark.parametrize("chunk", range(4))
def test_generated_strategies(chunk):
    """The race check accepts the kernel. Results equal NumPy with warps in order and in a random order."""
    for seed in range(SEED + chunk, SEED + 16 * SCALE, 4):
        strategy, spec = generated(seed)
        print(seed, strategy, spec)
        require_right(strategy, spec, orders=(None, seed) if SCALE > 1 else (seed,))


# ---------------------------------------------------------------------------------------------- injected faults

FAULTY = {
    "one tile": (product(), (128, 64, 448)),
    "an iteration in flight": (product((64, 64, 64), (64, 64), 3, blocks=2), (256, 64, 192)),
    "one iteration per tile": (product(blocks=2), (768, 64, 64)),
    "both, with several stores": (product((128, 128, 64), (64, 128), 2, blocks=2, chunk=32, mma_in_flight=1), (768, 128, 64)),
}


def is_harmless(name, kernel):
    """Faults without effect: a redundant last wait for stores, and releases of a later fill of the same stage.

    The printed arrival contains only the stage, so both fills print the same text.
    """
    return "a round later: Release" in name or (
        ir.For in map(type, kernel.body[-1].roles[0].body) and "Wait" in name and "all stores" in name
    )


def require_found(name, kernel, arrays, expected, orders):
    """Race check and simulator both find the fault."""
    reports = errors(kernel)
    outcomes = {outcome(kernel, arrays, expected, order) for order in orders}
    assert reports, f"the race check misses {name}"
    assert outcomes != {"right"}, f"the simulator misses {name}"


@pytest.mark.parametrize("problem", ["one tile", *(list(FAULTY)[1:] if SCALE > 1 else ())])
def test_race_check_and_simulator_find_ring_faults(problem):
    strategy, sizes = FAULTY[problem]
    kernel = strategy(float16_gemm(*sizes)).program(TARGET).ir
    arrays, expected = inputs_of(kernel.spec)
    assert errors(kernel) == []
    count = 0
    for name, faulty in ring_faults(kernel):
        if not is_harmless(name, kernel):
            require_found(f"{name} of {problem}", faulty, arrays, expected, (None, 3, 4) if SCALE > 1 else (3,))
            count += 1
    assert count >= 20


@pytest.mark.parametrize("problem", list(FAULTY)[1:])
def test_sampled_faults_of_other_kernels(problem):
    """A random sample per kernel; the long tier takes all faults."""
    strategy, sizes = FAULTY[problem]
    kernel = strategy(float16_gemm(*sizes)).program(TARGET).ir
    arrays, expected = inputs_of(kernel.spec)
    faults = [(name, faulty) for name, faulty in ring_faults(kernel) if not is_harmless(name, kernel)]
    for name, faulty in random.Random(SEED).sample(faults, 6):
        require_found(f"{name} of {problem}", faulty, arrays, expected, (3,))


# ---------------------------------------------------------------------------------------------- error messages


def kernel_with_faults():
    """A small kernel, its arrays and the expected output."""
    kernel = product()(float16_gemm(128, 64, 320)).program(TARGET).ir
    return kernel, *inputs_of(kernel.spec)


def is_fill_loop(loop):
    """Whether a loop acquires fills of a ring."""
    return any(isinstance(one, ir.Acquire) for one in loop.body)


def shorter(loop):
    """The loop without its last iteration."""
    return (attrs.evolve(loop, extent=loop.extent - 1),)


def not_by_warp_3(release):
    """The arrivals of all warps except warp 3."""
    thread = Var("thread", 0, 255)
    return (attrs.evolve(release, active=all_of((release.active, any_of((less(thread, as_expr(96)), less(as_expr(127), thread)))))),)


FULL, EMPTY = ({"state": side} for side in (ir.StageState.FULL, ir.StageState.EMPTY))

SIMULATOR_ERRORS = {
    "parity": (
        lambda kernel: with_changed(kernel, of_kind(ir.Acquire, **FULL), 0, later(2)),
        r"k_ring: the wait for fill 2 to be full passes by parity alone: 0 phases are complete, not 2",
    ),
    "released, not acquired": (
        lambda kernel: with_changed(kernel, of_kind(ir.Release, **EMPTY), 0, later(1)),
        r"k_ring: fill 1 is released by a group that has not acquired it",
    ),
    "released too early": (
        lambda kernel: with_changed(kernel, of_kind(ir.Wait, mechanism=WGMMA_GROUPS), 0, dropped),
        r"k_ring: fill 0 is released while MMAs that read it are in flight",
    ),
    "read, not acquired": (
        lambda kernel: with_changed(kernel, is_product, 0, stage_moved(0, 2)),
        r"a_sh: stage 1 is read by a group that has not acquired it full\b.*WGMMA",
    ),
    "read, acquired empty": (
        lambda kernel: with_changed(kernel, of_kind(ir.Acquire, **FULL), 0, lambda one: (attrs.evolve(one, state=ir.StageState.EMPTY),)),
        r"a_sh: stage 0 is read by a group that has not acquired it full",
    ),
    "written, not acquired": (
        lambda kernel: with_changed(kernel, is_load, 0, stage_moved(1, 2)),
        r"a_sh: stage 1 is written by a group that has not acquired it empty\b.*TMA_LOAD",
    ),
    "full too early": (
        lambda kernel: with_rings(kernel, lambda ring: attrs.evolve(ring, bytes=128 * 64 * 2)),
        r"k_ring: fill 0 becomes full while a load to it is in flight|deadlock: .* 0 of 1 arrivals and -8192 bytes missing",
    ),
    "bytes that never come": (
        lambda kernel: with_rings(kernel, lambda ring: attrs.evolve(ring, bytes=ring.bytes + 16)),
        r"deadlock: warps 0 to 7 wait for fill 0 of k_ring to be full \(a_sh, b_sh; 0 phases complete, 0 of 1 arrivals and 16 bytes missing\): "
        r"the producer has arrived; the producer waits for fill 2 of k_ring to be empty .*: fill 0 has not been released by warps 0 to 7",
    ),
    "half a phase": (
        lambda kernel: with_rings(kernel, lambda ring: attrs.evolve(ring, consumers=ring.consumers - 1)),
        r"k_ring: fill 0 becomes empty before all threads have arrived.*counts 7 arrivals per phase",
    ),
    "no warp releases": (
        lambda kernel: with_changed(kernel, of_kind(ir.Release, **EMPTY), 0, dropped),
        r"deadlock: the producer waits for fill 2 of k_ring to be empty \(a_sh, b_sh; 0 phases complete, 8 of 8 arrivals and 0 bytes missing\): "
        r"fill 0 has not been released by warps 0 to 7; warps 0 to 7 wait for fill 2 of k_ring to be full .*: the producer has not arrived"
        r".*each fill of a ring must be filled once",
    ),
    "no arrival fills": (
        lambda kernel: with_changed(kernel, of_kind(ir.Release, **FULL), 0, dropped),
        r"deadlock: warps 0 to 7 wait for fill 0 of k_ring to be full .*-24576 bytes missing\): the producer has not arrived; "
        r"the producer waits for fill 2",
    ),
    "one warp does not release": (
        lambda kernel: with_changed(kernel, of_kind(ir.Release, **EMPTY), 0, not_by_warp_3),
        r"deadlock: the producer waits for fill 2 of k_ring to be empty \(.*1 of 8 arrivals.*fill 0 has not been released by warp 3; ",
    ),
    "all lanes release": (
        lambda kernel: with_changed(kernel, of_kind(ir.Release, **EMPTY), 0, by_all_lanes),
        r"fill 0 has been released by warps 0 to 7, by some of them more than once",
    ),
    "a consumer too many": (
        lambda kernel: with_rings(kernel, lambda ring: attrs.evolve(ring, consumers=ring.consumers + 1)),
        r"deadlock: .*fill 0 has been released by warps 0 to 7, and the ring counts 9 consumers",
    ),
    "an unused fill": (
        lambda kernel: with_changed(kernel, lambda one: isinstance(one, ir.For) and is_fill_loop(one), 0, shorter),
        r"k_ring: no group waits for fill 4",
    ),
    "a store at the end": (
        lambda kernel: with_changed(kernel, of_kind(ir.Wait, mechanism=TMA_STORES), 0, weaker),
        r"a TMA store may read shared memory after the block exits",
    ),
    "no fence": (
        lambda kernel: with_changed(kernel, of_kind(ir.Fence, kind=ir.FenceKind.ASYNC_PROXY), 0, dropped),
        r"store_c_sh is read through the async proxy, which does not see what was written to it",
    ),
}


@pytest.mark.parametrize("name", SIMULATOR_ERRORS)
@pytest.mark.parametrize("order", [None, 5])
def test_simulator_messages(name, order):
    fault, text = SIMULATOR_ERRORS[name]
    kernel, arrays, expected = kernel_with_faults()
    message = outcome(fault(kernel), arrays, expected, order)
    assert re.search(text, message, re.DOTALL), message


RACE_CHECK_MESSAGES = {
    "parity": r"k_ring: the wait for fill 2 to be full passes by parity alone: 0 phases are complete, not 1",
    "released, not acquired": r"k_ring: the arrival for fill 1 to be empty uses stage 1, but the agent is at fill 0",
    "bytes that never come": r"k_ring: agent \d waits forever for fill 0 to be full",
    "half a phase": r"k_ring: the empty mbarrier of stage \d ends with an incomplete phase|a_sh.*\bno barrier orders them",
    "no warp releases": r"k_ring: agent 8 waits forever for fill 2 to be empty",
    "an unused fill": r"k_ring: no agent waits for fill 4",
    "a store at the end": r"store_c_sh: TMA_STORE .* may read it after the block exits: no thread waits for its group",
}


@pytest.mark.parametrize("name", RACE_CHECK_MESSAGES)
def test_race_check_messages(name):
    kernel, _, _ = kernel_with_faults()
    messages = errors(SIMULATOR_ERRORS[name][0](kernel))
    assert any(re.search(RACE_CHECK_MESSAGES[name], one) for one in messages), messages
