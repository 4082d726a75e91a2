"""Hopper, batched: as many products as a stack has matrices, by the strategy hopper.

    MatMul(B,M,N,K)(GL,GL,GL)(Kernel)
      repack(A), repack(B)             copied in front, as in hopper, all matrices by one launch
      tile(b=1).to(Block)              MatMul(1,M,N,K)(GL,GL,GL)(Kernel)         a block's tile is of one matrix
      tile(bm,bn).to(Block)            MatMul(1,128,256,K)(GL,GL,GL)(Block)
        .rasterize(group_m=8).persistent()         blocks take the tiles of all matrices, one after the other
      ...                              as in hopper

The loads of the next matrix are under way while a tile of this one is stored. TMA takes arrays of three dimensions as they lie: matrices
of either storage order, any multiple of 16 bytes apart, and one matrix for the whole stack, `signature="bmk,kn->bmn"`. Of sizes known at
run time say a bound, `sym("M", high=65536)`: addresses of a stack have to fit 64 bits.
"""

from fireiron import *
from fireiron.strategies import hopper

SIZES = (1024, 1024, 1024)

strategy = MatMul.repack(A).repack(B).tile(b=1).to(Block).then(hopper.product)

integers = MatMul.repack(A).repack(B).tile(b=1).to(Block).then(hopper.by_tiles(int32))


def spec(M, N, K, batch=16, **options):
    """`batch` products of row-major halves, float32 inside, unless said otherwise; A, B and C say how each matrix of a stack is stored."""
    options = {"dtype": float16, "c_dtype": float16, "signature": "bmk,bkn->bmn", **options}
    sizes = {"b": batch, "m": M, "n": N, "k": K}
    left, right, result = options["signature"].replace("->", ",").split(",")
    stored = {name: stack(options.get(name, RowMajor), dims, sizes) for name, dims in (("A", left), ("B", right), ("C", result))}
    return MatMul(*(sizes[dim] for dim in result), K, **{**options, **stored})(GL, GL, GL)(Kernel)


def stack(order, dims, sizes):
    """Column-major matrices one behind the other; a matrix, row-major ones and storage by strides as they are."""
    if order != ColMajor or len(dims) == 2:
        return order
    rows, columns = (dim for dim in dims if dim != "b")
    return Strides(**{"b": sizes[rows] * sizes[columns], rows: 1, columns: sizes[rows]})


def defaults(M, N, K):
    """The tiles of hopper, and smaller ones for small matrices."""
    return (*hopper.defaults(M, N, K), *hopper.SMALLER)
