"""Dependence analysis: translate a program and a mapping to event IR (Cypress, section 4.2.1).

The instances are read in program order. Each tensor that a launched variant accesses becomes a new tensor. It is copied in if the instance
reads it, and copied out if the instance writes it. Readers wait for writers, and writers for all accesses. Accesses to provably disjoint
pieces of a partition do not wait for each other, and neither do reads. Statements of a loop wait for conflicting accesses of previous
iterations. Later passes eliminate unnecessary copies.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import attrs

from fireiron.errors import DecompositionError, call_site
from fireiron.frozen import frozen
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
"""An arbitrary index: it stands for the indices of all iterations of a loop."""


def analyzed(program: Tasks, mapping: Mapping, *tensors: tuple[tuple[Any, ...], Any]) -> EventProgram:
    """Return the event IR of a program under a mapping.

    Args: tensors: the shape and the element type of each tensor of the entry point, in order.

    Raises: DecompositionError and ArgumentError, as the compiler does, for illegal programs or mappings.
    """
    program.check(mapping)
    reader = Analyst(program, mapping)
    variant = program[mapping.root.variant]
    given = [(name, tuple(map(as_expr, shape)), as_dtype(dtype)) for name, (shape, dtype) in zip(variant.tensors, tensors, strict=True)]
    return reader.analyzed(given)


def analyzed_for(program: Tasks, mapping: Mapping, spec: Spec) -> EventProgram:
    """Return the event IR of a program that performs a spec. Operands and tensors of the entry point are matched by name."""
    variant = program[mapping.root.variant]
    unknown = [name for name in variant.tensors if name not in spec.operands]
    if unknown:
        raise DecompositionError(f"{variant.name}: {spec.title} has no operand {unknown[0]}", legal=tuple(spec.operands), at=variant.origin)
    return analyzed(program, mapping, *((spec.operands[name].shape, spec.operands[name].dtype) for name in variant.tensors))


@frozen
class Access:
    """An access to a tensor: the piece, whether it is a write, its events, and the numbers of the accesses that precede it.

    `at` is the line of the launch.
    """

    number: int
    ref: Ref
    write: bool
    events: Events
    awaited: frozenset[int]
    at: str | None = None


@attrs.define(eq=False)
class LoopState:
    """A loop that is being read: its variables, the processor of its launches, and the accesses of its statements.

    `before` has the accesses to each tensor before the loop.
    """

    variables: tuple[Var, ...]
    extents: tuple[Expr, ...]
    processor: Processor
    parallel: bool
    depth: int
    before: dict[str, list[Access]]
    accesses: list[tuple[str, Access]] = attrs.field(factory=list)


@attrs.define(eq=False)
class Analyst(Runner):
    """Translates a program to statements; `done` has the accesses to each tensor that later statements may have to wait for."""

    loops: list[LoopState] = attrs.field(factory=list, init=False)
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
        self.done = {argument.name: [] for argument in arguments}
        sizes = frozenset[Var]().union(*(size.variables() for argument in arguments for size in argument.shape))
        self.symbols = {size.name for size in sizes}
        self.start(
            tuple(TaskTensor(Ref(argument.name), tuple(plain(size) for size in argument.shape), argument.dtype) for argument in arguments)
        )
        written = [argument for argument, name in zip(arguments, variant.tensors, strict=True) if name in variant.writes]
        last = tuple(
            dict.fromkeys(event for argument in written for each in self.done[argument.name] if each.write for event in each.events)
        )
        body = Block(tuple(self.out[0]), (last,))
        return renumbered(reduced(EventProgram(tuple(sorted(sizes, key=str)), tuple(self.tasks.values()), arguments, body)))

    # ------------------------------------------------------------------------------------------ operations of variants

    def piece(self, tensor: TaskTensor, by: Partition, place: tuple[Expr, ...], shape: tuple[Any, ...]) -> Ref:
        ref: Ref = tensor.data
        return ref.piece(by, *place)

    def apart(self, tensor: TaskTensor, other: TaskTensor) -> bool:
        """Arguments of one launch are not compared here; the compiler checks them."""
        return True

    def tensor(self, shape: tuple[Any, ...], dtype: DType) -> Ref:
        return self._alloc("t", tuple(map(as_expr, shape)), dtype, NONE)

    def coordinates(self, tensor: TaskTensor, dim: int) -> Ref:
        return self.tensor((tensor.extents[dim],), int32)

    def extent(self, tensor: TaskTensor, dim: int) -> Ref:
        return self.tensor((), int32)

    def external(self, function: Any, tensors: tuple[TaskTensor, ...], options: dict[str, Any]) -> None:
        """Ignore the body of a Leaf: its privileges determine its accesses."""

    def enter(self, instance: TaskMapping, variant: Variant, tensors: tuple[TaskTensor, ...]) -> None:
        if not self.frames:
            return self._run(instance, variant, tensors)
        self._record_processor(instance)
        inner = []
        for name, place, tensor in zip(variant.tensors, instance.mems, tensors, strict=True):
            if name not in variant.reads | variant.writes:
                inner.append(tensor)
                continue
            fresh = self._alloc(name, tuple(map(as_expr, tensor.extents)), tensor.dtype, place)
            if name in variant.reads:
                self._copy(tensor.data, fresh, self.launch_of(f"in {name}"))
            inner.append(attrs.evolve(tensor, data=fresh))
        self._run(instance, variant, tuple(inner))
        for name, tensor, passed in zip(variant.tensors, tensors, inner, strict=True):
            if name in variant.writes:
                self._copy(passed.data, tensor.data, self.launch_of(f"out {name}"))
        return None

    def _copy(self, source: Ref, target: Ref, launch: Launch) -> None:
        self._leaf(lambda event, after: Copy(event, source, target, after, launch=launch), ((source, False), (target, True)))

    def _run(self, instance: TaskMapping, variant: Variant, tensors: tuple[TaskTensor, ...]) -> None:
        """Run an instance on its tensors; a leaf becomes a call."""
        self.call(instance, variant, tensors)
        if variant.form is not Form.Leaf:
            return
        privileges = tuple((name, name in variant.reads, name in variant.writes) for name in variant.tensors)
        self.tasks.setdefault(instance.instance, LeafTask(instance.instance, privileges))
        arguments = tuple(tensor.data for tensor in tensors)
        accesses = [(ref, writes) for ref, (_, reads, writes) in zip(arguments, privileges, strict=True) if reads or writes]
        launch = self.launch_of(CALL)
        self._leaf(lambda event, after: Call(event, instance.instance, arguments, after, launch=launch), tuple(accesses))

    def _record_processor(self, instance: TaskMapping) -> None:
        """Record the processor on which the launches of a loop run."""
        inner = self.loops[-1] if self.loops and self.loops[-1].depth == len(self.frames) else None
        if inner is None or not inner.parallel:
            return
        if inner.accesses and inner.processor != instance.proc:
            raise DecompositionError("launches of one prange run on different processors", got=str(instance.proc), at=call_site())
        inner.processor = instance.proc

    # ------------------------------------------------------------------------------------------ statements

    def _name(self, wanted: str) -> str:
        """A tensor name that is not used yet."""
        numbers = itertools.count(self.names.get(wanted, 0))
        free = next(number for number in numbers if f"{wanted}{number or ''}" not in self.done)
        self.names[wanted] = free + 1
        return f"{wanted}{free or ''}"

    def _alloc(self, name: str, shape: tuple[Expr, ...], dtype: DType, place: Place) -> Ref:
        alloc = Alloc(self._name(name), shape, dtype, place)
        if self.here.variant.form is not Form.Leaf:
            self.out[-1].append(alloc)
        self.done[alloc.name] = []
        return Ref(alloc.name)

    def _leaf(self, make: Callable[[str, Events], Leaf], refs: tuple[tuple[Ref, bool], ...]) -> None:
        """Emit a statement that accesses pieces, after all accesses with which it conflicts."""
        waits = {access.number: access for ref, write in refs for access in self.done[ref.tensor] if _conflict(access, ref, write)}
        event = f"#{self.numbers}"
        self.out[-1].append(make(event, _events(waits.values())))
        awaited = frozenset(waits).union(*(access.awaited for access in waits.values()))
        for ref, write in refs:
            access = self._access(ref, write, (Event(event),), awaited)
            kept = [access for access in self.done[ref.tensor] if not (write and access.number in waits and _covers(ref, access.ref))]
            self.done[ref.tensor] = [*kept, access]
            for loop in self.loops:
                if ref.tensor in loop.before:
                    loop.accesses.append((event, access))

    def _access(self, ref: Ref, write: bool, events: Events, awaited: frozenset[int]) -> Access:
        self.numbers += 1
        return Access(self.numbers, ref, write, events, awaited, call_site())

    # ------------------------------------------------------------------------------------------ loops

    def loop(self, extents: tuple[Any, ...], parallel: bool) -> Iterator[Any]:
        sizes, here = tuple(map(as_expr, extents)), self.here
        variables = self._variables(sizes, parallel)
        inside = here.variant.form is Form.Leaf
        loop = LoopState(
            variables, sizes, here.mapping.proc, parallel, len(self.frames), {name: list(accesses) for name, accesses in self.done.items()}
        )
        if not inside:
            self.out.append([])
            self.loops.append(loop)
        indices = tuple(map(scalar, variables))
        yield indices if len(indices) > 1 else indices[0]
        if inside:
            return
        self.loops.pop()
        body = Block(tuple(self.out.pop()))
        if parallel:
            return self._parallel(loop, body)
        for variable, size in zip(reversed(variables), reversed(sizes), strict=True):
            body = Block((self._sequential(loop, variable, size, body),))
        self.out[-1] += body.statements
        return None

    def _variables(self, sizes: tuple[Expr, ...], parallel: bool) -> tuple[Var, ...]:
        """Variables for a loop, with names that no enclosing loop and no size has."""
        used_names = {var.name for loop in self.loops for var in loop.variables} | self.symbols
        groups = ["ijlmno"[: len(sizes)]] if len(sizes) > 1 else ["i", "j", "l"] if parallel else ["k"]
        named = ([f"{letter}{number or ''}" for letter in group] for number in itertools.count() for group in groups)
        free = next(names for names in named if not used_names & set(names))
        return tuple(Var(name, 0, max(size.high - 1, 0)) for name, size in zip(free, sizes, strict=True))

    def _parallel(self, loop: LoopState, body: Block) -> None:
        """Parallel launches: later statements wait for all of them."""
        _require_apart(loop)
        accesses = self._new_accesses(loop)
        results = tuple(Result(self._event()) for _ in accesses) or (Result(self._event()),)
        yields = tuple(access.events for access in accesses) or ((),)
        self.out[-1].append(Pfor(results, loop.variables, loop.extents, loop.processor, attrs.evolve(body, yields=yields)))
        every, runs = (EVERY,) * len(loop.variables), all(size.low >= 1 for size in loop.extents)
        outer = [
            self._access(_widened(access.ref, loop.variables), access.write, (Event(result.name, every),), access.awaited)
            for access, result in zip(accesses, results, strict=False)
        ]
        self._leave(loop, outer, lambda old, new: runs and _covers(new.ref, old.ref))

    def _sequential(self, loop: LoopState, variable: Var, size: Expr, body: Block) -> For:
        """Sequential launches: each iteration waits for conflicting accesses of previous iterations."""
        accesses = self._new_accesses(loop)
        conflicts = {access.number: _conflicting(loop, access, variable) for access in accesses}
        own = {access.number: self._initial(loop, access, variable) for access in accesses}
        accesses.sort(key=lambda access: not (conflicts[access.number] or own[access.number]))
        results = tuple(Result(self._event()) for _ in accesses)
        carries = []
        for access in accesses:
            if conflicts[access.number] or own[access.number]:
                name = self._event()
                self.carried[name] = attrs.evolve(access, ref=_of_other_iteration(access.ref, variable))
                carries.append(Carry(name, _events(own[access.number])))
                body = _with_wait(body, conflicts[access.number], Event(name))
                body = self._propagated(body, name)
        outer = [
            self._access(_widened(access.ref, (variable,)), access.write, (Event(result.name),), access.awaited)
            for access, result in zip(accesses, results, strict=True)
        ]
        self._leave(loop, outer, lambda old, new: _covers(new.ref, old.ref) and any(old in superseded for superseded in own.values()))
        body = attrs.evolve(body, yields=tuple(access.events for access in accesses))
        return For(results, variable, size, tuple(carries), body, max(self.here.mapping.pipeline, 1))

    def _new_accesses(self, loop: LoopState) -> list[Access]:
        """The accesses of a loop's iterations to tensors around it that later statements may have to wait for."""
        return [access for name, old in loop.before.items() for access in self.done[name] if access not in old]

    def _initial(self, loop: LoopState, access: Access, variable: Var) -> list[Access]:
        """The accesses before a loop that an access of its iterations supersedes, including in the first iteration."""
        if not access.write or variable in access.ref.variables():
            return []
        return [old for old in loop.before[access.ref.tensor] if old.number in access.awaited and _covers(access.ref, old.ref)]

    def _leave(self, loop: LoopState, outer: list[Access], supersedes: Callable[[Access, Access], bool]) -> None:
        """Update `done` after a loop: remove the accesses that accesses of the loop supersede, and add the latter.

        `supersedes(old, new)` is whether waiting for the new access suffices.
        """
        for name, old in loop.before.items():
            own = [access for access in outer if access.ref.tensor == name]
            replaced = [
                access for access in old if any(new.write and access.number in new.awaited and supersedes(access, new) for new in own)
            ]
            self.done[name] = [*(access for access in old if access not in replaced), *own]

    def _propagated(self, body: Block, name: str) -> Block:
        """Add a carried event to the initial events of inner loops that wait for conflicting accesses to the same tensor."""
        carried = self.carried[name]

        def with_initial(stmt: Statement) -> Statement:
            if isinstance(stmt, For):
                conflicts = [_conflict(carried, self.carried[each.name].ref, self.carried[each.name].write) for each in stmt.carries]
                pairs = zip(stmt.carries, conflicts, strict=True)
                stmt = attrs.evolve(
                    stmt,
                    carries=tuple(
                        attrs.evolve(each, initial=(*each.initial, Event(name))) if is_conflict else each for each, is_conflict in pairs
                    ),
                )
            return with_blocks(
                stmt, tuple(attrs.evolve(each, statements=tuple(map(with_initial, each.statements))) for each in blocks_of(stmt))
            )

        return attrs.evolve(body, statements=tuple(map(with_initial, body.statements)))

    def _event(self) -> str:
        self.numbers += 1
        return f"#{self.numbers}"


def _events(accesses: Iterable[Access]) -> Events:
    """The events of accesses, without repetitions."""
    return tuple(dict.fromkeys(event for access in accesses for event in access.events))


def _with_wait(body: Block, waiting: frozenset[str], event: Event) -> Block:
    """Return the block in which the statements with the events `waiting` wait for an additional event."""

    def waits(stmt: Statement) -> Statement:
        if isinstance(stmt, (Copy, Call)):
            return attrs.evolve(stmt, after=(*stmt.after, event)) if stmt.event in waiting else stmt
        return with_blocks(stmt, tuple(_with_wait(inner, waiting, event) for inner in blocks_of(stmt)))

    return attrs.evolve(body, statements=tuple(map(waits, body.statements)))


def _require_apart(loop: LoopState) -> None:
    """Refuse a prange in which one launch may write elements that another accesses."""
    variables = [var for var, size in zip(loop.variables, loop.extents, strict=True) if constant(size) != 1]
    for (_, first), (_, second) in itertools.combinations_with_replacement(loop.accesses, 2):
        for variable in variables:
            if _conflict(attrs.evolve(first, ref=_of_other_iteration(first.ref, variable)), second.ref, second.write):
                raise DecompositionError(
                    f"two launches of a prange may access the same elements of {first.ref.tensor}, and one writes them",
                    got="pieces that are not proved disjoint for different indices", legal="pieces at the indices of the prange, or srange",
                    at=first.at or second.at,
                )  # fmt: skip


def _conflicting(loop: LoopState, access: Access, variable: Var) -> frozenset[str]:
    """The statements of an iteration that conflict with an access of another iteration."""
    foreign = attrs.evolve(access, ref=_of_other_iteration(access.ref, variable))
    return frozenset(event for event, each in loop.accesses if _conflict(foreign, each.ref, each.write))


def _of_other_iteration(ref: Ref, variable: Var) -> Ref:
    """The piece in another iteration."""
    return ref.at({variable: Var(f"{variable.name}'", variable.low, variable.high)})


def _conflict(access: Access, ref: Ref, write: bool) -> bool:
    """Whether two accesses conflict: they may overlap, and one writes."""
    return access.ref.tensor == ref.tensor and (write or access.write) and not apart(access.ref, ref)


def apart(first: Ref, second: Ref) -> bool:
    """Whether two pieces of a tensor are provably disjoint: different pieces of the same disjoint partition."""
    for (by, place), (other_by, other_place) in zip(first.path, second.path, strict=False):
        if by != other_by or not by.disjoint:
            return False
        if any(differ(left, right) for left, right in zip(place, other_place, strict=True)):
            return True
        if place != other_place:
            return False
    return False


def differ(left: Expr, right: Expr) -> bool:
    """Whether two indices provably differ; `k'` is the `k` of another iteration."""
    if constant(left - right) not in (None, 0):
        return True
    pairs = itertools.product(left.variables(), right.variables())
    renamed = ((var, other) for var, other in pairs if var != other and _base(var) == _base(other))
    return any(
        left.substitute({var: other}) == right and (constant(left - var) is not None or constant(left + var) is not None)
        for var, other in renamed
    )


def _base(variable: Var) -> str:
    return variable.name.rstrip("'")


def _covers(outer: Ref, inner: Ref) -> bool:
    """Whether `inner` is part of `outer`: a piece that is disjoint from `outer` is also disjoint from `inner`."""
    if outer.tensor != inner.tensor or len(outer.path) > len(inner.path):
        return False
    return all(
        by == other_by and all(index in (ANY, other) for index, other in zip(place, other_place, strict=True))
        for (by, place), (other_by, other_place) in zip(outer.path, inner.path, strict=False)
    )


def _widened(ref: Ref, variables: tuple[Var, ...]) -> Ref:
    """Return the union of a piece over iterations: its index is arbitrary where it depends on a variable of the loop.

    If all indices of a partition do, the result is the larger piece that this partition divides.
    """
    path: list[tuple[Partition, tuple[Expr, ...]]] = []
    for by, place in ref.path:
        wider = tuple(ANY if set(variables) & index.variables() else index for index in place)
        if wider != place and all(index == ANY for index in wider):
            break
        path.append((by, wider))
    return attrs.evolve(ref, path=tuple(path))
