"""Data-dependent iterations in hand-made kernels: loops that can be replaced by a counted loop, and others."""

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
CONDITION = making.let(SEEN, less(0, lookup("data", i, 9)))
WORK = (reads(T, name="g"), writes(T))


def counted_loop(*body, extent=8, **options):
    """The outermost loop of the kernel with counted iterations, and the kernel's symbols; the loop itself if nothing is counted."""
    program = kernel(loop(extent, *body), **{"buffers": BUFFERS, "symbols": (N,), **options})
    changed = with_counted_iterations(program)
    assert (changed is program) == (len(changed.symbols) == 1), "a count is a size, and without one nothing changes"
    return changed.body[0], changed.symbols


def conditional_loop(*body, extent=SEEN, **fields):
    """The loop of one iteration or none."""
    return loop(extent, *body, var=INNER, **fields)


def is_counted(*body, **options):
    return len(counted_loop(*body, **options)[1]) == 2


def test_data_dependent_iterations_become_a_count():
    result, symbols = counted_loop(CONDITION, conditional_loop(*WORK))
    count = symbols[1]
    assert count.name == f"i{COUNT_SUFFIX}" and (count.low, count.high, count.parameter) == (0, 8, True)
    assert result.extent == count and result.var == i
    (inner,) = result.body
    assert inner.extent == ONE and inner.body == WORK, "the names of data are removed"
    symbolic, _ = counted_loop(CONDITION, conditional_loop(*WORK), extent=N)
    assert symbolic.extent == minimum(attrs.evolve(count, high=64), N), "at most the trip count"
    assert max_trip_count(symbolic.extent) == N


def test_maximum_trip_count():
    count, plain = Var(f"i{COUNT_SUFFIX}", 0, 8, 1, True), Var("count", 0, 8, 1, True)
    assert max_trip_count(as_expr(5)) == as_expr(5) and max_trip_count(count) == count
    assert max_trip_count(minimum(count, N)) == N == max_trip_count(minimum(N, count))
    assert max_trip_count(minimum(plain, N)) == minimum(plain, N), "a size of another name"
    loose = Var(f"i{COUNT_SUFFIX}", 0, 8)
    assert max_trip_count(minimum(loose, N)) == minimum(loose, N), "not a size"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ((CONDITION, conditional_loop(*WORK)), True),
        ((CONDITION, making.comment("of"), conditional_loop(*WORK)), True),
        ((CONDITION, conditional_loop(*WORK), BLOCK_BARRIER), True),
        ((CONDITION, conditional_loop(*WORK), BLOCK_BARRIER, WARP_BARRIER), True),
        ((CONDITION, BLOCK_BARRIER, conditional_loop(*WORK)), False),
        ((CONDITION, conditional_loop(*WORK), reads(T)), False),
        ((CONDITION, reads(T), conditional_loop(*WORK)), False),
        ((CONDITION, conditional_loop(*WORK), conditional_loop(*WORK)), False),
        ((making.let(SEEN, less(i, 4)), conditional_loop(*WORK)), False),
        ((CONDITION, conditional_loop(*WORK, extent=minimum(SEEN, ONE) + ZERO)), True),
        ((making.let(NAMED, lookup("data", i, 9)), conditional_loop(*WORK, extent=NAMED)), False),
        ((making.let(NAMED, lookup("data", i, 9)), making.let(SEEN, less(0, NAMED)), conditional_loop(*WORK)), True),
        ((CONDITION,), False),
        ((CONDITION, reads(T)), False),
    ],
)
def test_other_statements_prevent_counting(body, expected):
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
def test_all_iterations_must_access_the_same_shared_memory(work, expected):
    """Reads of global memory may differ, since nothing writes it."""
    named = making.let(ROW, T + i)
    body = (loop(8, work, var=OTHER),) if work.__class__ is ir.Exec and OTHER in work.accesses[0].base[0].variables() else (work,)
    assert is_counted(named, CONDITION, conditional_loop(*body)) == expected


def test_fill_index_of_counted_loops():
    """The loop variable replaces the count of prior iterations; inside another loop the count would continue, so the loop is not counted."""
    counting = conditional_loop(making.acquire("ring", ir.StageState.FULL, ITERATION), prior_iterations=ITERATION)
    result, _ = counted_loop(CONDITION, counting)
    (inner,) = result.body
    assert inner.prior_iterations is None and inner.body == (making.acquire("ring", ir.StageState.FULL, i),)
    inside = loop(8, CONDITION, counting)
    program = kernel(loop(3, inside, var=OTHER), buffers=BUFFERS, symbols=(N,))
    assert with_counted_iterations(program) is program
    again = kernel(loop(3, loop(8, CONDITION, conditional_loop(*WORK)), var=OTHER), buffers=BUFFERS, symbols=(N,))
    assert len(with_counted_iterations(again).symbols) == 2, "without prior iterations it may be counted each time"


def test_roles_share_a_count():
    """The loops of both roles have one count; loops with other names have separate counts."""
    first_loop = loop(8, CONDITION, conditional_loop(*WORK))
    both = making.roles((making.role("first", 0, 64, (first_loop,)), making.role("second", 64, 64, (first_loop,))))
    assert len(with_counted_iterations(kernel(both, buffers=BUFFERS, symbols=(N,))).symbols) == 2
    other = making.let(Var("seen too", 0, 1), less(0, lookup("data", OTHER, 9)))
    other_loop = loop(8, other, loop(other.var, *WORK, var=INNER), var=OTHER)
    result = with_counted_iterations(kernel(first_loop, other_loop, buffers=BUFFERS, symbols=(N,)))
    assert [symbol.name for symbol in result.symbols[1:]] == [f"i{COUNT_SUFFIX}", f"other{COUNT_SUFFIX}"]


def test_blocks_of_a_cluster_must_agree():
    """If the data may differ between blocks of a cluster, nothing is counted."""
    block = Var("block", 0, 7)
    same = making.let(SEEN, less(0, lookup("data", block // 2, 9)))
    different = making.let(SEEN, less(0, lookup("data", block, 9)))
    cluster = making.block_cluster((2, 1), (Var("place_m", 0, 1), Var("place_n", 0, 0)))
    assert is_counted(same, conditional_loop(*WORK), grid=8, cluster=cluster) and not is_counted(
        different, conditional_loop(*WORK), grid=8, cluster=cluster
    )
    assert is_counted(different, conditional_loop(*WORK), grid=8), "without a cluster no block waits for another one"
