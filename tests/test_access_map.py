"""Access maps (`lower.access_map`): granules of memory, and conflicts of two accesses."""

import attrs
import numpy as np
import pytest
from handmade import access, execution, local
from touching import Engine, Step, T, buffer, i, kernel, loop, mma, reads, touch, writes

from fireiron import *
from fireiron.ir import mechanisms
from fireiron.ir.mechanism import AT_ONCE
from fireiron.ir.mechanisms.cp_async import CP_ASYNC_GROUPS
from fireiron.ir.mechanisms.tma_store import TMA_STORES
from fireiron.ir.mechanisms.wgmma import WGMMA_GROUPS
from fireiron.lower.access_map import MOST_ROOM, AccessMap, Footprint, _extremes
from fireiron.values.expr import TRUE, Var, less

K = sym("K")


def footprints_of(program, *accesses, kept=(), later=None):
    """The footprints of accesses in common granules; each statement has its enclosing loops."""
    touches = AccessMap(program)
    addresses = [touches.of(*item)[0] for item in accesses]
    granule = touches.granule(*addresses)
    span = touches.span(granule, *addresses)
    return [touches.footprint(item, granule, span, kept, later if number else None) for number, item in enumerate(addresses)]


def conflicts_of(program, *accesses, **options):
    """The granules of conflicts between two accesses, with the first and the last thread of each."""
    first, second = footprints_of(program, *accesses, **options)
    return [tuple(map(int, row)) for row in zip(*first.common_places(second), strict=True)]


def test_first_and_last_threads_of_common_granules():
    first, second = writes(T // 2), reads((127 - T) // 4)
    conflicts = conflicts_of(kernel(first, second), (first, ()), (second, ()))
    assert conflicts[:2] == [(0, 0, 127), (1, 2, 123)] and len(conflicts) == 32


def test_disjoint_accesses_do_not_conflict():
    first, second = writes(T), reads(T + 128)
    assert conflicts_of(kernel(first, second), (first, ()), (second, ())) == []


def test_kept_iterations_are_distinguished():
    """Iteration i writes what iteration i + 1 reads."""
    first, second = writes(i * 128 + T), reads((i + 3) % 4 * 128 + T)
    around = loop(4, first, second, period=4)
    program = kernel(around)
    assert conflicts_of(program, (first, (around,)), (second, (around,)), kept=(i,)) == []
    assert len(conflicts_of(program, (first, (around,)), (second, (around,)), kept=(i,), later=i)) == 4 * 128


def test_loops_that_are_not_kept_are_merged():
    stmt = writes(i * 128 + T)
    around = loop(4, stmt)
    (footprint,) = footprints_of(kernel(around), (stmt, (around,)))
    assert footprint.keys.size == 512
    (kept,) = footprints_of(kernel(around), (stmt, (around,)), kept=(i,))
    assert kept.keys.size == 512 and kept.keys.max() > 511, "with the iteration"


def test_tables_and_sorted_lists_agree():
    """Few granules have a table, many a sorted list; both can be compared with each other."""
    rows = np.array([1, 4, 6]), np.array([0, 2, 3]), np.array([9, 8, 7])
    others = np.array([0, 4, 6, 7]), np.array([5, 1, 4, 1]), np.array([5, 9, 4, 1])

    def footprint(keys, low, high, size):
        if not size:
            return Footprint(low, high, keys)
        least, greatest = np.full(size, -1), np.full(size, -1)
        least[keys], greatest[keys] = low, high
        return Footprint(least, greatest)

    for first_size, second_size in ((8, 8), (8, None), (None, 8), (None, None), (8, 16), (16, 8)):
        common = footprint(*rows, first_size).common_places(footprint(*others, second_size))
        assert [array.tolist() for array in common] == [[4, 6], [1, 3], [9, 7]], (first_size, second_size)
        extremes = footprint(*rows, first_size).extremes(footprint(*others, second_size))
        assert [array.tolist() for array in extremes] == [[1, 3], [9, 7]], (first_size, second_size)


def test_a_footprint_has_all_granules_in_common_with_itself():
    stmt = writes(T)
    (footprint,) = footprints_of(kernel(stmt), (stmt, ()))
    assert footprint.common_places(footprint)[0].size == 128


@pytest.mark.parametrize("columns", [1 << 22, K], ids=["known", "run time"])
def test_columns_of_a_global_array_a_million_apart_are_distinguished(columns):
    """So a block whose tile is that long needs no barrier between them."""
    array = local("g", (4, columns), GL)
    for place, same in (((1, 0), False), ((0, (1 << 20) - 1), True)):
        first, second = (
            execution(Step(), Move(1, 1)(RF, GL)(Thread), access("g", base, write=True)) for base in ((0, (1 << 20) - 1), place)
        )
        program = kernel(first, second, buffers=(array,), symbols=(K,))
        assert bool(conflicts_of(program, (first, ()), (second, ()))) == same
    half = execution(Step(), Move(1, 1)(RF, GL)(Thread), access("g", (0, 1 << 19), write=True))
    below = execution(Step(), Move(1, 1)(RF, GL)(Thread), access("g", (1, 0), write=True))
    assert conflicts_of(kernel(half, below, buffers=(array,), symbols=(K,)), (half, ()), (below, ())) == []


def test_a_kept_loop_of_unknown_extent_has_its_first_value():
    """For an array in global memory, whose tiles differ in each iteration."""
    array = local("g", (1 << 22,), GL)
    stmt = execution(Step(), Move(1, 1)(RF, GL)(Thread), access("g", (i * 128 + T,), write=True))
    around = loop(Var("turns", 0, 1 << 15), stmt)
    program = kernel(around, buffers=(array,))
    (footprint,) = footprints_of(program, (stmt, (around,)), kept=(i,))
    assert footprint.keys.tolist() == list(range(128)) and np.issubdtype(footprint.keys.dtype, np.integer)


def test_granules_are_named_by_their_first_element():
    array = local("g", (64, 128), GL)
    stmt = execution(Step(), Move(1, 1)(RF, GL)(Thread), access("g", (8, 6), (4, 2), write=True))
    other = writes(T * 2 + 6)
    program = kernel(stmt, other, buffers=(array, buffer("s", 512, offset=256)))
    touches = AccessMap(program)
    (far,), (near,) = touches.of(stmt, ()), touches.of(other, ())
    assert touches.boxes["g"] == (4, 2)
    for accessed, name in ((far, "g[8, 6]"), (near, "s[6]")):
        granule = touches.granule(accessed)
        span = touches.span(granule, accessed)
        keys = touches.footprint(accessed, granule, span, ()).keys
        assert touches.named(accessed, int(keys[0]), granule, span) == name


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("engine", "spread", "vectors", "granule"),
    [(True, True, 4, 16), (False, True, 4, 4), (False, False, 4, 16), (True, True, 1, 4), (False, False, 2, 8)],
)
def test_granules_are_the_shortest_vector(engine, spread, vectors, granule):
    """Asynchronous engines access whole rows of their operands' chunks; for other spread accesses the lanes are unspecified."""
    stmt = attrs.evolve(mma(0), instruction=Engine() if engine else Step(), vectors=(vectors, 1))
    stmt = attrs.evolve(stmt, accesses=(attrs.evolve(stmt.accesses[0], spread=spread), stmt.accesses[1]))
    program = kernel(stmt, buffers=(buffer("s", 512), buffer("r", 4, memory=RF)))
    assert AccessMap(program).granules == {"s": granule, "r": 0}
    assert AccessMap(kernel(stmt, reads(T), buffers=(buffer("s", 512), buffer("r", 4, memory=RF)))).granules["s"] == 4
    assert AccessMap(kernel(stmt, buffers=(buffer("s", 512, offset=8), buffer("r", 4, memory=RF)))).granules["s"] == min(granule, 8)


# ---------------------------------------------------------------------------------------------- threads and duration of accesses


@pytest.mark.sampled(1)
@pytest.mark.parametrize("completion", [AT_ONCE, *mechanisms.kinds()])
@pytest.mark.parametrize("write", [False, True])
def test_asynchronous_accesses_last_until_a_wait(completion, write):
    stmt = touch(T, write=write, mechanism=completion)
    (accessed,) = AccessMap(kernel(stmt)).of(stmt, ())
    assert accessed.asynchronous_write == (write and completion is CP_ASYNC_GROUPS)
    assert accessed.completes_at_wait == (completion is CP_ASYNC_GROUPS if write else completion in (WGMMA_GROUPS, TMA_STORES))


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("level", "active", "wanted"),
    [
        (Warp, TRUE, range(0, 128, 32)),
        (Warp, less(T, 64), range(0, 128, 32)),
        (Warp, less(T // 32 % 2, 1), range(0, 128, 32)),
        (Warp, less(T, 48), range(128)),
        (Warp, less(0, T), range(128)),
        (Warp, less(i, 3), range(128)),
        (Warp, less(T + i, 64), range(128)),
        (Warpgroup, less(T, 128), [0]),
        (Warpgroup, less(T, 64), range(128)),
        (Block, TRUE, [0]),
        (Block, less(T, 64), range(128)),
        (Thread, TRUE, range(128)),
    ],
    ids=str,
)
def test_the_first_thread_represents_a_uniformly_active_unit(level, active, wanted):
    """An access of a whole unit is listed once, not once per thread."""
    stmt = reads(0, level=level, active=active)
    around = loop(4, stmt)
    program = kernel(around)
    touches = AccessMap(program)
    (accessed,) = touches.of(stmt, (around,))
    assert touches.representatives(accessed).tolist() == list(wanted)


@pytest.mark.parametrize("room", [64, MOST_ROOM + 1])
@pytest.mark.parametrize("keys", [(), (5,), (5, 5, 5), (7, 3, 7, 63, 0, 3, 7), tuple(range(64))])
def test_extremes_by_key_with_and_without_a_table(room, keys):
    threads = [2 * number for number in range(len(keys))]
    extremes = _extremes(np.array(keys, dtype=np.int64), np.array(threads, dtype=np.int64), room)
    of_key = {key: [thread for other, thread in zip(keys, threads, strict=True) if other == key] for key in sorted(keys)}
    assert extremes.keys.tolist() == [*of_key]
    assert extremes.low.tolist() == [min(of) for of in of_key.values()] and extremes.high.tolist() == [max(of) for of in of_key.values()]


def test_scratch_memory_has_byte_granules():
    """A micro-kernel may access each byte of it; other buffers are divided by the widths of their accesses, and registers not at all."""
    scratch, registers = buffer("scratch", 64, offset=2048), buffer("r", 8, memory=RF)
    stmt = attrs.evolve(writes(T, width=4), scratch=scratch.tensor)
    granules = AccessMap(kernel(stmt, reads(0, name="r"), buffers=(buffer("s", 512, offset=64), scratch, registers))).granules
    assert granules == {"s": 4, "scratch": 1, "r": 0}
