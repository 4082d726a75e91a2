"""Launches in the simulator, with hand-made kernels: batches of blocks, and blocks without work (`fireiron.sim.launch`)."""

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
    """A kernel of `blocks` blocks, whose 32 threads copy an element each."""
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
def test_blocks_without_work_are_reported(elements, right, order):
    chance = None if order is None else random.Random(order)
    got, given = copy_of(by_blocks(elements, right), elements, order=chance)
    np.testing.assert_array_equal(got, given)
    message = f"block {right} of the grid has no work: every element that it writes is out of bounds"
    with pytest.raises(SimulationError, match=message):
        copy_of(by_blocks(elements, right + 1), elements, order=chance)
    with pytest.raises(SimulationError, match=r"is outside of the tensor: thread \d+ of block"):
        copy_of(by_blocks(elements, right + 1, guarded=False), elements, order=chance)


def test_inactive_blocks_are_not_reported():
    """A block that a condition on its number excludes is idle on purpose."""
    block = Var("block", 0, 2)
    got, given = copy_of(by_blocks(64, 3, active=less(block, 2)), 64)
    np.testing.assert_array_equal(got, given)


def test_blocks_that_write_the_same_elements_race():
    """A grid that is too large, with block numbers that wrap around: two blocks write one element."""
    block, thread = Var("block", 0, 2), Var("thread", 0, WIDTH - 1)
    with pytest.raises(SimulationError, match=r"race on dst\[\d+\].*of block 0 .*of block 2 "):
        copy_of(by_blocks(64, 3, place=block % 2 * WIDTH + thread), 64)


def test_a_sample_of_blocks_is_checked_like_all():
    kernel = by_blocks(64, 4)
    for chosen in ([0], [1, 0]):
        assert simulate(kernel, {"src": np.zeros(64, np.float32)}, blocks=chosen).blocks == tuple(chosen)
    with pytest.raises(SimulationError, match="block 3 of the grid has no work"):
        simulate(kernel, {"src": np.zeros(64, np.float32)}, blocks=[1, 3])


TWO = making.block_cluster((2,), (Var("rank", 0, 1),))


@pytest.mark.parametrize("order", [None, 0])
def test_blocks_without_work_in_clusters(order):
    """Three tiles need two clusters of two blocks, and one block has no work; a third cluster has no work at all."""
    chance = None if order is None else random.Random(order)
    got, given = copy_of(by_blocks(3 * WIDTH, 4, cluster=TWO), 3 * WIDTH, order=chance)
    np.testing.assert_array_equal(got, given)
    with pytest.raises(SimulationError, match="block 4 of the grid has no work"):
        copy_of(by_blocks(3 * WIDTH, 6, cluster=TWO), 3 * WIDTH, order=chance)


@pytest.mark.parametrize("rows", [5, sym("M")])
def test_nested_tiles_of_blocks_may_exceed_an_array(rows):
    """Tiles of 2 in tiles of 8 of five rows are four blocks, of which three have work."""
    double = Fused(name="double", dims="i j", operands={"x": "i j", "y": "i j"}, body={"store": "y[i,j] = x[i,j] + x[i,j]"})
    program = double(i=rows, j=32).tile(i=8, j=32).to(Block).tile(i=2, j=32).to(Block).done().program("sm_80")
    symbols = {symbol.name: 5 for symbol in program.lowered.symbols}
    given = np.arange(160, dtype=np.float16).reshape(5, 32)
    np.testing.assert_array_equal(simulate(program.lowered, {"x": given}, symbols=symbols).outputs["y"], given + given)


@pytest.mark.parametrize("rows", [64, 100, 128])
def test_tiles_of_warps_that_do_not_divide_the_tile_of_a_block(rows):
    """Three tiles of 24 rows cover the 64 rows of a block; the bound of a store moves with the block."""
    strategy = (
        MatMul.tile(64, 32).to(Block).epilog(RF).split(8).load(A, SH).load(B, SH)
        .tile(24, 32).to(Warp).tile(3, 8).to(Lane).split(1).tile(1, 1).done()
    )  # fmt: skip
    kernel = strategy(MatMul(rows, 32, 8, order=RowMajor)).program("sm_80").ir
    a, b = (np.random.default_rng(0).integers(-3, 4, shape).astype(np.float32) for shape in ((rows, 8), (8, 32)))
    np.testing.assert_array_equal(simulate(kernel, {"A": a, "B": b}).outputs["C"], a @ b)
    np.testing.assert_array_equal(simulate(kernel, {"A": a, "B": b}, order=random.Random(0)).outputs["C"], a @ b)


def test_a_tma_store_out_of_bounds_has_no_work():
    """TMA omits elements out of bounds; if all are omitted the block has no work."""
    kernel = stored(making.tensor_map("dst_map", "dst", (1, 0), (64, 64), 128), array=(64, 64), at=(Var("block", 0, 1) * 64, as_expr(0)))
    with pytest.raises(SimulationError, match="block 1 of the grid has no work"):
        simulate(attrs.evolve(kernel, grid=as_expr(2)), {"src": numbered((64, 64))})


def with_blocks(kernel, more):
    """A kernel with a larger grid, in its expressions too."""
    grid = kernel.grid.evaluate({}) + more
    wider = Var("block", 0, grid - 1)
    body = ir.rewritten(kernel.body, lambda stmt: (stmt.substitute({kernel.block: wider}),))
    return attrs.evolve(kernel, grid=as_expr(grid), body=body)


@pytest.mark.parametrize("options", [{}, {"tma": False}, {"group_m": 2}, {"cluster": (2, 1)}], ids=str)
@pytest.mark.parametrize("sizes", [(128, 128, 64), (100, 128, 64), (100, 72, 64), (256, 64, 64)])
def test_one_more_block_of_a_tma_gemm(sizes, options):
    """Two rows and two columns of tiles; the tile of one more block is out of bounds, or another block stores it too."""
    program = product((64, 64, 64), (64, 64), 2, **options)(float16_gemm(*sizes)).program(TARGET)
    arrays, expected = inputs_of(program.spec)
    assert outcome(program.ir, arrays, expected) == "right"
    assert outcome(with_blocks(program.ir, 2 if "cluster" in options else 1), arrays, expected) not in ("right", "wrong")


def test_one_tile_stored_by_two_blocks():
    """With a grid of one block no expression contains the block number: a second block stores the same tile by TMA."""
    program = product((64, 64, 64), (64, 64), 2)(float16_gemm(64, 64, 64)).program(TARGET)
    arrays, expected = inputs_of(program.spec)
    outcome_text = outcome(with_blocks(program.ir, 1), arrays, expected)
    assert outcome_text.startswith("race on C") and "of block 0" in outcome_text and "of block 1" in outcome_text


# ---------------------------------------------------------------------------------------------- arguments of a launch


def of_size(multiple):
    """A copy whose number of elements is a run-time size."""
    size = Var("N", 8, 64, multiple)
    kernel = by_blocks(64, 2)
    return attrs.evolve(kernel, symbols=(size,))


@pytest.mark.parametrize(
    "multiple, value, legal",
    [(2, 7, "8 ... 64, multiples of 2"), (2, 9, "8 ... 64, multiples of 2"), (1, 65, "8 ... 64"), (1, 7, "8 ... 64")],
)
def test_sizes_that_violate_their_declaration(multiple, value, legal):
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


def test_counted_statements_barriers_and_bytes():
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
    "value, message", [(None, "has no value"), (True, "must be an integer"), (8.0, "must be an integer"), (np.int32(8), None), (64, None)]
)
def test_sizes_are_integers(value, message):
    given = {} if value is None else {"N": value}
    if message is None:
        simulate(of_size(2), {"src": np.zeros(64, np.float32)}, given)
        return
    with pytest.raises(ArgumentError, match=message):
        simulate(of_size(2), {"src": np.zeros(64, np.float32)}, given)


@pytest.mark.parametrize("name", ["M", "n", "N "])
def test_unknown_sizes_are_rejected(name):
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


# ---------------------------------------------------------------------------------------------- batches of blocks

THREAD = Var("thread", 0, WIDTH - 1)


def mover(dtype=float32, memories=(GL, GL), **types):
    spec = Move(1, dtype=dtype, **types)(*memories)(Thread)
    return lambda source, target, **fields: making.execution(
        MOVE, spec, (source, attrs.evolve(target, write=True)), pieces=((making.piece(0),),) * 2, **fields
    )


def shared(name, size, offset=0, dtype=float32):
    return attrs.evolve(local(name, (size,), SH, dtype), offset=offset)


def through_shared(blocks, *more, dtype=float32, buffers=(), other=None, active=TRUE):
    """Blocks that copy 32 elements each through shared memory; `other` is the element that a lane reads."""
    block = Var("block", 0, blocks - 1)
    fill = mover(dtype, (GL, SH))(access("src", (block * WIDTH + THREAD,)), access("x", (THREAD,)))
    store = mover(dtype, (SH, GL))(
        access("x", (THREAD if other is None else other(block),)), access("dst", (block * WIDTH + THREAD,)), active=active
    )
    kernel = kernel_of(
        Move(WIDTH * blocks, dtype=dtype)(GL, GL), (fill, *more, store), shared("x", WIDTH, 0, dtype), *buffers, grid=blocks, threads=WIDTH
    )
    return attrs.evolve(kernel, shared_bytes=1024)


@pytest.mark.parametrize("order", [None, 0])
@pytest.mark.parametrize("blocks", [1, 2, 3, 7])
@pytest.mark.parametrize("size", [1 << 21, 4096, 2048, 1])
def test_results_do_not_depend_on_the_batch_size(blocks, size, order, monkeypatch):
    """Each block of a batch has its memory, and incomplete batches are executed too."""
    monkeypatch.setattr(launching, "_BATCH_BYTES", size)
    got, given = copy_of(through_shared(blocks), WIDTH * blocks, order=None if order is None else random.Random(order))
    np.testing.assert_array_equal(got, given)
    done = simulate(through_shared(blocks), {"src": given}, order=None if order is None else random.Random(order))
    assert (done.statements, done.read_bytes, done.written_bytes) == (2, WIDTH * 4 * blocks, WIDTH * 4 * blocks)


@pytest.mark.parametrize("size", [1 << 21, 1])
@pytest.mark.parametrize("wrong", [0, 1, 4])
def test_races_are_found_in_each_block(size, wrong, monkeypatch):
    """If all blocks access shared memory equally one is checked; a block with different accesses is checked separately."""
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


def test_races_between_blocks_need_shadow_memory():
    block, thread = Var("block", 0, 2), Var("thread", 0, WIDTH - 1)
    kernel = by_blocks(64, 3, place=block % 2 * WIDTH + thread)
    got, given = copy_of(kernel, 64, shadow=False)
    np.testing.assert_array_equal(got, given)


@pytest.mark.parametrize("size", [1 << 21, 1])
def test_the_error_of_the_first_block_is_reported(size, monkeypatch):
    monkeypatch.setattr(launching, "_BATCH_BYTES", size)
    block = Var("block", 0, 7)
    for first in (0, 3, 7):
        kernel = by_blocks(8 * WIDTH, 8, place=block * WIDTH + THREAD + 1000 - 1000 * less(block, first), guarded=False)
        with pytest.raises(SimulationError, match=rf"is outside of the tensor: thread \d+ of block {first} "):
            copy_of(kernel, 8 * WIDTH)


@pytest.mark.parametrize("blocks", [1, 4])
def test_bytes_of_two_types_are_shared_within_a_block_only(blocks):
    """float16 and float32 values at one address share bytes in the same block only, also in a batch."""
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
    "strides, right", [((), False), ((4,), False), ((1, 4), True), ((4, 1), False), ((2, 4, 1), True), ((4, 4), False), ((-1, 4), False)]
)
def test_blocks_without_work_in_interleaved_tiles(strides, right):
    """If a layout assigns every fourth row to a block, blocks of the last period may have no row; visited modes do not count."""
    kernel = by_blocks(64, 3)
    (move,) = kernel.body
    strided = attrs.evolve(move.accesses[1], unit_modes=(tuple(UnitMode(2, abs(stride), stride > 0) for stride in strides),))
    kernel = attrs.evolve(kernel, body=(attrs.evolve(move, accesses=(move.accesses[0], strided)),))
    if right:
        np.testing.assert_array_equal(*copy_of(kernel, 64))
    else:
        with pytest.raises(SimulationError, match="block 2 of the grid has no work"):
            copy_of(kernel, 64)


def test_a_grid_with_integer_arrays_is_a_bound():
    """The grid is an upper bound, so blocks without work are legal."""
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
def test_uninitialized_registers_are_reported(types, order):
    """Both if poison reaches the output and if a conversion drops it."""
    chance = None if order is None else random.Random(order)
    given = np.arange(WIDTH).astype(types[0].to_numpy())
    np.testing.assert_array_equal(simulate(of_registers(0, *types), {"src": given}, order=chance).outputs["dst"], given)
    with pytest.raises(SimulationError, match=r"r\[1\] \(register 1\) is read before any write to it: thread 0 of block 0"):
        simulate(of_registers(1, *types), {"src": given}, order=chance)


def test_uninitialized_registers_in_a_maximum():
    """A maximum with NaN is the number; the uninitialized register is reported anyway."""
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


def test_nan_inputs_are_not_reported():
    """An input NaN may reach the output, and elements that a kernel does not write keep their values."""
    given = np.full(WIDTH, np.nan, np.float32)
    assert np.isnan(simulate(of_registers(0), {"src": given}).outputs["dst"]).all()
    kernel = by_blocks(64, 2)
    done = simulate(kernel, {"src": np.zeros(64, np.float32), "dst": np.full(64, np.nan, np.float32)}, blocks=[1])
    assert np.isnan(done.outputs["dst"][:32]).all() and not done.outputs["dst"][32:].any()


@pytest.mark.parametrize("shadow", [True, False])
@pytest.mark.parametrize("wrong", [0, 2])
def test_the_block_whose_poison_reaches_the_output_is_named(wrong, shadow):
    """Without shadow memory the block is unknown, and only the first block is executed again."""
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


def test_misplaced_mbarriers_are_rejected_before_execution():
    kernel = fetched(2, 1)
    given = np.arange(64, dtype=np.float32)
    np.testing.assert_array_equal(simulate(kernel, {"src": given}).outputs["dst"], given)
    with pytest.raises(SimulationError, match="the mbarriers of tiles occupy bytes"):
        simulate(attrs.evolve(kernel, shared_bytes=47), {"src": given})


@pytest.mark.parametrize("seed", range(3))
def test_orders_depend_on_the_seed_only(seed):
    """The same seed gives the same random order of tiles, for all batches."""
    kernel, given = fetched(9, 3), np.arange(9 * 32, dtype=np.float32)
    runs = [simulate(kernel, {"src": given}, order=random.Random(seed)) for _ in range(2)]
    assert runs[0].statements == runs[1].statements
    np.testing.assert_array_equal(runs[0].outputs["dst"], given)


def test_writes_between_rows_are_reported():
    """Inside the buffer but out of the tensor's bounds: a statement assumes a smaller leading dimension."""
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


def test_statements_of_threads_and_of_blocks_count_equally():
    """Of the first block: one statement by each thread, one by all threads together."""
    kernel = by_blocks(64, 2)
    together = making.execution(
        MicroKernel("m", "// m\n"),
        Move(32, dtype=float32)(GL, GL)(Block),
        (access("src", (0,), (32,)), access("dst", (0,), (32,), write=True)),
    )
    barrier = making.barrier(ir.BLOCK_SCOPE)
    done = simulate(
        attrs.evolve(kernel, body=(*kernel.body, barrier, together, barrier, together)), {"src": np.zeros(64, np.float32)}, blocks=[0]
    )
    assert (done.statements, done.barriers) == (3, 2)


# ---------------------------------------------------------------------------------------------- size of batches


@pytest.fixture
def executed(monkeypatch):
    """The blocks of each executed batch, in the order of execution."""
    batches, batch = [], launching.SingleLaunch._run_batch
    monkeypatch.setattr(launching.os, "sched_getaffinity", lambda number: {0}, raising=False)
    monkeypatch.setattr(
        launching.SingleLaunch,
        "_run_batch",
        lambda launch, number, blocks, order: batches.append(blocks) or batch(launch, number, blocks, order),
    )
    return batches


def groups(*sizes):
    ends = np.cumsum((0, *sizes)).tolist()
    return [tuple(range(start, end)) for start, end in itertools.pairwise(ends)]


@pytest.mark.parametrize(
    ("size", "expected"),
    [(5 * 1024, [5]), (5 * 1024 - 1, [3, 2]), (4096, [3, 2]), (3 * 1024, [3, 2]), (3 * 1024 - 1, [2, 2, 1]), (2047, [1] * 5), (1, [1] * 5)],
)
def test_memory_limits_the_batch_size(monkeypatch, executed, size, expected):
    """One batch if the cache holds all blocks; otherwise at least two batches that it holds."""
    monkeypatch.setattr(launching, "_BATCH_BYTES", size)
    copy_of(through_shared(5), 5 * WIDTH)
    assert executed == groups(*expected)


def test_registers_limit_the_batch_size_to_at_most_256(monkeypatch, executed):
    copy_of(by_blocks(300 * WIDTH, 300), 300 * WIDTH)
    assert executed == groups(256, 44)
    executed.clear()
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
        assert executed == groups(*expected), size
        executed.clear()
    monkeypatch.setattr(launching, "_BATCH_BYTES", 1 << 21)
    for most, expected in ((4 * WIDTH, [4]), (3 * WIDTH, [3, 1]), (2 * WIDTH + 31, [2, 2]), (1, [1] * 4)):
        monkeypatch.setattr(launching, "MAX_ELEMENTS", most)
        copy_of(kernel, 4 * WIDTH)
        assert executed == groups(*expected), most
        executed.clear()


def test_batches_of_one_block(executed):
    """If bytes have two types, or loops differ between blocks; a cluster is never split."""
    float16_buffer = shared("h", 2 * WIDTH, 0, float16)
    low = mover(float16, (SH, SH))
    swapped = low(access("h", (THREAD * 2,)), access("g", (THREAD,)))
    mixed = through_shared(3, swapped, buffers=(float16_buffer, shared("g", WIDTH, 256, float16)))
    copy_of(mixed, 3 * WIDTH)
    assert executed == groups(1, 1, 1)
    executed.clear()
    kernel = by_blocks(3 * WIDTH, 3)
    varying = making.loop(Var("i", 0, 3), Var("block", 0, 2) + 1, (*kernel.body, making.barrier(ir.BLOCK_SCOPE)))
    copy_of(attrs.evolve(kernel, body=(varying,)), 3 * WIDTH)
    assert executed == groups(1, 1, 1)
    executed.clear()
    copy_of(attrs.evolve(by_blocks(6 * WIDTH, 6, cluster=TWO)), 6 * WIDTH)
    assert executed == groups(6)
    executed.clear()
    kernel = by_blocks(6 * WIDTH, 6, cluster=TWO)
    varying = making.loop(Var("i", 0, 3), Var("block", 0, 5) // 2 + 1, (*kernel.body, making.barrier(ir.BLOCK_SCOPE)))
    copy_of(attrs.evolve(kernel, body=(varying,)), 6 * WIDTH)
    assert executed == groups(2, 2, 2)


def test_memory_limits_the_clusters_of_a_batch(monkeypatch, executed):
    kernel = attrs.evolve(through_shared(6), cluster=TWO)
    for size, expected in ((6 * 1024, [6]), (6 * 1024 - 1, [4, 2]), (4 * 1024, [4, 2]), (4 * 1024 - 1, [2] * 3), (1, [2] * 3)):
        monkeypatch.setattr(launching, "_BATCH_BYTES", size)
        copy_of(kernel, 6 * WIDTH)
        assert executed == groups(*expected), size
        executed.clear()


def test_an_error_ends_a_launch(monkeypatch):
    """Later batches do not start."""
    begun = []

    def batch(launch, number, blocks, order):
        begun.append(number)
        if number == 0:
            raise SimulationError("the first")
        time.sleep(0.01)
        return ()

    monkeypatch.setattr(launching, "_BATCH_BYTES", 1)
    monkeypatch.setattr(launching.SingleLaunch, "_run_batch", batch)
    with pytest.raises(SimulationError, match="the first"):
        copy_of(through_shared(40), 40 * WIDTH)
    assert len(begun) < 40


@pytest.mark.parametrize(("order", "cluster", "warps"), [(None, None, False), (0, None, True), (None, TWO, True), (0, TWO, True)])
def test_execution_in_lockstep_or_by_warps(monkeypatch, order, cluster, warps):
    """In lockstep without an order, if no block waits for another."""
    seen, run = [], launching.Warps.run
    monkeypatch.setattr(launching.Warps, "run", lambda instance: seen.append(instance) or run(instance))
    got, given = copy_of(by_blocks(64, 2, cluster=cluster), 64, order=None if order is None else random.Random(order))
    np.testing.assert_array_equal(got, given)
    assert bool(seen) == warps


def test_outputs_are_the_written_parameters():
    done = simulate(by_blocks(64, 2), {"src": np.zeros(64, np.float32)})
    assert set(done.outputs) == {"dst"} and done.seconds > 0
    assert set(simulate(by_blocks(64, 2), {"src": np.zeros(64, np.float32)}, blocks=[]).outputs) == {"dst"}
    empty = simulate(by_blocks(64, 2), {"src": np.zeros(64, np.float32)}, blocks=[])
    assert (empty.statements, empty.barriers, empty.read_bytes, empty.written_bytes) == (0, 0, 0, 0)


def test_a_kernel_before_the_last_pass_is_rejected():
    """It has no pieces, which specify the stored elements."""
    kernel = by_blocks(64, 2)
    bare = attrs.evolve(kernel, body=tuple(attrs.evolve(stmt, pieces=()) for stmt in kernel.body))
    with pytest.raises(VerificationError, match="no pieces specify which elements are accessed"):
        simulate(bare, {"src": np.zeros(64, np.float32)})


def test_overflow_gives_no_warning():
    """Overflow gives infinity, as on a GPU, regardless of NumPy's error state."""
    with np.errstate(all="raise"):
        got = simulate(of_registers(0, float32, float16), {"src": np.full(WIDTH, 1e30, np.float32)}).outputs["dst"]
    assert np.isinf(got).all()


@pytest.mark.parametrize(
    ("strides", "right"),
    [
        (((1, 4), (1, 4)), True),
        (((1, 4), ()), True),
        (((), (1, 4)), True),
        (((), ()), False),
        (((4, 1), (4,)), False),
        (((4, 1), (1, 4)), True),
    ],
)
def test_one_interleaved_tile_is_enough(strides, right):
    """One interleaved tile that is written is enough; tiles that are read do not count."""
    kernel = by_blocks(64, 3)
    (move,) = kernel.body
    of = lambda strides: (tuple(UnitMode(2, stride, True) for stride in strides),)
    body = tuple(attrs.evolve(move, accesses=(move.accesses[0], attrs.evolve(move.accesses[1], unit_modes=of(pair)))) for pair in strides)
    kernel = attrs.evolve(kernel, body=(body[0], making.barrier(ir.BLOCK_SCOPE), body[1]))
    if right:
        np.testing.assert_array_equal(*copy_of(kernel, 64))
        return
    with pytest.raises(SimulationError, match="block 2 of the grid has no work"):
        copy_of(kernel, 64)
    read = attrs.evolve(move, accesses=(attrs.evolve(move.accesses[0], unit_modes=of((1, 4))), move.accesses[1]))
    with pytest.raises(SimulationError, match="block 2 of the grid has no work"):
        copy_of(attrs.evolve(kernel, body=(read,)), 64)


# ---------------------------------------------------------------------------------------------- blocks executed again for poison


@pytest.mark.parametrize(("cluster", "repeated"), [(None, (1,)), (TWO, (0, 1))])
def test_the_first_block_with_poison_is_executed_again(executed, cluster, repeated):
    """Only that block, or its cluster."""
    block = Var("block", 0, 3)
    r = local("r", (2,), RF)
    load = mover(float32, (GL, RF))(access("src", (block * WIDTH + THREAD,)), access("r", (less(0, block),)))
    store = mover(float32, (RF, GL))(access("r", (0,)), access("dst", (block * WIDTH + THREAD,)))
    kernel = kernel_of(Move(4 * WIDTH, dtype=float32)(GL, GL), (load, store), r, grid=4, threads=WIDTH)
    with pytest.raises(SimulationError, match="of block 1"):
        simulate(attrs.evolve(kernel, cluster=cluster), {"src": np.zeros(4 * WIDTH, np.float32)})
    assert executed == [(0, 1, 2, 3), repeated]
    executed.clear()
    if cluster is None:
        simulate(kernel, {"src": np.zeros(4 * WIDTH, np.float32)}, shadow=False)
    else:
        with pytest.raises(SimulationError, match="of block 1"):
            simulate(attrs.evolve(kernel, cluster=cluster), {"src": np.zeros(4 * WIDTH, np.float32)}, shadow=False)
    assert executed == [(0, 1, 2, 3), (0, 1) if cluster else (0,)], "its block is unknown: the first is executed again"


def test_poison_that_no_block_wrote_is_ignored(executed):
    """NaN that the caller passed, and that no block of the sample accessed."""
    kernel = by_blocks(64, 2)
    simulate(kernel, {"src": np.zeros(64, np.float32), "dst": np.full(64, np.nan, np.float32)}, blocks=[1])
    assert executed == [(1,)]
    executed.clear()
    simulate(kernel, {"src": np.full(64, np.nan, np.float32)})
    assert executed == [(0, 1), (0,)], "with input poison the first block is executed again"
    executed.clear()
    simulate(kernel, {"src": np.zeros(64, np.float32)})
    assert executed == [(0, 1)]


@pytest.fixture
def launched(monkeypatch):
    """Two flags of each launch: whether it tracks every value, and whether it detects races."""
    flags, start = [], launching.SingleLaunch.__init__

    def begin(launch, plan, arrays, blocks, shadow, order, track_all=False, tiles_of_blocks=None, **more):
        flags.append((track_all, shadow))
        start(launch, plan, arrays, blocks, shadow, order, track_all=track_all, tiles_of_blocks=tiles_of_blocks, **more)

    monkeypatch.setattr(launching.SingleLaunch, "__init__", begin)
    return flags


@pytest.mark.parametrize(
    ("types", "track_all"),
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
def test_every_value_is_tracked_if_poison_may_be_dropped(launched, types, track_all):
    """A conversion of floats to integers drops poison, since integers have no NaN."""
    simulate(of_registers(0, *types), {"src": np.arange(WIDTH).astype(types[0].to_numpy())})
    simulate(of_registers(0, *types), {"src": np.arange(WIDTH).astype(types[0].to_numpy())}, shadow=False)
    assert launched == [(track_all, True), (track_all, False)]


def test_a_repeated_block_tracks_values_only(launched):
    simulate(of_registers(0), {"src": np.full(WIDTH, np.nan, np.float32)})
    assert launched == [(False, True), (True, False)]
