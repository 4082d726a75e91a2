"""Which hazards a program made by hand has, and that one barrier meets as many as it can, of any scope."""

import itertools
import random

import attrs
import pytest
from handmade import access, kernel_of, local

from fireiron import *
from fireiron.executable import INSTRUCTIONS
from fireiron.ir import (
    BLOCK_SCOPE,
    WARP_SCOPE,
    WARPGROUP_SCOPE,
    Barrier,
    Commit,
    Completion,
    Exec,
    For,
    Let,
    Stmt,
    SyncPoint,
    Wait,
    statements,
)
from fireiron.language.library import bind, find
from fireiron.lower.stabbing import fewest_of_scopes
from fireiron.lower.synchronize import synchronize
from fireiron.lower.wait import wait
from fireiron.values.expr import TRUE, Var, as_expr, equal, less

N = 64
T = Var("thread", 0, N - 1)
ACROSS = as_expr(N - 1) - T
"""The element of a thread of the other warp."""
NEAR = (T // 2) * 2
"""The element of a thread of the same warp."""
COPY = next(one for one in INSTRUCTIONS if one.name == "Move")


def touch(buffer, place, write, active=TRUE, **fields):
    operands = (access("r", (0,), write=not write), access(buffer, (place,), write=write))
    spec = Move(1, 1)(RF, SH)(Thread) if write else Move(1, 1)(SH, RF)(Thread)
    return Exec(COPY, spec, operands if write else operands[::-1], active=as_expr(active), **fields)


def writes(buffer, place=T, active=TRUE, **fields):
    return touch(buffer, place, True, active, **fields)


def reads(buffer, place=ACROSS, active=TRUE):
    return touch(buffer, place, False, active)


def program(*body, threads=N, symbols=(), grid=8, stages=1):
    buffers = [local("r", (1,), RF)]
    for number, name in enumerate("xyz"):
        buffers.append(attrs.evolve(local(name, (stages * threads,), SH), offset=number * stages * threads * 4))
    return kernel_of(MatMul(64, 64, 64)(GL, GL, GL), body, *buffers, threads=threads, symbols=symbols, grid=grid)


def barriers(kernel):
    return [(one.scope, one.reason) for one in statements(synchronize(kernel).body) if isinstance(one, Barrier)]


def loop(extent, *body, name="k", most=7, **fields):
    return For(Var(name, 0, most), as_expr(extent), body, **fields)


# ---------------------------------------------------------------------------------------------- how many


@pytest.mark.parametrize("count", range(1, 13))
def test_hazards_that_share_no_position_get_a_barrier_each(count):
    body = [one for _ in range(count) for one in (writes("x"), reads("x"))]
    found = barriers(program(*body))
    assert len(found) == 2 * count - 1, "what was read is written again"
    assert [reason for _, reason in found] == [f"x {'complete' if number % 2 == 0 else 'free again'}" for number in range(2 * count - 1)]


def test_a_barrier_of_the_block_stands_where_it_meets_a_hazard_of_a_warp_too():
    found = barriers(program(writes("x"), writes("y"), reads("y", NEAR), writes("z"), reads("x")))
    assert found == [(BLOCK_SCOPE, "x, y complete")]


def arc(start, stop, count):
    return frozenset(range(start, stop + 1)) if start <= stop else frozenset((*range(start, count), *range(stop + 1)))


def cost(barriers_):
    return tuple(sum(scope == one for one in barriers_.values()) for scope in (2, 1, 0))


def meets(chosen, arcs):
    return all(any(at in one and scope >= least for at, scope in chosen.items()) for one, least in arcs)


def test_all_choices_of_positions_and_scopes_in_turn():
    """No cheaper set of barriers meets all arcs, on a line and on a circle, with positions taken out."""
    for seed in range(600):
        generator = random.Random(seed)
        count = generator.randint(2, 6)
        positions = sorted(generator.sample(range(count), generator.randint(1, min(count, 5))))
        around = generator.random() < 0.6
        arcs = []
        for _ in range(generator.randrange(7)):
            ends = [generator.randrange(count) for _ in range(2)]
            found = arc(*(ends if around else sorted(ends)), count) & frozenset(positions)
            arcs += [(found, generator.randrange(3))] if found else []
        preferred = generator.sample(positions, len(positions))
        got = fewest_of_scopes(arcs, preferred)
        assert meets(got, arcs), seed
        choices = itertools.product((None, 0, 1, 2), repeat=len(positions))
        drawn = ({at: scope for at, scope in zip(positions, scopes) if scope is not None} for scopes in choices)
        assert cost(got) == min(cost(one) for one in drawn if meets(one, arcs)), (seed, arcs, preferred)


# ---------------------------------------------------------------------------------------------- scopes


def test_the_scope_is_the_narrowest_that_holds_both_threads():
    thread = Var("thread", 0, 255)
    for other, scope in ((thread // 2 * 2, WARP_SCOPE), (thread // 64 * 64, WARPGROUP_SCOPE), (as_expr(255) - thread, BLOCK_SCOPE)):
        assert [one for one, _ in barriers(program(writes("x", thread), reads("x", other), threads=256))] == [scope]


def test_a_warpgroup_needs_whole_warpgroups():
    thread = Var("thread", 0, 191)
    assert [one for one, _ in barriers(program(writes("x", thread), reads("x", thread // 64 * 64), threads=192))] == [BLOCK_SCOPE]


# ---------------------------------------------------------------------------------------------- loops


def test_behind_a_loop_with_a_barrier_of_warps_other_warps_may_be_in_any_iteration():
    """The last iteration is at stage 1; a slow warp may still read stage 0, which is written behind the loop."""
    k = Var("k", 0, 7)
    stage = k % 2 * N
    ring = loop(8, writes("x", stage + T), reads("x", stage + NEAR), period=2)
    found = barriers(program(ring, writes("x", ACROSS), stages=2))
    assert [scope for scope, _ in found] == [WARP_SCOPE, BLOCK_SCOPE]


def test_behind_a_loop_with_a_barrier_of_the_block_all_are_in_the_last_iteration():
    k = Var("k", 0, 7)
    stage = k % 2 * N
    ring = loop(8, writes("x", stage + T), reads("x", stage + ACROSS), period=2)
    assert len(barriers(program(ring, writes("x", T), stages=2))) == 1, "stage 0 was read before the last barrier"
    assert len(barriers(program(ring, writes("x", T + N), stages=2))) == 2, "stage 1 is read behind it"


def test_split_k_has_no_barrier_that_nothing_needs():
    kernel = bind(find("split_k")).program("sm_80").lowered
    scopes = [one.scope for one in statements(kernel.body) if isinstance(one, Barrier)]
    assert scopes == [WARP_SCOPE, WARP_SCOPE, BLOCK_SCOPE]


@pytest.mark.parametrize("shift", [1, 2, 3])
def test_what_meets_iterations_later(shift):
    """Reads, first in the body, of what was written last `shift` iterations ago: only what comes next binds the barrier to the end."""
    k = Var("k", 0, 15)
    written = writes("x", (k % 4) * N + T)
    read = reads("x", ((k + (4 - shift)) % 4) * N + ACROSS)
    body = (read, SyncPoint(None, "k"), writes("z"), written)
    (ring,) = synchronize(program(loop(16, *body, most=15, period=4), stages=4)).body
    assert [isinstance(one, Barrier) for one in ring.body].index(True) == (3 if shift == 1 else 1)
    assert len(ring.body) == 4


def test_data_of_the_iteration_before_is_complete_at_the_end_of_each():
    """Read first, written last; wished elsewhere, the barrier stays between one iteration's write and the next one's read."""
    k = Var("k", 0, 15)
    body = (reads("x", (k + 1) % 2 * N + ACROSS), writes("x", k % 2 * N + T))
    found = synchronize(program(loop(16, *body, most=15, period=2), stages=2)).body[0].body
    assert [isinstance(one, Barrier) for one in found] == [False, False, True]


def test_a_loop_of_one_iteration_carries_nothing():
    o = Var("o", 0, 0)
    found = barriers(program(loop(1, reads("y", o + ACROSS), writes("y", o + T), name="o", most=0)))
    assert found == [(BLOCK_SCOPE, "y free again")]


def test_a_barrier_in_a_loop_counts_if_the_loop_surely_runs():
    block = Var("block", 0, 7)
    for extent, count in ((2, 1), (block % 4, 2), (Var("K", 1, 99, 1, True), 1), (Var("K", 0, 99, 1, True), 2)):
        symbols = tuple(extent.variables() - {block}) if not isinstance(extent, int) else ()
        body = (writes("x"), loop(extent, Barrier(BLOCK_SCOPE), most=98), reads("x"))
        assert len(barriers(program(*body, symbols=symbols))) == count, extent


# ---------------------------------------------------------------------------------------------- what is not enumerated


def test_a_condition_on_the_block_counts_as_true():
    block = Var("block", 0, 7)
    assert len(barriers(program(writes("x", T, less(0, block)), reads("x")))) == 1
    part = Var("part", 0, 3)
    assert len(barriers(program(Let(part, block // 2), writes("x", T, equal(part, 3)), reads("x")))) == 1


def test_a_condition_on_a_loop_of_unknown_length_counts_as_true():
    K = Var("K", 1, 1 << 20, 1, True)
    k = Var("k", 0, 1 << 20)
    body = For(k, K, (writes("x", T, less(0, k)), reads("x")))
    assert [reason for _, reason in barriers(program(body, symbols=(K,)))] == ["x complete", "x free again"]


def test_a_condition_on_a_repeating_loop_holds_at_some_iteration_of_its_place():
    k = Var("k", 0, 7)
    for condition, count in ((equal(k, 5), 1), (equal(k, 9), 0), (less(6, k), 1)):
        body = loop(8, writes("x", k % 2 * N + T, condition), reads("x", k % 2 * N + ACROSS), period=2)
        assert len(barriers(program(body, stages=2))) == count, condition


def test_all_values_of_a_loop_whose_length_the_block_decides():
    block, r = Var("block", 0, 7), Var("k", 0, 2)
    body = loop(block % 4, writes("x", r * N + T), most=2)
    assert len(barriers(program(body, reads("x", ACROSS + 2 * N), stages=4))) == 1, "written in the third iteration"
    assert barriers(program(body, reads("x", ACROSS + 3 * N), stages=4)) == []


def test_an_address_that_cannot_be_told_is_refused():
    block = Var("block", 0, 7)
    with pytest.raises(SynchronizationError, match="depends on block"):
        synchronize(program(writes("x", T + block % 2 * N), reads("x"), stages=2))


# ---------------------------------------------------------------------------------------------- waits


@attrs.frozen
class Strange(Stmt):
    """A statement that no pass knows."""


@pytest.mark.parametrize("pass_", [synchronize, wait])
def test_an_unknown_statement_is_refused(pass_):
    copy = writes("x", completion=Completion.GROUP)
    with pytest.raises(VerificationError, match="no rule for the statement Strange"):
        pass_(program(copy, Strange()))


def test_a_wait_names_all_that_it_brings_and_leaves_the_younger_groups_under_way():
    copies = [writes(name, completion=Completion.GROUP) for name in "xyz"]
    body = (copies[0], copies[1], Commit(), copies[2], Commit(), reads("x"), reads("z"))
    found = wait(synchronize(program(*body))).body
    waits = [(one.groups, one.reason) for one in found if isinstance(one, Wait)]
    assert waits in ([(0, "x, y, z have arrived")], [(1, "x, y have arrived"), (0, "z has arrived")])
    order = [type(one) for one in found]
    assert all(order[at + 1] is Barrier for at, one in enumerate(order) if one is Wait)
