"""Positions of proxy fences: before the first barrier after a write that an asynchronous engine reads, on every path."""

import attrs
import making
import pytest
from engines import ENGINE_FMA
from handmade import THREAD, access, execution, kernel_of, local

from fireiron import *
from fireiron import ir
from fireiron.executable.cp_async import CP_ASYNC
from fireiron.executable.thread_move import MOVE
from fireiron.executable.tma import TMA_LOAD, TMA_STORE
from fireiron.ir.mechanisms.cp_async import CP_ASYNC_GROUPS
from fireiron.ir.mechanisms.tma import TMA_LOADS
from fireiron.ir.mechanisms.tma_store import TMA_STORES
from fireiron.ir.mechanisms.wgmma import WGMMA_GROUPS
from fireiron.lower.fence import fence
from fireiron.values.expr import Var, as_expr

SPEC = Move(64, 1)(GL, GL)
TRIP_COUNT = Var("T", 0, 8)
"""The trip count of a loop, which may be zero."""


def barrier():
    """A new barrier each time: the pass identifies barriers by identity."""
    return making.barrier(ir.BLOCK_SCOPE)


def write(later=False):
    """Each thread writes its element of the tile, directly or by an asynchronous copy."""
    move = Move(1, 1)(GL, SH)(Thread)
    places = access("src", (THREAD, 0)), access("x", (THREAD, 0), write=True)
    return execution(CP_ASYNC[-1], move, *places, mechanism=CP_ASYNC_GROUPS) if later else execution(MOVE, move, *places)


def store():
    """A TMA store reads the tile."""
    places = access("x", (as_expr(0), as_expr(0)), (64, 1)), access("dst", (as_expr(0), as_expr(0)), (64, 1), write=True)
    return execution(TMA_STORE, Move(64, 1)(SH, GL)(Warp), *places, mechanism=TMA_STORES)


def fenced(*body):
    """For each barrier of a program, outer ones before inner ones, whether a fence precedes it."""
    tile = attrs.evolve(local("x", (64, 1), SH), offset=0)
    done = fence(kernel_of(SPEC, body, tile, symbols=(TRIP_COUNT,), target="sm_90a"))
    fences = []

    def follow(statements):
        for before, stmt in zip((None, *statements), statements, strict=False):
            if isinstance(stmt, ir.Barrier):
                fences.append(isinstance(before, ir.Fence))
            for child in stmt.children:
                follow(child)

    follow(done.body)
    return fences


def loop(extent, *body):
    return making.loop(Var("k", 0, 7), extent, body)


def test_the_first_barrier_after_a_write():
    assert fenced(write(), barrier(), barrier(), store()) == [True, False]
    assert fenced(barrier(), write(), store(), barrier()) == [False, True]
    assert fenced(barrier(), store()) == [False]


@pytest.mark.parametrize(("extent", "after_loop"), [(as_expr(4), False), (TRIP_COUNT, True), (TRIP_COUNT + 1, False)])
def test_after_a_loop_that_may_be_empty(extent, after_loop):
    """Its barrier may not be reached: writes before it are fenced after it, too."""
    assert fenced(write(), loop(extent, barrier()), barrier(), store()) == [True, after_loop]


def test_writes_of_an_iteration_reach_the_barrier_of_the_next():
    assert fenced(loop(as_expr(4), barrier(), store(), write()), barrier()) == [True, True]


@pytest.mark.parametrize(("left", "first"), [(0, True), (1, False)])
def test_a_copy_counts_as_written_at_the_wait_that_may_complete_it(left, first):
    """A wait that leaves one group completes nothing after one commit."""
    body = (write(later=True), making.commit(), making.wait(left), barrier(), making.wait(0), barrier(), store())
    assert fenced(*body) == [first, not first]


def test_a_wait_in_a_loop_completes_groups_of_earlier_iterations():
    body = (write(later=True), making.commit(), making.wait(2), barrier(), store())
    assert fenced(loop(as_expr(8), *body), making.wait(0), barrier()) == [True, True]


def order(*body, filled=True, kinds=(ir.Fence, ir.Barrier, ir.Release)):
    """The kinds of a program's statements that order reads of a ring, which TMA fills, or else threads: f(ence), b(arrier), r(elease)."""
    tile = attrs.evolve(local("x", (64, 1), SH), offset=0)
    kernel = kernel_of(SPEC, (load() if filled else store(), *body), tile, target="sm_90a")
    done = fence(attrs.evolve(kernel, rings=(making.ring("ring", 2, ("x",), consumers=1),)))
    return "".join(type(stmt).__name__[0].lower() for stmt in done.body if isinstance(stmt, kinds))


def load():
    """A TMA load fills the stage."""
    places = access("src", (as_expr(0), as_expr(0)), (64, 1)), access("x", (as_expr(0), as_expr(0)), (64, 1), write=True)
    return execution(TMA_LOAD, Move(64, 1)(GL, SH)(Block), *places, mechanism=TMA_LOADS, ring="ring")


def read():
    """Each thread reads its element of the tile."""
    return execution(MOVE, Move(1, 1)(SH, GL)(Thread), access("x", (THREAD, 0)), access("dst", (THREAD, 0), write=True))


def release(number=0):
    return making.release("ring", ir.StageState.EMPTY, as_expr(number))


def test_reads_of_threads_before_tma_fills_the_stage_again():
    """The fence comes before the barrier of the warp, and orders the reads of all stages."""
    warp = making.barrier(ir.WARP_SCOPE)
    assert order(read(), warp, release()) == "fbr"
    assert order(read(), release(), release(1)) == "frr"
    assert order(read(), warp, release(), making.barrier(ir.WARP_SCOPE), release(1)) == "fbrbr"
    assert order(release()) == "r"
    assert order(read(), warp, release(), filled=False) == "br"


def test_a_completed_wgmma_is_a_fence():
    """A wait that leaves all groups in flight completes none."""
    commit = making.commit(WGMMA_GROUPS)

    def after(left):
        return order(read(), mma(), commit, making.wait(left, mechanism=WGMMA_GROUPS), release())

    assert after(0) == "r" and after(1) == "fr"
    assert order(mma(), commit, making.wait(0, mechanism=WGMMA_GROUPS), read(), release()) == "fr"
    assert order(read(), making.wait(0, mechanism=WGMMA_GROUPS), release()) == "fr"


def test_a_release_moves_after_a_wait_that_completes_a_wgmma():
    """It moves past acquisitions of the same fill, with the barrier of its warp, and not past those of later fills or past a loop with one."""
    commit, wait = making.commit(WGMMA_GROUPS), making.wait(0, mechanism=WGMMA_GROUPS)
    kinds = (ir.Fence, ir.Barrier, ir.Release, ir.Wait, ir.Acquire)

    def moved(*between, scope=ir.WARP_SCOPE, number=0):
        return order(mma(), commit, read(), making.barrier(scope), release(number), *between, wait, kinds=kinds)

    same, later = (making.acquire("ring", ir.StageState.FULL, as_expr(number)) for number in (0, 1))
    assert moved() == "wbr" and moved(same) == "awbr" and moved(mma(), number=1) == "wbr"
    assert moved(later) == "fbraw" and moved(loop(as_expr(4), same)) == "fbrw"
    assert moved(loop(as_expr(4), read())) == "wbr" and moved(scope=ir.BLOCK_SCOPE) == "fbrw"


def mma():
    """An MMA that executes asynchronously."""
    places = (access("src", (as_expr(0), as_expr(0))), access("src", (as_expr(0), as_expr(0))))
    return execution(ENGINE_FMA, MatMul(1, 1, 1)(GL, GL, RF)(Thread), *places, mechanism=WGMMA_GROUPS)
