"""What each statement of event IR must wait for, by what statements do with tensors in the order of the text.

A rewrite of copies changes what is done, not who waits: its events are found again from its statements. Who reads waits for those that
wrote, who writes for all; point by point where a piece is a processor's own, else for all along a dimension. So a precondition is with the
statement that needs it, however far inside.
"""

from __future__ import annotations

import itertools

import attrs

from fireiron.tasks.dependences import differ
from fireiron.tasks.events import (
    EVERY,
    Alloc,
    Block,
    Branch,
    Call,
    Carry,
    Copy,
    Event,
    EventProgram,
    Events,
    For,
    Index,
    Leaf,
    Pfor,
    Ref,
    Result,
    Statement,
    Type,
    blocks_of,
    processor_variables,
    refs_of,
    tensors_of,
    with_blocks,
)
from fireiron.tasks.reduce import reduced, renumbered
from fireiron.values.expr import Expr, Var, as_expr


@attrs.frozen(eq=False)
class Use:
    """A piece that was read or written, and the event that says so: its dimensions, and the variables that they are in the piece."""

    ref: Ref
    write: bool
    event: str
    dims: Type
    variables: tuple[Var, ...]


def use_of(ref: Ref, over: Type, write: bool = True, event: str = "") -> Use:
    """A use by the processors of `over`."""
    return Use(ref, write, event, over, processor_variables(over))


def met(tensor: Alloc, one: Use, ref: Ref) -> tuple[Index, ...] | None:
    """By which processors a use was that may have elements in common with a piece; None where surely none of them has."""
    foreign = {var: Var(f"{var.name}@", var.low, var.high) for var in one.variables}
    own = {foreign[var]: var for var in processor_variables(tensor.over) if var in foreign}
    sizes = {foreign[var]: dim.size for var, dim in zip(one.variables, one.dims, strict=True)}
    known: dict[Var, Expr] = dict(own)
    for (by, place), (also, there) in zip(one.ref.at(foreign).path, ref.path, strict=False):
        if by != also or not by.disjoint:
            break
        for left, right in zip(place, there, strict=True):
            moved = left.substitute(known)
            if isinstance(moved, Var) and moved in sizes:
                if right.low >= 0 and right.high < sizes[moved].low:
                    known[moved] = right
            elif differ(moved, right):
                return None
    first: Index = as_expr(0)
    own_way = zip(one.variables, one.dims, strict=True)
    return tuple(first if dim.size.high == 1 else known.get(foreign[var], EVERY) for var, dim in own_way)


def awaited(program: EventProgram) -> EventProgram:
    """The program with the events that its statements need, in the order of its text; with branches it stays as it is."""
    if _has_branches(program.body):
        return program
    made = Awaiting(program, tensors_of(program))
    done: dict[str, list[Use]] = {one.name: [] for one in program.arguments}
    statements = made.block(program.body, done)
    last = tuple(
        dict.fromkeys(Event(use.event, (EVERY,) * len(use.dims)) for one in program.arguments for use in done[one.name] if use.write)
    )
    return renumbered(reduced(attrs.evolve(program, body=Block(statements, (last,)))))


def _has_branches(block: Block) -> bool:
    return any(isinstance(one, Branch) or any(map(_has_branches, blocks_of(one))) for one in block.statements)


@attrs.define(eq=False)
class Awaiting:
    """Goes through statements; `inside` are the uses within each loop that is open."""

    program: EventProgram
    tensors: dict[str, Alloc]
    inside: list[list[tuple[str, Ref, bool]]] = attrs.field(factory=list)
    numbers: itertools.count[int] = attrs.field(factory=itertools.count)

    def block(self, block: Block, done: dict[str, list[Use]]) -> tuple[Statement, ...]:
        """The statements of a block, with what they wait for; `done` is what was done with each tensor, and grows."""
        return tuple(self.statement(one, done) for one in block.statements)

    def statement(self, one: Statement, done: dict[str, list[Use]]) -> Statement:
        """A statement with what it waits for."""
        if isinstance(one, Alloc):
            done[one.name] = []
            return one
        if isinstance(one, (Copy, Call)):
            return self.leaf(one, done)
        if isinstance(one, For):
            return self.turns(one, done)
        assert isinstance(one, Pfor)
        return self.group(one, done)

    def leaf(self, one: Leaf, done: dict[str, list[Use]]) -> Leaf:
        """A copy or a call, behind all that it may not overtake."""
        refs = [(ref, writes) for ref, reads, writes in refs_of(self.program, one) if reads or writes]
        after: list[Event] = []
        event, killed = self._event(), set()
        for ref, writes in refs:
            for use in done[ref.tensor]:
                index = met(self.tensors[ref.tensor], use, ref) if writes or use.write else None
                if index is not None:
                    after.append(Event(use.event, index))
                    killed |= {use} if writes and _replaces(use_of(ref, one.over), use) else set()
        for ref, _ in refs:
            done[ref.tensor] = [use for use in done[ref.tensor] if use not in killed]
        for ref, writes in refs:
            done[ref.tensor].append(use_of(ref, one.over, writes, event))
            for uses in self.inside:
                uses.append((event, ref, writes))
        return attrs.evolve(one, event=event, after=tuple(dict.fromkeys(after)))

    def turns(self, one: For, done: dict[str, list[Use]]) -> For:
        """A loop; a turn's statements wait for those of turns before that they may not overtake."""
        inner = {name: list(uses) for name, uses in done.items()}
        self.inside.append([])
        statements = self.block(one.body, inner)
        uses, made = self.inside.pop(), _made(done, inner)
        other = {one.variable: Var(f"{one.variable.name}'", one.variable.low, one.variable.high)}
        waits: dict[str, list[Event]] = {}
        begun: list[tuple[Use, str]] = []
        rest: list[tuple[Use, str]] = []
        for use in made:
            name, foreign, found = self._event(), attrs.evolve(use, ref=use.ref.at(other)), False
            for event, ref, writes in uses if one.extent.high > 1 else ():
                index = met(self.tensors[ref.tensor], foreign, ref) if ref.tensor == use.ref.tensor and (writes or use.write) else None
                if index is not None:
                    waits.setdefault(event, []).append(Event(name, index))
                    found = True
            (begun if found else rest).append((use, name))
        carries = tuple(Carry(name, (), use.dims) for use, name in begun)
        results, yields = self._results([use for use, _ in (*begun, *rest)])
        for (use, _), result in zip((*begun, *rest), results, strict=True):
            wide = use.ref.at({one.variable: Var(f"{result.name}@", one.variable.low, one.variable.high)})
            done[use.ref.tensor].append(attrs.evolve(use, ref=wide, event=result.name))
        body = Block(tuple(_waiting(each, waits) for each in statements), yields)
        return attrs.evolve(one, results=results, carries=carries, body=body)

    def group(self, one: Pfor, done: dict[str, list[Use]]) -> Pfor:
        """A parallel loop, whose turns do not wait for each other."""
        inner = {name: list(uses) for name, uses in done.items()}
        statements = self.block(one.body, inner)
        made = _made(done, inner)
        results, yields = self._results(made)
        for use, result in zip(made, results, strict=True):
            behind = attrs.evolve(use, event=result.name, dims=(*one.dims, *use.dims), variables=(*one.variables, *use.variables))
            done[use.ref.tensor].append(behind)
        if not results:
            results, yields = (Result(self._event()),), ((),)
        return attrs.evolve(one, results=results, body=Block(statements, yields))

    def _results(self, made: list[Use]) -> tuple[tuple[Result, ...], tuple[Events, ...]]:
        """An event of a loop for each use that it leaves to be waited for, and what its block yields for them."""
        yields = tuple((Event(use.event, _own_index(use.dims)),) for use in made)
        return tuple(Result(self._event(), use.dims) for use in made), yields

    def _event(self) -> str:
        return f"#{next(self.numbers)}"


def _own_index(dims: Type) -> tuple[Index, ...]:
    """The index of one's own event."""
    pairs = zip(processor_variables(dims), dims, strict=True)
    return tuple(as_expr(0) if dim.size.high == 1 else variable for variable, dim in pairs)


def _made(done: dict[str, list[Use]], inner: dict[str, list[Use]]) -> list[Use]:
    """What a block did with tensors around it."""
    return [use for name, old in done.items() for use in inner[name] if use not in old]


def _replaces(new: Use, old: Use) -> bool:
    """Whether who waits for a use need not wait for an earlier one, for which that has waited: it has all of its elements."""
    named = new.ref.variables()
    same = {var for var in new.variables if var in named} == {var for var in old.variables if var in named}
    return same and old.ref.path[: len(new.ref.path)] == new.ref.path


def _waiting(one: Statement, waits: dict[str, list[Event]]) -> Statement:
    """A statement, in which some leaves wait for more."""
    if isinstance(one, Alloc):
        return one
    if isinstance(one, (Copy, Call)):
        return attrs.evolve(one, after=(*one.after, *waits.get(one.event, ())))
    blocks = blocks_of(one)
    return with_blocks(one, tuple(attrs.evolve(each, statements=tuple(_waiting(it, waits) for it in each.statements)) for each in blocks))
