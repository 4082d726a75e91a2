"""Rings in a simulation: barriers in memory with their phases, loads on their way, and who holds which turn.

A group of threads holds a turn between acquiring and releasing it, and may touch the stage of a turn that it holds, and no other. A
phase is over when all have arrived and all announced bytes are there; whoever waits sees its parity alone, so it is checked that
the phase which let it pass is the one that it meant.

In a cluster a block's loads and arrivals come to the rings of others, too. They may only between two barriers of the cluster: behind the
one that says that the others' barriers are made, in front of one behind which they end.
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import attrs
import numpy as np

from fireiron.errors import SimulationError
from fireiron.ir import Acquire, BlockSet, ClaimTile, Mechanism, Release, Ring, StageState
from fireiron.sim.locations import ThreadGroup
from fireiron.sim.plan import Operand, Plan, PlannedStatement
from fireiron.values.expr import compiled

WARP = 32


def warps(numbers: Iterable[int]) -> str:
    """Warps by their numbers, for a message: `warp 3`, `warps 0 to 3, 6`."""
    found = sorted(set(numbers))
    runs = [[one for _, one in run] for _, run in itertools.groupby(enumerate(found), key=lambda pair: pair[1] - pair[0])]
    spans = [f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs]
    return f"warp{'s' if len(found) > 1 else ''} {', '.join(spans)}"


def require_given_back(group: ThreadGroup) -> None:
    """A group that ends has released each turn that it waited for to be full."""
    for ring, turn, side in sorted(group.held, key=lambda one: one[:2]):
        if side is StageState.FULL:
            raise SimulationError(
                f"{ring}: a group ends that holds turn {turn} full", hint="release it behind the last use, also if nobody fills it again"
            )


def require_stored(group: ThreadGroup) -> None:
    """A group that ends has waited for its stores by TMA to have read shared memory."""
    if any(mechanism.outlives and (any(flight.groups) or flight.issued) for mechanism, flight in group.flights.items()):
        raise SimulationError("a store by TMA reads shared memory beyond the end of the kernel", hint="a wait for its group at the end")


def _nothing_lands(done: Iterable[Any], group: ThreadGroup, mechanism: Mechanism) -> None:
    """What is done when a deferred arrival happens, where no statement is executed."""


BARRIER = 8
"""Bytes of an mbarrier, and its alignment (PTX ISA, "mbarrier", "Size and alignment of mbarrier object")."""


def check_barriers(plan: Plan) -> None:
    """Refuse a kernel whose barriers do not lie in bytes of their own, inside the shared memory of the block.

    Whoever writes to the bytes of a barrier ends its phases, or none of them, so no run says anything of what a GPU would do.
    """
    ranges = [(ring.offset, ring.offset + ring.barrier_bytes, f"the barriers of {ring.name}") for ring in plan.kernel.rings]
    for start, end, name in ranges:
        if start % BARRIER:
            raise SimulationError(f"{name} begin at byte {start} of shared memory", legal=f"a multiple of {BARRIER}")
        if start < 0 or end > plan.kernel.shared_bytes:
            raise SimulationError(f"{name} are bytes {start} ... {end - 1} of shared memory", legal=f"0 ... {plan.kernel.shared_bytes - 1}")
    ranges += [(one.offset, one.offset + one.bytes, one.name) for one in plan.shared_in_use]
    for number in range(len(plan.kernel.rings)):
        start, end, name = ranges[number]
        for other_start, other_end, other in ranges[number + 1 :]:
            if start < other_end and other_start < end:
                what = f"{name} and {other} lie in the same bytes of shared memory, from byte {max(start, other_start)} on"
                raise SimulationError(what, legal="bytes of their own, which nothing else is written to while the block runs")


@attrs.define(eq=False)
class MbarrierState:
    """One barrier: arrivals and bytes that its phase still lacks, and how many phases are over."""

    arrivals: int
    left: int
    bytes: int = 0
    over: int = 0

    def arrive(self) -> None:
        """One arrival."""
        self.left -= 1
        self._settle()

    def bring(self, size: int) -> None:
        """Bytes that are there."""
        self.bytes -= size
        self._settle()

    def _settle(self) -> None:
        if self.left == 0 and self.bytes == 0:
            self.left = self.arrivals
            self.over += 1


@attrs.define(eq=False)
class Load:
    """A load on its way: where it goes, and what brings it there. Or what a group has under way, with `arrivals` at a barrier of a `side`
    that happen when all of it is done: those of one group happen in order, as each waits for all that was issued before it.
    """

    ring: str
    turn: int
    size: int
    land: Callable[[], None]
    arrivals: int = 0
    group: ThreadGroup | None = None
    side: StageState = StageState.FULL


class Rings:
    """All rings of the blocks of a chunk, which run alike; `cluster` are those of all blocks of a cluster, by rank.

    `reached` is how many barriers of the cluster those had passed who came from other blocks, at most. `left` are the tiles that the block
    has yet to take, `numbers` those in the stages of rings of tiles.
    """

    def __init__(self, plan: Plan, rank: int = 0, dealt: Sequence[int] = ()) -> None:
        self.plan, self.rank = plan, rank
        self.landed: Callable[[Iterable[Any], ThreadGroup, Mechanism], None] = _nothing_lands
        self.left = list(dealt)
        self.numbers: dict[tuple[str, int], int] = {}
        self.cluster: Sequence[Rings] = (self,)
        self.reached = -1
        self.emptied: dict[tuple[str, int], int] = {}
        self.rings: Mapping[str, Ring] = {ring.name: ring for ring in plan.kernel.rings}
        self.of_buffer = {name: ring.name for ring in plan.kernel.rings for name in ring.buffers}
        self.phases = {
            (ring.name, side, stage): MbarrierState(arrivals, arrivals)
            for ring in plan.kernel.rings
            for side, arrivals in ((StageState.FULL, ring.producers), (StageState.EMPTY, ring.consumers))
            for stage in range(ring.stages)
        }
        self.loads: list[Load] = []
        self.filled: dict[tuple[str, int], None] = {}
        self.awaited: set[tuple[str, int]] = set()
        self.released: dict[tuple[str, StageState, int], list[tuple[int, int]]] = {}  # by the ranks of blocks, and their warps
        self.copying: Counter[tuple[str, int]] = Counter()  # copies under way to a stage of a buffer, which an arrival may wait for
        # By turn the buffers that threads filled, and that none of these brought to engines.
        self.unfenced: dict[tuple[str, int], set[str]] = {}

    def passes(self, statement: Acquire, env: Mapping[str, Any], group: ThreadGroup, where: str) -> bool:
        """Whether a group may go on behind a wait; then it holds the turn."""
        ring, turn = self.rings[statement.ring], self.turn(statement, env)
        over = self.phases[ring.name, statement.state, turn % ring.stages].over
        # Parity is all that the barrier tells: of full phases the one of this round, of empty ones the one before must be over.
        wanted = turn // ring.stages + (statement.state is StageState.FULL)
        if (over - wanted) % 2:
            return False
        if over != wanted:
            raise SimulationError(
                f"{ring.name}: the wait for turn {turn} to be {statement.state.value} passes by parity alone: "
                f"{over} phases are over, not {wanted}",
                within=where,
                hint="no group may run a whole round ahead of another",
            )
        group.held.add((ring.name, turn, statement.state))
        stage = turn % ring.stages
        if statement.state is StageState.FULL:
            self.awaited.add((ring.name, turn))
            group.hidden -= {(name, stage) for name in ring.buffers}
            group.hidden |= {(name, stage) for name in self.unfenced.get((ring.name, turn), ())}
        else:
            group.filled.discard((ring.name, stage))
        return True

    def turn(self, statement: Acquire | Release, env: Mapping[str, Any]) -> int:
        """The turn that a statement means."""
        value = np.asarray(compiled(statement.fill_index)(env))
        return int(value.flat[0])

    def release(self, statement: Release, env: Mapping[str, Any], group: ThreadGroup, where: str) -> None:
        """A group is done with a turn: with filling it, which the bytes of its loads will complete, or with using it."""
        active = np.broadcast_to(np.asarray(compiled(statement.active)(env), dtype=bool), (group.threads.size, 1))[:, 0]
        ring, turn = self.rings[statement.ring], self.turn(statement, env)
        arriving = int(active.sum())
        if not arriving:
            return
        held = StageState.EMPTY if statement.state is StageState.FULL or ring.is_order else StageState.FULL
        # Of an order, which is never full, a group says at its turn what the next one waits for, as many turns later as it has stages.
        own = turn + ring.stages - 1 if ring.is_order else turn
        if (ring.name, own, held) not in group.held:
            raise SimulationError(f"{ring.name}: turn {turn} is released by a group that does not hold it", within=where)
        who = [(self.rank, int(one) // WARP) for one in group.threads[active]]
        if statement.state is StageState.FULL and statement.by is not None:
            self._filled_by(statement.by, ring, turn, group)
        elif statement.state is StageState.FULL:
            self.phases[ring.name, statement.state, turn % ring.stages].bytes += ring.bytes if statement.part is None else statement.part
        else:
            self._require_read(ring, turn, group, statement.by, where)
            if arriving < group.threads.size and (ring.name, turn % ring.stages) in group.apart:
                raise SimulationError(
                    f"{ring.name}: turn {turn} is released by one lane, and the others of its warp may still read it",
                    within=where,
                    hint="a barrier of the warp before",
                )
            group.held.discard((ring.name, own, held))
            self.emptied[ring.name, turn] = self.emptied.get((ring.name, turn), 0) + arriving
        under_way = [] if statement.by is None else group.flights[statement.by].taken()
        if under_way and arriving < group.threads.size:
            lanes = f"{arriving} of {group.threads.size} lanes"
            raise SimulationError(
                f"{ring.name}: turn {turn} is released by {lanes} while work of all lanes, by {statement.by}, is under way",
                within=where,
                hint="an arrival of each lane",
            )
        for rings in self.reach(statement.to, env, group, f"{ring.name}: turn {turn} is released", where):
            rings.released.setdefault((ring.name, statement.state, turn), []).extend(who)
            if under_way and statement.by is not None:
                land = functools.partial(self.landed, under_way, group, statement.by)
                rings.loads.append(Load(ring.name, turn, 0, land, arriving, group, statement.state))
                continue
            for _ in range(arriving):
                rings.phases[ring.name, statement.state, turn % ring.stages].arrive()

    def _filled_by(self, mechanism: Mechanism, ring: Ring, turn: int, group: ThreadGroup) -> None:
        """Threads say that they have filled their part of a stage: it is full when all is done that they issued by a mechanism."""
        flight, stage = group.flights[mechanism], turn % ring.stages
        late = mechanism.writes_late and not mechanism.by_engine
        copies = itertools.chain(flight.issued, *flight.groups) if late else ()
        places = group.unfenced_stages.union(*(self._places(write, env) for _, write, _, _, env in copies))
        self.unfenced.setdefault((ring.name, turn), set()).update(name for name in ring.buffers if (name, stage) in places)
        group.filled.add((ring.name, stage))
        self.filled[ring.name, turn] = None

    def _places(self, operand: Operand, env: Mapping[str, Any]) -> set[tuple[str, int]]:
        """The stages of a ring that an access is to, of its buffer."""
        return {(operand.buffer.name, stage) for _, stage in self.stages_of(operand, env)}

    def issued(self, operand: Operand, env: Mapping[str, Any]) -> None:
        """A copy to a stage is under way."""
        self.copying.update(self._places(operand, env))

    def arrived(self, operand: Operand, env: Mapping[str, Any]) -> None:
        """A copy to a stage is there."""
        self.copying.subtract(self._places(operand, env))

    def tile(self, statement: ClaimTile, env: Mapping[str, Any], group: ThreadGroup, where: str) -> int:
        """The number of the block's tile at a turn: taken, and left in the stage, which the group holds empty; or read there."""
        ring, turn = self.rings[statement.ring], int(np.asarray(compiled(statement.fill_index)(env)).flat[0])
        side = StageState.EMPTY if statement.takes else StageState.FULL
        if (ring.name, turn, side) not in group.held:
            verb = "left in a stage" if statement.takes else "read"
            raise SimulationError(
                f"{ring.name}: the number of turn {turn} is {verb} by a group that does not hold it {side.value}",
                within=where,
                hint="acquire the turn before, release it behind",
            )
        if statement.takes:
            count = int(np.asarray(compiled(statement.tiles)(env)).flat[0])
            self.numbers[ring.name, turn % ring.stages] = self.left.pop(0) if self.left else count
        return self.numbers[ring.name, turn % ring.stages]

    def reach(self, to: Sequence[BlockSet], env: Mapping[str, Any], group: ThreadGroup, what: str, where: str) -> list[Rings]:
        """The rings of the blocks that a group reaches into, each once; its own where none are named."""
        ranks = dict.fromkeys(rank for peers in to for rank in peers.ranks(int(np.asarray(compiled(peers.first)(env)).flat[0])))
        found = []
        for rank in ranks if to else (self.rank,):
            if rank >= len(self.cluster):
                raise SimulationError(f"{what} in block {rank} of a cluster of {len(self.cluster)}", within=where)
            rings = self.cluster[rank]
            if rings is not self:
                if not group.meetings:
                    raise SimulationError(
                        f"{what} in block {rank} of the cluster, whose barriers may not be made yet",
                        within=where,
                        hint="a barrier of the cluster before",
                    )
                rings.reached = max(rings.reached, group.meetings)
            found.append(rings)
        return found

    def require_empty(self, ring: str, turn: int, where: str) -> None:
        """A load that comes from another block comes to a stage which all warps of this one have emptied."""
        before = turn - self.rings[ring].stages
        warps = -(-self.plan.kernel.workers // 32)
        if before >= 0 and self.emptied.get((ring, before), 0) < warps:
            raise SimulationError(
                f"{ring}: turn {turn} is sent to block {self.rank} of the cluster, which has not emptied turn {before}",
                within=where,
                hint="its arrivals count as well",
            )

    def require_met(self, meetings: int) -> None:
        """A block that has passed so many barriers of the cluster when it ends is reached by nobody any more."""
        if self.reached >= meetings:
            raise SimulationError(
                f"block {self.rank} of the cluster ends, and others may still arrive at its barriers or send loads",
                hint="a barrier of the cluster at the end",
            )

    def _require_read(self, ring: Ring, turn: int, group: ThreadGroup, by: Mechanism | None, where: str) -> None:
        reading = [(mechanism, flight) for mechanism, flight in group.flights.items() if mechanism.reads_late and mechanism is not by]
        for mechanism, flight in reading:
            if any((ring.name, turn % ring.stages) in one.stages for several in (flight.issued, *flight.groups) for one in several):
                raise SimulationError(
                    f"{ring.name}: turn {turn} is released while {mechanism.what} that read it are under way",
                    within=where,
                    hint="a wait for its group before",
                )

    # ------------------------------------------------------------------------------------------ accesses

    def stages_of(self, operand: Operand, env: Mapping[str, Any]) -> frozenset[tuple[str, int]]:
        """The stages of a ring that an access is to; none for other buffers."""
        ring = self.of_buffer.get(operand.buffer.name)
        if ring is None:
            return frozenset()
        return frozenset((ring, int(stage) % self.rings[ring].stages) for stage in np.unique(np.asarray(operand.copy(env))))

    def require_held(self, site: PlannedStatement, operand: Operand, env: Mapping[str, Any], group: ThreadGroup, where: str) -> None:
        """An access to a ring is to a stage that all who perform it hold, full if they read it, empty if they fill it."""
        side = StageState.EMPTY if operand.write else StageState.FULL
        by_lanes = not operand.write and not site.statement.instruction.mechanism.by_engine
        for ring, stage in self.stages_of(operand, env):
            for member in group.members or (group,):
                member.apart |= {(ring, stage)} if by_lanes else set()
                self._require_there(site, operand, (ring, stage), member, where)
                if not any(name == ring and turn % self.rings[ring].stages == stage and one is side for name, turn, one in member.held):
                    verb = "written" if operand.write else "read"
                    raise SimulationError(
                        f"{operand.buffer.name}: stage {stage} is {verb} by a group that does not hold it, {side.value}",
                        within=f"{site.what}, {where}",
                        at=site.statement.origin,
                        hint="acquire the turn before, release it behind",
                    )

    def _require_there(self, site: PlannedStatement, operand: Operand, stage: tuple[str, int], member: ThreadGroup, where: str) -> None:
        """What is read of a stage has been written, and brought to engines if one reads it; what is written is not said to be full yet."""
        engine = site.statement.instruction.mechanism.by_engine
        place = operand.buffer.name, stage[1]
        if operand.write:
            wrong = "written behind an arrival that says it is full" if stage in member.filled else ""
            hint = "the arrival behind all that fills the stage"
            member.unfenced_stages |= set() if engine else {place}
        elif self.copying[place] > 0:
            wrong, hint = "read while a copy to it is under way", "an arrival that waits for the copies of its thread"
        else:
            wrong = (
                "read through the asynchronous proxy, and what was copied to it is not there yet"
                if engine and place in member.hidden
                else ""
            )
            hint = "a fence of the proxy behind the wait for the stage, or by the threads that wrote in front of their arrival"
        if wrong:
            message = f"{operand.buffer.name}: stage {stage[1]} is {wrong}"
            raise SimulationError(message, within=f"{site.what}, {where}", at=site.statement.origin, hint=hint)

    def depart(self, load: Load) -> None:
        """A load begins."""
        self.loads.append(load)
        self.filled[load.ring, load.turn] = None

    def arrive(self, number: int) -> None:
        """One of the loads on their way is there."""
        group = self.loads[number].group
        if group is not None:
            number = next(place for place, one in enumerate(self.loads) if one.group is group)
        load = self.loads.pop(number)
        load.land()
        ring = self.rings[load.ring]
        phases = self.phases[load.ring, load.side, load.turn % ring.stages]
        before = phases.over
        for _ in range(load.arrivals):
            phases.arrive()
        phases.bring(load.size)
        if phases.over > before and any(not one.arrivals and one.ring == load.ring and one.turn == load.turn for one in self.loads):
            raise SimulationError(
                f"{load.ring}: turn {load.turn} counts as full while a load to it is under way",
                hint=f"a stage has more than {ring.bytes} bytes",
            )

    def described(self, statement: Acquire, env: Mapping[str, Any]) -> str:
        """A wait, for the message of a deadlock."""
        ring, turn = self.rings[statement.ring], self.turn(statement, env)
        phases = self.phases[ring.name, statement.state, turn % ring.stages]
        lacks = f"{phases.left} of {phases.arrivals} arrivals and {phases.bytes} bytes missing"
        names = f"{', '.join(ring.buffers) or 'numbers of tiles'}; " if not ring.is_order else ""
        what = f"turn {turn} of {ring.name} to be {statement.state.value} ({names}{phases.over} phases over, {lacks})"
        return f"{what}: {self._arrived(ring, statement.state, turn)}"

    def _arrived(self, ring: Ring, side: StageState, turn: int) -> str:
        """Who has done what a wait is for."""
        if side is StageState.FULL:
            found = self.released.get((ring.name, side, turn), [])
            return "the producer has announced it" if found else "the producer has not announced it"
        before = turn - ring.stages
        found = self.released.get((ring.name, side, before), [])
        if ring.each:
            return f"turn {before} has {'' if found else 'not '}been given on" + (
                f" by {warps(warp for _, warp in found)}" if found else ""
            )
        if before < 0:
            return "it is the first of its stage"
        if len(self.cluster) > 1:
            ranks = sorted({rank for rank, _ in found})
            names = [f"{warps(warp for one, warp in found if one == rank)} of block {rank} of the cluster" for rank in ranks]
            return f"turn {before} has been released by {' and '.join(names) or 'nobody'}, and the ring counts {ring.consumers} consumers"
        own = [warp for _, warp in found]
        missing = sorted(set(range(ring.consumers)) - set(own))
        if not missing:
            often = ", by some of them more than once" if len(found) > ring.consumers else ""
            return f"turn {before} has been released by {warps(own)}{often}"
        there = self.plan.kernel.workers // WARP
        if missing[0] >= there:
            return f"turn {before} has been released by {warps(own)}, and the ring counts {ring.consumers} consumers"
        return f"turn {before} has not been released by {warps(missing)}"

    def require_settled(self) -> None:
        """At the end no phase is half over, and each load was waited for: else it may arrive when the block is gone."""
        for (name, side, stage), phases in self.phases.items():
            if phases.left != phases.arrivals or phases.bytes:
                raise SimulationError(
                    f"{name}: the {side.value} barrier of stage {stage} is left in the middle of a phase: "
                    f"{phases.left} of {phases.arrivals} arrivals and {phases.bytes} bytes missing"
                )
        for name, turn in self.filled:
            if (name, turn) not in self.awaited:
                raise SimulationError(f"{name}: turn {turn} is filled, and nobody waits for it")
