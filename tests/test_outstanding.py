"""The lattice of outstanding operations, compared with all executions of small programs."""

import itertools
import random

import pytest

from fireiron.ir.mechanisms.cp_async import CP_ASYNC_GROUPS
from fireiron.ir.mechanisms.wgmma import WGMMA_GROUPS
from fireiron.lower.outstanding import OLDEST, Age, Outstanding

KINDS = (CP_ASYNC_GROUPS, WGMMA_GROUPS)


class Concrete:
    """One execution: the uncommitted operations, and the groups of each mechanism in order."""

    def __init__(self):
        self.open = {kind: [] for kind in KINDS}
        self.groups = {kind: [] for kind in KINDS}

    def issue(self, kind, item):
        self.open[kind].append(item)

    def commit(self, kind):
        self.groups[kind].append(self.open[kind])
        self.open[kind] = []

    def wait(self, kind, left):
        """The operations that the wait completes."""
        groups = self.groups[kind]
        done = {item for group in groups[: max(len(groups) - left, 0)] for item in group}
        self.groups[kind] = groups[max(len(groups) - left, 0) :]
        return done

    def outstanding(self, kind):
        return {item for group in self.groups[kind] for item in group}


def random_program(seed, depth=0):
    """A random program: statements, and loops with unknown trip counts."""
    choose = random.Random(seed)
    return tuple(_statement(choose, depth) for _ in range(choose.randint(2, 5)))


def _statement(choose, depth):
    kind = choose.choice(KINDS)
    match choose.randrange(5 if depth < 2 else 4):
        case 0 | 1:
            return "issue", kind, choose.randrange(4)
        case 2:
            return "commit", kind, None
        case 3:
            return "wait", kind, choose.randrange(3)
    return "loop", kind, random_program(choose.random(), depth + 1)


def runs(body, most=4):
    """Trip counts of all loops: all combinations up to `most` if there are few loops, and random ones."""
    loops = sum(1 for _ in _loops(body))
    choices = itertools.product(range(most + 1), repeat=loops) if loops < 4 else []
    yield from choices
    choose = random.Random(loops)
    yield from (tuple(choose.randint(0, most + 2) for _ in range(loops)) for _ in range(60 if loops else 0))


def _loops(body):
    for kind, _, what in body:
        if kind == "loop":
            yield what
            yield from _loops(what)


def follow(body, state, seen, place=()):
    """The lattice after the statements; `seen` has the operations that each wait may complete, by position."""
    for number, (what, kind, value) in enumerate(body):
        position = (*place, number)
        match what:
            case "issue":
                state = state.issue(kind, (value,))
            case "commit":
                state = state.commit(kind)
            case "wait":
                seen[position] = seen.get(position, frozenset()) | state.done_by(kind, value)
                state = state.wait(kind, value)
            case "loop":
                head = state
                for _ in range(8):  # converges quickly through widening
                    after_body = follow(value, head, seen, position)
                    widened = head.joined(after_body, widened=True)
                    if widened == head:
                        break
                    head = widened
                else:
                    raise AssertionError("no end")
                state = head
    return state


def execute(body, state, done_by_wait, counts, place=()):
    for number, (what, kind, value) in enumerate(body):
        position = (*place, number)
        match what:
            case "issue":
                state.issue(kind, value)
            case "commit":
                state.commit(kind)
            case "wait":
                done_by_wait.setdefault(position, set()).update(state.wait(kind, value))
            case "loop":
                for _ in range(counts[id(value)]):
                    execute(value, state, done_by_wait, counts, position)


@pytest.mark.parametrize("seed", range(120))
def test_lattice_covers_all_executions(seed):
    body = random_program(seed)
    seen = {}
    final = follow(body, Outstanding(), seen)
    bodies = list(_loops(body))
    for trip_counts in runs(body):
        state, done_by_wait = Concrete(), {}
        execute(body, state, done_by_wait, dict(zip(map(id, bodies), trip_counts, strict=True)))
        for place, done in done_by_wait.items():
            assert done <= seen.get(place, frozenset()), (body, trip_counts, place)
        for kind in KINDS:
            assert set(state.open[kind]) <= final.open.get(kind, frozenset())
            for position, group in enumerate(state.groups[kind]):
                for item in group:
                    age = final.groups[kind][item]
                    assert age.least <= min(len(state.groups[kind]) - 1 - position, OLDEST) <= age.most


def test_lattice_is_exact_without_loops():
    state = Outstanding().issue(CP_ASYNC_GROUPS, "a").commit(CP_ASYNC_GROUPS).issue(CP_ASYNC_GROUPS, "b")
    assert state.open[CP_ASYNC_GROUPS] == {"b"} and state.age(CP_ASYNC_GROUPS, "a") == 0 and state.age(CP_ASYNC_GROUPS, "b") is None
    state = state.commit(CP_ASYNC_GROUPS)
    assert (state.done_by(CP_ASYNC_GROUPS, 1), state.done_by(CP_ASYNC_GROUPS, 0)) == ({"a"}, {"a", "b"})
    assert (
        state.wait(CP_ASYNC_GROUPS, 1).groups[CP_ASYNC_GROUPS] == {"b": Age(0, 0)}
        and not state.wait(CP_ASYNC_GROUPS, 0).groups[CP_ASYNC_GROUPS]
    )
    assert state.wait(WGMMA_GROUPS, 0).groups[CP_ASYNC_GROUPS] == state.groups[CP_ASYNC_GROUPS], (
        "groups of another mechanism are unaffected"
    )


def test_repeated_statements_have_an_age_range():
    """The youngest execution determines whether it may be outstanding, the oldest whether it may be complete."""
    state = Outstanding()
    for _ in range(3):
        state = state.issue(WGMMA_GROUPS, "a").commit(WGMMA_GROUPS)
    assert state.groups[WGMMA_GROUPS]["a"] == Age(0, 2) and state.done_by(WGMMA_GROUPS, 2) == {"a"} == set(
        state.wait(WGMMA_GROUPS, 2).groups[WGMMA_GROUPS]
    )
    assert state.wait(WGMMA_GROUPS, 2).groups[WGMMA_GROUPS]["a"] == Age(0, 1), "older executions are complete"


def test_items_are_renamed_and_removed():
    state = Outstanding().issue(WGMMA_GROUPS, "ab").commit(WGMMA_GROUPS).issue(WGMMA_GROUPS, "c")
    assert state.renamed(str.upper).groups[WGMMA_GROUPS] == {"A": Age(), "B": Age()} and state.renamed(str.upper).open[WGMMA_GROUPS] == {
        "C"
    }
    assert state.without("ac").groups[WGMMA_GROUPS] == {"b": Age()} and not state.without("ac").open[WGMMA_GROUPS]
