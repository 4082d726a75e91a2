"""The parts that strategies for rows share: rows dealt to warps, loads of 16 bytes a lane, and how many of each a row of so many elements wants."""

from fireiron import *
from fireiron.values.expr import constant

LANES = 32
WARPS = 32
"""The most warps of a block."""

rows = Tunable("rows", 1, 2, 4, 8, 16)
turns = Tunable("turns", 2, 1, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 64)
vector = Tunable("vector", 8, 4, 2, 1)

dealt = Move.tile(1, LANES * vector * turns).to(Warp).tile(1, vector).to(Lane).done()
"""A row's pieces to warps, and in `turns` turns `vector` elements of each to lanes."""


def fitting(spec, warps):
    """The values of the tunables for a spec whose rows go to as many warps as `warps` says of how many pieces of 32 lanes a row has.

    A lane takes 16 bytes at a time where they divide a row. Rows of one or two warps share a block of four.
    """
    size = constant(spec.size("n"))
    if size is None:
        raise ArgumentError("a row in registers has a size that is known", got=spec.size("n"), hint="a number for N; M may be a symbol")
    widest = 16 // spec.operands["X"].dtype.bytes
    lane = next(one for one in (8, 4, 2, 1) if one <= widest and size % one == 0 and (size > one or one == 1))
    pieces = -(-size // (LANES * lane))
    parts = min(warps(pieces * lane), pieces, WARPS)
    taken = next((one for one in sorted(turns.values) if one * parts >= pieces), max(turns.values))
    parts = -(-pieces // taken)
    return {"rows": max(4 // parts, 1), "turns": taken, "vector": lane}


def warps_of(elements):
    """How many warps share a row, by how many elements a lane of one warp would have: up to 32 a lane of one, then 16 to 32 of several."""
    return next((one for one in (1, 2, 4, 8, 16) if elements <= 32 * one), WARPS)
