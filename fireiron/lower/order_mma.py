"""`order_mma`: make the warpgroups of a role issue their MMAs in a fixed order, as `order_mma(first, last)` of a split requests.

A warpgroup waits before the MMAs of the first step until the previous warpgroup arrives. It arrives itself after the MMAs of the last step
in the same list, or after those of the first step if none follow, as in the first iteration of a deferred loop.

The order is implemented by a ring without buffers that has one stage per warpgroup. So at each mbarrier one warpgroup arrives and one
waits. The ring's fills are numbered by the fills of the ring that the first step reads: fill `t` corresponds to fill
`t * warpgroups + w` for warpgroup `w`. If loads share the stages of that ring, its fills of one iteration count as one.
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


def with_ordered_registers(body: Sequence[Stmt]) -> tuple[Stmt, ...]:
    """The program in which the requests of loops name the registers that the MMAs of steps write, instead of the steps."""
    if not any(isinstance(stmt, For) and OrderedMma in stmt.asks for stmt in statements(body)):
        return tuple(body)

    def edit(statement: Stmt) -> tuple[Stmt, ...]:
        if not (isinstance(statement, For) and OrderedMma in statement.asks):
            return (statement,)
        request = statement.asks[OrderedMma]
        return (statement.with_asks(OrderedMma(_written_in(statement, request.first), _written_in(statement, request.last))),)

    return rewritten(tuple(body), edit)


def _written_in(loop: For, step: str) -> str:
    """The registers that the MMAs of a step write.

    Raises: DecompositionError if the step has no asynchronous MMA.
    """
    request = loop.asks[OrderedMma]
    inside, own = [], False
    for stmt in loop.body:
        own = stmt.step == step if isinstance(stmt, StepMarker) else own
        inside += [stmt] if own else []
    registers = {access.buffer for stmt, _ in execs(inside) if stmt.mechanism.in_registers for access in stmt.accesses if access.write}
    if len(registers) != 1:
        raise DecompositionError(
            f'order_mma("{request.first}", "{request.last}"): step {step} has no asynchronous MMA',
            at=loop.origin,
            legal="steps directly in the loop that wgmma performs",
            hint=f'leave out order_mma("{request.first}", "{request.last}")',
        )
    return registers.pop()


def order_mma(kernel: Kernel) -> Kernel:
    """Add the waits and arrivals that order the MMAs of the warpgroups."""
    order = next((ring for ring in kernel.rings if ring.each), None)
    if order is None:
        return kernel
    loop = next(stmt for stmt in statements(kernel.body) if isinstance(stmt, For) and OrderedMma in stmt.asks)
    writer = _OrderWriter(kernel, order, loop.asks[OrderedMma])

    def edit(statement: Stmt) -> tuple[Stmt, ...]:
        if not isinstance(statement, Roles):
            return (statement.without(OrderedMma),) if isinstance(statement, For) else (statement,)
        return (Roles(tuple(role if role.elected else attrs.evolve(role, body=writer.written(role.body)) for role in statement.roles)),)

    return attrs.evolve(kernel, body=rewritten(kernel.body, edit))


class _OrderWriter:
    """Adds the synchronization of the order to the consumers' program."""

    def __init__(self, kernel: Kernel, order: Ring, request: OrderedMma) -> None:
        self.order, self.first, self.last = order, request.first, request.last
        unit = kernel.thread // order.each
        named = (stmt.var for stmt in kernel.body if isinstance(stmt, Let) and stmt.value == unit)  # a name that is uniform in a warp
        self.unit, self.elected = next(named, unit), equal(index_in(Warp, kernel.thread), 0)
        read = {access.buffer for stmt, _ in execs(kernel.body) if _writes(stmt, self.first) for access in stmt.accesses}
        loops = [stmt for stmt in statements(kernel.body) if isinstance(stmt, For) and OrderedMma in stmt.asks]
        filled = {ring.name for ring in kernel.rings if not read.isdisjoint(ring.buffers)}
        acquired = {
            (stmt.ring, stmt.fill_index)
            for loop in loops
            for stmt in loop.body
            if isinstance(stmt, Acquire) and stmt.state is StageState.FULL
        }
        self.rings = Counter(ring for ring, _ in acquired if ring in filled)

    def written(self, body: Sequence[Stmt]) -> tuple[Stmt, ...]:
        """A list with the waits and arrivals around its MMAs."""
        result: list[Stmt] = []
        number: Expr | None = None
        given: tuple[int, Expr] | None = None
        for statement in body:
            if isinstance(statement, Acquire) and statement.ring in self.rings and statement.state is StageState.FULL:
                number = statement.fill_index // self.rings[statement.ring]
            if isinstance(statement, For) and any(isinstance(stmt, Acquire) for stmt in statements(statement.body)):
                result, given = self._with_arrival(result, given), None
                statement = statement.rebuilt((self.written(statement.body),))
            elif number is not None and given is None and _issues(statement, self.first):
                number_in_order = number * self.order.stages + self.unit
                result.append(Acquire(self.order.name, StageState.EMPTY, number_in_order + (self.order.stages - 1)))
                given = len(result) + 1, number_in_order
            elif given is not None and _issues(statement, self.last):
                given = len(result) + 1, given[1]
            result.append(statement)
        return tuple(self._with_arrival(result, given))

    def _with_arrival(self, body: list[Stmt], given: tuple[int, Expr] | None) -> list[Stmt]:
        """A list with the arrival inserted at a position."""
        if given is None:
            return body
        place, number_in_order = given
        return [*body[:place], Release(self.order.name, StageState.EMPTY, number_in_order, self.elected), *body[place:]]


def _issues(statement: Stmt, registers: str) -> bool:
    """Whether a statement contains MMAs that write some registers."""
    return any(_writes(stmt, registers) for stmt, _ in execs((statement,)))


def _writes(statement: Exec, registers: str) -> bool:
    return statement.mechanism.in_registers and any(access.write and access.buffer == registers for access in statement.accesses)
