"""`sink_relu`: move a final `max(x, 0)` of work on registers into its only reader, if it costs less there.

An epilogue computes in float32 and rounds its results when it stores them. After rounding, `max` takes one instruction for two elements.
Rounding preserves signs and zero, so the result is the same. Only the printed text changes: the specs of the statements, which all
consumers of the IR use, stay the same.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import attrs

from fireiron.ir import Exec, For, IfAnyLane, Kernel, Stmt, execs, statements
from fireiron.values.expr import FALSE, TRUE, Expr, conjuncts, constant

MOST_ITERATIONS = 4096
"""Maximum number of loop iterations that are followed to determine which registers a statement writes."""


def sink_relu(kernel: Kernel) -> Kernel:
    """The kernel with each `max(x, 0)` where it costs least; the same kernel if none can move."""
    if not any(stmt.instruction.clamped_later(stmt.spec) for stmt, _ in execs(kernel.body)):
        return kernel
    return attrs.evolve(kernel, body=_moved(kernel, kernel.body, ()))


def _moved(kernel: Kernel, body: tuple[Stmt, ...], around: tuple[For, ...]) -> tuple[Stmt, ...]:
    """A list and its nested lists; `around` are the enclosing loops."""
    body = tuple(
        stmt.rebuilt(tuple(_moved(kernel, child, (*around, stmt) if isinstance(stmt, For) else around) for child in stmt.children))
        if stmt.children
        else stmt
        for stmt in body
    )
    for place, statement in enumerate(body):
        name = _clamped(kernel, statement)
        if name is not None and _may_move(kernel, name, body, place, bool(around)):
            after = tuple(_edited(stmt, name, False) for stmt in body[place + 1 :])
            body = (*body[:place], _edited(statement, name, True), *after)
    return body


def _clamped(kernel: Kernel, statement: Stmt) -> str | None:
    """The registers that a statement fills, each once, with results of `max(x, 0)`; None if it does anything else."""
    inside = list(execs((statement,)))
    names = {one.accesses[list(one.operands).index(one.spec.outputs[0])].buffer for one, _ in inside}
    if len(names) != 1 or not all(one.instruction.clamped_later(one.spec) for one, _ in inside):
        return None
    (name,) = names
    return name if kernel.buffer(name).memory.private and _fills(kernel, statement, name) else None


def _may_move(kernel: Kernel, name: str, body: Sequence[Stmt], place: int, repeated: bool) -> bool:
    """Whether all readers of a statement's registers follow it and apply `max`; in a loop, each iteration must overwrite the registers."""
    touching = [number for number, stmt in enumerate(body) if _uses(stmt, name)]
    if any(isinstance(stmt, IfAnyLane) for number in touching for stmt in statements((body[number],))):
        return False
    after = [one for number in touching if number > place for one in _uses(body[number], name)]
    outside = sum(1 for stmt, _ in execs(kernel.body) if _touches(stmt, name)) - sum(len(_uses(stmt, name)) for stmt in body)
    if outside or not after or not all(_reads(one, name) and one.instruction.clamping(one.spec) for one in after):
        return False
    start = body[touching[0]]
    writers = [stmt for stmt, _ in execs((body[place], start))]
    if any(not set(conjuncts(one.performed)) <= set(conjuncts(other.performed)) for one in writers for other in after):
        return False
    begins = all(one.spec.fills and one.accumulate == FALSE for one in _uses(start, name))
    return not repeated or (begins and _fills(kernel, start, name))


def _edited(statement: Stmt, name: str, writer: bool) -> Stmt:
    """A statement without the `max` on some registers (`writer`), or with it."""
    if isinstance(statement, Exec):
        if not _touches(statement, name):
            return statement
        instruction = statement.instruction.clamped_later(statement.spec) if writer else statement.instruction.clamping(statement.spec)
        return statement if instruction is None else attrs.evolve(statement, instruction=instruction)
    return statement.rebuilt(tuple(tuple(_edited(one, name, writer) for one in child) for child in statement.children))


def _uses(statement: Stmt, name: str) -> list[Exec]:
    return [stmt for stmt, _ in execs((statement,)) if _touches(stmt, name)]


def _touches(statement: Exec, name: str) -> bool:
    return any(access.buffer == name for access in statement.accesses)


def _reads(statement: Exec, name: str) -> bool:
    return all(not access.write for access in statement.accesses if access.buffer == name)


def _fills(kernel: Kernel, statement: Stmt, name: str) -> bool:
    """Whether a statement writes all registers of an array once, in every thread."""
    buffer, registers = kernel.buffer(name), set()
    count = 0
    for stmt, loops in execs((statement,)):
        if stmt.guard != TRUE:
            return False
        iterations = [constant(loop.extent) for loop in loops]
        for position, access in enumerate(stmt.accesses):
            if access.buffer != name or not access.write:
                continue
            if any(condition != TRUE for condition in stmt.conditions(position)):
                return False
            places = [buffer.address(access, offset) for offset in access.elements()]
            addresses = _values(places, loops, iterations)
            if addresses is None:
                return False
            count += len(addresses)
            registers |= set(addresses)
    return count == len(registers) == constant(buffer.elements)


def _values(places: Sequence[Expr], loops: Sequence[For], iterations: Sequence[int | None]) -> list[int] | None:
    """The values of expressions in all iterations of loops; None if they depend on anything else or there are too many."""
    known = {loop.var for loop in loops}
    extents = [extent for extent in iterations if extent is not None]
    if len(extents) < len(iterations) or any(not place.variables() <= known for place in places):
        return None
    steps = list(itertools.islice(itertools.product(*map(range, extents)), MOST_ITERATIONS + 1))
    if len(steps) > MOST_ITERATIONS:
        return None
    values = ({loop.var.name: number for loop, number in zip(loops, step, strict=True)} for step in steps)
    return [int(place.evaluate(value)) for value in values for place in places]
