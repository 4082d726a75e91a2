"""What each agent does in order, by hand: events of statements, loops and roles, turns of rings, and what is under way."""

import attrs
import making
import pytest
from handrings import (
    BLOCK,
    ITERATION,
    LANE_0,
    TAKEN,
    TILE,
    J,
    consume,
    emptied,
    full,
    grid_of,
    load,
    over_tiles,
    produce,
    ring,
    ringed,
    staged,
)
from touching import BLOCK_BARRIER, WARP_BARRIER, Engine, T, buffer, copies, i, kernel, loop, reads, writes

from fireiron import *
from fireiron import ir
from fireiron.check import AccessTrace
from fireiron.check.blocks import local_coordinates
from fireiron.check.races.clusters import with_free_ranks
from fireiron.check.races.footprints import Footprints
from fireiron.check.races.loops import Loops
from fireiron.check.races.tiles import BLOCK_TILES, SEQUENCE_PART, TILE_LENGTH
from fireiron.check.races.traces import AccessEvent, InFlight, Kind, StageEvent, Tracer
from fireiron.errors import VerificationError
from fireiron.ir import FenceKind, For, StageState
from fireiron.ir.mechanism import AT_ONCE
from fireiron.ir.mechanisms.cp_async import CP_ASYNC_GROUPS
from fireiron.ir.mechanisms.tma_store import TMA_STORES
from fireiron.ir.mechanisms.wgmma import WGMMA_GROUPS
from fireiron.values.expr import TRUE, Var, all_of, as_expr, equal, less

pytestmark = pytest.mark.sampled(1)

N, M = Var("N", 0, 1 << 20, 1, True), Var("M", 0, 1 << 20, 1, True)
A, C = Var("a", 0, 63), Var("c", 0, 63)
G = buffer("g", 4096, memory=GL)


def traced(program, **lengths):
    """The traces of a kernel, and its tracer."""
    access_trace = with_free_ranks(AccessTrace(program))
    places = Footprints(access_trace, local_coordinates(access_trace))
    loops = Loops(access_trace, places, access_trace.uses)
    tracer = Tracer(access_trace, places, loops)
    return tracer.traces({{"N": N, "M": M, "SEQUENCE_PART": SEQUENCE_PART}[name]: length for name, length in lengths.items()}), tracer


def traces(program, **lengths):
    return traced(program, **lengths)[0]


def trace(*body, lengths=None, **options):
    """The trace of a warp of a kernel without roles."""
    found = traces(kernel(*body, **{"symbols": (N, M), "buffers": (buffer("s", 4096), G), **options}), **(lengths or {}))
    assert all(one is found[0] for one in found)
    return list(found[0])


def shown(events):
    """Events in a word or two: touches by kind and the loops in order, turns as they say."""
    found = []
    for one in events:
        if isinstance(one, AccessEvent):
            steps = "".join(f" {name}={value}" for name, value in one.fixed.items())
            found.append(f"{one.kind.name.lower()} {one.use.access.buffer}{steps}")
        else:
            found.append(str(one) if isinstance(one, StageEvent) else type(one).__name__)
    return found


# ---------------------------------------------------------------------------------------------- statements and loops


def test_statements_in_order():
    body = (
        making.comment("nothing"),
        writes(T),
        making.let(C, T + 0),
        BLOCK_BARRIER,
        reads(C),
        copies(T),
        making.commit(),
        making.wait(0),
        making.fence(FenceKind.ASYNC_PROXY),
        making.cluster_barrier(),
    )
    assert shown(trace(*body)) == ["write s", "Barrier", "read s", "write s", "Commit", "Wait", "Fence", "ClusterBarrier"]
    assert [len(traces(kernel(writes(T), threads=count))) for count in (1, 31, 32, 33, 96, 128)] == [1, 1, 1, 2, 3, 4]


def test_iterations_of_a_loop_in_order():
    assert shown(trace(loop(2, writes(T), BLOCK_BARRIER))) == ["write s i=0", "Barrier", "write s i=1", "Barrier"]
    assert shown(trace(loop(0, writes(T), BLOCK_BARRIER))) == []
    assert shown(trace(loop(N, writes(T), BLOCK_BARRIER), lengths={"N": 2})) == ["write s i=0", "Barrier", "write s i=1", "Barrier"]
    assert shown(trace(loop(N, writes(T), BLOCK_BARRIER), lengths={"N": 0})) == []
    nest = loop(2, loop(i + 1, writes(T), BLOCK_BARRIER, var=A))
    assert shown(trace(nest)) == ["write s i=0 a=0", "Barrier", "write s i=1 a=0", "Barrier", "write s i=1 a=1", "Barrier"]
    assert shown(trace(loop(3, writes(T + i * 128)))) == ["write s"], "taken as a whole"
    assert shown(trace(loop(2, loop(3, writes(T + A * 128), var=A), BLOCK_BARRIER))) == ["write s i=0", "Barrier", "write s i=1", "Barrier"]
    assert shown(trace(loop(4, making.comment("nothing")), writes(T))) == ["write s"]


def test_conditions_that_loops_decide():
    only = lambda condition: shown(trace(loop(3, writes(T, active=condition), BLOCK_BARRIER)))
    assert only(less(i, 1)) == ["write s i=0", "Barrier", "Barrier", "Barrier"]
    assert only(less(0, i)) == ["Barrier", "write s i=1", "Barrier", "write s i=2", "Barrier"]
    assert only(all_of((less(0, i), less(i, 2)))) == ["Barrier", "write s i=1", "Barrier", "Barrier"]
    assert only(all_of((less(0, i), less(T, 5)))) == ["Barrier", "write s i=1", "Barrier", "write s i=2", "Barrier"]
    assert len(only(less(Var("block", 0, 0) + i, 1))) == 6, "of the block it is taken to hold"
    bounded = loop(N, writes(T, active=less(i + 1, N)), BLOCK_BARRIER)
    assert shown(trace(bounded, lengths={"N": 2})) == ["write s i=0", "Barrier", "Barrier"]


def test_what_is_one_step():
    """A statement of a group that acts together is one; of single threads each access is, and each execution."""
    both = attrs.evolve(writes(T), accesses=(reads(T).accesses[0], writes(T).accesses[0]))
    steps = [one.step for one in trace(both, both) if isinstance(one, AccessEvent)]
    assert steps == [0, 1, 2, 3]
    together = attrs.evolve(both, spec=Move(1, 1)(RF, SH)(Warp))
    steps = [one.step for one in trace(together, together, writes(T))]
    assert steps == [0, 0, 1, 1, 2]
    steps = [one.step for one in trace(loop(2, together, BLOCK_BARRIER)) if isinstance(one, AccessEvent)]
    assert steps == [0, 0, 1, 1]
    never = attrs.evolve(writes(T, active=less(i, 0)), accesses=both.accesses)
    steps = [one.step for one in trace(loop(2, never, writes(T), BLOCK_BARRIER)) if isinstance(one, AccessEvent)]
    assert steps == [0, 1], "what is not performed is none"


def test_kinds_of_accesses_and_when_they_are_done():
    adds = attrs.evolve(writes(T), spec=AtomicAdd(1, 1)(RF, SH)(Thread))
    one = lambda statement: trace(statement)[0]
    assert [one(each).kind for each in (reads(T), writes(T), adds, copies(T))] == [Kind.READ, Kind.WRITE, Kind.ADD, Kind.WRITE]
    assert [one(each).in_flight for each in (reads(T), writes(T), adds, copies(T))] == [False, False, False, True]
    for completion in (WGMMA_GROUPS, TMA_STORES):
        assert one(reads(T, mechanism=completion)).in_flight and not one(writes(T, mechanism=completion)).in_flight
    assert not one(reads(T, mechanism=CP_ASYNC_GROUPS)).in_flight and one(writes(T, mechanism=CP_ASYNC_GROUPS)).in_flight
    assert one(copies(T)).mechanism is CP_ASYNC_GROUPS and one(reads(T)).mechanism is AT_ONCE
    assert one(reads(T, instruction=Engine())).by_engine and not one(reads(T)).by_engine
    assert one(reads(T, width=4)).bytes == 16 and one(reads(T)).bytes == 4


def test_stages_are_shifts_of_one_pattern():
    several = attrs.evolve(buffer("s", 128), tensor=attrs.evolve(buffer("s", 128).tensor, copies=3))
    events = [one for one in trace(loop(5, writes(T, copy=i % 3), BLOCK_BARRIER), buffers=(several,)) if isinstance(one, AccessEvent)]
    assert [one.footprint.shift_bytes for one in events] == [0, 512, 1024, 0, 512] and len({id(one.footprint) for one in events}) == 3
    assert len({id(one.footprint.pattern) for one in events}) == 1
    moved = [one for one in trace(loop(3, writes(T + i % 2 * 128), BLOCK_BARRIER)) if isinstance(one, AccessEvent)]
    assert [one.footprint.shift_bytes for one in moved] == [0, 0, 0] and moved[0].footprint is not moved[1].footprint
    own = [one for one in trace(loop(2, writes(T, copy=T // 64), BLOCK_BARRIER), buffers=(several,)) if isinstance(one, AccessEvent)]
    assert [one.footprint.shift_bytes for one in own] == [0, 0], "what threads say is in the pattern"
    both = [one for one in trace(loop(2, writes(T, copy=T // 64 + i), BLOCK_BARRIER), buffers=(several,)) if isinstance(one, AccessEvent)]
    assert [one.footprint.shift_bytes for one in both] == [0, 512]


def test_the_same_statement_at_two_places():
    again = writes(T)
    assert shown(trace(again, loop(2, again, BLOCK_BARRIER), again)) == [
        "write s",
        "write s i=0",
        "Barrier",
        "write s i=1",
        "Barrier",
        "write s",
    ]


def test_conditions_that_are_applied_to_threads():
    """Of what begins to hold later in a loop of unknown length nobody relies on."""

    def rows(*body, **options):
        return [one.footprint.pattern for one in trace(*body, **options) if isinstance(one, AccessEvent)]

    (pattern,) = rows(writes(T, active=less(T, 5)))
    assert pattern.valid.reshape(-1).sum() == 5
    (pattern,) = rows(writes(T))
    assert pattern.valid is None
    first, second = rows(loop(2, writes(T, active=less(T, i + 3)), BLOCK_BARRIER))
    assert first.valid.sum() == 3 and second.valid.sum() == 4
    late = rows(loop(N, writes(T, active=less(T, i + 3)), BLOCK_BARRIER), lengths={"N": 1})
    assert [one.valid for one in late] == [None]
    early = rows(loop(N, writes(T, active=less(i + 3, T)), BLOCK_BARRIER), lengths={"N": 1})
    assert [one.valid.sum() for one in early] == [124]
    (tested,) = rows(reads(T * 2, width=2, bound=as_expr(101)))
    assert tested.valid.sum() == 101
    (loose,) = rows(reads(T * 2, width=2, bound=N))
    assert loose.valid is None


def test_a_statement_without_a_rule():
    with pytest.raises(VerificationError, match="the race check does not handle the statement Around"):
        trace(attrs.make_class("Around", {"reason": attrs.field(default="")}, bases=(ir.Stmt,), frozen=True)())
    for one in (making.if_any_lane("r", ()), making.grid_dep_control(ir.GridDepAction.WAIT)):
        assert trace(one, writes(T)) and len(trace(one)) == 0


# ---------------------------------------------------------------------------------------------- roles


def test_roles_have_programs_of_their_own():
    """Each of its warps; the elected thread is one. What stands around roles all of them do."""
    found = traces(ringed([writes(T)], [BLOCK_BARRIER], before=(making.wait(0),), after=(making.commit(),)))
    assert [shown(one) for one in found] == [["Wait", "write s", "Commit"]] * 4 + [["Wait", "Barrier", "Commit"]]
    assert found[0] is found[3]
    roles = making.roles(
        (
            making.role("first", 0, 32, (BLOCK_BARRIER,)),
            making.role("second", 32, 80, (making.commit(),)),
            making.role("third", 128, 128, (), elected=True),
        )
    )
    found = traces(kernel(roles))
    assert [shown(one) for one in found] == [["Barrier"], *[["Commit"]] * 3, []]


# ---------------------------------------------------------------------------------------------- turns of rings


def test_turns_of_a_ring():
    consumer, *_, producer = traces(ringed([loop(2, *consume(J), var=J)], [loop(2, *produce(J), var=J)]))
    assert shown(consumer) == [
        "ring: the wait for fill 0 to be full", "read s j=0", "Barrier", "ring: the arrival for fill 0 to be empty",
        "ring: the wait for fill 1 to be full", "read s j=1", "Barrier", "ring: the arrival for fill 1 to be empty",
    ]  # fmt: skip
    assert shown(producer) == [
        "ring: the wait for fill 0 to be empty", "ring: the arrival for fill 0 to be full", "write s j=0",
        "ring: the wait for fill 1 to be empty", "ring: the arrival for fill 1 to be full", "write s j=1",
    ]  # fmt: skip
    assert [one.arrivals for one in consumer if isinstance(one, StageEvent)] == [None, (1, 1, 1, 1)] * 2
    assert [one.arrivals for one in producer if isinstance(one, StageEvent)] == [None, (1,) * 5] * 2
    loads = [one for one in producer if isinstance(one, AccessEvent)]
    assert [(one.fill.number, one.fill.ranks, one.fill.state, one.stage, one.in_flight, one.bytes) for one in loads] == [
        (0, (0,), StageState.FULL, 0, True, 512), (1, (0,), StageState.FULL, 1, True, 512),
    ]  # fmt: skip
    assert [one.stage for one in consumer if isinstance(one, AccessEvent)] == [0, 1]
    assert all(one.ranks == () and one.own == () for one in (*consumer, *producer) if isinstance(one, StageEvent))
    assert [one.footprint.shift_bytes for one in loads] == [0, 512]


def test_stages_of_a_turn():
    three = ring(3)
    for number in range(8):
        one, other = StageEvent(three, StageState.FULL, number), StageEvent(three, StageState.EMPTY, number, (1,))
        assert one.stage == other.stage == number % 3
        assert one.barrier == ("ring", StageState.FULL, number % 3) and other.barrier == ("ring", StageState.EMPTY, number % 3)
        assert one.phase == number // 3 + 1 and other.phase == number // 3
        assert one.way == ("ring", StageState.FULL, True) and other.way == ("ring", StageState.EMPTY, False)
    assert str(StageEvent(three, StageState.FULL, 4)) == "ring: the wait for fill 4 to be full"
    assert str(StageEvent(three, StageState.EMPTY, 4, (1,))) == "ring: the arrival for fill 4 to be empty"


def arrivals(active, *, around=None, symbols=(), **lengths):
    """The arrivals of a release, or those of each time."""
    body = [emptied(0, active=active)] if around is None else [loop(around, emptied(0, active=active), var=J)]
    found, tracer = traced(ringed(body, [], symbols=symbols), **lengths)
    return [one.arrivals for one in found[0]], tracer.loops.undecided


@pytest.mark.parametrize(
    ("active", "expected"),
    [
        (TRUE, [(32,) * 4]),
        (LANE_0, [(1,) * 4]),
        (equal(T, 0), [(1, 0, 0, 0)]),
        (equal(T, 127), [(0, 0, 0, 1)]),
        (less(T, 40), [(32, 8, 0, 0)]),
        (all_of((LANE_0, less(63, T))), [(0, 0, 1, 1)]),
        (less(T, 0), []),
    ],
)
def test_how_many_lanes_arrive(active, expected):
    assert arrivals(active) == (expected, {})


def test_arrivals_that_loops_decide():
    assert arrivals(less(J, 2), around=4)[0] == [(32,) * 4] * 2
    assert arrivals(all_of((LANE_0, less(J, 2))), around=4)[0] == [(1,) * 4] * 2
    assert arrivals(less(T, J * 10), around=3)[0] == [(10, 0, 0, 0), (20, 0, 0, 0)]
    assert arrivals(less(J + 1, N), around=N, symbols=(N,), N=3)[0] == [(32,) * 4] * 2
    assert arrivals(all_of((LANE_0, less(J, N))), around=3, symbols=(N,), N=2)[0] == [(1,) * 4] * 2
    twice = ringed([loop(N, emptied(0, active=less(J + 1, N)), var=J)], [], symbols=(N,))
    tracer = traced(twice, N=3)[1]
    assert [len(tracer.traces({N: count})[0]) for count in (0, 1, 2, 5, 3)] == [0, 0, 1, 4, 2], "of each length its own"


def test_arrivals_that_nobody_knows():
    found, undecided = arrivals(less(Var("block", 0, 7), 3))
    assert found == [] and set(undecided.values()) == set()
    program = ringed([full(0), reads(T), emptied(0, active=all_of((LANE_0, less(BLOCK, 3), less(N, M))))], [], grid=8, symbols=(N, M))
    found, tracer = traced(program)
    assert tracer.loops.undecided == {"s": "whether a stage is released depends on M, N, block"}


def test_numbers_of_turns():
    """Where a length is assumed it counts; what is not known is not decided."""
    body = [loop(N, full(J), var=J), full(N + 5), full(N % 2), full(N * 3)]
    found, tracer = traced(ringed(body, [], symbols=(N, M)), N=3)
    assert [one.number for one in found[0]] == [0, 1, 2, 8, 1, 9] and not tracer.loops.undecided
    found, tracer = traced(ringed([reads(T), full(M + 1)], [], symbols=(N, M)))
    assert [one.number for one in found[0] if isinstance(one, StageEvent)] == [0]
    assert tracer.loops.undecided == {"s": "the fill index M + 1 depends on M, which is known only at run time"}
    found, _ = traced(ringed([loop(3, full(J * 2 + 1), var=J)], []))
    assert [one.number for one in found[0]] == [1, 3, 5] and found[0][0] is found[1][0]
    same, _ = traced(ringed([loop(3, full(7), var=J)], []))
    assert same[0][0] is same[0][2], "one for all that are equal"


def test_turns_of_units_of_a_role():
    """In an order of units each warp has a turn of its own."""
    order = making.ring("order", 2, (), bytes=0, consumers=1, each=64)
    body = [
        making.acquire("order", StageState.EMPTY, T // 64 + 1),
        making.release("order", StageState.EMPTY, T // 64, active=LANE_0),
        full(3),
    ]
    found = traces(ringed(body, [], rings=(ring(), order)))
    assert [[one.number for one in trace] for trace in found] == [[1, 0, 3]] * 2 + [[2, 1, 3]] * 2 + [[]]
    assert found[0] is found[1] and found[2] is found[3] and found[0] is not found[2]
    assert all(one.own == () for trace in (found[0], found[2]) for one in trace)
    assert [one.arrivals for one in found[2]] == [None, (1,) * 4, None]
    assert [one.state for one in found[2]] == [StageState.EMPTY, StageState.EMPTY, StageState.FULL]


def test_how_often_loops_were_taken_before():
    length = ITERATION % 3 + 1
    roles = [[over_tiles(6, 1, loop(length, full(TAKEN + J), var=J), prior_iterations=TAKEN, increment=length)], []]
    found, _ = traced(ringed(*roles, grid=1))
    assert [one.number for one in found[0]] == list(range(12))
    one_each = [[over_tiles(4, 1, full(TAKEN), prior_iterations=TAKEN)], []]
    assert [one.number for one in traces(ringed(*one_each))[0]] == [0, 1, 2, 3]
    inner = Var("inner taken", 0, 99)
    nest = loop(3, loop(2, full(inner), var=J, prior_iterations=inner), var=A)
    assert [one.number for one in traces(ringed([nest], []))[0]] == list(range(6)), "in all its executions"


def test_a_turn_more_until_no_tile_is_left():
    """A block that takes tiles learns at one turn more that there is none: as far as the loop's body comes by then."""
    name = "tile_ring"
    body = (
        full(ITERATION, name),
        making.claim_tile(TILE, as_expr(3), name, ITERATION),
        making.exit_if_done(TILE, as_expr(3)),
        reads(T),
        WARP_BARRIER,
    )
    rings = (ring(), making.ring(name, 2, (), bytes=0, consumers=4, tiles=True))
    waits = lambda count: shown(traces(ringed([making.loop(ITERATION, as_expr(count), body)], [], rings=rings))[0])
    assert waits(1) == [f"{name}: the wait for fill 0 to be full", "read s turn=0", "Barrier", f"{name}: the wait for fill 1 to be full"]
    assert waits(2)[-2:] == ["Barrier", f"{name}: the wait for fill 2 to be full"]
    assert shown(trace(loop(2, reads(T), BLOCK_BARRIER))) == ["read s i=0", "Barrier", "read s i=1", "Barrier"], "no other loop does"


def test_tiles_of_different_lengths():
    """The tile and the turns of its loop are those of the piece that is followed."""
    length = TILE % 2 + 1
    loops = [[over_tiles(6, 2, loop(length, full(TAKEN + J), var=J), prior_iterations=TAKEN, increment=length)], []]
    program = ringed(*loops, stages=1, grid=grid_of(6, 2))
    for piece in (0, 1, 2):
        found, tracer = traced(program, SEQUENCE_PART=piece)
        (one, *_) = tracer.loops.varying_tiles.values()
        turns = sum(one.tile_at(piece, turn) % 2 + 1 for turn in range(one.iterations(piece)))
        assert [each.number for each in found[0]] == list(range(turns))


# ---------------------------------------------------------------------------------------------- clusters

PLACE = Var("place", 0, 1)
PAIR = making.block_cluster((2,), (PLACE,))


def clustered(consumer, producer, **options):
    return ringed(
        consumer, producer, cluster=PAIR, grid=8, shared_bytes=2000, before=(making.let(PLACE, Var("block", 0, 7) % 2),), **options
    )


def test_blocks_of_a_cluster_follow_each_other():
    """Each with its own shared memory, and arrays in global memory in the first of them alone."""
    found = traces(clustered([writes(T), reads(T, name="g")], [], buffers=(staged(2), G), rings=(ring(),)))
    words = [[one.partition(" place")[0] for one in shown(trace)] for trace in found]
    assert words == [["write s", "read g"]] * 4 + [[]] + [["write s"]] * 4 + [[]]
    assert [found[number][0].fixed for number in (0, 5)] == [{"place of the cluster": 0}, {"place of the cluster": 1}]
    assert [found[number][0].footprint.shift_bytes for number in (0, 5)] == [0, 2048]
    assert found[0][1].footprint.shift_bytes == 0


def test_loads_and_arrivals_in_other_blocks():
    both, other = making.block_set(0b11, 0), making.block_set(0b1, 1 - PLACE)
    from_g = lambda number, peers: attrs.evolve(
        load(number), accesses=(reads(0, name="g").accesses[0], *load(number).accesses), multicast=peers
    )
    multicast = [from_g(0, both), from_g(1, other), load(2)]
    releases = [emptied(0, to=(both,)), emptied(1, to=(other,)), emptied(2), emptied(3, to=(other, both)), full(4)]
    found = traces(clustered(releases, multicast, buffers=(staged(2), G)))
    assert [[one.ranks for one in found[number]] for number in (0, 5)] == [
        [(0, 1), (1,), (), (1, 0), ()], [(0, 1), (0,), (), (0, 1), ()],
    ]  # fmt: skip
    loads = [[(one.fill.number, one.fill.ranks, one.footprint.shift_bytes) for one in found[number] if one.fill] for number in (4, 9)]
    assert [len(found[number]) for number in (4, 9)] == [6, 4], "what is read of global memory is followed in the first block alone"
    assert loads[0] == [(0, (0,), 0), (0, (1,), 2048), (1, (1,), 2048 + 512), (2, (0,), 0)]
    assert loads[1] == [(0, (0,), 0), (0, (1,), 2048), (1, (0,), 512), (2, (1,), 2048)]


# ---------------------------------------------------------------------------------------------- what is under way


def test_what_is_under_way():
    copy, other, product = (trace(one)[0] for one in (copies(T), copies(T + 128), reads(T, mechanism=WGMMA_GROUPS)))
    flight = InFlight(lambda mechanism: mechanism is CP_ASYNC_GROUPS)
    for event, expected in (
        (copy, [copy]),
        (product, [copy]),
        (making.wait(0), [copy]),
        (making.commit(WGMMA_GROUPS), [copy]),
        (making.commit(), [copy]),
        (other, [copy, other]),
        (making.wait(1), [copy, other]),
        (making.wait(0, mechanism=WGMMA_GROUPS), [copy, other]),
        (making.wait(0), [other]),
        (making.commit(), [other]),
        (copy, [other, copy]),
        (making.commit(), [other, copy]),
        (making.wait(2), [other, copy]),
        (making.wait(1), [copy]),
        (WARP_BARRIER, [copy]),
        (trace(reads(T))[0], [copy]),
        (making.wait(0), []),
    ):
        flight.follow(event)
        assert list(flight.accesses) == expected, event


# ---------------------------------------------------------------------------------------------- accesses, in parts


def sites(*body, ordered=True, **options):
    """The accesses of a kernel, as traces need them."""
    options = {"symbols": (N, M), "buffers": (buffer("s", 4096), G), **options}
    _, tracer = traced(kernel(*body, **options), **({"N": 5} if any(isinstance(one, For) for one in body) else {}))
    found = [tracer._site(use) for use in tracer.access_trace.uses]
    return [
        (
            tuple(one.var.name for one in site.loops),
            set(site.guards),
            [(condition, elements.tolist()) for condition, elements in site.tests],
            set(site.scalar),
            site.needed,
            site.stage,
            site.copy,
            site.stride,
            site.stages,
        )
        for site in found
    ]


BYTES = 4096 * 4
STAYS = less(Var("block", 0, 9), 1)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ((writes(T),), ((), set(), [], set(), (), 0, 0, BYTES, 1)),
        ((writes(T, name="g"),), ((), set(), [], set(), (), 0, 0, 0, 1)),
        ((writes(T, active=less(T, 5)),), ((), {less(T, 5)}, [], set(), (), 0, 0, BYTES, 1)),
        ((writes(T, active=all_of((less(T, 5), STAYS))),), ((), {less(T, 5)}, [], {STAYS}, (), 0, 0, BYTES, 1)),
        ((loop(4, writes(T + i)),), (("i",), set(), [], set(), (), 0, 0, BYTES, 1)),
        ((loop(4, writes(T, copy=i % 2)),), (("i",), set(), [], set(), (), 0, i % 2, BYTES, 1)),
        ((loop(4, writes(T), BLOCK_BARRIER),), ((), set(), [], set(), (), 0, 0, BYTES, 1)),
        ((loop(4, writes(T + i), BLOCK_BARRIER),), ((), set(), [], set(), ("i",), 0, 0, BYTES, 1)),
        ((loop(4, writes(T, copy=i % 2 + 1), BLOCK_BARRIER),), ((), set(), [], set(), (), i % 2 + 1, 0, BYTES, 1)),
        ((loop(4, writes(T, copy=i % 2 + T // 64), BLOCK_BARRIER),), ((), set(), [], set(), (), i % 2, T // 64, BYTES, 1)),
        ((loop(4, writes(T, active=less(i, 2)), BLOCK_BARRIER),), ((), set(), [], {less(i, 2)}, (), 0, 0, BYTES, 1)),
        ((loop(4, writes(T, active=less(T, i)), BLOCK_BARRIER),), ((), {less(T, i)}, [], set(), ("i",), 0, 0, BYTES, 1)),
        ((loop(4, loop(3, writes(T + C + i, active=less(C, i)), var=C), BLOCK_BARRIER),), (("c",), {less(C, i)}, [], set(), ("i",), 0, 0, BYTES, 1)),
        ((writes(T, width=3, bound=N),), ((), set(), [], set(), (), 0, 0, BYTES, 1)),
        ((writes(T, width=2, bound=as_expr(100)),), ((), set(), [(less(T, 100), [0]), (less(T + 1, 100), [1])], set(), (), 0, 0, BYTES, 1)),
        ((loop(4, writes(T, width=2, bound=100 + i), BLOCK_BARRIER),), ((), set(), [(less(T, 100 + i), [0]), (less(T + 1, 100 + i), [1])], set(), ("i",), 0, 0, BYTES, 1)),
        ((loop(N, writes(T, active=less(i, M)), BLOCK_BARRIER),), ((), set(), [], {less(i, M)}, (), 0, 0, BYTES, 1)),
        ((loop(N, writes(T, active=less(M, i)), BLOCK_BARRIER),), ((), set(), [], set(), (), 0, 0, BYTES, 1)),
    ],
)  # fmt: skip
def test_what_traces_know_of_an_access(body, expected):
    """Loops taken as a whole, conditions by who decides them, and what a stage shifts."""
    (found,) = sites(*body)
    stage, copy = expected[5:7]
    assert found == (*expected[:5], as_expr(stage), as_expr(copy), *expected[7:])


@pytest.mark.parametrize("stages", [2, 3])
def test_what_traces_know_of_a_stage_of_a_ring(stages):
    """Its copy is a shift, whatever it depends on; a stage has its bytes."""
    loops = making.loop(J, as_expr(6), consume(J, stages)), making.loop(J, as_expr(6), produce(J, stages))
    _, tracer = traced(ringed((loops[0],), (loops[1],), stages=stages))
    for use in tracer.access_trace.uses:
        site = tracer._site(use)
        assert (site.stage, site.copy, site.stride, site.stages) == (J % stages, as_expr(0), 128 * 4, stages)
        assert (site.kind, site.in_flight) == ((Kind.WRITE, True) if use.statement.ring else (Kind.READ, False))


def test_tiles_of_different_lengths_without_rings():
    """At each turn of the piece it is known how many turns the tile has, and how many tiles there are."""
    length = TILE % 2 + 1
    program = kernel(over_tiles(6, 2, loop(length, writes(T), BLOCK_BARRIER, var=J), BLOCK_BARRIER), grid=grid_of(6, 2))
    _, tracer = traced(program, SEQUENCE_PART=0)
    (one,) = tracer.loops.varying_tiles.values()
    for piece in range(one.part_count):
        found, _ = traced(program, SEQUENCE_PART=piece)
        expected = []
        for turn in range(one.iterations(piece)):
            long = one.tile_at(piece, turn)
            here = {"turn": turn, TILE_LENGTH.name: long, BLOCK_TILES.name: one.iterations(piece)}
            expected += [{**here, "j": number} for number in range(long)]
        touches = [event for event in found[0] if isinstance(event, AccessEvent)]
        said = [dict(each.fixed) for each in touches]
        assert said == expected and len(found[0]) == 2 * len(expected) + one.iterations(piece)


@pytest.mark.parametrize("step", [1, 2, 3])
def test_arrays_in_turns_of_groups_that_take_turns(step):
    """Where a group takes every so-many-th tile, other turns are other places of an array, as far apart as it is long there."""
    body = [over_tiles(12, 2, writes(T + TILE * 128, name="g"), BLOCK_BARRIER, step=step)]
    program = kernel(*body, grid=grid_of(12, 2), buffers=(buffer("s", 4096), G))
    _, tracer = traced(program)
    site = tracer._site(next(use for use in tracer.access_trace.uses if use.access.buffer == "g"))
    if step == 1:
        assert (site.stage, site.stride) == (as_expr(0), 0)
    else:
        assert (site.stage, site.stride) == (ITERATION, tracer.places.local_bytes(G)) and site.stride >= 128 * 4


def test_a_load_to_a_place_that_the_block_says():
    """Where in its cluster a block is decides where in the others its part lies."""
    both = making.block_set(0b11, 0)
    target = writes(PLACE * 64, name="s", width=64).accesses[0]
    part = attrs.evolve(load(0), accesses=(reads(0, name="g").accesses[0], target), multicast=both)
    found = traces(clustered([full(0)], [part], buffers=(staged(2), G)))
    loads = [
        [(one.footprint.pattern.bases[0].tolist(), one.footprint.shift_bytes) for one in found[number] if one.fill] for number in (4, 9)
    ]
    assert loads == [[([[0]], 0), ([[0]], 2048)], [([[256]], 0), ([[256]], 2048)]]
