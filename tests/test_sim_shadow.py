"""Shadow memory alone, compared with brute force: reads through the async proxy, copies in flight, fences, atomic adds (`fireiron.sim.shadow`)."""

import functools
import random

import numpy as np
import pytest

from fireiron.sim.shadow import Clock, History, Shadow

PITCH = 64


def passed(*barriers):
    """The clock after barriers of these numbers of threads."""
    return functools.reduce(Clock.after, barriers, Clock())


def at(*numbers):
    return np.array(numbers, np.int64)


def test_clocks_have_the_last_barrier_of_each_width():
    clock = passed(32, 64, 32)
    assert clock.count == 3 and dict(clock.last) == {32: 3, 64: 2}


def test_conflicting_kinds_of_accesses():
    shadow = Shadow(1, PITCH)
    assert [shadow.conflicting_kinds(kind) for kind in ("read", "write", "add")] == [("write",), ("write", "read"), ("write", "read")]
    shadow.add(at(0), at(1), at(1), Clock(), 0)
    assert [shadow.conflicting_kinds(kind) for kind in ("read", "write", "add")] == [
        ("write", "add"),
        ("write", "read", "add"),
        ("write", "read"),
    ]


@pytest.mark.parametrize("kind", ["read", "write", "add"])
def test_each_kind_of_access_is_recorded_separately(kind):
    """A record of one kind has its two threads, its clock and its log number, and does not affect other kinds."""
    shadow = Shadow(3, PITCH)
    shadow.add(at(0), at(0), at(0), Clock(), 0)
    getattr(shadow, kind)(at(2), at(5), at(7), passed(32, 32), 11)
    for other in ("read", "write", "add"):
        sides, clocks, logs = shadow.last_accesses(other)
        entry = sides[0][2], sides[1][2], clocks[2], logs[0][2], logs[1][2]
        assert entry == ((5, 7, 2, 11, 11) if other == kind else (-1, -1, -1, 0, 0))


def test_first_and_last_of_several_readers():
    """The first and the last thread are kept, each with the number of its access."""
    shadow = Shadow(1, PITCH)
    for number, thread in enumerate((9, 3, 12, 5)):
        shadow.read(at(0), at(thread), at(thread), Clock(), number)
    sides, _, logs = shadow.last_accesses("read")
    assert (sides[0][0], sides[1][0], logs[0][0], logs[1][0]) == (3, 12, 1, 2)
    shadow.read(at(0), at(6), at(6), passed(PITCH), 9)
    assert (sides[0][0], sides[1][0], logs[0][0]) == (6, 6, 9), "a barrier of all threads follows those"


def test_distinct_addresses():
    shadow = Shadow(10, PITCH)
    keys, low, high = shadow.merged(at(4, 2, 9), at(1, 2, 3), at(1, 2, 3))
    assert [*keys] == [4, 2, 9] and [*low] == [*high] == [1, 2, 3]
    keys, low, high = shadow.merged(at(4, 2, 4, 2, 7), at(8, 2, 3, 6, 1), at(8, 2, 5, 6, 1))
    assert ([*keys], [*low], [*high]) == ([2, 4, 7], [2, 3, 1], [6, 8, 1])


def test_pending_reads_of_the_async_proxy():
    shadow = Shadow(4, PITCH)
    assert len(shadow.in_read(at(0, 1, 2))) == 0
    shadow.start_read(at(1, 2), 5)
    shadow.start_read(at(2), 6)
    assert [*shadow.in_read(at(0, 1, 2))] == [1, 2] and [*shadow.reader_in_flight] == [0, 5, 6, 0]
    shadow.end_read(at(1, 2))
    assert [*shadow.in_read(at(0, 1, 2))] == [2]
    shadow.end_read(at(2))
    assert len(shadow.in_read(at(0, 1, 2))) == 0


def test_pending_copies():
    shadow = Shadow(4, PITCH)
    assert len(shadow.in_copy(at(1))) == 0
    shadow.start_copy(at(1, 3), 0)
    assert [*shadow.in_copy(at(0, 1, 2, 3))] == [1, 3]
    shadow.end_copy(at(3))
    assert [*shadow.in_copy(at(3, 1))] == [1]


@pytest.mark.parametrize("seed", range(60))
def test_visibility_to_the_async_proxy_compared_with_brute_force(seed):
    """A write is visible after a fence of the writing thread and, for another thread, a following barrier of both."""
    draw = random.Random(seed)
    shadow, barriers, written, fenced = Shadow(1, PITCH), [], None, None
    for _ in range(30):
        action, thread = draw.choice(["write", "fence", "barrier", "read", "read"]), draw.randrange(4) + draw.choice([0, 8, 32, 64])
        clock = passed(*barriers)
        if action == "write":
            shadow.write(at(0), at(thread), at(thread), clock, 0)
            shadow.mark_unfenced(at(0))
            written, fenced = thread, None
        elif action == "fence" and written is not None:
            shadow.fence(at(0), clock)
            fenced = len(barriers)
        elif action == "barrier":
            barriers.append(draw.choice([8, 32, 64]))
        elif action == "read":
            visible = written is None or (
                fenced is not None and (written == thread or any(written // size == thread // size for size in barriers[fenced:]))
            )
            assert (len(shadow.unfenced(at(0), at(thread), at(thread), clock)) == 0) == visible


def test_history_numbers_its_notes():
    class Statement:
        def __init__(self, name):
            self.name = name

        def loop_values(self, env):
            return {self.name: env[self.name]}

    history = History({})
    assert [history.note(Statement("k"), "operand", {"k": value, "other": 1}) for value in (4, 5)] == [0, 1]
    assert [env for _, _, env in history.log] == [{"k": 4}, {"k": 5}]


def test_a_barrier_drops_readers_only_if_it_includes_first_and_last():
    """Threads 3 and 12 read; a barrier of eight threads includes 12 but not 3, so both are kept."""
    shadow = Shadow(1, PITCH)
    shadow.read(at(0), at(3), at(3), Clock(), 1)
    shadow.read(at(0), at(12), at(12), Clock(), 2)
    shadow.read(at(0), at(13), at(13), passed(8), 3)
    sides, clocks, logs = shadow.last_accesses("read")
    assert (sides[0][0], sides[1][0], logs[0][0], logs[1][0]) == (3, 13, 1, 3)
    assert len(shadow.conflicts(sides, clocks, at(0), at(14), at(14), passed(8, 8))) == 1


def test_all_atomic_adds_are_recorded():
    shadow = Shadow(2, PITCH)
    for number, (key, thread) in enumerate(((0, 5), (1, 9), (0, 2))):
        shadow.add(at(key), at(thread), at(thread), Clock(), number)
    sides, _, logs = shadow.last_accesses("add")
    assert [*zip(*(side.tolist() for side in sides), strict=True)] == [(2, 5), (9, 9)] and [*logs[0]] == [2, 1]
