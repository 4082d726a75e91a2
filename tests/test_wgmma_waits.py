"""Products of a warpgroup under way, by hand: batches, fences and waits for registers; fences of the proxy; what both checks refuse."""

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
COMMITTED, SETTLED = making.commit(MMA_GROUPS), making.wait(0, mechanism=MMA_GROUPS)


def program(*body, **options):
    return kernel(*body, **{"buffers": BUFFERS, "symbols": (K,), **options})


def text(body):
    """A list as words: what a batch, a fence and a wait look like among other statements."""
    words = []
    for one in body:
        match one:
            case Exec():
                words.append("product" if one.mechanism is MMA_GROUPS else "copy" if one.asynchronous else ".")
            case For():
                words.append(text(one.body))
            case Fence(kind=reach):
                words.append(reach.value)
            case Commit(mechanism=completion):
                words.append("commit" if completion is MMA_GROUPS else "copied")
            case Wait(groups=groups, mechanism=completion):
                words.append(f"wait {groups}" if completion is MMA_GROUPS else f"arrive {groups}")
            case Barrier(scope=scope):
                words.append(scope.name)
            case _:
                words.append(type(one).__name__.lower())
    return words


# ---------------------------------------------------------------------------------------------- products


def batched(*body):
    return text(wgmma_waits(program(*body)).body)


def test_without_products_nothing_changes():
    one = program(writes(T), loop(3, reads(T)))
    assert wgmma_waits(one) is one


def test_products_side_by_side_are_a_batch():
    assert batched(mma(0), mma(64)) == ["registers", "product", "product", "commit"]


def test_a_loop_of_products_is_in_the_batch():
    unrolled = loop(4, mma(i * 16))
    assert batched(unrolled, mma(64)) == ["registers", ["product"], "product", "commit"]


def test_anything_else_ends_a_batch():
    for other, word in ((reads(T), "."), (BLOCK_BARRIER, "block"), (making.comment("next"), "comment"), (COMMIT[0], "copied")):
        assert batched(mma(0), other, mma(64)) == ["registers", "product", "commit", word, "registers", "product", "commit"]


def test_a_loop_with_something_else_has_batches_inside():
    assert batched(loop(4, mma(i * 16), reads(T))) == [["registers", "product", "commit", "."]]


def test_names_do_not_end_a_batch():
    assert batched(mma(0), making.let(Var("x", 0, 3), as_expr(1)), mma(64)) == [
        "registers",
        "product",
        "let",
        "product",
        "commit",
    ]


def test_registers_are_waited_for_before_others_touch_them():
    assert batched(mma(0), on_registers(write=False)) == ["registers", "product", "commit", "wait 0", "."]
    assert batched(mma(0), on_registers("q")) == ["registers", "product", "commit", "."], "other registers"
    assert batched(mma(0), on_registers(), on_registers()) == ["registers", "product", "commit", "wait 0", ".", "."], "once"
    assert batched(on_registers(), mma(0)) == [".", "registers", "product", "commit"], "before it nothing is under way"


def test_the_wait_says_for_whom():
    (said,) = [
        one for one in wgmma_waits(program(mma(0), mma(64, registers="q"), on_registers(), on_registers("q"))).body if isinstance(one, Wait)
    ]
    assert said.reason == "r is complete" and said.groups == 0
    both = program(mma(0), mma(64, registers="q"), loop(2, on_registers(), on_registers("q")))
    (said,) = [one for one in wgmma_waits(both).body if isinstance(one, Wait)]
    assert said.reason == "q, r are complete"


def test_the_wait_stands_in_front_of_notes():
    assert batched(mma(0), making.comment("store"), on_registers()) == ["registers", "product", "commit", "wait 0", "comment", "."]


def test_a_loop_that_only_adds_up_is_not_waited_for():
    body = [loop(4, mma(i * 16), reads(T)), on_registers(write=False)]
    assert batched(*body) == [["registers", "product", "commit", "."], "wait 0", "."]


def test_what_an_iteration_leaves_the_next_one_waits_for():
    assert batched(loop(4, on_registers(), mma(i * 16))) == [["wait 0", ".", "registers", "product", "commit"]]
    assert batched(mma(0), loop(4, on_registers(), mma(i * 16))) == [
        "registers", "product", "commit", ["wait 0", ".", "registers", "product", "commit"],
    ]  # fmt: skip


def test_a_loop_that_touches_what_others_left_is_waited_for_in_front():
    assert batched(mma(0), loop(4, on_registers())) == ["registers", "product", "commit", "wait 0", ["."]]


# ---------------------------------------------------------------------------------------------- fence


def test_a_turn_that_is_never_given_back():
    ring = making.ring("ring", 2, ("s",), bytes=64, consumers=4)
    (filled,) = writes(0).accesses
    load = attrs.evolve(writes(0), accesses=(filled, filled), mechanism=TMA_LOADS, ring="ring")
    body = loop(8, making.acquire("ring", StageState.FULL, i), mma(0))
    for given_back in (False, True):
        rest = (making.release("ring", StageState.EMPTY, i),) if given_back else ()
        asked = attrs.evolve(program(load, attrs.evolve(body, body=(*body.body, *rest))), rings=(ring,))
        if given_back:
            assert "release" in text(wgmma_waits(asked).body)[1]
        else:
            with pytest.raises(VerificationError, match="ring ring: fill i is acquired full, but never released"):
                wgmma_waits(asked)


def fenced(*body):
    return text(fence(program(*body)).body)


def test_without_engines_nothing_is_fenced():
    one = program(writes(T), BLOCK_BARRIER, reads(127 - T))
    assert fence(one) is one


def test_a_fence_stands_in_front_of_the_first_barrier_behind_a_write():
    assert fenced(writes(T), BLOCK_BARRIER, making.barrier(BLOCK_BARRIER.scope, "next"), mma(0)) == [
        ".",
        "proxy",
        "block",
        "block",
        "product",
    ]
    assert fenced(writes(T), WARP_BARRIER, mma(0)) == [".", "proxy", "warp", "product"]


def test_only_what_engines_read_is_fenced():
    assert fenced(writes(T, name="t"), BLOCK_BARRIER, mma(0)) == [".", "block", "product"]
    assert fenced(reads(T), BLOCK_BARRIER, mma(0)) == [".", "block", "product"]


def test_copies_are_fenced_where_they_have_arrived():
    body = [copies(T), making.commit(), BLOCK_BARRIER, making.wait(0), making.barrier(BLOCK_BARRIER.scope, "b"), mma(0)]
    assert fenced(*body) == ["copy", "copied", "block", "arrive 0", "proxy", "block", "product"]
    assert fenced(copies(T), making.commit(), SETTLED, BLOCK_BARRIER, mma(0)) == ["copy", "copied", "wait 0", "block", "product"]


def test_a_fence_in_a_loop_is_for_what_the_iteration_before_wrote():
    first = making.barrier(BLOCK_BARRIER.scope, "first")
    assert fenced(loop(4, first, mma(0), writes(T + 512))) == [["proxy", "block", "product", "."]]


def test_a_fence_names_the_buffers():
    both = mma(0)
    other = mma(0, name="t")
    (found,) = [one for one in fence(program(writes(T), writes(T, name="t"), BLOCK_BARRIER, both, other)).body if isinstance(one, Fence)]
    assert found == making.fence(FenceKind.ASYNC_PROXY, "make s, t visible to the async proxy")


def test_passes_refuse_a_statement_that_they_do_not_know():
    class Strange(ir.Stmt):
        children = ()

    with pytest.raises(VerificationError, match="Strange"):
        fence(program(mma(0), Strange()))
    with pytest.raises(VerificationError, match="Strange"):
        check_wgmma_registers(AccessTrace(program(mma(0), Strange())))


# ---------------------------------------------------------------------------------------------- all passes, both checks


def lowered(*body, **options):
    return fence(wait(synchronize(wgmma_waits(program(*body, **options)))))


def problems(one):
    access_trace = AccessTrace(one)
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
def test_the_passes_leave_nothing_unordered(name):
    found = lowered(*PROGRAMS[name])
    assert problems(found) == [], text(found.body)


def without(body, number):
    """The program without its `number`-th ordering statement, counted through loops; and that statement."""
    seen = [one for one in ir.statements(body) if isinstance(one, (Fence, Barrier, Commit, Wait))]
    if number >= len(seen):
        return None, None
    gone = seen[number]
    return ir.rewritten(body, lambda one: () if one is gone else (one,)), gone


@pytest.mark.parametrize("name", PROGRAMS)
def test_each_statement_of_order_is_needed(name):
    """All that the passes put there, but for a wait behind one for all products, and a fence of registers that nobody touched since."""
    whole, number, spare = lowered(*PROGRAMS[name]), 0, []
    while True:
        body, gone = without(whole.body, number)
        if body is None:
            break
        if not problems(attrs.evolve(whole, body=body)):
            spare.append(gone)
        number += 1
    assert number >= 5
    waits = [one for one in spare if isinstance(one, Wait)]
    assert all(one.mechanism is MMA_GROUPS and one.reason == "r is complete" for one in waits), spare
    assert [one for one in spare if one not in waits] == ([making.fence(FenceKind.WGMMA_REGISTERS)] if name == "two buffers" else [])


def test_accumulators_touched_before_the_wait():
    bad = program(REGISTERS_FENCE, mma(0), COMMITTED, on_registers(), SETTLED)
    assert problems(bad) == ["r: step Move(1,1)(RF,SH)(Thread) accesses it, but it is used by an MMA in flight"]
    assert problems(program(REGISTERS_FENCE, mma(0), COMMITTED, SETTLED, on_registers())) == []


def test_products_behind_ordinary_touches():
    (message,) = problems(program(on_registers(), mma(0), COMMITTED, SETTLED))
    assert message == "r: engine MatMul(1,1,1)(SH,SH,RF)(Warpgroup) accesses it, but it was accessed since the last wgmma.fence"
    assert problems(program(REGISTERS_FENCE, on_registers("q"), mma(0), COMMITTED, SETTLED)) == [], "other registers"
    assert problems(program(REGISTERS_FENCE, mma(0), mma(16), COMMITTED, SETTLED)) == [], "products among each other"


def test_touches_between_a_product_and_its_commit():
    bad = program(REGISTERS_FENCE, mma(0), on_registers(), COMMITTED, SETTLED)
    assert problems(bad) == ["r: step Move(1,1)(RF,SH)(Thread) accesses it, but it is used by an MMA in flight"]


def test_touches_in_the_next_iteration():
    step = (on_registers(), REGISTERS_FENCE, mma(0), COMMITTED)
    assert any("is used by an MMA in flight" in one for one in problems(program(loop(3, *step), SETTLED)))
    assert problems(program(loop(1, *step), SETTLED)) == [] == problems(program(loop(3, *step, SETTLED)))
    late = (on_registers(), REGISTERS_FENCE, mma(0), COMMITTED, making.wait(1, mechanism=MMA_GROUPS))
    assert problems(program(loop(K, *late))) != [], "one group is left"


def test_products_that_nobody_commits():
    assert problems(program(REGISTERS_FENCE, mma(0))) == ["r: an MMA is never committed, so no wait covers it"]


def test_waits_count_groups_of_products_alone():
    copy = (copies(T, name="t"), making.commit())
    body = (REGISTERS_FENCE, mma(0), COMMITTED, *copy, making.wait(0), on_registers())
    assert any("in flight" in one for one in problems(program(*body))), "the copies arrived, the product did not"
    assert problems(program(REGISTERS_FENCE, mma(0), COMMITTED, *copy, SETTLED, on_registers())) == []
    two = (REGISTERS_FENCE, mma(0), COMMITTED, mma(16, registers="q"), COMMITTED)
    assert problems(program(*two, making.wait(1, mechanism=MMA_GROUPS), on_registers())) == []
    assert problems(program(*two, making.wait(1, mechanism=MMA_GROUPS), on_registers("q"))) != []


def test_a_product_reads_until_it_is_waited_for():
    """Writing there races with it; reading does not. A wait alone is for the own thread, a barrier tells the others."""
    product = (REGISTERS_FENCE, mma(0), COMMITTED)
    assert problems(program(*product, BLOCK_BARRIER, writes(FAR))) != []
    assert problems(program(*product, SETTLED, writes(FAR))) != []
    assert problems(program(*product, SETTLED, BLOCK_BARRIER, writes(FAR))) == []
    assert problems(program(*product, BLOCK_BARRIER, reads(FAR))) == []


def test_the_proxy_sees_what_was_fenced_in_front_of_the_barrier():
    product = (REGISTERS_FENCE, mma(0), COMMITTED, SETTLED)
    assert problems(program(writes(T), PROXY_FENCE, BLOCK_BARRIER, *product)) == []
    (message,) = problems(program(writes(T), BLOCK_BARRIER, *product))
    assert "through the async proxy, and no fence.proxy.async is between" in message
    assert problems(program(writes(T), BLOCK_BARRIER, PROXY_FENCE, *product)) != [], "a fence is for what the own thread wrote"
    assert problems(program(PROXY_FENCE, writes(T), BLOCK_BARRIER, *product)) != []
    assert problems(program(writes(T), REGISTERS_FENCE, BLOCK_BARRIER, *product)) != [], "one of registers says nothing of memory"
    assert problems(program(copies(T), making.commit(), PROXY_FENCE, making.wait(0), BLOCK_BARRIER, *product)) != [], (
        "what is under way is not fenced"
    )
    assert problems(program(copies(T), making.commit(), making.wait(0), PROXY_FENCE, BLOCK_BARRIER, *product)) == []
    assert problems(program(writes(T), PROXY_FENCE, BLOCK_BARRIER, reads(FAR), *product)) == [], "reading hides nothing"


# ---------------------------------------------------------------------------------------------- the first fence, and ways that part

FIRST = "r: engine MatMul(1,1,1)(SH,SH,RF)(Warpgroup) accesses it, but it belongs to the first MMA, which no wgmma.fence precedes"
UNDER_WAY = "r: step Move(1,1)(RF,SH)(Thread) accesses it, but it is used by an MMA in flight"
SINCE_FENCE = "r: engine MatMul(1,1,1)(SH,SH,RF)(Warpgroup) accesses it, but it was accessed since the last wgmma.fence"
AT_MOST = Var("count", 0, 5, 1, True)
AT_LEAST = Var("least", 1, 5, 1, True)
GROUP_OF_R = (mma(0), COMMITTED, SETTLED)


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
def test_a_fence_is_before_the_first_product_though_nothing_touched_its_registers(body):
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
def test_one_fence_is_enough_for_registers_that_only_products_touch(body):
    assert problems(program(*body)) == []


def test_the_first_fence_is_one_of_each_role():
    """The fence of one warpgroup is none of another; one before they part is one of all."""

    def roles(*bodies):
        return making.roles(tuple(making.role(f"group {n}", 128 * n, 128, body) for n, body in enumerate(bodies)))

    fenced = (REGISTERS_FENCE, *GROUP_OF_R)

    def of(*body):
        return [one.message for one in check_wgmma_registers(AccessTrace(kernel(*body, threads=256, buffers=BUFFERS)))]

    assert of(roles(fenced, fenced)) == []
    assert of(roles(fenced, GROUP_OF_R)) == [FIRST] == of(roles(GROUP_OF_R, fenced))
    assert of(REGISTERS_FENCE, roles(GROUP_OF_R, GROUP_OF_R)) == []
    left = (REGISTERS_FENCE, mma(0), COMMITTED)
    assert of(roles(left, fenced), on_registers()) == [UNDER_WAY] == of(roles(fenced, left), on_registers()), "any of them goes on"


def test_what_a_loop_orders_that_may_have_no_turn():
    begun = (REGISTERS_FENCE, mma(0), COMMITTED)
    assert problems(program(*begun, loop(AT_MOST, SETTLED), on_registers())) == [UNDER_WAY]
    assert problems(program(*begun, loop(AT_LEAST, SETTLED), on_registers())) == []
    assert problems(program(*begun, SETTLED, on_registers(), loop(AT_MOST, REGISTERS_FENCE), *GROUP_OF_R)) == [SINCE_FENCE]
    # A wait that leaves one group under way leaves the younger one, on whichever way it came.
    later = (REGISTERS_FENCE, mma(16, registers="q"), COMMITTED)
    leaving = (*begun, loop(AT_MOST, *later), making.wait(1, mechanism=MMA_GROUPS))
    assert problems(program(*leaving, on_registers())) == [UNDER_WAY]
    assert problems(program(*begun, loop(AT_LEAST, *later), making.wait(1, mechanism=MMA_GROUPS), on_registers())) == []


def test_a_finding_names_the_line():
    (finding,) = check_wgmma_registers(AccessTrace(program(attrs.evolve(mma(0), origin="mine.py:7"), COMMITTED, SETTLED)))
    assert (finding.at, finding.buffer, finding.severity) == ("mine.py:7", "r", "error")
