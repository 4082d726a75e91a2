"""Rings: kernels with a producer compared with NumPy, generated strategies, and faults that both race detectors must find."""

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

# ---------------------------------------------------------------------------------------------- against NumPy

KERNELS = {
    "two warpgroups along m": (product(), (256, 128, 320)),
    "two along n": (product((64, 128, 64), (64, 64), 3), (128, 256, 192)),
    "one warpgroup, a turn in flight": (product((64, 64, 64), (64, 64), 3), (128, 64, 448)),
    "swapped": (product((16, 128, 64), (16, 64), 3), (32, 128, 192)),
    "128 rows a warpgroup": (product((128, 64, 64), (128, 64), 2), (256, 64, 192)),
    "steps of 128": (product((64, 64, 128), (64, 64), 2), (64, 128, 384)),
    "a warpgroup produces": (product(producer=128), (128, 128, 192)),
    "stored by threads": (product(tma=False), (128, 64, 192)),
    "one stage": (product(stages=1), (128, 64, 192)),
    "more stages than turns": (product(stages=4), (128, 64, 128)),
    "persistent, bands": (product(blocks=3, bands=2), (512, 128, 192)),
}


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_are_right(name):
    strategy, sizes = KERNELS[name]
    require_right(strategy, float16_gemm(*sizes))


@pytest.mark.parametrize("orders", ORDERS)
def test_storage_orders(orders):
    """Every storage order of A and B is loaded as it is, and wgmma reads it so."""
    program = require_right(product((64, 128, 64), (64, 64)), float16_gemm(64, 256, 192, orders=orders))
    assert program.cuda.count("tma_load(") > 2


@pytest.mark.parametrize("strategy", [by_warps(), by_warps(3, producer=128), by_warps(tma=True), by_threads(3)], ids=str)
def test_other_consumers(strategy):
    """Threads that read shared memory by ordinary loads are consumers, too; a warp barrier precedes their arrival."""
    kernel = require_right(strategy, float16_gemm(128, 64, 192, c_dtype=float32)).ir
    (loop,) = [one for one in ir.statements(kernel.body) if isinstance(one, ir.For) and any(isinstance(s, ir.Acquire) for s in one.body)][
        :1
    ]
    assert [type(one) for one in loop.body[-2:]] == [ir.Barrier, ir.Release] and loop.body[-2].scope == ir.WARP_SCOPE


@pytest.mark.parametrize("sizes", [(136, 72, 40), (8, 8, 8), (72, 200, 64), (200, 136, 328)])
@pytest.mark.parametrize("blocks", [0, 3])
def test_ragged_sizes(sizes, blocks):
    """Out-of-bounds elements are loaded as zeros and not stored: the tensor maps ensure it."""
    program = require_right(product(blocks=blocks, bands=2 * (blocks > 0)), float16_gemm(*sizes), orders=(None,))
    assert "tma_load(" in program.cuda and "tma_store(" in program.cuda


@pytest.mark.parametrize("blocks", [0, 3])
def test_sizes_known_at_run_time(blocks):
    """One kernel for all of them, checked once."""
    program = product(blocks=blocks, bands=2 * (blocks > 0))(float16_gemm(M, N, K)).program(TARGET)
    assert errors(program.ir) == []
    for sizes in ((136, 72, 40), (256, 128, 192), (8, 8, 8), (200, 136, 328)):
        values = dict(zip("MNK", sizes, strict=True))
        arrays, expected = inputs_of(program.spec, values)
        assert outcome(program.ir, arrays, expected, 1, values) == "right", sizes


# ---------------------------------------------------------------------------------------------- drawn strategies


def drawn(seed):
    """A generated strategy with a ring, and a problem for it."""
    chance = random.Random(seed)
    bk = chance.choice((64, 64, 128))
    wm, wn = chance.choice(((64, 64), (64, 128), (64, 32), (128, 64), (64, 96), (16, 64)))
    beside = chance.choice(((1, 1), (2, 1), (1, 2)))
    tiles = (wm * beside[0], wn * beside[1], bk)
    stages = chance.randint(1, min(4, 196608 // ((tiles[0] + tiles[1]) * bk * 2)))
    options = {
        "producer": chance.choice((32, 128)),
        "chunk": 32 if wn % 64 else 64 if wm < 64 else chance.choice((64, 32)),
        "in_flight": chance.choice((None, *range(min(stages, 3)))),
        "bands": chance.choice((0, 2)),
        "blocks": chance.choice((0, 0, 2, 3)),
        "tma": chance.random() < 0.7,
    }
    sizes = tuple(max(8, tile * chance.randint(1, 3) - chance.choice((0, 0, 8, 24))) for tile in tiles)
    return product(tiles, (wm, wn), stages, **options), float16_gemm(*sizes, orders=chance.choice(list(ORDERS)))


@pytest.mark.parametrize("chunk", range(4))
def test_drawn_strategies(chunk):
    """No false alarm, and equal to NumPy in lockstep and in random order."""
    for seed in range(SEED + chunk, SEED + 16 * SCALE, 4):
        strategy, spec = drawn(seed)
        print(seed, strategy, spec)
        require_right(strategy, spec, orders=(None, seed) if SCALE > 1 else (seed,))


# ---------------------------------------------------------------------------------------------- planted faults

FAULTY = {
    "one tile": (product(), (128, 64, 448)),
    "a turn in flight": (product((64, 64, 64), (64, 64), 3, blocks=2), (256, 64, 192)),
    "a turn a tile": (product(blocks=2), (768, 64, 64)),
    "both, with several stores": (product((128, 128, 64), (64, 128), 2, blocks=2, chunk=32, in_flight=1), (768, 128, 64)),
}


def is_harmless(name, kernel):
    """Changes that are no faults: the last wait after a loop that has waited itself; and fills a phase later, which use the same stage: the
    text of an arrival contains only the stage.
    """
    return "a round later: Release" in name or (
        ir.For in map(type, kernel.body[-1].roles[0].body) and "Wait" in name and "all stores" in name
    )


def require_found(name, kernel, arrays, expected, orders):
    """Both detectors find a fault, or neither reports a correct kernel."""
    found = errors(kernel)
    met = {outcome(kernel, arrays, expected, order) for order in orders}
    assert found, f"the race check misses {name}"
    assert met != {"right"}, f"the simulator misses {name}"


@pytest.mark.parametrize("problem", ["one tile", *(list(FAULTY)[1:] if SCALE > 1 else ())])
def test_faults_are_found_by_both(problem):
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
def test_some_faults_of_other_kernels(problem):
    """A few random faults of each kernel; the nightly tier runs all."""
    strategy, sizes = FAULTY[problem]
    kernel = strategy(float16_gemm(*sizes)).program(TARGET).ir
    arrays, expected = inputs_of(kernel.spec)
    found = [(name, faulty) for name, faulty in ring_faults(kernel) if not is_harmless(name, kernel)]
    for name, faulty in random.Random(SEED).sample(found, 6):
        require_found(f"{name} of {problem}", faulty, arrays, expected, (3,))


# ---------------------------------------------------------------------------------------------- what the simulator says


def kernel_with_faults():
    """A small kernel for injected faults, its arrays, and the expected result."""
    kernel = product()(float16_gemm(128, 64, 320)).program(TARGET).ir
    return kernel, *inputs_of(kernel.spec)


def is_turn(loop):
    """Whether it is a loop over the fills of a ring."""
    return any(isinstance(one, ir.Acquire) for one in loop.body)


def shorter(loop):
    """The loop without its last iteration."""
    return (attrs.evolve(loop, extent=loop.extent - 1),)


def not_by_warp_3(release):
    """The arrivals of all warps but one."""
    thread = Var("thread", 0, 255)
    return (attrs.evolve(release, active=all_of((release.active, any_of((less(thread, as_expr(96)), less(as_expr(127), thread)))))),)


FULL, EMPTY = ({"state": side} for side in (ir.StageState.FULL, ir.StageState.EMPTY))

SAID = {
    "parity": (
        lambda kernel: with_changed(kernel, of_kind(ir.Acquire, **FULL), 0, later(2)),
        r"k_ring: the wait for fill 2 to be full passes by parity alone: 0 phases are complete, not 2",
    ),
    "released, not held": (
        lambda kernel: with_changed(kernel, of_kind(ir.Release, **EMPTY), 0, later(1)),
        r"k_ring: fill 1 is released by a group that has not acquired it",
    ),
    "released too early": (
        lambda kernel: with_changed(kernel, of_kind(ir.Wait, mechanism=WGMMA_GROUPS), 0, dropped),
        r"k_ring: fill 0 is released while products that read it are in flight",
    ),
    "read, not held": (
        lambda kernel: with_changed(kernel, is_product, 0, stage_moved(0, 2)),
        r"a_sh: stage 1 is read by a group that has not acquired it full\b.*WGMMA",
    ),
    "read, held empty": (
        lambda kernel: with_changed(kernel, of_kind(ir.Acquire, **FULL), 0, lambda one: (attrs.evolve(one, state=ir.StageState.EMPTY),)),
        r"a_sh: stage 0 is read by a group that has not acquired it full",
    ),
    "written, not held": (
        lambda kernel: with_changed(kernel, is_load, 0, stage_moved(1, 2)),
        r"a_sh: stage 1 is written by a group that has not acquired it empty\b.*TMA_LOAD",
    ),
    "full too early": (
        lambda kernel: with_rings(kernel, lambda ring: attrs.evolve(ring, bytes=128 * 64 * 2)),
        r"k_ring: fill 0 counts as full while a load to it is in flight|deadlock: .* 0 of 1 arrivals and -8192 bytes missing",
    ),
    "bytes that never come": (
        lambda kernel: with_rings(kernel, lambda ring: attrs.evolve(ring, bytes=ring.bytes + 16)),
        r"deadlock: warps 0 to 7 wait for fill 0 of k_ring to be full \(a_sh, b_sh; 0 phases complete, 0 of 1 arrivals and 16 bytes missing\): "
        r"the producer has arrived; the producer waits for fill 2 of k_ring to be empty .*: fill 0 has not been released by warps 0 to 7",
    ),
    "half a phase": (
        lambda kernel: with_rings(kernel, lambda ring: attrs.evolve(ring, consumers=ring.consumers - 1)),
        r"k_ring: the empty mbarrier of stage 0 ends with an incomplete phase: \d of 7 arrivals and 0 bytes missing",
    ),
    "nobody releases": (
        lambda kernel: with_changed(kernel, of_kind(ir.Release, **EMPTY), 0, dropped),
        r"deadlock: the producer waits for fill 2 of k_ring to be empty \(a_sh, b_sh; 0 phases complete, 8 of 8 arrivals and 0 bytes missing\): "
        r"fill 0 has not been released by warps 0 to 7; warps 0 to 7 wait for fill 2 of k_ring to be full .*: the producer has not arrived"
        r".*each fill of a ring must be filled once",
    ),
    "nobody fills": (
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
    "a turn that nobody wants": (
        lambda kernel: with_changed(kernel, lambda one: isinstance(one, ir.For) and is_turn(one), 0, shorter),
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


@pytest.mark.parametrize("name", SAID)
@pytest.mark.parametrize("order", [None, 5])
def test_the_simulator_says_what_is_wrong(name, order):
    fault, text = SAID[name]
    kernel, arrays, expected = kernel_with_faults()
    said = outcome(fault(kernel), arrays, expected, order)
    assert re.search(text, said, re.DOTALL), said


CHECKED = {
    "parity": r"k_ring: the wait for fill 2 to be full passes by parity alone: 0 phases are complete, not 1",
    "released, not held": r"k_ring: the arrival for fill 1 to be empty uses stage 1, but the agent is at fill 0",
    "bytes that never come": r"k_ring: agent \d waits forever for fill 0 to be full",
    "half a phase": r"k_ring: the empty mbarrier of stage \d ends with an incomplete phase|a_sh.*\bno barrier orders them",
    "nobody releases": r"k_ring: agent 8 waits forever for fill 2 to be empty",
    "a turn that nobody wants": r"k_ring: no group waits for fill 4",
    "a store at the end": r"store_c_sh: TMA_STORE .* may read it after the block exits: no thread waits for its group",
}


@pytest.mark.parametrize("name", CHECKED)
def test_the_race_check_says_what_is_wrong(name):
    kernel, _, _ = kernel_with_faults()
    said = errors(SAID[name][0](kernel))
    assert any(re.search(CHECKED[name], one) for one in said), said
