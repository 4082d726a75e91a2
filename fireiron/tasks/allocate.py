"""Allocation: the places of shared tensors in the memory of a block, and the events that keep those apart that share bytes (Cypress,
section 4.2.4, Figure 11).

Two tensors interfere unless their events allow that all work on one of them is done before any on the other. All have bytes of their own
as far as the mapping's `within` allows; else as few pairs share as that needs, and whoever writes the second waits for those that used the
first. A tensor of a loop has the same bytes in each turn: a turn waits for the last users of those before. What a loop with stages loads
from global memory is there so many times, and a turn waits for the one of its stage.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import attrs

from fireiron.errors import DecompositionError
from fireiron.tasks.events import (
    EVERY,
    Alloc,
    Block,
    Branch,
    Call,
    Carry,
    Compound,
    Copy,
    Event,
    EventProgram,
    Events,
    For,
    Index,
    Leaf,
    Pfor,
    Result,
    Statement,
    Type,
    blocks_of,
    bytes_of,
    defined,
    outside,
    parts_of,
    processor_variables,
    refs_of,
    tensors_of,
    types_of,
    walk,
    with_blocks,
    with_events,
    with_results,
)
from fireiron.tasks.mapping import GLOBAL, SHARED, Mapping
from fireiron.tasks.packing import Packing, Pair, packed, together
from fireiron.tasks.reduce import Implied, reduced

ALIGNMENT = 128
"""Alignment in bytes of a tensor in shared memory, as TMA requires."""

Path = tuple[tuple[Block, int], ...]
"""Where a statement stands: the blocks around it, from the outermost in, and its number, or that of the statement around, in each."""


@attrs.define(eq=False)
class Shared:
    """A tensor in shared memory: where it is made, the statements that work on it, and how often it is there."""

    alloc: Alloc
    path: Path
    space: int
    copies: int = 1
    bytes: int = 0
    users: list[tuple[Leaf, Path]] = attrs.field(factory=list)

    def loops(self) -> Iterator[tuple[int, For]]:
        """The loops of the block around it, the innermost first, with the depth of their bodies."""
        for depth in range(len(self.path) - 1, self.space, -1):
            around = _at(self.path, depth - 1)
            if isinstance(around, For):
                yield depth, around


@attrs.frozen(eq=False)
class Meeting:
    """Two tensors of which one may be done before the other begins, in the block at a depth around both."""

    first: Shared
    second: Shared
    block: Block
    depth: int


def allocated(program: EventProgram, mapping: Mapping) -> EventProgram:
    """The program with the places of shared tensors, and with the events that sharing of bytes needs.

    Raises: DecompositionError if tensors that are in use together do not fit within the mapping's bound; it names them with their bytes.
    """
    plan = Plan(program)
    places: dict[str, Alloc] = {}
    for tensors in _spaces(shared_tensors(program)):
        meetings = _meetings(tensors) if mapping.max_shared_bytes else {}
        found = _places(tensors, meetings, mapping.max_shared_bytes)
        for one, offset in zip(tensors, found.offsets, strict=True):
            places[one.alloc.name] = attrs.evolve(one.alloc, at=offset * ALIGNMENT, copies=one.copies)
            plan.turns(one)
        for (first, second), meeting in meetings.items():
            if _overlap(tensors, found, first, second):
                plan.apart(meeting)
    return reduced(plan.program_with(places))


def shared_tensors(program: EventProgram) -> tuple[Shared, ...]:
    """All tensors in shared memory, in the order of the text."""
    parts, tensors = parts_of(program.body), tensors_of(program)
    found: dict[str, Shared] = {}
    for one, path in _paths(program.body, ()):
        if isinstance(one, Alloc) and one.place == SHARED:
            found[one.name] = Shared(one, path, _space(path))
        elif isinstance(one, (Copy, Call)):
            for name in dict.fromkeys(ref.tensor for ref, reads, writes in refs_of(program, one) if reads or writes):
                if name in found:
                    found[name].users.append((one, path))
    for each in found.values():
        each.copies = _copies(program, tensors, each)
        count = each.copies * parts[each.alloc.name]
        for dim in each.alloc.over:
            count *= dim.size.high
        each.bytes = count * bytes_of(each.alloc)
    return tuple(found.values())


def _copies(program: EventProgram, tensors: dict[str, Alloc], one: Shared) -> int:
    """As many as the loop around has stages, if it loads the tensor from global memory."""
    loop = next((loop for _, loop in one.loops()), None)
    writers = [leaf for leaf, _ in one.users for ref, _, writes in refs_of(program, leaf) if writes and ref.tensor == one.alloc.name]
    loaded = all(isinstance(leaf, Copy) and tensors[leaf.source.tensor].place == GLOBAL for leaf in writers)
    return loop.stages if loop is not None and loaded else 1


def _paths(block: Block, around: Path) -> Iterator[tuple[Statement, Path]]:
    for number, one in enumerate(block.statements):
        path = (*around, (block, number))
        yield one, path
        for inner in blocks_of(one):
            yield from _paths(inner, path)


def _at(path: Path, depth: int) -> Statement:
    block, number = path[depth]
    return block.statements[number]


def _space(path: Path) -> int:
    """The depth at which the program of a block begins."""
    depths = (depth + 1 for depth in range(len(path)) if isinstance(one := _at(path, depth), Pfor) and outside(one))
    return max(depths, default=0)


def _spaces(tensors: tuple[Shared, ...]) -> list[list[Shared]]:
    """The tensors of each program of a block."""
    found: dict[int, list[Shared]] = {}
    for one in tensors:
        found.setdefault(id(one.path[one.space][0]), []).append(one)
    return list(found.values())


# ---------------------------------------------------------------------------------------------- what interferes


def _meetings(tensors: list[Shared]) -> dict[Pair, Meeting]:
    """The pairs that may share bytes, by their numbers."""
    pairs = itertools.combinations(range(len(tensors)), 2)
    found = {pair: _meeting(tensors[pair[0]], tensors[pair[1]]) for pair in pairs}
    return {pair: meeting for pair, meeting in found.items() if meeting is not None}


def _meeting(one: Shared, other: Shared) -> Meeting | None:
    """How one of two tensors is done before the other; None where they interfere."""
    depth = _common(one, other)
    for each in (one, other):
        ring = next((depth for depth, _ in each.loops()), None) if each.copies > 1 else None
        if ring is not None and ring <= depth:
            return None  # loads of other turns are under way all the time
    block = one.path[depth][0]
    reach = _reach(block, ())
    mine, others = ({path[depth][1] for _, path in each.users} for each in (one, other))
    before = any(reach[last] >> first & 1 for first in mine for last in others)
    behind = any(reach[last] >> first & 1 for first in others for last in mine)
    if before and behind:
        return None
    swapped = behind or (not before and min(others, default=0) < min(mine, default=0))
    return Meeting(other, one, block, depth) if swapped else Meeting(one, other, block, depth)


def _common(one: Shared, other: Shared) -> int:
    """The depth of the innermost block around two tensors that no parallel loop inside a block is around."""
    depth = one.space
    for depth in range(one.space, min(len(one.path), len(other.path))):
        here, there = one.path[depth], other.path[depth]
        last = depth + 1 >= min(len(one.path), len(other.path)) or here[1] != there[1] or isinstance(_at(one.path, depth), Pfor)
        if last or one.path[depth + 1][0] is not other.path[depth + 1][0]:
            break
    return depth


def _reach(block: Block, more: tuple[tuple[int, int], ...]) -> list[int]:
    """For each statement of a block those that are done before it, and itself, as the bits of a number; `more` are pairs in order.

    A circle shows as two statements before each other.
    """
    direct = [sum(1 << each for each in needed) for needed in _needed(block)]
    for first, second in more:
        direct[second] |= 1 << first
    reach = [bits | 1 << number for number, bits in enumerate(direct)]
    for through in range(len(reach)):
        reach = [bits | reach[through] if bits >> through & 1 else bits for bits in reach]
    return reach


def _needed(block: Block) -> list[set[int]]:
    """For each statement of a block those whose events or tensors it needs."""
    makers: dict[str, int] = {}
    found = []
    for number, one in enumerate(block.statements):
        used = _used(one)
        found.append({makers[name] for name in used if name in makers})
        makers |= dict.fromkeys(defined(one), number)
    return found


def _used(one: Statement) -> set[str]:
    """The events that are waited for in a statement, and inside it."""
    used: set[str] = set()

    def noted(events: Events) -> Events:
        used.update(event.name for event in events)
        return events

    with_events(Block((one,)), noted)
    return used


# ---------------------------------------------------------------------------------------------- places


def _places(tensors: list[Shared], meetings: dict[Pair, Meeting], within: int) -> Packing:
    """Offsets in units of the alignment, with as few pairs that share bytes as the bound needs."""
    sizes = [-(-one.bytes // ALIGNMENT) for one in tensors]
    bound = within // ALIGNMENT if within else float("inf")
    found = packed(sizes, tuple(meetings), bound, lambda dropped: _in_order([meetings[pair] for pair in dropped]))
    if found.bytes <= bound:
        return found
    needed = together(sizes, frozenset(meetings))
    listed = ", ".join(f"{tensors[one].alloc.name} {tensors[one].bytes}" for one in needed)
    least = max(sum(sizes[one] for one in needed), within // ALIGNMENT + 1) * ALIGNMENT
    raise DecompositionError(
        f"shared memory: tensors that are in use together take {least} bytes of a block: {listed}",
        got=f"within={within}", legal=f"within={least} and more", hint="smaller pieces, fewer stages, or fewer tensors in SHARED",
    )  # fmt: skip


def _in_order(meetings: list[Meeting]) -> bool:
    """Whether pairs can all be one behind the other."""
    for block, pairs in _by_block(meetings):
        reach = _reach(block, pairs)
        if any(reach[one] >> other & 1 and reach[other] >> one & 1 for one, other in itertools.combinations(range(len(reach)), 2)):
            return False
    return True


def _by_block(meetings: list[Meeting]) -> list[tuple[Block, tuple[tuple[int, int], ...]]]:
    """The blocks of meetings, and which statements of each come before which."""
    found: dict[int, tuple[Block, list[tuple[int, int]]]] = {}
    for one in meetings:
        pairs = found.setdefault(id(one.block), (one.block, []))[1]
        first, second = ({path[one.depth][1] for _, path in each.users} for each in (one.first, one.second))
        pairs += itertools.product(sorted(first), sorted(second))
    return [(block, tuple(pairs)) for block, pairs in found.values()]


def _overlap(tensors: list[Shared], found: Packing, one: int, other: int) -> bool:
    first, second = ((found.offsets[each] * ALIGNMENT, found.offsets[each] * ALIGNMENT + tensors[each].bytes) for each in (one, other))
    return first[0] < second[1] and second[0] < first[1]


# ---------------------------------------------------------------------------------------------- events


@attrs.define(eq=False)
class Plan:
    """What is added to a program: results and carries of its loops, what statements wait for, and their order in blocks."""

    program: EventProgram
    implied: Implied = attrs.field(init=False)
    after: dict[str, list[Event]] = attrs.field(factory=dict, init=False)
    results: dict[int, list[tuple[Result, tuple[Events, ...]]]] = attrs.field(factory=dict, init=False)
    carries: dict[int, list[tuple[Carry, Result, Events]]] = attrs.field(factory=dict, init=False)
    known: dict[tuple[int, str], str] = attrs.field(factory=dict, init=False)
    before: dict[tuple[int, str, int], str] = attrs.field(factory=dict, init=False)
    met: list[Meeting] = attrs.field(factory=list, init=False)
    taken: set[str] = attrs.field(factory=set, init=False)

    def __attrs_post_init__(self) -> None:
        self.implied = Implied(self.program)
        self.taken = {*types_of(self.program), *tensors_of(self.program)}

    def turns(self, one: Shared) -> None:
        """The turns of loops around a tensor wait for those before that had its bytes."""
        for number, (depth, loop) in enumerate(one.loops()):
            distance = one.copies if number == 0 else 1
            if loop.extent.high > distance:
                self._carried(loop, depth, one, one, distance, own=True)

    def apart(self, meeting: Meeting) -> None:
        """The users of the second tensor wait for those of the first, and those of the first for the second's in turns before."""
        first, second = meeting.first, meeting.second
        self.met.append(meeting)
        for leaf, path in _last(self.implied, first):
            event = self._outside(leaf, path, meeting.depth)
            for user, _ in second.users:
                self._wait(user, Event(event, (EVERY,) * len(_type(leaf, path, meeting.depth))))
        for depth, loop in first.loops():
            if depth <= meeting.depth and loop.extent.high > 1:
                self._carried(loop, depth, second, first, 1, own=False)

    def _carried(self, loop: For, depth: int, users: Shared, waiting: Shared, distance: int, own: bool) -> None:
        """In each turn of a loop those that use one tensor wait for those that used another in turns before."""
        for leaf, path in _last(self.implied, users):
            event, dims = self._outside(leaf, path, depth), _type(leaf, path, depth)
            key = id(loop), event, distance
            if key not in self.before:
                self.before[key] = self._name("p")
                carry, result = Carry(self.before[key], (), dims, distance), Result(self._name("e"), dims)
                self.carries.setdefault(id(loop), []).append((carry, result, (Event(event, processor_variables(dims)),)))
            for user, _ in waiting.users:
                index = _own(leaf, path, depth, user, waiting) if own else (EVERY,) * len(dims)
                self._wait(user, Event(self.before[key], index))

    def _wait(self, user: Leaf, event: Event) -> None:
        self.after.setdefault(user.event, []).append(event)

    def _name(self, letter: str) -> str:
        name = next(name for number in itertools.count(1) if (name := f"{letter}{number}") not in self.taken)
        self.taken.add(name)
        return name

    def _outside(self, leaf: Leaf, path: Path, depth: int) -> str:
        """The event that says outside, in the block at a depth, that a statement is done."""
        name = leaf.event
        for level in range(len(path) - 2, depth - 1, -1):
            around = _at(path, level)
            assert isinstance(around, (For, Pfor, Branch))
            inside = _type(leaf, path, level + 1)
            key = id(around), name
            if key not in self.known:
                self.known[key] = self._result(around, path[level + 1][0], Event(name, processor_variables(inside)), inside)
            name = self.known[key]
        return name

    def _result(self, around: Compound, block: Block, event: Event, over: Type) -> str:
        known = _result_of(around, block, event, over)
        if known is not None:
            return known
        made = Result(self._name("e"), over)
        self.results.setdefault(id(around), []).append((made, tuple((event,) if each is block else () for each in blocks_of(around))))
        return made.name

    def program_with(self, places: dict[str, Alloc]) -> EventProgram:
        """The program with what is added, and with the places of tensors."""
        orders = {id(block): _order(block, pairs) for block, pairs in _by_block(self.met)}
        return attrs.evolve(self.program, body=self._block(self.program.body, places, orders))

    def _block(self, block: Block, places: dict[str, Alloc], orders: dict[int, list[int]]) -> Block:
        order = orders.get(id(block), range(len(block.statements)))
        return attrs.evolve(block, statements=tuple(self._statement(block.statements[number], places, orders) for number in order))

    def _statement(self, one: Statement, places: dict[str, Alloc], orders: dict[int, list[int]]) -> Statement:
        if isinstance(one, Alloc):
            return places.get(one.name, one)
        if isinstance(one, (Copy, Call)):
            return attrs.evolve(one, after=tuple(dict.fromkeys((*one.after, *self.after.get(one.event, ())))))
        made = with_blocks(one, tuple(self._block(block, places, orders) for block in blocks_of(one)))
        assert isinstance(made, (For, Pfor, Branch))
        for result, yields in self.results.get(id(one), ()):
            made = _with_result(made, len(made.results), result, yields)
        for carry, result, used in self.carries.get(id(one), ()):
            assert isinstance(made, For)
            made = _with_result(made, len(made.carries), result, (used,))
            assert isinstance(made, For)
            made = attrs.evolve(made, carries=(*made.carries, carry))
        return made


def _same(one: Event, other: Event, over: Type) -> bool:
    """Whether two events are one, where there is but one index along some dimensions."""
    if one.name != other.name or len(one.index) != len(other.index):
        return False
    return all(left == right or dim.size.high == 1 for left, right, dim in zip(one.index, other.index, over, strict=True))


def _with_result(one: Compound, number: int, result: Result, yields: tuple[Events, ...]) -> Compound:
    """The statement with one more result, of a number, and what its blocks yield for it."""
    blocks = tuple(
        attrs.evolve(block, yields=(*block.yields[:number], used, *block.yields[number:]))
        for block, used in zip(blocks_of(one), yields, strict=True)
    )
    return with_results(one, (*one.results[:number], result, *one.results[number:]), blocks)


def _order(block: Block, pairs: tuple[tuple[int, int], ...]) -> list[int]:
    """An order of statements in which some are before others, of the text as far as that goes."""
    needed, names = _needed(block), {one.name: number for number, one in enumerate(block.statements) if isinstance(one, Alloc)}
    for first, second in pairs:
        needed[second].add(first)
    for number, one in enumerate(block.statements):
        needed[number] |= {names[name] for name in _tensors(one) if name in names}
    order: list[int] = []
    while len(order) < len(needed):
        order.append(next(number for number in range(len(needed)) if number not in order and needed[number] <= set(order)))
    return order


def _tensors(one: Statement) -> set[str]:
    leaves = [each for each in walk(Block((one,))) if isinstance(each, (Copy, Call))]
    refs = (ref for leaf in leaves for ref in ((leaf.source, leaf.target) if isinstance(leaf, Copy) else leaf.arguments))
    return {ref.tensor for ref in refs}


def _own(leaf: Leaf, path: Path, depth: int, user: Leaf, tensor: Shared) -> tuple[Index, ...]:
    """Which of a statement's events are about the tensor of a user's own processor, seen from outside."""
    own = tensor.alloc.over
    both = leaf.over[: len(own)] == own == user.over[: len(own)]
    index: tuple[Index, ...] = (*processor_variables(own), *(EVERY for _ in leaf.over[len(own) :])) if both else (EVERY,) * len(leaf.over)
    for level in range(len(path) - 2, depth - 1, -1):
        around = _at(path, level)
        if isinstance(around, Pfor):
            mine = level < len(tensor.path) - 1 and _at(tensor.path, level) is around
            index = (*(around.variables if mine else (EVERY,) * len(around.variables)), *index)
    return index


def _last(implied: Implied, one: Shared) -> list[tuple[Leaf, Path]]:
    """The users of a tensor that no other one waits for."""
    return [each for each in one.users if not any(_waits(implied, other, each) for other in one.users if other[0] is not each[0])]


def _waits(implied: Implied, one: tuple[Leaf, Path], other: tuple[Leaf, Path]) -> bool:
    """Whether all that a user does is surely done behind all that another one does."""
    (leaf, path), (before, there) = one, other
    depths = [depth for depth in range(min(len(path), len(there))) if path[depth][0] is there[depth][0]]
    depth = depths[-1]
    wanted = _standing(before, there, depth)
    if wanted is None or not all(_runs(_at(path, level)) for level in range(depth, len(path) - 1)):
        return False
    given = Event(leaf.event, (EVERY,) * len(leaf.over))
    return implied.least((given, wanted)) == (given,)


def _standing(leaf: Leaf, path: Path, depth: int) -> Event | None:
    """The event that says in the block at a depth that a statement is done, if there is one."""
    name: str | None = leaf.event
    for level in range(len(path) - 2, depth - 1, -1):
        around, inside = _at(path, level), _type(leaf, path, level + 1)
        assert isinstance(around, (For, Pfor, Branch)) and name is not None
        name = _result_of(around, path[level + 1][0], Event(name, processor_variables(inside)), inside)
        if name is None:
            return None
    assert name is not None
    return Event(name, (EVERY,) * len(_type(leaf, path, depth)))


def _runs(around: Statement) -> bool:
    """Whether the block of a statement surely runs."""
    extents = around.extents if isinstance(around, Pfor) else (around.extent,) if isinstance(around, For) else ()
    return bool(extents) and all(size.low >= 1 for size in extents)


def _type(leaf: Leaf, path: Path, depth: int) -> Type:
    """The type of a statement's event outside of the statements that are around it from a depth on."""
    dims = leaf.over
    for level in range(len(path) - 2, depth - 1, -1):
        around = _at(path, level)
        dims = (*around.dims, *dims) if isinstance(around, Pfor) else dims
    return dims


def _result_of(around: Compound, block: Block, event: Event, over: Type) -> str | None:
    """The result of a loop that says that an event of its block is done in all turns."""
    for result, used in zip(around.results, block.yields, strict=True):
        if not isinstance(around, Branch) and result.over == over and any(_same(event, one, over) for one in used):
            return result.name
    return None


# ---------------------------------------------------------------------------------------------- report


def report(program: EventProgram) -> str:
    """The places of shared tensors as a table: bytes of all copies, how many copies, from which byte on, and who has bytes of them too."""
    lines = []
    for tensors in _spaces(shared_tensors(program)):
        known = [one for one in tensors if one.alloc.at is not None]
        rows = [("tensor", "bytes", "copies", "at", "shares bytes with")]
        rows += [(one.alloc.name, str(one.bytes), str(one.alloc.copies), str(one.alloc.at), _others(one, known)) for one in known]
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        lines.append(f"shared memory of a block: {max((_span(one)[1] for one in known), default=0)} bytes")
        lines += ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join(lines) or "no tensor is in shared memory"


def _span(one: Shared) -> tuple[int, int]:
    assert one.alloc.at is not None
    return one.alloc.at, one.alloc.at + one.bytes


def _others(one: Shared, known: list[Shared]) -> str:
    mine = _span(one)
    names = [other.alloc.name for other in known if other is not one and mine[0] < _span(other)[1] and _span(other)[0] < mine[1]]
    return ", ".join(names) or "-"
