"""Rings in the simulator: mbarriers with their phases, loads in flight, and the owner of each fill.

A group of threads owns a fill from acquire to release, and may access only the stages of fills that it owns. A phase completes after all
arrivals and expected bytes. A wait tests only the parity of the phase, so the simulator checks that the completed phase is the awaited one.

In a cluster, loads and arrivals of a block also go to the rings of other blocks. They must be between two cluster barriers: the first one
guarantees that the mbarriers of other blocks are initialized, and after the second one blocks may exit.
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import attrs
import numpy as np

from fireiron.errors import SimulationError
from fireiron.ir import Acquire, BlockSet, ClaimTile, Mechanism, Release, Ring, StageState, execs
from fireiron.sim.locations import ThreadGroup
from fireiron.sim.plan import Operand, Plan, PlannedStatement
from fireiron.values.expr import compiled

WARP = 32


def warps(numbers: Iterable[int]) -> str:
    """Format warps for a message: `warp 3`, `warps 0 to 3, 6`."""
    ordered = sorted(set(numbers))
    runs = [[one for _, one in run] for _, run in itertools.groupby(enumerate(ordered), key=lambda pair: pair[1] - pair[0])]
    spans = [f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs]
    return f"warp{'s' if len(ordered) > 1 else ''} {', '.join(spans)}"


def require_released(group: ThreadGroup, refilled: Collection[str]) -> None:
    """Require that a group that ends has released each fill of the `refilled` rings that it acquired as full."""
    for ring, fill, state in sorted(group.owned, key=lambda one: one[:2]):
        if state is StageState.FULL and ring in refilled:
            raise SimulationError(f"{ring}: a group exits without releasing fill {fill}", hint="release it after the last use")


def require_stored(group: ThreadGroup) -> None:
    """Require that a group that ends has waited until its TMA stores have read shared memory."""
    if any(mechanism.outlives and (any(flight.groups) or flight.issued) for mechanism, flight in group.in_flight.items()):
        raise SimulationError("a TMA store may read shared memory after the block exits", hint="add a wait for its group at the end")


def _nothing_completes(done: Iterable[Any], group: ThreadGroup, mechanism: Mechanism) -> None:
    """The completion callback of deferred arrivals if no statement executes."""


BARRIER = 8
"""Bytes of an mbarrier, and its alignment (PTX ISA, "mbarrier", "Size and alignment of mbarrier object")."""


def check_barriers(plan: Plan) -> None:
    """Require that mbarriers have their own bytes inside the shared memory of the block.

    Writes to the bytes of an mbarrier would change its phases, so no simulation could predict the behavior of a GPU.
    """
    ranges = [(ring.offset, ring.offset + ring.barrier_bytes, f"the mbarriers of {ring.name}") for ring in plan.kernel.rings]
    for start, end, name in ranges:
        if start % BARRIER:
            raise SimulationError(f"{name} start at byte {start} of shared memory", legal=f"a multiple of {BARRIER}")
        if start < 0 or end > plan.kernel.shared_bytes:
            what = f"{name} occupy bytes {start} ... {end - 1} of shared memory"
            raise SimulationError(what, legal=f"0 ... {plan.kernel.shared_bytes - 1}")
    ranges += [(one.offset, one.offset + one.bytes, one.name) for one in plan.shared_in_use]
    for number in range(len(plan.kernel.rings)):
        start, end, name = ranges[number]
        for other_start, other_end, other in ranges[number + 1 :]:
            if start < other_end and other_start < end:
                what = f"{name} and {other} overlap in shared memory, from byte {max(start, other_start)} on"
                raise SimulationError(what, legal="separate bytes, which nothing else writes while the block runs")


@attrs.define(eq=False)
class MbarrierState:
    """An mbarrier: pending arrivals and bytes of its phase, and the number of completed phases."""

    arrivals: int
    pending_arrivals: int
    bytes: int = 0
    completed: int = 0

    def arrive(self) -> None:
        """Count one arrival."""
        self.pending_arrivals -= 1
        self._complete_phase()

    def complete_bytes(self, size: int) -> None:
        """Count bytes that have arrived."""
        self.bytes -= size
        self._complete_phase()

    def _complete_phase(self) -> None:
        if self.pending_arrivals == 0 and self.bytes == 0:
            self.pending_arrivals = self.arrivals
            self.completed += 1


@attrs.define(eq=False)
class Load:
    """A TMA load in flight to a fill, or operations of a `group` in flight with deferred arrivals; `complete` completes it.

    The `arrivals` at the mbarrier of the `state` happen when all operations have completed. Deferred arrivals of one group happen in order,
    because each waits for all operations that the group issued before.
    """

    ring: str
    fill: int
    size: int
    complete: Callable[[], None]
    arrivals: int = 0
    group: ThreadGroup | None = None
    state: StageState = StageState.FULL


class Rings:
    """All rings of a batch of blocks, which behave identically; `cluster` are those of all blocks of a cluster, by rank.

    `last_accessed` is the maximum number of cluster barriers that other blocks had passed when they accessed this one. `pending_tiles` are
    the tiles that the block has yet to claim, `tile_indices` those in the stages of rings of tiles.
    """

    def __init__(self, plan: Plan, rank: int = 0, tiles: Sequence[int] = ()) -> None:
        self.plan, self.rank = plan, rank
        self.on_complete: Callable[[Iterable[Any], ThreadGroup, Mechanism], None] = _nothing_completes
        self.pending_tiles = list(tiles)
        self.tile_indices: dict[tuple[str, int], int] = {}
        self.cluster: Sequence[Rings] = (self,)
        self.last_accessed = -1
        self.released_warps: dict[tuple[str, int], int] = {}
        self.rings: Mapping[str, Ring] = {ring.name: ring for ring in plan.kernel.rings}
        self.of_buffer = {name: ring.name for ring in plan.kernel.rings for name in ring.buffers}
        stores = (stmt for stmt, _ in execs(plan.kernel.body) if stmt.mechanism.outlives)
        loads = (stmt for stmt, _ in execs(plan.kernel.body) if stmt.ring and stmt.mechanism.counted and stmt.mechanism.by_engine)
        self.filled_by_engine = {stmt.ring for stmt in loads}
        self.stored = {self.of_buffer.get(access.buffer, "") for store in stores for access in store.accesses}
        self.mbarriers = {
            (ring.name, state, stage): MbarrierState(arrivals, arrivals)
            for ring in plan.kernel.rings
            for state, arrivals in ((StageState.FULL, ring.producers), (StageState.EMPTY, ring.consumers))
            for stage in range(ring.stages)
        }
        self.loads: list[Load] = []
        # The first fill of a stage for which an arrival came after its phase was complete. It is an error if a wait relies on the phase.
        self.late: dict[tuple[str, StageState, int], int] = {}
        self.filled: dict[tuple[str, int], None] = {}
        self.awaited: set[tuple[str, int]] = set()
        self.released: dict[tuple[str, StageState, int], list[tuple[int, int]]] = {}  # the ranks of blocks, and their warps
        # copies in flight to a stage of a buffer, which an arrival may wait for
        self.copies_in_flight: Counter[tuple[str, int]] = Counter()
        # By fill, the buffers that threads wrote without making the writes visible to the async proxy.
        self.unfenced: dict[tuple[str, int], set[str]] = {}
        # By fill of a ring that a warp stores, the accesses that precede it: for each warp, those before a number of its barriers.
        self.before: dict[tuple[str, int], dict[int, int]] = {}

    def passes(self, statement: Acquire, env: Mapping[str, Any], group: ThreadGroup, where: str) -> bool:
        """Whether a group may pass a wait; if so, it owns the fill."""
        ring, fill = self.rings[statement.ring], self.fill(statement, env)
        completed = self.mbarriers[ring.name, statement.state, fill % ring.stages].completed
        # The mbarrier exposes parity only: for a full wait the phase of this round must be complete, for an empty wait the previous one.
        wanted = fill // ring.stages + (statement.state is StageState.FULL)
        if (completed - wanted) % 2:
            return False
        if completed != wanted:
            raise SimulationError(
                f"{ring.name}: the wait for fill {fill} to be {statement.state.value} passes by parity alone: "
                f"{completed} phases are complete, not {wanted}",
                within=where,
                hint="no group may be ahead of another by a whole round of the ring",
            )
        stage = fill % ring.stages
        self._require_all_arrived(ring, statement.state, stage, wanted, where)
        group.owned.add((ring.name, fill, statement.state))
        if statement.state is StageState.FULL:
            self.awaited.add((ring.name, fill))
            group.clock = group.clock.after_copies(self.before.get((ring.name, fill), {}))
            group.hidden_stages -= {(name, stage) for name in ring.buffers}
            group.hidden_stages |= {(name, stage) for name in self.unfenced.get((ring.name, fill), ())}
        else:
            group.filled.discard((ring.name, stage))
        return True

    def _require_all_arrived(self, ring: Ring, state: StageState, stage: int, phases: int, where: str) -> None:
        """Require that no arrival for an awaited phase came after the phase was complete: its mbarrier would count too few arrivals."""
        fill = self.late.get((ring.name, state, stage))
        if fill is not None and fill // ring.stages < phases:
            raise SimulationError(
                f"{ring.name}: fill {fill} becomes {state.value} before all threads have arrived",
                within=where,
                hint=f"its mbarrier counts {self.mbarriers[ring.name, state, stage].arrivals} arrivals per phase; count all of them",
            )

    def fill(self, statement: Acquire | Release, env: Mapping[str, Any]) -> int:
        """The fill index of a statement."""
        value = np.asarray(compiled(statement.fill_index)(env))
        return int(value.flat[0])

    def release(self, statement: Release, env: Mapping[str, Any], group: ThreadGroup, where: str) -> None:
        """Release a fill: after filling it, which the bytes of its loads complete, or after using it."""
        active = np.broadcast_to(np.asarray(compiled(statement.active)(env), dtype=bool), (group.threads.size, 1))[:, 0]
        ring, fill = self.rings[statement.ring], self.fill(statement, env)
        arriving = int(active.sum())
        if not arriving:
            return
        owned = StageState.EMPTY if statement.state is StageState.FULL or ring.is_order else StageState.FULL
        # An order has no full state: at its fill, a group arrives for the fill that the next group waits for, `stages - 1` later.
        fill_owned = fill + ring.stages - 1 if ring.is_order else fill
        if (ring.name, fill_owned, owned) not in group.owned:
            raise SimulationError(f"{ring.name}: fill {fill} is released by a group that has not acquired it", within=where)
        arrivals = [(self.rank, int(one) // WARP) for one in group.threads[active]]
        if statement.state is StageState.FULL and statement.by is not None:
            self._mark_filled(statement.by, ring, fill, group)
        elif statement.state is StageState.FULL:
            self.mbarriers[ring.name, statement.state, fill % ring.stages].bytes += ring.bytes if statement.part is None else statement.part
        else:
            self._require_read(ring, fill, group, statement.by, where)
            if arriving < group.threads.size and (ring.name, fill % ring.stages) in group.read_by_lanes:
                raise SimulationError(
                    f"{ring.name}: fill {fill} is released by one lane, and other lanes of its warp may still read it",
                    within=where,
                    hint="add a warp barrier before",
                )
            if ring.name in self.filled_by_engine and (ring.name, fill % ring.stages) in group.unfenced_reads:
                raise SimulationError(
                    f"{ring.name}: fill {fill} is released after loads by threads, which may still read when TMA writes to the stage",
                    within=where,
                    hint="add fence.proxy.async before the release, or before the warp barrier before it",
                )
            group.owned.discard((ring.name, fill_owned, owned))
            self.released_warps[ring.name, fill] = self.released_warps.get((ring.name, fill), 0) + arriving
        pending = [] if statement.by is None else group.in_flight[statement.by].take_all()
        if pending and arriving < group.threads.size:
            lanes = f"{arriving} of {group.threads.size} lanes"
            raise SimulationError(
                f"{ring.name}: fill {fill} is released by {lanes} while operations of all lanes, by {statement.by}, are in flight",
                within=where,
                hint="let each lane arrive",
            )
        for rings in self.reached_rings(statement.to, env, group, f"{ring.name}: fill {fill} is released", where):
            rings.released.setdefault((ring.name, statement.state, fill), []).extend(arrivals)
            if pending and statement.by is not None:
                complete = functools.partial(self.on_complete, pending, group, statement.by)
                rings.loads.append(Load(ring.name, fill, 0, complete, arriving, group, statement.state))
                continue
            for _ in range(arriving):
                rings.arrive(ring, statement.state, fill)

    def arrive(self, ring: Ring, state: StageState, fill: int) -> None:
        """Count an arrival for a fill."""
        stage = fill % ring.stages
        mbarrier = self.mbarriers[ring.name, state, stage]
        if mbarrier.completed > fill // ring.stages and not ring.is_order:
            self.late.setdefault((ring.name, state, stage), fill)
        mbarrier.arrive()

    def _mark_filled(self, mechanism: Mechanism, ring: Ring, fill: int, group: ThreadGroup) -> None:
        """Record that threads have filled their part of a stage: it is full when everything that they issued by a mechanism completes."""
        flight, stage = group.in_flight[mechanism], fill % ring.stages
        late = mechanism.writes_late and not mechanism.by_engine
        copies = itertools.chain(flight.issued, *flight.groups) if late else ()
        buffer_stages = group.unfenced_stages.union(*(self._buffer_stages(write, env) for _, write, _, _, env in copies))
        self.unfenced.setdefault((ring.name, fill), set()).update(name for name in ring.buffers if (name, stage) in buffer_stages)
        group.filled.add((ring.name, stage))
        self.filled[ring.name, fill] = None

    def _buffer_stages(self, operand: Operand, env: Mapping[str, Any]) -> set[tuple[str, int]]:
        """The stages, of its buffer in a ring, that an access covers."""
        return {(operand.buffer.name, stage) for _, stage in self.stages_of(operand, env)}

    def copy_issued(self, operand: Operand, env: Mapping[str, Any]) -> None:
        """Record a copy to a stage in flight."""
        self.copies_in_flight.update(self._buffer_stages(operand, env))

    def copy_completed(self, operand: Operand, env: Mapping[str, Any]) -> None:
        """Record that a copy to a stage has completed."""
        self.copies_in_flight.subtract(self._buffer_stages(operand, env))

    def tile(self, statement: ClaimTile, env: Mapping[str, Any], group: ThreadGroup, where: str) -> int:
        """The tile index of a fill: a group that `takes` it stores it in the stage, which it owns as empty; others read it there."""
        ring, fill = self.rings[statement.ring], int(np.asarray(compiled(statement.fill_index)(env)).flat[0])
        state = StageState.EMPTY if statement.takes else StageState.FULL
        if (ring.name, fill, state) not in group.owned:
            verb = "stored" if statement.takes else "read"
            raise SimulationError(
                f"{ring.name}: the tile index of fill {fill} is {verb} by a group that has not acquired it {state.value}",
                within=where,
                hint="acquire the fill before, and release it after",
            )
        if statement.takes:
            count = int(np.asarray(compiled(statement.tiles)(env)).flat[0])
            self.tile_indices[ring.name, fill % ring.stages] = self.pending_tiles.pop(0) if self.pending_tiles else count
        return self.tile_indices[ring.name, fill % ring.stages]

    def reached_rings(self, to: Sequence[BlockSet], env: Mapping[str, Any], group: ThreadGroup, what: str, where: str) -> list[Rings]:
        """The rings of the blocks that a group accesses, each once; its own block's if none are named."""
        ranks = dict.fromkeys(rank for peers in to for rank in peers.ranks(int(np.asarray(compiled(peers.first)(env)).flat[0])))
        reached = []
        for rank in ranks if to else (self.rank,):
            if rank >= len(self.cluster):
                raise SimulationError(f"{what} in block {rank} of a cluster of {len(self.cluster)}", within=where)
            rings = self.cluster[rank]
            if rings is not self:
                if not group.cluster_barriers:
                    raise SimulationError(
                        f"{what} in block {rank} of the cluster, whose mbarriers may not be initialized yet",
                        within=where,
                        hint="add a cluster barrier before",
                    )
                rings.last_accessed = max(rings.last_accessed, group.cluster_barriers)
            reached.append(rings)
        return reached

    def require_empty(self, ring: str, fill: int, where: str) -> None:
        """Require that a load from another block targets a stage that all warps of this block have released."""
        before = fill - self.rings[ring].stages
        warps = -(-self.plan.kernel.workers // 32)
        if before >= 0 and self.released_warps.get((ring, before), 0) < warps:
            raise SimulationError(
                f"{ring}: fill {fill} is sent to block {self.rank} of the cluster, which has not released fill {before}",
                within=where,
                hint="include its arrivals in the count",
            )

    def require_not_accessed(self, cluster_barriers: int) -> None:
        """Require that no other block accesses this one after it has passed this many cluster barriers and exits."""
        if self.last_accessed >= cluster_barriers:
            raise SimulationError(
                f"block {self.rank} of the cluster exits while others may still arrive at its mbarriers or send loads",
                hint="add a cluster barrier at the end",
            )

    def _require_read(self, ring: Ring, fill: int, group: ThreadGroup, by: Mechanism | None, where: str) -> None:
        reading = [(mechanism, flight) for mechanism, flight in group.in_flight.items() if mechanism.reads_late and mechanism is not by]
        for mechanism, flight in reading:
            if any((ring.name, fill % ring.stages) in one.stages for operations in (flight.issued, *flight.groups) for one in operations):
                raise SimulationError(
                    f"{ring.name}: fill {fill} is released while {mechanism.what} that read it are in flight",
                    within=where,
                    hint="wait for its group before the release",
                )

    # ------------------------------------------------------------------------------------------ accesses

    def stages_of(self, operand: Operand, env: Mapping[str, Any]) -> frozenset[tuple[str, int]]:
        """The ring stages that an access covers; none for other buffers."""
        ring = self.of_buffer.get(operand.buffer.name)
        if ring is None:
            return frozenset()
        return frozenset((ring, int(stage) % self.rings[ring].stages) for stage in np.unique(np.asarray(operand.copy(env))))

    def require_owned(self, site: PlannedStatement, operand: Operand, env: Mapping[str, Any], group: ThreadGroup, where: str) -> None:
        """Require that an access to a ring covers a stage that all executing groups own: full for a read, empty for a write."""
        state = StageState.EMPTY if operand.write else StageState.FULL
        by_lanes = not operand.write and not site.statement.instruction.mechanism.by_engine
        for ring, stage in self.stages_of(operand, env):
            for member in group.members or (group,):
                member.read_by_lanes |= {(ring, stage)} if by_lanes else set()
                member.unfenced_reads |= {(ring, stage)} if by_lanes else set()
                self._require_ready(site, operand, (ring, stage), member, where)
                if not any(name == ring and fill % self.rings[ring].stages == stage and one is state for name, fill, one in member.owned):
                    verb = "written" if operand.write else "read"
                    raise SimulationError(
                        f"{operand.buffer.name}: stage {stage} is {verb} by a group that has not acquired it {state.value}",
                        within=f"{site.what}, {where}",
                        at=site.statement.origin,
                        hint="acquire the fill before, and release it after",
                    )

    def _require_ready(self, site: PlannedStatement, operand: Operand, stage: tuple[str, int], member: ThreadGroup, where: str) -> None:
        """Require that a written stage is not yet marked full, and that a read stage is written and visible to the reader's proxy."""
        by_async_proxy = site.statement.instruction.mechanism.by_engine
        place = operand.buffer.name, stage[1]
        if operand.write:
            wrong = "written after an arrival marked it full" if stage in member.filled else ""
            hint = "arrive after everything that fills the stage"
            member.unfenced_stages |= set() if by_async_proxy else {place}
        elif self.copies_in_flight[place] > 0:
            wrong, hint = "read while a copy to it is in flight", "use an arrival that waits for the copies of its thread"
        else:
            invisible = by_async_proxy and place in member.hidden_stages
            wrong = "read through the async proxy, which does not see what was copied to it" if invisible else ""
            hint = "add fence.proxy.async after the wait for the stage, or in the writing threads before their arrival"
        if wrong:
            message = f"{operand.buffer.name}: stage {stage[1]} is {wrong}"
            raise SimulationError(message, within=f"{site.what}, {where}", at=site.statement.origin, hint=hint)

    def start_load(self, load: Load) -> None:
        """Start a load."""
        self.loads.append(load)
        self.filled[load.ring, load.fill] = None

    def complete_load(self, number: int) -> None:
        """Complete one of the loads in flight."""
        group = self.loads[number].group
        if group is not None:
            number = next(place for place, one in enumerate(self.loads) if one.group is group)
        load = self.loads.pop(number)
        load.complete()
        ring = self.rings[load.ring]
        mbarrier = self.mbarriers[load.ring, load.state, load.fill % ring.stages]
        before = mbarrier.completed
        for _ in range(load.arrivals):
            self.arrive(ring, load.state, load.fill)
        mbarrier.complete_bytes(load.size)
        if mbarrier.completed > before and any(not one.arrivals and one.ring == load.ring and one.fill == load.fill for one in self.loads):
            raise SimulationError(
                f"{load.ring}: fill {load.fill} becomes full while a load to it is in flight",
                hint=f"its mbarrier expects {ring.bytes} bytes, fewer than the loads to a stage have",
            )

    def described(self, statement: Acquire, env: Mapping[str, Any]) -> str:
        """Format a wait, for a deadlock message."""
        ring, fill = self.rings[statement.ring], self.fill(statement, env)
        mbarrier = self.mbarriers[ring.name, statement.state, fill % ring.stages]
        lacks = f"{mbarrier.pending_arrivals} of {mbarrier.arrivals} arrivals and {mbarrier.bytes} bytes missing"
        names = f"{', '.join(ring.buffers) or 'tile indices'}; " if not ring.is_order else ""
        what = f"fill {fill} of {ring.name} to be {statement.state.value} ({names}{mbarrier.completed} phases complete, {lacks})"
        return f"{what}: {self._arrival_text(ring, statement.state, fill)}"

    def _arrival_text(self, ring: Ring, state: StageState, fill: int) -> str:
        """Describe which threads have arrived for a wait."""
        if state is StageState.FULL:
            releases = self.released.get((ring.name, state, fill), [])
            if ring.producers > 1 and not ring.bytes:
                return f"{len(releases)} threads have arrived"
            return "the producer has arrived" if releases else "the producer has not arrived"
        before = fill - ring.stages
        releases = self.released.get((ring.name, state, before), [])
        if ring.each:
            return f"fill {before} has {'' if releases else 'not '}been released" + (
                f" by {warps(warp for _, warp in releases)}" if releases else ""
            )
        if before < 0:
            return "it is the first fill of its stage"
        if len(self.cluster) > 1:
            ranks = sorted({rank for rank, _ in releases})
            names = [f"{warps(warp for one, warp in releases if one == rank)} of block {rank} of the cluster" for rank in ranks]
            return f"fill {before} has been released by {' and '.join(names) or 'no warp'}, and the ring counts {ring.consumers} consumers"
        releasing = [warp for _, warp in releases]
        if ring.name in self.stored:
            return f"fill {before} has {'' if releases else 'not '}been released"
        missing = sorted(set(range(ring.consumers)) - set(releasing))
        if not missing:
            often = ", by some of them more than once" if len(releases) > ring.consumers else ""
            return f"fill {before} has been released by {warps(releasing)}{often}"
        existing_warps = self.plan.kernel.workers // WARP
        if missing[0] >= existing_warps:
            return f"fill {before} has been released by {warps(releasing)}, and the ring counts {ring.consumers} consumers"
        return f"fill {before} has not been released by {warps(missing)}"

    def require_complete(self) -> None:
        """Require that no phase is incomplete at the end, and that each fill was awaited.

        Otherwise a load may arrive after the block exits.
        """
        for (name, state, stage), mbarrier in self.mbarriers.items():
            if mbarrier.pending_arrivals != mbarrier.arrivals or mbarrier.bytes:
                raise SimulationError(
                    f"{name}: the {state.value} mbarrier of stage {stage} ends with an incomplete phase: "
                    f"{mbarrier.pending_arrivals} of {mbarrier.arrivals} arrivals and {mbarrier.bytes} bytes missing"
                )
        for name, fill in self.filled:
            if (name, fill) not in self.awaited:
                raise SimulationError(f"{name}: no group waits for fill {fill}")
