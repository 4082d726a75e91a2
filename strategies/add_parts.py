"""Add partial products: the second kernel of a split-K product (`fireiron.matmul` with few tiles and a large K).

    add_parts(m,n,p)(GL,GL)(Kernel)
      tile(m=1, n=cols*128).to(Block)    add_parts(1,128,p)(GL,GL)(Block)     part of a row
      split(p=bp)                        add_parts(1,128,16)(GL,GL)(Block)    `bp` parts per iteration
      tile(n=cols).to(Thread)            add_parts(1,1,16)(GL,GL)(Thread)     coalesced

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


def by_pieces(programmatic_launch=False, definition=definition, dim="p"):
    """Return one block per piece of a row; with `programmatic_launch` it starts before the previous kernel ends."""
    pieces = definition.tile(m=1, n=cols * THREADS).to(Block)
    pieces = pieces.programmatic_launch() if programmatic_launch else pieces
    return pieces.split(**{dim: bp}).tile(n=cols).to(Thread).done()


def by_columns(definition, dim):
    """Return one thread per column, with the sums of all rows, for an epilogue that reduces columns."""
    return definition.tile(n=COLUMNS).to(Block).split(**{dim: bp}).tile(n=1).to(Thread).done()


strategy = by_pieces()
hopper = by_pieces(programmatic_launch=True)


def spec(M, N, P, **options):
    """Return the problem of P parts of M rows and N columns; C is float16 by default."""
    types = {"P": float32, "C": options.pop("dtype", float16)} | options.pop("types", {})
    return definition(m=M, n=N, p=P, types=types, **options)


BLOCKS = 2112
"""Blocks of 128 threads that run at once on 132 SMs. With more blocks, their number determines the time."""


def blocks(rows, columns):
    """Return the columns per thread and the number of blocks: with four adjacent columns per thread if there are many blocks."""
    along = -(-columns // THREADS)
    if columns % 4 or rows * along <= BLOCKS:
        return 1, rows * along
    return 4, rows * -(-columns // (4 * THREADS))


def values(spec, dim="p"):
    """Return tunables: the columns per thread, and no more parts per iteration than exist."""
    parts = constant(spec.size(dim)) or 16
    rows, columns = (constant(spec.size(name)) for name in "mn")
    width = 1 if rows is None or columns is None else blocks(rows, columns)[0]
    return {"cols": width, "bp": next(one for one in (32, 16, 8, 4, 2, 1) if one <= parts)}


def adding(product, parts):
    """Bind the strategy to the problem that adds `parts` parts of a `MatMul(M,N,K)`; C has the same storage."""
    c = product.operands["C"]
    whole = spec(product.size("m"), product.size("n"), parts, dtype=c.dtype).with_operands(C=c)
    return hopper.with_(**values(whole))(whole)


def finishing(product, parts, text):
    """Return strategies that add `parts` parts of a matmul and apply its epilogue, bound to the problem, the preferred one first.

    `product` is the spec of the matmul with the epilogue `text`. A preceding kernel is not overlapped if an output is zeroed first.
    """
    definition, added = epilogue_of_sum(text)
    whole = sum_of_parts(definition, added, product, parts)
    chosen = values(whole, added.dim)
    strategies = [by_pieces(True, definition, added.dim), by_pieces(False, definition, added.dim)]
    rows = constant(product.size("m"))
    if rows is not None and rows <= MOST_ROWS:
        strategies.append(by_columns(definition, added.dim))
    return [strategy.with_(**{name: chosen[name] for name in strategy.tunables()})(whole) for strategy in strategies]
