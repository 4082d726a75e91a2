"""Launches in the simulator, by hand: which blocks it takes, and blocks that have no work (`fireiron.sim.launch`)."""

import random

import attrs
import numpy as np
import pytest
from engines import numbered, stored
from handmade import access, kernel_of
from ringed import TARGET, halves, inputs_of, outcome, product

from fireiron import *
from fireiron import ir
from fireiron.errors import ArgumentError, SimulationError, VerificationError
from fireiron.executable.thread_move import MOVE
from fireiron.sim import simulate
from fireiron.values.expr import TRUE, Var, as_expr, less

WIDTH = 32


def by_blocks(elements, blocks, *, guarded=True, active=TRUE, place=None, block=None, cluster=None):
    """A kernel of so many blocks, whose 32 threads copy an element each."""
    block = block or Var("block", 0, blocks - 1)
    place = block * WIDTH + Var("thread", 0, WIDTH - 1) if place is None else place
    guard = less(place, elements) if guarded else TRUE
    move = ir.Exec(
        MOVE,
        Move(1, dtype=float32)(GL, GL)(Thread),
        (access("src", (place,)), access("dst", (place,), write=True)),
        active=active,
        guard=guard,
        pieces=((ir.Piece(0, 1, guard),),) * 2,
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
    message = f"block {right} of the grid has no work: each element that it writes lies outside its tensor"
    with pytest.raises(SimulationError, match=message):
        copy_of(by_blocks(elements, right + 1), elements, order=chance)
    with pytest.raises(SimulationError, match=r"is outside the tensor: thread \d+ of block"):
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


TWO = ir.BlockCluster((2,), (Var("rank", 0, 1),))


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
    kernel = stored(ir.TensorMap("dst_map", "dst", (1, 0), (64, 64), 128), array=(64, 64), at=(Var("block", 0, 1) * 64, as_expr(0)))
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
    program = product((64, 64, 64), (64, 64), 2, **options)(halves(*sizes)).program(TARGET)
    arrays, expected = inputs_of(program.spec)
    assert outcome(program.ir, arrays, expected) == "right"
    assert outcome(with_blocks(program.ir, 2 if "cluster" in options else 1), arrays, expected) not in ("right", "wrong")


def test_one_tile_by_two_blocks():
    """Of a grid of one block no expression knows a block's number: two do the same, by an engine."""
    program = product((64, 64, 64), (64, 64), 2)(halves(64, 64, 64)).program(TARGET)
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
    with pytest.raises(ArgumentError, match=f"symbol N={value} breaks the facts") as caught:
        simulate(of_size(multiple), {"src": np.zeros(64, np.float32)}, {"N": value})
    assert caught.value.legal == legal
    for right in (8, 64):
        simulate(of_size(multiple), {"src": np.zeros(64, np.float32)}, {"N": right})


def test_a_kernel_that_is_not_final_is_refused():
    kernel = by_blocks(64, 2)
    unguarded = attrs.evolve(kernel, body=(*kernel.body, ir.SyncPoint(None, "a")))
    with pytest.raises(VerificationError):
        simulate(unguarded, {"src": np.zeros(64, np.float32)})


def test_what_is_counted():
    """Statements and barriers of one block, bytes of all."""
    kernel = by_blocks(65, 3)
    done = simulate(attrs.evolve(kernel, body=(*kernel.body, ir.Barrier(ir.BLOCK_SCOPE), *kernel.body)), {"src": np.zeros(65, np.float32)})
    assert (done.statements, done.barriers, done.read_bytes, done.written_bytes) == (2, 1, 2 * 65 * 4, 2 * 65 * 4)
    assert (done.threads, done.blocks) == (WIDTH, (0, 1, 2))
