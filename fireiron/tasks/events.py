"""The event IR of a program of tasks: copies, calls and loops, with the events that they wait for (Cypress, section 4.1, Figure 7).

The completion of a copy or a call is an event. An event is either single, with the type `()`, or an array with one dimension per kind of
processor. A statement's precondition is the set of events that it waits for. Only preconditions order statements: any order in which each
statement follows its precondition gives the same results. Events are not part of a kernel; the compiler infers barriers from its
statements.

A statement with dimensions is executed by each of their processors. Its indices are variables named after the processors: `warp`, `thread`;
the second dimension of a processor has `warp1`. A tensor with dimensions exists once per processor; a statement accesses the copy of its
processor.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Literal, TypeAlias

import attrs

from fireiron.errors import ArgumentError, closest
from fireiron.frozen import frozen
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


@frozen
class Dim:
    """A dimension of events: a number of processors of a kind."""

    size: Expr
    processor: Processor

    def __str__(self) -> str:
        return f"({self.size}, {self.processor})"


Type: TypeAlias = "tuple[Dim, ...]"
"""The type of an event: `()` for a single event, otherwise an array."""


def type_text(dims: Type) -> str:
    """`()`, or `[(4, WARP), (32, THREAD)]`."""
    return f"[{', '.join(map(str, dims))}]" if dims else "()"


def processor_variables(dims: Type) -> tuple[Var, ...]:
    """The variables of the indices of dimensions: the processor's name, with a number from its second dimension on."""
    variables: list[Var] = []
    for place, dim in enumerate(dims):
        before = sum(earlier.processor == dim.processor for earlier in dims[:place])
        variables.append(Var(f"{dim.processor.name.lower()}{before or ''}", 0, max(dim.size.high - 1, 0)))
    return tuple(variables)


@frozen
class Event:
    """An event that a statement waits for: its name, and an index for each dimension of its type."""

    name: str
    index: tuple[Index, ...] = ()

    def __str__(self) -> str:
        return f"{self.name}[{', '.join(map(str, self.index))}]" if self.index else self.name

    def at(self, values: Mapping[Var, Expr | int]) -> Event:
        """The event with values substituted for variables."""
        return attrs.evolve(self, index=tuple(index if isinstance(index, Every) else index.substitute(values) for index in self.index))


Events: TypeAlias = "tuple[Event, ...]"
"""A set of events. A statement that waits for it waits for all of them."""


@frozen
class Ref:
    """A tensor, or a piece of it: the partitions, and the index of each."""

    tensor: str
    path: tuple[tuple[Partition, tuple[Expr, ...]], ...] = ()

    def at(self, values: Mapping[Var, Expr | int]) -> Ref:
        """The piece with values substituted for variables."""
        return attrs.evolve(self, path=tuple((by, tuple(index.substitute(values) for index in place)) for by, place in self.path))

    def piece(self, by: Partition, *place: Expr) -> Ref:
        """A piece of this piece."""
        return attrs.evolve(self, path=(*self.path, (by, place)))

    def within(self, outer: Ref) -> Ref:
        """Return this piece as a piece of another tensor, of which `outer` is this piece's tensor."""
        return attrs.evolve(outer, path=(*outer.path, *self.path))

    def variables(self) -> frozenset[Var]:
        """The variables in its indices."""
        return frozenset[Var]().union(*(index.variables() for _, place in self.path for index in place))


# ---------------------------------------------------------------------------------------------- statements


@frozen
class Alloc:
    """A new tensor for each processor of `over`.

    In shared memory, `at` is its offset in bytes, if it is known. The tensors of the processors are adjacent. All of them exist `copies`
    times, as the stages of a circular buffer that the iterations of the enclosing loop use alternately.
    """

    name: str
    shape: tuple[Expr, ...]
    dtype: DType
    place: Place
    over: Type = ()
    at: int | None = None
    copies: int = 1


@frozen
class Copy:
    """Copies `source` to `target`, which has the same shape, after the events `after`. It implements `launch`, if known."""

    event: str
    source: Ref
    target: Ref
    after: Events = ()
    over: Type = ()
    launch: Launch | None = attrs.field(default=None, eq=False, repr=False, kw_only=True)


@frozen
class Call:
    """Runs a leaf task on tensors, after the events `after`. It implements `launch`, if known."""

    event: str
    task: str
    arguments: tuple[Ref, ...]
    after: Events = ()
    over: Type = ()
    launch: Launch | None = attrs.field(default=None, eq=False, repr=False, kw_only=True)


@frozen
class Block:
    """Statements, and the events that they yield to the enclosing statement: a set for each of its results."""

    statements: tuple[Statement, ...]
    yields: tuple[Events, ...] = ()


@frozen
class Result:
    """An event of a loop or a branch: its name, and the dimensions of what the block yields for it."""

    name: str
    over: Type = ()


@frozen
class Carry:
    """A loop-carried event with a name in the loop body: the `initial` events, and the yields of all previous iterations.

    With a `distance` of 3, an iteration waits only for iterations that are three or more before it.
    """

    name: str
    initial: Events
    over: Type = ()
    distance: int = 1


@frozen
class For:
    """A loop. Only `carries` order its iterations: carry number n is done when yield number n of previous iterations is.

    A result is done after the `initial` events of its carry and the yields of all iterations. There are as many results as yields, and at
    most as many carries. `stages` is the depth of the mapping's pipeline: the number of iterations whose tensors exist at the same time.
    """

    results: tuple[Result, ...]
    variable: Var
    extent: Expr
    carries: tuple[Carry, ...]
    body: Block
    stages: int = 1


@frozen
class Pfor:
    """A loop over processors of a kind, whose iterations run in any order or concurrently.

    The types of its events start with the dimensions of the loop.
    """

    results: tuple[Result, ...]
    variables: tuple[Var, ...]
    extents: tuple[Expr, ...]
    processor: Processor
    body: Block

    @property
    def dims(self) -> Type:
        """The dimensions of the loop."""
        return tuple(Dim(size, self.processor) for size in self.extents)


@frozen
class Branch:
    """A branch that runs one of two blocks. Both blocks yield events for all results."""

    results: tuple[Result, ...]
    condition: Expr
    then: Block
    otherwise: Block


Leaf: TypeAlias = "Copy | Call"
Compound: TypeAlias = "For | Pfor | Branch"
Statement: TypeAlias = "Alloc | Copy | Call | For | Pfor | Branch"


@frozen
class LeafTask:
    """A task that is called, and its privileges on each of its tensors: `(name, reads, writes)`."""

    name: str
    tensors: tuple[tuple[str, bool, bool], ...]


@frozen
class EventProgram:
    """A program in the event IR: run-time sizes, the tasks that it calls, its arguments, and its statements."""

    symbols: tuple[Var, ...]
    tasks: tuple[LeafTask, ...]
    arguments: tuple[Alloc, ...]
    body: Block

    def task(self, name: str) -> LeafTask:
        """A task by its name."""
        return next(task for task in self.tasks if task.name == name)


# ---------------------------------------------------------------------------------------------- traversal


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
    """All statements in preorder."""
    for stmt in block.statements:
        yield stmt
        for inner in blocks_of(stmt):
            yield from walk(inner)


def defined(statement: Statement) -> dict[str, Type]:
    """The events that a statement defines for later ones, with their types."""
    if isinstance(statement, (Copy, Call)):
        return {statement.event: statement.over}
    if isinstance(statement, Alloc):
        return {}
    outer = statement.dims if isinstance(statement, Pfor) else ()
    return {result.name: (*outer, *result.over) for result in statement.results}


def types_of(program: EventProgram) -> dict[str, Type]:
    """The types of all events, including carried ones."""
    types: dict[str, Type] = {}
    for stmt in walk(program.body):
        types |= defined(stmt)
        if isinstance(stmt, For):
            types |= {carry.name: carry.over for carry in stmt.carries}
    return types


def tensors_of(program: EventProgram) -> dict[str, Alloc]:
    """All tensors by name."""
    return {stmt.name: stmt for stmt in (*program.arguments, *walk(program.body)) if isinstance(stmt, Alloc)}


def refs_of(program: EventProgram, leaf: Leaf) -> tuple[tuple[Ref, bool, bool], ...]:
    """The accesses of a copy or a call: `(piece, reads, writes)`."""
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
    """The block with `change` applied to all preconditions, yields and initial events, also in inner blocks."""

    def changed(stmt: Statement) -> Statement:
        if isinstance(stmt, (Copy, Call)):
            return attrs.evolve(stmt, after=change(stmt.after))
        if isinstance(stmt, For):
            stmt = attrs.evolve(stmt, carries=tuple(attrs.evolve(carry, initial=change(carry.initial)) for carry in stmt.carries))
        return with_blocks(stmt, tuple(with_events(inner, change) for inner in blocks_of(stmt)))

    return Block(tuple(map(changed, block.statements)), tuple(map(change, block.yields)))


def shape_of(tensors: Mapping[str, Alloc], ref: Ref) -> tuple[Any, ...]:
    """The shape of a piece, with integers for known sizes."""
    shape: tuple[Any, ...] = tuple(size if constant(size) is None else constant(size) for size in tensors[ref.tensor].shape)
    for by, _ in ref.path:
        shape = by.shape(shape)
    return shape


# ---------------------------------------------------------------------------------------------- memory


def outside(loop: Pfor) -> bool:
    """Whether a parallel loop is over blocks, or over processors around them: its iterations do not share shared memory."""
    return loop.processor.level in (Kernel, BlockLevel)


def bytes_of(alloc: Alloc) -> int:
    """The maximum bytes of a tensor, for one processor and one iteration."""
    return math.prod(size.high for size in alloc.shape) * alloc.dtype.bytes


def parts_of(block: Block, parts: int = 1) -> dict[str, int]:
    """The number of iterations of parallel loops within a thread block that have their own copy of a tensor, by its name."""
    parts_by_name: dict[str, int] = {}
    for stmt in block.statements:
        if isinstance(stmt, Alloc):
            parts_by_name[stmt.name] = parts
        inner_parts = parts
        if isinstance(stmt, Pfor):
            inner_parts = 1 if outside(stmt) else parts * math.prod(size.high for size in stmt.extents)
        for inner in blocks_of(stmt):
            parts_by_name |= parts_of(inner, inner_parts)
    return parts_by_name


# ---------------------------------------------------------------------------------------------- legality


@attrs.define
class Scope:
    """The names in scope. Names of events and tensors are unique in a program, those of variables within nested loops."""

    events: dict[str, Type] = attrs.field(factory=dict)
    tensors: dict[str, Alloc] = attrs.field(factory=dict)
    variables: frozenset[Var] = frozenset()
    tasks: dict[str, LeafTask] = attrs.field(factory=dict)
    used_names: set[str] = attrs.field(factory=set)

    def inside(self, *variables: Var) -> Scope:
        """The scope of an inner block with additional variables."""
        names = [var.name for var in (*self.variables, *variables)]
        for var in variables:
            if names.count(var.name) > 1:
                raise ArgumentError(f"{var}: an enclosing loop or a size already has this name", legal="another name")
        return Scope(dict(self.events), dict(self.tensors), self.variables | set(variables), self.tasks, self.used_names)

    def take(self, name: str) -> None:
        """Refuse a name that is already used."""
        if name in self.used_names:
            raise ArgumentError(f"{name}: the name is already used", legal="another name")
        self.used_names.add(name)

    def define(self, name: str, dims: Type) -> None:
        """Define an event."""
        self.take(name)
        self.events[name] = dims

    def alloc(self, alloc: Alloc) -> None:
        """Define a tensor."""
        self.take(alloc.name)
        self.tensors[alloc.name] = alloc

    def require(self, used: Events, over: Type) -> None:
        """Refuse events that are not defined, or whose indices do not fit their type."""
        for event in used:
            if event.name not in self.events:
                nearest = closest(event.name, self.events)
                raise ArgumentError(
                    f"{event}: no event of this name is defined before",
                    legal=tuple(self.events) or "none",
                    hint=f"{nearest}?" if nearest else None,
                )
            dims = self.events[event.name]
            if len(event.index) != len(dims):
                raise ArgumentError(
                    f"{event} requires one index per dimension of {type_text(dims)}", got=len(event.index), legal=str(len(dims))
                )
            self._known(
                frozenset[Var]().union(*(index.variables() for index in event.index if not isinstance(index, Every))), over, str(event)
            )

    def leaf(self, leaf: Leaf) -> None:
        """Refuse a copy or a call of undefined tensors or tasks."""
        self.require(leaf.after, leaf.over)
        refs = (leaf.source, leaf.target) if isinstance(leaf, Copy) else leaf.arguments
        for ref in refs:
            if ref.tensor not in self.tensors:
                raise ArgumentError(f"{ref.tensor}: no tensor of this name is allocated before", legal=tuple(self.tensors) or "none")
            self._known(ref.variables(), leaf.over, ref.tensor)
        if isinstance(leaf, Call):
            if leaf.task not in self.tasks:
                raise ArgumentError(f"call({leaf.task}): no task of this name is declared", legal=tuple(self.tasks) or "none")
            wanted = self.tasks[leaf.task].tensors
            if len(wanted) != len(leaf.arguments):
                raise ArgumentError(
                    f"call({leaf.task}): {len(leaf.arguments)} tensors are given", legal=tuple(name for name, _, _ in wanted)
                )
        elif (to := shape_of(self.tensors, leaf.target)) != (of := shape_of(self.tensors, leaf.source)):
            sizes = (" x ".join(map(str, shape)) for shape in (of, to))
            raise ArgumentError(f"{leaf.event}: the copy is from {' to '.join(sizes)} elements", legal="equal shapes")
        self.define(leaf.event, leaf.over)

    def block(self, block: Block) -> None:
        """Refuse illegal statements of a block, without its yields."""
        for stmt in block.statements:
            self.statement(stmt)

    def statement(self, stmt: Statement) -> None:
        """Refuse an illegal statement, and define its events and tensors."""
        if isinstance(stmt, Alloc):
            return self.alloc(stmt)
        if isinstance(stmt, (Copy, Call)):
            return self.leaf(stmt)
        for block, scope in zip(blocks_of(stmt), self.opened(stmt), strict=True):
            scope.block(block)
            scope.yields(stmt, block)
        self.closed(stmt)
        return None

    def opened(self, stmt: Compound) -> tuple[Scope, ...]:
        """The scopes of the blocks of a statement."""
        if isinstance(stmt, Branch):
            return self.inside(), self.inside()
        if isinstance(stmt, Pfor):
            return (self.inside(*stmt.variables),)
        if len(stmt.carries) > len(stmt.results):
            raise ArgumentError(
                f"the loop has {len(stmt.carries)} carried events, but {len(stmt.results)} results", legal="a result for each"
            )
        inner = self.inside(stmt.variable)
        for carry, result in zip(stmt.carries, stmt.results, strict=False):
            self.require(carry.initial, carry.over)
            if carry.over != result.over:
                raise ArgumentError(
                    f"{carry.name} has the type {type_text(carry.over)}, but its result has {type_text(result.over)}", legal="equal types"
                )
            inner.define(carry.name, carry.over)
        return (inner,)

    def yields(self, stmt: Compound, block: Block) -> None:
        """Refuse a block whose yields do not fit the results of its statement."""
        if len(block.yields) != len(stmt.results):
            raise ArgumentError(f"a block yields {len(block.yields)} sets of events", legal=f"{len(stmt.results)}, one per result")
        for used, result in zip(block.yields, stmt.results, strict=True):
            self.require(used, result.over)

    def closed(self, stmt: Compound) -> None:
        """Define the results of a statement."""
        for name, dims in defined(stmt).items():
            self.define(name, dims)

    def _known(self, used: frozenset[Var], over: Type, what: str) -> None:
        known = self.variables | set(processor_variables(over))
        for var in sorted(used - known, key=str):
            raise ArgumentError(f"{what}: {var} is not a variable in this scope", legal=sorted(map(str, known)) or "none")


def scope_of(program: EventProgram) -> Scope:
    """The names in scope of the first statement."""
    scope = Scope(variables=frozenset(program.symbols), tasks={task.name: task for task in program.tasks})
    for argument in program.arguments:
        scope.alloc(argument)
    return scope


def verify(program: EventProgram) -> None:
    """Refuse an illegal program.

    Raises: ArgumentError if a name is defined twice or not defined, if indices do not fit a type, if a call has a wrong number of tensors,
    or if the operands of a copy have different shapes.
    """
    scope = scope_of(program)
    scope.block(program.body)
    for used in program.body.yields:
        scope.require(used, ())
