"""Loops of which data choose the turns, by hand: which of them count as so many turns, and which do not."""

import attrs
import making
import pytest
from touching import BLOCK_BARRIER, WARP_BARRIER, T, buffer, i, kernel, loop, reads, writes

from fireiron import *
from fireiron import ir
from fireiron.check.data_dependent_loops import COUNT_SUFFIX, max_trip_count, with_counted_iterations
from fireiron.values.expr import ONE, ZERO, Var, as_expr, less, lookup, minimum

SEEN, NAMED = Var("seen", 0, 1), Var("named", 0, 9)
INNER, OTHER = Var("inner", 0, 0), Var("other", 0, 7)
ITERATION = Var("turn", 0, 1 << 20)
N = Var("N", 0, 64, 1, True)
ROW = Var("row", 0, 1 << 20)
BUFFERS = (buffer("s", 4096), buffer("g", 4096, memory=GL), buffer("r", 4, memory=RF))
CHOOSES = making.let(SEEN, less(0, lookup("data", i, 9)))
WORK = (reads(T, name="g"), writes(T))


def counted(*body, extent=8, **options):
    """The outermost loop of the kernel with counted turns, and the kernel's symbols; the loop itself where nothing is counted."""
    whole = kernel(loop(extent, *body), **{"buffers": BUFFERS, "symbols": (N,), **options})
    changed = with_counted_iterations(whole)
    assert (changed is whole) == (len(changed.symbols) == 1), "a count is a size, and without one nothing changes"
    return changed.body[0], changed.symbols


def chosen(*body, extent=SEEN, **fields):
    """The loop of one turn or none."""
    return loop(extent, *body, var=INNER, **fields)


def is_counted(*body, **options):
    return len(counted(*body, **options)[1]) == 2


def test_turns_that_data_choose_are_a_number_of_turns():
    result, symbols = counted(CHOOSES, chosen(*WORK))
    count = symbols[1]
    assert count.name == f"i{COUNT_SUFFIX}" and (count.low, count.high, count.parameter) == (0, 8, True)
    assert result.extent == count and result.var == i
    (inner,) = result.body
    assert inner.extent == ONE and inner.body == WORK, "the names of data are gone"
    symbolic, _ = counted(CHOOSES, chosen(*WORK), extent=N)
    assert symbolic.extent == minimum(attrs.evolve(count, high=64), N), "no more than there are"
    assert max_trip_count(symbolic.extent) == N


def test_the_most_turns_of_a_count():
    count, plain = Var(f"i{COUNT_SUFFIX}", 0, 8, 1, True), Var("count", 0, 8, 1, True)
    assert max_trip_count(as_expr(5)) == as_expr(5) and max_trip_count(count) == count
    assert max_trip_count(minimum(count, N)) == N == max_trip_count(minimum(N, count))
    assert max_trip_count(minimum(plain, N)) == minimum(plain, N), "a size of another name"
    loose = Var(f"i{COUNT_SUFFIX}", 0, 8)
    assert max_trip_count(minimum(loose, N)) == minimum(loose, N), "no size"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ((CHOOSES, chosen(*WORK)), True),
        ((CHOOSES, making.comment("of"), chosen(*WORK)), True),
        ((CHOOSES, chosen(*WORK), BLOCK_BARRIER), True),
        ((CHOOSES, chosen(*WORK), BLOCK_BARRIER, WARP_BARRIER), True),
        ((CHOOSES, BLOCK_BARRIER, chosen(*WORK)), False),
        ((CHOOSES, chosen(*WORK), reads(T)), False),
        ((CHOOSES, reads(T), chosen(*WORK)), False),
        ((CHOOSES, chosen(*WORK), chosen(*WORK)), False),
        ((making.let(SEEN, less(i, 4)), chosen(*WORK)), False),
        ((CHOOSES, chosen(*WORK, extent=minimum(SEEN, ONE) + ZERO)), True),
        ((making.let(NAMED, lookup("data", i, 9)), chosen(*WORK, extent=NAMED)), False),
        ((making.let(NAMED, lookup("data", i, 9)), making.let(SEEN, less(0, NAMED)), chosen(*WORK)), True),
        ((CHOOSES,), False),
        ((CHOOSES, reads(T)), False),
    ],
)
def test_nothing_else_does_anything_in_a_turn(body, expected):
    assert is_counted(*body) == expected


@pytest.mark.parametrize(
    ("work", "expected"),
    [
        (reads(T), True),
        (writes(T), True),
        (writes(T + i * 128), False),
        (reads(T + i * 128), False),
        (reads(T, copy=i % 2), False),
        (reads(T, active=less(i, 3)), False),
        (reads(T + i * 128, name="g"), True),
        (writes(T, name="g"), False),
        (writes(0, name="r"), True),
        (writes(i % 4, name="r"), False),
        (reads(ROW), False),
        (reads(T + OTHER), True),
        (making.acquire("ring", ir.StageState.FULL, ITERATION), True),
        (making.acquire("ring", ir.StageState.FULL, i), False),
        (making.release("ring", ir.StageState.EMPTY, i + 1), False),
        (making.release("ring", ir.StageState.EMPTY, ROW), False),
    ],
)
def test_all_turns_touch_the_same_of_what_threads_share(work, expected):
    """What is read of global memory may move: nothing writes there."""
    named = making.let(ROW, T + i)
    body = (loop(8, work, var=OTHER),) if work.__class__ is ir.Exec and OTHER in work.accesses[0].base[0].variables() else (work,)
    assert is_counted(named, CHOOSES, chosen(*body)) == expected


def test_a_ring_goes_on_by_the_number_of_the_turn():
    """What counted the turns that were taken is the loop itself; inside another loop it would go on, and is not counted."""
    taking = chosen(making.acquire("ring", ir.StageState.FULL, ITERATION), prior_iterations=ITERATION)
    result, _ = counted(CHOOSES, taking)
    (inner,) = result.body
    assert inner.prior_iterations is None and inner.body == (making.acquire("ring", ir.StageState.FULL, i),)
    inside = loop(8, CHOOSES, taking)
    whole = kernel(loop(3, inside, var=OTHER), buffers=BUFFERS, symbols=(N,))
    assert with_counted_iterations(whole) is whole
    again = kernel(loop(3, loop(8, CHOOSES, chosen(*WORK)), var=OTHER), buffers=BUFFERS, symbols=(N,))
    assert len(with_counted_iterations(again).symbols) == 2, "without such a count it may be counted anew each time"


def test_roles_take_the_same_turns():
    """The loops of both have one count; loops of other names have others."""
    one = loop(8, CHOOSES, chosen(*WORK))
    both = making.roles((making.role("first", 0, 64, (one,)), making.role("second", 64, 64, (one,))))
    assert len(with_counted_iterations(kernel(both, buffers=BUFFERS, symbols=(N,))).symbols) == 2
    other = making.let(Var("seen too", 0, 1), less(0, lookup("data", OTHER, 9)))
    two = loop(8, other, loop(other.var, *WORK, var=INNER), var=OTHER)
    found = with_counted_iterations(kernel(one, two, buffers=BUFFERS, symbols=(N,)))
    assert [each.name for each in found.symbols[1:]] == [f"i{COUNT_SUFFIX}", f"other{COUNT_SUFFIX}"]


def test_blocks_of_a_cluster_take_a_turn_together():
    """Where data say otherwise for one block than for another of its cluster, nothing is counted."""
    block = Var("block", 0, 7)
    same = making.let(SEEN, less(0, lookup("data", block // 2, 9)))
    apart = making.let(SEEN, less(0, lookup("data", block, 9)))
    cluster = making.block_cluster((2, 1), (Var("place_m", 0, 1), Var("place_n", 0, 0)))
    assert is_counted(same, chosen(*WORK), grid=8, cluster=cluster) and not is_counted(apart, chosen(*WORK), grid=8, cluster=cluster)
    assert is_counted(apart, chosen(*WORK), grid=8), "without a cluster nobody waits for another block"
