"""The iterations that each block executes of a loop, in hand-made kernels."""

import making
import pytest
from touching import T, kernel, loop, writes

from fireiron import *
from fireiron.check import AccessTrace
from fireiron.check.variable_trip_count import MAX_BLOCKS, typical_block, varying_trip_counts
from fireiron.values.expr import Var, as_expr, minimum

BLOCK, K = Var("block", 0, 63), Var("k", 0, 9)
N = Var("N", 1, 1 << 20, 1, True)


def findings_of(extent, grid=8, sizes=None, var=K, body=None):
    body = (writes(T),) if body is None else body
    symbols = (N,) if sizes else ()
    return varying_trip_counts(AccessTrace(kernel(loop(extent, *body, var=var), grid=grid, symbols=symbols)), sizes or {})


def test_trip_counts_that_differ_by_block():
    (trip_counts,) = findings_of(BLOCK + 1)
    assert trip_counts.blocks.tolist() == list(range(8)) and trip_counts.counts.tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert (trip_counts.maximum, trip_counts.mean) == (10, 4.5), "the range of the variable has 10 values"
    assert str(trip_counts) == "loop over k: a block executes 1 to 8 of 10 iterations, 4.5 on average (45%); the others are fully masked"
    (trip_counts,) = findings_of(BLOCK + 7)
    assert trip_counts.maximum == 14, "or the block with the most iterations"
    (trip_counts,) = findings_of(BLOCK - 3)
    assert trip_counts.counts.tolist() == [0, 0, 0, 0, 1, 2, 3, 4], "no block has a negative count"


def test_sizes_and_grids():
    (trip_counts,) = findings_of(minimum(N, BLOCK), sizes={"N": 3})
    assert trip_counts.counts.tolist() == [0, 1, 2, 3, 3, 3, 3, 3]
    assert findings_of(N, sizes={"N": 3}) == () == findings_of(as_expr(4)), "all blocks have equal counts"
    (trip_counts,) = findings_of(Var("block", 0, 1 << 17) // 16, grid=1 << 16)
    assert len(trip_counts.blocks) == MAX_BLOCKS and trip_counts.blocks[0] == 0 and trip_counts.blocks[-1] == (1 << 16) - 1
    same = findings_of(BLOCK * 0 + minimum(BLOCK, as_expr(0)) + 4)
    assert not same or str(same[0]).startswith("loop over k: a block takes 4 of")


def test_loops_over_tiles_are_omitted():
    """A persistent block processes another tile in each iteration."""
    tile = making.let(Var("tile", 0, 999), BLOCK + K * 8)
    assert findings_of(BLOCK + 1, body=(tile, writes(T))) == ()
    other = making.let(Var("tile", 0, 999), K * 8)
    assert len(findings_of(BLOCK + 1, body=(other, writes(T)))) == 1


@pytest.mark.parametrize(("extent", "block"), [(BLOCK + 1, 3), (BLOCK * BLOCK, 4), (as_expr(7) - BLOCK, 3)])
def test_the_typical_block_is_nearest_to_the_average(extent, block):
    assert typical_block(findings_of(extent)) == block
    assert typical_block(()) == 0
