"""Loads into rings, producer arrivals and other work by one or several threads: each fault in all kinds of Hopper kernels."""

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
    "gemm": {},
    "producer warpgroup": {"producer": 128},
    "persistent": {"blocks": 2},
    "ping-pong": {"blocks": 2, "pingpong": 2},
    "dynamic tiles": {"blocks": 2, "dynamic": True},
    "cluster": {"cluster": (2, 1)},
}
KERNELS = (*PLAIN, "warps", "threads", "attention, A in registers", "ordered warpgroups")


@functools.cache
def kernel(name):
    """A kernel with a ring: a GEMM with wgmma, warps or threads, or attention."""
    if name in PLAIN:
        return product((64, 64, 64), (64, 64), **PLAIN[name])(float16_gemm(128, 128, 192)).program("sm_90a").ir
    if name in ("warps", "threads"):
        return {"warps": by_warps, "threads": by_threads}[name]()(float16_gemm(128, 128, 192)).program("sm_90a").ir
    return case("attention" if name.startswith("attention") else "warpgroups", 0).kernel


def errors(program):
    """The messages of the check."""
    return [finding.message for finding in wrong_thread_counts(AccessTrace(program))]


def with_roles(program, change):
    """The kernel with each of its roles changed."""
    body = tuple(making.roles(tuple(map(change, stmt.roles))) if isinstance(stmt, ir.Roles) else stmt for stmt in program.body)
    return attrs.evolve(program, body=body)


@pytest.mark.parametrize("name", KERNELS)
def test_correct_kernels_have_no_finding(name):
    assert errors(kernel(name)) == []


@pytest.mark.parametrize("name", KERNELS)
def test_all_threads_of_a_producer(name):
    """Each load and each arrival is reported, with its ring, the threads and the line of the load."""
    program = kernel(name)
    faulty = with_roles(program, lambda role: attrs.evolve(role, elected=False))
    (producer,) = (role for role in roles_of(program) if role.elected)
    findings = list(wrong_thread_counts(AccessTrace(faulty)))
    loads = [finding for finding in all_of_kind(program, ir.Exec) if is_load(finding)]
    arrivals = [finding for finding in all_of_kind(program, ir.Release) if finding.state is ir.StageState.FULL]
    assert len(findings) == len(loads) + len(arrivals)
    assert all(f"by {producer.threads} threads of producer" in finding.message for finding in findings)
    assert {finding.message.partition(":")[0] for finding in findings} == {finding.accesses[-1].buffer for finding in loads} | {
        finding.ring for finding in arrivals
    }
    lines = {finding.origin for finding in loads}
    rings = {finding.ring for finding in loads}
    assert all(
        finding.at in lines
        for finding in findings
        if finding.message.partition(":")[0] in rings | {load.accesses[-1].buffer for load in loads}
    )
    assert {finding.severity for finding in findings} == {"error"}


@pytest.mark.parametrize("name", KERNELS)
def test_consumers_with_one_elected_thread(name):
    program = kernel(name)
    for chosen in (role for role in roles_of(program) if not role.elected):
        faulty = with_roles(program, lambda role, chosen=chosen: attrs.evolve(role, elected=True) if role is chosen else role)
        works = [item for item in ir.statements(chosen.body) if isinstance(item, (ir.Exec, ir.Barrier))]
        assert works and len(errors(faulty)) == len(works)
        assert all(f"role {chosen.name}" in item for item in errors(faulty))


def conditions(program, spot):
    """Conditions that do not always hold: never, by thread, by block, by iteration."""
    result = [less(ONE, ZERO), less(ZERO, program.thread), less(program.thread, 1), less(program.block, 1)]
    body = program.body
    for place, number in spot.path:
        if isinstance(body[place], ir.For):
            result += [less(body[place].var, 1), less(ZERO, body[place].var)]
        body = body[place].children[number]
    return result


@pytest.mark.parametrize("name", KERNELS)
def test_conditional_producer_arrivals(name):
    program = kernel(name)
    for spot in spots(program, ir.Release, lambda stmt: stmt.state is ir.StageState.FULL):
        for condition in conditions(program, spot):
            faulty = spot.with_one(attrs.evolve(spot.one, active=condition))
            (message,) = errors(faulty)
            assert message.startswith(
                f"{spot.one.ring}: the arrival for fill {spot.one.fill_index} to be full is executed only if {condition}"
            )


@pytest.mark.parametrize("name", ["gemm", "attention, A in registers", "ping-pong", "dynamic tiles"])
def test_the_race_check_reports_them(name):
    program = kernel(name)
    faulty = with_roles(program, lambda role: attrs.evolve(role, elected=False))
    assert any("one elected thread must issue it" in finding.message for finding in check_races(AccessTrace(faulty)))
    spot = next(spots(program, ir.Release, lambda finding: finding.state is ir.StageState.FULL))
    faulty = spot.with_one(attrs.evolve(spot.one, active=less(program.block, 1)))
    assert any("it must be unconditional" in finding.message for finding in safety(faulty))


@pytest.mark.parametrize("name", ["gemm", "cluster", "attention, A in registers"])
def test_stages_released_by_some_blocks_only_are_undecided(name):
    """The set of blocks is unknown; the check once crashed here."""
    program = kernel(name)
    spot = next(spots(program, ir.Release, lambda finding: finding.state is ir.StageState.EMPTY))
    faulty = spot.with_one(attrs.evolve(spot.one, active=less(Var("block", 0, 1), 1)))
    if name == "cluster":  # blocks of a cluster are distinguished
        assert [finding for finding in safety(faulty) if finding.severity == "error"]
        return
    assert any("whether a stage is released depends on block" in finding.message for finding in safety(faulty))


# ---------------------------------------------------------------------------------------------- hand-made kernels

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
    """A kernel of 64 threads; with `role`, the second half executes the body as a role."""
    if role is not None:
        body = (making.roles((making.role("first", 0, 32, ()), making.role("second", 32, 32, body, elected=role == "elected"))),)
    program = kernel_of(Move(64)(GL, GL), body, *BUFFERS, threads=threads)
    return attrs.evolve(program, rings=(RING,))


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
    """A condition may select one of several threads; conditions on anything else are assumed to hold."""
    messages = errors(by_hand(load(active), role="all"))
    assert len(messages) == (count != 1) and all(f"by {count} threads of second" in message for message in messages)
    assert errors(by_hand(load(), role="elected")) == []


def test_statements_outside_roles_belong_to_all_threads():
    (of_load, of_arrival) = wrong_thread_counts(AccessTrace(by_hand(load(), ARRIVAL)))
    assert "issued by 64 threads of the block" in of_load.message and of_load.at == "mine.py:3" and of_load.buffer == "s"
    assert "executed by 64 threads of the block" in of_arrival.message and of_arrival.at == "mine.py:3" and of_arrival.buffer == "s"
    assert errors(by_hand(load(equal(THREAD, 0)), EMPTIED, WORK)) == []


def test_collective_work_in_an_elected_role():
    (finding,) = wrong_thread_counts(AccessTrace(by_hand(WORK, EMPTIED, role="elected")))
    assert finding.message == f"step {WORK.spec} needs several threads, but one elected thread executes role second"
    assert (finding.at, finding.buffer) == ("mine.py:4", "r")
    assert errors(by_hand(WORK, making.barrier(ir.WARP_SCOPE), role="all")) == []
    assert errors(by_hand(making.barrier(ir.WARP_SCOPE), role="elected")) == [
        "a barrier of 32 threads is in role second, which one elected thread executes"
    ]


def test_arrivals_must_be_unconditional():
    under = attrs.evolve(ARRIVAL, active=less(Var("block", 0, 3), 1))
    (message,) = errors(by_hand(under, role="elected"))
    assert (
        message
        == "ring: the arrival for fill 0 to be full is executed only if block < 1, but consumers wait for each fill; it must be unconditional"
    )
    assert len(errors(by_hand(under, role="all"))) == 2, "the number of threads is reported too"
    assert errors(by_hand(ARRIVAL, load(), role="elected")) == []
    none = attrs.evolve(by_hand(under, role="elected"), rings=(attrs.evolve(RING, buffers=()),))
    (finding,) = wrong_thread_counts(AccessTrace(none))
    assert (finding.at, finding.buffer) == (None, None)


# ---------------------------------------------------------------------------------------------- one fill early or late


@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("offset", [-1, 1])
@pytest.mark.parametrize("which", ["load", "arrival", "both"])
def test_producers_that_use_another_fill_than_they_acquired(stages, offset, which):
    """With one stage too, where consecutive fills have the same mbarriers."""
    faulty = product((64, 64, 64), (64, 64), stages)(SMALL).program("sm_90a").ir
    assert [finding for finding in safety(faulty) if finding.severity == "error"] == []
    for kind, chosen in (
        ("load", is_load),
        ("arrival", lambda finding: isinstance(finding, ir.Release) and finding.state is ir.StageState.FULL),
    ):
        if which in (kind, "both"):
            name = "fill_index"
            faulty = with_changed(
                faulty, chosen, 0, lambda finding, name=name: (attrs.evolve(finding, **{name: getattr(finding, name) + offset}),)
            )
    all_errors = [finding for finding in safety(faulty) if finding.severity == "error"]
    assert any(
        "by an agent that has waited for fill" in finding.message or "has not acquired it" in finding.message for finding in all_errors
    ), all_errors
    if which != "arrival" and stages == 1:
        (first,) = [finding for finding in all_errors if "is loaded by an agent that has waited for fill 0" in finding.message][:1]
        assert first.buffer in ("a_sh", "b_sh") and first.at and f"fill {offset} is loaded" in first.message
