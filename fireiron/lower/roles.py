"""Roles: a partition of a program's statements, and the program of each part.

    for k: load(k); S(k)   -->   producer:  for k: acquire empty(k); release full(k); load(k)
                                 consumers: for k: acquire full(k); S(k); release empty(k)

Each statement belongs to one part; loops and names are copied to all parts that need them. Dependences between parts go through rings only.
A stage that one part writes and another reads is acquired FULL; one that a part has read and another overwrites is acquired EMPTY. So for
each fill, in the statement list that binds its number, a part that writes it acquires the stage EMPTY before its first write and releases
it FULL. A part that uses it acquires it FULL before its first use and releases it EMPTY after its last one. One procedure writes the
programs of all parts.

If the mbarrier counts the bytes of loads, the part announces them once, before the first load. Copies by threads are released after the
last copy of the fill, by their mechanism: the arrival is deferred until they complete.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import attrs

from fireiron.errors import DecompositionError
from fireiron.frozen import evolve, frozen
from fireiron.ir import (
    Acquire,
    BlockSet,
    ClaimTile,
    Comment,
    Commit,
    Dependence,
    Exec,
    ExitIfDone,
    For,
    IfAnyLane,
    Kernel,
    Let,
    Mechanism,
    Release,
    Ring,
    SemaphoreBarrier,
    StageState,
    Stmt,
    SyncPoint,
    Wait,
    execs,
    rewritten,
    statements,
    substituted,
    unknown,
    variables,
)
from fireiron.ir.asks.consumer_groups import ConsumerGroups
from fireiron.ir.asks.dynamic_tiles import DynamicTiles
from fireiron.ir.asks.producer_threads import ProducerThreads
from fireiron.lower.walk import fresh_name, taken_names
from fireiron.values.expr import TRUE, Expr, Var, all_of, as_expr, constant, equal, less, mod
from fireiron.values.machine import Warp
from fireiron.values.units import THREAD, index_in

WARP_THREADS = 32

FIRST_PART_ONLY = (Comment, SyncPoint, Commit, IfAnyLane, SemaphoreBarrier)
"""Statements that only the first part keeps."""

MOST_UNROLLED = 16
"""Maximum number of rounds that are unrolled, if a part has fewer threads than its copies were distributed over."""


@frozen(eq=False)
class Part:
    """A role: its name, its threads, whether one of them runs its program (`elected`), and whether it `takes` a statement.

    `registers` is the number of registers per thread after `setmaxnreg` (0: as launched).
    """

    name: str
    threads: int
    takes: Callable[[Exec], bool]
    elected: bool = False
    registers: int = 0


@frozen(eq=False)
class Partition:
    """The parts of a program. The first part performs all statements that no other part takes; tiles are distributed over its threads. A
    statement that several other parts take is performed by the first of these.
    """

    kernel: Kernel
    parts: tuple[Part, ...]

    @property
    def rest(self) -> Part:
        """The part whose threads tiles are distributed over."""
        return self.parts[0]

    def owner(self, statement: Exec) -> Part:
        """The part that performs a statement."""
        return next((part for part in self.parts[1:] if part.takes(statement)), self.rest)

    def first_thread(self, part: Part) -> int:
        """The number of the first thread of a part."""
        place = next(number for number, one in enumerate(self.parts) if one is part)
        return sum(one.threads for one in self.parts[:place])

    @property
    def threads(self) -> int:
        """The number of threads of all parts."""
        return sum(part.threads for part in self.parts)

    @property
    def thread(self) -> Var:
        """The variable of a thread of any part."""
        return Var(THREAD.name, 0, self.threads - 1)

    def users(self, ring: Ring) -> tuple[Part, ...]:
        """The parts that use the stages of a ring. If no part uses them, the first part releases them."""
        touching = (
            stmt
            for stmt, _ in execs(self.kernel.body)
            if stmt.ring != ring.name and any(access.buffer in ring.buffers for access in stmt.accesses)
        )
        owners = {id(owner): owner for owner in map(self.owner, touching)}
        return tuple(part for part in self.parts if id(part) in owners) or (self.rest,)

    @property
    def stores(self) -> bool:
        """Whether a part other than the first one stores stages of rings."""
        return any(stmt.mechanism.outlives and self.owner(stmt) is not self.rest for stmt, _ in execs(self.kernel.body))

    def loads(self, ring: Ring) -> Iterator[tuple[Part, Exec]]:
        """The statements that fill a ring, with the parts that perform them."""
        return ((self.owner(stmt), stmt) for stmt, _ in execs(self.kernel.body) if stmt.ring == ring.name)

    def counted(self, ring: Ring) -> Ring:
        """The ring with what its mbarriers expect: bytes, and the arrivals that fill and empty a stage."""
        if ring.each:
            return evolve(ring, consumers=ring.each // WARP_THREADS)
        blocks = len({rank for peers in fillers_of(self.kernel).get(ring.name, ()) for rank in peers.ranks(0)}) or 1
        consumers = sum(1 if part.elected else -(-part.threads // WARP_THREADS) for part in self._emptying(ring)) * blocks
        return evolve(ring, bytes=self.bytes(ring) or 0, consumers=consumers, producers=self._arrivals(ring))

    def _arrivals(self, ring: Ring) -> int:
        """The arrivals that fill a stage: one of each part for counted bytes, and one of each copying thread for each mechanism of its
        copies.

        Raises: DecompositionError if they differ between fills.
        """
        arrivals: dict[Expr, dict[tuple[int, Mechanism | None], int]] = {}
        for part, load in self.loads(ring):
            counted = load.mechanism.counted
            arrivals.setdefault(load.fill_index, {})[id(part), None if counted else load.mechanism] = 1 if counted else part.threads
        counts = {sum(by_mechanism.values()) for by_mechanism in arrivals.values()}
        if len(counts) > 1:
            raise DecompositionError(
                f"{', '.join(ring.buffers)} are one ring, but its fills have {' or '.join(map(str, sorted(counts)))} arrivals",
                legal="the same number for each fill: TMA loads, or copies by threads",
                hint="leave out share_stages, or load both in the same way",
            )
        return next(iter(counts), 1)

    def _emptying(self, ring: Ring) -> tuple[Part, ...]:
        return tuple(part for part in self.parts if part is not self.claiming) if ring.tiles else self.users(ring)

    @property
    def claiming(self) -> Part | None:
        """The part that claims tiles from a counter."""
        return next((part for part in self.parts if part.elected), None)

    def bytes(self, ring: Ring, of: Part | None = None) -> int | None:
        """The bytes that the mbarriers of a ring count per fill, or those that one part loads. All fills of a ring are equal. None for a
        part that fills the ring alone: it announces all bytes.
        """
        sizes: dict[Expr, int] = {}
        parts = set()
        for part, load in self.loads(ring):
            if load.mechanism.counted:
                parts.add(id(part))
                size = _received_elements(load) * self.kernel.buffer(load.accesses[1].buffer).dtype.bytes
                sizes[load.fill_index] = sizes.get(load.fill_index, 0) + (size if of in (None, part) else 0)
        return None if of is not None and len(parts) < 2 else next(iter(sizes.values()), 0)


def _received_elements(load: Exec) -> int:
    """The elements that a block receives by a load; with multicast, from all blocks that share it."""
    return math.prod(load.accesses[1].shape) * (1 if load.multicast is None else load.multicast.count)


def fillers_of(kernel: Kernel) -> dict[str, tuple[BlockSet, ...]]:
    """For each ring that blocks of a cluster fill for each other, the sets of these blocks; a block receives from the blocks that it sends
    to.
    """
    by_ring: dict[str, dict[BlockSet, None]] = {}
    for stmt, _ in execs(kernel.body):
        if stmt.multicast is not None:
            by_ring.setdefault(stmt.ring, {})[stmt.multicast] = None
    return {ring: tuple(peers) for ring, peers in by_ring.items()}


# ---------------------------------------------------------------------------------------------- fills


@frozen
class Fill:
    """A fill of a ring."""

    ring: str
    index: Expr

    @staticmethod
    def of(load: Exec) -> Fill:
        """The fill that a load writes."""
        return Fill(load.ring, load.fill_index)

    def is_bound_in(self, statement: Stmt, loop: For | None) -> bool:
        """Whether its number is the same in all of a statement, and is bound by the enclosing list: that of a loop, or of the whole
        program.

        A conditional fill belongs to the list under the condition: if it is false, there is nothing to wait for.
        """
        used = self.index.variables()
        inside = (var for stmt in statements((statement,)) if isinstance(stmt, For) for var in _numbers(stmt))
        here = loop is None or is_condition(loop) or not used.isdisjoint(_numbers(loop))
        return here and used.isdisjoint(inside) and not any(self._is_filled_in(stmt) for stmt in statements((statement,)))

    def _is_filled_in(self, statement: Stmt) -> bool:
        """Whether a statement is a condition around loads of this fill."""
        return is_condition(statement) and any(stmt.ring and Fill.of(stmt) == self for stmt, _ in execs((statement,)))


def is_condition(statement: Stmt) -> bool:
    """Whether it is a loop with at most one iteration."""
    return isinstance(statement, For) and statement.extent.low <= 0 and statement.extent.high <= 1


def _numbers(loop: For) -> tuple[Var, ...]:
    """The variables that change with the iterations of a loop."""
    return (loop.var,) if loop.prior_iterations is None else (loop.var, loop.prior_iterations)


def _filled(statement: Stmt, loop: For | None) -> list[Fill]:
    """The fills that loads in a statement write and whose numbers its list binds, in order."""
    fills = dict.fromkeys(Fill.of(stmt) for stmt, _ in execs((statement,)) if stmt.ring)
    return [fill for fill in fills if fill.is_bound_in(statement, loop)]


# ---------------------------------------------------------------------------------------------- the program of a part


@frozen(eq=False)
class FillOperations:
    """Where fills are acquired and released in a list: the statements before, and after, the statement at a position."""

    before: dict[int, list[Stmt]] = attrs.field(factory=dict)
    after: dict[int, list[Stmt]] = attrs.field(factory=dict)

    def put(self, body: Sequence[Stmt]) -> tuple[Stmt, ...]:
        """The list with these statements."""
        result: list[Stmt] = []
        for number in range(len(body) + 1):
            result += [*self.before.get(number, ()), *body[number : number + 1], *self.after.get(number, ())]
        return tuple(result)


@frozen(eq=False)
class Writer:
    """Writes the program of one part.

    - `rings`: the rings with their expected arrivals and bytes. `used`: those whose stages the part uses.
    - `shared`: rings that more than one list fills.
    - `fillers`: the blocks to which stages are released, if not only to the own one.
    - `names`: the names of values that differ between threads.
    """

    partition: Partition
    part: Part
    rings: Mapping[str, Ring]
    shared: frozenset[str]
    used: frozenset[str]
    fillers: Mapping[str, tuple[BlockSet, ...]]
    names: Mapping[Var, Expr]
    tile: Var | None = None

    @staticmethod
    def of(partition: Partition, part: Part, rings: Sequence[Ring]) -> Writer:
        """The writer of a part."""
        kernel = partition.kernel
        numbers_by_ring = {ring.name: {stmt.fill_index for stmt, _ in execs(kernel.body) if stmt.ring == ring.name} for ring in rings}
        shared = frozenset(name for name, numbers in numbers_by_ring.items() if len(numbers) > 1)
        used = frozenset(ring.name for ring in rings if any(one is part for one in partition.users(ring)))
        return Writer(partition, part, {ring.name: ring for ring in rings}, shared, used, fillers_of(kernel), _names_of_threads(kernel))

    def list(self, body: Iterable[Stmt], around: For | None = None) -> tuple[Stmt, ...]:
        """A list (the body of a loop, or the whole program) without the statements of other parts, with its fills acquired and released."""
        kept: list[Stmt] = []
        uses: dict[Fill, int] = {}
        fills: dict[Fill, list[tuple[int, Exec]]] = {}
        by_others: dict[Mechanism, bool] = {}
        for statement in body:
            inside = [stmt for stmt, _ in execs((statement,))]
            own = [stmt for stmt in inside if self.partition.owner(stmt) is self.part]
            if isinstance(statement, Commit) and by_others.pop(statement.mechanism, False):
                continue
            for stmt in inside:
                by_others[stmt.mechanism] = stmt not in own and by_others.get(stmt.mechanism, True)
            while inside and not own and kept and isinstance(kept[-1], Comment):  # it describes statements of other parts
                kept.pop()
            filled = _filled(statement, around)
            for fill in filled:
                uses.setdefault(fill, len(kept))
                fills.setdefault(fill, []).extend((len(kept), one) for one in own if one.ring and Fill.of(one) == fill)
            if own or not inside:
                kept += self._own(statement, around, any(one.ring for one in own) and bool(filled))
        result = self._with_fills(kept, uses, {fill: loads for fill, loads in fills.items() if loads})
        shares = self.partition.kernel.workspace is not None  # only consumers use the names of partial results
        keeps_all = (len(self.partition.parts) == 2 and not shares) or (self.part is self.partition.rest and not self.partition.stores)
        return result if keeps_all else _used(result, around)

    def _own(self, statement: Stmt, around: For | None, fills: bool) -> tuple[Stmt, ...]:
        """The statements that the part performs for a statement. One that fills stages may be redistributed over the part's threads."""
        match statement:
            case Exec() if self._redistributes and statement.mechanism.outlives:
                return self._stored(statement)
            case Exec():
                return self._redistributed(statement) if fills else self._require_ring_load(statement)
            case Let():
                return () if self._redistributes and statement.var in self.names else (statement,)
            case For():
                return self._loop(statement, around, fills)
            case _ if not isinstance(statement, FIRST_PART_ONLY):
                raise unknown(statement, "specialize")
            case _ if self.part is self.partition.rest:
                return (statement,)
        return ()

    def _loop(self, statement: For, around: For | None, fills: bool) -> tuple[Stmt, ...]:
        inside = evolve(self, tile=statement.var) if ConsumerGroups in statement.asks else self
        loop = evolve(statement, body=inside.list(statement.body, statement))
        if self.part is not self.partition.rest and not any(True for _ in execs(loop.body)):
            return ()
        if self.part is self.partition.rest and _is_of_tile(statement, around):
            return self._ordered(loop)
        loop = _dynamic_loop(loop, _claim if self.part is self.partition.claiming else self._received_tile)
        return self._redistributed(loop) if fills else self._overlapped(loop)

    def _received_tile(self, tile: ClaimTile) -> tuple[Stmt, ...]:
        """The statements by which a part that claims no tiles receives the number of a tile."""
        return (
            Acquire(tile.ring, StageState.FULL, tile.fill_index),
            tile,
            Release(tile.ring, StageState.EMPTY, tile.fill_index, self.elected_lane),
        )

    @property
    def elected_lane(self) -> Expr:
        """The condition of the lane that arrives for its warp."""
        if self.part.elected:
            return TRUE
        first = self.part is self.partition.rest
        return equal(index_in(Warp, self.partition.kernel.thread if first else self.partition.thread), 0)

    # ------------------------------------------------------------------------------------------ fills of a list

    def _with_fills(
        self, body: Sequence[Stmt], uses: Mapping[Fill, int], fills: Mapping[Fill, Sequence[tuple[int, Exec]]]
    ) -> tuple[Stmt, ...]:
        operations = FillOperations()
        for fill, loads in fills.items():
            self._fill(fill, loads, operations)
        for fill, place in uses.items():
            if fill.ring in self.used:
                self._use(fill, place, body, uses, operations)
        return operations.put(body)

    def _fill(self, fill: Fill, loads: Sequence[tuple[int, Exec]], operations: FillOperations) -> None:
        """Add the operations of a fill that the part writes. It is acquired empty before the first load, where counted bytes are announced.
        It is released full after the last copy, by the mechanisms of the copies.
        """
        first, ring = loads[0][0], self.rings[fill.ring]
        operations.before.setdefault(first, []).append(Acquire(fill.ring, StageState.EMPTY, fill.index))
        if any(one.mechanism.counted for _, one in loads):
            part = self.partition.bytes(ring, self.part)
            operations.before[first].append(Release(fill.ring, StageState.FULL, fill.index, part=part))
        copied: dict[Mechanism, int] = {one.mechanism: place for place, one in loads if not one.mechanism.counted}
        for mechanism in sorted(copied, key=lambda one: (one.rank, one.name)):
            last = max(copied.values())
            operations.after.setdefault(last, []).append(Release(fill.ring, StageState.FULL, fill.index, by=mechanism))

    def _use(self, fill: Fill, place: int, body: Sequence[Stmt], uses: Mapping[Fill, int], operations: FillOperations) -> None:
        """Add the operations of a fill that the part uses. It is acquired full before the first use, and released empty after the last one.

        `place` is the number of statements before its loads. The statements after the loads use it, up to the next fill of the stage.
        """
        ring = self.rings[fill.ring]
        stage = self._stage(fill)
        later = (one for other, one in uses.items() if one > place and other.ring == fill.ring and self._is_of_stage(other, stage))
        end = min(later, default=len(body))
        positions = [number for number in range(place, end) if uses_stage(body[number], ring, stage)] or [end]
        release = Release(ring.name, StageState.EMPTY, fill.index, self.elected_lane, self.fillers.get(ring.name, ()))
        operations.before.setdefault(_before_comments(body[: positions[0]]), []).append(Acquire(ring.name, StageState.FULL, fill.index))
        last = positions[-1]
        while last + 1 < len(body) and isinstance(body[last + 1], (Commit, Wait)):
            last += 1
        operations.after.setdefault(last, []).append(release)

    def _stage(self, fill: Fill) -> Expr | None:
        """The stage of a fill; None if all fills of the ring belong to one list, so that stages need not be distinguished."""
        return mod(fill.index, as_expr(self.rings[fill.ring].stages)) if fill.ring in self.shared else None

    def _is_of_stage(self, fill: Fill, stage: Expr | None) -> bool:
        """Whether a fill is known to be of this stage, if stages must be distinguished."""
        own = self._stage(fill)
        return own is not None and stage is not None and same_stage(own, stage)

    def _ordered(self, loop: For) -> tuple[Stmt, ...]:
        """The loop of a tile, if consumer groups alternate tiles: it starts after the last MMAs of the previous tile."""
        order = next((ring for ring in self.rings.values() if ring.is_order and not ring.each), None)
        if order is None or self.tile is None:
            return (loop,)
        release = Release(order.name, StageState.EMPTY, self.tile, self.elected_lane)
        # One mbarrier per group, on which only that group waits; the previous tile releases the fill that it waits for.
        return (Acquire(order.name, StageState.EMPTY, self.tile + (order.stages - 1)), loop, release)

    # ------------------------------------------------------------------------------------------ other threads

    @property
    def _redistributes(self) -> bool:
        """Whether the part has its own threads, over which the first part's statements are redistributed."""
        return self.part is not self.partition.rest and not self.part.elected

    def _require_ring_load(self, statement: Exec) -> tuple[Stmt, ...]:
        """Refuse a statement that fills no ring, except in the first part. A load in an inner loop is redistributed with that loop."""
        if self.part is not self.partition.rest and not statement.ring:
            raise DecompositionError(
                f"the role {self.part.name} would perform {statement.instruction.name} {statement.spec}, which fills no ring",
                within=statement.spec,
                at=statement.origin,
                legal="loads into a ring, in roles over whose threads no tiles are distributed",
            )
        return (statement,)

    def _stored(self, statement: Exec) -> tuple[Stmt, ...]:
        """The stores of all units of the first part, one after the other, as one group, and the wait until they have read shared memory.

        The part is a warp, whose first lane issues them.
        """
        kernel, unit = self.partition.kernel, statement.spec.level.threads or 1
        units = kernel.workers // unit
        index = Var(fresh_name("unit", taken_names(kernel)), 0, units - 1)
        items: Sequence[Stmt] = (evolve(statement, spec=evolve(statement.spec, level=Warp)),)
        while not self.names.keys().isdisjoint(variables(items)):
            items = tuple(substituted(items, dict(self.names)))
        (store,) = substituted(items, {kernel.thread: index * unit})
        assert isinstance(store, Exec)
        store = evolve(store, lane=index_in(Warp, self.partition.thread))
        stores = (store,) if units == 1 else (For(index, as_expr(units), (store,), True),)
        return (*stores, Commit(store.mechanism), self._wait_for_reads(store))

    def _wait_for_reads(self, store: Exec) -> Wait:
        """The wait until a store has read its stage, which is filled again after it."""
        read = {access.buffer for access in store.accesses if not access.write}
        fills = (stmt for stmt, _ in execs(self.partition.kernel.body) if stmt.ring)
        orders = tuple(
            Dependence(access.buffer, store, fill, (False, True))
            for fill in fills
            for access in fill.accesses
            if access.write and access.buffer in read
        )
        return Wait(0, f"{', '.join(sorted(read))} has {store.mechanism.done}", store.mechanism, orders=orders)

    def _overlapped(self, loop: For) -> tuple[Stmt, ...]:
        """A loop whose iterations each store a stage: the store stays in flight until the next iteration, which releases the stage.

        After the loop, all stores are waited for, and the last stage of each ring is released.
        """
        waits = [stmt for stmt in loop.body if isinstance(stmt, Wait) and stmt.mechanism.outlives]
        releases = [stmt for stmt in loop.body if isinstance(stmt, Release)]
        acquired = {stmt.ring for stmt in loop.body if isinstance(stmt, Acquire)}
        count = constant(loop.extent) or 0
        if not waits or count < 2 or any(self.rings[stmt.ring].stages < 2 or stmt.ring not in acquired for stmt in releases):
            return (loop,)

        def later(stmt: Stmt) -> Stmt:
            if isinstance(stmt, Release):
                before = stmt.fill_index.substitute({loop.var: loop.var - 1})
                return evolve(stmt, fill_index=before, active=all_of((stmt.active, less(0, loop.var))))
            return evolve(stmt, groups=1) if stmt in waits else stmt

        last = {loop.var: count - 1}
        return (evolve(loop, body=tuple(map(later, loop.body))), *waits[-1:], *(stmt.substitute(last) for stmt in releases))

    def _redistributed(self, statement: Stmt) -> tuple[Stmt, ...]:
        """Copies of the first part's threads, redistributed over the threads of this part, in rounds if these are fewer."""
        if not self._redistributes:
            return (statement,)
        kernel, threads = self.partition.kernel, self.part.threads
        for stmt, _ in execs((statement,)):
            _require_of_threads(stmt, self.part)
        rounds = kernel.workers // threads
        if kernel.workers % threads or self.partition.first_thread(self.part) % threads:
            raise DecompositionError(
                f"{threads} threads cannot perform copies that are distributed over {kernel.workers} threads",
                legal=f"a divisor of {kernel.workers}",
            )
        number = mod(self.partition.thread, as_expr(threads))
        index = Var(fresh_name("portion", taken_names(kernel)), 0, rounds - 1)
        own = {kernel.thread: number if rounds == 1 else number + index * threads}
        items: Sequence[Stmt] = (statement,)
        while not self.names.keys().isdisjoint(variables(items)):
            items = tuple(substituted(items, dict(self.names)))
        items = rewritten(
            tuple(substituted(items, own)),
            lambda one: (evolve(one, lane=one.lane.substitute(own)),) if isinstance(one, Exec) else (one,),
        )
        return tuple(items) if rounds == 1 else (For(index, as_expr(rounds), tuple(items), rounds <= MOST_UNROLLED),)


def _require_of_threads(copy: Exec, part: Part) -> None:
    """Require a copy that any thread can perform for another: by single threads, from global to shared memory."""
    shared_by = [memory.shared_by for memory in copy.spec.memories]
    if copy.spec.moves and copy.spec.level.threads == 1 and shared_by == ["grid", "block"] and not copy.scratch:
        return
    raise DecompositionError(
        f"{copy.instruction.name} {copy.spec} fills a ring, but the {part.threads} threads of role {part.name} cannot perform it",
        within=copy.spec,
        at=copy.origin,
        legal="copies by single threads from global to shared memory",
        hint=".coalesced_copy(8) in the load",
    )


def _names_of_threads(kernel: Kernel) -> Mapping[Var, Expr]:
    """The names of values that differ between threads."""
    result: dict[Var, Expr] = {}
    for stmt in statements(kernel.body):
        if isinstance(stmt, Let) and not stmt.value.variables().isdisjoint({kernel.thread, *result}):
            result[stmt.var] = stmt.value
    return result


def _used(body: Sequence[Stmt], around: For | None) -> tuple[Stmt, ...]:
    """A list without names that nothing after them uses: each role keeps only its own."""
    used = set() if around is None else set(around.increment.variables())
    tile = "" if around is None else around.asks[DynamicTiles].tile  # every role receives it, also without a use
    kept: list[Stmt] = []
    for stmt in reversed(body):
        if not isinstance(stmt, Let) or stmt.var in used or stmt.var.name == tile:
            used |= variables((stmt,))
            kept.append(stmt)
    return tuple(reversed(kept))


def _claim(tile: ClaimTile) -> tuple[Stmt, ...]:
    """The statements by which a producer claims a tile."""
    return (
        Acquire(tile.ring, StageState.EMPTY, tile.fill_index),
        evolve(tile, takes=True),
        Release(tile.ring, StageState.FULL, tile.fill_index),
    )


def _dynamic_loop(loop: For, receive: Callable[[ClaimTile], tuple[Stmt, ...]]) -> For:
    """A loop over dynamically scheduled tiles: each iteration begins with its tile number and exits the loop if none is left, at the latest
    in the iteration after all of them.
    """
    if DynamicTiles not in loop.asks:
        return loop
    request = loop.asks[DynamicTiles]
    number = next(stmt for stmt in loop.body if isinstance(stmt, Let) and stmt.var.name == request.tile)
    head = (*receive(ClaimTile(number.var, request.tiles, request.ring, loop.var)), ExitIfDone(number.var, request.tiles))
    rest = tuple(stmt for stmt in loop.body if stmt is not number)
    return evolve(loop, extent=request.tiles + 1, body=(*head, *rest))


def _is_of_tile(loop: For, around: For | None) -> bool:
    """Whether consumer groups alternate tiles, and a loop contains all fills of a tile."""
    tiles = around is not None and ConsumerGroups in around.asks
    return tiles and any(isinstance(stmt, For) and ProducerThreads in stmt.asks for stmt in statements((loop,)))


def uses_stage(statement: Stmt, ring: Ring, stage: Expr | None) -> bool:
    """Whether a statement accesses a stage of a ring (None: any stage). Fills that an inner list acquires do not count."""
    if isinstance(statement, Exec):
        return any(access.buffer in ring.buffers and (stage is None or same_stage(stage, access.copy)) for access in statement.accesses)
    inside = [one for child in statement.children for one in child]
    acquired = (stmt.fill_index for stmt in inside if isinstance(stmt, Acquire) and stmt.ring == ring.name)
    own = stage is not None and any(same_stage(stage, mod(number, as_expr(ring.stages))) for number in acquired)
    return not own and any(uses_stage(stmt, ring, stage) for stmt in inside)


def same_stage(stage: Expr, other: Expr) -> bool:
    """Whether two stages are equal; a loop of one iteration may use a name for 0."""
    return stage == other or (stage.low == stage.high == other.low == other.high)


def _before_comments(body: Sequence[Stmt]) -> int:
    """The position before the comments at the end of a list, which describe what follows."""
    position = len(body)
    while position and isinstance(body[position - 1], Comment):
        position -= 1
    return position


__all__ = ["Fill", "Part", "Partition", "Writer", "is_condition", "same_stage", "uses_stage"]
