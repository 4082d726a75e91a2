"""Launches in the simulator, by hand: which blocks it takes, and blocks that have no work (`fireiron.sim.launch`)."""

import itertools
import random
import time

import attrs
import making
import numpy as np
import pytest
from engines import fetched, numbered, stored
from handmade import access, kernel_of, local
from ringed import TARGET, float16_gemm, inputs_of, outcome, product

from fireiron import *
from fireiron import ir
from fireiron.errors import ArgumentError, SimulationError, VerificationError
from fireiron.executable.micro_kernel import MicroKernel
from fireiron.executable.reduce import REDUCE
from fireiron.executable.thread_move import MOVE
from fireiron.sim import launch as launching
from fireiron.sim import simulate
from fireiron.values.expr import TRUE, Var, as_expr, equal, less

WIDTH = 32


def by_blocks(elements, blocks, *, guarded=True, active=TRUE, place=None, block=None, cluster=None):
    """A kernel of so many blocks, whose 32 threads copy an element each."""
    block = block or Var("block", 0, blocks - 1)
    place = block * WIDTH + Var("thread", 0, WIDTH - 1) if place is None else place
    guard = less(place, elements) if guarded else TRUE
    move = making.execution(
        MOVE,
        Move(1, dtype=float32)(GL, GL)(Thread),
        (access("src", (place,)), access("dst", (place,), write=True)),
        active=active,
        guard=guard,
        pieces=((making.piece(0, 1, condition=guard),),) * 2,
    )
    kernel = kernel_of(Move(elements, dtype=float32)(GL, GL), (move,), grid=blocks, threads=WIDTH)
    return attrs.evolve(kernel, cluster=cluster)


def copy_of(kernel, elements, **options):
    given = np.arange(elements, dtype=np.float32)
    return simulate(kernel, {"src": given}, **options).outputs["dst"], given


@pytest.mark.parametrize("order", [None, 0, 1])
@pytest.mark.parametrize("elements, right", [(64, 2), (33, 2), (65, 3), (32 * 300, 300), (32 * 300 - 31, 300)])
def test_as_many_blocks_as_there_is_work_for(elements, right, order):
    chance = None if order is None else random.Random(order)
    got, given = copy_of(by_blocks(elements, right), elements, order=chance)
    np.testing.assert_array_equal(got, given)
    message = f"block {right} of the grid has no work: every element that it writes is out of bounds"
    with pytest.raises(SimulationError, match=message):
        copy_of(by_blocks(elements, right + 1), elements, order=chance)
    with pytest.raises(SimulationError, match=r"is outside of the tensor: thread \d+ of block"):
        copy_of(by_blocks(elements, right + 1, guarded=False), elements, order=chance)


def test_a_block_that_takes_no_part_has_none_to_do():
    """Whoever is left out by a condition on its number is meant to be idle."""
    block = Var("block", 0, 2)
    got, given = copy_of(by_blocks(64, 3, active=less(block, 2)), 64)
    np.testing.assert_array_equal(got, given)


def test_blocks_that_do_the_same():
    """A grid too large, of blocks that wrap around: two write to one place."""
    block, thread = Var("block", 0, 2), Var("thread", 0, WIDTH - 1)
    with pytest.raises(SimulationError, match=r"race on dst\[\d+\].*of block 0 .*of block 2 "):
        copy_of(by_blocks(64, 3, place=block % 2 * WIDTH + thread), 64)


def test_a_sample_of_blocks_is_judged_as_all_are():
    kernel = by_blocks(64, 4)
    for chosen in ([0], [1, 0]):
        assert simulate(kernel, {"src": np.zeros(64, np.float32)}, blocks=chosen).blocks == tuple(chosen)
    with pytest.raises(SimulationError, match="block 3 of the grid has no work"):
        simulate(kernel, {"src": np.zeros(64, np.float32)}, blocks=[1, 3])


TWO = making.block_cluster((2,), (Var("rank", 0, 1),))


@pytest.mark.parametrize("order", [None, 0])
def test_blocks_of_a_cluster_come_together(order):
    """Three tiles are two clusters of two blocks, of which one block has no work; a third cluster has none at all."""
    chance = None if order is None else random.Random(order)
    got, given = copy_of(by_blocks(3 * WIDTH, 4, cluster=TWO), 3 * WIDTH, order=chance)
    np.testing.assert_array_equal(got, given)
    with pytest.raises(SimulationError, match="block 4 of the grid has no work"):
        copy_of(by_blocks(3 * WIDTH, 6, cluster=TWO), 3 * WIDTH, order=chance)


def test_a_store_by_an_engine_that_lies_outside():
    """The engine leaves out what lies outside; all of it is no work."""
    kernel = stored(making.tensor_map("dst_map", "dst", (1, 0), (64, 64), 128), array=(64, 64), at=(Var("block", 0, 1) * 64, as_expr(0)))
    with pytest.raises(SimulationError, match="block 1 of the grid has no work"):
        simulate(attrs.evolve(kernel, grid=as_expr(2)), {"src": numbered((64, 64))})


def with_blocks(kernel, more):
    """A kernel with a larger grid, whose expressions know it."""
    grid = kernel.grid.evaluate({}) + more
    wider = Var("block", 0, grid - 1)
    body = ir.rewritten(kernel.body, lambda one: (one.substitute({kernel.block: wider}),))
    return attrs.evolve(kernel, grid=as_expr(grid), body=body)


@pytest.mark.parametrize("options", [{}, {"tma": False}, {"bands": 2}, {"cluster": (2, 1)}], ids=str)
@pytest.mark.parametrize("sizes", [(128, 128, 64), (100, 128, 64), (100, 72, 64), (256, 64, 64)])
def test_a_block_more_of_products_by_tma(sizes, options):
    """Two rows of tiles and two columns; a block more finds all its tile outside, or stores what another one does."""
    program = product((64, 64, 64), (64, 64), 2, **options)(float16_gemm(*sizes)).program(TARGET)
    arrays, expected = inputs_of(program.spec)
    assert outcome(program.ir, arrays, expected) == "right"
    assert outcome(with_blocks(program.ir, 2 if "cluster" in options else 1), arrays, expected) not in ("right", "wrong")


def test_one_tile_by_two_blocks():
    """Of a grid of one block no expression knows a block's number: two do the same, by an engine."""
    program = product((64, 64, 64), (64, 64), 2)(float16_gemm(64, 64, 64)).program(TARGET)
    arrays, expected = inputs_of(program.spec)
    said = outcome(with_blocks(program.ir, 1), arrays, expected)
    assert said.startswith("race on C") and "of block 0" in said and "of block 1" in said


# ---------------------------------------------------------------------------------------------- what a launch is given


def of_size(multiple):
    """A copy of as many elements as a size says, known at the launch."""
    size = Var("N", 8, 64, multiple)
    kernel = by_blocks(64, 2)
    return attrs.evolve(kernel, symbols=(size,))


@pytest.mark.parametrize(
    "multiple, value, legal",
    [(2, 7, "8 ... 64, multiples of 2"), (2, 9, "8 ... 64, multiples of 2"), (1, 65, "8 ... 64"), (1, 7, "8 ... 64")],
)
def test_sizes_that_break_what_was_declared(multiple, value, legal):
    with pytest.raises(ArgumentError, match=f"symbol N={value} violates its declaration") as caught:
        simulate(of_size(multiple), {"src": np.zeros(64, np.float32)}, {"N": value})
    assert caught.value.legal == legal
    for right in (8, 64):
        simulate(of_size(multiple), {"src": np.zeros(64, np.float32)}, {"N": right})


def test_a_kernel_that_is_not_final_is_refused():
    kernel = by_blocks(64, 2)
    unguarded = attrs.evolve(kernel, body=(*kernel.body, making.sync_point(None, "a")))
    with pytest.raises(VerificationError):
        simulate(unguarded, {"src": np.zeros(64, np.float32)})


def test_what_is_counted():
    """Statements and barriers of one block, bytes of all."""
    kernel = by_blocks(65, 3)
    done = simulate(
        attrs.evolve(kernel, body=(*kernel.body, making.barrier(ir.BLOCK_SCOPE), *kernel.body)), {"src": np.zeros(65, np.float32)}
    )
    assert (done.statements, done.barriers, done.read_bytes, done.written_bytes) == (2, 1, 2 * 65 * 4, 2 * 65 * 4)
    assert (done.threads, done.blocks) == (WIDTH, (0, 1, 2))


@pytest.mark.parametrize("given, legal", [(-1, "0 ... 1"), (2, "0 ... 1"), (True, "0 ... 1"), (0.0, "0 ... 1"), ("0", "0 ... 1")])
def test_blocks_that_are_not_in_the_grid(given, legal):
    kernel = by_blocks(64, 2)
    with pytest.raises(ArgumentError, match="the grid has no such block") as caught:
        simulate(kernel, {"src": np.zeros(64, np.float32)}, blocks=[given])
    assert caught.value.legal == legal
    for right in (0, 1, np.int64(1)):
        assert simulate(kernel, {"src": np.zeros(64, np.float32)}, blocks=[right]).blocks == (right,)


def test_a_sample_takes_whole_clusters():
    kernel = by_blocks(6 * WIDTH, 6, cluster=TWO)
    for chosen, executed in (([0], (0, 1)), ([3], (2, 3)), ([5, 0, 1], (4, 5, 0, 1)), ([], ())):
        done = simulate(kernel, {"src": np.zeros(6 * WIDTH, np.float32)}, blocks=chosen)
        assert done.blocks == executed and done.written_bytes == len(executed) * WIDTH * 4


@pytest.mark.parametrize(
    "value, message", [(None, "has no value"), (True, "not an integer"), (8.0, "not an integer"), (np.int32(8), None), (64, None)]
)
def test_sizes_are_integers(value, message):
    given = {} if value is None else {"N": value}
    if message is None:
        simulate(of_size(2), {"src": np.zeros(64, np.float32)}, given)
        return
    with pytest.raises(ArgumentError, match=message):
        simulate(of_size(2), {"src": np.zeros(64, np.float32)}, given)


@pytest.mark.parametrize("name", ["M", "n", "N "])
def test_sizes_that_a_kernel_has_not(name):
    with pytest.raises(ArgumentError, match=f"has no symbol {name}") as caught:
        simulate(of_size(1), {"src": np.zeros(64, np.float32)}, {"N": 8, name: 8})
    assert caught.value.legal == ("N",)
    with pytest.raises(ArgumentError, match="has no symbol M") as caught:
        simulate(by_blocks(64, 2), {"src": np.zeros(64, np.float32)}, {"M": 8})
    assert caught.value.legal == "none"


def test_facts_about_sizes():
    kernel = attrs.evolve(of_size(1), facts=(("N is below 20", less(Var("N", 8, 64), 20)),))
    simulate(kernel, {"src": np.zeros(64, np.float32)}, {"N": 19})
    with pytest.raises(ArgumentError, match="requires that N is below 20"):
        simulate(kernel, {"src": np.zeros(64, np.float32)}, {"N": 20})


# ---------------------------------------------------------------------------------------------- chunks of blocks

THREAD = Var("thread", 0, WIDTH - 1)


def mover(dtype=float32, memories=(GL, GL), **types):
    spec = Move(1, dtype=dtype, **types)(*memories)(Thread)
    return lambda source, target, **fields: making.execution(
        MOVE, spec, (source, attrs.evolve(target, write=True)), pieces=((making.piece(0),),) * 2, **fields
    )


def shared(name, size, offset=0, dtype=float32):
    return attrs.evolve(local(name, (size,), SH, dtype), offset=offset)


def through_shared(blocks, *more, dtype=float32, buffers=(), other=None, active=TRUE):
    """Blocks that copy 32 elements each by their shared memory, which a lane may read where another wrote."""
    block = Var("block", 0, blocks - 1)
    fill = mover(dtype, (GL, SH))(access("src", (block * WIDTH + THREAD,)), access("x", (THREAD,)))
    store = mover(dtype, (SH, GL))(
        access("x", (THREAD if other is None else other(block),)), access("dst", (block * WIDTH + THREAD,)), active=active
    )
    made = kernel_of(
        Move(WIDTH * blocks, dtype=dtype)(GL, GL), (fill, *more, store), shared("x", WIDTH, 0, dtype), *buffers, grid=blocks, threads=WIDTH
    )
    return attrs.evolve(made, shared_bytes=1024)


@pytest.mark.parametrize("order", [None, 0])
@pytest.mark.parametrize("blocks", [1, 2, 3, 7])
@pytest.mark.parametrize("size", [1 << 21, 4096, 2048, 1])
def test_chunks_of_all_sizes_do_the_same(blocks, size, order, monkeypatch):
    """However many blocks are executed together, each has memory of its own, and those left over are executed too."""
    monkeypatch.setattr(launching, "_BATCH_BYTES", size)
    got, given = copy_of(through_shared(blocks), WIDTH * blocks, order=None if order is None else random.Random(order))
    np.testing.assert_array_equal(got, given)
    done = simulate(through_shared(blocks), {"src": given}, order=None if order is None else random.Random(order))
    assert (done.statements, done.read_bytes, done.written_bytes) == (2, WIDTH * 4 * blocks, WIDTH * 4 * blocks)


@pytest.mark.parametrize("size", [1 << 21, 1])
@pytest.mark.parametrize("wrong", [0, 1, 4])
def test_races_are_found_in_each_block(size, wrong, monkeypatch):
    """Of blocks that use shared memory alike one stands for all; of one that does not, its own is watched."""
    monkeypatch.setattr(launching, "_BATCH_BYTES", size)
    kernel = through_shared(5, other=lambda block: (THREAD + equal(block, wrong)) % WIDTH)
    with pytest.raises(SimulationError, match=rf"race on x\[\d+\](?s:.*)block {wrong}"):
        copy_of(kernel, WIDTH * 5)
    assert copy_of(kernel, WIDTH * 5, shadow=False)[0].shape == (WIDTH * 5,)
    everywhere = through_shared(5, other=lambda block: (THREAD + 1) % WIDTH)
    with pytest.raises(SimulationError, match=r"race on x\[\d+\](?s:.*)block 0"):
        copy_of(everywhere, WIDTH * 5)
    with pytest.raises(SimulationError, match=r"race on x"):
        copy_of(everywhere, WIDTH * 5, blocks=[3])


def test_races_between_blocks_are_not_looked_for_without_shadow():
    block, thread = Var("block", 0, 2), Var("thread", 0, WIDTH - 1)
    kernel = by_blocks(64, 3, place=block % 2 * WIDTH + thread)
    got, given = copy_of(kernel, 64, shadow=False)
    np.testing.assert_array_equal(got, given)


@pytest.mark.parametrize("size", [1 << 21, 1])
def test_of_several_errors_the_first_block_tells(size, monkeypatch):
    monkeypatch.setattr(launching, "_BATCH_BYTES", size)
    block = Var("block", 0, 7)
    for first in (0, 3, 7):
        kernel = by_blocks(8 * WIDTH, 8, place=block * WIDTH + THREAD + 1000 - 1000 * less(block, first), guarded=False)
        with pytest.raises(SimulationError, match=rf"is outside of the tensor: thread \d+ of block {first} "):
            copy_of(kernel, 8 * WIDTH)


@pytest.mark.parametrize("blocks", [1, 4])
def test_bytes_of_two_types_are_told_apart_in_each_block(blocks):
    """Halves and floats of one place are the same bytes of the same block, however many run together."""
    block = Var("block", 0, blocks - 1)
    float16_buffer = shared("h", 2 * WIDTH, 0, float16)
    low = mover(float16, (SH, SH))
    swapped = low(access("h", (THREAD * 2,)), access("g", (THREAD,)))
    back = low(access("g", (THREAD,)), access("h", (THREAD * 2,)))
    kernel = through_shared(blocks, swapped, back, buffers=(float16_buffer, shared("g", WIDTH, 256, float16)))
    given = np.random.default_rng(1).standard_normal(WIDTH * blocks).astype(np.float32)
    np.testing.assert_array_equal(simulate(kernel, {"src": given}).outputs["dst"], given)
    assert block.high == blocks - 1


# ---------------------------------------------------------------------------------------------- blocks without work


@pytest.mark.parametrize(
    "dealt, right", [((), False), ((4,), False), ((1, 4), True), ((4, 1), False), ((2, 4, 1), True), ((4, 4), False), ((-1, 4), False)]
)
def test_tiles_that_interleave(dealt, right):
    """Of layouts that deal every fourth row to a block, some blocks of the last period may have none; what is visited deals nothing."""
    kernel = by_blocks(64, 3)
    (move,) = kernel.body
    strided = attrs.evolve(move.accesses[1], unit_modes=(tuple(UnitMode(2, abs(stride), stride > 0) for stride in dealt),))
    kernel = attrs.evolve(kernel, body=(attrs.evolve(move, accesses=(move.accesses[0], strided)),))
    if right:
        np.testing.assert_array_equal(*copy_of(kernel, 64))
    else:
        with pytest.raises(SimulationError, match="block 2 of the grid has no work"):
            copy_of(kernel, 64)


def test_a_grid_that_arrays_of_integers_decide():
    """It is a bound: blocks behind the last one's work have none."""
    kernel = by_blocks(64, 3)
    (move,) = kernel.body
    of_ints = kernel_of(
        Move(64, dtype=int32)(GL, GL), (attrs.evolve(move, spec=Move(1, dtype=int32)(GL, GL)(Thread)),), grid=3, threads=WIDTH
    )
    given = np.arange(64, dtype=np.int32)
    np.testing.assert_array_equal(simulate(of_ints, {"src": given}).outputs["dst"], given)


# ---------------------------------------------------------------------------------------------- poison


def of_registers(number, dtype=float32, dst_dtype=None, spec=None, extra=()):
    """Threads that load one register and store another."""
    r = local("r", (2,), RF, dtype)
    load = mover(dtype, (GL, RF))(access("src", (THREAD,)), access("r", (0,)))
    types = {} if dst_dtype is None else {"dst_dtype": dst_dtype}
    store = mover(dtype, (RF, GL), **types)(access("r", (number,)), access("dst", (THREAD,)))
    return kernel_of(Move(WIDTH, dtype=dtype, **types)(GL, GL), (load, *extra, store), r, threads=WIDTH)


@pytest.mark.parametrize("order", [None, 0])
@pytest.mark.parametrize(
    "types", [(float32, None), (float16, None), (float32, int32), (int32, None), (int32, float32), (float16, float32)], ids=str
)
def test_what_was_never_written_is_named(types, order):
    """Whether it comes out as poison, or a conversion drops that."""
    chance = None if order is None else random.Random(order)
    given = np.arange(WIDTH).astype(types[0].to_numpy())
    np.testing.assert_array_equal(simulate(of_registers(0, *types), {"src": given}, order=chance).outputs["dst"], given)
    with pytest.raises(SimulationError, match=r"r\[1\] \(register 1\) is read before any write to it: thread 0 of block 0"):
        simulate(of_registers(1, *types), {"src": given}, order=chance)


def test_a_comparison_that_drops_poison():
    """A maximum with a number is a number; what was never written is named all the same."""
    r = local("r", (1, 1, 2), RF)
    load = making.execution(
        MOVE,
        Move(1, 1, 1, dtype=float32)(GL, RF)(Thread),
        (access("src", (THREAD, 0, 0)), access("r", (0, 0, 0), write=True)),
        pieces=((making.piece(0),),) * 2,
    )
    spec = Reduction(1, 1, 2, by="max")(RF, GL)(Thread)
    pieces = ((making.piece(0), making.piece(1)), (making.piece(0),))
    join = making.execution(REDUCE, spec, (access("r", (0, 0, 0), (1, 1, 2)), access("dst", (THREAD, 0), write=True)), pieces=pieces)
    kernel = kernel_of(Reduction(WIDTH, 1, 2, by="max")(GL, GL), (load, join), r, threads=WIDTH)
    with pytest.raises(SimulationError, match=r"r\[0, 0, 1\].* is read before any write to it: thread 0 of block 0"):
        simulate(kernel, {"src": np.ones((WIDTH, 1, 2), np.float32)})


def test_poison_that_was_given_is_no_finding():
    """NaN that comes in may come out, and what a kernel does not write keeps what it had."""
    given = np.full(WIDTH, np.nan, np.float32)
    assert np.isnan(simulate(of_registers(0), {"src": given}).outputs["dst"]).all()
    kernel = by_blocks(64, 2)
    done = simulate(kernel, {"src": np.zeros(64, np.float32), "dst": np.full(64, np.nan, np.float32)}, blocks=[1])
    assert np.isnan(done.outputs["dst"][:32]).all() and not done.outputs["dst"][32:].any()


@pytest.mark.parametrize("shadow", [True, False])
@pytest.mark.parametrize("wrong", [0, 2])
def test_a_block_whose_poison_comes_out_is_named(wrong, shadow):
    """Without shadow memory nobody knows whose it is, and the first block alone is asked."""
    block = Var("block", 0, 2)
    r = local("r", (2,), RF)
    load = mover(float32, (GL, RF))(access("src", (block * WIDTH + THREAD,)), access("r", (equal(block, wrong),)))
    store = mover(float32, (RF, GL))(access("r", (0,)), access("dst", (block * WIDTH + THREAD,)))
    kernel = kernel_of(Move(3 * WIDTH, dtype=float32)(GL, GL), (load, store), r, grid=3, threads=WIDTH)
    given = np.arange(3 * WIDTH, dtype=np.float32)
    if shadow or wrong == 0:
        with pytest.raises(SimulationError, match=rf"r\[0\] .*is read before any write to it: thread 0 of block {wrong}"):
            simulate(kernel, {"src": given}, shadow=shadow)
    else:
        assert np.isnan(simulate(kernel, {"src": given}, shadow=shadow).outputs["dst"][wrong * WIDTH :]).all()


def test_barriers_that_lie_in_a_buffer_are_refused_before_anything_runs():
    kernel = fetched(2, 1)
    given = np.arange(64, dtype=np.float32)
    np.testing.assert_array_equal(simulate(kernel, {"src": given}).outputs["dst"], given)
    with pytest.raises(SimulationError, match="the mbarriers of tiles occupy bytes"):
        simulate(attrs.evolve(kernel, shared_bytes=47), {"src": given})


@pytest.mark.parametrize("seed", range(3))
def test_orders_come_from_the_seed_alone(seed):
    """The same one gives the same drawn order of tiles, for all chunks."""
    kernel, given = fetched(9, 3), np.arange(9 * 32, dtype=np.float32)
    runs = [simulate(kernel, {"src": given}, order=random.Random(seed)) for _ in range(2)]
    assert runs[0].statements == runs[1].statements
    np.testing.assert_array_equal(runs[0].outputs["dst"], given)


def test_what_was_written_between_rows_is_told():
    """Inside the buffer and outside the tensor: rows that a statement takes to be shorter than they are."""
    row, column = THREAD % 8, THREAD // 8
    spec = Move(8, 4, dtype=float32, dst=ColMajor(ld=11))(GL, GL)
    move = making.execution(
        MOVE,
        Move(1, 1, dtype=float32)(GL, GL)(Thread),
        (access("src", (row, column)), access("dst", (row, column), write=True)),
        pieces=((making.piece(0),),) * 2,
    )
    kernel = kernel_of(spec, (move,), threads=WIDTH)
    given = {"src": np.arange(32, dtype=np.float32).reshape(8, 4)}
    np.testing.assert_array_equal(simulate(kernel, given).outputs["dst"], given["src"])
    storage = kernel.buffer("dst").storage
    for step, address in ((10, 10), (9, 9), (8, 8)):
        other = attrs.evolve(move.accesses[1], storage=attrs.evolve(storage, layout=Layout((8, 4), (1, step))))
        faulty = attrs.evolve(kernel, body=(attrs.evolve(move, accesses=(move.accesses[0], other)),))
        with pytest.raises(SimulationError, match=f"dst: address {address}, outside of the tensor, was written"):
            simulate(faulty, given)


def test_statements_are_counted_however_they_are_performed():
    """Of the first block: one by each thread, one by all of them together."""
    kernel = by_blocks(64, 2)
    together = making.execution(
        MicroKernel("m", "// m\n"),
        Move(32, dtype=float32)(GL, GL)(Block),
        (access("src", (0,), (32,)), access("dst", (0,), (32,), write=True)),
    )
    apart = making.barrier(ir.BLOCK_SCOPE)
    done = simulate(
        attrs.evolve(kernel, body=(*kernel.body, apart, together, apart, together)), {"src": np.zeros(64, np.float32)}, blocks=[0]
    )
    assert (done.statements, done.barriers) == (3, 2)


# ---------------------------------------------------------------------------------------------- which blocks come together


@pytest.fixture
def taken(monkeypatch):
    """The blocks of each chunk that is executed, in the order in which they begin."""
    found, batch = [], launching._Launch._run_batch
    monkeypatch.setattr(launching.os, "sched_getaffinity", lambda number: {0}, raising=False)
    monkeypatch.setattr(
        launching._Launch, "_run_batch", lambda one, number, blocks, order: found.append(blocks) or batch(one, number, blocks, order)
    )
    return found


def groups(*sizes):
    ends = np.cumsum((0, *sizes)).tolist()
    return [tuple(range(start, end)) for start, end in itertools.pairwise(ends)]


@pytest.mark.parametrize(
    ("size", "expected"),
    [(5 * 1024, [5]), (5 * 1024 - 1, [3, 2]), (4096, [3, 2]), (3 * 1024, [3, 2]), (3 * 1024 - 1, [2, 2, 1]), (2047, [1] * 5), (1, [1] * 5)],
)
def test_blocks_come_together_as_their_memory_allows(monkeypatch, taken, size, expected):
    """All of them where a cache holds all; else two chunks at least, each of which it holds."""
    monkeypatch.setattr(launching, "_BATCH_BYTES", size)
    copy_of(through_shared(5), 5 * WIDTH)
    assert taken == groups(*expected)


def test_registers_count_and_at_most_256_come_together(monkeypatch, taken):
    copy_of(by_blocks(300 * WIDTH, 300), 300 * WIDTH)
    assert taken == groups(256, 44)
    taken.clear()
    block = Var("block", 0, 3)
    r = local("r", (4,), RF)
    load, store = mover(float32, (GL, RF)), mover(float32, (RF, GL))
    place = access("src", (block * WIDTH + THREAD,)), access("dst", (block * WIDTH + THREAD,))
    body = load(place[0], access("r", (3,))), store(access("r", (3,)), place[1])
    kernel = kernel_of(Move(4 * WIDTH, dtype=float32)(GL, GL), body, r, grid=4, threads=WIDTH)
    each = 4 * 4 * WIDTH
    for size, expected in ((4 * each, [4]), (4 * each - 1, [2, 2]), (2 * each, [2, 2]), (2 * each - 1, [1] * 4)):
        monkeypatch.setattr(launching, "_BATCH_BYTES", size)
        copy_of(kernel, 4 * WIDTH)
        assert taken == groups(*expected), size
        taken.clear()
    monkeypatch.setattr(launching, "_BATCH_BYTES", 1 << 21)
    for most, expected in ((4 * WIDTH, [4]), (3 * WIDTH, [3, 1]), (2 * WIDTH + 31, [2, 2]), (1, [1] * 4)):
        monkeypatch.setattr(launching, "MAX_ELEMENTS", most)
        copy_of(kernel, 4 * WIDTH)
        assert taken == groups(*expected), most
        taken.clear()


def test_blocks_of_which_each_comes_alone(taken):
    """Where bytes are of two types, or loops differ from block to block; a cluster comes whole."""
    float16_buffer = shared("h", 2 * WIDTH, 0, float16)
    low = mover(float16, (SH, SH))
    swapped = low(access("h", (THREAD * 2,)), access("g", (THREAD,)))
    mixed = through_shared(3, swapped, buffers=(float16_buffer, shared("g", WIDTH, 256, float16)))
    copy_of(mixed, 3 * WIDTH)
    assert taken == groups(1, 1, 1)
    taken.clear()
    kernel = by_blocks(3 * WIDTH, 3)
    turns = making.loop(Var("i", 0, 3), Var("block", 0, 2) + 1, (*kernel.body, making.barrier(ir.BLOCK_SCOPE)))
    copy_of(attrs.evolve(kernel, body=(turns,)), 3 * WIDTH)
    assert taken == groups(1, 1, 1)
    taken.clear()
    copy_of(attrs.evolve(by_blocks(6 * WIDTH, 6, cluster=TWO)), 6 * WIDTH)
    assert taken == groups(6)
    taken.clear()
    kernel = by_blocks(6 * WIDTH, 6, cluster=TWO)
    turns = making.loop(Var("i", 0, 3), Var("block", 0, 5) // 2 + 1, (*kernel.body, making.barrier(ir.BLOCK_SCOPE)))
    copy_of(attrs.evolve(kernel, body=(turns,)), 6 * WIDTH)
    assert taken == groups(2, 2, 2)


def test_clusters_come_together_as_their_memory_allows(monkeypatch, taken):
    kernel = attrs.evolve(through_shared(6), cluster=TWO)
    for size, expected in ((6 * 1024, [6]), (6 * 1024 - 1, [4, 2]), (4 * 1024, [4, 2]), (4 * 1024 - 1, [2] * 3), (1, [2] * 3)):
        monkeypatch.setattr(launching, "_BATCH_BYTES", size)
        copy_of(kernel, 6 * WIDTH)
        assert taken == groups(*expected), size
        taken.clear()


def test_an_error_ends_a_launch(monkeypatch):
    """What has not begun by then does not begin."""
    begun = []

    def batch(one, number, blocks, order):
        begun.append(number)
        if number == 0:
            raise SimulationError("the first")
        time.sleep(0.01)
        return ()

    monkeypatch.setattr(launching, "_BATCH_BYTES", 1)
    monkeypatch.setattr(launching._Launch, "_run_batch", batch)
    with pytest.raises(SimulationError, match="the first"):
        copy_of(through_shared(40), 40 * WIDTH)
    assert len(begun) < 40


@pytest.mark.parametrize(("order", "cluster", "warps"), [(None, None, False), (0, None, True), (None, TWO, True), (0, TWO, True)])
def test_threads_in_step_or_by_warps(monkeypatch, order, cluster, warps):
    """In step without an order, where no block waits for another."""
    seen, run = [], launching.Warps.run
    monkeypatch.setattr(launching.Warps, "run", lambda one: seen.append(one) or run(one))
    got, given = copy_of(by_blocks(64, 2, cluster=cluster), 64, order=None if order is None else random.Random(order))
    np.testing.assert_array_equal(got, given)
    assert bool(seen) == warps


def test_outputs_are_what_is_written():
    done = simulate(by_blocks(64, 2), {"src": np.zeros(64, np.float32)})
    assert set(done.outputs) == {"dst"} and done.seconds > 0
    assert set(simulate(by_blocks(64, 2), {"src": np.zeros(64, np.float32)}, blocks=[]).outputs) == {"dst"}
    empty = simulate(by_blocks(64, 2), {"src": np.zeros(64, np.float32)}, blocks=[])
    assert (empty.statements, empty.barriers, empty.read_bytes, empty.written_bytes) == (0, 0, 0, 0)


def test_a_kernel_in_front_of_its_last_pass_is_refused():
    """Nothing says which of its elements are stored."""
    kernel = by_blocks(64, 2)
    bare = attrs.evolve(kernel, body=tuple(attrs.evolve(one, pieces=()) for one in kernel.body))
    with pytest.raises(VerificationError, match="no pieces specify which elements are accessed"):
        simulate(bare, {"src": np.zeros(64, np.float32)})


def test_numbers_too_large_for_a_type_are_no_warning():
    """They are infinite, as on a GPU, whatever NumPy is told to do with them."""
    with np.errstate(all="raise"):
        got = simulate(of_registers(0, float32, float16), {"src": np.full(WIDTH, 1e30, np.float32)}).outputs["dst"]
    assert np.isinf(got).all()


@pytest.mark.parametrize(
    ("dealt", "right"),
    [
        (((1, 4), (1, 4)), True),
        (((1, 4), ()), True),
        (((), (1, 4)), True),
        (((), ()), False),
        (((4, 1), (4,)), False),
        (((4, 1), (1, 4)), True),
    ],
)
def test_one_of_several_that_interleave(dealt, right):
    """One written tile that interleaves is enough; of what is read nothing is asked."""
    kernel = by_blocks(64, 3)
    (move,) = kernel.body
    of = lambda strides: (tuple(UnitMode(2, stride, True) for stride in strides),)
    body = tuple(attrs.evolve(move, accesses=(move.accesses[0], attrs.evolve(move.accesses[1], unit_modes=of(one)))) for one in dealt)
    kernel = attrs.evolve(kernel, body=(body[0], making.barrier(ir.BLOCK_SCOPE), body[1]))
    if right:
        np.testing.assert_array_equal(*copy_of(kernel, 64))
        return
    with pytest.raises(SimulationError, match="block 2 of the grid has no work"):
        copy_of(kernel, 64)
    read = attrs.evolve(move, accesses=(attrs.evolve(move.accesses[0], unit_modes=of((1, 4))), move.accesses[1]))
    with pytest.raises(SimulationError, match="block 2 of the grid has no work"):
        copy_of(attrs.evolve(kernel, body=(read,)), 64)


# ---------------------------------------------------------------------------------------------- which blocks are asked for poison


@pytest.mark.parametrize(("cluster", "asked"), [(None, (1,)), (TWO, (0, 1))])
def test_the_first_block_whose_poison_comes_out_is_executed_again(taken, cluster, asked):
    """It alone, or with its cluster; the others are not."""
    block = Var("block", 0, 3)
    r = local("r", (2,), RF)
    load = mover(float32, (GL, RF))(access("src", (block * WIDTH + THREAD,)), access("r", (less(0, block),)))
    store = mover(float32, (RF, GL))(access("r", (0,)), access("dst", (block * WIDTH + THREAD,)))
    kernel = kernel_of(Move(4 * WIDTH, dtype=float32)(GL, GL), (load, store), r, grid=4, threads=WIDTH)
    with pytest.raises(SimulationError, match="of block 1"):
        simulate(attrs.evolve(kernel, cluster=cluster), {"src": np.zeros(4 * WIDTH, np.float32)})
    assert taken == [(0, 1, 2, 3), asked]
    taken.clear()
    if cluster is None:
        simulate(kernel, {"src": np.zeros(4 * WIDTH, np.float32)}, shadow=False)
    else:
        with pytest.raises(SimulationError, match="of block 1"):
            simulate(attrs.evolve(kernel, cluster=cluster), {"src": np.zeros(4 * WIDTH, np.float32)}, shadow=False)
    assert taken == [(0, 1, 2, 3), (0, 1) if cluster else (0,)], "nobody knows whose it is: the first"


def test_poison_that_no_block_wrote_is_asked_of_none(taken):
    """What the caller gave, and no block of the sample touched."""
    kernel = by_blocks(64, 2)
    simulate(kernel, {"src": np.zeros(64, np.float32), "dst": np.full(64, np.nan, np.float32)}, blocks=[1])
    assert taken == [(1,)]
    taken.clear()
    simulate(kernel, {"src": np.full(64, np.nan, np.float32)})
    assert taken == [(0, 1), (0,)], "what came in as poison is looked at once more"
    taken.clear()
    simulate(kernel, {"src": np.zeros(64, np.float32)})
    assert taken == [(0, 1)]


@pytest.fixture
def launched(monkeypatch):
    """Of each launch whether every value is watched, and whether races are."""
    found, start = [], launching._Launch.__init__

    def begin(one, plan, arrays, blocks, shadow, order, careful=False, tiles_of_blocks=None, **more):
        found.append((careful, shadow))
        start(one, plan, arrays, blocks, shadow, order, careful=careful, tiles_of_blocks=tiles_of_blocks, **more)

    monkeypatch.setattr(launching._Launch, "__init__", begin)
    return found


@pytest.mark.parametrize(
    ("types", "careful"),
    [
        ((float32, None), False),
        ((float32, int32), True),
        ((float16, int32), True),
        ((int32, None), False),
        ((int32, float32), False),
        ((float16, float32), False),
    ],
    ids=str,
)
def test_where_poison_may_be_dropped_every_value_is_watched(launched, types, careful):
    """A conversion of floats to integers drops it: of integers none is known."""
    simulate(of_registers(0, *types), {"src": np.arange(WIDTH).astype(types[0].to_numpy())})
    simulate(of_registers(0, *types), {"src": np.arange(WIDTH).astype(types[0].to_numpy())}, shadow=False)
    assert launched == [(careful, True), (careful, False)]


def test_a_block_that_is_executed_again_is_watched_for_values_alone(launched):
    simulate(of_registers(0), {"src": np.full(WIDTH, np.nan, np.float32)})
    assert launched == [(False, True), (True, False)]
