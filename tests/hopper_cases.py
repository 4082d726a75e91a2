"""Problems and tiles on which the strategy hopper is tested, in the simulator and on a GPU."""

from fireiron import *
from fireiron.language.library import HOPPER_TILES

TILES = tuple(tuple(values.items()) for _, values in HOPPER_TILES)
"""Values of the tunables, as pairs."""

ORDERS = ("NNN", "NTN", "TNN", "TTN", "NNT", "TTT")
"""Storage of A, B and C: by rows (N) or by columns (T)."""

SIZES = ((1, 1, 1), (8, 8, 8), (3, 5, 7), (65, 63, 33), (72, 129, 40), (200, 64, 57))
"""M, N, K from 1, odd, and such that TMA takes both arrays, one, or none."""


def halves(M, N, K, orders="NNN", **options):
    """A product of matrices of halves, stored by rows unless said otherwise."""
    layouts = {name: RowMajor if order == "N" else ColMajor for name, order in zip("ABC", orders, strict=True)}
    return MatMul(M, N, K, **{"dtype": float16, "c_dtype": float16, **layouts, **options})(GL, GL, GL)(Kernel)
