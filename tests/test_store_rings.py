"""A warp that stores: consumers fill a circular buffer, from which a separate warp issues TMA stores (`warp_specialize(store_stages=)`).

Kernels are simulated, checked, compiled and executed on a CPU; both detectors find each fault of their synchronization.
"""

import functools
import itertools

import attrs
import making
import numpy as np
import pytest
from campaign.judged import wrong
from printed_text import COMPILER, HostProgram, Printed, Refused
from ringed import TARGET, all_of_kind, by_warps, errors, float16_gemm, inputs_of, outcome, product, roles_of

from fireiron import *
from fireiron import ir
from fireiron.gpu import toolchain
from fireiron.graphene import graphene_text, parse_kernel
from fireiron.inspect.synchronization import synchronization, text
from fireiron.ir.asks.storing import Storing
from fireiron.ir.mechanisms.tma_store import TMA_STORES
from fireiron.language.store import dumps, loads
from fireiron.strategies import hopper
from fireiron.values.expr import less

RING = "store_c_sh_ring"
FULL, EMPTY = ir.StageState.FULL, ir.StageState.EMPTY

TWO_WARPGROUPS = {"tiles": (128, 64, 64), "warpgroup": (64, 64), "chunk": 32}
"""Two warpgroups, each with two pieces of its part of the tile."""


def stored(strategy, stages=2, **options):
    """The strategy with a warp that stores."""
    return strategy.at(Split).refine(WarpSpecialize(32, store_stages=stages, **options))


def by_copies():
    """A kernel in which a producer copies B."""
    store = Move.tile(64, 64).to(Warpgroup).tile(64, 32).unroll().load(SRC, SH, Move.done()).cast_on_copy().done()
    chain = MatMul.tile(128, 64).to(Block).persistent(2).epilog(RF, float32, Init.done(), store).split(64).pipeline(3)
    chain = chain.warp_specialize(copies=True, store_stages=2).load(A, SH, Move.done()).load(B, SH, Move.coalesced_copy(8).done())
    return chain.tile(64, 64).to(Warpgroup).done()


SPEC = float16_gemm(256, 128, 128)
SMALL = {"bm": 128, "bn": 64, "bk": 64, "wm": 64, "wn": 64, "epi_m": 64, "epi_n": 32, "stages": 3, "group_m": 1, "raster": 0}
SMALL |= {"num_blocks": 132, "cluster_m": 1, "cluster_n": 1}

# Of each kernel its strategy, problem, the stages of its circular buffer, and the arrivals that fill a stage.
KERNELS = {
    "persistent": (stored(product(blocks=2, stages=3, **TWO_WARPGROUPS)), SPEC, 2, 256),
    "one stage": (stored(product(blocks=2, **TWO_WARPGROUPS), 1), SPEC, 1, 256),
    "three stages": (stored(product(blocks=2, **TWO_WARPGROUPS), 3), SPEC, 3, 256),
    "a block for each tile": (stored(product(**TWO_WARPGROUPS)), SPEC, 2, 256),
    "one fill": (stored(product((128, 64, 64), (64, 64))), SPEC, 2, 256),
    "one warpgroup": (stored(product((64, 64, 64), (64, 64), blocks=2)), SPEC, 2, 128),
    "warps": (stored(by_warps(tma=True)), SPEC, 2, 128),
    "ragged": (stored(product(blocks=2, **TWO_WARPGROUPS)), float16_gemm(200, 72, 136), 2, 256),
    "columns": (stored(product(blocks=2, **TWO_WARPGROUPS)), float16_gemm(256, 128, 64, C=ColMajor), 2, 256),
    "float32": (stored(product(blocks=2, **TWO_WARPGROUPS)), float16_gemm(256, 128, 64, c_dtype=float32), 2, 256),
    "rasterized": (stored(product(blocks=2, group_m=2, **TWO_WARPGROUPS)), float16_gemm(256, 256, 64), 2, 256),
    "dynamic": (stored(product(blocks=2, dynamic=True, **TWO_WARPGROUPS)), SPEC, 2, 256),
    "two producers": (stored(product(blocks=2, **TWO_WARPGROUPS), separate=B), SPEC, 2, 256),
    "copies": (by_copies(), SPEC, 2, 256),
    "hopper": (hopper.storing.with_(**SMALL, store_stages=2), SPEC, 2, 256),
}


@functools.cache
def program(name):
    return KERNELS[name][0](KERNELS[name][1]).program(TARGET)


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_are_right(name):
    _, spec, stages, arrivals = KERNELS[name]
    kernel = program(name).ir
    names = [role.name for role in roles_of(kernel)]
    assert names[:2] == ["consumers", "storing warp"] and names[-1].startswith("producer")
    ring = kernel.ring(RING)
    assert (ring.stages, ring.producers, ring.consumers, ring.bytes) == (stages, arrivals, 1, 0)
    assert errors(kernel) == []
    arrays, expected = inputs_of(spec)
    assert [outcome(kernel, arrays, expected, order) for order in (None, 1, 2)] == ["right"] * 3


@pytest.mark.parametrize("name", KERNELS)
def test_texts_compile(name):
    if toolchain.serving(TARGET, None) is not None:
        assert toolchain.compile_cuda(program(name).cuda, TARGET).cubin


def test_cluster():
    """Blocks fill stages of A and B for each other, and release the stages that they store only to their own consumers."""
    kernel = stored(product(blocks=2, cluster=(2, 1), **TWO_WARPGROUPS))(SPEC).program(TARGET).ir
    assert kernel.ring(RING).consumers == 1 and errors(kernel) == []
    assert outcome(kernel, *inputs_of(SPEC), 1) == "right"


@pytest.mark.sampled(3)
@pytest.mark.parametrize("sizes", [{"M": 200, "N": 136, "K": 72}, {"M": 1, "N": 8, "K": 8}])
def test_sizes_known_at_run_time(sizes):
    spec = float16_gemm(sym("M"), sym("N", multiple_of=8), sym("K", multiple_of=8))
    kernel = stored(product(blocks=2, **TWO_WARPGROUPS))(spec).program(TARGET).ir
    arrays, expected = inputs_of(spec, sizes)
    assert errors(kernel) == [] and outcome(kernel, arrays, expected, 1, sizes) == "right"


@pytest.mark.parametrize("ready", [(), (B,)])
def test_programmatic_launch(ready):
    store = Move.tile(64, 64).to(Warpgroup).tile(64, 32).unroll().load(SRC, SH, Move.done()).cast_on_copy().done()
    chain = MatMul.tile(128, 64).to(Block).programmatic_launch(*ready).epilog(RF, float32, Init.done(), store).split(64).pipeline(3)
    chain = chain.warp_specialize(store_stages=2).load(A, SH, Move.done()).load(B, SH, Move.done())
    kernel = chain.tile(64, 64).to(Warpgroup).done()(SPEC).program(TARGET).ir
    assert errors(kernel) == [] and outcome(kernel, *inputs_of(SPEC), 1) == "right"


def accumulated(blocks):
    """The program of a product that adds to its output; persistent blocks if `blocks` is not 0."""
    store = Move.tile(64, 16).to(Warpgroup).tile(64, 16).unroll().load(SRC, SH, Move.done()).done()
    tile = MatMul.tile(64, 16).to(Block)
    tile = tile.persistent(blocks) if blocks else tile
    chain = tile.epilog(RF, float32, Init.done(), store).split(16).pipeline(3).warp_specialize(store_stages=2)
    chain = chain.load(A, SH, Move.done()).load(B, SH, Move.done()).tile(64, 16).to(Warpgroup).done()
    spec = MatMul(128, 32, 40, dtype=float16, c_dtype=float32, accumulate=True)(GL, GL, GL)(Kernel)
    return chain(spec).program(TARGET)


@pytest.mark.parametrize("blocks", [0, 2])
def test_accumulated_outputs(blocks):
    """The storing warp writes elements that consumers have read: the full mbarrier orders both, in the simulator, too.

    Persistent blocks read the next tile while the storing warp writes the previous one.
    """
    assert not wrong(accumulated(blocks), {}, 1)


def test_accumulated_outputs_read_late():
    """A tile that is read after its stages were filled, and a storing warp in another tile, are races."""
    kernel = accumulated(2).lowered
    consumers, storing, *others = roles_of(kernel)

    def changed(consumers, storing):
        roles = making.roles((consumers, storing, *others))
        return attrs.evolve(kernel, body=tuple(roles if isinstance(one, ir.Roles) else one for one in kernel.body))

    (tiles,) = (one for one in consumers.body if isinstance(one, ir.For))
    reads = next(one for one in tiles.body if isinstance(one, ir.Exec))
    late = attrs.evolve(tiles, body=(*(one for one in tiles.body if one is not reads), reads))
    assert any(one.startswith("C[") for one in errors(changed(attrs.evolve(consumers, body=(late,)), storing)))
    column = next(one.var for one in storing.body[0].body if isinstance(one, ir.Let) and one.var.name == "block_n")
    other = attrs.evolve(storing, body=ir.edited(storing.body, lambda stmt: stmt.substitute({column: 1 - column})))
    assert any(one.startswith("undecided for C") for one in errors(changed(consumers, other)))


# ---------------------------------------------------------------------------------------------- text


def test_text():
    lines = [line.strip() for line in program("persistent").cuda.splitlines()]
    arrival = next(number for number, line in enumerate(lines) if line.startswith(f"mbarrier_arrive({RING}_full"))
    assert lines[arrival - 1].startswith("fence_proxy_async();  // make store_c_sh visible to the async proxy")
    starts = [number for number, line in enumerate(lines) if line in ("// consumers", "// storing warp", "// producer")]
    consumers, storing = (lines[first:last] for first, last in itertools.pairwise(starts))
    assert not any("tma_store" in line or "warpgroup_sync" in line for line in consumers), "consumers neither store nor wait for stores"
    at = [next(number for number, line in enumerate(storing) if line.startswith(text)) for text in STORING_LINES]
    assert at == sorted(at)
    assert f"mbarrier_init({RING}_full + stage * 8, 256);" in lines and f"mbarrier_init({RING}_empty + stage * 8, 1);" in lines


STORING_LINES = (
    f"mbarrier_wait({RING}_full",
    "tma_store(",
    "tma_store_commit_group();",
    "tma_store_wait_group<1>();  // store_c_sh has been stored",
    "if (thread % 32 == 0 && store_n > 0)",
    "tma_store_wait_group<0>();  // store_c_sh has been stored",
)
"""Lines of the storing warp, in order."""


def test_explanation():
    account = text(synchronization(program("persistent").ir))
    assert "filled     by consumers: STMATRIX_WARPGROUP" in account and "emptied    by storing warp: TMA_STORE" in account


@pytest.mark.sampled(18)
@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler (g++ or clang++) on the path")
@pytest.mark.parametrize("name", ["persistent", "three stages", "one warpgroup", "copies", "dynamic"])
def test_texts_on_a_cpu(name, tmp_path):
    arrays, expected = inputs_of(KERNELS[name][1])
    host = HostProgram([Printed.of(program(name))], tmp_path)
    assert all(np.array_equal(host.run(0, arrays, {}, seed)["C"], expected) for seed in range(4))


TEXT_FAULTS = {
    "no arrival": (rf" +mbarrier_arrive\({RING}_full.*\n", ""),
    "no wait for empty stages": (rf" +mbarrier_wait\({RING}_empty.*\n", ""),
    "no wait for full stages": (rf" +mbarrier_wait\({RING}_full.*\n", ""),
    "no fence": (r" +fence_proxy_async\(\);  // make store_c_sh.*\n", ""),
    "no wait for reads": (r" +tma_store_wait_group<0>\(\);  // store_c_sh has been stored\n", ""),
    "arrivals of a warp less": (r"8, 256\)", "8, 224)"),
    "an arrival more": (r"8, 256\)", "8, 257)"),
}


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler (g++ or clang++) on the path")
@pytest.mark.parametrize("fault", TEXT_FAULTS)
def test_faults_of_texts_are_found(fault, tmp_path):
    arrays, expected = inputs_of(SPEC)
    host = HostProgram([Printed.of(program("one stage")).changed(*TEXT_FAULTS[fault])], tmp_path)
    with pytest.raises((Refused, RuntimeError, AssertionError)):
        for seed in range(8):
            np.testing.assert_array_equal(host.run(0, arrays, {}, seed)["C"], expected)


# ---------------------------------------------------------------------------------------------- injected faults


def is_arrival(stmt):
    return isinstance(stmt, ir.Release) and stmt.ring == RING and stmt.state is FULL


def is_release(stmt):
    return isinstance(stmt, ir.Release) and stmt.ring == RING and stmt.state is EMPTY


def is_wait_for(state):
    return lambda stmt: isinstance(stmt, ir.Acquire) and stmt.ring == RING and stmt.state is state


def is_fence(stmt):
    return isinstance(stmt, ir.Fence) and stmt.kind is ir.FenceKind.ASYNC_PROXY


def is_wait_for_reads(stmt):
    return isinstance(stmt, ir.Wait) and stmt.mechanism is TMA_STORES


def is_commit(stmt):
    return isinstance(stmt, ir.Commit) and stmt.mechanism is TMA_STORES


def fills(stmt):
    return any(one.ring == RING for one, _ in ir.execs((stmt,)))


def is_store(stmt):
    return any(one.mechanism is TMA_STORES for one, _ in ir.execs((stmt,)))


def edited(edit):
    return lambda kernel: attrs.evolve(kernel, body=ir.rewritten(kernel.body, edit))


def without(is_meant):
    return edited(lambda stmt: () if is_meant(stmt) else (stmt,))


def twice(is_meant):
    return edited(lambda stmt: (stmt, stmt) if is_meant(stmt) else (stmt,))


def later(is_meant, fills):
    return edited(lambda stmt: (attrs.evolve(stmt, fill_index=stmt.fill_index + fills),) if is_meant(stmt) else (stmt,))


def with_fields(is_meant, **fields):
    return edited(lambda stmt: (attrs.evolve(stmt, **fields),) if is_meant(stmt) else (stmt,))


def counting(**changes):
    def change(ring):
        return attrs.evolve(ring, **{name: getattr(ring, name) + number for name, number in changes.items()}) if ring.name == RING else ring

    return lambda kernel: attrs.evolve(kernel, rings=tuple(map(change, kernel.rings)))


def before(is_meant, other):
    """The selected statement directly before the first one of its list that satisfies `other`."""

    def edit(stmt):
        if not isinstance(stmt, ir.For) or not any(map(is_meant, stmt.body)):
            return (stmt,)
        rest = [one for one in stmt.body if not is_meant(one)]
        place = next((number for number, one in enumerate(rest) if other(one)), len(rest))
        return (attrs.evolve(stmt, body=(*rest[:place], *filter(is_meant, stmt.body), *rest[place:])),)

    return edited(edit)


def of_another_stage(is_meant):
    """The stage of an access, one later."""

    def edit(stmt):
        if not isinstance(stmt, ir.Exec) or not is_meant(stmt):
            return (stmt,)
        accesses = (attrs.evolve(one, copy=(one.copy + 1) % 2) if one.buffer == "store_c_sh" else one for one in stmt.accesses)
        return (attrs.evolve(stmt, accesses=tuple(accesses)),)

    return edited(edit)


def half(kernel):
    """The arrival of half of the threads."""
    return with_fields(is_arrival, active=less(kernel.thread, kernel.workers // 2))(kernel)


FAULTS = {
    "no arrival": without(is_arrival),
    "no wait for empty stages": without(is_wait_for(EMPTY)),
    "no wait for full stages": without(is_wait_for(FULL)),
    "no release": without(is_release),
    "no fence": without(is_fence),
    "no wait for reads": without(is_wait_for_reads),
    "no wait for reads but at the end": edited(lambda stmt: () if is_wait_for_reads(stmt) and "store_c_sh" in stmt.reason else (stmt,)),
    "a weaker wait for reads": edited(lambda stmt: (attrs.evolve(stmt, groups=stmt.groups + 1),) if is_wait_for_reads(stmt) else (stmt,)),
    "no wait for the last read of a tile": edited(lambda stmt: () if is_wait_for_reads(stmt) and not stmt.groups else (stmt,)),
    "no commit": without(is_commit),
    "commit after the wait": before(is_wait_for_reads, is_commit),
    "fence after the arrival": before(is_arrival, is_fence),
    "fence before the writes": before(is_fence, fills),
    "arrival before the writes": before(is_arrival, fills),
    "wait for empty stages after the writes": before(is_wait_for(EMPTY), is_fence),
    "wait for full stages after the store": before(is_wait_for(FULL), is_commit),
    "release before the wait for reads": before(is_release, is_wait_for_reads),
    "release before the store": before(is_release, is_store),
    "writes to another stage": of_another_stage(lambda stmt: stmt.ring == RING),
    "store of another stage": of_another_stage(lambda stmt: stmt.mechanism is TMA_STORES),
    "a count of one less": counting(producers=-1),
    "a count of one more": counting(producers=1),
    "two consumers": counting(consumers=1),
    "arrival of half the threads": half,
    "two arrivals": twice(is_arrival),
    "two releases": twice(is_release),
    "arrival at the next fill": later(is_arrival, 1),
    "arrival a round later": later(is_arrival, 2),
    "wait for the next full stage": later(is_wait_for(FULL), 1),
    "wait for full stages a round later": later(is_wait_for(FULL), 2),
    "wait for the next empty stage": later(is_wait_for(EMPTY), 1),
    "wait for empty stages a round later": later(is_wait_for(EMPTY), 2),
    "release of the next fill": later(is_release, 1),
}


@pytest.mark.parametrize("name", ["persistent", "one warpgroup", "dynamic"])
@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_found_by_both(name, fault):
    kernel = program(name).ir
    wrong = FAULTS[fault](kernel)
    assert wrong != kernel and errors(wrong)
    arrays, expected = inputs_of(SPEC)
    outcomes = [outcome(wrong, arrays, expected, order) for order in (None, 1, 2)]
    assert not {"right", "wrong"} & {*outcomes}, outcomes


REPORTED = {
    "no arrival": ("waits forever for fill", "the storing warp waits for fill 0 of store_c_sh_ring to be full"),
    "no wait for empty stages": ("is written by an agent that has not acquired it empty", "is written by a group that has not acquired it empty"),
    "no fence": ("no fence.proxy.async is between", "is read through the async proxy, which does not see"),
    "release before the wait for reads": ("asynchronous read of the stage in flight", "is released while stores that read it are in flight"),
    "no release": ("an agent ends without releasing stage", "deadlock: .* fill 0 has not been released"),
}  # fmt: skip


@pytest.mark.parametrize("fault", REPORTED)
def test_reports_of_faults(fault):
    wrong = FAULTS[fault](program("persistent").ir)
    static, simulated = REPORTED[fault]
    assert any(static in one for one in errors(wrong)), errors(wrong)
    with pytest.raises(SimulationError, match=simulated):
        raise SimulationError(outcome(wrong, *inputs_of(SPEC)))


@pytest.mark.parametrize("fault", ["no wait for reads but at the end", "release before the wait for reads"])
def test_faults_without_a_later_fill_are_found_by_both(fault):
    """The stages are not filled again, so the faults change no result."""
    wrong = FAULTS[fault](program("a block for each tile").ir)
    assert any("asynchronous read of the stage in flight" in one for one in errors(wrong))
    assert "is released while stores that read it are in flight" in outcome(wrong, *inputs_of(SPEC))


# ---------------------------------------------------------------------------------------------- no effect, refusals


def test_without_tma_stores_consumers_store():
    direct = stored(product(blocks=2, tma=False, **{name: TWO_WARPGROUPS[name] for name in ("tiles", "warpgroup")}))
    assert [role.name for role in roles_of(direct(SPEC).program(TARGET).ir)] == ["consumers", "producer"]


def test_without_a_producer_all_threads_copy():
    program = stored(product(blocks=2, **TWO_WARPGROUPS))(float16_gemm(256, 124, 124)).program(TARGET)
    assert program.ir.rings == () and not all_of_kind(program.ir, ir.Roles)
    assert "// store_stages has no effect: there is no producer, as all threads copy" in program.cuda


def test_without_tma_stores_a_comment_says_so():
    program = with_store(Move.tile(64, 64).to(Warpgroup).done())(SPEC).program(TARGET)
    assert "// store_stages has no effect: TMA stores no tile" in program.cuda
    assert [role.name for role in all_of_kind(program.ir, ir.Roles)[0].roles] == ["consumers", "producer"]


def test_without_store_stages_nothing_changes():
    plain = product(blocks=2, **TWO_WARPGROUPS)
    assert stored(plain, 0) == plain and Storing not in stored(plain, 0)(SPEC).program(TARGET).walked.body[-1].asks


def test_the_warp_is_written_and_read():
    chain = MatMul.tile(64, 64).to(Block).epilog(RF, float32).split(64).pipeline(3)
    assert str(chain.warp_specialize(store_stages=2)).endswith("warp_specialize(store_stages=2)")
    strategy, spec, *_ = KERNELS["persistent"]
    assert eval(repr(strategy)) == strategy and loads(dumps(strategy)) == strategy
    assert parse_kernel(graphene_text(program("persistent"))).cuda == strategy(spec).program(TARGET).cuda
    request = Storing(2)
    assert Storing.read(request.written(str), lambda text: None) == request and Storing.read({}, None) == Storing()


def with_store(move):
    chain = MatMul.tile(128, 64).to(Block).epilog(RF, float32, Init.done(), move).split(64).pipeline(3).warp_specialize(store_stages=2)
    return chain.load(A, SH, Move.done()).load(B, SH, Move.done()).tile(64, 64).to(Warpgroup).done()


PIECES = Move.tile(64, 64).to(Warpgroup).tile(64, 32).unroll()
REFUSED = {
    "two producers in a cluster": (
        lambda: stored(product(cluster=(2, 1), **TWO_WARPGROUPS), separate=B),
        "a warp stores the stages of a ring, which is not supported in a cluster",
    ),
    "two producers that claim tiles": (
        lambda: stored(product(blocks=2, dynamic=True, **TWO_WARPGROUPS), separate=B),
        "a warp stores the stages of a ring, which is not supported with dynamic tile scheduling",
    ),
    "groups that alternate": (
        lambda: stored(product((64, 64, 64), (64, 64), blocks=2, pingpong=2)),
        "a warp stores the stages of a ring, which is not supported with ordered MMAs or alternating",
    ),
    "a warpgroup as producer": (
        lambda: product(**TWO_WARPGROUPS).at(Split).refine(WarpSpecialize(128, store_stages=2)),
        r"warp_specialize\(128, store_stages=\): a producer that loads by TMA is a warp",
    ),
    "reused memory": (
        lambda: with_store(PIECES.load(SRC, SH, Move.done()).cast_on_copy().reuse_buffer().done()),
        "a separate warp cannot store store_c_sh: it reuses the memory of other buffers",
    ),
    "too many stages": (lambda: stored(product(**TWO_WARPGROUPS), 17), "store_stages: must be at most 16"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name):
    strategy, message = REFUSED[name]
    with pytest.raises(DecompositionError, match=message):
        _ = strategy()(SPEC).program(TARGET).ir


@pytest.mark.parametrize("value", [-1, 17, "two", 1.5])
def test_illegal_numbers_of_stages(value):
    chain = MatMul.tile(64, 64).to(Block).epilog(RF, float32).split(64).pipeline(3)
    with pytest.raises(FireironError, match="warp_specialize: store_stages"):
        chain.warp_specialize(store_stages=value)


def test_stages_share_no_memory():
    """No barrier orders the storing warp with consumers that use other buffers."""
    chain = (
        MatMul.tile(128, 64)
        .to(Block)
        .max_shared_bytes(60_000)
        .epilog(RF, float32, Init.done(), PIECES.load(SRC, SH, Move.done()).cast_on_copy().done())
        .split(64)
        .pipeline(2)
    )
    chain = chain.warp_specialize(store_stages=2).load(A, SH, Move.done()).load(B, SH, Move.done()).tile(64, 64).to(Warpgroup).done()
    with pytest.raises(FireironError, match=r"max_shared_bytes\(60000\) allows 60000"):
        _ = chain(SPEC).program(TARGET).ir
