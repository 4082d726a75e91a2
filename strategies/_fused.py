"""The parts that fused strategies on tensor cores share: a product, a store through shared memory, options of a problem."""

from fireiron import *
from fireiron.values.expr import constant
from fireiron.values.machine import as_architecture

lookahead = Tunable("lookahead", 2, 1)
"""Steps of a product whose fragments are in registers: of two the second one's are loaded before the first is computed."""


product = MatMul.tile(16, 16).unroll().mma_tile().done()
"""Fragments in registers, by the instruction of the target."""


staged = Move.load(SRC, SH, Move.done()).cast_on_copy().swizzle_storage().reuse_buffer().coalesced_copy(8).done()
"""A warp's tile in registers to memory: converted, through shared memory of its own, in pieces of 16 bytes."""

by_warpgroups = MatMul.split(16).unroll().done()
"""Factors in shared memory, or the first in registers, by wgmma (Hopper)."""


def stored(epi_n):
    """A warpgroup's tile in registers to memory: converted, by stmatrix, in chunks of so many columns through shared memory of its own,
    by TMA (Hopper).
    """
    return Move.tile(64, epi_n).unroll().load(SRC, SH, Move.done()).cast_on_copy().done()


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


def before(capability, target):
    """Whether a target is older than a compute capability, such as 80; one that is not said counts as new."""
    return target is not None and as_architecture(target).capability < capability


def unaligned(spec):
    """Whether rows of a product have any length: their number of elements, and what it is a multiple of, is known at run time only."""
    sizes = [spec.size(dim) for dim in "nk"]
    return any(constant(size) is None and constant(size % 8) != 0 for size in sizes)


def fitting(spec, target=None):
    """The values for a product's spec: rows of unknown or odd size need registers for addresses, so fragments are not loaded ahead.

    Before Turing a lane has more of a fragment, so a warp has fewer rows.
    """
    even = all((constant(spec.size(dim)) or 1) % 8 == 0 for dim in "nk")
    return ({} if even else {"lookahead": 1}) | ({"wm": 32} if before(75, target) else {})


def few_rows(spec, target=None):
    """The values for a product whose registers are all in use: before Turing tiles of half as many rows; before Ampere for any rows."""
    return {"bm": 64, "wm": 32} if before(75, target) or (before(80, target) and unaligned(spec)) else {}
