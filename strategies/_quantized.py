"""Parts shared by products with quantized weights: C[m,n] = sum(k, A[m,k] * w[n,k]).

Weights are the 64 rows of an MMA, and activations its columns. So few rows of A waste no work, and weights for activations in float16 are
converted in registers, in the layout of the first operand of `wgmma`.
"""

import re

from fireiron import *
from fireiron.values.expr import constant
from fireiron.values.machine import as_architecture

FEW = 64
"""Rows of A up to which reading the weights takes longer than the MMAs."""

MULTIPROCESSORS = 132
"""SMs of an H100 or H200."""

bm = Tunable("bm", 16, 8, 32, 64, 128, 192, 256)
bn = Tunable("bn", 64, 128, 192, 256)
bk = Tunable("bk", 256, 64, 128, 512)
stages = Tunable("stages", 4, 2, 3, 5, 6, 8)
num_splits = Tunable("num_splits", 4, 1, 2, 3, 6, 8, 16)

high = Tunable("bm", 192, 8, 16, 32, 64, 128, 256)
wide = Tunable("bn", 128, 64, 192, 256)
ring = Tunable("stages", 4, 2, 3, 5, 6, 8)
group_m = Tunable("group_m", 8, 1, 4, 16)
num_blocks = Tunable("num_blocks", 132, 65536)

products = MatMul.split(16).unroll().done()
"""Activations in float16 in shared memory, weights in registers, by wgmma."""

products_of_bytes = MatMul.split(32).unroll().done()
"""Bytes in shared memory, by wgmma."""

store = Move.tile(32, 64).unroll().load(SRC, SH, Move.done()).cast_on_copy().done()
"""Convert, transpose by stmatrix to shared memory, and store by TMA, 32 rows of 64 columns at a time."""

copy, fragments = Move.coalesced_copy(8).done(), Move.done()


def of_few_rows(definition, loads, products=products):
    """Return the strategy for few rows: blocks share the k of a tile, and `loads` adds the loads of weights and scales to a loop."""
    tiles = definition.split_k(num_splits, Block, bk).reduce_in_last_block().tile(m=bm, n=bn).to(Block)
    loop = loads(tiles.split(k=bk).pipeline(stages).load("A", SH, Move.done()))
    return loop.tile(n=64).to(Warpgroup).step("product", products).done()


def of_many_rows(definition, loads, step=64, products=products):
    """Return the strategy for many rows: persistent blocks, and TMA loads all operands."""
    tiles = definition.tile(m=high, n=wide).to(Block).rasterize(group_m=group_m).persistent(num_blocks).split(k=step).pipeline(ring)
    loop = loads(tiles.warp_specialize(128).mma_in_flight(1).load("A", SH, Move.done()))
    tiles = loop.tile(n=64).to(Warpgroup).step("product", products)
    of_16_bits = dict(definition.fused_definition.types).get("C", float16).bytes == 2
    return (tiles.step("store", store) if of_16_bits else tiles).done()


def of_warps(definition, loads):
    """Return the strategy for mma.sync: threads convert weights to shared memory."""
    loop = loads(definition.tile(m=64, n=64).to(Block).split(k=64).pipeline(3).load("A", SH, copy).swizzle_storage())
    warps = MatMul.tile(32, 32).to(Warp).split(16).unroll().load(A, RF, fragments).load(B, RF, fragments)
    return loop.set_memory("w", SH).swizzle_storage().step("product", warps.tile(16, 16).unroll().mma_tile().done()).done()


def rows(spec):
    """Return the number of rows of A; None if it is known only at run time."""
    return constant(spec.size("m"))


def form(spec):
    """Return the name of the strategy for the size of a problem."""
    number = rows(spec)
    return "few" if number is not None and number <= FEW else "strategy"


def values_of(spec, target, few, many):
    """Return the values for a problem: those of `many` rows, or the tile of few rows; blocks share k until each SM has two.

    `few` are values for up to 32 rows. For more rows, stages are smaller, because they contain more of A.
    """
    number = rows(spec)
    if target is not None and as_architecture(target).name != "sm_90a":
        return {}
    if number is None or number > FEW:
        return many
    values = {"bm": next(size for size in (8, 16, 32, 64) if size >= number), **few, **({} if number <= 32 else {"bk": 128})}
    tiles, steps = -(-(constant(spec.size("n")) or 8192) // 64), max(1, (constant(spec.size("k")) or 8192) // values["bk"])
    wanted = max(1, min(2 * MULTIPROCESSORS // tiles, steps // 2))
    return {**values, "num_splits": max(size for size in (1, 2, 3, 4, 6, 8, 16) if size <= wanted)}


def of_least_time(spec, tiles):
    """Return the values of the tile with the least estimated time: its waves times its elements, divided by its share of the peak.

    Args: tiles: (values, rows, columns, share) of tiles for an H200; the first is for a number of rows that is known only at run time.
    """
    number, columns = rows(spec), constant(spec.size("n")) or 8192

    def time(tile):
        _, high, wide, share = tile
        return -(-(-(-number // high) * -(-columns // wide)) // MULTIPROCESSORS) * high * wide / share

    return (tiles[0] if number is None else min(tiles, key=time))[0]


def with_epilogue(arrays, epilogue, operands):
    """Return the operands and the last steps of a definition: C is `epilogue`, a formula of the sum `acc`; `operands` are its arrays."""
    last = re.sub(r"\bacc\b", "acc[n,m]", epilogue)
    if last == "acc[n,m]":
        return {**arrays, **operands, "C": "m n"}, {"store": "C[m,n] = acc[n,m]"}
    return {**arrays, **operands, "C": "m n"}, {"epilogue": f"result[n,m] = {last}", "store": "C[m,n] = result[n,m]"}
