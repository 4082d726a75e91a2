"""Barrier positions: each rule on hand-made programs, and random programs in which every barrier is needed."""

import itertools
import random
import types

import attrs
import making
import pytest
from handmade import THREAD, access, execution, kernel_of
from touching import (
    BLOCK_BARRIER,
    T256,
    WARP_BARRIER,
    K,
    Step,
    T,
    buffer,
    copies,
    i,
    kernel,
    loop,
    placed,
    reads,
    shape,
    touch,
    writes,
)

from fireiron import *
from fireiron import ir
from fireiron.check import AccessTrace, check_races
from fireiron.errors import SynchronizationError, VerificationError
from fireiron.ir import Barrier, Exec, For, Wait
from fireiron.ir.mechanisms.cp_async import CP_ASYNC_GROUPS
from fireiron.ir.mechanisms.tma_store import TMA_STORES
from fireiron.lower.dependences import scopes_of
from fireiron.lower.synchronize import _pending, synchronize
from fireiron.lower.wait import wait
from fireiron.values.expr import TRUE, Var, as_expr, equal, less
from fireiron.values.layout import Swizzle

FAR, NEAR = 127 - T, T // 2 * 2 + (T + 1) % 2


def reasons(*body, **options):
    return [one.reason for one in ir.statements(synchronize(kernel(*body, **options)).body) if isinstance(one, Barrier)]


def buffers(count):
    return [buffer(f"s{number}", 128, offset=512 * number) for number in range(count)]


def free(name="s"):
    return making.sync_point(False, name, origin="hand.py:7")


# ---------------------------------------------------------------------------------------------- number of barriers


@pytest.mark.sampled(1)
@pytest.mark.parametrize("count", range(1, 13))
def test_disjoint_hazards_get_a_barrier_each(count):
    body = [one for number in range(count) for one in (writes(T, name=f"s{number}"), reads(FAR, name=f"s{number}"))]
    assert placed(*body, buffers=buffers(count)) == [".", "block", "."] * count


@pytest.mark.sampled(1)
@pytest.mark.parametrize("count", range(1, 13))
def test_hazards_that_share_a_position_share_a_barrier(count):
    names = [f"s{number}" for number in range(count)]
    body = [*(writes(T, name=name) for name in names), *(reads(FAR, name=name) for name in names)]
    assert placed(*body, buffers=buffers(count)) == [*"." * count, "block", *"." * count]


def test_the_latest_position_is_preferred_and_a_best_one_before_it():
    other = touch(T, write=True, name="t")
    buffers = (buffer("s", 128), buffer("t", 128, offset=512))
    assert placed(writes(T), other, reads(FAR), buffers=buffers) == [".", ".", "block", "."]
    assert placed(writes(T), making.sync_point(None, "s"), other, reads(FAR), buffers=buffers) == [".", "block", ".", "."]


def test_what_no_other_thread_touches_needs_no_barrier():
    assert placed(writes(T), reads(T), writes(T)) == [".", ".", "."]
    assert placed(reads(T), reads(FAR)) == [".", "."]
    some = less(T, as_expr(16))
    assert placed(writes(T, active=some), reads(FAR, active=some)) == [".", "."]


# ---------------------------------------------------------------------------------------------- scopes


def test_the_narrowest_scope_that_contains_every_conflict():
    inside = T256 // 128 * 128 + (127 - T256 % 128)
    neighbor = T256 // 2 * 2 + (T256 + 1) % 2
    for place, scope in ((neighbor, "warp"), (inside, "warpgroup"), (255 - T256, "block")):
        assert placed(writes(T256), reads(place), threads=256) == [".", scope, "."]
        assert placed(reads(place), writes(T256), threads=256) == [".", scope, "."]
    one_astray = writes(T256), reads((T256 + 1) % 256)
    assert placed(*one_astray, threads=256) == [".", "block", "."]


def test_the_scopes_of_a_block():
    names = {threads: [str(scope) for scope in scopes_of(kernel(threads=threads))] for threads in (32, 128, 160, 256, 384)}
    all_scopes = ["warp", "warpgroup", "block"]
    assert names == {32: ["warp", "block"], 128: ["warp", "block"], 160: ["warp", "block"], 256: all_scopes, 384: all_scopes}
    thread = Var("thread", 0, 159)
    assert placed(writes(thread), reads((thread + 64) % 128, active=less(thread, as_expr(128))), threads=160) == [".", "block", "."]


@pytest.mark.parametrize(
    ("threads", "scopes"), [(128, ["warp", "warpgroup"]), (64, ["warp", "products"]), (256, ["warp", "warpgroup", "products"])]
)
def test_the_scopes_of_roles(threads, scopes):
    """The widest scope is that of the first role; if that is one warpgroup, it is listed once."""
    roles = making.roles((making.role("products", 0, threads, ()), making.role("producer", threads, 32, (), elected=True)))
    assert [scope.name for scope in scopes_of(attrs.evolve(kernel(threads=threads), body=(roles,)))] == scopes


def test_a_wide_barrier_covers_narrow_hazards_too():
    buffers = (buffer("s", 128), buffer("t", 128, offset=512))
    body = (writes(T), writes(T, name="t"), reads(NEAR), reads(FAR, name="t"))
    assert placed(*body, buffers=buffers) == [".", ".", "block", ".", "."]
    assert placed(writes(T), writes(T, name="t"), reads(FAR, name="t"), reads(NEAR), buffers=buffers) == [".", ".", "block", ".", "."]


def test_an_existing_barrier_counts_for_its_scope():
    assert placed(writes(T), BLOCK_BARRIER, reads(FAR)) == [".", "block", "."]
    assert placed(writes(T), WARP_BARRIER, reads(NEAR)) == [".", "warp", "."]
    assert placed(writes(T), WARP_BARRIER, reads(FAR)) == [".", "warp", "block", "."]


# ---------------------------------------------------------------------------------------------- reasons


def test_what_a_barrier_is_for():
    assert reasons(writes(T), reads(FAR)) == ["s complete"]
    assert reasons(writes(T), writes(FAR)) == ["s complete"]
    assert reasons(reads(FAR), writes(T)) == ["s free again"]
    buffers = (buffer("s", 128), buffer("t", 128, offset=512))
    both = (writes(T), reads(T, name="t"), reads(FAR), writes(FAR, name="t"))
    assert reasons(*both, buffers=buffers) == ["s complete; t free again"]
    assert reasons(writes(T), reads(T), writes(FAR)) == ["s complete and free again"]
    assert reasons(writes(T), writes(T, name="t"), reads(FAR), reads(FAR, name="t"), buffers=buffers) == ["s, t complete"]
    assert reasons(making.sync_point(True, "k")) == ["requested by sync"]


def test_each_hazard_is_credited_to_the_first_barrier_after_it():
    """The back edge of the loop crosses both barriers and is credited to one."""
    assert reasons(loop(4, writes(T), reads(FAR))) == ["s complete", "s free again"]
    assert reasons(writes(T), reads(FAR), writes(T), reads(FAR)) == ["s complete", "s free again", "s complete"]


# ---------------------------------------------------------------------------------------------- loops


@pytest.mark.sampled(1)
@pytest.mark.parametrize("extent", [2, 3, 1000, K])
def test_the_back_edge_of_a_loop(extent):
    symbols = (K,) if extent is K else ()
    assert placed(loop(extent, writes(T), reads(FAR)), symbols=symbols) == [[".", "block", ".", "block"]]
    assert placed(loop(extent, reads(FAR)), writes(T), symbols=symbols) == [["."], "block", "."]
    own = loop(extent, writes(T), reads(NEAR))
    assert placed(own, symbols=symbols) == [[".", "warp", ".", "warp"]]


def test_one_iteration_carries_nothing():
    assert placed(loop(1, writes(T), reads(FAR))) == [[".", "block", "."]]


def test_a_loop_that_may_not_run_orders_nothing():
    inner = loop(K, writes(T + 512), BLOCK_BARRIER)
    body = (writes(T), inner, reads(FAR))
    assert placed(*body, symbols=(K,)) == [".", [".", "block"], "block", "."]
    maybe = loop(Var("n", 0, 8), writes(T + 512), BLOCK_BARRIER)
    assert placed(writes(T), maybe, reads(FAR), symbols=(Var("n", 0, 8),)) == [".", [".", "block"], "block", "."]
    sure = loop(2, writes(T + 512), BLOCK_BARRIER)
    assert placed(writes(T), sure, reads(FAR)) == [".", [".", "block"], "."]


def test_a_barrier_of_an_inner_loop_counts_on_the_back_edge():
    """The arc from the write after an inner loop around to the read before it contains the loop's barrier."""
    inner = loop(2, BLOCK_BARRIER, reads(T + 512), var=Var("j", 0, 1))
    assert placed(loop(4, reads(FAR), inner, writes(T))) == [[".", ["block", "."], ".", "block"]]
    assert placed(loop(4, reads(FAR), loop(2, BLOCK_BARRIER, var=Var("j", 0, 1)), writes(T), BLOCK_BARRIER)) == [
        [".", ["block"], ".", "block"]
    ]


def test_stages_that_conflict_in_the_next_iteration_or_later():
    """Two stages written ahead of their reads, with the same addresses every second or third iteration."""

    def ring(stages, ahead):
        body = (writes(T + (i + ahead) % stages * 128), reads(FAR + i % stages * 128))
        return placed(loop(50, *body, period=stages))

    assert ring(2, 0) == [[".", "block", "."]]
    assert ring(2, 1) == [[".", ".", "block"]]
    assert ring(3, 1) == [[".", ".", "block"]]
    assert ring(1, 0) == [[".", "block", ".", "block"]]


def test_what_conflicts_only_later_takes_any_position():
    """Written in one iteration and read two iterations later: one barrier anywhere, at the latest position."""
    body = (reads(FAR + i % 3 * 128), reads(T + 512), writes(T + (i + 2) % 3 * 128))
    assert placed(loop(50, *body, period=3)) == [[".", ".", ".", "block"]]
    assert placed(loop(50, writes(T + i % 3 * 128), reads(FAR + (i + 1) % 3 * 128), period=3)) == [[".", ".", "block"]]


def test_statements_before_and_after_a_pipelined_loop_conflict_with_its_first_and_last_iteration():
    body = (writes(T + i % 2 * 128), reads(FAR + i % 2 * 128))
    first = writes(FAR + 128)
    assert placed(first, loop(50, *body, period=2)) == [".", [".", "block", "."]]
    assert placed(writes(FAR), loop(50, *body, period=2)) == [".", "block", [".", "block", "."]]
    assert placed(loop(50, *body, period=2), writes(T)) == [[".", "block", "."], "."]
    assert placed(loop(50, *body, period=2), writes(T + 128)) == [[".", "block", "."], "block", "."]
    assert placed(loop(51, *body, period=2), writes(T)) == [[".", "block", "."], "block", "."]
    assert placed(loop(K, *body, period=2), writes(T), symbols=(K,)) == [[".", "block", "."], "block", "."]


def test_a_narrow_barrier_in_a_pipelined_loop_leaves_all_iterations_exposed():
    """The loop's warp barrier does not order earlier writes of other warps, in any stage."""
    body = (writes(T + i % 2 * 128), reads(NEAR + i % 2 * 128))
    assert placed(writes(FAR + 128), loop(50, *body, period=2)) == [".", "block", [".", "warp", "."]]
    assert placed(loop(50, *body, period=2), writes(FAR)) == [[".", "warp", "."], "block", "."]


def test_conditions_and_extents_of_a_block_count_as_true():
    block = Var("block", 0, 7)
    late = less(as_expr(3), block)
    assert placed(writes(T, active=late), reads(FAR), grid=8) == [".", "block", "."]
    named = Var("half", 0, 1)
    after_let = (making.let(named, block // 4), writes(T, active=less(0, named)), reads(FAR))
    assert placed(*after_let, grid=8) == [".", "block", "."]
    extent = loop(block, writes(T + 512), BLOCK_BARRIER)
    assert placed(writes(T), extent, reads(FAR), grid=8) == [".", [".", "block"], "block", "."]


# ---------------------------------------------------------------------------------------------- requested positions


def test_a_required_barrier_is_placed_and_covers_hazards():
    assert placed(writes(T), making.sync_point(True, "k"), writes(T + 512), reads(FAR)) == [".", "block", ".", "."]
    assert placed(loop(3, writes(T), reads(T), making.sync_point(True, "k"))) == [[".", ".", "block"]]


def test_a_forbidden_position_is_avoided():
    assert placed(writes(T), writes(T + 512), free(), reads(FAR)) == [".", "block", ".", "."]


def test_a_position_that_is_needed_cannot_be_forbidden():
    with pytest.raises(SynchronizationError) as caught:
        placed(writes(T), free("s of mine"), reads(FAR))
    message = str(caught.value)
    assert "thread 0 writes s[0] (Move(1,1)(RF,SH)(Thread) at hand.py:1), thread 127 reads it" in message
    assert "no_sync on s of mine (hand.py:7)" in message and caught.value.at == "hand.py:7"
    with pytest.raises(SynchronizationError, match=r"thread 0 writes s\[0\] .*, thread 0 reads it"):
        placed(copies(T), free("s of mine"), reads(T))
    with pytest.raises(SynchronizationError, match=r"thread 0 writes s\[0\] .*, thread 1 reads it"):
        placed(writes(T), free("s of mine"), reads(T // 2 * 2 + (T + 1) % 2))
    assert placed(writes(T), free(), reads(FAR), unchecked=("I know",)) == [".", "."]


def test_requests_that_change_nothing():
    def ineffective(*body):
        return [(one.require, one.subject) for one in synchronize(kernel(*body)).ineffective]

    assert ineffective(writes(T), making.sync_point(True, "k"), reads(FAR)) == [(True, "k")]
    assert ineffective(writes(T), making.sync_point(True, "k"), reads(NEAR)) == []
    assert ineffective(writes(T), making.sync_point(True, "k")) == []
    assert ineffective(writes(T), free(), reads(T)) == [(False, "s")]
    assert ineffective(writes(T), writes(T + 512), free(), reads(FAR)) == []
    two = (writes(T), free("a"), writes(T + 512), free("b"), writes(T + 1024), reads(FAR))
    assert ineffective(*two) == [(False, "a"), (False, "b")]
    one_of_two = (writes(T), free("a"), writes(T + 512), free("b"), reads(FAR), reads(T), reads(T))
    with pytest.raises(SynchronizationError):
        placed(*one_of_two)
    moved = (writes(T), writes(T + 512), writes(T + 1024), free("b"), reads(FAR), free("c"), reads(T))
    assert ineffective(*moved) == [(False, "c")]
    twice = (writes(T), writes(T + 512), free(), reads(FAR), BLOCK_BARRIER, writes(T + 512), free(), reads(T))
    assert ineffective(*twice) == []


# ---------------------------------------------------------------------------------------------- kinds of accesses


def test_additions_need_no_order_among_each_other():
    plain = Move(1, 1)(RF, SH)(Thread)
    adds = attrs.evolve(writes(T // 2), spec=AtomicAdd.on(plain.level, plain.src, plain.dst))
    assert placed(adds, adds) == [".", "."]
    assert placed(adds, reads(T)) == [".", "block", "."]
    assert placed(adds, writes(T)) == [".", "block", "."]


def test_a_spread_access_belongs_to_the_whole_warp():
    assert placed(writes(T, spread=True), reads(T)) == [".", "warp", "."]
    assert placed(writes(T, spread=True), reads(FAR)) == [".", "block", "."]
    assert placed(writes(T, spread=True)) == ["."]
    assert placed(loop(3, writes(T, spread=True))) == [[".", "warp"]]
    last = equal(T % 32, 31)
    assert placed(writes(T, spread=True), reads(T, active=last)) == [".", "warp", "."], "any lane of the warp may have written it"


def test_a_collective_statement_belongs_to_all_its_threads():
    tile = T // 32 * 32
    assert placed(writes(tile, width=32, level=Warp), reads(T)) == [".", "warp", "."]
    assert placed(writes(0, width=128, level=Block), reads(T)) == [".", "block", "."]
    last_warp = T256 // 128 * 128 + 96 + T256 % 32
    of_group = writes(T256 // 128 * 128, width=128, level=Warpgroup, active=less(95, T256 % 128))
    assert placed(of_group, reads(last_warp), threads=256) == [".", "warpgroup", "."]


def test_buffers_that_overlap():
    overlapping = (buffer("a", 128), buffer("b", 128, offset=256))
    apart = (buffer("a", 128), buffer("b", 128, offset=512))
    body = (reads(FAR, name="a"), writes(T, name="b"))
    assert placed(*body, buffers=overlapping) == [".", "block", "."]
    assert placed(*body, buffers=apart) == [".", "."]
    at_the_end = (buffer("a", 128), buffer("b", 128, offset=512 - 4))
    only_last, only_first = equal(T, 127), equal(T, 0)
    for writer, reader in itertools.permutations((writes(T, name="a", active=only_last), reads(T, name="b", active=only_first))):
        assert placed(writer, reader, buffers=at_the_end) == [".", "block", "."], "one element is enough"
    types = (buffer("a", 128), buffer("b", 128, dtype=float16))
    assert placed(writes(T, name="a"), reads(T, name="b"), buffers=types) == [".", "block", "."]
    assert placed(writes(T, name="a"), reads(2 * T, name="b", width=2, active=less(T, as_expr(64))), buffers=types) == [".", "."]


def test_buffers_that_overlap_in_another_order():
    """Element 9 of one buffer is element 8 of the other, which is not swizzled."""
    plain, other = buffer("a", 128), buffer("b", 128)
    swizzled = attrs.evolve(plain, storage=attrs.evolve(plain.storage, swizzle=Swizzle(1, 0, 3)))
    body = (writes(T, name="a"), reads(T, name="b"))
    assert placed(*body, buffers=(plain, other)) == [".", "."]
    assert placed(*body, buffers=(swizzled, other)) == [".", "warp", "."]


def test_a_name_for_an_expression_of_other_names():
    row, place = Var("row", 0, 1 << 12), Var("place", 0, 1 << 12)
    named = (making.let(row, i * 128), making.let(place, row + T), writes(place))
    assert placed(loop(4, *named, reads(FAR + i * 128), period=4)) == [[".", "block", "."]]
    assert placed(loop(4, *named, reads(T + i * 128), period=4)) == [[".", "."]]


def test_elements_past_the_end_of_a_shared_buffer_do_not_conflict():
    two = (buffer("a", 96), buffer("b", 128, offset=384))
    assert placed(writes(T, name="a"), reads(FAR, name="b"), buffers=two) == [".", "."]
    assert placed(writes(T, name="a"), reads(95 - T, name="a", active=less(T, as_expr(96))), buffers=two) == [".", "block", "."]
    assert placed(writes(T, name="a"), reads(96 + FAR, name="a"), buffers=two) == [".", "."], "they would meet only beyond its end"


def test_a_buffer_that_ends_within_a_piece():
    """Pieces of four elements in a buffer of ten: the last piece is half in bounds."""
    odd = (buffer("a", 10),)
    wide = (writes(4 * (T % 3), name="a", width=4, vectors=(4,)), reads(4 * (FAR % 3), name="a", width=4, vectors=(4,)))
    last = less(1, T % 3)
    assert placed(attrs.evolve(wide[0], active=last), attrs.evolve(wide[1], active=less(1, FAR % 3)), buffers=odd) == [".", "block", "."]


def test_vectors_are_whole_pieces():
    assert placed(writes(4 * T, width=4, vectors=(4,)), reads(4 * T + 4, width=4, vectors=(4,))) == [".", "block", "."]
    assert placed(writes(4 * T, width=4, vectors=(4,)), reads(4 * T, width=4, vectors=(4,))) == [".", "."]
    assert placed(writes(4 * T, width=4, vectors=(4,)), reads(T)) == [".", "block", "."]
    for number in range(4):
        assert placed(writes(4 * T, width=4, vectors=(4,)), reads(4 * T + number)) == [".", "."]
        assert placed(writes(4 * T, width=4, vectors=(4,)), reads(4 * FAR + number)) == [".", "block", "."], "any element of the vector"


def test_copies_of_a_buffer():
    of_warp = [buffer("s", 32)]
    wide = [attrs.evolve(one, tensor=attrs.evolve(one.tensor, copies=4)) for one in of_warp]
    lane = T % 32
    assert placed(writes(lane, copy=T // 32), reads(31 - lane, copy=T // 32), buffers=wide) == [".", "warp", "."]
    assert placed(writes(lane, copy=T // 32), reads(lane, copy=3 - T // 32), buffers=wide) == [".", "block", "."]


def test_arrays_in_global_memory():
    array = (buffer("c", 4096, memory=GL),)
    assert placed(writes(T, name="c"), reads(FAR, name="c"), buffers=array) == [".", "block", "."]
    only_read = tuple(attrs.evolve(one, written=False) for one in array)
    assert placed(writes(T, name="c"), reads(FAR, name="c"), buffers=only_read) == [".", "."]


def test_arrays_of_several_dimensions():
    """A column is written and a row of the same array is read, with no element or one element in common."""
    for column, expected in ((1, [".", "."]), (0, [".", "warp", "."])):
        write = execution(Step(), Move(1, 1)(RF, GL)(Thread), access("dst", (THREAD, 0), write=True))
        read = execution(Step(), Move(1, 1)(GL, RF)(Thread), access("dst", (0, 31 - THREAD + column)))
        assert shape(synchronize(kernel_of(Move(32, 64)(GL, GL), (write, read))).body) == expected


def test_scratch_memory_of_a_statement_is_written_by_all_participants():
    scratch = buffer("scratch", 128, offset=2048)
    uses = writes(T + 128, level=Block, scratch=scratch.tensor)
    buffers = (buffer("s", 512), scratch)
    assert placed(reads(T), reads(T, name="scratch"), buffers=buffers) == [".", "."]
    assert placed(uses, reads(T, name="scratch"), buffers=buffers) == [".", "block", "."]
    assert placed(reads(T, name="scratch"), uses, buffers=buffers) == [".", "block", "."]


# ---------------------------------------------------------------------------------------------- asynchronous copies


def test_a_copy_in_flight_needs_a_barrier_after_its_commit():
    assert placed(copies(T), reads(T)) == [".", "warp", "."]
    assert placed(copies(T), making.commit(), making.sync_point(None, "s"), reads(T)) == [".", "commit", "warp", "."]
    early = (copies(T), making.sync_point(None, "s"), writes(T + 512), making.commit(), reads(FAR))
    assert placed(*early) == [".", ".", "commit", "block", "."]
    assert placed(copies(T), making.sync_point(None, "s"), making.commit(), reads(FAR)) == [".", "commit", "block", "."], (
        "right before it is too early"
    )
    assert placed(copies(T), writes(T)) == [".", "warp", "."]


def test_a_barrier_in_a_loop_of_copies_is_too_early_before_their_commit():
    """Copies that an inner loop issues and the outer list commits: a wait inside does not cover them."""
    steps = loop(2, copies(T), making.sync_point(True, "i"))
    assert placed(steps, making.commit(), reads(T)) == [[".", "block"], "commit", "warp", "."]
    assert placed(steps, loop(2, writes(T + 512), making.sync_point(True, "i")), making.commit(), reads(T))[2:] == ["commit", "warp", "."]
    committed_before = placed(steps, making.commit(), loop(2, writes(T + 512), making.sync_point(True, "i")), reads(T))
    assert committed_before == [[".", "block"], "commit", [".", "block"], "."], "the mbarriers of a loop after the commit are late enough"


def test_what_a_loop_has_committed_needs_no_commit_after_it():
    """Next to a copy that it leaves in flight, for which only barriers after the next commit count."""
    steps = loop(2, copies(T + i * 128), making.commit(), copies(T + 512 + i * 128))
    between = loop(2, writes(T + 1024), making.sync_point(True, "i"))
    assert placed(steps, between, making.commit(), reads(T)) == [[".", "commit", "."], [".", "block"], "commit", "."]
    assert placed(steps, between, making.commit(), reads(T + 512)) == [[".", "commit", "."], [".", "block"], "commit", "warp", "."]


def test_a_statement_with_disjoint_iterations_does_not_conflict_with_itself():
    """A copy is in flight, and lanes of a spread access are unspecified; but accesses of one iteration are ordered."""
    for make in (copies, lambda place: writes(place, spread=True)):
        assert placed(loop(3, make(T + i * 128))) == [["."]]
        assert placed(loop(3, make(T + i % 2 * 128))) == [[".", "warp"]]


def test_a_copy_in_a_ring_conflicts_with_itself_where_the_stage_is_reused():
    ring = copies(T + i % 2 * 128)
    assert placed(loop(2, ring, period=2)) == [["."]]
    assert placed(loop(3, ring, period=2)) == [[".", "warp"]], "the third iteration copies to where the first one did"
    assert placed(loop(4, attrs.evolve(ring, active=less(i, 2)), period=2)) == [["."]], "and makes no copy"


def test_one_copy_object_in_two_places():
    copy = copies(T)
    assert placed(copy, making.commit(), copy, making.commit()) == [".", "commit", "warp", ".", "commit"]


def test_an_unknown_statement_is_refused():
    @attrs.frozen
    class Around(ir.Stmt):
        body: tuple

        @property
        def children(self):
            return (self.body,)

    for body in (Around((writes(T),)), loop(3, Around(()))):
        with pytest.raises(VerificationError, match="synchronize does not handle the statement Around"):
            placed(body)
    assert placed(
        making.comment("what stands here"), writes(T), making.let(Var("x", 0, 1), as_expr(1)), reads(FAR), making.comment("end")
    ) == [
        ".",
        "block",
        ".",
    ]


# ---------------------------------------------------------------------------------------------- random programs


def drawn(generator, extents, asynchronous):
    """A program without barriers: accesses to a buffer in some stage of a ring, loops and conditions."""
    threads = generator.choice((32, 64, 96, 256))
    thread = Var("thread", 0, threads - 1)
    period = generator.choice((1, 2, 3))
    injective = [thread, thread, threads - 1 - thread, thread // 32 * 32 + (31 - thread % 32)]
    injective += [thread // 128 * 128 + (127 - thread % 128)] if threads == 256 else []

    def place(var, write):
        first = generator.choice(injective if write else [*injective, thread // 2 * 2]) * 2 + generator.choice((0, 0, 1024))
        return first if var is None else first + (var + generator.choice((0, 1, 2))) % period * 2048

    def statement(var, depth):
        if generator.random() < 0.75 or depth == 2:
            condition = generator.choice((TRUE, TRUE, TRUE, less(thread, as_expr(generator.choice((8, 40))))))
            if var is not None and generator.random() < 0.2:
                condition = less(var + generator.choice((1, 2)), as_expr(generator.choice((3, 9, *extents[-2:]))))
            make = generator.choice((writes, reads, reads, copies if asynchronous else writes))
            access_stmt = make(place(var, make is not reads), width=generator.choice((1, 2, 2)), active=condition)
            return (access_stmt, making.commit()) if make is copies else (access_stmt,)
        inner = Var(f"i{depth}", 0, 63)
        body = tuple(one for _ in range(generator.choice((1, 2, 3, 4))) for one in statement(inner, depth + 1))
        plain = any(isinstance(one, Exec) for one in body)
        return (making.loop(inner, as_expr(generator.choice(extents)), body, period=period if plain else 0),)

    body = tuple(one for _ in range(generator.choice((2, 3, 4, 5))) for one in statement(None, 0))
    return kernel(*body, threads=threads, symbols=(K,), buffers=(buffer("s", 8192),))


def without(body, barrier):
    """The program without a barrier and the wait before it."""
    kept = []
    for stmt in body:
        if stmt is barrier:
            del kept[len(kept) - 1 if kept and isinstance(kept[-1], Wait) else len(kept) :]
        else:
            kept.append(stmt.rebuilt(tuple(without(child, barrier) for child in stmt.children)) if stmt.children else stmt)
    return tuple(kept)


def is_guessed(program):
    """Whether some ring never revisits a stage in its loop, or a condition varies along a loop, which counts as true."""
    rings = [one for one in ir.statements(program.body) if isinstance(one, For) and one.period]
    conditions = [one.active.variables() - {program.thread} for one in ir.statements(program.body) if isinstance(one, Exec)]
    return any(ring.extent.low <= ring.period for ring in rings) or any(conditions)


@pytest.mark.parametrize("chunk", range(4))
@pytest.mark.parametrize("extents, asynchronous", [((1, 2, 3, 8, 20), False), ((1, 2, 3, 8, 20), True), ((2, K), True)])
def test_random_programs_are_ordered_and_each_barrier_is_needed(extents, asynchronous, chunk):
    """The race check finds no race, and finds one if any barrier is removed.

    Extra barriers are accepted only for a hazard between phases of a ring in a loop that ends before it revisits the stage, and for one
    whose condition is false in the conflicting iterations.
    """
    left_over = total = 0
    for seed in range(chunk * 25, chunk * 25 + 25):
        program = drawn(random.Random(seed), extents, asynchronous)
        done = wait(synchronize(program))
        assert not check_races(AccessTrace(done)), (seed, done.body)
        for barrier in [one for one in ir.statements(done.body) if isinstance(one, Barrier)]:
            total += 1
            if not check_races(AccessTrace(attrs.evolve(done, body=without(done.body, barrier)))):
                assert is_guessed(program), (seed, barrier, done.body)
                left_over += 1
    assert total > 25 and left_over <= total // 10


def test_copies_are_pending_up_to_a_commit_of_their_kind():
    """Also those of parts before one without copies."""
    copy, bulk = (type("Copy", (), {"statement": types.SimpleNamespace(mechanism=one)})() for one in (CP_ASYNC_GROUPS, TMA_STORES))
    parts = [types.SimpleNamespace(pending=frozenset(found)) for found in ((copy,), (), (bulk,))]
    assert _pending(parts, [None, None, None]) == {copy, bulk}
    assert _pending(parts, [None, CP_ASYNC_GROUPS, None]) == {bulk}
    assert _pending(parts, [None, TMA_STORES, None]) == {copy, bulk}
