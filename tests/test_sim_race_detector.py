"""The race detector on hand-made kernels: reads through the async proxy, races against brute force, and messages (`fireiron.sim.race_detector`)."""

import random
import re
import types

import attrs
import making
import numpy as np
import pytest
from engines import WGMMA_SEQUENCES, copied, numbered, stored, streamed, wgmma_kernel
from handmade import access, kernel_of, local

from fireiron import *
from fireiron import ir
from fireiron.errors import SimulationError
from fireiron.executable.atomic_add import ATOMIC_ADD
from fireiron.executable.micro_kernel import MicroKernel
from fireiron.executable.thread_move import MOVE
from fireiron.ir.mechanisms.tma_store import TMA_STORES
from fireiron.ir.mechanisms.wgmma import WGMMA_GROUPS
from fireiron.sim import simulate
from fireiron.sim.block_batch import BlockBatch
from fireiron.sim.locations import Flat, Rows, ThreadGroup
from fireiron.sim.memory import global_memory
from fireiron.sim.plan import Plan
from fireiron.sim.race_detector import RaceDetector, _Repeated
from fireiron.sim.shadow import Clock, History, Shadow
from fireiron.values.expr import TRUE, Var, all_of, as_expr, equal, less

GIVEN = numbered((64, 64))
RIGHT = making.tensor_map("dst_map", "dst", (1, 0), (64, 64), 128)
FILL, FENCE, BARRIER, STORE, COMMIT, WAIT = range(6)


def rewritten(*order):
    """The TMA store with its statements in another order, or with other statements; each has a separate line."""
    kernel = stored(RIGHT)
    body = [_at(item, f"line {number}") for number, item in enumerate(kernel.body)]
    return attrs.evolve(kernel, body=tuple(body[item] if isinstance(item, int) else item for item in order))


def _at(statement, line):
    if isinstance(statement, ir.For):
        return attrs.evolve(statement, body=tuple(_at(stmt, line) for stmt in statement.body))
    return attrs.evolve(statement, origin=line) if isinstance(statement, ir.Exec) else statement


def fails(kernel, message):
    for order in (None, 0):
        with pytest.raises(SimulationError, match=message):
            copied(kernel, GIVEN, None if order is None else random.Random(order))


def test_the_correct_order_passes():
    for order in (None, random.Random(0)):
        np.testing.assert_array_equal(copied(rewritten(FILL, FENCE, BARRIER, STORE, COMMIT, WAIT), GIVEN, order), GIVEN)
    twice = rewritten(FILL, FENCE, BARRIER, STORE, COMMIT, WAIT, BARRIER, FILL, FENCE, BARRIER, STORE, COMMIT, WAIT)
    np.testing.assert_array_equal(copied(twice, GIVEN), GIVEN)


UNFENCED = r"tile is read through the async proxy, which does not see what was written to it: (?s:.*) at line 0,(?s:.*)at +line 3"


@pytest.mark.parametrize("order", [(FILL, BARRIER, STORE), (FILL, BARRIER, FENCE, STORE), (FENCE, FILL, BARRIER, STORE)], ids=str)
def test_a_proxy_fence_between_write_and_barrier_is_required(order):
    fails(rewritten(*order, COMMIT, WAIT), UNFENCED)


def test_a_barrier_between_write_and_tma_store_is_required():
    fails(rewritten(FILL, FENCE, STORE, COMMIT, WAIT), r"race on tile.*no barrier orders them(?s:.*)at +line 3|" + UNFENCED)


READ = r"tile is written while an MMA that reads it is in flight: TMA_STORE .* at line 3,(?s:.*)at +line 0"


@pytest.mark.parametrize(
    "order",
    [(STORE, COMMIT, BARRIER, FILL), (STORE, COMMIT, making.wait(1, mechanism=TMA_STORES), BARRIER, FILL), (STORE, FILL)],
    ids=str,
)
def test_shared_memory_is_not_written_while_a_store_reads_it(order):
    fails(rewritten(FILL, FENCE, BARRIER, *order, WAIT), READ)


def test_a_wait_orders_readers_with_writes_after_a_barrier():
    """The store reads for the threads that issued it; other threads may write after a barrier with them."""
    fails(
        rewritten(FILL, FENCE, BARRIER, STORE, COMMIT, WAIT, FILL, FENCE, BARRIER, STORE, COMMIT, WAIT),
        r"race on tile.*reads it \(TMA_STORE .* at line 3, .*writes it \(.* at line 0",
    )


def test_a_store_without_a_wait_is_reported():
    """In lockstep and by warps, committed or not."""
    for order in ((STORE, COMMIT), (STORE,), (STORE, WAIT), (STORE, COMMIT, making.wait(1, mechanism=TMA_STORES))):
        fails(rewritten(FILL, FENCE, BARRIER, *order), "a TMA store may read shared memory after the block exits")


def test_a_store_of_unwritten_memory_is_reported():
    kernel = rewritten(STORE, COMMIT, WAIT)
    with pytest.raises(SimulationError, match=r"tile .*is read before any write to it: thread 0 of block 0(?s:.*)at +line 3"):
        copied(kernel, GIVEN)


# ---------------------------------------------------------------------------------------------- parts of the race detector


def test_accesses_repeat_from_the_third_execution_on():
    """The first is compared with earlier accesses, the second with the first; a different address restarts the count for all accesses."""
    run = _Repeated("site", clock := Clock(), "group")
    a, b, place, other, moved = object(), object(), object(), object(), object()
    assert [run.is_repetition(a, place) for _ in range(4)] == [False, False, True, True]
    assert [run.is_repetition(b, other) for _ in range(2)] == [False, False]
    assert not run.is_repetition(a, place) and not run.is_repetition(b, other)
    assert run.is_repetition(a, place) or run.is_repetition(a, place)
    assert not run.is_repetition(a, moved)
    assert not run.is_repetition(b, other), "all addresses must be unchanged twice"
    assert run.continues("site", clock, "group")
    assert (
        not run.continues("other", clock, "group")
        and not run.continues("site", Clock(), "group")
        and not run.continues("site", clock, "other")
    )


@pytest.mark.parametrize(
    "spread, ends", [(1, [(0, 0), (5, 5), (33, 33), (95, 95)]), (32, [(0, 31), (0, 31), (32, 63), (64, 95)]), (128, [(0, 95)] * 4)]
)
def test_threads_of_a_spread_access(spread, ends):
    """The access belongs to a unit of threads; the last unit may be incomplete."""
    race_detector = types.SimpleNamespace(plan=types.SimpleNamespace(kernel=types.SimpleNamespace(threads=96)))
    low, high = RaceDetector._actors(race_detector, types.SimpleNamespace(spread=spread), ThreadGroup(np.array([0, 5, 33, 95]), {}))
    assert [*zip(low.tolist(), high.tolist(), strict=True)] == ends


def test_a_ring_has_no_race():
    for warps in (1, 2):
        given = numbered((5 * 8, 64))
        np.testing.assert_array_equal(copied(streamed(5, 2, warps), given), given)


# ---------------------------------------------------------------------------------------------- races, against brute force

THREADS, PLACES = 64, 512
THREAD = Var("thread", 0, THREADS - 1)
ITERATION = Var("k", 0, 2)
KINDS = {"x": (float32, 64, 0), "h": (float16, 96, 64), "d": (float64, 24, 128)}
"""Buffers in shared memory: their types, sizes and first bytes, of which some are the same."""


def buffers(**more):
    return [attrs.evolve(local(name, (size,), SH, dtype), offset=offset) for name, (dtype, size, offset) in {**KINDS, **more}.items()]


def kernel(body, *own, threads=THREADS, grid=1, size=PLACES):
    program = kernel_of(Move(size, dtype=float32)(GL, GL), tuple(body), *own, threads=threads, grid=grid)
    return attrs.evolve(program, shared_bytes=2048)


def touch(buffer, place, write, active=TRUE, own=THREAD, line=None, dtype=float32):
    """A thread writes an element from `src`, or copies one to its element of `dst`."""
    kind = KINDS[buffer][0] if buffer in KINDS else dtype
    if write:
        spec = Move(1, dtype=float32, dst_dtype=kind)(GL, SH if buffer in KINDS else GL)
        accesses = access("src", (own,)), access(buffer, (place,), write=True)
    else:
        spec = Move(1, dtype=kind, dst_dtype=float32)(SH if buffer in KINDS else GL, GL)
        accesses = access(buffer, (place,)), access("dst", (own,), write=True)
    return making.execution(MOVE, spec(Thread), accesses, active=active, pieces=((making.piece(0),),) * 2, origin=line)


def outcome_of(program, order=None, **arrays):
    """The outputs, or the simulator's message."""
    given = {"src": np.arange(1, 1 + program.buffer("src").tensor.shape[0].evaluate({}), dtype=np.float32), **arrays}
    try:
        return simulate(program, given, order=None if order is None else random.Random(order)).outputs
    except SimulationError as error:
        return str(error)


def is_race(outcome):
    return isinstance(outcome, str) and outcome.startswith("race")


def random_steps(draw):
    """Random steps: barriers by their number of threads, accesses, and loops of both."""
    steps = []
    for _ in range(draw.randrange(2, 6)):
        if draw.random() < 0.4:
            steps.append(draw.choice([2, 8, 32, 64, 64]))
            continue
        buffer = draw.choice("xxhd")
        size = KINDS[buffer][1]
        place = draw.choice(
            [
                THREAD,
                THREAD,
                THREAD,
                size - 1 - THREAD % size,
                THREAD // 2,
                THREAD // 32 + 5,
                THREAD + 1,
                THREAD * 3,
                THREAD * 0,
                THREAD + ITERATION,
            ]
        )
        first, last = draw.choice([(0, 64), (0, 64), (0, 32), (32, 64), (7, 8), (0, 1), (33, 40), (8, 16)])
        steps.append((buffer, place % size, draw.random() < 0.5, first, last))
    return steps if draw.random() < 0.5 else [steps]


def as_statements(steps, inside=False):
    for step in steps:
        if isinstance(step, int):
            yield making.barrier(making.scope(f"group of {step}", step))
        elif isinstance(step, list):
            yield making.loop(ITERATION, as_expr(3), tuple(as_statements(step, True)))
        else:
            buffer, place, write, first, last = step
            place = place if inside else place.substitute({ITERATION: 0})
            yield touch(buffer, place, write, all_of([less(THREAD, last), less(first - 1, THREAD)]))


def unrolled(steps, iteration=0):
    for step in steps:
        if isinstance(step, list):
            for number in range(3):
                yield from unrolled(step, number)
        else:
            yield step if isinstance(step, int) else (*step, iteration)


def races(steps):
    """Whether two threads access a byte, one of them writes it, and no barrier of both is between."""
    barriers, touched = [], {}
    for step in unrolled(steps):
        if isinstance(step, int):
            barriers.append(step)
            continue
        buffer, place, write, first, last, iteration = step
        dtype, _, offset = KINDS[buffer]
        for thread in range(first, last):
            start = offset + place.evaluate({"thread": thread, "k": iteration}) * dtype.bytes
            for byte in range(start, start + dtype.bytes):
                for other, wrote, then in touched.setdefault(byte, set()):
                    if (write or wrote) and other != thread and not any(other // size == thread // size for size in barriers[then:]):
                        return True
                touched[byte].add((thread, write, len(barriers)))
    return False


@pytest.mark.parametrize("batch", range(6))
def test_random_kernels_compared_with_brute_force(batch):
    """In lockstep, and with warps in random order."""
    verdicts = set()
    for number in range(25):
        steps = random_steps(random.Random(f"races {batch} {number}"))
        expected = races(steps)
        program = kernel(as_statements(steps), *buffers())
        for order in (None, number):
            got = outcome_of(program, order)
            assert is_race(got) == expected, (batch, number, order, steps, got)
        verdicts.add(expected)
    assert verdicts == {True, False}


@pytest.mark.parametrize("kind", ["write", "read"])
def test_no_barrier_orders_blocks(kind):
    """A block races with the reads and writes of another block, despite barriers."""
    block, thread = Var("block", 0, 1), Var("thread", 0, 31)
    barrier = making.barrier(ir.BLOCK_SCOPE)
    own_write = touch("dst", thread + block * 32, True, own=thread)
    other_access = making.execution(
        MOVE,
        Move(1, dtype=float32)(GL, GL)(Thread),
        (access("src", (thread,)), access("dst", (thread + (1 - block) * 32,), write=True)),
        pieces=((making.piece(0),),) * 2,
    )
    if kind == "read":
        other_access = making.execution(
            MOVE,
            Move(1, dtype=float32)(GL, GL)(Thread),
            (access("dst", (thread + (1 - block) * 32,)), access("dst", (thread + 64 + block * 32,), write=True)),
            pieces=((making.piece(0),),) * 2,
        )
    given = np.zeros(PLACES, np.float32)
    for order in (None, 0):
        assert not is_race(outcome_of(kernel((own_write, barrier, own_write), threads=32, grid=2), order, dst=given))
        text = outcome_of(kernel((own_write, barrier, other_access), threads=32, grid=2), order, dst=given)
        assert is_race(text) and "of block 0" in text and "of block 1" in text and "assign each element to one thread only" in text, text
        assert "race on dst[" in text


# ---------------------------------------------------------------------------------------------- messages


def test_message_of_a_race_of_two_statements():
    """It names both threads, their accesses, lines and iterations, the block and the missing barrier."""
    write, read = touch("x", THREAD, True, line="line 1"), touch("x", (THREAD + 1) % 64, False, line="line 2")
    text = outcome_of(kernel((write, read), *buffers()))
    assert text.startswith("race on x[1] (address 1): thread 1 writes it (Move Move(1)(GL,SH)(Thread) at line 1, outside loops), "), text
    assert "thread 0 reads it (Move Move(1)(SH,GL)(Thread) at line 2), and no barrier orders them" in text
    assert re.search(r"in +block 0, outside loops", text) and re.search(r"at +line 2", text) and "a barrier between the two" in text


def test_message_of_a_race_of_a_read_with_a_write():
    read, write = touch("x", THREAD, False, line="line 1"), touch("x", THREAD // 2, True, line="line 2")
    fill, barrier = touch("x", THREAD, True), making.barrier(ir.BLOCK_SCOPE)
    text = outcome_of(kernel((fill, barrier, read, write), *buffers()))
    assert re.match(
        r"race on x\[\d+\] .*: thread (\d+) (reads|writes) it .* at line [12](, outside loops)?\), thread (\d+) writes it .* at line 2\)",
        text,
    ), text


def test_message_of_a_race_of_one_statement():
    """In one iteration, which it names, and across two iterations, where a barrier would help."""
    both = (touch("x", THREAD // 2, True, line="line 1"), touch("dst", THREAD + 64, True))
    text = outcome_of(kernel((making.loop(ITERATION, as_expr(2), both),), *buffers()))
    assert text.startswith(
        "race on x[0] (address 0): thread 0 writes it (Move Move(1)(GL,SH)(Thread) at line 1, k=0), thread 1 writes it"
    ), text
    assert re.search(r"in +block 0, k=0", text) and "assign each element to one thread only" in text
    body = (touch("x", (THREAD + ITERATION) % 64, True, line="line 1"), touch("dst", THREAD + 64, True))
    text = outcome_of(kernel((making.loop(ITERATION, as_expr(2), body),), *buffers()))
    assert "at line 1, k=0)" in text and re.search(r"in +block 0, k=1", text) and "a barrier between the two" in text, text


def test_message_of_a_race_in_a_vectorized_loop():
    """It names the conflicting iterations and the threads of both warps."""
    for offset in (0, 5):
        fill = making.loop(
            ITERATION, as_expr(3), (touch("x", THREAD * 3 + ITERATION + offset, True, line="line 1", active=less(THREAD, 16)),)
        )
        read = touch("x", 7 + offset, False, line="line 2", active=all_of([less(THREAD, 41), less(39, THREAD)]))
        text = outcome_of(kernel((fill, read), *buffers()))
        assert text.startswith(
            f"race on x[{7 + offset}] (address {7 + offset}): thread 2 writes it (Move Move(1)(GL,SH)(Thread) at line 1, outside loops), thread 40 reads it"
        ), text
        text = outcome_of(
            kernel((touch("x", 7 + offset, False, line="line 2", active=all_of([less(THREAD, 41), less(39, THREAD)])), fill), *buffers())
        )
        assert "thread 40 reads it" in text and "thread 2 writes it" in text and re.search(r"in +block 0, k=1\n", text), text


def test_reported_reader_is_of_another_warp_if_possible():
    """Of the earlier readers, the message names one of another warp if there is one, otherwise another thread."""
    for readers, writer, named in (((0, 40), 63, 0), ((0, 40), 3, 39), ((33, 40), 63, 33), ((0, 8), 7, 0), ((7, 9), 8, 7)):
        read = touch("x", THREAD * 0, False, active=all_of([less(THREAD, readers[1]), less(readers[0] - 1, THREAD)]), line="line 1")
        write = touch("x", THREAD * 0, True, active=all_of([less(THREAD, writer + 1), less(writer - 1, THREAD)]), line="line 2")
        text = outcome_of(kernel((read, write), *buffers()))
        assert f": thread {named} reads it" in text and f", thread {writer} writes it" in text, (readers, writer, text)


def test_message_names_the_block_of_a_race():
    block, thread = Var("block", 0, 2), Var("thread", 0, 31)
    write = touch("x", thread, True, own=thread)
    read = touch("x", (thread + equal(block, 2)) % 32, False, own=thread + block * 32)
    text = outcome_of(kernel((write, read), *buffers(), threads=32, grid=3))
    assert (
        is_race(text) and re.search(r"in +block 2, outside loops", text) and "thread 1 writes it" in text and "thread 0 reads it" in text
    ), text


@pytest.mark.parametrize("dtype", [int32, float32], ids=str)
def test_message_of_an_uninitialized_read(dtype):
    """It names the first uninitialized element, its address, the thread and the iteration."""
    own = attrs.evolve(local("y", (4, 16), SH, dtype, RowMajor(ld=20)), offset=0)
    row, column = THREAD // 16, THREAD % 16
    spec = Move(1, 1, dtype=dtype)(GL, SH)(Thread)
    pieces = ((making.piece(0),),) * 2
    write = making.execution(
        MOVE, spec, (access("src", (row, column)), access("y", (row, column), write=True)), active=less(THREAD, 37), pieces=pieces
    )
    reads = Move(1, 1, dtype=dtype)(SH, GL)(Thread)
    read = making.execution(
        MOVE, reads, (access("y", (row, column)), access("dst", (row, column), write=True)), pieces=pieces, origin="line 2"
    )
    program = kernel_of(
        Move(4, 16, dtype=dtype, src=RowMajor, dst=RowMajor)(GL, GL),
        (write, making.loop(ITERATION, as_expr(2), (read, read))),
        own,
        threads=64,
    )
    program = attrs.evolve(program, shared_bytes=512)
    given = {"src": np.ones((4, 16), dtype.to_numpy())}
    with pytest.raises(SimulationError) as caught:
        simulate(program, given)
    text = str(caught.value)
    assert text.startswith("y[2, 5] (address 45) is read before any write to it: thread 37 of block 0"), text
    assert re.search(r"in +Move Move\(1,1.*, k=0", text) and re.search(r"at +line 2", text) and "an init or a copy is missing" in text


def copy_kernel(*steps, warps=1):
    """Asynchronous copies to x: `copy`, `commit`, `wait`, `read`, `write`, `barrier`, each at a separate line."""
    thread = Var("thread", 0, warps * 32 - 1)
    known = {
        "copy": making.async_copy(touch("x", thread, True, own=thread)),
        "partial": making.async_copy(touch("x", thread, True, own=thread), active=less(thread, 4)),
        "commit": making.commit(),
        "wait": making.wait(0),
        "read": touch("x", thread, False, own=thread),
        "other": touch("x", warps * 32 - 1 - thread, False, own=thread),
        "write": touch("x", thread, True, own=thread),
        "barrier": making.barrier(ir.BLOCK_SCOPE),
    }
    statements = [known[step] for step in steps]
    body = [attrs.evolve(stmt, origin=f"line {number}") if isinstance(stmt, ir.Exec) else stmt for number, stmt in enumerate(statements)]
    return kernel(body, *buffers(), threads=warps * 32)


@pytest.mark.parametrize("order", [None, 0, 1])
@pytest.mark.parametrize(
    "steps, message",
    [
        ("copy commit wait read", None),
        ("copy commit wait barrier other", None),
        ("copy commit wait write read", None),
        ("copy commit wait copy commit wait read", None),
        ("read copy commit wait read", None),
        (
            "copy commit read wait",
            r"x is read while an asynchronous copy to it is in flight: [A-Z_0-9]+ .* at line 0, outside loops, which no thread has waited for(?s:.*)in +Move .*, outside loops(?s:.*)at +line 2",
        ),
        ("copy commit write wait", r"x is written while an asynchronous copy to it is in flight: [A-Z_0-9]+ .* at line 0(?s:.*)at +line 2"),
        (
            "copy commit copy commit wait",
            r"x is written while an asynchronous copy to it is in flight: [A-Z_0-9]+ .* at line 0(?s:.*)at +line 2",
        ),
        ("copy wait read", r"x is read while an asynchronous copy"),
        ("copy commit barrier read wait", r"x is read while an asynchronous copy"),
        ("copy commit wait other", r"race on x\[\d+\].*writes it .* at line 0, .*reads it .* at line 3"),
        ("copy commit barrier wait other", r"race on x\[\d+\].*writes it .* at line 0, .*reads it .* at line 4"),
        ("other copy commit wait", r"race on x\[\d+\].*reads it .* at line 0, .*writes it .* at line 1"),
        ("copy commit wait barrier read write barrier other", None),
    ],
)
def test_asynchronous_copies(steps, message, order):
    """A copy has written after its threads have waited; other threads see it after a following barrier."""
    for warps in (1, 2):
        outcome = outcome_of(copy_kernel(*steps.split(), warps=warps), order)
        if message is None:
            assert isinstance(outcome, dict), outcome
        else:
            # In random order the message may report the other warp.
            assert isinstance(outcome, str) and (re.search(message, outcome) or (order is not None and warps == 2)), outcome


def test_elements_that_a_copy_skips_are_not_pending():
    partial = making.async_copy(touch("x", THREAD, True, active=less(THREAD, 4)))
    rest = touch("x", THREAD, True, active=less(3, THREAD))
    assert isinstance(outcome_of(kernel((partial, making.commit(), rest, making.wait(0)), *buffers())), dict)
    wide = touch("x", THREAD, True, active=less(2, THREAD))
    assert "in flight" in outcome_of(kernel((partial, making.commit(), wide, making.wait(0)), *buffers()))


@pytest.mark.parametrize("order", [None, 1])
@pytest.mark.parametrize("name", [name for name in WGMMA_SEQUENCES if "shared" in name])
def test_shared_operands_of_wgmma(name, order):
    program, message = wgmma_kernel(name)
    given = np.arange(1, 33, dtype=np.float32).reshape(32, 1)
    if message is None:
        copied(program, given, None if order is None else random.Random(order))
    else:
        with pytest.raises(SimulationError, match=message):
            copied(program, given, None if order is None else random.Random(order))


# ---------------------------------------------------------------------------------------------- statements of warps and blocks


@pytest.mark.parametrize("order", [None, 0])
@pytest.mark.parametrize("wrong", [None, 1, 3])
def test_warps_write_their_tiles(wrong, order):
    """Each warp writes its tile in one statement; writing the tile of another warp is a race."""
    thread = Var("thread", 0, 127)
    warp = thread // 32
    place = warp * 32 if wrong is None else (warp - equal(warp, wrong)) * 32
    stmt = making.execution(
        MicroKernel("m", "// m\n"),
        Move(32, dtype=float32)(GL, GL)(Warp),
        (access("src", (warp * 32,), (32,)), access("dst", (place,), (32,), write=True)),
    )
    outcome = outcome_of(kernel((stmt,), threads=128), order)
    if wrong is None:
        np.testing.assert_array_equal(outcome["dst"][:128], np.arange(1, 129))
    else:
        assert is_race(outcome) and f"thread {32 * wrong - 32}" in outcome, outcome


@pytest.mark.parametrize("order", [None, 0])
@pytest.mark.parametrize("barrier, right", [(None, False), (32, False), (64, True)])
def test_a_statement_of_a_block_needs_block_barriers(barrier, right, order):
    """Any thread of the block may access any of its elements: a barrier of the whole block is required before and after it."""
    weak_barrier = () if barrier is None else (making.barrier(making.scope(f"group of {barrier}", barrier)),)
    own = Move(64, dtype=float32)(SH, SH)(Block)
    fill, read = touch("x", THREAD, True), touch("y", THREAD, False)
    kinds = {"y": (float32, 64, 1024)}
    together = making.execution(MicroKernel("m", "// m\n"), own, (access("x", (0,), (64,)), access("y", (0,), (64,), write=True)))
    read = making.execution(
        MOVE,
        Move(1, dtype=float32)(SH, GL)(Thread),
        (access("y", (THREAD,)), access("dst", (THREAD,), write=True)),
        pieces=((making.piece(0),),) * 2,
    )
    block_barrier = (making.barrier(ir.BLOCK_SCOPE),)
    for body in ((fill, *weak_barrier, together, *block_barrier, read), (fill, *block_barrier, together, *weak_barrier, read)):
        outcome = outcome_of(kernel(body, *buffers(**kinds)), order)
        if right:
            np.testing.assert_array_equal(outcome["dst"][:64], np.arange(1, 65))
        else:
            assert is_race(outcome), outcome


def test_a_repeated_statement_is_compared_with_accesses_between():
    """After any number of equal executions."""
    read = touch("x", THREAD % 32, False, active=less(THREAD, 32))
    write = touch("x", THREAD % 32, True, active=less(31, THREAD))
    fill, barrier = touch("x", THREAD, True), making.barrier(ir.BLOCK_SCOPE)
    for count in range(1, 5):
        loop = making.loop(ITERATION, as_expr(min(count, 3)), (read,))
        again = (loop,) * 2 if count == 4 else (loop,)
        assert isinstance(outcome_of(kernel((fill, barrier, *again, barrier, write), *buffers())), dict)
        assert is_race(outcome_of(kernel((fill, barrier, *again, write, *again), *buffers())))


@pytest.mark.parametrize("order", [None, 0])
@pytest.mark.parametrize("wrong", [None, 3])
def test_warps_read_their_tiles(wrong, order):
    """Each warp reads the tile that its threads wrote; reading the tile of another warp is a race."""
    thread = Var("thread", 0, 127)
    warp = thread // 32
    place = warp * 32 if wrong is None else (warp - equal(warp, wrong)) * 32
    fill = making.execution(
        MOVE,
        Move(1, dtype=float32)(GL, SH)(Thread),
        (access("src", (thread,)), access("y", (thread,), write=True)),
        pieces=((making.piece(0),),) * 2,
    )
    accesses = access("y", (place,), (32,)), access("dst", (warp * 32,), (32,), write=True)
    stmt = making.execution(MicroKernel("m", "// m\n"), Move(32, dtype=float32)(SH, GL)(Warp), accesses)
    outcome = outcome_of(kernel((fill, making.barrier(ir.WARP_SCOPE), stmt), *buffers(y=(float32, 128, 1024)), threads=128), order)
    if wrong is None:
        np.testing.assert_array_equal(outcome["dst"][:128], np.arange(1, 129))
    else:
        assert is_race(outcome), outcome


@pytest.mark.parametrize("first, last, writer, named", [(31, 33, 32, 31), (61, 64, 62, 64), (0, 31, 32, 0), (32, 40, 33, 32)])
def test_reported_reader_of_two(first, last, writer, named):
    """The message names the first or the last reader, preferably of another warp."""
    thread = Var("thread", 0, 127)
    read = touch("x", thread * 0, False, own=thread, active=less(0, equal(thread, first) + equal(thread, last)))
    write = touch("x", thread * 0, True, own=thread, active=equal(thread, writer))
    text = outcome_of(kernel((read, write), *buffers(), threads=128))
    assert f": thread {named} reads it" in text and f", thread {writer} writes it" in text, text


def added(place, own, line=None):
    accesses = access("src", (own, 0)), access("dst", (place, 0), write=True)
    return making.execution(
        ATOMIC_ADD, AtomicAdd(1, 1, dtype=float32)(GL, GL)(Thread), accesses, pieces=((making.piece(0),),) * 2, origin=line
    )


@pytest.mark.parametrize("order", [None, 0])
def test_atomic_adds_race_with_reads_and_writes_only(order):
    """Threads and blocks may add to the same element; a read or a write of it is a race."""
    thread, block = Var("thread", 0, 63), Var("block", 0, 1)
    spec = AtomicAdd(128, 1, dtype=float32, src=RowMajor, dst=RowMajor)(GL, GL)
    of = lambda *body: kernel_of(spec, body, threads=64, grid=2)
    arrays = {"src": np.ones((128, 1), np.float32), "dst": np.zeros((128, 1), np.float32)}
    add = added(thread * 0 + 100, thread + block * 64, "line 1")
    got = simulate(of(add, making.barrier(ir.BLOCK_SCOPE), add), arrays, order=None if order is None else random.Random(order)).outputs[
        "dst"
    ]
    assert got[100, 0] == 256
    move = Move(1, 1, dtype=float32)(GL, GL)(Thread)
    pieces = ((making.piece(0),),) * 2
    reads = making.execution(
        MOVE,
        move,
        (access("dst", (thread * 0 + 100, 0)), access("dst", (thread + block * 64, 0), write=True)),
        pieces=pieces,
        active=less(thread, 30),
        origin="line 2",
    )
    writes = making.execution(
        MOVE,
        move,
        (access("src", (thread, 0)), access("dst", (thread + 70 + block * 0, 0), write=True)),
        pieces=pieces,
        active=all_of([less(thread, 31), less(29, thread), less(block, 1)]),
        origin="line 2",
    )
    for other, verb in ((reads, "reads"), (writes, "writes")):
        for body in ((add, other), (other, add)):
            with pytest.raises(
                SimulationError,
                match=rf"race on dst\[100, 0\].*(adds to it .* at line 1.*{verb} it .* at line 2|{verb} it .* at line 2.*adds to it .* at line 1)",
            ):
                simulate(of(*body), arrays, order=None if order is None else random.Random(order))


def placed(statement, **origins):
    """The statement with separate lines for its accesses to the given buffers."""
    accesses = tuple(attrs.evolve(operand, origin=origins.get(operand.buffer, operand.origin)) for operand in statement.accesses)
    return attrs.evolve(statement, accesses=accesses)


def test_lines_of_accesses_take_precedence():
    """In each message, for both accesses."""
    write = placed(touch("x", THREAD, True, line="line 1"), x="place 1")
    read = placed(touch("x", 63 - THREAD, False, line="line 2"), x="place 2")
    text = outcome_of(kernel((write, read), *buffers()))
    assert "at place 1, outside loops)" in text and "at place 2)" in text and re.search(r"at +place 2", text), text
    text = outcome_of(kernel((placed(touch("x", THREAD // 2, True, line="line 1"), x="place 1"),), *buffers()))
    assert text.count("place 1") == 3 and "line 1" not in text, text
    slow = making.async_copy(placed(touch("x", THREAD, True, line="line 1"), x="place 1"))
    own = placed(touch("x", THREAD, False, line="line 2"), x="place 2")
    text = outcome_of(kernel((slow, making.commit(), own, making.wait(0)), *buffers()))
    assert "in flight" in text and "at place 1, outside loops" in text and re.search(r"at +place 2", text), text
    text = outcome_of(kernel((own,), *buffers()))
    assert "before any write" in text and re.search(r"at +place 2", text), text


def test_lines_of_accesses_through_the_async_proxy():
    """The messages name the lines of the write and of the MMA."""
    for name, first, second in (
        ("a shared operand is not fenced", "place 1", "place 2"),
        ("a shared operand is written too early", "place 2", "place 1"),
    ):
        program, _ = wgmma_kernel(name)
        body = [
            placed(stmt, x="place 2" if stmt.mechanism is WGMMA_GROUPS else "place 1") if isinstance(stmt, ir.Exec) else stmt
            for stmt in program.body
        ]
        with pytest.raises(SimulationError, match=rf" at {first}, outside loops(?s:.*)at +{second}"):
            copied(attrs.evolve(program, body=tuple(body)), np.ones((32, 1), np.float32))


# ---------------------------------------------------------------------------------------------- shadow memory keys


@pytest.mark.parametrize("uniform", [True, False])
@pytest.mark.parametrize("name, parts", [("a", 2), ("b", 1), ("c", 2)])
@pytest.mark.parametrize("blocks", [(0,), (1, 4, 6)])
@pytest.mark.parametrize("flat", [False, True])
def test_keys_of_shared_memory_are_granules(name, parts, uniform, blocks, flat):
    """Each block has separate keys unless all blocks access the same addresses; thread numbers include the block."""
    placed = lambda array, size, offset, dtype: attrs.evolve(local(array, (size,), SH, dtype), offset=offset)
    buffers = placed("a", 8, 0, float32), placed("b", 40, 16, float16), placed("c", 8, 256, float32)
    kernel = attrs.evolve(kernel_of(Move(32)(GL, GL), (), *buffers, grid=7), shared_bytes=1024)
    plan = Plan(kernel, {})
    assert plan.granule == 2 and plan.pitch == 32
    plan.uniform = uniform
    width = len(blocks)
    batch = BlockBatch(plan, global_memory(plan, {"src": np.zeros(32, np.float32)}, False), blocks, False)
    race_detector = RaceDetector(batch, History({}), True)
    memory, group = batch.memories[name], ThreadGroup(np.array([3, 5, 30]), {})
    operand = types.SimpleNamespace(buffer=plan.buffers[name])
    places = np.array([[0, 1, 7], [2, 2, 1 << 20]])  # the last is masked out
    rows = np.where(places < 1 << 20, places + memory.first, memory.zero)
    if flat:
        place = Flat(memory, rows[..., None] * width + np.arange(width))
    else:
        place = Rows(memory, rows)
    span = group.threads, group.threads + 1
    keys, valid, (low, high) = race_detector._keys(operand, place, span)
    assert keys.shape == valid.shape == low.shape == high.shape
    entries = list(zip(*(array[valid].tolist() for array in (keys, low, high)), strict=True))
    batch_blocks = range(width) if flat or not uniform else range(1)
    start = plan.buffers[name].offset // 2
    expected = [
        (((row * parts) + start + part) * len(batch_blocks) + block, number + blocks[block] * 32, number + 1 + blocks[block] * 32)
        for row, number in zip(places.ravel().tolist(), [3, 5, 30] * 2)
        for block in batch_blocks
        for part in range(parts)
        if row < 1 << 20
    ]
    assert entries == expected


@pytest.mark.parametrize("blocks", [(0,), (1, 4, 6)])
def test_keys_of_arrays_are_elements(blocks):
    """The keys are the same for all blocks; thread numbers include the block."""
    plan = Plan(kernel_of(Move(32)(GL, GL), (), grid=7), {})
    batch = BlockBatch(plan, global_memory(plan, {"src": np.zeros(32, np.float32)}, False), blocks, False)
    race_detector = RaceDetector(batch, History({}), True)
    memory, group = batch.memories["dst"], ThreadGroup(np.array([3, 30]), {})
    rows = np.array([[[0], [9]], [[1 << 20], [4]]])
    place = Flat(memory, np.where(rows < 1 << 20, rows + memory.first, memory.zero + 1))
    keys, valid, (low, high) = race_detector._keys(types.SimpleNamespace(buffer=plan.buffers["dst"]), place, (group.threads, group.threads))
    expected = [(row + memory.first, number + block * 32) for row, number in ((0, 3), (9, 30), (4, 30)) for block in blocks]
    assert list(zip(keys[valid].tolist(), low[valid].tolist(), strict=True)) == expected and (low == high).all()


def test_writes_to_arrays_need_no_proxy_fence():
    """Only writes to shared memory wait for a fence."""
    program, _ = wgmma_kernel("a shared operand")
    plan = Plan(program, {})
    batch = BlockBatch(plan, global_memory(plan, {"src": np.zeros((32, 1), np.float32)}, False), (0,), False)
    history = History({"dst": Shadow(64, plan.pitch)})
    race_detector, group, keys = RaceDetector(batch, history, True), ThreadGroup(np.arange(32), {}), np.arange(4)
    race_detector._wrote(history.shadows["dst"], keys, group)
    assert group.unfenced == [] and history.shadows["dst"].fenced is None
    race_detector._wrote(race_detector.shared_shadow, keys, group)
    assert [keys_.tolist() for keys_ in group.unfenced] == [[0, 1, 2, 3]]
    race_detector.fence(group)
    assert group.unfenced == [] and (race_detector.shared_shadow.fenced[keys] >= 0).all()


@pytest.mark.parametrize("other", [None, float16, int8], ids=str)
@pytest.mark.parametrize("order", [None, 0])
def test_the_element_of_a_race_with_buffers_of_smaller_elements(other, order):
    """All granules of an element report the element."""
    buffers = [attrs.evolve(local("a", (32, 2), SH), offset=0)]
    buffers += [attrs.evolve(local("h", (32,), SH, other), offset=256)] if other is not None else []
    thread = Var("thread", 0, 31)
    put, take = (
        making.execution(MOVE, Move(1)(*memories)(Thread), accesses, pieces=((making.piece(0),),) * 2, origin=line)
        for memories, accesses, line in (
            ((GL, SH), (access("src", (thread,)), access("a", (thread, 1), write=True)), "put"),
            ((SH, GL), (access("a", (31 - thread, 1)), access("dst", (thread,), write=True)), "take"),
        )
    )
    kernel = attrs.evolve(kernel_of(Move(32)(GL, GL), (put, take), *buffers), shared_bytes=512)
    with pytest.raises(SimulationError) as caught:
        simulate(kernel, {"src": np.zeros(32, np.float32)}, order=None if order is None else random.Random(order))
    match = re.search(
        r"race on a\[(\d+), 1\] \(address (\d+)\): thread (\d+) writes it \(.* at put.*, thread (\d+) reads it", str(caught.value)
    )
    row, address, writer, reader = map(int, match.groups())
    assert (row, address, writer, reader) == (writer, 32 + writer, writer, 31 - writer)


def test_repetition_ends_at_another_statement_group_or_barrier():
    """Each of them restarts the count; unchecked accesses never count as repetitions."""
    program, _ = wgmma_kernel("a shared operand")
    plan = Plan(program, {})
    batch = BlockBatch(plan, global_memory(plan, {"src": np.zeros((32, 1), np.float32)}, False), (0,), False)
    race_detector, place = RaceDetector(batch, History({}), True), object()
    operand = types.SimpleNamespace(checked=True, buffer=plan.buffers["x"])
    group, other = ThreadGroup(np.arange(32), {}), ThreadGroup(np.arange(32), {})
    repeats = lambda site, group: race_detector._is_repetition(site, operand, place, group)
    assert [repeats("one", group) for _ in range(4)] == [False, False, True, True]
    assert [repeats("two", group) for _ in range(3)] == [False, False, True]
    assert [repeats("one", group) for _ in range(3)] == [False, False, True]
    assert [repeats("one", other) for _ in range(3)] == [False, False, True]
    other.clock = other.clock.after(32)
    assert [repeats("one", other) for _ in range(3)] == [False, False, True]
    unwatched = types.SimpleNamespace(checked=False, buffer=plan.buffers["x"])
    assert not any(race_detector._is_repetition("one", unwatched, place, group) for _ in range(4))
    blind = RaceDetector(batch, History({}), False)
    assert not any(blind._is_repetition("one", operand, place, group) for _ in range(4))


@pytest.mark.parametrize("order", [None, 1])
@pytest.mark.parametrize("name", [name for name, (_, message) in WGMMA_SEQUENCES.items() if "shared" in name and message is None])
def test_wgmma_runs_without_a_race_detector(name, order):
    program, _ = wgmma_kernel(name)
    given = np.arange(1, 33, dtype=np.float32).reshape(32, 1)
    options = {"order": None if order is None else random.Random(order)}
    checked, unchecked = (simulate(program, {"src": given}, shadow=shadow, **options).outputs["dst"] for shadow in (True, False))
    np.testing.assert_array_equal(checked, unchecked)
