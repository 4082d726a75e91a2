"""`settle`: an accumulator is not cleared where the first product that is added to it can overwrite it instead.

    acc = 0; for i: { acc *= f(i); acc += A(i) * B(i) }   -->   for i: { if i > 0: acc *= f(i); acc = A(i) * B(i) + (acc if i > 0 else 0) }

Whether it adds is a predicate of a product of a warpgroup (PTX ISA, wgmma, scale-d), and costs nothing; clearing takes an instruction for
each register. Between the zero and the first product there may be only factors of it, which are left out with it. That zero times a factor
is zero holds of finite factors: of any other, which made NaN before, the result is now that of the first product.

What is cleared once in front of a loop, and not multiplied there, stays as it is: it costs less than a predicate that changes in the loop.
Of a loop of one turn no predicate changes; and there compilers would clear one accumulator while products are added to another, and wait
for these first (ptxas, C7517).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import attrs

from fireiron.ir import Access, Comment, Exec, For, Kernel, Stmt, edited, execs
from fireiron.specs.formula import Element, Operation, Value
from fireiron.values.expr import FALSE, TRUE, ZERO, Expr, Var, all_of, any_of, constant, less


def zero_init_elision(kernel: Kernel) -> Kernel:
    """The kernel without the zeroes that its products can do without."""
    products = (one for one, _ in execs(kernel.body) if one.mechanism.in_registers)
    names = dict.fromkeys(access.buffer for one in products for access in one.accesses if access.write)
    shared = frozenset(buffer.name for buffer in kernel.buffers if buffer.memory.of_block)
    for name in names:
        kernel = attrs.evolve(kernel, body=_settled(kernel.body, name, shared))
    return kernel


def _settled(body: Sequence[Stmt], name: str, shared: frozenset[str]) -> tuple[Stmt, ...]:
    """A list with the zeroes of an accumulator settled that can be, in this list and in those inside."""
    found: list[Stmt] = []
    rest = list(body)
    while rest:
        one = rest.pop(0)
        count = _zeroed(one, name)
        behind = None if count is None else _Behind(name, count, shared).listed(rest, FALSE)
        if behind is not None and behind.added == TRUE and behind.worth:
            found.append(Comment(f"{name} begins with its first product"))
            rest = list(behind.body)
        else:
            found.append(one.rebuilt(tuple(_settled(child, name, shared) for child in one.children)) if one.children else one)
    return tuple(found)


@attrs.frozen
class _Found:
    """What stands behind a zero, changed so that it needs none; it is `worth` that or not.

    Where `added` holds, something has been added at its end.
    """

    body: tuple[Stmt, ...]
    added: Expr
    worth: bool


@attrs.frozen
class _Behind:
    """Goes through what stands behind a zero of an accumulator, of which a thread clears `count` registers.

    A loop that fills buffers of `shared` memory is no single step.
    """

    name: str
    count: int
    shared: frozenset[str]

    def listed(self, body: Sequence[Stmt], added: Expr, inner: bool = False) -> _Found | None:
        """A list in front of which something has been added where `added` holds; None where it needs the zero."""
        found: list[Stmt] = []
        worth = False
        for place, one in enumerate(body):
            if added == TRUE:
                return _Found((*found, *body[place:]), TRUE, worth)
            if not _touches(one, self.name):
                found.append(one)
            elif _scales(one, self.name):
                worth = True
                found += _without(found, one, added)
            elif (product := self._product(one, added)) is not None:
                worth = worth or not inner
                found.append(product)
                added = TRUE
            else:
                through = self._loop(one, added)
                if through is None:
                    return None
                found.append(through.body[0])
                added, worth = through.added, worth or through.worth
        return _Found(tuple(found), added, worth)

    def _product(self, statement: Stmt, added: Expr) -> Stmt | None:
        """A statement that does nothing to the accumulator but add products to all of it, which overwrites where nothing was added."""
        accesses = [(access, one, loops) for one, loops in execs((statement,)) for access in one.accesses]
        inside = [(one, loops) for access, one, loops in accesses if access.buffer == self.name]
        if len(inside) != 1 or any(access.write and access.buffer in self.shared for access, _, _ in accesses):
            return None
        ((one, loops),) = inside
        access = _only_access(one, self.name)
        if not one.mechanism.in_registers or access is None or not access.write or one.accumulate != TRUE or one.active != TRUE:
            return None
        if _count(access, loops) != self.count:
            return None
        again = [loop.var > ZERO for loop in loops if loop.var not in _variables(access)]
        (made,) = edited((statement,), lambda other: attrs.evolve(one, accumulate=any_of((added, *again))) if other is one else other)
        return made

    def _loop(self, statement: Stmt, added: Expr) -> _Found | None:
        """A loop in each turn of which something is added."""
        if not isinstance(statement, For) or statement.first or statement.step != 1:
            return None
        inside = self.listed(statement.body, any_of((added, statement.var > ZERO)), inner=constant(statement.extent) != 1)
        if inside is None or inside.added != TRUE:
            return None
        behind = any_of((added, less(ZERO, statement.extent)))
        return _Found((attrs.evolve(statement, body=inside.body),), behind, inside.worth)


# ---------------------------------------------------------------------------------------------- statements


def _touches(statement: Stmt, name: str) -> bool:
    return any(access.buffer == name for one, _ in execs((statement,)) for access in one.accesses)


def _only_access(statement: Exec, name: str) -> Access | None:
    """The only access of a statement to a buffer."""
    found = [access for access in statement.accesses if access.buffer == name]
    return found[0] if len(found) == 1 else None


def _variables(access: Access) -> set[Var]:
    return {var for value in (*access.base, access.copy) for var in value.variables()}


def _count(access: Access, loops: Sequence[For]) -> int | None:
    """How many registers of a thread an access names in all turns of loops."""
    extents = [constant(loop.extent) for loop in loops if loop.var in _variables(access)]
    return None if None in extents else math.prod(access.shape) * math.prod(one for one in extents if one is not None)


def _zeroed(statement: Stmt, name: str) -> int | None:
    """How many registers of a buffer a thread clears by a statement that does nothing else."""
    total = 0
    for one, loops in execs((statement,)):
        access = _only_access(one, name)
        value = one.spec.definition.only.value if one.spec.fills and one.spec.definition.only is not None else None
        if access is None or len(one.accesses) > 1 or getattr(value, "value", None) != 0 or one.active != TRUE:
            return None
        count = _count(access, loops)
        if count is None:
            return None
        total += count
    return total or None


def _scales(statement: Stmt, name: str) -> bool:
    """Whether a statement does nothing to a buffer but multiply its elements, each in its place."""
    for one, _ in execs((statement,)):
        operands = {operand: access for operand, access in one.operands.items() if access.buffer == name}
        read = [operand for operand, access in operands.items() if not access.write]
        write = [access for access in operands.values() if access.write]
        formula = one.spec.definition.only if one.spec.pointwise else None
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
    """Whether a value is 0 where all elements of an operand are, and what else it reads is finite."""
    if isinstance(value, Element):
        return value.tensor == name
    if not isinstance(value, Operation):
        return False
    parts = [_is_zero(one, name) for one in value.arguments]
    if value.name == "*":
        return any(parts)
    return parts[0] and not any(parts[1:]) if value.name == "/" else value.name in ("+", "-") and all(parts)


def _without(before: list[Stmt], statement: Stmt, added: Expr) -> list[Stmt]:
    """A factor where something was added; the note in front of one that nothing is multiplied by goes with it."""
    if added == FALSE:
        while before and isinstance(before[-1], Comment):
            before.pop()
        return []
    return list(edited((statement,), lambda one: attrs.evolve(one, active=all_of((added, one.active)))))
