"""The verifier: checks after every pass that the kernel is well formed, so that the readers of the IR need no such checks."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping

from fireiron.errors import VerificationError
from fireiron.ir.access import Buffer
from fireiron.ir.asks.pipelined import Pipelined
from fireiron.ir.asks.producer_threads import ProducerThreads
from fireiron.ir.dynamic_scheduler import ClaimTile, ExitIfDone
from fireiron.ir.effects.dependent_launch import DependentLaunch
from fireiron.ir.kernel import Kernel, buffer_table
from fireiron.ir.rewrite import by_identities, by_identity, execs, statements
from fireiron.ir.semaphore import SemaphoreAction, SemaphoreBarrier
from fireiron.ir.statement import (
    BLOCK_SCOPE,
    THREAD_SCOPE,
    WARP_SCOPE,
    WARPGROUP_SCOPE,
    Acquire,
    Barrier,
    ClusterBarrier,
    Comment,
    Commit,
    Exec,
    Fence,
    FenceKind,
    For,
    GridDepAction,
    GridDepControl,
    Hole,
    IfAnyLane,
    Let,
    Release,
    Ring,
    Role,
    Roles,
    StageState,
    StepMarker,
    Stmt,
    SyncPoint,
    Wait,
    unknown,
)
from fireiron.values.expr import FALSE, Expr, Less, Var, conjuncts, constant, table, tables_of
from fireiron.values.machine import int32


def verify(kernel: Kernel, *, final: bool = False) -> Kernel:
    """Return the kernel if it is well formed; a `VerificationError` reports the first violation.

    Names are bound once, before use. Accesses fit their buffers and specs. Conditions are truth values. Loop extents do not depend on the
    thread. With `final`, no hole, sync point or request to a pass is left, and statements have the completion mechanisms of their
    instructions.
    """
    if kernel.threads != kernel.workers and not any(isinstance(stmt, Roles) for stmt in kernel.body):
        raise VerificationError(
            f"tiles are distributed over {kernel.workers} of a block's {kernel.threads} threads, and no role specifies the program of the "
            "others"
        )
    _verify_cluster(kernel)
    scope = {var.name: var for var in (*kernel.symbols, kernel.thread, kernel.block)}
    scope |= {
        table(buffer.name).name: table(buffer.name)
        for buffer in kernel.buffers
        if buffer.parameter and not buffer.written and buffer.dtype == int32
    }
    for buffer, looked_up in [(one, part) for one in kernel.buffers for part in one.storage.tables]:
        if table(looked_up.array).name not in scope:
            raise VerificationError(
                f"addresses in {buffer.name} depend on {looked_up.array}, which is not an int32 parameter that the kernel only reads"
            )
    names = [buffer.name for buffer in kernel.buffers]
    if len(set(names)) != len(names):
        raise VerificationError(f"buffers share a name: {names}")
    _verify_list(kernel, kernel.body, scope, frozenset({kernel.thread}), final)
    if final:
        verify_asks(kernel, None)
        _verify_groups(kernel)
        _verify_chain(kernel)
    return kernel


def verify_asks(kernel: Kernel, passed: Collection[str] | None) -> None:
    """Require that no loop has a request for a pass that has run; `passed` are the names of these passes, None: all passes."""
    for loop in statements(kernel.body):
        if not isinstance(loop, For):
            continue
        for ask in loop.asks:
            if passed is None or ask.taker in passed:
                raise VerificationError(
                    f"loop {loop.var} still requests {ask}", hint=f"the pass {ask.taker or 'of no name'} must handle or refuse it"
                )


def _verify_groups(kernel: Kernel) -> None:
    """Require that commits, waits, register fences and pinned registers of loops refer to asynchronous statements of the kernel."""
    inside = tuple(statements(kernel.body))
    mechanisms = {stmt.mechanism for stmt in inside if isinstance(stmt, Exec)}
    for stmt in inside:
        what = type(stmt).__name__.lower()
        if isinstance(stmt, (Commit, Wait)):
            what, has_statements = f"{what} of a {stmt.mechanism.name}", stmt.mechanism in mechanisms
        else:
            of_registers = (isinstance(stmt, Fence) and stmt.kind is FenceKind.WGMMA_REGISTERS) or (
                isinstance(stmt, For) and bool(stmt.pinned_registers)
            )
            has_statements = not of_registers or any(each.in_registers for each in mechanisms)
        if not has_statements:
            raise VerificationError(f"a {what} in a kernel without such asynchronous statements")


def _verify_cluster(kernel: Kernel) -> None:
    """Require that the grid consists of whole clusters, that only blocks of a cluster access each other's memory, and that all their
    threads reach cluster barriers.
    """
    cluster = kernel.cluster
    if cluster is not None and (len(cluster.sizes) != len(cluster.places) or min(cluster.sizes, default=0) < 2 or cluster.blocks > 16):
        raise VerificationError(f"illegal cluster of {cluster.sizes} blocks with coordinates {cluster.places}")
    if cluster is not None and kernel.grid.factor % cluster.blocks:
        raise VerificationError(f"{kernel.grid} blocks are not a multiple of the cluster size {cluster.blocks}")
    for stmt in statements(kernel.body):
        if isinstance(stmt, Exec):
            across = stmt.multicast is not None
        elif isinstance(stmt, ClusterBarrier) and (cluster is None or all(stmt is not other for other in kernel.body)):
            raise VerificationError("not all threads of a cluster reach its barrier exactly once")
        else:
            across = isinstance(stmt, Release) and bool(stmt.to)
        if across and (cluster is None or any(not set(value.variables()) <= set(cluster.places) for value in _first(stmt))):
            raise VerificationError(f"{_described(stmt)} accesses other blocks, but no cluster of the kernel contains them")


def _first(statement: Stmt) -> tuple[Expr, ...]:
    """The first rank of each set of blocks that a statement accesses."""
    if isinstance(statement, Exec):
        return () if statement.multicast is None else (statement.multicast.first,)
    return tuple(peers.first for peers in statement.to) if isinstance(statement, Release) else ()


def _verify_chain(kernel: Kernel) -> None:
    """Require that, with programmatic launch, all threads wait for the preceding kernel before they access global memory; otherwise, that
    there is no `griddepcontrol`.
    """
    inside = [stmt.action for stmt in statements(kernel.body) if isinstance(stmt, GridDepControl)]
    if not kernel.effects[DependentLaunch].enabled:
        if inside:
            raise VerificationError("griddepcontrol in a kernel without programmatic launch")
        return
    if kernel.effects[DependentLaunch].no_wait:
        _verify_ready(kernel)
        return
    links = [stmt.action for stmt in kernel.body if isinstance(stmt, GridDepControl)]
    if links != inside or sorted(link.value for link in inside) != [
        link.value for link in (GridDepAction.LAUNCH_DEPENDENTS, GridDepAction.WAIT)
    ]:
        raise VerificationError(
            f"programmatic launch needs griddepcontrol.launch_dependents and griddepcontrol.wait once each in all threads: got "
            f"{len(links)} at the top level, {len(inside) - len(links)} in loops or roles"
        )
    for stmt in itertools.takewhile(lambda stmt: stmt != GridDepControl(GridDepAction.WAIT), kernel.body):
        read = [name for part in statements((stmt,)) for value in part.expressions for name in sorted(tables_of(value))]
        if read:
            raise VerificationError(f"{read[0]} is read before griddepcontrol.wait")
        touched = [access.buffer for part, _ in execs((stmt,)) for access in part.accesses if kernel.buffer(access.buffer).memory.of_grid]
        if touched:
            raise VerificationError(f"{touched[0]} is accessed before griddepcontrol.wait")


def _verify_ready(kernel: Kernel) -> None:
    """Require that each role waits before it accesses other global memory than the inputs that no preceding kernel writes."""
    top = [stmt.action for stmt in kernel.body if isinstance(stmt, GridDepControl)]
    roles = [role for stmt in kernel.body if isinstance(stmt, Roles) for role in stmt.roles]
    inside = sum(isinstance(stmt, GridDepControl) for stmt in statements(kernel.body)) - len(top)
    waits = [sum(stmt == GridDepControl(GridDepAction.WAIT) for stmt in role.body) for role in roles]
    if top != [GridDepAction.LAUNCH_DEPENDENTS] or not roles or waits != [1] * len(roles) or inside != len(roles):
        raise VerificationError(
            f"programmatic_launch(no_wait=) needs griddepcontrol.launch_dependents once and griddepcontrol.wait once in each role: got "
            f"{len(top)} at the top level, {inside} inside"
        )
    for body in (tuple(stmt for stmt in kernel.body if not isinstance(stmt, Roles)), *(role.body for role in roles)):
        for stmt in itertools.takewhile(lambda stmt: stmt != GridDepControl(GridDepAction.WAIT), body):
            for access in (access for part, _ in execs((stmt,)) for access in part.accesses):
                names = {access.buffer, *(table.array for table in kernel.buffer(access.buffer).storage.tables)}
                if kernel.buffer(access.buffer).memory.of_grid and (
                    access.write or not names <= set(kernel.effects[DependentLaunch].no_wait)
                ):
                    raise VerificationError(f"{access.buffer} is accessed before griddepcontrol.wait")
            read = {name for part in statements((stmt,)) for value in part.expressions for name in tables_of(value)}
            if late := sorted(read - set(kernel.effects[DependentLaunch].no_wait)):
                raise VerificationError(f"{late[0]} is read before griddepcontrol.wait")


def _verify_list(kernel: Kernel, body: tuple[Stmt, ...], scope: Mapping[str, Var], divergent: frozenset[Var], final: bool) -> None:
    for statement in body:
        match statement:
            case Exec():
                _verify_exec(kernel, statement, scope, final)
            case Let(var=var, value=value):
                _bound(value, scope, statement)
                _fresh(var, scope)
                scope = {**scope, var.name: var}
                if not value.variables().isdisjoint(divergent):  # a name for a value that differs between threads differs, too
                    divergent = divergent | {var}
            case For(var=var, extent=extent):
                _bound(extent, scope, statement)
                _fresh(var, scope)
                # Any loop may contain a barrier, which hangs if not all threads of its group reach it.
                if not extent.variables().isdisjoint(divergent):
                    raise VerificationError(f"the extent {extent} of loop {var} differs between threads")
                # Simplification uses ranges: a variable outside its range would give a wrong quotient without an error.
                if constant(extent) is not None and var.high < extent.high - 1:
                    raise VerificationError(f"loop variable {var} is at most {var.high}, but its loop ends at {extent.high - 1}")
                inner = {**scope, var.name: var}
                if statement.prior_iterations is not None:
                    _fresh(statement.prior_iterations, inner)
                    inner[statement.prior_iterations.name] = statement.prior_iterations
                    named = {stmt.var.name: stmt.var for stmt in statement.body if isinstance(stmt, (Let, ClaimTile))}
                    _bound(statement.increment, {**inner, **named}, statement)
                _verify_list(kernel, statement.body, inner, divergent, final)
            case ClaimTile(var=var, ring=ring):
                for value in statement.expressions:
                    _bound(value, scope, statement)
                _fresh(var, scope)
                scope = {**scope, var.name: var}
                if kernel.counter is None or all(one.name != ring or not one.tiles for one in kernel.rings):
                    raise VerificationError(f"{_described(statement)}: the kernel has no counter, or no ring of tiles {ring}")
            case ExitIfDone():
                for value in statement.expressions:
                    _bound(value, scope, statement)
            case IfAnyLane():
                _verify_skip(kernel, statement)
                _verify_list(kernel, statement.body, scope, divergent, final)
            case Roles():
                _verify_roles(kernel, statement, scope, divergent, final)
            case Acquire() | Release():
                for value in statement.expressions:
                    _bound(value, scope, statement)
                if all(ring.name != statement.ring for ring in kernel.rings):
                    raise VerificationError(f"{_described(statement)}: unknown ring {statement.ring}")
                _verify_fill(kernel.ring(statement.ring), statement)
                if isinstance(statement, Release):
                    _verify_release(statement)
            case Hole(child=child) if final:
                raise VerificationError(f"hole {child} is not filled")
            case SyncPoint(subject=subject) if final:
                raise VerificationError(f"the sync point of {subject} is not handled")
            case StepMarker(step=step) if final:
                raise VerificationError(f"the marker of step {step} is not removed")
            # Barriers of more than a warp expect full groups; only `__syncwarp` works with fewer threads.
            case SemaphoreBarrier():
                _verify_semaphore(kernel, statement, scope)
                if statement.last is not None:
                    _fresh(statement.last, scope)
                    scope = {**scope, statement.last.name: statement.last}
            case Barrier(scope=group) if (group.threads or 0) > 32 and kernel.workers % (group.threads or 1):
                raise VerificationError(f"a barrier of a {group} in a block of {kernel.threads} threads: the {group}s must be complete")
            case Wait(groups=groups) if groups < 0:
                raise VerificationError(f"a wait for {groups} groups: the number must not be negative")
            # listed explicitly, so that a new kind of statement is refused
            case (
                Comment()
                | Hole()
                | StepMarker()
                | SyncPoint()
                | Commit()
                | Wait()
                | Fence()
                | Barrier()
                | ClusterBarrier()
                | GridDepControl()
            ):
                pass
            case _:
                raise unknown(statement, "the verifier")


def _verify_semaphore(kernel: Kernel, statement: SemaphoreBarrier, scope: Mapping[str, Var]) -> None:
    """Require that all threads of a block use a semaphore of the workspace together, and that a block exits only at the top level."""
    for value in statement.expressions:
        _bound(value, scope, statement)
    if kernel.workspace is None:
        raise VerificationError(f"{_described(statement)}: the kernel has no workspace")
    if (statement.last is not None) != statement.action.defines:
        raise VerificationError(f"{_described(statement)}: only find_last and begin define a variable, and they always do")
    if statement.action.counts_copies:
        counts = statement.action is SemaphoreAction.SIGNAL
        expected = (
            (WARP_SCOPE, *((WARPGROUP_SCOPE,) if counts else (THREAD_SCOPE,)))
            if kernel.gathers
            else (WARP_SCOPE, *((WARPGROUP_SCOPE,) if counts else ()))
        )
        if statement.scope not in expected:
            legal = " or ".join(map(str, expected))
            raise VerificationError(f"{_described(statement)}: it belongs to a {legal}, not to a {statement.scope}")
        return
    consumers = next((stmt.roles[0].threads for stmt in kernel.body if isinstance(stmt, Roles)), None)
    of_consumers = statement.action is SemaphoreAction.FIND_LAST and consumers is not None and statement.scope.threads == consumers
    if statement.scope != BLOCK_SCOPE and not of_consumers:
        raise VerificationError(f"{_described(statement)}: all threads of a block wait, not those of a {statement.scope}")
    if statement.action is SemaphoreAction.LAST and all(other is not statement for other in kernel.body):
        raise VerificationError(f"{_described(statement)}: blocks exit in a loop, or in the program of some threads")


def _verify_skip(kernel: Kernel, skip: IfAnyLane) -> None:
    """Require that the condition of an `IfAnyLane` is in registers, and that its body does not involve other threads.

    Other threads would wait for a warp that skips the body, or read values that it did not write.
    """
    buffers = buffer_table(kernel)
    needed = buffers.get(skip.needed)
    if needed is None or not needed.memory.private or needed.dtype != int32 or constant(needed.total) != constant(needed.elements):
        raise VerificationError(f"IfAnyLane: {skip.needed} is not an int32 array in registers with one copy")
    for stmt in statements(skip.body):
        if not isinstance(stmt, (Exec, For, Let, Comment, Hole)):
            raise VerificationError(f"IfAnyLane: a warp may skip the body, but it contains a {type(stmt).__name__.lower()}")
        if isinstance(stmt, For) and (Pipelined in stmt.asks or ProducerThreads in stmt.asks):
            raise VerificationError(f"skip_masked_tiles: a warp may skip loop {stmt.var}, but its loads are pipelined")
        if isinstance(stmt, Exec) and stmt.spec.level.threads != 1:
            raise VerificationError(f"IfAnyLane: {_described(stmt)} needs several threads, but some may skip it")
        for access in stmt.accesses if isinstance(stmt, Exec) else ():
            memory = buffers[access.buffer].memory if access.buffer in buffers else None
            if memory is not None and not (memory.private or ((memory.by_value or memory.is_coordinate) and not access.write)):
                raise VerificationError(f"IfAnyLane: a warp may skip the body, but it accesses {access.buffer} in {memory}")


def _verify_fill(ring: Ring, statement: Acquire | Release) -> None:
    """Require that the stages of a ring that is not refilled are filled at most once, and never released."""
    if ring.refilled:
        return
    number = constant(statement.fill_index)
    if number is None or number >= ring.stages or (isinstance(statement, Release) and statement.state is StageState.EMPTY):
        raise VerificationError(
            f"{_described(statement)}: {ring.name} is not refilled",
            legal=f"fills 0 to {ring.stages - 1}, without releases as empty", hint="Ring(refilled=True)",
        )  # fmt: skip


def _verify_release(release: Release) -> None:
    """Require that the mechanism of an arrival can defer arrivals, and that the arrival is at the same block's mbarrier, without bytes."""
    if release.by is None:
        return
    if release.by.arriving is None:
        raise VerificationError(
            f"{_described(release)} by {release.by}, which cannot defer arrivals",
            legal="a mechanism with `arriving`, or AT_ONCE",
            hint="wait for its groups, then arrive without `by`",
        )
    if release.to or release.part is not None:
        what = "to other blocks of the cluster" if release.to else f"with {release.part} bytes"
        raise VerificationError(
            f"{_described(release)} by {release.by} {what}", legal="an arrival at an mbarrier of the same block, without bytes"
        )


def _verify_deferred(role: Role) -> None:
    """Require that a role does not wait for groups of a mechanism that defers its arrivals: only one of them signals completion."""
    inside = tuple(statements(role.body))
    deferred = {stmt.by for stmt in inside if isinstance(stmt, Release) and stmt.by is not None and stmt.by.defers}
    for stmt in inside:
        if isinstance(stmt, (Commit, Wait)) and stmt.mechanism in deferred:
            raise VerificationError(
                f"role {role.name} has both a {type(stmt).__name__.lower()} of {stmt.mechanism} and an arrival deferred by it",
                legal="either groups or deferred arrivals of a mechanism in a role",
            )


def _verify_roles(kernel: Kernel, roles: Roles, scope: Mapping[str, Var], divergent: frozenset[Var], final: bool) -> None:
    """Require that the roles partition the threads of the block, and that no barrier inside a role includes threads of other roles."""
    reached = 0
    for role in roles.roles:
        if role.first != reached or role.threads < 1:
            raise VerificationError(f"role {role.name} begins at thread {role.first}, but the previous role ends at {reached}")
        reached += role.threads
        if any(isinstance(stmt, Barrier) and stmt.scope.threads is None for stmt in statements(role.body)):
            raise VerificationError(f"a block barrier in role {role.name}, which other roles never reach")
        _verify_deferred(role)
        if role.elected and any(isinstance(stmt, IfAnyLane) for stmt in statements(role.body)):
            raise VerificationError(f"IfAnyLane: role {role.name} is one thread, so no warp can vote")
        if role.first < kernel.workers:
            own = scope
        else:  # tiles are not distributed over its threads, so their numbers are in another range
            thread = Var(kernel.thread.name, 0, kernel.threads - 1)
            own, divergent = {**scope, thread.name: thread}, divergent | {thread}
        _verify_list(kernel, role.body, own, divergent, final)
    if reached != kernel.threads:
        raise VerificationError(f"the roles have {reached} threads, the block {kernel.threads}")


def _fresh(var: Var, scope: Mapping[str, Var]) -> None:
    if var.name in scope:
        raise VerificationError(f"the name {var.name} is bound twice")


def _bound(value: Expr, scope: Mapping[str, Var], statement: Stmt) -> None:
    free = [var for var in value.variables() if not ((known := scope.get(var.name)) is var or known == var)]
    if free:
        names = ", ".join(sorted(var.name for var in free))
        raise VerificationError(f"{_described(statement)}: {names} is not bound in {value}")


def _described(statement: Stmt) -> str:
    match statement:
        case Acquire() | Release():
            return f"{type(statement).__name__.lower()} {statement.state.value} of {statement.ring}"
        case Exec():
            return f"{statement.instruction.name} {statement.spec}"
        case ClaimTile(var=var) | ExitIfDone(tile=var):
            return f"tile number {var}"
        case SemaphoreBarrier(action=action, group=group):
            return f"semaphore of {group} ({action.value})"
        case Let(var=var):
            return f"let {var}"
        case For(var=var):
            return f"for {var}"
    raise unknown(statement, "the verifier")


def _verify_exec(kernel: Kernel, statement: Exec, scope: Mapping[str, Var], final: bool) -> None:
    for var in statement.variables:
        known = scope.get(var.name)
        if known is not var and known != var:
            for value in statement.expressions:
                _bound(value, scope, statement)
    own = statement.instruction.mechanism
    if final and statement.mechanism is not own:
        raise VerificationError(
            f"{_described(statement)} has the completion mechanism {statement.mechanism.name}, but its instruction {own.name}"
        )
    _verify_accesses(statement, kernel.buffers, final)


@by_identities  # a pass keeps most statements and all buffers
def _verify_accesses(statement: Exec, buffers: tuple[Buffer, ...], final: bool) -> None:
    """Require that a statement's accesses match its spec and fit the buffers."""
    if len(statement.accesses) != len(statement.spec.operands):
        raise VerificationError(f"{_described(statement)}: {len(statement.accesses)} accesses for {len(statement.spec.operands)} operands")
    if statement.lane_maps and len(statement.lane_maps) != len(statement.accesses):
        raise VerificationError(f"{_described(statement)}: {len(statement.lane_maps)} lane maps for {len(statement.accesses)} accesses")
    table = _table(buffers)
    for access in statement.accesses:
        if access.buffer not in table:
            raise VerificationError(f"{_described(statement)}: unknown buffer {access.buffer}")
        rank = len(table[access.buffer].tensor.shape)
        if not len(access.base) == len(access.modes) == len(access.bounds) == rank:
            raise VerificationError(f"{_described(statement)}: the access to {access.buffer} must have its rank {rank}")
        if access.write and table[access.buffer].parameter and not table[access.buffer].written:
            raise VerificationError(f"{_described(statement)}: the statement writes the input {access.buffer}")
        if final and table[access.buffer].tensor.copies == 1 and not access.copy.low == access.copy.high == 0:
            raise VerificationError(f"{_described(statement)}: copy {access.copy} of {access.buffer}, which has one copy")
    if final and statement.instruction.each and len({access.count for access in statement.accesses}) > 1:
        counts = [access.count for access in statement.accesses]
        raise VerificationError(f"{_described(statement)}: the instruction is elementwise, but its accesses have {counts} elements")
    if statement.interior != FALSE and not (
        statement.implied and all(isinstance(condition, Less) for condition in conjuncts(statement.interior))
    ):
        raise VerificationError(
            f"{_described(statement)}: the condition {statement.interior} of its two versions is not a conjunction of comparisons"
        )
    if statement.pieces:
        _verify_pieces(statement)
    elif final and not statement.collective and not statement.instruction.tests_edges:
        raise VerificationError(f"{_described(statement)}: no pieces specify which elements are accessed", hint="the pass guard adds them")


@by_identity
def _table(buffers: tuple[Buffer, ...]) -> Mapping[str, Buffer]:
    return {buffer.name: buffer for buffer in buffers}


def _verify_pieces(statement: Exec) -> None:
    """Require that the pieces of each operand contain all its elements in order, each once, and that their conditions are truth values."""
    if len(statement.pieces) != len(statement.accesses):
        where = _described(statement)
        raise VerificationError(f"{where}: pieces of {len(statement.pieces)} operands for {len(statement.accesses)} accesses")
    for access, pieces in zip(statement.accesses, statement.pieces, strict=True):
        count, reached = access.count, 0
        for piece in pieces:
            if piece.first != reached or piece.width < 1:
                raise VerificationError(
                    f"{_described(statement)}: the next piece of {access.buffer} must start at element {reached}, not {piece}"
                )
            reached += piece.width
            if piece.condition.low < 0 or piece.condition.high > 1:
                raise VerificationError(f"{_described(statement)}: {piece.condition} is not a truth value")
        if reached != count:
            raise VerificationError(f"{_described(statement)}: the pieces of {access.buffer} have {reached} elements, the access {count}")
