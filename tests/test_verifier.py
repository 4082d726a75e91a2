"""Refusals of the verifier: hand-made kernels with one fault each, and the closest legal ones."""

import attrs
import making
import pytest
from handmade import THREAD, access, execution, kernel_of, local

from fireiron import *
from fireiron.errors import VerificationError
from fireiron.executable.thread_move import MOVE
from fireiron.ir import (
    BLOCK_SCOPE,
    WARP_SCOPE,
    WARPGROUP_SCOPE,
    FenceKind,
    Stmt,
    verify,
)
from fireiron.ir.mechanisms.wgmma import WGMMA_GROUPS
from fireiron.lower.guard import guard
from fireiron.values.expr import Var, as_expr, less

K = Var("K", 1, 1 << 20, 1, True)
SPEC = Move(32, 32)(GL, GL)
PIECES = (making.piece(0), making.piece(1))
"""Two elements, each loaded or stored separately."""


def copy(*accesses, height=2, pieces=(PIECES, PIECES), **fields):
    """A thread copies some elements of a column."""
    accesses = accesses or (access("src", (0, THREAD), (height, 1)), access("dst", (0, THREAD), (height, 1), write=True))
    return execution(MOVE, Move(height, 1)(GL, GL)(Thread), *accesses, pieces=pieces, **fields)


def kernel(*body, buffers=(), **options):
    return kernel_of(SPEC, body, *buffers, **options)


def refused(message, *body, final=True, **options):
    """Assert that the verifier names this fault of a kernel."""
    with pytest.raises(VerificationError, match=message):
        verify(kernel(*body, **options), final=final)


def passes(*body, final=True, **options):
    """Assert that the verifier returns the kernel itself."""
    program = kernel(*body, **options)
    assert verify(program, final=final) is program


# ---------------------------------------------------------------------------------------------- threads, buffers and names


def test_a_kernel_without_fault():
    passes(
        copy(), making.comment("what stands here"), making.barrier(BLOCK_SCOPE), making.async_copy(copy()), making.commit(), making.wait(0)
    )


def test_all_threads_of_a_block_have_work():
    for workers in (31, 33):
        with pytest.raises(VerificationError, match=f"over {workers} of a block's 32 threads"):
            verify(attrs.evolve(kernel(), workers=workers))


def test_buffers_that_share_a_name():
    program = kernel(copy())
    with pytest.raises(VerificationError, match="buffers share a name"):
        verify(attrs.evolve(program, buffers=(*program.buffers, local("src", (4,), SH))))


def test_names_are_bound_once_and_before_they_are_used():
    row, place = Var("row", 0, 31), Var("place", 0, 31)
    read = copy(access("src", (0, place), (2, 1)), access("dst", (0, place), (2, 1), write=True))
    passes(making.let(place, THREAD), read)
    refused("Move.*: place is not bound in place", read)
    refused("Move.*: place is not bound in place", read, making.let(place, THREAD))
    refused("let place: row is not bound in row", making.let(place, row), making.let(row, THREAD))
    refused("for row: K is not bound in K", making.loop(attrs.evolve(row, high=K.high), K, ()))
    refused("the name row is bound twice", making.let(row, THREAD), making.let(row, THREAD))
    refused("the name row is bound twice", making.let(row, THREAD), making.loop(row, as_expr(3), ()))
    refused("the name K is bound twice", making.let(K, THREAD), symbols=(K,))
    passes(making.loop(row, as_expr(3), ()), making.let(row, THREAD))
    passes(making.loop(row, as_expr(3), (making.let(place, row),)), making.loop(row, as_expr(3), (making.let(place, row),)))
    refused("for place: row is not bound", making.loop(row, as_expr(3), ()), making.loop(place, row, ()))


def test_a_name_has_one_range():
    row = Var("row", 0, 31)
    wider = attrs.evolve(row, high=63)
    refused("let place: row is not bound in row", making.let(row, THREAD), making.let(Var("place", 0, 63), wider))


# ---------------------------------------------------------------------------------------------- loops, barriers and waits


def test_a_loop_has_the_same_length_for_all_threads():
    k, row, other = Var("k", 0, 31), Var("row", 0, 31), Var("other", 0, 31)
    passes(making.loop(k, Var("block", 0, 7), ()), grid=8)
    refused("the extent thread of loop k differs between threads", making.loop(k, THREAD, ()))
    refused("differs between threads", making.let(row, THREAD // 2), making.loop(k, row, ()))
    refused("differs between threads", making.let(row, THREAD // 2), making.let(other, row + 1), making.loop(k, other, ()))
    refused("differs between threads", making.loop(other, as_expr(2), (making.loop(k, THREAD, ()),)))
    refused("differs between threads", making.let(row, THREAD // 2), making.loop(other, as_expr(2), (making.loop(k, row, ()),)))


def test_a_loop_ends_within_the_range_of_its_variable():
    passes(making.loop(Var("k", 0, 7), as_expr(8), ()))
    refused("loop variable k is at most 7, but its loop ends at 8", making.loop(Var("k", 0, 7), as_expr(9), ()))
    passes(making.loop(Var("k", 0, 7), K, ()), symbols=(K,))


def test_a_barrier_of_a_group_needs_whole_groups():
    group, pair = making.barrier(WARPGROUP_SCOPE), making.barrier(attrs.evolve(WARPGROUP_SCOPE, name="pair", threads=64))
    for threads, refused_ones in ((32, (group, pair)), (64, (group,)), (128, ()), (160, (group, pair)), (192, (group,))):
        for barrier in (group, pair):
            if barrier in refused_ones:
                refused(f"a barrier of a {barrier.scope} in a block of {threads} threads", barrier, threads=threads)
            else:
                passes(barrier, threads=threads)
        passes(making.barrier(WARP_SCOPE), making.barrier(BLOCK_SCOPE), threads=threads)
    passes(making.barrier(WARP_SCOPE), threads=16)


def test_a_wait_for_a_negative_number_of_groups():
    passes(making.async_copy(copy()), making.commit(), making.wait(0))
    refused("a wait for -1 groups", making.async_copy(copy()), making.commit(), making.wait(-1))


def test_commits_waits_and_fences_are_for_statements_of_the_kernel():
    copies, other = making.async_copy(copy()), {"mechanism": WGMMA_GROUPS}
    register_loop = making.loop(Var("j", 0, 7), as_expr(8), (), pinned_registers=("acc",))
    for statement, message in (
        (making.commit(WGMMA_GROUPS), f"a commit of a {WGMMA_GROUPS.name} in a kernel without such"),
        (making.wait(0, **other), f"a wait of a {WGMMA_GROUPS.name} in a kernel without such"),
        (making.fence(FenceKind.WGMMA_REGISTERS), "a fence in a kernel without such"),
        (register_loop, "a for in a kernel without such"),
    ):
        passes(copies, statement, final=False)
        refused(message, copies, statement)
        refused(message, making.loop(Var("k", 0, 7), as_expr(8), (copies, statement)))
    passes(making.fence(FenceKind.ASYNC_PROXY))


def test_statements_that_earlier_passes_resolve():
    k = Var("j", 0, 7)
    for statement, message in (
        (making.hole("A"), "hole A is not filled"),
        (making.sync_point(True, "k"), "the sync point of k is not handled"),
        (making.step_marker("pv"), "the marker of step pv is not removed"),
        (making.loop(k, as_expr(8), (), defer=("pv", "mm")), "loop j still requests Deferred\\(step='pv', after='mm'\\)"),
        (making.loop(k, as_expr(8), (), ordered_mma=("pv", "mm")), "loop j still requests OrderedMma"),
    ):
        passes(statement, final=False)
        refused(message, statement)
        refused(message, making.loop(Var("k", 0, 7), as_expr(8), (statement,)))


def test_a_cluster_has_two_to_sixteen_blocks():
    place, other = Var("place", 0, 1), Var("other", 0, 1)
    for sizes, places in (((2,), ()), ((1,), (place,)), ((), ()), ((32,), (place,)), ((2, 2), (place,)), ((8, 4), (place, other))):
        with pytest.raises(VerificationError, match="illegal cluster of .* blocks with coordinates"):
            verify(attrs.evolve(kernel(copy(), grid=64), cluster=making.block_cluster(sizes, places)))
    assert verify(attrs.evolve(kernel(copy(), grid=64), cluster=making.block_cluster((8, 2), (place, other))))


def test_a_tile_is_claimed_by_a_ring():
    tile = Var("tile", 0, 8)
    refused("tile number tile: the kernel has no counter, or no ring of tiles t", making.claim_tile(tile, as_expr(8), "t", as_expr(0)))


def test_a_warp_cannot_skip_loads_ahead():
    needed = local("needed", (1,), RF, int32)
    inside = making.loop(Var("k", 0, 7), as_expr(8), ())
    passes(making.if_any_lane("needed", (inside,)), buffers=(needed,))
    refused(
        "skip_masked_tiles: a warp may skip loop k, but its loads are pipelined",
        making.if_any_lane("needed", (making.with_asks(inside, stages=2),)),
        buffers=(needed,),
    )


def test_two_versions_are_distinguished_by_comparisons():
    refused("is not a conjunction of comparisons", copy(interior=as_expr(Var("odd", 0, 1, 1, True))), symbols=(Var("odd", 0, 1, 1, True),))


def test_an_unknown_statement_is_refused():
    @attrs.frozen
    class Other(Stmt):
        pass

    refused("the verifier does not handle the statement Other", making.loop(Var("k", 0, 7), as_expr(8), (Other(),)), final=False)


# ---------------------------------------------------------------------------------------------- accesses


def test_one_access_for_each_operand():
    read, written = copy().accesses
    refused("1 accesses for 2 operands", copy(read))
    refused("3 accesses for 2 operands", copy(read, written, written))
    refused("1 lane maps for 2 accesses", copy(lane_maps=(None,)))


def test_an_access_fits_its_buffer():
    read, written = copy().accesses
    refused("unknown buffer elsewhere", copy(attrs.evolve(read, buffer="elsewhere"), written))
    for change in ({"base": (THREAD,)}, {"modes": read.modes[:1]}, {"bounds": (None,)}, {"bounds": (None, None, None)}):
        refused("the access to src must have its rank 2", copy(attrs.evolve(read, **change), written))


def test_the_index_of_a_copy_is_in_range():
    read, written = copy().accesses
    for number in (1, THREAD % 2):
        refused("of src, which has one copy", copy(attrs.evolve(read, copy=as_expr(number)), written))
    passes(copy(attrs.evolve(read, copy=as_expr(1)), written, pieces=()), final=False)
    staged = local("s", (32, 32), SH, copies=2)
    passes(copy(read, attrs.evolve(written, buffer="s", copy=as_expr(1))), buffers=(staged,))


def test_inputs_are_not_written():
    read, written = copy().accesses
    refused("writes the input src", copy(read, attrs.evolve(written, buffer="src")))
    passes(copy(attrs.evolve(read, buffer="dst"), written))


def test_pieces_are_all_elements_once_and_in_order():
    for wrong, message in (
        ((making.piece(0),), "the pieces of dst have 1 elements, the access 2"),
        ((making.piece(0), making.piece(1), making.piece(2)), "the pieces of dst have 3 elements, the access 2"),
        ((making.piece(0, 3),), "the pieces of dst have 3 elements, the access 2"),
        ((making.piece(1),), "the next piece of dst must start at element 0, not Piece"),
        ((making.piece(1), making.piece(0)), "the next piece of dst must start at element 0, not Piece"),
        ((making.piece(0), making.piece(0), making.piece(1)), "the next piece of dst must start at element 1, not Piece"),
        ((making.piece(0, 2), making.piece(1)), "the next piece of dst must start at element 2, not Piece"),
        ((making.piece(0, 0), making.piece(0, 2)), "the next piece of dst must start at element 0, not Piece"),
    ):
        refused(message, copy(pieces=(PIECES, wrong)))
    passes(copy(pieces=(PIECES, (making.piece(0, 2),))))
    refused("pieces of 1 operands for 2 accesses", copy(pieces=(PIECES,)))


def test_a_condition_is_true_or_false():
    for condition in (THREAD, THREAD - 1, as_expr(2)):
        refused("is not a truth value", copy(pieces=(PIECES, (making.piece(0), making.piece(1, 1, condition=as_expr(condition))))))
    passes(copy(pieces=(PIECES, (making.piece(0), making.piece(1, 1, condition=less(THREAD, 7))))))


def test_statements_of_a_final_kernel_list_their_stores():
    open_ = copy(pieces=())
    passes(open_, final=False)
    refused("no pieces specify which elements are accessed", open_)
    assert verify(guard(kernel(open_)), final=True)
