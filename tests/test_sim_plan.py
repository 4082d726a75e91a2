"""What the simulator plans, by hand: which loops are axes, where bytes are shared, and how blocks are told apart (`fireiron.sim.plan`)."""

import attrs
import numpy as np
import pytest
from handmade import access, kernel_of, local

from fireiron import *
from fireiron import ir
from fireiron.errors import SimulationError, VerificationError
from fireiron.executable.thread_move import MOVE
from fireiron.sim import plan as planning
from fireiron.sim import simulate
from fireiron.sim.plan import Loop, Nest, Plan
from fireiron.values.expr import TRUE, Var, as_expr

THREAD, K, J = Var("thread", 0, 31), Var("k", 0, 3), Var("j", 0, 2)


def copy(source, target, memories=(GL, GL), active=TRUE):
    spec = Move(1, dtype=float32)(*memories)(Thread)
    return ir.Exec(MOVE, spec, (source, attrs.evolve(target, write=True)), active=active, pieces=((ir.Piece(0),),) * 2)


def loops(body, *order):
    for var, extent in reversed(order):
        body = (ir.For(var, as_expr(extent), body),)
    return body


def kernel(body, *buffers, elements=512, **options):
    made = kernel_of(Move(elements, dtype=float32)(GL, GL), body, *buffers, **options)
    return attrs.evolve(made, shared_bytes=max([0, *(one.offset + one.bytes for one in buffers if one.memory == SH)]))


def planned(body, *buffers, **options):
    return Plan(kernel(body, *buffers, **options), {})


def result(body, *buffers, **options):
    given = np.arange(1, 513, dtype=np.float32)
    return simulate(kernel(body, *buffers, **options), {"src": given}).outputs["dst"], given


BOTH = J * 4 + K


def test_loops_that_writes_depend_on_are_axes():
    """One after the other around a single statement, outermost first; what it computes is what loops would."""
    body = loops((copy(access("src", (THREAD + BOTH * 32,)), access("dst", (THREAD + BOTH * 32,))),), (J, 3), (K, 4))
    (nest,) = planned(body).nodes
    assert isinstance(nest, Nest) and [name for name, _ in nest.vector.loops] == ["j", "k"] and nest.outer == []
    got, given = result(body)
    np.testing.assert_array_equal(got[:384], given[:384])


def test_a_loop_that_writes_do_not_depend_on_runs_by_itself():
    body = loops((copy(access("src", (THREAD + BOTH * 32,)), access("dst", (THREAD + K * 32,))),), (J, 3), (K, 4))
    (nest,) = planned(body).nodes
    assert [name for name, _ in nest.outer] == ["j"] and [name for name, _ in nest.vector.loops] == ["k"]
    got, given = result(body)
    np.testing.assert_array_equal(got[:128], given[256:384])


def test_a_name_between_the_loops():
    name = Var("place", 0, 383)
    inner = ir.For(K, as_expr(4), (ir.Let(name, THREAD + BOTH * 32), copy(access("src", (name,)), access("dst", (name,)))))
    body = (ir.For(J, as_expr(3), (inner,)),)
    (nest,) = planned(body).nodes
    assert [name for name, _ in nest.vector.loops] == ["j", "k"]
    got, given = result(body)
    np.testing.assert_array_equal(got[:384], given[:384])


@pytest.mark.parametrize(
    "make", [lambda one: (one, one), lambda one: (one, ir.Barrier(ir.BLOCK_SCOPE)), lambda one: (ir.Barrier(ir.BLOCK_SCOPE), one)]
)
def test_two_statements_are_no_nest(make):
    body = loops(make(copy(access("src", (THREAD + K * 32,)), access("dst", (THREAD + K * 32,)))), (K, 4))
    (loop,) = planned(body).nodes
    assert isinstance(loop, Loop) and len(loop.body) == 2
    got, given = result(body)
    np.testing.assert_array_equal(got[:128], given[:128])


def test_what_reads_where_it_writes_is_no_axis():
    """A turn reads what the one before wrote: by name, or by bytes that two buffers share."""
    first, second = (attrs.evolve(local(name, (32 * 5,), SH), offset=0) for name in ("x", "y"))
    fill = copy(access("src", (THREAD,)), access("x", (THREAD,)), (GL, SH))
    for target in ("x", "y"):
        move = copy(access("x", (THREAD + K * 32,)), access(target, (THREAD + K * 32 + 32,)), (SH, SH))
        body = (fill, *loops((move,), (K, 4)), copy(access("x", (THREAD + 128,)), access("dst", (THREAD,)), (SH, GL)))
        assert isinstance(planned(body, first, second).nodes[1], Loop)
        got, given = result(body, first, second)
        np.testing.assert_array_equal(got[:32], given[:32])


def test_axes_of_at_most_so_many_elements(monkeypatch):
    """The outermost ones run in Python."""
    body = loops((copy(access("src", (THREAD + BOTH * 32,)), access("dst", (THREAD + BOTH * 32,))),), (J, 3), (K, 4))
    for most, axes in ((384, ["j", "k"]), (383, ["k"]), (128, ["k"]), (127, None)):
        monkeypatch.setattr(planning, "MOST_ELEMENTS", most)
        plan = planned(body)
        (node,) = plan.nodes
        assert (None if isinstance(node, Loop) else [name for name, _ in node.vector.loops]) == axes
        assert plan.largest == max(32, 32 * {None: 1, 1: 4, 2: 12}[axes and len(axes)])
        got, given = result(body)
        np.testing.assert_array_equal(got[:384], given[:384])


def test_bytes_that_buffers_share():
    """Groups of those that overlap, in order of their places; neighbours that touch do not."""
    buffers = [
        attrs.evolve(local(name, (8,), SH), offset=offset) for name, offset in (("a", 0), ("b", 32), ("c", 48), ("d", 76), ("e", 112))
    ]
    parts = planned((), *buffers).components
    assert [[one.name for one in part] for part in parts] == [["a"], ["b", "c", "d"], ["e"]]
    longer = attrs.evolve(local("f", (32,), SH), offset=0)
    assert [[one.name for one in part] for part in planned((), longer, *buffers).components] == [["f", "a", "b", "c", "d", "e"]]


@pytest.mark.parametrize(
    "kinds, mixed, granule", [((float32, float32), False, 4), ((float32, float16), True, 2), ((int8, float32), True, 1)], ids=str
)
def test_the_smallest_element_is_the_grain_of_shadow_memory(kinds, mixed, granule):
    buffers = [attrs.evolve(local(f"x{number}", (32,), SH, dtype), offset=0) for number, dtype in enumerate(kinds)]
    plan = planned((), *buffers)
    assert (plan.mixed, plan.granule) == (mixed, granule)


@pytest.mark.parametrize(
    "threads, barriers, pitch", [(32, (), 32), (96, (), 96), (96, (64,), 128), (160, (32, 128), 256), (128, (2, 64), 128)]
)
def test_blocks_are_told_apart_by_whole_groups(threads, barriers, pitch):
    """The threads of a block take as many numbers as its largest groups, the last one whole."""
    body = tuple(ir.Barrier(ir.Scope(f"{size} threads", size)) for size in barriers)
    assert planned(body, threads=threads).pitch == pitch


def test_groups_that_only_overlap_are_refused():
    body = tuple(ir.Barrier(ir.Scope(f"{size} threads", size)) for size in (64, 96))
    with pytest.raises(VerificationError, match="no rule for barriers of 64 and of 96 threads"):
        planned(body, threads=192)


def test_shared_memory_that_differs_between_blocks_is_watched_in_each():
    buffer = attrs.evolve(local("x", (64,), SH), offset=0)
    block = Var("block", 0, 1)
    same = copy(access("src", (THREAD,)), access("x", (THREAD,)), (GL, SH))
    other = copy(access("src", (THREAD,)), access("x", (THREAD + block * 32,)), (GL, SH))
    assert planned((same,), buffer, grid=2).uniform and not planned((other,), buffer, grid=2).uniform
    looped = ir.For(K, as_expr(1) + block, (same,))
    assert planned((looped,), buffer, grid=2).block_loops and not planned((same,), buffer, grid=2).block_loops
    # thread 31 of block 1 alone reads what thread 30 wrote
    there = access("x", (THREAD + block * 32,))
    near = copy(access("x", ((THREAD + block) % 32 + block * 32,)), access("dst", (THREAD + block * 32,)), (SH, GL))
    write = copy(access("src", (THREAD,)), there, (GL, SH))
    with pytest.raises(SimulationError, match=r"race on x\[.*(?s:.*)block 1"):
        simulate(kernel((write, near), buffer, grid=2), {"src": np.zeros(512, np.float32)})


def test_buffers_in_use():
    buffers = [attrs.evolve(local(name, (32,), SH), offset=128 * number) for number, name in enumerate("xy")]
    plan = planned((copy(access("src", (THREAD,)), access("y", (THREAD,)), (GL, SH)),), *buffers)
    assert [one.name for one in plan.shared_in_use] == ["y"]


def test_turns_that_write_one_element_come_one_after_the_other():
    """Behind a loop that runs in Python too: the last turn of all stays."""
    body = loops((copy(access("src", (THREAD + BOTH * 32,)), access("dst", (THREAD + K // 2 * 32,))),), (J, 3), (K, 4))
    got, given = result(body)
    np.testing.assert_array_equal(got[:64], np.concatenate([given[288:320], given[352:384]]))


def test_places_follow_all_loops_around():
    """A place that only an outer loop moves is found again in the inner one, and moves with the outer one."""
    outer = copy(access("src", (THREAD + J * 32,)), access("dst", (THREAD + J * 32,)))
    inner = copy(access("src", (THREAD + BOTH * 32,)), access("dst", (THREAD + BOTH * 32 + 96,)))
    body = (ir.For(J, as_expr(3), (ir.For(K, as_expr(4), (outer, inner)),)),)
    got, given = result(body)
    np.testing.assert_array_equal(got[:480], np.concatenate([given[:96], given[:384]]))
