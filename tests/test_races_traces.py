"""The trace of each agent in hand-made kernels: events of statements, loops and roles, fills of rings, pending accesses."""

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
from fireiron.check.races.traces import AccessEvent, Kind, PendingAccesses, StageEvent, Tracer
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
    footprints = Footprints(access_trace, local_coordinates(access_trace))
    loops = Loops(access_trace, footprints, access_trace.uses)
    tracer = Tracer(access_trace, footprints, loops)
    return tracer.traces({{"N": N, "M": M, "SEQUENCE_PART": SEQUENCE_PART}[name]: length for name, length in lengths.items()}), tracer


def traces(program, **lengths):
    return traced(program, **lengths)[0]


def trace(*body, lengths=None, **options):
    """The trace of a warp of a kernel without roles."""
    all_traces = traces(kernel(*body, **{"symbols": (N, M), "buffers": (buffer("s", 4096), G), **options}), **(lengths or {}))
    assert all(other is all_traces[0] for other in all_traces)
    return list(all_traces[0])


def shown(events):
    """Events as short texts: accesses by kind with their loop variables, stage events by their `str`."""
    texts = []
    for event in events:
        if isinstance(event, AccessEvent):
            steps = "".join(f" {name}={value}" for name, value in event.fixed.items())
            texts.append(f"{event.kind.name.lower()} {event.use.access.buffer}{steps}")
        else:
            texts.append(str(event) if isinstance(event, StageEvent) else type(event).__name__)
    return texts


# ---------------------------------------------------------------------------------------------- statements and loops


def test_events_of_statements_in_order():
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


def test_events_of_iterations_in_order():
    assert shown(trace(loop(2, writes(T), BLOCK_BARRIER))) == ["write s i=0", "Barrier", "write s i=1", "Barrier"]
    assert shown(trace(loop(0, writes(T), BLOCK_BARRIER))) == []
    assert shown(trace(loop(N, writes(T), BLOCK_BARRIER), lengths={"N": 2})) == ["write s i=0", "Barrier", "write s i=1", "Barrier"]
    assert shown(trace(loop(N, writes(T), BLOCK_BARRIER), lengths={"N": 0})) == []
    nest = loop(2, loop(i + 1, writes(T), BLOCK_BARRIER, var=A))
    assert shown(trace(nest)) == ["write s i=0 a=0", "Barrier", "write s i=1 a=0", "Barrier", "write s i=1 a=1", "Barrier"]
    assert shown(trace(loop(3, writes(T + i * 128)))) == ["write s"], "vectorized"
    assert shown(trace(loop(2, loop(3, writes(T + A * 128), var=A), BLOCK_BARRIER))) == ["write s i=0", "Barrier", "write s i=1", "Barrier"]
    assert shown(trace(loop(4, making.comment("nothing")), writes(T))) == ["write s"]


def test_conditions_on_loop_variables():
    only = lambda condition: shown(trace(loop(3, writes(T, active=condition), BLOCK_BARRIER)))
    assert only(less(i, 1)) == ["write s i=0", "Barrier", "Barrier", "Barrier"]
    assert only(less(0, i)) == ["Barrier", "write s i=1", "Barrier", "write s i=2", "Barrier"]
    assert only(all_of((less(0, i), less(i, 2)))) == ["Barrier", "write s i=1", "Barrier", "Barrier"]
    assert only(all_of((less(0, i), less(T, 5)))) == ["Barrier", "write s i=1", "Barrier", "write s i=2", "Barrier"]
    assert len(only(less(Var("block", 0, 0) + i, 1))) == 6, "a condition on the block is assumed to hold"
    bounded = loop(N, writes(T, active=less(i + 1, N)), BLOCK_BARRIER)
    assert shown(trace(bounded, lengths={"N": 2})) == ["write s i=0", "Barrier", "Barrier"]


def test_steps_of_accesses():
    """A statement of a collective group is one step; of single threads each access is a step, in each execution."""
    both = attrs.evolve(writes(T), accesses=(reads(T).accesses[0], writes(T).accesses[0]))
    steps = [event.step for event in trace(both, both) if isinstance(event, AccessEvent)]
    assert steps == [0, 1, 2, 3]
    together = attrs.evolve(both, spec=Move(1, 1)(RF, SH)(Warp))
    steps = [event.step for event in trace(together, together, writes(T))]
    assert steps == [0, 0, 1, 1, 2]
    steps = [event.step for event in trace(loop(2, together, BLOCK_BARRIER)) if isinstance(event, AccessEvent)]
    assert steps == [0, 0, 1, 1]
    never = attrs.evolve(writes(T, active=less(i, 0)), accesses=both.accesses)
    steps = [event.step for event in trace(loop(2, never, writes(T), BLOCK_BARRIER)) if isinstance(event, AccessEvent)]
    assert steps == [0, 1], "an inactive statement has no step"


def test_kinds_and_completion_of_accesses():
    adds = attrs.evolve(writes(T), spec=AtomicAdd(1, 1)(RF, SH)(Thread))
    first_event = lambda statement: trace(statement)[0]
    assert [first_event(stmt).kind for stmt in (reads(T), writes(T), adds, copies(T))] == [Kind.READ, Kind.WRITE, Kind.ADD, Kind.WRITE]
    assert [first_event(stmt).in_flight for stmt in (reads(T), writes(T), adds, copies(T))] == [False, False, False, True]
    for completion in (WGMMA_GROUPS, TMA_STORES):
        assert first_event(reads(T, mechanism=completion)).in_flight and not first_event(writes(T, mechanism=completion)).in_flight
    assert not first_event(reads(T, mechanism=CP_ASYNC_GROUPS)).in_flight and first_event(writes(T, mechanism=CP_ASYNC_GROUPS)).in_flight
    assert first_event(copies(T)).mechanism is CP_ASYNC_GROUPS and first_event(reads(T)).mechanism is AT_ONCE
    assert first_event(reads(T, instruction=Engine())).by_engine and not first_event(reads(T)).by_engine
    assert first_event(reads(T, width=4)).bytes == 16 and first_event(reads(T)).bytes == 4


def test_stages_shift_one_pattern():
    staged_buffer = attrs.evolve(buffer("s", 128), tensor=attrs.evolve(buffer("s", 128).tensor, copies=3))
    events = [
        event for event in trace(loop(5, writes(T, copy=i % 3), BLOCK_BARRIER), buffers=(staged_buffer,)) if isinstance(event, AccessEvent)
    ]
    assert [event.footprint.shift_bytes for event in events] == [0, 512, 1024, 0, 512] and len(
        {id(event.footprint) for event in events}
    ) == 3
    assert len({id(event.footprint.pattern) for event in events}) == 1
    moved = [event for event in trace(loop(3, writes(T + i % 2 * 128), BLOCK_BARRIER)) if isinstance(event, AccessEvent)]
    assert [event.footprint.shift_bytes for event in moved] == [0, 0, 0] and moved[0].footprint is not moved[1].footprint
    by_thread = [
        event
        for event in trace(loop(2, writes(T, copy=T // 64), BLOCK_BARRIER), buffers=(staged_buffer,))
        if isinstance(event, AccessEvent)
    ]
    assert [event.footprint.shift_bytes for event in by_thread] == [0, 0], "a stage that depends on the thread is in the pattern"
    both = [
        event
        for event in trace(loop(2, writes(T, copy=T // 64 + i), BLOCK_BARRIER), buffers=(staged_buffer,))
        if isinstance(event, AccessEvent)
    ]
    assert [event.footprint.shift_bytes for event in both] == [0, 512]


def test_one_statement_at_two_positions():
    again = writes(T)
    assert shown(trace(again, loop(2, again, BLOCK_BARRIER), again)) == [
        "write s",
        "write s i=0",
        "Barrier",
        "write s i=1",
        "Barrier",
        "write s",
    ]


def test_conditions_applied_to_threads():
    """Conditions that begin to hold later in a loop of unknown length are not applied."""

    def rows(*body, **options):
        return [event.footprint.pattern for event in trace(*body, **options) if isinstance(event, AccessEvent)]

    (pattern,) = rows(writes(T, active=less(T, 5)))
    assert pattern.valid.reshape(-1).sum() == 5
    (pattern,) = rows(writes(T))
    assert pattern.valid is None
    first, second = rows(loop(2, writes(T, active=less(T, i + 3)), BLOCK_BARRIER))
    assert first.valid.sum() == 3 and second.valid.sum() == 4
    later = rows(loop(N, writes(T, active=less(T, i + 3)), BLOCK_BARRIER), lengths={"N": 1})
    assert [event.valid for event in later] == [None]
    early = rows(loop(N, writes(T, active=less(i + 3, T)), BLOCK_BARRIER), lengths={"N": 1})
    assert [event.valid.sum() for event in early] == [124]
    (tested,) = rows(reads(T * 2, width=2, bound=as_expr(101)))
    assert tested.valid.sum() == 101
    (loose,) = rows(reads(T * 2, width=2, bound=N))
    assert loose.valid is None


def test_unknown_statements_are_rejected():
    with pytest.raises(VerificationError, match="the race check does not handle the statement Around"):
        trace(attrs.make_class("Around", {"reason": attrs.field(default="")}, bases=(ir.Stmt,), frozen=True)())
    for stmt in (making.if_any_lane("r", ()), making.grid_dep_control(ir.GridDepAction.WAIT)):
        assert trace(stmt, writes(T)) and len(trace(stmt)) == 0


# ---------------------------------------------------------------------------------------------- roles


def test_traces_of_roles():
    """One trace per warp, and one for the elected thread. All warps execute the statements around the roles."""
    by_warp = traces(ringed([writes(T)], [BLOCK_BARRIER], before=(making.wait(0),), after=(making.commit(),)))
    assert [shown(warp_trace) for warp_trace in by_warp] == [["Wait", "write s", "Commit"]] * 4 + [["Wait", "Barrier", "Commit"]]
    assert by_warp[0] is by_warp[3]
    roles = making.roles(
        (
            making.role("first", 0, 32, (BLOCK_BARRIER,)),
            making.role("second", 32, 80, (making.commit(),)),
            making.role("third", 128, 128, (), elected=True),
        )
    )
    by_warp = traces(kernel(roles))
    assert [shown(warp_trace) for warp_trace in by_warp] == [["Barrier"], *[["Commit"]] * 3, []]


# ---------------------------------------------------------------------------------------------- fills of rings


def test_events_of_a_ring():
    consumer, *_, producer = traces(ringed([loop(2, *consume(J), var=J)], [loop(2, *produce(J), var=J)]))
    assert shown(consumer) == [
        "ring: the wait for fill 0 to be full", "read s j=0", "Fence", "Barrier", "ring: the arrival for fill 0 to be empty",
        "ring: the wait for fill 1 to be full", "read s j=1", "Fence", "Barrier", "ring: the arrival for fill 1 to be empty",
    ]  # fmt: skip
    assert shown(producer) == [
        "ring: the wait for fill 0 to be empty", "ring: the arrival for fill 0 to be full", "write s j=0",
        "ring: the wait for fill 1 to be empty", "ring: the arrival for fill 1 to be full", "write s j=1",
    ]  # fmt: skip
    assert [event.arrivals for event in consumer if isinstance(event, StageEvent)] == [None, (1, 1, 1, 1)] * 2
    assert [event.arrivals for event in producer if isinstance(event, StageEvent)] == [None, (1,) * 5] * 2
    loads = [event for event in producer if isinstance(event, AccessEvent)]
    assert [(event.fill.number, event.fill.ranks, event.fill.state, event.stage, event.in_flight, event.bytes) for event in loads] == [
        (0, (0,), StageState.FULL, 0, True, 512), (1, (0,), StageState.FULL, 1, True, 512),
    ]  # fmt: skip
    assert [event.stage for event in consumer if isinstance(event, AccessEvent)] == [0, 1]
    assert all(event.ranks == () and event.own == () for event in (*consumer, *producer) if isinstance(event, StageEvent))
    assert [event.footprint.shift_bytes for event in loads] == [0, 512]


def test_stage_and_phase_of_a_fill():
    three = ring(3)
    for number in range(8):
        acquire, release = StageEvent(three, StageState.FULL, number), StageEvent(three, StageState.EMPTY, number, (1,))
        assert acquire.stage == release.stage == number % 3
        assert acquire.barrier == ("ring", StageState.FULL, number % 3) and release.barrier == ("ring", StageState.EMPTY, number % 3)
        assert acquire.phase == number // 3 + 1 and release.phase == number // 3
        assert acquire.fill_sequence == ("ring", StageState.FULL, True) and release.fill_sequence == ("ring", StageState.EMPTY, False)
    assert str(StageEvent(three, StageState.FULL, 4)) == "ring: the wait for fill 4 to be full"
    assert str(StageEvent(three, StageState.EMPTY, 4, (1,))) == "ring: the arrival for fill 4 to be empty"


def arrivals(active, *, around=None, symbols=(), **lengths):
    """The arrivals of each execution of a release."""
    body = [emptied(0, active=active)] if around is None else [loop(around, emptied(0, active=active), var=J)]
    by_warp, tracer = traced(ringed(body, [], symbols=symbols), **lengths)
    return [event.arrivals for event in by_warp[0]], tracer.loops.undecided


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
def test_arrivals_by_warp(active, expected):
    assert arrivals(active) == (expected, {})


def test_arrivals_under_conditions_on_loops():
    assert arrivals(less(J, 2), around=4)[0] == [(32,) * 4] * 2
    assert arrivals(all_of((LANE_0, less(J, 2))), around=4)[0] == [(1,) * 4] * 2
    assert arrivals(less(T, J * 10), around=3)[0] == [(10, 0, 0, 0), (20, 0, 0, 0)]
    assert arrivals(less(J + 1, N), around=N, symbols=(N,), N=3)[0] == [(32,) * 4] * 2
    assert arrivals(all_of((LANE_0, less(J, N))), around=3, symbols=(N,), N=2)[0] == [(1,) * 4] * 2
    twice = ringed([loop(N, emptied(0, active=less(J + 1, N)), var=J)], [], symbols=(N,))
    tracer = traced(twice, N=3)[1]
    assert [len(tracer.traces({N: count})[0]) for count in (0, 1, 2, 5, 3)] == [0, 0, 1, 4, 2], "traces by length"


def test_unknown_arrivals_are_undecided():
    by_warp, undecided = arrivals(less(Var("block", 0, 7), 3))
    assert by_warp == [] and set(undecided.values()) == set()
    program = ringed([full(0), reads(T), emptied(0, active=all_of((LANE_0, less(BLOCK, 3), less(N, M))))], [], grid=8, symbols=(N, M))
    by_warp, tracer = traced(program)
    assert tracer.loops.undecided == {"s": "whether a stage is released depends on M, N, block"}


def test_fill_indices():
    """A fill index may depend on an assumed length; an unknown one is undecided."""
    body = [loop(N, full(J), var=J), full(N + 5), full(N % 2), full(N * 3)]
    by_warp, tracer = traced(ringed(body, [], symbols=(N, M)), N=3)
    assert [event.number for event in by_warp[0]] == [0, 1, 2, 8, 1, 9] and not tracer.loops.undecided
    by_warp, tracer = traced(ringed([reads(T), full(M + 1)], [], symbols=(N, M)))
    assert [event.number for event in by_warp[0] if isinstance(event, StageEvent)] == [0]
    assert tracer.loops.undecided == {"s": "the fill index M + 1 depends on M, which is known only at run time"}
    by_warp, _ = traced(ringed([loop(3, full(J * 2 + 1), var=J)], []))
    assert [event.number for event in by_warp[0]] == [1, 3, 5] and by_warp[0][0] is by_warp[1][0]
    same, _ = traced(ringed([loop(3, full(7), var=J)], []))
    assert same[0][0] is same[0][2], "equal events are one object"


def test_fill_indices_by_unit_of_a_role():
    """In the ring of an ordered MMA the fill index differs by unit."""
    order = making.ring("order", 2, (), bytes=0, consumers=1, each=64)
    body = [
        making.acquire("order", StageState.EMPTY, T // 64 + 1),
        making.release("order", StageState.EMPTY, T // 64, active=LANE_0),
        full(3),
    ]
    by_warp = traces(ringed(body, [], rings=(ring(), order)))
    assert [[event.number for event in trace] for trace in by_warp] == [[1, 0, 3]] * 2 + [[2, 1, 3]] * 2 + [[]]
    assert by_warp[0] is by_warp[1] and by_warp[2] is by_warp[3] and by_warp[0] is not by_warp[2]
    assert all(event.own == () for trace in (by_warp[0], by_warp[2]) for event in trace)
    assert [event.arrivals for event in by_warp[2]] == [None, (1,) * 4, None]
    assert [event.state for event in by_warp[2]] == [StageState.EMPTY, StageState.EMPTY, StageState.FULL]


def test_prior_iterations_of_loops():
    length = ITERATION % 3 + 1
    roles = [[over_tiles(6, 1, loop(length, full(TAKEN + J), var=J), prior_iterations=TAKEN, increment=length)], []]
    by_warp, _ = traced(ringed(*roles, grid=1))
    assert [event.number for event in by_warp[0]] == list(range(12))
    one_each = [[over_tiles(4, 1, full(TAKEN), prior_iterations=TAKEN)], []]
    assert [event.number for event in traces(ringed(*one_each))[0]] == [0, 1, 2, 3]
    inner = Var("inner taken", 0, 99)
    nest = loop(3, loop(2, full(inner), var=J, prior_iterations=inner), var=A)
    assert [event.number for event in traces(ringed([nest], []))[0]] == list(range(6)), "over all executions of the inner loop"


def test_dynamic_tiles_have_one_more_fill():
    """A block that claims tiles needs one more fill to learn that no tile is left; the trace includes that wait."""
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
    assert shown(trace(loop(2, reads(T), BLOCK_BARRIER))) == ["read s i=0", "Barrier", "read s i=1", "Barrier"], (
        "other loops have no such event"
    )


def test_varying_trip_counts():
    """The tiles and the trip counts are those of the analyzed part of the sequence."""
    length = TILE % 2 + 1
    loops = [[over_tiles(6, 2, loop(length, full(TAKEN + J), var=J), prior_iterations=TAKEN, increment=length)], []]
    program = ringed(*loops, stages=1, grid=grid_of(6, 2))
    for piece in (0, 1, 2):
        by_warp, tracer = traced(program, SEQUENCE_PART=piece)
        (varying, *_) = tracer.loops.varying_tiles.values()
        fills = sum(varying.tile_at(piece, iteration) % 2 + 1 for iteration in range(varying.iterations(piece)))
        assert [event.number for event in by_warp[0]] == list(range(fills))


# ---------------------------------------------------------------------------------------------- clusters

PLACE = Var("place", 0, 1)
PAIR = making.block_cluster((2,), (PLACE,))


def clustered(consumer, producer, **options):
    return ringed(
        consumer, producer, cluster=PAIR, grid=8, shared_bytes=2000, before=(making.let(PLACE, Var("block", 0, 7) % 2),), **options
    )


def test_traces_of_the_blocks_of_a_cluster():
    """Each block has its shared memory; accesses to global memory are in the first block's traces only."""
    by_warp = traces(clustered([writes(T), reads(T, name="g")], [], buffers=(staged(2), G), rings=(ring(),)))
    words = [[text.partition(" place")[0] for text in shown(trace)] for trace in by_warp]
    assert words == [["write s", "read g"]] * 4 + [[]] + [["write s"]] * 4 + [[]]
    assert [by_warp[number][0].fixed for number in (0, 5)] == [{"place of the cluster": 0}, {"place of the cluster": 1}]
    assert [by_warp[number][0].footprint.shift_bytes for number in (0, 5)] == [0, 2048]
    assert by_warp[0][1].footprint.shift_bytes == 0


def test_loads_and_arrivals_in_other_blocks():
    both, other = making.block_set(0b11, 0), making.block_set(0b1, 1 - PLACE)
    from_g = lambda number, peers: attrs.evolve(
        load(number), accesses=(reads(0, name="g").accesses[0], *load(number).accesses), multicast=peers
    )
    multicast = [from_g(0, both), from_g(1, other), load(2)]
    releases = [emptied(0, to=(both,)), emptied(1, to=(other,)), emptied(2), emptied(3, to=(other, both)), full(4)]
    by_warp = traces(clustered(releases, multicast, buffers=(staged(2), G)))
    assert [[event.ranks for event in by_warp[number]] for number in (0, 5)] == [
        [(0, 1), (1,), (), (1, 0), ()], [(0, 1), (0,), (), (0, 1), ()],
    ]  # fmt: skip
    loads = [
        [(event.fill.number, event.fill.ranks, event.footprint.shift_bytes) for event in by_warp[number] if event.fill] for number in (4, 9)
    ]
    assert [len(by_warp[number]) for number in (4, 9)] == [6, 4], "reads of global memory are in the traces of the first block only"
    assert loads[0] == [(0, (0,), 0), (0, (1,), 2048), (1, (1,), 2048 + 512), (2, (0,), 0)]
    assert loads[1] == [(0, (0,), 0), (0, (1,), 2048), (1, (0,), 512), (2, (1,), 2048)]


# ---------------------------------------------------------------------------------------------- pending accesses


def test_pending_accesses():
    copy, other, product = (trace(stmt)[0] for stmt in (copies(T), copies(T + 128), reads(T, mechanism=WGMMA_GROUPS)))
    pending = PendingAccesses(lambda mechanism: mechanism is CP_ASYNC_GROUPS)
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
        pending.follow(event)
        assert list(pending.accesses) == expected, event


# ---------------------------------------------------------------------------------------------- parts of an access


def sites(*body, ordered=True, **options):
    """The accesses of a kernel, split into the parts that traces use."""
    options = {"symbols": (N, M), "buffers": (buffer("s", 4096), G), **options}
    _, tracer = traced(kernel(*body, **options), **({"N": 5} if any(isinstance(stmt, For) for stmt in body) else {}))
    all_sites = [tracer._site(use) for use in tracer.access_trace.uses]
    return [
        (
            tuple(stmt.var.name for stmt in site.loops),
            set(site.guards),
            [(condition, elements.tolist()) for condition, elements in site.tests],
            set(site.scalar),
            site.needed,
            site.stage,
            site.copy,
            site.stride,
            site.stages,
        )
        for site in all_sites
    ]


BYTES = 4096 * 4
ON_BLOCK = less(Var("block", 0, 9), 1)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ((writes(T),), ((), set(), [], set(), (), 0, 0, BYTES, 1)),
        ((writes(T, name="g"),), ((), set(), [], set(), (), 0, 0, 0, 1)),
        ((writes(T, active=less(T, 5)),), ((), {less(T, 5)}, [], set(), (), 0, 0, BYTES, 1)),
        ((writes(T, active=all_of((less(T, 5), ON_BLOCK))),), ((), {less(T, 5)}, [], {ON_BLOCK}, (), 0, 0, BYTES, 1)),
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
def test_parts_of_an_access(body, expected):
    """Vectorized loops, conditions by the variables that decide them, and the shift by stage."""
    (site,) = sites(*body)
    stage, copy = expected[5:7]
    assert site == (*expected[:5], as_expr(stage), as_expr(copy), *expected[7:])


@pytest.mark.parametrize("stages", [2, 3])
def test_parts_of_a_ring_access(stages):
    """The stage of a ring is always a shift by the bytes of a stage."""
    loops = making.loop(J, as_expr(6), consume(J, stages)), making.loop(J, as_expr(6), produce(J, stages))
    _, tracer = traced(ringed((loops[0],), (loops[1],), stages=stages))
    for use in tracer.access_trace.uses:
        site = tracer._site(use)
        assert (site.stage, site.copy, site.stride, site.stages) == (J % stages, as_expr(0), 128 * 4, stages)
        assert (site.kind, site.in_flight) == ((Kind.WRITE, True) if use.statement.ring else (Kind.READ, False))


def test_varying_trip_counts_without_rings():
    """In each iteration the trip count of the tile and the number of tiles of the block are fixed."""
    length = TILE % 2 + 1
    program = kernel(over_tiles(6, 2, loop(length, writes(T), BLOCK_BARRIER, var=J), BLOCK_BARRIER), grid=grid_of(6, 2))
    _, tracer = traced(program, SEQUENCE_PART=0)
    (varying,) = tracer.loops.varying_tiles.values()
    for piece in range(varying.part_count):
        by_warp, _ = traced(program, SEQUENCE_PART=piece)
        expected = []
        for iteration in range(varying.iterations(piece)):
            long = varying.tile_at(piece, iteration)
            values = {"turn": iteration, TILE_LENGTH.name: long, BLOCK_TILES.name: varying.iterations(piece)}
            expected += [{**values, "j": number} for number in range(long)]
        touches = [event for event in by_warp[0] if isinstance(event, AccessEvent)]
        fixed = [dict(access.fixed) for access in touches]
        assert fixed == expected and len(by_warp[0]) == 2 * len(expected) + varying.iterations(piece)


@pytest.mark.parametrize("step", [1, 2, 3])
def test_arrays_of_alternating_warpgroups(step):
    """If a warpgroup computes every `step`-th tile, each iteration accesses another part of the array, shifted by its local bytes."""
    body = [over_tiles(12, 2, writes(T + TILE * 128, name="g"), BLOCK_BARRIER, step=step)]
    program = kernel(*body, grid=grid_of(12, 2), buffers=(buffer("s", 4096), G))
    _, tracer = traced(program)
    site = tracer._site(next(use for use in tracer.access_trace.uses if use.access.buffer == "g"))
    if step == 1:
        assert (site.stage, site.stride) == (as_expr(0), 0)
    else:
        assert (site.stage, site.stride) == (ITERATION, tracer.footprints.local_bytes(G)) and site.stride >= 128 * 4


def test_multicast_destination_depends_on_the_block():
    """The position of a block in its cluster determines the destination of its part in the other blocks."""
    both = making.block_set(0b11, 0)
    target = writes(PLACE * 64, name="s", width=64).accesses[0]
    part = attrs.evolve(load(0), accesses=(reads(0, name="g").accesses[0], target), multicast=both)
    by_warp = traces(clustered([full(0)], [part], buffers=(staged(2), G)))
    loads = [
        [(event.footprint.pattern.bases[0].tolist(), event.footprint.shift_bytes) for event in by_warp[number] if event.fill]
        for number in (4, 9)
    ]
    assert loads == [[([[0]], 0), ([[0]], 2048)], [([[256]], 0), ([[256]], 2048)]]
