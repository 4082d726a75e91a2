"""Copy elimination: rewrites that leave out copies, and tensors that are no others (Cypress, section 4.2.3, Figure 10).

A rewrite says what becomes of copies and tensors; what then waits for what is found again from the statements (`awaited`). So writers wait
for readers of what a copy had kept for them, and nobody waits for more than he needs. Rewrites are tried in the order of `STEPS`. Spill
elimination and spill hoisting, which keep a tensor elsewhere, are for tensors only whose memory the mapping leaves open (NONE).
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, TypeAlias

import attrs

from fireiron.tasks.awaits import awaited, met, use_of
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
"""The place of a statement: its number in each block around it, with the number of the block between."""

Candidates: TypeAlias = "Iterator[EventProgram]"


@attrs.frozen
class Seen:
    """A piece that a copy or a call reads or writes, or only names."""

    where: Where
    leaf: Leaf
    ref: Ref
    reads: bool
    writes: bool


@attrs.define(eq=False)
class Reading:
    """A program with what its statements do, by tensor."""

    program: EventProgram
    tensors: dict[str, Alloc] = attrs.field(factory=dict, init=False)
    places: dict[str, Where] = attrs.field(factory=dict, init=False)
    seen: dict[str, list[Seen]] = attrs.field(factory=dict, init=False)
    loops: dict[Where, For] = attrs.field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        for one in self.program.arguments:
            self._alloc(one, ())
        self._block(self.program.body, ())

    def _alloc(self, one: Alloc, where: Where) -> None:
        self.tensors[one.name], self.places[one.name], self.seen[one.name] = one, where, []

    def _block(self, block: Block, around: Where) -> None:
        for number, one in enumerate(block.statements):
            where = (*around, number)
            if isinstance(one, Alloc):
                self._alloc(one, where)
            elif isinstance(one, (Copy, Call)):
                for ref, reads, writes in refs_of(self.program, one):
                    self.seen[ref.tensor].append(Seen(where, one, ref, reads, writes))
            elif isinstance(one, For):
                self.loops[(*where, 0)] = one
            for inner, each in enumerate(blocks_of(one)):
                self._block(each, (*where, inner))

    def own(self) -> list[Alloc]:
        """The tensors that are no arguments, in the order of the text."""
        given = {one.name for one in self.program.arguments}
        return [one for name, one in self.tensors.items() if name not in given]

    def before(self, one: str, other: str) -> bool:
        """Whether a tensor is there before another."""
        return self.places[one] < self.places[other]

    def links(self, tensor: Alloc) -> dict[Ref, list[Seen]]:
        """The copies, in the block of a tensor, between all of it and pieces of tensors that were there before, by piece."""
        found: dict[Ref, list[Seen]] = {}
        for one in self.seen[tensor.name]:
            other = _other(one, tensor)
            if other is not None and one.where[:-1] == self.places[tensor.name][:-1] and self.before(other.tensor, tensor.name):
                found.setdefault(other, []).append(one)
        return found

    def meets(self, one: Seen, piece: Ref) -> bool:
        """Whether some processor's use may have elements in common with a piece."""
        return one.ref.tensor == piece.tensor and met(self.tensors[piece.tensor], use_of(one.ref, one.leaf.over), piece) is not None

    def touched(self, piece: Ref, block: Where, first: int, last: int, apart_from: Iterable[Seen] = ()) -> list[Seen]:
        """Who uses a piece between two statements of a block, with these; but for some copies."""
        without = {one.where for one in apart_from}
        depth = len(block)
        return [
            one
            for one in self.seen[piece.tensor]
            if one.where not in without
            and (one.reads or one.writes)
            and one.where[:depth] == block
            and first <= one.where[depth] <= last
            and self.meets(one, piece)
        ]


def _other(one: Seen, tensor: Alloc) -> Ref | None:
    """The other side of a copy of all of a tensor, by each processor of its own."""
    if not isinstance(one.leaf, Copy) or one.leaf.over != tensor.over:
        return None
    source, target = one.leaf.source, one.leaf.target
    whole = Ref(tensor.name)
    if source == whole and target.tensor != tensor.name:
        return target
    return source if target == whole and source.tensor != tensor.name else None


# ---------------------------------------------------------------------------------------------- changing programs


def _edited(block: Block, change: Callable[[Statement, Where], Iterable[Statement]], around: Where = ()) -> Block:
    """The block with other statements, in place of each any number of them."""
    statements: list[Statement] = []
    for number, one in enumerate(block.statements):
        where = (*around, number)
        inner = with_blocks(one, tuple(_edited(each, change, (*where, place)) for place, each in enumerate(blocks_of(one))))
        for made in change(one, where):
            statements.append(inner if made is one else made)
    return attrs.evolve(block, statements=tuple(statements))


def _changed(program: EventProgram, change: Callable[[Statement, Where], Iterable[Statement]]) -> EventProgram:
    return attrs.evolve(program, body=_edited(program.body, change))


def _without(program: EventProgram, where: Iterable[Where]) -> EventProgram:
    gone = set(where)
    return _changed(program, lambda one, place: () if place in gone else (one,))


def _replaced(program: EventProgram, name: str, by: Ref, gone: Iterable[Where]) -> EventProgram:
    """The program without a tensor, which is a piece of another, and without some copies."""
    without = set(gone)

    def change(one: Statement, where: Where) -> Iterable[Statement]:
        if where in without or (isinstance(one, Alloc) and one.name == name):
            return ()
        if isinstance(one, (Copy, Call)):
            return (with_refs(one, lambda ref: ref.within(by) if ref.tensor == name else ref),)
        return (one,)

    return _changed(program, change)


# ---------------------------------------------------------------------------------------------- rewrites


def self_copies(reading: Reading) -> Candidates:
    """A copy of a tensor to itself goes (Figure 10d)."""
    for uses in reading.seen.values():
        for one in uses:
            if isinstance(one.leaf, Copy) and one.leaf.source == one.leaf.target and one.reads:
                yield _without(reading.program, [one.where])


def unified(reading: Reading) -> Candidates:
    """An argument that is in its memory already, or that has none, is no new tensor but the piece that it is a copy of."""
    for tensor in reading.own():
        for piece, copies in reading.links(tensor).items():
            parent = reading.tensors[piece.tensor]
            if tensor.dtype == parent.dtype and tensor.place in (NONE, parent.place) and _stands_for(reading, tensor, piece, copies):
                yield _replaced(reading.program, tensor.name, piece, (one.where for one in copies))


def _stands_for(reading: Reading, tensor: Alloc, piece: Ref, copies: list[Seen]) -> bool:
    """Whether a piece may be used in place of a tensor that is copied from it and to it."""
    block = reading.places[tensor.name][:-1]
    depth, gone = len(block), {one.where for one in copies}
    others = [one for one in reading.seen[tensor.name] if one.where not in gone]
    used = [one.where[depth] for one in others]
    into = [one.where[depth] for one in copies if one.writes]
    out = [one.where[depth] for one in copies if one.reads]
    written = any(one.writes for one in others)
    if (
        len(into) > 1
        or len(out) > 1
        or any(one <= place for one in used for place in into)
        or any(one >= place for one in used for place in out)
    ):
        return False
    if (not into and not written) or (written and not out):
        return False
    every = [*used, *into, *out]
    met_by = reading.touched(piece, block, min(every), max(every), copies)
    if any(written or one.writes for one in met_by) or (written and not _apart(reading, tensor, piece)):
        return False
    return tensor.place != REGISTER or _of_one_owner(reading, piece, [(one.ref.within(piece), one.leaf) for one in others])


def _apart(reading: Reading, tensor: Alloc, piece: Ref) -> bool:
    """Whether each processor has another piece."""
    found, variables = met(reading.tensors[piece.tensor], use_of(piece, tensor.over), piece), processor_variables(tensor.over)
    pairs = zip(found or (), variables, tensor.over, strict=True)
    return found is not None and all(index == var or dim.size.high == 1 for index, var, dim in pairs)


def _of_one_owner(reading: Reading, piece: Ref, pieces: list[tuple[Ref, Leaf]]) -> bool:
    """Whether elements of a tensor in registers are always the same processor's."""
    every = [*pieces, *((one.ref, one.leaf) for one in reading.seen[piece.tensor])]
    over = frozenset(processor_variables(reading.tensors[piece.tensor].over))
    return all(_one_owner(one, other, over) for one, other in itertools.combinations(every, 2))


def _one_owner(one: tuple[Ref, Leaf], other: tuple[Ref, Leaf], over: frozenset[Var]) -> bool:
    """Whether two pieces are divided alike among processors, or one is a group's as a whole. The tensor has the dimensions `over`."""
    paths = [ref.path for ref, _ in (one, other)]
    own = [{var for var in processor_variables(leaf.over) if var.high > 0} for _, leaf in (one, other)]
    for level, ((by, place), (also, there)) in enumerate(zip(*paths, strict=False)):
        if by != also:
            return any(variables <= over | _variables(path[:level]) for path, variables in zip(paths, own, strict=True))
        for left, right in zip(place, there, strict=True):
            moves = left.variables() & own[0] or right.variables() & own[1]
            if moves and left != right:
                return False
    return True


def _variables(path: Iterable[tuple[Any, tuple[Any, ...]]]) -> frozenset[Var]:
    return frozenset(var for _, place in path for one in place for var in one.variables())


def adopted(reading: Reading) -> Candidates:
    """A tensor without a memory has that of the tensors that are copied from and to its pieces, if it is one."""
    children = {tensor.name: reading.links(tensor) for tensor in reading.own()}
    for tensor in reading.own():
        if tensor.place != NONE:
            continue
        places = set()
        for one in reading.seen[tensor.name]:
            if isinstance(one.leaf, Copy):
                other = one.leaf.target.tensor if one.reads else one.leaf.source.tensor
                mine = one.ref in children.get(other, {})
                places.add(reading.tensors[other].place if mine else NONE)
        if len(places) != 1 or places & {NONE, GLOBAL}:
            continue
        (place,) = places
        if place == REGISTER and not _of_one_owner(reading, Ref(tensor.name), []):
            continue
        made = attrs.evolve(tensor, place=place)

        def change(one: Statement, where: Where, name: str = tensor.name, made: Alloc = made) -> Iterable[Statement]:
            return (made if isinstance(one, Alloc) and one.name == name else one,)

        yield _changed(reading.program, change)


def spills(reading: Reading) -> Candidates:
    """What is copied into a piece of a tensor without memory is copied back from it no more (Figure 10a)."""
    for _, first, second in _pairs(reading):
        assert isinstance(first.leaf, Copy) and isinstance(second.leaf, Copy)
        kept, back, piece = first.leaf.source, second.leaf.target, first.ref
        if not first.writes or not second.reads or reading.tensors[piece.tensor].place != NONE or kept.path or back.path:
            continue
        block, begin, end = first.where[:-1], first.where[-1], second.where[-1]
        old, new = reading.tensors[kept.tensor], reading.tensors[back.tensor]
        if any(one.writes for one in reading.touched(piece, block, begin, end, (first, second))):
            continue
        if old.over != first.leaf.over or any(one.writes for one in reading.touched(kept, block, begin + 1, end, (second,))):
            continue
        if old.name == new.name:
            yield _without(reading.program, [second.where])
        elif _alike(old, new) and _follows(reading, old, new, second.where):
            yield _replaced(reading.program, new.name, kept, [second.where])


def _alike(one: Alloc, other: Alloc) -> bool:
    return (one.shape, one.dtype, one.place, one.over) == (other.shape, other.dtype, other.place, other.over)


def _follows(reading: Reading, old: Alloc, new: Alloc, where: Where) -> bool:
    """Whether from a copy on a tensor is used, and another no more; before it, the other way around. Both are of its block."""
    if not reading.places[old.name][:-1] == reading.places[new.name][:-1] == where[:-1]:
        return False
    earlier = [one.where < where for one in reading.seen[new.name] if one.where != where]
    return not any(earlier) and all(one.where < where for one in reading.seen[old.name])


def _pairs(reading: Reading) -> Iterator[tuple[Ref, Seen, Seen]]:
    """Two copies of a block from or to one piece, by the same processors, in their order."""
    for uses in reading.seen.values():
        copies = [one for one in uses if isinstance(one.leaf, Copy) and one.leaf.source != one.leaf.target]
        for number, one in enumerate(copies):
            for other in copies[number + 1 :]:
                if one.ref == other.ref and one.where[:-1] == other.where[:-1] and one.leaf.over == other.leaf.over:
                    yield one.ref, one, other


def hoisted_spills(reading: Reading) -> Candidates:
    """A tensor that each turn of a loop copies from a piece of one without memory, and back, is copied before the loop and behind it.

    Figure 10b."""
    for tensor, where, copies, piece in _of_loops(reading):
        into, out = [one for one in copies if one.writes], [one for one in copies if one.reads]
        if len(into) != 1 or len(out) != 1 or reading.tensors[piece.tensor].place != NONE:
            continue
        used = [one.where[len(where)] for one in reading.seen[tensor.name] if one not in copies]
        if all(into[0].where[-1] < one < out[0].where[-1] for one in used) and not _others(reading, piece, where, copies):
            yield _moved(reading.program, where[:-1], tensor, into[0], out[0])


def hoisted_copies(reading: Reading) -> Candidates:
    """A copy that is the same in all turns of a loop, and is only read, is made before it (the queries of attention)."""
    for tensor, where, copies, piece in _of_loops(reading):
        if len(copies) != 1 or not copies[0].writes or any(one.writes for one in reading.seen[tensor.name] if one not in copies):
            continue
        first = all(one.where > copies[0].where for one in reading.seen[tensor.name] if one not in copies)
        if first and not any(one.writes for one in _others(reading, piece, where, copies)):
            yield _moved(reading.program, where[:-1], tensor, copies[0], None)


def _of_loops(reading: Reading) -> Iterator[tuple[Alloc, Where, list[Seen], Ref]]:
    """The tensors of loops that are copies of one piece in all turns: with the place of its block, the copies, and the piece."""
    for tensor in reading.own():
        where = reading.places[tensor.name][:-1]
        loop = reading.loops.get(where)
        for piece, copies in reading.links(tensor).items():
            inside = reading.places[piece.tensor][: len(where)] == where
            if loop is not None and not inside and loop.variable not in piece.variables():
                yield tensor, where, copies, piece


def _others(reading: Reading, piece: Ref, block: Where, copies: list[Seen]) -> list[Seen]:
    """Who uses a piece in a block, but for some copies."""
    return reading.touched(piece, block, 0, 1 << 30, copies)


def _moved(program: EventProgram, loop: Where, tensor: Alloc, into: Seen, out: Seen | None) -> EventProgram:
    """The program in which a tensor and its copies stand around a loop."""

    def change(one: Statement, where: Where) -> Iterable[Statement]:
        if (isinstance(one, Alloc) and one.name == tensor.name) or where in (into.where, out and out.where):
            return ()
        return (tensor, into.leaf, one, *((out.leaf,) if out else ())) if where == loop else (one,)

    return _changed(program, change)


def duplicates(reading: Reading) -> Candidates:
    """Of two copies of a piece that are only read, the second is the first (Figure 10c)."""
    for piece, first, second in _pairs(reading):
        assert isinstance(first.leaf, Copy) and isinstance(second.leaf, Copy)
        if not first.reads or not second.reads or first.leaf.target.path or second.leaf.target.path:
            continue
        old, new = (reading.tensors[one.leaf.target.tensor] for one in (first, second) if isinstance(one.leaf, Copy))
        block, changes = first.where[:-1], reading.touched(piece, first.where[:-1], first.where[-1], second.where[-1], (first, second))
        if any(one.writes for one in changes):
            continue
        if old.name == new.name:
            kept = Ref(old.name)
            if not any(one.writes for one in reading.touched(kept, block, first.where[-1] + 1, second.where[-1] - 1)):
                yield _without(reading.program, [second.where])
        elif _alike(old, new) and _only_read(reading, old, first) and _only_read(reading, new, second):
            yield _replaced(reading.program, new.name, Ref(old.name), [second.where])


def _only_read(reading: Reading, tensor: Alloc, copy: Seen) -> bool:
    """Whether a tensor of a copy's block is written by this copy alone."""
    own = reading.places[tensor.name][:-1] == copy.where[:-1]
    return own and not any(one.writes and one.where != copy.where for one in reading.seen[tensor.name])


def overwritten(reading: Reading) -> Candidates:
    """A copy to what nobody reads before it is written again goes, as does one to a tensor that nobody reads."""
    for tensor in reading.own():
        uses = reading.seen[tensor.name]
        copies = [one for one in uses if one.writes and isinstance(one.leaf, Copy)]
        if copies and not any(one.reads for one in uses):
            yield _without(reading.program, (one.where for one in copies))
    for piece, first, second in _pairs(reading):
        if first.writes and second.writes:
            between = reading.touched(piece, first.where[:-1], first.where[-1], second.where[-1], (first,))
            if not any(one.reads for one in between):
                yield _without(reading.program, [first.where])


STEPS: Final[tuple[dict[str, Callable[[Reading], Candidates]], ...]] = (
    {"self": self_copies, "unify": unified, "adopt": adopted},
    {"spill": spills, "hoist spill": hoisted_spills, "overwritten": overwritten},
    {"duplicate": duplicates, "hoist": hoisted_copies},
)
"""What becomes of copies, by name: what takes tensors away comes before what moves copies of others. In a step, any may be first."""

REWRITES: Final = {name: rewrite for step in STEPS for name, rewrite in step.items()}
"""All of them."""


# ---------------------------------------------------------------------------------------------- the pass


def eliminated(program: EventProgram, order: random.Random | None = None) -> EventProgram:
    """The program without copies that are not needed, by all rewrites as long as there is one; with an `order`, in any within a step.

    A program with branches stays as it is.
    """
    if any(isinstance(one, Branch) for one in walk(program.body)):
        return program
    found: EventProgram | None = _settled(program)
    while found is not None:
        program, found = found, _next(found, order)
    return awaited(_used(program))


def rewritten(program: EventProgram, *names: str) -> EventProgram:
    """The program after some of the rewrites, by name, as long as there is one."""
    found: EventProgram | None = _settled(program)
    while found is not None:
        program = found
        reading = Reading(program)
        found = next((one for name in names for one in REWRITES[name](reading)), None)
    return awaited(_used(program))


def _settled(program: EventProgram) -> EventProgram:
    """The program with 0 in place of indices that nothing else can be."""

    def known(ref: Ref) -> Ref:
        return ref.at({var: as_expr(0) for var in ref.variables() if var.low == var.high == 0})

    return _changed(program, lambda one, _: (with_refs(one, known) if isinstance(one, (Copy, Call)) else one,))


def _next(program: EventProgram, order: random.Random | None) -> EventProgram | None:
    reading = Reading(program)
    for step in STEPS:
        found = (one for rewrite in step.values() for one in rewrite(reading))
        every = [*found] if order is not None else [*itertools.islice(found, 1)]
        if every:
            return every[0] if order is None else order.choice(every)
    return None


def _used(program: EventProgram) -> EventProgram:
    """The program without tensors that no statement names."""
    seen = Reading(program).seen
    return _changed(program, lambda one, _: () if isinstance(one, Alloc) and not seen[one.name] else (one,))
