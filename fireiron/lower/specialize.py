"""`specialize`: split a program with producer loads into the programs of its roles, consumers and producers.

The previous passes see one sequential program. Here its statements are partitioned (`roles`): one elected thread issues TMA loads,
dedicated threads copy what TMA does not load, and the consumers do the rest. A fill is acquired, written, used and released in the
statement list that binds its number. MMAs may still read a stage after its last use; `wgmma_waits`, which tracks them, moves such releases
to later positions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from fireiron.errors import DecompositionError
from fireiron.frozen import evolve
from fireiron.ir import (
    Counter,
    Exec,
    For,
    Kernel,
    Let,
    Role,
    Roles,
    Scope,
    SemaphoreAction,
    SemaphoreBarrier,
    Stmt,
    execs,
    rewritten,
    statements,
)
from fireiron.ir.asks.consumer_groups import ConsumerGroups
from fireiron.ir.asks.dynamic_tiles import DynamicTiles
from fireiron.ir.asks.producer_threads import ProducerThreads
from fireiron.ir.effects.residency import Residency
from fireiron.ir.rewrite import without_asks
from fireiron.lower.roles import Part, Partition, Writer
from fireiron.lower.walk import fresh_name, taken_names
from fireiron.values.expr import Var, all_of, as_expr, equal, mod, replaced

GROUP_THREADS = 128
"""Threads of a warpgroup."""

ELECTED_THREADS = 32
"""Threads of a role of which one issues TMA loads, if another role copies or stores; and of a role that stores."""

KEPT = 40
"""Registers per thread that a producer warpgroup keeps: the minimum is 24, with which some producers spill."""

KEPT_AT_LEAST = 32
"""Registers per thread that a producer warpgroup keeps if consumers would otherwise have too few registers."""

SPARE = 16
"""Registers of a consumer in addition to its data: for addresses, conditions and copies by the compiler."""

KEPT_IN_CLUSTER = 56
"""Registers per thread that a producer warpgroup of a cluster keeps: with 40 some spill, and two warpgroups of consumers get as many
registers as with 48.
"""

REGISTERS = 65536
"""Registers of an SM, hence the maximum of a block."""

REGISTER_BYTES = 4
"""Bytes of a register."""

MOST_THREADS = 1024
"""Maximum number of threads of a block."""


def specialize(kernel: Kernel, divide: Callable[[Kernel, int], Partition] | None = None) -> Kernel:
    """Split a kernel into roles.

    `divide` computes the partition from the kernel and the largest number of producer threads that a loop requests (default: `usual`).

    Raises: DecompositionError for TMA loads without a ring.
    """
    split = _specialized(kernel, usual if divide is None else divide)
    body = without_asks(split.body, ProducerThreads, ConsumerGroups, DynamicTiles)
    return split if body is split.body else evolve(split, body=body)


def _specialized(kernel: Kernel, divide: Callable[[Kernel, int], Partition]) -> Kernel:
    without_ring = next((stmt for stmt, _ in execs(kernel.body) if stmt.mechanism.counted and not stmt.ring), None)
    if without_ring is not None:
        raise DecompositionError(
            f"{without_ring.instruction.name} needs a producer, and the strategy has none",
            within=without_ring.spec,
            at=without_ring.origin,
            hint=".split(64).pipeline(4).warp_specialize(), or .coalesced_copy(8) in the load for copies by all threads",
        )
    loops = [stmt for stmt in statements(kernel.body) if isinstance(stmt, For) and ProducerThreads in stmt.asks]
    _require_producer(kernel, loops)
    if not loops:
        return kernel
    _require_no_exit(kernel)
    partition = divide(kernel, max(loop.asks[ProducerThreads].threads for loop in loops))
    rings = tuple(partition.counted(ring) for ring in kernel.rings)
    names = tuple(stmt for stmt in kernel.body if isinstance(stmt, Let))
    program = tuple(stmt for stmt in kernel.body if not isinstance(stmt, Let))
    written = [(part, Writer.of(partition, part, rings).list(program)) for part in partition.parts]
    kernel = evolve(kernel, rings=rings)
    if any(ring.tiles for ring in rings):
        kernel = evolve(kernel, counter=Counter(_fresh(kernel, "tiles_taken")))
    if any(ring.is_order and not ring.each for ring in rings):
        return _alternating(kernel, names, written)
    roles: list[Role] = []
    for part, body in written:
        if part is partition.rest:
            body = _of_consumers(body, part)
        else:
            _require_no_last(kernel, body, part)
        roles.append(Role(part.name, partition.first_thread(part), part.threads, body, part.elected, part.registers))
    return evolve(kernel, body=(*names, Roles(tuple(roles))), threads=partition.threads)


def _require_no_exit(kernel: Kernel) -> None:
    """Refuse semaphores at which blocks exit or wait: producers, which have a separate program, do not learn of it."""
    semaphores = [stmt for stmt in statements(kernel.body) if isinstance(stmt, SemaphoreBarrier)]
    looks_back = kernel.workspace is not None and kernel.workspace.looks_back
    if looks_back or any(stmt.action is not SemaphoreAction.FIND_LAST for stmt in semaphores):
        raise DecompositionError(
            "warp_specialize: at a semaphore all threads of a block wait, but producers have a separate program",
            legal="reduce_in_last_block() and ordered() without warp_specialize", within=kernel.spec,
            hint="remove .warp_specialize(...), or .tile(...).to(Block).stream_k(...) instead of split_k",
        )  # fmt: skip


def _of_consumers(body: tuple[Stmt, ...], part: Part) -> tuple[Stmt, ...]:
    """The program of the consumers, whose threads alone use semaphores."""
    if not any(isinstance(stmt, SemaphoreBarrier) for stmt in statements(body)):
        return body
    scope = Scope(part.name, part.threads)
    return rewritten(body, lambda stmt: (evolve(stmt, scope=scope) if isinstance(stmt, SemaphoreBarrier) else stmt,))


def _require_no_last(kernel: Kernel, body: tuple[Stmt, ...], part: Part) -> None:
    """Refuse work of the last block of a tile in a role that does not learn which block is the last one."""
    last = {stmt.last for stmt in statements(kernel.body) if isinstance(stmt, SemaphoreBarrier)}
    late = next((loop for loop in statements(body) if isinstance(loop, For) and not last.isdisjoint(loop.extent.variables())), None)
    if late is not None:
        stmt = next(stmt for stmt, _ in execs(late.body))
        raise DecompositionError(
            f"warp_specialize: role {part.name} performs {stmt.instruction.name} {stmt.spec} in the epilogue of a tile that blocks share",
            legal="an epilogue by consumers", within=stmt.spec, at=stmt.origin,
            hint="load the operands of the epilogue by threads, remove store_stages=, or persistent() instead of stream_k",
        )  # fmt: skip


def usual(kernel: Kernel, producers: int) -> Partition:
    """The usual partition of a kernel.

    Its parts are the consumers; a warp that stores, if consumers fill rings; threads that copy, if copies fill rings; and a thread that
    issues TMA loads, if these fill rings. An array with a separate producer has separate parts for its copies and its TMA loads.

    Without copies, separate producers and a storing warp, the TMA part has all `producers` threads, and may release registers to the
    consumers.
    """
    stores = [stmt for stmt, _ in execs(kernel.body) if _stores_ring(kernel, stmt)]
    stored = {access.buffer for store in stores for access in store.accesses}
    loads = [stmt for stmt, _ in execs(kernel.body) if stmt.ring and stored.isdisjoint(kernel.ring(stmt.ring).buffers)]
    copies = [load for load in loads if not load.mechanism.counted]
    separate = _separate(kernel, loads)
    if copies or separate or stores:
        what = f"{copies[0].instruction.name} fills a ring with dedicated threads" if copies else "several producers fill a ring"
        hint = "without copies=True, by which all threads copy" if copies else "without separate="
        if stores:
            what, hint = "a warp stores the stages of a ring", "without store_stages="
        first = (stores or copies or loads)[0]
        _require_plain(kernel, first, what, f"warp_specialize() {hint}", only_stores=not copies and not separate)
        if producers != ELECTED_THREADS and not copies:
            what = f"separate={', '.join(separate)}): each of several producers" if separate else "store_stages=): a producer"
            raise DecompositionError(
                f"warp_specialize({producers}, {what} that load{'' if separate else 's'} by TMA is a warp", legal=(ELECTED_THREADS,)
            )
        others = tuple(part for array in ("", *separate) for part in _producers_of(loads, array, separate, producers))
        storing = (Part("storing warp", ELECTED_THREADS, lambda stmt: _stores_ring(kernel, stmt)),) if stores else ()
        return Partition(kernel, (_consumers(kernel, 0), *storing, *sorted(others, key=lambda part: part.elected)))
    groups = _groups(kernel)
    kept = KEPT if groups else _kept(kernel, producers)  # groups are in no cluster
    kept, given = _registers(kernel.workers * (groups or 1), producers, kept, kernel.effects[Residency].blocks)
    return Partition(kernel, (_consumers(kernel, given), _producer(producers, kept)))


def _stores_ring(kernel: Kernel, statement: Exec) -> bool:
    """Whether a statement stores a stage of a ring, which it still reads when its threads continue."""
    in_rings = {name for ring in kernel.rings for name in ring.buffers}
    return statement.mechanism.outlives and any(access.buffer in in_rings for access in statement.accesses)


def _separate(kernel: Kernel, loads: Sequence[Exec]) -> tuple[str, ...]:
    """The arrays with a separate producer."""
    loops = (stmt for stmt in statements(kernel.body) if isinstance(stmt, For))
    separate = tuple(dict.fromkeys(name for loop in loops for name in loop.asks[ProducerThreads].separate))
    loaded = dict.fromkeys(_array_of(load) for load in loads)
    idle = next((name for name in separate if name not in loaded), None)
    if idle is not None:
        raise DecompositionError(
            f"warp_specialize(separate={', '.join(separate)}): no producer loads {idle}", legal=tuple(loaded), hint="leave separate= out"
        )
    return separate


def _array_of(load: Exec) -> str:
    """The array that a load reads."""
    return load.accesses[0].buffer


def _producers_of(loads: Sequence[Exec], array: str, separate: Sequence[str], threads: int) -> Iterator[Part]:
    """The roles that fill rings from an array of `separate`, by copies and by TMA; `array` is empty for all other arrays."""
    name = f" of {array}" if array else ""
    rings = {load.ring for load in loads}

    def is_own(load: Exec, counted: bool) -> bool:
        own = _array_of(load) == array if array else _array_of(load) not in separate
        return load.ring in rings and load.mechanism.counted is counted and own

    if any(is_own(load, False) for load in loads):
        yield Part(f"copying producer{name}", threads, lambda one: is_own(one, False))
    if any(is_own(load, True) for load in loads):
        yield Part(f"producer{name}", ELECTED_THREADS, lambda one: is_own(one, True), elected=True)


def _consumers(kernel: Kernel, registers: int) -> Part:
    """The role whose threads tiles are distributed over."""
    return Part("consumers", kernel.workers, lambda one: True, registers=registers)


def _producer(threads: int, registers: int) -> Part:
    """The role of which one thread issues TMA loads."""
    return Part("producer", threads, lambda one: bool(one.ring), elected=True, registers=registers)


def _groups(kernel: Kernel) -> int:
    """The number of consumer groups that alternate the tiles of a loop; 0 without them."""
    if not any(ring.is_order and not ring.each for ring in kernel.rings):
        return 0
    return next(
        stmt.asks[ConsumerGroups].groups for stmt in statements(kernel.body) if isinstance(stmt, For) and ConsumerGroups in stmt.asks
    )


def _require_plain(kernel: Kernel, load: Exec, requested: str, hint: str, only_stores: bool) -> None:
    """Refuse several producers, threads that copy into rings, and a storing warp where roles do more than fill and use rings; only a
    storing warp is legal in clusters and with dynamic tile scheduling.
    """
    what = ""
    if kernel.cluster is not None and not only_stores:
        what = "in a cluster whose blocks fill stages for each other"
    elif any(ring.is_order for ring in kernel.rings):
        what = "with ordered MMAs or alternating consumer groups"
    elif any(ring.tiles for ring in kernel.rings) and not only_stores:
        what = "with dynamic tile scheduling"
    if what:
        raise DecompositionError(
            f"warp_specialize: {requested}, which is not supported {what}",
            within=load.spec,
            at=load.origin,
            legal="persistent(blocks), or one block per tile",
            hint=hint,
        )


def _require_producer(kernel: Kernel, loops: Sequence[For]) -> None:
    """Require a producer for dynamic tile scheduling: it claims the tiles."""
    fetched = next((stmt for stmt in statements(kernel.body) if isinstance(stmt, For) and DynamicTiles in stmt.asks), None)
    if fetched is not None and not loops:
        raise DecompositionError(
            "persistent(dynamic=True): the kernel has no producer to claim tiles",
            legal="a split with pipeline() and warp_specialize() with TMA loads",
            at=fetched.origin,
            hint="leave out dynamic=True",
        )


def _alternating(kernel: Kernel, names: Sequence[Let], written: Sequence[tuple[Part, tuple[Stmt, ...]]]) -> Kernel:
    """The kernel with a role for each consumer group; the groups alternate the iterations of a loop.

    Thread numbers become numbers within the group, and the threads of one group perform each statement.
    """
    (consumers, program), (producer, loads) = written
    producers = producer.threads
    loop = next(stmt for stmt in statements(kernel.body) if isinstance(stmt, For) and ConsumerGroups in stmt.asks)
    groups, iteration = loop.asks[ConsumerGroups].groups, loop.var
    size, workers = kernel.workers, kernel.workers * groups
    _check_groups(kernel, groups, producers)
    whole = evolve(kernel, workers=workers, threads=workers + producers)
    number = Let(Var(_fresh(kernel, "group_thread"), 0, size - 1), mod(whole.thread, as_expr(size)))
    own = {kernel.thread: number.var}
    in_rings = {name for ring in kernel.rings for name in ring.buffers}

    def role(group: int) -> Role:
        def edit(statement: Stmt) -> tuple[Stmt, ...]:
            statement = statement.substitute(own)
            if isinstance(statement, For) and ConsumerGroups in statement.asks:
                return (evolve(statement, first=group, step=groups),)
            if isinstance(statement, Exec):
                in_group = equal(whole.thread // size, group)
                accesses = tuple(
                    access
                    if access.buffer in in_rings
                    else evolve(access, copy=replaced(access.copy, {iteration % groups: as_expr(group)}))
                    for access in statement.accesses
                )
                lane = statement.lane.substitute(own)
                return (evolve(statement, accesses=accesses, active=all_of((in_group, statement.active)), lane=lane),)
            return (statement,)

        return Role(f"consumers, group {group}", group * size, size, rewritten(program, edit), registers=consumers.registers)

    last = Role(producer.name, workers, producers, loads, elected=True, registers=producer.registers)
    roles = Roles((*(role(group) for group in range(groups)), last))
    return evolve(whole, body=(number, *(let.substitute(own) for let in names), roles))


def _check_groups(kernel: Kernel, groups: int, producers: int) -> None:
    loops = [stmt for stmt in statements(kernel.body) if isinstance(stmt, For) and ProducerThreads in stmt.asks]
    if kernel.workers % GROUP_THREADS:
        raise DecompositionError(
            f"pingpong({groups}): the tile is distributed over {kernel.workers} threads, but a consumer group consists of warpgroups",
            legal="a multiple of 128 threads",
        )
    if len(loops) > 1:
        raise DecompositionError(f"pingpong({groups}): {len(loops)} splits with producers in one tile", legal="one", at=loops[1].origin)
    if kernel.workers * groups + producers > MOST_THREADS:
        raise DecompositionError(
            f"pingpong({groups}): {groups} groups of {kernel.workers} threads and {producers} producer threads do not fit a block",
            legal=f"at most {MOST_THREADS} threads in all",
        )


def _fresh(kernel: Kernel, wanted: str) -> str:
    return fresh_name(wanted, taken_names(kernel))


def _kept(kernel: Kernel, producers: int) -> int:
    """The registers that each producer thread keeps; fewer if the consumers' data needs the registers that they get instead."""
    if kernel.cluster is not None:
        return KEPT_IN_CLUSTER
    data = (
        sum(buffer.tensor.copies * buffer.elements.high * buffer.dtype.bytes for buffer in kernel.buffers if buffer.memory.private)
        // REGISTER_BYTES
    )
    given = [_registers(kernel.workers, producers, kept, kernel.effects[Residency].blocks)[1] for kept in (KEPT, KEPT_AT_LEAST)]
    return KEPT_AT_LEAST if 0 < given[0] < given[1] and data + SPARE > given[0] else KEPT


def _registers(workers: int, producers: int, kept: int, blocks_per_sm: int) -> tuple[int, int]:
    """The registers that each producer thread keeps and that each consumer gets; 0 if they stay as launched.

    Blocks on the same SM (`min_blocks_per_sm`) share its registers.
    """
    if producers < GROUP_THREADS or workers % GROUP_THREADS:
        return 0, 0
    groups = workers // GROUP_THREADS
    launched = min(REGISTERS // ((workers + producers) * max(blocks_per_sm, 1)) // 8 * 8, 248)
    given = min((launched * (groups + 1) - kept) // groups // 8 * 8, 248)
    return (kept, given) if given > launched > kept else (0, 0)
