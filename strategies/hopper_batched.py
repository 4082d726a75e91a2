"""Batched Hopper GEMM: the strategy `hopper` for each matrix of a batch.

    MatMul(B,M,N,K)(GL,GL,GL)(Kernel)
      repack(A), repack(B)             a preceding copy kernel as in `hopper`, one launch for all matrices
      tile(b=1).to(Block)              MatMul(1,M,N,K)(GL,GL,GL)(Kernel)         the tile of a block is in one matrix
      tile(bm,bn).to(Block)            MatMul(1,128,256,K)(GL,GL,GL)(Block)
        .rasterize(group_m=8).persistent()         persistent blocks compute the tiles of all matrices
      ...                              as in `hopper`

The loads of the next matrix are in flight while a tile of this one is stored. TMA reads three-dimensional arrays directly: matrices
of either storage order, any multiple of 16 bytes apart, and one matrix for the whole batch, `signature="bmk,kn->bmn"`. `any_height` has
tiles of any height that is a multiple of 8, as in `hopper`. Give a run-time size
an upper bound, `sym("M", high=65536)`: the addresses of a batch must fit in 64 bits.
"""

from fireiron import *
from fireiron.strategies import hopper

SIZES = (1024, 1024, 1024)

strategy = MatMul.repack(A).repack(B).tile(b=1).to(Block).then(hopper.product)

any_height = MatMul.repack(A).repack(B).tile(b=1).to(Block).then(hopper.of_any_height())

integers = MatMul.repack(A).repack(B).tile(b=1).to(Block).then(hopper.by_tiles(int32))


def spec(M, N, K, batch=16, **options):
    """Return the problem: row-major float16 with float32 accumulators by default; A, B and C are storage orders of a matrix."""
    options = {"dtype": float16, "c_dtype": float16, "signature": "bmk,bkn->bmn", **options}
    sizes = {"b": batch, "m": M, "n": N, "k": K}
    left, right, result = options["signature"].replace("->", ",").split(",")
    stored = {name: stack(options.get(name, RowMajor), dims, sizes) for name, dims in (("A", left), ("B", right), ("C", result))}
    return MatMul(*(sizes[dim] for dim in result), K, **{**options, **stored})(GL, GL, GL)(Kernel)


def stack(order, dims, sizes):
    """Return the strides of contiguous column-major matrices; a single matrix and other orders are returned unchanged."""
    if order != ColMajor or len(dims) == 2:
        return order
    rows, columns = (dim for dim in dims if dim != "b")
    return Strides(**{"b": sizes[rows] * sizes[columns], rows: 1, columns: sizes[rows]})


def defaults(M, N, K):
    """Return the tiles of `hopper`, and smaller ones for small matrices."""
    return (*hopper.defaults(M, N, K), *hopper.SMALLER)
