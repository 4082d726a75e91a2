"""Problems and tiles of the tests of the strategy hopper, in the simulator and on a GPU."""

from fireiron import *
from fireiron.strategies import hopper, hopper_skinny, hopper_small


def tiles(module, *sizes):
    """The default values of a strategy, as pairs."""
    return tuple(tuple(values.items()) for values in module.defaults(*sizes))


NARROW = (
    (("bm", 64), ("bn", 96), ("bk", 64), ("wm", 64), ("wn", 96), ("epi_n", 32), ("stages", 8)),
    (("bm", 32), ("bn", 64), ("bk", 128), ("wm", 32), ("wn", 64), ("epi_m", 32), ("stages", 4)),
    (("bm", 16), ("bn", 64), ("bk", 64), ("wm", 16), ("wn", 64), ("epi_m", 16), ("stages", 16)),
)
"""Tiles of one warpgroup."""

TILES = tiles(hopper, 4096, 4096, 4096) + NARROW
"""Values of the tunables of `hopper`, as pairs."""

SMALL_TILES = tiles(hopper_small, 512, 512, 512)
SKINNY_TILES = tuple(
    tile for M, N in ((16, 4096), (32, 4096), (64, 4096), (4096, 16), (4096, 32), (4096, 64)) for tile in tiles(hopper_skinny, M, N, 4096)
)

ORDERS = ("NNN", "NTN", "TNN", "TTN", "NNT", "TTT")
"""Storage of A, B and C: row-major (N) or column-major (T)."""

SIZES = ((1, 1, 1), (8, 8, 8), (3, 5, 7), (65, 63, 33), (72, 129, 40), (200, 64, 57))
"""M, N, K from 1, odd, and such that TMA supports both arrays, one, or none."""


def float16_gemm(M, N, K, orders="NNN", **options):
    """A float16 GEMM, row-major unless specified otherwise."""
    layouts = {name: RowMajor if order == "N" else ColMajor for name, order in zip("ABC", orders, strict=True)}
    return MatMul(M, N, K, **{"dtype": float16, "c_dtype": float16, **layouts, **options})(GL, GL, GL)(Kernel)
