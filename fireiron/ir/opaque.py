"""Accesses of which only the whole warp's part is specified: WMMA fragments, and the tiles that they are loaded from.

The IR gives each lane a part of such a tile, so that ownership, races and the simulator need no special case. The printed
code names the tile as a whole: its first element, which is where lane 0 would begin.
"""

from __future__ import annotations

import attrs

from fireiron.ir import Access, Exec, Kernel, Let, Stmt, edited, lets, variables
from fireiron.values.expr import Var
from fireiron.values.machine import Warp
from fireiron.values.units import index_in


def lane_variables(kernel: Kernel) -> frozenset[Var]:
    """The variables that are a thread's number in its warp."""
    lane = index_in(Warp, kernel.thread)
    named = {var for var, value in lets(kernel.body).items() if value == lane}
    return frozenset(named | ({lane} if isinstance(lane, Var) else set()))


def tile_origin(kernel: Kernel, access: Access) -> Access:
    """The access of lane 0, whose first element is the first of the warp's tile."""
    return access.substitute(dict.fromkeys(lane_variables(kernel), 0))


def at_tiles(kernel: Kernel) -> Kernel:
    """The kernel with the accesses of opaque statements at their tiles, without names that only their lanes needed."""

    def whole(statement: Exec) -> Exec:
        if not is_opaque(kernel, statement):
            return statement
        return attrs.evolve(statement, accesses=tuple(tile_origin(kernel, access) for access in statement.accesses))

    body = edited(kernel.body, whole)
    return kernel if body == kernel.body else attrs.evolve(kernel, body=_without_unused(kernel, body))


def is_opaque(kernel: Kernel, statement: Exec) -> bool:
    """Whether a statement touches fragments."""
    return any(kernel.buffer(access.buffer).memory.fragment is not None for access in statement.accesses)


def _without_unused(kernel: Kernel, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    """The program without names at its top that nothing refers to; what a buffer's holder refers to stays."""
    used = {var for buffer in kernel.buffers for value in buffer.holder for var in value.variables()}
    needed = variables(one for one in body if not isinstance(one, Let))
    used = (used - lane_variables(kernel)) | needed
    kept: list[Stmt] = []
    for statement in reversed(body):
        if isinstance(statement, Let) and statement.var not in used:
            continue
        if isinstance(statement, Let):
            used |= statement.value.variables()
        kept.append(statement)
    return tuple(reversed(kept))
