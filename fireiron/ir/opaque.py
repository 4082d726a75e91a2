"""Accesses of a whole warp whose distribution over lanes is unspecified: WMMA fragments, and the tiles that they are loaded from.

The IR assigns each lane a part of such a tile. So ownership, race checks and the simulator need no special case. The printed code names the
tile as a whole, by its first element, which lane 0 owns.
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
    """The access of lane 0, whose first element is the first element of the warp's tile."""
    return access.substitute(dict.fromkeys(lane_variables(kernel), 0))


def at_tiles(kernel: Kernel) -> Kernel:
    """The kernel with the accesses of opaque statements replaced by their tiles, without names that only their lanes used."""

    def whole(statement: Exec) -> Exec:
        if not is_opaque(kernel, statement):
            return statement
        return attrs.evolve(statement, accesses=tuple(tile_origin(kernel, access) for access in statement.accesses))

    body = edited(kernel.body, whole)
    return kernel if body == kernel.body else attrs.evolve(kernel, body=_without_unused(kernel, body))


def is_opaque(kernel: Kernel, statement: Exec) -> bool:
    """Whether a statement accesses fragments."""
    return any(kernel.buffer(access.buffer).memory.fragment is not None for access in statement.accesses)


def _without_unused(kernel: Kernel, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    """The program without unused names at its top level; names that a buffer's register origin contains stay."""
    used = {var for buffer in kernel.buffers for value in buffer.register_origin for var in value.variables()}
    needed = variables(stmt for stmt in body if not isinstance(stmt, Let))
    used = (used - lane_variables(kernel)) | needed
    kept: list[Stmt] = []
    for statement in reversed(body):
        if isinstance(statement, Let) and statement.var not in used:
            continue
        if isinstance(statement, Let):
            used |= statement.value.variables()
        kept.append(statement)
    return tuple(reversed(kept))
