"""Sparse matmuls of several tests: small tiles for each form of mma.sp, and inputs whose sums are exact."""

import numpy as np

from fireiron import *
from fireiron.measure.inputs import random_inputs


def sparse_chain(kk, accumulator, order=ColMajor, depth=2, stages=2):
    """A strategy with tiles of 32 x 32 per warp, for an instruction with `kk` elements of k."""
    copy = Move.coalesced_copy(16).done()
    warps = (Init.tile(32, 32).to(Warp).done(), Move.tile(32, 32).to(Warp).done())
    return (
        SparseMatMul.tile(64, 32).to(Block).epilog(RF, accumulator, *warps).split(depth * kk).pipeline(stages)
        .load(A, SH, copy).swizzle_storage().load("E", SH, copy).load(B, SH, copy).swizzle_storage()
        .tile(32, 32).to(Warp).split(kk).unroll().load(A, RF, Move.done()).load("E", RF, Move.done()).load(B, RF, Move.done())
        .tile(16, 8).unroll().done()
    )  # fmt: skip


def sparse_ring(accumulator, stages=2, bk=128, columns=64, order=RowMajor):
    """A strategy with a producer warp, for wgmma.sp; `order` is the storage order of the metadata."""
    loads = (
        SparseMatMul.tile(128, columns).to(Block).epilog(RF, accumulator).split(bk).pipeline(stages).warp_specialize()
        .load(A, SH, Move.done()).load("E", SH, Move.done())
    )  # fmt: skip
    loads = loads.to_row_major() if order == RowMajor else loads.to_col_major().swizzle_storage()
    return loads.load(B, SH, Move.done()).tile(64, columns).to(Warpgroup).load("E", RF, Move.done()).done()


def sparse_spec(form, sizes, **options):
    """A row-major problem for a form of mma.sp; B of 8-bit elements is contiguous along k."""
    orders = {"A": RowMajor, "E": RowMajor, "B": RowMajor if form.factors[0].bytes == 2 else ColMajor, "C": RowMajor, **options}
    return SparseMatMul(*sizes, dtype=form.factors, c_dtype=form.result, **orders)(GL, GL, GL, GL)(Kernel)


def sparse_product(form, sizes=(64, 64, 128)):
    """A bound strategy with a form of mma.sp or wgmma.sp."""
    if hasattr(form, "mechanism") and form.mechanism.in_registers:
        return sparse_ring(form.result)(sparse_spec(form, (128, 64, 256)))
    return sparse_chain(form.shape[2], form.result)(sparse_spec(form, sizes))


def exact_inputs(spec, sizes=None, seed=0):
    """Small integers for A, B and operands of an epilogue, whose sums are exact in any order, and random metadata."""
    generator = np.random.default_rng(seed)
    arrays = random_inputs(spec, sizes or {}, generator)
    small = {name: generator.integers(-2, 3, array.shape).astype(array.dtype) for name, array in arrays.items() if name != "E"}
    return arrays | small
