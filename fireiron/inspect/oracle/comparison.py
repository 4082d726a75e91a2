"""An event program beside a kernel: the statements of launches, their turns, and what the order of events asks of them."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import attrs

from fireiron.check import AccessTrace, Finding
from fireiron.errors import VerificationError
from fireiron.inspect.oracle.elements import Elements
from fireiron.inspect.oracle.marks import Inner, Mark, Marker, Path, marks
from fireiron.inspect.oracle.order import Found, Rule, Watching
from fireiron.inspect.oracle.units import reaches
from fireiron.ir import Exec, For, Hole, Kernel, located, statements
from fireiron.language.tree import Node
from fireiron.tasks.events import EventProgram
from fireiron.tasks.orders import Iteration, Need, Placed, needs, placed
from fireiron.tasks.passes import events_of
from fireiron.tasks.step import TaskProgram
from fireiron.values.expr import Expr, compiled, constant

Extents: TypeAlias = "tuple[int | None, ...]"
"""How many turns the loops around a launch have; None where blocks differ, which only the outermost may."""


@attrs.frozen
class Account:
    """What was compared: the findings, the needs that were looked at, all needs, and launches left out, with the reason."""

    findings: tuple[Finding, ...] = ()
    compared: tuple[Need, ...] = ()
    needs: tuple[Need, ...] = ()
    left_out: tuple[tuple[str, str], ...] = ()


@attrs.define(eq=False, slots=False)
class Comparison:
    """An event program beside a kernel."""

    node: Node
    depth: int
    kernel: Kernel
    events: EventProgram
    sizes: dict[str, int]
    leaves: dict[str, Placed] = attrs.field(init=False)
    paths: dict[str, tuple[Path, ...]] = attrs.field(factory=dict, init=False)
    left_out: dict[str, str] = attrs.field(factory=dict, init=False)
    extents: dict[str, Extents] = attrs.field(factory=dict, init=False)
    numbers: dict[Path, tuple[bool, int]] = attrs.field(factory=dict, init=False)
    findings: list[Finding] = attrs.field(factory=list, init=False)

    def __attrs_post_init__(self) -> None:
        self.leaves = placed(self.events, self._grids)
        self.extents = {event: tuple(self._extent(size) for _, size in one.loops) for event, one in self.leaves.items()}

    @property
    def _grids(self) -> int:
        """How many loops over blocks are dealt to blocks: none, where one block does all."""
        assert isinstance(self.node.step, TaskProgram)
        return 0 if constant(self.kernel.grid) == 1 and not self.node.step.mapped.root.persistent else 1

    def account(self) -> Account:
        """Run the kernel's statements, and compare; what cannot be followed is an error."""
        for event in self.leaves:
            self._find(event)
        wanted: tuple[Need, ...] = ()
        checked: set[int] = set()
        try:
            marker = Marker(AccessTrace(self.kernel), self._inner(), self.sizes, self._tiles())
            traces = marker.traces({})
            self._count(traces, marker.visited)
            known = self.paths.keys() - self.left_out.keys()
            wanted = needs(self.events, lambda event: event in known, self._grids)
            checked = self._run(Watching(traces, marker.blocks.count, self._all_rules(wanted), self._turn_of, self._meet))
        except VerificationError as error:
            self._error(f"undecided: {error}")
        compared = tuple(need for need in wanted if id(need) in checked)
        return Account(tuple(self.findings), compared, wanted, tuple(self.left_out.items()))

    def _run(self, watching: Watching) -> set[int]:
        """Run the agents; the needs that were looked at."""
        try:
            watching.run()
        except VerificationError as error:
            self._error(f"the kernel does not end: {error}")
        for found in watching.missing.values():
            self._report(found)
        for text in watching.violations:
            self._error(text)
        for mark in watching.unended.values():
            text = f"{'/'.join(mark.path)} is still in flight at the end of the kernel: no thread waits for it"
            self._error(text, mark.statement.origin)
        return watching.checked

    def _error(self, text: str, at: str | None = None, **details: Any) -> None:
        self.findings.append(Finding("events", "error", None, text, at, None, details))

    def _all_rules(self, wanted: Sequence[Need]) -> dict[Path, list[Rule]]:
        """The rules of all needs, by the path of the statement that waits."""
        rules: dict[Path, list[Rule]] = {}
        for path, rule in itertools.chain.from_iterable(map(self._rules, wanted)):
            rules.setdefault(path, []).append(rule)
        return rules

    @functools.cached_property
    def _meet(self) -> Callable[..., bool]:
        return Elements(self.kernel, self.depth).meet

    # -------------------------------------------------------------------------------------- launches and statements

    def _find(self, event: str) -> None:
        """The statements that carry out a copy or a call: those of the children of its launch."""
        children = [name for name, launch in self.node.launches if launch == self.leaves[event].leaf.launch]
        wanted = [path for name in children for path in _paths_below(self.node, name)]
        if not wanted:
            self.left_out[event] = "it has no statement"
            return
        there = self._there
        missing = [path for path in wanted if path not in there]
        if not all(self._may_miss(path[0]) for path in missing):
            text = f"{self._called(event)}: no statement of the kernel carries it out ({'/'.join(missing[0])})"
            self._error(text)
        self.paths[event] = tuple(path for path in wanted if path in there)
        if not self.paths[event]:
            self.left_out[event] = "the kernel omits it"

    @property
    def _there(self) -> frozenset[Path]:
        """The paths of the kernel's statements."""
        return frozenset(_path(one, self.depth) for one in statements(self.kernel.body) if isinstance(one, Exec))

    def _may_miss(self, child: str) -> bool:
        """Whether a launch prepares registers that the first product overwrites, as it then does not add to them: it may be left out."""
        spec = self.node.child(child).spec
        if spec.contracts:
            return False
        buffers = {view.tensor.name for name, view in spec.operands.items() if name in spec.outputs and view.memory.private}
        return any(
            isinstance(one, Exec)
            and one.spec.contracts
            and constant(one.accumulate) != 1
            and any(each.write and each.buffer in buffers for each in one.accesses)
            for one in statements(self.kernel.body)
        )

    def _seldom(self, child: str) -> bool:
        """Whether a launch does nothing in some iterations, or at some sizes, as its own condition says: where no element is masked, a mask
        changes none.
        """
        loops = {one.var for one in statements(self.node.program) if isinstance(one, For)}
        return any(one.active.variables() & loops.union(self.kernel.symbols) for one, _ in self.node.child(child).execs)

    def _inner(self) -> Inner:
        """The loops inside the work of launches."""
        programs = [node.program for path, node in self.node.paths() if path]
        names = {one.var.name for program in programs for one in statements(program) if isinstance(one, For)}
        return Inner(frozenset(names), self.depth)

    def _tiles(self) -> str | None:
        """The variable of the loop in which a block takes several tiles."""
        assert isinstance(self.node.step, TaskProgram)
        if not self.node.step.mapped.root.persistent:
            return None
        loops = [
            tuple(one for one in around if isinstance(one, For)) for hole, around in located(self.node.program) if isinstance(hole, Hole)
        ]
        outermost = {id(around[0]) if around else 0 for around in loops}
        return loops[0][0].var.name if len(outermost) == 1 and loops[0] else None

    # -------------------------------------------------------------------------------------- turns

    def _extent(self, size: Expr) -> int | None:
        names = {var.name for var in size.variables()}
        return int(compiled(size)(self.sizes)) if names <= self.sizes.keys() else None

    def _count(self, traces: Sequence[Any], visited: Mapping[Path, int]) -> None:
        """Which turn each point of a statement is of."""
        most = {path: [points, 0] for path, points in visited.items()}
        for trace in {id(one): one for one in traces}.values():
            for one in marks(trace):
                counts = most[one.path]
                counts[1] = max(counts[1], one.performed + one.points)
        for event, paths in self.paths.items():
            for path in paths:
                self._numbered(event, path, most.get(path, [0, 0]))

    def _numbered(self, event: str, path: Path, counts: Sequence[int]) -> None:
        """Find out how many points a turn has; refuse a statement that has not as many turns as its launch."""
        extents = self.extents[event]
        if None in extents[1:]:
            self.left_out.setdefault(event, "its number of launches differs between iterations of a loop")
            return
        turns = None if None in extents else math.prod(one or 0 for one in extents)
        seen = self._may_miss(path[0]) or self._seldom(path[0])
        count, each = counts[0 if seen else 1], self._points(path)
        self.numbers[path] = seen, each
        if turns is not None and count != turns * each and count == self._read_turns(event) * each:
            self.left_out.setdefault(event, "the kernel does it in each iteration of a loop, the events once")
        elif turns is not None and count != turns * each:
            text = f"{self._called(event)} has {turns} turns, and {'/'.join(path)} of the kernel {count / max(each, 1):g}"
            self._error(text)

    def _read_turns(self, event: str) -> int:
        """How often a launch is made by the text of the program, before any copy is moved."""
        step = self.node.step
        assert isinstance(step, TaskProgram)
        read = placed(events_of(step.program, step.mapped, self.node.spec, until="vectorize"), self._grids).values()
        loops = next((one.loops for one in read if one.leaf.launch == self.leaves[event].leaf.launch), ())
        return math.prod(self._extent(size) or 0 for _, size in loops)

    def _points(self, path: Path) -> int:
        """How often a statement is executed in a turn of its launch, by the tree."""
        node, points = self.node.child(path[0]), 1
        for name in path[1:]:
            points *= _iterations(next(around for one, around in located(node.program) if isinstance(one, Hole) and one.child == name))
            node = node.child(name)
        return points * _iterations(next(around for one, around in located(node.program) if isinstance(one, Exec)))

    def _turn_of(self, mark: Mark) -> int | None:
        known = self.numbers.get(mark.path)
        return None if known is None else (mark.visit if known[0] else mark.performed) // max(known[1], 1)

    # -------------------------------------------------------------------------------------- rules

    def _rules(self, need: Need) -> Iterator[tuple[Path, Rule]]:
        """A need as pairs of statements, by the path of the second: those that meet in a buffer, or all if none do.

        Through a launch that the kernel does without only those wait that meet.
        """
        first, second = self.leaves[need.first], self.leaves[need.second]
        warps = reaches(second.leaf.over, first.leaf.over, need.index, self.kernel.workers)
        rule = Rule(need, (), self._turns(need), warps)
        pairs = list(itertools.product(self.paths[need.first], self.paths[need.second]))
        met = {pair: self._met(*pair) for pair in pairs}
        for one, other in [pair for pair in pairs if met[pair]] or ([] if need.through else pairs):
            common = met[one, other]
            shared = frozenset(each for each in common if not self.kernel.buffer(each).memory.private)
            through = shared & self.touched[one][1]
            yield other, attrs.evolve(rule, first=one, met=common, private=bool(common) and not shared, through=through)

    def _met(self, one: Path, other: Path) -> frozenset[str]:
        """The buffers in which two statements meet, and one of them writes."""
        (touched, wrote), (also, writes) = self.touched[one], self.touched[other]
        return (wrote & also) | (writes & touched)

    @functools.cached_property
    def touched(self) -> dict[Path, tuple[frozenset[str], frozenset[str]]]:
        """The buffers that each path's statements touch, and those that they write."""
        found: dict[Path, tuple[set[str], set[str]]] = {}
        for one in statements(self.kernel.body):
            if isinstance(one, Exec):
                touched, written = found.setdefault(_path(one, self.depth), (set(), set()))
                touched |= {access.buffer for access in one.accesses}
                written |= {access.buffer for access in one.accesses if access.write}
        return {path: (frozenset(one), frozenset(other)) for path, (one, other) in found.items()}

    def _turns(self, need: Need) -> Callable[[int], Sequence[int]]:
        """The turns of the first launch, by the turn of the second."""
        first, second = self.leaves[need.first], self.leaves[need.second]
        mine, theirs = self.extents[need.second], self.extents[need.first]
        names = [var.name for var, _ in second.loops]
        further = self._further(need)

        def turns(number: int) -> Sequence[int]:
            values = dict(zip(names, _digits(number, mine), strict=True))
            each: list[Sequence[int]] = []
            for turn, extent in zip(need.turns, theirs, strict=True):
                each.append(_meant(turn, extent, values, further))
            return [_number(one, theirs) for one in itertools.product(*each)]

        return _remembered(turns) if first.loops else lambda number: (0,)

    def _further(self, need: Need) -> int:
        """How many stages more a ring of the kernel has than the loop of the mapping, where its buffer is filled again."""
        before = max((one.before for one in need.turns), default=0)
        written = frozenset[str]().union(*(self._met(*pair) for pair in itertools.product(self.paths[need.first], self.paths[need.second])))
        stages = [ring.stages for ring in self.kernel.rings if written & set(ring.buffers)]
        return max(max(stages, default=0) - before, 0) if before > 1 else 0

    # -------------------------------------------------------------------------------------- texts

    def _called(self, event: str) -> str:
        leaf = self.leaves[event].leaf
        return f"{event} ({leaf.launch})"

    def _report(self, found: Found) -> None:
        need = found.rule.need
        text = (
            f"{self._called(need.second)} waits for {self._called(need.first)} by {need.by}, and in the kernel "
            f"{'/'.join(found.mark.path)} in turn {found.turns[1]} of warp {found.warps[1]} does not follow "
            f"{'/'.join(found.rule.first)} in turn {found.turns[0]} of warp {found.warps[0]}: {found.why}"
        )
        turns, warps = list(found.turns), list(found.warps)
        self._error(text, found.mark.statement.origin, first=need.first, second=need.second, turns=turns, warps=warps)


def _path(statement: Exec, depth: int) -> Path:
    return (statement.path or ())[depth:]


def _iterations(around: Sequence[Any]) -> int:
    """How often what stands in loops of known length is done."""
    return math.prod(constant(one.extent) or 0 for one in around if isinstance(one, For))


def _paths_below(node: Node, name: str) -> Iterator[Path]:
    """The paths of the statements of a child."""
    for path, inner in node.child(name).paths((name,)):
        if any(isinstance(one, Exec) for one in statements(inner.program)):
            yield path


def _digits(number: int, extents: Extents) -> list[int]:
    """A number of turns as the turn of each loop, the outermost first."""
    found: list[int] = []
    for extent in reversed(extents[1:]):
        found.insert(0, number % (extent or 1))
        number //= extent or 1
    return [number, *found] if extents else []


def _number(turns: Sequence[int], extents: Extents) -> int:
    number = 0
    for turn, extent in zip(turns, extents, strict=True):
        number = number * (extent or 1) + turn
    return number


def _meant(turn: Iteration, extent: int | None, values: Mapping[str, int], further: int) -> Sequence[int]:
    """The turns of a loop that are meant."""
    known = isinstance(turn.index, Expr) and {var.name for var in turn.index.variables()} <= values.keys()
    if not known:
        return range(extent or 0)
    before = turn.before + (further if turn.before > 1 else 0)
    place = int(compiled(turn.index)(values)) - before
    return (place,) if place >= 0 and (extent is None or place < extent) else ()


def _remembered(function: Callable[[int], Sequence[int]]) -> Callable[[int], Sequence[int]]:
    known: dict[int, Sequence[int]] = {}

    def remembered(number: int) -> Sequence[int]:
        if number not in known:
            known[number] = function(number)
        return known[number]

    return remembered
