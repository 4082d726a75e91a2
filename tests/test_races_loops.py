"""The iterations of loops and the lengths of loops that the race check examines to decide all of them."""

import itertools
import random

import attrs
import making
import numpy as np
import pytest
from handrings import ITERATION, TAKEN, TILE, J, consume, emptied, filled, full, load, over_tiles, produce, ring, ringed, staged
from touching import BLOCK_BARRIER, T, buffer, copies, i, kernel, loop, racy_by_hand, reads, writes

from fireiron import *
from fireiron.check import AccessTrace, check_races
from fireiron.check.blocks import local_coordinates
from fireiron.check.races import loops as subject
from fireiron.check.races.footprints import Footprints
from fireiron.check.races.loops import LoopCourse, Loops, Nested, decided
from fireiron.ir import FenceKind, For, statements
from fireiron.values.expr import ONE, ZERO, Var, all_of, as_expr, compiled, equal, less, minimum

pytestmark = pytest.mark.sampled(1)

N, M = Var("N", 0, 1 << 20, 1, True), Var("M", 0, 1 << 20, 1, True)
A, B, C = Var("a", 0, 1 << 20), Var("b", 0, 1 << 20), Var("c", 0, 1 << 20)
FOUR = Var("four", 0, 3)
G = buffer("g", 1 << 24, memory=GL)
BUFFERS = (buffer("s", 4096), G)
SIZES = (N, M)


def loops_of(*body, **options):
    """The analysis of the loops of a kernel, and its loops by the names of their variables."""
    program = kernel(*body, **{"buffers": BUFFERS, "symbols": SIZES, **options})
    return analyze(program)


def analyze(program):
    access_trace = AccessTrace(program)
    known = Loops(access_trace, Footprints(access_trace, local_coordinates(access_trace)), access_trace.uses)
    return known, {stmt.var.name: stmt for stmt in statements(access_trace.kernel.body) if isinstance(stmt, For)}


def course(*body, extent=N, **options):
    known, loops_by_name = loops_of(loop(extent, *body), **options)
    return known.course(loops_by_name["i"])


# ---------------------------------------------------------------------------------------------- the course of a loop


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ((reads(T),), LoopCourse(1, False, 4, False)),
        ((writes(T + i % 3 * 128),), LoopCourse(3, False, 8, True, 3, 3)),
        ((writes(T + i % 3 * 128), reads(T + (i + 1) % 2 * 128)), LoopCourse(6, False, 14, True, 6, 6)),
        ((writes(T + i // 2 % 3 * 128),), LoopCourse(6, False, 14, True, 6, 6)),
        ((writes(T + (i // 2 + i % 4) % 3 * 128),), LoopCourse(12, False, 26, True, 12, 12)),
        ((writes(T + i % 64),), LoopCourse(64, False, 130, True, 64, 64)),
        ((writes(T + i % 65),), LoopCourse(None, False, 4, True)),
        ((writes(T + i * 128),), LoopCourse(None, False, 4, True)),
        ((writes(T + i % 2 * 128), reads(T + i * 4)), LoopCourse(None, False, 4, True)),
        ((writes(T + i * 128, name="g"),), LoopCourse(1, True, 5, True)),
        ((writes(T + i * 64, name="g"),), LoopCourse(1, True, 6, True)),
        ((writes(T - i * 64 + (1 << 23), name="g"),), LoopCourse(1, True, 6, True)),
        ((writes(T + i * 64, name="g", width=4),), LoopCourse(1, True, 6, True)),
        ((writes(T * 4 + i * 64, name="g", width=4),), LoopCourse(1, True, 12, True)),
        ((writes(T + i * 64, name="g"), reads(T + i * 64 + 500, name="g")), LoopCourse(1, True, 13, True)),
        ((writes(T + i * 2, name="g"),), LoopCourse(None, False, 4, True)),
        ((writes(T + i * 128, name="g"), reads(T + i * 64, name="g")), LoopCourse(None, False, 4, True)),
        ((writes(T + i * i * 128, name="g"),), LoopCourse(None, False, 4, True)),
        ((writes(T + i * 128, name="g"), writes(T + i % 3 * 128)), LoopCourse(3, True, 8, True, 3, 3)),
        ((writes(T + i * 128, name="g"), writes(T + i * 3)), LoopCourse(None, True, 5, True)),
        ((copies(T), making.commit(), making.wait(3)), LoopCourse(1, False, 6, False)),
        ((copies(T), making.commit(), making.wait(1)), LoopCourse(1, False, 4, False)),
        ((copies(T), making.commit(), making.wait(3), making.wait(0)), LoopCourse(1, False, 6, False)),
        ((copies(T + i % 2 * 128), making.commit(), making.wait(5)), LoopCourse(2, False, 9, True, 2, 2)),
        ((writes(T, active=less(i, 3)),), LoopCourse(1, False, 4, True)),
        ((writes(T, active=less(T, 3)),), LoopCourse(1, False, 4, False)),
        ((loop(i + 1, reads(T), var=A),), LoopCourse(1, False, 4, True)),
        ((loop(M, reads(T), var=A),), LoopCourse(1, False, 4, False)),
    ],
)  # fmt: skip
def test_course_of_a_loop(body, expected):
    """The period of its addresses or their steps, and the number of iterations that decide."""
    got = course(*body)
    assert attrs.asdict(got) == attrs.asdict(expected)


def test_arrays_accessed_outside_the_loop_do_not_move():
    """An array that is also accessed outside the loop does not move as a whole."""
    inside = loop(N, writes(T + i * 128, name="g"))
    known, by_name = loops_of(inside)
    assert known.course(by_name["i"]).moves
    known, by_name = loops_of(inside, reads(T, name="g"))
    assert not known.course(by_name["i"]).moves and known.course(by_name["i"]).period is None
    known, by_name = loops_of(loop(N, writes(T + i * 128, name="g"), reads(T + i % 2, name="s")), reads(T))
    assert known.course(by_name["i"]).moves, "another array does not matter"
    known, by_name = loops_of(loop(N, loop(4, writes(T + i * 512 + FOUR * 128, name="g"), var=FOUR)))
    assert attrs.astuple(known.course(by_name["i"])) == (1, True, 5, True, 1, 1)


@pytest.mark.parametrize(("stages", "number", "period", "places"), [
    (2, i, 4, 2), (2, i * 2, 2, 1), (2, i * 4, 1, 1), (2, i + 7, 4, 2), (2, i * 3, 4, 2), (3, i, 6, 3), (3, i * 4, 3, 3), (1, i, 2, 1), (3, i * 6, 1, 1),
    (2, as_expr(5), 4, 4), (2, ITERATION, 4, 4), (2, i * i, 4, 4),
])  # fmt: skip
def test_fills_of_a_ring_repeat_after_two_rounds(stages, number, period, places):
    """An mbarrier distinguishes rounds by their phase parity. The places repeat after one round, if the fill moves by equal steps."""
    for body in ([full(number)], [emptied(number)], [load(number, stages)]):
        known, by_name = analyze(ringed([loop(9, *body)], [], stages=stages, rings=[ring(stages)]))
        got = known.course(by_name["i"])
        assert (got.period, got.kept, got.addresses, got.places) == (period, period + places + 2, 1, places), body


def test_addresses_without_a_period_beside_a_ring():
    """The phases of a ring repeat, but the addresses do not: a race in the 41st iteration must not be left out."""
    shifted = writes(T + J // 40 % 2, name="t")
    program = ringed([loop(64, *consume(J), shifted, var=J)], [loop(64, *produce(J), var=J)], buffers=(staged(2), buffer("t", 4096, 8192)))
    known, by_name = analyze(program)
    assert known.course(by_name["j"]).period is None
    assert any(finding.buffer == "t" and finding.severity == "error" for finding in check_races(AccessTrace(program)))
    buffers = (staged(2), buffer("t", 4096, 8192))
    known, _ = analyze(ringed([loop(N, *consume(J), shifted, var=J)], [loop(N, *produce(J), var=J)], buffers=buffers, symbols=SIZES))
    known.lengths()
    assert "neither repeat nor move by equal steps" in " ".join(known.undecided.values())


def test_course_of_a_loop_in_both_roles():
    """The roles wait for each other's fills, so both loops have the same course."""
    extra_write = (writes(T + J % 3 * 128, name="t"),)
    buffers = (staged(2), buffer("t", 4096, 8192))
    wide = ringed([loop(N, *consume(J), *extra_write, var=J)], [loop(N, *produce(J), var=J)], buffers=buffers, symbols=SIZES)
    known, _ = analyze(wide)
    (roles,) = wide.body
    first, second = (role.body[0] for role in roles.roles)
    expected = LoopCourse(12, False, 20, True, 3, 6)
    for stmt in (first, second):
        assert attrs.asdict(known.course(stmt)) == attrs.asdict(expected)
    alone = ringed([loop(N, *consume(J), *extra_write, var=J)], [loop(M, *produce(J), var=J)], buffers=buffers, symbols=SIZES)
    (roles,) = alone.body
    known, _ = analyze(alone)
    assert known.course(roles.roles[1].body[0]).period == 4, "of another length"
    groups = making.wait(9)
    more = ringed([loop(N, *consume(J), groups, var=J)], [loop(N, *produce(J), var=J)], symbols=SIZES)
    (roles,) = more.body
    known, _ = analyze(more)
    assert [known.course(role.body[0]).kept for role in roles.roles] == [4 + 9 + 2] * 2
    steps = ringed(
        [loop(8, *consume(J), var=J, step=2), loop(8, *consume(J), var=J, step=2, first=1)], [loop(8, *produce(J), var=J)], symbols=SIZES
    )
    known, by_name = analyze(steps)
    assert known.course(by_name["j"]).addresses == 2 and known.course(by_name["j"]).period == 4 and known.alternating
    pair = ringed(
        [loop(N, *consume(J), writes(T + J % 3 * 128, name="t"), making.wait(20), var=J)],
        [loop(N, *produce(J), writes(T + J % 5 * 128, name="t"), var=J)], buffers=buffers, symbols=SIZES,
    )  # fmt: skip
    (roles,) = pair.body
    known, _ = analyze(pair)
    got = [known.course(role.body[0]) for role in roles.roles]
    assert [attrs.asdict(stmt) for stmt in got] == [attrs.asdict(LoopCourse(60, False, 92, True, 15, 30))] * 2
    still = ringed([loop(N, full(3), reads(T), making.wait(7), var=J)], [loop(N, filled(3), var=J)], symbols=SIZES)
    (roles,) = still.body
    known, _ = analyze(still)
    assert [attrs.asdict(known.course(role.body[0])) for role in roles.roles] == [attrs.asdict(LoopCourse(4, False, 13, False, 1, 4))] * 2
    moving = ringed(
        [loop(N, *consume(J), writes(T + J * 128, name="g"), var=J)], [loop(N, *produce(J), var=J)], buffers=(staged(2), G), symbols=SIZES,
    )  # fmt: skip
    (roles,) = moving.body
    known, _ = analyze(moving)
    assert [known.course(role.body[0]).moves for role in roles.roles] == [True, True]
    thirds = ringed([loop(9, *consume(J), var=J, step=3)], [loop(9, *produce(J), var=J)], symbols=SIZES)
    known, by_name = analyze(thirds)
    assert (known.course(by_name["j"]).period, known.course(by_name["j"]).addresses) == (12, 3)


# ---------------------------------------------------------------------------------------------- ordered and vectorized loops


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ((writes(T + i * 128),), False),
        ((writes(T + i * 128), BLOCK_BARRIER), True),
        ((writes(T), making.commit()), True),
        ((writes(T), making.wait(0)), True),
        ((writes(T), making.fence(FenceKind.ASYNC_PROXY)), True),
        ((loop(3, BLOCK_BARRIER, var=A),), True),
        ((loop(3, writes(T), var=A),), False),
        ((loop(N, writes(T), var=A),), True),
        ((reads(T, spread=True),), False),
        ((writes(T, spread=True),), True),
        ((reads(T, level=Warp),), True),
        ((copies(T + i * 128),), False),
        ((copies(T),), True),
        ((copies(T + i * 128), copies(T)), True),
        ((copies(T + i * 128), reads(T)), True),
        ((copies(T + i % 2 * 128), copies(T + i * 128)), False),
    ],
)
def test_loops_whose_order_matters(body, expected):
    known, by_name = loops_of(loop(4, *body))
    assert ("i" in known.in_order(by_name.values())) == expected
    assert ("i" in known.in_order([])) is False
    known, by_name = loops_of(loop(N, *body))
    assert "i" in known.in_order(by_name.values()), "its trip count is unknown"


def test_loops_with_too_many_points_are_ordered(monkeypatch):
    """The points are those of all inner loops, threads and elements; outer loops do not count."""
    nest = loop(4, loop(3, writes(T, width=2), var=A))
    points = {"i": 4 * 3 * 128 * 2, "a": 3 * 128 * 2}
    for limit, ordered in ((points["i"], set()), (points["i"] - 1, {"i"}), (points["a"], {"i"}), (points["a"] - 1, {"i", "a"})):
        monkeypatch.setattr(subject, "MANY", limit)
        known, by_name = loops_of(nest)
        assert known.in_order(by_name.values()) == ordered


# ---------------------------------------------------------------------------------------------- iterations


def cut(count, changes, course):
    """Runs of equal iterations: the first ones of a run that decide, and as many of its end as a multiple of the period leaves."""
    kept_iterations, period = [], course.period or 1
    for start, end in itertools.pairwise([0, *changes, count]):
        length = end - start
        left = length if length <= course.kept else course.kept + (length - course.kept) % period
        kept_iterations += [*range(start, start + min(course.kept, left)), *range(end - max(left - course.kept, 0), end)]
    return kept_iterations


@pytest.mark.parametrize("kept, period", [(4, 1), (8, 3), (5, 2), (1, 1), (2, 4)])
def test_equal_iterations_are_omitted(kept, period):
    course = LoopCourse(period, False, kept, True)
    for count, changes in itertools.product(range(1, 30), ([], [1], [7], [3, 12], [1, 2, 3], [25])):
        changes = [change for change in changes if change < count]
        assert subject._without_repetitions(np.array(changes, dtype=int), count, course) == cut(count, changes, course)
    assert subject._without_repetitions(np.zeros(0, dtype=int), 30, LoopCourse(None, False, 3, True)) == [0, 1, 2]


@pytest.mark.parametrize(
    ("condition", "changes"),
    [
        (None, []),
        (less(i, 40), [40]),
        (less(40, i), [41]),
        (less(i, T), list(range(1, 101))),
        (less(i, T // 32 * 30), [30, 60, 90]),
        (equal(i, 50), [50, 51]),
        (all_of((less(20, i), less(i, 30))), [21, 30]),
        (less(i % 50, 25), [25, 50, 75]),
        (less(i, N), []),
        (less(i + Var("block", 0, 0), 50), None),
    ],
)
def test_iterations_that_decide(condition, changes):
    """Each change of the active threads is kept, with iterations on both sides."""
    body = writes(T) if condition is None else writes(T, active=condition)
    known, by_name = loops_of(loop(100, body, BLOCK_BARRIER))
    course = known.course(by_name["i"])
    expected = cut(100, [change for change in changes or [] if change < 100], course)
    assert list(known.iterations(by_name["i"], {}, {})) == expected and not known.undecided


def test_short_loops_are_followed_completely():
    for count in range(12):
        known, by_name = loops_of(loop(count, writes(T + i % 3 * 128), BLOCK_BARRIER))
        assert list(known.iterations(by_name["i"], {}, {})) == list(range(count)), "kept are 8, the period is 3"
    known, by_name = loops_of(loop(12, writes(T + i % 3 * 128), BLOCK_BARRIER))
    assert list(known.iterations(by_name["i"], {}, {})) == [*range(8), 11]


def test_iterations_with_fixed_or_assumed_names():
    nest = loop(9, loop(A + i, writes(T), BLOCK_BARRIER, var=B))
    known, by_name = loops_of(nest)
    assert list(known.iterations(by_name["b"], {"i": 2, "a": 1}, {})) == [0, 1, 2]
    assert list(known.iterations(by_name["b"], {"i": 0, "a": 0}, {})) == []
    known, by_name = loops_of(
        loop(N, writes(T), BLOCK_BARRIER), loop(minimum(N, as_expr(5)), writes(T), BLOCK_BARRIER, var=A), loop(i - 3, writes(T), var=B)
    )
    for length in (0, 3, 5, 9):
        assert list(known.iterations(by_name["i"], {}, {N: length})) == list(range(length))
        assert list(known.iterations(by_name["a"], {}, {N: length})) == list(range(min(length, 5)))
    assert list(known.iterations(by_name["b"], {"i": 1}, {})) == [], "a negative trip count"
    assert not known.undecided
    assert list(known.iterations(by_name["a"], {}, {M: 3})) == [0]
    assert known.undecided == {"s": "the trip count of loop a depends on N, which is known only at run time"}


def test_loops_with_first_and_step():
    """The iterations from `first` on in steps of `step`, among those that the whole loop follows."""
    for first, step in itertools.product((0, 1, 2), (1, 2, 3)):
        known, by_name = loops_of(loop(9, writes(T), BLOCK_BARRIER, first=first, step=step))
        all_iterations = set(known._iterations(by_name["i"], {}, {}))
        assert list(known.iterations(by_name["i"], {}, {})) == [
            number for number in sorted(all_iterations) if number in range(first, 9, step)
        ]
        assert known.alternating == (step > 1)
    known, by_name = loops_of(loop(100, writes(T), BLOCK_BARRIER, step=2))
    assert list(known._iterations(by_name["i"], {}, {}))[-1] == 99, "the last one too"


def test_limit_of_distinct_iterations(monkeypatch):
    monkeypatch.setattr(subject, "MOST_ITERATIONS", 20)
    for count, is_undecided in ((20, False), (21, True)):
        known, by_name = loops_of(loop(count, writes(T + i * 4), BLOCK_BARRIER), reads(T, name="g"))
        assert list(known.iterations(by_name["i"], {}, {})) == list(range(20))
        text = f"the {count} iterations of loop i are all different, but the limit is 20"
        assert known.undecided == ({"s": text} if is_undecided else {})
    known, by_name = loops_of(loop(100, writes(T, active=less(i % 2, 1)), BLOCK_BARRIER))
    assert list(known.iterations(by_name["i"], {}, {})) == list(range(20)) and "s" in known.undecided
    known, by_name = loops_of(loop(100, writes(T + i % 2 * 128), BLOCK_BARRIER))
    assert list(known.iterations(by_name["i"], {}, {})) == list(range(6)) and not known.undecided


@pytest.mark.parametrize("condition", [
    less(i, 40), less(40, i), less(i * 3, T + 5), less(T * 2 + 3, i * 4), less(T, 5), less(90 - i * 2, T), less(i + A * 7, 60), less(as_expr(300), i), less(i, 0),
])  # fmt: skip
def test_changes_of_affine_conditions_in_long_loops(monkeypatch, condition):
    """A comparison of affine expressions changes where its sides are equal."""
    body = (loop(3, writes(T, active=condition), var=A), BLOCK_BARRIER)
    known, by_name = loops_of(loop(100, *body))
    expected = known._changes(by_name["i"], {}, 100).tolist()
    assert known._changes_of_steps(by_name["i"], {}, 100).tolist() == expected and not known.undecided
    monkeypatch.setattr(subject, "MOST_COMPARED", 10_000)
    again, by_name = loops_of(loop(100, *body))
    assert again._changes(by_name["i"], {}, 100).tolist() == expected
    monkeypatch.setattr(subject, "MOST_COMPARED", 99)
    assert again._axes(by_name["i"], condition, {}) is None or "thread" not in again.access_trace.roots(condition)


def test_conditions_that_are_not_affine_are_undecided(monkeypatch):
    for condition, is_undecided in (
        (less(i % 7, 3), True),
        (equal(i, 5), True),
        (less(i * T, 9), True),
        (less(i, 7), False),
        (less(i, N), False),
    ):
        known, by_name = loops_of(loop(100, writes(T, active=condition), BLOCK_BARRIER))
        known._changes_of_steps(by_name["i"], {}, 100)
        assert bool(known.undecided) == is_undecided, condition
        if is_undecided:
            assert known.undecided["s"].endswith(" may change in each of the 100 iterations of loop i")
    monkeypatch.setattr(subject, "MOST_COMPARED", 100)
    known, by_name = loops_of(loop(100, writes(T, active=less(i, T)), BLOCK_BARRIER))
    assert known._axes(by_name["i"], less(i, T), {}) is None
    assert "has more than 100 values in an iteration of loop i" in known.undecided["s"]
    monkeypatch.setattr(subject, "MOST_COMPARED", 128)
    known, by_name = loops_of(loop(100, writes(T, active=less(i, T)), BLOCK_BARRIER))
    ((name, values),) = known._axes(by_name["i"], less(i, T), {})
    assert name == "thread" and values.tolist() == list(range(128))


def test_changes_do_not_depend_on_the_batch_size(monkeypatch):
    """With any number of iterations evaluated at once."""
    for condition in (less(i, T), less(i % 13, 5), equal(i, 63), less(63, i), less(i, 64)):
        known, by_name = loops_of(loop(200, writes(T, active=condition), BLOCK_BARRIER))
        rows = [[bool(compiled(condition)({"i": number, "thread": thread})) for thread in range(128)] for number in range(200)]
        expected = [number for number in range(1, 200) if rows[number] != rows[number - 1]]
        for limit in (1, 128 * 3, 128 * 64, 128 * 65, 1 << 22):
            monkeypatch.setattr(subject, "MANY", limit)
            assert known._changes(by_name["i"], {}, 200).tolist() == expected
        monkeypatch.undo()


def test_axes_of_a_condition():
    """The thread, and inner loops with all their values; a condition on the block or a size is assumed to hold."""
    inner = loop(5, writes(T, active=less(i + A, T)), var=A)
    known, by_name = loops_of(loop(100, inner, loop(N, writes(T), var=B), BLOCK_BARRIER))
    axes = dict(known._axes(by_name["i"], less(i + A, T), {}))
    assert axes["a"].tolist() == list(range(5)) and len(axes["thread"]) == 128 and list(axes) == ["a", "thread"]
    assert dict(known._axes(by_name["i"], less(i + A, T), {"a": 3})).keys() == {"thread"}
    assert known._axes(by_name["i"], less(i, N), {}) is None and known._axes(by_name["i"], less(i, C), {}) is None
    assert known._axes(by_name["i"], less(i, C), {"c": 1}) == []
    assert dict(known._axes(by_name["i"], less(i, B), {}))["b"].tolist() == list(range(5)), (
        "the deciding iterations of a loop of any length"
    )


def test_changes_of_bounds_and_inner_lengths():
    use = reads(T, width=4, bound=as_expr(200) - i)
    known, by_name = loops_of(loop(300, use, BLOCK_BARRIER))
    changes = known._changes(by_name["i"], {}, 300).tolist()
    assert changes[0] == 70 and 200 in changes and 201 not in changes
    triangle = loop(50, loop(i // 10, writes(T), BLOCK_BARRIER, var=A))
    known, by_name = loops_of(triangle)
    assert known._changes(by_name["i"], {}, 50).tolist() == [10, 20, 30, 40], "the length of an inner loop"


# ---------------------------------------------------------------------------------------------- lengths


def lengths(*body, **options):
    known, _ = loops_of(*body, **options)
    return [dict(assignment) for assignment in known.lengths()], known.undecided


def test_deciding_lengths():
    """Zero and the deciding number; if groups are counted or addresses repeat, all lengths up to one period more."""
    plain = (writes(T), BLOCK_BARRIER)
    assert lengths(loop(N, *plain))[0] == [{N: 0}, {N: 4}]
    assert lengths(loop(N + 1, *plain))[0] == [{N + 1: 4}], "at least one"
    assert lengths(loop(minimum(N, as_expr(3)), *plain))[0] == [{minimum(N, as_expr(3)): length} for length in range(4)]
    assert lengths(loop(minimum(N, as_expr(4)), *plain))[0] == [{minimum(N, as_expr(4)): length} for length in range(5)]
    assert lengths(loop(minimum(N, as_expr(5)), *plain))[0] == [{minimum(N, as_expr(5)): length} for length in (0, 4)]
    alternating = (writes(T + i % 3 * 128), BLOCK_BARRIER)
    assert lengths(loop(N, *alternating))[0] == [{N: length} for length in range(11)]
    assert lengths(loop(N + 4, *alternating))[0] == [{N + 4: length} for length in range(4, 11)]
    assert lengths(loop(N + 9, *alternating))[0] == [{N + 9: length} for length in (9, 10)]
    assert lengths(loop(N + 20, *alternating))[0] == [{N + 20: 20}]
    pending = (copies(T), making.commit(), making.wait(2), BLOCK_BARRIER)
    assert lengths(loop(N, *pending))[0] == [{N: length} for length in range(6)]
    assert lengths(loop(N, copies(T), making.commit(), BLOCK_BARRIER))[0] == [{N: length} for length in range(5)]
    assert lengths(loop(N, writes(T), making.wait(0), BLOCK_BARRIER))[0] == [{N: length} for length in range(5)]
    assert lengths(loop(N, writes(T + i * 128, name="g"), BLOCK_BARRIER))[0] == [{N: 0}, {N: 5}], "moving addresses have no period"
    assert lengths(loop(N, writes(T, active=less(i, 2)), BLOCK_BARRIER))[0] == [{N: length} for length in range(5)]


def test_lengths_that_do_not_matter():
    assert lengths(loop(7, writes(T), BLOCK_BARRIER))[0] == [{}]
    assert lengths(loop(N, making.comment("nothing")))[0] == [{}]
    assert lengths(loop(N, BLOCK_BARRIER))[0] == [{N: 0}, {N: 4}]
    assert lengths(loop(9, loop(i + 1, writes(T), BLOCK_BARRIER, var=A)))[0] == [{}], "the outer loop determines it"
    assert lengths(loop(N, writes(T), BLOCK_BARRIER), loop(minimum(N, as_expr(100)), writes(T), BLOCK_BARRIER, var=A))[0] == [
        {N: 0},
        {N: 4},
    ]


def test_combinations_of_lengths():
    both, _ = lengths(loop(N, writes(T), BLOCK_BARRIER), loop(M, writes(T), BLOCK_BARRIER, var=A))
    assert both == [{N: n, M: m} for n in (0, 4) for m in (0, 4)]
    same, _ = lengths(loop(N, writes(T), BLOCK_BARRIER), loop(N, writes(T + A % 3 * 128), BLOCK_BARRIER, var=A))
    assert same == [{N: n} for n in range(11)]


def test_lengths_that_differ_between_blocks():
    """In a grid of known size: the existing lengths, of the long ones one per position in the period."""
    block = Var("block", 0, 7)
    plain = (writes(T), BLOCK_BARRIER)
    got = [assignment[block] for assignment in lengths(loop(block, *plain), grid=8)[0]]
    assert got == [0, 1, 2, 3, 4, 5]
    assert [assignment[block * 2 - 3] for assignment in lengths(loop(block * 2 - 3, *plain), grid=3)[0]] == [0, 1]
    wide = Var("block", 0, 19)
    got = [assignment[wide] for assignment in lengths(loop(wide, writes(T + i % 3 * 128), BLOCK_BARRIER), grid=20)[0]]
    assert got == list(range(12)), "kept are 8, and 3 more; 11 as it ends as 8 does"
    got = [assignment[wide * 6] for assignment in lengths(loop(wide * 6, writes(T + i % 3 * 128), BLOCK_BARRIER), grid=20)[0]]
    assert got == [0, 6, 9]
    assert [assignment[wide] for assignment in lengths(loop(wide, *plain), grid=N)[0]] == [0, 4], "for an unknown number of blocks"
    both = block + N
    assert [assignment[both] for assignment in lengths(loop(both, *plain), grid=8)[0]] == [0, 4]


def test_undecided_lengths():
    _, undecided = lengths(loop(N, writes(T + i * 3), BLOCK_BARRIER), reads(T, name="g"))
    assert undecided == {"s": "the addresses of loop i, which runs N times, neither repeat nor move by equal steps"}
    short = minimum(N, as_expr(4))
    assert lengths(loop(short, writes(T + i * 3), BLOCK_BARRIER))[1] == {}, "few iterations are followed completely"
    block = Var("block", 0, 4)
    assert lengths(loop(block, writes(T + i * 3), BLOCK_BARRIER), grid=5)[1] == {}
    block = Var("block", 0, 5)
    assert lengths(loop(block, writes(T + i * 3), BLOCK_BARRIER), grid=6)[1] != {}
    _, undecided = lengths(loop(9, loop(i + N, writes(T), BLOCK_BARRIER, var=A)))
    assert "depends on another loop and on run-time values" in undecided["s"]


def test_too_many_combinations_of_lengths(monkeypatch):
    alternating = lambda extent, var: loop(extent, writes(T + var % 2 * 128), BLOCK_BARRIER, var=var)
    monkeypatch.setattr(subject, "MOST_LENGTHS", 64)
    assignments, undecided = lengths(alternating(N, A), alternating(M, B))
    assert len(assignments) == 64 and undecided == {}
    monkeypatch.setattr(subject, "MOST_LENGTHS", 63)
    assignments, undecided = lengths(alternating(N, A), alternating(M, B))
    assert assignments == [{N: 7, M: 7}] and undecided == {"s": "8 x 8 combinations of trip counts must be followed, but the limit is 63"}


def test_minimum_length_from_the_range_of_a_name():
    """If the name is proved to be at least the lower end of its range."""
    rounds, plain = Var("rounds", 1, 1 << 20), (writes(T), BLOCK_BARRIER)
    assert [assignment[N + 1] for assignment in lengths(making.let(rounds, N + 1), loop(rounds, *plain))[0]] == [4]
    few = Var("rounds", 2, 1 << 20)
    got = [list(assignment.values()) for assignment in lengths(making.let(few, N + 1), loop(few, *plain))[0]]
    assert got == [[4]], "the range of its value is at least one"
    got = [list(assignment.values()) for assignment in lengths(making.let(few, N * 1), loop(few, *plain))[0]]
    assert got == [[0], [4]]


def test_minimum_length_of_a_remainder():
    """A size minus a minimum with it is not negative, although its range does not show that; any other difference may be."""
    plain, left = (writes(T), BLOCK_BARRIER), N - minimum(N, M)

    def least(name, value, extent):
        (least_length,) = {min(assignment.values()) for assignment in lengths(making.let(name, value), loop(extent, *plain))[0][:1]}
        return least_length

    rest, more = Var("rest", 0, 1 << 20), Var("rest", 1, 1 << 20)
    assert least(rest, left, rest + 2) == 4 and least(rest, left, rest) == 0, "at least two, and four decide"
    assert least(rest, N - M, rest + 2) == 0 and least(more, left, more + 2) == 0
    assert least(more, left + 1, more + 2) in (0, 4)
    other = Var("other", 0, 9)
    both = lengths(making.let(rest, left), making.let(other, N - M), loop(rest + other + 2, *plain))[0]
    assert min(min(assignment.values()) for assignment in both) == 0, "each name counts"
    few = lengths(making.let(rest, left), loop(minimum(rest, ONE) + 2, *plain))[0]
    assert sorted(min(assignment.values()) for assignment in few) == [2, 3]
    assert sorted(min(assignment.values()) for assignment in lengths(making.let(rest, N - M), loop(minimum(rest, ONE) + 2, *plain))[0]) == [
        0,
        1,
        2,
        3,
    ]


# ---------------------------------------------------------------------------------------------- nested loops of unknown length


def test_lengths_of_nested_loops():
    """A long outer loop needs the short lengths of the inner one."""
    inner = lambda *body: loop(M, writes(T + A % 2 * 128), BLOCK_BARRIER, var=A)
    assignments, _ = lengths(loop(N, inner(), making.wait(0)))
    assert {assignment[N] for assignment in assignments} >= {0, 1, 2, 4}
    pairs = {(assignment[N], assignment[M]) for assignment in assignments}
    outer_course = LoopCourse(1, False, 4, False)
    window, period = 6 - 2, 2
    all_pairs = set(itertools.product({assignment for assignment, _ in pairs}, range(8)))
    assert pairs == {(n, m) for n, m in all_pairs if n <= 1 or m <= window or (m <= window + period and n <= 2)}
    assert outer_course.kept == max(n for n, _ in pairs)


def test_new_combinations_of_nested_lengths():
    for few, window, period in itertools.product((2, 3, 4), (0, 3), (1, 2)):
        nested = Nested(N, few, M, window, period)
        for n, m in itertools.product(range(6), range(9)):
            new = n <= 1 or m <= window or (m <= window + period and (n <= few or few > 2))
            assert nested.is_new({N: n, M: m}) == new


@pytest.mark.parametrize("address, wait", [(ZERO, 0), (i % 2 * 128, 0), (i % 3 * 128, 0), (ZERO, 3)])
@pytest.mark.parametrize("inner_loops", [1, 2])
def test_omitted_combinations_of_nested_lengths(address, wait, inner_loops):
    """The window is the longest and the period the common one of all inner loops of that length."""
    inner = lambda var, stages: loop(M, writes(T + var % stages * 128), *([making.wait(wait)] if wait else []), BLOCK_BARRIER, var=var)
    body = [inner(A, 2), *([inner(B, 3)] if inner_loops == 2 else []), loop(7, reads(T), BLOCK_BARRIER, var=C)]
    known, by_name = loops_of(loop(N, reads(T + address), *body, making.wait(0)))
    few = known.course(by_name["i"]).addresses + 1
    courses = [known.course(by_name[name]) for name in ("a", "b")[:inner_loops]]
    window, period = max(item.kept - item.period for item in courses), (2, 6)[inner_loops - 1]
    got = {(item[N], item[M]) for item in known.lengths()}
    all_pairs = set(itertools.product({n for n, _ in got}, {m for _, m in got}))
    is_new = lambda n, m: n <= 1 or m <= window or (m <= window + period and (n <= few or few > 2))
    followed = {m for _, m in got} >= set(range(1, window + period + 1))
    assert got == ({pair for pair in all_pairs if is_new(*pair)} if followed else all_pairs)


def test_incomplete_lengths_omit_no_combination():
    """A loop without counted groups is followed for two lengths, which do not decide the lengths between."""
    assignments, _ = lengths(loop(N, loop(M, writes(T), BLOCK_BARRIER, var=A)))
    assert {(assignment[N], assignment[M]) for assignment in assignments} == {(n, m) for n in (0, 4) for m in (0, 4)}
    assignments, _ = lengths(loop(N, loop(M, writes(T), BLOCK_BARRIER, var=A), writes(T + i % 2 * 128), BLOCK_BARRIER))
    pairs = {(assignment[N], assignment[M]) for assignment in assignments}
    assert {n for n, _ in pairs} == {0, 1, 2, 3, 6} and {m for _, m in pairs} == {0, 4} and len(pairs) == 10


# ---------------------------------------------------------------------------------------------- iterations over tiles


def tiles(count, blocks, *body, extra=()):
    """A persistent block with tiles of different trip counts."""
    at, block, iteration = Var("tile", 0, 999), Var("block", 0, 63), Var("turn", 0, 999)
    extent = as_expr(count) // blocks + less(block, count % blocks)
    length = at % 3 + 1
    return kernel(
        making.loop(iteration, extent, (making.let(at, block + iteration * blocks), loop(length, writes(T), BLOCK_BARRIER, var=A), BLOCK_BARRIER, *body)),
        *extra, grid=minimum(as_expr(count), as_expr(blocks)), buffers=BUFFERS, symbols=SIZES,
    )  # fmt: skip


@pytest.mark.parametrize(("count", "blocks"), [(8, 2), (40, 2), (39, 1), (40, 1), (300, 3), (301, 3)])
def test_deciding_iterations_over_tiles(count, blocks):
    """All new iterations in order, and of the following equal ones those that decide."""
    iteration = Var("turn", 0, 999)
    for condition, at in ((None, ()), (less(iteration, 25), (25,)), (less(70, iteration), (71,))):
        extra = (reads(T),) if condition is None else (reads(T, active=condition),)
        known, by_name = analyze(tiles(count, blocks, *extra))
        varying, course = known.varying_tiles[id(by_name["turn"])], known.course(by_name["turn"])
        assert varying.extra_iterations == (varying.max_tiles if count % blocks == 0 else 0) and varying.part_count >= 1
        for piece in range(varying.part_count):
            new, iterations = len(varying.part(piece)), varying.iterations(piece)
            expected = cut(iterations, sorted({*range(1, new + 1), *at} & set(range(1, iterations))), course)
            assert list(known.iterations(by_name["turn"], {}, {subject.SEQUENCE_PART: piece})) == (
                list(range(iterations)) if iterations <= new + course.kept else expected
            )


def test_period_of_iterations_over_tiles_in_roles():
    """The period is that of the ring's rounds, and of other addresses in the loop."""
    length = TILE % 2 + 1
    for place, period in ((ZERO, 4), (ITERATION % 3 * 128, 12)):
        body = (loop(length, *consume(TAKEN + J), var=J), writes(T + place, name="t"))
        program = ringed(
            [over_tiles(90, 1, *body, prior_iterations=TAKEN, increment=length)],
            [over_tiles(90, 1, loop(length, *produce(TAKEN + J), var=J), prior_iterations=TAKEN, increment=length)],
            buffers=(staged(2), buffer("t", 4096, 8192)), grid=1,
        )  # fmt: skip
        known, _ = analyze(program)
        (roles,) = program.body
        for role in roles.roles:
            varying, course = known.varying_tiles[id(role.body[0])], known.course(role.body[0])
            new = len(varying.part(0))
            assert course.period == period and varying.iterations(0) == 90
            assert list(known.iterations(role.body[0], {}, {subject.SEQUENCE_PART: 0})) == cut(90, range(1, new + 1), course)


@pytest.mark.parametrize("beyond", [-1, 0, 1, 2, 3])
def test_iterations_after_the_sequence(beyond):
    """Up to the deciding number all are followed; of more, the equal ones are omitted."""
    known, by_name = analyze(tiles(90, 1))
    varying, course = known.varying_tiles[id(by_name["turn"])], known.course(by_name["turn"])
    count = len(varying.part(0)) + course.kept + beyond
    known, by_name = analyze(tiles(count, 1))
    got = list(known.iterations(by_name["turn"], {}, {subject.SEQUENCE_PART: 0}))
    assert got == ([*range(count)] if beyond <= 0 else [*range(count - beyond)] if course.period == 1 else got)


def test_lengths_of_loops_over_tiles():
    """An assignment per part of the sequence; a trip count that depends on the tile is not a separate length."""
    program = tiles(40, 2, loop(N, writes(T), BLOCK_BARRIER, var=B))
    known, by_name = analyze(program)
    varying = known.varying_tiles[id(by_name["turn"])]
    assignments = known.lengths()
    assert [assignment[subject.SEQUENCE_PART] for assignment in assignments if assignment[N] == 0] == list(range(varying.part_count))
    assert {assignment[N] for assignment in assignments} == {0, 4} and all(
        set(assignment) == {subject.SEQUENCE_PART, N} for assignment in assignments
    )
    assert known.tiles == {"tile"} and known.opened(Var("tile", 0, 999) + 1) == Var("tile", 0, 999) + 1
    program = tiles(40, 2, loop(Var("tile", 0, 999) // 2, writes(T), BLOCK_BARRIER, var=B))
    known, by_name = analyze(program)
    assert known.varying_tiles == {} and known.opened(Var("tile", 0, 999)) == Var("turn", 0, 999) * 2 + Var("block", 0, 63)


# ---------------------------------------------------------------------------------------------- conditions


@pytest.mark.parametrize(
    ("extent", "condition", "expected"),
    [
        (N, less(i, 5), True),
        (N, less(5, i), False),
        (N, less(T, 5), True),
        (N, less(i * 2, T), True),
        (N, less(T, i * 2), False),
        (N, less(i % 2, 1), False),
        (N, equal(i, 3), False),
        (9, less(5, i), True),
        (9, equal(i, 3), True),
        (Var("block", 0, 7), less(5, i), False),
        (Var("block", 0, 7), less(i, 5), True),
        (N, less(i, N), True),
        (N, less(i, i + 1 + T), True),
    ],
)
def test_conditions_that_may_become_true_later(extent, condition, expected):
    """In a loop whose length is known only at run time."""
    known, by_name = loops_of(loop(extent, writes(T), BLOCK_BARRIER), grid=8)
    assert known.is_trusted(condition, [by_name["i"]]) == expected
    assert known.is_trusted(condition, []) is True
    other = loop(5, writes(T), var=B)
    assert known.is_trusted(condition, [other, by_name["i"]]) == expected == known.is_trusted(condition, [by_name["i"], other])


def test_conditions_decided_by_loops_and_lengths():
    access_trace = AccessTrace(kernel(making.let(C, A + 1), writes(T), symbols=SIZES))
    assert decided(less(A, 3), access_trace, {"a": 2}, {}) is True and decided(less(A, 3), access_trace, {"a": 3}, {}) is False
    assert decided(less(A, 3), access_trace, {"b": 2}, {}) is None
    assert decided(less(A, N), access_trace, {"a": 2}, {N: 3}) is True and decided(less(A, N), access_trace, {"a": 3}, {N: 3}) is False
    assert decided(less(A, N), access_trace, {"a": 2}, {M: 3}) is None and decided(less(N, A), access_trace, {"a": 2}, {N: 3}) is None
    assert decided(less(T, N), access_trace, {"a": 2}, {N: 3}) is None and decided(equal(A, N), access_trace, {"a": 2}, {N: 2}) is None
    assert decided(less(C, 3), access_trace, {"a": 1}, {}) is True and decided(less(C, 3), access_trace, {"a": 2}, {}) is False
    assert decided(less(C, N), access_trace, {"a": 1}, {N: 3}) is True and decided(less(C, N), access_trace, {"a": 2}, {N: 3}) is False
    assert decided(less(A, C), access_trace, {"b": 0}, {}) is None


def test_sides_of_a_minimum():
    assert set(subject._sides(minimum(N, as_expr(7)))) == {N, as_expr(7)} and subject._sides(minimum(N, M)) == ()
    assert subject._sides(N) == () and subject._sides(N + 1) == ()


def test_candidate_periods():
    for value, expected in (
        (i % 3, [3]), (i // 2 % 3, [6]), ((i + 1) % 4 + i % 6, [4, 6]), (i * 5, []), (T % 3 + i, []), ((i % 8) // 2, [8]), ((i // 2 // 3 + i) % 5, [30]),
    ):  # fmt: skip
        assert sorted(subject._periods(value, i)) == expected, value


def test_coefficient_of_a_loop_variable():
    for value, expected in (
        (i * 3 + T, 3),
        (T, 0),
        (as_expr(4), 0),
        (i, 1),
        (i * T, None),
        (i % 2, None),
        (i * i, None),
        (T - i * 2, -2),
        (i * 4 + i % 2, None),
    ):
        assert subject._coefficient(value, i) == expected, value


def test_loops_that_matter():
    body = (
        loop(4, writes(T)),
        loop(4, BLOCK_BARRIER, var=A),
        loop(4, making.comment("nothing"), var=B),
        loop(4, loop(2, making.commit(), var=C), var=ITERATION),
    )
    known, by_name = loops_of(*body)
    assert {name for name, stmt in by_name.items() if known.matters(stmt)} == {"i", "a", "c", "turn"}


def test_undecided_loops_mark_their_buffers():
    """The first reason is kept."""
    known, by_name = loops_of(loop(4, writes(T)), loop(4, writes(T, name="g"), var=A))
    known.mark_undecided(by_name["i"], "first")
    known.mark_undecided(by_name["i"], "second")
    assert known.undecided == {"s": "first"}
    known.mark_all_undecided("all")
    assert known.undecided == {"s": "first", "g": "all"}


# ---------------------------------------------------------------------------------------------- random loops


def random_kernel(chance, extents):
    """A random loop of accesses that move, repeat or become active late, with some barriers."""
    thread = Var("thread", 0, 31)

    def statement(var):
        kind = chance.random()
        if kind < 0.3:
            return (BLOCK_BARRIER,)
        if kind < 0.4:
            return (making.commit(), making.wait(chance.choice((0, 1, 2))))
        first = chance.choice((thread, thread, 31 - thread, thread // 2 * 2))
        moved = chance.choice((var % 2 * 32, (var + 1) % 3 * 32, var // 2 % 2 * 32, var * 0))
        limit = chance.choice((2, 5, 11, 17))
        condition = chance.choice((None, None, less(var, limit), less(limit, var), equal(var, limit), less(thread, var * 2)))
        make = chance.choice((writes, reads, reads, copies))
        return (make(first + moved, **({} if condition is None else {"active": condition})),)

    body = [stmt for _ in range(chance.choice((2, 3, 4))) for stmt in statement(i)]
    whole = loop(chance.choice(extents), *body)
    return kernel(whole, *(statement(ZERO + 3) if chance.random() < 0.5 else ()), threads=32, symbols=SIZES)


@pytest.mark.parametrize("chunk", range(3))
def test_random_loops_compared_with_complete_execution(chunk):
    verdicts = [0, 0]
    for seed in range(chunk * 40, chunk * 40 + 40):
        program = random_kernel(random.Random(f"loops {seed}"), (1, 2, 9, 18, 19, 30, 31))
        expected, findings = racy_by_hand(program), check_races(AccessTrace(program))
        assert bool(findings) == expected, (seed, program.body, list(map(str, findings)))
        verdicts[expected] += 1
    assert min(verdicts) >= 5, verdicts


# ---------------------------------------------------------------------------------------------- conditions and lengths of several kinds


def test_undecidable_conditions_do_not_affect_others():
    """A condition on the block, one that may change in each iteration, and affine ones: each is handled separately, in any order."""
    block, silent, open_ = less(Var("block", 0, 9), i), less(i, N), less(i % 7, 3)
    for conditions in itertools.permutations((block, silent, open_, less(i, 40), less(70, i))):
        known, by_name = loops_of(loop(100, *(writes(T, active=number) for number in conditions), BLOCK_BARRIER))
        assert known._changes_of_steps(by_name["i"], {}, 100).tolist() == [40, 71]
        assert "may change in each of the" in known.undecided["s"]
        sevens = {number for number in range(1, 100) if number % 7 in (0, 3)}
        assert set(known._changes(by_name["i"], {}, 100).tolist()) == {40, 71} | sevens


@pytest.mark.parametrize("low", [0, 1, 2])
@pytest.mark.parametrize("which", ["outer", "inner"])
def test_omitted_combinations_with_minimum_lengths(low, which):
    """If all short lengths except zero are followed."""
    n, m = Var("N", low if which == "outer" else 0, 1 << 20), Var("M", low if which == "inner" else 0, 1 << 20)
    inner = loop(m, writes(T + A % 2 * 128), BLOCK_BARRIER, var=A)
    assignments, _ = lengths(loop(n, inner, making.wait(0)), symbols=(n, m))
    pairs = {(item[n], item[m]) for item in assignments}
    all_pairs = set(itertools.product({item for item, _ in pairs}, {item for _, item in pairs}))
    assert min(item for item, _ in pairs) == n.low and min(item for _, item in pairs) == m.low
    is_new = lambda n, m: n <= 1 or m <= 4 or (m <= 6 and n <= 2)
    assert pairs == ({pair for pair in all_pairs if is_new(*pair)} if low < 2 else all_pairs)
    assert low == 2 or len(pairs) < len(all_pairs)
