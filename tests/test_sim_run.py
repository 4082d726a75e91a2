"""Control flow in the simulator, by hand-made kernels: loops, names, tiles, waits and conditional bodies (`fireiron.sim.run`)."""

import random
import re

import attrs
import making
import numpy as np
import pytest
from engines import WGMMA_SEQUENCES, copied, fetched, streamed, wgmma_kernel
from handmade import THREAD, access, kernel_of, local

from fireiron import *
from fireiron import ir
from fireiron.errors import SimulationError, VerificationError
from fireiron.executable.thread_move import MOVE
from fireiron.ir.mechanisms.wgmma import WGMMA_GROUPS
from fireiron.sim import simulate
from fireiron.sim.launch import SingleLaunch
from fireiron.sim.plan import Plan
from fireiron.values.expr import TRUE, Var, as_expr, less

ORDERS = (None, 0, 1)
K, J, TAKEN = Var("k", 0, 7), Var("j", 0, 7), Var("taken", 0, 99)
GIVEN = np.arange(1, 513, dtype=np.float32)
BLOCK_BARRIER = making.barrier(ir.BLOCK_SCOPE, "all")


def copy(source, target, memories=(GL, GL), active=TRUE):
    spec = Move(1, dtype=float32)(*memories)(Thread)
    return making.execution(MOVE, spec, (source, attrs.evolve(target, write=True)), active=active, pieces=((making.piece(0),),) * 2)


def put(place, source=None):
    """Each thread copies an element."""
    return copy(access("src", (place if source is None else source,)), access("dst", (place,)))


def kernel(body, *buffers, threads=32, **options):
    program = kernel_of(Move(512, dtype=float32)(GL, GL), body, *buffers, threads=threads, **options)
    return attrs.evolve(program, shared_bytes=max([0, *(buffer.offset + buffer.bytes for buffer in buffers if buffer.memory == SH)]))


def chance(order):
    return None if order is None else random.Random(order)


def outcome_of(program, order=None, source=GIVEN, **options):
    """The result, or the simulator's message."""
    try:
        return simulate(program, {"src": source}, order=chance(order), **options).outputs["dst"]
    except SimulationError as error:
        return str(error)


def rows(*numbers):
    """The expected result if these rows of 32 elements are copied."""
    expected = np.full(512, np.nan, np.float32)
    for row in numbers:
        expected[row * 32 : row * 32 + 32] = GIVEN[row * 32 : row * 32 + 32]
    return expected


def twice(place):
    """Two statements, so that a loop around them runs in Python."""
    return put(THREAD + place * 32), put(THREAD + place * 32 + 256)


# ---------------------------------------------------------------------------------------------- loops and names


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    "extent, first, step, iterations", [(4, 0, 1, (0, 1, 2, 3)), (4, 1, 2, (1, 3)), (5, 0, 3, (0, 3)), (0, 0, 1, ()), (3, 3, 1, ())]
)
def test_iterations_of_a_loop(extent, first, step, iterations, order):
    body = (making.loop(K, as_expr(extent), twice(K), first=first, step=step),)
    np.testing.assert_array_equal(outcome_of(kernel(body), order), rows(*iterations, *(iteration + 8 for iteration in iterations)))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("growth, places", [(1, range(6)), (2, range(0, 12, 2)), ("j", (0, 0, 0, 1, 2, 4))])
def test_prior_iterations_of_a_loop(growth, places, order):
    """The count increases after each iteration, by one or by an expression."""
    growth_per_iteration = J if growth == "j" else as_expr(growth)
    loop = making.loop(
        K, as_expr(2), (put(THREAD + TAKEN * 32), put(THREAD + TAKEN * 32)), prior_iterations=TAKEN, increment=growth_per_iteration
    )
    np.testing.assert_array_equal(outcome_of(kernel((making.loop(J, as_expr(3), (loop,)),)), order), rows(*places))


def test_prior_iterations_are_counted_by_loop():
    """Two loops have separate counts."""
    first, second = (
        making.loop(var, as_expr(2), twice(prior), prior_iterations=prior) for var, prior in ((K, TAKEN), (J, Var("other", 0, 99)))
    )
    np.testing.assert_array_equal(outcome_of(kernel((first, second))), rows(0, 1, 8, 9))


@pytest.mark.parametrize("order", ORDERS)
def test_a_name_has_its_latest_value(order):
    """It is bound again in each iteration, and in consecutive lists."""
    name, other = Var("name", 0, 511), Var("other", 0, 511)
    loop = making.loop(K, as_expr(2), (making.let(name, THREAD + K * 32), making.let(other, name + 64), put(name), put(other)))
    body = (loop, making.loop(J, as_expr(1), (making.let(name, THREAD + 160), put(name), put(name + 32))))
    np.testing.assert_array_equal(outcome_of(kernel(body), order), rows(0, 1, 2, 3, 5, 6))


def test_scopes_of_names_and_loops():
    """A message names the enclosing loops only, neither completed loops nor their names."""
    name = Var("name", 0, 7)
    nest = making.loop(J, as_expr(2), (making.loop(K, as_expr(2), (put(THREAD + J * 32, THREAD + K * 32),)),))
    for before in (
        (),
        (making.loop(K, as_expr(2), (making.let(name, K), put(THREAD + name * 32), put(THREAD + name * 32))),),
        (nest,),
        (making.loop(J, as_expr(2), (making.let(name, J * 2), making.loop(K, as_expr(2), (put(THREAD + K * 32, THREAD + name * 32),)))),),
    ):
        text = outcome_of(kernel((*before, put(THREAD, THREAD + 500))))
        assert text.startswith("src[512] is outside of the tensor") and "outside loops" in text, text
        text = outcome_of(
            kernel((*before, making.loop(Var("m", 0, 3), as_expr(3), (put(THREAD), put(THREAD, THREAD + 479 + Var("m", 0, 3))))))
        )
        assert text.startswith("src[512] is outside of the tensor") and ", m=2\n" in text, text
        assert not any(f"{name}=" in text for name in ("k", "j", "name"))


@pytest.mark.parametrize("order", ORDERS)
def test_a_loop_with_different_trip_counts(order):
    """Threads in lockstep need equal trip counts; in execution by warps they may differ if there is no barrier."""
    thread = Var("thread", 0, 63)
    body = (making.loop(K, thread // 32, (put(thread), put(thread))),)
    program = kernel(body, threads=64)
    launch = SingleLaunch(Plan(program, {}), {"src": GIVEN}, (0,), True, chance(order))
    if order is None:
        with pytest.raises(SimulationError, match="the trip count of loop k differs between threads"):
            launch.run()
    else:
        launch.run()
        np.testing.assert_array_equal(launch.outputs()["dst"], rows(1))


def test_a_uniform_extent_given_as_an_array():
    """An extent evaluated by thread is legal if it is equal in all threads."""
    thread = Var("thread", 0, 63)
    program = kernel((making.loop(K, thread // 64 + 2, (put(thread + K * 64), put(thread + K * 64))),), threads=64)
    np.testing.assert_array_equal(outcome_of(program), rows(0, 1, 2, 3))


# ---------------------------------------------------------------------------------------------- nests


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("shared", ["none", "inner", "both"])
def test_a_nest_whose_iterations_write_one_element(order, shared):
    """The last write wins: a loop that cannot be vectorized is executed by iteration from the start."""
    place = {"none": J * 2 + K, "inner": J * 2 + K // 2, "both": (J * 2 + K) // 4}[shared]
    body = (making.loop(J, as_expr(3), (making.loop(K, as_expr(2), (put(THREAD + place * 32, THREAD + (J * 2 + K) * 32),)),)),)
    got = outcome_of(kernel(body), order)
    last_iteration = {}
    for iteration in range(6):
        last_iteration[{"none": iteration, "inner": iteration // 2 * 2, "both": iteration // 4}[shared]] = iteration
    expected = np.full(512, np.nan, np.float32)
    for row, iteration in last_iteration.items():
        expected[row * 32 : row * 32 + 32] = GIVEN[iteration * 32 : iteration * 32 + 32]
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("order", ORDERS)
def test_a_nest_with_a_loop_that_does_not_change_the_target(order):
    """Outside a vectorized loop and inside one; without iterations nothing is written."""
    for count in (0, 1, 3):
        for outer, inner in (((J, count), (K, 4)), ((K, 4), (J, count))):
            body = (
                making.loop(
                    outer[0],
                    as_expr(outer[1]),
                    (making.loop(inner[0], as_expr(inner[1]), (put(THREAD + K * 32, THREAD + (J * 4 + K) * 32),)),),
                ),
            )
            got = outcome_of(kernel(body), order)
            expected = np.full(512, np.nan, np.float32)
            if count:
                expected[:128] = GIVEN[(count - 1) * 128 : count * 128]
            np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("order", ORDERS)
def test_a_nest_whose_later_iterations_write_one_element(order):
    """The conflict appears only in the second outer iteration; each register still has its last value."""
    r = local("r", (8,), RF)
    place = J * (K // 2) + (1 - J) * K
    fill = making.loop(
        J, as_expr(2), (making.loop(K, as_expr(4), (copy(access("src", (THREAD + (J * 4 + K) * 32,)), access("r", (place,)), (GL, RF)),)),)
    )
    store = making.loop(
        Var("m", 0, 3), as_expr(4), (copy(access("r", (Var("m", 0, 3),)), access("dst", (THREAD + Var("m", 0, 3) * 32,)), (RF, GL)),)
    )
    got = outcome_of(kernel((fill, store), r), order)[:128].reshape(4, 32)
    np.testing.assert_array_equal(got, GIVEN.reshape(16, 32)[[5, 7, 2, 3]])


# ---------------------------------------------------------------------------------------------- barriers


def exchange(*between, threads=64, other=None):
    """Each thread writes its element, and reads that of another."""
    thread = Var("thread", 0, threads - 1)
    x = attrs.evolve(local("x", (threads,), SH), offset=0)
    far = threads - 1 - thread if other is None else other
    body = (
        copy(access("src", (thread,)), access("x", (thread,)), (GL, SH)),
        *between,
        copy(access("x", (far,)), access("dst", (thread,)), (SH, GL)),
    )
    return kernel(body, x, threads=threads)


@pytest.mark.parametrize("order", ORDERS)
def test_a_barrier_orders_its_threads(order):
    np.testing.assert_array_equal(outcome_of(exchange(BLOCK_BARRIER), order)[:64], GIVEN[:64][::-1])
    np.testing.assert_array_equal(outcome_of(exchange(making.barrier(making.scope("all", 64))), order)[:64], GIVEN[:64][::-1])
    for between in ((), (making.barrier(ir.WARP_SCOPE),), (making.barrier(making.scope("pairs", 2)),)):
        assert outcome_of(exchange(*between), order).startswith("race on x["), between


@pytest.mark.parametrize("order", ORDERS)
def test_a_block_barrier_with_an_incomplete_warpgroup(order):
    """The barrier synchronizes all 96 threads."""
    np.testing.assert_array_equal(outcome_of(exchange(making.barrier(ir.BLOCK_SCOPE), threads=96), order)[:96], GIVEN[:96][::-1])
    warps = making.loop(K, as_expr(1), (making.barrier(ir.WARP_SCOPE), BLOCK_BARRIER))
    np.testing.assert_array_equal(outcome_of(exchange(warps, threads=96), order)[:96], GIVEN[:96][::-1])


def test_barriers_are_counted():
    done = simulate(exchange(BLOCK_BARRIER, making.loop(K, as_expr(3), (BLOCK_BARRIER, making.barrier(ir.WARP_SCOPE)))), {"src": GIVEN})
    assert (done.barriers, done.statements) == (7, 2)


# ---------------------------------------------------------------------------------------------- asynchronous copies and MMAs


def loaded(*between, second=False):
    """Asynchronous copies of each thread, to its element, or to two."""
    x = attrs.evolve(local("x", (64,), SH), offset=0)
    move = lambda more: making.async_copy(copy(access("src", (THREAD + more,)), access("x", (THREAD + more,)), (GL, SH)))
    read = copy(access("x", (THREAD + (32 if second else 0),)), access("dst", (THREAD,)), (SH, GL))
    return kernel((move(0), making.commit(), move(32), making.commit(), *between, read), x)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    "pending, second, right", [(0, False, True), (0, True, True), (1, False, True), (1, True, False), (2, False, False)]
)
def test_waits_for_asynchronous_copies(pending, second, right, order):
    """All but the last `pending` groups complete."""
    outcome = outcome_of(loaded(making.wait(pending), second=second), order)
    if right:
        np.testing.assert_array_equal(outcome[:32], GIVEN[32 * second : 32 * second + 32])
    else:
        assert outcome.startswith("x is read while an asynchronous copy to it is in flight"), outcome
    assert "in flight" in outcome_of(loaded(second=second), order)
    with pytest.raises(VerificationError, match="a wait .* in a kernel without such asynchronous statements"):
        outcome_of(loaded(making.wait(0, mechanism=WGMMA_GROUPS), second=second), order)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    "name",
    [
        "right",
        "the older group is waited for",
        "the younger group is not waited for",
        "no fence",
        "a proxy fence only",
        "an operand is loaded after the fence",
    ],
)
def test_waits_and_fences_for_wgmma(name, order):
    program, message = wgmma_kernel(name)
    given = np.arange(1, 33, dtype=np.float32).reshape(32, 1)
    if message is None:
        np.testing.assert_array_equal(copied(program, given, chance(order)), given + given * given)
    else:
        with pytest.raises(SimulationError, match=message):
            copied(program, given, chance(order))
    assert name in WGMMA_SEQUENCES


# ---------------------------------------------------------------------------------------------- dynamic tiles


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("tiles, blocks, stages, warps", [(1, 1, 1, 1), (5, 1, 2, 1), (5, 3, 2, 1), (4, 2, 3, 2), (7, 2, 1, 2)])
def test_blocks_claim_all_tiles(tiles, blocks, stages, warps, order):
    given = np.arange(1, tiles * warps * 32 + 1, dtype=np.float32)
    np.testing.assert_array_equal(copied(fetched(tiles, blocks, stages, warps), given, chance(order)), given)


def without(*kinds):
    return lambda body: tuple(stmt for stmt in body if not isinstance(stmt, kinds))


def with_tiles(more):
    return lambda body: tuple(attrs.evolve(stmt, tiles=stmt.tiles + more) if isinstance(stmt, ir.ExitIfDone) else stmt for stmt in body)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    "change, message",
    [
        ({"consumer": with_tiles(1), "producer": with_tiles(1)}, r"(src|dst)\[160\] is outside of the tensor"),
        ({"consumer": without(ir.ExitIfDone), "producer": without(ir.ExitIfDone)}, r"(src|dst)\[160\] is outside of the tensor"),
        ({"consumer": with_tiles(-1), "producer": with_tiles(-1), "blocks": 1}, None),
        ({"producer": with_tiles(-1)}, "deadlock"),
        ({"consumer": with_tiles(-1), "blocks": 1}, None),
        ({"extent": 5, "blocks": 1}, "loop turn continues past the last tile"),
        ({"extent": 6, "blocks": 1}, "right"),
        ({"consumer": without(ir.Acquire)}, "the tile index of fill 0 is read by a group that has not acquired it full"),
        ({"producer": without(ir.Acquire)}, "the tile index of fill 0 is stored by a group that has not acquired it empty"),
        ({"consumer": without(ir.Barrier)}, "right"),
        ({"consumer": without(ir.Release)}, "deadlock"),
        ({"producer": without(ir.Release)}, "deadlock"),
    ],
)
def test_exit_from_the_loop_over_dynamic_tiles(change, message, order):
    """A block exits at the first number past the last tile."""
    given = np.arange(1, 161, dtype=np.float32)
    outcome = outcome_of(fetched(**{"tiles": 5, "blocks": 2, **change}), order, given)
    if message == "right":
        np.testing.assert_array_equal(outcome, given)
    elif message is None:
        np.testing.assert_array_equal(outcome, np.where(given <= 128, given, np.nan))
    else:
        assert isinstance(outcome, str) and re.search(message, outcome), outcome


# ---------------------------------------------------------------------------------------------- conditional bodies


def conditional_kernel(inside, following=(), threads=64):
    """Each thread loads an element of `src` to `needed` and another one to r; its warp executes the body if any lane needs it, and stores r."""
    thread = Var("thread", 0, threads - 1)

    def move(source, target, memories):
        spec = Move(1, dtype=int32)(*memories)(Thread)
        return making.execution(MOVE, spec, (source, attrs.evolve(target, write=True)), pieces=((making.piece(0),),) * 2)

    number = move(access("src", (thread,)), access("needed", (0,)), (GL, RF))
    first = move(access("src", (thread + threads,)), access("r", (0,)), (GL, RF))
    store = move(access("r", (0,)), access("dst", (thread,)), (RF, GL))
    body = (number, first, making.if_any_lane("needed", tuple(inside(move))), *(following and following(move)), store)
    registers = (local(name, (size,), RF, int32) for name, size in (("needed", 1), ("r", 2), ("s", 2)))
    return kernel_of(Move(3 * threads, dtype=int32)(GL, GL), body, *registers, threads=threads)


def needing(*threads, count=64):
    return np.concatenate([np.isin(np.arange(count), threads) * 7, np.arange(count) + 100, np.arange(count) + 1000]).astype(np.int32)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("threads", [(), (0,), (63,), (31, 32), range(64)], ids=str)
def test_warps_execute_a_body_that_a_lane_needs(threads, order):
    """All their threads execute it; other warps keep their registers, in loops and with names too."""
    name = Var("name", 0, 3)
    iteration = Var("turn", 0, 1)

    def inside(move):
        yield making.let(name, as_expr(0))
        yield making.loop(
            iteration,
            as_expr(2),
            (making.let(Var("inner", 0, 1), iteration * 0), move(access("needed", (name,)), access("r", (Var("inner", 0, 1),)), (RF, RF))),
        )

    given = needing(*threads)
    result = outcome_of(conditional_kernel(inside), order, given)[:64]
    some = np.repeat([any(thread // 32 == warp for thread in threads) for warp in (0, 1)], 32)
    np.testing.assert_array_equal(result, np.where(some, given[:64], given[64:128]))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("threads, lost", [(range(64), None), ((40,), 0), ((3,), 32), ((), 0)], ids=str)
def test_skipped_bodies_write_no_registers(threads, lost, order):
    """A register that only a skipped body writes is uninitialized."""
    outcome = outcome_of(
        conditional_kernel(
            lambda move: [move(access("r", (0,)), access("s", (0,)), (RF, RF))],
            lambda move: (move(access("s", (0,)), access("r", (0,)), (RF, RF)),),
        ),
        order,
        needing(*threads),
    )
    if lost is None:
        np.testing.assert_array_equal(outcome[:64], np.arange(64) + 100)
    else:
        wanted = {lost} if order is None else {lost, 32} if not threads else {lost}
        assert any(
            outcome.startswith(f"s[0] (register 0) is read before any write to it: thread {thread} of block 0") for thread in wanted
        ), outcome


def test_names_of_a_conditional_body_end_with_it():
    """They may be bound again, and messages do not name them."""
    name = Var("name", 0, 3)
    inside = lambda move: (making.let(name, as_expr(1)), move(access("needed", (0,)), access("r", (0,)), (RF, RF)))
    following = lambda move: (move(access("src", (192 + Var("thread", 0, 63),)), access("r", (0,)), (GL, RF)),)
    text = outcome_of(conditional_kernel(inside, following), None, needing(*range(64)))
    assert text.startswith("src[192] is outside of the tensor") and "outside loops" in text


def test_a_ring_in_lockstep():
    """In lockstep the consumers advance together, and loads complete at once."""
    given = np.arange(1, 5 * 8 * 64 + 1).reshape(40, 64).astype(np.float16)
    for warps in (1, 2):
        np.testing.assert_array_equal(copied(streamed(5, 2, warps), given), given)


@pytest.mark.parametrize("order", ORDERS)
def test_inactive_threads_keep_their_values(order):
    """Threads that are inactive in a statement write nothing."""
    got = outcome_of(kernel((put(THREAD), copy(access("src", (THREAD + 64,)), access("dst", (THREAD,)), active=less(THREAD, 5)))), order)
    np.testing.assert_array_equal(got[:32], np.where(np.arange(32) < 5, GIVEN[64:96], GIVEN[:32]))
