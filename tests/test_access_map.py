"""Access maps (`lower.access_map`): which places are distinguished, and where two accesses conflict."""

import attrs
import numpy as np
import pytest
from handmade import access, execution, local
from touching import Engine, Step, T, buffer, i, kernel, loop, products, reads, touch, writes

from fireiron import *
from fireiron.ir import mechanisms
from fireiron.ir.mechanism import AT_ONCE
from fireiron.ir.mechanisms.cp_async import CP_ASYNC_GROUPS
from fireiron.ir.mechanisms.tma_store import TMA_STORES
from fireiron.ir.mechanisms.wgmma import WGMMA_GROUPS
from fireiron.lower.access_map import MOST_ROOM, AccessMap, Footprint, _extremes
from fireiron.values.expr import TRUE, Var, less

K = sym("K")


def footprints(program, *found, kept=(), later=None):
    """The footprints of accesses in comparable places; each statement has its enclosing loops."""
    touches = AccessMap(program)
    every = [touches.of(*one)[0] for one in found]
    granule = touches.granule(*every)
    span = touches.span(granule, *every)
    return [touches.footprint(one, granule, span, kept, later if number else None) for number, one in enumerate(every)]


def met(program, *found, **options):
    """The places of conflicts between two accesses, with the least and the greatest thread of either."""
    one, other = footprints(program, *found, **options)
    return [tuple(map(int, row)) for row in zip(*one.common_places(other), strict=True)]


def test_least_and_greatest_threads_of_what_both_touch():
    one, other = writes(T // 2), reads((127 - T) // 4)
    found = met(kernel(one, other), (one, ()), (other, ()))
    assert found[:2] == [(0, 0, 127), (1, 2, 123)] and len(found) == 32


def test_accesses_that_do_not_meet():
    one, other = writes(T), reads(T + 128)
    assert met(kernel(one, other), (one, ()), (other, ())) == []


def test_iterations_are_told_apart_and_the_next_one_is_that_behind():
    """Iteration i writes what iteration i + 1 reads."""
    one, other = writes(i * 128 + T), reads((i + 3) % 4 * 128 + T)
    around = loop(4, one, other, period=4)
    program = kernel(around)
    assert met(program, (one, (around,)), (other, (around,)), kept=(i,)) == []
    assert len(met(program, (one, (around,)), (other, (around,)), kept=(i,), later=i)) == 4 * 128


def test_what_is_not_kept_falls_together():
    one = writes(i * 128 + T)
    around = loop(4, one)
    (found,) = footprints(kernel(around), (one, (around,)))
    assert found.keys.size == 512
    (kept,) = footprints(kernel(around), (one, (around,)), kept=(i,))
    assert kept.keys.size == 512 and kept.keys.max() > 511, "each with its turn"


def test_tables_and_sorted_lists_say_the_same():
    """Few places have a table, many a sorted list; the two can be compared with each other."""
    rows = np.array([1, 4, 6]), np.array([0, 2, 3]), np.array([9, 8, 7])
    others = np.array([0, 4, 6, 7]), np.array([5, 1, 4, 1]), np.array([5, 9, 4, 1])

    def made(keys, low, high, size):
        if not size:
            return Footprint(low, high, keys)
        least, greatest = np.full(size, -1), np.full(size, -1)
        least[keys], greatest[keys] = low, high
        return Footprint(least, greatest)

    for mine, theirs in ((8, 8), (8, None), (None, 8), (None, None), (8, 16), (16, 8)):
        found = made(*rows, mine).common_places(made(*others, theirs))
        assert [one.tolist() for one in found] == [[4, 6], [1, 3], [9, 7]], (mine, theirs)
        extremes = made(*rows, mine).extremes(made(*others, theirs))
        assert [one.tolist() for one in extremes] == [[1, 3], [9, 7]], (mine, theirs)


def test_a_footprint_meets_itself_everywhere():
    one = writes(T)
    (found,) = footprints(kernel(one), (one, ()))
    assert found.common_places(found)[0].size == 128


@pytest.mark.parametrize("columns", [1 << 22, K], ids=["known", "run time"])
def test_places_of_an_array_in_global_memory_a_million_columns_apart_are_others(columns):
    """So a block whose tile is that long needs no barrier between them."""
    array = local("g", (4, columns), GL)
    for place, same in (((1, 0), False), ((0, (1 << 20) - 1), True)):
        one, other = (execution(Step(), Move(1, 1)(RF, GL)(Thread), access("g", base, write=True)) for base in ((0, (1 << 20) - 1), place))
        program = kernel(one, other, buffers=(array,), symbols=(K,))
        assert bool(met(program, (one, ()), (other, ()))) == same
    half = execution(Step(), Move(1, 1)(RF, GL)(Thread), access("g", (0, 1 << 19), write=True))
    below = execution(Step(), Move(1, 1)(RF, GL)(Thread), access("g", (1, 0), write=True))
    assert met(kernel(half, below, buffers=(array,), symbols=(K,)), (half, ()), (below, ())) == []


def test_a_kept_loop_of_unknown_extent_stands_at_its_first_value():
    """For an array in global memory, whose tiles differ in each iteration."""
    array = local("g", (1 << 22,), GL)
    one = execution(Step(), Move(1, 1)(RF, GL)(Thread), access("g", (i * 128 + T,), write=True))
    around = loop(Var("turns", 0, 1 << 15), one)
    program = kernel(around, buffers=(array,))
    (found,) = footprints(program, (one, (around,)), kept=(i,))
    assert found.keys.tolist() == list(range(128)) and np.issubdtype(found.keys.dtype, np.integer)


def test_places_are_named_by_the_coordinates_of_their_first_element():
    array = local("g", (64, 128), GL)
    one = execution(Step(), Move(1, 1)(RF, GL)(Thread), access("g", (8, 6), (4, 2), write=True))
    other = writes(T * 2 + 6)
    program = kernel(one, other, buffers=(array, buffer("s", 512, offset=256)))
    touches = AccessMap(program)
    (far,), (near,) = touches.of(one, ()), touches.of(other, ())
    assert touches.boxes["g"] == (4, 2)
    for found, name in ((far, "g[8, 6]"), (near, "s[6]")):
        granule = touches.granule(found)
        span = touches.span(granule, found)
        keys = touches.footprint(found, granule, span, ()).keys
        assert touches.named(found, int(keys[0]), granule, span) == name


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("engine", "spread", "vectors", "granule"),
    [(True, True, 4, 16), (False, True, 4, 4), (False, False, 4, 16), (True, True, 1, 4), (False, False, 2, 8)],
)
def test_places_are_as_long_as_the_shortest_piece_that_is_taken_at_once(engine, spread, vectors, granule):
    """Asynchronous engines access whole rows of their operands' chunks; for other spread accesses the lanes are unspecified."""
    one = attrs.evolve(products(0), instruction=Engine() if engine else Step(), vectors=(vectors, 1))
    one = attrs.evolve(one, accesses=(attrs.evolve(one.accesses[0], spread=spread), one.accesses[1]))
    program = kernel(one, buffers=(buffer("s", 512), buffer("r", 4, memory=RF)))
    assert AccessMap(program).granules == {"s": granule, "r": 0}
    assert AccessMap(kernel(one, reads(T), buffers=(buffer("s", 512), buffer("r", 4, memory=RF)))).granules["s"] == 4
    assert AccessMap(kernel(one, buffers=(buffer("s", 512, offset=8), buffer("r", 4, memory=RF)))).granules["s"] == min(granule, 8)


# ---------------------------------------------------------------------------------------------- who, and for how long


@pytest.mark.sampled(1)
@pytest.mark.parametrize("completion", [AT_ONCE, *mechanisms.kinds()])
@pytest.mark.parametrize("write", [False, True])
def test_copies_write_and_engines_read_until_a_wait(completion, write):
    one = touch(T, write=write, mechanism=completion)
    (found,) = AccessMap(kernel(one)).of(one, ())
    assert found.under_way == (write and completion is CP_ASYNC_GROUPS)
    assert found.lasts == (completion is CP_ASYNC_GROUPS if write else completion in (WGMMA_GROUPS, TMA_STORES))


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
def test_the_first_of_a_unit_stands_for_all_where_all_or_none_take_part(level, active, wanted):
    """So an access of a whole unit is listed once, not for each of its threads."""
    one = reads(0, level=level, active=active)
    around = loop(4, one)
    program = kernel(around)
    touches = AccessMap(program)
    (found,) = touches.of(one, (around,))
    assert touches.actors(found).tolist() == list(wanted)


@pytest.mark.parametrize("room", [64, MOST_ROOM + 1])
@pytest.mark.parametrize("keys", [(), (5,), (5, 5, 5), (7, 3, 7, 63, 0, 3, 7), tuple(range(64))])
def test_extremes_of_each_place_with_a_table_and_without_one(room, keys):
    threads = [2 * number for number in range(len(keys))]
    found = _extremes(np.array(keys, dtype=np.int64), np.array(threads, dtype=np.int64), room)
    of_key = {key: [thread for one, thread in zip(keys, threads, strict=True) if one == key] for key in sorted(keys)}
    assert found.keys.tolist() == [*of_key]
    assert found.low.tolist() == [min(of) for of in of_key.values()] and found.high.tolist() == [max(of) for of in of_key.values()]


def test_scratch_is_told_apart_byte_by_byte():
    """A micro-kernel may access each byte of it; other buffers are divided by the widths of their accesses, and registers not at all."""
    scratch, registers = buffer("scratch", 64, offset=2048), buffer("r", 8, memory=RF)
    one = attrs.evolve(writes(T, width=4), scratch=scratch.tensor)
    found = AccessMap(kernel(one, reads(0, name="r"), buffers=(buffer("s", 512, offset=64), scratch, registers))).granules
    assert found == {"s": 4, "scratch": 1, "r": 0}
