"""Copy elimination: rewrites that remove copies, and tensors that only alias others (Cypress, section 4.2.3, Figure 10).

A rewrite changes copies and tensors. The events are then computed again from the statements (`awaited`): a removed copy may have preserved
data for readers, so writers must now wait for these readers. Rewrites are tried in the order of `STEPS`. Spill elimination and spill
hoisting keep a tensor elsewhere, so they apply only to tensors for which the mapping specifies no memory (NONE).
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, TypeAlias

import attrs

from fireiron.frozen import frozen
from fireiron.tasks.awaits import awaited, overlapping_processors, use_of
from fireiron.tasks.events import (
    Alloc,
    Block,
    Branch,
    Call,
    Copy,
    EventProgram,
    For,
    Leaf,
    Ref,
    Statement,
    blocks_of,
    processor_variables,
    refs_of,
    walk,
    with_blocks,
    with_refs,
)
from fireiron.tasks.mapping import GLOBAL, NONE, REGISTER
from fireiron.values.expr import Var, as_expr

Where: TypeAlias = "tuple[int, ...]"
"""The position of a statement. The number of the statement in each block around it alternates with the number of the next inner block."""

Candidates: TypeAlias = "Iterator[EventProgram]"


@frozen
class Seen:
    """An operand of a copy or a call: the piece, and whether the statement reads or writes it. A call may do neither."""

    where: Where
    leaf: Leaf
    ref: Ref
    reads: bool
    writes: bool


@attrs.define(eq=False)
class Reading:
    """A program and the accesses of its statements, by tensor."""

    program: EventProgram
    tensors: dict[str, Alloc] = attrs.field(factory=dict, init=False)
    places: dict[str, Where] = attrs.field(factory=dict, init=False)
    seen: dict[str, list[Seen]] = attrs.field(factory=dict, init=False)
    loops: dict[Where, For] = attrs.field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        for argument in self.program.arguments:
            self._alloc(argument, ())
        self._block(self.program.body, ())

    def _alloc(self, alloc: Alloc, where: Where) -> None:
        self.tensors[alloc.name], self.places[alloc.name], self.seen[alloc.name] = alloc, where, []

    def _block(self, block: Block, around: Where) -> None:
        for number, stmt in enumerate(block.statements):
            where = (*around, number)
            if isinstance(stmt, Alloc):
                self._alloc(stmt, where)
            elif isinstance(stmt, (Copy, Call)):
                for ref, reads, writes in refs_of(self.program, stmt):
                    self.seen[ref.tensor].append(Seen(where, stmt, ref, reads, writes))
            elif isinstance(stmt, For):
                self.loops[(*where, 0)] = stmt
            for inner, inner_block in enumerate(blocks_of(stmt)):
                self._block(inner_block, (*where, inner))

    def own(self) -> list[Alloc]:
        """The tensors that are not arguments, in program order."""
        given = {argument.name for argument in self.program.arguments}
        return [alloc for name, alloc in self.tensors.items() if name not in given]

    def before(self, tensor: str, other: str) -> bool:
        """Whether a tensor is allocated before another."""
        return self.places[tensor] < self.places[other]

    def links(self, tensor: Alloc) -> dict[Ref, list[Seen]]:
        """Return the copies between a whole tensor and pieces of tensors that were allocated before it, by piece.

        Only copies in the block of the tensor count.
        """
        links: dict[Ref, list[Seen]] = {}
        for access in self.seen[tensor.name]:
            other = _other(access, tensor)
            if other is not None and access.where[:-1] == self.places[tensor.name][:-1] and self.before(other.tensor, tensor.name):
                links.setdefault(other, []).append(access)
        return links

    def may_overlap(self, access: Seen, piece: Ref) -> bool:
        """Whether some processor's access may overlap with a piece."""
        return (
            access.ref.tensor == piece.tensor
            and overlapping_processors(self.tensors[piece.tensor], use_of(access.ref, access.leaf.over), piece) is not None
        )

    def accesses_between(self, piece: Ref, block: Where, first: int, last: int, apart_from: Iterable[Seen] = ()) -> list[Seen]:
        """The accesses to a piece from one statement of a block to another, inclusive, except for some copies."""
        without = {access.where for access in apart_from}
        depth = len(block)
        return [
            access
            for access in self.seen[piece.tensor]
            if access.where not in without
            and (access.reads or access.writes)
            and access.where[:depth] == block
            and first <= access.where[depth] <= last
            and self.may_overlap(access, piece)
        ]


def _other(access: Seen, tensor: Alloc) -> Ref | None:
    """Return the other operand of a copy of a whole tensor by each of its processors; None for other accesses."""
    if not isinstance(access.leaf, Copy) or access.leaf.over != tensor.over:
        return None
    source, target = access.leaf.source, access.leaf.target
    whole = Ref(tensor.name)
    if source == whole and target.tensor != tensor.name:
        return target
    return source if target == whole and source.tensor != tensor.name else None


# ---------------------------------------------------------------------------------------------- editing programs


def _edited(block: Block, change: Callable[[Statement, Where], Iterable[Statement]], around: Where = ()) -> Block:
    """The block in which `change` replaces each statement by any number of statements."""
    statements: list[Statement] = []
    for number, stmt in enumerate(block.statements):
        where = (*around, number)
        inner = with_blocks(stmt, tuple(_edited(inner_block, change, (*where, place)) for place, inner_block in enumerate(blocks_of(stmt))))
        for result in change(stmt, where):
            statements.append(inner if result is stmt else result)
    return attrs.evolve(block, statements=tuple(statements))


def _changed(program: EventProgram, change: Callable[[Statement, Where], Iterable[Statement]]) -> EventProgram:
    return attrs.evolve(program, body=_edited(program.body, change))


def _without(program: EventProgram, where: Iterable[Where]) -> EventProgram:
    gone = set(where)
    return _changed(program, lambda stmt, place: () if place in gone else (stmt,))


def _replaced(program: EventProgram, name: str, by: Ref, gone: Iterable[Where]) -> EventProgram:
    """The program in which a tensor is replaced by a piece of another, and some copies are removed."""
    without = set(gone)

    def change(stmt: Statement, where: Where) -> Iterable[Statement]:
        if where in without or (isinstance(stmt, Alloc) and stmt.name == name):
            return ()
        if isinstance(stmt, (Copy, Call)):
            return (with_refs(stmt, lambda ref: ref.within(by) if ref.tensor == name else ref),)
        return (stmt,)

    return _changed(program, change)


# ---------------------------------------------------------------------------------------------- rewrites


def self_copies(reading: Reading) -> Candidates:
    """Remove a copy of a tensor to itself (Figure 10d)."""
    for uses in reading.seen.values():
        for access in uses:
            if isinstance(access.leaf, Copy) and access.leaf.source == access.leaf.target and access.reads:
                yield _without(reading.program, [access.where])


def unified(reading: Reading) -> Candidates:
    """Replace a tensor by the piece of which it is a copy. The tensor must have the memory of the piece, or none."""
    for tensor in reading.own():
        for piece, copies in reading.links(tensor).items():
            parent = reading.tensors[piece.tensor]
            if tensor.dtype == parent.dtype and tensor.place in (NONE, parent.place) and _can_replace(reading, tensor, piece, copies):
                yield _replaced(reading.program, tensor.name, piece, (copy.where for copy in copies))


def _can_replace(reading: Reading, tensor: Alloc, piece: Ref, copies: list[Seen]) -> bool:
    """Whether a piece may be used instead of a tensor that is copied from it and to it."""
    block = reading.places[tensor.name][:-1]
    depth, gone = len(block), {copy.where for copy in copies}
    others = [access for access in reading.seen[tensor.name] if access.where not in gone]
    used = [access.where[depth] for access in others]
    into = [copy.where[depth] for copy in copies if copy.writes]
    out = [copy.where[depth] for copy in copies if copy.reads]
    written = any(access.writes for access in others)
    if (
        len(into) > 1
        or len(out) > 1
        or any(place_used <= place for place_used in used for place in into)
        or any(place_used >= place for place_used in used for place in out)
    ):
        return False
    if (not into and not written) or (written and not out):
        return False
    every = [*used, *into, *out]
    accesses = reading.accesses_between(piece, block, min(every), max(every), copies)
    if any(written or access.writes for access in accesses) or (written and not _disjoint(reading, tensor, piece)):
        return False
    return tensor.place != REGISTER or _single_owner(reading, piece, [(access.ref.within(piece), access.leaf) for access in others])


def _disjoint(reading: Reading, tensor: Alloc, piece: Ref) -> bool:
    """Whether each processor has a separate piece."""
    common, variables = (
        overlapping_processors(reading.tensors[piece.tensor], use_of(piece, tensor.over), piece),
        processor_variables(tensor.over),
    )
    pairs = zip(common or (), variables, tensor.over, strict=True)
    return common is not None and all(index == var or dim.size.high == 1 for index, var, dim in pairs)


def _single_owner(reading: Reading, piece: Ref, pieces: list[tuple[Ref, Leaf]]) -> bool:
    """Whether each element of a tensor in registers always has the same processor."""
    every = [*pieces, *((access.ref, access.leaf) for access in reading.seen[piece.tensor])]
    over = frozenset(processor_variables(reading.tensors[piece.tensor].over))
    return all(_same_owner(first, second, over) for first, second in itertools.combinations(every, 2))


def _same_owner(first: tuple[Ref, Leaf], second: tuple[Ref, Leaf], over: frozenset[Var]) -> bool:
    """Whether two pieces are distributed over processors in the same way, or a whole group owns one of them."""
    paths = [ref.path for ref, _ in (first, second)]
    own = [{var for var in processor_variables(leaf.over) if var.high > 0} for _, leaf in (first, second)]
    for level, ((by, place), (other_by, other_place)) in enumerate(zip(*paths, strict=False)):
        if by != other_by:
            return any(variables <= over | _variables(path[:level]) for path, variables in zip(paths, own, strict=True))
        for left, right in zip(place, other_place, strict=True):
            moves = left.variables() & own[0] or right.variables() & own[1]
            if moves and left != right:
                return False
    return True


def _variables(path: Iterable[tuple[Any, tuple[Any, ...]]]) -> frozenset[Var]:
    return frozenset(var for _, place in path for index in place for var in index.variables())


def adopted(reading: Reading) -> Candidates:
    """Give a tensor without a memory the memory of the tensors that are copied from and to its pieces, if it is the same for all."""
    children = {tensor.name: reading.links(tensor) for tensor in reading.own()}
    for tensor in reading.own():
        if tensor.place != NONE:
            continue
        places = set()
        for access in reading.seen[tensor.name]:
            if isinstance(access.leaf, Copy):
                other = access.leaf.target.tensor if access.reads else access.leaf.source.tensor
                is_child = access.ref in children.get(other, {})
                places.add(reading.tensors[other].place if is_child else NONE)
        if len(places) != 1 or places & {NONE, GLOBAL}:
            continue
        (place,) = places
        if place == REGISTER and not _single_owner(reading, Ref(tensor.name), []):
            continue
        placed = attrs.evolve(tensor, place=place)

        def change(stmt: Statement, where: Where, name: str = tensor.name, placed: Alloc = placed) -> Iterable[Statement]:
            return (placed if isinstance(stmt, Alloc) and stmt.name == name else stmt,)

        yield _changed(reading.program, change)


def spills(reading: Reading) -> Candidates:
    """Remove a spill: a copy into a piece of a tensor without memory, and the copy back from it (Figure 10a)."""
    for _, first, second in _pairs(reading):
        assert isinstance(first.leaf, Copy) and isinstance(second.leaf, Copy)
        kept, back, piece = first.leaf.source, second.leaf.target, first.ref
        if not first.writes or not second.reads or reading.tensors[piece.tensor].place != NONE or kept.path or back.path:
            continue
        block, begin, end = first.where[:-1], first.where[-1], second.where[-1]
        old, new = reading.tensors[kept.tensor], reading.tensors[back.tensor]
        if any(access.writes for access in reading.accesses_between(piece, block, begin, end, (first, second))):
            continue
        if old.over != first.leaf.over or any(access.writes for access in reading.accesses_between(kept, block, begin + 1, end, (second,))):
            continue
        if old.name == new.name:
            yield _without(reading.program, [second.where])
        elif _same_type(old, new) and _succeeds(reading, old, new, second.where):
            yield _replaced(reading.program, new.name, kept, [second.where])


def _same_type(first: Alloc, second: Alloc) -> bool:
    return (first.shape, first.dtype, first.place, first.over) == (second.shape, second.dtype, second.place, second.over)


def _succeeds(reading: Reading, old: Alloc, new: Alloc, where: Where) -> bool:
    """Whether `old` is used only before the copy at `where`, and `new` only after it. Both must be in the block of the copy."""
    if not reading.places[old.name][:-1] == reading.places[new.name][:-1] == where[:-1]:
        return False
    earlier = [access.where < where for access in reading.seen[new.name] if access.where != where]
    return not any(earlier) and all(access.where < where for access in reading.seen[old.name])


def _pairs(reading: Reading) -> Iterator[tuple[Ref, Seen, Seen]]:
    """Pairs of copies of a block from or to the same piece, by the same processors, in order."""
    for uses in reading.seen.values():
        copies = [access for access in uses if isinstance(access.leaf, Copy) and access.leaf.source != access.leaf.target]
        for number, first in enumerate(copies):
            for second in copies[number + 1 :]:
                if first.ref == second.ref and first.where[:-1] == second.where[:-1] and first.leaf.over == second.leaf.over:
                    yield first.ref, first, second


def hoisted_spills(reading: Reading) -> Candidates:
    """Move the copies of a spill out of a loop (Figure 10b).

    In each iteration, the loop copies a tensor from a piece without memory and back to it.
    """
    for tensor, where, copies, piece in _of_loops(reading):
        into, out = [copy for copy in copies if copy.writes], [copy for copy in copies if copy.reads]
        if len(into) != 1 or len(out) != 1 or reading.tensors[piece.tensor].place != NONE:
            continue
        used = [access.where[len(where)] for access in reading.seen[tensor.name] if access not in copies]
        if all(into[0].where[-1] < position < out[0].where[-1] for position in used) and not _others(reading, piece, where, copies):
            yield _moved(reading.program, where[:-1], tensor, into[0], out[0])


def hoisted_copies(reading: Reading) -> Candidates:
    """Move a loop-invariant copy, which the loop only reads, before the loop (for example the queries of attention)."""
    for tensor, where, copies, piece in _of_loops(reading):
        if len(copies) != 1 or not copies[0].writes or any(access.writes for access in reading.seen[tensor.name] if access not in copies):
            continue
        first = all(access.where > copies[0].where for access in reading.seen[tensor.name] if access not in copies)
        if first and not any(access.writes for access in _others(reading, piece, where, copies)):
            yield _moved(reading.program, where[:-1], tensor, copies[0], None)


def _of_loops(reading: Reading) -> Iterator[tuple[Alloc, Where, list[Seen], Ref]]:
    """Yield tensors in loops that are copies of a loop-invariant piece: the tensor, the position of its block, the copies, the piece."""
    for tensor in reading.own():
        where = reading.places[tensor.name][:-1]
        loop = reading.loops.get(where)
        for piece, copies in reading.links(tensor).items():
            inside = reading.places[piece.tensor][: len(where)] == where
            if loop is not None and not inside and loop.variable not in piece.variables():
                yield tensor, where, copies, piece


def _others(reading: Reading, piece: Ref, block: Where, copies: list[Seen]) -> list[Seen]:
    """The accesses to a piece in a block, except for some copies."""
    return reading.accesses_between(piece, block, 0, 1 << 30, copies)


def _moved(program: EventProgram, loop: Where, tensor: Alloc, into: Seen, out: Seen | None) -> EventProgram:
    """The program in which a tensor and its copies are moved out of a loop."""

    def change(stmt: Statement, where: Where) -> Iterable[Statement]:
        if (isinstance(stmt, Alloc) and stmt.name == tensor.name) or where in (into.where, out and out.where):
            return ()
        return (tensor, into.leaf, stmt, *((out.leaf,) if out else ())) if where == loop else (stmt,)

    return _changed(program, change)


def duplicates(reading: Reading) -> Candidates:
    """Replace the second of two read-only copies of a piece by the first (Figure 10c)."""
    for piece, first, second in _pairs(reading):
        assert isinstance(first.leaf, Copy) and isinstance(second.leaf, Copy)
        if not first.reads or not second.reads or first.leaf.target.path or second.leaf.target.path:
            continue
        old, new = (reading.tensors[copy.leaf.target.tensor] for copy in (first, second) if isinstance(copy.leaf, Copy))
        block, changes = (
            first.where[:-1],
            reading.accesses_between(piece, first.where[:-1], first.where[-1], second.where[-1], (first, second)),
        )
        if any(access.writes for access in changes):
            continue
        if old.name == new.name:
            kept = Ref(old.name)
            if not any(access.writes for access in reading.accesses_between(kept, block, first.where[-1] + 1, second.where[-1] - 1)):
                yield _without(reading.program, [second.where])
        elif _same_type(old, new) and _only_read(reading, old, first) and _only_read(reading, new, second):
            yield _replaced(reading.program, new.name, Ref(old.name), [second.where])


def _only_read(reading: Reading, tensor: Alloc, copy: Seen) -> bool:
    """Whether a tensor of a copy's block is written by this copy alone."""
    own = reading.places[tensor.name][:-1] == copy.where[:-1]
    return own and not any(access.writes and access.where != copy.where for access in reading.seen[tensor.name])


def overwritten(reading: Reading) -> Candidates:
    """Remove a copy to a piece that is overwritten before it is read, or to a tensor that is never read."""
    for tensor in reading.own():
        uses = reading.seen[tensor.name]
        copies = [access for access in uses if access.writes and isinstance(access.leaf, Copy)]
        if copies and not any(access.reads for access in uses):
            yield _without(reading.program, (copy.where for copy in copies))
    for piece, first, second in _pairs(reading):
        if first.writes and second.writes:
            between = reading.accesses_between(piece, first.where[:-1], first.where[-1], second.where[-1], (first,))
            if not any(access.reads for access in between):
                yield _without(reading.program, [first.where])


STEPS: Final[tuple[dict[str, Callable[[Reading], Candidates]], ...]] = (
    {"self": self_copies, "unify": unified, "adopt": adopted},
    {"spill": spills, "hoist spill": hoisted_spills, "overwritten": overwritten},
    {"duplicate": duplicates, "hoist": hoisted_copies},
)
"""The rewrites by name, in steps. Rewrites that remove tensors precede rewrites that move copies. Within a step, any order is legal."""

REWRITES: Final = {name: rewrite for step in STEPS for name, rewrite in step.items()}
"""All rewrites."""


# ---------------------------------------------------------------------------------------------- the pass


def eliminated(program: EventProgram, order: random.Random | None = None) -> EventProgram:
    """Return the program without unnecessary copies: apply rewrites until none applies.

    With an `order`, the rewrites of a step are applied in random order. A program with branches is returned unchanged.
    """
    if any(isinstance(stmt, Branch) for stmt in walk(program.body)):
        return program
    next_program: EventProgram | None = _simplified(program)
    while next_program is not None:
        program, next_program = next_program, _next(next_program, order)
    return awaited(_used(program))


def rewritten(program: EventProgram, *names: str) -> EventProgram:
    """Return the program after the named rewrites were applied until none applies."""
    next_program: EventProgram | None = _simplified(program)
    while next_program is not None:
        program = next_program
        reading = Reading(program)
        next_program = next((candidate for name in names for candidate in REWRITES[name](reading)), None)
    return awaited(_used(program))


def _simplified(program: EventProgram) -> EventProgram:
    """The program with 0 for each index that can only be 0."""

    def known(ref: Ref) -> Ref:
        return ref.at({var: as_expr(0) for var in ref.variables() if var.low == var.high == 0})

    return _changed(program, lambda stmt, _: (with_refs(stmt, known) if isinstance(stmt, (Copy, Call)) else stmt,))


def _next(program: EventProgram, order: random.Random | None) -> EventProgram | None:
    reading = Reading(program)
    for step in STEPS:
        candidates = (candidate for rewrite in step.values() for candidate in rewrite(reading))
        every = [*candidates] if order is not None else [*itertools.islice(candidates, 1)]
        if every:
            return every[0] if order is None else order.choice(every)
    return None


def _used(program: EventProgram) -> EventProgram:
    """The program without tensors that no statement uses."""
    seen = Reading(program).seen
    return _changed(program, lambda stmt, _: () if isinstance(stmt, Alloc) and not seen[stmt.name] else (stmt,))
