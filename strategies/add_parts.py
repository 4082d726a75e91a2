"""Parts of a product added up: the second kernel of a product whose K is cut into parts (`fireiron.matmul` of few tiles and much K).

    add_parts(m,n,p)(GL,GL)(Kernel)
      tile(m=1, n=cols*128).to(Block)    add_parts(1,128,p)(GL,GL)(Block)     a piece of a row
      split(p=bp)                        add_parts(1,128,16)(GL,GL)(Block)    so many parts at once
      tile(n=cols).to(Thread)            add_parts(1,1,16)(GL,GL)(Thread)     neighbours read neighbours

P[p,m,n] are products of parts of K, float32; C[m,n] is their sum, in the order of p. `hopper` begins while the kernel in front of it ends.
"""

from fireiron import *
from fireiron.values.expr import constant

SIZES = (128, 128, 16)

THREADS = 128

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


def by_pieces(chained=False):
    """A block for each piece of a row; `chained`: it begins while the kernel in front of it ends."""
    pieces = definition.tile(m=1, n=cols * THREADS).to(Block)
    pieces = pieces.programmatic_launch() if chained else pieces
    return pieces.split(p=bp).tile(n=cols).to(Thread).done()


strategy = by_pieces()
hopper = by_pieces(chained=True)


def spec(M, N, P, **options):
    """P parts of M rows and N columns; C of halves unless said otherwise."""
    types = {"P": float32, "C": options.pop("dtype", float16)} | options.pop("types", {})
    return definition(m=M, n=N, p=P, types=types, **options)


def values(spec):
    """The tunables for a problem: a column to a thread, and no more parts at once than there are."""
    parts = constant(spec.size("p")) or 16
    return {"cols": 1, "bp": next(one for one in (32, 16, 8, 4, 2, 1) if one <= parts)}


def adding(product, parts):
    """The strategy, bound to what adds up so many parts of a product `MatMul(M,N,K)`: C is stored as there."""
    c = product.operands["C"]
    whole = spec(product.size("m"), product.size("n"), parts, dtype=c.dtype).with_operands(C=c)
    return hopper.with_(**values(whole))(whole)
