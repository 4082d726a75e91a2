"""The event IR of a program of tasks: copies, calls and loops, with the events that they wait for (Cypress, section 4.1, Figure 7).

A copy or a call is done at some time, which is an event: of one element, type `()`, or an array of them, each dimension of which belongs to
a kind of processor. What must be done before is the statement's precondition. Nothing else orders statements: any order in which each one
follows what it waits for gives the same results. Events are no part of a kernel; its barriers follow from its statements, not from these.

A statement with dimensions is one for each of their processors. Its indices are variables named after the processors: `warp`, `thread`;
the second dimension of one processor has `warp1`. A tensor with dimensions is one for each of them, and the statement's own is meant.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Literal, TypeAlias

import attrs

from fireiron.errors import ArgumentError, closest
from fireiron.tasks.mapping import Place, Processor
from fireiron.tasks.partition import Partition
from fireiron.tasks.program import Launch
from fireiron.values.expr import Expr, Var, constant
from fireiron.values.machine import Block as BlockLevel
from fireiron.values.machine import DType, Kernel


class Every(enum.Enum):
    """The broadcast index `[:]`: all events along a dimension."""

    EVERY = ":"

    def __str__(self) -> str:
        return self.value


EVERY: Final = Every.EVERY
Index: TypeAlias = "Expr | Literal[Every.EVERY]"


@attrs.frozen
class Dim:
    """A dimension of events: so many processors of a kind."""

    size: Expr
    processor: Processor

    def __str__(self) -> str:
        return f"({self.size}, {self.processor})"


Type: TypeAlias = "tuple[Dim, ...]"
"""The type of an event: `()` is one, else an array."""


def type_text(dims: Type) -> str:
    """`()`, or `[(4, WARP), (32, THREAD)]`."""
    return f"[{', '.join(map(str, dims))}]" if dims else "()"


def processor_variables(dims: Type) -> tuple[Var, ...]:
    """The variables that stand for the indices of dimensions: the processor's name, and a number from its second dimension on."""
    found: list[Var] = []
    for place, dim in enumerate(dims):
        before = sum(one.processor == dim.processor for one in dims[:place])
        found.append(Var(f"{dim.processor.name.lower()}{before or ''}", 0, max(dim.size.high - 1, 0)))
    return tuple(found)


@attrs.frozen
class Event:
    """An event that is waited for, by its name, with an index for each dimension of its type."""

    name: str
    index: tuple[Index, ...] = ()

    def __str__(self) -> str:
        return f"{self.name}[{', '.join(map(str, self.index))}]" if self.index else self.name

    def at(self, values: Mapping[Var, Expr | int]) -> Event:
        """The event with other values for variables."""
        return attrs.evolve(self, index=tuple(one if isinstance(one, Every) else one.substitute(values) for one in self.index))


Events: TypeAlias = "tuple[Event, ...]"
"""All of these events."""


@attrs.frozen
class Ref:
    """A tensor, or a piece of it: by which partitions, and at which indices."""

    tensor: str
    path: tuple[tuple[Partition, tuple[Expr, ...]], ...] = ()

    def at(self, values: Mapping[Var, Expr | int]) -> Ref:
        """The piece with other values for variables."""
        return attrs.evolve(self, path=tuple((by, tuple(one.substitute(values) for one in place)) for by, place in self.path))

    def piece(self, by: Partition, *place: Expr) -> Ref:
        """A piece of this piece."""
        return attrs.evolve(self, path=(*self.path, (by, place)))

    def within(self, outer: Ref) -> Ref:
        """The piece, where its tensor is a piece of another."""
        return attrs.evolve(outer, path=(*outer.path, *self.path))

    def variables(self) -> frozenset[Var]:
        """The variables of its indices."""
        return frozenset[Var]().union(*(one.variables() for _, place in self.path for one in place))


# ---------------------------------------------------------------------------------------------- statements


@attrs.frozen
class Alloc:
    """A new tensor, one for each processor of `over`.

    In shared memory it has its place from byte `at` on, if that is known: each processor's behind that of the one before, and all of them
    `copies` times, of which the turns of the loop around take one after the other.
    """

    name: str
    shape: tuple[Expr, ...]
    dtype: DType
    place: Place
    over: Type = ()
    at: int | None = None
    copies: int = 1


@attrs.frozen
class Copy:
    """Copies `source` to `target`, both of one shape, when `after` is done; of the `launch` of a program that is read, if it is."""

    event: str
    source: Ref
    target: Ref
    after: Events = ()
    over: Type = ()
    launch: Launch | None = attrs.field(default=None, eq=False, repr=False, kw_only=True)


@attrs.frozen
class Call:
    """Runs a leaf task on tensors, when `after` is done; what it reads and writes the program says (`LeafTask`); `launch` as of a copy."""

    event: str
    task: str
    arguments: tuple[Ref, ...]
    after: Events = ()
    over: Type = ()
    launch: Launch | None = attrs.field(default=None, eq=False, repr=False, kw_only=True)


@attrs.frozen
class Block:
    """Statements, and the events that they yield to the statement around: of each all that must be done."""

    statements: tuple[Statement, ...]
    yields: tuple[Events, ...] = ()


@attrs.frozen
class Result:
    """An event that a loop or a branch is: its name, and the dimensions of what the block yields for it."""

    name: str
    over: Type = ()


@attrs.frozen
class Carry:
    """A precondition of a loop, by its name inside: what is done before, and in all turns before (`yields` of this number).

    With a `distance` of 3 a turn waits for those that lie three or more before it.
    """

    name: str
    initial: Events
    over: Type = ()
    distance: int = 1


@attrs.frozen
class For:
    """The turns of a loop. Nothing orders them but the `carries`: by the name of the first, turns wait for the first yield of those before.

    A result is done when its carry's `initial` is, and what all turns yield. There are as many results as yields, and at most as many
    carries. `stages` are those of the mapping's pipeline: so many turns' tensors are there at a time.
    """

    results: tuple[Result, ...]
    variable: Var
    extent: Expr
    carries: tuple[Carry, ...]
    body: Block
    stages: int = 1


@attrs.frozen
class Pfor:
    """Turns on processors of a kind, in any order or at once; its results have their dimensions in front."""

    results: tuple[Result, ...]
    variables: tuple[Var, ...]
    extents: tuple[Expr, ...]
    processor: Processor
    body: Block

    @property
    def dims(self) -> Type:
        """The dimensions of the loop."""
        return tuple(Dim(size, self.processor) for size in self.extents)


@attrs.frozen
class Branch:
    """One of two blocks, both of which yield."""

    results: tuple[Result, ...]
    condition: Expr
    then: Block
    otherwise: Block


Leaf: TypeAlias = "Copy | Call"
Compound: TypeAlias = "For | Pfor | Branch"
Statement: TypeAlias = "Alloc | Copy | Call | For | Pfor | Branch"


@attrs.frozen
class LeafTask:
    """A task that is called, and what it does with each of its tensors: `(name, reads, writes)`."""

    name: str
    tensors: tuple[tuple[str, bool, bool], ...]


@attrs.frozen
class EventProgram:
    """A program in the event IR: the sizes known at run time, the tasks that it calls, its tensors, and its statements."""

    symbols: tuple[Var, ...]
    tasks: tuple[LeafTask, ...]
    arguments: tuple[Alloc, ...]
    body: Block

    def task(self, name: str) -> LeafTask:
        """A task by its name."""
        return next(one for one in self.tasks if one.name == name)


# ---------------------------------------------------------------------------------------------- walking


def blocks_of(statement: Statement) -> tuple[Block, ...]:
    """The blocks of a statement."""
    if isinstance(statement, (For, Pfor)):
        return (statement.body,)
    return (statement.then, statement.otherwise) if isinstance(statement, Branch) else ()


def with_blocks(statement: Statement, blocks: tuple[Block, ...]) -> Statement:
    """The statement with other blocks."""
    if isinstance(statement, (For, Pfor)):
        return attrs.evolve(statement, body=blocks[0])
    return attrs.evolve(statement, then=blocks[0], otherwise=blocks[1]) if isinstance(statement, Branch) else statement


def with_results(statement: Compound, results: tuple[Result, ...], blocks: tuple[Block, ...]) -> Compound:
    """The statement with other results and blocks."""
    if isinstance(statement, (For, Pfor)):
        return attrs.evolve(statement, results=results, body=blocks[0])
    return attrs.evolve(statement, results=results, then=blocks[0], otherwise=blocks[1])


def walk(block: Block) -> Iterator[Statement]:
    """All statements, those inside behind the statement around them."""
    for one in block.statements:
        yield one
        for inner in blocks_of(one):
            yield from walk(inner)


def defined(statement: Statement) -> dict[str, Type]:
    """The events that a statement makes for those behind it, with their types."""
    if isinstance(statement, (Copy, Call)):
        return {statement.event: statement.over}
    if isinstance(statement, Alloc):
        return {}
    outer = statement.dims if isinstance(statement, Pfor) else ()
    return {one.name: (*outer, *one.over) for one in statement.results}


def types_of(program: EventProgram) -> dict[str, Type]:
    """The types of all events, also of those that loops carry."""
    found: dict[str, Type] = {}
    for one in walk(program.body):
        found |= defined(one)
        if isinstance(one, For):
            found |= {carry.name: carry.over for carry in one.carries}
    return found


def tensors_of(program: EventProgram) -> dict[str, Alloc]:
    """All tensors by name."""
    return {one.name: one for one in (*program.arguments, *walk(program.body)) if isinstance(one, Alloc)}


def refs_of(program: EventProgram, leaf: Leaf) -> tuple[tuple[Ref, bool, bool], ...]:
    """What a copy or a call works on: `(piece, reads, writes)`."""
    if isinstance(leaf, Copy):
        return (leaf.source, True, False), (leaf.target, False, True)
    privileges = program.task(leaf.task).tensors
    return tuple((ref, reads, writes) for ref, (_, reads, writes) in zip(leaf.arguments, privileges, strict=True))


def with_refs(leaf: Leaf, change: Callable[[Ref], Ref]) -> Leaf:
    """The statement on other pieces."""
    if isinstance(leaf, Copy):
        return attrs.evolve(leaf, source=change(leaf.source), target=change(leaf.target))
    return attrs.evolve(leaf, arguments=tuple(map(change, leaf.arguments)))


def with_events(block: Block, change: Callable[[Events], Events]) -> Block:
    """The block, where `change` was made to all that is waited for, yielded, or carried in, inside too."""

    def changed(one: Statement) -> Statement:
        if isinstance(one, (Copy, Call)):
            return attrs.evolve(one, after=change(one.after))
        if isinstance(one, For):
            one = attrs.evolve(one, carries=tuple(attrs.evolve(each, initial=change(each.initial)) for each in one.carries))
        return with_blocks(one, tuple(with_events(inner, change) for inner in blocks_of(one)))

    return Block(tuple(map(changed, block.statements)), tuple(map(change, block.yields)))


def shape_of(tensors: Mapping[str, Alloc], ref: Ref) -> tuple[Any, ...]:
    """The shape of a piece, integers where they are known."""
    shape: tuple[Any, ...] = tuple(one if constant(one) is None else constant(one) for one in tensors[ref.tensor].shape)
    for by, _ in ref.path:
        shape = by.shape(shape)
    return shape


# ---------------------------------------------------------------------------------------------- memory


def outside(loop: Pfor) -> bool:
    """Whether a parallel loop is one over blocks, or over what is around them: its turns share no memory."""
    return loop.processor.level in (Kernel, BlockLevel)


def bytes_of(one: Alloc) -> int:
    """The most bytes of a tensor, of one processor and turn."""
    return math.prod(size.high for size in one.shape) * one.dtype.bytes


def parts_of(block: Block, parts: int = 1) -> dict[str, int]:
    """How many turns of parallel loops inside a block each tensor belongs to, by its name: each has one of its own."""
    found: dict[str, int] = {}
    for one in block.statements:
        if isinstance(one, Alloc):
            found[one.name] = parts
        mine = parts
        if isinstance(one, Pfor):
            mine = 1 if outside(one) else parts * math.prod(size.high for size in one.extents)
        for inner in blocks_of(one):
            found |= parts_of(inner, mine)
    return found


# ---------------------------------------------------------------------------------------------- what is legal


@attrs.define
class Scope:
    """What may be named at a place of a program. Names of events and tensors are never used twice, those of variables not within."""

    events: dict[str, Type] = attrs.field(factory=dict)
    tensors: dict[str, Alloc] = attrs.field(factory=dict)
    variables: frozenset[Var] = frozenset()
    tasks: dict[str, LeafTask] = attrs.field(factory=dict)
    taken: set[str] = attrs.field(factory=set)

    def inside(self, *variables: Var) -> Scope:
        """The scope of a block in which there are more variables."""
        names = [one.name for one in (*self.variables, *variables)]
        for one in variables:
            if names.count(one.name) > 1:
                raise ArgumentError(f"{one}: a variable of that name is there already", legal="another name")
        return Scope(dict(self.events), dict(self.tensors), self.variables | set(variables), self.tasks, self.taken)

    def take(self, name: str) -> None:
        """Refuse a name that something has."""
        if name in self.taken:
            raise ArgumentError(f"{name}: the name is taken, and each stands for one thing", legal="another name")
        self.taken.add(name)

    def define(self, name: str, dims: Type) -> None:
        """An event from here on."""
        self.take(name)
        self.events[name] = dims

    def alloc(self, one: Alloc) -> None:
        """A tensor from here on."""
        self.take(one.name)
        self.tensors[one.name] = one

    def require(self, used: Events, over: Type) -> None:
        """Refuse events that are not there, or whose indices are not those of their type."""
        for one in used:
            if one.name not in self.events:
                meant = closest(one.name, self.events)
                raise ArgumentError(
                    f"{one}: no such event is made before", legal=tuple(self.events) or "none", hint=f"{meant}?" if meant else None
                )
            dims = self.events[one.name]
            if len(one.index) != len(dims):
                raise ArgumentError(f"{one}: an index for each dimension of {type_text(dims)}", got=len(one.index), legal=str(len(dims)))
            self._known(frozenset[Var]().union(*(each.variables() for each in one.index if not isinstance(each, Every))), over, str(one))

    def leaf(self, one: Leaf) -> None:
        """Refuse a copy or a call of what is not there."""
        self.require(one.after, one.over)
        refs = (one.source, one.target) if isinstance(one, Copy) else one.arguments
        for ref in refs:
            if ref.tensor not in self.tensors:
                raise ArgumentError(f"{ref.tensor}: no such tensor is made before", legal=tuple(self.tensors) or "none")
            self._known(ref.variables(), one.over, ref.tensor)
        if isinstance(one, Call):
            if one.task not in self.tasks:
                raise ArgumentError(f"call({one.task}): no such task", legal=tuple(self.tasks) or "none")
            wanted = self.tasks[one.task].tensors
            if len(wanted) != len(one.arguments):
                raise ArgumentError(f"call({one.task}): {len(one.arguments)} tensors", legal=tuple(name for name, _, _ in wanted))
        elif (to := shape_of(self.tensors, one.target)) != (of := shape_of(self.tensors, one.source)):
            sizes = (" x ".join(map(str, shape)) for shape in (of, to))
            raise ArgumentError(f"{one.event}: a copy of {' elements to '.join(sizes)}", legal="one shape")
        self.define(one.event, one.over)

    def block(self, block: Block) -> None:
        """Refuse what is not legal in a block, but for what it yields."""
        for one in block.statements:
            self.statement(one)

    def statement(self, one: Statement) -> None:
        """Refuse a statement that is not legal here; what it makes is there from here on."""
        if isinstance(one, Alloc):
            return self.alloc(one)
        if isinstance(one, (Copy, Call)):
            return self.leaf(one)
        for block, scope in zip(blocks_of(one), self.opened(one), strict=True):
            scope.block(block)
            scope.yields(one, block)
        self.closed(one)
        return None

    def opened(self, one: Compound) -> tuple[Scope, ...]:
        """The scopes of the blocks of a statement."""
        if isinstance(one, Branch):
            return self.inside(), self.inside()
        if isinstance(one, Pfor):
            return (self.inside(*one.variables),)
        if len(one.carries) > len(one.results):
            raise ArgumentError(f"{len(one.carries)} preconditions of a loop, and {len(one.results)} events", legal="an event for each")
        inner = self.inside(one.variable)
        for carry, result in zip(one.carries, one.results, strict=False):
            self.require(carry.initial, carry.over)
            if carry.over != result.over:
                raise ArgumentError(f"{carry.name}: {type_text(carry.over)}, and the loop is {type_text(result.over)}", legal="one type")
            inner.define(carry.name, carry.over)
        return (inner,)

    def yields(self, one: Compound, block: Block) -> None:
        """Refuse a block that does not yield what its statement is."""
        if len(block.yields) != len(one.results):
            raise ArgumentError(f"a block yields {len(block.yields)} events", legal=f"{len(one.results)}, as its loop has")
        for used, result in zip(block.yields, one.results, strict=True):
            self.require(used, result.over)

    def closed(self, one: Compound) -> None:
        """The events of a statement are there from here on."""
        for name, dims in defined(one).items():
            self.define(name, dims)

    def _known(self, used: frozenset[Var], over: Type, what: str) -> None:
        known = self.variables | set(processor_variables(over))
        for one in sorted(used - known, key=str):
            raise ArgumentError(f"{what}: {one} is no variable here", legal=sorted(map(str, known)) or "none")


def scope_of(program: EventProgram) -> Scope:
    """What may be named by the first statement."""
    scope = Scope(variables=frozenset(program.symbols), tasks={one.name: one for one in program.tasks})
    for one in program.arguments:
        scope.alloc(one)
    return scope


def verify(program: EventProgram) -> None:
    """Refuse a program that is not legal: names that are used twice or not made before, indices that are not those of types, calls with
    other tensors, copies between shapes. Raises: ArgumentError."""
    scope = scope_of(program)
    scope.block(program.body)
    for used in program.body.yields:
        scope.require(used, ())
