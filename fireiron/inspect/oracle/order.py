"""The order of the race check with marks: what each statement must know of others."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias

import attrs

from fireiron.check.races.order import Agent, Order, bits
from fireiron.inspect.oracle.marks import Mark, Path
from fireiron.inspect.oracle.units import Reach
from fireiron.tasks.orders import Need

Visit: TypeAlias = "tuple[Path, int, int]"
"""A statement of a launch, in a tile, and its turn there."""


@attrs.frozen(eq=False)
class Rule:
    """A need as statements: by the paths of the first launch, which turns of it a turn of the second waits for, and which warps of which.

    `private` if what they have in common is in registers, `through` the shared buffers that the first writes and the second uses.
    """

    need: Need
    paths: tuple[Path, ...]
    turns: Callable[[int], Sequence[int]]
    warps: Mapping[int, Reach]
    private: bool
    through: frozenset[str] = frozenset()


@attrs.frozen
class Found:
    """An order that a kernel does not keep: which statement does not know of which, in which turns, by which warps, and why."""

    rule: Rule
    first: Path
    mark: Mark
    turns: tuple[int, int]
    warps: tuple[int, int]
    why: str


@attrs.define(eq=False)
class Known:
    """What marks were met: which bits say so, and of which run of bits."""

    run: int
    bits: int


class Watching(Order):
    """Agents run their marks; each is held against the rules of its path."""

    run_of_bits = -1

    def __init__(
        self, traces: Sequence[Sequence[Any]], blocks: int, rules: Mapping[Path, Sequence[Rule]], turn_of: Callable[[Mark], int | None]
    ) -> None:
        self.asked, self.turn_of = rules, turn_of
        self.done: dict[tuple[int, Visit], dict[int, Known]] = {}
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
                operation, _ = self.operations[number]
                self.unended.setdefault(operation.path, operation)  # type: ignore[attr-defined]

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
        known = self.done.setdefault((agent.rank, (event.path, event.tile, turn)), {}).setdefault(agent.warp, Known(self.run_of_bits, 0))
        known.bits = bit if known.run != self.run_of_bits else known.bits | bit
        known.run = self.run_of_bits
        return True

    def _require(self, agent: Agent, event: Mark, turn: int, rule: Rule) -> None:
        """Note what an agent does not know and should."""
        for earlier, path in itertools.product(rule.turns(turn), rule.paths):
            visit = agent.rank, (path, event.tile, earlier)
            done = self.done.get(visit, {})
            for warp in self._meant(agent, rule, self.performers.get(visit, frozenset())):
                self.checked.add(id(rule))
                why = self._why(agent, event, done.get(warp), rule, warp)
                if why:
                    found = Found(rule, path, event, (earlier, turn), (warp, agent.warp), why)
                    self.missing.setdefault((rule.need.first, rule.need.second, why), found)

    def _meant(self, agent: Agent, rule: Rule, performers: frozenset[int]) -> frozenset[int]:
        """The warps that an agent waits for: registers are nobody else's."""
        if rule.private:
            return performers & {agent.warp}
        reach = rule.warps.get(agent.warp)
        return performers if reach is None or not performers & reach.warps else performers & reach.warps

    def _why(self, agent: Agent, event: Mark, known: Known | None, rule: Rule, warp: int) -> str:
        """What is missing between two statements; nothing if they are in order."""
        if known is None:
            return "it comes before"
        if known.run != self.run_of_bits:
            return ""
        late = known.bits & ~agent.own
        if late:
            first, issuer = self.operations[late.bit_length() - 1]
            if rule.private and event.under_way and first.under_way and first.mechanism is event.mechanism:
                return ""  # an engine takes products on the same registers in their order (PTX ISA, wgmma.fence)
            return "it is still under way" if first.under_way and not self.agents[issuer].own & late else "nothing orders them"
        reach = rule.warps.get(agent.warp)
        alike = warp == agent.warp and (rule.private or (reach is not None and reach.alike))
        if not alike and known.bits & ~agent.seen:
            return "other lanes may be behind"
        if rule.through and event.by_engine and known.bits & self.written & ~agent.fenced:
            return "no fence of the asynchronous proxy stands between"
        return ""

    rules = MappingProxyType({**Order.rules, Mark: _mark})


def _acts(agent: Agent, mark: Mark) -> bool:
    """Whether an agent performs a statement; those of another role's warps are all of theirs."""
    return mark.warps is None or agent.warp in mark.warps or mark.turn is not None


def paths_of(rules: Mapping[Path, Sequence[Rule]]) -> Iterator[Path]:
    """The paths that rules are about."""
    for path, several in rules.items():
        yield path
        for rule in several:
            yield from rule.paths
