"""`specialize`: a program with loads that TMA does becomes the programs of two roles, a producer of its own and the consumers.

The passes before see one sequential program. Here the producer takes the loads, with the loops and names around them, and the consumers the
rest. A turn is acquired, filled, used and released in the list of statements that binds its number: in front of its first load or use, and
behind its last use. Products may still read a stage there; `products`, which knows what is under way, moves such releases further back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import attrs

from fireiron.errors import DecompositionError
from fireiron.ir import (
    Acquire,
    Comment,
    Commit,
    Counter,
    Exec,
    For,
    Kernel,
    Leave,
    Let,
    NextTile,
    Peers,
    Release,
    Ring,
    Role,
    Roles,
    Side,
    Skip,
    Stmt,
    SyncPoint,
    execs,
    rewritten,
    statements,
    unknown,
)
from fireiron.ir.asks.fetched import Fetched
from fireiron.ir.asks.grouped import Grouped
from fireiron.ir.asks.produced import Produced
from fireiron.ir.effects.residency import Residency
from fireiron.ir.rewrite import without_asks
from fireiron.lower.walk import fresh_name, taken_names
from fireiron.values.expr import Expr, Var, all_of, as_expr, equal, mod, replaced
from fireiron.values.machine import Warp
from fireiron.values.units import index_in

WARP_THREADS, GROUP_THREADS = 32, 128

KEPT = 40
"""Registers per thread that a producer warpgroup keeps: the minimum is 24, with which some producers spill."""

KEPT_AT_LEAST = 32
"""The same if consumers need more than they would get otherwise."""

SPARE = 16
"""Registers of a consumer in addition to its data, for addresses, conditions and copies by the compiler."""

KEPT_IN_CLUSTER = 56
"""The same for multicast to other blocks: with 40 some spill; consumers of two warpgroups get as many as with 48."""

FOR_CONSUMERS = (Exec, Comment, SyncPoint, Commit, Skip)
"""Statements of which a producer has none, but for its loads."""

REGISTERS = 65536
"""Registers of an SM, hence the maximum of a block."""

REGISTER_BYTES = 4
"""Bytes of a register."""

MOST_THREADS = 1024
"""Most threads of a block."""


def specialize(kernel: Kernel) -> Kernel:
    """The kernel with its producer and consumers apart; a `DecompositionError` for TMA loads without a ring."""
    made = _specialized(kernel)
    body = without_asks(made.body, Produced, Grouped, Fetched)
    return made if body is made.body else attrs.evolve(made, body=body)


def _specialized(kernel: Kernel) -> Kernel:
    lonely = next((one for one, _ in execs(kernel.body) if one.mechanism.counted and not one.ring), None)
    if lonely is not None:
        raise DecompositionError(
            f"{lonely.instruction.name} loads by a producer, and none is asked for",
            within=lonely.spec,
            at=lonely.origin,
            hint=".split(64).pipeline(4).specialize(), or .coalesced(8) in the load for copies by all threads",
        )
    loops = [one for one in statements(kernel.body) if isinstance(one, For) and Produced in one.asks]
    _require_producer(kernel, loops)
    if not loops:
        return kernel
    producers = max(one.asks[Produced].threads for one in loops)
    rings = tuple(_counted(kernel, ring) for ring in kernel.rings)
    names = tuple(one for one in kernel.body if isinstance(one, Let))
    program = tuple(one for one in kernel.body if not isinstance(one, Let))
    lane = index_in(Warp, kernel.thread)
    turns = {ring.name: {one.turn for one, _ in execs(kernel.body) if one.ring == ring.name} for ring in rings}
    several = frozenset(name for name, numbers in turns.items() if len(numbers) > 1)
    consume = _Consumers({ring.name: ring for ring in rings}, equal(lane, 0), _fillers(kernel), several)
    if any(ring.tiles for ring in rings):
        kernel = attrs.evolve(kernel, counter=Counter(_fresh(kernel, "tiles_taken")))
    if any(ring.is_order and not ring.each for ring in rings):
        return _in_turns(attrs.evolve(kernel, rings=rings), program, names, consume, producers, KEPT)  # in no cluster
    kept, given = _registers(kernel.workers, producers, _kept(kernel, producers), kernel.effects[Residency].blocks)
    roles = Roles(
        (
            Role("consumers", 0, kernel.workers, consume.list(program), registers=given),
            Role("producer", kernel.workers, producers, _produced(program, None), elected=True, registers=kept),
        )
    )
    return attrs.evolve(kernel, body=(*names, roles), rings=rings, threads=kernel.workers + producers)


def _require_producer(kernel: Kernel, loops: Sequence[For]) -> None:
    """Tiles that blocks take as they become free are taken by a producer."""
    fetched = next((one for one in statements(kernel.body) if isinstance(one, For) and Fetched in one.asks), None)
    if fetched is not None and not loops:
        raise DecompositionError(
            "persistent(dynamic=True): nothing is loaded by a producer, which would take tiles from the counter ahead of the others",
            legal="a split with pipeline() and specialize() whose loads are done by TMA",
            at=fetched.origin,
            hint="leave dynamic=True out",
        )


def _in_turns(kernel: Kernel, program: Sequence[Stmt], names: Sequence[Let], consume: _Consumers, producers: int, kept: int) -> Kernel:
    """The kernel whose iterations of a loop several groups of consumers take in turns, each a role of its own.

    What was said of a thread is said of its number in its group, and each statement is that of the threads of one group.
    """
    loop = next(one for one in statements(kernel.body) if isinstance(one, For) and Grouped in one.asks)
    groups, turn = loop.asks[Grouped].groups, loop.var
    each, workers = kernel.workers, kernel.workers * groups
    _check_groups(kernel, groups, producers)
    whole = attrs.evolve(kernel, workers=workers, threads=workers + producers)
    number = Let(Var(_fresh(kernel, "group_thread"), 0, each - 1), mod(whole.thread, as_expr(each)))
    own = {kernel.thread: number.var}
    kept, given = _registers(workers, producers, kept, kernel.effects[Residency].blocks)
    in_rings = {name for ring in kernel.rings for name in ring.buffers}

    def role(group: int) -> Role:
        def edit(statement: Stmt) -> tuple[Stmt, ...]:
            statement = statement.substitute(own)
            if isinstance(statement, For) and Grouped in statement.asks:
                return (attrs.evolve(statement, first=group, step=groups),)
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

    producer = Role("producer", workers, producers, _produced(program, None), elected=True, registers=kept)
    roles = Roles((*(role(group) for group in range(groups)), producer))
    return attrs.evolve(whole, body=(number, *(one.substitute(own) for one in names), roles))


def _check_groups(kernel: Kernel, groups: int, producers: int) -> None:
    loops = [one for one in statements(kernel.body) if isinstance(one, For) and Produced in one.asks]
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
    return fresh_name(wanted, taken_names(kernel))


def _counted(kernel: Kernel, ring: Ring) -> Ring:
    """The ring with the bytes that fill a stage, and the warps that empty it; each turn is filled alike, whichever list fills it."""
    sizes: dict[Expr, int] = {}
    for one in (load for load, _ in execs(kernel.body) if load.ring == ring.name):
        sizes[one.turn] = sizes.get(one.turn, 0) + _brought(one) * kernel.buffer(one.accesses[1].buffer).dtype.bytes
    if ring.each:
        return attrs.evolve(ring, consumers=ring.each // WARP_THREADS)
    size = next(iter(sizes.values()), 0)
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


def _kept(kernel: Kernel, producers: int) -> int:
    """The registers that each thread of the producer should keep: fewer where that gives consumers more, and their data want it."""
    if kernel.cluster is not None:
        return KEPT_IN_CLUSTER
    data = sum(one.tensor.copies * one.elements.high * one.dtype.bytes for one in kernel.buffers if one.memory.private) // REGISTER_BYTES
    given = [_registers(kernel.workers, producers, kept, kernel.effects[Residency].blocks)[1] for kept in (KEPT, KEPT_AT_LEAST)]
    return KEPT_AT_LEAST if 0 < given[0] < given[1] and data + SPARE > given[0] else KEPT


def _registers(workers: int, producers: int, kept: int, resident: int) -> tuple[int, int]:
    """The registers that each thread of the producer keeps, and that each consumer gets; 0 where they stay as launched.

    Blocks that share a multiprocessor (`resident`) share its registers.
    """
    if producers < GROUP_THREADS or workers % GROUP_THREADS:
        return 0, 0
    groups = workers // GROUP_THREADS
    launched = min(REGISTERS // ((workers + producers) * max(resident, 1)) // 8 * 8, 248)
    given = min((launched * (groups + 1) - kept) // groups // 8 * 8, 248)
    return (kept, given) if given > launched > kept else (0, 0)


# ---------------------------------------------------------------------------------------------- turns


@attrs.frozen
class _Fill:
    """A turn of a ring."""

    ring: str
    turn: Expr

    @staticmethod
    def of(load: Exec) -> _Fill:
        """The turn that a load fills."""
        return _Fill(load.ring, load.turn)

    def is_bound_in(self, statement: Stmt, loop: For | None) -> bool:
        """Whether its number is the same in all of a statement, and belongs to the list around: that of a loop, or of the whole program.

        What a condition stands around belongs to the list under it: without a turn of it there is nothing to wait for.
        """
        used = self.turn.variables()
        inside = (var for one in statements((statement,)) if isinstance(one, For) for var in _numbers(one))
        here = loop is None or _is_condition(loop) or not used.isdisjoint(_numbers(loop))
        return here and used.isdisjoint(inside) and not any(self._is_filled_in(one) for one in statements((statement,)))

    def _is_filled_in(self, statement: Stmt) -> bool:
        """Whether a statement is a condition around loads of this turn."""
        return _is_condition(statement) and any(one.ring and _Fill.of(one) == self for one, _ in execs((statement,)))


def _is_condition(statement: Stmt) -> bool:
    """Whether it is a loop of one turn or none."""
    return isinstance(statement, For) and statement.extent.low <= 0 and statement.extent.high <= 1


def _numbers(loop: For) -> tuple[Var, ...]:
    """The variables that a loop moves."""
    return (loop.var,) if loop.taken is None else (loop.var, loop.taken)


def _filled(statement: Stmt, loop: For | None) -> list[_Fill]:
    """The turns that loads in a statement fill and whose numbers its list binds, in order."""
    found = dict.fromkeys(_Fill.of(one) for one, _ in execs((statement,)) if one.ring)
    return [fill for fill in found if fill.is_bound_in(statement, loop)]


# ---------------------------------------------------------------------------------------------- producer


def _produced(body: Iterable[Stmt], loop: For | None) -> tuple[Stmt, ...]:
    """The loads of a list, the body of a loop or the whole program: each turn acquired and announced in front of them."""
    kept: list[Stmt] = []
    announced: set[_Fill] = set()
    for statement in body:
        for fill in _filled(statement, loop):
            if fill not in announced:
                announced.add(fill)
                kept += (Acquire(fill.ring, Side.EMPTY, fill.turn), Release(fill.ring, Side.FULL, fill.turn))
        if isinstance(statement, Exec) and statement.ring:
            kept.append(statement)
        elif isinstance(statement, For):
            inner = _produced(statement.body, statement)
            if any(True for _ in execs(inner)):
                kept.append(_fetching(attrs.evolve(statement, body=inner), _takes))
        elif isinstance(statement, Let):
            kept.append(statement)
    return tuple(kept)


def _takes(tile: NextTile) -> tuple[Stmt, ...]:
    """How a producer comes by the number of a tile."""
    return (Acquire(tile.ring, Side.EMPTY, tile.number), attrs.evolve(tile, takes=True), Release(tile.ring, Side.FULL, tile.number))


def _fetching(loop: For, come_by: Callable[[NextTile], tuple[Stmt, ...]]) -> For:
    """A loop over tiles that blocks take as they become free: each begins with its number, and ends the loop where none is left, one turn
    behind all of them at the latest.
    """
    if Fetched not in loop.asks:
        return loop
    said = loop.asks[Fetched]
    number = next(one for one in loop.body if isinstance(one, Let) and one.var.name == said.tile)
    head = (*come_by(NextTile(number.var, said.tiles, said.ring, loop.var)), Leave(number.var, said.tiles))
    rest = tuple(one for one in loop.body if one is not number)
    return attrs.evolve(loop, extent=said.tiles + 1, body=(*head, *rest))


# ---------------------------------------------------------------------------------------------- consumers


@attrs.frozen
class _Consumers:
    """Makes the program of the consumers; `first` is the condition of the lane that speaks for its warp, `fillers` are to whom, if not to
    its own block alone. Of the rings `several` more than one list fills turns.
    """

    rings: dict[str, Ring]
    first: Expr
    fillers: dict[str, tuple[Peers, ...]]
    several: frozenset[str]
    tile: Var | None = None

    def list(self, body: Iterable[Stmt], around: For | None = None) -> tuple[Stmt, ...]:
        """A list, the body of the loop around or the whole program, without its loads: each turn acquired and released."""
        kept: list[Stmt] = []
        fills: dict[_Fill, int] = {}
        for statement in body:
            is_load = any(True for _ in execs((statement,))) and all(one.ring for one, _ in execs((statement,)))
            while is_load and kept and isinstance(kept[-1], Comment):  # it is about the load
                kept.pop()
            for fill in _filled(statement, around):
                fills.setdefault(fill, len(kept))
            if is_load:
                continue
            if isinstance(statement, For):
                inside = attrs.evolve(self, tile=statement.var) if Grouped in statement.asks else self
                loop = attrs.evolve(statement, body=inside.list(statement.body, statement))
                kept += self._ordered(loop) if _is_of_tile(statement, around) else (_fetching(loop, self._is_told),)
            elif isinstance(statement, (Let, *FOR_CONSUMERS)):
                kept.append(statement)
            else:
                raise unknown(statement, "specialize")
        return self._held(kept, fills)

    def _is_told(self, tile: NextTile) -> tuple[Stmt, ...]:
        """How consumers come by the number of a tile."""
        return (Acquire(tile.ring, Side.FULL, tile.number), tile, Release(tile.ring, Side.EMPTY, tile.number, self.first))

    def _held(self, body: Sequence[Stmt], fills: Mapping[_Fill, int]) -> tuple[Stmt, ...]:
        """A list in which each of some turns is acquired in front of its first use, and released behind the last.

        By turn it is said how many statements stand in front of its loads: those behind use it, up to the next turn of that stage.
        """
        before: dict[int, list[Stmt]] = {}
        behind: dict[int, list[Stmt]] = {}
        for fill, place in fills.items():
            ring = self.rings[fill.ring]
            stage = self._stage(fill)
            later = (one for other, one in fills.items() if one > place and other.ring == fill.ring and self._is_of_stage(other, stage))
            end = min(later, default=len(body))
            uses = [number for number in range(place, end) if touches_stage(body[number], ring, stage)] or [end]
            release = Release(ring.name, Side.EMPTY, fill.turn, self.first, self.fillers.get(ring.name, ()))
            before.setdefault(_in_front_of_notes(body[: uses[0]]), []).append(Acquire(ring.name, Side.FULL, fill.turn))
            behind.setdefault(uses[-1], []).append(release)
        found: list[Stmt] = []
        for number in range(len(body) + 1):
            found += [*before.get(number, ()), *body[number : number + 1], *behind.get(number, ())]
        return tuple(found)

    def _stage(self, fill: _Fill) -> Expr | None:
        """The stage of a turn; None where the ring's turns are all of one list, so that none has to be told from others."""
        return mod(fill.turn, as_expr(self.rings[fill.ring].stages)) if fill.ring in self.several else None

    def _is_of_stage(self, fill: _Fill, stage: Expr | None) -> bool:
        """Whether it is a turn of a stage that is told from others."""
        own = self._stage(fill)
        return own is not None and stage is not None and same(own, stage)

    def _ordered(self, loop: For) -> tuple[Stmt, ...]:
        """A tile's loop with all turns of a ring, in the order of tiles that groups take in turns: one behind the other's last products."""
        order = next((ring for ring in self.rings.values() if ring.is_order and not ring.each), None)
        if order is None or self.tile is None:
            return (loop,)
        release = Release(order.name, Side.EMPTY, self.tile, self.first)
        # A barrier for each group, at which none but that group waits: the turn that it waits for is given on one tile before.
        return (Acquire(order.name, Side.EMPTY, self.tile + (order.stages - 1)), loop, release)


def _is_of_tile(loop: For, around: For | None) -> bool:
    """Whether it has all turns of a tile of a producer's ring, itself or in loops inside, where groups take tiles in turns."""
    tiles = around is not None and Grouped in around.asks
    return tiles and any(isinstance(one, For) and Produced in one.asks for one in statements((loop,)))


def touches_stage(statement: Stmt, ring: Ring, stage: Expr | None) -> bool:
    """Whether a turn's stage of a ring is touched in a statement; None for any stage. What a list inside acquires is its own."""
    if isinstance(statement, Exec):
        return any(access.buffer in ring.buffers and (stage is None or same(stage, access.copy)) for access in statement.accesses)
    inside = [one for child in statement.children for one in child]
    acquired = (one.number for one in inside if isinstance(one, Acquire) and one.ring == ring.name)
    own = stage is not None and any(same(stage, mod(number, as_expr(ring.stages))) for number in acquired)
    return not own and any(touches_stage(one, ring, stage) for one in inside)


def same(stage: Expr, other: Expr) -> bool:
    """Whether two stages are the same one, of which a loop of one turn may have a name for 0."""
    return stage == other or (stage.low == stage.high == other.low == other.high)


def _in_front_of_notes(body: Sequence[Stmt]) -> int:
    """The position in front of the comments at the end of a list, which are about what comes behind them."""
    position = len(body)
    while position and isinstance(body[position - 1], Comment):
        position -= 1
    return position
