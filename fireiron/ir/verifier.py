"""The verifier: what every pass leaves behind is a kernel that all readers can take at its word."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping

from fireiron.errors import VerificationError
from fireiron.ir.access import Buffer
from fireiron.ir.asks.pipelined import Pipelined
from fireiron.ir.asks.producer_threads import ProducerThreads
from fireiron.ir.dynamic_scheduler import ClaimTile, ExitIfDone
from fireiron.ir.effects.chaining import Chaining
from fireiron.ir.kernel import Kernel, buffer_table
from fireiron.ir.rewrite import by_identities, by_identity, execs, statements
from fireiron.ir.statement import (
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
    Role,
    Roles,
    StepMarker,
    Stmt,
    SyncPoint,
    Wait,
    unknown,
)
from fireiron.values.expr import FALSE, Expr, Less, Var, conjuncts, constant, table, tables_of
from fireiron.values.machine import int32


def verify(kernel: Kernel, *, final: bool = False) -> Kernel:
    """The kernel itself, if it is well formed; a `VerificationError` names the first thing that is not.

    Names are bound before use and once; accesses fit their buffers and the specs; conditions are truth values; loop
    extents do not depend on the thread. With `final`, no hole, no sync point and nothing that is asked of a pass is left; statements
    are done when their instructions are.
    """
    if kernel.threads != kernel.workers and not any(isinstance(one, Roles) for one in kernel.body):
        raise VerificationError(
            f"a block has {kernel.threads} threads, tiles are dealt to {kernel.workers}: no statement says what the others do"
        )
    _verify_cluster(kernel)
    scope = {var.name: var for var in (*kernel.symbols, kernel.thread, kernel.block)}
    scope |= {table(one.name).name: table(one.name) for one in kernel.buffers if one.parameter and not one.written and one.dtype == int32}
    names = [buffer.name for buffer in kernel.buffers]
    if len(set(names)) != len(names):
        raise VerificationError(f"buffers share a name: {names}")
    _verify_list(kernel, kernel.body, scope, frozenset({kernel.thread}), final)
    if final:
        verify_asks(kernel, None)
        _verify_groups(kernel)
        _verify_chain(kernel)
    return kernel


def verify_asks(kernel: Kernel, behind: Collection[str] | None) -> None:
    """No loop asks for what a pass had to take that the kernel is behind, by name; None: it is behind all of them."""
    for loop in statements(kernel.body):
        if not isinstance(loop, For):
            continue
        for one in loop.asks:
            if behind is None or one.taker in behind:
                raise VerificationError(
                    f"loop {loop.var} still asks for {one}", hint=f"the pass {one.taker or 'of no name'} takes that, or refuses it"
                )


def _verify_groups(kernel: Kernel) -> None:
    """Commits and waits, fences of registers and loops that hold some, are for statements of the kernel."""
    inside = tuple(statements(kernel.body))
    mechanisms = {one.mechanism for one in inside if isinstance(one, Exec)}
    for one in inside:
        what = type(one).__name__.lower()
        if isinstance(one, (Commit, Wait)):
            what, is_for = f"{what} of a {one.mechanism.name}", one.mechanism in mechanisms
        else:
            of_registers = (isinstance(one, Fence) and one.kind is FenceKind.WGMMA_REGISTERS) or (
                isinstance(one, For) and bool(one.pinned_registers)
            )
            is_for = not of_registers or any(each.in_registers for each in mechanisms)
        if not is_for:
            raise VerificationError(f"a {what} in a kernel without such asynchronous statements")


def _verify_cluster(kernel: Kernel) -> None:
    """Whole clusters are launched, and only blocks of a cluster reach into each other; all of their threads come to its barriers."""
    cluster = kernel.cluster
    if cluster is not None and (len(cluster.sizes) != len(cluster.places) or min(cluster.sizes, default=0) < 2 or cluster.blocks > 16):
        raise VerificationError(f"a cluster of {cluster.sizes} blocks, placed by {cluster.places}")
    if cluster is not None and kernel.grid.factor % cluster.blocks:
        raise VerificationError(f"{kernel.grid} blocks are no whole clusters of {cluster.blocks}")
    for one in statements(kernel.body):
        if not isinstance(one, (ClusterBarrier, Exec, Release)):
            continue
        if isinstance(one, ClusterBarrier) and (cluster is None or all(one is not other for other in kernel.body)):
            raise VerificationError("a barrier of a cluster stands where not all threads of its blocks come once")
        across = (isinstance(one, Exec) and one.multicast is not None) or (isinstance(one, Release) and bool(one.to))
        if across and (cluster is None or any(not set(value.variables()) <= set(cluster.places) for value in _first(one))):
            raise VerificationError(f"{_described(one)} reaches into other blocks, and no cluster says which")


def _first(statement: Stmt) -> tuple[Expr, ...]:
    """Where the blocks begin that a statement reaches into."""
    if isinstance(statement, Exec):
        return () if statement.multicast is None else (statement.multicast.first,)
    return tuple(peers.first for peers in statement.to) if isinstance(statement, Release) else ()


def _verify_chain(kernel: Kernel) -> None:
    """A chained kernel waits for the one before, in all its threads, in front of whatever touches global memory; any other has no links."""
    inside = [one.action for one in statements(kernel.body) if isinstance(one, GridDepControl)]
    if not kernel.effects[Chaining].chained:
        if inside:
            raise VerificationError("a kernel that is not chained waits for the one before it")
        return
    if kernel.effects[Chaining].ready:
        _verify_ready(kernel)
        return
    links = [one.action for one in kernel.body if isinstance(one, GridDepControl)]
    if links != inside or sorted(link.value for link in inside) != [
        link.value for link in (GridDepAction.LAUNCH_DEPENDENTS, GridDepAction.WAIT)
    ]:
        raise VerificationError(
            f"a chained kernel lets the next one begin, and waits for the one before, once each, in all threads: {len(links)} links stand "
            f"there, {len(inside) - len(links)} in loops or roles"
        )
    for one in itertools.takewhile(lambda one: one != GridDepControl(GridDepAction.WAIT), kernel.body):
        read = [name for part in statements((one,)) for value in part.expressions for name in sorted(tables_of(value))]
        if read:
            raise VerificationError(f"{read[0]} is read before the kernel waits for the one before it")
        touched = [access.buffer for part, _ in execs((one,)) for access in part.accesses if kernel.buffer(access.buffer).memory.of_grid]
        if touched:
            raise VerificationError(f"{touched[0]} is touched before the kernel waits for the one before it")


def _verify_ready(kernel: Kernel) -> None:
    """Of a chained kernel with inputs that no kernel before writes each role waits by itself, in front of what touches anything else."""
    top = [one.action for one in kernel.body if isinstance(one, GridDepControl)]
    roles = [role for one in kernel.body if isinstance(one, Roles) for role in one.roles]
    inside = sum(isinstance(one, GridDepControl) for one in statements(kernel.body)) - len(top)
    waits = [sum(one == GridDepControl(GridDepAction.WAIT) for one in role.body) for role in roles]
    if top != [GridDepAction.LAUNCH_DEPENDENTS] or not roles or waits != [1] * len(roles) or inside != len(roles):
        raise VerificationError(
            f"a chained kernel with inputs that are ready lets the next one begin, and waits once in each role: {len(top)} links stand "
            f"at its top, {inside} inside"
        )
    for body in (tuple(one for one in kernel.body if not isinstance(one, Roles)), *(role.body for role in roles)):
        for one in itertools.takewhile(lambda one: one != GridDepControl(GridDepAction.WAIT), body):
            for access in (access for part, _ in execs((one,)) for access in part.accesses):
                if kernel.buffer(access.buffer).memory.of_grid and (access.write or access.buffer not in kernel.effects[Chaining].ready):
                    raise VerificationError(f"{access.buffer} is touched before the kernel waits for the one before it")


def _verify_list(kernel: Kernel, body: tuple[Stmt, ...], scope: Mapping[str, Var], divergent: frozenset[Var], final: bool) -> None:
    for statement in body:
        match statement:
            case Let(var=var, value=value):
                _bound(value, scope, statement)
                _fresh(var, scope)
                scope = {**scope, var.name: var}
                if not value.variables().isdisjoint(divergent):  # a name for what differs between threads differs too
                    divergent = divergent | {var}
            case For(var=var, extent=extent):
                _bound(extent, scope, statement)
                _fresh(var, scope)
                # A barrier may stand in any loop, and one that not all threads of its group reach waits for ever.
                if not extent.variables().isdisjoint(divergent):
                    raise VerificationError(f"loop {var} has an extent {extent} that differs between threads")
                # Ranges decide what is simplified: a variable that outgrows its own would be divided wrongly, in silence.
                if constant(extent) is not None and var.high < extent.high - 1:
                    raise VerificationError(f"loop variable {var} ends at {var.high}, its loop at {extent.high - 1}")
                inner = {**scope, var.name: var}
                if statement.prior_iterations is not None:
                    _fresh(statement.prior_iterations, inner)
                    inner[statement.prior_iterations.name] = statement.prior_iterations
                    named = {one.var.name: one.var for one in statement.body if isinstance(one, (Let, ClaimTile))}
                    _bound(statement.increment, {**inner, **named}, statement)
                _verify_list(kernel, statement.body, inner, divergent, final)
            case ClaimTile(var=var, ring=ring):
                for value in statement.expressions:
                    _bound(value, scope, statement)
                _fresh(var, scope)
                scope = {**scope, var.name: var}
                if kernel.counter is None or all(one.name != ring or not one.tiles for one in kernel.rings):
                    raise VerificationError(f"{_described(statement)}: no counter, or no ring of tiles {ring}")
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
                if all(one.name != statement.ring for one in kernel.rings):
                    raise VerificationError(f"{_described(statement)}: unknown ring {statement.ring}")
                if isinstance(statement, Release):
                    _verify_release(statement)
            case Exec():
                _verify_exec(kernel, statement, scope, final)
            case Hole(child=child) if final:
                raise VerificationError(f"hole {child} was not filled")
            case SyncPoint(subject=subject) if final:
                raise VerificationError(f"sync point of {subject} was not resolved")
            case StepMarker(step=step) if final:
                raise VerificationError(f"the mark of step {step} was not removed")
            # Beyond a warp a barrier counts to a full group; `__syncwarp` alone does without threads that do not exist.
            case Barrier(scope=group) if (group.threads or 0) > 32 and kernel.workers % (group.threads or 1):
                raise VerificationError(f"a barrier of a {group} in a block of {kernel.threads} threads")
            case Wait(groups=groups) if groups < 0:
                raise VerificationError(f"a wait for {groups} groups")
            # Listed, not left to the default: what nobody thought of is refused.
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


def _verify_skip(kernel: Kernel, skip: IfAnyLane) -> None:
    """What says whether a warp needs a body lies in registers, and nothing inside concerns other threads: else they would wait for it,
    or read what a warp left out.
    """
    buffers = buffer_table(kernel)
    needed = buffers.get(skip.needed)
    if needed is None or not needed.memory.private or needed.dtype != int32 or constant(needed.total) != constant(needed.elements):
        raise VerificationError(f"skip: {skip.needed} is no array of int32 in registers, in one copy")
    for one in statements(skip.body):
        if not isinstance(one, (Exec, For, Let, Comment, Hole)):
            raise VerificationError(f"skip: a {type(one).__name__.lower()} in what a warp may leave out")
        if isinstance(one, For) and (Pipelined in one.asks or ProducerThreads in one.asks):
            raise VerificationError(f"skip_masked_tiles: loads ahead of loop {one.var} in what a warp may leave out")
        if isinstance(one, Exec) and one.spec.level.threads != 1:
            raise VerificationError(f"skip: {_described(one)} is performed by several threads, of which some may leave it out")
        for access in one.accesses if isinstance(one, Exec) else ():
            memory = buffers[access.buffer].memory if access.buffer in buffers else None
            if memory is not None and not (memory.private or ((memory.by_value or memory.counts) and not access.write)):
                raise VerificationError(f"skip: {access.buffer} in {memory} is touched in what a warp may leave out")


def _verify_release(release: Release) -> None:
    """An arrival by a mechanism is one that it can defer, in the block itself; bytes are announced by others."""
    if release.by is None:
        return
    if release.by.arriving is None:
        raise VerificationError(
            f"{_described(release)} by {release.by}, whose arrivals cannot be deferred",
            legal="a mechanism that states `arriving`, or AT_ONCE",
            hint="a wait for its groups in front of an arrival without `by`",
        )
    if release.to or release.part is not None:
        what = "to other blocks of the cluster" if release.to else f"with {release.part} bytes"
        raise VerificationError(
            f"{_described(release)} by {release.by} {what}", legal="an arrival at a barrier of the block, without bytes"
        )


def _verify_deferred(role: Role) -> None:
    """A role does not wait for groups of a mechanism by which its arrivals are deferred: what is under way is told by one of the two."""
    inside = tuple(statements(role.body))
    deferred = {one.by for one in inside if isinstance(one, Release) and one.by is not None and one.by.defers}
    for one in inside:
        if isinstance(one, (Commit, Wait)) and one.mechanism in deferred:
            raise VerificationError(
                f"role {role.name} has a {type(one).__name__.lower()} of {one.mechanism}, and an arrival that is deferred by it",
                legal="groups, or deferred arrivals, of one mechanism in a role",
            )


def _verify_roles(kernel: Kernel, roles: Roles, scope: Mapping[str, Var], divergent: frozenset[Var], final: bool) -> None:
    """The roles are all threads of the block, each thread in one; no barrier inside holds threads of several."""
    reached = 0
    for role in roles.roles:
        if role.first != reached or role.threads < 1:
            raise VerificationError(f"role {role.name} begins at thread {role.first}, the one before ends at {reached}")
        reached += role.threads
        if any(isinstance(one, Barrier) and one.scope.threads is None for one in statements(role.body)):
            raise VerificationError(f"a barrier of the block in role {role.name}, which the others never reach")
        _verify_deferred(role)
        if role.elected and any(isinstance(one, IfAnyLane) for one in statements(role.body)):
            raise VerificationError(f"skip: role {role.name} is one thread, and no warp decides")
        if role.first < kernel.workers:
            own = scope
        else:  # its threads are none of those to which tiles are dealt, so their numbers are others
            thread = Var(kernel.thread.name, 0, kernel.threads - 1)
            own, divergent = {**scope, thread.name: thread}, divergent | {thread}
        _verify_list(kernel, role.body, own, divergent, final)
    if reached != kernel.threads:
        raise VerificationError(f"the roles are {reached} threads, the block has {kernel.threads}")


def _fresh(var: Var, scope: Mapping[str, Var]) -> None:
    if var.name in scope:
        raise VerificationError(f"the name {var.name} is bound twice")


def _bound(value: Expr, scope: Mapping[str, Var], statement: Stmt) -> None:
    free = [var for var in value.variables() if (known := scope.get(var.name)) is not var and known != var]
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
            return f"the number {var} of a tile"
        case Let(var=var):
            return f"let {var}"
        case For(var=var):
            return f"for {var}"
    raise unknown(statement, "the verifier")


def _verify_exec(kernel: Kernel, statement: Exec, scope: Mapping[str, Var], final: bool) -> None:
    if any((known := scope.get(var.name)) is not var and known != var for var in statement.variables):
        for value in statement.expressions:
            _bound(value, scope, statement)
    own = statement.instruction.mechanism
    if final and statement.mechanism is not own:
        raise VerificationError(
            f"{statement.instruction.name} {statement.spec} is done as {statement.mechanism.name} says, and its instruction as {own.name}"
        )
    _verify_accesses(statement, kernel.buffers, final)


@by_identities  # most statements of a program are those of the program before the pass, on the same buffers
def _verify_accesses(statement: Exec, buffers: tuple[Buffer, ...], final: bool) -> None:
    """A statement's accesses are those of its spec, and fit the buffers."""
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
            raise VerificationError(f"{_described(statement)}: access to {access.buffer} has not its rank {rank}")
        if access.write and table[access.buffer].parameter and not table[access.buffer].written:
            raise VerificationError(f"{_described(statement)}: writes the input {access.buffer}")
        if final and table[access.buffer].tensor.copies == 1 and not access.copy.low == access.copy.high == 0:
            raise VerificationError(f"{_described(statement)}: copy {access.copy} of {access.buffer}, of which there is one")
    if final and statement.instruction.each and len({access.count for access in statement.accesses}) > 1:
        counts = [access.count for access in statement.accesses]
        raise VerificationError(f"{_described(statement)}: goes element by element, and its accesses have {counts}")
    if statement.whole != FALSE and not (statement.implied and all(isinstance(one, Less) for one in conjuncts(statement.whole))):
        raise VerificationError(f"{_described(statement)}: two versions, told apart by {statement.whole}, which is no comparisons")
    if statement.pieces:
        _verify_pieces(statement)
    elif final and not statement.collective and not statement.instruction.tests_edges:
        raise VerificationError(f"{_described(statement)}: nothing says which of its elements are stored", hint="the pass guard comes last")


@by_identity
def _table(buffers: tuple[Buffer, ...]) -> Mapping[str, Buffer]:
    return {buffer.name: buffer for buffer in buffers}


def _verify_pieces(statement: Exec) -> None:
    """The pieces of each operand are all of its elements, each once and in order, under conditions."""
    if len(statement.pieces) != len(statement.accesses):
        where = _described(statement)
        raise VerificationError(f"{where}: pieces of {len(statement.pieces)} operands for {len(statement.accesses)} accesses")
    for access, pieces in zip(statement.accesses, statement.pieces, strict=True):
        count, reached = access.count, 0
        for piece in pieces:
            if piece.first != reached or piece.width < 1:
                raise VerificationError(f"{_described(statement)}: element {reached} of {access.buffer} is followed by a piece {piece}")
            reached += piece.width
            if piece.condition.low < 0 or piece.condition.high > 1:
                raise VerificationError(f"{_described(statement)}: {piece.condition} is no condition")
        if reached != count:
            raise VerificationError(f"{_described(statement)}: the pieces of {access.buffer} have {reached} elements, the access {count}")
