"""Ping-pong consumer groups: kernels against NumPy, their text, and faults in their order that both detectors must find."""

import os
import random
import re

import attrs
import making
import pytest
from printed_text import COMPILER, HostProgram, Printed
from ringed import (
    TARGET,
    dropped,
    errors,
    float16_gemm,
    inputs_of,
    later,
    of_kind,
    outcome,
    product,
    require_right,
    ring_faults,
    roles_of,
    with_changed,
    with_rings,
)

from fireiron import *
from fireiron import cuda, ir
from fireiron.gpu.toolchain import compile_cuda, toolchains

np = pytest.importorskip("numpy")
SCALE = int(os.environ.get("FIREIRON_FUZZ", "1"))
SEED = 20271204
M, N, K = sym("M", multiple_of=8), sym("N", multiple_of=8), sym("K", multiple_of=8)


def alternating(tiles=(64, 64, 64), warpgroup=(64, 64), stages=3, blocks=2, **options):
    """A GEMM in which two consumer groups alternate the tiles of a block (ping-pong)."""
    return product(tiles, warpgroup, stages, blocks=blocks, pingpong=2, **options)


# ---------------------------------------------------------------------------------------------- against NumPy

KERNELS = {
    "a warpgroup each": (alternating(), (512, 64, 192)),
    "two warpgroups each": (alternating((128, 64, 64), stages=2), (640, 64, 192)),
    "an odd number of tiles": (alternating(blocks=3), (64 * 20, 64, 128)),
    "one block, many tiles": (alternating(blocks=1), (64 * 18, 64, 320)),
    "a warpgroup produces": (alternating(producer=128), (512, 128, 128)),
    "no iteration in flight": (alternating(mma_in_flight=0), (512, 64, 192)),
    "swapped, one stage": (alternating((16, 64, 64), (16, 64), 1), (96, 128, 192)),
    "along a curve, ragged": (alternating(group_m=(1, 2), blocks=3), (520, 136, 72)),
    "more stages than iterations": (alternating((64, 128, 64), (64, 128), 4), (320, 256, 64)),
    "stored by threads": (alternating(tma=False), (256, 128, 192)),
}


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_are_right(name):
    strategy, sizes = KERNELS[name]
    program = require_right(strategy, float16_gemm(*sizes), orders=(None, 1, 2))
    assert [role.name for role in roles_of(program.ir)] == ["consumers, group 0", "consumers, group 1", "producer"]


@pytest.mark.parametrize("copied", [False, True], ids=("by TMA", "by all threads"))
def test_a_tile_whose_ring_is_in_a_loop_has_one_position_in_the_order(copied):
    """If groups arrived for the next in each iteration of the loop around, one would overtake the other: a race."""
    chain = MatMul.tile(64, 64).to(Block).persistent(2).pingpong(2).epilog(RF).split(64)
    chain = chain.pipeline(2).load(B, SH).split(32) if copied else chain.split(32)
    chain = chain.pipeline(3).warp_specialize().load(A, SH, Move.done())
    chain = chain if copied else chain.load(B, SH, Move.done())
    kernel = require_right(chain.tile(64, 64).to(Warpgroup).done(), float16_gemm(128, 192, 128)).ir
    tiles = [next(one for one in role.body if isinstance(one, ir.For)) for role in roles_of(kernel)[:2]]
    order = next(ring.name for ring in kernel.rings if ring.is_order)
    for tile in tiles:
        of_order = [type(one) for one in tile.body if isinstance(one, (ir.Acquire, ir.Release)) and one.ring == order]
        assert of_order == [ir.Acquire, ir.Release]


@pytest.mark.nightly
def test_sizes_known_at_run_time():
    """One kernel for all sizes; in a block without a second tile, a group has no work."""
    program = alternating(group_m=2)(float16_gemm(M, N, K)).program(TARGET)
    assert errors(program.ir) == []
    for sizes in ((136, 72, 40), (256, 128, 192), (8, 8, 8), (400, 136, 328)):
        values = dict(zip("MNK", sizes, strict=True))
        arrays, expected = inputs_of(program.spec, values)
        assert outcome(program.ir, arrays, expected, 1, values) == "right", sizes


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", range(3 * SCALE))
def test_drawn(seed):
    chance = random.Random(SEED + seed)
    wm, wn = chance.choice(((64, 64), (64, 32), (16, 64)))
    tiles = (wm * chance.choice((1, 2)), wn, 64)
    strategy = alternating(tiles, (wm, wn), chance.randint(1, 4), chance.randint(1, 3), producer=chance.choice((32, 128)))
    sizes = (tiles[0] * chance.randint(3, 8) - 8, tiles[1] * chance.randint(1, 3), 64 * chance.randint(1, 4) - chance.choice((0, 24)))
    print(strategy, sizes)
    require_right(strategy, float16_gemm(*sizes), orders=(seed,))


# ---------------------------------------------------------------------------------------------- the lowered kernel


def test_each_group_has_its_iterations_and_its_memory():
    kernel = alternating()(float16_gemm(512, 64, 192)).program(TARGET).ir
    groups = roles_of(kernel)[:2]
    loops = [next(one for one in group.body if isinstance(one, ir.For)) for group in groups]
    assert [(one.first, one.step) for one in loops] == [(0, 2), (1, 2)] and loops[0].extent == loops[1].extent
    order, ring = sorted(kernel.rings, key=lambda one: len(one.buffers))
    assert (order.stages, order.buffers, order.consumers) == (2, (), 4) and ring.consumers == 4, "the warps of one group"
    assert kernel.buffer("store_c_sh").tensor.copies == 2 and kernel.workers == 256 and kernel.threads == 288


def test_text():
    text = alternating()(float16_gemm(512, 64, 192)).program(TARGET).cuda
    assert ".persistent(2).pingpong(2)" in text and "const int group_thread = threadIdx.x % 128;" in text
    assert re.findall(r"for \(int tile = .*\)", text) == [
        "for (int tile = blockIdx.x, iteration = 0; tile < num_tiles; tile += 2 * num_blocks, iteration += 2)",
        "for (int tile = blockIdx.x + num_blocks, iteration = 1; tile < num_tiles; tile += 2 * num_blocks, iteration += 2)",
        "for (int tile = blockIdx.x, iteration = 0; tile < num_tiles; tile += num_blocks, ++iteration)",
    ]
    assert text.count("mbarrier_wait(iteration_order_empty + (iteration + 1) % 2 * 8, ((iteration + 1) / 2 + 1) % 2);") == 2
    assert text.count("mbarrier_arrive(iteration_order_empty + iteration % 2 * 8);") == 2 and "iteration_order_full" not in text
    assert "__syncthreads();" in text and text.count("__syncthreads();") == 1


def test_a_tunable_of_one_group_is_as_without():
    spec, groups = float16_gemm(512, 64, 192), Tunable("groups", 1, 2)
    rest = (
        MatMul.split(64).pipeline(3).warp_specialize().load(A, SH, Move.done()).load(B, SH, Move.done()).tile(64, 64).to(Warpgroup).done()
    )
    start = MatMul.tile(64, 64).to(Block).persistent(2)
    store = Move.tile(64, 64).to(Warpgroup).tile(64, 64).unroll().load(SRC, SH, Move.done()).cast_on_copy().done()
    chains = [one.epilog(RF, float32, Init.done(), store).then(rest) for one in (start, start.pingpong(groups))]
    texts = [chain(spec).program(TARGET).cuda for chain in (chains[0], chains[1].with_(groups=1), chains[1].with_(groups=2))]
    assert texts[0] == texts[1].replace(".pingpong(1)", "") != texts[2] == alternating()(spec).program(TARGET).cuda


def test_groups_of_several_warpgroups_have_separate_barriers():
    """A barrier of all threads of a group has another number in the other group."""
    kernel = alternating((128, 64, 64), stages=2)(float16_gemm(640, 64, 192)).program(TARGET).ir
    groups = roles_of(kernel)[:2]
    wider = [making.scope(group.name, group.threads) for group in groups]

    def widened(stmt):
        return (attrs.evolve(stmt, scope=wider[0]),) if isinstance(stmt, ir.Barrier) and stmt.scope.threads == 128 else (stmt,)

    kernel = attrs.evolve(kernel, body=ir.rewritten(kernel.body, widened))
    assert errors(kernel) == []
    text = cuda.emit(kernel)
    assert 'if (threadIdx.x / 256 == 0) asm volatile("bar.sync 15, 256;"' in text and '"bar.sync 14, 256;"' in text


def test_without_further_tiles_and_without_tma_there_is_one_group():
    for spec in (float16_gemm(128, 64, 64), float16_gemm(520, 63, 33)):
        program = require_right(alternating(), spec, orders=(None,))
        assert "group_thread" not in program.cuda


@pytest.mark.skipif(not toolchains(), reason="no NVRTC")
@pytest.mark.parametrize("producer", [32, 128])
def test_compiles(producer):
    """ptxas compiles it without spills, and does not serialize its wgmma."""
    program = alternating((64, 256, 64), (64, 256), 3, 132, producer=producer)(float16_gemm(4096, 4096, 4096)).program(TARGET)
    compiled = compile_cuda(program.cuda, TARGET)
    (resources,) = compiled.resources.values()
    assert resources.spill_stores == resources.spill_loads == 0 and "serializ" not in compiled.log


@pytest.mark.nightly
@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler (g++ or clang++) on the path")
def test_the_printed_text(tmp_path):
    """Executed on the CPU, with its mbarrier phases and asynchronous copies."""
    specs = [float16_gemm(512, 64, 192), float16_gemm(520, 136, 72)]
    strategies = [alternating(), alternating((128, 64, 64), stages=2, blocks=3, group_m=2)]
    host = HostProgram([Printed.of(strategy(spec).program(TARGET)) for strategy, spec in zip(strategies, specs, strict=True)], tmp_path)
    for number, spec in enumerate(specs):
        arrays, expected = inputs_of(spec)
        for seed in range(3 * SCALE):
            assert np.array_equal(host.run(number, arrays, None, seed)["C"], expected), (number, seed)


# ---------------------------------------------------------------------------------------------- refused

REFUSED = {
    "no persistent": (
        lambda: MatMul.tile(64, 64).to(Block).pingpong(2),
        "each block has one tile, so groups cannot alternate between tiles",
    ),
    "three": (lambda: MatMul.tile(64, 64).to(Block).persistent(2).pingpong(3), "pingpong: must be at most 2"),
    "none": (lambda: MatMul.tile(64, 64).to(Block).persistent(2).pingpong(0), "pingpong: must be a positive integer"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    strategy, text = REFUSED[name]
    with pytest.raises(DecompositionError, match=text):
        _ = strategy().split(64).tile(4, 4).to(Thread).tile(1, 1).split(1).done()(float16_gemm(512, 64, 192)).program(TARGET).ir


# ---------------------------------------------------------------------------------------------- injected faults

IN_ORDER = of_kind(ir.Acquire, ring="iteration_order"), of_kind(ir.Release, ring="iteration_order")


def same_tiles(kernel):
    """Both groups compute the tiles of the first."""
    loops = [one for one in ir.statements(kernel.body) if isinstance(one, ir.For) and one.step > 1]
    return attrs.evolve(kernel, body=ir.rewritten(kernel.body, lambda one: (attrs.evolve(one, first=0),) if one is loops[1] else (one,)))


def same_copy(kernel):
    """Both groups stage their result in the same memory."""

    def moved(stmt):
        accesses = tuple(attrs.evolve(a, copy=a.copy * 0) if a.buffer == "store_c_sh" else a for a in stmt.accesses)
        return attrs.evolve(stmt, accesses=accesses)

    return attrs.evolve(kernel, body=tuple(ir.edited(kernel.body, moved)))


FAULTS = {
    "no wait of the first group": lambda kernel: with_changed(kernel, IN_ORDER[0], 0, dropped),
    "no wait of the second group": lambda kernel: with_changed(kernel, IN_ORDER[0], 1, dropped),
    "no word to the second group": lambda kernel: with_changed(kernel, IN_ORDER[1], 0, dropped),
    "no word to the first group": lambda kernel: with_changed(kernel, IN_ORDER[1], 1, dropped),
    "the wrong parity, first": lambda kernel: with_changed(kernel, IN_ORDER[0], 0, later(1)),
    "the wrong parity, second": lambda kernel: with_changed(kernel, IN_ORDER[0], 1, later(1)),
    "a turn early": lambda kernel: with_changed(kernel, IN_ORDER[0], 1, later(-1)),
    "a warp too few": lambda kernel: with_rings(kernel, lambda one: one if one.buffers else attrs.evolve(one, consumers=3)),
    "a warp too many": lambda kernel: with_rings(kernel, lambda one: one if one.buffers else attrs.evolve(one, consumers=5)),
    "both groups on one tile": same_tiles,
    "both groups in one copy": same_copy,
}


@pytest.mark.parametrize("problem", ["a warpgroup each", "two warpgroups each"])
@pytest.mark.parametrize("fault", FAULTS)
def test_faults_of_the_order_are_found_by_both(fault, problem):
    strategy, sizes = KERNELS[problem]
    kernel = strategy(float16_gemm(*sizes)).program(TARGET).ir
    arrays, expected = inputs_of(kernel.spec)
    faulty = FAULTS[fault](kernel)
    assert errors(faulty), "the race check misses it"
    assert {outcome(faulty, arrays, expected, order) for order in range(4)} != {"right"}, "the simulator misses it"


def test_other_speeds_are_found_without_running_them():
    """In the simulated run of the check, the group that does not wait happens to be late enough."""
    kernel = alternating()(float16_gemm(512, 64, 192)).program(TARGET).ir
    findings = errors(FAULTS["no wait of the first group"](kernel))
    assert any(
        re.search(
            r"k_ring: the wait for fill \d+ to be full may pass by parity alone: the agent knows that 1 of 2 earlier phases are complete",
            finding,
        )
        for finding in findings
    )


@pytest.mark.nightly
def test_faults_of_the_ring_are_found_by_both():
    """Faults of any ring: in each statement that orders producers, consumers and groups."""
    strategy, sizes = KERNELS["a warpgroup each"]
    kernel = strategy(float16_gemm(*sizes)).program(TARGET).ir
    arrays, expected = inputs_of(kernel.spec)
    # The loop waits for its stores itself; and a later fill of the same stage is as good.
    harmless = ("a round later: Release", "all stores have read")
    faults = [(name, faulty) for name, faulty in ring_faults(kernel) if not any(one in name for one in harmless)]
    count = len(faults) if SCALE > 1 else 24
    for name, faulty in random.Random(SEED).sample(faults, count):
        assert errors(faulty), f"the race check misses {name}"
        assert {outcome(faulty, arrays, expected, order) for order in (3, 4, 5)} != {"right"}, f"the simulator misses {name}"
