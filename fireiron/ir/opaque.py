"""Accesses of which only the whole warp's part is specified: WMMA fragments, and the tiles that they are loaded from.

The IR gives each lane a part of such a tile, so that ownership, races and the simulator need no special case. The printed
code names the tile as a whole: its first element, which is where lane 0 would begin.
"""

from __future__ import annotations

import attrs

from fireiron.ir import Access, Exec, For, Kernel, Let, Stmt, lets
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
    body = _at_tiles(kernel, kernel.body)
    return kernel if body == kernel.body else attrs.evolve(kernel, body=_without_unused(kernel, body))


def is_opaque(kernel: Kernel, statement: Exec) -> bool:
    """Whether a statement touches fragments."""
    return any(kernel.buffer(access.buffer).memory.fragment is not None for access in statement.accesses)


def _at_tiles(kernel: Kernel, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    result: list[Stmt] = []
    for statement in body:
        if isinstance(statement, For):
            statement = attrs.evolve(statement, body=_at_tiles(kernel, statement.body))
        elif isinstance(statement, Exec) and is_opaque(kernel, statement):
            statement = attrs.evolve(statement, accesses=tuple(tile_origin(kernel, access) for access in statement.accesses))
        result.append(statement)
    return tuple(result)


def _without_unused(kernel: Kernel, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    """The program without names at its top that nothing refers to; what a buffer's holder refers to stays."""
    used = {var for buffer in kernel.buffers for value in buffer.holder for var in value.variables()}
    used -= lane_variables(kernel) - _variables(body)
    used |= _variables(body)
    kept: list[Stmt] = []
    for statement in reversed(body):
        if isinstance(statement, Let) and statement.var not in used:
            continue
        if isinstance(statement, Let):
            used |= statement.value.variables()
        kept.append(statement)
    return tuple(reversed(kept))


def _variables(body: tuple[Stmt, ...]) -> set[Var]:
    """The variables that statements other than definitions at the top refer to."""
    found: set[Var] = set()
    for statement in body:
        if isinstance(statement, For):
            inner = [one.value.variables() for one in statement.body if isinstance(one, Let)]
            found = found.union(statement.extent.variables(), _variables(statement.body), *inner)
        elif isinstance(statement, Exec):
            values = (statement.active, statement.accumulate, *(value for access in statement.accesses for value in access.expressions()))
            found = found.union(*(value.variables() for value in values))
    return found
