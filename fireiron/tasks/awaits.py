"""Compute the events that each statement of event IR must wait for, from the accesses of statements in program order.

After a rewrite of copies, the events are computed again from the new statements. A reader waits for earlier writers; a writer waits for all
earlier accesses. Along a dimension of processors, a statement waits for its own processor only if each processor has its own piece, and
otherwise for all processors. Each event is added to the innermost statement that needs it.
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
    """An access to a piece: its event, the event's dimensions, and the variables of these dimensions in the piece."""

    ref: Ref
    write: bool
    event: str
    dims: Type
    variables: tuple[Var, ...]


def use_of(ref: Ref, over: Type, write: bool = True, event: str = "") -> Use:
    """The access to a piece by the processors of `over`."""
    return Use(ref, write, event, over, processor_variables(over))


def overlapping_processors(tensor: Alloc, use: Use, ref: Ref) -> tuple[Index, ...] | None:
    """Return the processors whose access may overlap with a piece, as an index of the access's event; None if there is no overlap."""
    foreign = {var: Var(f"{var.name}@", var.low, var.high) for var in use.variables}
    own = {foreign[var]: var for var in processor_variables(tensor.over) if var in foreign}
    sizes = {foreign[var]: dim.size for var, dim in zip(use.variables, use.dims, strict=True)}
    known: dict[Var, Expr] = dict(own)
    for (by, place), (other_by, other_place) in zip(use.ref.at(foreign).path, ref.path, strict=False):
        if by != other_by or not by.disjoint:
            break
        for left, right in zip(place, other_place, strict=True):
            moved = left.substitute(known)
            if isinstance(moved, Var) and moved in sizes:
                if right.low >= 0 and right.high < sizes[moved].low:
                    known[moved] = right
            elif differ(moved, right):
                return None
    first: Index = as_expr(0)
    dims_of_use = zip(use.variables, use.dims, strict=True)
    return tuple(first if dim.size.high == 1 else known.get(foreign[var], EVERY) for var, dim in dims_of_use)


def awaited(program: EventProgram) -> EventProgram:
    """Return the program with the events that its statements need. A program with branches is returned unchanged."""
    if _has_branches(program.body):
        return program
    awaiting = Awaiting(program, tensors_of(program))
    done: dict[str, list[Use]] = {argument.name: [] for argument in program.arguments}
    statements = awaiting.block(program.body, done)
    last = tuple(
        dict.fromkeys(
            Event(use.event, (EVERY,) * len(use.dims)) for argument in program.arguments for use in done[argument.name] if use.write
        )
    )
    return renumbered(reduced(attrs.evolve(program, body=Block(statements, (last,)))))


def _has_branches(block: Block) -> bool:
    return any(isinstance(stmt, Branch) or any(map(_has_branches, blocks_of(stmt))) for stmt in block.statements)


@attrs.define(eq=False)
class Awaiting:
    """Adds events to statements. `inside` has the accesses of each enclosing loop: event, piece, and whether it is a write."""

    program: EventProgram
    tensors: dict[str, Alloc]
    inside: list[list[tuple[str, Ref, bool]]] = attrs.field(factory=list)
    numbers: itertools.count[int] = attrs.field(factory=itertools.count)

    def block(self, block: Block, done: dict[str, list[Use]]) -> tuple[Statement, ...]:
        """Return the statements of a block with their waits. New accesses are added to `done`, the accesses to each tensor so far."""
        return tuple(self.statement(stmt, done) for stmt in block.statements)

    def statement(self, stmt: Statement, done: dict[str, list[Use]]) -> Statement:
        """A statement with its waits."""
        if isinstance(stmt, Alloc):
            done[stmt.name] = []
            return stmt
        if isinstance(stmt, (Copy, Call)):
            return self.leaf(stmt, done)
        if isinstance(stmt, For):
            return self.loop(stmt, done)
        assert isinstance(stmt, Pfor)
        return self.group(stmt, done)

    def leaf(self, stmt: Leaf, done: dict[str, list[Use]]) -> Leaf:
        """Return a copy or a call that waits for all accesses with which it conflicts."""
        refs = [(ref, writes) for ref, reads, writes in refs_of(self.program, stmt) if reads or writes]
        after: list[Event] = []
        event, killed = self._event(), set()
        for ref, writes in refs:
            for use in done[ref.tensor]:
                index = overlapping_processors(self.tensors[ref.tensor], use, ref) if writes or use.write else None
                if index is not None:
                    after.append(Event(use.event, index))
                    killed |= {use} if writes and _supersedes(use_of(ref, stmt.over), use) else set()
        for ref, _ in refs:
            done[ref.tensor] = [use for use in done[ref.tensor] if use not in killed]
        for ref, writes in refs:
            done[ref.tensor].append(use_of(ref, stmt.over, writes, event))
            for uses in self.inside:
                uses.append((event, ref, writes))
        return attrs.evolve(stmt, event=event, after=tuple(dict.fromkeys(after)))

    def loop(self, stmt: For, done: dict[str, list[Use]]) -> For:
        """Return a loop in which the statements of an iteration wait for conflicting accesses of previous iterations."""
        inner = {name: list(uses) for name, uses in done.items()}
        self.inside.append([])
        statements = self.block(stmt.body, inner)
        uses, uses_of_body = self.inside.pop(), _new_uses(done, inner)
        other = {stmt.variable: Var(f"{stmt.variable.name}'", stmt.variable.low, stmt.variable.high)}
        waits: dict[str, list[Event]] = {}
        carried_uses: list[tuple[Use, str]] = []
        rest: list[tuple[Use, str]] = []
        for use in uses_of_body:
            name, foreign, waited_for = self._event(), attrs.evolve(use, ref=use.ref.at(other)), False
            for event, ref, writes in uses if stmt.extent.high > 1 else ():
                index = (
                    overlapping_processors(self.tensors[ref.tensor], foreign, ref)
                    if ref.tensor == use.ref.tensor and (writes or use.write)
                    else None
                )
                if index is not None:
                    waits.setdefault(event, []).append(Event(name, index))
                    waited_for = True
            (carried_uses if waited_for else rest).append((use, name))
        carries = tuple(Carry(name, (), use.dims) for use, name in carried_uses)
        results, yields = self._results([use for use, _ in (*carried_uses, *rest)])
        for (use, _), result in zip((*carried_uses, *rest), results, strict=True):
            wide = use.ref.at({stmt.variable: Var(f"{result.name}@", stmt.variable.low, stmt.variable.high)})
            done[use.ref.tensor].append(attrs.evolve(use, ref=wide, event=result.name))
        body = Block(tuple(_with_waits(stmt, waits) for stmt in statements), yields)
        return attrs.evolve(stmt, results=results, carries=carries, body=body)

    def group(self, stmt: Pfor, done: dict[str, list[Use]]) -> Pfor:
        """Return a parallel loop, whose iterations do not wait for each other."""
        inner = {name: list(uses) for name, uses in done.items()}
        statements = self.block(stmt.body, inner)
        uses_of_body = _new_uses(done, inner)
        results, yields = self._results(uses_of_body)
        for use, result in zip(uses_of_body, results, strict=True):
            outer_use = attrs.evolve(use, event=result.name, dims=(*stmt.dims, *use.dims), variables=(*stmt.variables, *use.variables))
            done[use.ref.tensor].append(outer_use)
        if not results:
            results, yields = (Result(self._event()),), ((),)
        return attrs.evolve(stmt, results=results, body=Block(statements, yields))

    def _results(self, uses: list[Use]) -> tuple[tuple[Result, ...], tuple[Events, ...]]:
        """A result event of a loop for each access that later statements may wait for, and the events that its block yields for them."""
        yields = tuple((Event(use.event, _own_index(use.dims)),) for use in uses)
        return tuple(Result(self._event(), use.dims) for use in uses), yields

    def _event(self) -> str:
        return f"#{next(self.numbers)}"


def _own_index(dims: Type) -> tuple[Index, ...]:
    """The index of the processor's own event."""
    pairs = zip(processor_variables(dims), dims, strict=True)
    return tuple(as_expr(0) if dim.size.high == 1 else variable for variable, dim in pairs)


def _new_uses(done: dict[str, list[Use]], inner: dict[str, list[Use]]) -> list[Use]:
    """The accesses of a block to tensors around it."""
    return [use for name, old in done.items() for use in inner[name] if use not in old]


def _supersedes(new: Use, old: Use) -> bool:
    """Whether an access covers all elements of an earlier one, so that waiting for it suffices."""
    named = new.ref.variables()
    same = {var for var in new.variables if var in named} == {var for var in old.variables if var in named}
    return same and old.ref.path[: len(new.ref.path)] == new.ref.path


def _with_waits(stmt: Statement, waits: dict[str, list[Event]]) -> Statement:
    """A statement whose leaves wait for additional events."""
    if isinstance(stmt, Alloc):
        return stmt
    if isinstance(stmt, (Copy, Call)):
        return attrs.evolve(stmt, after=(*stmt.after, *waits.get(stmt.event, ())))
    blocks = blocks_of(stmt)
    return with_blocks(
        stmt, tuple(attrs.evolve(block, statements=tuple(_with_waits(inner, waits) for inner in block.statements)) for block in blocks)
    )
