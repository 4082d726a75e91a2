"""Happens-before on hand-made traces of accesses and synchronization, compared with an execution lane by lane."""

import collections
import itertools
import random

import attrs
import making
import pytest
from handrings import event as touch
from handrings import ring
from touching import Engine, T, kernel, reads, writes

from fireiron import *
from fireiron.check import AccessTrace, check_races
from fireiron.check.races.footprints import Footprint
from fireiron.check.races.order import HappensBefore, MbarrierState, PhaseSets, mark
from fireiron.check.races.traces import AccessEvent, Kind, StageEvent
from fireiron.errors import VerificationError
from fireiron.ir import (
    BLOCK_SCOPE,
    WARP_SCOPE,
    WARPGROUP_SCOPE,
    Barrier,
    Commit,
    Fence,
    FenceKind,
    StageState,
    Wait,
)
from fireiron.ir.mechanism import AT_ONCE
from fireiron.ir.mechanisms.cp_async import CP_ASYNC_GROUPS
from fireiron.ir.mechanisms.tma import TMA_LOADS
from fireiron.ir.mechanisms.tma_store import TMA_STORES
from fireiron.ir.mechanisms.wgmma import WGMMA_GROUPS

pytestmark = pytest.mark.sampled(1)

BLOCK, WARP, GROUP = making.barrier(BLOCK_SCOPE), making.barrier(WARP_SCOPE), making.barrier(WARPGROUP_SCOPE)
PROXY, REGISTERS = making.fence(FenceKind.ASYNC_PROXY), making.fence(FenceKind.WGMMA_REGISTERS)


def run(*traces, blocks=1, same_thread=False, atoms=8):
    """The conflicts of the agents, and the errors of the mbarriers of rings."""
    races, broken = {}, {}
    HappensBefore(traces, blocks, atoms, lambda before, after, warp: same_thread, races, broken).run()
    return list(races.values()), list(broken)


run_all = run


def racy(*traces, **options):
    races, broken = run(*traces, **options)
    assert not broken
    return bool(races)


# ---------------------------------------------------------------------------------------------- which race is reported


def test_a_race_names_its_accesses_and_warps():
    first, second = touch([0], step=1), touch([0], Kind.READ, step=2)
    (race,), _ = run([first], [second])
    assert (race.before, race.after, race.warps, race.in_flight, race.unfenced) == (first, second, (0, 1), False, False)
    swapped = race.reversed
    assert (swapped.before, swapped.after, swapped.warps, swapped.in_flight) == (second, first, (1, 0), False)


def test_the_earlier_statement_of_the_program_is_reported_first():
    """Even if another agent executes it later; for one step, in the order of execution."""
    early, late = touch([0], step=1), touch([0], step=7)
    (race,), _ = run([late], [early])
    assert (race.before, race.after, race.warps) == (early, late, (1, 0))
    (race,), _ = run([early], [late])
    assert (race.before, race.after, race.warps) == (early, late, (0, 1))
    same, other = touch([0], step=3), touch([0], Kind.READ, step=4)
    (race,), _ = run([touch([1], step=0), same], [other])
    assert (race.before, race.after) == (same, other)


def test_a_pending_copy_is_reported_first():
    """Until its thread has waited for it."""
    copy, use = touch([0], step=9, mechanism=CP_ASYNC_GROUPS), touch([0], Kind.READ, step=2)
    (race,), _ = run([copy], [use])
    assert race.in_flight and race.before is copy and race.warps == (0, 1)
    (race,), _ = run([copy, making.commit(), making.wait(0)], [use])
    assert not race.in_flight and race.before is use and race.warps == (1, 0)
    (race,), _ = run([copy, use], same_thread=True)
    assert race.in_flight and race.before is copy and race.warps == (0, 0)


def test_each_pair_of_statements_is_reported_once():
    """With its first two conflicting accesses; another pair is another race."""
    pair = [touch([0, 1]), touch([0, 1], Kind.READ)]
    (race,), _ = run([pair[0], pair[0]], [pair[1], pair[1]])
    assert {race.before, race.after} == set(pair)
    use, other = pair[0].use, pair[1].use
    assert mark(pair[0], pair[1]) == mark(pair[1], pair[0]) == mark(touch([3], use=use), touch([4], use=other))
    assert mark(pair[0], pair[0]) != mark(pair[0], pair[1])
    races, _ = run([pair[0]], [pair[1], touch([0], Kind.READ)])
    assert len(races) == 2
    first = touch([0], step=1, use=use)
    (race,), _ = run([first, touch([1], step=2, use=use)], [touch([0, 1], Kind.READ, step=3)])
    assert race.before is first


def test_known_findings_are_kept():
    first, second = touch([0]), touch([0], Kind.READ)
    races = {mark(first, second): "known"}
    HappensBefore([[first], [second]], 1, 1, lambda *_: False, races, {}).run()
    assert list(races.values()) == ["known"]


# ---------------------------------------------------------------------------------------------- kinds, and threads of a warp


def test_kinds_of_accesses_that_need_order():
    for kind, other in itertools.product(Kind, repeat=2):
        needs = Kind.WRITE in (kind, other) or {kind, other} == {Kind.READ, Kind.ADD}
        assert racy([touch([0], kind)], [touch([0], other)]) == needs
        assert not racy([touch([0], kind)], [touch([1], other)])
        assert not racy([touch([0], kind), BLOCK], [BLOCK, touch([0], other)])


def test_accesses_of_one_thread_are_ordered_in_a_warp():
    first, second = touch([0]), touch([0], Kind.READ)
    assert racy([first, second]) and not racy([first, second], same_thread=True)
    assert not racy([first, WARP, second])
    calls = []

    def same_thread(before, after, warp):
        calls.append((before, after, warp))
        return True

    HappensBefore([[BLOCK], [BLOCK, first, second, touch([0])]], 1, 1, same_thread, {}, {}).run()
    assert calls[0] == (first, second, 1)
    assert all(warp == 1 for *_, warp in calls)


def test_same_thread_is_queried_once_per_pair():
    first, second, calls = touch([0]), touch([0], Kind.READ), []
    trace = [first, second, first, second, first, second]
    HappensBefore([trace], 1, 1, lambda *given: calls.append(given) or True, {}, {}).run()
    assert len(calls) == 2, "the read after the write, and the write after the read"
    copy = touch([0], mechanism=CP_ASYNC_GROUPS)
    (race,), _ = run([copy, making.commit(), making.wait(0), second, copy, second], same_thread=True)
    assert race.in_flight, "an ordered pair is unordered while the copy is in flight"


def test_accesses_of_one_step_are_ordered():
    event, other = touch([0], step=5), touch([0], Kind.READ, step=5)
    assert not racy([event], [other]) and not racy([event, other])
    assert racy([event], [touch([0], Kind.READ, step=6)])
    assert racy([event], [other, touch([0], Kind.READ, step=6)]) and racy([touch([0], step=6)], [event, other])


def test_warps_with_separate_atoms():
    """No other access can conflict."""
    each = touch({0: [0], 1: [1]})
    assert not racy([each], [each]) and racy([each], [touch({1: [0]})]) and not racy([each], [touch({1: [1]})])
    nothing = attrs.evolve(each, footprint=Footprint(None, each.footprint.pattern, 0))
    assert not racy([nothing], [each])


# ---------------------------------------------------------------------------------------------- barriers


def test_barriers_synchronize_the_warps_of_their_scope():
    def ordered(barrier, warps, first, other):
        traces = [[barrier] for _ in range(warps)]
        traces[first], traces[other] = [touch([0]), barrier], [barrier, touch([0])]
        return not racy(*traces)

    for first, other in itertools.permutations(range(8), 2):
        assert ordered(BLOCK, 8, first, other)
        assert ordered(GROUP, 8, first, other) == (first // 4 == other // 4)
        assert ordered(making.barrier(making.scope("pair", 64)), 8, first, other) == (first // 2 == other // 2)
        assert not ordered(WARP, 8, first, other)
    for first, other in itertools.permutations(range(6), 2):
        assert ordered(GROUP, 6, first, other) == (first // 4 == other // 4), "the last group has only two warps"
    for first, other in itertools.permutations(range(6), 2):
        traces = [[BLOCK] for _ in range(6)]
        traces[first], traces[other] = [touch([0]), BLOCK], [BLOCK, touch([0])]
        assert racy(*traces, blocks=2) == (first // 3 != other // 3), "each block has a separate barrier"
        traces = [[GROUP] if number not in (first, other) else traces[number] for number in range(6)]
        traces[first], traces[other] = [touch([0]), GROUP], [GROUP, touch([0])]
        assert racy(*traces, blocks=2) == (first // 3 != other // 3)


def test_a_barrier_of_a_part_of_a_warp():
    with pytest.raises(VerificationError, match="no rule for a barrier of 16 threads, a part of a warp"):
        run([making.barrier(making.scope("half", 16))])
    with pytest.raises(VerificationError, match="no rule for a barrier of 48 threads"):
        run([making.barrier(making.scope("more", 48))])


def test_barriers_wait_for_all():
    with pytest.raises(VerificationError, match="warp 0 waits forever at"):
        run([BLOCK], [])
    with pytest.raises(VerificationError, match="warp 1 waits forever at"):
        run([], [WARP, BLOCK])
    assert run([BLOCK, BLOCK], [BLOCK, BLOCK]) == ([], [])
    with pytest.raises(VerificationError, match="warp 1 waits forever at"):
        run([BLOCK], [BLOCK, BLOCK])
    with pytest.raises(VerificationError, match="waits forever"):
        run([BLOCK], [GROUP])


def test_order_is_transitive_through_barriers():
    pair = making.barrier(making.scope("pair", 64))
    assert not racy([touch([0]), pair, GROUP], [pair, GROUP], [GROUP, touch([0])], [GROUP])
    assert racy([touch([0]), GROUP, pair], [GROUP, touch([1]), pair], [GROUP, touch([1])], [GROUP])
    assert racy([pair, touch([0]), GROUP, pair], [pair, GROUP, pair], [GROUP], [GROUP, touch([0])]) is False
    assert racy([GROUP, touch([0]), pair], [GROUP, pair, touch([0])], [GROUP, touch([0])], [GROUP])


def test_blocks_of_a_cluster_synchronize_at_their_barriers():
    meet = making.cluster_barrier()
    assert not racy([touch([0]), meet], [meet, touch([0])], blocks=2)
    assert racy([touch([0])], [touch([0])], blocks=2)
    assert racy([touch([0]), meet, meet], [meet, touch([0]), meet], blocks=2) is False
    with pytest.raises(VerificationError, match="waits forever"):
        run([meet], [], blocks=2)


# ---------------------------------------------------------------------------------------------- groups


@pytest.mark.parametrize("completion", [CP_ASYNC_GROUPS, WGMMA_GROUPS, TMA_STORES])
def test_groups_complete_the_oldest_first(completion):
    """Each mechanism separately."""
    kind = Kind.WRITE if completion is CP_ASYNC_GROUPS else Kind.READ
    copies = [touch([number], kind, mechanism=completion) for number in range(3)]
    commit, users = making.commit(completion), [touch([number]) for number in range(3)]
    issued = [copies[0], commit, copies[1], commit, copies[2], commit]
    for groups in range(5):
        for number, use in enumerate(users):
            waited = number < 3 - groups
            assert racy([*issued, making.wait(groups, mechanism=completion), use], same_thread=True) != waited
            others = next(one for one in (CP_ASYNC_GROUPS, WGMMA_GROUPS) if one is not completion)
            assert racy([*issued, making.wait(0, mechanism=others), use], same_thread=True)
    both = [*issued, making.wait(2, mechanism=completion)]
    assert racy([*both, making.wait(1, mechanism=completion), users[2]], same_thread=True)
    assert not racy([*both, making.wait(1, mechanism=completion), users[1]], same_thread=True)
    assert not racy([copies[0], copies[1], commit, making.wait(0, mechanism=completion), users[1]], same_thread=True)
    assert racy([copies[0], making.wait(0, mechanism=completion), commit, users[0]], same_thread=True)
    assert racy([copies[0], commit, copies[1], making.wait(0, mechanism=completion), users[1]], same_thread=True), "not committed yet"


def test_a_commit_covers_everything_issued_since_the_previous_one():
    first, second = touch([0], mechanism=CP_ASYNC_GROUPS), touch([1], mechanism=CP_ASYNC_GROUPS)
    trace = [first, making.commit(), second, making.commit(), making.wait(1), touch([0])]
    assert not racy(trace, same_thread=True)
    again = [first, making.commit(), making.commit(), making.wait(1), touch([0])]
    assert not racy(again, same_thread=True), "an empty group counts"
    late = [BLOCK, first, making.commit(), BLOCK, making.commit(), making.wait(1), touch([0])]
    assert not racy(late, [BLOCK, BLOCK], same_thread=True)


def test_scope_of_a_wait():
    """A thread waits for its copies; a warp waits for its MMAs with all lanes."""
    for completion, alone in ((CP_ASYNC_GROUPS, True), (WGMMA_GROUPS, False), (TMA_STORES, False)):
        trace = [touch([0], mechanism=completion), making.commit(completion), making.wait(0, mechanism=completion)]
        assert racy([*trace, touch([0])]) == alone
        assert not racy([*trace, WARP, touch([0])])
        assert racy([*trace], [touch([0])]) and not racy([*trace, BLOCK], [BLOCK, touch([0])])


# ---------------------------------------------------------------------------------------------- engines


def test_the_async_proxy_reads_fenced_writes():
    write, engine = touch([0]), touch([0], Kind.READ, engine=True)
    for trace, hidden in (
        ([write, WARP, engine], True),
        ([write, PROXY, WARP, engine], False),
        ([write, WARP, PROXY, engine], False),
        ([PROXY, write, WARP, engine], True),
        ([write, REGISTERS, WARP, engine], True),
        ([write, WARP, engine, PROXY], True),
    ):
        races, _ = run(trace)
        assert [one.unfenced for one in races] == [True] * hidden, trace
    (race,), _ = run([write, WARP, engine])
    assert race.before is write and race.after is engine and race.warps == (0, 0) and not race.in_flight
    assert not racy([touch([0], engine=True), WARP, engine]), "writes of the async proxy need no fence"
    assert not racy([touch([0], Kind.READ), WARP, touch([0], engine=True)]), "reads need no fence"
    assert racy([touch([0], Kind.ADD), WARP, engine]) and racy([write, WARP, touch([0], engine=True)])
    (race,), _ = run([write, engine])
    assert not race.unfenced, "unordered accesses"


def test_a_thread_fences_its_writes_before_its_async_operation():
    """Once missed: no finding if the issuing thread itself wrote the data."""
    write, engine = touch([0]), touch([0], Kind.READ, engine=True)
    (race,), _ = run([write, engine], same_thread=True)
    assert race.unfenced and race.before is write
    assert not racy([write, PROXY, engine], same_thread=True)
    program = lambda *between: kernel(writes(T), *between, reads(T, instruction=Engine()), threads=32)
    (finding,) = check_races(AccessTrace(program()))
    assert "through the async proxy, and no fence.proxy.async is between" in finding.message
    assert not check_races(AccessTrace(program(PROXY))) and check_races(AccessTrace(program(WARP)))


def test_fences_are_passed_on_by_barriers():
    """For writes of the agent itself before the barrier."""
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
        races, _ = run(*traces)
        assert [one.unfenced for one in races] == [True] * hidden, traces
    (race,), _ = run([write, BLOCK], [BLOCK, engine])
    assert race.warps == (0, 1)
    copy = touch([0], mechanism=CP_ASYNC_GROUPS)
    fenced_early = [copy, making.commit(), PROXY, making.wait(0), WARP, engine]
    assert [one.unfenced for one in run(fenced_early)[0]] == [True], "a fence does not cover copies in flight"
    assert not racy([copy, making.commit(), making.wait(0), PROXY, WARP, engine])


def test_unfenced_writes_are_kept():
    """After a barrier of all agents, with any events before it."""
    write, engine = touch([0]), touch([0], Kind.READ, engine=True)
    assert [one.unfenced for one in run([write, BLOCK, BLOCK, engine], [BLOCK, BLOCK])[0]] == [True]
    assert not racy([write, PROXY, BLOCK, BLOCK, engine], [BLOCK, BLOCK])
    assert not racy([write, PROXY, BLOCK, touch([1]), PROXY, BLOCK, touch([0, 1], Kind.READ, engine=True)], [BLOCK, BLOCK])
    copy = touch([0], mechanism=CP_ASYNC_GROUPS)
    assert racy([copy, making.commit(), BLOCK, making.wait(1), touch([0])], [BLOCK], same_thread=True)
    assert not racy(
        [
            touch([1], mechanism=CP_ASYNC_GROUPS),
            making.commit(),
            making.wait(0),
            BLOCK,
            touch([2]),
            making.commit(),
            making.wait(0),
            touch([1]),
        ],
        [BLOCK],
    )
    old, new = touch([0], mechanism=CP_ASYNC_GROUPS), touch([1], mechanism=CP_ASYNC_GROUPS)
    # A group waited for long ago does not count; an empty group does.
    trace = [old, making.commit(), making.wait(0), BLOCK, new, making.commit(), making.wait(0), touch([1])]
    assert not racy(trace, [BLOCK], same_thread=True)
    product = touch([0], Kind.READ, mechanism=WGMMA_GROUPS)
    kept = [product, making.commit(WGMMA_GROUPS), making.wait(0, mechanism=WGMMA_GROUPS), BLOCK]
    assert not racy([*kept, touch([0])], [BLOCK])
    empty = [making.commit(), BLOCK, new, making.commit(), making.wait(1), touch([1])]
    assert racy(empty, [BLOCK], same_thread=True) and not racy([*empty[:-2], making.wait(0), touch([1])], [BLOCK], same_thread=True)
    two = [making.commit(), making.commit(), BLOCK, new, making.commit(), making.commit(), making.wait(1), touch([1])]
    assert not racy(two, [BLOCK], same_thread=True)


# ---------------------------------------------------------------------------------------------- random traces, lane by lane


def by_lanes(traces, same_thread, blocks=1):
    """Pairs of conflicting unordered accesses, and writes that the async proxy may not see, by simulating two lanes of each warp."""
    each = len(traces) // blocks
    lanes = [(agent, lane) for agent in range(len(traces)) for lane in range(2)]
    known = {lane: set() for lane in lanes}
    fenced = {lane: set() for lane in lanes}
    own = {lane: set() for lane in lanes}
    issued = {lane: collections.defaultdict(set) for lane in lanes}
    groups = {lane: collections.defaultdict(list) for lane in lanes}
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
                for other, former, touched in done:
                    if atom not in touched or former.step == event.step or not needs(former.kind, event.kind):
                        continue
                    if other[0] == agent and other[1] != lane and same_thread:
                        continue
                    if (other, id(former)) not in known[me]:
                        races.add(mark(former, event))
                    elif (
                        event.by_engine and former.kind is not Kind.READ and not former.by_engine and (other, id(former)) not in fenced[me]
                    ):
                        hidden.add(mark(former, event))
        for lane in range(2):
            me = agent, lane
            done.append((me, event, event.footprint.atoms[agent % each]))
            bit = (me, id(event))
            (issued[me][event.mechanism] if event.in_flight else known[me]).add(bit)
            own[me].add(bit)

    def needs(kind, other):
        return Kind.WRITE in (kind, other) or {kind, other} == {Kind.READ, Kind.ADD}

    while any(position[agent] < len(trace) for agent, trace in enumerate(traces)):
        for agent, trace in enumerate(traces):
            while position[agent] < len(trace) and not isinstance(trace[position[agent]], Barrier):
                event = trace[position[agent]]
                position[agent] += 1
                match event:
                    case AccessEvent():
                        touches(agent, event)
                    case Commit():
                        for lane in range(2):
                            groups[agent, lane][event.mechanism].append(issued[agent, lane][event.mechanism])
                            issued[agent, lane][event.mechanism] = set()
                    case Wait():
                        over = set()
                        for lane in range(2):
                            mine_there = groups[agent, lane][event.mechanism]
                            count = max(len(mine_there) - event.groups, 0)
                            for group in mine_there[:count]:
                                known[agent, lane] |= group
                                over |= group
                            del mine_there[:count]
                        if event.mechanism is not CP_ASYNC_GROUPS:
                            for lane in range(2):
                                known[agent, lane] |= over
                    case Fence(kind=FenceKind.ASYNC_PROXY):
                        for lane in range(2):
                            fenced[agent, lane] |= own[agent, lane] & known[agent, lane]
        for agent, trace in enumerate(traces):
            if position[agent] < len(trace) and isinstance(trace[position[agent]], Barrier):
                barrier = trace[position[agent]]
                waiting = list(members(agent, barrier))
                if all(position[agent] < len(traces[agent]) and traces[agent][position[agent]] == barrier for agent in waiting):
                    parts = [(agent, lane) for agent in waiting for lane in range(2)]
                    for what in (known, fenced):
                        union = set().union(*(what[part] for part in parts))
                        for part in parts:
                            what[part] = set(union)
                    for member in waiting:
                        position[member] += 1
    return races, hidden


def random_traces(chance, engines):
    """Traces of four warps in one or two blocks: equal barriers in all of them, with accesses, commits and waits between."""
    barriers = [
        chance.choice((BLOCK, BLOCK, WARP, making.barrier(making.scope("pair", 64)))) for _ in range(chance.choice((0, 1, 2, 3, 4)))
    ]
    steps = itertools.count()

    def part():
        for _ in range(chance.choice((0, 0, 1, 2))):
            kind = chance.random()
            completion = chance.choice((CP_ASYNC_GROUPS, WGMMA_GROUPS))
            if kind < 0.7:
                engine = engines and chance.random() < 0.4
                what = chance.choice(list(Kind)) if not engine else chance.choice((Kind.WRITE, Kind.READ, Kind.READ))
                is_asynchronous = chance.random() < 0.2 and what is not Kind.ADD
                atoms = {warp: chance.sample(range(3), chance.choice((1, 1, 2))) for warp in range(4) if chance.random() < 0.9}
                how = completion if is_asynchronous else AT_ONCE
                yield touch(atoms, what, next(steps), how, engine)
            elif kind < 0.85:
                yield making.commit(completion)
                yield making.wait(chance.choice((0, 0, 1)), mechanism=completion)
            elif engines:
                yield PROXY

    parts = [[list(part()) for _ in range(len(barriers) + 1)] for _ in range(4)]
    if chance.random() < 0.3:
        parts[1] = parts[0]
    traces = []
    for item in parts:
        trace = list(item[0])
        for barrier, segment in zip(barriers, item[1:], strict=True):
            trace += [barrier, *segment]
        traces.append(trace)
    return traces


@pytest.mark.parametrize("engines", [False, True])
@pytest.mark.parametrize("chunk", range(3))
def test_random_traces_compared_with_lanes(chunk, engines):
    verdicts = [0, 0]
    for seed in range(chunk * 100, chunk * 100 + 100):
        chance = random.Random(f"order {seed} {engines}")
        traces, same_thread, blocks = random_traces(chance, engines), chance.random() < 0.5, chance.choice((1, 1, 2))
        expected, unseen = by_lanes(traces, same_thread, blocks)
        conflicts, broken = run(*traces, blocks=blocks, same_thread=same_thread)
        assert not broken
        races = {mark(one.before, one.after) for one in conflicts if not one.unfenced}
        hidden = {mark(one.before, one.after) for one in conflicts if one.unfenced}
        assert races <= expected and hidden <= unseen, (seed, traces)
        assert bool(hidden | races) == bool(expected | unseen), (seed, traces)
        verdicts[bool(expected | unseen)] += 1
    assert min(verdicts) >= 5, verdicts


# ---------------------------------------------------------------------------------------------- rings

PLAIN = ring(2)
BYTES = 128 * 4


def wait(number, state=StageState.FULL, of=PLAIN, own=()):
    return StageEvent(of, state, number, None, (), own)


def arrive(number, state=StageState.EMPTY, arrivals=(1,) * 8, of=PLAIN, ranks=()):
    return StageEvent(of, state, number, arrivals, ranks)


def fill(number, of=PLAIN, atom=None, elements=128, ranks=(0,), step=None):
    """A load of one four-byte element, as often as requested."""
    atom = number % of.stages if atom is None else atom
    return touch([atom], step=step, mechanism=TMA_LOADS, fill=StageEvent(of, StageState.FULL, number, None, ranks), elements=elements)


def produced(*numbers, of=PLAIN):
    return [
        event
        for number in numbers
        for event in (wait(number, StageState.EMPTY, of), arrive(number, StageState.FULL, of=of), fill(number, of))
    ]


def consumed(*numbers, of=PLAIN, arrivals=(1,) * 8):
    """Reads of each stage, with the release by one lane."""
    return [
        event
        for number in numbers
        for event in (wait(number, of=of), touch([number % of.stages], Kind.READ), WARP, arrive(number, arrivals=arrivals, of=of))
    ]


def run_consumers(consumers, producer, count=4, **options):
    """Identical consumers, followed by the producer."""
    return run(*[consumers] * count, producer, **options)


def test_correct_rings():
    for stages in (1, 2, 3):
        of = ring(stages)
        for count in (0, 1, 2, 5, 9):
            assert run_consumers(consumed(*range(count), of=of), produced(*range(count), of=of)) == ([], [])


def test_reading_a_stage_before_it_is_full():
    """Or written again before all have read it."""
    reading = [touch([0], Kind.READ), wait(0), WARP, arrive(0)]
    (race,), broken = run_consumers(reading, produced(0))
    assert broken == [] and {race.before.kind, race.after.kind} == {Kind.READ, Kind.WRITE}
    (race,), broken = run(produced(0), *[reading] * 4)
    assert broken == [] and race.in_flight and race.before.mechanism is TMA_LOADS
    early = [wait(0), arrive(0), touch([0], Kind.READ), *consumed(1), wait(2), touch([0], Kind.READ), WARP, arrive(2)]
    races, broken = run_consumers(early, produced(0, 1, 2))
    assert broken == [] and len(races) == 1 and not races[0].in_flight
    fence_less = [wait(0), touch([0], Kind.READ), arrive(0), *consumed(1, 2)]
    (race,), broken = run_consumers(fence_less, produced(0, 1, 2))
    assert broken == [] and race.before.kind is Kind.READ, "other lanes may still read it"


def test_a_wait_that_never_completes():
    races, broken = run_consumers(consumed(0, 1), produced(0))
    assert races == [] and broken == [f"ring: agent {number} waits forever for fill 1 to be full" for number in range(4)]
    races, broken = run_consumers(consumed(0), produced(0, 1, 2, 3))
    assert broken == ["ring: agent 4 waits forever for fill 3 to be empty", "ring: no agent waits for fill 1"]
    _, broken = run([], [], [], [wait(0)], blocks=2)
    assert broken == ["ring: agent 1 of block 1 of the cluster waits forever for fill 0 to be full"]


def test_a_fill_without_a_wait():
    _, broken = run_consumers(consumed(0, 1), produced(0, 1, 2))
    assert broken == ["ring: no agent waits for fill 2"]
    _, broken = run_consumers([], produced(0))
    assert broken == ["ring: no agent waits for fill 0"]
    one_of_them = [consumed(0), [arrive(0)], [arrive(0)], [arrive(0)]]
    assert run(*one_of_them, produced(0)) == ([], []), "one waiting agent is enough"


def test_a_wait_for_another_stage():
    _, broken = run_consumers([*consumed(1)], produced(1))
    assert broken[:1] == ["ring: the wait for fill 1 to be empty uses stage 1, but the agent is at fill 0"]
    assert "ring: the arrival for fill 1 to be empty uses stage 1, but the agent is at fill 0" in broken
    _, broken = run_consumers(consumed(0), [arrive(0, StageState.FULL), fill(0), arrive(1, StageState.FULL), wait(0, StageState.EMPTY)])
    assert broken and all("stage" in one or "filled" in one or "fill 1" in one or "incomplete" in one for one in broken)


def test_a_wait_that_passes_by_parity_alone():
    """The wait passes on a phase two earlier, or two later, than the intended one."""
    late = [wait(0), wait(1), wait(2), wait(3), wait(4)]
    ready = [arrive(number) for number in range(9)]
    _, broken = run_consumers([*ready[:4], *late], produced(0, 1, 2, 3), count=4)
    assert "ring: the wait for fill 0 to be full passes by parity alone" not in "".join(broken)
    producer_trace = [
        item for number in (0, 1, 2, 3, 4, 5) for item in (wait(number, StageState.EMPTY), arrive(number, StageState.FULL), fill(number))
    ]
    skipping = [wait(0), WARP, *[arrive(0)] * 1, wait(1), arrive(1)]
    _, broken = run_consumers(skipping, producer_trace)
    assert any("waits forever" in item for item in broken)
    of = ring(1, consumers=1)
    twice = [
        arrive(0, StageState.FULL, of=of),
        fill(0, of),
        arrive(1, StageState.FULL, of=of),
        fill(1, of),
        arrive(2, StageState.FULL, of=of),
        fill(2, of),
    ]
    _, broken = run(twice, [wait(0, of=of)])
    assert "ring: the wait for fill 0 to be full passes by parity alone: 3 phases are complete, not 1" in broken


def test_missing_or_excess_bytes():
    for elements in (64, 127):
        short = [wait(0, StageState.EMPTY), arrive(0, StageState.FULL), fill(0, elements=elements)]
        _, broken = run_consumers([], short)
        assert broken == [
            "ring: no agent waits for fill 0",
            "ring: the full mbarrier of stage 0 ends with an incomplete phase",
        ]
        _, broken = run_consumers(consumed(0), short)
        assert broken[0] == "ring: agent 0 waits forever for fill 0 to be full"
    two_loads = [wait(0, StageState.EMPTY), arrive(0, StageState.FULL), fill(0, elements=64), fill(0, elements=64, step=0)]
    assert run_consumers(consumed(0), two_loads)[1] == []
    _, broken = run_consumers([*consumed(0)], [wait(0, StageState.EMPTY), fill(0, elements=128), arrive(0, StageState.FULL)])
    assert broken == [], "bytes may arrive before the producer's arrival"
    _, broken = run_consumers(consumed(0), [wait(0, StageState.EMPTY), arrive(0, StageState.FULL), fill(0, elements=256)])
    assert broken and any("incomplete phase" in one for one in broken)


def test_number_of_arrivals():
    for arrivals, right in (
        ((1,) * 4, True),
        ((1,) * 8, True),
        ((4, 0, 0, 0), True),
        ((1, 1, 1, 0), False),
        ((1, 1, 1), False),
        ((2, 1, 1, 1), False),
    ):
        _, broken = run_consumers(consumed(0, arrivals=arrivals), produced(0))
        assert broken == ([] if right else ["ring: the empty mbarrier of stage 0 ends with an incomplete phase"]), arrivals
    _, broken = run_consumers(consumed(0, arrivals=(2,) * 4), produced(0))
    assert broken == [], "two phases complete instead of one: a later wait detects it"
    _, broken = run_consumers(consumed(0, 1, 2, arrivals=(2,) * 4), produced(0, 1, 2))
    assert broken


def test_phases():
    """Excess arrivals count for the next phase."""
    state = MbarrierState(2, 2)
    state.arrive(1, 16, 1)
    assert (state.completed, state.known, state.pending_arrivals) == (0, 0, 1)
    state.arrive(2, 32, 3)
    assert (state.completed, state.known, state.pending_arrivals, state.known_completed) == (2, 3, 2, 48)
    loaded = MbarrierState(1, 1)
    loaded.bytes += 8
    loaded.arrive(1, 0, 1)
    assert (loaded.completed, loaded.known) == (0, 0)
    loaded.complete_bytes(2, 4)
    assert loaded.completed == 0
    loaded.complete_bytes(4, 4)
    assert (loaded.completed, loaded.known, loaded.arriving, loaded.pending_arrivals) == (1, 7, 0, 1)
    loaded.complete_bytes(8, 4)
    assert (loaded.completed, loaded.known) == (1, 7) and loaded.bytes == -4
    loaded.bytes += 4
    loaded.arrive(16, 0, 1)
    assert (loaded.completed, loaded.known) == (2, 31)
    crowded = MbarrierState(1, 1)
    crowded.bytes = 4
    crowded.arrive(1, 0, 3)
    assert (crowded.completed, crowded.pending_arrivals) == (0, -2), "arrivals stay in a phase whose bytes are incomplete"


def test_rounds_are_sets_of_phases():
    rounds = PhaseSets(["a", "b", "a"])
    for barrier, number in itertools.product("ab", range(5)):
        assert rounds.count(barrier, rounds.first_phases(barrier, number)) == number
        assert rounds.count("a" if barrier == "b" else "b", rounds.first_phases(barrier, number)) == 0
        assert rounds.first_phases(barrier, number) | rounds.first_phases(barrier, 2) == rounds.first_phases(barrier, max(number, 2))
    assert rounds.first_phases("a", -1) == rounds.first_phases("b", 0) == 0
    assert rounds.count("a", rounds.first_phases("a", 3) | rounds.first_phases("b", 4)) == 3
    assert rounds.first_phases("a", 2) & rounds.first_phases("b", 4) == 0


def test_arrivals_release_earlier_accesses():
    """Knowledge common to all lanes of a warp is passed on; operations of one lane that are in flight, or that it did not wait for, are
    not.
    """
    of = making.ring("hand", 1, ("s",), bytes=0, consumers=1)
    to, receiver = (
        [touch([0]), WARP, arrive(0, arrivals=(1, 1, 1), of=of)],
        [wait(0, StageState.EMPTY, of), wait(1, StageState.EMPTY, of), touch([0])],
    )

    def run(first, other):
        races, broken = run_all(other, first)
        return len(races), broken

    assert run(to, receiver) == (0, [])
    assert run([to[0], to[2]], receiver) == (1, [])
    assert run(to, [receiver[0], receiver[2]]) == (1, []), "fill 0 is initially empty"
    copy = touch([0], mechanism=CP_ASYNC_GROUPS)
    assert run([copy, making.commit(), WARP, to[2]], receiver) == (1, [])
    assert run([copy, making.commit(), making.wait(0), to[2]], receiver) == (1, []), "other lanes have waited for their copies"
    assert run([copy, making.commit(), making.wait(0), WARP, to[2]], receiver) == (0, [])
    product = [touch([0], Kind.READ, mechanism=WGMMA_GROUPS), making.commit(WGMMA_GROUPS)]
    assert run([*product, making.wait(0, mechanism=WGMMA_GROUPS), to[2]], receiver) == (0, [])
    assert run([*product, WARP, to[2]], receiver) == (1, [])
    third = [wait(number, StageState.EMPTY, of) for number in range(3)]
    handed_on = [*receiver[:2], arrive(1, arrivals=(1, 1, 1), of=of)]
    races, broken = run_all([*third, touch([0])], handed_on, to)
    assert (races, broken) == ([], []), "the order from a wait is passed on by the next arrival"


# ---------------------------------------------------------------------------------------------- clusters


def test_loads_into_other_blocks():
    """Bytes count at the destination, which also gets the order."""
    shared = ring(1, consumers=2)
    meet = making.cluster_barrier()
    consumer = lambda rank: [meet, wait(0, of=shared), touch({0: [rank]}, Kind.READ), WARP, arrive(0, of=shared, ranks=(0, 1)), meet]
    announced = [meet, wait(0, StageState.EMPTY, shared), arrive(0, StageState.FULL, of=shared)]
    both = StageEvent(shared, StageState.FULL, 0, None, (0, 1))
    half_loads = lambda first: [touch({1: [0, 1]}, mechanism=TMA_LOADS, fill=both, elements=64, step=first)]
    traces = [consumer(0), [*announced, *half_loads(1), meet], consumer(1), [*announced, *half_loads(1), meet]]
    races, broken = run(*traces, blocks=2)
    assert (races, broken) == ([], [])
    missing = [traces[0], [one for one in traces[1] if not isinstance(one, AccessEvent)], traces[2], traces[3]]
    assert any("waits forever" in one for one in run(*missing, blocks=2)[1])
    early = [[one for one in trace if one is not meet or place] for trace in traces for place in (0,)]
    _, broken = run(*early, blocks=2)
    assert "ring: fill 0 is loaded, in another block of the cluster, whose mbarriers may not be initialized yet" in broken
    assert "ring: the arrival for fill 0 to be empty, in another block of the cluster, whose mbarriers may not be initialized yet" in broken
    open_end = [trace[:-1] for trace in traces]
    _, broken = run(*open_end, blocks=2)
    assert broken == ["a block exits while other blocks of its cluster may still arrive at its mbarriers or send loads to it"]


def test_missing_blocks():
    shared = ring(1, consumers=1)
    meet = making.cluster_barrier()
    beyond = [meet, wait(0, of=shared), WARP, arrive(0, of=shared, ranks=(0, 2)), meet]
    producer = [meet, wait(0, StageState.EMPTY, shared), arrive(0, StageState.FULL, of=shared), fill(0, shared, ranks=(0,)), meet]
    idle = [meet, meet]
    _, broken = run(beyond, producer, idle, idle, blocks=2)
    assert broken == ["ring: the arrival for fill 0 to be empty, in block 2 of a cluster of 2"]
    right = [meet, wait(0, of=shared), WARP, arrive(0, of=shared, ranks=(0,)), meet]
    assert run(right, producer, idle, idle, blocks=2) == ([], [])
    far = [meet, wait(0, StageState.EMPTY, shared), arrive(0, StageState.FULL, of=shared), fill(0, shared, ranks=(0, 3)), meet]
    _, broken = run(right, far, idle, idle, blocks=2)
    assert broken == ["ring: fill 0 is loaded, in block 3 of a cluster of 2"]
    own = [wait(0, of=shared), WARP, arrive(0, of=shared, ranks=(0,))]
    assert run(own, [wait(0, StageState.EMPTY, shared), arrive(0, StageState.FULL, of=shared), fill(0, shared)]) == ([], []), (
        "its own block needs no cluster barrier"
    )


def test_the_last_remote_access_to_a_block_matters():
    """A block may exit once all others have synchronized after their accesses to it."""
    shared = ring(1, consumers=1)
    meet = making.cluster_barrier()
    across = [meet, arrive(0, of=shared, ranks=(1,)), meet]
    assert run(across, [meet, meet], blocks=2) == ([], [])
    _, broken = run([meet, meet, arrive(0, of=shared, ranks=(1,))], [meet, meet], blocks=2)
    assert broken == ["a block exits while other blocks of its cluster may still arrive at its mbarriers or send loads to it"]
    _, broken = run([meet, meet, arrive(0, of=shared, ranks=(1,)), meet], [meet, meet, meet], blocks=2)
    assert broken == []


def test_blocks_without_remote_accesses_need_no_synchronization():
    """An agent that has not synchronized accesses only its own block."""
    shared = ring(1, consumers=1)

    def block(rank):
        load = fill(0, shared, atom=rank, ranks=(rank,))
        return [wait(0, of=shared), WARP, arrive(0, of=shared)], [
            wait(0, StageState.EMPTY, shared),
            arrive(0, StageState.FULL, of=shared),
            load,
        ]

    assert run(*block(0), *block(1), blocks=2) == ([], [])
    assert run([], [], blocks=2) == ([], [])


# ---------------------------------------------------------------------------------------------- alternating groups

ORDER = making.ring("order", 2, (), bytes=0, consumers=1)


def alternating(first, step, count, of=PLAIN, order=ORDER, per=1, give=True, await_order=True, tiles=None):
    """A group that alternates with another: acquires its fill of the order, consumes, and arrives for the next group."""
    trace = []
    for tile in (range(count) if tiles is None else tiles)[first::step]:
        if await_order:
            trace.append(StageEvent(order, StageState.EMPTY, tile + order.stages - 1))
        for iteration in range(per):
            trace += consumed(tile * per + iteration, of=of)
        if give:
            trace.append(StageEvent(order, StageState.EMPTY, tile, (1,) * 8))
    return trace


def test_alternating_groups():
    of = ring(2, consumers=1)
    for count, per in ((2, 1), (3, 1), (4, 2), (7, 2), (5, 3)):
        traces = [alternating(0, 2, count, of, per=per), alternating(1, 2, count, of, per=per), produced(*range(count * per), of=of)]
        assert run(*traces) == ([], []), (count, per)
        for without in (0, 1):
            faulty = list(traces)
            faulty[without] = alternating(without, 2, count, of, per=per, give=False)
            if count > 2:
                assert run(*faulty)[1], (count, per, without)
    unordered = [
        alternating(0, 2, 7, of, per=2, await_order=False),
        alternating(1, 2, 7, of, per=2, await_order=False),
        produced(*range(14), of=of),
    ]
    _, broken = run(*unordered)
    assert any("is by an agent that has not waited for fill 2, which completes the preceding one" in one for one in broken)


def test_an_unknown_completed_phase():
    """Alternating groups: an agent has not taken part in each phase itself."""
    of = ring(1, consumers=1)
    traces = [alternating(0, 2, 6, of), alternating(1, 2, 6, of), produced(*range(6), of=of)]
    assert run(*traces) == ([], [])
    late = [one for one in traces[1] if not (isinstance(one, StageEvent) and one.ring is ORDER and one.arrivals is None)]
    _, broken = run(traces[0], late, traces[2])
    assert (
        "ring: the wait for fill 1 to be full may pass by parity alone: the agent knows that 0 of 1 earlier phases are complete" in broken
    )
    assert any("may pass by parity alone: the agent knows that" in one for one in broken)


def test_an_arrival_that_may_count_to_an_earlier_phase():
    of = ring(1, consumers=1)
    traces = [alternating(0, 2, 6, of), alternating(1, 2, 6, of), produced(*range(6), of=of)]
    late = [one for one in traces[1] if not (isinstance(one, StageEvent) and one.arrivals is None)]
    _, broken = run(traces[0], late, traces[2])
    assert (
        "ring: the arrival for fill 1 to be empty may count to an earlier phase: the agent knows that 0 of 1 earlier phases are complete"
        in broken
    )


def numbers(*traces):
    """How the fills of rings are numbered where groups alternate."""
    from fireiron.check.races.order import _numbered

    return {name: dict(sorted(found.items())) for name, found in _numbered(traces).items()}


def test_fills_are_numbered_where_groups_alternate():
    """By the fills and the orders that are passed on; other waits get the distance from the nearest of these that their numbers give."""
    order = lambda number, arrivals=None: StageEvent(ORDER, StageState.EMPTY, number, arrivals)
    given = [order(number, (1,)) for number in (0, 1, 7, 8, 20)]
    filling = [arrive(number, StageState.FULL) for number in (0, 1, 2, 10, 11, 30)]
    waits = [wait(number) for number in (0, 1, 2, 10, 11, 30)]
    assert numbers([*filling, *waits]) == {}, "without alternating groups each agent counts its fills"
    result = numbers(given, [*filling, *waits])
    assert result["order"] == {0: 0, 1: 1, 7: 2, 8: 3, 20: 4} and result["ring"] == {0: 0, 1: 1, 2: 2, 10: 3, 11: 4, 30: 5}
    result = numbers(given, [order(number) for number in (2, 6, 9, 19, 21, 5)])
    assert result["order"] == {0: 0, 1: 1, 2: 2, 5: 0, 6: 1, 7: 2, 8: 3, 9: 4, 19: 3, 20: 4, 21: 5}
    result = numbers(given, [*filling, wait(3), wait(9, StageState.EMPTY), wait(31), wait(29)])
    assert {number: result["ring"][number] for number in (3, 9, 29, 31)} == {3: 3, 9: 2, 29: 4, 31: 6}
    result = numbers(given, [arrive(3), wait(5)])
    assert result["ring"] == {3: 0, 5: 0}, "a ring without fills"
    each = making.ring("units", 2, (), bytes=0, consumers=1, each=128)
    units = [StageEvent(each, StageState.EMPTY, number, (1,)) for number in (4, 9)]
    assert numbers(units, filling) == {"units": {4: 0, 9: 1}}, "units of a role have all fills of other rings"
    assert set(numbers(units, given, filling)) == {"units", "order", "ring"}


def test_fills_with_gaps_use_the_stages_of_their_numbers():
    """Long loops omit iterations by whole rounds: the followed iterations count."""
    of = ring(2, consumers=1)
    for tiles in ([0, 1, 2, 3, 44, 45, 46, 47], [0, 1, 6, 7, 8, 9], [*range(7)]):
        traces = [alternating(group, 2, 0, of, tiles=tiles) for group in (0, 1)]
        assert run(*traces, produced(*tiles, of=of)) == ([], []), tiles
    for tiles in ([0, 1, 2, 3, 45, 46, 47, 48], [0, 1, 7, 8]):
        traces = [alternating(group, 2, 0, of, tiles=tiles) for group in (0, 1)]
        _, broken = run(*traces, produced(*tiles, of=of))
        assert any(one.startswith("ring: ") and "uses stage 1, but the agent is at fill" in one for one in broken), tiles
    plain = ring(2)
    for tiles, right in (
        ([0, 1, 2, 3, 44, 45], True),
        ([0, 1, 2, 45], False),
        ([0, 1, 2, 7, 8], True),
        ([0, 1, 2, 5, 6], False),
        ([0, 1, 3, 4], False),
    ):
        _, broken = run_consumers(consumed(*tiles, of=plain), produced(*tiles, of=plain))
        assert (broken == []) == right, "each agent counts its fills"
