"""The order of the race check with marks: what each statement must know of others."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import attrs

from fireiron.check.races.order import Agent, HappensBefore, bits
from fireiron.inspect.oracle.marks import Mark, Path
from fireiron.inspect.oracle.units import Reach
from fireiron.tasks.orders import Need

BEFORE: Final = "it comes before"
UNORDERED: Final = "nothing orders them"
LANES: Final = "other lanes may be behind"
BETWEEN_THREADS: Final = (BEFORE, UNORDERED, LANES)
"""What is missing only where threads touch elements that others have touched."""

Visit: TypeAlias = "tuple[Path, int, int]"
"""A statement of a launch, in a tile, and its turn there."""


@attrs.frozen(eq=False)
class Rule:
    """A need as two statements: which turns of the `first` a turn of the `second` waits for, and which warps of which.

    `met` are the buffers that both touch and one writes, if there are any; `private` if all of them are registers; `through` those in
    shared memory that the first writes.
    """

    need: Need
    first: Path
    turns: Callable[[int], Sequence[int]]
    warps: Mapping[int, Reach]
    met: frozenset[str] = frozenset()
    private: bool = False
    through: frozenset[str] = frozenset()


@attrs.frozen
class Found:
    """An order that a kernel does not keep: which statement does not know of which, in which turns, by which warps, and why."""

    rule: Rule
    mark: Mark
    turns: tuple[int, int]
    warps: tuple[int, int]
    why: str


@attrs.define(eq=False)
class Done:
    """What was done of a turn of a statement: by warp the bits that say so, those of all together, and of which run of bits they are."""

    run: int = -1
    together: int = 0
    by_warp: dict[int, int] = attrs.field(factory=dict)

    def add(self, warp: int, bit: int, run: int) -> None:
        """A warp has done it, or some of it."""
        if run != self.run:
            self.run, self.together, self.by_warp = run, 0, dict.fromkeys(self.by_warp, 0)
        self.together |= bit
        self.by_warp[warp] = self.by_warp.get(warp, 0) | bit


class Watching(HappensBefore):
    """Agents run their marks; each is held against the rules of its path."""

    run_of_bits = -1

    def __init__(
        self,
        traces: Sequence[Sequence[Any]],
        blocks: int,
        rules: Mapping[Path, Sequence[Rule]],
        turn_of: Callable[[Mark], int | None],
        meet: Callable[[Rule, Mark, tuple[int, int], bool], bool],
    ) -> None:
        self.asked, self.turn_of, self.meet = rules, turn_of, meet
        self.done: dict[tuple[int, Visit], Done] = {}
        self.missing: dict[Any, Found] = {}
        self.checked: set[int] = set()
        self.unended: dict[Path, Mark] = {}
        super().__init__(traces, blocks, 0, lambda one, other, warp: True, {}, {})
        self.performers = self._performers()

    def run(self) -> None:
        """Run all agents to the end, at which nothing is under way."""
        super().run()
        for agent in self.agents:
            late = [each for each in (*agent.issued.values(), *itertools.chain(*agent.groups.values())) if each & ~agent.own]
            for number in itertools.chain.from_iterable(map(bits, late)):
                operation: Any = self.operations[number][0]
                self.unended.setdefault(operation.path, operation)

    def _performers(self) -> dict[tuple[int, Visit], frozenset[int]]:
        """The warps that perform each turn of each path."""
        found: dict[tuple[int, Visit], set[int]] = {}
        for agent in self.agents:
            for one in agent.trace:
                if isinstance(one, Mark) and (turn := self.turn_of(one)) is not None and _acts(agent, one):
                    found.setdefault((agent.rank, (one.path, one.tile, turn)), set()).add(agent.warp)
        return {visit: frozenset(warps) for visit, warps in found.items()}

    def _forget(self) -> None:
        super()._forget()
        self.run_of_bits += 1

    def _mark(self, agent: Agent, event: Mark) -> bool:
        turn = self.turn_of(event)
        if not _acts(agent, event) or turn is None:
            return True
        for rule in self.asked.get(event.path, ()):
            self._require(agent, event, turn, rule)
        bit = 1 << len(self.operations)
        self._record(agent, event, ())  # type: ignore[arg-type]
        done = self.done.setdefault((agent.rank, (event.path, event.tile, turn)), Done())
        done.add(agent.warp, bit, self.run_of_bits)
        return True

    def _require(self, agent: Agent, event: Mark, turn: int, rule: Rule) -> None:
        """Note what an agent does not know and should."""
        for earlier in rule.turns(turn):
            visit = agent.rank, (rule.first, event.tile, earlier)
            done, performers = self.done.get(visit) or Done(), self.performers.get(visit, frozenset())
            meant = self._meant(agent, rule, performers)
            if meant:
                self.checked.add(id(rule.need))
            if len(done.by_warp) == len(performers) and self._knows(agent, event, done, rule):
                continue
            for warp in meant:
                why = self._why(agent, event, done, rule, warp)
                if why and (why not in BETWEEN_THREADS or self.meet(rule, event, (warp, agent.warp), why == LANES)):
                    found = Found(rule, event, (earlier, turn), (warp, agent.warp), why)
                    self.missing.setdefault((rule.need.first, rule.need.second, why), found)

    def _meant(self, agent: Agent, rule: Rule, performers: frozenset[int]) -> frozenset[int]:
        """The warps that an agent waits for: registers are nobody else's."""
        if rule.private:
            return performers & {agent.warp}
        reach = rule.warps.get(agent.warp)
        return performers if reach is None or not performers & reach.warps else performers & reach.warps

    def _knows(self, agent: Agent, event: Mark, done: Done, rule: Rule) -> bool:
        """Whether all lanes of an agent know of all that was done in a turn: most do."""
        if done.run != self.run_of_bits:
            return True
        return not done.together & ~agent.seen and not self._hidden(agent, event, done.together, rule)

    def _why(self, agent: Agent, event: Mark, done: Done, rule: Rule, warp: int) -> str:
        """What is missing between two statements; nothing if they are in order."""
        if warp not in done.by_warp:
            return BEFORE
        known = done.by_warp[warp] if done.run == self.run_of_bits else 0
        late = known & ~agent.own
        if late:
            first, issuer = self.operations[late.bit_length() - 1]
            if rule.private and event.in_flight and first.in_flight and first.mechanism is event.mechanism:
                return ""  # an engine takes products on the same registers in their order (PTX ISA, wgmma.fence)
            return "it is still in flight" if first.in_flight and not self.agents[issuer].own & late else UNORDERED
        reach = rule.warps.get(agent.warp)
        alike = warp == agent.warp and (rule.private or (reach is not None and reach.alike))
        if not alike and known & ~agent.seen:
            return LANES
        return "there is no fence.proxy.async between them" if self._hidden(agent, event, known, rule) else ""

    def _hidden(self, agent: Agent, event: Mark, known: int, rule: Rule) -> bool:
        """Whether an engine may not see what was written to shared memory."""
        return bool(rule.through and event.by_engine and known & self.written & ~agent.fenced)

    rules = MappingProxyType({**HappensBefore.rules, Mark: _mark})


def _acts(agent: Agent, mark: Mark) -> bool:
    """Whether an agent performs a statement; those of another role's warps are all of theirs."""
    return mark.warps is None or agent.warp in mark.warps or mark.fill is not None
