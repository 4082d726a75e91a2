"""Clusters of blocks: assignment of tiles, multicast loads, the protocol across blocks, injected faults, refusals, and all other output."""

import random
import re

import attrs
import making
import pytest
from ringed import (
    ORDERS,
    TARGET,
    all_of_kind,
    by_warps,
    cluster_faults,
    errors,
    float16_gemm,
    inputs_of,
    is_load,
    of_kind,
    outcome,
    product,
    reached,
    require_right,
    ring_faults,
    with_changed,
)

from fireiron import *
from fireiron import ir
from fireiron.cost import predict
from fireiron.export import export
from fireiron.inspect import show
from fireiron.ir.cluster import concurrent_blocks
from fireiron.ir.mechanisms.tma_store import TMA_STORES
from fireiron.language.store import dumps, loads
from fireiron.strategies import hopper, hopper_batched

np = pytest.importorskip("numpy")
SEED = 20261122
M, N, K = sym("M"), sym("N", multiple_of=8), sym("K", multiple_of=8)
SMALL = {"tiles": (64, 64, 64)}


def kernel_of(sizes=(256, 128, 192), **options):
    """The final kernel of a GEMM in clusters."""
    return product(**options)(float16_gemm(*sizes)).program(TARGET).ir


def loads_of(kernel):
    """The loads of a ring, by the array that they read."""
    return {one.accesses[0].buffer: one for one, _ in ir.execs(kernel.body) if one.ring}


# ---------------------------------------------------------------------------------------------- multicast

SHARED = {
    (2, 1): {"A": 0, "B": 2},
    (1, 2): {"A": 2, "B": 0},
    (2, 2): {"A": 2, "B": 2},
    (4, 2): {"A": 2, "B": 4},
    (3, 1): {"A": 0, "B": 0},  # 64 rows do not divide into three equal parts
    (4, 4): {"A": 4, "B": 4},
}


def test_a_cluster_of_one_block_by_tunables_is_omitted():
    """With tunables equal to 1 the cluster is omitted, and the strategy equals the one without it; with numbers it is printed as written."""
    chain = MatMul.tile(64, 64).to(Block)
    free = chain.cluster(Tunable("cluster_m", 1, 2), Tunable("cluster_n", 1, 2)).rasterize(group_m=2).done()
    assert free.with_(cluster_m=1, cluster_n=1) == chain.rasterize(group_m=2).done() and str(free.with_(cluster_m=1, cluster_n=1)) == str(
        chain.rasterize(group_m=2).done()
    )
    assert (
        free.with_(cluster_m=1, cluster_n=2) == chain.cluster(1, 2).rasterize(group_m=2).done()
        and free.with_(cluster_m=1) != chain.rasterize(group_m=2).done()
    )
    assert chain.cluster(1, 1).rasterize(group_m=2).done() != chain.rasterize(group_m=2).done()


def test_hopper_takes_clusters():
    """The text without clusters does not change; with them loads are multicast."""
    values = {**hopper.defaults(512, 512, 512)[-1], "num_blocks": 65536}
    spec = hopper.spec(512, 512, 512)
    alone = hopper.strategy.with_(**values)(spec).program("sm_90a")
    assert alone.cuda == hopper.strategy.with_(**values, cluster_m=1, cluster_n=1)(spec).program("sm_90a").cuda
    assert "__cluster_dims__" not in alone.cuda
    together = hopper.strategy.with_(**values, cluster_m=1, cluster_n=2)(spec).program("sm_90a")
    assert together.ir.cluster.sizes == (2,) and "__cluster_dims__(2, 1, 1)" in together.cuda


@pytest.mark.parametrize("cluster", [one for one in SHARED if one != (3, 1)], ids=str)
def test_tiles_common_to_a_cluster_are_multicast(cluster):
    """Each block that shares a tile loads an equal part, the parts cover the tile, and the receivers are the senders."""
    kernel = kernel_of((64 * cluster[0] * 2, 64 * cluster[1], 64), cluster=cluster, **SMALL)
    own = cluster[0] * cluster[1]
    assert kernel.cluster.blocks == own and int(str(kernel.grid)) % own == 0
    for name, load in loads_of(kernel).items():
        count = SHARED[cluster][name]
        assert (0 if load.multicast is None else load.multicast.count) == count
        assert np.prod(load.accesses[1].shape) * max(count, 1) == 64 * 64
        if not count:
            continue
        groups = reached(kernel, (load.multicast,))
        assert all(rank in groups[rank] and groups[other] == groups[rank] for rank in range(own) for other in groups[rank])
        parts = {}
        for rank in range(own):
            base = tuple(one.evaluate(dict(kernel.cluster.values(rank))) for one in load.accesses[1].base)
            parts.setdefault(frozenset(groups[rank]), set()).add(base)
        assert all(len(found) == count for found in parts.values())


def test_bytes_and_arrivals():
    """A block receives a whole stage whichever blocks send it; its empty barrier counts the blocks that receive from it: a row and a
    column.
    """
    plain, clustered = (kernel_of((256, 256, 192), cluster=one, **SMALL).rings[0] for one in (None, (2, 2)))
    assert plain.bytes == clustered.bytes == 2 * 64 * 64 * 2
    assert (plain.consumers, clustered.consumers) == (4, 4 * 3)
    kernel = kernel_of((256, 256, 192), cluster=(2, 2), **SMALL)
    releases = [one for one in all_of_kind(kernel, ir.Release) if one.state is ir.StageState.EMPTY]
    assert all(reached(kernel, one.to) == [{0, 1, 2}, {0, 1, 3}, {0, 2, 3}, {1, 2, 3}] for one in releases)


def test_parts_are_chunks_or_rows():
    """A column-major tile of B consists of chunks of 64 along n, which are divided among the blocks; a single chunk is divided by rows."""
    wide = kernel_of((128, 128, 64), tiles=(64, 128, 64), warpgroup=(64, 64), cluster=(2, 1))
    assert loads_of(wide)["B"].accesses[1].shape == (64, 64)
    narrow = kernel_of((128, 64, 64), cluster=(2, 1), **SMALL)
    assert loads_of(narrow)["B"].accesses[1].shape == (32, 64)
    deep = kernel_of((128, 64, 128), tiles=(64, 64, 128), cluster=(1, 2))
    assert loads_of(deep)["A"].accesses[1].shape == (64, 64)


def test_a_cluster_of_one_block_is_none():
    program, plain = (product(cluster=one)(float16_gemm(256, 64, 192)).program(TARGET) for one in ((1, 1), None))
    assert program.ir.cluster is None
    assert program.cuda.replace(".cluster(m=1)", "") == plain.cuda


# ---------------------------------------------------------------------------------------------- against NumPy

KERNELS = {
    "two along m": ({"cluster": (2, 1)}, (512, 128, 320)),
    "two along n": ({"cluster": (1, 2)}, (256, 256, 320)),
    "four, an iteration in flight": ({"cluster": (2, 2), **SMALL, "stages": 3}, (256, 128, 448)),
    "eight": ({"cluster": (4, 2), **SMALL}, (512, 256, 128)),
    "sixteen": ({"cluster": (4, 4), **SMALL}, (256, 256, 128)),
    "bands": ({"cluster": (2, 1), **SMALL, "group_m": 4}, (640, 192, 128)),
    "persistent": ({"cluster": (2, 2), **SMALL, "blocks": 4, "group_m": 2}, (512, 256, 128)),
    "persistent, one iteration per tile": ({"cluster": (1, 2), **SMALL, "blocks": 2}, (192, 256, 64)),
    "a warpgroup produces": ({"cluster": (2, 1), "producer": 128}, (512, 64, 192)),
    "stored by threads": ({"cluster": (2, 1), "tma": False}, (256, 64, 192)),
    "overhanging": ({"cluster": (2, 2), **SMALL}, (200, 72, 136)),
    "overhanging, persistent": ({"cluster": (4, 1), **SMALL, "blocks": 4, "stages": 3}, (328, 136, 72)),
    "overhanging, stored by threads": ({"cluster": (2, 2), **SMALL, "tma": False}, (72, 200, 64)),
    "one tile": ({"cluster": (2, 2), **SMALL}, (8, 8, 8)),
}


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_are_correct(name):
    options, sizes = KERNELS[name]
    program = require_right(product(**options), float16_gemm(*sizes))
    assert "tma_load_multicast(" in program.cuda and "__cluster_dims__(" in program.cuda


def stacked(**options):
    """A batched GEMM whose blocks load from three-dimensional arrays."""
    return MatMul.tile(b=1).to(Block).then(product(**{**SMALL, **options}))


STACKS = {
    "a tile each": ({"cluster": (2, 2)}, "bmk,bkn->bmn"),
    "one matrix for all": ({"cluster": (2, 1)}, "bmk,kn->bmn"),
    "bands": ({"cluster": (1, 2), "group_m": 2}, "bmk,bkn->bmn"),
    "persistent": ({"cluster": (2, 1), "blocks": 4, "group_m": 2}, "bmk,bkn->bmn"),
    "persistent, along a curve": ({"cluster": (2, 2), "blocks": 4, "group_m": (1, 2)}, "bmk,kn->bmn"),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", STACKS)
def test_batches_of_matrices(name):
    """A cluster works on one matrix; the rank is a digit below the batch digits."""
    options, signature = STACKS[name]
    program = require_right(stacked(**options), hopper_batched.spec(200, 136, 72, 3, signature=signature), orders=(1,))
    ranks = {len(load.accesses[0].base) for load in loads_of(program.ir).values() if load.multicast is not None}
    assert ranks and all(f"tma_load_multicast{'' if rank == 2 else '_3d'}(" in program.cuda for rank in ranks)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "options", [{"cluster": (2, 2)}, {"cluster": (2, 1), "blocks": 4}, {"cluster": (2, 2), "group_m": (1, 2)}], ids=str
)
def test_batches_of_run_time_sizes(options):
    sizes = (sym(name, multiple_of=8, high=65536) for name in "MNK")
    spec = hopper_batched.spec(*sizes, sym("batch", high=64))
    require_right(stacked(**{"group_m": 2, **options}), spec, {"M": 200, "N": 136, "K": 72, "batch": 3}, orders=(1,))


@pytest.mark.parametrize("run_time", [False, True])
def test_clusters_that_store_the_same_tile_are_reported(run_time):
    """A wrong cluster rank or matrix, so that two blocks store to one tile."""
    sizes = (sym(name, multiple_of=8, high=65536) for name in "MNK") if run_time else (256, 256, 72)
    spec = hopper_batched.spec(*sizes, sym("batch", high=64) if run_time else 3)
    kernel = stacked(cluster=(2, 1), group_m=2)(spec).program(TARGET).lowered
    assert errors(kernel) == []
    for name in ("rank_m", "block_b"):
        is_let = lambda one, name=name: isinstance(one, ir.Let) and one.var.name == name
        faulty = with_changed(kernel, is_let, 0, lambda one: (attrs.evolve(one, value=one.value - one.value),))
        assert any("two blocks touch" in one or "blocks" in one for one in errors(faulty)), (name, errors(faulty))


@pytest.mark.parametrize("options", [{}, {"blocks": 4, "group_m": 2}], ids=str)
def test_a_cluster_with_programmatic_launch(options):
    """Cluster barriers access nothing that another kernel reads: the wait for the preceding kernel is after the first of them."""
    strategy = product(cluster=(2, 1), **SMALL, **options).at(Tile).refine(ProgrammaticLaunch())
    program = require_right(strategy, float16_gemm(256, 128, 136), orders=(1,))
    kinds = [one for one in program.ir.body if isinstance(one, (ir.GridDepControl, ir.ClusterBarrier, ir.Roles))]
    assert [type(one) for one in kinds] == [ir.GridDepControl, ir.ClusterBarrier, ir.GridDepControl, ir.Roles, ir.ClusterBarrier]
    assert [one.action for one in kinds if isinstance(one, ir.GridDepControl)] == [
        ir.GridDepAction.LAUNCH_DEPENDENTS,
        ir.GridDepAction.WAIT,
    ]
    assert ir.verify(program.ir, final=True) is program.ir
    body = program.cuda[program.cuda.index('extern "C"') :]
    order = ("griddepcontrol_launch_dependents();", "fence_mbarrier_init();", "cluster_sync();", "griddepcontrol_wait();", "if (warp_index")
    places = [body.index(one) for one in order]
    assert places[1:] == sorted(places[1:]) and places[0] < places[3] and body.count("cluster_sync();") == 2
    late = tuple(one for one in program.ir.body if one != making.grid_dep_control(ir.GridDepAction.WAIT))
    with pytest.raises(VerificationError, match="is accessed before griddepcontrol.wait"):
        ir.verify(attrs.evolve(program.ir, body=(*late, making.grid_dep_control(ir.GridDepAction.WAIT))), final=True)


@pytest.mark.parametrize("orders", ORDERS)
def test_storage_orders(orders):
    require_right(product(cluster=(2, 2), **SMALL), float16_gemm(128, 192, 136, orders=orders), orders=(1,))


def test_a_result_reuses_the_memory_of_multicast_loads():
    """Each block loads a part of a tile and every block receives all parts: a store through the same memory waits for all."""
    store = Move.tile(64, 64).to(Warpgroup).load(SRC, SH, Move.done()).cast_on_copy().reuse_buffer().done()
    chain = MatMul.tile(128, 64).to(Block).cluster(1, 2).epilog(RF, float32, Init.done(), store).split(64).pipeline(2).warp_specialize()
    strategy = chain.load(A, SH, Move.done()).load(B, SH, Move.done()).tile(64, 64).to(Warpgroup).done()
    kernel = strategy(float16_gemm(128, 128, 192)).program(TARGET).ir
    stored, shared = kernel.buffer("store_c_sh"), kernel.buffer("a_sh")
    assert stored.offset < shared.offset + shared.bytes and shared.offset < stored.offset + stored.bytes
    require_right(strategy, float16_gemm(128, 128, 192))


def test_warps_also_consume_multicast_loads():
    strategy = by_warps(tma=True)
    steps = (strategy.steps[0].refined(Cluster(2, 1)), *strategy.steps[1:])
    require_right(attrs.evolve(strategy, steps=steps), float16_gemm(128, 64, 192, c_dtype=float32))


@pytest.mark.nightly
@pytest.mark.parametrize("options", [{}, {"blocks": 8, "group_m": 4}, {"blocks": 4}], ids=str)
def test_sizes_known_at_run_time(options):
    """One kernel for all of them, checked once; clusters extend past the edge if they do not divide the grid."""
    program = product(cluster=(2, 2), **SMALL, **options)(float16_gemm(M, N, K)).program(TARGET)
    assert errors(program.ir) == []
    for sizes in ((136, 72, 40), (256, 128, 192), (1, 8, 8), (300, 264, 200)):
        values = dict(zip("MNK", sizes, strict=True))
        arrays, expected = inputs_of(program.spec, values)
        assert outcome(program.ir, arrays, expected, 1, values) == "right", sizes


@pytest.mark.nightly
def test_random_clusters():
    chance = random.Random(SEED)
    for _ in range(6):
        cluster = chance.choice(((2, 1), (1, 2), (2, 2), (4, 1), (1, 4)))
        options = {
            "tiles": chance.choice(((64, 64, 64), (64, 128, 64), (64, 64, 128))),
            "stages": chance.randint(1, 3),
            "mma_in_flight": chance.choice((None, 0)),
            "group_m": chance.choice((0, 1, 2, 4)),
            "blocks": chance.choice((0, cluster[0] * cluster[1], 2 * cluster[0] * cluster[1])),
            "tma": chance.random() < 0.7,
        }
        sizes = tuple(max(8, 64 * chance.randint(1, 5) - chance.choice((0, 0, 8, 24))) for _ in range(3))
        print(cluster, options, sizes)
        require_right(product(cluster=cluster, **options), float16_gemm(*sizes, orders=chance.choice(list(ORDERS))), orders=(3,))


def test_a_sample_of_blocks_is_whole_clusters():
    """Blocks wait for the others of their cluster, so these are executed together."""
    from fireiron.sim import simulate

    kernel = kernel_of((256, 128, 64), cluster=(2, 1), **SMALL)
    arrays, expected = inputs_of(kernel.spec)
    done = simulate(kernel, arrays, blocks=(3,))
    assert done.blocks == (2, 3)
    result = done.outputs["C"]
    written = ~np.isnan(result)
    assert written.sum() == 2 * 64 * 64 and np.array_equal(result[written], expected[written])


# ---------------------------------------------------------------------------------------------- injected faults

FAULTY = {
    "(2, 1)": ({"cluster": (2, 1)}, (256, 64, 448)),
    "(2, 2)": ({"cluster": (2, 2), **SMALL, "blocks": 4}, (256, 128, 192)),
}


@pytest.mark.parametrize("problem", FAULTY)
def test_faults_across_blocks_are_found_by_both(problem):
    """A wrong mask, arrivals removed or misdirected, a count of one block alone, either cluster barrier removed."""
    options, sizes = FAULTY[problem]
    kernel = kernel_of(sizes, **options)
    arrays, expected = inputs_of(kernel.spec)
    names = []
    for name, faulty in cluster_faults(kernel):
        assert errors(faulty), f"the race check misses {name}"
        assert outcome(faulty, arrays, expected, 3) != "right", f"the simulator misses {name}"
        names.append(name)
    assert len(names) >= 11 and {"dropped: the cluster's barrier at the start", "only its own block's consumers"} <= set(names)


def test_faults_of_rings_are_found_in_clusters():
    """A random sample of faults in the synchronization of a block's own producer and consumers."""
    kernel = kernel_of((256, 64, 448), cluster=(2, 1))
    arrays, expected = inputs_of(kernel.spec)
    faulty_kernels = [one for one in ring_faults(kernel) if "a round later: Release" not in one[0]]
    for name, faulty in random.Random(SEED).sample(faulty_kernels, 8):
        assert errors(faulty) and outcome(faulty, arrays, expected, 3) != "right", name


CLUSTER_BARRIER = of_kind(ir.ClusterBarrier)


def changed_load(kernel, **fields):
    """The kernel with its first multicast load changed."""
    which = lambda one: is_load(one) and one.multicast is not None
    return with_changed(kernel, which, 0, lambda one: (attrs.evolve(one, **fields),))


REPORTS = {
    "no start": (
        lambda kernel: with_changed(kernel, CLUSTER_BARRIER, 0, lambda _: ()),
        r"b_sh: TMA_LOAD .* arrives in block \d of the cluster, whose mbarriers may not be initialized yet",
        r"k_ring: fill 0 is loaded, in another block of the cluster, whose mbarriers may not be initialized yet",
    ),
    "no end": (
        lambda kernel: with_changed(kernel, CLUSTER_BARRIER, 1, lambda _: ()),
        r"block 0 of the cluster exits while others may still arrive at its mbarriers or send loads",
        r"a block exits while other blocks of its cluster may still arrive at its mbarriers or send loads to it",
    ),
    "to itself alone": (
        lambda kernel: changed_load(kernel, multicast=None),
        r"deadlock: .* of block \d of the cluster wait for fill 0 of k_ring to be full .* 4096 bytes missing",
        r"k_ring: agent 0 of block 0 of the cluster waits forever for fill 0 to be full",
    ),
    "beyond the cluster": (
        lambda kernel: changed_load(kernel, multicast=making.block_set(0b111, 0)),
        r"b_sh: TMA_LOAD .* arrives in block 2 of a cluster of 2",
        r"k_ring: fill 0 is loaded, in block 2 of a cluster of 2|b_sh.*no barrier",
    ),
    "its own consumers": (
        lambda kernel: attrs.evolve(kernel, rings=tuple(attrs.evolve(one, consumers=8) for one in kernel.rings)),
        r"k_ring: fill 2 is sent to block \d of the cluster, which has not released fill 0",
        r"b_sh.*\bno barrier|ends with an incomplete phase|passes by parity alone",
    ),
    "bytes of its own part": (
        lambda kernel: attrs.evolve(kernel, rings=tuple(attrs.evolve(one, bytes=one.bytes - 4096) for one in kernel.rings)),
        r"k_ring: fill 0 becomes full while a load to it is in flight|deadlock: .* -4096 bytes missing",
        r"k_ring: agent \d of block 0 of the cluster waits forever for fill \d|b_sh",
    ),
}


@pytest.mark.parametrize("name", REPORTS)
def test_both_detectors_describe_the_fault(name):
    fault, simulated, checked = REPORTS[name]
    kernel = kernel_of((256, 64, 320), cluster=(2, 1))
    arrays, expected = inputs_of(kernel.spec)
    faulty = fault(kernel)
    for order in (None, 5):
        report = outcome(faulty, arrays, expected, order)
        assert re.search(simulated, report, re.DOTALL), report
    messages = errors(faulty)
    assert any(re.search(checked, one) for one in messages), messages


def test_blocks_of_a_cluster_run_the_same_iterations():
    """If a block of a cluster had one tile less than another, they would deadlock."""
    kernel = kernel_of((640, 64, 64), cluster=(2, 1), blocks=2, **SMALL)
    is_tile_loop = lambda one: isinstance(one, ir.For) and one.var.name == "iteration"
    loops = [one for one in ir.statements(kernel.body) if is_tile_loop(one)]
    faulty = kernel
    for number in range(len(loops)):
        fewer = lambda one: (attrs.evolve(one, extent=one.extent - kernel.block),)
        faulty = with_changed(faulty, is_tile_loop, number, fewer)
    assert any("differs between blocks of a cluster" in one or "may differ" in one for one in errors(faulty)), errors(faulty)


@pytest.mark.parametrize("options", [{}, {"blocks": 2}, {"blocks": 4}, {"group_m": 2}], ids=str)
@pytest.mark.parametrize("sizes", [(512, 128, 64), (M, N, K)], ids=["static", "symbolic"])
def test_blocks_with_one_tile_are_found(sizes, options):
    """Two blocks of a cluster that store to one address are reported."""
    kernel = kernel_of(sizes, cluster=(2, 1), **SMALL, **options)
    place = kernel.cluster.places[0]
    assert errors(kernel) == []
    is_store = lambda one: isinstance(one, ir.Exec) and one.mechanism is TMA_STORES

    def at_the_first(store):
        target = store.accesses[1]
        base = tuple(value - place * 64 if place in value.variables() else value for value in target.base)
        return (attrs.evolve(store, accesses=(store.accesses[0], attrs.evolve(target, base=base))),)

    faulty = with_changed(kernel, is_store, 0, at_the_first)
    assert any("both access" in one or "undecided whether two blocks" in one for one in errors(faulty)), errors(faulty)


# ---------------------------------------------------------------------------------------------- refusals


def refused(strategy, spec, target=TARGET):
    """The error of an illegal strategy."""
    with pytest.raises(FireironError) as caught:
        _ = strategy(spec).program(target).ir
    return str(caught.value)


def test_refusals():
    spec = float16_gemm(1024, 1024, 128)
    assert "at most 16 blocks" in refused(product(cluster=(8, 4)), spec)
    assert "must be a positive integer" in refused(product(cluster=(0, 1)), spec)
    assert "clusters require sm_90a" in refused(product(cluster=(2, 1)), spec, "sm_90")
    with pytest.raises(DecompositionError):
        product(cluster=("two", 1))
    with pytest.raises(
        DecompositionError,
        match="these tiles are distributed over .*; rasterize, cluster, min_blocks_per_sm, max_shared_bytes, persistent, pingpong and programmatic_launch apply to blocks",
    ):
        chain = MatMul.tile(64, 64).to(Block).tile(32, 32).to(Warp).cluster(2, 1).done()
        _ = chain(spec).program(TARGET).ir
    with pytest.raises(DecompositionError, match=r"cluster: swizzle also determines the tile of a block"):
        chain = MatMul.tile(64, 64).to(Block).swizzle(lambda uid: uid ^ 1).cluster(2, 1).tile(8, 8).to(Thread).tile(1, 1).split(1).done()
        _ = chain(spec).program(TARGET).ir
    with pytest.raises(DecompositionError, match=r"cluster: split_k\(.., Block\) also determines the tile of a block"):
        chain = MatMul.split_k(2, Block, 64).tile(64, 64).to(Block).cluster(2, 1).tile(8, 8).to(Thread).tile(1, 1).split(1).done()
        _ = chain(float16_gemm(1024, 1024, 128, c_dtype=float32)).program(TARGET).ir
    with pytest.raises(DecompositionError, match=r"pingpong\(2\) in clusters: .* are not proved"):
        _ = product(cluster=(2, 1), **SMALL, blocks=4, pingpong=2)(spec).program(TARGET).ir


def test_a_cluster_without_common_tiles_is_refused():
    by_threads = MatMul.tile(64, 64).to(Block).cluster(2, 1).split(8).load(A, SH).load(B, SH).tile(8, 8).to(Thread).tile(1, 1).split(1)
    text = refused(by_threads.done(), float16_gemm(1024, 1024, 128))
    assert "blocks share no load: no load is a TMA load into a ring" in text and ".pipeline(4).warp_specialize()" in text
    assert "differs between the blocks, or cannot be divided into equal parts" in refused(
        product(cluster=(3, 1), **SMALL), float16_gemm(192, 64, 64)
    )


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("blocks", "cluster", "legal"),
    [(133, (2, 1), "132"), (132, (4, 1), "120"), (132, (2, 2), "120"), (132, (4, 2), "120"), (264, (4, 1), "240"), (66, (4, 1), "64")],
)
def test_persistent_blocks_are_whole_clusters_that_fit(blocks, cluster, legal):
    """On 132 SMs clusters of 4 occupy 120: more blocks would run after all others."""
    text = refused(product(cluster=cluster, blocks=blocks, **SMALL), float16_gemm(4096, 4096, 64))
    assert f"persistent({blocks}) in clusters of {cluster[0] * cluster[1]} blocks" in text and legal in text


def test_blocks_at_once():
    assert [concurrent_blocks(size) for size in (1, 2, 4, 8, 16)] == [132, 132, 120, 120, 112]
    program = product(cluster=(2, 1), blocks=65536, **SMALL)(float16_gemm(1024, 1024, 64)).program(TARGET)
    assert str(program.ir.grid) == "256"


# ---------------------------------------------------------------------------------------------- text, documents, other output


def clustered(m, n, **values):
    """The library's strategy with a cluster added to its tiles, as a user writes it."""
    steps = list(hopper.strategy.steps)
    block_tile = next(number for number, step in enumerate(steps) if step.verb == "tile")
    steps[block_tile] = steps[block_tile].refined(Cluster(m, n))
    return attrs.evolve(hopper.strategy, steps=tuple(steps)).with_(**values)


def test_the_library_strategy_accepts_a_cluster():
    """Its numbers may be tunables."""
    strategy = clustered(Tunable("cluster_m", 1, 2), Tunable("cluster_n", 1), bm=64, bn=64, wn=64, stages=2)
    assert {"cluster_m", "cluster_n"} <= set(strategy.tunables())
    spec = hopper.spec(200, 136, 72)
    require_right(strategy.with_(cluster_m=2), spec, orders=(1,))
    assert strategy(spec).program(TARGET).chosen["cluster_m"] == 1


def test_text_and_document_of_a_cluster():
    strategy = product(cluster=(2, 2), blocks=120)
    assert ".cluster(m=2, n=2)" in repr(strategy) and eval(repr(strategy)) == strategy
    assert loads(dumps(strategy)) == strategy


def test_printed_text():
    text = product(cluster=(2, 2), **SMALL)(float16_gemm(256, 256, 192)).program(TARGET).cuda
    assert "__cluster_dims__(4, 1, 1) __launch_bounds__(160)" in text and "clusters of 4 blocks" in text
    assert text.count("cluster_sync();") == 2 and "__syncthreads();" not in text
    assert "mbarrier_arrive_cluster(k_ring_empty + k_stage * 8, (0x5 << rank_m) | (0x3 << (rank_n * 2)))" in text.replace("\n", " ") or (
        re.search(r"mbarrier_arrive_cluster\([^;]*\(0x5 << rank_m\) \| \(0x3 << \(rank_n \* 2\)\)\);", text)
    )
    arrival = text[: text.rindex("mbarrier_arrive_cluster(")].rstrip().rpartition("\n")[2]
    assert "thread % 32" not in arrival, "each lane of a warp arrives at one block"
    assert ".release.cluster" not in text.replace("mbarrier_init.release.cluster", "")
    assert text.rindex("cluster_sync();") > text.rindex("tma_load_multicast(")


@pytest.mark.parametrize("options", [{"cluster": (2, 1)}, {"cluster": (2, 2), "blocks": 120, "group_m": 8, "producer": 128}], ids=str)
def test_it_compiles(options):
    """Without a warning: nothing spills, and MMAs are not serialized."""
    from fireiron.gpu.toolchain import compile_cuda, toolchains

    if not any(chain.serves(TARGET) for chain in toolchains()):
        pytest.skip("no NVRTC that serves sm_90a (pip install 'fireiron[check]')")
    program = product((128, 256, 64), (64, 256), 4, **options)(float16_gemm(4096, 4096, 1024)).program(TARGET)
    assert compile_cuda(program.cuda, TARGET).resources[program.name].spill_stores == 0


def test_show_and_cost():
    program = product((128, 256, 64), (64, 256), 4, cluster=(2, 1))(float16_gemm(4096, 4096, 4096)).program(TARGET)
    text = "\n".join(show.show(program))
    assert re.search(r"clusters +of 2 blocks; b_sh multicast, each of 2 blocks loads a part", text)
    assert re.search(r"barriers +2 cluster once", text)
    assert show.as_dict(program)["cluster"] == 2
    times = {
        cluster: predict(
            product((128, 256, 64), (64, 256), 4, cluster=cluster, blocks=120)(float16_gemm(4096, 4096, 4096)).program(TARGET), "H200"
        )
        for cluster in (None, (2, 1), (2, 2))
    }
    assert all(0 < one.us < 2 * times[None].us for one in times.values())


def test_export_launches_whole_clusters(tmp_path):
    """The launch is ordinary, since the kernel itself states its cluster size; more than 8 blocks must be allowed explicitly."""
    for cluster, allowed in (((2, 1), False), ((4, 4), True)):
        done = export(
            product(cluster=cluster, **SMALL)(float16_gemm(1024, 1024, 64)), tmp_path / str(cluster[0]), "product", arch=TARGET, cubin=False
        )
        text = "".join(path.read_text() for path in done.files)
        assert f"They form clusters of {cluster[0] * cluster[1]} blocks (__cluster_dims__)." in text
        assert ("NonPortableClusterSizeAllowed" in text) == allowed


def test_the_verifier():
    kernel = kernel_of((512, 64, 192), cluster=(2, 1))
    for faulty, message in (
        (attrs.evolve(kernel, cluster=None), "not all threads of a cluster reach its barrier|no cluster of the kernel contains them"),
        (attrs.evolve(kernel, grid=kernel.grid + 1), "are not a multiple of the cluster size 2"),
        (
            with_changed(kernel, of_kind(ir.Acquire), 0, lambda one: (making.cluster_barrier(), one)),
            "not all threads of a cluster reach its barrier",
        ),
        (changed_load(kernel, multicast=making.block_set(3, kernel.block)), "no cluster of the kernel contains them"),
    ):
        with pytest.raises(VerificationError, match=message):
            ir.verify(faulty)


def test_a_smaller_last_group_in_persistent_clusters():
    """88 tiles in raster groups of four rows of eleven: the height of the last group, written as a quotient and a remainder, need not be
    positive.
    """
    values = {"bm": 64, "bn": 64, "wm": 64, "wn": 64, "bk": 64, "epi_m": 64, "epi_n": 64, "stages": 4, "producer_threads": 32, "raster": 0}
    strategy = hopper.strategy.with_(**values, cluster_m=1, cluster_n=2, group_m=4, num_blocks=132)
    assert "__cluster_dims__(2" in strategy(hopper.spec(704, 512, 64)).program("sm_90a").cuda
