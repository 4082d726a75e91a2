"""Add many parts of few sums, for which `add_parts` has too few threads: the second kernel of gradients of filters.

    add_parts(m,n,a,128)(GL,GL)(Kernel)
      tile(m=1, n=columns).to(Block)     add_parts(1,8,a,128)(GL,GL)(Block)     few columns; warps have different parts
      split(a=each)                      add_parts(1,8,8,128)(GL,GL)(Block)     `each` parts of a lane per iteration
      step("load")                       a part and a column to a lane
      done()                             sums in registers, then of lanes by shuffles, then of warps through shared memory

P[p,m,n] are parts, float32, and C[m,n] is their sum. With 128 lanes for each column, lane b adds the parts b, b + 128, ...
The order of the additions is fixed.
"""

from fireiron import *

FEWEST = 64
"""Minimum number of parts."""

FORMS = ((4096, 128, 8, 8), (16384, 32, 32, 16))
"""Number of sums below which a form was the fastest on an H200; its lanes for each column, its columns, and the parts that a lane loads
together."""

MANY_SUMS = (16, 32, 8)
"""The form for more sums."""


def definition(lanes):
    """Return the sum of parts by a number of lanes for each column; an index of a part past the end reads zeros."""
    return Fused(
        name="add_parts",
        dims="m n a b p",
        loop="a",
        operands={"P": "p m n", "C": "m n"},
        init={"zero": "acc[b,m,n] = 0"},
        body={"load": f"x[a,b,m,n] = P[a * {lanes} + b,m,n]", "add": "acc[b,m,n] += sum(a, x[a,b,m,n])"},
        final={"sum": "u[m,n] = sum(b, acc[b,m,n])", "store": "C[m,n] = u[m,n]"},
    )


def adding(rows, columns, parts, dtype=float16, programmatic_launch=False, form=None):
    """Return the strategy for a number of rows, columns and parts; with `programmatic_launch` it starts before the previous kernel ends."""
    lanes, width, each = form or next((values for most, *values in FORMS if rows * columns < most), MANY_SUMS)
    problem = definition(lanes)
    tile = problem.tile(m=1, n=width).to(Block)
    tile = tile.programmatic_launch() if programmatic_launch else tile
    loads = Move.tile(each, 32 // width, 1, width).to(Warp).tile(each, 1, 1, 1).to(Lane).tile(1, 1, 1, 1).unroll().done()
    sizes = {"m": rows, "n": columns, "a": -(-parts // lanes), "b": lanes, "p": parts}
    return tile.split(a=each).step("load", loads).done()(problem(**sizes, types={"P": float32, "C": dtype}))
