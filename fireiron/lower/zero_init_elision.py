"""`zero_init_elision`: skip the zero initialization of an accumulator if its first MMA can overwrite it.

    acc = 0; for i: { acc *= f(i); acc += A(i) * B(i) }   -->   for i: { if i > 0: acc *= f(i); acc = A(i) * B(i) + (acc if i > 0 else 0) }

wgmma takes a predicate that specifies whether it accumulates (PTX ISA, wgmma, scale-d), at no cost. Zero initialization costs one
instruction per register. Between the zero and the first MMA, only statements that scale the accumulator are allowed; they are skipped, too.
This assumes finite scale factors. Zero times an infinite or NaN factor is NaN, but without the zero the result is that of the first MMA.

A zero initialization before a loop that does not scale the accumulator stays: it costs less than a predicate that changes in the loop. In a
loop of one iteration the predicate is constant, so the zero is elided. If it were kept, ptxas would zero one accumulator while MMAs write
another, and would serialize the MMAs (C7517).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import attrs

from fireiron.frozen import frozen
from fireiron.ir import Access, Comment, Exec, For, Kernel, Stmt, edited, execs
from fireiron.specs.formula import Element, Operation, Value
from fireiron.values.expr import FALSE, TRUE, ZERO, Expr, Var, all_of, any_of, constant, less


def zero_init_elision(kernel: Kernel) -> Kernel:
    """The kernel without zero initializations that its MMAs make redundant."""
    mmas = (stmt for stmt, _ in execs(kernel.body) if stmt.mechanism.in_registers)
    names = dict.fromkeys(access.buffer for mma in mmas for access in mma.accesses if access.write)
    shared = frozenset(buffer.name for buffer in kernel.buffers if buffer.memory.of_block)
    for name in names:
        kernel = attrs.evolve(kernel, body=_elided(kernel.body, name, shared))
    return kernel


def _elided(body: Sequence[Stmt], name: str, shared: frozenset[str]) -> tuple[Stmt, ...]:
    """A list without redundant zero initializations of an accumulator, in this list and in nested ones."""
    result: list[Stmt] = []
    rest = list(body)
    while rest:
        stmt = rest.pop(0)
        count = _zeroed(stmt, name)
        elided = None if count is None else _Traversal(name, count, shared).listed(rest, FALSE)
        if elided is not None and elided.initialized == TRUE and elided.pays_off:
            result.append(Comment(f"the first MMA initializes {name}"))
            rest = list(elided.body)
        else:
            result.append(stmt.rebuilt(tuple(_elided(child, name, shared) for child in stmt.children)) if stmt.children else stmt)
    return tuple(result)


@frozen
class _Rest:
    """The statements after a zero, changed so that they do not need it. `worth`: eliding the zero pays off.

    `added` is the condition under which the accumulator has been written at their end.
    """

    body: tuple[Stmt, ...]
    initialized: Expr
    pays_off: bool


@frozen
class _Traversal:
    """Traverses the statements after a zero of an accumulator; a thread zeroes `count` registers.

    A loop that writes buffers in `shared` memory is not treated as one MMA.
    """

    name: str
    count: int
    shared: frozenset[str]

    def listed(self, body: Sequence[Stmt], initialized: Expr, inner: bool = False) -> _Rest | None:
        """The statements of a list that starts with the accumulator written where `added` is true; None if they need the zero."""
        result: list[Stmt] = []
        pays_off = False
        for place, stmt in enumerate(body):
            if initialized == TRUE:
                return _Rest((*result, *body[place:]), TRUE, pays_off)
            if not _touches(stmt, self.name):
                result.append(stmt)
            elif _scales(stmt, self.name):
                pays_off = True
                result += _without(result, stmt, initialized)
            elif (overwriting := self._mma(stmt, initialized)) is not None:
                pays_off = pays_off or not inner
                result.append(overwriting)
                initialized = TRUE
            else:
                in_loop = self._loop(stmt, initialized)
                if in_loop is None:
                    return None
                result.append(in_loop.body[0])
                initialized, pays_off = in_loop.initialized, pays_off or in_loop.pays_off
        return _Rest(tuple(result), initialized, pays_off)

    def _mma(self, statement: Stmt, initialized: Expr) -> Stmt | None:
        """A statement that only adds MMAs to the whole accumulator; it overwrites the accumulator where nothing was added."""
        accesses = [(access, stmt, loops) for stmt, loops in execs((statement,)) for access in stmt.accesses]
        inside = [(one, loops) for access, one, loops in accesses if access.buffer == self.name]
        if len(inside) != 1 or any(access.write and access.buffer in self.shared for access, _, _ in accesses):
            return None
        ((mma, loops),) = inside
        if any(isinstance(loop.extent, Var) and loop.extent.low < 1 for loop in loops):
            return None  # a loop over a range from data may have no iteration
        access = _only_access(mma, self.name)
        if not mma.mechanism.in_registers or access is None or not access.write or mma.accumulate != TRUE or mma.active != TRUE:
            return None
        if _count(access, loops) != self.count:
            return None
        again = [loop.var > ZERO for loop in loops if loop.var not in _variables(access)]
        (result,) = edited(
            (statement,), lambda other: attrs.evolve(mma, accumulate=any_of((initialized, *again))) if other is mma else other
        )
        return result

    def _loop(self, statement: Stmt, initialized: Expr) -> _Rest | None:
        """A loop that adds to the accumulator in each iteration."""
        if not isinstance(statement, For) or statement.first or statement.step != 1:
            return None
        inside = self.listed(statement.body, any_of((initialized, statement.var > ZERO)), inner=constant(statement.extent) != 1)
        if inside is None or inside.initialized != TRUE:
            return None
        after = any_of((initialized, less(ZERO, statement.extent)))
        return _Rest((attrs.evolve(statement, body=inside.body),), after, inside.pays_off)


# ---------------------------------------------------------------------------------------------- statements


def _touches(statement: Stmt, name: str) -> bool:
    return any(access.buffer == name for stmt, _ in execs((statement,)) for access in stmt.accesses)


def _only_access(statement: Exec, name: str) -> Access | None:
    """The access of a statement to a buffer; None if there are none or several."""
    matches = [access for access in statement.accesses if access.buffer == name]
    return matches[0] if len(matches) == 1 else None


def _variables(access: Access) -> set[Var]:
    return {var for value in (*access.base, access.copy) for var in value.variables()}


def _count(access: Access, loops: Sequence[For]) -> int | None:
    """The number of registers per thread that an access names in all iterations of loops."""
    extents = [constant(loop.extent) for loop in loops if loop.var in _variables(access)]
    return None if None in extents else math.prod(access.shape) * math.prod(one for one in extents if one is not None)


def _zeroed(statement: Stmt, name: str) -> int | None:
    """The number of registers per thread that a statement zeroes in a buffer, if it does nothing else."""
    total = 0
    for stmt, loops in execs((statement,)):
        access = _only_access(stmt, name)
        value = stmt.spec.definition.only.value if stmt.spec.fills and stmt.spec.definition.only is not None else None
        if access is None or len(stmt.accesses) > 1 or getattr(value, "value", None) != 0 or stmt.active != TRUE:
            return None
        count = _count(access, loops)
        if count is None:
            return None
        total += count
    return total or None


def _scales(statement: Stmt, name: str) -> bool:
    """Whether the only effect of a statement on a buffer is to scale its elements in place."""
    for stmt, _ in execs((statement,)):
        operands = {operand: access for operand, access in stmt.operands.items() if access.buffer == name}
        read = [operand for operand, access in operands.items() if not access.write]
        write = [access for access in operands.values() if access.write]
        formula = stmt.spec.definition.only if stmt.spec.pointwise else None
        if formula is None or len(read) != 1 or len(write) != 1:
            return False
        (source,), (target,) = read, write
        before = operands[source]
        if (before.base, before.copy, before.modes) != (target.base, target.copy, target.modes):
            return False
        if not _is_zero(formula.value, source):
            return False
    return True


def _is_zero(value: Value | None, name: str) -> bool:
    """Whether a value is 0 if all elements of an operand are 0 and everything else is finite."""
    if isinstance(value, Element):
        return value.tensor == name
    if not isinstance(value, Operation):
        return False
    parts = [_is_zero(one, name) for one in value.arguments]
    if value.name == "*":
        return any(parts)
    return parts[0] and not any(parts[1:]) if value.name == "/" else value.name in ("+", "-") and all(parts)


def _without(before: list[Stmt], statement: Stmt, initialized: Expr) -> list[Stmt]:
    """A scaling statement under the condition that the accumulator has been written. If it has not, the result is empty, and the comments
    before the statement are removed.
    """
    if initialized == FALSE:
        while before and isinstance(before[-1], Comment):
            before.pop()
        return []
    return list(edited((statement,), lambda one: attrs.evolve(one, active=all_of((initialized, one.active)))))
