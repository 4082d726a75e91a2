"""Print butterfly reductions over lanes as calls of one function.

other[v] = shfl_xor(x[v], 2); x[v] = max(x[v], other[v]); other[v] = shfl_xor(x[v], 1); ...    -->    quad_reduce_max(x);
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import attrs

from fireiron.cuda.types import applied
from fireiron.frozen import frozen
from fireiron.ir import Access, Exec, For, Kernel, Stmt, execs, statements
from fireiron.ir.text import Function
from fireiron.specs.formula import Element, Operation
from fireiron.values.expr import FALSE, TRUE, ZERO, Expr, constant
from fireiron.values.machine import float32, float64, int32

_OPERATIONS: Mapping[str, tuple[str, str]] = {"+": ("sum", "sum"), "max": ("max", "maximum"), "min": ("min", "minimum")}
"""Maps the operation of a formula to its name in the name of a function, and to the noun for its result."""

_LANES = {2: "pair", 4: "quad", 32: "warp"}

_TYPES = {"+": (float32, float64), "max": (float32, float64, int32), "min": (float32, float64, int32)}
"""Element types that the functions handle: sums of integers wrap around, which C++ leaves undefined."""


@frozen
class LaneReduction(Stmt):
    """A reduction of each element of `values` over 2, 4, ... adjacent lanes; `received` has the values of other lanes.

    `body` has the shuffles and operations that the call replaces.
    """

    values: str
    received: str
    operation: str
    lanes: int
    body: tuple[Stmt, ...]

    @property
    def children(self) -> tuple[tuple[Stmt, ...], ...]:
        """The replaced statements."""
        return (self.body,)

    def rebuilt(self, children: tuple[tuple[Stmt, ...], ...]) -> LaneReduction:
        """The same reduction with other statements."""
        (body,) = children
        return attrs.evolve(self, body=body)

    @property
    def performed(self) -> Expr:
        """The condition under which a thread takes part."""
        return next(stmt.performed for stmt, _ in execs(self.body))

    def function(self, kernel: Kernel) -> Function:
        """The function that reduces each element of an array over lanes, which all get the result."""
        dtype = kernel.buffer(self.values).dtype
        name, result = _OPERATIONS[self.operation]
        combined = "x[i] + other[i]" if self.operation == "+" else applied(self.operation, dtype, "x[i]", "other[i]")
        body = (
            "#pragma unroll",
            f"for (int mask = {self.lanes // 2}; mask > 0; mask /= 2) {{",
            f"  {dtype.cuda} other[N];",
            "  #pragma unroll",
            "  for (int i = 0; i < N; ++i)",
            "    other[i] = __shfl_xor_sync(0xffffffff, x[i], mask);",
            "  #pragma unroll",
            "  for (int i = 0; i < N; ++i)",
            f"    x[i] = {combined};",
            "}",
        )
        note = f"{result} of each element over {self.lanes} adjacent lanes, in all of them"
        return Function(f"{_LANES.get(self.lanes, f'lanes{self.lanes}')}_reduce_{name}", (f"{dtype.cuda} (&x)[N]",), body, note, "int N")


@frozen
class _Step:
    """A shuffle of all elements of an array, and the operation that combines them with those of the array."""

    values: str
    received: str
    operation: str
    performed: Expr


def with_reductions(kernel: Kernel) -> Kernel:
    """Replace each run of shuffles over a power of two of adjacent lanes by one statement."""
    if not any(_mask(stmt) for stmt, _ in execs(kernel.body)):
        return kernel
    result = attrs.evolve(kernel, body=_listed(kernel.body, kernel))
    received = {stmt.received for stmt in statements(result.body) if isinstance(stmt, LaneReduction)}
    return result if received == received_only(result) else kernel


def received_only(kernel: Kernel) -> set[str]:
    """The buffers that only reductions access, to receive values; the printed functions have separate arrays instead."""
    reductions = [stmt for stmt in statements(kernel.body) if isinstance(stmt, LaneReduction)]
    inside = {id(stmt) for reduction in reductions for stmt, _ in execs(reduction.body)}
    others = {access.buffer for stmt, _ in execs(kernel.body) if id(stmt) not in inside for access in stmt.accesses}
    return {reduction.received for reduction in reductions} - others


def _listed(body: Sequence[Stmt], kernel: Kernel) -> tuple[Stmt, ...]:
    result: list[Stmt] = []
    position = 0
    while position < len(body):
        steps = list(_steps(body, position, kernel))
        if steps and [mask for mask, _ in steps] == [1 << power for power in reversed(range(len(steps)))]:
            step = steps[0][1]
            stop = position + 2 * len(steps)
            result.append(LaneReduction(step.values, step.received, step.operation, 1 << len(steps), tuple(body[position:stop])))
            position = stop
        else:
            stmt = body[position]
            result.append(stmt.rebuilt(tuple(_listed(child, kernel) for child in stmt.children)) if stmt.children else stmt)
            position += 1
    return tuple(result)


def _steps(body: Sequence[Stmt], position: int, kernel: Kernel) -> Iterator[tuple[int, _Step]]:
    """The steps of one reduction that begin at a position, each with the mask of its shuffle."""
    first: _Step | None = None
    while position + 1 < len(body) and (step := _step(body[position], body[position + 1], kernel)) is not None:
        if first is not None and step[1] != first:
            return
        first = first or step[1]
        yield step
        position += 2


def _step(first: Stmt, second: Stmt, kernel: Kernel) -> tuple[int, _Step] | None:
    shuffle, combine = _elementwise(first, kernel), _elementwise(second, kernel)
    if shuffle is None or combine is None or not (mask := _mask(shuffle)) or shuffle.performed != combine.performed:
        return None
    only = combine.spec.definition.only
    if only is None or only.accumulates or only.reduction is not None or not isinstance(only.value, Operation) or combine.instruction.packs:
        return None
    operation, arguments = only.value.name, only.value.arguments
    names = [combine.operands[part.tensor].buffer for part in (*arguments, only.target) if isinstance(part, Element)]
    source, target = shuffle.operands["src"].buffer, shuffle.operands["dst"].buffer
    dtypes = {kernel.buffer(name).dtype for name in (source, target)}
    if names != [source, target, source] or len(dtypes) > 1 or not dtypes <= {*_TYPES.get(operation, ())}:
        return None
    return mask, _Step(source, target, operation, shuffle.performed)


def _mask(stmt: Exec) -> int:
    """The mask of a butterfly shuffle between the lanes of a warp; 0 for another statement."""
    only = stmt.spec.definition.only
    if stmt.spec.kind.title != "Shfl" or only is None or not isinstance(only.value, Element):
        return 0
    index = only.value.index[0]
    return index.number if index.sign == "^" and index.width in (0, 32) else 0


def _elementwise(stmt: Stmt, kernel: Kernel) -> Exec | None:
    """The statement, if it is executed for each element of whole register arrays, without conditions on single elements; else None."""
    var: Expr = ZERO
    count: int | None = 1
    if isinstance(stmt, For) and (stmt.first, stmt.step, stmt.prior_iterations) == (0, 1, None) and len(stmt.body) == 1:
        var, count, stmt = stmt.var, constant(stmt.extent), stmt.body[0]
    if not isinstance(stmt, Exec) or stmt.accumulate != FALSE:
        return None
    if not all(_is_element(access, var, count, kernel) for access in stmt.accesses):  # first: others may have thousands of conditions
        return None
    whole = all(condition == TRUE for position in range(len(stmt.accesses)) for condition in stmt.conditions(position))
    return stmt if whole else None


def _is_element(access: Access, var: Expr, count: int | None, kernel: Kernel) -> bool:
    """Whether an access is the element number `var` of an array of `count` registers."""
    buffer = kernel.buffer(access.buffer)
    registers = buffer.memory.private and buffer.memory.fragment is None
    return registers and access.count == 1 and constant(buffer.total) == count and buffer.address(access, access.elements()[0]) == var


__all__ = ["LaneReduction", "received_only", "with_reductions"]
