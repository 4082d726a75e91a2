"""The parts that strategies for rows share: rows dealt to warps by 16 bytes a lane, and how many warps a row of so many elements wants."""

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


def fitting(spec):
    """The values of the tunables for a spec, by the size of its rows and not by measuring: at most 32 elements a lane, as long as there
    are warps. Rows of one or two warps share a block of four.

    A lane takes 16 bytes at a time where they divide a row; where the last of them do not fill a warp, half as many, as conditions want
    registers.
    """
    size = constant(spec.size("n"))
    if size is None:
        raise ArgumentError("a row in registers has a size that is known", got=spec.size("n"), hint="a number for N; M may be a symbol")
    widest = 16 // spec.operands["X"].dtype.bytes
    lane = next(one for one in vector.values if one <= widest and size % one == 0 and (size > one or one == 1))
    pieces = -(-size // (LANES * lane))
    most = 32 if size % (LANES * lane) == 0 or lane == 1 else 16
    warps = next((one for one in (1, 2, 4, 8, 16) if pieces * lane <= most * one), WARPS)
    taken = next((one for one in sorted(turns.values) if one * warps >= pieces), max(turns.values))
    return {"rows": max(4 // -(-pieces // taken), 1), "turns": taken, "vector": lane}
