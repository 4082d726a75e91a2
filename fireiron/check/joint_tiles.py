"""Check blocks that produce one result together: each result has its semaphore, and accesses of different blocks are ordered by it.

With B blocks per result, the increments of its semaphore return B - 1 for exactly one block, and that increment sets it to 0, provided that

- exactly B blocks increment it, each once;
- a block increments it after its stores of partial results, and only the last block reads them afterwards;
- fences make these stores visible.

So everything after the increment is work of one block per result. The kernel of which a block computes all parts of a result, and then
that work, performs the same accesses of different results; it is compared with `between_blocks`. Parts of one result are compared in the
kernel that ends at the increment.

Blocks that add in a fixed order do not wait forever if their positions in this order grow with the block index: a GPU starts blocks in the
order of their indices, so of the unfinished blocks, the one with the lowest index never waits.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import attrs
import numpy as np

from fireiron.check import streamed_tiles
from fireiron.check.access_trace import MANY, AccessTrace
from fireiron.check.block_positions import positions_are_ordered
from fireiron.check.finding import Finding
from fireiron.ir import (
    Exec,
    For,
    Kernel,
    Let,
    SemaphoreAction,
    SemaphoreBarrier,
    Stmt,
    execs,
    lets,
    located,
    rewritten,
    statements,
    substituted,
)
from fireiron.ir.effects.joint_tiles import Combination, JointTiles
from fireiron.values.expr import ZERO, Expr, Var, as_expr, constant

PART = "the part of a result"
"""The variable of the parts in the kernel of which a block computes all parts."""


def last_block(kernel: Kernel) -> tuple[int, SemaphoreBarrier] | None:
    """The position in the body of the statement after which only the last block of a result continues; None if there is none."""
    for place, stmt in enumerate(kernel.body):
        if isinstance(stmt, SemaphoreBarrier) and stmt.action is SemaphoreAction.LAST:
            return place, stmt
    return None


def before_last_block(kernel: Kernel) -> Kernel:
    """The kernel up to the statement after which only the last block continues."""
    last = last_block(kernel)
    return kernel if last is None else attrs.evolve(kernel, body=kernel.body[: last[0]], workspace=None)


def stores_of_parts(kernel: Kernel) -> Kernel:
    """The stores of partial results, with the barriers between them."""
    kept = {buffer.name for buffer in kernel.buffers if buffer.workspace}

    def stores(stmt: Stmt) -> tuple[Stmt, ...]:
        if isinstance(stmt, Exec):
            return (stmt,) if any(access.buffer in kept for access in stmt.accesses) else ()
        return () if isinstance(stmt, For) and not any(execs(stmt.body)) else (stmt,)

    kernel = before_last_block(kernel)
    return attrs.evolve(kernel, body=rewritten(kernel.body, stores))


def whole_results(kernel: Kernel) -> Kernel | str:
    """The kernel with one block per result, which computes all parts; a text if it is not one."""
    last = last_block(kernel)
    assert last is not None
    place, stmt = last
    parts = constant(stmt.blocks)
    if parts is None or kernel.grid.factor % parts:
        return f"{kernel.grid} blocks are not groups of {stmt.blocks}"
    if parts == 1:  # the part is the name of a number
        numbers = {stmt.var: stmt.value for stmt in kernel.body if isinstance(stmt, Let) and constant(stmt.value) is not None}
        return attrs.evolve(kernel, body=substituted((*kernel.body[:place], *kernel.body[place + 1 :]), numbers), workspace=None)
    grid = kernel.grid // parts
    block, part = Var(kernel.block.name, 0, kernel.block.high // parts), Var(PART, 0, parts - 1)
    body = substituted(kernel.body, {kernel.block: block * parts + part})
    names, of_part = _names(body, part)
    foreign = [var for one in statements(body[place + 1 :]) for value in one.expressions for var in value.variables() if var in of_part]
    if foreign:
        return f"after the last block was determined, an access depends on {foreign[0]}, which differs between its blocks"
    own = tuple(one for one in names if one.var in of_part)
    shared = tuple(one for one in names if one.var not in of_part)
    rest = tuple(one for one in body[:place] if not isinstance(one, Let))
    loop = For(part, as_expr(parts), (*own, *rest))
    after = tuple(one for one in body[place + 1 :] if not isinstance(one, Let))
    return attrs.evolve(kernel, grid=grid, body=(*shared, loop, *after), workspace=None)


def _names(body: Sequence[Stmt], part: Var) -> tuple[list[Let], set[Var]]:
    """The named values at the top level, and the variables that depend on the part."""
    names, of_part = [stmt for stmt in body if isinstance(stmt, Let)], {part}
    for let in names:
        if not of_part.isdisjoint(let.value.variables()):
            of_part.add(let.var)
    return names, of_part


# ---------------------------------------------------------------------------------------------- the check


def check_joint_tiles(access_trace: AccessTrace) -> tuple[Finding, ...]:
    """An error for each violation of these conditions."""
    return tuple(Finding("race", "error", None, text) for text in dict.fromkeys(_problems(access_trace)))


def _problems(access_trace: AccessTrace) -> Iterator[str]:
    kernel = access_trace.kernel
    barriers = [(stmt, around) for stmt, around in located(kernel.body) if isinstance(stmt, SemaphoreBarrier)]
    if not barriers:
        if any(buffer.workspace for buffer in kernel.buffers) and (kernel.workspace is None or not kernel.workspace.looks_back):
            yield "no semaphore orders the blocks that store partial results and those that read them"
        return
    for stmt, _ in barriers:
        if not stmt.fenced:
            yield f"{_named(stmt)}: no fence orders the accesses of different blocks"
        if not stmt.resets and stmt.action is not SemaphoreAction.WAIT:
            yield f"{_named(stmt)}: the semaphore is not 0 after the launch"
    groups = {stmt.group for stmt, _ in barriers}
    if kernel.effects[JointTiles].combination is Combination.ORDERED:
        added = {access.buffer for stmt, _ in execs(kernel.body) if stmt.atomic for access in stmt.accesses if access.write}
        yield from (f"blocks add to {name} in no fixed order" for name in sorted(added - groups))
    first: Expr = ZERO
    for group in dict.fromkeys(stmt.group for stmt, _ in barriers):
        own = [(stmt, around) for stmt, around in barriers if stmt.group == group]
        if any(stmt.action is SemaphoreAction.FIND_LAST for stmt, _ in own):
            yield from streamed_tiles.problems(access_trace, own)
        elif any(stmt.action is SemaphoreAction.LAST for stmt, _ in own):
            yield from _of_last(kernel, [stmt for stmt, _ in own])
        else:
            yield from _of_positions(access_trace, own, first)
        first = first + own[0][0].count


def _named(stmt: SemaphoreBarrier) -> str:
    return f"the semaphore of {stmt.group} ({stmt.action.value})"


def _of_last(kernel: Kernel, stmts: Sequence[SemaphoreBarrier]) -> Iterator[str]:
    (stmt, *others), last = stmts, last_block(kernel)
    if others or last is None:
        yield f"{_named(stmt)}: a block uses it {len(stmts)} times"
        return
    parts, values = constant(stmt.blocks), lets(kernel.body)
    if parts is None or stmt.index.substitute(values) != kernel.block // parts or stmt.count * parts != kernel.grid:
        yield f"{_named(stmt)}: {stmt.blocks} blocks are expected at index {stmt.index}, but others may use it"
    partial = {buffer.name for buffer in kernel.buffers if buffer.workspace}
    before, after = kernel.body[: last[0]], kernel.body[last[0] + 1 :]
    late = sorted({access.buffer for one, _ in execs(after) for access in one.accesses if access.write} & partial)
    early = sorted({access.buffer for one, _ in execs(before) for access in one.accesses if not access.write} & partial)
    if late or early:
        yield f"{(late or early)[0]} is {'stored after' if late else 'read before'} the last block is determined"


def _of_positions(access_trace: AccessTrace, own: Sequence[tuple[SemaphoreBarrier, tuple[Stmt, ...]]], first: Expr) -> Iterator[str]:
    """Problems of blocks that add in order to the results of a group, whose semaphores have the indices `first` and following."""
    kernel = access_trace.kernel
    for stmt, around in own:
        uneven = next((one for one in around if not isinstance(one, For) or "block" in access_trace.roots(one.extent)), None)
        if uneven is not None:
            what = f"loop {uneven.var}" if isinstance(uneven, For) else type(uneven).__name__
            yield f"{_named(stmt)}: not all blocks take part in each iteration, because of {what}"
            return
    yield from _unprotected(kernel, own[0][0].group)
    waits = [(stmt, around) for stmt, around in own if stmt.action is SemaphoreAction.WAIT]
    for stmt, around in waits:
        yield from _of_position(access_trace, stmt, [one for one in around if isinstance(one, For)], first)
    if len(waits) > 1:
        yield f"{_named(waits[0][0])}: a block waits at {len(waits)} places"


def _unprotected(kernel: Kernel, group: str) -> Iterator[str]:
    """Problems of statements that add to the results of a group: each must be between the wait and the increment, in one list."""
    protected: set[int] = set()
    for body in _lists(kernel.body):
        waiting: SemaphoreBarrier | None = None
        for stmt in body:
            if isinstance(stmt, SemaphoreBarrier) and stmt.group == group:
                passes = stmt.action is SemaphoreAction.COUNT
                if passes != (waiting is not None) or (waiting and (waiting.index, waiting.blocks) != (stmt.index, stmt.blocks)):
                    yield f"{_named(stmt)}: a block does not wait once, and is then counted"
                waiting = None if passes else stmt
            elif waiting is not None:
                protected |= {id(one) for one, _ in execs((stmt,))}
        if waiting is not None:
            yield f"{_named(waiting)}: a block that waited is not counted"
    adding = (one for one, _ in execs(kernel.body) if one.atomic and any(a.write and a.buffer == group for a in one.accesses))
    if any(id(one) not in protected for one in adding):
        yield f"a block adds to {group} before it waits, or after it is counted"


def _lists(body: tuple[Stmt, ...]) -> Iterator[tuple[Stmt, ...]]:
    yield body
    for stmt in statements(body):
        yield from stmt.children


def _of_position(access_trace: AccessTrace, stmt: SemaphoreBarrier, loops: Sequence[For], first: Expr) -> Iterator[str]:
    """Problems of the order of blocks: proved for all sizes, or else found by enumeration if the sizes are known."""
    kernel, opened = access_trace.kernel, access_trace.opened
    index, position = opened(stmt.index), opened(stmt.position)
    blocks, count = opened(stmt.blocks), opened(stmt.count)
    if positions_are_ordered(kernel.block, kernel.grid, index, count, position, blocks, loops, opened(first)):
        return
    values = (kernel.grid, index, position, stmt.blocks, *(loop.extent for loop in loops))
    unknown = sorted({symbol.name for symbol in kernel.symbols if any(symbol in opened(value).variables() for value in values)})
    if unknown:
        what = f"it is not proved for all sizes {', '.join(unknown)} that blocks add in the order of their indices"
        yield f"{_named(stmt)}: {what}: index {index}, position {position}; use compile-time sizes"
        return
    yield from _enumerated(access_trace, stmt, loops)


def _enumerated(access_trace: AccessTrace, stmt: SemaphoreBarrier, loops: Sequence[For]) -> Iterator[str]:
    """Problems of the positions of all blocks in all iterations."""
    frame = access_trace.frame([], {})
    counts = [int(frame.value(loop.extent)) for loop in loops]
    blocks = int(frame.value(access_trace.kernel.grid))
    values = [list(loop.values(count)) for loop, count in zip(loops, counts, strict=True)]
    if blocks * int(np.prod([len(one) for one in values], dtype=np.int64)) > MANY:
        yield f"{_named(stmt)}: undecided whether its positions are right, since there are too many blocks and iterations"
        return
    of_index: dict[int, tuple[int, ...]] = {}
    for number in itertools.product(*values):
        fixed = {loop.var.name: value for loop, value in zip(loops, number, strict=True)}
        here = access_trace.frame([("block", np.arange(blocks))], fixed)
        indices, positions, expected = here.full(stmt.index), here.full(stmt.position), int(here.full(stmt.blocks).flat[0])
        order = np.lexsort((np.arange(blocks), indices))
        indices, positions = indices[order], positions[order]
        starts = np.flatnonzero(np.concatenate(([True], indices[1:] != indices[:-1])))
        ends = np.append(starts[1:], blocks)
        spans = zip(starts, ends, strict=True)
        if any(end - start != expected or (positions[start:end] != np.arange(expected)).any() for start, end in spans):
            what = f"the positions of the blocks that share a result are not 0 to {expected - 1} in the order of the block indices"
            yield f"{_named(stmt)}: {what}, so a block may wait for one that has not started"
            return
        if any(of_index.setdefault(int(one), number) != number for one in indices[starts]):
            yield f"{_named(stmt)}: different iterations use the same semaphore"
            return


__all__ = ["before_last_block", "check_joint_tiles", "last_block", "stores_of_parts", "whole_results"]
