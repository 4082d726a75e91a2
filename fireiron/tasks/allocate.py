"""Allocation of shared memory: the offset of each shared tensor in a block, and the events that order tensors that share bytes (Cypress,
section 4.2.4, Figure 11).

Two tensors interfere unless their events permit that all accesses of one precede all accesses of the other. All tensors have separate bytes
if `max_shared_bytes` of the mapping permits it. Otherwise as few pairs as necessary share bytes, and the writers of the second tensor wait
for the users of the first. A tensor in a loop has the same bytes in each iteration, so an iteration waits for the last users in previous
iterations. A tensor that a loop with stages loads from global memory has one copy per stage. An iteration waits for the previous
iteration that used its stage.
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
from fireiron.tasks.packing import Packing, Pair, heaviest_clique, pack
from fireiron.tasks.reduce import Implied, reduced

ALIGNMENT = 128
"""Alignment in bytes of a tensor in shared memory, as TMA requires."""

Path = tuple[tuple[Block, int], ...]
"""The position of a statement: each block around it, the outermost first, with the number of the statement that contains it."""


@attrs.define(eq=False)
class Shared:
    """A tensor in shared memory: its allocation, its position, the statements that access it, and its number of copies.

    The program of its thread block starts at `block_depth` in its path. `bytes` is the size of all copies.
    """

    alloc: Alloc
    path: Path
    block_depth: int
    copies: int = 1
    bytes: int = 0
    users: list[tuple[Leaf, Path]] = attrs.field(factory=list)

    def loops(self) -> Iterator[tuple[int, For]]:
        """The loops around the tensor within its block program, innermost first, with the depths of their bodies."""
        for depth in range(len(self.path) - 1, self.block_depth, -1):
            around = _statement_at(self.path, depth - 1)
            if isinstance(around, For):
                yield depth, around


@attrs.frozen(eq=False)
class Ordering:
    """All accesses to `first` may precede all accesses to `second`. `block`, at `depth`, is the innermost block around both tensors."""

    first: Shared
    second: Shared
    block: Block
    depth: int


def allocated(program: EventProgram, mapping: Mapping) -> EventProgram:
    """Return the program with the offsets of shared tensors, and with the events that sharing of bytes requires.

    Raises: DecompositionError if tensors that are live at the same time do not fit; it lists them with their bytes.
    """
    plan = Plan(program)
    allocations: dict[str, Alloc] = {}
    for tensors in _by_block_program(shared_tensors(program)):
        orderings = _orderings(tensors) if mapping.max_shared_bytes else {}
        packing = _offsets(tensors, orderings, mapping.max_shared_bytes)
        for tensor, offset in zip(tensors, packing.offsets, strict=True):
            allocations[tensor.alloc.name] = attrs.evolve(tensor.alloc, at=offset * ALIGNMENT, copies=tensor.copies)
            plan.wait_for_previous_iterations(tensor)
        for (first, second), ordering in orderings.items():
            if _overlap(tensors, packing, first, second):
                plan.wait_for_first(ordering)
    return reduced(plan.program_with(allocations))


def shared_tensors(program: EventProgram) -> tuple[Shared, ...]:
    """All tensors in shared memory, in program order."""
    parts, tensors = parts_of(program.body), tensors_of(program)
    tensors_by_name: dict[str, Shared] = {}
    for stmt, path in _paths(program.body, ()):
        if isinstance(stmt, Alloc) and stmt.place == SHARED:
            tensors_by_name[stmt.name] = Shared(stmt, path, _block_depth(path))
        elif isinstance(stmt, (Copy, Call)):
            for name in dict.fromkeys(ref.tensor for ref, reads, writes in refs_of(program, stmt) if reads or writes):
                if name in tensors_by_name:
                    tensors_by_name[name].users.append((stmt, path))
    for tensor in tensors_by_name.values():
        tensor.copies = _copies(program, tensors, tensor)
        count = tensor.copies * parts[tensor.alloc.name]
        for dim in tensor.alloc.over:
            count *= dim.size.high
        tensor.bytes = count * bytes_of(tensor.alloc)
    return tuple(tensors_by_name.values())


def _copies(program: EventProgram, tensors: dict[str, Alloc], tensor: Shared) -> int:
    """The number of stages of the loop around a tensor, if the loop loads it from global memory; otherwise 1."""
    loop = next((loop for _, loop in tensor.loops()), None)
    writers = [leaf for leaf, _ in tensor.users for ref, _, writes in refs_of(program, leaf) if writes and ref.tensor == tensor.alloc.name]
    loaded = all(isinstance(leaf, Copy) and tensors[leaf.source.tensor].place == GLOBAL for leaf in writers)
    return loop.stages if loop is not None and loaded else 1


def _paths(block: Block, around: Path) -> Iterator[tuple[Statement, Path]]:
    for number, stmt in enumerate(block.statements):
        path = (*around, (block, number))
        yield stmt, path
        for inner in blocks_of(stmt):
            yield from _paths(inner, path)


def _statement_at(path: Path, depth: int) -> Statement:
    block, number = path[depth]
    return block.statements[number]


def _block_depth(path: Path) -> int:
    """The depth at which the program of a thread block starts."""
    depths = (depth + 1 for depth in range(len(path)) if isinstance(stmt := _statement_at(path, depth), Pfor) and outside(stmt))
    return max(depths, default=0)


def _by_block_program(tensors: tuple[Shared, ...]) -> list[list[Shared]]:
    """The tensors of each thread block's program."""
    by_block: dict[int, list[Shared]] = {}
    for tensor in tensors:
        by_block.setdefault(id(tensor.path[tensor.block_depth][0]), []).append(tensor)
    return list(by_block.values())


# ---------------------------------------------------------------------------------------------- interference


def _orderings(tensors: list[Shared]) -> dict[Pair, Ordering]:
    """The pairs that may share bytes, by their numbers."""
    pairs = itertools.combinations(range(len(tensors)), 2)
    orderings = {pair: _ordering(tensors[pair[0]], tensors[pair[1]]) for pair in pairs}
    return {pair: ordering for pair, ordering in orderings.items() if ordering is not None}


def _ordering(first: Shared, second: Shared) -> Ordering | None:
    """Return the order in which two tensors may share bytes; None if they interfere."""
    depth = _common(first, second)
    for tensor in (first, second):
        ring = next((depth for depth, _ in tensor.loops()), None) if tensor.copies > 1 else None
        if ring is not None and ring <= depth:
            return None  # loads for other iterations are in flight at any time
    block = first.path[depth][0]
    reach = _reach(block, ())
    first_statements, second_statements = ({path[depth][1] for _, path in each.users} for each in (first, second))
    first_precedes = any(reach[last] >> first & 1 for first in first_statements for last in second_statements)
    second_precedes = any(reach[last] >> first & 1 for first in second_statements for last in first_statements)
    if first_precedes and second_precedes:
        return None
    swapped = second_precedes or (not first_precedes and min(second_statements, default=0) < min(first_statements, default=0))
    return Ordering(second, first, block, depth) if swapped else Ordering(first, second, block, depth)


def _common(first: Shared, second: Shared) -> int:
    """The depth of the innermost block around two tensors, outside parallel loops within a thread block."""
    depth = first.block_depth
    for depth in range(first.block_depth, min(len(first.path), len(second.path))):
        here, other = first.path[depth], second.path[depth]
        last = (
            depth + 1 >= min(len(first.path), len(second.path)) or here[1] != other[1] or isinstance(_statement_at(first.path, depth), Pfor)
        )
        if last or first.path[depth + 1][0] is not second.path[depth + 1][0]:
            break
    return depth


def _reach(block: Block, pairs: tuple[tuple[int, int], ...]) -> list[int]:
    """Return a bit mask for each statement of a block: the statement itself, and the statements that are done before it.

    `pairs` are additional orderings. Two statements that precede each other are part of a cycle.
    """
    direct = [sum(1 << each for each in needed) for needed in _needed(block)]
    for first, second in pairs:
        direct[second] |= 1 << first
    reach = [bits | 1 << number for number, bits in enumerate(direct)]
    for through in range(len(reach)):
        reach = [bits | reach[through] if bits >> through & 1 else bits for bits in reach]
    return reach


def _needed(block: Block) -> list[set[int]]:
    """Return, for each statement of a block, the numbers of the statements whose events it needs."""
    makers: dict[str, int] = {}
    needed = []
    for number, stmt in enumerate(block.statements):
        used = _used(stmt)
        needed.append({makers[name] for name in used if name in makers})
        makers |= dict.fromkeys(defined(stmt), number)
    return needed


def _used(stmt: Statement) -> set[str]:
    """Return the names of the events that a statement, or a statement inside it, waits for."""
    used: set[str] = set()

    def collected(events: Events) -> Events:
        used.update(event.name for event in events)
        return events

    with_events(Block((stmt,)), collected)
    return used


# ---------------------------------------------------------------------------------------------- offsets


def _offsets(tensors: list[Shared], orderings: dict[Pair, Ordering], within: int) -> Packing:
    """Return offsets in units of `ALIGNMENT` bytes, such that as few pairs as necessary share bytes."""
    sizes = [-(-tensor.bytes // ALIGNMENT) for tensor in tensors]
    bound = within // ALIGNMENT if within else float("inf")
    packing = pack(sizes, tuple(orderings), bound, lambda dropped: _in_order([orderings[pair] for pair in dropped]))
    if packing.bytes <= bound:
        return packing
    needed = heaviest_clique(sizes, frozenset(orderings))
    listed = ", ".join(f"{tensors[number].alloc.name} {tensors[number].bytes}" for number in needed)
    least = max(sum(sizes[number] for number in needed), within // ALIGNMENT + 1) * ALIGNMENT
    raise DecompositionError(
        f"shared memory: tensors that are live at the same time take {least} bytes of a block: {listed}",
        got=f"max_shared_bytes={within}", legal=f"max_shared_bytes={least} and more",
        hint="smaller pieces, fewer stages, or fewer tensors in SHARED",
    )  # fmt: skip


def _in_order(orderings: list[Ordering]) -> bool:
    """Whether all these orderings are compatible."""
    for block, pairs in _by_block(orderings):
        reach = _reach(block, pairs)
        if any(reach[first] >> other & 1 and reach[other] >> first & 1 for first, other in itertools.combinations(range(len(reach)), 2)):
            return False
    return True


def _by_block(orderings: list[Ordering]) -> list[tuple[Block, tuple[tuple[int, int], ...]]]:
    """Return the blocks of orderings, each with the pairs of statements that must be in order."""
    by_block: dict[int, tuple[Block, list[tuple[int, int]]]] = {}
    for ordering in orderings:
        pairs = by_block.setdefault(id(ordering.block), (ordering.block, []))[1]
        first, second = ({path[ordering.depth][1] for _, path in each.users} for each in (ordering.first, ordering.second))
        pairs += itertools.product(sorted(first), sorted(second))
    return [(block, tuple(pairs)) for block, pairs in by_block.values()]


def _overlap(tensors: list[Shared], packing: Packing, first_number: int, second_number: int) -> bool:
    first, second = (
        (packing.offsets[each] * ALIGNMENT, packing.offsets[each] * ALIGNMENT + tensors[each].bytes)
        for each in (first_number, second_number)
    )
    return first[0] < second[1] and second[0] < first[1]


# ---------------------------------------------------------------------------------------------- events


@attrs.define(eq=False)
class Plan:
    """The additions to a program: results and carried events of loops, waits of statements, and the order of statements in blocks.

    `after` has the additional events that a leaf waits for, by the leaf's event. `results` and `carries` have the additions to a loop or
    branch, by its identity. `known` and `before` cache the names of outer events and of carried events.
    """

    program: EventProgram
    implied: Implied = attrs.field(init=False)
    after: dict[str, list[Event]] = attrs.field(factory=dict, init=False)
    results: dict[int, list[tuple[Result, tuple[Events, ...]]]] = attrs.field(factory=dict, init=False)
    carries: dict[int, list[tuple[Carry, Result, Events]]] = attrs.field(factory=dict, init=False)
    known: dict[tuple[int, str], str] = attrs.field(factory=dict, init=False)
    before: dict[tuple[int, str, int], str] = attrs.field(factory=dict, init=False)
    orderings: list[Ordering] = attrs.field(factory=list, init=False)
    used_names: set[str] = attrs.field(factory=set, init=False)

    def __attrs_post_init__(self) -> None:
        self.implied = Implied(self.program)
        self.used_names = {*types_of(self.program), *tensors_of(self.program)}

    def wait_for_previous_iterations(self, tensor: Shared) -> None:
        """Make the iterations of loops around a tensor wait for previous iterations that used its bytes."""
        for number, (depth, loop) in enumerate(tensor.loops()):
            distance = tensor.copies if number == 0 else 1
            if loop.extent.high > distance:
                self._carried(loop, depth, tensor, tensor, distance, own=True)

    def wait_for_first(self, ordering: Ordering) -> None:
        """Make users of the second tensor wait for users of the first one.

        In loops around both, users of the first also wait for users of the second in previous iterations.
        """
        first, second = ordering.first, ordering.second
        self.orderings.append(ordering)
        for leaf, path in _last(self.implied, first):
            event = self._outside(leaf, path, ordering.depth)
            for user, _ in second.users:
                self._wait(user, Event(event, (EVERY,) * len(_type(leaf, path, ordering.depth))))
        for depth, loop in first.loops():
            if depth <= ordering.depth and loop.extent.high > 1:
                self._carried(loop, depth, second, first, 1, own=False)

    def _carried(self, loop: For, depth: int, users: Shared, waiting: Shared, distance: int, own: bool) -> None:
        """In each iteration of a loop, make the users of `waiting` wait for those of `users`, at least `distance` iterations before."""
        for leaf, path in _last(self.implied, users):
            event, dims = self._outside(leaf, path, depth), _type(leaf, path, depth)
            key = id(loop), event, distance
            if key not in self.before:
                self.before[key] = self._name("p")
                carry, result = Carry(self.before[key], (), dims, distance), Result(self._name("e"), dims)
                self.carries.setdefault(id(loop), []).append((carry, result, (Event(event, processor_variables(dims)),)))
            for user, _ in waiting.users:
                index = _own_events(leaf, path, depth, user, waiting) if own else (EVERY,) * len(dims)
                self._wait(user, Event(self.before[key], index))

    def _wait(self, user: Leaf, event: Event) -> None:
        self.after.setdefault(user.event, []).append(event)

    def _name(self, letter: str) -> str:
        name = next(name for number in itertools.count(1) if (name := f"{letter}{number}") not in self.used_names)
        self.used_names.add(name)
        return name

    def _outside(self, leaf: Leaf, path: Path, depth: int) -> str:
        """Return the event, in the block at a depth, that is done when a statement inside it is done."""
        name = leaf.event
        for level in range(len(path) - 2, depth - 1, -1):
            around = _statement_at(path, level)
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
        result = Result(self._name("e"), over)
        self.results.setdefault(id(around), []).append((result, tuple((event,) if each is block else () for each in blocks_of(around))))
        return result.name

    def program_with(self, allocations: dict[str, Alloc]) -> EventProgram:
        """The program with the additions, and with the offsets of tensors."""
        orders = {id(block): _order(block, pairs) for block, pairs in _by_block(self.orderings)}
        return attrs.evolve(self.program, body=self._block(self.program.body, allocations, orders))

    def _block(self, block: Block, allocations: dict[str, Alloc], orders: dict[int, list[int]]) -> Block:
        order = orders.get(id(block), range(len(block.statements)))
        return attrs.evolve(block, statements=tuple(self._statement(block.statements[number], allocations, orders) for number in order))

    def _statement(self, stmt: Statement, allocations: dict[str, Alloc], orders: dict[int, list[int]]) -> Statement:
        if isinstance(stmt, Alloc):
            return allocations.get(stmt.name, stmt)
        if isinstance(stmt, (Copy, Call)):
            return attrs.evolve(stmt, after=tuple(dict.fromkeys((*stmt.after, *self.after.get(stmt.event, ())))))
        changed = with_blocks(stmt, tuple(self._block(block, allocations, orders) for block in blocks_of(stmt)))
        assert isinstance(changed, (For, Pfor, Branch))
        for result, yields in self.results.get(id(stmt), ()):
            changed = _with_result(changed, len(changed.results), result, yields)
        for carry, result, used in self.carries.get(id(stmt), ()):
            assert isinstance(changed, For)
            changed = _with_result(changed, len(changed.carries), result, (used,))
            assert isinstance(changed, For)
            changed = attrs.evolve(changed, carries=(*changed.carries, carry))
        return changed


def _same(first: Event, second: Event, over: Type) -> bool:
    """Whether two events are equal; indices along dimensions of size one count as equal."""
    if first.name != second.name or len(first.index) != len(second.index):
        return False
    return all(left == right or dim.size.high == 1 for left, right, dim in zip(first.index, second.index, over, strict=True))


def _with_result(stmt: Compound, number: int, result: Result, yields: tuple[Events, ...]) -> Compound:
    """The statement with an additional result, at a position, and the events that its blocks yield for it."""
    blocks = tuple(
        attrs.evolve(block, yields=(*block.yields[:number], used, *block.yields[number:]))
        for block, used in zip(blocks_of(stmt), yields, strict=True)
    )
    return with_results(stmt, (*stmt.results[:number], result, *stmt.results[number:]), blocks)


def _order(block: Block, pairs: tuple[tuple[int, int], ...]) -> list[int]:
    """An order of statements that respects the pairs, and otherwise the program order."""
    needed, names = _needed(block), {stmt.name: number for number, stmt in enumerate(block.statements) if isinstance(stmt, Alloc)}
    for first, second in pairs:
        needed[second].add(first)
    for number, stmt in enumerate(block.statements):
        needed[number] |= {names[name] for name in _tensors(stmt) if name in names}
    order: list[int] = []
    while len(order) < len(needed):
        order.append(next(number for number in range(len(needed)) if number not in order and needed[number] <= set(order)))
    return order


def _tensors(stmt: Statement) -> set[str]:
    leaves = [each for each in walk(Block((stmt,))) if isinstance(each, (Copy, Call))]
    refs = (ref for leaf in leaves for ref in ((leaf.source, leaf.target) if isinstance(leaf, Copy) else leaf.arguments))
    return {ref.tensor for ref in refs}


def _own_events(leaf: Leaf, path: Path, depth: int, user: Leaf, tensor: Shared) -> tuple[Index, ...]:
    """Return the index that selects a statement's events for the user's own tensor, in the block at a depth.

    If the processors of both do not match, the index selects the events of all processors.
    """
    own = tensor.alloc.over
    both = leaf.over[: len(own)] == own == user.over[: len(own)]
    index: tuple[Index, ...] = (*processor_variables(own), *(EVERY for _ in leaf.over[len(own) :])) if both else (EVERY,) * len(leaf.over)
    for level in range(len(path) - 2, depth - 1, -1):
        around = _statement_at(path, level)
        if isinstance(around, Pfor):
            is_around_tensor = level < len(tensor.path) - 1 and _statement_at(tensor.path, level) is around
            index = (*(around.variables if is_around_tensor else (EVERY,) * len(around.variables)), *index)
    return index


def _last(implied: Implied, tensor: Shared) -> list[tuple[Leaf, Path]]:
    """Return the users of a tensor that no other user waits for."""
    return [each for each in tensor.users if not any(_waits(implied, other, each) for other in tensor.users if other[0] is not each[0])]


def _waits(implied: Implied, user: tuple[Leaf, Path], other: tuple[Leaf, Path]) -> bool:
    """Whether one user always runs after all accesses of another one."""
    (leaf, path), (before, other_path) = user, other
    depths = [depth for depth in range(min(len(path), len(other_path))) if path[depth][0] is other_path[depth][0]]
    depth = depths[-1]
    wanted = _result_event(before, other_path, depth)
    if wanted is None or not all(_surely_runs(_statement_at(path, level)) for level in range(depth, len(path) - 1)):
        return False
    given = Event(leaf.event, (EVERY,) * len(leaf.over))
    return implied.least((given, wanted)) == (given,)


def _result_event(leaf: Leaf, path: Path, depth: int) -> Event | None:
    """Return the event, in the block at a depth, that is done when a statement inside it is done; None if there is none."""
    name: str | None = leaf.event
    for level in range(len(path) - 2, depth - 1, -1):
        around, inside = _statement_at(path, level), _type(leaf, path, level + 1)
        assert isinstance(around, (For, Pfor, Branch)) and name is not None
        name = _result_of(around, path[level + 1][0], Event(name, processor_variables(inside)), inside)
        if name is None:
            return None
    assert name is not None
    return Event(name, (EVERY,) * len(_type(leaf, path, depth)))


def _surely_runs(around: Statement) -> bool:
    """Whether the block of a statement runs at least once."""
    extents = around.extents if isinstance(around, Pfor) else (around.extent,) if isinstance(around, For) else ()
    return bool(extents) and all(size.low >= 1 for size in extents)


def _type(leaf: Leaf, path: Path, depth: int) -> Type:
    """The type of a statement's event in the block at a depth."""
    dims = leaf.over
    for level in range(len(path) - 2, depth - 1, -1):
        around = _statement_at(path, level)
        dims = (*around.dims, *dims) if isinstance(around, Pfor) else dims
    return dims


def _result_of(around: Compound, block: Block, event: Event, over: Type) -> str | None:
    """Return the result of a loop that is done when an event of its block is done in all iterations; None if there is none."""
    for result, used in zip(around.results, block.yields, strict=True):
        if not isinstance(around, Branch) and result.over == over and any(_same(event, other, over) for other in used):
            return result.name
    return None


# ---------------------------------------------------------------------------------------------- report


def report(program: EventProgram) -> str:
    """A table of shared tensors: bytes of all copies, number of copies, offset, and the tensors that share bytes."""
    tables = []
    for tensors in _by_block_program(shared_tensors(program)):
        known = [tensor for tensor in tensors if tensor.alloc.at is not None]
        rows = [("tensor", "bytes", "copies", "at", "shares bytes with")]
        rows += [
            (tensor.alloc.name, str(tensor.bytes), str(tensor.alloc.copies), str(tensor.alloc.at), _others(tensor, known))
            for tensor in known
        ]
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        tables.append(f"shared memory of a block: {max((_span(tensor)[1] for tensor in known), default=0)} bytes")
        tables += ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join(tables) or "no tensor is in shared memory"


def _span(tensor: Shared) -> tuple[int, int]:
    assert tensor.alloc.at is not None
    return tensor.alloc.at, tensor.alloc.at + tensor.bytes


def _others(tensor: Shared, known: list[Shared]) -> str:
    own_span = _span(tensor)
    names = [other.alloc.name for other in known if other is not tensor and own_span[0] < _span(other)[1] and _span(other)[0] < own_span[1]]
    return ", ".join(names) or "-"
