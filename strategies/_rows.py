"""The parts that strategies for rows share: rows dealt to warps by 16 bytes a lane, and how many warps a row of so many elements wants."""

from fireiron import *
from fireiron.values.expr import constant

LANES = 32
WARPS = 32
"""The most warps of a block."""

WARPS_OF = ((16, 1), (32, 2), (64, 4), (256, 8), (512, 16))
"""How many warps share a row, by how many elements a lane of one warp would have of it, at most (1024 elements: two, on an H200)."""

rows = Tunable("rows", 1, 2, 4, 8, 16)
iterations = Tunable("iterations", 2, 1, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 64)
vector = Tunable("vector", 8, 4, 2, 1)

pieces = Move.tile(1, LANES * vector * iterations).to(Warp).tile(1, vector).to(Lane)
"""A row's pieces to warps, and in `iterations` turns `vector` elements of each to lanes."""

dealt = pieces.done()
"""A copy that leaves them in the caches."""

once = pieces.done(EVICT_FIRST)
"""A copy of what nobody reads again."""

streamed = Move.done(EVICT_FIRST)
"""A copy of what threads hold, to memory that nobody reads soon."""


def fitting(spec, few=0, at_once=0):
    """The values of the tunables for a spec, by the size of its rows and not by measuring: the more elements, the more warps share a row.

    Of no more than `few` rows those that two warps would share are shared by four: more loads are under way when there is little to load.
    Of more, up to `at_once`, one warp has a row: all blocks are there at once, and no warp waits for another.
    Rows of one or two warps share a block of four. A lane takes 16 bytes at a time where they divide a row; where the last of them do not
    fill a warp it has 16 elements at most, as long as there are warps: conditions want registers.
    """
    size = constant(spec.size("n"))
    if size is None:
        raise ArgumentError("a row in registers has a size that is known", got=spec.size("n"), hint="a number for N; M may be a symbol")
    widest = 16 // spec.operands["X"].dtype.bytes
    lane = next(one for one in vector.values if one <= widest and size % one == 0 and (size > one or one == 1))
    pieces = -(-size // (LANES * lane))
    warps = next((count for most, count in WARPS_OF if pieces * lane <= most), WARPS)
    rows_known = constant(spec.size("m"))
    if warps == 2 and rows_known is not None and rows_known <= max(few, at_once):
        warps = 4 if rows_known <= few else 1
    if lane > 1 and size % (LANES * lane) and pieces * lane > 16 * warps:
        warps = min(2 * warps, WARPS)
    taken = next((one for one in sorted(iterations.values) if one * warps >= pieces), max(iterations.values))
    return {"rows": max(4 // -(-pieces // taken), 1), "iterations": taken, "vector": lane}
