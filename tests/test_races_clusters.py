"""Blocks of a cluster, in hand-made kernels: their positions, the blocks that they access, and loops whose trip counts differ."""

import attrs
import making
import pytest
from handrings import ITERATION, emptied, grid_of, load, over_tiles
from touching import BLOCK_BARRIER, T, kernel, loop, reads, writes

from fireiron import *
from fireiron.check import AccessTrace, check_races
from fireiron.check.races.clusters import cluster_blocks, uneven_loops, with_free_ranks
from fireiron.values.expr import Var, as_expr, less, minimum

pytestmark = pytest.mark.sampled(1)

X, Y, N = Var("x", 0, 1), Var("y", 0, 2), Var("N", 1, 1 << 20, 1, True)
PAIR, SIX = making.block_cluster((2,), (X,)), making.block_cluster((2, 3), (X, Y))
EIGHT = Var("block", 0, 7)


def clustered(*body, cluster=PAIR, **options):
    options = {"grid": 12, "shared_bytes": 1000, **options}
    return kernel(making.let(X, EIGHT % 2), making.let(Y, EIGHT // 2 % 3), *body, cluster=cluster, **options)


def test_blocks_analyzed_together():
    alone = cluster_blocks(kernel(writes(T), shared_bytes=1000))
    assert (alone.count, alone.names, dict(alone.coordinates(0)), alone.memory_stride) == (1, frozenset(), {}, 1024)
    assert [cluster_blocks(kernel(writes(T), shared_bytes=size)).memory_stride for size in (0, 1, 1024, 1025, 2048)] == [
        0,
        1024,
        1024,
        2048,
        2048,
    ]
    six = cluster_blocks(clustered(writes(T), cluster=SIX))
    assert six.count == 6 and six.names == {"x of the cluster", "y of the cluster"} and six.memory_stride == 1024
    assert [six.coordinates(rank) for rank in range(6)] == [
        {"x of the cluster": rank % 2, "y of the cluster": rank // 2} for rank in range(6)
    ]  # fmt: skip


def test_blocks_that_a_block_accesses():
    free = Var("x of the cluster", 0, 1)
    six = cluster_blocks(clustered(writes(T), cluster=SIX))
    assert six.ranks((), 3) == ()
    assert six.ranks((making.block_set(0b111111, 0),), 3) == (0, 1, 2, 3, 4, 5)
    assert six.ranks((making.block_set(0b10101, free),), 3) == (1, 3, 5) and six.ranks((making.block_set(0b10101, free),), 4) == (0, 2, 4)
    assert six.ranks((making.block_set(0b11, 0), making.block_set(0b101, 1), making.block_set(0b1, 0)), 0) == (0, 1, 3), "each once"
    alone = cluster_blocks(kernel(writes(T)))
    assert alone.ranks((making.block_set(0b1, 0),), 0) == (0,)


def test_free_ranks_if_a_block_accesses_others():
    """And nowhere else."""
    peers = making.block_set(0b1, 1 - X)
    multicast = attrs.evolve(load(0), accesses=(reads(T + X, name="g").accesses[0], load(X).accesses[0]), multicast=peers)
    release, own = emptied(X, to=(peers, making.block_set(0b1, X))), emptied(X)
    access_trace = AccessTrace(clustered(multicast, release, own, reads(T + X)))
    free = Var("x of the cluster", 0, 1)
    changed = with_free_ranks(access_trace).kernel.body[2:]
    assert changed[0].multicast == making.block_set(0b1, 1 - free)
    assert changed[0].accesses[0] == multicast.accesses[0] and changed[0].accesses[1] == multicast.accesses[1].substitute({X: free})
    assert changed[0].accesses[1] != multicast.accesses[1]
    assert changed[1].to == (making.block_set(0b1, 1 - free), making.block_set(0b1, free)) and changed[1].fill_index == release.fill_index
    assert changed[2] == own and changed[3] == reads(T + X)
    plain = AccessTrace(kernel(writes(T)))
    assert with_free_ranks(plain) is plain


def texts(*body, **options):
    return list(uneven_loops(AccessTrace(clustered(*body, **options))))


BODY = (writes(T), BLOCK_BARRIER)


def test_trip_counts_that_differ_within_a_cluster():
    wide = Var("block", 0, 11)
    assert texts(loop(5, *BODY)) == [] and texts(loop(N, *BODY), symbols=(N,)) == []
    assert texts(loop(wide // 2, *BODY)) == [] and texts(loop(wide // 4, *BODY)) == []
    message = "differs between blocks of a cluster that synchronize in it"
    for extent in (wide, wide % 2, wide // 3, less(wide, 11), less(wide, 1)):
        assert texts(loop(extent, *BODY)) == [f"the trip count {extent} of loop i {message}"], extent
    assert texts(loop(wide // 6, *BODY), cluster=SIX) == [] and len(texts(loop(wide // 4, *BODY), cluster=SIX)) == 1
    assert list(uneven_loops(AccessTrace(kernel(loop(wide, *BODY), grid=12)))) == [], "without a cluster"
    named = Var("named", 0, 99)
    assert len(texts(making.let(named, wide + 1), loop(named, *BODY))) == 1
    (finding,) = [one for one in check_races(AccessTrace(clustered(loop(wide, reads(T))))) if "differs" in one.message]
    assert finding.severity == "error" and finding.kind == "race"


def test_trip_counts_that_may_differ():
    message = "may differ between the blocks of a cluster"
    wide = Var("block", 0, 1 << 20)
    assert texts(loop(wide // 2, *BODY), grid=N * 2, symbols=(N,)) == [f"undecided: the trip count block // 2 of loop i {message}"]
    assert len(texts(loop(wide // 2 + N, *BODY), symbols=(N,))) == 1, "with a run-time size too"
    assert len(texts(loop(5, loop(wide // 2, *BODY, var=ITERATION)), grid=N, symbols=(N,))) == 1
    assert texts(loop(5, *BODY), grid=N, symbols=(N,)) == []


@pytest.mark.parametrize(("tiles", "blocks", "expected"), [(12, 4, 0), (10, 4, 0), (11, 4, 1), (12, 3, 0), (12, 6, 0), (9, 4, 1)])
def test_loops_over_tiles(tiles, blocks, expected):
    """Blocks of a cluster process whole clusters of tiles if both numbers are multiples of the cluster size."""
    tiles_of = over_tiles(tiles, blocks, *BODY)
    grid = grid_of(tiles, blocks)
    got = texts(tiles_of, grid=grid)
    lengths = [tiles // blocks + (block < tiles % blocks) for block in range(blocks)]
    differ = blocks % 2 or any(lengths[block] != lengths[block ^ 1] for block in range(blocks // 2 * 2))
    assert bool(got) == bool(expected) == bool(differ and constant_extent(tiles_of)), got


def constant_extent(stmt):
    from fireiron.values.expr import constant

    return constant(stmt.extent) is None


def test_loops_over_a_run_time_number_of_tiles():
    even = Var("N", 2, 1 << 20, 2, True)
    for tiles, blocks, right in ((even, 4, True), (N, 4, False), (even, 3, False), (even, 6, True)):
        got = texts(over_tiles(tiles, blocks, *BODY), grid=minimum(tiles, as_expr(blocks)), symbols=(tiles,))
        assert (got == []) == right, (tiles, blocks)
        assert all(one.startswith("undecided: the trip count") for one in got)
