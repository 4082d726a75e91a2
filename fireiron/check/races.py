"""The race check: one block is replayed abstractly, epoch by epoch, for all run-time sizes at once.

Between two barriers no thread waits for another, so all that matters of an epoch is, per address, the least and the
greatest thread that wrote it and that read it: two threads, one of them writing, are a race. A block barrier forgets;
a warp barrier folds threads to warps. Loops without barriers are unions over their values; loops with barriers run three
times, or through all values where addresses depend on them. Predicates that depend on the block or on run-time sizes
are taken as true; they only remove accesses, so "no race" holds for all M, N, K.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs
import numpy as np

from fireiron.check.blocks import between_blocks, local_coordinates
from fireiron.check.finding import Finding, described, line_of
from fireiron.check.scene import MANY, Array, Frame, Scene, Use, accesses_of, linear
from fireiron.ir import BLOCK_SCOPE, Access, Barrier, Commit, Exec, For, Stmt, Wait, statements
from fireiron.values.expr import Less, Mod, Var, conjuncts, constant
from fireiron.values.machine import GL, SH, Block, Level
from fireiron.values.units import unit_in

ALL_VALUES = 64
"""A loop with barriers whose variable occurs in addresses runs through all its values if they are not more than this."""

_NOBODY = 1 << 20


@attrs.frozen(eq=False)
class Footprint:
    """Addresses that one access touches in a part of the replay (sorted), the least and greatest thread of each."""

    use: Use
    fixed: Mapping[str, int]
    keys: Array
    low: Array
    high: Array


@attrs.frozen(eq=False)
class Step:
    """One statement in the replay: its footprints by space, the same by unit where threads act together."""

    touched: tuple[Footprint, ...]
    by_unit: tuple[Footprint, ...] | None = None
    asynchronous: bool = False


@attrs.frozen(eq=False)
class Maybe:
    """Steps that run or not, as a size known at run time decides."""

    steps: tuple[Any, ...]


class _Forget:
    """A jump over iterations that are like those before: a block barrier stands between."""


def check_races(scene: Scene) -> tuple[Finding, ...]:
    """All races inside a block and between blocks; what could not be decided is a note."""
    findings: list[Finding] = []
    if scene.kernel.workers > 1:
        findings += _Replay(scene).findings()
    findings += between_blocks(scene)
    if scene.kernel.unchecked:
        findings = [attrs.evolve(one, severity="warning") if one.severity == "error" else one for one in findings]
    return tuple(findings)


class _Replay:
    """Two passes: the program becomes a sequence of footprints and barriers; the sequence is run over addresses."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.kernel = scene.kernel
        shared = [buffer for buffer in self.kernel.buffers if buffer.memory == SH]
        self.granule = math.gcd(*(part for buffer in shared for part in (buffer.dtype.bytes, buffer.offset))) or 1
        self.watched = {buffer.name for buffer in shared} | {
            buffer.name for buffer in self.kernel.buffers if buffer.memory == GL and buffer.written
        }
        self.doubts: dict[str, str] = {}
        self.local = local_coordinates(scene)
        for name, local in self.local.items():
            if local.problem is not None:
                self.doubts[name] = local.problem
                self.watched.discard(name)
        self.assumed: dict[Any, int] = {}
        self.memo: dict[Any, Footprint | None] = {}
        self.crews: dict[Level, tuple[Array, Array, Array]] = {}

    def findings(self) -> list[Finding]:
        """What the replay finds."""
        spaces = dict.fromkeys(self.space(access.buffer) for access in self.accesses())
        found: dict[Any, Finding] = {}
        for assumed in self._lengths():
            self.assumed = assumed
            steps = self.sequence(self.kernel.body, (), {})
            for space in spaces:
                _Run(self, space, steps, found).run()
        notes = [Finding("race", "note", name, f"not decided for {name}: {why}") for name, why in self.doubts.items()]
        return [*found.values(), *notes]

    def _lengths(self) -> list[dict[Any, int]]:
        """Numbers of iterations for the pipelined loops whose length is known only at run time: short ones, and a whole period."""
        loops = [one for one in statements(self.kernel.body) if isinstance(one, For) and one.period and constant(one.extent) is None]
        choices: list[dict[Any, int]] = [{}]
        for loop in {one.extent: one for one in loops}.values():
            lengths = (*range(1, loop.period + 2), *range(loop.period + 3, 2 * loop.period + 3))
            choices = [{**choice, loop.extent: length} for choice in choices for length in lengths]
        return choices

    def _refused(self, statement: Exec, fixed: Mapping[str, int]) -> bool:
        """Whether the assumed lengths say that a statement does not run in an iteration."""
        for condition in conjuncts(statement.active) if self.assumed else ():
            if isinstance(condition, Less) and condition.right in self.assumed and condition.left.variables() <= _named(fixed, condition):
                values = {var: fixed[var.name] for var in condition.left.variables()}
                if condition.left.substitute(values).low >= self.assumed[condition.right]:
                    return True
        return False

    def accesses(self) -> Iterable[Access]:
        """Accesses to memory that threads share."""
        return [use.access for use in self.scene.uses if use.access.buffer in self.watched]

    def space(self, buffer: str) -> str:
        """Buffers in shared memory lie in one space and may overlap; each array in global memory is its own."""
        return "SH" if self.kernel.buffer(buffer).memory == SH else buffer

    # -------------------------------------------------------------------------------------- the program as a sequence

    def sequence(self, body: Sequence[Stmt], loops: tuple[For, ...], fixed: Mapping[str, int]) -> tuple[Any, ...]:
        """Steps and barriers in program order; `fixed` are the values of loops that are replayed one by one."""
        steps: list[Any] = []
        for statement in body:
            if isinstance(statement, (Barrier, Commit, Wait)):
                steps.append(statement)
            elif isinstance(statement, Exec):
                steps += [] if self._refused(statement, fixed) else self.step(statement, loops, fixed)
            elif isinstance(statement, For):
                if self._ordered(statement):
                    steps += self._replayed(statement, loops, fixed)
                else:
                    steps += self.sequence(statement.body, (*loops, statement), fixed)
        return tuple(steps)

    def step(self, statement: Exec, loops: tuple[For, ...], fixed: Mapping[str, int]) -> list[Step]:
        """A statement as a step, if it touches shared memory."""
        uses = [Use(statement, loops, access) for access in accesses_of(statement) if access.buffer in self.watched]
        prints = [one for use in uses if (one := self.footprint(use, fixed, False)) is not None]
        if not prints:
            return []
        if not statement.collective:
            return [Step(tuple(prints), asynchronous=statement.asynchronous)]
        units = [one for use in uses if (one := self.footprint(use, fixed, True)) is not None]
        return [Step(tuple(prints), tuple(units))]

    def _ordered(self, loop: For) -> bool:
        """Whether the order of its iterations matters: it holds a barrier, or threads that act together on shared memory."""
        for statement in loop.body:
            if isinstance(statement, (Barrier, Commit, Wait)) or (isinstance(statement, For) and self._ordered(statement)):
                return True
            together = isinstance(statement, Exec) and statement.collective
            if together and any(access.buffer in self.watched for access in accesses_of(statement)):  # type: ignore[arg-type]
                return True
        return False

    def _replayed(self, loop: For, loops: tuple[For, ...], fixed: Mapping[str, int]) -> list[Any]:
        name = loop.var.name
        if constant(loop.extent) == 0:
            return []
        if loop.extent in self.assumed:
            inner = (*loops, loop)
            return [step for value in range(self.assumed[loop.extent]) for step in self.sequence(loop.body, inner, {**fixed, name: value})]
        before, behind = self._values(loop)
        inner = (*loops, loop)
        steps: list[Any] = [step for value in before for step in self.sequence(loop.body, inner, {**fixed, name: value})]
        if behind:
            steps.append(_Forget())
            steps += [step for value in behind for step in self.sequence(loop.body, inner, {**fixed, name: value})]
        return steps if loop.extent.low >= 1 else [Maybe(tuple(steps))]

    def _values(self, loop: For) -> tuple[Sequence[int], Sequence[int]]:
        """The iterations to replay: from the first one on, and the last ones of a long loop."""
        count = constant(loop.extent)
        name = loop.var.name
        uses = [use for use in self.scene.uses if use.access.buffer in self.watched and loop in use.loops]
        moving = [use for use in uses if name in self.scene.needs((*use.access.base, use.access.copy, use.statement.active))]
        if not moving:
            return range(3 if count is None else min(count, 3)), ()
        if count is not None and count <= ALL_VALUES:
            return range(count), ()
        period = self._period(moving, loop.var)
        sure = _surely_synchronized(loop.body)
        if (period is None and not self._shifts(moving, loop.var)) or not sure:
            reason = "no barrier in it always runs" if not sure else "the addresses are no simple function of it"
            self._doubt(moving, f"loop {name} runs more than {ALL_VALUES} times and {reason}")
        elif count is None and self._spaces(moving) & self._spaces(use for use in self.scene.uses if loop not in use.loops):
            self._doubt(moving, f"loop {name} ends at a size known at run time, and its last addresses meet those behind it")
        length = 3 + (period or 0)
        if count is None or count <= length:
            return range(length if count is None else count), ()
        end = min(count - 2, self._first_refused(moving, loop.var, length, count))
        last = length + max(end - length, 0) // (period or 1) * (period or 1)
        return range(length), range(last, count)

    def _first_refused(self, uses: Sequence[Use], var: Var, start: int, count: int) -> int:
        """The first iteration behind the start in which a condition on the iteration alone no longer holds."""
        conditions = {part for use in uses for part in conjuncts(use.statement.active) if part.variables() == {var}}
        first = count
        for condition in conditions:
            held = np.asarray(self.scene.frame([(var.name, np.arange(count))]).full(condition), dtype=bool)
            refused = np.flatnonzero(~held[start:])
            first = min(first, start + int(refused[0])) if refused.size else first
        return first

    def _spaces(self, uses: Iterable[Use]) -> set[str]:
        return {self.space(use.access.buffer) for use in uses}

    def _doubt(self, uses: Iterable[Use], why: str) -> None:
        for use in uses:
            self.doubts.setdefault(use.access.buffer, why)

    def _period(self, uses: Sequence[Use], var: Var) -> int | None:
        """After how many iterations all addresses repeat, if they do soon."""
        expressions = [part for use in uses for part in (*use.access.base, use.access.copy)]
        if not all(self._ends(part, var) for use in uses for part in conjuncts(use.statement.active)):
            return None
        sizes = {1}
        for expression in expressions:
            sizes |= {node.right.high for node in _nodes(expression) if isinstance(node, Mod) and var in node.variables()}
        period = math.lcm(*(size for size in sizes if size <= ALL_VALUES))
        free = Var(var.name, var.low, var.high + period)
        if any(name.name in self.scene.lets for part in expressions for name in part.variables() if var.name in self.scene.roots(name)):
            return None
        same = all(part.substitute({var: free + period}) == part.substitute({var: free}) for part in expressions)
        return period if same and period <= ALL_VALUES else None

    def _ends(self, condition: Any, var: Var) -> bool:
        """Whether a condition does not depend on an iteration, or holds up to one and not behind it."""
        if var.name not in self.scene.roots(condition):
            return True
        if not isinstance(condition, Less) or var not in condition.variables():
            return False
        step = self._coefficient(condition.left - condition.right, var)
        return step is not None and step > 0

    def _shifts(self, uses: Sequence[Use], var: Var) -> bool:
        """Whether each iteration moves all coordinates of a space by the same amount, whatever the guards."""
        amounts: dict[str, set[Any]] = {}
        spaces = self._spaces(uses)
        for use in self.scene.uses:
            inside = any(loop.var == var for loop in use.loops)
            if inside and use.access.buffer in self.watched and self.space(use.access.buffer) in spaces:
                if var.name in self.scene.needs((use.statement.active, use.access.copy)):
                    return False
                buffer = self.kernel.buffer(use.access.buffer)
                if buffer.memory == SH and buffer.storage.swizzle is not None:
                    return False
                amount = tuple(self._coefficient(part, var) for part in use.access.base)
                if None in amount or any(len(modes) > 1 for modes in buffer.storage.dims):
                    return False
                amounts.setdefault(self.space(use.access.buffer), set()).add((use.access.buffer, amount))
        return all(len(values) == 1 for values in amounts.values())

    def _coefficient(self, part: Any, var: Var) -> int | None:
        found = 0
        for atoms, coefficient in linear(part)[0]:
            if atoms == (var,):
                found = coefficient
            elif any(var.name in self.scene.roots(atom) for atom in atoms):
                return None
        return found

    # -------------------------------------------------------------------------------------- who touches what

    def footprint(self, use: Use, fixed: Mapping[str, int], by_unit: bool) -> Footprint | None:
        """Addresses with their least and greatest thread (or unit of the statement's level)."""
        needed = self._needed(use)
        kept = {name: value for name, value in fixed.items() if name in needed}
        memo = (id(use.statement), id(use.access), self._meaning(use, kept), by_unit)
        if memo not in self.memo:
            self.memo[memo] = self._footprint(use, kept, by_unit)
        found = self.memo[memo]
        return None if found is None else attrs.evolve(found, fixed=fixed)

    def _meaning(self, use: Use, fixed: Mapping[str, int]) -> tuple[Any, ...]:
        """What an access and its conditions mean in an iteration: the same in others means the same addresses."""
        parts = (*self._places(use.access), *self.scene.guards(use.statement, self._known(use))[0])
        if any(var.name in self.scene.lets and not self.scene.roots(var).isdisjoint(fixed) for part in parts for var in part.variables()):
            return tuple(fixed.items())
        return tuple(part.substitute({var: fixed[var.name] for var in part.variables() if var.name in fixed}) for part in parts)

    def _needed(self, use: Use) -> frozenset[str]:
        conditions, _ = self.scene.guards(use.statement, self._known(use))
        return self.scene.needs((*self._places(use.access), *conditions))

    def _known(self, use: Use) -> frozenset[str]:
        """Names that a guard may depend on and still be applied: its value is the same in every block and for every size."""
        return frozenset({"thread", *(loop.var.name for loop in use.loops)})

    def _places(self, access: Access) -> tuple[Any, ...]:
        local = self.local.get(access.buffer)
        return (*access.base, access.copy) if local is None else local.parts[access.base]

    def frame(self, use: Use, fixed: Mapping[str, int]) -> Frame | None:
        """The values of the thread and of the loops that the access depends on."""
        needed = self._needed(use)
        free = tuple(loop for loop in use.loops if loop.var.name not in fixed)
        axes = self.scene.loop_axes(free, needed, MANY // (len(self._crew(use)[0]) * len(use.access.elements())))
        if axes is None:
            axes = self._enough(use, free, needed)
        if axes is None or not needed <= {"thread", *fixed, *(name for name, _ in axes)}:
            foreign = sorted(needed - {"thread"} - {loop.var.name for loop in use.loops})
            why = f"addresses depend on {', '.join(foreign)}" if foreign else "too many loop values to enumerate"
            self.doubts.setdefault(use.access.buffer, why)
            return None
        return self.scene.frame([("thread", self._crew(use)[0]), *axes], fixed)

    def _crew(self, use: Use) -> tuple[Array, Array, Array]:
        """The threads to look at: all, or one for each unit that acts together, with its least and greatest member."""
        threads = self.scene.threads
        if use.access.spread:
            first = threads // 32 * 32
            return threads, first, np.minimum(first + 31, threads[-1])
        if not use.statement.collective:
            return threads, threads, threads
        level = use.statement.spec.level
        if level not in self.crews:
            number = unit_in(level, _block_level(level), self.kernel.thread)
            units = np.broadcast_to(np.asarray(self.scene.frame([("thread", threads)]).value(number)), threads.shape)
            _, first = np.unique(units, return_index=True)
            _, last = np.unique(units[::-1], return_index=True)
            order = np.argsort(first)
            self.crews[level] = (first[order], first[order], (len(threads) - 1 - last)[order])
        return self.crews[level]

    def _enough(self, use: Use, free: tuple[For, ...], needed: frozenset[str]) -> list[tuple[str, Array]] | None:
        """Values enough for all conflicts: an address moves by a fixed step per iteration, so only near iterations can meet."""
        axes = []
        conditions, _ = self.scene.guards(use.statement, self._known(use))
        for loop in free:
            if loop.var.name not in needed:
                continue
            reach = None if loop.var.name in self.scene.needs(conditions) else self._reach(use, loop)
            if reach is None:
                return None
            count = constant(loop.extent)
            axes.append((loop.var.name, np.arange(reach if count is None else min(reach, count))))
        return axes if math.prod(len(values) for _, values in axes) * self.kernel.workers <= MANY else None

    def _reach(self, use: Use, loop: For) -> int | None:
        """How many iterations hold all conflicts of an array that only this loop touches, and moves through in equal steps."""
        space = self.space(use.access.buffer)
        uses = [one for one in self.scene.uses if one.access.buffer in self.watched and self.space(one.access.buffer) == space]
        if any(loop not in one.loops for one in uses) or not self._shifts(uses, loop.var):
            return None
        found = []
        for dim, base in enumerate(use.access.base):
            step = self._coefficient(base, loop.var)
            if step:
                rests = [self._places(one.access)[dim] - loop.var * step for one in uses]
                width = max(offset[dim] for one in uses for offset in one.access.elements()) + 1
                found.append((max(rest.high for rest in rests) - min(rest.low for rest in rests) + width) // abs(step) + 2)
        return min(found, default=None)

    def _footprint(self, use: Use, fixed: Mapping[str, int], by_unit: bool) -> Footprint | None:
        frame = self.frame(use, fixed)
        if frame is None:
            return None
        keys, mask = self.keys(use, frame)
        _, least, most = self._crew(use)
        if by_unit:
            least = most = np.arange(len(least))
        touched, low, high = self._folded(keys, mask, least)
        if most is not least:
            _, _, high = self._folded(keys, mask, most)
        return Footprint(use, fixed, touched, low, high)

    def _folded(self, keys: Array, mask: Array | None, actor: Array) -> tuple[Array, Array, Array]:
        actors = np.broadcast_to(actor.reshape([-1] + [1] * (keys.ndim - 1)), keys.shape)
        return folded(keys.ravel(), actors.ravel()) if mask is None else folded(keys[mask], actors[mask])

    def keys(self, use: Use, frame: Frame) -> tuple[Array, Array | None]:
        """A number for each address touched, at each point of the frame, and where the statement is active (None: everywhere)."""
        access = use.access
        buffer = self.kernel.buffer(access.buffer)
        if buffer.memory == SH:
            scale = buffer.dtype.bytes // self.granule
            keys = self.scene.addresses(frame, access) * scale + buffer.offset // self.granule
            if scale > 1:
                keys = (keys[..., None] + np.arange(scale)).reshape((*keys.shape[:-1], -1))
        else:
            keys = self.local[access.buffer].keys(frame, access)
            scale = 1
        mask = self._mask(use, frame)
        return keys, None if mask is None else np.broadcast_to(np.repeat(mask, scale, axis=-1), keys.shape)

    def _mask(self, use: Use, frame: Frame) -> Array | None:
        conditions, _ = self.scene.guards(use.statement, self._known(use))
        mask: Array | None = None
        for condition in conditions:
            value = np.asarray(frame.value(condition), dtype=bool)
            value = np.broadcast_to(value, frame.shape)[..., None]
            mask = value if mask is None else mask & value
        for dim, bound in enumerate(use.access.bounds):
            number = None if bound is None else constant(bound)
            base = use.access.base[dim]
            roots = self.scene.roots(base)
            if number is None or not (roots <= self._known(use) and all(name in frame for name in roots)):
                continue
            steps = np.array([offset[dim] for offset in use.access.elements()])
            inside = frame.full(base)[..., None] + steps < number
            mask = inside if mask is None else mask & inside
        if mask is None:
            return None
        return np.broadcast_to(mask, (*frame.shape, len(use.access.elements())))


def _named(fixed: Mapping[str, int], condition: Any) -> set[Any]:
    return {var for var in condition.variables() if var.name in fixed}


def _block_level(level: Level) -> Level:
    return next((one for one in (level, *level.ancestors()) if one == Block), level)


def _nodes(expression: Any) -> Iterable[Any]:
    yield expression
    for child in expression.children:
        yield from _nodes(child)


def _surely_synchronized(body: Sequence[Stmt]) -> bool:
    """Whether a block barrier always runs."""
    for statement in body:
        if isinstance(statement, Barrier) and statement.scope == BLOCK_SCOPE:
            return True
        if isinstance(statement, For) and statement.extent.low >= 1 and _surely_synchronized(statement.body):
            return True
    return False


def folded(keys: Array, actors: Array) -> tuple[Array, Array, Array]:
    """Each key once, with its least and greatest actor; actors ascend along the array."""
    if not keys.size:
        return keys, actors, actors
    first = int(keys.min())
    span = int(keys.max()) - first + 1
    if span > MANY:
        order = np.argsort(keys, kind="stable")
        keys, actors = keys[order], actors[order]
        starts = np.flatnonzero(np.concatenate(([True], keys[1:] != keys[:-1])))
        return keys[starts], np.minimum.reduceat(actors, starts), np.maximum.reduceat(actors, starts)
    place = keys - first
    high = np.full(span, -1, dtype=np.int64)
    low = np.empty(span, dtype=np.int64)
    high[place] = actors
    low[place[::-1]] = actors[::-1]
    touched = np.flatnonzero(high >= 0)
    return touched + first, low[touched], high[touched]


# ---------------------------------------------------------------------------------------------- running the sequence


@attrs.define(eq=False)
class _State:
    """Per address: least and greatest of those who wrote, who read and who added atomically, as threads since the last warp
    barrier, as warps before: two rows for each, twice.
    """

    ends: Array
    log: list[tuple[Footprint, int]]
    folds: int = 0

    @staticmethod
    def empty(size: int) -> _State:
        ends = np.empty((12, size), dtype=np.int64)
        state = _State(ends, [])
        state.forget()
        return state

    def forget(self) -> None:
        """A block barrier."""
        self.ends[0::2] = _NOBODY
        self.ends[1::2] = -1
        self.log = []
        self.folds = 0

    def fold(self) -> None:
        """A warp barrier: what a warp did before is ordered for its own threads."""
        for row in (0, 2, 4):
            self.ends[6 + row] = np.minimum(self.ends[6 + row], np.where(self.ends[row] == _NOBODY, _NOBODY, self.ends[row] // 32))
            self.ends[7 + row] = np.maximum(self.ends[7 + row], np.where(self.ends[row + 1] < 0, -1, self.ends[row + 1] // 32))
        self.ends[0:6:2], self.ends[1:6:2] = _NOBODY, -1
        self.folds += 1

    def copy(self) -> _State:
        return _State(self.ends.copy(), list(self.log), self.folds)

    def join(self, other: _State) -> None:
        """What may be pending when either of two ways was taken."""
        self.ends[0::2] = np.minimum(self.ends[0::2], other.ends[0::2])
        self.ends[1::2] = np.maximum(self.ends[1::2], other.ends[1::2])
        known = {(id(one), folds) for one, folds in self.log}
        shift = max(self.folds, other.folds)
        self.log = [(one, folds - self.folds + shift) for one, folds in self.log]
        self.log += [(one, folds - other.folds + shift) for one, folds in other.log if (id(one), folds) not in known]
        self.folds = shift

    def conflicts(self, place: Array, one: Footprint, own: bool) -> Array:
        """Positions in a footprint that conflict with what is pending, or (`own`) with themselves."""
        ends = self.ends[:, place]
        low, high = one.low, one.high
        rows = [row for row in (0, 2, 4) if _must_be_ordered(_row(one), row)]
        least, most = (function.reduce([ends[row + side] for row in rows]) for side, function in enumerate((np.minimum, np.maximum)))
        near = (most >= 0) & ((least < high) | (most > low))
        if own and _row(one) == 0:
            near |= (low // 32 != high // 32) if one.use.access.spread else (low != high)
        least, most = (function.reduce([ends[6 + row + side] for row in rows]) for side, function in enumerate((np.minimum, np.maximum)))
        far = (most >= 0) & ((least < high // 32) | (most > low // 32))
        return np.flatnonzero(near | far)

    def add(self, place: Array, one: Footprint) -> None:
        row = _row(one)
        self.ends[row, place] = np.minimum(self.ends[row, place], one.low)
        self.ends[row + 1, place] = np.maximum(self.ends[row + 1, place], one.high)
        self.log.append((one, self.folds))


def _row(one: Footprint) -> int:
    """The first row of a state for the kind of a touch: a write, a read, an atomic addition."""
    return 4 if one.use.atomic else 0 if one.use.access.write else 2


def _must_be_ordered(row: int, other: int) -> bool:
    """Whether touches of two kinds need a barrier between: neither two reads, nor two atomic additions."""
    return row == 0 or row != other


@attrs.define(eq=False)
class _Flight:
    """Asynchronous copies on their way: those issued since the last commit, and the groups that no wait has completed."""

    issued: list[Footprint] = attrs.field(factory=list)
    groups: list[list[Footprint]] = attrs.field(factory=list)

    def commit(self) -> None:
        self.groups.append(self.issued)
        self.issued = []

    def arrived(self, pending: int) -> list[Footprint]:
        """The copies that a wait for all but the last `pending` groups completes."""
        count = max(len(self.groups) - pending, 0)
        done, self.groups = self.groups[:count], self.groups[count:]
        return [one for group in done for one in group]

    def under_way(self) -> list[Footprint]:
        return [*self.issued, *(one for group in self.groups for one in group)]


class _Run:
    """The sequence run over one space."""

    def __init__(self, replay: _Replay, space: str, steps: tuple[Any, ...], found: dict[Any, Finding]) -> None:
        self.replay, self.space, self.steps, self.found = replay, space, steps, found
        parts = [one.keys for one in _footprints(steps) if replay.space(one.use.access.buffer) == space and one.keys.size]
        self.first = min((int(keys[0]) for keys in parts), default=0)
        size = max((int(keys[-1]) for keys in parts), default=-1) - self.first + 1
        self.universe = np.unique(np.concatenate(parts)) if size > MANY else None
        self.state = _State.empty(size if self.universe is None else len(self.universe))
        self.flight = _Flight()
        self.places: dict[int, Array] = {}

    def run(self) -> None:
        self._run(self.steps)

    def place(self, one: Footprint) -> Array:
        if self.universe is None:
            return one.keys - self.first
        if id(one) not in self.places:
            self.places[id(one)] = np.searchsorted(self.universe, one.keys)
        return self.places[id(one)]

    def _run(self, steps: Sequence[Any]) -> None:
        for step in steps:
            if isinstance(step, Step):
                self._step(step)
            elif isinstance(step, Barrier):
                self.state.forget() if step.scope == BLOCK_SCOPE else self.state.fold()
            elif isinstance(step, Commit):
                self.flight.commit()
            elif isinstance(step, Wait):
                for one in self.flight.arrived(step.groups):
                    self.state.add(self.place(one), one)
            elif isinstance(step, _Forget):
                self.state.forget()
            elif isinstance(step, Maybe):
                skipped = self.state.copy()
                self._run(step.steps)
                self.state.join(skipped)

    def _mine(self, prints: Iterable[Footprint]) -> list[Footprint]:
        return [one for one in prints if self.replay.space(one.use.access.buffer) == self.space and one.keys.size]

    def _step(self, step: Step) -> None:
        prints = self._mine(step.touched)
        if step.by_unit is None:
            for one in prints:
                self._meet(one)
                self._meet_flight(one)
                if step.asynchronous and one.use.access.write:
                    self.flight.issued.append(one)
                else:
                    self.state.add(self.place(one), one)
            return
        for one in prints:
            self._meet(one, own=False)
        for one in prints:
            self.state.add(self.place(one), one)
        self._between_units(self._mine(step.by_unit))

    def _between_units(self, prints: list[Footprint]) -> None:
        """Threads that act together order their own accesses; units among each other do not."""
        for number, one in enumerate(prints):
            for other in prints[: number + 1]:
                if not (one.use.access.write or other.use.access.write):
                    continue
                keys, mine, theirs = np.intersect1d(one.keys, other.keys, assume_unique=True, return_indices=True)
                low, high = np.minimum(one.low[mine], other.low[theirs]), np.maximum(one.high[mine], other.high[theirs])
                clash = np.flatnonzero(low != high)
                if clash.size:
                    label = _mark(one, other)
                    if label not in self.found:
                        where = int(clash[0])
                        level = str(one.use.statement.spec.level)
                        pair = ((other, int(low[where])), (one, int(high[where])))
                        self.found[label] = self._finding(pair, int(keys[where]), level)

    def _meet(self, one: Footprint, own: bool = True) -> None:
        place = self.place(one)
        clash = self.state.conflicts(place, one, own)
        if clash.size:
            self._report(one, clash, own)

    def _meet_flight(self, one: Footprint) -> None:
        """Nobody may touch, the issuing thread included, where a copy is under way."""
        for other in self.flight.under_way():
            if _mark(one, other) in self.found or one.keys[0] > other.keys[-1] or other.keys[0] > one.keys[-1]:
                continue
            keys, mine, theirs = np.intersect1d(one.keys, other.keys, assume_unique=True, return_indices=True)
            if keys.size:
                pair = ((other, int(other.low[theirs[0]])), (one, int(one.high[mine[0]])))
                self.found[_mark(one, other)] = self._finding(pair, int(keys[0]), under_way=True)

    # -------------------------------------------------------------------------------------- counterexamples

    def _report(self, one: Footprint, clash: Array, own: bool) -> None:
        pending = [(other, self.state.folds != folds) for other, folds in self.state.log]
        if own and _row(one) == 0:
            pending.append((one, False))
        for other, ordered_in_warp in pending:
            if _mark(one, other) in self.found or not _must_be_ordered(_row(one), _row(other)):
                continue
            keys, mine, theirs = np.intersect1d(one.keys[clash], other.keys, assume_unique=True, return_indices=True)
            mine = clash[mine]
            pairs = [(other.low[theirs], one.high[mine]), (other.high[theirs], one.low[mine])]
            for before, behind in pairs:
                differs = (before // 32 != behind // 32) if ordered_in_warp else (before != behind)
                hits = np.flatnonzero(differs)
                if hits.size:
                    self._witness(one, other, keys[hits], before[hits], behind[hits])
                    break

    def _witness(self, one: Footprint, other: Footprint, keys: Array, before: Array, behind: Array) -> None:
        """The first conflict that some block and some sizes make real; else the first one, not decided."""
        label = _mark(one, other)
        tried = np.unique(np.linspace(0, len(keys) - 1, 8).astype(int))
        for number in tried:
            pair = ((other, int(before[number])), (one, int(behind[number])))
            finding = self._finding(pair, int(keys[number]))
            if finding.severity == "error":
                break
        self.found[label] = finding

    def _finding(self, pair: Sequence[tuple[Footprint, int]], key: int, level: str | None = None, under_way: bool = False) -> Finding:
        points = [self._point(one, actor, key, level is not None) for one, actor in pair]
        assumed = [part for one, _ in pair for part in self.replay.scene.guards(one.use.statement, self.replay._known(one.use))[1]]
        real = not assumed or _possible(self.replay.scene, assumed, points)
        (one, _), (behind, _) = pair
        uses = (one.use, behind.use)
        buffer = self.replay.kernel.buffer(behind.use.access.buffer)
        same = uses[0].access == uses[1].access
        place = points[1]["element"]
        verbs = ["writes" if use.access.write else "reads" for use in uses]
        actors = [f"{level.lower()} {actor}" if level else f"thread {actor}" for _, actor in pair]
        lines = [line_of(use.statement, use.access) or "an unknown line" for use in uses]
        steps = [_loop_text(point["loops"]) for point in points]
        wheres = [f"({use.statement.instruction.name} {use.statement.spec} at {line})" for use, line in zip(uses, lines, strict=True)]
        if same and points[0]["loops"] == points[1]["loops"]:
            wheres[1] = "in the same statement"
        parts = [f"{actors[side]} {verbs[side]} it{steps[side]} {wheres[side]}" for side in (0, 1)]
        missing = "while the asynchronous copy is under way" if under_way else "and no barrier stands between"
        text = f"{buffer.name}{list(place)}: {parts[0]}, {parts[1]}, {missing}"
        if not real:
            text = f"not decided: {text}, if {' and '.join(str(part) for part in assumed)} can hold for both"
        details = {
            "address": points[1]["address"],
            "element": place,
            "threads": [point["thread"] for point in points],
            "loops": [point["loops"] for point in points],
            "statements": [described(use.statement, use.access) for use in uses],
            "buffers": [use.access.buffer for use in uses],
            "lines": lines,
        }
        if assumed:
            details["assumed"] = [str(part) for part in assumed]
        return Finding(
            "race",
            "error" if real else "warning",
            buffer.name,
            text,
            line_of(behind.use.statement, behind.use.access),
            described(behind.use.statement, behind.use.access),
            details,
        )

    def _point(self, one: Footprint, actor: int, key: int, unit: bool) -> dict[str, Any]:
        """Where in the frame of a footprint an actor touches a key."""
        replay, use = self.replay, one.use
        needed = replay._needed(use)
        frame = replay.frame(use, {name: value for name, value in one.fixed.items() if name in needed})
        assert frame is not None
        keys, mask = replay.keys(use, frame)
        hit = keys == key if mask is None else (keys == key) & mask
        _, least, most = replay._crew(use)
        rows = np.arange(len(keys)) == actor if unit else (least <= actor) & (actor <= most)
        hit = hit & rows.reshape([-1] + [1] * (keys.ndim - 1))
        index = np.argwhere(hit)[0]
        position = int(index[-1]) // (keys.shape[-1] // len(use.access.elements()))
        values = frame.at(index[:-1])
        thread = values.pop("thread") if unit else actor
        values.pop("thread", None)
        coordinates = [int(part[tuple(index[:-1])][position]) for part in _element(replay, use, frame)]
        buffer = replay.kernel.buffer(use.access.buffer)
        address = int(key * replay.granule - buffer.offset) // buffer.dtype.bytes if buffer.memory == SH else None
        loops = {loop.var.name: one.fixed.get(loop.var.name, values.get(loop.var.name, 0)) for loop in use.loops}
        return {"thread": thread, "loops": loops, "element": coordinates, "address": address}


def _element(replay: _Replay, use: Use, frame: Frame) -> list[Array]:
    local = replay.local.get(use.access.buffer)
    if local is None:
        return replay.scene.coordinates(frame, use.access)
    return local.coordinates(frame, use.access)


def _mark(one: Footprint, other: Footprint) -> Any:
    return frozenset((id(part.use.statement), part.use.access) for part in (one, other))


def _footprints(steps: Iterable[Any]) -> Iterable[Footprint]:
    for step in steps:
        if isinstance(step, Step):
            yield from step.touched
        elif isinstance(step, Maybe):
            yield from _footprints(step.steps)


def _loop_text(loops: Mapping[str, int]) -> str:
    return f" in {', '.join(f'{name}={value}' for name, value in loops.items())}" if loops else ""


def _possible(scene: Scene, conditions: Sequence[Any], points: Sequence[Mapping[str, Any]]) -> bool:
    """Whether conditions on the block and the sizes hold together somewhere: a few sizes and blocks are tried."""
    grid = constant(scene.kernel.grid)
    blocks = (0, 1, (grid or 2) - 1)
    for factor in (64, 1, 7, 1024):
        sizes = {symbol.name: max(symbol.low, symbol.multiple_of * factor) for symbol in scene.kernel.symbols}
        for block in blocks:
            holds = True
            for point in points:
                frame = scene.frame([], {**sizes, **point["loops"], "thread": point["thread"], "block": block})
                holds = holds and all(bool(frame.value(part)) for part in conditions if scene.roots(part) <= set(frame) | set(frame.lets))
            if holds:
                return True
    return False
