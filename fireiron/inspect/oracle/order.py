"""Check the orders of events in the happens-before relation of the race check, with a mark for each statement."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import attrs

from fireiron.check.races.order import Agent, HappensBefore, bits
from fireiron.frozen import frozen
from fireiron.inspect.oracle.marks import Mark, Path
from fireiron.inspect.oracle.units import AwaitedWarps
from fireiron.tasks.orders import Need

BEFORE: Final = "it executes first"
UNORDERED: Final = "nothing orders them"
LANES: Final = "nothing orders it after other lanes"
BETWEEN_THREADS: Final = (BEFORE, UNORDERED, LANES)
"""Reasons that are errors only if the threads access common elements."""

Instance: TypeAlias = "tuple[Path, int, int]"
"""A statement of a launch, a tile, and the iteration in the tile."""


@attrs.frozen(eq=False)
class Rule:
    """A need between two statements: the iterations and the warps of the first for which an iteration and a warp of the second wait.

    `conflicting` are the buffers that both statements access and at least one writes. `private` is true if all of these are registers.
    `shared_writes` are those in shared memory that the first statement writes.
    """

    need: Need
    first: Path
    iterations: Callable[[int], Sequence[int]]
    warps: Mapping[int, AwaitedWarps]
    conflicting: frozenset[str] = frozenset()
    private: bool = False
    shared_writes: frozenset[str] = frozenset()


@frozen
class MissingOrder:
    """An order that the kernel does not guarantee: the rule, the waiting statement, iterations and warps of both, and the reason."""

    rule: Rule
    mark: Mark
    iterations: tuple[int, int]
    warps: tuple[int, int]
    reason: str


@attrs.define(eq=False)
class Progress:
    """The executed operations of an iteration of a statement: their bits by warp and in total, and the `epoch` of the bits.

    The race check renumbers its bits when it forgets operations. Bits of an earlier epoch are ordered before all later statements.
    """

    epoch: int = -1
    all_warps: int = 0
    by_warp: dict[int, int] = attrs.field(factory=dict)

    def add(self, warp: int, bit: int, epoch: int) -> None:
        """Record that a warp executed the iteration, or a part of it."""
        if epoch != self.epoch:
            self.epoch, self.all_warps, self.by_warp = epoch, 0, dict.fromkeys(self.by_warp, 0)
        self.all_warps |= bit
        self.by_warp[warp] = self.by_warp.get(warp, 0) | bit


class OrderChecker(HappensBefore):
    """Runs the agents over their marks, and checks each mark against the rules of its path."""

    epoch = -1

    def __init__(
        self,
        traces: Sequence[Sequence[Any]],
        blocks: int,
        rules: Mapping[Path, Sequence[Rule]],
        iteration_of: Callable[[Mark], int | None],
        may_conflict: Callable[[Rule, Mark, tuple[int, int], bool], bool],
    ) -> None:
        self.rules_by_path, self.iteration_of, self.may_conflict = rules, iteration_of, may_conflict
        self.progress: dict[tuple[int, Instance], Progress] = {}
        self.missing: dict[Any, MissingOrder] = {}
        self.checked: set[int] = set()
        self.in_flight_at_end: dict[Path, Mark] = {}
        super().__init__(traces, blocks, 0, lambda one, other, warp: True, {}, {})
        self.performers = self._performers()

    def run(self) -> None:
        """Run all agents to the end, and record operations that are still in flight."""
        super().run()
        for agent in self.agents:
            late = [
                operations for operations in (*agent.issued.values(), *itertools.chain(*agent.groups.values())) if operations & ~agent.own
            ]
            for number in itertools.chain.from_iterable(map(bits, late)):
                operation: Any = self.operations[number][0]
                self.in_flight_at_end.setdefault(operation.path, operation)

    def _performers(self) -> dict[tuple[int, Instance], frozenset[int]]:
        """Return the warps that execute each iteration of each path."""
        performers: dict[tuple[int, Instance], set[int]] = {}
        for agent in self.agents:
            for mark in agent.trace:
                if isinstance(mark, Mark) and (iteration := self.iteration_of(mark)) is not None and _performs(agent, mark):
                    performers.setdefault((agent.rank, (mark.path, mark.tile, iteration)), set()).add(agent.warp)
        return {visit: frozenset(warps) for visit, warps in performers.items()}

    def _forget(self) -> None:
        super()._forget()
        self.epoch += 1

    def _mark(self, agent: Agent, event: Mark) -> bool:
        iteration = self.iteration_of(event)
        if not _performs(agent, event) or iteration is None:
            return True
        for rule in self.rules_by_path.get(event.path, ()):
            self._require(agent, event, iteration, rule)
        bit = 1 << len(self.operations)
        self._record(agent, event, ())  # type: ignore[arg-type]
        progress = self.progress.setdefault((agent.rank, (event.path, event.tile, iteration)), Progress())
        progress.add(agent.warp, bit, self.epoch)
        return True

    def _require(self, agent: Agent, event: Mark, iteration: int, rule: Rule) -> None:
        """Record each order that the rule requires and the agent lacks."""
        for earlier in rule.iterations(iteration):
            visit = agent.rank, (rule.first, event.tile, earlier)
            progress, performers = self.progress.get(visit) or Progress(), self.performers.get(visit, frozenset())
            awaited = self._awaited_warps(agent, rule, performers)
            if awaited:
                self.checked.add(id(rule.need))
            if len(progress.by_warp) == len(performers) and self._is_ordered(agent, event, progress, rule):
                continue
            for warp in awaited:
                reason = self._missing_order(agent, event, progress, rule, warp)
                if reason and (reason not in BETWEEN_THREADS or self.may_conflict(rule, event, (warp, agent.warp), reason == LANES)):
                    missing = MissingOrder(rule, event, (earlier, iteration), (warp, agent.warp), reason)
                    self.missing.setdefault((rule.need.first, rule.need.second, reason), missing)

    def _awaited_warps(self, agent: Agent, rule: Rule, performers: frozenset[int]) -> frozenset[int]:
        """Return the warps for which an agent waits. For registers, it waits only for itself."""
        if rule.private:
            return performers & {agent.warp}
        reach = rule.warps.get(agent.warp)
        return performers if reach is None or not performers & reach.warps else performers & reach.warps

    def _is_ordered(self, agent: Agent, event: Mark, progress: Progress, rule: Rule) -> bool:
        """Whether all executed operations of an iteration are ordered before all lanes of an agent. This is the common case."""
        if progress.epoch != self.epoch:
            return True
        return not progress.all_warps & ~agent.seen and not self._lacks_proxy_fence(agent, event, progress.all_warps, rule)

    def _missing_order(self, agent: Agent, event: Mark, progress: Progress, rule: Rule, warp: int) -> str:
        """Return why two statements are not ordered. Return an empty text if they are ordered."""
        if warp not in progress.by_warp:
            return BEFORE
        bits_of_warp = progress.by_warp[warp] if progress.epoch == self.epoch else 0
        unseen = bits_of_warp & ~agent.own
        if unseen:
            first, issuer = self.operations[unseen.bit_length() - 1]
            if rule.private and event.in_flight and first.in_flight and first.mechanism is event.mechanism:
                return ""  # wgmma operations on the same accumulators execute in program order (PTX ISA, wgmma.fence)
            return "it is still in flight" if first.in_flight and not self.agents[issuer].own & unseen else UNORDERED
        reach = rule.warps.get(agent.warp)
        same_thread = warp == agent.warp and (rule.private or (reach is not None and reach.same_thread))
        if not same_thread and bits_of_warp & ~agent.seen:
            return LANES
        return "there is no fence.proxy.async between them" if self._lacks_proxy_fence(agent, event, bits_of_warp, rule) else ""

    def _lacks_proxy_fence(self, agent: Agent, event: Mark, operations: int, rule: Rule) -> bool:
        """Whether the async proxy may not observe writes to shared memory, because a fence is missing."""
        return bool(rule.shared_writes and event.by_engine and operations & self.written & ~agent.fenced)

    rules = MappingProxyType({**HappensBefore.rules, Mark: _mark})


def _performs(agent: Agent, mark: Mark) -> bool:
    """Whether an agent executes a statement. A load into a ring counts for all warps of its role."""
    return mark.warps is None or agent.warp in mark.warps or mark.fill is not None
