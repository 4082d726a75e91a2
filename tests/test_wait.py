"""The pass `wait`: before which barriers a thread waits, how many groups may be in flight, and the reasons."""

import attrs
import making
import pytest
from touching import BLOCK_BARRIER, MMA_GROUPS, WARP_BARRIER, K, T, buffer, copies, i, kernel, loop, mma, reads, touch, writes

from fireiron import GL, RF, ir
from fireiron.check import AccessTrace, check_races
from fireiron.errors import SynchronizationError, VerificationError
from fireiron.ir import WARPGROUP_SCOPE, Wait
from fireiron.ir.mechanisms.cp_async import CP_ASYNC_GROUPS
from fireiron.ir.mechanisms.tma_store import TMA_STORES
from fireiron.lower.wait import wait
from fireiron.values.expr import as_expr, less

FAR = 127 - T
RING = (buffer("s", 1024),)
WITH_REGISTERS = (*RING, buffer("r", 4, memory=RF))


def block():
    """A new barrier: a wait precedes one barrier, not all equal ones."""
    return making.barrier(attrs.evolve(BLOCK_BARRIER).scope, "its own")


def waited(*body, **options):
    """The groups of each wait in program order, and a check that nothing is missed."""
    options.setdefault("buffers", RING)
    done = wait(kernel(*body, symbols=(K,), **options))
    assert not check_races(AccessTrace(done)), done.body
    return [(one.groups, one.reason) for one in ir.statements(done.body) if isinstance(one, Wait)]


def groups(*body, **options):
    return [number for number, _ in waited(*body, **options)]


def test_without_copies_nothing_waits():
    program = kernel(writes(T), BLOCK_BARRIER, reads(FAR))
    assert wait(program) is program


def test_a_wait_is_directly_before_the_barrier():
    done = wait(kernel(copies(T), making.commit(), BLOCK_BARRIER, reads(FAR)))
    assert [type(one).__name__ for one in done.body] == ["Exec", "Commit", "Wait", "Barrier", "Exec"]


def test_as_many_groups_stay_in_flight_as_were_committed_later():
    later = [one for number in range(1, 4) for one in (copies(T + 128 * number), making.commit())]
    for count in range(4):
        assert groups(copies(T), making.commit(), *later[: 2 * count], BLOCK_BARRIER, reads(FAR)) == [count]


def test_the_last_barrier_before_the_access_waits():
    first, last = block(), making.barrier(BLOCK_BARRIER.scope, "last")
    done = wait(kernel(copies(T), making.commit(), first, last, reads(FAR)))
    assert [type(one).__name__ for one in done.body] == ["Exec", "Commit", "Barrier", "Wait", "Barrier", "Exec"]


def test_completed_groups_are_not_waited_for_again():
    body = (copies(T), making.commit(), block(), reads(FAR), making.barrier(BLOCK_BARRIER.scope, "b"), reads(T))
    assert groups(*body) == [0]


def test_wgmma_is_waited_for_where_its_operands_are_overwritten():
    """As many groups stay in flight as were committed later; reading operands requires no wait."""
    product = (mma(0), making.commit(MMA_GROUPS))
    assert waited(*product, block(), writes(FAR), buffers=WITH_REGISTERS) == [(0, "s has been read")]
    assert groups(*product, mma(512), making.commit(MMA_GROUPS), block(), writes(FAR), buffers=WITH_REGISTERS) == [1]
    assert groups(*product, block(), reads(FAR), buffers=WITH_REGISTERS) == []
    assert groups(*product, block(), writes(T + 512), buffers=WITH_REGISTERS) == []


def test_wgmma_groups_and_copy_groups_are_counted_separately():
    """One barrier may need both; waits for copies come first."""
    product = (mma(0), making.commit(MMA_GROUPS))
    copy = (copies(T + 512), making.commit())
    body = (*product, *copy, block(), writes(FAR), reads(FAR + 512))
    assert waited(*body, buffers=WITH_REGISTERS) == [(0, "s has arrived"), (0, "s has been read")]
    kinds = [one.mechanism for one in wait(kernel(*body, buffers=WITH_REGISTERS)).body if isinstance(one, Wait)]
    assert kinds == [CP_ASYNC_GROUPS, MMA_GROUPS]


def test_a_wait_for_accumulators_covers_the_operands_too():
    """`wgmma_waits` inserted it, so the barrier after it needs no other wait."""
    body = (mma(0), making.commit(MMA_GROUPS), making.wait(0, reason="r is complete", mechanism=MMA_GROUPS), block(), writes(FAR))
    assert waited(*body, buffers=WITH_REGISTERS) == [(0, "r is complete")]


def test_operands_overwritten_without_a_barrier_are_refused():
    with pytest.raises(SynchronizationError, match="s is accessed while MMAs of it are in flight, without a barrier in between"):
        wait(kernel(mma(0), making.commit(MMA_GROUPS), writes(FAR), buffers=WITH_REGISTERS))


def test_a_barrier_uses_the_smallest_required_number():
    two = (copies(T), making.commit(), copies(T + 128), making.commit())
    assert groups(*two, block(), reads(FAR), reads(FAR + 128)) == [0]
    assert groups(*two, block(), reads(FAR + 128), reads(FAR)) == [0]
    assert groups(*two, block(), reads(FAR), making.barrier(BLOCK_BARRIER.scope, "b"), reads(FAR + 128)) == [1, 0]


def test_a_wait_names_all_that_arrives():
    buffers = (buffer("a", 128), buffer("b", 128, offset=512), buffer("c", 128, offset=1024))
    first, second, third = (copies(T, name=name) for name in "abc")
    assert waited(first, second, making.commit(), block(), reads(FAR, name="a"), buffers=buffers) == [(0, "a, b have arrived")]
    assert waited(
        first, making.commit(), second, making.commit(), third, making.commit(), block(), reads(FAR, name="b"), buffers=buffers
    ) == [(1, "a, b have arrived")]
    assert waited(first, making.commit(), second, making.commit(), block(), reads(FAR, name="a"), buffers=buffers) == [(1, "a has arrived")]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("stages", [2, 3, 4])
@pytest.mark.parametrize("extent", [1, 2, 5, 50, 51, 52, K])
def test_a_ring_keeps_all_but_one_stage_in_flight(stages, extent):
    """Prologue, then: arrive, copy `stages - 1` ahead, use; conditions are false in the last iterations."""
    ahead = stages - 1
    prologue = [one for number in range(ahead) for one in (copies(T + 128 * number), making.commit())]
    inside = less(i + ahead, as_expr(extent))
    body = (block(), copies(T + (i + ahead) % stages * 128, active=inside), making.commit(), reads(FAR + i % stages * 128))
    assert groups(*prologue, loop(extent, *body, period=stages)) == [ahead - 1]


def test_after_a_loop_of_any_length():
    """The stage read after the loop may have been written in its last iteration, or in any earlier one."""
    load = loop(K, copies(T + i % 2 * 128), making.commit(), making.barrier(BLOCK_BARRIER.scope, "in the loop"), period=2)
    assert groups(load, block(), reads(FAR)) == [1, 0]


def test_a_barrier_of_a_loop_that_may_not_run_does_not_wait():
    inner = loop(K, making.barrier(BLOCK_BARRIER.scope, "maybe"), reads(T + 512))
    assert groups(copies(T), making.commit(), block(), inner, reads(FAR))[0] == 0


def test_a_narrow_barrier_waits_if_there_is_no_wider_one():
    near = T // 32 * 32 + (31 - T % 32)
    assert groups(copies(T), making.commit(), making.barrier(WARP_BARRIER.scope, "w"), reads(near)) == [0]
    done = wait(kernel(copies(T), making.commit(), block(), making.barrier(WARP_BARRIER.scope, "w"), reads(FAR)))
    assert [type(one).__name__ for one in done.body] == ["Exec", "Commit", "Wait", "Barrier", "Barrier", "Exec"]
    whole = wait(
        kernel(copies(T), making.commit(), making.barrier(WARPGROUP_SCOPE, "g"), making.barrier(WARP_BARRIER.scope, "w"), reads(FAR))
    )
    assert [type(one).__name__ for one in whole.body] == ["Exec", "Commit", "Wait", "Barrier", "Barrier", "Exec"]


def test_a_wait_of_a_warp_does_not_cover_the_block():
    near = T // 32 * 32 + (31 - T % 32)
    body = (
        copies(T),
        making.commit(),
        block(),
        copies(T + 128),
        making.commit(),
        making.barrier(WARP_BARRIER.scope, "w"),
        reads(near + 128),
        reads(FAR),
    )
    assert groups(*body) == [0, 0]


def test_one_statement_in_two_loops():
    """The same object in two loops with different trip counts."""
    load = copies(T + i * 128)
    first, second = loop(2, load, making.commit()), loop(4, load, making.commit())
    assert groups(first, block(), second, making.barrier(BLOCK_BARRIER.scope, "b"), reads(FAR + 384)) == [0, 0]


def test_no_barrier_to_wait_at():
    with pytest.raises(SynchronizationError, match="s is accessed while copies to it are in flight, without a barrier in between"):
        wait(kernel(copies(T), making.commit(), reads(T)))
    with pytest.raises(SynchronizationError):
        wait(kernel(copies(T), making.commit(), loop(K, block()), reads(T), symbols=(K,)))
    trusted = kernel(copies(T), making.commit(), reads(T), unchecked=("I know",))
    assert wait(trusted).body == trusted.body


def test_a_copy_that_is_not_executed_is_not_waited_for():
    never = copies(T + 128, active=less(i, 0))
    body = loop(
        3,
        copies(T),
        making.commit(),
        never,
        making.commit(),
        block(),
        reads(FAR),
        making.barrier(BLOCK_BARRIER.scope, "b"),
        reads(FAR + 128),
    )
    assert groups(body) == [1]


def test_an_access_that_is_not_executed_waits_for_nothing():
    """All but the first iteration read the first iteration's copy, so the group of the second may still be in flight."""
    late = reads(FAR, active=less(0, i))
    assert groups(loop(4, copies(T + i * 128), making.commit(), block(), late)) == [1]
    assert groups(loop(4, copies(T + i * 128), making.commit(), block(), reads(FAR))) == [0]


def test_an_unknown_statement_is_refused():
    @attrs.frozen
    class Other(ir.Stmt):
        pass

    with pytest.raises(VerificationError, match="wait does not handle the statement Other"):
        wait(kernel(copies(T), making.commit(), Other(), reads(T)))


def test_the_last_wait_names_the_sources_of_pending_stores():
    """The block's memory is released after it, so the source of the stores matters, not their destination."""
    source, target = reads(T).accesses[0], touch(T, write=True, name="g").accesses[0]
    store = attrs.evolve(reads(T), accesses=(source, target), mechanism=TMA_STORES)
    array = buffer("g", 128, memory=GL)
    program = wait(kernel(store, buffers=(buffer("s", 128), array)))
    (last,) = [one for one in ir.statements(program.body) if isinstance(one, Wait)]
    assert program.body[-1] is last and (last.groups, last.mechanism) == (0, TMA_STORES)
    assert [(one.buffer, one.kind) for one in last.orders] == [("s", "read -> end")]
