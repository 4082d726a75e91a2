"""`specialize`: a program with loads that TMA does becomes the programs of two roles, a producer of its own and the consumers.

The passes before see one sequential program. Here the producer takes the loads, with the loops and names around them, and the consumers the
rest; each turn of a ring is acquired before it is filled or used, and released behind. Products still read a stage when the next turn
begins, so its release comes `in flight` turns later.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import attrs

from fireiron.errors import DecompositionError
from fireiron.ir import (
    WARP_SCOPE,
    Acquire,
    Barrier,
    Comment,
    Commit,
    Completion,
    Dependence,
    Exec,
    For,
    Kernel,
    Let,
    Peers,
    Release,
    Ring,
    Role,
    Roles,
    Side,
    Skip,
    Stmt,
    SyncPoint,
    Wait,
    execs,
    rewritten,
    statements,
    unknown,
)
from fireiron.lower.walk import taken_names
from fireiron.values.expr import Expr, Var, all_of, as_expr, equal, less, mod, replaced
from fireiron.values.machine import Warp
from fireiron.values.units import index_in

WARP_THREADS, GROUP_THREADS = 32, 128

KEPT = 40
"""Registers that a thread of a producing warpgroup keeps: 24 are the least, with which some producers spill."""

KEPT_IN_CLUSTER = 56
"""The same where it sends to other blocks: of those with 40 some spill; consumers of two warpgroups get as many as with 48."""

FOR_CONSUMERS = (Exec, Comment, SyncPoint, Commit, Skip)
"""Statements of which a producer has none, but for its loads."""

REGISTERS = 65536
"""Registers of a block at most."""

MOST_THREADS = 1024
"""Threads of a block at most."""


def specialize(kernel: Kernel) -> Kernel:
    """The kernel with its producer and consumers apart; a `DecompositionError` for TMA loads without a ring."""
    lonely = next((one for one, _ in execs(kernel.body) if one.completion is Completion.RING and not one.ring), None)
    if lonely is not None:
        raise DecompositionError(
            f"{lonely.instruction.name} loads by a producer, and none is asked for",
            within=lonely.spec,
            at=lonely.origin,
            hint=".split(64).pipeline(4).specialize(), or .coalesced(8) in the load for copies by all threads",
        )
    loops = [one for one in statements(kernel.body) if isinstance(one, For) and one.producers]
    if not loops:
        return kernel
    producers = max(one.producers for one in loops)
    rings = tuple(_counted(kernel, ring) for ring in kernel.rings)
    names = tuple(one for one in kernel.body if isinstance(one, Let))
    program = tuple(one for one in kernel.body if not isinstance(one, Let))
    lane = index_in(Warp, kernel.thread)
    single = frozenset(one.ring for one, loops in execs(kernel.body) if one.ring and not any(loop.producers for loop in loops))
    consume = _Consumers({ring.name: ring for ring in rings}, _in_flight(kernel), equal(lane, 0), _fillers(kernel), single)
    kept = KEPT if kernel.cluster is None else KEPT_IN_CLUSTER
    if any(not ring.buffers for ring in rings):
        return _in_turns(attrs.evolve(kernel, rings=rings), program, names, consume, producers, kept)
    kept, given = _registers(kernel.workers, producers, kept)
    roles = Roles(
        (
            Role("consumers", 0, kernel.workers, consume.list(program), registers=given),
            Role("producer", kernel.workers, producers, _produced(program, single), elected=True, registers=kept),
        )
    )
    return attrs.evolve(kernel, body=(*names, roles), rings=rings, threads=kernel.workers + producers)


def _in_turns(kernel: Kernel, program: Sequence[Stmt], names: Sequence[Let], consume: _Consumers, producers: int, kept: int) -> Kernel:
    """The kernel whose iterations of a loop several groups of consumers take in turns, each a role of its own.

    What was said of a thread is said of its number in its group, and each statement is that of the threads of one group.
    """
    (groups, turn), *_ = ((one.groups, one.var) for one in statements(kernel.body) if isinstance(one, For) and one.groups > 1)
    each, workers = kernel.workers, kernel.workers * groups
    _check_groups(kernel, groups, producers)
    whole = attrs.evolve(kernel, workers=workers, threads=workers + producers)
    number = Let(Var(_fresh(kernel, "group_thread"), 0, each - 1), mod(whole.thread, as_expr(each)))
    own = {kernel.thread: number.var}
    kept, given = _registers(workers, producers, kept)
    in_rings = {name for ring in kernel.rings for name in ring.buffers}

    def role(group: int) -> Role:
        def edit(statement: Stmt) -> tuple[Stmt, ...]:
            statement = statement.substitute(own)
            if isinstance(statement, For) and statement.groups > 1:
                return (attrs.evolve(statement, groups=1, first=group, step=groups),)
            if isinstance(statement, Exec):
                mine = equal(whole.thread // each, group)
                accesses = tuple(
                    one if one.buffer in in_rings else attrs.evolve(one, copy=replaced(one.copy, {turn % groups: as_expr(group)}))
                    for one in statement.accesses
                )
                lane = statement.lane.substitute(own)
                return (attrs.evolve(statement, accesses=accesses, active=all_of((mine, statement.active)), lane=lane),)
            return (statement,)

        return Role(f"consumers, group {group}", group * each, each, rewritten(consume.list(program), edit), registers=given)

    producer = Role(
        "producer", workers, producers, rewritten(_produced(program, consume.single), _by_one_group), elected=True, registers=kept
    )
    roles = Roles((*(role(group) for group in range(groups)), producer))
    return attrs.evolve(whole, body=(number, *(one.substitute(own) for one in names), roles))


def _by_one_group(statement: Stmt) -> tuple[Stmt, ...]:
    return (attrs.evolve(statement, groups=1),) if isinstance(statement, For) else (statement,)


def _check_groups(kernel: Kernel, groups: int, producers: int) -> None:
    loops = [one for one in statements(kernel.body) if isinstance(one, For) and one.producers]
    if kernel.workers % GROUP_THREADS:
        raise DecompositionError(
            f"turns({groups}): the tile is dealt to {kernel.workers} threads, and a group of consumers is whole warpgroups",
            legal="a multiple of 128 threads",
        )
    if len(loops) > 1:
        raise DecompositionError(f"turns({groups}): {len(loops)} splits with producers in one tile", legal="one", at=loops[1].origin)
    if kernel.workers * groups + producers > MOST_THREADS:
        raise DecompositionError(
            f"turns({groups}): {groups} groups of {kernel.workers} threads and {producers} of the producer",
            legal=f"at most {MOST_THREADS} threads in all",
        )


def _fresh(kernel: Kernel, wanted: str) -> str:
    taken, name, number = taken_names(kernel), wanted, 1
    while name in taken:
        number += 1
        name = f"{wanted}{number}"
    return name


def _counted(kernel: Kernel, ring: Ring) -> Ring:
    """The ring with the bytes that fill a stage, and the warps that empty it."""
    loads = [one for one, _ in execs(kernel.body) if one.ring == ring.name]
    size = sum(_brought(one) * kernel.buffer(one.accesses[1].buffer).dtype.bytes for one in loads)
    blocks = len({rank for peers in _fillers(kernel).get(ring.name, ()) for rank in peers.ranks(0)}) or 1
    return attrs.evolve(ring, bytes=size, consumers=-(-kernel.workers // WARP_THREADS) * blocks)


def _brought(load: Exec) -> int:
    """The elements that a block receives by a load: of those who share it, each brings as many."""
    return math.prod(load.accesses[1].shape) * (1 if load.multicast is None else load.multicast.count)


def _fillers(kernel: Kernel) -> dict[str, tuple[Peers, ...]]:
    """For each ring whose stages blocks of a cluster fill for each other, who they are: whoever sends to a block receives from it, too."""
    found: dict[str, dict[Peers, None]] = {}
    for one, _ in execs(kernel.body):
        if one.multicast is not None:
            found.setdefault(one.ring, {})[one.multicast] = None
    return {ring: tuple(peers) for ring, peers in found.items()}


def _in_flight(kernel: Kernel) -> int:
    """How many groups of products run on while the next turn begins: with several warpgroups one fills the gaps of the others."""
    return 1 if kernel.workers <= GROUP_THREADS else 0


def _registers(workers: int, producers: int, kept: int) -> tuple[int, int]:
    """The registers that each thread of the producer keeps, and that each consumer gets; 0 where they stay as launched."""
    if producers < GROUP_THREADS or workers % GROUP_THREADS:
        return 0, 0
    groups = workers // GROUP_THREADS
    launched = min(REGISTERS // (workers + producers) // 8 * 8, 248)
    given = (launched * (groups + 1) - kept) // groups // 8 * 8
    return (kept, min(given, 248)) if given > launched else (0, 0)


# ---------------------------------------------------------------------------------------------- producer


def _produced(body: Iterable[Stmt], single: frozenset[str]) -> tuple[Stmt, ...]:
    """The loads of a list, each turn of a ring acquired and announced; loads to `single` rings stand in no loop of their own."""
    kept: list[Stmt] = []
    announced: set[str] = set()
    for statement in body:
        if isinstance(statement, Exec) and statement.ring:
            if statement.ring in single and statement.ring not in announced:
                announced.add(statement.ring)
                kept += _announced(statement)
            kept.append(statement)
        elif isinstance(statement, For):
            inner = _produced(statement.body, single)
            if any(True for _ in execs(inner)):
                first = next(one for one, _ in execs(inner)) if statement.producers else None
                kept.append(attrs.evolve(statement, body=(*_announced(first), *inner), producers=0))
        elif isinstance(statement, Let):
            kept.append(statement)
    return tuple(kept)


def _announced(load: Exec | None) -> tuple[Stmt, ...]:
    if load is None:
        return ()
    return (Acquire(load.ring, Side.EMPTY, load.turn), Release(load.ring, Side.FULL, load.turn))


# ---------------------------------------------------------------------------------------------- consumers


@attrs.frozen
class _Consumers:
    """Makes the program of the consumers; `first` is the condition of the lane that speaks for its warp, `fillers` are to whom, if not to
    its own block alone, `single` are rings of which a load outside of loops with a producer is a turn.
    """

    rings: dict[str, Ring]
    in_flight: int
    first: Expr
    fillers: dict[str, tuple[Peers, ...]]
    single: frozenset[str] = frozenset()
    tile: Var | None = None
    around: Var | None = None

    def list(self, body: Iterable[Stmt]) -> tuple[Stmt, ...]:
        """A list without its loads, each turn acquired before it is used and released behind."""
        kept: list[Stmt] = []
        fetched: dict[str, Exec] = {}
        for statement in body:
            if isinstance(statement, Exec) and statement.ring:
                fetched |= {statement.ring: statement} if statement.ring in self.single else {}
                while kept and isinstance(kept[-1], Comment):  # it is about the load
                    kept.pop()
            elif isinstance(statement, For) and statement.producers:
                kept += self._ordered(self._turns(statement))
            elif isinstance(statement, For):
                inside = attrs.evolve(self, tile=statement.var if statement.groups > 1 else self.tile, around=statement.var)
                kept.append(statement.rebuilt((inside.list(statement.body),)))
            elif isinstance(statement, (Let, *FOR_CONSUMERS)):
                kept.append(statement)
            else:
                raise unknown(statement, "specialize")
        for load in fetched.values():
            kept = [*self._held(load, body, kept)]
        return tuple(kept)

    def _held(self, load: Exec, body: Iterable[Stmt], kept: Sequence[Stmt]) -> tuple[Stmt, ...]:
        """What is kept of a list, in which the one turn that a load fills is acquired before its first use and released behind its last."""
        ring = self.rings[load.ring]
        uses = [number for number, one in enumerate(kept) if any(_touches(use, ring) for use, _ in execs((one,)))]
        first, last = (uses[0], uses[-1] + 1) if uses else (len(kept), len(kept))
        used = kept[first:last]
        orders = _orders(tuple(body), ring, used, "" if self.around is None else self.around.name)
        by_engine = any(one.completion is Completion.PRODUCT and _touches(one, ring) for one, _ in execs(tuple(used)))
        done = self._all_read(ring, used, orders, 0 if by_engine else None)
        release = Release(ring.name, Side.EMPTY, load.turn, self.first, self.fillers.get(ring.name, ()))
        return (*kept[:first], Acquire(ring.name, Side.FULL, load.turn), *used, *done, release, *kept[last:])

    def _all_read(self, ring: Ring, uses: Sequence[Stmt], orders: tuple[Dependence, ...], late: int | None) -> Sequence[Stmt]:
        """What a warp does before it says that a stage is empty: it waits for products, if any read it, of so many turns before; and for
        its lanes.
        """
        names = ", ".join(ring.buffers)
        done: list[Stmt] = []
        if late is not None:
            when = ("this turn", "the turn before")[late] if late < 2 else f"{late} turns before"
            done.append(Wait(late, f"{names} of {when} have been read", Completion.PRODUCT, orders=orders))
        if late is None or self._read_by_lanes(uses, ring.name):
            done.append(Barrier(WARP_SCOPE, f"all lanes have read {names}", orders=orders))
        return done

    def _ordered(self, turns: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        """The loop over a ring's turns, in the order of tiles where groups take these in turns: one behind the other's last products."""
        order = next((ring for ring in self.rings.values() if not ring.buffers), None)
        if order is None or self.tile is None:
            return turns
        loop, *behind = turns
        release = Release(order.name, Side.EMPTY, self.tile, self.first)
        # A barrier for each group, at which none but that group waits: the turn that it waits for is given on one tile before.
        return (Acquire(order.name, Side.EMPTY, self.tile + (order.stages - 1)), loop, release, *behind)

    def _turns(self, loop: For) -> tuple[Stmt, ...]:
        load = next(one for one, _ in execs(loop.body) if one.ring)
        uses = self.list(loop.body)
        ring, turn = load.ring, load.turn
        by_engine = any(one.completion is Completion.PRODUCT for one, _ in execs(uses))
        # A turn in flight keeps its stage: of one stage there is none to go on with.
        late = min(self.in_flight, self.rings[ring].stages - 1) if loop.in_flight is None else loop.in_flight
        late = late if by_engine else 0
        names = ", ".join(self.rings[ring].buffers)
        orders = _orders(loop.body, self.rings[ring], uses, loop.var.name)
        done = self._all_read(self.rings[ring], uses, orders, late if by_engine else None)
        began = less(as_expr(late - 1), loop.var)
        to = self.fillers.get(ring, ())
        release = Release(ring, Side.EMPTY, turn - late, self.first if not late else all_of((self.first, began)), to)
        inner = attrs.evolve(loop, body=(Acquire(ring, Side.FULL, turn), *uses, *done, release), producers=0)
        if not late:
            return (inner,)
        last = [
            Release(ring, Side.EMPTY, number, all_of((self.first, less(as_expr(step), loop.extent))), to)
            for step in reversed(range(late))
            for number in [turn.substitute({loop.var: loop.extent - 1 - step})]
        ]
        return (inner, Wait(0, f"{names} of the last turn have been read", Completion.PRODUCT, orders=orders), *last)

    def _read_by_lanes(self, uses: Iterable[Stmt], ring: str) -> bool:
        """Whether lanes read a stage by themselves: one of them speaks for its warp, so all of them must be done."""
        buffers = set(self.rings[ring].buffers)
        by_lanes = (one for one, _ in execs(tuple(uses)) if one.completion is not Completion.PRODUCT)
        return any(access.buffer in buffers for one in by_lanes for access in one.accesses)


def _touches(statement: Exec, ring: Ring) -> bool:
    return any(access.buffer in ring.buffers for access in statement.accesses)


def _orders(body: Sequence[Stmt], ring: Ring, uses: Iterable[Stmt], carried: str) -> tuple[Dependence, ...]:
    """From each use of a stage to the load that fills it again, in a later turn of the loop `carried`."""
    loads = {one.accesses[1].buffer: one for one, _ in execs(tuple(body)) if one.ring == ring.name}
    return tuple(
        Dependence(access.buffer, one, loads[access.buffer], (False, True), carried)
        for one, _ in execs(tuple(uses))
        for access in one.accesses
        if access.buffer in loads
    )
