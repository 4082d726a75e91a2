"""Warps that synchronize in the simulator, with hand-made kernels (`fireiron.sim.warps`)."""

import random
import re
import types

import attrs
import making
import numpy as np
import pytest
from engines import copied, fetched, streamed
from handmade import access, kernel_of, local

from fireiron import *
from fireiron import ir
from fireiron.errors import SimulationError
from fireiron.executable.micro_kernel import MicroKernel
from fireiron.executable.thread_move import MOVE
from fireiron.sim import simulate
from fireiron.sim.launch import SingleLaunch
from fireiron.sim.memory import global_memory
from fireiron.sim.plan import Plan
from fireiron.sim.run import Run
from fireiron.sim.shadow import Clock, History
from fireiron.sim.warps import Warps
from fireiron.values.expr import TRUE, Var, as_expr, less

GIVEN = np.arange(1, 1025, dtype=np.float32)
ORDERS = (None, *range(4))
K = Var("k", 0, 3)


def chance(order):
    return None if order is None else random.Random(order)


def kernel(body, *buffers, threads=128, grid=1, **fields):
    program = kernel_of(Move(1024, dtype=float32)(GL, GL), body, *buffers, threads=threads, grid=grid)
    size = max([0, *(buffer.offset + buffer.bytes for buffer in buffers if buffer.memory == SH)])
    return attrs.evolve(program, shared_bytes=size, **fields)


def unverified(program, order):
    """The result of a kernel that the verifier might reject."""
    launch = SingleLaunch(Plan(program, {}), {"src": GIVEN}, (0,), True, chance(order))
    try:
        launch.run()
    except SimulationError as error:
        return str(error)
    return launch.outputs()["dst"]


def copy(source, target, memories=(GL, GL), active=TRUE):
    spec = Move(1, dtype=float32)(*memories)(Thread)
    return making.execution(MOVE, spec, (source, attrs.evolve(target, write=True)), active=active, pieces=((making.piece(0),),) * 2)


def barrier(reason, threads=None):
    return making.barrier(ir.BLOCK_SCOPE if threads is None else making.scope(f"group of {threads}", threads), reason)


# ---------------------------------------------------------------------------------------------- barriers and deadlocks


@pytest.mark.parametrize("order", range(4))
@pytest.mark.parametrize(
    "threads, extent, expected",
    [
        (64, lambda warp: warp, "warp 1 waits at the block barrier (first); warp 0 has exited"),
        (128, lambda warp: warp // 2, "warps 2, 3 wait at the block barrier (first); warps 0, 1 have exited"),
        (192, lambda warp: 1 - warp // 4, "warps 0 to 3 wait at the block barrier (first); warps 4, 5 have exited"),
        (128, lambda warp: (warp + 1) // 2 % 2, "warps 1, 2 wait at the block barrier (first); warps 0, 3 have exited"),
        (96, lambda warp: warp // 2, "warp 2 waits at the block barrier (first); warps 0, 1 have exited"),
    ],
)
def test_a_barrier_that_some_warps_do_not_reach(threads, extent, expected, order):
    """The message names the waiting warps, the exited warps, and the fix."""
    warp = Var("thread", 0, threads - 1) // 32
    program = kernel((making.loop(K, extent(warp), (barrier("first"),)),), threads=threads)
    text = unverified(program, order)
    assert isinstance(text, str) and sorted(text.partition("\n")[0].removeprefix("deadlock: ").split("; ")) == sorted(
        expected.split("; ")
    ), text
    assert "every warp must reach the same barriers" in text


@pytest.mark.parametrize("order", range(4))
def test_warps_waiting_at_two_barriers(order):
    """An equal barrier at another position of the program is a different barrier."""
    warp = Var("thread", 0, 127) // 32
    first = making.loop(K, warp // 2, (barrier("first"),))
    for second in ("second", "first"):
        other = making.loop(Var("j", 0, 3), 1 - warp // 2, (barrier(second),))
        text = unverified(kernel((first, other)), order)
        assert text.startswith("deadlock: "), text
        if second == "first":
            assert re.match(r"deadlock: warps 0 to 3 wait at the block barrier \(first\)\n", text), text
        else:
            assert "warps 2, 3 wait at the block barrier (first)" in text and "warps 0, 1 wait at the block barrier (second)" in text


@pytest.mark.parametrize("order", range(4))
@pytest.mark.parametrize("size, right", [(32, True), (64, True), (128, False), (None, False)])
def test_a_barrier_of_a_group_needs_that_group_only(size, right, order):
    """Only the upper half of the block reaches it."""
    warp = Var("thread", 0, 127) // 32
    text = unverified(kernel((making.loop(K, warp // 2 * 2, (barrier("part", size),)),)), order)
    if right:
        assert not isinstance(text, str), text
    else:
        name = "block" if size is None else "group of 128"
        assert text.startswith(f"deadlock: warps 2, 3 wait at the {name} barrier (part); warps 0, 1 have exited"), text


@pytest.mark.parametrize("order", range(4))
@pytest.mark.parametrize("size", [2, 8, 16, 32, 64, 128, None])
@pytest.mark.parametrize("threads", [128, 384])
def test_barriers_that_all_warps_reach(threads, size, order):
    thread = Var("thread", 0, threads - 1)
    x = attrs.evolve(local("x", (threads,), SH), offset=0)
    group = threads if size is None else size
    body = (copy(access("src", (thread,)), access("x", (thread,)), (GL, SH)), barrier("all", size))
    far = copy(access("x", (thread // group * group + (group - 1 - thread % group),)), access("dst", (thread,)), (SH, GL))
    got = simulate(kernel((*body, far), x, threads=threads), {"src": GIVEN}, order=chance(order)).outputs["dst"][:threads]
    np.testing.assert_array_equal(got, GIVEN[:threads].reshape(-1, group)[:, ::-1].ravel())


@pytest.mark.parametrize("order", range(4))
def test_a_collective_statement_that_some_warps_do_not_reach(order):
    """A statement of a block or of a warpgroup."""
    warp = Var("thread", 0, 127) // 32
    text = MicroKernel("m", "// m\n")
    for level, name in ((Block, "Block"), (Warpgroup, "Warpgroup")):
        stmt = making.execution(
            text, Move(128, dtype=float32)(GL, GL)(level), (access("src", (0,), (128,)), access("dst", (0,), (128,), write=True))
        )
        message = unverified(kernel((making.loop(K, warp // 2, (stmt,)),)), order)
        assert isinstance(message, str) and f"warps 2, 3 wait at {text.name} Move(128" in message and f"({name})" in message, message
        assert "warps 0, 1 have exited" in message
    alone = making.execution(
        text, Move(32, dtype=float32)(GL, GL)(Warp), (access("src", (warp * 32,), (32,)), access("dst", (warp * 32,), (32,), write=True))
    )
    got = unverified(kernel((making.loop(K, warp // 2, (alone,)),)), order)
    np.testing.assert_array_equal(got[:128], np.where(np.arange(128) < 64, np.nan, GIVEN[:128]))


# ---------------------------------------------------------------------------------------------- groups of several warps


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("grid", [1, 3])
@pytest.mark.parametrize("level, unit", [(Warp, 32), (Warpgroup, 128), (Block, 256)], ids=str)
def test_names_and_loops_of_collective_statements(level, unit, grid, order):
    """Values that differ between units, blocks and iterations, in a statement of several warps."""
    thread, block = Var("thread", 0, 255), Var("block", 0, grid - 1)
    first, second, third = (Var(name, 0, 1023) for name in ("first", "second", "third"))
    spec = Move(unit // 2, dtype=float32)(GL, GL)(level)
    place = first + second + third
    stmt = making.execution(
        MicroKernel("m", "// m\n"), spec, (access("src", (place,), (unit // 2,)), access("dst", (place,), (unit // 2,), write=True))
    )
    names = (making.let(first, thread // unit * unit), making.let(second, block * 256), making.let(third, K * (unit // 2)))
    body = (*names[:2], making.loop(K, as_expr(2), (names[2], stmt)))
    got = simulate(kernel(body, threads=256, grid=grid), {"src": GIVEN}, order=chance(order)).outputs["dst"]
    np.testing.assert_array_equal(got[: grid * 256], GIVEN[: grid * 256])
    assert np.isnan(got[grid * 256 :]).all()


@pytest.mark.parametrize("order", ORDERS)
def test_a_statement_of_the_block_between_others(order):
    """All warps have executed the earlier statements, and execute the later ones afterwards."""
    thread = Var("thread", 0, 127)
    x, y = (attrs.evolve(local(name, (128,), SH), offset=offset) for name, offset in (("x", 0), ("y", 512)))
    collective = making.execution(
        MicroKernel("m", "// m\n"),
        Move(128, dtype=float32)(SH, SH)(Block),
        (access("x", (0,), (128,)), access("y", (0,), (128,), write=True)),
    )
    body = (
        copy(access("src", (thread,)), access("x", (thread,)), (GL, SH)),
        barrier("before"),
        collective,
        barrier("after"),
        copy(access("y", (127 - thread,)), access("dst", (thread,)), (SH, GL)),
    )
    got = simulate(kernel(body, x, y), {"src": GIVEN}, order=chance(order)).outputs["dst"]
    np.testing.assert_array_equal(got[:128], GIVEN[:128][::-1])


# ---------------------------------------------------------------------------------------------- roles, rings and clusters


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("warps, stages", [(1, 1), (2, 2), (4, 3)])
def test_consumers_and_their_producer(warps, stages, order):
    given = np.arange(1, 5 * 8 * 64 + 1).reshape(40, 64).astype(np.float16)
    np.testing.assert_array_equal(copied(streamed(5, stages, warps), given, chance(order)), given)


def test_all_warps_execute_statements_around_roles():
    """Before and after the roles."""
    kernel, thread = fetched(3, 1), Var("thread", 0, 31)
    more = copy(access("src", (thread,)), access("dst", (thread,)), active=less(thread, 0))
    around = attrs.evolve(kernel, body=(more, *kernel.body, more))
    given = np.arange(96, dtype=np.float32)
    for order in ORDERS:
        np.testing.assert_array_equal(copied(around, given, chance(order)), given)


@pytest.mark.parametrize("order", ORDERS)
def test_message_of_a_waiting_producer(order):
    """The message distinguishes it from the warps of the consumers."""
    without = lambda kind, side=None: (
        lambda body: tuple(stmt for stmt in body if not (isinstance(stmt, kind) and side in (None, stmt.state)))
    )
    given = np.arange(1, 5 * 32 + 1, dtype=np.float32)
    with pytest.raises(SimulationError, match="^deadlock: ") as caught:
        copied(fetched(5, 1, consumer=without(ir.Release)), given, chance(order))
    text = str(caught.value)
    assert "the producer waits for fill 2 of tiles to be empty" in text and "warp 0 waits for fill 2 of tiles to be full" in text, text
    assert "each fill of a ring must be filled once, and released by all consumers" in text
    with pytest.raises(SimulationError, match="^deadlock: ") as caught:
        copied(fetched(5, 1, producer=without(ir.Release)), given, chance(order))
    assert "warp 0 waits for fill 0 of tiles to be full" in str(caught.value)


TWO = making.block_cluster((2,), (Var("rank", 0, 1),))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("barriers", [1, 2])
def test_cluster_barriers(barriers, order):
    """A cluster barrier is also a barrier of each block."""
    thread, block = Var("thread", 0, 127), Var("block", 0, 3)
    x = attrs.evolve(local("x", (128,), SH), offset=0)
    fill = copy(access("src", (thread + block * 128,)), access("x", (thread,)), (GL, SH))
    read = copy(access("x", (127 - thread,)), access("dst", (thread + block * 128,)), (SH, GL))
    program = kernel((fill, *(making.cluster_barrier("all"),) * barriers, read), x, grid=4, cluster=TWO)
    done = simulate(program, {"src": GIVEN}, order=chance(order))
    np.testing.assert_array_equal(done.outputs["dst"][:512], GIVEN[:512].reshape(4, 128)[:, ::-1].ravel())
    assert done.barriers == barriers
    with pytest.raises(SimulationError, match=r"race on x\["):
        simulate(kernel((fill, read), x, grid=4, cluster=TWO), {"src": GIVEN}, order=chance(order))


@pytest.mark.parametrize("order", range(4))
def test_a_cluster_barrier_that_some_warps_do_not_reach(order):
    """The message names the warps with their blocks."""
    warp = Var("thread", 0, 63) // 32
    program = kernel((making.loop(K, warp, (making.cluster_barrier("all"),)),), threads=64, grid=2, cluster=TWO)
    launch = SingleLaunch(Plan(program, {}), {"src": GIVEN}, (0, 1), True, chance(order))
    with pytest.raises(SimulationError) as caught:
        launch.run()
    text = str(caught.value).partition("\n")[0]
    assert "warp 1 of block 0 of the cluster and warp 1 of block 1 of the cluster wait at the cluster barrier (all)" in text, text
    assert "warp 0 of block 0 of the cluster and warp 0 of block 1 of the cluster have exited" in text, text


@pytest.mark.parametrize("order", ORDERS)
def test_a_barrier_of_one_block_of_a_cluster(order):
    """It synchronizes that block only."""
    thread, block = Var("thread", 0, 127), Var("block", 0, 1)
    body = (
        making.loop(K, as_expr(1) + block, (barrier("own"),)),
        copy(access("src", (thread + block * 128,)), access("dst", (thread + block * 128,))),
    )
    got = simulate(kernel(body, grid=2, cluster=TWO), {"src": GIVEN}, order=chance(order)).outputs["dst"]
    np.testing.assert_array_equal(got[:256], GIVEN[:256])


# ---------------------------------------------------------------------------------------------- joined groups


def warps_of(threads=96, grid=4, batch=(1, 3)):
    """The warps of a kernel that does nothing."""
    plan = Plan(kernel_of(Move(32)(GL, GL), (), threads=threads, grid=grid), {})
    run = Run(plan, global_memory(plan, {"src": np.zeros(32, np.float32)}, False), History({}), batch, True, False)
    return Warps([run], random.Random(0))


@pytest.mark.parametrize("members", [(0, 1), (1, 2), (0, 1, 2)])
def test_groups_at_one_statement_are_joined(members):
    """The joined group has all threads and values; it is the same object each time, with their clock."""
    warps = warps_of()
    environments = []
    for number in members:
        env = dict(warps.groups[number].environment)
        threads = warps.groups[number].threads
        env |= {
            "k": 7,
            "own": threads[:, None] * 10,
            "blocks": np.array([[5, 6]]),
            "both": threads[:, None] + np.array([[0, 100]]),
            "flat": np.array(3),
        }
        environments.append(env)
    team = warps._joined_group(list(members), environments)
    all_threads = np.concatenate([warps.groups[number].threads for number in members])
    np.testing.assert_array_equal(team.threads, all_threads)
    assert team.members == tuple(warps.groups[number] for number in members)
    env = team.environment
    assert env["k"] == 7 and env["block"] is environments[0]["block"] and np.asarray(env["flat"]) == 3
    np.testing.assert_array_equal(env["thread"], all_threads[:, None])
    np.testing.assert_array_equal(env["own"], all_threads[:, None] * 10)
    np.testing.assert_array_equal(env["both"], all_threads[:, None] + np.array([[0, 100]]))
    np.testing.assert_array_equal(np.broadcast_to(env["blocks"], (len(all_threads), 2)), np.broadcast_to([[5, 6]], (len(all_threads), 2)))
    for number in members:
        warps.groups[number].clock = Clock()
    again = warps._joined_group(list(members), [{**environment, "k": 8} for environment in environments])
    assert again is team and again.environment["k"] == 8 and again.clock is warps.groups[members[0]].clock


def test_a_single_group_is_not_joined():
    warps = warps_of()
    assert warps._joined_group([1], [{}]) is warps.groups[1]
    assert [group.threads.tolist() for group in warps.groups] == [list(range(first, first + 32)) for first in (0, 32, 64)]


@pytest.mark.parametrize(
    ("event", "number", "members"),
    [
        (making.barrier(ir.WARP_SCOPE), 1, [1]),
        (making.barrier(ir.BLOCK_SCOPE), 1, [0, 1, 2, 3, 4]),
        (making.barrier(ir.WARPGROUP_SCOPE), 1, [0, 1, 2, 3]),
        (making.barrier(ir.WARPGROUP_SCOPE), 4, [4]),
        (making.cluster_barrier(), 2, [0, 1, 2, 3, 4]),
        (types.SimpleNamespace(level=Warpgroup, scratch=None), 0, [0, 1, 2, 3]),
        (types.SimpleNamespace(level=Warp, scratch=None), 3, [3]),
        (types.SimpleNamespace(level=Block, scratch=None), 3, [0, 1, 2, 3, 4]),
        (types.SimpleNamespace(level=Warp, scratch="memory"), 3, [0, 1, 2, 3, 4]),
    ],
)
def test_participants_of_an_event(event, number, members):
    assert warps_of(threads=160)._participants(number, event) == members


@pytest.mark.parametrize("numbers, is_plural", [([0], False), ([0, 1], True), ([2], False)])
def test_single_warps_and_groups(numbers, is_plural):
    assert warps_of()._is_plural(numbers) == is_plural
    together = Warps(warps_of().runs, None)
    assert together._is_plural([0]), "all warps of a block in lockstep"
