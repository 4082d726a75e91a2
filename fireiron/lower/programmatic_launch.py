"""`programmatic_launch`: place `griddepcontrol`, so that a kernel starts while the preceding kernel ends (PDL).

All threads wait before their first access to global memory, including producer threads and idle threads. A kernel completes when its
threads exit. If a thread did not wait, the kernel could complete before the preceding kernel, and the next kernel would not wait for that
one. Only work that no other kernel can observe comes before the wait: registers, shared memory, barriers. The next kernel may start at
once: it waits, too, and its blocks use SMs as they become free.

With inputs in `no_wait`, which no preceding kernel writes, producers load the first fills of their rings before the wait. Then each role
waits by itself before its first access to anything else. A block completes when its consumers exit, and they have waited.
"""

from __future__ import annotations

import attrs

from fireiron.errors import DecompositionError
from fireiron.ir import (
    Acquire,
    Comment,
    Exec,
    Fence,
    For,
    GridDepAction,
    GridDepControl,
    Kernel,
    Let,
    Release,
    Role,
    Roles,
    Stmt,
    execs,
    statements,
    substituted,
)
from fireiron.ir.effects.dependent_launch import DependentLaunch
from fireiron.ir.effects.zeroed import Zeroed
from fireiron.values.expr import Var, minimum, tables_of


def programmatic_launch(kernel: Kernel) -> Kernel:
    """The kernel with `griddepcontrol`; a `DecompositionError` for outputs that must be zeroed before the launch."""
    if not kernel.effects[DependentLaunch].enabled:
        return kernel
    if kernel.effects[Zeroed].names:
        names = ", ".join(kernel.effects[Zeroed].names)
        raise DecompositionError(
            f"programmatic_launch: {names} is zeroed before the launch, so the preceding kernel is not adjacent in the stream",
            hint="leave out programmatic_launch(), or split k inside a block",
        )
    if kernel.effects[DependentLaunch].no_wait:
        _require_ready_tables(kernel)
        return attrs.evolve(
            kernel, body=(GridDepControl(GridDepAction.LAUNCH_DEPENDENTS), *(_by_role(kernel, stmt) for stmt in kernel.body))
        )
    place = _first_access(kernel, kernel.body)
    before, after = kernel.body[:place], kernel.body[place:]
    launch, wait = GridDepControl(GridDepAction.LAUNCH_DEPENDENTS), GridDepControl(GridDepAction.WAIT)
    return attrs.evolve(kernel, body=(launch, *before, wait, *after))


def _require_ready_tables(kernel: Kernel) -> None:
    """Refuse an input that no preceding kernel writes if one may write the numbers by which its elements are read."""
    ready = kernel.effects[DependentLaunch].no_wait
    for name in ready:
        late = [table.array for table in kernel.buffer(name).storage.tables if table.array not in ready]
        if late:
            raise _refused(
                kernel, f"addresses in {name} depend on {late[0]}, which a preceding kernel may write", f"no_wait= with {late[0]}, too"
            )


def _by_role(kernel: Kernel, statement: Stmt) -> Stmt:
    """A statement of the kernel whose roles wait separately for the preceding kernel."""
    if not isinstance(statement, Roles):
        if tables := _late_tables(kernel, statement):
            why = f"a number of iterations or a place depends on {tables[0]}, which a preceding kernel may write"
            raise _refused(kernel, why, f"no_wait= with {tables[0]}, too")
        if _touches(kernel, statement):
            raise _refused(kernel, "the kernel has no producer", "pipeline(stages).warp_specialize()")
        return statement
    roles = tuple(_with_early_loads(kernel, role) if _fills(kernel, role) else _with_wait(kernel, role) for role in statement.roles)
    filling = (role for role in statement.roles if _fills(kernel, role))
    loads = [_is_load_of(kernel, stmt, True) for role in filling for stmt in _loop_of(role).body if _loads(stmt)]
    if all(loads) or not any(loads):
        why = f"the producer loads {'only' if any(loads) else 'none of'} these inputs"
        raise _refused(kernel, why, "no_wait= with one of the two operands")
    return Roles(roles)


def _fills(kernel: Kernel, role: Role) -> bool:
    """Whether a role loads into rings. Consumers only fill rings that another role stores."""
    return role.first >= kernel.workers and any(stmt.ring for stmt, _ in execs(role.body))


def _with_wait(kernel: Kernel, role: Role) -> Role:
    """A role that waits before its first access to global memory."""
    place = _first_access(kernel, role.body)
    return attrs.evolve(role, body=(*role.body[:place], GridDepControl(GridDepAction.WAIT), *role.body[place:]))


def _loop_of(role: Role) -> For:
    """The loop of a producer."""
    return next(stmt for stmt in role.body if isinstance(stmt, For))


def _with_early_loads(kernel: Kernel, role: Role) -> Role:
    """A producer that loads the inputs in `no_wait` of the first fills before the wait, and the others after it.

    A load before the loop, such as an epilogue vector, comes after the wait unless its input is in `no_wait`. Arrivals of copying threads
    follow the last copy of their fill: an arrival that a mechanism defers also covers the copies before the wait.
    """
    place = next((place for place, stmt in enumerate(role.body) if isinstance(stmt, For)), len(role.body))
    loop, *others = role.body[place:] or (None,)
    if not isinstance(loop, For) or others or any(isinstance(stmt, Acquire) for part in loop.body for stmt in statements(_inside(part))):
        raise _refused(kernel, "a block has several tiles, or several loops with loads", "a block for each tile, without persistent()")
    iterations = _iterations_that_fit(kernel, loop)
    ready, rest = (tuple(stmt for stmt in loop.body if _is_load_of(kernel, stmt, early)) for early in (True, False))
    if not ready:
        return _with_wait(kernel, role)
    names = {stmt.var.name for stmt in statements(kernel.body) if isinstance(stmt, (For, Let))}
    free = (name for number in range(len(names) + 1) if (name := f"{loop.var.name}_ahead{number or ''}") not in names)
    iteration = Var(next(free), 0, iterations - 1)
    last = tuple(stmt for stmt in loop.body if isinstance(stmt, Fence) or (isinstance(stmt, Release) and stmt.by is not None))
    setup = tuple(stmt for stmt in loop.body if stmt not in last and not _loads(stmt) and not isinstance(stmt, Comment))
    lets = tuple(one for one in setup if isinstance(one, Let))

    def peeled_loop(*inside: Stmt) -> For:
        return attrs.evolve(loop, var=iteration, extent=minimum(loop.extent, iterations), body=substituted(inside, {loop.var: iteration}))

    first = peeled_loop(*setup, *ready, *(() if rest else last))
    second = (peeled_loop(*lets, *rest, *last),) if rest else ()
    rest_of_loop = () if loop.extent.high <= iterations else (attrs.evolve(loop, first=iterations),)
    early, late = _by_readiness(kernel, role.body[:place])
    return attrs.evolve(role, body=(*early, first, GridDepControl(GridDepAction.WAIT), *late, *second, *rest_of_loop))


def _inside(statement: Stmt) -> tuple[Stmt, ...]:
    return tuple(one for child in statement.children for one in child)


def _by_readiness(kernel: Kernel, head: tuple[Stmt, ...]) -> tuple[list[Stmt], list[Stmt]]:
    """The statements before a producer's loop, in two lists: those that may precede the wait, and those that fill the rings of loads that
    must follow it.
    """
    waiting = {one.ring for one in head if isinstance(one, Exec) and _is_load_of(kernel, one, False)}
    parts: tuple[list[Stmt], list[Stmt]] = ([], [])
    for stmt in head:
        parts[isinstance(stmt, (Acquire, Release, Exec)) and stmt.ring in waiting].append(stmt)
    return parts


def _iterations_that_fit(kernel: Kernel, loop: For) -> int:
    """The number of iterations of a producer's loop that fit in its rings, so that their loads wait for no consumer."""
    rings = [stmt.ring for stmt in loop.body if isinstance(stmt, Acquire)]
    iterations = min(kernel.ring(ring).stages // rings.count(ring) for ring in rings)
    if not iterations:
        raise _refused(kernel, "a ring has fewer stages than an iteration fills", "more stages in pipeline(stages)")
    return iterations


def _loads(statement: Stmt) -> bool:
    """Whether a statement of a producer loads."""
    return any(True for _ in execs((statement,)))


def _is_load_of(kernel: Kernel, statement: Stmt, ready: bool) -> bool:
    """Whether all loads of a statement are of inputs in `no_wait` (`ready`), or not."""
    loaded = [stmt.accesses[0].buffer in kernel.effects[DependentLaunch].no_wait for stmt, _ in execs((statement,))]
    return bool(loaded) and all(loaded) is ready


def _refused(kernel: Kernel, why: str, hint: str) -> DecompositionError:
    return DecompositionError(
        f"programmatic_launch(no_wait={', '.join(kernel.effects[DependentLaunch].no_wait)}): {why}",
        legal="producers that load one tile per block",
        hint=hint,
    )


def _first_access(kernel: Kernel, body: tuple[Stmt, ...]) -> int:
    """The position of the first statement that accesses global memory, or of the comments before it."""
    place = next((place for place, stmt in enumerate(body) if _touches(kernel, stmt)), len(body))
    while place and isinstance(body[place - 1], Comment):
        place -= 1
    return place


def _touches(kernel: Kernel, statement: Stmt) -> bool:
    inside = (access for stmt, _ in execs((statement,)) for access in stmt.accesses)
    return any(kernel.buffer(access.buffer).memory.of_grid for access in inside) or bool(_late_tables(kernel, statement))


def _late_tables(kernel: Kernel, statement: Stmt) -> list[str]:
    """The arrays that expressions of a statement read, such as lengths, and that a preceding kernel may write."""
    read = {name for part in statements((statement,)) for value in part.expressions for name in tables_of(value)}
    return sorted(read - set(kernel.effects[DependentLaunch].no_wait))
