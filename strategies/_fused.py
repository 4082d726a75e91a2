"""The parts that fused strategies on tensor cores share: a product of fragments, a store through shared memory, options of a problem."""

from fireiron import *

product = MatMul.tile(16, 16).unroll().mma_tile().done()
"""Fragments in registers, by the instruction of the target."""


staged = Move.load(SRC, SH, Move.done()).converted().swizzle().reuse_buffer().coalesced(8).done()
"""A warp's tile in registers to memory: converted, through shared memory of its own, in pieces of 16 bytes."""


def orders(options, operands):
    """The options of a problem with storage orders by operand: `operands` are those that A, B and C speak of, apart by blanks."""
    given = dict(options)
    given.pop("c_dtype", None)
    for name, others in operands.items():
        if name in given:
            order = given.pop(name)
            given |= dict.fromkeys(others.split(), order)
    return given
