"""Small kernels for single warp instructions, for the simulator, the compilers and the GPU."""

import attrs
import making
import numpy as np

from fireiron import *
from fireiron import ARCHITECTURES
from fireiron.values.tensor import whole_view

FORMS = tuple(one for one in INSTRUCTIONS if isinstance(one, Mma))
"""All forms of mma.sync."""

ORDER = {"row": RowMajor, "col": ColMajor}
EXACT = {float64: 1024, float32: 1024, tf32: 1024, float16: 1024, bfloat16: 256, int8: 100, int32: 1024, float8_e4m3: 16, float8_e5m2: 8}
"""The number of integers from 0 that a type represents exactly (at least); one round of a probe distinguishes as many elements."""

one_each = Move.tile(1, 1).to(Thread).done()


def first_target(capability):
    """The oldest architecture with an instruction."""
    return min((one for one in ARCHITECTURES if one.capability >= capability), key=lambda one: one.capability).name


def layouts_of(form):
    """The storage orders of A and B that a form supports."""
    if form.orders:
        return [tuple(ORDER[order] for order in form.orders)]
    return [(a, b) for a in (RowMajor, ColMajor) for b in (RowMajor, ColMajor)]


def spec_of(form, a=RowMajor, b=ColMajor, sizes=(32, 32, 64), **options):
    """A problem in the types of a form."""
    types = form.factors
    return MatMul(*sizes, dtype=(types["A"], types["B"]), c_dtype=form.result, A=a, B=b, C=RowMajor, **options)(GL, GL, GL)(Kernel)


def strategy_of(form, named=True, tiles=(32, 32), chunk=32, accumulate=False):
    """16x16 of C for each warp, by tiles of a form, through shared memory; `named`: the form is requested by name."""
    given = form if named else None
    warp_tile = (lambda start: start.tile(16, 16).to(Warp).tile(8, 8).to(QuadPair).done()) if form.level == QuadPair else None
    warp_tile = warp_tile or (lambda start: start.tile(16, 16).to(Warp).done())
    chain = MatMul.tile(*tiles).to(Block).epilog(RF, form.result, warp_tile(Move if accumulate else Init), warp_tile(Move))
    chain = chain.split(chunk).load(A, SH, one_each).load(B, SH, one_each).tile(16, 16).to(Warp)
    if form.level == QuadPair:
        return chain.mma_tile(given).load(A, RF, Move.done()).load(B, RF, Move.done()).done(given)
    k = form.shape[2] if named else chunk
    return chain.split(k).load(A, RF, Move.done()).load(B, RF, Move.done()).mma_tile(given).done(given)


def product_of_warpgroups(form, tiles=(128, 64), chunk=64, stages=1, columns=None, orders=None, sizes=None, **options):
    """A GEMM by a `form` of wgmma, with accumulators of 64 rows and `columns` columns (exchanged if swapped).

    `tiles` are those of a block, `chunk` is the number of k elements in shared memory at once; `sizes` are the problem's. `orders` are
    those of A and B: along k by default.
    """
    wide = columns or tiles[0 if form.swapped else 1]
    part = (wide, 64) if form.swapped else (64, wide)
    chain = MatMul.tile(*tiles).to(Block).epilog(RF, form.result, Init.done(), Move.done()).split(chunk)
    chain = chain if stages == 1 else chain.pipeline(stages)
    loads = [Move.coalesced_copy(16 // dtype.bytes).done() for dtype in form.factors]
    chain = chain.load(A, SH, loads[0]).load(B, SH, loads[1]).tile(*part).to(Warpgroup)
    a, b = orders or (RowMajor, ColMajor)
    sizes = sizes or (2 * tiles[0], 2 * tiles[1], 3 * chunk)
    spec = MatMul(*sizes, dtype=form.factors, c_dtype=form.result, A=a, B=b, C=RowMajor, **options)(GL, GL, GL)(Kernel)
    if form.held:
        return chain.load(B if form.swapped else A, RF, Move.done()).split(form.depth).unroll().done(form)(spec)
    return chain.split(form.depth).unroll().done(form)(spec)


# ---------------------------------------------------------------------------------------------- probes


def tags(shape, dtype):
    """Rounds of arrays that distinguish all elements of a shape: the digits of an element's number, exact in the type."""
    number, base = np.arange(np.prod(shape)).reshape(shape), EXACT[dtype]
    while True:
        yield (number % base).astype(dtype.to_numpy())
        number = number // base
        if not number.any():
            return


def probes_of(form):
    """Problems 16x16xk whose results show the position of each element of A, then of B: the other operand is a part of the identity."""
    k = max(form.shape[2], 4)
    types = form.factors
    for start in range(0, k, 16):
        part = np.zeros((k, 16))
        width = min(16, k - start)
        part[np.arange(start, start + width), np.arange(width)] = 1
        for values in tags((16, k), types["A"]):
            yield values, part.astype(types["B"].to_numpy())
        for values in tags((k, 16), types["B"]):
            yield part.T.astype(types["A"].to_numpy()), values


# ---------------------------------------------------------------------------------------------- copies of a warp


@attrs.frozen
class Through(Decomposition):
    """A copy by a warp from shared memory through two register arrays back to shared memory, each step by one instruction."""

    verb = "through"
    load: Executable = None
    move: Executable = None
    store: Executable = None

    def expand(self, spec, context):
        shape, dtype = spec.src.shape, spec.src.dtype
        order = RowMajor if self.store.along else ColMajor
        draft = context.draft()
        first, second = (whole_view(Tensor(draft.fresh(name), shape, dtype, RF, ColMajor)) for name in ("r_one", "r_two"))
        shared = whole_view(Tensor(draft.fresh("t_sh"), shape, dtype, SH, order))
        out = (Tile((1, 1), refinements=(To(Lane),)), Done())
        children = (
            Child("body", Move.on(spec.level, first, second), (Done(self.move),)),
            Child("load", Move.on(spec.level, spec.src, first), (Done(self.load),), prefix="load_"),
            Child("store", Move.on(spec.level, second, shared), (Done(self.store),), prefix="store_"),
            Child("out", Move.on(spec.level, shared, spec.dst), out, prefix="out_"),
        )
        return draft.expansion(children, tuple(making.hole(name) for name in ("load", "body", "store", "out")))


def through(load, move, store, dtype=float16):
    """A kernel that copies 32x32 elements with the three instructions."""
    chain = Move.tile(32, 32).to(Block).load(SRC, SH, one_each)
    chain = chain.to_row_major() if load.along else chain
    spec = Move(32, 32, dtype=dtype, src=ColMajor, dst=RowMajor)(GL, GL)(Kernel)
    return chain.tile(32, 32).to(Warp).then(Through(load, move, store))(spec)


def through_choices():
    """Every ldmatrix, movmatrix and stmatrix in a chain whose registers fit."""
    from fireiron.executable.movmatrix import MOVMATRIX

    for move in MOVMATRIX:
        loads = [one for one in LDMATRIX if one.pairs == move.pairs]
        stores = [one for one in STMATRIX if one.pairs != move.pairs]
        yield from ((load, move, store) for load, store in zip(loads, stores, strict=True))


def loaded_by(ldmatrix):
    """A GEMM whose A (for pairs along k in a row of A) or B is loaded to registers by one form of ldmatrix."""
    chain = MatMul.tile(32, 32).to(Block).epilog(RF, float32, Init.tile(32, 32).to(Warp).done(), Move.tile(32, 32).to(Warp).done())
    chain = chain.split(32).load(A, SH, one_each).load(B, SH, one_each).tile(32, 32).to(Warp)
    by = {A: None, B: None} | {A if ldmatrix.pairs else B: ldmatrix}
    chain = chain.load(A, RF, Move.done(by[A])).load(B, RF, Move.done(by[B])).tile(16, 16).unroll().mma_tile(HMMA_16816_F32).done()
    order = {"A" if ldmatrix.pairs else "B": RowMajor if ldmatrix.along else ColMajor}
    return chain(MatMul(32, 32, 64, dtype=float16, c_dtype=float32, **order)(GL, GL, GL)(Kernel))


def stored_by(stmatrix, dtype=float16):
    """A GEMM whose accumulators are stored through shared memory by one form of stmatrix, or by the one that `done` selects."""
    store = Move.load(SRC, SH, Move.tile(32, 32).to(Warp).done(stmatrix))
    store = (store.to_row_major() if stmatrix is None or stmatrix.along else store).tile(1, 1).to(Thread).done()
    chain = MatMul.tile(32, 32).to(Block).epilog(RF, dtype, Init.tile(32, 32).to(Warp).done(), store)
    chain = chain.split(32).load(A, SH, one_each).load(B, SH, one_each).tile(32, 32).to(Warp)
    chain = chain.load(A, RF, Move.done()).load(B, RF, Move.done()).tile(16, 16).unroll().mma_tile().done()
    return chain(MatMul(32, 32, 64, dtype=float16, c_dtype=float16, accumulator=None)(GL, GL, GL)(Kernel))
