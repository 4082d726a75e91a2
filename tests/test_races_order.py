"""Happens-before by hand: agents that run traces of touches and of all that orders them, held against lanes one by one."""

import itertools
import random
from types import SimpleNamespace

import attrs
import pytest
from handrings import ring
from touching import Engine, T, kernel, reads, writes

from fireiron import *
from fireiron import ir
from fireiron.check import Scene, check_races
from fireiron.check.races.order import Agent, Order, Phases, Race, Rounds, mark
from fireiron.check.races.places import Footprint
from fireiron.check.races.traces import Kind, Touch, Turn
from fireiron.check.scene import Use
from fireiron.errors import VerificationError
from fireiron.ir import (
    BLOCK_SCOPE,
    WARP_SCOPE,
    WARPGROUP_SCOPE,
    Barrier,
    ClusterBarrier,
    Commit,
    Completion,
    Fence,
    Reach,
    Ring,
    Scope,
    Side,
    Wait,
)

pytestmark = pytest.mark.sampled(1)

BLOCK, WARP, GROUP = Barrier(BLOCK_SCOPE), Barrier(WARP_SCOPE), Barrier(WARPGROUP_SCOPE)
PROXY, REGISTERS = Fence(Reach.PROXY), Fence(Reach.REGISTERS)
NUMBERS = itertools.count(1000)


def touch(atoms, kind=Kind.WRITE, step=None, completion=Completion.NONE, engine=False, turn=None, use=None, warps=8, elements=32):
    """A touch of atoms, which each warp touches, or of those said by warp; a statement of its own."""
    if use is None:
        statement = (reads if kind is Kind.READ else writes)(T, width=elements, completion=completion)
        statement = attrs.evolve(statement, instruction=Engine() if engine else statement.instruction)
        use = Use(statement, (), statement.accesses[0])
    by_warp = [atoms.get(warp, []) for warp in range(warps)] if isinstance(atoms, dict) else [list(atoms)] * warps
    footprint = Footprint(None, SimpleNamespace(use=use, width=4), 0, by_warp)
    under_way = completion is not Completion.NONE
    return Touch(next(NUMBERS) if step is None else step, footprint, {}, kind, under_way, turn)


def run(*traces, blocks=1, same_thread=False, atoms=8):
    """What agents find, by the two touches, and what is wrong with the barriers of rings."""
    found, broken = {}, {}
    Order(traces, blocks, atoms, lambda before, behind, warp: same_thread, found, broken).run()
    return list(found.values()), list(broken)


def racy(*traces, **options):
    found, broken = run(*traces, **options)
    assert not broken
    return bool(found)


# ---------------------------------------------------------------------------------------------- which race is shown


def test_a_race_names_its_touches_and_warps():
    first, second = touch([0], step=1), touch([0], Kind.READ, step=2)
    (race,), _ = run([first], [second])
    assert (race.before, race.behind, race.warps, race.under_way, race.hidden) == (first, second, (0, 1), False, False)
    turned = race.reversed
    assert (turned.before, turned.behind, turned.warps, turned.under_way) == (second, first, (1, 0), False)


def test_what_comes_first_in_the_program_is_shown_first():
    """Though another agent came to it later; of one step the order in which they came."""
    early, late = touch([0], step=1), touch([0], step=7)
    (race,), _ = run([late], [early])
    assert (race.before, race.behind, race.warps) == (early, late, (1, 0))
    (race,), _ = run([early], [late])
    assert (race.before, race.behind, race.warps) == (early, late, (0, 1))
    same, other = touch([0], step=3), touch([0], Kind.READ, step=4)
    (race,), _ = run([touch([1], step=0), same], [other])
    assert (race.before, race.behind) == (same, other)


def test_a_copy_under_way_is_shown_first():
    """Until its own thread has waited for it."""
    copy, use = touch([0], step=9, completion=Completion.GROUP), touch([0], Kind.READ, step=2)
    (race,), _ = run([copy], [use])
    assert race.under_way and race.before is copy and race.warps == (0, 1)
    (race,), _ = run([copy, Commit(), Wait(0)], [use])
    assert not race.under_way and race.before is use and race.warps == (1, 0)
    (race,), _ = run([copy, use], same_thread=True)
    assert race.under_way and race.before is copy and race.warps == (0, 0)


def test_each_pair_of_statements_is_shown_once():
    """By the first two touches of it that meet; another pair is another race."""
    pair = [touch([0, 1]), touch([0, 1], Kind.READ)]
    (race,), _ = run([pair[0], pair[0]], [pair[1], pair[1]])
    assert {race.before, race.behind} == set(pair)
    use, other = pair[0].use, pair[1].use
    assert mark(pair[0], pair[1]) == mark(pair[1], pair[0]) == mark(touch([3], use=use), touch([4], use=other))
    assert mark(pair[0], pair[0]) != mark(pair[0], pair[1])
    found, _ = run([pair[0]], [pair[1], touch([0], Kind.READ)])
    assert len(found) == 2
    first = touch([0], step=1, use=use)
    (race,), _ = run([first, touch([1], step=2, use=use)], [touch([0, 1], Kind.READ, step=3)])
    assert race.before is first


def test_what_was_found_already_stays():
    first, second = touch([0]), touch([0], Kind.READ)
    found = {mark(first, second): "known"}
    Order([[first], [second]], 1, 1, lambda *_: False, found, {}).run()
    assert list(found.values()) == ["known"]


# ---------------------------------------------------------------------------------------------- kinds, and threads of a warp


def test_kinds_of_touches_that_need_order():
    for one, other in itertools.product(Kind, repeat=2):
        needs = Kind.WRITE in (one, other) or {one, other} == {Kind.READ, Kind.ADD}
        assert racy([touch([0], one)], [touch([0], other)]) == needs
        assert not racy([touch([0], one)], [touch([1], other)])
        assert not racy([touch([0], one), BLOCK], [BLOCK, touch([0], other)])


def test_one_warp_is_in_order_where_the_same_thread_touches():
    first, second = touch([0]), touch([0], Kind.READ)
    assert racy([first, second]) and not racy([first, second], same_thread=True)
    assert not racy([first, WARP, second])
    asked = []

    def same_thread(before, behind, warp):
        asked.append((before, behind, warp))
        return True

    Order([[BLOCK], [BLOCK, first, second, touch([0])]], 1, 1, same_thread, {}, {}).run()
    assert asked[0] == (first, second, 1)
    assert all(warp == 1 for *_, warp in asked)


def test_pairs_that_one_thread_orders_are_asked_about_once():
    first, second, asked = touch([0]), touch([0], Kind.READ), []
    trace = [first, second, first, second, first, second]
    Order([trace], 1, 1, lambda *given: asked.append(given) or True, {}, {}).run()
    assert len(asked) == 2, "the read behind the write, and the write behind the read"
    copy = touch([0], completion=Completion.GROUP)
    (race,), _ = run([copy, Commit(), Wait(0), second, copy, second], same_thread=True)
    assert race.under_way, "a pair that was in order is not where the copy is under way"


def test_touches_of_one_step_are_in_order():
    one, other = touch([0], step=5), touch([0], Kind.READ, step=5)
    assert not racy([one], [other]) and not racy([one, other])
    assert racy([one], [touch([0], Kind.READ, step=6)])
    assert racy([one], [other, touch([0], Kind.READ, step=6)]) and racy([touch([0], step=6)], [one, other])


def test_warps_touch_what_is_theirs():
    """And nothing where no other access can meet it."""
    each = touch({0: [0], 1: [1]})
    assert not racy([each], [each]) and racy([each], [touch({1: [0]})]) and not racy([each], [touch({1: [1]})])
    nothing = attrs.evolve(each, footprint=Footprint(None, each.footprint.pattern, 0))
    assert not racy([nothing], [each])


# ---------------------------------------------------------------------------------------------- barriers


def test_barriers_hold_the_warps_of_their_scope():
    def ordered(barrier, warps, one, other):
        traces = [[barrier] for _ in range(warps)]
        traces[one], traces[other] = [touch([0]), barrier], [barrier, touch([0])]
        return not racy(*traces)

    for one, other in itertools.permutations(range(8), 2):
        assert ordered(BLOCK, 8, one, other)
        assert ordered(GROUP, 8, one, other) == (one // 4 == other // 4)
        assert ordered(Barrier(Scope("pair", 64)), 8, one, other) == (one // 2 == other // 2)
        assert not ordered(WARP, 8, one, other)
    for one, other in itertools.permutations(range(6), 2):
        assert ordered(GROUP, 6, one, other) == (one // 4 == other // 4), "the last group has two warps alone"
    for one, other in itertools.permutations(range(6), 2):
        traces = [[BLOCK] for _ in range(6)]
        traces[one], traces[other] = [touch([0]), BLOCK], [BLOCK, touch([0])]
        assert racy(*traces, blocks=2) == (one // 3 != other // 3), "each block has a barrier of its own"
        traces = [[GROUP] if number not in (one, other) else traces[number] for number in range(6)]
        traces[one], traces[other] = [touch([0]), GROUP], [GROUP, touch([0])]
        assert racy(*traces, blocks=2) == (one // 3 != other // 3)


def test_a_barrier_of_a_part_of_a_warp():
    with pytest.raises(VerificationError, match="no rule for a barrier of 16 threads, a part of a warp"):
        run([Barrier(Scope("half", 16))])
    with pytest.raises(VerificationError, match="no rule for a barrier of 48 threads"):
        run([Barrier(Scope("more", 48))])


def test_barriers_wait_for_all():
    with pytest.raises(VerificationError, match="warp 0 waits for ever at"):
        run([BLOCK], [])
    with pytest.raises(VerificationError, match="warp 1 waits for ever at"):
        run([], [WARP, BLOCK])
    assert run([BLOCK, BLOCK], [BLOCK, BLOCK]) == ([], [])
    with pytest.raises(VerificationError, match="warp 1 waits for ever at"):
        run([BLOCK], [BLOCK, BLOCK])
    with pytest.raises(VerificationError, match="waits for ever"):
        run([BLOCK], [GROUP])


def test_knowledge_goes_on_from_barrier_to_barrier():
    pair = Barrier(Scope("pair", 64))
    assert not racy([touch([0]), pair, GROUP], [pair, GROUP], [GROUP, touch([0])], [GROUP])
    assert racy([touch([0]), GROUP, pair], [GROUP, touch([1]), pair], [GROUP, touch([1])], [GROUP])
    assert racy([pair, touch([0]), GROUP, pair], [pair, GROUP, pair], [GROUP], [GROUP, touch([0])]) is False
    assert racy([GROUP, touch([0]), pair], [GROUP, pair, touch([0])], [GROUP, touch([0])], [GROUP])


def test_clusters_meet_at_their_barriers():
    meet = ClusterBarrier()
    assert not racy([touch([0]), meet], [meet, touch([0])], blocks=2)
    assert racy([touch([0])], [touch([0])], blocks=2)
    assert racy([touch([0]), meet, meet], [meet, touch([0]), meet], blocks=2) is False
    with pytest.raises(VerificationError, match="waits for ever"):
        run([meet], [], blocks=2)


# ---------------------------------------------------------------------------------------------- groups


@pytest.mark.parametrize("completion", [Completion.GROUP, Completion.PRODUCT, Completion.BULK])
def test_groups_complete_the_oldest_first(completion):
    """Those of each kind apart."""
    kind = Kind.WRITE if completion is Completion.GROUP else Kind.READ
    copies = [touch([number], kind, completion=completion) for number in range(3)]
    commit, users = Commit(completion), [touch([number]) for number in range(3)]
    issued = [copies[0], commit, copies[1], commit, copies[2], commit]
    for groups in range(5):
        for number, use in enumerate(users):
            waited = number < 3 - groups
            assert racy([*issued, Wait(groups, completion=completion), use], same_thread=True) != waited
            others = next(one for one in (Completion.GROUP, Completion.PRODUCT) if one is not completion)
            assert racy([*issued, Wait(0, completion=others), use], same_thread=True)
    both = [*issued, Wait(2, completion=completion)]
    assert racy([*both, Wait(1, completion=completion), users[2]], same_thread=True)
    assert not racy([*both, Wait(1, completion=completion), users[1]], same_thread=True)
    assert not racy([copies[0], copies[1], commit, Wait(0, completion=completion), users[1]], same_thread=True)
    assert racy([copies[0], Wait(0, completion=completion), commit, users[0]], same_thread=True)
    assert racy([copies[0], commit, copies[1], Wait(0, completion=completion), users[1]], same_thread=True), "in no group yet"


def test_whose_copies_and_products_a_wait_is_for():
    """A thread waits for its own copies; a warp for its products, all lanes together."""
    for completion, alone in ((Completion.GROUP, True), (Completion.PRODUCT, False), (Completion.BULK, False)):
        trace = [touch([0], completion=completion), Commit(completion), Wait(0, completion=completion)]
        assert racy([*trace, touch([0])]) == alone
        assert not racy([*trace, WARP, touch([0])])
        assert racy([*trace], [touch([0])]) and not racy([*trace, BLOCK], [BLOCK, touch([0])])


# ---------------------------------------------------------------------------------------------- engines


def test_engines_read_what_a_fence_has_brought_them():
    write, engine = touch([0]), touch([0], Kind.READ, engine=True)
    for trace, hidden in (
        ([write, WARP, engine], True),
        ([write, PROXY, WARP, engine], False),
        ([write, WARP, PROXY, engine], False),
        ([PROXY, write, WARP, engine], True),
        ([write, REGISTERS, WARP, engine], True),
        ([write, WARP, engine, PROXY], True),
    ):
        found, _ = run(trace)
        assert [one.hidden for one in found] == [True] * hidden, trace
    (race,), _ = run([write, WARP, engine])
    assert race.before is write and race.behind is engine and race.warps == (0, 0) and not race.under_way
    assert not racy([touch([0], engine=True), WARP, engine]), "what engines wrote"
    assert not racy([touch([0], Kind.READ), WARP, touch([0], engine=True)]), "what was read alone"
    assert racy([touch([0], Kind.ADD), WARP, engine]) and racy([write, WARP, touch([0], engine=True)])
    (race,), _ = run([write, engine])
    assert not race.hidden, "which nothing orders"


def test_an_engine_that_a_thread_sets_to_work_needs_a_fence_of_the_same_thread():
    """Found wrong: nothing was said where the thread itself had written what its engine reads."""
    write, engine = touch([0]), touch([0], Kind.READ, engine=True)
    (race,), _ = run([write, engine], same_thread=True)
    assert race.hidden and race.before is write
    assert not racy([write, PROXY, engine], same_thread=True)
    program = lambda *between: kernel(writes(T), *between, reads(T, instruction=Engine()), threads=32)
    (finding,) = check_races(Scene(program()))
    assert "through the asynchronous proxy, and no fence of it stands between" in finding.message
    assert not check_races(Scene(program(PROXY))) and check_races(Scene(program(WARP)))


def test_fences_are_passed_on_by_barriers():
    """Of what the agent wrote itself, in front of the barrier."""
    write, engine = touch([0]), touch([0], Kind.READ, engine=True)
    for traces, hidden in (
        (([write, PROXY, BLOCK], [BLOCK, engine]), False),
        (([write, BLOCK], [BLOCK, engine]), True),
        (([write, BLOCK, PROXY], [BLOCK, engine]), True),
        (([write, BLOCK], [BLOCK, PROXY, engine]), True),
        (([write, BLOCK, PROXY, BLOCK], [BLOCK, BLOCK, engine]), False),
        (([touch([1]), PROXY, touch([0]), BLOCK], [BLOCK, engine]), True),
        (([write, PROXY, BLOCK], [touch([1]), BLOCK, touch([0, 1], Kind.READ, engine=True)]), True),
        (([write, PROXY, BLOCK], [touch([1]), PROXY, BLOCK, touch([0, 1], Kind.READ, engine=True)]), False),
    ):
        found, _ = run(*traces)
        assert [one.hidden for one in found] == [True] * hidden, traces
    (race,), _ = run([write, BLOCK], [BLOCK, engine])
    assert race.warps == (0, 1)
    copy = touch([0], completion=Completion.GROUP)
    fenced_early = [copy, Commit(), PROXY, Wait(0), WARP, engine]
    assert [one.hidden for one in run(fenced_early)[0]] == [True], "a fence is none of what is under way"
    assert not racy([copy, Commit(), Wait(0), PROXY, WARP, engine])


def test_nothing_is_forgotten_that_an_engine_may_not_see():
    """Behind a barrier of all, whatever came before it."""
    write, engine = touch([0]), touch([0], Kind.READ, engine=True)
    assert [one.hidden for one in run([write, BLOCK, BLOCK, engine], [BLOCK, BLOCK])[0]] == [True]
    assert not racy([write, PROXY, BLOCK, BLOCK, engine], [BLOCK, BLOCK])
    assert not racy([write, PROXY, BLOCK, touch([1]), PROXY, BLOCK, touch([0, 1], Kind.READ, engine=True)], [BLOCK, BLOCK])
    copy = touch([0], completion=Completion.GROUP)
    assert racy([copy, Commit(), BLOCK, Wait(1), touch([0])], [BLOCK], same_thread=True)
    assert not racy([touch([1], completion=Completion.GROUP), Commit(), Wait(0), BLOCK, touch([2]), Commit(), Wait(0), touch([1])], [BLOCK])
    old, new = touch([0], completion=Completion.GROUP), touch([1], completion=Completion.GROUP)
    # A group that was waited for long ago counts no more; one that is empty does.
    trace = [old, Commit(), Wait(0), BLOCK, new, Commit(), Wait(0), touch([1])]
    assert not racy(trace, [BLOCK], same_thread=True)
    product = touch([0], Kind.READ, completion=Completion.PRODUCT)
    kept = [product, Commit(Completion.PRODUCT), Wait(0, completion=Completion.PRODUCT), BLOCK]
    assert not racy([*kept, touch([0])], [BLOCK])
    empty = [Commit(), BLOCK, new, Commit(), Wait(1), touch([1])]
    assert racy(empty, [BLOCK], same_thread=True) and not racy([*empty[:-2], Wait(0), touch([1])], [BLOCK], same_thread=True)
    two = [Commit(), Commit(), BLOCK, new, Commit(), Commit(), Wait(1), touch([1])]
    assert not racy(two, [BLOCK], same_thread=True)


# ---------------------------------------------------------------------------------------------- drawn traces, lane by lane


def by_lanes(traces, same_thread, blocks=1):
    """Pairs of touches that conflict and that nothing orders, and those that an engine may not see: two lanes of each warp, each for itself."""
    each = len(traces) // blocks
    lanes = [(agent, lane) for agent in range(len(traces)) for lane in range(2)]
    known = {lane: set() for lane in lanes}
    fenced = {lane: set() for lane in lanes}
    mine = {lane: set() for lane in lanes}
    issued = {lane: {one: set() for one in Completion} for lane in lanes}
    groups = {lane: {one: [] for one in Completion} for lane in lanes}
    done, races, hidden = [], set(), set()
    position = [0] * len(traces)

    def members(agent, barrier):
        size = each if barrier.scope.threads is None else barrier.scope.threads // 32
        first = agent // each * each
        start = first + agent % each // size * size
        return range(start, min(start + size, first + each))

    def touches(agent, event):
        for lane in range(2):
            me = agent, lane
            for atom in event.footprint.atoms[agent % each]:
                for other, former, there in done:
                    if atom not in there or former.step == event.step or not needs(former.kind, event.kind):
                        continue
                    if other[0] == agent and other[1] != lane and same_thread:
                        continue
                    if (other, id(former)) not in known[me]:
                        races.add(mark(former, event))
                    elif event.by_engine and former.kind is not Kind.READ and not former.by_engine and (other, id(former)) not in fenced[me]:
                        hidden.add(mark(former, event))
        for lane in range(2):
            me = agent, lane
            done.append((me, event, event.footprint.atoms[agent % each]))
            bit = (me, id(event))
            (issued[me][event.completion] if event.under_way else known[me]).add(bit)
            mine[me].add(bit)

    def needs(one, other):
        return Kind.WRITE in (one, other) or {one, other} == {Kind.READ, Kind.ADD}

    while any(position[agent] < len(trace) for agent, trace in enumerate(traces)):
        for agent, trace in enumerate(traces):
            while position[agent] < len(trace) and not isinstance(trace[position[agent]], Barrier):
                event = trace[position[agent]]
                position[agent] += 1
                match event:
                    case Touch():
                        touches(agent, event)
                    case Commit():
                        for lane in range(2):
                            groups[agent, lane][event.completion].append(issued[agent, lane][event.completion])
                            issued[agent, lane][event.completion] = set()
                    case Wait():
                        over = set()
                        for lane in range(2):
                            mine_there = groups[agent, lane][event.completion]
                            count = max(len(mine_there) - event.groups, 0)
                            for group in mine_there[:count]:
                                known[agent, lane] |= group
                                over |= group
                            del mine_there[:count]
                        if event.completion is not Completion.GROUP:
                            for lane in range(2):
                                known[agent, lane] |= over
                    case Fence(reach=Reach.PROXY):
                        for lane in range(2):
                            fenced[agent, lane] |= mine[agent, lane] & known[agent, lane]
        for agent, trace in enumerate(traces):
            if position[agent] < len(trace) and isinstance(trace[position[agent]], Barrier):
                barrier = trace[position[agent]]
                there = list(members(agent, barrier))
                if all(position[one] < len(traces[one]) and traces[one][position[one]] == barrier for one in there):
                    parts = [(one, lane) for one in there for lane in range(2)]
                    for what in (known, fenced):
                        union = set().union(*(what[part] for part in parts))
                        for part in parts:
                            what[part] = set(union)
                    for one in there:
                        position[one] += 1
    return races, hidden


def drawn(chance, engines):
    """Traces of four warps in one or two blocks: the same barriers in all of them, and between these touches, commits and waits."""
    barriers = [chance.choice((BLOCK, BLOCK, WARP, Barrier(Scope("pair", 64)))) for _ in range(chance.choice((0, 1, 2, 3, 4)))]
    steps = itertools.count()

    def part():
        for _ in range(chance.choice((0, 0, 1, 2))):
            kind = chance.random()
            completion = chance.choice((Completion.GROUP, Completion.PRODUCT))
            if kind < 0.7:
                engine = engines and chance.random() < 0.4
                what = chance.choice(list(Kind)) if not engine else chance.choice((Kind.WRITE, Kind.READ, Kind.READ))
                flying = chance.random() < 0.2 and what is not Kind.ADD
                atoms = {warp: chance.sample(range(3), chance.choice((1, 1, 2))) for warp in range(4) if chance.random() < 0.9}
                how = completion if flying else Completion.NONE
                yield touch(atoms, what, next(steps), how, engine)
            elif kind < 0.85:
                yield Commit(completion)
                yield Wait(chance.choice((0, 0, 1)), completion=completion)
            elif engines:
                yield PROXY

    parts = [[list(part()) for _ in range(len(barriers) + 1)] for _ in range(4)]
    if chance.random() < 0.3:
        parts[1] = parts[0]
    traces = []
    for one in parts:
        trace = list(one[0])
        for barrier, behind in zip(barriers, one[1:], strict=True):
            trace += [barrier, *behind]
        traces.append(trace)
    return traces


@pytest.mark.parametrize("engines", [False, True])
@pytest.mark.parametrize("chunk", range(3))
def test_drawn_traces_are_judged_as_lane_by_lane(chunk, engines):
    verdicts = [0, 0]
    for seed in range(chunk * 100, chunk * 100 + 100):
        chance = random.Random(f"order {seed} {engines}")
        traces, same_thread, blocks = drawn(chance, engines), chance.random() < 0.5, chance.choice((1, 1, 2))
        expected, unseen = by_lanes(traces, same_thread, blocks)
        found, broken = run(*traces, blocks=blocks, same_thread=same_thread)
        assert not broken
        races = {mark(one.before, one.behind) for one in found if not one.hidden}
        hidden = {mark(one.before, one.behind) for one in found if one.hidden}
        assert races <= expected and hidden <= unseen, (seed, traces)
        assert bool(hidden | races) == bool(expected | unseen), (seed, traces)
        verdicts[bool(expected | unseen)] += 1
    assert min(verdicts) >= 5, verdicts
