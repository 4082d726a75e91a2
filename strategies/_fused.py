"""The parts that fused strategies on tensor cores share: a product, a store through shared memory, options of a problem."""

from fireiron import *
from fireiron.values.expr import constant

ahead = Tunable("ahead", 2, 1)
"""Steps of a product whose fragments are in registers: of two the second one's are loaded before the first is computed."""


product = MatMul.tile(16, 16).unroll().mma_tile().done()
"""Fragments in registers, by the instruction of the target."""


staged = Move.load(SRC, SH, Move.done()).converted().swizzle().reuse_buffer().coalesced(8).done()
"""A warp's tile in registers to memory: converted, through shared memory of its own, in pieces of 16 bytes."""

by_warpgroups = MatMul.split(16).unroll().done()
"""Factors in shared memory, or the first in registers, by wgmma (Hopper)."""


def stored(chunk):
    """A warpgroup's tile in registers to memory: converted, by stmatrix, in chunks of so many columns through shared memory of its own,
    by TMA (Hopper).
    """
    return Move.tile(64, chunk).unroll().load(SRC, SH, Move.done()).converted().done()


by_engine = stored(64)
"""The same, of chunks that take little of the room beside the stages."""


def orders(options, operands):
    """The options of a problem with storage orders by operand: `operands` are those that A, B and C speak of, apart by blanks."""
    given = dict(options)
    given.pop("c_dtype", None)
    for name, others in operands.items():
        if name in given:
            order = given.pop(name)
            given |= dict.fromkeys(others.split(), order)
    return given


def fitting(spec):
    """The values for a product's spec: rows of unknown or odd size need registers for addresses, so fragments are not loaded ahead."""
    even = all((constant(spec.size(dim)) or 1) % 8 == 0 for dim in "nk")
    return {} if even else {"ahead": 1}
