"""What is outstanding: each answer of the lattice by all ways through a small program, followed one by one."""

import itertools
import random

import pytest

from fireiron.ir.mechanisms.cp_async import CP_ASYNC_GROUPS
from fireiron.ir.mechanisms.wgmma import WGMMA_GROUPS
from fireiron.lower.outstanding import OLDEST, Age, Outstanding

KINDS = (CP_ASYNC_GROUPS, WGMMA_GROUPS)


class Concrete:
    """One way: the executions that are open, and the groups of each mechanism, in order."""

    def __init__(self):
        self.open = {kind: [] for kind in KINDS}
        self.groups = {kind: [] for kind in KINDS}

    def issue(self, kind, item):
        self.open[kind].append(item)

    def commit(self, kind):
        self.groups[kind].append(self.open[kind])
        self.open[kind] = []

    def wait(self, kind, left):
        """What the wait finds or makes done, of what was not waited for before."""
        groups = self.groups[kind]
        done = {item for group in groups[: max(len(groups) - left, 0)] for item in group}
        self.groups[kind] = groups[max(len(groups) - left, 0) :]
        return done

    def outstanding(self, kind):
        return {item for group in self.groups[kind] for item in group}


def drawn(seed, depth=0):
    """A program: statements, and loops that run some number of times."""
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
    return "loop", kind, drawn(choose.random(), depth + 1)


def runs(body, most=4):
    """All ways through a program whose loops run up to so many times, as far as there are few; by chance otherwise."""
    loops = sum(1 for _ in _loops(body))
    ways = itertools.product(range(most + 1), repeat=loops) if loops < 4 else []
    yield from ways
    choose = random.Random(loops)
    yield from (tuple(choose.randint(0, most + 2) for _ in range(loops)) for _ in range(60 if loops else 0))


def _loops(body):
    for kind, _, what in body:
        if kind == "loop":
            yield what
            yield from _loops(what)


def follow(body, state, seen, place=()):
    """The lattice behind a list; `seen` has what each wait may find done, by its place."""
    for number, (what, kind, value) in enumerate(body):
        here = (*place, number)
        match what:
            case "issue":
                state = state.issue(kind, (value,))
            case "commit":
                state = state.commit(kind)
            case "wait":
                seen[here] = seen.get(here, frozenset()) | state.done_by(kind, value)
                state = state.wait(kind, value)
            case "loop":
                head = state
                for _ in range(8):  # widened, it ends soon
                    behind = follow(value, head, seen, here)
                    grown = head.joined(behind, widened=True)
                    if grown == head:
                        break
                    head = grown
                else:
                    raise AssertionError("no end")
                state = head
    return state


def execute(body, state, found, counts, place=()):
    for number, (what, kind, value) in enumerate(body):
        here = (*place, number)
        match what:
            case "issue":
                state.issue(kind, value)
            case "commit":
                state.commit(kind)
            case "wait":
                found.setdefault(here, set()).update(state.wait(kind, value))
            case "loop":
                for _ in range(counts[id(value)]):
                    execute(value, state, found, counts, here)


@pytest.mark.parametrize("seed", range(120))
def test_whatever_way_a_program_takes_the_lattice_knew_of_it(seed):
    body = drawn(seed)
    seen = {}
    behind = follow(body, Outstanding(), seen)
    bodies = list(_loops(body))
    for way in runs(body):
        state, found = Concrete(), {}
        execute(body, state, found, dict(zip(map(id, bodies), way, strict=True)))
        for place, done in found.items():
            assert done <= seen.get(place, frozenset()), (body, way, place)
        for kind in KINDS:
            assert set(state.open[kind]) <= behind.open.get(kind, frozenset())
            for position, group in enumerate(state.groups[kind]):
                for item in group:
                    age = behind.groups[kind][item]
                    assert age.least <= min(len(state.groups[kind]) - 1 - position, OLDEST) <= age.most


def test_without_loops_it_is_exact():
    state = Outstanding().issue(CP_ASYNC_GROUPS, "a").commit(CP_ASYNC_GROUPS).issue(CP_ASYNC_GROUPS, "b")
    assert state.open[CP_ASYNC_GROUPS] == {"b"} and state.age(CP_ASYNC_GROUPS, "a") == 0 and state.age(CP_ASYNC_GROUPS, "b") is None
    state = state.commit(CP_ASYNC_GROUPS)
    assert (state.done_by(CP_ASYNC_GROUPS, 1), state.done_by(CP_ASYNC_GROUPS, 0)) == ({"a"}, {"a", "b"})
    assert (
        state.wait(CP_ASYNC_GROUPS, 1).groups[CP_ASYNC_GROUPS] == {"b": Age(0, 0)}
        and not state.wait(CP_ASYNC_GROUPS, 0).groups[CP_ASYNC_GROUPS]
    )
    assert state.wait(WGMMA_GROUPS, 0).groups[CP_ASYNC_GROUPS] == state.groups[CP_ASYNC_GROUPS], "another mechanism's groups stay"


def test_a_statement_that_is_executed_again_may_be_done_as_soon_as_its_oldest_is():
    """The youngest execution says whether it may be outstanding, the oldest whether it may be done."""
    state = Outstanding()
    for _ in range(3):
        state = state.issue(WGMMA_GROUPS, "a").commit(WGMMA_GROUPS)
    assert state.groups[WGMMA_GROUPS]["a"] == Age(0, 2) and state.done_by(WGMMA_GROUPS, 2) == {"a"} == set(
        state.wait(WGMMA_GROUPS, 2).groups[WGMMA_GROUPS]
    )
    assert state.wait(WGMMA_GROUPS, 2).groups[WGMMA_GROUPS]["a"] == Age(0, 1), "what is older was waited for"


def test_items_are_renamed_and_given_up():
    state = Outstanding().issue(WGMMA_GROUPS, "ab").commit(WGMMA_GROUPS).issue(WGMMA_GROUPS, "c")
    assert state.renamed(str.upper).groups[WGMMA_GROUPS] == {"A": Age(), "B": Age()} and state.renamed(str.upper).open[WGMMA_GROUPS] == {
        "C"
    }
    assert state.without("ac").groups[WGMMA_GROUPS] == {"b": Age()} and not state.without("ac").open[WGMMA_GROUPS]
