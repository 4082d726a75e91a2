"""Dependence analysis: a program under a mapping as event IR (Cypress, section 4.2.1).

The instances are read in the order of the text. Each tensor of a launch becomes a new one where the mapping says, copied in if the instance
reads it, and copied out if it writes it. Whoever reads waits for those that wrote, and whoever writes for all; what is surely apart, the
different pieces of a partition, does not wait, and neither do those that only read. A loop's statements wait for what they need of the
turns before. The copies are many: eliminating them is the business of later passes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import attrs

from fireiron.errors import DecompositionError, call_site
from fireiron.spec import Spec
from fireiron.tasks.events import (
    EVERY,
    Alloc,
    Block,
    Call,
    Carry,
    Copy,
    Event,
    EventProgram,
    Events,
    For,
    Leaf,
    LeafTask,
    Pfor,
    Ref,
    Result,
    Statement,
    blocks_of,
    with_blocks,
)
from fireiron.tasks.mapping import NONE, Mapping, Place, Processor, TaskMapping
from fireiron.tasks.partition import Partition
from fireiron.tasks.program import CALL, Form, Launch, Runner, Tasks, TaskTensor, Variant, plain
from fireiron.tasks.reduce import reduced, renumbered
from fireiron.tasks.scalar import scalar
from fireiron.values.expr import Expr, Var, as_expr, constant
from fireiron.values.machine import DType, as_dtype, int32

ANY: Final = Var("_", 0)
"""Any index, of the piece that a loop has worked on."""


def analyzed(program: Tasks, mapping: Mapping, *tensors: tuple[tuple[Any, ...], Any]) -> EventProgram:
    """The event IR of a program under a mapping, for tensors of the entry point with these shapes and element types, in its order.

    Raises: DecompositionError and ArgumentError as the compiler does for what the program or the mapping may not do.
    """
    program.check(mapping)
    reader = Analyst(program, mapping)
    variant = program[mapping.root.variant]
    given = [(name, tuple(map(as_expr, shape)), as_dtype(dtype)) for name, (shape, dtype) in zip(variant.tensors, tensors, strict=True)]
    return reader.analyzed(given)


def analyzed_for(program: Tasks, mapping: Mapping, spec: Spec) -> EventProgram:
    """The event IR of a program that performs a spec, whose operands have the names of the entry point's tensors."""
    variant = program[mapping.root.variant]
    unknown = [name for name in variant.tensors if name not in spec.operands]
    if unknown:
        raise DecompositionError(f"{variant.name}: {spec.title} has no operand {unknown[0]}", legal=tuple(spec.operands), at=variant.origin)
    return analyzed(program, mapping, *((spec.operands[name].shape, spec.operands[name].dtype) for name in variant.tensors))


@attrs.frozen
class Access:
    """What has been done with a tensor: on which piece, whether written, the events that say so, and the accesses that came before it.

    `at` is the line of the launch.
    """

    number: int
    ref: Ref
    write: bool
    events: Events
    awaited: frozenset[int]
    at: str | None = None


@attrs.define(eq=False)
class Turns:
    """A loop that is read: its variables, the processor of its launches, and what its statements do with tensors."""

    variables: tuple[Var, ...]
    extents: tuple[Expr, ...]
    processor: Processor
    parallel: bool
    depth: int
    before: dict[str, list[Access]]
    accesses: list[tuple[str, Access]] = attrs.field(factory=list)


@attrs.define(eq=False)
class Analyst(Runner):
    """Reads a program into statements; `done` is what was done with each tensor and may have to be waited for."""

    loops: list[Turns] = attrs.field(factory=list, init=False)
    out: list[list[Statement]] = attrs.field(factory=lambda: [[]], init=False)
    done: dict[str, list[Access]] = attrs.field(factory=dict, init=False)
    tasks: dict[str, LeafTask] = attrs.field(factory=dict, init=False)
    names: dict[str, int] = attrs.field(factory=dict, init=False)
    carried: dict[str, Access] = attrs.field(factory=dict, init=False)
    numbers: int = attrs.field(default=0, init=False)
    symbols: set[str] = attrs.field(factory=set, init=False)

    def analyzed(self, given: list[tuple[str, tuple[Expr, ...], DType]]) -> EventProgram:
        """The program for tensors of the entry point."""
        variant = self.program[self.mapping.root.variant]
        arguments = tuple(
            Alloc(self._name(name), shape, dtype, place) for (name, shape, dtype), place in zip(given, self.mapping.root.mems, strict=True)
        )
        self.done = {one.name: [] for one in arguments}
        sizes = frozenset[Var]().union(*(size.variables() for one in arguments for size in one.shape))
        self.symbols = {one.name for one in sizes}
        self.start(tuple(TaskTensor(Ref(one.name), tuple(plain(size) for size in one.shape), one.dtype) for one in arguments))
        written = [one for one, name in zip(arguments, variant.tensors, strict=True) if name in variant.writes]
        last = tuple(dict.fromkeys(event for one in written for each in self.done[one.name] if each.write for event in each.events))
        body = Block(tuple(self.out[0]), (last,))
        return renumbered(reduced(EventProgram(tuple(sorted(sizes, key=str)), tuple(self.tasks.values()), arguments, body)))

    # ------------------------------------------------------------------------------------------ what variants do

    def piece(self, tensor: TaskTensor, by: Partition, place: tuple[Expr, ...], shape: tuple[Any, ...]) -> Ref:
        found: Ref = tensor.data
        return found.piece(by, *place)

    def apart(self, one: TaskTensor, other: TaskTensor) -> bool:
        """Arguments of one launch: whoever makes the kernel looks at them."""
        return True

    def tensor(self, shape: tuple[Any, ...], dtype: DType) -> Ref:
        return self._alloc("t", tuple(map(as_expr, shape)), dtype, NONE)

    def coordinates(self, tensor: TaskTensor, dim: int) -> Ref:
        return self.tensor((tensor.extents[dim],), int32)

    def extent(self, tensor: TaskTensor, dim: int) -> Ref:
        return self.tensor((), int32)

    def external(self, function: Any, tensors: tuple[TaskTensor, ...], options: dict[str, Any]) -> None:
        """Nothing: what a Leaf works on its privileges say."""

    def enter(self, one: TaskMapping, variant: Variant, tensors: tuple[TaskTensor, ...]) -> None:
        if not self.frames:
            return self._run(one, variant, tensors)
        self._note(one)
        inner = []
        for name, place, each in zip(variant.tensors, one.mems, tensors, strict=True):
            if name not in variant.reads | variant.writes:
                inner.append(each)
                continue
            fresh = self._alloc(name, tuple(map(as_expr, each.extents)), each.dtype, place)
            if name in variant.reads:
                self._copy(each.data, fresh, self.launch_of(f"in {name}"))
            inner.append(attrs.evolve(each, data=fresh))
        self._run(one, variant, tuple(inner))
        for name, each, passed in zip(variant.tensors, tensors, inner, strict=True):
            if name in variant.writes:
                self._copy(passed.data, each.data, self.launch_of(f"out {name}"))
        return None

    def _copy(self, source: Ref, target: Ref, launch: Launch) -> None:
        self._leaf(lambda event, after: Copy(event, source, target, after, launch=launch), ((source, False), (target, True)))

    def _run(self, one: TaskMapping, variant: Variant, tensors: tuple[TaskTensor, ...]) -> None:
        """Run an instance on its tensors; a leaf becomes a call."""
        self.call(one, variant, tensors)
        if variant.form is not Form.Leaf:
            return
        privileges = tuple((name, name in variant.reads, name in variant.writes) for name in variant.tensors)
        self.tasks.setdefault(one.instance, LeafTask(one.instance, privileges))
        arguments = tuple(each.data for each in tensors)
        accesses = [(ref, writes) for ref, (_, reads, writes) in zip(arguments, privileges, strict=True) if reads or writes]
        launch = self.launch_of(CALL)
        self._leaf(lambda event, after: Call(event, one.instance, arguments, after, launch=launch), tuple(accesses))

    def _note(self, one: TaskMapping) -> None:
        """To which processors the launches of a loop go."""
        inner = self.loops[-1] if self.loops and self.loops[-1].depth == len(self.frames) else None
        if inner is None or not inner.parallel:
            return
        if inner.accesses and inner.processor != one.proc:
            raise DecompositionError("launches of one prange go to different processors", got=str(one.proc), at=call_site())
        inner.processor = one.proc

    # ------------------------------------------------------------------------------------------ statements

    def _name(self, wanted: str) -> str:
        """A name that no tensor has."""
        numbers = itertools.count(self.names.get(wanted, 0))
        free = next(number for number in numbers if f"{wanted}{number or ''}" not in self.done)
        self.names[wanted] = free + 1
        return f"{wanted}{free or ''}"

    def _alloc(self, name: str, shape: tuple[Expr, ...], dtype: DType, place: Place) -> Ref:
        made = Alloc(self._name(name), shape, dtype, place)
        if self.here.variant.form is not Form.Leaf:
            self.out[-1].append(made)
        self.done[made.name] = []
        return Ref(made.name)

    def _leaf(self, make: Callable[[str, Events], Leaf], refs: tuple[tuple[Ref, bool], ...]) -> None:
        """A statement that works on pieces, behind all accesses that it may not overtake."""
        waits = {one.number: one for ref, write in refs for one in self.done[ref.tensor] if _conflict(one, ref, write)}
        event = f"#{self.numbers}"
        self.out[-1].append(make(event, _events(waits.values())))
        awaited = frozenset(waits).union(*(one.awaited for one in waits.values()))
        for ref, write in refs:
            made = self._access(ref, write, (Event(event),), awaited)
            kept = [one for one in self.done[ref.tensor] if not (write and one.number in waits and _covers(ref, one.ref))]
            self.done[ref.tensor] = [*kept, made]
            for loop in self.loops:
                if ref.tensor in loop.before:
                    loop.accesses.append((event, made))

    def _access(self, ref: Ref, write: bool, events: Events, awaited: frozenset[int]) -> Access:
        self.numbers += 1
        return Access(self.numbers, ref, write, events, awaited, call_site())

    # ------------------------------------------------------------------------------------------ loops

    def loop(self, extents: tuple[Any, ...], parallel: bool) -> Iterator[Any]:
        sizes, here = tuple(map(as_expr, extents)), self.here
        variables = self._variables(sizes, parallel)
        inside = here.variant.form is Form.Leaf
        loop = Turns(variables, sizes, here.one.proc, parallel, len(self.frames), {name: list(one) for name, one in self.done.items()})
        if not inside:
            self.out.append([])
            self.loops.append(loop)
        met = tuple(map(scalar, variables))
        yield met if len(met) > 1 else met[0]
        if inside:
            return
        self.loops.pop()
        body = Block(tuple(self.out.pop()))
        if parallel:
            return self._group(loop, body)
        for variable, size in zip(reversed(variables), reversed(sizes), strict=True):
            body = Block((self._turns(loop, variable, size, body),))
        self.out[-1] += body.statements
        return None

    def _variables(self, sizes: tuple[Expr, ...], parallel: bool) -> tuple[Var, ...]:
        """Variables for a loop, whose names no loop around has, nor a size."""
        taken = {var.name for loop in self.loops for var in loop.variables} | self.symbols
        groups = ["ijlmno"[: len(sizes)]] if len(sizes) > 1 else ["i", "j", "l"] if parallel else ["k"]
        named = ([f"{letter}{number or ''}" for letter in group] for number in itertools.count() for group in groups)
        free = next(names for names in named if not taken & set(names))
        return tuple(Var(name, 0, max(size.high - 1, 0)) for name, size in zip(free, sizes, strict=True))

    def _group(self, loop: Turns, body: Block) -> None:
        """Launches at once: those behind wait for all of them."""
        _require_apart(loop)
        made = self._made(loop)
        results = tuple(Result(self._event()) for _ in made) or (Result(self._event()),)
        yields = tuple(one.events for one in made) or ((),)
        self.out[-1].append(Pfor(results, loop.variables, loop.extents, loop.processor, attrs.evolve(body, yields=yields)))
        every, runs = (EVERY,) * len(loop.variables), all(size.low >= 1 for size in loop.extents)
        behind = [
            self._access(_widened(one.ref, loop.variables), one.write, (Event(result.name, every),), one.awaited)
            for one, result in zip(made, results, strict=False)
        ]
        self._leave(loop, behind, lambda old, new: runs and _covers(new.ref, old.ref))

    def _turns(self, loop: Turns, variable: Var, size: Expr, body: Block) -> For:
        """Launches one after the other: each of a turn waits for those of turns before that it may not overtake."""
        made = self._made(loop)
        conflicts = {one.number: _meeting(loop, one, variable) for one in made}
        own = {one.number: self._initial(loop, one, variable) for one in made}
        made.sort(key=lambda one: not (conflicts[one.number] or own[one.number]))
        results = tuple(Result(self._event()) for _ in made)
        carries = []
        for one in made:
            if conflicts[one.number] or own[one.number]:
                name = self._event()
                self.carried[name] = attrs.evolve(one, ref=_foreign(one.ref, variable))
                carries.append(Carry(name, _events(own[one.number])))
                body = _waiting(body, conflicts[one.number], Event(name))
                body = self._handed_on(body, name)
        behind = [
            self._access(_widened(one.ref, (variable,)), one.write, (Event(result.name),), one.awaited)
            for one, result in zip(made, results, strict=True)
        ]
        self._leave(loop, behind, lambda old, new: _covers(new.ref, old.ref) and any(old in one for one in own.values()))
        body = attrs.evolve(body, yields=tuple(one.events for one in made))
        return For(results, variable, size, tuple(carries), body, max(self.here.one.pipeline, 1))

    def _made(self, loop: Turns) -> list[Access]:
        """What the turns of a loop leave to be waited for, of tensors around it."""
        return [one for name, old in loop.before.items() for one in self.done[name] if one not in old]

    def _initial(self, loop: Turns, one: Access, variable: Var) -> list[Access]:
        """The accesses before a loop that an access of its turns stands for, in the first turn too."""
        if not one.write or variable in one.ref.variables():
            return []
        return [old for old in loop.before[one.ref.tensor] if old.number in one.awaited and _covers(one.ref, old.ref)]

    def _leave(self, loop: Turns, behind: list[Access], stands_for: Callable[[Access, Access], bool]) -> None:
        """Behind a loop: what was done before it, but for that which accesses of the loop stand for, and these."""
        for name, old in loop.before.items():
            own = [one for one in behind if one.ref.tensor == name]
            replaced = [one for one in old if any(new.write and one.number in new.awaited and stands_for(one, new) for new in own)]
            self.done[name] = [*(one for one in old if one not in replaced), *own]

    def _handed_on(self, body: Block, name: str) -> Block:
        """Loops inside whose turns wait for accesses to the same tensor have the carried event among what they begin with."""
        mine = self.carried[name]

        def handed(one: Statement) -> Statement:
            if isinstance(one, For):
                meets = [_conflict(mine, self.carried[each.name].ref, self.carried[each.name].write) for each in one.carries]
                pairs = zip(one.carries, meets, strict=True)
                one = attrs.evolve(
                    one, carries=tuple(attrs.evolve(each, initial=(*each.initial, Event(name))) if met else each for each, met in pairs)
                )
            return with_blocks(one, tuple(attrs.evolve(each, statements=tuple(map(handed, each.statements))) for each in blocks_of(one)))

        return attrs.evolve(body, statements=tuple(map(handed, body.statements)))

    def _event(self) -> str:
        self.numbers += 1
        return f"#{self.numbers}"


def _events(accesses: Iterable[Access]) -> Events:
    """The events of accesses, each once."""
    return tuple(dict.fromkeys(event for one in accesses for event in one.events))


def _waiting(body: Block, which: frozenset[str], event: Event) -> Block:
    """The block, where some statements wait for an event too."""

    def waits(one: Statement) -> Statement:
        if isinstance(one, (Copy, Call)):
            return attrs.evolve(one, after=(*one.after, event)) if one.event in which else one
        return with_blocks(one, tuple(_waiting(inner, which, event) for inner in blocks_of(one)))

    return attrs.evolve(body, statements=tuple(map(waits, body.statements)))


def _require_apart(loop: Turns) -> None:
    """Refuse launches of a prange of which one may write what another touches."""
    variables = [var for var, size in zip(loop.variables, loop.extents, strict=True) if constant(size) != 1]
    for (_, one), (_, other) in itertools.combinations_with_replacement(loop.accesses, 2):
        for variable in variables:
            if _conflict(attrs.evolve(one, ref=_foreign(one.ref, variable)), other.ref, other.write):
                raise DecompositionError(
                    f"two launches of a prange may touch the same elements of {one.ref.tensor}, and one writes them",
                    got="pieces that are not known to differ with each index", legal="pieces at the indices of the prange, or srange",
                    at=one.at or other.at,
                )  # fmt: skip


def _meeting(loop: Turns, one: Access, variable: Var) -> frozenset[str]:
    """The statements of a turn that may not overtake an access of another turn."""
    foreign = attrs.evolve(one, ref=_foreign(one.ref, variable))
    return frozenset(event for event, each in loop.accesses if _conflict(foreign, each.ref, each.write))


def _foreign(ref: Ref, variable: Var) -> Ref:
    """The piece as it was in another turn."""
    return ref.at({variable: Var(f"{variable.name}'", variable.low, variable.high)})


def _conflict(one: Access, ref: Ref, write: bool) -> bool:
    """Whether an access to a piece may not overtake another one."""
    return one.ref.tensor == ref.tensor and (write or one.write) and not apart(one.ref, ref)


def apart(one: Ref, other: Ref) -> bool:
    """Whether two pieces of a tensor have surely no element in common: different ones of the same disjoint partition."""
    for (by, place), (also, there) in zip(one.path, other.path, strict=False):
        if by != also or not by.disjoint:
            return False
        if any(differ(left, right) for left, right in zip(place, there, strict=True)):
            return True
        if place != there:
            return False
    return False


def differ(left: Expr, right: Expr) -> bool:
    """Whether two indices are surely not the same; `k'` is the `k` of another turn."""
    if constant(left - right) not in (None, 0):
        return True
    turns = ((one, two) for one in left.variables() for two in right.variables() if one != two and _base(one) == _base(two))
    return any(
        left.substitute({one: two}) == right and (constant(left - one) is not None or constant(left + one) is not None)
        for one, two in turns
    )


def _base(variable: Var) -> str:
    return variable.name.rstrip("'")


def _covers(outer: Ref, inner: Ref) -> bool:
    """Whether what is apart from a piece is apart from another, too."""
    if outer.tensor != inner.tensor or len(outer.path) > len(inner.path):
        return False
    return all(
        by == also and all(one in (ANY, two) for one, two in zip(place, there, strict=True))
        for (by, place), (also, there) in zip(outer.path, inner.path, strict=False)
    )


def _widened(ref: Ref, variables: tuple[Var, ...]) -> Ref:
    """All pieces that it is in some turn: with any index where it moves, or the whole that they are pieces of."""
    path: list[tuple[Partition, tuple[Expr, ...]]] = []
    for by, place in ref.path:
        wider = tuple(ANY if set(variables) & one.variables() else one for one in place)
        if wider != place and all(one == ANY for one in wider):
            break
        path.append((by, wider))
    return attrs.evolve(ref, path=tuple(path))
