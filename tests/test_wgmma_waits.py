"""Hand-made wgmma sequences: groups, register fences and waits; proxy fences; errors of both checks."""

import attrs
import making
import pytest
from touching import (
    BLOCK_BARRIER,
    COMMIT,
    MMA_GROUPS,
    PROXY_FENCE,
    REGISTERS_FENCE,
    WARP_BARRIER,
    K,
    T,
    buffer,
    copies,
    i,
    kernel,
    loop,
    mma,
    on_registers,
    reads,
    writes,
)

from fireiron import *
from fireiron import ir
from fireiron.check import AccessTrace, check_races, check_wgmma_registers
from fireiron.errors import VerificationError
from fireiron.ir import Barrier, Commit, Exec, Fence, FenceKind, For, StageState, Wait
from fireiron.ir.mechanisms.tma import TMA_LOADS
from fireiron.lower.fence import fence
from fireiron.lower.synchronize import synchronize
from fireiron.lower.wait import wait
from fireiron.lower.wgmma_waits import wgmma_waits
from fireiron.values.expr import Var, as_expr

REGISTERS = (buffer("r", 4, memory=RF), buffer("q", 4, memory=RF))
BUFFERS = (buffer("s", 4096), buffer("t", 4096, offset=16384), *REGISTERS)
COMMITTED, WAITED = making.commit(MMA_GROUPS), making.wait(0, mechanism=MMA_GROUPS)


def program(*body, **options):
    return kernel(*body, **{"buffers": BUFFERS, "symbols": (K,), **options})


def text(body):
    """The statements as words."""
    result = []
    for stmt in body:
        match stmt:
            case Exec():
                result.append("mma" if stmt.mechanism is MMA_GROUPS else "copy" if stmt.asynchronous else ".")
            case For():
                result.append(text(stmt.body))
            case Fence(kind=reach):
                result.append(reach.value)
            case Commit(mechanism=completion):
                result.append("commit" if completion is MMA_GROUPS else "copied")
            case Wait(groups=groups, mechanism=completion):
                result.append(f"wait {groups}" if completion is MMA_GROUPS else f"arrive {groups}")
            case Barrier(scope=scope):
                result.append(scope.name)
            case _:
                result.append(type(stmt).__name__.lower())
    return result


# ---------------------------------------------------------------------------------------------- wgmma groups


def batched(*body):
    return text(wgmma_waits(program(*body)).body)


def test_kernels_without_mma_do_not_change():
    stmt = program(writes(T), loop(3, reads(T)))
    assert wgmma_waits(stmt) is stmt


def test_consecutive_mmas_form_a_group():
    assert batched(mma(0), mma(64)) == ["registers", "mma", "mma", "commit"]


def test_a_loop_of_mmas_is_part_of_the_group():
    unrolled = loop(4, mma(i * 16))
    assert batched(unrolled, mma(64)) == ["registers", ["mma"], "mma", "commit"]


def test_other_statements_end_a_group():
    for other, word in ((reads(T), "."), (BLOCK_BARRIER, "block"), (making.comment("next"), "comment"), (COMMIT[0], "copied")):
        assert batched(mma(0), other, mma(64)) == ["registers", "mma", "commit", word, "registers", "mma", "commit"]


def test_a_loop_with_other_statements_contains_groups():
    assert batched(loop(4, mma(i * 16), reads(T))) == [["registers", "mma", "commit", "."]]


def test_names_do_not_end_a_group():
    assert batched(mma(0), making.let(Var("x", 0, 3), as_expr(1)), mma(64)) == [
        "registers",
        "mma",
        "let",
        "mma",
        "commit",
    ]


def test_other_statements_wait_for_accumulators():
    assert batched(mma(0), on_registers(write=False)) == ["registers", "mma", "commit", "wait 0", "."]
    assert batched(mma(0), on_registers("q")) == ["registers", "mma", "commit", "."], "other registers"
    assert batched(mma(0), on_registers(), on_registers()) == ["registers", "mma", "commit", "wait 0", ".", "."], "once"
    assert batched(on_registers(), mma(0)) == [".", "registers", "mma", "commit"], "no group is pending before it"


def test_waits_name_the_accumulators():
    (wait_stmt,) = [
        stmt
        for stmt in wgmma_waits(program(mma(0), mma(64, registers="q"), on_registers(), on_registers("q"))).body
        if isinstance(stmt, Wait)
    ]
    assert wait_stmt.reason == "r is complete" and wait_stmt.groups == 0
    both = program(mma(0), mma(64, registers="q"), loop(2, on_registers(), on_registers("q")))
    (wait_stmt,) = [stmt for stmt in wgmma_waits(both).body if isinstance(stmt, Wait)]
    assert wait_stmt.reason == "q, r are complete"


def test_waits_are_before_comments():
    assert batched(mma(0), making.comment("store"), on_registers()) == ["registers", "mma", "commit", "wait 0", "comment", "."]


def test_a_loop_that_only_accumulates_has_no_wait():
    body = [loop(4, mma(i * 16), reads(T)), on_registers(write=False)]
    assert batched(*body) == [["registers", "mma", "commit", "."], "wait 0", "."]


def test_an_iteration_waits_for_the_groups_of_the_previous_one():
    assert batched(loop(4, on_registers(), mma(i * 16))) == [["wait 0", ".", "registers", "mma", "commit"], "wait 0"]
    assert batched(mma(0), loop(4, on_registers(), mma(i * 16))) == [
        "registers", "mma", "commit", ["wait 0", ".", "registers", "mma", "commit"], "wait 0",
    ]  # fmt: skip


def test_the_wait_of_a_loop_is_before_it():
    assert batched(mma(0), loop(4, on_registers())) == ["registers", "mma", "commit", "wait 0", ["."]]


# ---------------------------------------------------------------------------------------------- fence


def test_a_stage_that_is_never_released_is_rejected():
    ring = making.ring("ring", 2, ("s",), bytes=64, consumers=4)
    (filled,) = writes(0).accesses
    load = attrs.evolve(writes(0), accesses=(filled, filled), mechanism=TMA_LOADS, ring="ring")
    body = loop(8, making.acquire("ring", StageState.FULL, i), mma(0))
    for is_released in (False, True):
        rest = (making.release("ring", StageState.EMPTY, i),) if is_released else ()
        lowered_kernel = attrs.evolve(program(load, attrs.evolve(body, body=(*body.body, *rest))), rings=(ring,))
        if is_released:
            assert "release" in text(wgmma_waits(lowered_kernel).body)[1]
        else:
            with pytest.raises(VerificationError, match="ring ring: fill i is acquired full, but never released"):
                wgmma_waits(lowered_kernel)


def fenced(*body):
    return text(fence(program(*body)).body)


def test_kernels_without_async_proxy_have_no_fence():
    stmt = program(writes(T), BLOCK_BARRIER, reads(127 - T))
    assert fence(stmt) is stmt


def test_the_proxy_fence_is_before_the_first_barrier_after_a_write():
    assert fenced(writes(T), BLOCK_BARRIER, making.barrier(BLOCK_BARRIER.scope, "next"), mma(0)) == [
        ".",
        "proxy",
        "block",
        "block",
        "mma",
    ]
    assert fenced(writes(T), WARP_BARRIER, mma(0)) == [".", "proxy", "warp", "mma"]


def test_only_operands_of_the_async_proxy_are_fenced():
    assert fenced(writes(T, name="t"), BLOCK_BARRIER, mma(0)) == [".", "block", "mma"]
    assert fenced(reads(T), BLOCK_BARRIER, mma(0)) == [".", "block", "mma"]


def test_copies_are_fenced_after_their_wait():
    body = [copies(T), making.commit(), BLOCK_BARRIER, making.wait(0), making.barrier(BLOCK_BARRIER.scope, "b"), mma(0)]
    assert fenced(*body) == ["copy", "copied", "block", "arrive 0", "proxy", "block", "mma"]
    assert fenced(copies(T), making.commit(), WAITED, BLOCK_BARRIER, mma(0)) == ["copy", "copied", "wait 0", "block", "mma"]


def test_a_fence_in_a_loop_covers_the_previous_iteration():
    first = making.barrier(BLOCK_BARRIER.scope, "first")
    assert fenced(loop(4, first, mma(0), writes(T + 512))) == [["proxy", "block", "mma", "."]]


def test_a_fence_names_the_buffers():
    both = mma(0)
    other = mma(0, name="t")
    (fence_stmt,) = [
        stmt for stmt in fence(program(writes(T), writes(T, name="t"), BLOCK_BARRIER, both, other)).body if isinstance(stmt, Fence)
    ]
    assert fence_stmt == making.fence(FenceKind.ASYNC_PROXY, "make s, t visible to the async proxy")


def test_passes_reject_unknown_statements():
    class Strange(ir.Stmt):
        children = ()

    with pytest.raises(VerificationError, match="Strange"):
        fence(program(mma(0), Strange()))
    with pytest.raises(VerificationError, match="Strange"):
        check_wgmma_registers(AccessTrace(program(mma(0), Strange())))


# ---------------------------------------------------------------------------------------------- all passes, both checks


def lowered(*body, **options):
    return fence(wait(synchronize(wgmma_waits(program(*body, **options)))))


def problems(lowered_kernel):
    access_trace = AccessTrace(lowered_kernel)
    return [finding.message for finding in (*check_wgmma_registers(access_trace), *check_races(access_trace))]


FAR = 127 - T
PROGRAMS = {
    "one step": (on_registers(), writes(T), mma(0), on_registers(write=False)),
    "steps": (on_registers(), loop(5, writes(T), mma(0)), on_registers(write=False)),
    "steps at run time": (on_registers(), loop(K, writes(T), mma(0)), on_registers(write=False)),
    "two buffers": (on_registers(), loop(5, writes(T), mma(0), writes(T, name="t"), mma(0, name="t")), on_registers(write=False)),
    "scaled each step": (on_registers(), loop(5, writes(T), mma(0), on_registers()), on_registers(write=False)),
    "stages": (on_registers(), loop(6, writes(i % 3 * 512 + T, copy=0), mma(i % 3 * 512), period=3), on_registers(write=False)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_passes_order_all_accesses(name):
    result = lowered(*PROGRAMS[name])
    assert problems(result) == [], text(result.body)


def without(body, number):
    """The program without its `number`-th ordering statement, counted through loops; and that statement."""
    seen = [stmt for stmt in ir.statements(body) if isinstance(stmt, (Fence, Barrier, Commit, Wait))]
    if number >= len(seen):
        return None, None
    gone = seen[number]
    return ir.rewritten(body, lambda stmt: () if stmt is gone else (stmt,)), gone


@pytest.mark.parametrize("name", PROGRAMS)
def test_each_inserted_statement_is_needed(name):
    """All inserted statements, except for a wait after one for all groups, and a fence for registers that no statement accessed since the previous one."""
    whole, number, spare = lowered(*PROGRAMS[name]), 0, []
    while True:
        body, gone = without(whole.body, number)
        if body is None:
            break
        if not problems(attrs.evolve(whole, body=body)):
            spare.append(gone)
        number += 1
    assert number >= 5
    waits = [stmt for stmt in spare if isinstance(stmt, Wait)]
    assert all(stmt.mechanism is MMA_GROUPS and stmt.reason == "r is complete" for stmt in waits), spare
    assert [stmt for stmt in spare if stmt not in waits] == ([making.fence(FenceKind.WGMMA_REGISTERS)] if name == "two buffers" else [])


def test_accumulators_accessed_before_the_wait():
    bad = program(REGISTERS_FENCE, mma(0), COMMITTED, on_registers(), WAITED)
    assert problems(bad) == ["r: step Move(1,1)(RF,SH)(Thread) accesses it, but it is used by an MMA in flight"]
    assert problems(program(REGISTERS_FENCE, mma(0), COMMITTED, WAITED, on_registers())) == []


def test_mma_after_ordinary_accesses():
    (message,) = problems(program(on_registers(), mma(0), COMMITTED, WAITED))
    assert message == "r: engine MatMul(1,1,1)(SH,SH,RF)(Warpgroup) accesses it, but it was accessed since the last wgmma.fence"
    assert problems(program(REGISTERS_FENCE, on_registers("q"), mma(0), COMMITTED, WAITED)) == [], "other registers"
    assert problems(program(REGISTERS_FENCE, mma(0), mma(16), COMMITTED, WAITED)) == [], "consecutive MMAs"


def test_accesses_between_an_mma_and_its_commit():
    bad = program(REGISTERS_FENCE, mma(0), on_registers(), COMMITTED, WAITED)
    assert problems(bad) == ["r: step Move(1,1)(RF,SH)(Thread) accesses it, but it is used by an MMA in flight"]


def test_accesses_in_the_next_iteration():
    step = (on_registers(), REGISTERS_FENCE, mma(0), COMMITTED)
    assert any("is used by an MMA in flight" in message for message in problems(program(loop(3, *step), WAITED)))
    assert problems(program(loop(1, *step), WAITED)) == [] == problems(program(loop(3, *step, WAITED)))
    late = (on_registers(), REGISTERS_FENCE, mma(0), COMMITTED, making.wait(1, mechanism=MMA_GROUPS))
    assert problems(program(loop(K, *late))) != [], "one group is left"


def test_mma_without_commit():
    assert problems(program(REGISTERS_FENCE, mma(0))) == ["r: an MMA is never committed, so no wait covers it"]


def test_waits_count_wgmma_groups_only():
    copy = (copies(T, name="t"), making.commit())
    body = (REGISTERS_FENCE, mma(0), COMMITTED, *copy, making.wait(0), on_registers())
    assert any("in flight" in message for message in problems(program(*body))), "the copies are complete, the MMA is not"
    assert problems(program(REGISTERS_FENCE, mma(0), COMMITTED, *copy, WAITED, on_registers())) == []
    two = (REGISTERS_FENCE, mma(0), COMMITTED, mma(16, registers="q"), COMMITTED)
    assert problems(program(*two, making.wait(1, mechanism=MMA_GROUPS), on_registers())) == []
    assert problems(program(*two, making.wait(1, mechanism=MMA_GROUPS), on_registers("q"))) != []


def test_an_mma_reads_until_its_wait():
    """A write to its operands races with it; a read does not. A wait orders only its thread, a barrier also the others."""
    product = (REGISTERS_FENCE, mma(0), COMMITTED)
    assert problems(program(*product, BLOCK_BARRIER, writes(FAR))) != []
    assert problems(program(*product, WAITED, writes(FAR))) != []
    assert problems(program(*product, WAITED, BLOCK_BARRIER, writes(FAR))) == []
    assert problems(program(*product, BLOCK_BARRIER, reads(FAR))) == []


def test_the_async_proxy_needs_a_fence_before_the_barrier():
    product = (REGISTERS_FENCE, mma(0), COMMITTED, WAITED)
    assert problems(program(writes(T), PROXY_FENCE, BLOCK_BARRIER, *product)) == []
    (message,) = problems(program(writes(T), BLOCK_BARRIER, *product))
    assert "through the async proxy, and no fence.proxy.async is between" in message
    assert problems(program(writes(T), BLOCK_BARRIER, PROXY_FENCE, *product)) != [], "a fence covers the writes of its own thread"
    assert problems(program(PROXY_FENCE, writes(T), BLOCK_BARRIER, *product)) != []
    assert problems(program(writes(T), REGISTERS_FENCE, BLOCK_BARRIER, *product)) != [], "a register fence does not cover memory"
    assert problems(program(copies(T), making.commit(), PROXY_FENCE, making.wait(0), BLOCK_BARRIER, *product)) != [], (
        "copies in flight are not fenced"
    )
    assert problems(program(copies(T), making.commit(), making.wait(0), PROXY_FENCE, BLOCK_BARRIER, *product)) == []
    assert problems(program(writes(T), PROXY_FENCE, BLOCK_BARRIER, reads(FAR), *product)) == [], "reads do not matter"


# ---------------------------------------------------------------------------------------------- the first fence, and branches

FIRST = "r: engine MatMul(1,1,1)(SH,SH,RF)(Warpgroup) accesses it, but it belongs to the first MMA, which no wgmma.fence precedes"
PENDING = "r: step Move(1,1)(RF,SH)(Thread) accesses it, but it is used by an MMA in flight"
SINCE_FENCE = "r: engine MatMul(1,1,1)(SH,SH,RF)(Warpgroup) accesses it, but it was accessed since the last wgmma.fence"
AT_MOST = Var("count", 0, 5, 1, True)
AT_LEAST = Var("least", 1, 5, 1, True)
GROUP_OF_R = (mma(0), COMMITTED, WAITED)


@pytest.mark.parametrize(
    "body",
    [
        GROUP_OF_R,
        (loop(3, *GROUP_OF_R, REGISTERS_FENCE),),
        (PROXY_FENCE, *GROUP_OF_R),
        (loop(AT_MOST, REGISTERS_FENCE), *GROUP_OF_R),
        (loop(0, REGISTERS_FENCE), *GROUP_OF_R),
        (on_registers("q"), *GROUP_OF_R),
    ],
)
def test_the_first_mma_needs_a_fence(body):
    assert problems(program(*body)) == [FIRST]


@pytest.mark.parametrize(
    "body",
    [
        (REGISTERS_FENCE, *GROUP_OF_R, *GROUP_OF_R),
        (loop(2, REGISTERS_FENCE), *GROUP_OF_R),
        (loop(AT_LEAST, REGISTERS_FENCE), *GROUP_OF_R),
        (loop(AT_MOST, REGISTERS_FENCE, *GROUP_OF_R),),
        (loop(0, *GROUP_OF_R),),
    ],
)
def test_one_fence_is_enough_for_registers_that_only_mmas_access(body):
    assert problems(program(*body)) == []


def test_each_role_needs_a_first_fence():
    """A fence of one warpgroup does not count for another; one before the roles counts for all."""

    def roles(*bodies):
        return making.roles(tuple(making.role(f"group {n}", 128 * n, 128, body) for n, body in enumerate(bodies)))

    fenced = (REGISTERS_FENCE, *GROUP_OF_R)

    def of(*body):
        return [finding.message for finding in check_wgmma_registers(AccessTrace(kernel(*body, threads=256, buffers=BUFFERS)))]

    assert of(roles(fenced, fenced)) == []
    assert of(roles(fenced, GROUP_OF_R)) == [FIRST] == of(roles(GROUP_OF_R, fenced))
    assert of(REGISTERS_FENCE, roles(GROUP_OF_R, GROUP_OF_R)) == []
    left = (REGISTERS_FENCE, mma(0), COMMITTED)
    assert of(roles(left, fenced), on_registers()) == [PENDING] == of(roles(fenced, left), on_registers()), (
        "the pending group of any role counts"
    )


def test_order_by_a_loop_that_may_be_empty():
    begun = (REGISTERS_FENCE, mma(0), COMMITTED)
    assert problems(program(*begun, loop(AT_MOST, WAITED), on_registers())) == [PENDING]
    assert problems(program(*begun, loop(AT_LEAST, WAITED), on_registers())) == []
    assert problems(program(*begun, WAITED, on_registers(), loop(AT_MOST, REGISTERS_FENCE), *GROUP_OF_R)) == [SINCE_FENCE]
    # A wait that leaves one group pending leaves the younger one, on each path.
    later = (REGISTERS_FENCE, mma(16, registers="q"), COMMITTED)
    leaving = (*begun, loop(AT_MOST, *later), making.wait(1, mechanism=MMA_GROUPS))
    assert problems(program(*leaving, on_registers())) == [PENDING]
    assert problems(program(*begun, loop(AT_LEAST, *later), making.wait(1, mechanism=MMA_GROUPS), on_registers())) == []


def test_findings_name_the_line():
    (finding,) = check_wgmma_registers(AccessTrace(program(attrs.evolve(mma(0), origin="mine.py:7"), COMMITTED, WAITED)))
    assert (finding.at, finding.buffer, finding.severity) == ("mine.py:7", "r", "error")
