"""Loads into rings, arrivals of producers, and other work, by one thread or by several: each fault in Hopper kernels of all forms."""

import functools

import attrs
import making
import pytest
from campaign.faults.kernels import case
from campaign.faults.kind import spots
from handmade import access, execution, kernel_of, local
from ringed import all_of_kind, by_threads, by_warps, float16_gemm, is_load, product, roles_of, with_changed
from touching import Engine, Step

from fireiron import *
from fireiron import ir
from fireiron.check import AccessTrace, check_races, safety
from fireiron.check.races.issuing_threads import wrong_thread_counts
from fireiron.ir.mechanisms.tma import TMA_LOADS
from fireiron.values.expr import ONE, TRUE, ZERO, Var, equal, less

SMALL = float16_gemm(64, 64, 192)
PLAIN = {
    "product": {},
    "a warpgroup that produces": {"producer": 128},
    "persistent": {"blocks": 2},
    "ping-pong": {"blocks": 2, "turns": 2},
    "tiles from a counter": {"blocks": 2, "dynamic": True},
    "cluster": {"cluster": (2, 1)},
}
KERNELS = (*PLAIN, "warps", "threads", "attention, A in registers", "warpgroups in order")


@functools.cache
def kernel(name):
    """A kernel with a ring: a product, by warps or threads, or attention."""
    if name in PLAIN:
        return product((64, 64, 64), (64, 64), **PLAIN[name])(float16_gemm(128, 128, 192)).program("sm_90a").ir
    if name in ("warps", "threads"):
        return {"warps": by_warps, "threads": by_threads}[name]()(float16_gemm(128, 128, 192)).program("sm_90a").ir
    return case("attention" if name.startswith("attention") else "warpgroups", 0).kernel


def errors(whole):
    """What the rule says."""
    return [one.message for one in wrong_thread_counts(AccessTrace(whole))]


def with_roles(whole, change):
    """The kernel with each of its roles changed."""
    body = tuple(making.roles(tuple(map(change, one.roles))) if isinstance(one, ir.Roles) else one for one in whole.body)
    return attrs.evolve(whole, body=body)


@pytest.mark.parametrize("name", KERNELS)
def test_nothing_is_said_of_what_is_right(name):
    assert errors(kernel(name)) == []


@pytest.mark.parametrize("name", KERNELS)
def test_a_producer_of_all_its_threads(name):
    """Each load and each arrival is named, with its ring, the threads and the line of the load."""
    whole = kernel(name)
    faulty = with_roles(whole, lambda role: attrs.evolve(role, elected=False))
    (producer,) = (role for role in roles_of(whole) if role.elected)
    found = list(wrong_thread_counts(AccessTrace(faulty)))
    loads = [one for one in all_of_kind(whole, ir.Exec) if is_load(one)]
    arrivals = [one for one in all_of_kind(whole, ir.Release) if one.state is ir.StageState.FULL]
    assert len(found) == len(loads) + len(arrivals)
    assert all(f"by {producer.threads} threads of producer" in one.message for one in found)
    assert {one.message.partition(":")[0] for one in found} == {one.accesses[-1].buffer for one in loads} | {one.ring for one in arrivals}
    lines = {one.origin for one in loads}
    rings = {one.ring for one in loads}
    assert all(one.at in lines for one in found if one.message.partition(":")[0] in rings | {load.accesses[-1].buffer for load in loads})
    assert {one.severity for one in found} == {"error"}


@pytest.mark.parametrize("name", KERNELS)
def test_consumers_of_one_thread(name):
    whole = kernel(name)
    for chosen in (role for role in roles_of(whole) if not role.elected):
        faulty = with_roles(whole, lambda role, chosen=chosen: attrs.evolve(role, elected=True) if role is chosen else role)
        works = [one for one in ir.statements(chosen.body) if isinstance(one, (ir.Exec, ir.Barrier))]
        assert works and len(errors(faulty)) == len(works)
        assert all(f"role {chosen.name}" in one for one in errors(faulty))


def conditions(whole, spot):
    """Conditions that do not hold at each turn: never, of one thread, of some blocks, of turns."""
    found = [less(ONE, ZERO), less(ZERO, whole.thread), less(whole.thread, 1), less(whole.block, 1)]
    body = whole.body
    for place, number in spot.path:
        if isinstance(body[place], ir.For):
            found += [less(body[place].var, 1), less(ZERO, body[place].var)]
        body = body[place].children[number]
    return found


@pytest.mark.parametrize("name", KERNELS)
def test_an_arrival_of_a_producer_under_a_condition(name):
    whole = kernel(name)
    for spot in spots(whole, ir.Release, lambda one: one.state is ir.StageState.FULL):
        for condition in conditions(whole, spot):
            faulty = spot.with_one(attrs.evolve(spot.one, active=condition))
            (message,) = errors(faulty)
            assert message.startswith(
                f"{spot.one.ring}: the arrival for fill {spot.one.fill_index} to be full is executed only if {condition}"
            )


@pytest.mark.parametrize("name", ["product", "attention, A in registers", "ping-pong", "tiles from a counter"])
def test_the_race_check_says_so(name):
    whole = kernel(name)
    faulty = with_roles(whole, lambda role: attrs.evolve(role, elected=False))
    assert any("one elected thread must issue it" in one.message for one in check_races(AccessTrace(faulty)))
    spot = next(spots(whole, ir.Release, lambda one: one.state is ir.StageState.FULL))
    faulty = spot.with_one(attrs.evolve(spot.one, active=less(whole.block, 1)))
    assert any("it must be unconditional" in one.message for one in safety(faulty))


@pytest.mark.parametrize("name", ["product", "cluster", "attention, A in registers"])
def test_a_stage_released_by_some_blocks_alone_is_undecided(name):
    """Also a crash before: which blocks it holds for is not followed."""
    whole = kernel(name)
    spot = next(spots(whole, ir.Release, lambda one: one.state is ir.StageState.EMPTY))
    faulty = spot.with_one(attrs.evolve(spot.one, active=less(Var("block", 0, 1), 1)))
    if name == "cluster":  # blocks of a cluster are told apart
        assert [one for one in safety(faulty) if one.severity == "error"]
        return
    assert any("whether a stage is released depends on block" in one.message for one in safety(faulty))


# ---------------------------------------------------------------------------------------------- by hand

THREAD = Var("thread", 0, 63)
RING = making.ring("ring", 2, ("s",), bytes=64, consumers=1, offset=4096)
BUFFERS = (local("s", (64,), SH, copies=2), local("r", (4,), RF))
SPEC = Move(64)(GL, SH)(Block)


def load(active=TRUE):
    target = access("s", (0,), shape=(64,), write=True)
    return execution(Engine(), SPEC, target, active=active, ring="ring", mechanism=TMA_LOADS, origin="mine.py:3")


ARRIVAL = making.release("ring", ir.StageState.FULL, ZERO)
EMPTIED = making.release("ring", ir.StageState.EMPTY, ZERO)
WORK = execution(Step(), Move(1)(RF, RF)(Thread), access("r", (0,)), access("r", (1,), write=True), origin="mine.py:4")


def by_hand(*body, role=None, threads=64):
    """A kernel of 64 threads; the second half is a role with the body, if one is said."""
    if role is not None:
        body = (making.roles((making.role("first", 0, 32, ()), making.role("second", 32, 32, body, elected=role == "elected"))),)
    whole = kernel_of(Move(64)(GL, GL), body, *BUFFERS, threads=threads)
    return attrs.evolve(whole, rings=(RING,))


@pytest.mark.parametrize(
    ("active", "count"),
    [
        (TRUE, 32),
        (equal(THREAD, 32), 1),
        (equal(THREAD % 32, 0), 1),
        (equal(THREAD, 0), 0),
        (less(THREAD, 34), 2),
        (less(Var("block", 0, 3), 1), 32),
    ],
)
def test_a_load_is_issued_by_one_thread(active, count):
    """Of several threads a condition may leave one; what is not about threads is taken to hold."""
    found = errors(by_hand(load(active), role="all"))
    assert len(found) == (count != 1) and all(f"by {count} threads of second" in one for one in found)
    assert errors(by_hand(load(), role="elected")) == []


def test_what_is_outside_of_roles_is_of_all_threads():
    (of_load, of_arrival) = wrong_thread_counts(AccessTrace(by_hand(load(), ARRIVAL)))
    assert "issued by 64 threads of the block" in of_load.message and of_load.at == "mine.py:3" and of_load.buffer == "s"
    assert "executed by 64 threads of the block" in of_arrival.message and of_arrival.at == "mine.py:3" and of_arrival.buffer == "s"
    assert errors(by_hand(load(equal(THREAD, 0)), EMPTIED, WORK)) == []


def test_work_of_several_threads_in_a_role_of_one():
    (found,) = wrong_thread_counts(AccessTrace(by_hand(WORK, EMPTIED, role="elected")))
    assert found.message == f"step {WORK.spec} needs several threads, but one elected thread executes role second"
    assert (found.at, found.buffer) == ("mine.py:4", "r")
    assert errors(by_hand(WORK, making.barrier(ir.WARP_SCOPE), role="all")) == []
    assert errors(by_hand(making.barrier(ir.WARP_SCOPE), role="elected")) == [
        "a barrier of 32 threads is in role second, which one elected thread executes"
    ]


def test_an_arrival_has_no_condition():
    under = attrs.evolve(ARRIVAL, active=less(Var("block", 0, 3), 1))
    (message,) = errors(by_hand(under, role="elected"))
    assert (
        message
        == "ring: the arrival for fill 0 to be full is executed only if block < 1, but consumers wait for each fill; it must be unconditional"
    )
    assert len(errors(by_hand(under, role="all"))) == 2, "and by how many threads"
    assert errors(by_hand(ARRIVAL, load(), role="elected")) == []
    none = attrs.evolve(by_hand(under, role="elected"), rings=(attrs.evolve(RING, buffers=()),))
    (found,) = wrong_thread_counts(AccessTrace(none))
    assert (found.at, found.buffer) == (None, None)


# ---------------------------------------------------------------------------------------------- an iteration early or late


@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("turns", [-1, 1])
@pytest.mark.parametrize("which", ["load", "arrival", "both"])
def test_what_a_producer_does_with_another_turn_than_it_has_waited_for(stages, turns, which):
    """Of one stage too, where the turn before and the next one have the same barriers."""
    faulty = product((64, 64, 64), (64, 64), stages)(SMALL).program("sm_90a").ir
    assert [one for one in safety(faulty) if one.severity == "error"] == []
    for kind, chosen in (("load", is_load), ("arrival", lambda one: isinstance(one, ir.Release) and one.state is ir.StageState.FULL)):
        if which in (kind, "both"):
            name = "fill_index"
            faulty = with_changed(faulty, chosen, 0, lambda one, name=name: (attrs.evolve(one, **{name: getattr(one, name) + turns}),))
    found = [one for one in safety(faulty) if one.severity == "error"]
    assert any("by an agent that has waited for fill" in one.message or "has not acquired it" in one.message for one in found), found
    if which != "arrival" and stages == 1:
        (first,) = [one for one in found if "is loaded by an agent that has waited for fill 0" in one.message][:1]
        assert first.buffer in ("a_sh", "b_sh") and first.at and f"fill {turns} is loaded" in first.message
