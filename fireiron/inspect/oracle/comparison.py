"""Compare an event program with a kernel: match launches to statements, number their iterations, and check the required orders."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import attrs

from fireiron.check import AccessTrace, Finding
from fireiron.errors import VerificationError
from fireiron.frozen import frozen
from fireiron.inspect.oracle.elements import Elements
from fireiron.inspect.oracle.marks import InnerLoops, Mark, Marker, Path, marks
from fireiron.inspect.oracle.order import MissingOrder, OrderChecker, Rule
from fireiron.inspect.oracle.units import awaited_warps
from fireiron.ir import Exec, For, Hole, Kernel, located, statements
from fireiron.language.tree import Node
from fireiron.tasks.events import EventProgram
from fireiron.tasks.orders import Iteration, Need, Placed, needs, placed
from fireiron.tasks.passes import events_of
from fireiron.tasks.step import TaskProgram
from fireiron.values.expr import Expr, compiled, constant

Extents: TypeAlias = "tuple[int | None, ...]"
"""The trip counts of the loops around a launch. None means that a trip count differs between blocks, as in the outermost loop only."""


@frozen
class EventReport:
    """The findings, the needs that were compared, all needs, and the omitted launches with the reason."""

    findings: tuple[Finding, ...] = ()
    compared: tuple[Need, ...] = ()
    needs: tuple[Need, ...] = ()
    omitted: tuple[tuple[str, str], ...] = ()


@attrs.define(eq=False, slots=False)
class Comparison:
    """Compares an event program with a kernel."""

    node: Node
    depth: int
    kernel: Kernel
    events: EventProgram
    sizes: dict[str, int]
    leaves: dict[str, Placed] = attrs.field(init=False)
    paths: dict[str, tuple[Path, ...]] = attrs.field(factory=dict, init=False)
    omitted: dict[str, str] = attrs.field(factory=dict, init=False)
    extents: dict[str, Extents] = attrs.field(factory=dict, init=False)
    point_counts: dict[Path, tuple[bool, int]] = attrs.field(factory=dict, init=False)
    findings: list[Finding] = attrs.field(factory=list, init=False)

    def __attrs_post_init__(self) -> None:
        self.leaves = placed(self.events, self._grid_loops)
        self.extents = {event: tuple(self._extent(size) for _, size in one.loops) for event, one in self.leaves.items()}

    @property
    def _grid_loops(self) -> int:
        """Return the number of loops over blocks that are distributed over the grid: none if the grid is a single block."""
        assert isinstance(self.node.step, TaskProgram)
        return 0 if constant(self.kernel.grid) == 1 and not self.node.step.mapped.root.persistent else 1

    def compare_events(self) -> EventReport:
        """Execute the kernel's statements and compare the orders. If statements cannot be followed, the report contains an error."""
        for event in self.leaves:
            self._match_statements(event)
        required: tuple[Need, ...] = ()
        checked: set[int] = set()
        try:
            marker = Marker(AccessTrace(self.kernel), self._inner_loops(), self.sizes, self._tile_loop())
            traces = marker.traces({})
            self._count_points(traces, marker.visited)
            matched = self.paths.keys() - self.omitted.keys()
            required = needs(self.events, lambda event: event in matched, self._grid_loops)
            checked = self._run(
                OrderChecker(traces, marker.blocks.count, self._all_rules(required), self._iteration_of, self._may_conflict)
            )
        except VerificationError as error:
            self._error(f"undecided: {error}")
        compared = tuple(need for need in required if id(need) in checked)
        return EventReport(tuple(self.findings), compared, required, tuple(self.omitted.items()))

    def _run(self, checker: OrderChecker) -> set[int]:
        """Run the agents, and return the identities of the needs that were compared."""
        try:
            checker.run()
        except VerificationError as error:
            self._error(f"the kernel does not terminate: {error}")
        for missing in checker.missing.values():
            self._report(missing)
        for text in checker.violations:
            self._error(text)
        for mark in checker.in_flight_at_end.values():
            text = f"{'/'.join(mark.path)} is still in flight at the end of the kernel: no thread waits for it"
            self._error(text, mark.statement.origin)
        return checker.checked

    def _error(self, text: str, at: str | None = None, **details: Any) -> None:
        self.findings.append(Finding("events", "error", None, text, at, None, details))

    def _all_rules(self, required: Sequence[Need]) -> dict[Path, list[Rule]]:
        """Return the rules of all needs by the path of the waiting statement."""
        rules: dict[Path, list[Rule]] = {}
        for path, rule in itertools.chain.from_iterable(map(self._rules, required)):
            rules.setdefault(path, []).append(rule)
        return rules

    @functools.cached_property
    def _may_conflict(self) -> Callable[..., bool]:
        return Elements(self.kernel, self.depth).may_conflict

    # -------------------------------------------------------------------------------------- launches and statements

    def _match_statements(self, event: str) -> None:
        """Find the statements of a copy or a call, which belong to the children of its launch."""
        child_names = [name for name, launch in self.node.launches if launch == self.leaves[event].leaf.launch]
        required = [path for name in child_names for path in _paths_below(self.node, name)]
        if not required:
            self.omitted[event] = "it has no statements"
            return
        kernel_paths = self._kernel_paths
        missing = [path for path in required if path not in kernel_paths]
        if not all(self._may_be_omitted(path[0]) for path in missing):
            text = f"{self._label(event)}: no statement of the kernel executes it ({'/'.join(missing[0])})"
            self._error(text)
        self.paths[event] = tuple(path for path in required if path in kernel_paths)
        if not self.paths[event]:
            self.omitted[event] = "the kernel omits it"

    @property
    def _kernel_paths(self) -> frozenset[Path]:
        """Return the paths of the kernel's statements."""
        return frozenset(_path(one, self.depth) for one in statements(self.kernel.body) if isinstance(one, Exec))

    def _may_be_omitted(self, child: str) -> bool:
        """Whether a launch initializes registers that the first MMA overwrites. The kernel may omit such a launch."""
        spec = self.node.child(child).spec
        if spec.contracts:
            return False
        buffers = {view.tensor.name for name, view in spec.operands.items() if name in spec.outputs and view.memory.private}
        return any(
            isinstance(stmt, Exec)
            and stmt.spec.contracts
            and constant(stmt.accumulate) != 1
            and any(access.write and access.buffer in buffers for access in stmt.accesses)
            for stmt in statements(self.kernel.body)
        )

    def _is_conditional(self, child: str) -> bool:
        """Whether a launch has a condition on iterations or sizes, such as a mask that is skipped if it masks no element."""
        loops = {one.var for one in statements(self.node.program) if isinstance(one, For)}
        return any(one.active.variables() & loops.union(self.kernel.symbols) for one, _ in self.node.child(child).execs)

    def _inner_loops(self) -> InnerLoops:
        """Return the loops inside of launches."""
        programs = [node.program for path, node in self.node.paths() if path]
        names = {one.var.name for program in programs for one in statements(program) if isinstance(one, For)}
        return InnerLoops(frozenset(names), self.depth)

    def _tile_loop(self) -> str | None:
        """Return the variable of the loop in which a persistent block computes its tiles."""
        assert isinstance(self.node.step, TaskProgram)
        if not self.node.step.mapped.root.persistent:
            return None
        loops = [
            tuple(one for one in around if isinstance(one, For)) for hole, around in located(self.node.program) if isinstance(hole, Hole)
        ]
        outermost = {id(around[0]) if around else 0 for around in loops}
        return loops[0][0].var.name if len(outermost) == 1 and loops[0] else None

    # -------------------------------------------------------------------------------------- iterations

    def _extent(self, size: Expr) -> int | None:
        names = {var.name for var in size.variables()}
        return int(compiled(size)(self.sizes)) if names <= self.sizes.keys() else None

    def _count_points(self, traces: Sequence[Any], visited: Mapping[Path, int]) -> None:
        """Assign iterations of launches to the points of all statements."""
        most = {path: [points, 0] for path, points in visited.items()}
        for trace in {id(one): one for one in traces}.values():
            for mark in marks(trace):
                counts = most[mark.path]
                counts[1] = max(counts[1], mark.performed + mark.points)
        for event, paths in self.paths.items():
            for path in paths:
                self._number_iterations(event, path, most.get(path, [0, 0]))

    def _number_iterations(self, event: str, path: Path, counts: Sequence[int]) -> None:
        """Compute the number of points of an iteration. Report a statement if its number of iterations differs from that of its launch."""
        extents = self.extents[event]
        if None in extents[1:]:
            self.omitted.setdefault(event, "its number of launches differs between iterations of a loop")
            return
        iterations = None if None in extents else math.prod(extent or 0 for extent in extents)
        by_visits = self._may_be_omitted(path[0]) or self._is_conditional(path[0])
        count, points = counts[0 if by_visits else 1], self._points_per_iteration(path)
        self.point_counts[path] = by_visits, points
        if iterations is not None and count != iterations * points and count == self._source_iterations(event) * points:
            self.omitted.setdefault(event, "the kernel executes it in each iteration of a loop, the event program once")
        elif iterations is not None and count != iterations * points:
            text = f"{self._label(event)} has {iterations} iterations, but {'/'.join(path)} of the kernel has {count / max(points, 1):g}"
            self._error(text)

    def _source_iterations(self, event: str) -> int:
        """Return the number of iterations of a launch in the source program, before passes move copies."""
        step = self.node.step
        assert isinstance(step, TaskProgram)
        source_leaves = placed(events_of(step.program, step.mapped, self.node.spec, until="vectorize"), self._grid_loops).values()
        loops = next((leaf.loops for leaf in source_leaves if leaf.leaf.launch == self.leaves[event].leaf.launch), ())
        return math.prod(self._extent(size) or 0 for _, size in loops)

    def _points_per_iteration(self, path: Path) -> int:
        """Return how often a statement is executed in an iteration of its launch, according to the tree."""
        node, points = self.node.child(path[0]), 1
        for name in path[1:]:
            points *= _iterations(next(around for one, around in located(node.program) if isinstance(one, Hole) and one.child == name))
            node = node.child(name)
        return points * _iterations(next(around for one, around in located(node.program) if isinstance(one, Exec)))

    def _iteration_of(self, mark: Mark) -> int | None:
        counts = self.point_counts.get(mark.path)
        return None if counts is None else (mark.visit if counts[0] else mark.performed) // max(counts[1], 1)

    # -------------------------------------------------------------------------------------- rules

    def _rules(self, need: Need) -> Iterator[tuple[Path, Rule]]:
        """Yield a rule for each pair of statements of a need, with the path of the second statement.

        These are the pairs with conflicting accesses to a buffer. If there are none, they are all pairs, unless the need goes through a
        launch that the kernel omits.
        """
        first, second = self.leaves[need.first], self.leaves[need.second]
        warps = awaited_warps(second.leaf.over, first.leaf.over, need.index, self.kernel.workers)
        rule = Rule(need, (), self._awaited_iterations(need), warps)
        pairs = list(itertools.product(self.paths[need.first], self.paths[need.second]))
        conflicting = {pair: self._conflicting_buffers(*pair) for pair in pairs}
        for first_path, second_path in [pair for pair in pairs if conflicting[pair]] or ([] if need.through else pairs):
            buffers = conflicting[first_path, second_path]
            shared_buffers = frozenset(buffer for buffer in buffers if not self.kernel.buffer(buffer).memory.private)
            shared_writes = shared_buffers & self.accessed_buffers[first_path][1]
            yield (
                second_path,
                attrs.evolve(
                    rule,
                    first=first_path,
                    conflicting=buffers,
                    private=not shared_buffers and (bool(buffers) or self._only_registers_written(first_path, second_path)),
                    shared_writes=shared_writes,
                ),
            )

    def _only_registers_written(self, *paths: Path) -> bool:
        """Whether the statements of one of two paths write registers alone.

        If the other path accesses none of these, copies through shared memory pass values between threads. Their events are compared, too.
        """
        return any(all(self.kernel.buffer(buffer).memory.private for buffer in self.accessed_buffers[path][1]) for path in paths)

    def _conflicting_buffers(self, first: Path, second: Path) -> frozenset[str]:
        """Return the buffers that two statements access and one of them writes."""
        (accessed, written), (also_accessed, also_written) = self.accessed_buffers[first], self.accessed_buffers[second]
        return (written & also_accessed) | (also_written & accessed)

    @functools.cached_property
    def accessed_buffers(self) -> dict[Path, tuple[frozenset[str], frozenset[str]]]:
        """Return the buffers that the statements of each path access, and those that they write."""
        by_path: dict[Path, tuple[set[str], set[str]]] = {}
        for stmt in statements(self.kernel.body):
            if isinstance(stmt, Exec):
                accessed, written = by_path.setdefault(_path(stmt, self.depth), (set(), set()))
                accessed |= {access.buffer for access in stmt.accesses}
                written |= {access.buffer for access in stmt.accesses if access.write}
        return {path: (frozenset(accessed), frozenset(written)) for path, (accessed, written) in by_path.items()}

    def _awaited_iterations(self, need: Need) -> Callable[[int], Sequence[int]]:
        """Return a function from the iteration of the second launch to the iterations of the first that it waits for."""
        first, second = self.leaves[need.first], self.leaves[need.second]
        own_extents, first_extents = self.extents[need.second], self.extents[need.first]
        names = [var.name for var, _ in second.loops]
        extra_stages = self._extra_stages(need)

        def iterations(number: int) -> Sequence[int]:
            values = dict(zip(names, _digits(number, own_extents), strict=True))
            choices: list[Sequence[int]] = []
            for iteration, extent in zip(need.iterations, first_extents, strict=True):
                choices.append(_selected_iterations(iteration, extent, values, extra_stages))
            return [_number(combination, first_extents) for combination in itertools.product(*choices)]

        return _memoized(iterations) if first.loops else lambda number: (0,)

    def _extra_stages(self, need: Need) -> int:
        """Return how many stages a ring of the kernel has in addition to those of the mapping, if its buffer is refilled."""
        before = max((one.before for one in need.iterations), default=0)
        buffers = frozenset[str]().union(
            *(self._conflicting_buffers(*pair) for pair in itertools.product(self.paths[need.first], self.paths[need.second]))
        )
        stages = [ring.stages for ring in self.kernel.rings if buffers & set(ring.buffers)]
        return max(max(stages, default=0) - before, 0) if before > 1 else 0

    # -------------------------------------------------------------------------------------- texts

    def _label(self, event: str) -> str:
        leaf = self.leaves[event].leaf
        return f"{event} ({leaf.launch})"

    def _report(self, missing: MissingOrder) -> None:
        need = missing.rule.need
        text = (
            f"{self._label(need.second)} waits for {self._label(need.first)} by {need.by}, but in the kernel "
            f"{'/'.join(missing.mark.path)} in iteration {missing.iterations[1]} of warp {missing.warps[1]} does not follow "
            f"{'/'.join(missing.rule.first)} in iteration {missing.iterations[0]} of warp {missing.warps[0]}: {missing.reason}"
        )
        iterations, warps = list(missing.iterations), list(missing.warps)
        self._error(text, missing.mark.statement.origin, first=need.first, second=need.second, iterations=iterations, warps=warps)


def _path(statement: Exec, depth: int) -> Path:
    return (statement.path or ())[depth:]


def _iterations(around: Sequence[Any]) -> int:
    """Return the product of the trip counts of enclosing loops."""
    return math.prod(constant(one.extent) or 0 for one in around if isinstance(one, For))


def _paths_below(node: Node, name: str) -> Iterator[Path]:
    """Yield the paths of the statements of a child."""
    for path, inner in node.child(name).paths((name,)):
        if any(isinstance(one, Exec) for one in statements(inner.program)):
            yield path


def _digits(number: int, extents: Extents) -> list[int]:
    """Return the iteration of each loop, outermost first, for a linear iteration number."""
    digits: list[int] = []
    for extent in reversed(extents[1:]):
        digits.insert(0, number % (extent or 1))
        number //= extent or 1
    return [number, *digits] if extents else []


def _number(iterations: Sequence[int], extents: Extents) -> int:
    number = 0
    for iteration, extent in zip(iterations, extents, strict=True):
        number = number * (extent or 1) + iteration
    return number


def _selected_iterations(iteration: Iteration, extent: int | None, values: Mapping[str, int], extra: int) -> Sequence[int]:
    """Return the iterations of a loop that `iteration` denotes."""
    is_known = isinstance(iteration.index, Expr) and {var.name for var in iteration.index.variables()} <= values.keys()
    if not is_known:
        return range(extent or 0)
    before = iteration.before + (extra if iteration.before > 1 else 0)
    number = int(compiled(iteration.index)(values)) - before
    return (number,) if number >= 0 and (extent is None or number < extent) else ()


def _memoized(function: Callable[[int], Sequence[int]]) -> Callable[[int], Sequence[int]]:
    cache: dict[int, Sequence[int]] = {}

    def memoized(number: int) -> Sequence[int]:
        if number not in cache:
            cache[number] = function(number)
        return cache[number]

    return memoized
