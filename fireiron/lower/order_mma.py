"""`alternate`: warpgroups of one role issue their products in order, as `order_mma(first, last)` of a split requests.

A warpgroup waits for its turn in front of the products of the first step, and gives it on behind those of the last one that follow in the
same list; where none follow, as in the first turn of a delayed loop, behind those of the first. Turns are counted by the ring that the
first step reads: its turn `t` (where loads share its slots, the turns of an iteration together) is the turn `t * warpgroups + w` of
warpgroup `w`. They go through an order, a ring without buffers that has as many stages as there are warpgroups, so at each barrier one
warpgroup arrives and one waits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import attrs

from fireiron.errors import DecompositionError
from fireiron.ir import Acquire, Exec, For, Kernel, Let, Release, Ring, Roles, StageState, StepMarker, Stmt, execs, rewritten, statements
from fireiron.ir.asks.ordered_mma import OrderedMma
from fireiron.values.expr import Expr, equal
from fireiron.values.machine import Warp
from fireiron.values.units import index_in


def with_products_of_turns(body: Sequence[Stmt]) -> tuple[Stmt, ...]:
    """A program whose loops name, for the steps of their turns, the registers that the products of these write."""
    if not any(isinstance(one, For) and OrderedMma in one.asks for one in statements(body)):
        return tuple(body)

    def edit(statement: Stmt) -> tuple[Stmt, ...]:
        if not (isinstance(statement, For) and OrderedMma in statement.asks):
            return (statement,)
        said = statement.asks[OrderedMma]
        return (statement.asking(OrderedMma(_written_in(statement, said.first), _written_in(statement, said.last))),)

    return rewritten(tuple(body), edit)


def _written_in(loop: For, step: str) -> str:
    """The registers that the products of a step write; a `DecompositionError` where it has none."""
    said = loop.asks[OrderedMma]
    inside, own = [], False
    for one in loop.body:
        own = one.step == step if isinstance(one, StepMarker) else own
        inside += [one] if own else []
    found = {access.buffer for one, _ in execs(inside) if one.mechanism.in_registers for access in one.accesses if access.write}
    if len(found) != 1:
        raise DecompositionError(
            f'order_mma("{said.first}", "{said.last}"): {step} is no product that runs by itself while threads go on',
            at=loop.origin,
            legal="steps that wgmma does, directly in the loop",
            hint=f'leave out order_mma("{said.first}", "{said.last}")',
        )
    return found.pop()


def order_mma(kernel: Kernel) -> Kernel:
    """The kernel with its loops' turns of warpgroups in order."""
    order = next((ring for ring in kernel.rings if ring.each), None)
    if order is None:
        return kernel
    loop = next(one for one in statements(kernel.body) if isinstance(one, For) and OrderedMma in one.asks)
    writer = _Turns(kernel, order, loop.asks[OrderedMma])

    def edit(statement: Stmt) -> tuple[Stmt, ...]:
        if not isinstance(statement, Roles):
            return (statement.without(OrderedMma),) if isinstance(statement, For) else (statement,)
        return (Roles(tuple(one if one.elected else attrs.evolve(one, body=writer.written(one.body)) for one in statement.roles)),)

    return attrs.evolve(kernel, body=rewritten(kernel.body, edit))


class _Turns:
    """Puts the turns of an order into the program of the consumers."""

    def __init__(self, kernel: Kernel, order: Ring, said: OrderedMma) -> None:
        self.order, self.first, self.last = order, said.first, said.last
        unit = kernel.thread // order.each
        named = (one.var for one in kernel.body if isinstance(one, Let) and one.value == unit)  # one number for all lanes of a warp
        self.unit, self.speaks = next(named, unit), equal(index_in(Warp, kernel.thread), 0)
        read = {access.buffer for one, _ in execs(kernel.body) if _writes(one, self.first) for access in one.accesses}
        loops = [one for one in statements(kernel.body) if isinstance(one, For) and OrderedMma in one.asks]
        filled = {ring.name for ring in kernel.rings if not read.isdisjoint(ring.buffers)}
        acquired = {
            (one.ring, one.fill_index) for loop in loops for one in loop.body if isinstance(one, Acquire) and one.state is StageState.FULL
        }
        self.rings = Counter(ring for ring, _ in acquired if ring in filled)

    def written(self, body: Sequence[Stmt]) -> tuple[Stmt, ...]:
        """A list with the turns of its products."""
        found: list[Stmt] = []
        number: Expr | None = None
        given: tuple[int, Expr] | None = None
        for statement in body:
            if isinstance(statement, Acquire) and statement.ring in self.rings and statement.state is StageState.FULL:
                number = statement.fill_index // self.rings[statement.ring]
            if isinstance(statement, For) and any(isinstance(one, Acquire) for one in statements(statement.body)):
                found, given = self._given_on(found, given), None
                statement = statement.rebuilt((self.written(statement.body),))
            elif number is not None and given is None and _issues(statement, self.first):
                turn = number * self.order.stages + self.unit
                found.append(Acquire(self.order.name, StageState.EMPTY, turn + (self.order.stages - 1)))
                given = len(found) + 1, turn
            elif given is not None and _issues(statement, self.last):
                given = len(found) + 1, given[1]
            found.append(statement)
        return tuple(self._given_on(found, given))

    def _given_on(self, body: list[Stmt], given: tuple[int, Expr] | None) -> list[Stmt]:
        """A list in which a turn is given on at a place."""
        if given is None:
            return body
        place, turn = given
        return [*body[:place], Release(self.order.name, StageState.EMPTY, turn, self.speaks), *body[place:]]


def _issues(statement: Stmt, registers: str) -> bool:
    """Whether products that write some registers are in a statement."""
    return any(_writes(one, registers) for one, _ in execs((statement,)))


def _writes(statement: Exec, registers: str) -> bool:
    return statement.mechanism.in_registers and any(one.write and one.buffer == registers for one in statement.accesses)
