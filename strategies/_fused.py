"""Parts shared by fused strategies on tensor cores: a matrix product, stores through shared memory, options of a problem."""

from fireiron import *
from fireiron.values.expr import constant
from fireiron.values.machine import as_architecture

lookahead = Tunable("lookahead", 2, 1)
"""Number of steps whose fragments are in registers: with 2 the next fragments are loaded before the current step is computed."""


product = MatMul.tile(16, 16).unroll().mma_tile().done()
"""Fragments in registers, by the instruction of the target."""


staged = Move.load(SRC, SH, Move.done()).cast_on_copy().swizzle_storage().reuse_buffer().coalesced_copy(8).done()
"""Store a warp's tile: convert, copy through the warp's part of shared memory, in pieces of 16 bytes."""

by_warpgroups = MatMul.split(16).unroll().done()
"""Operands in shared memory, or A in registers, by wgmma (Hopper)."""


def stored(epi_n):
    """Store a warpgroup's tile: convert, stmatrix to shared memory in pieces of `epi_n` columns, then TMA (Hopper)."""
    return Move.tile(64, epi_n).unroll().load(SRC, SH, Move.done()).cast_on_copy().done()


by_engine = stored(64)
"""The same with pieces of 64 columns, which need little shared memory in addition to the stages."""


def orders(options, operands):
    """Return the options of a problem with storage orders by operand; `operands` maps A, B and C to names, separated by blanks."""
    given = dict(options)
    given.pop("c_dtype", None)
    for name, others in operands.items():
        if name in given:
            order = given.pop(name)
            given |= dict.fromkeys(others.split(), order)
    return given


def before(capability, target):
    """Whether a target is older than a compute capability such as 80; False if no target is given."""
    return target is not None and as_architecture(target).capability < capability


def unaligned(spec):
    """Whether a row length is a run-time size that is not a known multiple of 8."""
    sizes = [spec.size(dim) for dim in "nk"]
    return any(constant(size) is None and constant(size % 8) != 0 for size in sizes)


def fitting(spec, target=None):
    """Return values for a spec: if the row length is unknown or odd, addresses need registers, so fragments are not loaded early.

    Before Turing a lane has more elements of a fragment, so a warp has fewer rows.
    """
    even = all((constant(spec.size(dim)) or 1) % 8 == 0 for dim in "nk")
    return ({} if even else {"lookahead": 1}) | ({"wm": 32} if before(75, target) else {})


def few_rows(spec, target=None):
    """Return values for a product that uses all registers: half as many rows before Turing, and before Ampere for unknown row lengths."""
    return {"bm": 64, "wm": 32} if before(75, target) or (before(80, target) and unaligned(spec)) else {}
