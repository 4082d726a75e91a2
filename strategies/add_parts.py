"""Add partial products: the second kernel of a split-K product (`fireiron.matmul` with few tiles and a large K).

    add_parts(m,n,p)(GL,GL)(Kernel)
      tile(m=height, n=width).to(Block)  add_parts(1,128,p)(GL,GL)(Block)     part of a row, or of several rows
      split(p=bp)                        add_parts(1,128,16)(GL,GL)(Block)    `bp` parts per iteration
      tile(m=1, n=cols).to(Thread)       add_parts(1,1,16)(GL,GL)(Thread)     coalesced

P[p,m,n] are products over parts of K, float32. C[m,n] is their sum, in the order of p. `hopper` uses programmatic dependent launch.
`finishing` applies the epilogue of a matmul to the sums.
"""

from fireiron import *
from fireiron.specs.epilogue import epilogue_of_sum, sum_of_parts
from fireiron.values.expr import constant

SIZES = (128, 128, 16)

THREADS = 128

COLUMNS = 32
"""Columns per block of `by_columns`."""

MOST_ROWS = 32
"""Maximum number of rows of `by_columns`: a thread keeps their sums in registers."""

cols = Tunable("cols", 1, 2, 4)
height = Tunable("height", 1, 2, 4)
width = Tunable("width", 128, 256, 512)
bp = Tunable("bp", 16, 1, 2, 4, 8, 32)

definition = Fused(
    name="add_parts",
    dims="m n p",
    loop="p",
    operands={"P": "p m n", "C": "m n"},
    init={"acc": "acc[m,n] = 0"},
    body={"add": "acc[m,n] += sum(p, P[p,m,n])"},
    final={"store": "C[m,n] = acc[m,n]"},
)


def by_pieces(programmatic_launch=False, definition=definition, dim="p", vectors=None):
    """Return one block per piece of rows; with `programmatic_launch` it starts before the previous kernel ends.

    A thread loads the columns of a part at once of the operand `vectors`.
    """
    pieces = definition.tile(m=height, n=width).to(Block)
    pieces = pieces.programmatic_launch() if programmatic_launch else pieces
    thread = pieces.split(**{dim: bp}).tile(m=1, n=cols).to(Thread)
    return (thread.load(vectors, RF, Move.tile(1, 1, cols).unroll().done()) if vectors else thread).done()


def by_columns(definition, dim):
    """Return one thread per column, with the sums of all rows, for an epilogue that reduces columns."""
    return definition.tile(n=COLUMNS).to(Block).split(**{dim: bp}).tile(n=1).to(Thread).done()


strategy = by_pieces()
hopper = by_pieces(programmatic_launch=True)
hopper_vectors = by_pieces(programmatic_launch=True, vectors="P")


def spec(M, N, P, **options):
    """Return the problem of P parts of M rows and N columns; C is float16 by default."""
    types = {"P": float32, "C": options.pop("dtype", float16)} | options.pop("types", {})
    return definition(m=M, n=N, p=P, types=types, **options)


BLOCKS = 2112
"""Blocks of 128 threads that run at once on 132 SMs. With more blocks, their number determines the time."""

MOST_PARTS = 32
MOST_VECTORS = 8
"""Maximum number of parts per iteration, of single elements and of vectors of four: a thread keeps them in registers."""

PIECES = ((1, 4 * THREADS), (2, 2 * THREADS), (4, THREADS))
"""Rows and columns of a block whose threads have four columns each."""


def piece(rows, columns):
    """Return the columns per thread, and the rows and columns of a block.

    If there are many blocks, a thread has four adjacent columns, and a block has the number of rows with which no fewer blocks suffice: a
    piece of a short row would leave threads idle.
    """
    if columns % 4 or rows * -(-columns // THREADS) <= BLOCKS:
        return 1, 1, THREADS
    return 4, *min(PIECES, key=lambda sides: -(-rows // sides[0]) * -(-columns // sides[1]))


def blocks(rows, columns):
    """Return the number of blocks."""
    _, high, wide = piece(rows, columns)
    return -(-rows // high) * -(-columns // wide)


def values(spec, dim="p"):
    """Return tunables: the piece of a block and of a thread, and no more parts per iteration than exist."""
    parts = constant(spec.size(dim)) or 16
    rows, columns = (constant(spec.size(name)) for name in "mn")
    sides = (1, 1, THREADS) if rows is None or columns is None else piece(rows, columns)
    at_once = MOST_VECTORS if sides[0] > 1 else MOST_PARTS
    return {**dict(zip(("cols", "height", "width"), sides)), "bp": next(one for one in (32, 16, 8, 4, 2, 1) if one <= min(parts, at_once))}


def adding(product, parts):
    """Bind the strategy to the problem that adds `parts` parts of a `MatMul(M,N,K)`; C has the same storage."""
    c = product.operands["C"]
    whole = spec(product.size("m"), product.size("n"), parts, dtype=c.dtype).with_operands(C=c)
    chosen = values(whole)
    return (hopper if chosen["cols"] == 1 else hopper_vectors).with_(**chosen)(whole)


def finishing(product, parts, text):
    """Return strategies that add `parts` parts of a matmul and apply its epilogue, bound to the problem, the preferred one first.

    `product` is the spec of the matmul with the epilogue `text`. A preceding kernel is not overlapped if an output is zeroed first.
    """
    definition, added = epilogue_of_sum(text)
    whole = sum_of_parts(definition, added, product, parts)
    chosen = values(whole, added.dim)
    vectors = added.operand if chosen["cols"] > 1 else None
    strategies = [by_pieces(overlapped, definition, added.dim, vectors) for overlapped in (True, False)]
    rows = constant(product.size("m"))
    if rows is not None and rows <= MOST_ROWS:
        strategies.append(by_columns(definition, added.dim))
    return [strategy.with_(**{name: chosen[name] for name in strategy.tunables()})(whole) for strategy in strategies]
