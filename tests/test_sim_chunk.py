"""Accesses of a chunk of blocks, by hand: coordinates, bounds, addresses, vectors and what is counted (`fireiron.sim.chunk`)."""

import attrs
import numpy as np
import pytest
from handmade import access, kernel_of, local

from fireiron import *
from fireiron import ir
from fireiron.errors import SimulationError
from fireiron.executable.thread_move import MOVE
from fireiron.sim import simulate
from fireiron.values.expr import TRUE, Var, as_expr, less
from fireiron.values.layout import Swizzle

THREAD, BLOCK = Var("thread", 0, 31), Var("block", 0, 3)


def copy(source, target, *, guard=TRUE, width=1, shape=None, memories=(GL, GL), **fields):
    """A copy by each thread, of `width` elements at once."""
    elements = int(np.prod(shape or (1,)))
    pieces = fields.pop("pieces", None) or tuple(ir.Piece(first, width, guard) for first in range(0, elements, width))
    spec = Move(*(shape or (1,)), dtype=float32)(*memories)(Thread)
    return ir.Exec(MOVE, spec, (source, attrs.evolve(target, write=True)), guard=guard, pieces=(pieces,) * 2, **fields)


def run(body, *buffers, elements=64, grid=1, source=None, **fields):
    kernel = kernel_of(Move(elements, dtype=float32)(GL, GL), body, *buffers, grid=grid, threads=32)
    size = sum(one.bytes for one in buffers if one.memory == SH)
    kernel = attrs.evolve(kernel, shared_bytes=size, **fields)
    given = np.arange(1, elements + 1, dtype=np.float32)
    return simulate(kernel, {"src": given}), given


def fails(message, *arguments, **options):
    with pytest.raises(SimulationError, match=message):
        run(*arguments, **options)


@pytest.mark.parametrize("offset, element, thread", [(33, 64, 31), (40, 64, 24), (-1, -1, 0), (-5, -5, 0)])
def test_coordinates_outside_the_tensor(offset, element, thread):
    place = THREAD + offset
    message = rf"src\[{element}\] is outside the tensor: thread {thread} of block 0 reads it(?s:.*)coordinate 0 is {element}(?s:.*)0 ... 63"
    fails(message, (copy(access("src", (place,)), access("dst", (THREAD,))),))
    fails(
        rf"dst\[{element}\] is outside the tensor: thread {thread} of block 0 writes it",
        (copy(access("src", (THREAD,)), access("dst", (place,))),),
    )


@pytest.mark.parametrize("offset", [0, 1, 32])
def test_coordinates_up_to_the_last(offset):
    done, given = run((copy(access("src", (THREAD + offset,)), access("dst", (THREAD + offset,))),))
    np.testing.assert_array_equal(done.outputs["dst"][offset : offset + 32], given[offset : offset + 32])
    assert done.read_bytes == done.written_bytes == 32 * 4


def test_which_block_is_named():
    place = BLOCK * 16 + THREAD
    fails(
        r"src\[64\] is outside the tensor: thread 16 of block 3",
        (copy(access("src", (place,)), access("dst", (THREAD * 0 + BLOCK,))),),
        grid=4,
    )


@pytest.mark.parametrize("bound", [5, 32, 60])
def test_bytes_of_guarded_copies_are_those_inside(bound):
    done, given = run((copy(access("src", (THREAD,)), access("dst", (THREAD,)), guard=less(THREAD, bound)),))
    count = min(bound, 32)
    assert done.read_bytes == done.written_bytes == count * 4
    np.testing.assert_array_equal(done.outputs["dst"][:count], given[:count])
    assert np.isnan(done.outputs["dst"][count:]).all()


@pytest.mark.parametrize("start, width, right", [(0, 4, True), (8, 4, True), (2, 4, False), (2, 2, True), (1, 2, False)])
def test_vectors_begin_at_their_multiple(start, width, right):
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
            rf"src: {width} elements at once from addresses {addresses}: thread 0 of block 0 reads them(?s:.*)a multiple of {width * 4} bytes",
            body,
        )


def test_vectors_are_of_neighbours():
    fields = {"shape": (2,), "width": 2, "guard": less(THREAD, 1)}
    strided = attrs.evolve(access("src", (THREAD,), (2,)), points=((0,), (8,)))
    fails("src: 2 elements at once from addresses 0, 8", (copy(strided, access("dst", (THREAD,), (2,)), **fields),))


def shared(swizzle=None, copies=1, offset=0):
    buffer = attrs.evolve(local("x", (32,), SH, copies=copies), offset=offset)
    return attrs.evolve(buffer, storage=attrs.evolve(buffer.storage, swizzle=swizzle))


@pytest.mark.parametrize("swizzle", [None, Swizzle(2, 0, 3)], ids=str)
@pytest.mark.parametrize("number", [0, 1, 2])
def test_copies_of_a_buffer(number, swizzle):
    """Each holds what was put there, and only so many are there."""
    there = attrs.evolve(access("x", (THREAD,)), copy=THREAD * 0 + number)
    body = (copy(access("src", (THREAD,)), there, memories=(GL, SH)), copy(there, access("dst", (THREAD,)), memories=(SH, GL)))
    if number < 2:
        done, given = run(body, shared(swizzle, 2))
        np.testing.assert_array_equal(done.outputs["dst"][:32], given[:32])
    else:
        fails(r"address \d+ of x\[0\] is outside the buffer: thread 0 of block 0 writes it", body, shared(swizzle, 2))


def test_a_statement_by_no_thread_does_nothing():
    done, _ = run((copy(access("src", (THREAD,)), access("dst", (THREAD,)), active=less(THREAD, 0)),))
    assert np.isnan(done.outputs["dst"]).all() and done.written_bytes == 0


def test_turns_that_write_one_element_come_in_order():
    """The last one stays, though a loop over a single statement is an axis where it may be."""
    k = Var("k", 0, 3)
    body = (ir.For(k, as_expr(4), (copy(access("src", (THREAD + k * 8,)), access("dst", (THREAD,))),)),)
    done, given = run(body)
    np.testing.assert_array_equal(done.outputs["dst"][:32], given[24:56])


@pytest.mark.parametrize("blocks", [2, 4])
def test_blocks_that_use_other_parts_of_their_shared_memory(blocks):
    """Blocks of a chunk go to addresses of their own, and each has its own memory."""
    block = Var("block", 0, blocks - 1)
    buffer = attrs.evolve(local("x", (32 * blocks,), SH), offset=0)
    there = access("x", (THREAD + block * 32,))
    body = (
        copy(access("src", (THREAD + block * 16,)), there, memories=(GL, SH)),
        copy(there, access("dst", (THREAD + block * 32,)), memories=(SH, GL)),
    )
    done, given = run(body, buffer, elements=32 * blocks, grid=blocks)
    np.testing.assert_array_equal(done.outputs["dst"], np.concatenate([given[number * 16 : number * 16 + 32] for number in range(blocks)]))
