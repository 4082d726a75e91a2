"""Parts shared by the four GEMM strategies: coalesced vector copies for either storage order."""

from fireiron import *

bm = Tunable("bm", 128, 64, 256)
bn = Tunable("bn", 128, 64, 256)
bk = Tunable("bk", 8, 16, 32)


def vector_tile(order):
    """Return the tile of four contiguous elements, which a thread copies as a vector."""
    return (4, 1) if order == ColMajor else (1, 4)


def copy(order):
    """Return a coalesced copy of a matrix stored in this order."""
    return Move.tile(*vector_tile(order)).to(Thread).layout(order).done()


def gemm(a, b, c=ColMajor):
    """Return a tiled GEMM for storage orders of A, B and C: 8 x 8 elements per thread, shared tiles with m and n contiguous."""
    lanes = Strided((4, 32), (4, 16))
    init = Init.tile(64, 32).to(Warp).tile(lanes).to(Lane).tile(1, 1).unroll().done()
    store = Move.tile(64, 32).to(Warp).tile(lanes).to(Lane).tile(*vector_tile(c)).unroll().done()
    return (
        MatMul.tile(bm, bn)
        .to(Block)
        .epilog(RF, init, store)
        .split(bk)
        .load(A, SH, copy(a))
        .to_col_major()
        .pad(4)
        .no_sync()
        .load(B, SH, copy(b))
        .to_row_major()
        .pad(4)
        .tile(64, 32)
        .to(Warp)
        .tile(lanes)
        .to(Lane)
        .split(1)
        .unroll()
        .load(A, RF, Move.tile(4, 1).unroll().done())
        .load(B, RF, Move.tile(1, 4).unroll().done())
        .tile(1, 1)
        .unroll()
        .done()
    )
