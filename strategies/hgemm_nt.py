"""Listing 4 in half precision, B transposed (HGEMM_NT): the same strategy with a different load of B and packed multiply-adds.

    maxwell, with
      load(B, SH)              lanes along n, adjacent lanes at adjacent addresses of the row-major B
      tile(2,1).unroll()       MatMul(2,1,1)(RF,RF,RF)(Lane)
      done()                   HFMA2

The paper's kernel has a load strategy per operand because one operand is transposed (section 5.1).
"""

from fireiron import *
from fireiron.strategies.maxwell import strategy as maxwell

SIZES = (1536, 1024, 2048)

load_b = Move.tile(8, 16).to(Warp).tile(2, 16).unroll().tile(1, 1).to(Lane).done()

other_load = MatMul.load(B, SH, load_b).to_row_major().pad(8).steps[0]
pairs = MatMul.tile(2, 1).unroll().steps[0]

strategy = maxwell.at(Load, B).replace(other_load).at(Tile, index=3).replace(pairs)


def spec(M, N, K, **options):
    """Return the problem: float16 throughout; by default A and C are column-major, B row-major."""
    return MatMul(M, N, K, **{"dtype": float16, "B": RowMajor} | options)(GL, GL, GL)(Kernel)
