"""Accesses of a block batch in hand-made kernels: coordinates, bounds, addresses, vectors, counted bytes (`fireiron.sim.block_batch`)."""

import random

import attrs
import making
import numpy as np
import pytest
from handmade import access, kernel_of, local

from fireiron import *
from fireiron import ir
from fireiron.errors import SimulationError
from fireiron.executable.atomic_add import ATOMIC_ADD
from fireiron.executable.micro_kernel import MicroKernel
from fireiron.executable.thread_move import MOVE
from fireiron.sim import simulate
from fireiron.sim.block_batch import BlockBatch
from fireiron.sim.conditions import both
from fireiron.sim.locations import Flat, Rows, ThreadGroup, Window
from fireiron.sim.memory import global_memory
from fireiron.sim.plan import Plan
from fireiron.sim.run import Run
from fireiron.sim.shadow import History
from fireiron.values.expr import TRUE, Var, all_of, as_expr, equal, less, lookup
from fireiron.values.layout import Swizzle

THREAD, BLOCK = Var("thread", 0, 31), Var("block", 0, 3)


def copy(source, target, *, guard=TRUE, width=1, shape=None, memories=(GL, GL), **fields):
    """A copy by each thread, of `width` elements at once."""
    elements = int(np.prod(shape or (1,)))
    pieces = fields.pop("pieces", None) or tuple(making.piece(first, width, condition=guard) for first in range(0, elements, width))
    spec = Move(*(shape or (1,)), dtype=float32)(*memories)(Thread)
    return making.execution(MOVE, spec, (source, attrs.evolve(target, write=True)), guard=guard, pieces=(pieces,) * 2, **fields)


def run(body, *buffers, elements=64, grid=1, source=None, **fields):
    kernel = kernel_of(Move(elements, dtype=float32)(GL, GL), body, *buffers, grid=grid, threads=32)
    size = sum(buffer.bytes for buffer in buffers if buffer.memory == SH)
    kernel = attrs.evolve(kernel, **{"shared_bytes": size, **fields})
    given = np.arange(1, elements + 1, dtype=np.float32)
    return simulate(kernel, {"src": given}), given


def fails(message, *arguments, **options):
    with pytest.raises(SimulationError, match=message):
        run(*arguments, **options)


@pytest.mark.parametrize("offset, element, thread", [(33, 64, 31), (40, 64, 24), (-1, -1, 0), (-5, -5, 0)])
def test_coordinates_out_of_bounds_are_reported(offset, element, thread):
    place = THREAD + offset
    message = (
        rf"src\[{element}\] is outside of the tensor: thread {thread} of block 0 reads it(?s:.*)coordinate 0 is {element}(?s:.*)0 ... 63"
    )
    fails(message, (copy(access("src", (place,)), access("dst", (THREAD,))),))
    fails(
        rf"dst\[{element}\] is outside of the tensor: thread {thread} of block 0 writes it",
        (copy(access("src", (THREAD,)), access("dst", (place,))),),
    )


@pytest.mark.parametrize("offset", [0, 1, 32])
def test_coordinates_up_to_the_last_are_accessed(offset):
    done, given = run((copy(access("src", (THREAD + offset,)), access("dst", (THREAD + offset,))),))
    np.testing.assert_array_equal(done.outputs["dst"][offset : offset + 32], given[offset : offset + 32])
    assert done.read_bytes == done.written_bytes == 32 * 4


def test_message_names_the_block():
    place = BLOCK * 16 + THREAD
    fails(
        r"src\[64\] is outside of the tensor: thread 16 of block 3",
        (copy(access("src", (place,)), access("dst", (THREAD * 0 + BLOCK,))),),
        grid=4,
    )


@pytest.mark.parametrize("bound", [5, 32, 60])
def test_bytes_of_guarded_copies_are_those_in_bounds(bound):
    done, given = run((copy(access("src", (THREAD,)), access("dst", (THREAD,)), guard=less(THREAD, bound)),))
    count = min(bound, 32)
    assert done.read_bytes == done.written_bytes == count * 4
    np.testing.assert_array_equal(done.outputs["dst"][:count], given[:count])
    assert np.isnan(done.outputs["dst"][count:]).all()


@pytest.mark.parametrize("start, width, right", [(0, 4, True), (8, 4, True), (2, 4, False), (2, 2, True), (1, 2, False)])
def test_vectors_start_at_a_multiple_of_their_width(start, width, right):
    place = THREAD // 16 * width + start
    body = (
        copy(access("src", (place,), (width,)), access("dst", (place,), (width,)), width=width, shape=(width,), guard=less(THREAD % 16, 1)),
    )
    if right:
        done, given = run(body)
        np.testing.assert_array_equal(done.outputs["dst"][start : start + 2 * width], given[start : start + 2 * width])
    else:
        addresses = ", ".join(str(start + step) for step in range(width))
        fails(
            rf"src: a vector of {width} elements at addresses {addresses}: thread 0 of block 0 reads them(?s:.*)a multiple of {width * 4} bytes",
            body,
        )


def test_vectors_are_contiguous():
    fields = {"shape": (2,), "width": 2, "guard": less(THREAD, 1)}
    strided = attrs.evolve(access("src", (THREAD,), (2,)), points=((0,), (8,)))
    fails("src: a vector of 2 elements at addresses 0, 8", (copy(strided, access("dst", (THREAD,), (2,)), **fields),))


def shared(swizzle=None, copies=1, offset=0):
    buffer = attrs.evolve(local("x", (32,), SH, copies=copies), offset=offset)
    return attrs.evolve(buffer, storage=attrs.evolve(buffer.storage, swizzle=swizzle))


@pytest.mark.parametrize("swizzle", [None, Swizzle(2, 0, 3)], ids=str)
@pytest.mark.parametrize("number", [0, 1, 2])
def test_stages_of_a_buffer(number, swizzle):
    """Each stage keeps its values; stages past the last are out of bounds."""
    stage = attrs.evolve(access("x", (THREAD,)), copy=THREAD * 0 + number)
    body = (copy(access("src", (THREAD,)), stage, memories=(GL, SH)), copy(stage, access("dst", (THREAD,)), memories=(SH, GL)))
    if number < 2:
        done, given = run(body, shared(swizzle, 2))
        np.testing.assert_array_equal(done.outputs["dst"][:32], given[:32])
    else:
        fails(r"address \d+ of x\[0\] is outside of the buffer: thread 0 of block 0 writes it", body, shared(swizzle, 2))


def test_a_statement_without_active_threads_does_nothing():
    done, _ = run((copy(access("src", (THREAD,)), access("dst", (THREAD,)), active=less(THREAD, 0)),))
    assert np.isnan(done.outputs["dst"]).all() and done.written_bytes == 0


def test_iterations_that_write_one_element_are_in_order():
    """The last write wins, although a loop over a single statement is vectorized if possible."""
    k = Var("k", 0, 3)
    body = (making.loop(k, as_expr(4), (copy(access("src", (THREAD + k * 8,)), access("dst", (THREAD,))),)),)
    done, given = run(body)
    np.testing.assert_array_equal(done.outputs["dst"][:32], given[24:56])


@pytest.mark.parametrize("blocks", [2, 4])
def test_blocks_that_use_different_parts_of_shared_memory(blocks):
    """The blocks of a batch access different addresses, each in its memory."""
    block = Var("block", 0, blocks - 1)
    buffer = attrs.evolve(local("x", (32 * blocks,), SH), offset=0)
    part = access("x", (THREAD + block * 32,))
    body = (
        copy(access("src", (THREAD + block * 16,)), part, memories=(GL, SH)),
        copy(part, access("dst", (THREAD + block * 32,)), memories=(SH, GL)),
    )
    done, given = run(body, buffer, elements=32 * blocks, grid=blocks)
    np.testing.assert_array_equal(done.outputs["dst"], np.concatenate([given[number * 16 : number * 16 + 32] for number in range(blocks)]))


# ---------------------------------------------------------------------------------------------- more cases


def elements(count):
    return tuple(making.piece(number) for number in range(count))


@pytest.mark.parametrize("conditions, right", [((7, 7), False), ((7, 0), True), ((0, 7), False), ((0, 0), True)], ids=str)
def test_inactive_vectors_need_no_alignment(conditions, right):
    """Each piece has a condition, the first one and later ones."""
    first, second = (less(THREAD, bound) for bound in conditions)
    pieces = (making.piece(0, 2, condition=first), making.piece(2, 2, condition=second))
    source = attrs.evolve(access("src", (THREAD * 0,), (4,)), points=((0,), (1,), (3,), (4,)))
    spec = Move(4, dtype=float32)(GL, GL)(Thread)
    target = access("dst", (THREAD * 4,), (4,), write=True)
    move = making.execution(MOVE, spec, (source, target), pieces=(pieces, elements(4)))
    if right:
        done, given = run((move,), elements=128)
        inside = np.repeat(np.stack([np.arange(32) < bound for bound in conditions], 1), 2, 1)
        np.testing.assert_array_equal(done.outputs["dst"].reshape(32, 4), np.where(inside, given[[0, 1, 3, 4]], 0))
    else:
        fails(r"src: a vector of 2 elements at addresses 3, 4: thread 0 of block 0 reads them", (move,), elements=128)


@pytest.mark.parametrize("align, width, right", [(16, 4, True), (8, 2, True), (8, 4, False), (4, 2, False), (4, 1, True)])
def test_alignment_of_an_array_limits_its_vectors(align, width, right):
    move = copy(access("src", (THREAD * 4,), (width,)), access("dst", (THREAD * 4,), (width,)), width=width, shape=(width,))
    kernel = kernel_of(Move(128, dtype=float32)(GL, GL), (move,))
    source = attrs.evolve(kernel.buffers[0], tensor=attrs.evolve(kernel.buffers[0].tensor, align=align))
    kernel = attrs.evolve(kernel, buffers=(source, *kernel.buffers[1:]))
    given = {"src": np.arange(128, dtype=np.float32)}
    if right:
        simulate(kernel, given)
    else:
        with pytest.raises(SimulationError, match=f"src: a vector of {width} elements at addresses"):
            simulate(kernel, given)


@pytest.mark.parametrize("offset, width, right", [(0, 4, True), (8, 4, False), (8, 2, True), (4, 2, False), (16, 4, True)])
def test_offset_of_a_shared_buffer_limits_its_vectors(offset, width, right):
    """The alignment of its tensor is irrelevant."""
    buffer = attrs.evolve(local("x", (64,), SH, align=4), offset=offset)
    place = THREAD % 8 * 4
    only = less(THREAD, 8)
    move = copy(
        access("src", (place,), (width,)), access("x", (place,), (width,)), width=width, shape=(width,), guard=only, memories=(GL, SH)
    )
    body = (move, copy(access("x", (place,)), access("dst", (place,)), guard=only, memories=(SH, GL)))
    if right:
        done, given = run(body, buffer, shared_bytes=512)
        np.testing.assert_array_equal(done.outputs["dst"][:32:4], given[:32:4])
    else:
        fails(rf"x: a vector of {width} elements at addresses 0, 1.*: thread 0 of block 0 writes them", body, buffer, shared_bytes=512)


def test_message_names_the_first_unaligned_vector():
    """It names thread, block and iteration."""
    k = Var("k", 0, 3)
    block = Var("block", 0, 1)
    place = THREAD * 2 + block * 64 + k * 0 + equal(k, 2) * equal(block, 1) * less(3, THREAD)
    move = copy(access("src", (place,), (2,)), access("dst", (THREAD * 2 + block * 64 + k * 128,), (2,)), width=2, shape=(2,))
    fails(
        r"src: a vector of 2 elements at addresses 73, 74: thread 4 of block 1 reads them(?s:.*), k=2(?s:.*)",
        (making.loop(k, as_expr(4), (move,)),),
        elements=512,
        grid=2,
    )


@pytest.mark.parametrize("copies, number, right", [(2, 1, True), (2, 2, False), (3, 2, True), (2, -1, False)])
def test_the_last_stage_of_a_buffer_and_the_next(copies, number, right):
    """The message names the iteration too."""
    k = Var("k", 0, 3)
    stage = attrs.evolve(access("x", (THREAD,)), copy=THREAD * 0 + k * number)
    body = (
        copy(access("src", (THREAD,)), attrs.evolve(stage, copy=THREAD * 0), memories=(GL, SH)),
        making.loop(
            k,
            as_expr(2),
            (copy(access("src", (THREAD + 32,)), stage, memories=(GL, SH)), copy(access("src", (THREAD,)), access("dst", (THREAD + 32,)))),
        ),
        copy(attrs.evolve(stage, copy=as_expr(max(number, 0))), access("dst", (THREAD,)), memories=(SH, GL)),
    )
    if right:
        done, given = run(body, shared(None, copies))
        np.testing.assert_array_equal(done.outputs["dst"][:32], given[32:])
    else:
        address = 32 * number
        fails(
            rf"address {address} of x\[0\] is outside of the buffer: thread 0 of block 0 writes it(?s:.*)k=1\n(?s:.*)0 ... {32 * copies - 1}",
            body,
            shared(None, copies),
        )


@pytest.mark.parametrize("swizzle", [None, Swizzle(2, 0, 3)], ids=str)
def test_addresses_out_of_bounds_are_reported(swizzle):
    """If the storage of an access exceeds the buffer, unless no active thread reaches that part."""
    wide = attrs.evolve(shared(swizzle).storage, layout=Layout((32,), (2,)))
    target = attrs.evolve(access("x", (THREAD,)), storage=wide)
    for bound in (16, 17, 32):
        body = (copy(access("src", (THREAD,)), target, memories=(GL, SH), guard=less(THREAD, bound)),)
        if bound <= 16:
            run(body, shared(swizzle))
        else:
            fails(
                r"address 3[2-9] of x\[\d+\] is outside of the buffer: thread \d+ of block 0 writes it(?s:.*)0 ... 31",
                body,
                shared(swizzle),
            )


def test_masked_elements_below_zero_are_not_accessed():
    """Elements before the start of a tensor, swizzled or not."""
    for swizzle in (None, Swizzle(2, 0, 3)):
        fill = copy(access("src", (THREAD,)), access("x", (THREAD,)), memories=(GL, SH))
        back = copy(access("x", (THREAD - 8,)), access("dst", (THREAD,)), memories=(SH, GL), guard=less(7, THREAD))
        done, given = run((fill, making.barrier(ir.BLOCK_SCOPE), back), shared(swizzle))
        np.testing.assert_array_equal(done.outputs["dst"][8:32], given[:24])


@pytest.mark.parametrize("bound", [32, 40, 33, 31, 30, 1, 0])
def test_bounds_inside_and_past_the_tensor(bound):
    """For an access that tests its bounds: a bound past the end guards nothing there."""
    text = MicroKernel("m", "// m\n")
    spec = Move(1, dtype=float32)(GL, GL)(Thread)
    for more, sizes in ((0, 32), (8, 40)):
        source = access("src", (THREAD + more,), bounds=(bound,))
        body = (making.execution(text, spec, (source, access("dst", (THREAD,), write=True))),)
        if bound > 32 and more:
            fails(r"src\[32\] is outside of the tensor: thread 24 of block 0 reads it", body, elements=32)
            run(body, elements=sizes)
        else:
            done, given = run(body, elements=32)
            coordinates = np.arange(32) + more
            np.testing.assert_array_equal(done.outputs["dst"], np.where(coordinates < bound, given[np.minimum(coordinates, 31)], 0))


def test_message_names_the_first_out_of_bounds_coordinate():
    """It names element, thread, block and iteration."""
    k, block = Var("k", 0, 3), Var("block", 0, 3)
    place = THREAD + block * 8 + k * 3
    for kind in ("axis", "loop"):
        move = copy(access("src", (place,)), access("dst", (THREAD + block * 32 + k * 128,)))
        body = (move,) if kind == "axis" else (move, copy(access("src", (THREAD * 0,)), access("dst", (THREAD + block * 32 + k * 128,))))
        kernel = kernel_of(Move(512, dtype=float32)(GL, GL), (making.loop(k, as_expr(4), body),), grid=4)
        small = kernel_of(Move(60, dtype=float32)(GL, GL), ()).buffers[0]
        kernel = attrs.evolve(kernel, buffers=(small, *kernel.buffers[1:]))
        with pytest.raises(
            SimulationError,
            match=r"src\[60\] is outside of the tensor: thread \d+ of block 3 reads it(?s:.*)coordinate 0 is 60(?s:.*), k=\d",
        ):
            simulate(kernel, {"src": np.zeros(60, np.float32)})


@pytest.mark.parametrize("grid", [1, 3])
def test_bytes_are_counted_for_all_blocks_and_iterations(grid):
    k, block = Var("k", 0, 3), Var("block", 0, grid - 1)
    place = THREAD + (block * 4 + k) * 32
    move = copy(access("src", (place,)), access("dst", (place,)), guard=less(THREAD + k * 0, 8))
    done, _ = run((making.loop(k, as_expr(4), (move,)),), elements=512, grid=grid)
    assert done.read_bytes == done.written_bytes == 8 * 4 * 4 * grid


@pytest.mark.parametrize("order", [None, 0])
def test_register_numbers_that_differ_between_threads(order):
    """The number of a register may differ between threads, blocks and iterations."""
    k, block, r = Var("k", 0, 3), Var("block", 0, 1), local("r", (8,), RF)
    number = (THREAD + block + k) % 8
    fill = copy(access("src", (THREAD + k * 32 + block * 128,)), access("r", (number,)), memories=(GL, RF))
    back = copy(access("r", (number,)), access("dst", (THREAD + k * 32 + block * 128,)), memories=(RF, GL))
    loops = (making.loop(k, as_expr(4), (fill,)), making.loop(k, as_expr(4), (back,)))
    kernel = kernel_of(Move(256, dtype=float32)(GL, GL), loops, r, grid=2)
    given = np.arange(256, dtype=np.float32)
    np.testing.assert_array_equal(
        simulate(kernel, {"src": given}, order=None if order is None else random.Random(order)).outputs["dst"], given
    )


def test_trip_count_read_from_an_integer_array():
    """A negative number means no iteration."""
    k = Var("k", 0, 7)
    loop = making.loop(k, lookup("src", as_expr(3)), (copy_ints(access("src", (THREAD,)), access("dst", (THREAD + k * 0,))),))
    kernel = kernel_of(Move(64, dtype=int32)(GL, GL), (loop,))
    given = np.arange(64, dtype=np.int32)
    for count in (-1, 0, 1, 5):
        given[3] = count
        result = simulate(kernel, {"src": given}).outputs["dst"][:32]
        assert (result == given[:32]).all() == (count > 0)


def copy_ints(source, target, **fields):
    return making.execution(
        MOVE, Move(1, dtype=int32)(GL, GL)(Thread), (source, attrs.evolve(target, write=True)), pieces=(elements(1),) * 2, **fields
    )


@pytest.mark.parametrize("dtype", [float32, int32], ids=str)
def test_registers_of_warps_that_skip_a_body(dtype):
    """They keep their values, floats and integers, in all registers and in each block."""
    thread, block = Var("thread", 0, 63), Var("block", 0, 1)

    def move(source, target, memories, kind):
        return making.execution(
            MOVE, Move(1, dtype=kind)(*memories)(Thread), (source, attrs.evolve(target, write=True)), pieces=(elements(1),) * 2
        )

    spec = (
        Fused(name="some", dims="m", operands={"N": "m", "X": "m", "Y": "m"}, body={"y": "Y[m] = X[m] * N[m]"})
        .tile(m=1)
        .to(Block)
        .done("// x\n")
    )
    spec = spec.start(m=256, dtype=dtype)
    place = thread + block * 128
    body = (
        move(access("N", (place,)), access("needed", (0,)), (GL, RF), int32),
        move(access("X", (place,)), access("r", (1,)), (GL, RF), dtype),
        move(access("X", (place + 64,)), access("s", (0,)), (GL, RF), dtype),
        making.if_any_lane(
            "needed",
            (move(access("s", (0,)), access("r", (1,)), (RF, RF), dtype), move(access("s", (0,)), access("r", (0,)), (RF, RF), dtype)),
        ),
        move(access("r", (1,)), access("Y", (place,)), (RF, GL), dtype),
    )
    registers = local("needed", (1,), RF, int32), local("r", (2,), RF, dtype), local("s", (1,), RF, dtype)
    kernel = kernel_of(lambda level: spec, body, *registers, threads=64, grid=2)
    first, *others = kernel.buffers
    kernel = attrs.evolve(kernel, buffers=(attrs.evolve(first, tensor=attrs.evolve(first.tensor, dtype=int32)), *others))
    for needing in ((), (0,), (63, 128), (40, 191), (1, 33, 130, 170)):
        numbers = np.isin(np.arange(256), needing).astype(np.int32)
        given = np.arange(256).astype(dtype.to_numpy())
        for order in (None, random.Random(0)):
            result = simulate(kernel, {"N": numbers, "X": given}, order=order).outputs["Y"]
            for first in (0, 32, 128, 160):
                some = numbers[first : first + 32].any()
                np.testing.assert_array_equal(result[first : first + 32], given[first : first + 32] + 64 * some)


def test_masked_reads_are_zero_after_masked_writes():
    """A masked write has no effect on a masked read."""
    fill = copy(access("src", (THREAD,)), access("x", (THREAD,)), memories=(GL, SH), guard=less(THREAD, 8))
    spec = Move(1, dtype=float32)(SH, GL)(Thread)
    pieces = ((making.piece(0, 1, condition=less(THREAD, 8)),), elements(1))
    back = making.execution(MOVE, spec, (access("x", (THREAD,)), access("dst", (THREAD,), write=True)), pieces=pieces)
    done, given = run((fill, back), shared())
    np.testing.assert_array_equal(done.outputs["dst"][:32], np.where(np.arange(32) < 8, given[:32], 0))
    r = local("r", (2,), RF)
    load = copy(access("src", (THREAD,)), access("r", (THREAD % 2,)), memories=(GL, RF), guard=less(THREAD, 8))
    spec = Move(1, dtype=float32)(RF, GL)(Thread)
    back = making.execution(MOVE, spec, (access("r", (THREAD % 2,)), access("dst", (THREAD,), write=True)), pieces=pieces)
    done, given = run((load, back), r)
    np.testing.assert_array_equal(done.outputs["dst"][:32], np.where(np.arange(32) < 8, given[:32], 0))


def test_messages_name_loops_but_not_sizes():
    """A message names the enclosing loops, but neither the sizes of the kernel nor names that differ between threads."""
    size, k, name = Var("N", 1, 64), Var("k", 0, 3), Var("name", 0, 99)
    move = copy(access("src", (name + 60,)), access("dst", (THREAD,)))
    body = (making.loop(k, as_expr(2), (making.let(name, THREAD), copy(access("src", (THREAD,)), access("dst", (THREAD,))), move)),)
    kernel = kernel_of(Move(64, dtype=float32)(GL, GL), body, symbols=(size,))
    with pytest.raises(SimulationError, match=r"in +Move .*, k=0\n"):
        simulate(kernel, {"src": np.zeros(64, np.float32)}, {"N": 7})
    kernel = attrs.evolve(kernel, body=(making.let(name, THREAD), move))
    with pytest.raises(SimulationError, match=r"in +Move .*, outside loops\n"):
        simulate(kernel, {"src": np.zeros(64, np.float32)}, {"N": 7})


@pytest.mark.parametrize("memory", [GL, SH, RF], ids=str)
@pytest.mark.parametrize("places", [1, 2, 4])
def test_iterations_of_an_axis_that_write_one_element(memory, places):
    """The last write wins, in arrays, shared memory and registers; other elements are unaffected."""
    k, n = Var("k", 0, 3), Var("n", 0, 3)
    place = k * places // 4
    target = {GL: access("dst", (THREAD + place * 32,)), SH: access("x", (THREAD + place * 32,)), RF: access("r", (place,))}[memory]
    body = [making.loop(k, as_expr(4), (copy(access("src", (THREAD + k * 32,)), target, memories=(GL, memory)),))]
    buffers = {GL: (), SH: (attrs.evolve(local("x", (128,), SH), offset=0),), RF: (local("r", (4,), RF),)}[memory]
    if memory != GL:
        source = access("x", (THREAD + n * 32,)) if memory == SH else access("r", (n,))
        body.append(making.loop(n, as_expr(places), (copy(source, access("dst", (THREAD + n * 32,)), memories=(memory, GL)),)))
    done, given = run(tuple(body), *buffers, elements=128)
    last = {1: [3], 2: [1, 3], 4: [0, 1, 2, 3]}[places]
    np.testing.assert_array_equal(done.outputs["dst"].reshape(4, 32)[:places], given.reshape(4, 32)[last])


def test_a_coordinate_below_zero_that_a_bound_does_not_guard():
    """A bound is an upper bound only."""
    source = access("src", (THREAD - 3,), bounds=(8,))
    move = making.execution(
        MicroKernel("m", "// m\n"), Move(1, dtype=float32)(GL, GL)(Thread), (source, access("dst", (THREAD,), write=True))
    )
    fails(r"src\[-3\] is outside of the tensor: thread 0 of block 0 reads it", (move,))


@pytest.mark.parametrize("number", [-1, 2])
def test_stages_past_the_end_of_a_one_element_buffer(number):
    buffer = attrs.evolve(local("x", (1,), SH, copies=2), offset=0)
    stage = attrs.evolve(access("x", (THREAD * 0,)), copy=THREAD * 0 + number)
    fails(
        rf"address {number} of x\[0\] is outside of the buffer",
        (copy(access("src", (THREAD,)), stage, memories=(GL, SH), guard=less(THREAD, 1)),),
        buffer,
    )


@pytest.mark.parametrize("grid", [2, 3, 4])
def test_blocks_without_elements_in_bounds(grid):
    """A block whose elements are all out of bounds has no work, which is an error, unless its statement is inactive."""
    place = Var("block", 0, grid - 1) * 32 + THREAD
    move = copy(access("src", (place,)), access("dst", (place,)), guard=less(place, 64))
    if grid == 2:
        run((move,), grid=grid)
        run((copy(access("src", (place,)), access("dst", (place,))),), grid=grid)
    else:
        fails("block 2 of the grid has no work", (move,), grid=grid)
        run((attrs.evolve(move, active=less(place, 64)),), grid=grid)


# ---------------------------------------------------------------------------------------------- vectorized loops


def executed_statements(place, target, *loops, source=GL, memory=GL, buffers=(), inner=None):
    """The number of statements that a copy in loops executes."""
    move = making.execution(
        MOVE,
        Move(1)(source, memory)(Thread),
        (access("src", (place,)), access(target[0], (target[1],), write=True)),
        pieces=((making.piece(0),),) * 2,
    )
    for loop in reversed(loops):
        move = making.loop(loop, as_expr(loop.high + 1), (move,))
    kernel = attrs.evolve(kernel_of(Move(4096)(GL, GL), (move,), *buffers), shared_bytes=1 << 14)
    given = np.arange(4096, dtype=np.float32)
    runs = [simulate(kernel, {"src": given}, order=order) for order in (None, random.Random(0))]
    assert runs[0].statements == runs[1].statements
    return runs[0].statements


K4, K3 = Var("k", 0, 3), Var("j", 0, 2)


@pytest.mark.parametrize(
    ("place", "target", "loops", "count"),
    [
        (THREAD, THREAD + K4 * 32, (K4,), 1),
        (THREAD + K4 * 32, THREAD + K4 * 32, (K4,), 1),
        (as_expr(0), THREAD + K4 * 32, (K4,), 1),
        (K4, THREAD + K4 * 32, (K4,), 1),
        (THREAD + K4 * 32, THREAD, (K4,), 4),
        (THREAD, THREAD + K4 * 32 + K3 * 128, (K4, K3), 1),
        (THREAD, THREAD + K4 * 32 + K3 * 128, (K3, K4), 1),
        (THREAD + K3, THREAD + K4 * 32, (K3, K4), 3),
        (THREAD, THREAD + K4 // 2 * 32, (K4,), 4),
    ],
    ids=str,
)  # fmt: skip
def test_vectorized_loops(place, target, loops, count):
    """A loop is vectorized if its iterations write different elements; they may read the same ones."""
    assert executed_statements(place, ("dst", target), *loops) == count


@pytest.mark.parametrize("memory, size", [(RF, 12), (SH, 512)], ids=str)
@pytest.mark.parametrize(
    "target, count",
    [(lambda k: k, 1), (lambda k: k * 2, 1), (lambda k: k // 2, 4), (lambda k: 3 - k, 1), (lambda k: k * k, 1), (lambda k: 0, 4)],
)
def test_vectorized_loops_over_registers_and_shared_memory(memory, size, target, count):
    place = as_expr(target(K4)) if memory == RF else THREAD + target(K4) * 32
    assert executed_statements(THREAD, ("x", place), K4, memory=memory, buffers=(local("x", (size,), memory),)) == count


# ---------------------------------------------------------------------------------------------- masks


def plain_batch(width=3, *buffers, threads=32):
    kernel = attrs.evolve(kernel_of(Move(32)(GL, GL), (), *buffers, threads=threads, grid=8), shared_bytes=4096)
    plan = Plan(kernel, {})
    return BlockBatch(plan, global_memory(plan, {"src": np.zeros(32, np.float32)}, False), tuple(range(width)), False)


@pytest.mark.parametrize(
    ("mask", "blocks"),
    [
        (None, [True] * 3),
        (np.array(True), [True] * 3),
        (np.array(False), [False] * 3),
        (np.zeros((2, 4, 1), bool), [False] * 3),
        (np.array([[[False]], [[True]]]), [True] * 3),
        (np.array([[[True, False, False]]]), [True, False, False]),
        (np.array([[[False, False, True], [False, True, False]]]), [False, True, True]),
        (np.array([True, False, True]), [True, False, True]),
    ],
    ids=str,
)  # fmt: skip
def test_blocks_in_which_a_mask_holds(mask, blocks):
    assert plain_batch()._by_block(mask).tolist() == blocks


@pytest.mark.parametrize(
    ("mask", "more", "conjunction"),
    [
        (None, None, None),
        (None, [True, True], None),
        (None, [True, False], [True, False]),
        ([True, False], None, [True, False]),
        ([True, False], [True, True], [True, False]),
        ([True, False], [False, True], [False, False]),
        ([False, True], [False, True], [False, True]),
    ],
)
def test_conjunction_of_two_masks(mask, more, conjunction):
    """`None` is true everywhere."""
    result = both(*(None if values is None else np.array(values) for values in (mask, more)))
    assert (None if result is None else result.tolist()) == conjunction


def test_the_block_at_a_position():
    """A value equal in all blocks has one position, which may be past the end of a smaller batch."""
    batch = plain_batch(2)
    assert [batch.block(position) for position in (0, 1, 2, 9)] == [0, 1, 1, 1]
    batch.blocks = (4, 7)
    assert [batch.block(position) for position in (0, 1)] == [4, 7]


def test_location_of_a_statement():
    batch = plain_batch()
    assert batch.where({}) == "outside loops" and batch.where({"k": 3, "m": np.arange(2)}) == "k=3"
    assert batch.where({"k": 3}, {"j": 1}) == "k=3, j=1" and batch.where({"k": 3}, {"k": 1}) == "k=1" and batch.where({}, {"j": 0}) == "j=0"
    batch.plan.symbols["N"] = 5
    assert batch.where({"N": 5, "k": 3}) == "k=3"


@pytest.mark.parametrize("threads, group", [(64, range(64)), (64, range(32, 64)), (48, range(32, 48)), (32, [3])], ids=str)
def test_registers_of_a_group(threads, group):
    """Values by register number and thread; if tracked, also which of them were written."""
    batch = plain_batch(2, local("r", (3,), RF, int32), local("f", (2,), RF), threads=threads)
    members = ThreadGroup(np.array(list(group)), {})
    for name, count in (("r", 3), ("f", 2)):
        memory = batch.memories[name]
        memory.data[: count * threads] = np.arange(count * threads)[:, None] * 10 + np.arange(2)
        if memory.defined is not None:
            memory.defined[: count * threads] = (np.arange(count * threads) % 2 == 0)[:, None]
    registers = batch.registers_of(("f", "r"), members)
    assert list(registers) == ["f", "r"]
    for name, count in (("r", 3), ("f", 2)):
        values, defined = registers[name]
        rows = np.arange(count)[:, None] * threads + members.threads
        np.testing.assert_array_equal(values, rows[..., None] * 10 + np.arange(2))
        assert (defined is None) == (name == "f")
        if defined is not None:
            np.testing.assert_array_equal(defined, np.broadcast_to((rows % 2 == 0)[..., None], defined.shape))
    # Restored for some of the threads only.
    where = np.zeros((len(members.threads), 2), bool)
    where[0, 1] = True
    for memory in (batch.memories["r"], batch.memories["f"]):
        memory.data[:] = -1
        if memory.defined is not None:
            memory.defined[:] = True
            memory.complete = True
    batch.restore(registers, where, members)
    for name, count in (("r", 3), ("f", 2)):
        memory = batch.memories[name]
        rows = np.arange(count) * threads + members.threads[0]
        expected = np.full(memory.data.shape, -1, memory.data.dtype)
        expected[rows, 1] = rows * 10 + 1
        np.testing.assert_array_equal(memory.data, expected)
    tracked = batch.memories["r"]
    rows = np.arange(3) * threads + members.threads[0]
    assert tracked.defined[rows, 1].tolist() == (rows % 2 == 0).tolist() and tracked.defined[rows, 0].all()
    assert tracked.complete == bool((rows % 2 == 0).all())


def test_warps_whose_registers_are_all_zero():
    """By block; an incomplete warp counts as one."""
    batch = plain_batch(2, local("n", (2,), RF, int32), threads=80)
    memory, group = batch.memories["n"], ThreadGroup(np.arange(80), {})
    memory.data[:] = 0
    memory.data[5, 0] = 1  # thread 5, number 0, block 0
    memory.data[80 + 70, 1] = -3  # thread 70, number 1, block 1
    result = batch.all_lanes_zero("n", group)
    expected = np.ones((80, 2), bool)
    expected[:32, 0] = False
    expected[64:, 1] = False
    np.testing.assert_array_equal(result, expected)
    some = ThreadGroup(np.arange(32, 80), {})
    np.testing.assert_array_equal(batch.all_lanes_zero("n", some), expected[32:])


# ---------------------------------------------------------------------------------------------- addresses


@pytest.mark.parametrize("count", [1, 4])
@pytest.mark.parametrize("grid", [1, 3])
def test_atomic_adds_of_a_uniform_value(count, grid):
    spec, add_spec = AtomicAdd(32, dtype=int32)(GL, GL), AtomicAdd(1, dtype=int32)(GL, GL)(Thread)
    add = making.execution(ATOMIC_ADD, add_spec, (access("src", (7,)), access("dst", (3,), write=True)), pieces=((making.piece(0),),) * 2)
    iteration = Var("k", 0, count - 1)
    kernel = kernel_of(spec, (making.loop(iteration, as_expr(count), (add,)),), grid=grid)
    given, start = np.arange(32, dtype=np.int32), np.full(32, 100, np.int32)
    got = simulate(kernel, {"src": given, "dst": start}).outputs["dst"]
    expected = start.copy()
    expected[3] += 7 * 32 * grid * count
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("number, right", [(7, True), (8, False)])
def test_a_swizzle_of_an_incomplete_span_may_leave_the_buffer(number, right):
    """Element 8 of 9 has address 9."""
    x = local("x", (9,), SH)
    x = attrs.evolve(x, storage=attrs.evolve(x.storage, swizzle=Swizzle(2, 0, 3)))
    body = (copy(access("src", (0,)), access("x", (number,)), memories=(GL, SH), active=equal(THREAD, 0)),)
    kernel = attrs.evolve(kernel_of(Move(64, dtype=float32)(GL, GL), body, x), shared_bytes=64)
    if right:
        simulate(kernel, {"src": np.zeros(64, np.float32)})
    else:
        with pytest.raises(SimulationError, match=r"address 9 of x\[8\] is outside of the buffer: thread 0 of block 0 writes it"):
            simulate(kernel, {"src": np.zeros(64, np.float32)})


def computed_place(target, *loops, memory=RF, size=12, write=True, condition=TRUE, **fields):
    """The computed address of a copy in loops, in a batch of two blocks."""
    x = attrs.evolve(local("x", (size,), memory), offset=0)
    far = THREAD + sum((loop * 32 * 4**number for number, loop in enumerate(loops)), start=as_expr(0))
    near, far_access = access("x", (target,)), access("dst" if not write else "src", (far,))
    pair = (far_access, attrs.evolve(near, write=True)) if write else (near, attrs.evolve(far_access, write=True))
    memories = (GL, memory) if write else (memory, GL)
    move = making.execution(MOVE, Move(1)(*memories)(Thread), pair, pieces=((making.piece(0, 1, condition=condition),),) * 2)
    for loop in reversed(loops):
        move = making.loop(loop, as_expr(loop.high + 1), (move,))
    kernel = attrs.evolve(kernel_of(Move(512)(GL, GL), (move,), x, grid=8), shared_bytes=4096)
    plan = Plan(kernel, {})
    run = Run(plan, global_memory(plan, {"src": np.zeros(512, np.float32)}, False), History({}), (2, 5), True, False)
    site = next(candidate for candidate in plan.sites if len(candidate.loops) == len(loops))
    operand = next(candidate for candidate in site.operand_list if candidate.buffer.name == "x" and candidate.write == write)
    group = run.group(np.arange(32))
    return run.batch.compute(site, operand, group.environment, group), run.batch.memories["x"]


@pytest.mark.parametrize(
    ("target", "loops", "numbers"),
    [
        (as_expr(3), (), [3]),
        (K4 * 2 + 1, (K4,), [[1, 3, 5, 7]]),
        (9 - K4 * 3, (K4,), [[9, 6, 3, 0]]),
        (K4 + K3 * 4, (K4, K3), [[[k + j * 4 for j in range(3)] for k in range(4)]]),
        (K4 * K4, (K4,), None),
        (THREAD % 2, (), None),
        (BLOCK % 2, (), None),
        (THREAD % 2 * 4 + K4, (K4,), None),
    ],
    ids=str,
)
@pytest.mark.parametrize("write", [True, False])
def test_uniform_register_numbers_are_a_window(target, loops, numbers, write):
    """If affine in the loops; numbers that differ between threads or blocks are not."""
    place, _ = computed_place(target, *loops, write=write)
    assert isinstance(place, Window) == (numbers is not None)
    if numbers is not None:
        assert np.broadcast_to(place.rows, np.shape(numbers)).tolist() == numbers
        assert place.shape[-2:] == (32, 2)
    masked, _ = computed_place(target, *loops, write=write, condition=less(THREAD, 5))
    assert not isinstance(masked, Window)


@pytest.mark.parametrize("write", [True, False])
@pytest.mark.parametrize(
    ("target", "rows"),
    [
        (THREAD, [list(range(32))]),
        (31 - THREAD, [[31 - one for one in range(32)]]),
        (as_expr(5), [[5] * 32]),
    ],
    ids=str,
)
def test_rows_of_shared_memory_equal_in_all_blocks(target, rows, write):
    """A write has a row per thread; masked elements get a row past the end of the memory."""
    place, memory = computed_place(target, memory=SH, size=40, write=write)
    assert isinstance(place, Rows) and np.broadcast_to(place.rows, (1, 32)).tolist() == rows and (place.rows.shape == (1, 32) or not write)
    masked, memory = computed_place(target, memory=SH, size=40, write=write, condition=less(THREAD, 5))
    masked_row = memory.zero + (1 if write else 0)
    assert isinstance(masked, Rows) and masked.rows.tolist() == [[row if number < 5 else masked_row for number, row in enumerate(rows[0])]]
    by_block, memory = computed_place(as_expr(target) * 0 + BLOCK, memory=SH, size=40, write=write)
    assert isinstance(by_block, Flat) and np.broadcast_to(by_block.rows, (1, 32, 2)).tolist() == [[[2 * 2 + 0, 5 * 2 + 1]] * 32]


def test_conditions_read_arrays_where_those_before_them_hold():
    """Threads 0 to 3 read an index, and thread 2 has one that its condition excludes."""
    index = lookup("src", THREAD * 16, 63)
    early, late = less(THREAD, 4), less(index, 40)
    given = np.arange(64, dtype=np.int32)
    given[[0, 16, 32, 48]] = 5, 6, 50, 7

    def result(*conditions):
        moved = copy_ints(access("src", (index,)), access("dst", (THREAD,)), guard=all_of(conditions))
        return simulate(kernel_of(Move(64, dtype=int32)(GL, GL), (moved,)), {"src": given}).outputs["dst"]

    assert result(early, late)[[0, 1, 3]].tolist() == [5, 6, 7]
    with pytest.raises(SimulationError, match="src: element 496 is read, but the array has 64 elements"):
        result(late, early)
